"""Logs of Gymnasium's vector environments: resets among the steps are found, announced, and left out."""

import functools
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlds2reverb import SourceError, check_dataset, ingest, load, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.datasets.checks.resets import NEXT_STEP_CHECK, SAME_STEP_CHECK, has_final_observation
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.sources import open_data

NAMES = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "infos/final_obs")
CHECKS = {"next_step": NEXT_STEP_CHECK, "same_step": SAME_STEP_CHECK}
NO_NEXT, NO_FINAL = ("next_observations", "infos/final_obs"), ("infos/final_obs",)
LOGS = [(env, mode) for env in ("CartPole-v1", "Pendulum-v1") for mode in CHECKS]


@functools.cache
def record(env_id, mode):
    """Returns the rows of whole episodes of two environments, and of each the numbers of its rows with a reset."""
    limit = {"max_episode_steps": 40} if env_id == "Pendulum-v1" else {}
    modes = {"autoreset_mode": AutoresetMode[mode.upper()]}
    envs = gymnasium.make_vec(env_id, 2, vectorization_mode="sync", vector_kwargs=modes, **limit)
    observations, _ = envs.reset(seed=0)
    envs.action_space.seed(0)
    rows = [[], []]
    for _ in range(250):
        actions = envs.action_space.sample()
        following, rewards, terminated, truncated, infos = envs.step(actions)
        finals = infos.get("final_obs", [None, None])
        for env in range(2):
            final = np.zeros_like(following[env]) if finals[env] is None else finals[env]
            ends = terminated[env], truncated[env]
            rows[env].append((observations[env], actions[env], rewards[env], *ends, following[env], final))
        observations = following
    return [part[: max(number for number, row in enumerate(part) if row[3] or row[4]) + 1] for part in rows]


def split_real_episodes(env_id, mode):
    """Returns the rows of each episode without the resets, by a loop over the rows."""
    episodes = []
    for part in record(env_id, mode):
        rows, is_reset = [], False
        for row in part:
            rows += [] if is_reset else [row]
            is_reset = mode == "next_step" and (row[3] or row[4])
            if row[3] or row[4]:
                episodes.append(rows)
                rows = []
    return episodes


def make_columns(env_id, mode, without=NO_FINAL):
    rows = [row for part in record(env_id, mode) for row in part]
    columns = {name: np.array(column) for name, column in zip(NAMES, zip(*rows, strict=True), strict=True)}
    return {name: column for name, column in columns.items() if name not in without}


def make_logs(columns):
    """Returns the columns as logs that end at the ends of episodes."""
    ends = np.flatnonzero(columns["terminals"] | columns["timeouts"]) + 1
    parts = [
        {name: column[first:stop] for name, column in columns.items()}
        for first, stop in zip([0, *ends], ends, strict=False)
    ]
    for part in parts:
        part["infos"] = (
            {"final_obs": part.pop("infos/final_obs")} if "infos/final_obs" in part else {"none": part["rewards"]}
        )
    return parts


def write_hdf5(path, columns):
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
    return path


def find_resets(source):
    return [
        (found.check, found.count, found.place) for found in check_dataset(source) if found.check in CHECKS.values()
    ]


@pytest.mark.parametrize(("env_id", "mode"), LOGS)
def test_resets_are_found_with_count_and_place(env_id, mode):
    lengths = [len(rows) for rows in split_real_episodes(env_id, mode)]
    place = "episode 1, step 0" if mode == "next_step" else f"episode 0, step {lengths[0] - 1}"
    # The first episode of each environment has no reset before it. The last one of the log ends in one in SAME_STEP mode.
    expected = (CHECKS[mode], len(lengths) - (2 if mode == "next_step" else 1), place)
    columns = make_columns(env_id, mode)
    assert find_resets(load(columns)) == find_resets(load(make_logs(columns))) == [expected]
    without = [expected] if mode == "next_step" else []  # There, only the end of an episode is unknown.
    assert find_resets(load(make_columns(env_id, mode, without=NO_NEXT))) == without


@pytest.mark.parametrize("mode", CHECKS)
def test_resets_to_one_discrete_state_are_found(mode):
    columns = make_columns("FrozenLake-v1", mode)
    num_ends, source = int((columns["terminals"] | columns["timeouts"]).sum()), load(columns)
    first_end = int(np.argmax(columns["terminals"]))
    next_step, same_step = (num_ends - 2, "episode 1, step 0"), (num_ends - 1, f"episode 0, step {first_end}")
    assert find_resets(source) == [(CHECKS[mode], *(next_step if mode == "next_step" else same_step))]
    assert len(source.warnings) == 1 and f"(autoreset='{mode}')" in source.warnings[0]


def test_state_in_which_episodes_begin_and_end_is_not_a_reset():
    path = np.array([0, 1, 2, 3, 2, 1] * 20)
    following = np.roll(path, -1)
    is_home = following == 0  # Only there do episodes end, so that no episode passes it.
    columns = {"observations": path, "next_observations": following, "actions": path, "rewards": is_home * 1.0}
    assert find_resets(load({**columns, "terminals": is_home, "timeouts": np.zeros(120, bool)})) == []


@pytest.mark.slow
def test_rlds_dataset_warns_about_resets(tmp_path):
    path = tmp_path / "pendulum" / "1.0.0"
    write_dataset(make_columns("Pendulum-v1", "next_step"), path, format="rlds")
    assert any("(autoreset='next_step')" in sentence for sentence in load(path).warnings)


@pytest.mark.parametrize("form", ["columns", "file", "logs", "function"])
@pytest.mark.parametrize(("env_id", "mode"), LOGS)
def test_option_leaves_out_resets(tmp_path, env_id, mode, form):
    columns = make_columns(env_id, mode)
    logs = make_logs(columns)
    sources = {"columns": columns, "logs": logs, "function": lambda: iter(logs)}
    source = write_hdf5(tmp_path / "x.hdf5", columns) if form == "file" else sources[form]
    expected, episodes = split_real_episodes(env_id, mode), list(load(source, autoreset=mode))
    assert [episode.index for episode in episodes] == list(range(len(expected)))
    for episode, rows in zip(episodes, expected, strict=True):
        is_dropped = mode == "same_step" and not episode.is_terminal
        assert (episode.num_transitions, episode.is_terminal) == (len(rows) - is_dropped, rows[-1][3])
        assert (episode.dropped_last_transition, episode.unterminated) == (is_dropped, False)
        steps, num = episode.steps, episode.num_transitions
        for name, place in (("observation", 0), ("action", 1), ("reward", 2)):
            np.testing.assert_array_equal(steps[name][:num], np.array([row[place] for row in rows])[:num])
        final = rows[-1][5] if mode == "next_step" else np.zeros(4) if episode.is_terminal else rows[-1][0]
        np.testing.assert_array_equal(steps["observation"][-1], final)
        last = np.arange(episode.num_steps) == num
        np.testing.assert_array_equal(steps["is_last"], last)
        np.testing.assert_array_equal(steps["is_first"], np.arange(episode.num_steps) == 0)
    assert find_resets(load(source, autoreset=mode)) == []


def test_resets_without_next_observations_contain_the_final_ones():
    expected = split_real_episodes("Pendulum-v1", "next_step")
    episodes = list(load(make_columns("Pendulum-v1", "next_step", without=NO_NEXT), autoreset="next_step"))
    is_last_of_env = [len(episodes) // 2 - 1, len(episodes) - 1]
    for episode, rows in zip(episodes, expected, strict=True):
        assert episode.dropped_last_transition == (episode.index in is_last_of_env)
        if not episode.dropped_last_transition:
            np.testing.assert_array_equal(episode.steps["observation"][-1], rows[-1][5])
            assert episode.total_reward == pytest.approx(sum(row[2] for row in rows))
            assert (episode.steps["discount"] == 1).all()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("without", [(), ("next_observations",)])
def test_final_observations_among_infos_are_read_without_the_option(tmp_path, env_id, without):
    columns = make_columns(env_id, "same_step", without)
    expected = [rows[-1][6] for rows in split_real_episodes(env_id, "same_step")]
    old_name = {("infos/final_observation" if "infos" in name else name): part for name, part in columns.items()}
    single = [{**log, "infos": {"final_obs": log["infos"]["final_obs"][-1]}} for log in make_logs(columns)]
    for source in (columns, old_name, write_hdf5(tmp_path / "x.hdf5", columns), make_logs(columns), single):
        opened = load(source)
        finals = [episode.steps["observation"][-1] for episode in opened]
        np.testing.assert_array_equal(finals, expected)
        assert opened.warnings == () and "infos" not in opened.step_spec and find_resets(opened) == []


def test_lonely_reset_at_the_end_of_a_log_is_left_out():
    columns = make_columns("CartPole-v1", "next_step")
    first_end = int(np.argmax(columns["terminals"]))
    for without in ((), ("next_observations",)):
        rows = {name: column[: first_end + 2] for name, column in columns.items() if name not in without}
        (episode,) = load(rows, autoreset="next_step")
        assert (episode.num_transitions, episode.is_terminal) == (first_end + 1, True)
        np.testing.assert_array_equal(episode.steps["observation"][-1], columns["observations"][first_end + 1])


@pytest.mark.parametrize(("mode", "other"), [("next_step", "same_step"), ("same_step", "next_step")])
def test_option_without_resets_raises(data, mode, other):
    source = load(data / "d4rl/pendulum_mixed-v2.hdf5", autoreset=mode)
    with pytest.raises(SourceError, match=f"autoreset='{mode}' requires resets .*; leave it out"):
        list(source)
    with pytest.raises(ValueError, match="autoreset must be one of"):
        load(make_columns("CartPole-v1", mode), autoreset="disabled")
    with pytest.raises(ValueError, match=rf"independent_rows=True .*\(autoreset='{other}'\)"):
        load(make_columns("CartPole-v1", mode), autoreset=other, independent_rows=True)


def test_task_that_continues_after_a_timeout_is_not_a_reset():
    random = np.random.default_rng(0)
    position = np.cumsum(random.normal(size=(601, 3)), axis=0)
    columns = {
        "observations": position[:-1],
        "next_observations": position[1:],
        "actions": np.zeros((600, 1)),
        "rewards": (np.arange(600) % 7 == 3).astype(np.float32),
        "terminals": np.zeros(600, bool),
        "timeouts": np.arange(600) % 50 == 49,
    }
    assert find_resets(load(columns)) == []


@pytest.mark.parametrize("mode", CHECKS)
def test_conversion_training_and_commands_warn_with_the_option(tmp_path, capsys, monkeypatch, mode):
    path = write_hdf5(tmp_path / "x.hdf5", make_columns("Pendulum-v1", mode))
    monkeypatch.setenv("COLUMNS", "1000")
    advice = rf"x.hdf5: an episode .*\(autoreset='{mode}'\)$"
    with pytest.warns(RuntimeWarning, match=advice):
        ingest(path, tmp_path / "items")
    report = write_dataset(path, tmp_path / "written.hdf5", format="d4rl")
    data = open_data(path, TrainingConfig("iql", env=None))
    for warnings in (report.warnings, data.warnings):
        assert any(f"(autoreset='{mode}')" in sentence for sentence in warnings)
    for command in ("validate", "inspect"):
        run([command, str(path)])
        assert f"(--load autoreset={mode})" in capsys.readouterr().err
    assert run(["validate", str(path), "--fail-on", "warning"]) == 2
    assert run(["validate", str(path), "--load", f"autoreset={mode}"]) == 0
    assert load([path, Path(path)], autoreset=mode).warnings == ()


def test_function_warns_when_it_has_been_read():
    logs = make_logs(make_columns("Pendulum-v1", "next_step"))
    source = load(lambda: iter(logs))
    with pytest.warns(RuntimeWarning, match=r"an episode begins with the reset .* \(autoreset='next_step'\)"):
        assert len(list(source)) == len(logs)


@pytest.mark.parametrize(("number", "text", "expected"), [(0, b"", False), (1, b"", True), (0, b"x", True)])
def test_blank_observation_of_a_terminal_state_is_unknown(number, text, expected):
    observations = {"x": np.array([[1.5], [number]]), "text": np.array([b"a", text], object)}
    log = {"observations": observations, "actions": np.zeros(1), "rewards": np.ones(1), "terminated": True}
    (episode,) = load([log])
    assert has_final_observation(episode) == expected
