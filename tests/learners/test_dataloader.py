"""The data loader: batches in order, whoever makes them, errors where they belong, no threads left."""

import threading

import numpy as np
import pytest
from rlds2reverb.learners import setup_dataloader


class Numbers:
    """Gives the numbers from 0 up to `total`, as nests; which chunk a call is follows from when it began."""

    def __init__(self, total, *, fails_at=None):
        self.total, self.fails_at, self.next, self.lock = total, fails_at, 0, threading.Lock()

    def __call__(self, count):
        with self.lock:
            first, self.next = self.next, self.next + count
        if self.fails_at is not None and first >= self.fails_at:
            raise RuntimeError(f"no element {first}")
        numbers = range(first, min(first + count, self.total))
        return [{"x": np.float32([n, -n]), "n": n} for n in numbers] or None


def threads():
    return [each for each in threading.enumerate() if each.name.startswith("rlds2reverb-data")]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_batches_are_in_order_and_the_short_last_one_is_left_out(num_workers, chunk_size):
    with setup_dataloader(Numbers(11), 4, chunk_size, num_workers) as loader:
        batches = list(loader)
        assert [batch["n"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert batches[1]["x"].dtype == np.float32 and batches[1]["x"].tolist()[0] == [4, -4]
        assert next(loader, None) is None
    assert threads() == []


def test_chunks_that_end_out_of_order_are_put_in_order():
    begun, second_is_done, lock = [], threading.Event(), threading.Lock()

    def get_data(count):
        with lock:
            begun.append(len(begun))
            number = begun[-1]
        if number == 0:
            assert second_is_done.wait(60)
        elif number == 1:
            second_is_done.set()
        return [number] * count if number < 6 else []

    with setup_dataloader(get_data, 4, 2, num_workers=2) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]
    assert threads() == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_reaches_the_caller_at_its_batch(num_workers):
    loader = setup_dataloader(Numbers(100, fails_at=6), 4, 2, num_workers)
    assert next(loader)["n"].tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="no element 6"):
        next(loader)
    assert next(loader, None) is None and threads() == []


def test_closing_early_leaves_no_thread():
    loader = setup_dataloader(Numbers(1000), 4, num_workers=3)
    next(loader)
    assert threads()
    loader.close()
    loader.close()
    assert threads() == [] and next(loader, None) is None


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ((0,), "batch_size is 0"),
        ((4, 0), "chunk_size is 0"),
        ((4, 3), "chunk_size is 3, expected a divisor of the batch_size of 4"),
        ((4, None, -1), "num_workers is -1"),
    ],
)
def test_numbers_are_checked(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        setup_dataloader(Numbers(1), *arguments)


def test_too_many_elements_are_an_error():
    with pytest.raises(ValueError, match="get_data gave 3 elements, expected at most 2"):
        next(setup_dataloader(lambda count: [0, 1, 2], 2))
