"""The directories of runs and of experiments: which ones training may write to, and which contain a single run."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.errors import ArgumentError, CheckpointError
from rlds2reverb.learners.run_directory import CONFIG_FILE, LOG_FILES
from rlds2reverb.system.sealed_files import is_sealed_json, load_json
from rlds2reverb.types.locations import expand_path

from .plans import PLAN_FILE, is_experiment

#: Suffixes of users' settings, scripts and notes, which may lie in the directory of a new run.
_USER_SUFFIXES = (".gin", ".json", ".log", ".md", ".out", ".py", ".sh", ".txt", ".yaml", ".yml")


def find_run_dir(run_dir: str | Path) -> Path:
    """Returns the path of the directory of a run or an experiment, which may be missing, with `~` expanded.

    A new one may contain hidden files, and a user's text files. What a process that was killed at the very beginning
    has left is accepted as well.

    Raises:
      ArgumentError: If the path is empty, or if the directory contains something else, such as a dataset.
    """
    path = expand_path(run_dir, "run_dir")
    if path.is_dir() and not _is_begun(path):
        foreign = sorted(entry.name for entry in path.iterdir() if _is_foreign(entry))
        if foreign:
            raise ArgumentError(
                f"must be a new directory or that of a run, but {path} contains {', '.join(foreign[:3])}; use a "
                "different directory",
                about="run_dir",
            )
    return path


def require_single_run(run_dir: Path) -> None:
    """Raises `CheckpointError` if a directory contains several runs."""
    if is_experiment(run_dir):
        raise CheckpointError(
            f"{run_dir} contains several runs; repeat the call that started them, or use a different run directory"
        )


def require_one_run(folder: Path) -> None:
    """Raises `ValueError` for the directory of an experiment, where a single run is to be read."""
    if is_experiment(folder):
        name = next(iter(load_json(folder / PLAN_FILE) or {}), "NAME")
        raise ValueError(f"{folder} contains several runs; pass the directory of one, such as {folder / name}")


def _is_begun(path: Path) -> bool:
    """Returns whether a directory contains a log of a run, or the description of a run or an experiment."""
    is_described = any(is_sealed_json(path / name) for name in (CONFIG_FILE, PLAN_FILE))
    return is_described or any((path / name).is_file() for name in LOG_FILES)


def _is_foreign(entry: Path) -> bool:
    """Returns whether neither a run that has just begun, nor a user who prepares one, has created an entry."""
    if entry.name.startswith("."):
        return False
    if entry.name == "checkpoints":
        return any(not path.name[:10].isdigit() for path in entry.glob("*"))
    return entry.name in (CONFIG_FILE, PLAN_FILE) or not entry.is_file() or entry.suffix not in _USER_SUFFIXES
