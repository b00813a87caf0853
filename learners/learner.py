"""The learner: training iterations of an agent on batches of a dataset, with hooks around them."""

from __future__ import annotations

import logging
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies.policy_saver import PolicySaver

from rlds2reverb._arguments import require_count, require_one_of
from rlds2reverb._signals import SIGNAL_NAMES, stop_on_signal
from rlds2reverb.errors import CheckpointError, SpecMismatchError, TrainingDivergedError

from .checkpoints import Checkpoint, Checkpoints
from .feeds import Feed, InMemoryDataset, StreamingDataset, require_experience, split_experience_and_info
from .hooks import POSITIONS, LearnerHook, UpdatePrioritiesHook, merge_hooks
from .monitor import Monitor
from .run_directory import RunDirectory
from .train_loop import CallResult, TrainLoop, is_check_numerics_error

_LOG = logging.getLogger(__name__)
_EXCEPTION = "exception.txt"
_MAX_LISTED_KEYS = 10


class Learner:
    """A training loop for TF-Agents agents, with hooks around its iterations, after DI-engine's BaseLearner.

        with Learner("runs/iql", agent, sample_dataset(server, "replay", 256), hooks=[SaveCkptHook()]) as learner:
            learner.start(100_000)

    Each call of the graph runs up to `steps_per_call` iterations, and reads its batches from the dataset itself. Hooks
    run between two calls; a call ends early at an iteration where a hook is due. Names such as `last_iter`,
    `learn_info`, `priority_info`, `log_buffer` and `call_hook` are DI-engine's.

    Attributes:
      agent: the agent being trained.
      run_dir: directory of checkpoints and logs.
      run: the `RunDirectory` that writes them.
      last_iter: in 'after_iter' hooks the index of the last iteration, from 0; elsewhere the number of completed ones.
      learn_info: scalars of the last iteration: `loss` and the agent's others.
      priority_info: `info` and `td_error` of the last call's items; empty if the agent or the dataset has none.
      log_buffer: means of the scalars since `LogShowHook` was last called.
      latest: latest value of every logged number, by name.
      monitor: training speed over the last calls; see `Monitor.rates`.
      load_path: path of the loaded checkpoint, or '' if none.
      replay_checkpoint: path of the server's checkpoint that belongs to the learner's next one, or '' if none.
      best_return: highest mean return of an evaluation; -inf before the first.
      evaluated_at: number of completed iterations at the last evaluation; None before the first.
      stop_reason: reason why `start` returned early, or '' if it did not.
    """

    def __init__(
        self,
        run_dir: str | Path,
        agent: tf_agent.TFAgent,
        dataset: tf.data.Dataset | tf.data.Iterator | InMemoryDataset,
        *,
        priorities: Any = None,
        hooks: Iterable[LearnerHook] = (),
        steps_per_call: int = 100,
        jit_compile: bool = False,
        strategy: tf.distribute.Strategy | None = None,
        name: str = "learner",
        rank: int = 0,
        identity: dict[str, Any] | None = None,
        position: tf.Variable | None = None,
        keep_checkpoints: int = 3,
        trackables: dict[str, Any] | None = None,
        on_log: Callable[[int, dict[str, float]], None] | None = None,
    ):
        """Checks that the data match the agent, and locks the directory; nothing is trained yet.

        Args:
          run_dir: directory of the run; created if missing.
          agent: TF-Agents agent, such as one of `rlds2reverb.learners.agents`.
          dataset: endless dataset of batches or an iterator over one (see `StreamingDataset`), or an `InMemoryDataset`.
          priorities: `PriorityWriter` that writes TD errors back as priorities, or None.
          hooks: hooks to call around the iterations.
          steps_per_call: maximum number of iterations per call of the graph, at least 1.
          jit_compile: whether to compile an iteration with XLA.
          strategy: `tf.distribute.MirroredStrategy` or `OneDeviceStrategy` in whose scope the agent was created; None
            for a single device. The replicas, each on a device of this process, share every batch and make the same
            update with the mean of their gradients. Statistics that an agent computes over a batch, such as the scale
            of TD3+BC's critic, are computed over each replica's share.
          name: name of the learner, for hooks.
          rank: index of this process among those that train together, each with a different run_dir; hooks save and
            log on rank 0 only.
          identity: settings that identify the run, such as the agent's name and the data's fingerprint; checkpoints
            with different ones are rejected. The agent's class is always included.
          position: int64 variable that loading a checkpoint sets to the number of completed iterations, for datasets
            whose batches depend on their index, such as through the `beta` of `sample_dataset`.
          keep_checkpoints: number of latest checkpoints to keep, at least 1; the best one is kept as well.
          trackables: objects to save in addition to the agent, by name, such as the dataset's iterator.
          on_log: function called with the number of completed iterations and the logged numbers; None to log a line
            with `logging`.

        Raises:
          ResourceInUseError: If another learner uses the directory.
          SpecMismatchError: If the data do not match the agent; the message names each field.
          TypeError: If the dataset or the strategy has an unsupported type.
          ValueError: If a number is out of range, if the agent was created outside the strategy's scope, or if
            `jit_compile` is combined with several replicas.
        """
        require_count("steps_per_call", steps_per_call)
        require_count("rank", rank, 0)
        require_count("keep_checkpoints", keep_checkpoints)
        self.agent, self.name, self.rank, self.run_dir = agent, name, rank, Path(run_dir)
        self._steps_per_call, self._position = steps_per_call, position
        _require_strategy(strategy, agent, jit_compile=jit_compile)
        feed: Feed = dataset if isinstance(dataset, InMemoryDataset) else StreamingDataset(dataset)
        self._feed = feed
        require_experience(feed.experience_spec, agent)
        if priorities is not None and not feed.has_info:
            raise SpecMismatchError("priorities= requires batches with keys; create the dataset with sample_dataset")
        self._hooks: list[LearnerHook] = []
        for hook in hooks:
            self.register_hook(hook)
        self._resources = ExitStack()
        self._priorities = UpdatePrioritiesHook(priorities) if priorities is not None else None
        if self._priorities is not None:
            self.register_hook(self._priorities)
            self._resources.callback(self._priorities.close)
        self._identity = {"agent": type(agent).__name__, **(identity or {})}
        try:
            self.run = self._resources.enter_context(RunDirectory(self.run_dir))
            self._loop = TrainLoop(agent, feed, jit_compile=jit_compile, strategy=strategy)
            self._checkpoints = Checkpoints(
                self.run_dir / "checkpoints", {"agent": agent, **(trackables or {})}, keep_checkpoints=keep_checkpoints
            )
        except BaseException:
            self.close()
            raise
        self._done, self._in_iteration = 0, False
        self._on_log = on_log or _log_line
        self.learn_info: dict[str, float] = {}
        self.priority_info: dict[str, Any] = {}
        self.log_buffer: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.monitor = Monitor()
        self.load_path = self.replay_checkpoint = self.stop_reason = ""
        self._log_counts: dict[str, int] = {}
        self.best_return = -np.inf
        self.evaluated_at: int | None = None
        self._saved_at: int | None = None
        self._is_new_best = False

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def close(self) -> None:
        """Releases the directory; no checkpoint is written."""
        self._resources.close()

    @property
    def last_iter(self) -> int:
        """The index of the last iteration in 'after_iter' hooks, else the number of completed iterations."""
        return self._done - 1 if self._in_iteration else self._done

    @property
    def is_stopped_by_signal(self) -> bool:
        """Whether SIGTERM or SIGINT ended the run, or is about to."""
        return self.stop_reason in SIGNAL_NAMES

    @property
    def policy(self) -> Any:
        """The agent's greedy policy."""
        return self.agent.policy

    def register_hook(self, hook: LearnerHook) -> None:
        """Adds a hook; see `LearnerHook`.

        Raises:
          TypeError: If it is not a `LearnerHook`.
        """
        if not isinstance(hook, LearnerHook):
            raise TypeError(f"hook must be a LearnerHook, got {hook!r}")
        self._hooks = merge_hooks(self._hooks, [hook])

    def call_hook(self, position: str) -> None:
        """Calls the hooks that are due at a position, in order of priority.

        Raises:
          ValueError: If there is no such position.
        """
        require_one_of("position", position, POSITIONS)
        for hook in self._hooks:
            if hook.position == position and hook.is_due(self._done):
                hook(self)

    def train(self, batch: Any, weights: Any = None) -> dict[str, float]:
        """Runs one iteration on a batch: 'before_iter' hooks, the agent's update, 'after_iter' hooks.

        Args:
          batch: experience as the agent's `train` expects it, a `reverb.ReplaySample`, or a pair (experience, info).
          weights: importance weights, float32 `[B]`; None for those in the info.

        Returns:
          The scalars of the iteration: `loss` and the agent's others.

        Raises:
          TrainingDivergedError: If the loss or a weight is not finite.
        """
        experience, info = split_experience_and_info(batch)
        self.call_hook("before_iter")
        weights = getattr(info, "weight", None) if weights is None else weights
        info = tf.nest.map_structure(np.asarray, info)
        keys = np.ravel(getattr(info, "key", ()))
        try:
            result = self._loop.run_on_batch(experience, weights, info)
        except tf.errors.InvalidArgumentError as error:
            if not is_check_numerics_error(error):
                raise
            raise TrainingDivergedError(_describe_divergence(self._done, float("nan"), "keys", keys)) from None
        self._process_result(result, 0.0)
        return self.learn_info

    def start(self, num_iterations: int) -> None:
        """Trains until `num_iterations` iterations are completed in total, including those of earlier runs.

        On SIGTERM or SIGINT the run ends after the current call of the graph, `stop_reason` is set to the signal's
        name, and the 'after_run' hooks are called, which can save a checkpoint. A second signal ends the process at
        once.

        Args:
          num_iterations: total number of iterations, at least 1.

        Raises:
          TrainingDivergedError: If a loss or a weight is not finite; the message names the iteration and its items.
          ValueError: If the dataset ends.
          Exception: Any error of a hook, the dataset or the agent, which is also written to `exception.txt` in
            `run_dir`.
        """
        require_count("num_iterations", num_iterations)
        self.stop_reason = ""
        (self.run_dir / _EXCEPTION).unlink(missing_ok=True)
        try:
            with stop_on_signal(self.stop):
                self.call_hook("before_run")
                while self._done < num_iterations and not self.stop_reason:
                    self.call_hook("before_iter")
                    if self.stop_reason:
                        break
                    start_secs = time.perf_counter()
                    result = self._loop(self._done, self._find_call_end(num_iterations) - self._done)
                    self._process_result(result, time.perf_counter() - start_secs)
                self.flush_priorities()
                self.call_hook("after_run")
        except Exception:
            with suppress(OSError):  # The disk may be full, which may also be why the run failed.
                text = f"after {self._done} iterations\n{traceback.format_exc()}"
                (self.run_dir / _EXCEPTION).write_text(text, encoding="utf-8")
            raise

    def flush_priorities(self) -> None:
        """Waits until all priorities are on the server."""
        if self._priorities is not None:
            self._priorities.flush()

    def stop(self, reason: str) -> None:
        """Ends the run after the hooks of this iteration; if called again, the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def _find_call_end(self, num_iterations: int) -> int:
        """Returns the number of completed iterations at which the next call ends: at a hook, or at its limit."""
        end = min(num_iterations, self._done + self._steps_per_call)
        for hook in self._hooks:
            if hook.position.endswith("_iter"):
                due = hook.next_due(self._done)
                if due <= self._done:
                    raise ValueError(
                        f"next_due of hook {hook.name!r} must return more than {self._done}, got {due}; fix the hook"
                    )
                end = min(end, due)
        return end

    def _process_result(self, result: CallResult, secs: float) -> None:
        """Records the results of a call that took `secs`, or 0 for `train`, and calls the 'after_iter' hooks."""
        self._done += result.num_iterations
        self._in_iteration = True
        try:
            if not result.is_finite:
                iteration, kind, keys = self._done - 1, "keys", result.last_keys
                if isinstance(self._feed, InMemoryDataset) and secs:
                    kind, keys = "items", self._feed.sample_indices(tf.constant(iteration, tf.int64)).numpy()
                raise TrainingDivergedError(_describe_divergence(iteration, result.last["loss"], kind, keys))
            self.learn_info = result.last
            is_prioritized = result.td_errors is not None and hasattr(result.info, "key")
            self.priority_info = {"info": result.info, "td_error": result.td_errors} if is_prioritized else {}
            self._add_to_log(result.metrics, result.num_iterations)
            if secs:
                self.monitor.add(result.num_iterations, secs, result.data_wait_secs)
            self.call_hook("after_iter")
            if self._is_new_best and self.rank == 0:
                self.save_checkpoint()
        finally:
            self._in_iteration = False

    def _add_to_log(self, metrics: dict[str, float], count: int) -> None:
        for key, value in metrics.items():
            old_count = self._log_counts.get(key, 0)
            self.log_buffer[key] = (self.log_buffer.get(key, 0.0) * old_count + value * count) / (old_count + count)
            self._log_counts[key] = old_count + count
        self.latest.update(metrics)

    def show_log(self) -> None:
        """Logs the log buffer and the training speed, and empties the buffer."""
        numbers = {**self.log_buffer, **self.monitor.rates(), **self.monitor.take_secs()}
        self.latest.update(numbers)
        self.run.log(self._done, numbers)
        if self.priority_info:
            self.run.log_priorities(self._done, self.priority_info["td_error"])
        self._on_log(self._done, numbers)
        self.log_buffer, self._log_counts = {}, {}

    def record_evaluation(self, evaluation: Any) -> None:
        """Logs an evaluation: an `Evaluation` or a mean return.

        If it is the best one up to now, a checkpoint is written after the hooks of this iteration.
        """
        mean = float(getattr(evaluation, "mean", evaluation))
        numbers = {"evaluation/mean_return": mean}
        for key in ("std", "score"):
            value = getattr(evaluation, key, None)
            if value is not None:
                numbers[f"evaluation/{key}"] = float(value)
        self.latest.update(numbers)
        if hasattr(evaluation, "returns"):
            self.run.log_evaluation(self._done, evaluation)
        self._on_log(self._done, numbers)
        self.evaluated_at = self._done
        if mean > self.best_return:
            self.best_return, self._is_new_best, self._saved_at = mean, True, None

    def save_checkpoint(self) -> Checkpoint | None:
        """Writes a checkpoint and returns it; returns None if there already is one for this iteration.

        Raises:
          CheckpointError, StorageFullError: See `Checkpoints.save`.
        """
        if self._saved_at == self._done:
            return None
        manifest = {
            "identity": self._identity,
            "hooks": {name: hook.state_dict() for name, hook in self._name_hooks().items()},
            "best_return": None if np.isinf(self.best_return) else self.best_return,
            "evaluated_at": self.evaluated_at,
            "latest": {key: value for key, value in self.latest.items() if np.isfinite(value)},
            "replay_checkpoint": self.replay_checkpoint,
        }
        saved = self._checkpoints.save(self._done, manifest, is_best=self._is_new_best)
        self._saved_at, self._is_new_best = self._done, False
        return saved

    def load_checkpoint(self, path: str | Path | None = None, *, allow_config_mismatch: bool = False) -> bool:
        """Resumes from a checkpoint, and returns whether there is one.

        Args:
          path: directory of a checkpoint; None for the latest valid one in `run_dir`.
          allow_config_mismatch: whether to accept a checkpoint whose `identity` is different, such as one of a run on
            different data.

        Raises:
          CheckpointError: If the checkpoint is missing or damaged, or belongs to a different run.
        """
        checkpoint = self._checkpoints.open(path)
        if checkpoint is None:
            return False
        if not allow_config_mismatch:
            self._require_same_identity(checkpoint)
        if self._position is not None:
            self._position.assign(checkpoint.step)
        self._loop.prepare()  # Keras optimisers create their variables during tracing.
        self._checkpoints.restore(checkpoint)
        manifest = checkpoint.manifest
        is_own = checkpoint.path.resolve().parent == (self.run_dir / "checkpoints").resolve()
        self._done, self._saved_at = checkpoint.step, checkpoint.step if is_own else None
        self.run.cut_after(checkpoint.step)
        states = manifest.get("hooks", {})
        for name, hook in self._name_hooks().items():
            if states.get(name):
                hook.load_state_dict(states[name])
        best = manifest.get("best_return") if is_own else None
        self.best_return = -np.inf if best is None else best
        self.evaluated_at = manifest.get("evaluated_at")
        self.latest = dict(manifest.get("latest", {}))
        self.replay_checkpoint = manifest.get("replay_checkpoint", "")
        self.load_path = str(checkpoint.path)
        return True

    def _name_hooks(self) -> dict[str, LearnerHook]:
        """Returns the hooks by the keys of their states in a checkpoint; hooks with the same name are numbered."""
        named: dict[str, LearnerHook] = {}
        for hook in self._hooks:
            num_same_name = sum(other.name == hook.name for other in named.values())
            named[f"{hook.name} {num_same_name + 1}"] = hook
        return named

    def export_policy(self, path: str | Path) -> Path:
        """Writes the greedy policy as a SavedModel that loads without this package, and returns its path.

        Args:
          path: directory of the SavedModel; replaced if it exists.
        """
        path = Path(path)
        partial = path.with_name(f"{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with warnings.catch_warnings():  # Keras and PolicySaver warn about metrics, which a policy does not have.
            warnings.simplefilter("ignore")
            PolicySaver(self.agent.policy, batch_size=None, train_step=self.agent.train_step_counter).save(str(partial))
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        return path

    def export_best_policy(self, path: str | Path) -> Path | None:
        """Writes the policy of the best evaluation, and returns its path, or None without evaluations.

        The agent itself is left unchanged.
        """
        best = self._checkpoints.best()
        if best is None:
            return None
        with self._checkpoints.restore_temporarily(best):
            return self.export_policy(path)

    def _require_same_identity(self, checkpoint: Checkpoint) -> None:
        saved = checkpoint.manifest.get("identity", {})
        names = [name for name in {**saved, **self._identity} if saved.get(name) != self._identity.get(name)]
        if names:
            differences = [f"{name} was {saved.get(name)}, is now {self._identity.get(name)}" for name in names]
            raise CheckpointError(
                f"{checkpoint.path} belongs to a different run: {'; '.join(differences)}; use a different run_dir, or "
                "continue with allow_config_mismatch=True (--allow-config-mismatch)"
            )


def _describe_divergence(iteration: int, loss: float, kind: str, keys: np.ndarray) -> str:
    """Returns an error message; `keys` are the keys or, for items in memory, the indices of the batch's items."""
    cause = "a weight is not finite" if np.isfinite(loss) else f"the loss is {loss}"
    text = (
        f"training diverged at iteration {iteration}: {cause}; lower the learning rate or fix the data, and resume "
        "from the last checkpoint"
    )
    if not len(keys):
        return text
    listed = ", ".join(map(str, keys[:_MAX_LISTED_KEYS].tolist()))
    more = f" and {len(keys) - _MAX_LISTED_KEYS} more" if len(keys) > _MAX_LISTED_KEYS else ""
    return f"{text} ({kind} of the batch: {listed}{more})"


def _require_strategy(strategy: Any, agent: tf_agent.TFAgent, *, jit_compile: bool) -> None:
    if strategy is None:
        return
    if not isinstance(strategy, (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)):
        raise TypeError(
            f"strategy must be a MirroredStrategy or a OneDeviceStrategy, got a {type(strategy).__name__}; "
            "replicas in other processes are not supported"
        )
    if not all(strategy.extended.variable_created_in_scope(variable) for variable in agent.variables):
        raise ValueError("the agent was created outside the strategy's scope; use `with strategy.scope():`")
    if jit_compile and strategy.num_replicas_in_sync > 1:
        raise ValueError(f"jit_compile requires a single replica, got {strategy.num_replicas_in_sync}")


def _log_line(step: int, numbers: dict[str, float]) -> None:
    _LOG.info("iteration %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
