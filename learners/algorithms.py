"""The algorithms: their names, the items that they learn from, and their published settings. Needs no TensorFlow."""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from rlds2reverb.errors import ArgumentError
from rlds2reverb.system.code_fingerprints import describe_reference
from rlds2reverb.system.ini_files import read_sections
from rlds2reverb.system.references import is_reference, resolve_reference
from rlds2reverb.system.text import suggest
from rlds2reverb.types.arguments import require_count, require_one_of

#: The attributes of `Algorithm` that are texts.
_TEXTS = ("agent", "summary", "source", "actions", "data", "items")

#: Kinds of items; see `Algorithm`.
Items = Literal["transitions", "trajectories", "windows", "goals"]
#: Items per batch of an agent that declares no other number.
_BATCH_SIZE = 256

#: Numbers that an algorithm may learn from in addition to the fields of RLDS; see `Algorithm.step_info`.
STEP_INFO = ("return_to_go", "time_step")

#: Hyperparameters that a training run determines, and the options of the run that they are taken from.
RUN_HYPERPARAMETERS = {
    "discount": "gamma",
    "gamma": "gamma",
    "num_updates": "steps",
    "seed": "seed",
    "action_mask": "action_mask",
}


@dataclass(frozen=True)
class Algorithm:
    """One algorithm.

    Attributes:
      agent: module in `rlds2reverb.learners.agents` and class of the agent, such as "iql:IQLAgent"; for an agent of the
        user's own its reference, such as "my_module:MyAgent".
      summary: full name.
      source: the paper.
      actions: kind of actions; None if the agent itself checks its action spec.
      data: the data that the algorithm suits, in a few words.
      items: kind of items: single transitions; trajectories, which contain the next action as well; windows, which are
        trajectories of the agent's `context_length`, padded on the left, with the `step_info` and `mask` as policy
        info; or goals, which are transitions with the goals of the agent's `goal_sampling`. None to follow the agent's
        `train_sequence_length`.
      batch_size: published number of items per batch.
      has_td_errors: whether updates return TD errors, which prioritized sampling requires; None if unknown.
      normalizes_observations: whether observations are normalised by default: if the published results use normalised
        observations, and for cloning, flows and goals, whose data are often in units such as degrees.
      std_eps: number added to the standard deviations by which normalised observations are divided; that of TD3+BC
        (Fujimoto & Gu 2021, section 5) unless the algorithm's authors add a different one.
      step_info: names of numbers that depend on a step's whole episode, which the agent receives as the policy info of
        transitions: 'return_to_go', the discounted return from the step on, which is undiscounted in windows, and
        'time_step', the step's number.
      masks_chunks: whether the agent also learns from chunks of actions that reach beyond the end of an episode, in
        which a `mask` in the policy info marks the padding.
      defaults: hyperparameters whose defaults differ from those of the class.
      factory: class or function that creates the user's own agent; None for the agents of rlds2reverb.
      name: name in `make_agent`, `train` and on the command line.
    """

    agent: str
    summary: str
    source: str
    actions: Literal["continuous", "discrete"] | None = "continuous"
    data: str = ""
    items: Items | None = "transitions"
    batch_size: int = _BATCH_SIZE
    has_td_errors: bool | None = True
    normalizes_observations: bool = False
    std_eps: float = 1e-3
    step_info: tuple[str, ...] = ()
    masks_chunks: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    factory: Callable[..., Any] | None = field(default=None, repr=False)
    name: str = ""

    @property
    def class_name(self) -> str:
        """The name of the agent's class or function, which is also its name in gin files."""
        return self.agent.rpartition(":")[2].rpartition(".")[2]

    @property
    def preset_of(self) -> str | None:
        """The name of the algorithm that this one is with other defaults; None if it is no preset."""
        others = (name for name, other in ALGORITHMS.items() if other.agent == self.agent and not other.defaults)
        return next(others, None) if self.defaults else None

    @property
    def learns_from_rewards(self) -> bool:
        """True if the dataset's rewards affect what is learned, or if that is unknown."""
        if self.items == "goals":  # Whose rewards tell whether the goal is reached.
            return False
        return self.factory is not None or self.has_td_errors is not False or "return_to_go" in self.step_info


def _read_algorithms() -> dict[str, Algorithm]:
    """Returns the algorithms of `algorithms.ini`, whose texts are written without quotes."""
    algorithms = {}
    for name, section in read_sections(__package__, "algorithms.ini").items():
        values = {key: text if key in _TEXTS else ast.literal_eval(text) for key, text in section.items()}
        algorithms[name] = Algorithm(**values, name=name)
    return algorithms


#: All algorithms by name.
ALGORITHMS = _read_algorithms()

#: The user's own algorithms by name.
CUSTOM_ALGORITHMS: dict[str, Algorithm] = {}


def list_algorithms() -> dict[str, Algorithm]:
    """Returns all algorithms by name: those of rlds2reverb, then the user's own ones that are known up to now."""
    return {**ALGORITHMS, **CUSTOM_ALGORITHMS}


def register_agent(
    name: str,
    agent: Callable[..., Any],
    *,
    actions: Literal["continuous", "discrete"] | None = None,
    items: Items | None = None,
    batch_size: int | None = None,
    has_td_errors: bool | None = None,
    normalizes_observations: bool | None = None,
    step_info: Sequence[str] | None = None,
    summary: str = "",
) -> None:
    """Registers a custom agent, so that `train` accepts its name in this process.

        def make_agent(time_step_spec, action_spec, *, learning_rate=1e-3, discount=0.99):
            return DdpgAgent(time_step_spec, action_spec, ...)

        register_agent("my_ddpg", make_agent, actions="continuous")

    Registration is optional: `train` also accepts the function itself, and "my_module:make_agent", as the command line
    does. What was registered for a function applies in these cases as well.

    Args:
      name: name of the algorithm, without a colon.
      agent: class or function that is called with `(time_step_spec, action_spec, **hyperparameters)` and returns a
        `TFAgent`. Its other arguments are the hyperparameters.
      actions: kind of actions, which is checked before the data are read; None to let the agent check its action spec.
        For subclasses of the agents of rlds2reverb, None inherits the value of the base class, as for all options.
      items: whether the agent learns from transitions (batches of `Transition` [B, ...]) or trajectories (batches of
        `Trajectory` [B, T, ...]), or from goals, see `GoalSampling`; None to follow its `train_sequence_length`.
      batch_size: default number of items per batch; None for 256, unless it is inherited.
      has_td_errors: whether the agent returns `td_error` [B] in `LossInfo.extra`, which prioritized sampling requires;
        None to find out when it is required.
      normalizes_observations: whether observations are normalised by default; None for no, unless it is inherited.
      step_info: numbers that the agent receives as the policy info of transitions, 'return_to_go' or 'time_step'; see
        `Algorithm`. None for none, unless they are inherited.
      summary: full name, for `rlds2reverb agents`.

    Raises:
      TypeError: If `agent` cannot be called with these two specs.
      ValueError: If the name is taken by a different agent, or if an option is invalid.
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise ValueError(f"the name of an agent must be a string without a colon, got {name!r}")
    if batch_size is not None:
        require_count("batch_size", batch_size)
    require_one_of("actions", actions or "continuous", ("continuous", "discrete"))
    require_one_of("items", items or "transitions", get_args(Items))
    for number in step_info or ():
        require_one_of("step_info", number, STEP_INFO)
    options: dict[str, Any] = {"actions": actions, "items": items, "has_td_errors": has_td_errors}
    options |= {"batch_size": batch_size, "normalizes_observations": normalizes_observations, "summary": summary}
    options |= {"step_info": None if step_info is None else tuple(step_info)}
    set_options = {option: value for option, value in options.items() if value is not None}
    algorithm = replace(_describe_own(name, agent), **set_options)
    registered = list_algorithms().get(name)
    # A notebook cell that runs again registers a new function with the same reference.
    if registered is not None and (registered.factory is None or registered.agent != algorithm.agent):
        raise ValueError(f"a different agent is already registered as {name!r}; use another name")
    CUSTOM_ALGORITHMS[name] = algorithm


def get_algorithm(algo: str | Callable[..., Any]) -> Algorithm:
    """Returns an algorithm.

    Args:
      algo: name of an algorithm, reference "my_module:MyAgent" to a custom agent, or such an agent: a class
        or function that `register_agent` accepts.

    Raises:
      ValueError: If there is no such algorithm, module or name, or a reference to something else.
      TypeError: If a class or function cannot be called with two specs.
    """
    names = list_algorithms()
    if isinstance(algo, str) and algo in names:
        return _update(names[algo])
    if isinstance(algo, str) and is_reference(algo):
        try:
            return _add_own(resolve_reference("algo", algo), algo)
        except TypeError as error:
            raise ArgumentError(f"is {algo!r}, but {error}", about="algo") from None
    if callable(algo):
        return _add_own(algo, describe_reference(algo))
    raise ArgumentError(f"must be one of {', '.join(names)}, got {algo!r}{suggest(str(algo), names)}", about="algo")


def restore_algorithm(algorithm: Algorithm) -> None:
    """Makes an algorithm of a different process available by its name, unless the name is known in this one."""
    if algorithm.factory is not None:
        CUSTOM_ALGORITHMS.setdefault(algorithm.name, algorithm)


def _update(known: Algorithm) -> Algorithm:
    """Returns an algorithm with the user's agent of today, whose module may have been imported again."""
    with contextlib.suppress(ValueError):  # Other processes may know the agent by its object only.
        found = resolve_reference("algo", known.name) if known.factory and is_reference(known.name) else None
        if found is not known.factory and type(found) is type(known.factory):
            return _add_own(found, known.name)
    return known


def _add_own(agent: Callable[..., Any], name: str) -> Algorithm:
    """Returns the algorithm of a user's agent under its reference, with the options that were registered for it."""
    registered = next((candidate for candidate in CUSTOM_ALGORITHMS.values() if candidate.factory is agent), None)
    algorithm = _describe_own(name, agent) if registered is None else replace(registered, name=name)
    CUSTOM_ALGORITHMS[name] = algorithm
    return algorithm


def accepts_statistics(agent: Callable[..., Any]) -> bool:
    """Returns whether a class or function accepts the statistics that normalise observations."""
    from .agents.agent_arguments import read_declarations

    return read_declarations(agent).keys() >= {"observation_mean", "observation_std"}


def _describe_own(name: str, agent: Callable[..., Any]) -> Algorithm:
    if not callable(agent):
        raise TypeError(f"an agent must be a class or function that creates it, got {agent!r}")
    reference = describe_reference(agent)
    try:
        inspect.signature(agent).bind_partial(None, None)
    except (TypeError, ValueError):
        raise TypeError(
            f"{reference} must accept the arguments (time_step_spec, action_spec), followed by its hyperparameters"
        ) from None
    own = Algorithm(reference, "", "", None, items=None, has_td_errors=None, factory=agent, name=name)
    # A subclass of one of the agents of rlds2reverb needs the same of its data.
    by_class = {f"rlds2reverb.learners.agents.{algorithm.agent}": algorithm for algorithm in ALGORITHMS.values()}
    bases = (by_class.get(f"{base.__module__}:{base.__qualname__}") for base in getattr(agent, "__mro__", ()))
    base = next((candidate for candidate in bases if candidate is not None), None)
    if base is not None:
        inherited = ("actions", "items", "batch_size", "has_td_errors", "std_eps", "step_info", "masks_chunks")
        own = replace(own, **{option: getattr(base, option) for option in inherited})
        own = replace(own, normalizes_observations=base.normalizes_observations and accepts_statistics(agent))
    return own
