"""How much memory a server needs for data, and how much there is."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb._units import bytes_text
from rlds2reverb.errors import TooLarge

#: Bytes that Reverb 0.14 takes beside the data, as measured with `benchmarks/bench_memory.py`.
_PER_CHUNK, _PER_COLUMN_OF_CHUNK = 340, 580
_PER_ITEM, _PER_COLUMN_OF_ITEM = 680, 160


def needed_bytes(*, items: int, chunks: int, chunk_bytes: int, columns: int) -> int:
    """What a server takes for items.

    Args:
      items: in all tables together.
      chunks: that they share.
      chunk_bytes: of all of these as they are stored.
      columns: of an item.
    """
    of_chunks = chunk_bytes + chunks * (_PER_CHUNK + columns * _PER_COLUMN_OF_CHUNK)
    return of_chunks + items * (_PER_ITEM + columns * _PER_COLUMN_OF_ITEM)


def available_bytes() -> int:
    """Memory that a process may still take: of the machine, and of its control group."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return min(values["MemAvailable"], _left_in_group())


def _left_in_group() -> int:
    """Of a container with a limit (cgroup 2, or 1)."""
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
    """Raises `TooLarge` unless there is memory for so many bytes."""
    available = available_bytes()
    if needed > available:
        raise TooLarge(
            f"{what} will need about {bytes_text(needed)} of memory, and {bytes_text(available)} are free; serve it on "
            "a larger machine, convert it with layout='packed' (--layout packed), or force it (--force)"
        )
