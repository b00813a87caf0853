"""Plans of experiments: the runs that are trained together, such as those for several seeds."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlds2reverb.datasets.steps.stores import is_store
from rlds2reverb.envs.suite_gym import register_specs, serialise_registered_specs
from rlds2reverb.learners.run_identity import differences, require_same
from rlds2reverb.system.code_fingerprints import describe_reference
from rlds2reverb.system.sealed_files import is_sealed_json
from rlds2reverb.types.arguments import require_count

from .config import TrainingConfig, declared_options

#: File of the plan in the directory of an experiment.
PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
      name: unique name, which is also the run's directory within that of the experiment, such as 'seed_0'.
      source: the data; see `Training`.
      config: the options.
      data: name of the data in tables and figures.
      variant: name of the algorithm, or of the options if the plan varies them, such as 'iql, gamma=0.9'. Runs with
        the same data and variant differ only in their seeds.
    """

    name: str
    source: Any = field(repr=False)
    config: TrainingConfig = field(repr=False)
    data: str
    variant: str

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for other processes, which do not know the environments that this one has registered."""
        return {**vars(self), "registered": serialise_registered_specs()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        register_specs(state.pop("registered"))
        vars(self).update(state)

    def as_dict(self) -> dict[str, Any]:
        """Returns a description as JSON values; data in memory are described by their name."""
        source, configuration = _describe_source(self.source), self.config.as_dict()
        return {"source": source, "data": self.data, "variant": self.variant, "configuration": configuration}


def plan_seeds(source: Any, config: TrainingConfig, seeds: int | Iterable[int]) -> tuple[PlannedRun, ...]:
    """Plans runs that differ only in their seeds, named 'seed_0', 'seed_1' and so on.

    Args:
      source: the data; see `Training`.
      config: the options; its seed is ignored. Each run receives a copy of a hook that is an object.
      seeds: the seeds, or their number.

    Raises:
      ValueError, TypeError: If the seeds are not distinct integers >= 0, or are missing; if a hook cannot be copied.
    """
    name = name_source(source)
    return tuple(
        PlannedRun(f"seed_{seed}", source, _make_run_config(config, source, seed), name, config.algo)
        for seed in list_seeds(seeds)
    )


def is_experiment(path: str | Path) -> bool:
    """Returns whether a path is the directory of an experiment."""
    return is_sealed_json(Path(path, PLAN_FILE)) and not is_store(Path(path))  # An incomplete store has such a file.


def list_seeds(seeds: int | Iterable[int]) -> list[int]:
    """Returns distinct seeds: 0, 1, ... if their number is given.

    Raises:
      ValueError, TypeError: If they are not distinct integers >= 0, or the list is empty.
    """
    if isinstance(seeds, int):
        require_count("seeds", seeds)
        return list(range(seeds))
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise TypeError(f"seeds must be a number of seeds or a list of seeds, got {seeds!r}")
    values = list(seeds)
    for seed in values:
        require_count("each of seeds", seed, 0)
    if not values or len(set(values)) < len(values):
        raise ValueError(f"seeds must be at least one seed, all of them different, got {values}")
    return values


def name_source(source: Any) -> str:
    """Returns a short name of a source: that of the file without its suffix, or of the dataset."""
    if isinstance(source, tuple) and len(source) == 2:  # A server and a table.
        return f"{name_source(source[0])}_{source[1]}"
    if source is None:
        return "online"
    name = source if isinstance(source, (str, Path)) else getattr(source, "name", None)
    if not isinstance(name, (str, Path)) or not str(name):
        return "data"
    return re.sub(r"[^\w.+-]+", "_", re.sub(r"\.(hdf5|h5)$", "", str(name).rstrip("/").rsplit("/", 1)[-1]))


def require_continuation(saved: Mapping[str, Any], plan: Sequence[PlannedRun], root: Path) -> None:
    """Raises `CheckpointError` unless a plan continues the one that a directory contains.

    More runs, more updates, and options that do not change what is learned are accepted.

    Args:
      saved: descriptions of the planned runs in the directory that have begun, by name.
      plan: the runs of this call.
      root: path of the directory, for the message.
    """
    planned = {run.name: _find_identity(run.as_dict()) for run in plan}
    messages = []
    for name, before in saved.items():
        if name not in planned:
            messages.append(f"{name} is missing")
            continue
        changes = differences(_find_identity(before), planned[name], only_common=True)
        messages += [f"{name}: {change}" for change in changes.values()]
    if any(not run.config.allow_config_mismatch for run in plan) and messages:
        more = f" (and {len(messages) - 1} more differences)" if len(messages) > 1 else ""
        require_same(f"{root} contains a different plan", [messages[0] + more])


def _find_identity(description: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a run's description in which the runs of one plan may not differ from earlier ones."""
    names = [name for name, option in declared_options().items() if option.identifies]
    configuration = description["configuration"]
    options = {name: configuration[name] for name in (*names, "env", "hyperparameters") if name in configuration}
    return {"source": description["source"], **options}


def _describe_source(source: Any) -> str:
    if isinstance(source, tuple) and len(source) == 2:
        return f"{_describe_source(source[0])}, table {source[1]}"
    if source is None:
        return "none"
    if isinstance(source, (str, Path)):  # A directory can be continued from any working directory.
        path = Path(source).expanduser()
        return str(path.resolve()) if path.exists() else str(source)
    return str(getattr(source, "name", None) or f"data in memory ({type(source).__name__})")


def _make_run_config(config: TrainingConfig, source: Any, seed: int) -> TrainingConfig:
    """Returns the configuration of one of several runs, with its own copies of hooks, which have a state."""
    hooks = []
    for hook in config.hooks:
        try:
            hooks.append(copy.deepcopy(hook))
        except Exception as error:  # Objects raise errors of any type.
            raise TypeError(
                f"hook {describe_reference(hook)} cannot be copied for each run ({error}); pass a class without "
                "arguments, or text such as 'my_module:MyHook(every=10)'"
            ) from error
    from .sources import fit_config  # Imports TensorFlow.

    return fit_config(source, config).replace(seed=seed, hooks=hooks)
