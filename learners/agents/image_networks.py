"""Networks for observations that contain images: convolutional encoders in front of a fully connected network."""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import tensorflow as tf

from .hyperparameters import ImageEncoderName
from .network_inputs import NetworkInputs, is_channels_first
from .networks import MLP, Dropout, split_copies
from .replicas import assign_on_replica

#: Returns the next weights of an encoder, whose initial values are uniform between two bounds: `(shape, low, high)`.
_Take = Callable[[tuple[int, ...], float, float], tf.Tensor]

#: Filters, kernel size and stride of each layer (Mnih et al. 2015, methods), without padding.
_LARGE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
#: The same for images that are smaller than those layers allow; with padding.
_SMALL_LAYERS = ((32, 3, 2), (64, 3, 2))
_MIN_LARGE_SIZE = 36
#: Filters and first stride of each residual block of ResNet-18 (He et al. 2016, table 1).
_RESNET_BLOCKS = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
#: Factor by which ResNet-18 reduces height and width.
_RESNET_STRIDE = 32
#: Channels per group of a group normalisation (Wu & He 2018, table 3), and the constant added to its variances.
_GROUP_SIZE, _GROUP_EPSILON = 16, 1e-5


def _encode_nature(x: tf.Tensor, take: _Take) -> tf.Tensor:
    is_large = min(x.shape[1:3]) >= _MIN_LARGE_SIZE
    for layer in _LARGE_LAYERS if is_large else _SMALL_LAYERS:
        x = tf.nn.relu(_convolve(x, take, *layer, padding="VALID" if is_large else "SAME"))
    return _flatten(x)


def _encode_impala(x: tf.Tensor, take: _Take) -> tf.Tensor:
    for filters in (16, 32, 32):
        x = tf.nn.max_pool2d(_convolve(x, take, filters, 3), 3, 2, "SAME")
        for _ in range(2):
            hidden = _convolve(tf.nn.relu(x), take, filters, 3)
            x += _convolve(tf.nn.relu(hidden), take, filters, 3)
    return _flatten(tf.nn.relu(x))


def _encode_resnet(x: tf.Tensor, take: _Take) -> tf.Tensor:
    if max(x.shape[1:3]) <= _RESNET_STRIDE:  # A single position has no coordinates to average.
        raise ValueError(
            f"image_encoder='resnet' requires images of more than {_RESNET_STRIDE} pixels in height or width, got "
            f"{list(x.shape[1:3])}; use 'nature' or 'impala'"
        )
    x = tf.nn.max_pool2d(tf.nn.relu(_convolve_and_normalize(x, take, 64, 7, 2)), 3, 2, "SAME")
    for filters, stride in _RESNET_BLOCKS:
        hidden = tf.nn.relu(_convolve_and_normalize(x, take, filters, 3, stride))
        hidden = _convolve_and_normalize(hidden, take, filters, 3)
        shortcut = x if stride == 1 else _convolve_and_normalize(x, take, filters, 1, stride)
        x = tf.nn.relu(shortcut + hidden)
    return average_positions(x)


_ENCODERS = dict(zip(get_args(ImageEncoderName), (_encode_nature, _encode_impala, _encode_resnet), strict=True))


def _convolve(
    x: tf.Tensor,
    take: _Take,
    filters: int,
    kernel: int,
    stride: int = 1,
    *,
    padding: str = "SAME",
    has_bias: bool = True,
) -> tf.Tensor:
    bound = float(1 / np.sqrt(kernel * kernel * x.shape[-1]))
    outputs = tf.nn.conv2d(x, take((kernel, kernel, x.shape[-1], filters), -bound, bound), stride, padding)
    return tf.nn.bias_add(outputs, take((filters,), -bound, bound)) if has_bias else outputs


def _convolve_and_normalize(x: tf.Tensor, take: _Take, filters: int, kernel: int, stride: int = 1) -> tf.Tensor:
    x = _convolve(x, take, filters, kernel, stride, has_bias=False)
    groups = tf.reshape(x, [-1, *x.shape[1:3], filters // _GROUP_SIZE, _GROUP_SIZE])
    mean, variance = tf.nn.moments(groups, [1, 2, 4], keepdims=True)
    normalized = tf.reshape((groups - mean) * tf.math.rsqrt(variance + _GROUP_EPSILON), [-1, *x.shape[1:]])
    return normalized * take((filters,), 1, 1) + take((filters,), 0, 0)


def _flatten(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])


def average_positions(x: tf.Tensor) -> tf.Tensor:
    """Computes where each channel is active: the mean position, weighted by the softmax of its activations.

    The spatial softmax of Levine et al. (2016), "End-to-End Training of Deep Visuomotor Policies", section 5.1.

    Args:
      x: float32 [B, H, W, C], activations.

    Returns:
      float32 [B, 2 * C], the vertical positions of all channels, then the horizontal ones, in [-1, 1].
    """
    height, width, channels = x.shape[1:]
    weights = tf.nn.softmax(tf.reshape(x, [-1, height * width, channels]), axis=1)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij"))
    positions = tf.constant(grid.reshape(2, -1), tf.float32)
    return tf.reshape(tf.einsum("bpc,ap->bac", weights, positions), [-1, 2 * channels])


class ImageEncoder(tf.Module):
    """A convolutional encoder, whose architecture is one of three published ones.

    - "nature": the convolutions of Mnih et al. (2015) from 36 x 36 pixels, else two small ones, with ReLU after each.
    - "impala": the 15 convolutions of Espeholt et al. (2018, figure 3, right), in residual blocks, up to the last ReLU.
    - "resnet": ResNet-18 (He et al. 2016, table 1) with the changes of Diffusion Policy (Chi et al. 2023, "Visual
      encoder"): group normalisation, and a spatial softmax in place of the average pooling. For images of more than 32
      pixels in height or width.

    Images are [H, W, C]. If the first axis is shorter than both others, as in stacks of frames, they are [C, H, W].
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        architecture: ImageEncoderName = "nature",
        seed: int,
        trainable: bool = True,
        name: str,
    ) -> None:
        """Initialises the weights and biases uniformly within 1/sqrt(inputs), and normalisations to the identity.

        Args:
          shape: shape of an image.
          architecture: name of the architecture.
          seed: random seed, which determines the weights together with `name`.
          trainable: whether the weights are trained.
          name: name of the module and its variable.

        Raises:
          ValueError: If the images are too small for the architecture.
        """
        super().__init__(name=name)
        self.architecture = architecture
        rng = np.random.default_rng([seed, *name.encode()])
        parts: list[np.ndarray] = []

        def create(part_shape: tuple[int, ...], low: float, high: float) -> tf.Tensor:
            parts.append(rng.uniform(low, high, part_shape).astype(np.float32))
            return tf.constant(parts[-1])

        self._is_channels_first = is_channels_first(shape)
        self.size = int(self._encode(tf.zeros([1, *shape]), create).shape[-1])
        self._shapes = [part.shape for part in parts]
        self.flat = tf.Variable(np.concatenate([part.ravel() for part in parts]), trainable=trainable, name=name)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the features, float32 [B, size], of images with pixels in [0, 1]."""
        split = tf.split(self.flat, [int(np.prod(shape)) for shape in self._shapes])
        weights = iter(tf.reshape(part, shape) for part, shape in zip(split, self._shapes, strict=True))
        return self._encode(images, lambda *_: next(weights))

    def _encode(self, images: tf.Tensor, take: _Take) -> tf.Tensor:
        x = tf.transpose(images, [0, 2, 3, 1]) if self._is_channels_first else images
        return _ENCODERS[self.architecture](x, take)


class ImageNetwork(tf.Module):
    """An `MLP` that receives the features of images in place of their pixels, next to all other fields.

    Each of the `copies` has its own `encoders`, one per image, whose features `mlp` receives. It is called, copied and
    tracked like an `MLP`.
    """

    def __init__(
        self,
        inputs: NetworkInputs,
        sizes: Sequence[int],
        *,
        seed: int,
        image_encoder: ImageEncoderName = "nature",
        copies: int | None = None,
        name: str,
        **options: Any,
    ) -> None:
        """Initialises the weights.

        Args:
          inputs: layout of the network's inputs.
          sizes: sizes of each hidden layer and of the output.
          seed: random seed, which determines the weights together with `name`.
          image_encoder: architecture of the encoders.
          copies: number of networks; None for one network without that axis.
          name: name of the module.
          **options: options of `MLP`.

        Raises:
          ValueError: If an image is too small for the architecture.
        """
        super().__init__(name=name)
        self._inputs, self._copies = inputs, copies
        self._create_encoders(image_encoder, seed=seed, trainable=True)
        num_pixels = sum(int(np.prod(shape)) for shape in inputs.image_shapes)
        num_features = sum(encoder.size for encoder in self.encoders[0])
        self.mlp = MLP(
            [inputs.size - num_pixels + num_features, *sizes], seed=seed, copies=copies, name=name, **options
        )

    def _create_encoders(self, architecture: ImageEncoderName, *, seed: int, trainable: bool) -> None:
        """Creates one encoder for each image, and for each of the copies."""
        options: dict[str, Any] = {"architecture": architecture, "seed": seed, "trainable": trainable}
        self.encoders = [
            [
                ImageEncoder(shape, name=f"{self.name}_encoder_{copy}_{index}", **options)
                for index, shape in enumerate(self._inputs.image_shapes)
            ]
            for copy in range(self._copies or 1)
        ]

    @property
    def trained_variables(self) -> list[tf.Variable]:
        """The variables for the optimiser."""
        return [*(encoder.flat for encoders in self.encoders for encoder in encoders), self.mlp.flat]

    def __call__(self, x: tf.Tensor, *, copy_index: int | None = None, dropout: Dropout | None = None) -> tf.Tensor:
        """Computes the outputs, float32 [B, out] or [copies, B, out]; see `MLP`."""

        def compute_features(x: tf.Tensor, index: int) -> tf.Tensor:
            fields, action = self._inputs.split(x)
            return tf.concat([*self._encode(fields, index), *([] if action is None else [action])], axis=1)

        if self._copies is None or copy_index is not None:
            return self.mlp(compute_features(x, copy_index or 0), copy_index=copy_index, dropout=dropout)
        inputs = split_copies(x, self._copies)
        return self.mlp(tf.stack([compute_features(x, index) for index, x in enumerate(inputs)]), dropout=dropout)

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
        return self.mlp(tf.stack(inputs))

    def _encode(self, fields: list[tf.Tensor], copy_index: int) -> list[tf.Tensor]:
        """Returns all fields as vectors [B, ...], images as the features of one copy's encoders."""
        encoders = iter(self.encoders[copy_index])
        return [
            next(encoders)(field) if is_image else tf.reshape(field, [tf.shape(field)[0], int(np.prod(shape))])
            for field, shape, is_image in zip(fields, self._inputs.shapes, self._inputs.are_images, strict=True)
        ]

    def copy(self) -> "ImageNetwork":
        """Returns a target network: the same weights in separate, untrained variables."""
        target = object.__new__(ImageNetwork)
        tf.Module.__init__(target, name=f"target_{self.name}")
        target._inputs, target._copies, target.mlp = self._inputs, self._copies, self.mlp.copy()
        target._create_encoders(self.encoders[0][0].architecture, seed=0, trainable=False)
        for own, online in zip(target.trained_variables, self.trained_variables, strict=True):
            own.assign(online)
        return target

    def track(self, online: "ImageNetwork", rate: float) -> None:
        """Moves the weights towards those of `online`: w + rate * (online - w)."""
        for own, other in zip(self.trained_variables, online.trained_variables, strict=True):
            assign_on_replica(own, own + rate * (other - own))
