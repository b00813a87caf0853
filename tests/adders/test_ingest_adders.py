"""Tests that items read back from Reverb equal the adder's output, bit for bit, for every adder."""

from itertools import islice

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode, read_items

from rlds2reverb.adders import GAE, InitialPriorities, NStep, ReturnToGo, StepEpisodes, StepWindows, compose
from rlds2reverb.datasets import Source, load
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.sampling.batch_dataset import sample_dataset
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire.packing import Packing, packed_signature, unpack
from rlds2reverb.types.tables import Selector, TableConfig


def estimate_values(observations):
    """Returns a number for each observation of any nest."""
    flat = [tf.cast(leaf, tf.float32) for leaf in tree.flatten(observations)]
    return tf.add_n([tf.reduce_sum(leaf, axis=range(1, leaf.shape.rank)) for leaf in flat]) * 0.125


PRIORITIES = InitialPriorities("td", value_fn=estimate_values)
ADDERS = {
    "n_step": NStep(3, 0.99),
    "n_step_grown": NStep(4, 0.9, grow_at_start=True, discount_power="m"),
    "gae": GAE(0.99, 0.95, estimate_values),
    "return_to_go": ReturnToGo(),
    "windows_write": StepWindows(20, 10),
    "windows_zero_pad": StepWindows(20, 15, "zero_pad"),
    "windows_truncate": StepWindows(20, 20, "truncate"),
    "episode": StepEpisodes(1500),
    "episode_end": StepEpisodes(1500, "end"),
    "priorities": PRIORITIES,
    "composed": compose(PRIORITIES, GAE(0.99, 0.95, estimate_values), StepWindows(16, 8, "last")),
}
PACKED = ("n_step", "composed")
#: The number of episodes to read from each file. They are flat or nested, float32 or float64, terminated or truncated.
FILES = {
    "d4rl/hopper_medium-v2.hdf5": 2,
    "minari/classic/pendulum-dict/dev-v0": 2,
    "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0": 2,
    "rlds_prepared/d4rl_mujoco_halfcheetah/v1-medium-replay/1.2.0": 1,
}
FIRST, NESTED, SMALL, _ = FILES
FAST_CASES = {(FIRST, "n_step")}
CASES = [
    pytest.param(name, kind, marks=[] if (name, kind) in FAST_CASES else pytest.mark.slow)
    for name in FILES
    for kind in ADDERS
    if name in (FIRST, SMALL) or kind in PACKED
]


@pytest.fixture(scope="module")
def sources(data):
    def limit(name, num_episodes):
        source = load(data / name)
        return Source(source.name, source.kind, lambda: islice(iter(source), num_episodes), num_episodes=num_episodes)

    return {name: limit(name, num_episodes) for name, num_episodes in FILES.items()}


@pytest.fixture(scope="module")
def address(sources):
    """The address of a server with a table for each file, adder and layout; the signatures are those of the adders."""
    fifo, tables = Selector("fifo"), []
    for name, source in sources.items():
        for kind, adder in ADDERS.items():
            spec = adder.item_spec(source.step_spec)
            signatures = {"columns": spec}
            if kind in PACKED:
                signatures["packed"] = packed_signature(Packing(spec, adder.squeeze))
            for layout, signature in signatures.items():
                config = TableConfig(f"{name} {kind} {layout}", fifo, fifo, max_times_sampled=1)
                tables.append(config.build(signature))
                if layout == "packed":
                    tables.append(TableConfig(f"{name} {kind} sampled", Selector("uniform")).build(signature))
    server = reverb.Server(tables, port=None)
    yield f"localhost:{server.port}"
    server.stop()


def convert_dataset(adder, source):
    """Returns the items of the adder's dataset."""
    return list(source.to_rlds().apply(adder).as_numpy_iterator())


def convert_episodes(adder, source):
    """Yields the items that the adder makes of single episodes."""
    for single in source:
        items = adder(single)
        for begin, length in zip(items.starts, items.lengths, strict=True):
            part = begin if items.squeeze else slice(begin, begin + length)
            yield tree.map_structure(lambda column, part=part: column[part], items.columns)


def as_bytes(item):
    return b"".join(leaf.tobytes() for leaf in tree.flatten(item))


def assert_all_equal(got, expected):
    assert len(got) == len(expected) > 0
    for item, expected_item in zip(got, expected, strict=True):
        tree.assert_same_structure(item, expected_item)
        assert_equal_nests(item, expected_item)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_stored_items_match_the_adder(address, sources, name, kind):
    adder, source = ADDERS[kind], sources[name]
    table = f"{name} {kind} columns"
    report = ingest(source, address, table, adder=adder)
    expected = convert_dataset(adder, source) if name == FIRST else list(convert_episodes(adder, source))
    assert (report.episodes, report.items, report.writer) == (FILES[name], len(expected), "bulk")
    assert_all_equal(read_items(address, table), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    mark_slow_except([(NESTED, "composed")], [(name, kind) for name in (NESTED, SMALL) for kind in PACKED]),
)
def test_packed_items_match_the_adder(address, sources, name, kind):
    adder, source = ADDERS[kind], sources[name]
    packing = Packing(adder.item_spec(source.step_spec), adder.squeeze)
    table, sampled = f"{name} {kind} packed", f"{name} {kind} sampled"
    ingest(source, address, [table, sampled], adder=adder, layout="packed")
    expected = list(convert_episodes(adder, source))
    rows = tree.map_structure(
        lambda leaf: leaf.numpy(), unpack(tf.constant(np.stack(read_items(address, table))), packing)
    )
    assert_all_equal([tree.map_structure(lambda leaf, at=at: leaf[at], rows) for at in range(len(expected))], expected)
    batch = next(iter(sample_dataset(address, sampled, 32).as_numpy_iterator())).data
    all_items = {as_bytes(item) for item in expected}
    assert {as_bytes(tree.map_structure(lambda leaf, at=at: leaf[at], batch)) for at in range(32)} <= all_items


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["n_step", "windows_truncate"])
def test_reverb_writer_writes_the_same_items(address, sources, kind):
    table, adder, source = f"{SMALL} {kind} columns", ADDERS[kind], sources[SMALL]
    ingest(source, address, table, adder=adder, options=IngestOptions(writer="reverb"))
    assert_all_equal(read_items(address, table), list(convert_episodes(adder, source)))


@pytest.mark.slow
def test_ingest_raises_for_crossing_windows_and_long_episodes(address, sources):
    table = f"{SMALL} windows_write columns"
    with pytest.raises(ValueError, match="cross episodes and require a dataset"):
        ingest(sources[SMALL], address, table, adder=StepWindows(20, 10, "continue"))
    with pytest.raises(ValueError, match="episode 0: an episode has more rows than max_length, 9; raise"):
        ingest(sources[SMALL], address, table, adder=StepEpisodes(9))


@pytest.mark.slow
def test_repeated_ingest_updates_the_priorities_of_equal_items():
    all_steps = [episode(5, terminal=True), episode(4, terminal=False, start=50)]
    with ReplayServer([TableConfig()]) as server:
        for scale in (0.0, 1.0):
            critic = InitialPriorities("td", value_fn=lambda observation, scale=scale: scale * observation[:, 0])
            ingest(all_steps, server.address, adder=compose(critic, NStep(2, 0.9)), priority=critic)
            stored = {s.info.key: s.info.priority for s in server.client.sample("replay", 300, emit_timesteps=False)}
            if not scale:
                before = stored
        assert len(before) == len(stored) == 7 and before.keys() == stored.keys()
        assert all(before[key] != stored[key] for key in before)
