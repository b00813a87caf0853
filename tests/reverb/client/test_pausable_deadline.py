"""Tests of the deadline that ignores the time during which the process was stopped, with a clock set by hand."""

from types import SimpleNamespace

import pytest

from rlds2reverb.reverb.client import PausableDeadline, pausable_deadline


@pytest.fixture
def clock(monkeypatch):
    """Returns a function that moves the clock forward; it starts at 100 s."""
    now = [100.0]
    monkeypatch.setattr(pausable_deadline, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def advance(secs):
        now[0] += secs

    return advance


def test_remaining_time_falls_with_each_read(clock):
    deadline = PausableDeadline(20.0)
    assert deadline.remaining_secs == 20 and deadline.tick_secs == 1
    for _ in range(19):
        clock(1.0)
        assert deadline.remaining_secs > 0
    clock(0.25)
    assert deadline.remaining_secs == 0.75 and deadline.tick_secs == 0.75
    clock(1.0)
    assert deadline.remaining_secs == -0.25 and deadline.tick_secs == 0.001


@pytest.mark.parametrize(("timeout_secs", "tick_secs"), [(20.0, 1.0), (2.0, 0.25)])
def test_stop_of_the_process_counts_as_three_ticks(clock, timeout_secs, tick_secs):
    deadline = PausableDeadline(timeout_secs)
    assert deadline.tick_secs == tick_secs
    clock(1000.0)
    assert deadline.remaining_secs == timeout_secs - 3 * tick_secs
    clock(tick_secs)
    assert deadline.remaining_secs == timeout_secs - 4 * tick_secs


def test_restart_resets_the_remaining_time(clock):
    deadline = PausableDeadline(8.0)
    clock(2.0)
    assert deadline.remaining_secs == 6
    clock(2.0)
    deadline.restart()
    clock(1.0)
    assert deadline.remaining_secs == 7
