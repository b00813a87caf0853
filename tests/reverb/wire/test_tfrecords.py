"""Tests of record files: equality with TensorFlow's files, byte for byte, and detection of damage."""

import io

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, strategies as st
from properties import examples

from rlds2reverb.reverb.wire import tfrecords


def write_with_tensorflow(records, path):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record.tobytes())
    return path.read_bytes()


def make_similar_records(num_records, size, num_different):
    """Returns records that differ only in some random bytes."""
    generator = np.random.default_rng(num_records * size + num_different)
    records = np.tile(generator.integers(0, 256, size, np.uint8), (num_records, 1))
    positions = generator.permutation(size)[:num_different]
    records[:, positions] = generator.integers(0, 256, (num_records, len(positions)), np.uint8)
    return records


@pytest.mark.parametrize(
    ("num_records", "size", "num_different"),
    [
        (0, 10, 10),
        (3, 0, 0),
        (1, 1, 1),
        (5, 300, 300),
        (64, 50, 0),
        (64, 0, 0),
        (200, 3000, 40),
        (70, 3000, 3000),
    ],
)
def test_framed_records_match_tensorflow(tmp_path, num_records, size, num_different):
    records = make_similar_records(num_records, size, num_different)
    assert tfrecords.frame(records).tobytes() == write_with_tensorflow(records, tmp_path / "records")


def test_checksums_match_rfc_3720():
    """The vectors are those of RFC 3720, appendix B.4: 32 bytes of zeros, ones, ascending and descending numbers."""
    ascending = np.arange(32, dtype=np.uint8)
    records = np.stack([np.zeros(32, np.uint8), np.full(32, 255, np.uint8), ascending, ascending[::-1]])
    expected = np.array([0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0x113FDB5C], np.uint32)
    np.testing.assert_array_equal(tfrecords.checksums(records), expected)


# --- reading


@pytest.fixture
def three_records(tmp_path):
    """Provides a file with records of 5, 0 and 300 bytes (21, 16 and 316 bytes with their frames), and the records."""
    path = tmp_path / "records"
    records = [np.arange(5, dtype=np.uint8), np.zeros(0, np.uint8), np.arange(300, dtype=np.uint16).astype(np.uint8)]
    write_with_tensorflow(records, path)
    return path, [record.tobytes() for record in records]


def test_records_written_by_tensorflow_are_read(three_records):
    path, records = three_records
    assert list(tfrecords.read_stream(io.BytesIO(path.read_bytes()), path)) == records


@given(st.integers(1, 70), st.integers(1, 50), st.integers(0, 50))
@examples(20)
def test_framed_records_are_read(tmp_path_factory, num_records, size, num_different):
    records = make_similar_records(num_records, size, num_different)
    path = tmp_path_factory.mktemp("records") / "records"
    path.write_bytes(tfrecords.frame(records).tobytes())
    assert list(tfrecords.read_stream(io.BytesIO(path.read_bytes()), path)) == [record.tobytes() for record in records]


def test_empty_file_has_no_records(tmp_path):
    (tmp_path / "records").touch()
    assert list(tfrecords.read_stream(io.BytesIO((tmp_path / "records").read_bytes()), tmp_path / "records")) == []


@pytest.mark.parametrize(
    ("position", "num_valid"),
    [
        (37, 2),  # the length of the third record
        (44, 2),  # the highest byte of that length, so that it exceeds the file
        (45, 2),  # the checksum of the length
        (49, 2),  # the first byte of the body
        (348, 2),  # the last byte of the body
        (349, 2),  # the checksum of the body
        (352, 2),
        (21, 1),  # the length of the empty record
        (0, 0),
        (16, 0),
    ],
)
@pytest.mark.drill("F22")
def test_flipped_bit_raises_with_its_position(three_records, position, num_valid):
    path, records = three_records
    content = bytearray(path.read_bytes())
    content[position] ^= 16
    path.write_bytes(content)
    reading = tfrecords.read_stream(io.BytesIO(path.read_bytes()), path)
    assert [next(reading) for _ in range(num_valid)] == records[:num_valid]
    with pytest.raises(ValueError, match=rf"{path} is damaged near byte \d+") as error:
        next(reading)
    assert int(str(error.value).split()[-1]) > position


@pytest.mark.parametrize("size", [1, 7, 8, 11, 12, 20, 22, 33, 36, 38, 48, 49, 100, 348, 349, 352])
@pytest.mark.drill("F22")
def test_file_truncated_within_a_record_raises(three_records, size):
    path, _ = three_records
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="is damaged near byte"):
        list(tfrecords.read_stream(io.BytesIO(path.read_bytes()), path))
