"""Tests of checkpoints and state dicts of buffers: restoring them, invalid ones, and use of the buffer meanwhile."""

import errno
import os
import shutil
import threading
from collections import namedtuple
from concurrent import futures
from dataclasses import replace

import internals
import numpy as np
import pytest
from faults import damage_file
from saved_buffers import CONFIG, fill, get_content, item

from rlds2reverb.errors import CheckpointError, ResourceInUseError, SpecMismatchError, StorageFullError
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig, ReplayBuffer, buffer_checkpoints as checkpoints


def sample_ids(buffer, count=5):
    """Returns the ids of several sampled batches."""
    return [buffer.sample_batch(4).info.key.tolist() for _ in range(count)]


def test_restored_buffer_has_equal_contents_and_samples_identically(tmp_path):
    root = tmp_path / "a/b"
    with fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root, seed=3)) as buffer:
        path, expected = buffer.checkpoint(), get_content(buffer)
        assert path.is_dir()
        sampled = sample_ids(buffer)
        buffer.append(item(99))
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as again:
        assert get_content(again) == expected and str(again.spec["obs"]) == "float32 [3]"
        assert sample_ids(again) == sampled
        assert again.append(item(8)) == "demo_8"
        second = again.checkpoint()
    assert sorted(p.name for p in root.iterdir()) == [path.name, second.name]
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root, spec=item(0)) as third:
        assert third.push_count == 9
        third.checkpoint()
    assert len(list(root.glob("checkpoint-*"))) == 2


def test_loaded_state_samples_identically_after_the_trees_grew(tmp_path):
    config = BufferConfig(max_size=30_000, alpha=0.7)
    with AdvancedReplayBuffer("demo", config, seed=5) as buffer, AdvancedReplayBuffer("demo", config) as other:
        rng = np.random.default_rng(0)
        for _ in range(30):
            buffer.extend_columns({"x": rng.random(1200)}, priorities=rng.random(1200))
            batch = buffer.sample_batch(256)
            buffer.update(batch.info, priority=rng.random(256) * 1e3)
        other.load_state_dict(buffer.state_dict())
        for _ in range(50):
            first, second = buffer.sample_batch(256), other.sample_batch(256)
            assert first.info.key.tolist() == second.info.key.tolist()
            assert first.data["x"].tolist() == second.data["x"].tolist()


def test_use_counts_and_limits_are_restored(tmp_path):
    config = BufferConfig(max_use=3, max_staleness=5, sample_min_limit_ratio=0, push_sample_rate_limit=(0.25, 2.0))
    with AdvancedReplayBuffer("demo", config, checkpoint_root=tmp_path) as buffer:
        buffer.extend([item(0, collect_iter=7), item(1, collect_iter=1)])
        buffer.sample(2, 0)
        buffer.checkpoint()
    with AdvancedReplayBuffer("demo", config, checkpoint_root=tmp_path) as again:
        assert again.sample(5, 6) is None and len(again) == 1  # The other element is stale.
        uses_left = 3 - again.sample(1, 6)[0]["use"]
        assert again.sample(uses_left + 1, 6) is None
        again.sample(uses_left, 6)
        assert len(again) == 0


@pytest.mark.parametrize(
    "config",
    [
        BufferConfig(kind="episode", window=2),
        BufferConfig(kind="episode", max_size=3),
        BufferConfig(kind="sequence", length=2),
        BufferConfig(kind="naive"),
    ],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_every_kind_of_buffer_is_restored(tmp_path, config, on_disk):
    Pair = namedtuple("Pair", "second first")
    element = {"x": np.arange(2, dtype=np.float32), "y": Pair([np.zeros(2)], {"z": np.ones(2, bool)})}
    options = {"checkpoint_root": tmp_path / "root", "mmap_dir": tmp_path / "data" if on_disk else None}
    with ReplayBuffer("a_b", config, **options) as buffer:
        for _ in range(5):
            buffer.append(element)
        spec = buffer.spec
        buffer.checkpoint()
    with ReplayBuffer("a_b", config, **options) as again:
        assert str(again.spec) == str(spec) and again.append(element) == "a_b_5"
        (sampled,) = again.sample(1, 0)
        np.testing.assert_array_equal(sampled["y"].first["z"], np.ones(2, bool))
        assert type(sampled["y"]).__name__ == "Pair" and isinstance(sampled["y"].second, list)
    with ReplayBuffer("a_b", config, spec=element, **options) as typed:
        assert isinstance(typed.sample(1)[0]["y"], Pair)
    assert not on_disk or not list((tmp_path / "data").iterdir())


def test_state_dict_transfers_a_buffer():
    with fill(AdvancedReplayBuffer("demo", CONFIG)) as buffer, AdvancedReplayBuffer("demo", CONFIG) as other:
        state = buffer.state_dict()
        other.append(item(77))
        other.load_state_dict(state)
        assert get_content(other) == get_content(buffer) and other.append(item(8)) == "demo_8"
        other.load_state_dict(state)
        assert other.push_count == 8
        with AdvancedReplayBuffer("demo", CONFIG) as empty:
            other.load_state_dict(empty.state_dict())
            assert len(other) == other.push_count == 0 and other.sample(1, 0) is None
        for wrong, message in (
            (
                AdvancedReplayBuffer("other", CONFIG),
                "the state belongs to a buffer with name 'demo', but this one has 'other'",
            ),
            (
                AdvancedReplayBuffer("demo", replace(CONFIG, max_size=7)),
                "with max_size 6, but this one has 7; use the same",
            ),
        ):
            with wrong, pytest.raises(CheckpointError, match=message):
                wrong.load_state_dict(state)
        with pytest.raises(
            CheckpointError,
            match="the state of buffer 'demo' is damaged .KeyError\\('header'\\).; pass the result of state_dict",
        ):
            buffer.load_state_dict({"data": []})


def test_empty_buffer_with_a_spec_is_restored(tmp_path):
    with AdvancedReplayBuffer("demo", CONFIG, spec=item(0), checkpoint_root=tmp_path) as buffer:
        buffer.checkpoint()
        state = buffer.state_dict()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert str(again.spec["obs"]) == "float32 [3]" and again.append(item(1)) == "demo_0"
        again.load_state_dict(state)
        assert len(again) == 0 and again.append(item(2)) == "demo_0"
        assert again.sample(1)[0]["obs"].tolist() == [2.0] * 3
    with pytest.raises(ValueError, match="buffer 'demo' is closed; create a new one"):
        again.load_state_dict(state)


def replace_arrays(state, **arrays):
    return {**state, "arrays": {**state["arrays"], **arrays}}


STATE_DAMAGES = {
    "too few numbers": lambda s: replace_arrays(s, alive=s["arrays"]["alive"][:-1]),
    "too few rows": lambda s: replace_arrays(s, column_0=s["arrays"]["column_0"][:-1]),
    "missing column": lambda s: {**s, "arrays": {k: v for k, v in s["arrays"].items() if k != "column_1"}},
    "beta is not a number": lambda s: {**s, "header": {**s["header"], "beta": "x"}},
    "missing generator": lambda s: {**s, "header": {**s["header"], "generator": {}}},
    "no fields": lambda s: {**s, "header": {**s["header"], "spec": {"dict": {}}}},
    "empty header": lambda s: {**s, "header": {}},
    "subnormal priorities": lambda s: replace_arrays(s, priorities=s["arrays"]["priorities"] * 1e-320),
}


@pytest.mark.parametrize("damage", STATE_DAMAGES)
def test_damaged_state_raises_and_changes_nothing(damage):
    with fill(AdvancedReplayBuffer("demo", CONFIG)) as buffer:
        state = STATE_DAMAGES[damage](buffer.state_dict())
    with AdvancedReplayBuffer("demo", CONFIG) as other:
        other.extend([item(1), item(2)])
        before = get_content(other)
        with pytest.raises(CheckpointError):
            other.load_state_dict(state)
        assert get_content(other) == before and other.append(item(3)) == "demo_2"


def test_load_data_restores_saved_data(tmp_path):
    with fill(AdvancedReplayBuffer("demo", CONFIG)) as buffer, AdvancedReplayBuffer("demo", CONFIG) as other:
        buffer.save_data(tmp_path / "a")
        other.load_data(tmp_path / "a")
        assert get_content(other) == get_content(buffer)
        buffer.append(item(8))
        buffer.save_data(tmp_path / "a")  # This replaces the saved data.
        other.load_data(tmp_path / "a")
        assert other.push_count == 9
        with pytest.raises(CheckpointError, match="has no checkpoint; pass the directory that was passed to save_data"):
            other.load_data(tmp_path / "b")


@pytest.mark.drill("F10")
def test_checkpoint_raises_without_a_usable_root(tmp_path):
    with AdvancedReplayBuffer("demo", CONFIG) as buffer:
        buffer.append(item(0))
        with pytest.raises(ValueError, match="buffer 'demo' has no checkpoint_root; create it with one"):
            buffer.checkpoint()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "a"):
        with pytest.raises(
            ResourceInUseError, match="a is in use by process .*; close that buffer, or use another directory"
        ):
            AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "a")
    (tmp_path / "mine.txt").touch()
    with pytest.raises(
        CheckpointError, match=r"is not a checkpoint root of a buffer \(it holds a, mine.txt\); use a new"
    ):
        AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)


@pytest.mark.drill("F9")
def test_full_disk_raises_and_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as buffer:
        buffer.append(item(0))
        buffer.checkpoint()
        buffer.append(item(1))

        def raise_full(array):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, internals.AS_BYTES, raise_full)
            with pytest.raises(StorageFullError, match="no space left for .* existing data are kept: free some"):
                buffer.checkpoint()
        assert len(buffer) == 2
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert again.push_count == len(again) == 1


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "demo",
            {"max_size": 7},
            "the state belongs to a buffer with max_size 6, but this one has 7; use the same value",
        ),
        ("other", {}, "the state belongs to a buffer with name 'demo', but this one has 'other'"),
        ("demo", {"kind": "naive"}, "the state belongs to a buffer with kind 'advanced', but this one has 'naive'"),
    ],
)
def test_checkpoint_of_a_different_configuration_raises(tmp_path, name, change, message):
    with fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)) as buffer:
        buffer.checkpoint()
    with pytest.raises(CheckpointError, match=message):
        ReplayBuffer(name, replace(CONFIG, **change), checkpoint_root=tmp_path)
    with pytest.raises(
        SpecMismatchError, match=r"item\['obs'\] is float64 \[3\], but buffer 'demo' expects float32 \[3\]; pass the"
    ):
        AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path, spec=item(0) | {"obs": np.zeros(3)})
    AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path).close()  # The root is free again.


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "removed"])
@pytest.mark.parametrize("file", ["manifest.json", "column_0", "column_1", "priorities", "alive"])
@pytest.mark.drill("F8")
def test_damaged_checkpoint_warns_and_the_previous_one_is_used(tmp_path, file, damage):
    outcome = "missing" if damage == "removed" else "damaged"
    with fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)) as buffer:
        buffer.checkpoint()
        buffer.append(item(8))
        second = buffer.checkpoint()
    for path, expected in ((second / file, 8), (tmp_path / "checkpoint-0000000001" / file, None)):
        os.remove(path) if damage == "removed" else damage_file(path, damage)
        if expected:
            with pytest.warns(
                RuntimeWarning, match=f"{path} is {outcome}.*; restore .* the previous checkpoint is used"
            ):
                with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
                    assert again.push_count == expected
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(CheckpointError, match=f"{path} is {outcome}.*; restore it from a copy"),
    ):
        AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)


def test_partial_checkpoint_of_a_killed_process_is_deleted(tmp_path):
    with fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)) as buffer:
        buffer.checkpoint()
    (tmp_path / "checkpoint-0000000002.partial").mkdir()
    (tmp_path / "checkpoint-0000000002.partial" / "column_0").write_bytes(b"half")
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert again.push_count == 8 and len(list(tmp_path.glob("checkpoint-*"))) == 1


# --- use of the buffer meanwhile


def test_state_dict_is_independent_of_later_pushes():
    with fill(AdvancedReplayBuffer("demo", CONFIG)) as buffer, AdvancedReplayBuffer("demo", CONFIG) as other:
        state, expected = buffer.state_dict(), get_content(buffer)
        buffer.extend([item(n) for n in range(20, 26)])
        other.load_state_dict(state)
        assert get_content(other) == expected


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_state_dict_is_consistent_while_another_thread_pushes(rounds):
    buffer = AdvancedReplayBuffer("demo", BufferConfig(max_size=20_000, alpha=1.0))
    zeros = np.zeros((20_000, 30))
    buffer.extend_columns({"x": zeros, "n": np.arange(20_000)})
    stop, errors = threading.Event(), []

    def work():
        try:
            while not stop.is_set():
                first = buffer.push_count
                rows = np.arange(first, first + 64)
                buffer.extend_columns({"x": np.repeat(rows[:, None], 30, 1).astype(float), "n": rows})
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(rounds):
            state = buffer.state_dict()
            other = AdvancedReplayBuffer("demo", buffer.config)
            other.load_state_dict(state)
            batch = other.sample_batch(5000)
            assert batch.data["n"].tolist() == batch.info.key.tolist()
            new = batch.data["n"] >= 20_000
            assert (batch.data["x"][new] == batch.data["n"][new, None]).all() and not batch.data["x"][~new].any()
    finally:
        stop.set()
        thread.join()
    assert not errors


def test_elements_that_exceed_changed_limits_are_not_restored(tmp_path):
    config = BufferConfig(max_use=3, sample_min_limit_ratio=0)
    with AdvancedReplayBuffer("demo", replace(config, max_use=5), checkpoint_root=tmp_path / "a") as buffer:
        buffer.extend([item(n) for n in range(6)])
        info = buffer.sample_batch(12, sample_range=slice(0, 3)).info
        # The last use of each element wins.
        uses = dict(zip(info.key.tolist(), info.times_sampled.tolist(), strict=True))
        buffer.checkpoint()
    with AdvancedReplayBuffer("demo", replace(config, with_replacement=False), checkpoint_root=tmp_path / "a") as again:
        left = {n for n in range(6) if uses.get(n, 0) < 3}
        assert left != set(range(6)) and len(again) == len(left)
        assert set(again.sample_batch(len(left)).info.key.tolist()) == left

    with ReplayBuffer("demo", BufferConfig(kind="episode"), checkpoint_root=tmp_path / "b") as buffer:
        buffer.extend([{"x": np.arange(length)} for length in (2, 9, 4)])
        buffer.checkpoint()
    config = BufferConfig(kind="episode", window=4, sample_min_limit_ratio=0)
    with ReplayBuffer("demo", config, checkpoint_root=tmp_path / "b") as again:
        assert len(again) == 2
        begins = again.sample_batch(7000).data["x"][:, 0]
        # The episodes of 9 and 4 steps have 6 windows and 1; two of the 7 begin at 0.
        assert abs((begins == 0).mean() - 2 / 7) < 0.03


def test_explicit_spec_is_kept_when_a_state_is_loaded():
    state = fill(AdvancedReplayBuffer("demo", CONFIG)).state_dict()
    empty = AdvancedReplayBuffer("demo", CONFIG).state_dict()
    with AdvancedReplayBuffer("demo", CONFIG, spec={"other": 1.0}) as buffer:
        with pytest.raises(SpecMismatchError):
            buffer.load_state_dict(state)
        buffer.load_state_dict(empty)
        with pytest.raises(SpecMismatchError):
            buffer.append(item(0))
        assert buffer.append({"other": 2}) == "demo_0"


def test_valid_checkpoint_is_kept_when_a_damaged_one_is_deleted(tmp_path):
    with fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)) as buffer:
        valid, damaged = buffer.checkpoint(), buffer.checkpoint()
    damage_file(damaged / "column_0", "flipped")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
            newest = again.checkpoint()
    assert sorted(path for path in tmp_path.iterdir() if path.is_dir()) == [valid, newest]


def test_missing_checkpoint_directories_raise(tmp_path):
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "a") as buffer:
        buffer.append(item(0))
        shutil.rmtree(tmp_path / "a")
        with pytest.raises(FileNotFoundError):
            buffer.checkpoint()
        with pytest.raises(CheckpointError, match="b has no checkpoint"):
            buffer.load_data(tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_threads_can_save_at_the_same_time(tmp_path):
    with AdvancedReplayBuffer("demo", BufferConfig(max_size=3000), checkpoint_root=tmp_path) as buffer:

        def save():
            for n in range(20):
                buffer.append(item(n))
                buffer.checkpoint()

        with futures.ThreadPoolExecutor(3) as pool:
            for saved in [pool.submit(save) for _ in range(3)]:
                saved.result()
    with AdvancedReplayBuffer("demo", BufferConfig(max_size=3000), checkpoint_root=tmp_path) as again:
        assert len(again) == 60
