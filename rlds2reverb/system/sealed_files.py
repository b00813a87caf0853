"""Files and folders that are either complete or absent, and that reveal any later damage by their checksums.

Checksums are XXH3-128: they detect accidents such as truncated, lost or flipped bytes, not deliberate changes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from rlds2reverb.errors import CorruptFileError, StorageFullError, describe_messages, restore_messages

from .full_disk import full_disk_as_error

MANIFEST = "manifest.json"
_BLOCK_BYTES = 1 << 20
_NUM_DIGITS = 10
#: Beginning and end of the names of temporary files.
_TEMPORARY = (".rlds2reverb-", ".tmp")
_SEAL_START = b'{"xxh3_128": '
#: The entry with the messages among the texts, which name arguments otherwise on the command line.
_MESSAGES = "messages in texts"
_PARTIAL, _REPLACED = ".partial", ".replaced"


def load_json(path: Path) -> dict[str, Any] | None:
    """Returns the content that `save_json` wrote last, or None if there is no such file.

    The checksum is compared before the file is parsed, so what this returns is what was saved.

    Raises:
      CorruptFileError: If the file has changed since.
    """
    try:
        seal, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if seal != _make_seal(body):
        raise CorruptFileError(f"{path} is damaged")
    content: dict[str, Any] = json.loads(b"{" + body)
    restore_messages(content.pop(_MESSAGES, ()))
    return content


def is_sealed_json(path: Path) -> bool:
    """Returns whether `save_json` wrote a file, by its beginning only; the file may be damaged."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_SEAL_START)) == _SEAL_START


def save_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces a JSON file atomically (see `replace_text`); its first entry, `xxh3_128`, is a checksum of the others.

    Args:
      path: path of the file.
      content: at least one entry.
    """
    if messages := describe_messages(json.dumps(content)):
        content = {**content, _MESSAGES: messages}
    body = json.dumps(content, indent=1).removeprefix("{\n") + "\n"
    replace_text(path, f"{_make_seal(body.encode()).decode()}\n{body}")


def _make_seal(body: bytes) -> bytes:
    """Returns the first line of a JSON file that contains `body` after it."""
    return _SEAL_START + b'"%s",' % xxhash.xxh3_128_hexdigest(body).encode()


def replace_text(path: Path, text: str) -> None:
    """Replaces a file's content atomically; it survives a power failure once this returns."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes, token: str = "") -> None:
    """Replaces a file's content as `replace_text` does; see `replace_file`."""
    with replace_file(path, token) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replace_file(path: Path, token: str = "") -> Iterator[Path]:
    """Yields the path of a temporary file in the same directory, which replaces a file after the context.

    After an error, the file is unchanged and the temporary one is deleted. A process that is killed leaves the
    temporary one (see `is_temporary`), which the next call for the same file uses again.

    Args:
      path: path of the file.
      token: part of the temporary file's name; a random one if several processes may replace the file at once.
    """
    name = f"{xxhash.xxh64_hexdigest(os.fsencode(path.name))}{token}"
    temporary = path.with_name(f"{_TEMPORARY[0]}{name}{_TEMPORARY[1]}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def is_temporary(name: str) -> bool:
    """Returns whether a file name is that of a temporary file of `replace_file`, which a killed process has left."""
    return name.startswith(_TEMPORARY[0]) and name.endswith(_TEMPORARY[1])


def sync(path: Path) -> None:
    """Writes a file's content, or the names in a directory, from the page cache to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open a directory, and writes its names by itself.
        return
    # Windows writes a file only through a descriptor that can write.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """Returns the checksum of a file's content, in hexadecimal."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return str(digest.hexdigest())


def verify_files(folder: Path, digests: Mapping[str, str]) -> None:
    """Raises `CorruptFileError` for the first file of a folder that is missing or does not match its checksum."""
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            raise CorruptFileError(f"{path} is missing")
        if file_digest(path) != digest:
            raise CorruptFileError(f"{path} is damaged: its content does not match its checksum")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a sealed folder, after comparing all of its files with their checksums.

    Raises:
      CorruptFileError: If the manifest or a file is missing or damaged.
    """
    manifest = load_json(folder / MANIFEST)
    if manifest is None:
        raise CorruptFileError(f"{folder / MANIFEST} is missing")
    verify_files(folder, manifest["files"])
    return manifest


class SealedFolders:
    """Numbered folders in a root directory, each of them complete or absent.

    A folder is written as `NAME.partial`, with a manifest that contains the checksum of each file, including those in
    subfolders, and is renamed to `NAME` once everything is on the disk. A process that is killed at any moment leaves
    the complete folders unchanged and at most one partial folder, which the next `SealedFolders` of that root deletes.
    One process at a time may use a root; see `FileLock`.
    """

    def __init__(self, root: Path, prefix: str = ""):
        """Opens the root and cleans up after a process that was killed there.

        Args:
          root: the directory, created if missing.
          prefix: start of the folders' names, before ten digits.
        """
        self.root, self._prefix = root, prefix
        root.mkdir(parents=True, exist_ok=True)
        # A process that was killed between the two renames of `write` left only the replaced folder.
        for replaced in root.glob(f"{prefix}*{_REPLACED}"):
            if not replaced.with_suffix("").exists():
                replaced.rename(replaced.with_suffix(""))
        self._delete_unfinished()

    def path(self, number: int) -> Path:
        """Returns the path of the folder with a number."""
        return self.root / f"{self._prefix}{number:0{_NUM_DIGITS}d}"

    def numbers(self) -> list[int]:
        """Returns the numbers of the complete folders, in increasing order."""
        return sorted(int(path.name[-_NUM_DIGITS:]) for path in self.root.glob(self._prefix + "[0-9]" * _NUM_DIGITS))

    def write(self, number: int, fill: Callable[[Path], Mapping[str, Any]]) -> Path:
        """Writes a folder, replacing an existing one of the same number, and returns its path.

        Args:
          number: number of the folder, >= 0.
          fill: function that writes files and folders into a directory and returns what the manifest records besides
            checksums.

        Raises:
          StorageFullError: If the disk is full; all complete folders are kept.
        """
        path = self.path(number)
        partial = path.with_suffix(_PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with full_disk_as_error(path):
                partial.mkdir()
                content = fill(partial)
                entries = sorted(partial.rglob("*"))
                for entry in entries:
                    sync(entry)
                files = {entry.relative_to(partial).as_posix(): entry for entry in entries if entry.is_file()}
                digests = {name: file_digest(file) for name, file in files.items()}
                save_json(partial / MANIFEST, {**content, "files": digests})
        except StorageFullError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if path.exists():
            path.rename(path.with_suffix(_REPLACED))
        partial.rename(path)
        sync(self.root)
        self._delete_unfinished()
        return path

    def delete(self, numbers: Iterable[int]) -> None:
        """Deletes folders."""
        for number in numbers:
            shutil.rmtree(self.path(number), ignore_errors=True)

    def _delete_unfinished(self) -> None:
        for suffix in (_PARTIAL, _REPLACED):
            for path in self.root.glob(f"{self._prefix}*{suffix}"):
                shutil.rmtree(path, ignore_errors=True)
