"""Fully connected networks, one variable each, and the actors made of them."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .replicas import assign_alike

LAYER_NORM_EPSILON = 1e-6


class MLP(tf.Module):
    """Fully connected layers with ReLU between them; `copies` of them are computed together.

    All weights stand in one flat variable, so that the optimiser and the target network are a few operations over one
    vector. `layers()` gives them layer by layer.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        seed: int,
        copies: int | None = None,
        layer_norm: bool = False,
        init: str = "fan_in",
        hidden_bias: float | None = None,
        final_scale: float | None = None,
        name: str = "mlp",
    ) -> None:
        """Draws the weights.

        Args:
          sizes: features of the input, of each hidden layer, and of the output.
          seed: gives the weights; the same seed gives the same ones.
          copies: number of networks, each with its own weights; None is one network without that axis.
          layer_norm: whether each hidden ReLU is followed by layer normalisation with scale and offset.
          init: "fan_in", weights and biases uniform within 1/sqrt(inputs), as PyTorch does by itself; or "orthogonal",
            orthogonal weights times sqrt(2), biases zero.
          hidden_bias: what every bias of the hidden layers starts at; None leaves them to `init`.
          final_scale: the last layer's weights and biases are uniform within this ("fan_in"), or its orthogonal
            weights are multiplied by it; None treats the last layer like the others.
          name: name of the module and its variable.

        Raises:
          ValueError: if `init` is neither of the two.
        """
        super().__init__(name=name)
        if init not in ("fan_in", "orthogonal"):
            raise ValueError(f"expected init 'fan_in' or 'orthogonal', got {init!r}")
        self._copies = copies
        self._layer_norm = layer_norm
        self._num_layers = len(sizes) - 1
        rng = np.random.default_rng([seed, *name.encode()])
        networks = [_draw(rng, sizes, layer_norm, init, hidden_bias, final_scale) for _ in range(copies or 1)]
        self._shapes = [each.shape for each in networks[0]]
        self.flat = tf.Variable(np.concatenate([each.ravel() for network in networks for each in network]), name=name)

    def layers(self) -> list[list[list[tf.Tensor]]]:
        """Returns for each copy (one if there are none) and layer [weights, bias] or [weights, bias, scale, offset]."""
        shapes = self._shapes * (self._copies or 1)
        split = tf.split(self.flat, [int(np.prod(shape)) for shape in shapes])
        parts = iter(tf.reshape(part, shape) for part, shape in zip(split, shapes, strict=True))
        counts = [4 if self._layer_norm else 2] * (self._num_layers - 1) + [2]
        return [[list(itertools.islice(parts, count)) for count in counts] for _ in range(self._copies or 1)]

    def __call__(self, x: tf.Tensor, *, only: int | None = None) -> tf.Tensor:
        """Returns float32 [B, out], or [copies, B, out].

        Args:
          x: float32 [B, in]; with copies the same input for all, or [copies, B, in].
          only: index of the one copy to compute, which gives [B, out]; None for all.
        """
        networks = self.layers()
        if self._copies is None or only is not None:
            return self._forward(networks[only or 0], x)
        inputs = tf.unstack(x) if x.shape.rank == 3 else [x] * self._copies
        return tf.stack([self._forward(*each) for each in zip(networks, inputs, strict=True)])

    def _forward(self, layers: list[list[tf.Tensor]], x: tf.Tensor) -> tf.Tensor:
        """Returns [B, out] of one network."""
        *hidden, last = layers
        for weights, bias, *norm in hidden:
            x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights), bias))
            if norm:
                x = _normalise(x) * norm[0] + norm[1]
        return tf.nn.bias_add(tf.matmul(x, last[0]), last[1])

    def copy(self) -> "MLP":
        """Returns a network of the same weights with a variable of its own: a target network."""
        twin = object.__new__(MLP)
        tf.Module.__init__(twin, name=f"target_{self.name}")
        for each in ("_copies", "_layer_norm", "_shapes", "_num_layers"):
            setattr(twin, each, getattr(self, each))
        twin.flat = tf.Variable(self.flat.read_value(), trainable=False, name=f"target_{self.name}")
        return twin

    def track(self, online: "MLP", rate: float) -> None:
        """Moves the weights towards those of `online`: w + rate * (online - w)."""
        assign_alike(self.flat, self.flat + rate * (online.flat - self.flat))


def critic_values(critic: MLP, *inputs: tf.Tensor, only: int | None = None) -> tf.Tensor:
    """Returns float32 [B] or [copies, B]: the one output of a critic for its inputs, joined; of copy `only` [B]."""
    return tf.squeeze(critic(tf.concat(inputs, axis=-1), only=only), axis=-1)


class TanhActor(tf.Module):
    """A deterministic actor: tanh of a network's outputs."""

    def __init__(self, network: MLP, *, exploration_noise: float = 0.1) -> None:
        """Keeps the network.

        Args:
          network: [B, D] -> [B, A].
          exploration_noise: standard deviation of the Gaussian noise that `sample` adds, in [-1, 1] units.
        """
        super().__init__(name="actor")
        self.network = network
        self._noise = exploration_noise

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B, A] in [-1, 1]."""
        return tf.tanh(self.network(observation))

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B, A]: the mode with noise, clipped to [-1, 1]. `seed` is [2] integers."""
        mode = self.mode(observation)
        noise = self._noise * tf.random.stateless_normal(tf.shape(mode), seed)
        return tf.clip_by_value(mode + noise, -1.0, 1.0)

    def smoothed(self, observation: tf.Tensor, seed: tf.Tensor, *, noise: float, clip: float) -> tf.Tensor:
        """Returns TD3's target action, float32 [B, A]: the mode with noise of at most `clip`, within [-1, 1].

        Fujimoto, van Hoof & Meger (2018), eq. 14. `noise` is the standard deviation, `seed` is [2] integers.
        """
        mode = self.mode(observation)
        drawn = tf.clip_by_value(noise * tf.random.stateless_normal(tf.shape(mode), seed), -clip, clip)
        return tf.clip_by_value(mode + drawn, -1.0, 1.0)


class GaussianActor(tf.Module):
    """A Gaussian with mean tanh(network) and standard deviations that do not depend on the observation."""

    def __init__(self, network: MLP, size: int, *, log_std_bounds: tuple[float, float] = (-5.0, 2.0)) -> None:
        """Keeps the network and makes the log standard deviations, all 0.

        Args:
          network: [B, D] -> [B, A].
          size: A.
          log_std_bounds: the log standard deviations are clipped to these.
        """
        super().__init__(name="actor")
        self.network = network
        self.log_std = tf.Variable(tf.zeros([size]), name="log_std")
        self._bounds = log_std_bounds

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B, A] in [-1, 1]."""
        return tf.tanh(self.network(observation))

    def log_prob(self, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B]: the log density of actions [B, A]."""
        log_std = tf.clip_by_value(self.log_std, *self._bounds)
        z = (action - self.mode(observation)) * tf.exp(-log_std)
        return -0.5 * tf.reduce_sum(tf.square(z) + 2.0 * log_std + np.float32(np.log(2 * np.pi)), axis=-1)

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B, A], clipped to [-1, 1]. `seed` is [2] integers."""
        mode = self.mode(observation)
        std = tf.exp(tf.clip_by_value(self.log_std, *self._bounds))
        return tf.clip_by_value(mode + std * tf.random.stateless_normal(tf.shape(mode), seed), -1.0, 1.0)


def _normalise(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + LAYER_NORM_EPSILON)


def _draw(
    rng: np.random.Generator,
    sizes: Sequence[int],
    layer_norm: bool,
    init: str,
    hidden_bias: float | None,
    final_scale: float | None,
) -> list[np.ndarray]:
    """Returns the weights of one network, layer by layer."""
    drawn: list[Any] = []
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        is_last = index == len(sizes) - 2
        scale = final_scale if is_last else None
        if init == "orthogonal":
            weights = _orthogonal(rng, rows, columns) * (np.sqrt(2) if scale is None else scale)
            bias = np.zeros(columns)
        else:
            bound = 1 / np.sqrt(rows) if scale is None else scale
            weights, bias = rng.uniform(-bound, bound, (rows, columns)), rng.uniform(-bound, bound, columns)
        if hidden_bias is not None and not is_last:
            bias = np.full(columns, hidden_bias)
        drawn += [weights, bias]
        if layer_norm and not is_last:
            drawn += [np.ones(columns), np.zeros(columns)]
    return [np.asarray(each, np.float32) for each in drawn]


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Returns [rows, columns] whose shorter side is orthonormal."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
