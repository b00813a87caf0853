"""Measures sampling from a prioritized table, compared with TF-Agents' buffer on the same items in the same run.

    python benchmarks/bench_sample.py [--runs 5] [--batches 1600]

The data have HalfCheetah's shape: 17 + 6 floats, items of 2 steps, batches of 256. The baseline's table is filled by
TF-Agents' own trajectory observer, as its users do, and the others by `ingest`. Servers run in this process unless
stated otherwise. The baseline samples fewer batches, which does not affect its rate.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

# Imported first because it silences TensorFlow.
from bench_ingest import make_rlds_dataset, push_with_tf_agents, start_server  # isort: skip
import numpy as np
import reverb
import tensorflow as tf
import tree
from bench_data import make_float_episodes, print_machine
from records import parse_arguments, record
from tf_agents.replay_buffers import reverb_replay_buffer

from rlds2reverb import ReplayServer, TableConfig, TrajectoryWindows, ingest, load, sample_dataset, trajectory_columns
from rlds2reverb.reverb.sampling import sample as sample_arrays
from rlds2reverb.reverb.wire.packing import Packing, packed_signature

BATCH_SIZE = 256
ALPHA = 0.6

#: Called with each batch.
OnBatch = Callable[[Any], None]


@contextlib.contextmanager
def serve_with_observer(episodes: list[dict]) -> Iterator[ReplayServer]:
    with start_server(episodes) as server:
        push_with_tf_agents(make_rlds_dataset(episodes), server)
        yield server


@contextlib.contextmanager
def serve_with_ingest(episodes: list[dict], layout: str) -> Iterator[ReplayServer]:
    signature = TrajectoryWindows().item_spec(load(episodes[:1]).step_spec)
    if layout == "packed":
        signature = packed_signature(Packing(signature, squeeze=False))
    with ReplayServer([TableConfig()], signature, serve_batches=True) as server:
        ingest(episodes, server.address, layout=layout)
        yield server


def serve(channel: Connection, num_episodes: int, layout: str) -> None:
    with serve_with_ingest(make_float_episodes(num_episodes), layout) as server:
        channel.send(server.address)
        channel.recv()


@contextlib.contextmanager
def serve_in_process(num_episodes: int, layout: str) -> Iterator[str]:
    """Yields the address of a server in a separate process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, num_episodes, layout))
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def make_baseline_dataset(server: ReplayServer) -> tf.data.Dataset:
    """Returns the dataset of TF-Agents' buffer with its defaults."""
    signature = server.client.server_info(timeout=10)["replay"].signature
    spec = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), signature)
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        spec, table_name="replay", sequence_length=2, server_address=server.address
    )
    return buffer.as_dataset(sample_batch_size=BATCH_SIZE, num_steps=2)


def time_dataset(
    dataset: Iterable[Any], num_batches: int, on_batch: OnBatch = lambda batch: None
) -> Callable[[], float]:
    """Returns a function that times `num_batches` batches of a dataset, after a warm-up, in seconds."""

    def run() -> float:
        batches = iter(dataset)
        for _ in range(50):
            next(batches)
        began = time.perf_counter()
        for _ in range(num_batches):
            on_batch(next(batches))
        return time.perf_counter() - began

    return run


def make_priority_writer(server: ReplayServer, get_keys: Callable[[Any], tf.Tensor]) -> OnBatch:
    """Returns a function that writes random priorities for the items of a batch."""
    random = np.random.default_rng(0)

    def write(batch: Any) -> None:
        keys = get_keys(batch).numpy().ravel().tolist()
        priorities = random.uniform(0.5, 1.5, len(keys)).tolist()
        server.client.mutate_priorities("replay", dict(zip(keys, priorities, strict=True)))

    return write


def make_columns(episodes: list[dict]) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns all items as arrays `[N, 2, ...]`, and the cumulative sum of their priorities to the power of alpha."""
    parts = [tree.flatten(trajectory_columns(steps)) for steps in episodes]
    windows = [[np.stack([column[:-1], column[1:]], axis=1) for column in columns] for columns in parts]
    joined = [np.concatenate(columns) for columns in zip(*windows, strict=True)]
    return joined, np.cumsum(np.ones(len(joined[0])) ** ALPHA)


def time_numpy_gather(episodes: list[dict], num_batches: int) -> Callable[[], float]:
    """Returns a function that times prioritized sampling of arrays in this process, an upper limit."""
    columns, sums = make_columns(episodes)
    random = np.random.default_rng(0)

    def run() -> float:
        began = time.perf_counter()
        for _ in range(num_batches):
            rows = np.searchsorted(sums, random.uniform(0, sums[-1], BATCH_SIZE))
            [column[rows] for column in columns]
        return time.perf_counter() - began

    return run


def make_gather_dataset(episodes: list[dict]) -> tf.data.Dataset:
    """Returns a dataset of prioritized samples of tensors in memory, an upper limit for `tf.data`."""
    arrays, sums = make_columns(episodes)
    columns, sums = [tf.constant(column) for column in arrays], tf.constant(sums)

    def sample(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = tf.searchsorted(sums, tf.random.uniform([BATCH_SIZE], 0, sums[-1], tf.float64))
        return tuple(tf.gather(column, rows) for column in columns)

    return tf.data.Dataset.range(1 << 40).map(sample).prefetch(1)


BASELINE = "`ReverbReplayBuffer.as_dataset`"
#: The main tasks, by layout of the table.
TASKS = {
    "columns": f"batches of {BATCH_SIZE} from a prioritized table of columns",
    "packed": f"batches of {BATCH_SIZE} from a packed prioritized table",
}


def measure(
    name: str, num_batches: int, run: Callable[[], float], runs: int, baseline: float | None = None, target: str = ""
) -> float:
    """Prints and returns a median rate in items/s."""
    run()
    rate = statistics.median(num_batches * BATCH_SIZE / run() for _ in range(runs))
    ratio = f"{rate / baseline:>7.1f}x" if baseline else "        "
    print(f"{name:<62} {rate:>11,.0f} items/s {ratio} {target}".rstrip(), flush=True)
    record(
        "sampling", name, rate, "items/s", [rate / baseline] if baseline else [], baseline=BASELINE if baseline else ""
    )
    return rate


def compare(episodes: list[dict], runs: int, num_batches: int) -> None:
    def sample(name: str, servers: Any, on_batch: OnBatch = lambda batch: None, target: str = "") -> float:
        dataset = sample_dataset(servers, "replay", BATCH_SIZE)
        return measure(name, num_batches, time_dataset(dataset, num_batches, on_batch), runs, baseline, target)

    few = max(num_batches // 8, 10)
    with serve_with_observer(episodes) as server:
        run = time_dataset(make_baseline_dataset(server), few)
        baseline = measure(BASELINE, few, run, runs)
        write = make_priority_writer(server, lambda batch: batch[1].key[:, 0])
        run = time_dataset(make_baseline_dataset(server), few, write)
        writing_baseline = measure(f"{BASELINE}, priorities written back", few, run, runs, baseline)
        sample("the table that TF-Agents' observer filled", server.address)
    best = 0.0  # The rate of the faster layout, since users can choose it.
    for layout in ("columns", "packed"):
        with serve_with_ingest(episodes, layout) as server:
            best = max(best, sample(TASKS[layout], server.address, target="target: 10x"))
            write = make_priority_writer(server, lambda batch: batch.info.key)
            sample(f"{layout}, priorities written back", server.address, write, "target: 4x")
            print(f"{'':<62} (as_dataset with priorities written back: {writing_baseline:,.0f} items/s)")
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(serve_with_ingest(episodes, "packed")).address for _ in range(2)]
        sample("packed, two servers", both)
    print("\nservers in separate processes")
    for layout in ("columns", "packed"):
        with serve_in_process(len(episodes), layout) as address:
            dataset = reverb.TrajectoryDataset.from_table_signature(
                address, "replay", max_in_flight_samples_per_worker=256, num_workers_per_iterator=2
            ).batch(BATCH_SIZE)
            run = time_dataset(dataset.prefetch(1), num_batches)
            measure(
                f"`reverb.TrajectoryDataset`, {layout}, server in another process", num_batches, run, runs, baseline
            )
            sample(f"{layout}, server in another process", address)
            with sample_arrays(address, "replay", BATCH_SIZE) as batches:
                measure(
                    f"`sample`, {layout}, server in another process",
                    num_batches,
                    time_dataset(batches, num_batches),
                    runs,
                    baseline,
                )
    print("\nupper limit: no server, arrays in memory")
    many = 5 * num_batches
    limits = {
        "no server: NumPy, searchsorted and fancy indexing": time_numpy_gather(episodes, many),
        "no server: tf.searchsorted and tf.gather in tf.data": time_dataset(make_gather_dataset(episodes), many),
    }
    for name, run in limits.items():
        limit = measure(name, many, run, runs, baseline)
        print(f"{'sample_dataset, the faster layout, reaches':<62} {best / limit:>11.0%} of that")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batches", type=int, default=1600)
    parser.add_argument("--episodes", type=int, default=5)
    arguments = parse_arguments(parser)
    episodes = make_float_episodes(arguments.episodes)
    items = sum(len(steps["reward"]) - 1 for steps in episodes)
    print_machine()
    print(f"{items:,} items of 2 steps, HalfCheetah's shape, prioritized (alpha {ALPHA}), batches of {BATCH_SIZE}")
    print(f"importance weights included; median of {arguments.runs} after a warm-up\n")
    compare(episodes, arguments.runs, arguments.batches)


if __name__ == "__main__":
    main()
