"""Contents of the directories that `convert --out` and `serve --checkpoint-root` write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb.system.text import format_bytes
from rlds2reverb.types.tables import MAX_ITEMS, TableConfig

from .output import next_command

#: Numbers that are added up over shards.
_SUMMED = ("episodes", "items", "size_bytes", "memory_bytes")


def describe(path: str, *, verify: bool) -> dict[str, Any]:
    """Returns the tables, source, counts and sizes of such a directory as JSON values.

    Args:
      path: path of the directory.
      verify: whether to read all its files and compare them with their checksums.

    Raises:
      CheckpointError: If it is damaged, or shards are missing.
    """
    from rlds2reverb.reverb.server.shards import find_table_directories

    parts = [_describe(directory, verify=verify) for directory in find_table_directories(path)]
    sums = {name: None if parts[0][name] is None else sum(part[name] for part in parts) for name in _SUMMED}
    shards = {"shards": len(parts)} if len(parts) > 1 else {}
    return {**parts[0], **sums, "directory": path, **shards}


def _describe(directory: Path, *, verify: bool) -> dict[str, Any]:
    """Returns the description of a directory without shards."""
    from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot

    root = CheckpointRoot(directory, create=False)
    if verify:
        root.verify_latest()
    checkpoint, data = root.latest(), root.data()
    state = data.get("state", {})
    return {
        "directory": str(directory),
        "tables": [config.as_dict() for config in root.tables() or []],
        "source": data["run"]["source"][0] if "run" in data else None,
        "episodes": state.get("seen"),
        "items": state.get("items"),
        "size_bytes": sum(file.stat().st_size for file in checkpoint.iterdir()) if checkpoint else 0,
        "memory_bytes": data.get("memory_bytes"),
        "checkpoint": checkpoint.name if checkpoint else None,
    }


def make_facts(description: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the result of `describe` as names and values to print."""
    is_converted = bool(description["source"])
    rows = [("kind", "converted dataset" if is_converted else "checkpoints of a server")]
    if is_converted:
        rows += [("source", f"{description['source']}, {description['episodes']:,} episodes")]
        rows += [("items", f"{description['items']:,} in each table")]
    if "shards" in description:
        rows.append(("shards", f"{description['shards']}, for as many servers; sizes and counts are totals"))
    for table in description["tables"]:
        config = TableConfig.from_dict(table)
        is_limited = config.max_size is not None and config.max_size < MAX_ITEMS
        size = f"at most {config.max_size:,} items" if is_limited else "no limit on items"
        settings = f"sampler {config.sampler}, remover {config.remover}, rate limiter {config.rate_limiter}, {size}"
        rows.append(("table", f"{config.name}: {settings}"))
    rows.append(("size", f"{format_bytes(description['size_bytes'])} on disk"))
    if description["memory_bytes"]:
        rows.append(("memory", f"about {format_bytes(description['memory_bytes'])} in the server"))
    if not is_converted:
        rows.append(("checkpoint", description["checkpoint"] or "none"))
    if is_converted:
        return [*rows, next_command("serve", description["directory"])]
    shards = ("--shards", str(description["shards"])) if "shards" in description else ()
    return [*rows, next_command("serve", "--checkpoint-root", description["directory"], *shards)]
