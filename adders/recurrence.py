"""The linear recurrence `x_t = b_t + a_t x_{t+1}`, without a loop over the steps, in NumPy and TensorFlow.

Each step is an affine map of `x_{t+1}`. The map over steps `t .. t+2k-1` is composed of the maps over `t .. t+k-1` and
`t+k .. t+2k-1`, so that log2(T) doublings cover T steps (Hillis & Steele 1986, "Data parallel algorithms"). A factor
of 0 cuts off everything after it, including NaN and Inf.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, multiply_no_nan

#: Longer windows are shortened to this many steps, which no episode has.
MAX_STEPS = 1 << 30


def scan(factors: Array, terms: Array) -> Array:
    """Returns `x_t = terms_t + factors_t * x_{t+1}` over `[T, ...]`, starting from x_T = 0, in log2(T) doublings."""

    def double(width: Array, factors: Array, terms: Array) -> tuple[Array, Array, Array]:
        added = multiply_no_nan(shift(terms, width, 0), factors)
        return 2 * width, multiply_no_nan(shift(factors, width, 0), factors), terms + added

    if terms.shape[0] is not None:  # XLA requires static sizes.
        width = 1
        while width < terms.shape[0]:
            width, factors, terms = double(width, factors, terms)
        return terms
    import tensorflow as tf

    num_steps = tf.shape(terms)[0]
    any_length = tf.TensorShape([None, *terms.shape[1:]])
    variables, shapes = (tf.constant(1), factors, terms), (tf.TensorShape([]), any_length, any_length)
    return tf.while_loop(lambda width, *_: width < num_steps, double, variables, shape_invariants=shapes)[2]


def compose_windows(factors: Array, terms: Array, n: int) -> tuple[Array, Array]:
    """Returns the terms and the factors of the composed maps over the n steps from each step on, `[T, ...]`.

    The maps are composed along the binary digits of n. For n = 6: 1 doubled is 2, 2 and 1 make 3, 3 doubled is 6.
    """
    sums, products, width = terms, factors, 1
    for digit in f"{min(n, MAX_STEPS):b}"[1:]:
        sums, products = _compose(sums, products, sums, products, width)
        width *= 2
        if digit == "1":
            sums, products = _compose(terms, factors, sums, products, 1)
            width += 1
    return sums, products


def _compose(sums: Array, products: Array, later_sums: Array, later_products: Array, width: int) -> tuple[Array, Array]:
    """Composes maps over `width` steps with later maps; those past the end are the identity, so that windows shrink."""
    added = multiply_no_nan(shift(later_sums, width, 0), products)
    return sums + added, multiply_no_nan(shift(later_products, width, 1), products)


def shift(array: Array, by: Array, filler: int) -> Array:
    """Returns `array[t + by]`, with the filler past the end."""
    if isinstance(array, np.ndarray):
        return np.concatenate([array[by:], np.full_like(array[:by], filler)])
    import tensorflow as tf

    by = tf.minimum(by, tf.shape(array)[0])
    pads = [[0, by]] + [[0, 0]] * (array.shape.rank - 1)
    return tf.ensure_shape(tf.pad(array[by:], pads, constant_values=tf.cast(filler, array.dtype)), array.shape)
