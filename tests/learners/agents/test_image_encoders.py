"""The published encoders of images: number of weights, shapes, and values of layers that Keras computes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, TIME_STEP_SPEC
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb.learners.agents import ImageEncoder, ImageNetwork, NetworkInputs, make_agent
from rlds2reverb.learners.agents.image_networks import average_positions

LAYERS, NUMBERS = tf.keras.layers, itertools.count()


def count_weights(*layers):
    """Returns the number of weights of convolutions, given by kernel size, inputs and filters, with a bias each."""
    return sum(kernel * kernel * inputs * filters + filters for kernel, inputs, filters in layers)


def test_nature_has_the_weights_of_the_paper():
    """Mnih et al. (2015), methods: 84 x 84 x 4, then 20 x 20 x 32, 9 x 9 x 64, 7 x 7 x 64, 512, and 18 actions."""
    network = ImageNetwork(NetworkInputs(tf.TensorSpec([84, 84, 4], tf.uint8)), [512, 18], seed=0, name="q")
    convolutions, dense = (variable.shape[0] for variable in network.trained_variables)
    assert convolutions == count_weights((8, 4, 32), (4, 32, 64), (3, 64, 64)) == 8_224 + 32_832 + 36_928
    assert dense == (7 * 7 * 64 + 1) * 512 + (512 + 1) * 18 == 1_606_144 + 9_234


def test_impala_has_the_weights_of_the_paper():
    """Espeholt et al. (2018), figure 3, right: 72 x 96 x 3, three sections of 16, 32 and 32 channels, each halved."""
    encoder = ImageEncoder((72, 96, 3), architecture="impala", seed=0, name="a")
    sections = [
        [(3, inputs, filters), *[(3, filters, filters)] * 4] for inputs, filters in itertools.pairwise((3, 16, 32, 32))
    ]
    assert [count_weights(*section) for section in sections] == [448 + 9_280, 4_640 + 36_992, 9_248 + 36_992]
    assert encoder.flat.shape[0] == 97_600 and encoder.size == 9 * 12 * 32
    assert encoder(tf.zeros([2, 72, 96, 3])).shape == [2, 3_456]


@pytest.mark.slow
def test_resnet_has_the_weights_of_the_paper():
    """He et al. (2016), table 1, 18 layers, without the last one; a scale and an offset follow every convolution."""
    stages = [(64, 64, 64, 64)] * 2, [(64, 128, 128, 128)] * 2, [(128, 256, 256, 256)] * 2, [(256, 512, 512, 512)] * 2
    expected = 7 * 7 * 3 * 64 + 2 * 64
    for inputs, filters, *_ in (stage[0] for stage in stages):
        shortcut = inputs * filters + 2 * filters if inputs != filters else 0
        expected += 9 * (inputs + 3 * filters) * filters + 4 * 2 * filters + shortcut
    encoder = ImageEncoder((224, 224, 3), architecture="resnet", seed=0, name="a")
    assert encoder.flat.shape[0] == expected == 11_689_512 - 513_000  # The known number less that of the last layer.
    assert encoder.size == 2 * 512


def make_numbered(layer, *args, **options):
    """Returns a Keras layer whose name tells in which order layers with weights are created."""
    return layer(*args, **options, name=f"{next(NUMBERS):03d}")


def build_impala(x):
    for filters in (16, 32, 32):
        x = LAYERS.MaxPool2D(3, 2, "same")(make_numbered(LAYERS.Conv2D, filters, 3, padding="same")(x))
        for _ in range(2):
            y = make_numbered(LAYERS.Conv2D, filters, 3, padding="same")(tf.nn.relu(x))
            x = x + make_numbered(LAYERS.Conv2D, filters, 3, padding="same")(tf.nn.relu(y))
    return LAYERS.Flatten()(tf.nn.relu(x))


def build_resnet(x):
    def convolve(x, filters, kernel, stride=1):
        x = make_numbered(LAYERS.Conv2D, filters, kernel, stride, "same", use_bias=False)(x)
        return make_numbered(LAYERS.GroupNormalization, filters // 16, epsilon=1e-5)(x)

    x = LAYERS.MaxPool2D(3, 2, "same")(tf.nn.relu(convolve(x, 64, 7, 2)))
    for filters in (64, 128, 256, 512):
        for stride in (1 if filters == 64 else 2, 1):
            y = convolve(tf.nn.relu(convolve(x, filters, 3, stride)), filters, 3)
            x = tf.nn.relu(y + (x if stride == 1 else convolve(x, filters, 1, stride)))
    return average_positions(x)


@pytest.mark.parametrize(
    ("name", "build", "size"),
    [("impala", build_impala, 10), pytest.param("resnet", build_resnet, 40, marks=pytest.mark.slow)],
)
def test_encoders_match_keras(name, build, size):
    shape = (size, size + 2, 3)
    encoder = ImageEncoder(shape, architecture=name, seed=0, name="a")
    encoder.flat.assign(encoder.flat + 0.1 * tf.random.stateless_normal(encoder.flat.shape, [1, 2]))
    inputs, taken = tf.keras.Input(shape), 0
    model = tf.keras.Model(inputs, build(inputs))
    for weight in sorted(model.weights, key=lambda weight: weight.name[:3]):
        end = taken + int(np.prod(weight.shape))
        weight.assign(tf.reshape(encoder.flat[taken:end], weight.shape))
        taken = end
    assert taken == encoder.flat.shape[0]
    images = tf.random.stateless_uniform([2, *shape], [3, 4])
    np.testing.assert_allclose(encoder(images), model(images), rtol=1e-3, atol=1e-4)


def test_mean_position_is_where_a_channel_is_active():
    x = np.zeros((1, 3, 5, 2), np.float32)
    x[0, 0, 4, 0] = 100  # The upper right corner.
    np.testing.assert_allclose(average_positions(tf.constant(x)), [[-1, 0, 1, 0]], atol=1e-6)


@pytest.mark.parametrize("name", ["td3", "dqn"])
def test_targets_have_the_architecture_of_the_online_networks(name):
    spec = time_step.time_step_spec(tf.TensorSpec([9, 9, 3], tf.uint8))
    discrete = tensor_spec.BoundedTensorSpec([], tf.int32, 0, 1)
    action_spec = discrete if name == "dqn" else ACTION_SPEC
    agent = make_agent(name, spec, action_spec, hidden_sizes=(4,), image_encoder="impala")
    for online, target in zip(agent.critic.trained_variables, agent.target_critic.trained_variables, strict=True):
        np.testing.assert_array_equal(online, target)


def test_encoders_that_cannot_be_used_raise():
    image = time_step.time_step_spec({"a": tf.TensorSpec([32, 24, 3], tf.uint8)})
    with pytest.raises(ValueError, match=r"'resnet' requires images of more than 32 pixels .* got \[32, 24\]; use"):
        make_agent("bc", image, ACTION_SPEC, image_encoder="resnet")
    message = r"image_encoder='impala' requires an observation that is an image, uint8 \[H, W, C\], got observation"
    with pytest.raises(ValueError, match=message):
        make_agent("td3", TIME_STEP_SPEC, ACTION_SPEC, image_encoder="impala")
    with pytest.raises(ValueError, match="image_encoder must be 'nature' or 'impala' or 'resnet', got 'vgg'"):
        make_agent("bc", image, ACTION_SPEC, image_encoder="vgg")
