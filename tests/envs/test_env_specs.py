"""Values that are checked against specs with bounds."""

import numpy as np
import pytest

from rlds2reverb.envs.env_specs import BoundedArraySpec, require_within

SPEC = BoundedArraySpec((2,), np.dtype("float32"), minimum=np.float32([0, -1]), maximum=np.float32([1, 2]))


def test_values_at_the_bounds_are_copied():
    values = np.float32([[0, -1], [1, 2]])
    copied = require_within(values, SPEC, name="action", advice="clip it", leading=(2,))
    np.testing.assert_array_equal(copied, values)
    assert copied is not values and not np.shares_memory(copied, values)


def test_first_value_beyond_the_bounds_is_named_with_its_place():
    for value, message in (([1, 2.5], r"action\[1\] must be in \[-1, 2\], got 2.5; clip it"),
                           ([-0.5, 2], r"action\[0\] must be in \[0, 1\], got -0.5; clip it"),
                           ([0, np.nan], r"action\[1\] must be in \[-1, 2\], got nan")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            require_within(np.float32(value), SPEC, name="action", advice="clip it")
        with pytest.raises(ValueError, match=rf"{message.partition(';')[0]} \(row 1\)"):
            require_within(np.float32([[1, -1], value]), SPEC, name="action", advice="clip it", leading=(2,))
