"""Plans of experiments: the runs for several seeds, or for a sweep over data and options."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlds2reverb._arguments import require_count
from rlds2reverb._system.sealed_files import is_sealed_json
from rlds2reverb._system.text import suggest
from rlds2reverb.code_fingerprints import describe_reference
from rlds2reverb.envs.suite_gym import register_specs, serialise_registered_specs
from rlds2reverb.learners.gin_files import read_bindings
from rlds2reverb.learners.references import describe_callable
from rlds2reverb.learners.run_identity import differences, require_same
from rlds2reverb.sources import load
from rlds2reverb.sources.store import is_store

from .config import TrainingConfig, declared_options
from .environment_spec import name_env

#: File of the plan in the directory of an experiment.
PLAN_FILE = "plan.json"
#: Names in a sweep that are no options of `TrainingConfig`.
_DATA, _SEEDS, _VARIANTS, _PRESETS = "data", "seeds", "variants", "presets"
#: Options whose value is a list, which therefore has to be in a list to be one of several values.
_LISTS = ("hooks", "track", "drop_fields")
_NESTED = "a list is one run per value; write a value that is itself a list as a list in the list, such as [[64, 64]]"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
      name: unique name, which is also the run's directory within that of the experiment, such as 'hopper/iql/seed_0'.
      source: the data; see `Training`.
      config: the options.
      data: name of the data in tables and figures.
      variant: name of the algorithm and of the options that the plan varies, such as 'iql, gamma=0.9'. Runs with the
        same data and variant differ only in their seeds.
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
      ValueError, TypeError: If the seeds are not distinct integers >= 0, or there are none; if a hook cannot be copied.
    """
    name = name_source(source)
    return tuple(
        PlannedRun(f"seed_{seed}", source, _make_run_config(config, source, seed), name, config.algo)
        for seed in list_seeds(seeds)
    )


def plan_sweep(sweep: Mapping[str, Any] | str | Path) -> tuple[PlannedRun, ...]:
    """Plans the runs of a sweep: every combination of data, variants, options and seeds.

        plan_sweep({"data": ["hopper.hdf5", "walker2d.hdf5"], "algo": ["bc", "iql"], "steps": 20_000, "seeds": 3})

    Args:
      sweep: options of `TrainingConfig` by name, or the path of a JSON or gin file with them. A list stands for one
        run per value; a value that is itself a list is a list in the list, or in Python a tuple: `[[64, 64]]`,
        `(64, 64)`. The same holds for the values in `hyperparameters`. A list of `hooks`, `track` or `drop_fields` is
        the value itself. In addition:

        - data: a source, a list of sources, or a dict of sources by name; required.
        - seeds: the number of seeds, or a list of seeds; 1 by default.
        - variants: a dict of options by name, for options that belong together: `{"bc_10": {"algo": "bc",
          "top_percent": 10}}`. They take precedence over the other options, and may contain lists as well.
        - presets: the name of published settings, or a list of names of which each is one run.
        - split, max_episode_steps and the other arguments of `load`, which apply to all data.

    Raises:
      ValueError, TypeError: If a name or a value is invalid, if two runs are the same, if a hook cannot be copied, or
        if the file cannot be read.
      Exception: As `load`, if its arguments are given.
    """
    if isinstance(sweep, (str, Path)):
        sweep = _read_sweep(Path(sweep))
    parameters = inspect.signature(load).parameters.values()
    reading_options = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    _require_options("a sweep", sweep, {_DATA, _SEEDS, _VARIANTS, _PRESETS, *reading_options, *declared_options()})
    if _DATA not in sweep:
        raise ValueError("a sweep must contain 'data': a path, a list of paths, or a dict of paths by name")
    reading = {name: sweep[name] for name in reading_options if name in sweep}
    options = {name: value for name, value in sweep.items() if name not in (_DATA, _SEEDS, _VARIANTS, *reading)}
    seeds = list_seeds(sweep.get(_SEEDS, 1))
    sources, variants = _name_sources(sweep[_DATA]), list(_expand_variants(options, sweep.get(_VARIANTS)))
    if reading:
        sources = {name: load(source, **reading) for name, source in sources.items()}
    directories = [re.sub(r"[^\w.+=,-]+", "_", variant.replace(", ", ",")) for variant, _ in variants]
    if repeated := [name for name, count in Counter(directories).items() if count > 1]:
        raise ValueError(f"the sweep contains {repeated[0]!r} twice; {_NESTED}, or name the options in 'variants'")
    return tuple(
        PlannedRun(f"{data}/{folder}/seed_{seed}", source, _make_run_config(config, source, seed), data, variant)
        for data, source in sources.items()
        for folder, (variant, config) in zip(directories, variants, strict=True)
        for seed in seeds
    )


def is_experiment(path: str | Path) -> bool:
    """Returns whether a path is the directory of an experiment."""
    return is_sealed_json(Path(path, PLAN_FILE)) and not is_store(Path(path))  # An incomplete store has such a file.


def list_seeds(seeds: int | Iterable[int]) -> list[int]:
    """Returns distinct seeds: 0, 1, ... if their number is given.

    Raises:
      ValueError, TypeError: If they are not distinct integers >= 0, or there are none.
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


def _name_sources(data: Any) -> dict[str, Any]:
    """Returns the sources of a sweep by name."""
    if isinstance(data, Mapping):
        named = [(str(name), source) for name, source in data.items()]
    else:
        named = [(name_source(source), source) for source in (data if isinstance(data, list) else [data])]
    if not named:
        raise ValueError("the 'data' of a sweep must contain at least one source")
    for name, count in Counter(name for name, _ in named).items():
        if count > 1:
            raise ValueError(f"two sources of the sweep are named {name!r}; set 'data' to a dict of sources by name")
        if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
            raise ValueError(f"{name!r} must consist of letters, digits, '_', '.', '+' and '-' to name a directory")
    return dict(named)


def _expand_variants(options: Mapping[str, Any], variants: Any) -> Iterator[tuple[str, TrainingConfig]]:
    """Yields the name and the configuration of every combination of values, for each of the variants."""
    if variants is None:
        yield from _expand("", options)
        return
    if not isinstance(variants, Mapping) or not all(isinstance(variant, Mapping) for variant in variants.values()):
        raise TypeError(f"the 'variants' of a sweep must be a dict of options by name, got {variants!r}")
    if not variants:
        raise ValueError("the 'variants' of a sweep must contain at least one")
    for name, own in variants.items():
        _require_options(f"variant {name!r}", own, {_PRESETS, *declared_options()})
        nested = {**options.get("hyperparameters", {}), **own.get("hyperparameters", {})}
        merged = {**options, **own, **({"hyperparameters": nested} if nested else {})}
        yield from _expand(str(name), merged)


def _expand(variant: str, options: Mapping[str, Any]) -> Iterator[tuple[str, TrainingConfig]]:
    flat: dict[tuple[str, ...], Any] = {(name,): value for name, value in options.items() if name != "hyperparameters"}
    flat |= {("hyperparameters", name): value for name, value in options.get("hyperparameters", {}).items()}
    flat |= {(name,): _read_list(flat[name,]) for name in _LISTS if (name,) in flat}
    swept = {path: value for path, value in flat.items() if isinstance(value, list)}
    for path, values in swept.items():
        if not values:
            raise ValueError(f"{path[-1]!r} of a sweep must contain at least one value; leave it out for the default")
    for combination in itertools.product(*swept.values()):
        by_path = dict(zip(swept, combination, strict=True))
        chosen: dict[str, Any] = {"hyperparameters": {}}
        for path, value in {**flat, **by_path}.items():
            (chosen["hyperparameters"] if len(path) > 1 else chosen)[path[-1]] = _freeze(value)
        varied = {path: value for path, value in by_path.items() if len(swept[path]) > 1}
        name = _name_variant(variant, chosen.get("algo"), varied)
        yield name, _make_config(name, chosen, has_lists=bool(swept))


def _make_config(name: str, options: dict[str, Any], *, has_lists: bool) -> TrainingConfig:
    if "algo" not in options:
        raise ValueError("a sweep must contain 'algo', or 'variants' of which each one contains 'algo'")
    presets = options.pop(_PRESETS, ())
    try:
        algo = options.pop("algo")
        return TrainingConfig.from_gin(algo, presets=[presets] if isinstance(presets, str) else presets, **options)
    except (ValueError, TypeError) as error:
        hint = f" ({_NESTED})" if has_lists else ""
        # Subclasses of the two may have other constructors.
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {error}{hint}") from None


def _name_variant(variant: str, algo: Any, swept: Mapping[tuple[str, ...], Any]) -> str:
    """Returns a name such as 'iql, gamma=0.9'."""
    name = variant or _format_value(algo)
    words = [_format_value(algo)] if variant and ("algo",) in swept else []
    for path, value in swept.items():
        if path != ("algo",):
            words.append(f"{path[-1]}={name_env(value) if path == ('env',) else _format_value(value)}")
    return ", ".join([name, *words])


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(map(_format_value, value))
    return str(describe_callable(value))


def _read_list(value: Any) -> Any:
    """Returns the value of an option that is a list: a tuple, or a list of tuples for several values."""
    if isinstance(value, list) and value and all(isinstance(element, (list, tuple)) for element in value):
        return [tuple(element) for element in value]
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


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


def _require_options(owner: str, options: Mapping[str, Any], valid: set[str]) -> None:
    """Raises an error if a sweep or a variant contains an option that does not exist there, or invalid ones."""
    for name in options:
        if name == "seed" or name not in valid:
            advice = "; use 'seeds'" if name == "seed" else suggest(str(name), valid)
            raise ValueError(f"{owner} cannot contain {name!r}{advice}")
    values = options.get("hyperparameters", {})
    if not isinstance(values, Mapping):
        raise TypeError(f"the 'hyperparameters' of {owner} must be a dict by name, got {values!r}")


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _read_sweep(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON file, or of a gin file with bindings such as `sweep.algo = ["bc", "iql"]`."""
    if path.suffix == ".gin":
        bindings = read_bindings([path])
        for binding in bindings:
            if binding.owner != "sweep":
                raise binding.error('this must be a binding such as sweep.algo = ["bc", "iql"]')
        return {binding.name: binding.value for binding in bindings if binding.name}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the sweep {path}: {error}; check the path") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must contain a JSON object with the options of the sweep")
    return content
