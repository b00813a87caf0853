"""A base class for objects that are closed at the end of a `with` block."""

from __future__ import annotations

from typing import TypeVar

Self = TypeVar("Self", bound="Closing")


class Closing:
    """A context manager that provides itself, and calls its `close` at the end."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases what the object holds; each subclass implements it."""
        raise NotImplementedError
