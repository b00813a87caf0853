"""The reader of gin files: their bindings, read without changing gin's own state.

A file contains bindings such as `IQLAgent.expectile = 0.9` and `train.gamma = 0.995`, and may use macros, blocks and
`include`; `import` has no effect. Files are parsed with gin's parser, but nothing is bound, so one run does not affect
the next one. What was bound in Python with `gin.parse_config` applies to agents as usual (`resolve_hyperparameters`).
"""

from __future__ import annotations

import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gin import config_parser

#: Bindings as text, with their name for messages.
NamedText = tuple[str, str]


class Binding(NamedTuple):
    """One binding.

    Attributes:
      owner: the part of its left side before the last dot, such as `IQLAgent`.
      name: the part after the dot; '' at the beginning of a block of bindings.
      value: the value.
      source: path of the file, or name of the text.
      line: number of the line.
    """

    owner: str
    name: str
    value: Any
    source: str
    line: int

    def error(self, message: Any) -> ValueError:
        """Returns an error that names the place of the binding."""
        return _make_error(self.source, self.line, message)


class _Symbol(str):
    """A value `%name`, a macro that may be defined after its use, or `@name`, a function or class."""


class _Delegate(config_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> _Symbol:
        """Implements `ParserDelegate.configurable_reference`."""
        return _Symbol(f"@{scoped_configurable_name}")

    def macro(self, macro_name: str) -> _Symbol:
        """Implements `ParserDelegate.macro`."""
        return _Symbol(f"%{macro_name}")


def read_bindings(sources: Iterable[Path | NamedText]) -> list[Binding]:
    """Returns the bindings of gin files and texts, in which macros are replaced by their values.

    Raises:
      ValueError: If a file cannot be read or parsed; the message names it and the line.
    """
    macros: dict[str, Any] = {}
    bindings = []
    for source in sources:
        name, content = (str(source), _read_text(source)) if isinstance(source, Path) else source
        for binding in _parse(name, content):
            if binding.owner.startswith("%"):
                macros[binding.owner] = binding.value
            else:
                bindings.append(binding)
    return [binding._replace(value=_replace_macros(binding, binding.value, macros)) for binding in bindings]


def _parse(source: str, content: str, parents: tuple[str, ...] = ()) -> Iterator[Binding]:
    """Yields bindings, definitions of macros as bindings of `%name`, and beginnings of blocks."""
    line = 0
    try:
        for statement in config_parser.ConfigParser(content, _Delegate()):
            line = statement.location.line_num
            if isinstance(statement, config_parser.IncludeStatement):
                path = statement.filename
                if path in (source, *parents):
                    raise _make_error(source, line, f"{path} includes itself; remove the include statement")
                yield from _parse(path, _read_text(Path(path)), (*parents, source))
            elif not isinstance(statement, config_parser.ImportStatement):
                owner = f"{statement.scope}/{statement.selector}" if statement.scope else statement.selector
                if isinstance(statement, config_parser.BlockDeclaration):
                    yield Binding(owner, "", None, source, line)
                else:
                    name = statement.arg_name or ""
                    yield Binding(owner if name else f"%{owner}", name, statement.value, source, line)
    except SyntaxError as error:
        message = f"{str(error.msg).rstrip('.')}; fix this line"
        raise _make_error(source, error.lineno or line, message) from None
    except tokenize.TokenError as error:
        raise _make_error(source, error.args[1][0], f"{error.args[0]}; close it") from None


def _make_error(source: str, line: int, message: Any) -> ValueError:
    return ValueError(f"{source}, line {line}: {message}")


def _replace_macros(binding: Binding, value: Any, macros: Mapping[str, Any], seen: tuple[str, ...] = ()) -> Any:
    if isinstance(value, _Symbol):
        if value.startswith("@"):
            raise binding.error(f"a value cannot be a reference, got {value}; write the value itself")
        if value not in macros or value in seen:
            raise binding.error(f"the macro {value} is not defined; add '{value[1:]} = VALUE'")
        return _replace_macros(binding, macros[value], macros, (*seen, value))
    if isinstance(value, (list, tuple)):
        return type(value)(_replace_macros(binding, element, macros, seen) for element in value)
    if isinstance(value, Mapping):
        return {key: _replace_macros(binding, element, macros, seen) for key, element in value.items()}
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the gin file {path}: {error}; check the path") from None
