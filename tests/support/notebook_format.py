"""The form that all notebooks have in git. Run on files, `python tests/support/notebook_format.py FILE...` brings them into it.

A notebook begins with a Markdown cell (the title and the badge that opens the notebook in Colab), followed by the code
cell that installs rlds2reverb in Colab. It has fewer than 25 cells and less than 300 kB, with the outputs of a run from
top to bottom, which `notebook_outputs.py` stores.
"""

import hashlib
import json
import re
import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
REPOSITORY = "rlds2reverb/rlds2reverb"
BRANCH = "main"
MAX_CELLS = 24
MAX_BYTES = 300_000
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
#: The metadata that tells which code the stored outputs are of.
EXECUTED = "executed"
#: What an environment needs for the notebooks, installed from a checkout in the folder r2r.
INSTALL = ('pip install -q "./r2r[eval,lerobot,minari,onnx]"', "pip install -q --no-deps tf-agents==0.19.0")
#: The first code cell of every notebook. In Colab it clones the repository, which contains the datasets, and installs.
FIRST_CELL = f"""\
# Installs rlds2reverb, as in Colab, unless this Python has it. DATA is a folder of small datasets.
import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ["PATH"] = f"{{Path(sys.executable).parent}}:{{os.environ['PATH']}}"
if not find_spec("rlds2reverb"):
    !git clone -q --depth 1 https://github.com/{REPOSITORY} r2r
    !{" && ".join(INSTALL)}
DATA = next(data for path in [*Path.cwd().parents, Path("r2r")] if (data := path.resolve() / "tests/data").is_dir())"""


_ABSOLUTE_PATH = re.compile(r"(?<![\w:/.-])/\w+/")


def find_notebooks():
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def colab_badge(name):
    """Returns the Markdown of the badge that opens a notebook in Colab."""
    address = f"https://colab.research.google.com/github/{REPOSITORY}/blob/{BRANCH}/notebooks/{name}"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})"


def source(cell):
    """Returns the text of a cell, which files store as a string or as a list of lines."""
    return "".join(cell["source"])


def output_text(output):
    """Returns the text of an output; '' if it has none."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))


def digest_code(notebook):
    """Returns a digest of the sources of the code cells."""
    code = [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def to_json(notebook):
    """Returns the contents of a notebook's file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def find_problems(notebook, name):
    """Returns what must be changed in a notebook, as a list of sentences.

    Args:
      notebook: the notebook as a dictionary.
      name: the name of its file.
    """
    cells = notebook["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    title = source(cells[0]) if cells else ""
    size = len(to_json(notebook).encode())
    checks = {
        "the name must be NN_words.ipynb": re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", name),
        f"it must have at most {MAX_CELLS} cells, got {len(cells)}": len(cells) <= MAX_CELLS,
        "the first cell must be Markdown and begin with '# '": title.startswith("# "),
        f"the first cell must contain {colab_badge(name)}": colab_badge(name) in title,
        "the second cell must be FIRST_CELL": len(cells) > 1 and source(cells[1]) == FIRST_CELL,
        "its code must be run": notebook["metadata"].get(EXECUTED) == digest_code(notebook),
        "no cell may write to stderr": not any(output.get("name") == "stderr" for output in outputs),
        "outputs must not contain absolute paths": not any(map(_ABSOLUTE_PATH.search, map(output_text, outputs))),
        f"it must have at most {MAX_BYTES:,} bytes, got {size:,}": size <= MAX_BYTES,
        "metadata must be only that of the kernel": notebook["metadata"].items() >= KERNEL.items()
        and {*notebook["metadata"]} <= {*KERNEL, EXECUTED},
        "cells must have no metadata except tags": all(set(cell["metadata"]) <= {"tags"} for cell in cells),
        "empty cells must be removed": all(source(cell).strip() for cell in cells),
    }
    return [problem for problem, holds in checks.items() if not holds]


def fix(notebook, name):
    """Brings a notebook into the form, except for its name, its title, its size and its outputs, in place."""
    executed = {name: value for name, value in notebook["metadata"].items() if name == EXECUTED}
    notebook["metadata"] = {**executed, **KERNEL}
    notebook["cells"] = cells = [cell for cell in notebook["cells"] if source(cell).strip()]
    for cell in cells:
        cell["metadata"] = {key: value for key, value in cell["metadata"].items() if key == "tags"}
    if not cells or cells[0]["cell_type"] != "markdown":
        cells.insert(0, {"cell_type": "markdown", "id": "title", "metadata": {}, "source": f"# {name}"})
    text = re.sub(r"\[!\[Open in Colab\].*\n*", "", source(cells[0])).strip()
    heading, _, rest = text.partition("\n")
    cells[0]["source"] = f"{heading}\n\n{colab_badge(name)}\n\n{rest.strip()}".strip()
    is_first = len(cells) > 1 and "\nDATA = " in source(cells[1])
    first = cells[1] if is_first else {"cell_type": "code", "id": "python", "metadata": {}, "outputs": []}
    first["source"] = FIRST_CELL
    first.setdefault("execution_count", None)
    cells[1 : 1 + is_first] = [first]
    for cell in cells:
        cell["source"] = source(cell).strip().splitlines(keepends=True)


def main(paths):
    for path in map(Path, paths):
        notebook = json.loads(path.read_text())
        fix(notebook, path.name)
        path.write_text(to_json(notebook))
        for problem in find_problems(notebook, path.name):
            print(f"{path}: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
