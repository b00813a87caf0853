"""Prints which results were measured before their agent's code changed:

    python benchmarks/stale_results.py

The code of an agent is its module and the modules of `learners/agents` that it imports. Changes of comments count.
"""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

from learning import VARIANTS
from learning_arm import AGENTS as CLONES
from records import ROOT, read

from rlds2reverb.learners.algorithms import ALGORITHMS

AGENTS = ROOT / "learners/agents"
#: The algorithm of each agent of a file.
ALGOS = {
    **{name: name for name in ALGORITHMS},
    **{name: variant["algo"] for name, variant in VARIANTS.items()},
    **dict.fromkeys(CLONES, "bc"),
}


@cache
def find_modules(module: str) -> frozenset[Path]:
    """Returns the files of a module of `learners/agents` and of those that it imports from there."""
    found, waiting = set[Path](), [AGENTS / f"{module}.py"]
    while waiting:
        path = waiting.pop()
        if path.is_file() and path not in found:
            found.add(path)
            nodes = ast.walk(ast.parse(path.read_text()))
            imports = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 1)
            waiting += [AGENTS / f"{node.module}.py" for node in imports]
    return frozenset(found)


def list_changes(commit: str, algo: str) -> list[str]:
    """Returns a line for each later commit that changed the code of an algorithm, the latest first."""
    files = map(str, find_modules(ALGORITHMS[algo].agent.partition(":")[0]))
    command = ["git", "log", "--format=%h %s", f"{commit.rstrip('+')}..HEAD", "--", *files]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> None:
    for path in sorted((ROOT / "docs/results").glob("*.csv")):
        for agent, commit in sorted({(row["agent"], row["commit"]) for row in read(path) if "commit" in row}):
            changes = list_changes(commit, ALGOS[agent])
            state = f"{len(changes)} changes since, the latest: {changes[0]}" if changes else "as now"
            print(f"{path.stem}, {agent}, at {commit}: {state}")


if __name__ == "__main__":
    main()
