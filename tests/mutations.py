"""Takes lines out that keep a promise, one at a time, and looks whether a fast test notices. Run by hand:

    .venv/bin/python tests/mutations.py [NAME ...]

Each mutation is made in a copy of the sources. It has to make the tests beside it fail; one that survives is printed,
and the exit code is 1.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROMISES = "tests/core/writing/test_promises.py"


@dataclass(frozen=True)
class Mutation:
    """Text of a file that is replaced, and the tests that have to notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    Mutation(
        "nothing is sent again",
        "rlds2reverb/_writing/bulk_writer.py",
        "            stream.send(batch)\n\n    def _require_same",
        "            pass\n\n    def _require_same",
        PROMISES,
    ),
    Mutation(
        "the journal of another start of the server is trusted",
        "rlds2reverb/_writing/server_destination.py",
        "if saved is None or saved.server_state_id != self._writer.state_id:",
        "if saved is None:",
        PROMISES,
    ),
    Mutation(
        "a table that holds fewer items than the journal says is not noticed",
        "rlds2reverb/_writing/server_destination.py",
        "if is_kept and infos[name].current_size < min(infos[name].max_size, saved.state.items):",
        "if False:",
        PROMISES,
    ),
    Mutation(
        "the journal is written before the confirmation",
        "rlds2reverb/_writing/server_destination.py",
        "while self._num_confirmed < self._writer.num_confirmed:",
        "while self._unconfirmed:",
        PROMISES,
    ),
    Mutation(
        "a restart is not noticed at the end",
        "rlds2reverb/_writing/reverb_writer.py",
        "        if server_state_id(self._client.server_address, timeout_secs=self._timeout_secs) != self.state_id:",
        "        if False:",
        PROMISES,
    ),
    Mutation(
        "a table that was reset is trusted",
        "rlds2reverb/_writing/server_destination.py",
        "return saved.state if self._has_first_items() else None",
        "return saved.state",
        "tests/core/writing/test_faults_server.py",
    ),
    Mutation(
        "other data are taken for those of the earlier run",
        "rlds2reverb/_writing/transfer.py",
        "        if fingerprint.hexdigest() != state.fingerprint:",
        "        if False:",
        "tests/core/writing/test_faults_server.py",
    ),
    Mutation(
        "keys that collide are not noticed",
        "rlds2reverb/_encoding/keys.py",
        "    if len(repeated):",
        "    if False:",
        "tests/core/encoding/test_keys.py",
    ),
    Mutation(
        "more items than a table holds",
        "rlds2reverb/ingestion.py",
        "    elif not allow_eviction:",
        "    elif False:",
        "tests/core/test_ingestion.py",
    ),
    Mutation(
        "a time-out counts while the process does not run",
        "rlds2reverb/_server/pausable_deadline.py",
        "min(now - self._seen, _MAX_TICKS_IN_A_GAP * self._tick_secs)",
        "now - self._seen",
        "tests/core/writing/test_faults_server.py",
    ),
    Mutation(
        "a file is not what its checksum says",
        "rlds2reverb/_sealed_json.py",
        'stored["sha256"] == _digest(stored["content"])',
        "True",
        "tests/core/test_sealed_json.py",
    ),
    Mutation(
        "no lock is held",
        "rlds2reverb/_server/locks.py",
        "fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "tests/core/server/test_locks.py",
    ),
    Mutation(
        "the discount at a terminal is kept",
        "rlds2reverb/trajectories.py",
        "    return where(zero, np.float32(0), discounts)",
        "    return where(zero & False, np.float32(0), discounts)",
        "tests/core/test_trajectories.py",
    ),
    Mutation(
        "a truncated episode loses its final observation",
        "rlds2reverb/sources/d4rl.py",
        "final_observations=None if following is None else following[ends - 1],",
        "final_observations=None,",
        "tests/core/sources/test_d4rl.py",
    ),
    Mutation(
        "windows run on into the next episode of a batch",
        "adders/n_step.py",
        "return None if num_steps.shape[0] == 1 else is_last_transition(left, factors)",
        "return None",
        "tests/adders/test_batches.py",
    ),
    Mutation(
        "the bootstrap at a truncation is lost",
        "adders/steps.py",
        "    return own * tf.cast(goes_on, dtype)",
        "    last = tf.concat([tf.ones_like(own[:-1]), tf.zeros_like(own[-1:])], 0)\n"
        "    return own * tf.cast(goes_on, dtype) * last",
        "tests/adders/test_n_step.py",
    ),
]


def survives(mutation: Mutation) -> bool:
    """Whether the tests pass although the line is gone."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in ("rlds2reverb", "adders", "cli", "tests"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        path = Path(folder, mutation.file)
        text = path.read_text()
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.name}: {mutation.file} has the text {text.count(mutation.old)} times")
        path.write_text(text.replace(mutation.old, mutation.new))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
            mutation.tests,
        ]
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=600).returncode == 0


def main() -> int:
    chosen = [mutation for mutation in MUTATIONS if not sys.argv[1:] or mutation.name in sys.argv[1:]]
    survivors = []
    for mutation in chosen:
        if alive := survives(mutation):
            survivors.append(mutation)
        print(f"{'SURVIVES' if alive else 'noticed '}  {mutation.name}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
