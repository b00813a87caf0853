"""The action spec of a dataset: the bounds that agents learn within, and where they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
from tf_agents.specs import tensor_spec

from rlds2reverb.errors import Message, SpecMismatchError
from rlds2reverb.types.spaces import action_bounds, describes, make_array_space

from .action_statistics import ActionStatistics

_MAX_LISTED = 8
#: The origin of bounds that nothing else determines.
OF_DATA = "the minimum and maximum of the data"
#: What to do if actions do not match those of the environment.
ADVICE = Message("pass the environment that the dataset was recorded in", env=...)
#: End of a sentence about bounds that may be wrong.
_BOUNDS_ADVICE = Message("; choose the environment or set the bounds", env=..., action_bounds=...)


def make_action_spec(
    actions: ActionStatistics,
    action_space: Any,
    data_space: Any,
    *,
    bounds: tuple[float, float] | None = None,
    clip_actions: bool = False,
    is_complete: bool = True,
    has_advice: bool = True,
) -> tuple[tensor_spec.BoundedTensorSpec, str | None]:
    """Returns the bounded spec of a dataset's actions, and a sentence about bounds that are not the environment's.

    The bounds are those that the user has set, else those of the environment, else of the dataset's own action space.
    Without these, discrete actions range from the minimum to the maximum of the data, and continuous ones from -1 to 1
    if all of them are within these bounds, else from the minimum to the maximum of the data.

    Args:
      actions: statistics of the actions.
      action_space: action space of the environment; None if unknown.
      data_space: the dataset's own action space; None if unknown. It is ignored if the data do not match it.
      bounds: minimum and maximum that the user has set.
      clip_actions: whether the actions are clipped, so that bounds are required.
      is_complete: whether the statistics are those of all actions instead of a sample.
      has_advice: whether the sentence says what to do about unknown bounds.

    Raises:
      SpecMismatchError: If discrete actions are outside the bounds, or the bounds that are required are unknown.
    """
    space, origin = action_space, "those of the environment"
    if bounds is not None:
        space, origin = make_array_space(actions.spec, *bounds), "as set by the options"
    elif space is None and describes(data_space, actions.spec):
        space, origin = data_space, "those of the dataset's own action space"
    if space is None and clip_actions and not actions.is_discrete and not _are_within_one(actions):
        sentence = "clipping requires the bounds of the actions, which are unknown and not [-1, 1]"
        raise SpecMismatchError(sentence + _BOUNDS_ADVICE)
    choose = _choose_discrete if actions.is_discrete else _choose_continuous
    low, high, reason = choose(actions, space, origin, is_complete=is_complete)
    limits = (_round_inwards(low, actions.spec.dtype, np.inf), _round_inwards(high, actions.spec.dtype, -np.inf))
    spec = tensor_spec.BoundedTensorSpec(actions.spec.shape, actions.spec.dtype, *limits, name="action")
    if action_space is not None and reason == origin:
        return spec, None
    advice = _BOUNDS_ADVICE if space is None and has_advice else ""
    return spec, f"the action bounds are {describe_bounds(spec)}, {reason}" + advice


def _round_inwards(bound: Any, dtype: np.dtype, inwards: float) -> Any:
    """Returns a bound in a dtype, such that an action at it is also within the environment's wider dtype."""
    if not np.issubdtype(dtype, np.floating):
        return bound
    exact, rounded = np.asarray(bound, np.float64), np.asarray(bound, dtype)
    is_outside = np.sign(rounded.astype(np.float64) - exact) == -np.sign(inwards)
    with np.errstate(all="ignore"):  # A bound of 0 has a denormal neighbour.
        return np.where(is_outside, np.nextafter(rounded, dtype.type(inwards)), rounded)


def _choose_discrete(actions: ActionStatistics, space: Any, origin: str, *, is_complete: bool) -> tuple[Any, Any, str]:
    first, last = int(actions.low), int(actions.high)
    if space is not None:
        low, high = (int(bound) for bound in action_bounds(space))
        if first < low or last > high:
            raise SpecMismatchError(
                f"the discrete actions of the dataset are from {first} to {last}, but {origin} from {low} to {high}; "
                "re-encode the actions, or " + ADVICE
            )
        return low, high, origin
    if not is_complete:
        raise SpecMismatchError("the number of discrete actions is unknown" + _BOUNDS_ADVICE)
    num_values, num_actions = len(actions.values), last - first + 1
    if num_values == 1 or 2 * num_values < num_actions:
        listed = _list_values(actions.values[:_MAX_LISTED]) + (", ..." if num_values > _MAX_LISTED else "")
        problem = f"the only action{' is' if num_values == 1 else 's are'} {listed}"
        raise SpecMismatchError(
            f"the number of discrete actions is unknown, because {problem}; re-encode the actions as 0, 1, 2, ..., or "
            + ADVICE
        )
    return first, last, OF_DATA


def _choose_continuous(
    actions: ActionStatistics, space: Any, origin: str, *, is_complete: bool
) -> tuple[Any, Any, str]:
    # A constant action still needs an interval around it.
    is_constant = actions.low == actions.high
    widest_low, widest_high = actions.low - is_constant, actions.high + is_constant
    if space is None and _are_within_one(actions):
        return -1.0, 1.0, f"which all {'' if is_complete else 'sampled '}actions are within"
    low, high = (-np.inf, np.inf) if space is None else action_bounds(space)
    has_bounds = np.isfinite(low) & np.isfinite(high)
    if has_bounds.all():
        return low, high, origin
    if not is_complete:
        raise SpecMismatchError(
            f"the action bounds are unknown, and sampled actions range from {_list_values(np.ravel(actions.low))} to "
            f"{_list_values(np.ravel(actions.high))}" + _BOUNDS_ADVICE
        )
    if space is None:
        return widest_low, widest_high, OF_DATA
    low, high = np.where(has_bounds, low, widest_low), np.where(has_bounds, high, widest_high)
    return low, high, f"{origin}, or {OF_DATA} where those are infinite"


def _are_within_one(actions: ActionStatistics) -> bool:
    return bool((actions.low >= -1).all() and (actions.high <= 1).all())


def describe_bounds(spec: tensor_spec.BoundedTensorSpec) -> str:
    """Formats the bounds of actions: '[-1, 1]', or the minimum and maximum of each element."""
    low, high = (np.unique(bound) for bound in (spec.minimum, spec.maximum))
    if len(low) == len(high) == 1:
        return f"[{_list_values(low)}, {_list_values(high)}]"
    return f"from {_list_values(np.ravel(spec.minimum))} to {_list_values(np.ravel(spec.maximum))}"


def _list_values(values: np.ndarray) -> str:
    """Formats numbers as '1, 2, 3'."""
    return ", ".join(str(value) if values.dtype.kind in "iu" else f"{value:.7g}" for value in values)
