"""RLDS episodes as TF-Agents trajectories, one whole episode at a time; the implementation of `rlds_to_reverb`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.trajectories import trajectory

from rlds2reverb.adders.tf_data import columns_dataset
from rlds2reverb.libraries.tensorflow_internals import scan, with_autograph, without_autograph
from rlds2reverb.types import fields
from rlds2reverb.types.specs import Nest
from rlds2reverb.types.trajectories import (
    DiscountSource,
    make_trajectory,
    require_discount_source,
    step_types,
    trajectory_columns,
    trajectory_spec,
    transition_discounts,
)

from .rlds_episodes import make_zeros, read_episodes

PolicyInfoFn = Callable[[dict[str, Any], dict[str, Any]], Any]


def rlds_trajectory_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None, *, cast_floats: bool
) -> trajectory.Trajectory:
    """Returns the spec of an RLDS dataset's trajectories, including `policy_info`.

    Raises:
      ValueError: With TF-Agents' messages, if there are no steps or a field is missing.
    """
    step_spec = _make_step_spec(rlds_data, cast_floats)
    return trajectory_spec(step_spec, _make_policy_info_spec(step_spec, policy_info_fn))


def _make_step_spec(rlds_data: tf.data.Dataset, cast_floats: bool) -> dict[str, Nest]:
    episode_spec = rlds_data.element_spec
    steps_spec = episode_spec.get(fields.STEPS) if isinstance(episode_spec, dict) else None
    step_spec = getattr(steps_spec, "element_spec", None)
    if not isinstance(step_spec, dict):
        raise ValueError(fields.NO_STEPS)
    if not all(name in step_spec for name in fields.STEP_FIELDS):
        raise ValueError(
            f"Invalid RLDS step spec. Features expected are {list(fields.STEP_FIELDS)}, "
            f"but found {list(step_spec.keys())}"
        )
    if not cast_floats:
        return step_spec
    return tree.map_structure(
        lambda spec: tf.TensorSpec(spec.shape, tf.float32, spec.name) if spec.dtype == tf.float64 else spec, step_spec
    )


def _make_policy_info_spec(step_spec: Nest, policy_info_fn: PolicyInfoFn | None) -> Nest:
    if policy_info_fn is None:
        return ()
    compute = with_autograph(policy_info_fn)
    function = tf.function(lambda current, following: _to_tensors(compute(current, following)), autograph=False)
    outputs = function.get_concrete_function(step_spec, step_spec).structured_outputs
    return tree.map_structure(lambda output: tf.TensorSpec(output.shape, output.dtype), _to_tensors(outputs))


def _to_tensors(nest: Nest) -> Nest:
    """Converts the leaves of a policy_info to tensors, lists to tuples, and None and empty nests to ()."""
    if nest is None or (isinstance(nest, (dict, list, tuple)) and not nest):
        return ()
    if isinstance(nest, dict):
        return {name: _to_tensors(inner) for name, inner in nest.items()}
    if isinstance(nest, (list, tuple)) and not hasattr(nest, "_fields"):
        return tuple(_to_tensors(inner) for inner in nest)
    return tree.map_structure(tf.convert_to_tensor, nest)


@without_autograph
def episode_trajectories(
    rlds_data: tf.data.Dataset,
    policy_info_fn: PolicyInfoFn | None,
    discount_source: DiscountSource,
    *,
    cast_floats: bool,
) -> tf.data.Dataset:
    """Returns a dataset with one element per non-empty episode: all of its trajectories, `[N, ...]`.

    Arguments and errors are those of `rlds_to_reverb.convert_rlds_to_trajectories`.
    """
    require_discount_source(discount_source)
    policy_info_spec = _make_policy_info_spec(_make_step_spec(rlds_data, cast_floats), policy_info_fn)
    episodes = columns_dataset(rlds_data, with_index=True)
    if cast_floats:
        episodes = episodes.map(lambda index, steps: (index, tree.map_structure(_cast_float64, steps)))
    # A first step of zeros follows the last episode.
    closing_step = {**make_zeros(episodes.element_spec[1], 1), fields.IS_FIRST: tf.ones([1], tf.bool)}
    episodes = episodes.concatenate(tf.data.Dataset.from_tensors((np.int64(-1), closing_step)))
    no_rows = tree.map_structure(lambda column: column[:0], closing_step)
    pairs = scan(episodes, (np.int64(-1), no_rows), _pair_with_next)
    arguments = policy_info_fn, policy_info_spec, discount_source
    trajectories = pairs.skip(1).map(
        lambda index, current, following: _to_trajectories(index, current, following, *arguments)
    )
    return trajectories.prefetch(2)


def numpy_trajectories(
    rlds_data: tf.data.Dataset, discount_source: DiscountSource, *, cast_floats: bool
) -> Iterator[trajectory.Trajectory]:
    """Yields the elements of `episode_trajectories` without a policy_info_fn, converted by numpy twice as fast."""
    require_discount_source(discount_source)

    def read() -> Iterator[tuple[int, dict[str, Nest]]]:
        for index, (steps, _) in enumerate(read_episodes(rlds_data)):
            if len(steps[fields.IS_FIRST]):
                yield index, tree.map_structure(cast, steps) if cast_floats else steps
        yield -1, {fields.IS_FIRST: np.ones(1, bool)}  # A first step follows the last episode.

    def cast(column: np.ndarray) -> np.ndarray:
        return column.astype(np.float32) if column.dtype == np.float64 else column

    for (index, steps), (_, following) in itertools.pairwise(read()):
        next_is_first = np.append(steps[fields.IS_FIRST][1:], following[fields.IS_FIRST][0])
        broken = np.stack(_find_broken_rules(steps, next_is_first))
        if broken.any():
            step = int(np.argmax(broken.any(axis=0)))
            message = f"{_RULES[np.argmax(broken[:, step])]} (episode {index}, step {step})"
            raise tf.errors.InvalidArgumentError(None, None, message)
        yield trajectory_columns(steps, discount_source=discount_source)


#: TF-Agents' message for each rule, in the order in which TF-Agents checks them at each step.
_RULES = (fields.TERMINAL_NOT_LAST, fields.MID_BEFORE_FIRST, fields.LAST_BEFORE_MID)


def _find_broken_rules(steps: dict[str, Nest], next_is_first: Any) -> list[Any]:
    """Returns, for each of `_RULES`, whether each step breaks it, bool `[T]`."""
    is_first, is_last, is_terminal = (steps[name] for name in fields.FLAG_FIELDS)
    return [is_terminal & ~is_last, ~is_last & ~is_first & next_is_first, is_last & ~next_is_first]


def _cast_float64(column: tf.Tensor) -> tf.Tensor:
    return tf.cast(column, tf.float32) if column.dtype == tf.float64 else column


def _pair_with_next(previous: Any, element: Any) -> tuple[Any, Any]:
    """Emits the previous episode (in a scan), because its last step is paired with the first step of the next one."""
    index, current = previous
    following = tree.map_structure(lambda now, after: _concat(now[1:], after[:1]), current, element[1])
    return element, (index, current, following)


def _concat(now: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Appends rows of the next episode, cropped or padded if the size of the field in this episode differs."""
    if now.shape[1:].is_fully_defined():
        return tf.concat([now, after], axis=0)
    size = tf.shape(now)[1:]
    shape = tf.concat([tf.shape(after)[:1], size], axis=0)
    common = tf.minimum(tf.shape(after)[1:], size)
    after = tf.slice(after, tf.zeros_like(shape), tf.concat([tf.shape(after)[:1], common], axis=0))
    padding = tf.stack([tf.zeros_like(shape), shape - tf.shape(after)], axis=1)
    return tf.concat([now, tf.pad(after, padding)], axis=0)


def _to_trajectories(
    index: tf.Tensor,
    current: dict[str, Nest],
    following: dict[str, Nest],
    policy_info_fn: PolicyInfoFn | None,
    policy_info_spec: Nest,
    discount_source: DiscountSource,
) -> trajectory.Trajectory:
    """Returns the trajectories of all pairs of one episode, after the checks that TF-Agents makes on each pair."""
    with tf.control_dependencies([_assert_rules(index, current, following)]):
        types_now = step_types(current[fields.IS_FIRST], current[fields.IS_LAST], tf.where)
    types_next = step_types(following[fields.IS_FIRST], following[fields.IS_LAST], tf.where)
    discounts = transition_discounts(
        current, following, tf.cast(current[fields.DISCOUNT], tf.float32), discount_source, tf.where
    )
    policy_info: Nest = ()
    if policy_info_fn is not None and policy_info_spec != ():
        compute = with_autograph(policy_info_fn)
        policy_info = tf.map_fn(
            lambda pair: _to_tensors(compute(*pair)), (current, following), fn_output_signature=policy_info_spec
        )
    return make_trajectory(current, types_now, types_next, discounts, tf.where)._replace(policy_info=policy_info)


def _assert_rules(index: tf.Tensor, current: dict[str, Nest], following: dict[str, Nest]) -> tf.Operation:
    """Returns an assertion that fails with the message of the first rule broken by the first such step."""
    broken = tf.stack(_find_broken_rules(current, following[fields.IS_FIRST]))
    step = tf.argmax(tf.cast(tf.reduce_any(broken, axis=0), tf.int32))
    rule = tf.argmax(tf.cast(broken[:, step], tf.int32))
    where = tf.strings.format(" (episode {}, step {})", (index, step))
    message = tf.strings.join([tf.gather(tf.constant(_RULES), rule), where])
    return tf.debugging.Assert(~tf.reduce_any(broken), [message])
