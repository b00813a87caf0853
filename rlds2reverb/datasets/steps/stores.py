"""Stores: directories with the steps of a dataset, built in parallel and continued after a kill.

A store consists of parts, one for each range of episodes. Whoever writes a part appends the columns of some episodes
to its files, and then their records to the file `episodes`. A process that was killed has therefore written all
columns of the episodes that have a record, and the next one continues after them. The ranges depend on the number of
episodes alone, and so do the bytes of the files: not on the number of processes, nor on interruptions.
"""

from __future__ import annotations

import itertools
import json
import mmap
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from rlds2reverb.errors import ArgumentError, CorruptFileError, ResourceInUseError, SourceError
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.free_memory import free_memory_bytes
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.platform import available_cores
from rlds2reverb.system.sealed_files import (
    file_digest,
    is_sealed_json,
    is_temporary,
    load_json,
    save_json,
    sync,
    verify_files,
)
from rlds2reverb.system.task_process import TaskFailedError, TaskProcess
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.fingerprints import Fingerprint, episode_digests
from rlds2reverb.types.locations import expand_path
from rlds2reverb.types.specs import ArraySpec

from ..formats import Format
from ..source import Source, identify_files, split_metadata
from .layout import ATTRIBUTES, EPISODE_RECORD, EPISODES, ROWS, Layout, array_name, encode_attributes
from .step_columns import StepColumns

#: A complete store has the first file, an incomplete one the second.
MANIFEST, PLAN = "store.json", "plan.json"
_PART_MANIFEST = "part.json"
_LOCK = ".lock"
#: File that says that `require_valid_store` has found no error.
_VALID = "valid.json"
_VERSION = 2
_PART_NAME = re.compile(r"part-\d{4}")
_FILE_NAME = re.compile(
    rf"{ROWS}|{EPISODES}|{ATTRIBUTES}|column-\d{{2,}}-(bytes|ends|frames)|{re.escape(_PART_MANIFEST)}"
)
#: Limits of the division into parts, each of which costs some calls that wait for the disk.
_MAX_PARTS, MIN_PART_ROWS = 64, 20_000
#: Share of the free memory up to which a store is expected to stay in the system's cache of files.
_CACHED_SHARE = 0.5
_POLL_SECS = 0.2

#: Called with the number of stored episodes and of all episodes, or None.
OnProgress = Callable[[int, int | None], None]
#: What a store contains, as JSON values: the version, the identity of the dataset (see `_make_plan`), the layout,
#: and the ranges of the parts: the first episode of each, and the one after its last one, or None for all.
_Plan = Mapping[str, Any]
_PLAN_KEYS = {"version", "identity", "layout", "ranges"}


def build_store(
    source: Source, path: Path, *, num_workers: int | None = None, on_progress: OnProgress = lambda stored, total: None
) -> None:
    """Writes the steps of a dataset to a directory, or continues to do so; does nothing if they are there already.

    Args:
      source: the dataset. Images that it yields as JPEG or PNG files are stored as they are.
      path: the directory, created if missing.
      num_workers: number of processes that read the dataset; 0 for the calling process. None for one per core if the
        dataset can be read in parts, and 0 otherwise.
      on_progress: callback.

    Raises:
      SourceError: If the directory is a store of different data, if the dataset has no steps or cannot be read, or if
        its files have changed while they were read; the store is deleted then.
      SpecMismatchError: If episodes differ in their fields, shapes or dtypes.
      ResourceInUseError: If another process is building the store.
      StorageFullError: If the disk is full; the same call continues.
      ValueError: If `num_workers` is out of range.
    """
    if num_workers is not None:
        require_count("num_workers", num_workers, 0)
    _build(source, _make_plan(source), path, num_workers, on_progress)


def _build(source: Source, plan: _Plan, path: Path, num_workers: int | None, on_progress: OnProgress) -> None:
    """Builds the planned store; see `build_store`."""
    if _is_complete(path, plan):
        return
    with full_disk_as_error(path):
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / _LOCK, f"the store {path}", "wait until it is built"):
            if _is_complete(path, plan):
                return
            if not (path / PLAN).exists():
                if any(entry.name != _LOCK and not is_temporary(entry.name) for entry in path.iterdir()):
                    raise SourceError(f"{path} is neither a store nor empty; pass a different directory")
                save_json(path / PLAN, plan)
            _write_parts(source, plan, path, num_workers, on_progress)
            _require_unchanged(source, plan, path)
            _seal(source, plan, path)


def _is_complete(path: Path, plan: _Plan) -> bool:
    """Returns whether there is a complete store; raises `SourceError` if it, or an incomplete one, has other data."""
    manifest = load_json(path / MANIFEST)
    saved = manifest or load_json(path / PLAN)
    if saved is not None and not saved.keys() >= _PLAN_KEYS:
        raise SourceError(f"{path} is neither a store nor empty; pass a different directory")
    if saved is not None and (saved["version"], saved["identity"]) != (_VERSION, plan["identity"]):
        raise SourceError(
            f"{path} is a store of {saved['identity']['name']} that does not match {plan['identity']['name']} as it "
            "is now, or was made with other options; delete it, or pass a different directory"
        )
    return manifest is not None


def _require_unchanged(source: Source, plan: _Plan, path: Path) -> None:
    """Deletes a store and raises `SourceError` unless the dataset is the planned one after it was read."""
    planned = plan["identity"]["made_from"]
    is_content, num_parts = "content" in planned, len(plan["ranges"])
    if (_digest_content(_describe_stored(path, num_parts)) if is_content else _hash_known(source)) != planned:
        _delete_files(path)
        raise SourceError(
            f"{source.name} changed while it was read, so that no store was made; repeat the call once nothing writes "
            "to it. A function must return the same episodes each time"
        )


def make_store(
    source: Source, store_dir: str | Path, *, on_note: Callable[[str], None] = lambda sentence: None
) -> Path:
    """Builds the store of a dataset in a directory of stores, unless it is there, and returns its own directory.

    Args:
      source: the dataset. Its name and what it was made from determine the name of the store.
      store_dir: the directory of stores.
      on_note: function called with a sentence if a store is used that was there before.

    Raises:
      Exception: See `build_store`.
    """
    plan = _make_plan(source)
    identity = json.dumps(plan["identity"])
    name = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', source.name)}-{xxhash.xxh3_64_hexdigest(identity.encode())}"
    folder = expand_path(store_dir, "store_dir")
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"must be a directory, but {folder} is a file", about="store_dir")
    path = folder / name
    if (path / MANIFEST).exists():
        built = datetime.fromtimestamp((path / MANIFEST).stat().st_mtime)
        on_note(f"using the store {path}, built on {built:%Y-%m-%d %H:%M} from {source.name}")
    is_waiting = False
    while True:
        try:
            _build(source, plan, path, None, lambda stored, total: None)
            return path
        except ResourceInUseError as error:  # Another process builds it; the lock is released if that one dies.
            if not is_waiting:
                print(f"waiting: {error}, or stop this process", file=sys.stderr, flush=True)
            is_waiting = True
            time.sleep(_POLL_SECS)


def _make_plan(source: Source) -> _Plan:
    """Plans the store of a dataset.

    The identity contains what the dataset was made from, or digests of its content if that is not known, for which it
    is read once.
    """
    made_from = _hash_known(source)
    first: list[Episode] = []
    made_from = _digest_content(_describe_episodes(source, first)) if made_from is None else made_from
    first += () if first else (source.first_episode,)
    layout, count = Layout.of_steps(first[0].steps), None if source.count is None else source.count()
    described = [source.name, source.kind, source.full_metadata, source.assumed_fields, version("rlds2reverb")]
    identity = {"name": source.name, "episodes": count, "described": _hash(described), "made_from": made_from}
    ranges: list[tuple[int, int | None]] = [(0, None)]
    if count is not None:
        num_rows = source.num_rows or count * first[0].num_steps
        num_parts = min(_MAX_PARTS, count, -(-num_rows // MIN_PART_ROWS))
        ranges = [*itertools.pairwise(np.linspace(0, count, num_parts + 1).astype(int).tolist())]
    return {"version": _VERSION, "identity": identity, "layout": layout.to_json(), "ranges": ranges}


def _hash(value: Any) -> str:
    return str(xxhash.xxh3_128_hexdigest(json.dumps(value, default=str).encode()))


def _hash_known(source: Source) -> dict[str, Any] | None:
    """Returns the `made_from` of a plan without reading the dataset, or None if only its content tells."""
    known = source.identify()
    return None if known is None else {"files and options": _hash(known)}


def _digest_content(episodes: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Returns the `made_from` of a plan from the digests and attributes of all episodes."""
    digest = Fingerprint()
    for content, attributes in episodes:
        digest.update(content + xxhash.xxh3_128_digest(attributes))
    return {"content": digest.hexdigest()}


def _describe_episodes(source: Source, first: list[Episode]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the digest and the attributes of each episode of a dataset; adds the first one with steps to a list."""
    for batch in batch_episodes(source.read()):
        first += () if first else [episode for episode in batch.episodes if episode.num_steps][:1]
        yield from zip(episode_digests(batch), map(encode_attributes, batch.episodes), strict=True)


def _describe_stored(path: Path, num_parts: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the digest and the attributes of each episode that was stored."""
    for folder in (_part_folder(path, number) for number in range(num_parts)):
        records, attributes = np.fromfile(folder / EPISODES, EPISODE_RECORD), (folder / ATTRIBUTES).read_bytes()
        bounds = itertools.pairwise([0, *records["attributes_end"].tolist()])
        for digest, (start, end) in zip(records["digest"], bounds, strict=True):
            yield digest.tobytes(), attributes[start:end]


class _PartWriter:
    """A part, to which whole episodes are appended; continues after the last one that is complete."""

    def __init__(self, folder: Path, layout: Layout):
        folder.mkdir(exist_ok=True)
        self._folder, self._layout = folder, layout
        self._specs = layout.array_specs()
        self._paths = {name: folder / name for name in self._specs}
        is_new = not self._paths[EPISODES].exists()
        records = np.zeros(0, EPISODE_RECORD) if is_new else np.fromfile(self._paths[EPISODES], EPISODE_RECORD)
        self.num_episodes = len(records)
        self._lengths = _find_lengths(layout, records, folder)
        self._files: dict[str, Any] = {}

    def __enter__(self) -> _PartWriter:
        for name, path in self._paths.items():
            file = open(path, "ab", buffering=0)
            file.truncate(self._lengths[name] * self._specs[name].num_bytes)
            self._files[name] = file
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def append(self, batch: EpisodeBatch) -> None:
        """Adds episodes."""
        for name, added in self._layout.encode(batch, self._lengths, episode_digests(batch)).items():
            _write_all(self._files[name], np.ascontiguousarray(added))
            self._lengths[name] += len(added)
        self.num_episodes += len(batch.num_steps)

    def seal(self) -> None:
        """Records that the part is complete."""
        for path in self._paths.values():
            sync(path)
        digests = {name: file_digest(path) for name, path in self._paths.items()}
        save_json(self._folder / _PART_MANIFEST, {"lengths": self._lengths, "files": digests})


def _write_all(file: Any, array: np.ndarray) -> None:
    content: Any = memoryview(array.reshape(-1).view(np.uint8)) if array.size else b""  # type: ignore[arg-type]
    while len(content):
        content = content[file.write(content) :]


def _find_lengths(layout: Layout, records: np.ndarray, folder: Path) -> dict[str, int]:
    """Returns how many elements of each array belong to episodes with a record."""
    num_steps = records["num_steps"]
    total, num_full = int(num_steps.sum()), int(np.count_nonzero(num_steps))
    lengths = dict.fromkeys(layout.array_specs(), total)
    lengths[EPISODES] = len(records)
    lengths[ATTRIBUTES] = int(records["attributes_end"][-1]) if len(records) else 0
    for number, column in enumerate(layout.columns):
        if column.kind == "frames":
            lengths[array_name(number, "frames")] = total + num_full * column.num_more_frames
        elif column.kind == "bytes":
            ends = _read_array(folder / array_name(number, "ends"), ArraySpec((), np.dtype(np.int64)), total)
            lengths[array_name(number, "bytes")] = int(ends[-1]) if total else 0
    return lengths


def _part_folder(path: Path, number: int) -> Path:
    return path / f"part-{number:04d}"


def _write_parts(source: Source, plan: _Plan, path: Path, num_workers: int | None, on_progress: OnProgress) -> None:
    num_parts = len(plan["ranges"])
    missing = [number for number in range(num_parts) if not (_part_folder(path, number) / _PART_MANIFEST).exists()]
    can_split = num_parts > 1 and source.kind != "memory"
    num_workers = available_cores() if num_workers is None else num_workers
    num_workers = min(num_workers, len(missing)) if can_split else 0

    def report() -> None:
        on_progress(_count_stored(path, num_parts), plan["identity"]["episodes"])

    if num_workers:
        with ExitStack() as stack:
            shares = [missing[index::num_workers] for index in range(num_workers)]
            workers = [stack.enter_context(TaskProcess(_write_some, source, plan, path, share)) for share in shares]
            while workers := [worker for worker in workers if not _is_done(worker)]:
                report()
                time.sleep(_POLL_SECS)
    else:
        _write_some(source, plan, path, missing, report)
    report()


def _is_done(worker: TaskProcess) -> bool:
    """Returns whether a process has written its parts; raises its error."""
    is_done = worker.is_done()
    try:
        if is_done:
            worker.result()
    except TaskFailedError as error:
        raise SourceError(
            f"a process that reads the dataset {error}; repeat the call to continue, with fewer workers if the memory "
            "was full"
        ) from error
    return is_done


def _count_stored(path: Path, num_parts: int) -> int:
    files = [_part_folder(path, number) / EPISODES for number in range(num_parts)]
    return sum(file.stat().st_size // EPISODE_RECORD.itemsize for file in files if file.exists())


def _write_some(
    source: Source, plan: _Plan, path: Path, numbers: Sequence[int], on_batch: Callable[[], None] = lambda: None
) -> None:
    """Writes some parts, or the rest of them."""
    with full_disk_as_error(path):
        for number in numbers:
            _write_part(source, plan, path, number, on_batch)


def _write_part(source: Source, plan: _Plan, path: Path, number: int, on_batch: Callable[[], None]) -> None:
    first, stop = plan["ranges"][number]
    with _PartWriter(_part_folder(path, number), Layout.from_json(plan["layout"])) as writer:
        if source.skipped is None:
            episodes = source.read_range(first + writer.num_episodes, stop)
        else:  # Episodes that were left out have no records.
            episodes = itertools.islice(source.read_range(first, stop), writer.num_episodes, None)
        for batch in batch_episodes(episodes):
            writer.append(batch)
            on_batch()
        writer.seal()


def _seal(source: Source, plan: _Plan, path: Path) -> None:
    """Replaces the plan by the manifest of a complete store."""
    parts = [load_json(_part_folder(path, number) / _PART_MANIFEST) for number in range(len(plan["ranges"]))]
    plain = (str, int, float, type(None))
    metadata = {name: value for name, value in source.full_metadata.items() if isinstance(value, plain)}
    names = ("warnings", "assumed_fields", "unread")
    described = {"metadata": metadata, **{name: getattr(source, name) for name in names}}
    save_json(path / MANIFEST, {**plan, "parts": parts, "source": described})
    (path / PLAN).unlink(missing_ok=True)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of a complete store.

    Raises:
      SourceError: If the store is incomplete, or of a different version.
      CorruptFileError: If the manifest is damaged, a file is missing or has a different size, or the records or
        attributes of the episodes do not match their checksums.
    """
    manifest = load_json(path / MANIFEST)
    if manifest is None:
        raise SourceError(f"{path} is no complete store; repeat the call that builds it")
    if not manifest.keys() >= {*_PLAN_KEYS, "parts", "source"}:
        raise CorruptFileError(f"{path / MANIFEST} is not that of a store")
    if manifest["version"] != _VERSION:
        raise SourceError(f"{path} is a store of version {manifest['version']}; delete it, and build it again")
    specs = Layout.from_json(manifest["layout"]).array_specs()
    for number, part in enumerate(manifest["parts"]):
        folder = _part_folder(path, number)
        for name, length in part["lengths"].items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != length * specs[name].num_bytes:
                raise CorruptFileError(f"{folder / name} is missing or truncated; delete {path}, and build it again")
        verify_files(folder, {name: part["files"][name] for name in (EPISODES, ATTRIBUTES)})
    return manifest


@dataclass(frozen=True)
class StoreInfo:
    """A store in a directory of stores.

    Attributes:
      path: its directory.
      dataset: name of the dataset.
      episodes: number of stored episodes.
      size_bytes: size on disk.
      state: 'complete', 'incomplete' or 'damaged'.
    """

    path: Path
    dataset: str
    episodes: int
    size_bytes: int
    state: str


def list_stores(directory: Path, *, verify: bool = False) -> list[StoreInfo]:
    """Returns the stores in a directory, by name.

    Args:
      directory: the directory.
      verify: whether to compare all files with their checksums.
    """
    return [_describe_store(path, verify) for path in sorted(directory.iterdir()) if is_store(path)]


def _describe_store(path: Path, verify: bool) -> StoreInfo:
    state = "complete" if (path / MANIFEST).exists() else "incomplete"
    dataset, episodes = "unknown", 0
    try:
        saved = load_json(path / MANIFEST) or load_json(path / PLAN) or {}
        dataset, num_parts = saved["identity"]["name"], len(saved["ranges"])
        episodes = _count_stored(path, num_parts)
        if state == "complete":
            (verify_store if verify else read_manifest)(path)
    except (SourceError, CorruptFileError):
        state = "damaged"
    size = sum(file.stat().st_size for file in _list_files(path))
    return StoreInfo(path, dataset, episodes, size, state)


def delete_store(path: Path) -> bool:
    """Deletes the files of a store, and its directory if it is empty; returns False if a process is building it."""
    try:
        with FileLock(path / _LOCK, f"the store {path}"):
            _delete_files(path)
    except ResourceInUseError:
        return False
    with suppress(OSError):  # Somebody else's files are in it.
        path.rmdir()
    return True


def _delete_files(path: Path) -> None:
    files = _list_files(path)
    for file in sorted(files, key=lambda file: file.parent == path):  # What says that they are a store comes last.
        file.unlink(missing_ok=True)
    for folder in {file.parent for file in files} - {path}:
        with suppress(OSError):
            folder.rmdir()


def _list_files(path: Path, *, is_content: bool = False) -> list[Path]:
    """Returns the files that this module has written to a directory, or only those that are read as a dataset."""
    own, parts = (
        {MANIFEST} if is_content else {MANIFEST, PLAN, _VALID},
        [part for part in path.glob("part-*") if _PART_NAME.fullmatch(part.name)],
    )
    files = [file for file in path.iterdir() if file.name in own or is_temporary(file.name)]
    for part in parts:
        if not part.is_symlink() and part.is_dir():
            files += [file for file in part.iterdir() if _FILE_NAME.fullmatch(file.name) or is_temporary(file.name)]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def verify_store(path: Path) -> None:
    """Compares all files of a store with their checksums.

    Raises:
      SourceError, CorruptFileError: See `read_manifest`; also if a checksum differs.
    """
    for number, part in enumerate(read_manifest(path)["parts"]):
        verify_files(_part_folder(path, number), part["files"])


def require_valid_store(path: Path, columns: StepColumns) -> None:
    """Validates the episodes of a store as `ingest` does, except for images; a file in it says that this was done.

    Raises:
      InvalidEpisodeError: If an episode is invalid.
    """
    mark = {"checked": load_json(path / MANIFEST)}
    with suppress(CorruptFileError):
        if load_json(path / _VALID) == mark:
            return
    for batch in batch_episodes(columns.read_episodes(with_images=False)):
        if batch.num_steps.any():
            batch.require_valid(columns.layout.step_spec)
    with suppress(OSError):  # Others may read a store that they cannot write.
        save_json(path / _VALID, mark)


def open_columns(path: Path, *, random_access: bool = False) -> StepColumns:
    """Opens the steps of a complete store, whose files are mapped into memory.

    Args:
      path: the directory.
      random_access: whether rows will be read in random order. If the store is larger than half of the free memory, the
        system then reads the needed pages only, and many at a time.

    Raises:
      SourceError, CorruptFileError: See `read_manifest`.
    """
    manifest = read_manifest(path)
    layout = Layout.from_json(manifest["layout"])
    specs = layout.array_specs()
    size = sum(length * specs[name].num_bytes for part in manifest["parts"] for name, length in part["lengths"].items())
    random_access = random_access and hasattr(mmap, "MADV_RANDOM") and size > _CACHED_SHARE * free_memory_bytes()
    parts = []
    for number, part in enumerate(manifest["parts"]):
        folder, lengths = _part_folder(path, number), part["lengths"]
        parts.append({name: _read_array(folder / name, specs[name], lengths[name], random_access) for name in specs})
    return StepColumns(layout, parts)


def _read_array(path: Path, spec: ArraySpec, length: int, random_access: bool = False) -> np.ndarray:
    """Maps the first elements of a file into memory."""
    shape: Any = (length, *spec.shape)
    if not length or not spec.num_bytes:
        return np.zeros(shape, spec.dtype)
    array = np.memmap(path, spec.dtype, "r", shape=shape)
    if not random_access:
        return array.view(np.ndarray)
    array._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    return array


def find_store(source: Source) -> Path | None:
    """Returns the directory of a dataset that is a store, unchanged; None for others."""
    episodes = getattr(source.read, "__self__", None)
    return episodes.path if isinstance(episodes, _StoredEpisodes) else None


@dataclass(frozen=True)
class _StoredEpisodes:
    """The episodes of a store; pickling it keeps the directory, which the other process opens again."""

    path: Path
    image_decoding: bool

    def __reduce__(self) -> Any:
        return _StoredEpisodes, (self.path, self.image_decoding)

    @property
    def encoded(self) -> _StoredEpisodes | None:
        """See `source.keep_images_encoded`."""
        return replace(self, image_decoding=False) if self.image_decoding else None

    @cached_property
    def columns(self) -> StepColumns:
        """The steps."""
        return open_columns(self.path)

    def count(self) -> int:
        """Returns the number of episodes."""
        return len(self.columns.num_steps)

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Yields episodes."""
        return self.columns.read_episodes(first, stop, image_decoding=self.image_decoding)


def open_store(path: Path, *, image_decoding: bool = True) -> Source:
    """Opens a complete store as a dataset.

    Args:
      path: the directory.
      image_decoding: see `datasets.load`.

    Raises:
      SourceError, CorruptFileError: See `read_manifest`.
    """
    manifest = read_manifest(path)
    episodes = _StoredEpisodes(path, image_decoding)
    described, name = manifest["source"], manifest["identity"]["name"]
    attributes = split_metadata(described["metadata"])
    attributes |= {key: tuple(described.get(key, ())) for key in ("warnings", "assumed_fields", "unread")}
    attributes["num_rows"] = len(episodes.columns)
    source = Source(name, "store", episodes.read, num_episodes=episodes.count(), count=episodes.count, **attributes)
    return identify_files(source, partial(_list_files, path, is_content=True))


def is_store(location: Any) -> bool:
    """Returns whether a location is a directory with a store, complete or not, that may be damaged."""
    if not isinstance(location, Path):
        return False
    for file in (location / MANIFEST, location / PLAN):
        try:
            if (load_json(file) or {}).keys() >= _PLAN_KEYS:
                return True
        except (CorruptFileError, OSError):
            if is_sealed_json(file) and (location / "part-0000").is_dir():
                return True
    return False


DIRECTORY = Format("a store", is_store, open_store, ("image_decoding",), "stores")
