"""Estimates of the values of policies from data, as results, tables and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.errors import CorruptFileError, Message
from rlds2reverb.learners.figure_style import COLOURS, GREY, escape_label, make_axes, style_axes
from rlds2reverb.learners.value_estimators import ESTIMATORS
from rlds2reverb.system.sealed_files import load_json, replace_text
from rlds2reverb.system.text import format_columns
from rlds2reverb.types.locations import expand_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The two verdicts on an estimate.
SUPPORTED, CANNOT_TELL = "supported by the data", "can't tell"


@dataclass(frozen=True)
class PolicyEstimate:
    """An estimate of the discounted return of a policy from the first states of episodes.

    Attributes:
      policy: name of the policy, such as the directory of its run.
      method: name of the estimator; see `evaluate_offline`.
      estimate: the estimate, in the rewards of the data.
      interval: bootstrap interval of the estimate.
      confidence: probability that the interval is meant to cover.
      gamma: discount factor.
      data: name of the dataset.
      num_episodes: number of episodes that were used.
      is_held_out: whether they are the held-out episodes of the policy's run.
      data_return: mean discounted return of these episodes; `best_return` is the highest.
      behaviour: source of the probabilities of the data's actions, 'cloned' or the name of a field; None if they were
        not needed.
      effective_sample_size: number of equally weighted episodes that say as much; None without importance weights.
      held_out_loss: loss of the fit on episodes outside the bootstrap samples; None without a fit or such episodes.
      doubts: sentences about why the data do not tell the return of the policy.
      warnings: sentences about what the estimate does not include.
    """

    policy: str
    method: str
    estimate: float
    interval: tuple[float, float]
    confidence: float
    gamma: float
    data: str
    num_episodes: int
    is_held_out: bool
    data_return: float
    best_return: float
    behaviour: str | None = None
    effective_sample_size: float | None = None
    held_out_loss: float | None = None
    doubts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """One of `SUPPORTED` and, if there are doubts, `CANNOT_TELL`."""
        return CANNOT_TELL if self.doubts else SUPPORTED

    def as_dict(self) -> dict[str, Any]:
        """Returns the attributes and the verdict as JSON values."""
        return {**json.loads(json.dumps(asdict(self))), "verdict": self.verdict}

    def save(self, path: str | Path) -> None:
        """Writes the attributes as a JSON file; raises `StorageFullError` if the disk is full."""
        save_estimates([self], path)

    def format_row(self) -> list[str]:
        """Returns the cells of the estimate's row in `format_estimates`."""
        size = self.effective_sample_size
        ends = " to ".join(f"{end:,.4g}" for end in self.interval)
        numbers = [f"{self.estimate:,.4g}", ends, self.verdict, "-" if size is None else f"{size:,.1f}"]
        return [self.policy, self.method, *numbers]

    def __str__(self) -> str:
        which = "held-out episodes" if self.is_held_out else "episodes"
        size, behaviour = self.effective_sample_size, self.behaviour
        lines = [
            f"{self.policy}: {ESTIMATORS[self.method].title} {self.estimate:,.4g}, {self.confidence:.0%} interval "
            f"{self.interval[0]:,.4g} to {self.interval[1]:,.4g}: {self.verdict}",
            f"from {self.num_episodes:,} {which} of {self.data}, discount {self.gamma:g}; their discounted returns are "
            f"{self.data_return:,.4g} on average and {self.best_return:,.4g} at best",
        ]
        if self.held_out_loss is not None:
            lines.append(f"loss of the fit on episodes outside the bootstrap samples: {self.held_out_loss:.3g}")
        if size is not None:
            lines.append(f"effective sample size {size:,.1f} episodes; behaviour probabilities: {behaviour}")
        doubts = [f"{CANNOT_TELL}: {sentence}" for sentence in self.doubts]
        return "\n".join([*lines, *doubts, *(f"warning: {sentence}" for sentence in self.warnings)])


def load_estimate(path: Path) -> PolicyEstimate | None:
    """Returns the estimate that `save_json` has written, or None if it is missing or damaged."""
    with suppress(CorruptFileError):
        if (saved := load_json(path)) is not None:
            lists = {name: tuple(value) for name, value in saved.items() if isinstance(value, list)}
            saved.pop("verdict", None)
            return PolicyEstimate(**{**saved, **lists})
    return None


def order_estimates(estimates: Sequence[PolicyEstimate]) -> list[PolicyEstimate]:
    """Returns estimates from the highest to the lowest lower end of their intervals.

    The first one has a warning if they are not comparable.
    """
    first, *others = sorted(estimates, key=lambda result: (-result.interval[0], -result.estimate))
    if len({(result.gamma, result.num_episodes, result.data_return) for result in estimates}) > 1:
        warning = Message(
            "the estimates are not comparable, because the discounts or the held-out episodes of the policies differ; "
            "use data that no policy was trained on, and set the discount factor",
            gamma=...,
        )
        first = replace(first, warnings=(warning, *first.warnings))
    return [first, *others]


def group_estimates(estimates: Sequence[PolicyEstimate]) -> list[list[PolicyEstimate]]:
    """Returns ordered estimates in groups between which the order is certain: their intervals do not overlap."""
    groups = [[estimates[0]]]
    for place, result in enumerate(estimates[1:], 1):
        lowest = min(before.interval[0] for before in estimates[:place])
        if max(after.interval[1] for after in estimates[place:]) < lowest:
            groups.append([])
        groups[-1].append(result)
    return groups


def describe_order(estimates: Sequence[PolicyEstimate]) -> str:
    """Returns a sentence on which part of the order of several estimates is certain."""
    groups = group_estimates(estimates)
    if len(groups) == 1:
        return "no order is certain, because the intervals overlap"
    names = [" or ".join(result.policy for result in group) for group in groups]
    return f"certain, because the intervals do not overlap: {' > '.join(names)}"


def save_estimates(estimates: Sequence[PolicyEstimate], path: str | Path) -> None:
    """Writes estimates as a JSON file: one document, or a list of several."""
    documents = [estimate.as_dict() for estimate in estimates]
    replace_text(
        expand_path(path, "path"), json.dumps(documents[0] if len(documents) == 1 else documents, indent=2) + "\n"
    )


def format_estimates(estimates: Sequence[PolicyEstimate]) -> str:
    """Returns a table with a row per estimate, and a sentence on the order if they are of several policies."""
    interval = f"{estimates[0].confidence:.0%} interval"
    table = format_columns(
        ["policy", "method", "estimate", interval, "verdict", "effective sample size"],
        [row.format_row() for row in estimates],
    )
    return f"{table}\n{describe_order(estimates)}" if len(estimates) > 1 else table


def draw_estimates(estimates: Sequence[PolicyEstimate]) -> Figure:
    """Draws ordered estimates with their intervals, from top to bottom, with lines across which the order is certain.

    The dashed line is the mean return of the data. Estimates that the data do not support have hollow marks.
    """
    first, groups = estimates[0], group_estimates(estimates)
    figure, axes = make_axes((7.0, 1.9 + 0.35 * len(estimates)))
    for place, result in enumerate(estimates):
        fill = "none" if result.doubts else "full"
        axes.plot(result.interval, [place, place], color=COLOURS[0], linewidth=2.0, solid_capstyle="butt")
        axes.plot([result.estimate], [place], color=COLOURS[0], marker="o", linestyle="none", fillstyle=fill)
    if len({result.data_return for result in estimates}) == 1:
        axes.axvline(first.data_return, color=GREY, linestyle="--", linewidth=1.0, label="mean return of the data")
    for number, end in enumerate(np.cumsum(list(map(len, groups)))[:-1]):
        label = None if number else "the order across this line is certain"
        axes.axhline(end - 0.5, color=COLOURS[1], linewidth=1.0, label=label)
    axes.set_yticks(range(len(estimates)), [escape_label(result.policy) for result in estimates], fontsize="small")
    axes.set_ylim(len(estimates) - 0.5, -0.5)
    title = escape_label(f"{ESTIMATORS[first.method].title} from {first.data}, {first.confidence:.0%} intervals")
    is_uncertain = len(estimates) > 1 and len(groups) == 1
    axes.set_title(f"{title}\n{describe_order(estimates)}" if is_uncertain else title, fontsize="medium")
    style_axes(axes, f"discounted return (discount {first.gamma:g})", "")
    if axes.get_legend_handles_labels()[1]:
        figure.legend(frameon=False, fontsize="small", ncols=2, loc="outside lower center")
    return figure
