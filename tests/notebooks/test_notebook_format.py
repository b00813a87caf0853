"""The form of the notebooks in git, without running them."""

import ast
import copy
import importlib
import json
import re
from pathlib import Path

import nbformat
import pytest
from notebook_format import (
    EXECUTED,
    FIRST_CELL,
    INSTALL,
    colab_badge,
    digest_code,
    find_notebooks,
    find_problems,
    fix,
    source,
)


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_notebook_has_badge_first_cell_and_outputs(path):
    notebook = json.loads(path.read_text())
    nbformat.validate(notebook)
    assert not find_problems(notebook, path.name), "run: make notebooks"


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_notebook_imports_existing_names_of_rlds2reverb(path):
    code = "\n".join(source(cell) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code")
    tree = ast.parse(re.sub(r"(?m)^( *)!.*$", r"\1pass", code))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [(node.module, alias.name) for node in imports for alias in node.names if "rlds2reverb" in node.module]
    missing = [name for module, name in names if not hasattr(importlib.import_module(module), name)]
    assert names and not missing


def make_notebook():
    """Returns a valid notebook with an execution count and an output."""
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"language_info": {"name": "python"}},
        "cells": [
            {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# Title\n", "Text."]},
            {
                "cell_type": "code",
                "id": "b",
                "metadata": {"collapsed": True},
                "execution_count": 2,
                "source": "print(1)",
                "outputs": [{"output_type": "stream", "name": "stdout", "text": "1\n"}],
            },
        ],
    }


def test_fix_makes_a_valid_notebook_and_changes_nothing_twice():
    notebook = make_notebook()
    fix(notebook, "09_new.ipynb")
    notebook["metadata"][EXECUTED] = digest_code(notebook)
    assert find_problems(notebook, "09_new.ipynb") == []
    assert [source(cell) for cell in notebook["cells"]] == [
        f"# Title\n\n{colab_badge('09_new.ipynb')}\n\nText.",
        FIRST_CELL,
        "print(1)",
    ]
    nbformat.validate(notebook)
    again = copy.deepcopy(notebook)
    fix(again, "09_new.ipynb")
    assert again == notebook


@pytest.mark.parametrize(
    "name, change, problem",
    [
        ("quickstart.ipynb", {}, "NN_words"),
        ("09_new.ipynb", {"cells": 25}, "at most 24 cells, got 28"),
        ("09_new.ipynb", {"source": "print(2)"}, "must be run"),
        ("09_new.ipynb", {"outputs": [{"output_type": "stream", "name": "stderr", "text": "1"}]}, "stderr"),
        ("09_new.ipynb", {"outputs": [{"output_type": "stream", "name": "stdout", "text": "in /tmp/x"}]}, "paths"),
        ("09_new.ipynb", {"outputs": [{"output_type": "stream", "name": "stdout", "text": "1" * 300_000}]}, "bytes"),
        ("09_new.ipynb", {"source": "!pip install rlds2reverb"}, "FIRST_CELL"),
        ("10_other.ipynb", {}, "blob/main/notebooks/10_other.ipynb"),
    ],
)
def test_find_problems_names_each_deviation(name, change, problem):
    notebook = make_notebook()
    fix(notebook, "09_new.ipynb")
    notebook["metadata"][EXECUTED] = digest_code(notebook)
    change = dict(change)
    notebook["cells"] += [notebook["cells"][-1]] * change.pop("cells", 0)
    notebook["cells"][1].update(change)
    problems = find_problems(notebook, name)
    assert any(problem in text for text in problems), problems


def test_first_cell_installs_with_the_documented_commands():
    documented = (Path(__file__).parents[2] / "docs/versions.md").read_text()
    command = " && ".join(INSTALL).replace(" -q", "").replace("./r2r", ".")
    assert re.sub(r"\[.*\]", "[eval,minari]", command) in documented
