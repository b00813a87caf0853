"""Tests of the estimate of a server's memory, and of the error if too little is free."""

import pytest
from reference_impls import episode

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import InsufficientMemoryError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.server import table_memory as memory
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.server.table_memory import estimate_server_bytes, require_memory
from rlds2reverb.system import free_memory as system_memory
from rlds2reverb.system.free_memory import free_memory_bytes
from rlds2reverb.types.tables import TableConfig

EPISODES = [episode(100, terminal=True)]


def test_half_cheetah_item_needs_two_kilobytes():
    """benchmarks/bench_memory.py measured 2,127 bytes per item of 6 columns, with 8 items per chunk of 1,000 bytes."""
    num_bytes = estimate_server_bytes(items=8000, chunks=1000, chunk_bytes=1_000_000, columns=6)
    assert num_bytes / 8000 == pytest.approx(2127, rel=0.1)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "5000", "memory.current": "3000", "memory.stat": "anon 2000\nfile 700"}, 2700),
        (
            {"memory.limit_in_bytes": "5000", "memory.usage_in_bytes": "3000", "memory.stat": "total_cache 700"},
            2700,
        ),
        ({"memory.max": "max", "memory.current": "3000", "memory.stat": "file 700"}, None),
    ],
)
def test_free_memory_is_limited_by_the_control_group(tmp_path, monkeypatch, files, expected):
    unlimited = free_memory_bytes()
    assert 1 << 20 < unlimited < 1 << 50
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(system_memory, "find_groups", lambda: [tmp_path])
    assert free_memory_bytes() == expected or (expected is None and free_memory_bytes() >= unlimited / 2)


def test_too_little_memory_raises_unless_forced(tmp_path, monkeypatch):
    ingest(EPISODES, tmp_path / "data")
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 100_000)
    message = r"/data will need about \d+\.\d kB of memory, but only 100\.0 kB are free; use a larger machine"
    with pytest.raises(InsufficientMemoryError, match=message):
        ReplayServer(directory=tmp_path / "data")
    with ReplayServer(directory=tmp_path / "data", force=True) as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == 99
    with ReplayServer([TableConfig()], TrajectoryWindows().item_spec(load(EPISODES).step_spec)) as server:
        with pytest.raises(InsufficientMemoryError, match="'replay' at localhost:.* will need about"):
            ingest(EPISODES, server.address)
        assert server.client.server_info(timeout=10)["replay"].current_size == 0
        assert ingest(EPISODES, server.address, options=IngestOptions(force=True)).memory_bytes > 100_000
        assert ingest(EPISODES, server.address).items == 99  # The same items need no more memory.


def test_estimate_for_a_server_is_the_memory_of_the_same_data_in_a_directory(tmp_path):
    """The estimate is extrapolated from the first episode, and the number in a directory is that of all its items."""
    episodes, tables = [episode(100, terminal=True, start=1000 * n) for n in range(5)], ["one", "other"]
    with ReplayServer([TableConfig(table) for table in tables]) as server:
        estimate = ingest(episodes, server.address, tables).memory_bytes
    assert estimate == pytest.approx(ingest(episodes, tmp_path / "data", tables).memory_bytes, rel=0.05)


def test_enough_memory_does_not_raise():
    require_memory(1000, "a small table")
