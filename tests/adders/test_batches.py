"""Tests that adders convert a batch of episodes to the same items, bit for bit, as each episode alone."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode

from rlds2reverb.adders import (
    GAE,
    ChunkTransitions,
    InitialPriorities,
    NStep,
    ReturnToGo,
    StepContextWindows,
    StepEpisodes,
    StepOffsets,
    StepWindows,
    Transitions,
    Windows,
    compose,
)
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.sampling.batch_dataset import sample_dataset
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.priorities import ByReturn
from rlds2reverb.types.tables import TableConfig

LENGTHS = (4, 1, 2, 7, 12, 1, 3)
TD = InitialPriorities("td", n=3, gamma=0.97)


def make_batch(lengths=LENGTHS):
    """Returns episodes of random numbers, whose sums and products are inexact; every other one is terminated."""
    random = np.random.default_rng(1)
    episodes = []
    for index, length in enumerate(lengths):
        steps = episode(length, terminal=index % 2 == 0)
        steps["reward"] = random.normal(size=length).astype(np.float32)
        steps["value"] = random.normal(size=length).astype(np.float32)
        steps["discount"] *= random.uniform(0.5, 1, length).astype(np.float32)
        episodes.append(Episode(steps, index))
    return EpisodeBatch(episodes)


BATCHED = [
    NStep(3, 0.97),
    GAE(0.97, 0.9),
    *(StepWindows(3, 2, end) for end in ("write", "zero_pad", "truncate")),
    StepEpisodes(12, "end"),
    compose(TD, NStep(3, 0.97)),
    compose(NStep(3, 0.97), StepWindows(2, 1, "zero_pad")),
]
MORE_BATCHED = [
    NStep(1, 0.99),
    NStep(50, 0.97, discount_power="m"),
    NStep(3, 0.97, grow_at_start=True),
    StepContextWindows(3),
    compose(NStep(2, 0.97), StepContextWindows(3)),
    Transitions(2),
    ChunkTransitions(3, repeats_last=True),
    StepOffsets({"observation": [-1, 0], "action": range(3), "reward": 0}),
    Windows(2),
    ReturnToGo(0.97),
    *(StepWindows(3, 2, end) for end in ("last", "null_padding", "drop")),
    StepWindows(3),
    *(StepEpisodes(12, padding) for padding in ("none", "start")),
    TD,
    compose(GAE(0.97, 0.9), ReturnToGo(0.9), StepWindows(4, 1, "last")),
    compose(TD, StepWindows(2, 1, "last")),
]


@pytest.mark.parametrize("adder", mark_slow_except([BATCHED[2], BATCHED[6]], BATCHED + MORE_BATCHED), ids=repr)
def test_batches_match_single_episodes(adder):
    batch = make_batch()
    converted = adder.convert_batch(batch)
    assert converted is not None and len(converted.num_items) == len(LENGTHS)
    for position, single in enumerate(batch.episodes):
        got, expected = converted.episode_items(position), adder(single)
        assert type(got) is type(expected) and got.squeeze == expected.squeeze
        assert_equal_nests(got.columns, expected.columns)
        assert (got.starts.tolist(), got.lengths.tolist()) == (expected.starts.tolist(), expected.lengths.tolist())
        if hasattr(expected, "priorities"):
            assert got.priorities.tobytes() == expected.priorities.tobytes()


@pytest.mark.parametrize(
    "adder",
    [
        GAE(0.97, 0.9, lambda observations: observations[:, 0]),
        InitialPriorities("return"),
        StepWindows(3, end="continue"),
        compose(InitialPriorities("return", highest=9), NStep(3, 0.97)),
    ],
    ids=repr,
)
def test_unsupported_batches_return_none(adder):
    assert adder.convert_batch(make_batch()) is None


def test_error_names_the_episode(tmp_path):
    adder = StepEpisodes(11)
    assert adder.convert_batch(make_batch()) is None
    with pytest.raises(ValueError, match="episode 4: an episode has more rows than max_length, 11"):
        ingest([single.steps for single in make_batch().episodes], tmp_path / "out", adder=adder)


@pytest.mark.slow
@pytest.mark.parametrize("with_priorities", [True, False])
def test_short_episodes_are_stored_with_their_priorities(with_priorities):
    all_steps = [single.steps for single in make_batch((3,) * 40).episodes]
    adder = compose(TD, NStep(2, 0.97)) if with_priorities else NStep(2, 0.97)
    priority = TD if with_priorities else ByReturn(-4, 4)
    spec = NStep(2, 0.97).item_spec(tree.map_structure(lambda c: tf.TensorSpec(c.shape[1:], c.dtype), all_steps[0]))
    with ReplayServer([TableConfig()], spec) as server:
        report = ingest(all_steps, server, adder=adder, priority=priority)
        assert report.items == 80 and server.client.server_info()["replay"].current_size == 80
        stored = {}
        for sample in sample_dataset(server, "replay", batch_size=64).take(10):
            stored.update(
                zip(sample.data["value"].numpy().tolist(), sample.info.priority.numpy().tolist(), strict=True)
            )
    for index, steps in enumerate(all_steps):
        items = adder(Episode(steps, index))
        expected = np.broadcast_to(priority(Episode(steps, index), items), len(items))
        for at, value in enumerate(steps["value"][:2]):
            if value.item() in stored:
                assert stored[value.item()] == pytest.approx(expected[at])
