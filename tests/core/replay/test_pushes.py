"""Columns and episodes at once, who is told of what leaves, and what a buffer needs to be there."""

import errno
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from replayed import buffers, item, items, number_in

from rlds2reverb import load
from rlds2reverb.errors import RateLimitedError, SpecMismatchError
from rlds2reverb.replay import EpisodeReplayBuffer, Listener, SequenceReplayBuffer
from rlds2reverb.replay.rows import RowRing


@pytest.fixture
def make():
    with buffers() as build:
        yield build


# --- columns


def test_columns_are_as_many_items(make):
    one, other = make(replace=False), make(replace=False)
    rows = items(*range(7))
    columns = {
        "obs": np.stack([r["obs"] for r in rows]),
        "inner": {key: np.stack([r["inner"][key] for r in rows]) for key in ("action", "done")},
        "image": np.stack([r["image"] for r in rows]),
    }
    numbers = other.extend_columns(columns, priorities=np.arange(1.0, 8), collect_iters=3)
    assert numbers.tolist() == list(range(7)) and numbers.dtype == np.int64
    one.extend([{**row, "priority": n + 1.0, "collect_iter": 3} for n, row in enumerate(rows)])
    found = [
        {number_in(s): (s["priority"], s["staleness"], s["collect_iter"]) for s in buffer.sample(7, 5)}
        for buffer in (one, other)
    ]
    assert found[0] == found[1] and one.spec == other.spec


def test_of_more_columns_than_there_is_room_the_last_are_kept(make):
    buffer = make(max_size=5, replace=False)
    buffer.extend_columns({"x": np.arange(3)})
    assert buffer.extend_columns({"x": np.arange(100, 113)}).tolist() == list(range(3, 16))
    batch = buffer.sample_batch(5)
    assert sorted(batch.data["x"]) == [108, 109, 110, 111, 112]
    assert (batch.info.replay_unique_id == batch.data["x"] - 97).all()


@pytest.mark.parametrize(
    ("columns", "options", "error", "told"),
    [
        (
            {"x": np.arange(3), "y": np.arange(2)},
            {},
            SpecMismatchError,
            r"columns have the leading axes \[2\], \[3\], buffer",
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
        ({"x": np.arange(3)}, {}, SpecMismatchError, r"lacks columns\[0\]\['y'\]"),
        (
            {"x": 3, "y": np.arange(2)},
            {},
            SpecMismatchError,
            "columns lack an axis, but buffer 'demo' expects each field as .N, ....",
        ),
        ({"x": np.arange(0), "y": np.arange(2)}, {}, SpecMismatchError, r"columns have the leading axes \[0\], \[2\]"),
        ([1, 2], {}, TypeError, "an item is a list, expected a dict of fields"),
        (None, {"priorities": [1.0, 2.0]}, ValueError, "the priorities do not fit 3 items"),
        (None, {"priorities": -1.0}, ValueError, "the priority of item 0 is -1.0, expected a finite number"),
        (None, {"priorities": [1, np.nan, 1]}, ValueError, "the priority of item 1 is nan"),
        (None, {"collect_iters": [1, 2]}, ValueError, r"collect_iters are \[1, 2\], expected an integer from -1"),
        (None, {"collect_iters": -2}, ValueError, "collect_iters are -2, expected"),
        (None, {"collect_iters": 1.5}, ValueError, "collect_iters are 1.5, expected"),
    ],
)
def test_wrong_columns_are_refused_and_change_nothing(make, columns, options, error, told):
    buffer = make(spec={"x": np.int64(0), "y": np.int64(0)})
    with pytest.raises(error, match=told):
        buffer.extend_columns({"x": np.arange(3), "y": np.arange(3)} if columns is None else columns, **options)
    assert buffer.push_count == 0


def test_stacked_episodes_and_sequences_are_columns_too(make):
    buffer = make(EpisodeReplayBuffer, window=2, sample_min_limit_ratio=0)
    assert buffer.extend_columns({"x": np.arange(12).reshape(3, 4)}).tolist() == [0, 1, 2]
    assert buffer.extend_columns({"x": np.zeros((2, 1), int)}).tolist() == [-1, -1]  # too short
    assert set(buffer.sample_batch(200).data["x"][:, 0]) == {0, 1, 2, 4, 5, 6, 8, 9, 10}
    with pytest.raises(
        SpecMismatchError, match=r"columns have the leading axes \[3, 4\], but buffer 'demo' expects \[N, 2\] in all"
    ):
        make(SequenceReplayBuffer, length=2, spec={"x": np.zeros(2)}).extend_columns({"x": np.zeros((3, 4))})


# --- episodes


def steps(first, count, *, terminal):
    """An RLDS episode of `count` transitions whose observations are first, first + 1, ..."""
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
    return load([steps(10, 2, terminal=False), steps(20, 3, terminal=True), steps(30, 1, terminal=True)])


def test_a_source_goes_in_as_transitions(make, source):
    buffer = make(replace=False)
    assert buffer.extend_episodes(source, priority=2.0, collect_iter=4) == 6
    batch = buffer.sample_batch(6, 5)
    order = np.argsort(batch.info.replay_unique_id)
    data = {
        name: column[order] for name, column in batch.data.items() if name not in ("observation", "next_observation")
    }
    assert batch.data["observation"]["x"][order].tolist() == [10, 11, 20, 21, 22, 30]
    assert batch.data["next_observation"]["x"][order].tolist() == [11, 12, 21, 22, 23, 31]
    assert data["action"].tolist() == [100, 110, 200, 210, 220, 300] and data["reward"][1] == 1100
    assert data["discount"].tolist() == [1, 1, 1, 1, 0, 0] and data["discount"].dtype == np.float32
    assert set(data) == {"action", "reward", "discount"}
    assert set(batch.info.priority) == {2.0} and set(batch.info.staleness) == {1}


def test_a_source_goes_in_as_episodes_and_as_sequences(make, source):
    whole = make(EpisodeReplayBuffer, replace=False)
    assert whole.extend_episodes(source) == 3
    found = {s["replay_unique_id"]: s["observation"]["x"].tolist() for s in whole.sample(3)}
    assert found == {"demo_0": [10, 11, 12], "demo_1": [20, 21, 22, 23], "demo_2": [30, 31]}
    parts = make(SequenceReplayBuffer, length=3, replace=False)
    assert parts.extend_episodes(source) == 3
    assert sorted(s["observation"]["x"].tolist() for s in parts.sample(3)) == [[10, 11, 12], [20, 21, 22], [21, 22, 23]]
    one = make(replace=False)
    assert one.extend_episodes(source.first_episode) == 2


def test_a_hundred_thousand_transitions_go_in_as_quick_calls(make):
    buffer = make(max_size=100_000)
    columns = {"obs": np.zeros((100_000, 17), np.float32), "reward": np.zeros(100_000, np.float32)}
    buffer.extend_columns(columns)
    assert buffer.count() == 100_000 and buffer.sample_batch(256).data["obs"].shape == (256, 17)


# --- who is told


class Gone(Listener):
    wants_data = True

    def __init__(self):
        self.told = []

    def on_remove(self, numbers, reason, data):
        self.told.append((reason, numbers.tolist(), data))


def test_what_leaves_is_told_with_its_data(make):
    buffer = make(max_size=3, max_use=1, max_staleness=5, sample_min_limit_ratio=0)
    gone = Gone()
    buffer.add_listener(gone)
    buffer.extend([{"x": n, "collect_iter": n} for n in range(5)])
    buffer.append({"x": 5, "collect_iter": 5})
    (used,) = buffer.sample(1, 8)
    buffer.clear()
    told = [(reason, numbers, data["x"].tolist()) for reason, numbers, data in gone.told]
    left = [n for n in (4, 5) if n != used["x"]]
    assert told == [
        ("full", [0, 1], [0, 1]),
        ("full", [2], [2]),
        ("stale", [3], [3]),
        ("used", [used["x"]], [used["x"]]),
        ("cleared", left, left),
    ]


def test_episodes_that_leave_are_told_whole(make):
    buffer = make(EpisodeReplayBuffer, max_size=2)
    gone = Gone()
    buffer.add_listener(gone)
    for length in (2, 3, 1, 4):
        buffer.append({"x": np.full(length, length)})
    assert [(numbers, [e["x"].tolist() for e in data]) for _, numbers, data in gone.told] == [
        ([0], [[2, 2]]),
        ([1], [[3, 3, 3]]),
    ]


def test_a_listener_may_call_the_buffer_and_others_hear_in_order(make):
    buffer = make(max_size=100)
    heard = []

    class Doubling(Listener):
        def on_push(self, priorities):
            heard.append(("first", len(priorities)))
            if len(priorities) < 8:
                buffer.extend(items(*range(2 * len(priorities))))

    class Hearing(Listener):
        def on_push(self, priorities):
            heard.append(("second", len(priorities)))

    buffer.add_listener(Doubling())
    buffer.add_listener(Hearing())
    buffer.append(item(0))
    assert heard == [(who, count) for count in (1, 2, 4, 8) for who in ("first", "second")]
    assert buffer.count() == 15


def test_what_a_listener_raises_reaches_the_caller_after_the_push(make):
    buffer = make()

    class Failing(Listener):
        def on_push(self, priorities):
            raise ValueError("no more")

    buffer.add_listener(Failing())
    with pytest.raises(ValueError, match="no more"):
        buffer.append(item(0))
    assert buffer.count() == 1 and buffer.sample(1)


def test_threads_hear_everything_once_and_in_order(make):
    buffer = make(max_size=10)
    numbers = []

    class Order(Listener):
        def on_remove(self, gone, reason, data):
            numbers.extend(gone.tolist())

    buffer.add_listener(Order())
    threads = [threading.Thread(target=lambda: [buffer.append(item(1)) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == list(range(790))


# --- its life


def test_threads_that_begin_a_buffer_together_agree_on_its_spec(make):
    for _ in range(20):
        buffer = make()
        begun = threading.Barrier(3)

        def push(value, buffer=buffer, begun=begun):
            begun.wait()
            buffer.extend([{"x": value}] * 10)

        threads = [threading.Thread(target=push, args=(value,)) for value in (1, 0.5, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert str(buffer.spec["x"]) == "float64 []" and buffer.count() == 30
        assert sorted(set(buffer.sample_batch(30).data["x"])) in ([0.5, 1, 2], [0.5, 1], [0.5, 2], [1, 2])


def test_data_on_disk_have_no_names_and_go_with_the_buffer(make, tmp_path):
    from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig

    with AdvancedReplayBuffer("demo", BufferConfig(max_size=50), folder=tmp_path / "data") as buffer:
        buffer.extend(items(*range(70)))
        assert {number_in(s) for s in buffer.sample(50)} <= set(range(20, 70))
        assert list((tmp_path / "data").iterdir()) == []


def test_neither_tensorflow_nor_reverb_is_needed():
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
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


@pytest.mark.parametrize("secs", [1.0, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(200)])])
def test_ten_threads_tear_nothing_and_lose_nothing(make, secs):
    buffer = make(max_size=5_000, max_staleness=50, max_use=20, alpha=0.8)
    end, errors, waits, counts = time.monotonic() + secs, [], [], []

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
        began = time.perf_counter()
        batch = buffer.sample_batch(64, buffer.push_count // 500)
        waits.append(time.perf_counter() - began)
        if batch is not None:
            assert (batch.data["x"] == batch.data["y"]["z"][:, None]).all()
            assert (batch.info.use <= 20).all() and (batch.info.staleness < 50).all() and (batch.info.IS > 0).all()
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
    assert buffer.push_count == sum(counts) and buffer.count() <= 5_000
    ledger = buffer.contents.ledger
    numbers = ledger.numbers()
    alive = numbers % 5_000
    assert ledger.count == len(numbers) == ledger.num_drawable
    assert ledger.uses_left == (20 - ledger.uses[alive]).sum()
    assert ledger.chances.root == pytest.approx((ledger.priorities[alive] ** 0.8).sum(), rel=1e-12)
    print(f"p99 of sample_batch beside nine threads: {1e3 * np.percentile(waits, 99):.1f} ms of {len(waits)} samples")


def test_what_did_not_happen_is_not_told(make, monkeypatch):
    told = []

    class Told(Listener):
        def on_remove(self, numbers, reason, data):
            told.append(numbers.tolist())

    buffer = make(EpisodeReplayBuffer, max_size=2)
    buffer.extend([{"x": np.arange(3)}, {"x": np.arange(3)}])
    buffer.add_listener(Told())

    def full(*arguments):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(RowRing, "grow", full)
    with pytest.raises(OSError, match="no space"):
        buffer.append({"x": np.arange(100_000)})
    assert (told, buffer.count(), buffer.push_count) == ([], 2, 2)


def test_episodes_are_counted_that_this_call_added(make, source):
    buffer = make(max_size=100_000)

    class Pushes(Listener):
        done = False

        def on_push(self, priorities):
            if not self.done:
                self.done = True
                buffer.extend_columns(buffer.sample_batch(3).data)

    buffer.add_listener(Pushes())
    assert buffer.extend_episodes(source) == buffer.push_count - 3 == 6
