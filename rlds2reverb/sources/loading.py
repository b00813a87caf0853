"""`load`: from whatever the user has to a `Source`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError

from . import d4rl, hdf5, memory, minari, rlds, robomimic
from .source import Source

_KINDS = (
    "a D4RL or robomimic HDF5 file, a directory that TFDS prepared, a Minari directory, a TFDS name "
    "(d4rl_mujoco_hopper/v2-medium), a Minari name (mujoco/hopper/expert-v0), a list of episodes, a dict of D4RL "
    "columns, or an RLDS tf.data.Dataset"
)
#: How far below a directory its data sets are looked for: name/config/version and namespace/name/version.
_DEPTHS = ("*/", "*/*/", "*/*/*/")


def load(
    source: Any,
    *,
    split: str = "train",
    infos: Sequence[str] = (),
    max_episode_steps: int | None = None,
    split_at_discontinuity: bool = False,
    data_dir: str | Path | None = None,
) -> Source:
    """Opens a data set of any kind; which one it is, is found out.

    Args:
      source: a path or name (see the kinds below), a `Source` (given back), a list of episodes as dicts of arrays
        (see `memory.from_episodes`), a dict of arrays under D4RL's names, or an RLDS `tf.data.Dataset`.
        Paths: a D4RL or robomimic HDF5 file; a directory that TFDS prepared, or one above it that holds a single
        version; a Minari directory. Names, where there is no such path: TFDS's (`d4rl_mujoco_hopper/v2-medium`) and
        Minari's (`mujoco/hopper/expert-v0`).
      split: of a TFDS data set, slices allowed.
      infos: D4RL: which of `infos/*` to read as further step fields.
      max_episode_steps: D4RL: cut episodes off after so many rows; needed where there are no `timeouts`.
      split_at_discontinuity: D4RL: or cut where an observation is not the `next_observations` before it.
      data_dir: TFDS's data directory, for names.

    Returns:
      `Source`, an iterable of episodes.

    Raises:
      FileNotFoundError: if a path does not exist.
      SourceError: if it is there, but damaged, hostile, or not one of the kinds.
      TypeError: if it is an object of another type.
    """
    ends = d4rl.EpisodeEnds(max_episode_steps, split_at_discontinuity)
    if isinstance(source, Source):
        return source
    if isinstance(source, Mapping):
        return d4rl.from_rows("rows in memory", source, infos=infos, ends=ends)
    if isinstance(source, (str, Path)):
        path = _existing(source)
        if path is None:
            return _by_name(str(source), split, data_dir)
        if path.is_dir():
            return _directory(path, split)
        return _file(path, infos, ends)
    if isinstance(source, Sequence) and not isinstance(source, (bytes, bytearray)):
        return memory.from_episodes(source)
    if hasattr(source, "element_spec"):
        return rlds.from_rlds_dataset(source)
    raise TypeError(f"cannot load a {type(source).__name__}; expected {_KINDS}")


def _existing(source: str | Path) -> Path | None:
    try:
        path = Path(source).expanduser()
        return path if str(source) and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, no such home
        return None


def _file(path: Path, infos: Sequence[str], ends: d4rl.EpisodeEnds) -> Source:
    with hdf5.open_hdf5(path) as file:
        if robomimic.is_robomimic(file):
            return robomimic.open_robomimic(path)
    return d4rl.open_d4rl(path, infos=infos, ends=ends)


def _directory(path: Path, split: str) -> Source:
    if (path / "dataset_info.json").is_file() or (path / "features.json").is_file():
        return rlds.open_directory(path, split=split)
    if (path / "data" / "metadata.json").is_file():
        return minari.open_minari(path)
    prepared = [info.parent for depth in _DEPTHS for info in sorted(path.glob(f"{depth}dataset_info.json"))]
    prepared += [info.parents[1] for depth in _DEPTHS for info in sorted(path.glob(f"{depth}data/metadata.json"))]
    if len(prepared) == 1:
        return _directory(prepared[0], split)
    if prepared:
        names = ", ".join(str(found.relative_to(path)) for found in prepared[:5])
        raise SourceError(f"{path} holds {len(prepared)} data sets; name one of them: {names}")
    raise SourceError(f"{path} holds no data set (no dataset_info.json, no data/metadata.json); expected {_KINDS}")


def _by_name(name: str, split: str, data_dir: str | Path | None) -> Source:
    shown = repr(name[:100])
    if not name or name.startswith(("/", ".", "~")) or ".." in name or len(name) > 300 or "\0" in name:
        raise FileNotFoundError(f"there is no {shown}; expected {_KINDS}")
    if Path(name).suffix.lower() in (".hdf5", ".h5", ".npz", ".npy"):
        raise FileNotFoundError(f"there is no file {shown}")
    if minari.is_identifier(name):
        return minari.open_minari(name)
    return rlds.open_builder(name, split=split, data_dir=data_dir)
