"""Record files: those of TensorFlow byte for byte, and damage is found."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from rlds2reverb._encoding import tfrecords


def written_by_tensorflow(records, path):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record.tobytes())
    return path.read_bytes()


def alike(num_records, size, num_different, num_copies=1):
    """Records that are the same in all of them but for some random bytes, which a record holds several times over."""
    generator = np.random.default_rng(num_records * size + num_different)
    records = np.tile(generator.integers(0, 256, size, np.uint8), (num_records, 1))
    places = generator.permutation(size)[:num_different]
    records[:, places] = generator.integers(0, 256, (num_records, len(places)), np.uint8)
    return np.tile(records, (1, num_copies))


@pytest.mark.parametrize(
    ("num_records", "size", "num_different"),
    [
        (0, 10, 10),
        (3, 0, 0),
        (1, 1, 1),
        (5, 300, 300),
        (63, 50, 50),  # the last number for which each checksum is made on its own
        (64, 50, 50),  # the first one for which they are made from tables
        (64, 50, 0),
        (64, 0, 0),
        (64, 1, 1),
        (200, 3000, 40),
        (100, 4096, 40),  # the longest for which there are tables
        (100, 4097, 40),
        (100, 401, 400),
        (100, 500, 500),  # too many bytes that differ
        (70, 3000, 3000),
    ],
)
def test_records_are_framed_as_tensorflow_does(tmp_path, num_records, size, num_different):
    records = alike(num_records, size, num_different)
    assert tfrecords.framed(records).tobytes() == written_by_tensorflow(records, tmp_path / "records")


@given(st.integers(1, 130), st.integers(1, 300), st.integers(0, 300), st.integers(1, 4))
@examples(60)
def test_both_ways_to_the_checksums_agree(num_records, size, num_different, num_copies):
    records = alike(num_records, size, num_different, num_copies)
    one_by_one = np.concatenate([tfrecords.checksums(record[None]) for record in records])
    np.testing.assert_array_equal(tfrecords.checksums(records), one_by_one)


def test_a_checksum_is_crc_32c():
    """RFC 3720, appendix B.4: 32 bytes of zeros, of ones, rising, falling."""
    rising = np.arange(32, dtype=np.uint8)
    records = np.stack([np.zeros(32, np.uint8), np.full(32, 255, np.uint8), rising, rising[::-1]])
    wanted = np.array([0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0x113FDB5C], np.uint32)
    np.testing.assert_array_equal(tfrecords.checksums(records), wanted)
    np.testing.assert_array_equal(tfrecords.checksums(np.tile(records, (20, 1))), np.tile(wanted, 20))


# --- reading


@pytest.fixture
def three(tmp_path):
    """A file with a record of 5 bytes (21 with its frame), an empty one (16) and one of 300 (316)."""
    path = tmp_path / "records"
    records = [np.arange(5, dtype=np.uint8), np.zeros(0, np.uint8), np.arange(300, dtype=np.uint16).astype(np.uint8)]
    written_by_tensorflow(records, path)
    return path, [record.tobytes() for record in records]


def test_records_are_read_back(three):
    path, records = three
    assert list(tfrecords.read(path)) == records


@given(st.integers(1, 70), st.integers(1, 50), st.integers(0, 50))
@examples(20)
def test_what_was_framed_is_read_back(tmp_path_factory, num_records, size, num_different):
    records = alike(num_records, size, num_different)
    path = tmp_path_factory.mktemp("records") / "records"
    path.write_bytes(tfrecords.framed(records).tobytes())
    assert list(tfrecords.read(path)) == [record.tobytes() for record in records]


def test_a_file_without_records_has_none(tmp_path):
    (tmp_path / "records").touch()
    assert list(tfrecords.read(tmp_path / "records")) == []


@pytest.mark.parametrize(
    ("place", "num_good"),
    [
        (37, 2),  # the length of the third record
        (44, 2),  # its highest byte: far more than the file has
        (45, 2),  # the checksum of the length
        (49, 2),  # the first byte of the body
        (348, 2),  # the last one
        (349, 2),  # its checksum
        (352, 2),
        (21, 1),  # the length of the empty record
        (0, 0),
        (16, 0),
    ],
)
def test_a_flipped_bit_is_named_with_its_place(three, place, num_good):
    path, records = three
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)
    reading = tfrecords.read(path)
    assert [next(reading) for _ in range(num_good)] == records[:num_good]
    with pytest.raises(ValueError, match=rf"{path} is damaged near byte \d+") as error:
        next(reading)
    assert int(str(error.value).split()[-1]) > place


@pytest.mark.parametrize("size", [1, 7, 8, 11, 12, 20, 22, 33, 36, 38, 48, 49, 100, 348, 349, 352])
def test_a_file_that_was_cut_off_within_a_record_is_damaged(three, size):
    path, _ = three
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="is damaged near byte"):
        list(tfrecords.read(path))
