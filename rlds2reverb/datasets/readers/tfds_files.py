"""Safety checks of the two JSON files of a directory that TFDS prepared, made before TFDS reads them.

TFDS follows `../` in names and templates, and imports the module of every class that `features.json` names. The checks
read TFDS's own protobuf messages, parsed from the files, so that they see the same values as TFDS in any spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError

from .json_files import read_json

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_\-]{1,100}")
_SPLIT = re.compile(rf"{_SPLIT_NAME.pattern}(\[[0-9a-z_%:\-]{{0,40}}\])?")
_PLACEHOLDERS = re.compile(r"\{(DATASET|SPLIT|FILEFORMAT|SHARD_INDEX|NUM_SHARDS|SHARD_X_OF_Y)\}")
_PROTO_CLASS = re.compile(r"tensorflow_datasets\.[A-Za-z]+")
_FEATURE_CLASS = re.compile(r"tensorflow_datasets\.core\.features\.[a-z0-9_]+\.[A-Za-z0-9]+")


def require_harmless(path: Path) -> None:
    """Checks `dataset_info.json` and `features.json` in a directory.

    Raises:
      SourceError: If a file is missing, truncated or not in TFDS's format; if a name or a template points outside of
        the directory; if a class is not one of TFDS's features.
    """
    from tensorflow_datasets.core.proto import dataset_info_pb2, feature_pb2

    info_path, features_path = path / "dataset_info.json", path / "features.json"
    info = _to_message(info_path, _read_json(info_path), dataset_info_pb2.DatasetInfo())
    _require_plain_names(path, info)
    features = _read_json(features_path)
    if isinstance(features, dict) and "type" in features:  # The format that TFDS wrote before 2022.
        _require_known_types(features_path, features)
    else:
        _require_known_classes(features_path, _to_message(features_path, features, feature_pb2.Feature()))
    _require_known_classes(info_path, info)


def require_split(name: str, split: str) -> list[str]:
    """Returns the names in a split or a sum of splits, without their slices; raises `SourceError` for anything else."""
    parts = split.split("+")
    if not all(_SPLIT.fullmatch(part) for part in parts):
        raise SourceError(f"{name}: split must be a name such as 'train' or 'train[:10%]', got {split[:100]!r}")
    return [part.split("[")[0] for part in parts]


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise SourceError(f"{path.parent} has no {path.name}; it is not a dataset that TFDS prepared")
    return read_json(path)


def _to_message(path: Path, content: Any, message: Any) -> Any:
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(content, message)
    except (json_format.ParseError, AttributeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{path} is not in the format of TFDS 4.9 ({reason}); prepare the dataset again") from error


def _require_known_types(path: Path, node: Any) -> None:
    """Checks every class name in the format from before 2022, including those in JSON nested in strings."""
    if isinstance(node, list):
        for inner in node:
            _require_known_types(path, inner)
    elif isinstance(node, dict):
        for key, value in node.items():
            if not isinstance(value, str):
                _require_known_types(path, value)
            elif key in ("type", "pythonClassName", "python_class_name"):
                _require_feature_class(path, value)
            elif key == "proto_cls" and not _PROTO_CLASS.fullmatch(value):
                raise SourceError(f"{path} names the class {value!r}, which is not a TFDS message; refused")
            elif value.lstrip().startswith(("{", "[")):
                try:
                    _require_known_types(path, json.loads(value))
                except (ValueError, RecursionError) as error:
                    reason = str(error).splitlines()[0]
                    raise SourceError(f"{path}: {key!r} contains invalid JSON ({reason}); refused") from error


def _require_feature_class(path: Path, name: str) -> None:
    if not _FEATURE_CLASS.fullmatch(name):
        raise SourceError(f"{path} names the class {name!r}, which is not a TFDS feature; refused")


def _require_plain_names(path: Path, info: Any) -> None:
    names = {"name": info.name, "version": info.version}
    names |= {"configName": info.config_name} if info.config_name else {}
    for key, value in names.items():
        if not _PLAIN_NAME.fullmatch(value) or ".." in value:
            raise SourceError(f"{path}: {key} must be a plain name, got {value!r}; refused")
    for split in info.splits:
        if not _SPLIT_NAME.fullmatch(split.name):
            raise SourceError(f"{path}: the name of a split must be plain, got {split.name!r}; refused")
        rest = _PLACEHOLDERS.sub("", split.filepath_template)
        if rest and (not _PLAIN_NAME.fullmatch(rest) or ".." in rest):
            raise SourceError(f"{path}: filepathTemplate {split.filepath_template!r} leaves the directory; refused")


def _require_known_classes(path: Path, message: Any) -> None:
    """Checks every class name in a message, which may also have messages in lists and maps."""
    for field, value in message.ListFields():
        if field.name == "python_class_name":
            _require_feature_class(path, value)
        elif field.name == "json_feature":
            raise SourceError(f"{path} describes a feature in free-form JSON, which may name any class; refused")
        elif field.message_type is not None:
            parts = [value] if hasattr(value, "ListFields") else value.values() if hasattr(value, "values") else value
            for part in parts:
                if hasattr(part, "ListFields"):
                    _require_known_classes(path, part)


def require_shards(path: Path, splits: Mapping[str, Any], split: str) -> None:
    """Raises `SourceError` if the split, or one of its files, is missing.

    Args:
      path: the directory, whose two files are harmless.
      splits: TFDS's splits by name.
      split: name of a split, or a sum of splits.
    """
    for name in require_split(str(path), split):
        if name not in splits:
            raise SourceError(f"{path} has no split {name!r}; use one of: {', '.join(sorted(splits)) or '(none)'}")
        for file in splits[name].filepaths:
            if not file.is_file():
                raise SourceError(f"{path} is missing the shard {file.name}; copy or prepare the dataset again")
