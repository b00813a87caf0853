"""`MappedSource`, a dataset between two operations of a mapping: its episodes, and the fields that they have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.nest_paths import Keys, find_part, format_path, get_part
from rlds2reverb.types.spaces import choose_space, find_limits, make_array_space
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, make_step_spec, map_structure

from ..readers.json_files import parse_object
from ..readers.lerobot_meta import FEATURE_NAMES
from ..source import Source, keep_images_encoded
from ..valid_episodes import read_readable

#: Fields that follow from the ends of episodes, which no operation on fields may change.
_ENDS = (fields.DISCOUNT, *fields.FLAG_FIELDS)
_SPACES = {"action_space": fields.ACTION, "observation_space": fields.OBSERVATION}
EpisodeFn = Callable[[Episode], Episode]
#: Names of the elements of fields, such as motors, by the path of the field.
Names = dict[str, list[str]]


@dataclass(frozen=True)
class MappedSource:
    """A dataset between two operations.

    Attributes:
      source: the episodes.
      spec: the spec of one step, with bounds.
      first: the first episode that has steps.
    """

    source: Source
    spec: dict[str, Nest]
    first: Episode

    @classmethod
    def open(cls, source: Source) -> MappedSource:
        """Returns an unchanged dataset, of which the first episode that can be read is read."""
        try:
            first = source.first_episode
        except SourceError:
            readable = read_readable(source, on_error=lambda _: None)
            if (found := next((episode for episode in readable if episode.num_steps), None)) is None:
                raise
            first = found
        return cls(source, source.make_step_spec(first), first)

    def find(self, path: Any, *, is_changed: bool = True) -> Keys:
        """Returns the keys of a field or a group of fields.

        Raises:
          SourceError: If there is no such field, or it is to be changed and follows from the ends of episodes.
        """
        try:
            keys = find_part(self.spec, path)
        except ValueError as error:
            raise SourceError(str(error)) from None
        if is_changed and keys[0] in _ENDS:
            raise SourceError(f"{path!r} cannot be changed, because it follows from the ends of episodes")
        return keys

    def get_leaf(self, path: Any) -> tuple[Keys, ArraySpec]:
        """Returns the keys and the spec of a field; raises `SourceError` if it is a group, or as `find`."""
        keys = self.find(path)
        spec = get_part(self.spec, keys)
        if not isinstance(spec, ArraySpec):
            inner = ", ".join(repr(format_path(part)) for part, _ in leaves(spec, keys))
            raise SourceError(f"{path!r} must be a single field, got a group of {inner}")
        return keys, spec

    def get_numbers(self, path: Any, requirement: str, *, kinds: str = "fiu") -> tuple[Keys, ArraySpec]:
        """Returns the same as `get_leaf`; raises `SourceError` also unless it is a vector of numbers or one number."""
        keys, spec = self.get_leaf(path)
        if spec.dtype.kind not in kinds or len(spec.shape) > 1:
            raise SourceError(f"{path!r} must be {requirement}, got {describe(spec)}")
        return keys, spec

    @property
    def names(self) -> Names:
        """The names of the elements of fields."""
        found = parse_object(self.source.metadata.get(FEATURE_NAMES))
        lists = {path: names for path, names in ((path, _as_list(names)) for path, names in found.items()) if names}
        return {path: names for path, names in lists.items() if names}

    def find_elements(self, path: str, size: int, elements: Any) -> list[int]:
        """Returns the indices of elements of a field that are named, or numbered from its start or end.

        Raises:
          SourceError: If there is no such element.
        """
        names = self.names.get(path, [])
        found = []
        for element in elements if isinstance(elements, (list, tuple)) else [elements]:
            number = names.index(element) if element in names else element
            if type(number) is not int or not -size <= number < size:
                known = f" or one of {', '.join(names)}" if names else ""
                raise SourceError(f"{path!r} must have the element {element!r}: a number below {size}{known}")
            found.append(number % size)
        return found

    def replace(self, names: Names | None = None, **attributes: Any) -> MappedSource:
        """Returns the dataset with other attributes of its source, and other names of elements."""
        source = replace(self.source, **attributes)
        if names is not None and (names or FEATURE_NAMES in source.metadata):
            source = replace(source, metadata={**source.metadata, FEATURE_NAMES: json.dumps(names)})
        return replace(self, source=source)

    def change(
        self,
        function: EpisodeFn,
        *,
        of_bounds: EpisodeFn | None = None,
        unbounded: Sequence[Keys] = (),
        names: Names | None = None,
        keeps_images: bool = True,
    ) -> MappedSource:
        """Applies a function to all episodes.

        Args:
          function: the function. Its result depends on nothing but the episode.
          of_bounds: the same function without checks of values, for bounds; None if it has none.
          unbounded: keys of the changed fields whose bounds become unknown.
          names: the names of elements afterwards; None if they do not change.
          keeps_images: whether it works for images in the encoding of their files.
        """
        first = function(self.first)
        with np.errstate(all="ignore"):
            low, high = ((of_bounds or function)(self._make_bounds(end)) for end in (0, 1))
        spec = make_step_spec(first.steps)
        spec = _add_bounds(spec, low.steps, high.steps, unbounded)
        read = _ChangedEpisodes(self.source, function, keeps_images=keeps_images).read
        spaces = {
            name: space
            for name, field in _SPACES.items()
            if getattr(self.source, name) is not None
            and (space := _make_space(spec.get(field))) != _make_space(self.spec.get(field))
        }
        return MappedSource(self.source, spec, first).replace(names, read=read, **spaces)

    def _make_bounds(self, end: int) -> Episode:
        """Returns an episode of one step with the minimum (0) or maximum (1) of each field, as far as it has any."""

        def fill(spec: ArraySpec) -> np.ndarray:
            bound, shape = (spec.minimum, spec.maximum)[end], tuple(size or 0 for size in spec.shape)
            return np.full((1, *shape), find_limits(spec.dtype)[end] if bound is None else bound, spec.dtype)

        return replace(self.first, steps=map_structure(fill, self.spec), dropped_last_transition=True)


@dataclass(frozen=True)
class _ChangedEpisodes:
    """The episodes of a source to which a function is applied while they are read."""

    source: Source
    function: EpisodeFn
    keeps_images: bool

    @property
    def encoded(self) -> _ChangedEpisodes | None:
        """See `source.keep_images_encoded`."""
        encoded = keep_images_encoded(self.source)
        return replace(self, source=encoded) if self.keeps_images and encoded.decodes_images else None

    def read(self, *bounds: int) -> Iterator[Episode]:
        """Yields the episodes; those without steps are not changed."""
        return (self.function(episode) if episode.num_steps else episode for episode in self.source.read(*bounds))


def change_steps(
    dataset: MappedSource, function: Callable[[dict[str, Nest]], dict[str, Nest]], names: Names | None = None
) -> MappedSource:
    """Applies a function to the columns of the steps of all episodes; see `MappedSource.change`."""
    return dataset.change(partial(_change_columns, function), names=names)


def _change_columns(function: Callable[[dict[str, Nest]], dict[str, Nest]], episode: Episode) -> Episode:
    return replace(episode, steps=function(episode.steps))


def take_part(nest: dict[str, Any] | tuple[Any, ...], keys: Keys) -> tuple[dict[str, Any], Any]:
    """Returns nested dicts without the part with these keys, nor groups that become empty, and the part.

    The positions in a tuple of which a part is taken become names.
    """
    if isinstance(nest, tuple):
        nest = {str(place): part for place, part in enumerate(nest)}
    key = keys[0] if keys[0] in nest else str(keys[0])
    rest = {name: part for name, part in nest.items() if name != key}
    if len(keys) == 1:
        return rest, nest[key]
    inner, part = take_part(nest[key], keys[1:])
    return {**rest, key: inner} if inner else rest, part


def insert_part(nest: dict[str, Any], path: str, part: Any) -> dict[str, Any]:
    """Returns nested dicts with one more part.

    Raises:
      SourceError: If there is such a part already, or the path leads through a field or to one that is not nested.
    """
    return _insert(nest, parse_path(path), part, path)


def _insert(nest: dict[str, Any], keys: Sequence[str], part: Any, path: str) -> dict[str, Any]:
    known = nest.get(keys[0])
    if known is not None and (len(keys) == 1 or not isinstance(known, dict)):
        raise SourceError(f"{path!r} exists already, or is inside a field; choose another path, or drop that field")
    return {**nest, keys[0]: part if len(keys) == 1 else _insert(known or {}, keys[1:], part, path)}


def parse_path(path: Any) -> list[str]:
    """Returns the keys of a new field; raises `SourceError` unless it may have this path."""
    keys = path.split(".") if isinstance(path, str) else [""]
    if not all(keys) or keys[0] in _ENDS or "/" in str(path):
        raise SourceError(f"a field must have a path such as 'observation.state', got {path!r}")
    return keys


def _as_list(names: Any) -> list[str] | None:
    """Returns names that are a list, alone or in a dict as in older LeRobot datasets."""
    if isinstance(names, Mapping) and len(names) == 1:
        names = next(iter(names.values()))
    return list(map(str, names)) if isinstance(names, list) else None


def _add_bounds(spec: Nest, low: Nest, high: Nest, unbounded: Sequence[Keys]) -> Nest:
    lows, highs = dict(leaves(low)), dict(leaves(high))

    def add(part: Any, keys: Keys) -> Any:
        if isinstance(part, dict):
            return {name: add(inner, (*keys, name)) for name, inner in part.items()}
        if keys in unbounded or keys not in lows or part.dtype.kind not in "fiu":
            return part
        bounds = lows[keys][0], highs[keys][0]
        limits = find_limits(part.dtype)
        if all((bound == limit).all() for bound, limit in zip(bounds, limits, strict=True)):
            return part
        return replace(part, minimum=bounds[0], maximum=bounds[1])

    return add(spec, ())


def _make_space(spec: Nest) -> Any:
    def make_own_space(leaf: ArraySpec) -> Any:
        return None if leaf.minimum is None else make_array_space(leaf, leaf.minimum, leaf.maximum)

    return None if spec is None else choose_space(spec, map_structure(make_own_space, spec))
