"""Tests that mutations refer to existing sources and tests, and of the operations that make them."""

import ast

import pytest
from mutations import ROOT, read_faults
from operations import OPERATIONS, list_mutations

FAULTS = read_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_can_be_made(fault):
    if not (ROOT / "setup.py").is_file():
        pytest.skip("the source tree is not available when an installed wheel is tested")
    assert fault.make() != (ROOT / fault.file).read_text()
    assert (ROOT / fault.tests[0].split("::")[0]).is_file()


def test_names_of_faults_are_unique():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


SOURCE = """
LIMIT = 3
_MAX_BYTES = 4
def scale(rows: int | None, factor=2.0, *, is_shifted=True):
    \"\"\"Adds 1.\"\"\"
    if rows < 0 and is_shifted:
        check(rows, factor, is_large=rows > _MAX_BYTES, strict=True)
    time.sleep(1)
    return rows * factor - LIMIT
"""


def test_operations_make_one_change_each(tmp_path):
    (tmp_path / "scale.py").write_text(SOURCE)
    made = {mutation.name: mutation.source for mutation in list_mutations(tmp_path, "scale.py")}
    changes = {name: set(source.splitlines()) - set(SOURCE.splitlines()) for name, source in made.items()}
    assert {name: line.strip() for name, (line,) in changes.items()} == {
        "scale.py: constant 0": "LIMIT = 4",
        "scale.py: constant 1": "_MAX_BYTES = 5",
        "scale.py:scale default 0": "def scale(rows: int | None, factor=3.0, *, is_shifted=True):",
        "scale.py:scale default 1": "def scale(rows: int | None, factor=2.0, *, is_shifted=False):",
        "scale.py:scale condition 0": "if False:",
        "scale.py:scale condition 1": "if ((rows < 0)):",
        "scale.py:scale condition 2": "if ((is_shifted)):",
        "scale.py:scale comparison 0": "if (rows <= 0) and is_shifted:",
        "scale.py:scale constant 0": "if rows < 1 and is_shifted:",
        "scale.py:scale call 0": "pass",
        "scale.py:scale arguments 0": "check(factor, rows, is_large=rows > _MAX_BYTES, strict=True)",
        "scale.py:scale sign 0": "return (rows * factor + (LIMIT))",
    }
    assert {name.split()[-2] for name in made} == set(OPERATIONS)
    for source in made.values():
        ast.parse(source)
