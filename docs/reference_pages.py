"""Writes the reference: one page for each public package, with every name that it exports, from the docstrings."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The public packages, in the order of the site. A name that several of them export is documented in the first one.
PACKAGES = (
    "rlds2reverb",
    "rlds2reverb.adders",
    "rlds2reverb.adders.di_engine",
    "rlds2reverb.sources",
    "rlds2reverb.sampling",
    "rlds2reverb.beam",
    "rlds2reverb.replay",
    "rlds2reverb.learners",
    "rlds2reverb.learners.hooks",
    "rlds2reverb.learners.agents",
    "rlds2reverb.envs",
    "rlds2reverb.envs.suite_gym",
    "rlds2reverb.envs.suite_dm_control",
    "rlds2reverb.envs.suite_envpool",
    "rlds2reverb.training",
    "rlds2reverb.training.reports",
    "rlds2reverb.training.cluster",
)


def write_reference_pages(directory: Path) -> None:
    """Writes a page for each package.

    Raises:
      ValueError: If a public name or method has no docstring.
    """
    home: dict[str, str] = {}
    for package in PACKAGES:
        logging.disable(logging.WARNING)  # Apache Beam warns about optional packages.
        module = importlib.import_module(package)
        logging.disable(logging.NOTSET)
        names = sorted(
            public_names(module), key=lambda name: (not inspect.isclass(getattr(module, name)), name.lower())
        )
        missing = [each for name in names for each in find_undocumented(name, module)]
        if missing:
            raise ValueError(f"public names of {package} without a docstring: {', '.join(missing)}")
        homes = {name: home.setdefault(_identity(name, module), package) for name in names}
        here = [name for name in names if homes[name] == package]
        elsewhere = {name: homes[name] for name in names if name not in here}
        (directory / f"{package}.md").write_text(_format_page(package, module, here, elsewhere), encoding="utf-8")


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


def _format_page(package: str, module: Any, names: list[str], elsewhere: dict[str, str]) -> str:
    lines = [f"# {package}", "", inspect.getdoc(module) or "", ""]
    if elsewhere:
        links = (f"{{py:obj}}`{name} <{home}.{name}>`" for name, home in elsewhere.items())
        lines += [f"Also exported here: {', '.join(links)}.", ""]
    if len(names) > 3:
        lines += ["| name | summary |", "|---|---|"]
        for name in names:
            summary = _first_sentence(_documentation(name, module))
            lines += [f"| {{py:obj}}`{name} <{package}.{name}>` | {summary} |"]
        lines += [""]
    return "\n".join([*lines, *(_format_entry(package, name, module) for name in names)])


def _format_entry(package: str, name: str, module: Any) -> str:
    value = getattr(module, name)
    if inspect.isclass(value):
        directive = f".. {'autoexception' if issubclass(value, Exception) else 'autoclass'}:: {package}.{name}"
    elif inspect.isroutine(value):
        directive = f".. autofunction:: {package}.{name}"
    else:
        directive = f".. py:data:: {package}.{name}\n\n   {_documentation(name, module)}"
    return f"## {name}\n\n```{{eval-rst}}\n{directive}\n```\n"
