"""The directory of a training run, as a learner writes it: configuration, versions and logs; see `runs` for reading."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.system.closing import Closing
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.replacements import Replacing
from rlds2reverb.system.sealed_files import load_json, save_json
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.scores import d4rl_score

from .csv_log import STEP, CsvLog
from .event_files import cut_events_after

if TYPE_CHECKING:
    from rlds2reverb.types.evaluations import Evaluation

#: Columns of `progress.csv` with seconds since the previous row; `curves` plots the share of time spent waiting.
DATA_WAIT_SECS, TRAIN_SECS = "data_wait_secs", "train_secs"
#: Lower bounds of the bins of histograms of priorities and weights, 8 per decade; the first bin holds everything below
#: 1e-5.
PRIORITY_BINS = np.concatenate([[0.0], 10.0 ** (np.arange(-40, 33) / 8)])

CONFIG_FILE = "config.json"
PROGRESS_FILE, EVALUATIONS_FILE = "progress.csv", "evaluations.csv"
PRIORITIES_FILE, WEIGHTS_FILE = "priorities.csv", "weights.csv"
LOG_FILES = (PROGRESS_FILE, EVALUATIONS_FILE, PRIORITIES_FILE, WEIGHTS_FILE)
#: Column of `evaluations.csv`; see `Evaluation.discounted_return`.
DISCOUNTED_RETURN = "discounted_return"
#: Start of the TensorBoard tags of evaluations.
_EVALUATION = "evaluation/"
_SUMMARY = ("mean", "std", "score", "success_rate", DISCOUNTED_RETURN)
_PACKAGES = ("rlds2reverb", "tensorflow", "tensorflow-cpu", "tf-agents", "dm-reverb", "numpy", "gymnasium", "mujoco")


def count_priorities(priorities: Any) -> np.ndarray:
    """Returns the histogram of non-negative numbers over `PRIORITY_BINS`, int64 `[len(PRIORITY_BINS)]`."""
    bins = np.searchsorted(PRIORITY_BINS, np.ravel(np.asarray(priorities)), side="right") - 1
    return np.bincount(np.clip(bins, 0, None), minlength=len(PRIORITY_BINS))


class RunDirectory(Closing, Replacing):
    """The directory of one training run; only one learner at a time can write to it.

        config.json       all options, the data's fingerprint, the environment, package versions
        progress.csv      logged values, one row per logged step
        evaluations.csv   mean, std, score, success_rate and each return, one row per evaluation
        priorities.csv    histograms of priorities
        weights.csv       histograms of importance weights
        train/            the same values for TensorBoard
        policy/, best_policy/, checkpoints/    written by the learner

    Custom training loops write the same logs, and their policies as `policy.onnx` and `best_policy.onnx`; see
    docs/custom_agents.md.

    A killed process leaves complete rows only: an unfinished last line is dropped when the directory is next opened.

    Attributes:
      path: path of the directory.
      writes_events: whether to write `train/`; by default, if TensorFlow is installed.
      writes_evaluations: whether `evaluations.csv` belongs to this object; False if another process writes it.
    """

    replaces = ("SummaryWriter",)

    def __init__(self, run_dir: str | Path):
        """Creates the directory if it is missing, and locks it until `close`.

        Args:
          run_dir: path of the directory.

        Raises:
          ResourceInUseError: If another learner uses it; the message names the process.
          CorruptFileError: If a log in it is damaged.
        """
        self.path, self.writes_evaluations = Path(run_dir), True
        self.writes_events = importlib.util.find_spec("tensorflow") is not None
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            advice = "choose a different run directory, or stop that process"
            stack.enter_context(FileLock(self.path / ".lock", str(self.path), advice))
            self._progress, self._evaluations, self._priorities, self._weights = (
                CsvLog(self.path / name) for name in LOG_FILES
            )
            self._writer: Any = None
            stack.callback(self._close_writer)
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Flushes the TensorBoard log and releases the directory. Idempotent."""
        self._resources.close()

    def write_config(self, document: Mapping[str, Any]) -> None:
        """Writes `config.json`, with the versions of the packages in use, atomically.

        Args:
          document: content of `config.json`; see `runs.Run.config`.

        Raises:
          TypeError: If a value cannot be represented in JSON.
        """
        content = {name: _to_json_value(value, name) for name, value in document.items()}
        if "reference_returns" in content:
            self._compute_scores(content["reference_returns"])
        save_json(self.path / CONFIG_FILE, {**content, "versions": _get_versions()})

    def set_reference_returns(self, references: tuple[float, float] | None, *, option: Any) -> None:
        """Changes the reference returns in `config.json`, and with them the scores of all evaluations.

        Args:
          references: returns of a random policy and an expert; None for no scores.
          option: the option of the run that they come from, as a JSON value.
        """
        self._compute_scores(references)
        document = load_json(self.path / CONFIG_FILE) or {}
        document["reference_returns"] = references
        document.get("configuration", {})["reference_returns"] = option
        save_json(self.path / CONFIG_FILE, document)

    def _compute_scores(self, references: tuple[float, float] | None) -> None:
        """Computes the scores of earlier evaluations, so that all of them have one scale."""

        def compute(mean: float) -> float | None:
            return None if references is None else d4rl_score(mean, references)

        if self._evaluations.compute_column("score", "mean", compute):
            cut_events_after(self.path / "train", lambda tag: -1 if tag == f"{_EVALUATION}score" else sys.maxsize)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends a row to `progress.csv`, and the same values to the TensorBoard log.

        Args:
          step: step of the learner.
          values: numbers, or arrays and tensors with one element, by name. `data_wait_secs` and `train_secs` are
            seconds since the previous row.

        Raises:
          TypeError: If a value is not a number.
        """
        require_count(STEP, step, 0)
        self._progress.append(step, values)
        self._summarize(step, values)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Writes one number to the TensorBoard log only, as TensorBoard's `SummaryWriter` does."""
        self._summarize(global_step, {tag: scalar_value})

    def log_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Appends a row to `evaluations.csv`, and its summary to the TensorBoard log."""
        require_count(STEP, step, 0)
        row = evaluation_row(evaluation)
        self._evaluations.append(step, row)
        self._summarize(step, {f"{_EVALUATION}{name}": row.get(name) for name in _SUMMARY})

    def log_priorities(self, step: int, counts: Any) -> None:
        """Appends a histogram of priorities to `priorities.csv`.

        Args:
          step: step of the learner.
          counts: int64 `[len(PRIORITY_BINS)]`, number of priorities in each bin; see `count_priorities`.
        """
        require_count(STEP, step, 0)
        self._priorities.append(step, _name_bins(counts))

    def log_weights(self, step: int, counts: Any) -> None:
        """Appends a histogram of importance weights to `weights.csv`; see `log_priorities`."""
        require_count(STEP, step, 0)
        self._weights.append(step, _name_bins(counts))

    def cut_after(self, step: int, evaluation_step: int | None = None) -> None:
        """Removes all later log entries, before a run resumes from a checkpoint.

        Args:
          step: step of the last entry to keep; -1 to remove all.
          evaluation_step: step of the last evaluation to keep; None for the same.
        """
        last_evaluation = step if evaluation_step is None else evaluation_step
        require_count(STEP, step, -1)
        require_count("evaluation_step", last_evaluation, -1)
        for log in (self._progress, self._priorities, self._weights):
            log.cut_after(step)
        if self.writes_evaluations:
            self._evaluations.cut_after(last_evaluation)
        self._close_writer()
        cut_events_after(self.path / "train", lambda tag: last_evaluation if tag.startswith(_EVALUATION) else step)

    def _summarize(self, step: int, values: Mapping[str, Any]) -> None:
        if not self.writes_events:
            return
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.path / "train"), flush_millis=10_000)
        with self._writer.as_default(step=step), tf.summary.record_if(True):
            for name, value in values.items():
                if value is not None:
                    tf.summary.scalar(name, float(value))

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def evaluation_row(evaluation: Evaluation) -> dict[str, float | None]:
    """Returns the columns of an evaluation in `evaluations.csv`, other than its step."""
    summary = {"mean": evaluation.mean, "std": evaluation.std, "score": evaluation.score}
    returns = {f"return_{number}": value for number, value in enumerate(evaluation.returns)}
    counts = {"num_episodes": len(evaluation.returns), "num_clipped": evaluation.num_clipped}
    if evaluation.success_rate is not None:
        summary["success_rate"] = evaluation.success_rate
    if evaluation.discounted_return is not None:
        summary[DISCOUNTED_RETURN] = evaluation.discounted_return
    return {**summary, **counts, **returns}


def _name_bins(counts: Any) -> dict[str, int]:
    return {f"from {low:.4g}": int(count) for low, count in zip(PRIORITY_BINS, counts, strict=True)}


def _get_versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _to_json_value(value: Any, name: str) -> Any:
    """Converts a value to the types of JSON; `name` locates it in error messages."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json_value(item, f"{name}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{name} must be a number, string, list, dict or None, got {value!r}")
