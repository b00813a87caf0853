"""Checkpoints of buffers: what is kept, and what is refused."""

import errno
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from saved_buffers import CONFIG, content, filled, item

from rlds2reverb.errors import CheckpointError, InUse, ServerUnavailable, SpecMismatch, StorageFull
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig, make_buffer, snapshots
from rlds2reverb.tables import Selector


def test_a_checkpoint_keeps_elements_priorities_uses_ids_and_counts(tmp_path):
    with filled(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path, seed=3)) as buffer:
        uses = buffer._ledger.state()["uses"].tolist()
        counts = buffer.sample_count, buffer.beta, buffer._rng.bit_generator.state
        path = buffer.checkpoint()
        assert path.is_dir()
        wanted = content(buffer)
        buffer.append(item(99))
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert (again.sample_count, again.beta, again._rng.bit_generator.state) == counts
        assert again._ledger.state()["uses"].tolist() == uses
        assert str(again.spec["obs"]) == "float32 [3]" and again.address
        assert content(again) == wanted
        assert again.append(item(8)) == "demo_8"
        second = again.checkpoint()
    assert sorted(p.name for p in (tmp_path / "states").iterdir()) == [f"{second.name}.json"]
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path, spec=item(0)) as third:
        assert third.push_count == 9


def test_uses_are_kept_so_that_max_use_goes_on(tmp_path):
    config = BufferConfig(max_use=3, sample_min_limit_ratio=0)
    with AdvancedReplayBuffer("demo", config, checkpoint_root=tmp_path) as buffer:
        buffer.append(item(0))
        buffer.sample(2, 0)
        buffer.checkpoint()
    with AdvancedReplayBuffer("demo", config, checkpoint_root=tmp_path) as again:
        assert again.sample(2, 0) is None and [s["use"] for s in again.sample(1, 0)] == [3]
        assert again.count() == 0 and again.sample(1, 0) is None


@pytest.mark.parametrize(
    "config",
    [BufferConfig(kind="episode", window=2), BufferConfig(kind="sequence", length=2), BufferConfig(kind="naive")],
)
def test_every_kind_of_buffer_is_restored(tmp_path, config):
    element = {"x": np.arange(2, dtype=np.float32), "y": (np.zeros(2), {"z": np.ones(2, bool)})}
    with make_buffer("a_b", config, checkpoint_root=tmp_path) as buffer:
        buffer.append(element)
        spec = buffer.spec
        buffer.checkpoint()
    with make_buffer("a_b", config, checkpoint_root=tmp_path) as again:
        assert again.spec == spec and again.append(element) == "a_b_1"
        np.testing.assert_array_equal(again.sample(1, 0)[0]["y"][1]["z"], np.ones(2, bool))


def test_a_state_dict_carries_a_buffer_over(tmp_path):
    with filled(AdvancedReplayBuffer("demo", CONFIG)) as buffer, AdvancedReplayBuffer("demo", CONFIG) as other:
        state = buffer.state_dict()
        other.append(item(77))
        other.load_state_dict(state)
        assert content(other) == content(buffer) and other.append(item(8)) == "demo_8"
        other.load_state_dict(state)
        assert other.push_count == 8
        with AdvancedReplayBuffer("demo", CONFIG) as empty:
            other.load_state_dict(empty.state_dict())
            assert other.count() == other.push_count == 0 and other.sample(1, 0) is None
        for wrong, message in (
            (AdvancedReplayBuffer("other", CONFIG), "the state is of a buffer with name 'demo', this one has 'other'"),
            (AdvancedReplayBuffer("demo", replace(CONFIG, max_size=7)), "with max_size 6, this one has 7; make it as"),
            (AdvancedReplayBuffer("demo", replace(CONFIG, alpha=0.5)), "the state is of table .*exponent': 0.6"),
        ):
            with wrong, pytest.raises(CheckpointError, match=message):
                wrong.load_state_dict(state)
        with pytest.raises(CheckpointError, match="the state lacks 'name', 'config'"):
            buffer.load_state_dict({"data": []})


def test_a_state_dict_goes_into_the_checkpoint_root(tmp_path):
    with filled(AdvancedReplayBuffer("demo", CONFIG)) as buffer:
        state, wanted = buffer.state_dict(), content(buffer)
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as rooted:
        rooted.append(item(1))
        rooted.checkpoint()
        rooted.load_state_dict(state)
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert content(again) == wanted


DAMAGES_OF_A_STATE = {
    "a number lost": lambda state: state["ledger"].update(numbers=state["ledger"]["numbers"][:-1]),
    "no number for beta": lambda state: state.update(beta="x"),
    "no generator": lambda state: state.update(rng={}),
    "items cut": lambda state: state["files"].update({"items.tfrecord": state["files"]["items.tfrecord"][:-20]}),
    "chunks empty": lambda state: state["files"].update({"chunks.tfrecord": b""}),
    "a file lost": lambda state: state["files"].pop("items.tfrecord"),
    "all files lost": lambda state: state.pop("files"),
    "no configuration": lambda state: state.update(config={}),
}


def test_an_empty_state_goes_into_the_checkpoint_root(tmp_path):
    with AdvancedReplayBuffer("demo", CONFIG) as empty:
        state = empty.state_dict()
    with filled(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)) as buffer:
        buffer.checkpoint()
        buffer.load_state_dict(state)
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert (again.count(), again.push_count) == (0, 0)


def test_elements_after_an_empty_state_are_the_new_ones_for_every_reader():
    with AdvancedReplayBuffer("demo") as empty, AdvancedReplayBuffer("demo") as buffer:
        buffer.append(item(1))
        batches = iter(buffer.dataset(1))
        assert next(batches).data["obs"][0].numpy().tolist() == item(1)["obs"].tolist()
        buffer.load_state_dict(empty.state_dict())
        assert buffer.append(item(2)) == "demo_0"
        assert buffer.sample(1, 0)[0]["obs"].tolist() == item(2)["obs"].tolist()
        for _ in range(2000):  # those drawn ahead are over some time
            last = next(batches).data["obs"][0].numpy().tolist()
        assert last == item(2)["obs"].tolist()


def test_a_state_that_cannot_be_begun_with_loses_the_buffer_and_says_so(tmp_path, monkeypatch):
    with filled(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)) as buffer:
        state = buffer.state_dict()
        wanted = content(buffer)

        def no_server():
            raise ServerUnavailable("no server started")

        monkeypatch.setattr(buffer, "_restore", no_server)
        with pytest.raises(ServerUnavailable, match="no server started"):
            buffer.load_state_dict(state)
        with pytest.raises(ServerUnavailable, match=r"buffer 'demo' was lost before \(no server started\); make a new"):
            buffer.append(item(1))
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert content(again) == wanted


def test_sizes_and_limits_of_numpy_are_saved_as_others(tmp_path):
    config = BufferConfig(push_sample_rate_limit=(np.float32(0.5), np.float32(2)), sample_min_limit_ratio=0)
    with AdvancedReplayBuffer("demo", config, checkpoint_root=tmp_path) as buffer:
        buffer.extend([item(1), item(2)])
        assert len(buffer.sample(np.int64(2), 0)) == 2
        buffer.checkpoint()
    with AdvancedReplayBuffer("demo", config, checkpoint_root=tmp_path) as again:
        assert again.sample_count == 2


def test_tables_may_have_any_names(tmp_path):
    config = BufferConfig(other_tables={"content": Selector("uniform"), "dtype": Selector("uniform")})
    with AdvancedReplayBuffer("demo", config, checkpoint_root=tmp_path) as buffer:
        buffer.append(item(1))
        buffer.checkpoint()
    with AdvancedReplayBuffer("demo", config, checkpoint_root=tmp_path) as again:
        assert again.sample(1, 0, table="dtype")[0]["replay_unique_id"] == "demo_0"


@pytest.mark.parametrize("damage", DAMAGES_OF_A_STATE)
def test_a_damaged_state_is_refused_and_changes_nothing(tmp_path, damage):
    with filled(AdvancedReplayBuffer("demo", CONFIG)) as buffer:
        state = buffer.state_dict()
    DAMAGES_OF_A_STATE[damage](state)
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as rooted:
        rooted.extend([item(1), item(2)])
        rooted.checkpoint()
        before = content(rooted)
        with pytest.raises(CheckpointError):
            rooted.load_state_dict(state)
        assert content(rooted) == before and rooted.append(item(3)) == "demo_2"
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert content(again) == before


@pytest.mark.parametrize("name", ["lr=[64,64]", "run*", "what?", "back\\slash"])
def test_a_root_that_reverb_would_take_for_a_pattern_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="which Reverb takes for a pattern.*give another directory"):
        AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / name)
    assert not (tmp_path / name).exists()


def test_what_cannot_be_saved_is_told(tmp_path):
    with AdvancedReplayBuffer("demo", CONFIG) as buffer:
        with pytest.raises(ValueError, match="buffer 'demo' has no checkpoint_root; make it with one"):
            buffer.checkpoint()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "a") as buffer:
        with pytest.raises(
            ValueError, match="buffer 'demo' holds nothing that could be saved; push first, or give its"
        ):
            buffer.checkpoint()
        with pytest.raises(InUse, match="a is in use by another buffer"):
            AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "a")
    (tmp_path / "mine.txt").touch()
    with pytest.raises(CheckpointError, match=r"is not a checkpoint root of a buffer \(a, mine.txt\); give a new"):
        AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)


def test_a_full_disk_is_told_and_the_checkpoint_before_is_kept(tmp_path, monkeypatch):
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as buffer:
        buffer.append(item(0))
        buffer.checkpoint()
        buffer.append(item(1))

        def full(path, content):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(snapshots.sealed_json, "save", full)
            with pytest.raises(StorageFull, match="no space left for .* what is there is kept: free some"):
                buffer.checkpoint()
        assert buffer.count() == 2
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert again.push_count == again.count() == 1


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A root with a checkpoint."""
    root = tmp_path_factory.mktemp("saved") / "root"
    with filled(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root)) as buffer:
        buffer.checkpoint()
    return root


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("demo", {"max_size": 7}, "the state is of a buffer with max_size 6, this one has 7; make it as that one was"),
        ("other", {}, "the state is of a buffer with name 'demo', this one has 'other'"),
        ("demo", {"kind": "naive"}, "the state is of a buffer with kind 'advanced', this one has 'naive'"),
        ("demo", {"alpha": 0.7}, "sampler of table 'demo' is stored as prioritized:0.6, asked as prioritized:0.7"),
        ("demo", {"max_use": 3}, "max_times_sampled of table 'demo' is stored as 0, asked as 3"),
    ],
)
def test_another_configuration_is_refused(saved, name, change, message):
    with pytest.raises(CheckpointError, match=message):
        make_buffer(name, replace(CONFIG, **change), checkpoint_root=saved)


def test_another_spec_is_refused(saved):
    with pytest.raises(
        SpecMismatch, match=r"item\['obs'\] is float64 \[3\], buffer 'demo' wants float32 \[3\]; give the"
    ):
        AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=saved, spec=item(0) | {"obs": np.zeros(3)})


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("pattern", "harm", "message"),
    [
        ("states/*.json", damage, "json is damaged; restore it from a copy, or give a new directory"),
        ("states/*.json", os.remove, "json is missing, which says what .* holds; restore it from a copy"),
        ("table/checkpoints/*/items.tfrecord", damage, "items.tfrecord is damaged: its size and sha256 are"),
        ("table/checkpoints/*/DONE", os.remove, "has lost its DONE file; restore it from a copy, or delete it"),
    ],
)
def test_damage_is_found_and_named(saved, tmp_path, pattern, harm, message):
    root = tmp_path / "root"
    shutil.copytree(saved, root)
    (path,) = root.glob(pattern)
    harm(path)
    with pytest.raises(CheckpointError, match=message):
        AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root)


@pytest.mark.filterwarnings("ignore:.*manifest.*:RuntimeWarning")
def test_a_manifest_that_was_lost_is_written_again(saved, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(saved, root)
    (manifest,) = root.glob("table/manifests/*.json")
    manifest.unlink()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as buffer:
        assert buffer.count() and manifest.is_file()


def test_a_first_checkpoint_that_was_cut_off_leaves_an_empty_buffer(saved, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(saved, root)
    (done,) = root.glob("table/checkpoints/*/DONE")
    (state,) = root.glob("states/*.json")
    done.unlink()
    state.rename(state.with_name("pending.json"))
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as buffer:
        assert buffer.count() == 0 and buffer.append(item(0)) == "demo_0"
        buffer.checkpoint()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as again:
        assert again.push_count == 1
