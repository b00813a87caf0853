"""Measures updates/s of every agent, compared with d3rlpy and the limit of matrix products in the same run.

    python benchmarks/bench_agents.py [--algos iql edac] [--rounds 5] [--d3rlpy PYTHON]

Agents learn from random episodes in memory with HalfCheetah's shapes, with the published batch size and networks, as
`rlds2reverb agents --speed` measures them. PYTHON is an interpreter with d3rlpy, whose agents have the same batch size
and hidden layers. The limit is the number of updates/s if an update were nothing but products of large matrices with as
many floating-point operations as its own products. Rates are medians; ratios are those within a round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rlds2reverb.cli.quiet import silence_logs

silence_logs()

import numpy as np
from bench_data import print_machine
from matrix_products import count_flops, time_products

from rlds2reverb.learners.algorithms import ALGORITHMS
from rlds2reverb.training.agent_speed import open_training, time_updates


def time_d3rlpy(python: str, algo: str, batch_size: int, hidden_sizes: list[int], updates: int) -> float:
    """Returns updates/s of d3rlpy's agent, measured in another process; NaN if there is none."""
    options = {"algo": algo, "batch_size": batch_size, "hidden_sizes": hidden_sizes, "updates": updates,
               "is_discrete": ALGORITHMS[algo].actions == "discrete"}  # fmt: skip
    command = [python, str(Path(__file__).parent / "d3rlpy_updates.py"), json.dumps(options)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    rate = json.loads(result.stdout.splitlines()[-1])
    return float("nan") if rate is None else rate


def measure(algo: str, rounds: int, secs: float, python: str | None) -> str:
    """Returns the results of an agent as a row of the table."""
    with ExitStack() as stack:
        plain, fused = (stack.enter_context(open_training(algo, jit_compile=jit)) for jit in (False, True))
        sizes = plain.config.resolved_hyperparameters.get("hidden_sizes", ())
        rate = time_updates(plain, secs=secs)
        updates = max(int(rate * secs), 1)
        batches = stack.enter_context(plain.data.open_batches(plain.config))
        flops = count_flops(plain.agent.train, batches.feed.experience_spec)
        workloads = [partial(time_updates, plain, secs=secs), partial(time_updates, fused, secs=secs),
                     time_products(flops, updates)]  # fmt: skip
        if python is not None:
            workloads.append(partial(time_d3rlpy, python, algo, plain.config.batch_size, list(sizes), updates))
        rates = np.array([[run() for run in workloads] for _ in range(rounds)])
    medians = [f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" for rate in np.median(rates, axis=0)]
    best = rates[:, :2].max(axis=1)
    cells = [f"{flops / 1e6:,.0f}", *medians[:3], f"{np.median(best / rates[:, 2]):.0%}"]
    if python is not None:
        ratio = np.median(best / rates[:, 3])
        cells += ["-", "-"] if np.isnan(ratio) else [medians[3], f"{ratio:.1f}x"]
    return f"| {algo} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secs", type=float, default=2.0)
    parser.add_argument("--d3rlpy", metavar="PYTHON")
    arguments = parser.parse_args()
    print_machine()
    columns = ["agent", "MFLOP", "updates/s", "with XLA", "limit", "share of limit"]
    columns += ["d3rlpy", "ratio"] if arguments.d3rlpy else []
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for algo in arguments.algos:
        print(measure(algo, arguments.rounds, arguments.secs, arguments.d3rlpy), flush=True)


if __name__ == "__main__":
    main()
