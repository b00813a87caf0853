"""The layout of a dataset's steps as arrays that can be read at any row."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields as dataclass_fields
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode, SplitEpisodes
from rlds2reverb.types.nest_paths import select_parts
from rlds2reverb.types.specs import ArraySpec, Nest, concatenate, describe, leaves, path_name

from .image_files import Decoder, decode_column, decode_image

#: Arrays of a part. Each text or image column has two more, and each column of frames one.
ROWS, EPISODES, ATTRIBUTES = "rows", "episodes", "attributes"
#: One record per episode: its number of steps, what the last one holds (see `FinalRow`), the digest of its content, and
#: the end of its attributes.
EPISODE_RECORD = np.dtype([("num_steps", "<i8"), ("final_row", "u1"), ("digest", "u1", 16), ("attributes_end", "<i8")])
#: Arrays of at least this size per step, such as raw images, are not packed into rows with the others.
_MIN_FRAME_BYTES = 2048
_IMAGE_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_IMAGE_ADVICE = "convert the images to the mode and size of the first one, or decode them before"
_ALIGNMENT = 8


@dataclass(frozen=True)
class Column:
    """The representation of one leaf of the steps in a store.

    Attributes:
      path: keys of the leaf.
      spec: spec of one step, as it is read without decoding.
      kind: 'packed' in the rows, 'bytes' one after the other with their ends, or 'frames' in their own array.
      stack: number of consecutive frames on the last axis of each step, which are stored once; 0 without that axis.
      pixels: spec of the decoded images, if the bytes are images; None otherwise.
    """

    path: tuple[Any, ...]
    spec: ArraySpec
    kind: str
    stack: int = 0
    pixels: ArraySpec | None = None

    @property
    def frame_shape(self) -> tuple[Any, ...]:
        """The shape of one stored frame."""
        return self.spec.shape[:-1] if self.stack else self.spec.shape

    @property
    def is_image(self) -> bool:
        """True if these are images, encoded or not, as far as their dtype and size tell."""
        return self.pixels is not None or (self.kind == "frames" and self.spec.dtype.kind in "iub")

    @property
    def num_more_frames(self) -> int:
        """The number of frames that an episode has more than steps."""
        return max(self.stack - 1, 0)

    def decode(self, files: Any, decode: Decoder, locate: Callable[[int], tuple[int, int]]) -> np.ndarray:
        """Returns the pixels of image files.

        Args:
          files: the files `[N]`.
          decode: the decoder.
          locate: function that returns the index of the episode and the step of a file, for messages.

        Raises:
          SourceError: If an image does not have the spec of the first one.
        """
        assert self.pixels is not None

        def name(place: int) -> str:
            return "{} of episode {}, step {}".format(path_name(self.path), *locate(place))

        return decode_column(files, self.pixels, decode, name, _IMAGE_ADVICE)


class Layout:
    """Which arrays hold the steps of a dataset; the same for all of its episodes.

    Attributes:
      columns: the columns, in the order of `specs.leaves`.
    """

    def __init__(self, columns: Sequence[Column], structure: Any):
        """
        Args:
          columns: the columns.
          structure: nest of dicts and tuples (or lists) that has the number of a column in place of each leaf.
        """
        self.columns, self._structure = tuple(columns), structure
        packed = [(number, column) for number, column in enumerate(columns) if column.kind == "packed"]
        packed.sort(key=lambda pair: -pair[1].spec.dtype.itemsize)  # Aligns every element.
        self._places: dict[int, slice] = {}
        end = 0
        for number, column in packed:
            self._places[number] = slice(end, end + column.spec.num_bytes)
            end += column.spec.num_bytes
        #: The number of bytes of a row.
        self.row_bytes = -(-end // _ALIGNMENT) * _ALIGNMENT

    @classmethod
    def of_steps(cls, steps: dict[str, Nest]) -> Layout:
        """Returns the layout for episodes with columns like these, `[T, ...]`, of which there is at least one row."""
        columns = [_make_column(path, column) for path, column in leaves(steps)]
        return cls(columns, tree.unflatten_as(steps, list(range(len(columns)))))

    def to_json(self) -> dict[str, Any]:
        """Returns the layout as plain values."""
        columns = [
            {**asdict(column), "spec": _spec_to_json(column.spec), "pixels": _spec_to_json(column.pixels)}
            for column in self.columns
        ]
        return {"columns": columns, "structure": self._structure}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Layout:
        """Returns the layout that `to_json` described."""
        columns = []
        for column in values["columns"]:
            specs = {name: _spec_from_json(column[name]) for name in ("spec", "pixels")}
            columns.append(Column(**{**column, **specs, "path": tuple(column["path"])}))
        return cls(columns, values["structure"])

    @property
    def step_spec(self) -> dict[str, Nest]:
        """The specs of one step, with decoded images."""
        return self.restore({number: column.pixels or column.spec for number, column in enumerate(self.columns)})

    def restore(self, values: Mapping[int, Any]) -> dict[str, Nest]:
        """Returns the nest of steps from the values of columns, by number; top-level fields may be missing."""
        parts = self._structure.items()
        return {
            name: fill_structure(part, values) for name, part in parts if next(iter(tree.flatten(part)), None) in values
        }

    def select(self, names: Sequence[str] | None) -> dict[str, Any]:
        """Returns the nest of the numbers of some fields, or of their parts (see `select_parts`); None for all."""
        return self._structure if names is None else select_parts(self._structure, names)

    def array_specs(self) -> dict[str, ArraySpec]:
        """Returns the dtype of each array of a part, and the shape of its elements."""
        byte, end = np.dtype(np.uint8), np.dtype(np.int64)
        specs = {ROWS: ArraySpec((self.row_bytes,), byte)}
        for number, column in enumerate(self.columns):
            if column.kind == "bytes":
                specs[array_name(number, "bytes")] = ArraySpec((), byte)
                specs[array_name(number, "ends")] = ArraySpec((), end)
            elif column.kind == "frames":
                specs[array_name(number, "frames")] = ArraySpec(column.frame_shape, column.spec.dtype)
        return {**specs, ATTRIBUTES: ArraySpec((), byte), EPISODES: ArraySpec((), EPISODE_RECORD)}

    def encode(
        self, batch: EpisodeBatch, num_bytes: Mapping[str, int], digests: Sequence[bytes] | None = None
    ) -> dict[str, np.ndarray]:
        """Returns what some episodes add to each array of a part, their records last.

        Args:
          batch: the episodes.
          num_bytes: sizes of the arrays of bytes, in which they start.
          digests: the digest of each episode; None for zeros.

        Raises:
          SpecMismatchError: If the episodes have other fields, dtypes or shapes, or frames that are no stack.
        """
        arrays, num_steps = leaves(batch.steps), batch.num_steps
        self.require_match(batch)
        total = int(num_steps.sum())
        rows = np.zeros((total, self.row_bytes), np.uint8)
        added: dict[str, np.ndarray] = {ROWS: rows}
        for number, ((_, array), column) in enumerate(zip(arrays, self.columns, strict=True)):
            if column.kind == "packed" and total:
                flat = np.ascontiguousarray(array).reshape(total, -1)
                rows[:, self._places[number]] = flat.view(np.uint8) if flat.size else 0
            elif column.kind == "bytes":
                parts = [value if isinstance(value, bytes) else str(value).encode() for value in array.tolist()]
                ends, name = np.cumsum([len(part) for part in parts], dtype=np.int64), array_name(number, "bytes")
                added[name] = np.frombuffer(b"".join(parts), np.uint8)
                added[array_name(number, "ends")] = ends + num_bytes[name]
            elif column.kind == "frames" and column.stack:
                episodes = [dict(episode.columns)[column.path] for episode in batch.episodes]
                added[array_name(number, "frames")] = concatenate([_unstack(array, column) for array in episodes])
            elif column.kind == "frames":
                added[array_name(number, "frames")] = array
        # Episodes that were cut from columns have no attributes.
        has_attributes = not isinstance(batch.episodes, SplitEpisodes)
        attributes = [encode_attributes(episode) for episode in batch.episodes] if has_attributes else []
        records = np.zeros(len(num_steps), EPISODE_RECORD)
        records["num_steps"], records["final_row"] = num_steps, batch.final_rows
        records["attributes_end"] = num_bytes[ATTRIBUTES]
        records["attributes_end"] += np.cumsum([len(text) for text in attributes]) if has_attributes else 0
        if digests is not None:
            records["digest"] = np.frombuffer(b"".join(digests), np.uint8).reshape(len(num_steps), -1)
        return {**added, ATTRIBUTES: np.frombuffer(b"".join(attributes), np.uint8), EPISODES: records}

    def hide_images(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Returns episodes with views of zeros in place of image files; see `decode_images`."""
        return self.decode_images(batch, lambda files, pixels: blank_images(len(files), pixels))

    def decode_images(self, batch: EpisodeBatch, decode: Decoder) -> EpisodeBatch:
        """Returns episodes with pixels in place of image files; the same ones without such files.

        Args:
          batch: episodes with the fields of the layout, and possibly others.
          decode: the decoder.

        Raises:
          SourceError: If an image does not have the spec of the first one.
        """
        if all(column.pixels is None for column in self.columns):
            return batch
        columns = leaves({name: batch.steps[name] for name in self._structure})
        decoded = {
            number: array if column.pixels is None else column.decode(array, decode, batch.locate)
            for number, ((_, array), column) in enumerate(zip(columns, self.columns, strict=True))
        }
        return batch.with_steps({**batch.steps, **self.restore(decoded)})

    def unpack(self, rows: np.ndarray, number: int) -> np.ndarray:
        """Returns a packed column from rows, uint8 `[N, row_bytes]`, as a view where possible."""
        spec = self.columns[number].spec
        content = rows[:, self._places[number]]
        column = content.view(spec.dtype) if content.shape[1] else np.zeros((len(rows), 0), spec.dtype)
        return column.reshape(len(rows), *spec.shape)

    def require_match(self, batch: EpisodeBatch) -> None:
        """Raises `SpecMismatchError` if the episodes have other fields, dtypes or shapes."""
        got = [(path, array.dtype, array.shape[1:]) for path, array in leaves(batch.steps)]
        expected = [(column.path, column.spec.dtype, column.spec.shape) for column in self.columns]
        if got == expected:
            return
        name, advice = f"episode {batch.episodes[0].index}", "store only episodes with the same fields"
        if [path for path, *_ in got] != [path for path, *_ in expected]:
            names = [", ".join(path_name(path) for path, *_ in columns) for columns in (got, expected)]
            raise SpecMismatchError(f"{name} has the fields {names[0]}, but the first one {names[1]}; {advice}")
        if not batch.num_steps.any():
            return
        (path, *spec), (_, *wanted) = next(pair for pair in zip(got, expected, strict=True) if pair[0] != pair[1])
        specs = [describe(ArraySpec(shape, dtype)) for dtype, shape in (spec, wanted)]
        raise SpecMismatchError(f"{path_name(path)} of {name} is {specs[0]}, but {specs[1]} before; {advice}")


def array_name(number: int, content: str) -> str:
    """Returns the name of an array of a column: its 'frames', its 'bytes', or the 'ends' of the bytes of each step."""
    return f"column-{number:02d}-{content}"


def read_attributes(content: bytes) -> dict[str, Any]:
    """Returns the attributes of an episode that `Layout.encode` stored."""
    if not content:
        return {}
    values = json.loads(content)
    values["discontinuities"] = tuple(values.get("discontinuities", ()))
    if values.get("timestamps") is not None:
        values["timestamps"] = np.array(values["timestamps"])
    metadata: dict[str, Nest] = {}
    for (*keys, name), dtype, shape, items in values.pop("metadata", ()):
        group = functools.reduce(lambda nest, key: nest.setdefault(key, {}), keys, metadata)
        contents = [item.encode("latin-1") for item in items] if np.dtype(dtype) == object else items
        group[name] = np.array(contents, dtype).reshape(shape)
    return {**values, "metadata": metadata}


def find_image(column: np.ndarray) -> bytes | None:
    """Returns the first JPEG or PNG file of a column of objects `[T]`; None if the column contains something else."""
    first = next((value for value in column.reshape(-1) if value), None)
    return first if isinstance(first, bytes) and first.startswith(_IMAGE_STARTS) else None


def has_images(steps: dict[str, Nest]) -> bool:
    """Returns whether any column `[T, ...]` of steps consists of images; see `Column.is_image`."""
    columns = [(path, column) for path, column in leaves(steps) if column.dtype != object or column.ndim == 1]
    return any(_make_column(path, column).is_image for path, column in columns)


def blank_images(count: int, pixels: ArraySpec) -> np.ndarray:
    """Returns a read-only view of zeros as images `[count, H, W, C]`."""
    shape: Any = pixels.shape
    return np.broadcast_to(np.zeros((), pixels.dtype), (count, *shape))


def _make_column(path: tuple[Any, ...], column: np.ndarray) -> Column:
    spec = ArraySpec(tuple(column.shape[1:]), column.dtype)
    if column.dtype.kind == "O":
        if column.ndim > 1:
            raise SpecMismatchError(f"{path_name(path)} must be one text per step, got {describe(spec)}; drop it")
        file = find_image(column)
        try:
            pixels = None if file is None else decode_image(file)
        except ValueError as error:
            raise SourceError(f"{path_name(path)} of the first episode: {error}; {_IMAGE_ADVICE}") from error
        return Column(path, spec, "bytes", pixels=None if pixels is None else ArraySpec(pixels.shape, pixels.dtype))
    stack = column.shape[-1] if _is_stacked(column) else 0
    return Column(path, spec, "frames" if stack or spec.num_bytes >= _MIN_FRAME_BYTES else "packed", stack)


def _is_stacked(column: np.ndarray) -> bool:
    """Returns whether the steps are overlapping views of frames, as `sliding_window_view` makes them."""
    return column.ndim > 2 and len(column) > 1 and column.shape[-1] > 1 and column.strides[0] == column.strides[-1] != 0


def _unstack(array: np.ndarray, column: Column) -> np.ndarray:
    """Returns the frames `[T + K - 1, ...]` of stacks `[T, ..., K]`."""
    if not len(array):
        return np.zeros((0, *column.frame_shape), array.dtype)
    frames = np.concatenate([np.moveaxis(array[0], -1, 0), array[1:, ..., -1]])
    if not _is_stacked(array):
        shown = np.lib.stride_tricks.sliding_window_view(frames, column.stack, axis=0)
        if not np.array_equal(shown, array):
            raise SpecMismatchError(f"{path_name(column.path)} is no stack of consecutive frames, unlike before")
    return frames


def encode_attributes(episode: Episode) -> bytes:
    """Returns the attributes of an episode besides its steps and index that differ from their defaults."""
    values = {field.name: getattr(episode, field.name) for field in dataclass_fields(episode)}
    defaults: dict[str, Any] = {field.name: field.default for field in dataclass_fields(episode)}
    names = [name for name in values if name not in ("steps", "index", "metadata")]
    different = {name: values[name] for name in names if not np.array_equal(values[name], defaults[name])}
    plain = {name: np.asarray(value).tolist() for name, value in different.items()}
    if episode.metadata:
        plain["metadata"] = [[path, *_describe_array(array)] for path, array in leaves(episode.metadata)]
    return json.dumps(plain, separators=(",", ":")).encode() if plain else b""


def _describe_array(array: np.ndarray) -> tuple[str, list[int], list[Any]]:
    """Returns the dtype, the shape and the items of an array as plain values; bytes become characters."""
    items = [item.decode("latin-1") if isinstance(item, bytes) else item for item in array.ravel().tolist()]
    return array.dtype.str, list(array.shape), items


def fill_structure(structure: Any, values: Mapping[int, Any]) -> Nest:
    """Returns a nest of the numbers of columns with their values in place of them."""
    if isinstance(structure, Mapping):
        return {name: fill_structure(part, values) for name, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        return tuple(fill_structure(part, values) for part in structure)
    return values[structure]


def _spec_to_json(spec: ArraySpec | None) -> Any:
    return None if spec is None else [list(spec.shape), spec.dtype.str]


def _spec_from_json(values: Any) -> ArraySpec | None:
    return None if values is None else ArraySpec(tuple(values[0]), np.dtype(values[1]))
