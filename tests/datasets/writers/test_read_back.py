"""Verification of written datasets: every field of every episode is compared, and a difference is named."""

import itertools
import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

from rlds2reverb import load, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.errors import SourceError

PATHS = {"d4rl": "a.hdf5", "rlds": "a/1.0.0", "minari": "a-v0", "lerobot": "a", "robomimic": "b.hdf5"}


def make_log(offset=0, **changes):
    rows = np.arange(5, dtype=np.float32)[:, None] + offset
    return {
        **{"observations": rows, "actions": rows[:4] / 10, "rewards": np.ones(4, np.float32), "terminated": False},
        **changes,
    }


@pytest.mark.parametrize("format", PATHS)
@pytest.mark.parametrize("path", ["d4rl/pendulum_mixed-v2.hdf5", "formats/lerobot/v3.0/c3"])
def test_written_datasets_are_read_back_equal(data, tmp_path, path, format):
    if format == "d4rl" and "lerobot" in path:
        pytest.skip("D4RL has no nested observations")
    options = {"recompute_discounts": True} if format != "rlds" else {}
    report = write_dataset(data / path, tmp_path / PATHS[format], format=format, verify=True, **options)
    assert f"fields of {report.episodes} episodes are equal" in report.verified
    assert report.verified.endswith("equal") and "verified" in str(report)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": np.zeros((5, 1), np.float32)}, r"episode 1, step [01]: step\['observation'\]\S* is "),
        ({"rewards": np.zeros(4, np.float32)}, r"episode 1, step 0: step\['reward'\] is 1.0 instead of 0.0"),
        ({"terminated": True}, "episode 1.* is "),
        (None, "it has more episodes than 1"),
    ],
)
@pytest.mark.parametrize("format", PATHS)
def test_datasets_that_differ_from_their_source_raise(tmp_path, format, changes, message):
    found = [] if changes is None else [make_log(offset=7, **changes)]
    require_difference(load([make_log(), make_log(offset=7)]), load([make_log(), *found]), tmp_path, format, message)
    assert (tmp_path / PATHS[format]).exists()


def require_difference(logs, others, folder, format, message):
    """Verifies an error if the source yields other episodes when it is read again, as a damaged dataset would."""
    calls, num_calls = itertools.count(), 10**6

    def make_source():
        return replace(load(make_log), read=lambda *_: iter(others if next(calls) >= num_calls else logs))

    write_dataset(make_source(), folder / "plain" / PATHS[format], format=format)
    num_calls = next(calls)  # The number of readings without verification.
    calls = itertools.count()
    with pytest.raises(SourceError, match=message):
        write_dataset(make_source(), folder / PATHS[format], format=format, verify=True)


@pytest.mark.parametrize("format", ["rlds", "minari"])
def test_metadata_that_differ_raise(tmp_path, format):
    logs = [replace(next(iter(load([make_log()]))), metadata={"level": np.int64(level)}) for level in (3, 4)]
    require_difference(logs[:1], logs[1:], tmp_path, format, r"'level' is 3 instead of 4")


def test_discounts_that_differ_raise(tmp_path):
    (episode,) = load([make_log()])
    other = replace(episode, steps={**episode.steps, "discount": episode.steps["discount"] / 2})
    require_difference([episode], [other], tmp_path, "rlds", r"step\['discount'\] is 1.0 instead of 0.5")


def test_lossy_images_are_reported(data, tmp_path):
    pytest.importorskip("av")
    source = load(data / "formats/lerobot/v2.1/c2", cameras=["wrist"])
    report = write_dataset(source, tmp_path / "a", format="lerobot", video=True, verify=True)
    assert "apart from lossy images (step['observation']['images']['wrist'] up to " in report.verified
    source = load(source, mapping={"describe": {"observation.images.wrist": "jpeg", "task": "text"}})
    report = write_dataset(source, tmp_path / "a/1.0.0", format="rlds", verify=True)
    assert "up to" in report.verified


def test_convert_verifies_other_formats(data, tmp_path, capsys):
    out = str(tmp_path / "lift")
    path = str(data / "formats/robomimic/d1_low_dim.hdf5")
    assert run(["convert", path, "--out", out, "--format", "lerobot", "--verify"]) == 0
    printed = capsys.readouterr().out
    assert "read back: all 13 fields of 6 episodes are equal" in " ".join(printed.split())
    assert "LeRobot's policies expect a vector 'observation.state'; join one (--map)" in " ".join(printed.split())


def test_robomimic_keeps_fields_and_metadata_of_lerobot(data, tmp_path):
    source = load(data / "formats/lerobot/v3.0/c3")
    write_dataset(source, tmp_path / "a.hdf5", format="robomimic")
    with h5py.File(tmp_path / "a.hdf5") as file:
        group = file["data/demo_0/step_fields"]
        assert (group["task"][0], group["next.success"].dtype) == (b"push the can", bool)
        assert json.loads(file["data"].attrs["metadata"])["fps"] == source.metadata["fps"]
    back = load(tmp_path / "a.hdf5")
    assert json.loads(back.metadata["feature_names"]) == json.loads(source.metadata["feature_names"])
    write_dataset(back, tmp_path / "b", format="lerobot")
    info = json.loads((tmp_path / "b/meta/info.json").read_text())
    assert type(info["fps"]) is int and info["features"]["action"]["names"][0] == "joint_0"
    for got, expected in zip(load(tmp_path / "b"), source, strict=True):
        assert got.steps["task"].tolist() == expected.steps["task"].tolist()
        assert (got.steps["next.success"] == expected.steps["next.success"]).all()


def test_rates_of_lerobot_are_integers_if_possible(tmp_path):
    for fps, expected in ((30.0, "30"), (29.97, "29.97")):
        write_dataset([make_log()], tmp_path / expected, format="lerobot", fps=fps)
        assert f'"fps": {expected},' in (tmp_path / expected / "meta/info.json").read_text()
