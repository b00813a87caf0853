"""The search for Python 3.11 and its installation by the bridge of the notebooks, without kernels."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from notebook_format import BRIDGE

ROOT = Path(__file__).parent.parent.parent
#: A stand-in for uv that records its arguments, creates an interpreter, and fails if an argument is "broken".
UV = """#!/bin/sh
echo "$@" >>"$UV_LOG"
case "$*" in *broken*) echo "no network"; exit 2;; esac
if [ "$1" = venv ]; then for last; do :; done; mkdir -p "$last/bin"; touch "$last/bin/python"; fi
"""
#: A build backend that needs no packages.
BACKEND = """
import zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "rlds2reverb-0.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        wheel.writestr("rlds2reverb/__init__.py", "")
        wheel.writestr("rlds2reverb/cli.py", "")
        info = "rlds2reverb-0.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: rlds2reverb\\nVersion: 0.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    """Redirects the cache, and unsets the variables of the bridge."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RLDS2REVERB_PYTHON", raising=False)
    monkeypatch.delenv("RLDS2REVERB_WHEELS", raising=False)


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """Puts the stand-in for uv on the PATH, and returns a function that returns the recorded lines."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/uv").write_text(UV)
    (tmp_path / "bin/uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("UV_LOG", str(tmp_path / "log"))
    return lambda: (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []


@pytest.fixture
def checkout(tmp_path):
    """A checkout with an empty lock file."""
    (tmp_path / "checkout/requirements").mkdir(parents=True)
    (tmp_path / "checkout/requirements/py311.lock").write_text("")
    return tmp_path / "checkout"


def test_environment_is_created_from_the_lock_file_once(uv, checkout, tmp_path, capsys):
    folder = tmp_path / "cache/rlds2reverb/notebooks/python3.11"
    assert BRIDGE.create_environment(checkout) == folder / "bin/python"
    install = f"pip install --quiet --python {folder}/bin/python"
    assert uv() == [
        f"venv --quiet --python 3.11 {folder}",
        f"{install} --require-hashes -r {checkout}/requirements/py311.lock",
        f"{install} --no-deps --no-build-isolation {checkout}",
    ]
    assert "Installing Python 3.11 and rlds2reverb" in capsys.readouterr().out
    BRIDGE.create_environment(checkout)
    assert len(uv()) == 3 and not capsys.readouterr().out


def test_environment_is_created_again_when_the_lock_file_changes(uv, checkout):
    BRIDGE.create_environment(checkout)
    (checkout / "requirements/py311.lock").write_text("# changed")
    BRIDGE.create_environment(checkout)
    assert len(uv()) == 6


def test_folder_of_wheels_replaces_the_network(uv, checkout, monkeypatch):
    monkeypatch.setenv("RLDS2REVERB_WHEELS", "/wheels")
    BRIDGE.create_environment(checkout)
    venv, *installs = uv()
    assert "--offline" in venv
    assert all("--offline --no-index --find-links /wheels" in line for line in installs)


def test_failed_installation_raises_with_advice_and_is_repeated(uv, checkout, monkeypatch):
    monkeypatch.setenv("RLDS2REVERB_WHEELS", "/broken")
    with pytest.raises(
        BRIDGE.BridgeError, match=r"connect to the network .* or set RLDS2REVERB_PYTHON.*\n.*\nno network"
    ):
        BRIDGE.create_environment(checkout)
    monkeypatch.delenv("RLDS2REVERB_WHEELS")
    assert BRIDGE.create_environment(checkout).is_file()


def test_uv_is_installed_with_pip_when_it_is_missing(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(BRIDGE, "_call", lambda *command: calls.append(command))
    monkeypatch.setattr(BRIDGE.shutil, "which", lambda name: None)
    monkeypatch.setattr(BRIDGE.sys, "executable", str(tmp_path / "python"))
    own = tmp_path / "cache/rlds2reverb/notebooks/uv"
    assert BRIDGE.find_uv([]) == f"{own}/bin/uv"
    assert calls == [(f"{tmp_path}/python", "-m", "pip", "install", "--quiet", "--target", str(own), "uv")]


@pytest.mark.parametrize("system, machine", [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")])
def test_other_platforms_raise_with_advice(system, machine, monkeypatch):
    monkeypatch.setattr(BRIDGE.sys, "platform", system)
    monkeypatch.setattr(BRIDGE.platform, "machine", lambda: machine)
    with pytest.raises(
        BRIDGE.BridgeError, match=rf"requires Linux on x86-64, but .* {machine}; open the notebook in Colab"
    ):
        BRIDGE.find_python()


def test_existing_interpreter_is_used_without_an_installation(uv, monkeypatch):
    monkeypatch.setenv("RLDS2REVERB_PYTHON", sys.executable)
    assert BRIDGE.find_python() == sys.executable and uv() == []


def test_environment_of_the_checkout_is_used_if_it_is_complete(uv, checkout, monkeypatch):
    own = checkout / ".venv/bin/python"
    own.parent.mkdir(parents=True)
    own.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    own.chmod(0o755)
    monkeypatch.setattr(BRIDGE, "find_checkout", lambda: checkout)
    assert BRIDGE.find_python() == str(own) and uv() == []
    own.write_text("#!/bin/sh\necho '[\"ipykernel\"]'\n")
    assert BRIDGE.find_python().endswith("notebooks/python3.11/bin/python") and uv()


def test_module_needs_a_notebook_where_python_cannot_run_the_cells(monkeypatch):
    monkeypatch.setattr(BRIDGE, "find_missing", lambda: ["Python 3.11"])
    with pytest.raises(BRIDGE.BridgeError, match="must be called in a cell of a notebook"):
        BRIDGE.start()


def test_start_returns_the_datasets_on_a_python_that_has_the_package(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert BRIDGE.start() == ROOT / "tests/data"
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"answers, from {sys.prefix}.")
    assert shutil.which("rlds2reverb") == f"{sys.prefix}/bin/rlds2reverb"


def test_repository_is_cloned_once_when_the_module_is_outside_of_it(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    (repository / "tests/data/d4rl").mkdir(parents=True)
    (repository / "tests/data/d4rl/file").write_text("data")
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for command in (["init", "-q", "-b", BRIDGE.BRANCH], ["add", "."], [*author, "commit", "-q", "-m", "Data"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{repository.as_uri()}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", f"{BRIDGE.REPOSITORY}.git")
    monkeypatch.setattr(BRIDGE, "__file__", str(tmp_path / "content/kernel_bridge.py"))
    clone = BRIDGE.find_checkout()
    assert (clone / "tests/data/d4rl/file").read_text() == "data"
    shutil.rmtree(repository)
    assert BRIDGE.find_checkout() == clone


def write_wheel(folder, name):
    """Writes a wheel with one empty module, and returns the line for it in a lock file."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", tag)
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.mark.slow
def test_wheels_are_installed_offline_with_uv(tmp_path, checkout, monkeypatch):
    pytest.importorskip("uv")
    if not shutil.which("python3.11"):
        pytest.skip("requires python3.11 on the PATH")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    lock = write_wheel(wheels, "ipykernel") + write_wheel(wheels, "dependency")
    (checkout / "requirements/py311.lock").write_text(lock)
    (checkout / "backend.py").write_text(BACKEND)
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (checkout / "pyproject.toml").write_text(build + '[project]\nname = "rlds2reverb"\nversion = "0.0"\n')
    monkeypatch.setenv("RLDS2REVERB_WHEELS", str(wheels))
    python = BRIDGE.create_environment(checkout)
    process = subprocess.run([python, BRIDGE.__file__], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_locked_packages_are_installed_with_uv(tmp_path):
    try:
        python = BRIDGE.create_environment(ROOT)
    except BRIDGE.BridgeError as error:
        if re.search("dns error|error sending request|tcp connect|Failed to fetch|timed out", str(error)):
            pytest.skip(f"requires a package registry: {str(error)[-300:]}")
        raise
    program = "import rlds2reverb, ipykernel, tensorflow, typing_extensions; print(rlds2reverb.load.__name__)"
    process = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout == "load\n"
    shutil.rmtree(tmp_path / "cache")  # 1.5 GB.
