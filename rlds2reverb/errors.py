"""Every exception that a documented call of this package raises, beside Python's own.

All have `Rlds2ReverbError` as a base, and the built-in exception that a caller would expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Rlds2ReverbError(Exception):
    """The base of all exceptions of this package."""


class SpecMismatchError(Rlds2ReverbError, ValueError):
    """Two nests of arrays differ in structure, dtype or shape: data and table, or two episodes.

    Attributes:
      details: where the message has to be another library's own sentence, the sentence that says what differs; else
        the message itself.
    """

    def __init__(self, message: str, *, details: str | None = None):
        super().__init__(message)
        self.details = message if details is None else details


@dataclass(frozen=True)
class Problem:
    """Something wrong with one episode: where, in which field, and what."""

    episode: int
    step: int | None
    field: str
    message: str

    def __str__(self) -> str:
        where = f"episode {self.episode}" + ("" if self.step is None else f", step {self.step}")
        return f"{self.message} ({where}, field {self.field})"


class InvalidEpisodeError(Rlds2ReverbError, ValueError):
    """An episode breaks a rule of RLDS or holds invalid numbers.

    Attributes:
      problems: everything that was found wrong with it; the message names the first.
    """

    def __init__(self, problems: Sequence[Problem]):
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = list(problems)


class SourceError(Rlds2ReverbError, ValueError):
    """A file or directory is not a data set that we read, or cannot be read safely."""


class ResumeError(Rlds2ReverbError, ValueError):
    """The data set is not the one that an unfinished run was writing."""


class KeyCollisionError(Rlds2ReverbError, ValueError):
    """Two items, or two chunks, have the same key by chance."""


class CorruptFileError(Rlds2ReverbError, ValueError):
    """A journal or manifest of ours has changed since it was written."""


class CheckpointError(Rlds2ReverbError, ValueError):
    """A checkpoint or its root directory has changed since we wrote it, or was written for other tables."""


class StorageFullError(Rlds2ReverbError, OSError):
    """The disk is full. What was written is kept; the same call continues once there is space."""


class ResourceInUseError(Rlds2ReverbError, OSError):
    """Another process uses the port, directory or data set."""


class InsufficientMemoryError(Rlds2ReverbError, MemoryError):
    """The data need more memory than there is."""


class ServerUnavailableError(Rlds2ReverbError, ConnectionError):
    """A Reverb server did not answer, or did not take items, within the deadline. Trying again may help."""


class ServerRestartedError(Rlds2ReverbError, ConnectionError):
    """The server at the address was restarted: what the earlier one had confirmed may be lost."""


class RateLimitedError(Rlds2ReverbError, RuntimeError):
    """A push was refused: too much was pushed for what was sampled. Sample, then push again."""


class TrainingDivergedError(Rlds2ReverbError, ArithmeticError):
    """A loss, a gradient or a weight is not finite any more."""
