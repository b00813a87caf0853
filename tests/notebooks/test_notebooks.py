"""Runs every notebook from top to bottom in a kernel of this Python, and compares its outputs with the stored ones."""

import json
import os

import pytest
from notebook_format import find_notebooks
from notebook_outputs import execute, find_differences, find_missing_package

#: Time limit of a notebook on two cores; longer if other test processes use the cores as well.
LIMIT_SECS = 360 if "PYTEST_XDIST_WORKER" in os.environ else 180

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_SECS + 120)]


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_notebook_outputs_are_those_that_are_stored(path, data, tmp_path):
    if missing := find_missing_package(path):
        pytest.skip(f"requires {missing}")
    notebook = execute(path, data, tmp_path, LIMIT_SECS)
    differences = find_differences(json.loads(path.read_text()), notebook)
    assert not differences, "check these cells, and run: make notebooks\n" + "\n".join(differences)
