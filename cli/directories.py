"""Directories that `convert --out` wrote, and checkpoint roots of servers: what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb._units import bytes_text
from rlds2reverb.tables import TableConfig

from .quiet import import_quietly


def is_ours(source: str) -> bool:
    """Returns whether a path is a directory that `convert --out` or `serve --checkpoint-root` wrote."""
    try:
        return (Path(source).expanduser() / "rlds2reverb.json").is_file()
    except (OSError, ValueError, RuntimeError):  # not a path at all
        return False


def described(source: str, *, verify: bool) -> dict[str, Any]:
    """Returns what is in such a directory, as plain values.

    Args:
      source: path of the directory.
      verify: whether to read all its files and compare them with their sha256.

    Raises:
      CheckpointError: if it is damaged.
    """
    import_quietly("reverb")
    from rlds2reverb._server.checkpoint_root import CheckpointRoot

    root = CheckpointRoot(Path(source).expanduser(), make=False)
    if verify:
        root.verify_latest()
    checkpoint, data = root.latest(), root.described()
    state = data.get("state", {})
    return {
        "directory": source,
        "tables": [config.as_dict() for config in root.tables() or []],
        "source": data["run"]["source"][0] if "run" in data else None,
        "episodes": state.get("seen"),
        "items": state.get("items"),
        "bytes": sum(path.stat().st_size for path in checkpoint.iterdir()) if checkpoint else 0,
        "memory_bytes": data.get("memory_bytes"),
        "checkpoint": checkpoint.name if checkpoint else None,
    }


def facts(described: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what `described` found, as names and values for people."""
    found = [("kind", "a directory of rlds2reverb, to start servers from" if described["source"] else "checkpoints")]
    if described["source"]:
        found += [("converted", f"{described['source']}, {described['episodes']:,} episodes read")]
        found += [("items", f"{described['items']:,} in each table")]
    for table in described["tables"]:
        config = TableConfig.from_dict(table)
        size = "any number of items" if config.max_size is None else f"at most {config.max_size:,} items"
        options = f"sampler {config.sampler}, remover {config.remover}, rate limiter {config.rate_limiter}, {size}"
        found.append(("table", f"{config.name}: {options}"))
    found.append(("size", f"{bytes_text(described['bytes'])} on disk"))
    if described["memory_bytes"]:
        found.append(("memory", f"about {bytes_text(described['memory_bytes'])} in a server"))
    option = "--from" if described["source"] else "--checkpoint-root"
    found += [
        ("checkpoint", described["checkpoint"] or "none"),
        ("serve", f"rlds2reverb serve {option} {described['directory']}"),
    ]
    return found
