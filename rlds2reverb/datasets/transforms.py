"""Preprocessing for offline RL: transforms of rewards, observations and actions, fitted to a source and applied to it.

`apply_transforms(source, transforms)` returns a new source. A transform that requires statistics of the whole dataset
reads it once when it is fitted; episodes are transformed while they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import tree

from rlds2reverb.errors import ArgumentError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode, make_metadata_spec
from rlds2reverb.types.ownership import is_user_code, isolate
from rlds2reverb.types.spaces import make_array_space
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, map_structure, path_name

from .moments import STD_EPS, LeafMoments, ObservationMoments
from .source import Source, identify_step, leave_out

#: Margin between clipped actions and their bounds, as a fraction of half the distance between the bounds.
ACTION_EPS = 1e-5

#: Actions that exceed a bound by less than this fraction of the range are attributed to rounding.
_ROUNDING = 1e-5

EpisodeFn = Callable[[Episode], Episode]


class Transform(Protocol):
    """A transform for `apply_transforms`."""

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Returns the function that transforms one episode, and its statistics (plain numbers and lists)."""


class RewardTransform(Transform, Protocol):
    """A transform of rewards that depends on nothing but the returns of the dataset."""

    def fit_returns(self, returns: Sequence[float], name: str) -> ScaleRewards:
        """Returns the change of a single reward, given the undiscounted return of each episode of a dataset `name`."""


def apply_transforms(source: Source, transforms: Sequence[Transform]) -> tuple[Source, dict[str, Any]]:
    """Applies the transforms in order; returns the new source and the statistics of all its transforms.

    Episodes without steps are not changed. The statistics describe the total change since the raw data, including
    earlier calls: if rewards are scaled by 2 and then by 3, `reward_scale` is 6, so that a transformed reward is always
    `(raw - reward_shift) * reward_scale`. The mean and std of observations normalised twice are combined likewise. The
    new source has them as `statistics`, and `ingest` copies them into its report:

    - `float_dtype`: the dtype of the last `CastFloats`
    - `action_bounds`: the minimum and maximum of the actions that `ActionBounds` declared
    - `clipped_actions`: the number of actions that `ClipActions` changed by more than rounding
    - `observation_mean`, `observation_std`, `observation_eps`: those of `NormalizeObservations`
    - `reward_scale`, `reward_shift`: those of `ScaleRewards` and `ScaleRewardsByReturns`
    - `dropped_fields`: the paths that `DropFields` removed
    - `cut_at_terminal`: True after `CutAtTerminal`
    - `notes`: sentences for the user, from any transform
    """
    for transform in transforms:
        if isinstance(transform, DropFields):
            source, transform = _leave_out(source, transform)
        options = None if is_user_code(transform) else [repr(transform), dict(source.full_metadata)]
        source = identify_step(source, apply_fitted(source, *transform.fit(source)), options)
    return source, dict(source.statistics)


def _leave_out(source: Source, transform: DropFields) -> tuple[Source, DropFields]:
    """Returns a source that does not read the fields to drop, which may be damaged, and the drop of the others."""
    changed, paths = leave_out(source, transform.paths)
    statistics = {**source.statistics, "dropped_fields": [*source.statistics.get("dropped_fields", []), *paths]}
    left = DropFields(tuple(path for path in transform.paths if path not in paths))
    return replace(changed, statistics=statistics), left


def apply_fitted(source: Source, function: EpisodeFn, fitted: dict[str, Any]) -> Source:
    """Applies what `fit` of a transform returned; returns the new source, with its statistics."""
    source = replace(map_episodes(source, function), statistics=_combine_statistics(dict(source.statistics), fitted))
    if "observation_mean" in fitted:
        source = replace(source, observation_space=None)  # Its bounds are those of the raw observations.
    if "action_bounds" in fitted:
        space = make_array_space(source.step_spec[fields.ACTION], *fitted["action_bounds"])
        source = replace(source, action_space=space)
    return source


def describe_changes(statistics: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each change in the statistics of `apply_transforms`, in their order."""
    sentences: dict[str, Callable[[], str]] = {
        "dropped_fields": lambda: f"fields dropped: {', '.join(statistics['dropped_fields'])}",
        "cut_at_terminal": lambda: "episodes cut at their first terminal step",
        "float_dtype": lambda: f"floats cast to {statistics['float_dtype']}",
        "reward_scale": lambda: f"(reward - {statistics['reward_shift']:.7g}) * {statistics['reward_scale']:.7g}",
        "observation_eps": lambda: f"(observation - mean) / (std + {statistics['observation_eps']:.7g})",
        "action_bounds": lambda: "action bounds set to {:.7g} and {:.7g}".format(*statistics["action_bounds"]),
        "clipped_actions": lambda: "actions clipped to their bounds",
    }
    return [sentences[name]() for name in statistics if name in sentences]


def _combine_statistics(before: dict[str, Any], fitted: dict[str, Any]) -> dict[str, Any]:
    """Combines the statistics of the earlier transforms with those of one more."""
    combined = {**before, **fitted}
    for name in before.keys() & fitted.keys() & {"dropped_fields", "clipped_actions", "notes"}:
        combined[name] = before[name] + fitted[name]
    if "reward_scale" in before and "reward_scale" in fitted:
        # ((r - b) * a - d) * c = (r - (b + d / a)) * (a * c)
        scale, shift = before["reward_scale"], fitted["reward_shift"]
        if scale:
            combined["reward_scale"] = scale * fitted["reward_scale"]
            combined["reward_shift"] = before["reward_shift"] + shift / scale
        else:
            note = "rewards were scaled by 0; reward_scale and reward_shift describe only the later transforms"
            combined["notes"] = [*combined.get("notes", []), note]
    if "observation_std" in before and "observation_std" in fitted:
        # ((o - m) / s - n) / t = (o - (m + n * s)) / (s * t), where s and t are each std + eps
        first, second = before["observation_eps"], fitted["observation_eps"]
        means = before["observation_mean"], fitted["observation_mean"]
        stds = before["observation_std"], fitted["observation_std"]
        mean = tree.map_structure(lambda m, n, s: m if m is None else m + n * (s + first), *means, stds[0])
        std = tree.map_structure(lambda s, t: s if s is None else (s + first) * (t + second), *stds)
        combined |= {"observation_mean": mean, "observation_std": std}
        combined["observation_eps"] = 0.0
    return combined


def map_episodes(source: Source, function: EpisodeFn) -> Source:
    """Returns a source whose episodes are those of a source, transformed while they are read.

    Args:
      source: the other source.
      function: the transform of an episode that has steps; episodes without steps are not changed.
    """
    apply = isolate(function)

    def read(*bounds: int) -> Iterator[Episode]:
        return (apply(episode) if episode.num_steps else episode for episode in source.read(*bounds))

    return replace(source, read=read)


def _replace_columns(episode: Episode, /, **columns: Nest) -> Episode:
    return replace(episode, steps={**episode.steps, **columns})


@dataclass(frozen=True)
class CastFloats:
    """Casts all float fields except the discount to one dtype; D4RL's replay files are entirely float64."""

    dtype: str = "float32"

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind != "f":
            raise ValueError(f"dtype must be a float such as 'float32', got {self.dtype!r}")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Implements `Transform.fit`."""
        name = np.dtype(self.dtype).name
        return lambda episode: replace(episode, steps=self.cast(episode.steps)), {"float_dtype": name}

    def cast(self, steps: Mapping[str, Nest]) -> dict[str, Nest]:
        """Returns the columns of one or more episodes with their floats cast."""
        dtype = np.dtype(self.dtype)

        def cast(column: np.ndarray) -> np.ndarray:
            return column.astype(dtype, copy=False) if column.dtype.kind == "f" else column

        return {name: nest if name == fields.DISCOUNT else map_structure(cast, nest) for name, nest in steps.items()}


@dataclass(frozen=True)
class ActionBounds:
    """Declares the minimum and maximum of the actions, for a dataset that does not know them; changes no action."""

    low: float
    high: float

    def __post_init__(self) -> None:
        require_action_bounds((self.low, self.high))

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Implements `Transform.fit`."""
        spec = source.step_spec[fields.ACTION]
        if not isinstance(spec, ArraySpec) or spec.dtype.kind not in "fiu":
            raise ArgumentError(
                f"requires actions in one array of numbers, got {describe(spec)}", about="action_bounds"
            )
        return lambda episode: episode, {"action_bounds": [self.low, self.high]}


def require_action_bounds(value: Any) -> tuple[float, float]:
    """Returns two bounds; raises `ValueError` unless they are finite numbers, the minimum first."""
    try:
        low, high = map(float, value)
    except (TypeError, ValueError):
        low = high = np.nan
    if not (np.isfinite([low, high]).all() and low < high):
        sentence = f"must be two numbers, the minimum first, such as -1 and 1, got {value!r}"
        raise ArgumentError(sentence, about="action_bounds")
    return low, high


@dataclass(frozen=True)
class ClipActions:
    """Clips float actions to their bounds less a margin of `eps` of the half width; see `clip_actions`.

    The bounds are those of the dataset's own action space, or of an earlier `ActionBounds`; without these, -1 and 1 if
    all actions are within. The `notes` of the statistics say how many actions are clipped, for which the dataset is
    read once.
    """

    eps: float = ACTION_EPS

    def __post_init__(self) -> None:
        if not 0 <= self.eps < 1:
            raise ValueError(f"eps must be a number in [0, 1), got {self.eps}")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Implements `Transform.fit`; raises `ValueError` if the bounds of float actions are unknown."""
        clipping = self.make_clipping(source)
        for episode in source.read():
            clipping.add(episode)
        return self.fit_clipping(clipping, source)

    def make_clipping(self, source: Source) -> Clipping:
        """Returns the clipping of a source's actions, without counts."""

        def add_bounds(leaf: ArraySpec) -> ArraySpec:
            return replace(leaf, minimum=-1.0, maximum=1.0) if _is_unbounded(leaf) else leaf

        return Clipping(map_structure(add_bounds, source.step_spec[fields.ACTION]), self.eps)

    def fit_clipping(self, clipping: Clipping, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Returns the same as `fit`, given the clipping with its counts; raises `ValueError` as `fit`."""
        action_leaves = leaves({fields.ACTION: source.step_spec[fields.ACTION]})
        unbounded = [path_name(path) for path, leaf in action_leaves if _is_unbounded(leaf)]
        if unbounded and clipping.counts[1]:
            raise ArgumentError(
                f"requires the bounds of {unbounded[0]}, which {source.name} does not contain, and "
                f"{clipping.counts[1]:,} of {clipping.counts[0]:,} actions are outside [-1, 1]; set the minimum and "
                "maximum of the environment's actions",
                about="clip_actions",
                action_bounds=...,
            )

        def apply(episode: Episode) -> Episode:
            return _replace_columns(episode, **{fields.ACTION: clipping.clip(episode.steps[fields.ACTION])})

        note = clipping.describe()
        return apply, {"clipped_actions": clipping.counts[1], **({"notes": [note]} if note else {})}


def _is_unbounded(leaf: ArraySpec) -> bool:
    return leaf.dtype.kind == "f" and leaf.minimum is None


class Clipping:
    """The clipping of actions to the bounds of their spec, and what it changes by more than rounding.

    Attributes:
      spec: the spec.
      counts: number of actions that were added, number of these that are outside their bounds, and the largest distance
        of an element from its bounds.
    """

    def __init__(self, spec: Nest, eps: float = ACTION_EPS, counts: Sequence[Any] = (0, 0, 0.0)):
        """Starts with `counts`; `spec` is a nest of bounded specs, of which those that are not floats are ignored."""
        self.spec, self._leaves, self._eps = spec, [leaf for _, leaf in leaves(spec)], eps
        self.counts: tuple[int, int, float] = tuple(counts)

    def clip(self, actions: Nest) -> Nest:
        """Returns actions `[T, ...]` within their bounds."""
        columns = [
            column if leaf.minimum is None else clip_actions(column, leaf.minimum, leaf.maximum, self._eps)
            for (_, column), leaf in zip(leaves(actions), self._leaves, strict=True)
        ]
        return tree.unflatten_as(actions, columns)

    def add(self, episode: Episode) -> None:
        """Counts the actions of an episode, except that of its last step, which has no meaning."""
        if episode.num_steps:
            keep = ~episode.steps[fields.IS_LAST]
            self.add_actions(map_structure(lambda column: column[keep], episode.steps[fields.ACTION]))

    def add_actions(self, actions: Nest) -> None:
        """Counts actions `[T, ...]`."""
        columns = [column for _, column in leaves(actions)]
        is_outside, farthest = np.zeros(len(columns[0]), bool), 0.0
        for column, leaf in zip(columns, self._leaves, strict=True):
            if column.dtype.kind != "f" or leaf.minimum is None or not column.size:
                continue
            low, high = np.float64(leaf.minimum), np.float64(leaf.maximum)
            slack = _ROUNDING * np.where(np.isfinite(high - low), high - low, 1.0)
            distance = np.maximum(np.maximum(low - column, column - high), 0.0)
            is_outside |= (distance > slack).reshape(len(column), -1).any(1)
            farthest = max(farthest, float(np.max(distance, initial=0.0, where=distance > slack)))
        self._add_counts(len(is_outside), int(is_outside.sum()), farthest)

    def merge(self, other: Clipping) -> None:
        """Adds the counts of other episodes of the same dataset."""
        self._add_counts(*other.counts)

    def _add_counts(self, num_actions: int, num_outside: int, distance: float) -> None:
        self.counts = self.counts[0] + num_actions, self.counts[1] + num_outside, max(self.counts[2], distance)

    def describe(self, verb: str = "are clipped") -> str:
        """Returns a sentence about the actions outside the bounds, or ''."""
        num_actions, num_outside, distance = self.counts
        if not num_outside:
            return ""
        share = f"{num_outside:,} of {num_actions:,} actions ({100 * num_outside / num_actions:.3g} %)"
        return f"{share} are outside their bounds, by up to {distance:.4g}, and {verb}"


def clip_actions(actions: np.ndarray, low: Any, high: Any, eps: float = ACTION_EPS) -> np.ndarray:
    """Returns float actions clipped to their bounds less a margin; actions of other dtypes are returned unchanged.

    Inside the margin the log-probabilities of a tanh policy are finite.

    Args:
      actions: float `[T, ...]`.
      low: minimum of each element, or one for all. If only one of its bounds is finite, an element has no margin.
      high: maximum of each element, or one for all.
      eps: the margin as a fraction of half the distance between the bounds.
    """
    if actions.dtype.kind != "f":
        return actions
    low, high = np.float64(low), np.float64(high)
    margin = np.where(np.isfinite(high - low), eps * (high - low) / 2, 0.0)
    return np.clip(actions, low + margin, high - margin).astype(actions.dtype, copy=False)


@dataclass(frozen=True)
class NormalizeObservations:
    """Normalises float observations to `(o − mean) / (std + eps)`, element by element.

    The method of TD3+BC (Fujimoto & Gu 2021, section 5: eps = 1e-3). Mean and std are those of all observations except
    the final ones, computed in float64; the statistics contain them as `observation_mean` and `observation_std`, nests
    of lists. Constant elements become 0 for any eps, and the `notes` of the statistics name them. Integer observations
    (images) are not changed. The dtype is kept.
    """

    eps: float = STD_EPS

    def __post_init__(self) -> None:
        if not 0 <= self.eps < np.inf:
            raise ValueError(f"eps must be a finite number >= 0, got {self.eps}")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Implements `Transform.fit`."""
        spec = source.step_spec[fields.OBSERVATION]
        return self.fit_moments(ObservationMoments.from_episodes(source, spec, source.name))

    def fit_moments(self, moments: ObservationMoments) -> tuple[EpisodeFn, dict[str, Any]]:
        """Returns the same as `fit`, given the moments of the dataset's observations."""
        spec = moments.spec

        def normalize(column: np.ndarray, leaf: LeafMoments | None) -> np.ndarray:
            return column if leaf is None else ((column - leaf.mean) / leaf.divisor(self.eps)).astype(column.dtype)

        def apply(episode: Episode) -> Episode:
            observation = episode.steps[fields.OBSERVATION]
            columns = [normalize(*pair) for pair in zip(tree.flatten(observation), moments.leaves, strict=True)]
            return _replace_columns(episode, **{fields.OBSERVATION: tree.unflatten_as(observation, columns)})

        fitted = {
            "observation_mean": tree.unflatten_as(spec, [leaf and leaf.mean.tolist() for leaf in moments.leaves]),
            "observation_std": tree.unflatten_as(spec, [leaf and leaf.std.tolist() for leaf in moments.leaves]),
            "observation_eps": self.eps,
        }
        notes = moments.describe_constants()
        return apply, {**fitted, "notes": notes} if notes else fitted


@dataclass(frozen=True)
class ScaleRewards:
    """Changes rewards to `(r − shift) · scale`, except that of a last step, which belongs to no transition.

    Floats keep their dtype; integer and bool rewards become float32.
    """

    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not np.isfinite([self.scale, self.shift]).all():
            raise ValueError(f"scale and shift must be finite, got {self.scale} and {self.shift}")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Implements `Transform.fit`."""

        def apply(episode: Episode) -> Episode:
            steps = episode.steps
            if episode.dropped_last_transition:  # The last step has the reward of a transition.
                steps = {**steps, fields.IS_LAST: np.zeros_like(steps[fields.IS_LAST])}
            return _replace_columns(episode, **{fields.REWARD: self.transform(steps)})

        return apply, {"reward_scale": self.scale, "reward_shift": self.shift}

    def fit_returns(self, returns: Sequence[float], name: str) -> ScaleRewards:
        """Implements `RewardTransform.fit_returns`; the transform does not depend on the returns."""
        return self

    def transform(self, steps: Mapping[str, Nest]) -> Nest:
        """Returns the new rewards of one or more episodes, given their columns `[R, ...]`."""

        def scale(column: np.ndarray) -> np.ndarray:
            keep = steps[fields.IS_LAST].reshape(-1, *[1] * (column.ndim - 1))
            dtype = column.dtype if column.dtype.kind == "f" else np.dtype(np.float32)
            return np.where(keep, column, (column.astype(dtype) - self.shift) * self.scale).astype(dtype)

        return map_structure(scale, steps[fields.REWARD])


@dataclass(frozen=True)
class ScaleRewardsByReturns:
    """Changes rewards to `r · target / (max return − min return)`, IQL's recipe for locomotion (target 1000).

    Kostrikov, Nair & Levine 2021 (arXiv:2110.06169), appendix B. Returns are undiscounted sums over whole episodes.
    """

    target: float = 1000.0

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Implements `Transform.fit`."""
        returns = [episode.total_reward for episode in source.read() if episode.num_steps]
        return self.fit_returns(returns, source.name).fit(source)

    def fit_returns(self, returns: Sequence[float], name: str) -> ScaleRewards:
        """Implements `RewardTransform.fit_returns`.

        Raises:
          ValueError: If the returns do not differ, or are not finite.
        """
        spread = max(returns, default=0.0) - min(returns, default=0.0)
        if not spread > 0 or not np.isfinite(spread):
            raise ArgumentError(
                f"the highest and lowest return of {name} must differ by a finite number, got {spread}; use a fixed "
                "scale, such as scale:0.1",
                reward=...,
            )
        return ScaleRewards(scale=self.target / spread)


#: Reward recipes by name: IQL (see `ScaleRewardsByReturns`; antmaze: r − 1) and CQL (Kumar et al. 2020,
#: arXiv:2006.04779, antmaze: (r − 0.5) · 4).
REWARD_RECIPES: dict[str, RewardTransform] = {
    "iql_locomotion": ScaleRewardsByReturns(),
    "iql_antmaze": ScaleRewards(shift=1.0),
    "cql_antmaze": ScaleRewards(scale=4.0, shift=0.5),
}


_RECIPE_KINDS = f"{', '.join(REWARD_RECIPES)}, scale:SCALE[:SHIFT] or returns:TARGET"


def parse_reward(reward: Any) -> RewardTransform:
    """Returns the reward transform of a recipe: its name, `scale:SCALE[:SHIFT]`, or `returns:TARGET`.

    Raises:
      ValueError: If the text is not a recipe.
      TypeError: See `describe_reward`.
    """
    text = describe_reward(reward)
    if text in REWARD_RECIPES:
        return REWARD_RECIPES[text]
    kind, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if kind == "scale" and len(values) in (1, 2):
        return ScaleRewards(*values)
    if kind == "returns" and len(values) == 1:
        return ScaleRewardsByReturns(*values)
    raise ValueError(f"the reward recipe must be {_RECIPE_KINDS}, got {text!r}")


def describe_reward(reward: Any) -> str:
    """Returns the recipe, a text for `parse_reward`, of a transform; a text is returned unchanged.

    Raises:
      TypeError: If it is neither a text nor a `ScaleRewards` or `ScaleRewardsByReturns`.
    """
    if isinstance(reward, str):
        return reward
    if not isinstance(reward, (ScaleRewards, ScaleRewardsByReturns)):
        raise TypeError(
            f"reward must be a recipe ({_RECIPE_KINDS}), ScaleRewards or ScaleRewardsByReturns, got a "
            f"{type(reward).__name__}; for other transforms, use apply_transforms first"
        )
    if named := [name for name, recipe in REWARD_RECIPES.items() if recipe == reward]:
        return named[0]
    if isinstance(reward, ScaleRewardsByReturns):
        return f"returns:{float(reward.target)}"
    return f"scale:{float(reward.scale)}:{float(reward.shift)}"


@dataclass(frozen=True)
class DropFields:
    """Drops fields, such as strings, which cannot be stored in a table.

    Attributes:
      paths: paths such as `observation/mission`, the name of an extra field, or the path of a field or a group in the
        metadata of an episode, such as `episode_metadata/file_path`. Required fields cannot be dropped.
    """

    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        required = [path for path in self.paths if path in fields.STEP_FIELDS]
        if required:
            raise ValueError(f"{required[0]!r} cannot be dropped because every step requires it")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Implements `Transform.fit`; metadata of the first episode that has steps may be missing in others."""
        if not self.paths:
            return lambda episode: episode, {"dropped_fields": []}
        first = next((episode for episode in source.read() if episode.num_steps), None)
        known = {} if first is None else make_metadata_spec(first)

        def apply(episode: Episode) -> Episode:
            steps, metadata = episode.steps, episode.metadata
            for path in self.paths:
                keys = path.split("/")
                is_metadata = _has_field(metadata, keys)
                if _has_field(steps, keys) or not (is_metadata or _has_field(known, keys)):
                    steps = _drop_field(steps, keys, path)
                elif is_metadata:
                    metadata = _drop_field(metadata, keys, path, may_be_empty=True)
            return replace(episode, steps=steps, metadata=metadata)

        return apply, {"dropped_fields": list(self.paths)}


def _has_field(nest: Nest, keys: list[str]) -> bool:
    return not keys or (isinstance(nest, dict) and keys[0] in nest and _has_field(nest[keys[0]], keys[1:]))


def _drop_field(nest: Nest, keys: list[str], path: str, *, may_be_empty: bool = False) -> Nest:
    if not isinstance(nest, dict) or keys[0] not in nest:
        raise ValueError(f"there is no field {path!r} to drop; use the path of an existing field")
    rest = {name: inner for name, inner in nest.items() if name != keys[0]}
    if len(keys) > 1:
        if inner := _drop_field(nest[keys[0]], keys[1:], path, may_be_empty=may_be_empty):
            rest[keys[0]] = inner
    elif not rest and not may_be_empty:
        raise ValueError(f"{path!r} cannot be dropped because it is the only field there")
    return rest


@dataclass(frozen=True)
class CutAtTerminal:
    """Ends each episode at its first terminal step and drops the steps after it.

    For data such as robomimic's, in which success is marked on several consecutive steps.
    """

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Implements `Transform.fit`."""

        def apply(episode: Episode) -> Episode:
            terminal = np.flatnonzero(episode.steps[fields.IS_TERMINAL])
            if not len(terminal) or terminal[0] == episode.num_steps - 1:
                return episode
            steps = tree.map_structure(lambda column: column[: terminal[0] + 1], episode.steps)
            steps = {**steps, fields.IS_LAST: np.arange(terminal[0] + 1) == terminal[0]}
            names = ("unterminated", "dropped_last_transition", "unknown_final_observation")
            marks: dict[str, Any] = dict.fromkeys(names, False)
            return replace(episode, steps=steps, **marks)

        return apply, {"cut_at_terminal": True}
