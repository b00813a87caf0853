"""Goals of transitions: observations of the same dataset, which are drawn when a batch is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tree

from rlds2reverb.adders.places import Places, Take
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.specs import Nest

from .item_index import ItemIndex

#: Fields of what an agent with goals observes.
STATE, GOAL = fields.OBSERVATION, "goal"
#: Field of Gymnasium's goal environments with the goal that an observation achieves.
ACHIEVED_GOAL = "achieved_goal"
ACTOR_GOAL, LOW_GOAL, SUBGOAL, SUBGOAL_STATE = "actor_goal", "low_goal", "subgoal", "subgoal_state"
#: Number of random numbers for one goal, and for all goals of an item.
_NUM_PER_GOAL = 3
NUM_NUMBERS = 2 * _NUM_PER_GOAL


def get_state(observation: Nest) -> Nest:
    """Returns the part of an observation that is not a goal: all of it, unless it is that of a goal environment."""
    return observation[STATE] if _has_goals(observation) else observation


def get_goal(observation: Nest) -> Nest:
    """Returns the goal that an observation achieves: all of it, or `achieved_goal` of a goal environment."""
    return observation[ACHIEVED_GOAL] if _has_goals(observation) else observation


def add_goal(observation: Nest, reached: Nest) -> dict[str, Nest]:
    """Returns what an agent observes whose goal is to reach what another observation shows.

    Args:
      observation: nest of arrays, or of their specs or statistics.
      reached: the observation with the goal, a nest like `observation`.

    Returns:
      dict with the fields 'observation' and 'goal'.
    """
    return {STATE: get_state(observation), GOAL: get_goal(reached)}


def _has_goals(observation: Nest) -> bool:
    return isinstance(observation, Mapping) and observation.keys() >= {STATE, ACHIEVED_GOAL}


@dataclass(frozen=True)
class GoalDistribution:
    """The distribution of the goal g of a transition from s_t, in an episode of T transitions.

        g = s_t                     with probability `current`
        g = s_{min(t + k, T - 1)}   with probability `future`: k ~ Geometric(1 - gamma) from 1, or t + k uniform in
                                    {t + 1, ..., T - 1}
        g = the first observation of a random transition, with probability `random`

    Park et al. (2025), "OGBench", arXiv:2410.20092, appendix on implementation details, and impls/utils/datasets.py of
    the authors. As there, s_T is never a goal, because no transition starts in it that would reach it; all future goals
    of s_{T-1} are itself. The authors' code draws uniform goals by rounding, which halves the probabilities of the
    first and the last one; here they are equal.

    Attributes:
      current: probability of the current state.
      future: probability of a later state of the episode.
      random: probability of any state of the dataset.
      geometric: whether k is geometric rather than uniform.
    """

    current: float = 0.0
    future: float = 1.0
    random: float = 0.0
    geometric: bool = False

    def __post_init__(self) -> None:
        shares = self.current, self.future, self.random
        for share in shares:
            require_number("each probability of a goal", share, 0, 1)
        if not np.isclose(sum(shares), 1):
            raise ValueError(
                f"the probabilities of current, future and random goals must add up to 1, got {shares}; change one"
            )

    def sample(
        self, rows: np.ndarray, last_rows: np.ndarray, numbers: np.ndarray, index: ItemIndex, *, gamma: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the row of each goal, and that of the last state on the way to it: the end of the episode if random.

        Args:
          rows: int64 `[N]`, the rows of the states s_t.
          last_rows: int64 `[N]`, the rows of the states s_{T-1}.
          numbers: uint64 `[N, 3]`, independent random numbers.
          index: the index of all transitions, for random goals.
          gamma: parameter of the geometric distribution, in [0, 1].
        """
        kind, place = _to_fraction(numbers[:, 0]), _to_fraction(numbers[:, 1])
        remaining = last_rows - rows
        if self.geometric:
            with np.errstate(divide="ignore"):  # Without discounting, the goal is the last state.
                steps = 1 + np.floor(np.abs(np.log(place) / np.log(np.float64(gamma))))
        else:
            steps = 1 + np.floor(place * remaining)
        future = rows + np.minimum(steps, remaining).astype(np.int64)
        anywhere = index.find_places((numbers[:, 2] % np.uint64(index.num_items)).astype(np.int64)).row
        is_random = kind >= 1 - self.random
        goals = np.where(is_random, anywhere, np.where(kind < self.current, rows, future))
        return goals, np.where(is_random, last_rows, goals)


@dataclass(frozen=True)
class GoalSampling:
    """The goals of an item: that of its observations, from which its reward follows, and others that actors learn from.

        reward = 1 if g = s_t else 0, minus 1 if `is_negative`;   discount = 0 if g = s_t else 1

    The discount is also 0 if s_{t+1} is unknown, so that nothing is bootstrapped from the zeros that stand for it.

    The item keeps its action. Its observation and next observation become dicts of 'observation' and 'goal', as
    environments with goals return them. The goals of actors are in `policy_info`, a dict of observations:

    - `actor_goal`, from `actor`: the goal of an actor, or of HIQL's high-level actor.
    - With `subgoal_steps` k also HIQL's `low_goal`, s_{min(t + k, T - 1)}, the goal of the low-level actor; `subgoal`
      and `subgoal_state`, the goal and the state that lie k steps ahead on the way to `actor_goal`, or this goal itself
      if it is nearer (Park et al. 2023, arXiv:2307.11949, eqs. 6 and 7).

    Rewards and terminal flags of the dataset are not used, as in OGBench.

    Attributes:
      observed: distribution of the goals in observations.
      actor: distribution of the goals of actors; None if these learn from those in the observations.
      gamma: parameter of geometric distributions, in [0, 1].
      is_negative: whether rewards are -1 and 0 rather than 0 and 1.
      subgoal_steps: number of steps k to a subgoal; None for no subgoals.
    """

    observed: GoalDistribution
    actor: GoalDistribution | None = None
    gamma: float = 0.99
    is_negative: bool = True
    subgoal_steps: int | None = None

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, 0, 1)
        if self.subgoal_steps is not None:
            require_count("subgoal_steps", self.subgoal_steps)

    def relabel(
        self,
        items: dict[str, Nest],
        take: Take,
        places: Places,
        numbers: np.ndarray,
        index: ItemIndex,
    ) -> dict[str, Nest]:
        """Returns transitions with goals.

        Args:
          items: transitions of one step, as `Transitions` reads them.
          take: function that reads steps.
          places: their places.
          numbers: uint64 `[N, NUM_NUMBERS]`, independent random numbers.
          index: the index of all transitions.
        """

        def read(places: np.ndarray) -> Nest:
            return take(places, (fields.OBSERVATION,))[fields.OBSERVATION]

        rows, last_rows = places.row, places.last - 1
        next_observation = f"next_{fields.OBSERVATION}"
        is_known = (rows < last_rows) | ~_find_placeholders(items[next_observation], items[fields.DISCOUNT])
        goals, _ = self.observed.sample(rows, last_rows, numbers[:, :_NUM_PER_GOAL], index, gamma=self.gamma)
        reached, is_reached = read(goals), goals == rows
        items = {
            **items,
            fields.OBSERVATION: add_goal(items[fields.OBSERVATION], reached),
            fields.REWARD: is_reached.astype(np.float32) - np.float32(self.is_negative),
            fields.DISCOUNT: (~is_reached & is_known).astype(np.float32),
            next_observation: add_goal(items[next_observation], reached),
        }
        if self.actor is None:
            return items
        goals, limits = self.actor.sample(rows, last_rows, numbers[:, _NUM_PER_GOAL:], index, gamma=self.gamma)
        further = {ACTOR_GOAL: get_goal(read(goals))}
        if self.subgoal_steps is not None:
            further[LOW_GOAL] = get_goal(read(np.minimum(rows + self.subgoal_steps, last_rows)))
            subgoals = read(np.minimum(rows + self.subgoal_steps, limits))
            further |= {SUBGOAL: get_goal(subgoals), SUBGOAL_STATE: get_state(subgoals)}
        return {**items, fields.POLICY_INFO: further}


def _find_placeholders(observations: Nest, discounts: np.ndarray) -> np.ndarray:
    """Returns which final observations are unknown, bool `[N]`: they are zeros, and the dataset's discount is 0."""
    columns = [column.reshape(len(column), -1) for column in tree.flatten(observations)]
    return (discounts == 0) & ~np.any([(column != 0).any(axis=1) for column in columns], axis=0)


def _to_fraction(numbers: np.ndarray) -> np.ndarray:
    """Returns float64 in (0, 1): the first 52 bits of each number and one half, which float64 represents exactly."""
    return ((numbers >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
