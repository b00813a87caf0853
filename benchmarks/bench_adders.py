"""Measures adders in a tf.data map, compared with TF-Agents' GAE and with loops over transitions in the same run.

    python benchmarks/bench_adders.py [--runs 5] [--episodes 200]

Episodes are columns in memory, of HalfCheetah's shape and with a value for each step. Every method passes every
episode's advantages (or n-step transitions) to the same consumer. The loops over dicts, which follow DI-engine, run in
NumPy. In a map they have to create the dicts from the columns first, so they are also timed without that step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

from rlds2reverb.cli.quiet import import_quietly, silence_logs

silence_logs()
import_quietly("tf_agents.utils.value_ops")

import numpy as np
import tensorflow as tf
import tree
from bench_data import make_float_episodes, print_machine
from records import parse_arguments, record
from tf_agents.utils import value_ops

from rlds2reverb.adders import GAE, NStep, generalized_advantage_estimation
from rlds2reverb.adders.di_engine import Adder
from rlds2reverb.adders.step_fields import get_rewards_and_discounts
from rlds2reverb.adders.tf_data import map_to_rows

GAMMA, LAMBDA, N = 0.99, 0.95, 3


def identity(columns: dict) -> dict:
    return columns


def select_inputs(columns: dict) -> dict:
    """Returns the columns that advantages are computed from."""
    rewards, discounts = get_rewards_and_discounts(columns)
    values = columns["value"]
    return {"rewards": rewards, "discounts": discounts, "values": values[:-1], "bootstrap_value": values[-1]}


def compute_advantages(columns: dict) -> tf.Tensor:
    return generalized_advantage_estimation(**columns, gamma=GAMMA, lambda_=LAMBDA)


def compute_baseline_advantages(columns: dict) -> tf.Tensor:
    return value_ops.generalized_advantage_estimation(
        columns["values"][:, None],
        columns["bootstrap_value"][None],
        GAMMA * columns["discounts"][:, None],
        columns["rewards"][:, None],
        LAMBDA,
    )[:, 0]


def add_baseline_advantages(columns: dict) -> dict:
    """Adds the same columns as `GAE` to one episode, with TF-Agents' function."""
    advantages = tf.pad(compute_baseline_advantages(select_inputs(columns)), [[0, 1]])
    return {**columns, "advantage": advantages, "return_": advantages + columns["value"]}


def make_transition_dicts(columns: dict) -> list[dict]:
    return [
        {
            "obs": columns["observation"][step],
            "next_obs": columns["observation"][step + 1],
            "action": columns["action"][step],
            "reward": columns["reward"][step],
            "value": columns["value"][step],
            "done": columns["is_terminal"][step + 1],
        }
        for step in range(len(columns["reward"]) - 1)
    ]


def loop_gae(data: list[dict], last_value: float) -> list[dict]:
    advantage, next_value = 0.0, last_value
    for transition in reversed(data):
        factor = GAMMA * (1 - transition["done"])
        delta = transition["reward"] + factor * next_value - transition["value"]
        advantage = delta + LAMBDA * factor * advantage
        transition["adv"] = advantage
        next_value = transition["value"]
    return data


def loop_n_step(data: list[dict]) -> list[dict]:
    out = []
    for first, transition in enumerate(data):
        reward, last = 0.0, first
        for step in range(first, min(first + N, len(data))):
            reward, last = reward + GAMMA ** (step - first) * data[step]["reward"], step
            if data[step]["done"]:
                break
        changed = {"reward": reward, "next_obs": data[last]["next_obs"], "done": data[last]["done"]}
        out.append({**transition, **changed, "value_gamma": GAMMA ** (last - first + 1)})
    return out


def run_in_python(function: Callable[[dict], np.ndarray]) -> Callable[[dict], dict]:
    """Returns a function for `Dataset.map` that runs a loop over dicts, including the time to create the dicts."""

    def map_episode(columns: dict) -> dict:
        names = sorted(columns)

        def call(*arrays: np.ndarray) -> np.ndarray:
            return function(dict(zip(names, arrays, strict=True)))

        return {**columns, "out": tf.numpy_function(call, [columns[name] for name in names], tf.float32)}

    return map_episode


def dict_gae(columns: dict) -> np.ndarray:
    data = loop_gae(make_transition_dicts(columns), columns["value"][-1])
    return np.array([transition["adv"] for transition in data], np.float32)


def dict_n_step(columns: dict) -> np.ndarray:
    data = loop_n_step(make_transition_dicts(columns))
    return np.array([transition["reward"] for transition in data], np.float32)


def measure(name: str, results: Iterable[object], num_episodes: int, runs: int) -> float:
    """Prints and returns the median time per episode of iterating over the results, in seconds."""

    def run() -> float:
        began = time.perf_counter()
        for _ in results:
            pass
        return (time.perf_counter() - began) / num_episodes

    run()
    seconds = statistics.median(run() for _ in range(runs))
    print(f"{name:<60} {1e6 * seconds:>9,.0f} us per episode", flush=True)
    return seconds


class LoopResults:
    """The results of a function for existing dicts of transitions, computed again in each iteration without tf.data."""

    def __init__(self, function: Callable[[list[dict]], object], data: list[list[dict]]):
        self._function, self._data = function, data

    def __iter__(self) -> Iterator[object]:
        return map(self._function, self._data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=200)
    arguments = parse_arguments(parser)
    episodes = [{**steps, "value": steps["reward"] / 2} for steps in make_float_episodes(arguments.episodes)]
    spec = tree.map_structure(lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), episodes[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(episodes), output_signature=spec).cache()
    few = dataset.take(20)
    print_machine()
    length = len(episodes[0]["reward"])
    print(f"{len(episodes)} episodes of {length:,} steps; median of {arguments.runs} after a warm-up\n")
    for _ in dataset:
        pass
    runs, num_episodes = arguments.runs, len(episodes)
    print("rewards, discounts and values to advantages")
    inputs = dataset.map(select_inputs).cache()
    for _ in inputs:
        pass
    inputs_identity = measure("identity map", inputs.map(identity), num_episodes, runs)
    advantages = measure("generalized_advantage_estimation", inputs.map(compute_advantages), num_episodes, runs)
    name = "TF-Agents' generalized_advantage_estimation (baseline)"
    advantages_baseline = measure(name, inputs.take(20).map(compute_baseline_advantages), 20, runs)
    print("\nepisodes, all columns")
    n_steps = NStep(N, GAMMA)
    identity_time = measure("identity map", dataset.map(identity), num_episodes, runs)
    gae = measure("GAE", dataset.map(GAE(GAMMA, LAMBDA).make_rows), num_episodes, runs)
    gae_baseline = measure("the same columns with TF-Agents' function", few.map(add_baseline_advantages), 20, runs)
    gae_loop = measure("GAE as a loop over dicts", few.map(run_in_python(dict_gae)), 20, runs)
    n_step = measure(f"NStep({N})", map_to_rows(n_steps, dataset), num_episodes, runs)
    n_step_loop = measure(f"{N}-step transitions as a loop over dicts", few.map(run_in_python(dict_n_step)), 20, runs)
    measure(f"NStep({N}) cut into items, batches of 256", dataset.apply(n_steps).batch(256), num_episodes, runs)
    print("\nexisting dicts, without tf.data")
    data = [make_transition_dicts(steps) for steps in episodes[:20]]
    results = LoopResults(lambda transitions: loop_gae(transitions, 0.0), data)
    dicts_gae = measure("GAE as a loop over dicts", results, len(data), runs)
    results = LoopResults(loop_n_step, data)
    dicts_n_step = measure(f"{N}-step transitions as a loop over dicts", results, len(data), runs)
    results = LoopResults(lambda transitions: Adder.get_gae(transitions, 0.0, GAMMA, LAMBDA), data)
    di_engine = measure("Adder.get_gae", results, len(data), runs)
    ratio = advantages_baseline / advantages
    for task, secs, baseline, baseline_secs in (
        ("advantages from rewards, discounts and values", advantages, "TF-Agents' function", advantages_baseline),
        ("GAE, all columns", gae, "TF-Agents' function with the same columns", gae_baseline),
        ("NStep(3)", n_step, "a loop over dicts", n_step_loop),
    ):
        record("adders", task, 1e6 * secs, "µs per episode", [baseline_secs / secs], baseline=baseline)
    print(f"\ngeneralized_advantage_estimation: {ratio:.1f}x TF-Agents' (target: 20x), GAE: {gae_baseline / gae:.1f}x")
    print(f"GAE: {gae_loop / gae:.1f}x the loop (target: 3x), NStep: {n_step_loop / n_step:.1f}x (target: 5x)")
    print(f"without creating dicts: GAE {dicts_gae / gae:.1f}x, NStep {dicts_n_step / n_step:.1f}x", end=", ")
    print(f"Adder.get_gae {dicts_gae / di_engine:.1f}x")
    shares = f"{inputs_identity / advantages:.0%}, {identity_time / gae:.0%} and {identity_time / n_step:.0%}"
    print(f"the identity map accounts for {shares} of the times of advantages, GAE and NStep")


if __name__ == "__main__":
    main()
