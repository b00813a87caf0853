"""HDF5 files that are much larger once they are decompressed, for the tests of safe reading."""

import zlib

import h5py

_CHUNK_ROWS = 1_000_000


def write_zeros(file: h5py.File, name: str, num_rows: int, dtype: str) -> None:
    """Writes a compressed column of zeros. Their chunk is compressed only once, because it takes milliseconds."""
    column = file.create_dataset(name, (num_rows,), dtype, chunks=(_CHUNK_ROWS,), compression="gzip")
    chunk = zlib.compress(bytes(_CHUNK_ROWS * column.dtype.itemsize))
    for first in range(0, num_rows, _CHUNK_ROWS):
        column.id.write_direct_chunk((first,), chunk)
