"""Exact sums of floating-point arrays, which do not depend on the order or the grouping of the terms."""

from __future__ import annotations

import numpy as np

#: Sums are integers, in units of 2^-UNIT_BITS: no float64, or product of a part of one, has a smaller part.
UNIT_BITS = 1200
#: Bits of the integers that an array is split into. Their sum over `_MAX_ROWS` rows has less than 53, so that float64
#: represents it exactly.
_INTEGER_BITS = 40
_MAX_ROWS = 1 << 12
#: Exponents for which 2^exponent and 2^-exponent are normal numbers, so that a product replaces the slower `ldexp`.
_MAX_EXPONENT = 1000
#: Veltkamp's constant for float64, which splits a number into two halves of at most 26 bits.
_SPLITTER = 2.0**27 + 1


def sum_exactly(rows: np.ndarray) -> np.ndarray:
    """Returns the exact sum of the rows of a float64 array of finite numbers, element by element.

    The array is split into integers of 40 bits times powers of two, whose sums are exact, as in the reproducible
    summation of Demmel & Nguyen (2013), section IV. They are added as Python's integers, which do not overflow.

    Args:
      rows: float64 `[T, D]`.

    Returns:
      Python's integers `[D]`, in units of 2^-UNIT_BITS.
    """
    total = np.zeros(rows.shape[1], object)
    for begin in range(0, len(rows), _MAX_ROWS):
        rest = rows[begin : begin + _MAX_ROWS]
        while (largest := np.abs(rest).max(initial=0.0)) > 0:
            exponent = int(np.frexp(largest)[1]) - _INTEGER_BITS
            integers = np.rint(_scale(rest, -exponent))
            total += integers.sum(axis=0).astype(np.int64).astype(object) * 2 ** (exponent + UNIT_BITS)
            rest = rest - _scale(integers, exponent)
            rest = rest[rest.any(axis=1)]
    return total


def _scale(values: np.ndarray, exponent: int) -> np.ndarray:
    """Returns `values * 2^exponent`."""
    return values * 2.0**exponent if abs(exponent) <= _MAX_EXPONENT else np.ldexp(values, exponent)


def sum_squares_exactly(rows: np.ndarray) -> np.ndarray:
    """Returns the exact sum of the squares of the rows; see `sum_exactly`. Absolute values must be below 2^500.

    A square has up to 106 bits and is split into its rounded value and the error of the rounding (Dekker 1971).
    """
    squares = rows * rows
    scaled = _SPLITTER * rows
    high = scaled - (scaled - rows)
    low = rows - high
    return sum_exactly(squares) + sum_exactly(((high * high - squares) + 2 * high * low) + low * low)
