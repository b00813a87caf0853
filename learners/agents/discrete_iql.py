"""Implicit Q-learning (IQL) for discrete actions."""

from typing import Annotated, Any

import tensorflow as tf

from ..options import NetworkFactory, Range
from .adam import Adam
from .custom_networks import configure_networks
from .discrete_actors import CategoricalActor
from .hyperparameters import (
    Count,
    Fraction,
    ImageEncoderName,
    LayerSizes,
    NonNegative,
    Positive,
    PositiveFraction,
    Seed,
    configurable,
)
from .iql import IQLAgent
from .networks import Network
from .offline_agent import OfflineAgent
from .spaces import DiscreteActions, Observations


@configurable
class DiscreteIQLAgent(IQLAgent):
    """IQL with a softmax policy, and critics with one output for each action.

    The losses are those of `IQLAgent` (Kostrikov, Nair & Levine 2021, eq. 5 to 7), which need nothing from the actions
    but Q(s, a) and log pi(a|s). The paper has continuous actions only.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: Seed = 0,
        hidden_sizes: LayerSizes = (256, 256),
        actor_network: NetworkFactory | None = None,
        critic_network: NetworkFactory | None = None,
        value_network: NetworkFactory | None = None,
        image_encoder: ImageEncoderName = "nature",
        actor_learning_rate: Positive = 3e-4,
        critic_learning_rate: Positive = 3e-4,
        value_learning_rate: Positive = 3e-4,
        num_updates: Count | None = 1_000_000,
        discount: Fraction = 0.99,
        target_update_rate: PositiveFraction = 0.005,
        expectile: Annotated[float, Range(0, 1, min_open=True, max_open=True)] = 0.7,
        temperature: NonNegative = 3.0,
        max_weight: Positive = 100.0,
    ) -> None:
        """Creates the networks, and target networks for the critics; the defaults are those of `IQLAgent`.

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: integer BoundedTensorSpec [].
          observation_mean: mean to subtract from observations; None for no normalisation.
          observation_std: standard deviation to divide observations by.
          seed: random seed for weight initialisation.
          hidden_sizes: sizes of the hidden layers of all networks.
          actor_network: function that creates the network of the logits, see `CustomNetwork`; None for the default.
          critic_network: function that creates each critic, with one output for each action.
          value_network: function that creates the network of V.
          image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
          actor_learning_rate: Adam's initial learning rate.
          critic_learning_rate: Adam's learning rate.
          value_learning_rate: Adam's learning rate.
          num_updates: number of updates after which the actor's cosine schedule reaches 0; None for a constant rate.
          discount: discount factor gamma.
          target_update_rate: share of the online weights in a target update.
          expectile: expectile of the values; 0.5 is the mean.
          temperature: the paper's beta, the factor of the advantages in the weights of the actor's loss.
          max_weight: maximum weight of the actor's log likelihood.
        """
        actions = DiscreteActions(action_spec)
        observations = Observations(
            time_step_spec.observation, observation_mean, observation_std, num_actions=actions.num_actions
        )
        build = configure_networks(observations, seed=seed, image_encoder=image_encoder, init="orthogonal")
        actor = CategoricalActor(build(actor_network, [*hidden_sizes, actions.num_actions], name="actor"))
        critic = build(critic_network, [*hidden_sizes, actions.num_actions], copies=2, name="critic")
        self._set_critic(critic, critic_learning_rate, discount, target_update_rate)
        self._value = build(value_network, [*hidden_sizes, 1], name="value")
        self._value_optimizer = Adam(self._value.trained_variables, value_learning_rate)
        self._actor_optimizer = Adam(actor.network.trained_variables, actor_learning_rate, decay_steps=num_updates)
        self._expectile, self._temperature, self._max_weight = expectile, temperature, max_weight
        OfflineAgent.__init__(self, time_step_spec, action_spec, observations, actions, actor, seed=seed)

    def _action_values(self, critic: Network, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        values = critic(observation)
        return tf.gather(values, tf.broadcast_to(action, tf.shape(values)[:2]), batch_dims=2)
