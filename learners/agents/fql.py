"""Flow Q-learning (FQL)."""

from typing import Any, ClassVar, Literal

import numpy as np
import tensorflow as tf

from ..option_declarations import NetworkFactory
from .adam import Adam
from .hyperparameters import Count, LayerSizes, NonNegative, configurable
from .networks import Network, critic_values
from .offline_agent import ActorCriticAgent, TransitionBatch

#: Lower bound of uniform random numbers; at 0, the noise would be infinite.
_EPSILON = 1e-6
#: Minimum number of periods of greedy noise along a unit vector.
_NUM_PERIODS = 4.0


@configurable
class FQLAgent(ActorCriticAgent):
    """FQL (Park, Li & Levine 2025, "Flow Q-Learning", arXiv:2502.02538).

        y       = r + gamma * discount * mean_i Q'_i(s', mu(s', z)),  z ~ N(0, I)
        critic  = sum_i mean((Q_i(s, a) - y)^2)                                              (eq. 6)
        flow    = mean(|v(s, x_t, t) - (a - x_0)|^2),  x_t = (1 - t) x_0 + t a,
                  x_0 ~ N(0, I), t ~ U(0, 1)                                                 (eq. 7)
        actor   = alpha * mean(|mu(s, z) - flow(s, z)|^2) - mean_i,s(Q_i(s, mu(s, z)))       (eq. 8)

    The velocity field v is trained only by behavioural cloning. It carries the noise z to the action `flow(s, z)`, by
    Euler steps from t = 0 to t = 1. The one-step policy mu imitates that map, and maximises the critics. As in the
    authors' code, |.|^2 is the mean over the elements of the action, actions are clipped to [-1, 1] before the critics
    evaluate them, and the actors learn from the critics before their update, which the targets track as well.

    The authors evaluate the stochastic policy mu(s, z). The greedy policy does the same, but z is a function of the
    observation, so that equal observations give equal actions; see `OneStepFlowActor`.

    Updates and defaults are those of the authors' code (agents/fql.py of github.com/seohongpark/fql): GELU, layer norm
    only in the critics, Glorot initialisation. Only `alpha` must be tuned for each task.

    With chunks of actions, the agent is QC-FQL, and with `num_samples` QC (Li, Zhou & Levine 2025, arXiv:2507.07969,
    section 4): mu is then the best of several samples of the flow, see `BestFlowActor`, without eq. 8. Updates
    are those of agents/acfql.py of github.com/ColinQiyangLi/qc. Of an incomplete chunk, whose `mask` [B, length] in
    the policy info is False after the end of the episode, only the flow learns, and only the actions before that end.

    Attributes:
      hidden_sizes: sizes of the hidden layers of all networks.
      actor_network: function that creates the one-step policy's network, see `CustomNetwork`; its input is the
        pair of observation and noise [A]. None for the default.
      flow_network: function that creates the velocity field; its input is the pair of observation and [A + 1],
        the point x_t followed by t.
      discount: discount factor gamma; the paper uses 0.995 for some tasks.
      alpha: weight of behavioural cloning relative to the critics, in units of Q-values.
      flow_steps: number of Euler steps.
      q_agg: aggregation of the target critics in y, and of the critics that choose among samples; the paper uses 'min'
        for some tasks.
      normalize_q_loss: whether to divide Q in the actor's loss by its mean magnitude, so that `alpha` does not
        depend on the scale of the rewards; the authors recommend it for new tasks.
      num_samples: number of samples of the flow, of which policies and targets take the one with the highest value, 32
        in QC; None for the one-step policy.
    """

    _network_options: ClassVar[dict[str, Any]] = {"activation": "gelu", "init": "glorot"}

    hidden_sizes: LayerSizes = (512, 512, 512, 512)
    flow_network: NetworkFactory | None = None
    alpha: NonNegative = 10.0
    flow_steps: Count = 10
    q_agg: Literal["mean", "min"] = "mean"
    normalize_q_loss: bool = False
    num_samples: Count | None = None

    def _create(self) -> Any:
        width = self.actions.size
        sizes = [*self.hidden_sizes, width]
        self.flow = self._make_network(self.flow_network, sizes, action_size=width + 1, name="flow")
        self._create_critics(layer_norm=True)
        self._aggregate = tf.reduce_mean if self.q_agg == "mean" else tf.reduce_min
        if self.num_samples is not None:
            self.actor_optimizer = Adam(self.flow.trained_variables, self.actor_learning_rate)
            return BestFlowActor(self.flow, self.flow_steps, width, self.num_samples, self.critic, self._aggregate)
        actor = OneStepFlowActor(self._make_network(self.actor_network, sizes, action_size=width, name="actor"), width)
        actor_variables = [*actor.network.trained_variables, *self.flow.trained_variables]
        self.actor_optimizer = Adam(actor_variables, self.actor_learning_rate)
        return actor

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        is_complete = batch.real_actions()[:, -1]
        targets = self.critic_targets(batch)
        with tf.GradientTape() as tape:
            flow_loss = self.flow_loss(batch)
            actor_loss = self.actor_loss(batch) if self.num_samples is None else tf.constant(0.0)
            loss = flow_loss + actor_loss
        self.actor_optimizer.minimize(loss, tape)
        self.target_critic.track(self.critic, self.target_update_rate)
        complete = batch._replace(weights=batch.weights * is_complete)
        critic_loss, td_error, q_mean = self._update_critic(complete, targets)
        losses = {"critic_loss": critic_loss, "flow_loss": flow_loss, "actor_loss": actor_loss}
        return critic_loss + loss, {"td_error": td_error * is_complete, **losses, "q_mean": q_mean}

    def critic_targets(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the target values y, float32 [B]."""
        action = self.actor.sample(batch.next_observation, self.noise_seed(0))
        value = self._aggregate(critic_values(self.target_critic, batch.next_observation, action), axis=0)
        return batch.reward + self.discount * batch.discount * value

    def flow_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the loss of the velocity field, float32 []."""
        start = tf.random.stateless_normal(tf.shape(batch.action), self.noise_seed(1))
        time = tf.random.stateless_uniform([tf.shape(batch.action)[0], 1], self.noise_seed(2))
        point = (1.0 - time) * start + time * batch.action
        velocity = self.flow(tf.concat([batch.observation, point, time], axis=1))
        return tf.reduce_mean(batch.real_actions() * tf.square(velocity - (batch.action - start)))

    def actor_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the loss of the one-step policy, float32 []."""
        noise = tf.random.stateless_normal(tf.shape(batch.action), self.noise_seed(3))
        action = self.actor(batch.observation, noise)
        distance = tf.square(action - tf.stop_gradient(self.integrate(batch.observation, noise)))
        value = critic_values(self.critic, batch.observation, tf.clip_by_value(action, -1.0, 1.0))
        value = tf.reduce_mean(value, axis=0)
        scale = 1.0 / tf.stop_gradient(tf.reduce_mean(tf.abs(value))) if self.normalize_q_loss else 1.0
        return self.alpha * tf.reduce_mean(distance) - scale * tf.reduce_mean(value)

    def integrate(self, observation: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Returns the actions of the cloned flow, float32 [B, A] in [-1, 1], for noise [B, A]."""
        return integrate_flow(self.flow, observation, noise, self.flow_steps)


def integrate_flow(flow: Network, observation: tf.Tensor, noise: tf.Tensor, num_steps: int) -> tf.Tensor:
    """Returns the actions to which a flow carries noise [B, A], float32 [B, A] in [-1, 1].

    x_{k+1} = x_k + v(s, x_k, k / K) / K,  k = 0 .. K-1,  K = num_steps
    """
    point = noise
    for step in range(num_steps):
        time = tf.fill([tf.shape(noise)[0], 1], step / num_steps)
        point += flow(tf.concat([observation, point, time], axis=1)) / num_steps
    return tf.clip_by_value(point, -1.0, 1.0)


class OneStepFlowActor(tf.Module):
    """A stochastic actor whose action is a network's output for an observation and noise, clipped to [-1, 1]."""

    def __init__(self, network: Network, size: int) -> None:
        """Sets the network.

        Args:
          network: network from observations [B, D] and noise [B, A] to actions [B, A].
          size: number of actions A.
        """
        super().__init__(name="actor")
        self.network = network
        self._size = size

    def __call__(self, observation: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Returns the actions before clipping, float32 [B, A]."""
        return self.network(tf.concat([observation, noise], axis=1))

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns actions for standard normal noise that is a function of each observation, float32 [B, A] in [-1, 1].

        A stochastic policy of several modes has no single best action, and the action for noise 0 can be between two of
        them.
        """
        return tf.clip_by_value(self(observation, _project_to_normal(observation, self._size)), -1.0, 1.0)

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns sampled actions, float32 [B, A] in [-1, 1]. `seed` is [2] integers."""
        noise = tf.random.stateless_normal([tf.shape(observation)[0], self._size], seed)
        return tf.clip_by_value(self(observation, noise), -1.0, 1.0)


class BestFlowActor(tf.Module):
    """A stochastic actor whose action is the one with the highest value among several samples of a flow.

        pi(s) = argmax_i Q(s, flow(s, z_i)),  z_i ~ N(0, I),  i = 1 .. num_samples

    Li, Zhou & Levine (2025), "Reinforcement Learning with Action Chunking", arXiv:2507.07969, section 4.
    """

    def __init__(
        self, flow: Network, flow_steps: int, size: int, num_samples: int, critic: Network, aggregate: Any
    ) -> None:
        """Sets the networks.

        Args:
          flow: velocity field, from observations, points and times to velocities [B, A].
          flow_steps: number of Euler steps.
          size: number of actions A.
          num_samples: number of samples to choose from.
          critic: several critics, from observations and actions to values.
          aggregate: function that reduces the values [copies, B] of an action to one, such as `tf.reduce_mean`.
        """
        super().__init__(name="actor")
        self.flow, self.critic = flow, critic
        self._steps, self._size, self._num_samples, self._aggregate = flow_steps, size, num_samples, aggregate

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the best actions for noise that is a function of each observation, float32 [B, A] in [-1, 1]."""
        return self._choose(observation, _project_to_normal(observation, self._num_samples * self._size))

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the best of sampled actions, float32 [B, A] in [-1, 1]. `seed` is [2] integers."""
        shape = [tf.shape(observation)[0], self._num_samples * self._size]
        return self._choose(observation, tf.random.stateless_normal(shape, seed))

    def _choose(self, observation: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Returns the best actions, float32 [B, A], for noise [B, num_samples * A]."""
        observation = tf.repeat(observation, self._num_samples, axis=0)
        actions = integrate_flow(self.flow, observation, tf.reshape(noise, [-1, self._size]), self._steps)
        values = self._aggregate(critic_values(self.critic, observation, actions), axis=0)
        best = tf.argmax(tf.reshape(values, [-1, self._num_samples]), axis=1)
        return tf.gather(tf.reshape(actions, [-1, self._num_samples, self._size]), best, batch_dims=1)


def _project_to_normal(rows: tf.Tensor, size: int) -> tf.Tensor:
    """Returns standard normal numbers that only depend on the row, float32 [B, size], for float32 [B, D].

    They are smooth functions of the row, so that rounding errors of other runtimes hardly change them:

        z = sqrt(-2 log u) cos(2 pi v),   u = |2 (x mod 1) - 1|,   (x, v) = sin(row) W      (Box & Muller 1958)

    The columns of W are random directions, along which x and v vary by several periods.
    """
    directions = np.random.default_rng(0).normal(size=(rows.shape[1], 2 * size))
    directions *= np.linspace(_NUM_PERIODS, 2 * _NUM_PERIODS, 2 * size) / np.linalg.norm(directions, axis=0)
    radius, angle = tf.split(tf.sin(rows) @ tf.constant(directions, tf.float32), 2, axis=1)
    uniform = tf.abs(2.0 * (radius - tf.floor(radius)) - 1.0)
    return tf.sqrt(-2.0 * tf.math.log(tf.maximum(uniform, _EPSILON))) * tf.cos(2.0 * np.pi * angle)
