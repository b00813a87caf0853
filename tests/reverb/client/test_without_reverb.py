"""Tests that dm-reverb is needed by servers only: clients run in processes in which it cannot be imported."""

import subprocess
import sys

import pytest
from reference_impls import episode

from rlds2reverb import ReplayServer, TableConfig, ingest, item_signature, load, trajectory_spec

BLOCKER = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "reverb":
            raise ModuleNotFoundError("No module named 'reverb'", name="reverb")


sys.meta_path.insert(0, Blocker())
"""


#: Runs without dm-reverb: ingests into a server, samples from it, updates priorities, and validates a directory.
PROGRAM = """
import numpy as np
import rlds2reverb
import rlds2reverb.ingestion, rlds2reverb.learners.feeds, rlds2reverb.rlds_to_reverb
from rlds2reverb import PriorityWriter, ingest, load, sample_dataset
from rlds2reverb.cli import run
from rlds2reverb.reverb.sampling import sample

address, directory = sys.argv[1:]
count = 6
steps = {
    "is_first": np.arange(count) == 0,
    "is_last": np.arange(count) == count - 1,
    "is_terminal": np.arange(count) == count - 1,
    "observation": np.arange(2 * count, dtype=np.float32).reshape(count, 2),
    "action": np.arange(count, dtype=np.float32)[:, None],
    "reward": np.arange(count, dtype=np.float32),
    "discount": np.ones(count, np.float32),
}
print(ingest(load([steps]), address).items)
with sample(address, "replay", 4) as batches, PriorityWriter(address, "replay") as writer:
    batch = next(batches)
    writer.update(batch.info, np.ones(4))
    print(batch.data.observation.shape)
print(next(iter(sample_dataset(address, "replay", 4))).data.reward.shape)
assert run(["validate", directory]) == 0
assert "reverb" not in sys.modules
"""


@pytest.mark.slow
def test_clients_ingest_sample_update_and_validate_without_reverb(tmp_path):
    source = load([episode(6, terminal=True)])
    ingest(source, tmp_path / "items")
    with ReplayServer([TableConfig()], item_signature(trajectory_spec(source.step_spec), 2)) as server:
        command = [sys.executable, "-c", BLOCKER + PROGRAM, server.address, str(tmp_path / "items")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:3] == ["5", "(4, 2, 2)", "(4, 2)"]
    assert "valid, all checksums match" in result.stdout
