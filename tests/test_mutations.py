"""Mutations refer to source lines and tests that exist."""

import pytest
from mutations import MUTATIONS, ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_replaces_text_that_occurs_once(mutation):
    path = ROOT / mutation.file
    if not (ROOT / "setup.py").is_file():
        pytest.skip("the source tree is not available when an installed wheel is tested")
    assert path.read_text().count(mutation.old) == 1, f"update the text of this mutation in {mutation.file}"
    assert mutation.new != mutation.old
    assert (ROOT / mutation.tests).is_file()
