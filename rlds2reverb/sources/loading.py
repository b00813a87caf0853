"""`load`: opens whatever data set the user has as a `Source`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError

from . import d4rl, d4rl_names, hdf5, memory, minari, rlds, robomimic
from .source import Source

_KINDS = (
    "a D4RL or robomimic HDF5 file, a directory that TFDS prepared, a Minari directory, a TFDS name "
    "(d4rl_mujoco_hopper/v2-medium), a Minari name (mujoco/hopper/expert-v0), a D4RL name (hopper-medium-v2), a list "
    "of episodes, a function that returns an iterable of them, a dict of D4RL columns, or an RLDS tf.data.Dataset"
)
#: How far below a directory its data sets are looked for: name/config/version and namespace/name/version.
_DEPTHS = ("*/", "*/*/", "*/*/*/")


def load(
    source: Any,
    *,
    split: str = "train",
    extra_fields: Sequence[str] = (),
    max_episode_steps: int | None = None,
    split_at_discontinuity: bool = False,
    independent_rows: bool = False,
    data_dir: str | Path | None = None,
    download: bool = False,
) -> Source:
    """Opens a data set of any kind as a `Source`; it finds out which kind it is.

    Args:
      source: one of these:

        - a path: a D4RL or robomimic HDF5 file; a directory that TFDS prepared, or one above it that holds a single
          data set; a Minari directory;
        - a name, where there is no such path: TFDS's (`d4rl_mujoco_hopper/v2-medium`), Minari's
          (`mujoco/hopper/expert-v0`), or D4RL's (`hopper-medium-v2`, looked for in D4RL's own directory,
          `$D4RL_DATASET_DIR` or `~/.d4rl/datasets`);
        - a list of episodes as dicts of arrays, see `memory.from_episodes`; or, where they do not fit in memory, a
          function that returns an iterable of them (a generator function, without calling it), or an object that can
          be iterated again and again;
        - a dict of arrays under D4RL's names, such as `env.get_dataset()` gives it;
        - an RLDS `tf.data.Dataset`;
        - a `Source`, which is returned as it is.
      split: of a TFDS data set, slices allowed.
      extra_fields: D4RL: which of `infos/*` to read as further step fields.
      max_episode_steps: D4RL: episodes are cut off after this many rows; needed where there are no `timeouts`.
      split_at_discontinuity: D4RL: episodes are cut off where an observation is not the `next_observations` before it.
      independent_rows: D4RL and logs: whether each row is an episode of one transition, truncated unless it is terminal. For
        rows that are shuffled or relabelled, whose `next_observations` are not the observations of the next rows.
      data_dir: TFDS's data directory, for names.
      download: whether TFDS and Minari may download a data set that is not there, by its name.

    Returns:
      `Source`, an iterable of episodes.

    Raises:
      FileNotFoundError: if there is no such path, or a name would have to be downloaded.
      SourceError: if it is there, but damaged, hostile, or not one of the kinds; while it is read, also if more than
        1 % of the rows do not continue in the next one (see `independent_rows`).
      TypeError: if it is an object of another type, such as a generator, which could be read only once.
      ValueError: if options contradict each other.
    """
    ends = d4rl.EpisodeEnds(max_episode_steps, split_at_discontinuity, independent_rows)
    opened = _open(source, split, extra_fields, ends, data_dir, download=download)
    if independent_rows and opened.kind not in ("d4rl", "memory"):
        raise ValueError(
            f"independent_rows=True is for D4RL's rows and for logs; {opened.name} is of the kind {opened.kind!r}"
        )
    return opened


def _open(
    source: Any,
    split: str,
    extra_fields: Sequence[str],
    ends: d4rl.EpisodeEnds,
    data_dir: str | Path | None,
    *,
    download: bool,
) -> Source:
    independent_rows = ends.at_every_row
    if isinstance(source, Source):
        return source
    if isinstance(source, Mapping):
        return d4rl.from_rows("rows in memory", source, extra_fields=extra_fields, ends=ends)
    if isinstance(source, (str, Path)):
        path = _existing(source)
        if path is None:
            path = d4rl_names.downloaded(str(source))
        if path is None:
            return _by_name(str(source), split, data_dir, download=download)
        if path.is_dir():
            return _directory(path, split)
        return _file(path, extra_fields, ends)
    if isinstance(source, Sequence) and not isinstance(source, (bytes, bytearray)):
        return memory.from_episodes(source, independent_rows=independent_rows)
    if hasattr(source, "element_spec"):
        return rlds.from_rlds_dataset(source)
    if isinstance(source, Iterator):
        raise TypeError(
            f"a {type(source).__name__} can be read only once, and a data set is read more than once; pass the "
            "function that makes it, load(make_episodes) instead of load(make_episodes())"
        )
    if isinstance(source, Iterable) and not hasattr(source, "__array__") and not isinstance(source, type):
        return memory.from_function(
            lambda: source, name=f"a {type(source).__name__} of episodes", independent_rows=independent_rows
        )
    if callable(source):
        name = getattr(source, "__name__", type(source).__name__)
        return memory.from_function(source, name=f"episodes of {name}", independent_rows=independent_rows)
    raise TypeError(f"cannot load a {type(source).__name__}; expected {_KINDS}")


def _existing(source: str | Path) -> Path | None:
    try:
        path = Path(source).expanduser()
        return path if str(source) and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, no such home
        return None


def _file(path: Path, extra_fields: Sequence[str], ends: d4rl.EpisodeEnds) -> Source:
    with hdf5.open_hdf5(path) as file:
        if robomimic.is_robomimic(file):
            return robomimic.open_robomimic(path)
    return d4rl.open_d4rl(path, extra_fields=extra_fields, ends=ends)


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


def _by_name(name: str, split: str, data_dir: str | Path | None, *, download: bool) -> Source:
    shown = repr(name[:100])
    if not name or name.startswith(("/", ".", "~")) or ".." in name or len(name) > 300 or "\0" in name:
        raise FileNotFoundError(f"there is no {shown}; expected {_KINDS}")
    if Path(name).suffix.lower() in (".hdf5", ".h5", ".npz", ".npy"):
        raise FileNotFoundError(f"there is no file {shown}")
    if minari.is_identifier(name):
        address = None if minari.is_installed(name) else d4rl_names.address(name)
        if address is not None:
            raise FileNotFoundError(
                f"D4RL's {name} is not on this machine; download {address} to {d4rl_names.directory()}, "
                "or anywhere, and give the file's path"
            )
        return minari.open_minari(name, download=download)
    return rlds.open_builder(name, split=split, data_dir=data_dir, download=download)
