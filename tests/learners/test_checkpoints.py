"""Checkpoints: complete or absent, verified before use; the last ones and the best one are kept."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import faults
import numpy as np
import pytest
import tensorflow as tf
from faults import mount_tmpfs, receive, skip_unless_mounted, unshare_mounts
from small_agents import MeanAgent, batches

from rlds2reverb.errors import CheckpointError, StorageFullError
from rlds2reverb.learners import Checkpoints, Learner
from rlds2reverb.learners.hooks import EarlyStopHook, LoadCkptHook, LogShowHook, SaveCkptHook


@pytest.fixture
def value():
    return tf.Variable([1.0, 2.0], name="value")


def steps_in(root):
    return [int(path.name) for path in sorted(root.iterdir())]


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


# --- Files


def test_checkpoint_restores_the_saved_state(tmp_path, value):
    store = Checkpoints(tmp_path, {"value": value})
    assert store.open() is None and store.best() is None
    saved = store.save(3, {"note": "x"})
    value.assign([5.0, 6.0])
    checkpoint = store.open()
    assert checkpoint.step == saved.step == 3 and checkpoint.path == tmp_path / "0000000003"
    assert checkpoint.manifest["note"] == "x"
    store.restore(checkpoint)
    assert value.numpy().tolist() == [1.0, 2.0]


def test_last_checkpoints_and_the_best_are_kept(tmp_path, value):
    store = Checkpoints(tmp_path, {"value": value}, keep_checkpoints=2)
    for step in (1, 2, 3, 4, 5):
        store.save(step, {}, is_best=step == 2)
    assert steps_in(tmp_path) == [2, 4, 5] and store.best().step == 2
    store.save(6, {}, is_best=True)
    assert steps_in(tmp_path) == [5, 6] and store.best().step == 6
    store.forget_best()
    store.save(7, {})
    store.save(8, {})
    assert steps_in(tmp_path) == [7, 8] and store.best() is None
    store.save(9, {}, is_best=True)
    store.save(10, {})
    store.save(11, {})
    assert steps_in(tmp_path) == [9, 10, 11] and store.best().step == 9
    with pytest.raises(ValueError, match="keep_checkpoints must be an integer >= 1, got 0"):
        Checkpoints(tmp_path, {}, keep_checkpoints=0)


def test_best_checkpoint_of_an_abandoned_branch_is_forgotten(tmp_path, value):
    store = Checkpoints(tmp_path, {"value": value}, keep_checkpoints=5)
    for step, is_best in ((1, True), (2, False), (3, True), (4, False)):
        store.save(step, {}, is_best=is_best)
    store = Checkpoints(tmp_path, {"value": value}, keep_checkpoints=2)
    store.restore(store.open(tmp_path / "0000000002"))
    assert store.best().step == 1
    store.save(3, {})  # This one was not the best, unlike the one that it replaces.
    assert steps_in(tmp_path) == [1, 2, 3] and store.best().step == 1
    store.save(4, {}, is_best=True)
    assert steps_in(tmp_path) == [3, 4] and store.best().step == 4


@pytest.mark.parametrize("name", ["state.index", "state.data-00000-of-00001", "manifest.json"])
@pytest.mark.drill("F8")
def test_open_skips_a_damaged_checkpoint_with_a_warning(tmp_path, value, caplog, name):
    store = Checkpoints(tmp_path, {"value": value}, keep_checkpoints=2)
    store.save(1, {})
    store.save(2, {})
    damage(tmp_path / "0000000002" / name)
    with caplog.at_level(logging.WARNING):
        assert store.open().step == 1
    assert str(tmp_path / "0000000002") in caplog.text and "the previous checkpoint is used" in caplog.text
    with pytest.raises(CheckpointError, match=f"0000000002 is not a valid checkpoint: .*{name} is damaged"):
        store.open(tmp_path / "0000000002")
    damage(tmp_path / "0000000001" / "state.index")
    with pytest.raises(CheckpointError, match="all 2 checkpoints in .* are damaged; delete them"):
        store.open()
    with pytest.raises(CheckpointError, match="nowhere is not a valid checkpoint: .*manifest.json is missing"):
        store.open(tmp_path / "nowhere")


def test_save_after_falling_back_replaces_the_damaged_checkpoint(tmp_path, value):
    store = Checkpoints(tmp_path, {"value": value}, keep_checkpoints=1)
    store.save(1, {}, is_best=True)
    store.save(3, {}, is_best=False)
    damage(tmp_path / "0000000003" / "state.index")
    store.restore(store.open())
    store.save(2, {})
    assert steps_in(tmp_path) == [1, 2] and store.open().step == 2 and store.best().step == 1


def test_best_warns_when_its_file_is_missing(tmp_path, value, caplog):
    store = Checkpoints(tmp_path, {"value": value})
    store.save(1, {}, is_best=True)
    store.save(2, {})
    (tmp_path / "0000000001" / "state.index").unlink()
    with caplog.at_level(logging.WARNING):
        assert store.best() is None
    assert "the best checkpoint is lost" in caplog.text and "state.index is missing" in caplog.text


@pytest.mark.drill("F7")
def test_partial_checkpoint_is_ignored_and_removed(tmp_path, value):
    store = Checkpoints(tmp_path, {"value": value})
    store.save(1, {})
    (tmp_path / "0000000002.partial").mkdir()
    (tmp_path / "0000000002.partial" / "state.index").write_bytes(b"half")
    assert store.open().step == 1
    assert Checkpoints(tmp_path, {"value": value}).open().step == 1 and steps_in(tmp_path) == [1]


@pytest.mark.drill("F7")
def test_checkpoint_that_was_being_replaced_is_not_lost(tmp_path, value):
    Checkpoints(tmp_path, {"value": value}).save(1, {})
    (tmp_path / "0000000001").rename(tmp_path / "0000000001.replaced")  # killed there
    store = Checkpoints(tmp_path, {"value": value})
    assert store.open().step == 1
    value.assign([7.0, 8.0])
    store.save(1, {})
    assert steps_in(tmp_path) == [1]
    store.restore(store.open())
    assert value.numpy().tolist() == [7.0, 8.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.drill("F20")
def test_save_raises_when_weights_are_not_finite(tmp_path, value, bad):
    store = Checkpoints(tmp_path, {"parts": tf.train.Checkpoint(inner=[value])})
    value.assign([1.0, bad])
    with pytest.raises(CheckpointError, match="the checkpoint at iteration 4 was not written: value:0 is not finite"):
        store.save(4, {})
    assert steps_in(tmp_path) == []


def save_on_full_disk(channel, folder, num_bytes):
    unshare_mounts()
    mount_tmpfs(folder, 1 << 20)
    channel.send("mounted")
    weights = tf.Variable(tf.zeros([50_000]))
    store = Checkpoints(folder / "checkpoints", {"weights": weights})
    store.save(1, {})
    mount_tmpfs(folder, num_bytes, remount=True)
    try:
        store.save(2, {})
    except StorageFullError as error:
        channel.send(str(error))
    channel.send(sorted(path.name for path in (folder / "checkpoints").iterdir()))
    mount_tmpfs(folder, 2 << 20, remount=True)
    store.save(2, {})
    channel.send(store.open().step)


@pytest.mark.parametrize(
    "num_bytes", [*(pytest.param(size, marks=pytest.mark.slow) for size in (260_000, 404_000)), 300_000]
)
@pytest.mark.drill("F9")
def test_save_on_a_full_disk_keeps_the_previous_checkpoint(tmp_path, num_bytes):
    with faults.process(save_on_full_disk, tmp_path, num_bytes) as (_, channel):
        skip_unless_mounted(channel)
        assert "no space left for" in receive(channel)
        assert receive(channel) == ["0000000001"]
        assert receive(channel) == 2


def test_restore_temporarily_brings_back_current_values(tmp_path, value):
    store = Checkpoints(tmp_path, {"value": value})
    first = store.save(1, {})
    value.assign([3.0, 4.0])
    with pytest.raises(RuntimeError), store.restore_temporarily(first):
        assert value.numpy().tolist() == [1.0, 2.0]
        raise RuntimeError
    assert value.numpy().tolist() == [3.0, 4.0] and steps_in(tmp_path) == [1]


# --- The learner's checkpoints


def make_learner(folder, *, agent=None, **arguments):
    return Learner(folder, agent or MeanAgent(), batches(), **arguments)


@pytest.mark.slow
def test_resumed_learner_continues_hooks_and_logs(tmp_path):
    def hooks():
        return [
            EarlyStopHook(metric="loss", every=1, patience=4, higher_is_better=False),
            SaveCkptHook(every=2),
            LogShowHook(every=1),
        ]

    undisturbed = hooks()
    with make_learner(tmp_path / "one", hooks=undisturbed) as learner:
        learner.start(100)
        assert learner.stop_reason == "loss has not improved in 4 checks"
        last, rows = learner.last_iter, (tmp_path / "one" / "progress.csv").read_text().splitlines()
    with make_learner(tmp_path / "two", hooks=hooks()) as learner:
        learner.start(3)
    other, restored, data = EarlyStopHook("another", 1, metric="q", every=1), hooks(), iter(batches().skip(2))
    with Learner(tmp_path / "two", MeanAgent(), data, hooks=[other, *restored, LoadCkptHook()]) as learner:
        learner.start(2)
        assert learner.last_iter == 2 and learner.load_path.endswith("0000000002") and learner.latest["loss"] > 0
        learner.start(100)
        assert learner.last_iter == last and restored[0].state_dict() == undisturbed[0].state_dict()
    again = (tmp_path / "two" / "progress.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in again] == [row.split(",")[0] for row in rows]


def test_checkpoint_of_a_different_run_raises_unless_allowed(tmp_path):
    with make_learner(tmp_path, identity={"data": "abc"}, hooks=[SaveCkptHook(position="after_run")]) as learner:
        learner.start(2)
    with make_learner(tmp_path, identity={"data": "xyz"}) as learner:
        with pytest.raises(
            CheckpointError, match="belongs to a different run: data was abc, is now xyz; use a different run directory"
        ):
            learner.load_checkpoint()
        assert learner.last_iter == 0
        assert learner.load_checkpoint(allow_config_mismatch=True) and learner.last_iter == 2
    with make_learner(tmp_path, identity={"data": "abc", "phase": "online"}, addable=["phase"]) as learner:
        assert learner.load_checkpoint() and learner.last_iter == 2

    class OtherAgent(MeanAgent):
        def __init__(self):
            self.more = tf.Variable(0.0)
            super().__init__()

    with make_learner(tmp_path, agent=OtherAgent(), identity={"data": "abc"}) as learner:
        with pytest.raises(CheckpointError, match="agent was MeanAgent, is now OtherAgent"):
            learner.load_checkpoint()
        with pytest.raises(CheckpointError, match="belongs to a different agent"):
            learner.load_checkpoint(allow_config_mismatch=True)


@pytest.mark.drill("moved")
def test_checkpoint_from_another_directory_loads_without_its_best_return(tmp_path):
    with make_learner(tmp_path / "one") as learner:
        learner.start(2)
        learner.record_evaluation(5.0)
        path = learner.save_checkpoint().path
        assert learner.save_checkpoint() is None  # It exists already.
    with make_learner(
        tmp_path / "two", hooks=[LoadCkptHook(load_path=str(path)), SaveCkptHook(position="after_run")]
    ) as learner:
        learner.start(2)
        assert learner.best_return == -np.inf and steps_in(tmp_path / "two" / "checkpoints") == [2]
        with pytest.raises(CheckpointError, match="is not a valid checkpoint"):
            learner.load_checkpoint(tmp_path / "nowhere")


# --- kill -9

TRAINING_PROGRAM = textwrap.dedent(
    """
    import sys
    import numpy as np
    import tensorflow as tf
    tf.config.experimental.enable_op_determinism()
    from rlds2reverb.adders import NStep
    from rlds2reverb.learners import Learner, InMemoryDataset, collect_items
    from rlds2reverb.learners.agents import make_agent
    from rlds2reverb.learners.hooks import LearnerHook, SaveCkptHook
    from small_agents import ACTION_SPEC, TIME_STEP_SPEC, items
    from rlds2reverb.types.items import Items

    folder, killed = sys.argv[1], sys.argv[2] == "killed"
    tf.random.set_seed(0)
    random = np.random.default_rng(0)
    columns = {
        "observation": random.normal(size=(64, 2)), "action": random.uniform(-1, 1, (64, 1)),
        "reward": random.normal(size=64), "discount": np.ones(64), "next_observation": random.normal(size=(64, 2)),
    }
    columns = {name: column.astype(np.float32) for name, column in columns.items()}
    dataset = InMemoryDataset(
        Items(columns, np.arange(64), np.ones(64, np.int64), True), 8, to_experience=NStep(1, 0.99).as_transition
    )
    agent = make_agent("td3_bc", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(8, 8), seed=1)

    class Print(LearnerHook):
        def __call__(self, learner):
            print(learner.last_iter, flush=True)

    hooks = [SaveCkptHook(every=3), Print("print", position="after_iter", every=1)]
    with Learner(folder, agent, dataset, hooks=hooks, steps_per_call=5) as learner:
        learner.load_checkpoint()
        print("from", learner.last_iter, flush=True)
        learner.start(60)
    np.savez(folder + ".npz", *[variable.numpy() for variable in agent.variables])
    """
)


def process(folder, how):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING_PROGRAM, str(folder), how], env=environment, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.drill("F6")
def test_killed_runs_end_with_the_weights_of_an_undisturbed_run(tmp_path):
    undisturbed = process(tmp_path / "one", "undisturbed")
    undisturbed.communicate(timeout=280)
    random, begins = np.random.default_rng(), []
    # Each line of output comes at a random moment of an iteration or checkpoint.
    for kill_after in (*random.integers(4, 20, 2), 1000):
        run = process(tmp_path / "two", "killed")
        for number, line in enumerate(run.stdout):
            begins += [int(line.split()[1])] if line.startswith("from") else []
            if number == kill_after:
                run.send_signal(signal.SIGKILL)
        run.stdout.close()
        run.wait(timeout=280)
    assert run.returncode == 0 and 0 == begins[0] < begins[1] < begins[2] and begins[2] % 3 == 0
    one, two = np.load(tmp_path / "one.npz"), np.load(tmp_path / "two.npz")
    assert len(one.files) > 10
    for name in one.files:
        np.testing.assert_array_equal(one[name], two[name])
    manifest = json.loads((tmp_path / "two" / "checkpoints" / "0000000060" / "manifest.json").read_text())
    assert manifest["step"] == 60
