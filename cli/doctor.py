"""`rlds2reverb doctor`: whether the installation works, and what to do where it does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import platform
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import click

from . import output
from .options import json_option
from .quiet import import_quietly, quiet_imports

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "broken": "[red]broken[/]"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at: 'ok', 'note' or 'broken', what was seen, and the mend."""

    what: str
    state: str
    seen: str
    mend: str = ""


@click.command()
@click.option("--port", default=8000, show_default=True, help="Port to look at.")
@json_option
def doctor(port: int, as_json: bool) -> int:
    """Check the installation: versions and pins, each library used once, the port, and what is exposed.

    Exit code 1 if anything is broken.
    """
    findings = [*_platform(), *_pins(), *_libraries(), _port(port), _exposure(port)]
    broken = [finding for finding in findings if finding.state == "broken"]
    if as_json:
        output.print_json({"healthy": not broken, "findings": [asdict(finding) for finding in findings]})
        return 1 if broken else 0
    table = output.Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "what", "seen", "mend"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        table.add_row(
            _MARKS[finding.state], *(output.plain(text) for text in (finding.what, finding.seen, finding.mend))
        )
    output.console().print(table)
    print(f"\n{len(broken)} broken" if broken else "\nall is well")
    return 1 if broken else 0


def _platform() -> Iterator[Finding]:
    version = platform.python_version()
    fits = sys.version_info[:2] in ((3, 10), (3, 11)) and sys.platform == "linux"
    mend = "" if fits else "use Python 3.10 or 3.11 on Linux; dm-reverb 0.14.0 has no wheel for anything else"
    yield Finding("python", "ok" if fits else "broken", f"{version} on {sys.platform}", mend)


def _pins() -> Iterator[Finding]:
    """Every requirement of ours against what is installed; `pip check` does not know of several of them."""
    from packaging.requirements import Requirement

    both = [name for name in ("tensorflow", "tensorflow-cpu") if _version(name)]
    if len(both) == 2:
        mend = "pip uninstall tensorflow tensorflow-cpu, then install one of them"
        yield Finding("tensorflow", "broken", "tensorflow and tensorflow-cpu are both installed", mend)
    for text in importlib.metadata.requires("rlds2reverb") or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = both[0] if requirement.name == "tensorflow" and both else requirement.name
        version = _version(name)
        if version is None:
            yield Finding(name, "broken", "not installed", f"pip install '{requirement}'")
        elif not requirement.specifier.contains(version, prereleases=True):
            yield Finding(name, "broken", version, f"pip install '{name}{requirement.specifier}'")
        else:
            yield Finding(name, "ok", version)
    minari = _version("minari")
    extra = "pip install 'rlds2reverb[minari]', to read Minari data sets"
    yield Finding("minari (optional)", "ok" if minari else "note", minari or "not installed", "" if minari else extra)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _libraries() -> Iterator[Finding]:
    uses: dict[str, tuple[Callable[[], str], str]] = {
        "TensorFlow works": (_use_tensorflow, "pip install tensorflow==2.15.1 (or tensorflow-cpu==2.15.1)"),
        "Reverb works": (_use_reverb, "pip install dm-reverb==0.14.0 beside TensorFlow 2.15.1; it loads with no other"),
        "TFDS works": (_use_tfds, "pip install 'tensorflow-metadata>=1.15,<1.18' importlib_resources"),
        "h5py works": (_use_h5py, "pip install --force-reinstall h5py"),
    }
    for what, (use, mend) in uses.items():
        try:
            with quiet_imports():
                seen = use()
            yield Finding(what, "ok", seen)
        except Exception as error:  # whatever a broken installation raises is the finding
            yield Finding(what, "broken", f"{type(error).__name__}: {error}", mend)


def _use_tensorflow() -> str:
    import_quietly("reverb", "tf_agents.trajectories")
    import tensorflow as tf

    if int(tf.reduce_sum(tf.constant([1, 2])) + tf.constant(1)) != 4:
        raise RuntimeError("1 + 2 + 1 is not 4")
    gpus = tf.config.list_physical_devices("GPU")
    return f"{tf.__version__}, {len(gpus)} GPUs"


def _use_reverb() -> str:
    import numpy as np

    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb.ingestion import ingest
    from rlds2reverb.tables import TableConfig

    flags = {name: np.array([name == "is_first", name == "is_last"]) for name in ("is_first", "is_last", "is_terminal")}
    numbers = {name: np.arange(2, dtype=np.float32) for name in ("observation", "action", "reward", "discount")}
    with ReplayServer([TableConfig()]) as server:
        ingest([{**numbers, **flags}], server.address, timeout_secs=10)
        observations = [float(step.data[1]) for step in next(iter(server.client.sample("replay")))]
        if observations != [0.0, 1.0]:
            raise RuntimeError(f"wrote the observations 0 and 1, read {observations}")
    return "one item written to a server and read back"


def _use_tfds() -> str:
    import tensorflow_datasets as tfds

    return f"builders load ({tfds.builder.__name__})"


def _use_h5py() -> str:
    import h5py

    with h5py.File(io.BytesIO(), "w") as file:
        file["x"] = [1, 2, 3]
        return f"HDF5 {h5py.version.hdf5_version}, {len(file['x'])} numbers written and read"


def _port(port: int) -> Finding:
    from rlds2reverb._server.ports import require_free_port
    from rlds2reverb.errors import InUse

    try:
        require_free_port(port)
        return Finding(f"port {port}", "ok", "free")
    except InUse as error:
        return Finding(f"port {port}", "note", str(error), "serve on another port, or stop what uses it")


def _exposure(port: int) -> Finding:
    addresses = sorted(
        {str(info[4][0]) for info in _own_addresses() if not str(info[4][0]).startswith(("127.", "::1"))}
    )
    reach = ", ".join(addresses) or "no address beyond this machine is known"
    return Finding(
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
