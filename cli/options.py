"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rlds2reverb.sources import Source, load
from rlds2reverb.sources.transforms import (
    REWARD_RECIPES,
    CastFloats,
    ClipActions,
    CutAtTerminal,
    DropFields,
    NormalizeObservations,
    Transform,
    apply_transforms,
)
from rlds2reverb.tables import RateLimiter, Selector, TableConfig

from . import checks
from .output import warn
from .quiet import status

if TYPE_CHECKING:
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb.items import EpisodeAdder

Command = TypeVar("Command", bound=Callable[..., Any])


def _all(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


reading_options = _all(
    click.option("--split", default="train", show_default=True, help="TFDS: which split, such as train[:10%]."),
    click.option("--data-dir", type=click.Path(path_type=Path), help="TFDS: where named data sets are prepared."),
    click.option("--download", is_flag=True, help="TFDS and Minari: download SRC if it is not on this machine."),
    click.option(
        "--info", "extra_fields", multiple=True, metavar="NAME", help="D4RL: read infos/NAME as well. Repeatable."
    ),
    click.option(
        "--max-episode-steps",
        type=checks.at_least_1,
        metavar="N",
        help="D4RL without timeouts: cut episodes off after N rows.",
    ),
    click.option(
        "--split-at-discontinuity",
        is_flag=True,
        help="D4RL without timeouts: cut where an observation is not the next_observations before it.",
    ),
    click.option(
        "--independent-rows",
        is_flag=True,
        help="D4RL, logs: each row is an episode of one transition, for data that were shuffled or relabelled.",
    ),
)

source_options = _all(click.argument("source", metavar="SRC"), reading_options)

cast_floats_option = click.option(
    "--cast-floats", is_flag=True, help="Cast float64 to float32 (D4RL's replay files are float64)."
)

transform_options = _all(
    click.option(
        "--drop-field",
        multiple=True,
        metavar="PATH",
        help="Leave a field out, such as observation/mission. Repeatable.",
    ),
    click.option("--cut-at-terminal", is_flag=True, help="End each episode at its first terminal step."),
    cast_floats_option,
    click.option(
        "--reward",
        metavar="RECIPE",
        callback=checks.reward,
        help=f"Change rewards: {', '.join(REWARD_RECIPES)}, or scale:SCALE[:SHIFT] for (r - SHIFT) * SCALE.",
    ),
    click.option("--normalize-observations", is_flag=True, help="(o - mean) / (std + 0.001), over the data set."),
    click.option("--clip-actions", is_flag=True, help="Clip actions to +-(1 - 1e-5)."),
)

table_options = _all(
    click.option(
        "--table", "table_names", multiple=True, metavar="NAME", help="Table name. Repeatable.  [default: replay]"
    ),
    click.option(
        "--sampler",
        default="prioritized:0.6",
        callback=checks.selector,
        show_default=True,
        help="uniform, fifo, lifo, min_heap, max_heap or prioritized[:EXPONENT].",
    ),
    click.option(
        "--remover",
        default="fifo",
        show_default=True,
        callback=checks.selector,
        help="Which item leaves a full table; as --sampler.",
    ),
    click.option("--max-size", type=checks.at_least_1, help="The most items in a table.  [default: no limit]"),
    click.option(
        "--max-times-sampled",
        default=0,
        show_default=True,
        type=checks.at_least_0,
        help="An item is removed after this many samples; 0 for never.",
    ),
    click.option(
        "--rate-limiter",
        default="min_size:1",
        callback=checks.rate_limiter,
        show_default=True,
        help="min_size:N, queue:N, stack:N, sample_to_insert_ratio:S:N:E (S samples an insert, from N items on, "
        "with an error buffer of E), or max_samples_per_insert:S:N, where inserts never wait.",
    ),
    click.option("--port", type=checks.port, help="Port to serve on.  [default: a free one]"),
    click.option(
        "--checkpoint-root",
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory for checkpoints, a new one or one of an earlier server; it starts from the newest in there.",
    ),
    click.option(
        "--checkpoint-every",
        "checkpoint_secs",
        metavar="DURATION",
        type=checks.duration,
        help="With --checkpoint-root: while serving, write a checkpoint this often, such as 600 (seconds) or 10m.  "
        "[default: at the end]",
    ),
    click.option("--no-verify", is_flag=True, help="Start from a checkpoint that does not match its manifest."),
)

item_options = _all(
    click.option(
        "--sequence-length",
        default=2,
        show_default=True,
        type=checks.at_least_1,
        help="Trajectories in an item; 2 is one transition.",
    ),
    click.option("--whole-episodes", is_flag=True, help="One item for each episode, of varying length."),
    click.option(
        "--n-step", type=checks.at_least_1, metavar="N", help="Items are transitions over N steps; see --gamma."
    ),
    click.option(
        "--gamma", default=0.99, type=checks.fraction, show_default=True, help="The discount factor of --n-step."
    ),
    click.option(
        "--layout",
        type=click.Choice(["columns", "packed"]),
        default="columns",
        show_default=True,
        help="packed: all columns in one, half the memory, faster to sample, read by rlds2reverb.sampling.",
    ),
)

SOURCE_ONLY = {
    "sequence_length",
    "whole_episodes",
    "n_step",
    "gamma",
    "layout",
    "cast_floats",
    "split",
    "data_dir",
    "download",
    "extra_fields",
    "max_episode_steps",
}
SOURCE_ONLY |= {"split_at_discontinuity", "independent_rows"}


def require_table_options(options: dict[str, Any]) -> None:
    """Raises `click.UsageError` if one of the `table_options` was given that does nothing without another."""
    if options["checkpoint_root"] is None:
        require_unused({"checkpoint_secs"}, "is for --checkpoint-root")


def require_item_options(options: dict[str, Any]) -> None:
    """Raises `click.UsageError` if `item_options` were given that exclude each other."""
    if options["n_step"] is None:
        require_unused({"gamma"}, "is for --n-step")
    if options["whole_episodes"]:
        require_unused({"sequence_length", "stride", "padding", "n_step"}, "does not go with --whole-episodes")
    if options["n_step"] is not None:
        require_unused({"sequence_length", "stride", "padding", "discount"}, "does not go with --n-step")


def adder_of(options: dict[str, Any]) -> EpisodeAdder:
    """Returns the adder that the `item_options` describe, with the further ones that `convert` has."""
    from rlds2reverb.trajectory_items import TrajectoryEpisodes, TrajectoryWindows

    require_item_options(options)
    if options["whole_episodes"]:
        return TrajectoryEpisodes(options.get("discount", "product"))
    if options["n_step"] is not None:
        from rlds2reverb.adders import NStep

        return NStep(options["n_step"], options["gamma"])
    described = {name: options[name] for name in ("stride", "padding") if name in options}
    return TrajectoryWindows(
        options["sequence_length"], discount_source=options.get("discount", "product"), **described
    )


def signature_of(source: Source, adder: EpisodeAdder, options: dict[str, Any]) -> Any:
    """The signature of a table for a source's items in the layout that was asked for."""
    spec = adder.item_spec(source.step_spec)
    if options["layout"] == "columns":
        return spec
    from rlds2reverb._encoding.packing import Packing, packed_signature

    return packed_signature(Packing(spec, squeeze=getattr(adder, "squeeze", False)))


def open_source(options: dict[str, Any]) -> Source:
    """Opens the source that the `source_options` describe, and prints its warnings."""
    with contextlib.nullcontext() if options["download"] else status(f"opening {options['source']}"):
        source = load(
            options["source"],
            split=options["split"],
            data_dir=options["data_dir"],
            extra_fields=options["extra_fields"],
            max_episode_steps=options["max_episode_steps"],
            split_at_discontinuity=options["split_at_discontinuity"],
            independent_rows=options["independent_rows"],
            download=options["download"],
        )
    for warning in source.warnings:
        warn(warning)
    return source


def transformed(source: Source, options: dict[str, Any]) -> tuple[Source, dict[str, Any]]:
    """The source after the `transform_options`, in the order of `--help`, and the statistics that they used."""
    chosen: list[Transform] = [DropFields(options["drop_field"])] if options["drop_field"] else []
    if options["cut_at_terminal"]:
        chosen.append(CutAtTerminal())
    if options["cast_floats"]:
        chosen.append(CastFloats())
    if options["reward"]:
        chosen.append(checks.parse_reward(options["reward"]))
    if options["normalize_observations"]:
        chosen.append(NormalizeObservations())
    if options["clip_actions"]:
        chosen.append(ClipActions())
    return apply_transforms(source, chosen)


def table_configs(options: dict[str, Any]) -> list[TableConfig]:
    """The tables that the `table_options` describe."""
    return [_asked(TableConfig(name), options, everything=True) for name in table_names(options)]


def _asked(config: TableConfig, options: dict[str, Any], *, everything: bool) -> TableConfig:
    """A table with the options that were given, or with all of them."""
    parsed = {
        "sampler": Selector.parse(options["sampler"]),
        "remover": Selector.parse(options["remover"]),
        "max_size": options["max_size"],
        "max_times_sampled": options["max_times_sampled"],
        "rate_limiter": RateLimiter.parse(options["rate_limiter"]),
    }
    given = {name: value for name, value in parsed.items() if everything or _is_given(name)}
    return replace(config, **given)


def _is_given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def start_server(options: dict[str, Any], signature: Any) -> ReplayServer:
    """The server that the `table_options` describe; of `data`, where there are some, what is asked has to agree."""
    from rlds2reverb._server.replay_server import ReplayServer, stored_tables

    data = options.get("data")
    if data is None:
        configs = table_configs(options)
    else:
        configs = [_asked(config, options, everything=False) for config in stored_tables(data)]
        if _is_given("table_names") and [config.name for config in configs] != list(table_names(options)):
            raise click.UsageError(f"{data} has the tables {', '.join(config.name for config in configs)}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        server = ReplayServer(
            configs,
            signature,
            port=options["port"],
            data=data,
            checkpoint_root=options["checkpoint_root"],
            verify=not options["no_verify"],
            force=options.get("force", False),
        )
    for warning in caught:
        if warning.category is RuntimeWarning:
            warn(str(warning.message))
    return server


def require_unused(names: set[str], why: str) -> None:
    """Raises `click.UsageError` if one of these options of the running command was given, which would do nothing."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in names and _is_given(parameter.name or ""):
            raise click.UsageError(f"{parameter.opts[0]} {why}")


def table_names(options: dict[str, Any]) -> tuple[str, ...]:
    """The tables' names."""
    return tuple(options["table_names"]) or ("replay",)


class GroupedCommand(click.Command):
    """A command whose `--help` lists its options under headings.

    Args:
      headings: names of parameters by heading; the others follow under 'Other options'.
    """

    def __init__(self, *arguments: Any, headings: dict[str, Sequence[str]], **options: Any):
        super().__init__(*arguments, **options)
        self._headings = headings

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, each under the heading that has its name."""
        heading_of = {name: heading for heading, names in self._headings.items() for name in names}
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*self._headings, "Other options")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections[heading_of.get(parameter.name or "", "Other options")].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def names_of(*decorators: Callable[[Any], Any]) -> list[str]:
    """Returns the names of the parameters that some option decorators add."""

    def nothing() -> None: ...

    for decorator in decorators:
        decorator(nothing)
    return [parameter.name for parameter in getattr(nothing, "__click_params__", [])]
