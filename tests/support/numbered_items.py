"""Items that contain their number in every field."""

from __future__ import annotations

import numpy as np


def item(number, **extra):
    return {
        "obs": np.array([number, number + 0.5], np.float32),
        "inner": {"action": np.int32(number), "done": np.bool_(number % 2)},
        "image": np.full((2, 2, 3), number % 256, np.uint8),
        **extra,
    }


def items(*numbers, **extra):
    return [item(number, **extra) for number in numbers]


def get_number(sampled):
    """Returns the number of a sampled item, on which all fields must agree."""
    number = int(sampled["inner"]["action"])
    expected = item(number)
    np.testing.assert_array_equal(sampled["obs"], expected["obs"])
    np.testing.assert_array_equal(sampled["image"], expected["image"])
    assert sampled["inner"]["done"] == expected["inner"]["done"]
    return number
