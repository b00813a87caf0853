"""Tests of blocks of rows read from HDF5 with various chunks and filters, against HDF5's own reading."""

import threading

import h5py
import internals
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as st_numpy
from properties import examples

from rlds2reverb.datasets.readers import hdf5_blocks
from rlds2reverb.datasets.readers.hdf5_blocks import read_blocks

GZIP = {"compression": "gzip"}
FILTERS = (GZIP, {**GZIP, "compression_opts": 0}, {**GZIP, "shuffle": True}, {"compression": "lzf"}, {})


def write_file(path, values, chunks, **filters):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=chunks, **filters)
    return path


def even_bounds(num_rows, size):
    return [(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def read_all_rows(path, bounds):
    """Returns all blocks concatenated, after comparing each with the rows that HDF5 itself reads."""
    with h5py.File(path) as file:
        blocks = [(start, stop, rows["x"]) for start, stop, rows in read_blocks({"x": file["x"]}, bounds)]
        for start, stop, rows in blocks:
            assert rows.dtype == file["x"].dtype
            np.testing.assert_array_equal(rows, file["x"][start:stop])
    assert [(start, stop) for start, stop, _ in blocks] == bounds
    return np.concatenate([rows for _, _, rows in blocks])


@pytest.fixture
def unpacking_threads(monkeypatch):
    """Provides the thread of each chunk that `read_blocks` unpacked, instead of HDF5."""
    threads = []
    original = hdf5_blocks.deflate.zlib_decompress

    def record(*arguments):
        threads.append(threading.get_ident())
        return original(*arguments)

    monkeypatch.setattr(hdf5_blocks.deflate, "zlib_decompress", record)
    return threads


@pytest.mark.slow
@examples(150)
@given(st.data())
def test_blocks_match_hdf5(tmp_path_factory, data):
    shape = data.draw(st.tuples(st.integers(1, 60), *[st.integers(1, 5)] * data.draw(st.integers(0, 3))))
    dtype = data.draw(st.sampled_from(["f4", ">f4", "f8", "f2", "i2", ">i8", "u1", "?"]))
    values = data.draw(
        st_numpy.arrays(dtype, shape, elements=st.integers(0, 1) if dtype == "?" else st.integers(0, 99))
    )
    chunks = data.draw(st.tuples(*(st.integers(1, size) for size in shape)))
    path = write_file(
        tmp_path_factory.getbasetemp() / "any.hdf5", values, chunks, **data.draw(st.sampled_from(FILTERS))
    )
    stops = sorted({*data.draw(st.lists(st.integers(1, shape[0]), max_size=8)), shape[0]})
    min_chunk_bytes, hdf5_blocks.MIN_CHUNK_BYTES = hdf5_blocks.MIN_CHUNK_BYTES, 1
    try:
        np.testing.assert_array_equal(read_all_rows(path, list(zip([0, *stops], stops, strict=False))), values)
    finally:
        hdf5_blocks.MIN_CHUNK_BYTES = min_chunk_bytes


def test_each_chunk_is_unpacked_once(tmp_path, unpacking_threads):
    """The chunks extend over several blocks."""
    path = write_file(tmp_path / "x.hdf5", np.random.rand(10_000, 3), (3_000, 2), **GZIP)
    read_all_rows(path, even_bounds(10_000, 700))
    assert len(unpacking_threads) == 4 * 2


@pytest.mark.parametrize(
    ("chunks", "filters", "reason"),
    [
        ((1_000, 2), {**GZIP, "shuffle": True}, "the bytes are shuffled"),
        ((1_000, 2), {**GZIP, "fletcher32": True}, "there are checksums"),
        ((1_000, 2), {"compression": "lzf"}, "a different compression"),
        ((100, 1), GZIP, "tasks for tiny chunks would be slow"),
        (None, {}, "no chunks"),
    ],
)
def test_hdf5_unpacks_unsupported_chunks(tmp_path, unpacking_threads, chunks, filters, reason):
    values = np.random.rand(10_000, 3)
    np.testing.assert_array_equal(
        read_all_rows(write_file(tmp_path / "x.hdf5", values, chunks, **filters), even_bounds(10_000, 700)), values
    )
    assert not unpacking_threads, reason


def test_hdf5_unpacks_chunks_that_do_not_fit_in_memory(tmp_path, unpacking_threads, monkeypatch):
    path = write_file(tmp_path / "x.hdf5", np.zeros((2_000, 6)), (1_000, 2), **GZIP)
    monkeypatch.setattr(hdf5_blocks, "MAX_KEPT_BYTES", 3 * 1_000 * 2 * 8)
    read_all_rows(path, even_bounds(2_000, 300))
    assert len(unpacking_threads) == 2 * 3
    monkeypatch.setattr(hdf5_blocks, "MAX_KEPT_BYTES", 3 * 1_000 * 2 * 8 - 1)
    read_all_rows(path, even_bounds(2_000, 300))
    assert len(unpacking_threads) == 2 * 3


def test_uncompressed_chunk_among_compressed_ones_is_read(tmp_path):
    path = write_file(tmp_path / "x.hdf5", np.zeros(3_000), (1_000,), **GZIP)
    with h5py.File(path, "a") as file:
        file["x"].id.write_direct_chunk((1_000,), np.arange(1_000.0).tobytes(), filter_mask=1)
    np.testing.assert_array_equal(read_all_rows(path, even_bounds(3_000, 800))[1_000:2_000], np.arange(1_000.0))


@pytest.mark.parametrize("content", [b"no gzip at all", b"x\x9c" + b"\xff" * 20])
def test_damaged_chunk_raises_after_the_previous_blocks(tmp_path, content):
    path = write_file(tmp_path / "x.hdf5", np.arange(3_000.0), (1_000,), **GZIP)
    with h5py.File(path, "a") as file:
        file["x"].id.write_direct_chunk((2_000,), content)
    with h5py.File(path) as file:
        blocks = read_blocks({"x": file["x"]}, even_bounds(3_000, 900))
        assert [next(blocks)[2]["x"][-1] for _ in range(2)] == [899, 1799]
        with pytest.raises(OSError, match="Can't"):
            next(blocks)


def test_consumer_unpacks_chunks_while_it_waits(tmp_path, monkeypatch):
    """Each of two threads waits in its chunk until the other one has started a chunk."""
    values = np.random.rand(2_000)
    path = write_file(tmp_path / "x.hdf5", values, (1_000,), **GZIP)
    both, original = threading.Barrier(2, timeout=20), hdf5_blocks.deflate.zlib_decompress

    def wait_for_both(*arguments):
        both.wait()
        return original(*arguments)

    monkeypatch.setattr(hdf5_blocks.deflate, "zlib_decompress", wait_for_both)
    np.testing.assert_array_equal(read_all_rows(path, [(0, 2_000)]), values)


def test_closed_reader_ends_its_thread(tmp_path):
    path = write_file(tmp_path / "x.hdf5", np.random.rand(10_000), (1_000,), **GZIP)
    before = set(threading.enumerate())
    with h5py.File(path) as file:
        blocks = read_blocks({"x": file["x"]}, even_bounds(10_000, 1_000))
        next(blocks)
        blocks.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
            assert not thread.is_alive()


def test_dropping_a_reader_does_not_wait_for_its_thread(monkeypatch):
    """A thread that holds h5py's lock may collect it as garbage."""
    permits = threading.Event()
    monkeypatch.setattr(
        hdf5_blocks, internals.MAKE_READER, lambda column: lambda start, stop: (np.zeros(1), [permits.wait] * start)
    )
    blocks = read_blocks({"x": None}, even_bounds(3, 1))
    next(blocks)
    dropping = threading.Thread(target=blocks.close)
    dropping.start()
    try:
        dropping.join(10)
        assert not dropping.is_alive()
    finally:
        permits.set()


def test_arrays_in_memory_are_not_copied():
    values = np.arange(10)
    assert all(np.shares_memory(rows["x"], values) for _, _, rows in read_blocks({"x": values}, even_bounds(10, 4)))
