"""How much memory data need: the estimate, and what happens where there is too little."""

import pytest
from reference_impls import episode

from rlds2reverb._server import memory
from rlds2reverb._server.memory import available_bytes, needed_bytes, require_memory
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb._units import bytes_text
from rlds2reverb.errors import InsufficientMemoryError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.sources import load
from rlds2reverb.tables import TableConfig
from rlds2reverb.trajectory_items import TrajectoryWindows

MANY = [episode(100, terminal=True)]


def test_an_item_of_half_cheetah_needs_two_kilobytes():
    """Measured with benchmarks/bench_memory.py: 2,127 bytes an item of 6 columns, 8 of them in a chunk of 1,000."""
    assert needed_bytes(items=8000, chunks=1000, chunk_bytes=1_000_000, columns=6) / 8000 == pytest.approx(
        2127, rel=0.1
    )


def test_there_is_memory_here():
    assert 1 << 20 < available_bytes() < 1 << 50


@pytest.mark.parametrize(("num_bytes", "said"), [(2.1e9, "2.1 GB"), (4_560_000, "4.6 MB")])
def test_bytes_in_words(num_bytes, said):
    assert bytes_text(num_bytes) == said


def test_what_does_not_fit_is_refused_unless_forced(tmp_path, monkeypatch):
    ingest(MANY, tmp_path / "data")
    monkeypatch.setattr(memory, "available_bytes", lambda: 100_000)
    message = r"/data will need about \d+\.\d kB of memory, and 100\.0 kB are free; serve it on a larger machine"
    with pytest.raises(InsufficientMemoryError, match=message):
        ReplayServer(None, data=tmp_path / "data")
    with ReplayServer(None, data=tmp_path / "data", force=True) as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == 99
    with ReplayServer([TableConfig()], TrajectoryWindows().item_spec(load(MANY).step_spec)) as server:
        with pytest.raises(InsufficientMemoryError, match="'replay' at localhost:.* will need about"):
            ingest(MANY, server.address)
        assert server.client.server_info(timeout=10)["replay"].current_size == 0
        assert ingest(MANY, server.address, options=IngestOptions(force=True)).memory_bytes > 100_000


def test_enough_is_enough():
    require_memory(1000, "a small table")
