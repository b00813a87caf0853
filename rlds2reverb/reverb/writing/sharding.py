"""The distribution of a dataset's episodes over several servers or directories."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from rlds2reverb.datasets import Source
from rlds2reverb.errors import ArgumentError
from rlds2reverb.types.episodes import Episode

from ..wire.keys import make_keys

_BLOCK_EPISODES = 1 << 10


def assign_shards(episodes: np.ndarray, num_shards: int) -> np.ndarray:
    """Returns the shard of each episode, int64 `[E]` in [0, num_shards), by a hash of its index.

    The assignment depends on nothing else, so that all processes that read a dataset make the same one.

    Args:
      episodes: int `[E]`, indices of the episodes in the dataset.
      num_shards: number of shards, >= 1.
    """
    hashes = make_keys(np.zeros(len(episodes), np.uint64), np.asarray(episodes))
    return (hashes % np.uint64(num_shards)).astype(np.int64)


def require_no_empty_shard(source: Source, num_shards: int) -> None:
    """Raises `ValueError` if a shard would contain no episode with steps; reads until each shard has one.

    A source without any such episode is not an error here.
    """
    empty, num_episodes = set(range(num_shards)), 0
    for episode in source.read():
        if episode.num_steps:
            num_episodes += 1
            empty.discard(int(assign_shards(np.array([episode.index]), num_shards)[0]))
            if not empty:
                return
    if num_episodes:
        raise ArgumentError(
            f"shard {min(empty)} of {num_shards} would be empty, because a hash distributes the episodes and there are "
            f"only {num_episodes} with steps; use fewer shards"
        )


def select_shard(source: Source, shard: int, num_shards: int) -> Source:
    """Returns a source with the episodes of one shard, which keep their indices."""
    read = functools.partial(filter_shard, source, shard, num_shards)
    return replace(source, read=read, num_episodes=None, num_rows=None, count=None)


def filter_shard(episodes: Iterable[Episode], shard: int, num_shards: int) -> Iterator[Episode]:
    """Yields the episodes of one shard from consecutive episodes of a dataset."""
    iterator = iter(episodes)
    while block := list(itertools.islice(iterator, _BLOCK_EPISODES)):
        shards = assign_shards(np.array([episode.index for episode in block]), num_shards).tolist()
        yield from (episode for episode, own in zip(block, shards, strict=True) if own == shard)
