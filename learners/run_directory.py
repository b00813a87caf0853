"""What a training run leaves in its directory: configuration, versions, logs, and the line that repeats it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb import _sealed_json as sealed_json
from rlds2reverb._arguments import require_count
from rlds2reverb._server.locks import FileLock
from rlds2reverb.errors import CorruptFileError, ResourceInUseError

from .csv_log import STEP, CsvLog, read_csv_log
from .event_files import cut_events_after

if TYPE_CHECKING:
    from .evaluation import Evaluation

#: Columns of `progress.csv` from which `curves` draws the share of waiting: seconds since the row before.
DATA_WAIT_SECS, TRAIN_SECS = "data_wait_secs", "train_secs"
#: Lower bounds of the bins of priorities, 8 to a factor of ten; the first holds everything below 1e-5, and zeros.
PRIORITY_BINS = np.concatenate([[0.0], 10.0 ** (np.arange(-40, 33) / 8)])

_CONFIG, _REPEAT, _OWNER = "config.json", "repeat.txt", ".owner"
_PROGRESS, _EVALUATIONS, _PRIORITIES = "progress.csv", "evaluations.csv", "priorities.csv"
_PACKAGES = ("rlds2reverb", "tensorflow", "tensorflow-cpu", "tf-agents", "dm-reverb", "numpy", "gymnasium", "mujoco")


class RunDirectory:
    """The directory of one training run, which only one learner at a time writes to.

        config.json       the whole configuration, the data's fingerprint, the environment, versions of packages
        repeat.txt        the command line that repeats the run
        progress.csv      what was logged, a row a step
        evaluations.csv   mean, std, score and each return, a row an evaluation
        priorities.csv    histograms of priorities
        train/            the same for TensorBoard
        policy/, best_policy/, checkpoints/    written by others

    A process that is killed leaves whole rows; an unfinished last line is dropped when the directory is opened again.
    """

    def __init__(self, run_dir: str | Path):
        """Makes the directory if it is missing, and locks it until `close`.

        Args:
          run_dir: path of the directory.

        Raises:
          ResourceInUseError: if another learner has it, naming that.
          CorruptFileError: if a log in there is damaged.
        """
        self.path = Path(run_dir)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        try:
            (self.path / _OWNER).write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
            self._progress, self._evaluations, self._priorities = (
                CsvLog(self.path / name) for name in (_PROGRESS, _EVALUATIONS, _PRIORITIES)
            )
        except BaseException:
            self._lock.__exit__()
            raise
        self._writer: Any = None
        self._is_open = True

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Writes what TensorBoard has not got yet, and gives the directory free. Closing twice does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            with contextlib.suppress(OSError):
                (self.path / _OWNER).unlink()
            self._lock.__exit__()

    def write_config(
        self,
        configuration: Mapping[str, Any],
        *,
        hyperparameters: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        environment: str | None = None,
        reference_returns: tuple[float, float] | None = None,
        command: str | None = None,
    ) -> None:
        """Writes `config.json` and `repeat.txt`, both there whole or not at all.

        Args:
          configuration: every setting by name; `algo` and `seed` are what plots look for.
          hyperparameters: what the agent has, defaults included.
          data: what was trained on, with `source`, `fingerprint`, and `behaviour_return`, the mean return in the data.
          environment: id of the environment for evaluation.
          reference_returns: returns of a random policy and of an expert there.
          command: the line that repeats the run; None for the one that started this process.

        Raises:
          TypeError: if a value is not one that JSON has.
        """
        command = shlex.join(["rlds2reverb", *sys.argv[1:]]) if command is None else command
        document = {
            "configuration": _plain(configuration, "configuration"),
            "hyperparameters": _plain(hyperparameters or {}, "hyperparameters"),
            "data": _plain(data or {}, "data"),
            "environment": environment,
            "reference_returns": _plain(reference_returns, "reference_returns"),
            "versions": _versions(),
            "command": command,
            "folder": str(Path.cwd()),
        }
        _write(self.path / _CONFIG, json.dumps(document, indent=1) + "\n")
        _write(self.path / _REPEAT, f"cd {shlex.quote(str(Path.cwd()))} && {command}\n")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds a row to `progress.csv`, and the same numbers for TensorBoard.

        Args:
          step: of the learner.
          values: numbers, or arrays and tensors of one, by name. `data_wait_secs` and `train_secs` are the seconds
            since the row before, for the plot of waiting.

        Raises:
          TypeError: if a value is not a number.
        """
        require_count(STEP, step, 0)
        self._progress.append(step, values)
        self._summarize(step, values)

    def log_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Adds a row to `evaluations.csv`, and mean, std and score for TensorBoard."""
        require_count(STEP, step, 0)
        summary = {"mean": evaluation.mean, "std": evaluation.std, "score": evaluation.score}
        returns = {f"return_{number}": value for number, value in enumerate(evaluation.returns)}
        counts = {"num_episodes": len(evaluation.returns), "num_clipped": evaluation.num_clipped}
        self._evaluations.append(step, {**summary, **counts, **returns})
        self._summarize(step, {f"evaluation/{name}": value for name, value in summary.items() if value is not None})

    def log_priorities(self, step: int, priorities: Any) -> None:
        """Adds the histogram of some priorities to `priorities.csv`.

        Args:
          step: of the learner.
          priorities: [N], at least 0, such as those that were sent since the last call.
        """
        require_count(STEP, step, 0)
        bins = np.searchsorted(PRIORITY_BINS, np.ravel(np.asarray(priorities)), side="right") - 1
        counts = np.bincount(np.clip(bins, 0, None), minlength=len(PRIORITY_BINS))
        self._priorities.append(step, {f"from {low:.4g}": int(n) for low, n in zip(PRIORITY_BINS, counts, strict=True)})

    def cut_after(self, step: int) -> None:
        """Removes everything logged for later steps, before a run goes on from a checkpoint of this step."""
        require_count(STEP, step, 0)
        for log in (self._progress, self._evaluations, self._priorities):
            log.cut_after(step)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        cut_events_after(self.path / "train", step)

    def _summarize(self, step: int, values: Mapping[str, Any]) -> None:
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.path / "train"), flush_millis=10_000)
        with self._writer.as_default(step=step), tf.summary.record_if(True):
            for name, value in values.items():
                if value is not None:
                    tf.summary.scalar(name, float(value))

    def _locked(self) -> FileLock:
        lock = FileLock(self.path / ".lock", "")
        try:
            return lock.__enter__()
        except ResourceInUseError:
            owner = "another process"
            with contextlib.suppress(OSError):
                owner = (self.path / _OWNER).read_text(encoding="utf-8") or owner
            raise ResourceInUseError(
                f"{self.path} is in use by {owner}; choose another run_dir, or end that run first"
            ) from None


@dataclass(frozen=True)
class Run:
    """What is in the directory of a run.

    Attributes:
      path: of the directory.
      config: `config.json`, see `RunDirectory.write_config`; empty if it was never written.
      progress: float64 [N] by column of `progress.csv`, rising in `step`.
      evaluations: the same of `evaluations.csv`: `step`, `mean`, `std`, `score`, `num_episodes`, `return_0` and so on.
      priorities: int64 [N, number of `PRIORITY_BINS`], how many priorities were in each.
      priority_steps: int64 [N].
    """

    path: Path
    config: dict[str, Any]
    progress: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    priorities: np.ndarray
    priority_steps: np.ndarray

    @property
    def configuration(self) -> dict[str, Any]:
        """Every setting by name."""
        return dict(self.config.get("configuration") or {})

    @property
    def environment(self) -> str | None:
        """The id of the environment it was evaluated in."""
        return self.config.get("environment")

    @property
    def reference_returns(self) -> tuple[float, float] | None:
        """Returns of a random policy and of an expert."""
        found = self.config.get("reference_returns")
        return (float(found[0]), float(found[1])) if found else None

    @property
    def behaviour_return(self) -> float | None:
        """The mean return in the data."""
        found = (self.config.get("data") or {}).get("behaviour_return")
        return None if found is None else float(found)


def load_run(path: str | Path) -> Run:
    """Returns what is in the directory of a run, also of one that is still running.

    Raises:
      ValueError: if it is not the directory of a run.
      CorruptFileError: if a file in it is damaged.
    """
    folder = Path(path)
    names = (_CONFIG, _PROGRESS, _EVALUATIONS, _PRIORITIES)
    if not any((folder / name).is_file() for name in names):
        raise ValueError(f"{path} has none of {', '.join(names)}, expected the run_dir of a training run")
    config: Any = {}
    with contextlib.suppress(FileNotFoundError):
        try:
            config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(f"{folder / _CONFIG} is not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise CorruptFileError(f"{folder / _CONFIG} is a {type(config).__name__}, expected an object")
    logs = [read_csv_log(folder / name) for name in (_PROGRESS, _EVALUATIONS, _PRIORITIES)]
    steps = logs[2].pop(STEP, np.zeros(0)).astype(np.int64)
    columns = list(logs[2].values()) or [np.zeros(0)] * len(PRIORITY_BINS)
    return Run(folder, config, logs[0], logs[1], np.nan_to_num(np.stack(columns, 1)).astype(np.int64), steps)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _plain(value: Any, name: str) -> Any:
    """Returns a value in the kinds that JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{name}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{name} is {value!r}, expected something that JSON has: a number, text, a list, a dict or None")


def _write(path: Path, text: str) -> None:
    """Replaces a file; it is on the disk afterwards."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sealed_json.sync(path.parent)
