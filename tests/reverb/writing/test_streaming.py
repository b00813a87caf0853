"""Tests that sources are read in blocks, with far less memory than the size of their file."""

import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest

from rlds2reverb.datasets import load
from rlds2reverb.datasets.readers import d4rl

NUM_ROWS = 2_000_000


@pytest.mark.slow
def test_summary_of_a_large_file_uses_a_tenth_of_its_size(tmp_path):
    """The file has 550 MB; peak memory rises by less than 60 MB."""
    path = tmp_path / "large.hdf5"
    block = np.random.default_rng(0).normal(size=(100_000, 34)).astype(np.float32)
    with h5py.File(path, "w") as file:
        for name, rows in (("observations", block), ("next_observations", np.roll(block, -1, axis=0))):
            column = file.create_dataset(name, (NUM_ROWS, 34), "f4", chunks=(1000, 34))
            for start in range(0, NUM_ROWS, len(rows)):
                column[start : start + len(rows)] = rows
        file["actions"] = np.zeros((NUM_ROWS, 6), np.float32)
        file["rewards"] = np.ones(NUM_ROWS, np.float32)
        file["terminals"] = np.zeros(NUM_ROWS, bool)
        file["timeouts"] = np.arange(NUM_ROWS) % 1000 == 999
    program = textwrap.dedent(
        """
        import re, sys
        from rlds2reverb import load, summarize
        def peak():
            return int(re.search("VmHWM:([^k]+) kB", open("/proc/self/status").read())[1]) // 1024
        before = peak()
        summary = summarize(load(sys.argv[1]))
        print(summary.episodes, summary.transitions, peak() - before)
        """
    )
    result = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    episodes, transitions, megabytes = map(int, result.stdout.split())
    assert (episodes, transitions) == (2000, NUM_ROWS)
    assert path.stat().st_size > 550 << 20 and megabytes < 60


@pytest.mark.slow
def test_block_size_does_not_change_the_episodes():
    """The dataset has a million rows, and episodes with all kinds of ends."""
    generator = np.random.default_rng(1)
    rows = {
        "observations": generator.normal(size=(1_000_000, 3)).astype(np.float32),
        "actions": generator.normal(size=(1_000_000, 1)).astype(np.float32),
        "rewards": generator.normal(size=1_000_000),
        "terminals": generator.random(1_000_000) < 0.01,
        "timeouts": generator.random(1_000_000) < 0.01,
    }
    whole = [episode.steps["reward"] for episode in load(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(d4rl, "BLOCK_BYTES", 77_777)
        parts = [episode.steps["reward"] for episode in load(rows)]
    assert len(whole) == len(parts) > 10_000
    assert np.concatenate(whole).tobytes() == np.concatenate(parts).tobytes()
