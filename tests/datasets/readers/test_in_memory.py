"""Tests of logs in memory: lists or functions of episodes, names of flags, and dropped transitions."""

import numpy as np
import pytest
from reference_impls import assert_equal_nests, episode

from rlds2reverb.adders import StepOffsets, TrajectoryWindows
from rlds2reverb.datasets import load, summarize
from rlds2reverb.datasets.transforms import CastFloats, apply_transforms
from rlds2reverb.errors import SourceError
from rlds2reverb.reverb.writing.report import IngestReport
from rlds2reverb.types.episode_batches import EpisodeBatch

LOG = {"observations": np.arange(3.0), "actions": np.arange(3), "rewards": np.ones(3)}


@pytest.mark.parametrize("name", ["terminated", "terminations", "terminals", "terminal"])
@pytest.mark.parametrize("truncated", [None, "truncated", "truncations", "timeouts", "timeout"])
def test_flags_are_accepted_under_several_names(name, truncated):
    more = {truncated: np.array([0, 0, 1])} if truncated else {}
    terminal, timeout = load([{**LOG, name: [0, 0, 1]}, {**LOG, name: [0, 0, 0], **more}])
    assert terminal.is_terminal and not timeout.is_terminal and set(terminal.steps) == set(timeout.steps)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"dones": [0, 0, 1]},
            "episode 0 has 'dones', which does not say whether an episode ended in a terminal state or was truncated",
        ),
        ({"done": True}, "episode 0 has 'done', which .* pass 'terminals' for terminal ends"),
        ({"terminated": True, "terminals": [0, 0, 1]}, "has terminals and terminated, which mean the same; pass one"),
        ({}, "episode 0 is missing terminated; pass RLDS steps"),
        ({"terminations": [0, 1]}, "must be one flag, or one for each of the 3 rows"),
    ],
)
def test_ambiguous_or_missing_flags_raise(flags, message):
    with pytest.raises(SourceError, match=message):
        load([{**LOG, **flags}])


@pytest.mark.parametrize(
    "names", [("terminations", "truncations"), ("terminated", "truncated"), ("terminal", "timeout")]
)
def test_rows_accept_the_flag_names_of_gymnasium(names, tmp_path):
    import h5py

    terminal, timeout = names
    rows = {**LOG, terminal: np.array([0, 1, 0]), timeout: np.array([0, 0, 1])}
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for name, column in rows.items():
            file[name] = column
    for source in (rows, tmp_path / "x.hdf5"):
        assert [(episode.is_terminal, episode.unterminated) for episode in load(source)] == [
            (True, False),
            (False, False),
        ]


def test_rows_with_dones_instead_of_terminals_raise():
    with pytest.raises(SourceError, match="has 'dones', which does not say .* pass 'terminals' for terminal ends"):
        load({**LOG, "dones": np.array([0, 1, 0])})
    assert len(list(load({**LOG, "dones": np.ones(3), "terminals": np.zeros(3), "timeouts": [0, 0, 1]}))) == 1


@pytest.mark.parametrize(
    ("log", "num_dropped"),
    [
        ({**LOG, "terminated": False}, 1),
        ({**LOG, "terminated": True}, 0),
        ({**LOG, "terminated": False, "observations": np.arange(4.0)}, 0),
        ({**LOG, "terminated": False, "next_observations": np.arange(3.0) + 1}, 0),
        ({**episode(3, terminal=False), "reward": np.float32([1, 2, 0]), "action": np.zeros((3, 1), np.float32)}, 0),
    ],
)
def test_dropped_last_transitions_are_counted(log, num_dropped):
    source = load([log, log])
    summary = summarize(source)
    transformed, _ = apply_transforms(source, [CastFloats()])
    report = IngestReport("logs", ("replay",))
    for changed in transformed:
        report.add_batch(EpisodeBatch([changed]), TrajectoryWindows(2))
    assert summary.dropped_last_transition == report.dropped_last_transition == 2 * num_dropped
    assert summary.transitions == 2 * (3 - num_dropped if "actions" in log else 2)
    assert summary.warnings == report.notes
    assert len(report.notes) == num_dropped
    assert all("the last transitions of 2 truncated episodes" in note for note in report.notes)
    report = IngestReport("logs", ("replay",))
    for changed in transformed:
        report.add_batch(EpisodeBatch([changed]), StepOffsets({"action": 0}))  # It uses the last actions.
    assert report.dropped_last_transition == 0


def test_truncated_rows_without_next_observations_lose_a_transition(data):
    rows = {**LOG, "terminals": np.array([0, 0, 0]), "timeouts": np.array([0, 1, 0])}
    assert summarize(load(rows)).dropped_last_transition == 2
    assert summarize(load(data / "d4rl/hopper_medium-v2.hdf5")).dropped_last_transition == 0


def logs():
    """Yields three logs, of which the second one is terminated."""
    for index in range(3):
        yield {**LOG, "observations": np.arange(4.0) + index, "terminated": index == 1}


class Logs:
    """An iterable that can be read repeatedly."""

    def __iter__(self):
        return logs()


@pytest.mark.parametrize(
    "source",
    [logs, Logs(), lambda: list(logs()), lambda: Logs()],
    ids=["generator function", "iterable", "function of a list", "function of an iterable"],
)
def test_functions_and_iterables_can_be_read_repeatedly(source):
    opened = load(source)
    expected = list(load(list(logs())))
    assert opened.step_spec == load(list(logs())).step_spec
    for _ in range(2):
        for got, other in zip(opened, expected, strict=True):
            assert_equal_nests(got.steps, other.steps)
            assert (got.index, got.is_terminal) == (other.index, other.is_terminal)


def test_function_is_read_one_episode_at_a_time():
    made = []

    def make_logs():
        for index in range(1000):
            made.append(index)
            yield {**LOG, "terminated": True}

    source = load(make_logs)
    assert source.name == "episodes of make_logs" and made == []
    assert source.first_episode.num_transitions == 3 and made == [0]
    reading = iter(source)
    next(reading)
    assert made == [0, 0]


def test_generators_and_invalid_functions_raise():
    for once in (logs(), iter([LOG]), map(dict, [LOG])):
        with pytest.raises(
            TypeError, match=r"can be read only once, .* load\(make_episodes\) instead of load\(make_epis"
        ):
            load(once)
    generator = logs()
    source = load(lambda: generator)
    assert source.first_episode.num_transitions == 3
    with pytest.raises(SourceError, match="the function returned an iterator that was already read"):
        list(source)
    with pytest.raises(TypeError, match="the function must return an iterable of episodes, got a int"):
        list(load(lambda: 3))
    with pytest.raises(SourceError, match="episode 1 must be a dict of arrays, got a int"):
        list(load(lambda: iter([{**LOG, "terminated": True}, 1])))
    for invalid in (np.zeros(3), 3):
        with pytest.raises(TypeError, match="source must be .*an OGBench file, .* a D4RL file, .*; got a "):
            load(invalid)
