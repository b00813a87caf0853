"""Adders that take several episodes at once make of them, bit for bit, what they make of each alone."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf
import tree
from properties import slow_but
from reference_impls import episode
from rlds2reverb.adders import GAE, InitialPriorities, NStep, ReturnToGo, StepEpisodes, StepWindows, compose

from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.ingestion import ingest
from rlds2reverb.priorities import ByReturn
from rlds2reverb.sampling.dataset import sample_dataset
from rlds2reverb.tables import TableConfig

LENGTHS = (4, 1, 2, 7, 12, 1, 3)
TD = InitialPriorities("td", n=3, gamma=0.97)


def some(lengths=LENGTHS):
    """Episodes of uneven numbers, whose products and sums round; each second one ends in a terminal state."""
    random = np.random.default_rng(1)
    many = []
    for at, length in enumerate(lengths):
        steps = episode(length, terminal=at % 2 == 0)
        steps["reward"] = random.normal(size=length).astype(np.float32)
        steps["value"] = random.normal(size=length).astype(np.float32)
        steps["discount"] *= random.uniform(0.5, 1, length).astype(np.float32)
        many.append(Episode(steps, at))
    return EpisodeBatch(many)


TOGETHER = [
    NStep(3, 0.97),
    GAE(0.97, 0.9),
    *(StepWindows(3, 2, end) for end in ("write", "zero_pad", "truncate")),
    StepEpisodes(12, "end"),
    compose(TD, NStep(3, 0.97)),
    compose(NStep(3, 0.97), StepWindows(2, 1, "zero_pad")),
]
MORE = [
    NStep(1, 0.99),
    NStep(50, 0.97, discount_power="m"),
    ReturnToGo(0.97),
    *(StepWindows(3, 2, end) for end in ("last", "null_padding", "drop")),
    StepWindows(3),
    *(StepEpisodes(12, padding) for padding in ("none", "start")),
    TD,
    compose(GAE(0.97, 0.9), ReturnToGo(0.9), StepWindows(4, 1, "last")),
    compose(TD, StepWindows(2, 1, "last")),
]


@pytest.mark.parametrize("adder", slow_but(TOGETHER[::2], TOGETHER + MORE), ids=repr)
def test_many_episodes_give_the_items_of_each(adder):
    batch = some()
    made = adder.convert_batch(batch)
    assert made is not None and len(made.num_items) == len(LENGTHS)
    for number, one in enumerate(batch.episodes):
        got, wanted = made.of_episode(number), adder(one)
        assert type(got) is type(wanted) and got.squeeze == wanted.squeeze
        for ours, theirs in zip(tree.flatten(got.columns), tree.flatten(wanted.columns), strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
        assert (got.starts.tolist(), got.lengths.tolist()) == (wanted.starts.tolist(), wanted.lengths.tolist())
        if hasattr(wanted, "priorities"):
            assert got.priorities.tobytes() == wanted.priorities.tobytes()


@dataclass(frozen=True)
class Doubled(NStep):
    """Somebody's own, which overrides what is made of one episode."""

    def rows(self, columns):
        rows = super().rows(columns)
        return {**rows, "reward": 2 * rows["reward"]}


@pytest.mark.parametrize(
    "adder",
    [
        NStep(3, 0.97, grow_at_start=True),
        GAE(0.97, 0.9, lambda observations: observations[:, 0]),
        InitialPriorities("return"),
        StepWindows(3, end="continue"),
        Doubled(3, 0.97),
        compose(ReturnToGo(), Doubled(3, 0.97)),
        compose(InitialPriorities("return", highest=9), NStep(3, 0.97)),
    ],
    ids=repr,
)
def test_others_take_one_episode_at_a_time(adder):
    assert adder.convert_batch(some()) is None


def test_an_error_is_left_to_the_episode_that_it_is_in(tmp_path):
    adder = StepEpisodes(11)
    assert adder.convert_batch(some()) is None
    with pytest.raises(ValueError, match="episode 4: an episode has more rows than the max_length of 11"):
        ingest([one.steps for one in some().episodes], tmp_path / "out", adder=adder)


@pytest.mark.parametrize("own", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_short_episodes_arrive_with_their_priorities(own):
    many = [one.steps for one in some((3,) * 40).episodes]
    adder = compose(TD, NStep(2, 0.97)) if own else NStep(2, 0.97)
    priority = TD if own else ByReturn(-4, 4)
    spec = NStep(2, 0.97).item_spec(tree.map_structure(lambda c: tf.TensorSpec(c.shape[1:], c.dtype), many[0]))
    with ReplayServer([TableConfig()], spec) as server:
        report = ingest(many, server, adder=adder, priority=priority)
        assert report.items == 80 and server.client.server_info()["replay"].current_size == 80
        table = {}
        for sample in sample_dataset(server, "replay", batch_size=64).take(10):
            table.update(zip(sample.data["value"].numpy().tolist(), sample.info.priority.numpy().tolist(), strict=True))
    for index, steps in enumerate(many):
        items = adder(Episode(steps, index))
        wanted = priority(Episode(steps, index), items)
        wanted = np.broadcast_to(wanted, len(items))
        for at, value in enumerate(steps["value"][:2]):
            if value.item() in table:
                assert table[value.item()] == pytest.approx(wanted[at])
