"""Tests of `NStep`: hand-computed values, Acme's test cases, a double loop, TF-Agents, and both ends of episodes."""

import numpy as np
import pytest
import tensorflow as tf
import tf_agents.specs
import tree
from hypothesis import given, strategies as st
from properties import examples, mark_slow_except
from reference_impls import assert_equal_nests, episode, rlds_dataset
from tf_agents.agents import data_converter
from tf_agents.trajectories import time_step as ts, trajectory

from rlds2reverb.adders import NStep, check_adder
from rlds2reverb.types.episodes import Episode, from_transitions
from rlds2reverb.types.trajectories import trajectory_columns

ENDS = {"terminated": True, "truncated": False}


def slow_n_step(steps, n, gamma, *, grow=False, power="m-1"):
    """Returns (t, t + m, reward, discount, value_gamma) of each item, computed with a double loop."""
    num = len(steps["is_first"]) - 1
    spans = [(0, m) for m in range(1, min(n, num))] if grow else []
    spans += [(t, min(n, num - t)) for t in range(num)]
    out = []
    for t, m in spans:
        total, product = 0.0, 1.0
        for k in range(m):
            total += gamma**k * product * float(steps["reward"][t + k])
            product *= 0.0 if steps["is_terminal"][t + k + 1] else float(steps["discount"][t + k])
        out.append((t, t + m, total, gamma ** (m - (power == "m-1")) * product, gamma**m))
    return out


def make_items(adder, steps):
    items = adder(Episode(steps, 0))
    assert items.squeeze and items.starts.tolist() == list(range(len(items))) and set(items.lengths.tolist()) <= {1}
    return items.columns


def make_steps(terminated, **extras):
    """Returns steps with observations 10 to 13 and the final 14, actions 20 to 23, and rewards 1, 2, 4, 8."""
    return from_transitions(
        np.arange(10, 15, dtype=np.float32),
        np.arange(20, 24, dtype=np.int32),
        rewards=np.array([1, 2, 4, 8], np.float32),
        terminated=terminated,
        extras=extras,
    )


def as_lists(columns, *names):
    return [columns[name].tolist() for name in names]


# --- hand-computed values


@pytest.mark.parametrize(
    ("end", "discount"),
    [("terminated", [0.25, 0, 0, 0]), ("truncated", [0.25, 0.25, 0.5, 1])],
)
def test_windows_shrink_and_only_truncation_keeps_the_bootstrap(end, discount):
    columns = make_items(NStep(3, 0.5), make_steps(ENDS[end]))
    assert as_lists(columns, "observation", "action", "next_observation") == [
        [10, 11, 12, 13],
        [20, 21, 22, 23],
        [13, 14, 14, 14],
    ]
    assert as_lists(columns, "reward", "discount", "value_gamma") == [[3, 6, 8, 8], discount, [0.125, 0.125, 0.25, 0.5]]
    assert {columns[name].dtype for name in ("reward", "discount", "value_gamma")} == {np.dtype(np.float32)}


def test_discount_includes_the_last_gamma_with_discount_power_m():
    columns = make_items(NStep(3, 0.5, discount_power="m"), make_steps(False))
    assert as_lists(columns, "discount", "value_gamma") == [[0.125, 0.125, 0.25, 0.5]] * 2


def acme_episode(rewards, discounts=None):
    """Returns a terminated episode like those of Acme's tests: observations 1, 2, ... and action 0."""
    rewards = np.array(rewards, np.float32)
    steps = from_transitions(
        np.arange(1, len(rewards) + 2), np.zeros(len(rewards), int), rewards=rewards, terminated=True
    )
    if discounts is not None:
        steps["discount"][: len(discounts)] = discounts
    return steps


@pytest.mark.parametrize(
    ("n", "gamma", "steps", "expected"),
    [
        (1, 1.0, acme_episode([0, 0, 1]), [(1, 0, 1, 2), (2, 0, 1, 3), (3, 1, 0, 4)]),
        (
            2,
            1.0,
            acme_episode([1, 1, 1], [0.5, 0.5]),
            [(1, 1, 0.5, 2), (1, 1.5, 0.25, 3), (2, 1.5, 0, 4), (3, 1, 0, 4)],
        ),
        (
            3,
            0.4,
            acme_episode([1, 1, 1], [0.5, 0.5]),
            [(1, 1, 0.5, 2), (1, 1.2, 0.1, 3), (1, 1.24, 0, 4), (2, 1.2, 0, 4), (3, 1, 0, 4)],
        ),
        (
            3,
            0.5,
            acme_episode([2, 3, 5, 7]),
            [(1, 2, 1, 2), (1, 3.5, 0.5, 3), (1, 4.75, 0.25, 4), (2, 7.25, 0, 5), (3, 8.5, 0, 5), (4, 7, 0, 5)],
        ),
        (4, 1.0, acme_episode([1]), [(1, 1, 0, 2)]),
        (4, 1.0, acme_episode([1, 1]), [(1, 1, 1, 2), (1, 2, 0, 3), (2, 1, 0, 3)]),
    ],
)
def test_grow_at_start_matches_acme(n, gamma, steps, expected):
    """The numbers come from acme/adders/reverb/test_cases.py: OneStepFinalReward, TwoStep, ThreeStepDiscounted,
    ThreeStepVaryingReward, SingleTransitionEpisode and EpisodeShorterThanN.
    """
    columns = make_items(NStep(n, gamma, grow_at_start=True), steps)
    got = np.stack([columns[name] for name in ("observation", "reward", "discount", "next_observation")], axis=1)
    np.testing.assert_allclose(got, np.array(expected), rtol=1e-6)


def test_extra_fields_are_present_at_both_steps():
    value = {"mean": np.arange(30, 34, dtype=np.float64), "parts": np.arange(8, dtype=np.int32).reshape(4, 2)}
    columns = make_items(NStep(2, 0.9), make_steps(False, value=value))
    assert columns["value"]["mean"].tolist() == [30, 31, 32, 33]
    assert columns["next_value"]["mean"].tolist() == [32, 33, 0, 0]  # The final step has no value.
    assert columns["next_value"]["parts"].tolist() == [[4, 5], [6, 7], [0, 0], [0, 0]]
    assert columns["value"]["mean"].dtype == np.float64


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.int32, np.float32), (np.uint8, np.float32), (np.float32, np.float32), (np.float64, np.float64)],
)
def test_float_rewards_keep_their_dtype_and_integers_become_float32(dtype, expected):
    steps = make_steps(True)
    steps["reward"] = steps["reward"].astype(dtype)
    reward = make_items(NStep(3, 0.5), steps)["reward"]
    assert (reward.dtype, reward.tolist()) == (expected, [3, 6, 8, 8])


def test_float64_rewards_are_summed_in_float64():
    steps = make_steps(True)
    steps["reward"] = np.array([1, 1e-12, 1e-12, 0, 0])
    assert make_items(NStep(3, 1.0), steps)["reward"].tolist() == [1 + 2e-12, 2e-12, 1e-12, 0]


def test_nested_observations_and_actions_are_nested_in_the_items():
    columns = make_items(NStep(2, 0.9), episode(4, terminal=True, nested=True))
    assert columns["observation"]["state"][:, 0].tolist() == [10, 11, 12]
    assert columns["next_observation"]["state"][:, 0].tolist() == [12, 13, 13]
    assert columns["next_observation"]["image"].shape == (3, 3, 2)
    assert columns["action"]["move"].tolist() == [10, 11, 12]


def test_single_step_has_no_items():
    for grow in (False, True):
        assert len(NStep(3, 0.9, grow_at_start=grow)(Episode(episode(1, terminal=True), 0))) == 0


# --- several rewards and discounts

SCALES = np.array([1, -2, 0.5], np.float32)
HALVES = np.array([[1, 0.5, 1, 1, 1], [1, 1, 0.25, 0, 1]], np.float32).T


def expected_for_component(reward, discount, terminated, **options):
    """Returns the expected rewards and discounts of one component, computed as if it were the only one."""
    steps = {**make_steps(terminated), "reward": reward, "discount": discount}
    slow = slow_n_step(steps, 3, 0.5, **options)
    return [np.array([item[at] for item in slow], np.float32) for at in (2, 3)]


@pytest.mark.parametrize("terminated", [True, False])
def test_vector_rewards_are_summed_by_component(terminated):
    one = make_steps(terminated)["reward"]
    steps = {**make_steps(terminated), "reward": one[:, None] * SCALES}
    for grow in (False, True):
        columns = make_items(NStep(3, 0.5, grow), steps)
        expected = [expected_for_component(one * scale, steps["discount"], terminated, grow=grow) for scale in SCALES]
        np.testing.assert_allclose(columns["reward"], np.stack([reward for reward, _ in expected], 1))
        np.testing.assert_allclose(columns["discount"], expected[0][1])  # The discount stays a scalar.


def test_vector_discounts_apply_by_component():
    steps = {**make_steps(False), "discount": HALVES}
    steps["reward"] = np.stack([steps["reward"], -steps["reward"]], 1)
    columns = make_items(NStep(3, 0.5), steps)
    for at in range(2):
        reward, discount = expected_for_component(steps["reward"][:, at], HALVES[:, at], False)
        np.testing.assert_allclose(columns["reward"][:, at], reward)
        np.testing.assert_allclose(columns["discount"][:, at], discount)
    # One reward is combined with each of the two discounts.
    single = make_items(NStep(3, 0.5), {**steps, "reward": make_steps(False)["reward"]})
    np.testing.assert_allclose(single["reward"], np.stack([columns["reward"][:, 0], -columns["reward"][:, 1]], 1))
    np.testing.assert_allclose(single["discount"], columns["discount"])


def test_nested_rewards_or_discounts_are_combined_by_part():
    one = make_steps(True)["reward"]
    rewards = {"task": one, "shaping": {"near": one[:, None] * SCALES, "calm": one.astype(np.int32)}}
    columns = make_items(NStep(3, 0.5), {**make_steps(True), "reward": rewards})
    tree.assert_same_structure(columns["reward"], columns["discount"])
    reward, discount = expected_for_component(one, make_steps(True)["discount"], True)
    np.testing.assert_allclose(columns["reward"]["task"], reward)
    np.testing.assert_allclose(columns["reward"]["shaping"]["near"], reward[:, None] * SCALES)
    np.testing.assert_allclose(columns["reward"]["shaping"]["calm"], reward)
    assert all(leaf.tolist() == discount.tolist() for leaf in tree.flatten(columns["discount"]))
    other = make_items(NStep(3, 0.5), {**make_steps(True), "discount": {"a": HALVES[:, 0], "b": HALVES[:, 1]}})
    for at, name in enumerate("ab"):
        reward, discount = expected_for_component(one, HALVES[:, at], True)
        np.testing.assert_allclose((other["reward"][name], other["discount"][name]), (reward, discount))


def test_item_spec_of_nested_rewards_matches_the_dataset():
    rewards = {"a": np.ones((5, 2), np.int32), "b": np.ones(5)}
    steps, adder = {**make_steps(True), "reward": rewards}, NStep(2, 0.9, grow_at_start=True)
    assert check_adder(adder, [steps]) == 5
    spec = adder.item_spec(tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), steps))
    assert spec["reward"] == {"a": tf.TensorSpec((2,), tf.float32), "b": tf.TensorSpec((), tf.float64)}
    assert spec["discount"] == {"a": tf.TensorSpec((), tf.float32), "b": tf.TensorSpec((), tf.float32)}


# --- TF-Agents' transitions


def data_context():
    observation, action = tf.TensorSpec((), tf.float32), tf.TensorSpec((), tf.int32)
    return data_converter.DataContext(ts.time_step_spec(observation), action, ())


def test_as_transition_matches_tf_agents_inside_an_episode():
    """Inside an episode, where TF-Agents' converter is correct, all fields that an agent reads are equal."""
    steps, adder = make_steps(False), NStep(3, 0.5)
    convert = data_converter.AsNStepTransition(data_context(), gamma=0.5, n=3)
    rows = trajectory_columns(steps)
    frames = tree.map_structure(lambda column: tf.constant(np.stack([column[0:4], column[1:5]])), rows)
    expected = convert(frames)
    got = convert(adder.as_transition(tree.map_structure(lambda column: column[:2], make_items(adder, steps))))
    assert_equal_nests(got.action_step, expected.action_step)
    assert_equal_nests(got.time_step.observation, expected.time_step.observation)
    assert_equal_nests(got.next_time_step[1:], expected.next_time_step[1:])
    # The discount is gamma^2, because the agent multiplies by the third gamma.
    assert got.next_time_step.discount.numpy().tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("end", "types", "discounts"),
    [("terminated", [1, 2, 2, 2], [0.25, 0, 0, 0]), ("truncated", [1] * 4, [0.25, 0.25, 0.5, 1])],
)
def test_as_transition_discounts_correctly_at_either_end(end, types, discounts):
    adder = NStep(3, 0.5)
    items = make_items(adder, make_steps(ENDS[end], policy_info=np.arange(4)))
    transition = tf.function(adder.as_transition, autograph=False)(items)
    data_converter.AsTransition(data_context(), squeeze_time_dim=True)(
        transition._replace(action_step=transition.action_step._replace(info=()))
    )
    following = transition.next_time_step
    assert following.step_type.numpy().tolist() == types and following.discount.numpy().tolist() == discounts
    assert following.observation.numpy().tolist() == [13, 14, 14, 14]
    assert transition.time_step.step_type.numpy().tolist() == [1] * 4  # No row is masked as the last one of an episode.
    assert transition.action_step.info.numpy().tolist() == [0, 1, 2, 3]
    targets = following.reward + 0.5 * following.discount * 100.0  # The target of the agents, with V = 100.
    bootstrap = {"terminated": [12.5, 0, 0, 0], "truncated": [12.5, 12.5, 25, 50]}[end]
    assert targets.numpy().tolist() == [3 + bootstrap[0], 6 + bootstrap[1], 8 + bootstrap[2], 8 + bootstrap[3]]


def test_as_transition_raises_for_discount_power_m_or_missing_fields():
    adder = NStep(3, 0.5, discount_power="m")
    with pytest.raises(ValueError, match="discount_power must be 'm-1' for agents of TF-Agents, got 'm'"):
        adder.as_transition(make_items(adder, make_steps(True)))
    with pytest.raises(ValueError, match="NStep.as_transition requires the field 'next_observation' in the items, got"):
        NStep(3, 0.5).as_transition({name: np.ones(2) for name in ("observation", "action", "reward", "discount")})


# --- the double loop, and properties


@st.composite
def random_episodes(draw):
    """Generates episodes of 0 to 12 random transitions, some with discount 0 or 0.5."""
    num, seed = draw(st.integers(0, 12)), draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    steps = episode(num + 1, terminal=draw(st.booleans()))
    steps["reward"] = generator.normal(size=num + 1).astype(draw(st.sampled_from([np.float32, np.float64])))
    steps["discount"] = generator.choice([0, 0.5, 1, 1], num + 1).astype(np.float32)
    return steps


@given(
    random_episodes(),
    st.integers(1, 15),
    st.sampled_from([0, 0.3, 0.99, 1]),
    st.booleans(),
    st.sampled_from(["m", "m-1"]),
)
@examples(25)
def test_items_match_the_double_loop(steps, n, gamma, grow, power):
    columns = make_items(NStep(n, gamma, grow, power), steps)
    expected = slow_n_step(steps, n, gamma, grow=grow, power=power)
    assert len(columns["reward"]) == len(expected)
    first, last = ([item[at] for item in expected] for at in (0, 1))
    assert columns["observation"].tolist() == steps["observation"][first].tolist()
    assert columns["next_observation"].tolist() == steps["observation"][last].tolist()
    assert columns["action"].tolist() == steps["action"][first].tolist()
    for at, name in enumerate(("reward", "discount", "value_gamma"), start=2):
        np.testing.assert_allclose(columns[name], [item[at] for item in expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", mark_slow_except([4], [4, 1000, 2**40]))
def test_n_beyond_the_end_is_monte_carlo(n):
    columns = make_items(NStep(n, 0.5), make_steps(True))
    assert columns["reward"].tolist() == [4, 6, 8, 8] and not columns["discount"].any()


@pytest.mark.parametrize("n", [3, 50])
def test_long_sums_are_computed_in_parts_with_equal_results(n, monkeypatch):
    random = np.random.default_rng(0)
    steps = {**episode(40, terminal=True), "reward": random.normal(size=40).astype(np.float32)}
    expected = NStep(n, 0.9)(Episode(steps, 0)).columns
    monkeypatch.setattr("rlds2reverb.adders.n_step.MAX_TERMS", 16)
    assert_equal_nests(NStep(n, 0.9)(Episode(steps, 0)).columns, expected)


@pytest.mark.slow  # test_check_adder_passes_for_every_adder is fast.
def test_items_do_not_depend_on_neighbouring_episodes():
    single = {name: column[-1:] for name, column in make_steps(False).items()} | {"is_first": np.array([True])}
    large = {**make_steps(True), "reward": np.full(5, 1e6, np.float32)}
    all_steps = [make_steps(True), make_steps(False), large, single, large, make_steps(False)]
    adder = NStep(3, 0.5, grow_at_start=True)
    got = list(rlds_dataset(all_steps).apply(adder).as_numpy_iterator())
    expected = [
        tree.map_structure(lambda column, t=t: np.asarray(column[t]), make_items(adder, steps))
        for steps in all_steps
        for t in range(len(adder(Episode(steps, 0))))
    ]
    assert len(got) == 5 * 6
    for item, expected_item in zip(got, expected, strict=True):
        assert_equal_nests(item, expected_item)


# --- TF-Agents


def tf_agents_n_step(rows, begin, n, gamma):
    """Returns reward, discount and next observation of TF-Agents' `to_n_step_transition` over n + 1 frames."""
    frames = tree.map_structure(lambda column: tf.constant(column[None, begin : begin + n + 1]), rows)
    following = trajectory.to_n_step_transition(frames, gamma).next_time_step
    return tuple(float(leaf[0]) for leaf in (following.reward, following.discount, following.observation))


@pytest.mark.parametrize("end", ENDS)
def test_tf_agents_agrees_inside_an_episode_but_not_at_a_truncated_end(end):
    """A window of frames that crosses the end of an episode includes rewards, discounts and the observation of the next
    episode (tensorflow/agents issue 939).
    """
    columns = make_items(NStep(3, 0.5), make_steps(ENDS[end]))
    items = list(zip(*as_lists(columns, "reward", "discount", "next_observation"), strict=True))
    other = {
        **make_steps(True),
        "observation": np.arange(50, 55, dtype=np.float32),
        "reward": np.full(5, 1000, np.float32),
    }
    parts = [trajectory_columns(make_steps(ENDS[end])), trajectory_columns(other)]
    rows = tree.map_structure(lambda *columns: np.concatenate(columns), *parts)
    for begin in (0, 1):
        assert tf_agents_n_step(rows, begin, 3, 0.5) == pytest.approx(items[begin])
    if end == "truncated":
        assert items[2:] == [(8, 0.5, 14), (8, 1, 14)]
        # TF-Agents returns the next episode's observation, with one gamma too many, and then also its reward.
        assert tf_agents_n_step(rows, 2, 3, 0.5) == (8, 0.25, 50)
        assert tf_agents_n_step(rows, 3, 3, 0.5) == (8 + 0.25 * 1000, 0.25, 51)


# --- spec and invalid arguments


def test_item_spec_keeps_bounds_and_unknown_sizes():
    spec = tf.data.Dataset.from_tensor_slices(make_steps(True)).element_spec
    bounded = tf_agents.specs.BoundedTensorSpec(spec["action"].shape, spec["action"].dtype, -1, 1)
    made = NStep(2, 0.9).item_spec({**spec, "action": bounded, "observation": tf.TensorSpec([None, 3], tf.uint8)})
    assert made["action"] == bounded
    assert made["observation"] == made["next_observation"] == tf.TensorSpec([None, 3], tf.uint8)


@pytest.mark.slow  # test_check_adder_passes_for_every_adder is fast.
def test_item_spec_matches_the_dataset():
    adder = NStep(2, 0.9)
    flat, nested = make_steps(True, value=np.zeros(4)), episode(3, terminal=True, nested=True)
    for steps, dataset in ((flat, tf.data.Dataset.from_tensors(flat)), (nested, rlds_dataset([nested]))):
        spec = adder.item_spec(tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), steps))
        assert dataset.apply(adder).element_spec == spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, r"n must be an integer >= 1, got 0"),
        ({"n": 2.0}, r"n must be an integer >= 1, got 2.0"),
        ({"n": True}, r"n must be an integer >= 1, got True"),
        ({"gamma": -0.1}, r"gamma must be a number in \[0, 1\], got -0.1"),
        ({"gamma": 1.01}, r"gamma must be a number in \[0, 1\], got 1.01"),
        ({"gamma": float("nan")}, r"gamma must be a number in \[0, 1\], got nan"),
        ({"discount_power": "m+1"}, "discount_power must be one of 'm-1', 'm', got 'm[+]1'"),
    ],
)
def test_out_of_range_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        NStep(**{"n": 3, "gamma": 0.9, **options})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda steps: steps.pop("action"), "NStep requires the field 'action' in every step, got"),
        (lambda steps: steps.pop("reward"), "NStep requires the field 'reward' in every step, got"),
        (
            lambda steps: steps.update(reward={"a": np.ones(5, bool)}),
            r"NStep requires a numeric reward, but step\['reward'\]\['a'\] is",
        ),
        (lambda steps: steps.update(discount=np.ones((5, 1), bool)), "NStep requires a numeric discount, but"),
        (
            lambda steps: steps.update(reward={"a": np.ones(5)}, discount={"b": np.ones(5)}),
            "NStep requires rewards and discounts with the same nest, or one without, got",
        ),
        (
            lambda steps: steps.update(reward=np.ones((5, 2)), discount=np.ones((5, 3))),
            r"NStep requires rewards and discounts whose shapes broadcast, got \(2,\) and \(3,\)",
        ),
        (
            lambda steps: steps.update(is_last=np.zeros(5)),
            r"NStep requires one bool per step, but step\['is_last'\] is",
        ),
        (lambda steps: steps.update(value_gamma=np.ones(5)), "NStep's items would have two fields 'value_gamma'"),
        (lambda steps: steps.update(v=np.ones(5), next_v=np.ones(5)), "NStep's items would have two fields 'next_v'"),
    ],
)
def test_unsuitable_steps_raise_before_conversion(change, message, monkeypatch):
    steps = dict(make_steps(True))
    change(steps)
    monkeypatch.setattr(NStep, "transform", lambda *_: pytest.fail("converted"))
    for episodes in (Episode(steps, 0), tf.data.Dataset.from_tensors(steps)):
        with pytest.raises(ValueError, match=message):
            NStep(3, 0.9)(episodes)
