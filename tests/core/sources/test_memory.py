"""Logs of the user's own: in a list, or made by a function; the names of their flags; what they lose."""

import numpy as np
import pytest
from reference_impls import assert_equal_nests, episode

from rlds2reverb._writing.report import IngestReport
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.errors import SourceError
from rlds2reverb.sources import load, summarize
from rlds2reverb.sources.transforms import CastFloats, apply_transforms

LOG = {"observations": np.arange(3.0), "actions": np.arange(3), "rewards": np.ones(3)}


@pytest.mark.parametrize("name", ["terminated", "terminations", "terminals", "terminal"])
@pytest.mark.parametrize("truncated", [None, "truncated", "truncations", "timeouts", "timeout"])
def test_a_terminal_end_has_several_names(name, truncated):
    more = {truncated: np.array([0, 0, 1])} if truncated else {}
    ended, cut = load([{**LOG, name: [0, 0, 1]}, {**LOG, name: [0, 0, 0], **more}])
    assert ended.is_terminal and not cut.is_terminal and set(ended.steps) == set(cut.steps)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"dones": [0, 0, 1]},
            "episode 0 has dones, which does not say whether it ended in a terminal state or was cut",
        ),
        ({"done": True}, "episode 0 has done, which .* give terminated, True for the former"),
        ({"terminated": True, "terminals": [0, 0, 1]}, "has terminated and terminals, which mean the same; give one"),
        ({}, "episode 0 lacks terminated; give RLDS steps"),
        ({"terminations": [0, 1]}, "expected one flag, or one for each of the 3 rows"),
    ],
)
def test_flags_that_do_not_say_it_are_refused(flags, message):
    with pytest.raises(SourceError, match=message):
        load([{**LOG, **flags}])


ROWS = {**LOG, "observations": np.arange(3.0)}


@pytest.mark.parametrize(
    "names", [("terminations", "truncations"), ("terminated", "truncated"), ("terminal", "timeout")]
)
def test_rows_may_name_their_flags_as_gymnasium_does(names, tmp_path):
    import h5py

    terminal, timeout = names
    rows = {**ROWS, terminal: np.array([0, 1, 0]), timeout: np.array([0, 0, 1])}
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for name, column in rows.items():
            file[name] = column
    for source in (rows, tmp_path / "x.hdf5"):
        assert [(each.is_terminal, each.unterminated) for each in load(source)] == [(True, False), (False, False)]


def test_rows_with_dones_are_refused_with_the_right_name():
    with pytest.raises(SourceError, match="has 'dones', which does not say .* give 'terminals' for the former"):
        load({**ROWS, "dones": np.array([0, 1, 0])})
    assert len(list(load({**ROWS, "dones": np.ones(3), "terminals": np.zeros(3), "timeouts": [0, 0, 1]}))) == 1


@pytest.mark.parametrize(
    ("log", "lost"),
    [
        ({**LOG, "terminated": False}, 1),
        ({**LOG, "terminated": True}, 0),
        ({**LOG, "terminated": False, "observations": np.arange(4.0)}, 0),
        ({**LOG, "terminated": False, "next_observations": np.arange(3.0) + 1}, 0),
        (episode(3, terminal=False), 0),
    ],
)
def test_a_transition_without_a_successor_is_counted(log, lost):
    source = load([log, log])
    summary = summarize(source)
    transformed, _ = apply_transforms(source, [CastFloats()])
    report = IngestReport("logs", ("replay",))
    for each in transformed:
        report.add_batch(EpisodeBatch([each]))
    assert summary.dropped_last_transition == report.dropped_last_transition == 2 * lost
    assert summary.transitions == 2 * (3 - lost if "actions" in log else 2)
    assert summary.warnings == report.notes
    assert [note.partition(":")[0] for note in report.notes] == [
        "2 transitions are left out, the last ones of truncated episodes without a final observation"
    ] * lost


def test_rows_without_next_observations_lose_the_last_one_of_each_truncated_episode(data):
    rows = {**ROWS, "terminals": np.array([0, 0, 0]), "timeouts": np.array([0, 1, 0])}
    assert summarize(load(rows)).dropped_last_transition == 2
    assert summarize(load(data / "d4rl/hopper_medium-v2.hdf5")).dropped_last_transition == 0


def logs():
    for index in range(3):
        yield {**LOG, "observations": np.arange(4.0) + index, "terminated": index == 1}


class Logs:
    def __iter__(self):
        return logs()


@pytest.mark.parametrize(
    "source", [logs, Logs(), lambda: list(logs()), Logs], ids=["function", "iterable", "list", "class"]
)
def test_a_function_of_episodes_is_a_source_that_is_read_again_and_again(source):
    if source is Logs:
        source = lambda: Logs()  # noqa: E731
    opened = load(source)
    wanted = list(load(list(logs())))
    assert opened.step_spec == load(list(logs())).step_spec
    for _ in range(2):
        for got, want in zip(opened, wanted, strict=True):
            assert_equal_nests(got.steps, want.steps)
            assert (got.index, got.is_terminal) == (want.index, want.is_terminal)


def test_a_function_makes_one_episode_after_the_other():
    made = []

    def many():
        for index in range(1000):
            made.append(index)
            yield {**LOG, "terminated": True}

    source = load(many)
    assert source.name == "episodes of many" and made == []
    assert source.first_episode.num_transitions == 3 and made == [0]
    reading = iter(source)
    next(reading)
    assert made == [0, 0]


def test_a_generator_is_refused_with_the_function_that_is_asked_for():
    for once in (logs(), iter([LOG]), map(dict, [LOG])):
        with pytest.raises(
            TypeError, match=r"can be read only once, .* load\(make_episodes\) instead of load\(make_epis"
        ):
            load(once)
    generator = logs()
    source = load(lambda: generator)
    assert source.first_episode.num_transitions == 3
    with pytest.raises(SourceError, match="the function returned the same iterator again, which was read already"):
        list(source)
    with pytest.raises(TypeError, match="the function returned a int, expected an iterable of episodes"):
        list(load(lambda: 3))
    with pytest.raises(SourceError, match="episode 1 is a int, expected a dict of arrays"):
        list(load(lambda: iter([{**LOG, "terminated": True}, 1])))
    for wrong in (np.zeros(3), 3):
        with pytest.raises(TypeError, match="cannot load a "):
            load(wrong)
