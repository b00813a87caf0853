"""Descriptions of the features of written RLDS datasets: image encodings, texts, classes, and documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.system.text import suggest
from rlds2reverb.types.nest_paths import format_path
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves

#: Descriptions by the path of a field, such as `observation.image`; see `Source.descriptions`.
Features = Mapping[str, Mapping[str, Any]]

#: Numbers of channels of the images that can be encoded.
_CHANNELS = {"png": (1, 3, 4), "jpeg": (1, 3)}
TEXT = "text"
ENCODING, DESCRIPTION, CLASSES = "encoding", "description", "classes"
_KEYS = (ENCODING, DESCRIPTION, CLASSES)
#: The files that begin with these bytes.
_SIGNATURES = {"png": b"\x89PNG", "jpeg": b"\xff\xd8\xff"}


def require_features(features: Mapping[str, Any], step_spec: Nest) -> Features:
    """Returns descriptions, in which an encoding alone may stand for a dict, after checking them.

    Raises:
      SourceError: If there is no such field, or it cannot have the encoding or the classes.
      ValueError: If a description is neither an encoding nor a dict of these.
    """
    specs = {format_path(path): spec for path, spec in leaves(dict(step_spec))}
    checked: dict[str, Mapping[str, Any]] = {}
    for name, value in features.items():
        entry = {ENCODING: value} if isinstance(value, str) else value
        texts = [text for key, text in entry.items() if key != CLASSES] if isinstance(entry, Mapping) else [None]
        if not all(isinstance(text, str) for text in texts) or not set(entry) <= set(_KEYS):
            raise ValueError(
                f"the description of {name!r} must be an encoding or a dict of {', '.join(_KEYS)}, got {value!r}"
            )
        if name not in specs:
            raise SourceError(
                f"there is a description of {name!r}, which is no field of the steps{suggest(name, list(specs))}"
            )
        if ENCODING in entry:
            _require_encoding(name, entry[ENCODING], specs[name])
        if CLASSES in entry:
            _require_classes(name, entry, specs[name])
        checked[name] = entry
    return checked


def _require_classes(name: str, entry: Mapping[str, Any], spec: ArraySpec) -> None:
    """Raises an error unless a field of integers can have these classes, which TFDS stores as lines of a file."""
    classes = entry[CLASSES]
    is_list = isinstance(classes, Sequence) and not isinstance(classes, str) and len(classes) > 0
    if not is_list or not all(isinstance(text, str) and text.strip().splitlines() == [text] for text in classes):
        raise ValueError(f"the classes of {name!r} must be a list of names without line breaks, got {classes!r}")
    if len(set(classes)) < len(classes):
        raise ValueError(f"the classes of {name!r} must have different names, got {list(classes)}")
    if ENCODING in entry or spec.dtype.kind not in "iu" or spec.shape:
        raise SourceError(
            f"{name!r} must be one integer per step, without an encoding, to have classes, got {describe(spec)}"
        )


def _require_encoding(name: str, encoding: str, spec: ArraySpec) -> None:
    """Raises an error unless a field can have an encoding; images that are still encoded keep it."""
    if encoding not in (*_CHANNELS, TEXT):
        raise ValueError(f"the encoding of {name!r} must be png, jpeg or text, got {encoding!r}")
    is_string = spec.dtype == object and not spec.shape
    is_image = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in _CHANNELS.get(encoding, ())
    if not is_string and not is_image:
        expected = "a string" if encoding == TEXT else f"uint8 [H, W, C] with C in {_CHANNELS[encoding]}, or bytes"
        raise SourceError(f"{name!r} must be {expected} for the encoding {encoding}, got {describe(spec)}")


def make_feature(spec: ArraySpec, entry: Mapping[str, Any]) -> Any:
    """Returns TFDS's feature of a field whose description has an encoding or classes, or None for any other one."""
    import tensorflow_datasets as tfds

    if CLASSES in entry:
        return tfds.features.ClassLabel(names=entry[CLASSES])
    encoding = entry.get(ENCODING)
    if encoding in (TEXT, None):
        return tfds.features.Text() if encoding else None
    return tfds.features.Image(shape=spec.shape or (None, None, 3), dtype=np.uint8, encoding_format=encoding)


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


def require_labels(column: np.ndarray, num_classes: int, where: str) -> None:
    """Raises `SourceError` unless all integers `[T]` are in [-1, num_classes); -1 stands for an unknown class."""
    signed = column.astype(np.int64)
    is_outside = (signed < -1) | (signed >= num_classes)
    if is_outside.any():
        step = int(np.argmax(is_outside))
        raise SourceError(
            f"{where}, step {step} must be the number of a class in [0, {num_classes - 1}], or -1 if it is unknown, "
            f"got {column[step]}; list all classes"
        )
