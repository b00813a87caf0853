"""Values that are checked against specs with bounds."""

import numpy as np
import pytest

from rlds2reverb.envs.env_specs import BoundedArraySpec, require_spec, require_within, sample_action
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import ArraySpec

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


def test_sampled_actions_fill_their_bounds_and_are_normal_without():
    low, high = np.float32([-5, 2, -np.inf, -np.inf, 0]), np.float32([5, 3, np.inf, 1, np.inf])
    spec = {
        "real": BoundedArraySpec((5,), low.dtype, minimum=low, maximum=high),
        "integer": BoundedArraySpec((2,), np.dtype(np.int64), minimum=np.array([3, -1]), maximum=np.array([5, 0])),
    }
    random = np.random.default_rng(0)
    actions = [sample_action(spec, random) for _ in range(500)]
    integers, reals = (np.stack([action[name] for action in actions]) for name in ("integer", "real"))
    assert [{*column} for column in integers.T.tolist()] == [{3, 4, 5}, {-1, 0}]
    np.testing.assert_allclose(reals.min(axis=0), [-5, 2, -3, -3, 0], atol=1)
    np.testing.assert_allclose(reals.max(axis=0), [5, 3, 3, 1, 3], atol=1)
    assert (
        reals.dtype == np.float32 and (np.ptp(reals[:, 1]) > 0.9) and np.std(reals[:, 2]) == pytest.approx(1, abs=0.1)
    )


def test_strings_may_be_shorter_than_in_the_spec():
    spec = ArraySpec((), np.dtype("U3"))
    require_spec(np.array("ab"), spec, "text")
    for value in (np.array("abcd"), np.array(b"ab"), "ab"):
        with pytest.raises(SpecMismatchError, match=r"text must be str96 .* as in its spec, got"):
            require_spec(value, spec, "text")
