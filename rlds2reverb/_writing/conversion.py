"""How the episodes of a data set become items of one spec: found out from the first one, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tree

from rlds2reverb._encoding import keys, messages
from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._encoding.packing import Packing, pack_columns, packed_signature, packed_spec
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode, find_problems
from rlds2reverb.errors import InvalidEpisodeError, SpecMismatchError
from rlds2reverb.items import EpisodeAdder, ItemBatch
from rlds2reverb.priorities import Priority, compute_priorities
from rlds2reverb.sources import Source
from rlds2reverb.specs import ArraySpec, Nest, leaves, make_step_spec, path_name, require_match

#: How the columns of an item lie in a table; see `_encoding.packing`.
Layout = Literal["columns", "packed"]

#: What to do with an invalid episode; see `ingestion.ingest`.
OnInvalid = Literal["error", "skip_episode", "keep"]


@dataclass(frozen=True)
class ItemConversion:
    """How episodes become items of one spec.

    Attributes:
      adder: makes items of episodes.
      priority: of the items.
      packed: whether all columns are packed in one.
      squeeze: whether items are single rows without a time axis.
      step_spec: nest of specs of one step of the episodes.
      row_spec: nest of specs of one row of the adder's columns.
      specs: of one row of each column that is written.
      signature: of the tables.
      example: the items of the first episode.
    """

    adder: EpisodeAdder
    priority: Priority
    packed: bool
    squeeze: bool
    step_spec: Nest
    row_spec: Nest
    specs: list[ArraySpec]
    signature: Nest
    example: ItemBlock

    def blocks(self, batch: EpisodeBatch) -> list[ItemBlock]:
        """Returns the items of valid episodes as they are written: one block, or one for each episode.

        Raises:
          SpecMismatchError: if their columns differ from those of the first episode.
          ValueError: if a priority is not finite or not in [0, 1e12].
        """
        convert_batch = getattr(self.adder, "convert_batch", None)
        made = convert_batch(batch) if convert_batch and len(batch.episodes) > 1 else None
        if made is None:
            return [self._block([episode], ItemBatch.of_one(self.adder(episode))) for episode in batch.episodes]
        return [self._block(batch.episodes, made)]

    def _block(self, episodes: Sequence[Episode], made: ItemBatch) -> ItemBlock:
        spec = make_step_spec(made.items.columns)
        if spec != self.row_spec:
            holder = f"the first episode (this is episode {episodes[0].index})"
            require_match(spec, self.row_spec, holder=holder, advice="the adder has to make all alike", root="item")
        return _block(episodes, made, self.priority, packed=self.packed)


def _block(episodes: Sequence[Episode], made: ItemBatch, priority: Priority, *, packed: bool) -> ItemBlock:
    columns = tree.flatten(made.items.columns)
    return ItemBlock(
        [pack_columns(columns)] if packed else columns,
        made.items.starts,
        made.items.lengths,
        _priorities(episodes, made, priority),
        keys.content_digests(made),
        np.array([episode.index for episode in episodes]),
        made.num_items,
        made.first_rows,
    )


def _priorities(episodes: Sequence[Episode], made: ItemBatch, priority: Priority) -> np.ndarray:
    """Returns the priorities of the items of all episodes, float64 `[M]`."""
    if len(episodes) == 1 or not callable(priority):
        return compute_priorities(priority, episodes[0], made.items)
    each = [compute_priorities(priority, episode, made.of_episode(at)) for at, episode in enumerate(episodes)]
    return np.concatenate(each)


def make_conversion(
    source: Source, adder: EpisodeAdder, priority: Priority, *, on_invalid: OnInvalid, layout: Layout
) -> ItemConversion:
    """Reads the first episode that will be written, and checks that tables can take its items.

    Raises:
      InvalidEpisodeError: if it has problems and they are errors.
      SourceError: if there is no episode.
      SpecMismatchError: if a column holds strings, or the adder's items do not have its `item_spec`.
      ValueError: if a priority is out of range, or a column has a dtype that tables do not take.
    """
    first = source.first_episode
    step_spec = make_step_spec(first.steps)
    episode = _first_to_write(first, source, step_spec, on_invalid)
    item_spec = adder.item_spec(step_spec)
    _require_no_strings(item_spec)
    items = adder(episode)
    row_spec = make_step_spec(items.columns)
    for path, leaf in tree.flatten_with_path(row_spec):
        messages.require_dtype(leaf, path_name(path, "item"))
    expected = tree.map_structure(lambda leaf: _row_of(leaf, squeeze=items.squeeze), item_spec)
    require_match(row_spec, expected, holder="the adder's item_spec", advice="make the adder's two agree", root="item")
    specs = tree.flatten(row_spec)
    packed = layout == "packed"
    return ItemConversion(
        adder=adder,
        priority=priority,
        packed=packed,
        squeeze=items.squeeze,
        step_spec=step_spec,
        row_spec=row_spec,
        specs=[packed_spec(specs)] if packed else specs,
        signature=packed_signature(Packing(item_spec, items.squeeze)) if packed else item_spec,
        example=_block([episode], ItemBatch.of_one(items), priority, packed=packed),
    )


def _row_of(leaf: Any, *, squeeze: bool) -> ArraySpec:
    return ArraySpec(tuple(leaf.shape) if squeeze else tuple(leaf.shape)[1:], leaf.dtype.as_numpy_dtype)


def _first_to_write(first: Episode, source: Source, step_spec: Nest, on_invalid: OnInvalid) -> Episode:
    problems = find_problems(first, step_spec)
    if not problems:
        return first
    if on_invalid == "error":
        raise InvalidEpisodeError(problems)
    return next((episode for episode in source if not find_problems(episode, step_spec)), first)


def _require_no_strings(item_spec: Nest) -> None:
    for path, leaf in leaves(item_spec):
        if leaf.dtype.name == "string":
            raise SpecMismatchError(
                f"{path_name(path, 'item')} holds strings, which our tables do not take; leave the field out "
                "(--drop-field, transforms.DropFields) or encode it as numbers"
            )
