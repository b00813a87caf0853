"""Tests of datasets that Python code makes: their iterators raise its errors, and are dropped without waiting."""

import gc
import itertools
import queue
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.libraries import python_datasets
from rlds2reverb.reverb.sampling import translate_error

REASON = """it's "gone" [at \\ Zürich]; start\nit]"""


def make_dataset(error, *, fail_at=2):
    """Returns a dataset of 0, 1, ... that fails at a number."""
    numbers = itertools.count()

    def read():
        number = next(numbers)
        if number == fail_at:
            raise error
        return np.int64(number)

    return python_datasets.make_dataset(lambda: iter(read, None), tf.TensorSpec([], tf.int64), prefetch=1)


def run_program(program):
    """Returns the result of a program, which must exit."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)


@pytest.mark.parametrize("error", [ServerUnavailableError(REASON), TimeoutError("waited")])
@pytest.mark.parametrize(
    "transform",
    [
        lambda dataset: dataset,
        lambda dataset: dataset.map(lambda number: number).batch(1).take(5),
        lambda dataset: dataset.prefetch(2).as_numpy_iterator(),
        lambda dataset: dataset.apply(lambda dataset: dataset.enumerate().filter(lambda index, number: True)),
    ],
    ids=["plain", "map-batch-take", "numpy", "apply"],
)
def test_iterators_raise_the_error_itself(error, transform):
    iterator = iter(transform(make_dataset(error)))
    next(iterator), next(iterator)
    with pytest.raises(type(error)) as caught:
        next(iterator)
    assert str(caught.value) == str(error)


def test_translate_error_finds_the_error_in_a_graph():
    iterator = iter(make_dataset(ServerUnavailableError(REASON), fail_at=0))
    with pytest.raises(tf.errors.OpError) as caught:
        tf.function(lambda: next(iterator), autograph=False)()
    error = translate_error(caught.value)
    assert type(error) is ServerUnavailableError and str(error) == REASON


def test_reading_continues_after_an_error():
    iterator = iter(make_dataset(TimeoutError("waited")))
    next(iterator), next(iterator)
    with pytest.raises(TimeoutError):
        next(iterator)
    assert next(iterator).numpy() == 3


def test_other_errors_and_the_end_are_unchanged():
    dataset = make_dataset(None, fail_at=-1).map(lambda number: tf.debugging.check_numerics(1.0 / tf.cast(number, tf.float32), "division"))  # fmt: skip
    with pytest.raises(tf.errors.InvalidArgumentError, match="division") as caught:
        next(iter(dataset))
    assert translate_error(caught.value) is None and translate_error(ValueError("x")) is None
    assert list(make_dataset(None, fail_at=-1).take(2).as_numpy_iterator()) == [0, 1]
    ended = python_datasets.make_dataset(lambda: iter([np.int64(7)]), tf.TensorSpec([], tf.int64), prefetch=1)
    assert list(ended.as_numpy_iterator()) == [7]


@pytest.mark.slow
def test_failed_dataset_logs_nothing():
    program = (
        "from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig\n"
        "buffer = AdvancedReplayBuffer('demo', BufferConfig(max_use=1))\n"
        "buffer.extend([{'x': 1}] * 4)\n"
        "batches = iter(buffer.dataset(4, timeout_secs=0.1))\n"
        "next(batches)\n"
        "try:\n    next(batches)\nexcept TimeoutError as error:\n    print(error)\n"
    )
    result = run_program(program)
    assert result.stdout.startswith("waited 0.1 s for a batch: buffer 'demo' has 0 elements")
    assert "op_kernel" not in result.stderr and "Traceback" not in result.stderr


def test_an_iterator_that_has_failed_is_released():
    class Failing:
        def __next__(self):
            raise ServerUnavailableError(REASON)

    opened = []

    def open_batches():
        iterator = Failing()
        opened.append(weakref.ref(iterator))
        return iterator

    iterator = iter(python_datasets.make_dataset(open_batches, tf.TensorSpec([], tf.int64), prefetch=1))
    with pytest.raises(ServerUnavailableError):
        next(iterator)
    del iterator
    until = time.monotonic() + 10  # TensorFlow ends the dataset in another thread.
    while opened[0]() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert opened[0]() is None


def test_dropping_an_iterator_does_not_wait_for_its_next_batch():
    """A thread may drop it, or collect it as garbage, while it holds a lock that the next batch requires."""
    numbers = queue.SimpleQueue()
    numbers.put(np.int64(1))
    dataset = python_datasets.make_dataset(lambda: iter(numbers.get, None), tf.TensorSpec([], tf.int64), prefetch=1)
    iterators = [iter(dataset.map(lambda number: number + 1))]
    assert next(iterators[0]).numpy() == 2
    dropping = threading.Thread(target=iterators.clear)
    dropping.start()
    try:
        dropping.join(10)
        assert not dropping.is_alive()
    finally:
        numbers.put(None)


@pytest.mark.slow
def test_a_program_exits_while_a_batch_is_awaited():
    program = (
        "import itertools, queue\n"
        "import tensorflow as tf\n"
        "from rlds2reverb.libraries.python_datasets import make_dataset\n"
        "def read():\n"
        "    return itertools.chain([1], iter(queue.SimpleQueue().get, None))\n"
        "dataset = make_dataset(read, tf.TensorSpec([], tf.int64), prefetch=1)\n"
        "kept, dropped = iter(dataset), iter(dataset.take(9))\n"
        "print(next(kept).numpy(), next(dropped).numpy())\n"
        "del dropped\n"
    )
    assert run_program(program).stdout == "1 1\n"
