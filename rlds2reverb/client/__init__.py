"""The client of Reverb servers, over gRPC; it does not use dm-reverb."""

from .connection import Connection, confirmed_keys, server_state_id, table_infos
from .explanations import explain_blocked_inserts, explain_missing_samples
from .pausable_deadline import PausableDeadline
from .servers import Server, batch_address, batch_port, find_address, find_addresses, split_servers
from .table_info import NO_LIMIT, TableInfo, format_selector, require_table

__all__ = [
    "NO_LIMIT",
    "Connection",
    "PausableDeadline",
    "Server",
    "TableInfo",
    "batch_address",
    "batch_port",
    "confirmed_keys",
    "explain_blocked_inserts",
    "explain_missing_samples",
    "find_address",
    "find_addresses",
    "format_selector",
    "require_table",
    "server_state_id",
    "split_servers",
    "table_infos",
]
