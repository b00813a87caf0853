"""Measures writing episodes to Reverb, compared with TF-Agents' function and Reverb's own writers in the same run.

    python benchmarks/bench_ingest.py [--runs 5] [--episodes 100]

The data have HalfCheetah's shape: 17 + 6 floats, 1000 transitions per episode. The baselines are slow and therefore
get fewer of the same episodes, which does not affect their rates. A measurement ends as soon as the server has received
all items or the directory is complete.
"""

from __future__ import annotations

import argparse
import queue
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

from rlds2reverb.cli.quiet import import_quietly, silence_logs

silence_logs()
import_quietly("tf_agents.replay_buffers.reverb_utils")

import grpc
import numpy as np
import reverb
import tensorflow as tf
import tree
from bench_data import make_float_episodes, make_image_episodes, print_machine, write_d4rl
from records import parse_arguments, record
from tf_agents.replay_buffers import reverb_utils, rlds_to_reverb as reference

from rlds2reverb import ReplayServer, TableConfig, ingest, load, push_rlds_to_reverb, trajectory_columns
from rlds2reverb.adders import NStep
from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.reverb.client import confirmed_keys
from rlds2reverb.reverb.wire.encoder import Encoder
from rlds2reverb.reverb.writing.item_conversion import make_conversion
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.items import EpisodeAdder

TWO_STEPS = TrajectoryWindows()


def make_rlds_dataset(episodes: list[dict]) -> tf.data.Dataset:
    """Returns episodes as a nested RLDS dataset."""
    columns = tree.map_structure(lambda *parts: np.stack(parts), *episodes)
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    return dataset.map(lambda steps: {"steps": tf.data.Dataset.from_tensor_slices(steps)})


def start_server(episodes: list[dict], adder: EpisodeAdder = TWO_STEPS) -> ReplayServer:
    return ReplayServer([TableConfig()], adder.item_spec(load(episodes[:1]).step_spec))


def require_items(server: ReplayServer, expected: int) -> None:
    size = server.client.server_info(timeout=10)["replay"].current_size
    assert size == expected, (size, expected)


def count_items(episodes: list[dict], length: int = 2) -> int:
    return sum(len(steps["reward"]) - length + 1 for steps in episodes)


def count_steps(episodes: list[dict]) -> int:
    return sum(len(steps["reward"]) for steps in episodes)


def push_with_tf_agents(dataset: tf.data.Dataset, server: ReplayServer) -> None:
    """Pushes a dataset with TF-Agents' function and its trajectory observer, as its users do."""
    spec = reference.tensor_spec.add_outer_dim(reference.create_trajectory_data_spec(dataset))
    observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "replay", sequence_length=2)
    observer.get_table_signature = lambda: spec  # The observer compares bounds and names, which Reverb drops.
    reference.push_rlds_to_reverb(dataset, observer)
    observer.close()


def push_with_rlds2reverb(dataset: tf.data.Dataset, server: ReplayServer) -> None:
    observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "replay", sequence_length=2)
    push_rlds_to_reverb(dataset, observer, fast=True)


def time_push(push: Callable[[tf.data.Dataset, ReplayServer], None], episodes: list[dict]) -> Callable[[], float]:
    dataset = make_rlds_dataset(episodes)

    def run() -> float:
        with start_server(episodes) as server:
            began = time.perf_counter()
            push(dataset, server)
            seconds = time.perf_counter() - began
            require_items(server, count_items(episodes))
        return seconds

    return run


def time_ingest(
    source: object, episodes: list[dict], adder: EpisodeAdder = TWO_STEPS, **options: object
) -> Callable[[], float]:
    def run() -> float:
        with start_server(episodes, adder) as server:
            began = time.perf_counter()
            report = ingest(source, server.address, adder=adder, **options)
            seconds = time.perf_counter() - began
            require_items(server, report.items)
        return seconds

    return run


def time_directory(source: Path, folder: Path) -> Callable[[], float]:
    def run() -> float:
        out = folder / "converted"
        shutil.rmtree(out, ignore_errors=True)
        began = time.perf_counter()
        ingest(source, out)
        return time.perf_counter() - began

    return run


def write_structured(client: reverb.Client, episodes: list[dict], length: int) -> None:
    """Writes episodes with Reverb's fastest public writer, row by row, flushed often enough to avoid its warnings."""
    columns = trajectory_columns(episodes[0])
    pattern = reverb.structured_writer.pattern_from_transform(
        [None] * len(tree.flatten(columns)),
        lambda step: tree.unflatten_as(columns, [column[-length:] for column in step]),
    )
    writer = client.structured_writer([reverb.structured_writer.create_config(pattern, "replay", [])])
    for steps in episodes:
        for step, row in enumerate(zip(*tree.flatten(trajectory_columns(steps)), strict=True)):
            writer.append(list(row))
            if step % 10 == 0:
                writer.flush(30)
        writer.end_episode()


def time_structured_writer(episodes: list[dict], length: int) -> Callable[[], float]:
    def run() -> float:
        with start_server(episodes, TrajectoryWindows(length)) as server:
            began = time.perf_counter()
            write_structured(server.client, episodes, length)
            seconds = time.perf_counter() - began
            require_items(server, count_items(episodes, length))
        return seconds

    return run


def encode_requests(episodes: list[dict]) -> Iterator[bytes]:
    source = load(episodes)
    conversion = make_conversion(source, TrajectoryWindows(), 1.0, on_invalid="error", layout="columns")
    blocks = (block for batch in batch_episodes(source) for block in conversion.convert(batch))
    for batch in Encoder(conversion.specs, ["replay"]).encode(blocks):
        yield from batch.insert_requests()


def time_only_read(source: object) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        for episode in load(source):
            trajectory_columns(episode.steps)
        return time.perf_counter() - began

    return run


def time_only_encode(episodes: list[dict]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        for _ in encode_requests(episodes):
            pass
        return time.perf_counter() - began

    return run


def time_only_copy(episodes: list[dict]) -> Callable[[], float]:
    """Returns a function that times copying the messages over loopback gRPC to a server that discards them.

    Its rate is an upper limit for any writer.
    """
    requests = list(encode_requests(episodes))

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.stream_stream_rpc_method_handler(lambda messages, _: iter([b"" for m in messages if not m]))

    def run() -> float:
        options = [("grpc.max_receive_message_length", -1)]
        server = grpc.server(futures.ThreadPoolExecutor(2), [Handler()], options=options)
        port = server.add_insecure_port("localhost:0")
        server.start()
        with grpc.insecure_channel(f"localhost:{port}") as channel:
            began = time.perf_counter()
            list(channel.stream_stream("/copy")(iter(requests)))
            seconds = time.perf_counter() - began
        server.stop(None)
        return seconds

    return run


def time_only_insert(episodes: list[dict]) -> Callable[[], float]:
    """Returns a function that times inserting messages encoded beforehand, which is the cost of the server alone."""
    requests, num_items = list(encode_requests(episodes)), count_items(episodes)

    def run() -> float:
        with start_server(episodes) as server, grpc.insecure_channel(server.address) as channel:
            sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            began = time.perf_counter()
            responses = channel.stream_stream("/deepmind.reverb.ReverbService/InsertStream")(iter(sent.get, None))
            for request in requests:
                sent.put(request)
            confirmed = 0
            while confirmed < num_items:
                confirmed += len(confirmed_keys(next(responses)))
            seconds = time.perf_counter() - began
            sent.put(None)
            require_items(server, num_items)
        return seconds

    return run


@dataclass
class Workload:
    """A workload: a number of steps, a function that returns their duration, and the target ratio to the baseline."""

    name: str
    num_steps: int
    run: Callable[[], float]
    target: float | None = None


def compare(section: str, runs: int, *workloads: Workload) -> dict[str, float]:
    """Times the workloads in turn in each round, so that other load affects all alike; the first is the baseline.

    Returns:
      The median steps/s of each workload, by name.
    """
    for workload in workloads:
        workload.run()
    rates = np.array([[workload.num_steps / workload.run() for workload in workloads] for _ in range(runs)])
    for workload, rate, ratios in zip(workloads, rates.T, (rates / rates[:, :1]).T, strict=True):
        target = f"target: {workload.target}x" if workload.target else ""
        if workload is workloads[0]:
            ratio = ""
            record(section, workload.name, np.median(rate), "steps/s")
        else:
            ratio = f"{np.median(ratios):>7.3g}x  ({ratios.min():.3g} to {ratios.max():.3g})"
            record(section, workload.name, np.median(rate), "steps/s", ratios, baseline=workloads[0].name)
        print(f"{workload.name:<60} {np.median(rate):>11,.0f} steps/s {ratio:<28} {target}".rstrip(), flush=True)
    return dict(zip([workload.name for workload in workloads], np.median(rates, axis=0).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=100)
    arguments = parse_arguments(parser)
    runs, many = arguments.runs, make_float_episodes(arguments.episodes)
    few, steps = many[:5], count_steps(many)
    print_machine()
    print(f"{steps:,} steps in {len(many)} episodes, HalfCheetah's shape; the baselines get 5 of them")
    print(f"one prioritized table; medians of {runs} rounds; ratios within a round (minimum to maximum)\n")
    with tempfile.TemporaryDirectory() as name:
        d4rl, million, folder = Path(name) / "halfcheetah.hdf5", Path(name) / "halfcheetah-million.hdf5", Path(name)
        write_d4rl(d4rl, many)
        write_d4rl(million, many * (1_000_000 // steps + 1))
        million_steps = load(million).num_rows
        print("items of 2 steps; the baseline is TF-Agents' push_rlds_to_reverb with its trajectory observer")
        rates = compare(
            "ingestion",
            runs,
            Workload("TF-Agents' `push_rlds_to_reverb`", count_steps(few), time_push(push_with_tf_agents, few)),
            Workload(
                "`push_rlds_to_reverb(fast=True)`, nested RLDS dataset to a table",
                steps,
                time_push(push_with_rlds2reverb, many),
                100,
            ),
            Workload("nested RLDS dataset to a table", steps, time_ingest(make_rlds_dataset(many), many), 100),
            Workload("D4RL file to a table", steps, time_ingest(d4rl, many), 150),
            Workload(
                "D4RL file to a table, without validation first", steps, time_ingest(d4rl, many, on_invalid="keep")
            ),
            Workload("D4RL file to a directory", steps, time_directory(d4rl, folder), 250),
            Workload(
                f"D4RL file of {million_steps:,} steps to a directory",
                million_steps,
                time_directory(million, folder),
                250,
            ),
            Workload("only read HDF5 and convert to trajectories", steps, time_only_read(d4rl)),
            Workload("only read nested RLDS and convert", steps, time_only_read(make_rlds_dataset(many))),
            Workload("only encode from memory", steps, time_only_encode(many)),
            Workload("only insert messages encoded beforehand", steps, time_only_insert(many)),
            Workload("only copy these messages over loopback gRPC", steps, time_only_copy(many)),
        )
        share = rates["D4RL file to a table"] / rates["only copy these messages over loopback gRPC"]
        print(f"D4RL file to a table reaches {share:.0%} of the rate of the copy")
    for name, episodes, length, target in (
        ("items of 5 steps", many, 5, 10),
        ("64x64x3 images", make_image_episodes(100), 2, 3),
    ):
        print(f"\n{name}; the baseline is Reverb's StructuredWriter")
        ingest_from_memory = time_ingest(episodes, episodes, TrajectoryWindows(length))
        compare(
            "ingestion",
            runs,
            Workload(
                f"Reverb's `StructuredWriter`, {name}",
                count_steps(episodes[:5]),
                time_structured_writer(episodes[:5], length),
            ),
            Workload(f"`ingest`, {name}", count_steps(episodes), ingest_from_memory, target),
        )
    print("\nshort episodes, D4RL HDF5 -> table; the baseline is the same adder with long episodes")
    with tempfile.TemporaryDirectory() as name:
        for adder in (TrajectoryWindows(), NStep(3, 0.99)):
            lengths = (1000, 100, 20, 5)
            compare(
                "short_episodes", runs, *[make_workload(Path(name), adder, length, steps // 2) for length in lengths]
            )


def make_workload(folder: Path, adder: EpisodeAdder, length: int, num_rows: int) -> Workload:
    """Writes a D4RL file with episodes of one length, and returns its ingestion as a workload."""
    episodes = make_float_episodes(num_rows // length, length)
    path = folder / f"{length}.hdf5"
    write_d4rl(path, episodes)
    name = f"{type(adder).__name__}, episodes of {length} transitions"
    target = 0.5 if length == 20 else None
    return Workload(name, count_steps(episodes), time_ingest(path, episodes, adder), target)


if __name__ == "__main__":
    main()
