"""The progress of a training run: on a terminal, in a notebook, and in a log."""

import sys
import types

from rlds2reverb.training import Progress

EVALUATION = {"evaluation/mean_return": 1234.56, "evaluation/score": 43.21}
NUMBERS = {"loss": 0.5, "updates_per_sec": 100.0, "data_wait_share": 0.07}


def make_progress(num_iterations, **options):
    progress = Progress(**options)
    progress.num_iterations = num_iterations
    return progress


def test_lines_are_plain_without_a_terminal(capsys):
    progress = make_progress(7000)
    progress.log(1000, EVALUATION)
    progress.log(1000, NUMBERS)
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "    1,000 of 7,000   return 1,234.6 score 43.2",
        "    1,000 of 7,000   loss 0.5   100 updates/s   data wait 7%   1.0 min left",
    ]


def test_a_terminal_shows_one_line_with_the_newest_score(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = make_progress(7000)
    progress.log(1000, EVALUATION)
    progress.log(1000, NUMBERS)
    shown = "    1,000 of 7,000   loss 0.5   return 1,234.6 score 43.2   100 updates/s   data wait 7%   1.0 min left"
    assert capsys.readouterr().err == f"\r\x1b[K    1,000 of 7,000   return 1,234.6 score 43.2\n\r\x1b[K{shown}"
    progress.close()
    assert capsys.readouterr().err == "\r\x1b[K"


def test_lines_are_plain_in_a_command_that_a_notebook_started(capsys, monkeypatch):
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = make_progress(7000)
    with progress.activity("reading"):
        progress.log(1000, EVALUATION)
    progress.close()
    assert capsys.readouterr().err == "    1,000 of 7,000   return 1,234.6 score 43.2\n"


def test_only_notes_and_warnings_are_printed_when_quiet(capsys):
    progress = make_progress(10, quiet=True)
    progress.log(1, NUMBERS)
    with progress.activity("reading"):
        progress.note("a note")
        progress.warn("a warning in [brackets]")
    assert capsys.readouterr().err.splitlines() == ["a note", "warning: a warning in [brackets]"]


def test_a_notebook_replaces_the_numbers_in_place(monkeypatch, capsys):
    shown = []

    class Handle:
        def __init__(self):
            self.texts = []
            shown.append(self.texts)

        def update(self, data, *, raw):
            self.texts.append(data["text/plain"])

    def display(data, *, raw, display_id):
        handle = Handle()
        handle.update(data, raw=raw)
        return handle

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    progress = make_progress(100)
    progress.note("reading")
    for step in (10, 20):
        progress.log(step, {"loss": step})
    progress.log(20, EVALUATION)
    progress.log(30, {"loss": 30})
    assert shown == [
        ["       10 of 100   loss 10", "       20 of 100   loss 20", "       20 of 100   return 1,234.6 score 43.2"],
        ["       30 of 100   loss 30   return 1,234.6 score 43.2"],
    ]
    assert capsys.readouterr().out == "reading\n"
