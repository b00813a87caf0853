"""Measures `batches` against TFDS and a PyTorch DataLoader with two workers that read the same directory.

    python benchmarks/bench_batches.py [--runs 5] [--secs 5] [--episodes 100] [vectors | images | histories]

'vectors' are transitions of HalfCheetah's shape, and 'images' are images of 64x64x3 (JPEG) with the next 8 actions;
each batch has 256 items, as PyTorch's tensors. The baseline reads each episode once, makes its items, shuffles them in
a buffer of 10,000 (images in their encoding), and decodes in parallel; it batches in `tf.data`, or item by item in the
DataLoader. The store has the images as JPEG or as pixels. Each measurement runs in a separate process, and begins after
20 batches.

'histories' are what a robot's policy sees: two images and the next 16 actions. Their baseline is a DataLoader with two
workers that makes item by item, and decodes with Pillow; the last row decodes images, and does nothing else.

The rows of PyTorch are left out if it is not installed.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from bench_data import make_float_episodes, make_image_episodes, print_machine
from records import parse_arguments, record

from rlds2reverb import StepOffsets, Transitions, batches, load, write_dataset

BATCH_SIZE, CHUNK, BUFFER, WARM_UP = 256, 8, 10_000, 20
ITEMS = {
    "vectors": Transitions(),
    "images": StepOffsets({"observation": 0, "action": range(CHUNK)}),
    "histories": StepOffsets({"observation": [-1, 0], "action": range(16)}),
}
TFDS_LOADERS = ("TFDS, batched by tf.data", "TFDS, collated by PyTorch")
BASELINES = {"vectors": TFDS_LOADERS, "images": TFDS_LOADERS, "histories": ("DataLoader, item by item",)}
DECODER = "the decoder alone"
HAS_TORCH = find_spec("torch") is not None


def write(kind: str, num_episodes: int, folder: Path) -> Path:
    """Writes the directory of TFDS."""
    if kind == "vectors":
        write_dataset(make_float_episodes(num_episodes), folder / "vectors/1.0.0", format="rlds")
    else:
        source = load(make_image_episodes(num_episodes), mapping={"describe": {"observation": "jpeg"}})
        write_dataset(source, folder / f"{kind}/1.0.0", format="rlds")
    return folder / kind / "1.0.0"


def make_items(kind: str, path: str, shard: int, num_shards: int) -> Any:
    """Returns the baseline's dataset of shuffled items from a part of the episodes."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def make_episode_items(episode: Any) -> Any:
        steps = episode["steps"].batch(1 << 20).get_single_element()
        last = tf.shape(steps["reward"])[0] - 1
        if kind == "vectors":
            observation = steps["observation"]
            names = ("action", "reward", "discount")
            items = {name: steps[name][:-1] for name in names}
            items |= {"observation": observation[:-1], "next_observation": observation[1:]}
        else:
            places = tf.range(last)[:, None] + tf.range(CHUNK)
            actions = tf.gather(steps["action"], tf.minimum(places, last - 1))
            items = {"observation": steps["observation"][:-1], "action": actions, "mask": places < last}
        return tf.data.Dataset.from_tensor_slices(items)

    def decode(item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "observation": tf.io.decode_jpeg(item["observation"], channels=3)}

    decoders = {"steps": {"observation": tfds.decode.SkipDecoding()}} if kind == "images" else None
    dataset = tfds.builder_from_directory(path).as_dataset(split="train", decoders=decoders)
    dataset = dataset.shard(num_shards, shard).repeat().flat_map(make_episode_items).shuffle(BUFFER)
    return dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE) if kind == "images" else dataset


def open_loader(kind: str, path: str, *, collate: bool) -> Iterable[Any]:
    """Returns the DataLoader of the baseline."""
    import tensorflow as tf
    import torch

    class Reader(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            worker = torch.utils.data.get_worker_info()
            dataset = make_items(kind, path, worker.id, worker.num_workers)
            dataset = dataset if collate else dataset.batch(BATCH_SIZE, drop_remainder=True)
            return dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()

    return torch.utils.data.DataLoader(Reader(), batch_size=BATCH_SIZE if collate else None, num_workers=2)


def open_item_loader(path: str) -> Iterable[Any]:
    """Returns a DataLoader of histories whose items are made one by one, of images in their encoding in memory."""
    import torch
    from PIL import Image

    episodes = [episode.steps for episode in load(path, image_decoding=False)]
    places = [(steps, step) for steps in episodes for step in range(len(steps["reward"]) - 1)]

    class Histories(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(places)

        def __getitem__(self, index: int) -> dict[str, Any]:
            steps, step = places[index]
            images = [np.asarray(Image.open(io.BytesIO(steps["observation"][max(step + k, 0)]))) for k in (-1, 0)]
            rows = step + np.arange(16)
            last = len(steps["reward"]) - 2
            actions = steps["action"][np.minimum(rows, last)]
            return {"observation": np.stack(images), "action": actions, "mask": rows <= last}

    return torch.utils.data.DataLoader(Histories(), batch_size=BATCH_SIZE, shuffle=True, num_workers=2)


def decode_forever(path: str) -> Iterator[Any]:
    """Yields as many decoded images as a batch of histories contains, again and again."""
    from rlds2reverb.datasets.steps.image_files import decode_images
    from rlds2reverb.types.specs import ArraySpec

    files = [file for episode in load(path, image_decoding=False) for file in episode.steps["observation"]]
    count, pixels = 2 * BATCH_SIZE, ArraySpec((64, 64, 3), np.dtype(np.uint8))
    for first in itertools.cycle(range(0, len(files) - count, count)):
        yield decode_images(files[first : first + count], pixels)


def measure(reader: str, kind: str, path: str, secs: float) -> float:
    """Returns the number of batches per second."""
    found: Any
    if reader == DECODER:
        found = decode_forever(path)
    elif reader in BASELINES["histories"]:
        found = itertools.chain.from_iterable(itertools.repeat(open_item_loader(path)))
    elif reader in TFDS_LOADERS:
        found = open_loader(kind, path, collate="collated" in reader)
    else:
        found = batches(Path(path), BATCH_SIZE, items=ITEMS[kind])
        found = found.as_torch() if HAS_TORCH else found
    iterator = iter(found)
    for _ in itertools.islice(iterator, WARM_UP):
        pass
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < secs:
        next(iterator)
        count += 1
    return count / passed


def build(source: Any, folder: Path) -> Path:
    """Stores a dataset, and returns the path of the store."""
    began = time.perf_counter()
    num_items = batches(source, 1, store_dir=folder).num_items
    num_bytes = sum(file.stat().st_size for file in folder.rglob("*"))
    print(f"  {num_items:,} items stored in {time.perf_counter() - began:.1f} s, {num_bytes / 1e6:,.1f} MB", flush=True)
    (path,) = folder.iterdir()
    return path


def compare(kind: str, num_episodes: int, runs: int, secs: float) -> None:
    """Prints the medians of all runs, and of the ratios of each run."""
    print(f"{kind}:")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = write(kind, num_episodes, folder)
        baselines = BASELINES[kind]
        readers = dict.fromkeys(baselines if HAS_TORCH else (), dataset)
        if kind != "vectors":
            readers["batches, JPEG"] = build(load(dataset, image_decoding=False), folder / "files")
        readers["batches" if kind == "vectors" else "batches, pixels"] = build(dataset, folder / "stores")
        if kind == "histories":
            readers[DECODER] = dataset
        rates: dict[str, list[float]] = {reader: [] for reader in readers}
        for _, (reader, path) in itertools.product(range(runs), readers.items()):
            command = [sys.executable, __file__, "--measure", reader, kind, str(path), str(secs)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            rates[reader].append(json.loads(output.splitlines()[-1]))
    for reader, rate in rates.items():
        baseline = "" if reader == baselines[0] or not HAS_TORCH else baselines[0]
        ratios = [one / other for one, other in zip(rate, rates.get(baseline, ()), strict=False)]
        record("batches", f"{kind}: {reader}", statistics.median(rate), "batches/s", ratios, baseline=baseline)
        print(f"  {reader:26} {statistics.median(rate):8,.1f} batches/s", end="")
        for baseline in () if reader in baselines else (one for one in (*baselines, DECODER) if one in rates):
            ratio = statistics.median(one / other for one, other in zip(rate, rates[baseline], strict=True))
            print(f"   {ratio:.1f}x {baseline}", end="")
        print("", flush=True)


def main() -> None:
    """Compares the rates of all kinds of items."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=list(ITEMS))
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--secs", type=float, default=5.0)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parse_arguments(parser)
    if arguments.measure is not None:
        *texts, secs = arguments.measure
        print(json.dumps(measure(*texts, float(secs))))
        return
    print_machine()
    if not HAS_TORCH:
        print("PyTorch is not installed: the rows of the DataLoader are left out")
    print("target: 2x the rate of a DataLoader; histories 5x as pixels, and as JPEG 0.8x the decoder")
    for kind in arguments.kinds:
        compare(kind, arguments.episodes, arguments.runs, arguments.secs)


if __name__ == "__main__":
    main()
