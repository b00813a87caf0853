"""Wrappers of Gymnasium environments: dotted paths, spaces, values, and seeds."""

import copy
import functools
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.utils.env_checker import check_env
from hypothesis import assume, given, strategies as st
from properties import examples

from rlds2reverb.envs import (
    EpisodicRandomFrameCrop,
    FrameFlip,
    GymnasiumEnvironment,
    ImageChannelFirst,
    NonEpisodic,
    ObservationClip,
    SparseReward,
    check_wrapper,
)
from rlds2reverb.types.nest_paths import find_leaves, format_path, get_part

IMAGE = Box(0, 255, (4, 6, 3), np.uint8)
CAMERAS = Dict({"camera": Dict({"front": IMAGE, "rear": IMAGE}), "joints": Tuple([Box(-1e3, 1e3, (2,)), Discrete(3)])})


class Sampling(gymnasium.Env):
    """Observations are samples of a space; rewards are the numbers passed; episodes end after `length` steps."""

    def __init__(self, space=IMAGE, rewards=(0.5,), length=4):
        self.observation_space, self.action_space = copy.deepcopy(space), Discrete(2)  # Spaces have a random state.
        self.rewards, self.length, self.num_steps = rewards, length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.num_steps = 0
        self.last = self.observation_space.sample()
        return self.last, {}

    def step(self, action):
        self.num_steps += 1
        self.last = self.observation_space.sample()
        reward = self.rewards[(self.num_steps - 1) % len(self.rewards)]
        return self.last, reward, self.num_steps == self.length, False, {}


class Fixed(Sampling):
    """Observations are always the same, so that the choices of wrappers can be read from them."""

    image = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.image, {}

    def step(self, action):
        return self.image, *super().step(action)[1:]


def test_sparse_reward_is_1_for_positive_rewards():
    env = SparseReward(Sampling(rewards=(-2.0, 0.0, 1e-9, 7, np.nan), length=9))
    env.reset()
    assert [env.step(0)[1] for _ in range(4)] == [0.0, 0.0, 1.0, 1.0]
    assert np.isnan(env.step(0)[1])


def test_non_episodic_never_ends():
    env = NonEpisodic(Sampling(length=2))
    env.reset()
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False)] * 3


def test_observations_are_clipped_with_their_space():
    space = Dict({"far": Box(-np.inf, 1e3, (2,)), "near": Box(-1, 1, (1,)), "image": IMAGE})
    env = ObservationClip(Sampling(space))
    assert env.observation_space["far"] == Box(-200, 200, (2,)) and env.observation_space["near"] == space["near"]
    assert env.observation_space["image"] == IMAGE  # Integers are clipped only on request.
    assert ObservationClip(Sampling(IMAGE), max_v=99.5).observation_space == Box(0, 99, IMAGE.shape, np.uint8)
    observation = {"far": np.array([-1e9, np.nan], np.float32), "near": np.zeros(1, np.float32), "image": 0}
    clipped = env.observation(observation)
    assert clipped["far"][0] == -200 and np.isnan(clipped["far"][1]) and clipped["far"].dtype == np.float32
    assert observation["far"][0] == np.float32(-1e9) and clipped["image"] == 0
    with pytest.raises(ValueError, match=r"max_v must be a number in \[2, inf\], got 1"):
        ObservationClip(Sampling(), min_v=2, max_v=1)


def test_fields_select_parts_of_nested_observations():
    env = ImageChannelFirst(Sampling(CAMERAS), fields="camera.front")
    assert env.observation_space["camera"]["front"].shape == (3, 4, 6)
    assert env.observation_space["camera"]["rear"] == IMAGE
    observation, _ = env.reset(seed=0)
    inner = env.unwrapped.last["camera"]
    assert np.array_equal(observation["camera"]["front"], np.moveaxis(inner["front"], -1, 0))
    assert observation["camera"]["rear"] is inner["rear"] and inner["front"].shape == (4, 6, 3)
    both = ImageChannelFirst(Sampling(CAMERAS), fields="camera")
    assert both.observation_space == ImageChannelFirst(Sampling(CAMERAS)).observation_space
    clipped = ObservationClip(Sampling(CAMERAS), fields=["joints.0"], max_v=5, min_v=-5)
    assert clipped.observation_space["joints"][0] == Box(-5, 5, (2,))


@pytest.mark.parametrize(
    ("wrapper", "fields", "error", "message"),
    [
        (
            ImageChannelFirst,
            "camera.frnt",
            ValueError,
            r"there is no path 'camera.frnt' in the observation, which has the paths 'camera', 'camera.front', "
            r"'camera.rear', 'joints', 'joints.0', 'joints.1'; did you mean 'camera.front'\?",
        ),
        (FrameFlip, "joints.0", TypeError, r"FrameFlip requires images with three axes, but .* 'joints.0' is Box"),
        (FrameFlip, "joints", TypeError, "FrameFlip requires images with three axes, but 'joints' contains none"),
        (ObservationClip, "joints.1", TypeError, "ObservationClip requires floats, but .* 'joints.1' is Discrete"),
        (ObservationClip, [], ValueError, "fields must contain at least one path, got none"),
        (ObservationClip, [0], ValueError, "a path must be a string such as 'camera.front', got 0"),
    ],
)
def test_invalid_fields_raise(wrapper, fields, error, message):
    with pytest.raises(error, match=message):
        wrapper(Sampling(CAMERAS), fields=fields)


def test_paths_of_observations_that_are_not_nested_or_ambiguous_raise():
    with pytest.raises(ValueError, match="there is no path 'image' in the observation, which is not nested"):
        ImageChannelFirst(Sampling(), fields="image")
    space = Dict({"a.b": Box(-1, 1, (1,)), "a": Dict({"b": Box(-1, 1, (1,))})})
    with pytest.raises(ValueError, match="the path 'a.b' is ambiguous because keys contain dots"):
        ObservationClip(Sampling(space), fields="a.b")


def observe_episodes(env, num_episodes=30, seed=0):
    """Returns the observations of several episodes, each of which has the same ones in all of its steps."""
    seen = []
    for number in range(num_episodes):
        first, _ = env.reset(seed=seed if not number else None)
        assert all(np.array_equal(env.step(0)[0], first) for _ in range(3))
        assert first in env.observation_space and first.flags.c_contiguous
        seen.append(first)
    return seen


def test_flips_hold_for_an_episode_and_occur_in_all_combinations():
    image = Fixed.image
    flips = {image.tobytes(), image[::-1].tobytes(), image[:, ::-1].tobytes(), image[::-1, ::-1].tobytes()}
    assert {seen.tobytes() for seen in observe_episodes(FrameFlip(Fixed()))} == flips
    env = FrameFlip(ImageChannelFirst(Fixed()), ud_flip_prob=1, lr_flip_prob=0, channel_order="channels_first")
    assert np.array_equal(observe_episodes(env, 1)[0], np.moveaxis(image[::-1], -1, 0))
    with pytest.raises(ValueError, match=r"lr_flip_prob must be a number in \[0, 1\], got 2"):
        FrameFlip(Fixed(), lr_flip_prob=2)


def test_space_of_flipped_images_contains_what_can_occur_and_no_more():
    env = Fixed()
    low, high = env.image.astype(np.int16), env.image.astype(np.int16) + 1
    env.observation_space = Box(low, high, dtype=np.int16)
    for probability, kept in ((0, [low]), (1, [low[::-1]]), (0.5, [low, low[::-1]])):
        space = FrameFlip(env, ud_flip_prob=probability, lr_flip_prob=0).observation_space
        np.testing.assert_array_equal(space.low, np.minimum.reduce(kept))
        np.testing.assert_array_equal(space.high, np.maximum.reduce(kept) + 1)


def test_crops_hold_for_an_episode_and_reach_all_places():
    env = EpisodicRandomFrameCrop(Fixed(), cropping_fraction=0.5)
    assert env.observation_space == Box(0, 255, (2, 3, 3), np.uint8)
    expected = {Fixed.image[y : y + 2, x : x + 3].tobytes() for y in range(3) for x in range(4)}
    assert {seen.tobytes() for seen in observe_episodes(env, 100)} == expected
    whole = EpisodicRandomFrameCrop(ImageChannelFirst(Fixed()), cropping_fraction=1, channel_order="channels_first")
    assert np.array_equal(whole.reset()[0], np.moveaxis(Fixed.image, -1, 0))
    tiny = EpisodicRandomFrameCrop(Fixed(), cropping_fraction=0.01)
    assert tiny.observation_space.shape == (1, 1, 3)
    with pytest.raises(ValueError, match="cropping_fraction must be above 0, got 0"):
        EpisodicRandomFrameCrop(Fixed(), cropping_fraction=0)


def test_crops_are_shared_or_chosen_for_each_image():
    def crop(**options):
        env = EpisodicRandomFrameCrop(Sampling(CAMERAS), cropping_fraction=0.5, **options)
        same = []
        for seed in range(20):
            observation, _ = env.reset(seed=seed)
            places = []
            for name in ("front", "rear"):
                image, cropped = env.unwrapped.last["camera"][name], observation["camera"][name]
                windows = np.lib.stride_tricks.sliding_window_view(image, (2, 3), (0, 1)).transpose(0, 1, 3, 4, 2)
                places.append(np.argwhere((windows == cropped).all((2, 3, 4))).tolist())
            same.append(places[0] == places[1])
        return same

    assert all(crop()) and not all(crop(share_cropping=False))
    space = Dict({"large": Box(0, 1, (8, 8, 1)), "small": Box(0, 1, (4, 4, 1))})
    with pytest.raises(ValueError, match=r"equal sizes, got \[\(4, 4\), \(8, 8\)\]; use share_cropping=False"):
        EpisodicRandomFrameCrop(Sampling(space))
    EpisodicRandomFrameCrop(Sampling(space), share_cropping=False)


def test_choices_depend_on_the_seed_and_differ_between_wrappers():
    def see(seed):
        crop = functools.partial(EpisodicRandomFrameCrop, cropping_fraction=0.5)
        env = crop(crop(FrameFlip(Sampling(CAMERAS)), fields="camera.front"), fields="camera.rear")
        observation, _ = env.reset(seed=seed)
        return [observation, env.env.env.is_flipped, list(env.places.values()), list(env.env.places.values())]

    assert str(see(3)) == str(see(3))
    assert any(see(seed)[2] != see(seed)[3] for seed in range(3))
    assert len({str(see(seed)[1]) for seed in range(12)}) > 1


WRAPPERS = {
    "sparse": SparseReward,
    "clip": ObservationClip,
    "channels": functools.partial(ImageChannelFirst, fields="camera.front"),
    "flip": FrameFlip,
    "crop": functools.partial(EpisodicRandomFrameCrop, share_cropping=False),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapped_environments_keep_the_contracts(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is different from the unwrapped version")
        check_env(WRAPPERS[name](Sampling(CAMERAS)), skip_render_check=True)
    check_wrapper(lambda: GymnasiumEnvironment(WRAPPERS[name](Sampling(CAMERAS))), num_steps=20)


def test_wrappers_are_recorded_in_the_spec_of_the_environment():
    gymnasium.register("Sampling-v0", Sampling)
    try:
        env = FrameFlip(gymnasium.make("Sampling-v0", disable_env_checker=True), ud_flip_prob=1)
        again = gymnasium.make(env.spec)
        assert isinstance(again, FrameFlip) and again.probabilities == (1, 0.5)
    finally:
        del gymnasium.registry["Sampling-v0"]


@st.composite
def nested_spaces(draw, depth=3):
    """Generates trees of Dict and Tuple spaces with images, vectors and integers."""
    kind = draw(st.sampled_from(["image", "vector", "integer"] + (["dict", "tuple"] * 2 if depth else [])))
    if kind == "dict":
        names = draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1))
        return Dict({name: draw(nested_spaces(depth - 1)) for name in names})
    if kind == "tuple":
        return Tuple([draw(nested_spaces(depth - 1)) for _ in range(draw(st.integers(1, 2)))])
    sizes = [draw(st.integers(1, 4)) for _ in range(3)]
    if kind == "image":
        return Box(0, 255, tuple(sizes), np.uint8)
    return Box(-300, 900, (sizes[0],)) if kind == "vector" else Discrete(sizes[0])


@examples(60)
@given(nested_spaces(), st.data(), st.integers(1, 5), st.integers(0, 99))
def test_wrappers_change_exactly_the_parts_named(space, data, length, seed):
    """Values stay in the changed space, the other parts are the same objects, and equal seeds give equal values."""
    wrapper = data.draw(st.sampled_from([ImageChannelFirst, FrameFlip, EpisodicRandomFrameCrop, ObservationClip]))
    keys = [keys for keys, _ in find_leaves(space, None)]
    rank = 1 if wrapper is ObservationClip else 3
    suited = [path for path in keys if path and len(get_part(space, path).shape) == rank]
    assume(suited)
    chosen = data.draw(st.lists(st.sampled_from(suited), unique=True, min_size=1))
    make = functools.partial(wrapper, fields=[format_path(path) for path in chosen])
    if wrapper is EpisodicRandomFrameCrop:
        make = functools.partial(make, share_cropping=False, cropping_fraction=0.6)
    env, again = make(Sampling(space, length=length)), make(Sampling(space, length=length))
    for number in range(length + 1):
        one, other = (e.step(0)[0] if number else e.reset(seed=seed)[0] for e in (env, again))
        assert one in env.observation_space
        for path in keys:
            part, inner = get_part(one, path), get_part(env.unwrapped.last, path)
            assert (part is inner) == (path not in chosen)
            assert np.array_equal(part, get_part(other, path))
