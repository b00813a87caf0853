"""Tests of `IngestOptions.verify`: written items are read back and compared with the dataset."""

import dataclasses

import numpy as np
import pytest
from reference_impls import episode

from rlds2reverb.adders import NStep
from rlds2reverb.adders.trajectory_windows import TrajectoryEpisodes, TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import CheckpointError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot
from rlds2reverb.reverb.writing import verification

VERIFY = IngestOptions(verify=True)
EPISODES = [episode(length, terminal=length % 2 == 0) for length in (5, 1, 3, 40, 7)]
#: Its single item has rows in several chunks.
LARGE = {**episode(30, terminal=True), "observation": np.arange(30 * 60_000, dtype=np.float32).reshape(30, -1)}


@pytest.mark.parametrize(
    ("adder", "options"),
    [
        (TrajectoryWindows(), {}),
        (TrajectoryWindows(3, padding="tile"), {"layout": "packed"}),
        (TrajectoryEpisodes(), {"tables": ["a", "b"]}),
        (NStep(2, 0.9), {"priority": lambda episode, items: np.arange(len(items)) + 1.0}),
    ],
)
def test_written_items_equal_those_of_the_dataset(tmp_path, adder, options):
    report = ingest(EPISODES, tmp_path / "out", adder=adder, options=VERIFY, **options)
    assert report.verified_items == report.items > 0 and "verify" in report.seconds
    assert ("verified", f"{report.items} items read back, equal to those of the dataset bit for bit") in report.facts()
    # A complete directory is verified as well.
    assert ingest(EPISODES, tmp_path / "out", adder=adder, options=VERIFY, **options).verified_items == report.items


def test_items_of_several_chunks_equal_those_of_the_dataset(tmp_path):
    assert ingest([LARGE], tmp_path / "out", adder=TrajectoryEpisodes(), options=VERIFY).verified_items == 1


def test_items_of_shards_equal_those_of_the_dataset(tmp_path):
    report = ingest(EPISODES, [tmp_path / "0", tmp_path / "1"], options=VERIFY)
    assert report.verified_items == report.items > 0


def test_directory_without_items_raises(tmp_path):
    CheckpointRoot(tmp_path / "out")
    with pytest.raises(CheckpointError, match="out contains no items; convert the dataset again"):
        verification.require_same_items(tmp_path / "out", load(EPISODES), None, ["replay"])


@dataclasses.dataclass(frozen=True)
class Changed(TrajectoryWindows):
    """Windows that change once the directory is written, in the way that `change` says."""

    change: str = ""
    is_written = False

    def __call__(self, episode):
        items = super().__call__(episode)
        if Changed.is_written and self.change == "fewer":
            return dataclasses.replace(items, starts=items.starts[:-1], lengths=items.lengths[:-1])
        reward = np.array(items.columns.reward)
        reward[-1] = -0.0 if Changed.is_written and self.change == "sign of zero" else 0.0
        return dataclasses.replace(items, columns=items.columns._replace(reward=reward))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "sign of zero",
            r"out: item 1 of episode 0 differs from the dataset in item\['reward'\] \(table 'replay'\); convert",
        ),
        ("fewer", r"out: item 0 of episode 1 differs from the dataset in item\['step_type'\]"),
        ("priority", "out: item 0 of episode 0 differs from the dataset in its priority"),
    ],
)
def test_different_items_raise(tmp_path, monkeypatch, change, message):
    Changed.is_written = False
    compare = verification.require_same_items

    def compare_with_changed_adder(*arguments):
        Changed.is_written = True
        return compare(*arguments)

    monkeypatch.setattr("rlds2reverb.ingestion.require_same_items", compare_with_changed_adder)
    with pytest.raises(CheckpointError, match=message):
        ingest(
            [episode(3, terminal=True), episode(4, terminal=True)],
            tmp_path / "out",
            adder=Changed(change=change),
            priority=lambda episode, items: 2.0 if Changed.is_written and change == "priority" else 1.0,
            options=VERIFY,
        )


def test_verify_raises_where_nothing_is_read_back():
    with pytest.raises(ValueError, match="verify=True has no effect on a server; leave it out"):
        ingest(EPISODES, "localhost:1", options=VERIFY)
