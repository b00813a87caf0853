"""Training: a dataset in, a trained run out."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ArgumentError, CheckpointError, Message
from rlds2reverb.learners import Learner
from rlds2reverb.learners.agents import execute_chunks, get_hyperparameters, make_agent, make_chunk_spec
from rlds2reverb.learners.agents.absolute_policy import make_policies_absolute
from rlds2reverb.learners.agents.history_policy import extend_statistics, keep_histories
from rlds2reverb.learners.algorithms import ALGORITHMS
from rlds2reverb.learners.hooks import EvaluateHook, LearnerHook, LogShowHook, SaveCkptHook, make_hooks
from rlds2reverb.learners.hooks.hook import Position
from rlds2reverb.learners.run_identity import differences, require_same
from rlds2reverb.learners.runs import BEST_POLICY_FOLDER, POLICY_FOLDER, Run, load_run, read_run_config
from rlds2reverb.libraries.tensorflow_internals import op_determinism
from rlds2reverb.system.closing import Closing
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.references import describe_callable
from rlds2reverb.types.evaluations import Evaluation
from rlds2reverb.types.scores import d4rl_score

from .config import TrainingConfig
from .config_validation import describe_unused
from .data import RunFeed, TrainingData, identify_run, make_augmentation
from .dataset import StepData
from .directories import find_run_dir, require_single_run
from .evaluation_environment import environment_key
from .online import OnlinePhase
from .progress import Progress, raise_if_interrupted
from .sources import fit_config, open_environment, open_evaluated_data
from .stuck_actions import warn_stuck
from .trackers import TENSORBOARD, RunTrackers
from .validation import ValidationHook


def train(
    source: Any,
    algo: Any,
    run_dir: str | Path,
    *,
    presets: Iterable[str] = (),
    gin_files: Iterable[str | Path] = (),
    progress: bool = True,
    **options: Any,
) -> Run:
    """Trains an agent from a dataset and evaluates it; the same call continues a run that was interrupted or killed.

        run = train("hopper_medium-v2.hdf5", "iql", "runs/iql", steps=20_000, hyperparameters={"expectile": 0.8})
        print(run.best_return)
        run.plot()

    `train_seeds` trains several runs that differ only in their seeds.

    Args:
      source: the data, or None to learn only from what the agent collects; see `Training`.
      algo: name of the algorithm, such as 'iql'; or a custom agent, "my_module:MyAgent" or the class or function
        itself, see `register_agent`.
      run_dir: directory of the run, created if missing.
      presets: names of published settings, such as 'iql-antmaze'; see `TrainingConfig.from_gin`.
      gin_files: gin files with further settings.
      progress: whether to show notes and progress on stderr or in the notebook; warnings are always shown.
      **options: options of `TrainingConfig`.

    Returns:
      The run, which `load_run(run_dir)` loads again at any time. If SIGTERM ended the call, or a notebook cell was
      interrupted, it is incomplete.

    Raises:
      KeyboardInterrupt: If SIGINT (Ctrl-C) ended the call, after everything was saved; not in a notebook.
      ValueError, TypeError: If an option is invalid, see `TrainingConfig`.
      TrainingDivergedError: If the loss or a weight is not finite.
      Exception: See `Training`.
    """
    for name in ("seeds", "jobs"):
        if name in options:
            raise TypeError(f"train makes a single run and has no {name}; call train_seeds")
    config = TrainingConfig.from_gin(algo, presets=presets, gin_files=gin_files, **options)
    with Training(source, config, run_dir, progress=Progress(quiet=not progress, notes=progress)) as training:
        return training.run()


class Training(Closing):
    """One training run, and its parts.

        with Training("hopper_medium-v2.hdf5", TrainingConfig("iql"), "runs/iql") as training:
            print(training.data.data_return)
            run = training.run()

    Creating one reads and validates the data, creates the agent and, if the directory contains a run, restores it.

    Attributes:
      config: the `TrainingConfig`.
      data: the `TrainingData`.
      environment: the `EvaluationEnvironment` of the evaluations; None without evaluation.
      evaluator: the `Evaluator`; None without evaluation.
      agent: the agent.
      learner: the `Learner`, with its hooks.
    """

    def __init__(
        self,
        source: Any,
        config: TrainingConfig,
        run_dir: str | Path,
        *,
        progress: Progress | None = None,
    ):
        """Prepares the run.

        Args:
          source: any source of `load` (a path, a name, a `Source`, a list or a generator function of episodes); the
            address of a server, a directory that `ingest` wrote, or a pair (server, table); or None to learn only from
            what the agent collects in the environment, see the option `online_steps`.
          config: the options.
          run_dir: directory of the run, created if missing. If it contains a run, that run is continued.
          progress: prints notes and progress; None prints only notes and warnings.

        Raises:
          CheckpointError: If the directory contains a different run, or one that has made more updates, and the
            configuration does not allow that; or if the directory contains several runs.
          ArgumentError: If the directory contains something else, such as a dataset.
          ResourceInUseError: If another process trains in the directory.
          SpecMismatchError, SourceError, InvalidEpisodeError, ValueError: As `open_data`, for data that the agent
            cannot learn from; as `Evaluator`, for an environment that does not match the data.
        """
        requested = fit_config(source, config)
        self.run_dir = find_run_dir(run_dir)
        require_single_run(self.run_dir)
        self._progress = progress or Progress(quiet=True)
        self._trackers = RunTrackers(requested.track, self.run_dir, self._progress.warn)
        requested.require_valid_hyperparameters()  # Before any data are read.
        custom_hooks = make_hooks(requested.hooks)
        with ExitStack() as stack:
            stack.callback(self._progress.close)
            if requested.deterministic:
                stack.enter_context(op_determinism())
            opened, environment, evaluator = open_environment(source, requested, self._progress)
            require_same_run(self.run_dir, requested, environment_key(environment))
            data, self.evaluator = open_evaluated_data(opened, requested, evaluator, self._progress)
            self.data = stack.enter_context(data)
            self.environment = None if self.evaluator is None else environment
            self.config = self._resolve_steps(requested)
            self.agent = make_run_agent(self.config, self.data)
            batches = stack.enter_context(self.data.open_batches(self.config))
            self._online = self._make_online(batches, stack)
            with full_disk_as_error(self.run_dir):
                self.learner = stack.enter_context(self._make_learner(batches, self._make_hooks(custom_hooks)))
                is_continued = self._restore(batches.fill if batches else lambda: None)
                self._prepare(is_continued=is_continued)
            self._resources = stack.pop_all()

    def __exit__(self, *raised: Any) -> None:
        if raised[0] is not None:
            self._trackers.finish("failed" if issubclass(raised[0], Exception) else "stopped")
        self.close()

    def close(self) -> None:
        """Releases the run directory and stops what the run has started. Idempotent."""
        self._trackers.finish("stopped")
        self._resources.close()

    @property
    def collected_at(self) -> str | None:
        """The address of the server with the table 'collected' of an online phase, or None."""
        return None if self._online is None else self._online.address

    @property
    def is_complete(self) -> bool:
        """True if all updates are made, and the last evaluation, if there is an environment."""
        is_evaluated = self.evaluator is None or self.learner.evaluated_at == self.learner.step
        return is_evaluated and self.learner.step >= (self.config.num_updates or 0)

    def run(self) -> Run:
        """Trains until `config.num_updates` updates are done in total, exports the policies, and returns the run.

        The updates on the dataset come first, then the online phase, if there is one.

        SIGTERM and SIGINT save a checkpoint and end the run early; `learner.stop_reason` then names the signal. Running
        the same training again continues it.

        Raises:
          KeyboardInterrupt: After saving, if SIGINT (Ctrl-C) ended the run, except in a notebook, where the interrupted
            cell continues with the incomplete run.
          TrainingDivergedError: If the loss or a weight is not finite.
          ServerUnavailableError: If a server with the data is lost.
          StorageFullError: If the disk is full; the same training continues once there is space.
        """
        with full_disk_as_error(self.run_dir):
            with self.learner.running():
                self.learner.advance(self.config.num_offline_updates)
                if self._online is not None:
                    self._online.run(self.learner)
            if isinstance(self.data, StepData) and not self.learner.stop_reason:
                policy = self.agent.policy.wrapped if self.data.relative_actions else self.agent.policy
                for warning in warn_stuck(policy, self.data.action_spec, self.data.items, self.config):
                    self._progress.warn(warning)
            with self._progress.activity("exporting the policy"):
                last = self.learner.export_policy(self.run_dir / POLICY_FOLDER)
                if self.learner.export_best_policy(self.run_dir / BEST_POLICY_FOLDER, current=last) is None:
                    shutil.rmtree(self.run_dir / BEST_POLICY_FOLDER, ignore_errors=True)
                run = load_run(self.run_dir)
                if run.best_return is not None:
                    run.plot(self.run_dir / "curve.png")
        if self.learner.stop_reason:
            self._progress.note(f"stopped by {self.learner.stop_reason} after {self.learner.step:,} updates")
        is_stopped = self.learner.is_stopped_by_signal and not self.is_complete
        self._trackers.finish("stopped" if is_stopped else "complete")
        raise_if_interrupted(self.learner.stop_reason, f"{run}; the same training continues it")
        return run

    def _prepare(self, *, is_continued: bool) -> None:
        """Does what remains before the first update."""
        if self._online is not None:
            with self._progress.activity("creating the environments"):
                self._online.start()
        self._write_config()
        self._require_export()
        self.learner.run.writes_events = TENSORBOARD in self.config.track
        self._trackers.start(read_run_config(self.run_dir), is_continued=is_continued)

    def _require_export(self) -> None:
        """Raises what would otherwise fail after the last update, or at the first checkpoint.

        Raises:
          StorageFullError: If the disk has no space for two checkpoints.
          ValueError: If the policy of a custom agent, or one with custom networks, cannot be saved.
        """
        needed = 2 * sum(variable.shape.num_elements() * variable.dtype.size for variable in self.agent.variables)
        if shutil.disk_usage(self.run_dir).free < needed:
            raise OSError(errno.ENOSPC, "no space for two checkpoints")
        if self.config.algo in ALGORITHMS and not any(map(callable, self.config.hyperparameters.values())):
            return
        try:
            with self._progress.activity("checking the policy"), tempfile.TemporaryDirectory() as folder:
                self.learner.export_policy(Path(folder) / POLICY_FOLDER)
        except (TypeError, ValueError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"the policy of {self.config.algo} must be savable: {reason}") from error

    def _log(self, step: int, numbers: dict[str, float]) -> None:
        self._progress.log(step, numbers)
        self._trackers.log(step, numbers)

    def _make_learner(self, batches: RunFeed | None, hooks: list[LearnerHook]) -> Learner:
        config = self.config
        return Learner(
            self.run_dir,
            self.agent,
            self._online.feed if batches is None else batches.feed,  # type: ignore[union-attr]
            priorities=None if batches is None else batches.priorities,
            replay=self._online or (None if batches is None else batches.replay),
            hooks=hooks,
            jit_compile=config.jit_compile,
            augment=make_augmentation(config, self.data.agent_time_step_spec.observation),
            identity=identify_run(config, self.data, *environment_key(self.environment)),
            addable=config.online_options(),
            keep_checkpoints=config.keep_checkpoints,
            checkpoint_every_secs=config.checkpoint_every_secs,
            on_log=self._log,
        )

    def _make_online(self, batches: RunFeed | None, stack: ExitStack) -> OnlinePhase | None:
        if not self.config.online_steps or self.environment is None:
            return None
        online = OnlinePhase(self.config, self.data, batches, self.environment.make_env, self.agent.collect_policy)
        stack.callback(online.close)
        if online.address is not None:
            self._progress.note(f"the collected items are in the table 'collected' of {online.address}")
        return online

    def _resolve_steps(self, requested: TrainingConfig) -> TrainingConfig:
        """Returns the options of the run, whose number of updates is known now.

        Raises:
          CheckpointError: If the run has already made more updates than the epochs take.
        """
        for note in describe_unused(requested):
            self._progress.note(note)
        config = self.data.resolve_steps(requested)
        self._progress.num_iterations = config.num_updates
        if config.epochs is not None:
            config.require_valid_hyperparameters()
            require_same_run(self.run_dir, config, environment_key(self.environment))
            sentence = f"takes {config.num_offline_updates:,} updates"
            self._progress.note(Message(sentence, about="epochs", value=config.epochs))
        return config

    def _make_hooks(self, custom_hooks: Sequence[LearnerHook]) -> list[LearnerHook]:
        config = self.config
        has_log = any(isinstance(hook, LogShowHook) for hook in custom_hooks)
        hooks: list[LearnerHook] = [
            *([] if has_log else [LogShowHook(every=config.log_every)]),
            SaveCkptHook(every=config.checkpoint_every),
            SaveCkptHook(position="after_run"),
        ]
        if self.evaluator is not None:
            # The one before the run makes up for an evaluation that a signal has stopped.
            positions: tuple[Position, ...] = ("before_run", "after_iter", "after_run")
            for position in positions:
                hooks.append(EvaluateHook(self._evaluate, position=position, every=config.eval_every))
        if self.data.validation is not None:
            hooks.append(ValidationHook(self.agent, self.data.validation, every=config.log_every))
        if self._online is not None:
            hooks.append(self._online.make_hook())
        return [*hooks, *custom_hooks]

    def _evaluate(self, policy: Any) -> Evaluation | None:
        """Returns an evaluation; None if a signal has stopped the run before it was complete."""
        assert self.evaluator is not None
        return self.evaluator.evaluate(policy, should_stop=lambda: self.learner.is_stopped_by_signal)

    def _restore(self, fill: Callable[[], None]) -> bool:
        """Continues the run in the directory, or fills the table of a new one; returns whether it is continued."""
        with self._progress.activity("preparing the update"):
            if self.config.sampler == "prioritized" and not self.learner.has_td_errors:
                raise ArgumentError(
                    "must be 'uniform' for an agent that does not return a TD error for each item, such as "
                    f"{self.config.algo}; or return 'td_error' [B] in the extra of its LossInfo",
                    about="sampler",
                )
            if not self.learner.load_checkpoint(allow_config_mismatch=self.config.allow_config_mismatch):
                fill()
                return False
        if self._online is not None:
            self._online.require_reachable(self.learner.step)
        self._progress.note(f"continuing from update {self.learner.step:,}")
        saved = read_run_config(self.run_dir)
        before = (saved.get("hyperparameters") or {}).get("num_updates")
        now = self.config.resolved_hyperparameters.get("num_updates")
        if before and now and before != now:
            sentence = f"the actor's learning rate schedule now ends after {now:,} updates instead of {before:,}"
            self._progress.note(sentence)
        return True

    def _write_config(self) -> None:
        references = self.evaluator.reference_returns if self.evaluator else None
        document = describe_run(self.config, self.data, environment_key(self.environment), references)
        saved, latest = read_run_config(self.run_dir).get("reference_returns"), self.learner.latest
        if saved and references and tuple(saved) != references and {*self.config.track} - {TENSORBOARD}:
            self._progress.note("trackers keep the scores that were logged with the earlier reference returns")
        if (mean := latest.get("evaluation/mean_return")) is not None and references is not None:
            latest["evaluation/score"] = d4rl_score(mean, references)
        elif references is None:
            latest.pop("evaluation/score", None)
        self.learner.run.write_config(document)


def require_same_run(
    run_dir: Path,
    config: TrainingConfig,
    environment: tuple[str | None, dict[str, Any] | None],
    fingerprint: str | None = None,
) -> None:
    """Raises `CheckpointError` if a directory contains checkpoints of a different run, or of more updates.

    Args:
      run_dir: the directory, which need not exist.
      config: the options of the run, which may allow a different run.
      environment: see `environment_key`.
      fingerprint: fingerprint of the data; None if it is not known yet.
    """
    steps = [int(path.name) for path in run_dir.glob("checkpoints/*") if path.name.isdigit()]
    document = read_run_config(run_dir) if steps else {}
    saved = document.get("identity") or {}
    if saved and not config.allow_config_mismatch:
        now = config.identity(*environment) | ({} if fingerprint is None else {"data": fingerprint})
        is_same_request = (document.get("configuration") or {}).get("env") == config.as_dict()["env"]
        if saved.get("environment") is None and is_same_request:
            # Then the data did not match the environment, or a package was missing.
            now = {name: value for name, value in now.items() if not name.startswith("environment")}
        changes = differences(saved, now, only_common=True).values()
        require_same(f"{run_dir} contains a different run", changes)
    if saved and config.num_updates is not None and max(steps) > config.num_updates:
        _raise_too_short(run_dir, config, max(steps), document.get("configuration") or {})


def _raise_too_short(run_dir: Path, config: TrainingConfig, num_updates: int, saved: Mapping[str, Any]) -> None:
    """Raises `CheckpointError` that names the option with too few updates: that of the phase that has changed."""
    now = config.as_dict()
    if all(name in saved and saved[name] == now[name] for name in ("steps", "epochs")):
        raise CheckpointError(
            f"must be at least {config.count_online_steps(num_updates):,}, for the {num_updates:,} updates that "
            f"{run_dir} has already made, got {config.online_steps:,}; collect more steps, or use a different run "
            "directory",
            about="online_steps",
        )
    about, verb = config.length_option
    raise CheckpointError(
        f"{verb} at least {num_updates:,}, the number of updates that {run_dir} has already made, got "
        f"{config.num_updates:,}; set more {about}, or use a different run directory",
        about=about,
    )


def describe_run(
    config: TrainingConfig,
    data: TrainingData,
    environment: tuple[str | None, dict[str, Any] | None],
    reference_returns: tuple[float, float] | None,
) -> dict[str, Any]:
    """Returns the content of `config.json` of a run; see `Run.config`."""
    hyperparameters = {
        # The exported policies contain the statistics.
        name: describe_callable(value)
        for name, value in config.resolved_hyperparameters.items()
        if not name.startswith("observation_")
    }
    return {
        "configuration": config.as_dict(),
        "hyperparameters": hyperparameters,
        "identity": identify_run(config, data, *environment),
        "data": {
            "source": data.name,
            "fingerprint": data.fingerprint,
            "data_return": data.data_return,
            "held_out": list(data.held_out),
            "reward_transform": None if data.reward_transform is None else dataclasses.asdict(data.reward_transform),
        },
        "environment": environment[0],
        "environment_spec": environment[1],
        "reference_returns": reference_returns,
    }


def make_run_agent(config: TrainingConfig, data: TrainingData) -> Any:
    """Returns the agent of a run, whose policies execute chunks of actions and keep histories of observations."""
    action_spec, length = data.action_spec, config.chunk_length
    spec = action_spec if length == 1 else make_chunk_spec(action_spec, length)
    agent = make_agent(config.algo, data.agent_time_step_spec, spec, **agent_hyperparameters(config, data))
    if length > 1:
        execute_chunks(agent, action_spec, config.execution_horizon or length)
    keep_histories(agent, data.time_step_spec, data.history)
    make_policies_absolute(agent, data.relative_actions)
    return agent


def agent_hyperparameters(config: TrainingConfig, data: TrainingData) -> dict[str, Any]:
    """Returns the agent's hyperparameters, with the statistics of the data unless the user has set others."""
    values, moments = dict(config.resolved_hyperparameters), data.moments
    is_set = any(values.get(name) is not None for name in ("observation_mean", "observation_std"))
    if config.normalize_observations and moments is not None and not is_set:
        mean, std = (extend_statistics(part, data.history) for part in moments)
        values |= {"observation_mean": mean, "observation_std": std}
    is_asked = "target_return" in get_hyperparameters(config.algo) and values.get("target_return") is None
    if is_asked and data.returns is not None:
        values["target_return"] = float(data.returns.max())
    return values
