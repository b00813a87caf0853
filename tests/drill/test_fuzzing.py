"""Drill: random damage in every file that is parsed; each loader returns a result or raises a typed error.

By default a test tries 25 damages of a kind of file; `DRILL_FUZZ_SECS=180` makes it try as many as it can in 3 minutes.
"""

import gc
import json
import os
import shutil
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

import internals
import numpy as np
import pytest
from faults import HANG_SECS, process, use_small_groups
from file_damage import damage_randomly
from saved_buffers import CONFIG, fill
from written_runs import write_run

from rlds2reverb import ReplayServer, Rlds2ReverbError, TableConfig, ingest, load, load_experiment, load_run
from rlds2reverb.learners.checkpoints import Checkpoints, open_checkpoint
from rlds2reverb.learners.csv_log import STEP
from rlds2reverb.learners.curves import learning_curves
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig, BufferManager, ReplayBuffer
from rlds2reverb.reverb.writing.journal import Journal, SavedState
from rlds2reverb.reverb.writing.transfer import TransferState
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.training import TrainingConfig, plan_seeds, run_plan

pytestmark = pytest.mark.slow

NUM_DAMAGES = 25
#: Seconds for each kind of file and seed; 0 for `NUM_DAMAGES`.
DURATION = float(os.environ.get("DRILL_FUZZ_SECS", "0"))
MAX_GROWTH_BYTES = 1 << 30
LOG = {"observations": np.zeros((4, 3)), "actions": np.zeros((4, 1)), "rewards": np.ones(4), "terminated": True}
EPISODES = [{**LOG, "rewards": np.arange(4.0) + 10 * number} for number in range(6)]


class Interrupted(Exception):
    """Ends a conversion in the middle."""


def interrupt_after(num_episodes):
    """Returns a `progress` of `ingest` that ends it after some episodes."""
    written = []

    def progress(stage, episode):
        if stage == "write":
            written.append(episode)
            if len(written) > num_episodes:
                raise Interrupted

    return progress


# --- The files: each function writes valid ones, and returns a function that reads them


def read_source(path):
    for episode in load(path):
        _ = episode.steps


def write_hdf5(data, folder):
    shutil.copy(data / "d4rl/hopper_medium-v2.hdf5", folder / "hopper.hdf5")
    return lambda path: read_source(path / "hopper.hdf5")


def write_minari(data, folder):
    shutil.copytree(data / "minari/mujoco/hopper/dev-v0", folder / "dev-v0")
    return lambda path: read_source(path / "dev-v0")


def write_tfds(data, folder):
    prepared = next((data / "rlds_prepared").rglob("features.json")).parent
    shutil.copytree(prepared, folder / "dataset" / "1.0.0")
    return lambda path: read_source(path / "dataset" / "1.0.0")


def write_tables(data, folder):
    ingest([LOG] * 3, folder / "data")

    def read(path):
        with ReplayServer(directory=path / "data"):
            pass

    return read


def write_checkpoint_root(data, folder):
    with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as server:
        ingest([LOG] * 3, server)
        server.checkpoint()

    def read(path):
        with ReplayServer([TableConfig()], checkpoint_root=path / "root"):
            pass

    return read


def write_unfinished_directory(data, folder):
    use_small_groups(group_bytes=1, part_bytes=1)
    ingest(EPISODES, folder / "expected")
    expected = read_items(folder / "expected")
    shutil.rmtree(folder / "expected")
    with suppress(Interrupted):
        ingest(EPISODES, folder / "data", progress=interrupt_after(4))
    assert (folder / "data.partial/journal.json").is_file()

    def read(path):
        ingest(EPISODES, path / "data")
        assert read_items(path / "data") == expected, "the result differs"

    return read


def read_items(directory):
    (path,) = directory.glob("checkpoints/*/items.tfrecord")
    return path.read_bytes(), (path.parent / "chunks.tfrecord").read_bytes()


def write_server_journal(data, folder):
    os.environ["XDG_STATE_HOME"] = str(folder)
    journal = Journal({"adder": "x"}, "localhost:1", example=7, warn=print)
    with journal.lock():
        journal.save(SavedState(TransferState(5, "abc", 15, 0), "server 1", {"replay": 0}))
    name = journal.path.relative_to(folder)

    def read(path):
        journal.path = path / name
        with journal.lock():
            saved = journal.load()
        assert saved.state.seen == 5 and saved.server_state_id == "server 1"

    return read


def write_run_directory(data, folder):
    write_run(folder / "run")
    config = TrainingConfig("iql", steps=3000)
    with RunDirectory(folder / "run") as directory:
        document = {"configuration": config.as_dict(), "reference_returns": [1.0, 2.0]}
        directory.write_config({**document, "hyperparameters": config.resolved_hyperparameters})

    def read(path):
        run = load_run(path / "run")
        _ = run.configuration, run.identity, run.environment, run.reference_returns, run.data_return
        _ = run.last_return, run.best_return, run.progress, run.evaluations, str(run)
        if len(run.evaluations.get(STEP, ())):
            learning_curves([run])
        with RunDirectory(path / "run") as directory:
            directory.writes_events = False
            directory.cut_after(2000)
            directory.log(2500, {"loss": 1.0, "new": 2.0})
        assert load_run(path / "run").progress[STEP][-1] == 2500

    return read


def write_experiment(data, folder):
    plan = plan_seeds(data / "d4rl/hopper_medium-v2.hdf5", TrainingConfig("iql", steps=3000), 2)
    for run in plan:
        write_run(folder / "runs" / run.name)
    outcome = {"state": "complete", "step": 3000, "reason": "", "steps": 3000}
    failed = {**outcome, "state": "failed", "reason": "no file"}
    root = folder / "runs"
    save_json(root / "plan.json", {run.name: run.as_dict() for run in plan})
    save_json(root / "status.json", {plan[0].name: outcome, plan[1].name: failed})

    def read(path):
        experiment = load_experiment(path / "runs")
        _ = str(experiment), json.dumps(experiment.as_dict()), experiment.failures
        run_plan(plan, path / "runs", place=lambda waiting, root, report: "stopped")

    return read


def write_learner_checkpoint(data, folder):
    from small_agents import MeanAgent, batches

    from rlds2reverb.learners import Learner
    from rlds2reverb.learners.hooks import EarlyStopHook

    def make(path):
        hooks = [EarlyStopHook()]
        return Learner(path, MeanAgent(), batches(), hooks=hooks, identity={"data": "a.hdf5", "gamma": 0.9})

    with make(folder / "run") as learner:
        for step in (10, 20):
            learner.start(step)
            learner.show_log()
            learner.record_evaluation(float(step))
            learner.save_checkpoint()
    learner = make(folder.parent / "other")
    learner.start(1)

    def read(path):
        for checkpoint in sorted(path.glob("run/checkpoints/*")):
            try:
                learner.load_checkpoint(checkpoint)
                learner.show_log()
                learner.record_evaluation(5.0)
            finally:
                internals.forget_evaluations(learner)
        open_checkpoint(path / "run")
        Checkpoints(path / "run/checkpoints", {}).best()

    return read


def write_buffer(data, folder):
    with fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=folder / "buffer", seed=0)) as buffer:
        buffer.checkpoint()

    def read(path):
        with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=path / "buffer", seed=0) as buffer:
            use(buffer)

    return read


def write_episode_buffer(data, folder):
    config = BufferConfig("episode", max_size=4, window=2, sample_min_limit_ratio=0)
    with ReplayBuffer("demo", config, checkpoint_root=folder / "buffer", seed=0) as buffer:
        buffer.extend([{"obs": np.arange(length, dtype=np.float32)} for length in (2, 3, 4, 2, 3)])
        buffer.checkpoint()

    def read(path):
        with ReplayBuffer("demo", config, checkpoint_root=path / "buffer", seed=0) as buffer:
            use(buffer)

    return read


def write_buffers(data, folder):
    configs = {"a": CONFIG, "b": CONFIG}
    with BufferManager(configs, seed=0) as manager:
        for name in configs:
            fill(manager[name])
        manager.save_data(folder / "saved")

    def read(path):
        with BufferManager(configs, seed=0) as manager:
            manager.load_data(path / "saved")
            for name in configs:
                use(manager[name])

    return read


def use(buffer):
    """Samples, updates, pushes and saves, which must work with whatever was loaded."""
    batch = buffer.sample_batch(2)
    if batch:
        buffer.update({"replay_unique_id": batch.info.key[:1], "priority": [2.0]})
    buffer.state_dict()


WRITERS = {
    "hdf5": write_hdf5,
    "minari": write_minari,
    "tfds": write_tfds,
    "tables": write_tables,
    "checkpoint root": write_checkpoint_root,
    "unfinished directory": write_unfinished_directory,
    "server journal": write_server_journal,
    "run": write_run_directory,
    "experiment": write_experiment,
    "learner checkpoint": write_learner_checkpoint,
    "buffer": write_buffer,
    "episode buffer": write_episode_buffer,
    "buffers": write_buffers,
}
#: Errors that a caller can expect; each is also a ValueError or an OSError.
EXPECTED = Rlds2ReverbError


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes():
    """Returns the most memory that this process has used since the last call."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return int(line.split()[1]) << 10


def read_damaged_files(channel, kind, data, folder, seed):
    """Sends 'begun' with the number of each damage, and at the end the unexpected results and the number of errors."""
    warnings.simplefilter("ignore")
    (folder / "valid").mkdir()
    read = WRITERS[kind](data, folder / "valid")
    read_copy(read, folder, None)
    gc.collect()
    peak_bytes()
    before, unexpected, num_errors, number = resident_bytes(), [], 0, 0
    ends = time.monotonic() + DURATION
    while number < NUM_DAMAGES or time.monotonic() < ends:
        channel.send(("begun", number))
        try:
            read_copy(read, folder, np.random.default_rng([seed, number]))
        except EXPECTED:
            num_errors += 1
        except Exception as error:
            unexpected.append(f"damage {number}: {describe(error)}")
        if (used := peak_bytes()) - before > MAX_GROWTH_BYTES:
            unexpected.append(f"damage {number}: the process grew to {used >> 20} MB")
            break
        number += 1
    channel.send(("done", unexpected, num_errors))


def describe(error):
    """Returns type and message of an error, and where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__module__}.{type(error).__name__} in {where}: {error}"[:500]


def read_copy(read, folder, random):
    """Reads a copy of the valid files, with damage in one of them unless `random` is None."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "valid", copy)
    if random is not None:
        files = sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size)
        damage_randomly(files[int(random.integers(len(files)))], random)
    read(copy)


@pytest.mark.drill("fuzzing")
@pytest.mark.timeout(280 + DURATION)
@pytest.mark.parametrize("kind", WRITERS)
def test_damaged_files_are_read_or_raise_typed_errors(tmp_path, data, kind, drill_seed):
    number = None
    with process(read_damaged_files, kind, data, tmp_path, drill_seed) as (_, channel):
        while True:
            where = f"seed {drill_seed}, damage {number}"
            assert channel.poll(60 if number is not None else HANG_SECS), f"{where}: hangs for 60 s"
            try:
                message = channel.recv()
            except EOFError:
                pytest.fail(f"{where}: the process crashed")
            if isinstance(message, Exception):
                raise message
            if message[0] == "done":
                break
            number = message[1]
    _, unexpected, num_errors = message
    print(f"{kind}: {number + 1:,} damages, {num_errors:,} errors")
    assert not unexpected, f"seed {drill_seed}: {len(unexpected)} of {number + 1}\n" + "\n".join(unexpected)
    assert num_errors, "no damage was noticed"
