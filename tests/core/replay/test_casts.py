"""What a buffer takes for its fields: what is cast, what is widened, and what is refused because it would be lost."""

import numpy as np
import pytest
import tensorflow as tf
from replayed import buffers

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.replay import AdvancedReplayBuffer
from rlds2reverb.specs import ArraySpec


@pytest.fixture
def make():
    with buffers() as build:
        yield build


@pytest.fixture
def hold(make):
    """Pushes values of a field one by one, and gives what is stored."""

    def run(*values, spec=None):
        buffer = make(spec=None if spec is None else {"x": spec}, replace=False)
        for value in values:
            buffer.append({"x": value})
        sampled = sorted(buffer.sample(len(values)), key=lambda s: s["replay_buffer_idx"])
        return np.array([s["x"] for s in sampled])

    return run


F32, I64 = ArraySpec((), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int64))


def test_a_loop_of_gym_may_begin_with_either(hold):
    for rewards in ((0.5, 1, 0), (1, 0.5, 0), (0, 0, np.float64(0.25))):
        stored = hold(*rewards)
        assert stored.dtype == np.float64 and stored.tolist() == [float(r) for r in rewards]


def test_widening_reaches_what_is_stored_and_saved(make, tmp_path):
    buffer = make(max_size=3, replace=False)
    buffer.extend([{"x": 1, "y": [1, 2]}, {"x": 2, "y": [3, 4]}])
    assert str(buffer.spec["x"]) == "int64 []" and str(buffer.spec["y"]) == "int64 [2]"
    buffer.save_data(tmp_path / "saved")
    buffer.extend_columns({"x": np.array([0.5, 1.5]), "y": np.array([[5, 6], [7, 8]])})
    assert str(buffer.spec["x"]) == "float64 []" and str(buffer.spec["y"]) == "int64 [2]"
    assert sorted(s["x"] for s in buffer.sample(3)) == [0.5, 1.5, 2.0]
    buffer.load_data(tmp_path / "saved")
    buffer.append({"x": 0.25, "y": [9, 9]})
    assert sorted(s["x"] for s in buffer.sample(3)) == [0.25, 1.0, 2.0]


def test_an_integer_that_is_no_float_is_not_widened(make):
    buffer = make()
    buffer.append({"x": 2**53 + 1})
    with pytest.raises(
        SpecMismatchError, match=r"item\['x'\] is a float, buffer 'demo' holds int64 there and some above"
    ):
        buffer.append({"x": 0.5})
    assert buffer.push_count == 1 and buffer.append({"x": 3}) == "demo_1"
    with pytest.raises(
        SpecMismatchError, match=r"item\['x'\] has integers above 2.53 among floats, buffer 'demo' wants"
    ):
        make().extend([{"x": 1}, {"x": 2**53 + 1}, {"x": 0.5}])


@pytest.mark.parametrize(
    ("first", "then", "stored"),
    [
        (np.float32(1), 0.1, np.float32(0.1)),  # Python's floats are rounded, as everywhere
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
def test_casts_that_lose_nothing_are_made(hold, first, then, stored):
    got = hold(first, then)[1]
    assert (
        got.dtype == np.asarray(stored).dtype and got.tolist() == stored.tolist()
        if hasattr(stored, "tolist")
        else got == stored
    )


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        (
            np.int64(1),
            0.5,
            r"item 0\['x'\] is float64 \[\], but buffer 'demo' expects int64 \[\]; cast or reshape it before",
        ),
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
        (1, float("nan"), None),  # which widens
        (1, 10**30, "is string"),
        (np.float32(1), "text", "is str"),
        (np.float32(1), None, "is string|is object"),
    ],
)
def test_what_would_be_lost_is_refused_and_changes_nothing(make, first, then, told):
    buffer = make()
    buffer.append({"x": first})
    if told is None:
        assert buffer.append({"x": then}) == "demo_1"
        return
    with pytest.raises(SpecMismatchError, match=told):
        buffer.append({"x": then})
    assert buffer.push_count == 1 and buffer.append({"x": first}) == "demo_1"


def test_a_given_spec_is_kept(hold, make):
    assert hold(1, 0.5, np.float16(2), spec=F32).dtype == np.float32
    with pytest.raises(SpecMismatchError, match=r"item 0\['x'\] is float64 \[\], but buffer 'demo' expects int64 \[\]"):
        hold(1, 0.5, spec=I64)
    assert str(make(spec={"x": tf.TensorSpec((3,), tf.float32)}).spec["x"]) == "float32 [3]"


def test_one_batch_may_mix_what_fits(hold, make):
    buffer = make(replace=False)
    buffer.extend([{"x": v} for v in (np.float32(1), 2, 0.5, np.float16(4))])
    assert sorted(s["x"] for s in buffer.sample(4)) == [0.5, 1, 2, 4]
    assert str(buffer.spec["x"]) == "float32 []"
    rows = make(replace=False)
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
def test_arrays_that_are_no_single_run_of_memory_come_back(make, view):
    pictures = [view(np.arange(24, dtype=np.uint8).reshape(4, 2, 3) + n) for n in range(3)]
    buffer = make(sample_min_limit_ratio=0)
    buffer.append({"x": np.ascontiguousarray(pictures[0])})
    buffer.extend([{"x": picture} for picture in pictures])
    assert buffer.push_count == 4
    for s in buffer.sample(20):
        number = max(int(s["replay_unique_id"].removeprefix("demo_")) - 1, 0)
        np.testing.assert_array_equal(s["x"], pictures[number])


def test_columns_may_be_lists_and_tensors(make):
    buffer = make(sample_min_limit_ratio=0)
    numbers = buffer.extend_columns({"o": [[1.0, 2.0], [3.0, 4.0]], "r": [0.5, 1], "t": tf.constant([1, 2])})
    assert numbers.tolist() == [0, 1] and buffer.count() == 2
    assert sorted(buffer.sample_batch(50).data["o"][:, 0].tolist())[::49] == [1.0, 3.0]
    with pytest.raises(
        SpecMismatchError, match=r"columns have the leading axes \[0\], \[2\], but buffer 'demo' expects \[N\] in"
    ):
        make().extend_columns({"o": np.zeros((0, 3)), "r": np.zeros(2)})
    assert len(make().extend_columns({"o": np.zeros((0, 3)), "r": []})) == 0
    with pytest.raises(ValueError, match="an item of buffer 'demo' has no fields"):
        make().extend_columns({})


def test_a_spec_that_was_widened_is_that_of_the_checkpoint(tmp_path):
    for count in (1, 2):
        with AdvancedReplayBuffer("demo", spec={"r": 1}, checkpoint_root=tmp_path) as buffer:
            buffer.append({"r": 0.5})
            buffer.checkpoint()
            assert buffer.count() == count and buffer.spec["r"].dtype == np.float64
