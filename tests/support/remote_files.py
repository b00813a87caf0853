"""A Beam filesystem for addresses `test://...`, whose objects are files in a temporary directory.

Like an object store it has no directories, and an object appears only once it was written completely.
"""

import io
import os
from pathlib import Path

from apache_beam.io.filesystem import BeamIOError, FileMetadata, FileSystem

ROOT = "RLDS2REVERB_TEST_OBJECTS"


class _Upload(io.BytesIO):
    def __init__(self, path: Path):
        super().__init__()
        self._path = path

    def close(self):
        if not self.closed:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(self.getvalue())
        super().close()


class TestFileSystem(FileSystem):
    """The filesystem; `$RLDS2REVERB_TEST_OBJECTS` is the directory."""

    __test__ = False

    @classmethod
    def scheme(cls):
        return "test"

    def _path(self, address):
        return Path(os.environ[ROOT]) / address.removeprefix("test://")

    def _address(self, path):
        return "test://" + path.relative_to(os.environ[ROOT]).as_posix()

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        head, _, tail = path.rpartition("/")
        return head, tail

    def has_dirs(self):
        return False

    def mkdirs(self, path):
        pass

    def _list(self, dir_or_prefix):
        for path in sorted(Path(os.environ[ROOT]).rglob("*")):
            address = self._address(path)
            if path.is_file() and address.startswith(dir_or_prefix):
                yield FileMetadata(address, path.stat().st_size)

    def create(self, path, mime_type="application/octet-stream", compression_type="auto"):
        return _Upload(self._path(path))

    def open(self, path, mime_type="application/octet-stream", compression_type="auto"):
        return self._path(path).open("rb")

    def exists(self, path):
        return self._path(path).is_file()

    def delete(self, paths):
        for path in paths:
            for metadata in self._list(path):
                self._path(metadata.path).unlink()

    def _unsupported(self, *args, **kwargs):
        raise BeamIOError("not supported by the test's filesystem")

    copy = rename = size = last_updated = checksum = metadata = _unsupported
