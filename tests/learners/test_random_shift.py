"""Random shifts of images: where pixels go, what is shifted, and runs that continue."""

import internals
import numpy as np
import pytest
import tensorflow as tf
from agent_data import make_columns, to_trajectory, to_transition
from hypothesis import given, strategies as st
from properties import examples

from rlds2reverb import Training, TrainingConfig
from rlds2reverb.cli.main import USER_ERROR, run
from rlds2reverb.learners import RandomShift
from rlds2reverb.learners.hooks import LearnerHook
from rlds2reverb.learners.random_shift import shift_images
from rlds2reverb.training import Progress
from rlds2reverb.training.cluster.run_preparation import prepare

SPEC = {
    "cameras": {"first": tf.TensorSpec([3, 8, 9], tf.uint8), "last": tf.TensorSpec([6, 7, 4], tf.uint8)},
    "state": tf.TensorSpec([2], tf.float32),
    "table": tf.TensorSpec([6, 6], tf.uint8),
}
SMALL = {"env": None, "batch_size": 4, "hyperparameters": {"hidden_sizes": (4,)}, "random_shift": 2}


def make_observations(size=5, seed=0):
    rng = np.random.default_rng(seed)
    return tf.nest.map_structure(lambda spec: rng.integers(0, 256, (size, *spec.shape)).astype(spec.dtype.name), SPEC)


def make_episodes(num_steps=7):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (num_steps, 8, 8, 3), np.uint8)
    steps = {
        "observation": {"image": image, "state": image[:, 0, 0, :2].astype(np.float32) / 255},
        "action": rng.uniform(-1, 1, (num_steps, 1)).astype(np.float32),
        "reward": np.ones(num_steps, np.float32),
        "discount": np.ones(num_steps, np.float32),
        "is_first": np.arange(num_steps) == 0,
        "is_last": np.arange(num_steps) == num_steps - 1,
        "is_terminal": np.zeros(num_steps, bool),
    }
    return [steps]


def find_shifts(before, after, limit=2):
    """Returns the shifts, `[N, 2]`, of which one leads from each image [H, W, C] to its shifted copy."""
    candidates = [(dy, dx) for dy in range(-limit, limit + 1) for dx in range(-limit, limit + 1)]
    shifts = []
    for old, new in zip(before, after, strict=True):
        padded = np.pad(old, ((limit, limit), (limit, limit), (0, 0)), "edge")
        height, width = old.shape[:2]
        crops = [padded[limit + dy :, limit + dx :][:height, :width] for dy, dx in candidates]
        shifts.append(candidates[[np.array_equal(crop, new) for crop in crops].index(True)])
    return shifts


def test_pixels_move_and_the_border_is_repeated():
    image = np.arange(10, 19, dtype=np.uint8).reshape(1, 3, 3, 1)
    one, two = shift_images(np.tile(image, (2, 1, 1, 1)), tf.constant([[1, 0], [-1, 2]])).numpy()[..., 0]
    assert one.tolist() == [[13, 14, 15], [16, 17, 18], [16, 17, 18]]
    assert two.tolist() == [[12, 12, 12], [12, 12, 12], [15, 15, 15]]


@examples(20)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_shift_is_a_crop_of_the_padded_image(height, width, limit, seed):
    rng = np.random.default_rng(seed)
    images, shifts = rng.integers(0, 256, (4, height, width, 2), np.uint8), rng.integers(-limit, limit + 1, (4, 2))
    padded = np.pad(images, ((0, 0), (limit, limit), (limit, limit), (0, 0)), "edge")
    expected = [padded[n, limit + dy :, limit + dx :][:height, :width] for n, (dy, dx) in enumerate(shifts)]
    np.testing.assert_array_equal(shift_images(images, tf.constant(shifts, tf.int32)), expected)
    by_channel = shift_images(images.transpose(0, 3, 1, 2), tf.constant(shifts, tf.int32), row_axis=2)
    np.testing.assert_array_equal(tf.transpose(by_channel, [0, 2, 3, 1]), expected)


@pytest.mark.parametrize("convert", [to_transition, to_trajectory])
def test_each_image_of_each_item_and_observation_is_shifted_independently(convert):
    columns = make_observations(40)
    batch = convert({**make_columns(40), "observation": columns, "next_observation": columns})
    shift = tf.function(RandomShift(2, SPEC, seed=3), autograph=False)
    result, again, later = (shift(batch, tf.constant(step, tf.int64)) for step in (5, 5, 6))
    found = {}
    for name, observations in (("this", find_observations(result, 0)), ("next", find_observations(result, 1))):
        tf.nest.assert_same_structure(observations, columns)
        np.testing.assert_array_equal(observations["state"], columns["state"])
        np.testing.assert_array_equal(observations["table"], columns["table"])
        first, last = observations["cameras"]["first"], observations["cameras"]["last"]
        assert first.dtype == last.dtype == tf.uint8
        old_first = columns["cameras"]["first"].transpose(0, 2, 3, 1)
        found[name, "first"] = find_shifts(old_first, tf.transpose(first, [0, 2, 3, 1]).numpy())
        found[name, "last"] = find_shifts(columns["cameras"]["last"], last.numpy())
    assert len({tuple(shifts) for shifts in found.values()}) == 4
    assert all(len(set(shifts)) > 12 for shifts in found.values())  # Of 25 shifts.
    for one, two in zip(tf.nest.flatten(result), tf.nest.flatten(again), strict=True):
        np.testing.assert_array_equal(one, two)
    other = tf.function(RandomShift(2, SPEC, seed=4), autograph=False)(batch, tf.constant(5, tf.int64))
    for changed in (later, other):
        new = find_observations(changed, 0)["cameras"]["last"]
        assert find_shifts(columns["cameras"]["last"], new.numpy()) not in found.values()


def find_observations(experience, index):
    """Returns the observations (0) or the next ones (1) of a batch of transitions or of trajectories of two steps."""
    if hasattr(experience, "observation"):
        return tf.nest.map_structure(lambda column: column[:, index], experience.observation)
    return (experience.time_step, experience.next_time_step)[index].observation


class Killed(BaseException):
    """Stands for kill -9: nothing that runs on an `Exception` runs on it."""


class Kill(LearnerHook):
    def __init__(self, at):
        super().__init__("kill", position="after_iter", every=at)

    def __call__(self, learner):
        raise Killed


@pytest.mark.slow
def test_killed_run_resumes_bit_for_bit_from_uint8_images(tmp_path):
    config = TrainingConfig("bc", steps=5, checkpoint_every=2, deterministic=True, **SMALL)
    weights = {}
    for name, hooks, options in (("whole", [], {}), ("killed", [Kill(3)], {}), ("off", [], {"random_shift": 0})):
        if hooks:
            with (
                pytest.raises(Killed),
                Training(make_episodes(), config.replace(hooks=hooks), tmp_path / name) as training,
            ):
                training.learner.start(5)
        with Training(make_episodes(), config.replace(**options), tmp_path / name) as training:
            assert training.learner.step == (2 if hooks else 0)
            training.learner.start(5)
            feed, input_types = internals.get_feed(training.learner), internals.get_input_types(training.learner)
        weights[name] = np.concatenate([variable.numpy() for variable in training.agent.trainable_variables])
    np.testing.assert_array_equal(weights["whole"], weights["killed"])
    assert not np.array_equal(weights["whole"], weights["off"])
    data, _ = feed.read(0, 2)
    assert data["observation"]["image"].dtype == data["next_observation"]["image"].dtype == np.uint8
    assert feed.experience_spec.time_step.observation["image"].dtype == tf.uint8
    assert input_types == [leaf.dtype for leaf in tf.nest.flatten(feed.data_spec)]
    assert input_types.count(tf.uint8) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"drop_fields": ["observation/image"]},
            r"random_shift=2 requires an observation that is an image, .* \[2\]; use the default",
        ),
        ({"random_shift": 8}, r"random_shift must be less than the height and width of every image, got 8 for uint8"),
    ],
)
def test_data_without_suitable_images_raise(options, message, tmp_path):
    config = TrainingConfig("bc", **{**SMALL, **options})
    with pytest.raises(ValueError, match=message):
        Training(make_episodes(), config, tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        prepare(make_episodes(), config, tmp_path / "run", 1, Progress(quiet=True))


def test_command_names_its_option(data, tmp_path, capsys):
    source = str(data / "d4rl" / "pendulum_mixed-v2.hdf5")
    command = ["train", "--algo", "bc", "--data", source, "--run-dir", str(tmp_path / "run"), "--env", "none"]
    assert run([*command, "--random-shift", "4"]) == USER_ERROR
    message = "--random-shift 4 requires an observation that is an image, uint8 [H, W, C], got observation float32 [3]"
    assert message in capsys.readouterr().err
