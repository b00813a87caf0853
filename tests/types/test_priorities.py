"""Tests of initial priorities: constant, by return, or from a function."""

import numpy as np
import pytest
from reference_impls import episode

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.priorities import ByReturn, compute_priorities
from rlds2reverb.types.tables import Selector, TableConfig

EPISODE = Episode(episode(3, terminal=True), 0)  # rewards 100 and 101 of two transitions: a return of 201
ITEMS = TrajectoryWindows()(EPISODE)


def test_priority_is_a_number_or_a_function_of_items():
    assert compute_priorities(2.0, EPISODE, ITEMS).tolist() == [2, 2]
    assert compute_priorities(lambda episode, items: 3, EPISODE, ITEMS).tolist() == [3, 3]
    assert compute_priorities(lambda episode, items: items.starts + 1, EPISODE, ITEMS).tolist() == [1, 2]


def test_invalid_priorities_raise():
    with pytest.raises(ValueError, match="the priorities of episode 0 do not match its 2 items"):
        compute_priorities(lambda episode, items: [1, 2, 3], EPISODE, ITEMS)
    with pytest.raises(ValueError, match="the priorities of episode 0 do not match"):
        compute_priorities(lambda episode, items: "high", EPISODE, ITEMS)
    with pytest.raises(ValueError, match=r"the priority of item 1 of episode 0 must be a finite number .*, got nan"):
        compute_priorities(lambda episode, items: [1, np.nan], EPISODE, ITEMS)


def test_by_return_is_linear_and_clipped():
    assert ByReturn(0, 402)(EPISODE, ITEMS) == 0.5
    assert ByReturn(201, 402)(EPISODE, ITEMS) == 0.01
    assert ByReturn(201, 402, min_priority=0.2)(EPISODE, ITEMS) == 0.2
    assert ByReturn(0, 100)(EPISODE, ITEMS) == 1
    assert ByReturn(201, 201)(EPISODE, ITEMS) == 1


def test_by_return_from_episodes_uses_lowest_and_highest_return():
    source = load([episode(length, terminal=True) for length in (3, 1, 2)])
    assert ByReturn.from_episodes(source) == ByReturn(0, 201)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 1), "lowest and highest must be finite numbers in ascending order, got 2 and 1"),
        ((float("nan"), 1), "lowest and highest must be finite .*, got nan and 1"),
        ((0, 1, 0), "min_priority must be a number in \\(0, 1\\], got 0"),
    ],
)
def test_by_return_raises_on_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ByReturn(*arguments)


@pytest.mark.parametrize("writer", ["bulk", "reverb"])
def test_each_item_keeps_its_priority_in_the_table(writer):
    source = load([episode(4, terminal=True)])
    config = TableConfig("items", Selector("max_heap"), Selector("fifo"), max_times_sampled=1)
    with ReplayServer([config], TrajectoryWindows().item_spec(source.step_spec)) as server:
        ingest(
            source,
            server.address,
            "items",
            priority=lambda episode, items: [2, 7, 5],
            options=IngestOptions(writer=writer),
        )
        samples = list(server.client.sample("items", 3, emit_timesteps=False))
    assert [sample.info.priority for sample in samples] == [7, 5, 2]
    assert [sample.data[1][0, 0] for sample in samples] == [11, 12, 10]
