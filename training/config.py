"""The options of a training run, each declared once: type, range, default and text.

The command line, gin files, the table in the documentation and the validation are derived from these declarations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from rlds2reverb.adders.observation_history import ObservationOffsets
from rlds2reverb.datasets.transforms import describe_reward, require_action_bounds
from rlds2reverb.errors import ArgumentError
from rlds2reverb.learners.algorithms import (
    RUN_HYPERPARAMETERS,
    accepts_statistics,
    get_algorithm,
    restore_algorithm,
)
from rlds2reverb.learners.option_declarations import Range
from rlds2reverb.learners.run_identity import CODE
from rlds2reverb.system.code_fingerprints import describe_reference, fingerprint_code
from rlds2reverb.system.references import describe_callable
from rlds2reverb.system.text import suggest
from rlds2reverb.types.short_repr import short_repr

from .config_validation import ignores, read_hooks, read_offsets, require_consistent, resolve_sampler
from .environment_spec import describe_env
from .option_fields import EVALUATION, ONLINE, TrainingOption, check_options, declare_fields, make_option
from .presets import get_preset
from .trackers import TENSORBOARD, require_trackers

#: Values of `env`: the environment of the dataset, and no environment (as None).
AUTO, NO_ENVIRONMENT = "auto", "none"
DEFAULT_STEPS = 100_000
#: Makes products such as 3 * (1 / 3) integers.
_ROUNDING = 1e-6

_run, _agent, _batches, _online, _evaluation, _logs, _preprocessing = (
    partial(make_option, group) for group in ("Run", "Agent", "Batches", ONLINE, EVALUATION, "Output", "Preprocessing")
)


@dataclass(frozen=True)
class TrainingConfig:
    """The options of a training run. Creating one checks every value, before any data are read.

    `batch_size` and `normalize_observations` are None in a call to choose the default of the algorithm; the attributes
    then contain that choice. With `epochs`, `steps` is None until `for_items` has computed it. `algo` is
    always a string, even if the custom agent was passed as a class or function. The entries below are also the texts of
    `--help` and of the documentation.

    Attributes:
      algo: Algorithm to train, such as iql (rlds2reverb agents lists all of them), or my_module:MyAgent for a custom
        agent.
      steps: Number of updates on the dataset, before the online phase if there is one.
      epochs: Number of passes over the dataset, in place of steps; each epoch contains each item once, in random order.
        The number of updates is epochs * items / batch size, rounded up.
      seed: Random seed for weight initialisation, batch sampling and noise.
      deterministic: Make runs with the same seed bit-identical, even if they are continued; slower.
      allow_config_mismatch: Continue a run even if its data or options differ from those of this call.
      hyperparameters: Hyperparameter of the agent, such as hidden_sizes=(64,64).
      gamma: Discount factor.
      n_step: Number of steps that a transition spans.
      chunk_length: Number of consecutive actions that the agent predicts and evaluates at once; 1 for single actions.
      execution_horizon: Number of actions of a chunk that are executed before the next chunk is predicted.
      observation_offsets: Offsets of the steps whose observations the agent sees, such as (-1, 0) for the last two; or
        {"observation.camera": (-2, 0)} for a part of the observation, whose other parts are those of the step itself.
      action_mask: Field of the observation that is not 0 for legal actions, to which agents with discrete actions are
        restricted.
      jit_compile: Compile the update with XLA.
      batch_size: Items per batch.
      sampler: How batches are sampled: uniform, prioritized (from a Reverb table whose priorities are updated with TD
        errors), or my_module:weigh, a function that returns weights of episodes or steps.
      store_dir: Directory for a store of the dataset, from which batches are read, so that the data need not fit in
        memory; runs on the same data share it.
      top_percent: Train only on the P percent of episodes with the highest return.
      validation: Share of episodes to hold out; the agent does not learn from them, and its losses on them are logged.
      random_shift: Maximum distance in pixels by which the images of a batch are shifted at random; DrQ uses 4.
      online_steps: Number of environment steps that the agent collects, and learns from, after the updates on the
        dataset.
      online_ratio: Share of collected data in each batch of the online phase; the rest is from the dataset.
      updates_per_step: Number of updates per environment step after the warm-up.
      update_every: Number of environment steps to collect before the updates for them are made.
      warmup_steps: Number of environment steps collected before the first update of the online phase; without updates
        on a dataset, their actions are uniformly random.
      num_envs: Number of environments to collect in; several are stepped in parallel processes.
      online_replay: Where collected data are kept: in memory, or in a table of a Reverb server that other processes can
        sample.
      replay_size: Maximum number of collected items to keep; the oldest ones are replaced.
      env: Gymnasium environment to evaluate in, and to collect in if there is an online phase, such as Hopper-v5 or
        my_module:MyEnv-v0, or a function that creates one, such as my_module:make_env; 'none' for no evaluation.
      eval_every: Number of updates between evaluations; the first one shows the policy before training.
      eval_episodes: Number of episodes per evaluation; their seeds are 0, 1, ...
      eval_max_episode_steps: Number of steps after which episodes of evaluations end, in place of the environment's own
        limit.
      reference_returns: Returns of a random policy and an expert, which define the scores 0 and 100: two numbers,
        'd4rl' for D4RL's own, or a JSON file that contains {"Hopper-v5": [RANDOM, EXPERT]}.
      checkpoint_every: Number of updates between checkpoints.
      checkpoint_every_secs: Maximum number of seconds between checkpoints, whatever the number of updates.
      keep_checkpoints: Number of checkpoints to keep; older ones are deleted.
      log_every: Number of updates between log entries: progress lines, rows of progress.csv, and what trackers receive.
      hooks: Hook to call during training, such as my_module:MyHook, 'my_module:MyHook(every=10)' or
        log_show_after_iter=10.
      track: Experiment trackers that receive the logged numbers: tensorboard, wandb or mlflow.
      drop_fields: Drop a field, such as observation/mission.
      cut_at_terminal: End each episode at its first terminal step.
      reward: Transform rewards: iql_locomotion, iql_antmaze, cql_antmaze, scale:SCALE[:SHIFT] for (r - SHIFT) * SCALE,
        or returns:TARGET for returns that differ by at most TARGET.
      normalize_observations: Replace observations by (o - mean) / (std + 0.001), with statistics of the dataset, or
        1e-6 for decision_transformer; constant elements by 0.
      clip_actions: Clip actions to just inside their bounds (by 1e-5 of half the range).
      action_bounds: Minimum and maximum of the actions.

    Raises:
      ValueError, TypeError: If an option is out of its range or of the wrong type, if options contradict each other, or
        if there is no such algorithm; the message names the option.
    """

    algo: Any = _run(metavar="NAME", values_text="name, class or function", identifies=True)  # noqa: RUF009 - immutable
    steps: Annotated[int, Range(0)] | None = _run(None, f"{DEFAULT_STEPS:,}, unless epochs are set")
    epochs: Annotated[int, Range(1)] | None = _run(None, "items are sampled with replacement")
    seed: Annotated[int, Range(0, 2**31 - 1)] = _run(0, identifies=True, is_of_learner=True)
    deterministic: bool = _run(False)
    allow_config_mismatch: bool = _run(False, is_of_learner=True)
    hyperparameters: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"group": "Agent", "metavar": "NAME=VALUE", "default_text": "as published", "values_text": "dict"},
    )
    gamma: Annotated[float, Range(0, 1)] = _agent(0.99, identifies=True)
    n_step: Annotated[int, Range(1)] = _agent(1, identifies=True)
    chunk_length: Annotated[int, Range(1)] = _agent(1, identifies=True)
    execution_horizon: Annotated[int, Range(1)] | None = _agent(None, "all of them", identifies=True)
    observation_offsets: ObservationOffsets = _agent(  # noqa: RUF009 - immutable
        (0,), "the step itself", metavar="OFFSETS", values_text="integers up to 0, or a dict of them", identifies=True
    )
    action_mask: str | None = _agent(
        None, "action_mask, if there is such a field", metavar="FIELD", values_text="name", identifies=True
    )
    jit_compile: bool = _agent(False, is_of_learner=True)
    batch_size: Annotated[int, Range(1)] | None = _batches(
        None, "as published for the algorithm, mostly 256", identifies=True, is_of_learner=True
    )
    sampler: Any = _batches(  # noqa: RUF009 - an immutable default
        "uniform",
        metavar="SAMPLER",
        values_text="'uniform', 'prioritized' or function",
        identifies=True,
        needs_dataset=True,
    )
    store_dir: str | None = _batches(
        None, "data that fit are kept in memory", metavar="DIR", values_text="path", needs_dataset=True
    )
    top_percent: Annotated[float, Range(0, 100, min_open=True)] | None = _batches(
        None, "all episodes", metavar="P", identifies=True, needs_dataset=True
    )
    validation: Annotated[float, Range(0, 1, max_open=True)] = _batches(
        0.0, "none", metavar="SHARE", identifies=True, needs_dataset=True
    )
    random_shift: Annotated[int, Range(0)] = _batches(
        0, "no shifts", metavar="PIXELS", identifies=True, is_of_learner=True
    )
    online_steps: Annotated[int, Range(0)] = _online(0, "no online phase", metavar="STEPS")
    online_ratio: Annotated[float, Range(0, 1, min_open=True)] = _online(0.5, identifies=True, needs_dataset=True)
    updates_per_step: Annotated[float, Range(0, 1000, min_open=True)] = _online(1.0, identifies=True)
    update_every: Annotated[int, Range(1)] = _online(50, identifies=True)
    warmup_steps: Annotated[int, Range(1)] = _online(1_000, identifies=True)
    num_envs: Annotated[int, Range(1)] = _online(1, identifies=True)
    online_replay: Literal["memory", "reverb"] = _online("memory", identifies=True)
    replay_size: Annotated[int, Range(1)] = _online(1_000_000, identifies=True)
    env: Any = _evaluation(  # noqa: RUF009 - an immutable default
        AUTO,
        "the dataset's own, or derived from its name",
        metavar="ID",
        values_text="id, environment, description, function or None",
    )
    eval_every: Annotated[int, Range(1)] = _evaluation(5_000)
    eval_episodes: Annotated[int, Range(1)] = _evaluation(10)
    eval_max_episode_steps: Annotated[int, Range(1)] | None = _evaluation(
        None, "the environment's own limit, or 10,000 if it has none", metavar="STEPS", identifies=True
    )
    reference_returns: str | tuple[float, float] | None = _evaluation(
        None, "no scores", metavar="d4rl|FILE|RANDOM,EXPERT", values_text="two numbers or text"
    )
    checkpoint_every: Annotated[int, Range(1)] = _logs(10_000, is_of_learner=True)
    checkpoint_every_secs: Annotated[float, Range(1)] = _logs(300.0, is_of_learner=True)
    keep_checkpoints: Annotated[int, Range(1)] = _logs(3, is_of_learner=True)
    log_every: Annotated[int, Range(1)] = _logs(500, is_of_learner=True)
    hooks: tuple[Any, ...] = _logs((), metavar="MODULE:HOOK", values_text="hooks, dicts or text")
    track: tuple[Any, ...] = _logs((TENSORBOARD,), "tensorboard", metavar="NAME", values_text="names or objects")
    drop_fields: tuple[str, ...] = _preprocessing(
        (), metavar="PATH", values_text="paths", identifies=True, needs_dataset=True
    )
    cut_at_terminal: bool = _preprocessing(False, identifies=True, needs_dataset=True)
    reward: Any = _preprocessing(  # noqa: RUF009 - an immutable default
        None, "unchanged", metavar="RECIPE", values_text="recipe or transform", identifies=True
    )
    normalize_observations: bool | None = _preprocessing(
        None, "as published; True for cloning, flows, goals and chunks", identifies=True
    )
    clip_actions: bool = _preprocessing(False, identifies=True, needs_dataset=True)
    action_bounds: tuple[float, float] | None = _preprocessing(
        None,
        "those of the environment, else those that the data contain",
        metavar="LOW HIGH",
        values_text="two numbers",
        identifies=True,
        needs_dataset=True,
    )

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.hyperparameters, Mapping):
            raise TypeError(f"hyperparameters must be a dict such as {{'alpha': 2.5}}, got {self.hyperparameters!r}")
        if isinstance(self.drop_fields, str):
            raise TypeError(f"drop_fields must be a list of paths, such as [{self.drop_fields!r}], got a string")
        algorithm = get_algorithm(self.algo)
        vars(self).update(
            algo=algorithm.name,
            hooks=read_hooks(self.hooks),
            track=require_trackers(self.track),
            drop_fields=tuple(self.drop_fields),
            reward=None if self.reward is None else describe_reward(self.reward),
            hyperparameters=dict(self.hyperparameters),
        )
        defaults = {"batch_size": algorithm.batch_size, "normalize_observations": self.normalizes_by_default}
        if self.epochs is None:
            defaults["steps"] = DEFAULT_STEPS
        vars(self).update({name: value for name, value in defaults.items() if getattr(self, name) is None})
        if isinstance(self.env, str) and self.env == NO_ENVIRONMENT:
            vars(self).update(env=None)
        if self.action_bounds is not None:
            vars(self).update(action_bounds=require_action_bounds(self.action_bounds))
        vars(self).update(observation_offsets=read_offsets(self.observation_offsets))
        require_consistent(self)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for other processes, which may know a custom agent by this object only."""
        state = {name: value for name, value in vars(self).items() if name != "_code"}  # Others may import other code.
        return {**state, "algorithm": get_algorithm(self.algo)}

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
          algo: name of the algorithm, or a custom agent.
          presets: names of presets, such as 'iql-antmaze'; see `preset_names`.
          gin_files: paths of gin files with bindings such as `IQLAgent.expectile = 0.9` and `train.gamma = 0.995`.
          **options: see the attributes of the class.

        Raises:
          ValueError: If there is no such preset, if a file cannot be read or sets something else, or as for the class.
          TypeError: If there is no such option.
        """
        from rlds2reverb.learners.agents import read_gin

        for name in options.keys() - declared_options().keys():
            raise TypeError(f"there is no option {name!r}{suggest(name, declared_options())}")
        sources: list[Any] = [*map(get_preset, presets), *map(Path, gin_files)]
        if not sources:
            return cls(algo, **options)
        names = declared_options().keys() - {"algo", "hyperparameters"}
        run_options, hyperparameters = read_gin(sources, algo, options=names)
        if options.get("steps", options.get("epochs")) is not None:
            run_options = {name: value for name, value in run_options.items() if name not in ("steps", "epochs")}
        hyperparameters = {**hyperparameters, **options.pop("hyperparameters", {})}
        return cls(algo, hyperparameters=hyperparameters, **{**run_options, **options})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """Creates a configuration from the result of `as_dict`, such as `load_run(path).configuration`.

        Raises:
          ValueError: If an option is missing or unknown, or as for the class.
        """
        if "algo" not in values or values.keys() - declared_options().keys():
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
        values["sampler"] = describe_callable(self.sampler)
        values["hyperparameters"] = {name: describe_callable(value) for name, value in self.hyperparameters.items()}
        values["hooks"] = [
            hook if isinstance(hook, (str, Mapping)) else describe_reference(hook) for hook in values["hooks"]
        ]
        if self.epochs is not None:
            values["steps"] = None
        return dict(json.loads(json.dumps(values, default=_describe)))

    def replace(self, **options: Any) -> TrainingConfig:
        """Returns a configuration with some options changed; with `epochs`, the number of steps is unknown again."""
        if options.get("epochs", self.epochs) is not None:
            options.setdefault("steps", None)
        return replace(self, **options)

    def without_data(self) -> TrainingConfig:
        """Returns the configuration of a run without a dataset, which makes no updates before it collects.

        Raises:
          ValueError: If there is no online phase, or an option requires a dataset.
        """
        if self.epochs is not None:
            raise ArgumentError("requires a dataset, whose items each epoch contains once", about="epochs")
        if not self.online_steps:
            raise ArgumentError("training without a dataset requires a number of steps to collect", online_steps=...)
        for name, option in declared_options().items():
            if option.needs_dataset and getattr(self, name) != option.default:
                raise ArgumentError("requires a dataset, which it changes or selects from", about=name)
        if self.steps not in (0, DEFAULT_STEPS):
            raise ArgumentError(
                "requires a dataset; set the number of steps to collect", about="steps", online_steps=...
            )
        return self.without_statistics().replace(steps=0)

    def without_statistics(self) -> TrainingConfig:
        """Returns the configuration of a run on data without statistics of the observations.

        Raises:
          ArgumentError: If observations are to be normalised, but not by default.
        """
        if self.normalize_observations and not self.normalizes_by_default:
            sentence = "requires a dataset, whose statistics it uses"
            raise ArgumentError(sentence, about="normalize_observations", value=True)
        return self.replace(normalize_observations=False)

    def for_items(self, num_items: int) -> TrainingConfig:
        """Returns the configuration of a run on a dataset with this number of items: `epochs` determine `steps`."""
        if self.epochs is None:
            return self
        config = self.replace()
        vars(config).update(steps=-(-self.epochs * num_items // (self.batch_size or 1)))
        return config

    @property
    def normalizes_by_default(self) -> bool:
        """True if observations are normalised unless `normalize_observations` is set."""
        algorithm = get_algorithm(self.algo)
        if self.chunk_length == 1 or algorithm.normalizes_observations:
            return algorithm.normalizes_observations
        return algorithm.factory is None or accepts_statistics(algorithm.factory)

    @property
    def num_updates(self) -> int | None:
        """The total number of updates, those of the online phase included; None if `steps` is None."""
        return None if self.steps is None else self.count_updates(self.online_steps)

    def count_updates(self, num_collected: int) -> int:
        """Returns how many updates are due in total when `num_collected` environment steps are collected."""
        num_steps = min(num_collected, self.online_steps) - self.warmup_steps
        return self.num_offline_updates + int(max(num_steps, 0) * self.updates_per_step + _ROUNDING)

    def count_online_steps(self, num_updates: int) -> int:
        """Returns how many environment steps must be collected until this total number of updates is due."""
        num_online = num_updates - self.num_offline_updates
        return self.warmup_steps + math.ceil(num_online / self.updates_per_step - _ROUNDING)

    @property
    def num_offline_updates(self) -> int:
        """The number of updates on the dataset.

        Raises:
          ValueError: If it depends on the size of the dataset; see `for_items`.
        """
        if self.steps is None:
            raise ValueError("the number of updates of epochs depends on the dataset; call for_items() first")
        return self.steps

    @property
    def length_option(self) -> tuple[str, str]:
        """The option that determines the number of updates on the dataset, and the verb between it and their number."""
        return ("steps", "must be") if self.epochs is None else ("epochs", "must take")

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
            raise ArgumentError(
                f"requires an agent with the hyperparameters observation_mean and observation_std, unlike {self.algo}",
                about="normalize_observations",
                value=True,
            )
        for option in RUN_HYPERPARAMETERS.values():
            if option in ("steps", "seed") or not ignores(self, option):  # See `describe_unused` for the seed.
                continue
            if getattr(self, option) != declared_options()[option].default:
                arguments = " or ".join(name for name, other in RUN_HYPERPARAMETERS.items() if other == option)
                sentence = f"cannot be set, because {self.algo} has no argument {arguments}; declare one"
                raise ArgumentError(sentence, about=option)
        determined = {name: getattr(self, option) for name, option in RUN_HYPERPARAMETERS.items() if name in names}
        if "num_updates" in determined:
            determined["num_updates"] = self.num_updates
        if self.steps is None:  # The default stands for it until the data are read.
            determined.pop("num_updates", None)
        return resolve_hyperparameters(self.algo, **{**determined, **self.hyperparameters})

    @cached_property
    def _code(self) -> dict[str, str]:
        """The fingerprints of the user's agent and of hyperparameters that JSON does not have, by name."""
        parts = {self.algo: get_algorithm(self.algo).factory, **self.resolved_hyperparameters}
        parts["sampler"] = resolve_sampler(self.sampler)
        return {name: fingerprint_code(part) for name, part in parts.items() if not _is_plain(part)}

    def require_valid_hyperparameters(self) -> None:
        """Raises an error as `resolved_hyperparameters`, or `ValueError` if a run ends before its policy learns."""
        num_density_updates = self.resolved_hyperparameters.get("num_density_updates")
        if num_density_updates and self.num_updates is not None and num_density_updates >= self.num_updates:
            raise ValueError(
                f"num_density_updates must be less than the {self.num_updates:,} updates of the run, got "
                f"{num_density_updates:,}; the policy of {self.algo} learns only after them: set fewer, or train longer"
            )

    def online_options(self) -> list[str]:
        """Returns the names of the options that an online phase adds to the identity of a run."""
        options = declared_options().items()
        names = [name for name, option in options if option.identifies and option.group == ONLINE]
        return [*names, "steps"] if self.online_steps else []

    def identity(self, environment: str | None, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the part of the run's identity that is known before the data are read, as JSON values.

        Args:
          environment: name of the evaluation environment; None without evaluation.
          spec: its description; see `describe_env`.
        """
        options = declared_options().items()
        names = [
            name for name, option in options if option.identifies and (self.online_steps or option.group != ONLINE)
        ]
        # `gamma` and `seed` are listed already, and the number of updates may grow when a run is continued.
        derived = RUN_HYPERPARAMETERS.keys() - self.hyperparameters.keys()
        hyperparameters = {
            f"hyperparameter {name}": describe_callable(value)
            for name, value in self.resolved_hyperparameters.items()
            if name not in derived and (name in self.hyperparameters or not name.startswith("observation_"))
        }
        values = {**{name: getattr(self, name) for name in names}, **hyperparameters}
        values["sampler"] = describe_callable(self.sampler)
        values |= {"environment": environment, "environment_spec": spec}
        if self._code:
            values[CODE] = self._code
        if self.epochs is not None:
            values["sampler"] = "epochs"
        if self.online_steps and self.steps is not None:  # Otherwise the updates on the dataset may still continue.
            values["steps"] = self.steps
        return dict(json.loads(json.dumps(values, default=_describe)))


def declared_options() -> dict[str, TrainingOption]:
    """Returns the declaration of every option of `TrainingConfig` by name."""
    return declare_fields(TrainingConfig)


def options_table() -> str:
    """Returns the documentation's table of all options, in Markdown."""
    rows = ["| option | values | default | |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {option.describe_values()} | {option.describe_default()} | {option.text} |"
        for name, option in declared_options().items()
    ]
    return "\n".join(rows) + "\n"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, Mapping)):
        return all(map(_is_plain, value.values() if isinstance(value, Mapping) else value))
    return value is None or isinstance(value, (bool, int, float, str, Path)) or hasattr(value, "tolist")


def _describe(value: Any) -> Any:
    """Returns a JSON value for an object that JSON cannot represent."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    return getattr(value, "__qualname__", None) or type(value).__qualname__
