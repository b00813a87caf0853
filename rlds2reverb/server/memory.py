"""The memory that a server needs for its items, and the memory that is free."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb._system.text import format_bytes
from rlds2reverb.errors import InsufficientMemoryError

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


def free_memory_bytes() -> int:
    """Returns the memory that this process can still allocate, limited by the machine and by its control group."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return min(values["MemAvailable"], _free_cgroup_bytes())


def _free_cgroup_bytes() -> int:
    """Returns what remains of the memory limit of a container (cgroup 2 or 1)."""
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            return int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii"))
        except (OSError, ValueError):  # The file does not exist, or says "max".
            continue
    return 1 << 62


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
