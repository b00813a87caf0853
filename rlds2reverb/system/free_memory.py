"""The memory that is free."""

from __future__ import annotations

from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
#: More than any computer has.
_UNLIMITED = 1 << 62


def free_memory_bytes() -> int:
    """Returns the memory that this process can still allocate, limited by the machine and by its control group.

    What the system uses to cache files counts as free. The result is very large on systems without /proc.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _UNLIMITED
    values = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return min(values["MemAvailable"], *map(_free_group_bytes, find_groups()))


def find_groups() -> list[Path]:
    """Returns the folders of the memory controllers of this process, and of the container (cgroup 2 and 1)."""
    groups = [_GROUPS, _GROUPS / "memory"]
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            groups.append(_GROUPS / controllers / path.lstrip("/"))
    return groups


def _free_group_bytes(group: Path) -> int:
    """Returns what remains of the memory limit of a control group."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ):
        try:
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            free = int((group / limit).read_text()) - int((group / used).read_text())
            return free + int(statistics.get(cached, 0))
        except (OSError, ValueError):  # The file does not exist, or says "max".
            continue
    return _UNLIMITED
