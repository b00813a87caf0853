"""YAML and JSON files with the values of options, such as mappings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ArgumentError


def read_option_file(path: Path, argument: str) -> Any:
    """Returns the content of a YAML or JSON file that stands for the value of an argument.

    Args:
      path: the file; JSON if its name ends with .json.
      argument: name of the argument, for messages.

    Raises:
      ArgumentError: If the content is malformed, or a key occurs twice.
      FileNotFoundError: If there is no such file.
      ImportError: If the file is YAML, and PyYAML is not installed.
    """
    text = path.read_text(encoding="utf-8-sig")
    try:
        if path.suffix.lower() == ".json":
            return json.loads(text, object_pairs_hook=_make_dict)
        return _parse_yaml(text)
    except ImportError as error:
        raise ImportError(f"{path} requires PyYAML ({error}); install it, or write it as .json") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"cannot be read from {path} ({error})", about=argument) from error


def _make_dict(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{name!r} occurs twice; in a mapping, use a list of operations to apply one again")
        made[name] = value
    return made


def _parse_yaml(text: str) -> Any:
    """Returns the content of YAML, whose numbers are those of JSON, so that 10:20 is a text and 1e-3 a number."""
    import yaml

    class Loader(yaml.SafeLoader):
        """The safe loader of PyYAML with the numbers of JSON, which refuses keys that occur twice."""

    numbers = {"int": r"[-+]?\d+$", "float": r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$"}
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in numbers]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for name, pattern in numbers.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(pattern), list("-+.0123456789"))

    def construct(loader: Any, node: Any) -> dict[Any, Any]:
        loader.flatten_mapping(node)
        return _make_dict(
            (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
            for key, value in node.value
        )

    Loader.add_constructor("tag:yaml.org,2002:map", construct)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
