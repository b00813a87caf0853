"""Exact sums of floating-point arrays, which do not depend on the order or the grouping of the terms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

#: Bits of the integers that an array is split into. Their sum over `_MAX_ROWS` rows has less than 53, so that float64
#: represents it exactly.
_INTEGER_BITS = 40
_MAX_ROWS = 1 << 12
#: The units of the integers are powers of two whose exponents are multiples of this, so that there are few of them.
_EXPONENT_STEP = 8
#: Exponents for which 2^exponent and 2^-exponent are normal numbers.
_MAX_EXPONENT = 1000
#: Veltkamp's constant for float64, which splits a number into two halves of at most 26 bits.
_SPLITTER = 2.0**27 + 1


class ExactSum:
    """The exact sum of the rows of float arrays `[T, ...]`, element by element.

    Each array is split into integers of 40 bits times powers of two, whose sums are exact, as in the reproducible
    summation of Demmel & Nguyen (2013), section IV. The sums are kept as Python's integers, which do not overflow, so
    that partial sums of any parts of a dataset add up to the same value.
    """

    def __init__(self) -> None:
        self._integers: dict[int, np.ndarray] = {}  # By the exponent of their unit.

    def add(self, rows: np.ndarray) -> None:
        """Adds the rows of a float64 array `[T, ...]` of finite numbers."""
        for begin in range(0, len(rows), _MAX_ROWS):
            rest = rows[begin : begin + _MAX_ROWS].reshape(len(rows[begin : begin + _MAX_ROWS]), -1)
            while (largest := np.abs(rest).max(initial=0.0)) > 0:
                exponent = -(-int(np.frexp(largest)[1]) // _EXPONENT_STEP) * _EXPONENT_STEP - _INTEGER_BITS
                integers = np.rint(_scale(rest, -exponent))
                self._add_integers(exponent, integers.sum(axis=0).astype(np.int64).astype(object))
                rest = rest - _scale(integers, exponent)
                rest = rest[rest.any(axis=1)]

    def merge(self, other: ExactSum) -> None:
        """Adds the rows that were added to another sum."""
        for exponent, total in other._integers.items():
            self._add_integers(exponent, total)

    def as_dict(self) -> dict[str, list[int]]:
        """Returns the sum as plain integers, for JSON."""
        return {str(exponent): list(map(int, total)) for exponent, total in self._integers.items()}

    @classmethod
    def from_dict(cls, values: dict[str, list[int]]) -> ExactSum:
        """Creates a sum from the values of `as_dict`."""
        total = cls()
        total._integers = {int(exponent): np.array(integers, object) for exponent, integers in values.items()}
        return total

    def _add_integers(self, exponent: int, total: np.ndarray) -> None:
        self._integers[exponent] = self._integers.get(exponent, 0) + total

    def fractions(self, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the sum of each element, as an object array of `Fraction`s of that shape."""
        total = np.full(math.prod(shape), Fraction(0), object)
        for exponent, integers in self._integers.items():
            total = total + integers * Fraction(2) ** exponent
        return total.reshape(shape)


def _scale(values: np.ndarray, exponent: int) -> np.ndarray:
    """Returns `values * 2^exponent`."""
    if abs(exponent) > _MAX_EXPONENT:
        return np.ldexp(values, exponent)
    return values * 2.0**exponent


def add_squares(total: ExactSum, rows: np.ndarray) -> None:
    """Adds the exact squares of the rows of a float64 array, whose absolute values must be below 2^500.

    A square has up to 106 bits and is split into its rounded value and the error of the rounding (Dekker 1971).
    """
    squares = rows * rows
    total.add(squares)
    scaled = _SPLITTER * rows
    high = scaled - (scaled - rows)
    low = rows - high
    total.add(((high * high - squares) + 2 * high * low) + low * low)
