"""The information that one or more servers report about a table, checked for consistency."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlds2reverb.client import NO_LIMIT, Server, explain_missing_samples, find_addresses, table_infos
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
        answers = _fetch_all(addresses, timeout_secs)
        tables = {
            index: _find_table(answer, table, addresses[index], several=len(addresses) > 1)
            for index, answer in enumerate(answers)
            if not isinstance(answer, ServerUnavailableError)
        }
        if not tables:
            raise next(answer for answer in answers if isinstance(answer, ServerUnavailableError))
        first, *rest = tables
        for index in rest:
            _require_same_signature(
                tables[index].array_signature, tables[first].array_signature, table, addresses[index], addresses[first]
            )
            _require_same_order(tables[index], tables[first], addresses[index], addresses[first])
        samplers = [tables.get(index, tables[first]).sampler_options for index in range(len(addresses))]
        return cls(
            table,
            addresses,
            tables[first].array_signature,
            find_packing(tables[first].array_signature),
            tuple(_find_exponent(sampler) for sampler in samplers),
            tables[first].sampler_options.is_deterministic,
            any(_may_run_dry(info) for info in tables.values()),
            tuple(index for index in range(len(addresses)) if index not in tables),
        )

    def explain_missing_samples(self, indices: Sequence[int], *, waited_secs: float) -> list[str]:
        """Returns, for each of some servers, a sentence on why it returns no samples."""
        with ThreadPoolExecutor(len(indices)) as pool:
            addresses = [self.addresses[index] for index in indices]
            return list(pool.map(lambda address: explain_missing_samples(address, self.table, waited_secs), addresses))


def _fetch_all(addresses: Sequence[str], timeout_secs: float) -> list[Any]:
    """Returns each server's `table_infos`, or the `ServerUnavailableError` that its query raised."""

    def fetch(address: str) -> Any:
        try:
            return table_infos(address, timeout_secs=timeout_secs)
        except ServerUnavailableError as error:
            return error

    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(fetch, addresses))


def _find_table(infos: dict[str, Any], table: str, address: str, *, several: bool) -> Any:
    server = f"the server at {address}" if several else "the server"
    if table not in infos:
        raise ValueError(f"{server} has no table {table!r}; it has {', '.join(sorted(infos)) or 'none'}")
    if infos[table].encoded_signature is None:
        where = f" of {server}" if several else ""
        raise ValueError(
            f"table {table!r}{where} has no signature; serve it with one, such as ReplayServer(tables, signature)"
        )
    return infos[table]


def _require_same_signature(signature: Nest, expected: Nest, table: str, address: str, other: str) -> None:
    if find_packing(signature) != find_packing(expected):
        raise SpecMismatchError(
            f"table {table!r} packs its items differently at {address} and at {other}; use servers whose tables have "
            "the same items in the same layout"
        )
    # Both directions, since the match is one-sided: None allows any size.
    for holder, spec, other_spec in ((other, signature, expected), (address, expected, signature)):
        require_match(
            spec,
            other_spec,
            holder=f"table {table!r} at {holder}",
            advice=f"the tables at {address} and {other} cannot be sampled together",
            root="item",
        )


def _require_same_order(info: Any, expected: Any, address: str, other: str) -> None:
    """Raises `ValueError` if one table samples at random and the other does not: no weights fit both."""
    in_order = info.sampler_options.is_deterministic
    if in_order != expected.sampler_options.is_deterministic:
        ordered, at_random = (address, other) if in_order else (other, address)
        raise ValueError(
            f"table {info.name!r} is sampled at random at {at_random} but in a fixed order at {ordered}, for which no "
            "weights can compensate; sample these servers separately, or serve both tables with uniform or prioritized"
        )


def _may_run_dry(info: Any) -> bool:
    limited = info.rate_limiter_info.min_diff > -NO_LIMIT
    return bool(info.max_times_sampled > 0 or limited)


def _find_exponent(sampler: Any) -> float:
    return float(sampler.prioritized.priority_exponent) if sampler.HasField("prioritized") else 0.0
