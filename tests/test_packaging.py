"""Tests that the required libraries work together, beyond what `pip check` verifies, and of the public names."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rlds2reverb

ROOT = Path(__file__).parent.parent


def test_required_libraries_work():
    import h5py
    import importlib_resources
    import minari
    import numpy as np
    import pyarrow
    import reverb
    import rlds
    import tensorflow as tf
    import tensorflow_datasets as tfds
    import tree
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tf_agents.trajectories import time_step

    assert tf.reduce_sum(tf.constant([1, 2])) == 3
    assert tfds.features.Scalar(tf.int32).shape == ()
    assert schema_pb2.Schema(feature=[schema_pb2.Feature(name="x")]).feature[0].name == "x"
    assert importlib_resources.files("tensorflow_datasets").is_dir()
    assert (
        rlds.transformations.sum_dataset(
            tf.data.Dataset.from_tensor_slices({"reward": [1.0, 2.0]}), lambda s: s["reward"]
        )
        == 3
    )
    assert tree.map_structure(lambda x: x + 1, {"a": 1}) == {"a": 2}
    assert pyarrow.array(np.arange(3)).to_pylist() == [0, 1, 2]
    assert time_step.restart(np.zeros(2, np.float32)).is_first()
    assert minari.__version__ == "0.5.3" and h5py.version.hdf5_version
    server = reverb.Server([reverb.Table.queue("q", 1)], port=None)
    client = server.localhost_client()
    client.insert([1.0], {"q": 1.0})
    assert next(iter(client.sample("q")))[0].data[0] == 1.0
    server.stop()


def test_installed_versions_match_the_requirements():
    requirements = [Requirement(text) for text in importlib.metadata.requires("rlds2reverb")]
    required = [r for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})]
    names = {"tensorflow", "tensorflow-datasets"}
    names |= (
        {"tf-agents", "dm-reverb", "rlds"} if sys.version_info < (3, 12) else {"tf-keras", "tensorflow-probability"}
    )
    assert names <= {r.name for r in required}
    for requirement in required:
        names = ["tensorflow", "tensorflow-cpu"] if requirement.name == "tensorflow" else [requirement.name]
        versions = [d.version for d in map(find_distribution, names) if d]
        assert len(versions) == 1 and requirement.specifier.contains(versions[0]), (requirement, versions)
    assert importlib.metadata.version("rlds2reverb") == rlds2reverb.__version__


def find_distribution(name):
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def test_every_public_name_has_a_docstring():
    for name in rlds2reverb.__all__:
        assert getattr(rlds2reverb, name).__doc__, name
    assert dir(rlds2reverb) == sorted(rlds2reverb.__all__)
    with pytest.raises(AttributeError, match="attribute nothing"):
        rlds2reverb.nothing  # noqa: B018


def test_reading_hdf5_does_not_import_tensorflow(data):
    program = "import sys, rlds2reverb; rlds2reverb.summarize(rlds2reverb.load(sys.argv[1])); print('tensorflow' in sys.modules)"
    path = data / "tfds_fake/d4rl_mujoco_hopper/hopper_random-v1.hdf5"
    out = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"
