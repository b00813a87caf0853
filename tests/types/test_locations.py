"""Tests of the rule that distinguishes server addresses from paths, and of the paths of users."""

from pathlib import Path

import pytest

from rlds2reverb.types.locations import expand_path, server_address


@pytest.mark.parametrize("address", ["localhost:8000", "10.0.0.1:1", "name.example:65535", "[::1]:8000"])
def test_host_and_port_is_an_address(address):
    assert server_address(address) == address


@pytest.mark.parametrize(
    "location", ["", "data", "8000", "host:", ":80", "host:x", "a/b:8000", "a b:8000", "host:123456", Path("host:8000")]
)
def test_other_strings_and_paths_are_not_an_address(location):
    assert server_address(location) is None


@pytest.mark.parametrize("path", ["~/runs/a", Path("~/runs/a")])
def test_home_directory_is_expanded(monkeypatch, tmp_path, path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_path(path) == tmp_path / "runs/a"


def test_other_paths_are_kept():
    assert [str(expand_path(path)) for path in ("a/~", "/a", ".", Path("b~"))] == ["a/~", "/a", ".", "b~"]
    with pytest.raises(ValueError, match="run_dir must be a path, got ''"):
        expand_path("", "run_dir")
