"""Measures training and sampling from a store, compared with memory, the decoder alone, and `tf.data`, in one run.

    python benchmarks/bench_store.py [--rows 3000000] [--image-gigabytes 1] [--runs 3] [--updates 300] [--folder DIR]

Vectors have HalfCheetah's shape; TD3 is trained on them from memory, from a store that the system's cache of files can
hold, and from one that is ten times as large as the memory that the process may use for it. Images are JPEG files of
64x64x3, in batches of 256 transitions with two images each; the baselines are the decoder alone on all cores, and a
`tf.data` pipeline of TFRecords with a shuffle buffer of 10,000 and the same decoder. Each measurement runs in its own
process; memory limits are control groups, which requires root. The methods take turns, and figures are medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bench_data import make_float_episodes, print_machine
from records import parse_arguments, record

BATCH_SIZE, EPISODE_STEPS, SHUFFLED = 256, 200, 10_000
CGROUPS = Path("/sys/fs/cgroup")
#: Memory of a process besides the cache of files: TensorFlow with its code, and some batches.
BASE_BYTES = 400 << 20


@contextmanager
def limit_memory(num_bytes: int | None) -> Iterator[list[str]]:
    """Yields the start of a command that runs another one in a control group with this memory; unlimited if None."""
    if num_bytes is None:
        yield []
        return
    is_second = (CGROUPS / "cgroup.controllers").exists()
    group = CGROUPS / ("" if is_second else "memory") / f"bench_store_{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.max" if is_second else "memory.limit_in_bytes")).write_text(str(num_bytes))
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    finally:
        group.rmdir()


def run_child(kind: str, *arguments: Any, limit: int | None = None) -> list[float]:
    """Runs this file in another process; returns the numbers that it prints."""
    with limit_memory(limit) as prefix:
        command = [*prefix, sys.executable, __file__, "--child", kind, *map(str, arguments)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [float(value) for value in output.split()[-2:]]


def read_anonymous_bytes() -> float:
    """Returns the memory of this process without files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024


# --- the measurements, each in its own process


def train(path: str, stores: str, updates: str) -> float:
    """Returns the updates of TD3 per second, after the first hundred."""
    from rlds2reverb.learners.agents import make_agent
    from rlds2reverb.learners.learner import Learner
    from rlds2reverb.training.config import TrainingConfig
    from rlds2reverb.training.sources import open_data

    config = TrainingConfig("td3", env=None, store_dir=stores or None)
    with open_data(path, config) as data, data.open_batches(config) as batches, tempfile.TemporaryDirectory() as folder:
        assert batches is not None
        agent = make_agent("td3", data.time_step_spec, data.action_spec)
        learner = Learner(Path(folder) / "run", agent, batches.feed)
        with learner.running():
            learner.advance(100)
            start = time.perf_counter()
            learner.advance(100 + int(updates))
        return int(updates) / (time.perf_counter() - start)


def decode(path: str, seconds: str) -> float:
    """Returns the images per second of the decoder alone."""
    from rlds2reverb.datasets.steps.step_columns import StepColumns
    from rlds2reverb.datasets.steps.stores import open_columns
    from rlds2reverb.learners.stored_items import decode_images

    columns: StepColumns = open_columns(Path(path))
    number = columns.layout.select(["observation"])[0]
    pixels: Any = columns.layout.columns[number].pixels
    files = columns._take_bytes(number, np.arange(2 * BATCH_SIZE))
    decode_images(files, pixels)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < float(seconds):
        decode_images(files, pixels)
        count += len(files)
    return count / (time.perf_counter() - start)


def sample(path: str, seconds: str) -> float:
    """Returns the images per second in batches of a store."""
    from rlds2reverb import Transitions
    from rlds2reverb.datasets.steps.stores import open_columns
    from rlds2reverb.learners.stored_items import StoredItems

    feed = StoredItems(open_columns(Path(path), random_access=True), Transitions(), BATCH_SIZE)
    feed.read(0, 1)
    step, start = 0, time.perf_counter()
    while time.perf_counter() - start < float(seconds):
        step += 1
        feed.read(step, 1)
    return 2 * BATCH_SIZE * step / (time.perf_counter() - start)


def shuffle(path: str, seconds: str) -> float:
    """Returns the images per second of a pipeline of TFRecords with a shuffle buffer."""
    import tensorflow as tf

    def parse(record: tf.Tensor) -> Any:
        return tf.io.decode_jpeg(record, channels=3)

    dataset = tf.data.TFRecordDataset(path).repeat().shuffle(SHUFFLED).map(parse, num_parallel_calls=os.cpu_count())
    iterator = iter(dataset.batch(2 * BATCH_SIZE).prefetch(2))
    next(iterator)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < float(seconds):
        count += len(next(iterator).numpy())
    return count / (time.perf_counter() - start)


CHILDREN = {"train": train, "decode": decode, "sample": sample, "shuffle": shuffle}


# --- the data


def write_vectors(folder: Path, rows: int) -> tuple[Path, int]:
    """Writes a D4RL file of HalfCheetah's shape, and its store; returns the path of the file, and the store's size."""
    from bench_data import write_d4rl

    path = folder / "vectors.hdf5"
    write_d4rl(path, make_float_episodes(rows // 1000, 1000))
    run_child("train", path, folder / "stores", 1)
    return path, sum(file.stat().st_size for file in (folder / "stores").rglob("rows"))


def make_images(count: int = 2000) -> list[bytes]:
    """Returns JPEG files of smooth images with some noise, 2 kB each."""
    import io

    from PIL import Image

    random = np.random.default_rng(0)
    files = []
    for _ in range(count):
        small = Image.fromarray(random.integers(0, 255, (6, 6, 3), np.uint8)).resize((64, 64), Image.Resampling.BICUBIC)
        noisy = np.clip(np.asarray(small, int) + random.integers(0, 20, (64, 64, 3)), 0, 255)
        stream = io.BytesIO()
        Image.fromarray(noisy.astype(np.uint8)).save(stream, "JPEG", quality=90)
        files.append(stream.getvalue())
    return files


def write_images(folder: Path, gigabytes: float) -> tuple[Path, Path]:
    """Writes a store of JPEG files, and at most 1 GB of them as TFRecords."""
    import tensorflow as tf

    from rlds2reverb import load
    from rlds2reverb.datasets.steps.stores import build_store

    files = make_images()
    num_episodes = int(gigabytes * 1e9 / (EPISODE_STEPS * np.mean([len(file) for file in files])))

    def generate() -> Iterator[dict[str, Any]]:
        random = np.random.default_rng(1)  # The same episodes in each pass.
        for _ in range(num_episodes):
            images = np.array([files[index] for index in random.integers(0, len(files), EPISODE_STEPS)], object)
            yield {
                "observations": {"image": images, "state": random.random((EPISODE_STEPS, 3), np.float32)},
                "actions": random.random((EPISODE_STEPS - 1, 2), np.float32),
                "rewards": np.ones(EPISODE_STEPS - 1, np.float32),
                "terminated": False,
            }

    start = time.perf_counter()
    build_store(load(generate), folder / "images")
    seconds = time.perf_counter() - start
    steps = num_episodes * EPISODE_STEPS
    print(f"built a store of {steps:,} images ({gigabytes:g} GB) in {seconds:.0f} s, {steps / seconds:,.0f} images/s")
    records = folder / "images.tfrecord"
    with tf.io.TFRecordWriter(str(records)) as writer:
        for index in range(min(steps, 200_000)):
            writer.write(files[index % len(files)])
    return folder / "images", records


def show(name: str, values: list[list[float]], baseline: float | None = None, target: str = "") -> float:
    rate = statistics.median(value[0] for value in values)
    memory = max(value[1] for value in values) / 1e6
    ratio = "" if baseline is None else f"{rate / baseline:6.2f}x  {target}"
    record("stores", name, rate, "per s", [] if baseline is None else [rate / baseline])
    print(f"  {name:<62} {rate:>9,.0f}/s {memory:>6,.0f} MB  {ratio}".rstrip())
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--image-gigabytes", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parse_arguments(parser)
    if options.child:
        kind, *arguments = options.child
        print(CHILDREN[kind](*arguments), read_anonymous_bytes())
        return
    print_machine()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if options.rows:
            compare_vectors(folder, options)
        if options.image_gigabytes:
            compare_images(folder, options)


def compare_vectors(folder: Path, options: Any) -> None:
    path, size = write_vectors(folder, options.rows)
    limit = BASE_BYTES + size // 10
    arguments = [
        ("from memory", "", None),
        ("from a store in the cache of files", folder / "stores", None),
        (f"from a store of {size / 1e6:,.0f} MB, with {limit / 1e6:,.0f} MB in all", folder / "stores", limit),
    ]
    values: dict[str, list[list[float]]] = {name: [] for name, *_ in arguments}
    for _ in range(options.runs):
        for name, stores, allowed in arguments:
            values[name].append(run_child("train", path, stores, options.updates, limit=allowed))
    print(f"\nTD3 on {options.rows:,} transitions, updates per second, and memory besides files")
    (first, *_), second, third = arguments
    baseline = show(first, values[first])
    show(second[0], values[second[0]], baseline, "target: 0.9x")
    show(third[0], values[third[0]], baseline, "target: 0.5x")


def compare_images(folder: Path, options: Any) -> None:
    store, records = write_images(folder, options.image_gigabytes)
    limit = 1 << 30
    arguments = [
        ("the decoder alone", "decode", store, None),
        ("tf.data with a shuffle buffer", "shuffle", records, None),
        ("store", "sample", store, None),
        ("store, with 1 GB of memory in all", "sample", store, limit),
    ]
    values: dict[str, list[list[float]]] = {name: [] for name, *_ in arguments}
    for _ in range(options.runs):
        for name, kind, path, allowed in arguments:
            values[name].append(run_child(kind, path, options.seconds, limit=allowed))
    print("\nimages per second in batches of 256 transitions with two images each")
    rates = {name: show(name, values[name]) for name in values}
    decoder, shuffled, stored, limited = rates.values()
    for label, rate in (("store", stored), ("with 1 GB", limited)):
        ratios = rate / decoder, rate / shuffled
        print(f"  {label}: {ratios[0]:.2f}x the decoder (target: 0.8x), {ratios[1]:.2f}x tf.data (target: 1.5x)")


if __name__ == "__main__":
    main()
