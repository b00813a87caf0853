"""Runs a notebook on Python 3.11 when its own kernel is newer, as in Colab, because dm-reverb has no wheels for that.

`start()` does nothing on a kernel that can import rlds2reverb. On any other kernel, it finds an environment with
rlds2reverb (the checkout's `.venv` or a new one), starts an IPython kernel there, and sends all following cells to it:

    import kernel_bridge
    DATA = kernel_bridge.start()

Outputs, errors, `input()`, interrupts, completion, `?` and widgets pass through as if the notebook's own kernel
answered. A cell that begins with `%%outer` runs on the notebook's own kernel, which Colab's modules require.

Environment variables:
  RLDS2REVERB_PYTHON: an interpreter that has rlds2reverb and ipykernel; nothing is installed.
  RLDS2REVERB_WHEELS: a folder with the wheels of requirements/py311.lock, for an installation without a network.

The module needs only the standard library, IPython and jupyter_client, of any Python from 3.10.
"""

import asyncio
import atexit
import builtins
import contextlib
import fcntl
import getpass
import hashlib
import importlib.util
import json
import os
import platform
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = "https://github.com/rlds2reverb/rlds2reverb"
BRANCH = "main"
_RAW = f"{REPOSITORY.replace('github.com', 'raw.githubusercontent.com')}/{BRANCH}/notebooks"
#: The first code cell of every notebook.
FIRST_CELL = f"""\
# Runs the notebook on Python 3.11, even if this kernel is newer (as in Colab). DATA is a folder of small datasets.
try:
    import kernel_bridge
except ImportError:
    from urllib.request import urlretrieve

    name = "kernel_bridge.py"
    urlretrieve(f"{_RAW}/{{name}}", name)
    import kernel_bridge
DATA = kernel_bridge.start()"""

_REQUIRED = ("rlds2reverb.cli", "ipykernel")
#: Variables of the outer kernel that would break the inner one: other packages, and a matplotlib backend.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MPLBACKEND", "IPYTHONDIR")
#: Starts the inner kernel without configuration files, which may name classes of the outer environment (as in Colab).
_LAUNCH = """\
from ipykernel.kernelapp import IPKernelApp
IPKernelApp.load_config_file = lambda *args, **kwargs: None
IPKernelApp.launch_instance()"""
#: The channels of a kernel, in the order in which their messages are read: outputs before replies.
_CHANNELS = ("iopub", "stdin", "shell", "control")
_START_SECS = 120
_POLL_MS = 50
_NOTHING_FOUND = {
    "complete": {"status": "ok", "matches": [], "metadata": {}},
    "inspect": {"status": "ok", "found": False, "data": {}, "metadata": {}},
    "is_complete": {"status": "unknown"},
}

_bridge: "Bridge | None" = None


class BridgeError(RuntimeError):
    """An error whose message is shown without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class KernelDiedError(BridgeError):
    """The inner kernel ended while it ran a cell."""


class RemoteError(Exception):
    """An exception of the inner kernel, shown with the traceback from there."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content.get("evalue", ""))
        self._traceback = content.get("traceback", [])

    def _render_traceback_(self) -> list[str]:
        return self._traceback


def start() -> Path:
    """Makes Python 3.11 with rlds2reverb answer all following cells, and prints which Python that is.

    Returns:
      The folder of small datasets, `tests/data` of the repository, which is cloned if the module is not part of a
      checkout. `DATA` has the same value in the cells that follow.

    Raises:
      BridgeError: if no such Python can be found or installed; the message says what to do.
    """
    global _bridge
    if _bridge is not None:
        _bridge.close()
        _bridge = None
    if not find_missing():
        os.environ["PATH"] = _put_first_on_path(sys.executable)
        print(f"Python {platform.python_version()} answers, from {sys.prefix}.")
        return find_checkout() / "tests/data"
    shell = _find_shell()
    python = find_python()
    data = find_checkout() / "tests/data"
    _bridge = Bridge(shell, python, variables={"DATA": data})
    return data


def run(code: str, number: int) -> None:
    """Runs cell `In [number]` on the inner kernel; all cells are rewritten into calls of this function."""
    if _bridge is None:
        raise BridgeError("the connection to Python 3.11 is closed; run the first cell of the notebook again.")
    _bridge.run(code, number)


# Python 3.11: found, or installed.


def find_missing() -> list[str]:
    """Returns the modules that this interpreter would need to run the notebooks itself, or its version."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 11):
        return [f"Python 3.11 (it is {platform.python_version()})"]
    return [name for name in _REQUIRED if not _can_import(name)]


def _can_import(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def find_python() -> str:
    """Returns the interpreter RLDS2REVERB_PYTHON, that of the checkout's .venv, or that of a new environment."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise BridgeError(
            f"rlds2reverb requires Linux on x86-64, but this is {platform.system()} on {platform.machine()}; "
            "open the notebook in Colab, or start Jupyter in a Linux container or WSL 2."
        )
    if python := os.environ.get("RLDS2REVERB_PYTHON"):
        if missing := _ask_what_is_missing(python):
            raise BridgeError(f"RLDS2REVERB_PYTHON is {python!r}, which does not have {missing}; install it there.")
        return python
    checkout = find_checkout()
    own = checkout / ".venv/bin/python"
    if own.is_file() and not _ask_what_is_missing(str(own)):
        return str(own)
    return str(create_environment(checkout))


def _ask_what_is_missing(python: str) -> str:
    """Returns `find_missing()` of a different interpreter, separated by commas."""
    try:
        process = subprocess.run([python, __file__], capture_output=True, text=True, timeout=60, check=True)
        return ", ".join(json.loads(process.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"a usable Python 3.11 ({error})"


def _put_first_on_path(python: str) -> str:
    """Returns a PATH on which the commands of an environment, such as rlds2reverb, come first."""
    return os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])


def cache_folder() -> Path:
    """Returns the folder of the environment and of the clone, which can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "rlds2reverb", "notebooks")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def find_checkout() -> Path:
    """Returns the repository that this file is part of, or else a clone."""
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "tests/data/d4rl").is_dir():
        return checkout
    clone = cache_folder() / "checkout"
    with _lock("checkout"):
        if not clone.is_dir():
            print(f"Cloning {REPOSITORY} (14 MB) ...")
            new = Path(tempfile.mkdtemp(dir=cache_folder()))
            _call("git", "clone", "--quiet", "--depth", "1", "--branch", BRANCH, f"{REPOSITORY}.git", str(new))
            new.rename(clone)
    return clone


def create_environment(checkout: Path) -> Path:
    """Creates an environment with Python 3.11, the packages of the lock file and rlds2reverb, unless it exists.

    Returns:
      The interpreter of the environment.
    """
    folder = cache_folder() / "python3.11"
    python, stamp = folder / "bin/python", folder / "complete"
    lock = checkout / "requirements/py311.lock"
    fingerprint = hashlib.sha256(lock.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    with _lock("environment"):
        if stamp.is_file() and stamp.read_text() == fingerprint:
            return python
        started = time.monotonic()
        print(f"Installing Python 3.11 and rlds2reverb in {folder} (1.5 GB, about a minute) ...")
        wheels = os.environ.get("RLDS2REVERB_WHEELS")
        offline = ["--offline", "--no-index", "--find-links", wheels] if wheels else []
        uv = find_uv(offline)
        install = [uv, "pip", "install", "--quiet", "--python", str(python), *offline]
        shutil.rmtree(folder, ignore_errors=True)
        _call(uv, "venv", "--quiet", "--python", "3.11", *offline[:1], str(folder))
        _call(*install, "--require-hashes", "-r", str(lock))
        _call(*install, "--no-deps", "--no-build-isolation", str(checkout))
        stamp.write_text(fingerprint)
        print(f"Installed in {time.monotonic() - started:.0f} s.")
    return python


def find_uv(pip_options: list[str]) -> str:
    """Returns the command uv: from the PATH, from this environment, or installed with pip."""
    own = cache_folder() / "uv"
    for candidate in (shutil.which("uv"), Path(sys.executable).with_name("uv"), own / "bin/uv"):
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    options = pip_options[1:]  # pip has no --offline.
    _call(sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(own), "uv")
    return str(own / "bin/uv")


def _call(*command: str) -> None:
    """Runs a command, and raises a BridgeError with the end of its output if it fails."""
    try:
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, failed = process.stdout, process.returncode != 0
    except OSError as error:
        output, failed = str(error), True
    if failed:
        last = "\n".join(output.strip().splitlines()[-8:])
        raise BridgeError(
            "Python 3.11 with rlds2reverb could not be installed; connect to the network and run this cell again, or "
            "set RLDS2REVERB_PYTHON to the interpreter of an environment that has rlds2reverb and ipykernel.\n"
            f"'{' '.join(command)}' failed:\n{last}"
        )


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    """Makes notebooks that start at the same time wait for each other."""
    with open(cache_folder() / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# The inner kernel.


class InnerKernel:
    """The process of an IPython kernel on another Python, and its channels.

    Its sockets are files in a private folder. The process ends when this one does, even if this one is killed.
    """

    def __init__(self, python: str) -> None:
        from jupyter_client.connect import write_connection_file
        from jupyter_client.session import Session

        self._folder = tempfile.mkdtemp(prefix="rlds2reverb-")
        self.log = Path(self._folder, "log")
        key = os.urandom(16).hex().encode()
        file, info = write_connection_file(
            f"{self._folder}/kernel.json", transport="ipc", ip=f"{self._folder}/socket", key=key
        )
        self.process = self._launch(python, file)
        self.session = Session(key=key)
        self._connect({name: f"ipc://{info['ip']}-{info[f'{name}_port']}" for name in _CHANNELS})
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _launch(self, python: str, connection_file: str) -> subprocess.Popen:
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parent)  # The first cell can run there, too.
        environment["IPYTHONDIR"] = str(Path(self._folder, "ipython"))
        environment["PATH"] = _put_first_on_path(python)
        environment["JPY_PARENT_PID"] = str(os.getpid())  # The kernel ends when this process does.
        with open(self.log, "wb") as log:
            return subprocess.Popen(
                [python, "-c", _LAUNCH, "-f", connection_file],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _connect(self, addresses: dict[str, str]) -> None:
        import zmq

        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets = {}
        for name, address in addresses.items():
            socket = self._context.socket(zmq.SUB if name == "iopub" else zmq.DEALER)
            socket.linger = 0
            if name == "iopub":
                socket.subscribe(b"")
            else:  # A request for input is addressed to the sender of the cell, so the sockets share an identity.
                socket.setsockopt(zmq.IDENTITY, self.session.bsession)
            socket.connect(address)
            self._poller.register(socket, zmq.POLLIN)
            self._sockets[name] = socket

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def send(self, channel: str, kind: str, content: dict[str, Any], **extra: Any) -> str:
        """Sends a message and returns its identifier."""
        return self.session.send(self._sockets[channel], kind, content, **extra)["header"]["msg_id"]

    def receive(self, timeout_ms: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the messages that have arrived as `(channel, message)`: outputs first, replies last."""
        ready = dict(self._poller.poll(timeout_ms))
        for name, socket in self._sockets.items():
            while socket in ready and socket.poll(0):
                _, message = self.session.recv(socket, mode=0)
                yield name, message

    def _wait_until_ready(self) -> None:
        """Asks for information until an answer and an output arrive: the latter may be lost while the kernel starts."""
        heard: set[str] = set()
        deadline = time.monotonic() + _START_SECS
        while not {"shell", "iopub"} <= heard:
            if not self.alive or time.monotonic() > deadline:
                raise BridgeError(f"the kernel on {self.process.args[0]} did not start.\n{self.read_log()}")
            self.send("shell", "kernel_info_request", {})
            heard.update(channel for channel, _ in self.receive(500))

    def interrupt(self, *_: Any) -> None:
        """Interrupts the running cell, and the commands that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)

    def describe_end(self) -> str:
        """Returns how the process ended."""
        code = self.process.wait()
        return f"exited with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    def read_log(self) -> str:
        """Returns the last lines that the process wrote outside of cells, or where it crashed."""
        text = self.log.read_text(errors="replace").strip()
        _, crash, stack = text.partition("Current thread")
        return "\n".join((crash + stack).splitlines()[:8] if crash else text.splitlines()[-8:])

    def close(self) -> None:
        """Ends the process and what it started."""
        if self.alive:
            self.send("control", "shutdown_request", {"restart": False})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)


# The outer kernel.


def _find_shell() -> Any:
    from IPython import get_ipython

    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        raise BridgeError("kernel_bridge.start() must be called in a cell of a notebook; open the notebook in Jupyter.")
    return shell


class Bridge:
    """Connects the notebook's own kernel, the outer one, with an inner kernel on another Python.

    Cells are rewritten into calls of `run`. Completion, `?` and widgets are handed to the inner kernel, too.
    """

    def __init__(self, shell: Any, python: str, variables: dict[str, Path]) -> None:
        self._shell, self._python, self._variables = shell, python, variables
        self._kernel = shell.kernel
        self._busy = threading.RLock()
        self._parents: dict[str, dict[str, Any]] = {}
        self._to_inner: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._comms: set[str] = set()
        self._inner: InnerKernel | None = None
        self._number = -1
        self._closed = False
        self._originals: list[Callable[[], None]] = []
        self._start("answers from now on")
        self._connect()
        self._drain_later()

    def _start(self, note: str) -> None:
        self._inner = InnerKernel(self._python)
        self._parents.clear()
        self._comms.clear()
        self._number = -1
        note += f" (this kernel is Python {platform.python_version()})"
        program = [  # Without import statements, whose names would stay in the notebook.
            "__import__('faulthandler').enable()  # After ipykernel's changes, it writes to the log.",
            *(f"{name} = __import__('pathlib').Path({str(value)!r})" for name, value in self._variables.items()),
            f"print('Python', __import__('platform').python_version(), 'in', __import__('sys').prefix, {note!r})",
        ]
        self._execute("\n".join(program), silent=True)

    def _connect(self) -> None:
        """Hooks into the outer kernel; `close` undoes this."""
        transforms = self._shell.input_transformers_cleanup
        transforms.insert(0, self._rewrite)
        self._originals.append(lambda: transforms.remove(self._rewrite))
        for name in _NOTHING_FOUND:
            self._replace(self._kernel, f"do_{name}", getattr(self, f"_{name}"))
        for kind in ("comm_open", "comm_msg", "comm_close"):
            handler = self._kernel.shell_handlers[kind]
            self._kernel.shell_handlers[kind] = self._hand_over_comm(handler)
            self._originals.append(lambda k=kind, h=handler: self._kernel.shell_handlers.update({k: h}))
        atexit.register(self.close)
        self._originals.append(lambda: atexit.unregister(self.close))

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)
        self._originals.append(lambda: delattr(owner, name))

    def close(self) -> None:
        """Ends the inner kernel, and gives the cells back to the outer one."""
        self._closed = True
        while self._originals:
            self._originals.pop()()
        if self._inner is not None:
            self._inner.close()
            self._inner = None

    # Cells.

    def _rewrite(self, lines: list[str]) -> list[str]:
        """Turns a cell into a call of `run`, except for what a frontend runs unseen and for cells with %%outer."""
        if self._parent()["content"].get("silent") or not "".join(lines).strip():
            return lines
        if lines[0].strip() == "%%outer":
            return lines[1:] or [""]
        return [f"__import__({__name__!r}).run({''.join(lines)!r}, {self._shell.execution_count})\n"]

    def _parent(self) -> dict[str, Any]:
        """Returns the request that the outer kernel is handling."""
        parent = self._kernel.get_parent("shell")
        return {"header": parent.get("header", {}), **parent, "content": parent.get("content", {})}

    def run(self, code: str, number: int) -> None:
        """Runs cell `In [number]` on the inner kernel.

        Raises:
          RemoteError: if the cell raises; the type has the name of the exception.
          KernelDiedError: if the process ends meanwhile.
        """
        with self._busy:
            if self._inner is None or not self._inner.alive:
                self._start("answers in a new process, which has none of the earlier variables")
            if self._number != number - 1:  # Cells have the same numbers on both sides.
                self._execute(f"get_ipython().execution_count = {number}", silent=True)
            self._number = number
            reply = self._execute(code, silent=False)
        for payload in reply.get("payload", []):  # The text of `?`, and cells that %load writes.
            self._shell.payload_manager.write_payload(payload, single=False)
        if reply["status"] != "ok":
            raise type(reply.get("ename", "Aborted"), (RemoteError,), {})(reply)

    def _execute(self, code: str, *, silent: bool) -> dict[str, Any]:
        parent = self._parent()
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": bool(parent["content"].get("allow_stdin")),
            "stop_on_error": True,
        }
        with self._signals_passed_on():
            request = self._inner.send("shell", "execute_request", content)
            self._parents[request] = parent
            return self._await(request)

    def _await(self, request: str, timeout_secs: float | None = None) -> dict[str, Any]:
        """Passes outputs on until a request is answered and the inner kernel is idle; returns the reply's content."""
        reply, idle = None, False
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        while reply is None or not idle:
            alive = self._inner.alive
            arrived = False
            for channel, message in self._inner.receive(_POLL_MS):
                arrived = True
                mine = message["parent_header"].get("msg_id") == request
                if channel == "shell" and mine:
                    reply = message["content"]
                elif channel == "stdin" and mine:
                    self._answer(message["content"])
                elif channel == "iopub":
                    self._publish(message)
                    idle |= mine and message["content"].get("execution_state") == "idle"
            self._send_comms()
            if not alive and not arrived:
                self._report_death()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"the inner kernel did not answer within {timeout_secs} s")
        return reply

    def _report_death(self) -> NoReturn:
        inner, self._inner = self._inner, None
        end, log = inner.describe_end(), inner.read_log()
        inner.close()
        raise KernelDiedError(
            f"the Python 3.11 process {end}, so its variables are lost; run the notebook again from its first cell, "
            f"or continue with any cell: a new process starts by itself.{log and chr(10)}{log}"
        )

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """Turns interrupts of the outer kernel into interrupts of the inner one, without losing a message."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.signal(signal.SIGINT, self._inner.interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _answer(self, content: dict[str, Any]) -> None:
        """Asks the user for a line of input on behalf of the inner kernel."""
        ask = getpass.getpass if content.get("password") else builtins.input
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            value = ask(content["prompt"])
        except KeyboardInterrupt:
            self._inner.interrupt()
            return
        finally:
            signal.signal(signal.SIGINT, handler)
        self._inner.send("stdin", "input_reply", {"value": value})

    def _publish(self, message: dict[str, Any]) -> None:
        """Passes an output on to the frontend, below the cell that it belongs to."""
        kind, content = message["header"]["msg_type"], message["content"]
        if kind in ("status", "execute_input", "error", "iopub_welcome"):  # The outer kernel sends its own.
            return
        if kind == "execute_result":
            content["execution_count"] = self._number
        if kind.startswith("comm_"):
            (self._comms.discard if kind == "comm_close" else self._comms.add)(content["comm_id"])
        parent = self._parents.get(message["parent_header"].get("msg_id"), self._parent())
        sys.stdout.flush()
        self._kernel.session.send(
            self._kernel.iopub_socket,
            kind,
            content,
            parent=parent,
            metadata=message["metadata"],
            buffers=message["buffers"],
        )

    # Between cells: outputs of threads, widgets, completion and inspection.

    def _drain_later(self) -> None:
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # Without an event loop, outputs wait for the next cell.
                asyncio.get_running_loop().call_later(0.1, self._drain)

    def _drain(self) -> None:
        if self._inner is not None and self._busy.acquire(blocking=False):
            try:
                self._send_comms()
                for channel, message in self._inner.receive(0):
                    if channel == "iopub":
                        self._publish(message)
            finally:
                self._busy.release()
        self._drain_later()

    def _hand_over_comm(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a handler of messages of widgets that keeps those of the inner kernel for it."""

        def handle(stream: Any, ident: Any, message: dict[str, Any]) -> Any:
            content = message["content"]
            known = getattr(getattr(self._kernel, "comm_manager", None), "targets", {})
            opened = message["header"]["msg_type"] == "comm_open" and content.get("target_name") not in known
            if opened:
                self._comms.add(content["comm_id"])
            if content["comm_id"] not in self._comms:
                return handler(stream, ident, message)
            self._to_inner.put(message)  # The sockets belong to the main thread.
            return None

        return handle

    def _send_comms(self) -> None:
        while self._inner is not None and not self._to_inner.empty():
            message = self._to_inner.get()
            extra = {"metadata": message["metadata"], "buffers": message["buffers"]}
            request = self._inner.send("shell", message["header"]["msg_type"], message["content"], **extra)
            self._parents[request] = message

    def _ask(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Sends a request that is not a cell, and returns the reply, or one that says that nothing was found."""
        with self._busy:
            if self._inner is None or not self._inner.alive:
                return dict(_NOTHING_FOUND[kind])
            request = self._inner.send("shell", f"{kind}_request", content)
            try:
                return self._await(request, timeout_secs=10)
            except (TimeoutError, KernelDiedError):
                return dict(_NOTHING_FOUND[kind])

    def _complete(self, code: str, cursor_pos: int) -> dict[str, Any]:
        nothing = {"cursor_start": cursor_pos, "cursor_end": cursor_pos}
        return {**nothing, **self._ask("complete", {"code": code, "cursor_pos": cursor_pos})}

    def _inspect(self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> dict[str, Any]:
        return self._ask("inspect", {"code": code, "cursor_pos": cursor_pos, "detail_level": detail_level})

    def _is_complete(self, code: str) -> dict[str, Any]:
        return self._ask("is_complete", {"code": code})


if __name__ == "__main__":  # Reports to a different Python whether this one can run the notebooks.
    print(json.dumps(find_missing()))
