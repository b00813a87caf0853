"""Settings of an algorithm and of a run in gin files, such as `IQLAgent.expectile = 0.9` and `train.gamma = 0.995`."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rlds2reverb.errors import ArgumentError
from rlds2reverb.system.text import advise
from rlds2reverb.types.short_repr import short_repr

from ..algorithms import ALGORITHMS, RUN_HYPERPARAMETERS, get_algorithm, list_algorithms
from ..gin_files import Binding, NamedText, read_bindings
from .registry import get_hyperparameters

_MODULE, _RUN = "rlds2reverb", "train"
#: Options of a run that published settings contain.
_RUN_OPTIONS = ("batch_size", "chunk_length", "gamma", "normalize_observations", "reward")


class GinSettings(NamedTuple):
    """The settings in gin files.

    Attributes:
      options: options of the run, which are bound as `train.NAME`; not checked, apart from their names.
      hyperparameters: hyperparameters of the algorithm.
    """

    options: dict[str, Any]
    hyperparameters: dict[str, Any]

    def __repr__(self) -> str:
        return short_repr(self)


def read_gin(
    sources: str | Path | Iterable[str | Path | NamedText], algo: str, *, options: Collection[str] = _RUN_OPTIONS
) -> GinSettings:
    """Reads gin files or bindings; later ones take precedence.

    Args:
      sources: paths of files, strings of bindings, and pairs of a name for messages and such a string.
      algo: name of the algorithm; bindings of other agents are ignored, unless there are only such bindings.
      options: names that may be bound as `train.NAME`.

    Raises:
      ValueError: If there is no such algorithm, if a file cannot be read, or if it binds something else, a value out of
        its range, or a hyperparameter that the run determines.
    """
    algorithm = get_algorithm(algo)
    listed: Iterable[Any] = [sources] if isinstance(sources, (str, Path)) else sources
    named: list[Any] = [("the gin bindings", source) if isinstance(source, str) else source for source in listed]
    by_class = {candidate.class_name: name for name, candidate in {**list_algorithms(), **ALGORITHMS}.items()}
    values: dict[str, dict[str, Any]] = {_RUN: {}, algorithm.class_name: {}}
    for binding in read_bindings(named):
        owner, name = _find_owner(binding, {_RUN, *by_class}), binding.name
        if owner == _RUN and name and name not in options:
            raise binding.error(f"{_RUN} has no option {name!r}{advise(name, options)}")
        if name:
            value = binding.value if owner == _RUN else _check_agent(binding, owner, by_class[owner])
            values.setdefault(owner, {})[name] = value
    agents = [name for name, bound in values.items() if bound and name != _RUN]
    if agents and algorithm.class_name not in agents:
        names = ", ".join(str(source) if isinstance(source, Path) else source[0] for source in named)
        raise ArgumentError(
            f"{names}: the settings are for {', '.join(agents)}, not for {algorithm.class_name}", algo=...
        )
    return GinSettings(values[_RUN], values[algorithm.class_name])


def _find_owner(binding: Binding, owners: Collection[str]) -> str:
    """Returns the name of the agent's class, or `train`, that a binding is for."""
    if "/" in binding.owner:
        raise binding.error(f"{binding.owner} cannot have a scope; write {binding.owner.rpartition('/')[2]}")
    module, _, owner = binding.owner.rpartition(".")
    if owner not in owners or module not in ("", _MODULE):
        raise binding.error(f"{binding.owner} is no agent{advise(owner, owners)}")
    return owner


def _check_agent(binding: Binding, owner: str, algo: str) -> Any:
    name, declared = binding.name, get_hyperparameters(algo)
    if name not in declared:
        raise binding.error(f"{owner} has no hyperparameter {name!r}{advise(name, declared)}")
    if name in RUN_HYPERPARAMETERS and binding.value is not None:  # Without a schedule, its length does not matter.
        option = RUN_HYPERPARAMETERS[name]
        raise binding.error(f"{owner}.{name} cannot be set because the run determines it; set {option} instead")
    try:
        return declared[name].check(binding.value)
    except ValueError as error:
        raise binding.error(error) from None
