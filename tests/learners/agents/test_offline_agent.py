import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, make_columns, run_updates, to_trajectory, to_transition
from properties import mark_slow_except

from rlds2reverb.learners import agents as agents_package
from rlds2reverb.learners.agents import OfflineAgent, get_agent_class, make_agent
from rlds2reverb.learners.agents.unit_conversions import BoundedActions
from rlds2reverb.learners.algorithms import ALGORITHMS

CONTINUOUS = [
    name
    for name, algorithm in ALGORITHMS.items()
    if algorithm.actions == "continuous"
    and algorithm.items in ("transitions", "trajectories")
    and not algorithm.step_info
]
#: One of each family of losses; the properties of the other agents are slow tests.
FAST = ["bc", "td3_bc", "iql", "cql"]
DENSITY = {"density_hidden_sizes": (8,), "num_density_updates": 0}


def make(name, **overrides):
    options = {"hidden_sizes": (8, 8), "seed": 1, **(DENSITY if name == "spot" else {}), **overrides}
    return make_agent(name, TIME_STEP_SPEC, ACTION_SPEC, **options)


def values(agent):
    return [variable.numpy() for variable in agent.variables]


@pytest.mark.parametrize("name", mark_slow_except(["bc", "iql"], CONTINUOUS))
def test_restored_agent_continues_bit_for_bit_whatever_the_global_seed(name, tmp_path):
    batches = [to_trajectory(make_columns(4, seed)) for seed in range(4)]
    options = {"num_density_updates": 3} if name == "spot" else {}
    agent, restored = make(name, **options), make(name, **options)
    for batch in batches[:2]:
        agent.train(batch)
    path = tf.train.Checkpoint(agent=agent).write(str(tmp_path / "half"))
    for batch in batches[2:]:
        agent.train(batch)
    tf.train.Checkpoint(agent=restored).read(path).assert_consumed()
    tf.random.set_seed(99)
    for batch in batches[2:]:
        restored.train(batch)
    for one, two in zip(values(agent), values(restored), strict=True):
        np.testing.assert_array_equal(one, two)
    assert agent.train_step_counter.numpy() == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iql", "rebrac", "cql", "awac", "spot", "xql"])
def test_train_step_compiles_with_xla(name):
    batch = to_trajectory(make_columns(4))
    plain, compiled = make(name), make(name)
    expected = plain.train(batch)
    actual = tf.function(compiled.train, jit_compile=True)(batch)
    np.testing.assert_allclose(actual.loss, expected.loss, rtol=0.05)  # The noise of rebrac differs.
    assert actual.extra.keys() == expected.extra.keys()


def test_transitions_and_trajectories_of_the_same_items_give_equal_batches():
    data, agent = make_columns(4), make("iql")
    one, two = agent.batch(to_transition(data)), agent.batch(to_trajectory(data))
    for name in ("observation", "action", "reward", "discount", "next_observation", "weights"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    assert one.next_action is None
    np.testing.assert_array_equal(two.next_action, agent.actions.to_unit(data["next_action"]))
    np.testing.assert_array_equal(two.next_action_mask, [0, 1, 1, 1])


def test_n_step_discount_is_applied_once():
    """The target is r + gamma * (product of discounts) * V, here with gamma 0.5 and a constant V of 1."""
    agent = make("iql", discount=0.5, target_update_rate=1.0, value_learning_rate=1e-30)
    network, critic = agent.value.flat, agent.critic.flat
    network.assign([*[0.0] * (network.shape[0] - 1), 1.0])
    critic.assign(tf.zeros_like(critic))
    data = {**make_columns(3), "reward": np.float32([10, 11, 12]), "discount": np.float32([0, 1, 0.81])}
    info = agent.train(to_transition(data))
    np.testing.assert_allclose(info.extra["td_error"], [10, 11 + 0.5, 12 + 0.5 * 0.81], rtol=1e-6)


@pytest.mark.parametrize("name", mark_slow_except(FAST, CONTINUOUS))
def test_item_with_weight_zero_has_a_td_error_but_does_not_affect_critics(name):
    data = make_columns(4)
    other = {**data, "reward": data["reward"] + [0, 0, 5, 0]}
    results = []
    for columns in (data, {key: value.astype(np.float32) for key, value in other.items()}):
        agent = make(name)
        info = agent.train(to_trajectory(columns), tf.constant([1.0, 1, 0, 1]))
        results.append((values(agent), info))
    for one, two in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_array_equal(one, two)
    if ALGORITHMS[name].has_td_errors:
        td = [info.extra["td_error"].numpy() for _, info in results]
        assert td[0].dtype == np.float32 and abs(td[0][2] - td[1][2]) > 1
        np.testing.assert_array_equal(td[0][[0, 1, 3]], td[1][[0, 1, 3]])


@pytest.mark.parametrize("name", mark_slow_except(FAST, CONTINUOUS))
def test_equal_weights_scale_the_losses(name):
    batch = to_trajectory(make_columns(4))
    loss = "critic_loss" if ALGORITHMS[name].has_td_errors else "actor_loss"
    one = make(name).train(batch).extra[loss]
    np.testing.assert_allclose(make(name).train(batch, tf.constant(3.0)).extra[loss], 3 * one, rtol=1e-5)


def test_rebrac_raises_without_next_actions():
    with pytest.raises(ValueError, match=r"requires experience with next actions, .* set critic_penalty=0"):
        make("rebrac").train(to_transition(make_columns(4)))
    assert np.isfinite(make("rebrac", critic_penalty=0).train(to_transition(make_columns(4))).loss)


def test_rebrac_ignores_the_next_action_after_a_truncation():
    agent, data = make("rebrac", critic_penalty=0.5), make_columns(4)
    data["discount"][:] = 1
    experience = to_trajectory(data)
    last = tf.constant([[1, 2], [1, 1], [1, 1], [1, 1]])  # The first item ends an episode that is not terminal.
    other = {**data, "next_action": np.full_like(data["next_action"], 0.5)}
    one, two = (
        agent.critic_targets(agent.batch(trajectories._replace(step_type=last))).numpy()
        for trajectories in (experience, to_trajectory(other))
    )
    assert one[0] == two[0] and (one[1:] != two[1:]).all()


def test_bc_raises_for_an_unknown_distribution():
    with pytest.raises(ValueError, match=r"distribution must be 'deterministic' or 'gaussian', got 'cauchy'"):
        make("bc", distribution="cauchy")


def test_noise_seeds_are_unique():
    one, two = make("td3"), make("td3", seed=2)
    seeds = {tuple(agent.noise_seed(draw).numpy()) for agent in (one, two) for draw in (0, 1)}
    one.train_step_counter.assign_add(1)
    assert len({*seeds, tuple(one.noise_seed(0).numpy())}) == 5


def test_initialize_changes_nothing():
    agent = make("td3")
    before = values(agent)
    agent.initialize()
    for one, two in zip(before, values(agent), strict=True):
        np.testing.assert_array_equal(one, two)


def test_agents_are_public_and_derive_from_their_base_or_one_other_agent():
    agents = {get_agent_class(name) for name in ALGORITHMS}
    assert {cls.__name__ for cls in agents} <= set(agents_package.__all__)
    for cls in agents:
        bases = cls.__mro__[1 : cls.__mro__.index(OfflineAgent)]
        assert len(agents.intersection(bases)) <= 1
        assert {base.__name__ for base in bases if base not in agents} <= {
            "ActorCriticAgent",
            "DiscreteAgent",
            "GoalAgent",
            "GoalValueAgent",
        }


FAST = {"actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3}
LEARNING = {
    "td3_bc": FAST,
    "iql": FAST | {"value_learning_rate": 3e-3, "temperature": 10.0},
    "rebrac": FAST,
    "cql": FAST | {"min_q_weight": 0.05, "num_samples": 2},
    "awac": FAST | {"lambda_": 0.1, "actor_hidden_sizes": (32, 32)},
    "spot": FAST | {"num_density_updates": 100, "density_hidden_sizes": (32, 32)},
    "xql": FAST | {"value_learning_rate": 3e-3, "temperature": 10.0, "loss_temperature": 0.2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_agents_learn_the_better_actions_of_random_data(name):
    """In one-step episodes with reward -(a - target(s))^2, random actions have a mean reward of about -0.75."""
    size, rng = 2000, np.random.default_rng(0)
    observation = rng.uniform(-1, 1, (size, 3)).astype(np.float32)
    unit = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    reward = -np.square(unit - 0.5 * observation[:, :2]).sum(axis=1)
    data = {
        "observation": observation,
        "action": BoundedActions(ACTION_SPEC).to_environment(unit).numpy(),
        "reward": reward,
        "discount": np.zeros(size, np.float32),
        "next_observation": observation,
        "next_action": np.zeros((size, 2), np.float32),
    }
    agent = make(name, hidden_sizes=(32, 32), **LEARNING[name])
    run_updates(agent, to_trajectory(data), 400)
    actions = agent.actor.mode(observation).numpy()
    learned_reward = -np.square(actions - 0.5 * observation[:, :2]).sum(axis=1).mean()
    assert reward.mean() < -0.7
    assert learned_reward > -0.25


@pytest.mark.parametrize("name", ["td3_bc", "bc"])
def test_observation_statistics_are_saved_with_the_weights(name, tmp_path):
    def make_with_mean(value):
        return make_agent(
            name,
            TIME_STEP_SPEC,
            ACTION_SPEC,
            hidden_sizes=(4,),
            observation_mean=tf.nest.map_structure(lambda s: np.full(s.shape, value), TIME_STEP_SPEC.observation),
            observation_std=tf.nest.map_structure(lambda s: np.full(s.shape, 2.0), TIME_STEP_SPEC.observation),
        )

    path = tf.train.Checkpoint(agent=make_with_mean(3.0)).write(str(tmp_path / "saved"))
    restored = make_with_mean(0.0)
    tf.train.Checkpoint(agent=restored).read(path).assert_consumed()
    (mean,) = {tuple(v.numpy()) for v in restored.variables if v.name.startswith("observation_mean")}
    assert set(mean) == {3.0} and not any("observation" in v.name for v in restored.trainable_variables)
