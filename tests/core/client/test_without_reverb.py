"""Tests that dm-reverb is needed by servers only: clients run in processes in which it cannot be imported."""

import subprocess
import sys
import textwrap

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


def run(program, *arguments):
    """Runs a program without dm-reverb; returns its output."""
    command = [sys.executable, "-c", BLOCKER + textwrap.dedent(program), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_episodes_are_ingested_sampled_and_updated_without_reverb():
    source = load([episode(6, terminal=True)])
    with ReplayServer([TableConfig()], item_signature(trajectory_spec(source.step_spec), 2)) as server:
        output = run(
            """
            import numpy as np
            import rlds2reverb
            from rlds2reverb import PriorityWriter, ingest, load, sample_dataset
            from rlds2reverb.sampling import sample

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
            print(ingest(load([steps]), sys.argv[1]).items)
            with sample(sys.argv[1], "replay", 4) as batches, PriorityWriter(sys.argv[1], "replay") as writer:
                batch = next(batches)
                writer.update(batch.info, np.ones(4))
                print(batch.data.observation.shape)
            print(next(iter(sample_dataset(sys.argv[1], "replay", 4))).data.reward.shape)
            assert "reverb" not in sys.modules
            """,
            server.address,
        )
    assert output.split("\n")[:3] == ["5", "(4, 2, 2)", "(4, 2)"]


def test_modules_are_imported_without_reverb():
    run("import rlds2reverb.learners.feeds, rlds2reverb.ingestion, rlds2reverb.rlds_to_reverb")


def test_converted_directories_are_validated_without_reverb(tmp_path):
    ingest(load([episode(6, terminal=True)]), tmp_path / "items")
    output = run("from rlds2reverb.cli import run\nrun(['validate', sys.argv[1]])", tmp_path / "items")
    assert "valid, all checksums match" in output
