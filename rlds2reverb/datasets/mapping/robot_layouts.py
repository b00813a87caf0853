"""The layouts in which loaders of robots' policies read RLDS datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.nest_paths import format_path
from rlds2reverb.types.specs import ArraySpec, leaves

from ..task_texts import TASK_FIELDS
from .episode_operations import trim_frames
from .field_operations import cast_fields, describe_features, rename_fields
from .mapped_source import MappedSource

#: The layout of the loaders of Octo and of OpenVLA.
OCTO = "octo"
#: The field in which they look for the text of a task.
_TASK = "language_instruction"


def find_changes(
    step_spec: Mapping[str, Any], described: Mapping[str, Any], *, has_final_steps: bool
) -> dict[str, dict[str, Any]]:
    """Returns the operations after which the loaders of Octo and OpenVLA read a dataset; {} if none is needed.

    They read features as they are stored, without TFDS's decoding of bytes, every row as an action, and observations
    that are in one dict. Datasets without text whose observations are one array are not meant for them.

    Args:
      step_spec: spec of a step.
      described: descriptions of fields by path, in which a text is an encoding.
      has_final_steps: whether the last row of an episode is its final observation.
    """
    seen = {path: spec for path, spec in leaves(dict(step_spec)) if path[0] in (fields.ACTION, fields.OBSERVATION)}
    texts = [(name,) for name in TASK_FIELDS if name in step_spec] + [path for path in seen if path[-1] in TASK_FIELDS]
    if not texts and not isinstance(step_spec[fields.OBSERVATION], Mapping):
        return {}
    images = {path for path, spec in seen.items() if spec.dtype == np.uint8 and len(spec.shape) == 3}
    flat = {path: f"{path[0]}.{path[-1]}" for path in seen if path[0] == fields.OBSERVATION and len(path) > 2}
    flat |= {
        path: f"{path[0]}.{'image' if path in images else 'state'}" for path in [(fields.OBSERVATION,)] if path in seen
    }
    renamed = {format_path(path): name for path, name in flat.items() if list(flat.values()).count(name) == 1}
    encoded = {name for name, value in described.items() if isinstance(value, str) or "encoding" in value}
    changes: dict[str, dict[str, Any]] = {
        "trim": {"final_observation": True} if has_final_steps else {},
        "cast": {format_path(path): "float32" for path, spec in seen.items() if spec.dtype == np.float64},
        "rename": renamed | {format_path(path): _TASK for path in texts[:1] if path != (_TASK,)},
        "describe": {renamed.get(name, name): "png" for name in map(format_path, images) if name not in encoded},
    }
    return {name: value for name, value in changes.items() if value}


def lay_out_fields(dataset: MappedSource, name: str) -> MappedSource:
    """Changes a dataset such that loaders read all actions, observations and texts, once it is written as RLDS.

    The rows of an episode are its actions, numbers are float32, observations are in one dict, images are PNG or JPEG
    files, and the text of the task is `language_instruction`.
    """
    if name != OCTO:
        raise SourceError(f"there is only the layout {OCTO!r}, which is also that of OpenVLA, got {name!r}")
    if not isinstance(dataset.spec[fields.ACTION], ArraySpec):
        raise SourceError(f"actions must be one vector for {name!r}; join their parts before")
    paths = [path for path, _ in leaves(dict(dataset.spec))]
    if not any(path[-1] in TASK_FIELDS for path in paths if len(path) == 1 or path[0] == fields.OBSERVATION):
        raise SourceError(f"steps must have the text of a task for {name!r}; set the constant '{_TASK}' before")
    described = dataset.source.descriptions
    for operation, value in find_changes(dataset.spec, described, has_final_steps=True).items():
        dataset = _OPERATIONS[operation](dataset, value)
        if operation == "rename":
            moved = {value.get(path, path): description for path, description in dataset.source.descriptions.items()}
            dataset = dataset.replace(descriptions=moved)
    return dataset


_OPERATIONS: dict[str, Callable[[MappedSource, Any], MappedSource]] = {
    "trim": trim_frames,
    "cast": cast_fields,
    "rename": rename_fields,
    "describe": describe_features,
}
