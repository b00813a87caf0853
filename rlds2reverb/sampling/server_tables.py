"""The information that one or more servers report about a table, checked for consistency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import permutations

from rlds2reverb.client import NO_LIMIT, Server, TableInfo, explain_missing_samples, find_addresses, table_infos
from rlds2reverb.encoding.packing import Packing, find_packing
from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.specs import Nest, require_match


@dataclass(frozen=True)
class ServerTables:
    """The tables of one name on one or more servers.

    Attributes:
      table: name of the tables.
      addresses: addresses of the servers, in order.
      signature: signature of the tables, a nest of `ArraySpec`, the same on all servers.
      packing: packing of the items, or None if they are not packed.
      exponents: priority exponent of each server's sampler; 0 if it has none. Unreachable servers get that of the first
        reachable one.
      in_order: whether the samplers return items in a fixed order (queue, heap) instead of at random.
      may_run_dry: whether a table may return fewer samples than requested, because its items can be used up or its rate
        limiter waits for inserts.
      unreachable: indices of the servers that did not answer.
    """

    table: str
    addresses: tuple[str, ...]
    signature: Nest
    packing: Packing | None
    exponents: tuple[float, ...]
    in_order: bool
    may_run_dry: bool
    unreachable: tuple[int, ...]

    @classmethod
    def fetch(cls, servers: Server | Sequence[Server], table: str, *, timeout_secs: float) -> ServerTables:
        """Returns the information about a table, querying all servers at the same time.

        Raises:
          ServerUnavailableError: If none answers in time.
          SpecMismatchError: If the tables have different signatures.
          ValueError: If there is no server or a duplicate, a server is missing the table or its signature, or only some
            of the tables sample at random.
        """
        addresses = tuple(find_addresses(servers))
        if not addresses or len(set(addresses)) < len(addresses):
            raise ValueError(f"servers must be at least one, without duplicates, got {', '.join(addresses) or 'none'}")
        with ThreadPoolExecutor(len(addresses)) as pool:
            answers = [pool.submit(table_infos, address, timeout_secs=timeout_secs) for address in addresses]
        tables = {
            address: _find_table(answer.result(), table, address, several=len(addresses) > 1)
            for address, answer in zip(addresses, answers, strict=True)
            if not isinstance(answer.exception(), ServerUnavailableError)
        }
        if not tables:
            answers[0].result()  # Raises its error.
        first, *others = tables
        for other in others:
            _require_same_signature(tables, other, first)
            _require_same_order(tables, other, first)
        samplers = [tables.get(address, tables[first]).sampler_options for address in addresses]
        return cls(
            table,
            addresses,
            tables[first].array_signature,
            find_packing(tables[first].array_signature),
            tuple(sampler.prioritized.priority_exponent for sampler in samplers),
            tables[first].sampler_options.is_deterministic,
            any(info.max_times_sampled > 0 or info.rate_limiter_info.min_diff > -NO_LIMIT for info in tables.values()),
            tuple(index for index, address in enumerate(addresses) if address not in tables),
        )

    def explain_missing_samples(self, indices: Sequence[int], *, waited_secs: float) -> list[str]:
        """Returns, for each of some servers, a sentence on why it returns no samples."""
        with ThreadPoolExecutor(len(indices)) as pool:
            addresses = [self.addresses[index] for index in indices]
            return list(pool.map(lambda address: explain_missing_samples(address, self.table, waited_secs), addresses))


def _find_table(infos: dict[str, TableInfo], table: str, address: str, *, several: bool) -> TableInfo:
    server = f"the server at {address}" if several else "the server"
    if table not in infos:
        raise ValueError(f"{server} has no table {table!r}; it has {', '.join(sorted(infos)) or 'none'}")
    if infos[table].encoded_signature is None:
        where = f" of {server}" if several else ""
        raise ValueError(
            f"table {table!r}{where} has no signature; serve it with one, such as ReplayServer(tables, signature)"
        )
    return infos[table]


def _require_same_signature(tables: Mapping[str, TableInfo], address: str, other: str) -> None:
    table, specs = tables[address].name, {name: tables[name].array_signature for name in (address, other)}
    if find_packing(specs[address]) != find_packing(specs[other]):
        raise SpecMismatchError(
            f"table {table!r} packs its items differently at {address} and at {other}; use servers whose tables have "
            "the same items in the same layout"
        )
    advice = f"the tables at {address} and {other} cannot be sampled together"
    # Both directions, since the match is one-sided: None allows any size.
    for one, holder in permutations(specs):
        require_match(specs[one], specs[holder], holder=f"table {table!r} at {holder}", advice=advice, root="item")


def _require_same_order(tables: Mapping[str, TableInfo], address: str, other: str) -> None:
    """Raises `ValueError` if one table samples at random and the other does not: no weights fit both."""
    in_order = tables[address].sampler_options.is_deterministic
    if in_order != tables[other].sampler_options.is_deterministic:
        ordered, at_random = (address, other) if in_order else (other, address)
        raise ValueError(
            f"table {tables[other].name!r} is sampled at random at {at_random} but in a fixed order at {ordered}, for "
            "which no weights can compensate; sample these servers separately, or serve both tables with uniform or "
            "prioritized"
        )
