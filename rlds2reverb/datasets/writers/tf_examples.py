"""Episodes as `tf.train.Example` records, encoded with NumPy as TFDS's `features.Dataset` of steps expects them.

TFDS stores each field of the steps as one list of all values: floats as float32, integers and bool as int64. That would
round float64, so float64 fields are stored as the bytes of each step instead (TFDS's encoding 'bytes'). Images are
compressed (encoding 'zlib').
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import deflate
import numpy as np

from rlds2reverb.reverb.wire.protobuf import delimited, delimited_head, fill, varint, varints
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode, list_metadata
from rlds2reverb.types.nest_paths import format_path
from rlds2reverb.types.specs import ArraySpec, Nest, leaves

from ..readers.rlds import EPISODE_FIELDS, UNKNOWN_SEED
from .rlds_features import (
    CLASSES,
    DESCRIPTION,
    ENCODING,
    TEXT,
    Features,
    encode_images,
    make_feature,
    require_labels,
)

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

#: Level of libdeflate for images: about the size of zlib's default in a fraction of the time.
_LEVEL = 3
#: Numbers of the fields of `tf.train.Feature`.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def make_features(
    step_spec: Mapping[str, Nest], described: Features, metadata_spec: Mapping[str, Nest]
) -> tfds.features.FeaturesDict:
    """Returns the features of episodes with steps and metadata of these specs, in nested dicts, as described."""
    import tensorflow_datasets as tfds

    def convert(nest: Any, path: str) -> Any:
        if isinstance(nest, Mapping):
            return {name: convert(inner, f"{path}.{name}" if path else name) for name, inner in nest.items()}
        entry = described.get(path, {})
        feature = make_feature(nest, entry)
        if feature is None:
            dtype = np.str_ if nest.dtype == object else nest.dtype
            feature = tfds.features.Tensor(shape=nest.shape, dtype=dtype, encoding=_choose_encoding(nest))
        if text := entry.get(DESCRIPTION):
            feature._doc = tfds.features.Documentation(desc=text)
        return feature

    steps = tfds.features.Dataset(convert(step_spec, ""))
    metadata = {name: convert(nest, f".{name}") for name, nest in metadata_spec.items()}
    attributes = {name: tfds.features.Tensor(shape=(), dtype=dtype) for name, dtype in EPISODE_FIELDS.items()}
    return tfds.features.FeaturesDict({**metadata, fields.STEPS: steps, **attributes})


def _choose_encoding(spec: ArraySpec) -> str:
    """Returns the name of TFDS's encoding for a field of the steps."""
    if spec.dtype == object:
        return "none"
    if spec.dtype == np.uint8 and len(spec.shape) >= 2:
        return "zlib"
    is_empty = not math.prod(size or 0 for size in spec.shape)  # TensorFlow would divide by their size.
    return "bytes" if spec.dtype == np.float64 or is_empty else "none"


def encode_episode(episode: Episode, step_spec: Nest, described: Features, metadata_spec: Nest) -> bytes:
    """Returns an episode with the features of `make_features` as a serialised `tf.train.Example`."""
    features = []
    for (path, column), (_, spec) in zip(episode.columns, leaves(step_spec), strict=True):
        name = format_path(path)
        entry = described.get(name, {})
        encoding = entry.get(ENCODING, TEXT)
        if CLASSES in entry:
            require_labels(column, len(entry[CLASSES]), f"{name!r} of episode {episode.index}")
        if encoding == TEXT:
            encoded = _encode_column(column, _choose_encoding(spec))
        else:
            files = encode_images(column, encoding, name)
            encoded = delimited(_BYTES_LIST, b"".join(delimited(1, file) for file in files))
        features.append(_encode_feature("/".join([fields.STEPS, *path]), encoded))
    for name, array in list_metadata(episode, metadata_spec).items():
        encoding = _choose_encoding(ArraySpec(array.shape, array.dtype))
        features.append(_encode_feature(name, _encode_column(array[None], encoding)))
    for name in EPISODE_FIELDS:
        value = getattr(episode, name)
        number = UNKNOWN_SEED if value is None else int(value)
        features.append(_encode_feature(name, _encode_column(np.array([number], np.int64), "none")))
    return delimited(1, b"".join(features))


def _encode_feature(name: str, feature: bytes) -> bytes:
    """Returns an entry of the map `tf.train.Features.feature`."""
    return delimited(1, delimited(1, name.encode()) + delimited(2, feature))


def _encode_column(column: np.ndarray, encoding: str) -> bytes:
    """Returns the `tf.train.Feature` of all values of a column."""
    if encoding == "bytes":
        return delimited(_BYTES_LIST, _encode_rows(column))
    if encoding == "zlib":
        rows = np.ascontiguousarray(column)
        return delimited(_BYTES_LIST, b"".join(delimited(1, deflate.zlib_compress(row, _LEVEL)) for row in rows))
    values = column.reshape(-1)
    if column.dtype == object:
        texts = (value if isinstance(value, bytes) else str(value).encode() for value in values)
        return delimited(_BYTES_LIST, b"".join(delimited(1, text) for text in texts))
    if column.dtype.kind == "f":
        return delimited(_FLOAT_LIST, delimited(1, values.astype("<f4").tobytes()))
    return delimited(_INT64_LIST, delimited(1, _encode_integers(values)))


def _encode_rows(column: np.ndarray) -> bytes:
    """Returns a `BytesList` of the bytes of each row."""
    num_rows = len(column)
    row_bytes = column.itemsize * math.prod(column.shape[1:])
    rows = np.frombuffer(column.tobytes(), np.uint8).reshape(num_rows, row_bytes)
    head = delimited_head(1, row_bytes)
    return fill([head, rows], num_rows).tobytes()


def _encode_integers(values: np.ndarray) -> bytes:
    """Returns the varints of bool or integers, all padded to the width of the largest."""
    if not len(values):
        return b""
    numbers = values.astype(np.int64).view(np.uint64)
    return varints(numbers, len(varint(int(numbers.max())))).tobytes()
