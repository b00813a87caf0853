"""ReBRAC, TD3+BC with penalties in both actor and critics."""

from typing import Any, ClassVar

import tensorflow as tf

from .hyperparameters import LayerSizes, NonNegative, Positive, configurable
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
    there is no a', the critic's penalty is 0. The paper uses batches of 1024. The first update is one of the actor,
    whose target tracks the weights before it. Everything else is as in TD3.

    Updates, initial weights and defaults are those of algorithms/offline/rebrac.py of github.com/tinkoff-ai/CORL,
    except for the penalties: layer norm only in the critics, after ReLU; hidden biases 0.1; last layers uniform within
    0.001 (actor) and 0.003 (critics).

    Attributes:
      hidden_sizes: sizes of the hidden layers of actor and critics.
      actor_learning_rate: Adam's learning rate.
      critic_learning_rate: Adam's learning rate.
      discount: discount factor gamma; the paper uses 0.999 for AntMaze.
      actor_penalty: the paper's beta_1, tuned for each task; the default is that of hopper-medium-expert.
      critic_penalty: the paper's beta_2, tuned for each task; the default is that of hopper-medium-expert.
    """

    _first_delay: ClassVar[int] = 0
    _tracks_old_actor: ClassVar[bool] = True
    alpha: ClassVar[None] = None  # type: ignore[misc]
    _actor_network_options: ClassVar[dict[str, Any]] = {"hidden_bias": 0.1, "final_scale": 1e-3}
    _critic_network_options: ClassVar[dict[str, Any]] = {"layer_norm": True, "hidden_bias": 0.1, "final_scale": 3e-3}

    hidden_sizes: LayerSizes = (256, 256, 256)
    actor_learning_rate: Positive = 1e-3
    critic_learning_rate: Positive = 1e-3
    actor_penalty: NonNegative = 0.1
    critic_penalty: NonNegative = 0.01

    def target_values(self, batch: TransitionBatch, action: tf.Tensor) -> tf.Tensor:
        """Returns the smaller target value of actions [B, A], minus the penalty, float32 [B].

        Raises:
          ValueError: If `critic_penalty` is not 0 and the experience contains no next actions.
        """
        value = super().target_values(batch, action)
        if not self.critic_penalty:
            return value
        if batch.next_action is None or batch.next_action_mask is None:
            raise ValueError(
                "the critic penalty of rebrac requires experience with next actions, got transitions; "
                "use trajectories of two steps (TrajectoryWindows(2)), or set critic_penalty=0"
            )
        distance = tf.reduce_sum(tf.square(action - batch.next_action), axis=-1)
        return value - self.critic_penalty * batch.next_action_mask * distance

    def actor_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the actor's loss, float32 []."""
        action = self.actor.mode(batch.observation)
        value = tf.reduce_min(critic_values(self.critic, batch.observation, action), axis=0)
        scale = 1.0 / tf.stop_gradient(tf.reduce_mean(tf.abs(value)))
        distance = tf.reduce_sum(tf.square(action - batch.action), axis=-1)
        return tf.reduce_mean(self.actor_penalty * distance - scale * value)
