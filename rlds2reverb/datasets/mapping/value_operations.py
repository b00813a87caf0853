"""Operations of mappings on values: actions relative to a state, binary grippers, and the size of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode, FinalRow
from rlds2reverb.types.nest_paths import Keys, get_part, replace_part
from rlds2reverb.types.specs import ArraySpec, cast_array, describe

from .mapped_source import MappedSource

_FLOATS = "a vector of floats"
#: Name in the statistics of a source of what `delta` and `absolute` have done to actions, which policies undo.
RELATIVE_ACTIONS = "relative_actions"


def make_deltas(dataset: MappedSource, actions: Mapping[str, Any]) -> MappedSource:
    """Makes absolute actions relative to the state of the same step: `{action: state}`, see `_shift`."""
    return _shift_all(dataset, actions, -1)


def make_absolute(dataset: MappedSource, actions: Mapping[str, Any]) -> MappedSource:
    """Adds the state of the same step to relative actions, the inverse of `make_deltas`."""
    return _shift_all(dataset, actions, 1)


def _shift_all(dataset: MappedSource, actions: Mapping[str, Any], sign: int) -> MappedSource:
    for path, value in actions.items():
        described = value if isinstance(value, Mapping) else {"state": value}
        if not set(described) <= {"state", "except"} or "state" not in described:
            raise SourceError(
                f"{path!r} must name a state, alone or as 'state' with elements under 'except', got {value!r}"
            )
        dataset = _shift(dataset, path, described["state"], described.get("except", []), sign)
    return dataset


def _shift(dataset: MappedSource, path: str, state: str, excepted: Sequence[Any], sign: int) -> MappedSource:
    """Adds or subtracts elements of a state to or from those of the same index, except for some, such as grippers."""
    keys, spec = dataset.get_numbers(path, _FLOATS, kinds="f")
    state_keys, state_spec = dataset.get_numbers(state, _FLOATS, kinds="f")
    size, state_size = (part.shape[0] if part.shape else 0 for part in (spec, state_spec))
    kept = dataset.find_elements(path, size or 0, excepted)
    moved = [element for element in range(size or 0) if element not in kept]
    if not moved or max(moved) >= (state_size or 0):
        raise SourceError(
            f"{state!r} must have the elements of {path!r}, {describe(spec)}, in the same order, got "
            f"{describe(state_spec)}; join one that does, or list the others under 'except'"
        )

    def shift(episode: Episode) -> Episode:
        column, states = get_part(episode.steps, keys).copy(), get_part(episode.steps, state_keys)
        rows = slice(0, _count_actions(episode, keys))
        column[rows, moved] += (sign * states[rows][:, moved]).astype(column.dtype)
        return replace(episode, steps=replace_part(episode.steps, keys, lambda _: column))

    changed = dataset.change(shift, unbounded=[keys])
    if keys[0] != fields.ACTION:
        return changed
    done: dict[str, Any] = {"action": list(keys), "state": list(state_keys), "elements": moved, "sign": sign}
    known = changed.source.statistics.get(RELATIVE_ACTIONS, [])
    bounds = [] if spec.minimum is None else [np.broadcast_to(end, size or 0) for end in (spec.minimum, spec.maximum)]
    if not known and bounds and np.isfinite(bounds).all():
        done["bounds"] = [end.tolist() for end in bounds]
    return changed.replace(statistics={**changed.source.statistics, RELATIVE_ACTIONS: [*known, done]})


def _count_actions(episode: Episode, keys: Keys) -> int:
    """Returns the number of steps in which a field has a meaning: in the last one, actions may have none."""
    is_meant = keys[0] == fields.OBSERVATION or episode.final_row is FinalRow.ACTION
    return episode.num_steps - (not is_meant)


def binarize_fields(dataset: MappedSource, values: Mapping[str, Any]) -> MappedSource:
    """Sets elements from a threshold on to one value, and below it to another one.

    `{path: {"element": -1, "threshold": 0.5, "values": [0, 1]}}`; 'element' may be a name, and the values default to 0
    and 1.
    """
    for path, described in values.items():
        dataset = _binarize(dataset, path, described)
    return dataset


def _binarize(dataset: MappedSource, path: str, described: Any) -> MappedSource:
    keys, spec = dataset.get_numbers(path, "a number or a vector of numbers")
    values = dict(described) if isinstance(described, Mapping) else {}
    low_high = values.get("values", [0, 1])
    is_valid = isinstance(low_high, list) and len(low_high) == 2
    numbers = [values.get("threshold"), *low_high] if is_valid else [None]
    if not set(values) <= {"element", "threshold", "values"} or not all(type(n) in (int, float) for n in numbers):
        raise SourceError(
            f"{path!r} must have a 'threshold', and may have an 'element' and two 'values', got {described!r}"
        )
    threshold, low, high = numbers
    _, changed = cast_array(np.array(low_high), spec.dtype)
    if changed is not None and changed.any():
        raise SourceError(
            f"the values of {path!r} must be numbers that {spec.dtype} can represent, got {low_high}; cast it first"
        )
    size = (spec.shape[0] or 0) if spec.shape else 1
    elements = dataset.find_elements(path, size, values.get("element", list(range(size))))

    def binarize(episode: Episode) -> Episode:
        column = get_part(episode.steps, keys).copy()
        flat = column.reshape(len(column), -1)
        rows = slice(0, _count_actions(episode, keys))
        flat[rows, elements] = np.where(flat[rows][:, elements] >= threshold, high, low)
        return replace(episode, steps=replace_part(episode.steps, keys, lambda _: column))

    is_unbounded = spec.minimum is None or low > high
    return dataset.change(binarize, unbounded=[keys] if is_unbounded else [])


def resize_images(dataset: MappedSource, sizes: Mapping[str, Any]) -> MappedSource:
    """Resizes images to a height and width: `{path: [height, width]}`.

    Pixels of 8 bits are averaged or interpolated by Pillow's bilinear filter; of others, such as depths, the nearest is
    taken.
    """
    for path, size in sizes.items():
        height, width = _require_numbers(path, size, (2,))
        dataset = _change_images(dataset, path, partial(_resize, height=height, width=width))
    return dataset


def crop_images(dataset: MappedSource, boxes: Mapping[str, Any]) -> MappedSource:
    """Crops images: `{path: [height, width]}` from the centre, or `{path: [top, left, height, width]}`."""
    for path, box in boxes.items():
        numbers = _require_numbers(path, box, (2, 4))
        _, spec = _get_image(dataset, path)
        height, width = numbers[-2:]
        top, left = numbers[:-2] or [((spec.shape[0] or 0) - height) // 2, ((spec.shape[1] or 0) - width) // 2]
        if top < 0 or left < 0 or top + height > (spec.shape[0] or 0) or left + width > (spec.shape[1] or 0):
            raise SourceError(f"the crop of {path!r} must be inside {describe(spec)}, got {box}")
        part = (slice(None), slice(top, top + height), slice(left, left + width))
        dataset = _change_images(dataset, path, partial(_crop, part=part))
    return dataset


def _require_numbers(path: str, value: Any, lengths: Sequence[int]) -> list[int]:
    numbers = list(value) if isinstance(value, (list, tuple)) else []
    is_valid = all(type(number) is int and number >= 0 for number in numbers) and 0 not in numbers[-2:]
    if len(numbers) not in lengths or not is_valid:
        forms = " or ".join("[height, width]" if n == 2 else "[top, left, height, width]" for n in lengths)
        raise SourceError(f"{path!r} must have {forms} in pixels, got {value!r}")
    return numbers


def _get_image(dataset: MappedSource, path: str) -> tuple[Keys, ArraySpec]:
    keys, spec = dataset.get_leaf(path)
    if len(spec.shape) != 3 or spec.dtype.kind not in "uif":
        raise SourceError(f"{path!r} must be an image with height, width and channels, got {describe(spec)}")
    return keys, spec


def _change_images(dataset: MappedSource, path: str, function: Callable[[np.ndarray], np.ndarray]) -> MappedSource:
    keys, _ = _get_image(dataset, path)

    def change(episode: Episode) -> Episode:
        return replace(episode, steps=replace_part(episode.steps, keys, function))

    return dataset.change(change, keeps_images=False)


def _crop(images: np.ndarray, part: tuple[slice, ...]) -> np.ndarray:
    return images[part].copy()


def _resize(images: np.ndarray, height: int, width: int) -> np.ndarray:
    if images.dtype != np.uint8 or images.shape[3] not in (1, 3, 4):
        rows, columns = (
            (2 * np.arange(new) + 1) * old // (2 * new)
            for new, old in zip((height, width), images.shape[1:3], strict=True)
        )
        return np.ascontiguousarray(images[:, rows[:, None], columns])
    from PIL import Image

    resized = np.empty((len(images), height, width, images.shape[3]), np.uint8)
    for image, pixels in zip(resized, images, strict=True):
        source = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        image[...] = np.asarray(source.resize((width, height), Image.Resampling.BILINEAR)).reshape(image.shape)
    return resized


VALUE_OPERATIONS: dict[str, Callable[[MappedSource, Any], MappedSource]] = {
    "delta": make_deltas,
    "absolute": make_absolute,
    "binarize": binarize_fields,
    "resize": resize_images,
    "crop": crop_images,
}
