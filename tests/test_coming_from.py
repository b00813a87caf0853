"""The page for users of DI-engine, ALF and TF-Agents: its tables are those of the messages, and all of its names exist.

Run this file to write the tables again after a change of `replacements.ini`.
"""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from rlds2reverb.system.replacements import read_replacements

PAGE = Path(__file__).parent.parent / "docs/coming_from.md"
ROOTS = ("rlds2reverb", "gymnasium", "tf")
HEADING = "## {}\n\n| {} | here |\n|---|---|\n"


def find_holder(section):
    """Returns the dotted name of the class or function that replaces that of a section; '' for none."""
    texts = read_replacements()[section]
    own = re.match(r"`([\w.]+)`", texts.get(section.split(" ", 1)[1], ""))
    return own[1] if own else ""


def expand(section, name, text):
    return f"`{find_holder(section)}.{name}`" if text == "same" else text


def render():
    """Returns the tables of all libraries."""
    tables = {}
    for section, texts in read_replacements().items():
        library, owner = section.split(" ", 1)
        for name, text in texts.items():
            place = name if owner in (name, "names", "arguments") else f"{owner}: {name}"
            place = f"{owner}.{name}" if owner[0].isupper() and owner != name else place
            row = f"| `{place}` | {expand(section, name, text)} |\n"
            tables[library] = tables.get(library, HEADING.format(library, library)) + row
    return "\n".join(tables.values())


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
            signatures = [inspect.signature(part).parameters for part in found if callable(part)]
            assert any(quote[:-1] in parameters for parameters in signatures), f"{name}: {quote}"
        assert quoted or text.startswith(("none: ", "see ")), f"{name}: {text}"


@pytest.mark.skipif(not PAGE.is_file(), reason="the docs are not available when an installed wheel is tested")
def test_page_has_the_tables_of_the_messages():
    assert PAGE.read_text().endswith(render())


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition("## TF-Agents\n")[0] + render())
