"""The coordinator: it hands out tasks, keeps the pace of collectors and learner, and knows the state of all processes.

It starts and supervises nothing; that is Ray's part. All processes call it, which Ray does one call at a time, and it
calls none of them. What it must remember is in a file, so that one that was killed continues where it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.replay.monitors import MonitorConfig, RateWindow
from rlds2reverb.system.sealed_files import load_json, save_json

from ..config import TrainingConfig
from .replay_shards import ALIVE_SECS, ReplayOrder, ReplayShards, ShardReport

_SAVE_SECS = 1.0
_RATES = MonitorConfig(window_secs=30.0, num_parts=30)
#: Maximum time for which the replay servers wait, after a stop, for learners and collectors to end.
_END_SECS = 60.0
#: The state that a restarted coordinator continues from.
_SAVED = ("tasks", "counts", "policy_step", "learner_step", "evaluated")
#: States of a task in which no learner has to train it any more.
_ENDED = ("complete", "failed", "stopped")


class SentPolicy(NamedTuple):
    """A policy as the learner sends it: the number of updates, and the variables in the order of `tf.nest.flatten`."""

    step: int
    variables: Sequence[np.ndarray]


class CollectOrder(NamedTuple):
    """The next step of a collector.

    Attributes:
      num_steps: number of environment steps to collect; 0 to wait and ask again.
      is_random: whether their actions are uniformly random.
      shards: addresses of the replay servers by shard.
      policy: the newest policy, unless the collector has it or no policy exists.
      is_stopped: whether to end.
    """

    num_steps: int
    is_random: bool
    shards: dict[int, str]
    policy: SentPolicy | None
    is_stopped: bool


class LearnOrder(NamedTuple):
    """The next step of a learner: train until `until` updates are done in total, on the items of `shards`."""

    until: int
    shards: dict[int, str]
    is_stopped: bool


class EvaluateOrder(NamedTuple):
    """The next step of an evaluator: evaluate the policy, unless that is None because no evaluation is due."""

    policy: SentPolicy | None
    is_stopped: bool


class Coordinator:
    """The state of a training run on a cluster, and the orders that follow from it."""

    def __init__(
        self,
        state_path: str | Path,
        config: TrainingConfig,
        lead_steps: int = 1_000,
        *,
        replay_root: str | Path,
        num_shards: int = 1,
        checkpoint_secs: float = 60.0,
    ):
        """Restores the state from a file, if there is one.

        Args:
          state_path: path of the file.
          config: the options of the run.
          lead_steps: number of environment steps that the collectors may be ahead of the learner.
          replay_root: directory of the checkpoints of all replay servers.
          num_shards: number of replay servers.
          checkpoint_secs: seconds between two checkpoints of the replay servers.

        Raises:
          CheckpointError: If the commits of the replay servers are damaged, or of a different number of servers.
        """
        self._path, self._config, self._lead_steps = Path(state_path), config, lead_steps
        state = load_json(self._path) or {}
        self._tasks: dict[str, dict[str, Any]] = state.get("tasks", {})
        self._counts: dict[str, int] = state.get("counts", {})
        self._policy_step: int = state.get("policy_step", -1)
        self._learner_step: int = state.get("learner_step", 0)
        self._evaluated: dict[str, float] = state.get("evaluated", {})
        self._replay = ReplayShards(replay_root, num_shards, checkpoint_secs)
        self._collectors: dict[str, _CollectorState] = {}
        self._learn_info: dict[str, Any] = {}
        self._rates = {name: RateWindow(_RATES, time.monotonic()) for name in ("learner", "collectors")}
        self._stop_reason, self._stop_time = "", 0.0
        #: The newest policy; None until the learner sends one to this process.
        self._policy: SentPolicy | None = None
        self._policy_time = self._saved_time = time.monotonic()

    # --- Tasks

    def submit(self, task: Mapping[str, Any]) -> None:
        """Adds a task, unless there is one of the same name that has not ended.

        Args:
          task: the task; see `rlds2reverb.learners.tasks.make_task`.
        """
        known = self._tasks.get(task["name"])
        if known is None or known["state"] in _ENDED:
            entry = {"task": dict(task), "state": "waiting", "learner": "", "step": 0, "reason": ""}
            self._tasks[task["name"]] = entry
            self._save()

    def next_task(self, learner: str) -> dict[str, Any] | None:
        """Returns the task that a learner was training before it was restarted, or else one that waits, or None."""
        own = (entry for entry in self._list_tasks("running") if entry["learner"] == learner)
        chosen = next(own, None) or next(self._list_tasks("waiting"), None)
        if chosen is None or self._stop_reason:
            return None
        chosen.update(state="running", learner=learner)
        self._save()
        return dict(chosen["task"])

    def report_task(self, name: str, state: str, step: int, reason: str = "") -> None:
        """Records how a task ended: 'complete', 'stopped' or 'failed', after `step` updates."""
        self._tasks[name].update(state=state, step=step, reason=reason)
        self._save()

    def task_state(self, name: str) -> dict[str, Any]:
        """Returns the state of a task: `state` ('waiting', 'running', or how it ended), `learner`, `step`, `reason`."""
        return {key: value for key, value in self._tasks[name].items() if key != "task"}

    def _list_tasks(self, *states: str) -> Iterator[dict[str, Any]]:
        return (entry for entry in self._tasks.values() if entry["state"] in states)

    # --- The learner

    def report_learn_info(self, info: Mapping[str, Any]) -> None:
        """Records the progress of the learner; see `comm_learner.make_learn_info`."""
        self._learn_info = dict(info)

    def report_policy(self, step: int, variables: Sequence[np.ndarray]) -> None:
        """Replaces the policy for collectors and evaluator by that of `step` updates."""
        self._policy = SentPolicy(step, variables)
        self._policy_step, self._policy_time = step, time.monotonic()
        self._set_learner_step(step)
        self._save_sometimes()

    def order_updates(self, step: int) -> LearnOrder:
        """Returns the order for a learner that has completed `step` updates."""
        self._set_learner_step(step)
        until = self._config.count_updates(self._num_collected)
        return LearnOrder(until, self._replay.addresses(), bool(self._stop_reason))

    def _set_learner_step(self, step: int) -> None:
        # A restarted learner continues from an earlier step.
        self._rates["learner"].add(max(step - self._learner_step, 0), time.monotonic())
        self._learner_step = step

    # --- Collectors

    @property
    def _num_collected(self) -> int:
        return sum(self._counts.values())

    def order_steps(
        self, collector: str, life: str, num_collected: int, returns: Sequence[float], policy_step: int
    ) -> CollectOrder:
        """Returns the order for a collector.

        Args:
          collector: name of the collector.
          life: identifier of this start of its process, after which it counts from 0.
          num_collected: number of steps that it has collected and written since then.
          returns: returns of its last episodes.
          policy_step: number of updates of its policy; -1 before the first.
        """
        key = f"{collector}/{life}"
        self._rates["collectors"].add(num_collected - self._counts.get(key, 0), time.monotonic())
        self._counts[key] = num_collected
        if self._stop_reason:  # The collector ends.
            self._collectors.pop(collector, None)
        else:
            self._collectors[collector] = _CollectorState(policy_step, list(returns), time.monotonic())
        self._save_sometimes()
        config, total = self._config, self._num_collected
        num_steps = min(config.update_every, max(self._max_collected() - total, 0))
        is_random = not config.num_offline_updates and total < config.warmup_steps
        policy = None if self._policy is None or self._policy.step == policy_step else self._policy
        return CollectOrder(num_steps, is_random, self._replay.addresses(), policy, bool(self._stop_reason))

    def _alive_collectors(self) -> list[_CollectorState]:
        now = time.monotonic()
        return [collector for collector in self._collectors.values() if now - collector.secs < ALIVE_SECS]

    def _max_collected(self) -> int:
        """Returns the number of environment steps that may be collected up to now."""
        config = self._config
        if self._learner_step < config.num_offline_updates:
            return 0
        num_used = (self._learner_step - config.num_offline_updates) / config.updates_per_step
        return min(config.online_steps, config.warmup_steps + int(num_used) + self._lead_steps)

    # --- The evaluator

    def order_evaluation(self, evaluated_step: int) -> EvaluateOrder:
        """Returns the order for the evaluator, which last evaluated the policy of `evaluated_step` updates.

        An evaluation is due for the first policy, for the first one after each multiple of `eval_every` updates, and
        for the last one.
        """
        every, step = self._config.eval_every, self._policy_step
        is_last = bool(self._tasks) and not any(self._list_tasks("waiting", "running"))
        is_next = step // every > evaluated_step // every or (is_last and step > evaluated_step)
        return EvaluateOrder(self._policy if is_next else None, bool(self._stop_reason))

    def report_evaluation(self, step: int, mean_return: float, score: float | None) -> None:
        """Records an evaluation of the policy of `step` updates."""
        self._evaluated = {"step": step, "mean_return": mean_return, **({} if score is None else {"score": score})}
        self._save()

    # --- Replay servers

    def report_shard(self, shard: int, report: ShardReport) -> ReplayOrder:
        """Records the state of a replay server, and returns its order; see `ReplayShards`."""
        return self._replay.report(shard, report, is_ending=self._is_ending())

    def _is_ending(self) -> bool:
        """Returns whether the replay servers may end: all who use them have, or do not in time."""
        if not self._stop_reason:
            return False
        is_used = any(self._list_tasks("running")) or bool(self._alive_collectors())
        return not is_used or time.monotonic() - self._stop_time > _END_SECS

    def commit_replay(self, request: str) -> bool:
        """Makes all replay servers write checkpoints that belong together; returns whether they have.

        Args:
          request: a new name; the same one in repeated calls.
        """
        return self._replay.commit(request)

    def shards(self) -> dict[int, str]:
        """Returns the addresses of the replay servers that have reported within the last seconds, by shard."""
        return self._replay.addresses()

    # --- The whole

    def stop(self, reason: str) -> None:
        """Makes all processes save what they have and end; the first reason is kept."""
        if not self._stop_reason:
            self._stop_reason, self._stop_time = reason, time.monotonic()
        self._save()

    def status(self) -> dict[str, Any]:
        """Returns the progress of the run.

        `step`, `updates_per_sec` and `loss` are those of the learner; `num_collectors`, `collected_steps`,
        `collected_per_sec` and `collected_return` those of the collectors; `policy_age_updates` is the number of
        updates since the oldest policy with which one collects, and `policy_age_secs` the time since a policy was
        sent; `replay_size` is the number of items by table, and
        `updates_per_step` the number of updates per collected step; `evaluation` is the last one.
        """
        collected, collectors = self._num_collected, self._alive_collectors()
        rates = {name: rate.per_second(time.monotonic()) or 0.0 for name, rate in self._rates.items()}
        returns = [value for collector in collectors for value in collector.returns]
        oldest = min((collector.policy_step for collector in collectors), default=self._policy_step)
        online_updates = max(self._learner_step - self._config.num_offline_updates, 0)
        return {
            "step": self._learner_step,
            "updates_per_sec": rates["learner"],
            "loss": self._learn_info.get("loss"),
            "num_collectors": len(collectors),
            "collected_steps": collected,
            "collected_per_sec": rates["collectors"],
            "collected_return": sum(returns) / len(returns) if returns else None,
            "policy_step": self._policy_step,
            "policy_age_updates": max(self._learner_step - max(oldest, 0), 0),
            "policy_age_secs": time.monotonic() - self._policy_time,
            "num_shards": len(self._replay.addresses()),
            "replay_size": self._replay.sizes(),
            "updates_per_step": online_updates / collected if collected else 0.0,
            "evaluation": dict(self._evaluated),
            "stop_reason": self._stop_reason,
        }

    def _save_sometimes(self) -> None:
        if time.monotonic() - self._saved_time > _SAVE_SECS:
            self._save()

    def _save(self) -> None:
        self._saved_time = time.monotonic()
        save_json(self._path, {name: getattr(self, f"_{name}") for name in _SAVED})


class _CollectorState(NamedTuple):
    policy_step: int
    returns: list[float]
    secs: float
