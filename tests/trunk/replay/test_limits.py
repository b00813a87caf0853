"""Rates of pushes and samples: Reverb's limiter and the buffer's rule are one, for all who sample."""

import queue
import threading
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
import reverb
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from replayed import buffers, item, items, number_in

from rlds2reverb.errors import CheckpointError, ServerUnavailable
from rlds2reverb.replay import (
    AdvancedReplayBuffer,
    BufferConfig,
    BufferManager,
    EpisodeReplayBuffer,
    RateLimited,
    stores,
)
from rlds2reverb.replay.draws import Draws
from rlds2reverb.replay.limited_draws import draw_within_limits
from rlds2reverb.replay.refusals import limiter_of, rate_refusal
from rlds2reverb.tables import RateLimiter, Selector, TableConfig

NOTHING = Draws(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), [])
LEASTS = ("0.01", "0.1", "0.3", "0.5", "0.7", "1", "1.5", "3", "7", "49")


@pytest.fixture
def make():
    with buffers() as build:
        yield build


def taken(buffer, count, table="demo"):
    """How many of so many elements another reader gets without waiting."""
    return len(draw_within_limits(buffer.address, table, count, buffer._store._columns).values)


# --- the rule and the limiter


@pytest.fixture(scope="module")
def server():
    """A table for each limit."""
    configs = [
        TableConfig(least, Selector("uniform"), rate_limiter=limiter_of(float(Fraction(least)))) for least in LEASTS
    ]
    running = reverb.Server([config.build(tf.TensorSpec((1,), tf.float32)) for config in configs], port=None)
    yield running
    running.stop()


@pytest.mark.parametrize("least", LEASTS)
def test_reverb_gives_as_many_samples_as_the_rule_and_no_more(server, least):
    client, address = server.localhost_client(), f"localhost:{server.port}"
    pushed = sampled = 0
    for count in (1, 2, 46, 49):
        for _ in range(count):
            client.insert(np.float32(0), {least: 1.0})
        pushed += count
        allowed = int(pushed / Fraction(least)) - sampled
        assert rate_refusal(pushed, sampled, allowed, float(least)) == ""
        assert rate_refusal(pushed, sampled, allowed + 1, float(least))
        drawn = draw_within_limits(address, least, allowed + 1, (tf.TensorSpec((1,), tf.float32),))
        assert len(drawn.numbers) == len(drawn.values) == allowed
        sampled += allowed
    stats = client.server_info(timeout=10)[least].rate_limiter_info
    assert (stats.insert_stats.completed, stats.sample_stats.completed) == (98, sampled)


@given(st.integers(1, 1000), st.integers(0, 10**6), st.integers(1, 1000))
def test_rounding_refuses_no_sample_that_is_due_and_gives_none_that_is_not(least, sampled, size):
    pushed = least * (sampled + size)
    assert rate_refusal(pushed, sampled, size, float(least)) == ""
    assert rate_refusal(pushed - 1, sampled, size, float(least))
    assert rate_refusal(sampled + size, least * sampled, least * size, 1 / least) == ""
    assert rate_refusal(sampled + size, least * sampled, least * size + 1, 1 / least)


def test_a_limiter_of_this_kind_is_parsed_printed_and_checked():
    limiter = RateLimiter("max_samples_per_insert", 3, samples_per_insert=0.5)
    assert RateLimiter.parse("max_samples_per_insert:0.5:3") == limiter == RateLimiter.parse(str(limiter))
    assert TableConfig.from_dict(TableConfig(rate_limiter=limiter).as_dict()).rate_limiter == limiter != limiter_of(0.5)
    for wrong, message in (
        ({}, "samples_per_insert is None, expected a number above 0"),
        ({"samples_per_insert": 1.0, "error_buffer": 2.0}, "takes no error_buffer, got 2.0"),
    ):
        with pytest.raises(ValueError, match=message):
            RateLimiter("max_samples_per_insert", **wrong)
    with pytest.raises(
        ValueError, match="is not understood, expected .* max_samples_per_insert:SAMPLES_PER_INSERT:MIN"
    ):
        RateLimiter.parse("max_samples_per_insert:1")


# --- other readers


def test_readers_of_a_data_set_stop_at_the_limit_and_go_on_after_a_push(make):
    buffer = make(push_sample_rate_limit=(0.5, 100.0), sample_min_limit_ratio=0)
    buffer.extend(items(*range(10)))
    batches = queue.Queue()

    def read():
        for batch in buffer.dataset(4).take(6):
            batches.put(batch.data["inner"]["action"].numpy())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert all(len(batches.get(timeout=60)) == 4 for _ in range(5))
    assert buffer._store.counts("demo") == (10, 20) and batches.empty()
    assert buffer.sample(1, 0) is None
    assert buffer.refusal == (
        "of buffer 'demo' 10 were pushed and 20 sampled; sampling 1 more would leave less than 0.5 pushed for each one "
        "sampled: push more"
    )
    assert buffer.sample_check(1, 0) == (False, buffer.refusal)
    buffer.extend(items(10, 11))
    assert len(batches.get(timeout=60)) == 4
    reader.join(60)
    assert buffer._store.counts("demo") == (12, 24) and buffer.sample_count == 0
    buffer.append(item(12))
    assert len(buffer.sample(2, 0)) == 2 and buffer.sample_count == 2 and buffer.sample(1, 0) is None


def test_a_sample_that_others_took_in_the_middle_is_refused_and_waits_for_nothing(make, monkeypatch):
    buffer = make(push_sample_rate_limit=(1.0, 100.0))
    buffer.extend(items(*range(4)))
    drawn = buffer._drawn

    def drawn_after_another(*arguments):
        assert taken(buffer, 3) == 3
        return drawn(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(buffer, "_drawn", drawn_after_another)
        assert buffer.sample(4, 0) is None
    assert buffer.refusal.startswith("of buffer 'demo' 4 were pushed and 4 sampled; sampling 4 more would leave less")
    assert buffer.sample_count == 0 and buffer._ledger.state()["uses"].tolist() == [0] * 4
    buffer.extend(items(*range(4, 8)))
    assert len(buffer.sample(4, 0)) == 4 and buffer.sample(1, 0) is None
    assert buffer._store.counts("demo") == (8, 8)


def test_a_manager_refuses_what_others_took_in_the_middle(monkeypatch):
    config = BufferConfig(push_sample_rate_limit=(1.0, 100.0))
    with BufferManager({"demo": config, "online": BufferConfig()}) as manager:
        for name in manager.names:
            manager.push_data(items(*range(4)), name)
        drawn = manager["demo"]._drawn

        def drawn_after_another(*arguments):
            assert taken(manager["demo"], 3) == 3
            return drawn(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(manager["demo"], "_drawn", drawn_after_another)
            assert manager.sample({"demo": 4, "online": 2}, cur_learner_iter=0) is None
        assert manager.refusal.startswith("of buffer 'demo' 4 were pushed and 4 sampled")
        manager.push_data(items(*range(4, 8)), "demo")
        assert len(manager.sample({"demo": 4, "online": 0}, cur_learner_iter=0)["demo"]) == 4


def test_a_slow_server_is_not_taken_for_a_limit(make, monkeypatch):
    buffer = make(push_sample_rate_limit=(1.0, 100.0))
    buffer.extend(items(*range(8)))
    counts = iter([0, 2, 5, 0, 1])
    monkeypatch.setattr(
        stores, "draw_within_limits", lambda *where_and_count: draw_some(next(counts), *where_and_count)
    )

    def draw_some(most, address, table, count, columns):
        return draw_within_limits(address, table, most, columns) if most else NOTHING

    assert [s["use"] > 0 for s in buffer.sample(8, 0)] == [True] * 8
    assert buffer._store.counts("demo") == (8, 8) and next(counts, None) is None


def test_uses_that_are_lost_so_end_the_buffer(make, monkeypatch):
    buffer = make(push_sample_rate_limit=(1.0, 100.0), max_use=5)
    buffer.extend(items(*range(4)))
    drawn = buffer._drawn
    monkeypatch.setattr(buffer, "_drawn", lambda *arguments: (taken(buffer, 3), drawn(*arguments))[1])
    with pytest.raises(ServerUnavailable, match="table 'demo' gave 1 of 4 elements, whose uses are lost: let nobody"):
        buffer.sample(4, 0)
    with pytest.raises(ServerUnavailable, match="buffer 'demo' was lost before"):
        buffer.append(item(9))


def test_a_table_that_was_emptied_by_another_is_an_error_within_the_deadline(make):
    buffer = make(push_sample_rate_limit=(0.1, 100.0), max_use=1)
    buffer._timeout_secs = 1.0
    buffer.append(item(0))
    assert taken(buffer, 1) == 1
    with pytest.raises(ServerUnavailable, match="waited 1 s for a sample of table 'demo' .* it has 0 items, 1 were"):
        buffer.sample(1, 0)


def test_pushes_count_the_samples_of_others_and_no_draw_that_was_thrown_away(make):
    buffer = make(push_sample_rate_limit=(0.0, 2.0), replace=False)
    buffer.extend(items(*range(6)))
    assert taken(buffer, 4) == 4
    with pytest.raises(RateLimited, match="'demo' had 6 pushed and 4 sampled; pushing 3 more would be more than 2"):
        buffer.extend(items(6, 7, 8))
    buffer.extend(items(6, 7))
    while buffer._store.num_drawn["demo"] < buffer.sample_count + 1:  # without replacement some draws are thrown away
        assert len(buffer.sample(8, 0)) == 8
    allowed = 2 * (4 + buffer.sample_count) - 8
    with pytest.raises(RateLimited, match=f"'demo' had 8 pushed and {4 + buffer.sample_count} sampled"):
        buffer.extend(items(*range(allowed + 1)))
    buffer.extend(items(*range(allowed)))


def test_elements_that_left_stay_counted(make):
    buffer = make(push_sample_rate_limit=(1.0, 100.0), max_size=3, sample_min_limit_ratio=0)
    buffer.extend(items(*range(10)))
    assert len(buffer.sample(3, 0)) == 3
    buffer.clear()
    buffer.append(item(10))
    assert [len(buffer.sample(1, 0)) for _ in range(8)] == [1] * 8
    assert buffer.sample(1, 0) is None and "11 were pushed and 11 sampled" in buffer.refusal and taken(buffer, 1) == 0


def test_the_server_is_asked_only_where_there_is_a_limit(make, monkeypatch):
    buffer = make()
    buffer.append(item(0))
    monkeypatch.setattr(buffer._store, "infos", lambda: pytest.fail("asked"))
    buffer.append(item(1))
    assert buffer.sample(2, 0) and buffer.sample_check(2, 0)


# --- what is drawn


def test_limited_draws_are_drawn_by_priority_and_come_back_bit_for_bit(make):
    buffer = make(push_sample_rate_limit=(1e-3, 100.0), alpha=1.0, beta=1.0, anneal_step=0, sample_min_limit_ratio=0)
    priorities = np.array([0.5, 1.0, 2.5])
    buffer.extend([item(n, priority=float(p)) for n, p in enumerate(priorities)])
    sampled = buffer.sample(2000, 0)
    counts = np.bincount([number_in(s) for s in sampled], minlength=3)
    wanted = 2000 * priorities / priorities.sum()
    assert ((counts - wanted) ** 2 / wanted).sum() < 28  # chi-square with 2 degrees of freedom: one in a million
    assert {number_in(s): round(s["IS"], 9) for s in sampled} == {0: 1.0, 1: 0.5, 2: 0.2}
    unlimited = make()
    unlimited.append(item(0))
    (wanted_item,) = unlimited.sample(1, 0)
    got = next(s for s in sampled if number_in(s) == 0)
    for name in ("obs", "image"):
        assert got[name].dtype == wanted_item[name].dtype and got[name].tobytes() == wanted_item[name].tobytes()
        got[name][0] = 7  # who sampled it may change it
    assert type(got["inner"]["done"]) is type(wanted_item["inner"]["done"]) is np.bool_


def test_limited_episodes_come_back_whole(make):
    buffer = make(EpisodeReplayBuffer, push_sample_rate_limit=(0.05, 100.0), sample_min_limit_ratio=0)
    buffer.extend([{"x": np.arange(length, dtype=np.float32)} for length in (1, 3, 7)])
    sampled = buffer.sample(60, 0)
    assert {tuple(s["x"].tolist()) for s in sampled} == {tuple(range(length)) for length in (1, 3, 7)}
    assert buffer.sample(1, 0) is None


# --- what is kept


CONFIG = BufferConfig(push_sample_rate_limit=(0.5, 2.0), sample_min_limit_ratio=0)


def used(buffer):
    """4 pushed, 3 sampled, 2 taken by another: 3 may be sampled, 6 pushed."""
    buffer.extend(items(*range(4)))
    assert len(buffer.sample(3, 0)) == 3 and taken(buffer, 2) == 2
    return buffer


def assert_goes_on(buffer):
    assert (buffer.push_count, buffer.sample_count) == (4, 3)
    with pytest.raises(RateLimited, match="'demo' had 4 pushed and 5 sampled; pushing 7 more would be more than 2"):
        buffer.extend(items(*range(7)))
    assert buffer.sample(4, 0) is None and "4 were pushed and 5 sampled" in buffer.refusal
    assert len(buffer.sample(2, 0)) == 2 and taken(buffer, 9) == 1 and buffer.sample(1, 0) is None


def test_a_restored_buffer_and_its_limiter_go_on_from_the_same_counts(tmp_path):
    with used(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)) as buffer:
        buffer.checkpoint()
        state = buffer.state_dict()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path) as again:
        assert_goes_on(again)
        again.load_state_dict(state)
        assert_goes_on(again)
    with AdvancedReplayBuffer("demo", CONFIG) as other:
        other.load_state_dict(state)
        assert_goes_on(other)


def test_an_empty_state_begins_the_counts_anew():
    with used(AdvancedReplayBuffer("demo", CONFIG)) as buffer, AdvancedReplayBuffer("demo", CONFIG) as empty:
        buffer.load_state_dict(empty.state_dict())
        assert buffer.push_count == buffer.sample_count == buffer.count() == 0
        buffer.extend(items(*range(9)))  # free again until something is sampled
        assert buffer._store.counts("demo") == (9, 0)
        assert len(buffer.sample(18, 0)) == 18 and taken(buffer, 1) == 0


def test_another_limit_is_refused(tmp_path):
    with used(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path)) as buffer:
        buffer.checkpoint()
    stored = "rate_limiter of table 'demo' is stored as max_samples_per_insert:2:1, asked as min_size:1"
    with pytest.raises(CheckpointError, match=stored):
        AdvancedReplayBuffer("demo", BufferConfig(sample_min_limit_ratio=0), checkpoint_root=tmp_path)


def test_pushers_samplers_and_readers_keep_the_rates_together(make):
    buffer = make(push_sample_rate_limit=(0.25, 2.0), sample_min_limit_ratio=0, max_size=20)
    buffer.append(item(0))
    stop, errors = threading.Event(), []

    def thread(work):
        def run():
            try:
                while not stop.is_set():
                    with suppress(RateLimited):
                        work()
            except Exception as error:
                errors.append(error)

        return threading.Thread(target=run)

    def push():
        buffer.append(item(buffer.push_count % 200))

    def sample():
        buffer.sample(3, 0)
        if buffer.push_count > 60:
            stop.set()

    threads = [thread(push), thread(sample), thread(lambda: taken(buffer, 2))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    pushed, sampled = buffer._store.counts("demo")
    assert not errors and pushed == buffer.push_count and buffer.sample_count <= sampled <= 4 * pushed
    assert buffer.count() == buffer._store.info().current_size == 20
