"""How fast the replay buffers in this process are: ours against a plain numpy sum tree, in one run.

    python benchmarks/bench_replay.py [--runs 5] [--sizes 10000 100000 1000000]

Transitions are of HalfCheetah's shape: 17 + 6 + 1 + 1 + 17 float32. The peer is `PlainBuffer` below: the textbook
buffer of prioritized experience replay, vectorised as one does without much ado, with no limits at all; ours has all of
them on (uses, staleness, rates). Where `cpprb` is installed (`pip install cpprb`) it is a row of its own. Each ratio is
the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from rlds2reverb.cli.quiet import import_quietly, silence_logs

silence_logs()
import_quietly("tf_agents.replay_buffers.reverb_utils")

import numpy as np
from bench_data import float_episodes
from bench_sample import filled_by_ingest, through

from rlds2reverb import TrajectoryWindows, load, sample_dataset, trajectory_columns
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig

try:
    import cpprb
except ImportError:
    cpprb = None

ALPHA, BETA = 0.6, 0.4
SHAPES = {"obs": (17,), "action": (6,), "reward": (), "done": (), "next_obs": (17,)}


class PlainBuffer:
    """Prioritized replay in numpy: rings of columns, and binary trees of sums and minima that go up level by level."""

    def __init__(self, size: int):
        self.size, self.count, self.next = size, 0, 0
        self.columns = {name: np.zeros((size, *shape), np.float32) for name, shape in SHAPES.items()}
        self.half = 1 << (size - 1).bit_length()
        self.sums, self.mins = np.zeros(2 * self.half), np.full(2 * self.half, np.inf)
        self.highest = 1.0

    def extend(self, items: list[dict[str, Any]]) -> None:
        places = (self.next + np.arange(len(items))) % self.size
        for place, item in zip(places, items, strict=True):
            for name, column in self.columns.items():
                column[place] = item[name]
        self.set(places, np.full(len(items), self.highest))
        self.next = (self.next + len(items)) % self.size
        self.count = min(self.count + len(items), self.size)

    def set(self, places: np.ndarray, priorities: np.ndarray) -> None:
        nodes = places + self.half
        self.sums[nodes] = self.mins[nodes] = priorities**ALPHA
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]
            self.mins[nodes] = np.minimum(self.mins[2 * nodes], self.mins[2 * nodes + 1])

    def update(self, places: np.ndarray, priorities: np.ndarray) -> None:
        self.set(places, priorities + 0.01)
        self.highest = max(self.highest, priorities.max())

    def draw(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        wanted = np.random.random(size) * self.sums[1]
        nodes = np.ones(size, np.int64)
        while nodes[0] < self.half:
            left = self.sums[2 * nodes]
            right = wanted >= left
            wanted = np.where(right, wanted - left, wanted)
            nodes = 2 * nodes + right
        weights = (self.sums[nodes] / self.mins[1]) ** -BETA
        return nodes - self.half, weights

    def sample(self, size: int) -> list[dict[str, Any]]:
        places, weights = self.draw(size)
        found = []
        for place, weight in zip(places.tolist(), weights.tolist(), strict=True):
            item = {name: column[place].copy() for name, column in self.columns.items()}
            item.update(IS=weight, index=place)
            found.append(item)
        return found

    def sample_columns(self, size: int) -> dict[str, np.ndarray]:
        places, weights = self.draw(size)
        return {**{name: column[places] for name, column in self.columns.items()}, "IS": weights, "index": places}


def transitions(count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.random((count, *shape), np.float32) for name, shape in SHAPES.items()}


def items_of(columns: dict[str, np.ndarray], count: int) -> list[dict[str, Any]]:
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


def limited(size: int) -> BufferConfig:
    return BufferConfig(
        max_size=size,
        alpha=ALPHA,
        beta=BETA,
        anneal_step=0,
        max_use=1_000_000,
        max_staleness=1_000_000,
        push_sample_rate_limit=(1e-6, 1e6),
    )


def rate(call: Callable[[], Any], secs: float) -> float:
    """Calls a second."""
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < secs:
        call()
        count += 1
    return count / passed


def compare(name: str, ours: Callable[[], Any], peer: Callable[[], Any], runs: int, secs: float, asked: str) -> float:
    """Prints a row: both rates, and the median of the ratios; gives our median rate."""
    rate(ours, 0.1), rate(peer, 0.1)
    pairs = [(rate(ours, secs), rate(peer, secs)) for _ in range(runs)]
    mine, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(own / other for own, other in pairs)
    print(f"{name:<62} {mine:>9,.0f}/s {theirs:>9,.0f}/s {ratio:>7.1f}x  {asked}", flush=True)
    return mine


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread of Python that never waits."""
    ended = threading.Event()

    def work() -> None:
        number = 0
        while not ended.is_set():
            for _ in range(1000):
                number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def filled(size: int, columns: dict[str, np.ndarray]) -> tuple[AdvancedReplayBuffer, PlainBuffer]:
    ours, peer = AdvancedReplayBuffer("ours", limited(size), seed=0), PlainBuffer(size)
    priorities = np.random.default_rng(1).uniform(0.1, 2.0, size)
    ours.extend_columns(columns, priorities=priorities, collect_iters=0)
    for name, column in columns.items():
        peer.columns[name][:] = column
    peer.count = size
    peer.set(np.arange(size), priorities)
    return ours, peer


def rows(ours: AdvancedReplayBuffer, peer: PlainBuffer, some: list[dict[str, Any]], runs: int, secs: float) -> float:
    """The rows of one size; gives the rate of `sample`."""
    random = np.random.default_rng(2)
    priorities = random.uniform(0.1, 2.0, 256)

    def update_ours() -> None:
        ours.update(
            {"replay_unique_id": ours.push_count - 1 - random.integers(ours.count(), size=256), "priority": priorities}
        )

    def update_peer() -> None:
        peer.update(random.integers(peer.count, size=256), priorities)

    sampled = compare(
        "sample(64), dicts", lambda: ours.sample(64, 1), lambda: peer.sample(64), runs, secs, "asked: 1.5"
    )
    batch = lambda: ours.sample_batch(256, 1)  # noqa: E731
    compare("sample_batch(256) against the peer's dicts", batch, lambda: peer.sample(256), runs, secs, "asked: 5")
    compare("sample_batch(256) against its draw of columns", batch, lambda: peer.sample_columns(256), runs, secs, "")
    compare("update of 256", update_ours, update_peer, runs, secs, "asked: 3")
    compare("extend of 64", lambda: ours.extend(some), lambda: peer.extend(some), runs, secs, "asked: 2")
    return sampled


def third_party(size: int, columns: dict[str, np.ndarray], ours: AdvancedReplayBuffer, runs: int, secs: float) -> None:
    if cpprb is None:
        return
    env = {name: {"shape": shape or 1, "dtype": np.float32} for name, shape in SHAPES.items()}
    theirs = cpprb.PrioritizedReplayBuffer(size, env, alpha=ALPHA)
    theirs.add(**{name: column.reshape(size, -1) for name, column in columns.items()})
    random, priorities = np.random.default_rng(3), np.random.default_rng(4).uniform(0.1, 2.0, 256)
    some = {name: column[:64] for name, column in columns.items()}
    flat = {name: column.reshape(64, -1) for name, column in some.items()}
    print(f"\nagainst cpprb {metadata.version('cpprb')}, which is C++ and keeps no limits")
    for batch in (64, 256):
        compare(
            f"sample_batch({batch})",
            lambda b=batch: ours.sample_batch(b, 1),
            lambda b=batch: theirs.sample(b, BETA),
            runs,
            secs,
            "",
        )
    compare(
        "update of 256",
        lambda: ours.update(
            {"replay_unique_id": ours.push_count - 1 - random.integers(size, size=256), "priority": priorities}
        ),
        lambda: theirs.update_priorities(random.integers(size, size=256), priorities),
        runs,
        secs,
        "",
    )
    compare("64 transitions as columns", lambda: ours.extend_columns(some), lambda: theirs.add(**flat), runs, secs, "")


def longest_wait(ours: AdvancedReplayBuffer) -> tuple[float, float, float]:
    """Seconds of the longest sample beside a checkpoint, of the longest without one, and of the checkpoint."""

    def longest(until: Callable[[], bool]) -> float:
        found = 0.0
        while not until():
            began = time.perf_counter()
            ours.sample_batch(256, 1)
            found = max(found, time.perf_counter() - began)
        return found

    with tempfile.TemporaryDirectory() as folder:
        end = time.perf_counter() + 1
        alone = longest(lambda: time.perf_counter() > end)
        saving = threading.Thread(target=ours.save_data, args=(Path(folder) / "saved",))
        began = time.perf_counter()
        saving.start()
        beside = longest(lambda: not saving.is_alive())
        return beside, alone, time.perf_counter() - began


def streams(num_batches: int, runs: int) -> None:
    """`dataset(256)` of items of two steps, against a packed Reverb table with the same items."""
    episodes = float_episodes(5)
    parts = [trajectory_columns(steps)._asdict() for steps in episodes]
    columns = {
        name: np.concatenate([np.stack([part[name][:-1], part[name][1:]], 1) for part in parts])
        for name in parts[0]
        if name != "policy_info"
    }
    with AdvancedReplayBuffer("ours", BufferConfig(max_size=len(columns["reward"]), alpha=ALPHA, beta=BETA)) as ours:
        ours.extend_columns(columns)
        with filled_by_ingest(episodes, "packed") as server:
            assert (
                TrajectoryWindows().item_spec(load(episodes[:1]).step_spec).reward.shape == columns["reward"].shape[1:]
            )
            mine = through(ours.dataset(256), num_batches)
            theirs = through(sample_dataset(server.address, "replay", 256), num_batches)
            mine(), theirs()
            pairs = [(num_batches / mine(), num_batches / theirs()) for _ in range(runs)]
    own, other = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    name = "dataset(256) of two steps, against a packed Reverb table"
    print(f"{name:<62} {own:>9,.0f}/s {other:>9,.0f}/s {ratio:>7.1f}x  asked: 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--secs", type=float, default=0.5, help="of each run")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--batches", type=int, default=1500)
    arguments = parser.parse_args()
    runs, secs = arguments.runs, arguments.secs
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}")
    print(f"HalfCheetah's transitions, alpha {ALPHA}; median of {runs} after a warm-up; ours, the peer's, the ratio")
    rates = {}
    for size in arguments.sizes:
        print(f"\n{size:,} elements", flush=True)
        columns = transitions(size)
        some = items_of(columns, 64)
        ours, peer = filled(size, columns)
        rates[size] = rows(ours, peer, some, runs, secs)
    first = arguments.sizes[0]
    print(f"\nsample(64) of {size:,} elements: {rates[size] / rates[first]:.0%} of the rate of {first:,}; asked: 50%")
    print(f"\n{size:,} elements, beside one busy Python thread", flush=True)
    with busy_thread():
        rows(ours, peer, some, runs, max(secs, 1.0))
    third_party(size, columns, ours, runs, secs)
    print()
    waits = [longest_wait(ours) for _ in range(3)]
    beside, alone, took = (statistics.median(values) for values in zip(*waits, strict=True))
    print(
        f"longest wait for sample_batch(256) while {size:,} elements are saved: {1e3 * beside:.0f} ms of {took:.1f} s "
        f"(without saving {1e3 * alone:.0f} ms); asked: 50 ms"
    )
    began = time.perf_counter()
    fresh = AdvancedReplayBuffer("fresh", limited(100_000))
    fresh.extend_columns({name: column[:100_000] for name, column in columns.items()})
    print(f"100,000 transitions in columns are pushed in {1e3 * (time.perf_counter() - began):.0f} ms; asked: 500 ms")
    streams(arguments.batches, runs)


if __name__ == "__main__":
    main()
