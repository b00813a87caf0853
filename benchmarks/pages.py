"""Writes tables, values and figures of the README and the docs from docs/speed.csv and docs/results/*.csv.

    python benchmarks/pages.py

A page contains any of these marks, and the script writes what belongs between them:

    <!-- table: speed --> <!-- end -->                    the rows of docs/speed.csv that have a name
    <!-- table: speed SECTION --> <!-- end -->            all rows of a section
    <!-- table: results --> <!-- end -->                  the datasets and agents in `SUMMARY`
    <!-- table: results FILE --> <!-- end -->             all agents in docs/results/FILE.csv
    <!-- table: estimates coverage --> <!-- end -->       how often intervals contain known values, by method
    <!-- table: estimates ranking --> <!-- end -->        correlations of estimates with returns, by dataset
    <!-- table: estimates tried --> <!-- end -->          the same of ways to order policies, by dataset
    <!-- value: speed NAME COLUMN --> <!-- end -->        a column of a row with a name, such as its ratio
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from records import read

from rlds2reverb.learners.figure_style import COLOURS, GREY, render_svg, style_axes
from rlds2reverb.training.policy_estimates import CANNOT_TELL

ROOT = Path(__file__).parent.parent
SPEED, RESULTS = ROOT / "docs/speed.csv", ROOT / "docs/results"
ESTIMATES = ROOT / "docs/estimates"
TITLES = {
    **{"bc": "cloning", "bc_10": "cloning the best 10%", "bc_50": "cloning the best 50%", "td3_bc": "TD3+BC"},
    **{"rebrac": "ReBRAC", "cal_ql": "Cal-QL", "iql_3step": "IQL, three-step transitions"},
    **{name: name for name in ("two cameras", "two cameras, two steps", "state alone")},
    **{"iql_prioritized": "IQL, prioritized by TD error", "iql_constant_rate": "IQL, constant learning rate"},
}
#: Files and agents of the table of results in the README.
SUMMARY = (("hopper_sac_medium_replay", "hopper_medium_expert", "pendulum_mixed"), ("bc", "bc_10", "iql"))
#: File and agents of each figure in docs/, the number of evaluations that a point is the mean of, and the number of
#: updates before an online phase.
FIGURES = {
    "medium_replay.svg": ("hopper_sac_medium_replay", ("bc_10", "td3_bc", "iql", "rebrac"), 5, 0),
    "online.svg": ("pendulum_mixed_online", ("iql",), 1, 10_000),
    "cal_ql.svg": ("invertedpendulum_expert_online", ("cql", "cal_ql"), 1, 10_000),
}


def format_number(text: str) -> str:
    """Returns a number with three significant digits."""
    value = float(f"{float(text):.3g}")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


def make_table(rows: list[list[str]]) -> str:
    """Returns a table whose first row contains the headings, without columns that are empty."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    lines = [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def format_ratio(text: str) -> str:
    ratio = float(text)
    return f"{ratio:.{2 if ratio < 1 else 1 if ratio < 100 else 0}f}"


def format_cells(row: dict[str, str]) -> list[str]:
    """Returns the rate, ratio and range of the ratio of a row; without both of the former, the range is of the rate."""
    low_to_high = row["low"] and f"{format_number(row['low'])} to {format_number(row['high'])}"
    if row["ratio"]:
        return [row["rate"] and format_number(row["rate"]), f"{format_ratio(row['ratio'])}x", low_to_high]
    return [format_number(row["rate"]) if row["rate"] else low_to_high, "", ""]


def make_speed_table(section: str = "") -> str:
    """Returns the rows of a section, with a column per value of `column` if it has any; or those with a name."""
    rows = [row for row in read(SPEED) if (row["section"] == section if section else row["name"])]
    tasks: dict[str, dict[str, str]] = {row["task"]: {} for row in rows}
    for row in rows:
        rate, ratio, low_to_high = format_cells(row)
        if row["column"]:
            tasks[row["task"]][f"{row['column']} ({row['unit']})"] = ", ".join(filter(None, (rate, ratio)))
        else:
            rate = rate and f"{rate} {row['unit']}"
            cells = {"rate": rate, "baseline": row["baseline"], "ratio": ratio, "range of the ratio": low_to_high}
            tasks[row["task"]] = cells
    columns = list(dict.fromkeys(column for cells in tasks.values() for column in cells))
    body = [[task, *(cells.get(column, "") for column in columns)] for task, cells in tasks.items()]
    sources = dict.fromkeys(
        f"{row['rounds']} round{'s' * (row['rounds'] != '1')} of `{row['command']}` "
        f"({date.fromisoformat(row['date']):%-d %B %Y}, {row['machine']})"
        for row in rows
    )
    return f"{make_table([['task', *columns], *body])}\n\nMedians of {', '.join(sources)}."


# --- Results


def read_returns(file: str) -> dict[str, dict[str, np.ndarray]]:
    """Returns the mean returns of all evaluations [N], by agent and seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in read(RESULTS / f"{file}.csv"):
        found.setdefault(row["agent"], {}).setdefault(row["seed"], []).append(float(row["mean_return"]))
    return {agent: {seed: np.array(runs[seed]) for seed in sorted(runs)} for agent, runs in found.items()}


def describe(file: str) -> dict[str, str]:
    """Returns the number of updates, and the properties of the data."""
    rows = read(RESULTS / f"{file}.csv")
    data = next(row for row in read(RESULTS / "datasets.csv") if row["dataset"] == rows[0]["dataset"])
    numbers = {name: f"{round(float(value)):,}" for name, value in data.items() if name != "dataset" and value}
    return {"updates": f"{max(int(row['updates']) for row in rows):,}", **numbers}


def last_five(runs: dict[str, np.ndarray]) -> tuple[float, float]:
    """Returns the mean of the last five evaluations, and its standard deviation over seeds."""
    means = [returns[-5:].mean() for returns in runs.values()]
    return float(np.mean(means)), float(np.std(means))


def format_last_five(runs: dict[str, np.ndarray]) -> str:
    mean, std = last_five(runs)
    return f"{mean:,.0f} ± {std:,.0f}" if len(runs) > 1 else f"{mean:,.0f}"


def title(agent: str) -> str:
    return TITLES.get(agent, agent.upper())


def make_summary() -> str:
    """Returns the table of `SUMMARY`; the highest mean is bold if its interval overlaps no other."""
    files, agents = SUMMARY
    rows = [["dataset", "updates", "seeds", "mean return of the data", *map(title, agents)]]
    for file in files:
        found, data = read_returns(file), describe(file)
        seeds = [seed for seed in found[agents[0]] if all(seed in found[agent] for agent in agents)]
        runs = {agent: {seed: found[agent][seed] for seed in seeds} for agent in agents}
        cells = {agent: format_last_five(runs[agent]) for agent in agents}
        best, *others = sorted(agents, key=lambda agent: last_five(runs[agent]), reverse=True)
        if np.subtract(*last_five(runs[best])) > max(sum(last_five(runs[agent])) for agent in others):
            cells[best] = f"**{cells[best]}**"
        rows.append([file, data["updates"], ", ".join(seeds), data["mean_return"], *cells.values()])
    return make_table(rows)


def make_results_table(file: str = "") -> str:
    if not file:
        return make_summary()
    rows = [["agent", "seeds", "last five", "of each seed", "swing", "best"]]
    for agent, runs in read_returns(file).items():
        of_each = [f"{returns[-5:].mean():,.0f}" for returns in runs.values()]
        swing = np.mean([returns[-5:].std() for returns in runs.values()])
        best = np.mean([returns.max() for returns in runs.values()])
        cells = [", ".join(runs), format_last_five(runs), ", ".join(of_each), f"{swing:,.0f}", f"{best:,.0f}"]
        rows.append([title(agent), *cells])
    found = describe(file)
    text = "{updates} updates. The data: {episodes} episodes"
    text += ", mean return {mean_return}, best return {best_return}." if "mean_return" in found else "."
    commits = ", ".join(dict.fromkeys(row["commit"] for row in read(RESULTS / f"{file}.csv")))
    return f"{make_table(rows)}\n\n{text.format(**found)} [All evaluations](results/{file}.csv), at {commits}"


# --- Estimates of off-policy evaluation


def read_groups(path: Path, key: str) -> dict[str, dict[str, np.ndarray]]:
    """Returns the numbers of the other columns [N], by the value of a column."""
    rows = read(path)
    groups = {row[key]: [other for other in rows if other[key] == row[key]] for row in rows}
    numbers = [name for name in rows[0] if name != key]
    return {name: {n: np.array([float(row[n]) for row in group]) for n in numbers} for name, group in groups.items()}


def make_coverage_table() -> str:
    rows = [["method", "MDPs", "coverage", "root mean square error"]]
    for method, found in read_groups(ESTIMATES / "coverage.csv", "method").items():
        is_covered = (found["low"] <= found["value"]) & (found["value"] <= found["high"])
        error = np.sqrt(np.mean(np.square(found["estimate"] - found["value"])))
        rows.append([f"`{method}`", str(len(is_covered)), f"{is_covered.mean():.3f}", f"{error:.3f}"])
    return make_table(rows)


def make_ranking_table() -> str:
    """Returns a table with a row per dataset, method and seed of the policies."""
    rows = [["data", "method", "seed", "policies", "correlation", "in the interval", "can't tell", "else in it"]]
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read(ESTIMATES / "ranking.csv"):
        groups.setdefault((row["dataset"], row["method"], row["seed"]), []).append(row)
    for (dataset, method, seed), found in groups.items():
        low, high, returns = (
            np.array([float(row[name]) for row in found]) for name in ("low", "high", "discounted_return")
        )
        ranks = [np.argsort(np.argsort(values)) for values in (low, returns)]
        is_covered, is_told = (
            (low <= returns) & (returns <= high),
            np.array([row["verdict"] != CANNOT_TELL for row in found]),
        )
        counts = [f"{is_covered.sum()} of {len(found)}", str((~is_told).sum())]
        told = f"{is_covered[is_told].sum()} of {is_told.sum()}"
        correlation = f"{np.corrcoef(*ranks)[0, 1]:.2f}"
        rows.append([dataset, f"`{method}`", seed, str(len(found)), correlation, *counts, told])
    return make_table(rows)


def make_tried_table() -> str:
    """Returns a table with a row per way to order policies, and the correlation for each dataset."""
    found = read(ESTIMATES / "tried.csv")
    datasets = list(dict.fromkeys(row["dataset"] for row in found))
    cells = {(row["rule"], row["dataset"]): row for row in found}
    rows = [["order", *datasets]]
    for rule in dict.fromkeys(row["rule"] for row in found):
        texts = [cells.get((rule, dataset), {"correlation": "", "covered": ""}) for dataset in datasets]
        rows.append([rule, *(cell["correlation"] + (cell["covered"] and f" ({cell['covered']})") for cell in texts)])
    return make_table(rows)


def make_estimates_table(name: str) -> str:
    table = {"coverage": make_coverage_table, "ranking": make_ranking_table, "tried": make_tried_table}[name]()
    return f"{table}\n\n[All estimates](estimates/{name}.csv)"


# --- Pages and figures


def get_speed(name: str, column: str) -> str:
    format_value = format_ratio if column == "ratio" else format_number
    return next(format_value(row[column]) for row in read(SPEED) if row["name"] == name)


MAKERS: dict[str, Callable[..., str]] = {
    "table: speed": make_speed_table,
    "table: results": make_results_table,
    "table: estimates": make_estimates_table,
    "value: speed": get_speed,
}


def update_page(text: str) -> str:
    """Returns the text of a page with new tables and values between its marks."""

    def make(match: re.Match[str]) -> str:
        opening, maker, names, closing = match.groups()
        content = MAKERS[maker](*names.split())
        return opening + (f"\n\n{content}\n\n" if maker.startswith("table") else content) + closing

    return re.sub(r"(<!-- ((?:table|value): \w+)([^>]*?) -->).*?(<!-- end -->)", make, text, flags=re.S)


def hash_data(file: str, agents: Sequence[str], *options: int) -> str:
    """Returns a hash of the data and the options of a figure."""
    shown = [{seed: returns.tolist() for seed, returns in read_returns(file)[agent].items()} for agent in agents]
    return hashlib.sha256(repr((shown, describe(file), options)).encode()).hexdigest()


def read_hash(path: Path) -> str:
    """Returns the hash of the data that an SVG file shows."""
    match = re.search(r"<!-- data (\w+) -->", path.read_text(encoding="utf-8"))
    return match[1] if match else ""


def draw_figure(file: str, agents: Sequence[str], window: int, offline_updates: int) -> Figure:
    """Returns a figure with the mean of the last `window` evaluations of each agent, as a mean over seeds."""
    figure = Figure(figsize=(8, 5), dpi=100, layout="constrained")
    axes, data = figure.add_subplot(title=file), describe(file)
    steps = sorted({int(row["updates"]) for row in read(RESULTS / f"{file}.csv")})
    for colour, agent in zip(COLOURS, agents, strict=False):
        runs = read_returns(file)[agent]
        means = np.mean(list(runs.values()), axis=0)
        last = [means[max(end - window, 0) : end].mean() for end in range(1, len(steps) + 1)]
        axes.plot(steps, last, color=colour, linewidth=3, label=f"{title(agent)} (seeds {', '.join(runs)})")
    levels = {float(data[f"{name}_return"].replace(",", "")): name for name in ("mean", "best")}
    for level, name in levels.items():
        axes.axhline(level, color=GREY, linewidth=1.5, linestyle="--")
        place = {"xytext": (0, -16 if name == "mean" else 5), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"{name} return of the data", (steps[-1], level), color=GREY, **place)
    if offline_updates:
        axes.axvline(offline_updates, color=GREY, linestyle=":", label="the online phase begins")
    style_axes(axes, "updates", "return", has_steps=True)
    axes.margins(y=0.1)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=13)
    return figure


def find_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    for page in find_pages():
        page.write_text(update_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, shown in FIGURES.items():
        path, data = ROOT / "docs" / name, hash_data(*shown)
        if not path.exists() or read_hash(path) != data:
            with rc_context({"font.size": 15}):
                path.write_bytes(render_svg(draw_figure(*shown)) + f"<!-- data {data} -->\n".encode())


if __name__ == "__main__":
    main()
