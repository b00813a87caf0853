"""The rule of bounds: what a dataset knows about its actions and observations survives every conversion."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple

from rlds2reverb import ReplayServer, TableConfig, TrajectoryWindows, ingest, load, write_dataset
from rlds2reverb.adders import NStep
from rlds2reverb.envs.env_specs import BoundedArraySpec, require_within
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.sources import open_data
from rlds2reverb.types.spaces import choose_space, dump_space, load_space
from rlds2reverb.types.specs import ArraySpec

ACTION = Box(np.float32([-2, -1]), np.float32([2, 3]))
OBSERVATION = Box(-5, np.inf, (3,), np.float32)
BC = TrainingConfig("bc", env=None)


def make_source(actions=None, space=ACTION):
    actions = np.float32([[0.5, 1], [1.5, 2]]) if actions is None else actions
    log = {"observations": np.zeros((3, 3), np.float32), "actions": actions, "rewards": np.zeros(2, np.float32)}
    return replace(load([{**log, "terminated": True}]), action_space=space, observation_space=OBSERVATION)


@pytest.mark.parametrize(("format", "name"), [("d4rl", "x.hdf5"), ("rlds", "x/1.0.0"), ("minari", "x-v0")])
def test_written_datasets_keep_the_spaces(tmp_path, format, name):
    write_dataset(make_source(), tmp_path / name, format=format)
    got = load(tmp_path / name)
    assert got.action_space == ACTION and got.observation_space == OBSERVATION and "action_space" not in got.metadata
    assert open_data(got, BC).identity()["action bounds"] == "from -2, -1 to 2, 3"


@pytest.mark.slow
@pytest.mark.parametrize("adder", [TrajectoryWindows(2), NStep(2, 0.9)])
@pytest.mark.parametrize("layout", ["columns", "packed"])
def test_tables_of_a_directory_keep_the_bounds(tmp_path, adder, layout):
    ingest(make_source(), tmp_path / "tables", adder=adder, layout=layout)
    with open_data(tmp_path / "tables", BC if adder == TrajectoryWindows(2) else BC.replace(gamma=0.9)) as got:
        assert got.identity()["action bounds"] == "from -2, -1 to 2, 3"
        assert got.notes[0] == "the action bounds are from -2, -1 to 2, 3, those of the dataset's own action space"


def test_tables_of_a_server_keep_the_bounds():
    source = make_source(np.array([1, 2]), Discrete(5))
    with ReplayServer([TableConfig()], NStep(1, 0.99).item_spec(source.step_spec)) as server:
        ingest(source, server, adder=NStep(1, 0.99))
        got = open_data(server, TrainingConfig("dqn", env=None))
        assert got.identity()["action bounds"] == "[0, 4]" and got.warnings == ()


def test_unknown_bounds_of_a_table_are_not_guessed():
    source = make_source(space=None)
    with ReplayServer([TableConfig()], TrajectoryWindows(2).item_spec(source.step_spec)) as server:
        ingest(source, server)
        with pytest.raises(
            SpecMismatchError, match=r"bounds are unknown, and sampled actions range .*; .* \(env or action_b"
        ):
            open_data(server, BC)
        assert open_data(server, BC.replace(action_bounds=(-3, 3))).identity()["action bounds"] == "[-3, 3]"


def test_descriptions_of_spaces_are_restored():
    for space in (ACTION, OBSERVATION, Discrete(3, start=-1), Box(0, 9, (2, 2), np.uint8)):
        assert load_space(dump_space(space)) == space
    nested = Dict({"x": ACTION, "y": Dict({"z": Discrete(2)})})
    assert load_space(dump_space(nested)) == nested
    assert dump_space(None) is None and dump_space(Dict({"t": Text(3)})) is None
    huge = '{"low": 0, "high": 1, "shape": [1000000000000], "dtype": "float32"}'
    parts = (ArraySpec((2,), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int64)))
    unknown = Box(-np.inf, np.inf, (2,), np.float32)
    assert choose_space(parts, Tuple([ACTION, Discrete(3)])) == Tuple([ACTION, Discrete(3)])
    for own in (None, ACTION, Tuple([ACTION])):
        assert choose_space(parts, own)[0] == unknown
    for text in (None, "", "[]", "{", "3", huge, huge.replace("float32", "object"), '{"dict": []}'):
        assert load_space(text) is None


@pytest.mark.parametrize("spec", [ArraySpec((), np.dtype(np.int8)), BoundedArraySpec((2,), np.dtype(np.int8))])
def test_integers_that_do_not_fit_the_dtype_raise_without_bounds(spec):
    with pytest.raises(ValueError, match="action must be representable as int8, got 300; see the spec"):
        require_within(np.full(spec.shape, 300), spec, name="action", advice="see the spec")
