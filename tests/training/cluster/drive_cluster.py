"""Trains on a Ray cluster of three nodes, changes or kills some of its processes, and prints what happened as JSON.

With the scenario 'everything', one process of each kind is killed, and then a node; with 'collectors', one is replaced and the other removed.

Run by `test_cluster.py` in its own process, without pydantic.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.cluster import ClusterConfig, ClusterTraining

_KINDS = {
    "collector_0": "CollectorActor",
    "replay_0": "ReplayActor",
    "evaluator": "EvaluatorActor",
    "learner": "LearnerActor",
    "coordinator": "Coordinator",
}
_NODE = {"num_cpus": 2, "object_store_memory": 80 << 20}


def find_processes(kind: str) -> set[int]:
    """Returns the ids of the processes of a kind of actor."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"ray::{kind}".encode()):
                found.add(int(path.parent.name))
    return found


def wait_for(is_true, what: str, secs: float = 180.0) -> float:
    """Waits for a condition; returns the seconds that it took."""
    start = time.monotonic()
    while not is_true():
        if time.monotonic() - start > secs:
            raise TimeoutError(f"waited {secs:g} s for {what}")
        time.sleep(0.2)
    return time.monotonic() - start


def read_step(training: ClusterTraining) -> int:
    """Returns the number of updates; -1 while the coordinator is restarted."""
    with contextlib.suppress(Exception):
        return int(training.status()["step"])
    return -1


def find_process(actor) -> int:
    """Returns the id of the process of an actor."""
    return int(ray._private.state.actors(actor._actor_id.hex())["Pid"])


def break_everything(training: ClusterTraining, cluster: Cluster, nodes: list, report: dict) -> None:
    """Kills one process of each kind, and then a node; after each, waits until the learner has made progress."""
    wait_for(lambda: "learner" in training.actors and read_step(training) > 200, "the first updates")
    for name, kind in _KINDS.items():
        before, step = find_processes(kind), read_step(training)
        os.kill(min(before), signal.SIGKILL)
        secs = wait_for(lambda: find_processes(kind) - before, f"a new {name}")  # noqa: B023
        secs += wait_for(lambda: read_step(training) > step + 100, f"updates after the kill of {name}")  # noqa: B023
        report["recovery_secs"][name] = round(secs, 1)
    state = ray._private.state.actors(training.actors["learner"]._actor_id.hex())
    node = next((candidate for candidate in nodes if candidate.node_id == state["Address"]["NodeID"]), nodes[-1])
    step = read_step(training)
    cluster.remove_node(node, allow_graceful=False)
    report["recovery_secs"]["node"] = round(
        wait_for(lambda: read_step(training) > step + 300, "updates after the loss of a node"), 1
    )


def replace_collectors(training: ClusterTraining, cluster: Cluster, nodes: list, report: dict) -> None:
    """Replaces a collector of a full cluster, and removes another one; reports what was refused."""

    def refuse(change, *arguments) -> None:
        try:
            change(*arguments)
        except (RuntimeError, ValueError) as error:
            report["refused"].append(str(error))

    def wait_for_collectors(*names: str) -> None:
        number = len(names)
        wait_for(lambda: training.status()["num_collectors"] == number and {*names} <= {*training.actors}, str(names))

    report["refused"] = []
    refuse(training.add_collector)  # None has started.
    wait_for(lambda: read_step(training) >= 0, "the coordinator")
    wait_for_collectors("collector_0", "collector_1")
    refuse(training.add_collector)
    training.remove_collector("collector_0")
    refuse(training.remove_collector, "collector_0")
    training.add_collector()
    training.remove_collector("collector_1")
    report["collected_before"] = training.status()["collected_steps"]
    wait_for_collectors("collector_2")


def read_checkpoints(training: ClusterTraining) -> list[int]:
    """Returns the numbers of updates of the checkpoints of the learner."""
    names = [path.name for path in (training.run_dir / "checkpoints").glob("[0-9]*")]
    return [int(name) for name in names if name.isdigit()]  # Others are being written.


def sabotage(scenario, *arguments, report: dict) -> None:
    """Runs a scenario; if it raises an error, it ends the run."""
    try:
        scenario(*arguments, report)
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {error}"
        os.kill(os.getpid(), signal.SIGTERM)


def main(scenario: str, data: str, run_dir: str, num_steps: int) -> None:
    """Runs the experiment."""
    report: dict = {"recovery_secs": {}, "killed_at": {}, "checkpoints": {}, "resumed_from": {}, "error": ""}
    change = {"everything": break_everything, "collectors": replace_collectors}[scenario]
    is_full = scenario == "collectors"
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
    nodes = [cluster.add_node(**_NODE) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    config = TrainingConfig(
        "sac",
        env="Pendulum-v1",
        steps=500,
        online_steps=num_steps,
        warmup_steps=500,
        eval_every=1_000,
        eval_episodes=5,
        checkpoint_every=250,
        hyperparameters={"hidden_sizes": (64, 64)},
    )
    options = ClusterConfig(
        num_shards=2 - is_full,
        num_collectors=2,
        num_cpus=1 if is_full else 0.1,
        checkpoint_secs=5,
    )
    try:
        with ClusterTraining(data, config, run_dir, options) as training:
            arguments = (change, training, cluster, nodes)
            saboteur = threading.Thread(target=sabotage, args=arguments, kwargs={"report": report}, daemon=True)
            saboteur.start()
            run = training.run()
            saboteur.join(10)
            report["is_broken"] = not saboteur.is_alive()
            report["status"] = training.status()
            if report["error"]:
                return
            report["means"], report["steps"] = run.evaluations["mean"].tolist(), run.evaluations["step"].tolist()
    finally:
        ray.shutdown()
        cluster.shutdown()
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], num_steps=int(sys.argv[4]))
