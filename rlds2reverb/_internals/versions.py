"""The version check of libraries whose internals are used."""

from __future__ import annotations


def require_version(library: str, installed: str, tested: str) -> None:
    """Raises `ImportError` unless the installed version is the one with which its internals were tested."""
    if installed != tested:
        raise ImportError(
            f"rlds2reverb uses internals of {library}, tested with version {tested} only, but {installed} is "
            f"installed; run pip install '{library}=={tested}'"
        )
