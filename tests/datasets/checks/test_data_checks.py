"""Seeded defects, each found by its check and no other, and clean datasets without false alarms."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from lerobot_samples import CAMERA, write_sample
from properties import mark_slow_except
from pyarrow import parquet

from rlds2reverb import check_dataset, load
from rlds2reverb.datasets.checks import CHECKS, SEVERITIES, DatasetChecks
from rlds2reverb.datasets.checks.actions import find_runs
from rlds2reverb.datasets.checks.outliers import LargestValues
from rlds2reverb.datasets.concatenation import concatenate_sources
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.episodes import Contradiction

# --- two clean datasets


def finish_steps(steps, *, terminal):
    num_steps = len(steps["reward"])
    last = np.arange(num_steps) == num_steps - 1
    for name in ("action", "reward"):
        steps[name][-1] = 0
    steps["discount"] = np.where(terminal & (last | np.roll(last, -1)), 0, 1).astype(np.float32)
    return {**steps, "is_first": np.arange(num_steps) == 0, "is_last": last, "is_terminal": last & terminal}


def make_arm_episode(seed):
    """Returns an episode of a robot arm: two cameras, joints, a gripper, text, times and a reward for success."""
    random = np.random.default_rng(seed)
    num_steps = 41 + seed
    joints = np.cumsum(random.normal(0, 0.05, (num_steps, 6)), axis=0) + random.normal(0, 0.3, 6)
    pixels = np.arange(24)
    front = 120 + 60 * np.sin(pixels[:, None, None] / 4 + joints[:, None, :1, None] * 9) + 5 * np.arange(3)
    front = np.broadcast_to(front + 0.0 * pixels[:, None], (num_steps, 24, 24, 3))
    action = np.append(random.normal(0, 0.2, (num_steps, 6)), random.integers(0, 2, (num_steps, 1)), axis=1)
    texts = np.full(num_steps, b"push the can", object)
    is_success = seed != 3
    reward = np.zeros(num_steps, np.float32)
    reward[-2] = is_success
    steps = {
        "observation": {
            "front": (front + random.integers(0, 9, front.shape)).astype(np.uint8),
            "wrist": random.integers(30, 200, (num_steps, 16, 16, 3)).astype(np.uint8),
            "joints": joints.astype(np.float32),
            "goal": np.full((num_steps, 3), 0.25 * seed, np.float32),
        },
        "action": action.astype(np.float32),
        "reward": reward,
        "language_instruction": texts,
        "timestamp": np.arange(num_steps) / 10,
    }
    reward = steps["reward"].copy()
    steps = finish_steps(steps, terminal=is_success)
    return steps


def make_walker_episode(seed, num_steps=None):
    """Returns an episode of a walker with a time limit of 100 steps, which falls in every other episode."""
    random = np.random.default_rng(100 + seed)
    num_steps = num_steps or (101 if seed % 2 else 61 + seed)
    phase = random.uniform(0, 6, 8)
    steps = np.arange(num_steps)[:, None]
    observation = np.sin(steps / 5 * np.linspace(1, 2, 8) + phase) + random.normal(0, 0.05, (num_steps, 8))
    steps = {
        "observation": observation.astype(np.float32),
        "action": np.tanh(random.normal(0, 1.5, (num_steps, 3))).astype(np.float32),
        "reward": random.normal(1, 0.3, num_steps).astype(np.float32),
    }
    return finish_steps(steps, terminal=seed % 2 == 0)


MAKERS = {"arm": make_arm_episode, "walker": make_walker_episode}


def make_episodes(name):
    return [MAKERS[name](seed) for seed in range(8)]


def make_source(episodes):
    env_spec = json.dumps({"id": "Walker-v0", "max_episode_steps": 100})
    contradictions = [steps.pop("contradictions", ()) for steps in episodes]
    fps = episodes[0].pop("fps", None)
    source = replace(load(episodes), metadata={} if fps is None else {"fps": fps})
    if any(contradictions):
        pairs = list(zip(source.read(), contradictions, strict=True))
        source = replace(source, read=lambda: (replace(episode, contradictions=found) for episode, found in pairs))
    return replace(source, env_spec=env_spec) if "timestamp" not in episodes[0] else source


# --- thirty defects, and a few more

ALL = slice(None)


def add(change):
    return lambda rows: rows + change


def scale(factor):
    return lambda rows: rows * factor


def saturate(actions):
    return np.clip(20 * actions, -1, 1)


def fill(path, rows, value, episodes=(2,)):
    """Returns a mutation that sets some rows of a field in some episodes."""

    def mutate(data):
        for number in episodes:
            *parents, name = path.split(".")
            steps = data[number]
            for parent in parents:
                steps = steps[parent]
            steps[name][rows] = value(steps[name][rows]) if callable(value) else value

    return mutate


def fill_all(path, rows, value):
    return fill(path, rows, value, range(8))


def repeat_step(data):
    for column in (data[2]["observation"], data[2]["action"]):
        column[31] = column[30]


def freeze_front_camera(data):
    front = data[2]["observation"]["front"]
    front[10:25] = front[10]


def join_episodes(data):
    """Appends episode 3 to episode 1 without an end between them."""
    parts = [{name: column[:-1] for name, column in data[number].items()} for number in (0, 2)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    data[0] = finish_steps({name: joined[name] for name in ("observation", "action", "reward")}, terminal=True)


def insert_resets(data):
    """Begins each episode with a step from the final observation of the one before, as in the mode NEXT_STEP."""
    finals = [steps["observation"][-1:] for steps in data]
    for number, final in enumerate(finals[:-1], 1):
        steps = {name: data[number][name] for name in ("observation", "action", "reward")}
        first = {"observation": final, "action": steps["action"][3:4], "reward": np.zeros(1, np.float32)}
        steps = {name: np.concatenate([first[name], column]) for name, column in steps.items()}
        data[number] = finish_steps(steps, terminal=bool(data[number]["is_terminal"][-1]))


def insert_resets_after_unknown_ends(data):
    insert_resets(data)
    for steps in data:
        steps["observation"][-1] = 0


def contradict_length(data):
    data[2]["contradictions"] = (Contradiction(None, "length", "length is 9, but the number of rows 62"),)


def contradict(check):
    def mutate(data):
        data[2]["contradictions"] = (Contradiction(None, "frame_index", "one is 1, but the other 2", check),)

    return mutate


def run_at_half_rate(data):
    fill_all("timestamp", ALL, scale(2))(data)
    data[0]["fps"] = 10


def invert_gripper(data):
    """Makes grippers close after different times, and open in one episode instead."""
    for number, steps in enumerate(data):
        closed = np.arange(len(steps["action"]) - 1) > 18 + number
        steps["action"][:-1, 6] = ~closed if number == 5 else closed


def invert_random_gripper(data):
    """Adds the width of the gripper, which follows it but in one episode, to the observations."""
    for number, steps in enumerate(data):
        gripper = steps["action"][:-1, 6]
        steps["observation"]["width"] = 1 - np.append(gripper, 0)[:, None].astype(np.float32)
        if number == 5:
            steps["action"][:-1, 6] = 1 - gripper


def reset_final_observations(data):
    for number in range(len(data) - 1):
        data[number]["observation"][-1] = data[number + 1]["observation"][0]


def shift_rewards(data):
    for steps in data:
        steps["reward"] = np.roll(steps["reward"], 1)


def forget_end(data):
    data[2]["is_terminal"][:] = False
    data[2]["discount"][:] = 1


def mark_time_limit(data):
    for number in (1, 3):
        data[number] = finish_steps(data[number], terminal=True)


def lengthen(data):
    data[1] = make_walker_episode(1, 121)


def add_episode(data, num_steps=1):
    steps = {name: data[1][name][:num_steps].copy() for name in ("observation", "action", "reward")}
    data.append(finish_steps(steps, terminal=False))


def repeat_episodes(data):
    """Repeats an episode, and one with a single transition, which may be equal by chance."""
    data.append(data[2])
    for _ in range(2):
        add_episode(data, 2)


def stop_gripper_at_minus_one(data):
    gripper = data[2]["action"][:-1, 6]
    gripper[gripper == 0] = -1


#: Name of the defect, dataset, mutation of its episodes; the check that finds it, the number of steps, episodes or
#: elements, the first episode and step; and further checks that the defect implies.
# fmt: off
DEFECTS = [
    ("NaN in a joint", "arm", fill("observation.joints", (7, 2), np.nan), "non-finite", (1, 2, 7)),
    ("Inf in a reward", "walker", fill("reward", 7, np.inf), "non-finite", (1, 2, 7)),
    ("placeholder of a missing value", "walker", fill("observation", (7, 2), -1e9), "huge-values", (1, 2, 7),
     "observation-jump"),
    ("action without any change", "walker", fill_all("action", slice(-1), 0.3), "constant-field", (652, 0, 0),
     "repeated-actions"),
    ("camera without any change", "arm", fill_all("observation.wrist", ALL, 90), "constant-field", (348, 0, 0),
     "uniform-images", "frozen-camera"),
    ("dead joint", "arm", fill_all("observation.joints", (ALL, 4), 0.1), "zero-variance-dimension", (1, 0, 0)),
    ("unused action", "walker", fill_all("action", (ALL, 1), 0), "zero-variance-dimension", (1, 0, 0)),
    ("dropped observation", "walker", fill("observation", 30, 0), "zero-observations", (1, 2, 30)),
    ("joints frozen in one episode", "arm", fill("observation.joints", ALL, 0.2), "frozen-field", (1, 2, None)),
    ("action stuck in one episode", "walker", fill("action", (slice(-1), 1), 0.4), "frozen-field", (1, 2, None)),
    ("spike of a sensor", "walker", fill("observation", (30, 2), 20), "observation-jump", (2, 2, 30)),
    ("teleport", "arm", fill("observation.joints", (slice(20, None), 1), add(2)), "observation-jump", (1, 2, 20)),
    ("two episodes without an end between them", "walker", join_episodes, "observation-jump", (1, 0, 60),
     "episode-longer-than-limit"),
    ("degrees in one episode", "arm", fill("observation.joints", ALL, scale(57.3)), "mixed-scales", (1, 2, 0)),
    ("actions in per cent", "walker", fill("action", ALL, scale(100)), "mixed-scales", (1, 2, 0)),
    ("repeated frame", "walker", repeat_step, "duplicate-frames", (1, 2, 31)),
    ("action outside of the bounds", "walker", fill("action", (30, 1), 1.5), "actions-out-of-bounds", (1, 2, 30)),
    ("action far outside", "arm", fill("action", (30, 1), -9), "actions-out-of-bounds", (1, 2, 30)),
    ("saturated actions", "walker", fill_all("action", slice(-1), saturate), "actions-at-bounds", (637, 0, 0)),
    ("action stuck at its bound", "walker", fill_all("action", (slice(5, -1), 1), 1), "actions-at-bounds", (613, 0, 5)),
    ("idle robot", "arm", fill("action", slice(5, 25), 0), "repeated-actions", (19, 2, 6)),
    ("black images", "arm", fill("observation.front", slice(5, 8), 0), "black-images", (3, 2, 5)),
    ("blue screen", "arm", fill("observation.front", 5, (0, 0, 255)), "uniform-images", (1, 2, 5)),
    ("frozen camera", "arm", freeze_front_camera, "frozen-camera", (14, 2, 11)),
    ("rewards one row late", "arm", shift_rewards, "reward-in-last-step", (7, 0, 40)),
    ("success that is not terminal", "arm", forget_end, "end-disagrees-with-reward", (1, 2, 41)),
    ("terminal end without reward", "arm", fill("reward", ALL, 0), "end-disagrees-with-reward", (1, 2, 41)),
    ("discount 0 inside of an episode", "walker", fill("discount", 30, 0), "discount-disagrees-with-end", (1, 2, 30)),
    ("resets among the steps", "walker", insert_resets, "reset-steps", (7, 1, 0), "episode-longer-than-limit"),
    ("resets after final observations that are not stored", "walker", insert_resets_after_unknown_ends, "reset-steps",
     (4, 1, 0), "episode-longer-than-limit"),
    ("final observations of the next episodes", "walker", reset_final_observations, "reset-observations", (7, 0, 59)),
    ("length that the rows contradict", "walker", contradict_length, "contradiction", (1, 2, None)),
    ("end flag without transitions", "walker", add_episode, "single-step-episodes", (1, 8, None)),
    ("episode stored twice", "walker", repeat_episodes, "duplicate-episodes", (1, 8, None)),
    ("episode beyond the limit", "walker", lengthen, "episode-longer-than-limit", (1, 1, 100)),
    ("timeouts marked terminal", "walker", mark_time_limit, "time-limit-marked-terminal", (2, 1, 99)),
    ("clock set back", "arm", fill("timestamp", slice(20, None), add(-1)), "timestamps-not-increasing", (1, 2, 20)),
    ("dropped frames", "arm", fill("timestamp", slice(20, None), add(0.5)), "dropped-frames", (1, 2, 20)),
    ("uneven clock", "arm", fill("timestamp", slice(10, 12), add(0.04)), "timestamp-drift", (2, 2, 10)),
    ("slow clock", "arm", fill("timestamp", ALL, scale(1.3)), "mixed-rates", (42, 2, None)),
    ("clocks that are not those of fps", "arm", run_at_half_rate, "contradicting-rate", (348, 0, None)),
    ("rows in another file", "walker", contradict("stale-index"), "stale-index", (1, 2, None)),
    ("unused frames of a video", "walker", contradict("video-span"), "video-span", (1, 2, None)),
    ("frame_index shuffled", "walker", contradict("shuffled-rows"), "shuffled-rows", (1, 2, None)),
    ("gripper that is inverted at all times", "arm", invert_gripper, "inverted-gripper", (1, 5, None)),
    ("gripper that is inverted unlike its width", "arm", invert_random_gripper, "inverted-gripper", (1, 5, None)),
    ("missing instruction", "arm", fill("language_instruction", ALL, b" "), "missing-text", (42, 2, 0)),
    ("gripper from -1 to 1", "arm", stop_gripper_at_minus_one, "mixed-conventions", (1, 2, None)),
    ("rewards of -1 and 0", "arm", fill("reward", slice(-1), add(-1)), "mixed-conventions", (1, 2, None),
     "end-disagrees-with-reward"),
    ("last row with an action", "walker", fill("action", -1, 0.5, (1,)), "mixed-conventions", (1, 1, None)),
]
# fmt: on


@pytest.mark.parametrize("name", MAKERS)
def test_clean_episodes_give_no_finding(name):
    found = check_dataset(make_source(make_episodes(name)))
    assert [finding.check for finding in found] == ["sparse-final-reward"] * (name == "arm")
    assert [finding for finding in found if finding.severity != "info"] == []


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect[0] for defect in DEFECTS])
def test_seeded_defect_is_found_by_its_check_alone(defect):
    _, name, mutate, expected, place, *implied = defect
    data = make_episodes(name)
    mutate(data)
    found = [finding for finding in check_dataset(make_source(data)) if finding.severity != "info"]
    assert {expected} <= {finding.check for finding in found} <= {expected, *implied}
    first = next(finding for finding in found if finding.check == expected)
    assert (first.count, first.episode, first.step) == place


def test_each_check_has_a_defect_or_is_an_info():
    tested = {defect[3] for defect in DEFECTS}
    assert tested == {name for name, (severity, *_) in CHECKS.items() if severity != "info"}
    assert {severity for severity, *_ in CHECKS.values()} == set(SEVERITIES)


def test_messages_about_rates_state_both(tmp_path):
    data = make_episodes("arm")
    run_at_half_rate(data)
    (finding,) = [found for found in check_dataset(make_source(data)) if found.check == "contradicting-rate"]
    assert finding.message == "the times run at 5 Hz, but fps in the metadata is 10"
    data[0]["fps"] = 10
    data[2]["timestamp"] = data[2]["timestamp"][np.random.default_rng(0).permutation(len(data[2]["timestamp"]))]
    found = {one.check: one for one in check_dataset(make_source(data)) if "timestamp" in one.field}
    assert {*found} == {"timestamps-not-increasing", "contradicting-rate"} and found["contradicting-rate"].episode == 0
    joined = [make_episodes("arm"), make_episodes("arm")]
    fill_all("timestamp", ALL, scale(2))(joined[1])
    sources = [replace(make_source(part), metadata={"fps": fps}) for part, fps in zip(joined, (10, 5), strict=True)]
    source = concatenate_sources(sources)
    assert source.warnings == ("episodes in memory and 1 more have different rates (fps): 10, 5",)
    messages = [found.message for found in check_dataset(source) if found.check == "mixed-rates"]
    assert messages == ["these episodes run at 5 Hz, but 8 others at 10 Hz"]


def test_depth_is_not_checked_per_pixel():
    random = np.random.default_rng(0)
    data = make_episodes("arm")
    for steps in data:
        depth = random.integers(400, 4000, (len(steps["action"]), 24, 24, 1))
        depth[:, :8] = 0
        steps["observation"]["depth"] = depth.astype(np.uint16)
        steps["observation"]["metres"] = (depth / 1000).astype(np.float32) + (steps is data[3])
    assert [found.check for found in check_dataset(make_source(data))] == ["sparse-final-reward"]
    data[2]["observation"]["depth"][5] = 0
    first = check_dataset(make_source(data))[0]
    assert (first.check, first.episode, first.step) == ("black-images", 2, 5)


def test_shuffled_rows_are_named(tmp_path):
    order = np.array([2, 0, 1, 3])
    frame_index = np.concatenate([np.arange(4), np.arange(6), order])
    columns = {"frame_index": frame_index}
    source = load(write_sample(tmp_path / "x", (4, 6, 4), columns=columns, features={CAMERA: None}))
    (finding,) = [found for found in check_dataset(source) if found.field == "frame_index"]
    assert (finding.check, finding.episode, finding.step) == ("shuffled-rows", 2, 0)


# --- infos


def test_rewards_in_last_transitions_only_are_an_info():
    (finding,) = check_dataset(make_source(make_episodes("arm")))
    assert (finding.check, finding.severity, finding.count) == ("sparse-final-reward", "info", 7)


def test_constant_rewards_are_an_info_unless_they_are_assumed():
    data = make_episodes("walker")
    fill_all("reward", slice(-1), 1)(data)
    source = make_source(data)
    (finding,) = check_dataset(source)
    assert (finding.check, finding.message) == ("constant-reward", "all rewards are 1")
    assert check_dataset(replace(source, assumed_fields=("reward",))) == []


def test_float_images_up_to_255_are_an_info_but_mixed_with_others_a_warning():
    data = make_episodes("arm")
    for steps in data:
        steps["observation"]["front"] = steps["observation"]["front"].astype(np.float32)
    assert [finding.check for finding in check_dataset(make_source(data))] == ["float-images", "sparse-final-reward"]
    data[3]["observation"]["front"] /= 255
    first = check_dataset(make_source(data))[0]
    assert (first.check, first.episode) == ("mixed-conventions", 3)


def test_jump_at_the_start_of_an_episode_is_an_info():
    data = make_episodes("walker")
    fill("observation", slice(0, 2), add(9))(data)
    assert [(found.check, found.severity) for found in check_dataset(make_source(data))] == [
        ("observation-jump", "info")
    ]


def test_elements_that_may_be_rare_events_are_an_info_in_few_episodes():
    data = make_episodes("walker")
    fill_all("observation", (ALL, 3), 1)(data)
    (finding,) = check_dataset(make_source(data[:4]))
    assert (finding.check, finding.severity) == ("zero-variance-dimension", "info")
    (finding,) = check_dataset(make_source(data))
    assert (finding.check, finding.severity) == ("zero-variance-dimension", "warning")
    assert finding.message == "element 3 of 8 never change"


# --- limits


@pytest.mark.parametrize(("num_terminal", "expected"), [(1, []), (2, ["time-limit-marked-terminal"])])
def test_time_limit_follows_from_truncated_episodes(num_terminal, expected):
    data = make_episodes("walker")
    for number in range(num_terminal):
        data[2 * number] = finish_steps(make_walker_episode(2 * number, 101), terminal=True)
    assert [finding.check for finding in check_dataset(load(data))] == expected


def test_episode_beyond_the_length_of_most_truncated_episodes_is_found():
    data = make_episodes("walker")
    data[1] = make_walker_episode(1, 201)
    (finding,) = check_dataset(load(data))
    assert (finding.check, finding.episode, finding.step) == ("episode-longer-than-limit", 1, 100)


def test_all_terminal_episodes_of_the_maximal_length_are_found():
    data = [finish_steps(make_walker_episode(seed, 81), terminal=True) for seed in range(4)]
    (finding,) = check_dataset(load(data))
    assert (finding.check, finding.count) == ("time-limit-marked-terminal", 4)


# --- real data

REAL = [
    *("d4rl/hopper_medium-v2.hdf5", "d4rl/invertedpendulum_random-v2.hdf5", "d4rl/pendulum_mixed-v2.hdf5"),
    *("formats/atari/replay_logs", "formats/lerobot/v2.1/c1", "formats/lerobot/v2.1/c2", "formats/lerobot/v3.0/c2"),
    *("formats/lerobot/v3.0/c3", "formats/neorl/HalfCheetah-v3-low-4-train-noise.npz"),
    *("formats/neorl/Hopper-v3-low-2-val-noise.npz", "formats/neorl/Hopper-v3-low-8-train-noise.npz"),
    *("formats/ogbench/cube-single-play-v0-val.npz", "formats/ogbench/pointmaze-medium-navigate-v0.npz"),
    *("formats/ogbench/puzzle-3x3-play-v0-val.npz", "formats/ogbench/visual-cube-single-play-v0-val.npz"),
    *("formats/rlds/a1/pusher_demos/1.0.0", "formats/rlds/a2/openx_boundary/1.0.0"),
    *(
        "formats/rlds/a3/roboturk_like/1.0.0",
        "formats/rlds/a4/nested_cameras/1.0.0",
        "formats/robomimic/d1_low_dim.hdf5",
    ),
    *("formats/robomimic/d2_image_no_next_obs.hdf5", "formats/robomimic/d3_done_mode_0.hdf5"),
    *("formats/robomimic/d3_done_mode_1.hdf5", "formats/robomimic/d3_done_mode_2.hdf5"),
    *("formats/vd4rl/cartpole_swingup/64px", "formats/vd4rl/drqv2_cartpole_swingup/buffer"),
    *("minari/classic/pendulum-dict/dev-v0", "minari/mujoco/hopper/dev-v0", "rlds/physics_rlds/hopper_flat/1.0.0"),
    *("rlds/physics_rlds/pendulum_dict/1.0.0", "rlds/physics_rlds/pendulum_pixels/1.0.0"),
    *("rlds_prepared/d4rl_adroit_door/v0-human/1.1.0", "rlds_prepared/d4rl_mujoco_hopper/v0-medium/1.2.0"),
    *(
        "rlds_prepared/d4rl_mujoco_halfcheetah/v1-medium-replay/1.2.0",
        "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0",
    ),
    *("rlds_prepared/rlu_control_suite/cartpole_swingup/1.0.0",),
]


@pytest.mark.parametrize("name", mark_slow_except(set(REAL[::6]) - {"rlds/physics_rlds/pendulum_pixels/1.0.0"}, REAL))
def test_clean_samples_give_no_false_alarm(data, name):
    source = load(data / name, split="val" if name.startswith("formats/rlds/a1") else None)
    assert [finding for finding in check_dataset(source) if finding.severity != "info"] == []


def test_times_of_lerobot_are_checked_without_being_read_as_a_field(data, tmp_path):
    shutil.copytree(data / "formats/lerobot/v2.1/c1", tmp_path / "c1")
    path = tmp_path / "c1/data/chunk-000/episode_000001.parquet"
    table = parquet.read_table(path)
    number = table.column_names.index("timestamp")
    times = pa.array(table["timestamp"].to_numpy() * np.float32(1.2))
    parquet.write_table(table.set_column(number, "timestamp", times), path)
    found = {finding.check: finding for finding in check_dataset(load(tmp_path / "c1"))}
    assert (found["mixed-rates"].episode, found["mixed-rates"].step) == (1, None)


def test_actions_outside_of_the_action_space_are_found(data):
    source = load(data / "minari/mujoco/hopper/dev-v0")
    episodes = list(source)
    episodes[1].steps["action"][5, 0] = 1.01
    (finding,) = check_dataset(replace(source, read=lambda: iter(episodes)))
    assert (finding.check, finding.episode, finding.step) == ("actions-out-of-bounds", 1, 5)


# --- parts


def test_blocks_do_not_change_the_findings(monkeypatch):
    data = make_episodes("arm")
    for defect in DEFECTS:
        if defect[0] in ("teleport", "slow clock", "idle robot", "black images", "missing instruction"):
            defect[2](data)
    together = check_dataset(make_source(data))
    monkeypatch.setattr("rlds2reverb.types.episode_batches.MAX_BATCH_BYTES", 0)
    assert check_dataset(make_source(data)) == together and len(together) == 6


def test_irregular_episodes_are_skipped():
    source = make_source(make_episodes("walker"))
    regular, other, uneven = (next(iter(source)) for _ in range(3))
    empty = replace(regular, steps={name: column[:0] for name, column in regular.steps.items()})
    other.steps["action"] = other.steps["action"].astype(np.float64)
    checks = DatasetChecks(source)
    uneven.steps["reward"] = uneven.steps["reward"][:-1]
    for batch in batch_episodes([regular, other, empty, uneven]):
        checks.add_batch(batch)
    assert checks.finish() == []


def test_largest_values_do_not_depend_on_the_parts():
    values = np.random.default_rng(0).random((900, 3)) ** 9
    values[[5, 700], 1] = 50
    largest = LargestValues(3)
    for first in range(0, 900, 70):
        largest.add(values[first : first + 70], np.arange(first, min(first + 70, 900)))
    np.testing.assert_array_equal(largest.values, np.sort(values, axis=0)[::-1][:129])
    (outlier,) = largest.find_outliers(4.0)
    assert outlier[0] == 1 and sorted(outlier[1].tolist()) == [5, 700]


def test_runs_are_found_by_their_length():
    flags = np.array([1, 1, 0, 1, 1, 1, 0, 1], bool)
    assert find_runs(flags, 3) == [(3, 6)]
    assert find_runs(flags, 2) == [(0, 2), (3, 6)] and find_runs(flags[:0], 2) == []
