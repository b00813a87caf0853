"""A learner that gets its tasks and data from other processes, and sends them its policy, after DI-engine's."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from .agents import make_agent
from .hooks import LearnerHook, LogShowHook, SaveCkptHook, make_hooks
from .hooks.hook import Position
from .learner import Learner
from .random_shift import RandomShift
from .runs import POLICY_FOLDER
from .tasks import read_policy, require_task

_CLOSED = "the learner was closed"


class BaseCommLearner(abc.ABC):
    """A learner for one task after another, which communicates with other processes through three functions.

    A subclass defines where batches come from, and where the policy and the learner's progress go. `run` trains one
    task; a process that serves many calls `start`, then `run` for each task, and `close` at the end. The names are
    DI-engine's. Its `get_data` returns the items of one batch; here batches are read while the graph of the updates
    runs, so that `get_data` returns their source, and is called once per task.

    Attributes:
      learner: the `Learner` of the running task; None between two tasks.
      is_closed: whether no further task is trained: before `start`, and after `close`.
    """

    def __init__(self) -> None:
        """Creates a closed learner."""
        self.learner: Learner | None = None
        self.is_closed = True

    def start(self) -> None:
        """Accepts tasks."""
        self.is_closed = False

    def close(self) -> None:
        """Accepts no further task; the one that is running saves a checkpoint and ends. Idempotent."""
        self.is_closed = True
        if self.learner is not None:
            self.learner.stop(_CLOSED)

    @abc.abstractmethod
    def get_data(self, batch_size: int) -> Any:
        """Returns the source of batches of this size: a feed or a dataset, as for `Learner`."""

    @abc.abstractmethod
    def send_policy(self, state: dict[str, Any]) -> None:
        """Sends the policy: `variables`, the list of its variables, and `step`, the number of updates."""

    @abc.abstractmethod
    def send_learn_info(self, info: dict[str, Any]) -> None:
        """Sends the progress: see `make_learn_info`."""

    @property
    def hooks4call(self) -> list[LearnerHook]:
        """The hooks that call `send_policy` and `send_learn_info`, new ones for each task.

        The policy is sent before the run, every 100 iterations and after the run; the progress every 10 iterations and
        after the run.
        """

        def send_policy(learner: Learner) -> None:
            variables = [variable.numpy() for variable in tf.nest.flatten(learner.agent.collect_policy.variables())]
            self.send_policy({"variables": variables, "step": learner.step})

        def send_learn_info(learner: Learner, *, is_finished: bool = False) -> None:
            self.send_learn_info(make_learn_info(learner, is_finished=is_finished))

        return [
            _SendHook("send_policy", send_policy, "before_run"),
            _SendHook("send_policy", send_policy, "after_iter", 100),
            _SendHook("send_policy", send_policy, "after_run"),
            _SendHook("send_learn_info", send_learn_info, "after_iter", 10),
            _SendHook("send_learn_info", partial(send_learn_info, is_finished=True), "after_run"),
        ]

    def run(self, task_info: Mapping[str, Any]) -> int:
        """Trains a task, from its last checkpoint on if there is one, and exports the policy.

        Args:
          task_info: the task; see `tasks.make_task`.

        Returns:
          The number of completed iterations, which is lower than the task's if `close` ended it.

        Raises:
          RuntimeError: If the learner is closed.
          ValueError: If the task is incomplete.
          Exception: See `Learner` and `Learner.start`.
        """
        if self.is_closed:
            raise RuntimeError("the learner is closed; call start before run")
        with self._create_learner(task_info) as learner:
            self.learner = learner
            try:
                allow_mismatch = task_info["learner"]["allow_config_mismatch"]
                learner.load_checkpoint(allow_config_mismatch=allow_mismatch)
                with learner.running():
                    if self.is_closed:  # While the task was being set up.
                        learner.stop(_CLOSED)
                    self._train(learner, int(task_info["learner"]["num_iterations"]))
                learner.export_policy(learner.run_dir / POLICY_FOLDER)
            finally:
                self.learner = None
            return learner.step

    def _train(self, learner: Learner, num_iterations: int) -> None:
        """Trains a running learner; to be overridden if its pace depends on other processes."""
        learner.advance(num_iterations)

    def _create_learner(self, task_info: Mapping[str, Any]) -> Learner:
        """Creates the learner of a task, with the data of `get_data`, the hooks of `hooks4call` and the task's own."""
        require_task(task_info)
        config, policy = task_info["learner"], read_policy(task_info["policy"])
        agent = make_agent(policy.algo, policy.time_step_spec, policy.action_spec, **policy.hyperparameters)
        hooks = [
            LogShowHook(every=config["log_every"]),
            SaveCkptHook(every=config["checkpoint_every"]),
            SaveCkptHook(position="after_run"),
            *make_hooks(config["hooks"]),
            *self.hooks4call,
        ]
        shift, seed = config["random_shift"], config["seed"]
        return Learner(
            config["run_dir"],
            agent,
            self.get_data(config["batch_size"]),
            hooks=hooks,
            augment=RandomShift(shift, agent.time_step_spec.observation, seed=seed) if shift else None,
            jit_compile=config["jit_compile"],
            keep_checkpoints=config["keep_checkpoints"],
            checkpoint_every_secs=config["checkpoint_every_secs"],
            identity=config["identity"],
        )


class _SendHook(LearnerHook):
    """A hook that calls one of the functions that send."""

    def __init__(self, name: str, send: Callable[[Learner], None], position: Position, every: int = 1):
        super().__init__(name, 100, position=position, every=every)
        self._send = send

    def __call__(self, learner: Learner) -> None:
        """Calls the function with the learner."""
        self._send(learner)


def make_learn_info(learner: Learner, *, is_finished: bool) -> dict[str, Any]:
    """Returns the progress of a learner: plain numbers, by name.

    `step` is the number of completed iterations, `loss` that of the last one, `is_finished` whether the run has ended,
    and `num_priorities`, `mean_priority` and `max_priority` describe the TD errors of the last call's items; without
    priorities they are 0.
    """
    errors = np.abs(np.asarray(learner.priority_info.get("priority", ()), np.float64))
    return {
        "step": learner.step,
        "loss": float(learner.learn_info.get("loss", np.nan)),
        "is_finished": is_finished,
        "num_priorities": len(errors),
        "mean_priority": float(errors.mean()) if len(errors) else 0.0,
        "max_priority": float(errors.max(initial=0.0)),
    }
