"""Safe reading of untrusted HDF5 files: nothing outside of the file is read, and sizes are bounded.

An HDF5 file can refer to other files (external links, external raw storage, virtual datasets), contain Python objects
or circular links, and declare far more data than it stores. All of this is checked before any data are read.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.system.text import format_bytes

from .columns import as_columns

_NUMPY_MAGICS = (b"\x93NUMPY", b"PK\x03\x04")
#: The filters built into HDF5 and h5py: deflate, shuffle, fletcher32, szip, nbit, scaleoffset and lzf. HDF5 would
#: search for any other filter in shared libraries.
_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})
_MAX_SCALAR_BYTES = 1 << 16
#: Maximum declared size of a column.
_MAX_BYTES = 256 << 30
#: Maximum unpacked size of a chunk or a row, which has to fit in memory.
MAX_CHUNK_BYTES = 64 << 20
#: Maximum ratio of declared to stored size. Gzip reaches 1000 only on zeros.
MAX_EXPANSION = 200.0
#: Size up to which `MAX_EXPANSION` does not apply, because flags are mostly zeros.
EXPANSION_FREE_BYTES = 128 << 20


#: What files of other kinds begin with, and what to do with them.
_OTHER_KINDS = {
    rb"PAR1": "it is parquet; pass the directory of the LeRobot dataset, which contains meta/info.json",
    rb"(\xef\xbb\xbf)?\s*[\[{]": "it is JSON; pass the directory of the dataset that it describes, or its HDF5 file",
    rb"\x80[\x02-\x05]": "it is a pickle, which may run any code and is not read; load it and pass the episodes",
    rb".{4}ftyp": "it is a video; pass the directory of the LeRobot dataset, which contains meta/info.json",
    rb"\x1f\x8b": "it is compressed with gzip; unpack it",
    rb"SQLite|\x89MCAP": "it is a bag; name it .db3 or .mcap",
    rb"#ROSBAG V": "it is a bag of ROS 1; convert it with rosbags-convert",
    rb"version https://git-lfs": "it is a pointer of Git LFS; run git lfs pull",
    rb".{4}\0{4}": "it may be a TFRecord; pass the directory that contains dataset_info.json",
    rb"(\xef\xbb\xbf)?[\t\r\n -~]+$": "it is text; read it and pass the list of episodes",
}


def _describe_content(path: Path) -> str:
    """Returns the end of a message about a file of a different kind; '' if the kind is not known."""
    with path.open("rb") as stream:
        head = stream.read(64)
    advice = (advice for pattern, advice in _OTHER_KINDS.items() if re.match(pattern, head, re.DOTALL))
    return "".join(f"; {sentence}" for sentence in itertools.islice(advice, 1))


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Opens an HDF5 file for reading.

    Raises:
      SourceError: If it is empty, truncated, or not an HDF5 file; inside the block, if HDF5 finds damage later.
    """
    if not path.is_file():
        raise SourceError(f"{path.name} is not a regular file")
    with path.open("rb") as stream:
        head = stream.read(8)
    if not head:
        raise SourceError(f"{path.name} is empty (0 bytes); copy or download it again")
    if head.startswith(_NUMPY_MAGICS):
        raise SourceError(
            f"{path.name} must be HDF5, got a NumPy file or archive; read it with numpy.load(allow_pickle=False) and "
            "pass the arrays to rlds2reverb.load"
        )
    if not h5py.is_hdf5(path):
        raise SourceError(f"{path.name} is not an HDF5 file (it has no HDF5 signature){_describe_content(path)}")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise SourceError(f"{path.name} is open for writing in another process; wait until it is closed") from error
        raise SourceError(f"{path.name} is truncated or damaged; copy or download it again ({error})") from error
    with file:
        try:
            yield file
        except (OSError, RuntimeError) as error:  # h5py raises RuntimeError for most HDF5 errors.
            raise SourceError(f"{path.name} is damaged; copy or download it again ({error})") from error


def open_column(group: h5py.Group, name: str) -> h5py.Dataset | None:
    """Returns the numeric dataset `name` of an open file or of a group in it, or None.

    Raises:
      SourceError: If it is a link, is stored in other files, is not a numeric dataset, or exceeds a limit.
    """
    node = _find_node(group, name)
    if node is None:
        return None
    where = describe_member(group, name)
    if not isinstance(node, h5py.Dataset):
        raise SourceError(f"{where} must be a dataset of numbers, got a group")
    if node.dtype.kind not in "biuf":
        raise SourceError(f"{where} must contain numbers (bool, integer or float), got {_dtype_name(node.dtype)}")
    if node.shape is None:
        raise SourceError(f"{where} is empty (it has a null dataspace)")
    require_safe([node], where)
    return node


def open_member(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """Returns the member `name` of a group, or None if it has no such member.

    Raises:
      SourceError: If it is a link of any kind, cannot be opened, or has a type that NumPy does not support.
    """
    link = group.get(name, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        target = f"link to another file ({link.filename!r})" if isinstance(link, h5py.ExternalLink) else "soft link"
        raise SourceError(f"{describe_member(group, name)} is a {target}; copy the data instead of linking")
    try:
        opened = group[name]
    except (KeyError, OSError) as error:
        raise SourceError(f"{describe_member(group, name)} cannot be opened; the file is damaged ({error})") from error
    try:
        getattr(opened, "dtype", None)
    except (TypeError, ValueError) as error:
        where = describe_member(group, name)
        raise SourceError(f"{where} is damaged, or has a type that NumPy does not support ({error})") from error
    return opened


def open_group(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """Returns what `open_member` returns, several times as fast for a group."""
    opened = _open_hard(group, name, h5py.h5g.open)
    return open_member(group, name) if opened is None else h5py.Group(opened)


def read_column(group: h5py.Group, name: str) -> np.ndarray | None:
    """Returns the values of what `open_column` returns, several times as fast for a small dataset in one piece."""
    opened = _open_hard(group, name, h5py.h5d.open)
    values = None if opened is None else _read_piece(opened)
    if values is None:
        column = open_column(group, name)
        values = None if column is None else column[()]
    return values


def read_nest(
    group: h5py.Group,
    name: str,
    where: str,
    *,
    left_out: Collection[tuple[str, ...]] = (),
    above: frozenset[int] = frozenset(),
) -> Any:
    """Returns a column `[T, ...]`, or nested dicts of columns for a group; None if there is no such member.

    Args:
      group: the group that contains it.
      name: its name.
      where: the file and the path of the group, for messages.
      left_out: paths in the group of columns that are not read.
      above: addresses of the groups that contain the group.

    Raises:
      SourceError: If a column is refused (see `open_column`), or a group contains itself.
    """
    where = f"{where}/{name}"
    opened = _open_hard(group, name, h5py.h5d.open)
    values = None if opened is None else _read_piece(opened)
    if values is None:
        member = open_member(group, name)
        if isinstance(member, h5py.Group):
            address = h5py.h5o.get_info(member.id).addr
            if address in above:
                raise SourceError(f"{where}' contains itself; a group must have one path")
            inner = {
                key: read_nest(
                    *(member, key, where),
                    left_out={path[1:] for path in left_out if path[0] == key},
                    above=above | {address},
                )
                for key in sorted(list_names(member))
                if (key,) not in left_out
            }
            return {key: nest for key, nest in inner.items() if not isinstance(nest, dict) or nest}
        values = None if member is None else read_column(group, name)
    return None if values is None else as_columns(values, f"{where}'")


def _open_hard(group: h5py.Group, name: str, open_id: Callable[[Any, bytes], Any]) -> Any:
    """Returns the HDF5 id of a member, or None if it is of a different kind, a link, missing or damaged."""
    try:
        key = name.encode()
        is_hard = group.id.links.get_info(key).type == h5py.h5l.TYPE_HARD
        return open_id(group.id, key) if is_hard else None
    except (KeyError, OSError, RuntimeError, TypeError, ValueError):
        return None


def _read_piece(dataset: h5py.h5d.DatasetID) -> np.ndarray | None:
    """Returns the numbers of a dataset; None unless they are in the file, unfiltered, in one piece and few enough.

    Such a dataset passes all checks of `require_safe`.
    """
    try:
        dtype = dataset.dtype
    except (TypeError, ValueError):
        return None
    # HDF5 knows no offset of data in chunks or in other files.
    if dtype.kind not in "biuf" or dataset.get_offset() is None:
        return None
    num_bytes = dtype.itemsize * math.prod(dataset.shape or (0,))
    if not 0 < num_bytes <= MAX_CHUNK_BYTES or dataset.get_storage_size() != num_bytes:
        return None
    values = np.empty(dataset.shape, dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def describe_member(group: h5py.Group, name: str) -> str:
    """Returns the file and the path of a member, for messages."""
    file = os.path.basename(os.fsdecode(h5py.h5f.get_name(group.id)))  # `group.file` would open a new handle.
    return f"{file}: '{'/'.join([group.name, name]).strip('/')}'"


def list_columns(file: h5py.File, name: str) -> list[tuple[str, ...]]:
    """Returns the paths of all datasets in the group `name`, relative to it; none if it is not a group.

    Raises:
      SourceError: If a member is a link, or a group has several paths.
    """
    node = _find_node(file, name)
    return sorted(path for path, _ in walk(node)) if isinstance(node, h5py.Group) else []


def list_all_columns(path: Path, names: Iterable[str]) -> set[tuple[str, ...]]:
    """Returns the paths of the datasets in any of some groups of a file, relative to them, unless they are damaged."""
    found: set[tuple[str, ...]] = set()
    with suppress(SourceError), open_hdf5(path) as file:
        for name in names:
            with suppress(SourceError):
                found.update(list_columns(file, name))
    return found


def _find_node(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    node: Any = group
    for part in name.split("/"):
        node = open_member(node, part) if isinstance(node, h5py.Group) else None
    return node


def walk(top: h5py.Group) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields all members of a group and of the groups in it, except for the groups themselves, with their paths.

    Raises:
      SourceError: If a member is a link, or a group has several paths.
    """
    groups: list[tuple[h5py.Group, tuple[str, ...]]] = [(top, ())]
    visited = set()
    while groups:
        group, path = groups.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in visited:
            raise SourceError(
                f"{Path(top.file.filename).name}: '{group.name}' has several paths; a group must have one"
            )
        visited.add(address)
        for name in list_names(group):
            member = open_member(group, name)
            if isinstance(member, h5py.Group):
                groups.append((member, (*path, name)))
            else:
                yield (*path, name), member


def list_names(group: h5py.Group) -> list[str]:
    """Returns the names of a group's members.

    Raises:
      SourceError: If one is not UTF-8.
    """
    names = list(group)
    for name in names:
        if not isinstance(name, str):
            raise SourceError(
                f"{Path(group.file.filename).name}: '{group.name}' has a member named {name!r}; rename it in UTF-8"
            )
    return names


def read_scalars(file: h5py.File, name: str) -> dict[str, Any]:
    """Returns the single numbers and short strings of a group, such as D4RL's `metadata`; ignores other members."""
    try:
        group = open_member(file, name)
    except SourceError:
        return {}
    if not isinstance(group, h5py.Group):
        return {}
    values = {key: _read_scalar(group, key) for key in group if isinstance(key, str)}  # Other keys are not UTF-8.
    return {key: value for key, value in values.items() if value is not None}


def _read_scalar(group: h5py.Group, name: str) -> Any:
    try:
        dataset = open_member(group, name)
        if not isinstance(dataset, h5py.Dataset) or dataset.shape != () or dataset.dtype.kind not in "biufS":
            return None
        _require_own_data(dataset, name)
        value = dataset[()].item() if dataset.dtype.itemsize <= _MAX_SCALAR_BYTES else None
    except (SourceError, OSError):  # Metadata is optional.
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _require_own_data(dataset: h5py.Dataset, where: str) -> None:
    """Raises `SourceError` if a dataset is stored in other files, or needs a filter that is not built in."""
    if dataset.is_virtual:
        raise SourceError(f"{where} is a virtual dataset, which reads other files; copy the data into this file")
    if dataset.external:
        raise SourceError(
            f"{where} stores its data in another file ({dataset.external[0][0]!r}); copy the data into this file"
        )
    properties = dataset.id.get_create_plist()
    for position in range(properties.get_nfilters()):
        filter_id = properties.get_filter(position)[0]
        if filter_id not in _FILTERS:
            raise SourceError(f"{where} requires the HDF5 filter {filter_id}, which is not built in; use gzip")


def _dtype_name(dtype: np.dtype) -> str:
    return {"O": "Python objects or strings", "S": "byte strings", "V": "records"}.get(dtype.kind, str(dtype))


def require_plausible_size(where: str, stored_bytes: int, declared_bytes: int) -> None:
    """Raises `SourceError` if data would become far larger than they are stored."""
    if declared_bytes > EXPANSION_FREE_BYTES and declared_bytes > MAX_EXPANSION * stored_bytes:
        raise SourceError(
            f"{where} would expand from {format_bytes(stored_bytes)} to {format_bytes(declared_bytes)}, more than "
            f"{MAX_EXPANSION:.0f} times; it looks like a compression bomb"
        )


def require_safe(datasets: Collection[h5py.Dataset], where: str) -> None:
    """Raises `SourceError` if datasets refer to other files, in total exceed a limit, or are incomplete."""
    require_bounded(datasets, where)
    for dataset in datasets:
        require_complete(dataset, where)


def require_complete(dataset: h5py.Dataset, where: str) -> None:
    """Raises `SourceError` if chunks of a dataset are missing."""
    if missing := _count_missing_chunks(dataset):
        raise SourceError(
            f"{where} is missing {missing:,} of its chunks, because it was not written completely; write it again, "
            "zeros included"
        )


def require_bounded(datasets: Collection[h5py.Dataset], where: str) -> None:
    """Raises `SourceError` if datasets refer to other files, or in total exceed a limit."""
    for dataset in datasets:
        _require_own_data(dataset, where)
    declared = sum(_declared_bytes(dataset) for dataset in datasets)
    stored = sum(dataset.id.get_storage_size() for dataset in datasets)
    if declared > _MAX_BYTES:
        raise SourceError(f"{where} declares {format_bytes(declared)}; the limit is {format_bytes(_MAX_BYTES)}")
    require_plausible_size(where, stored, declared)
    for dataset in datasets:
        shapes = [dataset.shape[1:], *([dataset.chunks] if dataset.chunks else [])]
        largest = max(dataset.dtype.itemsize * math.prod(shape) for shape in shapes)
        if largest > MAX_CHUNK_BYTES:
            raise SourceError(
                f"{where} has rows or chunks of {format_bytes(largest)}; the limit is {format_bytes(MAX_CHUNK_BYTES)}"
            )


def _declared_bytes(dataset: h5py.Dataset) -> int:
    return dataset.dtype.itemsize * math.prod(dataset.shape or (0,))


def _count_missing_chunks(dataset: h5py.Dataset) -> int:
    if not _declared_bytes(dataset):
        return 0
    if dataset.chunks is None:
        return int(not dataset.id.get_storage_size())
    per_axis = [-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    return math.prod(per_axis) - dataset.id.get_num_chunks()
