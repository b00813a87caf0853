"""`ingest`: a data set into the tables of a Reverb server, or into a directory that a server starts from."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import warnings
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import reverb

from rlds2reverb import connecting, keys
from rlds2reverb.authoring import CheckpointWriter
from rlds2reverb.batches import Encoder
from rlds2reverb.bulk_writing import BulkWriter
from rlds2reverb.checkpoints import CheckpointRoot
from rlds2reverb.items import Adder
from rlds2reverb.locks import FileLock
from rlds2reverb.memory import require_memory
from rlds2reverb.plans import LAYOUTS, Plan, make_plan
from rlds2reverb.priorities import Priority
from rlds2reverb.public_writing import PublicWriter
from rlds2reverb.reports import IngestReport
from rlds2reverb.round_trip import why_bulk_writing_fails
from rlds2reverb.runs import ON_INVALID, Progress, Run
from rlds2reverb.service import ServerRestarted, Service
from rlds2reverb.sinks import ServerSink
from rlds2reverb.sources import Source, load
from rlds2reverb.tables import TableConfig
from rlds2reverb.windows import Windows

#: Who writes to a server: our own messages, or Reverb's public writer.
WRITERS = ("bulk", "public")

_MAX_RESTARTS = 10


def ingest(
    source: Any,
    destination: str | int | Path | reverb.Client | reverb.Server,
    tables: str | TableConfig | Sequence[str | TableConfig] = "replay",
    *,
    adder: Adder | None = None,
    priority: Priority = 1.0,
    on_invalid: str = "error",
    resume: bool = True,
    layout: str = "columns",
    writer: str = "bulk",
    chunk_length: int | None = None,
    num_streams: int = 1,
    key_seed: int = 0,
    timeout_secs: float = 30.0,
    connect_timeout_secs: float = 10.0,
    journal_folder: str | Path | None = None,
    force: bool = False,
    progress: Progress = lambda stage, episode: None,
) -> IngestReport:
    """Writes a data set into tables of a running Reverb server, or into a directory that a server starts from.

    Items have keys that say what they hold (see `keys`), so that writing the same again stores it once. A run that
    was killed continues where it was when it is called again with the same arguments: a server's confirmations are
    noted in a journal, a directory has its own. A server that was started anew, from a checkpoint or empty, gets
    everything again.

    Args:
      source: a `Source`, or anything that `load` takes.
      destination: address 'host:port', a port of this machine, a client, or a server in this process; or a
        `pathlib.Path` of a directory that is not there yet.
      tables: name or names; each gets every item. On a server they have to exist, with the items' signature or none.
        For a directory a name stands for a `TableConfig` of that name.
      adder: makes items of episodes; `Windows()`, which are transitions, if None.
      priority: of every item, or a function of an episode and its `Items` that gives them; in [0, 1e12].
      on_invalid: 'error' writes nothing if an episode is invalid (for a server, it reads and checks the whole data set
        first); 'skip_episode' leaves such episodes out; 'keep' writes them as they are, but for those that no table
        can hold (no steps, uneven columns, other dtypes or shapes). Both count them in the report.
      resume: whether to continue an earlier run; otherwise it is forgotten.
      layout: 'columns', or 'packed' for tables of `packing.packed_signature`: half the memory, faster to sample.
      writer: 'bulk', or 'public' for Reverb's own writer: much slower, and its keys are random, so that a run that
        was killed may have written an episode twice. If the server does not understand the former, the latter is
        taken, with a warning.
      chunk_length: items that share a chunk; see `batches.Encoder`.
      num_streams: streams to the server; with more than one the order of items is not kept.
      key_seed: other keys, for the case that two coincide.
      timeout_secs: how long to wait for the server to confirm anything.
      connect_timeout_secs: how long to wait for its first answer, if that is shorter.
      journal_folder: where the journals of unfinished runs are; by default `$XDG_STATE_HOME/rlds2reverb`, which is
        `~/.local/state/rlds2reverb`.
      force: whether to write to a server on this machine what is larger than its memory.
      progress: called with 'check', 'resume' or 'write' and each episode.

    Returns:
      `IngestReport`.

    Raises:
      InvalidEpisode: with on_invalid='error', at the first episode with problems; nothing is written.
      SourceError: if the source cannot be opened or read.
      SpecMismatch: if a table's signature differs from the items, or an episode from the first.
      ServerUnavailable: if the server does not answer or take items in time; what it confirmed is in the journal.
      ResumeError: if the data set is not the one of the run that is to be resumed.
      DamagedFile: if the journal of that run is damaged.
      CheckpointError: if the directory exists, or what is left of an unfinished run is damaged or of another one.
      StorageFull: if there is no space; what is written is kept, for `resume`.
      InUse: if another process does the same.
      TooLarge: if the server is on this machine, and its memory is not enough.
      KeysCoincide: if two items have the same key by chance.
      ValueError: if an argument is out of its range or a table does not exist.
    """
    for name, value, allowed in (
        ("on_invalid", on_invalid, ON_INVALID),
        ("layout", layout, LAYOUTS),
        ("writer", writer, WRITERS),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}, wanted one of {', '.join(map(repr, allowed))}")
    if writer == "public" and (layout == "packed" or isinstance(destination, Path)):
        raise ValueError("the public writer writes to servers, in the layout 'columns' only")
    connecting.require_timeout(timeout_secs)
    connecting.require_timeout(connect_timeout_secs)
    named = [tables] if isinstance(tables, (str, TableConfig)) else list(tables)
    configs = [TableConfig(table) if isinstance(table, str) else table for table in named]
    names = tuple(config.name for config in configs)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"tables are {list(names)}, wanted at least one, each once")
    to_directory = isinstance(destination, Path)
    if not to_directory:
        client = connecting.connect(destination)
        infos = connecting.table_infos(client, timeout_secs=min(timeout_secs, connect_timeout_secs))
    source = load(source)
    plan = make_plan(source, adder or Windows(), priority, on_invalid=on_invalid, packed=layout == "packed")
    encoder = Encoder(
        plan.specs,
        names,
        squeeze=plan.squeeze,
        chunk_length=chunk_length,
        key_seed=key_seed,
        number_items=to_directory,
    )
    description = _description(source, plan, configs, [on_invalid, layout, writer, chunk_length, key_seed])
    run = Run(source, plan, on_invalid, resume, IngestReport(source.name, names, writer=writer), progress)
    if isinstance(destination, Path):
        with CheckpointWriter(destination, configs, plan.signature, encoder, description=description) as sink:
            run.write(sink)
        run.report.memory_bytes = CheckpointRoot(destination, make=False).described()["memory_bytes"]
        return run.report
    for name in names:
        connecting.require_table(infos, name, plan.signature)
    journal = _journal_path(journal_folder, {**description, "server": client.server_address})
    with FileLock(journal.with_suffix(".lock"), f"another process writes this to {client.server_address}"):
        if on_invalid == "error":
            run.check()
        run.estimate(Encoder(plan.specs, names, squeeze=plan.squeeze, chunk_length=chunk_length))
        if not force and _is_here(client.server_address):
            held = any(infos[name].current_size for name in names)  # then it is for the most part there, or shared
            needed = 0 if held else run.report.memory_bytes
            require_memory(needed, f"{', '.join(map(repr, names))} at {client.server_address}")
        _write_to_server(run, client, encoder, journal, num_streams=num_streams, timeout_secs=timeout_secs)
    return run.report


def _description(source: Source, plan: Plan, configs: Sequence[TableConfig], options: list[Any]) -> dict[str, Any]:
    """What tells one run from another; of plain values, for JSON."""
    description = {
        "source": [source.name, source.kind, source.num_rows, source.num_episodes],
        "steps": str(source.step_spec),
        "tables": [config.as_dict() for config in configs],
        "adder": _name(plan.adder),
        "priority": _name(plan.priority),
        "options": options,
        "example": keys.seed(plan.example.digest, plan.example.priorities.tobytes()),
    }
    return dict(json.loads(json.dumps(description)))


def _name(thing: Any) -> str:
    """What stays the same from run to run: no addresses in memory."""
    if isinstance(thing, (int, float)) or is_dataclass(thing):
        return repr(thing)
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _journal_path(folder: str | Path | None, description: dict[str, Any]) -> Path:
    state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(folder) if folder is not None else Path(state_home) / "rlds2reverb"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(description, sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _require_round_trip(run: Run, client: reverb.Client, timeout_secs: float) -> None:
    """Has the public writer take over where the server does not understand the bulk writer."""
    plan, report = run.plan, run.report
    if not len(plan.example.starts):
        return
    reason = why_bulk_writing_fails(
        client,
        report.tables,
        plan.example,
        plan.signature,
        specs=plan.specs,
        squeeze=plan.squeeze,
        timeout_secs=timeout_secs,
    )
    if reason is None:
        return
    if plan.packed:
        raise ValueError(f"the server does not understand the bulk writer ({reason}); give layout='columns'")
    report.writer = "public"
    report.warnings += (f"the server does not understand the bulk writer ({reason}); Reverb's public one is used",)
    warnings.warn(report.warnings[-1], RuntimeWarning, stacklevel=4)


def _write_to_server(
    run: Run, client: reverb.Client, encoder: Encoder, journal: Path, *, num_streams: int, timeout_secs: float
) -> None:
    while True:
        try:
            writer = _open_writer(run, client, encoder, num_streams=num_streams, timeout_secs=timeout_secs)
            with ServerSink(client, writer, journal, tables=run.report.tables, timeout_secs=timeout_secs) as sink:
                run.write(sink)
                return
        except ServerRestarted:
            if run.report.restarts == _MAX_RESTARTS:
                raise
            run.report.restarts += 1


def _open_writer(
    run: Run, client: reverb.Client, encoder: Encoder, *, num_streams: int, timeout_secs: float
) -> BulkWriter | PublicWriter:
    """A writer to a server that understands it, and whose tables take the items."""
    plan, report, address = run.plan, run.report, client.server_address
    with Service(address) as service:
        state_id = service.state_id(timeout_secs=timeout_secs)
        infos = service.table_infos(timeout_secs=timeout_secs)
    for name in report.tables:  # another server may have come, with other tables
        connecting.require_table(infos, name, plan.signature)
    if report.writer == "bulk":  # each time: the item that is tried may come back with a checkpoint
        _require_round_trip(run, client, timeout_secs)
    writer: BulkWriter | PublicWriter
    if report.writer == "bulk":
        writer = BulkWriter(client, encoder, num_streams=num_streams, timeout_secs=timeout_secs)
    else:
        writer = PublicWriter(client, report.tables, plan.signature, squeeze=plan.squeeze, timeout_secs=timeout_secs)
    if writer.state_id != state_id:
        writer.close(failed=True)
        raise ServerRestarted(f"the server at {address} was started anew since its tables were looked at")
    return writer


def _is_here(address: str) -> bool:
    return address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", socket.gethostname())
