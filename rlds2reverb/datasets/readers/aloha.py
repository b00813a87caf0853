"""ALOHA and ACT: an HDF5 file per episode, `episode_0.hdf5`, `episode_1.hdf5` and so on, in one folder.

Format: Zhao et al. 2023, arXiv:2304.13705. Row `t` contains observation `t` and the action taken there. The recorder
observes once more after the last action, but does not store it. Images are arrays, or JPEG files padded with zeros.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import ArraySpec

from ..formats import Format
from ..source import Source, identify_files
from ..steps.image_files import decode_column, decode_image, decode_images
from . import hdf5, npz
from .columns import ColumnReader, Paths, describe_demonstrations, insert_column, make_demonstration, select_cameras
from .episode_metadata import read_attributes

_OBSERVATIONS, _BASE_ACTION, _IMAGES = "observations", "base_action", "images"
#: Top-level members that are read, or that repeat what the images contain.
_USED = (_OBSERVATIONS, fields.ACTION, _BASE_ACTION, "compress_len")
_FILE_NAME = re.compile(r"episode_(\d+)\.(hdf5|h5)")


def open_folder(folder: Path, *, cameras: Sequence[str] | None = None) -> Source:
    """Opens a folder of episodes, in the order of their numbers; see `open_file`."""
    return _open_files(folder.resolve().name, _list_files(folder), cameras)


def open_file(path: Path, *, cameras: Sequence[str] | None = None) -> Source:
    """Opens the file of one episode.

    Columns in `observations` become the nested dict `observation`, and `base_action` a step field. Images in files are
    decoded as their format defines. The attributes of the HDF5 file become metadata of the episode.

    The file has no rewards and does not say how the episode ends; see `make_demonstration`.

    Args:
      path: the file.
      cameras: images to read, such as 'images.cam_high' or only 'cam_high'; None for all.

    Raises:
      SourceError: If the file is refused (see `hdf5`), there is no such camera, columns differ in length, or an image
        is damaged.
    """
    return _open_files(path.name, [path], cameras)


def _open_files(name: str, paths: Sequence[Path], cameras: Sequence[str] | None) -> Source:
    with hdf5.open_hdf5(_choose_intact(paths)) as file:
        columns = hdf5.list_columns(file, _OBSERVATIONS)
        unread = tuple(sorted({*hdf5.list_names(file)} - {*_USED}))
    known = [".".join(path) for path in columns if _IMAGES in path[0]]
    selected = known if cameras is None else select_cameras(known, cameras, name)

    def is_selected(path: tuple[str, ...]) -> bool:
        return cameras is None or _IMAGES not in path[0] or ".".join(path) in selected

    def list_columns() -> Iterable[tuple[str, ...]]:
        found = (hdf5.list_all_columns(path, [_OBSERVATIONS]) for path in paths)
        return filter(is_selected, set[tuple[str, ...]]().union(*found))

    def read(left_out: Paths, first: int, stop: int | None) -> Iterator[Episode]:
        for index in range(len(paths))[first:stop]:
            where = f"{paths[index].parent.name}/{paths[index].name}"
            with hdf5.open_hdf5(paths[index]) as file:
                actions = {key: hdf5.read_nest(file, key, f"{where}: '") for key in (fields.ACTION, _BASE_ACTION)}
                nest: dict[str, Any] = {key: column for key, column in actions.items() if column is not None}
                for path in hdf5.list_columns(file, _OBSERVATIONS):
                    if is_selected(path) and path not in left_out:
                        column = _read_column(file, path, where)
                        insert_column(nest, (fields.OBSERVATION, *path), column, where)
                metadata = read_attributes(file, ())
            yield replace(make_demonstration(where, index, nest), metadata=metadata)

    count, reader = len(paths), ColumnReader(read, list_columns)
    source = Source(
        *(name, "aloha", reader.read, count),
        warnings=(describe_demonstrations(name),),
        unread=unread,
        assumed_fields=(fields.REWARD,),
        count=lambda: count,
    )
    return identify_files(source, lambda: paths)


def _read_column(file: h5py.File, path: tuple[str, ...], where: str) -> np.ndarray:
    """Returns a column of observations, in which images are decoded."""
    parent = "/".join((_OBSERVATIONS, *path[:-1]))
    group, where = file[parent], f"{where}: '{parent}"
    stored: Any = hdf5.open_member(group, path[-1])
    is_encoded = _IMAGES in path[0] and isinstance(stored, h5py.Dataset) and len(stored.shape or ()) < 3
    if not is_encoded:
        return np.asarray(hdf5.read_nest(group, path[-1], where))
    where = f"{where}/{path[-1]}'"
    hdf5.require_safe([stored], where)
    files = [bytes(np.asarray(row)).rstrip(b"\0") or b"\0" for row in stored[()]]  # Without the padding.
    try:
        first = decode_image(files[0] if files else b"")
    except ValueError as error:
        raise SourceError(f"{where}, step 0: {error}; convert the file again") from error
    pixels = ArraySpec(first.shape, first.dtype)
    return decode_column(files, pixels, decode_images, lambda row: f"{where}, step {row}", "convert the file again")


def _list_files(folder: Path) -> list[Path]:
    found = ((_FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def _choose_intact(paths: Sequence[Path]) -> Path:
    """Returns the first of the first ten files that is an intact one of ALOHA, or else the first one."""
    for path in paths[:10]:
        with contextlib.suppress(SourceError):
            if _is_file(path):
                return path
    return paths[0]


def _is_file(location: Any) -> bool:
    if not isinstance(location, Path) or location.is_dir() or npz.is_npz(location):
        return False
    with hdf5.open_hdf5(location) as file:
        has_action = isinstance(file.get(fields.ACTION, getlink=True), h5py.HardLink)
        return has_action and isinstance(hdf5.open_group(file, _OBSERVATIONS), h5py.Group)


def _is_folder(location: Any) -> bool:
    paths = _list_files(location) if isinstance(location, Path) and location.is_dir() else []
    return bool(paths) and _is_file(_choose_intact(paths))


FILE = Format("an ALOHA file", _is_file, open_file, ("cameras",))
FOLDER = Format("a folder of ALOHA episodes", _is_folder, open_folder, ("cameras",), "ALOHA")
