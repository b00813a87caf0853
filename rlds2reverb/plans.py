"""How a data set becomes items: found out from its first episode, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tree

from rlds2reverb import keys, wire
from rlds2reverb.connecting import require_no_strings
from rlds2reverb.episodes import Episode, InvalidEpisode, find_problems
from rlds2reverb.items import Adder, Items
from rlds2reverb.packing import Packing, pack_columns, packed_signature, packed_spec
from rlds2reverb.pieces import Piece
from rlds2reverb.priorities import Priority, priorities_of
from rlds2reverb.sources import Source
from rlds2reverb.specs import ArraySpec, Nest, path_name, require_match, step_spec_of

#: How the columns of an item lie in a table; see `packing`.
LAYOUTS = ("columns", "packed")


@dataclass(frozen=True)
class Plan:
    """How episodes become items of one spec.

    Attributes:
      adder: makes items of episodes.
      priority: of the items.
      packed: whether all columns are packed in one.
      squeeze: whether items are single rows without a time axis.
      row_spec: nest of specs of one row of the adder's columns.
      specs: of one row of each column that is written.
      signature: of the tables.
      example: the first items.
    """

    adder: Adder
    priority: Priority
    packed: bool
    squeeze: bool
    row_spec: Nest
    specs: list[ArraySpec]
    signature: Nest
    example: Piece

    def piece(self, episode: Episode) -> Piece:
        """The items of a valid episode, as they are written.

        Raises:
          SpecMismatch: if their columns are unlike those of the first episode.
          ValueError: if a priority is not finite or not in [0, 1e12].
        """
        items = self.adder(episode)
        spec = step_spec_of(items.columns)
        if spec != self.row_spec:
            holder = f"the first episode (this is episode {episode.index})"
            require_match(spec, self.row_spec, holder=holder, advice="the adder has to make all alike", root="item")
        return _piece(episode, items, self.priority, packed=self.packed)


def _piece(episode: Episode, items: Items, priority: Priority, *, packed: bool) -> Piece:
    columns = tree.flatten(items.columns)
    return Piece(
        [pack_columns(columns)] if packed else columns,
        items.starts,
        items.lengths,
        priorities_of(priority, episode, items),
        keys.content_digest(items),
        episode.index,
        0,
    )


def make_plan(source: Source, adder: Adder, priority: Priority, *, on_invalid: str, packed: bool) -> Plan:
    """Looks at the first episode that will be written.

    Raises:
      InvalidEpisode: if it has problems and they are errors.
      SourceError: if there is no episode.
      SpecMismatch: if a column holds strings, or the adder's items do not have its `item_spec`.
      ValueError: if a priority is out of range, or a column has a dtype that tables do not take.
    """
    episode = _first_episode(source, on_invalid)
    item_spec = adder.item_spec(source.step_spec)
    require_no_strings(item_spec)
    items = adder(episode)
    row_spec = step_spec_of(items.columns)
    for path, leaf in tree.flatten_with_path(row_spec):
        wire.require_dtype(leaf, path_name(path, "item"))
    squeeze = items.squeeze
    wanted = tree.map_structure(lambda leaf: _row_of(leaf, squeeze), item_spec)
    require_match(row_spec, wanted, holder="the adder's item_spec", advice="make the adder's two agree", root="item")
    specs = tree.flatten(row_spec)
    return Plan(
        adder=adder,
        priority=priority,
        packed=packed,
        squeeze=squeeze,
        row_spec=row_spec,
        specs=[packed_spec(specs)] if packed else specs,
        signature=packed_signature(Packing(item_spec, squeeze)) if packed else item_spec,
        example=_piece(episode, items, priority, packed=packed),
    )


def _row_of(leaf: Any, squeeze: bool) -> ArraySpec:
    return ArraySpec(tuple(leaf.shape) if squeeze else tuple(leaf.shape)[1:], leaf.dtype.as_numpy_dtype)


def _first_episode(source: Source, on_invalid: str) -> Episode:
    first = source.first_episode
    problems = find_problems(first, source.step_spec)
    if not problems:
        return first
    if on_invalid == "error":
        raise InvalidEpisode(problems)
    valid: Callable[[Episode], bool] = lambda episode: not find_problems(episode, source.step_spec)  # noqa: E731
    return next(filter(valid, source), first)
