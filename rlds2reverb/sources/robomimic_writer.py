"""Writing of robomimic's HDF5 format: a group `data/demo_<n>` per episode, with `obs` and `next_obs`.

`dones` are set in the last row of every episode, which is robomimic's mode 1. Since that does not tell terminal from
truncated episodes, each group also has the attributes `is_terminal` and `unterminated`, which `robomimic.py` reads and
other programs ignore.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb import fields
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import ArraySpec, Nest, leaves, path_name

from . import robomimic
from .episode_metadata import write_attributes
from .hdf5_output import create_hdf5
from .json_files import parse_object
from .source import Source
from .written_episodes import require_log_fields, require_numbers

#: The name of observations that are a single array, as in robomimic's own conversion of D4RL.
_FLAT = "flat"
_GYM_TYPE = 2
#: Metadata that follow from `env_args` and `dones`.
_METADATA = frozenset(["env_name", "env_type", "env_version", "done_mode"])


def write_robomimic(
    path: Path, batches: Iterator[EpisodeBatch], step_spec: Mapping[str, Nest], source: Source, *, location: Path
) -> tuple[str, ...]:
    """Writes episodes to a new file; all have at least one transition.

    Args:
      path: path of the file.
      batches: the episodes.
      step_spec: spec of a step: numbers, with an array or a flat dict of arrays as observation.
      source: the source of the episodes, which provides the environment.
      location: final path of the file, which it does not contain.

    Returns:
      Sentences for the report.

    Raises:
      SourceError: If robomimic cannot represent the spec.
      OSError: If the file cannot be written; with `ENOSPC` if the disk is full.
    """
    _require_robomimic_spec(step_spec)
    num_episodes = num_rows = 0
    with create_hdf5(path) as (file, raise_error):
        data = file.create_group("data")
        for batch in batches:
            for episode in batch.episodes:
                group = data.create_group(f"demo_{num_episodes}")
                _write_demo(group, episode)
                write_attributes(group, episode, source.episode_metadata_spec, "robomimic", robomimic.RESERVED)
                num_episodes += 1
                num_rows += episode.num_transitions
            raise_error()
        data.attrs["total"] = num_rows
        if (env_args := _make_env_args(source)) is not None:
            data.attrs["env_args"] = json.dumps(env_args)
    sentences: list[str] = []
    if isinstance(step_spec[fields.OBSERVATION], ArraySpec):
        sentences.append(f"robomimic names every observation: it is in 'obs/{_FLAT}', which load() reads as a dict")
    if lost := sorted(set(source.metadata) - _METADATA):
        sentences.append(f"robomimic has no place for the metadata {', '.join(lost)}")
    return tuple(sentences)


def _write_demo(group: h5py.Group, episode: Episode) -> None:
    steps = episode.steps
    observations = steps[fields.OBSERVATION]
    if isinstance(observations, np.ndarray):
        observations = {_FLAT: observations}
    for name, column in observations.items():
        group[f"{robomimic.OBSERVATIONS}/{name}"] = column[:-1]
        group[f"{robomimic.NEXT_OBSERVATIONS}/{name}"] = column[1:]
    group[robomimic.ACTIONS], group[robomimic.REWARDS] = steps[fields.ACTION][:-1], steps[fields.REWARD][:-1]
    group[robomimic.DONES] = (np.arange(episode.num_transitions) == episode.num_transitions - 1).astype(np.int64)
    group.attrs["num_samples"] = episode.num_transitions
    group.attrs[robomimic.IS_TERMINAL] = episode.is_terminal
    group.attrs[robomimic.UNTERMINATED] = episode.unterminated


def _make_env_args(source: Source) -> dict[str, Any] | None:
    """Returns the environment in robomimic's form: that of a robomimic file, or a Gymnasium environment."""
    spec = parse_object(source.env_spec)
    if not isinstance(spec.get("id"), str):
        return None
    names = {name: kind for kind, name in robomimic.ENVIRONMENT_TYPES.items()}
    kind = names.get(str(source.metadata.get("env_type")), _GYM_TYPE)
    env_args = {"env_name": spec["id"], "type": kind, "env_kwargs": spec.get("kwargs") or {}}
    version = source.metadata.get("env_version")
    return env_args | ({"env_version": version} if version is not None else {})


def _require_robomimic_spec(step_spec: Mapping[str, Nest]) -> None:
    """Raises `SourceError` if robomimic cannot represent steps of this spec."""
    require_log_fields(step_spec, "robomimic")
    for path, _ in leaves(dict(step_spec)):
        where = path_name(path)
        if path[0] not in fields.STEP_FIELDS:
            raise SourceError(f"{where} has no place in robomimic's format; drop it", DropFields=...)
        if len(path) > (2 if path[0] == fields.OBSERVATION else 1) or not isinstance(path[-1], str):
            raise SourceError(
                f"{where} must be an array for robomimic, which only nests observations, and those once; drop it, or "
                "use the format 'rlds'",
                DropFields=...,
            )
    require_numbers(step_spec, "robomimic")
