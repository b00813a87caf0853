"""Measures off-policy evaluation against known values: the coverage of intervals, and the order of policies.

    python benchmarks/bench_ope.py coverage [--num 200] [--episodes 200] [--record docs/estimates]
    python benchmarks/bench_ope.py ranking DATA ENV [--seed 1] [--method model fqe] [--record docs/estimates]
    python benchmarks/bench_ope.py pusher pusher_mixed-v2.hdf5

`coverage` evaluates a policy in random MDPs whose values are solutions of linear equations, with every estimator, and
prints how often the 90 % intervals contain the value. `ranking` trains ten policies of different quality on a dataset
for a short time, estimates their values from it, and compares them with their discounted returns in the environment.
With --record, every estimate is written to a file, from which `pages.py` makes the tables. `pusher` writes 200 episodes
of ten policies in Pusher-v5: of five stages of a random search, with two sizes of noise.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from records import COVERAGE_COLUMNS, RANKING_COLUMNS, format_number, record_results, replace_rows
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import PolicyStep, time_step_spec

from rlds2reverb import train
from rlds2reverb.envs import evaluate
from rlds2reverb.learners.ensemble_fit import FitOptions
from rlds2reverb.learners.value_estimators import ESTIMATORS as ALL_ESTIMATORS
from rlds2reverb.training.off_policy_evaluation import evaluate_policies
from rlds2reverb.training.policy_estimates import PolicyEstimate

#: Models of smooth dynamics do not suit random MDPs.
ESTIMATORS = [name for name in ALL_ESTIMATORS if name != "model"]
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
        fqe = FitOptions(num_updates=1000, seed=number, **TABULAR)
        settings = {"gamma": GAMMA, "behaviour": behaviour, "fit": fqe}
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


def measure_ranking(data: str, env: str, seed: int, methods: list[str], out: Path, folder: Path | None) -> None:
    """Prints the estimates and the return of each policy, and Spearman's correlation of the order with the returns."""
    runs = []
    for algo, steps, options in RUNS:
        name = "-".join([algo, str(steps), *map(str, options.values())])
        normalize: dict[str, Any] = {"reward": "iql_locomotion"} if algo == "iql" else {}
        normalize |= {"normalize_observations": False} if algo == "bc" else {}
        config = {
            **{"steps": steps, "env": "none", "log_every": steps, "checkpoint_every": steps, "seed": seed},
            **SMALL,
            **normalize,
            **options,
        }
        runs.append(train(data, algo, out / f"{Path(data).stem}-s{seed}" / name, progress=False, **config))
    returns = [_measure_return(env, run.policy) for run in runs]
    for method in methods:
        began = time.perf_counter()
        results = evaluate_policies(runs, data, [method], gamma=0.99)
        secs = (time.perf_counter() - began) / len(runs)
        rows = [
            {"dataset": Path(data).stem, "seed": str(seed), "method": method, "policy": Path(result.policy).name}
            | format_result(result, discounted_return=discounted, total_return=total)
            | {"verdict": result.verdict}
            for result, (discounted, total) in zip(results, returns, strict=True)
        ]
        for row in rows:
            print(f"{row['policy']:16} {method} {row['estimate']:>8} [{row['low']:>8}, {row['high']:>8}] "
                  f"{row['verdict']:21} discounted return {row['discounted_return']:>8}")  # fmt: skip
        correlation = spearman([result.interval[0] for result in results], [discounted for discounted, _ in returns])
        print(f"{method}: Spearman {correlation:.2f}, {secs:.0f} s per policy", flush=True)
        if folder is not None:
            record_results(folder / "ranking.csv", rows, RANKING_COLUMNS)


def _measure_return(env: str, policy: Any) -> tuple[float, float]:
    """Returns the mean discounted return over at most 500 steps, and the mean return of 10 usual episodes.

    The first is that of 100 episodes, or of up to 1,000 until its standard error is below 1%.
    """
    num_steps, returns = 500, np.zeros(0)
    environments = gymnasium.make_vec(env, 100, "sync", max_episode_steps=num_steps)
    while not len(returns) or (
        returns.std() / len(returns) ** 0.5 > 0.01 * abs(returns.mean()) and len(returns) < 1000
    ):
        observations, _ = environments.reset(seed=len(returns))
        totals, factors = np.zeros(environments.num_envs), np.ones(environments.num_envs)
        for _ in range(num_steps):
            observations, rewards, terminated, truncated, _ = environments.step(
                policy.predict(np.float32(observations))
            )
            totals += factors * rewards
            factors *= np.where(terminated | truncated, 0.0, 0.99)  # Later steps of a slot belong to other episodes.
            if not factors.any():
                break
        returns = np.append(returns, totals)
    environments.close()
    return float(returns.mean()), evaluate(env, policy, 10).mean


def record_pusher(path: Path) -> None:
    """Writes episodes of linear policies that augmented random search (Mania et al. 2018, algorithm 1, V2-t) learns."""
    rng, num, num_steps = np.random.default_rng(7), 16, 100
    environments = gymnasium.make_vec("Pusher-v5", 2 * num, "sync")
    size, num_actions = environments.single_observation_space.shape[0], environments.single_action_space.shape[0]
    matrix, statistics = np.zeros((num_actions, size)), [np.zeros((0, size))]
    columns: dict[str, list[np.ndarray]] = {"observations": [], "actions": [], "rewards": [], "next_observations": []}

    def roll_out(matrices: np.ndarray, noise: float, seed: int) -> list[np.ndarray]:
        """Returns observations, actions, rewards and next observations [T, N, ...]."""
        mean, std = (np.zeros(size), np.ones(size)) if len(statistics) == 1 else compute_statistics(statistics)
        observations, _ = environments.reset(seed=seed)
        steps = []
        for _ in range(num_steps):
            inputs = np.clip((observations - mean) / std, -5, 5)
            actions = np.einsum("nij,nj->ni", matrices, inputs) + noise * rng.normal(size=(len(matrices), num_actions))
            actions = np.float32(np.clip(actions, -2, 2))
            following, rewards, *_ = environments.step(actions)
            steps.append((observations, actions, rewards, following))
            observations = following
        return [np.array(column) for column in zip(*steps, strict=True)]

    for iteration in range(121):
        if iteration in (0, 8, 25, 60, 120):
            for noise in (0.1, 0.3):
                found = roll_out(np.tile(matrix, (2 * num, 1, 1)), noise, 100 + iteration)
                for column, values in zip(columns.values(), found, strict=True):
                    episodes = np.moveaxis(values, 1, 0)[:20].astype(np.float32)
                    column.append(episodes.reshape(-1, *values.shape[2:]))
        directions = rng.normal(size=(num, num_actions, size))
        tried = np.concatenate([matrix + 0.05 * directions, matrix - 0.05 * directions])
        observations, _, rewards, _ = roll_out(tried, 0.0, int(rng.integers(1 << 30)))
        statistics.append(observations.reshape(-1, size))
        totals = rewards.sum(axis=0).reshape(2, num)
        best = np.argsort(-totals.max(axis=0))[:8]
        gains = (totals[0] - totals[1])[best]
        matrix = matrix + 0.05 / (8 * totals[:, best].std()) * np.einsum("n,nij->ij", gains, directions[best])
    with h5py.File(path, "w") as file:
        for name, parts in columns.items():
            file[name] = np.concatenate(parts)
        count = len(file["rewards"])
        file["terminals"], file["timeouts"] = np.zeros(count, bool), np.arange(count) % num_steps == num_steps - 1


def compute_statistics(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the standard deviation of observations."""
    joined = np.concatenate(parts)
    return joined.mean(axis=0), joined.std(axis=0) + 1e-4


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
    ranking.add_argument("--seed", type=int, default=1)
    ranking.add_argument("--method", nargs="+", default=["model", "fqe"])
    pusher = commands.add_parser("pusher")
    pusher.add_argument("file", type=Path)
    for command in (coverage, ranking):
        command.add_argument(
            "--record", type=Path, metavar="DIR", help="directory of the files, such as docs/estimates"
        )
    options = parser.parse_args()
    if options.command == "coverage":
        measure_coverage(options.num, options.episodes, options.behaviour, options.record)
    elif options.command == "ranking":
        measure_ranking(options.data, options.env, options.seed, options.method, options.out, options.record)
    else:
        record_pusher(options.file)


if __name__ == "__main__":
    main()
