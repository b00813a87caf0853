"""Directories of shards, which `convert --shards` or `ingest` into a list of directories wrote."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.errors import CheckpointError
from rlds2reverb.types.locations import find_shard_numbers, shard_path

from .checkpoint_root import CheckpointRoot

_MAX_NAMES = 5


def find_table_directories(directory: str | Path) -> list[Path]:
    """Returns the directories of all shards in a directory, or the directory itself if its tables have no shards.

    Raises:
      CheckpointError: As `find_shards`.
    """
    return find_shards(directory) or [Path(directory).expanduser()]


def find_shards(directory: str | Path) -> list[Path]:
    """Returns the directories `shard_0`, `shard_1`, ... of all shards in a directory; none if it contains no shards.

    Raises:
      CheckpointError: If shards are missing or damaged, or belong to different conversions.
    """
    numbers = find_shard_numbers(directory)
    if not numbers:
        return []
    num_shards = max(find_num_shards(directory) or 0, numbers[-1] + 1)
    paths = [shard_path(Path(directory).expanduser(), shard) for shard in range(num_shards)]
    missing = [path.name for path in paths if not path.is_dir()]
    if missing:
        names = ", ".join(missing[:_MAX_NAMES])
        more = f" and {len(missing) - _MAX_NAMES} more" if len(missing) > _MAX_NAMES else ""
        verb = "is" if len(missing) == 1 else "are"
        raise CheckpointError(
            f"{directory} is incomplete: {names}{more} of its {num_shards} shards {verb} missing; repeat the "
            "conversion, which continues with them"
        )
    return paths


def find_num_shards(directory: str | Path) -> int | None:
    """Returns the number of shards into which a dataset was to be converted, which each complete shard records.

    Returns None without a complete shard, or if servers wrote the shards.

    Raises:
      CheckpointError: If shards are damaged, or belong to conversions to different numbers of shards.
    """
    paths = [shard_path(Path(directory).expanduser(), shard) for shard in find_shard_numbers(directory)]
    runs = [CheckpointRoot(path, create=False).data().get("run", {}) for path in paths]
    counts = sorted({run["shard"][1] for run in runs if "shard" in run})
    if len(counts) > 1:
        raise CheckpointError(
            f"{directory} contains shards of different conversions, to {counts[0]} and to {counts[1]} shards; convert "
            "the dataset again, into a new directory"
        )
    return counts[0] if counts else None
