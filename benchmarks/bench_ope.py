"""Measures off-policy evaluation against known values: the coverage of intervals, and the order of policies.

    python benchmarks/bench_ope.py coverage [--num 200] [--episodes 200] [--record docs/estimates]
    python benchmarks/bench_ope.py ranking DATA ENV [--updates 10000] [--ensemble 5] [--record docs/estimates]

`coverage` evaluates a policy in random MDPs whose values are solutions of linear equations, with every estimator, and
prints how often the 90 % intervals contain the value. `ranking` trains ten policies of different quality on a dataset
for a short time, estimates their values from it by fitted Q evaluation, and compares them with their discounted
returns in the environment. With --record, every estimate is written to a file, from which `pages.py` makes the tables.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from records import COVERAGE_COLUMNS, RANKING_COLUMNS, format_number, replace_rows
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import PolicyStep, time_step_spec

from rlds2reverb import train
from rlds2reverb.envs import evaluate
from rlds2reverb.learners.fitted_q import FittedQOptions
from rlds2reverb.learners.value_estimators import ESTIMATORS
from rlds2reverb.training.off_policy_evaluation import evaluate_policies
from rlds2reverb.training.policy_estimates import PolicyEstimate

GAMMA, NUM_STATES, NUM_ACTIONS = 0.95, 5, 2
#: Linear functions of one-hot states, which represent every Q-function.
TABULAR = {"hidden_sizes": (), "learning_rate": 0.05, "target_update_rate": 0.05, "batch_size": 256}
#: Small networks, which are fast to train.
SMALL = {"hyperparameters": {"hidden_sizes": (64, 64)}}
#: Policies of different quality: an algorithm, its number of updates, and the share of the best episodes it clones.
RUNS: list[tuple[str, int, dict[str, Any]]] = [
    ("bc", 100, {}),
    ("bc", 3_000, {}),
    ("bc", 3_000, {"top_percent": 10}),
    ("td3_bc", 300, {}),
    ("td3_bc", 1_000, {}),
    ("td3_bc", 5_000, {}),
    ("iql", 300, {}),
    ("iql", 1_000, {}),
    ("iql", 5_000, {}),
    ("awac", 3_000, {}),
]


class TabularPolicy(tf_policy.TFPolicy):
    """A policy with given probabilities [S, A] in one-hot states."""

    def __init__(self, probabilities: np.ndarray):
        num_states, num_actions = probabilities.shape
        super().__init__(
            time_step_spec(tf.TensorSpec([num_states], tf.float32)),
            tensor_spec.BoundedTensorSpec([], tf.int64, 0, num_actions - 1),
        )
        self._table = tf.constant(probabilities, tf.float32)

    def _distribution(self, time_step: Any, policy_state: Any) -> PolicyStep:
        probs = tf.matmul(time_step.observation, self._table)
        return PolicyStep(tfp.distributions.Categorical(probs=probs, dtype=tf.int64), policy_state)


class RandomMDP:
    """An MDP with random transitions and rewards, whose episodes end in a terminal state with probability 0.3."""

    def __init__(self, rng: np.random.Generator):
        self.next = 0.7 * rng.dirichlet(np.ones(NUM_STATES), (NUM_STATES, NUM_ACTIONS))
        self.rewards = rng.normal(size=(NUM_STATES, NUM_ACTIONS))
        self.first = rng.dirichlet(np.ones(NUM_STATES))

    def value(self, policy: np.ndarray) -> float:
        """Returns the expected discounted return of a policy [S, A]."""
        matrix = np.einsum("sa,sat->st", policy, self.next)
        values = np.linalg.solve(np.eye(NUM_STATES) - GAMMA * matrix, (policy * self.rewards).sum(1))
        return float(self.first @ values)

    def record(self, policy: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
        """Returns an episode of a policy, with noisy rewards."""
        states, actions, rewards = [int(rng.choice(NUM_STATES, p=self.first))], [], []
        while states[-1] < NUM_STATES:
            state = states[-1]
            actions.append(int(rng.choice(NUM_ACTIONS, p=policy[state])))
            rewards.append(self.rewards[state, actions[-1]] + 0.1 * rng.normal())
            row = self.next[state, actions[-1]]
            states.append(int(rng.choice(NUM_STATES + 1, p=[*row, 1 - row.sum()])))
        one_hot = np.eye(NUM_STATES, dtype=np.float32)[[*states[:-1], 0]]  # Nothing follows the last observation.
        log_probs = np.log(policy[states[:-1], actions])
        return {
            "observations": one_hot,
            "actions": np.array(actions),
            "rewards": np.array(rewards, np.float32),
            "terminated": True,
            "log_prob": log_probs.astype(np.float32),
        }


def measure_coverage(num: int, num_episodes: int, behaviour: str, folder: Path | None) -> None:
    """Prints the share of intervals that contain the value, and the root mean square error, of each estimator."""
    rows: list[dict[str, str]] = []
    covered: dict[str, list[bool]] = {name: [] for name in ESTIMATORS}
    errors: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    for number in range(num):
        rng = np.random.default_rng(number)
        mdp = RandomMDP(rng)
        new, old = (rng.dirichlet(np.full(NUM_ACTIONS, 2.0), NUM_STATES) for _ in range(2))
        old = 0.5 * old + 0.5 * new
        episodes = [mdp.record(old, rng) for _ in range(num_episodes)]
        fqe = FittedQOptions(num_updates=1000, seed=number, **TABULAR)
        settings = {"gamma": GAMMA, "behaviour": behaviour, "fqe": fqe}
        value = mdp.value(new)
        for result in evaluate_policies([TabularPolicy(new)], episodes, list(ESTIMATORS), **settings):
            covered[result.method].append(result.interval[0] <= value <= result.interval[1])
            errors[result.method].append(result.estimate - value)
            rows.append({"mdp": str(number), "method": result.method, **format_result(result, value=value)})
        if number % 10 == 9:
            print(
                f"{number + 1} MDPs",
                {name: round(float(np.mean(hits)), 3) for name, hits in covered.items()},
                flush=True,
            )
    for name in ESTIMATORS:
        rmse = np.sqrt(np.mean(np.square(errors[name])))
        print(f"{name:6} coverage {np.mean(covered[name]):.3f}   RMSE {rmse:.3f}   bias {np.mean(errors[name]):+.3f}")
    if folder is not None:
        replace_rows(folder / "coverage.csv", COVERAGE_COLUMNS, 2, rows)


def format_result(result: PolicyEstimate, **numbers: float) -> dict[str, str]:
    """Returns the numbers of an estimate, and further ones, as columns."""
    low, high = result.interval
    numbers = {"estimate": result.estimate, "low": low, "high": high, **numbers}
    return {name: format_number(number) for name, number in numbers.items()}


def measure_ranking(data: str, env: str, out: Path, *, updates: int, ensemble: int, folder: Path | None) -> None:
    """Prints the estimate and the return of each policy, and Spearman's correlation of both."""
    runs = []
    for algo, steps, options in RUNS:
        name = "-".join([algo, str(steps), *map(str, options.values())])
        normalize: dict[str, Any] = {"reward": "iql_locomotion"} if algo == "iql" else {}
        normalize |= {"normalize_observations": False} if algo == "bc" else {}
        config = {
            "steps": steps,
            "env": "none",
            "log_every": steps,
            "checkpoint_every": steps,
            **SMALL,
            **normalize,
            **options,
        }
        runs.append(train(data, algo, out / name, progress=False, **config))
    began = time.perf_counter()
    results = evaluate_policies(runs, data, ["fqe"], fqe=FittedQOptions(updates, ensemble, hidden_sizes=(64, 64)))
    secs = (time.perf_counter() - began) / len(runs)
    returns = [_measure_return(env, run.policy) for run in runs]
    for result, (discounted, total) in zip(results, returns, strict=True):
        low, high = result.interval
        print(f"{Path(result.policy).name:16} fqe {result.estimate:9.1f} [{low:9.1f}, {high:9.1f}]   "
              f"discounted return {discounted:9.1f}   return {total:9.1f}")  # fmt: skip
    if folder is not None:
        rows = [
            {"dataset": Path(data).stem, "policy": Path(result.policy).name}
            | format_result(result, discounted_return=discounted, total_return=total)
            for result, (discounted, total) in zip(results, returns, strict=True)
        ]
        replace_rows(folder / "ranking.csv", RANKING_COLUMNS, 2, rows)
    estimates, discounted, totals = [result.estimate for result in results], *zip(*returns, strict=True)
    print(f"Spearman with discounted returns {spearman(estimates, discounted):.2f}, with returns "
          f"{spearman(estimates, totals):.2f}; {secs:.0f} s per policy")  # fmt: skip


def _measure_return(env: str, policy: Any) -> tuple[float, float]:
    """Returns the mean discounted return over at most 500 steps, of 100 episodes, and that of 10 usual episodes."""
    num_steps = 500
    environments = gymnasium.make_vec(env, 100, "sync", max_episode_steps=num_steps)
    observations, _ = environments.reset(seed=0)
    totals, factors = np.zeros(environments.num_envs), np.ones(environments.num_envs)
    for _ in range(num_steps):
        observations, rewards, terminated, truncated, _ = environments.step(policy.predict(np.float32(observations)))
        totals += factors * rewards
        factors *= np.where(terminated | truncated, 0.0, 0.99)  # Later steps of a slot belong to other episodes.
    environments.close()
    return float(totals.mean()), evaluate(env, policy, 10).mean


def spearman(x: Any, y: Any) -> float:
    """Returns Spearman's rank correlation."""
    ranks = [np.argsort(np.argsort(values)) for values in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


def main() -> None:
    """Runs one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    coverage = commands.add_parser("coverage")
    coverage.add_argument("--num", type=int, default=200)
    coverage.add_argument("--episodes", type=int, default=200)
    coverage.add_argument("--behaviour", default="log_prob")
    ranking = commands.add_parser("ranking")
    ranking.add_argument("data")
    ranking.add_argument("env")
    ranking.add_argument("--out", type=Path, default=Path("runs"))
    ranking.add_argument("--updates", type=int, default=10_000)
    ranking.add_argument("--ensemble", type=int, default=5)
    for command in (coverage, ranking):
        command.add_argument(
            "--record", type=Path, metavar="DIR", help="directory of the files, such as docs/estimates"
        )
    options = parser.parse_args()
    if options.command == "coverage":
        measure_coverage(options.num, options.episodes, options.behaviour, options.record)
    else:
        limits = {"updates": options.updates, "ensemble": options.ensemble}
        measure_ranking(options.data, options.env, options.out, **limits, folder=options.record)


if __name__ == "__main__":
    main()
