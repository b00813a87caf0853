"""Tests of transforms against their formulas, computed over the whole dataset at once."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from reference_impls import episode

from rlds2reverb.datasets import load
from rlds2reverb.datasets.transforms import (
    REWARD_RECIPES,
    ActionBounds,
    CastFloats,
    ClipActions,
    CutAtTerminal,
    DropFields,
    NormalizeObservations,
    ScaleRewards,
    ScaleRewardsByReturns,
    apply_transforms,
    clip_actions,
    describe_changes,
    describe_reward,
    parse_reward,
)
from rlds2reverb.types.episodes import find_errors


def apply(source, *transforms):
    source, statistics = apply_transforms(load(source), transforms)
    return list(source), statistics


def test_observations_are_normalised_by_mean_and_std_of_all_transitions(data):
    path = data / "d4rl/invertedpendulum_random-v2.hdf5"
    before = list(load(path))
    after, statistics = apply(path, NormalizeObservations())
    rows = np.concatenate([e.steps["observation"][:-1] for e in before]).astype(np.float64)
    np.testing.assert_allclose(statistics["observation_mean"], rows.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(statistics["observation_std"], rows.std(axis=0), rtol=1e-10)
    expected = (before[5].steps["observation"] - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-3)
    np.testing.assert_allclose(after[5].steps["observation"], expected, rtol=1e-5)
    assert after[5].steps["observation"].dtype == np.float32 and statistics["observation_eps"] == 1e-3


def test_normalization_keeps_images():
    (got,), statistics = apply([episode(3, terminal=True, nested=True)], NormalizeObservations())
    assert got.steps["observation"]["image"].dtype == np.uint8 and got.steps["observation"]["image"][1, 0, 0] == 11
    assert statistics["observation_mean"] == {"image": None, "state": [10.5, -10.5]}
    np.testing.assert_allclose(got.steps["observation"]["state"][0], [-0.5 / 0.501, 0.5 / 0.501], rtol=1e-6)


def test_reward_scaling_keeps_the_last_reward():
    (got,), statistics = apply([episode(3, terminal=True)], ScaleRewards(scale=4.0, shift=0.5))
    assert got.steps["reward"].tolist() == [(100 - 0.5) * 4, (101 - 0.5) * 4, 102]
    assert statistics == {"reward_scale": 4.0, "reward_shift": 0.5}
    assert REWARD_RECIPES["cql_antmaze"] == ScaleRewards(scale=4.0, shift=0.5)
    assert REWARD_RECIPES["iql_antmaze"] == ScaleRewards(shift=1.0)


@pytest.mark.parametrize(
    ("transform", "recipe"),
    [
        (ScaleRewards(0.1), "scale:0.1:0.0"),
        (ScaleRewards(2, -3), "scale:2.0:-3.0"),
        (ScaleRewards(shift=1.0), "iql_antmaze"),
        (ScaleRewardsByReturns(), "iql_locomotion"),
        (ScaleRewardsByReturns(500), "returns:500.0"),
    ],
)
def test_reward_transforms_have_a_recipe(transform, recipe):
    assert describe_reward(transform) == describe_reward(recipe) == recipe and parse_reward(recipe) == transform


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_reward_scaling_casts_integers_to_float32(dtype):
    steps = {**episode(3, terminal=True), "reward": np.array([0, 1, 0], dtype)}
    (got,), _ = apply([steps], ScaleRewards(scale=0.5, shift=1.0))
    assert got.steps["reward"].dtype == np.float32 and got.steps["reward"].tolist() == [-0.5, 0, 0]


def test_transforms_accept_a_field_named_episode():
    (got,), _ = apply([{**episode(3, terminal=True), "episode": np.arange(3)}], CastFloats())
    assert got.steps["episode"].tolist() == [0, 1, 2]


def test_iql_recipe_scales_by_the_range_of_returns(data):
    path = data / "d4rl/hopper_medium-v2.hdf5"
    returns = [float(e.steps["reward"].sum(dtype=np.float64)) for e in load(path)]
    after, statistics = apply(path, REWARD_RECIPES["iql_locomotion"])
    assert statistics["reward_scale"] == pytest.approx(1000 / (max(returns) - min(returns)))
    scaled = [float(e.steps["reward"].sum(dtype=np.float64)) for e in after]
    assert max(scaled) - min(scaled) == pytest.approx(1000, rel=1e-4)


def test_cast_floats_keeps_discount_and_flags(data):
    after, _ = apply(data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5", CastFloats())
    dtypes = {name: column.dtype.name for name, column in after[0].steps.items()}
    assert dtypes["observation"] == dtypes["action"] == dtypes["reward"] == dtypes["discount"] == "float32"
    assert dtypes["is_last"] == "bool"


def test_actions_are_clipped_inside_the_open_interval():
    log = {
        "observations": np.zeros((3, 1)),
        "actions": np.array([-7.5, 0.3, 1.0]),
        "rewards": np.zeros(3),
        "terminated": True,
    }
    (got,), _ = apply([log], ActionBounds(-1, 1), ClipActions())
    assert got.steps["action"].tolist() == [-(1 - 1e-5), 0.3, 1 - 1e-5, 0]
    (discrete,), _ = apply([{**log, "actions": np.array([0, 1, 5])}], ClipActions())
    assert discrete.steps["action"].tolist() == [0, 1, 5, 0]


def test_actions_are_clipped_to_the_bounds_of_the_dataset():
    log = {"observations": np.zeros((2, 1)), "actions": np.array([[-7.0, 1.5], [0.5, 9.0]]), "rewards": np.zeros(2)}
    space = Box(np.array([-2, 0]), np.array([2, 4]), dtype=np.float64)
    source = replace(load([{**log, "terminated": True}]), action_space=space)
    clipped, statistics = apply_transforms(source, [ClipActions(0.5)])
    (got,) = clipped
    assert got.steps["action"][:2].tolist() == [[-1, 1.5], [0.5, 3]]
    note = "2 of 2 actions (100 %) are outside their bounds, by up to 5, and are clipped"
    assert statistics == {"clipped_actions": 2, "notes": [note]}
    half_infinite = replace(source, action_space=Box(np.array([-2, -np.inf]), np.array([2, np.inf]), dtype=np.float64))
    ((got,), statistics) = apply_transforms(half_infinite, [ClipActions()])
    assert got.steps["action"][:2].tolist() == [[-2 + 2e-5, 1.5], [0.5, 9]] and statistics["clipped_actions"] == 1
    one_sided = replace(source, action_space=Box(np.array([-8, 0]), np.array([np.inf, 4]), dtype=np.float64))
    assert next(iter(apply_transforms(one_sided, [ClipActions()])[0])).steps["action"][0].tolist() == [-7, 1.5]


def test_clipping_without_known_bounds_raises_unless_all_actions_are_within_one():
    source = load([episode(3, terminal=True)])
    message = r"clip_actions requires the bounds of step\['action'\].* 2 of 2 actions are outside .*; set .* \(action_bounds\)"
    with pytest.raises(ValueError, match=message):
        apply_transforms(source, [ClipActions()])
    within = load([{**episode(3, terminal=True), "action": np.float32([[1], [0.5], [-7]])}])  # The last is no action.
    ((got,), statistics) = apply_transforms(within, [ClipActions()])
    assert got.steps["action"][:2, 0].tolist() == [np.float32(1 - 1e-5), 0.5] and statistics == {"clipped_actions": 0}
    nested = load([{**episode(3, terminal=True), "action": {"arm": np.full((3, 2), 2, np.float32)}}])
    with pytest.raises(ValueError, match=r"bounds of step\['action'\]\['arm'\]"):
        apply_transforms(nested, [ClipActions()])
    with pytest.raises(ValueError, match="requires actions in one array of numbers, got a nest"):
        apply_transforms(nested, [ActionBounds(-1, 1)])
    for low, high in ((1, 1), (2, 1), (0, np.inf), (np.nan, 1), ("x", 1)):
        with pytest.raises(ValueError, match="action_bounds must be two numbers, the minimum first"):
            ActionBounds(low, high)


def test_action_bounds_become_the_action_space():
    declared, statistics = apply_transforms(load([episode(3, terminal=True)]), [ActionBounds(-2, 3)])
    assert declared.action_space == Box(-2, 3, declared.step_spec["action"].shape)
    assert statistics == {"action_bounds": [-2, 3]}
    discrete = {**episode(3, terminal=True), "action": np.arange(3)}
    assert apply_transforms(load([discrete]), [ActionBounds(0, 4)])[0].action_space == Discrete(5)


def test_clip_actions_keeps_a_margin_of_half_the_width():
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
    clipped = clip_actions(np.array([[-3, -1], [1.5, 11]], np.float32), low, high, 0.1)
    assert clipped.dtype == np.float32 and clipped.tolist() == [[np.float32(-1.8), 0.5], [1.5, 9.5]]
    assert clip_actions(np.array([0, 5]), -1, 1).tolist() == [0, 5]


@pytest.mark.slow
def test_cut_at_terminal_ends_episodes_at_the_first_success(data):
    path = data / "rlds_prepared/robomimic_ph/lift_ph_low_dim/1.0.1"
    source = load(path)
    assert any(find_errors(e) for e in source)
    after, _ = apply(path, CutAtTerminal())
    for before, cut in zip(source, after, strict=True):
        assert find_errors(cut) == [] and cut.is_terminal
        assert cut.num_steps == int(np.argmax(before.steps["is_terminal"])) + 1


def test_transforms_are_applied_in_order():
    (got,), statistics = apply([episode(3, terminal=True)], ScaleRewards(scale=2.0), ScaleRewards(shift=1.0))
    assert got.steps["reward"].tolist() == [199, 201, 102]
    assert statistics == {"reward_scale": 2.0, "reward_shift": 0.5}  # (100 - 0.5) * 2 = 199


def test_statistics_combine_consecutive_reward_scalings():
    (got,), statistics = apply([episode(3, terminal=True)], ScaleRewards(scale=2.0), ScaleRewards(scale=3.0))
    assert got.steps["reward"].tolist() == [600, 606, 102] and statistics["reward_scale"] == 6
    scalings = (ScaleRewards(4.0, 0.5), ScaleRewards(0.5, 8.0), ScaleRewards(3.0, 1.0))
    (got,), statistics = apply([episode(3, terminal=True)], *scalings)
    expected = (np.array([100, 101]) - statistics["reward_shift"]) * statistics["reward_scale"]
    np.testing.assert_allclose(got.steps["reward"][:2], expected)
    (got,), statistics = apply([episode(3, terminal=True)], ScaleRewards(0.0), ScaleRewards(shift=1.0))
    assert got.steps["reward"].tolist() == [-1, -1, 102]
    assert statistics["notes"] == [
        "rewards were scaled by 0; reward_scale and reward_shift describe only the later transforms"
    ]


def test_statistics_combine_all_transforms():
    steps = {**episode(3, terminal=True), "qpos": np.arange(3), "qvel": np.arange(3)}
    earlier = [
        DropFields(("qpos",)),
        CastFloats("float64"),
        CutAtTerminal(),
        ActionBounds(-1, 1),
        ClipActions(0.25),
        ScaleRewards(2.0, 1.0),
    ]
    later = [DropFields(("qvel",)), CastFloats("float32"), ClipActions(0.125), NormalizeObservations(0.5)]
    first, before = apply_transforms(load([steps]), earlier)
    assert first.statistics == before and "observation_mean" not in before
    source, statistics = apply_transforms(first, later)
    assert source.statistics == statistics and next(iter(source)).steps["action"].max() <= 0.75
    others = ("observation_mean", "observation_std", "notes")
    numbers = {name: value for name, value in statistics.items() if name not in others}
    assert numbers == {
        "dropped_fields": ["qpos", "qvel"],
        "float_dtype": "float32",
        "cut_at_terminal": True,
        "action_bounds": [-1, 1],
        "clipped_actions": 2,
        "reward_scale": 2.0,
        "reward_shift": 1.0,
        "observation_eps": 0.5,
    }
    assert describe_changes(statistics) == [
        "fields dropped: qpos, qvel",
        "floats cast to float32",
        "episodes cut at their first terminal step",
        "action bounds set to -1 and 1",
        "actions clipped to their bounds",
        "(reward - 1) * 2",
        "(observation - mean) / (std + 0.5)",
    ]
    assert apply_transforms(source, [])[1] == statistics and describe_changes({}) == []


@pytest.mark.parametrize("nested", [False, True])
def test_statistics_combine_consecutive_normalizations(nested):
    before = episode(4, terminal=True, nested=nested)
    (got,), statistics = apply([before], NormalizeObservations(0.5), NormalizeObservations(0.25))
    mean, std = statistics["observation_mean"], statistics["observation_std"]
    column, result = before["observation"], got.steps["observation"]
    if nested:
        assert mean["image"] is None and std["image"] is None
        column, result, mean, std = column["state"], result["state"], mean["state"], std["state"]
    np.testing.assert_allclose(result, (column - mean) / (np.array(std) + statistics["observation_eps"]), atol=1e-6)


@pytest.mark.parametrize("eps", [0, 1e-3])
def test_constant_column_is_normalised_to_zeros_with_a_note(eps):
    """0.1 has no exact binary representation, so its computed mean differs by rounding."""
    all_steps = [episode(length, terminal=True) for length in (4, 7)]
    for steps in all_steps:
        steps["observation"] = np.stack([steps["observation"][:, 0], np.full(len(steps["reward"]), 0.1)], 1)
    after, statistics = apply(all_steps, NormalizeObservations(eps))
    for steps in after:
        assert not steps.steps["observation"][:, 1].any() and np.isfinite(steps.steps["observation"]).all()
        assert steps.steps["observation"][:, 0].any()
    assert statistics["notes"] == ["step['observation'] is constant at [1] and was normalised to zeros there"]
    assert statistics["observation_std"][1] == 0 and statistics["observation_mean"][1] == 0.1


def test_constant_scalar_observation_has_a_note():
    steps = {**episode(4, terminal=True), "observation": np.full(4, 3.0)}
    (got,), statistics = apply([steps], NormalizeObservations(0))
    assert got.steps["observation"].tolist() == [0, 0, 0, 0]
    assert statistics["notes"] == ["step['observation'] is constant and was normalised to zeros there"]


def test_invalid_settings_raise():
    with pytest.raises(ValueError, match="dtype must be a float such as 'float32', got 'int32'"):
        CastFloats("int32")
    with pytest.raises(ValueError, match=r"eps must be a number in \[0, 1\)"):
        ClipActions(1.5)
    with pytest.raises(ValueError, match="eps must be a finite number >= 0, got -1"):
        NormalizeObservations(-1)
    with pytest.raises(ValueError, match="scale and shift must be finite, got nan and 0.0"):
        ScaleRewards(float("nan"))
    with pytest.raises(
        ValueError,
        match=r"highest and lowest return of episodes in memory must differ .* got 0.0; .*scale:0.1 \(reward\)",
    ):
        apply([episode(3, terminal=True)], ScaleRewardsByReturns())
    invalid = {**episode(3, terminal=True), "observation": np.array([1, np.nan, 2], np.float32)}
    with pytest.raises(ValueError, match="has NaN or Inf in its observations; validate the data first"):
        apply([invalid], NormalizeObservations())
    with pytest.raises(ValueError, match="has no transitions, so that the mean"):
        apply([episode(1, terminal=True)], NormalizeObservations())
