"""Tasks that are chosen by the progress of learning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.specs import ArraySpec, Nest

from .env_info import add_info, make_info_spec
from .environment import Environment, RandomWrapper
from .multitask import ACTION, TASK_ID
from .time_steps import FIRST, LAST, TimeStep

_FIELDS = ("curriculum_task_count", "curriculum_task_score", "curriculum_task_prob")


class TaskProgress:
    """The probabilities of tasks, by the progress of their scores.

    Of each task, two exponential moving averages of the returns of episodes are kept, and one of their lengths:

        progress_i = max(current_i - past_i, 0) / length_i
        p_i        = softmax(log(progress_favor) * min(1, n / warmup) * progress_i / max_j progress_j)

    The averages are divided by `1 - (1 - rate)^count`, so that they are not biased towards 0. n is the number of
    episodes, and warmup is `num_tasks * warmup_period`. The task with the fastest progress is thus `progress_favor`
    times as likely as one without progress, and at first all are equally likely. ALF's `CurriculumWrapper`.

    Attributes:
      counts: float64 `[num_tasks]`, number of episodes of each task.
      probabilities: float64 `[num_tasks]`, with the sum 1.
    """

    def __init__(
        self,
        num_tasks: int,
        *,
        progress_favor: float = 10.0,
        current_score_update_rate: float = 1e-3,
        past_score_update_rate: float = 5e-4,
        warmup_period: int = 100,
    ):
        """Starts without episodes; see `Curriculum` for the arguments."""
        require_number("progress_favor", progress_favor, 1)
        require_number("current_score_update_rate", current_score_update_rate, 0, 1)
        require_number("past_score_update_rate", past_score_update_rate, 0, current_score_update_rate)
        if not past_score_update_rate:
            raise ValueError("past_score_update_rate must be above 0, got 0")
        require_count("warmup_period", warmup_period, 0)
        self._scale, self._warmup = math.log(progress_favor), warmup_period * num_tasks
        self._rates = np.array([[current_score_update_rate], [past_score_update_rate], [current_score_update_rate]])
        self._sums = np.zeros((3, num_tasks))
        self.counts = np.zeros(num_tasks)
        self.probabilities = np.full(num_tasks, 1 / num_tasks)

    def add(self, task: int, episode_return: float, length: int) -> None:
        """Adds an episode of a task, and updates the probabilities."""
        self.counts[task] += 1
        values = np.array([episode_return, episode_return, length])
        self._sums[:, task] += self._rates[:, 0] * (values - self._sums[:, task])
        current, past, lengths = self._averages
        progress = np.maximum(current - past, 0) / np.maximum(lengths, 1)
        scale = self._scale * min(1.0, self.counts.sum() / self._warmup if self._warmup else 1.0)
        logits = scale * progress / max(progress.max(), np.finfo(float).tiny)
        weights = np.exp(logits - logits.max())
        self.probabilities = weights / weights.sum()

    @property
    def scores(self) -> np.ndarray:
        """The current average return of each task, float64 `[num_tasks]`; 0 without episodes."""
        return self._averages[0]

    @property
    def _averages(self) -> np.ndarray:
        weights = -np.expm1(self.counts * np.log1p(-np.minimum(self._rates, 1 - 1e-16)))
        return np.divide(self._sums, weights, out=np.zeros_like(self._sums), where=weights > 0)


class Curriculum(RandomWrapper):
    """Chooses the tasks of a `Multitask` so that those with faster progress are more frequent; see `TaskProgress`.

    The actions of the wrapped environment are `{"task_id": ..., "action": ...}`; those of this wrapper are without the
    task. A task is sampled whenever an episode ends. Its `env_info` has three more fields, dicts with a number for each
    task: `curriculum_task_count`, `curriculum_task_score` and `curriculum_task_prob`. They are 0 except in LAST steps.

    ALF's `CurriculumWrapper` requires a batch, counts an episode's first step as part of its length, and with several
    episodes that end in the same step updates the lengths of all of their tasks for each one.
    """

    def __init__(
        self,
        env: Environment,
        progress_favor: float = 10.0,
        current_score_update_rate: float = 1e-3,
        past_score_update_rate: float = 5e-4,
        warmup_period: int = 100,
        *,
        task_names: Sequence[str] | None = None,
        seed: int = 0,
    ):
        """Wraps an environment.

        Args:
          env: a `Multitask` with the selection 'action', or a batch of these. Its environments reset themselves.
          task_names: a name for each task; None for those of the environment, or 'task_0' and so on.
          progress_favor: probability of the task with the fastest progress relative to one without, at least 1.
          current_score_update_rate: rate of the moving average of the current scores, in (0, 1].
          past_score_update_rate: rate of that of the past scores, in (0, current_score_update_rate].
          warmup_period: number of episodes per task during which the preference increases.
          seed: seed of the tasks; `seed(...)` replaces it.

        Raises:
          ValueError: If a number is out of range, or the names are not one for each task.
          TypeError: If the environment is not of this kind.
        """
        super().__init__(env, seed)
        spec: Any = env.action_spec()
        info_spec = env.env_info_spec()
        if not isinstance(spec, dict) or spec.keys() != {TASK_ID, ACTION} or TASK_ID not in (info_spec or {}):
            raise TypeError(
                f"Curriculum requires a Multitask with selection='action', got actions {spec}; wrap the tasks in one"
            )
        num_tasks = int(spec[TASK_ID].maximum) + 1
        if task_names is None:
            task_names = getattr(env, "task_names", None) or [f"task_{index}" for index in range(num_tasks)]
        if len(set(task_names)) != num_tasks or len(task_names) != num_tasks:
            raise ValueError(f"task_names must be {num_tasks} different names, one for each task, got {task_names}")
        self.progress = TaskProgress(
            num_tasks,
            progress_favor=progress_favor,
            current_score_update_rate=current_score_update_rate,
            past_score_update_rate=past_score_update_rate,
            warmup_period=warmup_period,
        )
        self._names = tuple(task_names)
        number = ArraySpec((), np.dtype(np.float32))
        statistics = {name: dict.fromkeys(self._names, number) for name in _FIELDS}
        self._time_step_spec = self._time_step_spec._replace(
            prev_action=spec[ACTION], env_info=make_info_spec(env, "Curriculum", **statistics)
        )
        size = self.batch_size or 1
        self._returns, self._lengths = np.zeros(size), np.zeros(size, np.int64)
        self._next_tasks = self._sample(size)

    def seed(self, seed: int) -> None:
        """Sets the seed of the tasks, and that of the wrapped environment."""
        super().seed(seed)
        self._next_tasks = self._sample(len(self._next_tasks))

    def _auto_reset(self, action: Nest) -> TimeStep:
        return self._step(action)  # The wrapped environment resets itself, to learn of the task.

    def _step(self, action: Nest) -> TimeStep:
        tasks = self._next_tasks if self.batched else self._next_tasks[0]
        return self._transform_time_step(self.env.advance({TASK_ID: tasks.copy(), ACTION: action}))

    def _transform_time_step(self, time_step: TimeStep) -> TimeStep:
        columns = (time_step.step_type, time_step.has_failed, time_step.env_info[TASK_ID])
        step_types, has_failed, tasks = map(np.atleast_1d, columns)
        is_first, is_last = step_types == FIRST, step_types == LAST
        rewards = np.asarray(time_step.reward, np.float64).reshape(len(is_first), -1).sum(axis=1)
        self._returns = np.where(is_first, 0, self._returns + rewards)
        self._lengths = np.where(is_first, 0, self._lengths + 1)
        for row in np.flatnonzero(is_last & ~has_failed):  # The return of an episode that was lost is unknown.
            self.progress.add(int(tasks[row]), float(self._returns[row]), int(self._lengths[row]))
        if is_last.any():
            self._next_tasks = np.where(is_last, self._sample(len(is_last)), self._next_tasks)
        shown = time_step.step_type == LAST
        numbers = (self.progress.counts, self.progress.scores, self.progress.probabilities)
        info = {name: self._name_tasks(values, shown) for name, values in zip(_FIELDS, numbers, strict=True)}
        return add_info(time_step._replace(prev_action=time_step.prev_action[ACTION]), **info)

    def _name_tasks(self, values: np.ndarray, shown: Any) -> dict[str, Any]:
        return {
            name: np.where(shown, np.float32(value), np.float32(0))[()]
            for name, value in zip(self._names, values, strict=True)
        }

    def _sample(self, size: int) -> np.ndarray:
        return self._random.choice(len(self._names), size, p=self.progress.probabilities)
