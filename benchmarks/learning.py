"""Trains every agent on every dataset with several seeds, and writes a table and a figure of the results.

    python benchmarks/learning.py DATA [--algos iql bc_10] [--seeds 3] [--steps 20000] [--out runs]

DATA is a directory of D4RL files with `ref_scores.json`. Each run is `rlds2reverb train` in a separate process.
Interrupted runs are continued, and complete runs are not repeated. The table contains the mean return of the data; the
mean of the last five evaluations with its standard deviation over seeds; the swing, which is the standard deviation of
the last five evaluations within a run; and the best evaluation. Swing and best are means over seeds. The figure is
written to `learning.png` in the directory --out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rlds2reverb.learners.curves import draw_learning_curves, learning_curves, save_png
from rlds2reverb.learners.runs import Run, load_run

DATASETS = (
    "hopper_medium_expert-v2",
    "hopper_broad-v2",
    "halfcheetah_broad-v2",
    "invertedpendulum_expert-v2",
    "pendulum_mixed-v2",
)
#: Datasets whose episodes all have the same return, so that IQL's reward recipe would divide by zero.
CONSTANT_RETURN = ("invertedpendulum_expert-v2",)
#: The options of `train` for each variant that is compared.
VARIANTS = {
    "bc": ["--algo", "bc"],
    "bc_10": ["--algo", "bc", "--top-percent", "10"],
    "bc_50": ["--algo", "bc", "--top-percent", "50"],
    "iql": ["--algo", "iql"],
    "iql_constant_rate": ["--algo", "iql", "--set", "num_updates=None"],
    "iql_3step": ["--algo", "iql", "--n-step", "3"],
    "iql_prioritized": ["--algo", "iql", "--sampler", "prioritized"],
    "td3_bc": ["--algo", "td3_bc"],
    "rebrac": ["--algo", "rebrac"],
    "cql": ["--algo", "cql"],
    "awac": ["--algo", "awac"],
}


def train(data: Path, dataset: str, variant: str, seed: int, *, steps: int, out: Path) -> Run:
    """Trains until the run is complete, if it is not yet, and returns the run."""
    root = out / dataset / f"{variant}-{seed}"
    recipe = ["--reward", "iql_locomotion"] if "iql" in variant and dataset not in CONSTANT_RETURN else []
    if not (root / "evaluations.csv").is_file() or load_run(root).evaluations["step"].max(initial=0) < steps:
        every = max(steps // 20, 1)
        command = [
            *(sys.executable, "-m", "rlds2reverb.cli", "train", "--data", str(data / f"{dataset}.hdf5")),
            *("--reference-file", str(data / "ref_scores.json")),
            *("--run-dir", str(root), "--seed", str(seed), "--steps", str(steps)),
            *("--eval-every", str(every), "--log-every", str(every), "--checkpoint-every", str(steps)),
            *VARIANTS[variant],
            *recipe,
        ]
        process = subprocess.run(command, capture_output=True, text=True)
        if code := process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed with exit code {code}:\n{process.stderr[-2000:]}")
    return load_run(root)


def summarize(dataset: str, variant: str, runs: list[Run]) -> dict[str, Any]:
    """Returns the results of one variant on one dataset."""
    returns = [run.evaluations["mean"] for run in runs]
    last = [float(np.mean(each[-5:])) for each in returns]
    swing = [float(np.std(each[-5:])) for each in returns]
    return {
        "dataset": dataset,
        "variant": variant,
        "seeds": len(runs),
        "data": runs[0].behaviour_return,
        "last": float(np.mean(last)),
        "last_std": float(np.std(last)),
        "swing": float(np.mean(swing)),
        "best": float(np.mean([np.max(each) for each in returns])),
    }


def draw_figure(runs: dict[str, dict[str, list[Run]]]) -> Figure:
    """Returns a figure with one panel of learning curves per dataset, and the legend in the last panel."""
    columns = min(len(runs) + 1, 3)
    rows = -(-(len(runs) + 1) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    for number, (dataset, variants) in enumerate(runs.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        curves = learning_curves([run for group in variants.values() for run in group])
        draw_learning_curves(axes, [replace(curve, label=name) for curve, name in zip(curves, variants, strict=True)])
        axes.set_title(dataset, fontsize="medium")
        axes.get_legend().remove()
    legend = figure.add_subplot(rows, columns, len(runs) + 1)
    legend.axis("off")
    legend.legend(*axes.get_legend_handles_labels(), loc="center", frameon=False, fontsize="medium")
    return figure


def format_row(row: dict[str, Any]) -> str:
    """Returns the results of one variant as a row of the table."""
    last = f"{row['last']:,.0f} ± {row['last_std']:,.0f}"
    numbers = [f"{row['data']:,.0f}", last, f"{row['swing']:,.0f}", f"{row['best']:,.0f}"]
    return f"| {row['dataset']} | {row['variant']} | {' | '.join(numbers)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--algos", nargs="+", default=list(VARIANTS), choices=sorted(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    rows, all_runs = [], {}
    print("| dataset | agent | mean return of the data | last five | swing | best |\n|---|---|---|---|---|---|")
    for dataset in arguments.datasets:
        all_runs[dataset] = {}
        for variant in arguments.algos:
            runs = [
                train(arguments.data, dataset, variant, seed, steps=arguments.steps, out=arguments.out)
                for seed in range(arguments.seeds)
            ]
            all_runs[dataset][variant] = runs
            rows.append(summarize(dataset, variant, runs))
            print(format_row(rows[-1]), flush=True)
    save_png(draw_figure(all_runs), arguments.out / "learning.png")
    (arguments.out / "learning.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
