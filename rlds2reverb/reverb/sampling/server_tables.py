"""The information that one or more servers report about a table, checked for consistency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import permutations

from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.types.specs import Nest, leaves, require_match

from ..client import NO_LIMIT, Server, TableInfo, explain_missing_samples, find_addresses, table_infos
from ..client.table_info import format_selector
from ..wire.packing import Packing, find_packing


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
      infos: the information of each server; that of the first reachable one for unreachable servers.
    """

    table: str
    addresses: tuple[str, ...]
    signature: Nest
    packing: Packing | None
    exponents: tuple[float, ...]
    in_order: bool
    may_run_dry: bool
    unreachable: tuple[int, ...]
    infos: tuple[TableInfo, ...]

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
        if not addresses:
            raise ValueError("servers must be at least one, got none")
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
            advice = f"the tables at {other} and {first} cannot be sampled together"
            _require_same_signature(tables[other], f"at {other}", tables[first], f"at {first}", advice)
            _require_same_order(tables, other, first)
        infos = tuple(tables.get(address, tables[first]) for address in addresses)
        return cls(
            table,
            addresses,
            tables[first].array_signature,
            find_packing(tables[first].array_signature),
            tuple(info.sampler_options.prioritized.priority_exponent for info in infos),
            tables[first].sampler_options.is_deterministic,
            any(_may_run_dry(info) for info in infos),
            tuple(index for index, address in enumerate(addresses) if address not in tables),
            infos,
        )

    def require_unchanged(self, index: int, info: TableInfo) -> None:
        """Checks a table of a server that was started after the information was fetched.

        Args:
          index: index of the server.
          info: the information that it reports now.

        Raises:
          SpecMismatchError: If its items, or the way in which they are sampled, differ from what was fetched.
        """
        address, before = self.addresses[index], self.infos[index]
        advice = f"the server at {address} was replaced; sample from it with a new iterator"
        if info.encoded_signature != before.encoded_signature:
            _require_same_signature(info, f"at {address} now", before, "when sampling began", advice)
        rules = [(format_selector(table.sampler_options), _may_run_dry(table)) for table in (info, before)]
        if rules[0] != rules[1]:
            samplers = [f"{name}{' with limited samples' * is_limited}" for name, is_limited in rules]
            raise SpecMismatchError(
                f"table {self.table!r} is sampled by {samplers[0]} at {address} now, but {samplers[1]} when sampling "
                f"began; {advice}"
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


def _may_run_dry(info: TableInfo) -> bool:
    return info.max_times_sampled > 0 or info.rate_limiter_info.min_diff > -NO_LIMIT


def _require_same_signature(info: TableInfo, place: str, other: TableInfo, other_place: str, advice: str) -> None:
    specs = {place: info.array_signature, other_place: other.array_signature}
    packings = [find_packing(spec) for spec in specs.values()]
    # Named tuples are equal whatever their names are, so the paths are compared as well.
    paths = [[path for path, _ in leaves(packing.item_spec)] for packing in packings if packing]
    if packings[0] != packings[1] or paths[:1] != paths[1:]:
        raise SpecMismatchError(
            f"table {info.name!r} packs its items differently {place} and {other_place}; use servers whose tables have "
            f"the same items in the same layout ({advice})"
        )
    # Both directions, since the match is one-sided: None allows any size.
    for one, holder in permutations(specs):
        require_match(specs[one], specs[holder], holder=f"table {info.name!r} {holder}", advice=advice, root="item")


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
