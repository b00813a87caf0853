"""Tests of exact sums and of the moments computed from it, compared with `fractions.Fraction`."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from rlds2reverb.datasets.exact_sums import UNIT_BITS, sum_exactly, sum_squares_exactly
from rlds2reverb.datasets.moments import LeafMoments

FLOATS = st.floats(-1e140, 1e140, allow_nan=False)
ARRAYS = hnp.arrays(np.float64, st.tuples(st.integers(0, 40), st.just(2)), elements=FLOATS)


def sum_fractions(rows, power=1):
    return [sum((Fraction(value) ** power for value in column), Fraction(0)) for column in rows.T.tolist()]


def as_fractions(total):
    return [Fraction(integer, 1 << UNIT_BITS) for integer in total]


@given(ARRAYS)
def test_sum_is_exact(rows):
    assert as_fractions(sum_exactly(rows)) == sum_fractions(rows)


@given(hnp.arrays(np.float64, (9, 2), elements=st.floats(-1e140, 1e140).filter(lambda x: x == 0 or abs(x) > 1e-140)))
def test_sum_of_squares_is_exact(rows):
    assert as_fractions(sum_squares_exactly(rows)) == sum_fractions(rows, 2)


def test_sum_of_many_rows_is_exact():
    rows = 1 + np.random.default_rng(0).random((1 << 15, 1))
    assert as_fractions(sum_exactly(rows)) == sum_fractions(rows)


def test_smallest_and_largest_numbers_are_added_exactly():
    rows = np.array([[5e-324], [1.5e308], [-1.5e308], [1e-300]])
    assert as_fractions(sum_exactly(rows)) == sum_fractions(rows)


@given(ARRAYS.filter(len), st.data())
def test_moments_do_not_depend_on_the_parts(rows, data):
    whole = LeafMoments((2,))
    whole.add(rows)
    bounds = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = [rows[a:b] for a, b in zip([0, *bounds], [*bounds, len(rows)], strict=True)]
    merged = LeafMoments((2,))
    for part in data.draw(st.permutations(parts)):
        moments = LeafMoments((2,))
        moments.add(part)
        merged.merge(moments)
    merged = LeafMoments.from_dict(json.loads(json.dumps(merged.as_dict())))
    np.testing.assert_array_equal(merged.mean, whole.mean)
    np.testing.assert_array_equal(merged.std, whole.std)


def test_deviation_of_numbers_whose_squares_are_rounded_is_not_negative():
    moments = LeafMoments((1,))
    moments.add(np.full((3, 1), 3.73e-155))
    assert moments.mean == 3.73e-155 and moments.std == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_moments_are_rounded_once(dtype):
    rows = np.random.default_rng(0).normal(1000, 1e-2, (5000, 3)).astype(dtype)
    moments = LeafMoments((3,))
    moments.add(rows)
    for column, mean, std in zip(rows.astype(np.float64).T.tolist(), moments.mean, moments.std, strict=True):
        values = [Fraction(value) for value in column]
        exact = sum(values) / len(values)
        assert mean == float(exact)
        assert std == np.sqrt(float(sum((value - exact) ** 2 for value in values) / len(values)))


def test_constant_has_no_deviation():
    moments = LeafMoments((1,))
    for value in (np.full((1000, 1), 0.1), np.full((7, 1), 0.1)):
        moments.add(value)
    assert moments.mean == 0.1 and moments.std == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_number_without_a_square_is_not_finite(value):
    moments = LeafMoments((2,))
    moments.add(np.array([[1.0, 2.0], [value, 4.0]]))
    assert not moments.is_finite
    assert np.isnan(moments.mean[0]) and moments.mean[1] == 3 and moments.std[1] == 1
