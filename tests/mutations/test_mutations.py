"""Tests that mutations refer to existing source lines and tests."""

import pytest
from mutations import ROOT, read_mutations

MUTATIONS = read_mutations()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_replaces_text_that_occurs_once(mutation):
    if not (ROOT / "setup.py").is_file():
        pytest.skip("the source tree is not available when an installed wheel is tested")
    num_occurrences = (ROOT / mutation.file).read_text().count(mutation.old)
    assert num_occurrences == 1, f"update the text of this mutation, which is quoted from {mutation.file}"
    assert mutation.new != mutation.old
    assert (ROOT / mutation.test.split("::")[0]).is_file()


def test_names_of_mutations_are_unique():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
