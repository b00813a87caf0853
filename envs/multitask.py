"""Several environments as the tasks of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.specs import Nest

from .batched_environment import read_common_spec
from .env_info import add_info, make_info_spec
from .env_specs import BoundedArraySpec
from .environment import Environment, SpecifiedEnvironment
from .time_steps import TimeStep, keep_untransformed

TASK_ID, ACTION, OBSERVATION = "task_id", "action", "observation"

Selection = Literal["action", "random", "cycle"]


class Multitask(SpecifiedEnvironment):
    """Several environments of the same specs, one of which is the task of each episode. ALF's `MultitaskWrapper`.

    `env_info["task_id"]` of each time step is its task. The task of an episode is

    - with the selection 'action' the `task_id` of the last action, including the one with which `step` starts the
      episode; actions are then `{"task_id": ..., "action": ...}`. Before the first action it is random.
    - with 'random' any of the tasks, and with 'cycle' the one after that of the previous episode.

    ALF has only the selection 'action'. There a different `task_id` also switches the task in the middle of an episode,
    and the first step of an episode is that of the previous task; here every episode has one task.

    Wrappers belong around the environment of each task rather than around the `Multitask`, which would not receive the
    actions that start episodes.

    Attributes:
      task_names: the names of the tasks.
    """

    def __init__(
        self,
        envs: Sequence[Environment],
        task_names: Sequence[str] | None = None,
        env_id: int | None = None,
        *,
        selection: Selection = "action",
        observe_task: bool = False,
        seed: int = 0,
    ):
        """Combines environments, which are closed together.

        Args:
          envs: the environments, not batched, at least one.
          task_names: a name for each of them; None for 'task_0' and so on.
          env_id: index of the environment in a batch; None for 0.
          selection: how the task of an episode is chosen: 'action', 'random' or 'cycle'.
          observe_task: whether observations become `{"observation": ..., "task_id": ...}`.
          seed: seed of random tasks; `seed(...)` replaces it.

        Raises:
          ValueError: If there are no environments, names are not unique or of a different number, the selection is
            unknown, or an `env_info` has a field 'task_id'.
          TypeError: If an environment is batched, or its `env_info` is not a dict.
          SpecMismatchError: If the specs differ; the message names the path.
        """
        super().__init__()
        spec = read_common_spec(envs, "Multitask")
        names = [f"task_{index}" for index in range(len(envs))] if task_names is None else list(task_names)
        if len(names) != len(envs) or len(set(names)) != len(names):
            raise ValueError(f"task_names must be {len(envs)} different names, one for each environment, got {names}")
        require_one_of("selection", selection, get_args(Selection))
        self.task_names = tuple(names)
        self._envs, self._selection, self._observes_task = tuple(envs), selection, observe_task
        self._env_id = np.int32(env_id or 0)
        task_spec = BoundedArraySpec((), np.dtype(np.int64), 0, len(envs) - 1)
        spec = spec._replace(env_info=make_info_spec(envs[0], "Multitask", task_id=task_spec))
        if observe_task:
            spec = spec._replace(observation={OBSERVATION: spec.observation, TASK_ID: task_spec})
        if selection == "action":
            spec = spec._replace(prev_action={TASK_ID: task_spec, ACTION: spec.prev_action})
        self._time_step_spec = spec
        self.seed_tasks(seed)

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return len(self._envs)

    @property
    def task_id(self) -> int:
        """The task of the current episode, or of the first one."""
        return self._task

    @property
    def env(self) -> Environment:
        """The environment of the current task."""
        return self._envs[self._task]

    def select_task(self, task_id: int) -> None:
        """Chooses the task of the next episode.

        Raises:
          ValueError: If there is no such task.
        """
        if not 0 <= task_id < self.num_tasks:
            raise ValueError(f"task_id must be an integer from 0 to {self.num_tasks - 1}, got {task_id}")
        self._next_task = int(task_id)

    def seed(self, seed: int) -> None:
        """Sets the seed of the environments, which is the same for all, and of the tasks."""
        self.seed_tasks(seed)
        for env in self._envs:
            env.seed(seed)

    def seed_tasks(self, seed: int) -> None:
        """Sets the seed of the tasks alone."""
        self._random = np.random.default_rng(seed)
        self._task = -1
        self._next_task = 0 if self._selection == "cycle" else int(self._random.integers(self.num_tasks))

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns what the environment of the current task renders."""
        return self.env.render(mode)

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs:
            env.close()

    def advance(self, action: Nest) -> TimeStep:
        """Executes an action; see `Environment`."""
        # An action that starts an episode is not checked otherwise, and need not have a task.
        if self._selection == "action" and isinstance(action, dict) and TASK_ID in action:
            self.select_task(int(action[TASK_ID]))
        return super().advance(action)

    def _reset(self) -> TimeStep:
        self._task = self._next_task
        if self._selection == "random":
            self._next_task = int(self._random.integers(self.num_tasks))
        elif self._selection == "cycle":
            self._next_task = (self._task + 1) % self.num_tasks
        time_step = self.env.reset()
        return self._convert(time_step, self._add_task(time_step.prev_action))

    def _step(self, action: Nest) -> TimeStep:
        return self._convert(self.env.advance(action[ACTION] if self._selection == "action" else action), action)

    def _add_task(self, action: Nest) -> Nest:
        return {TASK_ID: np.int64(self._task), ACTION: action} if self._selection == "action" else action

    def _convert(self, before: TimeStep, action: Nest) -> TimeStep:
        task = np.int64(self._task)
        time_step = add_info(before._replace(prev_action=action, env_id=self._env_id), task_id=task)
        if not self._observes_task:
            return time_step
        observed = time_step._replace(observation={OBSERVATION: before.observation, TASK_ID: task})
        return keep_untransformed(before, observed)
