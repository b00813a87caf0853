"""A fixture that makes adders compute their items without tracing graphs."""

import pytest


@pytest.fixture
def eager(monkeypatch):
    """Makes adders compute items eagerly, because tracing a graph for an adder and a spec takes up to a second.

    It is for tests of the numbers. In each file, other tests compare the items of traced graphs.
    """
    from rlds2reverb.adders import column_adder

    def get_function(adder, columns, kind):
        adder.item_spec(column_adder.columns_step_spec(columns))
        methods = {"batch": "_make_batch_items", "episode": "_make_items", "rows": "make_checked_rows"}
        return getattr(adder, methods[kind])

    monkeypatch.setattr(column_adder, "_get_graph", get_function)
