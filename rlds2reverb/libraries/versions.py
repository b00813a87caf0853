"""The versions of other libraries with which the features that use their internals are tested."""

from __future__ import annotations

import sys

from rlds2reverb.system.installation import install_command

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


def describe_missing_reverb(feature: str) -> str:
    """Returns the message about a feature that requires dm-reverb in the Python of this process."""
    advice = f"run {install_command('dm-reverb')}"
    if sys.version_info >= (3, 12):
        advice = "use Python 3.10 or 3.11, or ingest and sample_dataset, which work without it"
    return f"{feature} requires dm-reverb, which exists for Linux on x86-64 and Python up to 3.11; {advice}"


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
