"""Tests of the tested versions of libraries whose internals are used, and of the choice of Keras."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

from rlds2reverb.libraries.versions import TESTED_VERSIONS, describe_missing_reverb, is_tested, require_tested
from rlds2reverb.system.replacements import explain_missing

SINCE_KERAS_3 = int(importlib.metadata.version("keras").partition(".")[0]) >= 3


@pytest.mark.parametrize("version", ["2.15.1", "2.19.0", "2.20.0", "2.21.1"])
def test_tested_versions_of_tensorflow_are_accepted(version):
    require_tested("tensorflow", version, feature="sampling")


@pytest.mark.parametrize("version", ["2.14.1", "2.16.2", "2.18.0", "2.22.0"])
def test_untested_version_raises_with_the_feature_and_the_command_to_fix_it(version):
    message = (
        rf"sampling requires internals of tensorflow .* ==2\.15\.\* or >=2\.19,<2\.22, but {version} is installed; "
        r"run pip install 'tensorflow>=2\.19,<2\.22'"
    )
    with pytest.raises(ImportError, match=message):
        require_tested("tensorflow", version, feature="sampling")


def test_installed_versions_are_tested():
    for library in TESTED_VERSIONS:
        names = [library, "tensorflow-cpu"] if library == "tensorflow" else [library]
        versions = [found.version for found in importlib.metadata.distributions() if found.name in names]
        assert all(is_tested(library, version) for version in versions), library


@pytest.mark.parametrize(("python", "advice"), [((3, 11), "; run "), ((3, 13), "; use Python 3.10 or 3.11, or ingest")])
def test_missing_reverb_is_explained(monkeypatch, python, advice):
    monkeypatch.setattr(sys, "version_info", (*python, 0))
    message = describe_missing_reverb("the client of Reverb")
    assert message.startswith("the client of Reverb requires dm-reverb, which exists for Linux") and advice in message


def test_lazy_import_raises_the_error_of_a_package_that_does_not_work():
    def get(name):
        raise AttributeError("_ARRAY_API not found")

    message = r"Learner cannot be imported: _ARRAY_API not found \(.*test_versions.py, line \d+\)"
    with pytest.raises(ImportError, match=message):
        explain_missing(get)("Learner")
    with pytest.raises(ImportError, match="cannot import name 'Lerner'"):
        exec("from rlds2reverb import Lerner")


def run_python(program, **variables):
    """Runs a program in a new process, with TF_USE_LEGACY_KERAS only if it is given."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env={**environment, **variables}, timeout=200)


BUILD_AGENTS = """
import tensorflow as tf
import rlds2reverb.learners.agents
from tf_agents.networks import sequential
layer = tf.keras.layers.Dense(1)
sequential.Sequential([layer]).create_variables(tf.TensorSpec([2]))
print(isinstance(layer, tf.Module))
"""


def slow_with_keras_2(test):
    """Marks a test as slow if TensorFlow contains Keras 2: then any process that builds agents shows the same."""
    return test if SINCE_KERAS_3 else pytest.mark.slow(test)


@slow_with_keras_2
def test_keras_2_is_selected():
    process = run_python(f"import rlds2reverb{BUILD_AGENTS}")
    assert process.stdout == "True\n", process.stderr


@pytest.mark.slow
def test_keras_2_is_selected_although_the_variable_is_set():
    process = run_python(f"import rlds2reverb{BUILD_AGENTS}", TF_USE_LEGACY_KERAS="1")
    assert process.stdout == "True\n", process.stderr


@slow_with_keras_2
def test_keras_2_is_selected_after_tensorflow_was_imported():
    process = run_python(f"import tensorflow\nimport rlds2reverb{BUILD_AGENTS}")
    assert process.stdout == "True\n", process.stderr


FIX = "import rlds2reverb before you use tf.keras, or set TF_USE_LEGACY_KERAS=1 in the environment"


@pytest.mark.skipif(not SINCE_KERAS_3, reason="the installed TensorFlow contains Keras 2")
@pytest.mark.parametrize(
    "use", ["import tensorflow as tf; tf.keras.Model", "from tensorflow.keras.layers import Dense", None]
)
def test_keras_3_in_use_raises_with_the_fix(use):
    variables = {} if use else {"TF_USE_LEGACY_KERAS": "0"}
    process = run_python(f"{use}\nimport rlds2reverb{BUILD_AGENTS}", **variables)
    assert process.stdout == "" and FIX in process.stderr
