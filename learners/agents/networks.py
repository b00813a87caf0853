"""Fully connected networks with one variable each, and actors based on them."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from rlds2reverb.types.arguments import require_one_of

from .replicas import assign_on_replica

LAYER_NORM_EPSILON = 1e-6
#: Value and logit of illegal actions; finite, because it is multiplied by 0 at terminal states.
ILLEGAL = -1e9
#: Maximum number of networks that are computed in separate products, which are fused with bias and ReLU. For more
#: networks, one batched product per layer is faster.
_MAX_SEPARATE_COPIES = 2
#: Functions between the layers; GELU is the approximation with tanh (Hendrycks & Gimpel 2016, section 2).
_ACTIVATIONS = {"relu": tf.nn.relu, "gelu": lambda x: tf.nn.gelu(x, approximate=True)}

#: Returns a tensor with some elements dropped out, or unchanged.
Dropout = Callable[[tf.Tensor], tf.Tensor]


class Network(Protocol):
    """The interface of a network, or of several that are computed together; see `MLP`."""

    name: str

    @property
    def trained_variables(self) -> list[tf.Variable]:
        """The variables for the optimiser."""

    def __call__(self, x: tf.Tensor, *, copy_index: int | None = None, dropout: Dropout | None = None) -> tf.Tensor:
        """Computes the outputs, float32 [B, out] or [copies, B, out], of inputs [B, in] or [copies, B, in]."""

    def copy(self) -> Any:
        """Returns a target network, with the same weights in separate variables."""

    def track(self, online: Any, rate: float) -> None:
        """Moves the weights towards those of `online`: w + rate * (online - w)."""


class MLP(tf.Module):
    """A fully connected network with ReLU or GELU between its layers, or `copies` independent ones computed together.

    All weights are stored in one flat variable, `flat`, so that the optimiser and the target network need only a few
    operations on a single vector. `layers()` returns them layer by layer.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        seed: int,
        copies: int | None = None,
        layer_norm: bool = False,
        norm_first: bool = False,
        activation: str = "relu",
        init: str = "fan_in",
        hidden_bias: float | None = None,
        final_scale: float | None = None,
        name: str = "mlp",
    ) -> None:
        """Initialises the weights.

        Args:
          sizes: sizes of the input, of each hidden layer, and of the output.
          seed: random seed, which determines the weights together with `name`.
          copies: number of networks, each with its own weights; None for one network without that axis.
          layer_norm: whether each activation is followed by layer normalisation with scale and offset.
          norm_first: whether it precedes the activation instead.
          activation: "relu" or "gelu".
          init: "fan_in" for weights and biases uniform within 1/sqrt(inputs), PyTorch's default; "fan_out" for weights
            uniform within 1/sqrt(outputs) and zero biases, rlkit's; "orthogonal" for orthogonal weights times sqrt(2)
            and zero biases; or "glorot" for weights uniform within sqrt(6 / (inputs + outputs)) and zero biases (Glorot
            & Bengio 2010, eq. 16).
          hidden_bias: initial value of every hidden bias; None to follow `init`.
          final_scale: bound of the last layer's uniform weights ("fan_in", "fan_out") and biases ("fan_in"), factor of
            its orthogonal weights, or additional factor of its weights ("glorot"); None to initialise it like the
            others.
          name: name of the module and its variable.

        Raises:
          ValueError: If `init` or `activation` has a different value.
        """
        super().__init__(name=name)
        require_one_of("init", init, ("fan_in", "fan_out", "orthogonal", "glorot"))
        require_one_of("activation", activation, tuple(_ACTIVATIONS))
        self._copies, self._layer_norm, self._norm_first = copies, layer_norm, norm_first
        self._activation, self._num_layers = activation, len(sizes) - 1
        rng = np.random.default_rng([seed, *name.encode()])
        networks = [_init_weights(rng, sizes, layer_norm, init, hidden_bias, final_scale) for _ in range(copies or 1)]
        self._shapes = [weights.shape for weights in networks[0]]
        self.flat = tf.Variable(np.concatenate([part.ravel() for network in networks for part in network]), name=name)

    @property
    def trained_variables(self) -> list[tf.Variable]:
        """The variables for the optimiser."""
        return [self.flat]

    def layers(self) -> list[list[list[tf.Tensor]]]:
        """Returns [weights, bias] or [weights, bias, scale, offset] for each network and each of its layers."""
        shapes = self._shapes * (self._copies or 1)
        split = tf.split(self.flat, [int(np.prod(shape)) for shape in shapes])
        parts = iter(tf.reshape(part, shape) for part, shape in zip(split, shapes, strict=True))
        return [self._group(parts) for _ in range(self._copies or 1)]

    def _stacked_layers(self) -> list[list[tf.Tensor]]:
        """Returns the same of all networks at once: weights [copies, in, out], others [copies, 1, out]."""
        flat = tf.reshape(self.flat, [self._copies, -1])
        split = tf.split(flat, [int(np.prod(shape)) for shape in self._shapes], axis=1)
        shapes = [shape if len(shape) == 2 else (1, *shape) for shape in self._shapes]
        return self._group(
            iter(tf.reshape(part, [self._copies, *shape]) for part, shape in zip(split, shapes, strict=True))
        )

    def _group(self, parts: Iterator[tf.Tensor]) -> list[list[tf.Tensor]]:
        """Returns the next parameters of one network by layer."""
        counts = [4 if self._layer_norm else 2] * (self._num_layers - 1) + [2]
        return [list(itertools.islice(parts, count)) for count in counts]

    def __call__(self, x: tf.Tensor, *, copy_index: int | None = None, dropout: Dropout | None = None) -> tf.Tensor:
        """Computes the outputs, float32 [B, out] or [copies, B, out].

        Args:
          x: float32 [B, in]; with copies either [B, in], shared by all, or [copies, B, in].
          copy_index: index of a single copy to compute, with result [B, out]; None for all.
          dropout: function that is applied to the output of each hidden layer; None for none.
        """
        if self._copies is None or copy_index is not None:
            return self._forward(self.layers()[copy_index or 0], x, dropout)
        if self._copies > _MAX_SEPARATE_COPIES:
            return self._forward(self._stacked_layers(), x, dropout)
        inputs = split_copies(x, self._copies)
        return tf.stack([self._forward(layers, x, dropout) for layers, x in zip(self.layers(), inputs, strict=True)])

    def _forward(self, layers: list[list[tf.Tensor]], x: tf.Tensor, dropout: Dropout | None) -> tf.Tensor:
        """Returns the output [B, out] of one network, or [copies, B, out] if the parameters have that axis."""
        *hidden, last = layers
        activate = _ACTIVATIONS[self._activation]
        for weights, bias, *norm in hidden:
            x = _transform(x, weights, bias)
            x = activate(_normalize(x, *norm)) if self._norm_first else _normalize(activate(x), *norm)
            x = x if dropout is None else dropout(x)
        return _transform(x, *last)

    def copy(self) -> "MLP":
        """Returns a target network: the same weights in a separate, untrained variable."""
        target = object.__new__(MLP)
        tf.Module.__init__(target, name=f"target_{self.name}")
        for name in ("_copies", "_activation", "_layer_norm", "_norm_first", "_shapes", "_num_layers"):
            setattr(target, name, getattr(self, name))
        target.flat = tf.Variable(self.flat.read_value(), trainable=False, name=f"target_{self.name}")
        return target

    def track(self, online: "MLP", rate: float) -> None:
        """Moves the weights towards those of `online`: w + rate * (online - w)."""
        assign_on_replica(self.flat, self.flat + rate * (online.flat - self.flat))


class MaskedNetwork(tf.Module):
    """A network with one output per discrete action, whose outputs of illegal actions are replaced by `ILLEGAL`.

    The mask is a part of the input, which the network sees as well, as zeros and ones.
    """

    def __init__(self, network: Network, mask: slice) -> None:
        """Sets the network, and the slice of its inputs that contains the mask."""
        super().__init__(name=network.name)
        self.network, self._mask = network, mask

    @property
    def trained_variables(self) -> list[tf.Variable]:
        """The variables for the optimiser."""
        return self.network.trained_variables

    def find_legal(self, x: tf.Tensor) -> tf.Tensor:
        """Returns which actions are legal, bool [B, actions]."""
        return x[..., self._mask] > 0

    def __call__(self, x: tf.Tensor, *, copy_index: int | None = None, dropout: Dropout | None = None) -> tf.Tensor:
        """Computes the outputs, float32 [B, actions] or [copies, B, actions]; see `MLP`."""
        return tf.where(self.find_legal(x), self.network(x, copy_index=copy_index, dropout=dropout), ILLEGAL)

    def copy(self) -> "MaskedNetwork":
        """Returns a target network."""
        return MaskedNetwork(self.network.copy(), self._mask)

    def track(self, online: "MaskedNetwork", rate: float) -> None:
        """Moves the weights towards those of `online`: w + rate * (online - w)."""
        self.network.track(online.network, rate)


def split_copies(x: tf.Tensor, copies: int) -> list[tf.Tensor]:
    """Returns the input [B, in] of each of several networks, from [copies, B, in], or [B, in] shared by all."""
    return tf.unstack(x, copies) if x.shape.rank == 3 else [x] * copies


def _normalize(x: tf.Tensor, *parameters: tf.Tensor) -> tf.Tensor:
    """Returns the layer normalisation of x with scale and offset, or x without these parameters."""
    if not parameters:
        return x
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) * parameters[0] + parameters[1]


def _transform(x: tf.Tensor, weights: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns x * weights + bias, [B, out], or [copies, B, out] if the parameters have that axis."""
    product = tf.matmul(x, weights)
    return tf.nn.bias_add(product, bias) if bias.shape.rank == 1 else product + bias


def critic_values(critic: Network, *inputs: tf.Tensor, copy_index: int | None = None) -> tf.Tensor:
    """Returns the values of concatenated inputs, float32 [B] or [copies, B]; [B] for the copy `copy_index`."""
    return tf.squeeze(critic(tf.concat(inputs, axis=-1), copy_index=copy_index), axis=-1)


def values_and_action_gradients(
    critic: Network, observation: tf.Tensor, actions: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the values of each critic, float32 [copies, B], and their gradients with respect to its actions.

    Args:
      critic: several critics.
      observation: float32 [B, D].
      actions: float32 [copies, B, A], the actions of each critic; the gradients have the same shape.
    """
    observations = tf.tile(observation[tf.newaxis], [actions.shape[0], 1, 1])
    with tf.GradientTape() as tape:
        tape.watch(actions)
        values = critic_values(critic, observations, actions)
    return values, tape.gradient(values, actions, unconnected_gradients=tf.UnconnectedGradients.ZERO)


class TanhActor(tf.Module):
    """A deterministic actor, whose action is the tanh of a network's output."""

    def __init__(self, network: Network, *, exploration_noise: float = 0.1) -> None:
        """Sets the network.

        Args:
          network: network from observations [B, D] to actions [B, A] before tanh.
          exploration_noise: standard deviation of the Gaussian noise that `sample` adds, in [-1, 1] units.
        """
        super().__init__(name="actor")
        self.network, self.trained_variables = network, network.trained_variables
        self._noise = exploration_noise

    def mode(self, observation: tf.Tensor, *, dropout: Dropout | None = None) -> tf.Tensor:
        """Returns the actions, float32 [B, A] in [-1, 1]; see `MLP` for `dropout`."""
        return tf.tanh(self.network(observation, dropout=dropout))

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the mode plus noise, clipped to [-1, 1], float32 [B, A]. `seed` is [2] integers."""
        mode = self.mode(observation)
        noise = self._noise * tf.random.stateless_normal(tf.shape(mode), seed)
        return tf.clip_by_value(mode + noise, -1.0, 1.0)

    def sample_smoothed(
        self, observation: tf.Tensor, seed: tf.Tensor, *, noise: float, clip: float, dropout: Dropout | None = None
    ) -> tf.Tensor:
        """Returns TD3's target action: the mode plus noise clipped to +-`clip`, clipped to [-1, 1], float32 [B, A].

        Fujimoto, van Hoof & Meger (2018), eq. 14. `noise` is the standard deviation, `seed` is [2] integers.
        """
        mode = self.mode(observation, dropout=dropout)
        clipped_noise = tf.clip_by_value(noise * tf.random.stateless_normal(tf.shape(mode), seed), -clip, clip)
        return tf.clip_by_value(mode + clipped_noise, -1.0, 1.0)


class GaussianActor(tf.Module):
    """A Gaussian actor with mean tanh(network) and standard deviations that do not depend on the observation."""

    def __init__(
        self,
        network: Network,
        size: int,
        *,
        log_std_bounds: tuple[float, float] = (-5.0, 2.0),
        has_sigmoid: bool = False,
    ) -> None:
        """Sets the network, and creates the log standard deviations, all 0, or in the middle of a sigmoid.

        Args:
          network: network from observations [B, D] to means [B, A] before tanh.
          size: number of actions A.
          log_std_bounds: bounds of the log standard deviations, to which they are clipped.
          has_sigmoid: whether a sigmoid between the bounds takes the place of clipping.
        """
        super().__init__(name="actor")
        self.network = network
        self.log_std = tf.Variable(tf.zeros([size]), name="log_std")
        self._bounds, self._has_sigmoid = log_std_bounds, has_sigmoid

    @property
    def trained_variables(self) -> list[tf.Variable]:
        """The variables for the optimiser."""
        return [*self.network.trained_variables, self.log_std]

    def bounded_log_std(self) -> tf.Tensor:
        """Returns the log standard deviations, float32 [A]."""
        low, high = self._bounds
        if self._has_sigmoid:
            return low + (high - low) * tf.sigmoid(self.log_std)
        return tf.clip_by_value(self.log_std, low, high)

    def mode(self, observation: tf.Tensor, *, dropout: Dropout | None = None) -> tf.Tensor:
        """Returns the most likely actions, float32 [B, A] in [-1, 1]; see `MLP` for `dropout`."""
        return tf.tanh(self.network(observation, dropout=dropout))

    def log_prob(self, observation: tf.Tensor, action: tf.Tensor, *, dropout: Dropout | None = None) -> tf.Tensor:
        """Returns the log densities, float32 [B], of actions [B, A]; see `MLP` for `dropout`."""
        return tf.reduce_sum(self.log_probs(observation, action, dropout=dropout), axis=-1)

    def log_probs(self, observation: tf.Tensor, action: tf.Tensor, *, dropout: Dropout | None = None) -> tf.Tensor:
        """Returns the log densities of the elements of actions [B, A], float32 [B, A]; see `MLP` for `dropout`."""
        log_std = self.bounded_log_std()
        z = (action - self.mode(observation, dropout=dropout)) * tf.exp(-log_std)
        return -0.5 * (tf.square(z) + 2.0 * log_std + np.float32(np.log(2 * np.pi)))

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns sampled actions, clipped to [-1, 1], float32 [B, A]. `seed` is [2] integers."""
        return tf.clip_by_value(self.sample_unclipped(observation, seed), -1.0, 1.0)

    def sample_unclipped(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns sampled actions, float32 [B, A]. `seed` is [2] integers."""
        mode = self.mode(observation)
        return mode + tf.exp(self.bounded_log_std()) * tf.random.stateless_normal(tf.shape(mode), seed)


def _init_weights(
    rng: np.random.Generator,
    sizes: Sequence[int],
    layer_norm: bool,
    init: str,
    hidden_bias: float | None,
    final_scale: float | None,
) -> list[np.ndarray]:
    """Returns the initial weights of one network, layer by layer."""
    parts: list[Any] = []
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        is_last = index == len(sizes) - 2
        scale = final_scale if is_last else None
        if init == "orthogonal":
            weights = _make_orthogonal(rng, rows, columns) * (np.sqrt(2) if scale is None else scale)
            bias = np.zeros(columns)
        elif init == "glorot":
            bound = np.sqrt(6 / (rows + columns)) * (1.0 if scale is None else scale)
            weights, bias = rng.uniform(-bound, bound, (rows, columns)), np.zeros(columns)
        else:
            bound = 1 / np.sqrt(rows if init == "fan_in" else columns) if scale is None else scale
            weights, bias = rng.uniform(-bound, bound, (rows, columns)), rng.uniform(-bound, bound, columns)
            bias *= init == "fan_in"
        if hidden_bias is not None and not is_last:
            bias = np.full(columns, hidden_bias)
        parts += [weights, bias]
        if layer_norm and not is_last:
            parts += [np.ones(columns), np.zeros(columns)]
    return [np.asarray(part, np.float32) for part in parts]


def _make_orthogonal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Returns a matrix [rows, columns] with orthonormal rows or columns, whichever are fewer."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
