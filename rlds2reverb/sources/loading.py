"""`load`, which opens a dataset of any supported format as a `Source`."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds2reverb._text import suggest
from rlds2reverb.errors import SourceError
from rlds2reverb.locations import server_address

from . import d4rl, d4rl_names, hdf5, memory, minari, rlds, robomimic
from .concatenation import concatenate_sources
from .source import Source

_FILES = (
    "a D4RL or robomimic HDF5 file, a directory that TFDS prepared, a Minari directory, a pattern (*.hdf5) of these, a "
    "TFDS name (d4rl_mujoco_hopper/v2-medium), a Minari name (mujoco/hopper/expert-v0), or a D4RL name "
    "(hopper-medium-v2)"
)
_SUPPORTED = (
    f"{_FILES}; a list of these or of episodes, a function that returns an iterable of episodes, a dict of D4RL "
    "columns, or an RLDS tf.data.Dataset"
)
_FILE_SUFFIXES = (".hdf5", ".h5", ".npz", ".npy")
#: Levels below a directory at which a dataset is searched for: name/config/version and namespace/name/version.
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
    """Opens a dataset as a `Source`; the format is detected.

    Args:
      source: one of these:

        - a path: a D4RL or robomimic HDF5 file; a directory that TFDS prepared, or one above it that contains a single
          dataset; a Minari directory. A `Path` is always a path;
        - a string that is not an existing path: the name of a dataset of TFDS (`d4rl_mujoco_hopper/v2-medium`), Minari
          (`mujoco/hopper/expert-v0`) or D4RL (`hopper-medium-v2`, looked up in D4RL's own directory,
          `$D4RL_DATASET_DIR` or `~/.d4rl/datasets`);
        - a pattern such as `data/*.hdf5`, or a list of paths, patterns or names: several datasets of one kind, read in
          the order of the list, and by name for a pattern;
        - a list of episodes, each a dict of arrays, see `memory.from_episodes`; or, if they do not fit in memory, a
          function that returns an iterable of them (such as a generator function, not called), or an object that can
          be iterated repeatedly;
        - a dict of arrays under D4RL's names, as returned by `env.get_dataset()`;
        - an RLDS `tf.data.Dataset`;
        - a `Source`, which is returned unchanged.
      split: TFDS only: the split to read, which may be a slice (`train[:10%]`).
      extra_fields: D4RL and Minari only: names of `infos/*` columns, or groups of them, to read as additional step
        fields.
      max_episode_steps: D4RL only: maximum number of rows in an episode; longer ones are truncated there. One way to
        read data without `timeouts`.
      split_at_discontinuity: D4RL only: whether to end an episode wherever `observations[t + 1]` is not
        `next_observations[t]`. The other way to read data without `timeouts`.
      independent_rows: D4RL and logs only: whether to read each row as an episode of one transition, truncated unless
        it is terminal. For rows that were shuffled or relabelled, so that `next_observations[t]` is not
        `observations[t + 1]`.
      data_dir: TFDS only: the data directory in which names are looked up.
      download: whether TFDS and Minari may download a named dataset that is not on this machine.

    Returns:
      A `Source`, an iterable of episodes.

    Raises:
      FileNotFoundError: If the path does not exist, a pattern matches nothing, or the named dataset is not on this
        machine.
      SourceError: If the data are damaged, hostile, or in none of these formats, or if `source` is the `HOST:PORT` of a
        server; while iterating, also if `next_observations` does not match the next row in more than 1 % of
        the rows (see `independent_rows`).
      TypeError: If `source` is of any other type, such as a generator, which can be read only once.
      ValueError: If the arguments contradict each other.
    """
    ends = d4rl.EpisodeEnds(max_episode_steps, split_at_discontinuity, independent_rows)
    opened = _open(source, split, extra_fields, ends, data_dir, download=download)
    if independent_rows and opened.kind not in ("d4rl", "memory"):
        raise ValueError(
            f"independent_rows=True requires D4RL rows or logs, but {opened.name} is of kind {opened.kind!r}; "
            "leave it out"
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
    if isinstance(source, Source):
        return source
    if isinstance(source, Mapping):
        return d4rl.from_rows("rows in memory", source, extra_fields=extra_fields, ends=ends)
    if isinstance(source, (list, tuple)) and source and all(isinstance(each, (str, Path)) for each in source):
        sources = [_open(each, split, extra_fields, ends, data_dir, download=download) for each in source]
        return concatenate_sources(sources)
    if isinstance(source, (str, Path)):
        path = _find_path(source)
        if path is None:
            if matches := expand_pattern(source):
                return _open(matches, split, extra_fields, ends, data_dir, download=download)
            return _open_by_name(str(source), split, data_dir, extra_fields=extra_fields, download=download)
        return _open_directory(path, split, extra_fields) if path.is_dir() else _open_file(path, extra_fields, ends)
    if hasattr(source, "element_spec"):
        return rlds.from_rlds_dataset(source)
    return _open_episodes(source, independent_rows=ends.at_every_row)


def expand_pattern(location: str | Path) -> list[str]:
    """Returns the sorted paths that match a pattern such as `data/*.hdf5`; none if it is not a pattern.

    Raises:
      FileNotFoundError: If nothing matches.
    """
    pattern = str(location)
    if not glob.has_magic(pattern):
        return []
    matches = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
    if not matches:
        raise FileNotFoundError(f"no file matches {pattern[:100]!r}; check the path")
    return matches


def _open_episodes(source: Any, *, independent_rows: bool) -> Source:
    """Opens a list, an iterable or a function of episodes in memory."""
    type_name = type(source).__name__
    if isinstance(source, Sequence) and not isinstance(source, (bytes, bytearray)):
        return memory.from_episodes(source, independent_rows=independent_rows)
    if isinstance(source, Iterator):
        raise TypeError(
            f"a {type_name} can be read only once, but a dataset is read several times; pass the function that makes "
            "it: load(make_episodes) instead of load(make_episodes())"
        )
    if isinstance(source, Iterable) and not hasattr(source, "__array__") and not isinstance(source, type):
        name = f"a {type_name} of episodes"
        return memory.from_function(lambda: source, name=name, independent_rows=independent_rows)
    if callable(source):
        name = f"episodes of {getattr(source, '__name__', type_name)}"
        return memory.from_function(source, name=name, independent_rows=independent_rows)
    raise TypeError(f"source must be {_SUPPORTED}; got a {type_name}")


def _find_path(location: str | Path) -> Path | None:
    """Returns the existing path, or D4RL's own file, that a location stands for; None if it must be a name."""
    if server_address(location) is not None:
        raise SourceError(
            f"load() cannot read the server {location!r}; sample from it with sample_dataset(), or pass "
            f"Path({location!r}) for a file of that name"
        )
    try:
        path = Path(location).expanduser()
        if str(location) and path.exists():
            return path
    except (OSError, ValueError, RuntimeError):  # The name is too long, has a NUL byte, or names an unknown home.
        pass
    if isinstance(location, Path):
        raise FileNotFoundError(
            f"there is no file or directory {str(location)[:100]!r}; pass a string to look up a dataset by its name"
        )
    return d4rl_names.find_downloaded(location)


def _open_file(path: Path, extra_fields: Sequence[str], ends: d4rl.EpisodeEnds) -> Source:
    with hdf5.open_hdf5(path) as file:
        if robomimic.is_robomimic(file):
            return robomimic.open_robomimic(path)
    return d4rl.open_d4rl(path, extra_fields=extra_fields, ends=ends)


def _open_directory(path: Path, split: str, extra_fields: Sequence[str]) -> Source:
    if (path / "dataset_info.json").is_file() or (path / "features.json").is_file():
        return rlds.open_directory(path, split=split)
    if (path / "data" / "metadata.json").is_file():
        return minari.open_minari(path, extra_fields=extra_fields)
    datasets = [info.parent for depth in _DEPTHS for info in sorted(path.glob(f"{depth}dataset_info.json"))]
    datasets += [info.parents[1] for depth in _DEPTHS for info in sorted(path.glob(f"{depth}data/metadata.json"))]
    if len(datasets) == 1:
        return _open_directory(datasets[0], split, extra_fields)
    if datasets:
        names = ", ".join(str(dataset.relative_to(path)) for dataset in datasets[:5])
        raise SourceError(f"{path} contains {len(datasets)} datasets; specify one of them: {names}")
    raise SourceError(f"{path} contains no dataset (no dataset_info.json, no data/metadata.json); pass {_FILES}")


def _suggest_file(path: Path) -> str:
    """Returns the end of a message about a missing file: the most similar name in its folder."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"; the folder {str(path.parent)[:100]!r} does not exist either"
    return suggest(path.name, names) or "; check the path"


def _open_by_name(
    name: str, split: str, data_dir: str | Path | None, *, extra_fields: Sequence[str], download: bool
) -> Source:
    shown = repr(name[:100])
    if name and len(name) <= 300 and "\0" not in name and Path(name).suffix.lower() in _FILE_SUFFIXES:
        raise FileNotFoundError(f"there is no file {shown}{_suggest_file(Path(name).expanduser())}")
    if not name or name.startswith(("/", ".", "~")) or ".." in name or len(name) > 300 or "\0" in name:
        raise FileNotFoundError(f"there is no {shown}; pass {_FILES}")
    if not minari.is_minari_name(name):
        return rlds.open_builder(name, split=split, data_dir=data_dir, download=download)
    url = None if minari.is_installed(name) else d4rl_names.file_url(name)
    if url is not None:
        raise FileNotFoundError(
            f"D4RL's {name} is not on this machine; download {url} to {d4rl_names.dataset_dir()}, or download it "
            "anywhere and pass the path of the file"
        )
    return minari.open_minari(name, extra_fields=extra_fields, download=download)
