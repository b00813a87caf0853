"""Training runs of Decision Transformer: they continue bit for bit, and the return follows the target."""

import numpy as np
import pytest

from rlds2reverb import Training, TrainingConfig, load, train
from rlds2reverb.cli import run as run_command
from rlds2reverb.envs.evaluation import Evaluator

SIZES = {"width": 32, "num_layers": 2, "context_length": 5, "max_time_steps": 200}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pendulum(data):
    return data / "d4rl" / "pendulum_mixed-v2.hdf5"


def test_runs_are_equal_bit_for_bit_if_they_are_continued(pendulum, tmp_path):
    def list_weights(path, *ends):
        for steps in ends:
            config = TrainingConfig(
                "decision_transformer", steps=steps, env=None, deterministic=True, hyperparameters=SIZES
            )
            with Training(pendulum, config, path) as training:
                training.run()
                weights = [variable.numpy() for variable in training.agent.variables]
        return weights

    for once, twice in zip(list_weights(tmp_path / "a", 12), list_weights(tmp_path / "b", 5, 12), strict=True):
        np.testing.assert_array_equal(once, twice)


def test_runs_are_evaluated_with_the_highest_return_as_target(pendulum, tmp_path, capsys):
    pytest.importorskip("gymnasium")
    options = {"steps": 4, "eval_every": 2, "eval_episodes": 1, "hyperparameters": SIZES}
    run = train(pendulum, "decision_transformer", tmp_path, progress=False, **options)
    assert np.isfinite(run.evaluations["mean"]).all() and len(run.evaluations["mean"]) == 3
    target = run.policy.get_initial_state(1)["target_return"].numpy()
    np.testing.assert_allclose(target, [-0.3240456], rtol=1e-5)
    assert run_command(["eval", str(tmp_path), "--episodes", "1"]) == 0
    assert "return" in capsys.readouterr().out
    out = tmp_path / "recorded.hdf5"
    command = ["record", "Pendulum-v1", "--policy", str(tmp_path), "--steps", "5", "--out", str(out)]
    assert run_command([*command, "--target-return", "-500"]) == 0
    assert load(out).metadata["target_return"] == -500
    with pytest.raises(ValueError, match="predict requires a policy without a state"):
        run.predict(np.zeros(3))


def test_return_follows_the_target(pendulum, tmp_path):
    pytest.importorskip("gymnasium")
    fast = SIZES | {"learning_rate": 1e-3, "num_warmup_updates": 200}
    config = TrainingConfig("decision_transformer", steps=1000, env=None, hyperparameters=fast)
    with Training(pendulum, config, tmp_path) as training:
        training.run()
        policy, evaluator = training.agent.policy, Evaluator("Pendulum-v1", num_episodes=10)
        targets, returns = np.quantile(training.data.returns, [0, 0.1, 0.25, 0.5, 0.75, 1]), []
        for policy.target_return in targets.tolist():
            returns.append(evaluator.evaluate(policy).mean)
    assert np.corrcoef(targets, returns)[0, 1] > 0.9
    assert returns[3] - returns[0] > 200
