from .connection import (
    Connection as Connection,
    confirmed_keys as confirmed_keys,
    server_state_id as server_state_id,
    table_infos as table_infos,
)
from .explanations import (
    explain_blocked_inserts as explain_blocked_inserts,
    explain_missing_samples as explain_missing_samples,
)
from .pausable_deadline import PausableDeadline as PausableDeadline
from .servers import (
    Server as Server,
    batch_address as batch_address,
    batch_port as batch_port,
    find_address as find_address,
    find_addresses as find_addresses,
    require_distinct as require_distinct,
    split_servers as split_servers,
)
from .table_info import (
    NO_LIMIT as NO_LIMIT,
    TableInfo as TableInfo,
    format_selector as format_selector,
    require_table as require_table,
)
