"""Gymnasium's environments, and those of the unmaintained gym, as environments that return time steps."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, path_name

from .env_specs import make_zeros, read_array, read_reward, sample_action
from .environment import Environment, SpecifiedEnvironment, require_render_mode
from .gymnasium_spaces import make_converter, make_spec
from .time_steps import FIRST, LAST, MID, TimeStep, make_time_step_spec, new_time_step

_ZERO, _ONE, _NOT_FAILED = np.float32(0), np.float32(1), np.bool_(False)
_MAX_REWARD = float(np.finfo(np.float32).max)
_FIX = "fix the environment"
_FIT_INFO = "pass info_fields as a dict of specs that all values fit"
#: Minimum number of characters of the strings in `info`.
_NUM_CHARACTERS = 64
#: Up to this size, the sum of a list is faster than that of an array.
_MAX_LISTED = 64


class GymnasiumEnvironment(SpecifiedEnvironment):
    """A `gymnasium.Env` as an `Environment`.

    - terminated: the step is LAST with the discount 0, also if it is truncated at the same time.
    - truncated: the step is LAST with the discount unchanged, so that its value can be bootstrapped.

    The four values of an old `gym.Env` are accepted as well; its `info["TimeLimit.truncated"]` then tells a truncation
    from a termination. A reward is one number, which may be an array of one element.

    Parts of a Dict observation whose spaces are not supported, such as Text, are left out with a warning.

    Attributes:
      info: the `info` of the last reset or step.
    """

    def __init__(
        self,
        env: Any,
        *,
        discount: float = 1.0,
        duration: int | None = None,
        env_id: int = 0,
        info_fields: Sequence[str] | Mapping[str, ArraySpec] = (),
        auto_reset: bool = True,
        allow_non_finite: bool = False,
    ):
        """Wraps an environment.

        Args:
          env: a `gymnasium.Env`, or an environment with the same methods.
          discount: discount of all steps except terminal ones, in [0, 1].
          duration: maximum number of actions in an episode, at least 1; None for no limit. The episodes end as those of
            `TimeLimit`, and steps are faster.
          env_id: index of the environment in a batch.
          info_fields: names of fields of `info` that become `TimeStep.env_info`, a dict. The environment is reset once
            and stepped once to find their specs, unless these are given as a dict of specs by name. Python's numbers
            become float64, because a float may follow an int; arrays of floats become float32; strings have at least 64
            characters. A field that is missing after a reset is zero; one that is missing in a step, or does not fit
            its spec, is an error.
          auto_reset: see `Environment`.
          allow_non_finite: whether observations and rewards may be NaN or infinite.

        Raises:
          TypeError: If a space is not supported, or `env` is no `gymnasium.Env`.
          ValueError: If an argument is out of range, or `info` has no such field.
        """
        if isinstance(env, Environment) or not hasattr(env, "action_space"):
            raise TypeError(f"env must be a gymnasium.Env, got a {type(env).__name__}; pass the environment itself")
        super().__init__(auto_reset=auto_reset)
        require_number("discount", discount, 0, 1)
        if duration is not None:
            require_count("duration", duration)
        self.gym = env
        self.duration = duration
        self._num_steps = 0
        self._name = getattr(getattr(env, "spec", None), "id", None) or type(getattr(env, "unwrapped", env)).__name__
        self._discount, self._env_id = np.float32(discount), np.int32(env_id)
        self._allow_non_finite = allow_non_finite
        left_out: list[str] = []
        observation_spec = make_spec(env.observation_space, left_out=left_out)
        if left_out:
            message = f"a part of the observations of {self._name} is left out: {'; '.join(left_out)}"
            warnings.warn(message, UserWarning, stacklevel=2)
        action_spec = make_spec(env.action_space, name="action")
        self._time_step_spec = make_time_step_spec(observation_spec, action_spec)
        self._convert = make_converter(observation_spec)
        is_array = isinstance(observation_spec, ArraySpec)
        self._array_format: Any = (observation_spec.dtype, observation_spec.shape) if is_array else (None, None)
        self._is_finite = _make_finite_check(*self._array_format) if is_array and not allow_non_finite else _accept
        self._to_gym = _make_action_converter(env.action_space, action_spec)
        self._first_action = make_zeros(action_spec)
        self._seed: int | None = None
        self._reward = np.zeros(1, np.float32)  # Twice as fast a conversion as that of `np.float32`.
        self._accepts_seed = _accepts_seed(env.reset)
        self.info: Mapping[str, Any] = {}
        self._reset_options: dict[str, Any] = {}
        self._info_spec: dict[str, ArraySpec] = {}
        if info_fields:
            self._info_spec = dict(info_fields) if isinstance(info_fields, Mapping) else self._find_info(info_fields)
            self._time_step_spec = self._time_step_spec._replace(env_info=self._info_spec)

    @property
    def is_success(self) -> bool | None:
        """True if the last step reached the goal: `success` or `is_success` in `info`; None without these fields.

        These are the names of OGBench and Meta-World, and of Gymnasium-Robotics.
        """
        value = np.asarray(self.info.get("success", self.info.get("is_success")))
        return bool(value.all()) if value.dtype.kind in "biuf" and value.size else None

    def seed(self, seed: int) -> None:
        """Sets the seed of the next `reset`; later episodes continue its random sequence, as Gymnasium's do.

        Raises:
          NotImplementedError: If the environment's `reset` has no argument `seed`.
        """
        if not self._accepts_seed and not hasattr(self.gym, "seed"):
            raise NotImplementedError(f"{self._name} cannot be seeded; add the argument seed to its reset")
        self._seed = int(seed)

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Sets the argument `options` of all further resets, such as `{"task_id": 1}` in OGBench."""
        self._reset_options = {"options": dict(options)}

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns what the environment renders in its own mode, which was chosen when it was created.

        Raises:
          ValueError: If its mode is a different one.
        """
        require_render_mode(getattr(self.gym, "render_mode", None), mode)
        frame = self.gym.render()
        return frame.copy() if isinstance(frame, np.ndarray) else frame

    def close(self) -> None:
        """Closes the environment."""
        self.gym.close()

    def _reset(self) -> TimeStep:
        seed, self._seed, self._num_steps = self._seed, None, 0
        observation, info = self._reset_gym(seed)
        self.info = info
        return TimeStep(FIRST, _ZERO, _ONE, self._read(observation), copy_arrays(self._first_action), self._env_id, (),
                        self._select(info) if self._info_spec else ())  # fmt: skip

    def _reset_gym(self, seed: int | None) -> tuple[Any, Mapping[str, Any]]:
        if seed is not None and not self._accepts_seed:  # Old versions of gym have a method instead.
            self.gym.seed(seed)
            seed = None
        with _seed_global_generator(seed):
            result = self.gym.reset(**self._reset_options, **({} if seed is None else {"seed": seed}))
        return result if isinstance(result, tuple) and len(result) == 2 else (result, {})

    def _step(self, action: Nest) -> TimeStep:
        result = self.gym.step(self._to_gym(action))
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        else:
            observation, reward, done, info = result
            truncated = bool(done and info.get("TimeLimit.truncated"))
            terminated = done and not truncated
        self._num_steps += 1
        if terminated:
            step_type, discount = LAST, _ZERO
        elif truncated or self._num_steps == self.duration:
            step_type, discount = LAST, self._discount
        else:
            step_type, discount = MID, self._discount
        self.info = info
        if not isinstance(reward, float):
            reward = read_reward(reward, (), self._name)
        if not -_MAX_REWARD <= reward <= _MAX_REWARD and not self._allow_non_finite:
            raise ValueError(
                f"the reward must be finite in float32, got {reward}; {_FIX}, or use allow_non_finite=True"
            )
        self._reward[0] = reward
        return new_time_step((step_type, self._reward[0], discount, self._read(observation), action, self._env_id, (),
                      self._select(info) if self._info_spec else (), _NOT_FAILED))  # fmt: skip

    def _read(self, value: Any) -> Nest:
        dtype, shape = self._array_format
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape and self._is_finite(value):
            return value.copy()  # The common case.
        try:
            observation = self._convert(value)
        except (KeyError, TypeError, ValueError) as error:
            raise SpecMismatchError(f"the observation does not match its space ({error}); {_FIX}") from error
        specs = dict(leaves(self._time_step_spec.observation))
        for path, leaf in leaves(observation):
            if leaf.shape != specs[path].shape:
                raise SpecMismatchError(
                    f"{path_name(path, 'observation')} is {describe(leaf)}, but its space is "
                    f"{describe(specs[path])}; {_FIX}"
                )
            if leaf.dtype.kind == "f" and not self._allow_non_finite and not np.isfinite(leaf).all():
                raise ValueError(
                    f"{path_name(path, 'observation')} must be finite, got {leaf}; {_FIX}, or use allow_non_finite=True"
                )
        return observation

    def _find_info(self, names: Sequence[str]) -> dict[str, ArraySpec]:
        inner = getattr(self.gym, "unwrapped", self.gym)
        random = copy.deepcopy(getattr(inner, "_np_random", None))
        action = sample_action(self._time_step_spec.prev_action, np.random.default_rng())
        infos = [self._reset_gym(None)[1], self.gym.step(self._to_gym(action))[-1]]
        if hasattr(inner, "_np_random"):
            inner._np_random = random  # The first episode is the one without these calls.
        found = {}
        for name in names:
            values = [info[name] for info in infos if name in info]
            if not values:
                known = sorted({key for info in infos for key in info})
                raise ValueError(
                    f"info_fields contains {name!r}, but the environment's info has {known or 'no fields'}"
                )
            found[name] = ArraySpec(np.shape(values[-1]), _find_dtype(values[-1]))
            if found[name].dtype.kind not in "fiubUS":
                raise ValueError(f"info_fields contains {name!r}, whose values must be arrays, got {values[-1]!r}")
        return found

    def _select(self, info: Mapping[str, Any]) -> dict[str, np.ndarray]:
        missing = [name for name in self._info_spec if name not in info]
        if missing and self._num_steps:
            raise SpecMismatchError(
                f"info[{missing[0]!r}] of {self._name} is missing in step {self._num_steps} of the episode; leave it "
                "out of info_fields, or fix the environment"
            )
        return {
            name: read_array(info[name], spec, expected=f"info[{name!r}] of {self._name} must be", advice=_FIT_INFO)
            if name in info
            else make_zeros(spec)
            for name, spec in self._info_spec.items()
        }


def _accept(_: np.ndarray) -> bool:
    return True


def _make_finite_check(dtype: np.dtype, shape: tuple[int, ...]) -> Callable[[np.ndarray], bool]:
    """Returns a function that is False for arrays with a value that is not finite, and True for most others."""
    if dtype.kind != "f":
        return _accept
    if len(shape) == 1 and shape[0] <= _MAX_LISTED:
        return lambda array: math.isfinite(sum(array.tolist()))
    return lambda array: math.isfinite(np.vdot(array, array))  # `vdot` never warns about overflow.


def _accepts_seed(reset: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):  # A function without a signature, such as one written in C.
        return True
    return any(parameter.name == "seed" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _find_dtype(value: Any) -> np.dtype:
    """Returns the dtype of a field of `info`, given its first value."""
    if isinstance(value, (int, float)):
        return np.dtype(np.float64)
    dtype = np.asarray(value).dtype
    if dtype.kind in "US":
        return np.promote_types(dtype, np.dtype((dtype.type, _NUM_CHARACTERS)))
    return np.dtype(np.float32) if dtype.kind == "f" else dtype


def _make_action_converter(space: Any, spec: Nest) -> Callable[[Nest], Any]:
    """Returns a function that copies actions of the spec as values of the space."""
    if isinstance(spec, dict):
        parts = {key: _make_action_converter(space.spaces[key], part) for key, part in spec.items()}
        return lambda action: {key: convert(action[key]) for key, convert in parts.items()}
    if isinstance(spec, tuple):
        converters = [_make_action_converter(one, part) for one, part in zip(space.spaces, spec, strict=True)]
        return lambda action: tuple(convert(part) for convert, part in zip(converters, action, strict=True))
    if type(space).__name__ == "Discrete":
        return int
    if type(space).__name__ == "Box" and space.dtype != spec.dtype:  # Rounding may have moved it out of bounds.
        low, high = space.low, space.high
        return lambda action: np.clip(action.astype(space.dtype), low, high)
    return lambda action: action.copy()


@contextlib.contextmanager
def _seed_global_generator(seed: int | None) -> Iterator[None]:
    """Seeds NumPy's global generator, from which OGBench's mazes draw at reset, and restores its state afterwards."""
    if seed is None:
        yield
        return
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(state)
