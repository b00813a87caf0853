"""Normalisation of observations with the statistics of a dataset."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.nest_paths import Keys, find_leaves, format_path, get_part, replace_part
from rlds2reverb.types.specs import Nest, describe, leaves, path_name

from .env_specs import BoundedArraySpec
from .environment import Environment, Wrapper
from .time_steps import TimeStep, keep_untransformed

if TYPE_CHECKING:
    from rlds2reverb.datasets import Source

#: Added to standard deviations, as by `NormalizeObservations`.
_EPS = 1e-3


class ObservationNormalizer(Wrapper):
    """Normalises floats in the observations to `(observation - mean) / divisor`, with fixed statistics.

    With the statistics of an offline dataset, an agent trained on its normalised observations continues in the
    environment:

        env = ObservationNormalizer.from_source(env, load("hopper_medium-v2.hdf5"))

    Bounds of the specs are normalised as well. Integers, such as images, are not changed. `untransformed` contains the
    observations before. ALF normalises with running statistics, in a transformation of the agent's data.
    """

    def __init__(self, env: Environment, mean: Nest, divisor: Nest, *, fields: str | Sequence[str] | None = None):
        """Wraps an environment.

        Args:
          env: an environment, batched or not.
          mean: nest of floats with the structure and the shapes of the observations; of other leaves than floats, and
            of those not in `fields`, anything.
          divisor: nest like `mean` of numbers above 0. Where it is infinite, the observation becomes 0.
          fields: path of a leaf, such as 'robot.joints', of a dict or tuple for all floats in it, or several paths;
            None for the whole observation.

        Raises:
          ValueError: If there is no such path, or a number is NaN or not above 0.
          TypeError: If a path names a leaf that is not a float, or there are no floats.
          SpecMismatchError: If a shape or the structure differs from the observations.
        """
        super().__init__(env)
        spec = env.observation_spec()
        self._statistics: dict[Keys, tuple[np.ndarray, np.ndarray]] = {}
        for keys, is_named in find_leaves(spec, fields):
            leaf = get_part(spec, keys)
            if leaf.dtype.kind == "f":
                self._statistics[keys] = _read(mean, keys, leaf, "mean"), _read(divisor, keys, leaf, "divisor")
                if not np.all(self._statistics[keys][1] > 0):
                    raise ValueError(f"{path_name(keys, 'divisor')} must be above 0, got {get_part(divisor, keys)}")
                spec = replace_part(spec, keys, functools.partial(self._normalize_spec, keys=keys))
            elif is_named:
                name = f"the observation {format_path(keys)!r}" if keys else "the observation"
                raise TypeError(f"only floats can be normalised, but {name} is {leaf}")
        if not self._statistics:
            place = "the observation" if fields is None else repr(fields)
            raise TypeError(f"only floats can be normalised, but {place} contains none")
        self._time_step_spec = self._time_step_spec._replace(observation=spec)

    @classmethod
    def from_source(
        cls, env: Environment, source: Source, *, eps: float = _EPS, fields: str | Sequence[str] | None = None
    ) -> ObservationNormalizer:
        """Normalises with the mean and `std + eps` of a dataset, as the transform `NormalizeObservations` does.

        Mean and standard deviation are those of all observations except the final ones of episodes. Elements that are
        constant in the dataset become 0.

        Args:
          env: an environment, batched or not.
          source: the dataset, not yet normalised; it is read once.
          eps: number added to the standard deviations, at least 0.
          fields: see `ObservationNormalizer`.

        Raises:
          ValueError, TypeError, SpecMismatchError: See `ObservationNormalizer`; or if the dataset has no transitions,
            or NaN or Inf in its observations.
        """
        from rlds2reverb.datasets.moments import ObservationMoments

        spec = source.step_spec["observation"]
        got, expected = ([path for path, _ in leaves(nest)] for nest in (spec, env.observation_spec()))
        if got != expected:
            raise SpecMismatchError(
                f"the observations of {source.name} have the fields {got}, but those of the environment {expected}; "
                "choose a dataset of this environment, or drop fields"
            )
        moments = ObservationMoments.from_episodes(source, spec, source.name)
        return cls(env, *moments.agent_statistics(eps), fields=fields)

    def _transform_time_step(self, time_step: TimeStep) -> TimeStep:
        observation = time_step.observation
        for keys in self._statistics:
            observation = replace_part(observation, keys, functools.partial(self._normalize_leaf, keys=keys))
        return keep_untransformed(time_step, time_step._replace(observation=observation))

    def _normalize_leaf(self, leaf: np.ndarray, keys: Keys) -> np.ndarray:
        mean, divisor = self._statistics[keys]
        return np.asarray((leaf - mean) / divisor, leaf.dtype)

    def _normalize_spec(self, leaf: BoundedArraySpec, keys: Keys) -> BoundedArraySpec:
        if not isinstance(leaf, BoundedArraySpec):
            return leaf
        # In the same precision as the values, so that rounding does not move these out of bounds.
        is_constant = np.isinf(self._statistics[keys][1])
        with np.errstate(invalid="ignore", over="ignore"):
            low, high = (self._normalize_leaf(bound, keys) for bound in (leaf.minimum, leaf.maximum))
        return BoundedArraySpec(leaf.shape, leaf.dtype, np.where(is_constant, 0, low), np.where(is_constant, 0, high))


def _read(nest: Nest, keys: Keys, leaf: BoundedArraySpec, name: str) -> np.ndarray:
    """Returns a copy of the statistics of a leaf."""
    try:
        array = np.array(get_part(nest, keys), np.float64)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise SpecMismatchError(
            f"{name} must have the structure of the observations, got no {keys} ({error})"
        ) from error
    if array.shape != leaf.shape:
        raise SpecMismatchError(
            f"{path_name(keys, name)} must have the shape of the observation, {describe(leaf)}, got {describe(array)}"
        )
    if np.isnan(array).any():
        raise ValueError(f"{path_name(keys, name)} must not contain NaN, got {array}")
    return array
