"""The vector that networks receive, and the fields of an observation and the action in it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.errors import ArgumentError
from rlds2reverb.types.specs import describe, leaves, path_name

#: Scale of images, whose pixels are from 0 to 255.
_PIXEL_SCALE = np.float32(1 / 255)


def is_image(spec: Any) -> bool:
    """Returns whether the TensorSpec of one step's field, without a batch axis, is that of an image."""
    return bool(spec.dtype == tf.uint8 and spec.shape.rank == 3)


def require_images(observation_spec: Any, argument: str, value: Any) -> None:
    """Raises `ArgumentError` for an argument that requires images, unless a field of the observation is one."""
    fields = leaves(observation_spec)
    if not any(is_image(leaf) for _, leaf in fields):
        got = ", ".join(f"{path_name(path, 'observation')} {describe(leaf)}" for path, leaf in fields)
        sentence = f"requires an observation that is an image, uint8 [H, W, C], got {got}; use the default"
        raise ArgumentError(sentence, about=argument, value=value)


def is_channels_first(shape: Sequence[int]) -> bool:
    """Returns whether the shape of an image is [C, H, W] rather than [H, W, C]: C is smaller than H and W."""
    return shape[0] < min(shape[1:])


class NetworkInputs:
    """The layout of the vectors [B, D] that networks receive: all fields of an observation, and possibly an action.

    Images are uint8 arrays of three dimensions; networks receive them scaled to [0, 1]. Other fields arrive as
    `Observations` normalised them.

    Attributes:
      size: number of elements D.
      shapes: shape of each field of the observation, in the order of `tf.nest.flatten`.
      are_images: whether each of them is an image.
      action_size: number of elements of the action, 0 without an action.
    """

    def __init__(self, observation_spec: Any, action_size: int = 0) -> None:
        """Reads the shapes.

        Args:
          observation_spec: spec of the observation, a TensorSpec or a nest of them, with fully known shapes.
          action_size: number of elements of the action at the end of the vector; 0 without an action.
        """
        leaves = tf.nest.flatten(tensor_spec.from_spec(observation_spec))
        self._structure = observation_spec
        self.shapes = [tuple(leaf.shape) for leaf in leaves]
        self.are_images = [is_image(leaf) for leaf in leaves]
        self.action_size = action_size
        self._sizes = [int(np.prod(shape, dtype=int)) for shape in self.shapes]
        self.size = sum(self._sizes) + action_size

    @property
    def image_shapes(self) -> list[tuple[int, ...]]:
        """The shape of each image."""
        return [shape for shape, is_image in zip(self.shapes, self.are_images, strict=True) if is_image]

    @property
    def spec(self) -> Any:
        """The spec of what `nest` returns, float32 without the batch axis."""
        fields = [tf.TensorSpec(shape, tf.float32) for shape in self.shapes]
        observation = tf.nest.pack_sequence_as(self._structure, fields)
        return (observation, tf.TensorSpec([self.action_size], tf.float32)) if self.action_size else observation

    def split(self, vectors: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """Returns the fields of the observations, each [B, ...], and the actions [B, A], or None without actions."""
        *parts, action = tf.split(vectors, [*self._sizes, self.action_size], axis=-1)
        fields = [
            tf.reshape(part, [tf.shape(part)[0], *shape]) * (_PIXEL_SCALE if is_image else 1.0)
            for part, shape, is_image in zip(parts, self.shapes, self.are_images, strict=True)
        ]
        return fields, action if self.action_size else None

    def nest(self, vectors: tf.Tensor) -> Any:
        """Returns the observations as a nest like the spec; with actions, the pair of both."""
        fields, action = self.split(vectors)
        observation = tf.nest.pack_sequence_as(self._structure, fields)
        return observation if action is None else (observation, action)
