"""Random shifts of the images in a batch, the data augmentation of DrQ."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.trajectories import Trajectory

from rlds2reverb.errors import ArgumentError
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.specs import describe

from .agents.network_inputs import is_channels_first, is_image, require_images

#: Maximum number of fields of an observation, and distance between the seeds of different runs.
_MAX_FIELDS = 1024


def shift_images(images: tf.Tensor, shifts: tf.Tensor, *, row_axis: int = 1) -> tf.Tensor:
    """Shifts images by whole pixels; positions beyond the border repeat the pixels at the border.

        output[n, y, x] = images[n, clip(y + shifts[n, 0], 0, H - 1), clip(x + shifts[n, 1], 0, W - 1)]

    That is a crop at `shifts` of images that are padded on each side with copies of their border.

    Args:
      images: any dtype [N, H, W, C], or [N, C, H, W] with `row_axis=2`.
      shifts: int32 [N, 2], vertical and horizontal shifts in pixels.
      row_axis: axis of the rows, which that of the columns follows.

    Returns:
      The shifted images, like `images`.
    """
    for axis, distances in zip((row_axis, row_axis + 1), tf.unstack(shifts, axis=1), strict=True):
        size = images.shape[axis]
        positions = tf.clip_by_value(tf.range(size) + distances[:, tf.newaxis], 0, size - 1)
        images = tf.gather(images, positions, axis=axis, batch_dims=1)
    return images


class RandomShift:
    """A function that shifts the images of a batch at random, for the argument `augment` of `Learner`.

        y + dy, x + dx with dy, dx ~ Uniform{-max_shift, ..., max_shift}

    Yarats, Kostrikov & Fergus (2021), "Image Augmentation Is All You Need: Regularizing Deep Reinforcement Learning
    from Pixels", arXiv:2004.13649, who pad images of 84 x 84 pixels by 4 and crop them again. As with K = M = 1 there,
    each observation is shifted once. Every item, its observation and its next one, and every image in them is shifted
    independently; the frames of a stack are one image. Images are uint8 [H, W, C] or [C, H, W], as for `ImageEncoder`;
    all other fields are unchanged, at both ends of an episode as elsewhere. The shifts depend only on the seed and the
    number of completed iterations, so that a resumed run repeats them.
    """

    def __init__(self, max_shift: int, observation_spec: Any, *, seed: int = 0):
        """Checks that there are images to shift.

        Args:
          max_shift: maximum shift in pixels, at least 1 and less than the height and width of every image.
          observation_spec: spec of the observation, a TensorSpec or a nest of them.
          seed: random seed, in [0, 2^32).

        Raises:
          ValueError: If no field of the observation is an image, or a number is out of range.
        """
        require_count("max_shift", max_shift)
        require_count("seed", seed, 0, 2**32 - 1)
        require_images(observation_spec, "random_shift", max_shift)
        self._max_shift, self._seed = max_shift, seed
        #: Index of each image in the flat observation, and axis of its rows without a batch axis.
        self._images: list[tuple[int, int]] = []
        for index, leaf in enumerate(tf.nest.flatten(observation_spec)):
            if not is_image(leaf):
                continue
            axis = int(is_channels_first(leaf.shape))
            self._images.append((index, axis))
            if max_shift >= min(leaf.shape[axis : axis + 2]):
                raise ArgumentError(
                    f"must be less than the height and width of every image, got {max_shift} for {describe(leaf)}",
                    about="random_shift",
                )

    def __call__(self, experience: Any, step: tf.Tensor) -> Any:
        """Returns a batch with shifted images; traced.

        Args:
          experience: `Transition` [B, ...] or `Trajectory` [B, T, ...].
          step: int64 [], number of completed iterations.
        """
        if isinstance(experience, Trajectory):
            return experience._replace(observation=self._shift(experience.observation, step, 0))
        begin, end = experience.time_step, experience.next_time_step
        return experience._replace(
            time_step=begin._replace(observation=self._shift(begin.observation, step, 0)),
            next_time_step=end._replace(observation=self._shift(end.observation, step, 1)),
        )

    def _shift(self, observation: Any, step: tf.Tensor, draw: int) -> Any:
        leaves = tf.nest.flatten(observation)
        for index, axis in self._images:
            column = leaves[index]
            images = tf.reshape(column, [-1, *column.shape[-3:]])
            key = -1 - 2 * (self._seed * _MAX_FIELDS + index) - draw  # Negative, unlike the seeds of agents.
            shifts = tf.random.stateless_uniform(
                [tf.shape(images)[0], 2],
                [tf.constant(key, tf.int64), tf.cast(step, tf.int64)],
                -self._max_shift,
                self._max_shift + 1,
                tf.int32,
            )
            shifted = shift_images(images, shifts, row_axis=axis + 1)
            leaves[index] = tf.ensure_shape(tf.reshape(shifted, tf.shape(column)), column.shape)
        return tf.nest.pack_sequence_as(observation, leaves)
