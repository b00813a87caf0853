"""Published settings of algorithms and runs for D4RL and OGBench tasks: the gin bindings in `presets.ini`."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path
from typing import Any

from rlds2reverb.system.text import advise


def preset_names() -> list[str]:
    """Returns the names of all presets."""
    return sorted(_read_presets().sections())


def get_preset(name: str) -> tuple[str, str]:
    """Returns the name of a preset for messages, and its gin bindings, to be read by `read_gin`.

    Raises:
      ValueError: If there is no such preset.
    """
    presets = _read_presets()
    if name not in presets.sections():
        raise ValueError(f"unknown preset {name!r}{advise(name, presets.sections())}")
    return f"preset {name}", "\n".join(f"{option} = {value}" for option, value in presets[name].items())


def _read_presets() -> ConfigParser:
    parser: Any = ConfigParser(delimiters="=", interpolation=None)  # Type checkers reject the next line.
    parser.optionxform = str  # Names of agents contain capital letters.
    parser.read_string(Path(__file__).with_suffix(".ini").read_text(encoding="utf-8"))
    return parser
