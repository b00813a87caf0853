"""The same table on one server or several: what they say of it, checked to fit together."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import reverb

from rlds2reverb._encoding.packing import Packing, find_packing
from rlds2reverb._server.clients import Server, connect_all, table_infos, why_nothing_sampled
from rlds2reverb._server.connection import server_state_id
from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.specs import Nest, require_match

_ANSWER_SECS = 0.5


@dataclass(frozen=True)
class ServerTables:
    """A table on each of several servers.

    Attributes:
      table: its name.
      clients: of the servers, in their order.
      signature: of the table, the same on all.
      packing: how its items are packed, or None.
      exponents: of each server's sampler; 0 where it has none, that of the first one for those that are silent.
      in_order: whether the samplers give items in an order of their own (a queue, a heap), not at random.
      scarce: whether a table may give fewer samples than are asked for: its items can be used up, or its rate limiter
        waits for insertions.
      silent: numbers of the servers that did not answer.
    """

    table: str
    clients: tuple[reverb.Client, ...]
    signature: Nest
    packing: Packing | None
    exponents: tuple[float, ...]
    in_order: bool
    scarce: bool
    silent: tuple[int, ...]

    @classmethod
    def of(cls, servers: Server | Sequence[Server], table: str, *, timeout_secs: float) -> ServerTables:
        """Asks all servers at the same time.

        Raises:
          ServerUnavailableError: if none answers in time.
          SpecMismatchError: if the tables have different signatures.
          ValueError: if there is no server, one is given twice, one lacks the table or its signature, or one gives
            items at random and another in an order of its own.
        """
        clients = tuple(connect_all(servers))
        addresses = [client.server_address for client in clients]
        if not clients or len(set(addresses)) < len(addresses):
            raise ValueError(f"the servers are {', '.join(addresses) or 'none'}; expected at least one, each once")
        answers = _ask_all(clients, timeout_secs)
        found = {
            number: _table_of(answer, table, addresses[number], several=len(clients) > 1)
            for number, answer in enumerate(answers)
            if not isinstance(answer, ServerUnavailableError)
        }
        if not found:
            raise next(answer for answer in answers if isinstance(answer, ServerUnavailableError))
        first, *rest = found
        for number in rest:
            _require_same(found[number].signature, found[first].signature, table, addresses[number], addresses[first])
            _require_alike(found[number], found[first], addresses[number], addresses[first])
        samplers = [found.get(number, found[first]).sampler_options for number in range(len(clients))]
        return cls(
            table,
            clients,
            found[first].signature,
            find_packing(found[first].signature),
            tuple(_exponent(sampler) for sampler in samplers),
            found[first].sampler_options.is_deterministic,
            any(_is_scarce(info) for info in found.values()),
            tuple(number for number in range(len(clients)) if number not in found),
        )

    @property
    def addresses(self) -> list[str]:
        """Of the servers, in their order."""
        return [client.server_address for client in self.clients]

    def answers(self, number: int) -> bool:
        """Whether a server answers within half a second."""
        try:
            server_state_id(self.clients[number].server_address, timeout_secs=_ANSWER_SECS)
        except ServerUnavailableError:
            return False
        return True

    def why_nothing_sampled(self, numbers: Sequence[int], *, waited_secs: float) -> list[str]:
        """A sentence for each of some servers on why it gives no samples."""
        with ThreadPoolExecutor(len(numbers)) as pool:
            clients = [self.clients[number] for number in numbers]
            return list(pool.map(lambda client: why_nothing_sampled(client, self.table, waited_secs), clients))


def _ask_all(clients: Sequence[reverb.Client], timeout_secs: float) -> list[Any]:
    """What each server says of its tables, or the `ServerUnavailableError` that asking it gave."""

    def ask(client: reverb.Client) -> Any:
        try:
            return table_infos(client, timeout_secs=timeout_secs)
        except ServerUnavailableError as error:
            return error

    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(ask, clients))


def _table_of(infos: dict[str, Any], table: str, address: str, *, several: bool) -> Any:
    server = f"the server at {address}" if several else "the server"
    if table not in infos:
        raise ValueError(f"{server} has no table {table!r}; it has {', '.join(sorted(infos)) or 'none'}")
    if infos[table].signature is None:
        where = f" of {server}" if several else ""
        raise ValueError(
            f"table {table!r}{where} has no signature; serve it with one (--like, or ReplayServer's signature)"
        )
    return infos[table]


def _require_same(got: Nest, wanted: Nest, table: str, address: str, other: str) -> None:
    got_packing, wanted_packing = find_packing(got), find_packing(wanted)
    if got_packing != wanted_packing:
        raise SpecMismatchError(
            f"the items of table {table!r} are packed in other ways at {address} and at {other}; sample servers "
            "whose tables have the same items in the same layout"
        )
    for have, want in ((got, wanted), (wanted, got)):  # each allows the other's sizes, so that both are the same
        require_match(
            have,
            want,
            holder=f"table {table!r} at {other}",
            advice=f"so that it cannot be sampled together with that at {address}",
            root="item",
        )


def _require_alike(got: Any, wanted: Any, address: str, other: str) -> None:
    """Raises `ValueError` where one table gives items at random and the other does not: no weights fit both."""
    in_order = got.sampler_options.is_deterministic
    if in_order != wanted.sampler_options.is_deterministic:
        ordered, at_random = (address, other) if in_order else (other, address)
        raise ValueError(
            f"table {got.name!r} gives items at random at {at_random} and in an order of its own at {ordered}, which "
            "no weights make up for; sample these servers apart, or serve both tables with uniform or prioritized"
        )


def _is_scarce(info: Any) -> bool:
    limited = info.rate_limiter_info.min_diff > -1e300  # Reverb's own for no limit is the lowest number
    return bool(info.max_times_sampled > 0 or limited)


def _exponent(sampler: Any) -> float:
    return float(sampler.prioritized.priority_exponent) if sampler.HasField("prioritized") else 0.0
