"""The buffer of sequences of a fixed length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb.errors import SpecMismatch
from rlds2reverb.specs import describe, leaves, path_name
from rlds2reverb.windows import Windows

from .buffer import ReplayBuffer
from .checks import collect_iters_given, priorities_given
from .elements import Elements, TimeAxis, fields_of, row_spec_of, spec_of


class SequenceReplayBuffer(ReplayBuffer):
    """Elements are `BufferConfig.length` consecutive steps: dicts of columns `[length, ...]`.

    A spec that is given has that time axis too, else it raises `SpecMismatch`.
    """

    kind: ClassVar[str] = "sequence"

    @property
    def _axis(self) -> TimeAxis:
        return TimeAxis(exists=True, length=self.config.length)

    def _elements_like(self, item: Any) -> Elements:
        elements = super()._elements_like(item)
        for path, leaf in leaves(spec_of(fields_of(item))):
            if leaf.shape[0] != self.config.length:
                raise SpecMismatch(
                    f"{path_name(path, 'item')} is {describe(leaf)}, {self._holder} wants {self.config.length} steps; "
                    "cut or pad the item, or make the buffer with another length"
                )
        return elements

    def append_episode(self, episode: Mapping[str, Any], *, period: int = 1) -> list[str]:
        """Adds the sequences of an episode that begin at steps 0, period, 2·period, ... and end within it.

        Steps that sequences share are stored once. An episode shorter than `length` gives none. (R2D2 keeps
        overlapping sequences: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement
        learning", section 2.3.)

        Args:
          episode: dict of columns `[T, ...]`, and with or without `priority` and `collect_iter`, those of all its
            sequences.
          period: steps between the beginnings of sequences.

        Returns:
          Their `replay_unique_id`s, in order.

        Raises:
          ValueError: if the period is out of its range.
          SpecMismatch: if columns have different lengths; see `extend` as well.
        """
        with self.lock:
            self._usable_store()
            axis = TimeAxis(exists=True)
            if self._elements is None:
                row_spec = row_spec_of(spec_of(fields_of(episode)), axis, holder=self._holder)
            else:
                row_spec = self._elements.row_spec
            columns = [rows for (rows,) in Elements(row_spec, axis, holder=self._holder).columns([episode])]
            windows = Windows(self.config.length or 1, stride=period).of_rows(columns)
            if not len(windows):
                return []
            own = [episode] * len(windows)
            priorities, collect_iters = priorities_given(own, self._highest), collect_iters_given(own)
            number = self.push_count
            block = ItemBlock.of_one(
                columns, windows.starts, windows.lengths, priorities, episode=number, first_item=number
            )
            elements = self._elements or Elements(row_spec, self._axis, holder=self._holder)
            return self._add(elements, [block], priorities, collect_iters)
