"""Measures how fast datasets are read, and the peak memory, against a plain read of the same files.

    python benchmarks/bench_formats.py [--episodes 500] [--rounds 5]

LeRobot: a tabular dataset of version 3.0 in HalfCheetah's shape is written, then read by `load` and, as the baseline,
by `pyarrow.parquet.read_table`, file by file with all columns as NumPy arrays. Each read runs in its own process,
which reports its peak memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_data import make_float_episodes, print_machine

from rlds2reverb import write_dataset

_PROGRAM = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rlds2reverb import load

path, reader = sys.argv[1:]

def read_plainly():
    rows = 0
    for file in sorted(Path(path).glob("data/*/*.parquet")):
        table = pq.read_table(file)
        for column in table.columns:
            values = column.combine_chunks()
            values = values.flatten() if pa.types.is_nested(values.type) else values
            np.array(values.to_numpy(zero_copy_only=False))
        rows += len(table)
    return rows

def read_episodes():
    return sum(len(episode.steps["reward"]) for episode in load(path).read())

read = {"plain": read_plainly, "load": read_episodes}[reader]
read()
began = time.perf_counter()
rows = read()
seconds = time.perf_counter() - began
print(json.dumps([rows / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def measure(path: Path, reader: str) -> tuple[float, float]:
    """Returns rows per second and peak memory in MB of a process that reads a dataset twice."""
    program = [sys.executable, "-c", _PROGRAM, str(path), reader]
    rate, peak = json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    return rate, peak / 1024


def main() -> None:
    """Writes the datasets, and prints the medians of all rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lerobot"
        steps = make_float_episodes(min(arguments.episodes, 50))
        report = write_dataset(steps * (arguments.episodes // len(steps)), path, format="lerobot")
        print(f"LeRobot: {report.transitions:,} rows, {report.bytes / 1e6:,.0f} MB")
        rounds = [{reader: measure(path, reader) for reader in ("plain", "load")} for _ in range(arguments.rounds)]
        for reader in ("plain", "load"):
            rate, peak = (statistics.median(values) for values in zip(*(one[reader] for one in rounds), strict=True))
            print(f"  {reader:6} {rate:12,.0f} rows/s  peak {peak:6,.0f} MB")
        ratio = statistics.median(one["load"][0] / one["plain"][0] for one in rounds)
        print(f"  ratio  {ratio:.2f}")


if __name__ == "__main__":
    main()
