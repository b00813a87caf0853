"""DI-engine's `ext_args`: the options of a hook as a dict, in which `every` is called `freq`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rlds2reverb.system.text import advise


class ExtArgs(dict[str, Any]):
    """The `ext_args` of a hook, whose entries are also attributes, as those of DI-engine's EasyDict."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"ext_args has no {name!r}{advise(name, self) if self else ''}")
        return self[name]


def read_ext_args(hook: str, ext_args: Any, allowed: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the options in the `ext_args` of a hook.

    Raises:
      TypeError: If they are not a dict or None.
      ValueError: If one of them is not in `allowed`.
    """
    if not isinstance(ext_args, (Mapping, type(None))):
        raise TypeError(f"ext_args of hook {hook!r} must be a dict, such as {{'freq': 100}}, got {ext_args!r}")
    options = {"every" if name == "freq" else name: value for name, value in (ext_args or {}).items()}
    if allowed is not None and (unknown := [option for option in options if option not in allowed]):
        valid = ["freq" if option == "every" else option for option in allowed]
        raise ValueError(f"ext_args of hook {hook!r} has the unknown key {unknown[0]!r}; use {', '.join(valid)}")
    return options
