"""RLDS steps to TF-Agents trajectories, whole columns at a time, in numpy and in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory
from tf_agents.typing import types

from rlds2reverb import fields
from rlds2reverb._arguments import require_one_of
from rlds2reverb.specs import Nest, to_tensor_spec

#: Where a trajectory's discount comes from; see `transition_discounts`.
DiscountSource = Literal["step", "next_terminal", "product"]
DISCOUNT_SOURCES: tuple[DiscountSource, ...] = get_args(DiscountSource)

FIRST, MID, LAST = (np.int32(value) for value in range(3))


def require_discount_source(discount_source: str) -> None:
    """Raises `ValueError` for anything but the names in `DISCOUNT_SOURCES`."""
    require_one_of("discount_source", discount_source, DISCOUNT_SOURCES)


def step_types(is_first: Any, is_last: Any, where: Callable[..., Any]) -> Any:
    """Returns FIRST (0) where `is_first`, else LAST (2) where `is_last`, else MID (1); int32, shaped as the flags."""
    return where(is_first, FIRST, where(is_last, LAST, MID))


def pair_step_types(current: Any, following: Any, where: Callable[..., Any]) -> tuple[Any, Any]:
    """Returns the step types of pairs; an episode of a single step (FIRST before FIRST) becomes LAST, LAST."""
    single = (current == FIRST) & (following == FIRST)
    return where(single, LAST, current), where(single, LAST, following)


def transition_discounts(
    current: Nest, following: Nest, discounts: Any, source: DiscountSource, where: Callable[..., Any]
) -> Any:
    """Returns the discount of the transition from each current step to the following one.

    It is 0 on a step that is last and terminal. The step after a last one is of another episode, and is not looked at.
    Elsewhere:

        step:           discount_t, as TF-Agents has it: the step's own
        next_terminal:  1 - is_terminal_{t+1}
        product:        discount_t * (1 - is_terminal_{t+1})

    With `step`, data whose discounts are all 1 bootstrap from their terminal states; `product` never does, and a
    truncated episode keeps its bootstrap with each of them.

    Args:
      current: dict with the bool flags `is_last`, `is_terminal` `[T]` of the current steps.
      following: dict with the bool flag `is_terminal` `[T]` of the steps after them.
      discounts: float32 `[T]` (or `[T, ...]` for several rewards), the current steps' own.
      source: one of `DISCOUNT_SOURCES`.
      where: `np.where` or `tf.where`.

    Returns:
      float32 `[T]`, in [0, 1] where the discounts are.
    """
    zero = current[fields.IS_LAST] & current[fields.IS_TERMINAL]
    if source != "step":
        zero = zero | (following[fields.IS_TERMINAL] & ~current[fields.IS_LAST])
    if source == "next_terminal":
        discounts = discounts * 0 + 1
    zero = zero[(slice(None), *[None] * (len(discounts.shape) - 1))]
    return where(zero, np.float32(0), discounts)


def trajectory_columns(steps: dict[str, Nest], *, discount_source: DiscountSource = "product") -> trajectory.Trajectory:
    """Returns the trajectory of every step of one valid episode, as columns.

    `N` steps give `N` rows. The last row is the boundary (LAST, then FIRST): the step after the final one is the
    first of whatever comes next. A single step gives LAST, LAST.

    Args:
      steps: RLDS columns `[N, ...]` of one episode.
      discount_source: see `transition_discounts`.

    Returns:
      `Trajectory` of arrays `[N, ...]`; step types int32, discount float32, the rest as in `steps`;
      `policy_info` is empty.

    Raises:
      ValueError: if discount_source is unknown.
    """
    require_discount_source(discount_source)
    types_now = step_types(steps[fields.IS_FIRST], steps[fields.IS_LAST], np.where)
    types_next = np.append(types_now[1:], FIRST)[: len(types_now)]
    following = {fields.IS_TERMINAL: np.append(steps[fields.IS_TERMINAL][1:], False)[: len(types_now)]}
    discounts = steps[fields.DISCOUNT].astype(np.float32)
    discounts = transition_discounts(steps, following, discounts, discount_source, np.where)
    types_now, types_next = pair_step_types(types_now, types_next, np.where)
    return trajectory.Trajectory(
        step_type=types_now,
        observation=steps[fields.OBSERVATION],
        action=steps[fields.ACTION],
        policy_info=(),
        next_step_type=types_next,
        reward=steps[fields.REWARD],
        discount=discounts,
    )


def trajectory_spec(step_spec: Nest, policy_info: types.NestedTensorSpec = ()) -> trajectory.Trajectory:
    """Returns the spec of one trajectory for steps of `step_spec` (`tf.TensorSpec`s or `ArraySpec`s).

    Step types are int32 scalars; discount is float32 in [0, 1], named 'discount', of the shape of the steps' own;
    everything else is as the steps have it.
    """
    if not isinstance(step_spec[fields.REWARD], tf.TensorSpec):
        step_spec = to_tensor_spec({name: step_spec[name] for name in fields.STEP_FIELDS})
    step_type = tf.TensorSpec((), tf.int32, name="step_type")
    discount = tensor_spec.BoundedTensorSpec(
        step_spec[fields.DISCOUNT].shape, tf.float32, minimum=0.0, maximum=1.0, name="discount"
    )
    return trajectory.Trajectory(
        step_type=step_type,
        observation=step_spec[fields.OBSERVATION],
        action=step_spec[fields.ACTION],
        policy_info=policy_info,
        next_step_type=step_type,
        reward=step_spec[fields.REWARD],
        discount=discount,
    )
