"""Image files: their decoding to pixels of one spec, equal to those of TensorFlow, and the encoding as PNG."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types.specs import ArraySpec, describe

#: Returns the pixels `[N, H, W, C]` of image files, given the spec of one image; empty files become zeros.
Decoder = Callable[[Sequence[bytes], ArraySpec], np.ndarray]
_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF")
#: Pillow's modes of pixels by the number of channels.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
#: The colour types of PNG by the number of channels.
_PNG_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
#: Modes that are converted first, because their values are bits or places in a palette.
_EXPANDED = {"1": "L", "P": "RGB"}
#: Modes of depth, which are not converted: 16 bits, and floats, which only TIFF files have.
_DEPTH_DTYPES = {"I;16": np.uint16, "I;16B": np.uint16, "F": np.float32}
_SUPPORTED = frozenset([*_MODES.values(), *_DEPTH_DTYPES])
#: Larger images are left to Pillow, which refuses those that would need too much memory.
_MAX_JPEG_PIXELS = 1 << 24
#: The markers in a JPEG file (ITU T.81, table B.1) of the frame headers of the usual encodings, and of the segments
#: that may precede them: tables, restart intervals, application data and comments.
_JPEG_FRAMES, _JPEG_SEGMENTS = {0xC0, 0xC1, 0xC2}, {0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE}


def decode_image(content: bytes, pixels: ArraySpec | None = None) -> np.ndarray:
    """Returns the pixels of a PNG, JPEG, WebP or TIFF file: uint8 `[H, W, C]`, or `[H, W, 1]` of uint16 or float32.

    Palettes and bits are expanded. Greyscale becomes colour and an alpha channel is added or left out as the spec
    requires. Nothing else is converted. The orientation in EXIF data is ignored, as by TensorFlow.

    Args:
      content: the file.
      pixels: the spec of the result; None for that of the file.

    Raises:
      ValueError: If the file is damaged, is of a different format or animated, or has a different size, or colours or
        a number of bits that the spec cannot represent.
    """
    from PIL import Image

    shape = _find_jpeg_shape(content)
    try:
        if shape is None or shape[0] * shape[1] > _MAX_JPEG_PIXELS:
            image: Any = Image.open(io.BytesIO(content), formats=_FORMATS)
            _require_size(image.size, pixels)
            if getattr(image, "n_frames", 1) > 1:
                raise _UnsuitableError(f"the image must not be animated, got {image.n_frames} frames")
        else:  # Takes half as long, because Pillow's own reading of the header is slow.
            _require_size(shape[1::-1], pixels)
            mode = _MODES[shape[2]]
            image = Image.frombytes(mode, shape[1::-1], content, "jpeg", mode, "")
        decoded = np.asarray(_convert(image, None if pixels is None else pixels.shape[2]))
        decoded = decoded.astype(decoded.dtype.newbyteorder("="), copy=False)
    except _UnsuitableError:
        raise
    except Image.UnidentifiedImageError as error:
        kinds = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
        raise _UnsuitableError(f"the image must be a {kinds} file, got {content[:8]!r}") from error
    except Exception as error:  # Pillow lets through any error of its decoders.
        raise _UnsuitableError(f"the image is damaged ({error})") from error
    decoded = decoded[..., None] if decoded.ndim == 2 else decoded
    if pixels is not None and (decoded.shape, decoded.dtype) != (pixels.shape, pixels.dtype):
        raise _UnsuitableError(f"the image must be {describe(pixels)}, got {describe(decoded)}")
    return decoded


class _UnsuitableError(ValueError):
    """A file that is damaged or does not match the spec."""


def _require_size(size: tuple[int, int], pixels: ArraySpec | None) -> None:
    if pixels is not None and size != pixels.shape[1::-1]:
        raise _UnsuitableError(f"the image must be {pixels.shape[1]}x{pixels.shape[0]}, got {size[0]}x{size[1]}")


def _convert(image: Any, channels: int | None) -> Any:
    """Returns an image in the mode of a number of channels, or in its original mode, if no colours are lost."""
    mode = _EXPANDED.get(image.mode, image.mode)
    if mode not in _SUPPORTED:
        raise _UnsuitableError(f"the image must be greyscale or RGB, got the colour space {mode}")
    if channels is None:
        mode += "A" if image.mode == "P" and image.has_transparency_data else ""
    elif mode in ("L", "LA") or (mode not in _DEPTH_DTYPES and channels > 2):
        mode = _MODES.get(channels, mode)
    return image if mode == image.mode else image.convert(mode)


def decode_images(files: Sequence[bytes], pixels: ArraySpec) -> np.ndarray:
    """Decodes images with Pillow; see `Decoder`."""
    shape: Any = pixels.shape
    images = np.zeros((len(files), *shape), pixels.dtype)
    for place, file in enumerate(files):
        if file:
            images[place] = decode_image(file, pixels)
    return images


def keep_files(files: Sequence[bytes], pixels: ArraySpec) -> np.ndarray:
    """Returns image files as objects `[N]`, without decoding them; see `Decoder`."""
    return np.array(files, object)


def decode_column(
    files: Sequence[bytes], pixels: ArraySpec, decode: Decoder, locate: Callable[[int], str], advice: str
) -> np.ndarray:
    """Returns the result of a decoder, which must have the spec.

    Args:
      files: image files.
      pixels: the spec of one image.
      decode: the decoder.
      locate: function that returns the name of the file at a place in `files`, for messages.
      advice: the advice about a file that does not match, for messages.

    Raises:
      SourceError: If a file does not match the spec, or the decoder returns something else.
    """
    try:
        images = np.asarray(decode(files, pixels))
    except Exception as error:  # Decoders do not say which file they failed for.
        for place, file in enumerate(files):
            try:
                decode_images([file], pixels)
            except _UnsuitableError as reason:
                raise SourceError(f"{locate(place)}: {reason}; {advice}") from error
        raise
    expected = ArraySpec((len(files), *pixels.shape), pixels.dtype)
    if decode is not keep_files and ArraySpec(images.shape, images.dtype) != expected:
        sentence = f"must return {describe(expected)} for {locate(0)}, got {describe(images)}"
        raise SourceError(sentence, about="decode")
    return images


def encode_png(image: np.ndarray) -> bytes:
    """Returns the PNG file of an image `[H, W]` or `[H, W, C]`."""
    from PIL import Image

    stream = io.BytesIO()
    pixels = image[:, :, 0] if image.shape[2:] == (1,) else image
    # Level 1 takes a third of the time of the default for a tenth more bytes.
    Image.fromarray(pixels).save(stream, format="PNG", compress_level=1)
    return stream.getvalue()


def find_dtype(content: bytes) -> np.dtype:
    """Returns the dtype of the pixels of a file: uint8, or that of greyscale of more bits; uint8 if it is damaged."""
    from PIL import Image

    if content.startswith((b"II*\0", b"MM\0*")):
        with contextlib.suppress(Exception):  # Pillow lets through any error of its decoders.
            return np.dtype(_DEPTH_DTYPES.get(Image.open(io.BytesIO(content), formats=["TIFF"]).mode, np.uint8))
    return np.dtype(np.uint16 if content.startswith(b"\x89PNG") and content[24:26] == b"\x10\0" else np.uint8)


def needs_no_conversion(content: bytes, pixels: ArraySpec) -> bool:
    """Returns whether a file is PNG or JPEG with the channels and bits of a spec, so that no decoder converts it."""
    if content.startswith(b"\x89PNG"):
        return content[24:26] == bytes((8 * pixels.dtype.itemsize, _PNG_COLOURS.get(pixels.shape[2] or 0, 0)))
    return pixels.dtype == np.uint8 and _find_jpeg_shape(content) == pixels.shape


def _find_jpeg_shape(content: bytes) -> tuple[int, int, int] | None:
    """Returns `(H, W, C)` of a JPEG file with 8 bits per sample and 1 or 3 channels; None for all other files."""
    place = 2 if content.startswith(b"\xff\xd8") else len(content)
    while place + 10 <= len(content) and content[place] == 0xFF:
        kind, size = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        if kind in _JPEG_FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", content, place + 4)
            return (height, width, channels) if bits == 8 and channels in (1, 3) and height and width else None
        if kind not in _JPEG_SEGMENTS or size < 2:
            return None
        place += 2 + size
    return None
