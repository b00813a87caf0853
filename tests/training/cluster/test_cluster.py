"""Training on a Ray cluster, with real processes that are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from machines import execute, machine, network_cut
from process_signals import suspend_process

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[2]
DATA = TESTS / "data/d4rl/pendulum_mixed-v2.hdf5"
#: Ray does not work with pydantic 1, so that it is hidden from it.
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(TESTS / "support/ray_environment"), "RAY_USAGE_STATS_ENABLED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3"
}  # fmt: skip
SMALL = ["--set", "hidden_sizes=(32,32)", "--set", "train.eval_episodes=2", "--set", "train.eval_every=500"]
SMALL += ["--set", "train.warmup_steps=300"]


def find_ray_processes():
    """Returns the command lines of all processes of Ray."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if command_line.startswith("ray::") or "/raylet " in command_line or "/gcs_server " in command_line:
            found.append(command_line)
    return found


#: Commands that `start_training` has started in the current test.
_started = []


@pytest.fixture(autouse=True)
def no_process_is_left():
    before = len(find_ray_processes())
    yield
    while _started:
        process = _started.pop()
        if process.poll() is None:  # The test has failed.
            process.terminate()
            process.communicate(timeout=120)
    until = time.monotonic() + 30
    while len(find_ray_processes()) > before and time.monotonic() < until:
        time.sleep(0.5)
    assert len(find_ray_processes()) <= before


def start_training(run_dir, *options, data="none", online_steps=1500, prefix=()):
    gin = run_dir.with_suffix(".gin")
    gin.write_text(f"train.online_steps = {online_steps}\n")
    command = [*prefix, sys.executable, "-m", "rlds2reverb.cli", "cluster", "train", gin]
    command += ["--algo", "sac", "--data", data]
    command += ["--env", "Pendulum-v1", "--run-dir", run_dir, *SMALL, *options]
    process = subprocess.Popen(
        [*map(str, command)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _started.append(process)
    return process


def finish(process, timeout_secs=300):
    try:
        out, err = process.communicate(timeout=timeout_secs)
    finally:
        process.kill()
    return process.returncode, out, err


def read_numbers(path):
    names, *rows = path.read_text().splitlines()
    return [dict(zip(names.split(","), row.split(","), strict=True)) for row in rows]


def drive_cluster(scenario, run_dir, num_steps):
    """Trains on a cluster of three nodes while a scenario breaks it, and returns the report of `drive_cluster.py`."""
    command = [sys.executable, Path(__file__).with_name("drive_cluster.py"), scenario, DATA, run_dir, num_steps]
    process = subprocess.Popen([*map(str, command)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    code, out, _ = finish(process, 1100)
    report = json.loads(out.splitlines()[-1])
    assert code == 0 and report["error"] == "" and report["is_broken"], report
    return report


@pytest.mark.timeout(1200)
@pytest.mark.drill("cluster")
def test_run_survives_the_loss_of_each_process_and_of_a_node(tmp_path):
    report = drive_cluster("everything", tmp_path / "run", 7_000)
    assert set(report["recovery_secs"]) == {"collector_0", "replay_0", "evaluator", "learner", "coordinator", "node"}
    status = report["status"]
    assert status["stop_reason"] == "complete" and status["step"] == 7_000
    assert status["collected_steps"] >= 7_000
    assert report["steps"] == sorted(set(report["steps"])) and report["steps"][-1] == 7_000
    assert max(report["means"][1:]) > report["means"][0] + 300
    assert (tmp_path / "run/best_policy/saved_model.pb").is_file()


@pytest.mark.timeout(1200)
def test_collectors_are_replaced_while_a_run_trains(tmp_path):
    report = drive_cluster("collectors", tmp_path / "run", 4_000)
    early, full, removed = report["refused"]
    assert early.endswith("while `run` trains, but this run is not running")
    assert full.startswith("the cluster has no room for another process with 1 CPUs; remove a collector first")
    assert removed.startswith("there is no collector 'collector_0'; there are collector_1, ")
    # The new collector has collected the rest.
    assert report["collected_before"] < 4_000 <= report["status"]["collected_steps"]
    assert report["status"]["stop_reason"] == "complete"


@pytest.mark.timeout(900)
@pytest.mark.drill("cluster")
def test_interrupted_command_saves_and_continues(tmp_path):
    run_dir = tmp_path / "run"
    process = start_training(run_dir, "--collectors", "1", "--steps", "600", data=DATA)
    until = time.monotonic() + 200
    while not (run_dir / "evaluations.csv").exists() and time.monotonic() < until:
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 75 and "stopped by SIGINT" in err
    checkpoints = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert checkpoints
    code, _, err = finish(start_training(run_dir, "--collectors", "1", "--steps", "600", data=DATA))
    assert code == 0, err
    steps = [int(row["step"]) for row in read_numbers(run_dir / "evaluations.csv")]
    assert steps == sorted(set(steps))
    logged = [int(row["step"]) for row in read_numbers(run_dir / "progress.csv")]
    assert logged == sorted(set(logged))


def find_replay_processes(run_dir):
    """Returns the ids of the replay servers of a run by shard, which hold the locks of their checkpoint roots."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # The process has ended.
            if (path / "cmdline").read_bytes().startswith(b"ray::"):
                names = {os.path.realpath(descriptor) for descriptor in (path / "fd").iterdir()}
                for shard in (0, 1):
                    if str(run_dir / f"replay/shard_{shard}/rlds2reverb.lock") in names:
                        found[shard] = int(path.name)
    return found


def wait_for(is_true, secs=200):
    until = time.monotonic() + secs
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.05)


def read_newest_commit(path):
    """Returns the names of the checkpoints in the newest commit."""
    return json.loads(path.read_text())["commits"][0]


@pytest.mark.timeout(900)
@pytest.mark.drill("F7")
def test_replay_returns_to_the_last_commit_if_everything_is_killed_between_two_checkpoints(tmp_path):
    run_dir = tmp_path / "run"
    options = ["--shards", "2", "--collectors", "1", "--steps", "300", "--replay-checkpoint-secs", "1"]
    process = start_training(run_dir, *options, data=DATA)
    commit, checkpoints = run_dir / "replay/commit.json", run_dir / "replay/shard_0/checkpoints"
    wait_for(lambda: commit.exists() and (run_dir / "progress.csv").exists())
    suspend_process(find_replay_processes(run_dir)[1])  # It cannot answer the next request for a checkpoint.

    def is_between_checkpoints():
        committed = read_newest_commit(commit)
        time.sleep(5)  # For a commit that shard 1 has answered already.
        is_newest = read_newest_commit(commit) == committed
        return is_newest and any(path.parent.name > committed[0] for path in checkpoints.glob("*/DONE"))

    wait_for(is_between_checkpoints)
    committed = read_newest_commit(commit)
    process.kill()
    process.communicate()
    wait_for(lambda: not find_ray_processes())
    assert read_newest_commit(commit) == committed

    code, _, err = finish(start_training(run_dir, *options, data=DATA))
    assert code == 0, err
    assert "shard_0 is not part of the commit" in err and any((run_dir / "replay/shard_0/set_aside").iterdir())
    for shard, name in enumerate(read_newest_commit(commit)):
        assert [path.name for path in (run_dir / f"replay/shard_{shard}/checkpoints").iterdir()] == [name]


@contextmanager
def suspend_processes(prefix, pids, ports):
    """Stops processes, which then answer nothing while their connections stay open."""
    for pid in pids:
        suspend_process(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def cut_network(prefix, pids, ports):
    """Cuts the network to the ports of processes, whose own calls still reach the coordinator.

    Other processes connect by IPv4, to the address of the machine. The server's own client connects by IPv6, to
    `localhost`, and continues, as it does if the network between two machines is cut.
    """
    with network_cut(prefix, ports, ["-4"]):
        yield


def find_server(pid):
    """Returns the ID of the server of a replay process, which is forked from its launcher."""
    (launcher,) = (child for child in find_children(pid) if "reverb/process" in read_command(child))
    (server,) = find_children(launcher)
    return server


def find_children(pid):
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def read_command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def find_ports(prefix, pid):
    """Returns the ports at which a process of a machine listens."""
    sockets = execute(*prefix, "ss", "--tcp", "--listening", "--numeric", "--processes", "--no-header").splitlines()
    return [int(line.split()[3].rpartition(":")[2]) for line in sockets if f"pid={pid}," in line]


COUNT_INSERTED = """
import sys, reverb
for port in sys.argv[1:]:
    try:
        tables = reverb.Client(f"localhost:{port}").server_info(timeout=5)
        print(tables["collected"].rate_limiter_info.insert_stats.completed)
    except Exception:  # The port is not Reverb's.
        pass
"""


@pytest.mark.timeout(900)
@pytest.mark.drill("cluster")
@pytest.mark.parametrize("fault", [suspend_processes, cut_network])
def test_training_continues_without_one_of_its_replay_servers(fault, tmp_path):
    run_dir = tmp_path / "run"
    options = ["--shards", "2", "--collectors", "1", "--set", "train.log_every=100", "--replay-checkpoint-secs", "1"]
    with machine() as prefix:
        process = start_training(run_dir, *options, online_steps=100_000, prefix=prefix)

        def count_updates():
            path = run_dir / "progress.csv"
            return int(path.read_text().splitlines()[-1].split(",")[0]) if path.exists() else 0

        def count_inserted():
            return [*map(int, execute(*prefix, sys.executable, "-c", COUNT_INSERTED, *map(str, ports)).split())]

        def read_commit():
            return read_newest_commit(run_dir / "replay/commit.json")

        wait_for(lambda: count_updates() >= 200)
        pid = find_replay_processes(run_dir)[1]
        server = find_server(pid)
        ports = find_ports(prefix, server)
        assert len(count_inserted()) == 1
        with fault(prefix, [pid, server], ports):
            time.sleep(60)
            assert not count_inserted()
            before, commit = count_updates(), read_commit()
            assert before > 400
            wait_for(lambda: count_updates() > before)
        (inserted,) = count_inserted()
        wait_for(lambda: count_inserted() > [inserted])
        wait_for(lambda: not set(read_commit()) & set(commit))
        process.send_signal(signal.SIGTERM)
        code, _, err = finish(process)
    assert code == 75, err


@pytest.mark.timeout(300)
def test_process_that_cannot_start_is_reported(tmp_path):
    code, _, err = finish(start_training(tmp_path / "run", "--cpus", "50"))
    assert code == 1 and "the cluster has no room for 6 processes with 50 CPUs each" in err


@pytest.mark.timeout(300)
def test_pydantic_1_is_reported(tmp_path):
    pydantic = pytest.importorskip("pydantic")
    if not pydantic.VERSION.startswith("1."):
        pytest.skip("Ray works with pydantic 2")
    code = "from rlds2reverb.training.cluster.launch import import_ray; import_ray()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "ImportError: Ray requires pydantic 2 or none at all" in done.stderr
