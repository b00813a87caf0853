"""How fast adders are in a tf.data map: against TF-Agents' GAE and against loops over transitions, in one run.

    python benchmarks/bench_adders.py [--runs 5] [--episodes 200]

Episodes are columns in memory, of HalfCheetah's shape with a value for each step. Every way gives every episode's
advantages (or n-step transitions) to the same loop. The loops over dicts, as DI-engine has them, run in numpy; in a
map they first have to make the dicts of the columns, so that they are timed without that as well.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

from rlds2reverb.cli.quiet import import_quietly, silence_logs

silence_logs()
import_quietly("tf_agents.utils.value_ops")

import numpy as np
import tensorflow as tf
import tree
from bench_data import float_episodes
from rlds2reverb.adders import GAE, Adder, NStep, generalized_advantage_estimation
from rlds2reverb.adders.steps import transitions
from tf_agents.utils import value_ops

GAMMA, LAMBDA, N = 0.99, 0.95, 3


def identity(columns: dict) -> dict:
    return columns


def needed(columns: dict) -> dict:
    """What advantages are made of."""
    rewards, discounts = transitions(columns)
    values = columns["value"]
    return {"rewards": rewards, "discounts": discounts, "values": values[:-1], "bootstrap_value": values[-1]}


def our_gae(columns: dict) -> tf.Tensor:
    return generalized_advantage_estimation(**columns, gamma=GAMMA, lambda_=LAMBDA)


def peer_gae(columns: dict) -> tf.Tensor:
    return value_ops.generalized_advantage_estimation(
        columns["values"][:, None],
        columns["bootstrap_value"][None],
        GAMMA * columns["discounts"][:, None],
        columns["rewards"][:, None],
        LAMBDA,
    )[:, 0]


def peer_episode(columns: dict) -> dict:
    """What `GAE` does for an episode, by TF-Agents' function."""
    advantages = tf.pad(peer_gae(needed(columns)), [[0, 1]])
    return {**columns, "advantage": advantages, "return_": advantages + columns["value"]}


def transition_dicts(columns: dict) -> list[dict]:
    count = len(columns["reward"]) - 1
    return [
        {
            "obs": columns["observation"][step],
            "next_obs": columns["observation"][step + 1],
            "action": columns["action"][step],
            "reward": columns["reward"][step],
            "value": columns["value"][step],
            "done": columns["is_terminal"][step + 1],
        }
        for step in range(count)
    ]


def loop_gae(data: list[dict], last_value: float) -> list[dict]:
    advantage, following = 0.0, last_value
    for transition in reversed(data):
        factor = GAMMA * (1 - transition["done"])
        delta = transition["reward"] + factor * following - transition["value"]
        advantage = delta + LAMBDA * factor * advantage
        transition["adv"] = advantage
        following = transition["value"]
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


def in_python(function: Callable[[dict], np.ndarray]) -> Callable[[dict], dict]:
    """A loop over dicts in the same map; the dicts are made of the columns, which is counted."""

    def mapped(columns: dict) -> dict:
        names = sorted(columns)

        def call(*arrays: np.ndarray) -> np.ndarray:
            return function(dict(zip(names, arrays, strict=True)))

        return {**columns, "out": tf.numpy_function(call, [columns[name] for name in names], tf.float32)}

    return mapped


def dict_gae(columns: dict) -> np.ndarray:
    data = loop_gae(transition_dicts(columns), columns["value"][-1])
    return np.array([transition["adv"] for transition in data], np.float32)


def dict_n_step(columns: dict) -> np.ndarray:
    data = loop_n_step(transition_dicts(columns))
    return np.array([transition["reward"] for transition in data], np.float32)


def measure(name: str, mapped: tf.data.Dataset, num_episodes: int, runs: int) -> float:
    """Median seconds an episode."""

    def run() -> float:
        began = time.perf_counter()
        for _ in mapped:
            pass
        return (time.perf_counter() - began) / num_episodes

    run()
    seconds = statistics.median(run() for _ in range(runs))
    print(f"{name:<60} {1e6 * seconds:>9,.0f} us an episode", flush=True)
    return seconds


def measure_ready(name: str, function: Callable[[list[dict]], object], episodes: list[dict], runs: int) -> float:
    """Median seconds an episode of a loop over dicts that are there already, outside of tf.data."""
    ready = [transition_dicts(steps) for steps in episodes[:20]]

    def run() -> float:
        began = time.perf_counter()
        for data in ready:
            function(data)
        return (time.perf_counter() - began) / len(ready)

    run()
    seconds = statistics.median(run() for _ in range(runs))
    print(f"{name:<60} {1e6 * seconds:>9,.0f} us an episode", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=200)
    arguments = parser.parse_args()
    episodes = [{**steps, "value": steps["reward"] / 2} for steps in float_episodes(arguments.episodes)]
    spec = tree.map_structure(lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), episodes[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(episodes), output_signature=spec).cache()
    few = dataset.take(20)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, TF {tf.__version__}")
    length = len(episodes[0]["reward"])
    print(f"{len(episodes)} episodes of {length:,} steps; median of {arguments.runs} after a warm-up\n")
    for _ in dataset:
        pass
    runs = arguments.runs
    print("rewards, discounts and values to advantages")
    columns = dataset.map(needed).cache()
    for _ in columns:
        pass
    all_of_them = len(episodes)
    own_floor = measure("an identity map", columns.map(identity), all_of_them, runs)
    own = measure("generalized_advantage_estimation", columns.map(our_gae), all_of_them, runs)
    peer = measure("TF-Agents' generalized_advantage_estimation", columns.take(20).map(peer_gae), 20, runs)
    print("\nepisodes, all columns")
    n_steps = NStep(N, GAMMA)
    floor = measure("an identity map", dataset.map(identity), all_of_them, runs)
    gae = measure("GAE", dataset.map(GAE(GAMMA, LAMBDA).rows), all_of_them, runs)
    whole_peer = measure("the same columns by TF-Agents' function", few.map(peer_episode), 20, runs)
    loop = measure("GAE by a loop over dicts", few.map(in_python(dict_gae)), 20, runs)
    n_step = measure(f"NStep({N})", dataset.map(n_steps.rows), all_of_them, runs)
    n_step_loop = measure(f"{N}-step transitions by a loop over dicts", few.map(in_python(dict_n_step)), 20, runs)
    measure(f"NStep({N}) cut into items, in batches of 256", dataset.apply(n_steps).batch(256), all_of_them, runs)
    print("\ndicts that are there already, no tf.data")
    ready = measure_ready("GAE by a loop over dicts", lambda data: loop_gae(data, 0.0), episodes, runs)
    ready_n_step = measure_ready(f"{N}-step transitions by a loop over dicts", loop_n_step, episodes, runs)
    own_dicts = measure_ready("Adder.get_gae", lambda data: Adder.get_gae(data, 0.0, GAMMA, LAMBDA), episodes, runs)
    print(
        f"\ngeneralized_advantage_estimation is {peer / own:.1f}x TF-Agents' (asked: 20), GAE {whole_peer / gae:.1f}x"
    )
    print(f"GAE is {loop / gae:.1f}x the loop (asked: 3), NStep {n_step_loop / n_step:.1f}x (asked: 5)")
    print(f"without making dicts: GAE {ready / gae:.1f}x, NStep {ready_n_step / n_step:.1f}x", end=", ")
    print(f"Adder.get_gae {ready / own_dicts:.1f}x")
    print(f"the identity map takes {own_floor / own:.0%}, {floor / gae:.0%} and {floor / n_step:.0%} of these times")


if __name__ == "__main__":
    main()
