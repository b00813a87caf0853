"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
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
    LeaveOut,
    NormalizeObservations,
    ScaleRewards,
    Transform,
    apply_transforms,
)
from rlds2reverb.tables import RateLimiter, Selector, TableConfig

from .output import warn

if TYPE_CHECKING:
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb.items import ItemAdder

Command = TypeVar("Command", bound=Callable[..., Any])


def _all(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


reading_options = _all(
    click.option("--split", default="train", show_default=True, help="TFDS: which split, such as train[:10%]."),
    click.option("--data-dir", type=click.Path(path_type=Path), help="TFDS: where named data sets are prepared."),
    click.option("--info", "infos", multiple=True, metavar="NAME", help="D4RL: read infos/NAME as well. Repeatable."),
    click.option(
        "--max-episode-steps", type=int, metavar="N", help="D4RL without timeouts: cut episodes off after N rows."
    ),
    click.option(
        "--split-at-discontinuity",
        is_flag=True,
        help="D4RL without timeouts: cut where an observation is not the next_observations before it.",
    ),
)

source_options = _all(click.argument("source", metavar="SRC"), reading_options)

cast_floats_option = click.option(
    "--cast-floats", is_flag=True, help="Cast float64 to float32 (D4RL's replay files are float64)."
)

transform_options = _all(
    click.option(
        "--leave-out", multiple=True, metavar="PATH", help="Leave a field out, such as observation/mission. Repeatable."
    ),
    click.option("--cut-at-terminal", is_flag=True, help="End each episode at its first terminal step."),
    cast_floats_option,
    click.option(
        "--reward",
        metavar="RECIPE",
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
        show_default=True,
        help="uniform, fifo, lifo, min_heap, max_heap or prioritized[:EXPONENT].",
    ),
    click.option("--remover", default="fifo", show_default=True, help="Which item leaves a full table; as --sampler."),
    click.option("--max-size", type=int, help="The most items in a table.  [default: no limit]"),
    click.option(
        "--max-times-sampled", default=0, show_default=True, help="An item leaves after so many samples; 0 never."
    ),
    click.option(
        "--rate-limiter",
        default="min_size:1",
        show_default=True,
        help="min_size:N, queue:N, stack:N, sample_to_insert_ratio:S:N:E (S samples an insert, from N items on, "
        "with an error buffer of E), or max_samples_per_insert:S:N, where inserts never wait.",
    ),
    click.option("--port", type=int, help="Port to serve on.  [default: a free one]"),
    click.option(
        "--checkpoint-root",
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory for checkpoints, a new one or one of an earlier server; it starts from the newest in there.",
    ),
    click.option("--no-verify", is_flag=True, help="Start from a checkpoint that does not match its manifest."),
)

item_options = _all(
    click.option(
        "--sequence-length", default=2, show_default=True, help="Trajectories in an item; 2 is one transition."
    ),
    click.option("--whole-episodes", is_flag=True, help="One item for each episode, of varying length."),
    click.option("--n-step", type=int, metavar="N", help="Items are transitions over N steps; see --gamma."),
    click.option("--gamma", default=0.99, show_default=True, help="The discount factor of --n-step."),
    click.option(
        "--layout",
        type=click.Choice(["columns", "packed"]),
        default="columns",
        show_default=True,
        help="packed: all columns in one, half the memory, faster to sample, read by rlds2reverb.sampling.",
    ),
)

SERVER_ONLY = {"sampler", "remover", "max_size", "max_times_sampled", "rate_limiter", "port"}
SERVER_ONLY |= {"checkpoint_root", "no_verify", "append"}
SOURCE_ONLY = {
    "sequence_length",
    "whole_episodes",
    "n_step",
    "gamma",
    "layout",
    "cast_floats",
    "split",
    "data_dir",
    "infos",
    "max_episode_steps",
}
SOURCE_ONLY |= {"split_at_discontinuity"}


def adder_of(options: dict[str, Any]) -> ItemAdder:
    """The adder that the `item_options` describe, and those of `convert` if there are such."""
    from rlds2reverb.windows import WholeEpisodes, Windows

    if options["n_step"] is None:
        require_unused({"gamma"}, "is for --n-step")
    if options["whole_episodes"]:
        require_unused({"sequence_length", "stride", "padding", "n_step"}, "does not go with --whole-episodes")
        return WholeEpisodes(options.get("discount", "product"))
    if options["n_step"] is not None:
        require_unused({"sequence_length", "stride", "padding", "discount"}, "does not go with --n-step")
        from rlds2reverb.adders import NStep

        return NStep(options["n_step"], options["gamma"])
    described = {name: options[name] for name in ("stride", "padding") if name in options}
    return Windows(options["sequence_length"], discount_source=options.get("discount", "product"), **described)


def signature_of(source: Source, adder: ItemAdder, options: dict[str, Any]) -> Any:
    """The signature of a table for a source's items in the layout that was asked for."""
    spec = adder.item_spec(source.step_spec)
    if options["layout"] == "columns":
        return spec
    from rlds2reverb._encoding.packing import Packing, packed_signature

    return packed_signature(Packing(spec, squeeze=getattr(adder, "squeeze", False)))


def open_source(options: dict[str, Any]) -> Source:
    """The source that the `source_options` describe; its warnings are printed."""
    source = load(
        options["source"],
        split=options["split"],
        data_dir=options["data_dir"],
        infos=options["infos"],
        max_episode_steps=options["max_episode_steps"],
        split_at_discontinuity=options["split_at_discontinuity"],
    )
    for warning in source.warnings:
        warn(warning)
    return source


def transformed(source: Source, options: dict[str, Any]) -> tuple[Source, dict[str, Any]]:
    """The source after the `transform_options`, in the order of `--help`, and the statistics that they used."""
    chosen: list[Transform] = [LeaveOut(options["leave_out"])] if options["leave_out"] else []
    if options["cut_at_terminal"]:
        chosen.append(CutAtTerminal())
    if options["cast_floats"]:
        chosen.append(CastFloats())
    if options["reward"]:
        chosen.append(_reward(options["reward"]))
    if options["normalize_observations"]:
        chosen.append(NormalizeObservations())
    if options["clip_actions"]:
        chosen.append(ClipActions())
    return apply_transforms(source, chosen)


def _reward(text: str) -> Transform:
    if text in REWARD_RECIPES:
        return REWARD_RECIPES[text]
    kind, *numbers = text.split(":")
    try:
        scale, shift = (*map(float, numbers), 0.0)[:2] if len(numbers) in (1, 2) else (None, None)
    except ValueError:
        scale = None
    if kind != "scale" or scale is None:
        raise ValueError(f"--reward is {text!r}, expected {', '.join(REWARD_RECIPES)} or scale:SCALE[:SHIFT]")
    return ScaleRewards(scale, shift or 0.0)


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
