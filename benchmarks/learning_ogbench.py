"""Trains agents on datasets of OGBench with several seeds, and prints a table of their success rates.

    python benchmarks/learning_ogbench.py DATA goals [--algos gcbc hiql] [--seeds 3] [--jobs 2] [--record docs/results]
    python benchmarks/learning_ogbench.py DATA cube

DATA is a directory of OGBench's files; the package `ogbench` has to be installed. `goals` trains agents with goals on
pointmaze-medium-navigate, and `cube` trains agents with rewards on the default task of cube-single-play. Interrupted
runs are continued, and complete ones are not repeated. Then the last policy of each run is evaluated in 50 episodes of
each task, as OGBench does. The table contains means and standard deviations over seeds, in percent. With --record, the
success rate of all episodes of each run is written to a file, from which `pages.py` makes a table.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from records import DATASET_COLUMNS, record_results, replace_rows

from rlds2reverb import load
from rlds2reverb.envs.evaluation import evaluate
from rlds2reverb.learners.runs import Run
from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.experiments import choose_placement, run_plan
from rlds2reverb.training.plans import PlannedRun, plan_seeds
from rlds2reverb.training.progress import Progress

#: Batch size and networks; those of OGBench and FQL are 1,024 or 256 and three or four layers of 512.
BATCH_SIZE, SIZES = 256, [256, 256]
#: The dataset and the environment of each table, and its agents with their options.
TABLES: dict[str, tuple[str, str, dict[str, dict[str, Any]]]] = {
    "goals": (
        "pointmaze-medium-navigate-v0",
        "ogbench:pointmaze-medium-v0",
        {algo: {"algo": algo, "presets": [f"{algo}-pointmaze"]} for algo in ("gcbc", "gciql", "hiql", "crl")},
    ),
    "cube": (
        "cube-single-play-singletask-v0",
        "ogbench:cube-single-singletask-v0",
        {
            "bc": {"algo": "bc", "normalize_observations": False},
            "iql": {"algo": "iql", "hyperparameters": {"temperature": 1.0}},
            "rebrac": {"algo": "rebrac", "hyperparameters": {"actor_penalty": 0.1, "critic_penalty": 0.0}},
            "fql": {"algo": "fql", "presets": ["fql-ogbench-cube-scene"]},
        },
    ),
}
NUM_EPISODES_PER_TASK, NUM_AT_A_TIME = 50, 10


def plan(data: Path, table: str, algos: list[str] | None, *, seeds: int, steps: int) -> list[PlannedRun]:
    """Returns the runs of a table."""
    dataset, env, variants = TABLES[table]
    every = max(steps // 2, 1)
    options = {
        **{"env": env, "steps": steps, "eval_every": every},
        **{"eval_episodes": NUM_AT_A_TIME * (5 if table == "goals" else 1)},
        **{"checkpoint_every": every, "log_every": max(steps // 50, 1), "batch_size": BATCH_SIZE, "jit_compile": True},
    }
    chosen = {
        name: {**variant, "hyperparameters": {**variant.get("hyperparameters", {}), "hidden_sizes": SIZES}}
        for name, variant in variants.items()
        if algos is None or name in algos
    }
    source = load(dataset, data_dir=data)
    return [
        replace(run, name=f"{dataset}/{name}/{run.name}", data=dataset, variant=name)
        for name, variant in chosen.items()
        for run in plan_seeds(source, TrainingConfig.from_gin(**options, **variant), seeds)
    ]


def measure_success_rates(run: Run, env: str, num_tasks: int) -> list[float]:
    """Returns the success rates of a run's last policy: of each task if there are several, and of all episodes.

    Ten episodes of each task are run at a time, because an environment with a cube takes 0.3 GB.
    """
    size, end = NUM_AT_A_TIME * num_tasks, NUM_EPISODES_PER_TASK * num_tasks
    results = [
        evaluate(env, run.policy, seeds=range(first, first + size), with_goals=num_tasks > 1)
        for first in range(0, end, size)
    ]
    rates = np.array([[*result.success_rates.values(), result.success_rate] for result in results])
    return list(rates.mean(axis=0))


def record_success_rates(dataset: str, variant: str, runs: list[Run], rates: np.ndarray, folder: Path) -> None:
    """Writes the success rate [N] of each run, in percent, in place of a return."""
    rows = [
        {**{"dataset": dataset, "agent": variant, "seed": str(run.identity["seed"])},
         **{"updates": str(run.num_updates), "mean_return": f"{rate:.1f}", "std_over_episodes": ""}}
        for run, rate in zip(runs, rates, strict=True)
    ]  # fmt: skip
    record_results(folder / f"{dataset.rpartition('-')[0]}.csv", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--algos", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--record", type=Path, metavar="DIR", help="directory of the files, such as docs/results")
    arguments = parser.parse_args()
    runs = plan(arguments.data, arguments.table, arguments.algos, seeds=arguments.seeds, steps=arguments.steps)
    experiment = run_plan(
        runs, arguments.out, place=choose_placement(arguments.jobs, partial(Progress, quiet=True, notes=False))
    )
    dataset, env, variants = TABLES[arguments.table]
    num_tasks = 5 if arguments.table == "goals" else 1
    tasks = [f"task {number}" for number in range(1, num_tasks + 1)] if num_tasks > 1 else []
    print(f"| {' | '.join(['agent', 'seeds', *tasks, 'all'])} |\n|{'---|' * (len(tasks) + 3)}")
    for variant in variants:
        complete = [
            experiment.runs[name]
            for name, planned in experiment.plan.items()
            if planned["variant"] == variant
            and name in experiment.outcomes
            and experiment.outcomes[name].state == "complete"
        ]
        if complete:
            rates = 100 * np.array([measure_success_rates(run, env, num_tasks) for run in complete])
            cells = [f"{mean:.0f} ± {std:.0f}" for mean, std in zip(rates.mean(0), rates.std(0), strict=True)]
            print(f"| {' | '.join([variant, str(len(complete)), *cells])} |", flush=True)
            if arguments.record is not None:
                record_success_rates(dataset, variant, complete, rates[:, -1], arguments.record)
    if arguments.record is not None:
        row = {"dataset": dataset, "episodes": str(load(dataset, data_dir=arguments.data).num_episodes)}
        replace_rows(arguments.record / "datasets.csv", DATASET_COLUMNS, 1, [row])
    for name, reason in experiment.failures.items():
        print(f"{name} failed: {reason}")


if __name__ == "__main__":
    main()
