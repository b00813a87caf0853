"""Datasets at addresses such as `https://host/x.npz` or `s3://bucket/folder`, which are copied to this machine."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from rlds2reverb.errors import SourceError


def is_remote(location: str | Path) -> bool:
    """Returns whether a location is an address rather than a local path or a name."""
    return "://" in str(location)


@functools.cache
def copy_to_disk(location: str) -> Path:
    """Copies a file or folder at an address into a temporary folder, which is deleted when this process exits.

    Each process copies an address once.

    Raises:
      FileNotFoundError: If there is no such file or folder.
      SourceError: If fsspec does not know the address's scheme, needs a package that is not installed, or
        cannot read it.
    """
    import fsspec

    folder = Path(tempfile.mkdtemp(prefix="rlds2reverb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        files, path = fsspec.core.url_to_fs(location)
        target = folder / (PurePosixPath(path.rstrip("/")).name or "dataset")
        files.get(path, str(target), recursive=files.isdir(path))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is nothing at {location}; check the address") from error
    except ImportError as error:
        raise SourceError(f"{location} requires another package: {error}") from error
    except Exception as error:  # The filesystems of fsspec have no common type of errors.
        raise SourceError(f"{location} cannot be copied to this machine ({type(error).__name__}: {error})") from error
    return target
