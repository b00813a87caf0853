"""Options that several commands share, and the objects that they configure."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rlds2reverb.locations import server_address
from rlds2reverb.sources import Source, load
from rlds2reverb.sources.loading import FORMATS
from rlds2reverb.sources.transforms import (
    ActionBounds,
    CastFloats,
    ClipActions,
    CutAtTerminal,
    DropFields,
    NormalizeObservations,
    Transform,
    apply_transforms,
    parse_reward,
)
from rlds2reverb.tables import RateLimiter, Selector, TableConfig

from . import checks
from .config_options import config_options
from .output import warn
from .quiet import status

if TYPE_CHECKING:
    from rlds2reverb.items import EpisodeAdder
    from rlds2reverb.server.replay_server import ReplayServer
    from rlds2reverb.server.sharded_server import ShardedReplayServer

Command = TypeVar("Command", bound=Callable[..., Any])


def _combine(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def _takers(option: str) -> str:
    """Returns the formats that take an option of `load`, for its help."""
    return ", ".join(each.title for each in FORMATS if each.title and option in each.options)


reading_options = _combine(
    click.option(
        "--split", metavar="NAME", help=f"{_takers('split')}: split to read, such as train[:10%], or a filter key."
    ),
    click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help=f"{_takers('data_dir')}: directory of prepared datasets.",
    ),
    click.option(
        "--download",
        is_flag=True,
        help=f"{_takers('download')}: download the dataset if it is not on this machine.",
    ),
    click.option(
        "--extra-field",
        "extra_fields",
        multiple=True,
        metavar="NAME",
        help=f"{_takers('extra_fields')}: also read infos/NAME as a step field. Repeatable.",
    ),
    click.option(
        "--max-episode-steps",
        type=checks.at_least_1,
        metavar="N",
        help=f"{_takers('max_episode_steps')}, without timeouts: truncate episodes after N rows.",
    ),
    click.option(
        "--split-at-discontinuity",
        is_flag=True,
        help=f"{_takers('split_at_discontinuity')}, without timeouts: start a new episode where an observation differs "
        "from the previous row's next_observations.",
    ),
    click.option(
        "--independent-rows",
        is_flag=True,
        help=f"{_takers('independent_rows')}: treat each row as an episode of one transition, for shuffled or "
        "relabelled rows.",
    ),
)

source_options = _combine(click.argument("source", metavar="SRC"), reading_options)

#: Those of `convert`, which reads several datasets as one.
sources_options = _combine(
    click.argument(
        "source",
        nargs=-1,
        required=True,
        metavar="SRC...",
        callback=lambda ctx, param, value: value[0] if len(value) == 1 else list(value),
    ),
    reading_options,
)

cast_floats_option = click.option(
    "--cast-floats", is_flag=True, help="Cast float64 fields to float32 (D4RL's replay files are float64)."
)

#: Those of `train`, which converts floats itself.
transform_options = _combine(
    config_options("drop_fields", "cut_at_terminal"),
    cast_floats_option,
    config_options("reward", "normalize_observations", "clip_actions", "action_bounds", without_default=True),
)

table_options = _combine(
    click.option(
        "--table",
        "table_names",
        multiple=True,
        metavar="NAME",
        show_default="replay",
        help="Name of a table; each table stores every item. Repeatable.",
    ),
    click.option(
        "--sampler",
        default="prioritized:0.6",
        callback=checks.selector,
        metavar="SELECTOR",
        show_default=True,
        help="How items are sampled: uniform, fifo, lifo, min_heap, max_heap or prioritized[:EXPONENT].",
    ),
    click.option(
        "--remover",
        default="fifo",
        show_default=True,
        callback=checks.selector,
        metavar="SELECTOR",
        help="Eviction policy of a full table; same values as --sampler.",
    ),
    click.option(
        "--max-size",
        type=checks.at_least_1,
        metavar="N",
        show_default="no limit",
        help="Maximum number of items in a table.",
    ),
    click.option(
        "--max-times-sampled",
        default=0,
        show_default=True,
        type=checks.at_least_0,
        metavar="N",
        help="Remove an item after it was sampled N times; 0 keeps it.",
    ),
    click.option(
        "--rate-limiter",
        default="min_size:1",
        callback=checks.rate_limiter,
        metavar="LIMITER",
        show_default=True,
        help="min_size:N (sampling waits for N items), queue:N, stack:N, max_samples_per_insert:S:N (as min_size:N, "
        "with at most S samples per insert; inserts never wait), or sample_to_insert_ratio:S:N:E (S samples per "
        "insert after N items, with an error buffer of E).",
    ),
)

server_options = _combine(
    click.option(
        "--port", type=checks.port, metavar="PORT", show_default="a free port", help="Port of the new server."
    ),
    click.option(
        "--checkpoint-root",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Directory for the server's checkpoints. If it contains checkpoints, the server starts from the newest.",
    ),
    click.option(
        "--checkpoint-every",
        "checkpoint_secs",
        metavar="DURATION",
        type=checks.duration,
        show_default="only when the server stops",
        help="Time between checkpoints while serving, such as 600 (seconds) or 10m; requires --checkpoint-root.",
    ),
    click.option(
        "--isolate",
        is_flag=True,
        help="Accept connections from this machine (or container) only, at localhost, 127.0.0.1 and ::1. Fails if the "
        "system does not support that; requires Linux 5.7 or root.",
    ),
    click.option(
        "--serve-batches",
        is_flag=True,
        help="Also serve finished batches, which clients sample much faster, on a second port 1,000 above --port. "
        "Isolated servers always do. Requires that all writers are trusted: a malformed chunk of theirs can end the "
        "server.",
    ),
    click.option("--no-verify", is_flag=True, help="Start even if the checkpoint does not match its manifest."),
)

film_option = click.option(
    "--film",
    metavar="FILE.mp4|.gif",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=checks.film,
    help="Film an episode to this file; requires pip install '.[film]' or make dev, and for MuJoCo without a display "
    "libosmesa6.",
)

time_limit_option = click.option(
    "--max-episode-steps",
    type=checks.at_least_1,
    metavar="N",
    show_default="the environment's limit",
    help="Truncate episodes after N steps, in place of the environment's own time limit.",
)

reference_options = _combine(
    click.option(
        "--reference-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help='JSON file with the returns that define the scores 0 and 100: {"Hopper-v5": [RANDOM, EXPERT]}.',
    ),
    click.option(
        "--d4rl-score",
        "is_d4rl",
        is_flag=True,
        help="Use D4RL's reference returns for the environment; they were measured in its v2 version with mujoco-py.",
    ),
)

item_options = _combine(
    click.option(
        "--sequence-length",
        default=2,
        show_default=True,
        type=checks.at_least_1,
        metavar="N",
        help="Steps per item; an item of 2 steps is one transition.",
    ),
    click.option("--whole-episodes", is_flag=True, help="Make one item of varying length per episode."),
    click.option(
        "--n-step",
        type=checks.at_least_1,
        metavar="N",
        help="Make N-step transitions, with rewards summed over N steps and discounted by --gamma.",
    ),
    click.option(
        "--gamma",
        default=0.99,
        type=checks.fraction,
        metavar="FLOAT",
        show_default=True,
        help="Discount factor for --n-step.",
    ),
    click.option(
        "--layout",
        type=click.Choice(["columns", "packed"]),
        default="columns",
        show_default=True,
        help="Storage of an item: one column per field, or all fields packed into one column, which halves memory and "
        "speeds up sampling, but requires rlds2reverb.sampling to read the items.",
    ),
)


def parameter_names(*decorators: Callable[[Any], Any]) -> list[str]:
    """Returns the names of the parameters that option decorators add, in order."""

    def command() -> None: ...

    for decorator in reversed(decorators):
        decorator(command)
    return [parameter.name for parameter in reversed(getattr(command, "__click_params__", []))]


def require_server_options(options: dict[str, Any]) -> None:
    """Raises `click.UsageError` if --checkpoint-every was passed without --checkpoint-root."""
    if options["checkpoint_root"] is None:
        require_unused({"checkpoint_secs"}, "requires --checkpoint-root")


def require_item_options(options: dict[str, Any]) -> None:
    """Raises `click.UsageError` if the options describe different kinds of items."""
    if options["n_step"] is None:
        require_unused({"gamma"}, "requires --n-step")
    if options["whole_episodes"]:
        require_unused({"sequence_length", "stride", "padding", "n_step"}, "cannot be combined with --whole-episodes")
    if options["n_step"] is not None:
        names = {"sequence_length", "stride", "padding", "discount_source"}
        require_unused(names, "cannot be combined with --n-step")


def make_adder(options: dict[str, Any]) -> EpisodeAdder:
    """Returns the adder that the `item_options` and, if present, the other item options of `convert` describe."""
    from rlds2reverb.trajectory_items import TrajectoryEpisodes, TrajectoryWindows

    discount_source = options.get("discount_source", "product")
    if options["whole_episodes"]:
        return TrajectoryEpisodes(discount_source)
    if options["n_step"] is not None:
        from rlds2reverb.adders import NStep

        return NStep(options["n_step"], options["gamma"])
    window_options = {name: options[name] for name in ("stride", "padding") if name in options}
    return TrajectoryWindows(options["sequence_length"], discount_source=discount_source, **window_options)


def make_signature(source: Source, adder: EpisodeAdder, options: dict[str, Any]) -> Any:
    """Returns the table signature for a source's items in the layout of --layout."""
    from rlds2reverb.encoding.packing import Packing, packed_signature
    from rlds2reverb.writing.conversion import drop_strings

    spec = adder.item_spec(drop_strings(source.step_spec))
    if options["layout"] == "columns":
        return spec

    return packed_signature(Packing(spec, squeeze=getattr(adder, "squeeze", False)))


def open_source(options: dict[str, Any]) -> Source:
    """Opens the source that the `source_options` describe, and prints its warnings."""
    location = options["source"]
    for each in [location] if isinstance(location, str) else location:
        if server_address(each) is not None:
            raise click.UsageError(f"SRC must be a dataset, got the server {each!r}; use its original data")
    name = location if isinstance(location, str) else f"{len(location)} datasets"
    with contextlib.nullcontext() if options["download"] else status(f"opening {name}"):
        source = load(location, **get_reading_options(options))
    for warning in source.warnings:
        warn(warning)
    return source


def get_reading_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of the `reading_options`, which are arguments of `load`."""
    return {name: options[name] for name in parameter_names(reading_options)}


def apply_transform_options(source: Source, options: dict[str, Any]) -> tuple[Source, dict[str, Any]]:
    """Applies the `transform_options` in the order of `--help`; returns the source and the statistics used."""
    return apply_transforms(source, make_transforms(options))


def make_transforms(options: dict[str, Any]) -> list[Transform]:
    """Returns the transforms that the `transform_options` describe, in the order of `--help`."""
    transforms: list[Transform] = []
    if options["drop_fields"]:
        transforms.append(DropFields(options["drop_fields"]))
    if options["cut_at_terminal"]:
        transforms.append(CutAtTerminal())
    if options["cast_floats"]:
        transforms.append(CastFloats())
    if options["reward"]:
        transforms.append(parse_reward(options["reward"]))
    if options["normalize_observations"]:
        transforms.append(NormalizeObservations())
    if options["action_bounds"]:
        transforms.append(ActionBounds(*options["action_bounds"]))
    if options["clip_actions"]:
        transforms.append(ClipActions())
    return transforms


def table_names(options: dict[str, Any]) -> tuple[str, ...]:
    """Returns the values of --table, or its default."""
    return tuple(options["table_names"]) or ("replay",)


def table_configs(options: dict[str, Any]) -> list[TableConfig]:
    """Returns the tables that the `table_options` describe."""
    return [TableConfig(name, **_parse_table_options(options)) for name in table_names(options)]


def _parse_table_options(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "sampler": Selector.parse(options["sampler"]),
        "remover": Selector.parse(options["remover"]),
        "max_size": options["max_size"],
        "max_times_sampled": options["max_times_sampled"],
        "rate_limiter": RateLimiter.parse(options["rate_limiter"]),
    }


def _stored_table_configs(data: Path, options: dict[str, Any]) -> list[TableConfig]:
    """Returns the tables stored in a directory, changed by the `table_options` on the command line."""
    from rlds2reverb.server.replay_server import read_tables

    configs = read_tables(data)
    names = [config.name for config in configs]
    if _is_on_command_line("table_names") and names != list(table_names(options)):
        raise click.UsageError(f"{data} contains the tables {', '.join(names)}; leave out --table")
    # The server compares these values with the stored ones and rejects differences.
    changes = {name: value for name, value in _parse_table_options(options).items() if _is_on_command_line(name)}
    return [replace(config, **changes) for config in configs]


def start_server(options: dict[str, Any], signature: Any) -> ReplayServer | ShardedReplayServer:
    """Starts the servers that the table and server options describe, from the directory --data if it is set."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        server = _start_server(options, signature)
    for warning in caught:
        if warning.category is RuntimeWarning:
            warn(str(warning.message))
    return server


def _start_server(options: dict[str, Any], signature: Any) -> ReplayServer | ShardedReplayServer:
    from rlds2reverb.server.commits import count_shards, shard_path
    from rlds2reverb.server.replay_server import ReplayServer
    from rlds2reverb.server.sharded_server import ShardedReplayServer

    data, num_shards = options.get("data"), options.get("num_shards")
    common = {
        "port": options["port"],
        "checkpoint_root": options["checkpoint_root"],
        "verify": not options["no_verify"],
        "isolate": options["isolate"],
        "serve_batches": options["serve_batches"] or None,
    }
    if data is None:
        configs = table_configs(options)
        if num_shards is None:
            return ReplayServer(configs, signature, **common)
        return ShardedReplayServer(configs, signature, num_shards=num_shards, **common)
    stored = count_shards(data)
    if num_shards not in (None, stored):
        raise click.UsageError(f"{data} contains {stored or 'no'} shards; leave out --shards")
    tables = _stored_table_configs(shard_path(data, 0) if stored else data, options)
    if stored:
        return ShardedReplayServer.from_directory(data, tables=tables, force=options["force"], **common)
    return ReplayServer.from_directory(data, tables=tables, force=options["force"], **common)


def _is_on_command_line(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def require_unused(names: set[str], reason: str) -> None:
    """Raises `click.UsageError` with the reason if one of these options is on the command line of the command."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in names and _is_on_command_line(parameter.name or ""):
            raise click.UsageError(f"{parameter.opts[0]} {reason}")


class GroupedCommand(click.Command):
    """A command whose `--help` lists its options under headings.

    Args:
      headings: parameter names by heading, in the order of the help; the other options follow under 'Other'.
    """

    def __init__(self, *arguments: Any, headings: dict[str, Sequence[str]], **options: Any):
        super().__init__(*arguments, **options)
        self._headings = headings

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, grouped by heading."""
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        records = {option.name: option.get_help_record(ctx) or ("", "") for option in options}
        sections = {heading: [records.pop(name) for name in names] for heading, names in self._headings.items()}
        for heading, section in {**sections, "Other": list(records.values())}.items():
            with formatter.section(heading):
                formatter.write_dl(section)
