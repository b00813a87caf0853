"""The data of off-policy evaluation: episodes with their rewards and returns, or goals with theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds2reverb import Transitions
from rlds2reverb.datasets.mapping.value_operations import RELATIVE_ACTIONS
from rlds2reverb.datasets.moments import mark_transitions
from rlds2reverb.datasets.steps.goals import GoalDistribution, add_goal
from rlds2reverb.datasets.steps.item_index import ItemIndex, draw_numbers, sample_uniformly
from rlds2reverb.errors import ArgumentError, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.locations import TableLocation
from rlds2reverb.types.specs import Nest

from .config import TrainingConfig
from .dataset import StepData, open_dataset
from .evaluated_policies import EvaluatedPolicy, FunctionPolicy
from .sources import open_source
from .step_info import SOURCE_FIELDS, make_step_info

#: Discount factor for policies without a run, as in `TrainingConfig`.
_GAMMA = 0.99
#: Goals of the transitions that Q-functions of policies with goals learn from: those of OGBench's values.
_GOALS = GoalDistribution(0.2, 0.5, 0.3, geometric=True)
#: Options of a run that determine which data its policy understands.
_DATA_OPTIONS = ("drop_fields", "cut_at_terminal", "store_dir", "action_bounds")
#: Number of steps that a policy or a Q-function is called with at a time.
ROWS_PER_CALL = 4096


class EvaluationSource:
    """A dataset that is opened once for all policies that understand the same data."""

    def __init__(self, source: Any):
        opened = open_source(source)
        if isinstance(opened, TableLocation):
            raise SourceError(
                "off-policy evaluation requires the episodes of a dataset, but a table contains only items"
            )
        if opened.statistics.get(RELATIVE_ACTIONS):
            raise SourceError("off-policy evaluation requires absolute actions; leave 'delta' out of the mapping")
        self._source, self._opened = opened, dict[str, StepData]()

    def load(self, policy: Any) -> EvaluatedPolicy:
        """Returns a policy; a function takes the specs of the data."""
        if not callable(policy) or hasattr(policy, "time_step_spec"):
            return EvaluatedPolicy(policy)
        is_discrete = np.issubdtype(np.asarray(next(iter(self._source)).steps[fields.ACTION]).dtype, np.integer)
        data = self._open("dqn" if is_discrete else "td3", {}, ())
        return EvaluatedPolicy(FunctionPolicy(policy, data.time_step_spec, data.action_spec))

    def open(self, policy: EvaluatedPolicy, other_fields: Sequence[str]) -> StepData:
        """Returns the data for a policy; raises as `open_data`."""
        saved = {} if policy.run is None else policy.run.configuration
        options = {name: saved[name] for name in _DATA_OPTIONS if saved.get(name)}
        return self._open("gcbc" if policy.has_goals else "dqn" if policy.is_discrete else "td3", options, other_fields)

    def _open(self, algo: str, options: dict[str, Any], other_fields: Sequence[str]) -> StepData:
        config = TrainingConfig(algo, env=None, **options)
        key = repr((config.algo, options, other_fields))
        if key not in self._opened:
            data = open_dataset(self._source, config, other_fields=other_fields)
            assert isinstance(data, StepData)
            self._opened[key] = data
        return self._opened[key]


class EvaluationData:
    """The episodes that one policy is evaluated with.

    Rows are those of the episodes that are used, N steps of E episodes, of which R begin a transition. A policy with
    goals has a goal for each transition and for each first state, which are rows of the dataset.

    Attributes:
      dataset: the dataset.
      gamma: discount factor.
      is_used: whether each episode of the dataset is used, bool.
      is_held_out: whether these are episodes that the policy's run held out.
      is_trained_on: whether the policy was trained on them.
      num_steps: number of steps of each episode, int64 [E]; `lengths` that of transitions.
      starts: row at which each transition begins, int64 [R].
      firsts: row at which each episode begins, int64 [E].
      known: indices of the transitions whose next observation is known, or does not matter.
      rewards: rewards of transitions, float64 [R]; `env_discounts` are the discounts of the environment.
      returns: discounted returns from the beginning of each transition, float64 [R]; `first_returns` from that of each
        episode, [E].
      possible_returns: lowest, mean and highest discounted return, for what the data leave open: the extremes are those
        from any step, the mean is that of episodes. The rewards of truncated episodes count as if they continued.
      goals: rows of the dataset, int64 [R]; None without goals. `first_goals` are those of first states, [E].
    """

    def __init__(
        self, policy: EvaluatedPolicy, dataset: StepData, *, gamma: float | None, held_out: bool | None, seed: int
    ):
        """Chooses the episodes, and draws goals if the policy has any.

        Args:
          policy: the policy.
          dataset: the dataset.
          gamma: see `OffPolicySettings`, as for `held_out`.
          held_out: whether to use only episodes that the run held out.
          seed: seed of the goals.

        Raises:
          ArgumentError: If no episodes were held out, but they are asked for.
          SpecMismatchError: If the policy does not match the data.
        """
        self.dataset = dataset
        policy.require_match(dataset.time_step_spec.observation)
        saved = {} if policy.run is None else policy.run.configuration
        self.gamma = saved.get("gamma", _GAMMA) if gamma is None else gamma
        steps = dataset.items.steps
        self.is_used, self.is_held_out = self._find_episodes(policy, held_out, steps.num_steps > 1)
        self.num_steps = steps.num_steps[self.is_used]
        self._rows = np.flatnonzero(np.repeat(self.is_used, steps.num_steps))
        self.lengths, has_next = self.num_steps - 1, mark_transitions(self.num_steps)
        self.starts, self.firsts = np.flatnonzero(has_next), np.cumsum(self.num_steps) - self.num_steps
        self.goals: np.ndarray | None = None
        self.first_goals: np.ndarray | None = None
        if policy.has_goals:
            self._set_goals(seed)
        else:
            self._set_rewards()

    def _set_rewards(self) -> None:
        columns = self.take(np.arange(len(self._rows)), SOURCE_FIELDS)
        is_end = columns[fields.IS_TERMINAL][self.starts + 1]
        self.rewards = columns[fields.REWARD][self.starts].astype(np.float64)
        self.env_discounts = np.where(is_end, 0.0, columns[fields.DISCOUNT][self.starts].astype(np.float64))
        ends = np.cumsum(self.lengths) - 1
        # The observation after a truncated end may be missing. The discount of its transition is 0 then.
        is_unknown = ~is_end[ends] & (self.env_discounts[ends] == 0)
        self.known = np.delete(np.arange(len(self.starts)), ends[is_unknown])
        info = make_step_info(columns, self.num_steps, ("return_to_go",), gamma=self.gamma)
        self.returns = info["return_to_go"][self.starts]
        self.first_returns = info["return_to_go"][self.firsts]
        continued = self.first_returns / (1 - self.gamma**self.lengths) if self.gamma < 1 else self.first_returns
        whole = np.where(is_end[ends], self.first_returns, continued)
        every = np.append(self.returns, whole)
        self.possible_returns = every.min(), whole.mean(), every.max()

    def _set_goals(self, seed: int) -> None:
        """Draws goals, and sets the rewards and returns of the data for them."""
        num = len(self.starts)
        index = ItemIndex(self.dataset.items.steps, Transitions(1, self.gamma), self.is_used)
        places = index.find_places(np.arange(num))
        rows, last_rows = places.row, places.last
        numbers = draw_numbers(seed, 0, 1, 3 * num).reshape(num, 3)
        goals, _ = _GOALS.sample(rows, last_rows - 1, numbers, index, gamma=self.gamma)
        first_goals = index.find_places(sample_uniformly(seed, 1, 1, len(self.firsts), num)[0]).row
        self.goals, is_reached = goals, goals == rows
        self.rewards, self.env_discounts = is_reached - 1.0, 1.0 - is_reached
        self.known = np.arange(num)
        ends = np.cumsum(self.lengths) - 1
        self.returns = self._returns_until(goals, rows, last_rows)
        self.first_goals, firsts = first_goals, rows[ends - self.lengths + 1]
        self.first_returns = self._returns_until(first_goals, firsts, last_rows[ends])
        self.possible_returns = self.returns.min(), self.first_returns.mean(), self.returns.max()

    def _returns_until(self, goals: np.ndarray, rows: np.ndarray, last_rows: np.ndarray) -> np.ndarray:
        """Returns the discounted sums of -1 per transition until the goal, or until the end if it is not reached."""
        is_ahead = (rows <= goals) & (goals <= last_rows)
        num = np.where(is_ahead, goals, last_rows) - rows
        return -num if self.gamma == 1 else -(1 - self.gamma**num) / (1 - self.gamma)

    def _find_episodes(
        self, policy: EvaluatedPolicy, wanted: bool | None, is_used: np.ndarray
    ) -> tuple[np.ndarray, bool]:
        """Returns which episodes are used, bool, and whether they are held-out ones."""
        described = {} if policy.run is None else policy.run.config.get("data") or {}
        held_out = described.get("held_out")
        self.is_trained_on = is_same = described.get("fingerprint") == self.dataset.fingerprint
        if wanted and not (held_out and is_same):
            why = "was trained on different data" if held_out else "held out no episodes"
            raise ArgumentError(f"requires a run with held-out episodes of these data, but {policy.name} {why}; "
                                "pass other data, or train with a share of episodes held out", about="held_out",
                                validation=...)  # fmt: skip
        if wanted is False or not (held_out and is_same):
            return is_used, False
        chosen, self.is_trained_on = np.zeros_like(is_used), False
        chosen[np.flatnonzero(is_used)[held_out]] = True
        return chosen, True

    def map(
        self,
        function: Callable[[dict[str, Nest], int], np.ndarray],
        rows: np.ndarray,
        names: Sequence[str],
        goals: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns the results of a function of some fields and the place of the first row, for a part of rows each."""
        parts = [slice(at, at + ROWS_PER_CALL) for at in range(0, len(rows), ROWS_PER_CALL)]
        return np.concatenate(
            [
                function(self.take(rows[part], names, None if goals is None else goals[part]), part.start)
                for part in parts
            ]
        )

    def take(self, rows: np.ndarray, names: Sequence[str] | None, goals: np.ndarray | None = None) -> dict[str, Nest]:
        """Returns some fields of steps, with goals in the observations if there are any."""
        taken = self.dataset.items.take(self._rows[rows], names)
        if goals is None:
            return taken
        reached = self.dataset.items.take(goals, (fields.OBSERVATION,))[fields.OBSERVATION]
        return {**taken, fields.OBSERVATION: add_goal(taken[fields.OBSERVATION], reached)}
