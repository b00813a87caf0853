"""RLDS as datasets of robots have it: real actions in the last row, fields that are left out, images, text."""

import dataclasses
import hashlib
import json
import warnings

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from properties import mark_slow_except
from reference_impls import rlds_dataset

from rlds2reverb import SourceError, TrajectoryWindows, ingest, load, summarize, write_dataset
from rlds2reverb.adders import NStep
from rlds2reverb.cli import run
from rlds2reverb.datasets.writers.rlds_features import encode_images
from rlds2reverb.reverb.writing.report import IngestWarning
from rlds2reverb.types.specs import leaves

#: Name, split, and whether the last row is a transition, of each sample.
SAMPLES = {
    "a1": ("pusher_demos", "val", True),
    "a2": ("openx_boundary", "train", False),
    "a3": ("roboturk_like", "train", True),
    "a4": ("nested_cameras", "train", True),
}
ENDS = ("discount", "is_last", "is_terminal")


@pytest.fixture(params=mark_slow_except(["a2", "a4"], SAMPLES))
def sample(request, data):
    """Provides the directory and split of a sample, whether its last rows are transitions, and what it contains."""
    name, split, is_transition = SAMPLES[request.param]
    folder = data / "formats/rlds" / request.param
    expected = json.loads((folder / "expected.json").read_text())["splits"][split]["episodes"]
    return folder / name / "1.0.0", split, is_transition, expected


def hash_column(column):
    content = b"\0".join(column) if column.dtype == object else np.ascontiguousarray(column).tobytes()
    return hashlib.sha256(content).hexdigest()


def test_samples_are_read_with_the_expected_values(sample):
    path, split, is_transition, expected = sample
    source = load(path, split=split)
    episodes = list(source)
    assert len(episodes) == source.num_episodes == len(expected)
    for episode, facts in zip(episodes, expected, strict=True):
        num_rows = facts["rows"]
        assert (episode.num_transitions, episode.num_steps) == (facts["real_actions"], num_rows + is_transition)
        columns = {"/".join(path): column for path, column in leaves(episode.steps)}
        for name in set(facts["fields"]) - set(ENDS if is_transition else ()):
            column = columns[name][:num_rows]
            assert (str(column.dtype).replace("object", "string"), list(column.shape)) == (
                facts["fields"][name]["dtype"],
                facts["fields"][name]["shape"],
            )
            assert hash_column(column) == facts["fields"][name]["sha256"], name
        assert episode.total_reward == pytest.approx(facts["sum_reward_all_rows"], rel=1e-6)
        rewards = NStep(1, 0.9)(episode).columns["reward"]
        assert np.sum(rewards, dtype=np.float64) == pytest.approx(facts["sum_reward_all_rows"], rel=1e-6)
        assert episode.is_terminal == (facts["ends"] == "terminated")
        assert episode.unterminated == (facts["ends"] == "unknown")
        assert episode.unknown_final_observation == is_transition


def test_ends_of_transitions_without_a_next_observation_are_not_bootstrapped(data):
    source = load(data / "formats/rlds/a4/nested_cameras/1.0.0")
    for episode in source:
        steps = episode.steps
        assert steps["is_last"].tolist() == [False] * episode.num_transitions + [True]
        assert not any(np.any(column[-1]) for _, column in leaves(steps["observation"]))
        assert steps["discount"][-2:].tolist() == [0, not episode.is_terminal]
        items = TrajectoryWindows()(episode)
        assert items.columns.discount[:-2].all() and items.columns.discount[-2] == 0
    sentence = "the last transitions of 2 truncated episodes have the discount 0"
    assert [sentence in warning for warning in summarize(source).warnings] == [False, True]


@pytest.mark.slow
def test_transitions_in_last_rows_are_reported_and_written(data, tmp_path, capsys):
    path = data / "formats/rlds/a4/nested_cameras/1.0.0"
    with warnings.catch_warnings(record=True) as caught:  # Those of protobuf as well.
        warnings.simplefilter("always", IngestWarning)
        report = ingest(load(path, last_step="transition"), tmp_path / "items")
    sentences = [str(warning.message) for warning in caught if warning.category is IngestWarning]
    assert report.unbootstrapped == 2 and "have the discount 0" in sentences[0]
    written = write_dataset(path, tmp_path / "written/1.0.0", format="rlds")
    assert any("discount 0" in warning for warning in written.warnings)
    again = load(tmp_path / "written/1.0.0")
    assert not again.warnings
    for got, expected in zip(again, load(path), strict=True):
        assert got.unknown_final_observation
        assert [hash_column(column) for _, column in got.columns] == [hash_column(c) for _, c in expected.columns]
    assert run(["inspect", str(path), "--load", "last_step=boundary"]) == 0
    assert run(["validate", str(path), "--load", "last_step=transition"]) == 0
    assert "discount 0" in capsys.readouterr().out


@pytest.mark.slow
def test_samples_can_be_read_in_parts_and_in_other_processes(data):
    source = load(data / "formats/rlds/a1/pusher_demos/1.0.0", split="val")
    (second,) = cloudpickle.loads(cloudpickle.dumps(source.read))(1, 2)
    assert hash_column(second.steps["action"]) == hash_column(list(source)[1].steps["action"])
    assert second.unknown_final_observation


def test_images_stay_encoded_without_decoding(data):
    path = data / "formats/rlds/a2/openx_boundary/1.0.0"
    decoded, encoded = (next(iter(load(path, image_decoding=value))) for value in (True, False))
    image = encoded.steps["observation"]["image"]
    assert image.dtype == object and image.shape == (decoded.num_steps,) and image[0].startswith(b"\xff\xd8")
    assert (tf.io.decode_jpeg(image[3]).numpy() == decoded.steps["observation"]["image"][3]).all()


# --- evidence


def make_rows(actions, rewards=None, *, terminal=False, **changes):
    """Returns the rows of an RLDS episode; a change of None removes a field."""
    actions = np.asarray(actions)
    is_last = np.arange(len(actions)) == len(actions) - 1
    rows = {
        "observation": np.arange(10.0, 10 + len(actions), dtype=np.float32),
        "action": actions if actions.dtype.kind in "iu" else actions.astype(np.float32)[:, None],
        "reward": np.zeros(len(actions), np.float32) if rewards is None else np.asarray(rewards, np.float32),
        "discount": np.ones(len(actions), np.float32),
        "is_first": np.arange(len(actions)) == 0,
        "is_last": is_last,
        "is_terminal": is_last & terminal,
        **changes,
    }
    return {name: column for name, column in rows.items() if column is not None}


BOUNDARY, REAL, SILENT = make_rows([1.0, 2.0, 0.0]), make_rows([1.0, 2.0, 3.0]), make_rows([1.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("episodes", "num_transitions"),
    [
        ([BOUNDARY, BOUNDARY], [2, 2]),
        ([REAL, SILENT], [3, 3]),
        ([BOUNDARY, SILENT], [2, 2]),
        ([SILENT], [2]),
        ([make_rows([0.0, 0.0, 0.0], [0, 0, 1])], [3]),  # A reward is evidence without an action.
        ([make_rows([0.0, 0.0, 0.0])], [2]),  # Nothing is lost.
        ([make_rows([3, 1, 0]), make_rows([3, 2, 1])], [3, 3]),  # 0 is an action like any other.
        ([make_rows([3, 1, 0]), make_rows([3, 1, 1])], [2, 2]),
        ([make_rows([5.0], [1.0])], [1]),
    ],
)
def test_last_step_is_inferred_from_actions_and_rewards(episodes, num_transitions):
    assert [episode.num_transitions for episode in load(rlds_dataset(episodes))] == num_transitions


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([REAL, BOUNDARY], r"evidence of transitions \(episode 0: row 1: action \[2\.\], reward 0\.; row 2: action "),
        ([make_rows([4.0, 4.0])], r"nothing tells what the last row of an episode means \(episode 0: row 0: action"),
        ([make_rows([0.0])], "nothing tells what the last row"),
    ],
)
def test_missing_or_contradictory_evidence_raises_with_both_options(episodes, message):
    dataset = rlds_dataset(episodes)
    with pytest.raises(SourceError, match=message) as caught:
        load(dataset)
    advice = (
        "choose 'transition' if the action and the reward of the last row are real, or 'boundary' if they mean nothing"
    )
    assert str(caught.value).endswith(f"; {advice} (last_step)")
    for last_step, added in (("transition", 0), ("boundary", 1)):
        got = [episode.num_transitions for episode in load(dataset, last_step=last_step)]
        assert got == [len(rows["action"]) - added for rows in episodes]


@pytest.mark.parametrize(("first", "other"), [(REAL, BOUNDARY), pytest.param(BOUNDARY, REAL, marks=pytest.mark.slow)])
def test_later_episode_that_disagrees_raises_while_it_is_read(first, other):
    source = load(rlds_dataset([first] * 16 + [other]))
    with pytest.raises(
        SourceError, match="the last row of episode 16 is evidence of a .* mean nothing \\(last_step\\)"
    ):
        list(source)


def test_boundary_with_values_is_reported_when_requested(tmp_path):
    source = load(rlds_dataset([REAL]), last_step="boundary")
    assert "have a reward or an action other than zero" in summarize(source).warnings[0]


# --- fields that are left out


@pytest.mark.parametrize("rewards", [{"reward": None}, {}])
@pytest.mark.parametrize("actions", [[1.0, 2.0, 0.0], [1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
def test_boundaries_without_rewards_are_reported_as_an_assumption(actions, rewards):
    dataset = rlds_dataset([make_rows(actions, **rewards)])
    (*_, warning) = load(dataset).warnings
    assert "assumed to be only a final observation" in warning and warning.endswith("is real (last_step)")
    for last_step in ("boundary", "transition"):
        assert not any("final observation" in sentence for sentence in load(dataset, last_step=last_step).warnings)
    assert not load(rlds_dataset([make_rows(actions, [0, 1, 0])])).warnings


def test_missing_flags_follow_from_the_end_of_the_episode():
    rows = make_rows([1.0, 2.0, 0.0], terminal=True, is_first=None, is_last=None)
    source = load(rlds_dataset([rows]), last_step="boundary")
    (episode,) = source
    assert episode.steps["is_first"].tolist() == [True, False, False]
    assert episode.steps["is_last"].tolist() == [False, False, True]
    assert (episode.is_terminal, episode.unterminated) == (True, False)
    assert len(source.warnings) == 2 and "has no 'is_first'" in source.warnings[0]


def test_rewards_and_discounts_with_a_second_axis_become_single_numbers():
    rows = make_rows([1, 2, 3], [0, 1, 5])
    wide = {**rows, "reward": rows["reward"][:, None], "discount": rows["discount"][:, None]}
    (episode,) = load(rlds_dataset([wide]))
    assert episode.total_reward == 6
    assert episode.steps["reward"].shape == episode.steps["discount"].shape == (4,)


def test_steps_that_are_columns_raise():
    columns = tf.data.Dataset.from_tensors({"steps": make_rows([1, 2])})
    with pytest.raises(SourceError, match=r"'steps' must be a dataset of steps .*, got a dict; pass .* replaces it"):
        load(columns)


def test_field_of_varying_shape_is_named():
    def generate():
        yield from ({**row, "boxes": np.ones(step)} for step, row in enumerate(rows))

    columns = make_rows([1, 2, 3])
    rows = [{name: column[step] for name, column in columns.items()} for step in range(3)]
    signature = {name: tf.TensorSpec(column.shape[1:], column.dtype) for name, column in columns.items()}
    signature["boxes"] = tf.TensorSpec([None], tf.float64)
    steps = tf.data.Dataset.from_generator(generate, output_signature=signature)
    with pytest.raises(SourceError, match=r"step\['boxes'\] differs in shape between the steps of episode 0; pass"):
        load(tf.data.Dataset.from_tensors(0).map(lambda _: {"steps": steps}))
    damaged = rlds_dataset([columns]).map(lambda episode: {"steps": episode["steps"].map(_decode)})
    with pytest.raises(
        SourceError, match=r"is damaged at episode 0 .*, or pass load\(\) .* do not contain a damaged field"
    ):
        load(damaged)


def _decode(step):
    return {**step, "image": tf.io.decode_png(tf.constant(b"no image"))[:1, :1, 0]}


def test_last_flag_that_is_never_set_makes_episodes_unterminated():
    (episode,) = load(rlds_dataset([make_rows([1.0, 2.0, 0.0], is_last=np.zeros(3, bool))]))
    assert episode.unterminated and episode.steps["is_last"].tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("actions", "terminal", "missing", "discounts"),
    [
        ([1, 2, 0.0], True, {}, [1, 0, 0]),
        ([1, 2, 0.0], False, {}, [1, 1, 1]),
        ([1, 2, 0.0], False, {"discount": 0.5}, [0.5, 0.5, 0.5]),
        ([1, 2, 3.0], True, {"discount": 1}, [1, 1, 0, 0]),
        ([1, 2, 3.0], False, {}, [1, 1, 0, 1]),
    ],
)
def test_missing_discounts_are_one_except_at_terminal_ends(actions, terminal, missing, discounts):
    source = load(rlds_dataset([make_rows(actions, terminal=terminal, discount=None)]), missing=missing)
    assert next(iter(source)).steps["discount"].tolist() == discounts
    assert any("has no 'discount'" in warning for warning in source.warnings) == (not missing)
    assert summarize(source).unbootstrapped == (len(discounts) > len(actions) and not terminal)
    assert source.assumed_fields == ()


@pytest.mark.parametrize(("discount", "is_terminal"), [([1, 0, 0], True), ([1, 1, 0], True), ([1, 1, 1], False)])
def test_missing_terminal_flag_follows_from_the_discount(discount, is_terminal):
    rows = make_rows([1.0, 2.0, 0.0], is_terminal=None, discount=np.array(discount, np.float32))
    source = load(rlds_dataset([rows]))
    assert next(iter(source)).is_terminal == is_terminal and source.assumed_fields == ()


def test_fields_without_evidence_are_assumed_and_reported():
    dataset = rlds_dataset([make_rows([1.0, 2.0, 0.0], is_terminal=None, discount=None, reward=None)])
    source = load(dataset)
    (episode,) = source
    assert source.assumed_fields == ("reward", "is_terminal")
    assert episode.total_reward == 0 and not episode.is_terminal
    assert source.warnings[0].endswith(
        "'reward', which is 0; set it to learn from rewards, which cloning does not need (missing)"
    )
    source = load(dataset, missing={"reward": -1, "is_terminal": 1})
    (episode,) = source
    assert source.assumed_fields == () and episode.is_terminal and episode.total_reward == -2
    assert episode.steps["discount"].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"discount": 1}, r"sets 'discount', which the steps contain; leave it out"),
        ({"action": 1}, "missing must be values of reward, discount, is_terminal, got 'action'"),
        ({"is_terminal": 2}, r"missing\['is_terminal'\] must be a number in \[0, 1\], got 2"),
        ({"reward": float("nan")}, r"missing\['reward'\] must be a finite number, got nan"),
    ],
)
def test_values_of_other_fields_raise(missing, message):
    with pytest.raises(ValueError, match=message):
        load(rlds_dataset([BOUNDARY]), missing=missing)


def test_invalid_last_step_raises():
    with pytest.raises(ValueError, match="last_step must be"):
        load(rlds_dataset([BOUNDARY]), last_step="last")


def test_command_reads_missing_values(data, capsys):
    path = str(data / "formats/rlds/a3/roboturk_like/1.0.0")
    assert run(["validate", path, "--load", "missing=discount:1", "--load", "last_step=transition"]) == 0
    assert "discount" not in capsys.readouterr().err
    assert run(["validate", path, "--load", "missing=discount"]) != 0
    assert "--load missing must be FIELD:NUMBER such as discount:1" in " ".join(capsys.readouterr().err.split())


# --- written features


def read_step(path):
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(path)
    return builder.info.features["steps"].feature, next(iter(next(iter(builder.as_dataset(split="train")))["steps"]))


@pytest.fixture(scope="module")
def pusher(data):
    return load(data / "formats/rlds/a1/pusher_demos/1.0.0", split="val")


def describe(source, described):
    """Returns a source with descriptions of its fields."""
    return load(source, mapping={"describe": described})


def test_described_features_are_written_as_tfds_has_them(pusher, tmp_path):
    described = {
        "observation.image": "png",
        "observation.wrist_image": {"encoding": "jpeg", "description": "camera on the wrist"},
        "language_instruction": "text",
        "action": {"description": "joint torques"},
    }
    write_dataset(describe(pusher, described), tmp_path / "arm/1.0.0", format="rlds")
    features, step = read_step(tmp_path / "arm/1.0.0")
    image, wrist = (features["observation"][name] for name in ("image", "wrist_image"))
    assert (type(image).__name__, image.encoding_format, wrist.encoding_format) == ("Image", "png", "jpeg")
    assert type(features["language_instruction"]).__name__ == "Text"
    assert (wrist.doc.desc, features["action"].doc.desc) == ("camera on the wrist", "joint torques")
    assert step["observation"]["image"].shape == (64, 64, 3)
    for got, expected in zip(load(tmp_path / "arm/1.0.0"), pusher, strict=True):
        for name, largest in (("image", 0), ("wrist_image", 3)):
            difference = np.abs(got.steps["observation"][name].astype(int) - expected.steps["observation"][name])
            assert difference.mean() <= largest
        assert hash_column(got.steps["language_instruction"]) == hash_column(expected.steps["language_instruction"])


def test_fields_are_renamed_and_integers_become_classes(tmp_path):
    space = spaces.Dict({"a": spaces.Box(0, 4, (2,)), "b": spaces.Box(-1, 1, (2,))})
    columns = {
        "observations": {"a": np.arange(8, dtype=np.float32).reshape(4, 2), "b": np.zeros((4, 2), np.float32)},
        **{"actions": np.ones((3, 1), np.float32), "rewards": np.ones(3, np.float32), "terminated": True},
        **{"skill": np.array([2, 0, -1], np.int8), "task": np.array([b"lift"] * 3, object)},
    }
    source = dataclasses.replace(load([columns]), observation_space=space)
    mapping = {
        "rename": {
            **{"observation.a": "observation.b", "observation.b": "observation.arm.joints"},
            "task": "language_instruction",
        },
        "describe": {
            "language_instruction": "text",
            "skill": {"classes": ["reach", "grasp", "lift it"], "description": "phase"},
        },
    }
    write_dataset(load(source, mapping=mapping), tmp_path / "arm/1.0.0", format="rlds")
    features, step = read_step(tmp_path / "arm/1.0.0")
    assert (features["skill"].names, features["skill"].doc.desc) == (["reach", "grasp", "lift it"], "phase")
    assert step["language_instruction"].numpy() == b"lift"
    written = load(tmp_path / "arm/1.0.0")
    (episode,) = written
    assert (episode.steps["observation"]["b"] == columns["observations"]["a"]).all()
    assert episode.steps["observation"]["arm"]["joints"].shape == (4, 2)
    assert episode.steps["skill"].tolist() == [2, 0, -1, 0] and "task" not in episode.steps
    assert written.step_spec["observation"]["b"].maximum == 4
    assert written.step_spec["observation"]["arm"]["joints"].minimum == -1


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"skill": {"classes": "reach"}}, "must be a list of names without line breaks, got 'reach'"),
        ({"skill": {"classes": ["a", "b\n"]}}, "without line breaks"),
        ({"skill": {"classes": ["a", "a"]}}, "must have different names"),
        ({"skill": {"classes": ["a", "b"]}}, r"'skill' of episode 0, step 1 must be .* in \[0, 1\].*, got 2; list all"),
        ({"action": {"classes": ["a"]}}, r"'action' must be one integer per step, .*, got float32 \[1\]"),
        ({"skill": {"description": 3}}, "must be an encoding or a dict of"),
    ],
)
def test_classes_that_do_not_fit_raise(tmp_path, features, message):
    columns = {name: np.zeros((3, 1), np.float32) for name in ("observations", "actions")}
    source = load([{**columns, "rewards": np.zeros(3), "terminated": True, "skill": np.array([0, 2, 1])}])
    with pytest.raises(ValueError, match=message):
        write_dataset(describe(source, features), tmp_path / "arm/1.0.0", format="rlds")


@pytest.mark.slow
def test_encoded_images_are_written_without_loss(data, tmp_path):
    path = data / "formats/rlds/a4/nested_cameras/1.0.0"
    described = {f"observation.images.{name}": encoding for name, encoding in (("side", "jpeg"), ("wrist", "png"))}
    write_dataset(describe(load(path, image_decoding=False), described), tmp_path / "a/1.0.0", format="rlds")
    for got, expected in zip(load(tmp_path / "a/1.0.0"), load(path), strict=True):
        for name in ("side", "wrist"):
            images, originals = (episode.steps["observation"]["images"][name] for episode in (got, expected))
            assert (images == originals).all()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"observation.imag": "png"}, "there is no path 'observation.imag' in a step"),
        (
            {"observation.state": "png"},
            r"'observation.state' must be uint8 \[H, W, C\] with C in .*, got float32 \[10\]",
        ),
        pytest.param(
            *({"observation.image": "text"}, r"must be a string for the encoding text, got uint8 \[64, 64, 3\]"),
            marks=pytest.mark.slow,
        ),
        pytest.param({"observation.image": "gif"}, "must be png, jpeg or text, got 'gif'", marks=pytest.mark.slow),
        (
            {"action": {"names": ["x"]}},
            r"description of 'action' must be an encoding or a dict of encoding, description",
        ),
    ],
)
def test_features_that_do_not_fit_raise(pusher, tmp_path, features, message):
    with pytest.raises(ValueError, match=message):
        write_dataset(describe(pusher, features), tmp_path / "arm/1.0.0", format="rlds")
    assert not (tmp_path / "arm").exists() or not list((tmp_path / "arm").iterdir())


def test_files_of_another_encoding_raise(data, tmp_path):
    source = load(data / "formats/rlds/a2/openx_boundary/1.0.0", image_decoding=False)
    with pytest.raises(SourceError, match=r"'observation.image' must be png files, got b'\\xff\\xd8.*' in step 0"):
        write_dataset(describe(source, {"observation.image": "png"}), tmp_path / "a/1.0.0", format="rlds")


def test_unknown_final_images_become_black():
    file = tf.io.encode_png(np.full((2, 3, 3), 9, np.uint8)).numpy()
    first, last = encode_images(np.array([file, b""], object), "png", "image")
    assert first == file and (tf.io.decode_png(last) == np.zeros((2, 3, 3))).numpy().all()


def test_descriptions_for_other_formats_are_reported(tmp_path):
    columns = {name: np.zeros((3, 1), np.float32) for name in ("observations", "actions")}
    source = load([{**columns, "rewards": np.zeros(3), "terminated": True}])
    report = write_dataset(describe(source, {"action": {"description": "torques"}}), tmp_path / "a.hdf5", format="d4rl")
    assert "D4RL has no place for the descriptions of action" in report.warnings


def test_convert_reads_descriptions_from_a_file(data, tmp_path):
    path = str(data / "formats/rlds/a2/openx_boundary/1.0.0")
    (tmp_path / "map.yaml").write_text("describe: {observation.image: jpeg}")
    out = str(tmp_path / "arm/1.0.0")
    command = ["convert", path, "--format", "rlds", "--out", out, "--load", "image_decoding=false"]
    assert run([*command, "--map", str(tmp_path / "map.yaml")]) == 0
    assert read_step(out)[0]["observation"]["image"].encoding_format == "jpeg"
