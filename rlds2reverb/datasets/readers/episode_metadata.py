"""Fields of an episode apart from its steps, in formats that store them as attributes of a group or as JSON values."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types.episodes import Episode, list_metadata
from rlds2reverb.types.specs import Nest

#: Maximum size of an attribute in HDF5, less the room for its name and type.
_MAX_ATTRIBUTE_BYTES = 60_000


def make_metadata(values: Mapping[str, Any], reserved: Collection[str] = ()) -> dict[str, Nest]:
    """Returns values by their paths, such as `episode_metadata/success`, as `Episode.metadata`.

    Args:
      values: bool, numbers, strings, arrays of these, or nested dicts; anything else is left out.
      reserved: names of values that the format itself uses, which are left out.
    """
    metadata: dict[str, Nest] = {}
    for name, value in values.items():
        if name not in reserved:
            _insert(metadata, name.split("/"), value)
    return metadata


def _insert(nest: Any, keys: Sequence[str], value: Any) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _insert(nest, [*keys, *str(key).split("/")], inner)
    elif (array := to_metadata_array(value)) is not None:
        for key in keys[:-1]:
            nest = nest.setdefault(key, {}) if isinstance(nest, dict) else None
        if isinstance(nest, dict):
            nest.setdefault(keys[-1], array)


def to_metadata_array(value: Any) -> np.ndarray | None:
    """Returns a value as an array, in which strings are bytes, or None if it is neither numbers nor strings."""
    try:
        array = np.asarray(value, object if isinstance(value, (str, bytes)) else None)
    except ValueError:  # Lists of different lengths.
        return None
    if array.dtype.kind not in "SUO":
        return array if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 else None
    items = array.ravel().tolist()
    if not all(isinstance(item, (str, bytes)) for item in items):
        return None
    encoded = [item.encode() if isinstance(item, str) else item for item in items]
    return np.array(encoded, object).reshape(array.shape)


def decode_metadata(
    episode: Episode, metadata_spec: Nest, format_name: str, reserved: Collection[str]
) -> dict[str, np.ndarray]:
    """Returns the metadata of an episode by their paths, with strings as str.

    Args:
      episode: the episode.
      metadata_spec: the spec of the first episode's metadata.
      format_name: name of the format to write, for messages.
      reserved: names of values that the format itself uses.

    Raises:
      SourceError: If a name is reserved, or a string is not UTF-8.
      SpecMismatchError: If the metadata do not match the spec.
    """
    values = list_metadata(episode, metadata_spec)
    if taken := set(reserved) & set(values):
        raise SourceError(
            f"the field {min(taken)!r} of an episode would replace that of {format_name}; drop it", DropFields=...
        )
    return {name: _decode(value, name, episode, format_name) for name, value in values.items()}


def _decode(value: np.ndarray, name: str, episode: Episode, format_name: str) -> np.ndarray:
    if value.dtype != object:
        return value
    try:
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in value.ravel().tolist()]
        if any("\0" in text for text in texts):
            raise ValueError("it contains NUL")
    except ValueError as error:
        raise SourceError(
            f"the field {name!r} of episode {episode.index} must be UTF-8 for {format_name} ({error}); drop it",
            DropFields=...,
        ) from error
    return np.array(texts, object).reshape(value.shape)


def write_attributes(
    group: h5py.Group, episode: Episode, metadata_spec: Nest, format_name: str, reserved: Collection[str]
) -> None:
    """Writes the metadata of an episode as attributes of its group; see `decode_metadata` for the arguments and errors.

    Raises:
      SourceError: Also if an array is too large for an attribute.
    """
    for name, value in decode_metadata(episode, metadata_spec, format_name, reserved).items():
        if value.nbytes > _MAX_ATTRIBUTE_BYTES:
            raise SourceError(
                f"the field {name!r} of an episode must have at most {_MAX_ATTRIBUTE_BYTES:,} bytes for {format_name}, "
                f"got {value.nbytes:,}; drop it",
                DropFields=...,
            )
        if value.dtype == object:
            group.attrs.create(name, value if value.shape else value.item(), dtype=h5py.string_dtype())
        else:
            group.attrs[name] = value


def read_attributes(group: h5py.Group, reserved: Collection[str]) -> dict[str, Nest]:
    """Returns the attributes of a group as `Episode.metadata`, without reserved and unreadable ones."""
    values: dict[str, Any] = {}
    for name in list(group.attrs):
        if isinstance(name, str) and name not in reserved:
            with contextlib.suppress(OSError, RuntimeError, TypeError, ValueError):  # Metadata are optional.
                values[name] = group.attrs[name]
    return make_metadata(values)
