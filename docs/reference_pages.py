"""Writes the reference from the docstrings: a page for each public package, each of its modules, and each command."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlds2reverb.cli.main import cli

#: The public packages, in the order of the site. A name that several of them export is documented in the first one.
PACKAGES = (
    "rlds2reverb",
    "rlds2reverb.adders",
    "rlds2reverb.adders.di_engine",
    "rlds2reverb.datasets",
    "rlds2reverb.reverb.sampling",
    "rlds2reverb.beam",
    "rlds2reverb.replay",
    "rlds2reverb.learners",
    "rlds2reverb.learners.hooks",
    "rlds2reverb.learners.agents",
    "rlds2reverb.envs",
    "rlds2reverb.envs.suite_gym",
    "rlds2reverb.envs.suite_dm_control",
    "rlds2reverb.training",
    "rlds2reverb.training.reports",
    "rlds2reverb.training.cluster",
)


def write_reference_pages(directory: Path) -> None:
    """Writes a page for each package, which lists its names, one for each module of these, and one for each command.

    Raises:
      ValueError: If a public name or method has no docstring.
    """
    for path in directory.glob("**/rlds2reverb*.md"):
        path.unlink()
    home: dict[str, str] = {}
    for package in PACKAGES:
        logging.disable(logging.WARNING)  # Apache Beam warns about optional packages.
        module = importlib.import_module(package)
        logging.disable(logging.NOTSET)
        names = sorted(
            public_names(module), key=lambda name: (not inspect.isclass(getattr(module, name)), name.lower())
        )
        missing = [undocumented for name in names for undocumented in find_undocumented(name, module)]
        if missing:
            raise ValueError(f"public names of {package} without a docstring: {', '.join(missing)}")
        homes = {name: home.setdefault(_identity(name, module), package) for name in names}
        here = [name for name in names if homes[name] == package]
        elsewhere = {name: homes[name] for name in names if name not in here}
        modules: dict[str, list[str]] = {}
        for name in here:  # Constants do not know their module.
            modules.setdefault(getattr(getattr(module, name), "__module__", package), []).append(name)
        own = modules.pop(package, [])
        pages = {
            f"modules/{package}-{_shorten(origin, package)}": (origin, part) for origin, part in sorted(modules.items())
        }
        for page, (origin, part) in pages.items():
            _write(directory / f"{page}.md", _format_module(package, origin, part, module))
        _write(directory / f"{package}.md", _format_package(package, module, here, own, elsewhere, pages))
    for name in cli.list_commands(None):
        _write(directory / f"commands/rlds2reverb-{name}.md", _format_command(name))


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")


def _shorten(name: str, package: str) -> str:
    """Returns the name of a module without the package, and without the underscores of private ones."""
    return name.removeprefix(f"{package}.").removeprefix("rlds2reverb.").lstrip("_")


def public_names(module: Any) -> list[str]:
    """Returns the names that a module exports: those in `__all__`, or else those that it defines."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    names = getattr(module, "__all__", [name for name in defined if not name.startswith("_")])
    return [name for name in names if not inspect.ismodule(getattr(module, name))]


def find_undocumented(name: str, module: Any) -> Iterator[str]:
    """Yields the name, if it has no docstring, and those of its public methods and properties that have none."""
    value = getattr(module, name)
    if not (value.__dict__.get("__doc__") if inspect.isclass(value) else _documentation(name, module)):
        yield name
    if inspect.isclass(value) and value.__module__.startswith("rlds2reverb"):
        for attribute, member in vars(value).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            inherited = any(getattr(getattr(base, attribute, None), "__doc__", None) for base in value.__mro__[1:])
            if inspect.isfunction(function) and not (attribute.startswith("_") or function.__doc__ or inherited):
                yield f"{name}.{attribute}"


def _documentation(name: str, module: Any) -> str:
    """Returns the docstring of a name, or for a constant the comment that begins with `#:` before its definition."""
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    definition = re.compile(rf"((?:^#: .*\n)+){name}\b", re.M)
    found = (definition.search(path.read_text("utf-8")) for path in Path(module.__file__).parent.glob("*.py"))
    comment = next((match[1] for match in found if match), "")
    return re.sub(r"^#: ", "", comment, flags=re.M)


def _identity(name: str, module: Any) -> str:
    value = getattr(module, name)
    return f"{getattr(value, '__module__', module.__name__)}.{getattr(value, '__qualname__', name)}"


def _first_sentence(text: str) -> str:
    text = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0].replace("|", "\\|")


def _format_package(
    package: str,
    module: Any,
    names: list[str],
    own: list[str],
    elsewhere: dict[str, str],
    pages: dict[str, tuple[str, list[str]]],
) -> Iterator[str]:
    yield from (f"# {package}", "", inspect.getdoc(module) or "", "")
    if elsewhere:
        links = (f"{{py:obj}}`{name} <{home}.{name}>`" for name, home in elsewhere.items())
        yield from (f"Also exported here: {', '.join(links)}.", "")
    if pages:
        yield from ("| name | summary |", "|---|---|")
        for name in names:
            yield f"| {{py:obj}}`{name} <{package}.{name}>` | {_first_sentence(_documentation(name, module))} |"
        entries = [f"{_title(package, origin, part)} <{page}>" for page, (origin, part) in pages.items()]
        yield from ("", "```{toctree}", ":hidden:", *entries, "```", "")
    yield from (_format_entry(package, name, module) for name in own)


def _title(package: str, name: str, names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else _shorten(name, package)


def _format_module(package: str, name: str, names: list[str], module: Any) -> Iterator[str]:
    yield from (f"# {_title(package, name, names)}", "", inspect.getdoc(importlib.import_module(name)) or "", "")
    yield from (f"Import from {{doc}}`{package} </reference/{package}>`.", "")
    yield from (_format_entry(package, member, module) for member in names)


def _format_command(name: str) -> Iterator[str]:
    command = cli.get_command(None, name)
    module = importlib.import_module(command.callback.__module__)
    attribute = next(attribute for attribute, value in vars(module).items() if value is command)
    yield from ("```{eval-rst}", f".. click:: {module.__name__}:{attribute}", f"   :prog: rlds2reverb {name}")
    yield from ("   :nested: full", "```")


def _format_entry(package: str, name: str, module: Any) -> str:
    value = getattr(module, name)
    if inspect.isclass(value):
        directive = f".. {'autoexception' if issubclass(value, Exception) else 'autoclass'}:: {package}.{name}"
    elif inspect.isroutine(value):
        directive = f".. autofunction:: {package}.{name}"
    else:
        directive = f".. py:data:: {package}.{name}\n\n   {_documentation(name, module)}"
    return f"## {name}\n\n```{{eval-rst}}\n{directive}\n```\n"
