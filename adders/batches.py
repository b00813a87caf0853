"""Index arithmetic for batches of episodes whose steps are concatenated."""

from __future__ import annotations

import tensorflow as tf


def count_steps_left(num_steps: tf.Tensor) -> tf.Tensor:
    """Returns how many steps follow each step in its episode: 2 1 0 1 0 for episodes of 3 and 2 steps.

    Args:
      num_steps: int64 `[E]`, the number of steps of each episode, at least 0.

    Returns:
      int64 `[R]`.
    """
    return tf.repeat(tf.cumsum(num_steps), num_steps) - tf.range(tf.reduce_sum(num_steps)) - 1


def mark_last_transitions(steps_left: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns a bool tensor, shaped as `like`, that is True for the last transition of each episode.

    All `R - 1` pairs of steps `t, t + 1` count as transitions, including those that join two episodes; such a pair
    comes right after a last transition and is meaningless.

    Args:
      steps_left: int64 `[R]`, from `count_steps_left`.
      like: tensor `[R - 1, ...]`.
    """
    flags = tf.reshape(steps_left[:-1] == 1, [-1] + [1] * (like.shape.rank - 1))
    return tf.ensure_shape(tf.broadcast_to(flags, tf.shape(like)), like.shape)


def pad_transitions_to_steps(column: tf.Tensor, steps_left: tf.Tensor) -> tf.Tensor:
    """Returns a column of transitions `[R - 1]` as a column of steps `[R]`, with 0 at the last step of each episode."""
    padded = tf.pad(column, [[0, tf.minimum(tf.shape(steps_left)[0], 1)]])
    return tf.where(steps_left > 0, padded, tf.zeros_like(padded))


def find_source_rows(num_rows: tf.Tensor, num_before: tf.Tensor, num_after: tf.Tensor) -> tf.Tensor:
    """Returns the source row of each row after padding the episodes, or -1 for a padding row.

    For example, 0 1 -1 2 -1 for 2 and 1 rows with one padding row after each episode.

    Args:
      num_rows: int64 `[E]`, the number of rows of each episode.
      num_before: int64 `[E]`, the number of padding rows before each.
      num_after: int64 `[E]`, the number of padding rows after each.

    Returns:
      int64 `[R]`.
    """
    totals = num_rows + num_before + num_after
    episode = tf.repeat(tf.range(tf.size(totals)), totals)
    starts = tf.cumsum(totals, exclusive=True) + num_before
    offset = tf.range(tf.reduce_sum(totals)) - tf.gather(starts, episode)
    is_real = (offset >= 0) & (offset < tf.gather(num_rows, episode))
    source = offset + tf.gather(tf.cumsum(num_rows, exclusive=True), episode)
    return tf.where(is_real, source, tf.constant(-1, tf.int64))


def number_items(counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each item's episode, and its index in that episode: 0 0 1 and 0 1 0 for counts 2 and 1.

    Args:
      counts: int64 `[E]`, the number of items of each episode.

    Returns:
      int32 and int64 `[sum of counts]`.
    """
    episode = tf.repeat(tf.range(tf.size(counts)), counts)
    return episode, tf.range(tf.reduce_sum(counts)) - tf.gather(tf.cumsum(counts, exclusive=True), episode)
