"""Tests of the decoding of images."""

import io

import numpy as np
import pytest
from PIL import Image

from rlds2reverb.store.layout import decode_image

PIXELS = np.random.default_rng(0).integers(0, 255, (9, 17, 3), np.uint8)


@pytest.mark.parametrize(
    ("mode", "format", "options"),
    [
        ("RGB", "JPEG", {}),
        ("RGB", "JPEG", {"progressive": True, "exif": b"Exif\0\0" + bytes(99), "comment": b"a comment"}),
        ("RGB", "JPEG", {"subsampling": 0, "restart_marker_blocks": 1}),
        ("L", "JPEG", {"optimize": True}),
        ("CMYK", "JPEG", {}),
        ("RGB", "PNG", {}),
    ],
)
def test_decode_image_matches_pillow(mode, format, options):
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, format, **options)
    expected = np.asarray(Image.open(file))
    np.testing.assert_array_equal(decode_image(file.getvalue()), expected.reshape(9, 17, -1))


def test_decode_image_raises_for_damaged_files():
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "JPEG")
    content = file.getvalue()
    size = content.index(b"\xff\xc0") + 5
    for damaged in (
        content[:-40],
        content[:30],
        content[:size] + b"\xff\xff\xff\xff" + content[size + 4 :],
        b"\xff\xd8",
    ):
        with pytest.raises((Image.DecompressionBombError, OSError, ValueError)):
            decode_image(damaged)
