"""RLDS data sets into Reverb through a TF-Agents observer: the functions of `tf_agents.replay_buffers.rlds_to_reverb`.

Names, signatures and messages are the same, so that a user changes one import. Each function says what
differs: nests, policy_info, discounts, dtypes, and errors that name the episode and the step.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args

import tensorflow as tf
import tree
from tf_agents.trajectories import trajectory

from rlds2reverb import fields
from rlds2reverb._arguments import require_one_of
from rlds2reverb._writing.observer_items import push_episodes
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.sources.rlds_trajectories import (
    PolicyInfoFn,
    episode_trajectories,
    numpy_trajectories,
    trajectory_spec_of_rlds,
)
from rlds2reverb.specs import Nest, require_match
from rlds2reverb.trajectories import DiscountSource

#: How much `push_rlds_to_reverb` looks at before it writes; see there.
ValidateMode = Literal["first", "all", "none"]
VALIDATE_MODES: tuple[ValidateMode, ...] = get_args(ValidateMode)

_SIGNATURE_DIFFERS = "Replay buffer table signature spec should match RLDS data spec."
_POLICY_INFO_LEFT_OUT = (
    "policy_info is left out, because the table's signature has none; to store it, build the table from "
    "create_trajectory_data_spec(rlds_data, policy_info_fn)"
)


def get_rlds_step_features() -> list[str]:
    """Returns the names of the fields that every RLDS step has to have."""
    return list(fields.STEP_FIELDS)


def create_trajectory_data_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None = None, *, cast_floats: bool = False
) -> trajectory.Trajectory:
    """Returns the spec of the trajectories of an RLDS data set, for a Reverb table and a replay buffer.

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
    return trajectory_spec_of_rlds(rlds_data, policy_info_fn, cast_floats=cast_floats)


def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset,
    policy_info_fn: PolicyInfoFn | None = None,
    *,
    discount_source: DiscountSource = "step",
    cast_floats: bool = False,
) -> tf.data.Dataset:
    """Returns a data set with one trajectory for every RLDS step.

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
    blocks = episode_trajectories(rlds_data, policy_info_fn, discount_source, cast_floats=cast_floats)
    return blocks.unbatch()


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
    """Pushes an RLDS data set through a TF-Agents Reverb observer, as trajectories.

    An episode is converted and checked whole before the observer sees its first trajectory: one that fails leaves
    none of its own items. The episodes before it are stored, unless `validate='all'`.

    Args:
      rlds_data: see `convert_rlds_to_trajectories`.
      reverb_observer: `ReverbAddEpisodeObserver`, `ReverbAddTrajectoryObserver` or
        `ReverbTrajectorySequenceObserver` of TF-Agents, for one table or several.
      policy_info_fn: see `convert_rlds_to_trajectories`. If the table's signature has no policy_info, as those of
        TF-Agents' `create_trajectory_data_spec`, it is left out with a warning (TF-Agents stores items then that cannot
        be sampled).
      discount_source: see `convert_rlds_to_trajectories`.
      cast_floats: whether float64 fields become float32.
      validate: 'first' compares the arrays of the first episode with the table's signature before anything is
        written; 'all' besides goes through the whole data set once before it writes; 'none' trusts the specs.
      fast: whether to write the items that the observer would write in bulk, a hundred times faster, without calling
        it (see `fast_push`). Their keys say what they hold: pushing the same again stores it once.

    Returns:
      The number of trajectories given to the observer, or written in its place.

    Raises:
      SpecMismatchError: if the table's signature differs from the data's spec. The message is TF-Agents' own; `details`
        and the cause say what differs.
      ValueError: as `convert_rlds_to_trajectories`; if validate is unknown; or with fast, if the observer cannot be
        imitated.
      ServerUnavailableError: with fast, if the server does not take items in time.
      tf.errors.InvalidArgumentError: as `convert_rlds_to_trajectories`.
    """
    require_one_of("validate", validate, VALIDATE_MODES)
    signature = reverb_observer.get_table_signature()
    spec = create_trajectory_data_spec(rlds_data, policy_info_fn, cast_floats=cast_floats)
    if _lacks_policy_info(signature) and spec.policy_info != ():
        warnings.warn(_POLICY_INFO_LEFT_OUT, stacklevel=2)
        policy_info_fn, spec = None, spec._replace(policy_info=())
    _require_signature(spec, signature)
    if fast and policy_info_fn is None:
        read = functools.partial(numpy_trajectories, rlds_data, discount_source, cast_floats=cast_floats)
    else:
        blocks = episode_trajectories(rlds_data, policy_info_fn, discount_source, cast_floats=cast_floats)
        read = blocks.as_numpy_iterator
    if validate == "all":
        for _ in read():
            pass
    num_trajectories = 0

    def checked() -> Iterator[Nest]:
        nonlocal num_trajectories
        for columns in read():
            if validate != "none" and not num_trajectories:
                _require_signature(tree.map_structure(lambda column: column[0], columns), signature)
            yield columns
            num_trajectories += len(columns.step_type)

    if fast:
        push_episodes(checked(), reverb_observer)
    else:
        for columns in checked():
            for row in _rows(columns):
                reverb_observer(row)
    return num_trajectories


def _lacks_policy_info(signature: Nest) -> bool:
    """Whether a table is one of trajectories without policy_info (Reverb gives them a type of its own)."""
    return getattr(signature, "policy_info", None) == ()


def _require_signature(spec: Nest, signature: Nest) -> None:
    """Compares one trajectory with a table of sequences of them; a table without a signature takes anything."""
    if signature is None:
        return
    inner = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), signature)
    advice = "build the table from create_trajectory_data_spec() of this data"
    try:
        require_match(spec, inner, holder="the table", advice=advice, root="trajectory")
    except SpecMismatchError as error:
        raise SpecMismatchError(_SIGNATURE_DIFFERS, details=error.details) from error


def _rows(columns: Nest) -> Iterator[Nest]:
    leaves = tree.flatten(columns)
    for row in zip(*leaves, strict=True):
        yield tree.unflatten_as(columns, row)
