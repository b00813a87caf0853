"""The information that a server reports about a table, and checks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import Nest, require_match

from ..wire.packing import find_packing
from ..wire.signatures import decode_signature

#: Reverb represents an unlimited `max_diff` or `min_diff` of a rate limiter by the largest or lowest float.
NO_LIMIT = 1e300


@dataclass(frozen=True)
class TableInfo:
    """The information about a table, with the attributes of `reverb.reverb_types.TableInfo` that are used.

    Attributes:
      name: name of the table.
      sampler_options, remover_options: `KeyDistributionOptions` messages; see `format_selector`.
      max_size: maximum number of items.
      max_times_sampled: how often an item is sampled until it is removed; 0 if it stays.
      rate_limiter_info: `RateLimiterInfo` message.
      current_size: number of items.
      num_episodes: number of episodes that the items belong to.
      num_deleted_episodes: number of episodes of which all items have been removed.
      num_unique_samples: number of items that have been sampled at least once.
      encoded_signature: the signature as a serialised `StructuredValue`, or None if the table has none.
    """

    name: str
    sampler_options: Any
    remover_options: Any
    max_size: int
    max_times_sampled: int
    rate_limiter_info: Any
    current_size: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    encoded_signature: bytes | None

    __repr__ = short_repr

    @classmethod
    def from_message(cls, message: Any) -> TableInfo:
        """Converts a `TableInfo` message."""
        names = [field.name for field in fields(cls) if field.name != "encoded_signature"]
        values = {name: getattr(message, name) for name in names}
        return cls(**values, encoded_signature=message.signature or None)

    @cached_property
    def signature(self) -> Nest:
        """The signature, a nest of `tf.TensorSpec`, or None if the table has none; decoding it imports TensorFlow."""
        if self.encoded_signature is None:
            return None
        from rlds2reverb.libraries.tensorflow_internals import decode_spec

        return decode_spec(self.encoded_signature)

    @cached_property
    def array_signature(self) -> Nest:
        """The signature as a nest of `NamedSpec`, or None if the table has none; see `decode_signature`.

        Raises:
          SpecMismatchError: If it is damaged, or not a nest of the specs of tensors.
        """
        if self.encoded_signature is None:
            return None
        try:
            return decode_signature(self.encoded_signature)
        except ValueError as error:
            raise SpecMismatchError(
                f"the signature of table {self.name!r} is {error}; serve the table with the signature of its items"
            ) from None


def format_selector(options: Any) -> str:
    """Returns a server's description of a sampler or remover in the form of `Selector`, such as 'prioritized:0.6'."""
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        return f"prioritized:{options.prioritized.priority_exponent:g}"
    if kind == "heap":
        return "min_heap" if options.heap.min_heap else "max_heap"
    return str(kind)


def require_table(infos: Mapping[str, TableInfo], name: str, item_signature: Nest) -> None:
    """Checks that a table exists and accepts items of a signature.

    Raises:
      ValueError: If there is no such table.
      SpecMismatchError: If its signature differs, naming the field.
    """
    if name not in infos:
        raise ValueError(f"the server has no table {name!r}; it has {', '.join(sorted(infos)) or 'none'}")
    signature = infos[name].signature
    if signature is None:
        return
    holder = f"table {name!r}"
    advice = "cast or reshape the data, or build the table from this dataset's item_signature()"
    packing, table_packing = find_packing(item_signature), find_packing(signature)
    if (packing is None) != (table_packing is None):
        layout, table_layout = ("packed", "columns") if packing else ("columns", "packed")
        raise SpecMismatchError(
            f"the items have layout {layout!r}, but {holder} expects {table_layout!r}; use layout={table_layout!r}"
        )
    if packing is not None and table_packing is not None:
        require_match(packing.item_spec, table_packing.item_spec, holder=holder, advice=advice, root="item")
        if packing.squeeze != table_packing.squeeze:
            rows, table_rows = ("single rows", "windows") if packing.squeeze else ("windows", "single rows")
            raise SpecMismatchError(f"the items are {rows}, but {holder} expects {table_rows}; use the same adder")
    require_match(item_signature, signature, holder=holder, advice=advice, root="item")
