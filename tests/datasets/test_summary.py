"""Tests of summaries against the measured returns in the test data and against naive sums."""

import json

import numpy as np
import pytest
from reference_impls import episode

from rlds2reverb.datasets import load
from rlds2reverb.datasets.summary import Distribution, summarize
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.fingerprints import episode_digests
from rlds2reverb.types.scores import REFERENCE_RETURNS, d4rl_environment, d4rl_score


@pytest.mark.parametrize("name", ["hopper_medium-v2", "invertedpendulum_random-v2", "pendulum_mixed-v2"])
def test_summary_matches_the_measured_numbers(data, name):
    measured = json.loads((data / "d4rl/ref_scores.json").read_text())
    expected = measured["files"][f"{name}.hdf5"]
    reference = measured["measured"][expected["env"]]
    got = summarize(load(data / f"d4rl/{name}.hdf5"), reference_returns=(reference["ref_min"], reference["ref_max"]))
    assert (got.episodes, got.transitions) == (expected["episodes"], expected["steps"])
    assert {"terminal": got.terminal, "timeout": got.truncated} == {"terminal": 0, "timeout": 0, **expected["ends"]}
    assert got.returns.mean == pytest.approx(expected["return_mean"], abs=1e-3)
    assert (got.lengths.min, got.lengths.max) == (expected["len_min"], expected["len_max"])
    assert got.score == pytest.approx(expected["normalized_mean"], abs=0.05)
    assert got.unterminated == got.empty == 0
    assert (got.metadata.get("algorithm") == "ARS") == (name == "hopper_medium-v2")


def test_summary_has_quantiles_fields_and_non_finite_counts():
    all_steps = [episode(length, terminal=length == 4) for length in (2, 4, 6)]
    all_steps[0]["reward"] = np.array([np.nan, np.inf], np.float32)
    got = summarize(load(all_steps))
    assert (got.episodes, got.steps, got.transitions, got.terminal, got.truncated) == (3, 12, 9, 1, 2)
    assert (got.lengths.q25, got.lengths.median, got.lengths.q75, got.lengths.mean) == (2, 3, 4, 3)
    spec = {field.name: (field.spec, field.non_finite) for field in got.fields}
    assert spec["['reward']"] == ("float32 []", 2) and spec["['observation']"] == ("float32 [2]", 0)
    assert got.size_bytes == 12 * (8 + 4 + 4 + 4 + 3)


def test_return_is_nan_if_the_reward_is_not_a_scalar():
    steps = episode(3, terminal=True)
    for reward in ({"a": steps["reward"], "b": steps["reward"]}, np.zeros((3, 2))):
        got = summarize(load([{**steps, "reward": reward}]))
        assert np.isnan(got.returns.mean) and got.lengths.mean == 2


def test_unterminated_and_empty_episodes_are_counted(data):
    assert summarize(load(data / "malformed/hdf5/unclosed_tail.hdf5")).unterminated == 1
    got = summarize(load(data / "malformed/rlds/zero_length_episode", last_step="boundary"))
    assert (got.episodes, got.empty, got.steps) == (3, 1, 7)


def test_fingerprint_depends_on_the_content():
    def digest(*episodes):
        return summarize(load(list(episodes))).fingerprint

    one, two = episode(3, terminal=True), episode(3, terminal=False)
    assert digest(one, two) == digest(one, two) and len(digest(one)) == 32
    changed_bit = {**one, "reward": np.nextafter(one["reward"], 0)}
    changed_dtype = {**one, "reward": one["reward"].astype(np.float64)}
    changed_name = {("extra" if name == "reward" else name): column for name, column in one.items()}
    texts = ([b"ab", b"c", b""], [b"a", b"bc", b""])
    of_texts = [digest({**one, "text": np.array(words, object)}) for words in texts]
    digests = [*of_texts, digest(one, two), digest(two, one), digest(one), digest(changed_bit), digest(changed_dtype)]
    assert len(set(digests)) == len(digests)
    one_digest, other_digest = (episode_digests(EpisodeBatch([Episode(steps, 0)])) for steps in (one, changed_name))
    assert one_digest != other_digest


def test_summary_can_be_written_as_json():
    assert json.loads(json.dumps(summarize(load([episode(2, terminal=True)])).as_dict()))["episodes"] == 1


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("d4rl_mujoco_hopper/v2-medium", "hopper"),
        ("d4rl_adroit_door/v0-human", "door"),
        ("d4rl_antmaze/umaze-v0", "antmaze"),
        ("halfcheetah_medium-v2.hdf5", "halfcheetah"),
        ("Ant_maze_u-maze_noisy.hdf5", "antmaze"),
        ("ant_medium-v2.hdf5", "ant"),
        ("pendulum_mixed-v2.hdf5", None),
        ("physics_rlds/hopper_flat", None),
        ("hoppers.hdf5", None),
        ("hopper.hdf5", None),
        ("walker_mixed.hdf5", "walker2d"),
        ("pen-v0_demos_clipped.hdf5", "pen"),
        ("maze2d-open-v0", "maze2d-open"),
        ("maze2d-umaze-v1", "maze2d-umaze"),
        ("maze2d-large-dense-v1", "maze2d-large-dense"),
        ("maze2d-medium-sparse-v1.hdf5", "maze2d-medium"),
        ("maze2d-open-sparse.hdf5", "maze2d-open"),
        ("maze2d-eval-large-dense-v1", None),  # D4RL has no reference returns for these.
        ("minigrid-fourrooms-random-v0", "minigrid-fourrooms"),
        ("minigrid4rooms_random.hdf5", "minigrid-fourrooms"),
        ("minigrid4rooms.hdf5", "minigrid-fourrooms"),
        ("kitchen-mixed-v0", "kitchen"),
        ("mini_kitchen_microwave_kettle_light_slider-v0.hdf5", "kitchen"),
        ("flow-ring-controller-v0", "flow-ring"),
        ("flow-merge-v0-idm.hdf5", "flow-merge"),
        ("carla-lane-v0", "carla-lane"),
        ("carla_lane_follow_flat-v0.hdf5", "carla-lane"),
        ("carla_town_subsamp_flat-v0.hdf5", "carla-town"),
        ("carla_town_flat-v0.hdf5", None),
        ("carla-town-full-v0", None),
        ("bullet-halfcheetah-medium-replay-v0", "bullet-halfcheetah"),
        ("bullet-walker2d_expert.hdf5", "bullet-walker2d"),
        ("bullet-maze2d-umaze-sparse.hdf5", "bullet-maze2d-umaze"),
        ("D4RL/pen/human-v2", None),  # This is a Minari name.
        ("antmaze/umaze-v1", None),
    ],
)
def test_environment_is_derived_from_the_name(name, environment):
    assert d4rl_environment(name) == environment


def test_d4rl_score_is_0_for_random_and_100_for_expert():
    """This is the definition of D4RL (Fu et al. 2020)."""
    random, expert = REFERENCE_RETURNS["hopper"]
    assert (random, expert) == (-20.272305, 3234.3)
    assert d4rl_score(random, (random, expert)) == 0 and d4rl_score(expert, (random, expert)) == 100
    assert d4rl_score((random + expert) / 2, (random, expert)) == pytest.approx(50)
    # D4RL's get_normalized_score with the published constants: (100 - 23.85) / (161.86 - 23.85), (2 - 0) / (4 - 0)
    assert d4rl_score(100, REFERENCE_RETURNS["maze2d-umaze"]) == pytest.approx(55.17716)
    assert d4rl_score(2, REFERENCE_RETURNS["kitchen"]) == 50
    assert all(random < expert for random, expert in REFERENCE_RETURNS.values())
    for expert in (1, float("nan"), float("inf")):
        with pytest.raises(
            ValueError, match=f"the two reference returns must be finite and differ, got 1 and {expert}"
        ):
            d4rl_score(3, (1, expert))


def test_distribution_of_no_values_is_nan():
    assert np.isnan([*vars(Distribution.from_values([])).values()]).all()
    assert Distribution.from_values([4.0]) == Distribution(*[4.0] * 6)
