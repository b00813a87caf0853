"""The documented table of ALF's wrappers and what replaces them."""

import importlib
import re
from pathlib import Path

import pytest

import rlds2reverb.envs as envs

PAGE = Path(__file__).parent.parent.parent / "docs" / "environments.md"
pytestmark = pytest.mark.skipif(
    not PAGE.is_file(), reason="the docs are not available when an installed wheel is tested"
)


def read_names():
    table = PAGE.read_text().partition("### ALF's names")[2].partition("###")[0]
    return [name for row in re.findall(r"^\|[^|]*\|([^|]*)\|", table, re.M) for name in re.findall(r"`([\w.]+)`", row)]


def test_documented_replacements_exist():
    names = read_names()
    assert len(names) > 30
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), attribute), type), name


def test_all_wrappers_are_documented():
    exported = {name: getattr(envs, name) for name in envs.__all__ if name not in ("Wrapper", "ObservationTransform")}
    kinds = (envs.Wrapper, envs.ObservationTransform)
    wrappers = {name for name, part in exported.items() if isinstance(part, type) and issubclass(part, kinds)}
    others = {"BatchDimension", "Multitask", "NonEpisodic", "SparseReward"}
    assert {f"rlds2reverb.envs.{name}" for name in wrappers | others} <= set(read_names())
