"""Wrappers of Gymnasium environments that change images in the observations, after those of ALF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces

from rlds2reverb.types.arguments import require_number, require_one_of
from rlds2reverb.types.nest_paths import Keys

from .gymnasium_wrappers import Env, ObservationTransform, make_box

ChannelOrder = Literal["channels_last", "channels_first"]


class ImageTransform(ObservationTransform):
    """Base class of wrappers that change images, which are all observations with three axes."""

    supported = "images with three axes"

    def __init__(self, env: Env, fields: str | Sequence[str] | None, **arguments: Any):
        """Wraps an environment; an argument may be `channel_order`. See `ObservationTransform`."""
        channel_order = arguments.get("channel_order", "channels_last")
        require_one_of("channel_order", channel_order, get_args(ChannelOrder))
        #: The first of the two axes of the image.
        self._height_axis = 0 if channel_order == "channels_last" else 1
        super().__init__(env, fields, **arguments)

    def accepts(self, space: Any, *, is_named: bool) -> bool:
        """Returns whether the space is a Box with three axes."""
        return isinstance(space, spaces.Box) and len(space.shape) == 3


class ImageChannelFirst(ImageTransform):
    """Changes images [H, W, C] to [C, H, W].

    ALF's wrapper also accepts observations without images, and leaves them as they are; this one raises an error.
    """

    def __init__(self, env: Env, fields: str | Sequence[str] | None = None):
        """Wraps an environment.

        Args:
          env: the environment.
          fields: see `ObservationTransform`.

        Raises:
          ValueError: If there is no such path.
          TypeError: If a leaf is not an image.
        """
        super().__init__(env, fields)

    def transform_space(self, space: spaces.Box) -> spaces.Box:
        """Returns the space of the image [C, H, W]."""
        return make_box(np.moveaxis(space.low, -1, 0), np.moveaxis(space.high, -1, 0), space)

    def transform_observation(self, observation: np.ndarray, keys: Keys) -> np.ndarray:
        """Returns the image [C, H, W]."""
        return np.ascontiguousarray(np.moveaxis(observation, -1, 0))


class FrameFlip(ImageTransform):
    """Flips images upside down, left to right, or both, at random but equally throughout an episode.

    All images of an episode are flipped in the same way.
    """

    def __init__(
        self,
        env: Env,
        ud_flip_prob: float = 0.5,
        lr_flip_prob: float = 0.5,
        channel_order: ChannelOrder = "channels_last",
        fields: str | Sequence[str] | None = None,
    ):
        """Wraps an environment.

        Args:
          env: the environment.
          ud_flip_prob: probability of flipping upside down, in [0, 1].
          lr_flip_prob: probability of flipping left to right, in [0, 1], independent of the former.
          channel_order: 'channels_last' for images [H, W, C], 'channels_first' for [C, H, W].
          fields: see `ObservationTransform`.

        Raises:
          ValueError: If an argument is out of range, or there is no such path.
          TypeError: If a leaf is not an image.
        """
        require_number("ud_flip_prob", ud_flip_prob, 0, 1)
        require_number("lr_flip_prob", lr_flip_prob, 0, 1)
        self.probabilities = ud_flip_prob, lr_flip_prob
        #: Whether the images of this episode are upside down, and whether they are flipped left to right.
        self.is_flipped = (False, False)
        super().__init__(env, fields, ud_flip_prob=ud_flip_prob, lr_flip_prob=lr_flip_prob, channel_order=channel_order)

    def start_episode(self) -> None:
        """Chooses how the images of the episode are flipped."""
        up, left = self.random.random(2) < self.probabilities
        self.is_flipped = bool(up), bool(left)

    def transform_space(self, space: spaces.Box) -> spaces.Box:
        """Returns a space that contains the image with all flips that can occur."""
        choices = [[flag for flag in (False, True) if (p if flag else 1 - p) > 0] for p in self.probabilities]
        flips = [(up, left) for up in choices[0] for left in choices[1]]
        low = np.minimum.reduce([self._flip(space.low, flip) for flip in flips])
        high = np.maximum.reduce([self._flip(space.high, flip) for flip in flips])
        return make_box(low, high, space)

    def transform_observation(self, observation: np.ndarray, keys: Keys) -> np.ndarray:
        """Returns the flipped image."""
        return np.ascontiguousarray(self._flip(observation, self.is_flipped))

    def _flip(self, image: np.ndarray, is_flipped: tuple[bool, bool]) -> np.ndarray:
        return np.flip(image, [self._height_axis + axis for axis in (0, 1) if is_flipped[axis]])


class EpisodicRandomFrameCrop(ImageTransform):
    """Crops images at a random place that is the same throughout an episode.

    All places are equally likely. (ALF's wrapper never chooses the lowest and the rightmost one.)
    """

    def __init__(
        self,
        env: Env,
        cropping_fraction: float = 0.8,
        channel_order: ChannelOrder = "channels_last",
        share_cropping: bool = True,
        fields: str | Sequence[str] | None = None,
    ):
        """Wraps an environment.

        Args:
          env: the environment.
          cropping_fraction: height and width of the cropped images as a fraction of the original ones, in (0, 1];
            rounded down, at least one pixel.
          channel_order: 'channels_last' for images [H, W, C], 'channels_first' for [C, H, W].
          share_cropping: whether all images are cropped at the same place, for which they must have the same height and
            width; otherwise each has its own.
          fields: see `ObservationTransform`.

        Raises:
          ValueError: If an argument is out of range, there is no such path, or images that share a place differ in
            height or width.
          TypeError: If a leaf is not an image.
        """
        require_number("cropping_fraction", cropping_fraction, 0, 1)
        if not cropping_fraction:
            raise ValueError("cropping_fraction must be above 0, got 0")
        self._fraction, self._is_shared = cropping_fraction, share_cropping
        options = {"cropping_fraction": cropping_fraction, "share_cropping": share_cropping}
        super().__init__(env, fields, **options, channel_order=channel_order)
        sizes = sorted({self._read_size(space) for space in self.spaces.values()})
        if share_cropping and len(sizes) > 1:
            raise ValueError(
                f"images cropped at the same place must have equal sizes, got {sizes}; use share_cropping=False"
            )
        #: The row and the column of the original image where that of this episode begins, for each image.
        self.places: dict[Keys, tuple[int, int]] = dict.fromkeys(self.spaces, (0, 0))

    def start_episode(self) -> None:
        """Chooses where the images of the episode are cropped."""
        place = None
        for keys, space in self.spaces.items():
            if place is None or not self._is_shared:
                size, cropped = self._read_size(space), self._crop_size(space)
                y, x = (int(self.random.integers(size[axis] - cropped[axis], endpoint=True)) for axis in (0, 1))
                place = y, x
            self.places[keys] = place

    def transform_space(self, space: spaces.Box) -> spaces.Box:
        """Returns the space of the cropped image, whose bounds are those of the whole image per channel."""
        axes = (self._height_axis, self._height_axis + 1)
        low, high = space.low.min(axes, keepdims=True), space.high.max(axes, keepdims=True)
        shape = list(space.shape)
        shape[axes[0]], shape[axes[1]] = self._crop_size(space)
        return make_box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), space)

    def transform_observation(self, observation: np.ndarray, keys: Keys) -> np.ndarray:
        """Returns the cropped image."""
        (y, x), (height, width) = self.places[keys], self._crop_size(self.spaces[keys])
        before = (slice(None),) * self._height_axis
        return np.ascontiguousarray(observation[(*before, slice(y, y + height), slice(x, x + width))])

    def _read_size(self, space: spaces.Box) -> tuple[int, int]:
        """Returns height and width of an image."""
        return space.shape[self._height_axis], space.shape[self._height_axis + 1]

    def _crop_size(self, space: spaces.Box) -> tuple[int, int]:
        """Returns height and width of a cropped image."""
        height, width = (max(int(self._fraction * size), 1) for size in self._read_size(space))
        return height, width
