"""The learner: iterations of an agent on batches of a data set, with hooks around them."""

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
from rlds2reverb.errors import CheckpointError, SpecMismatchError, TrainingDivergedError

from .checkpoints import Checkpoint, Checkpoints
from .feeds import Feed, InMemoryDataset, StreamingDataset, parted, require_experience
from .hooks import POSITIONS, LearnerHook, UpdatePrioritiesHook, merge_hooks
from .monitor import Monitor
from .run_directory import RunDirectory
from .stop_signals import NAMES as STOP_SIGNALS
from .stop_signals import stopped_by_signals
from .train_loop import CallResult, TrainLoop, is_of_numbers

_LOG = logging.getLogger(__name__)
_EXCEPTION = "exception.txt"


class Learner:
    """Trains an agent of TF-Agents, after DI-engine's BaseLearner: iterations with hooks around them.

        with Learner("runs/iql", agent, sample_dataset(server, "replay", 256), hooks=[SaveCkptHook()]) as learner:
            learner.start(100_000)

    Iterations are done in calls of a graph, up to `steps_per_call` in each, which reads its batches from the data set
    itself. Hooks are called between two calls, at exactly the iterations that they ask for: a call ends there.

    Attributes:
      agent: that is trained.
      run_dir: where checkpoints and logs are written.
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
      evaluated_at: the iterations that were done at the last evaluation; None before the first.
      stop_reason: why `start` came back before its end, or ''.
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
        """Checks that data and agent fit, and takes the directory; nothing is trained yet.

        Args:
          run_dir: made if it is missing.
          agent: TF-Agents' or one of `rlds2reverb.learners.agents`.
          dataset: of batches, or an iterator over one, see `feeds.StreamingDataset`; or `InMemoryDataset`.
          priorities: a `PriorityWriter` that TD errors are written back through, or None.
          hooks: see `LearnerHook`.
          steps_per_call: the most iterations in a call of the graph, at least 1.
          jit_compile: whether XLA compiles an iteration.
          strategy: `tf.distribute.MirroredStrategy` or `OneDeviceStrategy`, in whose scope the agent was made: its
            replicas, each on a device of this process, share every batch and make the same update with the mean of
            their gradients. None for one device. What an agent computes over a batch, such as the scale of TD3+BC's
            critic, is computed over each replica's part.
          name: for the log.
          rank: the number of this process among those that train together, each in a run_dir of its own; only 0 saves
            and shows by hooks.
          identity: what the run is about, such as the agent's name and the data's fingerprint; checkpoints of others
            are refused. The agent's class is always part of it.
          position: an int64 variable that is set to the iterations done when a checkpoint is loaded, for what the data
            set makes of a batch's number, such as the `beta` of `sample_dataset`.
          keep_checkpoints: see `Checkpoints`.
          trackables: what is saved besides the agent, by name, such as the iterator over the data set.
          on_log: called with the iterations done and the numbers that are logged; None for a line by `logging`.

        Raises:
          ResourceInUseError: if another learner uses the directory.
          SpecMismatchError: if the data do not fit the agent; names each field.
          TypeError: if dataset is neither a data set nor resident items, or the strategy is another one.
          ValueError: if a number is out of its range, the agent was not made in the strategy's scope, or several
            replicas are to be compiled by XLA.
        """
        require_count("steps_per_call", steps_per_call)
        require_count("rank", rank, 0)
        require_count("keep_checkpoints", keep_checkpoints)
        self.agent, self.name, self.rank, self.run_dir = agent, name, rank, Path(run_dir)
        self._steps_per_call, self._position = steps_per_call, position
        _require_strategy(strategy, agent, jit_compile=jit_compile)
        self._feed = feed = _feed_of(dataset)
        require_experience(feed.experience_spec, agent)
        if priorities is not None and not feed.has_info:
            raise SpecMismatchError(
                "priorities are given, but the batches have no keys; sample them with sample_dataset"
            )
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
                self.run_dir / "checkpoints", {"agent": agent, **(trackables or {})}, keep=keep_checkpoints
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
        """Gives the directory back; no checkpoint is written."""
        self._resources.close()

    @property
    def last_iter(self) -> int:
        """See the class."""
        return self._done - 1 if self._in_iteration else self._done

    @property
    def is_stopped_by_signal(self) -> bool:
        """Whether SIGTERM or SIGINT ended the run, or is about to."""
        return self.stop_reason in STOP_SIGNALS

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
        """Calls the hooks of a position that are due, in the order of their priorities.

        Raises:
          ValueError: if there is no such position.
        """
        require_one_of("position", position, POSITIONS)
        for hook in self._hooks:
            if hook.position == position and hook.is_due(self._done):
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
          TrainingDivergedError: if the loss or a weight is not finite.
        """
        experience, info = parted(batch)
        self.call_hook("before_iter")
        weights = getattr(info, "weight", None) if weights is None else weights
        info = tf.nest.map_structure(np.asarray, info)
        keys = np.ravel(getattr(info, "key", ()))
        try:
            result = self._loop.on_batch(experience, weights, info)
        except tf.errors.InvalidArgumentError as error:
            if not is_of_numbers(error):
                raise
            raise TrainingDivergedError(self._why_diverged(self._done, float("nan"), keys, "keys")) from None
        self._take(result, 0.0)
        return self.learn_info

    def start(self, num_iterations: int) -> None:
        """Trains until so many iterations are done, those of earlier runs included.

        SIGTERM or SIGINT ends the run where the call of the graph ends; `stop_reason` says so, and the hooks after the
        run are called, so that what was learnt is saved. A second one ends the process at once.

        Args:
          num_iterations: in all, at least 1.

        Raises:
          TrainingDivergedError: if a loss or a weight is not finite; names the iteration and the keys of its batch.
          ValueError: if the data set ends.
          Exception: whatever a hook, the data set or the agent raises, after it was written to `exception.txt` in
            `run_dir`.
        """
        require_count("num_iterations", num_iterations)
        self.stop_reason = ""
        (self.run_dir / _EXCEPTION).unlink(missing_ok=True)
        try:
            with stopped_by_signals(self.stop):
                self.call_hook("before_run")
                while self._done < num_iterations and not self.stop_reason:
                    self.call_hook("before_iter")
                    if self.stop_reason:
                        break
                    began = time.perf_counter()
                    result = self._loop(self._done, self._until(num_iterations) - self._done)
                    self._take(result, time.perf_counter() - began)
                self.flush_priorities()
                self.call_hook("after_run")
        except Exception:
            self._write_down(traceback.format_exc())
            raise

    def flush_priorities(self) -> None:
        """Waits until all priorities are on the server."""
        if self._priorities is not None:
            self._priorities.flush()

    def stop(self, reason: str) -> None:
        """Ends the run after the hooks of this iteration; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def _until(self, num_iterations: int) -> int:
        """Returns how many iterations are done when a hook is due, or the run or the call ends."""
        until = min(num_iterations, self._done + self._steps_per_call)
        for hook in self._hooks:
            if hook.position.endswith("_iter"):
                due = hook.next_due(self._done)
                if due <= self._done:
                    raise ValueError(
                        f"hook {hook.name!r} is due at iteration {due} next, expected one after {self._done}; mend its "
                        "next_due"
                    )
                until = min(until, due)
        return until

    def _take(self, result: CallResult, secs: float) -> None:
        """Notes what iterations gave, and calls the hooks after them."""
        self._done += result.num_iterations
        self._in_iteration = True
        try:
            if not result.is_finite:
                at, keys, kind = self._done - 1, result.last_keys, "keys"
                if isinstance(self._feed, InMemoryDataset) and secs:
                    keys, kind = self._feed.drawn(tf.constant(at, tf.int64)).numpy(), "items"
                raise TrainingDivergedError(self._why_diverged(at, result.last["loss"], keys, kind))
            self.learn_info = result.last
            is_prioritized = result.td_errors is not None and hasattr(result.info, "key")
            self.priority_info = {"info": result.info, "td_error": result.td_errors} if is_prioritized else {}
            self._note(result.metrics, result.num_iterations)
            if secs:
                self.monitor.add(result.num_iterations, secs, result.data_wait_secs)
            self.call_hook("after_iter")
            if self._is_new_best and self.rank == 0:
                self.save_checkpoint()
        finally:
            self._in_iteration = False

    def _note(self, metrics: dict[str, float], count: int) -> None:
        for key, value in metrics.items():
            before = self._log_counts.get(key, 0)
            self.log_buffer[key] = (self.log_buffer.get(key, 0.0) * before + value * count) / (before + count)
            self._log_counts[key] = before + count
        self.latest.update(metrics)

    def _why_diverged(self, iteration: int, loss: float, keys: np.ndarray, kind: str) -> str:
        batch = f"; its batch has the {kind} {', '.join(map(str, keys.tolist()))}" if len(keys) else ""
        what = "a weight is not finite" if np.isfinite(loss) else f"the loss is {loss}"
        return (
            f"training diverged at iteration {iteration}: {what}{batch}; look at the data there, take a smaller "
            "learning rate, and continue from the last checkpoint"
        )

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
        """Notes an evaluation: an `Evaluation`, or a mean return.

        If it is the best so far, a checkpoint is written when the hooks of this iteration are through.
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
        """Writes a checkpoint, unless that of this iteration is there; see `Checkpoints.save`."""
        if self._saved_at == self._done:
            return None
        manifest = {
            "identity": self._identity,
            "hooks": {name: hook.state_dict() for name, hook in self._named_hooks().items()},
            "best_return": None if np.isinf(self.best_return) else self.best_return,
            "evaluated_at": self.evaluated_at,
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
        if self._position is not None:
            self._position.assign(found.step)
        self._loop.prepare()  # optimisers of Keras make their variables when they are traced
        self._checkpoints.restore(found)
        manifest = found.manifest
        is_own = found.path.resolve().parent == (self.run_dir / "checkpoints").resolve()
        self._done, self._saved_at = found.step, found.step if is_own else None
        self.run.cut_after(found.step)
        states = manifest.get("hooks", {})
        for name, hook in self._named_hooks().items():
            if states.get(name):
                hook.load_state_dict(states[name])
        best = manifest.get("best_return") if is_own else None
        self.best_return = -np.inf if best is None else best
        self.evaluated_at = manifest.get("evaluated_at")
        self.latest = dict(manifest.get("latest", {}))
        self.replay_checkpoint = manifest.get("replay_checkpoint", "")
        self.load_path = str(found.path)
        return True

    def _named_hooks(self) -> dict[str, LearnerHook]:
        """Returns the hooks by the names that their states have in a checkpoint: those of one name are numbered."""
        named: dict[str, LearnerHook] = {}
        for hook in self._hooks:
            alike = sum(other.name == hook.name for other in named.values())
            named[f"{hook.name} {alike + 1}"] = hook
        return named

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
        with self._checkpoints.restored(best):
            return self.export_policy(path)

    def _require_same_run(self, found: Checkpoint, *, override: bool) -> None:
        saved = found.manifest.get("identity", {})
        names = [name for name in {**saved, **self._identity} if saved.get(name) != self._identity.get(name)]
        if names and not override:
            differences = [f"{name} was {saved.get(name)}, is {self._identity.get(name)}" for name in names]
            raise CheckpointError(
                f"{found.path} is of another run: {'; '.join(differences)}; give another run_dir, or go on with "
                "override=True (--override)"
            )

    def _write_down(self, text: str) -> None:
        """Keeps what went wrong beside the checkpoints."""
        with suppress(OSError):  # such as a full disk, which is what went wrong then
            (self.run_dir / _EXCEPTION).write_text(f"{self._done} iterations were done\n{text}", encoding="utf-8")


def _feed_of(dataset: Any) -> Feed:
    if isinstance(dataset, InMemoryDataset):
        return dataset
    return StreamingDataset(dataset)


def _require_strategy(strategy: Any, agent: tf_agent.TFAgent, *, jit_compile: bool) -> None:
    if strategy is None:
        return
    if not isinstance(strategy, (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)):
        raise TypeError(
            f"strategy is a {type(strategy).__name__}, expected a MirroredStrategy or a OneDeviceStrategy: replicas of "
            "other processes are not supported"
        )
    if not all(strategy.extended.variable_created_in_scope(variable) for variable in agent.variables):
        raise ValueError("the agent was made outside of the strategy's scope; make it within `with strategy.scope():`")
    if jit_compile and strategy.num_replicas_in_sync > 1:
        raise ValueError(f"jit_compile is for one replica, the strategy has {strategy.num_replicas_in_sync}")


def _log_line(step: int, numbers: dict[str, float]) -> None:
    _LOG.info("iteration %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
