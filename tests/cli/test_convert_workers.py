"""Conversions in several processes, which continue after a kill and write the same bytes."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from rlds2reverb import load, write_dataset

PATHS = {"rlds": "hopper/1.0.0", "d4rl": "hopper.hdf5", "minari": "hopper-v0", "lerobot": "hopper"}
CONVERT = (
    "import sys; from rlds2reverb.datasets.steps import stores as store; from rlds2reverb.cli import run; store.MIN_PART_ROWS = 1; "
    "sys.exit(run(sys.argv[1:]))"
)


def read_all(path):
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file.name: file.read_bytes() for file in files}


def test_workers_write_the_same_and_leave_nothing_behind(tmp_path, data):
    source = load(data / "d4rl/hopper_medium-v2.hdf5")
    reports = [
        write_dataset(source, tmp_path / str(workers) / "hopper/1.0.0", format="rlds", num_workers=workers)
        for workers in (None, 0, 1)
    ]
    assert len({(report.episodes, report.transitions, report.warnings) for report in reports}) == 1
    folders = [tmp_path / name / "hopper/1.0.0" for name in ("None", "0", "1")]
    assert read_all(folders[0]) == read_all(folders[1]) == read_all(folders[2])
    assert [path.name for path in (tmp_path / "1/hopper").iterdir()] == ["1.0.0"]
    with pytest.raises(FileExistsError, match="exists already"):
        write_dataset(source, folders[0], format="rlds", num_workers=0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("format", PATHS)
def test_killed_conversions_continue_with_the_same_bytes(tmp_path, data, format, workers):
    source = data / "d4rl/hopper_medium-v2.hdf5"
    whole, out = tmp_path / "whole" / PATHS[format], tmp_path / "out" / PATHS[format]
    write_dataset(source, whole, format=format)
    random, num_kills = np.random.default_rng(workers), 0
    command = ["convert", str(source), "--out", str(out), "--format", format, "--workers", str(workers)]
    while num_kills < 15 or not out.exists():
        if out.exists():  # Another round.
            assert read_all(out) == read_all(whole)
            shutil.rmtree(tmp_path / "out")
        process = subprocess.Popen([sys.executable, "-c", CONVERT, *command], stdout=subprocess.DEVNULL)
        try:
            process.wait(random.uniform(0.4, 2.0) if num_kills < 15 else 100)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            num_kills += 1
    assert read_all(out) == read_all(whole)
