"""Repaired copies of datasets: what follows from the rows is corrected, and nothing else is changed."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import h5py

from rlds2reverb.errors import ArgumentError, SourceError
from rlds2reverb.types.episode_batches import batch_episodes

from ..loading import FORMATS, load
from ..readers import hdf5, lerobot, minari, rlds, robomimic
from ..readers.json_files import as_dict, parse_object, read_json
from ..writers.atomic_output import atomic_output
from . import DatasetChecks
from .times import Times, round_rate

#: Checks whose findings are repaired where the format has a place for the corrected statement.
REPAIRED = frozenset(["contradiction", "contradicting-rate", "shuffled-rows", "stale-index"])


def repair_dataset(path: Path, out: Path) -> list[str]:
    """Writes a copy of a dataset in which what follows from its rows is corrected, unless nothing is wrong.

    In LeRobot datasets, these are `fps`, totals, places and numbers of rows, and statistics; in robomimic files and
    Minari datasets numbers of rows, and missing totals; in these and in RLDS datasets `fps` in the metadata. All other
    bytes stay as they are. The copy appears under its path once it is complete, and the source is only read.

    Args:
      path: the file or directory.
      out: the file or directory to create.

    Returns:
      A sentence for each repair; an empty list if there was nothing to repair, and no copy was written.

    Raises:
      FileExistsError: If `out` exists.
      SourceError: If the dataset cannot be read.
      ValueError: If the format states nothing that follows from the rows, or `out` is inside of `path`.
    """
    repair = _find_repair(path)
    if repair is None:
        raise ArgumentError(
            f"{path} must be the path of a LeRobot, robomimic, Minari or RLDS dataset to be repaired; other formats "
            "state nothing that follows from their rows. 'convert' copies them, on request without invalid episodes",
            on_invalid="skip_episode",
        )
    if out.resolve().is_relative_to(path.resolve()):
        raise ArgumentError(f"the repaired copy must be outside of {path}, which stays as it is, got {out}")
    try:
        with atomic_output(out) as partial:
            _copy(path, partial)
            try:
                repairs = [*repair(partial)]
            except SourceError as error:  # The source is what has to be fixed.
                named = str(error).replace(str(partial), str(path)).replace(partial.name, path.name)
                raise SourceError(named) from error
            if not repairs:
                raise _NothingToRepairError
    except _NothingToRepairError:
        return []
    return repairs


def is_repairable(path: Path) -> bool:
    """Returns whether a path is a dataset of a format that `repair_dataset` repairs."""
    return _find_repair(path) is not None


def _find_repair(path: Path) -> Callable[[Path], Iterator[str]] | None:
    found = next((candidate for candidate in FORMATS if path.exists() and candidate.matches(path)), None)
    return None if found is None else _REPAIRS.get(found.name)


def _copy(path: Path, partial: Path) -> None:
    """Copies a file or directory, also one that is read-only, such that the copy can be changed."""
    if not path.is_dir():
        shutil.copyfile(path, partial)
        return
    shutil.copytree(path, partial, copy_function=shutil.copyfile)
    for part in (partial, *partial.rglob("*")):
        if part.is_dir():
            part.chmod(part.stat().st_mode | stat.S_IRWXU)


class _NothingToRepairError(Exception):
    """There is nothing to repair, so that no copy is kept."""


def _repair_robomimic(path: Path) -> Iterator[str]:
    with h5py.File(path, "r+") as file:
        data: Any = hdf5.open_member(file, "data")
        total = yield from _count_rows(data, robomimic.ACTIONS, "num_samples")
        yield from _correct(data.attrs, {"total": total}, "data")
        described = parse_object(data.attrs.get(robomimic.METADATA))
    repairs = [*_correct(described, _find_rate(path), "metadata")] if described.get("fps") else []
    if repairs:
        with h5py.File(path, "r+") as file:
            file["data"].attrs[robomimic.METADATA] = json.dumps(described)
    yield from repairs


def _repair_minari(root: Path) -> Iterator[str]:
    totals, path = {"total_episodes": 0, "total_steps": 0}, root / "data" / "metadata.json"
    for part in sorted(path.parent.glob("*.hdf5")):
        with h5py.File(part, "r+") as file:
            totals["total_steps"] += yield from _count_rows(file, "rewards", "total_steps")
            totals["total_episodes"] += len(hdf5.list_names(file))
    described = as_dict(read_json(path))
    missing = {name: total for name, total in totals.items() if name not in described}
    yield from _correct_json(path, missing)
    yield from _repair_rlds(root, path.relative_to(root))


def _repair_rlds(root: Path, name: Path = Path("metadata.json")) -> Iterator[str]:
    if (root / name).is_file() and as_dict(read_json(root / name)).get("fps"):
        yield from _correct_json(root / name, _find_rate(root))


def _count_rows(group: h5py.Group, column: str, name: str) -> Generator[str, None, int]:
    """Corrects the attribute with the number of rows of each episode in a group, and returns their sum."""
    total = 0
    for key in hdf5.list_names(group):
        episode = hdf5.open_member(group, key)
        values = hdf5.open_column(episode, column) if isinstance(episode, h5py.Group) else None
        if episode is not None and values is not None:
            total += len(values)
            yield from _correct(episode.attrs, {name: len(values)}, key)
    return total


def _find_rate(path: Path) -> dict[str, Any]:
    """Returns the rate at which the times of a dataset run, as `fps`, if it is not that of the metadata."""
    source = load(path)
    times = Times(source)
    checks = DatasetChecks(source, only=[lambda source: times])
    for batch in batch_episodes(source):
        checks.add_batch(batch)
    rates = set(times.find_contradicting_rates().values())
    return {"fps": round_rate(rates.pop())} if len(rates) == 1 else {}


def _correct_json(path: Path, values: Mapping[str, Any]) -> Iterator[str]:
    described = as_dict(read_json(path))
    repairs = [*_correct(described, values, path.name)]
    if repairs:
        path.write_text(json.dumps(described), encoding="utf-8")
    yield from repairs


def _correct(stated: MutableMapping[str, Any], values: Mapping[str, Any], where: str) -> Iterator[str]:
    """Replaces values that are missing or differ, and yields a sentence for each."""
    for name, value in values.items():
        known = stated.get(name)
        if known != value:
            stated[name] = value
            yield f"{where}: {name} is {value} instead of {'missing' if known is None else known}"


def _repair_lerobot(root: Path) -> Iterator[str]:
    from ..writers.lerobot_repairs import repair_lerobot  # The light installation has no Parquet.

    return repair_lerobot(root)


_REPAIRS: dict[str, Callable[[Path], Iterator[str]]] = {
    lerobot.DIRECTORY.name: _repair_lerobot,
    robomimic.FILE.name: _repair_robomimic,
    minari.DIRECTORY.name: _repair_minari,
    rlds.DIRECTORY.name: _repair_rlds,
}
