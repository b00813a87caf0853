"""Networks for observations that contain images: convolutional encoders in front of a fully connected network."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .network_inputs import NetworkInputs
from .networks import MLP
from .replicas import assign_on_replica

#: Filters, kernel size and stride of each layer (Mnih et al. 2015, methods), without padding.
_LARGE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
#: The same for images that are smaller than those layers allow; with padding.
_SMALL_LAYERS = ((32, 3, 2), (64, 3, 2))
_MIN_LARGE_SIZE = 36


class ImageEncoder(tf.Module):
    """Convolutions with ReLU after each: those of Mnih et al. (2015) from 36 x 36 pixels, else two small ones.

    Images are [H, W, C]. If the first axis is shorter than both others, as in stacks of frames, they are [C, H, W].
    """

    def __init__(self, shape: Sequence[int], *, seed: int, trainable: bool = True, name: str) -> None:
        """Initialises the weights and biases uniformly within 1/sqrt(inputs).

        Args:
          shape: shape of an image.
          seed: random seed, which determines the weights together with `name`.
          trainable: whether the weights are trained.
          name: name of the module and its variable.
        """
        super().__init__(name=name)
        self._is_channels_first = shape[0] < min(shape[1:])
        height, width, channels = (*shape[1:], shape[0]) if self._is_channels_first else shape
        is_large = min(height, width) >= _MIN_LARGE_SIZE
        self._layers = _LARGE_LAYERS if is_large else _SMALL_LAYERS
        self._padding = "VALID" if is_large else "SAME"
        rng = np.random.default_rng([seed, *name.encode()])
        parts: list[np.ndarray] = []
        self._shapes: list[tuple[int, ...]] = []
        for filters, kernel, stride in self._layers:
            bound = 1 / np.sqrt(kernel * kernel * channels)
            for part_shape in ((kernel, kernel, channels, filters), (filters,)):
                parts.append(rng.uniform(-bound, bound, part_shape).ravel())
                self._shapes.append(part_shape)
            channels = filters
            height, width = ((n - kernel) // stride + 1 if is_large else -(-n // stride) for n in (height, width))
        self.size = height * width * channels
        self.flat = tf.Variable(np.concatenate(parts).astype(np.float32), trainable=trainable, name=name)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the features, float32 [B, size], of images with pixels in [0, 1]."""
        x = tf.transpose(images, [0, 2, 3, 1]) if self._is_channels_first else images
        parts = tf.split(self.flat, [int(np.prod(shape)) for shape in self._shapes])
        weights = [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]
        for (_, _, stride), kernel, bias in zip(self._layers, weights[::2], weights[1::2], strict=True):
            x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, stride, self._padding), bias))
        return tf.reshape(x, [tf.shape(x)[0], self.size])


class ImageNetwork(tf.Module):
    """An `MLP` that receives the features of images in place of their pixels, next to all other fields.

    Each of the `copies` has its own encoders. It is called, copied and tracked like an `MLP`.
    """

    def __init__(
        self,
        inputs: NetworkInputs,
        sizes: Sequence[int],
        *,
        seed: int,
        copies: int | None = None,
        name: str,
        **options: Any,
    ) -> None:
        """Initialises the weights.

        Args:
          inputs: layout of the network's inputs.
          sizes: sizes of each hidden layer and of the output.
          seed: random seed, which determines the weights together with `name`.
          copies: number of networks; None for one network without that axis.
          name: name of the module.
          **options: options of `MLP`.
        """
        super().__init__(name=name)
        self._inputs, self._copies = inputs, copies
        images = inputs.image_shapes
        self._encoders = [
            [
                ImageEncoder(shape, seed=seed, name=f"{name}_encoder_{copy}_{index}")
                for index, shape in enumerate(images)
            ]
            for copy in range(copies or 1)
        ]
        num_pixels = sum(int(np.prod(shape)) for shape in images)
        num_features = sum(encoder.size for encoder in self._encoders[0])
        self._mlp = MLP(
            [inputs.size - num_pixels + num_features, *sizes], seed=seed, copies=copies, name=name, **options
        )

    @property
    def trained_variables(self) -> list[tf.Variable]:
        """The variables for the optimiser."""
        return [*(encoder.flat for encoders in self._encoders for encoder in encoders), self._mlp.flat]

    def __call__(self, x: tf.Tensor, *, copy_index: int | None = None) -> tf.Tensor:
        """Computes the outputs, float32 [B, out] or [copies, B, out], of inputs [B, in]; see `MLP`."""
        fields, action = self._inputs.split(x)
        actions = [] if action is None else [action]
        if self._copies is None or copy_index is not None:
            features = tf.concat([*self._encode(fields, copy_index or 0), *actions], axis=1)
            return self._mlp(features, copy_index=copy_index)
        features = [tf.concat([*self._encode(fields, index), *actions], axis=1) for index in range(self._copies)]
        return self._mlp(tf.stack(features))

    def call_with_actions(self, observations: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        """Computes the outputs, float32 [copies, N * B, out], of several actions; each image is encoded only once.

        Args:
          observations: float32 [B, D].
          actions: float32 [N, B, A].
        """
        num, size, width = tf.shape(actions)[0], tf.shape(actions)[1], actions.shape[-1]
        fields, _ = self._inputs.split(tf.concat([observations, tf.zeros([size, width])], axis=1))
        inputs = []
        for index in range(self._copies or 1):
            features = tf.tile(tf.concat(self._encode(fields, index), axis=1), [num, 1])
            inputs.append(tf.concat([features, tf.reshape(actions, [-1, width])], axis=1))
        return self._mlp(tf.stack(inputs))

    def _encode(self, fields: list[tf.Tensor], copy_index: int) -> list[tf.Tensor]:
        """Returns all fields as vectors [B, ...], images as the features of one copy's encoders."""
        encoders = iter(self._encoders[copy_index])
        return [
            next(encoders)(field) if is_image else tf.reshape(field, [tf.shape(field)[0], int(np.prod(shape))])
            for field, shape, is_image in zip(fields, self._inputs.shapes, self._inputs.are_images, strict=True)
        ]

    def copy(self) -> "ImageNetwork":
        """Returns a target network: the same weights in separate, untrained variables."""
        target = object.__new__(ImageNetwork)
        tf.Module.__init__(target, name=f"target_{self.name}")
        target._inputs, target._copies, target._mlp = self._inputs, self._copies, self._mlp.copy()
        target._encoders = [
            [
                ImageEncoder(shape, seed=0, trainable=False, name=f"target_{encoder.name}")
                for shape, encoder in zip(self._inputs.image_shapes, encoders, strict=True)
            ]
            for encoders in self._encoders
        ]
        for own, online in zip(target.trained_variables, self.trained_variables, strict=True):
            own.assign(online)
        return target

    def track(self, online: "ImageNetwork", rate: float) -> None:
        """Moves the weights towards those of `online`: w + rate * (online - w)."""
        for own, other in zip(self.trained_variables, online.trained_variables, strict=True):
            assign_on_replica(own, own + rate * (other - own))
