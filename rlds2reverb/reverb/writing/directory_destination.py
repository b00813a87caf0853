"""Writes a checkpoint without a server: a directory that `rlds2reverb serve` or a plain Reverb server loads.

While a conversion runs, everything is in `<directory>.partial` next to the directory: two large files, which are
appended to in parts, and a journal that records the sizes up to which they are valid. A killed conversion continues
after its last part. The appended bytes depend only on the data, so the result is identical. At the end a checkpoint
root is assembled from the files and renamed. A conversion that fails removes the partial directory, unless the same
call can continue it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tree
import xxhash

from rlds2reverb.errors import (
    ArgumentError,
    CheckpointError,
    CorruptFileError,
    InvalidEpisodeError,
    KeyCollisionError,
    Message,
    ResumeError,
    SpecMismatchError,
    StorageFullError,
)
from rlds2reverb.libraries.versions import REVERB_FORMAT
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.sealed_files import load_json, save_json, sync
from rlds2reverb.types.specs import Nest
from rlds2reverb.types.tables import TableConfig, find_difference, list_options

from ..server.checkpoint_root import CheckpointRoot, link_or_copy, require_no_pattern_characters, table_records
from ..server.table_memory import estimate_server_bytes
from ..wire import keys, tfrecords
from ..wire.encoder import EncodedBatch, Encoder, Records
from ..wire.item_blocks import ItemBlock
from .transfer import TransferState

#: The name of every checkpoint that no server wrote; it sorts before all others.
CHECKPOINT_NAME = "1970-01-01T00:00:00.000000000+00:00"

_ITEMS, _CHUNKS = "items.tfrecord", "chunks.tfrecord"
#: The files that are appended to.
FILES = (_ITEMS, _CHUNKS, "item_keys", "chunk_keys")
PART_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_MAX_QUEUED_BATCHES = 3
#: Errors that the same call would raise again, so that its files are useless.
_PERMANENT = (ArgumentError, CheckpointError, InvalidEpisodeError, KeyCollisionError, SpecMismatchError)


class HashedFile:
    """A file that is appended to, with its size and checksum."""

    def __init__(self, path: Path):
        self.path = path
        self.size = 0
        self._digest = xxhash.xxh3_128()
        self.stream = path.open("ab", buffering=0)

    @property
    def digest(self) -> str:
        """The checksum of the content, in hexadecimal."""
        return str(self._digest.hexdigest())

    def restore(self, size: int, digest: str) -> None:
        """Truncates the file to an earlier size. Raises `CorruptFileError` if it does not match the checksum there."""
        missing = size
        with self.path.open("rb") as stream:
            while missing and (block := stream.read(min(missing, _BLOCK_BYTES))):
                self._digest.update(block)
                missing -= len(block)
        if size and (missing or self.digest != digest):
            raise CorruptFileError(f"{self.path} is damaged")
        os.truncate(self.path, size)
        self.size = size

    def append(self, array: np.ndarray) -> None:
        """Appends the bytes of an array."""
        content = np.ascontiguousarray(array).data.cast("B")
        self._digest.update(content)
        self.size += len(content)
        while len(content):
            content = content[self.stream.write(content) :]


class DirectoryDestination(AbstractContextManager["DirectoryDestination"]):
    """Writes items to files that a server can start from. Use it as a context manager."""

    def __init__(
        self,
        directory: Path,
        configs: Sequence[TableConfig],
        signature: Nest,
        encoder: Encoder,
        *,
        description: dict[str, Any],
    ):
        """Does not write anything yet; see `open`.

        Args:
          directory: directory to create; an empty one may exist.
          configs: configurations of the tables.
          signature: signature of the items.
          encoder: encoder for the same tables, with `number_items`.
          description: arguments of the run, for the manifest; a run with a different description is not continued.
        """
        self.directory = directory = Path(os.path.abspath(directory))
        self._configs, self._signature, self._encoder = tuple(configs), signature, encoder
        self._description = description
        self._partial = directory.with_name(directory.name + ".partial")
        self._journal = self._partial / "journal.json"
        self._resources = ExitStack()
        self._files: dict[str, HashedFile] = {}
        self._part_begin = 0
        self._is_complete = self._is_open = False
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="rlds2reverb-write")
        self._queued: deque[futures.Future[None]] = deque()
        self._tables: futures.Future[list[Any]] = futures.Future()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        if error is not None and self._is_open:
            self._keep_or_remove(error)
        self._resources.close()

    def _keep_or_remove(self, error: BaseException) -> None:
        """Removes the files of a failed run that cannot be continued; adds the outcome to the error's message."""
        is_permanent = isinstance(error, _PERMANENT) or type(error) is ValueError  # Too many items, a bad priority.
        if is_permanent or not self._journal.is_file():
            shutil.rmtree(self._partial, ignore_errors=True)
            outcome = f"{self._partial} was removed"
        else:
            outcome = f"{self._partial} is kept; call again with the same arguments to continue"
        # The messages of the other errors already say what to do.
        if not isinstance(error, (OSError, ResumeError)) and len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (f"{error.args[0]}; {outcome}",)

    def open(self, *, resume: bool) -> TransferState | None:
        """Creates or opens the partial directory; returns the state after the last part that it contains, if any.

        Raises:
          CheckpointError: If the directory exists, no server would find it, or a partial file is damaged.
          ResourceInUseError: If another process writes the directory.
          StorageFullError: If the disk is full.
        """
        if (complete := self.find_complete(resume=resume)) is not None:
            return complete
        if os.path.ismount(self.directory):
            raise CheckpointError(
                f"{self.directory} must not be the root of a file system, because another directory is renamed to it; "
                f"use a new directory in it, such as {self.directory / 'data'}"
            )
        require_no_pattern_characters(self.directory)
        with self._full_disk_as_error():
            self._partial.mkdir(parents=True, exist_ok=True)
            self._resources.enter_context(FileLock(self._partial / "lock", f"the conversion to {self.directory}"))
            advice = Message(f"; delete {self._partial}, or start again", resume=False)
            try:
                state = load_json(self._journal) if resume else None
                if state is None or self._is_linked():
                    state = None
                    for name in ("journal.json", *FILES):
                        (self._partial / name).unlink(missing_ok=True)
                saved = TransferState.from_dict(state) if state else None
                if state and state["run"] != self._description:
                    _, difference = _first_difference(state["run"], self._description)
                    raise CheckpointError(
                        f"{self._partial} contains a conversion with different arguments: {difference}" + advice
                    )
                # This takes a while and does not need the data, so it runs while they are read.
                self._tables = self._thread.submit(table_records, self._configs, self._signature)
                for name in FILES:
                    self._files[name] = file = HashedFile(self._partial / name)
                    self._resources.enter_context(file.stream)
                    file.restore(*(state["files"][name] if state else (0, "")))
            except CorruptFileError as error:
                raise CheckpointError(str(error) + advice) from error
            self._is_open = True
        self._encoder.num_items = self._files["item_keys"].size // (8 * len(self._configs))
        self._part_begin = self._num_bytes
        return saved

    @property
    def _num_bytes(self) -> int:
        return self._files[_CHUNKS].size + self._files[_ITEMS].size

    @contextmanager
    def _full_disk_as_error(self) -> Iterator[None]:
        """Converts a full disk to a `StorageFullError` that says whether the same call continues or starts again."""
        try:
            with full_disk_as_error(self._partial):
                yield
        except StorageFullError as error:
            if self._journal.is_file():
                raise
            message = f"no space left for {self._partial}; nothing is kept: free some space and start again"
            raise StorageFullError(error.errno, message) from error

    def _is_linked(self) -> bool:
        """Returns whether a complete directory has links to these files: an earlier run renamed its `root`."""
        files = [path for name in FILES if (path := self._partial / name).is_file()]
        return not (self._partial / "root").exists() and any(path.stat().st_nlink > 1 for path in files)

    def find_complete(self, *, resume: bool) -> TransferState | None:
        """Returns the state at the end of the run that wrote the directory, or None if the directory does not exist.

        Raises:
          CheckpointError: If the directory was not written by a run with the same description.
        """
        if not os.path.lexists(self.directory) or _is_empty(self.directory):
            return None
        can_resume = resume and self.directory.is_dir()
        data = CheckpointRoot(self.directory, create=False).data() if can_resume else {}
        if "run" not in data:
            raise CheckpointError(f"{self.directory} exists already; use a new directory, or delete it")
        if data["run"] != self._description:
            argument, difference = _first_difference(data["run"], self._description)
            raise CheckpointError(
                f"{self.directory} exists already, written with different arguments: {difference}; use a new "
                "directory, or the earlier value",
                **{argument: ...},
            )
        CheckpointRoot(self.directory, create=False).verify_latest()
        shutil.rmtree(self._partial, ignore_errors=True)
        self._is_complete = True
        return TransferState.from_dict(data["state"])

    def write(self, blocks: Sequence[ItemBlock], state: TransferState) -> None:
        """Appends the items of some episodes; `open` returns `state` once they are on the disk.

        Raises:
          StorageFullError: If the disk is full.
          CheckpointError: If the directory is already complete.
        """
        if self._is_complete:
            raise CheckpointError(
                f"{self.directory} is complete, but the dataset has more episodes than it; use a new directory"
            )
        with self._full_disk_as_error():
            for batch in self._encoder.encode(blocks):
                self._queued.append(self._thread.submit(self._append, batch))
                if len(self._queued) > _MAX_QUEUED_BATCHES:
                    self._queued.popleft().result()
            if self._num_bytes >= self._part_begin + PART_BYTES:
                self._end_part(state)

    def _append(self, batch: EncodedBatch) -> None:
        """Appends a batch to the files; runs in the writing thread."""
        for name, content in iterate_contents(batch):
            self._files[name].append(content)

    def append_part(self, contents: Mapping[str, np.ndarray], num_items: int) -> None:
        """Appends the encoded items of further episodes, as `iterate_contents` returns them.

        Args:
          contents: the bytes to append to each of `FILES`.
          num_items: number of items per table.
        """
        with self._full_disk_as_error():
            for name, content in contents.items():
                self._files[name].append(content)
        self._encoder.num_items += num_items

    def _end_part(self, state: TransferState) -> None:
        while self._queued:
            self._queued.popleft().result()
        for file in self._files.values():
            os.fsync(file.stream.fileno())
        files = {name: [file.size, file.digest] for name, file in self._files.items()}
        save_json(self._journal, {**vars(state), "run": self._description, "files": files})
        self._part_begin = self._num_bytes

    def finish(self, state: TransferState) -> None:
        """Assembles the checkpoint root and renames it.

        Raises:
          StorageFullError: If the disk is full.
          KeyCollisionError: If two items or chunks have the same key.
          CheckpointError: If there are no items.
        """
        if self._is_complete:
            return
        if not self._encoder.num_items:
            raise CheckpointError(
                f"{self.directory} would contain no items: all episodes are too short for an item, or skipped"
            )
        with self._full_disk_as_error():
            has_unique_keys = self._thread.submit(self._require_unique_keys)
            self._end_part(state)
            has_unique_keys.result()
            self._assemble(state)
        shutil.rmtree(self._partial)

    def _require_unique_keys(self) -> None:
        """Runs in the writing thread, after all batches."""
        for name in ("item_keys", "chunk_keys"):
            keys.require_unique([np.fromfile(self._partial / name, np.uint64)])

    def _assemble(self, state: TransferState) -> None:
        path = self._partial / "root"
        shutil.rmtree(path, ignore_errors=True)
        configs = [replace(config, max_size=max(config.capacity, self._encoder.num_items)) for config in self._configs]
        root = CheckpointRoot(path)
        root.store_or_require_tables(configs)
        checkpoint = root.checkpoints / CHECKPOINT_NAME
        checkpoint.mkdir()
        for name in (_ITEMS, _CHUNKS):
            link_or_copy(self._partial / name, checkpoint / name)
        (checkpoint / "tables.tfrecord").write_bytes(self._frame_tables(configs))
        (checkpoint / "DONE").touch()
        digests = {name: file.digest for name, file in self._files.items()}
        root.write_manifest(checkpoint, data=self._describe_checkpoint(state), digests=digests)
        for written in (checkpoint / "tables.tfrecord", checkpoint / "DONE", checkpoint, root.checkpoints, path):
            sync(written)
        os.rename(path, self.directory)
        sync(self.directory.parent)

    def _frame_tables(self, configs: Sequence[TableConfig]) -> bytes:
        """Returns Reverb's messages about the tables, with their final sizes, as TFRecords."""
        capacities = {config.name: config.capacity for config in configs}
        messages = []
        for message in self._tables.result():
            message.max_size = capacities[message.table_name]
            message.rate_limiter.insert_count = self._encoder.num_items
            messages.append(message.SerializeToString(deterministic=True))
        return b"".join(tfrecords.frame(group).tobytes() for group in _iterate_groups(messages))

    def _describe_checkpoint(self, state: TransferState) -> dict[str, Any]:
        num_items, num_chunks = self._encoder.num_items, self._files["chunk_keys"].size // 8
        chunk_bytes, columns = self._files[_CHUNKS].size, len(tree.flatten(self._signature))
        total = num_items * len(self._configs)
        return {
            "run": self._description,
            "state": vars(state),
            "tables": [config.name for config in self._configs],
            "items": num_items,
            "chunks": num_chunks,
            "chunk_bytes": chunk_bytes,
            "memory_bytes": estimate_server_bytes(
                items=total, chunks=num_chunks, chunk_bytes=chunk_bytes, columns=columns
            ),
            "versions": {"rlds2reverb": version("rlds2reverb"), "dm-reverb": REVERB_FORMAT},
        }


def iterate_contents(batch: EncodedBatch) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what is appended to `FILES` for an encoded batch, as pairs of a name and an array."""
    for name, groups in ((_CHUNKS, batch.chunks), (_ITEMS, batch.items)):
        for records in groups:
            for group in _iterate_groups(records):
                yield name, tfrecords.frame(group)
    yield "chunk_keys", batch.chunk_keys
    for item_keys in batch.item_keys:
        yield "item_keys", item_keys


def _iterate_groups(records: Records) -> Iterable[np.ndarray]:
    single = (np.frombuffer(record, np.uint8)[None] for record in records)
    return [records] if isinstance(records, np.ndarray) else single


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not directory.is_symlink() and not any(directory.iterdir())


def _first_difference(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, str]:
    """Returns the first argument that differs between two descriptions, of which `old` was saved, and a phrase."""
    argument, difference = find_difference(_flatten_description(old), _flatten_description(new))
    if argument == "example":
        return "source", "the first episode had different items, or the code of the adder or priority has changed"
    return argument, difference


def _flatten_description(description: dict[str, Any]) -> dict[str, Any]:
    """Returns a description with one entry for each field of the tables and the adder; the example comes last."""
    arguments = {name: value for name, value in description.items() if name not in ("tables", "example")}
    if adder := re.fullmatch(r"(\w+)\((\w+=[^(),]+(?:, \w+=[^(),]+)*)\)", description["adder"]):
        fields = (field.split("=") for field in adder[2].split(", "))
        arguments.update({"adder": adder[1], **{f"{name} of adder {adder[1]}": value for name, value in fields}})
    tables = list_options([TableConfig.from_dict(table) for table in description["tables"]])
    return {**arguments, **tables, "example": description["example"]}
