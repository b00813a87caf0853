"""Options that several commands share, and the objects that they configure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.datasets.transforms import (
    ActionBounds,
    CastFloats,
    ClipActions,
    CutAtTerminal,
    DropFields,
    NormalizeObservations,
    Transform,
    parse_reward,
)
from rlds2reverb.types.tables import TableConfig

from . import checks
from .config_options import config_options
from .declarations import combine, flag, is_on_command_line, option, parameter_names
from .number_types import at_least_0, at_least_1, fraction, integer
from .reading import READING_NAMES, reading_options

if TYPE_CHECKING:
    from rlds2reverb.types.items import EpisodeAdder


def sources_argument(*, required: bool = True) -> Callable[[Any], Any]:
    """Returns an argument that takes several datasets, which are read as one; its value is None, a string or a list."""
    return click.argument(
        "source",
        nargs=-1,
        required=required,
        metavar="SRC..." if required else "[SRC...]",
        callback=lambda ctx, param, value: list(value) if len(value) > 1 else (value[0] if value else None),
    )


cast_floats_option = flag("--cast-floats", help="Cast float64 fields to float32 (D4RL's replay files are float64).")

#: Those of `train`, which converts floats itself.
transform_options = combine(
    config_options("drop_fields", "cut_at_terminal"),
    cast_floats_option,
    config_options("reward", "normalize_observations", "clip_actions", "action_bounds", without_default=True),
)

table_options = combine(
    option(
        "--table",
        "table_names",
        multiple=True,
        metavar="NAME",
        show_default="replay",
        help="Name of a table; each table stores every item. Repeatable.",
    ),
    option(
        "--sampler",
        default="prioritized:0.6",
        type=checks.selector,
        help="How items are sampled: uniform, fifo, lifo, min_heap, max_heap or prioritized[:EXPONENT].",
    ),
    option(
        "--remover",
        default="fifo",
        type=checks.selector,
        help="Eviction policy of a full table; same values as --sampler.",
    ),
    option("--max-size", type=at_least_1, show_default="no limit", help="Maximum number of items in a table."),
    option(
        "--max-times-sampled",
        default=0,
        type=at_least_0,
        help="Remove an item after it was sampled N times; 0 keeps it.",
    ),
    option(
        "--rate-limiter",
        default="min_size:1",
        type=checks.rate_limiter,
        help="min_size:N (sampling waits for N items), queue:N, stack:N, max_samples_per_insert:S:N (as min_size:N, "
        "with at most S samples per insert; inserts never wait), or sample_to_insert_ratio:S:N:E (S samples per "
        "insert after N items, with an error buffer of E).",
    ),
)

report_option = option(
    "--report",
    "report_path",
    type=checks.page,
    help="Write a report to this file: one HTML page with figures, which needs no network.",
)

time_limit_option = option(
    "--max-episode-steps",
    type=at_least_1,
    show_default="the environment's limit",
    help="Truncate episodes after N steps, in place of the environment's own time limit.",
)


def reference_option(help: str, show_default: str | bool = False) -> Callable[[Any], Any]:
    """Returns the option for the returns that define the scores 0 and 100."""
    return option("--reference-returns", type=checks.reference_returns, show_default=show_default, help=help)


item_options = combine(
    option(
        "--sequence-length", default=2, type=at_least_1, help="Steps per item; an item of 2 steps is one transition."
    ),
    flag("--whole-episodes", help="Make one item of varying length per episode."),
    option(
        "--n-step",
        type=at_least_1,
        help="Make N-step transitions, with rewards summed over N steps and discounted by --gamma.",
    ),
    option("--gamma", default=0.99, type=fraction, help="Discount factor for --n-step."),
    option(
        "--layout",
        choices=["columns", "packed"],
        help="Storage of an item: one column per field, or all fields packed into one column, which halves memory and "
        "speeds up sampling, but requires rlds2reverb.reverb.sampling to read the items.",
    ),
)

_item_details_options = combine(
    option("--stride", default=1, type=at_least_1, help="Steps between the starts of consecutive items."),
    option(
        "--padding",
        choices=["none", "short", "tile"],
        help="Zero padding: 'short' pads episodes that are shorter than an item; 'tile' pads every episode so that an "
        "item starts at each step.",
    ),
    option(
        "--discount-source",
        choices=["product", "next_terminal", "step"],
        help="Discount of a trajectory step: the dataset's discount (step), 1 - is_terminal of the next step "
        "(next_terminal), or their product.",
    ),
    option(
        "--priority",
        default="1",
        type=checks.priority,
        help="Initial priority of items: a number, or the return of the item's episode scaled to [0.01, 1].",
    ),
)

_checking_options = combine(
    option(
        "--on-invalid",
        choices=["error", "skip_episode", "keep"],
        help="Handling of episodes that are invalid or, with 'skip_episode', cannot be read; with 'error', nothing is "
        "written if any episode is invalid.",
    ),
    option(
        "--save-statistics",
        type=checks.new_file,
        help="Write the statistics used in preprocessing (means, standard deviations, scales) to a JSON file.",
    ),
)

_writing_options = combine(
    option("--resume/--no-resume", default=True, help="Continue a run that was interrupted."),
    option("--chunk-length", type=integer(1, 1_000_000), show_default="chosen by size", help="Items per Reverb chunk."),
    option("--key-seed", default=0, type=integer(), help="Seed of the item keys; change it if two keys collide."),
)

#: All that defines the items that `convert` makes of a dataset, and how they are written.
conversion_options = combine(
    reading_options, transform_options, _checking_options, item_options, _item_details_options, _writing_options
)

server_writing_options = combine(
    flag("--allow-eviction", help="Allow more items than the table can hold; the remover then evicts items."),
    flag("--force", help="Write to a server on this machine even if it has too little memory for the data."),
)


#: The `conversion_options` by their headings in `--help`, apart from 'Advanced'.
CONVERSION_HEADINGS = {
    "Items": parameter_names(item_options),
    "Input": READING_NAMES,
    "Preprocessing": parameter_names(transform_options, _checking_options),
}
#: The `conversion_options` under the heading 'Advanced'.
ADVANCED_NAMES = parameter_names(_item_details_options, _writing_options)


def require_item_options(options: dict[str, Any]) -> None:
    """Raises `click.UsageError` if the options describe different kinds of items."""
    if options["n_step"] is None:
        require_unused({"gamma"}, "requires --n-step")
    if options["whole_episodes"]:
        require_unused({"sequence_length", "stride", "padding", "n_step"}, "cannot be combined with --whole-episodes")
    if options["n_step"] is not None:
        names = {"sequence_length", "stride", "padding", "discount_source"}
        require_unused(names, "cannot be combined with --n-step")


def make_episode_adder(options: dict[str, Any]) -> EpisodeAdder:
    """Returns the adder that the `item_options` and, if present, the other item options of `convert` describe."""
    from rlds2reverb.adders.trajectory_windows import TrajectoryEpisodes, TrajectoryWindows

    discount_source = options.get("discount_source", "product")
    if options["whole_episodes"]:
        return TrajectoryEpisodes(discount_source)
    if options["n_step"] is not None:
        from rlds2reverb.adders import NStep

        return NStep(options["n_step"], options["gamma"])
    window_options = {name: options[name] for name in ("stride", "padding") if name in options}
    return TrajectoryWindows(options["sequence_length"], discount_source=discount_source, **window_options)


#: Makers of the transforms, given the values of their options.
_TRANSFORMS: dict[str, Callable[[Any], Transform]] = {
    "drop_fields": DropFields,
    "cut_at_terminal": lambda _: CutAtTerminal(),
    "cast_floats": lambda _: CastFloats(),
    "reward": parse_reward,
    "normalize_observations": lambda _: NormalizeObservations(),
    "action_bounds": lambda bounds: ActionBounds(*bounds),
    "clip_actions": lambda _: ClipActions(),
}


def make_transforms(options: dict[str, Any]) -> list[Transform]:
    """Returns the transforms that the `transform_options` describe, in the order of `--help`."""
    return [make(options[name]) for name, make in _TRANSFORMS.items() if options[name]]


def table_names(options: dict[str, Any]) -> tuple[str, ...]:
    """Returns the values of --table, or its default."""
    return tuple(options["table_names"]) or ("replay",)


def table_configs(options: dict[str, Any]) -> list[TableConfig]:
    """Returns the tables that the `table_options` describe."""
    return [TableConfig(name, **get_table_options(options)) for name in table_names(options)]


def get_table_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of the `table_options` apart from the names, as fields of `TableConfig`."""
    return {name: options[name] for name in parameter_names(table_options) if name != "table_names"}


def require_unused(names: set[str], reason: str) -> None:
    """Raises `click.UsageError` with the reason if one of these options is on the command line of the command."""
    for parameter in click.get_current_context().command.params:
        if parameter.name in names and is_on_command_line(parameter.name or ""):
            raise click.UsageError(f"{parameter.opts[0]} {reason}")


class GroupedCommand(click.Command):
    """A command whose `--help` lists its options under headings.

    Args:
      headings: parameter names by heading, in the order of the help; the other options follow under 'Other'.
      explained: the options under these headings that `--help` explains; it only names the others, which `--help-all`
        explains. None to explain all.
    """

    def __init__(
        self,
        *arguments: Any,
        headings: dict[str, Sequence[str]],
        explained: Sequence[str] | None = None,
        **options: Any,
    ):
        super().__init__(*arguments, **options)
        self._headings, self._explained = headings, explained
        if explained is not None:
            self.params.append(_help_all_option)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, grouped by heading."""
        options = {option.name: option for option in self.get_params(ctx) if isinstance(option, click.Option)}
        others = [name for name in options if name not in itertools.chain(*self._headings.values())]
        shows_all = ctx.meta.get(_SHOW_ALL) or self._explained is None
        named: dict[str, list[str]] = {}
        for heading, names in {**self._headings, "Other": others}.items():
            explained = [name for name in names if shows_all or heading == "Other" or name in (self._explained or ())]
            if explained:
                with formatter.section(heading):
                    formatter.write_dl([options[name].get_help_record(ctx) or ("", "") for name in explained])
            if rest := [options[name].opts[0] for name in names if name not in explained]:
                named[heading] = rest
        if named:
            # click keeps the lines of a paragraph that begins with \b; it would break options at their hyphens.
            width = formatter.width - max(map(len, named)) - 4
            with formatter.section("More options, explained by --help-all"):
                formatter.write_dl([(heading, f"\b\n{_fill(rest, width)}") for heading, rest in named.items()])


def _fill(words: Sequence[str], width: int) -> str:
    return textwrap.fill(" ".join(words), width, break_on_hyphens=False)


_SHOW_ALL = "rlds2reverb.show_all"


def _show_all(ctx: click.Context, param: click.Parameter, is_passed: bool) -> None:
    if is_passed:
        ctx.meta[_SHOW_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_help_all_option = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Explain all options."
)
