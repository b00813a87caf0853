"""Comparisons of written directories and reports, and a file with an invalid episode."""

import shutil

import h5py
import numpy as np


def assert_same_files(one, other):
    contents = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (one, other)
    ]
    assert contents[0] and contents[0].keys() == contents[1].keys()
    different = [str(name) for name in contents[0] if contents[0][name] != contents[1][name]]
    assert not different, different


def assert_same_reports(got, expected):
    timed = ("seconds", "steps_per_sec")
    got, expected = (
        {name: value for name, value in report.as_dict().items() if name not in timed} for report in (got, expected)
    )
    assert got == expected


def write_hopper_with_nan(data, path, row):
    """Copies a D4RL file with a reward that is NaN."""
    shutil.copy(data / "d4rl/hopper_medium-v2.hdf5", path)
    with h5py.File(path, "r+") as file:
        rewards = file["rewards"][()]
        rewards[row] = np.nan
        del file["rewards"]
        file["rewards"] = rewards
