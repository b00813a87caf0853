"""`tf.data` datasets whose elements are made by Python code.

Their iterators can be dropped at any time. TensorFlow deletes an iterator only when the code that makes the next
element has returned. The thread that drops the last reference, or collects it as garbage, may hold a lock that this
code needs, and would wait forever. Other threads therefore delete iterators. When the interpreter exits, such code no
longer returns, and iterators are kept.

Iterators of `make_dataset` also raise the exceptions of the code. TensorFlow reports these as an `OpError`, and logs
the traceback. Here the code returns the number of the exception instead, the graph fails with that number, and
`translate_error` returns the exception.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import inspect
import itertools
import queue
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from .tensorflow_internals import without_autograph, without_autotuning

_MAX_ERRORS = 1000
#: The most recent exceptions by their number.
_errors: dict[int, Exception] = {}
_numbers = itertools.count()
_NUMBER = re.compile(r"rlds2reverb error (\d+): ")


def make_dataset(open_batches: Callable[[], Iterator[Any]], element_spec: Any, *, prefetch: int) -> PythonDataset:
    """Returns a dataset of the batches of Python iterators.

    Args:
      open_batches: function that returns an iterator over nests of arrays for each iterator of the dataset. An iterator
        that raises an exception may continue afterwards; it should end its work when it is no longer referenced.
      element_spec: nest of `tf.TensorSpec` of a batch.
      prefetch: number of batches to prepare ahead.
    """
    specs = tf.nest.flatten(element_spec)
    nothing = [np.zeros([size or 0 for size in spec.shape], spec.dtype.as_numpy_dtype) for spec in specs]

    def iterate() -> Iterator[tuple[Any, ...]]:
        batches = open_batches()
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except Exception as error:
                yield (*nothing, _describe(error))
            else:
                yield (*tf.nest.flatten(batch), "")

    @without_autograph
    def check(*tensors: tf.Tensor) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(tensors[-1], ""), [tensors[-1]])]):
            return tf.nest.pack_sequence_as(element_spec, [tf.identity(tensor) for tensor in tensors[:-1]])

    batches = tf.data.Dataset.from_generator(iterate, output_signature=(*specs, tf.TensorSpec((), tf.string)))
    return PythonDataset(without_autotuning(batches.map(check).prefetch(prefetch)), open_batches)


def make_batch_spec(empty_batch: Any, batch_size: int) -> Any:
    """Returns the nest of `tf.TensorSpec` of batches that have the structure of an empty one; axes of size 0 vary."""
    return tf.nest.map_structure(
        lambda column: tf.TensorSpec((batch_size, *(size or None for size in column.shape[1:])), column.dtype),
        empty_batch,
    )


def _describe(error: Exception) -> str:
    number = next(_numbers)
    _errors[number] = error.with_traceback(None)  # Its frames would keep the iterator, and so its threads.
    _errors.pop(number - _MAX_ERRORS, None)
    return f"rlds2reverb error {number}: {type(error).__name__}: {error}"


def translate_error(error: Exception) -> Exception | None:
    """Returns the exception that made a dataset of batches fail, or None if the error has a different cause.

    Args:
      error: `tf.errors.OpError` raised in this process by a graph that reads `sample_dataset`, `mixed_dataset` or a
        replay buffer's `dataset`. Eager iterators raise the exception itself.

    Returns:
      `ServerUnavailableError` if no server returned samples in time; `TimeoutError` if a buffer refused to sample for
      too long; `SpecMismatchError` if an item does not match the table's signature.
    """
    return _errors.get(_find_number(error))


def _find_number(error: Exception) -> int:
    """Returns the number of the exception that an error stands for, or -1."""
    match = _NUMBER.search(getattr(error, "message", ""))
    return int(match[1]) if match else -1


class _Iterator(iterator_ops.OwnedIterator):
    """An iterator over a dataset that raises translated errors, and that is dropped without waiting."""

    def __init__(self, dataset: tf.data.Dataset):
        _start_deletion()
        super().__init__(dataset)
        _iterators.add(self)

    def __del__(self) -> None:
        _released.put([self.__dict__.pop(name, None) for name in ("_dataset", "_iterator_resource")])

    def _next_internal(self) -> Any:
        try:
            return super()._next_internal()
        except tf.errors.OpError as error:
            # What is raised refers to this iterator, which would otherwise be kept with it.
            translated = _errors.pop(_find_number(error), None)
            if translated is None:
                raise
            raise translated from None


_iterators: weakref.WeakSet[_Iterator] = weakref.WeakSet()
#: Datasets of iterators that nothing refers to any more, and TensorFlow's handles, of which this is the last reference.
_released: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()


@functools.cache
def _start_deletion() -> None:
    """Starts the thread that has each iterator deleted in another thread, since that may take long."""

    def delete() -> None:
        while True:
            threading.Thread(target=_drop, args=[_released.get()], daemon=True).start()

    threading.Thread(target=delete, name="delete-iterators", daemon=True).start()
    atexit.register(_keep_iterators)


def _drop(references: list[Any]) -> None:
    """Drops a handle, and then its dataset, whose resources may be released once no iterator uses them."""
    while references:
        references.pop()


def _keep_iterators() -> None:
    handles = [iterator._iterator_resource for iterator in _iterators]
    with contextlib.suppress(queue.Empty):
        while True:
            handles += _released.get_nowait()
    for handle in handles:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


class PythonDataset(tf.data.Dataset):
    """A dataset whose iterators are those of this module, as are those of its `map`, `batch`, `take` and so on.

    Attributes:
      open_batches: function that returns an iterator over the batches as arrays; only in datasets of `make_dataset`.
    """

    def __init__(self, dataset: tf.data.Dataset, open_batches: Callable[[], Iterator[Any]] | None = None):
        """Wraps a dataset."""
        self._dataset = dataset
        if open_batches is not None:
            self.open_batches = open_batches
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        """The spec of an element."""
        return self._dataset.element_spec

    def __iter__(self) -> Any:
        return _Iterator(self) if tf.executing_eagerly() else super().__iter__()


def _wrap_result(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that returns a dataset with the iterators of this module."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        return PythonDataset(result) if isinstance(result, tf.data.Dataset) else result

    return call


for _name, _method in vars(tf.data.Dataset).items():
    if inspect.isfunction(_method) and not _name.startswith("_") and _name not in vars(PythonDataset):
        setattr(PythonDataset, _name, _wrap_result(_method))
