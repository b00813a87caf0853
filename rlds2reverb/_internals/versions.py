"""The check that a library whose internals we use has the version that they were tried with."""

from __future__ import annotations


def require_version(library: str, found: str, tried: str) -> None:
    """Raises `ImportError` unless the library has the version that its internals were tried with."""
    if found != tried:
        raise ImportError(
            f"rlds2reverb uses internals of {library} and was tried with version {tried}; {library} {found} is "
            f"installed: run pip install '{library}=={tried}'"
        )
