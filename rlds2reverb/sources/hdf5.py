"""HDF5 files from anywhere, opened with care: nothing outside the file is read, and nothing without bound.

An HDF5 file can name other files (external links, external raw storage, virtual data sets), can hold Python objects,
can point in circles, and can declare far more data than it holds. All of that is looked at before any data are read.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb._units import bytes_text
from rlds2reverb.errors import SourceError

_NUMPY_MAGICS = (b"\x93NUMPY", b"PK\x03\x04")
#: deflate, shuffle, fletcher32, szip, nbit, scaleoffset, lzf: the filters that HDF5 and h5py bring along. Any other
#: would be looked for in shared libraries on a search path.
_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})
_MAX_SCALAR_BYTES = 1000


@dataclass(frozen=True)
class Limits:
    """Limits of what one column of an HDF5 file may hold.

    Attributes:
      max_bytes: declared size of a column.
      max_chunk_bytes: one compressed chunk, or one row, unpacked; this is what has to fit in memory.
      max_expansion: declared size over stored size, looked at from `expansion_free_bytes` on (gzip reaches 1000 on
        zeros only, and flags are mostly zeros).
      expansion_free_bytes: a column up to this size may be compressed as well as it likes.
    """

    max_bytes: int = 256 << 30
    max_chunk_bytes: int = 64 << 20
    max_expansion: float = 200.0
    expansion_free_bytes: int = 128 << 20


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Opens an HDF5 file for reading.

    Raises:
      SourceError: if it is empty, cut off, or not an HDF5 file at all; from within, if HDF5 finds damage later on.
    """
    if not path.is_file():
        raise SourceError(f"{path.name} is not a regular file")
    with path.open("rb") as stream:
        head = stream.read(8)
    if not head:
        raise SourceError(f"{path.name} is empty (0 bytes); copy or download it again")
    if head.startswith(_NUMPY_MAGICS):
        raise SourceError(
            f"{path.name} is a NumPy file or archive, expected HDF5; load it yourself with allow_pickle=False "
            "and pass the arrays to rlds2reverb.load"
        )
    if not h5py.is_hdf5(path):
        raise SourceError(f"{path.name} is not an HDF5 file (it does not begin like one)")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise SourceError(f"{path.name} is open for writing in another process; wait for it to end") from error
        raise SourceError(f"{path.name} is cut off or damaged; copy or download it again ({error})") from error
    with file:
        try:
            yield file
        except (OSError, RuntimeError) as error:  # h5py raises the latter for most of what HDF5 finds wrong
            raise SourceError(f"{path.name} is damaged; copy or download it again ({error})") from error


def column(file: h5py.File, name: str, limits: Limits = Limits()) -> h5py.Dataset | None:
    """Returns the numeric data set `name` of an open file, or None if there is no such name.

    Raises:
      SourceError: if it is reached over a link, lives in other files, is not a numeric data set, or is over a limit.
    """
    where = f"{Path(file.filename).name}: '{name}'"
    node: h5py.Group = file
    for part in name.split("/"):
        child = member(node, part) if isinstance(node, h5py.Group) else None
        if child is None:
            return None
        node = child
    if not isinstance(node, h5py.Dataset):
        raise SourceError(f"{where} is a group, expected a data set of numbers")
    if node.dtype.kind not in "biuf":
        raise SourceError(f"{where} holds {_dtype_name(node.dtype)}, expected numbers (bool, integer or float)")
    if node.shape is None:
        raise SourceError(f"{where} is empty (a null data space)")
    require_own_data(node, where)
    require_within([node], where, limits)
    return node


def member(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """Returns the member `name` of a group, or None if it has no such member.

    Raises:
      SourceError: if it is a link, into another file or within this one, cannot be opened, or holds what NumPy lacks.
    """
    where = f"{Path(group.file.filename).name}: '{group.name.strip('/')}/{name}'".replace("'/", "'")
    link = group.get(name, getlink=True)
    if link is None:
        return None
    if isinstance(link, h5py.ExternalLink):
        raise SourceError(f"{where} is a link into another file ({link.filename!r}); it is not followed")
    if not isinstance(link, h5py.HardLink):
        raise SourceError(f"{where} is a soft link; copy the data there instead of linking")
    try:
        found = group[name]
    except (KeyError, OSError) as error:
        raise SourceError(f"{where} cannot be opened; the file is damaged ({error})") from error
    try:
        getattr(found, "dtype", None)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{where} holds values of a type that NumPy lacks, or is damaged ({error})") from error
    return found


def names(group: h5py.Group) -> list[str]:
    """Returns the names of a group's members.

    Raises:
      SourceError: if one is not UTF-8.
    """
    found = list(group)
    for name in found:
        if not isinstance(name, str):
            raise SourceError(
                f"{Path(group.file.filename).name}: '{group.name}' has a member named {name!r}, not UTF-8"
            )
    return found


def scalars(file: h5py.File, name: str) -> dict[str, Any]:
    """Returns the single numbers and short strings of a group, such as D4RL's `metadata`; the rest is left out."""
    try:
        group = member(file, name)
    except SourceError:
        return {}
    if not isinstance(group, h5py.Group):
        return {}
    values = {key: _scalar(group, key) for key in group if isinstance(key, str)}  # others are not UTF-8
    return {key: value for key, value in values.items() if value is not None}


def _scalar(group: h5py.Group, name: str) -> Any:
    try:
        dataset = member(group, name)
        if not isinstance(dataset, h5py.Dataset) or dataset.shape != () or dataset.dtype.kind not in "biufS":
            return None
        require_own_data(dataset, name)
        value = dataset[()].item() if dataset.dtype.itemsize <= _MAX_SCALAR_BYTES else None
    except (SourceError, OSError):  # what the file says of itself is not worth refusing it
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def require_own_data(dataset: h5py.Dataset, where: str) -> None:
    """Raises `SourceError` if a data set's bytes are in other files, or unpacked by code from elsewhere."""
    if dataset.is_virtual:
        raise SourceError(f"{where} is a virtual data set, which reads other files; copy the data into this one")
    if dataset.external:
        raise SourceError(
            f"{where} keeps its data in another file ({dataset.external[0][0]!r}); copy the data into this one"
        )
    properties = dataset.id.get_create_plist()
    for position in range(properties.get_nfilters()):
        filter_id = properties.get_filter(position)[0]
        if filter_id not in _FILTERS:
            raise SourceError(f"{where} needs the HDF5 filter {filter_id}, which is not built in; use gzip")


def _dtype_name(dtype: np.dtype) -> str:
    return {"O": "Python objects or strings", "S": "byte strings", "V": "records"}.get(dtype.kind, str(dtype))


def require_within(datasets: Sequence[h5py.Dataset], where: str, limits: Limits) -> None:
    """Raises `SourceError` if data sets, taken together, are over a limit, or were not written to their end."""
    declared = sum(_declared(dataset) for dataset in datasets)
    stored = sum(dataset.id.get_storage_size() for dataset in datasets)
    if declared > limits.max_bytes:
        raise SourceError(f"{where} declares {bytes_text(declared)}; the limit is {bytes_text(limits.max_bytes)}")
    if declared > limits.expansion_free_bytes and declared > limits.max_expansion * stored:
        raise SourceError(
            f"{where} unpacks {bytes_text(stored)} to {bytes_text(declared)}, more than {limits.max_expansion:.0f} "
            "times; that looks like a compression bomb"
        )
    for dataset in datasets:
        parts = [dataset.shape[1:], *([dataset.chunks] if dataset.chunks else [])]
        largest = max(dataset.dtype.itemsize * math.prod(part) for part in parts)
        if largest > limits.max_chunk_bytes:
            raise SourceError(
                f"{where} has rows or chunks of {bytes_text(largest)}; the limit is "
                f"{bytes_text(limits.max_chunk_bytes)}"
            )
        missing = _missing_chunks(dataset)
        if missing:
            raise SourceError(
                f"{where} lacks {missing:,} of its blocks: it was not written to its end, or never; write its zeros too"
            )


def _declared(dataset: h5py.Dataset) -> int:
    return dataset.dtype.itemsize * math.prod(dataset.shape or (0,))


def _missing_chunks(dataset: h5py.Dataset) -> int:
    if not _declared(dataset):
        return 0
    if dataset.chunks is None:
        return int(not dataset.id.get_storage_size())
    per_axis = [-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    return math.prod(per_axis) - dataset.id.get_num_chunks()
