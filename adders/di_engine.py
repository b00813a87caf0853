"""DI-engine's `Adder`: what happens to a trajectory of transitions between collector and buffer."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb._arguments import require_count, require_number, require_one_of

from .padding import MASK
from .returns import generalized_advantage_estimation
from .transition_lists import (
    Transition,
    breaks_off,
    column,
    episodes,
    flag,
    flags,
    listed,
    n_step_part,
    null,
    stacked,
    without_none,
)

#: What becomes of the transitions that do not fill a chunk; see `Adder.get_train_sample`.
LAST_FNS = ("last", "drop", "null_padding")


class Adder:
    """Functions over a trajectory, a list or deque of transitions in the order of time.

    Their names are those of DI-engine's `ding.worker.adder`; each can be called on the class, or on an object, which
    holds the arguments of `get_train_sample`. Only `get_traj` takes something out of the data it is given; nothing
    changes a transition.
    """

    def __init__(self, unroll_len: int, last_fn_type: str = "last", null_transition: Transition | None = None):
        """Has `get_train_sample` cut by these arguments, so that it is called with the data alone.

        Raises:
          ValueError: if unroll_len is below 1 or last_fn_type unknown.
        """
        _require_chunks(unroll_len, last_fn_type)
        cut = functools.partial(
            type(self).get_train_sample,
            unroll_len=unroll_len,
            last_fn_type=last_fn_type,
            null_transition=null_transition,
        )
        self.get_train_sample = cut  # type: ignore[method-assign]

    @staticmethod
    def get_traj(data: deque[Transition], traj_len: float, return_num: int = 0) -> list[Transition]:
        """Takes a trajectory out at the left end, and puts its last transitions back in front for the next one.

        Of 10 transitions, traj_len 4 and return_num 2 give 0..3, 2..5, 4..7, 6..9.

        Args:
          data: a deque; `min(traj_len, len(data))` transitions are taken out. `min(return_num, what remains)` are put
            back, in their order; but if none remains and a full trajectory breaks off, neither `done` nor `truncated`,
            return_num are,
            so that one that only bootstraps this trajectory (see `get_gae_with_default_last_value`) begins the next.
          traj_len: at least 1, or infinity for all.
          return_num: at least 0, up to traj_len; one of traj_len gives the same trajectory for as long as any remain.

        Returns:
          The transitions that were taken out, in the order of time.

        Raises:
          ValueError: if return_num is above traj_len, or a number out of its range.
          TypeError: if data cannot be taken from at its left end.
        """
        if not isinstance(data, deque):
            raise TypeError(f"data are a {type(data).__name__}, expected a deque")
        if traj_len != math.inf:
            require_count("traj_len", traj_len)
        require_count("return_num", return_num, 0)
        if return_num > traj_len:
            raise ValueError(f"return_num is {return_num}, expected up to traj_len, which is {traj_len}")
        trajectory = [data.popleft() for _ in range(int(min(traj_len, len(data))))]
        returned = min(return_num, len(data))
        if not data and len(trajectory) == traj_len and breaks_off(trajectory[-1]):
            returned = return_num
        data.extendleft(reversed(trajectory[len(trajectory) - returned :]))
        return trajectory

    @staticmethod
    def get_gae(
        data: Iterable[Transition],
        last_value: Any,
        gamma: float,
        gae_lambda: float,
        *,
        next_values: Any = None,
    ) -> list[Transition]:
        """Transitions with their advantage, `adv`: see `returns.generalized_advantage_estimation`.

        A `done` inside ends an episode: value 0 behind it. A `truncated` inside ends one as well, but with the value
        of its final observation behind it: give `next_values` then. Transitions without `done`, as DI-engine takes
        them too, are of an episode that has not ended.

        Args:
          data: transitions with `value` and `reward`, and `done` in all of them or in none, and `truncated` if there
            is such; a value is a number, or `[A]` for several agents, and a reward a number or `[A]`.
          last_value: the value after the last transition, of the shape of a value; not used where that one is done.
          gamma: in [0, 1].
          gae_lambda: in [0, 1].
          next_values: the value after each transition, `[T]` or `[T, A]`, instead of the next one's own.

        Returns:
          A list of shallow copies with `adv`, float, of the shape of a value.

        Raises:
          ValueError: if there are no transitions, a key is missing, or a number is out of its range.
        """
        require_number("gamma", gamma, 0, 1)
        require_number("gae_lambda", gae_lambda, 0, 1)
        trajectory = listed(data, "reward", "value")
        if any("done" in transition for transition in trajectory):
            listed(trajectory, "done")
        if last_value is None and next_values is None:
            raise ValueError("last_value is None, expected the value after the last transition, or next_values")
        values = column(trajectory, "value")
        dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
        values, shape = values.astype(dtype).reshape(len(trajectory), -1), values.shape
        rewards = column(trajectory, "reward").astype(dtype)
        rewards = rewards.reshape(len(trajectory), -1)
        if rewards.shape[1] not in (1, values.shape[1]):
            raise ValueError(
                f"a reward has {rewards.shape[1]} numbers, a value {values.shape[1]}; expected 1 or as many"
            )
        rewards = np.broadcast_to(rewards, values.shape)
        done, truncated = flags(trajectory, "done"), flags(trajectory, "truncated")
        if next_values is None:
            if (truncated & ~done)[:-1].any():
                raise ValueError("a transition inside is truncated: give next_values, the value after each transition")
            last = np.asarray(last_value, dtype).reshape(-1)
            if len(last) not in (1, values.shape[1]):
                raise ValueError(f"last_value has {len(last)} numbers, a value {values.shape[1]}; expected as many")
            next_values = np.concatenate([values[1:], np.broadcast_to(last, values.shape[1:])[None]])
        next_values = np.asarray(next_values, dtype).reshape(len(trajectory), -1)
        advantages = _advantages(
            rewards,
            np.broadcast_to(np.where(done, 0, 1).astype(dtype)[:, None], values.shape),
            values=values,
            next_values=np.broadcast_to(next_values, values.shape),
            is_last=np.broadcast_to((done | truncated)[:, None], values.shape),
            gamma=float(gamma),
            lambda_=float(gae_lambda),
        )
        advantages = advantages.numpy().reshape(shape)
        return [{**step, "adv": advantage} for step, advantage in zip(trajectory, advantages, strict=True)]

    @classmethod
    def get_gae_with_default_last_value(
        cls,
        data: Iterable[Transition],
        done: bool,
        gamma: float,
        gae_lambda: float,
        *,
        truncated: bool = False,
        bootstrap_value: Any = None,
    ) -> list[Transition]:
        """Returns what `get_gae` does, for a trajectory that comes without a last value.

        Done: the value after it is 0. Truncated: it is `bootstrap_value`, the value of the final observation. Neither:
        the value of the last transition stands for it, and that transition is left out, so that there is one less.

        Args:
          data: see `get_gae`.
          done: whether the trajectory ended in a terminal state.
          gamma: in [0, 1].
          gae_lambda: in [0, 1].
          truncated: whether it ended for another reason, such as a time limit; True as well if its last transition
            says so.
          bootstrap_value: the value after the last transition, if it was truncated.

        Raises:
          ValueError: as `get_gae`; or if a trajectory that goes on has a single transition, or a truncated one no
            bootstrap_value.
        """
        trajectory = listed(data, "value")
        truncated = truncated or flag(trajectory[-1], "truncated")
        if done:
            return cls.get_gae(trajectory, np.zeros_like(trajectory[-1]["value"]), gamma, gae_lambda)
        if truncated:
            if bootstrap_value is None:
                raise ValueError(
                    "the trajectory is truncated: give bootstrap_value, the value of its final observation"
                )
            return cls.get_gae(trajectory, bootstrap_value, gamma, gae_lambda)
        if len(trajectory) == 1:
            raise ValueError(
                "the trajectory goes on after its only transition, which would be left out as the last value; give at "
                "least two, or call get_gae with a last_value"
            )
        return cls.get_gae(trajectory[:-1], trajectory[-1]["value"], gamma, gae_lambda)

    @staticmethod
    def get_nstep_return_data(
        data: Iterable[Transition],
        nstep: int,
        traj_len: float = math.inf,
        cum_reward: bool = False,
        gamma: float = 0.99,
    ) -> Any:
        """Transitions over n steps: m = min(nstep, steps to the end of the episode or trajectory).

        Transition i gets `next_obs`, the obs m steps later (at an end the last `next_obs` that there is); `reward`,
        the m rewards stacked and filled up with zeros to `[nstep, ...]`, or with cum_reward their discounted sum;
        `done` of the last of them; and `value_gamma` = gamma^m. Nothing behind a `done` is taken in.

        Args:
          data: transitions with `obs`, `reward`, `done`, and `next_obs` if it is expected.
          nstep: at least 1; 1 gives the data as they are.
          traj_len: how many transitions a trajectory has; the data are trajectories one after the other, and windows
            end with them.
          cum_reward: whether rewards are summed up.
          gamma: in [0, 1].

        Returns:
          A list of shallow copies.

        Raises:
          ValueError: if there are no transitions, a key is missing, or a number is out of its range.
        """
        require_count("nstep", nstep)
        require_number("gamma", gamma, 0, 1)
        if traj_len != math.inf:
            require_count("traj_len", traj_len)
        if nstep == 1:
            return data
        trajectory = listed(data, "obs", "reward", "done")
        out: list[Transition] = []
        for part in episodes(trajectory, traj_len):
            out += n_step_part(part, nstep, cum_reward=cum_reward, gamma=gamma)
        return out

    @staticmethod
    def get_train_sample(
        data: Sequence[Transition],
        unroll_len: int,
        last_fn_type: str = "last",
        null_transition: Transition | None = None,
    ) -> list[Any]:
        """A trajectory cut into chunks of unroll_len transitions.

        The rest goes by last_fn_type. 'drop': left out. 'last': filled up in front with the last transitions of the
        chunk before it; if there is none, with null ones behind. 'null_padding': filled up with null ones behind.

        Args:
          data: transitions.
          unroll_len: at least 1; 1 gives the data as they are.
          last_fn_type: see above.
          null_transition: what is filled up with; by default zeros for observations, actions and everything else.
            Either way with `done` True and `reward` 0, where it has them.

        Returns:
          A dict for each chunk, its nests those of a transition, stacked to `[unroll_len, ...]`; and `mask`, bool,
          False for null transitions. A value that is None in some transitions is zeros there, like the others in
          shape and dtype; one that is None in all stays None.

        Raises:
          ValueError: if there are no transitions, unroll_len is below 1, last_fn_type is unknown, or the transitions
            (the null one included) differ in their fields or nests.
        """
        _require_chunks(unroll_len, last_fn_type)
        if unroll_len == 1:
            return data  # type: ignore[return-value]
        given = [] if null_transition is None else [null_transition]
        trajectory = without_none([*listed(data), *given])
        null_transition = trajectory.pop() if given else None
        full = len(trajectory) // unroll_len * unroll_len
        chunks = [trajectory[begin : begin + unroll_len] for begin in range(0, full, unroll_len)]
        rest = trajectory[full:]
        if rest and last_fn_type == "last" and chunks:
            chunks.append(trajectory[-unroll_len:])
        elif rest and last_fn_type != "drop":
            nothing = null(null_transition, rest[0])
            chunks.append(rest + [nothing] * (unroll_len - len(rest)))
        num_real = [unroll_len] * len(chunks)
        if chunks and rest and last_fn_type != "drop" and (last_fn_type == "null_padding" or not full):
            num_real[-1] = len(rest)
        return [
            {**stacked(chunk), MASK: np.arange(unroll_len) < count}
            for chunk, count in zip(chunks, num_real, strict=True)
        ]


#: Traced once for all lengths, or each step of it would be called from Python.
_advantages = tf.function(generalized_advantage_estimation, reduce_retracing=True)


def _require_chunks(unroll_len: int, last_fn_type: str) -> None:
    require_count("unroll_len", unroll_len)
    require_one_of("last_fn_type", last_fn_type, LAST_FNS)
