"""How fast batches come out of a prioritized table: ours against TF-Agents' buffer, on the same items, in one run.

    python benchmarks/bench_sample.py [--runs 5] [--batches 1600]

Data are of HalfCheetah's shape: 17 + 6 floats, items of 2 steps, batches of 256. The peer's table is filled by
TF-Agents' own trajectory observer, as its users do; ours by `ingest`. Servers are in this process unless said. The peer
gets fewer batches: a rate is a rate.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from rlds2reverb.cli.quiet import import_quietly, silence_logs

silence_logs()
import_quietly("tf_agents.replay_buffers.reverb_utils")

import numpy as np
import tensorflow as tf
import tree
from bench_data import float_episodes
from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils
from tf_agents.replay_buffers import rlds_to_reverb as reference

from rlds2reverb import ReplayServer, TableConfig, TrajectoryWindows, ingest, load, sample_dataset, trajectory_columns
from rlds2reverb._encoding.packing import Packing, packed_signature

BATCH_SIZE = 256
ALPHA = 0.6

#: Called with each batch.
Each = Callable[[Any], None]


@contextlib.contextmanager
def filled_by_the_observer(episodes: list[dict]) -> Iterator[ReplayServer]:
    columns = tree.map_structure(lambda *parts: np.stack(parts), *episodes)
    steps = tf.data.Dataset.from_tensor_slices(columns)
    dataset = steps.map(lambda nest: {"steps": tf.data.Dataset.from_tensor_slices(nest)})
    spec = reference.tensor_spec.add_outer_dim(reference.create_trajectory_data_spec(dataset))
    with ReplayServer([TableConfig()], TrajectoryWindows().item_spec(load(episodes[:1]).step_spec)) as server:
        observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "replay", sequence_length=2)
        observer.get_table_signature = lambda: spec  # it compares bounds and names, which Reverb does not keep
        reference.push_rlds_to_reverb(dataset, observer)
        observer.close()
        yield server


@contextlib.contextmanager
def filled_by_ingest(episodes: list[dict], layout: str) -> Iterator[ReplayServer]:
    signature = TrajectoryWindows().item_spec(load(episodes[:1]).step_spec)
    if layout == "packed":
        signature = packed_signature(Packing(signature, squeeze=False))
    with ReplayServer([TableConfig()], signature) as server:
        ingest(episodes, server.address, layout=layout)
        yield server


def serve(channel: Connection, num_episodes: int, layout: str) -> None:
    with filled_by_ingest(float_episodes(num_episodes), layout) as server:
        channel.send(server.address)
        channel.recv()


@contextlib.contextmanager
def filled_elsewhere(num_episodes: int, layout: str) -> Iterator[str]:
    """The address of a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, num_episodes, layout))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def peer_dataset(server: ReplayServer) -> tf.data.Dataset:
    """As TF-Agents' users call it, with its defaults."""
    signature = server.client.server_info(timeout=10)["replay"].signature
    spec = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), signature)
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        spec, table_name="replay", sequence_length=2, server_address=server.address
    )
    return buffer.as_dataset(sample_batch_size=BATCH_SIZE, num_steps=2)


def through(dataset: tf.data.Dataset, num_batches: int, each: Each = lambda batch: None) -> Callable[[], float]:
    """Seconds for so many batches, from an iterator that has begun."""

    def run() -> float:
        batches = iter(dataset)
        for _ in range(50):
            next(batches)
        began = time.perf_counter()
        for _ in range(num_batches):
            each(next(batches))
        return time.perf_counter() - began

    return run


def write_back_with_client(server: ReplayServer, keys_of: Callable[[Any], tf.Tensor]) -> Each:
    random = np.random.default_rng(0)

    def each(batch: Any) -> None:
        keys = keys_of(batch).numpy().ravel().tolist()
        priorities = random.uniform(0.5, 1.5, len(keys)).tolist()
        server.client.mutate_priorities("replay", dict(zip(keys, priorities, strict=True)))

    return each


def columns_of(episodes: list[dict]) -> tuple[list[np.ndarray], np.ndarray]:
    """All items as arrays in memory `[N, 2, ...]`, and the running sum of their powers of priorities."""
    parts = [tree.flatten(trajectory_columns(steps)) for steps in episodes]
    windows = [[np.stack([column[:-1], column[1:]], axis=1) for column in columns] for columns in parts]
    joined = [np.concatenate(columns) for columns in zip(*windows, strict=True)]
    return joined, np.cumsum(np.ones(len(joined[0])) ** ALPHA)


def numpy_gather(episodes: list[dict], num_batches: int) -> Callable[[], float]:
    """A limit: prioritized sampling of arrays in this process."""
    columns, sums = columns_of(episodes)
    random = np.random.default_rng(0)

    def run() -> float:
        began = time.perf_counter()
        for _ in range(num_batches):
            rows = np.searchsorted(sums, random.uniform(0, sums[-1], BATCH_SIZE))
            [column[rows] for column in columns]
        return time.perf_counter() - began

    return run


def tensorflow_gather(episodes: list[dict]) -> tf.data.Dataset:
    """A limit: the same in a tf.data pipeline."""
    arrays, sums = columns_of(episodes)
    columns, sums = [tf.constant(column) for column in arrays], tf.constant(sums)

    def draw(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = tf.searchsorted(sums, tf.random.uniform([BATCH_SIZE], 0, sums[-1], tf.float64))
        return tuple(tf.gather(column, rows) for column in columns)

    return tf.data.Dataset.range(1 << 40).map(draw).prefetch(1)


def measure(name: str, num_batches: int, run: Callable[[], float], runs: int, peer: float | None, asked: str) -> float:
    run()
    rate = statistics.median(num_batches * BATCH_SIZE / run() for _ in range(runs))
    ratio = f"{rate / peer:>7.1f}x" if peer else "        "
    print(f"{name:<62} {rate:>11,.0f} items/s {ratio} {asked}", flush=True)
    return rate


def compare(episodes: list[dict], runs: int, num_batches: int) -> None:
    def ours(name: str, servers: Any, peer: float, each: Each = lambda batch: None, asked: str = "") -> float:
        dataset = sample_dataset(servers, "replay", BATCH_SIZE)
        return measure(name, num_batches, through(dataset, num_batches, each), runs, peer, asked)

    few = max(num_batches // 8, 10)
    with filled_by_the_observer(episodes) as server:
        peer = measure("the peer: as_dataset, its defaults", few, through(peer_dataset(server), few), runs, None, "")
        each = write_back_with_client(server, lambda batch: batch[1].key[:, 0])
        wrote = through(peer_dataset(server), few, each)
        peer_writing = measure("the peer, priorities written back every batch", few, wrote, runs, peer, "")
        ours("sample_dataset, the table that the observer filled", server.address, peer)
    best = 0.0  # of the layouts, one of which a user would choose
    for layout in ("columns", "packed"):
        with filled_by_ingest(episodes, layout) as server:
            best = max(best, ours(f"sample_dataset, {layout}", server.address, peer, asked="asked: 10"))
            each = write_back_with_client(server, lambda batch: batch.info.key)
            ours(f"sample_dataset, {layout}, priorities written back", server.address, peer, each, "asked: 4")
            print(f"{'':<62} (the peer that writes back: {peer_writing:,.0f} items/s)")
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(filled_by_ingest(episodes, "packed")).address for _ in range(2)]
        ours("sample_dataset, packed, two servers", both, peer)
    print("\nservers in processes of their own")
    for layout in ("columns", "packed"):
        with filled_elsewhere(len(episodes), layout) as address:
            ours(f"sample_dataset, {layout}", address, peer)
    print("\nthe limit: no server, arrays in memory")
    many = 5 * num_batches
    limits: Sequence[tuple[str, Callable[[], float]]] = (
        ("numpy, searchsorted and fancy indexing", numpy_gather(episodes, many)),
        ("tf.searchsorted and tf.gather in tf.data", through(tensorflow_gather(episodes), many)),
    )
    for name, run in limits:
        limit = measure(name, many, run, runs, peer, "")
        print(f"{'sample_dataset, the better layout, is at':<62} {best / limit:>11.0%} of that")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batches", type=int, default=1600)
    parser.add_argument("--episodes", type=int, default=5)
    arguments = parser.parse_args()
    episodes = float_episodes(arguments.episodes)
    items = sum(len(steps["reward"]) - 1 for steps in episodes)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, TF {tf.__version__}")
    print(f"{items:,} items of 2 steps, HalfCheetah's shape, prioritized (alpha {ALPHA}), batches of {BATCH_SIZE}")
    print(f"importance weights included; median of {arguments.runs} after a warm-up\n")
    compare(episodes, arguments.runs, arguments.batches)


if __name__ == "__main__":
    main()
