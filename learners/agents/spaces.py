"""Between an environment's observations and actions and what networks see."""

from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.specs import tensor_spec
from tf_agents.utils import nest_utils

Array = Any


class Observations(tf.Module):
    """Flattens a nest of observations into float32 [B, D] and normalises it: (x - mean) / std."""

    def __init__(self, spec: Any, mean: Any = None, std: Any = None) -> None:
        """Keeps the statistics as variables that are not trained, so that they are saved with the weights.

        Args:
          spec: the observation spec, a TensorSpec or a nest of them; every shape fully known.
          mean: what is subtracted, a nest like `spec`; None for no normalisation.
          std: what is divided by, a nest like `spec`, positive (add the paper's 1e-3 before); given with `mean`.

        Raises:
          ValueError: if only one of `mean` and `std` is given, if they do not fit `spec`, or `std` is not positive.
        """
        super().__init__(name="observations")
        self._spec = spec
        specs = tf.nest.flatten(spec)
        self._sizes = [int(np.prod(each.shape, dtype=int)) for each in specs]
        self.size = sum(self._sizes)
        if (mean is None) != (std is None):
            raise ValueError("expected observation_mean and observation_std together, got only one; give both or none")
        self._mean = self._scale = None
        if mean is not None:
            flat_mean = self._flat_statistic("observation_mean", mean, specs)
            deviation = self._flat_statistic("observation_std", std, specs)
            if not np.all(deviation > 0):
                raise ValueError(
                    f"expected observation_std to be positive, got {deviation.min()}; "
                    "add a small constant such as 1e-3 to features that never change"
                )
            self._mean = tf.Variable(flat_mean, trainable=False, name="observation_mean")
            self._scale = tf.Variable(np.float32(1) / deviation, trainable=False, name="observation_scale")

    def __call__(self, observation: Any) -> tf.Tensor:
        """Returns float32 [B, D], the fields in the order of `tf.nest.flatten`."""
        leaves = tf.nest.flatten(nest_utils.prune_extra_keys(self._spec, observation))
        flat = [
            tf.cast(tf.reshape(leaf, [tf.shape(leaf)[0], size]), tf.float32)
            for leaf, size in zip(leaves, self._sizes, strict=True)
        ]
        joined = flat[0] if len(flat) == 1 else tf.concat(flat, axis=1)
        return joined if self._mean is None else (joined - self._mean) * self._scale

    def _flat_statistic(self, name: str, value: Any, specs: list[Any]) -> np.ndarray:
        """Returns float32 [D] of one statistic, checked against the spec."""
        try:
            leaves = [np.asarray(leaf, np.float32) for leaf in tree.flatten_up_to(self._spec, value)]
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected {name} to be a nest like the observation spec; {error}") from error
        for each, leaf in zip(specs, leaves, strict=True):
            if leaf.shape != tuple(each.shape):
                raise ValueError(f"expected {name} of shape {tuple(each.shape)} for {each.name!r}, got {leaf.shape}")
        return np.concatenate([leaf.ravel() for leaf in leaves])


class BoundedActions(tf.Module):
    """Maps actions between the bounds of their spec and [-1, 1]."""

    def __init__(self, spec: Any) -> None:
        """Keeps centre and half width of the bounds as constants.

        Args:
          spec: BoundedTensorSpec, float, shape [A], with finite bounds.

        Raises:
          ValueError: if the spec is a nest, has no finite bounds, no float dtype, or is not one-dimensional.
        """
        super().__init__(name="actions")
        spec = _single_spec(spec)
        if not spec.dtype.is_floating or spec.shape.rank != 1:
            raise ValueError(
                f"expected a float action of shape [A], got {spec.dtype.name} {spec.shape}; use a discrete agent"
                " (dqn, double_dqn, discrete_cql, discrete_bc) for whole numbers, or reshape the action"
            )
        low, high = np.broadcast_to(spec.minimum, spec.shape), np.broadcast_to(spec.maximum, spec.shape)
        limit = np.finfo(np.float32).max
        if not (np.all(np.abs(low) < limit) and np.all(np.abs(high) < limit) and np.all(low < high)):
            raise ValueError(
                f"expected an action spec with finite bounds, got [{low.tolist()}, {high.tolist()}]; "
                "give a BoundedTensorSpec with the environment's minimum and maximum"
            )
        self.spec = spec
        self.size = int(spec.shape[0])
        self._centre = ((high.astype(np.float64) + low) / 2).astype(np.float32)
        self._half_width = ((high.astype(np.float64) - low) / 2).astype(np.float32)

    def to_unit(self, action: Array) -> tf.Tensor:
        """Returns float32 [B, A] in [-1, 1] for actions within the bounds."""
        return (tf.cast(action, tf.float32) - self._centre) / self._half_width

    def to_environment(self, unit_action: Array) -> tf.Tensor:
        """Returns [B, A] within the bounds of the spec, for `unit_action` in [-1, 1]."""
        scaled = self._centre + self._half_width * tf.clip_by_value(unit_action, -1.0, 1.0)
        return tf.cast(scaled, self.spec.dtype)


class DiscreteActions(tf.Module):
    """Maps actions between the integers of their spec and 0 .. count-1."""

    def __init__(self, spec: Any) -> None:
        """Reads the smallest action and the number of actions.

        Args:
          spec: BoundedTensorSpec, integer, shape [].

        Raises:
          ValueError: if the spec is a nest, not an integer scalar, or not bounded.
        """
        super().__init__(name="actions")
        spec = _single_spec(spec)
        if not spec.dtype.is_integer or spec.shape.rank != 0:
            raise ValueError(
                f"expected an integer action of shape [], got {spec.dtype.name} {spec.shape}; use a continuous agent"
                " (bc, td3_bc, iql, cql, awac, rebrac) for float actions"
            )
        self.spec = spec
        self._minimum = int(spec.minimum)
        self.count = int(spec.maximum) - self._minimum + 1
        if not 1 < self.count <= 1 << 20:
            raise ValueError(
                f"expected 2 to 2**20 discrete actions, got {spec.minimum} to {spec.maximum}; "
                "give a BoundedTensorSpec with the smallest and the largest action"
            )

    def to_unit(self, action: Array) -> tf.Tensor:
        """Returns int32 [B] in 0 .. count-1."""
        return tf.cast(action, tf.int32) - self._minimum

    def to_environment(self, unit_action: Array) -> tf.Tensor:
        """Returns [B] between the spec's minimum and maximum."""
        return tf.cast(unit_action, self.spec.dtype) + tf.cast(self._minimum, self.spec.dtype)


def _single_spec(spec: Any) -> tensor_spec.BoundedTensorSpec:
    leaves = tf.nest.flatten(tensor_spec.from_spec(spec))
    if len(leaves) != 1:
        raise ValueError(f"expected one action, got a nest of {len(leaves)}; join them into one array")
    if not isinstance(leaves[0], tensor_spec.BoundedTensorSpec):
        raise ValueError(
            f"expected an action spec with bounds, got {leaves[0]}; "
            "give a BoundedTensorSpec with the environment's minimum and maximum"
        )
    return leaves[0]
