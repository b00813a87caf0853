"""Tests of datasets at addresses."""

import fsspec
import numpy as np
import pytest
from expected_formats import FORMATS

from rlds2reverb.datasets import load
from rlds2reverb.errors import SourceError

NAME = "Hopper-v3-low-2-val-noise.npz"


def test_file_and_folder_at_an_address_equal_local_ones():
    files = fsspec.filesystem("memory")
    files.pipe("/bucket/" + NAME, (FORMATS / "neorl" / NAME).read_bytes())
    files.put(str(FORMATS / "vd4rl/cartpole_swingup/64px"), "/bucket/64px", recursive=True)
    for address, path in ((NAME, FORMATS / "neorl" / NAME), ("64px", FORMATS / "vd4rl/cartpole_swingup/64px")):
        for one, other in zip(load(f"memory://bucket/{address}"), load(path), strict=True):
            for (_, column), (_, expected) in zip(one.columns, other.columns, strict=True):
                np.testing.assert_array_equal(column, expected)


def test_missing_address_and_unknown_scheme_raise():
    with pytest.raises(FileNotFoundError, match="there is nothing at memory://bucket/absent.npz; check the address"):
        load("memory://bucket/absent.npz")
    with pytest.raises(SourceError, match="nonsense://bucket/x.npz cannot be copied to this machine"):
        load("nonsense://bucket/x.npz")
