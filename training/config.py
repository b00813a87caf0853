"""The options of a training run, each declared once: type, range, default and text.

The command line, gin files, the table in the documentation and the validation are derived from these declarations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from rlds2reverb.learners.algorithms import ALGORITHMS, RUN_HYPERPARAMETERS, get_algorithm, restore_algorithm
from rlds2reverb.learners.references import describe_reference, fingerprint_code, is_reference

from rlds2reverb._arguments import require_count, require_number, require_one_of
from rlds2reverb._text import suggest
from rlds2reverb.sources.transforms import REWARD_RECIPES, parse_reward, require_action_bounds

from .environment_spec import describe_env
from .trackers import TENSORBOARD, require_trackers

if TYPE_CHECKING:
    from .data import TrainingData

#: Values of `env`: the environment of the dataset, and no environment (as None).
AUTO, NO_ENVIRONMENT = "auto", "none"
#: Headings of the options of the online phase and of evaluation.
_ONLINE = "Online phase"
_EVALUATION = "Evaluation"
#: Makes products such as 3 * (1 / 3) integers.
_ROUNDING = 1e-6
#: Value of `reference_returns` that selects D4RL's.
D4RL = "d4rl"


@dataclass(frozen=True)
class Option:
    """The declaration of an option, stored in the metadata of its field in `TrainingConfig`.

    Attributes:
      text: description that stands alone, for `--help` and the documentation.
      group: heading in `--help`.
      minimum: lowest number; None if there is none.
      maximum: highest number; None if there is none.
      excludes_minimum: whether numbers must be greater than `minimum`.
      choices: allowed strings; empty if any value is allowed.
      metavar: placeholder of the value in `--help`.
      default_text: description of the default if the value itself does not say enough.
      identifies: whether runs with different values are different runs, so that one cannot continue the other.
    """

    text: str
    group: str
    minimum: float | None = None
    maximum: float | None = None
    excludes_minimum: bool = False
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    default_text: str | None = None
    identifies: bool = False

    def require_valid(self, name: str, value: Any, kind: type) -> None:
        """Raises `TypeError` or `ValueError` unless a value has the type of the option and is in its range."""
        if self.choices:
            require_one_of(name, value, self.choices)
        elif kind is bool and not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")
        elif kind is int:
            require_count(name, value, int(self.minimum or 0), None if self.maximum is None else int(self.maximum))
        elif kind is float:
            low, high = self.minimum, self.maximum
            require_number(name, value, -math.inf if low is None else low, math.inf if high is None else high)
            if self.excludes_minimum and value == low:
                raise ValueError(f"{name} must be greater than {low:g}, got {value!r}")


def _option(text: str, group: str, *, default: Any = MISSING, **declaration: Any) -> Any:
    metadata = {"option": Option(text, group, **declaration)}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class TrainingConfig:
    """The options of a training run. Creating one checks every value, before any data are read.

    `batch_size` and `normalize_observations` are None in a call to choose what was published for the algorithm; the
    attributes then contain that choice. `algo` is always a string, even if the agent of the user's own was passed as a
    class or function.

    Raises:
      ValueError, TypeError: If an option is out of its range or of the wrong type, if options contradict each other, or
        if there is no such algorithm; the message names the option.
    """

    algo: Any = _option(  # noqa: RUF009 - an immutable default
        f"Algorithm to train: {', '.join(ALGORITHMS)}, or my_module:MyAgent for an agent of your own.",
        "Run",
        metavar="NAME",
        identifies=True,
    )
    steps: int = _option(
        "Number of gradient updates on the dataset, before the online phase if there is one.",
        "Run",
        default=100_000,
        minimum=0,
    )
    seed: int = _option(
        "Random seed for weight initialisation, batch sampling and noise.",
        "Run",
        default=0,
        minimum=0,
        maximum=2**31 - 1,
        identifies=True,
    )
    deterministic: bool = _option(
        "Make runs with the same seed bit-identical, even if they are continued; slower.", "Run", default=False
    )
    allow_config_mismatch: bool = _option(
        "Continue a run even if its data or options differ from those of this call.", "Run", default=False
    )
    hyperparameters: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            "option": Option(
                "Hyperparameter of the agent, such as hidden_sizes=(64,64).",
                "Agent",
                metavar="NAME=VALUE",
                default_text="as published",
            )
        },
    )
    gamma: float = _option("Discount factor.", "Agent", default=0.99, minimum=0, maximum=1, identifies=True)
    n_step: int = _option("Number of steps that a transition spans.", "Agent", default=1, minimum=1, identifies=True)
    jit_compile: bool = _option("Compile the gradient update with XLA.", "Agent", default=False)
    batch_size: int | None = _option(
        "Items per batch.",
        "Batches",
        default=None,
        minimum=1,
        default_text="as published for the algorithm, mostly 256",
        identifies=True,
    )
    sampler: str = _option(
        "How batches are sampled: uniformly from the dataset in memory, or by priority from a Reverb table whose "
        "priorities are updated with TD errors.",
        "Batches",
        default="uniform",
        choices=("uniform", "prioritized"),
        identifies=True,
    )
    top_percent: float | None = _option(
        "Train only on the P percent of episodes with the highest return.",
        "Batches",
        default=None,
        minimum=0,
        excludes_minimum=True,
        maximum=100,
        metavar="P",
        default_text="all episodes",
        identifies=True,
    )
    online_steps: int = _option(
        "Number of environment steps that the agent collects, and learns from, after the updates on the dataset.",
        _ONLINE,
        default=0,
        minimum=0,
        metavar="STEPS",
        default_text="no online phase",
    )
    online_ratio: float = _option(
        "Share of collected data in each batch of the online phase; the rest is from the dataset.",
        _ONLINE,
        default=0.5,
        minimum=0,
        excludes_minimum=True,
        maximum=1,
        identifies=True,
    )
    updates_per_step: float = _option(
        "Number of gradient updates per environment step after the warm-up.",
        _ONLINE,
        default=1.0,
        minimum=0,
        excludes_minimum=True,
        maximum=1000,
        identifies=True,
    )
    update_every: int = _option(
        "Number of environment steps to collect before the updates for them are made.",
        _ONLINE,
        default=50,
        minimum=1,
        identifies=True,
    )
    warmup_steps: int = _option(
        "Number of environment steps collected before the first update of the online phase; without updates on a "
        "dataset, their actions are uniformly random.",
        _ONLINE,
        default=1_000,
        minimum=1,
        identifies=True,
    )
    num_envs: int = _option(
        "Number of environments to collect in; several are stepped in parallel processes.",
        _ONLINE,
        default=1,
        minimum=1,
        identifies=True,
    )
    online_replay: str = _option(
        "Where collected data are kept: in memory, or in a table of a Reverb server that other processes can sample.",
        _ONLINE,
        default="memory",
        choices=("memory", "reverb"),
        identifies=True,
    )
    replay_size: int = _option(
        "Maximum number of collected items to keep; the oldest ones are replaced.",
        _ONLINE,
        default=1_000_000,
        minimum=1,
        identifies=True,
    )
    env: Any = _option(  # noqa: RUF009 - an immutable default
        "Gymnasium environment to evaluate in, and to collect in if there is an online phase, such as Hopper-v5 or "
        "my_module:MyEnv-v0; 'none' for no evaluation.",
        _EVALUATION,
        default=AUTO,
        metavar="ID",
        default_text="the dataset's own, or derived from its name",
    )
    eval_every: int = _option("Number of updates between evaluations.", _EVALUATION, default=5_000, minimum=1)
    eval_episodes: int = _option(
        "Number of episodes per evaluation; their seeds are 0, 1, ...", _EVALUATION, default=10, minimum=1
    )
    eval_max_episode_steps: int | None = _option(
        "Number of steps after which episodes of evaluations end, in place of the environment's own limit.",
        _EVALUATION,
        default=None,
        minimum=1,
        metavar="STEPS",
        default_text="the environment's own limit, or 10,000 if it has none",
        identifies=True,
    )
    reference_returns: str | tuple[float, float] | None = _option(
        "Returns of a random policy and an expert, which define the scores 0 and 100: two numbers, 'd4rl' for D4RL's "
        'own, or a JSON file that contains {"Hopper-v5": [RANDOM, EXPERT]}.',
        _EVALUATION,
        default=None,
        metavar="FILE|d4rl",
        default_text="no scores",
    )
    checkpoint_every: int = _option(
        "Number of updates between checkpoints.", "Checkpoints and logs", default=10_000, minimum=1
    )
    keep_checkpoints: int = _option(
        "Number of checkpoints to keep; older ones are deleted.", "Checkpoints and logs", default=3, minimum=1
    )
    log_every: int = _option(
        "Number of updates between log entries: progress lines, rows of progress.csv, and what trackers receive.",
        "Checkpoints and logs",
        default=500,
        minimum=1,
    )
    hooks: tuple[Any, ...] = _option(
        "Hook to call during training, such as my_module:MyHook or 'my_module:MyHook(every=10)'.",
        "Checkpoints and logs",
        default=(),
        metavar="MODULE:HOOK",
    )
    track: tuple[Any, ...] = _option(
        "Experiment trackers that receive the logged numbers: tensorboard, wandb or mlflow.",
        "Checkpoints and logs",
        default=(TENSORBOARD,),
        metavar="NAME",
        default_text="tensorboard",
    )
    drop_fields: tuple[str, ...] = _option(
        "Drop a field, such as observation/mission.", "Preprocessing", default=(), metavar="PATH", identifies=True
    )
    cut_at_terminal: bool = _option(
        "End each episode at its first terminal step.", "Preprocessing", default=False, identifies=True
    )
    reward: str | None = _option(
        f"Transform rewards: {', '.join(REWARD_RECIPES)}, or scale:SCALE[:SHIFT] for (r - SHIFT) * SCALE.",
        "Preprocessing",
        default=None,
        metavar="RECIPE",
        default_text="unchanged",
        identifies=True,
    )
    normalize_observations: bool | None = _option(
        "Replace observations by (o - mean) / (std + 0.001), with statistics of the dataset.",
        "Preprocessing",
        default=None,
        default_text="as published for the algorithm, mostly not",
        identifies=True,
    )
    clip_actions: bool = _option(
        "Clip actions to just inside their bounds (by 1e-5 of half the range).",
        "Preprocessing",
        default=False,
        identifies=True,
    )
    action_bounds: tuple[float, float] | None = _option(
        "Minimum and maximum of the actions.",
        "Preprocessing",
        default=None,
        metavar="LOW HIGH",
        default_text="those of the environment, else those that the data contain",
        identifies=True,
    )

    def __post_init__(self) -> None:
        kinds = option_types()
        for name, option in declared_options().items():
            value = getattr(self, name)
            if value is not None or not kinds[name][1]:
                option.require_valid(name, value, kinds[name][0])
        if not isinstance(self.hyperparameters, Mapping):
            raise TypeError(f"hyperparameters must be a dict such as {{'alpha': 2.5}}, got {self.hyperparameters!r}")
        if isinstance(self.drop_fields, str):
            raise TypeError(f"drop_fields must be a list of paths, such as [{self.drop_fields!r}], got a string")
        algorithm = get_algorithm(self.algo)
        object.__setattr__(self, "algo", algorithm.name)
        object.__setattr__(self, "hooks", _read_hooks(self.hooks))
        object.__setattr__(self, "track", require_trackers(self.track))
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", algorithm.batch_size)
        if self.normalize_observations is None:
            object.__setattr__(self, "normalize_observations", algorithm.normalizes_observations)
        object.__setattr__(self, "drop_fields", tuple(self.drop_fields))
        object.__setattr__(self, "hyperparameters", dict(self.hyperparameters))
        if isinstance(self.env, str) and self.env == NO_ENVIRONMENT:
            object.__setattr__(self, "env", None)
        if self.reward is not None:
            parse_reward(self.reward)
        if self.action_bounds is not None:
            object.__setattr__(self, "action_bounds", require_action_bounds(self.action_bounds))
        _require_reference_returns(self.reference_returns)
        self._require_consistent()
        self._require_online()

    def _require_consistent(self) -> None:
        algorithm = get_algorithm(self.algo)
        if algorithm.items == "trajectories" and self.n_step > 1:
            raise ValueError(f"{self.algo} requires n_step=1, because it learns from the next action as well")
        if self.sampler == "prioritized" and algorithm.has_td_errors is False:
            raise ValueError(f"{self.algo} requires sampler='uniform': it has no TD errors to use as priorities")
        if self.deterministic and self.sampler == "prioritized":
            raise ValueError("deterministic=True requires sampler='uniform'; servers sample nondeterministically")
        for name in ("discount", "gamma"):
            if name in self.hyperparameters:
                raise ValueError(
                    f"the hyperparameter {name!r} cannot be set, because it must match the stored items; set gamma="
                )

    def _require_online(self) -> None:
        if not self.online_steps:
            require_count("steps", self.steps)
            return
        algorithm = get_algorithm(self.algo)
        if not algorithm.learns_from_rewards:
            raise ValueError(f"online_steps requires an algorithm that learns from rewards, unlike {self.algo}")
        if self.env is None:
            raise ValueError("online_steps requires an environment to collect in; pass its name as env=")
        if self.online_steps <= self.warmup_steps:
            raise ValueError(
                f"online_steps must be greater than warmup_steps ({self.warmup_steps:,}), got {self.online_steps:,}; "
                "collect more steps, or set fewer warmup_steps"
            )
        if self.sampler == "prioritized":
            raise ValueError("online_steps requires sampler='uniform', got 'prioritized'")
        if self.deterministic and self.online_replay == "reverb":
            raise ValueError("deterministic=True requires online_replay='memory'; servers sample nondeterministically")

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for other processes, which may know an agent of the user's own by this object only."""
        return {**vars(self), "algorithm": get_algorithm(self.algo)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_algorithm(state.pop("algorithm"))
        vars(self).update(state)

    @classmethod
    def from_gin(
        cls, algo: Any, *, presets: Iterable[str] = (), gin_files: Iterable[str | Path] = (), **options: Any
    ) -> TrainingConfig:
        """Creates a configuration from published presets and gin files.

        Options of this call take precedence over files, files over presets, and presets over the defaults.

        Args:
          algo: name of the algorithm, or an agent of your own.
          presets: names of presets, such as 'iql-antmaze'; see `preset_names`.
          gin_files: paths of gin files with bindings such as `IQLAgent.expectile = 0.9` and `train.gamma = 0.995`.
          **options: see the attributes of the class.

        Raises:
          ValueError: If there is no such preset, if a file cannot be read or sets something else, or as for the class.
          TypeError: If there is no such option.
        """
        from rlds2reverb.learners.agents import read_gin

        from .presets import preset_path

        for name in options.keys() - declared_options().keys():
            raise TypeError(f"there is no option {name!r}{suggest(name, declared_options())}")
        paths = [*map(preset_path, presets), *map(Path, gin_files)]
        if not paths:
            return cls(algo, **options)
        names = declared_options().keys() - {"algo", "hyperparameters"}
        run_options, hyperparameters = read_gin(paths, algo, options=names)
        hyperparameters = {**hyperparameters, **options.pop("hyperparameters", {})}
        return cls(algo, hyperparameters=hyperparameters, **{**run_options, **options})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """Creates a configuration from the result of `as_dict`, such as `load_run(path).configuration`.

        Raises:
          ValueError: If an option is missing or unknown, or as for the class.
        """
        known = declared_options()
        unknown = [name for name in values if name not in known]
        if unknown or "algo" not in values:
            raise ValueError(
                f"a configuration must contain 'algo' and only options of TrainingConfig, got {sorted(values)}"
            )
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Returns all options as JSON values.

        Hooks and networks that are objects are replaced by their names, such as 'my_module:MyHook', and environments by
        their descriptions; see `describe_env`.
        """
        values = {option: getattr(self, option) for option in declared_options()}
        if self.env is not None and not isinstance(self.env, str):
            values["env"] = describe_env(self.env)
        values["hyperparameters"] = _describe_callables(values["hyperparameters"])
        values["hooks"] = [
            hook if isinstance(hook, (str, Mapping)) else describe_reference(hook) for hook in values["hooks"]
        ]
        return dict(json.loads(json.dumps(values, default=_describe)))

    def replace(self, **options: Any) -> TrainingConfig:
        """Returns a configuration with some options changed."""
        return replace(self, **options)

    def for_source(self, source: Any) -> TrainingConfig:
        """Returns the configuration of a run on `source`; without data (None) there are no updates before it collects.

        Raises:
          ValueError: If `source` is None, but there is no online phase.
        """
        if source is not None or (self.online_steps and not self.steps):
            return self
        if not self.online_steps:
            raise ValueError("training without a dataset requires online_steps, the number of steps to collect")
        if self.top_percent is not None:
            raise ValueError("top_percent requires a dataset, whose best episodes it selects")
        return self.replace(steps=0)

    @property
    def num_updates(self) -> int:
        """The total number of gradient updates, those of the online phase included."""
        return self.count_updates(self.online_steps)

    def count_updates(self, num_collected: int) -> int:
        """Returns how many gradient updates are due in total when `num_collected` environment steps are collected."""
        num_steps = min(num_collected, self.online_steps) - self.warmup_steps
        return self.steps + int(max(num_steps, 0) * self.updates_per_step + _ROUNDING)

    @cached_property
    def resolved_hyperparameters(self) -> dict[str, Any]:
        """The agent's hyperparameters: those of this configuration, then gin's, then the published ones.

        Those that the run determines are included: the discount is `gamma`, and the length of schedules is the total
        number of updates.

        Raises:
          ValueError, TypeError: If the algorithm has no such hyperparameter, or a value is out of its range.
        """
        from rlds2reverb.learners.agents import get_hyperparameters, resolve_hyperparameters

        names = get_hyperparameters(self.algo)
        if self.normalize_observations and not names.keys() >= {"observation_mean", "observation_std"}:
            raise ValueError(
                "normalize_observations=True requires an agent with the hyperparameters observation_mean and "
                f"observation_std, unlike {self.algo}"
            )
        determined = {name: getattr(self, option) for name, option in RUN_HYPERPARAMETERS.items() if name in names}
        if "num_updates" in determined:
            determined["num_updates"] = self.num_updates
        return resolve_hyperparameters(self.algo, **{**determined, **self.hyperparameters})

    def online_settings(self) -> list[str]:
        """Returns the names of the settings that a run gets when an online phase is added to it; see `settings`."""
        options = declared_options().items()
        names = [name for name, each in options if each.identifies and each.group == _ONLINE]
        return [*names, "steps"] if self.online_steps else []

    def describe_unused(self) -> list[str]:
        """Returns sentences about options that were set, but have no effect in this run."""
        unused = {_ONLINE: "online_steps"} if not self.online_steps else {}
        unused |= {_EVALUATION: "an environment"} if self.env is None else {}
        declared, sentences = declared_options(), []
        changed = [
            each.name for each in fields(self) if each.name != "env" and getattr(self, each.name) != each.default
        ]
        for group, missing in unused.items():
            names = [name for name in changed if name in declared and declared[name].group == group]
            if names:
                sentences.append(f"{', '.join(names)}: no effect without {missing}")
        if not get_algorithm(self.algo).learns_from_rewards:
            of_rewards = ("gamma", "n_step") if self.top_percent else ("gamma", "n_step", "reward")
            if names := [name for name in changed if name in of_rewards]:
                sentences.append(f"{', '.join(names)}: no effect on {self.algo}, which does not learn from rewards")
        return sentences

    def settings(self, environment: str | None, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the part of `identity` that is known before the data are read, as JSON values.

        Args:
          environment: name of the evaluation environment; None without evaluation.
          spec: its description; see `describe_env`.
        """
        options = declared_options().items()
        names = [name for name, each in options if each.identifies and (self.online_steps or each.group != _ONLINE)]
        # `gamma` and `seed` are listed already, and the number of updates may grow when a run is continued.
        derived = RUN_HYPERPARAMETERS.keys() - self.hyperparameters.keys()
        hyperparameters = {
            f"hyperparameter {name}": value
            for name, value in _describe_callables(self.resolved_hyperparameters).items()
            if name not in derived and (name in self.hyperparameters or not name.startswith("observation_"))
        }
        values = {**{name: getattr(self, name) for name in names}, **hyperparameters}
        values |= {"environment": environment, "environment_spec": spec}
        parts = {**self.resolved_hyperparameters, "algo": get_algorithm(self.algo).factory}
        functions = {name: part for name, part in parts.items() if isinstance(part, (FunctionType, partial))}
        if functions:
            values["code"] = {name: fingerprint_code(function) for name, function in functions.items()}
        if self.online_steps:  # Otherwise the updates on the dataset may still continue.
            values["steps"] = self.steps
        return dict(json.loads(json.dumps(values, default=_describe)))

    def identity(
        self, data: TrainingData, environment: str | None, spec: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Returns what distinguishes this run from others, as JSON values.

        A checkpoint belongs to a run if the identities are equal, and the runs of one learning curve differ only in
        `seed`.

        Args:
          data: the data of the run.
          environment: name of the evaluation environment; None without evaluation.
          spec: its description; see `describe_env`.
        """
        return {**self.settings(environment, spec), **data.identity()}


def declared_options() -> dict[str, Option]:
    """Returns the declaration of every option of `TrainingConfig` by name."""
    return {each.name: each.metadata["option"] for each in fields(TrainingConfig)}


def option_types() -> dict[str, tuple[Any, bool]]:
    """Returns the type of every option of `TrainingConfig` by name, and whether it may be None."""
    types = {}
    for name, hint in get_type_hints(TrainingConfig).items():
        if name not in declared_options():
            continue
        alternatives = get_args(hint)
        is_optional = hint is Any or type(None) in alternatives
        types[name] = (alternatives[0] if alternatives and is_optional else hint, is_optional)
    return types


def default_value(name: str) -> Any:
    """Returns the default of an option; `dataclasses.MISSING` if it is required."""
    return next(each.default for each in fields(TrainingConfig) if each.name == name)


def default_text(name: str) -> str:
    """Returns a description of an option's default."""
    option = declared_options()[name]
    if option.default_text is not None:
        return option.default_text
    default = default_value(name)
    if default is MISSING:
        return "required"
    if default is False or default == ():
        return "no" if default is False else "none"
    return f"{default:,}" if isinstance(default, int) else str(default)


#: Values of options that are no numbers or names.
_OTHER_VALUES = {
    "algo": "name, class or function",
    "hooks": "hooks, dicts or text",
    "track": "names or objects",
    "hyperparameters": "dict",
    "drop_fields": "paths",
    "env": "id, environment, description or function",
    "reference_returns": "two numbers or text",
    "action_bounds": "two numbers",
}


def values_text(name: str) -> str:
    """Returns a description of an option's allowed values."""
    option, (kind, is_optional) = declared_options()[name], option_types()[name]
    if option.choices:
        return " or ".join(option.choices)
    if kind is bool:
        text = "True or False"
    elif kind is int:
        text = f"integer >= {option.minimum:g}" + (f" and <= {option.maximum:,}" if option.maximum is not None else "")
    elif kind is float:
        text = f"number in {'(' if option.excludes_minimum else '['}{option.minimum:g}, {option.maximum:g}]"
    else:
        text = _OTHER_VALUES.get(name, "text")
    return f"{text}, or None" if is_optional and name != "algo" else text


def options_table() -> str:
    """Returns the documentation's table of all options, in Markdown."""
    rows = ["| option | values | default | |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {values_text(name)} | {default_text(name)} | {option.text} |"
        for name, option in declared_options().items()
    ]
    return "\n".join(rows) + "\n"


def _require_reference_returns(value: Any) -> None:
    if value is None or isinstance(value, (str, Path)):
        return
    try:
        random, expert = map(float, value)
    except (TypeError, ValueError):
        raise ValueError(
            f"reference_returns must be two numbers, {D4RL!r}, or the path of a JSON file, got {value!r}"
        ) from None
    if not 0 < abs(expert - random) < math.inf:
        raise ValueError(f"the two reference_returns must be finite and differ, got {random:g} and {expert:g}")


def _read_hooks(hooks: Any) -> tuple[Any, ...]:
    """Returns hooks as a tuple; raises `TypeError` or `ValueError` unless each is a hook, a dict or a reference."""
    if isinstance(hooks, (str, Mapping)) or not isinstance(hooks, Iterable):
        raise TypeError(f"hooks must be a list, such as ['my_module:MyHook'], got {hooks!r}")
    hooks = tuple(hooks)
    for hook in hooks:
        if isinstance(hook, str) and not is_reference(hook):
            raise ValueError(f"hooks must be written as 'my_module:MyHook', got {hook!r}")
        if not isinstance(hook, (str, Mapping)) and not callable(hook):
            raise TypeError(f"hooks must contain hooks, dicts or text such as 'my_module:MyHook', got {hook!r}")
    return hooks


def _describe_callables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values with references in place of functions, such as those that create networks."""
    return {name: describe_reference(value) if callable(value) else value for name, value in values.items()}


def _describe(value: Any) -> Any:
    """Returns a JSON value for an object that JSON cannot represent."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    return getattr(value, "__qualname__", None) or type(value).__qualname__
