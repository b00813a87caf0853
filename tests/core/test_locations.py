"""Tests of the rule that distinguishes server addresses from paths."""

from pathlib import Path

import pytest

from rlds2reverb.locations import server_address


@pytest.mark.parametrize("address", ["localhost:8000", "10.0.0.1:1", "name.example:65535", "[::1]:8000"])
def test_host_and_port_is_an_address(address):
    assert server_address(address) == address


@pytest.mark.parametrize(
    "location", ["", "data", "8000", "host:", ":80", "host:x", "a/b:8000", "a b:8000", "host:123456", Path("host:8000")]
)
def test_other_strings_and_paths_are_not_an_address(location):
    assert server_address(location) is None
