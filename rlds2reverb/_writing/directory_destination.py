"""A checkpoint written without a server: a directory that `rlds2reverb serve --from`, or a stock server, starts from.

While it is written, everything is in `<directory>.partial` next to it: the two large files, appended to part by part,
and a journal that says up to where they are good. A conversion that was killed is continued at its last part; since
what is appended depends on nothing but the data, the result is the same to the byte. When all is there, a checkpoint
root is put together from it and renamed. One that fails removes all this, unless the same call can continue it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import tree

from rlds2reverb import _sealed_json as sealed_json
from rlds2reverb._encoding import keys, tfrecords
from rlds2reverb._encoding.encoder import EncodedBatch, Encoder, Records
from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._full_disk import full_disk_as_error
from rlds2reverb._server.checkpoint_root import (
    CheckpointRoot,
    link_or_copy,
    require_plain,
    table_records,
)
from rlds2reverb._server.locks import FileLock
from rlds2reverb._server.memory import needed_bytes
from rlds2reverb.errors import (
    CheckpointError,
    InvalidEpisodeError,
    KeyCollisionError,
    ResumeError,
    SpecMismatchError,
    StorageFullError,
)
from rlds2reverb.specs import Nest
from rlds2reverb.tables import TableConfig

from .destination import TransferState

#: The name of a checkpoint that no server has written: it sorts before all others, and is the same each time.
CHECKPOINT_NAME = "1970-01-01T00:00:00.000000000+00:00"

_FILES = ("items.tfrecord", "chunks.tfrecord", "item_keys", "chunk_keys")
_PART_BYTES = 64 << 20
#: Batches that may wait to be written.
_MAX_WAITING = 3
#: Errors that come again when the same call is made again: what was written before them is of no use.
_LASTING = (CheckpointError, InvalidEpisodeError, KeyCollisionError, SpecMismatchError)
#: What the arguments of `ingest` are called on the command line.
_COMMAND_LINE = {
    "source": "SRC",
    "tables": "--table",
    "sampler": "--sampler",
    "remover": "--remover",
    "max_size": "--max-size",
    "max_times_sampled": "--max-times-sampled",
    "rate_limiter": "--rate-limiter",
    "adder": "--sequence-length, --n-step",
    "length": "--sequence-length",
    "stride": "--stride",
    "padding": "--padding",
    "discount_source": "--discount",
    "n": "--n-step",
    "gamma": "--gamma",
    "priority": "--priority",
    "on_invalid": "--on-invalid",
    "layout": "--layout",
    "chunk_length": "--chunk-length",
    "key_seed": "--key-seed",
}


class DirectoryDestination:
    """Writes blocks of episodes to files that a server can start from. Use it as a context manager."""

    def __init__(
        self,
        directory: Path,
        configs: Sequence[TableConfig],
        signature: Nest,
        encoder: Encoder,
        *,
        description: dict[str, Any],
    ):
        """Nothing is on the disk yet; see `open`.

        Args:
          directory: to be made; it may be there if it is empty.
          configs: the tables.
          signature: of their items.
          encoder: for the same tables, with `number_items`.
          description: of the run, for the manifest: other arguments, another description.
        """
        self.directory = directory = Path(os.path.abspath(directory))
        self._configs, self._signature, self._encoder = tuple(configs), signature, encoder
        self._description = description
        self._partial = directory.with_name(directory.name + ".partial")
        self._journal = self._partial / "journal.json"
        self._resources = ExitStack()
        self._streams: dict[str, IO[bytes]] = {}
        self._sizes = dict.fromkeys(_FILES, 0)
        self._hashes = {name: hashlib.sha256() for name in _FILES}
        self._part_begin = 0
        self._complete = self._is_open = False
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="rlds2reverb-write")
        self._waiting: deque[futures.Future[None]] = deque()
        self._tables: futures.Future[list[Any]] = futures.Future()

    def __enter__(self) -> DirectoryDestination:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)
        if error is not None and self._is_open:
            self._keep_or_remove(error)
        self._resources.close()

    def _keep_or_remove(self, error: BaseException) -> None:
        """Removes what a failed run has written, unless it can be continued, and adds to the message which it is."""
        is_lasting = isinstance(error, _LASTING) or type(error) is ValueError  # too many items, a bad priority
        if is_lasting or not self._journal.is_file():
            shutil.rmtree(self._partial, ignore_errors=True)
            outcome = f"nothing is left in {self._partial}"
        else:
            outcome = f"what was written is kept in {self._partial}: the same call continues it"
        if not isinstance(error, (OSError, ResumeError)) and len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (f"{error.args[0]}; {outcome}",)  # the others say themselves what to do

    def open(self, *, resume: bool) -> TransferState | None:
        """Makes or finds the partial directory; returns the state of the last `write` that is in it, if any.

        Raises:
          CheckpointError: if the directory is there already, no server would find it, or the partial one is damaged,
            naming the file.
          ResourceInUseError: if another process writes it.
          StorageFullError: if there is no space.
        """
        if os.path.lexists(self.directory) and not _is_empty(self.directory):
            return self._complete_state(resume)
        if os.path.ismount(self.directory):
            raise CheckpointError(
                f"{self.directory} is the root of a file system, and is written under another name first; give a new "
                f"directory in it, such as {self.directory / 'data'}"
            )
        require_plain(self.directory)
        with self._full_disk_as_error():
            self._partial.mkdir(parents=True, exist_ok=True)
            self._resources.enter_context(FileLock(self._partial / "lock", f"another process writes {self.directory}"))
            try:
                state = sealed_json.load(self._journal) if resume else None
            except sealed_json.CorruptFileError as error:
                raise CheckpointError(f"{error}; delete {self._partial}, or convert without resuming") from error
            if state is None or self._is_shared():  # with the directory that an earlier run wrote, moved since
                state = None
                for name in ("journal.json", *_FILES):
                    (self._partial / name).unlink(missing_ok=True)
            self._streams = {
                name: self._resources.enter_context((self._partial / name).open("ab", buffering=0)) for name in _FILES
            }
            if state and state["run"] != self._description:
                raise CheckpointError(
                    f"{self._partial} is left of a conversion with other arguments: "
                    f"{_first_difference(state['run'], self._description)}; delete it, or convert without resuming"
                )
            self._is_open = True
            # Takes a while and needs nothing of the data: meanwhile these are read.
            self._tables = self._thread.submit(table_records, self._configs, self._signature)
            for name in _FILES:
                self._restore(name, state["files"][name] if state else [0, ""])
        self._encoder.num_items = self._sizes["item_keys"] // (8 * len(self._configs))
        self._part_begin = self._sizes["chunks.tfrecord"] + self._sizes["items.tfrecord"]
        return TransferState.from_dict(state) if state else None

    @contextmanager
    def _full_disk_as_error(self) -> Iterator[None]:
        """Raises `StorageFullError`, which says whether the same call continues or begins again."""
        try:
            with full_disk_as_error(self._partial):
                yield
        except StorageFullError as error:
            if self._journal.is_file():
                raise
            message = f"no space left for {self._partial}; nothing is kept: free some and start again"
            raise StorageFullError(error.errno, message) from error

    def _is_shared(self) -> bool:
        """Returns whether a complete directory links to these files: one whose `root` an earlier run renamed."""
        files = [path for name in _FILES if (path := self._partial / name).is_file()]
        return not (self._partial / "root").exists() and any(path.stat().st_nlink > 1 for path in files)

    def _complete_state(self, resume: bool) -> TransferState:
        """Returns the state at the end of the run that wrote the directory, if it had the same description."""
        complaint = f"{self.directory} exists already"
        known = resume and self.directory.is_dir()
        data = CheckpointRoot(self.directory, make=False).described() if known else {}
        if "run" in data and data["run"] != self._description:
            difference = _first_difference(data["run"], self._description)
            raise CheckpointError(f"{complaint}, written with other arguments: {difference}; give a new directory")
        if "run" not in data:
            raise CheckpointError(f"{complaint}; give a new directory, or delete it")
        CheckpointRoot(self.directory, make=False).verify_latest()
        shutil.rmtree(self._partial, ignore_errors=True)
        self._complete = True
        return TransferState.from_dict(data["state"])

    def _restore(self, name: str, expected: Sequence[Any]) -> None:
        """Cuts a file to its last good size, after looking whether it is good."""
        size, digest = expected
        path = self._partial / name
        with path.open("rb") as stream:
            left = size
            while left and (block := stream.read(min(left, 1 << 20))):
                self._hashes[name].update(block)
                left -= len(block)
        if size and (left or self._hashes[name].hexdigest() != digest):
            raise CheckpointError(f"{path} is damaged; delete {self._partial}, or convert without resuming")
        os.truncate(path, size)
        self._sizes[name] = size

    def write(self, blocks: Sequence[ItemBlock], state: TransferState) -> None:
        """Appends the items of some episodes; `state` is what `open` gives back once they are on the disk.

        Raises:
          StorageFullError: if there is no space.
          CheckpointError: if the directory is complete already.
        """
        if self._complete:
            raise CheckpointError(
                f"{self.directory} is complete, and the data set has more episodes than it; give a new directory"
            )
        with self._full_disk_as_error():
            for batch in self._encoder.encode(blocks):
                self._waiting.append(self._thread.submit(self._append, batch))
                if len(self._waiting) > _MAX_WAITING:
                    self._waiting.popleft().result()
            if self._sizes["chunks.tfrecord"] + self._sizes["items.tfrecord"] >= self._part_begin + _PART_BYTES:
                self._end_part(state)

    def _append(self, batch: EncodedBatch) -> None:
        """Runs in the thread that writes."""
        for name, groups in (("chunks.tfrecord", batch.chunks), ("items.tfrecord", batch.items)):
            for records in groups:
                for group in _groups(records):
                    self._put(name, tfrecords.framed(group))
        self._put("chunk_keys", batch.chunk_keys)
        for item_keys in batch.item_keys:
            self._put("item_keys", item_keys)

    def _put(self, name: str, array: np.ndarray) -> None:
        content = np.ascontiguousarray(array).data.cast("B")
        self._hashes[name].update(content)
        self._sizes[name] += len(content)
        while len(content):
            content = content[self._streams[name].write(content) :]

    def _end_part(self, state: TransferState) -> None:
        while self._waiting:
            self._waiting.popleft().result()
        for stream in self._streams.values():
            os.fsync(stream.fileno())
        sealed_json.save(self._journal, {**state.as_dict(), "run": self._description, "files": self._files()})
        self._part_begin = self._sizes["chunks.tfrecord"] + self._sizes["items.tfrecord"]

    def _files(self) -> dict[str, list[Any]]:
        return {name: [self._sizes[name], self._hashes[name].hexdigest()] for name in _FILES}

    def finish(self, state: TransferState) -> None:
        """Puts the checkpoint root together and gives it its name.

        Raises:
          StorageFullError: if there is no space.
          KeyCollisionError: if two items or chunks have the same key.
        """
        if self._complete:
            return
        if not self._encoder.num_items:
            raise CheckpointError(
                f"{self.directory} would have no items: all episodes are shorter than an item, or left out"
            )
        with self._full_disk_as_error():
            checked = self._thread.submit(self._require_different_keys)
            self._end_part(state)
            checked.result()
            self._assemble(state)
        shutil.rmtree(self._partial)

    def _require_different_keys(self) -> None:
        """Runs in the thread that writes, when all is written."""
        for name in ("item_keys", "chunk_keys"):
            keys.require_different([np.fromfile(self._partial / name, np.uint64)])

    def _assemble(self, state: TransferState) -> None:
        built = self._partial / "root"
        shutil.rmtree(built, ignore_errors=True)
        configs = [replace(config, max_size=max(config.capacity, self._encoder.num_items)) for config in self._configs]
        root = CheckpointRoot(built)
        root.require_tables(configs)
        checkpoint = root.checkpoints / CHECKPOINT_NAME
        checkpoint.mkdir()
        for name in ("items.tfrecord", "chunks.tfrecord"):
            link_or_copy(self._partial / name, checkpoint / name)
        records = []
        capacities = {config.name: config.capacity for config in configs}
        for record in self._tables.result():
            record.max_size = capacities[record.table_name]
            record.rate_limiter.insert_count = self._encoder.num_items
            content = record.SerializeToString(deterministic=True)
            records.append(tfrecords.framed(np.frombuffer(content, np.uint8)[None]))
        (checkpoint / "tables.tfrecord").write_bytes(b"".join(record.tobytes() for record in records))
        (checkpoint / "DONE").touch()
        num_items, num_chunks = self._encoder.num_items, self._sizes["chunk_keys"] // 8
        data = {
            "run": self._description,
            "state": state.as_dict(),
            "tables": [config.name for config in configs],
            "items": num_items,
            "chunks": num_chunks,
            "chunk_bytes": self._sizes["chunks.tfrecord"],
            "memory_bytes": needed_bytes(
                items=num_items * len(configs),
                chunks=num_chunks,
                chunk_bytes=self._sizes["chunks.tfrecord"],
                columns=len(tree.flatten(self._signature)),
            ),
            "versions": {name: version(name) for name in ("rlds2reverb", "dm-reverb")},
        }
        root.write_manifest(checkpoint, data=data, known=self._files())
        for path in (checkpoint / "tables.tfrecord", checkpoint / "DONE", checkpoint, root.checkpoints, built):
            sealed_json.sync(path)
        os.rename(built, self.directory)
        sealed_json.sync(self.directory.parent)


def _groups(records: Records) -> Iterator[np.ndarray]:
    if isinstance(records, np.ndarray):
        yield records
    else:
        for record in records:
            yield np.frombuffer(record, np.uint8)[None]


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not directory.is_symlink() and not any(directory.iterdir())


def _first_difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Returns the first argument that differs between two descriptions, under the names that users know."""
    old, new = _arguments(old), _arguments(new)
    name = next(name for name in {**old, **new} if old.get(name) != new.get(name))
    if name == "example":
        return "the first episode gave other items"
    option = _COMMAND_LINE.get(name.partition(" ")[0])
    return f"{name}{f' ({option})' if option else ''} was {old.get(name)}, is {new.get(name)}"


def _arguments(description: dict[str, Any]) -> dict[str, Any]:
    """Returns a description with the fields of tables and adder under their names; the items come last."""
    arguments = {name: value for name, value in description.items() if name not in ("tables", "example")}
    if adder := re.fullmatch(r"(\w+)\((\w+=[^(),]+(?:, \w+=[^(),]+)*)\)", str(description.get("adder"))):
        fields = (field.split("=") for field in adder[2].split(", "))
        arguments.update({"adder": adder[1], **{f"{name} of adder {adder[1]}": value for name, value in fields}})
    tables = description.get("tables", [])
    arguments["tables"] = [table["name"] for table in tables]
    for table in tables:
        arguments.update({f"{field} of table {table['name']!r}": value for field, value in table.items()})
    return {**arguments, "example": description.get("example")}
