"""Measures how the cost of conversion, sampling, learning and collection changes with the number of processes.

    python benchmarks/bench_scale.py [conversion] [sampling] [cluster] [--runs 5] [--episodes 500]

The data have HalfCheetah's shape, 1,000 transitions per episode, in a D4RL file. The time of a conversion on Beam
includes the start of its processes, which is most of it here. Each sampled server runs in its own process.

`cluster` starts Ray clusters on this machine, which requires an environment without pydantic 1. It measures updates per
second, environment steps per second with one and two collectors, and for the latter the age of the policy and the bytes
on the loopback interface per update, which include Ray's own.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench_ingest import TWO_STEPS  # isort: skip  (Imported first because it silences TensorFlow.)
from bench_data import make_float_episodes, print_machine, write_d4rl
from records import parse_arguments, record

from rlds2reverb import ReplayServer, ingest, sample_dataset
from rlds2reverb.beam import BeamOptions, convert_with_beam
from rlds2reverb.training import TrainingConfig

BATCH_SIZE = 256
NUM_BATCHES = 400
SLICE_BYTES = 16 << 20
PARTS = ("conversion", "sampling", "cluster")
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
    with ReplayServer(directory=directory) as server:
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


def measure_conversion(source: Path, folder: Path, runs: int, num_episodes: int) -> None:
    megabytes = source.stat().st_size / 1e6
    print(f"\nConversion of {num_episodes * 1000:,} transitions ({megabytes:.0f} MB), median of {runs}")
    baseline = 0.0
    for label, run in time_conversions(source, folder).items():
        run()
        seconds = statistics.median(run() for _ in range(runs))
        baseline = baseline or seconds
        record("scale", label, num_episodes * 1000 / seconds, "steps/s")
        print(f"  {label:<28}{seconds:8.2f} s{seconds / baseline:8.2f}x the time of plain conversion")


def measure_sampling(source: Path, folder: Path, runs: int) -> None:
    print(f"\nSampling batches of {BATCH_SIZE} with prioritized:0.6, median of {runs}")
    rates: dict[int, float] = {}
    for num_shards in (1, 2, 3):
        shards = [folder / f"{num_shards}/shard_{shard}" for shard in range(num_shards)]
        ingest(source, shards, adder=TWO_STEPS)
        with start_servers(shards) as addresses:
            rates[num_shards] = statistics.median(time_sampling(addresses) for _ in range(runs))
        ratio = rates[num_shards] / rates[1]
        record("scale", f"batches from {num_shards} servers", rates[num_shards], "batches/s", [ratio])
        print(f"  {num_shards} server{'s' * (num_shards > 1):<21}{rates[num_shards]:8,.0f} batches/s{ratio:8.2f}x")


def read_loopback_bytes() -> int:
    """Returns the bytes that were received on the loopback interface."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def run_cluster(source: Any, config: TrainingConfig, folder: Path, **cluster: int) -> dict[str, float]:
    """Trains on a cluster; returns rates and policy age at the middle of the run, and bytes per update."""
    from rlds2reverb.training.cluster import ClusterConfig, ClusterTraining

    observed: list[dict[str, Any]] = []

    has_ended = threading.Event()

    def observe(training: ClusterTraining) -> None:
        while not has_ended.wait(1):
            with contextlib.suppress(Exception):
                observed.append({**training.status(), "bytes": read_loopback_bytes(), "secs": time.monotonic()})

    run_dir = folder / f"run_{time.monotonic_ns()}"
    with ClusterTraining(source, config, run_dir, ClusterConfig(num_cpus=0.01, **cluster)) as training:
        observer = threading.Thread(target=observe, args=(training,))
        observer.start()
        try:
            training.run()
        finally:
            has_ended.set()
            observer.join()
    first, last = (
        next(status for status in observed if status["step"] >= part * config.num_updates) for part in (0.2, 0.95)
    )
    secs, updates = last["secs"] - first["secs"], last["step"] - first["step"]
    running = [status for status in observed if first["secs"] <= status["secs"] <= last["secs"]]
    return {
        "updates": updates / secs,
        "steps": max(status["collected_per_sec"] for status in observed),
        "age": statistics.mean(status["policy_age_updates"] for status in running),
        "bytes": (last["bytes"] - first["bytes"]) / max(updates, 1),
    }


def measure_cluster(source: Path, folder: Path) -> None:
    offline = TrainingConfig("td3_bc", env=None, steps=2_000, log_every=100, checkpoint_every=10_000)
    print("\nTD3+BC with batches of 256, from one replay server")
    measured, rates = run_cluster(source, offline, folder), {}
    print(f"  {measured['updates']:,.0f} updates/s, {measured['bytes'] / 1e3:,.0f} kB/update")
    online = TrainingConfig(
        "sac", env="HalfCheetah-v5", steps=0, online_steps=6_000, warmup_steps=1_000, updates_per_step=0.2,
        eval_every=1_000_000, eval_episodes=1
    )  # fmt: skip
    print("\nSAC in HalfCheetah, collectors with one environment each, not limited by the learner")
    for num_collectors in (1, 2):
        measured = run_cluster(None, online, folder, num_collectors=num_collectors, lead_steps=1_000_000)
        rates[num_collectors] = measured["steps"]
        print(
            f"  {num_collectors} collector{'s' * (num_collectors > 1):<18}{measured['steps']:8,.0f} steps/s"
            f"{rates[num_collectors] / rates[1]:8.2f}x   policy {measured['age']:,.0f} updates old, "
            f"{measured['bytes'] / 1e3:,.0f} kB/update"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=500)
    arguments = parse_arguments(parser)
    print_machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "data.hdf5"
        write_d4rl(source, make_float_episodes(arguments.episodes))
        parts = arguments.parts or PARTS
        if "conversion" in parts:
            measure_conversion(source, folder, arguments.runs, arguments.episodes)
        if "sampling" in parts:
            measure_sampling(source, folder, arguments.runs)
        if "cluster" in parts:
            measure_cluster(source, folder)


if __name__ == "__main__":
    main()
