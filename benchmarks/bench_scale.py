"""Measures conversion on Beam against plain conversion, and sampling from one, two and three servers.

    python benchmarks/bench_scale.py [--runs 5] [--episodes 500]

The data have HalfCheetah's shape, 1,000 transitions per episode, in a D4RL file. The time of a conversion on Beam
includes the start of its processes, which is most of it here. Each sampled server runs in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from bench_ingest import TWO_STEPS  # isort: skip  (Imported first because it silences TensorFlow.)
from bench_data import make_float_episodes, print_machine, write_d4rl

from rlds2reverb import ReplayServer, ingest, sample_dataset
from rlds2reverb.beam import BeamOptions, convert_with_beam

BATCH_SIZE = 256
NUM_BATCHES = 400
SLICE_BYTES = 16 << 20
PROCESSES = "--direct_running_mode=multi_processing"


def time_conversions(source: Path, folder: Path) -> dict[str, Callable[[], float]]:
    def time_one(convert: Callable[[Path], object]) -> float:
        out = folder / "converted"
        shutil.rmtree(out, ignore_errors=True)
        began = time.perf_counter()
        convert(out)
        return time.perf_counter() - began

    def on_beam(*flags: str) -> Callable[[], float]:
        options = BeamOptions(flags=flags, slice_bytes=SLICE_BYTES)
        return lambda: time_one(lambda out: convert_with_beam(source, out, beam_options=options))

    return {
        "plain": lambda: time_one(lambda out: ingest(source, out)),
        "Beam, in this process": on_beam(),
        "Beam, 1 worker process": on_beam(PROCESSES, "--direct_num_workers=1"),
        "Beam, 2 worker processes": on_beam(PROCESSES, "--direct_num_workers=2"),
    }


def serve(channel: Connection, directory: Path) -> None:
    with ReplayServer.from_directory(directory) as server:
        channel.send(server.address)
        channel.recv()


@contextlib.contextmanager
def start_servers(directories: list[Path]):
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        addresses = []
        for directory in directories:
            channel, child = context.Pipe()
            process = context.Process(target=serve, args=(child, directory))
            process.start()
            stack.callback(process.join)
            stack.callback(channel.send, None)
            addresses.append(channel.recv())
        yield addresses


def time_sampling(addresses: list[str]) -> float:
    """Returns batches per second."""
    batches = iter(sample_dataset(addresses, "replay", BATCH_SIZE))
    for _ in range(NUM_BATCHES // 10):
        next(batches)
    began = time.perf_counter()
    for _ in range(NUM_BATCHES):
        next(batches)
    return NUM_BATCHES / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=500)
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "data.hdf5"
        write_d4rl(source, make_float_episodes(arguments.episodes))
        megabytes = source.stat().st_size / 1e6
        size = f"{arguments.episodes * 1000:,} transitions ({megabytes:.0f} MB)"
        print(f"\nConversion of {size}, median of {arguments.runs}")
        baseline = 0.0
        for label, run in time_conversions(source, folder).items():
            run()
            seconds = statistics.median(run() for _ in range(arguments.runs))
            baseline = baseline or seconds
            print(f"  {label:<28}{seconds:8.2f} s{seconds / baseline:8.2f}x the time of plain conversion")
        print(f"\nSampling batches of {BATCH_SIZE} with prioritized:0.6, median of {arguments.runs}")
        rates: dict[int, float] = {}
        for num_shards in (1, 2, 3):
            shards = [folder / f"{num_shards}/shard_{shard}" for shard in range(num_shards)]
            ingest(source, shards, adder=TWO_STEPS)
            with start_servers(shards) as addresses:
                rates[num_shards] = statistics.median(time_sampling(addresses) for _ in range(arguments.runs))
            ratio = rates[num_shards] / rates[1]
            print(f"  {num_shards} server{'s' * (num_shards > 1):<21}{rates[num_shards]:8,.0f} batches/s{ratio:8.2f}x")


if __name__ == "__main__":
    main()
