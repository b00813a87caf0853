"""Hierarchical implicit Q-learning (HIQL)."""

from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets.steps.goals import ACTOR_GOAL, LOW_GOAL, SUBGOAL, SUBGOAL_STATE, GoalSampling

from .goal_agent import (
    Expectile,
    GoalValueAgent,
    Parts,
    UnitGaussianActor,
    implicit_value_loss,
    value_advantage,
    weighted_likelihood_loss,
)
from .hyperparameters import Count, NonNegative, configurable
from .networks import critic_values
from .offline_agent import TransitionBatch


class HierarchicalActor(tf.Module):
    """An actor whose high-level part chooses the representation of a subgoal, for which the low-level part acts."""

    def __init__(self, high: UnitGaussianActor, low: UnitGaussianActor, parts: Parts) -> None:
        """Sets both parts: `high` receives states and goals [B, D], and `low` states and representations."""
        super().__init__(name="actor")
        self.high, self.network, self._low, self._parts = high, low.network, low, parts

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the most likely actions for the most likely subgoals, float32 [B, A]."""
        return self._low.mode(self._aim(observation, self.high.mode(observation)))

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns sampled actions for sampled subgoals, clipped to [-1, 1], float32 [B, A]. `seed` is [2] integers."""
        seeds = tf.random.experimental.stateless_split(seed, 2)
        mode = self.high.mode(observation)
        subgoal = mode + tf.random.stateless_normal(tf.shape(mode), seeds[0])
        return self._low.sample(self._aim(observation, subgoal), seeds[1])

    def low_log_prob(self, inputs: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Returns the low-level log densities [B] of actions [B, A] for states and representations [B, S + R]."""
        return self._low.log_prob(inputs, action)

    def _aim(self, observation: tf.Tensor, subgoal: tf.Tensor) -> tf.Tensor:
        return tf.concat([self._parts.split(observation)[0], normalize_length(subgoal)], axis=-1)


def normalize_length(vectors: tf.Tensor) -> tf.Tensor:
    """Returns vectors [..., R] with their direction and the length sqrt(R)."""
    return tf.math.l2_normalize(vectors, axis=-1) * np.float32(np.sqrt(vectors.shape[-1]))


@configurable
class HIQLAgent(GoalValueAgent):
    """HIQL (Park, Ghosh, Eysenbach & Levine 2023, arXiv:2307.11949), with the settings of OGBench (arXiv:2410.20092).

        value = see `implicit_value_loss`, for V(s, phi([s; g]))
        high  = -mean(min(exp(high_alpha * (V(w, g) - V(s, g))), 100) * log pi_h(phi([s; w]) | s, g))
        low   = -mean(min(exp(low_alpha * (V(s', w) - V(s, w))), 100) * log pi_l(a | s, phi([s; w])))

    w is the subgoal that the episode reached k steps later; see `GoalSampling`. V is the mean of two functions, and phi
    a representation of length sqrt(R), which only the values train; it has no target network, so that target values see
    the current one. The policy is pi_l for the subgoal of pi_h in each step. The values of actor losses are those of
    the current networks.

    Updates and defaults are those of OGBench: impls/agents/hiql.py of github.com/seohongpark/ogbench.

    Attributes:
      representation_size: size R of the representation of a goal.
      expectile: expectile of the values.
      high_alpha: inverse temperature of the high-level actor.
      low_alpha: inverse temperature of the low-level actor.
      subgoal_steps: number of steps k to a subgoal.
    """

    representation_size: Count = 10
    expectile: Expectile = 0.7
    high_alpha: NonNegative = 3.0
    low_alpha: NonNegative = 3.0
    subgoal_steps: Count = 25

    def _make_goal_sampling(self) -> GoalSampling:
        return replace(super()._make_goal_sampling(), subgoal_steps=self.subgoal_steps)

    def _create(self) -> HierarchicalActor:
        super()._create()
        self._parts = Parts(self.observations.spec)
        sizes, size = [*self.hidden_sizes, self.representation_size], self.representation_size
        later: dict[str, Any] = {"observations": self._parts.state, "action_size": size}
        high, low = self._make_actor(size=size, name="high_actor"), self._make_actor(**later)
        self.phi = self._make_network(None, sizes, layer_norm=True, name="phi")
        self.values = self._make_network(
            None, [*self.hidden_sizes, 1], copies=2, layer_norm=True, name="value", **later
        )
        self.target_values = self.values.copy()
        self.targets = [(self.target_values, self.values)]
        self._create_optimizers(
            value_loss=[self.phi, self.values], high_actor_loss=[high.network], low_actor_loss=[low.network]
        )
        return HierarchicalActor(high, low, self._parts)

    def see_goals(self, state: Any, next_state: Any, goals: Any) -> dict[str, tuple[Any, Any]]:
        """Returns what both actors and the values for their advantages see."""
        return {
            "high": (state, goals[ACTOR_GOAL]),
            "later_high": (goals[SUBGOAL_STATE], goals[ACTOR_GOAL]),
            "subgoal": (state, goals[SUBGOAL]),
            "low": (state, goals[LOW_GOAL]),
            "next_low": (next_state, goals[LOW_GOAL]),
        }

    def represent(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns s and phi([s; g]), float32 [B, S + R], of states and goals [B, D]."""
        return tf.concat([self._parts.split(inputs)[0], normalize_length(self.phi(inputs))], axis=-1)

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the losses of values and actors, float32 []."""
        goals = {name: self.represent(inputs) for name, inputs in batch.goals.items()}
        now, later = self.represent(batch.observation), self.represent(batch.next_observation)
        values = critic_values(self.values, now)
        old, old_next = (critic_values(self.target_values, inputs) for inputs in (now, later))
        return {
            "value_loss": implicit_value_loss(batch, values, old, old_next, self.discount, self.expectile),
            "high_actor_loss": self.high_actor_loss(batch, goals),
            "low_actor_loss": weighted_likelihood_loss(
                value_advantage(self.values, goals["low"], goals["next_low"]),
                self.actor.low_log_prob(goals["low"], batch.action),
                self.low_alpha,
            ),
        }

    def high_actor_loss(self, batch: TransitionBatch, goals: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the loss of the high-level actor, float32 []; `goals` are the representations of `batch.goals`."""
        advantage = value_advantage(self.values, goals["high"], goals["later_high"])
        target = goals["subgoal"][:, self._parts.state.size :]
        log_prob = self.actor.high.log_prob(batch.goals["high"], target)
        return weighted_likelihood_loss(advantage, log_prob, self.high_alpha)
