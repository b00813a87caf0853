"""Measures the steps per second of batched environments, compared with Gymnasium and TF-Agents in one run.

    python benchmarks/bench_envs.py [--envs HalfCheetah-v5 CartPole-v1] [--num-envs 8] [--runs 5] [--secs 1] [--busy N]

Every method steps the same number of environments with the same random actions. Ours are TF-Agents environments with
time limits, as `rlds2reverb.envs.load` creates them; Gymnasium's are `SyncVectorEnv` and `AsyncVectorEnv` of
`gymnasium.make`, and TF-Agents' is `ParallelPyEnvironment`. The methods take turns, and the figures are medians over
the rounds. With `--busy N`, N other processes compute at the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rlds2reverb.cli.quiet import import_quietly, silence_logs

silence_logs()
import_quietly("tf_agents.environments.parallel_py_environment")

import gymnasium
import numpy as np
from bench_data import print_machine
from records import parse_arguments, record
from tf_agents.environments import parallel_py_environment
from tf_agents.system import system_multiprocessing

from rlds2reverb.envs import load

OURS = "rlds2reverb.envs.load(num_parallel=N)"


@contextlib.contextmanager
def ours(name: str, num_envs: int) -> Iterator[Callable[[Any], Any]]:
    with load(name, num_parallel=num_envs, seed=0) as env:
        env.reset()
        yield env.step


@contextlib.contextmanager
def gymnasium_vector(kind: Any, name: str, num_envs: int) -> Iterator[Callable[[Any], Any]]:
    env = kind([functools.partial(gymnasium.make, name)] * num_envs)
    env.reset(seed=0)
    yield env.step
    env.close()


@contextlib.contextmanager
def tf_agents_parallel(name: str, num_envs: int) -> Iterator[Callable[[Any], Any]]:
    env = parallel_py_environment.ParallelPyEnvironment([functools.partial(load, name)] * num_envs)
    env.reset()
    yield env.step
    env.close()


def find_methods() -> dict[str, Callable[[str, int], Any]]:
    """Returns the methods by name."""
    return {
        OURS: ours,
        "gymnasium SyncVectorEnv": functools.partial(gymnasium_vector, gymnasium.vector.SyncVectorEnv),
        "gymnasium AsyncVectorEnv": functools.partial(gymnasium_vector, gymnasium.vector.AsyncVectorEnv),
        "TF-Agents ParallelPyEnvironment": tf_agents_parallel,
    }


def make_actions(name: str, num_envs: int) -> list[np.ndarray]:
    """Returns random batches of actions."""
    with gymnasium.make(name) as env:
        space = env.action_space
        space.seed(0)
        return [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(64)]


def measure(step: Callable[[Any], Any], actions: list[np.ndarray], secs: float) -> float:
    """Returns the number of environment steps per second."""
    num_steps, start = 0, time.perf_counter()
    while not num_steps or time.perf_counter() - start < secs:
        for action in actions:
            step(action)
        num_steps += len(actions) * len(actions[0])
    return num_steps / (time.perf_counter() - start)


def bench(name: str, num_envs: int, runs: int, secs: float) -> None:
    actions, rates = make_actions(name, num_envs), {method: [] for method in find_methods()}
    for _ in range(runs):
        for method, create in find_methods().items():
            with create(name, num_envs) as step:
                measure(step, actions, secs / 4)
                rates[method].append(measure(step, actions, secs))
    medians = {method: statistics.median(values) for method, values in rates.items()}
    print(f"\n{name}, {num_envs} environments")
    for method, rate in medians.items():
        ratio = "" if method == OURS else f"   {medians[OURS] / rate:5.2f}x"
        record("environments", method, rate, "steps/s", column=f"{name}, {num_envs} environments")
        print(f"  {method:<40} {rate:>9,.0f} steps/s{ratio}")


def main(_: Any = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", nargs="+", default=["HalfCheetah-v5", "CartPole-v1"])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--secs", type=float, default=1.0)
    parser.add_argument("--busy", type=int, default=0, metavar="N")
    arguments = parse_arguments(parser)
    print_machine()
    if arguments.busy:
        print(f"with {arguments.busy} busy process{'es' * (arguments.busy > 1)}")
    with contextlib.ExitStack() as stack:
        for _ in range(arguments.busy):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        for name in arguments.envs:
            bench(name, arguments.num_envs, arguments.runs, arguments.secs)


if __name__ == "__main__":
    system_multiprocessing.handle_main(main, argv=sys.argv[:1])  # The other arguments are not absl flags.
