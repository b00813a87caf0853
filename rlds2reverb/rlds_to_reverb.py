"""RLDS data sets into Reverb through a TF-Agents observer: the functions of `tf_agents.replay_buffers.rlds_to_reverb`.

Names, signatures and messages are the same, so that a user changes one import. What differs is said at each
function: nests, policy_info, discounts, dtypes, and errors that name the episode and the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.trajectories import trajectory

from rlds2reverb import fields
from rlds2reverb.specs import Nest, SpecMismatch, require_match
from rlds2reverb.trajectories import (
    pair_step_types,
    require_discount_source,
    step_types,
    trajectory_spec,
    transition_discounts,
)

PolicyInfoFn = Callable[[dict[str, Any], dict[str, Any]], Any]

#: How much `push_rlds_to_reverb` looks at before it writes; see there.
VALIDATE_MODES = ("first", "all", "none")

_SIGNATURE_DIFFERS = "Replay buffer table signature spec should match RLDS data spec."
_WHOLE_EPISODE = np.iinfo(np.int64).max


def get_rlds_step_features() -> list[str]:
    """The names of the fields that every RLDS step has to have."""
    return list(fields.STEP_FIELDS)


def create_trajectory_data_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None = None, *, cast_floats: bool = False
) -> trajectory.Trajectory:
    """The spec of the trajectories of an RLDS data set, for a Reverb table and a replay buffer.

    Args:
      rlds_data: data set of episodes, each a dict whose `steps` is a data set of RLDS steps.
      policy_info_fn: what `convert_rlds_to_trajectories` will be given; the spec has its output as `policy_info`
        (the function of TF-Agents leaves it out, and the first sample fails).
      cast_floats: whether float64 fields become float32.

    Returns:
      `Trajectory` of `tf.TensorSpec`s: `step_type` and `next_step_type` int32 scalars, discount float32 in [0, 1],
      the rest as the steps have it.

    Raises:
      ValueError: if there are no steps, or a step lacks a field.
    """
    return _trajectory_spec(_step_spec(rlds_data), policy_info_fn, cast_floats=cast_floats)


def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset,
    policy_info_fn: PolicyInfoFn | None = None,
    *,
    discount_source: str = "step",
    cast_floats: bool = False,
) -> tf.data.Dataset:
    """A data set with one trajectory for every RLDS step.

    The steps of all episodes in a row, closed by one more step that is first, form overlapping pairs; each pair
    `(current, next)` is one trajectory. Both ends of an episode: it begins with FIRST; its last step gives the
    boundary trajectory LAST, FIRST; a single step gives LAST, LAST. Episodes without steps give nothing.
    Works on whole episodes at a time, which have to fit in memory one by one.

    Args:
      rlds_data: data set of episodes, each a dict whose `steps` is a data set of RLDS steps: dicts with
        `is_first, is_last, is_terminal` (bool), `observation, action, reward` (any nest) and `discount`.
      policy_info_fn: called with the current and the next step (dicts, all their fields), gives `policy_info`.
      discount_source: 'step' as TF-Agents has it, 'next_terminal' or 'product'; see
        `trajectories.transition_discounts`.
      cast_floats: whether float64 fields become float32.

    Returns:
      data set of `Trajectory`, as `create_trajectory_data_spec` describes it.

    Raises:
      ValueError: if there are no steps, a step lacks a field, or discount_source is unknown.
      tf.errors.InvalidArgumentError: while iterating, if a terminal step is not the last of its episode, a mid
        step is followed by a first step, or a last step is not followed by a first one. The message names episode
        and step, and no trajectory of that episode comes before it.
    """
    blocks = _trajectory_blocks(rlds_data, policy_info_fn, discount_source, cast_floats=cast_floats)
    return blocks.unbatch()


def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset,
    reverb_observer: Any,
    policy_info_fn: PolicyInfoFn | None = None,
    *,
    discount_source: str = "step",
    cast_floats: bool = False,
    validate: str = "first",
) -> int:
    """Pushes an RLDS data set through a TF-Agents Reverb observer, as trajectories.

    An episode is converted and checked whole before the observer sees its first trajectory: one that fails leaves
    none of its own items. The episodes before it are stored, unless `validate='all'`.

    Args:
      rlds_data: see `convert_rlds_to_trajectories`.
      reverb_observer: `ReverbAddEpisodeObserver`, `ReverbAddTrajectoryObserver` or
        `ReverbTrajectorySequenceObserver` of TF-Agents, for one table or several.
      policy_info_fn: see `convert_rlds_to_trajectories`.
      discount_source: see `convert_rlds_to_trajectories`.
      cast_floats: whether float64 fields become float32.
      validate: 'first' compares the arrays of the first episode with the table's signature before anything is
        written; 'all' besides goes through the whole data set once before it writes; 'none' trusts the specs.

    Returns:
      The number of trajectories given to the observer.

    Raises:
      ValueError: as `convert_rlds_to_trajectories`; if the table's signature differs from the data's spec; or if
        validate is unknown.
      tf.errors.InvalidArgumentError: as `convert_rlds_to_trajectories`.
    """
    if validate not in VALIDATE_MODES:
        raise ValueError(f"validate is {validate!r}, wanted one of {', '.join(map(repr, VALIDATE_MODES))}")
    signature = reverb_observer.get_table_signature()
    _require_signature(create_trajectory_data_spec(rlds_data, policy_info_fn, cast_floats=cast_floats), signature)
    blocks = _trajectory_blocks(rlds_data, policy_info_fn, discount_source, cast_floats=cast_floats)
    if validate == "all":
        for _ in blocks:
            pass
    num_trajectories = 0
    for columns in blocks.as_numpy_iterator():
        if validate != "none" and not num_trajectories:
            _require_signature(tree.map_structure(lambda column: column[0], columns), signature)
        for row in _rows(columns):
            reverb_observer(row)
            num_trajectories += 1
    return num_trajectories


def _require_signature(spec: Nest, signature: Nest) -> None:
    """Compares one trajectory with a table of sequences of them; a table without a signature takes anything."""
    if signature is None:
        return
    inner = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), signature)
    advice = "build the table from create_trajectory_data_spec() of this data"
    try:
        require_match(spec, inner, holder="the table", advice=advice, root="trajectory")
    except SpecMismatch as error:
        raise SpecMismatch(f"{_SIGNATURE_DIFFERS} {error}") from error


def _rows(columns: Nest) -> Iterator[Nest]:
    leaves = tree.flatten(columns)
    for row in zip(*leaves, strict=True):
        yield tree.unflatten_as(columns, row)


def _step_spec(rlds_data: tf.data.Dataset) -> dict[str, Nest]:
    episode_spec = rlds_data.element_spec
    if not isinstance(episode_spec, dict) or fields.STEPS not in episode_spec:
        raise ValueError(fields.NO_STEPS)
    step_spec = episode_spec[fields.STEPS].element_spec
    if not all(name in step_spec for name in fields.STEP_FIELDS):
        raise ValueError(
            f"Invalid RLDS step spec. Features expected are {get_rlds_step_features()}, "
            f"but found {list(step_spec.keys())}"
        )
    return step_spec


def _trajectory_spec(
    step_spec: dict[str, Nest], policy_info_fn: PolicyInfoFn | None, *, cast_floats: bool
) -> trajectory.Trajectory:
    if cast_floats:
        step_spec = tree.map_structure(_float32_spec, step_spec)
    return trajectory_spec(step_spec, _policy_info_spec(step_spec, policy_info_fn))


def _float32_spec(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec(spec.shape, tf.float32, spec.name) if spec.dtype == tf.float64 else spec


def _policy_info_spec(step_spec: Nest, policy_info_fn: PolicyInfoFn | None) -> Nest:
    if policy_info_fn is None:
        return ()
    outputs = tf.function(policy_info_fn).get_concrete_function(step_spec, step_spec).structured_outputs
    return tree.map_structure(lambda output: tf.TensorSpec(output.shape, output.dtype), outputs)


def _trajectory_blocks(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None, discount_source: str, *, cast_floats: bool
) -> tf.data.Dataset:
    """A data set with the trajectories of one whole episode an element, `[N, ...]`; empty episodes left out."""
    require_discount_source(discount_source)
    step_spec = _step_spec(rlds_data)
    policy_info = _policy_info_spec(
        tree.map_structure(_float32_spec, step_spec) if cast_floats else step_spec, policy_info_fn
    )

    def to_columns(index: tf.Tensor, episode: dict[str, Any]) -> tf.data.Dataset:
        columns = episode[fields.STEPS].batch(_WHOLE_EPISODE)
        if cast_floats:
            columns = columns.map(lambda steps: tree.map_structure(_cast_float64, steps))
        return columns.map(lambda steps: (index, steps))

    columns = rlds_data.enumerate().flat_map(to_columns)
    closing = _closing_step(columns.element_spec[1])
    columns = columns.concatenate(tf.data.Dataset.from_tensors((np.int64(-1), closing)))
    nothing = tree.map_structure(lambda column: column[:0], closing)
    pairs = columns.scan((np.int64(-1), nothing), _pair_with_next)
    return pairs.skip(1).map(
        lambda index, current, following: _to_trajectories(
            index, current, following, policy_info_fn, policy_info, discount_source
        )
    )


def _cast_float64(column: tf.Tensor) -> tf.Tensor:
    return tf.cast(column, tf.float32) if column.dtype == tf.float64 else column


def _closing_step(columns_spec: Nest) -> Nest:
    """One step of zeros that is first, to follow the last episode; sizes that vary are 0."""
    zeros = tree.map_structure(
        lambda spec: tf.zeros([1, *(size or 0 for size in spec.shape[1:])], spec.dtype), columns_spec
    )
    return {**zeros, fields.IS_FIRST: tf.ones([1], tf.bool)}


def _pair_with_next(held: Any, arrived: Any) -> tuple[Any, Any]:
    """Scan: holds an episode back until the next one arrives, whose first step its last step needs."""
    held_index, current = held
    _, arrived_steps = arrived
    following = tree.map_structure(
        lambda now, after: tf.concat([now[1:], after[:1]], axis=0)
        if now.shape[1:].is_fully_defined()
        else _concat_ragged(now[1:], after[:1]),
        current,
        arrived_steps,
    )
    return arrived, (held_index, current, following)


def _concat_ragged(now: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Concatenates rows of a field whose size varies between episodes; the step from elsewhere is cut or padded."""
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
    discount_source: str,
) -> trajectory.Trajectory:
    """The trajectories of all pairs of one episode, after the checks that TF-Agents makes on each pair."""
    with tf.control_dependencies(_assertions(index, current, following)):
        types_now = step_types(current[fields.IS_FIRST], current[fields.IS_LAST], tf.where)
    types_next = step_types(following[fields.IS_FIRST], following[fields.IS_LAST], tf.where)
    discounts = transition_discounts(
        current, following, tf.cast(current[fields.DISCOUNT], tf.float32), discount_source, tf.where
    )
    policy_info: Nest = ()
    if policy_info_fn is not None:
        policy_info = tf.map_fn(
            lambda pair: policy_info_fn(*pair), (current, following), fn_output_signature=policy_info_spec
        )
    types_now, types_next = pair_step_types(types_now, types_next, tf.where)
    return trajectory.Trajectory(
        step_type=types_now,
        observation=current[fields.OBSERVATION],
        action=current[fields.ACTION],
        policy_info=policy_info,
        next_step_type=types_next,
        reward=current[fields.REWARD],
        discount=discounts,
    )


def _assertions(index: tf.Tensor, current: dict[str, Nest], following: dict[str, Nest]) -> list[tf.Operation]:
    is_first, is_last, is_terminal = (current[name] for name in fields.FLAG_FIELDS)
    next_first = following[fields.IS_FIRST]
    rules = (
        (is_terminal & ~is_last, fields.TERMINAL_NOT_LAST),
        (~is_last & ~is_first & next_first, fields.MID_BEFORE_FIRST),
        (is_last & ~next_first, fields.LAST_BEFORE_MID),
    )
    assertions = []
    for broken, sentence in rules:
        step = tf.argmax(tf.cast(broken, tf.int32), output_type=tf.int64)
        message = tf.strings.format(sentence + " (episode {}, step {})", (index, step))
        assertions.append(tf.debugging.Assert(~tf.reduce_any(broken), [message]))
    return assertions
