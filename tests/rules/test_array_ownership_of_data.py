"""The rule: arrays are copied once at each border with user code, so that reusing or modifying them changes no data."""

import itertools
from dataclasses import replace

import h5py
import numpy as np
import pytest
import tree

from rlds2reverb import Source, apply_transforms, ingest, load, write_dataset
from rlds2reverb.adders import GoalRelabel
from rlds2reverb.replay import BufferConfig, ReplayBuffer
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.sources import open_data
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.items import Items

VALUES = [1.0, 2.0, 3.0]
FLAGS = {"is_first": np.arange(4) == 0, "is_last": np.arange(4) == 3, "is_terminal": np.zeros(4, bool)}


def fill(value, steps):
    """Sets all rewards, actions and observations to a value, except in the last step of `is_last`."""
    for name in ("observation", "action", "reward", "observations", "actions", "rewards"):
        if name in steps:
            steps[name][...] = value
    if "is_last" in steps:
        steps["action"][-1] = steps["reward"][-1] = 0


def make_steps():
    columns = {"observation": np.zeros((4, 2)), "action": np.zeros((4, 1)), "reward": np.zeros(4)}
    return {
        **{name: column.astype(np.float32) for name, column in columns.items()},
        "discount": np.ones(4, "f"),
        **FLAGS,
    }


def refilled_steps():
    steps = make_steps()
    for value in VALUES:
        fill(value, steps)
        yield steps


def refilled_logs():
    log = {"observations": np.zeros((4, 2)), "actions": np.zeros((3, 1)), "rewards": np.zeros(3), "terminated": False}
    for value in VALUES:
        fill(value, log)
        yield log


def refilled_episodes():
    return (Episode(steps, index) for index, steps in enumerate(refilled_steps()))


def refilled_range(first=0, stop=None):
    return itertools.islice(refilled_episodes(), first, stop)


class SameArrays:
    """A custom adder that returns the same arrays for every episode."""

    def __init__(self):
        self.columns = {"reward": np.zeros(4, np.float32)}

    def item_spec(self, step_spec):
        import tensorflow as tf

        return {"reward": tf.TensorSpec((4,), tf.float32)}

    def __call__(self, episode):
        self.columns["reward"][:] = episode.steps["reward"]
        return Items(self.columns, np.array([0]), np.array([4]))


class Reusing:
    """A custom transform that returns the same arrays for every episode."""

    def fit(self, source):
        steps = make_steps()

        def apply(episode):
            fill(episode.steps["reward"][0], steps)
            return replace(episode, steps=steps)

        return apply, {}


def values_of(episodes):
    return [float(episode.steps["reward"][0]) for episode in list(episodes)]


def fresh_list():
    return [tree.map_structure(np.copy, steps) for steps in refilled_steps()]


def read_directory(path):
    """Returns the bytes of the items of a directory."""
    return {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file() and "chunks" in file.name}


def read_hdf5(path):
    with h5py.File(path) as file:
        return file["rewards"][::3].tolist()


def write(source, path, **options):
    write_dataset(source, path, format="d4rl", **options)
    return read_hdf5(path)


def ingest_matches(path, source, **options):
    """Returns the expected values if a directory of items is the same as that of fresh arrays."""
    fresh = {"adder": SameArrays()} if options.get("adder") else {}
    expected, got = ingest(fresh_list(), path / "fresh", **fresh), ingest(source, path / "got", **options)
    is_same = expected.fingerprint == got.fingerprint and read_directory(path / "fresh") == read_directory(path / "got")
    assert read_directory(path / "got")
    return VALUES if is_same else None


def buffer_values(kind, add):
    with ReplayBuffer("b", BufferConfig(kind=kind, sample_min_limit_ratio=0), seed=0) as buffer:
        add(buffer)
        samples = buffer.sample_batch(64).data
        return sorted({float(value) for value in np.ravel(samples["reward"])} - {0.0})


def change_after_load(source, change):
    loaded = load(source)
    change(source)
    return values_of(loaded)


def d4rl_rows():
    rows = {"observations": np.zeros((9, 2)), "actions": np.zeros((9, 1)), "rewards": np.repeat(VALUES, 3)}
    return {**rows, "terminals": np.zeros(9, bool), "timeouts": np.arange(9) % 3 == 2}


def zero(nest):
    """Overwrites all arrays of a value in place."""
    for leaf in tree.flatten(nest):
        if isinstance(leaf, np.ndarray):
            leaf[...] = 0


def items_in_training(source):
    config = TrainingConfig("bc", env=None, batch_size=2, hyperparameters={"hidden_sizes": (2,)})
    items = open_data(source, config).items
    return sorted(set(np.unique(items.read_items(np.arange(items.num_items))["reward"])) - {0})


#: Every way into the project: function that returns the values that were stored.
ENTRY_POINTS = {
    "load steps": lambda path: values_of(load(refilled_steps)),
    "load logs": lambda path: values_of(load(refilled_logs)),
    "load of rows": lambda path: values_of(load(refilled_logs, independent_rows=True))[::3],
    "load of an iterable": lambda path: values_of(
        load(type("Data", (), {"__iter__": lambda self: refilled_steps()})())
    ),
    "Source": lambda path: values_of(Source("x", "memory", refilled_episodes)),
    "range of a Source": lambda path: values_of(Source("x", "", refilled_range, count=lambda: 3).read(0, 3)),
    "to_rlds": lambda path: [
        float(next(iter(episode["steps"]))["reward"]) for episode in load(refilled_steps).to_rlds()
    ],
    "apply_transforms": lambda path: values_of(apply_transforms(load(refilled_steps), [Reusing()])[0]),
    "ingest": lambda path: ingest_matches(path, refilled_steps),
    "ingest of a Source": lambda path: ingest_matches(path, Source("x", "memory", refilled_episodes)),
    "adder": lambda path: ingest_matches(path, fresh_list(), adder=SameArrays()),
    "write_dataset": lambda path: write(refilled_steps, path / "x.hdf5"),
    "train": lambda path: items_in_training(refilled_steps),
    "list": lambda path: change_after_load(fresh_list(), zero),
    "D4RL columns": lambda path: change_after_load(d4rl_rows(), zero),
    "extend_episodes": lambda path: buffer_values("naive", lambda b: b.extend_episodes(refilled_episodes())),
    "extend_episodes of a Source": lambda path: buffer_values(
        "naive", lambda b: b.extend_episodes(load(refilled_steps))
    ),
    "extend": lambda path: buffer_values("episode", lambda b: b.extend(refilled_steps())),
}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_reused_arrays_do_not_change_what_was_handed_over(tmp_path, name):
    assert ENTRY_POINTS[name](tmp_path) == VALUES


class Zeroing(SameArrays):
    """A custom adder that overwrites the episodes that it converts."""

    def __call__(self, episode):
        items = super().__call__(episode)
        zero(episode.steps)
        return items


def convert_in_place(path):
    seen = []
    ingest(fresh_list(), path, adder=Zeroing(), priority=lambda episode, items: seen.append(episode.steps) or 1.0)
    return sorted({float(steps["reward"][0]) for steps in seen})


def sample_twice():
    with ReplayBuffer("b", BufferConfig(kind="naive", sample_min_limit_ratio=0), seed=0) as buffer:
        buffer.extend_episodes(load(fresh_list()))
        zero(buffer.sample_batch(64).data)
        zero(buffer.sample(64))
        zero(buffer.state_dict()["arrays"])
        return sorted({float(value) for value in buffer.sample_batch(64).data["reward"]})


def iterate_twice(source):
    for episode in source:
        zero(episode.steps)
    return values_of(source)


def fit_in_place(source):
    class OnlyReading:
        def fit(self, source):
            for episode in source:
                zero(episode.steps)
            return (lambda episode: episode), {}

    return values_of(apply_transforms(source, [OnlyReading()])[0])


def transform_in_place(source):
    kept = list(source)

    class InPlace:
        def fit(self, source):
            return (lambda episode: zero(episode.steps) or episode), {}

    listed = Source("x", "memory", lambda: iter(kept))
    assert values_of(apply_transforms(listed, [InPlace()])[0]) == [0.0, 0.0, 0.0]
    return values_of(listed)


def relabel_in_place():
    logs = [{**steps, "observation": {"achieved_goal": steps["observation"], "desired_goal": steps["observation"] + 1}}
            for steps in fresh_list()]  # fmt: skip

    def reward_fn(achieved, desired, transitions):
        zero((achieved, desired, transitions))
        return np.ones(len(achieved))

    def terminal_fn(achieved, desired, transitions):
        return (achieved == desired).all(axis=1)

    source = load(logs)
    relabelled = GoalRelabel(reward_fn, terminal_fn=terminal_fn, seed=1)(source)
    again = GoalRelabel(lambda a, d, t: np.ones(len(a)), terminal_fn=terminal_fn, seed=1)(source)
    same = all(
        np.array_equal(a, b)
        for one, other in zip(relabelled, again, strict=True)
        for a, b in zip(tree.flatten(one.steps), tree.flatten(other.steps), strict=True)
    )
    return VALUES if same else None


#: Every function of the user that gets arrays, called with one that overwrites them: returns the values of the data.
CALLBACKS = {
    "priority": lambda path: ingest_matches(
        path, fresh_list(), priority=lambda episode, items: zero((episode.steps, items.columns)) or 1.0
    ),
    "adder": lambda path: convert_in_place(path / "x"),
    "transform": lambda path: transform_in_place(load(fresh_list())),
    "progress of ingest": lambda path: ingest_matches(
        path, fresh_list(), progress=lambda stage, episode: zero(episode.steps)
    ),
    "progress of write_dataset": lambda path: write(
        fresh_list(), path / "x.hdf5", progress=lambda stage, episode: zero(episode.steps)
    ),
    "fit of a transform": lambda path: fit_in_place(load(fresh_list())),
    "iteration": lambda path: iterate_twice(load(fresh_list())),
    "iteration of D4RL columns": lambda path: iterate_twice(load(d4rl_rows())),
    "samples and states": lambda path: sample_twice(),
    "reward_fn": lambda path: relabel_in_place(),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_that_write_in_place_change_no_data(tmp_path, name):
    assert CALLBACKS[name](tmp_path) == VALUES
