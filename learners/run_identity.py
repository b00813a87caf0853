"""The settings that identify a run: the one comparison of two runs, which distinguishes their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rlds2reverb.errors import CheckpointError

#: Name of the fingerprints of code; see `fingerprint_code`.
CODE = "code"


def as_plain_values(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an identity as a manifest returns it, with lists for tuples.

    Raises:
      TypeError: If it contains other objects than numbers, strings, lists, dicts and None.
    """
    try:
        return dict(json.loads(json.dumps(identity)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"identity must contain only numbers, strings, lists, dicts and None ({error})") from error


def differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], *, addable: Collection[str] = (), only_common: bool = False
) -> dict[str, str]:
    """Returns a description of each value that differs between the identities of two runs, by its name.

    Args:
      saved: values of the saved run.
      now: values of this run.
      addable: names of values that a run may get later: if `saved` does not have them, they do not differ.
      only_common: whether to compare only the values that both have, because not all of them are known yet.
    """
    names = [name for name in {**saved, **now} if name in saved or name not in addable]
    if only_common:
        names = [name for name in names if name in saved and name in now]
    descriptions = {name: _compare(name, saved.get(name), now.get(name)) for name in names}
    return {name: description for name, description in descriptions.items() if description}


def require_same(claim: str, descriptions: Iterable[str]) -> None:
    """Raises `CheckpointError` if there are differences, after a claim such as 'runs/a contains a different run'.

    Args:
      claim: beginning of the message.
      descriptions: values of `differences`.
    """
    if listed := "; ".join(descriptions):
        raise CheckpointError(
            f"{claim}: {listed}; use a different run directory, or continue nevertheless", allow_config_mismatch=True
        )


def _compare(name: str, before: Any, after: Any) -> str:
    """Returns a description of the difference of two values, or of the values in two dicts; '' if they are equal."""
    if before == after or json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True):  # NaN equals NaN.
        return ""
    if isinstance(before, dict) and isinstance(after, dict):
        nested = (_compare(f"{name}.{key}", before.get(key), after.get(key)) for key in {**before, **after})
        return "; ".join(filter(None, nested))
    change = f"{name} was {before}, is now {after}"
    owner = name.removeprefix(f"{CODE}.") if name.startswith(f"{CODE}.") else name.removesuffix(f".{CODE}")
    return change if owner == name else f"the code of {owner}, or of something that it uses, has changed ({change})"
