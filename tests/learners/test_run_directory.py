"""The run directory: logs have complete rows, even after kill -9, and a resumed run continues them."""

import errno
import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.errors import CorruptFileError, ResourceInUseError, StorageFullError
from rlds2reverb.learners import csv_log
from rlds2reverb.learners.csv_log import CsvLog, read_csv_log
from rlds2reverb.learners.run_directory import PRIORITY_BINS, RunDirectory, count_priorities
from rlds2reverb.learners.runs import load_run
from rlds2reverb.types.evaluations import Evaluation


def evaluation(*returns, reference_returns=None, num_clipped=0):
    lengths = np.full(len(returns), 7)
    seeds = tuple(range(len(returns)))
    return Evaluation(np.array(returns, np.float64), lengths, seeds, reference_returns, num_clipped)


def tensorboard_scalars(folder):
    """Returns the steps of each tag in the event files by time; raises `DataLossError` for a torn record."""
    paths = map(str, folder.glob("events.out.tfevents.*"))
    records = [record.numpy() for path in paths for record in tf.data.TFRecordDataset(path)]
    steps_by_tag = {}
    for event in sorted(map(tf.compat.v1.Event.FromString, records), key=lambda event: event.wall_time):
        for value in event.summary.value:
            steps_by_tag.setdefault(value.tag, []).append(event.step)
    return steps_by_tag


# --- CSV


def test_columns_can_be_added_leaving_earlier_rows_empty(tmp_path):
    log = CsvLog(tmp_path / "log.csv")
    log.append(10, {"loss": 0.1, "q": np.float32(2)})
    log.append(20, {"loss": None, "a, b": 1e300})
    log.append(30, {"q": tf.constant(3)})
    assert (tmp_path / "log.csv").read_text() == 'step,loss,q,"a, b"\n10,0.1,2,\n20,,,1e+300\n30,,3,\n'
    log = read_csv_log(tmp_path / "log.csv")
    np.testing.assert_equal(log["loss"], [0.1, np.nan, np.nan])
    np.testing.assert_equal(log["a, b"], [np.nan, 1e300, np.nan])
    assert log["step"].tolist() == [10, 20, 30] and sorted(os.listdir(tmp_path)) == ["log.csv"]


def test_csv_log_keeps_numbers_exactly(tmp_path):
    numbers = [0.1 + 0.2, 2.0**60, -0.0, 5e-324, np.nan, np.inf, -np.inf]
    log = CsvLog(tmp_path / "log.csv")
    for step, number in enumerate(numbers):
        log.append(step, {"x": number})
    np.testing.assert_array_equal(read_csv_log(tmp_path / "log.csv")["x"], numbers)


def test_csv_log_raises_for_values_that_are_not_numbers(tmp_path):
    with pytest.raises(TypeError, match="'loss' must be a number, got 'high'"):
        CsvLog(tmp_path / "log.csv").append(0, {"loss": "high"})
    assert not (tmp_path / "log.csv").exists()


@pytest.mark.drill("fuzzing")
def test_csv_log_drops_an_unfinished_last_line(tmp_path):
    path = tmp_path / "log.csv"
    log = CsvLog(path)
    log.append(1, {"loss": 0.5})
    log.append(2, {"loss": 0.25})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        rows = max(0, whole[:size].count(b"\n") - 1)
        assert len(read_csv_log(path).get("step", ())) == rows, "a reader sees complete rows only"
        CsvLog(path).append(3, {"loss": 0.75})
        assert read_csv_log(path)["loss"].tolist() == [*[0.5, 0.25][:rows], 0.75]


def test_cut_after_removes_later_rows_and_the_last_row_of_a_step_wins(tmp_path):
    log = CsvLog(tmp_path / "log.csv")
    log.cut_after(0)
    for step in (10, 20, 30):
        log.append(step, {"loss": step})
    log.cut_after(20)
    log.append(20, {"loss": 7})
    assert read_csv_log(tmp_path / "log.csv")["loss"].tolist() == [10, 7]


@pytest.mark.drill("F9")
def test_full_disk_leaves_the_log_unchanged_when_a_column_is_added(tmp_path, monkeypatch):
    path = tmp_path / "log.csv"
    log = CsvLog(path)
    with monkeypatch.context() as patch:
        patch.setattr(csv_log.os, "fsync", raise_no_space)
        with pytest.raises(StorageFullError, match="no space left for .*log.csv"):
            log.append(1, {"loss": 0.5})
    assert not path.exists()  # A header without a row would look like a log.
    log.append(1, {"loss": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr(csv_log.os, "fsync", raise_no_space)
        with pytest.raises(StorageFullError):
            log.append(2, {"loss": 1.5, "q": 3.0})
    log.append(2, {"loss": 1.5})
    log.append(3, {"q": 4.0})
    columns = {name: np.nan_to_num(column).tolist() for name, column in read_csv_log(path).items()}
    assert columns == {"step": [1, 2, 3], "loss": [0.5, 1.5, 0], "q": [0, 0, 4]}


def raise_no_space(_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("num_bytes", [3, None])
@pytest.mark.drill("F9")
def test_full_disk_raises_and_leaves_the_log_unchanged(tmp_path, monkeypatch, num_bytes):
    log = CsvLog(tmp_path / "log.csv")
    log.append(1, {"loss": 0.5})

    def full(path, *arguments, **options):
        class Full(io.FileIO):
            def write(self, content):
                if num_bytes is None:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return super().write(content[:num_bytes])

        return Full(path, "ab")

    with monkeypatch.context() as patch:
        patch.setattr(csv_log, "open", full, raising=False)
        with pytest.raises(StorageFullError, match="no space left for .*log.csv; free some, and start again"):
            log.append(2, {"loss": 0.25})
    assert (tmp_path / "log.csv").read_text() == "step,loss\n1,0.5\n"
    log.append(2, {"loss": 0.25})
    assert read_csv_log(tmp_path / "log.csv")["step"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("loss,step\n1,2\n", "the first column of .* must be 'step', got 'loss'"),
        ("step,loss\n1,2\n3\n", "is damaged: line 3 must contain 2 numbers"),
        ("step,loss\n1,x\n", "is damaged: line 2 must contain"),
        ("step,loss\n-1,2\n", "is damaged: line 2 must contain"),
        ("step,loss\n\0,2\n", "is damaged"),
        (b"step,\xff\n", "is damaged"),
        ('step,"lo\n1,2\n', "is damaged"),
    ],
)
def test_damaged_log_raises(content, message, tmp_path):
    (tmp_path / "progress.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    for reading in (CsvLog, read_csv_log):
        with pytest.raises(CorruptFileError, match=message):
            reading(tmp_path / "progress.csv")
    with pytest.raises(CorruptFileError, match=message):
        RunDirectory(tmp_path)
    (tmp_path / "progress.csv").unlink()
    RunDirectory(tmp_path).close()  # The lock was released.


# --- Locking and kill -9


@pytest.mark.drill("F27")
def test_run_directory_in_use_raises_and_names_the_process(tmp_path):
    with RunDirectory(tmp_path / "a/run") as run:
        with pytest.raises(
            ResourceInUseError, match=rf"run is in use by process {os.getpid()} on .*choose a different run directory"
        ):
            RunDirectory(tmp_path / "a/run")
        run.log_priorities(1, count_priorities([1.0]))
    RunDirectory(tmp_path / "a/run").close()
    run.close()
    assert sorted(path.name for path in (tmp_path / "a/run").iterdir()) == ["priorities.csv"]


@pytest.mark.drill("F27")
def test_killed_learner_leaves_complete_rows_and_a_free_directory(tmp_path):
    program = (
        "import sys, itertools\n"
        "from rlds2reverb.learners.run_directory import RunDirectory, count_priorities\n"
        "run = RunDirectory(sys.argv[1])\n"
        "for step in itertools.count(): run.log_priorities(step, count_priorities([step]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.PIPE) as learner:
        path = tmp_path / "priorities.csv"
        while learner.poll() is None and (not path.exists() or path.stat().st_size < 20_000):
            pass
        assert learner.poll() is None, learner.stderr.read().decode()
        with pytest.raises(ResourceInUseError, match=f"in use by process {learner.pid} on"):
            RunDirectory(tmp_path)
        learner.send_signal(signal.SIGKILL)
        learner.wait()
    with RunDirectory(tmp_path) as run:
        seen = load_run(tmp_path).priority_steps
        assert len(seen) > 10 and seen.tolist() == list(range(len(seen)))
        run.log_priorities(len(seen), count_priorities([1.0]))
    assert load_run(tmp_path).priority_steps.tolist() == list(range(len(seen) + 1))


# --- Content


def test_write_config_stores_versions_data_and_command(tmp_path):
    with RunDirectory(tmp_path / "my run") as run:
        run.write_config(
            {
                "configuration": {"algo": "iql", "seed": np.int64(3), "folder": Path("x"), "hidden": (256, 256)},
                "data": {"source": "x.hdf5", "fingerprint": "xxh128 00", "data_return": 12.5},
                "environment": "Pendulum-v1",
                "reference_returns": (-1200, -150),
            },
        )
        run = load_run(run.path)
        assert run.configuration == {"algo": "iql", "seed": 3, "folder": "x", "hidden": [256, 256]}
        assert run.environment == "Pendulum-v1" and run.reference_returns == (-1200.0, -150.0)
        assert run.data_return == 12.5 and run.config["data"]["fingerprint"] == "xxh128 00"
        assert {"python", "rlds2reverb", "tf-agents", "gymnasium", "numpy"} <= run.config["versions"].keys()


def test_run_without_a_description_has_no_results(tmp_path):
    with RunDirectory(tmp_path) as run:
        run.write_config({})
    run = load_run(tmp_path)
    assert run.environment is run.reference_returns is run.data_return is run.last_return is run.best_return is None


def test_write_config_raises_for_values_that_are_not_json(tmp_path):
    with (
        RunDirectory(tmp_path) as run,
        pytest.raises(TypeError, match=r"configuration\['net'\]\['f'\]\[1\] must be .*, got <"),
    ):
        run.write_config({"configuration": {"net": {"f": [1, object()]}}})
    assert list(tmp_path.iterdir()) == []


def test_cut_after_cuts_csv_and_tensorboard_logs_for_a_resumed_run(tmp_path):
    with RunDirectory(tmp_path) as run:
        for step in (100, 200, 300):
            run.log(step, {"loss": 1 / step, "q_mean": tf.constant(2.0), "beta": None})
            run.log_evaluation(step, evaluation(10, 20, reference_returns=(0, 30), num_clipped=4))
            run.log_priorities(step, count_priorities(tf.constant([0.0, 1.0, 1.5, 1e9])))
            run.log_weights(step, count_priorities([0.5]))
    (events,) = (tmp_path / "train").iterdir()
    with events.open("ab") as stream:
        stream.write(b"torn")
    with RunDirectory(tmp_path) as run:
        run.cut_after(200)
        assert tensorboard_scalars(tmp_path / "train")["loss"] == [100, 200]
        run.log(250, {"loss": 7, "new": 1})
        run.log_evaluation(250, evaluation(5))
        run.cut_after(200)
        run.log(260, {"loss": 8})
    run = load_run(tmp_path)
    assert run.progress["step"].tolist() == [100, 200, 260] and run.progress["loss"][-1] == 8
    columns = {name: column.tolist() for name, column in run.evaluations.items()}
    assert columns == {
        "step": [100, 200],
        "mean": [15, 15],
        "std": [5, 5],
        "score": [50, 50],
        "num_episodes": [2, 2],
        "num_clipped": [4, 4],
        "return_0": [10, 10],
        "return_1": [20, 20],
    }
    assert run.priorities.shape == (2, len(PRIORITY_BINS)) and run.priority_steps.tolist() == [100, 200]
    assert run.weights.sum(1).tolist() == [1, 1] and run.weight_steps.tolist() == [100, 200]
    one = np.searchsorted(PRIORITY_BINS, 1.0)
    assert PRIORITY_BINS[one] == 1 and run.priorities[0, [0, one, one + 1, -1]].tolist() == [1, 1, 1, 1]
    tags = tensorboard_scalars(tmp_path / "train")
    assert tags["loss"] == [100, 200, 260] and tags["evaluation/score"] == [100, 200] and "new" not in tags


def test_discounted_returns_are_logged_if_they_are_known(tmp_path):
    with RunDirectory(tmp_path) as run:
        run.log_evaluation(1, evaluation(1))
        run.log_evaluation(2, replace(evaluation(1), discounted_return=0.5))
    np.testing.assert_array_equal(load_run(tmp_path).evaluations["discounted_return"], [np.nan, 0.5])


def test_rates_of_success_are_logged_if_they_are_known(tmp_path):
    with RunDirectory(tmp_path) as run:
        run.log_evaluation(1, evaluation(1))
        run.log_evaluation(2, replace(evaluation(1, 2), successes=np.array([True, False])))
    np.testing.assert_array_equal(load_run(tmp_path).evaluations["success_rate"], [np.nan, 0.5])


def test_steps_must_be_non_negative_integers(tmp_path):
    with RunDirectory(tmp_path) as run:
        for call in (run.log, run.log_evaluation, run.log_priorities, run.log_weights):
            with pytest.raises(ValueError, match="step must be an integer >= 0, got -1"):
                call(-1, evaluation(1) if call == run.log_evaluation else {})
        with pytest.raises(ValueError, match="step must be an integer >= -1, got True"):
            run.cut_after(True)


def test_load_run_raises_for_other_directories(tmp_path):
    with pytest.raises(
        ValueError, match=r"must be the directory of a training run, but has none of config.json, progress.csv"
    ):
        load_run(tmp_path)
    with RunDirectory(tmp_path) as run:
        run.write_config({"environment": "Pendulum-v1"})
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("Pendulum-v1", "Pendulum-v2"))
    with pytest.raises(CorruptFileError, match="config.json is damaged"):
        load_run(tmp_path)


def test_last_return_of_a_stopped_run_names_its_update(tmp_path):
    with RunDirectory(tmp_path) as run:
        run.write_config({"configuration": {"algo": "iql"}})
        run.log_evaluation(10, evaluation(5))
        run.log(10, {"loss": 1.0})
        assert str(load_run(tmp_path)).endswith("10 updates, last return 5.0, best 5.0")
        run.log(15, {"loss": 1.0})
    assert str(load_run(tmp_path)).endswith("15 updates, last return 5.0 (evaluated at update 10), best 5.0")
