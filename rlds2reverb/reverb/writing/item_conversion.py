"""The conversion of a dataset's episodes to items of one spec, which is determined from the first episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import tree

from rlds2reverb.datasets import Source
from rlds2reverb.errors import InvalidEpisodeError, SpecMismatchError
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode, find_errors, require_same_spec
from rlds2reverb.types.items import EpisodeAdder, ItemBatch
from rlds2reverb.types.ownership import isolate
from rlds2reverb.types.priorities import Priority, compute_priorities
from rlds2reverb.types.specs import ArraySpec, Nest, leaves, make_step_spec, path_name, require_match

from ..wire import keys, message_encoding
from ..wire.encoder import Encoder
from ..wire.item_blocks import ItemBlock
from ..wire.packing import Packing, pack_columns, packed_signature, packed_spec
from .report import MAX_REPORTED_ERRORS, IngestReport

#: How the columns of an item are stored in a table; see `reverb.wire.packing`.
Layout = Literal["columns", "packed"]

#: The treatment of invalid episodes; see `ingestion.ingest`.
OnInvalid = Literal["error", "skip_episode", "keep"]


@dataclass(frozen=True)
class ItemConversion:
    """The conversion of episodes to items of one spec, and the choice of those that are converted.

    Attributes:
      adder: converts an episode to items.
      priority: priority of the items.
      on_invalid: treatment of invalid episodes; see `ingestion.ingest`.
      packed: whether all columns are packed into one.
      squeeze: whether items are single rows without a time axis.
      step_spec: nest of specs of one step of an episode.
      row_spec: nest of specs of one row of the adder's columns.
      specs: spec of one row of each stored column.
      signature: signature of the tables.
      example: the items of the first valid episode.
      left_out_fields: additional step fields that the items do not contain, with the reason.
    """

    adder: EpisodeAdder
    priority: Priority
    on_invalid: OnInvalid
    packed: bool
    squeeze: bool
    step_spec: Nest
    row_spec: Nest
    specs: list[ArraySpec]
    signature: Nest
    example: ItemBlock
    left_out_fields: dict[str, str]

    def drop_skipped(self, batch: EpisodeBatch, report: IngestReport) -> EpisodeBatch | None:
        """Returns the episodes of a batch that are not skipped, or None if all are; adds errors to a report.

        Episodes that no table can hold are skipped in any case.

        Raises:
          InvalidEpisodeError: If there are errors and `on_invalid` is 'error'.
        """
        if batch.is_valid(self.step_spec):
            return batch
        kept = []
        for episode in batch.episodes:
            errors = find_errors(episode, self.step_spec)
            if errors and self.on_invalid == "error":
                raise InvalidEpisodeError(errors)
            report.errors += errors[: MAX_REPORTED_ERRORS - len(report.errors)]
            is_impossible = any(error.field == fields.STEPS for error in errors)
            if is_impossible or (errors and self.on_invalid == "skip_episode"):
                report.skipped_episodes += 1
            else:
                report.kept_errors += len(errors)
                kept.append(episode)
        return EpisodeBatch(kept) if kept else None

    def convert(self, batch: EpisodeBatch) -> list[ItemBlock]:
        """Returns the items of valid episodes: in one block, or in one block per episode.

        Raises:
          SpecMismatchError: If their columns differ from those of the first episode.
          ValueError: If a priority is not finite or not in [0, 1e12].
        """
        return [_make_block(*pair, self.priority, packed=self.packed) for pair in self._convert_to_items(batch)]

    def count_items(self, batch: EpisodeBatch) -> np.ndarray:
        """Returns the number of items of each of some valid episodes, int64 `[E]`.

        Raises:
          SpecMismatchError: If their columns differ from those of the first episode.
        """
        return np.concatenate([items.num_items for _, items in self._convert_to_items(batch)])

    def _convert_to_items(self, batch: EpisodeBatch) -> list[tuple[Sequence[Episode], ItemBatch]]:
        stored = EpisodeBatch([_drop_strings(episode) for episode in batch.episodes]) if self._has_strings else batch
        convert_batch = getattr(self.adder, "convert_batch", None)
        items = isolate(convert_batch)(stored) if convert_batch and len(batch.episodes) > 1 else None
        converted: list[tuple[Sequence[Episode], ItemBatch]]
        if items is None:
            convert = isolate(self.adder.__call__)
            pairs = zip(batch.episodes, stored.episodes, strict=True)
            converted = [([episode], ItemBatch.from_items(convert(part))) for episode, part in pairs]
        else:
            converted = [(batch.episodes, items)]
        advice = "the adder must return the same columns for all episodes"
        for episodes, batch_items in converted:
            columns = batch_items.items.columns
            require_same_spec(columns, self.row_spec, episodes[0].index, advice=advice, root="item")
        return converted

    def make_encoder(
        self, tables: Sequence[str], chunk_length: int | None, key_seed: int, *, number_items: bool = False
    ) -> Encoder:
        """Returns a new encoder of the items; see `Encoder`."""
        specs, squeeze = self.specs, self.squeeze
        return Encoder(
            specs, tables, squeeze=squeeze, chunk_length=chunk_length, key_seed=key_seed, number_items=number_items
        )

    @cached_property
    def _has_strings(self) -> bool:
        return len(leaves(drop_strings(self.step_spec))) < len(leaves(self.step_spec))


def _make_block(episodes: Sequence[Episode], items: ItemBatch, priority: Priority, *, packed: bool) -> ItemBlock:
    columns = tree.flatten(items.items.columns)
    columns = [pack_columns(columns)] if packed else columns
    ranges = items.items.starts, items.items.lengths
    priorities, digests = _compute_priorities(episodes, items, priority), keys.content_digests(items)
    indices = np.array([episode.index for episode in episodes])
    return ItemBlock(columns, *ranges, priorities, digests, indices, items.num_items, items.first_rows)


def _compute_priorities(episodes: Sequence[Episode], items: ItemBatch, priority: Priority) -> np.ndarray:
    if len(episodes) == 1 or not callable(priority):
        return compute_priorities(priority, episodes[0], items.items)
    return np.concatenate(
        [compute_priorities(priority, episode, items.episode_items(at)) for at, episode in enumerate(episodes)]
    )


def make_conversion(
    source: Source, adder: EpisodeAdder, priority: Priority, *, on_invalid: OnInvalid, layout: Layout
) -> ItemConversion:
    """Builds the conversion from the first episode to write, and checks that tables can hold its items.

    Strings in additional step fields are left out.

    Raises:
      InvalidEpisodeError: If that episode has errors and `on_invalid` is 'error'.
      SourceError: If there is no episode.
      SpecMismatchError: If an observation or action holds strings, or the adder's items do not match its `item_spec`.
      ValueError: If a priority is out of range, or a column has an unsupported dtype.
    """
    first = source.first_episode
    step_spec = source.make_step_spec(first)
    episode = _find_first_valid(first, source, step_spec, on_invalid)
    item_spec = adder.item_spec(drop_strings(step_spec))
    _require_no_strings(item_spec)
    items = isolate(adder.__call__)(_drop_strings(episode))
    row_spec = make_step_spec(items.columns)
    for path, leaf in tree.flatten_with_path(row_spec):
        message_encoding.require_dtype(leaf, path_name(path, "item"))
    expected = tree.map_structure(lambda leaf: _row_spec(leaf, squeeze=items.squeeze), item_spec)
    advice = "make the adder's items match its item_spec"
    require_match(row_spec, expected, holder="the adder's item_spec", advice=advice, root="item")
    specs = tree.flatten(row_spec)
    packed = layout == "packed"
    return ItemConversion(
        adder=adder,
        priority=priority,
        on_invalid=on_invalid,
        packed=packed,
        squeeze=items.squeeze,
        step_spec=step_spec,
        row_spec=row_spec,
        specs=[packed_spec(specs)] if packed else specs,
        signature=packed_signature(Packing(item_spec, items.squeeze)) if packed else item_spec,
        example=_make_block([episode], ItemBatch.from_items(items), priority, packed=packed),
        left_out_fields=_find_left_out_fields(step_spec, item_spec, type(adder).__name__),
    )


def drop_strings(steps: Nest) -> Nest:
    """Returns (the spec of) steps without strings in additional fields, which tables do not support."""
    kept = {name: nest if name in fields.STEP_FIELDS else _drop_nested(nest) for name, nest in steps.items()}
    return {name: nest for name, nest in kept.items() if nest is not None}


def _drop_nested(nest: Nest) -> Nest:
    """Returns a nest without strings, or None if nothing remains; tuples are kept or dropped as a whole."""
    if isinstance(nest, dict):
        kept = {name: _drop_nested(part) for name, part in nest.items()}
        return {name: part for name, part in kept.items() if part is not None} or None
    return None if any(leaf.dtype.kind in "OSU" for _, leaf in leaves(nest)) else nest


def _drop_strings(episode: Episode) -> Episode:
    return replace(episode, steps=drop_strings(episode.steps))


def _find_left_out_fields(step_spec: Nest, item_spec: Nest, adder: str) -> dict[str, str]:
    stored = [path for path, _ in leaves(drop_strings(step_spec))]
    item_fields: Any = item_spec if isinstance(item_spec, dict) else getattr(item_spec, "_fields", None) or ()
    reasons = {}
    for path, _ in leaves({name: nest for name, nest in step_spec.items() if name not in fields.STEP_FIELDS}):
        if path not in stored:
            reasons["/".join(map(str, path))] = "tables do not support strings"
        elif path[0] not in item_fields:
            reasons["/".join(map(str, path))] = f"items of {adder} do not contain it"
    return reasons


def _row_spec(leaf: Any, *, squeeze: bool) -> ArraySpec:
    return ArraySpec(tuple(leaf.shape) if squeeze else tuple(leaf.shape)[1:], leaf.dtype.as_numpy_dtype)


def _find_first_valid(first: Episode, source: Source, step_spec: Nest, on_invalid: OnInvalid) -> Episode:
    """Returns the first valid episode, or `first` if all are invalid."""
    errors = find_errors(first, step_spec)
    if errors and on_invalid == "error":
        raise InvalidEpisodeError(errors)
    valid = (episode for episode in source if not find_errors(episode, step_spec))
    return next(valid, first) if errors else first


def _require_no_strings(item_spec: Nest) -> None:
    for path, leaf in leaves(item_spec):
        if leaf.dtype.name == "string":
            raise SpecMismatchError(
                f"{path_name(path, 'item')} holds strings, which tables do not support; drop the field, or "
                "encode it as numbers"
            )
