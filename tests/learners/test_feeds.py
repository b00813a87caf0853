"""Feeds: batches contain the adder's items bit for bit, are sampled uniformly, and match the agent."""

import gc
import weakref
from itertools import islice

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from small_agents import MeanAgent, batches, items, transitions
from tf_agents.agents import data_converter
from tf_agents.trajectories import Trajectory, Transition

from rlds2reverb import (
    LinearSchedule,
    PriorityWriter,
    ReplayServer,
    SampleInfo,
    Selector,
    TableConfig,
    TrajectoryWindows,
    sample_dataset,
)
from rlds2reverb.adders import NStep
from rlds2reverb.datasets import load
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.learners import (
    InMemoryDataset,
    Learner,
    StreamingDataset,
    collect_items,
    make_feed,
    require_experience,
)
from rlds2reverb.replay import AdvancedReplayBuffer, Batch, BufferConfig
from rlds2reverb.types.items import Items


@pytest.fixture(scope="module")
def episodes(data):
    return list(islice(load(data / "d4rl" / "hopper_medium-v2.hdf5"), 3))


def read(feed, step=0):
    """Returns the experience and the info of one iteration, as arrays."""
    data, info = tf.nest.map_structure(lambda column: column[0], feed.read(step, 1))
    return tf.nest.map_structure(np.asarray, feed.to_experience(tf.nest.map_structure(tf.constant, data))), info


def assert_same_bits(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape
    assert one.tobytes() == other.tobytes()


# --- In-memory datasets


@pytest.mark.parametrize("adder", [NStep(3, 0.99), TrajectoryWindows(2)], ids=["transitions", "trajectories"])
def test_batches_contain_the_items_of_the_adder_bit_for_bit(episodes, adder):
    item_groups = [adder(episode) for episode in episodes]
    expected = []
    for group in item_groups:
        for start, length in zip(group.starts, group.lengths, strict=True):
            rows = slice(start, start + length)
            item = tree.map_structure(lambda column, rows=rows: np.asarray(column)[rows], group.columns)
            expected.append(tree.map_structure(lambda leaf: leaf[0], item) if group.squeeze else item)
    dataset = InMemoryDataset(collect_items(item_groups), 16, seed=3, to_experience=lambda batch: batch)
    assert dataset.num_items == len(expected)
    for number in range(5):
        batch, info = read(dataset, number)
        (indices,) = dataset.sample_indices(number)
        assert info == () and len(indices) == 16
        for row, index in enumerate(indices):
            got = tree.map_structure(lambda leaf, row=row: leaf[row], batch)
            tree.map_structure(assert_same_bits, got, tree.map_structure(np.asarray, expected[index]))
    spec = tf.nest.flatten(dataset.experience_spec)
    assert [tuple(leaf.shape) for leaf in spec] == [tuple(leaf.shape) for leaf in tf.nest.flatten(batch)]


def test_sampling_is_uniform_and_depends_only_on_seed_and_iteration():
    dataset, same = (InMemoryDataset(items(range(50)), 1000, seed=5) for _ in range(2))
    indices = dataset.sample_indices(0, 20)
    np.testing.assert_array_equal(indices[7:9], same.sample_indices(7, 2))
    assert (InMemoryDataset(items(range(50)), 1000, seed=6).sample_indices(7)[0] != indices[7]).any()
    assert len({row.tobytes() for row in indices}) == 20
    counts = np.bincount(indices.ravel(), minlength=50)
    chi_square = ((counts - 400) ** 2 / 400).sum()
    assert 20 < chi_square < 85.4  # The interval covers 0.9991 of the distribution with 49 degrees of freedom.


def test_columns_of_all_dtypes_and_shapes_are_kept():
    columns = {"a": np.arange(6, dtype=np.float32).reshape(3, 2), "b": {"c": np.array([True, False, True]), "d": np.zeros((3, 0), np.float32)},
               "e": np.arange(12, dtype=np.float32).reshape(3, 2, 2), "f": np.array([2**40, 1, 2], np.int64)}  # fmt: skip
    dataset = InMemoryDataset(Items(columns, np.arange(3), np.ones(3, np.int64), True), 8)
    batch, (indices,) = read(dataset)[0], dataset.sample_indices(0)
    tree.map_structure(lambda got, column: assert_same_bits(got, column[indices]), batch, columns)


@pytest.mark.parametrize(
    "invalid_items, arguments, message",
    [
        (
            Items({"x": np.zeros(3)}, np.arange(2), np.array([1, 2])),
            {},
            "all items must have the same number of rows, got 1 to 2",
        ),
        (items([]), {}, "no items to train on; check whether all episodes are shorter than an item"),
        (items([1]), {"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        (items([1]), {"seed": -1}, "seed must be an integer from 0 to .*, got -1"),
    ],
)
def test_invalid_in_memory_dataset_raises(invalid_items, arguments, message):
    with pytest.raises(ValueError, match=message):
        InMemoryDataset(invalid_items, **{"batch_size": 4, **arguments})


def test_collect_items_raises_without_episodes_and_for_different_ones():
    with pytest.raises(SourceError, match="there are no episodes"):
        collect_items([])
    whole = Items({"reward": np.arange(2)}, np.arange(2), np.ones(2, np.int64), True)
    with pytest.raises(SpecMismatchError, match="must have the same columns, got .*float32.* and .*int64"):
        collect_items([items([1.0]), whole])
    text = Items({"note": np.array(["a", "b"])}, np.arange(2), np.ones(2, np.int64), True)
    with pytest.raises(SpecMismatchError, match=r"\['note'\] is text"):
        collect_items([text])


def test_collected_items_are_trained_on_without_a_copy():
    columns = {"a": np.arange(8, dtype=np.float32).reshape(4, 2), "b": np.array([1, 2, 3, 4], np.int32)}
    collected = collect_items([Items(columns, np.arange(4), np.ones(4, np.int64), True)] * 2)
    assert np.shares_memory(collected.columns["a"], collected.packed) and collected.packed.shape == (8, 3)
    tree.map_structure(lambda got, column: assert_same_bits(got[4:], column), collected.columns, columns)
    (rows,), _ = InMemoryDataset(collected, 64).read(0, 1)
    collected.packed[:, 2] = 9
    (changed,), _ = InMemoryDataset(collected, 64).read(0, 1)
    assert set(rows[:, 2]) == {1, 2, 3, 4} and set(changed[:, 2]) == {9}


def test_n_step_matches_the_agents_conversion_of_trajectories(episodes):
    spec = tree.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), TrajectoryWindows(2).item_spec(make_step_spec(episodes))
    )
    converter = data_converter.AsTransition(make_data_context(spec), squeeze_time_dim=True)
    n_step, windows = NStep(1, 0.99), TrajectoryWindows(2)
    rows, pairs = (collect_items(adder(episode) for episode in episodes) for adder in (n_step, windows))
    actual = n_step.as_transition(tree.map_structure(lambda column: column[:64], rows.columns))
    indices = pairs.starts[:64, None] + np.arange(2)
    expected = converter(tree.map_structure(lambda column: tf.constant(column[indices]), pairs.columns))
    for got, want in [
        (actual.time_step.observation, expected.time_step.observation),
        (actual.action_step.action, expected.action_step.action),
        (actual.next_time_step.reward, expected.next_time_step.reward),
        (actual.next_time_step.discount, expected.next_time_step.discount),  # Neither includes gamma.
        (actual.next_time_step.observation, expected.next_time_step.observation),
    ]:
        assert_same_bits(got.numpy(), want.numpy())


def make_step_spec(episodes):
    from rlds2reverb.datasets.source import Source

    return Source("few", "memory", lambda: iter(episodes)).step_spec


def make_data_context(spec):
    from tf_agents.agents.data_converter import DataContext
    from tf_agents.trajectories import time_step_spec

    return DataContext(time_step_spec(spec.observation), spec.action, ())


# --- Streaming datasets


def test_streaming_dataset_accepts_experience_pairs_and_iterators(episodes):
    plain = batches(size=2)
    (experience, info), feed = read(StreamingDataset(plain)), StreamingDataset(plain)
    assert isinstance(experience, Transition) and info == () == feed.info_spec and feed.reads_ahead
    pairs = plain.map(lambda batch: (batch, ()))
    assert read(StreamingDataset(pairs))[0].next_time_step.reward.tolist() == [0.0, 1.0]
    iterator = iter(plain)
    next(iterator)
    feed = StreamingDataset(iterator)
    assert read(feed)[0].next_time_step.reward.tolist() == [1.0, 2.0] and not feed.reads_ahead
    with pytest.raises(
        TypeError, match="dataset must be a feed, a tf.data.Dataset or an iterator over one, got a list"
    ):
        StreamingDataset([])


def make_transition_dicts(count=4, **others):
    """Returns the columns of transitions whose rewards are 10, 11, ..., the last of them into a terminal state."""
    rewards = np.arange(10, 10 + count, dtype=np.float32)
    return {
        "observation": np.stack([rewards, -rewards], 1),
        "action": np.zeros((count, 1), np.float32),
        "reward": rewards,
        "discount": np.append(np.ones(count - 1, np.float32), np.float32(0)),
        "next_observation": np.stack([rewards + 1, -rewards - 1], 1),
        **others,
    }


def make_prioritized_batch(weights):
    """Returns a batch of transition dicts with the given importance weights."""
    ones = np.ones(len(weights))
    info = SampleInfo(ones.astype(np.uint64), ones, ones, ones, ones, np.array(weights, np.float32), 0 * ones)
    return reverb.ReplaySample(info, make_transition_dicts(len(weights)))


def test_transition_dicts_become_transitions():
    columns = make_transition_dicts(value_gamma=np.ones(4))
    for data in (columns, (columns, ()), make_prioritized_batch(np.ones(4)), Batch(columns, ())):
        feed = make_feed(tf.data.Dataset.from_tensors(data).repeat())
        experience, _ = read(feed)
        assert isinstance(feed.experience_spec, Transition) and isinstance(experience, Transition)
        assert feed.experience_spec.time_step.observation == tf.TensorSpec([4, 2])
        assert experience.next_time_step.reward.tolist() == [10, 11, 12, 13]
        assert experience.next_time_step.step_type.tolist() == [1, 1, 1, 2]
        np.testing.assert_array_equal(experience.next_time_step.observation, columns["next_observation"])
        assert experience.time_step.reward.tolist() == [0] * 4


def test_items_of_n_step_train_without_to_experience(episodes, tmp_path):
    rows = collect_items(NStep(3, 0.99)(episode) for episode in episodes)
    experience, _ = read(InMemoryDataset(rows, 4))
    same, _ = read(InMemoryDataset(rows, 4, to_experience=NStep(3, 0.99).as_transition))
    tree.map_structure(np.testing.assert_array_equal, experience, same)


def test_dicts_with_other_fields_raise_and_name_the_conversion():
    columns = {"obs": np.zeros((4, 2)), "action": np.zeros(4), "reward": np.zeros(4, np.float32)}
    with AdvancedReplayBuffer("demo", BufferConfig()) as buffer:
        buffer.extend_columns(columns)
        message = "the items have the fields 'action', 'obs', 'reward', but a transition also requires 'observation', 'discount', 'next_observation'; .*dataset.map"
        with pytest.raises(SpecMismatchError, match=message):
            make_feed(buffer.dataset(4))
        converted = buffer.dataset(4).map(lambda batch: (transitions(batch.data["reward"]), batch.info))
        feed = make_feed(converted)
        assert hasattr(feed.info_spec, "key") and isinstance(read(feed)[0], Transition)


@pytest.mark.parametrize("beta", [0.5, LinearSchedule(0.0, 1.0, num_batches=4)], ids=["number", "schedule"])
def test_beta_is_the_exponent_of_the_weights_at_the_step(beta):
    dataset = tf.data.Dataset.from_tensors(make_prioritized_batch([1.0, 0.25, 0.0625])).repeat()
    feed = StreamingDataset(dataset, beta=beta)
    for step, exponent in [(0, 0.0), (2, 0.5), (4, 1.0), (9, 1.0)] if callable(beta) else [(7, 0.5)]:
        _, info = read(feed, step)
        np.testing.assert_allclose(info.weight, np.array([1.0, 0.25, 0.0625]) ** exponent, rtol=1e-6)
        assert info.weight.dtype == tf.float32


def test_invalid_beta_raises():
    with pytest.raises(ValueError, match="beta cannot be set for batches without weights"):
        StreamingDataset(batches(size=2), beta=1.0)
    dataset = tf.data.Dataset.from_tensors(make_prioritized_batch([1.0, 0.5]))
    with pytest.raises(ValueError, match="beta must be a number in .*, got 2"):
        StreamingDataset(dataset, beta=2)


def test_batches_of_a_different_shape_or_with_an_error_are_left_for_the_next_call():
    opened = []

    class Stream:
        element_spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), transitions(np.zeros(1)))  # fmt: skip

        def __iter__(self):
            opened.append(self.generate())
            return opened[-1]

        def generate(self):
            for number, size in enumerate((2, 2, 3, 0, 3)):
                if not size:
                    raise ConnectionError("cut")
                yield tf.nest.map_structure(np.asarray, transitions(np.full(size, number)))

    feed = StreamingDataset(Stream())
    rewards = [feed.read(0, 9)[0].next_time_step.reward.tolist() for _ in range(2)]
    assert rewards == [[[0, 0], [1, 1]], [[2, 2, 2]]]
    with pytest.raises(ConnectionError, match="cut"):
        feed.read(3, 9)
    feed.close()
    assert feed.read(0, 1)[0].next_time_step.reward.tolist() == [[0, 0]]
    feed.close()
    assert len(opened) == 2 and opened[-1].gi_frame is None  # The generator was closed.


def test_closed_feed_releases_its_iterator_and_opens_another():
    iterators = []

    class Stream:
        element_spec = batches(size=2).element_spec

        def __iter__(self):
            iterator = iter(batches(size=2))
            iterators.append(weakref.ref(iterator))
            return iterator

    feed = StreamingDataset(Stream())
    first = read(feed)[0].next_time_step.reward.tolist()
    assert read(feed)[0].next_time_step.reward.tolist() != first
    assert len(iterators) == 1 and iterators[0]() is not None
    feed.close()
    gc.collect()
    assert iterators[0]() is None
    assert read(feed)[0].next_time_step.reward.tolist() == first


def test_make_feed_returns_feeds_and_names_the_method_of_buffers():
    feed = InMemoryDataset(items([1.0]), 2)
    assert make_feed(feed) is feed
    with AdvancedReplayBuffer("demo") as buffer:
        with pytest.raises(TypeError, match=r"got a AdvancedReplayBuffer; pass its dataset\(batch_size\)"):
            make_feed(buffer)


def test_text_observations_raise():
    good = tree.map_structure(tf.TensorSpec.from_tensor, transitions(np.zeros(4)))
    text = good._replace(time_step=good.time_step._replace(observation={"text": tf.TensorSpec([4], tf.string)}))
    with pytest.raises(
        SpecMismatchError, match=r"\['observation'\]\['text'\] is text, but agents are trained on numbers"
    ):
        require_experience(text, MeanAgent())


# --- A prioritized table


@pytest.fixture(scope="module")
def server():
    """Provides a server with transitions whose rewards are 0, 1, ..., 15."""
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
        gc.collect()  # An iterator that outlives its server blocks until its timeout when it is deleted.


@pytest.mark.slow
def test_server_has_the_priorities_of_the_latest_iteration_of_each_key(server, tmp_path):
    """The agent's estimate changes, so an item's TD error is different in each iteration."""
    latest, shapes = {}, []
    samples = sample_dataset(server, "replay", 4, beta=1.0, max_in_flight=4, num_workers=1)

    class RecordingAgent(MeanAgent):
        def _train(self, experience, weights):
            shapes.append((type(experience), weights.shape))
            return super()._train(experience, weights)

    agent = RecordingAgent(rate=0.3)
    with (
        PriorityWriter(server, "replay") as writer,
        Learner(tmp_path, agent, samples, priorities=writer, steps_per_call=3) as learner,
    ):
        update = writer.update

        def record(info, td_errors):
            latest.update(zip(info.key.tolist(), (np.abs(td_errors) + 0.01).tolist(), strict=True))
            assert (info.weight <= 1).all()
            update(info, td_errors)

        writer.update = record
        learner.start(8)
    assert set(map(str, shapes)) == {str((Transition, tf.TensorShape([4])))} and len(latest) > 4
    stored = {}
    for sample in sample_dataset(server, "replay", 50).take(8):
        stored.update(zip(sample.info.key.numpy().tolist(), sample.info.priority.numpy().tolist(), strict=True))
    both = set(stored) & set(latest)
    assert len(both) > 4
    for key in both:
        assert stored[key] == pytest.approx(latest[key], rel=1e-6)


# --- Compatibility with the agent


@pytest.mark.drill("F11")
def test_mismatch_with_the_agent_raises_and_names_each_field(tmp_path):
    good = transitions(np.zeros(4))
    wide = tf.zeros([4, 3])
    bad = good._replace(
        time_step=good.time_step._replace(observation=wide),
        action_step=good.action_step._replace(action=tf.zeros([4, 1], tf.float64)),
    )
    agent = MeanAgent()
    with pytest.raises(SpecMismatchError, match=r"the data do not match the agent: .*observation.*\[3\].* expects .*\[2\].*; .*action.*float64"):  # fmt: skip
        Learner(tmp_path / "run", agent, tf.data.Dataset.from_tensors(bad).repeat())
    assert agent.num_traces == 0 and not (tmp_path / "run").exists()
    missing = good._replace(next_time_step=good.next_time_step._replace(observation={"x": wide}))
    with pytest.raises(SpecMismatchError, match="missing.*unexpected|unexpected.*missing"):
        require_experience(tree.map_structure(tf.TensorSpec.from_tensor, missing), agent)
    require_experience(tree.map_structure(tf.TensorSpec.from_tensor, good), agent)
    require_experience({"mine": tf.TensorSpec([4])}, agent)  # The agent checks custom experience itself.


def test_trajectories_with_the_wrong_length_raise():
    spec = MeanAgent().collect_data_spec
    for length in (2, 5):
        batch_spec = tree.map_structure(lambda leaf, n=length: tf.TensorSpec([4, n, *leaf.shape], leaf.dtype), spec)
        batch_spec = Trajectory(*batch_spec)
        if length == 2:
            require_experience(batch_spec, MeanAgent())
        else:
            with pytest.raises(SpecMismatchError, match="items have 5 steps, but the agent expects 2"):
                require_experience(batch_spec, MeanAgent())
