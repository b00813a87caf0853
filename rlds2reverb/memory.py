"""How much memory a server needs for data, and how much there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Bytes that Reverb 0.14 takes beside the data, as measured with `benchmarks/bench_memory.py`.
_PER_CHUNK, _PER_COLUMN_OF_CHUNK = 700, 160
_PER_ITEM, _PER_COLUMN_OF_ITEM = 420, 150


class TooLarge(MemoryError):
    """Data that need more memory than there is."""


def needed_bytes(description: dict[str, Any]) -> int:
    """What a server takes for data that `ingest` wrote, by its `CheckpointRoot.described`; 0 for other data."""
    if not {"chunks", "chunk_bytes", "items", "tables", "columns"} <= set(description):
        return 0
    columns = description["columns"]
    of_chunks = description["chunk_bytes"] + description["chunks"] * (_PER_CHUNK + columns * _PER_COLUMN_OF_CHUNK)
    of_items = description["items"] * len(description["tables"]) * (_PER_ITEM + columns * _PER_COLUMN_OF_ITEM)
    return int(of_chunks + of_items)


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


def require_memory(description: dict[str, Any], what: str) -> None:
    """Raises `TooLarge` unless there is memory for data."""
    needed, available = needed_bytes(description), available_bytes()
    if needed > available:
        raise TooLarge(
            f"{what} will need about {needed / 1e9:.1f} GB and there are {available / 1e9:.1f} GB; serve it on a "
            "larger machine, convert it with layout='packed', or force it (--force)"
        )
