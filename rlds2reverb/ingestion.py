"""`ingest`: a data set into the tables of a Reverb server, or into a directory that a server starts from."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import reverb
from reverb.reverb_types import TableInfo

from rlds2reverb._arguments import require_count, require_one_of, require_timeout
from rlds2reverb._encoding import keys
from rlds2reverb._encoding.encoder import MAX_CHUNK_LENGTH, Encoder
from rlds2reverb._server.checkpoint_root import CheckpointRoot
from rlds2reverb._server.clients import Server, connect, require_table, table_infos
from rlds2reverb._server.connection import ServerConnection
from rlds2reverb._server.held_items import require_same_items
from rlds2reverb._server.memory import require_memory
from rlds2reverb._writing.bulk_writer import BulkWriter
from rlds2reverb._writing.compatibility import TrialItem, why_bulk_writing_fails
from rlds2reverb._writing.conversion import ItemConversion, Layout, OnInvalid, make_conversion
from rlds2reverb._writing.directory_destination import DirectoryDestination
from rlds2reverb._writing.journal import Journal
from rlds2reverb._writing.report import IngestReport
from rlds2reverb._writing.reverb_writer import ReverbWriter
from rlds2reverb._writing.server_destination import ServerDestination
from rlds2reverb._writing.transfer import Progress, Transfer, too_many_items
from rlds2reverb.errors import ServerRestartedError
from rlds2reverb.items import EpisodeAdder
from rlds2reverb.priorities import Priority
from rlds2reverb.sources import Source, load
from rlds2reverb.tables import MAX_ITEMS, TableConfig
from rlds2reverb.trajectory_items import TrajectoryWindows

#: Who writes to a server: our own messages, or Reverb's public writer.
Writer = Literal["bulk", "public"]

_MAX_RESTARTS = 10
#: Reverb's own number for a rate limiter that never waits is the largest float.
_NO_LIMIT = 1e300
#: How long to wait for the first answer of a server, if that is shorter than the time-out.
_FIRST_ANSWER_SECS = 10.0


@dataclass(frozen=True)
class IngestOptions:
    """What few users of `ingest` need to change.

    Attributes:
      writer: 'bulk', or 'public' for Reverb's own writer: much slower, and its keys are random, so that a run that was
        killed may have written an episode twice. If the server does not understand the former, the latter is used,
        with a warning.
      chunk_length: items that share a chunk, from 1 to 1,000,000; None for as many as keep chunks small and few rows
        repeated.
      key_seed: another seed gives other keys, in case two of them collide.
      force: whether to write to a server on this machine what needs more memory than there is.
      allow_eviction: whether to write more items than a server's table holds, which removes the older ones of them; the
        report warns and counts. Otherwise that is an error before the first item.
    """

    writer: Writer = "bulk"
    chunk_length: int | None = None
    key_seed: int = 0
    force: bool = False
    allow_eviction: bool = False

    def __post_init__(self) -> None:
        require_one_of("writer", self.writer, get_args(Writer))
        if self.chunk_length is not None:
            require_count("chunk_length", self.chunk_length, 1, MAX_CHUNK_LENGTH)


_DEFAULT_OPTIONS = IngestOptions()


def ingest(
    source: Any,
    destination: Server | Path,
    tables: str | TableConfig | Sequence[str | TableConfig] = "replay",
    *,
    adder: EpisodeAdder | None = None,
    priority: Priority = 1.0,
    layout: Layout = "columns",
    on_invalid: OnInvalid = "error",
    resume: bool = True,
    timeout_secs: float = 30.0,
    options: IngestOptions = _DEFAULT_OPTIONS,
    progress: Progress = lambda stage, episode: None,
) -> IngestReport:
    """Writes a data set into tables of a running Reverb server, or into a directory that a server starts from.

    The keys of items stand for their content, so that writing the same again stores it once. A run that was killed
    continues where it was when it is called again with the same arguments: what a server has confirmed is noted in a
    journal (in `$XDG_STATE_HOME/rlds2reverb`, by default `~/.local/state/rlds2reverb`), and a directory has its own.
    A server that was restarted, from a checkpoint or empty, gets everything again.

    Args:
      source: a `Source`, or anything that `load` takes.
      destination: address 'host:port', a port of this machine, a client, or a server in this process; or a
        `pathlib.Path` of a directory that does not exist yet.
      tables: name or names; each gets every item. On a server they have to exist, with the items' signature or none.
        For a directory a name stands for a `TableConfig` of that name.
      adder: makes items of episodes; None for `TrajectoryWindows()`, whose items are transitions.
      priority: of every item, or a function of an episode and its `Items` that returns them; in [0, 1e12].
      layout: 'columns', or 'packed' for tables of `packed_signature`: half the memory, faster to sample.
      on_invalid: 'error' writes nothing if an episode is invalid (for a server, it reads and checks the whole data set
        first); 'skip_episode' leaves such episodes out; 'keep' writes them as they are, except those that no table
        can hold (no steps, uneven columns, other dtypes or shapes). Both count them in the report.
      resume: whether to continue an earlier run; otherwise it is forgotten.
      timeout_secs: how long to wait for the server to confirm anything.
      options: what few users need to change.
      progress: called with 'check', 'resume' or 'write' and each episode.

    Returns:
      `IngestReport`. Its warnings and notes are `IngestWarning`s of Python as well.

    Raises:
      InvalidEpisodeError: with on_invalid='error', at the first episode with problems; nothing is written.
      SourceError: if the source cannot be opened or read.
      SpecMismatchError: if a table's signature differs from the items, or an episode from the first; if a table without a
        signature holds an item of other columns (where it can be looked at; else the report has a warning).
      ServerUnavailableError: if the server does not answer or take items in time; what it confirmed is in the journal.
      ServerRestartedError: if the server is restarted again and again.
      ResumeError: if the data set is not the one of the run that is to be resumed.
      CorruptFileError: if the journal of that run is damaged.
      CheckpointError: if the directory exists, or what is left of an unfinished run is damaged or of another one.
      StorageFullError: if there is no space; what is written is kept, for `resume`.
      ResourceInUseError: if another process does the same.
      InsufficientMemoryError: if the server is on this machine, and its memory is not enough.
      KeyCollisionError: if two items have the same key by chance.
      ValueError: if an argument is out of its range, a table does not exist, or a table holds fewer items than the
        data set gives (see `IngestOptions.allow_eviction`).
    """
    require_one_of("on_invalid", on_invalid, get_args(OnInvalid))
    require_one_of("layout", layout, get_args(Layout))
    require_timeout(timeout_secs)
    to_directory = isinstance(destination, Path)
    if options.writer == "public" and (layout == "packed" or to_directory):
        raise ValueError("the public writer writes to servers only, in the layout 'columns'")
    configs = _table_configs(tables)
    names = tuple(config.name for config in configs)
    if not to_directory:
        client = connect(destination)
        infos = table_infos(client, timeout_secs=min(timeout_secs, _FIRST_ANSWER_SECS))
    source = load(source)
    conversion = make_conversion(source, adder or TrajectoryWindows(), priority, on_invalid=on_invalid, layout=layout)
    encoder = _encoder(conversion, names, options, number_items=to_directory)
    arguments = {
        "on_invalid": on_invalid,
        "layout": layout,
        "writer": options.writer,
        "chunk_length": options.chunk_length,
        "key_seed": options.key_seed,
    }
    description = _description(source, conversion, configs, arguments)
    example = keys.seed(conversion.example.digests[0], conversion.example.priorities.tobytes())
    report = IngestReport(source.name, names, writer=options.writer, statistics=source.statistics)
    for warning in source.warnings:
        report.warn(warning)
    transfer = Transfer(source, conversion, on_invalid, resume, report, progress)
    if isinstance(destination, Path):
        description["example"] = example
        _require_room(transfer, [config.capacity for config in configs], allow_eviction=False)
        with DirectoryDestination(
            destination, configs, conversion.signature, encoder, description=description
        ) as directory:
            transfer.run(directory)
        transfer.report.memory_bytes = CheckpointRoot(destination, make=False).described()["memory_bytes"]
        transfer.report.table_sizes = dict.fromkeys(names, transfer.report.items)
        transfer.report.warn_of_notes()
        return transfer.report
    for name in names:
        require_table(infos, name, conversion.signature)
    for warning in require_same_items(
        client.server_address, infos, names, conversion.signature, timeout_secs=timeout_secs
    ):
        report.warn(warning)
    journal = Journal(description, client.server_address, example=example, warn=report.warn)
    with journal.locked():
        if on_invalid == "error":
            transfer.check()
        saved = journal.load() if resume else None
        if saved is not None:
            transfer.require_same_data(saved.state)
        max_sizes = [infos[name].max_size for name in names if _evicts(infos[name])]
        _require_room(transfer, max_sizes, allow_eviction=options.allow_eviction)
        transfer.estimate_memory(_encoder(conversion, names, options))
        if not options.force and _is_here(client.server_address):
            has_items = any(infos[name].current_size for name in names)  # these data for the most part, or others'
            needed = 0 if has_items else transfer.report.memory_bytes
            require_memory(needed, f"{', '.join(map(repr, names))} at {client.server_address}")
        _write_to_server(transfer, client, encoder, journal, timeout_secs=timeout_secs)
    infos = table_infos(client, timeout_secs=timeout_secs)
    transfer.report.table_sizes = {name: infos[name].current_size for name in names}
    transfer.report.warn_of_notes()
    return transfer.report


def _evicts(info: TableInfo) -> bool:
    """Whether a full table removes an item for a new one, rather than waiting until one is sampled."""
    return info.rate_limiter_info.max_diff > _NO_LIMIT


def _require_room(transfer: Transfer, max_sizes: Sequence[int], *, allow_eviction: bool) -> None:
    """Checks before the first item that each table holds all of them, or warns that it does not."""
    smallest = min(max_sizes, default=MAX_ITEMS)
    if transfer.fits_surely(smallest):
        transfer.max_items = smallest
        return
    num_items = 0 if smallest == MAX_ITEMS else transfer.count_items()
    if num_items <= smallest:
        transfer.max_items = smallest
    elif not allow_eviction:
        raise too_many_items(num_items, smallest)
    else:
        transfer.report.warn(
            f"the data set gives {num_items:,} items and the smallest table holds {smallest:,}: "
            f"{num_items - smallest:,} or more of them will be removed again"
        )


def _table_configs(tables: str | TableConfig | Sequence[str | TableConfig]) -> list[TableConfig]:
    several = [tables] if isinstance(tables, (str, TableConfig)) else tables
    configs = [TableConfig(table) if isinstance(table, str) else table for table in several]
    names = [config.name for config in configs]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"tables are {names}, expected at least one, each once")
    return configs


def _encoder(
    conversion: ItemConversion, tables: Sequence[str], options: IngestOptions, *, number_items: bool = False
) -> Encoder:
    return Encoder(
        conversion.specs,
        tables,
        squeeze=conversion.squeeze,
        chunk_length=options.chunk_length,
        key_seed=options.key_seed,
        number_items=number_items,
    )


def _description(
    source: Source, conversion: ItemConversion, configs: Sequence[TableConfig], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Returns what distinguishes one run from another, as plain values for JSON."""
    description = {
        "source": [source.name, source.kind, source.num_rows, source.num_episodes],
        "steps": str(conversion.step_spec),
        "tables": [config.as_dict() for config in configs],
        "adder": _name(conversion.adder),
        "priority": _name(conversion.priority),
        **arguments,
    }
    return dict(json.loads(json.dumps(description)))


def _name(part: Any) -> str:
    """What stays the same from run to run: no addresses in memory."""
    if isinstance(part, (int, float)) or is_dataclass(part):
        return repr(part)
    return str(getattr(part, "__qualname__", type(part).__qualname__))


def _write_to_server(
    transfer: Transfer, client: reverb.Client, encoder: Encoder, journal: Journal, *, timeout_secs: float
) -> None:
    while True:
        try:
            writer = _open_writer(transfer, client, encoder, timeout_secs=timeout_secs)
            tables = transfer.report.tables
            first = transfer.conversion.example
            with ServerDestination(
                client, writer, journal, tables=tables, first=first, timeout_secs=timeout_secs
            ) as server:
                transfer.run(server)
                return
        except ServerRestartedError:
            if transfer.report.restarts == _MAX_RESTARTS:
                raise
            transfer.report.restarts += 1


def _open_writer(
    transfer: Transfer, client: reverb.Client, encoder: Encoder, *, timeout_secs: float
) -> BulkWriter | ReverbWriter:
    """Opens a writer that the server understands, after checking that its tables take the items."""
    conversion, report, address = transfer.conversion, transfer.report, client.server_address
    with ServerConnection(address) as connection:
        state_id = connection.state_id(timeout_secs=timeout_secs)
        infos = connection.table_infos(timeout_secs=timeout_secs)
    for name in report.tables:  # another server may have come, with other tables
        require_table(infos, name, conversion.signature)
    require_same_items(address, infos, report.tables, conversion.signature, timeout_secs=timeout_secs)
    if report.writer == "bulk":  # each time: the item that is tried may come back with a checkpoint
        _fall_back_to_public_writer_at_need(transfer, client, timeout_secs)
    writer: BulkWriter | ReverbWriter
    if report.writer == "bulk":
        writer = BulkWriter(client, encoder, timeout_secs=timeout_secs)
    else:
        structure, squeeze = conversion.signature, conversion.squeeze
        writer = ReverbWriter(client, report.tables, structure, squeeze=squeeze, timeout_secs=timeout_secs)
    if writer.state_id != state_id:
        writer.close(failed=True)
        raise ServerRestartedError(f"the server at {address} was restarted after its tables were checked")
    return writer


def _fall_back_to_public_writer_at_need(transfer: Transfer, client: reverb.Client, timeout_secs: float) -> None:
    conversion, report = transfer.conversion, transfer.report
    if not len(conversion.example.starts):
        return
    trial = TrialItem(conversion.example.part(0, 1), conversion.signature, conversion.specs, conversion.squeeze)
    reason = why_bulk_writing_fails(client, report.tables, trial, timeout_secs=timeout_secs)
    if reason is None:
        return
    if conversion.packed:
        raise ValueError(f"the server does not understand the bulk writer ({reason}); give layout='columns'")
    report.writer = "public"
    report.warn(f"the server does not understand the bulk writer ({reason}); Reverb's public one is used")


def _is_here(address: str) -> bool:
    return address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", socket.gethostname())
