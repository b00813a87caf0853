"""Training data: one validated pass over a dataset, its statistics, and its items."""

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
import tree
from gymnasium.spaces import Box, Dict, Discrete
from reference_impls import assert_equal_nests, episode

from rlds2reverb import InvalidEpisodeError, SourceError, SpecMismatchError, TrajectoryWindows, ingest
from rlds2reverb.adders import NStep
from rlds2reverb.datasets import Source, load
from rlds2reverb.datasets.transforms import (
    ActionBounds,
    CastFloats,
    ClipActions,
    NormalizeObservations,
    ScaleRewards,
    apply_transforms,
)
from rlds2reverb.learners.agents.unit_conversions import Observations
from rlds2reverb.learners.feeds import collect_items
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.data import start_isolated
from rlds2reverb.training.sources import open_data, open_source

IQL = TrainingConfig("iql")
NORMALIZED = IQL.replace(normalize_observations=True)
DQN = TrainingConfig("dqn")


def make_log(actions, *, rewards=None, observations=None):
    """Returns an episode in which action t follows observation t = (10 + t, -10 - t), and ends in a terminal state."""
    actions = np.asarray(actions)
    place = np.arange(10, 11 + len(actions), dtype=np.float32)
    return {
        "observations": np.stack([place, -place], 1) if observations is None else observations,
        "actions": actions,
        "rewards": np.ones(len(actions), np.float32) if rewards is None else np.asarray(rewards),
        "terminated": True,
    }


def make_continuous(*values, **columns):
    return make_log(np.array(values, np.float32)[:, None], **columns)


def read_items(data):
    """Returns all items of the data."""
    return data.items.read_items(np.arange(data.items.num_items))


def cut(items, adder):
    """Returns the same items of an adder as separate arrays `[N, ...]`, without fields that agents do not use."""
    if adder.squeeze:
        return {name: column for name, column in items.columns.items() if name != "value_gamma"}
    rows = items.starts[:, None] + np.arange(adder.length)
    return tree.map_structure(lambda column: column[rows], items.columns)


@pytest.fixture(scope="module")
def hopper(data):
    return data / "d4rl" / "hopper_medium-v2.hdf5"


# --- one pass


def test_items_are_those_of_the_adder_for_each_episode(hopper):
    for config, adder in (
        (TrainingConfig("iql", n_step=3, gamma=0.9), NStep(3, 0.9)),
        (TrainingConfig("rebrac"), TrajectoryWindows(2)),
    ):
        got, expected = open_data(hopper, config), collect_items(map(adder, load(hopper)))
        assert_equal_nests(read_items(got), cut(expected, adder))
        assert_equal_nests(read_items(got), cut(collect_items(map(got.adder, load(hopper))), got.adder))
        assert got.num_transitions == 10_202 and got.num_episodes == 32


def test_float64_logs_are_cast_to_float32():
    wide = make_log(np.array([[0.5], [-0.25], [1.0]]), rewards=np.array([1.0, 2.0, 3.0]))
    wide["observations"] = wide["observations"].astype(np.float64)
    narrow = {name: np.float32(wide[name]) for name in ("observations", "actions", "rewards")}
    for config in (IQL, TrainingConfig("rebrac", clip_actions=True, action_bounds=(-1, 1))):
        got, expected = open_data([wide], config), open_data([{**wide, **narrow}], config)
        assert got.action_spec == expected.action_spec and got.time_step_spec == expected.time_step_spec
        assert got.identity() == expected.identity()
        assert_equal_nests(read_items(got), read_items(expected))


def test_dataset_is_read_once_and_reports_each_episode(hopper):
    num_reads, seen = 0, []
    episodes = list(itertools.islice(load(hopper), 3))

    def read():
        nonlocal num_reads
        num_reads += 1
        return iter(episodes)

    options = {"top_percent": 50, "clip_actions": True, "action_bounds": (-1, 1), "drop_fields": ()}
    config = TrainingConfig("td3_bc", reward="iql_locomotion", **options)
    open_data(
        Source("few", "d4rl", read), config, progress=lambda stage, recorded: seen.append((stage, recorded.index))
    )
    assert num_reads == 1 and seen == [("read", 0), ("read", 1), ("read", 2)]


@pytest.mark.parametrize(
    ("field", "step", "value"),
    [("is_first", 1, True), ("discount", 0, 7.0), ("reward", 1, np.nan), ("is_last", 0, True)],
)
def test_invalid_episodes_raise_as_in_ingest(tmp_path, field, step, value):
    episodes = [episode(3, terminal=True), episode(3, terminal=False)]
    episodes[1][field][step] = value
    with pytest.raises(InvalidEpisodeError) as expected:
        ingest(episodes, tmp_path / "out")
    with pytest.raises(InvalidEpisodeError) as got:
        open_data(episodes, IQL)
    assert got.value.errors == expected.value.errors and got.value.errors[0].episode == 1


def test_episode_with_other_fields_raises():
    with pytest.raises(InvalidEpisodeError, match="the first episode"):
        open_data([episode(3, terminal=True), {**episode(3, terminal=True), "more": np.zeros(3)}], IQL)


def test_statistics_leave_out_final_observations(hopper):
    got, episodes = open_data(hopper, IQL), list(load(hopper))
    seen = np.concatenate([recorded.steps["observation"][:-1] for recorded in episodes]).astype(np.float64)
    np.testing.assert_allclose(got.moments.mean, seen.mean(0), rtol=1e-6)
    np.testing.assert_allclose(got.moments.std, seen.std(0) + 1e-3, rtol=1e-6)
    np.testing.assert_array_equal(got.returns, [recorded.total_reward for recorded in episodes])
    assert got.data_return == pytest.approx(978.3, abs=0.1)
    assert got.time_step_spec.observation.shape == (11,) and got.name == "hopper_medium-v2.hdf5"


def test_moments_are_those_of_the_transform():
    """A clock in ms cancels in E[x^2] - E[x]^2, a constant has no spread, and integers are not normalised."""
    clock = 1_700_000_000_000 + np.arange(0, 100_001, 1000, dtype=np.float64)
    columns = {"clock": clock, "constant": np.full(101, 0.1), "pixel": np.arange(101, dtype=np.uint8)}
    log = make_log(np.zeros((100, 1)), observations=columns)
    moments = open_data([log], TrainingConfig("iql", normalize_observations=True)).moments
    assert moments.std["clock"] == pytest.approx(28_866.07, abs=0.01)
    assert moments.std["constant"] == np.inf and moments.mean["constant"] == 0.1
    assert moments.mean["pixel"] == 0 and moments.std["pixel"] == 1
    _, statistics = apply_transforms(load([log]), [NormalizeObservations()])
    assert statistics["observation_std"]["clock"] + 1e-3 == pytest.approx(float(moments.std["clock"]))


def test_agents_map_constants_to_zero():
    """A divisor of infinity means 0 to `Observations`, as in the transform."""
    log = make_log(np.zeros((2, 1)), observations=np.array([[0.1, 1], [0.1, 3], [7, 9]], np.float32))
    data = open_data([log], TrainingConfig("td3_bc"))
    got = Observations(data.time_step_spec.observation, *data.moments)(log["observations"])
    ((expected,), _) = apply_transforms(load([log]), [NormalizeObservations()])
    np.testing.assert_allclose(got, expected.steps["observation"], rtol=1e-6)
    assert got[:, 0].numpy().tolist() == [0, 0, 0]


def test_identity_changes_with_data_and_bounds_but_not_with_rewards(hopper):
    log = make_continuous(-0.5, 0.5, 0.25)
    identity = open_data([log], IQL).identity()
    assert identity["observations"] == {"observation": "float32 [2]"}
    assert identity["actions"] == "float32 [1]" and identity["action bounds"] == "[-1, 1]"
    assert open_data([log], IQL.replace(reward="scale:2", top_percent=10)).identity() == identity
    other = open_data([log], IQL, action_space=Box(-2, 2, (1,))).identity()
    assert other == {**identity, "action bounds": "[-2, 2]"}
    assert open_data([make_continuous(-0.5, 0.5, 0.26)], IQL).identity()["data"] != identity["data"]
    assert open_data([log], IQL.replace(cut_at_terminal=True)).fingerprint == identity["data"]


# --- preprocessing


def test_preprocessing_matches_the_transforms_of_convert(hopper):
    config = TrainingConfig("iql", reward="scale:2:0.5", clip_actions=True, action_bounds=(-0.5, 1))
    transforms = [CastFloats(), ScaleRewards(2.0, 0.5), ActionBounds(-0.5, 1), ClipActions()]
    source, statistics = apply_transforms(load(hopper), transforms)
    assert statistics["notes"][0] in open_data(hopper, config).notes and statistics["clipped_actions"] > 100
    expected = collect_items(map(NStep(1, 0.99), source))
    assert_equal_nests(read_items(open_data(hopper, config)), cut(expected, NStep(1, 0.99)))


def test_reward_recipe_uses_the_returns_of_all_episodes():
    logs = [make_continuous(0, 0, rewards=[1, 1]), make_continuous(0, 0, rewards=[3, 3])]
    got = open_data(logs, IQL.replace(reward="iql_locomotion", top_percent=50))
    assert read_items(got)["reward"].tolist() == [750, 750]  # 3 * 1000 / (6 - 2)
    assert got.returns.tolist() == [2, 6] and got.data_return == 4


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_best_episodes_are_kept_despite_ties(monkeypatch, batch_bytes):
    monkeypatch.setattr("rlds2reverb.types.episode_batches.MAX_BATCH_BYTES", batch_bytes)
    logs = [make_continuous(action, rewards=[reward]) for action, reward in enumerate([5, 7, 7, 1, 7])]
    got = open_data(logs, IQL.replace(top_percent=40))
    assert read_items(got)["action"][:, 0].tolist() == [1, 2]
    assert got.num_episodes == got.num_transitions == 2
    assert "training on the best 40 % of episodes: 2 of 5, with returns from 7.0 to 7.0" in got.notes
    assert open_data(logs, IQL.replace(top_percent=0.1)).num_episodes == 1


def test_actions_are_clipped_to_the_bounds_less_a_margin():
    log = make_continuous(-7, 0.5, 2)
    got = open_data([log], NORMALIZED.replace(clip_actions=True), action_space=Box(-2, 2, (1,)))
    np.testing.assert_array_equal(read_items(got)["action"][:, 0], np.float32([-2 + 2e-5, 0.5, 2 - 2e-5]))
    note = "1 of 3 actions (33.3 %) are outside their bounds, by up to 5, and are clipped"
    assert got.notes == (note,) and got.warnings == ()
    got = open_data([log], IQL.replace(clip_actions=True, action_bounds=(-1, 1)), action_space=Box(-2, 2, (1,)))
    np.testing.assert_array_equal(read_items(got)["action"][:, 0], np.float32([-1 + 1e-5, 0.5, 1 - 1e-5]))
    note = "2 of 3 actions (66.7 %) are outside their bounds, by up to 6, and are clipped"
    assert got.notes == (note,)
    with pytest.raises(SpecMismatchError, match=r"clipping requires the bounds of the actions, .* \(env or action"):
        open_data([log], IQL.replace(clip_actions=True))


def test_actions_outside_the_bounds_of_the_environment_are_counted():
    got = open_data([make_continuous(-7, 0.5, 1.000001)], NORMALIZED, action_space=Box(-1, 1, (1,)))
    assert got.warnings == (
        "1 of 3 actions (33.3 %) are outside their bounds, by up to 6, and are not clipped to [-1, 1]; "
        "they can be (clip_actions=True)",
    )


def test_fields_are_dropped_and_others_ignored():
    log = {**make_continuous(0, 0), "mission": np.array(["a", "b"]), "qpos": np.zeros(2)}
    log["observations"] = {"x": np.zeros((3, 2)), "text": np.array([b"a", b"b", b"c"])}
    got = open_data([log], IQL.replace(drop_fields=("observation/text",)))
    names = {"observation", "action", "reward", "discount", "next_observation"}
    assert set(read_items(got)) == names and set(read_items(got)["observation"]) == {"x"}
    with pytest.raises(ValueError, match="there is no field 'observation/txt' to drop"):
        open_data([log], IQL.replace(drop_fields=("observation/txt",)))


def test_integer_rewards_become_float32():
    got = open_data([make_continuous(0, 0, rewards=[1, 2])], TrainingConfig("rebrac"))
    assert read_items(got).reward.dtype == np.float32


def test_constant_observations_are_named_if_they_are_normalised():
    log = make_log(np.zeros((2, 1)), observations=np.array([[1, 3], [2, 3], [4, 3]], np.float32))
    note = "step['observation'] is constant at [1] and was normalised to zeros there"
    assert note in open_data([log], TrainingConfig("td3_bc")).notes
    assert note not in open_data([log], IQL).notes


def test_episodes_for_tables_are_changed_like_the_items():
    logs = [make_continuous(5, 6, rewards=[1, 1]), make_continuous(7, 8, rewards=[2, 2])]
    got = open_data(logs, IQL.replace(sampler="prioritized", top_percent=50, reward="scale:3"))
    (kept,) = got.episodes
    assert read_items(got)["action"][:, 0].tolist() == kept.steps["action"][:2, 0].tolist() == [7, 8]
    assert kept.steps["reward"][:2].tolist() == [6, 6] and kept.steps["is_terminal"].tolist() == [False, False, True]


# --- action bounds


@pytest.mark.parametrize(
    ("actions", "own", "bounds", "reason"),
    [
        ((-0.5, 0.5), None, "[-1, 1]", "which all actions are within"),
        ((-0.5, 3), None, "[-0.5, 3]", "the minimum and maximum of the data"),
        ((3, 3), None, "[2, 4]", "the minimum and maximum of the data"),
        ((-0.5, 0.5), Box(-2, 2, (1,)), "[-2, 2]", "those of the dataset's own action space"),
        ((-0.5, 0.5), Box(-2, 2, (7,)), "[-1, 1]", "which all actions are within"),
        ((-0.5, 0.5), Box(-np.inf, np.inf, (1,)), "[-0.5, 0.5]", "or the minimum and maximum of the data where"),
    ],
)
def test_bounds_of_continuous_actions_without_an_environment_have_a_note(actions, own, bounds, reason):
    source = load([make_continuous(*actions)])
    source.action_space = own
    got = open_data(source, IQL)
    assert got.identity()["action bounds"] == bounds
    (note,) = got.notes
    assert note.startswith(f"the action bounds are {bounds}, ") and reason in note
    is_own = reason.startswith("those of the dataset's") or reason.startswith("or the min")
    assert note.endswith("; choose the environment or set the bounds (env or action_bounds)") != is_own
    assert open_data(source, IQL.replace(env=None)).notes == (note.partition("; choose the environment")[0],)


def test_odd_actions_that_determine_the_bounds_are_warned_about():
    source = load([make_continuous(*[0.5, -0.5, 0.25] * 10, 700.0)])
    found = [str(warning) for warning in open_data(source, IQL).warnings if "scaled to a few" in warning]
    assert len(found) == 1 and "at least 3 times as large" in found[0] and "episode 0, step 30" in found[0]
    assert found[0].endswith("or set the bounds (action_bounds)")
    own_bounds = open_data(source, IQL.replace(action_bounds=(-1, 1)))
    assert not [warning for warning in own_bounds.warnings if "scaled to a few" in warning]


def test_bounds_of_many_actions_are_complete_in_the_identity():
    high = np.arange(1, 13, dtype=np.float32)
    got = open_data([make_log(np.zeros((2, 12)))], IQL, action_space=Box(-1, high, (12,))).identity()
    lists = ", ".join(["-1"] * 12), ", ".join(map(str, range(1, 13)))
    assert got["action bounds"] == f"from {lists[0]} to {lists[1]}"


def test_bounds_of_the_environment_have_no_note():
    got = open_data([make_continuous(-0.5, 0.5)], IQL, action_space=Box(-2, 2, (1,)))
    assert got.notes == () and got.action_spec.minimum.tolist() == [-2]


def test_bounds_that_float32_does_not_represent_are_rounded_inwards():
    space = Box(np.array([-0.1, -0.3, 0]), np.array([0.1, 0.3, 1]), dtype=np.float64)
    got = open_data([make_log(np.zeros((2, 3), np.float32))], IQL, action_space=space).action_spec
    assert got.dtype == np.float32 and (space.contains(got.minimum), space.contains(got.maximum)) == (True, True)
    np.testing.assert_allclose([got.minimum, got.maximum], [space.low, space.high], rtol=1e-6)


@pytest.mark.parametrize(("start", "bounds"), [(0, (0, 2)), (1, (1, 3)), (-1, (-1, 1))])
def test_bounds_of_discrete_actions_include_the_start_of_the_space(start, bounds):
    log = make_log(np.arange(2) + start)
    for space, own in ((Discrete(3, start=start), None), (None, Discrete(3, start=start))):
        source = load([log])
        source.action_space = own
        spec = open_data(source, DQN, action_space=space).action_spec
        assert (int(spec.minimum), int(spec.maximum)) == bounds


def test_bounds_of_discrete_actions_are_otherwise_those_of_the_data():
    got = open_data([make_log([3, 5, 4, 8])], DQN)
    assert (int(got.action_spec.minimum), int(got.action_spec.maximum)) == (3, 8)
    assert got.notes[0].startswith("the action bounds are [3, 8], the minimum and maximum of the data; choose the env")


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([0, 4, 0], "the only actions are 0, 4"),
        ([0, 8, 9, 4], "the only actions are 0, 4, 8, 9"),
        ([4, 4], "the only action is 4"),
    ],
)
def test_unknown_number_of_discrete_actions_raises(actions, reason):
    with pytest.raises(SpecMismatchError, match=rf"is unknown, because {reason}; re-encode .*, or pass .* \(env\)"):
        open_data([make_log(actions)], DQN)
    assert open_data([make_log(actions)], DQN, action_space=Discrete(2001)).action_spec.maximum == 2000


def test_discrete_actions_outside_the_bounds_raise_without_advice_to_clip():
    with pytest.raises(SpecMismatchError, match="are from 1 to 3, but those of the environment from 0 to 2") as raised:
        open_data([make_log([1, 2, 3])], DQN.replace(clip_actions=True), action_space=Discrete(3))
    assert "clip" not in str(raised.value)


# --- data that cannot be trained on


@pytest.mark.parametrize(
    ("change", "config", "space", "message"),
    [
        (
            {"actions": np.zeros((2, 1))},
            DQN,
            None,
            r"dqn requires discrete actions.*continuous.*use one of awac, bc",
        ),
        (
            {"actions": np.zeros(2, int)},
            IQL,
            None,
            r"iql requires continuous actions.*discrete.*use one of discrete_bc",
        ),
        ({"actions": np.zeros((2, 3), int)}, DQN, None, "MultiDiscrete actions are not supported; encode each"),
        ({"actions": np.zeros((2, 3), int)}, IQL, None, "MultiDiscrete actions are not supported; encode each"),
        ({"actions": {"a": np.zeros(2, int)}}, IQL, None, "actions must be one array, got a nest; drop parts"),
        (
            {"actions": {"kind": np.array([0, 2]), "force": np.zeros((2, 1))}},
            IQL,
            None,
            r"encode action\['kind'\] int64 \[\]: agents learn either one integer, or floats only",
        ),
        (
            {"actions": {"a": {"on": np.ones((2, 3), bool)}, "b": np.zeros(2)}},
            IQL,
            None,
            r"\['on'\] bool \[3\]: agents",
        ),
        ({"actions": (np.zeros((2, 1)), np.zeros(2, np.uint8))}, DQN, None, r"encode action\[1\] uint8 \[\]: agents"),
        (
            {"actions": np.zeros((2, 1))},
            IQL,
            Dict(a=Box(-1, 1)),
            "actions of the environment must be one array, got Dict",
        ),
        ({"actions": np.array(["a", "b"])}, IQL, None, r"must be floats or integers, got string \[\]"),
        ({"actions": np.zeros((2, 3, 1))}, IQL, None, r"continuous actions must be vectors, got float64 \[3, 1\]"),
        ({}, IQL, Box(-1, 1, (3,)), r"actions have shape \(1,\), but those of the environment \(3,\); pass the env"),
        ({"actions": np.zeros((2, 1))}, IQL, Box(0, 3, (1,), int), "actions are float64, but those of the env.* int64"),
        (
            {"observations": {"text": np.array(["a", "b", "c"])}},
            IQL,
            None,
            r"\['text'\] must be numbers, got string \[\]; encode it, or drop it \(drop_fields=\['observation/text'\]\)",
        ),
    ],
)
@pytest.mark.drill("F11")
def test_data_that_the_algorithm_cannot_learn_from_raise(change, config, space, message):
    with pytest.raises(SpecMismatchError, match=message):
        open_data([{**make_continuous(0, 0), **change}], config, action_space=space)


def test_text_in_observations_is_left_out_with_a_warning():
    text = np.array(["a", "b", "c"])
    observations = {"x": np.zeros((3, 2)), "task": {"name": text, "more": {"hint": text}}, "note": text}
    data = open_data([{**make_continuous(0, 0), "observations": observations}], IQL)
    assert set(data.time_step_spec.observation) == {"x"}
    sentence = "observation/task, observation/note: text is left out, because agents cannot learn from it"
    assert sentence in data.notes
    config = IQL.replace(drop_fields=("observation/task",))
    data = open_data([{**make_continuous(0, 0), "observations": observations}], config)
    assert "observation/note: text is left out, because agents cannot learn from it" in data.notes


def test_nested_actions_become_one_vector():
    log = {**make_continuous(0, 0), "actions": {"turn": np.array([[1.0, 2], [3, 4]]), "grip": np.array([1.0, 0])}}
    data = open_data([log], IQL)
    np.testing.assert_array_equal(read_items(data)["action"], np.float32([[1, 1, 2], [0, 3, 4]]))
    assert "the parts of the actions are joined to one vector: grip [0:1], turn [1:3]" in data.notes
    assert data.action_spec.shape == (3,)


def test_episodes_without_steps_are_left_out_with_a_note():
    steps = next(iter(load([make_continuous(0, 0)]))).steps
    empty = {name: column[:0] for name, column in steps.items()}
    expected, data = open_data([steps], IQL), open_data([empty, steps, empty], IQL)
    assert set(data.notes) - set(expected.notes) == {"2 episodes without steps are left out"}
    assert data.fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    ("actions", "config", "expected"),
    [(np.float32([0.5, -1]), IQL, np.float32([[0.5], [-1]])), (np.array([[2], [0]]), DQN, np.array([2, 0]))],
)
def test_actions_of_one_number_get_the_shape_that_agents_require(actions, config, expected):
    data = open_data([{**make_continuous(0, 0), "actions": actions}], config)
    np.testing.assert_array_equal(read_items(data)["action"], expected)
    assert data.action_spec.shape == expected.shape[1:]


@pytest.mark.parametrize(("config", "raises"), [("bc", False), ("iql", True), (("bc", 10), True)])
def test_assumed_rewards_raise_unless_nothing_learns_from_them(config, raises):
    algo, top_percent = config if isinstance(config, tuple) else (config, None)
    source = replace(load([make_continuous(0, 0)]), assumed_fields=("reward",))
    error = pytest.raises(SourceError, match=f"has no 'reward', from which {algo} .* clone with 'bc' .* \\(missing\\)")
    with error if raises else contextlib.nullcontext():
        open_data(source, TrainingConfig(algo, env=None, top_percent=top_percent))


def test_rewards_that_are_vectors_raise():
    with pytest.raises(SpecMismatchError, match=r"rewards must be single numbers, got float64 \[2\]; combine"):
        open_data([{**episode(3, terminal=True), "reward": np.zeros((3, 2))}], IQL)


def test_datasets_without_rewards_or_transitions_raise():
    steps = episode(3, terminal=True)
    with pytest.raises(SourceError, match="has no transitions, but training requires them"):
        open_data([tree.map_structure(lambda column: column[:1], {**steps, "is_last": steps["is_first"]})], IQL)
    with pytest.raises(SourceError, match="has no transitions, but training requires them"):
        open_data([], IQL)
    with pytest.raises(SourceError, match="has no rewards, but training requires them"):
        bare = [next(iter(load([steps])))]
        del bare[0].steps["reward"]
        open_data(Source("bare", "memory", lambda: iter(bare)), IQL)


def test_episodes_without_transitions_are_left_out():
    steps = episode(1, terminal=True, start=50)
    got = open_data([steps, episode(3, terminal=True), steps], IQL)
    assert got.num_episodes == 1 and got.returns.tolist() == [201] and got.items.num_items == 2


def test_warnings_of_the_source_and_left_out_data_are_reported():
    log = {**make_continuous(0, 0, 0), "terminated": False}
    log["observations"] = log["observations"][:-1]
    source = load([log])
    source.warnings = ("mind the gap",)
    got = open_data(source, NORMALIZED)
    assert got.warnings == ("mind the gap",) and "the last transitions of 1 truncated episodes" in got.notes[0]


# --- formats


@pytest.mark.parametrize(
    ("place", "config", "num_transitions", "bounds"),
    [
        ("minari/mujoco/hopper/dev-v0", IQL, 4070, "those of the dataset's own action space"),
        ("minari/classic/pendulum-dict/dev-v0", IQL, 1600, "[-2, 2], those of the dataset's own action space"),
        ("rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0", IQL, None, "[-1, 1]"),
        ("d4rl/invertedpendulum_random-v2.hdf5", IQL, None, "of the data"),
    ],
)
def test_datasets_of_every_format_are_opened(data, place, config, num_transitions, bounds):
    source = open_source(str(data / place))
    got = open_data(source, config)
    assert got.items.num_items == got.num_transitions == sum(recorded.num_transitions for recorded in source)
    assert num_transitions in (None, got.num_transitions) and any(bounds in note for note in got.notes)
    assert all(np.isfinite(leaf).all() for leaf in tree.flatten(got.moments))


def test_functions_and_lists_of_episodes_are_opened():
    logs = [make_continuous(0.5), make_continuous(0.25, 0.125)]

    def make_logs():
        yield from logs

    one, other = open_data(logs, IQL), open_data(make_logs, IQL)
    assert one.fingerprint == other.fingerprint and other.name == "episodes of make_logs"
    assert_equal_nests(read_items(one), read_items(other))


def test_server_that_cannot_be_isolated_warns():
    def start(*, isolate):
        if isolate:
            raise OSError("port 1 cannot be isolated (no permission)")
        return "server"

    with pytest.warns(RuntimeWarning, match=r"all machines, without authentication \(port 1 cannot be isolated"):
        assert start_isolated(start) == "server"


@pytest.mark.parametrize("store_dir", [None, "stores"])
def test_clone_of_several_tasks_that_it_does_not_see_is_warned_about(store_dir, tmp_path):
    def make_log(task):
        log = {"observations": np.ones((4, 2), np.float32), "actions": np.eye(4, 2, dtype=np.float32)}
        return {**log, "rewards": np.zeros(4, np.float32), "terminated": False, "task": np.array([task] * 4, object)}

    logs = [make_log(b"pick"), make_log(b"place"), make_log(b"place")]
    config = TrainingConfig("bc", store_dir=store_dir and str(tmp_path))

    def find(source, config=config):
        with open_data(source, config) as data:
            return [warning for warning in data.warnings if "tasks" in warning]

    (warning,) = find(logs)
    assert warning.startswith("the episodes have 2 tasks ('pick', 'place'), of which the agent sees none; select one")
    assert not find(logs, config.replace(algo="iql")) and not find(logs[1:])
    assert not find(load(logs, mapping={"select": {"task": "place"}}))
    seen = {"rename": {"observation": "observation.state"}, "copy": {"reward": "observation.task"}}
    assert not find(load(logs, mapping=seen))
