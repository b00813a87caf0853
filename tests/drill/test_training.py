"""Training commands that are signalled in each phase, killed at random moments, and continued from damaged checkpoints."""

import os
import shutil
import signal
import sys
import time

import numpy as np
import pytest
from crashes import CrashAt
from faults import damage_file, process, receive, wrap_calls
from trained_runs import DATA, NUM_UPDATES, make_arguments, read_rows, require_equal_runs

pytestmark = pytest.mark.slow

#: A function that is called in each phase of a training command, by its module and name.
PHASES = {
    "start": ("rlds2reverb.training.evaluation_environment", "resolve_environment"),
    "reading": ("rlds2reverb.datasets.steps.loaded_steps", "read_steps"),
    "tracing": ("rlds2reverb.learners.train_loop:TrainLoop", "prepare"),
    "update": ("rlds2reverb.learners.train_loop:TrainLoop", "__call__"),
    "evaluation": ("rlds2reverb.envs.evaluation:Evaluator", "evaluate"),
    "checkpoint": ("rlds2reverb.learners.checkpoints:Checkpoints", "save"),
    "server checkpoint": ("rlds2reverb.reverb.server.replay_server:ReplayServer", "save_data"),
    "export": ("rlds2reverb.learners.learner", "export_policy"),
    "collection": ("rlds2reverb.training.collector:Collector", "collect"),
}
#: Phases in which the learner runs, so that a signal makes it save a checkpoint before it ends.
SAVED = ("update", "evaluation", "checkpoint", "server checkpoint")


def find_owner(path):
    import importlib

    module, _, name = path.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, name) if name else owner


def command(channel, arguments, phase=None, hold_secs=0.0):
    """Runs a command; sends 'held' when it first comes to a phase and waits there, and finally sends its exit code."""
    from rlds2reverb.cli import run

    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell in the background ignores it.
    if phase is not None:
        is_held = []

        def hold():
            if not is_held:
                is_held.append(True)
                channel.send("held")
                until = time.monotonic() + hold_secs
                while time.monotonic() < until:
                    time.sleep(0.01)

        owner, name = PHASES[phase]
        wrap_calls(find_owner(owner), name, before=hold)
    with open(os.devnull, "w") as sys.stdout:
        code = run(arguments)
    channel.send(code)


def run_command(arguments):
    with process(command, arguments) as (_, channel):
        return receive(channel)


def stop_in_phase(arguments, phase):
    """Sends SIGTERM to a command that has just come to a phase; it must save and exit with 75."""
    with process(command, arguments, phase, 1.0) as (running, channel):
        assert receive(channel) == "held"
        os.kill(running.pid, signal.SIGTERM)
        assert receive(channel) == 75


def kill_after_phase(arguments, phase, secs):
    """Kills a command some seconds after it has come to a phase, unless it has ended."""
    with process(command, arguments, phase) as (running, channel):
        assert receive(channel) == "held"
        channel.poll(secs)
        running.kill()
        running.join()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the directory of a run that nothing disturbs."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert run_command(make_arguments(run_dir, "--deterministic")) == 0
    return run_dir


# --- Signals


@pytest.mark.drill("F5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "collection"])
def test_signal_in_each_phase_saves_and_the_same_command_continues(tmp_path, phase, number, whole):
    options = ["--sampler", "prioritized"] if phase == "server checkpoint" else ["--deterministic"]
    arguments = make_arguments(tmp_path / "run", *options)
    with process(command, arguments, phase, 1.0) as (running, channel):
        assert receive(channel) == "held"
        os.kill(running.pid, number)
        code = receive(channel)
    # Before the learner runs, Ctrl-C is the usual KeyboardInterrupt.
    assert code == (75 if number == signal.SIGTERM or phase in (*SAVED, "tracing") else 130)
    if phase in SAVED:
        assert any((tmp_path / "run/checkpoints").glob("[0-9]*"))
    assert run_command(arguments) == 0
    if phase != "server checkpoint":
        require_equal_runs(whole, tmp_path / "run")


@pytest.mark.drill("F5")
@pytest.mark.parametrize("phase", SAVED)
def test_second_signal_ends_the_command_within_a_second(tmp_path, phase, recovery):
    options = ["--sampler", "prioritized"] if phase == "server checkpoint" else []
    arguments = make_arguments(tmp_path / "run", *options)
    with process(command, arguments, phase, 30.0) as (running, channel):
        assert receive(channel) == "held"
        os.kill(running.pid, signal.SIGTERM)
        time.sleep(0.3)
        with recovery():
            os.kill(running.pid, signal.SIGTERM)
            running.join(1.0)
        assert running.exitcode == 128 + signal.SIGTERM
    assert run_command(arguments) == 0


ONLINE = ("--deterministic", "--online", "100", "--warmup-steps", "20", "--num-envs", "2")


@pytest.fixture(scope="module")
def whole_online(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("online") / "run"
    assert run_command(make_arguments(run_dir, *ONLINE)) == 0
    return run_dir


@pytest.mark.drill("F5")
@pytest.mark.parametrize("phase", ["collection", "checkpoint", "evaluation"])
def test_signal_in_an_online_run_saves_and_the_same_command_continues(tmp_path, phase, whole_online):
    arguments = make_arguments(tmp_path / "run", *ONLINE)
    stop_in_phase(arguments, phase)
    assert run_command(arguments) == 0
    require_equal_runs(whole_online, tmp_path / "run")


@pytest.fixture(scope="module")
def whole_seeds(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("seeds") / "run"
    assert run_command(make_arguments(run_dir, "--deterministic", "--seeds", "2")) == 0
    return run_dir


@pytest.mark.drill("F5")
@pytest.mark.parametrize("phase", ["tracing", "update", "evaluation", "export"])
def test_signal_in_a_run_of_several_seeds_saves_and_the_same_command_continues(tmp_path, phase, whole_seeds):
    arguments = make_arguments(tmp_path / "run", "--deterministic", "--seeds", "2")
    stop_in_phase(arguments, phase)
    assert run_command(arguments) == 0
    for seed in ("seed_0", "seed_1"):
        require_equal_runs(whole_seeds / seed, tmp_path / "run" / seed)


# --- Kills


@pytest.mark.drill("F6")
def test_run_killed_at_a_random_moment_ends_bit_for_bit_like_a_whole_one(tmp_path, whole, drill_seed, recovery):
    random = np.random.default_rng([6, drill_seed])
    # Half of the runs read a store, which may be killed while it is built.
    store = ("--store-dir", str(tmp_path / "stores")) if drill_seed % 2 else ()
    arguments = make_arguments(tmp_path / "run", "--deterministic", *store)
    kill_after_phase(arguments, "reading", random.uniform(0, 6))
    with recovery():
        assert run_command(arguments) == 0
    require_equal_runs(whole, tmp_path / "run")


@pytest.mark.drill("F6")
def test_run_of_several_seeds_killed_at_a_random_moment_ends_like_a_whole_one(
    tmp_path, whole_seeds, drill_seed, recovery
):
    random = np.random.default_rng([67, drill_seed])
    arguments = make_arguments(tmp_path / "run", "--deterministic", "--seeds", "2")
    kill_after_phase(arguments, "reading", random.uniform(0, 10))
    with recovery():
        assert run_command(arguments) == 0
    for seed in ("seed_0", "seed_1"):
        require_equal_runs(whole_seeds / seed, tmp_path / "run" / seed)


@pytest.mark.drill("F6")
def test_online_run_killed_at_a_random_moment_ends_like_a_whole_one(tmp_path, whole_online, drill_seed, recovery):
    random = np.random.default_rng([68, drill_seed])
    arguments = make_arguments(tmp_path / "run", *ONLINE)
    kill_after_phase(arguments, "collection", random.uniform(0, 3))
    with recovery():
        assert run_command(arguments) == 0
    require_equal_runs(whole_online, tmp_path / "run")


@pytest.mark.drill("F6")
def test_prioritized_run_killed_at_a_random_moment_loses_at_most_one_interval(tmp_path, drill_seed):
    random = np.random.default_rng([66, drill_seed])
    arguments = make_arguments(tmp_path / "run", "--sampler", "prioritized")
    kill_after_phase(arguments, "reading", random.uniform(2, 10))
    logged = tmp_path / "run/progress.csv"
    step = int(logged.read_text().splitlines()[-1].split(",")[0]) if logged.exists() else 0
    saved = max((int(path.name) for path in (tmp_path / "run/checkpoints").glob("[0-9]" * 10)), default=0)
    assert saved > step - 100 - 50
    assert run_command(arguments) == 0
    steps = [int(row[0]) for row in read_rows(tmp_path / "run")[0]]
    assert steps == list(range(50, NUM_UPDATES + 1, 50))


# --- Crashes within a save


def save_until_crash(channel, folder, crash_at):
    """Saves a second checkpoint, and ends at the N-th operation that changes a file; sends the number otherwise."""
    from small_agents import MeanAgent, batches

    from rlds2reverb.learners import Learner

    with Learner(folder, MeanAgent(), batches(), keep_checkpoints=2) as learner:
        learner.start(10)
        learner.save_checkpoint()
        channel.send("saved")
        crash = CrashAt(crash_at)
        learner.start(20)
        learner.save_checkpoint()
        channel.send(crash.num_operations)


@pytest.mark.drill("F7")
def test_crash_at_each_operation_of_a_save_leaves_a_valid_checkpoint(tmp_path):
    from small_agents import MeanAgent, batches

    from rlds2reverb.learners import Learner

    steps = []
    for crash_at in range(1, 200):
        folder = tmp_path / str(crash_at)
        with process(save_until_crash, folder, crash_at) as (running, channel):
            assert receive(channel) == "saved"
            running.join(60)
            num_operations = channel.recv() if running.exitcode == 0 else None
        with Learner(folder, MeanAgent(), batches(), keep_checkpoints=2) as learner:
            assert learner.load_checkpoint(), f"operation {crash_at}"
            steps.append(learner.step)
            learner.start(30)
            learner.save_checkpoint()
        names = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert [name for name in names if not name.isdigit()] == [], f"operation {crash_at}"
        if num_operations is not None:
            break
    assert set(steps) == {10, 20} and steps == sorted(steps)
    assert len(steps) > 10


# --- Damaged checkpoints


def flip_bit(file, part):
    content = bytearray(file.read_bytes())
    content[int(part * (len(content) - 1))] ^= 1
    file.write_bytes(content)


DAMAGE = {
    **{f"flipped at {part}": lambda file, part=part: flip_bit(file, part) for part in (0, 0.3, 0.6, 1)},
    "truncated": lambda file: damage_file(file, "truncated"),
    "empty": lambda file: damage_file(file, "empty"),
    "missing": lambda file: file.unlink(),
}


@pytest.mark.drill("F8")
def test_damaged_checkpoint_of_a_run_is_named_and_the_previous_one_continues(tmp_path, caplog):
    from small_agents import MeanAgent, batches

    from rlds2reverb.learners import Learner

    with Learner(tmp_path / "run", MeanAgent(), batches()) as learner:
        for step in (10, 20):
            learner.start(step)
            learner.save_checkpoint()
    (newest,) = (tmp_path / "run/checkpoints").glob("*20")
    names = sorted(path.name for path in newest.iterdir())
    for number, (name, damage) in enumerate((name, damage) for name in names for damage in DAMAGE):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "run", copy)
        DAMAGE[damage](copy / "checkpoints" / newest.name / name)
        caplog.clear()
        with Learner(copy, MeanAgent(), batches()) as learner:
            assert learner.load_checkpoint() and learner.step == 10, (name, damage)
        assert str(copy / "checkpoints" / newest.name) in caplog.text, (name, damage)
    assert number >= 20


# --- Foreign files


@pytest.mark.drill("F10")
@pytest.mark.parametrize("options", [("--deterministic",), ("--deterministic", "--seeds", "2")])
def test_foreign_files_in_the_directories_of_a_run_are_kept(tmp_path, options, whole, whole_seeds):
    run_dir = tmp_path / "run"
    arguments = make_arguments(run_dir, *options)
    stop_in_phase(arguments, "evaluation")
    first = run_dir / "seed_0" if "--seeds" in options else run_dir
    foreign = [
        run_dir / "notes.txt",
        first / "notes.txt",
        first / "checkpoints/notes.txt",
        first / "checkpoints/mine/a",
    ]
    foreign[-1].parent.mkdir()
    for path in foreign:
        path.write_text("mine")
    assert run_command(arguments) == 0
    assert [path.read_text() for path in foreign] == ["mine"] * len(foreign)
    require_equal_runs(whole_seeds / "seed_0" if "--seeds" in options else whole, first)


# --- Runs and data that change


@pytest.mark.drill("moved")
def test_moved_run_directory_is_continued(tmp_path, whole):
    arguments = make_arguments(tmp_path / "run", "--deterministic")
    with process(command, arguments, "evaluation", 0.0) as (running, channel):
        assert receive(channel) == "held"
        os.kill(running.pid, signal.SIGTERM)
        assert receive(channel) == 75
    (tmp_path / "run").rename(tmp_path / "moved")
    assert run_command(make_arguments(tmp_path / "moved", "--deterministic")) == 0
    require_equal_runs(whole, tmp_path / "moved")


@pytest.mark.drill("moved")
def test_changed_data_file_is_rejected_and_the_run_is_unharmed(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "run")
    data = tmp_path / "pendulum_mixed-v2.hdf5"
    shutil.copyfile(DATA, data)
    import h5py

    with h5py.File(data, "r+") as file:
        file["rewards"][0] += 1
    before = read_rows(tmp_path / "run")
    arguments = make_arguments(tmp_path / "run", "--deterministic")
    arguments[arguments.index("--data") + 1] = str(data)
    assert run_command(arguments) == 2
    assert read_rows(tmp_path / "run") == before


@pytest.mark.drill("F27")
def test_second_command_in_the_same_directory_fails_and_the_first_is_unharmed(tmp_path, whole):
    arguments = make_arguments(tmp_path / "run", "--deterministic")
    with process(command, arguments, "update", 8.0) as (_, channel):
        assert receive(channel) == "held"
        assert run_command(arguments) == 1
        assert receive(channel) == 0
    require_equal_runs(whole, tmp_path / "run")
