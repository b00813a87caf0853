"""`ingest` writes a dataset into tables of a Reverb server, or into a directory that a server can start from."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import Source, load
from rlds2reverb.datasets.readers.in_memory import from_episodes
from rlds2reverb.datasets.valid_episodes import skip_invalid
from rlds2reverb.errors import ArgumentError, ServerRestartedError
from rlds2reverb.reverb.client import (
    NO_LIMIT,
    Connection,
    Server,
    TableInfo,
    find_address,
    format_selector,
    require_distinct,
    require_table,
    split_servers,
    table_infos,
)
from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot
from rlds2reverb.reverb.server.table_items import require_stored_items_match
from rlds2reverb.reverb.server.table_memory import require_memory
from rlds2reverb.reverb.wire import keys
from rlds2reverb.reverb.wire.encoder import MAX_CHUNK_LENGTH, Encoder
from rlds2reverb.reverb.writing.bulk_writer import BulkWriter
from rlds2reverb.reverb.writing.compatibility import TrialItem, find_incompatibility
from rlds2reverb.reverb.writing.directory_destination import DirectoryDestination
from rlds2reverb.reverb.writing.item_conversion import ItemConversion, Layout, OnInvalid, make_conversion
from rlds2reverb.reverb.writing.journal import Journal
from rlds2reverb.reverb.writing.report import IngestReport
from rlds2reverb.reverb.writing.reverb_writer import ReverbWriter
from rlds2reverb.reverb.writing.server_destination import ServerDestination
from rlds2reverb.reverb.writing.sharding import require_no_empty_shard, select_shard
from rlds2reverb.reverb.writing.transfer import Transfer, capacity_error
from rlds2reverb.reverb.writing.verification import require_same_items
from rlds2reverb.system.code_fingerprints import fingerprint_code
from rlds2reverb.types.arguments import require_count, require_defaults, require_one_of, require_timeout
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.episodes import ProgressCallback
from rlds2reverb.types.items import EpisodeAdder
from rlds2reverb.types.locations import expand_path, server_address
from rlds2reverb.types.ownership import is_user_code, isolate
from rlds2reverb.types.priorities import Priority
from rlds2reverb.types.tables import MAX_ITEMS, TableConfig

#: How items are sent to a server: in bulk by rlds2reverb, or by Reverb's own writer.
Writer = Literal["bulk", "reverb"]

_MAX_RESTARTS = 10
#: Timeout of the first request to a server, unless `timeout_secs` is shorter.
_FIRST_ANSWER_SECS = 10.0


@dataclass(frozen=True)
class IngestOptions:
    """Advanced options of `ingest`; most callers can keep the defaults.

    Attributes:
      writer: 'bulk', or 'reverb' for Reverb's own writer. The latter is much slower, and its keys are random, so that
        a killed and resumed run may write an episode twice. If the server does not support the bulk writer, `ingest`
        warns and uses Reverb's.
      chunk_length: number of items that share a chunk, from 1 to 1,000,000; None chooses it so that chunks are small
        and few rows are stored twice.
      key_seed: seed of the keys; set a different one if two keys collide.
      force: whether to write to a server on this machine even if the data need more memory than is available.
      allow_eviction: whether to write more items than a server's table can hold, which evicts older items; the report
        warns about it. By default this is an error, raised before the first item is written.
      verify: whether to read a complete directory back and compare each of its items with the dataset, bit for bit.
    """

    writer: Writer = "bulk"
    chunk_length: int | None = None
    key_seed: int = 0
    force: bool = False
    allow_eviction: bool = False
    verify: bool = False

    def __post_init__(self) -> None:
        require_one_of("writer", self.writer, get_args(Writer))
        if self.chunk_length is not None:
            require_count("chunk_length", self.chunk_length, 1, MAX_CHUNK_LENGTH)
        if self.writer == "reverb":
            require_defaults(self, ("chunk_length", "key_seed"), "for the writer 'reverb'")

    def require_for_directory(self) -> None:
        """Raises `ValueError` for options that have an effect on servers only."""
        require_defaults(self, ("writer", "force", "allow_eviction"), "on a directory")


_DEFAULT_OPTIONS = IngestOptions()


def ingest(
    source: Any,
    destination: Server | str | Path | Sequence[Server | str | Path],
    tables: str | TableConfig | Sequence[str | TableConfig] = "replay",
    *,
    adder: EpisodeAdder | None = None,
    priority: Priority = 1.0,
    layout: Layout = "columns",
    on_invalid: OnInvalid = "error",
    resume: bool = True,
    timeout_secs: float = 30.0,
    options: IngestOptions = _DEFAULT_OPTIONS,
    progress: ProgressCallback = lambda stage, episode: None,
) -> IngestReport:
    """Writes a dataset into tables of a running Reverb server, or into a directory that a server can start from.

    Additional step fields that the items do not contain, and strings in them, are left out and listed in the report.
    Keys are derived from the content of items, so that writing the same data again stores it only once. Calling
    `ingest` again with the same arguments continues a run that was killed: a journal (in
    `$XDG_STATE_HOME/rlds2reverb`, by default `~/.local/state/rlds2reverb`) records what a server has confirmed, and a
    directory contains its own journal. If the server was restarted, from a checkpoint or empty, all data are written
    again.

    Args:
      source: a `Source`, or any argument of `load`.
      destination: a `ReplayServer`, a `reverb.Client` or `reverb.Server`, a port on this machine, or an address
        'HOST:PORT'; or the path of a directory that does not exist yet. A string 'HOST:PORT' is an address; any other
        string, and every `Path`, is a path. A list of these, a `ShardedReplayServer`, or 'HOST:PORT,HOST:PORT' are the
        shards of one dataset: each episode is written to one of them, which a hash of its index determines. They are
        written one after the other.
      tables: one or more tables, each of which receives every item. Tables of a server must exist, with the signature
        of the items or without one, and with the settings of a `TableConfig` that has any. For a directory, a name
        stands for a default `TableConfig` with that name.
      adder: function from episodes to items; None for `TrajectoryWindows()`, whose items are transitions.
      priority: initial priority of all items, or a function from an episode and its `Items` to their priorities; in
        [0, 1e12].
      layout: 'columns', or 'packed' for tables with a `packed_signature`, which need half the memory and are faster
        to sample.
      on_invalid: treatment of invalid episodes: 'error' writes nothing if there is one (for a server, the whole
        dataset is read and checked first); 'skip_episode' skips them; 'keep' writes them unchanged, except those that
        no table can hold (no steps, columns of unequal length, different dtypes or shapes). The report counts skipped
        and kept episodes.
      resume: whether to continue an earlier run; if False, its journal is discarded.
      timeout_secs: maximum time to wait for each confirmation of the server.
      options: advanced options.
      progress: callback for each episode, called with 'check', 'resume' or 'write' and the episode.

    Returns:
      An `IngestReport`. Its warnings and notes are also issued as Python warnings of the type `IngestWarning`.

    Raises:
      InvalidEpisodeError: If an episode is invalid and on_invalid is 'error'; nothing is written.
      SourceError: If the source cannot be opened or read.
      SpecMismatchError: If the items do not match the signature of a table, or an episode does not match the first
        one; or if a table without a signature already contains items with other columns (if the stored items cannot
        be inspected, the report has a warning instead).
      ServerUnavailableError: If the server does not answer or accept items in time; the journal keeps what it
        confirmed.
      ServerRestartedError: If the server is restarted repeatedly.
      ResumeError: If the dataset differs from that of the run to resume.
      CorruptFileError: If the journal of that run is damaged.
      CheckpointError: If the directory exists, or an unfinished run in it is damaged or had other arguments; or, with
        `verify`, if an item of the directory differs from the dataset.
      StorageFullError: If the disk is full; the data written so far are kept for `resume`.
      ResourceInUseError: If another process runs the same transfer.
      InsufficientMemoryError: If the server is on this machine and the memory is insufficient.
      KeyCollisionError: If two items have the same key by chance.
      ValueError: If an argument is out of range, a table does not exist, a table cannot hold all items (see
        `IngestOptions.allow_eviction`), or there are too few episodes for the number of shards.
    """
    require_timeout(timeout_secs)
    configs, adder = make_table_configs(tables), adder or TrajectoryWindows()
    run = IngestRun(configs, adder, priority, layout=layout, on_invalid=on_invalid, options=options)
    run = replace(run, resume=resume, timeout_secs=timeout_secs, progress=isolate(progress))
    destination = _split_destination(destination)
    if on_invalid == "skip_episode":
        source = skip_invalid(_load(source), keeps_invalid=True)
    if not isinstance(destination, (list, tuple)):
        report = run.write(source, run.open(destination))
        report.emit_note_warnings()
        return report
    if not destination:
        raise ValueError("destination must be a server, a directory or a list of these, got an empty list")
    require_distinct([str(_find_directory(place) or find_address(place)) for place in destination], "destinations")
    opened = [run.open(server_or_path) for server_or_path in destination]
    source, num_shards = _load(source), len(opened)
    require_no_empty_shard(source, num_shards)
    if on_invalid == "error":
        for batch in batch_episodes(source):
            batch.require_valid(source.step_spec)
    total = run.make_report(source)
    fingerprints = []
    for shard, server_or_path in enumerate(opened):
        part = select_shard(source, shard, num_shards)
        report = run.write(replace(part, warnings=()), server_or_path, shard=(shard, num_shards))
        fingerprints.append(report.fingerprint)
        total.merge_counts(report)
        total.left_out_fields = report.left_out_fields
        total.warnings += tuple(warning for warning in report.warnings if warning not in total.warnings)
    total.add_skipped(source)
    total.set_fingerprint(fingerprints)
    total.emit_note_warnings()
    return total


@dataclass(frozen=True)
class _Server:
    """A server to write to, and its tables."""

    address: str
    infos: dict[str, TableInfo]


@dataclass(frozen=True)
class IngestRun:
    """The checked arguments of `ingest`, without the source and the destination."""

    configs: list[TableConfig]
    adder: EpisodeAdder
    priority: Priority
    layout: Layout
    on_invalid: OnInvalid
    options: IngestOptions
    resume: bool = True
    timeout_secs: float = 30.0
    progress: ProgressCallback = lambda stage, episode: None

    def __post_init__(self) -> None:
        require_one_of("on_invalid", self.on_invalid, get_args(OnInvalid))
        require_one_of("layout", self.layout, get_args(Layout))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(config.name for config in self.configs)

    def open(self, destination: Server | str | Path) -> Path | _Server:
        """Connects to a server, or returns the directory to write to."""
        directory = _find_directory(destination)
        if self.options.writer == "reverb" and (self.layout == "packed" or directory is not None):
            raise ArgumentError(
                "requires a server and items in columns", about="writer", value="reverb", layout="columns"
            )
        if directory is not None:
            self.options.require_for_directory()
            return directory
        require_defaults(self.options, ("verify",), "on a server")
        address = find_address(destination)
        return _Server(address, table_infos(address, timeout_secs=min(self.timeout_secs, _FIRST_ANSWER_SECS)))

    def make_report(self, source: Source) -> IngestReport:
        """Returns a report without counts, and issues the warnings of the source."""
        report = IngestReport(
            source.name, self.names, writer=self.options.writer, statistics=source.statistics, unread=source.unread
        )
        for warning in source.warnings:
            report.warn(warning)
        return report

    def make_conversion(self, source: Source) -> ItemConversion:
        """Returns the conversion of a dataset, or of one of its shards, to items."""
        return make_conversion(source, self.adder, self.priority, on_invalid=self.on_invalid, layout=self.layout)

    def describe(
        self, source: Source, conversion: ItemConversion, shard: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        """Returns the values that distinguish this run from another, for JSON.

        Args:
          source: the dataset.
          conversion: its conversion.
          shard: index of the shard and number of shards, or None for a single destination.
        """
        description = {
            "source": [source.name, source.kind, source.num_rows, source.num_episodes],
            "steps": str(conversion.step_spec),
            "tables": [config.as_dict() for config in self.configs],
            "adder": _describe_callable(conversion.adder),
            "priority": _describe_callable(conversion.priority),
            "on_invalid": self.on_invalid,
            "layout": self.layout,
            "writer": self.options.writer,
            "chunk_length": self.options.chunk_length,
            "key_seed": self.options.key_seed,
            **({} if shard is None else {"shard": shard}),
        }
        return dict(json.loads(json.dumps(description)))

    def write(self, source: Any, destination: Path | _Server, *, shard: tuple[int, int] | None = None) -> IngestReport:
        """Writes a dataset, or one of its shards, to one destination."""
        source = _load(source)
        conversion = self.make_conversion(source)
        report = replace(self.make_report(source), left_out_fields=conversion.left_out_fields)
        transfer = Transfer(source, conversion, self.resume, report, self.progress)
        description = self.describe(source, conversion, shard)
        if isinstance(destination, Path):
            self._write_to_directory(transfer, destination, description)
        else:
            self._write_to_server(transfer, destination, description)
        if shard is None:
            transfer.report.add_skipped(source)
        return transfer.report

    def _write_to_directory(self, transfer: Transfer, path: Path, description: dict[str, Any]) -> None:
        conversion = transfer.conversion
        description["example"] = example_hash(conversion)
        _require_capacity(transfer, [config.capacity for config in self.configs], allow_eviction=None)
        encoder = self._make_encoder(conversion, number_items=True)
        signature = conversion.signature
        with DirectoryDestination(path, self.configs, signature, encoder, description=description) as directory:
            transfer.run(directory)
        if self.options.verify:
            with transfer.report.stage("verify"):
                transfer.report.verified_items = require_same_items(path, transfer.source, conversion, self.names)
        transfer.report.memory_bytes = CheckpointRoot(path, create=False).data()["memory_bytes"]
        transfer.report.table_sizes = dict.fromkeys(self.names, transfer.report.items)

    def _write_to_server(self, transfer: Transfer, server: _Server, description: dict[str, Any]) -> None:
        conversion, address, infos = transfer.conversion, server.address, server.infos
        for config in self.configs:
            require_table(infos, config.name, conversion.signature)
            _require_settings(infos[config.name], config)
        for warning in self._require_stored_items_match(conversion, server):
            transfer.report.warn(warning)
        journal = Journal(description, address, example=example_hash(conversion), warn=transfer.report.warn)
        with journal.lock():
            if self.on_invalid == "error":
                transfer.check()
            saved = journal.load() if self.resume else None
            if saved is not None:
                transfer.require_same_data(saved.state)
            max_sizes = [infos[name].max_size for name in self.names if _evicts(infos[name])]
            _require_capacity(transfer, max_sizes, allow_eviction=self.options.allow_eviction)
            transfer.estimate_memory(self._make_encoder(conversion))
            if not self.options.force and _is_local(address):
                # Existing items usually come from an earlier run with the same data, which then need no more memory.
                needed = 0 if any(infos[name].current_size for name in self.names) else transfer.report.memory_bytes
                require_memory(needed, f"{', '.join(map(repr, self.names))} at {address}")
            self._run_until_written(transfer, address, journal)
        infos = table_infos(address, timeout_secs=self.timeout_secs)
        transfer.report.table_sizes = {name: infos[name].current_size for name in self.names}

    def _run_until_written(self, transfer: Transfer, address: str, journal: Journal) -> None:
        """Runs the transfer, and runs it again if the server is restarted in the meantime."""
        encoder, first = self._make_encoder(transfer.conversion), transfer.conversion.example
        while True:
            try:
                writer = self._open_writer(transfer, address, encoder)
                with ServerDestination(
                    address, writer, journal, tables=self.names, first=first, timeout_secs=self.timeout_secs
                ) as server:
                    transfer.run(server)
                    return
            except ServerRestartedError:
                if transfer.report.restarts == _MAX_RESTARTS:
                    raise
                transfer.report.restarts += 1

    def _open_writer(self, transfer: Transfer, address: str, encoder: Encoder) -> BulkWriter | ReverbWriter:
        """Opens a writer that the server supports, after checking that its tables accept the items."""
        conversion, report, timeout_secs = transfer.conversion, transfer.report, self.timeout_secs
        with Connection(address) as connection:
            state_id = connection.state_id(timeout_secs=timeout_secs)
            infos = connection.table_infos(timeout_secs=timeout_secs)
        for name in self.names:  # A restarted server may have different tables.
            require_table(infos, name, conversion.signature)
        self._require_stored_items_match(conversion, _Server(address, infos))
        # Checked after each restart, since a checkpoint may restore an undeleted trial item.
        if report.writer == "bulk":
            _fall_back_to_reverb_writer_if_unsupported(transfer, address, timeout_secs)
        writer: BulkWriter | ReverbWriter
        if report.writer == "bulk":
            writer = BulkWriter(address, encoder, timeout_secs=timeout_secs)
        else:
            writer = ReverbWriter(address, self.names, squeeze=conversion.squeeze, timeout_secs=timeout_secs)
        if writer.state_id != state_id:
            writer.close()
            raise ServerRestartedError(f"the server at {address} was restarted after its tables were checked")
        return writer

    def _require_stored_items_match(self, conversion: ItemConversion, server: _Server) -> list[str]:
        return require_stored_items_match(
            server.address, server.infos, self.names, conversion.signature, timeout_secs=self.timeout_secs
        )

    def _make_encoder(self, conversion: ItemConversion, *, number_items: bool = False) -> Encoder:
        options = self.options
        return conversion.make_encoder(self.names, options.chunk_length, options.key_seed, number_items=number_items)


def _split_destination(destination: Any) -> Any:
    """Returns the list of shards that a destination stands for, or the destination itself if it is a single one."""
    is_sharded = hasattr(destination, "servers")
    if is_sharded or (isinstance(destination, str) and server_address(destination) and "," in destination):
        return split_servers(destination)
    return destination


def _find_directory(destination: Server | str | Path) -> Path | None:
    """Returns the directory to write to, or None if the destination is a server."""
    is_path = isinstance(destination, (str, Path)) and server_address(destination) is None
    return expand_path(destination, "destination") if is_path else None


def _load(source: Any) -> Source:
    """Returns the source of a dataset; listed episodes need no copy, because they are read before `ingest` returns."""
    is_listed = isinstance(source, list) and source and all(isinstance(episode, Mapping) for episode in source)
    return from_episodes(source, copy=False) if is_listed else load(source)


def make_table_configs(tables: str | TableConfig | Sequence[str | TableConfig]) -> list[TableConfig]:
    """Returns the configurations of the tables that the argument `tables` of `ingest` stands for.

    Raises:
      ValueError: If the list is empty, or two of them have the same name.
    """
    sequence = [tables] if isinstance(tables, (str, TableConfig)) else tables
    configs = [TableConfig(table) if isinstance(table, str) else table for table in sequence]
    names = [config.name for config in configs]
    if not names or len(set(names)) < len(names):
        raise ArgumentError(f"must be one or more tables with different names, got {names}", about="tables")
    return configs


def _require_settings(info: TableInfo, config: TableConfig) -> None:
    """Raises `ValueError` unless a server's table has the settings of a configuration, or these are the defaults."""
    if config == TableConfig(config.name):
        return
    expected, limiter = config.as_reverb_values(), info.rate_limiter_info
    settings = {
        "sampler": _read_selector(info.sampler_options),
        "remover": _read_selector(info.remover_options),
        "max_size": info.max_size,
        "max_times_sampled": info.max_times_sampled,
        "rate_limiter": {name: getattr(limiter, name) for name in expected["rate_limiter"]},
    }
    for name, value in settings.items():
        if value != expected[name]:
            raise ValueError(
                f"{name} of table {config.name!r} must be that of the server's table, got {getattr(config, name)}; "
                "create the table with it, or pass the table's name alone"
            )


def _read_selector(options: Any) -> dict[str, Any]:
    kind = format_selector(options).partition(":")[0]
    return {"kind": kind, "exponent": options.prioritized.priority_exponent if kind == "prioritized" else None}


def _describe_callable(value: Any) -> str:
    """Describes an adder or a priority without memory addresses, so that the result is the same in each process."""
    if isinstance(value, (int, float)) or is_dataclass(value):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def example_hash(conversion: ItemConversion) -> int:
    """Returns a hash of the items and priorities of the first episode, and of the custom code that makes the others."""
    functions = [part for part in (conversion.adder, conversion.priority) if callable(part) and is_user_code(part)]
    code = "".join(map(fingerprint_code, functions)).encode()
    return keys.make_seed(conversion.example.digests[0], conversion.example.priorities.tobytes() + code)


def _evicts(info: TableInfo) -> bool:
    """Returns whether a full table evicts items instead of blocking inserts."""
    return info.rate_limiter_info.max_diff > NO_LIMIT


def _require_capacity(transfer: Transfer, max_sizes: Sequence[int], *, allow_eviction: bool | None) -> None:
    """Raises `ValueError`, or warns if eviction is allowed, unless each table can hold all items.

    `allow_eviction` is None for directories, which cannot evict.
    """
    smallest = min(max_sizes, default=MAX_ITEMS)
    fits = smallest == MAX_ITEMS or transfer.definitely_fits(smallest)
    num_items = 0 if fits else transfer.count_items()
    if num_items <= smallest:
        transfer.max_items = smallest
    elif not allow_eviction:
        raise capacity_error(num_items, smallest, can_evict=allow_eviction is not None)
    else:
        transfer.report.warn(
            f"the dataset has {num_items:,} items, but the smallest table holds {smallest:,}: at least "
            f"{num_items - smallest:,} of them will be evicted"
        )


def _fall_back_to_reverb_writer_if_unsupported(transfer: Transfer, address: str, timeout_secs: float) -> None:
    conversion, report = transfer.conversion, transfer.report
    if not len(conversion.example.starts):
        return
    trial = TrialItem(conversion.example.slice_items(0, 1), conversion.signature, conversion.specs, conversion.squeeze)
    reason = find_incompatibility(address, report.tables, trial, timeout_secs=timeout_secs)
    if reason is None:
        return
    if conversion.packed:
        raise ArgumentError(f"the server does not support the bulk writer ({reason}); store columns", layout="columns")
    report.writer = "reverb"
    report.warn(f"the server does not support the bulk writer ({reason}); Reverb's own writer is used instead")


def _is_local(address: str) -> bool:
    return address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", socket.gethostname())
