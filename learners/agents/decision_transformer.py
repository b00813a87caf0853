"""Decision Transformer: actions predicted from a window of steps and the returns that should follow them."""

from typing import Annotated, Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step, time_step

from rlds2reverb.errors import ArgumentError
from rlds2reverb.types.specs import describe, leaves, path_name

from .adam import Adam
from .hyperparameters import Count, FractionBelowOne, NonNegative, Positive, Range, configurable
from .network_inputs import is_image
from .networks import Dropout
from .offline_agent import OfflineAgent
from .transformer import LayerNorm, Linear, TransformerBlock
from .unit_conversions import BoundedActions, Observations


class Window(NamedTuple):
    """Consecutive steps in the networks' units, padded on the left.

    Attributes:
      observation: float32 [B, K, D], normalised.
      action: float32 [B, K, A] in [-1, 1].
      return_to_go: float32 [B, K], divided by the return scale.
      time_step: int32 [B, K], from 0 at the first step of an episode.
      mask: bool [B, K], False for padding, which the predictions and the loss do not depend on.
      weights: float32 [B], factors of each window's loss.
    """

    observation: tf.Tensor
    action: tf.Tensor
    return_to_go: tf.Tensor
    time_step: tf.Tensor
    mask: tf.Tensor
    weights: tf.Tensor


class SequenceModel(tf.Module):
    """A causal transformer over the tokens of windows, R_1, s_1, a_1, R_2, s_2, a_2, ...

        token = norm(embed(x_t) + embed(t));  a_t = tanh(head(norm(blocks(tokens up to s_t))))

    Chen et al. (2021), section 3 and algorithm 1. As in the authors' code, the embedding of the time step replaces that
    of the position, and tokens do not attend to padding.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        *,
        width: int,
        num_layers: int,
        num_heads: int,
        max_time_steps: int,
        seed: int,
    ) -> None:
        """Initialises the weights as the authors' code does.

        Args:
          observation_size: size D of observations.
          action_size: size A of actions.
          width: size of a token.
          num_layers: number of blocks.
          num_heads: number of heads of the attention.
          max_time_steps: number of embeddings of time steps; later steps have the last one.
          seed: random seed for the weights.
        """
        super().__init__(name="sequence_model")
        rng = np.random.default_rng(seed)
        self.embeddings = [Linear(rng, size, width) for size in (1, observation_size, action_size)]
        self.times = tf.Variable(np.float32(rng.standard_normal((max_time_steps, width))), name="times")
        self.norms = [LayerNorm(width) for _ in range(2)]
        self.blocks = [TransformerBlock(rng, width, num_heads) for _ in range(num_layers)]
        self.head = Linear(rng, width, action_size)

    def __call__(self, window: Window, dropout: Dropout = tf.identity) -> tf.Tensor:
        """Returns the predicted actions, float32 [B, K, A] in [-1, 1]; they depend on no later steps or actions."""
        inputs = (window.return_to_go[..., tf.newaxis], window.observation, window.action)
        times = tf.gather(self.times, tf.minimum(window.time_step, self.times.shape[0] - 1))
        tokens = tf.stack([embed(x) for embed, x in zip(self.embeddings, inputs, strict=True)], axis=2)
        tokens += times[:, :, tf.newaxis]
        num_windows, num_steps, _, width = tf.unstack(tf.shape(tokens))
        x = dropout(self.norms[0](tf.reshape(tokens, [num_windows, 3 * num_steps, width])))
        places = tf.range(3 * num_steps)
        mask = (places[:, tf.newaxis] >= places) & tf.repeat(window.mask, 3, axis=1)[:, tf.newaxis]
        for block in self.blocks:
            x = block(x, mask, dropout)
        return tf.tanh(self.head(self.norms[1](x)[:, 1::3]))


class DecisionTransformerPolicy(tf_policy.TFPolicy):
    """A policy that aims at a target return, from which it subtracts the rewards that it receives.

    The policy state contains the last steps, in the networks' units, and the target return of the episode, which
    `target_return` of the policy sets, also of saved and exported ones. In the first step of an episode, everything
    else in the state is ignored.

    Attributes:
      target_return: return that new episodes aim at, in the environment's own rewards.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        observations: Observations,
        actions: BoundedActions,
        model: SequenceModel,
        *,
        context_length: int,
        return_scale: float,
        target_return: float,
    ) -> None:
        """Sets the components of the policy.

        Args:
          time_step_spec: spec of the environment's time steps.
          action_spec: spec of the environment's actions.
          observations: conversion of observations to the model's.
          actions: conversion of actions to the environment's.
          model: the model.
          context_length: number of steps that the model sees.
          return_scale: divisor of returns.
          target_return: return that new episodes aim at.
        """
        shapes = {"observation": [context_length, observations.size], "action": [context_length, actions.size]}
        shapes |= {"return_to_go": [context_length], "target_return": []}
        state = {name: tf.TensorSpec(shape, tf.float32, name) for name, shape in shapes.items()}
        state["time_step"] = tf.TensorSpec([], tf.int32, "time_step")
        super().__init__(
            time_step_spec, action_spec, policy_state_spec=state, clip=False, automatic_state_reset=False, name="policy"
        )
        self._observations, self._actions, self._model = observations, actions, model
        self._return_scale, self.target_return = return_scale, target_return

    def _variables(self) -> list[tf.Variable]:
        return [*self._model.variables, *self._observations.variables]

    def _get_initial_state(self, batch_size: int | None) -> Any:
        state = super()._get_initial_state(batch_size)
        return {**state, "target_return": tf.ones_like(state["target_return"]) * self.target_return}

    def _action(self, time_step: time_step.TimeStep, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        is_first, target = time_step.is_first(), policy_state["target_return"]
        step = tf.where(is_first, 0, policy_state["time_step"])
        left = policy_state["return_to_go"][:, -1] - tf.cast(time_step.reward, tf.float32)
        observation = _append(policy_state["observation"], self._observations(time_step.observation))
        return_to_go = _append(policy_state["return_to_go"], tf.where(is_first, target, left))
        # The last action is unknown, and the model does not look at it.
        action = _append(policy_state["action"], tf.zeros_like(policy_state["action"][:, 0]))
        times = step[:, tf.newaxis] + tf.range(1 - observation.shape[1], 1)
        window = Window(observation, action, return_to_go / self._return_scale, tf.maximum(times, 0), times >= 0, left)
        unit = self._model(window)[:, -1]
        state = {"observation": observation, "action": tf.concat([action[:, :-1], unit[:, tf.newaxis]], axis=1)}
        state |= {"return_to_go": return_to_go, "target_return": target, "time_step": step + 1}
        packed = tf.nest.pack_sequence_as(self.action_spec, [self._actions.to_environment(unit)])
        return policy_step.PolicyStep(packed, state, ())

    def _distribution(self, time_step: time_step.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        raise NotImplementedError("these policies do not support distribution(); use action()")


def _append(history: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Returns a history [B, K, ...] without its first entry and with `last` [B, ...] at the end."""
    return tf.concat([history[:, 1:], last[:, tf.newaxis]], axis=1)


@configurable
class DecisionTransformerAgent(OfflineAgent):
    """Decision Transformer (Chen et al. 2021): imitates the actions of windows of steps, given their returns to go.

        loss = mean over steps of w * mean_over_actions((pi(R_1, s_1, a_1, ..., R_t, s_t) - a_t)^2)

    Section 3, with the loss, optimiser and network of the authors' code for OpenAI Gym. The mean is over the steps of
    all windows in a batch, padding excluded.

    Updates and defaults are those of the authors' code for OpenAI Gym (gym/decision_transformer/ and gym/experiment.py
    of github.com/kzl/decision-transformer; paper, appendix A).

    Attributes:
      target_return: return that the policy aims at, in the dataset's own rewards; None for the highest one of the
        dataset, which requires a training run.
      return_scale: number that returns are divided by; about the highest one of the dataset.
      context_length: number of steps K that the model sees.
      max_time_steps: number of time steps with an embedding; later ones have that of the last.
      width: size of a token, a multiple of `num_heads`.
      num_layers: number of blocks of the transformer.
      num_heads: number of heads of the attention.
      dropout: probability of dropout of embeddings, attention and blocks.
      learning_rate: AdamW's learning rate, after the warm-up.
      weight_decay: AdamW's weight decay.
      num_warmup_updates: number of updates over which the learning rate increases linearly.
      clip_norm: maximum norm of the gradient.
    """

    target_return: float | None = None
    return_scale: Positive = 1000.0
    context_length: Count = 20
    max_time_steps: Count = 1000
    width: Count = 128
    num_layers: Count = 3
    num_heads: Count = 1
    dropout: FractionBelowOne = 0.1
    learning_rate: Positive = 1e-4
    weight_decay: NonNegative = 1e-4
    num_warmup_updates: Annotated[int, Range(0)] = 10_000
    clip_norm: Positive = 0.25

    def _create(self) -> SequenceModel:
        _require_vectors(self.observations.spec)
        if self.width % self.num_heads:
            message = f"must be a multiple of num_heads, which is {self.num_heads}, got {self.width}"
            raise ArgumentError(message, about="width")
        if self.target_return is None:
            raise ArgumentError("must be a number outside training runs, got None", about="target_return")
        self._num_steps = self.context_length
        model = SequenceModel(
            self.observations.size,
            self.actions.size,
            width=self.width,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            max_time_steps=self.max_time_steps,
            seed=self.seed,
        )
        self.optimizer = Adam(
            model.trainable_variables,
            self.learning_rate,
            warmup_steps=self.num_warmup_updates,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
        )
        return model

    def _make_policy(self, time_step_spec: Any, action_spec: Any, *, greedy: bool) -> DecisionTransformerPolicy:
        return DecisionTransformerPolicy(
            time_step_spec,
            action_spec,
            self.observations,
            self.actions,
            self.actor,
            context_length=self._num_steps,
            return_scale=self.return_scale,
            target_return=self.target_return,  # type: ignore[arg-type]  # `_create` requires it.
        )

    def batch(self, experience: Any, weights: Any = None) -> Any:
        """Converts experience to a `Window`.

        Args:
          experience: `Trajectory` [B, K, ...] in the environment's units, padded on the left; its policy info contains
            'return_to_go', 'time_step' and 'mask'.
          weights: float32 [B] or []; None for 1.
        """
        info, (action,) = experience.policy_info, tf.nest.flatten(experience.action)
        num_windows, num_steps = tf.unstack(tf.shape(info["mask"]))
        flat = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), experience.observation)
        observation = tf.reshape(self.observations(flat), [num_windows, num_steps, self.observations.size])
        weights = tf.cast(1.0 if weights is None else weights, tf.float32) + tf.zeros([num_windows])
        return_to_go = info["return_to_go"] / self.return_scale
        return Window(observation, self.actions.to_unit(action), return_to_go, info["time_step"], info["mask"], weights)

    def _update(self, batch: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss = self.optimizer.minimize(lambda: self.loss(batch, self.make_dropout(self.dropout) or tf.identity))
        return loss, {"actor_loss": loss}

    def loss(self, batch: Window, dropout: Dropout = tf.identity) -> tf.Tensor:
        """Returns the loss, float32 []."""
        errors = tf.reduce_mean(tf.square(self.actor(batch, dropout) - batch.action), axis=-1)
        mask = tf.cast(batch.mask, tf.float32)
        return tf.reduce_sum(batch.weights[:, tf.newaxis] * mask * errors) / tf.reduce_sum(mask)


def _require_vectors(observation_spec: Any) -> None:
    for path, leaf in leaves(observation_spec):
        if is_image(leaf):
            raise ValueError(
                f"{path_name(path, 'observation')} must not be an image, got {describe(leaf)}; drop the field, or use "
                "an algorithm with image encoders"
            )
