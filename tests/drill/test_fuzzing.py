"""Drill: random damage in every file that is parsed; each loader returns a result or raises a typed error."""

import gc
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from faults import HANG_SECS, process
from saved_buffers import CONFIG, fill
from written_runs import write_run

from rlds2reverb import ReplayServer, Rlds2ReverbError, TableConfig, ingest, load, load_run
from rlds2reverb.replay import AdvancedReplayBuffer

pytestmark = pytest.mark.slow

NUM_DAMAGES = 25
MAX_GROWTH_BYTES = 1 << 30
LOG = {"observations": np.zeros((4, 3)), "actions": np.zeros((4, 1)), "rewards": np.ones(4), "terminated": True}


def damage(content, random):
    """Returns the bytes of a file with one random kind of damage."""
    content = bytearray(content)
    size = max(len(content), 1)
    begin = int(random.integers(size))
    end = min(size, begin + int(random.integers(1, 65)))
    kind = random.choice(["flip", "truncate", "duplicate", "zero", "random"])
    if kind == "flip":
        for at in random.integers(size, size=int(random.integers(1, 9))):
            content[int(at)] ^= 1 << int(random.integers(8))
    elif kind == "truncate":
        del content[begin:]
    elif kind == "duplicate":
        content[end:end] = content[begin:end]
    elif kind == "zero":
        content[begin:end] = bytes(end - begin)
    else:
        content[begin:end] = random.bytes(end - begin)
    return bytes(content)


# --- The files: each function writes valid ones, and returns a function that reads them


def read_source(path):
    for episode in load(path):
        _ = episode.steps


def write_hdf5(data, folder):
    shutil.copy(data / "d4rl/hopper_medium-v2.hdf5", folder / "hopper.hdf5")
    return lambda path: read_source(path / "hopper.hdf5")


def write_tfds(data, folder):
    prepared = next((data / "rlds_prepared").rglob("features.json")).parent
    shutil.copytree(prepared, folder / "dataset" / "1.0.0")
    return lambda path: read_source(path / "dataset" / "1.0.0")


def write_tables(data, folder):
    ingest([LOG] * 3, folder / "data")

    def read(path):
        with ReplayServer.from_directory(path / "data"):
            pass

    return read


def write_checkpoint_root(data, folder):
    with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as server:
        ingest([LOG] * 3, server)
        server.checkpoint()

    def read(path):
        with ReplayServer([TableConfig()], checkpoint_root=path / "root"):
            pass

    return read


def write_run_directory(data, folder):
    write_run(folder / "run")

    def read(path):
        run = load_run(path / "run")
        _ = run.progress, run.evaluations, run.best_return, run.behaviour_return, run.identity

    return read


def write_buffer(data, folder):
    with fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=folder / "buffer", seed=0)) as buffer:
        buffer.checkpoint()

    def read(path):
        with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=path / "buffer", seed=0) as buffer:
            buffer.sample(2, 50)

    return read


WRITERS = {
    "hdf5": write_hdf5,
    "tfds": write_tfds,
    "tables": write_tables,
    "checkpoint root": write_checkpoint_root,
    "run": write_run_directory,
    "buffer": write_buffer,
}
#: Errors that a caller can expect; each is also a ValueError or an OSError.
EXPECTED = Rlds2ReverbError


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_damaged_files(channel, kind, data, folder, seed):
    """Sends 'begun' with the number of each damage, and at the end the unexpected results and the number of errors."""
    warnings.simplefilter("ignore")
    (folder / "valid").mkdir()
    read = WRITERS[kind](data, folder / "valid")
    read_copy(read, folder, None)
    gc.collect()
    before, unexpected, num_errors = resident_bytes(), [], 0
    for number in range(NUM_DAMAGES):
        channel.send(("begun", number))
        try:
            read_copy(read, folder, np.random.default_rng([seed, number]))
        except EXPECTED:
            num_errors += 1
        except Exception as error:
            unexpected.append(f"damage {number}: {type(error).__module__}.{type(error).__name__}: {error}"[:500])
        if resident_bytes() - before > MAX_GROWTH_BYTES:
            unexpected.append(f"damage {number}: the process grew to {resident_bytes() >> 20} MB")
            break
    channel.send(("done", unexpected, num_errors))


def read_copy(read, folder, random):
    """Reads a copy of the valid files, with damage in one of them unless `random` is None."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "valid", copy)
    if random is not None:
        files = sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size)
        path = files[int(random.integers(len(files)))]
        path.write_bytes(damage(path.read_bytes(), random))
    read(copy)


@pytest.mark.drill("fuzzing")
@pytest.mark.timeout(280)
@pytest.mark.parametrize("kind", WRITERS)
def test_damaged_files_are_read_or_raise_typed_errors(tmp_path, data, kind, drill_seed):
    number = None
    with process(read_damaged_files, kind, data, tmp_path, drill_seed) as (_, channel):
        while True:
            where = f"seed {drill_seed}, damage {number}"
            assert channel.poll(60 if number is not None else HANG_SECS), f"{where}: hangs for 60 s"
            try:
                message = channel.recv()
            except EOFError:
                pytest.fail(f"{where}: the process crashed")
            if isinstance(message, Exception):
                raise message
            if message[0] == "done":
                break
            number = message[1]
    _, unexpected, num_errors = message
    assert not unexpected, f"seed {drill_seed}: " + "\n".join(unexpected)
    assert num_errors, "no damage was noticed"
