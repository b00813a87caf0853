"""`rlds2reverb doctor`: whether the installation works, and what to do where it does not.

It has to run where nothing else does: it imports no library of ours that imports others, and uses them in a process of
their own.
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

from . import output
from .output import json_option
from .quiet import status

_MARKS = {"ok": "[green]ok    [/]", "note": "[yellow]note  [/]", "broken": "[red]broken[/]"}
_LOCK = "or install all of the lock file, in the checkout: pip install --no-deps -r requirements/py3{}.lock"

#: What each trial shows to work, and what to install where it fails.
_TRIALS = {
    "h5py": ("h5py works", "pip install --force-reinstall --no-deps h5py"),
    "tensorflow": ("TensorFlow works", "pip install 'tensorflow==2.15.1' 'numpy<2' 'ml-dtypes~=0.3.1'"),
    "tf_agents": ("TF-Agents works", "pip install 'tf-agents==0.19.0' 'tensorflow==2.15.1'"),
    "tfds": ("TFDS works", "pip install 'tensorflow-metadata>=1.15,<1.18' importlib_resources"),
    "reverb": ("Reverb works", "pip install 'dm-reverb==0.14.0' 'tensorflow==2.15.1'; it loads with no other"),
}


@dataclass(frozen=True)
class Finding:
    """One thing looked at: 'ok', 'note' or 'broken', what was seen, and the mend."""

    what: str
    state: str
    seen: str
    mend: str = ""


@click.command()
@click.option("--port", default=8000, show_default=True, help="Port to look at.")
@click.option("--quick", is_flag=True, help="Do not use the libraries: no TensorFlow, about a second.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds that the libraries may take to work once.")
@json_option
def doctor(port: int, quick: bool, timeout: float, as_json: bool) -> int:
    """Check the installation: versions and pins, each library used once, the port, and what is exposed.

    Each line is printed as soon as it is known. The pins of what we require are checked as well. Libraries are used in
    a process of their own, so that one that crashes is reported like the others. Exit code 1 if anything is broken.
    """
    findings = []
    for finding in _findings(port, quick=quick, timeout_secs=timeout):
        findings.append(finding)
        if not as_json:
            _print(finding)
    broken = [finding for finding in findings if finding.state == "broken"]
    if as_json:
        output.print_json({"healthy": not broken, "findings": [asdict(finding) for finding in findings]})
    elif broken:
        print(f"\n{len(broken)} broken; mend these, {_LOCK.format(sys.version_info[1])}")
    else:
        print("\nall is well" + (", as far as can be seen without using the libraries" if quick else ""))
    return 1 if broken else 0


def _findings(port: int, *, quick: bool, timeout_secs: float) -> Iterator[Finding]:
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("python", _platform),
        ("requirements", _pins),
        ("minari (optional)", _minari),
        ("evaluation (optional)", _evaluation),
        (f"port {port}", functools.partial(_port, port)),
        ("exposure", functools.partial(_exposure, port)),
    ]
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # a check that cannot be made must not keep the others from being made
            yield Finding(name, "broken", f"cannot be checked: {type(error).__name__}: {error}", "pip install .")
    if not quick:
        yield from _trials(timeout_secs)


def _print(finding: Finding) -> None:
    out = output.console()
    seen = f"[bold]{output.plain(finding.what)}[/]: {output.plain(finding.seen)}"
    out.print(f"{_MARKS[finding.state]}  {seen}", soft_wrap=True)
    if finding.mend:
        out.print(f"        {output.plain(finding.mend)}", soft_wrap=True)


def _platform() -> Iterator[Finding]:
    version = platform.python_version()
    fits = sys.version_info[:2] in ((3, 10), (3, 11)) and sys.platform == "linux"
    mend = "" if fits else "use Python 3.10 or 3.11 on Linux; dm-reverb 0.14.0 has no wheel for anything else"
    yield Finding("python", "ok" if fits else "broken", f"{version} on {sys.platform}", mend)


def _pins() -> Iterator[Finding]:
    """Our requirements, each; of those of other packages the ones that do not hold, and how many there are."""
    from .pins import installed_version, pins_of

    if installed_version("tensorflow") and installed_version("tensorflow-cpu"):
        mend = "pip uninstall tensorflow tensorflow-cpu, then install one of them"
        yield Finding("tensorflow and tensorflow-cpu", "broken", "both are installed", mend)
    num_others = 0
    optional = {"minari": "minari", "mujoco": "eval"}
    extras = frozenset(extra for name, extra in optional.items() if installed_version(name))
    for pin in pins_of("rlds2reverb", extras=extras):
        ours = pin.needed_by.startswith("rlds2reverb ")
        num_others += not ours
        if ours or not pin.holds:
            needed = f"{pin.needed_by} needs {pin.specifier or 'it'}"
            found = pin.version or "not installed"
            state, what = ("ok", found) if pin.holds else ("broken", f"{found}; {needed}")
            yield Finding(pin.name, state, what, "" if pin.holds else f"pip install '{pin.name}{pin.specifier}'")
    yield Finding("their requirements", "ok", f"{num_others} looked at; those that do not hold are above")


def _minari() -> Iterator[Finding]:
    from .pins import installed_version

    version, hub = installed_version("minari"), installed_version("huggingface-hub")
    mend = "" if version and hub else "pip install '.[minari]', in the checkout"
    if version and not hub:
        yield Finding("minari (optional)", "note", f"{version}, without huggingface-hub: it cannot download", mend)
    else:
        seen = version or "not installed; it reads Minari data sets"
        yield Finding("minari (optional)", "ok" if version else "note", seen, mend)


def _evaluation() -> Iterator[Finding]:
    from .pins import installed_version

    missing = [name for name in ("gymnasium", "mujoco") if not installed_version(name)]
    mend = "pip install '.[eval]', in the checkout" if missing else ""
    seen = f"gymnasium {installed_version('gymnasium')}, mujoco {installed_version('mujoco')}"
    if missing:
        seen = f"{' and '.join(missing)} not installed; policies are evaluated in their environments"
    yield Finding("evaluation (optional)", "note" if missing else "ok", seen, mend)


def _trials(timeout_secs: float) -> Iterator[Finding]:
    """Uses the libraries in another process; one that ends it is reported, and the rest is tried in a new one."""
    left = list(_TRIALS)
    while left:
        with status("using each library once"):
            results, end, timed_out = _run_trials(left, timeout_secs)
        for name, result in zip(left, results, strict=False):
            yield _trial_finding(name, result)
        left = left[len(results) :]
        if left:
            yield _trial_finding(left.pop(0), {"error": end})
        if timed_out:
            for name in left:
                yield _trial_finding(name, {"error": "not tried, since the one before did not end"})
            return


def _trial_finding(name: str, result: dict[str, str]) -> Finding:
    what, mend = _TRIALS[name]
    if "error" in result:
        return Finding(what, "broken", result["error"], mend)
    return Finding(what, "ok", result["seen"])


def _run_trials(names: list[str], timeout_secs: float) -> tuple[list[dict[str, str]], str, bool]:
    """Returns the results of a process that tries these libraries, how it ended, and whether that was its deadline."""
    command = [sys.executable, "-m", "rlds2reverb.cli.trials", *names]
    try:
        # Modules in the current folder are not the user's installation.
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout_secs, env=environment)
        printed, code, errors = run.stdout, run.returncode, run.stderr.strip()
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        code, errors = None, ""
    results = []
    for line in printed.splitlines():
        if line.startswith("{"):
            results.append(json.loads(line))
    how = f"took longer than {timeout_secs:g} s" if code is None else f"ended its process with exit code {code}"
    if code is not None and code < 0:
        how = f"crashed ({signal.Signals(-code).name})"
    return results, how + (f": {errors.splitlines()[-1]}" if errors else ""), code is None


def _port(port: int) -> Iterator[Finding]:
    from rlds2reverb._server.ports import require_free_port
    from rlds2reverb.errors import ResourceInUseError

    try:
        require_free_port(port)
        yield Finding(f"port {port}", "ok", "free")
    except ResourceInUseError as error:
        yield Finding(f"port {port}", "note", str(error), "serve on another port, or stop what uses it")


def _exposure(port: int) -> Iterator[Finding]:
    addresses = sorted(
        {str(info[4][0]) for info in _own_addresses() if not str(info[4][0]).startswith(("127.", "::1"))}
    )
    reach = ", ".join(addresses) or "no address beyond this machine is known"
    yield Finding(
        "exposure",
        "note",
        f"a Reverb server listens on all interfaces without authentication; here: {reach}",
        f"let a firewall drop port {port} from outside, or run the server under systemd with IPAddressDeny=any and "
        "IPAddressAllow=localhost",
    )


def _own_addresses() -> list[tuple]:
    try:
        return socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return []
