"""The command that installs missing packages in the environment of this process."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Modules of packages that are not in requirements/light.txt.
_LEFT_OUT = {"google", "grpc", "matplotlib", "pyarrow", "reverb", "rlds", "tensorboard", "tensorflow",
             "tensorflow_datasets", "tensorflow_probability", "tf_agents", "tf_keras"}  # fmt: skip


def install_command(name: str) -> str:
    """Returns the command, for bash or zsh, that adds an extra, or else a package, to the environment of this process.

    It changes the version of no installed package. An installation of the extra itself would do so: it adds
    `tensorflow` to an environment with `tensorflow-cpu`, and upgrades what TensorFlow and TF-Agents require.

    Args:
      name: an extra of rlds2reverb, such as 'minari', or a package, such as 'torch'.
    """
    inside = os.path.relpath(sys.executable)
    python = shlex.quote(sys.executable if inside.startswith("..") else inside)
    pip = f"{python} -m pip" if any(importlib.metadata.distributions(name="pip")) else "uv pip"
    packages = " ".join(map(shlex.quote, _find_requirements(name))) or name
    return f"{pip} install -c <({pip} freeze --exclude-editable) {packages}"


@contextmanager
def explain_left_out(feature: str) -> Iterator[None]:
    """Raises `ImportError` with a sentence for a package that the light installation leaves out.

    Args:
      feature: what requires it, such as 'a dataset of TFDS'.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _LEFT_OUT:
            raise
        raise ImportError(
            f"{feature} requires {missing}, which the light installation leaves out; install rlds2reverb with its "
            "requirements (pip install rlds2reverb)"
        ) from error


def _find_requirements(extra: str) -> list[str]:
    """Returns the packages that an extra adds on this Python; none if it does not exist, or nothing is installed."""
    try:
        from packaging.requirements import Requirement  # It is not part of the smallest installation.

        requirements = map(Requirement, importlib.metadata.requires("rlds2reverb") or ())
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return []
    added = [
        requirement
        for requirement in requirements
        if requirement.marker is not None
        and requirement.marker.evaluate({"extra": extra})
        and not requirement.marker.evaluate({"extra": ""})
    ]
    for requirement in added:
        requirement.marker = None
    return list(dict.fromkeys(map(str, added)))
