"""Published settings of algorithms and runs for D4RL and OGBench tasks: the gin bindings in `presets.ini`."""

from __future__ import annotations

from rlds2reverb.system.ini_files import read_sections
from rlds2reverb.system.text import advise


def preset_names() -> list[str]:
    """Returns the names of all presets."""
    return sorted(read_sections(__package__, "presets.ini"))


def get_preset(name: str) -> tuple[str, str]:
    """Returns the name of a preset for messages, and its gin bindings, to be read by `read_gin`.

    Raises:
      ValueError: If there is no such preset.
    """
    presets = read_sections(__package__, "presets.ini")
    if name not in presets:
        raise ValueError(f"unknown preset {name!r}{advise(name, presets)}")
    return f"preset {name}", "\n".join(f"{option} = {value}" for option, value in presets[name].items())
