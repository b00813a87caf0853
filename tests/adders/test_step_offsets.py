"""`StepOffsets`: the steps of each field that a policy sees, and the last actions of truncated episodes."""

from dataclasses import replace

import numpy as np
import pytest
import tree

from rlds2reverb import batches, load
from rlds2reverb.adders import ChunkTransitions, StepOffsets, Transitions, check_adder
from rlds2reverb.datasets.source import Source
from rlds2reverb.types.episodes import Episode, from_transitions

LEROBOT = ("v2.1/c1", "v2.1/c2", "v3.0/c2", "v3.0/c3")


def make_episode(num_actions=3, *, terminated=False, is_known=False, first=10):
    """Returns an episode of actions 10, 11, .., of states 0.5 above, and of images 100 above, as `load` does."""
    actions = np.arange(first, first + num_actions, dtype=np.float32)[:, None]
    observations = {"state": actions[:, 0] + 0.5, "camera": {"front": (actions + 100).astype(np.uint8)}}
    final = {"state": np.float32(99.5), "camera": {"front": np.array([199], np.uint8)}} if is_known else None
    rewards = actions[:, 0]
    steps = from_transitions(observations, actions, rewards=rewards, terminated=terminated, final_observation=final)
    name = "unknown_final_observation" if terminated else "dropped_last_transition"
    return Episode(steps, 0, **{name: not is_known})


def make_source(episodes):
    episodes = [replace(episode, index=index) for index, episode in enumerate(episodes)]
    return Source("episodes", "memory", lambda: iter(episodes), len(episodes))


def test_items_contain_the_steps_at_the_offsets_of_each_field():
    adder = StepOffsets({"observation.state": [-1, 0, 1], "observation.camera.front": 0, "action": range(2)})
    items = adder(make_episode(is_known=True)).columns
    np.testing.assert_array_equal(
        items["observation"]["state"], [[10.5, 10.5, 11.5], [10.5, 11.5, 12.5], [11.5, 12.5, 99.5]]
    )
    np.testing.assert_array_equal(items["observation"]["camera"]["front"], [[110], [111], [112]])
    np.testing.assert_array_equal(items["action"][..., 0], [[10, 11], [11, 12], [12, 12]])
    masks = items["mask"]
    assert masks["observation.state"].tolist() == [[False, True, True], [True, True, True], [True, True, True]]
    assert masks["observation.camera.front"].tolist() == [True, True, True]
    assert masks["action"].tolist() == [[True, True], [True, True], [True, False]]


@pytest.mark.parametrize("terminated", [False, True])
def test_last_actions_are_used_and_placeholders_are_not(terminated):
    episode = make_episode(terminated=terminated)
    items = StepOffsets({"observation": [0, 1], "action": [0]})(episode).columns
    np.testing.assert_array_equal(items["observation"]["state"], [[10.5, 11.5], [11.5, 12.5], [12.5, 12.5]])
    np.testing.assert_array_equal(items["action"][:, 0, 0], [10, 11, 12])
    assert items["mask"]["observation"].tolist() == [[True, True], [True, True], [True, False]]


@pytest.mark.parametrize(
    ("adder", "num_items"),
    [
        (StepOffsets({"observation": 0, "action": range(2)}), 5),
        (Transitions(reads_next=False), 5),
        (ChunkTransitions(2, reads_next=False, repeats_last=True), 5),
        (Transitions(), 4),  # The second episode has no observation after its last action.
    ],
)
def test_adders_that_need_no_next_observation_use_all_actions(tmp_path, adder, num_items):
    episodes = make_source([make_episode(2, terminated=True), make_episode(3, first=20)])
    found = batches(episodes, num_items, items=adder, epochs=1)
    (batch,) = found
    first_actions = np.sort(batch["action"].reshape(num_items, -1)[:, 0])
    np.testing.assert_array_equal(first_actions, [10, 11, 20, 21, 22][:num_items])
    stored = batches(episodes, num_items, items=adder, epochs=1, store_dir=tmp_path)
    tree.map_structure(np.testing.assert_array_equal, batch, next(iter(stored)))


@pytest.mark.parametrize("name", LEROBOT)
def test_items_of_lerobot_are_those_of_delta_timestamps(data, name):
    """LeRobot clips rows to those of the episode, and marks those outside as padding, in whatever direction."""
    pq = pytest.importorskip("pyarrow.parquet")
    folder = data / "formats/lerobot" / name
    files = sorted(folder.glob("data/**/*.parquet"))
    rows = {"action": [], "observation.state": [], "episode_index": []}
    for file in files:
        table = pq.read_table(file)
        for column in rows:
            rows[column] += table[column].to_pylist()
    episode = np.array(rows.pop("episode_index"))
    offsets = {"observation.state": [-2, 0, 1], "action": [-1, 0, 1, 2, 3]}
    adder = StepOffsets.from_seconds({key: [one / 20 for one in given] for key, given in offsets.items()}, fps=20)
    items = [adder(one).columns for one in load(folder, cameras=[])]
    for key, column in rows.items():
        column = np.array(column, np.float32)
        for place, offset in enumerate(offsets[key]):
            at = np.arange(len(episode)) + offset
            chosen = np.clip(at, np.searchsorted(episode, episode), np.searchsorted(episode, episode, "right") - 1)
            got = np.concatenate([tree.flatten(item[key.split(".")[0]])[0] for item in items])[:, place]
            np.testing.assert_array_equal(got, column[chosen])
            masks = np.concatenate([item["mask"][key] for item in items])[:, place]
            np.testing.assert_array_equal(masks, at == chosen)


@pytest.mark.parametrize("name", ["v2.1/c2", "v3.0/c2"])
def test_frames_of_lerobot_are_those_of_delta_timestamps(data, name):
    """The frames of an episode, which the tests of the reader compare with those that LeRobot returns, bit for bit."""
    pytest.importorskip("av")
    fields = ("front", "wrist")
    adder = StepOffsets.from_seconds({f"observation.images.{field}": [-0.2, 0, 0.1] for field in fields}, fps=10)
    num_frames = 0
    for episode in load(data / "formats/lerobot" / name):
        items, num_rows = adder(episode).columns, episode.num_steps
        for field in fields:
            frames = episode.steps["observation"]["images"][field]
            for place, offset in enumerate((-2, 0, 1)):
                at = np.arange(num_rows) + offset
                chosen = np.clip(at, 0, num_rows - 1)
                np.testing.assert_array_equal(items["observation"]["images"][field][:, place], frames[chosen])
                np.testing.assert_array_equal(items["mask"][f"observation.images.{field}"][:, place], at == chosen)
        num_frames += num_rows
    assert num_frames == 61


def test_only_named_images_are_decoded(data):
    decoded = []

    def decode(files, spec):
        decoded.append(spec.shape)
        return np.zeros((len(files), *spec.shape), np.uint8)

    source = load(data / "formats/lerobot/v2.1/c1")
    adder = StepOffsets({"observation.state": [0], "action": [0]})
    next(iter(batches(source, 4, items=adder, decode=decode)))
    assert decoded == []


def test_graphs_make_the_same_items():
    adder = StepOffsets({"observation.state": [-1, 0], "action": range(3), "reward": 0})
    assert check_adder(adder, [make_episode(4, is_known=True), make_episode(1, is_known=True)]) == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepOffsets({}), "offsets must be a dict such as {'action': range(8)}"),
        (lambda: StepOffsets({"action": []}), "must be an integer or integers such as [-1, 0], got []"),
        (lambda: StepOffsets({"action": [0.5]}), "offsets of 'action' must be an integer or integers"),
        (lambda: StepOffsets({"observation": 0, "observation.state": 0}), "both 'observation' and its part"),
        (lambda: StepOffsets({"mask": 0}), "offsets must not contain 'mask'"),
        (lambda: StepOffsets.from_seconds({"action": [0, 0.15]}, 10), "must be multiples of 1/10 s, got 0.15 s"),
        (lambda: StepOffsets.from_seconds({"action": 0}, 0), "fps must be"),
        (lambda: StepOffsets({"observation.stat": 0})(make_episode()), "have no field 'observation.stat'"),
        (lambda: batches(make_source([make_episode()]), 1, items=StepOffsets({"x": 0})), "no field 'x'"),
    ],
)
def test_invalid_offsets_raise(make, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert message in str(caught.value)
