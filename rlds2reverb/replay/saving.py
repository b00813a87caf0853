"""Saving a buffer: checkpoints in its root, and the whole of it as a dict."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlds2reverb._server.signals import signals_deferred
from rlds2reverb.errors import CheckpointError

from .base import BufferBase
from .checks import require_drawable
from .elements import Elements, row_spec_of, spec_of
from .ledger import Ledger
from .snapshots import Snapshots, files_of
from .stores import TableStore

#: Parts of a configuration that tell what the elements are.
_TELLING = ("kind", "length", "max_size")


class SavedBuffer(BufferBase):
    """A buffer that can be saved; see `buffer.ReplayBuffer`."""

    def checkpoint(self) -> Path:
        """Writes a checkpoint, and gives its directory: elements of all tables, priorities, uses, ids, counts, beta.

        A buffer that is made with the same `checkpoint_root` afterwards goes on from the newest complete one, also
        after this process was killed, at any moment.

        Raises:
          ValueError: if the buffer has no `checkpoint_root`, nothing was pushed yet, or it is closed.
          CheckpointError, StorageFull: see `ReplayServer.checkpoint`.
          ServerUnavailable: if it takes longer than ten minutes.
        """
        with self.lock:
            if self._root is None:
                raise ValueError(f"{self._holder} has no checkpoint_root; make it with one")
            return self._checkpoint()

    def _checkpoint(self) -> Path:
        store = self._usable_store()
        if store is None or self._snapshots is None:
            raise ValueError(f"{self._holder} holds nothing that could be saved; push first, or give its spec")
        return self._snapshots.write(self._known(), store.checkpoint)

    def _known(self) -> dict[str, Any]:
        """What the buffer knows beside the tables."""
        others = [[name, str(selector)] for name, selector in sorted(self.config.other_tables.items())]
        num_drawn = dict.fromkeys(self.table_names, 0) if self._store is None else self._store.num_drawn
        return {
            "name": self.name,
            "config": {**{key: getattr(self.config, key) for key in _TELLING}, "other_tables": others},
            "ledger": self._ledger.state(),
            "beta": self._beta,
            "highest_priority": self._highest,
            "sample_count": self._num_sampled,
            "num_drawn": [[name, count] for name, count in num_drawn.items()],
            "rng": self._rng.bit_generator.state,
        }

    def _restore(self) -> None:
        """Goes on from the newest checkpoint, if there is one."""
        known = None if self._snapshots is None else self._snapshots.state()
        if known is None or self._snapshots is None:
            return
        self._require_own(known)
        root = self._snapshots.table_root
        store = self._store = TableStore(self._tables, None, checkpoint_root=root, timeout_secs=self._timeout_secs)
        for table, info in store.infos().items():
            if info.current_size != len(known["ledger"]["numbers"]):
                raise CheckpointError(
                    f"table {table!r} of {root} holds {info.current_size} elements, its state says "
                    f"{len(known['ledger']['numbers'])}; restore it from a copy, or give a new directory"
                )
        spec = row_spec_of(spec_of(store.info().signature), self._axis, holder=self._holder)
        self._use(store, Elements(spec, self._axis, holder=self._holder))
        self._know(known)

    def _know(self, known: Mapping[str, Any]) -> None:
        """Takes over what `_known` gave; nothing is changed if it is damaged."""
        try:
            ledger = Ledger.from_state(self.config.max_size, known["ledger"])
            there = ledger.numbers()
            priorities = ledger.priorities_of(there)
            require_drawable(priorities, self.lowest_priority, lambda place: f"element {there[place]}")
            numbers = float(known["beta"]), float(known["highest_priority"]), int(known["sample_count"])
            num_drawn = {table: int(dict(known["num_drawn"])[table]) for table in self.table_names}
            self._rng.bit_generator.state = known["rng"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state of {self._holder} is damaged ({error}); restore it from a copy"
            ) from error
        self._ledger = ledger
        self._beta, self._highest, self._num_sampled = numbers
        if self._store is not None:
            self._store.num_drawn = num_drawn

    def _require_own(self, known: Mapping[str, Any]) -> None:
        """Raises `CheckpointError` if a state is of another buffer, or one of another configuration."""
        own = self._known()
        missing = [repr(key) for key in own if key not in known]
        missing += [repr(key) for key in own["config"] if key not in known.get("config", own["config"])]
        if missing:
            raise CheckpointError(f"the state lacks {', '.join(missing)}; give what state_dict gave")
        for what, was, now in [
            ("name", known["name"], own["name"]),
            *((key, known["config"][key], own["config"][key]) for key in own["config"]),
        ]:
            if was != now:
                was, now = (dict(pairs) if isinstance(pairs, list) else pairs for pairs in (was, now))
                raise CheckpointError(
                    f"the state is of a buffer with {what} {was!r}, this one has {now!r}; make it as that one was, or "
                    "give a new directory"
                )

    def state_dict(self) -> dict[str, Any]:
        """The whole buffer, elements and all, for `load_state_dict`; made of a checkpoint.

        With a `checkpoint_root` it is one that the buffer goes on from, like that of `checkpoint`.

        Raises:
          ValueError: if the buffer is closed.
          StorageFull: if there is no space.
          ServerUnavailable: if it takes longer than ten minutes.
        """
        with self.lock:
            store = self._usable_store()
            files = None if store is None else files_of(self._checkpoint())
            return {**self._known(), "tables": [table.as_dict() for table in self._tables], "files": files}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, of a buffer of the same name and configuration, in place of what it has.

        The server is started anew, at another `address`. With a `checkpoint_root` the state becomes its newest
        checkpoint.

        Raises:
          CheckpointError: if the state is damaged, or of another buffer or configuration; nothing is changed then.
          StorageFull: if there is no space; nothing is changed then.
          ServerUnavailable: if the server does not answer in time; the buffer is lost then, its checkpoint is not.
          ValueError: if the buffer is closed.
        """
        with self.lock, signals_deferred():
            self._usable_store()
            self._require_own(state)
            self._require_own_tables(state.get("tables"))
            known = {key: value for key, value in state.items() if key not in ("tables", "files")}
            files = state.get("files")
            if files is None and len(state["ledger"].get("numbers", [None])):
                raise CheckpointError("the state has elements and lacks their files; give what state_dict gave")
            if files is None:
                self._know(known)
                if self._store is not None:
                    with self._changing():
                        self._store.reset()
                    if self._root is not None:
                        self._checkpoint()
                return
            self._require_sound(known, files)
            self._snapshots = self._snapshots or Snapshots(Path(self._scratch()))
            self._snapshots.put(known, self._tables, files)
            with self._changing():
                if self._store is not None:
                    self._store.close()
                self._store = self._elements = None
                self._restore()

    def _require_own_tables(self, tables: Any) -> None:
        """Raises `CheckpointError` unless those of a state are the buffer's."""
        own = [table.as_dict() for table in self._tables]
        if not isinstance(tables, list) or len(tables) != len(own):
            raise CheckpointError("the state lacks tables; give what state_dict gave")
        for was, now in zip(tables, own, strict=True):
            if was != now:
                raise CheckpointError(
                    f"the state is of table {was}, this one is {now}; make the buffer as that one was"
                )

    def _require_sound(self, known: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Raises `CheckpointError` unless a buffer like this one can begin with a state, which is tried elsewhere."""
        with tempfile.TemporaryDirectory(prefix="rlds2reverb-buffer-") as folder:
            snapshots = Snapshots(Path(folder) / "root")
            try:
                snapshots.put(known, self._tables, files)
            except KeyError as error:
                raise CheckpointError(f"the state lacks the file {error}; give what state_dict gave") from error
            finally:
                snapshots.close()
            type(self)(self.name, self.config, checkpoint_root=snapshots.path, timeout_secs=self._timeout_secs).close()
