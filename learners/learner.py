"""The learner: training iterations of an agent on batches of a dataset, with hooks around them."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent

from rlds2reverb.errors import (
    ArgumentError,
    ServerUnavailableError,
    SpecMismatchError,
    TrainingDivergedError as TrainingDivergedError,
)
from rlds2reverb.system.closing import Closing
from rlds2reverb.system.replacements import Replacing
from rlds2reverb.system.signals import SIGNAL_NAMES, Terminated, stop_on_signal
from rlds2reverb.types.arguments import require_count, require_number, require_one_of
from rlds2reverb.types.sample_info import PRIORITY, make_update

from .checkpoints import Checkpoint, Checkpoints, Replay, open_checkpoint, require_replay
from .feeds import Feed, make_feed, require_experience, split_experience_and_info
from .hooks.hook import POSITIONS, LearnerHook, Phase
from .hooks.hook_list import HookList
from .hyperparameter_variables import HyperparameterVariables
from .monitor import Monitor
from .policy_export import copy_policy, export_policy
from .priority_updates import PrioritySink, PriorityUpdates, require_sink
from .run_directory import RunDirectory
from .run_identity import as_plain_values, differences, require_same
from .run_log import LogBuffer, RunLog
from .train_loop import Augmentation, CallResult, TrainLoop, require_strategy
from .warm_start import describe_specs, load_weights

_LOG = logging.getLogger(__name__)
_EXCEPTION = "exception.txt"
_LOG_PHASES = (Phase.REDUCE_LOG, Phase.LOG)
#: Largest number of iterations in one call of the graph, and its duration: signals wait for the end of a call.
_MAX_STEPS_PER_CALL, _CALL_SECS = 100, 5.0
#: Factor by which the number of iterations in a call may grow from one call to the next.
_MAX_GROWTH = 4
#: Minimum ratio of the time between two checkpoints by time and the time that saving takes.
_MIN_SAVE_RATIO = 20


class IterationIndex(int):
    """The index of an iteration, a number with the attribute `val` of DI-engine's `CountVar`."""

    @property
    def val(self) -> int:
        """The number."""
        return int(self)


class Learner(Closing, Replacing):
    """A training loop for TF-Agents agents, with hooks around its iterations, after DI-engine's BaseLearner.

        with Learner("runs/iql", agent, sample_dataset(server, "replay", 256), hooks=[SaveCkptHook()]) as learner:
            learner.start(100_000)

    Each call of the graph runs several iterations, while a thread reads the next batches. Hooks run between two calls;
    a call ends early at an iteration where a hook is due. After a call, everything happens in this order, whatever the
    priorities of hooks: new priorities, evaluations, other hooks, checkpoints, logs. Neither weights nor logs depend on
    the number of iterations in a call, except that priorities change after each call. Names such as `last_iter`,
    `learn_info`, `priority_info`, `log_buffer` and `call_hook` are DI-engine's.

    Besides the checkpoints of hooks, one is saved every `checkpoint_every_secs`, when a signal stops the run, and
    before an error is raised, unless the error may have damaged the weights.

    To alternate between collecting data and learning, use `running` and `advance`:

        with learner.running():
            while learner.step < 100_000 and not learner.stop_reason:
                collect()
                learner.advance(learner.step + 1_000)

    Attributes:
      agent: the agent being trained.
      name: name of the learner, for hooks.
      rank, world_size: 0 and 1, the index of this process and the number of processes in DI-engine.
      run_dir: directory of checkpoints and logs.
      run: the `RunDirectory` that writes them.
      learn_info: scalars of the last iteration: `loss` and the agent's others.
      priority_info: new priorities of the last call's items, DI-engine's dict for `update` of a buffer or manager:
        `replay_unique_id`, `replay_buffer_idx`, `priority` (absolute TD errors) and, for a mixture, `dataset_index`;
        empty if the agent or the dataset has none.
      collector_envstep: number of environment steps passed to the last `train`, as in DI-engine; -1 if unknown.
      load_path: path of the loaded checkpoint, or '' if none.
      stop_reason: reason why the run ended early, or '' if it did not.
    """

    replaces = ("BaseLearner",)
    rank, world_size = 0, 1

    def __init__(
        self,
        run_dir: str | Path,
        agent: tf_agent.TFAgent,
        dataset: Feed | tf.data.Dataset | tf.data.Iterator,
        *,
        priorities: PrioritySink | None = None,
        replay: Replay | None = None,
        hooks: Iterable[LearnerHook] = (),
        steps_per_call: int | None = None,
        jit_compile: bool = False,
        strategy: tf.distribute.Strategy | None = None,
        augment: Augmentation | None = None,
        name: str = "learner",
        identity: Mapping[str, Any] | None = None,
        addable: Collection[str] = (),
        keep_checkpoints: int = 3,
        checkpoint_every_secs: float = 300.0,
        trackables: Mapping[str, Any] | None = None,
        on_log: Callable[[int, dict[str, float]], None] | None = None,
    ):
        """Checks that the data match the agent, and locks the directory; nothing is trained yet.

        Args:
          run_dir: directory of the run; created if missing.
          agent: TF-Agents agent, such as one of `rlds2reverb.learners.agents`.
          dataset: a feed, such as `InMemoryDataset`, or an endless dataset of batches or an iterator over one, such as
            `sample_dataset(...)` or the `dataset(...)` of an in-process buffer; see `StreamingDataset`.
          priorities: receiver of TD errors that become priorities, such as a `PriorityWriter`, a `ReplayBuffer` or
            `MixedPriorities`; None if priorities do not change.
          replay: `ReplayServer`, `ReplayBuffer` or `BufferManager` whose data are saved in the folder of each
            checkpoint and loaded with it, or None. See `checkpoints.Replay`.
          hooks: hooks to call around the iterations.
          steps_per_call: maximum number of iterations per call of the graph, at least 1; None for up to 100, as many as
            take about five seconds.
          jit_compile: whether to compile an iteration with XLA.
          strategy: `tf.distribute.MirroredStrategy` or `OneDeviceStrategy` in whose scope the agent was created; None
            for a single device. The replicas, each on a device of this process, share every batch and make the same
            update with the mean of their gradients. Statistics that an agent computes over a batch, such as the scale
            of TD3+BC's critic, are computed over each replica's share.
          augment: function `(experience, step)` that changes each batch in the graph before the agent learns from it,
            such as `RandomShift`; `step` is the number of completed iterations, int64 []. None for none.
          name: name of the learner, for hooks.
          identity: plain values that identify the run, such as the agent's name and the data's fingerprint; checkpoints
            with different ones are rejected. The agent's class is always included. If one whose name begins with
            `environment` or `eval_` differs and the checkpoint is accepted nevertheless, its evaluations are removed.
          addable: names in `identity` that a run may get later, such as the options of a further phase; checkpoints
            without them are accepted.
          keep_checkpoints: number of latest checkpoints to keep, at least 1; the best one is kept as well.
          checkpoint_every_secs: maximum number of seconds between two checkpoints, more than 0; 20 times as long as
            saving one takes if that is more.
          trackables: objects to save in addition to the agent, by name, such as the dataset's iterator.
          on_log: function called with the number of completed iterations and the logged numbers; None to log a line
            with `logging`.

        Raises:
          ResourceInUseError: If another learner uses the directory.
          SpecMismatchError: If the data do not match the agent; the message names each field.
          TypeError: If an argument has an unsupported type.
          ValueError: If a number is out of range, if the agent was created outside the strategy's scope, or if
            `jit_compile` is combined with several replicas.
        """
        if steps_per_call is not None:
            require_count("steps_per_call", steps_per_call)
        require_number("checkpoint_every_secs", checkpoint_every_secs, 0, math.inf)
        require_count("keep_checkpoints", keep_checkpoints)
        if not isinstance(agent, tf_agent.TFAgent):
            raise TypeError(f"agent must be a TFAgent, such as make_agent returns, got {agent!r}")
        require_strategy(strategy, agent, jit_compile=jit_compile)
        require_replay(replay)
        feed = _make_matching_feed(dataset, priorities, agent)
        self.agent, self.name, self.run_dir = agent, name, Path(run_dir)
        self._hooks = HookList(hooks)
        self._hyperparameters = HyperparameterVariables(agent)
        self._steps_per_call, self._call_size, self._replay = steps_per_call, 1, replay
        self._every_secs, self._save_secs, self._next_save_secs = checkpoint_every_secs, 0.0, math.inf
        self._identity = as_plain_values({"agent": type(agent).__name__, **(identity or {})})
        self._addable = addable
        self.learn_info: dict[str, float] = {}
        self.priority_info: dict[str, Any] = {}
        self.load_path = self.stop_reason = ""
        self._saved_at: int | None = None
        self.collector_envstep = -1
        self._in_iteration = self._is_running = self._has_progress = False
        self._reported: BaseException | None = None
        with ExitStack() as resources:
            self.run = resources.enter_context(RunDirectory(self.run_dir))
            self._log = RunLog(self.run, on_log)
            self._loop = TrainLoop(agent, feed, jit_compile=jit_compile, strategy=strategy, augment=augment)
            self._checkpoints = Checkpoints(
                self.run_dir / "checkpoints",
                {"agent": agent, **(trackables or {})},
                keep_checkpoints=keep_checkpoints,
                replay=replay,
            )
            resources.callback(self._loop.close_feed)
            self._priorities = PriorityUpdates(priorities)
            resources.callback(lambda: self._priorities.close())
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Releases the dataset's iterators and the directory; no checkpoint is written."""
        self._resources.close()

    def replace_dataset(
        self, dataset: Feed | tf.data.Dataset | tf.data.Iterator, *, priorities: PrioritySink | None = None
    ) -> None:
        """Trains on a different dataset from the next iteration on, such as one that is being collected.

        Args:
          dataset: see the class; its iterators are opened by the next iteration.
          priorities: receiver of the TD errors of its items; None if their priorities do not change.

        Raises:
          SpecMismatchError, TypeError: See the class.
        """
        feed = _make_matching_feed(dataset, priorities, self.agent)
        self.flush_priorities()
        self._priorities.close()
        self._loop.replace_feed(feed)
        self._priorities = PriorityUpdates(priorities)

    # --- State

    @property
    def step(self) -> int:
        """The number of completed iterations, including those of the run that was loaded."""
        return self._loop.step

    @property
    def last_iter(self) -> IterationIndex:
        """The index of the last iteration in 'after_iter' hooks, else the number of completed iterations."""
        return IterationIndex(self.step - 1 if self._in_iteration else self.step)

    @property
    def train_iter(self) -> int:
        """The same number as `last_iter`."""
        return self.last_iter.val

    @property
    def logger(self) -> logging.Logger:
        """The logger of `info` and `debug`."""
        return _LOG

    @property
    def tb_logger(self) -> RunDirectory:
        """The run's TensorBoard log, whose `add_scalar(name, value, step)` hooks can call."""
        return self.run

    def info(self, text: str) -> None:
        """Logs a message with the rank of this process."""
        self.logger.info("[RANK%d]: %s", self.rank, text)

    def debug(self, text: str) -> None:
        """Logs a debug message with the rank of this process."""
        self.logger.debug("[RANK%d]: %s", self.rank, text)

    @property
    def policy(self) -> Any:
        """The agent's greedy policy."""
        return self.agent.policy

    @property
    def log_buffer(self) -> dict[str, float]:
        """The means of the scalars since they were last logged; hooks may replace them."""
        return self._log.means

    @log_buffer.setter
    def log_buffer(self, means: dict[str, float]) -> None:
        self._log.means = LogBuffer(means)

    @property
    def latest(self) -> dict[str, float]:
        """The latest value of every logged number, by name."""
        return self._log.latest

    @property
    def recorded_at(self) -> dict[str, int]:
        """The number of completed iterations at which each value of `latest` was recorded, by name."""
        return self._log.recorded_at

    @property
    def monitor(self) -> Monitor:
        """The training speed over the last calls; see `Monitor.rates`."""
        return self._log.monitor

    @property
    def best_return(self) -> float:
        """The highest mean return of an evaluation after the first update; -inf before the first."""
        return self._log.best_return

    @property
    def evaluated_at(self) -> int | None:
        """The number of completed iterations at the last evaluation; None before the first."""
        return self._log.evaluated_at

    @property
    def is_stopped_by_signal(self) -> bool:
        """True if SIGTERM or SIGINT ended the run, or is about to."""
        return self.stop_reason in SIGNAL_NAMES

    # --- Hooks

    def register_hook(self, hook: LearnerHook) -> None:
        """Adds a hook; see `LearnerHook`.

        Raises:
          TypeError: If it is not an initialised `LearnerHook`.
        """
        self._hooks.register(hook)

    def call_hook(self, position: str) -> None:
        """Calls the hooks that are due at a position, in order of phase and priority.

        After an error of one, only those that save are called, so that the checkpoint of the iteration is complete.

        Raises:
          ValueError: If there is no such position.
          Exception: The first error of a hook.
        """
        require_one_of("position", position, POSITIONS)
        failure: Exception | None = None
        for phase in Phase:
            try:
                if failure is None or phase is Phase.SAVE:
                    self._call_hooks(position, [phase], self.step)
                if phase is Phase.SAVE and self._log.is_new_best:
                    self.save_checkpoint()
                elif phase is Phase.SAVE and position == "after_iter":
                    self._save_if_due()
            except TrainingDivergedError:
                raise
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _call_hooks(self, position: str, phases: Collection[Phase], step: int | None) -> None:
        """Calls the hooks that `HookList.at` yields; those at 'after_iter' see a `last_iter` within the iteration."""
        self._in_iteration = position == "after_iter"
        try:
            for hook in self._hooks.at(position, phases, step):
                hook(self)
        finally:
            self._in_iteration = False

    # --- Training

    def start(self, num_iterations: int) -> None:
        """Trains until `num_iterations` iterations are completed in total, including those of earlier runs.

        The same as `advance(num_iterations)` in `running()`.

        Args:
          num_iterations: total number of iterations, at least 1.

        Raises:
          ValueError: If the number is out of range.
          Exception: See `running` and `advance`.
        """
        require_count("num_iterations", num_iterations)
        with self.running():
            self.advance(num_iterations)

    @contextmanager
    def running(self) -> Iterator[Learner]:
        """Calls the 'before_run' hooks, and at the end of the context the 'after_run' hooks.

        On SIGTERM or SIGINT, `advance` returns after the current call of the graph, and `stop_reason` is set to the
        signal's name. A checkpoint is saved at the end then, as by DI-engine's `auto_checkpoint`. A second signal ends
        the process at once.

        Raises:
          RuntimeError: If the learner is already running.
          Exception: Any error of a hook, the dataset or the body, which is also written to `exception.txt` in
            `run_dir`. The completed iterations are saved before, but no 'after_run' hook is called.
        """
        if self._is_running:
            raise RuntimeError("the learner is already running; leave the context of running() first")
        self.stop_reason, self._is_running = "", True
        (self.run_dir / _EXCEPTION).unlink(missing_ok=True)
        try:
            with stop_on_signal(self.stop):
                self.call_hook("before_run")
                self._show_pending_log(only_due=True)
                self._schedule_save()
                with self._saving_before_error():
                    yield self
                    self.flush_priorities()
                    self.call_hook("after_run")
                    if not self.is_stopped_by_signal:  # Otherwise the resumed run continues the log's interval.
                        self._show_pending_log()
                    elif self._has_progress:
                        self.save_checkpoint()
        except Exception:
            with suppress(OSError):  # The disk may be full, which may also be why the run failed.
                report = f"after {self.step} iterations\n{traceback.format_exc()}"
                (self.run_dir / _EXCEPTION).write_text(report, encoding="utf-8")
            raise
        finally:
            self._is_running, self._reported, self._next_save_secs = False, None, math.inf

    def advance(self, until: int) -> None:
        """Trains until `until` iterations are completed in total, or a hook or a signal stops the run.

        If a hook or the dataset raises an error, the iterations completed before it are saved in a checkpoint. If an
        update raises one, nothing is saved, because the weights may contain a part of that update.

        Args:
          until: total number of iterations; nothing happens if they are already completed.

        Raises:
          RuntimeError: If the learner is not running; see `running`.
          ServerUnavailableError: If the servers of the dataset do not answer.
          TrainingDivergedError: If a loss or a weight is not finite; the message names the iteration and its items.
          ValueError: If the dataset ends, or `priorities` were given but the agent computes no TD error for each item.
        """
        require_count("until", until, 0)
        if not self._is_running:
            raise RuntimeError("advance requires a running learner; use `with learner.running():`, or start")
        while self.step < until and not self.stop_reason:
            self.call_hook("before_iter")
            if self.stop_reason:
                break
            self._require_td_errors()
            end = self._hooks.next_due(self.step, min(until, self._choose_end()))
            start_secs = time.perf_counter()
            with self._saving_before_error():
                result = self._loop(end, until)
            secs = time.perf_counter() - start_secs
            possible = max(int(_CALL_SECS * result.num_iterations / secs), 1)
            self._call_size = min(possible, _MAX_GROWTH * self._call_size, _MAX_STEPS_PER_CALL)
            self._process_result(result, secs)

    def train(self, batch: Any, envstep: int = -1, *, weights: Any = None) -> dict[str, float]:
        """Runs one iteration on a batch: 'before_iter' hooks, the agent's update, 'after_iter' hooks.

        Args:
          batch: experience as the agent's `train` expects it, a `reverb.ReplaySample`, a pair (experience, info), or a
            list of items as the `sample` of a buffer returns it.
          envstep: see `collector_envstep`.
          weights: importance weights, float32 `[B]`; None for those in the info.

        Returns:
          The scalars of the iteration: `loss` and the agent's others.

        Raises:
          TrainingDivergedError: If the loss or a weight is not finite.
        """
        require_count("envstep", envstep, -1)
        experience, info = split_experience_and_info(batch)
        self.collector_envstep = envstep
        self._require_td_errors()
        self.call_hook("before_iter")
        weights = getattr(info, "weight", None) if weights is None else weights
        result = self._loop.run_on_batch(experience, weights, tf.nest.map_structure(np.asarray, info))
        self._process_result(result)
        return self.learn_info

    def stop(self, reason: str) -> None:
        """Ends the run after the hooks of this iteration; if called again, the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def _choose_end(self) -> int:
        """Returns at which iteration the next call ends at the latest."""
        if self._steps_per_call is not None:
            return (self.step // self._steps_per_call + 1) * self._steps_per_call
        return self.step + self._call_size

    @property
    def has_td_errors(self) -> bool:
        """True if the agent computes a TD error for each item. Traces an iteration if there was none."""
        return self._loop.has_td_errors

    def flush_priorities(self) -> None:
        """Waits until all priorities are updated."""
        self._priorities.flush()

    def _require_td_errors(self) -> None:
        """Raises `ValueError` if there are priorities to update, but the agent has no TD errors to compute them."""
        if self._priorities.sink is not None and not self.has_td_errors:
            raise ValueError(
                "priorities= requires an agent that computes a TD error for each item, unlike "
                f"{type(self.agent).__name__}; omit priorities=, or return 'td_error' [B] in its LossInfo.extra"
            )

    def _process_result(self, result: CallResult, secs: float | None = None) -> None:
        """Records the results of a call that took `secs`, updates priorities, and calls the 'after_iter' hooks."""
        self.learn_info, self._has_progress = result.last, True
        has_priorities = result.td_errors is not None and hasattr(result.info, "key")
        self.priority_info = make_update(result.info, result.td_errors) if has_priorities else {}
        self._log.add(self.step, result, secs, has_priorities=has_priorities)
        if has_priorities:
            self._priorities.submit(result.info, self.priority_info[PRIORITY])
        self.call_hook("after_iter")

    @contextmanager
    def _saving_before_error(self) -> Iterator[None]:
        """Saves and logs what was completed before an error within the context, once, and tells so in the error."""
        try:
            yield
        except (Exception, KeyboardInterrupt, SystemExit, Terminated) as error:
            if error is not self._reported and not isinstance(error, TrainingDivergedError):
                self._reported = error
                _add_sentence(error, self._save_before(error))
            raise

    def _save_before(self, error: BaseException) -> str:
        """Saves and logs the iterations before an error; returns a sentence about them.

        After an error of the agent nothing is saved, because the weights may contain a part of the failed update.
        """
        sentence = f"training stopped after {self.step} iterations"
        if self._saved_at == self.step:
            return f"{sentence}, which are saved"
        if self._loop.is_update_incomplete:
            return f"{sentence}, during an update, so that its weights are not saved; resume from the last checkpoint"
        if self._has_progress:
            try:
                saved = self.save_checkpoint()
            except Exception as failure:
                return sentence if str(failure) == str(error) else f"{sentence}, which could not be saved ({failure})"
            sentence += f", which are saved in {saved.path}" if saved else ""
            with suppress(Exception):  # Which may be the error itself.
                self._show_pending_log()
        return sentence

    # --- Logs and evaluations

    def show_log(self) -> None:
        """Logs the log buffer and the training speed, and empties the buffer."""
        self._log.show(self.step)

    def record_evaluation(self, evaluation: Any) -> None:
        """Logs an evaluation: an `Evaluation` or a mean return.

        If it is the best one up to now, a checkpoint is written after the hooks of this iteration. One before the first
        update only shows where the run starts.
        """
        self._log.show_evaluation(self.step, evaluation)
        self._saved_at = None

    def record_data(self) -> None:
        """Notes that the data of `replay` have changed, so that the next checkpoint of this iteration is written."""
        self._saved_at, self._has_progress = None, True
        self._save_if_due()

    def _show_pending_log(self, *, only_due: bool = False) -> None:
        """Calls the hooks that log, if there are numbers that they have not logged.

        Args:
          only_due: whether to call only those that were due at the last iteration, whose checkpoint precedes the log.
        """
        if self.log_buffer:
            self._call_hooks("after_iter", _LOG_PHASES, self.step if only_due else None)

    # --- Checkpoints

    def save_checkpoint(self) -> Checkpoint | None:
        """Writes a checkpoint and returns it; returns None if there already is one for this iteration.

        Raises:
          CheckpointError, StorageFullError: See `Checkpoints.save`.
        """
        if self._saved_at == self.step:
            return None
        if self._replay is not None:
            self.flush_priorities()
        manifest = {
            "identity": self._identity,
            "specs": describe_specs(self.agent),
            "hyperparameters": self._hyperparameters.digests(),
            "hooks": self._hooks.state_dict(),
            "log": self._log.state_dict(),
        }
        start_secs = time.monotonic()
        saved = self._checkpoints.save(self.step, manifest, is_best=self._log.is_new_best)
        self._saved_at, self._log.is_new_best = self.step, False
        self._save_secs = time.monotonic() - start_secs
        self._schedule_save()
        return saved

    def _schedule_save(self) -> None:
        self._next_save_secs = time.monotonic() + max(self._every_secs, _MIN_SAVE_RATIO * self._save_secs)

    def _save_if_due(self) -> None:
        """Saves a checkpoint if the last one is too old."""
        if time.monotonic() >= self._next_save_secs:
            self.save_checkpoint()

    def load_checkpoint(self, path: str | Path | None = None, *, allow_config_mismatch: bool = False) -> bool:
        """Resumes from a checkpoint, and returns whether there is one.

        Weights, optimisers and counters continue; hyperparameters are those of this learner's agent.

        Args:
          path: directory of a checkpoint; None for the latest valid one in `run_dir`.
          allow_config_mismatch: whether to accept a checkpoint whose `identity` is different, such as one of a run on
            different data.

        Raises:
          CheckpointError: If the checkpoint is missing or damaged, belongs to a different run, or has no replay data.
        """
        checkpoint = self._checkpoints.open(path)
        if checkpoint is None:
            return False
        saved = checkpoint.manifest["identity"]
        changes = differences(saved, self._identity, addable=self._addable)
        if not allow_config_mismatch:
            require_same(f"{checkpoint.path} belongs to a different run", changes.values())
        if self._replay is not None:
            self._loop.close_feed()
            checkpoint.load_replay(self._replay)
        self._loop.prepare()  # Keras optimisers create their variables during tracing.
        self._checkpoints.restore(checkpoint)
        self._hyperparameters.set_again(checkpoint.manifest["hyperparameters"])
        self._loop.step = checkpoint.step
        self._hooks.load_state_dict(checkpoint.manifest["hooks"])
        self._log.load_state_dict(checkpoint.manifest["log"], checkpoint.step)
        self.load_path = str(checkpoint.path)
        is_own = checkpoint.path.resolve().parent == (self.run_dir / "checkpoints").resolve()
        self._saved_at = checkpoint.step if is_own else None
        if not is_own:
            self._log.best_return = -math.inf  # Its checkpoint belongs to a different run.
        if any(name.startswith(("environment", "eval_")) for name in changes):
            self._log.forget_evaluations()
            self._checkpoints.forget_best()
        return True

    def initialize_from(self, path: str | Path) -> None:
        """Starts a new run with another run's weights and normalisation; optimisers and counters start afresh.

        Args:
          path: run_dir of the other run, for its latest valid checkpoint, or the directory of a checkpoint.

        Raises:
          CheckpointError: If there is no valid checkpoint, or it belongs to a different agent.
          SpecMismatchError: If observations or actions differ, including the bounds of actions.
          ValueError: If this learner has completed iterations.
        """
        if self.step:
            raise ValueError(f"initialize_from requires a learner without completed iterations, got {self.step}")
        checkpoint = open_checkpoint(path)
        self._loop.prepare()  # Keras optimisers create their variables during tracing.
        load_weights(checkpoint, self.agent)

    def export_policy(self, path: str | Path) -> Path:
        """Writes the greedy policy as a SavedModel that loads without this package, and returns its path.

        It includes the agent's estimates of values, if it has `estimate_values`; see `SavedPolicy.values`.

        Args:
          path: directory of the SavedModel; replaced if it exists.
        """
        values = getattr(self.agent, "estimate_values", None)
        return export_policy(self.policy, path, train_step=self.agent.train_step_counter, estimate_values=values)

    def export_best_policy(self, path: str | Path, *, current: str | Path | None = None) -> Path | None:
        """Writes the policy of the best evaluation, and returns its path, or None without evaluations.

        The agent itself is left unchanged.

        Args:
          path: directory of the SavedModel; replaced if it exists.
          current: directory of the current policy's SavedModel, which is copied if it is the best one; None if there is
            none.
        """
        is_current = self._log.is_new_best  # Then its checkpoint is not written yet.
        best = None if is_current else self._checkpoints.best()
        if is_current or (best is not None and best.step == self.step):
            return self.export_policy(path) if current is None else copy_policy(current, path)
        if best is None:
            return None
        with self._checkpoints.restore_temporarily(best):
            return self.export_policy(path)


def _make_matching_feed(dataset: Any, priorities: PrioritySink | None, agent: tf_agent.TFAgent) -> Feed:
    """Returns the feed of a dataset; raises unless the agent can be trained on it, with priorities if there are any."""
    feed = make_feed(dataset)
    require_experience(feed.experience_spec, agent)
    if priorities is not None:
        require_sink(priorities)
        if not hasattr(feed.info_spec, "key"):
            raise SpecMismatchError(
                "priorities= requires batches with keys; use sample_dataset, or the dataset of a buffer"
            )
    return feed


def _add_sentence(error: BaseException, sentence: str) -> None:
    """Puts a sentence before the message of an error of this package, and adds it as a note to any other error."""
    if (
        type(error) in (ServerUnavailableError, SpecMismatchError, TimeoutError, ValueError, ArgumentError)
        and len(error.args) == 1
    ):
        message = f"{sentence}: {error}"
        if isinstance(error, SpecMismatchError) and error.details == str(error):
            error.details = message
        error.args = (message,)
    elif hasattr(error, "add_note"):
        error.add_note(sentence)
    else:  # Before Python 3.11.
        _LOG.warning(sentence)
