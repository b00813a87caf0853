"""Sequences of steps of one length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb._arguments import require_count, require_one_of
from rlds2reverb.specs import Nest

from .batches import numbered
from .column_adder import ColumnAdder, spec_of_elements
from .padding import masked, masked_spec
from .steps import require_fields

#: What becomes of the steps at the end of an episode; see `StepWindows`.
ENDS = ("write", "last", "zero_pad", "null_padding", "truncate", "drop", "continue")

_PARTED = (fields.OBSERVATION, fields.ACTION, fields.REWARD)


@dataclass(frozen=True)
class StepWindows(ColumnAdder):
    """Runs of `length` rows that begin at rows 0, period, 2·period, ... of each episode.

    Item, a dict of columns `[length, ...]`: the fields of the steps (or of the rows of the adder before it), and two
    masks, bool: `mask` is True for rows of an episode and False for those that fill it up; `action_taken` is True for
    rows of an episode except the one with the final observation, whose action and reward are zeros that mean nothing.
    Learn values of the rows with `mask`, and actions (behavioural cloning) of those with `action_taken`.

    Both ends of an episode: the first sequence begins with the first row, so that nothing of an earlier episode is in
    it. Where the episode ends (terminated or truncated makes no difference, the flags are in the rows), what comes
    after the last full sequence, such as 6 of 1..6 with length 3 and period 2 (1 2 3, 3 4 5), goes by `end`:

        'write':         4 5 6   the last `length` rows; an episode shorter than that gives nothing
        'last':          4 5 6   the same, but a shorter episode gives one sequence filled up with zeros
        'zero_pad':      5 6 0   filled up with zeros
        'null_padding':  5 6 0   the same, with `is_last` and `is_terminal` True in the added rows
        'truncate':      5 6     shorter, so that items differ in length
        'drop':                  left out
        'continue':      5 6 F   continues with the first rows of the next episode, the rest at the end of the data left
                                 out; only for data sets, not for `ingest`, whose items are of one episode

    The first, third, fifth and last of them are Acme's `EndBehavior` WRITE, ZERO_PAD, TRUNCATE and CONTINUE (Hoffman
    et al. 2020, arXiv:2006.00979); 'drop', 'last' and 'null_padding' are DI-engine's for the rest of an unroll.

    Attributes:
      length: rows of an item, at least 1.
      period: rows between the beginnings of sequences, from 1 to `length`, so that no row is left out between two;
        `length` if None.
      end: see above.
      burn_in: rows at the beginning that only warm up a recurrent state; see `parts`.
    """

    length: int
    period: int | None = None
    end: str = "write"
    burn_in: int = 0

    ends_chain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("length", self.length)
        if self.period is not None:
            require_count("period", self.period)
            if self.period > self.length:
                raise ValueError(
                    f"period is {self.period}, expected at most the length of {self.length}: the rows between two "
                    "sequences would be in none; take a longer sequence, or leave episodes out of the source"
                )
        require_one_of("end", self.end, ENDS)
        require_count("burn_in", self.burn_in, 0)
        if self.burn_in >= self.length:
            raise ValueError(f"burn_in is {self.burn_in}, expected less than the length of {self.length}")

    @property
    def crosses_episodes(self) -> bool:  # type: ignore[override]
        """Whether `end` is 'continue'."""
        return self.end == "continue"

    @property
    def item_length(self) -> int | None:
        """See `ColumnAdder.item_length`."""
        return None if self.end == "truncate" else self.length

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `ColumnAdder.row_spec`."""
        return masked_spec(step_spec, "StepWindows")

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """See `ColumnAdder.batch_rows`."""
        wanted = num_steps
        if self.end in ("zero_pad", "null_padding"):
            wanted = (self._num_begun(num_steps) - 1) * self._stride + self.length
        elif self.end == "last":
            wanted = tf.fill(tf.shape(num_steps), tf.constant(self.length, tf.int64))
        none = tf.zeros_like(num_steps)
        behind = tf.where(num_steps > 0, tf.maximum(wanted - num_steps, 0), none)
        return masked(columns, num_steps, none, behind, ended=self.end == "null_padding")

    def batch_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """See `ColumnAdder.batch_bounds`."""
        last = num_rows - self.length
        if self.end == "truncate":
            num_items = self._num_begun(num_rows)
        else:
            num_items = tf.maximum(last + self._stride, 0) // self._stride
        if self.end in ("write", "last"):
            num_items += tf.cast((last > 0) & (last % self._stride > 0), tf.int64)
        owner, number = numbered(num_items)
        starts, lengths = number * self._stride, tf.fill(tf.shape(number), tf.constant(self.length, tf.int64))
        if self.end in ("write", "last"):
            starts = tf.minimum(starts, tf.gather(last, owner))
        elif self.end == "truncate":
            lengths = tf.minimum(tf.gather(num_rows, owner) - starts, self.length)
        return starts + tf.gather(tf.cumsum(num_rows, exclusive=True), owner), lengths, num_items

    @property
    def _stride(self) -> int:
        return self.period or self.length

    def _num_begun(self, num_rows: tf.Tensor) -> tf.Tensor:
        """How many sequences begin within the rows, until all of these are in one that can be."""
        behind_first = tf.maximum(num_rows - self.length, 0)
        to_the_end = 1 + (behind_first + self._stride - 1) // self._stride
        within = (num_rows + self._stride - 1) // self._stride
        return tf.minimum(to_the_end, within)

    def _dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        if not self.crosses_episodes:
            return super()._dataset(columns)
        item_spec = self.item_spec(spec_of_elements(columns))
        held = tree.map_structure(lambda leaf: tf.zeros([0, *leaf.shape[1:]], leaf.dtype), item_spec)
        windows = columns.map(self.checked_rows).scan((held, tf.constant(0, tf.int64)), self._continued)
        return windows.unbatch()

    def _continued(self, state: tuple[Nest, tf.Tensor], rows: Nest) -> tuple[tuple[Nest, tf.Tensor], Nest]:
        """Sequences over the rows held back and the new ones; the state is the rows from the next beginning on, and
        how many of the rows to come are before it.
        """
        held, skip = state
        rows = tree.map_structure(lambda old, new: tf.concat([old, new], 0), held, rows)
        num_rows = tf.shape(tree.flatten(rows)[0], out_type=tf.int64)[0]
        starts = tf.range(skip, tf.maximum(num_rows - self.length + 1, skip), self._stride)
        windows = tree.map_structure(lambda row: tf.gather(row, starts[:, None] + np.arange(self.length)), rows)
        following = skip + self._stride * tf.shape(starts, out_type=tf.int64)[0]
        held = tree.map_structure(lambda row: row[tf.minimum(following, num_rows) :], rows)
        return (held, tf.maximum(following - num_rows, 0)), windows

    def parts(self, sequence: Nest, *, n: int = 1, time_axis: int = 1) -> dict[str, dict[str, Any]]:
        """A batch of sequences cut for a recurrent learner with burn-in and n-step targets.

        With length L and burn-in b, as DI-engine's R2D2 cuts them (Kapturowski et al. 2019, sec. 2.3):

            burnin: observation [:b + n], of which the state is unrolled without a gradient
            main:   observation, action, reward [b:-n]; every other field (flags, value_gamma, mask) [b:]
            target: observation [b + n:]

        Args:
          sequence: dict of nests of tensors, `[B, L, ...]` or, with time_axis 0, `[L, ...]`.
          n: steps of the returns, at least 1.
          time_axis: where the time is.

        Raises:
          ValueError: if n is below 1, nothing would be left of the sequence, its length is another one, or observation,
            action or reward are missing.
        """
        require_count("n", n)
        require_fields(sequence, _PARTED, "StepWindows.parts")
        if time_axis not in (0, 1):
            raise ValueError(f"time_axis is {time_axis}, expected 0 or 1")
        length = tree.flatten(sequence)[0].shape[time_axis]
        if length != self.length or self.burn_in + n >= self.length:
            raise ValueError(
                f"the sequences have {length} rows, burn_in is {self.burn_in} and n {n}; expected {self.length} rows, "
                "more than burn_in and n together"
            )

        def cut(names: Any, start: int, stop: int) -> dict[str, Any]:
            at = (slice(None),) * time_axis + (slice(start, stop),)
            return {name: tree.map_structure(lambda column: column[at], sequence[name]) for name in names}

        rest = [name for name in sequence if name not in _PARTED]
        main = {**cut(_PARTED, self.burn_in, length - n), **cut(rest, self.burn_in, length)}
        return {
            "burnin": cut([fields.OBSERVATION], 0, self.burn_in + n),
            "main": main,
            "target": cut([fields.OBSERVATION], self.burn_in + n, length),
        }
