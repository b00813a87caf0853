"""Progress lines of training, on a terminal and in a log."""

import sys

from rlds2reverb.cli.progress_lines import ProgressLines

EVALUATION = {"evaluation/mean_return": 1234.56, "evaluation/score": 43.21}
NUMBERS = {"loss": 0.5, "steps_per_sec": 100.0, "data_wait_share": 0.07}


def test_lines_are_plain_without_a_terminal(capsys):
    lines = ProgressLines(7000, quiet=False)
    lines(1000, EVALUATION)
    lines(1000, NUMBERS)
    assert capsys.readouterr().err.splitlines() == [
        "    1,000 of 7,000   return 1,234.6 score 43.2",
        "    1,000 of 7,000   loss 0.5   100 steps/s   data wait 7%   1.0 min left",
    ]


def test_a_terminal_shows_one_line_with_the_newest_score(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    lines = ProgressLines(7000, quiet=False)
    lines(1000, EVALUATION)
    lines(1000, NUMBERS)
    shown = "    1,000 of 7,000   loss 0.5   return 1,234.6 score 43.2   100 steps/s   data wait 7%   1.0 min left"
    assert capsys.readouterr().err == f"\r\x1b[K    1,000 of 7,000   return 1,234.6 score 43.2\n\r\x1b[K{shown}"


def test_nothing_is_printed_when_quiet(capsys):
    ProgressLines(10, quiet=True)(1, NUMBERS)
    assert capsys.readouterr().err == ""
