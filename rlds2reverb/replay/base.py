"""What a buffer is made of, and its life: its tables, its ledger, those who listen, and its end."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from rlds2reverb._arguments import require_timeout
from rlds2reverb._server.signals import signals_deferred
from rlds2reverb.errors import LimitReached, ServerUnavailable, TooManyDraws
from rlds2reverb.specs import Nest, require_match
from rlds2reverb.tables import TableConfig

from .configs import BufferConfig
from .elements import Elements, TimeAxis, fields_of, row_spec_of, spec_of
from .ledger import Ledger
from .listeners import Listener
from .rules import lowest_priority
from .snapshots import Snapshots
from .stores import TableStore

_FIRST_PRIORITY = 1.0

Self = TypeVar("Self", bound="BufferBase")


class BufferBase:
    """A buffer without what moves elements in and out; see `buffer.ReplayBuffer`."""

    #: The kind of configuration that it takes.
    kind: ClassVar[str] = "advanced"

    def __init__(
        self,
        name: str,
        config: BufferConfig | None = None,
        *,
        spec: Nest | None = None,
        checkpoint_root: str | Path | None = None,
        seed: int | None = None,
        timeout_secs: float = 30.0,
    ):
        """Opens a buffer, with the elements of the newest checkpoint if there is one.

        Args:
          name: of the buffer and its own table; ids of elements begin with it.
          config: its configuration; None for the one of its kind with no numbers given.
          spec: nest of arrays or of specs like an item; None for that of the first item.
          checkpoint_root: a directory for its checkpoints; the buffer begins with the newest one there.
          seed: of what the buffer itself draws, such as windows. (Reverb's draws cannot be seeded.)
          timeout_secs: how long to wait for any answer of the server.

        Raises:
          ValueError: if the configuration is of another kind or has another table of the buffer's name, or anything
            is out of its range.
          CheckpointError: if the checkpoint is damaged, or of another buffer or configuration.
        """
        require_timeout(timeout_secs)
        self.config = BufferConfig(kind=self.kind) if config is None else config
        if self.config.kind != self.kind:
            raise ValueError(f"a {type(self).__name__} takes a config of kind {self.kind!r}, got {self.config.kind!r}")
        self.name = name
        #: Held by every method; hold it to keep several calls together.
        self.lock = threading.RLock()
        #: Why the last sample was refused; empty when it was not.
        self.refusal = ""
        self._tables = self.config.tables(name)
        #: The lowest priority above 0 that an element may have; see `rules.lowest_priority`.
        self.lowest_priority = lowest_priority(self._tables)
        self._root = None if checkpoint_root is None else Path(checkpoint_root)
        self._timeout_secs = timeout_secs
        self._rng = np.random.default_rng(seed)
        self._listeners: list[Listener] = []
        self._ledger = Ledger(self.config.max_size)
        self._beta, self._highest, self._num_sampled = float(self.config.beta), _FIRST_PRIORITY, 0
        self._elements: Elements | None = None
        self._store: TableStore | None = None
        self._failure: BaseException | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._closed = False
        self._snapshots = None if self._root is None else Snapshots(self._root)
        try:
            self._restore()
            if spec is not None:
                self._begin_with(self._elements_like(spec))
        except BaseException:
            self.close()
            raise

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    # --- what it has

    @property
    def _holder(self) -> str:
        return f"buffer {self.name!r}"

    @property
    def _axis(self) -> TimeAxis:
        """Of an element."""
        return TimeAxis()

    @property
    def table_name(self) -> str:
        """The buffer's own Reverb table."""
        return self._tables[0].name

    @property
    def table_names(self) -> tuple[str, ...]:
        """All its Reverb tables, its own first."""
        return tuple(table.name for table in self._tables)

    @property
    def address(self) -> str | None:
        """Where Reverb's clients find the tables; None before the first push."""
        return None if self._store is None else self._store.address

    @property
    def spec(self) -> Nest | None:
        """`ArraySpec`s of an element; None before the first push."""
        return None if self._elements is None else self._elements.spec

    @property
    def push_count(self) -> int:
        """Elements pushed since the beginning."""
        return self._ledger.next_number

    @property
    def sample_count(self) -> int:
        """Elements that `sample` gave since the beginning."""
        return self._num_sampled

    def _num_sampled_by_all(self) -> int:
        """Elements that `sample` gave or others took, from all tables."""
        return self._num_sampled + (0 if self._store is None else self._store.num_drawn_by_others())

    @property
    def highest_priority(self) -> float:
        """The highest priority so far, or what decay has left of it: that of new elements that have none."""
        return self._highest

    @property
    def beta(self) -> float:
        """The exponent of the importance weights of the next sample, in [0, 1]."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"beta is {value}, expected a number from 0 to 1")
        with self.lock:
            self._beta = float(value)

    def count(self) -> int:
        """Elements that are there."""
        with self.lock:
            return self._ledger.count

    def add_listener(self, listener: Listener) -> None:
        """Has a listener told of what happens from now on."""
        with self.lock:
            self._listeners.append(listener)

    # --- its tables

    def _table(self, name: str | None) -> TableConfig:
        """One of its tables by name, its own for None; `ValueError` if there is none."""
        for table in self._tables:
            if name is None or table.name == name:
                return table
        raise ValueError(f"{self._holder} has no table {name!r}; it has {', '.join(map(repr, self.table_names))}")

    def _restore(self) -> None:
        """Goes on from the newest checkpoint, if there is one; see `saving`."""

    def _elements_like(self, item: Any) -> Elements:
        spec = row_spec_of(spec_of(fields_of(item)), self._axis, holder=self._holder)
        return Elements(spec, self._axis, holder=self._holder)

    def _begin_with(self, elements: Elements) -> TableStore:
        """Starts the server; if that was done, looks whether its tables take such elements."""
        if self._store is not None and elements is self._elements:
            return self._store
        if self._store is not None and self._elements is not None:
            advice = "give the spec of the checkpoint, or a new checkpoint_root"
            require_match(elements.row_spec, self._elements.row_spec, holder=self._holder, advice=advice, root="item")
            return self._store
        self._snapshots = self._snapshots or Snapshots(Path(self._scratch()))
        store = TableStore(
            self._tables,
            elements.signature,
            checkpoint_root=self._snapshots.table_root,
            timeout_secs=self._timeout_secs,
        )
        self._use(store, elements)
        return store

    def _use(self, store: TableStore, elements: Elements) -> None:
        self._store, self._elements = store, elements
        with self._changing():
            store.open(elements.row_specs, squeeze=not elements.axis.exists)

    def _scratch(self) -> str:
        """A directory that goes with the buffer."""
        self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="rlds2reverb-buffer-")
        return str(Path(self._temporary.name) / "root")

    def _usable_store(self) -> TableStore | None:
        """The tables, if there are any yet; raises if the buffer is closed, or nobody knows what the tables hold."""
        if self._failure is not None:
            raise ServerUnavailable(f"{self._holder} was lost before ({self._failure}); make a new one")
        if self._closed:
            raise ValueError(f"{self._holder} is closed; make a new one")
        return self._store

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Around what changes tables and ledger: all or none, or the buffer is lost. Ctrl-C waits until it is done."""
        with signals_deferred():
            try:
                yield
            except (TooManyDraws, LimitReached):  # which change nothing but counts of the server
                raise
            except BaseException as error:
                self._failure = error
                raise

    # --- what leaves

    def clear(self) -> None:
        """Removes all elements; the highest priority is 1 again. Counts go on, so that no id comes twice."""
        with self.lock:
            self._usable_store()
            self._remove(self._ledger.numbers(), "cleared")
            self._highest = _FIRST_PRIORITY

    def _remove(self, numbers: np.ndarray, reason: str) -> None:
        if self._store is None or not len(numbers):
            return
        with self._changing():
            self._store.delete(numbers)
            self._ledger.remove(numbers)
        self._tell_removed(numbers, reason)

    def _tell_removed(self, numbers: np.ndarray, reason: str) -> None:
        for listener in self._listeners if len(numbers) else ():
            listener.on_remove(numbers.copy(), reason)

    def close(self) -> None:
        """Stops the server; the elements are gone but for checkpoints. Once more does nothing."""
        with self.lock:
            self._closed = True
            if self._store is not None:
                self._store.close()
            if self._snapshots is not None:
                self._snapshots.close()
            if self._temporary is not None:
                self._temporary.cleanup()
            self._store = self._snapshots = self._temporary = None
