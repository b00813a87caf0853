"""Runs the code blocks of a page of the docs in order, as its reader does: in one directory and one Python session.

Blocks in `python` are executed, except files, which begin with a comment such as `# my_module.py`. The commands of blocks
in `bash` or `console` are executed, too: in this process if they are commands of the package, which then do not import
TensorFlow again, and in bash otherwise. Servers (with `&`, or a comment that names Ctrl-C) run until the end of the page.
Their ports, 8000 to 8009 on the pages, are replaced by unused ones.

HTML comments before a block change what is done, invisibly to readers:

    <!-- not run: REASON -->             skips the block
    <!-- run with: A => B | C => D -->   replaces A by B and C by D, mostly to shorten a training
    <!-- numbers vary by 20% -->         accepts numbers in its output that differ so much from those shown
"""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import portpicker

from rlds2reverb.cli import run

#: Packages that some blocks import, and that not every environment of the tests has.
OPTIONAL_PACKAGES = ("jax", "optuna", "rlds", "torch", "wandb")
_MARKERS = r"(?P<markers>(?:^ *<!-- [^\n]*-->\n+)*)"
_FENCE = r"^(?P<indent> *)```(?P<language>python|bash|console)\n(?P<code>.*?)^ *```$"
_BLOCK = re.compile(rf"{_MARKERS}{_FENCE}(?:\n\n```text\n(?P<output>.*?)^```$)?", re.M | re.S)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_INSTALLS = re.compile(r"\b(pip|make|git|docker|kubectl|apt-get)\b")
_START_SECS, _STOP_SECS, _BASH_SECS = 120, 60, 900


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
      place: name of the page and line of the block.
      language: python, bash or console.
      code: the text of the block.
      output: the output shown below a Python block, or ''.
      skipped: why the block is not run, or ''.
      replacements: pairs of texts (old, new).
      tolerance: largest relative difference of numbers in the output.
    """

    place: str
    language: str
    code: str
    output: str
    skipped: str
    replacements: tuple[tuple[str, str], ...]
    tolerance: float

    def missing_packages(self) -> list[str]:
        """Returns the optional packages that the block uses and that are not installed."""
        names = [
            name
            for name in OPTIONAL_PACKAGES
            if re.search(rf"^\s*(?:import|from) {name}\b|\b{name}\.|\bruns/{name}\b", self.code, re.M)
        ]
        return [name for name in names if find_spec(name) is None]

    def shortened(self) -> str:
        """Returns the code with the replacements of its marker."""
        code = self.code
        for old, new in self.replacements:
            assert old in code, f"{self.place}: the block does not contain {old!r}, which its marker replaces"
            code = code.replace(old, new)
        return code


def find_blocks(page: Path) -> list[Block]:
    """Returns the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _BLOCK.finditer(text):
        place = f"{page.name}:{text.count(chr(10), 0, match.start('language')) + 1}"
        markers = re.findall(r"<!-- (.*?) -->", match["markers"])
        skipped, replacements, tolerance = "", [], 0.0
        for marker in markers:
            if found := re.fullmatch(r"not run: (.+)", marker):
                skipped = found[1]
            elif found := re.fullmatch(r"run with: (.+)", marker):
                replacements += [tuple(pair.split(" => ")) for pair in found[1].split(" | ")]
            elif found := re.fullmatch(r"numbers vary by (\d+)%", marker):
                tolerance = float(found[1]) / 100
            elif marker != "end" and not marker.startswith(("table: ", "value: ")):
                raise AssertionError(f"{place}: unknown marker {marker!r}")
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.M)
        output = match["output"] or ""
        blocks.append(Block(place, match["language"], code, output, skipped, tuple(replacements), tolerance))
    return blocks


def split_commands(block: Block) -> list[tuple[str, str]]:
    """Returns the pairs (command, output shown) of a block in bash or console.

    A block in bash with anything but commands of the package is a single one.
    """
    if block.language == "console":
        found = re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", block.shortened(), re.M)
        return [(command, output) for command, output in found]
    code = block.shortened()
    lines = [line for line in re.split(r"(?<!\\)\n", code) if line.strip() and not line.startswith("#")]
    if all(line.startswith("rlds2reverb ") for line in lines):
        return [(line, "") for line in lines]
    return [(code, "")]


class PageRun:
    """The session of one reader of a page, in the current directory.

    Attributes:
      skipped: packages that blocks need and that are not installed.
    """

    def __init__(self) -> None:
        self.skipped: set[str] = set()
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._modules: list[str] = []
        self._servers: list[tuple[str, subprocess.Popen, Path]] = []
        self._ports: dict[str, str] = {}

    def __enter__(self) -> "PageRun":
        sys.path.insert(0, str(Path.cwd()))
        return self

    def __exit__(self, kind, *_) -> None:
        sys.path.remove(str(Path.cwd()))
        for name in self._modules:
            sys.modules.pop(name, None)
        codes = {command: _stop(process) for command, process, _ in reversed(self._servers)}
        if kind is None:
            assert not any(codes.values()), f"servers ended with these exit codes: {codes}"

    def run(self, block: Block) -> None:
        """Runs a block, unless it is marked as one that is not run, and compares its output with the one shown."""
        if block.skipped:
            return
        if missing := block.missing_packages():
            self.skipped.update(missing)
        elif block.language == "python":
            self._run_python(block)
        else:
            for command, output in split_commands(block):
                self._run_command(block, command, output)

    def _run_python(self, block: Block) -> None:
        code = self._replace_ports(block.shortened())
        if file := re.match(r"# (\w+)\.py\n", code):
            Path(f"{file[1]}.py").write_text(code, encoding="utf-8")
            self._modules.append(file[1])
            return
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(compile(code, block.place, "exec"), self._names)
        compare(block, block.output, self._restore_ports(stdout.getvalue()))

    def _run_command(self, block: Block, command: str, output: str) -> None:
        command = self._replace_ports(command).replace("\\\n", " ")
        arguments = shlex.split(command, comments=True)
        if not command.startswith("rlds2reverb ") or "\n" in command:
            printed = _run_in_bash(block, command)
        elif arguments[-1] == "&" or "Ctrl-C" in command:
            self._servers.append(_start(block, arguments[1:], len(self._servers)))
            printed = self._servers[-1][2].read_text()
        else:
            assert arguments[1] != "serve", f"{block.place}: append & or '# until Ctrl-C', because the server blocks"
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                code = run([os.path.expanduser(argument) for argument in arguments[1:]])
            printed = stdout.getvalue()
            assert code == 0, f"{block.place}: exit code {code} of {command}\n{printed}"
        compare(block, output, self._restore_ports(printed))

    def _replace_ports(self, text: str) -> str:
        def replace(match: re.Match) -> str:
            if not self._ports:
                self._ports = dict(zip((f"800{n}" for n in range(10)), _unused_ports(10), strict=True))
            return self._ports[match[0]]

        return re.sub(r"(?<=[: =])800\d\b", replace, text)

    def _restore_ports(self, text: str) -> str:
        for shown, used in self._ports.items():
            text = text.replace(used, shown)
        return text


def _unused_ports(count: int) -> list[str]:
    """Returns consecutive ports that are not used."""
    while True:
        first = portpicker.pick_unused_port()
        if all(portpicker.is_port_free(first + n) for n in range(count)):
            return [str(first + n) for n in range(count)]


def _run_in_bash(block: Block, script: str) -> str:
    assert not _INSTALLS.search(script), f"{block.place}: mark the block as not run, because it installs something"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=_BASH_SECS
    )
    assert done.returncode == 0, f"{block.place}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def _start(block: Block, arguments: list[str], number: int) -> tuple[str, subprocess.Popen, Path]:
    """Starts a server, and returns its command, process and log once it prints its address."""
    log = Path(f"server_{number}.log")
    command = [sys.executable, "-m", "rlds2reverb.cli", *(argument for argument in arguments if argument != "&")]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    end = time.monotonic() + _START_SECS
    while "serving on" not in log.read_text():
        if process.poll() is not None or time.monotonic() > end:
            _stop(process)
            raise AssertionError(f"{block.place}: the server did not start\n{log.read_text()}")
        time.sleep(0.1)
    return " ".join(arguments), process, log


def _stop(process: subprocess.Popen) -> int:
    """Ends a server as Ctrl-C does, and returns its exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(_STOP_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def compare(block: Block, shown: str, printed: str) -> None:
    """Raises an AssertionError if the output of a block differs from the one shown, unless none is shown."""
    if shown and not is_as_shown(shown, printed, block.tolerance):
        raise AssertionError(f"{block.place}: the page shows\n{shown}\nbut this was printed:\n{printed}")


def is_as_shown(shown: str, printed: str, tolerance: float = 0.0) -> bool:
    """Returns whether a printed output is the one that a page shows.

    Args:
      shown: text in which `...` stands for any text of a line, and for any lines in a line of its own.
      printed: the output.
      tolerance: largest relative difference of a number from the one shown.
    """
    pattern, numbers = "", []
    for line in shown.splitlines():
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
            continue
        for part in re.split(rf"({_NUMBER.pattern}|\.\.\.)", line):
            if part == "...":
                pattern += r"[^\n]*"
            elif tolerance and _NUMBER.fullmatch(part):
                pattern += f"({_NUMBER.pattern})"
                numbers.append(_parse(part))
            else:
                pattern += re.sub(r"(?:\\ )+", " +", re.escape(part)) if tolerance else re.escape(part)
        pattern += r" *\n"
    found = re.fullmatch(pattern, printed if printed.endswith("\n") else f"{printed}\n")
    return bool(found) and all(
        abs(_parse(text) - number) <= tolerance * abs(number)
        for text, number in zip(found.groups(), numbers, strict=True)
    )


def _parse(number: str) -> float:
    return float(number.replace(",", ""))


def run_page(page: Path) -> set[str]:
    """Runs a page in the current directory, and returns the missing packages that some of its blocks need."""
    with PageRun() as session:
        for block in find_blocks(page):
            session.run(block)
    return session.skipped
