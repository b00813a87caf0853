"""How much memory servers and conversions take.

    python benchmarks/bench_memory.py [--episodes 50] [--endless-steps 3000000] [--large-steps 10000000]

Each table is filled in a server process of its own, whose resident memory is read before and after. Then D4RL files
are made and converted by processes whose peak is read: one of `--endless-steps` rows without an end, which is a single
episode, and one of `--large-steps` rows in episodes of 1,000, which needs about 6 GB of disk. 0 leaves either out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import bench_ingest as speed  # first: it quiets TensorFlow
import h5py
import numpy as np
import reverb
import tree

from rlds2reverb import ReplayServer, TableConfig, ingest, load, trajectory_columns
from rlds2reverb._encoding.packing import Packing, packed_signature
from rlds2reverb._server.checkpoint_root import CheckpointRoot
from rlds2reverb.trajectory_items import TrajectoryWindows


def status(name: str, pid: int | str = "self") -> int:
    """VmRSS or VmHWM of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def serve(signature: Any, data: Path | None, told: Any, ended: Any) -> None:
    """A server process; says its port and its memory before it has any data."""
    before = status("VmRSS")
    server = ReplayServer(None if data else [TableConfig()], signature, data=data)
    told.put((server.port, before if data else status("VmRSS")))
    ended.wait()
    server.stop()


def memory_of(signature: Any, fill: Callable[[str], object], data: Path | None = None) -> tuple[int, int]:
    """Bytes that a server takes for what is filled in, and its items."""
    context = multiprocessing.get_context("spawn")
    told, ended = context.Queue(), context.Event()
    process = context.Process(target=serve, args=(signature, data, told, ended))
    process.start()
    try:
        port, before = told.get(timeout=120)
        fill(f"localhost:{port}")
        time.sleep(1)
        items = reverb.Client(f"localhost:{port}").server_info(timeout=10)["replay"].current_size
        return status("VmRSS", process.pid) - before, items
    finally:
        ended.set()
        process.join(30)


def compare(what: str, episodes: list[dict]) -> None:
    signature = TrajectoryWindows().item_spec(load(episodes[:1]).step_spec)
    packed = packed_signature(Packing(signature, squeeze=False))
    row_bytes = sum(column[:1].nbytes for column in tree.flatten(trajectory_columns(episodes[0])))
    print(f"\n{what}: a step is {row_bytes:,} bytes; items of 2 steps")
    peer = None
    for name, like, fill in (
        (
            "Reverb's StructuredWriter (the peer)",
            signature,
            lambda address: speed.write_structured(reverb.Client(address), episodes, 2),
        ),
        ("ingest", signature, lambda address: ingest(episodes, address)),
        ("ingest, layout packed", packed, lambda address: ingest(episodes, address, layout="packed")),
    ):
        taken, items = memory_of(like, fill)
        peer = peer or taken / items
        print(f"{name:<40} {taken / items:>9,.0f} bytes an item {taken / items / peer:>7.2f} of the peer", flush=True)


def estimate(episodes: list[dict], folder: Path) -> None:
    """The estimate that `serve --from` makes, and what it takes."""
    print("\nservers that start from a directory")
    for layout in ("columns", "packed"):
        out = folder / layout
        ingest(episodes, out, layout=layout)
        wanted = CheckpointRoot(out).described()["memory_bytes"]
        taken, items = memory_of(None, lambda address: None, out)
        print(
            f"{layout:<40} {taken / items:>9,.0f} bytes an item, estimated {wanted / items:,.0f} "
            f"({wanted / taken:.2f} of it)",
            flush=True,
        )


def write_rows(path: Path, num_steps: int, *, episode_steps: int | None, following: bool = True) -> None:
    """Writes a D4RL file of random rows, with `next_observations` if `following`; without `episode_steps` none ends."""
    random = np.random.default_rng(0)
    block = 100_000
    last = random.random((1, 17), np.float32)
    with h5py.File(path, "w") as file:
        widths = {"observations": (17,), "actions": (6,), "rewards": ()}
        if following:
            widths["next_observations"] = (17,)
        for name, shape in widths.items():
            file.create_dataset(name, (num_steps, *shape), np.float32, chunks=(1000, *shape))
        for name in ("terminals", "timeouts"):
            file.create_dataset(name, (num_steps,), bool, chunks=(1000,))
        for begin in range(0, num_steps, block):
            rows = min(block, num_steps - begin)
            states = np.concatenate([last, random.random((rows, 17), np.float32)])
            last = states[-1:]
            columns = {"observations": states[:-1], "next_observations": states[1:]}
            for name, shape in widths.items():
                values = columns[name] if name in columns else random.random((rows, *shape), np.float32)
                file[name][begin : begin + rows] = values
            at = np.arange(begin, begin + rows)
            file["terminals"][begin : begin + rows] = np.zeros(rows, bool)
            file["timeouts"][begin : begin + rows] = at % episode_steps == episode_steps - 1 if episode_steps else False


def convert(path: Path, destination: Path | str) -> tuple[int, int, Any]:
    """Bytes of memory of this process before and at most, and the report."""
    start = status("VmRSS")
    report = ingest(path, destination)
    return start, status("VmHWM"), report


def converted(path: Path, destination: Path | str) -> tuple[int, int, Any]:
    """As `convert`, in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(convert, path, destination).result()


def endless(folder: Path, num_steps: int) -> None:
    path = folder / "endless.hdf5"
    print(f"\na D4RL file of {num_steps:,} rows without an end, one episode")

    def show(what: str, start: int, peak: int, report: Any) -> None:
        times = (peak - start) / report.bytes
        print(
            f"{what:<40} {start / 1e6:>6,.0f} MB at the start, {peak / 1e6:>6,.0f} MB at most: {times:.1f} times the "
            f"{report.bytes / report.steps:.0f} bytes of a step",
            flush=True,
        )

    write_rows(path, num_steps, episode_steps=None, following=False)
    show("to a directory", *converted(path, folder / "endless"))
    memory_of(None, lambda address: show("to a server", *converted(path, address)))
    write_rows(path, num_steps, episode_steps=None)
    show("with next_observations, to a directory", *converted(path, folder / "following"))
    path.unlink()


def large(folder: Path, num_steps: int) -> None:
    path = folder / "large.hdf5"
    write_rows(path, num_steps, episode_steps=1000)
    start, peak, report = converted(path, folder / "large")
    print(f"\na D4RL file of {num_steps:,} rows ({path.stat().st_size / 1e9:.1f} GB) to a directory")
    print(
        f"{report.steps:,} steps at {report.steps_per_second:,.0f} steps/s; resident memory: {start / 1e6:,.0f} MB",
        end="",
    )
    print(f" at the start, {peak / 1e6:,.0f} MB at most (asked: under 1,000)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--endless-steps", type=int, default=3_000_000)
    parser.add_argument("--large-steps", type=int, default=10_000_000)
    arguments = parser.parse_args()
    compare("floats of HalfCheetah's shape", speed.float_episodes(arguments.episodes))
    compare("pictures 64x64x3", speed.image_episodes(max(1, arguments.episodes // 5)))
    folder = Path(tempfile.mkdtemp())
    try:
        estimate(speed.float_episodes(arguments.episodes), folder)
        if arguments.endless_steps:
            endless(folder, arguments.endless_steps)
        if arguments.large_steps:
            large(folder, arguments.large_steps)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
