"""Tests of `rlds_to_reverb` against TF-Agents' module, and of that module's faults, which it fixes."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tensorflow_datasets as tfds
import tree
from hypothesis import given, strategies as st
from properties import examples, mark_slow_except
from reference_impls import assert_equal_nests, episode, episodes, naive_trajectories, read_items, rlds_dataset
from tf_agents.replay_buffers import reverb_utils, rlds_to_reverb as reference
from tf_agents.specs import tensor_spec

from rlds2reverb import rlds_to_reverb
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.trajectories import DISCOUNT_SOURCES

FLAT = [
    "rlds/physics_rlds/hopper_flat/1.0.0",
    "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0",
    "rlds_prepared/d4rl_mujoco_hopper/v0-medium/1.2.0",
    "malformed/rlds/ok_control",
    "malformed/rlds/single_step",
    "malformed/rlds/zero_length_episode",
]


def load_prepared(data, name):
    return tfds.builder_from_directory(data / name).as_dataset(split="train")


def convert(module, dataset, *arguments, **options):
    return list(module.convert_rlds_to_trajectories(dataset, *arguments, **options).as_numpy_iterator())


def reward_and_next(current, following):
    return {"sum": current["reward"] + following["reward"], "next": following["observation"]}


# --- equality with TF-Agents where it supports the data


@pytest.mark.parametrize("name", mark_slow_except(["malformed/rlds/ok_control"], FLAT))
def test_trajectories_match_tf_agents_on_shipped_data(data, name):
    dataset = load_prepared(data, name).take(4)
    assert rlds_to_reverb.create_trajectory_data_spec(dataset) == reference.create_trajectory_data_spec(dataset)
    got, expected = convert(rlds_to_reverb, dataset), convert(reference, dataset)
    assert len(got) == len(expected) > 0
    for item, expected_item in zip(got, expected, strict=True):
        assert type(item) is type(expected_item)
        assert_equal_nests(item, expected_item)


@pytest.mark.slow
@pytest.mark.timeout(900)  # TF-Agents processes one step at a time.
@given(episodes(nested=False))
@examples(12)
def test_trajectories_match_tf_agents_on_generated_episodes(all_steps):
    dataset = rlds_dataset(all_steps)
    for arguments in ((), (reward_and_next,)):
        for item, expected_item in zip(
            convert(rlds_to_reverb, dataset, *arguments), convert(reference, dataset, *arguments), strict=True
        ):
            assert_equal_nests(item, expected_item)


@pytest.mark.slow
@given(episodes(), st.sampled_from(DISCOUNT_SOURCES))
@examples(20)
def test_trajectories_match_the_naive_loop_on_nested_episodes(all_steps, source):
    got = convert(rlds_to_reverb, rlds_dataset(all_steps), discount_source=source)
    expected = naive_trajectories(all_steps, source)
    assert len(got) == len(expected) == sum(len(steps["is_first"]) for steps in all_steps)
    for item, expected_item in zip(got, expected, strict=True):
        assert (item.step_type, item.next_step_type, item.discount) == (
            expected_item["step_type"],
            expected_item["next_step_type"],
            expected_item["discount"],
        )
        assert_equal_nests(
            (item.observation, item.action, item.reward),
            (expected_item["observation"], expected_item["action"], expected_item["reward"]),
        )


@pytest.mark.parametrize("num_episodes", [0, 2])
def test_datasets_without_steps_raise(num_episodes):
    steps = tf.data.Dataset.from_tensor_slices(episode(1, terminal=False)).take(0)
    dataset = tf.data.Dataset.range(num_episodes).map(lambda index: {"steps": steps})
    observer = SimpleNamespace(get_table_signature=lambda: None)
    for function in (
        rlds_to_reverb.create_trajectory_data_spec,
        rlds_to_reverb.convert_rlds_to_trajectories,
        lambda data: rlds_to_reverb.push_rlds_to_reverb(data, observer),
    ):
        with pytest.raises(ValueError, match="rlds_data has no episode with steps, so there is nothing to convert"):
            function(dataset)


def test_step_features_match_tf_agents():
    assert rlds_to_reverb.get_rlds_step_features() == reference.get_rlds_step_features()


def test_missing_steps_and_fields_raise_tf_agents_messages(data):
    frames = load_prepared(data, "malformed/rlds/no_steps_key")
    incomplete = load_prepared(data, "malformed/rlds/missing_discount")
    for function in ("create_trajectory_data_spec", "convert_rlds_to_trajectories"):
        for dataset in (frames, incomplete):
            messages = []
            for module in (rlds_to_reverb, reference):
                with pytest.raises(ValueError) as caught:
                    getattr(module, function)(dataset)
                messages.append(str(caught.value))
            assert messages[0] == messages[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no_is_last", "terminal_mid", "is_last_mid"])
def test_invalid_steps_raise_tf_agents_messages(data, name):
    messages = []
    for module in (reference, rlds_to_reverb):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            convert(module, load_prepared(data, f"malformed/rlds/{name}"))
        messages.append(str(caught.value).split("assertion failed: [")[1].split("]")[0])
    assert messages[1].startswith(messages[0])


# --- faults of TF-Agents


@pytest.mark.slow
def test_nested_observations_and_actions_stay_single_steps():
    all_steps = [episode(3, terminal=True, nested=True)]
    got = convert(rlds_to_reverb, rlds_dataset(all_steps))
    assert got[1].observation["image"].shape == (3, 2) and got[1].observation["state"].tolist() == [11, -11]
    assert got[1].action["move"] == 11 and got[1].action["turn"].shape == (2,)
    assert convert(reference, rlds_dataset(all_steps))[1].observation["image"].shape == (2, 3, 2)


def test_spec_includes_the_policy_info():
    dataset = rlds_dataset([episode(3, terminal=True)])
    spec = rlds_to_reverb.create_trajectory_data_spec(dataset, reward_and_next)
    assert spec.policy_info == {"sum": tf.TensorSpec((), tf.float32), "next": tf.TensorSpec((2,), tf.float32)}
    first = convert(rlds_to_reverb, dataset, reward_and_next)[0]
    described = [(leaf.dtype.as_numpy_dtype, tuple(leaf.shape)) for leaf in tree.flatten(spec)]
    assert described == [(np.asarray(value).dtype, np.shape(value)) for value in tree.flatten(first)]


@pytest.mark.slow
@pytest.mark.parametrize("length", mark_slow_except({3}, [2, 3]))
def test_policy_info_can_be_a_nest_with_additional_step_fields(length):
    logits = np.arange(2 * length, dtype=np.float32).reshape(length, 2)
    dataset = rlds_dataset([{**episode(length, terminal=True), "logits": logits}])

    def pair(current, following):
        return [current["reward"], {"one": 1.0, "logits": current["logits"]}]

    assert rlds_to_reverb.create_trajectory_data_spec(dataset, pair).policy_info[0] == tf.TensorSpec((), tf.float32)
    rows = convert(rlds_to_reverb, dataset, pair)
    assert [(float(row.policy_info[0]), float(row.policy_info[1]["one"])) for row in rows] == [
        (100.0 + step, 1.0) for step in range(length)
    ]
    assert [row.policy_info[1]["logits"].tolist() for row in rows] == logits.tolist()


@pytest.mark.parametrize("nothing", [None, *(pytest.param(value, marks=pytest.mark.slow) for value in ({}, ()))])
def test_policy_info_can_be_empty(nothing):
    rows = convert(rlds_to_reverb, rlds_dataset([episode(3, terminal=True)]), lambda current, following: nothing)
    assert [row.policy_info for row in rows] == [()] * 3


@pytest.mark.slow
def test_policy_info_fn_can_use_python_conditions():
    def choose(current, following):
        if current["is_first"]:
            return tf.constant(1)
        return tf.constant(2)

    rows = convert(rlds_to_reverb, rlds_dataset([episode(3, terminal=True)]), choose)
    assert [int(row.policy_info) for row in rows] == [1, 2, 2]


@pytest.mark.slow
def test_discount_into_a_terminal_is_zero_unless_source_is_step():
    dataset = rlds_dataset([episode(3, terminal=True), episode(2, terminal=False)])
    discounts = {
        source: [float(row.discount) for row in convert(rlds_to_reverb, dataset, discount_source=source)]
        for source in DISCOUNT_SOURCES
    }
    assert discounts["step"] == [1, 1, 0, 1, 1] == [float(row.discount) for row in convert(reference, dataset)]
    assert discounts["next_terminal"] == discounts["product"] == [1, 0, 0, 1, 1]


@pytest.mark.slow
def test_float64_data_and_integer_discounts_are_cast():
    steps = {**episode(3, terminal=True), "discount": np.array([1, 1, 0], np.int32)}
    steps["observation"] = steps["observation"].astype(np.float64)
    dataset = rlds_dataset([steps])
    with pytest.raises(TypeError):
        convert(reference, dataset)
    rows = convert(rlds_to_reverb, dataset)
    assert (rows[0].discount.dtype, rows[0].observation.dtype) == (np.float32, np.float64)
    assert [float(row.discount) for row in rows] == [1, 1, 0]
    assert convert(rlds_to_reverb, dataset, cast_floats=True)[0].observation.dtype == np.float32
    assert rlds_to_reverb.create_trajectory_data_spec(dataset, cast_floats=True).observation.dtype == tf.float32


@pytest.mark.parametrize(
    ("name", "message"),
    [
        # test_error_names_the_first_invalid_step has fast cases.
        *mark_slow_except(
            (),
            [
                ("terminal_mid", "Terminal step must be the last step of an episode. (episode 0, step 2)"),
                ("is_last_mid", "Last step of an episode must be followed by a first step. (episode 0, step 2)"),
                ("no_is_last", "Mid step should not be followed by a first step. (episode 1, step 2)"),
                ("no_is_first", "Last step of an episode must be followed by a first step. (episode 0, step 3)"),
                ("two_is_first", "Mid step should not be followed by a first step. (episode 2, step 1)"),
            ],
        ),
    ],
)
def test_errors_name_the_episode_and_the_step(data, name, message):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        convert(rlds_to_reverb, load_prepared(data, f"malformed/rlds/{name}"))
    assert message in str(caught.value)


def make_table(spec, name="items"):
    return reverb.Table(
        name,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=10_000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        max_times_sampled=1,
        signature=tensor_spec.add_outer_dim(spec),
    )


class PushServer:
    """A server with the tables of one push, whose items can be read back in order."""

    def __init__(self, spec, *names):
        self.server = reverb.Server([make_table(spec, name) for name in names or ("items",)], port=None)
        self.client = self.server.localhost_client()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.server.stop()

    def count_items(self, name="items"):
        return self.client.server_info(timeout=10)[name].current_size

    def read_items(self, name="items"):
        return read_items(f"localhost:{self.server.port}", name)


@pytest.mark.parametrize(("validate", "num_items"), [*mark_slow_except((), [("first", 5), ("none", 5)]), ("all", 0)])
def test_push_stores_the_episodes_before_an_invalid_one_unless_validated(data, validate, num_items):
    dataset = load_prepared(data, "malformed/rlds/two_is_first")
    with PushServer(rlds_to_reverb.create_trajectory_data_spec(dataset)) as server:
        observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "items", sequence_length=2)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"episode 2, step 1"):
            rlds_to_reverb.push_rlds_to_reverb(dataset, observer, validate=validate)
        observer.flush()
        # Episodes 0 and 1 have 4 and 3 trajectories, hence 3 + 2 windows of two; the invalid episode 2 has none.
        assert server.count_items() == num_items


@pytest.mark.slow
def test_nan_is_accepted_as_in_tf_agents():
    """`ingest` raises for such data; this function keeps TF-Agents' behaviour."""
    steps = episode(3, terminal=True)
    steps["reward"] = np.array([1, np.nan, 2], np.float32)
    for module in (rlds_to_reverb, reference):
        assert len(convert(module, rlds_dataset([steps]))) == 3


# --- pushes through TF-Agents' observers


EPISODES = [episode(length, terminal=length % 2 == 0, start=20.0 * length) for length in (4, 1, 3, 6)]

OBSERVERS = {
    "episode": lambda client, names: reverb_utils.ReverbAddEpisodeObserver(client, names, max_sequence_length=20),
    "pairs": lambda client, names: reverb_utils.ReverbAddTrajectoryObserver(client, names, sequence_length=2),
    "stride": lambda client, names: reverb_utils.ReverbAddTrajectoryObserver(
        client, names, sequence_length=3, stride_length=2
    ),
    "pad": lambda client, names: reverb_utils.ReverbAddTrajectoryObserver(
        client, names, sequence_length=4, pad_end_of_episodes=True
    ),
    "tile": lambda client, names: reverb_utils.ReverbAddTrajectoryObserver(
        client, names, sequence_length=3, pad_end_of_episodes=True, tile_end_of_episodes=True
    ),
    "sequence": lambda client, names: reverb_utils.ReverbTrajectorySequenceObserver(client, names, sequence_length=3),
    "sequence, stride": lambda client, names: reverb_utils.ReverbTrajectorySequenceObserver(
        client, names, sequence_length=3, stride_length=5
    ),
}


def push(module, dataset, make_observer, names=("items",), **options):
    with PushServer(rlds_to_reverb.create_trajectory_data_spec(dataset), *names) as server:
        observer = make_observer(server.client, list(names))
        count = module.push_rlds_to_reverb(dataset, observer, **options)
        observer.close()
        return count, [server.read_items(name) for name in names]


@pytest.mark.parametrize("fast", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("observer", mark_slow_except(["sequence, stride"], OBSERVERS))
def test_push_stores_the_same_items_as_tf_agents(observer, fast):
    dataset = rlds_dataset(EPISODES)
    got_count, (got,) = push(rlds_to_reverb, dataset, OBSERVERS[observer], fast=fast)
    expected_count, (expected,) = push(reference, dataset, OBSERVERS[observer])
    assert got_count == expected_count == 14
    assert len(got) == len(expected) > 0
    for item, expected_item in zip(got, expected, strict=True):
        assert_equal_nests(item, expected_item)


@pytest.mark.slow
@given(episodes(), st.sampled_from(sorted(OBSERVERS)))
@examples(10)
def test_fast_push_stores_the_observers_items_for_any_data(all_steps, observer):
    _, (got,) = push(rlds_to_reverb, rlds_dataset(all_steps), OBSERVERS[observer], fast=True)
    _, (expected,) = push(rlds_to_reverb, rlds_dataset(all_steps), OBSERVERS[observer])
    assert len(got) == len(expected)
    for item, expected_item in zip(got, expected, strict=True):
        assert_equal_nests(item, expected_item)


def test_fast_push_stores_the_episodes_before_an_invalid_one(data):
    dataset = load_prepared(data, "malformed/rlds/two_is_first")
    with PushServer(rlds_to_reverb.create_trajectory_data_spec(dataset)) as server:
        observer = OBSERVERS["pairs"](server.client, ["items"])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"episode 2, step 1"):
            rlds_to_reverb.push_rlds_to_reverb(dataset, observer, fast=True)
        assert server.count_items() == 5


def test_fast_push_raises_when_the_observer_is_not_supported():
    dataset = rlds_dataset(EPISODES)
    with PushServer(rlds_to_reverb.create_trajectory_data_spec(dataset)) as server:
        short = reverb_utils.ReverbAddEpisodeObserver(server.client, "items", max_sequence_length=4)
        with pytest.raises(
            ValueError, match="an episode has 6 trajectories, but the observer's max_sequence_length is 4"
        ):
            rlds_to_reverb.push_rlds_to_reverb(dataset, short, fast=True)
        assert server.count_items() == 3
        busy = OBSERVERS["pairs"](server.client, ["items"])
        busy(next(iter(rlds_to_reverb.convert_rlds_to_trajectories(dataset))))
        with pytest.raises(ValueError, match="holds 1 steps of an unfinished episode; call its reset"):
            rlds_to_reverb.push_rlds_to_reverb(dataset, busy, fast=True)
        busy.get_table_signature = short.get_table_signature
        with pytest.raises(ValueError, match="one of TF-Agents' Reverb observers, got a Mock; push with fast=False"):
            rlds_to_reverb.push_rlds_to_reverb(
                dataset, mock.Mock(get_table_signature=short.get_table_signature, _cached_steps=0), fast=True
            )


@pytest.mark.slow
def test_push_writes_to_several_tables():
    _, (items, copies) = push(rlds_to_reverb, rlds_dataset(EPISODES), OBSERVERS["pairs"], names=("one", "two"))
    assert len(items) == len(copies) == 10
    for item, expected_item in zip(items, copies, strict=True):
        assert_equal_nests(item, expected_item)


@pytest.mark.slow
def test_pushed_nested_data_match_the_source():
    dataset = rlds_dataset([episode(3, terminal=True, nested=True)])
    _, (items,) = push(rlds_to_reverb, dataset, OBSERVERS["pairs"], discount_source="product")
    assert [item.observation["state"].tolist() for item in items] == [[[10, -10], [11, -11]], [[11, -11], [12, -12]]]
    assert [item.discount.tolist() for item in items] == [[1, 0], [0, 0]]


@pytest.mark.slow
def test_push_stores_the_policy_info():
    dataset = rlds_dataset([episode(3, terminal=True)])
    spec = rlds_to_reverb.create_trajectory_data_spec(dataset, reward_and_next)
    with PushServer(spec) as server:
        observer = OBSERVERS["pairs"](server.client, ["items"])
        assert rlds_to_reverb.push_rlds_to_reverb(dataset, observer, reward_and_next) == 3
        observer.close()
        assert [item.policy_info["sum"].tolist() for item in server.read_items()] == [[201, 203], [203, 102]]


def test_push_raises_before_the_first_item_when_the_signature_differs():
    dataset = rlds_dataset(EPISODES)
    float64 = rlds_dataset([{**EPISODES[0], "reward": EPISODES[0]["reward"].astype(np.float64)}])
    with PushServer(rlds_to_reverb.create_trajectory_data_spec(float64)) as server:
        observer = OBSERVERS["pairs"](server.client, ["items"])
        with pytest.raises(SpecMismatchError) as caught:
            rlds_to_reverb.push_rlds_to_reverb(dataset, observer)
        assert str(caught.value) == "Replay buffer table signature spec should match RLDS data spec."
        assert caught.value.details.startswith(
            "trajectory['reward'] is float32 [], but the table expects float64 []; build"
        )
        assert str(caught.value.__cause__) == caught.value.details
        assert server.count_items() == 0


@pytest.mark.slow
def test_push_warns_and_drops_policy_info_missing_in_the_signature():
    dataset = rlds_dataset([episode(3, terminal=True)])
    with PushServer(rlds_to_reverb.create_trajectory_data_spec(dataset)) as server:
        observer = OBSERVERS["pairs"](server.client, ["items"])
        with pytest.warns(
            UserWarning, match="policy_info is left out because the table's signature has none"
        ) as caught:
            assert rlds_to_reverb.push_rlds_to_reverb(dataset, observer, reward_and_next) == 3
        observer.close()
        assert len(caught) == 1
        assert [(item.policy_info, item.reward.tolist()) for item in server.read_items()] == [
            ((), [100, 101]),
            ((), [101, 102]),
        ]


#: For each case: is_first, is_last, is_terminal, the message for the first invalid step, and its index.
INVALID_FLAGS = {
    "mid before first, then terminal": ([1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1], "Mid step should not", 1),
    "last before mid, then terminal": ([1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], "Last step of an episode", 0),
    "two rules at one step": ([1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0], "Terminal step must be", 1),
}


@pytest.mark.parametrize("name", mark_slow_except(["mid before first, then terminal"], INVALID_FLAGS))
def test_error_names_the_first_invalid_step(name):
    *flags, message, step = INVALID_FLAGS[name]
    steps = episode(4, terminal=False)
    steps |= {
        key: np.array(flag, bool) for key, flag in zip(("is_first", "is_last", "is_terminal"), flags, strict=True)
    }
    dataset = rlds_dataset([steps])
    with PushServer(rlds_to_reverb.create_trajectory_data_spec(dataset)) as server:
        calls = [
            lambda: convert(reference, dataset),
            lambda: convert(rlds_to_reverb, dataset),
            lambda: rlds_to_reverb.push_rlds_to_reverb(
                dataset, OBSERVERS["pairs"](server.client, ["items"]), fast=True
            ),
        ]
        for call in calls:
            with pytest.raises(tf.errors.InvalidArgumentError, match=message) as caught:
                call()
        assert f"{step})" in str(caught.value)


def test_unknown_options_raise():
    with pytest.raises(ValueError, match="validate must be one of 'first', 'all', 'none', got 'some'"):
        rlds_to_reverb.push_rlds_to_reverb(rlds_dataset(EPISODES), None, validate="some")
    with pytest.raises(ValueError, match="discount_source must be one of .*, got 'x'"):
        rlds_to_reverb.convert_rlds_to_trajectories(rlds_dataset(EPISODES), discount_source="x")
