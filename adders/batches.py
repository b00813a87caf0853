"""Where each of several episodes ends among their steps, which stand one after the other."""

from __future__ import annotations

import tensorflow as tf


def steps_left(num_steps: tf.Tensor) -> tf.Tensor:
    """Returns how many steps follow each one in its episode: for episodes of 3 and 2 steps it is 2 1 0 1 0.

    Args:
      num_steps: int64 `[E]`, at least 0.

    Returns:
      int64 `[R]`.
    """
    ends = tf.cumsum(num_steps)
    return tf.repeat(ends, num_steps) - tf.range(tf.reduce_sum(num_steps)) - 1


def is_last_transition(left: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns which pairs of steps are the last transition of an episode, from `steps_left`: bool, shaped as `like`.

    Pairs `t, t + 1` are counted over all `R - 1` of them; those that join two episodes come behind a last one, and
    mean nothing.

    Args:
      left: int64 `[R]`.
      like: `[R - 1, ...]`.
    """
    flags = tf.reshape(left[:-1] == 1, [-1] + [1] * (like.shape.rank - 1))
    return tf.ensure_shape(tf.broadcast_to(flags, tf.shape(like)), like.shape)


def of_steps(column: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
    """Returns a column of pairs `[R - 1]` as one of steps `[R]`: 0 at the last step of an episode."""
    padded = tf.pad(column, [[0, tf.minimum(tf.shape(left)[0], 1)]])
    return tf.where(left > 0, padded, tf.zeros_like(padded))


def filled_places(num_rows: tf.Tensor, before: tf.Tensor, behind: tf.Tensor) -> tf.Tensor:
    """Returns the row that each one is taken from when rows are put before and behind those of each episode.

    With 2 and 1 rows, none before and 1 behind each it is 0 1 -1 2 -1: -1 for rows that are added.

    Args:
      num_rows: int64 `[E]`, the rows of each episode.
      before: int64 `[E]`, rows that are put before.
      behind: int64 `[E]`, rows that are put behind.

    Returns:
      int64 `[R]`.
    """
    total = num_rows + before + behind
    owner = tf.repeat(tf.range(tf.size(total)), total)
    begins = tf.cumsum(total, exclusive=True) + before
    place = tf.range(tf.reduce_sum(total)) - tf.gather(begins, owner)
    is_real = (place >= 0) & (place < tf.gather(num_rows, owner))
    return tf.where(is_real, place + tf.gather(tf.cumsum(num_rows, exclusive=True), owner), tf.constant(-1, tf.int64))


def numbered(counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the owner of each of several things, and its number: for counts 2 and 1 these are 0 0 1 and 0 1 0.

    Args:
      counts: int64 `[E]`.

    Returns:
      int32 and int64 `[sum of counts]`.
    """
    owner = tf.repeat(tf.range(tf.size(counts)), counts)
    return owner, tf.range(tf.reduce_sum(counts)) - tf.gather(tf.cumsum(counts, exclusive=True), owner)
