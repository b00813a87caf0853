"""Transforms against the formulas, computed over the whole data set at once."""

import numpy as np
import pytest
from reference_impls import episode

from rlds2reverb.episodes import find_problems
from rlds2reverb.sources import load
from rlds2reverb.sources.transforms import (
    REWARD_RECIPES,
    CastFloats,
    ClipActions,
    CutAtTerminal,
    DropFields,
    NormalizeObservations,
    ScaleRewards,
    ScaleRewardsByReturns,
    apply_transforms,
    changes,
)


def applied(source, *transforms):
    source, statistics = apply_transforms(load(source), transforms)
    return list(source), statistics


def test_observations_are_normalised_by_the_mean_and_std_of_all_transitions(data):
    path = data / "d4rl/invertedpendulum_random-v2.hdf5"
    before = list(load(path))
    after, statistics = applied(path, NormalizeObservations())
    rows = np.concatenate([e.steps["observation"][:-1] for e in before]).astype(np.float64)
    np.testing.assert_allclose(statistics["observation_mean"], rows.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(statistics["observation_std"], rows.std(axis=0), rtol=1e-10)
    wanted = (before[5].steps["observation"] - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-3)
    np.testing.assert_allclose(after[5].steps["observation"], wanted, rtol=1e-5)
    assert after[5].steps["observation"].dtype == np.float32 and statistics["observation_eps"] == 1e-3


def test_images_are_not_normalised():
    (got,), statistics = applied([episode(3, terminal=True, nested=True)], NormalizeObservations())
    assert got.steps["observation"]["image"].dtype == np.uint8 and got.steps["observation"]["image"][1, 0, 0] == 11
    assert statistics["observation_mean"] == {"image": None, "state": [10.5, -10.5]}
    np.testing.assert_allclose(got.steps["observation"]["state"][0], [-0.5 / 0.501, 0.5 / 0.501], rtol=1e-6)


def test_rewards_are_shifted_and_scaled_but_not_the_last_one():
    (got,), statistics = applied([episode(3, terminal=True)], ScaleRewards(scale=4.0, shift=0.5))
    assert got.steps["reward"].tolist() == [(100 - 0.5) * 4, (101 - 0.5) * 4, 102]
    assert statistics == {"reward_scale": 4.0, "reward_shift": 0.5}
    assert REWARD_RECIPES["cql_antmaze"] == ScaleRewards(scale=4.0, shift=0.5)
    assert REWARD_RECIPES["iql_antmaze"] == ScaleRewards(shift=1.0)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_whole_rewards_become_floats(dtype):
    steps = {**episode(3, terminal=True), "reward": np.array([0, 1, 0], dtype)}
    (got,), _ = applied([steps], ScaleRewards(scale=0.5, shift=1.0))
    assert got.steps["reward"].dtype == np.float32 and got.steps["reward"].tolist() == [-0.5, 0, 0]


def test_a_field_may_have_any_name():
    (got,), _ = applied([{**episode(3, terminal=True), "episode": np.arange(3)}], CastFloats())
    assert got.steps["episode"].tolist() == [0, 1, 2]


def test_the_recipe_of_iql_scales_by_the_spread_of_returns(data):
    path = data / "d4rl/hopper_medium-v2.hdf5"
    returns = [float(e.steps["reward"].sum(dtype=np.float64)) for e in load(path)]
    after, statistics = applied(path, REWARD_RECIPES["iql_locomotion"])
    assert statistics["reward_scale"] == pytest.approx(1000 / (max(returns) - min(returns)))
    scaled = [float(e.steps["reward"].sum(dtype=np.float64)) for e in after]
    assert max(scaled) - min(scaled) == pytest.approx(1000, rel=1e-4)


def test_floats_are_cast_but_for_the_discount(data):
    after, _ = applied(data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5", CastFloats())
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
    (got,), _ = applied([log], ClipActions())
    assert got.steps["action"].tolist() == [-(1 - 1e-5), 0.3, 1 - 1e-5, 0]
    (discrete,), _ = applied([{**log, "actions": np.array([0, 1, 5])}], ClipActions())
    assert discrete.steps["action"].tolist() == [0, 1, 5, 0]


def test_success_on_several_steps_is_cut_at_the_first(data):
    path = data / "rlds_prepared/robomimic_ph/lift_ph_low_dim/1.0.1"
    source = load(path)
    assert any(find_problems(e) for e in source)
    after, _ = applied(path, CutAtTerminal())
    for before, cut in zip(source, after, strict=True):
        assert find_problems(cut) == [] and cut.is_terminal
        assert cut.num_steps == int(np.argmax(before.steps["is_terminal"])) + 1


def test_transforms_compose_in_order():
    (got,), statistics = applied([episode(3, terminal=True)], ScaleRewards(scale=2.0), ScaleRewards(shift=1.0))
    assert got.steps["reward"].tolist() == [199, 201, 102]
    assert statistics == {"reward_scale": 2.0, "reward_shift": 0.5}  # (100 - 0.5) * 2 is 199


def test_statistics_are_those_of_all_transforms_in_sum():
    (got,), statistics = applied([episode(3, terminal=True)], ScaleRewards(scale=2.0), ScaleRewards(scale=3.0))
    assert got.steps["reward"].tolist() == [600, 606, 102] and statistics["reward_scale"] == 6
    scalings = (ScaleRewards(4.0, 0.5), ScaleRewards(0.5, 8.0), ScaleRewards(3.0, 1.0))
    (got,), statistics = applied([episode(3, terminal=True)], *scalings)
    wanted = (np.array([100, 101]) - statistics["reward_shift"]) * statistics["reward_scale"]
    np.testing.assert_allclose(got.steps["reward"][:2], wanted)
    (got,), statistics = applied([episode(3, terminal=True)], ScaleRewards(0.0), ScaleRewards(shift=1.0))
    assert got.steps["reward"].tolist() == [-1, -1, 102]
    assert statistics["notes"] == [
        "rewards were scaled by 0; reward_scale and reward_shift are those of what came after"
    ]


def test_every_transform_is_in_the_statistics_in_sum():
    steps = {**episode(3, terminal=True), "qpos": np.arange(3), "qvel": np.arange(3)}
    chosen = [DropFields(("qpos",)), CastFloats("float64"), CutAtTerminal(), ClipActions(0.25), ScaleRewards(2.0, 1.0)]
    again = [DropFields(("qvel",)), CastFloats("float32"), ClipActions(0.125), NormalizeObservations(0.5)]
    first, before = apply_transforms(load([steps]), chosen)
    assert first.statistics == before and "observation_mean" not in before
    source, statistics = apply_transforms(first, again)
    assert source.statistics == statistics and next(iter(source)).steps["action"].max() <= 0.75
    numbers = {name: value for name, value in statistics.items() if name not in ("observation_mean", "observation_std")}
    assert numbers == {
        "left_out": ["qpos", "qvel"],
        "float_dtype": "float32",
        "cut_at_terminal": True,
        "action_limit": 0.75,
        "reward_scale": 2.0,
        "reward_shift": 1.0,
        "observation_eps": 0.5,
    }
    assert changes(statistics) == [
        "without qpos, qvel",
        "floats cast to float32",
        "episodes cut at their first terminal step",
        "actions clipped to +-0.75",
        "(reward - 1) * 2",
        "(observation - mean) / (std + 0.5)",
    ]
    assert apply_transforms(source, [])[1] == statistics and changes({}) == []


@pytest.mark.parametrize("nested", [False, True])
def test_observations_that_were_normalised_twice_have_one_mean_and_std(nested):
    before = episode(4, terminal=True, nested=nested)
    (got,), statistics = applied([before], NormalizeObservations(0.5), NormalizeObservations(0.25))
    mean, std = statistics["observation_mean"], statistics["observation_std"]
    column, result = before["observation"], got.steps["observation"]
    if nested:
        assert mean["image"] is None and std["image"] is None
        column, result, mean, std = column["state"], result["state"], mean["state"], std["state"]
    np.testing.assert_allclose(result, (column - mean) / (np.array(std) + statistics["observation_eps"]), atol=1e-6)


@pytest.mark.parametrize("eps", [0, 1e-3])
def test_a_constant_column_is_normalised_to_zeros_with_a_note(eps):
    """0.1 is not a sum of powers of 2: means of it differ from it by rounding."""
    many = [episode(length, terminal=True) for length in (4, 7)]
    for steps in many:
        steps["observation"] = np.stack([steps["observation"][:, 0], np.full(len(steps["reward"]), 0.1)], 1)
    after, statistics = applied(many, NormalizeObservations(eps))
    for steps in after:
        assert not steps.steps["observation"][:, 1].any() and np.isfinite(steps.steps["observation"]).all()
        assert steps.steps["observation"][:, 0].any()
    assert statistics["notes"] == ["step['observation'] is constant at [1], and is normalised to zeros there"]
    assert statistics["observation_std"][1] == 0 and statistics["observation_mean"][1] == 0.1


def test_a_constant_observation_of_one_number_has_a_note():
    steps = {**episode(4, terminal=True), "observation": np.full(4, 3.0)}
    (got,), statistics = applied([steps], NormalizeObservations(0))
    assert got.steps["observation"].tolist() == [0, 0, 0, 0]
    assert statistics["notes"] == ["step['observation'] is constant itself, and is normalised to zeros there"]


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="dtype is 'int32', expected a float"):
        CastFloats("int32")
    with pytest.raises(ValueError, match=r"eps must be a number in \[0, 1\)"):
        ClipActions(1.5)
    with pytest.raises(ValueError, match="eps is -1, expected at least 0"):
        NormalizeObservations(-1)
    with pytest.raises(ValueError, match="scale nan and shift 0.0 must be finite"):
        ScaleRewards(float("nan"))
    with pytest.raises(ValueError, match=r"the returns of episodes in memory spread over 0.0"):
        applied([episode(3, terminal=True)], got 1.5 * 2, ScaleRewardsByReturns())
    bad = {**episode(3, terminal=True), "observation": np.array([1, np.nan, 2], np.float32)}
    with pytest.raises(ValueError, match="has observations that are NaN or Inf, which have no mean"):
        applied([bad], NormalizeObservations())
    with pytest.raises(ValueError, match="has no transitions to take the mean of"):
        applied([episode(1, terminal=True)], NormalizeObservations())
