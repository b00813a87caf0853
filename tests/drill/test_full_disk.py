"""Drill: training, recordings and replay buffers on a real disk that is full, and then larger."""

import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from faults import hash_files, mount_tmpfs, process, receive, skip_unless_mounted, unshare_mounts
from trained_runs import make_arguments, read_rows, read_weights

from rlds2reverb.errors import StorageFullError
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig

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


def call_whole(channel, arguments, log):
    channel.send(call(arguments, log))


def test_training_on_a_full_disk_says_so_and_continues_once_there_is_space(tmp_path):
    for name in ("whole", "disk"):
        (tmp_path / name).mkdir()
    arguments = make_arguments(tmp_path / "whole/run", *OPTIONS)
    with process(call_whole, arguments, tmp_path / "log") as (_, channel):
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


# --- recordings


def record_on_small_disks(channel, folder, name, sizes):
    """Repeats a recording on a disk of each of the sizes; sends the code, the output and the names of the files."""
    unshare_mounts()
    mount_tmpfs(folder, sizes[0])
    channel.send("mounted")
    for size in sizes:
        mount_tmpfs(folder, size, remount=True)
        code, printed = call(record_arguments(folder / name), folder.with_name("log"))
        channel.send((code, printed, sorted(path.name for path in folder.iterdir())))
    channel.send(hash_files(folder))


def record_arguments(path):
    return ["record", "Pendulum-v1", "--out", str(path), "--episodes", "30"]


@pytest.mark.parametrize("name", ["pendulum.hdf5", "pendulum", "pendulum-v0"])
def test_recording_on_a_full_disk_leaves_nothing_and_can_be_repeated(tmp_path, name):
    for folder in ("whole", "disk"):
        (tmp_path / folder).mkdir()
    with process(call_whole, record_arguments(tmp_path / "whole" / name), tmp_path / "log") as (_, channel):
        assert receive(channel)[0] == 0
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    sizes = [*(int(num_bytes * part) for part in (0.01, 0.3, 0.6, 0.9)), 64 << 20]
    with process(record_on_small_disks, tmp_path / "disk", name, sizes) as (_, channel):
        skip_unless_mounted(channel)
        for size in sizes[:-1]:
            code, printed, names = receive(channel)
            error = printed.splitlines()[-1]
            assert code == 75 and re.match(rf"error: no space left for \S*/{name}", error), (size, printed)
            assert names == []
        code, printed, names = receive(channel)
        assert (code, names) == (0, [name]), printed
        assert receive(channel) == hash_files(tmp_path / "whole")


# --- replay buffers


def make_buffer(folder, **options):
    return AdvancedReplayBuffer("demo", BufferConfig(max_size=1000), checkpoint_root=folder / "root", **options)


def make_elements(begin, end):
    return [{"x": np.full(50, number, np.float32)} for number in range(begin, end)]


def save_on_small_disks(channel, folder, sizes):
    """Saves a buffer of 100 elements, and restores it, adds 900 and saves it again on a disk of each of the sizes.

    Sends the number of restored elements and the error of each attempt, and finally the contents and the files.
    """
    unshare_mounts()
    mount_tmpfs(folder, 64 << 20)
    channel.send("mounted")
    with make_buffer(folder) as buffer:
        buffer.extend(make_elements(0, 100))
        buffer.checkpoint()
    for size in sizes:
        mount_tmpfs(folder, size, remount=True)
        with make_buffer(folder) as buffer:
            num_restored = len(buffer)
            buffer.extend(make_elements(100, 1000))
            channel.send((num_restored, catch(buffer.checkpoint)))
    with make_buffer(folder) as buffer:
        values = buffer.state_dict()["arrays"]["column_0"][:, 0].tolist()
        channel.send((len(buffer), sorted(values), [path.name for path in folder.rglob("*")]))


def catch(function, *arguments):
    """Returns the error that a call raises, or None."""
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


def test_buffer_keeps_its_checkpoint_while_the_disk_is_full(tmp_path):
    sizes = [60_000, 100_000, 150_000, 64 << 20]  # The first checkpoint has 22 kB, and the second one 220 kB.
    with process(save_on_small_disks, tmp_path, sizes) as (_, channel):
        skip_unless_mounted(channel)
        for _ in sizes[:-1]:
            num_restored, error = receive(channel)
            assert num_restored == 100 and isinstance(error, StorageFullError), error
            assert str(error).endswith("existing data are kept: free some space and repeat the run to continue")
        assert receive(channel) == (100, None)
        num_elements, values, names = receive(channel)
    assert num_elements == 1000 and values == list(range(1000))
    assert not [name for name in names if name.endswith((".partial", ".tmp"))]


def use_memory_mapped_files(channel, folder):
    """Adds elements on a full disk, and again once there is space; sends the errors and the number of elements."""
    unshare_mounts()
    mount_tmpfs(folder, 64 << 10)
    channel.send("mounted")
    with make_buffer(folder, mmap_dir=folder / "data") as buffer:
        channel.send((catch(buffer.extend, make_elements(0, 10)), len(buffer)))
        mount_tmpfs(folder, 64 << 20, remount=True)
        channel.send((catch(buffer.extend, make_elements(0, 10)), len(buffer)))


def test_memory_mapped_buffer_reports_a_full_disk(tmp_path):
    with process(use_memory_mapped_files, tmp_path) as (_, channel):
        skip_unless_mounted(channel)
        error, num_elements = receive(channel)
        assert isinstance(error, StorageFullError) and num_elements == 0
        assert re.search(
            r"no space left for \S+data; 1000 rows take 0\.2 MB: free some space, or use another", str(error)
        )
        assert receive(channel) == (None, 10)
