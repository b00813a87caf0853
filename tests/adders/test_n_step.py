"""N-step transitions: by hand, Acme's own numbers, a double loop, TF-Agents where it is right, and both ends."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from reference_impls import assert_equal_nests, episode, rlds_dataset
from rlds2reverb.adders import NStep, check_adder
from tf_agents.agents import data_converter
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import Episode, from_transitions
from rlds2reverb.trajectories import trajectory_columns

ENDS = {"terminated": True, "truncated": False}


def slow_n_step(steps, n, gamma, *, grow=False, power="m-1"):
    """(t, t + m, reward, discount, value_gamma) of each item, by the double loop."""
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


def items_of(adder, steps):
    items = adder(Episode(steps, 0))
    assert items.squeeze and items.starts.tolist() == list(range(len(items))) and set(items.lengths.tolist()) <= {1}
    return items.columns


def four(terminated, **extras):
    """Observations 10 to 13 and the final 14, actions 20 to 23, rewards 1, 2, 4, 8."""
    return from_transitions(
        np.arange(10, 15, dtype=np.float32),
        np.arange(20, 24, dtype=np.int32),
        rewards=np.array([1, 2, 4, 8], np.float32),
        terminated=terminated,
        extras=extras,
    )


def numbers(columns, *names):
    return [columns[name].tolist() for name in names]


# --- by hand


@pytest.mark.parametrize(
    ("end", "discount"),
    [("terminated", [0.25, 0, 0, 0]), ("truncated", [0.25, 0.25, 0.5, 1])],
)
def test_windows_shrink_at_the_end_and_only_truncation_keeps_the_bootstrap(end, discount):
    columns = items_of(NStep(3, 0.5), four(ENDS[end]))
    assert numbers(columns, "observation", "action", "next_observation") == [
        [10, 11, 12, 13],
        [20, 21, 22, 23],
        [13, 14, 14, 14],
    ]
    assert numbers(columns, "reward", "discount", "value_gamma") == [[3, 6, 8, 8], discount, [0.125, 0.125, 0.25, 0.5]]
    assert {columns[name].dtype for name in ("reward", "discount", "value_gamma")} == {np.dtype(np.float32)}


def test_the_discount_has_the_last_gamma_too_where_it_is_asked_for():
    columns = items_of(NStep(3, 0.5, discount_power="m"), four(False))
    assert numbers(columns, "discount", "value_gamma") == [[0.125, 0.125, 0.25, 0.5]] * 2


def acme_episode(rewards, discounts=None):
    """As Acme's tests have it: observations 1, 2, .. and action 0; terminated."""
    rewards = np.array(rewards, np.float32)
    steps = from_transitions(
        np.arange(1, len(rewards) + 2), np.zeros(len(rewards), int), rewards=rewards, terminated=True
    )
    if discounts is not None:
        steps["discount"][: len(discounts)] = discounts
    return steps


@pytest.mark.parametrize(
    ("n", "gamma", "steps", "wanted"),
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
def test_growing_at_the_start_gives_what_acme_gives(n, gamma, steps, wanted):
    """The numbers of Acme's own tests: acme/adders/reverb/test_cases.py, OneStepFinalReward, TwoStep,
    ThreeStepDiscounted, ThreeStepVaryingReward, SingleTransitionEpisode, EpisodeShorterThanN.
    """
    columns = items_of(NStep(n, gamma, grow_at_start=True), steps)
    got = np.stack([columns[name] for name in ("observation", "reward", "discount", "next_observation")], axis=1)
    np.testing.assert_allclose(got, np.array(wanted), rtol=1e-6)


def test_extras_are_there_as_they_are_before_and_behind():
    value = {"mean": np.arange(30, 34, dtype=np.float64), "parts": np.arange(8, dtype=np.int32).reshape(4, 2)}
    columns = items_of(NStep(2, 0.9), four(False, value=value))
    assert columns["value"]["mean"].tolist() == [30, 31, 32, 33]
    assert columns["next_value"]["mean"].tolist() == [32, 33, 0, 0]  # the final step has none
    assert columns["next_value"]["parts"].tolist() == [[4, 5], [6, 7], [0, 0], [0, 0]]
    assert columns["value"]["mean"].dtype == np.float64


@pytest.mark.parametrize(
    ("given_as", "wanted"),
    [(np.int32, np.float32), (np.uint8, np.float32), (np.float32, np.float32), (np.float64, np.float64)],
)
def test_float_rewards_keep_their_dtype_and_integers_become_float32(given_as, wanted):
    steps = four(True)
    steps["reward"] = steps["reward"].astype(given_as)
    reward = items_of(NStep(3, 0.5), steps)["reward"]
    assert (reward.dtype, reward.tolist()) == (wanted, [3, 6, 8, 8])


def test_float64_rewards_are_summed_in_float64():
    steps = four(True)
    steps["reward"] = np.array([1, 1e-12, 1e-12, 0, 0])
    assert items_of(NStep(3, 1.0), steps)["reward"].tolist() == [1 + 2e-12, 2e-12, 1e-12, 0]


def test_nested_observations_and_actions_are_nested_in_the_items():
    columns = items_of(NStep(2, 0.9), episode(4, terminal=True, nested=True))
    assert columns["observation"]["state"][:, 0].tolist() == [10, 11, 12]
    assert columns["next_observation"]["state"][:, 0].tolist() == [12, 13, 13]
    assert columns["next_observation"]["image"].shape == (3, 3, 2) and columns["action"]["move"].tolist() == [
        10,
        11,
        12,
    ]


def test_an_episode_of_one_step_gives_nothing():
    for grow in (False, True):
        assert len(NStep(3, 0.9, grow_at_start=grow)(Episode(episode(1, terminal=True), 0))) == 0


# --- several rewards and discounts

SCALES = np.array([1, -2, 0.5], np.float32)
HALVES = np.array([[1, 0.5, 1, 1, 1], [1, 1, 0.25, 0, 1]], np.float32).T


def alone(reward, discount, terminated, **options):
    """Reward and discount of the items of an episode with one of several components."""
    steps = {**four(terminated), "reward": reward, "discount": discount}
    slow = slow_n_step(steps, 3, 0.5, **options)
    return [np.array([item[at] for item in slow], np.float32) for at in (2, 3)]


@pytest.mark.parametrize("terminated", [True, False])
def test_vectors_are_summed_by_component_and_the_discount_is_broadcast(terminated):
    one = four(terminated)["reward"]
    steps = {**four(terminated), "reward": one[:, None] * SCALES}
    for grow in (False, True):
        columns = items_of(NStep(3, 0.5, grow), steps)
        wanted = [alone(one * scale, steps["discount"], terminated, grow=grow) for scale in SCALES]
        np.testing.assert_allclose(columns["reward"], np.stack([reward for reward, _ in wanted], 1))
        np.testing.assert_allclose(columns["discount"], wanted[0][1])  # a discount keeps its own shape


def test_a_discount_for_each_component_counts_for_its_own():
    steps = {**four(False), "discount": HALVES}
    steps["reward"] = np.stack([steps["reward"], -steps["reward"]], 1)
    columns = items_of(NStep(3, 0.5), steps)
    for at in range(2):
        reward, discount = alone(steps["reward"][:, at], HALVES[:, at], False)
        np.testing.assert_allclose(columns["reward"][:, at], reward)
        np.testing.assert_allclose(columns["discount"][:, at], discount)
    single = items_of(NStep(3, 0.5), {**steps, "reward": four(False)["reward"]})  # one reward, two discounts
    np.testing.assert_allclose(single["reward"], np.stack([columns["reward"][:, 0], -columns["reward"][:, 1]], 1))
    np.testing.assert_allclose(single["discount"], columns["discount"])


def test_nests_are_summed_by_part_and_what_is_not_nested_counts_for_each():
    one = four(True)["reward"]
    rewards = {"task": one, "shaping": {"near": one[:, None] * SCALES, "calm": one.astype(np.int32)}}
    columns = items_of(NStep(3, 0.5), {**four(True), "reward": rewards})
    tree.assert_same_structure(columns["reward"], columns["discount"])
    reward, discount = alone(one, four(True)["discount"], True)
    np.testing.assert_allclose(columns["reward"]["task"], reward)
    np.testing.assert_allclose(columns["reward"]["shaping"]["near"], reward[:, None] * SCALES)
    np.testing.assert_allclose(columns["reward"]["shaping"]["calm"], reward)
    assert all(leaf.tolist() == discount.tolist() for leaf in tree.flatten(columns["discount"]))
    other = items_of(NStep(3, 0.5), {**four(True), "discount": {"a": HALVES[:, 0], "b": HALVES[:, 1]}})
    for at, name in enumerate("ab"):
        reward, discount = alone(one, HALVES[:, at], True)
        np.testing.assert_allclose((other["reward"][name], other["discount"][name]), (reward, discount))


def test_the_item_spec_of_several_rewards_is_that_of_the_data_set():
    rewards = {"a": np.ones((5, 2), np.int32), "b": np.ones(5)}
    steps, adder = {**four(True), "reward": rewards}, NStep(2, 0.9, grow_at_start=True)
    assert check_adder(adder, [steps]) == 5
    spec = adder.item_spec(tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), steps))
    assert spec["reward"] == {"a": tf.TensorSpec((2,), tf.float32), "b": tf.TensorSpec((), tf.float64)}
    assert spec["discount"] == {"a": tf.TensorSpec((), tf.float32), "b": tf.TensorSpec((), tf.float32)}


# --- TF-Agents' transitions


def data_context():
    observation, action = tf.TensorSpec((), tf.float32), tf.TensorSpec((), tf.int32)
    return data_converter.DataContext(ts.time_step_spec(observation), action, ())


def test_a_batch_of_items_is_a_transition_as_the_agents_converter_makes_it():
    """Inside an episode, where TF-Agents' own function is right, all that an agent reads is the same."""
    steps, adder = four(False), NStep(3, 0.5)
    convert = data_converter.AsNStepTransition(data_context(), gamma=0.5, n=3)
    rows = trajectory_columns(steps)
    frames = tree.map_structure(lambda column: tf.constant(np.stack([column[0:4], column[1:5]])), rows)
    theirs = convert(frames)
    ours = convert(adder.as_transition(tree.map_structure(lambda column: column[:2], items_of(adder, steps))))
    assert_equal_nests(ours.action_step, theirs.action_step)
    assert_equal_nests(ours.time_step.observation, theirs.time_step.observation)
    assert_equal_nests(ours.next_time_step[1:], theirs.next_time_step[1:])
    assert ours.next_time_step.discount.numpy().tolist() == [0.25, 0.25]  # gamma^2: the agent has the third


@pytest.mark.parametrize(
    ("end", "types", "discounts"),
    [("terminated", [1, 2, 2, 2], [0.25, 0, 0, 0]), ("truncated", [1] * 4, [0.25, 0.25, 0.5, 1])],
)
def test_a_transition_counts_the_discount_once_at_either_end(end, types, discounts):
    adder = NStep(3, 0.5)
    items = items_of(adder, four(ENDS[end], policy_info=np.arange(4)))
    transition = tf.function(adder.as_transition)(items)
    data_converter.AsTransition(data_context(), squeeze_time_dim=True)(
        transition._replace(action_step=transition.action_step._replace(info=()))
    )
    following = transition.next_time_step
    assert following.step_type.numpy().tolist() == types and following.discount.numpy().tolist() == discounts
    assert following.observation.numpy().tolist() == [13, 14, 14, 14]
    assert transition.time_step.step_type.numpy().tolist() == [1] * 4  # no row is masked as the last of an episode
    assert transition.action_step.info.numpy().tolist() == [0, 1, 2, 3]
    targets = following.reward + 0.5 * following.discount * 100.0  # as the agents have it, with V = 100 behind
    bootstrap = {"terminated": [12.5, 0, 0, 0], "truncated": [12.5, 12.5, 25, 50]}[end]
    assert targets.numpy().tolist() == [3 + bootstrap[0], 6 + bootstrap[1], 8 + bootstrap[2], 8 + bootstrap[3]]


def test_items_whose_discount_has_the_agents_gamma_are_no_transitions():
    adder = NStep(3, 0.5, discount_power="m")
    with pytest.raises(ValueError, match="discount_power is 'm', expected 'm-1': agents of TF-Agents multiply"):
        adder.as_transition(items_of(adder, four(True)))
    with pytest.raises(ValueError, match="NStep.as_transition needs the field 'next_observation' in the items, found"):
        NStep(3, 0.5).as_transition({name: np.ones(2) for name in ("observation", "action", "reward", "discount")})


# --- the double loop, and laws


@st.composite
def random_episodes(draw):
    """Of 0 to 12 transitions, some with discount 0 or 0.5, and numbers that differ."""
    num, seed = draw(st.integers(0, 12)), draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    steps = episode(num + 1, terminal=draw(st.booleans()))
    steps["reward"] = generator.normal(size=num + 1).astype(draw(st.sampled_from([np.float32, np.float64])))
    steps["discount"] = generator.choice([0, 0.5, 1, 1], num + 1).astype(np.float32)
    return steps


@given(random_episodes(), st.integers(1, 15), st.sampled_from([0, 0.3, 0.99, 1]), st.booleans(), st.booleans())
@examples(25)
def test_items_are_those_of_the_double_loop(steps, n, gamma, grow, own_power):
    power = "m" if own_power else "m-1"
    tf.config.run_functions_eagerly(True)
    try:
        columns = items_of(NStep(n, gamma, grow, power), steps)
    finally:
        tf.config.run_functions_eagerly(False)
    wanted = slow_n_step(steps, n, gamma, grow=grow, power=power)
    assert len(columns["reward"]) == len(wanted)
    first, last = ([item[at] for item in wanted] for at in (0, 1))
    assert columns["observation"].tolist() == steps["observation"][first].tolist()
    assert columns["next_observation"].tolist() == steps["observation"][last].tolist()
    assert columns["action"].tolist() == steps["action"][first].tolist()
    for at, name in enumerate(("reward", "discount", "value_gamma"), start=2):
        np.testing.assert_allclose(columns[name], [item[at] for item in wanted], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [4, 1000, 2**40])
def test_n_beyond_the_end_is_monte_carlo(n):
    columns = items_of(NStep(n, 0.5), four(True))
    assert columns["reward"].tolist() == [4, 6, 8, 8] and not columns["discount"].any()


def test_nothing_crosses_the_end_of_an_episode():
    """Each episode's items are the same, whatever stands before and behind it."""
    single = {name: column[-1:] for name, column in four(False).items()} | {"is_first": np.array([True])}
    loud = {**four(True), "reward": np.full(5, 1e6, np.float32)}
    many = [four(True), four(False), loud, single, loud, four(False)]
    adder = NStep(3, 0.5, grow_at_start=True)
    got = list(rlds_dataset(many).apply(adder).as_numpy_iterator())
    wanted = [
        tree.map_structure(lambda column, t=t: np.asarray(column[t]), items_of(adder, steps))
        for steps in many
        for t in range(len(adder(Episode(steps, 0))))
    ]
    assert len(got) == 5 * 6
    for item, want in zip(got, wanted, strict=True):
        assert_equal_nests(item, want)


# --- TF-Agents


def tf_agents_n_step(rows, begin, n, gamma):
    """`to_n_step_transition` of n + 1 frames: reward, discount and next observation."""
    frames = tree.map_structure(lambda column: tf.constant(column[None, begin : begin + n + 1]), rows)
    following = trajectory.to_n_step_transition(frames, gamma).next_time_step
    return tuple(float(leaf[0]) for leaf in (following.reward, following.discount, following.observation))


@pytest.mark.parametrize("end", ENDS)
def test_tf_agents_agrees_inside_an_episode_and_is_wrong_at_its_truncated_end(end):
    """tensorflow/agents issue 939: a window of frames that reaches over the end of an episode takes in rewards,
    discounts and the observation of the one behind it.
    """
    ours = items_of(NStep(3, 0.5), four(ENDS[end]))
    mine = list(zip(*numbers(ours, "reward", "discount", "next_observation"), strict=True))
    other = {**four(True), "observation": np.arange(50, 55, dtype=np.float32), "reward": np.full(5, 1000, np.float32)}
    parts = [trajectory_columns(four(ENDS[end])), trajectory_columns(other)]
    rows = tree.map_structure(lambda *columns: np.concatenate(columns), *parts)
    for begin in (0, 1):
        assert tf_agents_n_step(rows, begin, 3, 0.5) == pytest.approx(mine[begin])
    if end == "truncated":
        assert mine[2:] == [(8, 0.5, 14), (8, 1, 14)]
        assert tf_agents_n_step(rows, 2, 3, 0.5) == (8, 0.25, 50)  # the next episode's observation, one gamma more
        assert tf_agents_n_step(rows, 3, 3, 0.5) == (8 + 0.25 * 1000, 0.25, 51)  # and its reward


# --- spec and bad input


def test_the_item_spec_is_that_of_the_data_set():
    adder = NStep(2, 0.9)
    for steps in (four(True, value=np.zeros(4)), episode(3, terminal=True, nested=True)):
        spec = adder.item_spec(tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), steps))
        columns = tf.data.Dataset.from_tensors(steps)
        for dataset in (rlds_dataset([steps]).apply(adder), columns.apply(adder)):
            assert dataset.element_spec == spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, r"n must be an integer >= 1, got 0"),
        ({"n": 2.0}, r"n must be an integer >= 1, got 2.0"),
        ({"n": True}, r"n is True, expected an integer"),
        ({"gamma": -0.1}, r"gamma must be a number in \[0, 1\], got -0.1"),
        ({"gamma": 1.01}, r"gamma must be a number in \[0, 1\], got 1.01"),
        ({"gamma": float("nan")}, r"gamma must be a number in \[0, 1\], got nan"),
        ({"discount_power": "m+1"}, "discount_power is 'm[+]1', expected one of 'm-1', 'm'"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NStep(**{"n": 3, "gamma": 0.9, **options})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda steps: steps.pop("action"), "NStep needs the field 'action' in every step, found"),
        (lambda steps: steps.pop("reward"), "NStep needs the field 'reward' in every step, found"),
        (
            lambda steps: steps.update(reward={"a": np.ones(5, bool)}),
            r"NStep wants numbers as the reward of a step, step\['reward'\]\['a'\] is",
        ),
        (lambda steps: steps.update(discount=np.ones((5, 1), bool)), "NStep wants numbers as the discount of a step"),
        (
            lambda steps: steps.update(reward={"a": np.ones(5)}, discount={"b": np.ones(5)}),
            "NStep needs rewards and discounts of one nest, or one of them without, found",
        ),
        (
            lambda steps: steps.update(reward=np.ones((5, 2)), discount=np.ones((5, 3))),
            r"NStep needs rewards and discounts whose shapes broadcast, found \(2,\) and \(3,\)",
        ),
        (lambda steps: steps.update(is_last=np.zeros(5)), r"NStep wants one bool, step\['is_last'\] is"),
        (lambda steps: steps.update(value_gamma=np.ones(5)), "NStep's items would have two fields 'value_gamma'"),
        (lambda steps: steps.update(v=np.ones(5), next_v=np.ones(5)), "NStep's items would have two fields 'next_v'"),
    ],
)
def test_steps_that_do_not_fit_are_refused_before_anything_is_traced(change, message, monkeypatch):
    steps = dict(four(True))
    change(steps)
    monkeypatch.setattr(NStep, "rows", lambda *_: pytest.fail("traced"))
    for episodes in (Episode(steps, 0), tf.data.Dataset.from_tensors(steps)):
        with pytest.raises(ValueError, match=message):
            NStep(3, 0.9)(episodes)
