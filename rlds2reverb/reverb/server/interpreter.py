"""The Python interpreter of servers: the running one, one that the user names, or an environment made for servers."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.system.platform import cache_folder, lock_file

#: Names the interpreter of servers if the running one does not have dm-reverb.
VARIABLE = "RLDS2REVERB_SERVER_PYTHON"
#: What an environment for servers contains, with hashes; compiled from `requirements/server.in`.
LOCK_FILE = Path(__file__).parent.parent / "process" / "requirements.txt"
_PYTHON = "3.11"


def find_server_python() -> tuple[str, list[str]]:
    """Returns the interpreter that runs servers, and the paths that it imports modules from if not its own.

    If this interpreter has no dm-reverb, that is the one that the environment variable `RLDS2REVERB_SERVER_PYTHON`
    names, or else that of an environment in the user's cache, which the first call creates.

    Raises:
      ServerUnavailableError: If no interpreter is found; says how to get one.
    """
    if importlib.util.find_spec("reverb") is not None:
        return sys.executable, [os.path.abspath(path) for path in sys.path]
    if named := os.environ.get(VARIABLE):
        if shutil.which(named) is None:
            raise ServerUnavailableError(f"{VARIABLE} must be the path of a Python interpreter, got {named!r}")
        return named, []
    return str(_find_environment() / "bin" / "python"), []


def _find_environment() -> Path:
    """Returns the environment for servers, and creates it first if necessary."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ServerUnavailableError(
            f"Reverb servers run on Linux x86-64 only, and this is {platform.system()} {platform.machine()}; start one "
            "with the container image (see docs/versions.md) or on a Linux machine, and pass its address HOST:PORT"
        )
    digest = hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()[:12]
    cache = cache_folder()
    environment = cache / f"server-{digest}"
    if not environment.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{environment.name}.lock").open("w") as file:
            lock_file(file.fileno(), wait=True)  # The kernel releases the lock however this process ends.
            if not environment.is_dir():  # Another process may have created it in the meantime.
                _create(environment)
    return environment


def _create(environment: Path) -> None:
    """Creates the environment in a temporary folder next to it, and then moves it into place."""
    print(
        f"creating an environment for Reverb servers in {environment}: once, about 300 MB to download, "
        "half a minute to two minutes ...",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix=f"{environment.name}-", dir=environment.parent) as folder:
        target = Path(folder) / "environment"
        for command in _make_commands(str(target)):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
                raise _creation_error(f"'{' '.join(command)}' failed: {lines[-1].strip()}")
        os.rename(target, environment)


def _make_commands(target: str) -> Sequence[Sequence[str]]:
    python = f"{target}/bin/python"
    install = ["install", "--quiet", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK_FILE)]
    if uv := shutil.which("uv"):
        return (
            [uv, "venv", "--quiet", "--python", _PYTHON, target],
            [uv, "pip", *install, "--python", python, "--compile-bytecode"],
        )
    if interpreter := shutil.which(f"python{_PYTHON}"):
        return [interpreter, "-m", "venv", target], [python, "-m", "pip", *install]
    raise _creation_error(f"neither uv nor python{_PYTHON} is on the PATH")


def _creation_error(reason: str) -> ServerUnavailableError:
    return ServerUnavailableError(
        f"an environment for Reverb servers cannot be created: {reason}. With a network and uv or Python {_PYTHON}, "
        f"try again; or run 'python{_PYTHON} -m pip install -r {LOCK_FILE}' in an environment and set {VARIABLE} to "
        "its interpreter; or use a server on another machine, by its address HOST:PORT"
    )
