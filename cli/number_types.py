"""Types of options that take a number; `doctor` uses them as well, so that they import nothing else."""

from __future__ import annotations

import functools
import math
from typing import Any

import click


class Number(click.ParamType):
    """The type of an option that takes a number in a range."""

    def __init__(
        self,
        low: float = -math.inf,
        high: float = math.inf,
        *,
        is_integer: bool = False,
        above_low: bool = False,
        name: str = "",
    ):
        """
        Args:
          low: the minimum.
          high: the maximum.
          is_integer: whether the number must be an integer, which may also be written as 1e4.
          above_low: whether the minimum itself is not allowed.
          name: placeholder of the number in `--help`; N or FLOAT by default.
        """
        self.name = name or ("N" if is_integer else "FLOAT")
        self._low, self._high, self._is_integer, self._above_low = low, high, is_integer, above_low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number; fails if the value is not a number, or is outside the range."""
        number = self._parse(value)
        is_excluded = self._above_low and number == self._low
        if number is None or is_excluded or not self._low <= number <= self._high:
            self.fail(f"must be {self._describe()}, got {str(value)!r}", param, ctx)
        return number

    def _parse(self, value: Any) -> Any:
        try:
            if self._is_integer and str(value).strip().lstrip("+-").isdecimal():
                return int(value)
            number = float(value)
        except ValueError:
            return None
        if self._is_integer:
            return int(number) if number.is_integer() else None
        return number if math.isfinite(number) else None

    def _describe(self) -> str:
        noun = "an integer" if self._is_integer else "a number"
        if self._low == -math.inf:
            return noun
        relation = ">" if self._above_low else ">="
        return f"{noun} {relation} {self._low:,}" + ("" if self._high == math.inf else f" and <= {self._high:,}")


#: Returns the type of an option that takes an integer.
integer = functools.partial(Number, is_integer=True)


at_least_0 = integer(0)
at_least_1 = integer(1)
port = integer(1, 65535, name="PORT")
seconds = Number(0, above_low=True, name="SECONDS")
fraction = Number(0, 1)
