"""How much memory servers and conversions take.

    python benchmarks/bench_memory.py [--episodes 50] [--large-steps 10000000]

Each table is filled in a server process of its own, whose resident memory is read before and after. Then a D4RL file
of `--large-steps` rows is made and converted to a directory by a process whose peak is read; it needs about 6 GB of
disk. `--large-steps 0` leaves that out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
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
from rlds2reverb.windows import Windows


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
    signature = Windows().item_spec(load(episodes[:1]).step_spec)
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


def write_large(path: Path, num_steps: int) -> None:
    random = np.random.default_rng(0)
    block = 100_000
    with h5py.File(path, "w") as file:
        widths = {"observations": (17,), "next_observations": (17,), "actions": (6,), "rewards": ()}
        for name, shape in widths.items():
            file.create_dataset(name, (num_steps, *shape), np.float32, chunks=(1000, *shape))
        for name in ("terminals", "timeouts"):
            file.create_dataset(name, (num_steps,), bool, chunks=(1000,))
        for begin in range(0, num_steps, block):
            rows = min(block, num_steps - begin)
            for name, shape in widths.items():
                file[name][begin : begin + rows] = random.random((rows, *shape), np.float32)
            file["terminals"][begin : begin + rows] = np.zeros(rows, bool)
            file["timeouts"][begin : begin + rows] = np.arange(begin, begin + rows) % 1000 == 999


def convert(path: Path, out: Path, told: Any) -> None:
    start = status("VmRSS")
    report = ingest(path, out)
    told.put((start, status("VmHWM"), report.steps, report.steps_per_second))


def large(folder: Path, num_steps: int) -> None:
    path, out = folder / "large.hdf5", folder / "large"
    write_large(path, num_steps)
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    process = context.Process(target=convert, args=(path, out, told))
    process.start()
    start, peak, steps, rate = told.get()
    process.join()
    print(f"\na D4RL file of {num_steps:,} rows ({path.stat().st_size / 1e9:.1f} GB) to a directory")
    print(f"{steps:,} steps at {rate:,.0f} steps/s; resident memory: {start / 1e6:,.0f} MB at the start", end=", ")
    print(f"{peak / 1e6:,.0f} MB at most (asked: under 1,000)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--large-steps", type=int, default=10_000_000)
    arguments = parser.parse_args()
    compare("floats of HalfCheetah's shape", speed.float_episodes(arguments.episodes))
    compare("pictures 64x64x3", speed.image_episodes(max(1, arguments.episodes // 5)))
    folder = Path(tempfile.mkdtemp())
    try:
        estimate(speed.float_episodes(arguments.episodes), folder)
        if arguments.large_steps:
            large(folder, arguments.large_steps)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
