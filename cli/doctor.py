"""`rlds2reverb doctor`: checks the installation and prints how to fix it.

The command must run even if others cannot. It therefore imports no module that requires TensorFlow or Reverb, and tries
the libraries in a subprocess.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

import click

from . import number_types, output
from .output import json_option
from .quiet import status

_MARKS = {"ok": "[green]ok    [/]", "note": "[yellow]note  [/]", "broken": "[red]broken[/]"}

#: The name of the finding of each trial, and the command that repairs the library.
_TRIALS = {
    "h5py": ("h5py works", "pip install --force-reinstall --no-deps h5py"),
    "tensorflow": ("TensorFlow works", "pip install 'tensorflow==2.15.1' 'numpy<2' 'ml-dtypes~=0.3.1'"),
    "tf_agents": ("TF-Agents works", "pip install --no-deps 'tf-agents==0.19.0'"),
    "tfds": ("TFDS works", "pip install 'tensorflow-metadata>=1.15,<1.18' importlib_resources"),
    "reverb": ("Reverb works", "pip install 'dm-reverb==0.14.0' 'tensorflow==2.15.1' (it loads with no other version)"),
}

if sys.version_info >= (3, 12):  # For which dm-reverb has no wheels.
    del _TRIALS["reverb"]
    _TRIALS["tensorflow"] = ("TensorFlow works", "pip install 'tensorflow>=2.19,<2.22' 'tf-keras>=2.19,<2.22'")
    _TRIALS["tfds"] = ("TFDS works", "pip install tensorflow-metadata importlib_resources")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
      name: name of the check.
      state: 'ok', 'note' or 'broken'.
      result: the result, such as a version.
      fix: the command or advice that fixes the problem; empty if there is none.
    """

    name: str
    state: str
    result: str
    fix: str = ""


@click.command()
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=number_types.port,
    metavar="PORT",
    help="Port that a server will use.",
)
@click.option("--quick", is_flag=True, help="Check versions only, without loading the libraries (about a second).")
@click.option(
    "--timeout",
    default=120.0,
    show_default=True,
    type=number_types.seconds,
    metavar="SECONDS",
    help="Maximum time to load and try all libraries.",
)
@json_option
def doctor(port: int, quick: bool, timeout: float, as_json: bool) -> int:
    """Check the installation, and print how to fix what is broken.

    \b
    Examples:
      rlds2reverb doctor
      rlds2reverb doctor --quick

    It compares the installed versions with the requirements of rlds2reverb and of its dependencies, uses each library
    once in a subprocess (so that a crash is reported like any other failure), and checks whether the port is free and
    reachable from other machines. The exit code is 1 if anything is broken, else 0.
    """
    findings = []
    for finding in _run_checks(port, quick=quick, timeout_secs=timeout):
        findings.append(finding)
        if not as_json:
            _print_finding(finding)
    broken = [finding for finding in findings if finding.state == "broken"]
    if as_json:
        output.print_json({"healthy": not broken, "findings": [asdict(finding) for finding in findings]})
    elif broken:
        print(
            f"\n{output.count(len(broken), 'problem')} found; run the commands above, or install the whole lock file "
            f"in the checkout: pip install --no-deps -r requirements/py3{sys.version_info[1]}.lock"
        )
    else:
        print("\nno problems found" + (" (libraries were not loaded; leave out --quick to try them)" if quick else ""))
    return 1 if broken else 0


def _run_checks(port: int, *, quick: bool, timeout_secs: float) -> Iterator[Finding]:
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("python", _check_python),
        ("requirements", _check_pins),
        ("minari (optional)", _check_minari),
        ("evaluation (optional)", _check_evaluation),
        (f"port {port}", functools.partial(_check_port, port)),
        ("exposure", functools.partial(_check_exposure, port)),
    ]
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # A check that fails must not prevent the others.
            yield Finding(name, "broken", f"cannot be checked: {type(error).__name__}: {error}", "pip install .")
    if not quick:
        yield from _try_libraries(timeout_secs)


def _print_finding(finding: Finding) -> None:
    out = output.console()
    line = f"[bold]{output.escape_markup(finding.name)}[/]: {output.escape_markup(finding.result)}"
    out.print(f"{_MARKS[finding.state]}  {line}", soft_wrap=True)
    if finding.fix:
        out.print(f"        {output.escape_markup(finding.fix)}", soft_wrap=True)


def _check_python() -> Iterator[Finding]:
    version = platform.python_version()
    is_supported = (3, 10) <= sys.version_info[:2] <= (3, 13)
    fix = "" if is_supported else "use Python 3.10 to 3.13"
    yield Finding("python", "ok" if is_supported else "broken", f"{version} on {sys.platform}", fix)


def _check_pins() -> Iterator[Finding]:
    """Yields a finding per requirement of rlds2reverb, and one per violated requirement of its dependencies."""
    from .pins import installed_version, iterate_pins

    if installed_version("tensorflow") and installed_version("tensorflow-cpu"):
        fix = "pip uninstall tensorflow tensorflow-cpu, then install one of them"
        yield Finding("tensorflow and tensorflow-cpu", "broken", "both are installed", fix)
    num_indirect = num_violated = 0
    optional = {"minari": "minari", "mujoco": "eval"}
    extras = frozenset(extra for name, extra in optional.items() if installed_version(name))
    for pin in iterate_pins("rlds2reverb", extras=extras):
        is_direct = pin.required_by.startswith("rlds2reverb ")
        num_indirect += not is_direct
        version = pin.version or "not installed"
        if not pin.is_satisfied:
            num_violated += not is_direct
            result = f"{version}; {pin.required_by} requires {pin.specifier or 'it'}"
            yield Finding(pin.name, "broken", result, f"pip install '{pin.name}{pin.specifier}'")
        elif is_direct:
            yield Finding(pin.name, "ok", version)
    result = f"all {num_indirect} satisfied"
    if num_violated:
        result = f"{num_violated} of {num_indirect} violated, see above"
    yield Finding("indirect requirements", "note" if num_violated else "ok", result)


def _check_minari() -> Iterator[Finding]:
    from .pins import installed_version

    version, hub = installed_version("minari"), installed_version("huggingface-hub")
    fix = "" if version and hub else "pip install '.[minari]' in the checkout"
    result = version or "not installed; needed to read Minari datasets"
    if version and not hub:
        result = f"{version} without huggingface-hub; needed to download Minari datasets"
    yield Finding("minari (optional)", "note" if fix else "ok", result, fix)


def _check_evaluation() -> Iterator[Finding]:
    from .pins import installed_version

    missing = [name for name in ("gymnasium", "mujoco") if not installed_version(name)]
    fix = "pip install '.[eval]' in the checkout" if missing else ""
    result = f"gymnasium {installed_version('gymnasium')}, mujoco {installed_version('mujoco')}"
    if missing:
        result = f"{' and '.join(missing)} not installed; needed to evaluate policies"
    yield Finding("evaluation (optional)", "note" if missing else "ok", result, fix)


def _try_libraries(timeout_secs: float) -> Iterator[Finding]:
    """Uses the libraries in a subprocess; after a crash, the remaining ones are tried in a new subprocess."""
    names = list(_TRIALS)
    while names:
        with status("using each library once"):
            outcomes, end, timed_out = _run_trials(names, timeout_secs)
        for name, outcome in zip(names, outcomes, strict=False):
            yield _make_finding(name, outcome)
        names = names[len(outcomes) :]
        if names:
            yield _make_finding(names.pop(0), {"error": end})
        if timed_out:
            for name in names:
                yield _make_finding(name, {"error": "not tried, because the previous library timed out"})
            return


def _make_finding(library: str, outcome: dict[str, str]) -> Finding:
    from .pins import installed_version

    name, fix = _TRIALS[library]
    if installed_version("tensorflow-cpu"):  # `tensorflow` beside it would break both.
        fix = fix.replace("'tensorflow=", "'tensorflow-cpu=").replace("'tensorflow>", "'tensorflow-cpu>")
    if "error" in outcome:
        return Finding(name, "broken", outcome["error"], fix)
    return Finding(name, "ok", outcome["result"])


def _run_trials(names: list[str], timeout_secs: float) -> tuple[list[dict[str, str]], str, bool]:
    """Tries libraries in a subprocess; returns their outcomes, how it ended, and whether it timed out."""
    command = [sys.executable, "-m", "rlds2reverb.cli.trials", *names]
    try:
        # Modules in the current directory must not shadow the installation.
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout_secs, env=environment)
        printed, code, errors = run.stdout, run.returncode, run.stderr.strip()
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        code, errors = None, ""
    outcomes = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    end = f"took longer than {timeout_secs:g} s" if code is None else f"exited with code {code}"
    if code is not None and code < 0:
        end = f"crashed ({signal.Signals(-code).name})"
    return outcomes, end + (f": {errors.splitlines()[-1]}" if errors else ""), code is None


def _check_port(port: int) -> Iterator[Finding]:
    from rlds2reverb._server.ports import require_free_port
    from rlds2reverb.errors import ResourceInUseError

    try:
        require_free_port(port)
        yield Finding(f"port {port}", "ok", "free")
    except ResourceInUseError as error:
        yield Finding(f"port {port}", "note", str(error), "use another port, or stop the process that uses it")


def _check_exposure(port: int) -> Iterator[Finding]:
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        addresses = set()
    public = sorted(address for address in addresses if not address.startswith(("127.", "::1")))
    where = f" ({', '.join(public)})" if public else ""
    yield Finding(
        "exposure",
        "note",
        f"a Reverb server listens on all network interfaces{where} without authentication",
        "pass --isolate to serve and convert --serve if all clients are on this machine; otherwise, allow only their "
        f"addresses to reach port {port} with a firewall",
    )
