"""Changes that offline RL makes to rewards, observations and actions: each a small config that is fitted, then applied.

`apply_transforms(source, transforms)` gives a new source. A transform that needs statistics of the whole data set reads
it once when it is fitted; everything else happens as episodes go by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode
from rlds2reverb.specs import Nest, leaves, path_name

from .source import Source

EpisodeFn = Callable[[Episode], Episode]


class Transform(Protocol):
    """What `apply_transforms` takes."""

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """Gives the function for one episode, and the statistics it uses (plain numbers and lists)."""


def apply_transforms(source: Source, transforms: Sequence[Transform]) -> tuple[Source, dict[str, Any]]:
    """Returns a source whose episodes went through the transforms, in order, and what was done in sum.

    Episodes without steps pass unchanged. The statistics say what the raw data went through, in earlier calls as well:
    rewards that were scaled by 2 and then by 3 have a `reward_scale` of 6, so that `(raw - reward_shift) *
    reward_scale` is the reward that comes out. So do mean and std of observations that were normalised twice. The new
    source has the same `statistics`, and `ingest` puts them into its report. Each is there if its transform was:

    | statistic | transform |
    |---|---|
    | `float_dtype` | `CastFloats`: the last one |
    | `action_limit` | `ClipActions`: the smallest |
    | `observation_mean`, `_std`, `_eps` | `NormalizeObservations` |
    | `reward_scale`, `reward_shift` | `ScaleRewards`, `ScaleRewardsByReturns` |
    | `left_out` | `DropFields`: paths, of all of them |
    | `cut_at_terminal` | `CutAtTerminal`: True |
    | `notes` | sentences of any that had something to say |
    """
    statistics = dict(source.statistics)
    for transform in transforms:
        function, fitted = transform.fit(source)
        statistics = _in_sum(statistics, fitted)
        source = replace(_mapped(source, function), statistics=statistics)
    return source, statistics


def changes(statistics: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each kind of change in the statistics of `apply_transforms`, the first one first."""
    sentences: dict[str, Callable[[], str]] = {
        "left_out": lambda: f"without {', '.join(statistics['left_out'])}",
        "cut_at_terminal": lambda: "episodes cut at their first terminal step",
        "float_dtype": lambda: f"floats cast to {statistics['float_dtype']}",
        "reward_scale": lambda: f"(reward - {statistics['reward_shift']:.7g}) * {statistics['reward_scale']:.7g}",
        "observation_eps": lambda: f"(observation - mean) / (std + {statistics['observation_eps']:.7g})",
        "action_limit": lambda: f"actions clipped to +-{statistics['action_limit']:.9g}",
    }
    return [sentences[name]() for name in statistics if name in sentences]


def _in_sum(before: dict[str, Any], fitted: dict[str, Any]) -> dict[str, Any]:
    """Returns the statistics of transforms, the earlier ones in sum and one more, in sum."""
    summed = {**before, **fitted}
    notes = [*before.get("notes", []), *fitted.get("notes", [])]
    if "left_out" in before and "left_out" in fitted:
        summed["left_out"] = before["left_out"] + fitted["left_out"]
    if "action_limit" in before and "action_limit" in fitted:
        summed["action_limit"] = min(before["action_limit"], fitted["action_limit"])
    if "reward_scale" in before and "reward_scale" in fitted:
        # ((r - b) * a - d) * c = (r - (b + d / a)) * (a * c)
        scale, shift = before["reward_scale"], fitted["reward_shift"]
        if scale:
            summed["reward_scale"] = scale * fitted["reward_scale"]
            summed["reward_shift"] = before["reward_shift"] + shift / scale
        else:
            notes.append("rewards were scaled by 0; reward_scale and reward_shift are those of what came after")
    if "observation_std" in before and "observation_std" in fitted:
        # ((o - m) / s - n) / t = (o - (m + n * s)) / (s * t), where s and t are each std + eps
        first, second = before["observation_eps"], fitted["observation_eps"]
        means = before["observation_mean"], fitted["observation_mean"]
        stds = before["observation_std"], fitted["observation_std"]
        summed["observation_mean"] = _leafwise(lambda m, n, s: m + n * (s + first), *means, stds[0])
        summed["observation_std"] = _leafwise(lambda s, t: (s + first) * (t + second), *stds)
        summed["observation_eps"] = 0.0
    return {**summed, "notes": notes} if notes else summed


def _leafwise(function: Callable[..., np.ndarray], *nests: Any) -> Any:
    """Returns a function of the leaves of nests of lists of numbers; None for leaves that are None."""
    first = nests[0]
    if isinstance(first, dict):
        return {name: _leafwise(function, *[nest[name] for nest in nests]) for name in first}
    if isinstance(first, tuple):
        return tuple(_leafwise(function, *parts) for parts in zip(*nests, strict=True))
    return None if first is None else function(*map(np.asarray, nests)).tolist()


def _mapped(source: Source, function: EpisodeFn) -> Source:
    def read() -> Iterator[Episode]:
        return (function(episode) if episode.num_steps else episode for episode in source)

    return replace(source, read=read)


def _with(episode: Episode, /, **columns: Nest) -> Episode:
    return replace(episode, steps={**episode.steps, **columns})


@dataclass(frozen=True)
class CastFloats:
    """Casts float fields (discount and flags aside) to one dtype; D4RL's replay files are float64 throughout."""

    dtype: str = "float32"

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind != "f":
            raise ValueError(f"dtype is {self.dtype!r}, expected a float such as 'float32'")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """See `Transform`."""
        dtype = np.dtype(self.dtype)

        def cast(column: np.ndarray) -> np.ndarray:
            return column.astype(dtype) if column.dtype.kind == "f" else column

        def apply(episode: Episode) -> Episode:
            rest = {name: nest for name, nest in episode.steps.items() if name != fields.DISCOUNT}
            return _with(episode, **tree.map_structure(cast, rest))

        return apply, {"float_dtype": dtype.name}


@dataclass(frozen=True)
class ClipActions:
    """Clips float actions to ±(1 − eps), inside the range of a tanh policy."""

    eps: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 <= self.eps < 1:
            raise ValueError(f"eps is {self.eps}, expected a number in [0, 1)")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """See `Transform`."""
        limit = 1 - self.eps

        def clip(column: np.ndarray) -> np.ndarray:
            return np.clip(column, -limit, limit).astype(column.dtype) if column.dtype.kind == "f" else column

        def apply(episode: Episode) -> Episode:
            return _with(episode, **{fields.ACTION: tree.map_structure(clip, episode.steps[fields.ACTION])})

        return apply, {"action_limit": limit}


@dataclass(frozen=True)
class NormalizeObservations:
    """Takes float observations to `(o − mean) / (std + eps)`, element by element.

    As TD3+BC does it (Fujimoto & Gu 2021, section 5: eps = 1e-3), over the observations that actions were taken at.
    Mean and std are fitted in float64 and are in the statistics as `observation_mean` and `observation_std`, nests
    of lists. Elements that have one value throughout become 0, whatever eps is, and the `notes` of the statistics name
    them. Integer observations (images) are left alone. The dtype is kept.
    """

    eps: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.eps < np.inf:
            raise ValueError(f"eps is {self.eps}, expected at least 0")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """See `Transform`."""
        mean, std = _observation_moments(source)

        def normalize(column: np.ndarray, mean: Any, std: Any) -> np.ndarray:
            if mean is None:
                return column
            scale = np.where(std > 0, std + self.eps, np.inf)  # what is divided by infinity is 0
            return ((column - mean) / scale).astype(column.dtype)

        def apply(episode: Episode) -> Episode:
            observation = episode.steps[fields.OBSERVATION]
            leaves = zip(tree.flatten(observation), mean, std, strict=True)
            columns = [normalize(*leaf) for leaf in leaves]
            return _with(episode, **{fields.OBSERVATION: tree.unflatten_as(observation, columns)})

        names = source.step_spec[fields.OBSERVATION]
        as_lists = [
            tree.unflatten_as(names, [None if leaf is None else leaf.tolist() for leaf in moments])
            for moments in (mean, std)
        ]
        fitted = {"observation_mean": as_lists[0], "observation_std": as_lists[1], "observation_eps": self.eps}
        notes = _constant_elements(names, std)
        return apply, {**fitted, "notes": notes} if notes else fitted


def _constant_elements(names: Nest, stds: list[Any]) -> list[str]:
    """Returns a sentence for each leaf that has elements of one value throughout."""
    notes = []
    for (path, _), std in zip(leaves({fields.OBSERVATION: names}), stds, strict=True):
        places = [] if std is None else [list(map(int, place)) for place in np.argwhere(std == 0)]
        if places:
            some = "itself" if places == [[]] else f"at {', '.join(map(str, places[:8]))}"
            more = f" and {len(places) - 8} more places" if len(places) > 8 else ""
            notes.append(f"{path_name(path, 'step')} is constant {some}{more}, and is normalised to zeros there")
    return notes


def _observation_moments(source: Source) -> tuple[list[Any], list[Any]]:
    """Returns mean and std of each float leaf (None for others), merging episodes' moments (Chan et al. 1979, eq. 2.1).

    The std of an element that has one value throughout is exactly 0, and its mean that value.
    """
    count = 0
    means: list[Any] = []
    squares: list[Any] = []
    lowest: list[Any] = []
    highest: list[Any] = []
    for episode in source:
        num = episode.num_transitions
        if not num:
            continue
        leaves = tree.flatten(episode.steps[fields.OBSERVATION])
        rows = [leaf[:num].astype(np.float64) if leaf.dtype.kind == "f" else None for leaf in leaves]
        if not count:
            lowest = highest = [None if row is None else row[0] for row in rows]
            means = squares = [None if row is None else np.zeros(row.shape[1:]) for row in rows]
        deltas = [None if row is None else row.mean(axis=0) - mean for row, mean in zip(rows, means, strict=True)]
        share = num / (count + num)
        squares = [
            None if delta is None else square + row.var(axis=0) * num + delta**2 * count * share
            for row, square, delta in zip(rows, squares, deltas, strict=True)
        ]
        lowest = [None if row is None else np.minimum(low, row.min(0)) for row, low in zip(rows, lowest, strict=True)]
        highest = [None if row is None else np.maximum(top, row.max(0)) for row, top in zip(rows, highest, strict=True)]
        means = [None if delta is None else mean + delta * share for mean, delta in zip(means, deltas, strict=True)]
        count += num
    if not count:
        raise ValueError(f"{source.name} has no transitions to take the mean of")
    if not all(np.isfinite(square).all() for square in squares if square is not None):
        raise ValueError(f"{source.name} has observations that are NaN or Inf, which have no mean; validate it first")
    stds = [None if square is None else np.sqrt(square / count) for square in squares]
    is_constant = [None if low is None else low == top for low, top in zip(lowest, highest, strict=True)]
    return _chosen(is_constant, lowest, means), _chosen(is_constant, [0] * len(stds), stds)


def _chosen(flags: list[Any], where_true: list[Any], otherwise: list[Any]) -> list[Any]:
    """Returns for each leaf one value where its flags are True, else the other; None for leaves without flags."""
    leaves = zip(flags, where_true, otherwise, strict=True)
    return [None if flag is None else np.where(flag, one, other) for flag, one, other in leaves]


@dataclass(frozen=True)
class ScaleRewards:
    """Takes rewards to `(r − shift) · scale`; the last step's reward, which means nothing, is left as it is.

    Floats keep their dtype; integer and bool rewards become float32.
    """

    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not np.isfinite([self.scale, self.shift]).all():
            raise ValueError(f"scale {self.scale} and shift {self.shift} must be finite")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """See `Transform`."""

        def scale(column: np.ndarray, keep: np.ndarray) -> np.ndarray:
            keep = keep.reshape(-1, *[1] * (column.ndim - 1))
            dtype = column.dtype if column.dtype.kind == "f" else np.dtype(np.float32)
            return np.where(keep, column, (column.astype(dtype) - self.shift) * self.scale).astype(dtype)

        def apply(episode: Episode) -> Episode:
            keep = episode.steps[fields.IS_LAST]
            rewards = tree.map_structure(lambda column: scale(column, keep), episode.steps[fields.REWARD])
            return _with(episode, **{fields.REWARD: rewards})

        return apply, {"reward_scale": self.scale, "reward_shift": self.shift}


@dataclass(frozen=True)
class ScaleRewardsByReturns:
    """Takes rewards to `r · target / (max return − min return)`: IQL's recipe for locomotion, target 1000.

    Kostrikov, Nair & Levine 2021 (arXiv:2110.06169), appendix B. Returns are undiscounted, of whole episodes.
    """

    target: float = 1000.0

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """See `Transform`."""
        returns = [episode.total_reward for episode in source if episode.num_steps]
        spread = max(returns, default=0.0) - min(returns, default=0.0)
        if not spread > 0 or not np.isfinite(spread):
            raise ValueError(
                f"the returns of {source.name} spread over {spread}, so that they cannot scale the rewards; "
                "give a scale of your own"
            )
        return ScaleRewards(scale=self.target / spread).fit(source)


#: Reward recipes by name: IQL (see `ScaleRewardsByReturns`; antmaze: r − 1) and CQL (Kumar et al. 2020,
#: arXiv:2006.04779, antmaze: (r − 0.5) · 4).
REWARD_RECIPES: dict[str, Transform] = {
    "iql_locomotion": ScaleRewardsByReturns(),
    "iql_antmaze": ScaleRewards(shift=1.0),
    "cql_antmaze": ScaleRewards(scale=4.0, shift=0.5),
}


@dataclass(frozen=True)
class DropFields:
    """Leaves fields out, such as texts, which no table of ours takes.

    Attributes:
      paths: places such as `observation/mission`, or a whole further field. What every step has cannot be left out.
    """

    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        needed = [path for path in self.paths if path in fields.STEP_FIELDS]
        if needed:
            raise ValueError(f"{needed[0]!r} is what every step has, and cannot be left out")

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """See `Transform`."""

        def apply(episode: Episode) -> Episode:
            steps = episode.steps
            for path in self.paths:
                steps = _without(steps, path.split("/"), path)
            return replace(episode, steps=steps)

        return apply, {"left_out": list(self.paths)}


def _without(nest: Nest, keys: list[str], path: str) -> Nest:
    if not isinstance(nest, dict) or keys[0] not in nest:
        raise ValueError(f"there is no field {path!r} to leave out")
    rest = {name: inner for name, inner in nest.items() if name != keys[0]}
    if len(keys) > 1:
        rest[keys[0]] = _without(nest[keys[0]], keys[1:], path)
    elif not rest:
        raise ValueError(f"nothing would be left beside {path!r}")
    return rest


@dataclass(frozen=True)
class CutAtTerminal:
    """Ends each episode at its first terminal step and drops what follows.

    For data such as robomimic's, where success is marked on several steps in a row.
    """

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        """See `Transform`."""

        def apply(episode: Episode) -> Episode:
            terminal = np.flatnonzero(episode.steps[fields.IS_TERMINAL])
            if not len(terminal) or terminal[0] == episode.num_steps - 1:
                return episode
            steps = tree.map_structure(lambda column: column[: terminal[0] + 1], episode.steps)
            is_last = np.arange(terminal[0] + 1) == terminal[0]
            return replace(episode, steps={**steps, fields.IS_LAST: is_last})

        return apply, {"cut_at_terminal": True}
