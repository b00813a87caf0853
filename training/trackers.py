"""Experiment trackers, such as Weights & Biases, that receive the logged numbers of a run without duplicates."""

from __future__ import annotations

import importlib.util
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rlds2reverb.errors import ArgumentError, CorruptFileError, TrackerError
from rlds2reverb.learners.run_identity import differences
from rlds2reverb.system.installation import install_command
from rlds2reverb.system.sealed_files import load_json, save_json
from rlds2reverb.system.text import last_line, suggest

#: The tracker that the run directory itself writes.
TENSORBOARD = "tensorboard"
_STATE_FILE, _PLAN_FILE = "trackers.json", "plan.json"
_PROJECT = "rlds2reverb"
_MLFLOW_STATUS = {"complete": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_MAX_MLFLOW_LENGTH = 500


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run that a tracker receives when it starts.

    Attributes:
      id: unique id of the run, which stays the same when it is continued.
      name: name of the run: that of its directory, or its name in the plan of an experiment.
      group: name of the experiment's directory; None for a single run.
      run_dir: directory of the run.
      config: content of the run's `config.json`.
    """

    id: str
    name: str
    group: str | None
    run_dir: Path
    config: Mapping[str, Any] = field(repr=False)


@runtime_checkable
class Tracker(Protocol):
    """A receiver of the numbers of a run; `track=` accepts any object with these methods."""

    def start(self, run: TrackedRun) -> None:
        """Starts or continues the tracker's run with this id."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs numbers by name; each name is logged once per step, at increasing steps."""

    def finish(self, status: str) -> None:
        """Ends the tracker's run, which is 'complete', 'stopped' or 'failed'."""


class WandbTracker:
    """Logs to Weights & Biases; its environment variables, such as WANDB_PROJECT and WANDB_MODE=offline, apply."""

    def start(self, run: TrackedRun) -> None:
        """Starts or continues the run with this id; local files are written to the run directory or WANDB_DIR."""
        import wandb

        # Parts that were logged offline are joined by their id when they are synchronised.
        is_offline = os.environ.get("WANDB_MODE") == "offline"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=run.id,
            name=run.name,
            group=run.group,
            config=dict(run.config),
            resume=None if is_offline else "allow",
            dir=os.environ.get("WANDB_DIR", str(run.run_dir)),
            settings=wandb.Settings(silent=True),
        )
        # The counter of wandb would reject numbers of steps that it has already passed.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs numbers with the step as their x-axis."""
        self._run.log({"step": step, **numbers})

    def finish(self, status: str) -> None:
        """Uploads the rest and ends the run."""
        self._run.finish(exit_code=1 if status == "failed" else 0)


class MlflowTracker:
    """Logs to MLflow; its environment variables, such as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, apply."""

    def start(self, run: TrackedRun) -> None:
        """Creates the run, or continues the one that is tagged with this id."""
        from mlflow import MlflowClient

        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        found = self._client.search_runs([experiment_id], f"tags.`rlds2reverb.id` = '{run.id}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"rlds2reverb.id": run.id, **({"rlds2reverb.group": run.group} if run.group else {})}
        self._id = self._client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        # Other parts of the config, such as versions, are not parameters.
        options, hyperparameters = run.config.get("configuration", {}), run.config.get("hyperparameters", {})
        parameters = {name: value for name, value in options.items() if name != "hyperparameters"}
        parameters |= {f"hyperparameter.{name}": value for name, value in hyperparameters.items()}
        for key, value in parameters.items():
            self._client.log_param(self._id, key, str(value)[:_MAX_MLFLOW_LENGTH])

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs numbers as metrics."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [Metric(name, float(value), now_ms, step) for name, value in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, status: str) -> None:
        """Ends the run; one that was stopped is marked as killed until it is continued."""
        self._client.set_terminated(self._id, _MLFLOW_STATUS[status])


#: The trackers that `track` accepts by name, which is that of the package they require, besides 'tensorboard'.
TRACKERS: dict[str, Callable[[], Tracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}


def require_trackers(trackers: Any) -> tuple[Any, ...]:
    """Returns trackers as a tuple.

    Raises:
      TypeError: If an element is neither a name nor a `Tracker`.
      ValueError: If there is no tracker of that name.
    """
    if isinstance(trackers, str) or not isinstance(trackers, Sequence):
        raise TypeError(f"track must be a list of trackers, such as ['tensorboard', 'wandb'], got {trackers!r}")
    names = [TENSORBOARD, *TRACKERS]
    for tracker in trackers:
        if isinstance(tracker, str) and tracker not in names:
            advice = suggest(tracker, names) or f"; use {', '.join(names)}"
            raise ArgumentError(f"contains the unknown tracker {tracker!r}{advice}", about="track")
        if not isinstance(tracker, (str, Tracker)) or isinstance(tracker, type):
            raise TypeError(f"track must contain names, or objects with start, log and finish, got {tracker!r}")
    return tuple(trackers)


class RunTrackers:
    """The trackers of one run, which log each number once even if the run is killed and continued.

    `trackers.json` in the run directory contains the id of the run and the last logged steps. They are written before
    the numbers are logged: a killed process may leave out one entry, but repeats none. A tracker that fails while the
    run is in progress is left out from then on, and the run continues.
    """

    def __init__(self, trackers: Sequence[Any], run_dir: Path, warn: Callable[[str], None]):
        """Creates the trackers; they are started by `start`.

        Args:
          trackers: names and objects; see `require_trackers`. 'tensorboard' is written by the run directory itself.
          run_dir: directory of the run.
          warn: function called with a sentence if a tracker fails.

        Raises:
          ImportError: If the package of a tracker is not installed.
        """
        self._run_dir, self._warn = run_dir, warn
        self._trackers: dict[str, Tracker] = {}
        for tracker in trackers:
            if tracker == TENSORBOARD:
                continue
            if isinstance(tracker, str):
                if importlib.util.find_spec(tracker) is None:
                    raise ImportError(
                        f"the tracker {tracker!r} requires the package {tracker}; run {install_command(tracker)}"
                    )
                self._trackers[tracker] = TRACKERS[tracker]()
            else:
                self._trackers[type(tracker).__name__] = tracker
        self._state: dict[str, Any] = {"id": uuid.uuid4().hex[:12], "logged": {}}

    def start(self, config: Mapping[str, Any], *, is_continued: bool = True) -> None:
        """Starts the trackers.

        Args:
          config: content of the run's `config.json`.
          is_continued: whether the run continues from a checkpoint. Otherwise it may be a different run in the
            directory of one that failed early, and then gets a new id.

        Raises:
          TrackerError: If a tracker cannot be started, for example because of a missing login. The others are ended.
        """
        if not self._trackers:
            return
        identity = config.get("identity")
        with suppress(CorruptFileError):
            saved = load_json(self._run_dir / _STATE_FILE) or {}
            if is_continued or not differences(saved.get("identity") or {}, identity or {}):
                self._state |= saved
        self._state["identity"] = identity
        save_json(self._run_dir / _STATE_FILE, self._state)
        run_name, group = _find_names(self._run_dir)
        run = TrackedRun(self._state["id"], run_name, group, self._run_dir, config)
        started: dict[str, Tracker] = {}
        for name, tracker in self._trackers.items():
            try:
                tracker.start(run)
            except Exception as error:  # Trackers raise errors of any type.
                self._trackers = started
                self.finish("failed")
                reason = last_line(str(error)) or type(error).__name__
                raise TrackerError(f"the tracker {name} cannot be started: {reason}") from error
            started[name] = tracker

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs numbers after `step` updates, unless they were logged before the run was continued."""
        kind = "evaluation" if any(name.startswith("evaluation/") for name in numbers) else "progress"
        waiting = []
        for name in self._trackers:
            logged = self._state["logged"].setdefault(name, {})
            if step > logged.get(kind, -1):
                logged[kind] = step
                waiting.append(name)
        if waiting:
            save_json(self._run_dir / _STATE_FILE, self._state)
        for name in waiting:
            self._call(name, "log", step, dict(numbers))

    def finish(self, status: str) -> None:
        """Ends the trackers' runs. Idempotent."""
        for name in list(self._trackers):
            self._call(name, "finish", status)
        self._trackers = {}

    def _call(self, name: str, method: str, *arguments: Any) -> None:
        try:
            getattr(self._trackers[name], method)(*arguments)
        except Exception as error:  # Trackers raise errors of any type, often of their network.
            del self._trackers[name]
            self._warn(f"the tracker {name} failed, and the run continues without it: {error}")


def _find_names(run_dir: Path) -> tuple[str, str | None]:
    """Returns the name of a run and of the experiment that it belongs to, or None."""
    path = run_dir.resolve()
    for folder in list(path.parents)[:3]:
        if (folder / _PLAN_FILE).is_file():
            return path.relative_to(folder).as_posix(), folder.name
    return path.name, None
