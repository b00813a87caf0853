"""Mappings: each operation against NumPy on whole columns, laws, round trips between formats, and errors."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from rlds2reverb import StepOffsets, batches, load, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.datasets.source import keep_images_encoded
from rlds2reverb.errors import SourceError
from rlds2reverb.types.episodes import FinalRow, find_errors
from rlds2reverb.types.specs import leaves

LIFT = "formats/robomimic/d1_low_dim.hdf5"
PARTS = ["observation.robot0_eef_pos", "observation.robot0_eef_quat", "observation.robot0_gripper_qpos"]


def make_log(num_actions=6, *, has_end=True, terminated=False, **changes):
    """Returns an episode of an arm with 3 joints, a gripper and a camera, whose numbers tell their row."""
    rows = np.arange(num_actions + has_end)
    state = (10 * rows[:, None] + np.arange(4)).astype(np.float32)
    return {
        "observations": {"state": state, "image": np.tile(rows[:, None, None, None], (4, 6, 3)).astype(np.uint8)},
        "actions": (100 + 10 * rows[:num_actions, None] + np.arange(4)).astype(np.float32),
        "rewards": rows[:num_actions].astype(np.float32),
        "terminated": terminated,
        "task": np.array([b"pick up"] * num_actions, object),
        **changes,
    }


def read(mapping, *logs):
    """Returns the mapped episodes, which are valid."""
    source = load(list(logs) or [make_log()], mapping=mapping)
    episodes = list(source)
    for episode in episodes:
        assert not find_errors(episode, source.step_spec)
    return episodes


def get(episode, *keys):
    part = episode.steps
    for key in keys:
        part = part[key]
    return part


def assert_equal(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert [path for path, _ in one.columns] == [path for path, _ in other.columns]
        for (_, column), (_, original) in zip(one.columns, other.columns, strict=True):
            np.testing.assert_array_equal(column, original)
            assert column.dtype == original.dtype


# --- fields


def test_fields_move_join_and_split_as_in_numpy():
    (before,) = read({"rename": {"task": "task"}})
    (after,) = read(
        {
            "rename": {"observation.image": "observation.images.front", "task": "observation.task"},
            "split": {"action": {"action.arm": 3, "action.gripper": 1}},
            "join": {"observation.both": {"from": ["observation.state", "reward"], "names": list("abcde")}},
            "constant": {"task": "lift", "reward": 0.5, "observation.bias": [1, 2]},
            "copy": {"action.arm": "arm"},
        }
    )
    state, actions = get(before, "observation", "state"), get(before, "action")
    joined = np.concatenate([state, get(before, "reward")[:, None]], axis=1)
    np.testing.assert_array_equal(get(after, "observation", "both"), joined)
    np.testing.assert_array_equal(get(after, "action", "arm"), actions[:, :3])
    np.testing.assert_array_equal(get(after, "action", "gripper"), actions[:, 3:])
    np.testing.assert_array_equal(get(after, "arm"), actions[:, :3])
    np.testing.assert_array_equal(get(after, "observation", "images", "front"), get(before, "observation", "image"))
    assert get(after, "observation", "task").tolist()[:2] == [b"pick up"] * 2
    assert get(after, "task").tolist() == [b"lift"] * 6 + [b""]
    assert get(after, "reward").tolist() == [0.5] * 6 + [0]
    assert get(after, "observation", "bias").tolist() == [[1, 2]] * 7


@given(st.permutations(["observation.state", "observation.image", "task", "reward"]))
def test_renaming_back_is_the_identity(order):
    there = {old: f"{'observation.' if old.startswith('o') else ''}x{place}" for place, old in enumerate(order)}
    there["reward"] = "x.reward"
    back = {new: old for old, new in there.items()}
    source = load([make_log()])
    mapped = load(
        source, mapping=[{"rename": there}, {"constant": {"reward": 1}}, {"drop": ["reward"]}, {"rename": back}]
    )
    assert_equal(mapped, source)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_joining_parts_of_a_split_restores_the_field(sizes):
    actions = np.arange(5 * sum(sizes), dtype=np.float32).reshape(5, -1)
    source = load([make_log(5, actions=actions)])
    parts = {f"action.part{place}": size for place, size in enumerate(sizes)}
    mapped = load(source, mapping={"split": {"action": parts}, "join": {"action": list(parts)}})
    assert_equal(mapped, source)


def test_parts_of_tuples_become_fields():
    rows = np.arange(7, dtype=np.float32)
    log = make_log(observations=(rows, rows[:, None] + 10, {"x": rows + 20}))
    (episode,) = read({"rename": {"observation.1": "observation.second"}, "drop": ["observation.2.x"]}, log)
    assert {name: column[0].item() for name, column in get(episode, "observation").items()} == {"0": 0, "second": 10}
    paths = ["observation.2.x", "observation.0", "observation.1"]
    (episode,) = read({"join": {"observation.state": paths}}, log)
    assert get(episode, "observation", "state")[0].tolist() == [20, 0, 10]


def test_fields_can_be_exchanged():
    swap = {"observation.state": "action", "action": "observation.state"}
    (episode,) = read({"rename": swap})
    assert get(episode, "observation", "state")[0].tolist() == [100, 101, 102, 103]


def test_casts_keep_values_or_name_the_step():
    (episode,) = read({"cast": {"observation": "float64", "action": "int16"}})
    assert get(episode, "observation", "image").dtype == np.float64 and get(episode, "action").dtype == np.int16
    actions = np.zeros((4, 1))
    actions[2] = 0.5
    with pytest.raises(SourceError, match=r"'action' must have values that int8 can .* episode 1, step 2"):
        list(
            load(
                [make_log(4, actions=np.zeros((4, 1))), make_log(4, actions=actions)],
                mapping={"cast": {"action": "int8"}},
            )
        )


def test_fields_of_episodes_and_datasets_become_fields_of_steps(data):
    source = replace(load(data / LIFT), metadata={"site": "lab 3"})
    mapped = load(source, mapping={"copy": {"mask.train": "is_training", "site": "observation.site"}})
    for episode, original in zip(mapped, source, strict=True):
        assert get(episode, "is_training")[:-1].all() == original.metadata["mask"]["train"]
        assert set(get(episode, "observation", "site")) == {b"lab 3"}


def test_field_that_a_later_episode_lacks_raises(data):
    source = load(data / LIFT)
    cut = replace(source, read=lambda: (replace(e, metadata={} if e.index else e.metadata) for e in source.read()))
    with pytest.raises(SourceError, match="episode 1 must have the field 'mask.train', as the first one"):
        list(load(cut, mapping={"copy": {"mask.train": "is_training"}}))


def test_bounds_and_names_move_with_their_fields():
    space = spaces.Dict({"a": spaces.Box(0, 4, (2,)), "b": spaces.Box(-1, np.array([1, 2], np.float32), (2,))})
    observations = {"a": np.zeros((4, 2), np.float32), "b": np.zeros((4, 2), np.float32)}
    source = load([make_log(3, observations=observations)])
    source = replace(source, observation_space=space, action_space=spaces.Box(-9, 9, (4,)))
    source = replace(source, metadata={"feature_names": json.dumps({"observation.b": ["x", "y"]})})
    mapped = load(source, mapping={"join": {"observation.state": ["observation.b", "observation.a"]}})
    spec = mapped.step_spec["observation"]["state"]
    assert (spec.minimum.tolist(), spec.maximum.tolist()) == ([-1, -1, 0, 0], [1, 2, 4, 4])
    assert json.loads(mapped.metadata["feature_names"]) == {"observation.state": ["x", "y", "a_0", "a_1"]}
    assert mapped.action_space == source.action_space
    back = load(mapped, mapping={"split": {"observation.state": {"observation.q": 1, "observation.r": 3}}})
    assert json.loads(back.metadata["feature_names"]) == {"observation.q": ["x"], "observation.r": ["y", "a_0", "a_1"]}
    assert back.step_spec["observation"]["r"].maximum.tolist() == [2, 4, 4]
    renamed = load(source, mapping={"rename": {"observation.b": "observation.z"}})
    assert json.loads(renamed.metadata["feature_names"]) == {"observation.z": ["x", "y"]}
    relative = load(source, mapping={"rename": {"action": "a"}, "constant": {"action": [1.5, 2]}})
    assert relative.step_spec["action"].minimum is None


# --- values


@pytest.mark.parametrize("log", [make_log(), make_log(has_end=False), make_log(has_end=False, terminated=True)])
def test_deltas_are_relative_to_the_state_of_their_step(log):
    delta = {"delta": {"action": {"state": "observation.state", "except": [-1]}}}
    (before,), (after,) = load([log]), read(delta, log)
    expected = get(before, "action").copy()
    for step in range(6):
        expected[step, :3] -= get(before, "observation", "state")[step, :3]
    np.testing.assert_array_equal(get(after, "action"), expected)


@given(arrays.arrays(np.float32, (4, 2), elements=st.floats(-100, 100, width=32)))
def test_absolute_actions_of_deltas_are_the_actions(actions):
    source = load([make_log(4, actions=actions)])
    mapped = load(
        source, mapping={"delta": {"action": "observation.state"}, "absolute": {"action": "observation.state"}}
    )
    (got,), (expected,) = mapped, source
    np.testing.assert_allclose(got.steps["action"], expected.steps["action"], atol=1e-4)


def test_grippers_become_binary_at_a_threshold():
    actions = np.array([[0.1, 0.2], [0.1, 0.5], [0.1, 0.9]], np.float32)
    source = load([make_log(3, actions=actions)])
    source = replace(source, metadata={"feature_names": json.dumps({"action": ["joint", "gripper"]})})
    mapping = {"binarize": {"action": {"element": "gripper", "threshold": 0.5, "values": [-1, 1]}}}
    (episode,) = load(source, mapping=mapping)
    np.testing.assert_array_equal(episode.steps["action"][:3], np.float32([[0.1, -1], [0.1, 1], [0.1, 1]]))
    assert not episode.steps["action"][3].any()  # It has no meaning.


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_cropped_and_resized(channels):
    images = np.random.default_rng(0).integers(0, 256, (4, 9, 12, channels), np.uint8)
    depth = np.arange(4 * 4 * 4, dtype=np.uint16).reshape(4, 4, 4, 1)
    log = make_log(3, observations={"a": images, "b": images, "depth": depth})
    (episode,) = read(
        {
            "resize": {"observation.a": [3, 4], "observation.depth": [2, 2]},
            "crop": {"observation.b": [5, 4]},
        },
        log,
    )
    for got, image in zip(get(episode, "observation", "a"), images, strict=True):
        expected = Image.fromarray(image[..., 0] if channels == 1 else image).resize((4, 3), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(got, np.asarray(expected).reshape(3, 4, channels))
    np.testing.assert_array_equal(get(episode, "observation", "b"), images[:, 2:7, 4:8])
    assert set(get(episode, "observation", "depth").ravel()) <= set(depth.ravel())
    for top, left, height, width in ((1, 2, 3, 4), (0, 0, 9, 12), (6, 8, 3, 4)):
        (corner,) = read({"crop": {"observation.b": [top, left, height, width]}}, log)
        part = images[:, top : top + height, left : left + width]
        np.testing.assert_array_equal(get(corner, "observation", "b"), part)


def test_images_stay_encoded_unless_they_are_changed(data):
    path = data / "formats/rlds/a2/openx_boundary/1.0.0"
    renamed = load(path, mapping={"rename": {"observation.image": "observation.front"}, "select": {"episodes": ":2"}})
    assert keep_images_encoded(renamed).decodes_images
    assert isinstance(keep_images_encoded(renamed).first_episode.steps["observation"]["front"][0], bytes)
    resized = load(path, mapping={"resize": {"observation.image": [8, 8]}})
    assert not keep_images_encoded(resized).decodes_images
    assert resized.step_spec["observation"]["image"].shape == (8, 8, 3)


# --- episodes


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"episodes": "1:3"}, [1, 2]),
        ({"episodes": ":40%"}, [0, 1]),
        ({"episodes": [0, 1, 4]}, [0, 1, 4]),
        ({"length": [4, None]}, [2, 3, 4]),
        ({"return": [None, 3]}, [0, 1, 2]),
        ({"terminal": True}, [1, 3]),
        ({"task": "PICK*"}, [0, 2, 4]),
        ({"task": ["place 1", "pick 2"], "length": [3, None]}, [1, 2]),
        ({"success": True}, [1, 2]),
    ],
)
def test_episodes_are_selected(conditions, expected):
    logs = [
        make_log(
            number + 2,
            terminated=number % 2 == 1,
            rewards=np.append(np.zeros(number + 1), number + 1),
            task=np.array([f"{'pick' if number % 2 == 0 else 'place'} {number}".encode()] * (number + 2), object),
            success=np.arange(number + 2) == (number + 1 if number in (1, 2) else -1),
        )
        for number in range(5)
    ]
    episodes = read({"select": conditions}, *logs)
    assert [episode.num_transitions - 2 for episode in episodes] == expected
    assert [episode.index for episode in episodes] == list(range(len(expected)))


def test_rewards_of_zero_and_one_tell_success(data):
    selected = load(data / LIFT, mapping={"select": {"success": True}})
    expected = [episode for episode in load(data / LIFT) if episode.is_terminal]
    assert_equal(selected, expected)
    ends = [make_log(4, rewards=np.eye(4)[step]) for step in (1, 2, 3)]
    assert [episode.total_reward for episode in read({"select": {"success": True}}, *ends)] == [1]
    with pytest.raises(SourceError, match="episode 0 must tell whether it succeeds"):
        list(load([make_log()], mapping={"select": {"success": True}}))


@pytest.mark.parametrize("split", ["[:50%]", "train[:3]", "[0:3]"])
def test_every_format_has_slices(data, split):
    for path in (LIFT, "d4rl/invertedpendulum_random-v2.hdf5", "formats/lerobot/v3.0/c3"):
        source = load(data / path, split=split)
        whole = list(load(data / path, split="train" if split[0] == "t" and path == LIFT else None))
        count = round(len(whole) / 2) if "%" in split else 3
        assert source.count() == count and source.identify() != load(data / path).identify()
        assert_equal(source, whole[:count])
        assert_equal(source.read_range(1, 2), whole[1:2])


@pytest.mark.parametrize("log", [make_log(), make_log(has_end=False), make_log(has_end=False, terminated=True)])
def test_trimmed_episodes_keep_the_actions_between(log):
    (before,), (after,) = load([log]), read({"trim": {"start": 1, "end": 2}}, log)
    num_steps = before.num_steps - 3
    for path in (("observation", "state"), ("observation", "image")):
        np.testing.assert_array_equal(get(after, *path), get(before, *path)[1:-2])
    num_actions = num_steps - (after.final_row is not FinalRow.ACTION)
    np.testing.assert_array_equal(get(after, "action")[:num_actions], get(before, "action")[1 : 1 + num_actions])
    assert after.is_end_known == (before.final_row is not FinalRow.ACTION)
    assert not after.is_terminal and get(after, "discount").tolist() == [1] * num_steps


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("has_end", [False, True])
def test_final_observations_are_left_out_as_if_they_were_unknown(terminated, has_end):
    (after,) = read({"trim": {"final_observation": True}}, make_log(has_end=has_end, terminated=terminated))
    (unknown,) = load([make_log(has_end=False, terminated=terminated)])
    assert_equal([after], [unknown])
    assert after.final_row is unknown.final_row


@pytest.mark.parametrize("log", [make_log(7), make_log(7, has_end=False), make_log(7, has_end=False, terminated=True)])
@pytest.mark.parametrize(("old", "new", "rows"), [(30, 10, [0, 3, 6]), (50, 20, [0, 2, 5]), (10, 10, list(range(7)))])
def test_rates_are_changed_by_picking_averaging_and_adding(log, old, new, rows):
    source = replace(load([log]), metadata={"fps": old})
    mapping = {"rate": {"to": new, "average": ["observation.state"], "sum": ["action"]}}
    mapped = load(source, mapping=mapping)
    (before,), (after,) = source, mapped
    num_actions = before.num_steps - (before.final_row is not FinalRow.ACTION)
    for place, (start, stop) in enumerate(zip(rows, [*rows[1:], num_actions], strict=True)):
        if start < num_actions:
            block = slice(start, min(stop, num_actions))
            np.testing.assert_allclose(
                get(after, "observation", "state")[place], get(before, "observation", "state")[block].mean(0)
            )
            np.testing.assert_allclose(get(after, "action")[place], get(before, "action")[block].sum(0))
            assert get(after, "observation", "image")[place, 0, 0, 0] == start
            assert get(after, "reward")[place] == get(before, "reward")[block].sum()
    assert (mapped.metadata["fps"], after.final_row, after.is_terminal) == (new, before.final_row, before.is_terminal)
    assert get(after, "reward").sum() == get(before, "reward").sum()
    assert not find_errors(after, mapped.step_spec)


# --- formats, stores and commands


def test_robomimic_becomes_lerobot_with_a_state_and_a_task(data, tmp_path):
    mapping = {"join": {"observation.state": PARTS}, "constant": {"task": "lift the cube"}}
    write_dataset(load(data / LIFT, mapping=mapping), tmp_path / "lift", format="lerobot")
    table = pq.read_table(tmp_path / "lift/data/chunk-000/file-000.parquet")
    with h5py.File(data / LIFT) as file:
        demos = sorted(file["data"], key=lambda name: int(name[5:]))
        groups = [[file[f"data/{demo}/obs/{part.split('.')[1]}"][()] for part in PARTS] for demo in demos]
    expected = np.concatenate([np.concatenate(group, axis=1) for group in groups])
    np.testing.assert_array_equal(np.stack(table["observation.state"].to_numpy()), expected)
    info = json.loads((tmp_path / "lift/meta/info.json").read_text())
    assert info["features"]["observation.state"]["names"][:4] == [f"robot0_eef_pos_{i}" for i in range(3)] + [
        "robot0_eef_quat_0"
    ]
    assert pq.read_table(tmp_path / "lift/meta/tasks.parquet").to_pylist() == [
        {"task_index": 0, "__index_level_0__": "lift the cube"}
    ]
    back = {"split": {"observation.state": dict(zip(PARTS, (3, 4, 2), strict=True))}, "drop": ["task"]}
    write_dataset(load(tmp_path / "lift", mapping=back), tmp_path / "lift.hdf5", format="robomimic")
    with h5py.File(data / LIFT) as file, h5py.File(tmp_path / "lift.hdf5") as written:
        for number, demo in enumerate(demos):
            for name in file[f"data/{demo}/obs"]:
                np.testing.assert_array_equal(
                    written[f"data/demo_{number}/obs/{name}"], file[f"data/{demo}/obs/{name}"]
                )


def test_mappings_are_a_part_of_the_identity(data, tmp_path):
    first, second = ({"constant": {"task": text}} for text in ("a", "b"))
    identities = [load(data / LIFT, mapping=mapping).identify() for mapping in (first, first, second)]
    assert identities[0] == identities[1] != identities[2] and None not in identities
    for text in ("a", "b", "a"):
        items = StepOffsets({"observation.object": [0, 1], "task": 0})
        source = load(data / LIFT, mapping={"constant": {"task": text}})
        (batch,) = batches(source, 300, items=items, epochs=1, store_dir=tmp_path)
        assert set(batch["task"]) == {text.encode()}
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def test_yaml_files_have_texts_numbers_and_lists_of_operations(tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text("- select: {episodes: 1:3}\n- select: {return: [1e-3, null]}\n- constant: {a: 2, b: on it}\n")
    episodes = read(path, *[make_log(number + 2) for number in range(4)])
    assert len(episodes) == 2 and get(episodes[0], "a")[0] == 2 and get(episodes[0], "b")[0] == b"on it"
    (tmp_path / "map.json").write_text(json.dumps({"constant": {"a": 2}}))
    assert get(read(tmp_path / "map.json")[0], "a").dtype == np.int64


def test_validate_continues_after_a_first_episode_that_cannot_be_read(data, tmp_path, capsys):
    path = shutil.copytree(data / "formats/lerobot/v2.1/c1", tmp_path / "x")
    first = path / "data/chunk-000/episode_000000.parquet"
    first.write_bytes(b"")
    (tmp_path / "map.yaml").write_text("rename: {observation.state: observation.joints}\n")
    assert run(["validate", str(path), "--map", str(tmp_path / "map.yaml")]) == 2
    assert "x: INVALID (6 episodes, 77 steps, 1 error" in capsys.readouterr().out
    with pytest.raises(SourceError, match="episode_000000.parquet cannot be read"):
        list(load(path, mapping=tmp_path / "map.yaml"))
    for part in path.rglob("*.parquet"):
        part.write_bytes(b"")
    with pytest.raises(SourceError, match="episode_000000.parquet cannot be read"):
        load(path, mapping=tmp_path / "map.yaml")


def test_convert_and_inspect_print_the_fields_before_and_after(data, tmp_path, capsys):
    (tmp_path / "map.yaml").write_text(f"join: {{observation.state: [{', '.join(PARTS)}]}}\n")
    command = ["convert", str(data / LIFT), "--out", str(tmp_path / "lift"), "--format", "lerobot"]
    for arguments in (command, ["inspect", str(data / LIFT)]):
        assert run([*arguments, "--map", str(tmp_path / "map.yaml")]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["observation.robot0_eef_pos", "float64", "[3]"] in lines
        assert ["observation.state", "float64", "[9]"] in lines
        assert ["action", "float64", "[7]", "float64", "[7]"] in lines


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"renam": {"a": "b"}}, "mapping has no operation 'renam'; did you mean 'rename'?"),
        ({"rename": ["a"]}, "must have names and values under 'rename'"),
        ({"drop": {"a": "b"}}, "must have a list of paths under 'drop'"),
        ({}, "must be operations by name"),
        ([], "must be operations by name"),
        ({"constant": {"a": object}}, "must consist of names, numbers"),
        ({"rename": {"observation.stat": "a"}}, "no path 'observation.stat' .* did you mean 'observation.state'?"),
        ({"rename": {"observation.state": "observation.image"}}, "'observation.image' exists already"),
        ({"rename": {"observation.state": "observation/state"}}, "a path such as 'observation.state'"),
        ({"rename": {"is_last": "end"}}, "'is_last' cannot be changed"),
        ({"drop": ["action"]}, "must leave a field 'action'"),
        ({"join": {"a": []}}, "must list fields"),
        ({"join": {"a": {"from": ["action"], "names": "abcd"}}}, "with a list of 'names', got"),
        ({"join": {"a": ["observation.image", "action"]}}, r"'observation.image' must be numbers .*, got uint8 \["),
        (
            [{"constant": {"m": [[1, 2]]}}, {"join": {"a": ["m", "action"]}}],
            r"'m' must be numbers .*, got \S+ \[1, 2\]",
        ),
        ({"join": {"a": ["observation"]}}, "must be a single field, got a group of 'observation.image'"),
        ({"join": {"a": ["action", "action"]}}, "can be joined to 'a' once"),
        ({"join": {"a": {"from": ["observation.state"], "names": ["x"]}}}, "must have 4 names, got 1"),
        ([{"constant": {"n": 3}}, {"join": {"a": ["n", "observation.state"]}}], "cast 'n' to float32 first"),
        ({"split": {"action": {"a": 3}}}, r"sizes that add up to 4, got {'a': 3}"),
        ({"cast": {"task": "float32"}}, r"'task' must be numbers to be cast, got string \[\]"),
        ({"cast": {"action": "text"}}, "must be a number such as 'float32', got 'text'"),
        ({"cast": {"action": None}}, "must be a number such as 'float32', got None"),
        ({"constant": {"a": None}}, "must be a text, a number or a list"),
        ({"delta": {"action": {"states": 1}}}, "must name a state"),
        ({"delta": {"action": "observation.image"}}, "'observation.image' must be a vector of floats"),
        ([{"constant": {"p": [0.5]}}, {"delta": {"action": "p"}}], "'p' must have the elements of 'action'"),
        (
            {"delta": {"action": {"state": "observation.state", "except": [9]}}},
            "must have the element 9: a number below 4",
        ),
        (
            {"delta": {"action": "observation.state"}, "cast": {"observation": "float64"}},
            "must have 'delta' after 'cast', which changes 'observation', so that policies can undo it",
        ),
        (
            [{"delta": {"action": "observation.state"}}, {"rate": {"from": 20, "to": 10, "sum": ["action"]}}],
            "must have 'delta' after 'rate', which changes 'action'",
        ),
        ({"binarize": {"action": {"element": 0}}}, "must have a 'threshold'"),
        (
            {"cast": {"reward": "uint8"}, "binarize": {"reward": {"threshold": 3, "values": [-1, 1]}}},
            r"the values of 'reward' must be numbers that uint8 can represent, got \[-1, 1\]",
        ),
        (
            {"constant": {"reward": 200}, "cast": {"reward": "uint8"}, "rate": {"from": 20, "to": 10}},
            "the sum of 'reward' must be within the range of uint8, got a larger one in episode 0",
        ),
        ({"resize": {"action": [2, 2]}}, "must be an image with height, width and channels"),
        ({"resize": {"observation.image": [2]}}, r"must have \[height, width\] in pixels, got \[2\]"),
        ({"crop": {"observation.image": [9, 2]}}, "must be inside"),
        ({"crop": {"observation.image": [0, 3, 2, 9]}}, "must be inside"),
        ({"select": {"succes": True}}, "select must have conditions of episodes, success, .*, got 'succes'"),
        ({"select": {"success": 1}}, "'success' must be true or false"),
        ({"select": {"episodes": [3]}}, r"must have the episodes \[3\], but has 1"),
        ({"select": {"episodes": "a"}}, "must be a slice such as '10:20'"),
        ({"select": {"episodes": []}}, "must be a slice such as '10:20'"),
        ({"select": {"length": 3}}, r"'length' must be \[minimum, maximum\]"),
        ({"select": {"task": 3}}, r"'task' must be a text"),
        ({"select": {"task": "x"}}, "no episode of .* meets the conditions"),
        ({"trim": {"begin": 1}}, "trim must have numbers of steps as 'start' and 'end'"),
        ({"trim": {"final_observation": 1}}, "'final_observation' must be true or false"),
        ({"trim": {"start": 3, "end": 4}}, "episode 0 must have more than 7 transitions to be trimmed, got 6"),
        ({"rate": {"to": 10}}, r"rate must have 'to', in hertz and at most 'from' \(by default .* None\)"),
        ({"rate": {"from": 10, "to": 20}}, "at most 'from'"),
        ({"describe": {"observation.img": "png"}}, "no path 'observation.img'"),
    ],
)
def test_mappings_that_do_not_fit_raise(mapping, message):
    with pytest.raises(ValueError, match=message):
        list(load([make_log()], mapping=mapping))


@pytest.mark.parametrize(
    ("text", "message"),
    [("rename: {a: b}\nrename: {c: d}", "'rename' occurs twice"), ("rename: [", "cannot be read from"), ("3", "got 3")],
)
def test_files_that_are_no_mappings_raise(tmp_path, text, message):
    for name in ("map.yaml", "map.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load([make_log()], mapping=Path(tmp_path / "map.yaml"))
    with pytest.raises(FileNotFoundError):
        load([make_log()], mapping=tmp_path / "none.yaml")


def test_spec_of_a_mapped_dataset_is_that_of_every_episode(data):
    source = load(data / LIFT, mapping={"rate": {"from": 20, "to": 5}, "constant": {"task": "lift"}})
    specs = {tuple((path, column.dtype.str, column.shape[1:]) for path, column in leaves(e.steps)) for e in source}
    assert len(specs) == 1


# --- Embedded texts


def count_letters(text):
    return [len(text), text.count("p")]


def embed_unevenly(text):
    return np.zeros(len(text))


EMBED = {"embed": {"task": {"by": f"{__name__}:count_letters", "as": "observation.task"}}}


def test_texts_are_embedded_in_every_step_of_which_there_is_an_observation():
    logs = [make_log(2), make_log(3, has_end=False, task=np.array([b"put", b"put", b"drop it"], object))]
    first, second = read(EMBED, *logs)
    np.testing.assert_array_equal(get(first, "observation", "task"), [[7, 2]] * 3)
    np.testing.assert_array_equal(get(second, "observation", "task"), [[3, 1], [3, 1], [7, 1]])
    assert get(first, "observation", "task").dtype == np.float32 and get(first, "task")[0] == b"pick up"


def test_stores_of_different_functions_are_different(data, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    embed = {"task": {"by": "lengths:embed", "as": "observation.task"}}
    mapping, found = {"constant": {"task": "pick up"}, "embed": embed}, []
    for result in ("[len(text)]", "[2 * len(text)]"):
        (tmp_path / "lengths.py").write_text(f"def embed(text):\n    return {result}\n")
        monkeypatch.delitem(sys.modules, "lengths", raising=False)
        mapped = load(data / LIFT, mapping=mapping)
        found.append(
            next(iter(batches(mapped, 1, epochs=1, store_dir=tmp_path / "stores")))["observation"]["task"].item()
        )
    assert found == [7, 14]


@pytest.mark.parametrize(
    ("embed", "message"),
    [
        ({"task": "f"}, "'task' must have a function 'by' and a path 'as', got 'f'"),
        ({"reward": EMBED["embed"]["task"]}, "'reward' must be a text in each step, got float32"),
        ({"task": {"by": "nowhere:f", "as": "x"}}, "there is no module 'nowhere'"),
        ({"task": {"by": f"{__name__}:embed_unevenly", "as": "x"}}, "must return vectors of one size"),
    ],
)
def test_texts_that_cannot_be_embedded_are_named(embed, message):
    logs = [make_log(), make_log(task=np.array([b"go"] * 6, object))]
    with pytest.raises((SourceError, ValueError), match=message):
        list(load(logs, mapping={"embed": embed}))
