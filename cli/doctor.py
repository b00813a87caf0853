"""`rlds2reverb doctor`: checks the installation and prints how to fix it.

The command must run even if others cannot. It therefore imports no module that requires TensorFlow or Reverb, and tries
the libraries in subprocesses.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec

import click

from rlds2reverb.system.installation import install_command

from . import output
from .declarations import flag, option
from .number_types import seconds
from .output import json_option
from .quiet import status

_MARKS = {"ok": "[green]ok   [/]", "info": "[yellow]info [/]", "error": "[red]error[/]"}
_REINSTALL = f"pip install --no-deps -r requirements/py3{sys.version_info[1]}.lock (in the checkout)"

#: Packages whose versions are printed if they are installed; `pip check` finds those that are missing.
_PACKAGES = (
    *("rlds2reverb", "tensorflow", "tensorflow-cpu", "tf-keras", "tf-agents", "dm-reverb", "tensorflow-datasets"),
    *("numpy", "h5py", "matplotlib"),
)
#: The extra of each optional package, and what it is needed for.
_OPTIONAL = {
    "gymnasium": ("eval", "to evaluate policies"),
    "mujoco": ("eval", "to evaluate policies"),
    "minari": ("minari", "to read Minari datasets"),
    "av": ("lerobot", "to read the videos of LeRobot datasets"),
    "huggingface-hub": ("minari", "to download Minari datasets"),
    "imageio-ffmpeg": ("film", "to write MP4 files"),
    "tf2onnx": ("onnx", "to export ONNX files"),
    "onnxruntime": ("onnx", "to run ONNX files"),
    "apache-beam": ("beam", "to convert on Apache Beam"),
    "ray": ("ray", "to train on a cluster"),
}
#: The first version of TensorFlow that works with NumPy 2.
_FIRST_WITH_NUMPY_2 = (2, 18)
#: Programs that use each library once and print the result. With an unsuitable tensorflow-metadata, TFDS imports as an
#: empty module; without importlib_resources, it cannot prepare datasets.
_TRIALS = {
    "h5py": "import h5py; print('HDF5', h5py.version.hdf5_version)",
    "TensorFlow": "import tensorflow as tf; tf.constant(1) + 1; "
    "print('works; number of GPUs:', len(tf.config.list_physical_devices('GPU')))",
    "TF-Agents": "import rlds2reverb, tf_agents.trajectories; print('works')",
    "TFDS": "import importlib_resources, tensorflow_datasets; tensorflow_datasets.load; print('works')",
}
if find_spec("rlds") and find_spec("reverb"):  # The package rlds imports Reverb.
    _TRIALS["RLDS"] = "import rlds; rlds.transformations.map_nested_steps; print('works')"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
      name: name of the check.
      state: 'ok', 'info' or 'error'.
      result: the result, such as a version.
      fix: the command or advice that fixes it; may be empty.
    """

    name: str
    state: str
    result: str
    fix: str = ""


@click.command()
@flag("--quick", help="Check versions only, without loading the libraries (a few seconds).")
@option("--timeout", default=120.0, type=seconds, help="Maximum time to try each library, and to start a server.")
@json_option
def doctor(quick: bool, timeout: float, as_json: bool) -> int:
    """Check the installation, and print how to fix what is broken.

    \b
    Examples:
      rlds2reverb doctor
      rlds2reverb doctor --quick

    It prints the versions of the main packages, runs pip check, uses each library once in a subprocess (so that a crash
    is reported like any other failure), and starts a server, writes an item to it and reads it back. A server of a
    Python without dm-reverb runs in its own environment, which is created if necessary. The exit code is 1 if
    there is an error, else 0.
    """
    findings = []
    for finding in _run_checks(quick=quick, timeout_secs=timeout):
        findings.append(finding)
        if not as_json:
            _print_finding(finding)
    errors = [finding for finding in findings if finding.state == "error"]
    if as_json:
        output.print_json({"healthy": not errors, "findings": [asdict(finding) for finding in findings]})
    elif errors:
        print(f"\n{output.count(len(errors), 'error')} found; run the commands above")
    else:
        print("\nno errors found" + (" (libraries were not loaded; leave out --quick to try them)" if quick else ""))
    return 1 if errors else 0


def _run_checks(*, quick: bool, timeout_secs: float) -> Iterator[Finding]:
    yield _check_python()
    yield from _check_versions()
    yield from _check_requirements()
    if not quick:
        for name, program in _TRIALS.items():
            yield _try(name, program, timeout_secs)
        yield check_server(timeout_secs)


def _print_finding(finding: Finding) -> None:
    out = output.console()
    line = f"[bold]{output.escape_markup(finding.name)}[/]: {output.escape_markup(finding.result)}"
    out.print(f"{_MARKS[finding.state]}  {line}", soft_wrap=True)
    if finding.fix:
        out.print(f"       {output.escape_markup(finding.fix)}", soft_wrap=True)


def _check_python() -> Finding:
    is_supported = (3, 10) <= sys.version_info[:2] <= (3, 13)
    fix = "" if is_supported else "use Python 3.10 to 3.13"
    version = f"{platform.python_version()} on {sys.platform}"
    return Finding("python", "ok" if is_supported else "error", version, fix)


def _check_versions() -> Iterator[Finding]:
    versions = {name: version for name in _PACKAGES if (version := _find_version(name))}
    for name, version in versions.items():
        yield Finding(name, "ok", version)
    if {"tensorflow", "tensorflow-cpu"} <= versions.keys():
        fix = "pip uninstall tensorflow tensorflow-cpu, then install one of them"
        yield Finding("tensorflow and tensorflow-cpu", "error", "both are installed", fix)
    yield from _check_pairs(versions)
    for name, (extra, purpose) in _OPTIONAL.items():
        if optional := _find_version(name):
            yield Finding(f"{name} (optional)", "ok", optional)
        else:
            needed = f"not installed; needed {purpose}"
            yield Finding(f"{name} (optional)", "info", needed, install_command(extra))


def _check_pairs(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yields a finding for each pair of installed packages that do not work together."""
    tensorflow = versions.get("tensorflow", versions.get("tensorflow-cpu", "99"))
    numpy = versions.get("numpy", "0")
    if _read_version(numpy) >= (2, 0) and _read_version(tensorflow) < _FIRST_WITH_NUMPY_2:
        result = f"NumPy {numpy} does not work with TensorFlow {tensorflow}, which was built for NumPy 1"
        yield Finding("numpy and tensorflow", "error", result, 'pip install "numpy<2"')
    if tensorflow != "99" and (triton := _find_version("triton")):
        result = f"triton {triton}, of a PyTorch for GPUs, can crash in a process that has loaded TensorFlow before it"
        fix = "begin programs that use both with `import triton`, or install PyTorch for CPUs (docs/versions.md)"
        yield Finding("torch and tensorflow", "info", result, fix)


def _read_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_requirements() -> Iterator[Finding]:
    """Yields a finding per violated requirement that `pip check` reports, which is an error if it is of rlds2reverb."""
    if _find_version("pip") is None:
        yield Finding("requirements", "info", "cannot be checked without pip", "uv pip check")
        return
    run = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    violated = [line for line in run.stdout.splitlines() if run.returncode and not _is_expected(line)]
    for line in violated:
        yield Finding("requirements", "error" if line.startswith("rlds2reverb ") else "info", line, _REINSTALL)
    if not violated:
        yield Finding("requirements", "ok", "satisfied")


def _is_expected(violation: str) -> bool:
    """Returns whether the lock files, too, violate a requirement."""
    if violation.startswith("tf-agents ") and sys.version_info >= (3, 12):  # Installed without its requirements.
        return True
    if " requires tensorflow, " in violation and _find_version("tensorflow-cpu"):
        return True
    return " requires libclang, " in violation  # TensorFlow uses it only to generate its own sources.


def check_server(timeout_secs: float) -> Finding:
    """Returns the result of starting and using a Reverb server on this machine."""
    from rlds2reverb.errors import ServerUnavailableError
    from rlds2reverb.reverb.server.interpreter import find_server_python

    try:
        python, _ = find_server_python()
    except ServerUnavailableError as error:
        return Finding("Reverb server", "error", str(error))
    program = "from rlds2reverb.cli.doctor import try_server; try_server()"
    return _try(f"Reverb server on {python}", program, timeout_secs)


def try_server() -> None:
    """Starts a server, writes one item and reads it back, and prints the result."""
    import numpy as np

    from rlds2reverb.datasets import load
    from rlds2reverb.ingestion import ingest
    from rlds2reverb.reverb.sampling import sample
    from rlds2reverb.reverb.server.replay_server import ReplayServer
    from rlds2reverb.types.tables import TableConfig, item_signature
    from rlds2reverb.types.trajectories import trajectory_spec

    numbers = np.arange(2, dtype=np.float32)
    source = load([{"observations": numbers, "actions": numbers[:1], "rewards": numbers[:1], "terminated": False}])
    with ReplayServer([TableConfig()], item_signature(trajectory_spec(source.step_spec), 2)) as server:
        ingest(source, server, timeout_secs=10)
        with sample(server.address, "replay", 1) as batches:
            observations = next(iter(batches)).data[1].ravel().tolist()
    if observations != [0.0, 1.0]:
        raise RuntimeError(f"wrote the observations 0 and 1, read {observations}")
    print("wrote an item and read it back")


def _try(name: str, program: str, timeout_secs: float) -> Finding:
    """Runs a program in a subprocess; its last line of output is the result."""
    # Modules in the current directory must not shadow the installation.
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    # Without destructors, which could crash after a successful trial.
    command = [sys.executable, "-c", f"import os, sys\n{program}\nsys.stdout.flush()\nos._exit(0)"]
    try:
        with status(f"trying {name}"):
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_secs, env=environment, check=False
            )
    except subprocess.TimeoutExpired:
        return Finding(name, "error", f"took longer than {timeout_secs:g} s", _REINSTALL)
    if run.returncode:
        code = run.returncode
        end = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"exited with code {code}"
        return Finding(name, "error", ": ".join([end, *run.stderr.strip().splitlines()[-1:]]), _REINSTALL)
    return Finding(name, "ok", run.stdout.strip().splitlines()[-1])
