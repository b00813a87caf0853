"""Removes safety checks from the sources, one at a time, and verifies that a fast test fails. Run manually:

    .venv/bin/python tests/mutations.py [NAME ...]

Each mutation is applied to a copy of the sources and must make its tests fail. The exit code is 1 if any of them
survives. `test_mutations.py` verifies that the text to replace exists.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
GUARANTEES = "tests/core/writing/test_guarantees.py"


@dataclass(frozen=True)
class Mutation:
    """A replacement of `old` by `new` in one file, and the tests that must fail with it."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    Mutation(
        "batches are not sent",
        "rlds2reverb/_writing/bulk_writer.py",
        "            self._send(batch)\n\n    def _require_same_server",
        "            pass\n\n    def _require_same_server",
        GUARANTEES,
    ),
    Mutation(
        "the journal of a previous server process is trusted",
        "rlds2reverb/_writing/server_destination.py",
        "if saved is None or saved.server_state_id != self._writer.state_id:",
        "if saved is None:",
        GUARANTEES,
    ),
    Mutation(
        "a table with fewer items than the journal says is accepted",
        "rlds2reverb/_writing/server_destination.py",
        "if is_kept and infos[name].current_size < min(infos[name].max_size, saved.state.items):",
        "if False:",
        GUARANTEES,
    ),
    Mutation(
        "the journal is written before the server confirms",
        "rlds2reverb/_writing/bulk_writer.py",
        "while self._unconfirmed_writes and self._unconfirmed_writes[0][0] <= num_confirmed:",
        "while self._unconfirmed_writes:",
        GUARANTEES,
    ),
    Mutation(
        "a server restart at the end is not detected",
        "rlds2reverb/_writing/reverb_writer.py",
        "        if server_state_id(self._client.server_address, timeout_secs=self._timeout_secs) != self.state_id:",
        "        if False:",
        GUARANTEES,
    ),
    Mutation(
        "a table that was reset is trusted",
        "rlds2reverb/_writing/server_destination.py",
        "return saved.state if self._has_first_items() else None",
        "return saved.state",
        "tests/core/writing/test_faults_server.py",
    ),
    Mutation(
        "different data are accepted when resuming",
        "rlds2reverb/_writing/transfer.py",
        "        if fingerprint.hexdigest() != self.fingerprint:",
        "        if False:",
        "tests/core/writing/test_faults_server.py",
    ),
    Mutation(
        "key collisions are not detected",
        "rlds2reverb/_encoding/keys.py",
        "    if len(repeated):",
        "    if False:",
        "tests/core/encoding/test_keys.py",
    ),
    Mutation(
        "more items than a table holds are accepted",
        "rlds2reverb/ingestion.py",
        "    elif not allow_eviction:",
        "    elif False:",
        "tests/core/test_ingestion.py",
    ),
    Mutation(
        "timeouts count while the process is suspended",
        "rlds2reverb/_server/pausable_deadline.py",
        "min(now - self._last_read, _MAX_TICKS_PER_GAP * self._tick_secs)",
        "now - self._last_read",
        "tests/core/writing/test_faults_server.py",
    ),
    Mutation(
        "checksums of files are not verified",
        "rlds2reverb/_sealed_files.py",
        'stored["xxh3_128"] == _json_digest(stored["content"])',
        "True",
        "tests/core/test_sealed_files.py",
    ),
    Mutation(
        "file locks are not acquired",
        "rlds2reverb/_file_lock.py",
        "fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "tests/core/test_file_lock.py",
    ),
    Mutation(
        "the discount at a terminal step is kept",
        "rlds2reverb/trajectories.py",
        "    return where(is_zero, np.float32(0), discounts)",
        "    return where(is_zero & False, np.float32(0), discounts)",
        "tests/core/test_trajectories.py",
    ),
    Mutation(
        "a truncated episode loses its final observation",
        "rlds2reverb/sources/d4rl.py",
        "final_observations=None if next_observations is None else next_observations[ends - 1],",
        "final_observations=None,",
        "tests/core/sources/test_d4rl.py",
    ),
    Mutation(
        "n-step windows cross episode boundaries in a batch",
        "adders/n_step.py",
        "return None if num_steps.shape[0] == 1 else mark_last_transitions(left, factors)",
        "return None",
        "tests/adders/test_batches.py",
    ),
    Mutation(
        "TD3's target noise is not clipped",
        "learners/agents/td3_bc.py",
        "noise=self._policy_noise, clip=self._noise_clip",
        "noise=self._policy_noise, clip=9.0",
        "tests/learners/agents/test_updates.py",
    ),
    Mutation(
        "optimiser variables do not exist before a checkpoint is restored",
        "learners/learner.py",
        "        self._loop.prepare()  # Keras optimisers create their variables during tracing.\n        self._checkpoints",
        "        self._checkpoints",
        "tests/learners/test_resume.py",
    ),
    Mutation(
        "counters are incremented although reading the batch failed",
        "learners/train_loop.py",
        "with tf.control_dependencies(arrived):",
        "with tf.control_dependencies([]):",
        "tests/learners/test_learner.py",
    ),
    Mutation(
        "a part of a failed update is saved",
        "learners/learner.py",
        "if self._loop.is_update_incomplete:",
        "if False:",
        "tests/learners/test_learner.py",
    ),
    Mutation(
        "the expectile loss of IQL is mirrored",
        "learners/agents/iql.py",
        "tf.where(difference < 0,",
        "tf.where(difference > 0,",
        "tests/learners/agents/test_updates.py",
    ),
    Mutation(
        "discrete actions out of bounds are accepted",
        "learners/agents/offline_agent.py",
        "            action, weights = self._actions.require_valid(action, weights)",
        "            pass",
        "tests/learners/agents/test_discrete.py",
    ),
    Mutation(
        "the bootstrap at a truncation is lost",
        "adders/steps.py",
        "    return step_discounts * tf.cast(continues, dtype)",
        "    mask = tf.concat([tf.ones_like(step_discounts[:-1]), tf.zeros_like(step_discounts[-1:])], 0)\n"
        "    return step_discounts * tf.cast(continues, dtype) * mask",
        "tests/adders/test_n_step.py",
    ),
    Mutation(
        "training does not validate episodes",
        "training/dataset.py",
        "        raw.require_valid(self.step_spec)",
        "        pass",
        "tests/training/test_data.py",
    ),
    Mutation(
        "actions of the best episodes come from others",
        "training/dataset.py",
        "kept = select_episodes(batch, is_kept[first:end])",
        "kept = select_episodes(batch, is_kept[: end - first])",
        "tests/training/test_data.py",
    ),
    Mutation(
        "moments include final observations",
        "rlds2reverb/sources/moments.py",
        "leaf.add(column[has_action])",
        "leaf.add(column)",
        "tests/core/sources/test_moments.py",
    ),
    Mutation(
        "actions are clipped without a margin",
        "rlds2reverb/sources/transforms.py",
        "margin = eps * (high - low) / 2",
        "margin = 0",
        "tests/core/sources/test_transforms.py",
    ),
    Mutation(
        "a dataset's environment may import modules",
        "training/environment.py",
        "elif spec.has_wrappers or any(isinstance(value, str) for value in spec.arguments.values()):",
        "elif False:",
        "tests/training/test_environment.py",
    ),
    Mutation(
        "weights of prioritized batches do not correct the probabilities",
        "training/batches.py",
        "samples = sample_dataset(server, table, size, beta=1.0, prefetch=_PREFETCH)",
        "samples = sample_dataset(server, table, size, beta=0.0, prefetch=_PREFETCH)",
        "tests/training/test_batches.py",
    ),
    Mutation(
        "a time limit terminates the episode",
        "envs/time_limit.py",
        "return time_step._replace(step_type=LAST)",
        "return time_step._replace(step_type=LAST, discount=time_step.discount * 0)",
        "tests/envs/test_time_steps.py",
    ),
    Mutation(
        "the episode of a failed environment continues",
        "envs/_env_worker.py",
        "rows.truncate(row)",
        "pass",
        "tests/envs/test_parallel_environment.py",
    ),
]


def survives(mutation: Mutation) -> bool:
    """Returns whether the tests pass with the mutation."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in ("rlds2reverb", "adders", "learners", "envs", "training", "cli", "tests"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        path = Path(folder, mutation.file)
        path.write_text(path.read_text().replace(mutation.old, mutation.new))
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
        command = [sys.executable, "-m", "pytest", *options, mutation.tests]
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=600).returncode == 0


def main() -> int:
    selected = [mutation for mutation in MUTATIONS if not sys.argv[1:] or mutation.name in sys.argv[1:]]
    num_survivors = 0
    for mutation in selected:
        has_survived = survives(mutation)
        num_survivors += has_survived
        print(f"{'SURVIVED' if has_survived else 'detected'}  {mutation.name}", flush=True)
    return 1 if num_survivors else 0


if __name__ == "__main__":
    sys.exit(main())
