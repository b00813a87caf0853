"""Custom networks, and the choice of the network that an agent uses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.system.code_fingerprints import describe_reference

from ..option_declarations import NetworkFactory
from .hyperparameters import ImageEncoderName
from .image_networks import ImageNetwork
from .network_inputs import NetworkInputs, require_images
from .networks import MLP, Dropout, MaskedNetwork, Network, split_copies
from .replicas import assign_on_replica
from .unit_conversions import Observations


def make_network(
    factory: NetworkFactory | None,
    observations: Observations,
    sizes: Sequence[int],
    *,
    action_size: int = 0,
    image_encoder: ImageEncoderName = "nature",
    seed: int,
    copies: int | None = None,
    name: str,
    **options: Any,
) -> Network:
    """Returns a custom network if there is a factory, else an `ImageNetwork` for images, else an `MLP`.

    Args:
      factory: function `(input_spec, output_size, seed)` that creates a network, see `CustomNetwork`; None for none.
      observations: the observations that the network receives.
      sizes: sizes of each hidden layer and of the output; with a factory only the latter counts.
      action_size: number of elements of the action that follows the observation; 0 without an action.
      image_encoder: architecture of the encoder of each image, without a factory; see `ImageEncoder`.
      seed: random seed for weight initialisation.
      copies: number of networks with different weights; None for one network without that axis.
      name: name of the network.
      **options: options of `MLP`, without a factory.

    Raises:
      ValueError: If there is no image for an encoder other than the default, or an image is too small for it.
    """
    inputs = NetworkInputs(observations.encoded_spec, action_size)
    if image_encoder != "nature":
        require_images(observations.spec, "image_encoder", image_encoder)
    network: Network
    if factory is not None:
        network = CustomNetwork(factory, inputs, sizes[-1], seed=seed, copies=copies, name=name)
    elif inputs.image_shapes:
        encoder: Any = {"image_encoder": image_encoder, "seed": seed, "copies": copies, "name": name}
        network = ImageNetwork(inputs, sizes, **encoder, **options)
    else:
        network = MLP([inputs.size, *sizes], seed=seed, copies=copies, name=name, **options)
    mask = observations.mask
    if mask and sizes[-1] == mask.stop - mask.start:
        network = MaskedNetwork(network, mask)
    return network


class CustomNetwork(tf.Module):
    """One or several networks that a function of the user created, called, copied and tracked like an `MLP`.

    The function is called with the spec of the input, the size of the output and a random seed, and must create a new
    network in each call: a Keras layer or model, a TF-Agents network, or any other callable `tf.Module`. The input is
    a batch of observations, float32 with the structure and shapes of the data; that of a critic of continuous actions
    is the pair of observations and actions, as in TF-Agents. Images are scaled to [0, 1], other fields are normalised
    if the agent normalises them, and actions are in [-1, 1]. The output must be float32 [B, output_size]. Layers that
    behave differently in training, such as dropout, are called as in inference.
    """

    def __init__(
        self,
        factory: NetworkFactory,
        inputs: NetworkInputs,
        output_size: int,
        *,
        seed: int,
        copies: int | None = None,
        name: str,
    ) -> None:
        """Creates the networks, and calls each of them once to create its variables.

        Args:
          factory: function `(input_spec, output_size, seed)`.
          inputs: layout of the network's inputs.
          output_size: number of outputs.
          seed: random seed; each copy receives a different one, which depends on `name` as well.
          copies: number of networks; None for one network without that axis.
          name: name of the module.

        Raises:
          TypeError: If the factory does not return a network.
          ValueError: If the network has no variables or a different output, or shares variables with another one.
        """
        super().__init__(name=name)
        self._factory, self._inputs, self._output_size, self._copies = factory, inputs, output_size, copies
        self._create_again = partial(CustomNetwork, factory, inputs, output_size, seed=seed, copies=copies)
        seeds = [np.random.default_rng([seed, *name.encode(), index]) for index in range(copies or 1)]
        # Functions are not tracked: checkpoints and exported policies contain the variables in this list.
        created = [self._create(int(generator.integers(2**31))) for generator in seeds]
        self._calls = [call for _, call in created]
        self._weights = [variable for network, _ in created for variable in network.variables]
        self._require_distinct(self._weights)

    @property
    def trained_variables(self) -> list[tf.Variable]:
        """The variables for the optimiser."""
        return [variable for variable in self._weights if variable.trainable]

    def __call__(self, x: tf.Tensor, *, copy_index: int | None = None, dropout: Dropout | None = None) -> tf.Tensor:
        """Computes the outputs, float32 [B, out] or [copies, B, out], without dropout; see `MLP`."""
        if self._copies is None or copy_index is not None:
            return self._calls[copy_index or 0](self._inputs.nest(x))
        inputs = split_copies(x, self._copies)
        return tf.stack([call(self._inputs.nest(x)) for call, x in zip(self._calls, inputs, strict=True)])

    def copy(self) -> "CustomNetwork":
        """Returns a target network: the same weights in separate variables of new networks."""
        target = self._create_again(name=f"target_{self.name}")
        self._require_distinct([*self._weights, *target._weights])
        for own, online in zip(target._weights, self._weights, strict=True):
            own.assign(online)
        return target

    def track(self, online: "CustomNetwork", rate: float) -> None:
        """Moves the weights towards those of `online`: w + rate * (online - w). Copies other variables."""
        for own, other in zip(self._weights, online._weights, strict=True):
            assign_on_replica(own, own + rate * (other - own) if other.trainable else other)

    def _require_distinct(self, variables: Sequence[tf.Variable]) -> None:
        if len({id(variable) for variable in variables}) < len(variables):
            raise ValueError(f"{describe_reference(self._factory)} must create a new network in each call")

    def _create(self, seed: int) -> tuple[Any, Callable[[Any], tf.Tensor]]:
        """Returns a network, and a function that calls it and returns float32 [B, out]."""
        name, size = describe_reference(self._factory), self._output_size
        network = self._factory(self._inputs.spec, size, seed)
        if not callable(network) or not isinstance(network, tf.Module):
            raise TypeError(f"{name} must return a Keras layer or model or a callable tf.Module, got {network!r}")

        def compute(nest: Any) -> tf.Tensor:
            output = network(nest)  # TF-Agents' networks return a state as well.
            return tf.convert_to_tensor(output[0] if isinstance(output, tuple) else output)

        try:
            output = compute(self._inputs.nest(tf.zeros([1, self._inputs.size])))
        except Exception as error:  # Networks raise errors of any type.
            takes = "the pair (observation, action)" if self._inputs.action_size else "a batch of observations"
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"the network of {name} must accept {takes} as its only argument, shaped as in the input_spec of the "
                f"function, got {type(error).__name__}: {reason}; join the parts first, if there are several, such as "
                "with tf.concat(tf.nest.flatten(inputs), -1)"
            ) from error
        if output.shape not in ([1, size], [1] if size == 1 else None):
            raise ValueError(
                f"the network of {name} must return float32 [B, {size}], got {output.shape} for a batch of 1"
            )
        if not network.variables:
            raise ValueError(f"the network of {name} has no variables; create them in its first call")
        return network, lambda nest: tf.cast(tf.reshape(compute(nest), [-1, size]), tf.float32)


@dataclass(frozen=True)
class FullyConnected:
    """A factory of fully connected networks with ReLU, for the network hyperparameters of agents.

        train(..., hyperparameters={"critic_network": FullyConnected((256, 256), layer_norm=True)})

    All fields of the input, also images, are concatenated into one vector.

    Attributes:
      hidden_sizes: sizes of the hidden layers.
      layer_norm: whether each hidden ReLU is followed by layer normalisation.
      init: initialisation of the weights, "fan_in" or "orthogonal"; see `MLP`.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    layer_norm: bool = False
    init: str = "fan_in"

    def __call__(self, input_spec: Any, output_size: int, seed: int) -> tf.Module:
        """Creates a network."""
        return _Flattened(input_spec, output_size, seed, self)


class _Flattened(tf.Module):
    """An `MLP` of the concatenated fields of a nest."""

    def __init__(self, input_spec: Any, output_size: int, seed: int, options: FullyConnected):
        super().__init__(name="fully_connected")
        self._fields = Observations(input_spec)
        sizes = [self._fields.size, *options.hidden_sizes, output_size]
        self._mlp = MLP(sizes, seed=seed, layer_norm=options.layer_norm, init=options.init)

    def __call__(self, nest: Any) -> tf.Tensor:
        return self._mlp(self._fields(nest))
