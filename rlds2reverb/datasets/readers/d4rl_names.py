"""D4RL's dataset names and the URLs of their files.

Source of names and URLs: `d4rl/infos.py` of D4RL (Fu et al. 2020, arXiv:2004.07219).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from ..formats import Format
from ..source import Source
from . import d4rl, minari

_ROOT = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"


def file_url(name: str) -> str | None:
    """Returns the URL of the file of a D4RL dataset such as `hopper-medium-v2`, or None for any other name."""
    file = _files().get(name)
    return None if file is None else f"{_ROOT}{file}.hdf5"


def dataset_dir() -> Path:
    """Returns the directory to which D4RL downloads its files."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")


def find_downloaded(name: str) -> Path | None:
    """Returns the path of a D4RL dataset in D4RL's own directory, or None if there is no such name or file."""
    file = _files().get(name)
    path = None if file is None else dataset_dir() / f"{file.rpartition('/')[2]}.hdf5"
    return path if path is not None and path.is_file() else None


def _is_missing(name: Any) -> bool:
    return isinstance(name, str) and file_url(name) is not None and not minari.is_installed(name)


def _raise_missing(name: str, **options: Any) -> Source:
    raise FileNotFoundError(
        f"D4RL's {name} is not on this machine; download {file_url(name)} to {dataset_dir()}, or download it anywhere "
        "and pass the path of the file"
    )


#: The name of a dataset that is not in D4RL's own directory.
NAME = Format("a D4RL name", _is_missing, _raise_missing, (*d4rl.OPTIONS, "download"), example="hopper-medium-v2")


@functools.cache
def _files() -> dict[str, str]:
    """Returns the file of each dataset, below `_ROOT` and without its suffix."""
    lines = Path(__file__).with_name("d4rl_files.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if not line.startswith("#"))
