"""The options for reading a dataset: `--split`, `--map`, and the others of `load` as `--load NAME=VALUE`."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from rlds2reverb.datasets import Source, load
from rlds2reverb.datasets.loading import FORMATS
from rlds2reverb.datasets.mapping.mapping import DatasetMapping
from rlds2reverb.datasets.readers.rlds_conventions import require_missing
from rlds2reverb.datasets.valid_episodes import skip_invalid
from rlds2reverb.learners.option_declarations import read_descriptions
from rlds2reverb.system.text import suggest
from rlds2reverb.types.locations import expand_path, server_address

from . import checks
from .assignments import AssignmentOption, split_assignments
from .custom_modules import add_current_directory
from .declarations import combine, option, parameter_names
from .number_types import at_least_1
from .output import warn
from .quiet import status


def _takers(name: str) -> str:
    """Returns the formats that take an option of `load`, for its help."""
    titles = [file_format.title for file_format in FORMATS if name in file_format.options and file_format.title]
    return ", ".join(title for title in titles if title.removesuffix(" names") not in titles or "names" not in title)


def _parse_names(text: str) -> list[str]:
    names = text.split(",")
    if names in (["none"], [""]):
        return []
    if "none" in names or "" in names:
        raise ValueError(f"must be names separated by commas, or only none, got {text!r}")
    return names


def _parse_cameras(names: Sequence[str]) -> list[str] | None:
    if "none" in names and len(names) > 1:
        raise click.BadParameter(f"must be the names of cameras, or only none, got {' '.join(names)}")
    return [name for name in names if name != "none"] if names else None


def _parse_numbers(text: str) -> dict[str, float]:
    try:
        numbers = {name: float(number) for name, _, number in (pair.partition(":") for pair in text.split(","))}
        require_missing(numbers)
    except ValueError as error:
        raise ValueError(f"must be FIELD:NUMBER such as discount:1, got {text!r} ({error})") from error
    return numbers


def _parse_choice(choices: Mapping[str, Any], text: str) -> Any:
    if text.lower() not in choices:
        raise ValueError(f"must be {' or '.join(choices)}, got {text!r}")
    return choices[text.lower()]


#: How values of each type are written, and read.
_TYPES: dict[Any, tuple[str, Callable[[str], Any]]] = {
    bool: ("true|false", partial(_parse_choice, {"true": True, "false": False})),
    int: ("N", lambda text: at_least_1.convert(text, None, None)),
    float: ("NUMBER", float),
    Sequence: ("NAME,...|none", _parse_names),
    Mapping: ("FIELD:NUMBER,...", _parse_numbers),
    str: ("PATH", expand_path),
}


def _read_annotation(annotation: Any) -> tuple[str, Callable[[str], Any]]:
    """Returns how values of an annotated argument are written, and read."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    kind = get_args(annotation)[0] if is_union else annotation  # The other alternatives are None or less strict.
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return "|".join(choices), partial(_parse_choice, dict(zip(choices, choices, strict=True)))
    return _TYPES[get_origin(kind) or kind]


#: The arguments of `load` that `--load` sets: how they are written, and read.
_ARGUMENTS = {
    name: _read_annotation(annotation)
    for name, annotation in get_type_hints(load).items()
    if name not in ("source", "split", "cameras", "mapping", "on_invalid", "return")
}


def _show_arguments(ctx: click.Context) -> None:
    """Prints the arguments, with their descriptions in the docstring of `load`."""
    formatter, descriptions = ctx.make_formatter(), read_descriptions(load)
    with formatter.section("Values of --load (=true may be left out)"):
        formatter.write_dl([(f"{name}={values}", descriptions[name]) for name, (values, _) in _ARGUMENTS.items()])
    click.echo(formatter.getvalue().rstrip())


def _read_arguments(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Returns arguments of `load`; the callback of the option."""
    if "help" in pairs:
        _show_arguments(ctx)
        ctx.exit()
    switches = {name: f"{name}=true" for name, (values, _) in _ARGUMENTS.items() if values == "true|false"}
    written = [switches.get(pair, pair) for pair in pairs]
    arguments = {}
    for name, value in split_assignments("--load", "last_step=boundary", written).items():
        if name not in _ARGUMENTS:
            advice = f"{suggest(name, _ARGUMENTS)} --load help lists the names".lstrip("; ")
            raise click.BadParameter(f"there is no name {name!r}; {advice}", ctx, param)
        try:
            arguments[name] = _ARGUMENTS[name][1](value)
        except (ValueError, click.BadParameter) as error:
            raise click.BadParameter(f"{error}; --load help explains it", ctx, param, f"--load {name}") from error
    return arguments


def _allow_functions(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Makes functions in modules of the current directory importable, which a mapping may name."""
    if value is not None:
        add_current_directory()
    return value


reading_options = combine(
    option(
        "--split",
        metavar="NAME",
        help=f"{_takers('split')}: split to read, or filter key. All formats: slice of the episodes, such as "
        "train[:10%] or [5:].",
    ),
    option(
        "--map",
        "mapping",
        type=checks.mapping,
        callback=_allow_functions,
        help="YAML or JSON file of changes: rename, join, split, copy, constant, cast, drop, select, trim, rate, "
        "delta, absolute, binarize, resize, crop, embed, describe and layout; see docs/preprocessing.md. octo: only "
        "the layout of Octo and OpenVLA.",
    ),
    option(
        "--camera",
        "cameras",
        multiple=True,
        metavar="NAME",
        show_default="all",
        callback=lambda ctx, param, names: _parse_cameras(names),
        help=f"{_takers('cameras')}: camera to read, such as front; none reads no images. Repeatable.",
    ),
    click.option(
        "--load",
        "load_arguments",
        cls=AssignmentOption,
        assigned={name: name for name in _ARGUMENTS},
        callback=_read_arguments,
        help="How the dataset is read, such as last_step=boundary. --load help explains all names. Repeatable.",
    ),
)
READING_NAMES = parameter_names(reading_options)
SKIP = "skip_episode"
#: For commands that do not write the episodes.
on_invalid_option = option(
    "--on-invalid",
    choices=["error", SKIP],
    default="error",
    help="Handling of episodes that are invalid or cannot be read; skip_episode leaves them out.",
)


def open_source(options: dict[str, Any]) -> Source:
    """Opens the source that the `reading_options` describe, and prints its warnings.

    Args:
      options: the values of all options.
    """
    location = options["source"]
    for path in [location] if isinstance(location, str) else location:
        if server_address(path) is not None:
            raise click.UsageError(f"SRC must be a dataset, got the server {path!r}; use its original data")
    name = location if isinstance(location, str) else f"{len(location)} datasets"
    with contextlib.nullcontext() if options["load_arguments"].get("download") else status(f"opening {name}"):
        source = load(location, **get_load_arguments(options))
    for warning in source.warnings:
        warn(warning)
    return source


def open_readable(options: dict[str, Any]) -> Source:
    """Opens the same source without the episodes that cannot be read, which its `skipped` lists.

    They are left out before the mapping, as by `load`, because what it selects cannot be read by number.
    """
    source = skip_invalid(open_source({**options, "mapping": None}), keeps_invalid=True)
    return source if options["mapping"] is None else DatasetMapping.parse(options["mapping"]).apply(source)


def get_load_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `load` that the `reading_options` describe."""
    names = ("split", "cameras", "mapping")
    arguments = {**{name: options[name] for name in names}, **options["load_arguments"]}
    return {**arguments, "on_invalid": SKIP} if options.get("on_invalid") == SKIP else arguments
