"""Policies that were saved to disk: what `predict` accepts and returns, and its errors."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from policies import CountingPolicy, FunctionPolicy, LinearPolicy, save_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import restart

from rlds2reverb import SpecMismatchError, load_policy

#: A nest with an image, a tuple, a scalar and a float64 vector.
OBSERVATION = {
    "image": tf.TensorSpec([2, 2, 3], tf.uint8),
    "parts": (tf.TensorSpec([], tf.int32), tf.TensorSpec([3], tf.float64)),
}
BOUNDS = ([-0.1, 0.0], [0.3, 0.7])


def sum_fields(observation):
    """Returns two numbers that depend on every field, and exceed the bounds by rounding errors."""
    number, vector = observation["parts"]
    total = tf.reduce_sum(vector, -1) + tf.cast(number, tf.float64)
    image = tf.reduce_mean(tf.cast(observation["image"], tf.float64), [1, 2, 3])
    return tf.cast(tf.stack([total, image], -1), tf.float32)


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    spec = tensor_spec.BoundedTensorSpec([2], tf.float32, *BOUNDS)
    folder = tmp_path_factory.mktemp("run")
    save_policy(FunctionPolicy(OBSERVATION, spec, sum_fields, clip=False), folder / "policy")
    return load_policy(folder)  # As of a run: the folder that contains policy/.


def make_observation(num=None):
    leading = () if num is None else (num,)
    parts = (np.full(leading, 1, np.int32), np.full((*leading, 3), -0.3))
    return {"image": np.zeros((*leading, 2, 2, 3), np.uint8), "parts": parts}


def test_nested_observations_are_single_or_a_batch(nested):
    single = nested.predict(make_observation())
    assert isinstance(single, np.ndarray) and single.shape == (2,) and single.dtype == np.float32
    np.testing.assert_allclose(single, [0.1, 0], atol=1e-6)
    batch = nested.predict(make_observation(3))
    assert batch.shape == (3, 2) and (batch == single).all()
    assert nested.predict(make_observation(0)).shape == (0, 2)


def test_actions_are_within_the_bounds(nested):
    observation = make_observation()
    observation["image"] += 200
    observation["parts"] = (-5, [0, 0, 0])
    np.testing.assert_array_equal(nested.predict(observation), np.float32([-0.1, 0.7]))


def test_lists_and_other_dtypes_are_cast_and_unused_fields_ignored(nested):
    expected = nested.predict(make_observation(2))
    other = {
        "image": np.zeros((2, 2, 2, 3), np.int64).tolist(),
        "parts": [np.ones(2, np.int64), np.float32([[-0.3] * 3] * 2)],
        "text": ["left", "right"],
    }
    np.testing.assert_allclose(nested.predict(other), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("path", "value", "error", "message"),
    [
        ("image", np.zeros((2, 2, 3)), SpecMismatchError, r"observation\['image'\] must be uint8 .*got float64 \[2, 2, 3\]"),
        ("image", np.full((2, 2, 3), 256), ValueError, r"observation\['image'\]\[0\]\[0\]\[0\] must be .* as uint8, got 256"),
        ("image", np.zeros((2, 3), np.uint8), SpecMismatchError, r"uint8 \[2, 2, 3\], or a batch of these, got uint8 \[2, 3\]"),
        ("image", np.zeros((5, 2, 2, 3), np.uint8), SpecMismatchError, r"same size, or none, got 5 for observation\['image'\], none"),
        ("parts", (1,), SpecMismatchError, r"observation\['parts'\]\[1\] must be float64 \[3\].* but is missing in a tuple"),
        ("parts", (1, [0, np.nan, 0]), ValueError, r"observation\['parts'\]\[1\]\[1\] must be finite .* got nan \(row 0\)"),
        ("parts", (1, [[0, 1], [2]]), SpecMismatchError, r"must be float64 \[3\], or a batch of these, got a list"),
        ("parts", (1, "text"), SpecMismatchError, r"must be float64 \[3\], or a batch of these, got a str"),
    ],
)  # fmt: skip
def test_invalid_observations_raise_and_name_the_field(nested, path, value, error, message):
    with pytest.raises(error, match=message):
        nested.predict({**make_observation(), path: value})


def test_missing_fields_raise(nested):
    with pytest.raises(
        SpecMismatchError, match=r"observation\['parts'\]\[0\] .* but is missing in a dict with 'image'"
    ):
        nested.predict({"image": make_observation()["image"]})
    with pytest.raises(SpecMismatchError, match=r"observation\['image'\] .* but is missing in float64 \[3\]"):
        nested.predict(np.zeros(3))


def test_action_explains_what_it_requires(nested):
    with pytest.raises(
        SpecMismatchError,
        match=r"\['image'\] uint8 \[2, 2, 3\].*got \['image'\] float32 \[4\], .*; use predict\(observations\)",
    ):
        nested.action(restart({**make_observation(2), "image": np.zeros((2, 4), np.float32)[0]}, 2))
    assert nested.action(restart(tf.nest.map_structure(tf.constant, make_observation(2)), 2)).action.shape == (2, 2)


def test_values_require_critics(nested):
    with pytest.raises(ValueError, match="saved with its agent's critics: bc, discrete_bc and custom agents without"):
        nested.values(make_observation(), [0, 0])


def test_functions_work_when_nothing_else_refers_to_the_policy(tmp_path):
    save_policy(LinearPolicy([[2.0]]), tmp_path, step=7)
    act = load_policy(tmp_path).action
    gc.collect()
    assert act(restart(tf.constant([[1.5]]), 1)).action.numpy() == [[3.0]]
    assert load_policy(tmp_path).action(restart(tf.constant([[1.5]]), 1)).action.numpy() == [[3.0]]
    assert load_policy(tmp_path).action([1.5]) == [3.0] and load_policy(tmp_path).action([[1.5]]).shape == (1, 1)
    assert load_policy(tmp_path).predict([1.5]) == [3.0] and load_policy(tmp_path).get_train_step() == 7


def test_policies_with_a_state_or_a_fixed_batch_size(tmp_path):
    save_policy(CountingPolicy(), tmp_path / "state")
    with pytest.raises(ValueError, match=r"requires a policy without a state; call action\(time_step, state\)"):
        load_policy(tmp_path / "state").predict([0.0])
    save_policy(LinearPolicy([[2.0]]), tmp_path / "two", batch_size=2)
    policy = load_policy(tmp_path / "two")
    assert policy.predict([[1.0], [2.0]]).tolist() == [[2.0], [4.0]]
    with pytest.raises(SpecMismatchError, match="saved for batches of 2, got 1; save it with .*batch_size=None"):
        policy.predict([1.0])


def test_directories_without_a_policy_raise(tmp_path):
    with pytest.raises(ValueError, match=r"does not contain a SavedModel; train writes policies when it ends"):
        load_policy(tmp_path)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy/saved_model.pb").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="policy is not a valid SavedModel"):
        load_policy(tmp_path)
    tf.saved_model.save(tf.Module(), str(tmp_path / "module"))
    with pytest.raises(ValueError, match="must contain a policy saved by PolicySaver"):
        load_policy(tmp_path / "module")
