"""The settings that identify a run: the one comparison of two runs, which distinguishes their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rlds2reverb.errors import CheckpointError

#: Names that older versions did not save.
_NEW_NAMES = ("environment_spec", "code")


class RunIdentity:
    """Plain values by name, such as the agent's class, the data's fingerprint and the environment.

    Attributes:
      values: the values as a manifest returns them, with lists for tuples.
    """

    def __init__(self, values: Mapping[str, Any], addable: Collection[str] = ()):
        """Checks the values; raises `TypeError` for other objects than numbers, strings, lists, dicts and None.

        Args:
          values: the values by name.
          addable: see `differences`.
        """
        self._addable = frozenset(addable)
        try:
            self.values: dict[str, Any] = json.loads(json.dumps(values))
        except (TypeError, ValueError) as error:
            raise TypeError(f"identity must contain only numbers, strings, lists, dicts and None ({error})") from error

    def compare(self, saved: Mapping[str, Any]) -> dict[str, str]:
        """Returns the `differences` from saved values."""
        return differences(saved, self.values, self._addable)


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], addable: Collection[str] = ()) -> dict[str, str]:
    """Returns a text about each value that differs between the identities of two runs, by its name.

    Args:
      saved: values of the saved run.
      now: values of this run.
      addable: names of values that a run may get later: if `saved` does not have them, they do not differ.
    """
    texts = {name: _compare(name, saved.get(name), now.get(name)) for name in {**saved, **now}}
    may_be_missing = {*_NEW_NAMES, *addable}
    return {name: text for name, text in texts.items() if text and (name in saved or name not in may_be_missing)}


def require_same(claim: str, texts: Iterable[str]) -> None:
    """Raises `CheckpointError` if there are texts about differences, after a claim such as 'runs/a is of another run'.

    Args:
      claim: beginning of the message.
      texts: values of `differences`.
    """
    if listed := "; ".join(texts):
        raise CheckpointError(
            f"{claim}: {listed}; use a different run_dir, or continue with allow_config_mismatch=True"
        )


def _compare(name: str, before: Any, after: Any) -> str:
    """Returns a text about the difference of two values, or of the values in two dicts; '' if there is none."""
    if before == after or json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True):  # NaN equals NaN.
        return ""
    if isinstance(before, dict) and isinstance(after, dict):
        nested = (_compare(f"{name}.{key}", before.get(key), after.get(key)) for key in {**before, **after})
        return "; ".join(filter(None, nested))
    return f"{name} was {before}, is now {after}"
