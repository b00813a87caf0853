"""Gin files with settings of an algorithm and of a run, read without changing gin's own state.

A file contains bindings such as `IQLAgent.expectile = 0.9` and `train.gamma = 0.995`, and may use macros, blocks and
`include`; `import` has no effect. Files are parsed with gin's parser, but nothing is bound, so one run does not affect
the next one. What was bound in Python with `gin.parse_config` applies to agents as usual (`resolve_hyperparameters`).
"""

import tokenize
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gin import config_parser

from rlds2reverb._text import suggest

from ..algorithms import ALGORITHMS, RUN_HYPERPARAMETERS, get_algorithm, list_algorithms
from .registry import get_hyperparameters

_MODULE, _RUN = "rlds2reverb", "train"
#: Options of a run that published settings contain.
_RUN_OPTIONS = ("batch_size", "gamma", "normalize_observations", "reward")


class GinSettings(NamedTuple):
    """The settings in gin files.

    Attributes:
      options: options of the run, which are bound as `train.NAME`; not checked, apart from their names.
      hyperparameters: hyperparameters of the algorithm.
    """

    options: dict[str, Any]
    hyperparameters: dict[str, Any]


def read_gin(
    sources: str | Path | Iterable[str | Path], algo: str, *, options: Collection[str] = _RUN_OPTIONS
) -> GinSettings:
    """Reads gin files or bindings; later ones take precedence.

    Args:
      sources: paths of files, and strings of bindings.
      algo: name of the algorithm; bindings of other agents are ignored, unless there are only such bindings.
      options: names that may be bound as `train.NAME`.

    Raises:
      ValueError: If there is no such algorithm, if a file cannot be read, or if it binds something else, a value out of
        its range, or a hyperparameter that the run determines.
    """
    algorithm = get_algorithm(algo)
    bindings = _Bindings(options)
    for source in [sources] if isinstance(sources, (str, Path)) else sources:
        bindings.read(source)
    values = bindings.resolve()
    agents = [name for name, bound in values.items() if bound and name != _RUN]
    if agents and algorithm.class_name not in agents:
        raise ValueError(
            f"{bindings.names}: the settings are for {', '.join(agents)}, but algo={algo!r} is {algorithm.class_name}"
        )
    return GinSettings(values[_RUN], values[algorithm.class_name])


@dataclass(frozen=True)
class _Macro:
    """A value `%name`, which may be defined after its use."""

    name: str


@dataclass(frozen=True)
class _Reference:
    """A value `@name`, a function or class, which no hyperparameter accepts."""

    name: str


class _Delegate(config_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> _Reference:
        """Implements `ParserDelegate.configurable_reference`."""
        return _Reference(scoped_configurable_name)

    def macro(self, macro_name: str) -> _Macro:
        """Implements `ParserDelegate.macro`."""
        return _Macro(macro_name)


@dataclass
class _Bindings:
    """The bindings that were read, with the place of each one for messages."""

    options: Collection[str]
    _sources: list[str] = field(default_factory=list)
    _macros: dict[str, Any] = field(default_factory=dict)
    _values: dict[tuple[str, str], tuple[Any, str]] = field(default_factory=dict)

    @property
    def names(self) -> str:
        """The names of all sources."""
        return ", ".join(self._sources)

    def read(self, source: str | Path) -> None:
        """Adds the bindings of a file or a string."""
        name = str(source) if isinstance(source, Path) else "the gin bindings"
        self._sources.append(name)
        self._parse(name, _read_text(source) if isinstance(source, Path) else source, (name,))

    def _parse(self, name: str, text: str, files: tuple[str, ...]) -> None:
        line = 0
        try:
            for statement in config_parser.ConfigParser(text, _Delegate()):
                line = statement.location.line_num
                if isinstance(statement, config_parser.BindingStatement):
                    self._bind(statement, f"{name}, line {line}")
                elif isinstance(statement, config_parser.IncludeStatement):
                    if statement.filename in files:
                        raise ValueError(f"{statement.filename} includes itself; remove the include statement")
                    text = _read_text(Path(statement.filename))
                    self._parse(statement.filename, text, (*files, statement.filename))
                elif isinstance(statement, config_parser.BlockDeclaration):
                    self._find_class(statement.scope, statement.selector)
        except SyntaxError as error:
            line = error.lineno or line
            raise _ReadError(f"{name}, line {line}: {str(error.msg).rstrip('.')}; fix this line") from None
        except tokenize.TokenError as error:
            raise _ReadError(f"{name}, line {error.args[1][0]}: {error.args[0]}; close it") from None
        except _ReadError:
            raise
        except ValueError as error:
            raise _ReadError(f"{name}, line {line}: {error}") from None

    def _bind(self, statement: Any, place: str) -> None:
        scope, selector, name, value, _ = statement
        if not name:
            self._macros[f"{scope}/{selector}" if scope else selector] = value
            return
        owner = self._find_class(scope, selector)
        if owner == _RUN and name not in self.options:
            raise ValueError(
                f"{_RUN} has no option {name!r}{suggest(name, self.options) or '; use one of ' + _join(self.options)}"
            )
        self._values[owner, name] = value, place

    def _find_class(self, scope: str, selector: str) -> str:
        """Returns the name of the agent's class, or `train`, that a binding is for."""
        if scope:
            raise ValueError(f"{scope}/{selector} cannot have a scope; write {selector}")
        module, _, owner = selector.rpartition(".")
        if owner not in _find_algorithms() or module not in ("", _MODULE):
            valid = _find_algorithms()
            raise ValueError(f"{selector} is no agent{suggest(owner, valid) or '; use one of ' + _join(valid)}")
        return owner

    def resolve(self) -> dict[str, dict[str, Any]]:
        """Returns the bindings of each agent's class and of `train`, with macros replaced and values checked."""
        values: dict[str, dict[str, Any]] = {owner: {} for owner in _find_algorithms()}
        for (owner, name), (value, place) in self._values.items():
            try:
                value = self._replace_macros(value)
                values[owner][name] = value if owner == _RUN else _check(owner, name, value)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
        return values

    def _replace_macros(self, value: Any, names: tuple[str, ...] = ()) -> Any:
        if isinstance(value, _Macro):
            if value.name not in self._macros or value.name in names:
                raise ValueError(f"the macro %{value.name} is not defined; add '{value.name} = VALUE'")
            return self._replace_macros(self._macros[value.name], (*names, value.name))
        if isinstance(value, _Reference):
            raise ValueError(f"a value cannot be a reference, got @{value.name}; write the value itself")
        if isinstance(value, (list, tuple)):
            return type(value)(self._replace_macros(each, names) for each in value)
        if isinstance(value, Mapping):
            return {key: self._replace_macros(each, names) for key, each in value.items()}
        return value


class _ReadError(ValueError):
    """An error whose message already names the file and the line."""


def _find_algorithms() -> dict[str, str]:
    """Returns an algorithm for the name of each agent's class, and '' for `train`."""
    algorithms = {**list_algorithms(), **ALGORITHMS}
    return {_RUN: "", **{each.class_name: name for name, each in algorithms.items()}}


def _check(owner: str, name: str, value: Any) -> Any:
    declared = get_hyperparameters(_find_algorithms()[owner])
    if name not in declared:
        raise ValueError(f"{owner} has no hyperparameter {name!r}{suggest(name, declared) or _list(declared)}")
    if name in RUN_HYPERPARAMETERS:
        option = RUN_HYPERPARAMETERS[name]
        raise ValueError(f"{owner}.{name} cannot be set because the run determines it; set {option} instead")
    return declared[name].check(value)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _ReadError(f"cannot read the gin file {path}: {error}; check the path") from None


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _list(names: Iterable[str]) -> str:
    return f"; use one of {_join(names)}"
