"""Conversion of RLDS steps to TF-Agents trajectories by whole columns, in NumPy and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory
from tf_agents.typing import types

from . import fields
from .arguments import require_one_of
from .specs import Nest, to_tensor_spec

#: The source of a trajectory's discount; see `transition_discounts`.
DiscountSource = Literal["step", "next_terminal", "product"]
DISCOUNT_SOURCES: tuple[DiscountSource, ...] = get_args(DiscountSource)

FIRST, MID, LAST = (np.int32(value) for value in range(3))


def require_discount_source(discount_source: str) -> None:
    """Raises `ValueError` unless the argument is one of `DISCOUNT_SOURCES`."""
    require_one_of("discount_source", discount_source, DISCOUNT_SOURCES)


def step_types(is_first: Any, is_last: Any, where: Callable[..., Any]) -> Any:
    """Returns FIRST (0) where `is_first`, else LAST (2) where `is_last`, else MID (1); int32 in the flags' shape."""
    return where(is_first, FIRST, where(is_last, LAST, MID))


def transition_discounts(
    current: Nest, following: Nest, discounts: Any, source: DiscountSource, where: Callable[..., Any]
) -> Any:
    """Returns the discount of the transition from each current step to the following one.

    The discount is 0 on a step that is both last and terminal. A last step ignores the step after it, which belongs
    to the next episode. Elsewhere:

        step:           discount_t, the step's own discount, as in TF-Agents
        next_terminal:  1 - is_terminal_{t+1}
        product:        discount_t * (1 - is_terminal_{t+1})

    With `step`, data whose discounts are all 1 bootstrap from terminal states; `next_terminal` and `product` never do.
    Truncated episodes always bootstrap from their final observation.

    Args:
      current: dict with the bool flags `is_last`, `is_terminal` `[T]` of the current steps.
      following: dict with the bool flag `is_terminal` `[T]` of the next steps.
      discounts: float32 `[T]` (or `[T, ...]` for several rewards), the discounts of the current steps.
      source: one of `DISCOUNT_SOURCES`.
      where: `np.where` or `tf.where`.

    Returns:
      float32 `[T]` (or `[T, ...]`), in [0, 1] if `discounts` are.
    """
    is_zero = current[fields.IS_LAST] & current[fields.IS_TERMINAL]
    if source != "step":
        is_zero = is_zero | (following[fields.IS_TERMINAL] & ~current[fields.IS_LAST])
    if source == "next_terminal":
        discounts = discounts * 0 + 1
    is_zero = is_zero[(slice(None), *[None] * (len(discounts.shape) - 1))]
    return where(is_zero, np.float32(0), discounts)


def trajectory_columns(steps: dict[str, Nest], *, discount_source: DiscountSource = "product") -> trajectory.Trajectory:
    """Returns one trajectory per step of a valid episode, as columns.

    `N` steps become `N` rows. The last row is the boundary (LAST, FIRST), as if the first step of a new episode
    followed. A single step becomes LAST, LAST.

    Args:
      steps: RLDS columns `[N, ...]` of one episode.
      discount_source: see `transition_discounts`.

    Returns:
      `Trajectory` of arrays `[N, ...]`: int32 step types, float32 discount, an empty `policy_info`, and the other
      fields as in `steps`.

    Raises:
      ValueError: If discount_source is unknown.
    """
    require_discount_source(discount_source)
    current_types = step_types(steps[fields.IS_FIRST], steps[fields.IS_LAST], np.where)
    next_types = np.append(current_types[1:], FIRST)[: len(current_types)]
    following = {fields.IS_TERMINAL: np.append(steps[fields.IS_TERMINAL][1:], False)[: len(current_types)]}
    discounts = steps[fields.DISCOUNT].astype(np.float32)
    discounts = transition_discounts(steps, following, discounts, discount_source, np.where)
    return make_trajectory(steps, current_types, next_types, discounts, np.where)


def make_trajectory(
    steps: dict[str, Nest], current_types: Any, next_types: Any, discounts: Any, where: Callable[..., Any]
) -> trajectory.Trajectory:
    """Returns the trajectory of pairs of steps; a single-step episode (FIRST before FIRST) becomes LAST, LAST.

    Args:
      steps: the current steps, columns `[N, ...]`.
      current_types: int32 `[N]`, their step types.
      next_types: int32 `[N]`, those of the next steps.
      discounts: float32 `[N, ...]`, see `transition_discounts`.
      where: `np.where` or `tf.where`.
    """
    is_single = (current_types == FIRST) & (next_types == FIRST)
    step_type, next_step_type = (where(is_single, LAST, kinds) for kinds in (current_types, next_types))
    observation, action, reward = (steps[name] for name in (fields.OBSERVATION, fields.ACTION, fields.REWARD))
    return trajectory.Trajectory(step_type, observation, action, (), next_step_type, reward, discounts)


def trajectory_spec(step_spec: Nest, policy_info: types.NestedTensorSpec = ()) -> trajectory.Trajectory:
    """Returns the spec of one trajectory from a `step_spec` of `tf.TensorSpec`s or `ArraySpec`s.

    Step types are int32 scalars. The discount is named 'discount' and float32 in [0, 1], with the shape of the steps'
    discount. All other fields have the specs of the steps.
    """
    if not isinstance(step_spec[fields.REWARD], tf.TensorSpec):
        step_spec = to_tensor_spec({name: step_spec[name] for name in fields.STEP_FIELDS})
    step_type = tf.TensorSpec((), tf.int32, name="step_type")
    discount = tensor_spec.BoundedTensorSpec(step_spec[fields.DISCOUNT].shape, tf.float32, 0.0, 1.0, name="discount")
    observation, action, reward = (step_spec[name] for name in (fields.OBSERVATION, fields.ACTION, fields.REWARD))
    return trajectory.Trajectory(step_type, observation, action, policy_info, step_type, reward, discount)
