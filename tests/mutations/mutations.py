"""Makes one-line faults in the sources, one at a time, and verifies that a fast test notices each. Run manually:

    .venv/bin/python tests/mutations/mutations.py [--all] [--seed N] [NAME ...]

`mutations.txt` has the faults; by default a random tenth of them is tried. Each is made in a copy of the sources, and
must make its tests fail. The exit code is 1 if any of them is not noticed. `test_mutations.py` verifies that the text to
replace exists.
"""

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
#: Folders that setup.py maps to sub-packages of `rlds2reverb`.
LAYERS = ("adders", "learners", "envs", "training", "cli")


@dataclass(frozen=True)
class Mutation:
    """A replacement of `old` by `new` in one file, and the test, or file of tests, that must fail with it."""

    name: str
    file: str
    test: str
    old: str
    new: str


def read_mutations() -> list[Mutation]:
    """Reads `mutations.txt`: blocks of a name, a file and its test, and old and new lines with their signs."""
    mutations = []
    for block in (ROOT / "tests/mutations/mutations.txt").read_text().split("\n\n"):
        name, files, *lines = block.strip("\n").split("\n")
        old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        file, test = files.split(" ", 1)
        mutations.append(Mutation(name, file, test, old, new))
    return mutations


def find_noticing_test(mutation: Mutation) -> str | None:
    """Returns the first test that fails with the mutation, or None if all pass."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in ("rlds2reverb", *LAYERS, "tests"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        for name in LAYERS:  # Programs that tests start import the mutated layers, too.
            Path(folder, "rlds2reverb", name).symlink_to(Path(folder, name))
        for name in ("conftest.py", "pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, folder)
        path = Path(folder, mutation.file)
        path.write_text(path.read_text().replace(mutation.old, mutation.new))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutation.test]
        command += [] if "::" in mutation.test else ["-m", "not slow"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if run.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if failed is None:
        raise RuntimeError(f"{mutation.test} cannot run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return failed[1]


def main() -> int:
    """Tries mutations, prints the test that noticed each, and a summary by folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to try, instead of a random tenth")
    parser.add_argument("--all", action="store_true", help="try all mutations")
    parser.add_argument("--seed", type=int, help="seed of the choice")
    arguments = parser.parse_args()
    mutations = read_mutations()
    selected = [mutation for mutation in mutations if arguments.all or mutation.name in arguments.names]
    if not arguments.all and not arguments.names:
        selected = random.Random(arguments.seed).sample(mutations, -(-len(mutations) // 10))
    total, noticed = Counter[str](), Counter[str]()
    for mutation in selected:
        test = find_noticing_test(mutation)
        print(
            f"{'noticed' if test else 'MISSED '}  {mutation.name} ({mutation.file}): {test or mutation.test}",
            flush=True,
        )
        folder = mutation.file.split("/")[0]
        total[folder] += 1
        noticed[folder] += test is not None
    for folder, number in sorted(total.items()):
        print(f"{folder:<12}  {noticed[folder]} of {number} noticed")
    return int(noticed != total)


if __name__ == "__main__":
    sys.exit(main())
