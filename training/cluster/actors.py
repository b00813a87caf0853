"""The processes of a run on a cluster: plain classes, which `launch` makes Ray actors of.

Each has a method `run`, which returns once the coordinator has stopped the run. Ray calls it again in a new process if
the old one is killed, so each of them continues from what is on disk.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
import xxhash

from rlds2reverb import ReplayServer, TableConfig
from rlds2reverb.envs.evaluation import Evaluator
from rlds2reverb.errors import ServerRestartedError, ServerUnavailableError
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.csv_log import CsvLog
from rlds2reverb.learners.policy_export import export_policy, restore_policy
from rlds2reverb.learners.run_directory import EVALUATIONS_FILE, evaluation_row
from rlds2reverb.learners.runs import BEST_POLICY_FOLDER, load_run
from rlds2reverb.learners.tasks import read_policy
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.server.commits import write_shard
from rlds2reverb.types.items import Items
from rlds2reverb.types.locations import shard_path
from rlds2reverb.types.specs import Nest

from ..collected_pieces import ItemWriter, PieceConverter
from ..collector import Collector
from .caller import Caller, own_host
from .coordinator import SentPolicy
from .replay_shards import ShardCheckpoint, ShardReport
from .reverb_comm_learner import COLLECTED_TABLE, ReplayTables, ReverbCommLearner

_LOG = logging.getLogger(__name__)
_POLL_SECS, REPORT_SECS = 0.2, 0.5
#: Maximum time for which a collector waits for a replay server that accepts items.
_WRITE_SECS = 600.0


class ReplayActor:
    """A shard of the replay: a server that writes checkpoints when it is asked to, and starts from its newest one."""

    def __init__(self, call: Caller, shard: int, tables: Sequence[TableConfig], signature: Nest, root: str | Path):
        """Starts the server.

        Args:
          call: function that calls the coordinator.
          shard: index of the shard.
          tables: configurations of the tables.
          signature: signature of their items.
          root: directory of the checkpoints of all shards, which all machines share.
        """
        self._call, self._shard = call, shard
        self._server = ReplayServer(tables, signature, checkpoint_root=shard_path(root, shard), serve_batches=True)
        self._address = f"{own_host()}:{self._server.port}"

    def run(self) -> None:
        """Reports the state of the server and writes checkpoints, until the run is stopped."""
        start = self._server.started_from
        checkpoint = ShardCheckpoint("", start.name if start else None, self._read_state()[1])
        while True:
            sizes, num_inserted = self._read_state()
            order = self._call("report_shard", self._shard, ShardReport(self._address, sizes, num_inserted, checkpoint))
            if order.is_stopped:
                self._server.stop()
                return
            if order.request and order.request != checkpoint.request:
                checkpoint = ShardCheckpoint(order.request, write_shard(self._server, order.committed), num_inserted)
            else:
                time.sleep(REPORT_SECS)

    def _read_state(self) -> tuple[dict[str, int], int]:
        """Returns the number of items by table, and the number of those that were inserted into all tables."""
        infos = table_infos(self._server)
        inserted = [info.rate_limiter_info.insert_stats.completed for info in infos.values()]
        return {name: info.current_size for name, info in infos.items()}, sum(inserted)


class LearnerActor:
    """A `ReverbCommLearner` that trains the tasks of the coordinator, one after the other."""

    def __init__(self, call: Caller, tables: ReplayTables):
        """Creates the learner; see `ReverbCommLearner`."""
        self._call, self._learner = call, ReverbCommLearner(call, tables)

    def run(self) -> None:
        """Trains tasks until the run is stopped."""
        self._learner.start()
        while not self._call("status")["stop_reason"]:
            task = self._call("next_task", "learner")
            if task is None:
                time.sleep(_POLL_SECS)
            else:
                self._train(task)
        self._learner.close()

    def _train(self, task: Mapping[str, Any]) -> None:
        try:
            step = self._learner.run(task)
        except Exception as error:
            _LOG.exception("task %s failed", task["name"])
            state, step, reason = "failed", 0, f"{type(error).__name__}: {error}"
        else:
            state, reason = "complete" if step >= task["learner"]["num_iterations"] else "stopped", ""
        self._call("report_task", task["name"], state, step, reason)


class _PolicyCopy:
    """An agent whose policy follows the one that the learner sends."""

    def __init__(self, policy: Mapping[str, Any]):
        """Creates the agent of a task's policy config."""
        task = read_policy(policy)
        self.agent = make_agent(task.algo, task.time_step_spec, task.action_spec, **task.hyperparameters)
        self._variables = tf.nest.flatten(self.agent.collect_policy.variables())
        #: Number of updates of the policy; -1 for random weights.
        self.step = -1

    def update(self, policy: SentPolicy | None) -> None:
        """Replaces the policy, unless there is no other."""
        if policy is not None:
            for variable, value in zip(self._variables, policy.variables, strict=True):
                variable.assign(value)
            self.step = policy.step


class CollectorActor:
    """A collector: steps environments with the newest policy, and writes what it collects to the replay servers."""

    def __init__(
        self,
        call: Caller,
        name: str,
        policy: Mapping[str, Any],
        make_env: Any,
        convert: PieceConverter,
        *,
        num_envs: int = 1,
        seed: int = 0,
    ):
        """Creates the agent.

        Args:
          call: function that calls the coordinator.
          name: name of the collector.
          policy: policy config of the task; see `rlds2reverb.learners.tasks.make_task`.
          make_env: see `Collector`.
          convert: conversion of collected steps to items.
          num_envs: number of environments.
          seed: seed of everything random; a restarted collector uses a different one, to collect different episodes.
        """
        self._call, self._name, self._life = call, name, uuid.uuid4().hex
        self._policy, self._convert = _PolicyCopy(policy), convert
        life_seed = _hash(f"{seed}/{name}/{self._life}")
        self._collector = Collector(
            make_env, self._policy.agent.collect_policy, num_envs=num_envs, seed=life_seed, num_kept=convert.num_kept
        )
        self._writers: dict[str, ItemWriter] = {}
        self._num_written = 0

    def run(self) -> None:
        """Collects until the run is stopped."""
        collector = self._collector
        try:
            while True:
                arguments = (collector.num_collected, collector.returns, self._policy.step)
                order = self._call("order_steps", self._name, self._life, *arguments)
                if order.is_stopped:
                    return
                self._policy.update(order.policy)
                if not order.num_steps or not order.shards:
                    time.sleep(_POLL_SECS)
                    continue
                for piece in collector.collect(order.num_steps, is_random=order.is_random):
                    self._write(self._convert(piece), order.shards)
        finally:
            collector.close()
            for writer in self._writers.values():
                writer.close()

    def _write(self, items: Items, shards: Mapping[int, str]) -> None:
        """Writes items to one of the replay servers, which changes with each piece; to another one if that fails."""
        until, first = time.monotonic() + _WRITE_SECS, self._num_written
        self._num_written += len(items)
        turn = _hash(f"{self._name}/{first}")
        while len(items):
            addresses = list(shards.values())
            for number in range(len(addresses)):
                address = addresses[(turn + number) % len(addresses)]
                if address not in self._writers:
                    name = f"{self._name}/{self._life}"
                    self._writers[address] = ItemWriter(address, COLLECTED_TABLE, name=name, timeout_secs=10.0)
                try:
                    self._writers[address].write(items, first)
                    return
                except (ServerUnavailableError, ServerRestartedError) as error:
                    _LOG.warning("trying another replay server: %s", error)
                    self._writers.pop(address).close()
            if time.monotonic() > until:
                raise ServerUnavailableError(f"waited {_WRITE_SECS:g} s for a replay server that accepts items")
            time.sleep(_POLL_SECS)
            shards = self._call("shards")


class EvaluatorActor:
    """An evaluator: evaluates the newest policy at the intervals of the run, and keeps the best one."""

    def __init__(self, call: Caller, policy: Mapping[str, Any], evaluator: Mapping[str, Any], run_dir: str | Path):
        """Creates the agent and the environments.

        Args:
          call: function that calls the coordinator.
          policy: policy config of the task; see `rlds2reverb.learners.tasks.make_task`.
          evaluator: arguments of `Evaluator`.
          run_dir: directory of the run, for `evaluations.csv` and the best policy.
        """
        self._call, self._policy, self._run_dir = call, _PolicyCopy(policy), Path(run_dir)
        self._evaluator = Evaluator(**evaluator)

    def run(self) -> None:
        """Evaluates until the run is stopped."""
        run = load_run(self._run_dir)
        evaluated = max([-1, *map(int, run.evaluations.get("step", ()))])
        best = float("-inf") if run.best_return is None else run.best_return
        restore_policy(self._run_dir / BEST_POLICY_FOLDER)
        log = CsvLog(self._run_dir / EVALUATIONS_FILE)
        while True:
            order = self._call("order_evaluation", evaluated)
            if order.is_stopped:
                return
            if order.policy is None:
                time.sleep(_POLL_SECS)
                continue
            self._policy.update(order.policy)
            evaluation, step = self._evaluator.evaluate(self._policy.agent.policy), self._policy.step
            if step and evaluation.mean > best:
                best = evaluation.mean
                export_policy(self._policy.agent.policy, self._run_dir / BEST_POLICY_FOLDER)
            log.append(step, evaluation_row(evaluation))
            evaluated = step
            self._call("report_evaluation", step, evaluation.mean, evaluation.score)


def _hash(name: str) -> int:
    """Returns a number in [0, 2^31) that depends on the name only."""
    return int(xxhash.xxh32_intdigest(name.encode()) >> 1)
