"""Trains every agent on every dataset with several seeds, and prints a table of the results.

    python benchmarks/learning.py DATA [--algos iql bc_10] [--seeds 3] [--jobs 2] [--out runs] [--record docs/results]
    python benchmarks/learning.py DATA --datasets pendulum_mixed-v2 --algos iql --steps 10000 --online 20000

DATA is a directory of D4RL files with `ref_scores.json`. Interrupted runs are continued, and complete ones are not
repeated; --jobs trains several at a time. The table contains the mean return of the data; the
mean of the last five evaluations with its standard deviation over seeds; the swing, which is the standard deviation of
the last five evaluations within a run; and the best evaluation. Swing and best are means over seeds. With --record,
all evaluations of complete runs replace those of the same agents and seeds in a file per dataset, from which `pages.py`
writes the tables and figures of the docs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from records import DATASET_COLUMNS, record_results, replace_rows

from rlds2reverb import load, summarize
from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.experiments import Experiment, Row, choose_placement, run_plan
from rlds2reverb.training.plans import PlannedRun, plan_seeds
from rlds2reverb.training.progress import Progress

DATASETS = (
    "hopper_medium_expert-v2",
    "hopper_broad-v2",
    "halfcheetah_broad-v2",
    "invertedpendulum_expert-v2",
    "pendulum_mixed-v2",
)
#: Datasets whose episodes all have the same return, so that IQL's reward recipe would divide by zero.
CONSTANT_RETURN = ("invertedpendulum_expert-v2",)
#: The ReBRAC preset of each dataset of a SAC agent: the paper's penalties for D4RL's dataset of the same kind.
REBRAC_PRESETS = {
    "hopper_sac_medium_replay-v2": "rebrac-hopper-medium-replay",
    "hopper_sac_medium-v2": "rebrac-hopper-medium",
    "hopper_sac_expert-v2": "rebrac-hopper-expert",
    "halfcheetah_sac_full_replay-v2": "rebrac-halfcheetah-full-replay",
}
#: The published settings of cloning and FQL.
_PUBLISHED = {"normalize_observations": False}
#: The options of each variant that is compared.
VARIANTS: dict[str, dict[str, Any]] = {
    "bc": {"algo": "bc", **_PUBLISHED},
    "bc_10": {"algo": "bc", "top_percent": 10, **_PUBLISHED},
    "bc_50": {"algo": "bc", "top_percent": 50, **_PUBLISHED},
    "iql": {"algo": "iql"},
    "iql_constant_rate": {"algo": "iql", "hyperparameters": {"num_updates": None}},
    "iql_3step": {"algo": "iql", "n_step": 3},
    "iql_prioritized": {"algo": "iql", "sampler": "prioritized"},
    "td3_bc": {"algo": "td3_bc"},
    "rebrac": {"algo": "rebrac"},
    "cql": {"algo": "cql"},
    "cal_ql": {"algo": "cal_ql"},
    "awac": {"algo": "awac"},
    "sac_n": {"algo": "sac_n"},
    "edac": {"algo": "edac"},
    "xql": {"algo": "xql"},
    # Published are two layers of 750, and 100,000 updates before those of the policy.
    "spot": {
        "algo": "spot",
        "hyperparameters": {"num_density_updates": 20_000, "density_hidden_sizes": [256, 256]},
    },
    # Published networks have four layers of 512.
    "fql": {
        "algo": "fql",
        "hyperparameters": {"normalize_q_loss": True, "alpha": 1.0, "hidden_sizes": [256, 256]},
        **_PUBLISHED,
    },
}


def plan(
    data: Path,
    datasets: list[str],
    variants: list[str],
    *,
    seeds: int,
    steps: int,
    online: tuple[int, int | None],
    hidden_sizes: list[int] | None,
    jit_compile: bool,
) -> list[PlannedRun]:
    """Returns the runs of all variants on all datasets; `online` are environment steps, and those of warm-up."""
    sizes = {} if hidden_sizes is None else {"hidden_sizes": hidden_sizes}
    every = max((steps + online[0]) // 20, 1)
    options = {
        **{"steps": steps, "eval_every": every, "log_every": every, "checkpoint_every": steps},
        **({"online_steps": online[0]} if online[0] else {}),
        **({} if online[1] is None else {"warmup_steps": online[1]}),
        **{"reference_returns": str(data / "ref_scores.json"), "jit_compile": jit_compile},
    }
    runs: list[PlannedRun] = []
    for dataset in datasets:
        recipe = None if dataset in CONSTANT_RETURN or online[0] else "iql_locomotion"
        chosen = {
            name: {**VARIANTS[name], **({"reward": recipe} if name.startswith(("iql", "xql")) else {})}
            for name in variants
        }
        for variant in chosen.values():
            variant["hyperparameters"] = {**variant.get("hyperparameters", {}), **sizes}
        if dataset in REBRAC_PRESETS and "rebrac" in chosen:
            chosen["rebrac"]["presets"] = [REBRAC_PRESETS[dataset]]
        for name, variant in chosen.items():
            planned = plan_seeds(data / f"{dataset}.hdf5", TrainingConfig.from_gin(**options, **variant), seeds)
            runs += [replace(run, name=f"{dataset}/{name}/{run.name}", variant=name) for run in planned]
    return runs


def format_row(row: Row) -> str:
    """Returns the results of one variant as a row of the table."""
    if row.last_five is None or row.best is None or row.swing is None:
        return f"| {row.data} | {row.variant} | - | - | - | - |"
    last, deviation = row.last_five
    numbers = [f"{row.data_return:,.0f}", f"{last:,.0f} ± {deviation:,.0f}", f"{row.swing:,.0f}", f"{row.best[0]:,.0f}"]
    return f"| {row.data} | {row.variant} | {' | '.join(numbers)} |"


def record_evaluations(experiment: Experiment, data: Path, folder: Path, *, suffix: str) -> None:
    """Writes all evaluations of complete runs, and the properties of their datasets, to CSV files."""
    for dataset in {planned["data"] for planned in experiment.plan.values()}:
        rows = [
            {**{"dataset": dataset, "agent": planned["variant"], "seed": str(run.identity["seed"])},
             **{"updates": f"{step:.0f}", "mean_return": f"{mean:.1f}", "std_over_episodes": f"{std:.1f}"}}
            for name, planned in experiment.plan.items()
            if planned["data"] == dataset and name in experiment.outcomes
            and experiment.outcomes[name].state == "complete"
            for run in [experiment.runs[name]]
            for step, mean, std in zip(*(run.evaluations[column] for column in ("step", "mean", "std")), strict=True)
        ]  # fmt: skip
        if not rows:
            continue
        record_results(folder / f"{dataset.rpartition('-')[0]}{suffix}.csv", rows)
        found = summarize(load(data / f"{dataset}.hdf5"))
        returns = {"mean_return": f"{found.returns.mean:.1f}", "best_return": f"{found.returns.max:.1f}"}
        row = {"dataset": dataset, "episodes": str(found.episodes), **returns}
        replace_rows(folder / "datasets.csv", DATASET_COLUMNS, 1, [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--algos", nargs="+", default=list(VARIANTS), choices=sorted(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--online", type=int, default=0, help="number of environment steps after these updates")
    parser.add_argument("--warmup-steps", type=int, help="number of environment steps before the first online update")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--hidden-sizes", type=int, nargs="+", help="sizes of the layers of all agents")
    parser.add_argument(
        "--jit-compile", action="store_true", help="compile updates by XLA, which is faster on one core"
    )
    parser.add_argument("--record", type=Path, metavar="DIR", help="directory of the files, such as docs/results")
    arguments = parser.parse_args()
    runs = plan(
        arguments.data,
        arguments.datasets,
        arguments.algos,
        seeds=arguments.seeds,
        steps=arguments.steps,
        online=(arguments.online, arguments.warmup_steps),
        hidden_sizes=arguments.hidden_sizes,
        jit_compile=arguments.jit_compile,
    )
    experiment = run_plan(
        runs, arguments.out, place=choose_placement(arguments.jobs, partial(Progress, quiet=True, notes=False))
    )
    print("| dataset | agent | mean return of the data | last five | swing | best |\n|---|---|---|---|---|---|")
    for row in experiment.rows:
        print(format_row(row))
    for name, reason in experiment.failures.items():
        print(f"{name} failed: {reason}")
    if arguments.record is not None:
        sizes = arguments.hidden_sizes or []
        suffix = "_online" if arguments.online else f"_{'x'.join(map(str, sizes))}" if sizes else ""
        record_evaluations(experiment, arguments.data, arguments.record, suffix=suffix)


if __name__ == "__main__":
    main()
