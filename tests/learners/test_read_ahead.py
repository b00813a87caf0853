"""`ReadAhead`: batches arrive in order, no more than needed are read, and errors belong to their iteration."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.learners import read_ahead
from rlds2reverb.learners.feeds import Feed
from rlds2reverb.learners.read_ahead import ReadAhead


class Steps(Feed):
    """A feed whose batches consist of the step, which records its reads and can fail at a step."""

    def __init__(self, *, fail_at=None, width=1):
        self.data_spec = tf.TensorSpec([width], tf.int64)
        self.reads, self.fail_at, self.width = [], fail_at, width

    def read(self, first_step, count):
        self.reads.append((first_step, count))
        if first_step == self.fail_at:
            self.fail_at = None
            raise ConnectionError(f"no batch at {first_step}")
        count = min(count, (self.fail_at or np.inf) - first_step)
        return np.repeat(np.arange(first_step, first_step + count)[:, None], self.width, 1), ()


def take(batches, first_step, count, last):
    data, info = batches.take(first_step, count, last)
    assert info == ()
    return data[:, 0].tolist()


def test_batches_come_in_order_and_none_after_the_last_is_read():
    feed = Steps()
    batches, got = ReadAhead(feed), []
    for end in (3, 4, 120, 130):
        while len(got) < end:
            got += take(batches, len(got), end - len(got), 130)
    assert got == list(range(130))
    assert feed.reads == [(0, 1), (1, 50), (51, 50), (101, 29)]  # The size of a batch is unknown before the first one.


def test_next_part_is_read_while_the_caller_uses_one():
    feed = Steps()
    batches = ReadAhead(feed)
    take(batches, 0, 1, 100)
    batches.close()  # This waits for the read.
    assert feed.reads == [(0, 1), (1, 50)]
    assert take(batches, 1, 9, 100) == list(range(1, 10)) and feed.reads[2] == (1, 50)


def test_feed_that_may_change_is_not_read_ahead():
    feed = Steps()
    feed.reads_ahead = False
    batches = ReadAhead(feed)
    assert take(batches, 0, 1, 100) == [0] and take(batches, 1, 4, 100) == [1, 2, 3, 4]
    batches.close()
    assert feed.reads == [(0, 1), (1, 4)]


def test_large_batches_are_read_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(read_ahead, "MAX_BYTES", 100)
    feed = Steps(width=4)  # 32 bytes
    batches = ReadAhead(feed)
    assert [take(batches, *step) for step in ((0, 9, 9), (1, 8, 9), (4, 5, 9))] == [[0], [1, 2, 3], [4, 5, 6]]


def test_error_is_raised_at_its_iteration_and_reading_continues():
    batches = ReadAhead(Steps(fail_at=5))
    assert take(batches, 0, 1, 99) == [0] and take(batches, 1, 99, 99) == [1, 2, 3, 4]
    with pytest.raises(ConnectionError, match="no batch at 5"):
        take(batches, 5, 99, 99)
    assert take(batches, 5, 2, 99) == [5, 6]


def test_other_step_than_the_next_reads_again():
    batches = ReadAhead(Steps())
    take(batches, 0, 1, 99)
    assert take(batches, 40, 2, 99) == [40, 41] and take(batches, 7, 2, 99) == [7, 8]


def test_reads_never_overlap(monkeypatch):
    monkeypatch.setattr(read_ahead, "MAX_ITERATIONS", 2)
    lock = threading.Lock()

    class Exclusive(Steps):
        def read(self, first_step, count):
            assert lock.acquire(blocking=False)
            try:
                return super().read(first_step, count)
            finally:
                lock.release()

    batches = ReadAhead(Exclusive())
    for step in (*range(40), 3, 4, 5, 90, 91):
        assert take(batches, step, 1, 200) == [step]


ENDLESS = """
import threading
import numpy as np, tensorflow as tf
from rlds2reverb.learners.feeds import Feed
from rlds2reverb.learners import read_ahead

class Stuck(Feed):
    data_spec = tf.TensorSpec([1])
    def read(self, first_step, count):
        if first_step:
            print("waiting", flush=True)
            threading.Event().wait()
        return np.zeros([1, 1]), ()

read_ahead.CLOSE_SECS = 0.1
batches = read_ahead.ReadAhead(Stuck())
batches.take(0, 1, 9)
batches.close()
print("end", flush=True)
"""


@pytest.mark.slow
def test_read_that_never_returns_does_not_delay_the_end_of_the_program():
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["waiting", "end"]), done.stderr
