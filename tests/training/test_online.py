"""The online phase: what is collected, training from scratch and after a dataset, and its continuation."""

import csv
import subprocess
import sys
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from counting import Counting
from skipped_exports import skip_exports
from tf_agents.agents import tf_agent
from tf_agents.policies import tf_policy
from tf_agents.policies.random_tf_policy import RandomTFPolicy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import PolicyStep, time_step as ts

from rlds2reverb import (
    CheckpointError,
    SpecMismatchError,
    Training,
    TrainingConfig,
    TrajectoryWindows,
    load_run,
    sample_dataset,
    train,
)
from rlds2reverb.adders import NStep
from rlds2reverb.envs import BatchedEnvironment, GymnasiumEnvironment, Wrapper
from rlds2reverb.envs.time_steps import LAST
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.hooks import LearnerHook
from rlds2reverb.training.collected_pieces import PieceConverter
from rlds2reverb.training.collector import Collector
from rlds2reverb.training.online import CollectedTable

#: Options of a phase that takes a second.
SMALL = {
    "batch_size": 8,
    "hyperparameters": {"hidden_sizes": (8, 8)},
    "log_every": 20,
    "eval_every": 1000,
    "eval_episodes": 1,
    "warmup_steps": 10,
    "update_every": 5,
}


#: Specs of time steps and actions of `Counting`.
SPECS = ts.time_step_spec(tf.TensorSpec([2], tf.float32)), tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)


class Killed(BaseException):
    """Stands for kill -9: nothing that runs on an `Exception` runs on it."""


class Kill(LearnerHook):
    """A hook that ends the process's run at an iteration."""

    def __init__(self, at):
        super().__init__("kill", priority=1000, position="after_iter", every=at)

    def __call__(self, learner):
        raise Killed


@pytest.fixture(
    scope="module",
    params=[(True, 2), pytest.param((False, 1), marks=pytest.mark.slow)],
    ids=["terminated", "truncated"],
)
def collected(request, tmp_path_factory):
    """The configuration and the directory of a run, whether its episodes are terminated, and all collected items."""
    terminates, num_envs = request.param
    config = TrainingConfig(
        "dqn",
        env=partial(Counting, 7, terminates=terminates),
        online_steps=60,
        n_step=3,
        gamma=0.5,
        num_envs=num_envs,
        online_replay="reverb",
        **SMALL,
    )
    folder = tmp_path_factory.mktemp("runs") / "run"
    with skip_exports(), Training(None, config, folder) as training:
        training.run()
        batch = next(iter(sample_dataset(training.collected_at, "collected", 500, beta=0.0)))
        items = {name: column.numpy() for name, column in batch.data.items()}
    return config, folder, terminates, items


@pytest.mark.slow
def test_collected_items_are_those_of_whole_episodes(collected):
    """Episodes of 7 steps in pieces of 5: item k has the rewards 10 + k, 11 + k and 12 + k, but none beyond the end."""
    _, _, terminates, items = collected
    first, after = items["observation"][:, 0], items["next_observation"][:, 0]
    assert set(first) == set(range(7))
    np.testing.assert_array_equal(after, np.minimum(first + 3, 7))
    expected = [sum(0.5**i * (10 + k + i) for i in range(3) if k + i < 7) for k in first]
    np.testing.assert_allclose(items["reward"], expected)
    ends = after == 7
    lengths = after - first
    powers = 0.5 ** (lengths - 1)
    np.testing.assert_allclose(items["discount"], powers * np.where(ends & terminates, 0, 1))


def test_table_of_collected_items_has_the_newest_ones_and_is_restored(tmp_path):
    collector, convert = Collector(partial(Counting, 9), ZeroPolicy(*SPECS)), PieceConverter(NStep(1, 0.5))
    arguments = convert.item_spec(SPECS[0].observation, SPECS[1]), 5, 64
    saved, restored = (CollectedTable(*arguments, squeeze=convert.squeeze) for _ in range(2))
    for _ in range(2):
        for piece in collector.collect(4):
            saved.append(convert(piece))
    collector.close()
    saved.save_data(tmp_path)
    restored.load_data(tmp_path)
    for table in (saved, restored):
        data, _ = table.read(0, 1)
        experience = table.to_experience(tf.nest.map_structure(lambda column: column[0], data))
        assert {*experience.next_time_step.reward.numpy()} == {13, 14, 15, 16, 17} and table.num_added == 8
        table.close()
        table.stop()


@pytest.mark.parametrize("terminates", [True, False])
def test_only_a_termination_is_collected_as_terminal(terminates):
    policy = RandomTFPolicy(*SPECS)
    collector = Collector(partial(Counting, 4, terminates=terminates), policy)
    (piece,) = collector.collect(4, is_random=True)
    collector.close()
    steps = piece.episode.steps
    assert piece.is_complete and steps["is_terminal"].tolist() == [*[False] * 4, terminates]
    assert steps["discount"].tolist() == [1, 1, 1, *[float(not terminates)] * 2]


def test_pieces_mark_the_first_and_last_step_of_the_episode_only():
    """Windows of an episode of 7 steps in pieces of 2 are those of the whole episode."""
    policy = RandomTFPolicy(*SPECS)
    convert = PieceConverter(TrajectoryWindows(2))
    windows = []
    for num_steps in (2, 7):
        collector = Collector(partial(Counting, 7), policy, num_kept=convert.num_kept)
        pieces = []
        while collector.num_collected < 7:
            pieces += collector.collect(min(num_steps, 7 - collector.num_collected), is_random=True)
        collector.close()
        columns = [(items.columns, start) for items in map(convert, pieces) for start in items.starts]
        windows.append(
            [
                (c.observation[k, 0], c.step_type[k : k + 2].tolist(), c.next_step_type[k : k + 2].tolist())
                for c, k in columns
            ]
        )
        assert len(pieces) == (4 if num_steps == 2 else 1)
    assert windows[0] == windows[1] and [step for step, *_ in windows[0]] == list(range(7))
    assert windows[0][0][1:] == ([0, 1], [1, 1]) and windows[0][-2][1:] == ([1, 1], [1, 2])


@pytest.mark.parametrize("num_steps", [2, 3, 4, 8])
def test_n_step_items_of_pieces_match_whole_episodes(num_steps):
    """Two episodes of 4 steps, with and without a piece that ends with an episode; item k reaches to k + 3 or the end."""
    policy = RandomTFPolicy(*SPECS)
    convert = PieceConverter(NStep(3, 0.5))
    collector = Collector(partial(Counting, 4), policy, num_kept=convert.num_kept)
    found = []
    while collector.num_collected < 8:
        for items in map(convert, collector.collect(min(num_steps, 8 - collector.num_collected))):
            found += [
                tuple(float(items.columns[name].ravel()[k * width]) for name, width in
                      (("observation", 2), ("next_observation", 2), ("reward", 1), ("discount", 1)))
                for k in items.starts
            ]  # fmt: skip
    collector.close()
    episode = [(0, 3, 10 + 5.5 + 3, 0.25), (1, 4, 11 + 6 + 3.25, 0), (2, 4, 12 + 6.5, 0), (3, 4, 13, 0)]
    assert found == 2 * episode


def test_exploration_is_different_in_each_step_and_for_each_seed():
    class Still(Counting):
        """An environment whose observation is always the same, so that only noise makes actions differ."""

        action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

        def step(self, action):
            observation, *rest = super().step(action)
            return 0 * observation, *rest

    time_step_spec = ts.time_step_spec(tf.TensorSpec([2], tf.float32))
    action_spec = tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
    policy = make_agent("td3", time_step_spec, action_spec, hidden_sizes=(4,)).collect_policy
    actions = []
    for seed in (0, 0, 1):
        collector = Collector(Still, policy, seed=seed)
        pieces = [*collector.collect(4), *collector.collect(4), *collector.collect(4, is_random=True)]
        collector.close()
        actions.append([float(action[0]) for piece in pieces for action in piece.episode.steps["action"][:-1]])
    assert actions[0] == actions[1] and len({*actions[0], *actions[2]}) == 24


@pytest.mark.parametrize("num_envs", [1, 2])
def test_collector_that_has_not_started_is_saved_and_restored(tmp_path, num_envs):
    first, second = (
        Collector(partial(Counting, 7), CyclingPolicy(*SPECS), num_envs=number) for number in (num_envs, 1)
    )
    first.save_data(tmp_path)
    second.load_data(tmp_path)
    assert second.num_collected == 0 and second.collect(2)
    second.close()


class Fragile(Counting):
    """Episodes of 4 steps, whose observations contain a part of the seed; the step that ends its `life` raises."""

    life = 0

    def reset(self, *, seed=None, options=None):
        self.part = np.float32([0, seed % 97])
        return super().reset()[0] + self.part, {}

    def step(self, action):
        Fragile.life -= 1
        if Fragile.life == 0:
            raise OSError("it broke")
        observation, *rest = super().step(action)
        return observation * np.float32([1, 0]) + self.part, *rest


class Losing(Wrapper):
    """An environment that loses the third step of many episodes, as if its process had ended."""

    def _step(self, action):
        time_step = self.env.advance(action)
        is_lost = time_step.observation[0] == 3 and time_step.observation[1] % 2 == 0
        return time_step._replace(step_type=LAST, has_failed=np.True_) if is_lost else time_step


@pytest.mark.parametrize("interruption", ["stop", "error", "restart"])
@pytest.mark.parametrize(("wrap", "columns"), [(Wrapper, ["action", "reward"]), (Losing, ["reward"])])
def test_interrupted_collector_collects_the_same_steps(tmp_path, monkeypatch, interruption, wrap, columns):
    """After a lost step, actions may differ: the next episode begins at once."""
    policy = tf_policy.TFPolicy(*SPECS)  # It cannot act, unlike random actions.
    monkeypatch.setattr(
        "rlds2reverb.training.collector.ParallelEnvironment", lambda makers: BatchedEnvironment([f() for f in makers])
    )

    def make():
        return Collector(lambda: wrap(GymnasiumEnvironment(Fragile(4))), policy, num_envs=2)

    def collect(collector, num_steps, **options):
        """Returns the transitions by their first observations, which contain the seed and the step."""
        steps = {}
        for piece in collector.collect(num_steps, is_random=True, **options):
            found = piece.episode.steps
            firsts = map(tuple, found["observation"][:-1])
            steps |= dict(
                zip(firsts, zip(found["observation"][1:, 0], *map(found.get, columns), strict=False), strict=True)
            )
        return steps

    some, expected = collect(make(), 16), collect(make(), 30)
    assert wrap is Losing or {action for _, action, _ in expected.values()} == {0, 1, 2}
    for number in range(1, 9):
        collector = make()
        found = collect(collector, number)
        if interruption == "stop":
            assert collect(collector, 9, should_stop=partial(next, iter([False] * 2), True)) == {}
        elif interruption == "error":
            Fragile.life = 4
            with pytest.raises(OSError, match="it broke"):
                collect(collector, 9)
        else:
            collector.save_data(tmp_path)
            collector = make()
            collector.load_data(tmp_path)
        assert collector.num_collected == len(found)
        found |= collect(collector, 20 - len(found))
        assert len(found) == collector.num_collected and some.items() <= found.items() <= expected.items()


class Numbered(Counting):
    """Episodes of 4 steps, whose rewards contain the number of the episode, from 1: 110, 111, 112, 113, 210, ..."""

    episode = 0

    def __init__(self):
        super().__init__(4)

    def reset(self, **options):
        self.episode += 1
        return super().reset(**options)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 100 * self.episode, *rest


class ZeroPolicy(tf_policy.TFPolicy):
    """A policy whose action is 0."""

    def _action(self, time_step, policy_state, seed):
        return PolicyStep(tf.zeros(tf.shape(time_step.step_type), self.action_spec.dtype), policy_state, ())


class CyclingPolicy(tf_policy.TFPolicy):
    """A policy with the actions 0, 1, 2, 0, ..., whose state counts its steps."""

    def __init__(self, time_step_spec, action_spec):
        super().__init__(time_step_spec, action_spec, policy_state_spec=tf.TensorSpec([], tf.int64))

    def _action(self, time_step, policy_state, seed):
        return PolicyStep(policy_state % 3, policy_state + 1, ())


def test_resumed_collector_continues_with_the_state_of_the_policy(tmp_path):
    actions = []
    for _ in range(3):
        collector = Collector(Counting, CyclingPolicy(*SPECS))
        if actions:
            collector.load_data(tmp_path)
        (piece,) = collector.collect(4)
        actions += piece.episode.steps["action"][:4].tolist()
        collector.save_data(tmp_path)
        collector.close()
    assert actions == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]


class Watching(tf_agent.TFAgent):
    """An agent that learns nothing and remembers its batches: observations, actions and rewards."""

    batches = ()

    def __init__(self, time_step_spec, action_spec):
        policy = ZeroPolicy(time_step_spec, action_spec)
        counter = tf.Variable(0, dtype=tf.int64)
        super().__init__(time_step_spec, action_spec, policy, policy, None, train_step_counter=counter)

    def _train(self, experience, weights):
        self.train_step_counter.assign_add(1)
        after = experience.next_time_step
        columns = [experience.time_step.observation[:, 0], experience.action_step.action, after.reward]
        tf.numpy_function(lambda *values: Watching.batches.append(values), columns, [])
        return tf_agent.LossInfo(tf.reduce_mean(after.reward), {})


def watch(source, run_dir, **options):
    """Returns the batches of the updates of a run, which collects in episodes of 4 steps, and the run."""
    Watching.batches = []
    options = {**SMALL, "hyperparameters": {}, "warmup_steps": 8, "update_every": 4, "log_every": 4, **options}
    with skip_exports():
        run = train(source, Watching, run_dir, env=Numbered, progress=False, **options)
    return Watching.batches, run


@pytest.fixture(scope="module")
def after_dataset(tmp_path_factory):
    """The batches and the run of an agent that learns from a dataset, whose observations are -1, before it collects."""
    marked = {"observations": -np.ones((9, 2), np.float32), "actions": np.ones(8, np.int64), "rewards": np.full(8, 8.0)}
    folder = tmp_path_factory.mktemp("after_dataset")
    options = {"steps": 2, "online_steps": 60, "online_ratio": 0.25, "reward": "scale:0.5:4", "replay_size": 12}
    return watch([{**marked, "terminated": True}], folder, **options)


def test_batches_contain_the_given_share_of_collected_items(after_dataset):
    batches, run = after_dataset
    assert [int((observation >= 0).sum()) for observation, _, _ in batches] == [*2 * [0], *52 * [2]]
    assert sorted(int(path.name) for path in (run.path / "checkpoints").glob("0*")) == [2, 54]  # Phases begin with one.


def test_rewards_of_the_newest_items_are_transformed_as_in_the_dataset(after_dataset):
    batches, _ = after_dataset
    for number, (observations, _, rewards) in enumerate(batches[2:]):
        newest = 3 + number // 4  # Three episodes are collected before the first update, and one before each fourth.
        assert set(rewards[observations < 0]) == {(8 - 4) * 0.5}
        episodes = (rewards / 0.5 + 4 - observations - 10)[observations >= 0] / 100
        assert {*episodes} <= {newest - 2, newest - 1, newest}


def test_collected_actions_are_the_policy_s_after_training_on_a_dataset(after_dataset):
    batches, _ = after_dataset
    observations, actions, _ = (np.concatenate(columns) for columns in zip(*batches, strict=True))
    assert set(actions[observations >= 0]) == {0} and set(actions[observations < 0]) == {1}


def test_agent_without_td_errors_is_rejected_for_prioritized_sampling(tmp_path):
    log = {"observations": np.zeros((9, 2), np.float32), "actions": np.ones(8, np.int64), "rewards": np.ones(8)}
    with pytest.raises(
        ValueError, match="sampler must be 'uniform' for an agent that does not return a TD error .*Watch"
    ):
        watch([{**log, "terminated": True}], tmp_path, steps=2, online_steps=0, sampler="prioritized")


@pytest.mark.slow
def test_collected_return_is_the_mean_of_the_last_ten_episodes(after_dataset):
    _, run = after_dataset
    assert run.progress["collected_steps"].tolist() == [*range(12, 61, 4), 60]
    episodes = [*range(3, 16), 15]  # Their returns are 46 + 400 n.
    expected = [46 + 400 * np.mean([*range(1, n + 1)][-10:]) for n in episodes]
    np.testing.assert_allclose(run.progress["collected_return"], expected)


@pytest.mark.slow
def test_run_without_a_dataset_begins_with_random_actions_and_is_extended(tmp_path, monkeypatch):
    batches, run = watch(None, tmp_path, online_steps=28)
    _, actions, rewards = (np.concatenate(columns) for columns in zip(*batches, strict=True))
    is_random = rewards < 300  # The warm-up is the first two episodes of 4 steps.
    assert len(batches) == 20 and {*actions[is_random]} == {0, 1, 2} and {*actions[~is_random]} == {0}

    monkeypatch.setattr(Numbered, "episode", 100)  # The new environment's first episode repeats the last one.
    batches, run = watch(None, tmp_path, online_steps=60)
    _, actions, rewards = (np.concatenate(columns) for columns in zip(*batches, strict=True))
    assert len(batches) == 32 and {*rewards // 100} == {*range(1, 8), *range(102, 110)}
    assert {*actions[rewards < 300]} == {0, 1, 2} and {*actions[rewards >= 300]} == {0}
    assert run.progress["collected_steps"].tolist() == [*range(12, 61, 4)]
    expected = [46 + 400 * np.mean([*range(1, 8), *range(102, 110)][:n][-10:]) for n in range(3, 16)]
    np.testing.assert_allclose(run.progress["collected_return"], expected)


@pytest.mark.slow
def test_different_online_options_belong_to_a_different_run(collected):
    config, folder, _, _ = collected
    assert load_run(folder).last_return == sum(range(10, 17))
    with pytest.raises(CheckpointError, match="update_every was 5, is now 6"):
        Training(None, config.replace(update_every=6), folder)


def read_rows(run_dir):
    """Returns the columns of a log that depend on nothing but the seed."""
    with open(run_dir / "progress.csv") as file:
        return [
            {name: value for name, value in row.items() if not name.endswith(("_secs", "_ms", "_share", "per_sec"))}
            for row in csv.DictReader(file)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "algo", "moments", "options"),
    [
        ("pendulum_mixed", "td3_bc", (25, 95), {"steps": 40, "num_envs": 1}),
        ("pendulum_mixed", "iql", (50, 51), {"steps": 40, "num_envs": 3, "n_step": 3}),
        ("pendulum_mixed", "iql", (50, 51), {"steps": 40, "num_envs": 2, "chunk_length": 3, "execution_horizon": 2}),
        ("pendulum_mixed", "rebrac", (50, 77), {"steps": 40, "num_envs": 2, "online_ratio": 1.0}),
        (None, "sac", (3, 57), {"num_envs": 2, "updates_per_step": 0.7}),
    ],
)
@pytest.mark.drill("F6")
def test_killed_run_continues_bit_for_bit(tmp_path, data, source, algo, moments, options):
    source = source and data / "d4rl" / f"{source}-v2.hdf5"
    options = {**SMALL, **options, "env": "Pendulum-v1", "online_steps": 110, "checkpoint_every": 9}
    config = TrainingConfig(algo, **options)
    weights = []
    for name, killed_at in (("whole", ()), ("killed", moments)):
        for at in killed_at:
            with pytest.raises(Killed), Training(source, config.replace(hooks=[Kill(at)]), tmp_path / name) as training:
                training.run()
        with Training(source, config, tmp_path / name) as training:
            training.run()
            assert training.learner.step == training.config.num_updates
            weights.append([variable.numpy() for variable in training.agent.variables])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert read_rows(tmp_path / "whole") == read_rows(tmp_path / "killed")


@pytest.mark.slow
def test_environment_that_cannot_be_repeated_starts_new_episodes(tmp_path):
    class Unseeded(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.random.uniform(-1, 1, 2).astype(np.float32), {}

        def step(self, action):
            return np.random.uniform(-1, 1, 2).astype(np.float32), 1.0, False, False, {}

    options = {**SMALL, "env": lambda: gymnasium.wrappers.TimeLimit(Unseeded(), 30), "online_steps": 60}
    config = TrainingConfig("dqn", checkpoint_every=10, **options)
    with pytest.raises(Killed), Training(None, config.replace(hooks=[Kill(25)]), tmp_path) as training:
        training.run()
    with Training(None, config, tmp_path) as training:
        training.run()
        assert training.learner.step == 50


@pytest.mark.parametrize(
    ("source", "algo", "options", "error", "message"),
    [
        (None, "sac", {"online_steps": 0}, ValueError, r"training without a dataset requires .* \(online_steps\)"),
        (None, "sac", {"env": "auto"}, ValueError, "online_steps requires an environment to collect in"),
        (None, "sac", {"env": None}, ValueError, "online_steps requires an environment to collect in"),
        (None, "dqn", {}, SpecMismatchError, "dqn requires discrete actions"),
        (None, "sac", {"reward": "iql_locomotion"}, ValueError, "the highest and lowest return of Pendulum-v1"),
        (None, "sac", {"top_percent": 10}, ValueError, "top_percent requires a dataset"),
        ("pendulum_mixed", "bc", {}, ValueError, "requires an algorithm that learns from rewards, unlike bc"),
        (
            "pendulum_mixed",
            "sac",
            {"sampler": "prioritized"},
            ValueError,
            r"online_steps requires a uniform sampler \(sampler='uniform'\)",
        ),
        (
            "pendulum_mixed",
            "sac",
            {"warmup_steps": 200},
            ValueError,
            r"must be greater than the 200 steps of the warm-up, .* \(warmup_steps\)",
        ),
        ("pendulum_mixed", "sac", {"env": "MountainCarContinuous-v0"}, SpecMismatchError, "observation"),
    ],
)
def test_invalid_arguments_raise(tmp_path, data, source, algo, options, error, message):
    source = source and data / "d4rl" / f"{source}-v2.hdf5"
    options = {**SMALL, "env": "Pendulum-v1", "online_steps": 100, **options}
    with pytest.raises(error, match=message):
        train(source, algo, tmp_path / "run", progress=False, **options)


@pytest.mark.slow
@pytest.mark.drill("F6")
def test_killed_command_continues_bit_for_bit(tmp_path, data):
    """Kills the command with SIGKILL at several moments of the online phase."""
    command = [
        *(sys.executable, "-m", "rlds2reverb.cli", "train", "--algo", "td3_bc", "--online", "3000", "--steps", "500"),
        *("--data", str(data / "d4rl" / "pendulum_mixed-v2.hdf5"), "--checkpoint-every", "400", "--log-every", "100"),
        *("--eval-every", "1000", "--set", "hidden_sizes=(16,16)", "--warmup-steps", "200", "--num-envs", "2"),
    ]
    subprocess.run([*command, "--run-dir", tmp_path / "whole"], check=True, capture_output=True)
    for moment in (900, 1700, 2600):
        process = subprocess.Popen(
            [*command, "--run-dir", tmp_path / "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            checkpoints = (tmp_path / "killed" / "checkpoints").glob("[0-9]" * 10)
            if max((int(path.name) for path in checkpoints), default=0) >= moment:
                break
            time.sleep(0.02)
        assert process.poll() is None
        process.kill()
        process.wait()
    subprocess.run([*command, "--run-dir", tmp_path / "killed"], check=True, capture_output=True)
    assert read_rows(tmp_path / "whole") == read_rows(tmp_path / "killed")
    with open(tmp_path / "whole" / "evaluations.csv") as one, open(tmp_path / "killed" / "evaluations.csv") as other:
        assert one.read() == other.read()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("algo", "env", "expected", "options"),
    [
        ("sac", "Pendulum-v1", -250, {"online_steps": 10_000, "hyperparameters": {"actor_learning_rate": 1e-3,
         "critic_learning_rate": 1e-3}}),
        ("td3", "Pendulum-v1", -250, {"online_steps": 10_000, "hyperparameters": {"actor_learning_rate": 1e-3,
         "critic_learning_rate": 1e-3}}),
        ("dqn", "CartPole-v1", 475, {"online_steps": 50_000, "batch_size": 64, "hyperparameters": {"double": True,
         "learning_rate": 5e-4, "target_update_period": 250}}),
    ],
)  # fmt: skip
def test_agents_learn_from_scratch(tmp_path, algo, env, expected, options):
    run = train(None, algo, tmp_path, env=env, eval_every=2_500, eval_episodes=10, progress=False, **options)
    assert run.best_return >= expected
