"""The log of a run: what is shown, remembered, saved, and removed when a run is resumed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from rlds2reverb.learners.csv_log import read_csv_log
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.learners.run_log import RunLog
from rlds2reverb.types.evaluations import Evaluation


@pytest.fixture
def run(tmp_path):
    with RunDirectory(tmp_path) as directory:
        directory.writes_events = False
        yield directory


def add(log, step, *losses):
    """Adds the results of a call of as many iterations as there are losses."""
    metrics = {"loss": np.array(losses, np.float32)}
    result = SimpleNamespace(metrics=metrics, td_errors=None, info=None, num_iterations=len(losses), data_wait_secs=0.0)
    log.add(step, result, None, has_priorities=False)


def evaluate(log, step, *returns):
    log.show_evaluation(step, Evaluation(np.array(returns), np.full(len(returns), 7), (0, 1), None, 0))


def get_steps(run):
    """Returns the steps of the entries and of the evaluations in the files."""
    logs = (read_csv_log(run.path / name) for name in ("progress.csv", "evaluations.csv"))
    return [[int(step) for step in log.get("step", ())] for log in logs]


def test_entries_are_means_since_the_last_one(run):
    shown = []
    log = RunLog(run, lambda step, numbers: shown.append((step, dict(numbers))))
    add(log, 2, 1.0, 2.0)
    add(log, 3, 6.0)
    log.show(3)
    add(log, 4, 5.0)
    log.means["loss"] = 7.0  # By a hook.
    add(log, 5, 1.0)
    log.show(5)
    assert [(step, numbers["loss"]) for step, numbers in shown] == [(3, 3.0), (5, 4.0)]
    assert log.latest["loss"] == 4.0 and log.recorded_at["loss"] == 5 and not log.means
    assert read_csv_log(run.path / "progress.csv")["loss"].tolist() == [3, 4]


def test_run_without_a_checkpoint_starts_again_without_entries(run):
    for steps in ((1, 2), (3,)):
        log = RunLog(run, lambda step, numbers: None)
        for step in steps:
            add(log, step, 1.0)
            log.show(step)
            evaluate(log, step, 1.0)
    assert get_steps(run) == [[3], [3]]


def test_best_evaluation_is_the_one_with_the_highest_mean(run):
    log, best = RunLog(run, lambda step, numbers: None), []
    for step, mean in ((10, 3.0), (20, 1.0), (30, 3.0), (40, 5.0)):
        log.is_new_best = False
        evaluate(log, step, mean - 1, mean + 1)
        best.append((log.is_new_best, log.best_return, log.evaluated_at))
    assert best == [(True, 3, 10), (False, 3, 20), (False, 3, 30), (True, 5, 40)]
    assert log.latest["evaluation/mean_return"] == 5 and log.latest["evaluation/std"] == 1
    log.show_evaluation(50, 4.0)
    assert log.latest["evaluation/mean_return"] == 4 and get_steps(run)[1] == [10, 20, 30, 40]


def resume(run, saved_at):
    """Writes entries and evaluations up to step 40, and resumes from a checkpoint; returns the new log."""
    log, state = RunLog(run, lambda step, numbers: None), None
    evaluate(log, 0, 0.0)
    for step in (10, 20, 30, 40):
        add(log, step, float(step))
        log.show(step)
        evaluate(log, step, step - 1.0, step + 1.0)
        if step == saved_at:
            state = log.state_dict()
    resumed = RunLog(run, lambda step, numbers: None)
    resumed.load_state_dict(state, saved_at)
    return resumed


def test_resumed_log_has_neither_gaps_nor_repeated_entries(run):
    log = resume(run, 20)
    assert (log.best_return, log.evaluated_at, log.latest["loss"]) == (20, 20, 20)
    assert get_steps(run) == [[10, 20, 30, 40], [0, 10, 20, 30, 40]]
    add(log, 30, 1.0)
    log.show(30)
    assert get_steps(run) == [[10, 20, 30], [0, 10, 20]]
    evaluate(log, 40, 7.0, 9.0)
    assert get_steps(run) == [[10, 20, 30], [0, 10, 20, 40]] and log.best_return == 20


def test_forgotten_evaluations_are_removed_and_no_longer_the_best(run):
    log = resume(run, 30)
    log.forget_evaluations()
    assert (log.best_return, log.evaluated_at) == (-math.inf, None)
    assert log.latest["loss"] == 30 and not [name for name in log.latest if name.startswith("evaluation/")]
    assert get_steps(run) == [[10, 20, 30], []]
    evaluate(log, 40, 1.0, 3.0)
    assert log.is_new_best and log.best_return == 2 and get_steps(run) == [[10, 20, 30], [40]]
    log.forget_evaluations()
    assert (log.best_return, log.is_new_best) == (-math.inf, False)
