"""The exceptions that documented calls of this package raise, in addition to Python's own.

Each derives from `Rlds2ReverbError` and from the built-in exception that a caller would expect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The newest messages by their text, with which `rename_arguments` finds them in any other text.
_MESSAGES: dict[str, Message] = {}
_MAX_MESSAGES = 10_000


class Message(str):
    """A message that names arguments, for which the command line can name its options instead.

    As a string it names them as Python does: `steps must be an integer >= 1, got 0`, `... allow the download
    (download=True)`. Any text that contains the string, such as an f-string, contains the message: see
    `rename_arguments`. The errors of this package are created with the same arguments.

    Attributes:
      sentence: the sentence without these arguments.
      about: name of the argument that the sentence is about, which stands before it, or ''.
      value: its value; `...` if it is not shown.
      remedies: arguments to pass instead, which follow the sentence, by name; a value of `...` is not shown.
    """

    sentence: str
    about: str
    value: Any
    remedies: dict[str, Any]

    def __new__(cls, sentence: str, *, about: str = "", value: Any = ..., **remedies: Any) -> Message:
        """Creates a message from its attributes."""
        message = super().__new__(cls, _compose(sentence, about, value, remedies, name_argument))
        message.sentence, message.about, message.value, message.remedies = sentence, about, value, remedies
        _MESSAGES[str(message)] = message
        if len(_MESSAGES) > _MAX_MESSAGES:
            del _MESSAGES[next(iter(_MESSAGES))]
        return message

    @property
    def fields(self) -> dict[str, Any]:
        """The other attributes, as arguments of the constructor."""
        return {"about": self.about, "value": self.value, **self.remedies}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.sentence, self.fields)


def _restore(sentence: str, fields: Mapping[str, Any]) -> Message:
    return Message(sentence, **fields)


def find_messages(text: str) -> list[Message]:
    """Returns the messages that a text contains, the longest first."""
    found = [message for known, message in [*_MESSAGES.items()] if known in text]
    return sorted(found, key=len, reverse=True)


def rename_arguments(text: str, name: Callable[[str, Any], str]) -> str:
    """Returns a text in which `name` names the arguments of each `Message`, from a name and a value or `...`."""
    for message in find_messages(text):
        renamed = _compose(message.sentence, message.about, message.value, message.remedies, name)
        text = re.sub(r"(?<!\w)" + re.escape(message), renamed.replace("\\", r"\\"), text)
    return text


def describe_messages(document: str) -> list[Any]:
    """Returns the messages that a JSON document contains, as plain values for `restore_messages`."""
    found = [message for known, message in [*_MESSAGES.items()] if json.dumps(known)[1:-1] in document]
    described = [
        [message.sentence, {name: [] if value is ... else [value] for name, value in message.fields.items()}]
        for message in found
    ]
    return list(json.loads(json.dumps(described, default=repr)))


def restore_messages(described: Iterable[Any]) -> None:
    """Makes the messages in texts of a different process known to this one."""
    for sentence, values in described:
        Message(sentence, **{name: value[0] if value else ... for name, value in values.items()})


def _compose(
    sentence: str, about: str, value: Any, remedies: Mapping[str, Any], name: Callable[[str, Any], str]
) -> str:
    before = f"{name(about, value)} " if about else ""
    after = f" ({' or '.join(name(*remedy) for remedy in remedies.items())})" if remedies else ""
    return f"{before}{sentence}{after}"


def name_argument(argument: str, value: Any) -> str:
    """Returns `argument=value` as in a call, or only the name if the value is `...`."""
    return argument if value is ... else f"{argument}={value!r}"


class Rlds2ReverbError(Exception):
    """The base class of all exceptions of this package.

    Args:
      *args: the message; of an `OSError`, also its number before it.
      **fields: names and values of arguments that the message is about; see `Message`.
    """

    def __init__(self, *args: Any, **fields: Any):
        super().__init__(*([Message(*args, **fields)] if fields else args))


class ArgumentError(Rlds2ReverbError, ValueError):
    """The value of an argument is invalid, or contradicts that of a second argument."""


class SpecMismatchError(Rlds2ReverbError, ValueError):
    """Two nests of arrays, such as data and table or two episodes, differ in structure, dtype or shape.

    Attributes:
      details: the difference. It equals the message, unless the message is prescribed by another library's API.
    """

    def __init__(self, message: str, *, details: str | None = None, **fields: Any):
        super().__init__(message, **fields)
        self.details = str(self) if details is None else details


@dataclass(frozen=True)
class ErrorFinding:
    """An error found in an episode: the episode, the step (None for the whole episode), the field and a message."""

    episode: int
    step: int | None
    field: str
    message: str

    def __str__(self) -> str:
        where = f"episode {self.episode}" + ("" if self.step is None else f", step {self.step}")
        return f"{self.message} ({where}, field {self.field})"


class InvalidEpisodeError(Rlds2ReverbError, ValueError):
    """An episode violates a rule of RLDS or contains invalid numbers.

    Attributes:
      errors: all errors of the episode; the message names the first one.
    """

    def __init__(self, errors: Sequence[ErrorFinding]):
        more = f"; and {len(errors) - 1} more" if len(errors) > 1 else ""
        super().__init__(f"{errors[0]}{more}")
        self.errors = list(errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors,)


class SourceError(Rlds2ReverbError, ValueError):
    """A file or directory is not a supported dataset, or cannot be read safely."""


class UnusableSourceError(SourceError):
    """A dataset as a whole has to be read differently, so that no episode of it can be trusted."""


class ResumeError(Rlds2ReverbError, ValueError):
    """The dataset differs from that of the unfinished run to resume."""


class KeyCollisionError(Rlds2ReverbError, ValueError):
    """Two items, or two chunks, have the same key by chance."""


class CorruptFileError(Rlds2ReverbError, ValueError):
    """A file of rlds2reverb, such as a journal or manifest, is missing or has changed since it was written."""


class CheckpointError(Rlds2ReverbError, ValueError):
    """A checkpoint or its root directory has changed since it was written, or was written for other tables."""


class StorageFullError(Rlds2ReverbError, OSError):
    """The disk is full. The data written so far are kept; repeat the call once there is space to continue."""


class ResourceInUseError(Rlds2ReverbError, OSError):
    """Another process uses the port, directory or dataset."""


class InsufficientMemoryError(Rlds2ReverbError, MemoryError):
    """The data need more memory than is available."""


class ServerUnavailableError(Rlds2ReverbError, ConnectionError):
    """A Reverb server did not answer or accept items in time; trying again may help."""


class ServerRestartedError(Rlds2ReverbError, ConnectionError):
    """The server at the address was restarted; items that the previous server confirmed may be lost."""


class RateLimitedError(Rlds2ReverbError, RuntimeError):
    """A push was refused because too much was pushed relative to what was sampled. Sample, then push again."""


class TrackerError(Rlds2ReverbError, RuntimeError):
    """An experiment tracker, such as Weights & Biases, cannot be started."""


class TrainingDivergedError(Rlds2ReverbError, ArithmeticError):
    """A loss, gradient or weight is no longer finite."""
