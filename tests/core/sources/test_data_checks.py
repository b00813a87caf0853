"""Thirty seeded defects, each found by its check and no other, and clean datasets without false alarms."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rlds2reverb import check_dataset, load

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
    source = load(episodes)
    return replace(source, env_spec=env_spec) if "timestamp" not in episodes[0] else source


# --- thirty defects


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


def shift_rewards(data):
    for steps in data:
        steps["reward"] = np.roll(steps["reward"], 1)


def forget_end(data):
    data[2]["is_terminal"][:] = False
    data[2]["discount"][:] = 1


def end_without_reward(data):
    data[2]["reward"][:] = 0


def close_truncated(data):
    data[1]["discount"][-3] = 0


def mark_time_limit(data):
    for number in (1, 3):
        data[number] = finish_steps(data[number], terminal=True)


def lengthen(data):
    data[1] = make_walker_episode(1, 121)


def single_step(data):
    data.append(
        finish_steps({name: data[1][name][:1].copy() for name in ("observation", "action", "reward")}, terminal=False)
    )


def stop_gripper_at_minus_one(data):
    gripper = data[2]["action"][:-1, 6]
    gripper[gripper == 0] = -1


def penalize_steps(data):
    data[2]["reward"][:-1] -= 1


def slow_clock(data):
    data[2]["timestamp"] *= 1.3


def skip_times(data):
    data[2]["timestamp"][20:] += 0.5


#: Name of the defect, dataset, mutation of its episodes, expected check, and further checks that it implies.
DEFECTS = [
    ("NaN in a joint", "arm", fill("observation.joints", (7, 2), np.nan), "non-finite", ()),
    ("Inf in a reward", "walker", fill("reward", 7, np.inf), "non-finite", ()),
    ("placeholder of a missing value", "walker", fill("observation", (7, 2), -1e9), "huge-values", ("observation-jump",)),
    ("action without any change", "walker", fill_all("action", slice(None, -1), 0.3), "constant-field", ("repeated-actions",)),
    ("camera without any change", "arm", fill_all("observation.wrist", slice(None), 90), "constant-field", ("uniform-images", "frozen-camera")),
    ("dead joint", "arm", fill_all("observation.joints", (slice(None), 4), 0.1), "zero-variance-dimension", ()),
    ("unused action", "walker", fill_all("action", (slice(None), 1), 0), "zero-variance-dimension", ()),
    ("dropped observation", "walker", fill("observation", 30, 0), "zero-observations", ()),
    ("joints frozen in one episode", "arm", fill("observation.joints", slice(None), 0.2), "frozen-field", ()),
    ("spike of a sensor", "walker", fill("observation", (30, 2), 20), "observation-jump", ()),
    ("teleport", "arm", fill("observation.joints", (slice(20, None), 1), lambda rows: rows + 2), "observation-jump", ()),
    ("degrees in one episode", "arm", fill("observation.joints", slice(None), lambda rows: rows * 57.3), "mixed-scales", ()),
    ("actions in per cent", "walker", fill("action", slice(None), lambda rows: rows * 100), "mixed-scales", ()),
    ("repeated frame", "walker", repeat_step, "duplicate-frames", ()),
    ("action outside of the bounds", "walker", fill("action", (30, 1), 1.5), "actions-out-of-bounds", ()),
    ("saturated actions", "walker", fill_all("action", slice(None, -1), lambda rows: np.clip(20 * rows, -1, 1)), "actions-at-bounds", ()),
    ("action stuck at its bound", "walker", fill_all("action", (slice(5, -1), 1), 1), "actions-at-bounds", ()),
    ("idle robot", "arm", fill("action", slice(5, 25), 0), "repeated-actions", ()),
    ("black images", "arm", fill("observation.front", slice(5, 8), 0), "black-images", ()),
    ("blue screen", "arm", fill("observation.front", 5, (0, 0, 255)), "uniform-images", ()),
    ("frozen camera", "arm", freeze_front_camera, "frozen-camera", ()),
    ("rewards one row late", "arm", shift_rewards, "reward-in-last-step", ()),
    ("success that is not terminal", "arm", forget_end, "end-disagrees-with-reward", ()),
    ("terminal end without reward", "arm", end_without_reward, "end-disagrees-with-reward", ()),
    ("discount 0 inside of an episode", "walker", close_truncated, "discount-disagrees-with-end", ()),
    ("end flag without transitions", "walker", single_step, "single-step-episodes", ()),
    ("episode stored twice", "arm", lambda data: data.append(data[2]), "duplicate-episodes", ()),
    ("episode beyond the limit", "walker", lengthen, "episode-longer-than-limit", ()),
    ("timeouts marked terminal", "walker", mark_time_limit, "time-limit-marked-terminal", ()),
    ("clock set back", "arm", fill("timestamp", slice(20, None), lambda rows: rows - 1), "timestamps-not-increasing", ()),
    ("dropped frames", "arm", skip_times, "dropped-frames", ()),
    ("slow clock", "arm", slow_clock, "timestamp-drift", ()),
    ("missing instruction", "arm", fill("language_instruction", slice(None), b" "), "missing-text", ()),
    ("gripper from -1 to 1", "arm", stop_gripper_at_minus_one, "mixed-conventions", ()),
    ("rewards of -1 and 0", "arm", penalize_steps, "mixed-conventions", ("end-disagrees-with-reward",)),
    ("last row with an action", "walker", fill("action", -1, 0.5, (1,)), "mixed-conventions", ()),
    ("two episodes without an end between them", "walker", join_episodes, "observation-jump", ("episode-longer-than-limit",)),
]  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_clean_episodes_give_no_finding(name):
    found = check_dataset(make_source(make_episodes(name)))
    assert [finding for finding in found if finding.severity != "info"] == []


@pytest.mark.parametrize(
    ("name", "mutate", "expected", "implied"), [defect[1:] for defect in DEFECTS], ids=[defect[0] for defect in DEFECTS]
)
def test_seeded_defect_is_found_by_its_check_alone(name, mutate, expected, implied):
    data = make_episodes(name)
    mutate(data)
    found = [finding for finding in check_dataset(make_source(data)) if finding.severity != "info"]
    for finding in found:
        print(finding)
    assert expected in {finding.check for finding in found} <= {expected, *implied}
