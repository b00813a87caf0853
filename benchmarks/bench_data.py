"""Data for the benchmarks: episodes of floats in HalfCheetah's shape, of images, and in D4RL files."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np

from rlds2reverb.types.episodes import from_transitions


def print_machine() -> None:
    """Prints the machine and the versions that rates depend on."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "tf-agents", "dm-reverb"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}")


def make_float_episodes(count: int, length: int = 1000) -> list[dict]:
    """Returns smooth random walks of HalfCheetah's shape, all truncated, with `length` transitions each."""
    random = np.random.default_rng(0)

    def walk(width: int, rows: int) -> np.ndarray:
        return (np.cumsum(random.normal(size=(rows, width)), axis=0) / 30).astype(np.float32)

    return [
        from_transitions(walk(17, length + 1), walk(6, length), rewards=walk(1, length)[:, 0], terminated=False)
        for _ in range(count)
    ]


def make_image_episodes(count: int, length: int = 200) -> list[dict]:
    """Returns episodes of 64x64x3 images: a textured, shaded background with a moving square."""
    random = np.random.default_rng(0)
    shade = np.linspace(0, 200, 64).astype(np.uint8)
    background = np.stack(np.broadcast_arrays(shade[:, None], shade[None], shade[:, None] // 2), axis=-1).copy()
    episodes = []
    for _ in range(count):
        texture = random.integers(0, 40, (64, 64, 1), np.uint8) * (random.random((64, 64, 1)) < 0.2)
        frames = np.tile(background + texture, (length + 1, 1, 1, 1))
        for step, (x, y) in enumerate(random.integers(0, 56, (length + 1, 2))):
            frames[step, y : y + 8, x : x + 8] = (255, 60, 60)
        actions = random.normal(size=(length, 2)).astype(np.float32)
        rewards = random.normal(size=length).astype(np.float32)
        episodes.append(from_transitions(frames, actions, rewards=rewards, terminated=False))
    return episodes


def write_d4rl(path: Path, episodes: list[dict]) -> None:
    """Writes episodes to a D4RL file, compressed as D4RL's own files are."""
    ends = [np.arange(len(steps["reward"]) - 1) == len(steps["reward"]) - 2 for steps in episodes]
    rows = {
        "observations": [steps["observation"][:-1] for steps in episodes],
        "next_observations": [steps["observation"][1:] for steps in episodes],
        "actions": [steps["action"][:-1] for steps in episodes],
        "rewards": [steps["reward"][:-1] for steps in episodes],
        "terminals": [np.zeros_like(end) for end in ends],
        "timeouts": ends,
    }
    with h5py.File(path, "w") as file:
        for name, columns in rows.items():
            file.create_dataset(name, data=np.concatenate(columns), compression="gzip")
