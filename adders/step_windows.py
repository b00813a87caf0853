"""An adder of windows of steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tree

from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count, require_one_of
from rlds2reverb.types.specs import Nest

from .arrays import Array, namespace
from .padding import ACTION_TAKEN, MASK, add_masks, pad
from .places import Places, Take
from .step_fields import require_fields
from .window_adder import Ranges, WindowAdder

#: What happens to the rows at the end of an episode; see `StepWindows`.
ENDS = ("write", "last", "zero_pad", "null_padding", "truncate", "drop", "continue")

#: The fields that `StepWindows.split_burn_in` shortens by n rows.
_SHORTENED = (fields.OBSERVATION, fields.ACTION, fields.REWARD)


@dataclass(frozen=True)
class StepWindows(WindowAdder):
    """Windows of `length` rows that begin at rows 0, period, 2·period, ... of each episode.

    Item, a dict of columns `[length, ...]`: the fields of the steps (or of the rows of the preceding adder), and two
    bool masks: `mask` is True for rows of an episode and False for padding; `action_taken` is True for rows of an
    episode except the one with the final observation, whose action and reward are meaningless zeros. Use `mask` to
    learn values, and `action_taken` to learn actions (behavioural cloning).

    Both ends of an episode: the first window begins with the first row, so it contains nothing of the preceding
    episode. At the end (terminated or truncated makes no difference, the flags are in the rows), `end` decides what
    happens to the rows after the last full window. For example, rows 1..6 with length 3 and period 2 have the full
    windows 1 2 3 and 3 4 5, and row 6 is left:

        'write':         4 5 6   the last `length` rows; an episode with fewer rows has no item
        'last':          4 5 6   the same, but an episode with fewer rows has one item, padded with zeros
        'zero_pad':      5 6 0   padded with zeros
        'null_padding':  5 6 0   the same, with `is_last` and `is_terminal` True in the padding
        'truncate':      5 6     shorter, so items differ in length
        'drop':                  no item
        'continue':      5 6 F   continued with the first rows of the next episode; dropped at the end of the data. Only
                                 for datasets, not for `ingest`, whose items belong to one episode

    'write', 'zero_pad', 'truncate' and 'continue' are Acme's `EndBehavior` WRITE, ZERO_PAD, TRUNCATE and CONTINUE
    (Hoffman et al. 2020, arXiv:2006.00979); 'drop', 'last' and 'null_padding' are DI-engine's `last_fn_type`.

    Attributes:
      length: number of rows per item, at least 1.
      period: number of rows from the beginning of one window to the next, from 1 to `length`, so that every row is in a
        window; `length` if None.
      end: see above.
      burn_in: number of rows at the beginning that only warm up a recurrent state; see `split_burn_in`.
    """

    length: int
    period: int | None = None
    end: str = "write"
    burn_in: int = 0

    def __post_init__(self) -> None:
        require_count("length", self.length)
        if self.period is not None:
            require_count("period", self.period)
            if self.period > self.length:
                raise ValueError(
                    f"period must be at most the length, {self.length}, got {self.period}: rows between two windows "
                    "would be lost; use a larger length, or remove episodes from the source"
                )
        require_one_of("end", self.end, ENDS)
        require_count("burn_in", self.burn_in, 0)
        if self.burn_in >= self.length:
            raise ValueError(f"burn_in must be less than the length, {self.length}, got {self.burn_in}")

    @property
    def crosses_episodes(self) -> bool:  # type: ignore[override]
        """True if `end` is 'continue'."""
        return self.end == "continue"

    @property
    def item_length(self) -> int | None:  # type: ignore[override]
        """Implements `ItemAdder.item_length`."""
        return None if self.end == "truncate" else self.length

    def require_steps(self, step_spec: Nest) -> None:
        """Implements `ItemAdder.require_steps`."""
        from .step_fields import require_new_fields

        require_new_fields(step_spec, (MASK, ACTION_TAKEN), "StepWindows")

    def count(self, num_steps: Array) -> Array:
        """Implements `ItemAdder.count`."""
        xp, stride, last = namespace(num_steps), self._stride, num_steps - self.length
        if self.end in ("drop", "continue"):
            return xp.maximum(last + stride, 0) // stride
        # How many windows must begin within the rows to cover all of them.
        num_items = xp.minimum(1 + (xp.maximum(last, 0) + stride - 1) // stride, (num_steps + stride - 1) // stride)
        return xp.where(last >= 0, num_items, 0) if self.end == "write" else num_items

    def find_ranges(self, places: Places) -> Ranges:
        """Implements `WindowAdder.find_ranges`."""
        xp = namespace(places.number)
        start, end = places.first + places.number * self._stride, places.last + 1
        if self.end in ("write", "last"):
            start = xp.maximum(xp.minimum(start, end - self.length), places.first)
        stop = start + self.length
        return Ranges(start, xp.minimum(stop, end) if self.end == "truncate" else stop, places.first, end)

    def read_rows(self, take: Take, rows: Array, is_real: Array, places: Places) -> Any:
        """Implements `WindowAdder.read_rows`."""
        steps = take(rows, None)
        padded = pad(steps, is_real)
        if self.end == "null_padding":
            flags = {name: steps[name] for name in (fields.IS_LAST, fields.IS_TERMINAL) if name in steps}
            padded |= pad(flags, is_real, True)
        return add_masks(padded, is_real)

    @property
    def _stride(self) -> int:
        return self.period or self.length

    def _convert_dataset(self, columns: Any) -> Any:
        if not self.crosses_episodes:
            return super()._convert_dataset(columns)
        from .tf_data import continue_windows

        return continue_windows(self, columns, self._stride)

    def split_burn_in(self, windows: Nest, *, n: int = 1, time_axis: int = 1) -> dict[str, dict[str, Any]]:
        """Splits a batch of windows for a recurrent learner with burn-in and n-step targets.

        With length L and burn-in b, as in DI-engine's R2D2 (Kapturowski et al. 2019, sec. 2.3):

            burnin: observation [:b + n], over which the state is unrolled without a gradient
            main:   observation, action, reward [b:-n]; every other field (flags, value_gamma, mask) [b:]
            target: observation [b + n:]

        Args:
          windows: dict of nests of tensors, `[B, L, ...]` or, with time_axis 0, `[L, ...]`.
          n: number of steps of the returns, at least 1.
          time_axis: index of the time axis, 0 or 1.

        Raises:
          ValueError: If n is below 1, nothing of the windows would be left, they do not have `length` rows, or
            observation, action or reward is missing.
        """
        require_count("n", n)
        require_fields(windows, _SHORTENED, "StepWindows.split_burn_in", place="in the windows")
        if time_axis not in (0, 1):
            raise ValueError(f"time_axis must be 0 or 1, got {time_axis}")
        length = tree.flatten(windows)[0].shape[time_axis]
        if length != self.length:
            raise ValueError(f"windows must have {self.length} rows, got {length}")
        if self.burn_in + n >= length:
            raise ValueError(f"burn_in + n must be less than the length, {length}, got {self.burn_in} + {n}")

        def cut(names: Iterable[str], start: int, stop: int) -> dict[str, Any]:
            index = (slice(None),) * time_axis + (slice(start, stop),)
            return {name: tree.map_structure(lambda column: column[index], windows[name]) for name in names}

        others = [name for name in windows if name not in _SHORTENED]
        return {
            "burnin": cut([fields.OBSERVATION], 0, self.burn_in + n),
            "main": {**cut(_SHORTENED, self.burn_in, length - n), **cut(others, self.burn_in, length)},
            "target": cut([fields.OBSERVATION], self.burn_in + n, length),
        }
