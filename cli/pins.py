"""Comparison of installed versions with the requirements of rlds2reverb and of all its dependencies."""

from __future__ import annotations

import importlib.metadata
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class Pin:
    """One requirement of an installed distribution.

    Attributes:
      name: name of the required distribution.
      specifier: the accepted versions, such as '==4.5.0'; empty for any.
      version: the installed version, or None.
      required_by: name and version of the distribution that requires it.
    """

    name: str
    specifier: str
    version: str | None
    required_by: str

    @property
    def is_satisfied(self) -> bool:
        """Whether an accepted version is installed."""
        return self.version is not None and SpecifierSet(self.specifier).contains(self.version, prereleases=True)


def installed_version(name: str) -> str | None:
    """Returns the version of a distribution, or None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def iterate_pins(root: str, *, extras: frozenset[str] = frozenset()) -> Iterator[Pin]:
    """Yields the requirements of a distribution and of all its direct and indirect dependencies, each once.

    `tensorflow-cpu` counts as `tensorflow` if only the former is installed.

    Raises:
      PackageNotFoundError: If `root` is not installed.
    """
    importlib.metadata.distribution(root)  # Raises if it is not installed.
    queue = deque([(root, extras)])
    visited: set[tuple[str, frozenset[str]]] = set()
    yielded: set[Pin] = set()
    while queue:
        holder, with_extras = queue.popleft()
        if (canonicalize_name(holder), with_extras) in visited:
            continue
        visited.add((canonicalize_name(holder), with_extras))
        for requirement in _read_requirements(holder, with_extras):
            name = requirement.name
            if name == "tensorflow" and installed_version(name) is None and installed_version("tensorflow-cpu"):
                name = "tensorflow-cpu"
            version = installed_version(name)
            if name == "libclang" and version is None:  # TensorFlow uses it only to generate its own sources.
                continue
            pin = Pin(name, str(requirement.specifier), version, f"{holder} {installed_version(holder)}")
            if pin not in yielded:
                yielded.add(pin)
                yield pin
            if version is not None:
                queue.append((name, frozenset(requirement.extras)))


def _read_requirements(holder: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yields the requirements of a distribution with its extras that apply to this platform."""
    for text in importlib.metadata.requires(holder) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # Old metadata, which current installers ignore as well.
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement
