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
from bench_data import float_episodes, image_episodes, write_d4rl
from rlds2reverb.adders import NStep
from tf_agents.replay_buffers import reverb_utils
from tf_agents.replay_buffers import rlds_to_reverb as reference

from rlds2reverb import ReplayServer, TableConfig, ingest, load, push_rlds_to_reverb, trajectory_columns
from rlds2reverb._encoding.encoder import Encoder
from rlds2reverb._server.connection import confirmed_keys
from rlds2reverb._writing.conversion import make_conversion
from rlds2reverb.episode_batches import in_batches
from rlds2reverb.items import EpisodeAdder
from rlds2reverb.trajectory_items import TrajectoryWindows

TWO_STEPS = TrajectoryWindows()


def nested(episodes: list[dict]) -> tf.data.Dataset:
    """The same episodes as a nested RLDS data set."""
    columns = tree.map_structure(lambda *parts: np.stack(parts), *episodes)
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    return dataset.map(lambda steps: {"steps": tf.data.Dataset.from_tensor_slices(steps)})


def served(episodes: list[dict], adder: EpisodeAdder = TWO_STEPS) -> ReplayServer:
    return ReplayServer([TableConfig()], adder.item_spec(load(episodes[:1]).step_spec))


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


def our_ingest(
    source: object, episodes: list[dict], adder: EpisodeAdder = TWO_STEPS, **options: object
) -> Callable[[], float]:
    def run() -> float:
        with served(episodes, adder) as server:
            began = time.perf_counter()
            report = ingest(source, server.address, adder=adder, **options)
            taken = time.perf_counter() - began
            require_items(server, report.items)
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
        with served(episodes, TrajectoryWindows(length)) as server:
            began = time.perf_counter()
            write_structured(server.client, episodes, length)
            taken = time.perf_counter() - began
            require_items(server, num_items(episodes, length))
        return taken

    return run


def encoded(episodes: list[dict]) -> Iterator[bytes]:
    source = load(episodes)
    conversion = make_conversion(source, TrajectoryWindows(), 1.0, on_invalid="error", layout="columns")
    blocks = (block for episodes in in_batches(source) for block in conversion.blocks(episodes))
    for batch in Encoder(conversion.specs, ["replay"]).encode(blocks):
        yield from batch.insert_requests()


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


@dataclass
class Work:
    """Something to be timed: how many steps it gets through, and the ratio to the peer that is asked for, if one is."""

    name: str
    num_steps: int
    run: Callable[[], float]
    asked: float | None = None


def compare(runs: int, *works: Work) -> dict[str, float]:
    """Times works in turns, once in each round, so that all see the same moods of the machine; the first is the peer.

    Returns:
      The median of each one's steps/s, by name.
    """
    for work in works:
        work.run()
    rates = np.array([[work.num_steps / work.run() for work in works] for _ in range(runs)])
    for work, rate, ratios in zip(works, rates.T, (rates / rates[:, :1]).T, strict=True):
        of_peer = f"{np.median(ratios):>7.3g}x  ({ratios.min():.3g} to {ratios.max():.3g})" if work != works[0] else ""
        asked = f"asked: {work.asked}" if work.asked else ""
        print(f"{work.name:<56} {np.median(rate):>11,.0f} steps/s {of_peer:<28} {asked}".rstrip(), flush=True)
    return dict(zip([work.name for work in works], np.median(rates, axis=0).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=100)
    arguments = parser.parse_args()
    runs, many = arguments.runs, float_episodes(arguments.episodes)
    few, steps = many[:5], num_steps(many)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, TF {tf.__version__}")
    print(f"{steps:,} steps in {len(many)} episodes, HalfCheetah's shape; the peers get 5 of them")
    print(f"one prioritized table; medians of {runs} rounds, each the peer and then the others; ratios within a round")
    print("(the least to the greatest)\n")
    with tempfile.TemporaryDirectory() as name:
        d4rl, million, folder = Path(name) / "halfcheetah.hdf5", Path(name) / "halfcheetah-million.hdf5", Path(name)
        write_d4rl(d4rl, many)
        write_d4rl(million, many * (1_000_000 // steps + 1))
        million_steps = load(million).num_rows
        print("items of 2 steps; the peer is TF-Agents' push_rlds_to_reverb with its trajectory observer")
        rates = compare(
            runs,
            Work("the peer", num_steps(few), peer_push(few)),
            Work("push_rlds_to_reverb(fast=True)", steps, our_push(many), 100),
            Work("ingest, nested RLDS -> table", steps, our_ingest(nested(many), many), 100),
            Work("ingest, D4RL HDF5 -> table", steps, our_ingest(d4rl, many), 150),
            Work("the same, not read for a check before", steps, our_ingest(d4rl, many, on_invalid="keep")),
            Work("ingest, D4RL HDF5 -> directory", steps, our_directory(d4rl, folder), 250),
            Work(f"the same with {million_steps:,} steps", million_steps, our_directory(million, folder), 250),
            Work("only read HDF5 and convert to trajectories", steps, only_read(d4rl)),
            Work("only read nested RLDS and convert", steps, only_read(nested(many))),
            Work("only encode from memory", steps, only_encode(many)),
            Work("only insert messages encoded beforehand", steps, only_insert(many)),
            Work("only copy these messages over loopback gRPC", steps, only_copy(many)),
        )
        share = rates["ingest, D4RL HDF5 -> table"] / rates["only copy these messages over loopback gRPC"]
        print(f"the limit: D4RL HDF5 -> table is at {share:.0%} of that copy")
    for what, some, length, asked in (
        ("items of 5 steps", many, 5, 10),
        ("items of 2 steps with pictures 64x64x3", image_episodes(100), 2, 3),
    ):
        print(f"\n{what}; the peer is Reverb's StructuredWriter")
        compare(
            runs,
            Work("the peer", num_steps(some[:5]), structured_writer(some[:5], length)),
            Work("ingest, from memory", num_steps(some), our_ingest(some, some, TrajectoryWindows(length)), asked),
        )
    print("\nshort episodes, items from a D4RL HDF5 file into a table; the peer is the same adder with long episodes")
    with tempfile.TemporaryDirectory() as name:
        for adder in (TrajectoryWindows(), NStep(3, 0.99)):
            compare(runs, *[short_episodes(Path(name), adder, length, steps // 2) for length in (1000, 100, 20, 5)])


def short_episodes(folder: Path, adder: EpisodeAdder, length: int, num_rows: int) -> Work:
    episodes = float_episodes(num_rows // length, length)
    path = folder / f"{length}.hdf5"
    write_d4rl(path, episodes)
    name = f"{type(adder).__name__}, {len(episodes):,} episodes of {length} transitions"
    return Work(name, num_steps(episodes), our_ingest(path, episodes, adder), asked=0.5 if length == 20 else None)


if __name__ == "__main__":
    main()
