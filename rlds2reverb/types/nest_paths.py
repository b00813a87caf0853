"""Dotted paths, such as 'camera.front', of the parts of nested observations and steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlds2reverb.system.text import suggest

#: The keys that lead to a part of a nest: keys of dicts, and positions in tuples.
Keys = tuple[Any, ...]


def find_leaves(nest: Any, fields: str | Sequence[str] | None) -> list[tuple[Keys, bool]]:
    """Returns the keys of the leaves that some paths name.

    Args:
      nest: nest of specs, or a Gymnasium space.
      fields: path of a leaf, or of a dict or tuple for all leaves in it; or several paths. In a path, the keys of dicts
        and the positions in tuples are separated by dots, as in 'camera.front' or 'joints.0'. None for all leaves.

    Returns:
      For each leaf its keys, and whether a path names it alone rather than something that contains it. A leaf that is
      named twice is returned once.

    Raises:
      ValueError: If there is no such path, with a list of those that exist, or if keys that contain dots make it
        ambiguous.
    """
    if fields is None:
        starts: list[Keys] = [()]
    else:
        paths = [fields] if isinstance(fields, str) else fields
        starts = [find_part(nest, path, owner="the observation") for path in paths]
        if not starts:
            raise ValueError("fields must contain at least one path, got none; use None for the whole observation")
    found: dict[Keys, bool] = {}
    for start in starts:
        for keys, part in _walk(get_part(nest, start), start):
            if not _get_children(part):
                found[keys] = found.get(keys, False) or keys == start
    return list(found.items())


def make_ascii_names(paths: Sequence[Keys]) -> list[str]:
    """Returns names of leaves that TensorFlow can tell apart: it ignores case, and replaces special characters by '_'.

    A name consists of the keys joined by '/'. If some of these names are empty, contain spaces or other special
    characters, or are equal for TensorFlow, each character of a key but 0 to 9 and a to y is replaced by its code in
    hexadecimal between two 'z', as in 'wristz20zcam'.

    Args:
      paths: keys of each leaf, all different.
    """
    names = ["/".join(map(str, path)) for path in paths]
    is_valid = all(re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name, re.ASCII) for name in names)
    if is_valid and len({re.sub(r"\W", "_", name).lower() for name in names}) == len(names):
        return names

    def escape(key: Any) -> str:
        return re.sub("[^0-9a-y]", lambda char: f"z{ord(char[0]):x}z", str(key)) or "z"

    return ["/".join(map(escape, path)) for path in paths]


def get_part(nest: Any, keys: Keys) -> Any:
    """Returns the part of a nest, or of a Gymnasium space, with the given keys."""
    for key in keys:
        nest = _get_children(nest)[key]
    return nest


def find_part(nest: Any, path: Any, *, owner: str = "a step") -> Keys:
    """Returns the keys of the part of a nest that a path names.

    Args:
      nest: nest of arrays, specs or spaces.
      path: the path.
      owner: noun phrase for the nest, for messages.

    Raises:
      ValueError: If there is no such path, with a list of those that exist, or if keys that contain dots make it
        ambiguous.
    """
    if not isinstance(path, str):
        raise ValueError(f"a path must be a string such as 'camera.front', got {path!r}")
    all_keys = [keys for keys, _ in _walk(nest, ()) if keys]
    matches = [keys for keys in all_keys if format_path(keys) == path]
    if not matches:
        names = [format_path(keys) for keys in all_keys]
        existing = f"has the paths {', '.join(map(repr, names))}" if names else "is not nested"
        raise ValueError(f"there is no path {path!r} in {owner}, which {existing}{suggest(path, names)}")
    if len(matches) > 1:
        raise ValueError(f"the path {path!r} is ambiguous because keys contain dots, got {matches}; rename the keys")
    return matches[0]


def replace_part(nest: Any, keys: Keys, function: Callable[[Any], Any]) -> Any:
    """Returns a copy of a nest of arrays, specs or spaces in which a function is applied to the part with these keys.

    Args:
      nest: nest of dicts and tuples (or lists), or of Gymnasium's Dict and Tuple spaces, which is not changed.
      keys: keys of the part.
      function: function from the part to its replacement.
    """
    if not keys:
        return function(nest)
    children = _get_children(nest)
    children = {**children, keys[0]: replace_part(children[keys[0]], keys[1:], function)}
    if _is_space(nest):
        return type(nest)(children if isinstance(nest.spaces, dict) else list(children.values()))
    return children if isinstance(nest, dict) else tuple(children.values())


def select_parts(nest: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Returns the nested dicts with only those parts that some paths name.

    Args:
      nest: nested dicts, such as steps.
      paths: keys of the outermost dict, or paths of parts of the dicts in it.

    Raises:
      KeyError: If there is no such part, or it is in a tuple.
    """
    chosen: dict[str, Any] = {}
    for path in paths:
        target, keys = chosen, (path,) if path in nest else find_part(nest, path)
        for key in keys[:-1]:
            target = target.setdefault(key, {})
        target[keys[-1]] = get_part(nest, keys)
    return chosen


def merge_parts(nest: dict[str, Any], others: dict[str, Any]) -> None:
    """Adds the parts of nested dicts to others, which do not contain them."""
    for key, value in others.items():
        if key in nest:
            merge_parts(nest[key], value)
        else:
            nest[key] = value


def list_paths(nest: dict[str, Any]) -> list[str]:
    """Returns the paths of nested dicts of which `select_parts` can select parts, in sorted order."""
    return sorted(
        format_path(keys) for keys, _ in _walk(nest, ()) if keys and all(isinstance(key, str) for key in keys)
    )


def format_path(keys: Keys) -> str:
    """Returns the path with the given keys."""
    return ".".join(map(str, keys))


def _walk(nest: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    """Yields the keys and the value of a nest and of all its parts, each before what it contains."""
    yield keys, nest
    for key, part in _get_children(nest).items():
        yield from _walk(part, (*keys, key))


def _get_children(nest: Any) -> dict[Any, Any]:
    if _is_space(nest):
        nest = nest.spaces
    if isinstance(nest, dict):
        return nest
    return dict(enumerate(nest)) if isinstance(nest, (tuple, list)) else {}


def _is_space(nest: Any) -> bool:
    return type(nest).__name__ in ("Dict", "Tuple") and hasattr(nest, "spaces")
