"""Agents on tasks that their predecessors cannot learn; each takes seconds."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rlds2reverb import load, train

ATARI = Path(__file__).parents[1] / "data/formats/atari/replay_logs"


@pytest.fixture(scope="module")
def mostly_wrong_cart_pole():
    """Returns episodes of a controller whose actions are wrong more often than right, with a mean return below 20."""
    rng, env, episodes = np.random.default_rng(0), gymnasium.make("CartPole-v1"), []
    for seed in range(400):
        observations, actions, rewards, has_ended = [env.reset(seed=seed)[0]], [], [], False
        while not has_ended:
            is_falling_right = observations[-1][2] + 0.5 * observations[-1][3] > 0
            actions.append(int(is_falling_right if rng.random() > 0.55 else not is_falling_right))
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            has_ended = terminated or truncated
        columns = {"observations": np.array(observations), "actions": np.array(actions), "rewards": np.array(rewards)}
        episodes.append({**columns, "terminated": terminated})
    return episodes


@pytest.mark.slow
def test_discrete_agents_learn_from_actions_that_are_mostly_wrong(mostly_wrong_cart_pole, tmp_path):
    bcq = {"learning_rate": 1e-3, "target_update_period": 200, "hidden_sizes": (64, 64)}
    iql = {"expectile": 0.8, "num_updates": None}
    returns = {}
    for algo, hyperparameters in (("discrete_bc", {}), ("discrete_bcq", bcq), ("discrete_iql", iql)):
        options = {"steps": 3000, "batch_size": 256, "eval_every": 3000, "eval_episodes": 20, "env": "CartPole-v1"}
        run = train(
            mostly_wrong_cart_pole,
            algo,
            tmp_path / algo,
            hyperparameters=hyperparameters,
            progress=False,
            **options,
        )
        returns[algo] = run.best_return
    assert returns["discrete_bc"] < 20 < 80 < min(returns["discrete_bcq"], returns["discrete_iql"]), returns


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["discrete_bcq", "discrete_iql"])
def test_discrete_agents_train_on_stacked_frames_of_atari(algo, tmp_path):
    run = train(load(ATARI, frame_stack=4), algo, tmp_path, steps=3, batch_size=4, env=None, progress=False)
    assert run.num_updates == 3
    assert run.predict(np.zeros([2, 84, 84, 4], np.uint8)).shape == (2,)
