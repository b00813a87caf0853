"""Interleaving of streams that may stall: the others continue, and a stream that stalls for too long is reported.

A stream whose server is gone blocks forever and cannot be queried. Therefore one of the interleaved streams is a clock,
and a stream counts as stalled after a number of ticks in which it yielded nothing. Ticks and elements alternate, so a
slow consumer also receives few ticks, and streams do not appear stalled. The clock consists of TensorFlow operations,
so that no Python code runs as long as no stream stalls, and an iterator can be destroyed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from rlds2reverb._internals.dataset_errors import describe_error, require_no_reason
from rlds2reverb._internals.tensorflow import make_clock, scan, without_autograph
from rlds2reverb.errors import ServerUnavailableError

#: Called with the indices of the streams that have just stalled, and whether all are stalled now; it may raise
#: `ServerUnavailableError`.
OnStalled: TypeAlias = Callable[[Sequence[int], bool], None]

_MIN_TICKS = 8
_MAX_TICK_SECS = 0.25
_RETRY_SECS = 0.5


@without_autograph
def interleave_streams(
    make_stream: Callable[[tf.Tensor], tf.data.Dataset],
    num_streams: int,
    *,
    timeout_secs: float,
    on_stalled: OnStalled,
    num_readers: int = 1,
    is_ready: Callable[[int], bool] = lambda index: True,
    stalled_at_start: Sequence[int] = (),
) -> tf.data.Dataset:
    """Returns the elements of endless streams as they become available, each with the index of its stream.

    Each reader of a stream has its own thread. As long as every stream has elements ready, all contribute equally.

    Args:
      make_stream: function that returns the stream with an index (int64 `[]`, from 0). The elements must have one
        structure, which is not a plain tuple, of tensors with a leading axis.
      num_streams: number of streams.
      timeout_secs: how long a stream may yield nothing, while the consumer waits, before it counts as stalled.
      on_stalled: function called when streams stall, and again if they recover and stall once more. The dataset fails
        with the `ServerUnavailableError` that it raises; see `translate_error`.
      num_readers: number of concurrent readers per stream, for streams that yield different elements to each reader.
      is_ready: function that returns whether the stream with an index can be started, called every half second until it
        can; for streams that block on start-up and cannot be interrupted. It must return quickly.
      stalled_at_start: indices of streams that are stalled from the start; they are not reported unless they recover
        and stall again.

    Returns:
      A dataset of (stream index int32 `[]`, element).
    """
    tick_secs = min(_MAX_TICK_SECS, timeout_secs / _MIN_TICKS)
    max_ticks = math.ceil(timeout_secs / tick_secs)
    spec = make_stream(tf.constant(0, tf.int64)).element_spec
    ticks = make_clock(tick_secs).map(lambda _: (tf.constant(-1), tf.nest.map_structure(_make_empty, spec)))

    def can_start(index: tf.Tensor) -> tf.Tensor:
        ready = tf.numpy_function(lambda at: np.bool_(at < num_streams and is_ready(int(at))), [index], tf.bool)
        return tf.ensure_shape(ready, [])

    def read(index: tf.Tensor) -> tf.data.Dataset:
        is_clock, ready_now = index == num_streams, can_start(index)
        stream = make_stream(tf.minimum(index, num_streams - 1))
        # `take` precedes `flat_map`, because the stream that starts late is endless and must not be cut off.
        late = make_clock(_RETRY_SECS).filter(lambda _: can_start(index)).take(1).flat_map(lambda _: stream)
        elements = _keep_if(ready_now, stream).concatenate(_keep_if(~ready_now & ~is_clock, late))
        return elements.map(lambda element: (tf.cast(index, tf.int32), element)).concatenate(_keep_if(is_clock, ticks))

    # The readers of one stream are not adjacent, so that the streams alternate. The clock comes last.
    readers = tf.constant([*range(num_streams)] * num_readers + [num_streams], tf.int64)
    mixture = tf.data.Dataset.from_tensor_slices(readers).interleave(
        read, cycle_length=len(readers), num_parallel_calls=len(readers), deterministic=False
    )
    initial_ticks = np.zeros(num_streams, np.int32)
    initial_ticks[list(stalled_at_start)] = max_ticks + 1
    watch = _make_watcher(num_streams, max_ticks, on_stalled)
    return scan(mixture, tf.constant(initial_ticks), watch).filter(lambda index, element: index >= 0)


def _make_watcher(num_streams: int, max_ticks: int, on_stalled: OnStalled) -> Callable[..., Any]:
    """Returns a function for `Dataset.scan` that counts the ticks since the last element of each stream."""

    def report(ticks: np.ndarray) -> str:
        try:
            on_stalled([int(index) for index in np.flatnonzero(ticks == max_ticks)], bool((ticks >= max_ticks).all()))
        except ServerUnavailableError as error:
            return describe_error(error)
        return ""

    def count_tick(ticks: tf.Tensor) -> tf.Tensor:
        ticks = tf.minimum(ticks + 1, max_ticks + 1)
        any_new = tf.reduce_any(ticks == max_ticks)
        reason = tf.cond(any_new, lambda: tf.numpy_function(report, [ticks], tf.string), lambda: tf.constant(""))
        with tf.control_dependencies([require_no_reason(reason)]):
            return tf.identity(ticks)

    def watch(ticks: tf.Tensor, element: tuple[tf.Tensor, Any]) -> tuple[tf.Tensor, Any]:
        index = element[0]
        reset = tf.where(tf.range(num_streams) == index, 0, ticks)
        return tf.cond(index < 0, lambda: count_tick(ticks), lambda: reset), element

    return watch


def _make_empty(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([0, *[size or 0 for size in spec.shape[1:]]], spec.dtype)


def _keep_if(condition: tf.Tensor, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset if the condition holds, else an empty one."""
    return dataset.take(tf.where(condition, tf.int64.max, tf.constant(0, tf.int64)))
