"""The text of pages, and what their figures show and how, equal those recorded in `tests/data/pages`.

`PYTHONPATH=tests/support python tests/training/reports/test_recorded_pages.py` writes the files again.
"""

import html
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from figures_shown import describe_figure
from properties import mark_slow_except
from written_runs import write_run

from rlds2reverb import load
from rlds2reverb.training.reports import report_runs, report_source
from rlds2reverb.training.reports.page import Page

FOLDER = Path(__file__).parents[2] / "data/pages"


def make_episode(number, num_rows, *, num_columns, with_image):
    """Returns an episode whose numbers all differ, of which every third is terminal and every third has no flag."""
    random, rows = np.random.default_rng(number), np.arange(num_rows)
    observation = {"state": np.sin(rows[:, None] / np.arange(3, 3 + num_columns)).astype(np.float32)}
    if with_image:
        image = random.integers(50, 200, (num_rows, 6, 8, 3)).astype(np.uint8)
        image[3 : 3 + 12 * (number == 1)] = 0
        observation |= {"image": image, "depth": image[..., 0], "phase": np.array(["a", "b"] * num_rows)[:num_rows]}
    return {
        "observation": observation,
        "action": random.uniform(-1, 1, (num_rows, 2)).astype(np.float32) * (rows < num_rows - 1)[:, None],
        "reward": random.normal(number, 0.1, num_rows).astype(np.float32) * (rows < num_rows - 1),
        "discount": (rows < num_rows - (number % 3 == 0)).astype(np.float32),
        "is_first": rows == 0,
        "is_last": (rows == num_rows - 1) & (number % 3 != 2),
        "is_terminal": (rows == num_rows - 1) & (number % 3 == 0),
        "timestamp": rows / 10 + 3 * (rows > 20) * (number == 1),
    }


def make_source(num_episodes, **options):
    return load([make_episode(number, 25 + 5 * number % 35, **options) for number in range(num_episodes)])


def report_experiment(folder):
    paths = [
        write_run(folder / "a"),
        write_run(folder / "b", seed=1, returns=(20.0, 40.0, 35.0)),
        write_run(folder / "c", "td3", q_values=(10.0, 1e4, -1e7)),
        write_run(folder / "d", "sac", q_values=(50.0, 70.0, 90.0)),
    ]
    return report_runs(paths)


PAGES = {
    "images": lambda folder: report_source(make_source(9, num_columns=3, with_image=True), reference_returns=(0, 100)),
    "columns": lambda folder: report_source(make_source(20, num_columns=33, with_image=False)),
    "runs": report_experiment,
}


def describe_page(name, folder, patch):
    """Returns the lines of a page, each with its tag, and of its figures."""
    figures, add_figure = [], Page.add_figure

    def add_and_keep(page, heading, figure, **options):
        figures.append(f"{heading} {options.get('is_wide', False)}\n" + "\n".join(describe_figure(figure)))
        add_figure(page, heading, figure, **options)

    patch.setattr(Page, "add_figure", add_and_keep)
    page = PAGES[name](folder).html
    page = re.sub(r"<style>.*?</style>|</[^>]*>|src=\"[^\"]*\"", "", page, flags=re.DOTALL).replace(
        str(folder), "FOLDER"
    )
    lines = html.unescape(page.replace("<", "\n<")).splitlines()
    return "\n".join([*(line.rstrip() for line in lines if line.strip()), *figures, ""])


@pytest.mark.parametrize("name", mark_slow_except({*PAGES} - {"columns"}, PAGES))
def test_pages_equal_the_recorded_ones(name, tmp_path, monkeypatch):
    assert describe_page(name, tmp_path, monkeypatch) == (FOLDER / f"{name}.txt").read_text()


if __name__ == "__main__":
    for name in PAGES:
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{name}.txt").write_text(describe_page(name, Path(folder), patch))
