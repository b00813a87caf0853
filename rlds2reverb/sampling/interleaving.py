"""Streams of data, any of which may fall silent: the others continue, and a stream that is silent too long is reported.

A stream whose server is gone waits forever and cannot be asked. So a clock is one of the interleaved streams, and a
stream that gave nothing for a number of ticks is silent. Ticks and elements come out in turn: a slow consumer sees few
ticks as well, so that no stream seems silent because of it. The clock is TensorFlow's own: no Python runs while all is
well, and an iterator can be destroyed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from rlds2reverb._internals.tensorflow import clock

#: Called with the numbers of the streams that have just fallen silent, and whether all are silent now. It may raise.
OnSilent: TypeAlias = Callable[[Sequence[int], bool], None]

_FEWEST_TICKS = 8
_LONGEST_TICK_SECS = 0.25
_SECS_BETWEEN_TRIES = 0.5


def interleaved(
    stream_of: Callable[[tf.Tensor], tf.data.Dataset],
    num_streams: int,
    *,
    timeout_secs: float,
    on_silent: OnSilent,
    num_readers: int = 1,
    ready: Callable[[int], bool] = lambda number: True,
    silent_from_start: Sequence[int] = (),
) -> tf.data.Dataset:
    """Elements of several endless streams in turn, from whichever has one; with the number of their stream.

    Each reader of a stream is a thread of its own. As long as all have an element ready, they get equal shares.

    Args:
      stream_of: gives the stream of a number (int64 `[]`, from 0). Their elements are of one structure, which is no
        plain tuple, of tensors with a leading axis.
      num_streams: how many there are.
      timeout_secs: a stream that gave nothing for so long, while the consumer waited, is silent.
      on_silent: what to do about it; it is called again when a stream spoke and falls silent another time. What it
        raises, the consumer gets as `tf.errors.OpError`.
      num_readers: how often each stream is read at the same time, for streams that give others each time.
      ready: whether the stream of a number can be begun, which is asked every half second until it can; for streams
        whose beginning waits and cannot be cut off. It has to answer soon.
      silent_from_start: streams that are known to be silent, which are not reported until they have given something.

    Returns:
      Data set of (stream int32 `[]`, element).
    """
    tick_secs = min(_LONGEST_TICK_SECS, timeout_secs / _FEWEST_TICKS)
    limit = math.ceil(timeout_secs / tick_secs)
    spec = stream_of(tf.constant(0, tf.int64)).element_spec
    ticks = clock(tick_secs).map(lambda _: (tf.constant(-1), tf.nest.map_structure(_nothing, spec)))

    def can_begin(number: tf.Tensor) -> tf.Tensor:
        can = tf.numpy_function(lambda at: np.bool_(at < num_streams and ready(int(at))), [number], tf.bool)
        return tf.ensure_shape(can, [])

    def elements(number: tf.Tensor) -> tf.data.Dataset:
        is_clock, at_once = number == num_streams, can_begin(number)
        stream = stream_of(tf.minimum(number, num_streams - 1))
        # A stream that begins late is cut off with its iterator only, not by a `take` in the middle of a pipeline.
        late = clock(_SECS_BETWEEN_TRIES).filter(lambda _: can_begin(number)).take(1).flat_map(lambda _: stream)
        both = _if(at_once, stream).concatenate(_if(~at_once & ~is_clock, late))
        return both.map(lambda element: (tf.cast(number, tf.int32), element)).concatenate(_if(is_clock, ticks))

    # The readers of one stream do not follow each other, so that streams are in turn; the clock comes last.
    readers = tf.constant([*range(num_streams)] * num_readers + [num_streams], tf.int64)
    mixture = tf.data.Dataset.from_tensor_slices(readers).interleave(
        elements, cycle_length=len(readers), num_parallel_calls=len(readers), deterministic=False
    )
    begin = np.zeros(num_streams, np.int32)
    begin[list(silent_from_start)] = limit + 1
    listen = _listener(num_streams, limit, on_silent)
    return mixture.scan(tf.constant(begin), listen).filter(lambda number, element: number >= 0)


def _listener(num_streams: int, limit: int, on_silent: OnSilent) -> Callable[..., Any]:
    """Counts the ticks that each stream has been silent for, as a function for `Dataset.scan`."""

    def report(ticks: np.ndarray) -> np.ndarray:
        on_silent([int(number) for number in np.flatnonzero(ticks == limit)], bool((ticks >= limit).all()))
        return ticks

    def after_tick(ticks: tf.Tensor) -> tf.Tensor:
        ticks = tf.minimum(ticks + 1, limit + 1)
        any_new = tf.reduce_any(ticks == limit)
        counted = tf.cond(any_new, lambda: tf.numpy_function(report, [ticks], tf.int32), lambda: ticks)
        return tf.ensure_shape(counted, [num_streams])

    def listen(ticks: tf.Tensor, element: tuple[tf.Tensor, Any]) -> tuple[tf.Tensor, Any]:
        number = element[0]
        spoken = tf.where(tf.range(num_streams) == number, 0, ticks)
        return tf.cond(number < 0, lambda: after_tick(ticks), lambda: spoken), element

    return listen


def _nothing(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([0, *[size or 0 for size in spec.shape[1:]]], spec.dtype)


def _if(condition: tf.Tensor, dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.take(tf.where(condition, tf.int64.max, tf.constant(0, tf.int64)))
