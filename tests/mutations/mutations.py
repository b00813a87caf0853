"""Makes faults in the sources, one at a time, and verifies that a fast test notices each. Run manually:

    python -m pytest -n 2 -p executed_lines -m "not slow" tests     (once, for --random)
    python tests/mutations/mutations.py [--random N | --all] [--seed N] [NAME ...]

`mutations.txt` has faults in what the promises and results depend on, with the test that must fail; by default a random
tenth of them is tried. `--random` draws others from all that `operations.py` can make, and tries tests that execute the
line, or else the function. Each is made in a copy of the sources. The exit code is 1 if any of them is not noticed.
`test_mutations.py` verifies that the faults of `mutations.txt` can be made.
"""

import argparse
import atexit
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from executed_lines import FOLDERS, ExecutedLines
from operations import Mutation, list_mutations

ROOT = Path(__file__).parent.parent.parent
#: Libraries that take long to import; each process of tests starts from one that has imported them.
_LIBRARIES = ["tensorflow_datasets", "rlds", "tf_agents.replay_buffers.reverb_utils"]
#: Maximum seconds of the tests of a fault.
_TIMEOUT_SECS = 300
#: Maximum number of tests, and of their seconds, for a random fault.
_MAX_TESTS, _MAX_SECS = 500, 60.0
#: Tests of sources that run in programs, or of declarations that run on import, where calls are not recorded.
_UNRECORDED = {
    "cli/": ["tests/cli/test_cli.py"],
    "envs/_env_worker.py": ["tests/envs/test_parallel_environment.py", "tests/envs/test_faults.py"],
    "rlds2reverb/reverb/process/writer.py": [
        "tests/reverb/writing/test_guarantees.py",
        "tests/adders/test_ingest_adders.py",
    ],
    "rlds2reverb/reverb/process/": [f"tests/reverb/server/test_{name}.py" for name in ("process", "replay_server")],
    "training/cluster/": ["tests/training/cluster/test_*.py"],
    "training/config.py": ["tests/rules/test_run_identity.py", "tests/rules/test_options_are_applied.py"],
    "training/placement.py": ["tests/training/test_experiments.py"],
}


@dataclass(frozen=True)
class Fault:
    """A fault of `mutations.txt`, and the test, or file of tests, that must fail with it.

    Attributes:
      name: what goes wrong.
      file: path of the source in the project.
      tests: the test.
      change: the name of a mutation of the file, 'FUNCTION OPERATION NUMBER'; or the old and the new text.
    """

    name: str
    file: str
    tests: Sequence[str]
    change: str | tuple[str, str]

    def make(self) -> str:
        """Returns the source with the fault; raises `LookupError` if it cannot be made."""
        if isinstance(self.change, str):
            return _read_mutations(self.file)[f"{self.file}:{self.change}"]
        source = (ROOT / self.file).read_text()
        if source.count(self.change[0]) != 1:
            raise LookupError(f"update the text of this mutation, which is quoted from {self.file}")
        return source.replace(*self.change)


@cache
def _read_mutations(file: str) -> dict[str, str]:
    return {mutation.name: mutation.source for mutation in list_mutations(ROOT, file)}


def read_faults() -> list[Fault]:
    """Reads `mutations.txt`: blocks of a name, a file and its test, and a mutation's name or signed lines."""
    faults = []
    for block in (ROOT / "tests/mutations/mutations.txt").read_text().split("\n\n"):
        name, files, *lines = block.strip("\n").split("\n")
        file, test = files.split(" ", 1)
        old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        faults.append(Fault(name, file, [test], (old, new) if old else lines[0]))
    return faults


def draw_faults(number: int, seed: int | None) -> Iterator[Fault]:
    """Yields random faults in functions, and the tests to try."""
    executed, generator = ExecutedLines(), random.Random(seed)
    if not executed.seconds:
        sys.exit("no tests are recorded; run them with -p executed_lines first")
    files = sorted(str(path.relative_to(ROOT)) for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
    mutations = [mutation for file in files for mutation in list_mutations(ROOT, file) if mutation.function]
    for mutation in generator.sample(mutations, number):
        tests = _select_tests(mutation, executed)
        yield Fault(mutation.name, mutation.file, tests, mutation.name.removeprefix(f"{mutation.file}:"))


def _select_tests(mutation: Mutation, executed: ExecutedLines) -> list[str]:
    """Returns tests that execute the expression, or else the function around it; and files of tests of its module.

    The latter are those of which no test is selected: their tests may run the module in programs. The tests of the
    module's own file come first, then those of its folder, and those that compare with records; of each, one case of
    each test before further cases, the fastest first.
    """
    own, found = f"test_{Path(mutation.file).name}", set[str]()
    folder = f"tests/{mutation.file.removeprefix('rlds2reverb/').rpartition('/')[0]}/"
    for first, last in mutation.places:
        found = found or executed.find_tests(mutation.file, range(first, last + 1))
    cases, ranked, secs = Counter[str](), [], 0.0
    for duration, test in sorted((executed.seconds[test], test) for test in found):
        file, _, function = test.partition("::")
        case = f"{file}::{function.partition('[')[0]}"
        is_near = file.startswith(folder) or Path(file).name.startswith("test_recorded_")
        rank = 0 if Path(file).name == own else 1 if is_near else 2
        ranked.append((rank, cases[case], duration, test))
        cases[case] += 1
    tests: list[str] = []
    for *_, duration, test in sorted(ranked):
        if len(tests) < _MAX_TESTS and (not tests or secs + duration < _MAX_SECS):
            tests.append(test)
            secs += duration
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob(own))
    patterns = next((others for place, others in _UNRECORDED.items() if mutation.file.startswith(place)), [])
    files += [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    files.append("tests/rules/test_recorded_signatures.py")  # Defaults are executed on import.
    return [*tests, *(file for file in files if not any(test.startswith(f"{file}::") for test in tests))]


def find_noticing_test(fault: Fault) -> str | None:
    """Returns the first test that fails with the fault, or None if all pass."""
    if not fault.tests:
        return None
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for path in ROOT.iterdir():  # Tests of the documentation follow links to all of these.
            if path.is_dir() and not path.name.startswith((".", "build")):
                shutil.copytree(path, Path(folder, path.name), ignore=shutil.ignore_patterns("__pycache__"))
            elif path.is_file():
                shutil.copy(path, folder)
        for name in FOLDERS[1:]:  # Programs that tests start import the mutated layers, too.
            Path(folder, "rlds2reverb", name).symlink_to(Path(folder, name))
        Path(folder, fault.file).write_text(fault.make())
        code, output = _run_tests(fault.tests, folder)
        if code == pytest.ExitCode.USAGE_ERROR:  # The fault changes the names of tests.
            code, output = _run_tests(sorted({test.split("::")[0] for test in fault.tests}), folder)
    if code == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    is_imported = "while loading conftest" not in output
    if failed is None and is_imported and code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"{fault.tests} cannot run:\n{output[-2000:]}")
    return failed[1] if failed else "(timeout)" if code is None else "(the tests cannot start)"


def _run_tests(tests: Sequence[str], folder: str) -> tuple[int | None, str]:
    """Runs tests, or the fast tests of files, up to the first that fails; returns no code if they take too long."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LIBRARIES)
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow", *tests]
    process = context.Process(target=_run_in_process, args=(arguments, folder))
    process.start()
    process.join(_TIMEOUT_SECS)
    code = process.exitcode
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return code, Path(folder, "output").read_text(errors="replace")


def _run_in_process(arguments: Sequence[str], folder: str) -> None:
    os.setsid()
    os.chdir(folder)
    sys.path[0] = folder
    sys.modules["__main__"] = ModuleType("__main__")  # Processes that tests start would import this file.
    output = os.open("output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = pytest.main(list(arguments))
    sys.stdout.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def main() -> int:
    """Tries faults, prints the test that noticed each, and a summary by folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults of mutations.txt, instead of a random tenth")
    parser.add_argument("--all", action="store_true", help="try all faults of mutations.txt")
    parser.add_argument("--random", type=int, metavar="N", help="try N others, drawn at random")
    parser.add_argument("--seed", type=int, help="seed of the choice")
    parser.add_argument("--jobs", type=int, default=1, help="number of faults to try at a time")
    arguments = parser.parse_args()
    if arguments.random:
        selected = list(draw_faults(arguments.random, arguments.seed))
    else:
        faults = read_faults()
        selected = [fault for fault in faults if arguments.all or fault.name in arguments.names]
        if not arguments.all and not arguments.names:
            selected = random.Random(arguments.seed).sample(faults, -(-len(faults) // 10))
    total, noticed = Counter[str](), Counter[str]()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for fault, test in zip(selected, pool.map(find_noticing_test, selected), strict=True):
            place = "" if arguments.random else f" ({fault.file})"
            reason = test or (" ".join(fault.tests[:3]) or "no test calls the function")
            print(f"{'noticed' if test else 'MISSED '}  {fault.name}{place}: {reason}", flush=True)
            folder = fault.file.split("/")[0]
            total[folder] += 1
            noticed[folder] += test is not None
    for folder, number in sorted(total.items()):
        print(f"{folder:<12}  {noticed[folder]} of {number} noticed")
    print(f"{noticed.total()} of {total.total()} noticed")
    return int(noticed != total)


if __name__ == "__main__":
    sys.exit(main())
