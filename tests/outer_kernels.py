"""Jupyter kernels on Pythons that are newer than rlds2reverb supports, as in Colab, and on this one."""

import importlib.util
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

#: The kernels to test, by name: commands to try in turn, and packages.
KINDS = {
    "newest": (("python3.13", "python3.12"), ("ipykernel",)),
    # The versions in Colab.
    "colab": (("python3.12",), ("ipykernel==6.17.1", "ipython==7.34.0", "jupyter_client==7.4.9", "setuptools<81")),
}
TIMEOUT = 60


def find_python(commands):
    """Returns the first interpreter on the PATH, or of pyenv, that runs and has at least Python 3.12; or None."""
    program = "import sys, venv; assert sys.version_info >= (3, 12); print(sys.executable)"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for name in commands:
        for command in filter(None, [shutil.which(name), *sorted(pyenv.glob(f"versions/*/bin/{name}"))]):
            process = subprocess.run([command, "-c", program], capture_output=True, text=True)
            if process.returncode == 0:  # The commands of pyenv on the PATH fail unless their version is selected.
                return process.stdout.strip()
    return None


def make_outer_python(kind, folder):
    """Returns the interpreter of a new environment with ipykernel, or skips the test."""
    commands, packages = KINDS[kind]
    python = find_python(commands)
    if python is None:
        pytest.skip(f"requires {' or '.join(commands)}")
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = str(folder / "bin/python")
    if importlib.util.find_spec("uv"):
        install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", own, *packages]
    else:
        install = [own, "-m", "pip", "install", "--quiet", *packages]
    process = subprocess.run(install, capture_output=True, text=True, timeout=200)
    if process.returncode != 0:
        pytest.skip(f"requires a package registry: {process.stderr[-300:]}")
    return own


def make_manager(python, manager_type=None):
    """Returns the manager of a kernel that runs on an interpreter, without an installed kernel specification."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import KernelManager

    socket = f"{tempfile.mkdtemp()}/socket"
    manager = (manager_type or KernelManager)(transport="ipc", ip=socket, shutdown_wait_time=15)
    command = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="outer", language="python")
    return manager


def make_environment(**variables):
    """Returns environment variables in which the first cell of a notebook finds its module and this environment."""
    notebooks = Path(__file__).parent.parent / "notebooks"
    environment = {**os.environ, "PYTHONPATH": str(notebooks), "RLDS2REVERB_PYTHON": sys.executable, **variables}
    environment.pop("MPLBACKEND", None)
    return environment


class OuterKernel:
    """A running kernel that is used as a frontend does."""

    def __init__(self, python, cwd, **variables):
        self.manager = make_manager(python)
        self.manager.start_kernel(env=make_environment(**variables), cwd=str(cwd))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    def run(self, code, on_output=lambda kind, content: None, answers=()):
        """Runs a cell.

        Args:
          code: source of the cell.
          on_output: called with the type and the content of each output when it arrives.
          answers: answers to the cell's requests for input; a function is called instead of answering.

        Returns:
          The content of the reply, and the outputs as a list of (type, content).
        """
        request = self.client.execute(code, allow_stdin=True)
        outputs, answers, idle = [], list(answers), False
        while not idle:
            try:
                message = self.client.get_iopub_msg(timeout=0.1 if answers else TIMEOUT)
            except queue.Empty:
                if not self.client.stdin_channel.msg_ready():
                    continue
                prompt = self.client.get_stdin_msg(timeout=TIMEOUT)["content"]
                outputs.append(("input_request", prompt))
                answer = answers.pop(0)
                answer() if callable(answer) else self.client.input(answer)
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != request or kind == "execute_input":
                continue
            if kind == "status":
                idle = content["execution_state"] == "idle"
            else:
                outputs.append((kind, content))
                on_output(kind, content)
        reply = self.reply_to(request)
        if reply["status"] == "error":
            time.sleep(0.2)  # Older kernels abort requests that follow an error immediately.
        return reply, outputs

    def reply_to(self, request):
        """Returns the content of the reply to a request on the shell channel."""
        while True:
            message = self.client.get_shell_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") == request:
                return message["content"]

    def text(self, code, **options):
        """Runs a cell that must succeed, and returns what it prints and its result as one string."""
        reply, outputs = self.run(code, **options)
        assert reply["status"] == "ok", reply
        return join_text(outputs)

    def value(self, expression):
        """Returns the value of an expression whose representation is a literal."""
        import ast

        return ast.literal_eval(self.text(f"print(repr({expression}))"))

    def close(self):
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel()
        self.manager.cleanup_resources()


def join_text(outputs):
    """Returns the text of streams and results."""
    return "".join(
        content.get("text", "") or content.get("data", {}).get("text/plain", "")
        for kind, content in outputs
        if kind in ("stream", "execute_result")
    )
