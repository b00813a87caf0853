"""Tests of pushes of columns and episodes, and of threads."""

import errno
import subprocess
import sys
import threading
import time

import internals
import numpy as np
import pytest
from numbered_items import get_number, items

from rlds2reverb import load
from rlds2reverb.errors import RateLimitedError, SpecMismatchError
from rlds2reverb.replay import (
    AdvancedReplayBuffer,
    BufferConfig,
    BufferMonitor,
    EpisodeReplayBuffer,
    SequenceReplayBuffer,
)
from rlds2reverb.replay.rows import RowRing

# --- columns


def test_pushed_columns_match_pushed_items(make):
    by_items, by_columns = make(with_replacement=False), make(with_replacement=False)
    rows = items(*range(7))
    columns = {
        "obs": np.stack([r["obs"] for r in rows]),
        "inner": {key: np.stack([r["inner"][key] for r in rows]) for key in ("action", "done")},
        "image": np.stack([r["image"] for r in rows]),
    }
    numbers = by_columns.extend_columns(columns, priorities=np.arange(1.0, 8), collect_iters=3)
    assert numbers.tolist() == list(range(7)) and numbers.dtype == np.int64
    by_items.extend([{**row, "priority": n + 1.0, "collect_iter": 3} for n, row in enumerate(rows)])
    values = [
        {get_number(s): (s["priority"], s["staleness"], s["collect_iter"]) for s in buffer.sample(7, 5)}
        for buffer in (by_items, by_columns)
    ]
    assert values[0] == values[1] and by_items.spec == by_columns.spec


def test_last_elements_are_kept_when_columns_exceed_max_size(make):
    buffer = make(max_size=5, with_replacement=False)
    buffer.extend_columns({"x": np.arange(3)})
    assert buffer.extend_columns({"x": np.arange(100, 113)}).tolist() == list(range(3, 16))
    batch = buffer.sample_batch(5)
    assert sorted(batch.data["x"]) == [108, 109, 110, 111, 112]
    assert (batch.info.key == batch.data["x"] - 97).all()


@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        (
            {"x": np.arange(3), "y": np.arange(2)},
            {},
            SpecMismatchError,
            r"columns must have the leading axes \[N\] in all fields .*, got \[2\], \[3\]; cut or pad",
        ),
        (
            {"x": np.zeros(3), "y": np.zeros(3)},
            {},
            SpecMismatchError,
            r"columns\[0\]\['x'\] is float64 \[\], but .* expects int64",
        ),
        (
            {"x": np.zeros((3, 2), int), "y": np.zeros(3, int)},
            {},
            SpecMismatchError,
            r"columns\[0\]\['x'\] is int64 \[2\]",
        ),
        ({"x": np.arange(3)}, {}, SpecMismatchError, r"missing columns\[0\]\['y'\]"),
        (
            {"x": 3, "y": np.arange(2)},
            {},
            SpecMismatchError,
            r"columns must be \[N, ...\] in all fields for buffer 'demo', got a field with fewer axes",
        ),
        (
            {"x": np.arange(0), "y": np.arange(2)},
            {},
            SpecMismatchError,
            r"columns must have the leading axes \[N\] .*, got \[0\], \[2\]",
        ),
        ([1, 2], {}, TypeError, "an item must be a dict of fields"),
        (None, {"priorities": [1.0, 2.0]}, ValueError, "priorities must be one number, or one per item for 3 items"),
        (None, {"priorities": "3"}, ValueError, "priorities must be one number, or .*: expected numbers, got '3'"),
        (None, {"priorities": -1.0}, ValueError, "the priority of item 0 must be a finite number .*, got -1.0"),
        (
            None,
            {"priorities": [1, np.nan, 1]},
            ValueError,
            "the priority of item 1 must be a finite number .*, got nan",
        ),
        (
            None,
            {"collect_iters": [1, 2]},
            ValueError,
            r"collect_iters must be one integer >= -1, or one per item for 3 items, got \[1, 2\]",
        ),
        (None, {"collect_iters": -2}, ValueError, "collect_iters must be one integer >= -1, .*, got -2"),
        (None, {"collect_iters": 1.5}, ValueError, "collect_iters must be one integer >= -1, .*, got 1.5"),
    ],
)
def test_invalid_columns_raise_and_change_nothing(make, columns, options, error, message):
    buffer = make(spec={"x": np.int64(0), "y": np.int64(0)})
    with pytest.raises(error, match=message):
        buffer.extend_columns({"x": np.arange(3), "y": np.arange(3)} if columns is None else columns, **options)
    assert buffer.push_count == 0


def test_stacked_episodes_and_sequences_can_be_pushed(make):
    buffer = make(EpisodeReplayBuffer, window=2, sample_min_limit_ratio=0)
    assert buffer.extend_columns({"x": np.arange(12).reshape(3, 4)}).tolist() == [0, 1, 2]
    # Episodes that are shorter than the window are dropped.
    assert buffer.extend_columns({"x": np.zeros((2, 1), int)}).tolist() == [-1, -1]
    assert set(buffer.sample_batch(200).data["x"][:, 0]) == {0, 1, 2, 4, 5, 6, 8, 9, 10}
    with pytest.raises(
        SpecMismatchError,
        match=r"columns must have the leading axes \[N, 2\] in all fields for buffer 'demo', got \[3, 4\]",
    ):
        make(SequenceReplayBuffer, length=2, spec={"x": np.zeros(2)}).extend_columns({"x": np.zeros((3, 4))})


# --- episodes


def make_steps(first, count, *, terminal):
    """Returns an RLDS episode of `count` transitions whose observations are first, first + 1, ..."""
    rows = np.arange(first, first + count + 1)
    last = np.arange(count + 1) == count
    return {
        "observation": {"x": rows.astype(np.float32)},
        "action": (rows * 10).astype(np.float32),
        "reward": (rows * 100).astype(np.float32),
        "discount": np.ones(count + 1, np.float32),
        "is_first": np.arange(count + 1) == 0,
        "is_last": last,
        "is_terminal": last & terminal,
    }


@pytest.fixture
def source():
    return load([make_steps(10, 2, terminal=False), make_steps(20, 3, terminal=True), make_steps(30, 1, terminal=True)])


def test_source_is_stored_as_transitions(make, source):
    buffer = make(with_replacement=False)
    assert buffer.extend_episodes(source, priority=2.0, collect_iter=4) == 6
    batch = buffer.sample_batch(6, 5)
    order = np.argsort(batch.info.key)
    data = {
        name: column[order] for name, column in batch.data.items() if name not in ("observation", "next_observation")
    }
    assert batch.data["observation"]["x"][order].tolist() == [10, 11, 20, 21, 22, 30]
    assert batch.data["next_observation"]["x"][order].tolist() == [11, 12, 21, 22, 23, 31]
    assert data["action"].tolist() == [100, 110, 200, 210, 220, 300] and data["reward"][1] == 1100
    assert data["discount"].tolist() == [1, 1, 1, 1, 0, 0] and data["discount"].dtype == np.float32
    assert set(data) == {"action", "reward", "discount"}
    assert set(batch.info.priority) == {2.0} and set(batch.info.staleness) == {1}


def test_source_is_stored_as_episodes_and_as_sequences(make, source):
    whole = make(EpisodeReplayBuffer, with_replacement=False)
    assert whole.extend_episodes(source) == 3
    values = {s["replay_unique_id"]: s["observation"]["x"].tolist() for s in whole.sample(3)}
    assert values == {"demo_0": [10, 11, 12], "demo_1": [20, 21, 22, 23], "demo_2": [30, 31]}
    parts = make(SequenceReplayBuffer, length=3, with_replacement=False)
    assert parts.extend_episodes(source) == 3
    assert sorted(s["observation"]["x"].tolist() for s in parts.sample(3)) == [[10, 11, 12], [20, 21, 22], [21, 22, 23]]
    transitions = make(with_replacement=False)
    assert transitions.extend_episodes(source.first_episode) == 2


def test_100_000_transitions_can_be_pushed_in_one_call(make):
    buffer = make(max_size=100_000)
    columns = {"obs": np.zeros((100_000, 17), np.float32), "reward": np.zeros(100_000, np.float32)}
    buffer.extend_columns(columns)
    assert len(buffer) == 100_000 and buffer.sample_batch(256).data["obs"].shape == (256, 17)


# --- threads, files and imports


def test_simultaneous_first_pushes_agree_on_the_spec(make):
    for _ in range(20):
        buffer = make()
        barrier = threading.Barrier(3)

        def push(value, buffer=buffer, barrier=barrier):
            barrier.wait()
            buffer.extend([{"x": value}] * 10)

        threads = [threading.Thread(target=push, args=(value,)) for value in (0.25, 0.5, 2.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert str(buffer.spec["x"]) == "float64 []" and len(buffer) == 30
        assert sorted(set(buffer.sample_batch(30).data["x"])) in ([0.25, 0.5, 2], [0.25, 0.5], [0.25, 2], [0.5, 2])


def test_memory_mapped_files_are_unnamed(make, tmp_path):
    with AdvancedReplayBuffer("demo", BufferConfig(max_size=50), mmap_dir=tmp_path / "data") as buffer:
        buffer.extend(items(*range(70)))
        assert {get_number(s) for s in buffer.sample(50)} <= set(range(20, 70))
        assert list((tmp_path / "data").iterdir()) == []


def test_replay_imports_neither_tensorflow_nor_reverb():
    program = """
import sys
import numpy as np
from rlds2reverb.replay import BufferConfig, BufferManager
with BufferManager({"a": BufferConfig()}) as manager:
    manager.push_data([{"x": 1.0}] * 4, "a")
    manager.update(manager.sample_batch(4).info, priority=np.ones(4))
    manager["a"].load_state_dict(manager["a"].state_dict())
print([name for name in ("tensorflow", "reverb", "tf_agents") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


@pytest.mark.slow
@pytest.mark.parametrize("secs", [1.0, pytest.param(60.0, marks=pytest.mark.timeout(200))])
@pytest.mark.drill("replay")
def test_ten_threads_keep_the_totals_consistent(make, secs):
    buffer = make(max_size=5_000, max_staleness=50, max_use=20, alpha=0.8)
    end, errors, counts = time.monotonic() + secs, [], []

    def run(work):
        try:
            while time.monotonic() < end:
                work()
        except RateLimitedError:
            pass
        except Exception as error:
            errors.append(error)

    def push():
        rows = np.random.default_rng().integers(1_000_000, size=32)
        columns = {"x": np.repeat(rows[:, None], 8, 1), "y": {"z": rows.astype(np.float64)}}
        counts.append(len(buffer.extend_columns(columns, collect_iters=buffer.push_count // 500)))

    def sample():
        batch = buffer.sample_batch(64, buffer.push_count // 500)
        if batch:
            assert (batch.data["x"] == batch.data["y"]["z"][:, None]).all()
            assert (
                (batch.info.times_sampled <= 20).all()
                and (batch.info.staleness < 50).all()
                and (batch.info.weight > 0).all()
            )
            buffer.update(batch.info, priority=batch.data["y"]["z"] % 7 + 1)
        for s in buffer.sample(8) or []:
            assert (s["x"] == s["y"]["z"]).all()

    works = [push] * 4 + [sample] * 5 + [lambda: (buffer.state_dict(), time.sleep(0.05))]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert buffer.push_count == sum(counts) and len(buffer) <= 5_000
    elements = buffer.contents.elements
    numbers = elements.select_numbers()
    alive = numbers % 5_000
    assert elements.count == len(numbers)
    assert elements.limit_sum == (20 - elements.uses[alive]).sum()
    assert elements.sum_tree.root == pytest.approx((elements.priorities[alive] ** 0.8).sum(), rel=1e-12)


def test_failed_push_changes_nothing(make, monkeypatch):
    buffer = make(EpisodeReplayBuffer, max_size=2)
    buffer.extend([{"x": np.arange(3)}, {"x": np.arange(3)}])
    buffer.monitor = BufferMonitor("demo")

    def raise_full(*arguments):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(RowRing, internals.GROW, raise_full)
    with pytest.raises(OSError, match="no space"):
        buffer.append({"x": np.arange(100_000)})
    assert (buffer.monitor.values(), len(buffer), buffer.push_count) == ({}, 2, 2)
    assert {s["x"].tolist() == [0, 1, 2] for s in buffer.sample(2)} == {True}
