"""Measures the in-process replay buffers, compared with a plain NumPy sum tree in the same run.

    python benchmarks/bench_replay.py [--runs 5] [--sizes 10000 100000 1000000]

Transitions have HalfCheetah's shape: 17 + 6 + 1 + 1 + 17 float32. The baseline is `PlainBuffer` below: the textbook
buffer of prioritized experience replay with straightforward vectorisation and no limits, whereas the measured buffer
has all limits enabled (uses, staleness, rates). If `cpprb` is installed (`pip install cpprb`), it is compared too. Each
ratio is the median of the ratios of consecutive runs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

# Imported first because it silences TensorFlow.
from bench_sample import serve_with_ingest, time_dataset  # isort: skip
import numpy as np
from bench_data import make_float_episodes, print_machine
from records import parse_arguments, record

from rlds2reverb import TrajectoryWindows, load, sample_dataset, trajectory_columns
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig

try:
    import cpprb
except ImportError:
    cpprb = None

ALPHA, BETA = 0.6, 0.4
SHAPES = {"obs": (17,), "action": (6,), "reward": (), "done": (), "next_obs": (17,)}


class PlainBuffer:
    """Prioritized replay in NumPy: rings of columns, and binary trees of sums and minima updated level by level."""

    def __init__(self, size: int):
        self.size, self.count, self.next = size, 0, 0
        self.columns = {name: np.zeros((size, *shape), np.float32) for name, shape in SHAPES.items()}
        self.half = 1 << (size - 1).bit_length()
        self.sums, self.mins = np.zeros(2 * self.half), np.full(2 * self.half, np.inf)
        self.highest = 1.0

    def extend(self, items: list[dict[str, Any]]) -> None:
        slots = (self.next + np.arange(len(items))) % self.size
        for slot, item in zip(slots, items, strict=True):
            for name, column in self.columns.items():
                column[slot] = item[name]
        self.set_priorities(slots, np.full(len(items), self.highest))
        self.next = (self.next + len(items)) % self.size
        self.count = min(self.count + len(items), self.size)

    def set_priorities(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        nodes = slots + self.half
        self.sums[nodes] = self.mins[nodes] = priorities**ALPHA
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]
            self.mins[nodes] = np.minimum(self.mins[2 * nodes], self.mins[2 * nodes + 1])

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self.set_priorities(slots, priorities + 0.01)
        self.highest = max(self.highest, priorities.max())

    def sample_slots(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        mass = np.random.random(size) * self.sums[1]
        nodes = np.ones(size, np.int64)
        while nodes[0] < self.half:
            left = self.sums[2 * nodes]
            right = mass >= left
            mass = np.where(right, mass - left, mass)
            nodes = 2 * nodes + right
        weights = (self.sums[nodes] / self.mins[1]) ** -BETA
        return nodes - self.half, weights

    def sample(self, size: int) -> list[dict[str, Any]]:
        slots, weights = self.sample_slots(size)
        items = []
        for slot, weight in zip(slots.tolist(), weights.tolist(), strict=True):
            item = {name: column[slot].copy() for name, column in self.columns.items()}
            item.update(IS=weight, index=slot)
            items.append(item)
        return items

    def sample_columns(self, size: int) -> dict[str, np.ndarray]:
        slots, weights = self.sample_slots(size)
        return {**{name: column[slots] for name, column in self.columns.items()}, "IS": weights, "index": slots}


def make_transitions(count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.random((count, *shape), np.float32) for name, shape in SHAPES.items()}


def make_items(columns: dict[str, np.ndarray], count: int) -> list[dict[str, Any]]:
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


def make_config(size: int) -> BufferConfig:
    return BufferConfig(
        max_size=size,
        alpha=ALPHA,
        beta=BETA,
        anneal_step=0,
        max_use=1_000_000,
        max_staleness=1_000_000,
        push_sample_rate_limit=(1e-6, 1e6),
    )


def measure_rate(call: Callable[[], Any], secs: float) -> float:
    """Returns the number of calls per second."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < secs:
        call()
        count += 1
    return count / elapsed


def compare(
    name: str,
    call: Callable[[], Any],
    baseline: Callable[[], Any],
    runs: int,
    secs: float,
    target: str = "",
    *,
    column: str,
) -> float:
    """Prints both rates and the median of their ratios, and returns the first rate."""
    measure_rate(call, 0.1), measure_rate(baseline, 0.1)
    pairs = [(measure_rate(call, secs), measure_rate(baseline, secs)) for _ in range(runs)]
    return print_row(name, pairs, target, column=column)


def print_row(name: str, pairs: list[tuple[float, float]], target: str, *, column: str) -> float:
    """Prints the medians of pairs of rates and of their ratios, and returns the median of the first rates."""
    rate, baseline_rate = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(first / second for first, second in pairs)
    print(f"{name:<62} {rate:>9,.0f}/s {baseline_rate:>9,.0f}/s {ratio:>7.1f}x  {target}".rstrip(), flush=True)
    ratios = [first / second for first, second in pairs]
    record("replay", name, rate, "per s", ratios, column=column)
    return rate


@contextmanager
def run_busy_thread() -> Iterator[None]:
    """Runs a Python thread that never waits."""
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            for _ in range(1000):
                number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def make_buffers(size: int, columns: dict[str, np.ndarray]) -> tuple[AdvancedReplayBuffer, PlainBuffer]:
    buffer, baseline = AdvancedReplayBuffer("buffer", make_config(size), seed=0), PlainBuffer(size)
    priorities = np.random.default_rng(1).uniform(0.1, 2.0, size)
    buffer.extend_columns(columns, priorities=priorities, collect_iters=0)
    for name, column in columns.items():
        baseline.columns[name][:] = column
    baseline.count = size
    baseline.set_priorities(np.arange(size), priorities)
    return buffer, baseline


def compare_methods(
    buffer: AdvancedReplayBuffer,
    baseline: PlainBuffer,
    items: list[dict[str, Any]],
    runs: int,
    secs: float,
    *,
    column: str,
) -> float:
    """Compares all methods for one number of elements, and returns the rate of `sample`."""
    random = np.random.default_rng(2)
    priorities = random.uniform(0.1, 2.0, 256)

    def update() -> None:
        ids = buffer.push_count - 1 - random.integers(buffer.count(), size=256)
        buffer.update({"replay_unique_id": ids, "priority": priorities})

    def update_baseline() -> None:
        baseline.update(random.integers(baseline.count, size=256), priorities)

    def sample_batch() -> Any:
        return buffer.sample_batch(256, 1)

    show = partial(compare, column=column)
    name = "sample(64), dicts"
    rate = show(name, lambda: buffer.sample(64, 1), lambda: baseline.sample(64), runs, secs, "target: 1.5x")
    name = "sample_batch(256) compared with the baseline's dicts"
    show(name, sample_batch, lambda: baseline.sample(256), runs, secs, "target: 5x")
    name = "sample_batch(256) compared with the baseline's columns"
    show(name, sample_batch, lambda: baseline.sample_columns(256), runs, secs)
    show("update of 256", update, update_baseline, runs, secs, "target: 3x")
    show("extend of 64", lambda: buffer.extend(items), lambda: baseline.extend(items), runs, secs, "target: 2x")
    return rate


def compare_with_cpprb(
    size: int, columns: dict[str, np.ndarray], buffer: AdvancedReplayBuffer, runs: int, secs: float
) -> None:
    """Compares a buffer with cpprb's, if it is installed."""
    if cpprb is None:
        return
    env = {name: {"shape": shape or 1, "dtype": np.float32} for name, shape in SHAPES.items()}
    baseline = cpprb.PrioritizedReplayBuffer(size, env, alpha=ALPHA)
    baseline.add(**{name: column.reshape(size, -1) for name, column in columns.items()})
    random, priorities = np.random.default_rng(3), np.random.default_rng(4).uniform(0.1, 2.0, 256)
    pushed = {name: column[:64] for name, column in columns.items()}
    pushed_to_baseline = {name: column.reshape(64, -1) for name, column in pushed.items()}

    def update() -> None:
        ids = buffer.push_count - 1 - random.integers(size, size=256)
        buffer.update({"replay_unique_id": ids, "priority": priorities})

    def update_baseline() -> None:
        baseline.update_priorities(random.integers(size, size=256), priorities)

    print(f"\ncompared with cpprb {metadata.version('cpprb')}, which is written in C++ and has no limits")
    for batch_size in (64, 256):
        compare(
            f"sample_batch({batch_size})",
            partial(buffer.sample_batch, batch_size, 1),
            partial(baseline.sample, batch_size, BETA),
            runs,
            secs,
            column="compared with cpprb",
        )
    compare("update of 256", update, update_baseline, runs, secs, column="compared with cpprb")
    name = "64 transitions as columns"
    compare(
        name,
        lambda: buffer.extend_columns(pushed),
        lambda: baseline.add(**pushed_to_baseline),
        runs,
        secs,
        column="compared with cpprb",
    )


def measure_longest_wait(buffer: AdvancedReplayBuffer) -> tuple[float, float, float]:
    """Returns the longest duration of a sample during a save and without a save, and the duration of the save."""

    def find_longest(is_over: Callable[[], bool]) -> float:
        longest = 0.0
        while not is_over():
            began = time.perf_counter()
            buffer.sample_batch(256, 1)
            longest = max(longest, time.perf_counter() - began)
        return longest

    with tempfile.TemporaryDirectory() as folder:
        end = time.perf_counter() + 1
        without_save = find_longest(lambda: time.perf_counter() > end)
        thread = threading.Thread(target=buffer.save_data, args=(Path(folder) / "saved",))
        began = time.perf_counter()
        thread.start()
        during_save = find_longest(lambda: not thread.is_alive())
        return during_save, without_save, time.perf_counter() - began


def compare_datasets(num_batches: int, runs: int) -> None:
    """Compares `dataset(256)` with a packed Reverb table, both with the same items of two steps."""
    episodes = make_float_episodes(5)
    parts = [trajectory_columns(steps)._asdict() for steps in episodes]
    columns = {
        name: np.concatenate([np.stack([part[name][:-1], part[name][1:]], 1) for part in parts])
        for name in parts[0]
        if name != "policy_info"
    }
    config = BufferConfig(max_size=len(columns["reward"]), alpha=ALPHA, beta=BETA)
    with AdvancedReplayBuffer("buffer", config) as buffer, serve_with_ingest(episodes, "packed") as server:
        buffer.extend_columns(columns)
        assert TrajectoryWindows().item_spec(load(episodes[:1]).step_spec).reward.shape == columns["reward"].shape[1:]
        run = time_dataset(buffer.dataset(256), num_batches)
        run_table = time_dataset(sample_dataset(server.address, "replay", 256), num_batches)
        run(), run_table()
        pairs = [(num_batches / run(), num_batches / run_table()) for _ in range(runs)]
    print_row("dataset(256) of two steps", pairs, "target: 1x", column="compared with a packed table")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--secs", type=float, default=0.5, help="duration of each run")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--batches", type=int, default=1500)
    arguments = parse_arguments(parser)
    runs, secs = arguments.runs, arguments.secs
    print_machine()
    print(f"HalfCheetah's transitions, alpha {ALPHA}; median of {runs} after a warm-up; rate, baseline, ratio")
    rates = {}
    for size in arguments.sizes:
        print(f"\n{size:,} elements", flush=True)
        columns = make_transitions(size)
        items = make_items(columns, 64)
        buffer, baseline = make_buffers(size, columns)
        rates[size] = compare_methods(buffer, baseline, items, runs, secs, column=f"{size:,} elements")
    smallest = arguments.sizes[0]
    share = rates[size] / rates[smallest]
    print(f"\nsample(64) with {size:,} elements: {share:.0%} of the rate with {smallest:,} (target: 50%)")
    print(f"\n{size:,} elements, next to a busy Python thread", flush=True)
    with run_busy_thread():
        compare_methods(buffer, baseline, items, runs, max(secs, 1.0), column="next to a busy thread")
    compare_with_cpprb(size, columns, buffer, runs, secs)
    print()
    waits = [measure_longest_wait(buffer) for _ in range(3)]
    during, without, save_secs = (statistics.median(values) for values in zip(*waits, strict=True))
    print(
        f"longest sample_batch(256) while {size:,} elements are saved: {1e3 * during:.0f} ms of {save_secs:.1f} s "
        f"(without saving {1e3 * without:.0f} ms)"
    )
    began = time.perf_counter()
    new_buffer = AdvancedReplayBuffer("new", make_config(100_000))
    new_buffer.extend_columns({name: column[:100_000] for name, column in columns.items()})
    push_secs = time.perf_counter() - began
    print(f"pushing 100,000 transitions as columns takes {1e3 * push_secs:.0f} ms (target: 500 ms)")
    compare_datasets(arguments.batches, runs)


if __name__ == "__main__":
    main()
