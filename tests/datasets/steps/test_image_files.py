"""Tests of the decoding of images: to the spec of the first one as TensorFlow decodes them, or with a named error."""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from reference_impls import episode

from rlds2reverb import SourceError, Windows, batches, load
from rlds2reverb.datasets.steps.image_files import decode_image, decode_images
from rlds2reverb.datasets.steps.stores import make_store
from rlds2reverb.types.specs import ArraySpec

SHAPE = (9, 17)
PIXELS = np.random.default_rng(0).integers(0, 255, (*SHAPE, 4), np.uint8)
RGB = Image.fromarray(PIXELS[..., :3].copy())
GREY = RGB.convert("L")


def encode(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def encode_deep_png(kind, channels):
    """Returns a PNG file of 16 bits per channel, which Pillow cannot write for more than one."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    values = np.random.default_rng(1).integers(0, 1 << 16, (SHAPE[0], SHAPE[1] * channels)).astype(">u2")
    header = struct.pack(">IIBBBBB", SHAPE[1], SHAPE[0], 16, kind, 0, 0, 0)
    content = zlib.compress(b"".join(b"\0" + row.tobytes() for row in values))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
FRAMES = {"save_all": True, "append_images": [RGB.rotate(180)]}
#: Files of one size, and the numbers of channels to which they can be decoded, the file's own first.
SUITABLE = {
    "colour": (encode(RGB), (3, 4)),
    "colour and alpha": (encode(Image.fromarray(PIXELS)), (4, 3)),
    "grey": (encode(GREY), (1, 3, 4)),
    "grey and alpha": (encode(Image.fromarray(PIXELS[..., :2].copy(), "LA")), (2, 1, 3, 4)),
    "bits": (encode(GREY.convert("1")), (1, 3)),
    "palette": (encode(RGB.quantize(16)), (3,)),
    "palette of 4 bits": (encode(RGB.quantize(16), bits=4), (3,)),
    "palette and alpha": (encode(RGB.quantize(16), transparency=3), (4, 3)),
    "transparent colour": (encode(RGB, transparency=(1, 2, 3)), (3, 4)),
    "transparent grey": (encode(GREY, transparency=3), (1, 3, 4)),
    "deep colour": (encode_deep_png(2, 3), (3, 4)),
    "deep colour and alpha": (encode_deep_png(6, 4), (4, 3)),
}
UNSUITABLE = {
    "deep grey": (encode_deep_png(0, 1), r"must be uint8 \[9, 17, 3\], got uint16 \[9, 17, 1\]"),
    "CMYK": (encode(RGB.convert("CMYK"), "JPEG"), "must be greyscale or RGB, got the colour space CMYK"),
    "GIF": (encode(RGB, "GIF"), r"must be a PNG, JPEG, WEBP or TIFF file, got b'GIF"),
    "animated GIF": (encode(RGB, "GIF", **FRAMES), "must be a PNG, JPEG, WEBP or TIFF file"),
    "BMP": (encode(RGB, "BMP"), "must be a PNG, JPEG, WEBP or TIFF file, got b'BM"),
    "animated WebP": (encode(RGB, "WEBP", **FRAMES), "must not be animated, got 2 frames"),
    "text": (b"lift the can", "must be a PNG, JPEG, WEBP or TIFF file, got b'lift the'"),
    "truncated JPEG": (encode(RGB, "JPEG")[:-40], "is damaged"),
    "truncated PNG": (encode(RGB)[:-40], "is damaged"),
    "narrow": (encode(RGB.resize((1, 9))), "must be 17x9, got 1x9"),
    "narrow JPEG": (encode(RGB.resize((1, 9)), "JPEG"), "must be 17x9, got 1x9"),
    "transposed": (encode(RGB.transpose(Image.Transpose.TRANSPOSE)), "must be 17x9, got 9x17"),
}


def make_spec(channels, dtype=np.uint8):
    return ArraySpec((*SHAPE, channels), np.dtype(dtype))


@pytest.mark.parametrize("name", SUITABLE)
def test_png_files_are_decoded_as_by_tensorflow(name):
    file, (own, *_) = SUITABLE[name]
    np.testing.assert_array_equal(decode_image(file), tf.io.decode_image(file).numpy())
    for channels in (1, 3, 4):
        if channels in SUITABLE[name][1]:
            expected = tf.io.decode_image(file, channels=channels).numpy()
            np.testing.assert_array_equal(decode_image(file, make_spec(channels)), expected)
        elif channels == 1 and own >= 3:
            with pytest.raises(ValueError, match=r"must be uint8 \[9, 17, 1\], got uint8 \[9, 17, [34]\]"):
                decode_image(file, make_spec(channels))


def test_interlaced_and_deep_grey_files_keep_their_values():
    deep = encode_deep_png(0, 1)
    np.testing.assert_array_equal(decode_image(deep), tf.io.decode_image(deep, dtype=tf.uint16).numpy())
    np.testing.assert_array_equal(decode_image(deep, make_spec(1, np.uint16)), decode_image(deep))
    with pytest.raises(ValueError, match=r"must be uint16 \[9, 17, 1\], got uint8 \[9, 17, 1\]"):
        decode_image(encode(GREY), make_spec(1, np.uint16))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("RGB", {"progressive": True, "exif": b"Exif\0\0" + bytes(99), "comment": b"a comment"}),
        ("RGB", {"subsampling": 0, "restart_marker_blocks": 1}),
        ("RGB", {"exif": TURNED}),
        ("L", {"optimize": True}),
    ],
)
def test_jpeg_files_are_decoded_as_by_pillow(mode, options):
    """TensorFlow's pixels differ by a few numbers, because it has a faster, less exact inverse transform."""
    file = encode(RGB.convert(mode), "JPEG", **options)
    expected = np.asarray(Image.open(io.BytesIO(file)))
    np.testing.assert_array_equal(decode_image(file), expected.reshape(*SHAPE, -1))
    np.testing.assert_array_equal(
        decode_image(file, make_spec(3)), np.asarray(Image.fromarray(expected).convert("RGB"))
    )
    close = tf.io.decode_image(file, channels=3).numpy().astype(int)
    assert np.abs(decode_image(file, make_spec(3)) - close).max() < 16


def test_damaged_headers_raise():
    content = encode(RGB, "JPEG")
    size = content.index(b"\xff\xc0") + 5
    for damaged in (content[:30], content[:size] + b"\xff\xff\xff\xff" + content[size + 4 :], b"\xff\xd8"):
        with pytest.raises(ValueError, match="the image "):
            decode_image(damaged)


def make_source(*files):
    """Returns a source of two episodes of 4 steps, whose images are repeated up to the last, which is the last file."""
    steps = []
    for names in ([files[0]] * 4, [*files, *[files[-1]] * 4][:4]):
        images = np.empty(4, object)
        images[:] = names
        steps.append({**episode(4, terminal=True), "observation": {"camera": images, "x": np.arange(4.0)}})
    return load(steps)


def read_images(source, **options):
    (batch,) = batches(source, 2, items=Windows(4, ("observation",)), epochs=1, **options)
    return batch["observation"]["camera"][
        np.argmax([not np.array_equal(*pair[:2]) for pair in batch["observation"]["camera"]])
    ]


@pytest.mark.parametrize("name", [name for name in SUITABLE if 3 in SUITABLE[name][1]])
def test_images_of_other_modes_have_the_spec_of_the_first_one(name):
    file = SUITABLE[name][0]
    images = read_images(make_source(encode(RGB), file))
    np.testing.assert_array_equal(images[1], tf.io.decode_image(file, channels=3).numpy())


@pytest.mark.parametrize("name", UNSUITABLE)
def test_unsuitable_images_raise_naming_the_place_from_memory_and_stores(name, tmp_path):
    file, message = UNSUITABLE[name]
    source = make_source(encode(RGB), encode(RGB), file)
    message = rf"step\['observation'\]\['camera'\] of episode 1, step 2: the image {message}.*; convert the images to"
    with pytest.raises(SourceError, match=message):
        read_images(source)
    if name in ("GIF", "narrow"):
        with pytest.raises(SourceError, match=message):
            list(load(make_store(source, tmp_path)))


FILES = {**{name: case[0] for name, case in SUITABLE.items()}, **{name: case[0] for name, case in UNSUITABLE.items()}}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("spec", [make_spec(1), make_spec(3), make_spec(1, np.uint16)], ids=str)
def test_training_decodes_and_refuses_the_same_files(name, spec):
    from rlds2reverb.learners import stored_items

    try:
        expected = decode_images([b"", FILES[name]], spec)
    except ValueError:
        with pytest.raises((ValueError, tf.errors.OpError)):
            stored_items.decode_images([b"", FILES[name]], spec)
    else:
        np.testing.assert_array_equal(stored_items.decode_images([b"", FILES[name]], spec), expected)


@pytest.mark.parametrize("name", UNSUITABLE)
def test_training_names_unsuitable_images(name):
    from rlds2reverb.learners.stored_items import decode_images

    with pytest.raises(SourceError, match="of episode 1, step 2: the image " + UNSUITABLE[name][1]):
        read_images(make_source(encode(RGB), encode(RGB), UNSUITABLE[name][0]), decode=decode_images)


def test_unsuitable_first_images_raise_naming_the_field():
    with pytest.raises(
        SourceError, match=r"step\['observation'\]\['camera'\] of the first episode: the image must be grey"
    ):
        read_images(make_source(UNSUITABLE["CMYK"][0]))


def test_results_of_other_decoders_have_the_spec():
    for wrong in (np.zeros((1, *SHAPE, 3)), np.zeros((1, 3), np.uint8)):
        with pytest.raises(ValueError, match=r"decode must return uint8 \[\d, 9, 17, 3\] for step.*, got"):
            read_images(make_source(encode(RGB)), decode=lambda files, pixels, wrong=wrong: wrong)
