"""An adder of items that say which steps of each field a policy sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_number
from rlds2reverb.types.nest_paths import list_paths, merge_parts
from rlds2reverb.types.specs import Nest, map_structure

from .adder import ItemAdder
from .arrays import Array, namespace, split_axis
from .padding import MASK
from .places import Places, Take

#: Offsets in steps by the names of fields.
Offsets = Mapping[str, int | Sequence[int]]
#: Fields that the step of the final observation has; the other fields belong to an action.
_STATE_FIELDS = (fields.OBSERVATION, fields.IS_FIRST, fields.IS_LAST, fields.IS_TERMINAL)
#: How much a time may differ from that of a step, in seconds, as in LeRobot.
_TOLERANCE_SECS = 1e-4


@dataclass(frozen=True)
class StepOffsets(ItemAdder):
    """For each field, the steps at some distances from the step at which the item begins.

        StepOffsets({"observation.image": 0, "observation.state": [-1, 0], "action": range(16)})

    A policy that sees two states and one image, and predicts 16 actions, learns from these items. Only the fields and
    parts that are named are read, so that no other images are decoded.

    Zhao et al. (2023), "Learning fine-grained bimanual manipulation with low-cost hardware", section 4 (chunks of
    actions); Chi et al. (2023), "Diffusion Policy", section 3 (histories with chunks); LeRobot's `delta_timestamps`.

    Item: the fields, nested as in the steps: `[K, ...]` for K offsets, or without this axis for a single number; and
    `mask`, a dict of the same names: bool `[K]` (or `[]`), False for padding.

    Both ends of an episode: an item begins at each step that has an action, which is each step but that of the final
    observation. Steps before the first one repeat the first one; steps after the last one repeat the last observation
    that is known, or the last action, reward, discount or other field. Both are padding.

    Attributes:
      offsets: offsets in steps of each field; a dotted path names a part of a nested field. An integer or integers.
    """

    offsets: Offsets

    def __post_init__(self) -> None:
        if not isinstance(self.offsets, Mapping) or not self.offsets:
            raise TypeError(f"offsets must be a dict such as {{'action': range(8)}}, got {self.offsets!r}")
        offsets = {name: _convert_offsets(name, given) for name, given in self.offsets.items()}
        for name in offsets:
            whole = next((other for other in offsets if name.startswith(f"{other}.")), None)
            if whole is not None:
                raise ValueError(f"offsets must not contain both {whole!r} and its part {name!r}; use one of them")
        if MASK in offsets:
            raise ValueError(f"offsets must not contain {MASK!r}, which is in each item; leave it out")
        object.__setattr__(self, "offsets", offsets)

    def __hash__(self) -> int:
        return hash(tuple(self.offsets.items()))

    @classmethod
    def from_seconds(cls, offsets: Mapping[str, float | Sequence[float]], fps: float) -> StepOffsets:
        """Returns the adder for offsets in seconds, as in LeRobot's `delta_timestamps`.

        Args:
          offsets: offsets in seconds of each field.
          fps: number of steps per second, above 0.

        Raises:
          ValueError: If an offset is more than 0.1 ms away from a step.
        """
        require_number("fps", fps, 1e-6, 1e6)

        def convert(name: str, secs: float) -> int:
            steps = round(secs * fps)
            if abs(steps / fps - secs) > _TOLERANCE_SECS:
                raise ValueError(f"offsets of {name!r} must be multiples of 1/{fps:g} s, got {secs:g} s")
            return steps

        return cls(
            {
                name: [convert(name, one) for one in given] if isinstance(given, Sequence) else convert(name, given)
                for name, given in offsets.items()
            }
        )

    def require_steps(self, step_spec: Nest) -> None:
        """Implements `ItemAdder.require_steps`."""
        existing = list_paths(step_spec)
        for name in self.offsets:
            if name not in existing:
                raise ValueError(f"the steps have no field {name!r}; they have {', '.join(existing)}")

    @property
    def uses_all_actions(self) -> bool:
        """Implements `ItemAdder.uses_all_actions`."""
        return True

    def read(self, take: Take, places: Places) -> Any:
        """Implements `ItemAdder.read`."""
        item: dict[str, Any] = {}
        masks: dict[str, Array] = {}
        groups: dict[Any, list[str]] = {}  # Fields that are read at the same rows.
        for name, offsets in self.offsets.items():
            groups.setdefault((offsets, name.split(".")[0] in _STATE_FIELDS), []).append(name)
        for (offsets, is_state), names in groups.items():
            rows, is_real = _find_rows(places, offsets, places.last_observation if is_state else places.last - 1)
            part = take(namespace(rows).ravel(rows), names)
            if not isinstance(offsets, int):
                part = map_structure(partial(split_axis, like=rows), part)
            merge_parts(item, part)
            masks.update(dict.fromkeys(names, is_real))
        return {**item, MASK: {name: masks[name] for name in self.offsets}}


def _convert_offsets(name: str, given: Any) -> int | tuple[int, ...]:
    offsets = tuple(given) if isinstance(given, (Sequence, range)) and not isinstance(given, str) else (given,)
    if not offsets or not all(isinstance(one, int) and not isinstance(one, bool) for one in offsets):
        raise ValueError(f"offsets of {name!r} must be an integer or integers such as [-1, 0], got {given!r}")
    return offsets[0] if isinstance(given, int) else offsets


def _find_rows(places: Places, offsets: int | Sequence[int], last: Array) -> tuple[Array, Array]:
    """Returns the rows at some offsets, int64 `[N, K]` or `[N]`, up to the last one, and which are not padding."""
    xp = namespace(places.row)
    if isinstance(offsets, int):
        rows, first = places.row + offsets, places.first
    else:
        rows = places.row[:, None] + xp.asarray(offsets, "int64")
        first, last = places.first[:, None], last[:, None]
    inside = xp.maximum(xp.minimum(rows, last), first)
    return inside, inside == rows
