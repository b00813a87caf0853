"""`rlds2reverb agents`: the algorithms that `train` offers, and their hyperparameters."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

import click

from rlds2reverb.learners.algorithms import ALGORITHMS, RUN_HYPERPARAMETERS, Algorithm, get_algorithm
from rlds2reverb.learners.option_declarations import REQUIRED, Option
from rlds2reverb.system.references import describe_callable
from rlds2reverb.system.text import WIDTH, format_columns

from . import output
from .custom_modules import allow_custom_modules
from .output import json_option
from .quiet import import_quietly

_ALSO_SET_BY = {
    **{name: f"--{option}" for name, option in RUN_HYPERPARAMETERS.items()},
    "observation_mean": "--normalize-observations",
    "observation_std": "--normalize-observations",
}


@click.command()
@click.argument("name", required=False, callback=allow_custom_modules)
@json_option
def agents(as_json: bool, name: str | None) -> None:
    """List the algorithms and the data that they suit, or the hyperparameters of the algorithm NAME.

    \b
    Examples:
      rlds2reverb agents
      rlds2reverb agents iql
      rlds2reverb agents my_module:MyAgent
      rlds2reverb train --algo iql --set expectile=0.9 ...

    Every algorithm has the hyperparameters, batch size and normalisation of its paper by default. Hyperparameters are
    set with train --set NAME=VALUE.

    Networks are fully connected; images pass through convolutions first, and integer observations are treated as
    numbers. Continuous actions must be vectors or single floats, and discrete actions single integers.
    """
    if name is None:
        _list_algorithms(as_json=as_json)
        return
    algorithm = get_algorithm(name)
    import_quietly("rlds2reverb.learners.agents")
    from rlds2reverb.learners.agents import get_hyperparameters

    hyperparameters = get_hyperparameters(name)
    if as_json:
        described = [_as_json(hyperparameter) for hyperparameter in hyperparameters.values()]
        output.print_json({**_describe(algorithm), "hyperparameters": described})
        return
    output.print_facts(f"{name}: {algorithm.summary}".removesuffix(": "), _make_facts(algorithm))
    if not hyperparameters:
        print("\nno hyperparameters")
        return
    print("\nhyperparameters (train --set NAME=VALUE)")
    for hyperparameter in hyperparameters.values():
        _print_hyperparameter(hyperparameter)


def _list_algorithms(*, as_json: bool) -> None:
    if as_json:
        output.print_json({"algorithms": [_describe(algorithm) for algorithm in ALGORITHMS.values()]})
        return
    rows = [
        (f"{algorithm.name} ({algorithm.preset_of})" if algorithm.preset_of else algorithm.name,
         algorithm.actions or "", algorithm.data)
        for algorithm in ALGORITHMS.values()
    ]  # fmt: skip
    print(format_columns(["name (preset of)", "actions", "suitable data"], rows))


def _describe(algorithm: Algorithm) -> dict[str, Any]:
    values = asdict(algorithm)
    del values["defaults"], values["factory"]
    return {**values, "agent": algorithm.class_name, "preset_of": algorithm.preset_of}


def _make_facts(algorithm: Algorithm) -> list[tuple[str, str]]:
    is_custom = algorithm.factory is not None
    td_errors = {True: "supported", False: "not supported", None: "if the agent returns TD errors"}
    facts = [
        ("source", algorithm.source),
        ("agent", algorithm.agent if is_custom else f"rlds2reverb.learners.agents.{algorithm.class_name}"),
        *([("preset of", algorithm.preset_of)] if algorithm.preset_of else []),
        ("actions", algorithm.actions or "those that the agent accepts"),
        *([("suitable data", algorithm.data)] if algorithm.data else []),
        ("items", algorithm.items or "as the agent's train_sequence_length requires"),
        ("batch size", f"{algorithm.batch_size:,}"),
        ("observations", "normalised" if algorithm.normalizes_observations else "not normalised"),
        ("prioritized sampling", td_errors[algorithm.has_td_errors]),
    ]
    return facts[1:] if is_custom else facts


def _as_json(hyperparameter: Option) -> dict[str, Any]:
    names = ("name", "type", "range", "is_optional", "text")
    return {"default": _describe_default(hyperparameter), **{name: getattr(hyperparameter, name) for name in names}}


def _describe_default(hyperparameter: Option) -> Any:
    """Returns the default of a hyperparameter; functions and objects are replaced by their names."""
    return "required" if hyperparameter.default is REQUIRED else describe_callable(hyperparameter.default)


def _print_hyperparameter(hyperparameter: Option) -> None:
    """Prints the name, the default and the range in one line, and below it the description."""
    name = hyperparameter.name
    option = f"; set by {_ALSO_SET_BY[name]}" if name in _ALSO_SET_BY else ""
    print(f"  {name} = {_describe_default(hyperparameter)}  ({hyperparameter.describe()}{option})")
    if hyperparameter.text:
        print(textwrap.fill(hyperparameter.text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6))
