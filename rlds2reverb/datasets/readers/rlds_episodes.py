"""The steps of an RLDS dataset, one episode at a time: as columns in `tf.data`, or as numpy arrays.

`tf.data` iterates over an episode step by step, which takes some microseconds per step. If the steps are slices of
arrays, as made by `tf.data.Dataset.from_tensor_slices`, `read_episodes` takes these arrays from the dataset's graph.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.libraries.python_datasets import PythonDataset
from rlds2reverb.libraries.tensorflow_internals import extract_sliced_arrays, without_autograph, without_autotuning
from rlds2reverb.types import fields

_PARALLEL_EPISODES = 2
_ALL_STEPS = np.iinfo(np.int64).max


def read_episodes(dataset: tf.data.Dataset, other_fields: Sequence[str] = ()) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the steps of each episode and other fields of it, in order; two episodes are read at a time.

    Args:
      dataset: dataset of dicts whose `steps` is a dataset of steps.
      other_fields: names of further fields to read: tensors, or nested dicts of them.

    Returns:
      Pairs of a nest of arrays `[T, ...]` and a dict of the other fields, whose leaves are arrays.

    Raises:
      tf.errors.OpError: if a record is damaged.
    """
    read = _make_reader(dataset.element_spec[fields.STEPS])

    @without_autograph
    def select(episode: Any) -> tuple[tf.Tensor, dict[str, Any]]:
        steps = tf.data.experimental.to_variant(episode[fields.STEPS])
        return steps, {name: episode[name] for name in other_fields}

    # Autotuning would take a fifth of the time.
    episodes = iter(PythonDataset(without_autotuning(dataset.map(select).prefetch(_PARALLEL_EPISODES))))

    def read_episode(steps: tf.Tensor, others: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return read(steps), tree.map_structure(_to_array, others)

    threads = ThreadPoolExecutor(_PARALLEL_EPISODES)
    pending: deque[Future[Any]] = deque()
    try:
        for episode in _submit_reads(threads, read_episode, episodes):
            pending.append(episode)
            if len(pending) > _PARALLEL_EPISODES:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # Garbage collection may drop the iterator anywhere, so nothing waits for the threads.
        threads.shutdown(wait=False, cancel_futures=True)


def _to_array(value: tf.Tensor) -> np.ndarray:
    return np.asarray(value.numpy(), object if value.dtype == tf.string else None)


def _submit_reads(
    threads: ThreadPoolExecutor, read_episode: Callable[..., Any], episodes: Iterator[tuple[Any, ...]]
) -> Iterator[Future[Any]]:
    """Yields a future for what `read_episode` returns for each episode; the error of a damaged record is the last."""
    try:
        for episode in episodes:
            yield threads.submit(read_episode, *episode)
    except tf.errors.OpError as error:
        damaged: Future[Any] = Future()
        damaged.set_exception(error)
        yield damaged


def make_zeros(columns_spec: Any, num_rows: int) -> Any:
    """Returns columns of zeros; dimensions of varying size are 0."""
    return tree.map_structure(
        lambda spec: tf.zeros([num_rows, *(size or 0 for size in spec.shape[1:])], spec.dtype), columns_spec
    )


def _make_reader(steps_spec: tf.data.DatasetSpec) -> Callable[[tf.Tensor], Any]:
    """Returns a function that reads the columns of a dataset of steps, passed as a variant."""
    step_spec = steps_spec.element_spec

    def read_by_step(steps: tf.Tensor) -> Any:
        columns = tf.data.experimental.from_variant(steps, step_spec).batch(_ALL_STEPS)
        no_rows = tf.data.Dataset.from_tensors(make_zeros(columns.element_spec, 0))
        return columns.concatenate(no_rows).take(1).get_single_element()

    @functools.cache
    def trace() -> Any:  # TensorFlow would warn about calls of functions that differ only in the dataset.
        return tf.function(read_by_step, autograph=False).get_concrete_function(tf.TensorSpec([], tf.variant))

    has_arrays, lock = True, threading.Lock()

    def read(steps: tf.Tensor) -> Any:
        nonlocal has_arrays
        arrays = extract_sliced_arrays(steps) if has_arrays else None
        if arrays is None:
            has_arrays = False
            with lock:
                graph = trace()
            return tree.map_structure(lambda column: column.numpy(), graph(steps))
        return tree.unflatten_as(step_spec, arrays)

    return read
