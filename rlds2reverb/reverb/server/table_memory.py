"""The memory that a server needs for its items."""

from __future__ import annotations

from rlds2reverb.errors import InsufficientMemoryError
from rlds2reverb.system.free_memory import free_memory_bytes
from rlds2reverb.system.text import format_bytes

#: Bytes that Reverb 0.14 takes in addition to the data, as measured with `benchmarks/bench_memory.py`.
_PER_CHUNK, _PER_COLUMN_OF_CHUNK = 340, 580
_PER_ITEM, _PER_COLUMN_OF_ITEM = 680, 160


def estimate_server_bytes(*, items: int, chunks: int, chunk_bytes: int, columns: int) -> int:
    """Estimates the bytes of memory that a server needs.

    Args:
      items: number of items in all tables together.
      chunks: number of chunks that the items share.
      chunk_bytes: total size of the stored chunks.
      columns: number of columns of an item.
    """
    all_chunks = chunk_bytes + chunks * (_PER_CHUNK + columns * _PER_COLUMN_OF_CHUNK)
    return all_chunks + items * (_PER_ITEM + columns * _PER_COLUMN_OF_ITEM)


def require_memory(needed: int, what: str) -> None:
    """Raises `InsufficientMemoryError` unless `needed` bytes of memory are free."""
    free = free_memory_bytes()
    if needed > free:
        raise InsufficientMemoryError(
            f"{what} will need about {format_bytes(needed)} of memory, but only {format_bytes(free)} are free; use "
            "a larger machine, convert with the packed layout, or write nevertheless",
            layout="packed",
            force=True,
        )
