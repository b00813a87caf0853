"""`DatasetMapping`, a declared list of changes of a dataset, which `load` applies to any format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ArgumentError, SourceError
from rlds2reverb.system.code_fingerprints import fingerprint_code
from rlds2reverb.system.references import resolve_reference
from rlds2reverb.system.text import advise, format_columns
from rlds2reverb.types import fields
from rlds2reverb.types.nest_paths import format_path
from rlds2reverb.types.specs import Nest, describe, leaves

from ..option_files import read_option_file
from ..source import Source, identify_step
from .episode_operations import EPISODE_OPERATIONS
from .field_operations import FIELD_OPERATIONS, describe_features
from .mapped_source import MappedSource
from .robot_layouts import OCTO, lay_out_fields
from .text_operations import embed_texts
from .value_operations import VALUE_OPERATIONS

#: The operations by name: functions of a dataset and the value in the mapping.
OPERATIONS: dict[str, Callable[[MappedSource, Any], MappedSource]] = {
    **EPISODE_OPERATIONS,
    **FIELD_OPERATIONS,
    **VALUE_OPERATIONS,
    "embed": embed_texts,
    "describe": describe_features,
    "layout": lay_out_fields,
}
#: The kinds of values that are not names and values.
_KINDS: dict[str, tuple[type, str]] = {"drop": (list, "a list of paths"), "layout": (str, "the name of a layout")}


@dataclass(frozen=True)
class DatasetMapping:
    """Operations, applied in order; see docs/preprocessing.md.

    Attributes:
      text: the name and the value of each, as JSON.
    """

    text: str

    @classmethod
    def parse(cls, value: Any) -> DatasetMapping:
        """Returns a mapping from a path of a YAML or JSON file, or from its content; a mapping is returned unchanged.

        'octo', the name of a layout, is the mapping that consists of this layout.

        The content is a dict of values by the names of operations, or a list of such dicts, in which an operation may
        occur several times.

        Raises:
          ArgumentError: If an operation is unknown, or its value is of the wrong kind.
          FileNotFoundError: If there is no such file.
          ImportError: If the file is YAML, and PyYAML is not installed.
        """
        if isinstance(value, DatasetMapping):
            return value
        if value == OCTO:
            value = {"layout": OCTO}
        if isinstance(value, (str, Path)):
            value = read_option_file(Path(value).expanduser(), "mapping")
        parts = value if isinstance(value, list) else [value]
        if not parts or not all(isinstance(part, Mapping) and part for part in parts):
            raise ArgumentError(f"must be operations by name, or a list of them, got {value!r:.200}", about="mapping")
        pairs = [(name, content) for part in parts for name, content in part.items()]
        for name, content in pairs:
            if name not in OPERATIONS:
                raise ArgumentError(f"has no operation {name!r}{advise(str(name), OPERATIONS)}", about="mapping")
            kind, noun = _KINDS.get(name, (Mapping, "names and values"))
            if not isinstance(content, kind) or not content:
                raise ArgumentError(f"must have {noun} under {name!r}, got {content!r:.200}", about="mapping")
        try:
            return cls(json.dumps(pairs))
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"must consist of names, numbers, texts and lists ({error})", about="mapping"
            ) from error

    def apply(self, source: Source) -> Source:
        """Returns the changed dataset, whose statistics contain the table of its fields as `mapping`.

        Raises:
          SourceError: If a field does not exist or does not fit an operation, or an action or observation is missing
            at the end.
        """
        dataset = before = MappedSource.open(source)
        operations = json.loads(self.text)
        for place, (name, value) in enumerate(operations):
            if name in ("delta", "absolute"):
                _require_last(name, value, operations[place + 1 :])
            try:
                dataset = OPERATIONS[name](dataset, value)
            except SourceError as error:
                raise SourceError(f"{name}: {error}", about="mapping") from error
        for required in (fields.OBSERVATION, fields.ACTION, fields.REWARD):
            if required not in dataset.spec:
                raise SourceError(
                    f"must leave a field {required!r}; the fields are {', '.join(sorted(dataset.spec))}",
                    about="mapping",
                )
        rows = make_table(before.spec, dataset.spec)
        statistics = {**dataset.source.statistics, "mapping": [*source.statistics.get("mapping", []), *rows]}
        code = [
            fingerprint_code(resolve_reference("by", part["by"]))
            for name, value in operations
            for part in (value.values() if name == "embed" else ())
        ]
        options = ["mapping", operations, code, dict(source.full_metadata)]
        return identify_step(source, replace(dataset.source, statistics=statistics), options)


def _require_last(name: str, actions: Mapping[str, Any], later: Sequence[tuple[str, Any]]) -> None:
    """Raises `ArgumentError` if later operations change the actions or the states, so that policies cannot undo it."""
    states = [
        value["state"] if isinstance(value, Mapping) and "state" in value else value for value in actions.values()
    ]
    for other, value in later:
        if other in (*FIELD_OPERATIONS, "binarize", "rate"):
            changed = [path for path in _list_texts(value) if any(map(partial(_overlaps, path), [*actions, *states]))]
            if changed:
                sentence = f"must have {name!r} after {other!r}, which changes {changed[0]!r}"
                raise ArgumentError(f"{sentence}, so that policies can undo it", about="mapping")


def _overlaps(path: str, other: Any) -> bool:
    return path == other or f"{other}.".startswith(f"{path}.") or path.startswith(f"{other}.")


def _list_texts(value: Any) -> list[str]:
    """Returns the keys and texts in a value."""
    if isinstance(value, Mapping):
        return [text for pair in value.items() for text in _list_texts(list(pair))]
    return [text for part in value for text in _list_texts(part)] if isinstance(value, list) else [str(value)]


def make_table(before: Nest, after: Nest) -> list[list[str]]:
    """Returns the path of each field in the order of the alphabet, and its dtype and shape before and after, or ''."""
    specs = [{format_path(keys): describe(spec) for keys, spec in leaves(nest)} for nest in (before, after)]
    names = sorted({*specs[0], *specs[1]} - set(fields.STEP_FIELDS[3:]))
    return [[name, *(of_spec.get(name, "") for of_spec in specs)] for name in names]


def describe_mapping(statistics: Mapping[str, Any]) -> str:
    """Returns the table of the fields before and after, from the statistics of a mapped dataset; '' without one."""
    rows = statistics.get("mapping", ())
    return format_columns(("field", "before the mapping", "after it"), rows) if rows else ""
