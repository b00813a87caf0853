"""Paths of the parts of nests."""

from rlds2reverb.types.nest_paths import list_paths


def test_parts_in_dicts_have_paths():
    assert list_paths({"b": (1, {"c": 2}), "a": {"y": 3, "x": {"z": 4}}}) == ["a", "a.x", "a.x.z", "a.y", "b"]
