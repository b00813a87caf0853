"""`rlds2reverb push`: writes a dataset into the tables of running servers."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.system.signals import raise_on_sigterm

from . import checks
from .declarations import option
from .item_writing import ITEM_PACKAGES, open_prepared, write_items
from .number_types import seconds
from .options import (
    ADVANCED_NAMES,
    CONVERSION_HEADINGS,
    GroupedCommand,
    conversion_options,
    parameter_names,
    require_item_options,
    server_writing_options,
    sources_argument,
    table_names_option,
)
from .output import json_option

_HEADINGS = {
    "Tables": ["table_names"],
    **CONVERSION_HEADINGS,
    "Advanced": [*ADVANCED_NAMES, "timeout", "writer", *parameter_names(server_writing_options)],
}


@click.command(cls=GroupedCommand, headings=_HEADINGS, collapsed=("Input", "Preprocessing", "Advanced"))
@sources_argument()
@click.argument("address", metavar="HOST:PORT", type=checks.address)
@table_names_option
@conversion_options
@option(
    "--writer",
    choices=["bulk", "reverb"],
    help="'reverb' uses Reverb's own writer, which is much slower and may store items twice if it is interrupted.",
)
@option("--timeout", default=30.0, type=seconds, help="Maximum wait for each answer of the server.")
@server_writing_options
@json_option
def push(address: str, **options: Any) -> None:
    """Write a dataset into the tables of a running server.

    \b
    Examples:
      rlds2reverb push hopper_medium-v2.hdf5 host:8000 --n-step 3
      rlds2reverb push hopper_medium-v2.hdf5 host:8000,host:8001

    The server must have the tables already; its address is HOST:PORT. The episodes are distributed over several
    servers, separated by commas. To continue an interrupted push, run the same command again.
    """
    require_item_options(options)
    with raise_on_sigterm():
        source, statistics = open_prepared(options, *ITEM_PACKAGES)
        write_items(source, address, options, statistics)
