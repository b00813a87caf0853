"""Conversions between the observations and actions of an environment and of the networks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.specs import tensor_spec
from tf_agents.utils import nest_utils

from rlds2reverb.errors import ArgumentError, SpecMismatchError
from rlds2reverb.types.specs import describe, leaves, path_name

from ..algorithms import ALGORITHMS
from ..graph_errors import require

Array = Any
#: Field of an observation that tells which discrete actions are legal, if the user names none.
_ACTION_MASK = "action_mask"
_MAX_CATEGORIES = 1 << 16


class Observations(tf.Module):
    """A map from nests of observations to float32 [B, D], normalised as (x - mean) / std.

    The networks receive all fields of an observation in one vector, from which `NetworkInputs` restores the shapes of
    images. Categories (see `count_categories`) become one-hot vectors, which are not normalised; other integers and
    booleans become numbers. Strings are rejected.

    Attributes:
      spec: spec of the observations.
      encoded_spec: the same with the shapes of one-hot vectors.
      mask: the slice of the vectors that tells which actions are legal, 1 or 0; None without such a field.
    """

    def __init__(
        self,
        spec: Any,
        mean: Any = None,
        std: Any = None,
        *,
        num_actions: int | None = None,
        action_mask: str | None = None,
    ) -> None:
        """Stores the statistics in untrained variables, which are saved with the weights.

        Args:
          spec: observation spec, a TensorSpec or a nest of them, with fully known shapes.
          mean: nest of means like `spec`; None for no normalisation.
          std: nest of positive divisors like `spec`, such as TD3+BC's standard deviation + 1e-3; required with `mean`.
            With an infinite divisor the networks see 0.
          num_actions: number of discrete actions; None for other actions.
          action_mask: name of the field with their mask; see `find_action_mask`.

        Raises:
          ValueError: If an observation contains strings or has an unknown shape, if only one of `mean` and `std` is
            set, if they do not match `spec`, if `mean` is not finite, if `std` is not positive, or if there is no
            field `action_mask`.
        """
        super().__init__(name="observations")
        _require_numbers(spec)
        self.spec = self._spec = spec
        specs = tf.nest.flatten(spec)
        mask = find_action_mask(spec, num_actions, action_mask)
        self._are_masks = [path == (mask,) for path, _ in tree.flatten_with_path(spec)]
        self._categories = [
            None if is_mask else count_categories(leaf) for leaf, is_mask in zip(specs, self._are_masks, strict=True)
        ]
        shapes = [leaf.shape if n is None else [sum(n)] for leaf, n in zip(specs, self._categories, strict=True)]
        encoded = [
            leaf if n is None else tf.TensorSpec([sum(n)], tf.float32)
            for leaf, n in zip(specs, self._categories, strict=True)
        ]
        self.encoded_spec = tf.nest.pack_sequence_as(spec, encoded)
        self._sizes = [int(np.prod(shape, dtype=int)) for shape in shapes]
        self.size, self.mask = sum(self._sizes), None
        if mask:
            index = self._are_masks.index(True)
            self.mask = slice(sum(self._sizes[:index]), sum(self._sizes[: index + 1]))
        if (mean is None) != (std is None):
            raise ValueError("observation_mean and observation_std must be set together; set both or neither")
        self._mean = self._scale = None
        if mean is not None:
            flat_mean = self._flatten_statistic("observation_mean", mean, specs)
            flat_std = self._flatten_statistic("observation_std", std, specs)
            if not np.isfinite(flat_mean.astype(np.float32)).all():
                raise ValueError("observation_mean must be finite, got NaN or infinite means; check the observations")
            if not np.all(flat_std.astype(np.float32) > 0):
                raise ValueError(
                    f"observation_std must be positive, got {flat_std.min()}; "
                    "add a small constant such as 1e-3 for constant features"
                )
            mean = flat_mean.astype(np.float32)
            rest = flat_mean - mean
            self._mean = tf.Variable(mean, trainable=False, name="observation_mean")
            self._scale = tf.Variable(1 / flat_std, trainable=False, dtype=tf.float32, name="observation_scale")
            # What rounding takes from the mean matters at large offsets. It is subtracted after the scaling, because
            # exports would combine two subtractions into one.
            self._shift = tf.Variable(rest / flat_std, trainable=False, dtype=tf.float32, name="observation_shift")

    def __call__(self, observation: Any) -> tf.Tensor:
        """Returns the normalised observations, float32 [B, D], with fields in the order of `tf.nest.flatten`."""
        leaves = tf.nest.flatten(nest_utils.prune_extra_keys(self._spec, observation))
        flat = [self._encode(index, leaf) for index, leaf in enumerate(leaves)]
        joined = flat[0] if len(flat) == 1 else tf.concat(flat, axis=1)
        return joined if self._mean is None else (joined - self._mean) * self._scale - self._shift

    def _encode(self, index: int, leaf: tf.Tensor) -> tf.Tensor:
        """Returns the field with this index as float32 [B, size]."""
        counts, spec = self._categories[index], tf.nest.flatten(self._spec)[index]
        if self._are_masks[index]:
            return tf.cast(tf.cast(leaf, tf.float32) > 0, tf.float32)
        if counts is None:
            return tf.cast(tf.reshape(leaf, [tf.shape(leaf)[0], self._sizes[index]]), tf.float32)
        offsets = tf.cast(leaf, tf.int64) - np.broadcast_to(spec.minimum, spec.shape).astype(np.int64)
        columns = tf.unstack(tf.reshape(offsets, [tf.shape(leaf)[0], len(counts)]), axis=1)
        return tf.concat([tf.one_hot(column, n) for column, n in zip(columns, counts, strict=True)], axis=1)

    def _flatten_statistic(self, name: str, value: Any, specs: list[Any]) -> np.ndarray:
        """Checks a statistic against the spec, and returns it as float64 [D]."""
        try:
            leaves = [np.asarray(leaf, np.float64) for leaf in tree.flatten_up_to(self._spec, value)]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be a nest like the observation spec: {error}") from error
        for spec, leaf in zip(specs, leaves, strict=True):
            if leaf.shape != tuple(spec.shape):
                raise ValueError(f"{name} of {spec.name!r} must have the shape {tuple(spec.shape)}, got {leaf.shape}")
        is_raw = [n is not None or is_mask for n, is_mask in zip(self._categories, self._are_masks, strict=True)]
        neutral = np.float32(name == "observation_std")
        return np.concatenate(
            [
                np.full(size, neutral) if raw else leaf.ravel()
                for leaf, size, raw in zip(leaves, self._sizes, is_raw, strict=True)
            ]
        )


def count_categories(spec: Any) -> list[int] | None:
    """Returns the number of categories of each element of a field that holds categories, or None for other fields.

    These are integers [] or [N] with bounds that at most 65,536 values are within, as of Gymnasium's Discrete and
    MultiDiscrete spaces. Vectors of bytes are numbers.
    """
    is_bounded = isinstance(spec, tensor_spec.BoundedTensorSpec) and spec.dtype.is_integer
    if not is_bounded or spec.shape.rank > 1 or (spec.shape.rank and spec.dtype == tf.uint8):
        return None
    counts = np.broadcast_to(np.int64(spec.maximum) - np.int64(spec.minimum) + 1, spec.shape).ravel().tolist()
    return counts if counts and min(counts) > 0 and sum(counts) <= _MAX_CATEGORIES else None


def find_action_mask(spec: Any, num_actions: int | None, name: str | None = None) -> str | None:
    """Returns the name of the field of an observation [num_actions] that is not 0 for legal actions, or None.

    Args:
      spec: spec of the observation.
      num_actions: number of discrete actions; None for other actions.
      name: the field that the user has named; None for 'action_mask', if there is such a field.

    Raises:
      ArgumentError: If there is no field of this name and shape, or the actions are not discrete.
    """
    field: Any = spec.get(name or _ACTION_MASK) if isinstance(spec, Mapping) else None
    if num_actions and hasattr(field, "shape") and tuple(field.shape) == (num_actions,):
        return name or _ACTION_MASK
    if name is not None:
        size = f", one number for each of the {num_actions} actions" if num_actions else " with discrete actions"
        got = ", ".join(f"{path_name(path, 'observation')} {describe(leaf)}" for path, leaf in leaves(spec))
        sentence = f"must be a field of the observation{size}, got {got}; name another field, or none"
        raise ArgumentError(sentence, about="action_mask", value=name)
    return None


class BoundedActions(tf.Module):
    """A map of continuous actions between the bounds of their spec and [-1, 1].

    Attributes:
      size: number of elements A, and of outputs of an actor.
      input_size: number of inputs for an action of networks of Q-values.
      num_values: number of their outputs.
      log_scale: logarithm of the volume of actions in the environment's units per volume of those in [-1, 1].
    """

    num_values = 1

    def __init__(self, spec: Any) -> None:
        """Computes the centre and half width of the bounds.

        Args:
          spec: float BoundedTensorSpec of shape [A] with finite bounds.

        Raises:
          ValueError: If the spec is a nest, or does not have finite bounds, a float dtype and one dimension.
        """
        super().__init__(name="actions")
        spec = _single_spec(spec)
        if not spec.dtype.is_floating or spec.shape.rank != 1:
            advice = f"use an algorithm for discrete actions ({_algorithms('discrete')})"
            advice = "reshape them to one dimension" if spec.dtype.is_floating else advice
            raise ValueError(f"actions must be floats of shape [A], got {describe(spec)}; {advice}")
        low, high = np.broadcast_to(spec.minimum, spec.shape), np.broadcast_to(spec.maximum, spec.shape)
        limit = np.finfo(np.float32).max
        if not (np.all(np.abs(low) < limit) and np.all(np.abs(high) < limit) and np.all(low < high)):
            raise ValueError(
                f"the action spec must have finite bounds, got [{low.tolist()}, {high.tolist()}]; "
                "use a BoundedTensorSpec with the environment's minimum and maximum"
            )
        self.spec = spec
        self.size = self.input_size = int(spec.shape[0])
        self._centre = ((high.astype(np.float64) + low) / 2).astype(np.float32)
        self._half_width = ((high.astype(np.float64) - low) / 2).astype(np.float32)
        self.log_scale = float(np.log(self._half_width).sum())

    def to_unit(self, action: Array) -> tf.Tensor:
        """Converts actions within the bounds to float32 [B, A] in [-1, 1]."""
        return (tf.cast(action, tf.float32) - self._centre) / self._half_width

    def to_environment(self, unit_action: Array) -> tf.Tensor:
        """Converts actions [B, A], clipped to [-1, 1], to the bounds and the dtype of the spec."""
        scaled = self._centre + self._half_width * tf.clip_by_value(unit_action, -1.0, 1.0)
        return tf.cast(scaled, self.spec.dtype)


class DiscreteActions(tf.Module):
    """A map of discrete actions between the integers of their spec and 0 .. num_actions - 1.

    Attributes:
      size, input_size, num_values, log_scale: see `BoundedActions`; probabilities have no unit.
    """

    input_size, log_scale = 0, 0.0

    def __init__(self, spec: Any) -> None:
        """Reads the minimum action and the number of actions.

        Args:
          spec: integer BoundedTensorSpec of shape [].

        Raises:
          ValueError: If the spec is a nest, not an integer scalar, or not bounded.
        """
        super().__init__(name="actions")
        spec = _single_spec(spec)
        if not spec.dtype.is_integer:
            raise ValueError(
                f"actions must be integers of shape [], got {describe(spec)}; cast whole numbers to integers, or use "
                f"an algorithm for continuous actions ({_algorithms('continuous')})"
            )
        self.spec = spec
        self._minimum = int(spec.minimum)
        self.num_actions = self.size = self.num_values = int(spec.maximum) - self._minimum + 1
        if not 1 < self.num_actions <= 1 << 20:
            raise ValueError(
                f"the number of discrete actions must be from 2 to 2**20, got {spec.minimum} to {spec.maximum}; "
                "use a BoundedTensorSpec with the minimum and maximum action"
            )

    def require_valid(self, action: Array, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns actions and the weights of their items, unless an action is below the minimum or above the maximum.

        A graph then fails with an error that the `Learner` converts to `SpecMismatchError`. XLA omits assertions, so
        the weights, and with them the loss, become NaN.

        Raises:
          SpecMismatchError: If an action is out of bounds, outside graphs.
        """
        action, last = tf.cast(action, tf.int64), self._minimum + self.num_actions - 1
        is_valid = tf.reduce_all((action >= self._minimum) & (action <= last))
        error = SpecMismatchError(
            f"discrete actions must be from {self._minimum} to {last}, as in the action spec, but the data contain "
            "others; fix the data, or create the agent with the minimum and maximum action"
        )
        if tf.executing_eagerly():
            if not is_valid:
                raise error
            return action, weights
        with tf.control_dependencies([require(is_valid, error)]):
            return tf.identity(action), tf.where(is_valid, weights, np.nan)

    def to_unit(self, action: Array) -> tf.Tensor:
        """Converts actions to int32 [B] in 0 .. num_actions - 1."""
        return tf.cast(tf.cast(action, tf.int64) - self._minimum, tf.int32)

    def to_environment(self, unit_action: Array) -> tf.Tensor:
        """Converts actions [B] from 0 to those between the spec's minimum and maximum."""
        return tf.cast(unit_action, self.spec.dtype) + tf.cast(self._minimum, self.spec.dtype)


def _single_spec(spec: Any) -> tensor_spec.BoundedTensorSpec:
    leaves = tf.nest.flatten(tensor_spec.from_spec(spec))
    if len(leaves) != 1:
        raise ValueError(
            f"the action must be a single array, got a nest of {len(leaves)}; concatenate its arrays into one"
        )
    (leaf,) = leaves
    if leaf.dtype.is_integer and leaf.shape.rank:
        raise ValueError(
            f"several discrete actions per step (MultiDiscrete) are not supported, got {describe(leaf)}; encode each "
            "combination of them as a single integer"
        )
    if not (leaf.dtype.is_floating or leaf.dtype.is_integer):
        raise ValueError(f"actions must be floats or integers, got {describe(leaf)}; convert them to numbers")
    if not isinstance(leaf, tensor_spec.BoundedTensorSpec):
        raise ValueError(
            f"the action spec must be a BoundedTensorSpec with the environment's minimum and maximum, got {leaf}"
        )
    return leaf


def _require_numbers(spec: Any) -> None:
    for path, leaf in tree.flatten_with_path(spec):
        name = path_name(path, "observation")
        if not (leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool):
            raise ValueError(
                f"{name} must contain numbers, got {describe(leaf)}; agents do not learn from text, so drop the field"
            )
        if not leaf.shape.is_fully_defined():
            raise ValueError(f"{name} must have a known shape, got {describe(leaf)}; pad it to a fixed size")


def _algorithms(actions: str) -> str:
    return ", ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.actions == actions)
