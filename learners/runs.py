"""Training runs, loaded from their directories."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlds2reverb.errors import CorruptFileError
from rlds2reverb.policies.onnx_policies import OnnxPolicy
from rlds2reverb.policies.saved_policies import (
    POLICY_FOLDER,
    SavedPolicy,
    find_policy,
    load_policy,
)
from rlds2reverb.system.sealed_files import load_json
from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.locations import expand_path
from rlds2reverb.types.specs import Nest

from .csv_log import STEP, read_csv_log
from .run_directory import (
    CONFIG_FILE,
    EVALUATIONS_FILE,
    PRIORITIES_FILE,
    PRIORITY_BINS,
    PROGRESS_FILE,
    WEIGHTS_FILE,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Files of which a run directory contains at least one.
_RUN_FILES = (CONFIG_FILE, PROGRESS_FILE, EVALUATIONS_FILE, PRIORITIES_FILE)
#: Folder of the policy of the best evaluation in a run directory.
BEST_POLICY_FOLDER = "best_policy"
#: Folders of the policies by name.
POLICY_FOLDERS = {"last": POLICY_FOLDER, "best": BEST_POLICY_FOLDER}


@dataclass(frozen=True)
class Run:
    """The content of a run directory. A run that is still in progress can be loaded as well.

    Attributes:
      path: path of the directory.
      config: content of `config.json`: `configuration` (every option), `hyperparameters`, `identity`, `data`,
        `environment`, `environment_spec`, `reference_returns` and `versions`; empty if it was never written.
      progress: columns of `progress.csv`, float64 [N] by name, with increasing `step`.
      evaluations: columns of `evaluations.csv`: `step`, `mean`, `std`, `score`, `num_episodes`, `return_0` and so on.
      priorities: int64 [N, len(PRIORITY_BINS)], number of priorities in each bin.
      priority_steps: int64 [N], step of each histogram.
      weights: int64 [N, len(PRIORITY_BINS)], number of importance weights in each bin.
      weight_steps: int64 [N], step of each histogram of weights.
    """

    path: Path
    config: dict[str, Any] = field(repr=False)
    progress: dict[str, np.ndarray] = field(repr=False)
    evaluations: dict[str, np.ndarray] = field(repr=False)
    priorities: np.ndarray = field(repr=False)
    priority_steps: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False, default_factory=lambda: np.zeros((0, len(PRIORITY_BINS)), np.int64))
    weight_steps: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(0, np.int64))

    @property
    def configuration(self) -> dict[str, Any]:
        """Every option by name; `TrainingConfig.from_dict` accepts it."""
        return dict(self.config.get("configuration") or {})

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that distinguish the run from others; the runs of one learning curve differ only in `seed`.

        Those of a run that `train` did not write are all options.
        """
        return dict(self.config.get("identity") or self.configuration)

    @property
    def environment(self) -> str | None:
        """The name of the evaluation environment, or None."""
        return self.config.get("environment")

    @property
    def reference_returns(self) -> tuple[float, float] | None:
        """The returns of a random policy and of an expert, or None."""
        pair = self.config.get("reference_returns")
        return (float(pair[0]), float(pair[1])) if pair else None

    @property
    def data_return(self) -> float | None:
        """The mean return of the episodes in the data, or None if unknown."""
        value = (self.config.get("data") or {}).get("data_return")
        return None if value is None else float(value)

    @property
    def num_updates(self) -> int:
        """The number of completed updates: that of the newest checkpoint, or of the last log entry if it is higher."""
        saved = (int(path.name) for path in (self.path / "checkpoints").glob("*") if path.name.isdigit())
        return max([0, *map(int, self.progress.get(STEP, ())[-1:]), *saved])

    @property
    def results(self) -> dict[str, np.ndarray]:
        """The columns of the evaluations after the first update; the one before it only shows where the run starts."""
        steps = self.evaluations.get(STEP, np.zeros(0))
        return {name: values[steps > 0] for name, values in self.evaluations.items()}

    @property
    def last_return(self) -> float | None:
        """The mean return of the last evaluation, or None without evaluations."""
        means = self.evaluations.get("mean", np.zeros(0))
        return float(means[-1]) if len(means) else None

    def describe_last_return(self) -> str:
        """Returns the last return, with its update if the run has made more since, because it was stopped."""
        step, num_updates = int(self.evaluations[STEP][-1]), self.num_updates
        return f"{self.last_return:,.1f}" + (f" (evaluated at update {step:,})" if step < num_updates else "")

    @property
    def best_return(self) -> float | None:
        """The highest mean return of an evaluation after the first update, or None if there is none."""
        means = self.results.get("mean", np.zeros(0))
        return float(means.max()) if len(means) else None

    @cached_property
    def policy(self) -> SavedPolicy | OnnxPolicy:
        """The last policy; see `load_policy`.

        Raises:
          ValueError: If the run has not exported a policy yet.
        """
        return load_policy(self.find_policy("last"))

    @cached_property
    def best_policy(self) -> SavedPolicy | OnnxPolicy:
        """The policy of the best evaluation, with the same methods.

        Raises:
          ValueError: If the run has not exported one, because it was not evaluated or has not ended yet.
        """
        return load_policy(self.find_policy("best"))

    def predict(self, observations: Nest) -> Nest:
        """Returns the last policy's actions for one observation or a batch of them, in the environment's units.

            action = run.predict(observation)  # or run.best_policy.predict(observation)

        The same as `run.policy.predict`; see `SavedPolicy.predict`.
        """
        return self.policy.predict(observations)

    def values(self, observations: Nest, actions: Nest) -> dict[str, np.ndarray]:
        """Returns what the agent's critics estimate after the last update: 'q', and 'v' if the agent has it.

        The same as `run.policy.values`; see `SavedPolicy.values`.

        Raises:
          ValueError: If the policy is an ONNX file, which has no critics, or for the reasons there.
        """
        if isinstance(self.policy, OnnxPolicy):
            raise ValueError(f"{self.path}: the policy is an ONNX file, which contains no critics")
        return self.policy.values(observations, actions)

    def export_policy(
        self,
        path: str | Path,
        *,
        format: Literal["savedmodel", "onnx", "tflite"] | None = None,
        policy: Literal["last", "best"] = "last",
    ) -> Path:
        """Writes a policy for other programs, and returns its path.

            run.export_policy("policy.onnx")
            action = load_policy("policy.onnx").predict(observation)  # on a machine without TensorFlow

        The graph contains the normalisation of observations and the scaling of actions, and takes batches of any size.
        The inputs of an ONNX file have the paths of the observation as names, such as `observation['image']`, or
        `observation` for a single array; its output is `action`, and its metadata are the name of the algorithm and the
        specs. In a TFLite file, the names of its signature have underscores: `observation_image`. Policies with a state
        also take step types, rewards, discounts and the state, and return the next one: call `load_policy(path).action`
        as for a SavedModel.

        Args:
          path: file to create, or directory for a SavedModel.
          format: format of the file; None to follow the suffix of the path: .onnx, .tflite, or none for a SavedModel.
          policy: the last policy, or that of the best evaluation.

        Raises:
          FileExistsError: If the path exists.
          ImportError: If the format is onnx, and the extra `onnx` is not installed.
          ValueError: If the run has not exported the policy yet, or the graph of a custom agent cannot be converted,
            because it has operations that the format does not have.
          StorageFullError: If the disk is full; nothing is written.
        """
        from .policy_formats import write_policy

        require_one_of("policy", policy, list(POLICY_FOLDERS))
        metadata = {"algorithm": str(self.configuration["algo"])} if "algo" in self.configuration else {}
        return write_policy(self.find_policy(policy), path, format, metadata)

    def find_policy(self, policy: Literal["last", "best"]) -> Path:
        """Returns the directory or file of a policy; raises `ValueError` if the run has not exported it yet."""
        folder = POLICY_FOLDERS[policy]
        found = find_policy(self.path / folder)
        if found is None:
            kind = "an evaluated run" if folder == BEST_POLICY_FOLDER else "a run"
            raise ValueError(f"{self.path} has no {folder}/, which {kind} writes when it ends or is stopped")
        return found

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draws the learning curve, or the loss if the run was not evaluated; notebooks display the figure.

        Args:
          path: PNG or SVG file to write; None for none.

        Raises:
          ValueError: If the run has logged nothing yet.
        """
        from .curves import draw_run
        from .figure_style import save_figure

        figure = draw_run(self)
        if path is not None:
            save_figure(figure, path)
        return figure

    def __str__(self) -> str:
        words = [f"{self.configuration.get('algo', 'run')} in {self.path}"]
        if self.num_updates:
            words.append(f"{self.num_updates:,} updates")
        if self.best_return is not None:
            words.append(f"last return {self.describe_last_return()}, best {self.best_return:,.1f}")
        return ": ".join([words[0], ", ".join(words[1:])]) if words[1:] else words[0]


def load_run(path: str | Path) -> Run:
    """Loads a run directory, including that of a run still in progress.

    Raises:
      ValueError: If it is not a run directory.
      CorruptFileError: If a file in it is damaged.
    """
    folder = expand_path(path, "path")
    if not is_run_directory(folder):
        raise ValueError(f"{path} must be the directory of a training run, but has none of {', '.join(_RUN_FILES)}")
    progress, evaluations = (read_csv_log(folder / name) for name in (PROGRESS_FILE, EVALUATIONS_FILE))
    if evaluations and not evaluations.keys() >= {"mean", "std"}:
        raise CorruptFileError(f"{folder / EVALUATIONS_FILE} must have the columns mean and std")
    histograms = (*_read_histograms(folder / PRIORITIES_FILE), *_read_histograms(folder / WEIGHTS_FILE))
    return Run(folder, read_run_config(folder), progress, evaluations, *histograms)


def is_run_directory(path: str | Path) -> bool:
    """Returns whether a path is the directory of a training run."""
    return any((Path(path) / name).is_file() for name in _RUN_FILES)


def _read_histograms(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns counts, int64 [N, len(PRIORITY_BINS)], and their steps, int64 [N]."""
    columns = read_csv_log(path)
    steps = columns.pop(STEP, np.zeros(0)).astype(np.int64)
    counts = np.stack(list(columns.values()) or [np.zeros(0)] * len(PRIORITY_BINS), 1)
    return np.nan_to_num(counts).astype(np.int64), steps


def read_run_config(folder: Path) -> dict[str, Any]:
    """Returns the content of a run's `config.json`, or an empty dict if there is no such file.

    Raises:
      CorruptFileError: If the file is damaged.
    """
    return load_json(folder / CONFIG_FILE) or {}
