"""`rlds2reverb store`: lists, verifies and prunes stores."""

from __future__ import annotations

from pathlib import Path

import click

from rlds2reverb.datasets.steps.stores import delete_store, list_stores
from rlds2reverb.system.text import format_bytes, format_columns

from .declarations import EXISTING_DIRECTORY, flag
from .output import json_option, print_result


@click.command()
@click.argument("directory", metavar="DIR", type=EXISTING_DIRECTORY)
@flag("--verify", help="Compare all files with their checksums.")
@flag("--prune", help="Delete incomplete and damaged stores that no process is building.")
@json_option
def store(directory: Path, verify: bool, prune: bool, as_json: bool) -> None:
    """List the stores in a directory that was the --store-dir of runs.

    \b
    Examples:
      rlds2reverb store stores
      rlds2reverb store stores --verify --prune

    A store contains the steps of a dataset. Runs with the same --store-dir build it once and share it. An incomplete
    one is continued by the next run on its dataset.
    """
    stores = list_stores(directory, verify=verify)
    deleted = [store for store in stores if prune and store.state != "complete" and delete_store(store.path)]
    states = ["deleted" if store in deleted else store.state for store in stores]
    rows = [
        (store.path.name, store.dataset, f"{store.episodes:,}", format_bytes(store.size_bytes), state)
        for store, state in zip(stores, states, strict=True)
    ]
    table = format_columns(("store", "dataset", "episodes", "size", "state"), rows)
    document = [{**vars(store), "path": str(store.path), "deleted": store in deleted} for store in stores]
    print_result({"stores": document}, table if rows else f"no stores in {directory}", as_json=as_json)
