"""Representations: short for every public class, without the contents of arrays."""

import dataclasses
import importlib
import inspect

import numpy as np
import pytest

from rlds2reverb import Episode, TrainingConfig, load
from rlds2reverb.types.sample_info import SampleInfo
from rlds2reverb.types.short_repr import shorten

PACKAGES = ("", ".adders", ".envs", ".learners", ".learners.agents", ".replay", ".reverb.sampling", ".training")
LARGE = {"first": np.arange(0.5, 1000), "second": [{"third": np.arange(0.5, 1000)}] * 100}
#: Parts of the annotations of fields that may contain arrays.
OF_ARRAYS = ("Array", "Mapping", "Nest", "Tensor", "dict", "ndarray")


def find_records():
    """Returns the public data classes and named tuples by their names."""
    modules = [importlib.import_module(f"rlds2reverb{name}") for name in PACKAGES]
    public = {name: getattr(module, name) for module in modules for name in module.__all__}
    classes = {
        name: entry for name, entry in public.items() if isinstance(entry, type) and not inspect.isabstract(entry)
    }
    return {name: kind for name, kind in classes.items() if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")}


def make_large(kind):
    """Returns an instance with a large nest in each field that may contain arrays, and plain values in all others."""
    if hasattr(kind, "_fields"):
        words = ("Any", *OF_ARRAYS)
        annotations = [str(kind.__annotations__[name]) for name in kind._fields]
        return kind(*[LARGE if any(word in annotation for word in words) else "word" for annotation in annotations])
    instance = object.__new__(kind)
    for field in dataclasses.fields(kind):
        default = "word" if field.default is dataclasses.MISSING else field.default
        is_large = any(word in str(field.type) for word in OF_ARRAYS)
        object.__setattr__(instance, field.name, LARGE if is_large else default)
    return instance


def test_representations_of_public_classes_are_short_and_contain_no_arrays():
    records = find_records()
    assert {"Episode", "Evaluation", "Film", "Items", "SampleInfo", "TimeStep", "TransitionBatch"} <= records.keys()
    for name, kind in records.items():
        if kind is not Episode:
            shown = repr(make_large(kind))
            assert len(shown) < 1000 and "0.5" not in shown and "array(" not in shown, f"{name}: {shown[:300]}"


def test_representation_of_an_episode_is_one_line(data):
    source = load(data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5")
    episode, *_ = source
    end = "terminal" if episode.is_terminal else "truncated"
    expected = f"({episode.num_steps} steps, observation float32 [11], action float32 [3], {end}, index 0)"
    assert repr(episode) == f"Episode{expected}"
    observation = {"image": np.zeros((2, 8, 8, 3), np.uint8), "state": np.zeros((2, 4), np.float32)}
    steps = {"observation": observation, "is_first": np.array([True, False]), "is_terminal": np.array([False, True])}
    assert repr(Episode(steps, 7)) == (
        "Episode(2 steps, observation {image: uint8 [8, 8, 3], state: float32 [4]}, terminal, index 7)"
    )


def test_fields_with_their_defaults_are_left_out():
    assert repr(TrainingConfig("iql", steps=5)).startswith("TrainingConfig(algo='iql', steps=5, batch_size=256, ")
    assert repr(SampleInfo(np.zeros(3, np.uint64), *[None] * 11)) == "SampleInfo(key=uint64 [3])"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.arange(3), "int64 [3]"),
        (list(range(3)), "[0, 1, 2]"),
        (("a", np.zeros(2)), "('a', float64 [2])"),
        (("a",), "('a',)"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, …]"),
        (["x" * 30] * 3, "[3 entries]"),
        ({"a": {"b": np.zeros((2, 2))}}, "{a: {b: float64 [2, 2]}}"),
        ("x" * 100, "'" + "x" * 79 + "…"),
    ],
)
def test_values_are_shortened(value, expected):
    assert shorten(value) == expected
