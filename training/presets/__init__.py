"""Gin files with published settings of algorithms and runs for D4RL tasks."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb._text import suggest

_FOLDER = Path(__file__).parent


def preset_names() -> list[str]:
    """Returns the names of all presets."""
    return sorted(path.stem for path in _FOLDER.glob("*.gin"))


def preset_path(name: str) -> Path:
    """Returns the path of a preset's file, to be read by `read_gin`.

    Raises:
      ValueError: If there is no such preset.
    """
    if name not in preset_names():
        advice = suggest(name, preset_names()) or f"; use one of {', '.join(preset_names())}"
        raise ValueError(f"unknown preset {name!r}{advice}")
    return _FOLDER / f"{name}.gin"
