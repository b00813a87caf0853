"""Writing of robomimic's HDF5 format: a group `data/demo_<n>` per episode, with `obs` and `next_obs`.

Fields of steps that robomimic does not have are in the group `step_fields` of a demonstration, and the metadata of the
dataset are JSON in the attribute `metadata` of `data`; robomimic ignores both.

`next_obs` is left out of all groups if the final observation of any episode is unknown; the last row of an episode is
its last action in any case. `dones` are set in the last row of every episode, which is robomimic's mode 1. Since that
does not tell terminal from truncated episodes, each group also has the attributes `is_terminal` and `unterminated`,
which `robomimic.py` reads and other programs ignore. Fields `mask/KEY` of the episodes become filter keys. The text of
the task of a demonstration is also in its attribute `ep_meta`, a dict as JSON, as `lang`, as in files of RoboCasa.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import ArraySpec, Nest, leaves, path_name

from ..readers import robomimic
from ..readers.episode_metadata import write_attributes
from ..readers.json_files import parse_object
from ..source import Source
from ..task_texts import find_task
from .hdf5_output import create_hdf5
from .written_episodes import WrittenEpisodes, require_log_fields, require_numbers, select_extras

#: The name of observations that are a single array, as in robomimic's own conversion of D4RL.
_FLAT = "flat"
_GYM_TYPE = 2
#: Metadata that follow from `env_args` and `dones`.
_METADATA = frozenset(["env_name", "env_type", "env_version", "done_mode"])


def write_robomimic(
    path: Path, batches: WrittenEpisodes, step_spec: Mapping[str, Nest], source: Source, *, location: Path
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
    filters: dict[str, list[str]] = {}
    metadata_spec = {name: spec for name, spec in source.episode_metadata_spec.items() if name != robomimic.MASK}
    with create_hdf5(path) as (file, raise_error):
        data = file.create_group("data")
        for batch in batches:
            for episode in batch.episodes:
                group = data.create_group(f"demo_{num_episodes}")
                num_samples = _write_demo(group, episode, batches.has_final_steps)
                metadata = dict(episode.metadata)
                masks = metadata.pop(robomimic.MASK, {})
                for key in masks:
                    filters.setdefault(key, []).extend([f"demo_{num_episodes}"] * bool(masks[key]))
                episode = replace(episode, metadata=metadata)
                write_attributes(group, episode, metadata_spec, "robomimic", robomimic.RESERVED)
                text = _find_only_task(episode, source, num_samples)
                if text and robomimic.EPISODE_META not in group.attrs:
                    group.attrs[robomimic.EPISODE_META] = json.dumps({robomimic.LANG: text})
                num_episodes += 1
                num_rows += num_samples
            raise_error()
        for key, names in filters.items():
            file.create_dataset(f"{robomimic.MASK}/{key}", data=names, dtype=h5py.string_dtype())
        data.attrs["total"] = num_rows
        kept = {name: value for name, value in source.metadata.items() if name not in _METADATA}
        if kept:
            data.attrs[robomimic.METADATA] = json.dumps(kept, default=str)
        if (env_args := _make_env_args(source)) is not None:
            data.attrs["env_args"] = json.dumps(env_args)
    sentences: list[str] = []
    if isinstance(step_spec[fields.OBSERVATION], ArraySpec):
        sentences.append(f"robomimic names every observation: it is in 'obs/{_FLAT}', which load() reads as a dict")
    return tuple(sentences)


def _write_demo(group: h5py.Group, episode: Episode, has_final_steps: bool) -> int:
    """Writes an episode to its group, and returns its number of rows."""
    steps, num_rows = episode.steps, episode.num_steps - has_final_steps
    observations = steps[fields.OBSERVATION]
    if isinstance(observations, np.ndarray):
        observations = {_FLAT: observations}
    for name, column in observations.items():
        group[f"{robomimic.OBSERVATIONS}/{name}"] = column[:num_rows]
        if has_final_steps:
            group[f"{robomimic.NEXT_OBSERVATIONS}/{name}"] = column[1:]
    for name, column in ((robomimic.ACTIONS, steps[fields.ACTION]), (robomimic.REWARDS, steps[fields.REWARD])):
        group[name] = column[:num_rows]
    group[robomimic.DONES] = (np.arange(num_rows) == num_rows - 1).astype(np.int64)
    for path, column in leaves(select_extras(steps)):
        name = "/".join((robomimic.STEP_FIELDS, *path))
        group.create_dataset(name, data=column, dtype=h5py.string_dtype() if column.dtype == object else None)
    group.attrs["num_samples"] = num_rows
    group.attrs[robomimic.IS_TERMINAL] = episode.is_terminal
    group.attrs[robomimic.UNTERMINATED] = episode.unterminated
    if episode.seed is not None:
        group.attrs[robomimic.SEED] = episode.seed
    return num_rows


def _find_only_task(episode: Episode, source: Source, num_rows: int) -> str:
    """Returns the text of the task if it is the same in all rows, and '' otherwise."""
    texts = set(find_task(episode, source.metadata)[:num_rows])
    text = texts.pop() if len(texts) == 1 else ""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


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
            continue
        if len(path) > (2 if path[0] == fields.OBSERVATION else 1) or not isinstance(path[-1], str):
            raise SourceError(
                f"{where} must be an array for robomimic, which only nests observations, and those once; rename or "
                "drop it, or use the format 'rlds'",
                mapping=...,
                DropFields=...,
            )
    require_numbers({name: nest for name, nest in step_spec.items() if name in fields.STEP_FIELDS}, "robomimic")
