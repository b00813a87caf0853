"""The versions of other libraries that are tested, and the command that installs those of an extra."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys

#: PEP 440 specifiers, one of which a version must match; the last one contains the recommended version.
TESTED_VERSIONS: dict[str, tuple[str, ...]] = {
    "tensorflow": ("==2.15.*", ">=2.19,<2.22"),
    "tensorflow-datasets": ("==4.9.*",),
    "tf-agents": ("==0.19.*",),
    "dm-reverb": ("==0.14.*",),
}


#: The version of dm-reverb whose formats are written, whether or not one is installed.
REVERB_FORMAT = "0.14.0"


def is_tested(library: str, installed: str) -> bool:
    """Returns whether a version of a library is among the tested ones."""
    from packaging.specifiers import SpecifierSet

    return any(SpecifierSet(specifier).contains(installed) for specifier in TESTED_VERSIONS[library])


def require_tested(library: str, installed: str, *, feature: str) -> None:
    """Checks the version of a library whose internals a feature uses.

    Args:
      library: a key of `TESTED_VERSIONS`.
      installed: the installed version.
      feature: the feature that requires a tested version, as the subject of a sentence.

    Raises:
      ImportError: If the version is not among the tested ones.
    """
    if not is_tested(library, installed):
        specifiers = TESTED_VERSIONS[library]
        raise ImportError(
            f"{feature} requires internals of {library} that are tested with {' or '.join(specifiers)}, but "
            f"{installed} is installed; run pip install '{library}{specifiers[-1]}'"
        )


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
