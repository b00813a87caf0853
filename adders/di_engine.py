"""DI-engine's `Adder`, for migrating users: it processes lists of transitions between collector and buffer.

The names of the class and its functions are those of DI-engine's `ding.worker.adder`. Adders of whole datasets are in
`rlds2reverb.adders`.

A transition is a dict. A value may be None in some of them, such as the `prev_state` of a recurrent policy at the first
step, or the `logit` of a random action. Stacking replaces it with zeros, unless it is None in all transitions.
`get_gae` and `get_nstep_return_data` reject None in the fields that they compute with.
"""

from __future__ import annotations

import functools
import math
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import ArgumentError
from rlds2reverb.types.arguments import require_count, require_number, require_one_of

from .padding import MASK
from .returns import generalized_advantage_estimation, n_step_returns

#: A step of the agent: a dict with `obs`, `action`, `reward`, `done` and any other fields; values may be nests.
Transition = dict[str, Any]

#: What happens to the transitions that do not fill a chunk; see `Adder.get_train_sample`.
LAST_FNS = ("last", "drop", "null_padding")


class _Method:
    """A function whose first argument is the instance that it is called on, or the class; both can override others."""

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self._function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return types.MethodType(self._function, owner if instance is None else instance)


def _ignore_cuda(name: str, place: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Accepts DI-engine's flag of this name, or at this place of the arguments, with a warning."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_placed = len(args) > place and isinstance(args[place], bool)
            if is_placed or name in kwargs:
                warnings.warn(f"{name} has no effect, because adders compute with NumPy; leave it out", stacklevel=2)
                args, _ = (*args[:place], *args[place + is_placed :]), kwargs.pop(name, None)
            return function(*args, **kwargs)

        return call

    return decorate


class Adder:
    """Functions that process a trajectory, a list or deque of transitions in the order of time.

    Each can be called on the class, or on an instance, which holds the arguments of `get_train_sample`. Subclasses can
    override them by functions of any kind. Only `get_traj` removes data from its argument, and none modifies a
    transition. DI-engine's flags `use_cuda` (the first argument of `Adder`) and `cuda` have no effect.
    """

    _unroll_len: Any = None
    _last_fn_type = "last"
    _null_transition: Transition | None = None

    @_ignore_cuda("use_cuda", 1)
    def __init__(
        self, unroll_len: int | None = None, last_fn_type: str = "last", null_transition: Transition | None = None
    ):
        """Sets the arguments of `get_train_sample`, so that it can be called with the data alone.

        Raises:
          ValueError: If unroll_len is below 1 or last_fn_type is unknown.
        """
        if unroll_len is not None:
            _require_chunk_arguments(unroll_len, last_fn_type)
        self._unroll_len, self._last_fn_type, self._null_transition = unroll_len, last_fn_type, null_transition

    @staticmethod
    def get_traj(data: deque[Transition], traj_len: float, return_num: int = 0) -> list[Transition]:
        """Removes a trajectory from the left end, and puts its last transitions back for the next one.

        Of 10 transitions, traj_len 4 and return_num 2 return 0..3, 2..5, 4..7, 6..9.

        Args:
          data: a deque, from which `min(traj_len, len(data))` transitions are removed.
          traj_len: length of a trajectory, at least 1, or infinity ('inf') for all transitions.
          return_num: number of transitions to put back, from 0 to traj_len, limited to the number that remains. If none
            remains and a full trajectory has not ended (neither `done` nor `truncated`), there is no such limit, so
            that a transition that only bootstraps this trajectory (see `get_gae_with_default_last_value`) begins the
            next one. With traj_len, the same trajectory is returned for as long as any transitions remain.

        Returns:
          The removed transitions, in the order of time.

        Raises:
          ValueError: If return_num exceeds traj_len, or a number is out of its range.
          TypeError: If data is not a deque.
        """
        if not isinstance(data, deque):
            raise TypeError(f"data must be a deque, got {type(data).__name__}")
        traj_len = _read_traj_len(traj_len)
        require_count("return_num", return_num, 0)
        if return_num > traj_len:
            raise ValueError(f"return_num must be at most traj_len, {traj_len}, got {return_num}")
        trajectory = [data.popleft() for _ in range(int(min(traj_len, len(data))))]
        num_returned = min(return_num, len(data))
        if not data and len(trajectory) == traj_len and _continues(trajectory[-1]):
            num_returned = return_num
        data.extendleft(reversed(trajectory[len(trajectory) - num_returned :]))
        return trajectory

    @staticmethod
    @_ignore_cuda("cuda", 4)
    def get_gae(
        data: Iterable[Transition], last_value: Any, gamma: float, gae_lambda: float, *, next_values: Any = None
    ) -> list[Transition]:
        """Returns the transitions with their advantage, `adv`; see `returns.generalized_advantage_estimation`.

        A transition that is `done` ends an episode with value 0. One that is `truncated` ends an episode with the value
        of its final observation; before the end of the data, this requires `next_values`. Transitions without `done`,
        which DI-engine also accepts, belong to an episode that has not ended.

        Args:
          data: transitions with `value` and `reward`, `done` in all of them or none, and optionally `truncated`. A
            value is a number, or `[A]` for several agents; a reward is a number or `[A]`.
          last_value: the value after the last transition, of the shape of a value; unused if that transition is done.
          gamma: discount factor, in [0, 1].
          gae_lambda: lambda of GAE, in [0, 1].
          next_values: the value after each transition, `[T]` or `[T, A]`, instead of the value of the next transition.

        Returns:
          A list of shallow copies with `adv`, float, of the shape of a value.

        Raises:
          ValueError: If there are no transitions, a key is missing, or a number is out of its range.
        """
        require_number("gamma", gamma, 0, 1)
        require_number("gae_lambda", gae_lambda, 0, 1)
        trajectory = _list_transitions(data, "reward", "value")
        if any("done" in transition for transition in trajectory):
            _list_transitions(trajectory, "done")
        values = _stack_field(trajectory, "value")
        dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
        values, shape = values.astype(dtype).reshape(len(trajectory), -1), values.shape
        rewards = _stack_field(trajectory, "reward").astype(dtype).reshape(len(trajectory), -1)
        if rewards.shape[1] not in (1, values.shape[1]):
            raise ValueError(
                f"a reward must have one number or as many as a value, {values.shape[1]}, got {rewards.shape[1]}"
            )
        done, truncated = _stack_flags(trajectory, "done"), _stack_flags(trajectory, "truncated")
        if next_values is None:
            next_values = _shift_values(values, last_value, truncated & ~done)
        next_values = np.asarray(next_values, dtype).reshape(len(trajectory), -1)
        advantages = generalized_advantage_estimation(
            np.broadcast_to(rewards, values.shape),
            np.broadcast_to((~done).astype(dtype)[:, None], values.shape),
            values=values,
            next_values=np.broadcast_to(next_values, values.shape),
            is_last=np.broadcast_to((done | truncated)[:, None], values.shape),
            gamma=float(gamma),
            lambda_=float(gae_lambda),
        )
        advantages = advantages.reshape(shape)
        return [{**step, "adv": advantage} for step, advantage in zip(trajectory, advantages, strict=True)]

    @_Method
    @_ignore_cuda("cuda", 5)
    def get_gae_with_default_last_value(
        self,
        data: Iterable[Transition],
        done: bool,
        gamma: float,
        gae_lambda: float,
        *,
        truncated: bool = False,
        bootstrap_value: Any = None,
    ) -> list[Transition]:
        """Returns the result of `get_gae` for a trajectory without a last value.

        If the trajectory is done, the value after it is 0. If it is truncated, the value is `bootstrap_value`.
        Otherwise the value of the last transition is used, and that transition is left out of the result.

        Args:
          data: see `get_gae`.
          done: whether the trajectory ended in a terminal state.
          gamma: discount factor, in [0, 1].
          gae_lambda: lambda of GAE, in [0, 1].
          truncated: whether it ended for a different reason, such as a time limit; a `truncated` in the last transition
            has the same effect.
          bootstrap_value: the value of the final observation, required if the trajectory is truncated.

        Raises:
          ValueError: As `get_gae`; or if a trajectory that continues has a single transition, or bootstrap_value is
            missing.
        """
        trajectory = _list_transitions(data, "value")
        truncated = truncated or _is_set(trajectory[-1], "truncated")
        if done:
            return self.get_gae(trajectory, np.zeros_like(trajectory[-1]["value"]), gamma, gae_lambda)
        if truncated:
            if bootstrap_value is None:
                raise ValueError(
                    "the trajectory is truncated; pass bootstrap_value, the value of its final observation"
                )
            return self.get_gae(trajectory, bootstrap_value, gamma, gae_lambda)
        if len(trajectory) == 1:
            raise ValueError(
                "the trajectory continues after its only transition, whose value would have to be the last value; pass "
                "at least two transitions, or call get_gae with last_value"
            )
        return self.get_gae(trajectory[:-1], trajectory[-1]["value"], gamma, gae_lambda)

    @staticmethod
    def get_nstep_return_data(
        data: Iterable[Transition],
        nstep: int,
        traj_len: float = math.inf,
        cum_reward: bool = False,
        gamma: float = 0.99,
        *,
        correct_terminate_gamma: bool = True,
    ) -> Any:
        """Returns transitions over m = min(nstep, steps to the end of the episode or trajectory) steps.

        Transition i gets `next_obs`, the obs m steps later (at an end, the last `next_obs`); `reward`, the m rewards
        stacked and padded with zeros to `[nstep, ...]` or, with cum_reward, their discounted sum; `done` of the last of
        the m transitions; and `value_gamma` = gamma^m. Nothing after a `done` is included.

        Args:
          data: transitions with `obs`, `reward`, `done` and, if the results must have it, `next_obs`.
          nstep: number of steps, at least 1; with 1, the data are returned unchanged.
          traj_len: length of a trajectory; the data are consecutive trajectories, and windows end with each of them.
          cum_reward: whether to sum the rewards.
          gamma: discount factor, in [0, 1].
          correct_terminate_gamma: whether the results have `value_gamma`.

        Returns:
          A list of shallow copies.

        Raises:
          ValueError: If there are no transitions, a key is missing, or a number is out of its range.
        """
        require_count("nstep", nstep)
        require_number("gamma", gamma, 0, 1)
        traj_len = _read_traj_len(traj_len)
        if nstep == 1:
            return data
        trajectory = _list_transitions(data, "obs", "reward", "done")
        out: list[Transition] = []
        for part in _split_episodes(trajectory, traj_len):
            out += _make_n_step_transitions(part, nstep, cum_reward=cum_reward, gamma=gamma)
        for transition in out if not correct_terminate_gamma else ():
            del transition["value_gamma"]
        return out

    @_Method
    def get_train_sample(
        self,
        data: Sequence[Transition],
        unroll_len: int | None = None,
        last_fn_type: str | None = None,
        null_transition: Transition | None = None,
    ) -> list[Any]:
        """Cuts a trajectory into chunks of unroll_len transitions.

        The remaining transitions are handled by last_fn_type: 'drop' drops them; 'last' puts the last transitions of
        the preceding chunk before them or, if there is none, null transitions after them; 'null_padding' puts null
        transitions after them.

        Args:
          data: transitions.
          unroll_len: number of transitions per chunk, at least 1; with 1, the data are returned unchanged. None for
            that of the instance.
          last_fn_type: see above; None for that of the instance, or 'last'.
          null_transition: the null transition; by default zeros in all fields. In either case `done` is set to True and
            `reward` to 0, if it has these fields.

        Returns:
          A dict for each chunk: the nest of a transition, stacked to `[unroll_len, ...]`, and `mask`, bool, False for
          null transitions. A value that is None in some transitions is replaced with zeros; one that is None in all
          stays None.

        Raises:
          ValueError: If there are no transitions, unroll_len is below 1, last_fn_type is unknown, or the transitions
            (including the null one) have different fields or nests.
        """
        unroll_len = self._unroll_len if unroll_len is None else unroll_len
        last_fn_type = self._last_fn_type if last_fn_type is None else last_fn_type
        null_transition = self._null_transition if null_transition is None else null_transition
        _require_chunk_arguments(unroll_len, last_fn_type)
        if unroll_len == 1:
            return data  # type: ignore[return-value]
        trajectory = _list_transitions(data)
        num_full, num_left = divmod(len(trajectory), unroll_len)
        # The rows of each chunk; the null transition is the row after the trajectory.
        chunks = [np.arange(unroll_len) + unroll_len * number for number in range(num_full)]
        if num_left and last_fn_type == "last" and chunks:
            chunks.append(np.arange(len(trajectory) - unroll_len, len(trajectory)))
        elif num_left and last_fn_type != "drop":
            chunks.append(np.minimum(np.arange(unroll_len) + unroll_len * num_full, len(trajectory)))
        columns = _stack_transitions([*trajectory, _make_null(null_transition, trajectory[0])])

        def select(rows: np.ndarray) -> Any:
            return tree.map_structure(lambda column: None if column is None else column[rows], columns)

        return [{**select(rows), MASK: rows < len(trajectory)} for rows in chunks]


#: DI-engine's functions, which are those of its `Adder`.
get_gae = Adder.get_gae
get_gae_with_default_last_value = Adder.get_gae_with_default_last_value
get_nstep_return_data = Adder.get_nstep_return_data
get_train_sample = Adder.get_train_sample


def _read_traj_len(traj_len: Any) -> float:
    """Returns the length of a trajectory, which is infinite for 'inf'; raises `ValueError` if it is invalid."""
    if isinstance(traj_len, bool):
        raise ArgumentError("must be a length, got a bool; pass cum_reward by name", about="traj_len")
    if traj_len in ("inf", math.inf):
        return math.inf
    require_count("traj_len", traj_len)
    return int(traj_len)


def _require_chunk_arguments(unroll_len: int | None, last_fn_type: str) -> None:
    require_count("unroll_len", unroll_len)
    require_one_of("last_fn_type", last_fn_type, LAST_FNS)


def _list_transitions(data: Iterable[Transition], *keys: str) -> list[Transition]:
    """Returns the transitions as a list; raises `ValueError` if it is empty or a transition does not have all keys."""
    trajectory = list(data)
    if not trajectory:
        raise ValueError("data must contain at least one transition, got none")
    required = frozenset(keys)
    for number, transition in enumerate(trajectory):
        if not required <= transition.keys():
            missing = next(key for key in keys if key not in transition)
            raise ValueError(f"transition {number} must have the key {missing!r}, got {list(transition)}")
    return trajectory


def _stack_field(trajectory: Sequence[Transition], key: str) -> np.ndarray:
    """Returns the values of a key, `[T, ...]`; raises `ValueError` if one is None."""
    for number, transition in enumerate(trajectory):
        if transition[key] is None:
            raise ValueError(f"{key!r} of transition {number} must be a number or an array, got None")
    return np.array([transition[key] for transition in trajectory])


def _is_set(transition: Mapping[str, Any], key: str) -> bool:
    """Returns whether a transition has the flag; False if the key is missing."""
    value = transition.get(key, False)
    return bool(value if isinstance(value, (bool, np.bool_)) else np.any(value))


def _stack_flags(trajectory: Sequence[Transition], key: str) -> np.ndarray:
    """Returns whether each transition has the flag, bool `[T]`."""
    return np.array([_is_set(transition, key) for transition in trajectory])


def _continues(transition: Any) -> bool:
    """Returns whether a transition has `done`, and neither this nor `truncated` is set."""
    if not isinstance(transition, Mapping) or "done" not in transition:
        return False
    return not _is_set(transition, "done") and not _is_set(transition, "truncated")


def _shift_values(values: np.ndarray, last_value: Any, truncated: np.ndarray) -> np.ndarray:
    """Returns the value after each transition, `[T, A]`: that of the next transition, and finally the last value."""
    if last_value is None:
        raise ValueError("pass last_value, the value after the last transition, or next_values; got None for both")
    if truncated[:-1].any():
        raise ValueError("a transition before the last is truncated; pass next_values, the value after each transition")
    last = np.asarray(last_value, values.dtype).reshape(-1)
    if len(last) not in (1, values.shape[1]):
        raise ValueError(f"last_value must have as many numbers as a value, {values.shape[1]}, got {len(last)}")
    return np.concatenate([values[1:], np.broadcast_to(last, values.shape[1:])[None]])


def _split_episodes(trajectory: list[Transition], traj_len: float) -> Iterable[list[Transition]]:
    """Yields parts that end with a `done`, a `truncated`, or a full trajectory."""
    part: list[Transition] = []
    for number, transition in enumerate(trajectory, start=1):
        part.append(transition)
        has_ended = _is_set(transition, "done") or _is_set(transition, "truncated")
        if has_ended or number == len(trajectory) or (traj_len != math.inf and number % traj_len == 0):
            yield part
            part = []


def _make_n_step_transitions(part: list[Transition], nstep: int, *, cum_reward: bool, gamma: float) -> list[Transition]:
    """Returns the n-step transitions of one part; see `Adder.get_nstep_return_data`."""
    rewards = _stack_field(part, "reward")
    if cum_reward:
        floats = rewards.astype(rewards.dtype if rewards.dtype.kind == "f" else np.float32)
        n_step_rewards = n_step_returns(floats, np.ones_like(floats), n=nstep, gamma=gamma)[0]
    else:
        padded = np.concatenate([rewards, np.zeros((nstep - 1, *rewards.shape[1:]), rewards.dtype)])
        n_step_rewards = padded[np.arange(len(part))[:, None] + np.arange(nstep)]
        if rewards.shape[1:] == (1,):  # DI-engine joins rewards of shape [1] to [nstep].
            n_step_rewards = n_step_rewards[:, :, 0]
    out = []
    for first, transition in enumerate(part):
        num_steps = min(nstep, len(part) - first)
        last = part[first + num_steps - 1]
        changed = {"reward": n_step_rewards[first], "done": last["done"], "value_gamma": gamma**num_steps}
        if "next_obs" in transition:
            is_inside = first + num_steps < len(part)
            changed["next_obs"] = part[first + num_steps]["obs"] if is_inside else part[-1]["next_obs"]
        out.append({**transition, **changed})
    return out


def _make_null(null_transition: Transition | None, template: Transition) -> Transition:
    """Returns `null_transition`, or zeros like the template, with `done` True and `reward` and `value_gamma` 0."""
    null = tree.map_structure(_make_zeros, template) if null_transition is None else dict(null_transition)
    if "done" in null:
        null["done"] = np.ones_like(np.asarray(null["done"]))
    for name in ("reward", "value_gamma"):
        if name in null:
            null[name] = tree.map_structure(_make_zeros, null[name])
    return null


def _make_zeros(leaf: Any) -> Any:
    """Returns zeros like a leaf, which are empty strings for strings; None for None."""
    return None if leaf is None else np.zeros_like(np.asarray(leaf))


def _stack_transitions(trajectory: Sequence[Transition]) -> dict[str, Any]:
    """Returns the fields of transitions as nests of arrays `[T, ...]`; see `_stack_nests`.

    Raises:
      ValueError: If transitions have different fields or nests.
    """
    names = list(trajectory[0])
    for number, transition in enumerate(trajectory):
        if transition.keys() != trajectory[0].keys():
            raise ValueError(f"transition {number} must have the fields of the first, {names}, got {list(transition)}")
    return {name: _stack_nests(name, [transition[name] for transition in trajectory]) for name in names}


def _stack_nests(name: str, nests: Sequence[Any]) -> Any:
    """Returns one field of all transitions; zeros replace None, in nests or instead of them, unless all are None."""
    example = next((nest for nest in nests if nest is not None), None)
    if example is None:
        return None
    if not tree.is_nested(example):
        return np.stack([np.asarray(_make_zeros(example) if leaf is None else leaf) for leaf in nests])
    nests = [tree.map_structure(lambda _: None, example) if nest is None else nest for nest in nests]
    for nest in nests:
        try:
            tree.assert_same_structure(example, nest)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name!r} must have the same nest in all transitions, got {example} and {nest}"
            ) from error
    columns = [_stack_nests(name, leaves) for leaves in zip(*map(tree.flatten, nests), strict=True)]
    return tree.unflatten_as(example, columns)
