"""The priorities that items begin with: constant, by return, or a function."""

import numpy as np
import pytest
from reference_impls import episode

from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.episodes import Episode
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.priorities import ByReturn, compute_priorities
from rlds2reverb.sources import load
from rlds2reverb.tables import Selector, TableConfig
from rlds2reverb.trajectory_items import TrajectoryWindows

ONE = Episode(episode(3, terminal=True), 0)  # rewards 100, 101, 102: a return of 303
ITEMS = TrajectoryWindows()(ONE)


def test_one_priority_stands_for_all_and_a_function_gives_each_its_own():
    assert compute_priorities(2.0, ONE, ITEMS).tolist() == [2, 2]
    assert compute_priorities(lambda one, items: 3, ONE, ITEMS).tolist() == [3, 3]
    assert compute_priorities(lambda one, items: items.starts + 1, ONE, ITEMS).tolist() == [1, 2]


def test_as_many_priorities_as_items():
    with pytest.raises(ValueError, match="the priorities of episode 0 do not fit its 2 items"):
        compute_priorities(lambda one, items: [1, 2, 3], ONE, ITEMS)
    with pytest.raises(ValueError, match="the priorities of episode 0 do not fit"):
        compute_priorities(lambda one, items: "high", ONE, ITEMS)
    with pytest.raises(ValueError, match=r"the priority of item 1 of episode 0 is nan, expected a finite number"):
        compute_priorities(lambda one, items: [1, np.nan], ONE, ITEMS)


def test_by_return_goes_from_the_smallest_to_one():
    assert ByReturn(0, 606)(ONE, ITEMS) == 0.5
    assert ByReturn(303, 606)(ONE, ITEMS) == 0.01
    assert ByReturn(303, 606, smallest=0.2)(ONE, ITEMS) == 0.2
    assert ByReturn(0, 100)(ONE, ITEMS) == 1
    assert ByReturn(303, 303)(ONE, ITEMS) == 1


def test_by_return_finds_the_lowest_and_the_highest():
    source = load([episode(length, terminal=True) for length in (3, 1, 2)])
    assert ByReturn.of(source) == ByReturn(100, 303)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 1), "returns go from 2 to 1, expected finite numbers in rising order"),
        ((float("nan"), 1), "returns go from nan to 1"),
        ((0, 1, 0), "smallest is 0, expected a number above 0 and up to 1"),
    ],
)
def test_by_return_refuses_what_makes_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        ByReturn(*arguments)


@pytest.mark.parametrize("writer", ["bulk", "public"])
def test_each_item_has_its_own_priority_in_the_table(writer):
    source = load([episode(4, terminal=True)])
    config = TableConfig("items", Selector("max_heap"), Selector("fifo"), max_times_sampled=1)
    with ReplayServer([config], TrajectoryWindows().item_spec(source.step_spec)) as server:
        ingest(
            source, server.address, "items", priority=lambda one, items: [2, 7, 5], options=IngestOptions(writer=writer)
        )
        samples = list(server.client.sample("items", 3, emit_timesteps=False))
    assert [sample.info.priority for sample in samples] == [7, 5, 2]
    assert [sample.data[1][0, 0] for sample in samples] == [11, 12, 10]
