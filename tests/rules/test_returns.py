"""The law of returns: the rewards of an episode's one-step items add up to its return, which every statistic uses.

The reward of a transition that was dropped because its next observation is unknown does not count, like any other
reward of a last step. The last row of robots' RLDS data is a transition, whose reward counts.
"""

import functools
import gzip
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, strategies as st
from properties import examples, mark_slow_except
from reference_impls import rlds_dataset

from rlds2reverb import ByReturn, Source, TrajectoryWindows, apply_transforms, ingest, load, summarize, write_dataset
from rlds2reverb.adders import InitialPriorities, NStep, ReturnToGo, StepEpisodes, compose
from rlds2reverb.adders.trajectory_windows import TrajectoryEpisodes
from rlds2reverb.cli import run
from rlds2reverb.datasets.dataset_statistics import DatasetStatistics
from rlds2reverb.datasets.transforms import CastFloats, CutAtTerminal, ScaleRewards, ScaleRewardsByReturns
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.sources import open_data
from rlds2reverb.types.episode_batches import batch_episodes

#: Rewards of the transitions of each episode, and the reward and action of a last step that no transition has.
REWARDS = ([0.0, 0, 0], [1.0, 2, 3, 4], [5.0], [6.0, 7])
BOUNDARY = (999.0, 0.0, -50.0, 7.0)


def make_steps(rewards, boundary, *, terminal=False):
    num_steps = len(rewards) + 1
    is_last = np.arange(num_steps) == len(rewards)
    return {
        "observation": np.arange(2.0 * num_steps, dtype=np.float32).reshape(num_steps, 2),
        "action": np.append(np.zeros(len(rewards)), boundary != 0).astype(np.float32)[:, None],
        "reward": np.append(rewards, boundary).astype(np.float32),
        "discount": np.where(terminal & (is_last | np.roll(is_last, -1)), 0, 1).astype(np.float32),
        "is_first": np.arange(num_steps) == 0,
        "is_last": is_last,
        "is_terminal": is_last & terminal,
    }


def make_episodes():
    return [make_steps(*pair) for pair in zip(REWARDS, BOUNDARY, strict=True)]


def make_logs():
    return [
        {"observations": np.arange(len(rewards) + 1.0), "actions": np.zeros((len(rewards), 1)), "rewards": rewards,
         "terminated": False} for rewards in REWARDS
    ]  # fmt: skip


def make_rows(*, has_next):
    rewards = np.concatenate(REWARDS)
    ends = np.isin(np.arange(len(rewards)), np.cumsum(list(map(len, REWARDS))) - 1)
    observations = np.arange(len(rewards) * 1.0)[:, None]
    rows = {"observations": observations, "actions": np.zeros((len(rewards), 1)), "rewards": rewards, "timeouts": ends}
    return {
        **rows,
        "terminals": np.zeros(len(rewards), bool),
        **({"next_observations": observations + 1} if has_next else {}),
    }


def written(format):
    def write(folder):
        path = folder / f"{format}-v0"
        write_dataset(make_episodes(), path, format=format)
        return load(path)

    return write


def make_rows_without_boundary():
    """Returns RLDS episodes whose last row is a transition, as datasets of robots have them."""
    rows = []
    for number, rewards in enumerate(REWARDS):
        steps = make_steps(rewards, 0)
        part = {name: column[:-1].copy() for name, column in steps.items()}
        part["action"] += 1
        part["is_last"] = np.arange(len(rewards)) == len(rewards) - 1
        part["is_terminal"] = part["is_last"] & (number % 2 == 0)
        rows.append(part)
    return rows


#: Every kind of source, made in a folder.
SOURCES = {
    "steps": lambda folder: load(make_episodes()),
    "function": lambda folder: load(make_episodes),
    "logs": lambda folder: load(make_logs()),
    "D4RL columns": lambda folder: load(make_rows(has_next=True)),
    "D4RL columns without next observations": lambda folder: load(make_rows(has_next=False)),
    "tf.data": lambda folder: load(rlds_dataset(make_episodes()), last_step="boundary"),
    "transitions in last rows": lambda folder: load(rlds_dataset(make_rows_without_boundary()), last_step="transition"),
    **{f"written as {format}": written(format) for format in ("d4rl", "rlds", "minari")},
}
TRANSFORMS = {
    "none": ([], lambda reward: reward),
    "cast": ([CastFloats()], lambda reward: reward),
    "scale": ([ScaleRewards(0.001)], lambda reward: reward * 0.001),
    "shift": ([ScaleRewards(2.0, 1.0)], lambda reward: (reward - 1) * 2),
    "cut": ([CutAtTerminal(), ScaleRewards(3.0)], lambda reward: reward * 3),
}


def sum_items(adder, episode):
    rewards = adder(episode).columns["reward"]
    return float(np.sum(rewards, dtype=np.float64))


#: One source of each kind of last step; the others are read by the slow tests.
FAST = ("steps", "D4RL columns without next observations", "transitions in last rows", "written as rlds")


@pytest.fixture(scope="module", params=mark_slow_except(FAST, SOURCES))
def case(request, tmp_path_factory):
    """Provides a source, and the rewards of the transitions of each episode."""
    lost = -1 if request.param == "D4RL columns without next observations" else None
    return SOURCES[request.param](tmp_path_factory.mktemp("source")), [rewards[:lost] for rewards in REWARDS]


@pytest.mark.parametrize(
    ("case", "name"),
    mark_slow_except(
        [*(("steps", name) for name in TRANSFORMS), ("steps", "returns"), ("transitions in last rows", "returns")],
        itertools.product(SOURCES, [*TRANSFORMS, "returns"]),
    ),
    indirect=["case"],
)
def test_returns_add_up_the_rewards_of_transitions(case, name):
    source, rewards = case
    returns = [sum(row) for row in rewards]
    scale = 1000 / (max(returns) - min(returns))
    transforms, change = TRANSFORMS.get(name, ([ScaleRewardsByReturns()], lambda reward: reward * scale))
    transformed = apply_transforms(source, transforms)[0]
    expected = [sum(map(change, row)) for row in rewards]
    episodes = list(transformed)
    got = [episode.total_reward for episode in episodes]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    for episode in episodes:
        rewards = TrajectoryWindows()(episode).columns.reward
        assert sum(rewards[:-1]) == pytest.approx(episode.total_reward, rel=1e-6)
        if episode.num_transitions:
            assert sum_items(NStep(1, 0.9), episode) == pytest.approx(episode.total_reward, rel=1e-6)
            to_go = compose(ReturnToGo(), StepEpisodes(9))(episode).columns["return_to_go"]
            assert to_go[0] == pytest.approx(episode.total_reward, rel=1e-6)


# --- any rewards, in any format


def write_steps(format, **options):
    """Returns a function that writes episodes with a final observation in a format of `write_dataset`."""

    def write(folder, rows, terminals):
        episodes = [make_steps(row, 0, terminal=terminal) for row, terminal in zip(rows, terminals, strict=True)]
        write_dataset(episodes, folder / f"{format}-v0", format=format)
        return load(folder / f"{format}-v0", **options)

    return write


def make_columns(rows, num_final=0, **names):
    """Returns rows of D4RL with the observations 0, 1, 2, or their columns of other names."""
    rewards = np.concatenate([np.append(row, np.zeros(num_final)) for row in rows]).astype(np.float32)
    ends = np.cumsum([len(row) + num_final for row in rows])
    columns = {
        "observations": np.arange(len(rewards), dtype=np.float32)[:, None],
        "actions": np.ones((len(rewards), 1), np.float32),
        "rewards": rewards,
        "ends": np.isin(np.arange(len(rewards)), ends - 1),
    }
    return {names.get(name, name): column for name, column in columns.items()}


def load_d4rl(folder, rows, terminals, **more):
    columns = make_columns(rows)
    ends = columns.pop("ends")
    is_terminal = np.zeros(len(ends), bool)
    is_terminal[np.flatnonzero(ends)] = terminals
    return load({**columns, "terminals": is_terminal, "timeouts": ends & ~is_terminal, **more})


def load_d4rl_with_next(folder, rows, terminals):
    following = np.arange(1, sum(map(len, rows)) + 1, dtype=np.float32)[:, None]
    return load_d4rl(folder, rows, terminals, next_observations=following)


def write_ogbench(folder, rows, terminals):
    columns = make_columns(rows, 1, ends="terminals")
    last = np.flatnonzero(columns["terminals"]) - 1
    columns["masks"] = np.ones(len(columns["terminals"]), np.float32)
    columns["masks"][last] = ~np.array(terminals)
    np.savez(folder / "a.npz", **columns)
    return load(folder / "a.npz")


def write_neorl(folder, rows, terminals):
    columns = make_columns(rows, observations="obs", actions="action", rewards="reward", ends="done")
    np.savez(folder / "a.npz", **columns, next_obs=columns["obs"] + 1, index=np.cumsum([len(row) for row in rows]))
    return load(folder / "a.npz", max_episode_steps=100)


def write_robomimic(folder, rows, terminals, *, has_next=False):
    with h5py.File(folder / "a.hdf5", "w") as file:
        for number, (row, terminal) in enumerate(zip(rows, terminals, strict=True)):
            demo = file.create_group(f"data/demo_{number}")
            state = np.arange(len(row) + 1, dtype=np.float32)[:, None]
            demo["obs/state"], demo["actions"], demo["rewards"] = state[:-1], state[1:], np.array(row, np.float64)
            demo["dones"] = (np.arange(len(row)) == len(row) - 1) & terminal
            if has_next:
                demo["next_obs/state"] = state[1:]
    return load(folder / "a.hdf5")


def write_vd4rl(folder, rows, terminals):
    for number, (row, terminal) in enumerate(zip(rows, terminals, strict=True)):
        length = len(row) + 1
        is_last = np.arange(length) == length - 1
        np.savez(
            folder / f"20220101T000000-{number:08x}-{length}.npz",
            image=np.zeros((length, 4, 4, 3), np.uint8),
            action=np.ones((length, 1), np.float32),
            reward=np.array([0, *row], np.float32),
            discount=np.where(is_last & terminal, 0, 1).astype(np.float32),
            is_first=np.arange(length) == 0,
            is_last=is_last,
            is_terminal=is_last & terminal,
        )
    return load(folder)


def write_dqn_replay(folder, rows, terminals):
    """Writes one file; in these logs every episode but the last one is terminal."""
    columns = make_columns(rows)
    stored = {
        "observation": np.zeros((len(columns["ends"]), 4, 4), np.uint8),
        "action": np.ones(len(columns["ends"]), np.int32),
        "reward": columns["rewards"],
        "terminal": columns["ends"].astype(np.uint8),
    }
    (folder / "logs").mkdir()
    arrays = {**{f"$store$_{name}": column for name, column in stored.items()},
              "add_count": np.array(len(columns["ends"])), "invalid_range": np.zeros(5, np.int64)}  # fmt: skip
    for name, array in arrays.items():
        with gzip.open(folder / f"logs/{name}_ckpt.0.gz", "wb") as file:
            np.save(file, array)
    return load(folder / "logs")


def load_rows_as_transitions(folder, rows, terminals):
    episodes = []
    for row, terminal in zip(rows, terminals, strict=True):
        steps = {name: column[:-1] for name, column in make_steps(row, 0).items()}
        is_last = np.arange(len(row)) == len(row) - 1
        episodes.append({**steps, "is_last": is_last, "is_terminal": is_last & terminal})
    return load(rlds_dataset(episodes), last_step="transition")


WRITERS = {
    "D4RL": load_d4rl,
    "D4RL with next observations": load_d4rl_with_next,
    "transitions in last rows": load_rows_as_transitions,
    **{format: write_steps(format) for format in ("d4rl", "rlds", "minari", "lerobot", "robomimic")},
    "OGBench": write_ogbench,
    "NeoRL": write_neorl,
    "robomimic": functools.partial(write_robomimic, has_next=True),
    "robomimic without next observations": write_robomimic,
    "V-D4RL": write_vd4rl,
    "Atari": write_dqn_replay,
}
ADDERS = {
    "NStep": lambda episode: NStep(1, 0.9)(episode).columns["reward"],
    "TrajectoryWindows": lambda episode: TrajectoryWindows()(episode).columns.reward[:-1],
    "TrajectoryEpisodes": lambda episode: TrajectoryEpisodes()(episode).columns.reward[:-1],
    "ReturnToGo": lambda episode: compose(ReturnToGo(), StepEpisodes(9))(episode).columns["return_to_go"][:1],
}


@pytest.mark.parametrize(
    "format",
    mark_slow_except(["transitions in last rows"], WRITERS),
)
@examples(20)
@given(st.lists(st.tuples(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.booleans()), min_size=1, max_size=4))
def test_law_of_returns_holds_for_any_rewards_in_any_format(format, rows):
    rewards, terminals = [[float(reward) for reward in row] for row, _ in rows], [terminal for _, terminal in rows]
    with tempfile.TemporaryDirectory() as folder:
        source = WRITERS[format](Path(folder), rewards, terminals)
        episodes, statistics = list(source), summarize(source)
    returns = []
    for row, episode in zip(rewards, episodes, strict=True):
        returns.append(sum(row[:-1] if episode.dropped_last_transition else row))
        assert episode.total_reward == returns[-1]
        for name, read in ADDERS.items():
            if episode.num_transitions:
                assert sum(read(episode)) == pytest.approx(returns[-1], abs=1e-5), name
    assert statistics.returns.mean == pytest.approx(np.mean(returns), abs=1e-9)


def test_every_statistic_uses_the_returns(case):
    source, rewards = case
    returns = [float(sum(row)) for row in rewards]
    highest = max(returns)
    episodes, summary, statistics = list(source), summarize(source), DatasetStatistics(source)
    for batch in batch_episodes(episodes):
        statistics.add_batch(batch)
    assert (summary.returns.min, summary.returns.max, summary.returns.mean) == (0, highest, np.mean(returns))
    assert statistics.parts.returns.tolist() == returns
    priority = ByReturn.from_episodes(source)
    assert priority == ByReturn(0, highest)
    assert [priority(episode, None) for episode in episodes] == [max(value / highest, 0.01) for value in returns]
    by_return = compose(InitialPriorities("return", highest=highest), NStep(1, 0.9))
    got = [float(by_return(episode).priorities[0]) for episode in episodes if episode.num_transitions]
    assert got == pytest.approx([max(sum(row) / highest, 0.01) for row in rewards if row])


def test_training_statistics_use_the_returns(case):
    source, rewards = case
    config = TrainingConfig(
        "bc", env=None, top_percent=25, reward="iql_locomotion", hyperparameters={"hidden_sizes": (2,)}
    )
    data = open_data(source, config)
    returns = [sum(row) for row in rewards if row]
    assert data.returns.tolist() == returns and data.data_return == np.mean(returns)
    assert data.reward_transform.scale == pytest.approx(1000 / (max(returns) - min(returns)))
    assert data.num_episodes == 1  # The best one.
    best = max((row for row in rewards if row), key=sum)
    assert data.items.read_items(np.zeros(1, np.int64))["reward"][0] == pytest.approx(
        best[0] * data.reward_transform.scale
    )


# --- a reward or action in a last step is reported everywhere

SENTENCE = "the last steps of 3 episodes, first of episode 0, have a reward or an action other than zero"


@pytest.mark.slow
def test_boundary_values_are_reported_everywhere(tmp_path, capsys):
    source = load(make_episodes())
    summary = summarize(source)
    assert summary.boundary_values == 3 and SENTENCE in summary.warnings[0]
    report = ingest(source, tmp_path / "out")
    assert (report.boundary_values, report.first_boundary_values) == (3, 0)
    assert SENTENCE in report.notes[0] and SENTENCE in report.as_dict()["notes"][0]
    shards = ingest(source, [tmp_path / "a", tmp_path / "b"])
    assert (shards.boundary_values, shards.first_boundary_values) == (3, 0)
    assert SENTENCE in open_data(source, TrainingConfig("bc", env=None)).notes[0]
    assert SENTENCE in write_dataset(source, tmp_path / "rlds", format="rlds").warnings[0]
    for command in ("validate", "inspect"):
        assert run([command, str(tmp_path / "rlds")]) == 0
        printed = capsys.readouterr()
        assert "first of episode 0, have a reward" in " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize(
    "name", [name for name in SOURCES if name not in ("steps", "function", "tf.data", "written as rlds")]
)
def test_sources_without_boundary_values_report_none(tmp_path, name):
    assert summarize(SOURCES[name](tmp_path)).boundary_values == 0


def test_order_of_merged_parts_does_not_change_the_first_boundary_value():
    source = load(make_episodes()[1:])
    reversed_source = Source("x", "memory", lambda: reversed(list(source)))
    assert summarize(source).warnings == summarize(replace(reversed_source, name=source.name)).warnings
    assert "first of episode 1" in summarize(source).warnings[0]


def test_cut_episodes_end_in_a_terminal_step_without_flags_of_the_rest():
    steps = make_steps([1, 2, 3], 0)
    steps["is_terminal"][2] = True
    (episode,) = load([steps])
    (cut,) = apply_transforms(
        Source("x", "", lambda: iter([replace(episode, unterminated=True, dropped_last_transition=True)])),
        [CutAtTerminal()],
    )[0]
    assert (cut.num_steps, cut.is_terminal, cut.unterminated, cut.total_reward) == (3, True, False, 3.0)
