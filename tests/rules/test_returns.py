"""The law of returns: the rewards of an episode's one-step items add up to its return, which every statistic uses.

The reward of a transition that was dropped because its next observation is unknown does not count, like any other
reward of a last step. The last row of robots' RLDS data is a transition, whose reward counts.
"""

from dataclasses import replace

import numpy as np
import pytest
from reference_impls import rlds_dataset

from rlds2reverb import ByReturn, Source, TrajectoryWindows, apply_transforms, ingest, load, summarize, write_dataset
from rlds2reverb.adders import InitialPriorities, NStep, ReturnToGo, StepEpisodes, compose
from rlds2reverb.cli import run
from rlds2reverb.sources.transforms import CastFloats, CutAtTerminal, ScaleRewards, ScaleRewardsByReturns
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.reports.source_statistics import SourceStatistics
from rlds2reverb.training.sources import open_data

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


@pytest.fixture(scope="module", params=SOURCES)
def case(request, tmp_path_factory):
    """A source, and the rewards of the transitions of each episode."""
    lost = -1 if request.param == "D4RL columns without next observations" else None
    return SOURCES[request.param](tmp_path_factory.mktemp("source")), [rewards[:lost] for rewards in REWARDS]


@pytest.mark.parametrize("name", [*TRANSFORMS, "returns"])
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


def test_every_statistic_uses_the_returns(case):
    source, rewards = case
    returns = [float(sum(row)) for row in rewards]
    highest = max(returns)
    episodes, summary, statistics = list(source), summarize(source), SourceStatistics()
    for episode in episodes:
        statistics.add(episode)
    assert (summary.returns.min, summary.returns.max, summary.returns.mean) == (0, highest, np.mean(returns))
    assert statistics.returns == returns
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
    assert data.returns.tolist() == returns and data.behaviour_return == np.mean(returns)
    assert data.reward_transform.scale == pytest.approx(1000 / (max(returns) - min(returns)))
    assert data.num_episodes == 1  # The best one.
    best = max((row for row in rewards if row), key=sum)
    assert data.items.columns["reward"][0] == pytest.approx(best[0] * data.reward_transform.scale)


# --- a reward or action in a last step is reported everywhere

SENTENCE = "the last steps of 3 episodes, first of episode 0, have a reward or an action other than zero"


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
