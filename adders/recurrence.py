"""The linear recurrence `x_t = b_t + a_t x_{t+1}`, without a loop over the steps.

Each step is an affine map of `x_{t+1}`. The map over steps `t .. t+2k-1` is composed of the maps over `t .. t+k-1` and
`t+k .. t+2k-1`, so that log2(T) doublings cover T steps (Hillis & Steele 1986, "Data parallel algorithms"). A factor
of 0 cuts off everything after it, including NaN and Inf.
"""

from __future__ import annotations

import tensorflow as tf

from .tensors import TensorLike

#: Longer windows are shortened to this many steps, which no episode has.
MAX_STEPS = 1 << 30


def scan(factors: tf.Tensor, terms: tf.Tensor) -> tf.Tensor:
    """Returns `x_t = terms_t + factors_t * x_{t+1}` over `[T, ...]`, starting from x_T = 0, in log2(T) doublings."""

    def double(width: TensorLike, factors: tf.Tensor, terms: tf.Tensor) -> tuple[TensorLike, tf.Tensor, tf.Tensor]:
        pads = [[0, width]] + [[0, 0]] * (terms.shape.rank - 1)
        later_factors, later_terms = tf.pad(factors[width:], pads), tf.pad(terms[width:], pads)
        later_factors = tf.math.multiply_no_nan(later_factors, factors)
        return 2 * width, later_factors, terms + tf.math.multiply_no_nan(later_terms, factors)

    if terms.shape[0] is not None:  # XLA requires static sizes.
        width = 1
        while width < terms.shape[0]:
            width, factors, terms = double(width, factors, terms)
        return terms
    num_steps = tf.shape(terms)[0]
    any_length = tf.TensorShape([None, *terms.shape[1:]])
    variables, shapes = (tf.constant(1), factors, terms), (tf.TensorShape([]), any_length, any_length)
    return tf.while_loop(lambda width, *_: width < num_steps, double, variables, shape_invariants=shapes)[2]


def compose_windows(factors: tf.Tensor, terms: tf.Tensor, n: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the terms and the factors of the composed maps over the n steps from each step on.

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


def _compose(
    sums: tf.Tensor, products: tf.Tensor, later_sums: tf.Tensor, later_products: tf.Tensor, width: TensorLike
) -> tuple[tf.Tensor, tf.Tensor]:
    """Composes maps over `width` steps with later maps; those past the end are the identity, so that windows shrink."""
    added = tf.math.multiply_no_nan(shift(later_sums, width, 0), products)
    return sums + added, tf.math.multiply_no_nan(shift(later_products, width, 1), products)


def shift(tensor: tf.Tensor, by: TensorLike, filler: int) -> tf.Tensor:
    """Returns `tensor[t + by]`, with the filler past the end."""
    by = tf.minimum(by, tf.shape(tensor)[0])
    pads = [[0, by]] + [[0, 0]] * (tensor.shape.rank - 1)
    shifted = tf.pad(tensor[by:], pads, constant_values=tf.cast(filler, tensor.dtype))
    return tf.ensure_shape(shifted, tensor.shape)
