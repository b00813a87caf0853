"""Replay buffers of Diffusion Policy: the rows of all episodes in Zarr arrays, and the ends of the episodes.

Format: Chi et al. 2023, arXiv:2303.04137. `data/*` contain a row per step, the observation and the action taken there,
and `meta/episode_ends` the row after each episode. The observation after the last action is not stored. The package
zarr reads Zarr's formats 2 and 3, from a folder or a zip file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.system.installation import install_command
from rlds2reverb.system.text import format_bytes
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode

from ..formats import Format
from ..source import Source, identify_files
from . import npz
from .columns import ColumnReader, Paths, as_columns, describe_demonstrations, insert_column, make_demonstration
from .hdf5 import require_plausible_size

_ENDS, _TIMESTAMP = "meta/episode_ends", "timestamp"
#: Arrays that are no observations.
_FIELDS = ((fields.ACTION,), (_TIMESTAMP,))
#: The file that describes an array, in Zarr's formats 2 and 3.
_DESCRIPTIONS = (".zarray", "zarr.json")
#: Maximum unpacked size of a chunk, of which one is in memory at a time.
_MAX_CHUNK_BYTES = 512 << 20
_DAMAGE = (KeyError, OSError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile)


def open_replay_buffer(path: Path) -> Source:
    """Opens a replay buffer.

    `data/action` becomes the action, `data/timestamp` the times of the steps, and all other arrays of numbers in `data`
    the dict `observation`, with nested dicts for groups.

    The buffer has no rewards and does not say how episodes end; see `make_demonstration`.

    Args:
      path: the folder or the zip file.

    Raises:
      SourceError: If the package zarr or a codec is missing, the buffer is damaged or hostile, or it has no actions;
        while iterating, if a chunk is damaged.
    """
    name = path.resolve().name
    with _open_root(path) as root:
        ends = _read_ends(root, name)
        arrays, unread, warnings = _list_arrays(root, name, int(ends[-1]))
    starts = [0, *ends[:-1].tolist()]

    def read(left_out: Paths, first: int, stop: int | None) -> Iterator[Episode]:
        with _open_root(path) as root:
            for index in range(len(starts))[first:stop]:
                columns: dict[str, Any] = {}
                for names in arrays:
                    if names in left_out:
                        continue
                    where = f"{name}: 'data/{'/'.join(names)}', episode {index}"
                    with _name_damage(where):
                        column = as_columns(root["/".join(("data", *names))][starts[index] : int(ends[index])], where)
                    insert_column(columns, names if names in _FIELDS else (fields.OBSERVATION, *names), column, where)
                times = columns.pop(_TIMESTAMP, None)
                episode = make_demonstration(f"{name}: episode {index}", index, columns)
                yield replace(episode, timestamps=None if times is None else times.astype(np.float64))

    count, reader = len(starts), ColumnReader(read, lambda: {*arrays} - {*_FIELDS})
    source = Source(
        *(name, "diffusion_policy", reader.read, count, int(ends[-1])),
        warnings=(describe_demonstrations(name), *warnings),
        unread=unread,
        assumed_fields=(fields.REWARD,),
        count=lambda: count,
    )
    return identify_files(source, lambda: [path] if path.is_file() else filter(Path.is_file, path.rglob("*")))


@contextlib.contextmanager
def _name_damage(where: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, SourceError):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise SourceError(f"{where} cannot be read ({reason}); copy or download it again") from error


@contextlib.contextmanager
def _open_root(path: Path) -> Iterator[Any]:
    """Opens the group that contains `data` and `meta`."""
    try:
        import zarr
    except ImportError as error:
        raise SourceError(f"Zarr files require the package zarr ({error}); run {install_command('zarr')}") from error
    if importlib.util.find_spec("imagecodecs"):  # The codecs of UMI's images.
        from imagecodecs.numcodecs import register_codecs

        register_codecs()
    found = _find_root(path)
    if found is None:
        raise SourceError(f"{path} is missing {_ENDS}; copy or download it again")
    place, description = found
    if description == "zarr.json" and int(zarr.__version__.partition(".")[0]) < 3:
        raise SourceError(
            f"{path.name} has Zarr's format 3, which zarr {zarr.__version__} cannot read; use Python 3.12 or later "
            "with zarr 3, or write it with zarr_format=2"
        )
    with contextlib.ExitStack() as stack, _name_damage(path.name):
        store: Any = str(path)
        if path.is_file():
            with zipfile.ZipFile(path) as archive:
                sizes = [(member.compress_size, member.file_size) for member in archive.infolist()]
            require_plausible_size(path.name, *map(sum, zip(*sizes, strict=True)))
            store = stack.enter_context(contextlib.closing(zarr.storage.ZipStore(path, mode="r")))
        yield zarr.open_group(store, path=place, mode="r")


def _find_root(path: Path) -> tuple[str, str] | None:
    """Returns the path of the group inside a zip file, and the name of the file that describes `episode_ends`."""
    if path.is_dir():
        found = [name for name in _DESCRIPTIONS if (path / _ENDS / name).is_file()]
        return ("", found[0]) if found else None
    if not npz.is_npz(path):
        return None
    with npz.name_damage(path), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            for description in _DESCRIPTIONS:
                if f"/{name}".endswith(f"/{_ENDS}/{description}"):
                    return name[: -len(f"{_ENDS}/{description}")].strip("/"), description
    return None


def _read_ends(root: Any, name: str) -> np.ndarray:
    with _name_damage(f"{name}: '{_ENDS}'"):
        stored = _require_safe(root[_ENDS], f"{name}: '{_ENDS}'")
        ends = np.asarray(stored[:])
    if ends.ndim != 1 or not len(ends) or ends.dtype.kind not in "iu" or (np.diff(ends, prepend=0) < 1).any():
        raise SourceError(
            f"{name}: '{_ENDS}' must be the ascending ends of the episodes, got {ends.dtype} "
            f"{ends.reshape(-1)[:5].tolist()}"
        )
    return ends.astype(np.int64)


def _list_arrays(root: Any, name: str, num_rows: int) -> tuple[list[tuple[str, ...]], tuple[str, ...], list[str]]:
    """Returns the paths of the arrays to read, and of others, and sentences about rows and chunks."""
    arrays: list[tuple[str, ...]] = []
    unread: list[str] = []
    warnings: list[str] = []
    groups: list[tuple[tuple[str, ...], Any]] = [((), _open(root, "data", name))]
    while groups:
        path, group = groups.pop()
        for key in sorted(group):
            inner, where = (*path, key), f"{name}: 'data/{'/'.join((*path, key))}'"
            member = _open(group, key, name)
            if not hasattr(member, "shape"):
                groups.append((inner, member))
                continue
            if member.dtype.kind not in "biuf" or not member.shape:
                unread.append("/".join(inner))
                continue
            _require_safe(member, where)
            if member.shape[0] < num_rows:
                raise SourceError(f"{where} must have the {num_rows:,} rows of {_ENDS}, got {member.shape[0]:,}")
            warnings += _describe_array(member, where, num_rows)
            arrays.append(inner)
    if (fields.ACTION,) not in arrays:
        raise SourceError(
            f"{name} has no '{fields.ACTION}' in data, which has {', '.join('/'.join(path) for path in arrays)}; UMI's "
            "loader computes actions from poses of the gripper: store them as data/action"
        )
    return sorted(arrays), tuple(sorted(unread)), warnings


def _open(group: Any, key: str, name: str) -> Any:
    with _name_damage(f"{name}: '{key}'"):
        return group[key]


def _describe_array(array: Any, where: str, num_rows: int) -> Iterator[str]:
    if array.shape[0] > num_rows:
        yield f"{where} has {array.shape[0] - num_rows:,} rows after the last episode, which are left out"
    missing = array.nchunks - array.nchunks_initialized
    if missing:
        yield (
            f"{where}: {missing:,} of {array.nchunks:,} chunks are not stored and stand for {array.fill_value}; copy "
            "it again unless it was written without empty chunks"
        )


def _require_safe(array: Any, where: str) -> Any:
    """Returns an array unless it needs too much memory, or decodes its chunks by unpickling them."""
    codecs = getattr(array, "metadata", None) or [array.compressor, array.filters]
    if array.dtype.hasobject or "pickle" in str(codecs).lower():
        raise SourceError(f"{where} contains Python objects, which are not unpickled; store plain numbers")
    chunk_bytes = array.dtype.itemsize * math.prod(array.chunks)
    if chunk_bytes > _MAX_CHUNK_BYTES:
        raise SourceError(
            f"{where} has chunks of {format_bytes(chunk_bytes)}; the limit is {format_bytes(_MAX_CHUNK_BYTES)}"
        )
    stored = array.nbytes_stored
    require_plausible_size(where, stored() if callable(stored) else stored, array.nbytes)
    return array


def _is_replay_buffer(location: Any) -> bool:
    return isinstance(location, Path) and _find_root(location) is not None


BUFFER = Format("a replay buffer of Diffusion Policy", _is_replay_buffer, open_replay_buffer, (), "Zarr", (".zarr",))
