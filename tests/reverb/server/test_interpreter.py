"""Tests of the choice of the servers' interpreter, and of the environment that is made for them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.reverb.server import interpreter
from rlds2reverb.reverb.server.interpreter import LOCK_FILE, VARIABLE, find_server_python

FAKE_UV = """#!/bin/sh
echo "$@" >> "$LOG"
if [ "$1" = venv ]; then
    for target; do :; done
    mkdir -p "$target/bin" && echo python > "$target/bin/python"
else
    sleep 0.5
    if [ -n "$FAIL" ]; then echo "error: Failed to fetch: no network" >&2; exit 2; fi
fi
"""


@pytest.fixture
def no_reverb(monkeypatch):
    """Makes this process believe that it has no dm-reverb."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "reverb" else find_spec(name))
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def fake_uv(no_reverb, tmp_path, monkeypatch):
    """Puts an installer on the PATH that only logs what it is asked for; returns the log."""
    tool = tmp_path / "bin" / "uv"
    tool.parent.mkdir()
    tool.write_text(FAKE_UV)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "log"


def test_running_interpreter_is_used_if_it_has_dm_reverb(monkeypatch):
    pytest.importorskip("reverb")
    monkeypatch.setenv(VARIABLE, "/other/python")
    python, paths = find_server_python()
    assert python == sys.executable and os.path.abspath(sys.path[-1]) in paths


def test_named_interpreter_is_used(no_reverb, monkeypatch):
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert find_server_python() == (sys.executable, [])
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    with pytest.raises(ServerUnavailableError, match=f"{VARIABLE} must be the path of a Python interpreter, got"):
        find_server_python()


def test_environment_is_created_once(fake_uv, tmp_path, capfd):
    python, paths = find_server_python()
    assert Path(python).read_text() == "python\n" and paths == []
    assert Path(python).parents[2] == tmp_path / "cache/rlds2reverb"
    created, installed = fake_uv.read_text().splitlines()
    assert "--python 3.11" in created
    assert "--require-hashes --only-binary :all:" in installed and str(LOCK_FILE) in installed
    assert "creating an environment for Reverb servers in" in capfd.readouterr().err
    assert find_server_python() == (python, [])
    assert len(fake_uv.read_text().splitlines()) == 2 and not capfd.readouterr().err


def test_two_processes_create_one_environment(fake_uv):
    script = "import importlib.util; importlib.util.find_spec = lambda name: None; import rlds2reverb.reverb.server.interpreter"
    script += "; print(rlds2reverb.reverb.server.interpreter.find_server_python()[0])"
    commands = [sys.executable, "-c", script]
    running = [subprocess.Popen(commands, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
    one, two = (process.communicate(timeout=100)[0] for process in running)
    assert one == two and one
    assert len(fake_uv.read_text().splitlines()) == 2


def test_failed_installation_raises_and_leaves_nothing(fake_uv, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(
        ServerUnavailableError, match=r"Failed to fetch: no network\. With a network and uv or Python 3"
    ):
        find_server_python()
    assert [path.suffix for path in (tmp_path / "cache/rlds2reverb").iterdir()] == [".lock"]
    monkeypatch.delenv("FAIL")
    assert find_server_python()


def test_machine_without_uv_and_python_raises(fake_uv, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailableError, match=f"neither uv nor python3.11 is on the PATH.*set {VARIABLE}"):
        find_server_python()


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_other_platform_raises(fake_uv, monkeypatch, system, machine):
    monkeypatch.setattr(interpreter.sys, "platform", system)
    monkeypatch.setattr(interpreter.platform, "machine", lambda: machine)
    with pytest.raises(ServerUnavailableError, match=f"on Linux x86-64 only, and this is .* {machine}; start one"):
        find_server_python()
