"""Runs every notebook from top to bottom: on this Python, and from a kernel on a newer one, as in Colab."""

import asyncio
import os
import sys

import pytest
from notebook_format import find_notebooks
from outer_kernels import make_environment, make_manager, make_outer_python

#: Time limit of a notebook on two cores; longer if other test processes use the cores as well.
LIMIT_SECS = 360 if "PYTEST_XDIST_WORKER" in os.environ else 180

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_SECS + 120)]


@pytest.fixture(scope="module")
def newer_python(tmp_path_factory):
    return make_outer_python("newest", tmp_path_factory.mktemp("outer") / "venv")


async def execute(path, python, cwd):
    """Runs a notebook in an empty directory, and returns it with its outputs.

    Raises:
      CellExecutionError: if a cell raises.
      TimeoutError: if the notebook takes too long.
    """
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    manager = make_manager(python, AsyncKernelManager)
    client = NotebookClient(notebook, km=manager, timeout=None, resources={"metadata": {"path": str(cwd)}})
    run = asyncio.ensure_future(client.async_execute(cleanup_kc=True, env=make_environment()))
    await asyncio.wait({run}, timeout=LIMIT_SECS)
    if not run.done():  # nbclient would report a cancelled cell as a dead kernel.
        run.cancel()
        await asyncio.wait({run})
        raise TimeoutError(f"{path.name} did not finish within {LIMIT_SECS} s") from run.exception()
    return run.result()


def run(path, python, cwd):
    """Runs a notebook and checks that its first line says that this Python answers."""
    notebook = asyncio.run(execute(path, python, cwd))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs[0]["text"].startswith(f"Python {sys.version_info[0]}.{sys.version_info[1]}.")
    assert sys.prefix in outputs[0]["text"]
    assert all(output["output_type"] != "error" for output in outputs)
    return outputs[0]["text"]


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    assert "answers, from" in run(path, sys.executable, tmp_path)


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_notebook_runs_from_a_newer_kernel(path, newer_python, tmp_path):
    assert "this kernel is Python 3.1" in run(path, newer_python, tmp_path)
