"""The page for users of other libraries: its tables are those of the messages, and all of its names exist.

Run this file to write the tables again after a change of `replacements.ini`.
"""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from rlds2reverb.learners.agents import OfflineAgent
from rlds2reverb.learners.agents.registry import get_hyperparameters
from rlds2reverb.system.replacements import read_replacements

PAGE = Path(__file__).parent.parent / "docs/coming_from.md"
ROOTS = ("rlds2reverb", "gymnasium", "tf")
REGION = re.compile(r"(?<=<!-- replacements: )(.+?)( -->\n).*?(?=<!-- end -->)", re.S)


def find_holder(section):
    """Returns the dotted name of the class or function that replaces that of a section; '' for none."""
    texts = read_replacements()[section]
    own = re.match(r"`([\w.]+)`", texts.get(section.split(" ", 1)[1], ""))
    return own[1] if own else ""


def expand(section, name, text):
    return f"`{find_holder(section)}.{name}`" if text == "same" else text


def render_table(library):
    """Returns the table of a library, in which names with the same replacement share a row."""
    rows = [f"| {library} | here |\n|---|---|\n"]
    for section, texts in read_replacements().items():
        owner = section.split(" ", 1)[1]
        names = {}
        for name, text in texts.items():
            names.setdefault((name == owner, text), []).append(f"`{name}`")
        prefix = "" if owner in ("names", "arguments", "commands") else f"`{owner}`: "
        for (is_owner, text), group in names.items() if section.startswith(f"{library} ") else ():
            here = f"the same in `{find_holder(section)}`" if text == "same" else text
            rows.append(f"| {'' if is_owner else prefix}{', '.join(group)} | {here} |\n")
    return "".join(rows)


def render(page):
    """Returns a page with the tables of all of its libraries."""
    return REGION.sub(lambda match: f"{match[1]}{match[2]}{render_table(match[1])}", page)


def resolve(dotted):
    """Returns an object by its dotted name, or the class that sets the attribute; raises `AttributeError`."""
    parts = dotted.replace("tf.", "tensorflow.", 1).split(".") if dotted.startswith("tf.") else dotted.split(".")
    found, rest = importlib.import_module(parts[0]), parts[1:]
    while rest:
        name = rest.pop(0)
        if inspect.ismodule(found) and not hasattr(found, name):
            importlib.import_module(f"{found.__name__}.{name}")
        if inspect.isclass(found) and not hasattr(found, name) and not rest and sets(found, name):
            return found
        found = getattr(found, name)
    return found


def list_arguments(function):
    """Returns the names of the arguments of a function or class, or of the hyperparameters of an agent."""
    if inspect.isclass(function) and issubclass(function, OfflineAgent):
        return get_hyperparameters(function)
    return inspect.signature(function).parameters


def sets(owner, name):
    """Returns whether the objects of a class have an attribute that their class does not have."""
    annotated = name in {field for base in owner.__mro__ for field in vars(base).get("__annotations__", ())}
    sources = [inspect.getsource(base) for base in owner.__mro__ if base.__module__.startswith("rlds2reverb")]
    return annotated or any(re.search(rf"\bself\.{name}\b", text) for text in sources)


@pytest.mark.parametrize("section", read_replacements())
def test_all_names_in_the_right_column_exist(section):
    holder = find_holder(section)
    for name, text in read_replacements()[section].items():
        quoted = re.findall(r"`([^`]+)`", expand(section, name, text))
        names = [quote for quote in quoted if quote.partition(".")[0] in ROOTS]
        found = [resolve(quote) for quote in [*names, *([holder] if holder else [])]]
        for quote in set(quoted) - set(names):
            assert quote.endswith("="), f"{name}: {quote} is neither a full name nor an argument"
            accepted = [list_arguments(part) for part in found if callable(part)]
            assert any(quote[:-1] in arguments for arguments in accepted), f"{name}: {quote}"
        assert quoted or text.startswith(("none: ", "see ")), f"{name}: {text}"


@pytest.mark.skipif(not PAGE.is_file(), reason="the docs are not available when an installed wheel is tested")
def test_page_has_the_tables_of_the_messages():
    page = PAGE.read_text()
    libraries = {section.split(" ", 1)[0] for section in read_replacements()}
    assert {match[1] for match in REGION.finditer(page)} == libraries
    assert page == render(page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
