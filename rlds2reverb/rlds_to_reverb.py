"""A drop-in replacement for `tf_agents.replay_buffers.rlds_to_reverb`, which pushes RLDS datasets to Reverb.

The functions have TF-Agents' names, signatures and messages, so that migrating takes one changed import. They
additionally support nested fields, policy_info, a choice of discounts and more dtypes, and their errors name the
episode and the step.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args

import tensorflow as tf
import tree
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets.readers.rlds_trajectories import (
    PolicyInfoFn,
    episode_trajectories,
    numpy_trajectories,
    rlds_trajectory_spec,
)
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.writing.observer_items import push_episodes
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.specs import Nest, require_match
from rlds2reverb.types.trajectories import DiscountSource

#: How much `push_rlds_to_reverb` validates before it writes.
ValidateMode = Literal["first", "all", "none"]
VALIDATE_MODES: tuple[ValidateMode, ...] = get_args(ValidateMode)

_SIGNATURE_MISMATCH = "Replay buffer table signature spec should match RLDS data spec."
_POLICY_INFO_DROPPED = (
    "policy_info is left out because the table's signature has none; to store it, build the table from "
    "create_trajectory_data_spec(rlds_data, policy_info_fn)"
)


def get_rlds_step_features() -> list[str]:
    """Returns the names of the required fields of an RLDS step."""
    return list(fields.STEP_FIELDS)


def create_trajectory_data_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None = None, *, cast_floats: bool = False
) -> trajectory.Trajectory:
    """Returns the spec of an RLDS dataset's trajectories, for a Reverb table and a replay buffer.

    Args:
      rlds_data: dataset of episodes, each a dict whose `steps` is a dataset of RLDS steps.
      policy_info_fn: the argument of `convert_rlds_to_trajectories`; the spec includes its output as `policy_info`
        (TF-Agents' function omits it, so that the first sample fails).
      cast_floats: whether to cast float64 fields to float32.

    Returns:
      `Trajectory` of `tf.TensorSpec`s: int32 scalars `step_type` and `next_step_type`, a float32 discount in [0, 1],
      and the other fields as in the steps.

    Raises:
      ValueError: If there are no steps, or a step is missing a field.
    """
    spec = rlds_trajectory_spec(rlds_data, policy_info_fn, cast_floats=cast_floats)
    _require_steps(rlds_data)
    return spec


def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset,
    policy_info_fn: PolicyInfoFn | None = None,
    *,
    discount_source: DiscountSource = "step",
    cast_floats: bool = False,
) -> tf.data.Dataset:
    """Returns a dataset with one trajectory per RLDS step.

    The concatenated steps of all episodes, followed by one additional first step, form overlapping pairs
    `(current, next)`, each of which becomes one trajectory. Both ends of an episode: it starts with FIRST; its last
    step becomes the boundary trajectory LAST, FIRST; a single step becomes LAST, LAST. Episodes without steps have no
    trajectories. One whole episode at a time is processed, and must fit in memory.

    Args:
      rlds_data: dataset of episodes, each a dict whose `steps` is a dataset of RLDS steps: dicts with
        `is_first, is_last, is_terminal` (bool), `observation, action, reward` (any nest) and `discount`.
      policy_info_fn: function from the current and the next step (dicts of all fields) to `policy_info`.
      discount_source: 'step' (as in TF-Agents), 'next_terminal' or 'product'; see `trajectories.transition_discounts`.
      cast_floats: whether to cast float64 fields to float32.

    Returns:
      Dataset of `Trajectory` with the spec returned by `create_trajectory_data_spec`.

    Raises:
      ValueError: If there are no steps, a step is missing a field, or discount_source is unknown.
      tf.errors.InvalidArgumentError: during iteration, if a terminal step is not the last of its episode, a mid step
        is followed by a first step, or a last step is not followed by a first step. The message names the episode and
        the step; no trajectory of that episode is yielded.
    """
    trajectories = episode_trajectories(rlds_data, policy_info_fn, discount_source, cast_floats=cast_floats)
    _require_steps(rlds_data)
    return trajectories.unbatch()


def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset,
    reverb_observer: Any,
    policy_info_fn: PolicyInfoFn | None = None,
    *,
    discount_source: DiscountSource = "step",
    cast_floats: bool = False,
    validate: ValidateMode = "first",
    fast: bool = False,
) -> int:
    """Pushes the trajectories of an RLDS dataset to Reverb through a TF-Agents observer.

    Each episode is converted and checked before its first trajectory is passed to the observer, so that an invalid
    episode leaves no items. The episodes before it are stored, unless `validate='all'`.

    Args:
      rlds_data: see `convert_rlds_to_trajectories`.
      reverb_observer: TF-Agents' `ReverbAddEpisodeObserver`, `ReverbAddTrajectoryObserver` or
        `ReverbTrajectorySequenceObserver`, for one or more tables.
      policy_info_fn: see `convert_rlds_to_trajectories`. If the table's signature has no policy_info, as with
        TF-Agents' `create_trajectory_data_spec`, policy_info is left out with a warning (TF-Agents would store items
        that cannot be sampled).
      discount_source: see `convert_rlds_to_trajectories`.
      cast_floats: whether to cast float64 fields to float32.
      validate: 'first' compares the arrays of the first episode with the table's signature before anything is
        written; 'all' additionally reads the whole dataset once before writing; 'none' relies on the specs.
      fast: whether to bypass the observer and write its items in bulk, which is a hundred times faster. Their keys are
        derived from their content, so that pushing the same data again stores it only once.

    Returns:
      The number of trajectories passed to the observer, or written in its place.

    Raises:
      SpecMismatchError: If the table's signature does not match the data's spec. The message is TF-Agents'; `details`
        and the cause name the difference.
      ValueError: If validate is unknown; if `fast` is set and the observer's settings are not supported; or as in
        `convert_rlds_to_trajectories`.
      ServerUnavailableError: If the server does not answer within 10 s; if `fast` is set and it does not accept items
        in time.
      tf.errors.InvalidArgumentError: as in `convert_rlds_to_trajectories`.
    """
    require_one_of("validate", validate, VALIDATE_MODES)
    client = getattr(reverb_observer, "py_client", None)
    if isinstance(getattr(client, "server_address", None), str):
        table_infos(client)  # TF-Agents would wait forever for a server that does not answer.
    signature = reverb_observer.get_table_signature()
    spec = create_trajectory_data_spec(rlds_data, policy_info_fn, cast_floats=cast_floats)
    # Reverb returns signatures as named tuples of a private type, so isinstance(signature, Trajectory) is False.
    if getattr(signature, "policy_info", None) == () and spec.policy_info != ():
        warnings.warn(_POLICY_INFO_DROPPED, stacklevel=2)
        policy_info_fn, spec = None, spec._replace(policy_info=())
    _require_signature(spec, signature)
    if fast and policy_info_fn is None:
        read_blocks = functools.partial(numpy_trajectories, rlds_data, discount_source, cast_floats=cast_floats)
    else:
        blocks = episode_trajectories(rlds_data, policy_info_fn, discount_source, cast_floats=cast_floats)
        read_blocks = blocks.as_numpy_iterator
    if validate == "all":
        for _ in read_blocks():
            pass
    num_trajectories = 0

    def read_and_check() -> Iterator[Nest]:
        nonlocal num_trajectories
        for columns in read_blocks():
            if validate != "none" and not num_trajectories:
                _require_signature(tree.map_structure(lambda column: column[0], columns), signature)
            yield columns
            num_trajectories += len(columns.step_type)

    if fast:
        push_episodes(read_and_check(), reverb_observer)
    else:
        for columns in read_and_check():
            for row in zip(*tree.flatten(columns), strict=True):
                reverb_observer(tree.unflatten_as(columns, row))
    return num_trajectories


def _require_steps(rlds_data: tf.data.Dataset) -> None:
    """Raises `ValueError` if no episode has steps; reads up to the first one that has."""
    steps = rlds_data.flat_map(lambda episode: episode[fields.STEPS]).take(1)
    if tf.executing_eagerly() and not any(True for _ in steps):
        raise ValueError("rlds_data has no episode with steps, so there is nothing to convert; check how it was loaded")


def _require_signature(spec: Nest, signature: Nest) -> None:
    """Checks that a trajectory matches the signature of a table of trajectory sequences; None matches anything."""
    if signature is None:
        return
    inner = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), signature)
    advice = "build the table from create_trajectory_data_spec() of this data"
    try:
        require_match(spec, inner, holder="the table", advice=advice, root="trajectory")
    except SpecMismatchError as error:
        raise SpecMismatchError(_SIGNATURE_MISMATCH, details=error.details) from error
