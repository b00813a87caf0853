"""Feeds: the batches are the adder's items bit for bit, drawn as they should be, and fit the agent."""

from itertools import islice

import numpy as np
import pytest
import tensorflow as tf
import tree
from rlds2reverb.adders import NStep
from rlds2reverb.learners import InMemoryDataset, Learner, StreamingDataset, collect_items, require_experience
from small_agents import MeanAgent, batches, items, transitions
from tf_agents.agents import data_converter
from tf_agents.trajectories import Trajectory, Transition

from rlds2reverb import PriorityWriter, ReplayServer, Selector, TableConfig, TrajectoryWindows, sample_dataset
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.items import Items
from rlds2reverb.sources import load


@pytest.fixture(scope="module")
def episodes(data):
    return list(islice(load(data / "d4rl" / "hopper_medium-v2.hdf5"), 3))


def iteration(number):
    return tf.constant(number, tf.int64)


def same_bits(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape
    assert one.tobytes() == other.tobytes()


# --- Resident items


@pytest.mark.parametrize("adder", [NStep(3, 0.99), TrajectoryWindows(2)], ids=["transitions", "trajectories"])
def test_drawn_rows_are_the_items_of_the_adder_bit_for_bit(episodes, adder):
    made = [adder(episode) for episode in episodes]
    expected = []
    for each in made:
        for start, length in zip(each.starts, each.lengths, strict=True):
            rows = slice(start, start + length)
            item = tree.map_structure(lambda column, rows=rows: np.asarray(column)[rows], each.columns)
            expected.append(tree.map_structure(lambda leaf: leaf[0], item) if each.squeeze else item)
    resident = InMemoryDataset(collect_items(made), 16, seed=3)
    assert resident.num_items == len(expected)
    for number in range(5):
        batch, info = resident.next(iteration(number))
        drawn = resident.drawn(iteration(number)).numpy()
        assert info == () and len(drawn) == 16
        for place, item in enumerate(drawn):
            got = tree.map_structure(lambda leaf, place=place: leaf.numpy()[place], batch)
            tree.map_structure(same_bits, got, tree.map_structure(np.asarray, expected[item]))
    spec = tf.nest.flatten(resident.experience_spec)
    assert [tuple(each.shape) for each in spec] == [tuple(each.shape) for each in tf.nest.flatten(batch)]


def test_draws_follow_from_the_seed_and_the_iteration_alone_and_are_uniform():
    resident, same = (InMemoryDataset(items(range(50)), 1000, seed=5) for _ in range(2))
    later = same.drawn(iteration(7)).numpy()
    drawn = np.stack([resident.drawn(iteration(number)).numpy() for number in range(20)])
    np.testing.assert_array_equal(drawn[7], later)
    assert (InMemoryDataset(items(range(50)), 1000, seed=6).drawn(iteration(7)).numpy() != later).any()
    assert len({row.tobytes() for row in drawn}) == 20
    counts = np.bincount(drawn.ravel(), minlength=50)
    chi_square = ((counts - 400) ** 2 / 400).sum()
    assert 20 < chi_square < 85.4  # 49 degrees of freedom: 0.9991 of all; the draws are fixed


def test_columns_of_all_kinds_come_back():
    columns = {"a": np.arange(6, dtype=np.float32).reshape(3, 2), "b": {"c": np.array([True, False, True]), "d": np.zeros((3, 0), np.float32)},
               "e": np.arange(12, dtype=np.float32).reshape(3, 2, 2), "f": np.array([2**40, 1, 2], np.int64)}  # fmt: skip
    resident = InMemoryDataset(Items(columns, np.arange(3), np.ones(3, np.int64), True), 8)
    batch, drawn = resident.next(iteration(0))[0], resident.drawn(iteration(0)).numpy()
    tree.map_structure(lambda got, column: same_bits(got.numpy(), column[drawn]), batch, columns)


@pytest.mark.parametrize(
    "made, arguments, sentence",
    [
        (Items({"x": np.zeros(3)}, np.arange(2), np.array([1, 2])), {}, "items have 1 to 2 rows, expected one length"),
        (items([]), {}, "there are no items to train from; are all episodes shorter than an item"),
        (items([1]), {"batch_size": 0}, "batch_size is 0"),
        (items([1]), {"seed": -1}, "seed is -1"),
    ],
)
def test_items_that_cannot_be_held_are_refused(made, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        InMemoryDataset(made, **{"batch_size": 4, **arguments})


def test_no_episodes_are_an_error():
    with pytest.raises(SourceError, match="there are no episodes"):
        collect_items([])


def test_n_step_gives_what_the_agents_converter_makes_of_trajectories(episodes):
    agent = MeanAgent()
    spec = tree.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), TrajectoryWindows(2).item_spec(episodes_spec(episodes))
    )
    converter = data_converter.AsTransition(dataclass_context(agent, spec), squeeze_time_dim=True)
    n_step, windows = NStep(1, 0.99), TrajectoryWindows(2)
    rows, pairs = (collect_items(adder(each) for each in episodes) for adder in (n_step, windows))
    ours = n_step.as_transition(tree.map_structure(lambda column: column[:64], rows.columns))
    at = pairs.starts[:64, None] + np.arange(2)
    theirs = converter(tree.map_structure(lambda column: tf.constant(column[at]), pairs.columns))
    for got, wanted in [
        (ours.time_step.observation, theirs.time_step.observation),
        (ours.action_step.action, theirs.action_step.action),
        (ours.next_time_step.reward, theirs.next_time_step.reward),
        (ours.next_time_step.discount, theirs.next_time_step.discount),  # no gamma in either: it counts once
        (ours.next_time_step.observation, theirs.next_time_step.observation),
    ]:
        same_bits(got.numpy(), wanted.numpy())


def episodes_spec(episodes):
    from rlds2reverb.sources.source import Source

    return Source("few", "memory", lambda: iter(episodes)).step_spec


def dataclass_context(agent, spec):
    from tf_agents.agents.data_converter import DataContext
    from tf_agents.trajectories import time_step_spec

    return DataContext(time_step_spec(spec.observation), spec.action, ())


# --- Data sets


def test_samples_pairs_and_plain_experience_are_taken(episodes):
    plain = batches(size=2)
    (experience, info), feed = StreamingDataset(plain).next(iteration(0)), StreamingDataset(plain)
    assert isinstance(experience, Transition) and info == () and not feed.has_info
    pairs = plain.map(lambda batch: (batch, ()))
    assert StreamingDataset(pairs).next(iteration(0))[0].next_time_step.reward.numpy().tolist() == [0.0, 1.0]
    iterator = iter(plain)
    next(iterator)
    assert StreamingDataset(iterator).next(iteration(0))[0].next_time_step.reward.numpy().tolist() == [1.0, 2.0]
    with pytest.raises(
        TypeError, match="dataset is a list, expected a tf.data.Dataset, its iterator or InMemoryDataset"
    ):
        StreamingDataset([])


# --- A prioritized table


@pytest.fixture(scope="module")
def served():
    """A server with transitions whose rewards are 0, 1, ..., 15."""
    spec = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), transitions(np.zeros(1)))
    with ReplayServer([TableConfig(sampler=Selector("prioritized", 1.0))], spec) as server:
        with server.client.trajectory_writer(1) as writer:
            for reward in range(16):
                row = tree.map_structure(lambda leaf: leaf.numpy()[0], transitions([float(reward)]))
                writer.append(row)
                item = tree.map_structure(lambda column: column[-1], writer.history)
                writer.create_item("replay", 1.0 + reward, item)
            writer.flush()
        yield server


def test_priorities_on_the_server_are_those_of_the_newest_iteration_of_each_key(served, tmp_path):
    """The agent's estimate moves, so that each iteration gives an item another error."""
    newest, shapes = {}, []
    samples = sample_dataset(served, "replay", 4, beta=1.0, max_in_flight=4, num_workers=1)

    class Remember(MeanAgent):
        def _train(self, experience, weights):
            shapes.append((type(experience), weights.shape))
            return super()._train(experience, weights)

    agent = Remember(rate=0.3)
    with (
        PriorityWriter(served, "replay") as writer,
        Learner(tmp_path, agent, samples, priorities=writer, steps_per_call=3) as learner,
    ):
        send = writer.write

        def write(info, priorities):
            newest.update(zip(info.key.tolist(), priorities.tolist(), strict=True))
            assert (info.weight <= 1).all()
            send(info, priorities)

        writer.write = write
        learner.start(8)
    assert set(map(str, shapes)) == {str((Transition, tf.TensorShape([4])))} and len(newest) > 4
    found = {}
    for sample in sample_dataset(served, "replay", 50).take(8):
        found.update(zip(sample.info.key.numpy().tolist(), sample.info.priority.numpy().tolist(), strict=True))
    both = set(found) & set(newest)
    assert len(both) > 4
    for key in both:
        assert found[key] == pytest.approx(newest[key], rel=1e-6)


# --- Does it fit the agent?


def test_each_field_that_differs_is_named_before_the_first_step(tmp_path):
    good = transitions(np.zeros(4))
    wide = tf.zeros([4, 3])
    bad = good._replace(
        time_step=good.time_step._replace(observation=wide),
        action_step=good.action_step._replace(action=tf.zeros([4, 1], tf.float64)),
    )
    agent = MeanAgent()
    with pytest.raises(SpecMismatchError, match=r"the data do not fit the agent: .*observation.*\[3\].* expects .*\[2\].*; .*action.*float64"):  # fmt: skip
        Learner(tmp_path / "run", agent, tf.data.Dataset.from_tensors(bad).repeat())
    assert agent.num_traces == 0 and not (tmp_path / "run").exists()
    missing = good._replace(next_time_step=good.next_time_step._replace(observation={"x": wide}))
    with pytest.raises(SpecMismatchError, match="missing.*not of the agent|not of the agent.*missing"):
        require_experience(tree.map_structure(tf.TensorSpec.from_tensor, missing), agent)
    require_experience(tree.map_structure(tf.TensorSpec.from_tensor, good), agent)
    require_experience({"mine": tf.TensorSpec([4])}, agent)  # somebody's own: the agent looks at it


def test_trajectories_of_another_length_are_refused():
    spec = MeanAgent().collect_data_spec
    for length in (2, 5):
        items_of = tree.map_structure(lambda leaf, n=length: tf.TensorSpec([4, n, *leaf.shape], leaf.dtype), spec)
        items_of = Trajectory(*items_of)
        if length == 2:
            require_experience(items_of, MeanAgent())
        else:
            with pytest.raises(SpecMismatchError, match="items have 5 steps, the agent expects 2"):
                require_experience(items_of, MeanAgent())
