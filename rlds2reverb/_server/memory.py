"""How much memory a server needs for data, and how much there is."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb._units import bytes_text
from rlds2reverb.errors import InsufficientMemoryError

#: Bytes that Reverb 0.14 takes in addition to the data, as measured with `benchmarks/bench_memory.py`.
_PER_CHUNK, _PER_COLUMN_OF_CHUNK = 340, 580
_PER_ITEM, _PER_COLUMN_OF_ITEM = 680, 160


def needed_bytes(*, items: int, chunks: int, chunk_bytes: int, columns: int) -> int:
    """Returns about how many bytes a server takes for items.

    Args:
      items: how many, in all tables together.
      chunks: how many these share.
      chunk_bytes: the size of all chunks as they are stored.
      columns: how many an item has.
    """
    of_chunks = chunk_bytes + chunks * (_PER_CHUNK + columns * _PER_COLUMN_OF_CHUNK)
    return of_chunks + items * (_PER_ITEM + columns * _PER_COLUMN_OF_ITEM)


def available_bytes() -> int:
    """Returns how much memory a process may still take: what the machine and its control group leave it."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return min(values["MemAvailable"], _left_in_group())


def _left_in_group() -> int:
    """Returns what is left of the limit of a container (cgroup 2, or 1)."""
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            return int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii"))
        except (OSError, ValueError):  # no such file; "max"
            continue
    return 1 << 62


def require_memory(needed: int, what: str) -> None:
    """Raises `InsufficientMemoryError` unless there is memory for `needed` bytes."""
    available = available_bytes()
    if needed > available:
        raise InsufficientMemoryError(
            f"{what} will need about {bytes_text(needed)} of memory, and {bytes_text(available)} are free; serve it on "
            "a larger machine, convert it with layout='packed' (--layout packed), or force it (--force)"
        )
