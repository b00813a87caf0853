"""Off-policy evaluation of policies from data: values in small MDPs, held-out episodes, and what is refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from goal_reaching import Ring
from policies import CountingPolicy
from reference_impls import rlds_dataset
from tf_agents.policies import tf_policy
from tf_agents.policies.random_tf_policy import RandomTFPolicy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import PolicyStep, TimeStep, time_step_spec

from rlds2reverb import SourceError, SpecMismatchError, evaluate_offline, load, rank_policies, train
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.ensemble_fit import FitOptions
from rlds2reverb.learners.fitted_q import FittedQ
from rlds2reverb.training import off_policy_evaluation
from rlds2reverb.training.evaluated_policies import EvaluatedPolicy
from rlds2reverb.training.off_policy_evaluation import evaluate_policies
from rlds2reverb.training.policy_estimates import draw_estimates

GAMMA = 0.5
TABULAR = FitOptions(600, 1, 64, hidden_sizes=(), learning_rate=0.05, target_update_rate=0.1)
TINY = FitOptions(2, 2, 8, hidden_sizes=(4,))
TIME_STEP_SPEC = time_step_spec(tf.TensorSpec([3], tf.float32))


class TabularPolicy(tf_policy.TFPolicy):
    """A policy that takes action 1 with a probability that depends on the one-hot state."""

    def __init__(self, probabilities):
        super().__init__(TIME_STEP_SPEC, tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1))
        self.table = tf.constant([[1 - share, share] for share in probabilities], tf.float32)

    def _distribution(self, time_step, policy_state):
        probs = tf.matmul(time_step.observation, self.table)
        return PolicyStep(tfp.distributions.Categorical(probs=probs, dtype=tf.int64), policy_state)


def make_episode(actions, rewards):
    """Returns an episode that visits the states 0, 1 and 2, whose behaviour policy takes action 1 with 1/2."""
    return {
        "observations": np.eye(3, dtype=np.float32),
        "actions": np.array(actions),
        "rewards": np.float32(rewards),
        "terminated": True,
        "log_prob": np.full(2, np.log(0.5), np.float32),
        "prob": np.full(2, 0.5, np.float32),
    }


# Action 1 is taken in 2 of 4 episodes in state 0, and in 3 of 4 in state 1.
EPISODES = [
    make_episode([1, 1], [4, 2]),
    make_episode([1, 1], [4, 2]),
    make_episode([0, 1], [0, 2]),
    make_episode([0, 0], [0, 6]),
]


def evaluate(policy, method, episodes=EPISODES, **settings):
    return evaluate_offline(policy, episodes, method, gamma=GAMMA, **{"fit": TABULAR, **settings})


def test_fqe_of_the_behaviour_policy_is_the_mean_discounted_return():
    result = evaluate(TabularPolicy([0.5, 0.75, 0.5]), "fqe")
    assert result.estimate == pytest.approx((4 + 4 + 0 + 0) / 4 + GAMMA * (2 + 2 + 2 + 6) / 4, rel=1e-3)
    assert result.estimate == pytest.approx(result.data_return, rel=1e-3)
    assert result.interval[0] <= result.estimate <= result.interval[1] and result.effective_sample_size is None


def test_fqe_continues_after_truncated_ends_but_not_after_terminal_ones():
    loop = {"observations": np.tile(np.eye(3, dtype=np.float32)[:1], (3, 1)), "actions": np.zeros(2, int)}
    loop |= {"rewards": np.ones(2, np.float32), "terminated": False, "truncated": True}
    other = {**loop, "actions": np.ones(2, int)}
    assert evaluate(TabularPolicy([0, 0, 0]), "fqe", [loop, other]).estimate == pytest.approx(1 / (1 - GAMMA), rel=1e-3)
    result = evaluate(TabularPolicy([0, 0, 0]), "pdis", [loop, other])
    assert any("2 of 2 episodes are truncated" in sentence for sentence in result.warnings)


def test_last_transition_is_left_out_if_the_observation_after_it_is_unknown():
    """Its observation is not the end of the episode, so that the rewards of 1 continue; see `append_boundary`."""
    rows = {
        "observation": np.tile(np.eye(3, dtype=np.float32)[:1], (2, 1)),
        "action": np.ones(2, int),
        "reward": np.ones(2, np.float32),
        "discount": np.ones(2, np.float32),
        "is_first": np.array([True, False]),
        "is_last": np.array([False, True]),
        "is_terminal": np.zeros(2, bool),
        "log_prob": np.zeros(2, np.float32),
    }
    episodes = load(rlds_dataset([rows, {**rows, "action": np.zeros(2, int)}]), last_step="transition")
    result = evaluate(TabularPolicy([1, 0, 0]), "fqe", episodes)
    assert result.estimate == pytest.approx(1 / (1 - GAMMA), rel=1e-3)
    sentence = (
        "2 of 2 episodes are truncated without a last observation; their last transitions are left out of the fit"
    )
    assert sentence in result.warnings
    assert sentence not in evaluate(TabularPolicy([1, 0, 0]), "is", episodes, behaviour="log_prob").warnings


@pytest.mark.slow
def test_discount_of_zero_within_an_episode_ends_the_value_and_is_learned():
    """Lost lives have it: later rewards do not count, but the reward of the transition does."""
    rows = {
        "observation": np.eye(3, dtype=np.float32),
        "action": np.array([1, 1, 0]),
        "reward": np.float32([4, 100, 0]),
        "discount": np.float32([0, 1, 1]),
        "is_first": np.array([True, False, False]),
        "is_last": np.array([False, False, True]),
        "is_terminal": np.zeros(3, bool),
    }
    other = {**rows, "action": np.zeros(3, int)}
    result = evaluate(TabularPolicy([1, 1, 1]), "fqe", load(rlds_dataset([rows, other]), last_step="boundary"))
    assert result.estimate == pytest.approx(4, rel=1e-3)
    assert not any("without a last observation" in sentence for sentence in result.warnings)


@pytest.mark.parametrize("behaviour", ["log_prob", "log:prob"])
def test_importance_sampling_uses_recorded_probabilities(behaviour):
    result = evaluate(TabularPolicy([1, 0.25, 0]), "pdis", behaviour=behaviour)
    # Ratios are 2 or 0 in state 0, and 0.5 or 1.5 in state 1.
    assert result.estimate == pytest.approx((2 * 4 + 2 * 4 + GAMMA * 2 * (0.5 * 2 + 0.5 * 2)) / 4, rel=1e-5)
    assert result.effective_sample_size == pytest.approx(2)
    assert any("effective sample size is 2.0 of 4 episodes" in sentence for sentence in result.doubts)


def test_cloned_probabilities_are_those_of_the_data():
    result = evaluate(TabularPolicy([0.5, 0.75, 0.5]), "wis")
    assert result.estimate == pytest.approx(result.data_return, rel=0.03) and result.behaviour == "cloned"
    assert result.effective_sample_size == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("behaviour", [pytest.param("log_prob", marks=pytest.mark.slow), "wrong"])
def test_doubly_robust_estimates_agree_with_exact_values_whatever_the_weights(behaviour):
    policy = TabularPolicy([1, 1, 0])
    exact = 4 + GAMMA * 2
    settings = {"gamma": GAMMA, "fit": TABULAR, "behaviour": behaviour}
    episodes = [{**episode, "wrong": np.log(np.float32([0.9, 0.2]))} for episode in EPISODES]
    for result in evaluate_policies([policy], episodes, ["fqe", "dr", "wdr"], **settings):
        assert result.estimate == pytest.approx(exact, rel=1e-2)


def test_doubly_robust_estimates_match_exact_values_with_a_wrong_q_function():
    """Action 1 is taken in exactly half of the episodes in both states, as the probabilities say."""
    episodes = [make_episode([a, b], [4 * a, 2 * b]) for a in (0, 1) for b in (0, 1)]
    untrained = FitOptions(1, 1, 8, hidden_sizes=(), learning_rate=1e-6)
    result = evaluate(TabularPolicy([1, 1, 0]), "dr", episodes, fit=untrained, behaviour="log_prob")
    assert result.estimate == pytest.approx(4 + GAMMA * 2, rel=1e-4)


def walk(rng):
    """Returns an episode in which actions of about 0.5 move a point on a line, whose reward is its place."""
    actions = np.clip(rng.normal(0.5, 0.2, (20, 1)), -1, 1).astype(np.float32)
    places = np.concatenate([rng.normal(0, 0.1, (1, 1)), actions]).cumsum(axis=0).astype(np.float32)
    return {"observations": places, "actions": actions, "rewards": places[:-1, 0], "terminated": True}


def test_verdict_depends_on_whether_the_policy_leaves_the_data(monkeypatch):
    """The behaviour policy moves by 0.5 in each step from 0 on; one that moves back leaves the data at once."""
    monkeypatch.setattr(off_policy_evaluation, "MIN_MODEL_UPDATES", 0)
    rng = np.random.default_rng(0)
    settings = {"gamma": 0.8, "fit": FitOptions(400, 4, 128, hidden_sizes=(32,), learning_rate=0.01)}

    def stay(observation):
        return np.full((len(observation), 1), 0.5)

    def go_back(observation):
        return np.full((len(observation), 1), -1.0)

    first, second = rank_policies([go_back, stay], [walk(rng) for _ in range(30)], **settings)
    assert (first.policy, first.method, first.verdict) == ("stay", "model", "supported by the data")
    assert first.estimate == pytest.approx(sum(0.8**t * 0.5 * t for t in range(20)), rel=0.1)
    assert first.interval[0] <= first.data_return <= first.interval[1] and first.held_out_loss < 0.2
    assert (second.policy, second.verdict) == ("go_back", "can't tell")
    assert "the policy leaves the data, after" in second.doubts[0]
    assert second.interval[1] - second.interval[0] > 3 * (first.interval[1] - first.interval[0])


def test_function_must_return_an_action_for_each_observation():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"must return actions \[\d+, 1\] for a batch"):
        evaluate_offline(lambda observation: np.zeros(1), CONTINUOUS, fit=TINY)


def test_ranking_orders_policies_and_results_are_saved(tmp_path):
    better, worse = TabularPolicy([1, 0.5, 0]), TabularPolicy([0, 0.5, 0])
    first, second = rank_policies([worse, better], EPISODES, "wpdis", gamma=GAMMA, behaviour="log_prob")
    assert first.estimate > second.estimate
    first.save(tmp_path / "first.json")
    assert json.loads((tmp_path / "first.json").read_text())["estimate"] == first.estimate
    assert "weighted per-decision importance sampling" in str(first)
    with pytest.raises(ValueError, match="at least one policy"):
        rank_policies([], EPISODES)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Provides a run of DQN that holds out one of the four episodes."""
    options = {"steps": 2, "env": None, "gamma": GAMMA, "hyperparameters": {"hidden_sizes": (4,)}, "validation": 0.25}
    return train(EPISODES, "dqn", tmp_path_factory.mktemp("run"), progress=False, **options)


@pytest.mark.slow
def test_stopped_fit_continues_and_a_saved_estimate_is_used_for_the_same_content_only(
    run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(off_policy_evaluation, "NUM_READ", TINY.batch_size)  # One update at a time.
    monkeypatch.setattr(off_policy_evaluation, "SAVE_SECS", -1)
    monkeypatch.setattr(off_policy_evaluation, "LINE_SECS", -1)
    fit, firsts, stop_at = FittedQ.fit, [], None

    def fit_until_stopped(fitted, batches, first):
        if first == stop_at:
            raise KeyboardInterrupt
        firsts.append(first)
        fit(fitted, batches, first)

    def estimate(name, episodes=EPISODES, **options):
        if not (tmp_path / name).exists():
            shutil.copytree(run.path, tmp_path / name, ignore=shutil.ignore_patterns("estimates"))
        result = evaluate_offline(
            tmp_path / name, episodes, held_out=False, fit=replace(TINY, num_updates=6, **options)
        )
        return replace(result, policy="")

    monkeypatch.setattr(FittedQ, "fit", fit_until_stopped)
    whole, stop_at = estimate("whole"), 4
    assert "6 of 6" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        estimate("stopped")
    stop_at = None
    assert estimate("stopped") == whole and firsts == [*range(6), *range(4), 4, 5]
    assert estimate("stopped") == whole and len(firsts) == 12
    assert "using the estimate that was saved in" in capsys.readouterr().err
    (damaged,) = (tmp_path / "stopped/estimates").glob("*/fqe.json")
    damaged.write_text("{}")
    assert estimate("stopped") == whole and len(firsts) == 12  # The fit is complete.
    assert estimate("stopped", seed=1) != whole and len(firsts) == 18
    assert estimate("stopped", [*EPISODES[:3], make_episode([0, 0], [0, 7])]) != whole and len(firsts) == 24
    copy = next((tmp_path / "stopped/policy/variables").glob("*.data*"))
    copy.write_bytes(copy.read_bytes() + b"0")
    estimate("stopped")
    assert len(firsts) == 30


@pytest.mark.slow
def test_held_out_episodes_of_a_run_are_used_by_default(run):
    assert len(run.config["data"]["held_out"]) == 1
    result = evaluate_offline(run, EPISODES, fit=TINY)
    assert result.is_held_out and result.num_episodes == 1 and result.gamma == GAMMA
    assert any("the Q-functions may not have converged" in sentence for sentence in result.doubts)
    result = evaluate_offline(run.path / "policy", EPISODES, "wis", held_out=False, behaviour="log_prob")
    assert not result.is_held_out and result.num_episodes == 4
    assert any("was trained on these episodes" in sentence for sentence in result.warnings)
    others = EPISODES[:3]
    with pytest.raises(ValueError, match="held-out episodes of these data, but .* was trained on different data"):
        evaluate_offline(run, others, held_out=True)


def test_deterministic_discrete_policies_have_the_probability_one(run, capsys):
    state = np.eye(3, dtype=np.float32)
    actions = run.predict(state)
    result = evaluate_offline(run, EPISODES, "pdis", held_out=False, behaviour="log_prob")
    weights = [
        [2 * (actions[0] == a), 4 * (actions[0] == a) * (actions[1] == b)] for a, b in ([1, 1], [1, 1], [0, 1], [0, 0])
    ]
    rewards = np.array([[4, 2 * GAMMA], [4, 2 * GAMMA], [0, 2 * GAMMA], [0, 6 * GAMMA]])
    assert result.estimate == pytest.approx((weights * rewards).sum() / 4, rel=1e-5)
    shutil.rmtree(run.path / "estimates")
    (run.path / "estimates").touch()
    assert evaluate_offline(run, EPISODES, "pdis", held_out=False, behaviour="log_prob") == result
    assert f"the estimates of {run.path} are not saved ([Errno" in capsys.readouterr().err
    (run.path / "estimates").unlink()


def test_random_policies_without_probabilities_are_sampled():
    policy = RandomTFPolicy(TIME_STEP_SPEC, tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1))
    result = evaluate(policy, "fqe")
    assert result.estimate == pytest.approx(4 / 2 + GAMMA * (2 + 6) / 2, rel=0.2)
    with pytest.raises(ValueError, match="must be 'model' or 'fqe'"):
        evaluate(policy, "wis", behaviour="log_prob")


@pytest.mark.slow
def test_estimates_of_different_episodes_or_discounts_are_reported(run, tmp_path):
    options = {"steps": 2, "env": None, "gamma": 0.9, "hyperparameters": {"hidden_sizes": (4,)}}
    other = train(EPISODES, "dqn", tmp_path, progress=False, **options)
    first, second = rank_policies([run, other], EPISODES, fit=TINY)
    assert "not comparable, because the discounts or the held-out episodes" in first.warnings[0]
    labels = [text.get_text() for legend in draw_estimates([first, second]).legends for text in legend.get_texts()]
    assert "mean return of the data" not in labels
    same = rank_policies([run, other], EPISODES, fit=TINY, gamma=GAMMA, held_out=False)
    assert not any("not comparable" in sentence for result in same for sentence in result.warnings)
    assert draw_estimates(same).legends[0].get_texts()[0].get_text() == "mean return of the data"


def make_continuous(name):
    spec = tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
    return make_agent(name, TIME_STEP_SPEC, spec, hidden_sizes=(4,))


CONTINUOUS = [{**episode, "actions": np.float32([[0.1], [-0.2]])} for episode in EPISODES]


def test_densities_of_continuous_actions_may_be_above_1(capfd):
    data = [{**episode, "log_density": np.full(2, 0.5, np.float32)} for episode in CONTINUOUS]
    capfd.readouterr()
    (result,) = evaluate_policies([make_continuous("sac").collect_policy], data, ["is"], behaviour="log_density")
    assert np.isfinite(result.estimate) and result.behaviour == "log_density"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_stochastic_continuous_policies_can_be_evaluated_by_all_methods():
    policy = make_continuous("sac").collect_policy
    results = evaluate_policies([policy], CONTINUOUS, ["fqe", "wdr", "wis"], fit=TINY)
    assert np.isfinite([result.estimate for result in results]).all()


@pytest.mark.slow
def test_value_of_a_policy_with_goals_is_that_of_random_goals(tmp_path):
    """In episodes around a ring of 20 cells, a goal k cells ahead has the value -(1 + gamma + ... + gamma^(k - 1))."""
    cells = np.random.default_rng(0).integers(Ring.num_cells, size=40)[:, np.newaxis] + np.arange(41)
    episodes = [
        {
            "observations": Ring.observe(path).astype(np.float32),
            "actions": np.ones((40, 1), np.float32),
            "rewards": np.zeros(40, np.float32),
            "terminated": False,
        }
        for path in cells
    ]
    options = {"env": None, "action_bounds": (-1, 1), "hyperparameters": {"hidden_sizes": (16,), "learning_rate": 0.01}}
    run = train(episodes, "gcbc", tmp_path, steps=100, progress=False, **options)
    fqe = FitOptions(1500, 2, hidden_sizes=(64,))
    result = evaluate_offline(run, episodes, gamma=0.9, fit=fqe)
    steps = np.arange(Ring.num_cells)
    assert result.estimate == pytest.approx(-((1 - 0.9**steps) / (1 - 0.9)).mean(), rel=0.15)
    with pytest.raises(ValueError, match="must be 'fqe' .* whose goals are not those of the data"):
        evaluate_offline(run, episodes, "wis", fit=fqe)


def test_policy_with_a_state_begins_again_in_each_episode():
    columns = {"observation": np.zeros((9, 1), np.float32), "reward": np.zeros(9)}
    taken = []

    def take(rows, names):
        taken.append((names, rows.tolist()))
        return {name: columns[name][rows] for name in names}

    choices = EvaluatedPolicy(CountingPolicy()).choose_along(take, np.array([3, 5, 1]), 0)
    assert [rows for names, rows in taken if "reward" in names] == [[3, 0], [4, 1], [5], [6]]
    np.testing.assert_allclose(choices[:, 0, 0] * 1e6, [0, 1, 2, 0, 1, 2, 3, 4, 0], atol=0.1)


@pytest.mark.slow
def test_policies_with_a_state_act_along_the_episodes_of_the_data():
    spec = tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
    sizes = {"width": 8, "num_layers": 1, "context_length": 3}
    policy = make_agent("decision_transformer", TIME_STEP_SPEC, spec, target_return=2.0, **sizes).policy
    rng, lengths = np.random.default_rng(0), np.array([3, 5, 1])
    columns = {"observation": rng.normal(size=(9, 3)).astype(np.float32), "reward": rng.normal(size=9)}
    expected = []
    for first, length in zip([0, 3, 8], lengths, strict=True):
        state = policy.get_initial_state(1)
        for row in range(first, first + length):
            step_type, reward = (0, 0.0) if row == first else (1, columns["reward"][row - 1])
            time_step = TimeStep(
                tf.constant([step_type]),
                tf.constant([reward], tf.float32),
                tf.ones(1),
                columns["observation"][None, row],
            )
            action, state, _ = policy.action(time_step, state)
            expected.append(action.numpy())
    evaluated = EvaluatedPolicy(policy)
    choices = evaluated.choose_along(lambda rows, names: {name: columns[name][rows] for name in names}, lengths, 0)
    np.testing.assert_allclose(choices, expected, rtol=1e-5, atol=1e-6)
    result = evaluate_offline(policy, CONTINUOUS, fit=TINY)
    assert any("actions of the policy depend on earlier steps" in sentence for sentence in result.warnings)
    with pytest.raises(ValueError, match="must be 'model' or 'fqe'"):
        evaluate_offline(policy, CONTINUOUS, "wis", fit=TINY)
    with pytest.raises(ValueError, match="must be 'fqe' .* models require"):
        evaluate_offline(policy, CONTINUOUS, "model", fit=TINY)


def test_invalid_arguments_raise(tmp_path):
    greedy = make_continuous("td3").policy
    with pytest.raises(ValueError, match="must be 'model' or 'fqe' for policy, whose actions have no probabilities"):
        evaluate_offline(greedy, CONTINUOUS, "wis", fit=TINY)
    with pytest.raises(ValueError, match="method must be one of 'model', 'fqe'"):
        evaluate_offline(greedy, CONTINUOUS, "dm")
    with pytest.raises(SourceError, match="requires the episodes of a dataset"):
        evaluate_offline(greedy, "localhost:8000")
    with pytest.raises(SourceError, match="'propensity' must be a number, got no such field"):
        evaluate(TabularPolicy([1, 1, 1]), "is", behaviour="propensity")
    with pytest.raises(SourceError, match="8 of 8 log probabilities .* not finite"):
        evaluate(TabularPolicy([1, 1, 1]), "is", [{**e, "prob": np.zeros(2)} for e in EPISODES], behaviour="log:prob")
    with pytest.raises(SourceError, match="log probabilities of discrete actions must be at most 0, got 0.5"):
        evaluate(TabularPolicy([1, 1, 1]), "is", behaviour="prob")
    (tmp_path / "policy.onnx").touch()
    with pytest.raises(ValueError, match="policy.onnx is not a valid ONNX file"):
        evaluate_offline(tmp_path / "policy.onnx", EPISODES)
    wide = [{**episode, "observations": np.zeros((3, 5), np.float32)} for episode in EPISODES]
    with pytest.raises(
        SpecMismatchError, match=r"observation must be float32 \[3\] for .*, but the data contain .*\[5\]"
    ):
        evaluate(TabularPolicy([1, 1, 1]), "fqe", wide)
    with pytest.raises(SpecMismatchError, match="discrete actions must be from 0 to 1"):
        evaluate(TabularPolicy([1, 1, 1]), "fqe", [{**episode, "actions": np.array([2, 0])} for episode in EPISODES])
    with pytest.raises(TypeError, match="policy must be"):
        evaluate_offline(3, EPISODES)
