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
#: Parts of the package, in the order of the summary.
AREAS = ("ingestion", "sampling", "replay", "agents", "learner", "environments")
#: Folders that setup.py maps to sub-packages of `rlds2reverb`.
LAYERS = ("adders", "learners", "envs", "training", "cli")
GUARANTEES = "tests/core/writing/test_guarantees.py"


@dataclass(frozen=True)
class Mutation:
    """A replacement of `old` by `new` in one file, and the tests that must fail with it; `area` is one of `AREAS`."""

    name: str
    area: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    Mutation(
        "batches are not sent",
        "ingestion",
        "rlds2reverb/_writing/bulk_writer.py",
        "            self._send(batch)\n\n    def _require_same_server",
        "            pass\n\n    def _require_same_server",
        GUARANTEES,
    ),
    Mutation(
        "the journal of a previous server process is trusted",
        "ingestion",
        "rlds2reverb/_writing/server_destination.py",
        "if saved is None or saved.server_state_id != self._writer.state_id:",
        "if saved is None:",
        GUARANTEES,
    ),
    Mutation(
        "a table that has lost items is accepted",
        "ingestion",
        "rlds2reverb/_writing/server_destination.py",
        "return is_removed or info.current_size < saved.state.items",
        "return info.current_size < saved.state.items",
        GUARANTEES,
    ),
    Mutation(
        "a table that has too few items is accepted",
        "ingestion",
        "rlds2reverb/_writing/server_destination.py",
        "return is_removed or info.current_size < saved.state.items",
        "return is_removed",
        GUARANTEES,
    ),
    Mutation(
        "the journal is written before the server confirms",
        "ingestion",
        "rlds2reverb/_writing/bulk_writer.py",
        "while self._unconfirmed_writes and self._unconfirmed_writes[0][0] <= num_confirmed:",
        "while self._unconfirmed_writes:",
        GUARANTEES,
    ),
    Mutation(
        "a server restart at the end is not detected",
        "ingestion",
        "rlds2reverb/_writing/reverb_writer.py",
        "        if server_state_id(self._client.server_address, timeout_secs=self._timeout_secs) != self.state_id:",
        "        if False:",
        GUARANTEES,
    ),
    Mutation(
        "a table that was reset is trusted",
        "ingestion",
        "rlds2reverb/_writing/server_destination.py",
        "return saved.state if self._has_first_items() else None",
        "return saved.state",
        "tests/core/writing/test_faults_server.py",
    ),
    Mutation(
        "different data are accepted when resuming",
        "ingestion",
        "rlds2reverb/_writing/transfer.py",
        "        if fingerprint.hexdigest() != self.fingerprint:",
        "        if False:",
        "tests/core/writing/test_faults_server.py",
    ),
    Mutation(
        "key collisions are not detected",
        "ingestion",
        "rlds2reverb/_encoding/keys.py",
        "    if len(repeated):",
        "    if False:",
        "tests/core/encoding/test_keys.py",
    ),
    Mutation(
        "more items than a table holds are accepted",
        "ingestion",
        "rlds2reverb/ingestion.py",
        "    elif not allow_eviction:",
        "    elif False:",
        "tests/core/test_ingestion.py",
    ),
    Mutation(
        "the discount at a terminal step is kept",
        "ingestion",
        "rlds2reverb/trajectories.py",
        "    return where(is_zero, np.float32(0), discounts)",
        "    return where(is_zero & False, np.float32(0), discounts)",
        "tests/core/test_trajectories.py",
    ),
    Mutation(
        "a truncated episode loses its final observation",
        "ingestion",
        "rlds2reverb/sources/d4rl.py",
        "final_observations=None if next_observations is None else next_observations[ends - 1],",
        "final_observations=None,",
        "tests/core/sources/test_d4rl.py",
    ),
    Mutation(
        "n-step windows cross episode boundaries in a batch",
        "ingestion",
        "adders/n_step.py",
        "return None if num_steps.shape[0] == 1 else mark_last_transitions(left, factors)",
        "return None",
        "tests/adders/test_batches.py",
    ),
    Mutation(
        "the bootstrap at a truncation is lost",
        "ingestion",
        "adders/steps.py",
        "    return step_discounts * tf.cast(continues, dtype)",
        "    mask = tf.concat([tf.ones_like(step_discounts[:-1]), tf.zeros_like(step_discounts[-1:])], 0)\n"
        "    return step_discounts * tf.cast(continues, dtype) * mask",
        "tests/adders/test_n_step.py",
    ),
    Mutation(
        "training does not validate episodes",
        "ingestion",
        "training/dataset.py",
        "        raw.require_valid(self.step_spec)",
        "        pass",
        "tests/training/test_data.py",
    ),
    Mutation(
        "actions of the best episodes come from others",
        "ingestion",
        "training/dataset.py",
        "kept = select_episodes(batch, is_kept[first:end])",
        "kept = select_episodes(batch, is_kept[: end - first])",
        "tests/training/test_data.py",
    ),
    Mutation(
        "moments include final observations",
        "ingestion",
        "rlds2reverb/sources/moments.py",
        "leaf.add(column[has_action])",
        "leaf.add(column)",
        "tests/core/sources/test_moments.py",
    ),
    Mutation(
        "actions are clipped without a margin",
        "ingestion",
        "rlds2reverb/sources/transforms.py",
        "margin = eps * (high - low) / 2",
        "margin = 0",
        "tests/core/sources/test_transforms.py",
    ),
    Mutation(
        "weights of prioritized batches do not correct the probabilities",
        "sampling",
        "training/batches.py",
        "samples = sample_dataset(server, table, size, beta=1.0, prefetch=PREFETCH)",
        "samples = sample_dataset(server, table, size, beta=0.0, prefetch=PREFETCH)",
        "tests/training/test_batches.py",
    ),
    Mutation(
        "the exponent of importance weights does not rise",
        "sampling",
        "rlds2reverb/sampling/importance.py",
        "return self.start + (self.end - self.start) * progress",
        "return self.start + 0 * progress",
        "tests/core/sampling/test_importance.py",
    ),
    Mutation(
        "priorities are written to the keys of other items",
        "sampling",
        "rlds2reverb/sampling/priority_writer.py",
        "                    values[rows],\n",
        "                    values[: rows.sum()],\n",
        "tests/core/sampling/test_priority_writer.py",
    ),
    Mutation(
        "servers are numbered in a different order when priorities are written",
        "sampling",
        "rlds2reverb/sampling/priority_writer.py",
        "for client in connect_all(servers)]",
        "for client in reversed(connect_all(servers))]",
        "tests/core/sampling/test_priority_writer.py",
    ),
    Mutation(
        "weights ignore how much each server contributes to a batch",
        "sampling",
        "rlds2reverb/sampling/importance.py",
        "return probabilities * tf.gather(fractions, servers), sizes + others",
        "return probabilities, sizes + others",
        "tests/core/sampling/test_importance.py",
    ),
    Mutation(
        "a server may contribute more than its share",
        "sampling",
        "rlds2reverb/sampling/dataset.py",
        "is_kept = tf.gather(counts, server) <= share * num_kept + 1",
        "is_kept = tf.constant(True)",
        "tests/core/sampling/test_dataset.py",
    ),
    Mutation(
        "the share of a lost server stays reserved for it",
        "sampling",
        "rlds2reverb/sampling/dataset.py",
        "tf.where(is_recent, totals, 0.0)",
        "totals",
        "tests/core/sampling/test_dataset.py",
    ),
    Mutation(
        "shares of servers ignore the exponents of their tables",
        "sampling",
        "rlds2reverb/sampling/dataset.py",
        "exponent = tf.gather(tf.constant(exponents, tf.float64), server)",
        "exponent = tf.constant(1.0, tf.float64)",
        "tests/core/sampling/test_dataset.py",
    ),
    Mutation(
        "updated priorities exceed those of new items",
        "sampling",
        "rlds2reverb/sampling/priority_writer.py",
        "            priorities *= min(",
        "            _ = min(",
        "tests/core/sampling/test_priority_writer.py",
    ),
    Mutation(
        "the lowest probability ignores the exponent of the priorities",
        "sampling",
        "rlds2reverb/sampling/importance.py",
        "tf.where(priorities > 0, ratios, 1) ** exponents",
        "tf.where(priorities > 0, ratios, 1)",
        "tests/core/sampling/test_dataset.py",
    ),
    Mutation(
        "padding is not masked",
        "sampling",
        "rlds2reverb/sampling/dataset.py",
        "tf.sequence_mask(lengths, tf.shape(tree.flatten(data)[timed])[1])",
        "tf.sequence_mask(0 * lengths + tf.reduce_max(lengths), tf.shape(tree.flatten(data)[timed])[1])",
        "tests/core/sampling/test_dataset.py",
    ),
    Mutation(
        "priorities of a mixture go to a different dataset",
        "sampling",
        "rlds2reverb/sampling/priority_sinks.py",
        "[sinks[name] for name in sorted(sinks)]",
        "[sinks[name] for name in sinks]",
        "tests/core/sampling/test_priority_sinks.py",
    ),
    Mutation(
        "a server counts as lost although its samples arrive",
        "sampling",
        "rlds2reverb/sampling/interleaving.py",
        "reset = tf.where(tf.range(num_streams) == index, 0, ticks)",
        "reset = ticks",
        "tests/core/sampling/test_faults.py",
    ),
    Mutation(
        "an unavailable server keeps the others from being updated",
        "sampling",
        "rlds2reverb/sampling/priority_writer.py",
        "                failures.append((connection.address, error))",
        "                failures.append((connection.address, error))\n                break",
        "tests/core/sampling/test_priority_writer.py",
    ),
    Mutation(
        "tables sampled at random and in order are combined",
        "sampling",
        "rlds2reverb/sampling/server_tables.py",
        "    if in_order != expected.sampler_options.is_deterministic:",
        "    if False:",
        "tests/core/sampling/test_dataset.py",
    ),
    Mutation(
        "timeouts count while the process is suspended",
        "replay",
        "rlds2reverb/_server/pausable_deadline.py",
        "min(now - self._last_read, _MAX_TICKS_PER_GAP * self._tick_secs)",
        "now - self._last_read",
        "tests/core/server/test_pausable_deadline.py",
    ),
    Mutation(
        "a restored buffer continues with a different generator",
        "replay",
        "rlds2reverb/replay/contents.py",
        '            generator.bit_generator.state = header["generator"]\n',
        "",
        "tests/core/replay/test_checkpoints.py",
    ),
    Mutation(
        "elements are used once more than `max_use`",
        "replay",
        "rlds2reverb/replay/element_table.py",
        "return uses, slots[uses >= self.max_use]",
        "return uses, slots[uses > self.max_use]",
        "tests/core/replay/test_buffers.py",
    ),
    Mutation(
        "beta of a buffer does not rise",
        "replay",
        "rlds2reverb/replay/contents.py",
        "            self.beta = min(1.0, self.beta + (1 - config.beta) / config.anneal_step)",
        "            pass",
        "tests/core/replay/test_sampling.py",
    ),
    Mutation(
        "sums of priorities are not updated with the leaves",
        "replay",
        "rlds2reverb/replay/trees.py",
        "                level[positions] = self._reduce(rows.take(positions, axis=0))",
        "                pass",
        "tests/core/replay/test_trees.py",
    ),
    Mutation(
        "the exponent of priorities is not applied",
        "replay",
        "rlds2reverb/replay/element_table.py",
        "powers: np.ndarray = priorities**self._alpha",
        "powers: np.ndarray = priorities.copy()",
        "tests/core/replay/test_sampling.py",
    ),
    Mutation(
        "updates reach elements that replaced the sampled ones",
        "replay",
        "rlds2reverb/replay/element_table.py",
        "return in_window & self.alive[numbers % self.max_size]",
        "return self.alive[numbers % self.max_size]",
        "tests/core/replay/test_sampling.py",
    ),
    Mutation(
        "elements are removed one iteration after they are stale",
        "replay",
        "rlds2reverb/replay/element_table.py",
        "self._queue.pop(learner_iter - self._max_staleness)",
        "self._queue.pop(learner_iter - self._max_staleness - 1)",
        "tests/core/replay/test_buffers.py",
    ),
    Mutation(
        "a snapshot contains elements pushed later",
        "replay",
        "rlds2reverb/replay/snapshots.py",
        "            if block >= self._next and block not in self._kept:",
        "            if False:",
        "tests/core/replay/test_checkpoints.py",
    ),
    Mutation(
        "replaced elements still count as candidates",
        "replay",
        "rlds2reverb/replay/element_table.py",
        "        self._forget(self._to_slots(displaced), len(displaced))",
        "        self.count -= len(displaced)",
        "tests/core/replay/test_model.py",
    ),
    Mutation(
        "weights are relative to the batch instead of the buffer",
        "replay",
        "rlds2reverb/replay/contents.py",
        'uses_buffer = config.weight_normalization == "buffer"',
        "uses_buffer = False",
        "tests/core/replay/test_limits.py",
    ),
    Mutation(
        "the commit is written before all shards have a checkpoint",
        "replay",
        "rlds2reverb/_server/sharded_server.py",
        "            self._commits.add([write_shard(server, name, timeout_secs=timeout_secs) for server, name in pairs])",
        (
            "            names = self._commits.newest\n"
            "            for shard, (server, name) in enumerate(pairs):\n"
            "                names[shard] = write_shard(server, name, timeout_secs=timeout_secs)\n"
            "                self._commits.add(names)"
        ),
        "tests/core/server/test_sharded_server.py",
    ),
    Mutation(
        "shards start from checkpoints of different commits",
        "replay",
        "rlds2reverb/_server/commits.py",
        "            for root, name in zip(roots, self.newest, strict=True):\n                notes += [",
        "            for root, name in ():\n                notes += [",
        "tests/core/server/test_sharded_server.py",
    ),
    Mutation(
        "the replay servers of a cluster are committed after the first answer",
        "replay",
        "training/cluster/replay_shards.py",
        "        return answers == [self._request] * self._num_shards",
        "        return self._request in answers",
        "tests/training/cluster/test_replay_shards.py",
    ),
    Mutation(
        "damaged checkpoints of a server are accepted",
        "replay",
        "rlds2reverb/_server/checkpoint_root.py",
        '            _verify_digests(checkpoint, manifest["files"])\n        return',
        "            pass\n        return",
        "tests/core/server/test_checkpoint_choice.py",
    ),
    Mutation(
        "TD3's target noise is not clipped",
        "agents",
        "learners/agents/td3_bc.py",
        "noise=self._policy_noise, clip=self._noise_clip",
        "noise=self._policy_noise, clip=9.0",
        "tests/learners/agents/test_updates.py",
    ),
    Mutation(
        "the expectile loss of IQL is mirrored",
        "agents",
        "learners/agents/iql.py",
        "tf.where(difference < 0,",
        "tf.where(difference > 0,",
        "tests/learners/agents/test_updates.py",
    ),
    Mutation(
        "discrete actions out of bounds are accepted",
        "agents",
        "learners/agents/offline_agent.py",
        "            action, weights = self._actions.require_valid(action, weights)",
        "            pass",
        "tests/learners/agents/test_discrete.py",
    ),
    Mutation(
        "IQL bootstraps from terminal steps",
        "agents",
        "learners/agents/iql.py",
        "batch.reward + self._discount * batch.discount * next_value",
        "batch.reward + self._discount * next_value",
        "tests/learners/agents/test_updates.py",
    ),
    Mutation(
        "importance weights are missing from TD3's loss",
        "agents",
        "learners/agents/td3_bc.py",
        "tf.reduce_mean(batch.weights * tf.reduce_sum(tf.square(td), axis=0)), td",
        "tf.reduce_mean(tf.reduce_sum(tf.square(td), axis=0)), td",
        "tests/learners/agents/test_offline_agent.py",
    ),
    Mutation(
        "target networks never move",
        "agents",
        "learners/agents/networks.py",
        "assign_on_replica(self.flat, self.flat + rate * (online.flat - self.flat))",
        "assign_on_replica(self.flat, self.flat + 0.0)",
        "tests/learners/agents/test_networks.py",
    ),
    Mutation(
        "TD3 updates the actor in every step",
        "agents",
        "learners/agents/td3_bc.py",
        "is_due = tf.equal((self.train_step_counter + 1) % self._policy_delay, 0)",
        "is_due = tf.constant(True)",
        "tests/learners/agents/test_updates.py",
    ),
    Mutation(
        "double DQN selects actions by the target network",
        "agents",
        "learners/agents/dqn.py",
        "self._critic(batch.next_observation) if self._double else values",
        "values",
        "tests/learners/agents/test_discrete.py",
    ),
    Mutation(
        "TD3+BC scales values by the magnitude of their mean",
        "agents",
        "learners/agents/td3_bc.py",
        "tf.stop_gradient(tf.reduce_mean(tf.abs(value)))",
        "tf.stop_gradient(tf.abs(tf.reduce_mean(value)))",
        "tests/learners/agents/test_updates.py",
    ),
    Mutation(
        "CQL's learned weight ignores the weight of the penalty",
        "agents",
        "learners/agents/cql.py",
        "gap = self._min_q_weight * tf.reduce_mean(penalty)",
        "gap = tf.reduce_mean(penalty)",
        "tests/learners/agents/test_cql.py",
    ),
    Mutation(
        "CQL's penalty has the opposite sign",
        "agents",
        "learners/agents/cql.py",
        "tf.square(td) + self.penalty_weight() * self._min_q_weight * penalty",
        "tf.square(td) - self.penalty_weight() * self._min_q_weight * penalty",
        "tests/learners/agents/test_cql.py",
    ),
    Mutation(
        "AWAC's weights are not clipped",
        "agents",
        "learners/agents/awac.py",
        "tf.minimum(tf.exp(advantage / self._lambda), self._max_weight)",
        "tf.exp(advantage / self._lambda)",
        "tests/learners/agents/test_awac.py",
    ),
    Mutation(
        "SAC's temperature falls while the entropy is too low",
        "agents",
        "learners/agents/temperature.py",
        "-tf.stop_gradient(",
        "tf.stop_gradient(",
        "tests/learners/agents/test_sac.py",
    ),
    Mutation(
        "the noise is the same in every step",
        "agents",
        "learners/agents/offline_agent.py",
        "self.train_step_counter.read_value()])",
        "tf.zeros([], tf.int64)])",
        "tests/learners/agents/test_offline_agent.py",
    ),
    Mutation(
        "the learning rate does not decay",
        "agents",
        "learners/agents/adam.py",
        "return self._learning_rate * 0.5 * (1.0 + tf.cos(np.float32(np.pi) * done))",
        "return self._learning_rate + 0.0 * done",
        "tests/learners/agents/test_networks.py",
    ),
    Mutation(
        "observations are not divided by their standard deviation",
        "agents",
        "learners/agents/spaces.py",
        "(joined - self._mean) * self._scale",
        "joined - self._mean",
        "tests/learners/agents/test_spaces.py",
    ),
    Mutation(
        "checksums of files are not verified",
        "learner",
        "rlds2reverb/_sealed_files.py",
        'stored["xxh3_128"] == _json_digest(stored["content"])',
        "True",
        "tests/core/test_sealed_files.py",
    ),
    Mutation(
        "file locks are not acquired",
        "learner",
        "rlds2reverb/_file_lock.py",
        "fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "tests/core/test_file_lock.py",
    ),
    Mutation(
        "optimiser variables do not exist before a checkpoint is restored",
        "learner",
        "learners/learner.py",
        "        self._loop.prepare()  # Keras optimisers create their variables during tracing.\n        self._checkpoints",
        "        self._checkpoints",
        "tests/learners/test_resume.py",
    ),
    Mutation(
        "counters are incremented although reading the batch failed",
        "learner",
        "learners/train_loop.py",
        "with tf.control_dependencies(arrived):",
        "with tf.control_dependencies([]):",
        "tests/learners/test_learner.py",
    ),
    Mutation(
        "a part of a failed update is saved",
        "learner",
        "learners/learner.py",
        "if self._loop.is_update_incomplete:",
        "if False:",
        "tests/learners/test_learner.py",
    ),
    Mutation(
        "optimiser states are not restored",
        "learner",
        "learners/learner.py",
        "        self._checkpoints.restore(checkpoint)\n        self._hyperparameters",
        "        load_weights(checkpoint, self.agent)\n        self._hyperparameters",
        "tests/learners/test_resume.py",
    ),
    Mutation(
        "log entries after the checkpoint are kept in a resumed run",
        "learner",
        "learners/run_log.py",
        "            self._run.cut_after(*self._kept_steps)",
        "            pass",
        "tests/learners/test_resume.py",
    ),
    Mutation(
        "one checkpoint more than `keep_checkpoints` is kept",
        "learner",
        "learners/checkpoints.py",
        "if earlier <= step][-self._num_kept :]",
        "if earlier <= step][-self._num_kept - 1 :]",
        "tests/learners/test_checkpoints.py",
    ),
    Mutation(
        "the best checkpoint is deleted with the old ones",
        "learner",
        "learners/checkpoints.py",
        "[-self._num_kept :], best}",
        "[-self._num_kept :]}",
        "tests/learners/test_checkpoints.py",
    ),
    Mutation(
        "files are overwritten in place",
        "learner",
        "rlds2reverb/_sealed_files.py",
        'temporary = path.with_suffix(".tmp")',
        "temporary = path",
        "tests/core/test_sealed_files.py",
    ),
    Mutation(
        "a folder is deleted before its replacement is complete",
        "learner",
        "rlds2reverb/_sealed_files.py",
        "        shutil.rmtree(partial, ignore_errors=True)\n        try:",
        (
            "        shutil.rmtree(partial, ignore_errors=True)\n"
            "        shutil.rmtree(path, ignore_errors=True)\n"
            "        try:"
        ),
        "tests/core/test_sealed_files.py",
    ),
    Mutation(
        "the best checkpoint of an abandoned branch stays the best",
        "learner",
        "learners/checkpoints.py",
        'self._best = checkpoint.manifest.get("best") if is_own else None',
        "self._best = max(self._folders.numbers(), default=None)",
        "tests/learners/test_checkpoints.py",
    ),
    Mutation(
        "hyperparameters of the checkpoint replace those of a continued run",
        "learner",
        "learners/hyperparameter_variables.py",
        "if is_constant and initial.get(path) != _digest(value):",
        "if False:",
        "tests/rules/test_restored_hyperparameters.py",
    ),
    Mutation(
        "one evaluation counts several times towards an early stop",
        "learner",
        "learners/hooks/built_in.py",
        " or (recorded_at is not None and recorded_at == self._checked_at)",
        "",
        "tests/learners/hooks/test_configuration.py",
    ),
    Mutation(
        "checkpoints of a different run are accepted",
        "learner",
        "learners/learner.py",
        "            self._identity.require_same(checkpoint)",
        "            pass",
        "tests/learners/test_checkpoints.py",
    ),
    Mutation(
        "weights that are not finite are saved",
        "learner",
        "learners/checkpoints.py",
        "if is_float and not np.isfinite(variable.numpy()).all():",
        "if False:",
        "tests/learners/test_checkpoints.py",
    ),
    Mutation(
        "iterations continue after the loss is no longer finite",
        "learner",
        "learners/train_loop.py",
        "return (step < until) & finite",
        "return step < until",
        "tests/learners/test_learner.py",
    ),
    Mutation(
        "a dataset's environment may import modules",
        "environments",
        "training/environment.py",
        "elif spec.has_wrappers or any(isinstance(value, str) for value in spec.arguments.values()):",
        "elif False:",
        "tests/training/test_environment.py",
    ),
    Mutation(
        "a time limit terminates the episode",
        "environments",
        "envs/time_limit.py",
        "return time_step._replace(step_type=LAST)",
        "return time_step._replace(step_type=LAST, discount=time_step.discount * 0)",
        "tests/envs/test_time_steps.py",
    ),
    Mutation(
        "the episode of a failed environment continues",
        "environments",
        "envs/_env_worker.py",
        "rows.truncate(row)",
        "pass",
        "tests/envs/test_parallel_environment.py",
    ),
    Mutation(
        "a timeout in Gymnasium is a termination",
        "environments",
        "envs/gymnasium_environment.py",
        "        if terminated:\n",
        "        if terminated or truncated:\n",
        "tests/envs/test_gymnasium_environment.py",
    ),
    Mutation(
        "a truncated episode is recorded as terminal",
        "environments",
        "envs/rollout.py",
        "is_last & bool(last.is_terminated())",
        "is_last & bool(last.is_last())",
        "tests/envs/test_recording.py",
    ),
    Mutation(
        "the collector treats truncated episodes as terminal",
        "environments",
        "envs/rollout.py",
        "fields.IS_TERMINAL: is_last & bool(last.is_terminated())",
        "fields.IS_TERMINAL: is_last",
        "tests/training/test_online.py",
    ),
    Mutation(
        "stopped workers are not waited for",
        "environments",
        "envs/_env_process.py",
        "            self._process.kill()\n            self._process.wait()",
        "            pass",
        "tests/envs/test_parallel_environment.py",
    ),
    Mutation(
        "workers keep running after the batch is closed",
        "environments",
        "envs/parallel_environment.py",
        "            worker.stop(deadline)\n            worker.release()",
        "            worker.release()",
        "tests/envs/test_parallel_environment.py",
    ),
    Mutation(
        "workers outlive a caller that is killed",
        "environments",
        "envs/_env_worker.py",
        "    _follow(lifeline)\n    signal",
        "    signal",
        "tests/envs/test_parallel_environment.py",
    ),
    Mutation(
        "actions are repeated beyond the end of the episode",
        "environments",
        "envs/wrappers.py",
        "            if time_step.step_type == LAST:\n                break\n",
        "",
        "tests/envs/test_wrappers.py",
    ),
    Mutation(
        "only the last reward of repeated actions counts",
        "environments",
        "envs/wrappers.py",
        "reward = reward + time_step.reward",
        "reward = time_step.reward",
        "tests/envs/test_wrappers.py",
    ),
    Mutation(
        "observations are not centred before they are normalised",
        "environments",
        "envs/observation_normalizer.py",
        "return (leaf - mean) / divisor",
        "return leaf / divisor",
        "tests/envs/test_goals_and_normalization.py",
    ),
    Mutation(
        "rewards after the end of an episode are evaluated",
        "environments",
        "envs/rollout.py",
        "self.returns[self.is_transition] += time_step.reward[self.is_transition]",
        "self.returns += time_step.reward",
        "tests/envs/test_evaluation.py",
    ),
    Mutation(
        "environments of a batch have the same seed",
        "environments",
        "envs/batched_environment.py",
        "env.seed(seed + index)",
        "env.seed(seed)",
        "tests/envs/test_parallel_environment.py",
    ),
    Mutation(
        "a lost life does not end the episode",
        "environments",
        "envs/life_loss.py",
        "return time_step._replace(step_type=LAST, discount=_ZERO) if is_lost else time_step",
        "return time_step",
        "tests/envs/test_wrappers.py",
    ),
    Mutation(
        "the first step of an episode has the action of the last one",
        "environments",
        "envs/batched_environment.py",
        "    result[is_first] = first\n",
        "",
        "tests/envs/test_parallel_environment.py",
    ),
    Mutation(
        "an environment that is created again has the same seed",
        "environments",
        "envs/_env_worker.py",
        "self.envs[row].seed(seed + 1_000_003)",
        "self.envs[row].seed(seed)",
        "tests/envs/test_faults.py",
    ),
]


def survives(mutation: Mutation) -> bool:
    """Returns whether the tests pass with the mutation."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in ("rlds2reverb", *LAYERS, "tests"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        for name in LAYERS:  # Programs that tests start import the mutated layers, too.
            Path(folder, "rlds2reverb", name).symlink_to(Path(folder, name))
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        path = Path(folder, mutation.file)
        path.write_text(path.read_text().replace(mutation.old, mutation.new))
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
        command = [sys.executable, "-m", "pytest", *options, mutation.tests]
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=600).returncode == 0


def main() -> int:
    selected = [mutation for mutation in MUTATIONS if not sys.argv[1:] or mutation.name in sys.argv[1:]]
    survivors: list[Mutation] = []
    for mutation in selected:
        has_survived = survives(mutation)
        survivors += [mutation] * has_survived
        print(f"{'SURVIVED' if has_survived else 'detected'}  {mutation.area:<12}  {mutation.name}", flush=True)
    for area in AREAS:
        total, survived = (sum(mutation.area == area for mutation in some) for some in (selected, survivors))
        if total:
            print(f"{area:<12}  {total - survived} of {total} detected")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
