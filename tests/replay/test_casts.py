"""Tests of casts of pushed values to the dtypes of the buffer: lossless casts and errors."""

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import ArraySpec


@pytest.fixture
def push_and_read(make):
    """Provides a function that pushes values of a field one by one and returns the stored values."""

    def run(*values, spec=None):
        buffer = make(spec=None if spec is None else {"x": spec}, with_replacement=False)
        for value in values:
            buffer.append({"x": value})
        sampled = sorted(buffer.sample(len(values)), key=lambda s: s["replay_buffer_idx"])
        return np.array([s["x"] for s in sampled])

    return run


F32, F64, I64 = (
    ArraySpec((), np.dtype(np.float32)),
    ArraySpec((), np.dtype(np.float64)),
    ArraySpec((), np.dtype(np.int64)),
)


def test_rewards_can_start_with_an_integer_if_the_spec_is_a_float(push_and_read):
    for first in (0.5, 0, np.float64(1)):
        rewards = (first, 0.5, 1, 0, np.float64(0.25))
        stored = push_and_read(*rewards, spec=F64)
        assert stored.dtype == np.float64 and stored.tolist() == [float(r) for r in rewards]


@pytest.mark.parametrize(
    ("first", "second", "stored"),
    [
        (np.float32(1), 0.1, np.float32(0.1)),  # Python floats are rounded.
        (np.float32(1), 3, np.float32(3)),
        (np.float64(1), np.float32(0.5), np.float64(0.5)),
        (np.int64(1), np.int16(5), np.int64(5)),
        (np.int64(1), True, np.int64(1)),
        (np.int32(1), 7, np.int32(7)),
        (np.int32(1), 2.0, np.int32(2)),
        (False, 1, True),
        (np.zeros(2, np.float32), [0.5, 1.5], np.array([0.5, 1.5], np.float32)),
        ([0.5, 1], np.array([1, 2]), np.array([1.0, 2.0])),
        (np.zeros(2, np.float32), (1, 2), np.array([1, 2], np.float32)),
        (np.zeros(2), np.ones(2, np.int32), np.ones(2)),
        (np.zeros((1, 2)), [[1, 2]], np.array([[1.0, 2.0]])),
        (np.float32(0), tf.constant(2.5), np.float32(2.5)),
        (np.zeros(2, np.float32), tf.constant([2.5, 1.0]), np.array([2.5, 1.0], np.float32)),
        (np.zeros(2, np.float32), np.ones(2, ">f4"), np.ones(2, np.float32)),
        (np.complex64(1j), 2.5, np.complex64(2.5)),
    ],
)
def test_lossless_casts_are_applied(push_and_read, first, second, stored):
    got, expected = push_and_read(first, second)[1], np.asarray(stored)
    assert got.dtype == expected.dtype and got.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            np.int64(1),
            0.5,
            r"item 0\['x'\] is float64 \[\], but buffer 'demo' expects int64 \[\]; cast or reshape it before",
        ),
        (1, 0.5, r"item 0\['x'\] is float64 \[\], but buffer 'demo' expects int64 \[\]; cast or reshape it before"),
        (1, np.nan, r"is float64 \[\], but .* expects int64"),
        (1, np.float64(1), r"is float64 \[\], but .* expects int64"),
        (np.uint8(1), 256, r"is int64 \[\], but buffer 'demo' expects uint8 \[\]"),
        (np.uint8(1), -1, r"is int64 \[\], but .* expects uint8"),
        (np.float32(1), 1e300, r"is float64 \[\], but .* expects float32"),
        (np.float32(1), np.float64(0.5), r"is float64 \[\], but .* expects float32"),
        (np.float64(1), np.int64(2**53 + 1), r"is int64 \[\], but .* expects float64"),
        (np.float64(1), 2**53 + 1, r"is int64 \[\], but .* expects float64"),
        (np.zeros(2, np.float32), np.zeros(2), r"is float64 \[2\], but .* expects float32 \[2\]"),
        (np.zeros(2, np.float32), [1.0, 2.0, 3.0], r"is float64 \[3\], but .* expects float32 \[2\]"),
        (np.zeros(2, np.float32), 1.0, r"is float64 \[\], but .* expects float32 \[2\]"),
        (np.float32(1), 1j, r"is complex128 \[\], but .* expects float32"),
        (1, 10**30, "is an integer that does not fit in 64 bits, but .* expects int64"),
        (np.float32(1), "text", "is a string, but .* expects float32"),
        (np.zeros(2), [[1.0], [2.0, 3.0]], "is a list whose rows have different lengths, but .* expects float64"),
        (np.float32(1), None, "is None, but .* expects float32"),
    ],
)
def test_lossy_casts_raise_and_change_nothing(make, first, second, message):
    buffer = make()
    buffer.append({"x": first})
    with pytest.raises(SpecMismatchError, match=message):
        buffer.append({"x": second})
    assert buffer.push_count == 1 and buffer.append({"x": first}) == "demo_1"


def test_explicit_spec_determines_the_dtype(push_and_read, make):
    assert push_and_read(1, 0.5, np.float16(2), spec=F32).dtype == np.float32
    with pytest.raises(SpecMismatchError, match=r"item 0\['x'\] is float64 \[\], but buffer 'demo' expects int64 \[\]"):
        push_and_read(1, 0.5, spec=I64)
    assert str(make(spec={"x": tf.TensorSpec((3,), tf.float32)}).spec["x"]) == "float32 [3]"


def test_items_with_different_dtypes_can_be_pushed_together(push_and_read, make):
    buffer = make(with_replacement=False)
    buffer.extend([{"x": v} for v in (np.float32(1), 2, 0.5, np.float16(4))])
    assert sorted(s["x"] for s in buffer.sample(4)) == [0.5, 1, 2, 4]
    assert str(buffer.spec["x"]) == "float32 []"
    rows = make(with_replacement=False)
    rows.extend([{"x": np.zeros(2)}, {"x": np.ones(2, np.int64)}, {"x": [2, 3]}])
    assert sorted(s["x"].tolist() for s in rows.sample(3)) == [[0, 0], [1, 1], [2, 3]]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(2, 0, 1),
        lambda x: x[::2],
        lambda x: np.asfortranarray(x),
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: x[:0],
    ],
)
def test_non_contiguous_arrays_are_stored(make, view):
    images = [view(np.arange(24, dtype=np.uint8).reshape(4, 2, 3) + n) for n in range(3)]
    buffer = make(sample_min_limit_ratio=0)
    buffer.append({"x": np.ascontiguousarray(images[0])})
    buffer.extend([{"x": image} for image in images])
    assert buffer.push_count == 4
    for s in buffer.sample(20):
        number = max(int(s["replay_unique_id"].removeprefix("demo_")) - 1, 0)
        np.testing.assert_array_equal(s["x"], images[number])


def test_extend_columns_accepts_lists_and_tensors(make):
    buffer = make(sample_min_limit_ratio=0)
    numbers = buffer.extend_columns({"o": [[1.0, 2.0], [3.0, 4.0]], "r": [0.5, 1], "t": tf.constant([1, 2])})
    assert numbers.tolist() == [0, 1] and len(buffer) == 2
    assert sorted(buffer.sample_batch(50).data["o"][:, 0].tolist())[::49] == [1.0, 3.0]
    with pytest.raises(
        SpecMismatchError,
        match=r"columns must have the leading axes \[N\] in all fields for buffer 'demo', got \[0\], \[2\]",
    ):
        make().extend_columns({"o": np.zeros((0, 3)), "r": np.zeros(2)})
    assert len(make().extend_columns({"o": np.zeros((0, 3)), "r": []})) == 0
    with pytest.raises(ValueError, match="an item of buffer 'demo' must have at least one field"):
        make().extend_columns({})
