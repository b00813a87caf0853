"""Measures how fast datasets are read, and the peak memory, against a plain read of the same files.

    python benchmarks/bench_formats.py [--episodes 500] [--rounds 5] [--busy N] [FORMAT ...]

Datasets are written, then read by `load` and, as the baseline, in the plainest way: all columns as NumPy arrays through
`pyarrow.parquet` (lerobot), the images of such a dataset decoded one by one by Pillow (lerobot-images), through
`numpy.load` (ogbench), and through h5py, demonstration by demonstration (robomimic, robomimic-images). Rows are in
HalfCheetah's shape; images have 96 x 96 pixels, in a tenth of the episodes. Each read runs in its own process, which
reports its peak memory.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from bench_data import make_float_episodes, print_machine
from records import parse_arguments, record

_BUSY = "while True: pass"


def read_lerobot(path: Path) -> int:
    """Reads all columns of all parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    for file in sorted(path.glob("data/*/*.parquet")):
        table = pq.read_table(file)
        for column in table.columns:
            values = column.combine_chunks()
            values = values.flatten() if pa.types.is_list(values.type) else values
            np.array(values.to_numpy(zero_copy_only=False))
        rows += len(table)
    return rows


def read_images(path: Path) -> int:
    """Decodes the images of all parquet files."""
    import pyarrow.parquet as pq
    from PIL import Image

    rows = 0
    for file in sorted(path.glob("data/*/*.parquet")):
        images = pq.read_table(file, columns=["observation.image"])["observation.image"].combine_chunks().field("bytes")
        for data in images:
            np.asarray(Image.open(io.BytesIO(data.as_py())))
        rows += len(images)
    return rows


def read_ogbench(path: Path) -> int:
    """Reads all columns of an npz file."""
    with np.load(path) as file:
        return len({name: file[name] for name in file.files}["actions"])


def read_robomimic(path: Path) -> int:
    """Reads all columns of all demonstrations."""
    rows = 0
    with h5py.File(path) as file:
        for demo in file["data"].values():
            columns = {name: demo[name][()] for name in ("actions", "rewards", "dones")}
            observations = [column[()] for name in ("obs", "next_obs") for column in demo[name].values()]
            rows += len(columns["actions"])
            assert len(observations) == 2
    return rows


def read_with_load(path: Path) -> int:
    """Reads all episodes with `load`."""
    from rlds2reverb import load

    return sum(episode.num_transitions for episode in load(path))


def write_lerobot(episodes: list[dict[str, Any]], folder: Path) -> Path:
    """Writes LeRobot 3.0 without images."""
    from rlds2reverb import write_dataset

    write_dataset(episodes, folder / "lerobot", format="lerobot")
    return folder / "lerobot"


def write_images(episodes: list[dict[str, Any]], folder: Path) -> Path:
    """Writes LeRobot 3.0 with an image per step, as PNG."""
    from rlds2reverb import write_dataset

    write_dataset(add_images(episodes), folder / "images", format="lerobot")
    return folder / "images"


def add_images(episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a tenth of the episodes with images, in which a pattern moves, as observations."""
    pattern = np.random.default_rng(0).integers(0, 255, (12, 12, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    return [
        {
            **steps,
            "observation": {"image": np.stack([np.roll(pattern, step, 0) for step in range(len(steps["reward"]))])},
        }
        for steps in episodes[: max(1, len(episodes) // 10)]
    ]


def write_ogbench(episodes: list[dict[str, Any]], folder: Path) -> Path:
    """Writes an npz file with T + 1 rows per trajectory."""
    columns = {
        "observations": np.concatenate([steps["observation"] for steps in episodes]),
        "actions": np.concatenate([steps["action"] for steps in episodes]),
        "terminals": np.concatenate([steps["is_last"] for steps in episodes]),
    }
    np.savez_compressed(folder / "a-v0.npz", **columns)
    return folder / "a-v0.npz"


def write_robomimic(episodes: list[dict[str, Any]], folder: Path) -> Path:
    """Writes one group per demonstration."""
    path = folder / "demo.hdf5"
    with h5py.File(path, "w") as file:
        for number, steps in enumerate(episodes):
            demo, observation = file.create_group(f"data/demo_{number}"), steps["observation"]
            columns = observation if isinstance(observation, dict) else {"state": observation}
            for name, column in columns.items():
                demo[f"obs/{name}"], demo[f"next_obs/{name}"] = column[:-1], column[1:]
            demo["actions"], demo["rewards"] = steps["action"][:-1], steps["reward"][:-1]
            demo["dones"] = np.zeros(len(steps["reward"]) - 1, np.int64)
    return path


def write_robomimic_images(episodes: list[dict[str, Any]], folder: Path) -> Path:
    """Does the same with images."""
    return write_robomimic(add_images(episodes), folder)


#: The function that writes a dataset, the plain reader, and the target of the ratio.
FORMATS: dict[str, tuple[Callable[..., Path], Callable[[Path], int], str]] = {
    "lerobot": (write_lerobot, read_lerobot, "5x the items of LeRobotDataset, which is not installed"),
    "lerobot-images": (write_images, read_images, "1.5x the items of LeRobotDataset, which is not installed"),
    "ogbench": (write_ogbench, read_ogbench, "0.8x"),
    "robomimic": (write_robomimic, read_robomimic, "0.8x"),
    "robomimic-images": (
        lambda episodes, folder: write_robomimic(add_images(episodes), folder),
        read_robomimic,
        "0.8x",
    ),
}


def measure(name: str, path: Path, reader: str) -> tuple[float, float]:
    """Returns rows per second and peak memory in MB of a process that reads a dataset twice."""
    program = [sys.executable, __file__, "--read", reader, str(path), name]
    rate, peak = json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return rate, peak / 1024


def print_read(name: str, path: Path, reader: str) -> None:
    """Reads a dataset twice, and prints the rate of the second time and the peak memory."""
    read = FORMATS[name][1] if reader == "plain" else read_with_load
    read(path)
    began = time.perf_counter()
    rows = read(path)
    seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text()  # Its peak is that of this program, unlike that of `getrusage`.
    print(json.dumps([rows / seconds, int(status.split("VmHWM:")[1].split()[0])]))


def compare(name: str, path: Path, rounds: int) -> None:
    """Prints the medians of all rounds, and the ratio of each round's rates."""
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    print(f"{name}: {size / 1e6:,.0f} MB; target {FORMATS[name][2]}")
    measured = [{reader: measure(name, path, reader) for reader in ("plain", "load")} for _ in range(rounds)]
    for reader in ("plain", "load"):
        rate, peak = (statistics.median(values) for values in zip(*(one[reader] for one in measured), strict=True))
        record("formats", name, rate, "rows/s", column=reader)
        print(f"  {reader:6} {rate:12,.0f} rows/s  peak {peak:6,.0f} MB")
    print(f"  ratio  {statistics.median(one['load'][0] / one['plain'][0] for one in measured):.2f}x", flush=True)


def main() -> None:
    """Writes the datasets, and compares how they are read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", default=list(FORMATS), help=", ".join(FORMATS))
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="number of busy processes that run meanwhile")
    parser.add_argument("--read", nargs=2, metavar=("READER", "PATH"), help=argparse.SUPPRESS)
    arguments = parse_arguments(parser)
    if arguments.read is not None:
        print_read(arguments.formats[0], Path(arguments.read[1]), arguments.read[0])
        return
    print_machine()
    some = make_float_episodes(min(arguments.episodes, 50))
    episodes = some * (arguments.episodes // len(some))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for _ in range(arguments.busy):
            process = subprocess.Popen([sys.executable, "-c", _BUSY])
            stack.callback(process.wait)
            stack.callback(process.kill)
        for name in arguments.formats:
            compare(name, FORMATS[name][0](episodes, folder), arguments.rounds)


if __name__ == "__main__":
    main()
