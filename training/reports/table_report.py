"""The report on tables, served or stored: priorities, sample counts, sampling frequencies and ages of their items."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb._system.text import format_number
from rlds2reverb.client import find_addresses, table_infos
from rlds2reverb.learners.figures import COLOURS, add_legend, make_figure, style_axes
from rlds2reverb.locations import is_table_directory
from rlds2reverb.server.item_statistics import ItemStatistics, read_item_statistics, sample_item_statistics
from rlds2reverb.server.replay_server import read_tables
from rlds2reverb.server.shards import find_table_directories
from rlds2reverb.specs import describe, leaves, path_name
from rlds2reverb.tables import MAX_ITEMS

from .figures import HALF_WIDTH, make_axes
from .page import Page, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUM_BINS = 30
#: Number of groups of items with similar priorities, for the comparison of frequencies.
_NUM_GROUPS = 16
_MAX_COUNT_BARS = 40
_UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def report_tables(tables: Any, path: str | Path | None = None, *, timeout_secs: float = 10.0) -> Report:
    """Makes a report on the tables of a server or a directory: one HTML page with figures, which needs no network.

        report_tables("localhost:8000", "tables.html")

    All items in a directory are read. Of a served table, which cannot be listed, 4,000 items are sampled, which
    increases their sample counts. Statistics are then estimated with weights that compensate for the sampler. A table
    is not sampled if that would use up its items or count against its rate limiter.

    Args:
      tables: a directory that `ingest` or a server with a checkpoint root wrote; or a server: an address 'HOST:PORT', a
        port of this machine, a `ReplayServer`, or Reverb's own `Client` or `Server`.
      path: HTML file to write; None for none.
      timeout_secs: maximum time to wait for the server's answer, and for the samples of each table.

    Raises:
      CheckpointError: If the directory is damaged or contains no items, or if shards are missing.
      ServerUnavailableError: If the server does not answer in time.
      StorageFullError: If the disk is full.
    """
    if isinstance(tables, (str, Path)) and is_table_directory(tables):
        page = Page(str(tables), "rlds2reverb report on stored tables")
        facts, statistics = [], []
        directories = find_table_directories(tables)
        for directory in directories:
            rows = [("directory", str(directory))] if len(directories) > 1 else []
            facts += [[*rows, *_describe_config(config)] for config in read_tables(directory)]
            statistics += read_item_statistics(directory)
    else:
        addresses = find_addresses(tables)
        is_sharded = len(addresses) > 1
        servers = "running servers" if is_sharded else "a running server"
        page = Page(", ".join(addresses), f"rlds2reverb report on the tables of {servers}")
        facts, statistics = [], []
        for address in addresses:
            for _, info in sorted(table_infos(address, timeout_secs=timeout_secs).items()):
                facts.append([*([("server", address)] if is_sharded else []), *_describe_info(info)])
                statistics.append(sample_item_statistics(address, info, timeout_secs=timeout_secs))
    for items, rows in zip(statistics, facts, strict=True):
        _add_table(page, items, rows)
    return page.build(path)


def _describe_config(config: Any) -> list[tuple[str, str]]:
    rows = [("remover", str(config.remover)), ("rate limiter", str(config.rate_limiter))]
    return [*rows, *_describe_limits(config)]


def _describe_limits(table: Any) -> list[tuple[str, str]]:
    is_limited, times = table.max_size is not None and table.max_size < MAX_ITEMS, table.max_times_sampled
    return [
        ("max size", f"{table.max_size:,}" if is_limited else "no limit"),
        ("max times sampled", f"{times:,}" if times else "no limit"),
    ]


def _describe_info(info: Any) -> list[tuple[str, str]]:
    limiter = info.rate_limiter_info
    rows = [
        *_describe_limits(info),
        ("min size to sample", f"{limiter.min_size_to_sample:,}"),
        ("inserted", f"{limiter.insert_stats.completed:,} items since the server started"),
        ("sampled", f"{limiter.sample_stats.completed:,} items since the server started"),
        ("episodes", f"{info.num_episodes:,}"),
    ]
    if info.signature is not None:
        rows += [("field", f"{path_name(path, 'item')}  {describe(spec)}") for path, spec in leaves(info.signature)]
    return rows


def _add_table(page: Page, items: ItemStatistics, facts: list[tuple[str, str]]) -> None:
    page.add_section(f"Table '{items.table}'")
    known = len(items.priorities)
    if known:
        facts = [*_summarize(items), *facts]
    page.add_facts([("items", f"{items.size:,}"), ("sampler", items.sampler), *facts])
    if items.note:
        page.add_findings([("note", items.note)])
    if not known:
        return
    if items.is_sample:
        page.add_text(
            f"{items.num_samples:,} samples were drawn for this report, of {known:,} different items. Shares of the "
            "items are estimated: each one is weighted by the inverse of the probability that it was drawn."
        )
    page.add_figure("Priorities", _draw_priorities(items), caption="Priorities of 0 are shown at the left end.")
    page.add_figure("Sample counts", _draw_counts(items), caption=_explain_counts(items))
    if items.probabilities is not None and items.times_sampled.any():
        page.add_figure(
            "Expected and empirical sampling frequency",
            _draw_frequencies(items, items.probabilities),
            caption="Share of all samples by priority. Expected: from today's priorities and the sampler. Empirical: "
            "from the sample counts of the items. They differ if priorities changed, or items were added, in between.",
        )
    if (figure := _draw_ages(items)) is not None:
        page.add_figure("Item age", figure, caption=_explain_ages(items))


def _summarize(items: ItemStatistics) -> list[tuple[str, str]]:
    order = np.argsort(items.priorities)
    places = np.searchsorted(np.cumsum(items.weights[order]), [0.0, 0.5, 1.0 - 1e-9]).clip(0, len(order) - 1)
    low, median, high = (format_number(items.priorities[order[place]]) for place in places)
    sampled = f"{float((items.weights * items.times_sampled).sum()):,.3g} times per item"
    if not items.is_sample:
        never = float(items.weights[items.times_sampled == 0].sum())
        sampled += f"; {100 * never:.1f} % of the items have never been sampled"
    return [("priority", f"from {low} to {high}, median {median}"), ("samples", sampled)]


def _bin_priorities(priorities: np.ndarray, num_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns edges of bins, on a logarithmic scale if the priorities span a decade, and the bin of each priority."""
    positive = priorities[priorities > 0]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1.0, 1.0)
    if high <= low * (1 + 1e-9):
        low, high = low / 1.5, high * 1.5
    edges = np.geomspace(low, high, num_bins + 1)
    bins = np.clip(np.searchsorted(edges, priorities, side="right") - 1, 0, num_bins - 1)
    return edges, bins


def _draw_priorities(items: ItemStatistics) -> Figure:
    figure, axes = make_axes()
    edges, bins = _bin_priorities(items.priorities, _NUM_BINS)
    axes.stairs(100 * np.bincount(bins, items.weights, minlength=_NUM_BINS), edges, fill=True, color=COLOURS[0])
    axes.set_xscale("log")
    style_axes(axes, "priority", "% of the items")
    return figure


def _draw_frequencies(items: ItemStatistics, probabilities: np.ndarray) -> Figure:
    figure, axes = make_axes()
    edges, bins = _bin_priorities(items.priorities, _NUM_GROUPS)
    expected = np.bincount(bins, items.weights * probabilities, minlength=_NUM_GROUPS)
    empirical = np.bincount(bins, items.weights * items.times_sampled, minlength=_NUM_GROUPS)
    axes.stairs(100 * expected / expected.sum(), edges, fill=True, color=COLOURS[5], label="expected")
    axes.stairs(100 * empirical / empirical.sum(), edges, color="black", linestyle="--", label="empirical")
    axes.set_xscale("log")
    style_axes(axes, "priority", "% of the samples")
    add_legend(axes)
    return figure


def _draw_counts(items: ItemStatistics) -> Figure:
    """Draws how often items were sampled, and how often the sampler would have chosen them by chance."""
    counts, highest = items.times_sampled, int(items.times_sampled.max(initial=0))
    width = max(1, -(-(highest + 1) // _MAX_COUNT_BARS))
    edges = np.arange(0, highest + width + 1, width)
    shares = 100 * np.histogram(counts, edges, weights=items.weights)[0]
    centres = edges[:-1] + (width - 1) / 2
    figure, axes = make_axes()
    axes.bar(centres, shares, 0.85 * width, color=COLOURS[0])
    if items.probabilities is not None and not items.is_sample and counts.any():
        expected = _expect_counts(items.probabilities * counts.sum(), edges)
        axes.plot(centres, 100 * expected, color=COLOURS[1], linestyle="--", marker=".", label="expected")
    if highest <= 12:
        axes.set_xticks(centres)
    style_axes(axes, "times that an item was sampled", "% of the items")
    add_legend(axes)
    return figure


def _expect_counts(means: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the expected shares of counts in bins if each item's count has a Poisson distribution of some mean."""
    groups, sizes = np.unique(np.round(means, 3 if means.max(initial=0) < 100 else 0), return_counts=True)
    if len(groups) > 2000:
        sizes, group_edges = np.histogram(means, 2000)
        groups = (group_edges[:-1] + group_edges[1:]) / 2
    numbers = np.arange(edges[-1])
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(numbers[1:], 1)))])[: len(numbers)]
    shares = np.zeros(len(numbers))
    for mean, size in zip(np.maximum(groups, 1e-12), sizes, strict=True):
        shares += size * np.exp(numbers * np.log(mean) - mean - log_factorials)
    return np.add.reduceat(shares / max(sizes.sum(), 1), edges[:-1])


def _explain_counts(items: ItemStatistics) -> str:
    if not items.times_sampled.any():
        return "No item has been sampled yet."
    if items.is_sample:
        return "Includes the samples of this report. Items that were never sampled before are counted once or more."
    if items.probabilities is None:
        return "The sampler returns items in a fixed order."
    return "Expected: if all samples had been taken at random with today's priorities."


def _draw_ages(items: ItemStatistics) -> Figure | None:
    """Draws the ages of the items and how often items of each age were sampled; None if no ages are known."""
    is_known = np.isfinite(items.inserted_at)
    if is_known.any():
        now = time.time() if items.is_sample else float(items.inserted_at[is_known].max())
        ages = np.maximum(now - items.inserted_at[is_known], 0)
        scale, unit = next((secs, name) for secs, name in _UNITS if ages.max() >= 2 * secs or secs == 1)
        ages, title = ages / scale, f"age ({unit})"
    else:
        is_known = items.order >= 0
        if not is_known.any():
            return None
        ages, title = items.order[is_known].max() - items.order[is_known], "age (number of items inserted later)"
    weights, counts = items.weights[is_known], items.times_sampled[is_known]
    edges = np.linspace(0, max(float(ages.max()), 1e-9), _NUM_BINS + 1)
    shares, sampled = (np.histogram(ages, edges, weights=bin_weights)[0] for bin_weights in (weights, weights * counts))
    centres = (edges[:-1] + edges[1:]) / 2
    figure = make_figure(HALF_WIDTH[0], 1.4 * HALF_WIDTH[1])
    upper, lower = figure.subplots(2, sharex=True)
    upper.stairs(100 * shares, edges, fill=True, color=COLOURS[0])
    lower.plot(centres[shares > 0], sampled[shares > 0] / shares[shares > 0], color=COLOURS[1], marker=".")
    lower.set_ylim(bottom=0)
    style_axes(upper, "", "% of the items")
    style_axes(lower, title, "samples per item")
    return figure


def _explain_ages(items: ItemStatistics) -> str:
    if not np.isfinite(items.inserted_at).any():
        return "A converted dataset stores the order of its items, but no times."
    relative = "since the insertion of each item" if items.is_sample else "relative to the newest item"
    return f"Top: time {relative}. Bottom: how often items of that age have been sampled."
