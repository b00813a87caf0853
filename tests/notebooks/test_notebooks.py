"""Runs every notebook from top to bottom in a kernel of this Python."""

import asyncio
import os
import sys

import pytest
from notebook_format import find_notebooks

#: Time limit of a notebook on two cores; longer if other test processes use the cores as well.
LIMIT_SECS = 360 if "PYTEST_XDIST_WORKER" in os.environ else 180

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_SECS + 120)]


def make_manager():
    """Returns the manager of a kernel of this Python, without an installed kernel specification."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    manager = AsyncKernelManager(shutdown_wait_time=15)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="Python 3", language="python")
    return manager


async def execute(path, cwd):
    """Runs a notebook in a directory, and returns it with its outputs.

    Raises:
      CellExecutionError: if a cell raises.
      TimeoutError: if the notebook takes too long.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, km=make_manager(), timeout=None, resources={"metadata": {"path": str(cwd)}})
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    run = asyncio.ensure_future(client.async_execute(cleanup_kc=True, env=environment))
    await asyncio.wait({run}, timeout=LIMIT_SECS)
    if not run.done():  # nbclient would report a cancelled cell as a dead kernel.
        run.cancel()
        await asyncio.wait({run})
        raise TimeoutError(f"{path.name} did not finish within {LIMIT_SECS} s") from run.exception()
    return run.result()


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_notebook_runs(path, data, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/data").symlink_to(data)
    (tmp_path / "notebooks").mkdir()
    notebook = asyncio.run(execute(path, tmp_path / "notebooks"))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs and all(output["output_type"] != "error" for output in outputs)
