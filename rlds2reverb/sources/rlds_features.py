"""Descriptions of the features of written RLDS datasets: image encodings, texts, and documentation of fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb._system.text import suggest
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import ArraySpec, Nest, describe, leaves

#: Descriptions by the path of a field, such as `observation/image`: `{"encoding": "jpeg", "description": "..."}`.
Features = Mapping[str, Mapping[str, str]]

#: Numbers of channels of the images that can be encoded.
_CHANNELS = {"png": (1, 3, 4), "jpeg": (1, 3)}
TEXT = "text"
_KEYS = ("encoding", "description")
#: The files that begin with these bytes.
_SIGNATURES = {"png": b"\x89PNG", "jpeg": b"\xff\xd8\xff"}


def read_features(path: Path) -> dict[str, Any]:
    """Returns the descriptions in a JSON file; raises `ValueError` if it is not a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must contain an object of descriptions by field, got a {type(content).__name__}")
    return content


def require_features(features: Mapping[str, Any], step_spec: Nest) -> Features:
    """Returns descriptions, in which an encoding alone may stand for a dict, after checking them.

    Raises:
      SourceError: If there is no such field, or it cannot have the encoding.
      ValueError: If a description is neither an encoding nor a dict of these.
    """
    specs = {"/".join(map(str, path)): spec for path, spec in leaves(dict(step_spec))}
    checked: dict[str, Mapping[str, str]] = {}
    for name, value in features.items():
        entry = {"encoding": value} if isinstance(value, str) else value
        is_known = isinstance(entry, Mapping) and set(entry) <= set(_KEYS)
        if not is_known or not all(isinstance(text, str) for text in entry.values()):
            raise ValueError(f"features[{name!r}] must be an encoding or a dict of {', '.join(_KEYS)}, got {value!r}")
        if name not in specs:
            raise SourceError(f"features describe {name!r}, which is no field of the steps{suggest(name, list(specs))}")
        if "encoding" in entry:
            _require_encoding(name, entry["encoding"], specs[name])
        checked[name] = entry
    return checked


def _require_encoding(name: str, encoding: str, spec: ArraySpec) -> None:
    """Raises an error unless a field can have an encoding; images that are still encoded keep it."""
    if encoding not in (*_CHANNELS, TEXT):
        raise ValueError(f"the encoding of {name!r} must be png, jpeg or text, got {encoding!r}")
    is_string = spec.dtype == object and not spec.shape
    is_image = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in _CHANNELS.get(encoding, ())
    if not is_string and not is_image:
        expected = "a string" if encoding == TEXT else f"uint8 [H, W, C] with C in {_CHANNELS[encoding]}, or bytes"
        raise SourceError(f"{name!r} must be {expected} for the encoding {encoding}, got {describe(spec)}")


def make_feature(spec: ArraySpec, encoding: str) -> Any:
    """Returns TFDS's feature of a field with an encoding of these descriptions."""
    import tensorflow_datasets as tfds

    if encoding == TEXT:
        return tfds.features.Text()
    shape = spec.shape if spec.shape else (None, None, 3)
    return tfds.features.Image(shape=shape, dtype=np.uint8, encoding_format=encoding)


def encode_images(column: np.ndarray, encoding: str, name: str) -> list[bytes]:
    """Returns the files of images, `uint8 [T, H, W, C]` or their bytes `[T]`, which are kept if they are such files.

    Empty bytes, which stand for an unknown final observation, become black images of the size of the first one.

    Raises:
      SourceError: If bytes are not a file of the encoding.
    """
    import tensorflow as tf

    encode = tf.io.encode_png if encoding == "png" else tf.io.encode_jpeg
    if column.dtype != object:
        return [encode(image).numpy() for image in column]
    files = [bytes(file) for file in column]
    for row, file in enumerate(files):
        if file and not file.startswith(_SIGNATURES[encoding]):
            raise SourceError(
                f"{name!r} must be {encoding} files, got {file[:4]!r} in step {row}; set the encoding of the source, "
                "or read it with image_decoding=True"
            )
    if b"" in files and any(files):
        blank = encode(tf.zeros_like(tf.io.decode_image(next(filter(None, files))))).numpy()
        files = [file or blank for file in files]
    return files
