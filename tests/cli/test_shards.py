"""Tests of directories that `convert --shards` writes: it continues them, and commands accept them where they are whole."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from rlds2reverb.cli import run

PENDULUM = "d4rl/pendulum_mixed-v2.hdf5"


def call(capsys, *arguments):
    code = run([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def written(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("shards") / "out"
    assert run(["convert", str(data / PENDULUM), "--out", str(path), "--shards", "3", "--n-step", "1"]) == 0
    return path


@pytest.fixture
def shards(written, tmp_path):
    return shutil.copytree(written, tmp_path / "out")


def convert(capsys, data, out, *options, num_shards=3):
    shards = () if num_shards is None else ("--shards", num_shards)
    return call(capsys, "convert", data / PENDULUM, "--out", out, "--n-step", 1, *shards, *options)


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.slow), ("--verify",)])
def test_complete_shards_are_only_verified(data, capsys, shards, options):
    before = {path: path.stat().st_mtime_ns for path in shards.rglob("*") if path.is_file()}
    code, out, err = convert(capsys, data, shards, *options)
    assert (code, err) == (0, "") and "nothing to write" in out
    assert ("16,000 items read back" in out) is bool(options)
    assert before == {path: path.stat().st_mtime_ns for path in shards.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("num_written", [0, 1, 2])
@pytest.mark.drill("F4")
def test_killed_conversion_is_continued(data, capsys, shards, tmp_path, num_written):
    program = """
import os, signal, sys
from rlds2reverb.cli import run
from rlds2reverb.reverb.writing.directory_destination import DirectoryDestination

write = DirectoryDestination.write
def write_and_kill(self, *arguments):
    if self.directory.name == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, *arguments)
DirectoryDestination.write = write_and_kill
run(sys.argv[2:])
"""
    out = tmp_path / "killed"
    arguments = ["convert", data / PENDULUM, "--out", out, "--n-step", "1", "--shards", "3"]
    command = [sys.executable, "-c", program, f"shard_{num_written}", *map(str, arguments)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert sorted(os.listdir(out)) == sorted(
        [*(f"shard_{n}" for n in range(num_written)), f"shard_{num_written}.partial"]
    )
    code, _, err = call(capsys, "serve", out)
    assert code == 2 and f"killed is incomplete: shard_{num_written}" in err
    assert convert(capsys, data, out)[0] == 0
    for path in shards.rglob("*"):
        if path.is_file():
            assert (out / path.relative_to(shards)).read_bytes() == path.read_bytes()
    assert len(list(out.rglob("*"))) == len(list(shards.rglob("*")))


@pytest.mark.parametrize(
    ("path", "num_shards", "message"),
    [
        ("", 1, "out contains shards; pass --shards 3, or pass a new directory"),
        ("", None, "out contains shards; pass --shards 3, or pass a new directory"),
        ("shard_0", 3, "shard_0 contains tables without shards; leave out --shards, or pass a new directory"),
    ],
)
def test_different_number_of_shards_changes_nothing(data, capsys, shards, path, num_shards, message):
    shutil.rmtree(shards / ("shard_1" if path else "shard_0"))
    before = sorted(shards.rglob("*"))
    code, _, err = convert(capsys, data, shards / path, num_shards=num_shards)
    assert code == 1 and message in err and sorted(shards.rglob("*")) == before


def test_too_many_shards_are_reported_before_anything_is_written(data, capsys, tmp_path):
    code, _, err = convert(capsys, data, tmp_path / "out", num_shards=200)
    assert code == 1 and "of 200 would be empty, because " in err and "only 80 with steps; use fewer shards" in err
    assert not list(tmp_path.iterdir())


def test_shards_are_inspected_and_validated_as_a_whole(capsys, shards, tmp_path):
    code, out, err = call(capsys, "inspect", shards, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "") and [document[name] for name in ("episodes", "items", "shards")] == [80, 16000, 3]
    parts = [json.loads(call(capsys, "inspect", shards / f"shard_{n}", "--json")[1]) for n in range(3)]
    for name in ("size_bytes", "memory_bytes"):
        assert document[name] == sum(part[name] for part in parts)
    assert "shards  3" in call(capsys, "inspect", shards)[1]
    assert call(capsys, "validate", shards)[0] == 0
    (items,) = shards.glob("shard_1/checkpoints/*/items.tfrecord")
    items.write_bytes(items.read_bytes()[:-7])
    code, _, err = call(capsys, "validate", shards)
    assert code == 2 and "shard_1" in err and "items.tfrecord is damaged" in err


def test_incomplete_shards_are_refused(capsys, shards, tmp_path, monkeypatch):
    monkeypatch.setattr("rlds2reverb.cli.serve.serve_until_end", pytest.fail)
    code, _, err = call(capsys, "serve", shards, "--shards", 2)
    assert code == 1 and "out contains 3 shards; leave out --shards" in err
    shutil.rmtree(shards / "shard_1")
    train = ("train", "--algo", "td3_bc", "--run-dir", tmp_path / "run", "--env", "none", "--data")
    for command in (("serve",), ("inspect",), ("validate",), train):
        code, _, err = call(capsys, *command, shards)
        assert code == 2 and "out is incomplete: shard_1 of its 3 shards is missing; repeat the conversion" in err


@pytest.mark.parametrize("path", ["", "shard_0"])
def test_tables_are_not_converted_again(capsys, shards, tmp_path, path):
    code, _, err = call(capsys, "convert", shards / path, "--format", "d4rl", "--out", tmp_path / "a.hdf5")
    assert code == 2 and "contains Reverb tables; pass the dataset that they were converted from" in err


@pytest.mark.slow
def test_training_from_shards_continues_with_their_priorities(capsys, shards, tmp_path):
    command = ("train", "--algo", "td3_bc", "--data", shards, "--run-dir", tmp_path / "run", "--env", "none")
    command += ("--sampler", "prioritized", "--action-bounds", -2, 2, "--steps")
    assert call(capsys, *command, 20)[0] == 0
    assert len(list(tmp_path.glob("run/checkpoints/*20/replay/shard_*"))) == 3
    code, _, err = call(capsys, *command, 40)
    assert code == 0 and "continuing from update 20" in err
