"""The data loader: batches in order with any number of threads, errors at their batch, no leaked threads."""

import queue
import threading

import numpy as np
import pytest

from rlds2reverb.learners import dataloader, setup_dataloader


class Numbers:
    """A callable that returns the numbers from 0 to `total` as nests; chunks are numbered by the start of their call."""

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
    return [thread for thread in threading.enumerate() if thread.name.startswith("rlds2reverb-data")]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_batches_are_in_order_and_an_incomplete_last_one_is_dropped(num_workers, chunk_size):
    with setup_dataloader(Numbers(11), 4, chunk_size, num_workers) as loader:
        batches = list(loader)
        assert [batch["n"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert batches[1]["x"].dtype == np.float32 and batches[1]["x"].tolist()[0] == [4, -4]
        assert next(loader, None) is None
    assert threads() == []


def test_chunks_that_finish_out_of_order_are_reordered():
    started, second_is_done, lock = [], threading.Event(), threading.Lock()

    def get_data(count):
        with lock:
            started.append(len(started))
            number = started[-1]
        if number == 0:
            assert second_is_done.wait(60)
        elif number == 1:
            second_is_done.set()
        return [number] * count if number < 6 else []

    with setup_dataloader(get_data, 4, 2, num_workers=2) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]
    assert threads() == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_exception_is_raised_in_place_of_its_batch(num_workers):
    loader = setup_dataloader(Numbers(100, fails_at=6), 4, 2, num_workers)
    assert next(loader)["n"].tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="no element 6"):
        next(loader)
    assert next(loader, None) is None and threads() == []


def test_neither_close_nor_the_end_of_the_program_waits_for_a_call_that_does_not_return(monkeypatch):
    monkeypatch.setattr(dataloader, "_CLOSE_SECS", 0.1)
    permits = queue.SimpleQueue()
    permits.put([1])
    with setup_dataloader(lambda count: permits.get(), 1, num_workers=1) as loader:
        assert next(loader) == [1] and all(thread.daemon for thread in threads())
        waiting = threads()
    permits.put(None)
    for thread in waiting:  # Other tests require that there are no threads.
        thread.join(10)


def test_threads_of_a_dropped_loader_end():
    loader = setup_dataloader(Numbers(1000), 4, num_workers=2)
    next(loader)
    started = threads()
    del loader
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_close_stops_all_threads():
    loader = setup_dataloader(Numbers(1000), 4, num_workers=3)
    next(loader)
    assert threads()
    loader.close()
    loader.close()
    assert threads() == [] and next(loader, None) is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0,), "batch_size must be an integer >= 1, got 0"),
        ((4, 0), "chunk_size must be an integer >= 1, got 0"),
        ((4, 3), "chunk_size must divide the batch_size of 4, got 3"),
        ((4, None, -1), "num_workers must be an integer >= 0, got -1"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        setup_dataloader(Numbers(1), *arguments)


def test_too_many_elements_raise():
    with pytest.raises(ValueError, match="get_data must return at most 2 elements, got 3"):
        next(setup_dataloader(lambda count: [0, 1, 2], 2))
