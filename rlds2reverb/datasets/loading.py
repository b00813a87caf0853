"""`load`, which opens a dataset of any supported format as a `Source`."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rlds2reverb.errors import ArgumentError, SourceError
from rlds2reverb.system.installation import explain_left_out
from rlds2reverb.system.text import list_some, suggest
from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.locations import is_table_directory, server_address

from .concatenation import concatenate_sources
from .formats import Format, require_applicable
from .mapping.episode_operations import select_slice
from .mapping.mapping import DatasetMapping
from .readers import (
    aloha,
    bags,
    d4rl,
    d4rl_names,
    diffusion_policy,
    dqn_replay,
    in_memory,
    lerobot,
    maniskill,
    minari,
    neorl,
    ogbench,
    remote,
    rlds,
    robomimic,
    vd4rl,
)
from .readers.autoreset import AutoresetMode, remove_resets, warn_of_resets
from .readers.rlds_conventions import LastStep
from .source import Identity, Source
from .steps import stores
from .valid_episodes import skip_invalid

_PATHS = [
    bags.BAGS,
    *(ogbench.FILE, neorl.FILE, vd4rl.FILE, robomimic.FILE, aloha.FILE, maniskill.FILE, diffusion_policy.BUFFER),
    d4rl.FILE,
    *(rlds.DIRECTORY, minari.DIRECTORY, lerobot.DIRECTORY, aloha.FOLDER, vd4rl.FOLDER, dqn_replay.FOLDER),
    stores.DIRECTORY,
]
_NAMES = [d4rl_names.NAME, ogbench.NAME, minari.NAME, rlds.NAME]
_OBJECTS = [ogbench.COLUMNS, neorl.COLUMNS, d4rl.COLUMNS, minari.OBJECT, rlds.DATASET, in_memory.EPISODES]
#: The formats, of which the first that matches is used; custom ones come first.
FORMATS = [*_PATHS, *_NAMES, *_OBJECTS]
_NUM_BUILT_IN = len(FORMATS)
_LOCATIONS = f"{', '.join(map(str, [*_PATHS, *_NAMES]))}, or a pattern (*.hdf5)"
_SUPPORTED = (
    f"{_LOCATIONS}; a list of these or of episodes, a function that returns an iterable of episodes, "
    f"{', '.join(map(str, _OBJECTS[:-1]))}"
)
#: Levels below a directory at which a dataset is searched for: name/config/version and namespace/name/version.
_DEPTHS = ("*/", "*/*/", "*/*/*/")


def register_format(custom_format: Format) -> None:
    """Registers a custom format, which `load` and everything that calls it try before all others."""
    FORMATS.insert(0, custom_format)


def load(
    source: Any,
    *,
    split: str | None = None,
    extra_fields: Sequence[str] = (),
    max_episode_steps: int | None = None,
    split_at_discontinuity: bool = False,
    independent_rows: bool = False,
    autoreset: AutoresetMode | None = None,
    last_step: LastStep = "auto",
    missing: Mapping[str, float] | Iterable[tuple[str, float]] | None = None,
    image_decoding: bool = True,
    frame_stack: int | None = None,
    done: Literal["terminal", "truncated"] | None = None,
    cameras: Sequence[str] | None = None,
    tolerance_s: float | None = None,
    mapping: Any = None,
    topics: str | Path | Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    on_invalid: Literal["error", "skip_episode"] = "error",
) -> Source:
    """Opens a dataset as a `Source`; the format is detected.

    Args:
      source: one of these:

        - a path: an HDF5 file of D4RL, robomimic, Isaac Lab, ALOHA or ManiSkill; an npz file of D4RL, OGBench or NeoRL;
          a directory that TFDS prepared, or one above it that contains a single dataset; a Minari or LeRobot directory;
          a folder of ALOHA, V-D4RL, DrQ-v2 or Atari DQN Replay; a Zarr folder or zip file of Diffusion Policy;
          an MCAP file, a bag of ROS 2, or a folder of these. A `Path` is always a path;
        - an address such as `https://host/x.npz` or `s3://bucket/folder`, which fsspec copies to this machine;
        - a string that is not an existing path: the name of a dataset of TFDS (`d4rl_mujoco_hopper/v2-medium`), Minari
          (`mujoco/hopper/expert-v0`), OGBench (`cube-single-play-v0`, looked up in `~/.ogbench/data`) or D4RL
          (`hopper-medium-v2`, looked up in D4RL's own directory, `$D4RL_DATASET_DIR` or `~/.d4rl/datasets`);
        - a pattern such as `data/*.hdf5`, or a list of paths, patterns or names: several datasets of one kind, read in
          the order of the list, and by name for a pattern;
        - a list of episodes, each a dict of arrays, see `in_memory.from_episodes`; or, if they do not fit in memory, a
          function that returns an iterable of them (such as a generator function, not called), or an object that can
          be iterated repeatedly;
        - a dict of arrays under D4RL's, OGBench's or NeoRL's names, as returned by `env.get_dataset()`;
        - a `minari.MinariDataset`, of which only the selected episodes are read;
        - an RLDS `tf.data.Dataset`;
        - a `Source`, which is returned unchanged.
      split: the split to read, or a slice of its episodes (`train[:10%]`, `valid[5:]`). For TFDS the default is
        `train`; for robomimic it is a filter key (`valid`), for LeRobot a name in `splits` of `info.json`, and the
        default is all episodes; for OGBench names it is `train`, the default, or `val`. Other formats have slices only
        (`[:10%]`).
      extra_fields: D4RL, Minari, OGBench and LeRobot only: names of `infos/*` columns, or groups of them, to read as
        additional step fields; for OGBench, of columns such as `qpos`, and for LeRobot, such as `timestamp`.
      max_episode_steps: D4RL and NeoRL only: for D4RL, maximum number of rows in an episode; longer ones are truncated
        there. One way to read data without `timeouts`. For NeoRL, number of rows of truncated trajectories.
      split_at_discontinuity: D4RL only: whether to end an episode wherever `observations[t + 1]` is not
        `next_observations[t]`. The other way to read data without `timeouts`.
      independent_rows: D4RL and logs only: whether to read each row as an episode of one transition, truncated unless
        it is terminal. For rows that were shuffled or relabelled, so that `next_observations[t]` is not
        `observations[t + 1]`.
      autoreset: D4RL, logs, Minari and RLDS only: mode of the vector environment whose resets the episodes contain, as
        in Gymnasium. 'next_step' leaves out the first step of each episode that is the reset after the one before;
        'same_step' reads final observations as unknown, because they are the first ones of the next episodes.
      last_step: RLDS only: meaning of the last row of an episode. 'boundary': the row has the final observation, and
        its action and reward mean nothing, as RLDS defines it. 'transition': the row is a transition like the others,
        as in many datasets of robots; its next observation is unknown, see `Episode.unknown_final_observation`.
        'auto' reads the first 16 episodes: a reward or a new action in the last row is evidence of a transition, an
        action that becomes zero there of a boundary.
      missing: RLDS only: values of the fields 'reward', 'discount' and 'is_terminal' (at the end of each episode) for
        datasets without them. By default, a discount is 1, or 0 at terminal ends; an episode is terminal if its last
        discount is 0; and rewards are 0, from which only cloning can learn (see `Source.assumed_fields`).
      image_decoding: TFDS and stores only: whether images become arrays. If False, they remain bytes in the encoding of
        the file, such as JPEG.
      frame_stack: Atari DQN Replay only: number of frames in an observation, on the last axis, newest last; zeros stand
        before the first frame of an episode.
      done: LeRobot only: meaning of `next.done` in an episode that neither succeeds nor is truncated: 'terminal' or
        'truncated'; the default depends on the dataset, and a warning says what was assumed.
      cameras: LeRobot and ALOHA only: columns of images and videos to read, such as 'observation.images.front' or only
        'front'; an empty list reads none. By default all are read. The videos of other cameras are not decoded.
      tolerance_s: LeRobot only: maximum difference in seconds between the timestamp of a row and that of its video
        frame, the nearest one; by default a quarter of the interval between rows. `validate` reports differences.
      mapping: changes of fields, episodes and rates, such as `{"rename": {"observation.agentview_image":
        "observation.images.front"}}`, or the path of a YAML file of them; see docs/preprocessing.md.
      topics: MCAP only: fields of MCAP files and ROS 2 bags, as a YAML or JSON file or a dict: `rate`, the number of
        steps per second, and `fields`, by name such as 'observation.state' a topic with the path in its messages such
        as '/joint_states.position'; see `bags.open_bags`.
      data_dir: names of TFDS and OGBench only: the data directory in which names are looked up.
      download: names of TFDS and Minari only: whether a dataset that is not on this machine may be downloaded.
      on_invalid: handling of episodes that cannot be read, or have errors (see `episodes.find_errors`): 'error', or
        'skip_episode', which leaves them out and lists them in `Source.skipped`.

    Returns:
      A `Source`, an iterable of episodes.

    Raises:
      FileNotFoundError: If the path does not exist, a pattern matches nothing, or the named dataset is not on this
        machine.
      SourceError: If the data are damaged, hostile, or in none of these formats, if `source` is the `HOST:PORT` of a
        server, or if the last rows of RLDS episodes disagree or do not tell what they mean; while iterating, also if
        `next_observations` does not match the next row in more than 1 % of the rows (see `independent_rows`).
      TypeError: If `source` is of any other type, such as a generator, which can be read only once.
      ValueError: If an option does not apply to the format, or the options contradict each other.
    """
    options = {
        "split": split,
        "extra_fields": tuple(extra_fields) or None,
        "max_episode_steps": max_episode_steps,
        "split_at_discontinuity": split_at_discontinuity or None,
        "independent_rows": independent_rows or None,
        "autoreset": autoreset,
        "last_step": None if last_step == "auto" else last_step,
        "missing": dict(missing or ()) or None,
        "image_decoding": None if image_decoding else False,
        "frame_stack": frame_stack,
        "done": done,
        "cameras": None if cameras is None else (cameras,) if isinstance(cameras, str) else tuple(cameras),
        "tolerance_s": tolerance_s,
        "topics": topics,
        "data_dir": data_dir,
        "download": download or None,
    }
    if autoreset is not None and independent_rows:
        raise ArgumentError("makes each row an episode", about="independent_rows", value=True, autoreset=autoreset)
    require_one_of("on_invalid", on_invalid, ("error", "skip_episode"))
    changes = None if mapping is None else DatasetMapping.parse(mapping)
    opened = _open(source, {name: value for name, value in options.items() if value is not None})
    if autoreset is not None:
        opened = remove_resets(opened, autoreset)
    elif opened is not source:
        opened = warn_of_resets(opened)
    opened = opened if on_invalid == "error" else skip_invalid(opened)
    return opened if changes is None else changes.apply(opened)


def _open(source: Any, options: dict[str, Any]) -> Source:
    if isinstance(source, Source):
        require_applicable(options, (), "a Source, which is open already")
        return source
    if isinstance(source, os.PathLike):  # Also TFDS's own paths, such as `builder.data_path`.
        source = Path(source)
    location = _locate(source) if isinstance(source, (str, Path)) else source
    parts = location if isinstance(location, (list, tuple)) else ()
    if parts and all(isinstance(part, (str, os.PathLike)) for part in parts):
        return concatenate_sources([_open(part, options) for part in parts])
    found = _find_format(location)
    if found is None and isinstance(location, Path):
        location = _find_only_dataset(location)
        found = _find_format(location)
    if found is None:
        raise TypeError(f"source must be {_SUPPORTED}; got a {type(source).__name__}")
    options, part = _separate_slice(options, found)
    require_applicable(options, found.options, found.name)
    opened_ns = time.time_ns()
    with explain_left_out(found.name):
        opened = found.open(location, **{name: value for name, value in options.items() if name != "autoreset"})
    is_copy = isinstance(source, str) and remote.is_remote(source)  # Each process has its own copy.
    opened = opened if is_copy else _identify(opened, found, location, options, opened_ns)
    return opened if part is None else select_slice(opened, part)


def _separate_slice(options: dict[str, Any], found: Format) -> tuple[dict[str, Any], str | None]:
    """Returns options without the slice of a split such as 'train[:10%]', and the slice, unless the format has them."""
    match = re.fullmatch(r"(\w*)\[(.*)\]", str(options.get("split")))
    if match is None or found in (rlds.DIRECTORY, rlds.NAME):
        return options, None
    rest = {name: value for name, value in options.items() if name != "split"}
    is_all = not match[1] or (match[1] == "train" and "split" not in found.options)
    return (rest if is_all else {**rest, "split": match[1]}), match[2]


def _identify(source: Source, found: Format, location: Any, options: Mapping[str, Any], opened_ns: int) -> Source:
    """Returns a source that knows what it was made from, if a format of this package has read a path or a name."""
    identity = source.identity
    if identity is None and isinstance(location, Path) and location.is_file():
        identity = Identity(source.read, files=lambda: [location])
    if identity is None or found not in FORMATS[-_NUM_BUILT_IN:] or not isinstance(location, (str, Path)):
        return source
    return replace(source, identity=replace(identity, options=[found.name, options], opened_ns=opened_ns))


def _find_format(location: Any) -> Format | None:
    return next((candidate for candidate in FORMATS if candidate.matches(location)), None)


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


def _locate(location: str | Path) -> Path | list[str] | str:
    """Returns the existing path that a location stands for, the paths that match a pattern, or a dataset's name."""
    if server_address(location) is not None:
        raise SourceError(
            f"load() cannot read the server {location!r}; sample from it with sample_dataset(), or pass "
            f"Path({location!r}) for a file of that name"
        )
    if isinstance(location, str) and remote.is_remote(location):
        return remote.copy_to_disk(location)
    # The name may be too long, have a NUL byte, or name an unknown home.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = Path(location).expanduser()
        if str(location) and path.exists():
            return path
    if isinstance(location, Path):
        raise FileNotFoundError(
            f"there is no file or directory {str(location)[:100]!r}; pass a string to look up a dataset by its name"
        )
    found = d4rl_names.find_downloaded(location) or expand_pattern(location)
    if not found:
        _require_name(location)
    return found or location


def _list_suffixes() -> set[str]:
    """Returns the suffixes of files that are datasets."""
    return {suffix for file_format in FORMATS for suffix in file_format.suffixes}


def _require_name(name: str) -> None:
    """Raises `FileNotFoundError` for a string that is meant to be a path."""
    shown = repr(name[:100])
    if name and len(name) <= 300 and "\0" not in name and Path(name).suffix.lower() in _list_suffixes():
        raise FileNotFoundError(f"there is no file {shown}{_suggest_file(Path(name).expanduser())}")
    if not name or name.startswith(("/", ".", "~")) or ".." in name or len(name) > 300 or "\0" in name:
        raise FileNotFoundError(f"there is no {shown}; pass {_LOCATIONS}")


def _suggest_file(path: Path) -> str:
    """Returns the end of a message about a missing file: the most similar name in its folder."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix.lower() in _list_suffixes()]
    except OSError:
        return f"; the folder {str(path.parent)[:100]!r} does not exist either"
    # The suffix, which all of them have, would make any short name similar.
    return suggest(path.name, names, key=lambda name: Path(name).stem.lower()) or "; check the path"


def _find_only_dataset(path: Path) -> Path:
    """Returns the only dataset below a directory."""
    below = (part for depth in _DEPTHS for part in sorted(path.glob(depth)))
    datasets = [part for part in below if part.is_dir() and _find_format(part)]
    if len(datasets) == 1:
        return datasets[0]
    if datasets:
        names = list_some([str(dataset.relative_to(path)) for dataset in datasets])
        raise SourceError(f"{path} contains {len(datasets)} datasets; specify one of them: {names}")
    if is_table_directory(path):
        raise SourceError(f"{path} contains Reverb tables; pass the dataset that they were converted from")
    parts = (part for depth in ("", *_DEPTHS) for part in sorted(path.glob(f"{depth}*")))
    files = [part for part in parts if part.suffix.lower() in _list_suffixes() and part.is_file()]
    if files:
        sentence = "is a folder of files; pass one of them, or a pattern"
        raise SourceError(f"{path} {sentence}: {list_some([str(file.relative_to(path)) for file in files])}")
    raise SourceError(
        f"{path} contains no dataset (no dataset_info.json, data/metadata.json or meta/info.json); pass {_LOCATIONS}"
    )
