"""How fast episodes get into Reverb: ours, TF-Agents' reference and Reverb's own writers, on the same data, in one run.

    python benchmarks/bench_ingest.py [--runs 5] [--episodes 100]

Data are of HalfCheetah's shape: 17 + 6 floats, 1000 transitions an episode. The slow ways get fewer of the same
episodes: a rate is a rate. Every way ends when the server has all its items (or the directory its name).
"""

from __future__ import annotations

import argparse
import os
import platform
import queue
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

from rlds2reverb.cli.quiet import import_quietly, silence_native_logs

silence_native_logs()
import_quietly("tf_agents.replay_buffers.reverb_utils")

import grpc
import numpy as np
import reverb
import tensorflow as tf
import tree
from bench_data import float_episodes, image_episodes, write_d4rl
from tf_agents.replay_buffers import reverb_utils
from tf_agents.replay_buffers import rlds_to_reverb as reference

from rlds2reverb import ReplayServer, TableConfig, ingest, load, push_rlds_to_reverb, trajectory_columns
from rlds2reverb.batches import Encoder
from rlds2reverb.insert_streams import requests_of
from rlds2reverb.plans import make_plan
from rlds2reverb.service import confirmed_keys
from rlds2reverb.windows import Windows


def nested(episodes: list[dict]) -> tf.data.Dataset:
    """The same episodes as a nested RLDS data set."""
    columns = tree.map_structure(lambda *parts: np.stack(parts), *episodes)
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    return dataset.map(lambda steps: {"steps": tf.data.Dataset.from_tensor_slices(steps)})


def served(episodes: list[dict], length: int = 2) -> ReplayServer:
    return ReplayServer([TableConfig()], Windows(length).item_spec(load(episodes[:1]).step_spec))


def require_items(server: ReplayServer, wanted: int) -> None:
    size = server.client.server_info(timeout=10)["replay"].current_size
    assert size == wanted, (size, wanted)


def num_items(episodes: list[dict], length: int = 2) -> int:
    return sum(len(steps["reward"]) - length + 1 for steps in episodes)


def num_steps(episodes: list[dict]) -> int:
    return sum(len(steps["reward"]) for steps in episodes)


def peer_push(episodes: list[dict]) -> Callable[[], float]:
    """TF-Agents' push through its trajectory observer, as its users call it."""
    dataset = nested(episodes)
    spec = reference.tensor_spec.add_outer_dim(reference.create_trajectory_data_spec(dataset))

    def run() -> float:
        with served(episodes) as server:
            began = time.perf_counter()
            observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "replay", sequence_length=2)
            observer.get_table_signature = lambda: spec  # it compares bounds and names, which Reverb does not keep
            reference.push_rlds_to_reverb(dataset, observer)
            observer.close()
            taken = time.perf_counter() - began
            require_items(server, num_items(episodes))
        return taken

    return run


def our_push(episodes: list[dict]) -> Callable[[], float]:
    dataset = nested(episodes)

    def run() -> float:
        with served(episodes) as server:
            began = time.perf_counter()
            observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "replay", sequence_length=2)
            push_rlds_to_reverb(dataset, observer, fast=True)
            taken = time.perf_counter() - began
            require_items(server, num_items(episodes))
        return taken

    return run


def our_ingest(source: object, episodes: list[dict], length: int = 2, **options: object) -> Callable[[], float]:
    def run() -> float:
        with served(episodes, length) as server:
            began = time.perf_counter()
            ingest(source, server.address, adder=Windows(length), **options)
            taken = time.perf_counter() - began
            require_items(server, num_items(episodes, length))
        return taken

    return run


def our_directory(source: Path, folder: Path) -> Callable[[], float]:
    def run() -> float:
        out = folder / "converted"
        shutil.rmtree(out, ignore_errors=True)
        began = time.perf_counter()
        ingest(source, out)
        return time.perf_counter() - began

    return run


def write_structured(client: reverb.Client, episodes: list[dict], length: int) -> None:
    """Reverb's fastest public writer, fed with rows of arrays and flushed often enough not to complain."""
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


def structured_writer(episodes: list[dict], length: int) -> Callable[[], float]:
    def run() -> float:
        with served(episodes, length) as server:
            began = time.perf_counter()
            write_structured(server.client, episodes, length)
            taken = time.perf_counter() - began
            require_items(server, num_items(episodes, length))
        return taken

    return run


def encoded(episodes: list[dict]) -> Iterator[bytes]:
    source = load(episodes)
    plan = make_plan(source, Windows(), 1.0, on_invalid="error", packed=False)
    for batch in Encoder(plan.specs, ["replay"]).encode(plan.piece(episode) for episode in source):
        yield from requests_of(batch)


def only_read(source: object) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        for episode in load(source):
            trajectory_columns(episode.steps)
        return time.perf_counter() - began

    return run


def only_encode(episodes: list[dict]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        for _ in encoded(episodes):
            pass
        return time.perf_counter() - began

    return run


def only_copy(episodes: list[dict]) -> Callable[[], float]:
    """The limit: the same messages over loopback gRPC to a server that throws them away."""
    requests = list(encoded(episodes))

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
            taken = time.perf_counter() - began
        server.stop(None)
        return taken

    return run


def only_insert(episodes: list[dict]) -> Callable[[], float]:
    """The same messages to Reverb, encoded beforehand: what the server itself takes."""
    requests, wanted = list(encoded(episodes)), num_items(episodes)

    def run() -> float:
        with served(episodes) as server, grpc.insecure_channel(server.address) as channel:
            sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            began = time.perf_counter()
            responses = channel.stream_stream("/deepmind.reverb.ReverbService/InsertStream")(iter(sent.get, None))
            for request in requests:
                sent.put(request)
            confirmed = 0
            while confirmed < wanted:
                confirmed += len(confirmed_keys(next(responses)))
            taken = time.perf_counter() - began
            sent.put(None)
            require_items(server, wanted)
        return taken

    return run


def measure(name: str, steps: int, run: Callable[[], float], runs: int, peer: float | None, asked: str = "") -> float:
    run()
    rate = statistics.median(steps / run() for _ in range(runs))
    ratio = f"{rate / peer:>8.1f}x" if peer else "        "
    print(f"{name:<62} {rate:>11,.0f} steps/s {ratio} {asked}", flush=True)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=100)
    arguments = parser.parse_args()
    runs, many = arguments.runs, float_episodes(arguments.episodes)
    few, all_steps = many[:5], num_steps(many)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, TF {tf.__version__}")
    print(f"{all_steps:,} steps in {len(many)} episodes, HalfCheetah's shape; the peers get 5 of them")
    print(f"one prioritized table; median of {runs} after a warm-up\n")
    with tempfile.TemporaryDirectory() as name:
        d4rl, folder = Path(name) / "halfcheetah.hdf5", Path(name)
        write_d4rl(d4rl, many)
        print("items of 2 steps; the peer is TF-Agents' push_rlds_to_reverb with its trajectory observer")
        peer = measure("the peer", num_steps(few), peer_push(few), runs, None)
        measure("push_rlds_to_reverb(fast=True)", all_steps, our_push(many), runs, peer, "asked: 100")
        measure("ingest, nested RLDS -> table", all_steps, our_ingest(nested(many), many), runs, peer, "asked: 100")
        hdf5 = measure("ingest, D4RL HDF5 -> table", all_steps, our_ingest(d4rl, many), runs, peer, "asked: 150")
        unchecked = our_ingest(d4rl, many, on_invalid="keep")
        measure("ingest, D4RL HDF5 -> table, not read for a check before", all_steps, unchecked, runs, peer)
        streams = our_ingest(d4rl, many, num_streams=2)
        measure("ingest, D4RL HDF5 -> table, two streams", all_steps, streams, runs, peer)
        measure("ingest, D4RL HDF5 -> directory", all_steps, our_directory(d4rl, folder), runs, peer, "asked: 250")
        million = Path(name) / "halfcheetah-million.hdf5"
        write_d4rl(million, many * (1_000_000 // all_steps + 1))
        steps = load(million).num_rows
        measure(f"the same with {steps:,} steps", steps, our_directory(million, folder), runs, peer, "asked: 250")
        print("\nwhere the time goes, and the limit")
        measure("read HDF5 and convert to trajectories, no more", all_steps, only_read(d4rl), runs, peer)
        measure("read nested RLDS and convert, no more", all_steps, only_read(nested(many)), runs, peer)
        measure("encode from memory, no more", all_steps, only_encode(many), runs, peer)
        measure("insert messages encoded beforehand", all_steps, only_insert(many), runs, peer)
        limit = measure("copy the same messages over loopback gRPC", all_steps, only_copy(many), runs, peer)
        print(f"{'D4RL HDF5 -> table is at':<62} {hdf5 / limit:>11.0%} of that copy")
    for what, some, length, asked in (
        ("items of 5 steps", many, 5, "asked: 10"),
        ("items of 2 steps with pictures 64x64x3", image_episodes(100), 2, "asked: 3"),
    ):
        print(f"\n{what}; the peer is Reverb's StructuredWriter")
        peer = measure("the peer", num_steps(some[:5]), structured_writer(some[:5], length), runs, None)
        measure("ingest, from memory", num_steps(some), our_ingest(some, some, length), runs, peer, asked)


if __name__ == "__main__":
    main()
