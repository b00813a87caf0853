"""Measures updates/s of every agent, compared with d3rlpy, JAX-CORL and the limit of matrix products in the same run.

    python benchmarks/bench_agents.py [--algos iql edac] [--rounds 5] [--d3rlpy PYTHON] [--jax-corl PYTHON CHECKOUT]

Agents learn from random episodes in memory with HalfCheetah's shapes, with the published batch size and networks.
PYTHON is an interpreter with d3rlpy or with the packages of JAX-CORL, and CHECKOUT the directory of JAX-CORL's code;
their agents have the same batch size and hidden layers. The limit is the number of updates/s if an update were nothing
but products of large matrices with as many floating-point operations as its own products. Rates are medians; ratios are
those of the faster one of our two columns within a round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlds2reverb.cli.quiet import silence_logs

silence_logs()

import numpy as np
from bench_data import print_machine
from matrix_products import count_flops, time_products
from records import parse_arguments, record

from rlds2reverb.learners.agents import get_hyperparameters
from rlds2reverb.learners.algorithms import ALGORITHMS, get_algorithm
from rlds2reverb.training import Progress, Training, TrainingConfig
from rlds2reverb.types.episodes import from_transitions

OBSERVATION_SIZE, ACTION_SIZE = 17, 6
NUM_EPISODES, EPISODE_LENGTH = 20, 200
#: Number of updates before the measurement, of which the first one builds the graph.
NUM_WARM_UP = 10
#: Options that are numbers of updates after which something else happens.
STEP_OPTIONS = ("steps", "log_every", "checkpoint_every")


@contextmanager
def open_training(algo: str, **options: Any) -> Iterator[Training]:
    """Yields a running training of an agent on random data in memory, after its first updates; see `train`."""
    is_discrete = get_algorithm(algo).actions == "discrete"
    bounds = (0, ACTION_SIZE - 1) if is_discrete else (-1, 1)
    fixed: dict[str, Any] = {"env": None, "track": (), "action_bounds": bounds}
    fixed |= dict.fromkeys(STEP_OPTIONS, 1_000_000)
    if "num_density_updates" in get_hyperparameters(algo):
        fixed["hyperparameters"] = {"num_density_updates": 0}  # Most updates of a run come after those of the density.
    episodes, config = make_episodes(is_discrete=is_discrete), TrainingConfig(algo, **fixed, **options)
    with (
        tempfile.TemporaryDirectory() as folder,
        Training(episodes, config, folder, progress=Progress(quiet=True, notes=False)) as training,
        training.learner.running(),
    ):
        training.learner.advance(NUM_WARM_UP)
        yield training


def time_updates(training: Training, *, secs: float) -> float:
    """Returns the number of updates per second of a running training, measured for at least `secs`."""
    learner, count = training.learner, 1
    first, began = learner.step, time.perf_counter()
    while time.perf_counter() - began < secs:
        learner.advance(learner.step + count)
        count *= 2
    return (learner.step - first) / (time.perf_counter() - began)


def make_episodes(*, is_discrete: bool) -> list[dict[str, Any]]:
    random, shape = np.random.default_rng(0), (NUM_EPISODES, EPISODE_LENGTH, ACTION_SIZE)
    actions = random.uniform(-1, 1, shape).astype(np.float32)
    return [
        from_transitions(
            random.normal(size=(EPISODE_LENGTH + 1, OBSERVATION_SIZE)).astype(np.float32),
            random.integers(0, ACTION_SIZE, EPISODE_LENGTH) if is_discrete else actions[number],
            rewards=random.normal(size=EPISODE_LENGTH).astype(np.float32),
            terminated=False,
        )
        for number in range(NUM_EPISODES)
    ]


def time_peer(command: list[str], options: dict[str, Any]) -> float:
    """Returns updates/s of a different library, measured in a separate process; NaN if it does not have the agent."""
    result = subprocess.run(
        [*command, json.dumps(options)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
    )
    rate = json.loads(result.stdout.splitlines()[-1])
    return float("nan") if rate is None else rate


def measure(algo: str, rounds: int, secs: float, peers: dict[str, list[str]]) -> str:
    """Returns the results of an agent as a row of the table."""
    with ExitStack() as stack:
        plain, fused = (stack.enter_context(open_training(algo, jit_compile=jit)) for jit in (False, True))
        rate = time_updates(plain, secs=secs)
        updates = max(int(rate * secs), 1)
        batches = stack.enter_context(plain.data.open_batches(plain.config))
        flops = count_flops(plain.agent.train, batches.feed.experience_spec)
        options = {
            "algo": algo,
            "batch_size": plain.config.batch_size,
            "hidden_sizes": list(plain.config.resolved_hyperparameters.get("hidden_sizes", ())),
            "updates": updates,
            "is_discrete": ALGORITHMS[algo].actions == "discrete",
        }
        workloads = [partial(time_updates, plain, secs=secs), partial(time_updates, fused, secs=secs),
                     time_products(flops, updates)]  # fmt: skip
        workloads += [partial(time_peer, command, options) for command in peers.values()]
        rates = np.array([[run() for run in workloads] for _ in range(rounds)])
    medians, best = np.median(rates, axis=0), rates[:, :2].max(axis=1)
    record("agents", algo, flops / 1e6, "MFLOP", column="operations")
    for column, rate in zip(("without XLA", "with XLA", "limit"), medians, strict=False):
        record("agents", algo, rate, "updates/s", column=column)
    cells = [f"{flops / 1e6:,.0f}", *map(format_rate, medians[:3]), f"{np.median(best / rates[:, 2]):.0%}"]
    for peer, rate, median in zip(peers, rates.T[3:], medians[3:], strict=True):
        if np.isnan(median):
            cells += ["-", "-"]
        else:
            record("agents", algo, median, "updates/s", best / rate, column=peer, baseline=peer)
            cells += [format_rate(median), f"{np.median(best / rate):.1f}x"]
    return f"| {algo} | {' | '.join(cells)} |"


def format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secs", type=float, default=2.0)
    parser.add_argument("--d3rlpy", metavar="PYTHON")
    parser.add_argument("--jax-corl", nargs=2, metavar=("PYTHON", "CHECKOUT"))
    arguments = parse_arguments(parser)
    peers = {
        name: [python, str(Path(__file__).parent / f"{file}.py"), *rest]
        for name, file, (python, *rest) in [
            ("d3rlpy", "d3rlpy_updates", [arguments.d3rlpy]),
            ("JAX-CORL", "jax_corl_updates", arguments.jax_corl or [None]),
        ]
        if python is not None
    }
    print_machine()
    columns = ["agent", "MFLOP", "updates/s", "with XLA", "limit", "share of limit"]
    for peer in peers:
        columns += [peer, "ratio"]
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for algo in arguments.algos:
        print(measure(algo, arguments.rounds, arguments.secs, peers), flush=True)


if __name__ == "__main__":
    main()
