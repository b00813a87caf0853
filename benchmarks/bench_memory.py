"""Measures the memory used by servers and conversions.

    python benchmarks/bench_memory.py [--episodes 50] [--endless-steps 3000000] [--large-steps 10000000]

Each table is filled in a separate server process, whose resident memory is read before and after. Then two D4RL files
are written and converted by processes whose peak memory is read: one with `--endless-steps` rows and no episode end,
which is a single episode, and one with `--large-steps` rows in episodes of 1,000, which requires about 6 GB of disk
space. 0 skips either file.
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

import bench_ingest as speed  # Imported first because it silences TensorFlow.
import h5py
import numpy as np
import reverb
import tree
from records import parse_arguments, record

from rlds2reverb import ReplayServer, TableConfig, ingest, load, trajectory_columns
from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot
from rlds2reverb.reverb.wire.packing import Packing, packed_signature


def read_memory(name: str, pid: int | str = "self") -> int:
    """Returns `VmRSS` or `VmHWM` of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def serve(signature: Any, data: Path | None, started: Any, stop: Any) -> None:
    """Runs a server until `stop` is set; puts its port and its memory without data into `started`."""
    before = read_memory("VmRSS")
    server = ReplayServer(directory=data) if data else ReplayServer([TableConfig()], signature)
    started.put((server.port, before if data else read_memory("VmRSS")))
    stop.wait()
    server.stop()


def measure_server(signature: Any, fill: Callable[[str], object], data: Path | None = None) -> tuple[int, int]:
    """Returns the bytes that a server uses for the data written by `fill`, and the number of its items."""
    context = multiprocessing.get_context("spawn")
    started, stop = context.Queue(), context.Event()
    process = context.Process(target=serve, args=(signature, data, started, stop))
    process.start()
    try:
        port, before = started.get(timeout=120)
        fill(f"localhost:{port}")
        time.sleep(1)
        items = reverb.Client(f"localhost:{port}").server_info(timeout=10)["replay"].current_size
        return read_memory("VmRSS", process.pid) - before, items
    finally:
        stop.set()
        process.join(30)


def compare(title: str, episodes: list[dict]) -> None:
    signature = TrajectoryWindows().item_spec(load(episodes[:1]).step_spec)
    packed = packed_signature(Packing(signature, squeeze=False))
    row_bytes = sum(column[:1].nbytes for column in tree.flatten(trajectory_columns(episodes[0])))
    print(f"\n{title}: {row_bytes:,} bytes per step; items of 2 steps")
    baseline = None
    for name, table_signature, fill in (
        (
            "StructuredWriter",
            signature,
            lambda address: speed.write_structured(reverb.Client(address), episodes, 2),
        ),
        ("ingest, columns", signature, lambda address: ingest(episodes, address)),
        ("ingest, packed", packed, lambda address: ingest(episodes, address, layout="packed")),
    ):
        size, items = measure_server(table_signature, fill)
        baseline = baseline or size / items
        ratio = size / items / baseline
        record("memory", title, size / items / 1000, "kB per item", column=name)
        print(f"{name:<40} {size / items:>9,.0f} bytes per item {ratio:>7.2f} of the baseline", flush=True)


def check_estimate(episodes: list[dict], folder: Path) -> None:
    """Compares the memory that `serve DIR` estimates with the memory that the server uses."""
    print("\nservers that start from a directory")
    for layout in ("columns", "packed"):
        out = folder / layout
        ingest(episodes, out, layout=layout)
        estimate = CheckpointRoot(out).data()["memory_bytes"]
        size, items = measure_server(None, lambda address: None, out)
        print(
            f"{layout:<40} {size / items:>9,.0f} bytes per item, estimate {estimate / items:,.0f} "
            f"({estimate / size:.2f} of it)",
            flush=True,
        )


def write_rows(path: Path, num_steps: int, *, episode_steps: int | None, has_next: bool = True) -> None:
    """Writes a D4RL file of random rows; without `episode_steps` no episode ends.

    Args:
      path: path of the file.
      num_steps: number of rows.
      episode_steps: rows per episode, or None for a single episode without an end.
      has_next: whether the file has `next_observations`.
    """
    random = np.random.default_rng(0)
    block = 100_000
    last = random.random((1, 17), np.float32)
    with h5py.File(path, "w") as file:
        widths = {"observations": (17,), "actions": (6,), "rewards": ()}
        if has_next:
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
    """Converts a file; returns the initial and the peak memory of this process in bytes, and the report."""
    start = read_memory("VmRSS")
    report = ingest(path, destination)
    return start, read_memory("VmHWM"), report


def convert_in_process(path: Path, destination: Path | str) -> tuple[int, int, Any]:
    """Calls `convert` in a separate process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(convert, path, destination).result()


def measure_endless_episode(folder: Path, num_steps: int) -> None:
    path = folder / "endless.hdf5"
    print(f"\na D4RL file of {num_steps:,} rows without an episode end, one episode")

    def show(name: str, start: int, peak: int, report: Any) -> None:
        factor = (peak - start) / report.size_bytes
        print(
            f"{name:<40} {start / 1e6:>6,.0f} MB at the start, {peak / 1e6:>6,.0f} MB peak: {factor:.1f} times the "
            f"{report.size_bytes / report.steps:.0f} bytes per step",
            flush=True,
        )

    write_rows(path, num_steps, episode_steps=None, has_next=False)
    show("to a directory", *convert_in_process(path, folder / "endless"))
    measure_server(None, lambda address: show("to a server", *convert_in_process(path, address)))
    write_rows(path, num_steps, episode_steps=None)
    show("with next_observations, to a directory", *convert_in_process(path, folder / "with-next"))
    path.unlink()


def measure_large_file(folder: Path, num_steps: int) -> None:
    path = folder / "large.hdf5"
    write_rows(path, num_steps, episode_steps=1000)
    start, peak, report = convert_in_process(path, folder / "large")
    print(f"\na D4RL file of {num_steps:,} rows ({path.stat().st_size / 1e9:.1f} GB) to a directory")
    print(f"{report.steps:,} steps at {report.steps_per_sec:,.0f} steps/s", end="; ")
    print(f"resident memory {start / 1e6:,.0f} MB at the start, {peak / 1e6:,.0f} MB peak (target: under 1,000 MB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--endless-steps", type=int, default=3_000_000)
    parser.add_argument("--large-steps", type=int, default=10_000_000)
    arguments = parse_arguments(parser)
    speed.print_machine()
    compare("floats of HalfCheetah's shape", speed.make_float_episodes(arguments.episodes))
    compare("64x64x3 images", speed.make_image_episodes(max(1, arguments.episodes // 5)))
    folder = Path(tempfile.mkdtemp())
    try:
        check_estimate(speed.make_float_episodes(arguments.episodes), folder)
        if arguments.endless_steps:
            measure_endless_episode(folder, arguments.endless_steps)
        if arguments.large_steps:
            measure_large_file(folder, arguments.large_steps)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
