"""Calibrated Q-learning (Cal-QL), CQL for a later online phase."""

from typing import Any, ClassVar

import tensorflow as tf

from rlds2reverb.errors import ArgumentError, SpecMismatchError

from .cql import CQLAgent
from .hyperparameters import LayerSizes, NonNegative, configurable
from .networks import Network
from .offline_agent import TransitionBatch
from .squashed_gaussian import ScaledGaussianActor


@configurable
class CalQLAgent(CQLAgent):
    """Cal-QL (Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning").

        y      = r + gamma * discount * max_j min_i Q'_i(s', a_j),  a_j ~ pi(s')
        critic = sum_i mean((Q_i(s, a) - y)^2 + weight * min_q_weight * (penalty_i - lagrange_threshold))

    The penalty is CQL's with max(Q_i(s, a_j), return to go) in place of Q_i(s, a_j) for the actions of pi(s) and pi(s')
    (section 5). Values below the return of the data's policy are therefore not decreased further, and have the scale of
    returns when the online phase begins. All losses use the weights from before the step.

    Updates, initial weights and defaults are those of github.com/nakamotoo/Cal-QL (conservative_sac.py, model.py and
    conservative_sac_main.py in JaxCQL), except that targets and penalty share the sampled actions of pi(s').

    Attributes:
      lagrange_threshold: penalty below which its weight shrinks, 0.8 for AntMaze; None for a fixed weight of 1.
      max_q_backup: whether targets use the maximum over `num_samples` actions of pi(s') instead of one action's value.
      failure_reward: reward of each step of a failed episode, in the units in which the agent learns. If all rewards of
        an episode equal it, its return to go is failure_reward / (1 - gamma), as if it never ended; None for the sum of
        its rewards in all cases.
    """

    _network_options: ClassVar[dict[str, Any]] = {"init": "orthogonal"}
    _final_scales: ClassVar[tuple[float, float]] = (1e-2, 1e-2)
    _initial_log_weight: ClassVar[float] = 1.0
    _temperature_first: ClassVar[bool] = False

    hidden_sizes: LayerSizes = (256, 256)
    lagrange_threshold: NonNegative | None = None
    max_q_backup: bool = True
    failure_reward: float | None = None

    def _create(self) -> Any:
        if self.failure_reward is not None and self.discount == 1:
            raise ArgumentError(
                "must be None without discounting, because the return of a failure is infinite", about="failure_reward"
            )
        return super()._create()

    def _make_actor(self, network: Network) -> ScaledGaussianActor:
        return ScaledGaussianActor(network)

    def reduce_values(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the maximum over actions of the minimum over critics, float32 [B], of values [2, N, B]."""
        return tf.reduce_max(tf.reduce_min(values, axis=0), axis=0)

    def calibrate(self, batch: TransitionBatch, values: tf.Tensor) -> tf.Tensor:
        """Returns the values, float32 [2, N, B], or the returns to go where these are higher."""
        if "return_to_go" not in batch.step_info:
            raise SpecMismatchError(
                "cal_ql requires experience with policy_info['return_to_go'], got none; train it on a dataset, or 'cql'"
            )
        return tf.maximum(values, batch.step_info["return_to_go"])

    def excess(self, penalty: tf.Tensor) -> tf.Tensor:
        """Returns by how much the penalty exceeds the threshold, if there is one, times `min_q_weight`."""
        return self.min_q_weight * (penalty - (self.lagrange_threshold or 0.0))
