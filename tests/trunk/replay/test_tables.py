"""Several tables in a buffer: the same elements in each, drawn from each in its own way, whatever happens to them."""

import shutil
import zlib
from dataclasses import replace

import numpy as np
import pytest
from replayed import buffers, item, items, number_in
from reverb.cc import schema_pb2

from rlds2reverb._encoding import tfrecords
from rlds2reverb._encoding.keys import LOWEST
from rlds2reverb.errors import CheckpointError, ServerUnavailable
from rlds2reverb.replay import (
    AdvancedReplayBuffer,
    BufferConfig,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
    RateLimited,
    SequenceReplayBuffer,
)
from rlds2reverb.tables import Selector

TWO = {"even": Selector("uniform"), "steep": Selector("prioritized", 2.0)}
NAMES = ("demo", "even", "steep")


@pytest.fixture
def make():
    with buffers() as build:
        yield build


def contents(buffer, folder):
    """Of each table the numbers and priorities that are in it, as a checkpoint has them."""
    path = folder / "items.tfrecord"
    path.write_bytes(zlib.decompress(buffer.state_dict()["files"]["items.tfrecord"]))
    tables = {name: {} for name in buffer.table_names}
    for record in tfrecords.read(path):
        found = schema_pb2.PrioritizedItem.FromString(record)
        tables[found.table][found.key - LOWEST] = found.priority
    return tables


def assert_all_hold(buffer, folder, numbers):
    """All tables hold these elements, with the priorities of the ledger."""
    wanted = dict(zip(numbers, buffer._ledger.priorities_of(np.array(numbers, np.int64)), strict=True))
    assert contents(buffer, folder) == dict.fromkeys(buffer.table_names, wanted)
    assert buffer.count() == len(wanted)


def assert_drawn(sampled, chance):
    counts = np.bincount([number_in(s) for s in sampled], minlength=len(chance))
    assert not counts[chance == 0].any()
    wanted = len(sampled) * chance[chance > 0]
    assert ((counts[chance > 0] - wanted) ** 2 / wanted).sum() < 30  # chi-square of up to 3: one in a million


@pytest.mark.parametrize("kind", [AdvancedReplayBuffer, pytest.param(NaiveReplayBuffer, marks=pytest.mark.slow)])
def test_each_table_is_drawn_by_its_own_selector(make, kind):
    buffer = make(kind, alpha=1.0, beta=1.0, anneal_step=0, eps=0.0, sample_min_limit_ratio=0, other_tables=TWO)
    assert buffer.table_names == NAMES and buffer.table_name == "demo"
    ids = buffer.extend([item(n, priority=n + 1.0) for n in range(4)])
    buffer.update({"replay_unique_id": ids, "priority": [0.0, 1.0, 2.0, 4.0]})
    priorities = np.array([0.0, 1.0, 2.0, 4.0])
    even = np.full(4, 0.25)
    chances = {
        None: priorities / 7 if kind is AdvancedReplayBuffer else even,
        "even": even,
        "steep": priorities**2 / 21,
    }
    for table, chance in chances.items():
        sampled = buffer.sample(3000, 0, table=table)
        assert_drawn(sampled, chance)
        weights = {number_in(s): s["IS"] for s in sampled}
        wanted = chance[chance > 0].min() / chance[chance > 0]
        np.testing.assert_allclose([weights[n] for n in np.flatnonzero(chance)], wanted, rtol=1e-9)
        assert {number_in(s): s["priority"] for s in sampled}[3] == 4.0
        batch = next(iter(buffer.dataset(512, table=table)))
        numbers = batch.info.key.numpy() - LOWEST
        assert set(numbers.tolist()) <= set(np.flatnonzero(chance).tolist())
        np.testing.assert_allclose(batch.info.probability.numpy(), chance[numbers], rtol=1e-6)
    assert buffer.sample_count == 9000
    assert sorted(s["use"] for s in buffer.sample(1, 0, table="even"))[0] > 1  # uses are counted over all tables


def test_a_range_and_distinct_elements_are_drawn_by_the_selector_of_the_table(make):
    buffer = make(alpha=1.0, sample_min_limit_ratio=0, other_tables=TWO)
    buffer.extend([item(n, priority=float(n)) for n in range(4)])
    assert {number_in(s) for s in buffer.sample(200, 0, slice(0, 2))} == {1}
    assert_drawn(buffer.sample(1000, 0, slice(0, 2), table="even"), np.array([0.5, 0.5]))
    assert_drawn(buffer.sample(1000, 0, slice(1, 3), table="steep"), np.array([0.0, 0.2, 0.8]))
    distinct = make(replace=False, other_tables=TWO)
    distinct.extend([item(0, priority=0.0), item(1)])
    assert {number_in(s) for s in distinct.sample(2, 0, table="even")} == {0, 1}
    assert distinct.sample(2, 0, table="steep") is None
    assert distinct.sample_check(2, 0, table="even") and not distinct.sample_check(2, 0)


def test_a_table_that_is_not_there_is_told(make):
    buffer = make(other_tables=TWO)
    buffer.append(item(0))
    message = "buffer 'demo' has no table 'odd'; it has 'demo', 'even', 'steep'"
    for call in (buffer.sample, buffer.sample_check):
        with pytest.raises(ValueError, match=message):
            call(1, 0, table="odd")
    with pytest.raises(ValueError, match=message):
        buffer.dataset(1, table="odd")
    with pytest.raises(ValueError, match="buffer 'plain' has no table 'even'; it has 'plain'"):
        make(name="plain").sample(1, 0, table="even")


def test_all_tables_hold_the_same_whatever_happens(make, tmp_path):
    buffer = make(max_size=5, max_staleness=10, eps=0.5, other_tables=TWO)
    ids = buffer.extend([item(n, collect_iter=n, priority=n + 1.0) for n in range(4)])
    assert_all_hold(buffer, tmp_path, [0, 1, 2, 3])
    buffer.update({"replay_unique_id": [*ids, ids[0]], "priority": [9.0, 8.0, 7.0, 6.0, 0.0]})
    assert buffer._ledger.priorities_of(np.arange(4)).tolist() == [0.5, 8.5, 7.5, 6.5]
    assert_all_hold(buffer, tmp_path, [0, 1, 2, 3])
    buffer.extend([item(n, collect_iter=20) for n in range(4, 7)])  # two leave, since there is room for five
    assert_all_hold(buffer, tmp_path, [2, 3, 4, 5, 6])
    assert buffer.sample(1, 13, table="even") and buffer.count() == 3  # 2 and 3 are too old
    assert_all_hold(buffer, tmp_path, [4, 5, 6])
    buffer.extend(items(7, 8))
    assert_all_hold(buffer, tmp_path, [4, 5, 6, 7, 8])
    buffer.extend(items(*range(9, 21)))  # more than there is room for
    assert_all_hold(buffer, tmp_path, [16, 17, 18, 19, 20])
    buffer.clear()
    assert_all_hold(buffer, tmp_path, [])
    buffer.append(item(21))
    assert_all_hold(buffer, tmp_path, [21])


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, SequenceReplayBuffer])
def test_episodes_and_sequences_are_in_all_tables(make, kind):
    length = {"length": 3} if kind is SequenceReplayBuffer else {}
    buffer = make(kind, sample_min_limit_ratio=0, other_tables=TWO, **length)
    buffer.extend([{"x": np.arange(3, dtype=np.float32) + 10 * n} for n in range(3)])
    for table in NAMES:
        assert {tuple(s["x"].tolist()) for s in buffer.sample(100, 0, table=table)} == {
            (0, 1, 2),
            (10, 11, 12),
            (20, 21, 22),
        }


def test_tables_share_the_data_of_elements(make):
    sizes = []
    for others in ({}, TWO):
        buffer = make(other_tables=others)
        rng = np.random.default_rng(0)
        buffer.extend([{"x": rng.random(1000)} for _ in range(20)])
        sizes.append(len(buffer.state_dict()["files"]["chunks.tfrecord"]))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


@pytest.mark.parametrize("step", ["mutate_priorities", "delete"])
def test_what_reached_some_tables_only_ends_the_buffer(make, monkeypatch, step):
    buffer = make(other_tables=TWO)
    (unique_id,) = buffer.extend(items(0))
    holder = buffer._store._client if step == "mutate_priorities" else buffer._store._service
    done = getattr(holder, step)

    def fail_at_the_second(table, *arguments, **options):
        if table == "even":
            raise MemoryError("no more")
        return done(table, *arguments, **options)

    monkeypatch.setattr(holder, step, fail_at_the_second)
    with pytest.raises(MemoryError):
        buffer.clear() if step == "delete" else buffer.update({"replay_unique_id": [unique_id], "priority": [2.0]})
    with pytest.raises(ServerUnavailable, match=r"buffer 'demo' was lost before \(no more\); make a new one"):
        buffer.sample(1, 0)


def test_the_least_holds_for_each_table_and_the_most_for_all_together(make):
    buffer = make(other_tables=TWO, push_sample_rate_limit=(1.0, 1.25), sample_min_limit_ratio=0)
    buffer.extend(items(*range(4)))
    assert len(buffer.sample(4, 0)) == 4 and buffer.sample(1, 0) is None
    assert buffer.refusal.startswith("of table 'demo' of buffer 'demo' 4 were pushed and 4 sampled; sampling 1 more")
    with pytest.raises(RateLimited, match="'demo' had 4 pushed and 4 sampled; pushing 2 more would be more than 1.25"):
        buffer.extend(items(4, 5))
    assert len(buffer.sample(3, 0, table="even")) == 3 and buffer.sample(2, 0, table="even") is None
    assert "of table 'even' of buffer 'demo' 4 were pushed and 3 sampled; sampling 2 more" in buffer.refusal
    buffer.extend(items(*range(4, 8)))  # 8 for 7
    with pytest.raises(RateLimited, match="'demo' had 8 pushed and 7 sampled"):
        buffer.append(item(8))
    assert len(buffer.sample(8, 0, table="steep")) == 8 and buffer.sample(1, 0, table="steep") is None


CONFIG = BufferConfig(max_size=6, other_tables=TWO, push_sample_rate_limit=(0.5, 2.0), sample_min_limit_ratio=0)


def test_a_checkpoint_and_a_state_keep_all_tables_and_their_counts(tmp_path):
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "root") as buffer:
        buffer.extend([item(n, priority=n + 1.0) for n in range(8)])
        assert buffer.sample(6, 0) and all(buffer.sample(3, 0, table="even") for _ in range(3))
        buffer.checkpoint()
        state = buffer.state_dict()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "root") as again:
        with AdvancedReplayBuffer("demo", CONFIG) as other:
            other.extend(items(0))
            other.load_state_dict(state)
            for one in (again, other):
                assert_all_hold(one, tmp_path, [2, 3, 4, 5, 6, 7])
                left = {table: 16 - one._store.counts(table)[1] for table in NAMES}
                assert left == {"demo": 10, "even": 7, "steep": 16}
                given = {table: sum(bool(one.sample(1, 0, table=table)) for _ in range(20)) for table in NAMES}
                assert given == left
                assert one.append(item(8)) == "demo_8"
                assert_all_hold(one, tmp_path, [3, 4, 5, 6, 7, 8])
            with AdvancedReplayBuffer("demo", CONFIG) as empty:
                other.load_state_dict(empty.state_dict())
            assert [other._store.counts(table) for table in NAMES] == [(0, 0)] * 3
            other.append(item(0))
            assert_all_hold(other, tmp_path, [0])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A root with a checkpoint, and a state."""
    root = tmp_path_factory.mktemp("saved") / "root"
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as buffer:
        buffer.extend(items(0, 1))
        buffer.checkpoint()
        yield root, buffer.state_dict()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({}, r"with other_tables {'even': 'uniform', 'steep': 'prioritized:2'}, this one has {}; make it as that one"),
        ({"even": TWO["even"]}, "with other_tables .*, this one has {'even': 'uniform'}; make it as that one was"),
        (
            TWO | {"even": Selector("prioritized", 0.1)},
            "with other_tables .*, this one has {'even': 'prioritized:0.1', 'steep'",
        ),
    ],
)
def test_other_tables_than_those_that_were_saved_are_refused(saved, tmp_path, others, message):
    root, state = saved
    with AdvancedReplayBuffer("demo", replace(CONFIG, other_tables=others)) as buffer:
        with pytest.raises(CheckpointError, match="the state is of a buffer " + message):
            buffer.load_state_dict(state)
    copy = tmp_path / "root"
    shutil.copytree(root, copy)
    with pytest.raises(CheckpointError, match="the state is of a buffer " + message):
        AdvancedReplayBuffer("demo", replace(CONFIG, other_tables=others), checkpoint_root=copy)


def test_a_state_that_lacks_a_table_is_refused(saved):
    _, state = saved
    with AdvancedReplayBuffer("demo", CONFIG) as buffer:
        for tables in (state["tables"][:2], None):
            with pytest.raises(CheckpointError, match="the state lacks tables; give what state_dict gave"):
                buffer.load_state_dict({**state, "tables": tables})
        with pytest.raises(CheckpointError, match="the state lacks 'num_drawn'; give what state_dict gave"):
            buffer.load_state_dict({key: value for key, value in state.items() if key != "num_drawn"})
        with pytest.raises(CheckpointError, match="the state of buffer 'demo' is damaged .'steep'"):
            buffer.load_state_dict({**state, "num_drawn": {"demo": 0, "even": 0}})
        assert buffer.count() == 0 and buffer.append(item(0)) == "demo_0"


# --- priorities whose powers are rounded to 0


def test_a_priority_that_is_too_low_to_be_drawn_is_refused_where_it_is_given(make):
    for options in ({"alpha": 2.0}, {"other_tables": TWO}):
        buffer = make(eps=0.0, **options)
        (unique_id,) = buffer.extend(items(0))
        told = (
            "the priority of .* is 1e-300, so low that its power is 0 and it cannot be drawn; give at least 1.49e-154"
        )
        with pytest.raises(ValueError, match=told.replace(".*", "item 1")):
            buffer.extend([item(1), item(2, priority=1e-300)])
        with pytest.raises(ValueError, match=told.replace(".*", "demo_0 with eps")):
            buffer.update({"replay_unique_id": [unique_id], "priority": [1e-300]})
        assert buffer.push_count == 1 and buffer.sample(1, 0)[0]["priority"] == 1.0
    added = make(alpha=2.0, eps=0.5)
    (unique_id,) = added.extend(items(0))
    assert added.update({"replay_unique_id": [unique_id], "priority": [1e-300]}) == 1
    low = make(alpha=1.0)
    low.append(item(0, priority=1e-300))  # its power is not 0
    assert low.sample(1, 0, slice(0, 1))


def test_the_lowest_priorities_that_are_taken_are_drawn_as_they_should_be(make):
    buffer = make(alpha=2.0, sample_min_limit_ratio=0)
    lowest = buffer.lowest_priority
    buffer.extend([item(0, priority=lowest), item(1, priority=2 * lowest), item(2, priority=0.0)])
    assert_drawn(buffer.sample(2000, 0), np.array([0.2, 0.8, 0.0]))
    assert_drawn(buffer.sample(1000, 0, slice(0, 1)), np.array([1.0]))
    buffer.append(item(3, priority=1e12))
    assert_drawn(buffer.sample(100, 0), np.array([0.0, 0.0, 0.0, 1.0]))


def test_the_remembered_priority_does_not_decay_to_what_cannot_be_drawn(make):
    buffer = make(alpha=20.0, eps=0.0, priority_decay=1e-9)
    (unique_id,) = buffer.extend(items(0))
    for _ in range(3):
        buffer.update({"replay_unique_id": [unique_id], "priority": [0.0]})
    assert buffer.highest_priority == buffer.lowest_priority > 0
    buffer.append(item(1))
    assert number_in(buffer.sample(1, 0)[0]) == 1


def test_a_state_with_a_priority_that_cannot_be_drawn_is_refused():
    config = BufferConfig(alpha=2.0)
    with AdvancedReplayBuffer("demo", config) as buffer:
        buffer.extend(items(0, 1))
        state = buffer.state_dict()
        state["ledger"]["priorities"][1] = 1e-300
        with pytest.raises(CheckpointError, match=r"is damaged \(the priority of element 1 is 1e-300, so low that"):
            buffer.load_state_dict(state)
        assert buffer.count() == 2
