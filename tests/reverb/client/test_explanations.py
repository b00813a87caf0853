"""Tests of the explanations of missing samples."""

from types import SimpleNamespace

import pytest

from rlds2reverb.reverb.client import explain_missing_samples, explanations
from rlds2reverb.reverb.sampling.server_tables import ServerTables


@pytest.mark.parametrize(("size", "expected"), [(9, "10 items"), (10, "more insertions")])
def test_missing_samples_are_explained_by_the_rate_limiter(monkeypatch, size, expected):
    inserted, sampled = SimpleNamespace(completed=12), SimpleNamespace(completed=3)
    limiter = SimpleNamespace(min_size_to_sample=10, insert_stats=inserted, sample_stats=sampled)
    info = SimpleNamespace(current_size=size, rate_limiter_info=limiter)
    monkeypatch.setattr(explanations, "table_infos", lambda *_, **options: {"replay": info})
    assert explain_missing_samples("host:8000", "replay", 5).endswith(
        f"it has {size} items, 12 were inserted and 3 sampled; its rate limiter waits for {expected}"
    )


def test_servers_without_samples_are_explained_in_order(monkeypatch):
    monkeypatch.setattr(explanations, "table_infos", lambda *_, **options: {})
    tables = ServerTables("replay", ("localhost:1", "localhost:2"), None, None, (0, 0), False, False, (), ())
    found = tables.explain_missing_samples([1, 0], waited_secs=0.1)
    gone = "waited 0.1 s for a sample of table 'replay' at localhost:{}, and it is gone; start the server again"
    assert found == [gone.format(2), gone.format(1)]
