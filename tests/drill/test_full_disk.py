"""Drill: training commands on a real disk that fills up in every phase of a run, and grows a little each time."""

import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from faults import mount_tmpfs, process, receive, skip_unless_mounted, unshare_mounts
from trained_runs import make_arguments, read_rows, read_weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.drill("F9")]

OPTIONS = ["--deterministic", "--track", "tensorboard"]
#: Number of sizes of the disk, up to that of a complete run.
NUM_SIZES = 24


def call(arguments, log):
    """Runs a command in this process; returns its exit code and what it printed."""
    from rlds2reverb.cli import run

    with log.open("w") as stream, redirect_stdout(stream), redirect_stderr(stream):
        code = run(arguments)
    return code, log.read_text()


def train_on_small_disks(channel, folder, sizes):
    """Repeats a command on a disk of each of the sizes; sends what `call` returns, and finally the results."""
    unshare_mounts()
    mount_tmpfs(folder, sizes[0])
    channel.send("mounted")
    for size in sizes:
        mount_tmpfs(folder, size, remount=True)
        channel.send(call(make_arguments(folder / "run", *OPTIONS), folder.with_name("log")))
    names = [path.name for path in (folder / "run").rglob("*")]
    channel.send((read_rows(folder / "run"), read_weights(folder / "run"), names))


def train_whole(channel, folder):
    channel.send(call(make_arguments(folder / "run", *OPTIONS), folder.with_name("log")))


def test_training_on_a_full_disk_says_so_and_continues_once_there_is_space(tmp_path):
    for name in ("whole", "disk"):
        (tmp_path / name).mkdir()
    with process(train_whole, tmp_path / "whole") as (_, channel):
        assert receive(channel)[0] == 0
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    sizes = [*(int(num_bytes * part / NUM_SIZES) for part in range(1, NUM_SIZES + 1)), 64 << 20]
    with process(train_on_small_disks, tmp_path / "disk", sizes) as (_, channel):
        skip_unless_mounted(channel)
        full = []
        for size in sizes:
            code, printed = receive(channel)
            if code:
                error = printed.splitlines()[-1]
                assert code == 75 and re.match(r"error: no space left for \S+", error), (size, printed)
                full.append(re.sub(r"\d+", "N", error.split()[5].rstrip(";")))
        rows, weights, names = receive(channel)
    assert code == 0 and {Path(path).name for path in full} >= {"N", "policy"}, full  # Checkpoints, and the export.
    assert not [name for name in names if name.endswith((".partial", ".tmp"))]
    assert rows == read_rows(tmp_path / "whole/run")
    expected = read_weights(tmp_path / "whole/run")
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
