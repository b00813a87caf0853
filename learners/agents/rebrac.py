"""ReBRAC, TD3+BC with penalties in both actor and critics."""

from typing import Any, ClassVar

import tensorflow as tf

from .hyperparameters import (
    NonNegative,
    configurable,
)
from .networks import critic_values
from .offline_agent import TransitionBatch
from .td3_bc import TD3BCAgent


@configurable
class ReBRACAgent(TD3BCAgent):
    """ReBRAC (Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning").

        a~     = clip(pi'(s') + clip(noise))
        y      = r + gamma * discount * (min_i Q'_i(s', a~) - critic_penalty * |a~ - a'|^2)
        critic = sum_i mean((Q_i(s, a) - y)^2)
        actor  = mean(actor_penalty * |pi(s) - a|^2 - lambda * min_i Q_i(s, pi(s))),  lambda = 1 / mean|min_i Q_i|

    a' is the data's action at s', so the experience must be trajectories of two steps. At the end of an episode, where
    there is no a', the critic's penalty is 0. The paper uses batches of 1024. Everything else is as in TD3.
    """

    hides = ("alpha",)
    inherited_defaults: ClassVar[dict[str, Any]] = {
        "hidden_sizes": (256, 256, 256),
        "actor_learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
    }
    actor_options: ClassVar[dict[str, Any]] = {"hidden_bias": 0.1, "final_scale": 1e-3}
    critic_options: ClassVar[dict[str, Any]] = {"layer_norm": True, "hidden_bias": 0.1, "final_scale": 3e-3}

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        actor_penalty: NonNegative = 0.1,
        critic_penalty: NonNegative = 0.01,
        **common: Any,
    ) -> None:
        """Creates the networks and their target networks.

        The defaults are those for the D4RL locomotion tasks (paper, appendix on hyperparameters) and of the authors'
        code: layer norm only in the critics, after ReLU; hidden biases 0.1; last layers uniform within 0.001 (actor)
        and 0.003 (critics).

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: BoundedTensorSpec [A].
          actor_penalty: the paper's beta_1, tuned for each task; the default is that of hopper-medium-expert.
          critic_penalty: the paper's beta_2, tuned for each task; the default is that of hopper-medium-expert.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, alpha=None, **common)
        self._actor_penalty, self._critic_penalty = actor_penalty, critic_penalty

    def target_values(self, batch: TransitionBatch, action: tf.Tensor) -> tf.Tensor:
        """Returns the smaller target value of actions [B, A], minus the penalty, float32 [B].

        Raises:
          ValueError: If `critic_penalty` is not 0 and the experience contains no next actions.
        """
        value = super().target_values(batch, action)
        if not self._critic_penalty:
            return value
        if batch.next_action is None or batch.next_action_mask is None:
            raise ValueError(
                "the critic penalty of rebrac requires experience with next actions, got transitions; "
                "use trajectories of two steps (TrajectoryWindows(2)), or set critic_penalty=0"
            )
        distance = tf.reduce_sum(tf.square(action - batch.next_action), axis=-1)
        return value - self._critic_penalty * batch.next_action_mask * distance

    def actor_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the actor's loss, float32 []."""
        action = self._actor.mode(batch.observation)
        value = tf.reduce_min(critic_values(self._critic, batch.observation, action), axis=0)
        scale = 1.0 / tf.stop_gradient(tf.reduce_mean(tf.abs(value)))
        distance = tf.reduce_sum(tf.square(action - batch.action), axis=-1)
        return tf.reduce_mean(self._actor_penalty * distance - scale * value)
