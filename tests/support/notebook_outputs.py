"""Runs notebooks and compares their outputs. `python tests/support/notebook_outputs.py FILE...` runs and stores them.

Stored outputs contain no paths of a machine and no live lines of progress, and their images have `NUM_COLORS` colours.
A new run agrees with them if its cells print the same words, and numbers within `RELATIVE_TOLERANCE`, and draw as many
images. Durations, rates and fingerprints are not compared, nor are the numbers of cells with the tag `varies`, such as
those that train.
"""

import asyncio
import base64
import io
import json
import math
import os
import re
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from notebook_format import EXECUTED, digest_code, find_problems, fix, output_text, source, to_json

DATA = Path(__file__).parents[1] / "data"
RELATIVE_TOLERANCE = 0.01
NUM_COLORS = 256
#: The tag of cells whose numbers depend on the machine.
VARIES = "varies"
_PATHS = (
    (re.compile(r"(?:/[\w.-]+){1,9}?/tmp[a-z0-9_]{8}\b"), "RUNS"),  # The folder that tempfile.mkdtemp() returned.
    (re.compile(r"(?:/[\w.-]+){0,9}?/tests/data\b"), "DATA"),
)
_PNG = "image/png"
_PROGRESS = re.compile(r"\d updates/s\b")
#: Durations, rates and fingerprints.
_NOT_COMPARED = re.compile(
    r"\b\d[\d,.]* ?(?:ms|s|secs?|seconds|min|minutes|(?:steps|items|updates|MB)/s)(?![\w/])|data wait \d+%"
    r"|steps per sec +[\d,]+|xxh128 \w+"
)
_NUMBER = re.compile(r"[-+−]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|\bnan\b|\binf\b)")


async def _execute(notebook, folder, limit_secs):
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    manager = AsyncKernelManager(shutdown_wait_time=15)  # Needs no installed kernel specification.
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="Python 3", language="python")
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, km=manager, timeout=None, resources=resources)
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    run = asyncio.ensure_future(client.async_execute(cleanup_kc=True, env=environment))
    await asyncio.wait({run}, timeout=limit_secs)
    if not run.done():  # nbclient would report a cancelled cell as a dead kernel.
        run.cancel()
        await asyncio.wait({run})
        raise TimeoutError(f"the notebook did not finish within {limit_secs} s") from run.exception()
    return run.result()


def execute(path, data, root, limit_secs):
    """Runs a notebook in a kernel of this Python, and returns it with its outputs, as a dictionary.

    Args:
      path: path of the notebook.
      data: the folder of datasets.
      root: an empty folder, in which `tests/data`, `benchmarks` and a folder for the kernel are created.
      limit_secs: time limit in seconds.

    Raises:
      CellExecutionError: if a cell raises.
      TimeoutError: if the notebook takes too long.
    """
    import nbformat

    (root / "tests").mkdir()
    (root / "tests/data").symlink_to(data)
    (root / "benchmarks").symlink_to(Path(__file__).parents[2] / "benchmarks")
    (root / "notebooks").mkdir()
    notebook = nbformat.read(path, as_version=4)
    notebook = asyncio.run(_execute(notebook, root / "notebooks", limit_secs))
    notebook = json.loads(nbformat.writes(notebook))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = [clean(output) for output in _merge_streams(cell["outputs"])]
    return notebook


def _merge_streams(outputs):
    """Returns outputs in which what was printed in a row is one output.

    The lines of a training run that stay visible in a notebook are displays; they become printed lines. Its last live
    line is left out.
    """
    merged = []
    for output in outputs:
        if output["output_type"] == "display_data" and [*output["data"]] == ["text/plain"]:
            text = output_text(output)
            if _PROGRESS.search(text):
                continue
            output = {"output_type": "stream", "name": "stdout", "text": text + "\n"}
        if merged and "text" in output and merged[-1].get("name") == output["name"]:
            merged[-1] = {**output, "text": output_text(merged[-1]) + output_text(output)}
        else:
            merged.append(output)
    return merged


def clean(output):
    """Returns an output in the form in which it is stored."""
    if "text" in output:
        return {**output, "text": _clean_text(output["text"])}
    data = {kind: _clean_text(value) if kind.startswith("text/") else value for kind, value in output["data"].items()}
    if _PNG in data:
        data[_PNG] = _reduce_colors(data[_PNG])
    return {**output, "data": data, "metadata": {}}


def _reduce_colors(png):
    from PIL import Image

    image, reduced = Image.open(io.BytesIO(base64.b64decode(png))), io.BytesIO()
    image.convert("RGB").quantize(NUM_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        reduced, "PNG", optimize=True
    )
    return base64.b64encode(reduced.getvalue()).decode()


def _clean_text(lines):
    text = "".join(lines)
    for pattern, replacement in _PATHS:
        text = pattern.sub(replacement, text)
    return text.splitlines(keepends=True)


def find_differences(stored, new):
    """Returns in which cells the outputs of two notebooks disagree, as a list of texts."""
    cells = zip(stored["cells"], new["cells"], strict=True)
    return [
        f"{source(old)}\n-- stored:\n{describe(old)}\n-- new:\n{describe(cell)}\n"
        for old, cell in cells
        if old["cell_type"] == "code"
        and not agree(describe(old), describe(cell), exactly=VARIES not in old["metadata"].get("tags", ()))
    ]


def describe(cell):
    """Returns the text of a cell's outputs, with the type of what is no text in brackets."""
    parts = []
    for output in cell["outputs"]:
        kinds = sorted({*output.get("data", ())} - {"text/plain"})
        parts.append(f"[{' '.join(kinds)}]\n" if kinds else output_text(output))
    return "".join(parts)


def agree(stored, new, *, exactly=True):
    """Returns whether two texts agree.

    Args:
      stored: the one text.
      new: the other one.
      exactly: whether numbers must agree; if not, repeated lines that differ in nothing else are compared once.
    """
    stored, new = (_NOT_COMPARED.sub("", text) for text in (stored, new))
    if _words(stored) != _words(new):
        return not exactly and _distinct_lines(stored) == _distinct_lines(new)
    numbers = [
        [float(number.replace(",", "").replace("−", "-")) for number in _NUMBER.findall(text)] for text in (stored, new)
    ]
    return not exactly or all(
        math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-6) or (one != one and other != other)
        for one, other in zip(*numbers, strict=True)
    )


def _words(text):
    return _NUMBER.sub(" NUMBER ", text).split()


def _distinct_lines(text):
    return list(dict.fromkeys(" ".join(_words(line)) for line in text.splitlines()))


def find_missing_package(path):
    """Returns the name of a package that a notebook requires and that is not installed; None if there is none.

    PyTorch is no part of `make dev`, and dm-reverb does not exist for Python 3.12 and later.
    """
    text = path.read_text()
    required = [
        name for code, name in {"import torch": "torch", "import reverb_utils": "reverb"}.items() if code in text
    ]
    return next((name for name in required if find_spec(name) is None), None)


def main(paths):
    for path in map(Path, paths):
        if missing := find_missing_package(path):
            print(f"{path}: skipped, requires {missing}")
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="notebook-") as root:
            notebook = execute(path, DATA.resolve(), Path(root), limit_secs=600)
        fix(notebook, path.name)
        notebook["metadata"][EXECUTED] = digest_code(notebook)
        path.write_text(to_json(notebook))
        print(f"{path}: {time.monotonic() - started:.0f} s, {path.stat().st_size / 1000:.0f} kB", flush=True)
        for problem in find_problems(notebook, path.name):
            print(f"{path}: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
