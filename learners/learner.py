"""The learner: iterations of an agent on batches of a data set, with hooks around them."""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies.policy_saver import PolicySaver

from rlds2reverb._arguments import require_count
from rlds2reverb.errors import CheckpointError, SpecMismatch

from .checkpoints import Checkpoint, Checkpoints
from .feeds import DatasetFeed, Feed, ResidentItems, require_experience
from .hooks import LearnerHook, UpdatePrioritiesHook, merge_hooks
from .monitor import Monitor
from .run_directory import RunDirectory
from .train_loop import CallResult, TrainLoop, metrics_of, td_errors_of

_LOG = logging.getLogger(__name__)


class TrainingDiverged(ArithmeticError):
    """A loss, a gradient or a weight is not finite any more."""


class Learner:
    """Trains an agent of TF-Agents, after DI-engine's BaseLearner: iterations with hooks around them.

        with Learner("runs/iql", agent, sample_dataset(server, "replay", 256), hooks=[SaveCkptHook()]) as learner:
            learner.start(100_000)

    Iterations are done in calls of a graph, up to `steps_per_call` in each, which reads its batches from the data set
    itself. Hooks are called between two calls, at exactly the iterations that they ask for: a call ends there.

    Attributes:
      agent: that is trained.
      root_dir: where checkpoints and logs are written.
      run: the `RunDirectory` there.
      last_iter: the number of the last iteration in 'after_iter' hooks, counted from 0; elsewhere how many are done.
      learn_info: what the last iteration gave: `loss` and the agent's other scalars.
      priority_info: `info` and `td_error` of the last call's items; empty where an agent or a data set has none.
      log_buffer: the means since `LogShowHook` was called last.
      latest: the newest value of everything that was logged, by name.
      monitor: rates over the last calls: `steps_per_sec`, `data_wait_share`, ...
      load_path: of the checkpoint that was loaded, or ''.
      replay_checkpoint: path of the server's checkpoint that goes with the next one of the learner.
      best_return: the best mean return of an evaluation; -inf before the first.
      stop_reason: why `start` came back before its end, or ''.
    """

    def __init__(
        self,
        root_dir: str | Path,
        agent: tf_agent.TFAgent,
        dataset: tf.data.Dataset | ResidentItems,
        *,
        priorities: Any = None,
        hooks: Iterable[LearnerHook] = (),
        steps_per_call: int = 100,
        strategy: tf.distribute.Strategy | None = None,
        jit_compile: bool = False,
        name: str = "learner",
        identity: dict[str, Any] | None = None,
        keep_checkpoints: int = 3,
        trackables: dict[str, Any] | None = None,
        on_log: Callable[[int, dict[str, float]], None] | None = None,
    ):
        """Checks that data and agent fit, and takes the directory; nothing is trained yet.

        Args:
          root_dir: made if it is missing.
          agent: TF-Agents' or one of `rlds2reverb.learners.agents`.
          dataset: of batches, see `feeds.DatasetFeed`; or `ResidentItems`.
          priorities: a `PriorityWriter` that TD errors are written back through, or None.
          hooks: see `LearnerHook`.
          steps_per_call: the most iterations in a call of the graph, at least 1.
          strategy: of distribution; None for one device. Batches are then those of each replica.
          jit_compile: whether XLA compiles an iteration.
          name: for messages.
          identity: what the run is about, such as the agent's name and the data's fingerprint; checkpoints of others
            are refused.
          keep_checkpoints: see `Checkpoints`.
          trackables: what is saved besides the agent, by name.
          on_log: called with the iterations done and the numbers that are logged; None for a line by `logging`.

        Raises:
          InUse: if another learner uses the directory.
          SpecMismatch: if the data do not fit the agent; names each field.
          TypeError: if dataset is neither a data set nor resident items.
          ValueError: if a number is out of its range.
        """
        require_count("steps_per_call", steps_per_call)
        self.agent, self.name, self.root_dir = agent, name, Path(root_dir)
        self._strategy, self._steps_per_call = strategy, steps_per_call
        feed = _feed_of(dataset)
        require_experience(feed.experience_spec, agent)
        if priorities is not None and not feed.has_info:
            raise SpecMismatch("priorities are given, but the batches have no keys; sample them with sample_dataset")
        self._resources = ExitStack()
        self.run = self._resources.enter_context(RunDirectory(self.root_dir))
        self._loop = TrainLoop(agent, feed, jit_compile=jit_compile, strategy=strategy)
        self._train_eagerly = tf.function(agent.train)
        self._identity = dict(identity or {})
        self._checkpoints = Checkpoints(
            self.root_dir / "checkpoints", {"agent": agent, **(trackables or {})}, keep=keep_checkpoints
        )
        self._hooks: list[LearnerHook] = []
        for hook in hooks:
            self.register_hook(hook)
        self._priorities = UpdatePrioritiesHook(priorities) if priorities is not None else None
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
        self._saved_at: int | None = None
        self._is_new_best = False

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def close(self) -> None:
        """Gives the directory back; nothing is saved."""
        self._resources.close()

    @property
    def last_iter(self) -> int:
        """See the class."""
        return self._done - 1 if self._in_iteration else self._done

    @property
    def rank(self) -> int:
        """The number of this process among those that train together; 0 where it is alone."""
        resolver = getattr(self._strategy, "cluster_resolver", None)
        return int(resolver.task_id or 0) if resolver is not None else 0

    @property
    def policy(self) -> Any:
        """The agent's greedy policy."""
        return self.agent.policy

    def register_hook(self, hook: LearnerHook) -> None:
        """Adds a hook; see `LearnerHook`.

        Raises:
          TypeError: if it is not a `LearnerHook`.
        """
        if not isinstance(hook, LearnerHook):
            raise TypeError(f"hook is {hook!r}, expected a LearnerHook")
        self._hooks = merge_hooks(self._hooks, [hook])

    def call_hook(self, position: str) -> None:
        """Calls the hooks of a position that are due, in the order of their priorities."""
        for hook in self._hooks:
            is_due = position.endswith("_run") or hook.is_due(self._done)
            if hook.position == position and is_due:
                hook(self)

    def train(self, batch: Any, weights: Any = None) -> dict[str, float]:
        """Does one iteration on a batch: hooks before it, the agent's step, the priority info, hooks after it.

        Args:
          batch: of experience, as the agent's `train` takes it; or a `reverb.ReplaySample`, or a pair of experience
            and info.
          weights: float32 `[B]`, or None for those of the info.

        Returns:
          What it gave: `loss` and other scalars.

        Raises:
          TrainingDiverged: if the loss is not finite.
        """
        experience, info = _parted(batch)
        self.call_hook("before_iter")
        weights = getattr(info, "weight", None) if weights is None else weights
        loss = self._train_eagerly(experience, weights=weights)
        metrics = {key: float(value) for key, value in metrics_of(loss).items()}
        errors = td_errors_of(loss)
        errors = None if errors is None else errors.numpy()
        info = tf.nest.map_structure(np.asarray, info)
        self._take(CallResult(1, bool(np.isfinite(metrics["loss"])), metrics, metrics, info, errors, 0.0), 0.0)
        return self.learn_info

    def start(self, num_iterations: int) -> None:
        """Trains until so many iterations are done, those of earlier runs included.

        SIGTERM or SIGINT ends the run where the call of the graph ends; `stop_reason` says so, and the hooks after the
        run are called, so that what was learnt is saved. A second one ends the process at once.

        Args:
          num_iterations: in all, at least 1.

        Raises:
          TrainingDiverged: if a loss or a weight is not finite; names the iteration and the keys of its batch.
          Exception: whatever a hook, the data set or the agent raises, after it was written down in `root_dir`.
        """
        require_count("num_iterations", num_iterations)
        self.stop_reason = ""
        try:
            with self._stopped_by_signals():
                self.call_hook("before_run")
                while self._done < num_iterations and not self.stop_reason:
                    self.call_hook("before_iter")
                    began = time.perf_counter()
                    result = self._loop(self._done, self._until(num_iterations) - self._done)
                    self._take(result, time.perf_counter() - began)
                self.call_hook("after_run")
        except Exception:
            self._write_down(traceback.format_exc())
            raise

    def stop(self, reason: str) -> None:
        """Ends the run after the hooks of this iteration."""
        self.stop_reason = reason

    def _until(self, num_iterations: int) -> int:
        """Returns how many iterations are done when a hook is due, or the run or the call ends."""
        due = [hook.next_due(self._done) for hook in self._hooks if hook.position.endswith("_iter")]
        return min([num_iterations, self._done + self._steps_per_call, *due])

    def _take(self, result: CallResult, secs: float) -> None:
        """Notes what iterations gave, and calls the hooks after them."""
        self._done += result.num_iterations
        self._in_iteration = True
        try:
            if not result.is_finite:
                raise TrainingDiverged(self._why_diverged(result))
            self.learn_info = result.last
            is_prioritized = result.td_errors is not None and hasattr(result.info, "key")
            self.priority_info = {"info": result.info, "td_error": result.td_errors} if is_prioritized else {}
            self._note(result.metrics, result.num_iterations)
            if secs:
                self.monitor.add(result.num_iterations, secs, result.data_wait_secs)
            if self._priorities is not None:
                self._priorities(self)
            self.call_hook("after_iter")
        finally:
            self._in_iteration = False

    def _note(self, metrics: dict[str, float], count: int) -> None:
        for key, value in metrics.items():
            before = self._log_counts.get(key, 0)
            self.log_buffer[key] = (self.log_buffer.get(key, 0.0) * before + value * count) / (before + count)
            self._log_counts[key] = before + count
        self.latest.update(metrics)

    def _why_diverged(self, result: CallResult) -> str:
        keys = ""
        if hasattr(result.info, "key"):
            batch = result.info.key[-(len(result.info.key) // result.num_iterations) :]
            keys = f"; its batch has the keys {', '.join(map(str, batch[:8]))}{', ...' if len(batch) > 8 else ''}"
        what = (
            f"the loss is {result.last['loss']}" if not np.isfinite(result.last["loss"]) else "a weight is not finite"
        )
        return (
            f"training diverged at iteration {self._done - 1}: {what}{keys}; look at the data there, take a smaller "
            "learning rate, and continue from the last checkpoint"
        )

    def reduced(self, values: dict[str, float]) -> dict[str, float]:
        """Returns the means of numbers over all replicas; without a strategy the numbers themselves."""
        if self._strategy is None or self._strategy.num_replicas_in_sync == 1:
            return values
        reduce = tf.distribute.ReduceOp.MEAN
        return {
            key: float(self._strategy.reduce(reduce, tf.constant(value), axis=None)) for key, value in values.items()
        }

    def show_log(self) -> None:
        """Gives the log buffer and the rates to the log, and empties the buffer."""
        numbers = {**self.log_buffer, **self.monitor.rates(), **self.monitor.taken_secs()}
        self.latest.update(numbers)
        self.run.log(self._done, numbers)
        if self.priority_info:
            self.run.log_priorities(self._done, self.priority_info["td_error"])
        self._on_log(self._done, numbers)
        self.log_buffer, self._log_counts = {}, {}

    def record_evaluation(self, evaluation: Any) -> None:
        """Notes an evaluation: an `Evaluation`, or a mean return. The next checkpoint knows whether it is the best."""
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
        if mean > self.best_return:
            self.best_return, self._is_new_best, self._saved_at = mean, True, None
            if self.rank == 0:
                self.save_checkpoint()

    def save_checkpoint(self) -> Checkpoint | None:
        """Writes a checkpoint, unless that of this iteration is there; see `Checkpoints.save`."""
        if self._saved_at == self._done:
            return None
        manifest = {
            "identity": self._identity,
            "hooks": {f"{at} {hook.name}": hook.state_dict() for at, hook in enumerate(self._hooks)},
            "best_return": None if np.isinf(self.best_return) else self.best_return,
            "latest": {key: value for key, value in self.latest.items() if np.isfinite(value)},
            "replay_checkpoint": self.replay_checkpoint,
        }
        saved = self._checkpoints.save(self._done, manifest, is_best=self._is_new_best)
        self._saved_at, self._is_new_best = self._done, False
        return saved

    def load_checkpoint(self, path: str | Path | None = None, *, override: bool = False) -> bool:
        """Continues from the newest good checkpoint, or from the one at a path; returns whether there was one.

        Args:
          path: a checkpoint's directory.
          override: whether one of another run, with other data or another agent, is taken as well.

        Raises:
          CheckpointError: if it is of another run, is damaged, or is not there.
        """
        found = self._checkpoints.opened(path)
        if found is None:
            return False
        self._require_same_run(found, override=override)
        self._checkpoints.restore(found)
        manifest = found.manifest
        self._done = self._saved_at = found.step
        self.run.cut_after(found.step)
        states = manifest.get("hooks", {})
        for at, hook in enumerate(self._hooks):
            if states.get(f"{at} {hook.name}"):
                hook.load_state_dict(states[f"{at} {hook.name}"])
        best = manifest.get("best_return")
        self.best_return = -np.inf if best is None else best
        self.latest = dict(manifest.get("latest", {}))
        self.replay_checkpoint = manifest.get("replay_checkpoint", "")
        self.load_path = str(found.path)
        return True

    def export_policy(self, path: str | Path) -> Path:
        """Writes the greedy policy as a SavedModel that loads without this package; what is there is replaced.

        Args:
          path: of its directory.
        """
        path = Path(path)
        partial = path.with_name(f"{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with warnings.catch_warnings():  # of Keras and PolicySaver, about metrics that a policy does not have
            warnings.simplefilter("ignore")
            PolicySaver(self.agent.policy, batch_size=None, train_step=self.agent.train_step_counter).save(str(partial))
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        return path

    def export_best_policy(self, path: str | Path) -> Path | None:
        """Writes the policy of the best evaluation; None if there was none. The agent is then as it was before."""
        best = self._checkpoints.best()
        if best is None:
            return None
        now = [variable.numpy() for variable in self.agent.variables]
        self._checkpoints.restore(best)
        try:
            return self.export_policy(path)
        finally:
            for variable, value in zip(self.agent.variables, now, strict=True):
                variable.assign(value)

    def _require_same_run(self, found: Checkpoint, *, override: bool) -> None:
        saved = found.manifest.get("identity", {})
        names = [name for name in {**saved, **self._identity} if saved.get(name) != self._identity.get(name)]
        if names and not override:
            differences = [f"{name} was {saved.get(name)}, is {self._identity.get(name)}" for name in names]
            raise CheckpointError(
                f"{found.path} is of another run: {'; '.join(differences)}; give another root_dir, or go on with "
                "override=True (--override)"
            )

    def _write_down(self, text: str) -> None:
        """Keeps what went wrong beside the checkpoints."""
        (self.root_dir / "exception.txt").write_text(f"after iteration {self._done - 1}\n{text}", encoding="utf-8")

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Lets the first SIGTERM or SIGINT stop the loop, and the second one end the process as it did before."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def put_back() -> None:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

        def on_signal(number: int, _: Any) -> None:
            self.stop(signal.Signals(number).name)
            for each in before:
                signal.signal(each, signal.SIG_DFL)

        for number in before:
            signal.signal(number, on_signal)
        try:
            yield
        finally:
            put_back()


def _feed_of(dataset: tf.data.Dataset | ResidentItems) -> Feed:
    if isinstance(dataset, ResidentItems):
        return dataset
    return DatasetFeed(dataset)


def _parted(batch: Any) -> tuple[Any, Any]:
    if hasattr(batch, "info") and hasattr(batch, "data"):
        return batch.data, batch.info
    if isinstance(batch, tuple) and not hasattr(batch, "_fields") and len(batch) == 2:
        return batch
    return batch, ()


def _log_line(step: int, numbers: dict[str, float]) -> None:
    _LOG.info("iteration %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
