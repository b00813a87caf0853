"""What buffers refuse: samples, with a reason; bad input, before it reaches the server; and a server that fails."""

import math
import signal
from contextlib import closing

import numpy as np
import pytest
import reverb
from replayed import buffers, item, items, number_in

from rlds2reverb.errors import ServerUnavailable, SpecMismatch
from rlds2reverb.replay import BufferConfig, NaiveReplayBuffer, RateLimited
from rlds2reverb.replay.stores import TableStore


@pytest.fixture
def make():
    with buffers() as build:
        yield build


# --- refusals


def test_sampling_an_empty_buffer_is_refused_with_a_reason(make):
    buffer = make()
    assert buffer.sample(1, 0) is None
    assert buffer.refusal == "buffer 'demo' has 0 elements, a sample of 1 needs 1: push more"
    assert buffer.sample_check(1, 0) == (False, buffer.refusal)
    buffer.append(item(0))
    assert buffer.sample(1, 0) is not None and buffer.refusal == ""


def test_a_sample_waits_for_so_many_times_its_size(make):
    buffer = make(sample_min_limit_ratio=1.5)
    buffer.extend(items(*range(5)))
    assert buffer.sample_check(4, 0) == (False, "buffer 'demo' has 5 elements, a sample of 4 needs 6: push more")
    buffer.append(item(5))
    assert buffer.sample_check(4, 0).allowed


def test_a_check_is_true_where_a_sample_would_be_given(make):
    buffer = make()
    assert not buffer.sample_check(1, 0)
    buffer.append(item(0))
    assert buffer.sample_check(1, 0)


def test_elements_of_priority_0_are_no_elements_to_sample(make):
    buffer = make()
    buffer.extend([item(0, priority=0.0), item(1, priority=0.0)])
    assert buffer.sample(1, 0) is None
    assert "has 0 elements of a priority above 0, too few for a sample of 1: update or push" in buffer.refusal
    distinct = make(replace=False)
    distinct.extend([item(0, priority=0.0), item(1)])
    assert distinct.sample(2, 0) is None and len(distinct.sample(1, 0)) == 1


def test_pushes_and_samples_keep_their_rate(make):
    buffer = make(push_sample_rate_limit=(0.5, 2.0), sample_min_limit_ratio=1.5)
    buffer.extend(items(*range(30)))
    for _ in range(3):
        assert len(buffer.sample(19, 0)) == 19
    assert buffer.sample(19, 0) is None
    assert "30 were pushed and 57 sampled; sampling 19 more would leave less than 0.5 pushed" in buffer.refusal
    buffer.extend(items(*range(30, 114)))
    with pytest.raises(RateLimited, match=r"'demo' had 114 pushed and 57 sampled; pushing 1 more .* than 2 for each"):
        buffer.append(item(0))
    assert buffer.push_count == 114 and buffer.sample(1, 0)


# --- bad input


@pytest.mark.parametrize("priority", [-1, math.nan, math.inf, -math.inf, 1e308, 1.1e12, "high", [1.0, 2.0]])
def test_a_wrong_priority_is_refused_before_it_reaches_the_server(make, priority):
    buffer = make()
    (unique_id,) = buffer.extend([item(0)])
    with pytest.raises(ValueError, match=r"the priority of item 1 is .*, expected a finite number in \[0, 1e\+12\]"):
        buffer.extend([item(1), item(2, priority=priority)])
    with pytest.raises(ValueError, match=r"expected a finite number in \[0, 1e\+12\]|are no numbers|of shape \[1, 2\]"):
        buffer.update({"replay_unique_id": [unique_id], "priority": [priority]})
    assert buffer.count() == buffer.push_count == 1
    assert buffer.sample(1, 0)[0]["priority"] == 1.0


def without(name):
    return {key: value for key, value in item(1).items() if key != name}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (without("obs"), r"the data lacks item 1\['obs'\], compared with buffer 'demo'; cast or reshape it"),
        (item(1, extra=1.0), r"the data has item 1\['extra'\] besides, compared with buffer 'demo'"),
        (item(1) | {"obs": np.zeros(2)}, r"item 1\['obs'\] is float64 \[2\], buffer 'demo' wants float32 \[2\]"),
        (item(1) | {"obs": np.zeros(3, np.float32)}, r"item 1\['obs'\] is float32 \[3\], .* wants float32 \[2\]"),
        (item(1) | {"inner": {"action": np.int32(0)}}, r"lacks item 1\['inner'\]\['done'\]"),
        (item(1) | {"inner": np.int32(0)}, r"lacks item 1\['inner'\]\['action'\]"),
        (item(1) | {"obs": "text"}, r"item 1\['obs'\] is .*, buffer 'demo' wants float32 \[2\]"),
    ],
)
def test_an_item_of_another_structure_is_an_error_and_none_is_written(make, wrong, message):
    buffer = make()
    buffer.append(item(0))
    with pytest.raises(SpecMismatch, match=message):
        buffer.extend([item(0), wrong, item(2)])
    assert buffer.count() == buffer.push_count == 1 and buffer.append(item(1)) == "demo_1"


def test_an_item_has_to_be_a_dict_of_numbers(make):
    buffer = make()
    with pytest.raises(TypeError, match="an item is a list, expected a dict of fields"):
        buffer.append([1, 2])
    with pytest.raises(TypeError, match="an item is a dict, expected a dict of fields with text for keys"):
        buffer.append({1: 2})
    for nest in ({0: 1.0, 1: 2.0}, [{"a": 1.0, 2: 2.0}]):
        with pytest.raises(TypeError, match="a field has a dict with keys .*, expected text; rename them"):
            buffer.append({"obs": nest})
    with pytest.raises(TypeError, match="extend takes several items, got one dict; append it"):
        buffer.extend(item(0))
    with pytest.raises(ValueError, match="an item of buffer 'demo' has no fields; it needs one beside IS, collect"):
        buffer.append({"priority": 1.0})
    with pytest.raises(ValueError, match=r"item\['name'\] is <U4, expected one of float32"):
        buffer.append({"name": "text"})
    with pytest.raises(ValueError, match="collect_iter of item 0 is 1.5, expected an integer, or -1"):
        buffer.append(item(0, collect_iter=1.5))
    with pytest.raises(ValueError, match="collect_iter of item 0 is -2, expected an integer"):
        buffer.append(item(0, collect_iter=np.int64(-2)))
    assert buffer.push_count == 0 and buffer.address is None


def test_arguments_of_a_sample_are_checked(make):
    buffer = make(max_size=8)
    buffer.extend(items(*range(8)))
    with pytest.raises(ValueError, match="a sample of 9 needs 9 elements and buffer 'demo' holds 8 at most; give a sm"):
        buffer.sample(9, 0)
    for size in (-1, 1.5, True):
        with pytest.raises(ValueError, match=f"size is {size}, expected an integer of at least 0"):
            buffer.sample(size, 0)
    with pytest.raises(ValueError, match="cur_learner_iter is -2, expected an integer, or -1"):
        buffer.sample(1, -2)
    with pytest.raises(TypeError, match=r"sample_range is a int, expected a slice such as slice\(-20, None\)"):
        buffer.sample(1, 0, 3)
    used_up = make(max_use=1)
    with pytest.raises(ValueError, match="sample_range does not go with max_use"):
        used_up.sample(1, 0, slice(-1, None))
    limited = make(push_sample_rate_limit=(0.5, 2.0))
    with pytest.raises(ValueError, match="sample_range does not go with a least push_sample_rate_limit above 0"):
        limited.sample(1, 0, slice(-1, None))


@pytest.mark.parametrize("wrong", ["other_0", "demo", "demo_", "demo_x", "demo_-1", "demo_²", "demo_" + "9" * 19, 0])
def test_an_update_of_what_is_no_id_of_the_buffer_changes_nothing(make, wrong):
    buffer = make()
    (unique_id,) = buffer.extend([item(0)])
    with pytest.raises(ValueError, match="is no id of buffer 'demo', expected one such as 'demo_12'"):
        buffer.update({"replay_unique_id": [unique_id, wrong], "priority": [5.0, 5.0]})
    assert buffer.sample(1, 0)[0]["priority"] == 1.0


def test_an_update_needs_one_priority_for_each_id(make):
    buffer = make()
    (unique_id,) = buffer.extend([item(0)])
    with pytest.raises(
        ValueError, match=r"an update of buffer 'demo' has 1 ids and priorities of shape \[2\]; give one"
    ):
        buffer.update({"replay_unique_id": [unique_id], "priority": [1.0, 2.0]})
    with pytest.raises(
        ValueError, match="an update of buffer 'demo' lacks 'replay_unique_id'; give the ids that sample"
    ):
        buffer.update({"priority": [1.0]})


def test_a_buffer_takes_a_config_of_its_kind_and_a_name(make):
    with pytest.raises(ValueError, match="a NaiveReplayBuffer takes a config of kind 'naive', got 'advanced'"):
        NaiveReplayBuffer("demo", BufferConfig())
    with pytest.raises(ValueError, match="a table's name is '', expected 1 to 100"):
        NaiveReplayBuffer("")
    with pytest.raises(ValueError, match="timeout_secs is 0"):
        NaiveReplayBuffer("demo", timeout_secs=0)
    assert NaiveReplayBuffer("demo").config == BufferConfig(kind="naive")


# --- a server that fails


def test_a_push_that_the_server_does_not_take_ends_the_buffer(make, monkeypatch):
    buffer = make()
    buffer.append(item(0))

    def fail(blocks):
        raise ServerUnavailable("waited 30 s")

    monkeypatch.setattr(buffer._store, "insert", fail)
    with pytest.raises(ServerUnavailable, match="waited 30 s"):
        buffer.append(item(1))
    assert buffer.push_count == 1
    for call in (lambda: buffer.append(item(1)), lambda: buffer.sample(1, 0), buffer.clear):
        with pytest.raises(ServerUnavailable, match=r"buffer 'demo' was lost before \(waited 30 s\); make a new one"):
            call()


def test_a_table_that_gives_nothing_is_an_error_within_the_deadline(make):
    buffer = make(max_use=1)
    buffer._timeout_secs = 1.0
    buffer.append(item(0))
    reader = reverb.Client(buffer.address)
    next(reader.sample("demo", 1, emit_timesteps=False))  # a use that the buffer does not know of
    with pytest.raises(ServerUnavailable, match="waited 1 s for a sample of table 'demo' .* it has 0 items"):
        buffer.sample(1, 0)


def test_a_table_is_written_after_it_was_opened_for_that():
    with closing(TableStore(BufferConfig().tables("demo"), None)) as store:
        with pytest.raises(ValueError, match="table 'demo' was not opened for writing"):
            store.insert([])


def test_elements_of_another_writer_are_told(make):
    buffer = make(alpha=1.0)
    buffer.append(item(0, priority=1e-6))
    writer = buffer._store
    stranger = buffer._elements
    writer.insert(stranger.blocks(stranger.columns([item(1)]), np.array([1e9]), 5))
    with pytest.raises(ValueError, match="table 'demo' has elements of another writer; push through the buffer only"):
        buffer.sample(1, 0)


def test_elements_of_another_client_are_told(make):
    buffer = make(alpha=1.0)
    buffer.append(item(0, priority=1e-6))
    columns = [column for (column,) in buffer._elements.columns([item(1)])]
    with reverb.Client(buffer.address).trajectory_writer(1) as writer:
        writer.append(columns)
        writer.create_item("demo", 1e9, [column[0] for column in writer.history])
        writer.flush(timeout_ms=10_000)
    with pytest.raises(ValueError, match="table 'demo' has elements of another writer; push through the buffer only"):
        buffer.sample(1, 0)


NATIVE_CALLS = {
    "insert": lambda buffer: buffer.append(item(9)),
    "draw": lambda buffer: buffer.sample(2, 0),
    "set_priorities": lambda buffer: buffer.update({"replay_unique_id": ["demo_1"], "priority": [3.0]}),
    "delete": lambda buffer: buffer.clear(),
}


@pytest.mark.parametrize("step", NATIVE_CALLS)
def test_ctrl_c_in_a_change_waits_until_ledger_and_table_agree(make, monkeypatch, step):
    buffer = make(max_use=3)  # a draw of two uses none of them up
    buffer.extend(items(*range(4)))
    done = getattr(buffer._store, step)

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return done(*arguments)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(buffer._store, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                NATIVE_CALLS[step](buffer)
    finally:
        signal.signal(signal.SIGINT, before)
    assert buffer._store.info().current_size == buffer.count() == {"insert": 5, "delete": 0}.get(step, 4)
    buffer.append(item(7))
    assert number_in(next(s for s in buffer.sample(buffer.count(), 0, None))) in (*range(4), 9, 7)


@pytest.mark.parametrize("step", NATIVE_CALLS)
def test_any_failure_in_a_change_ends_the_buffer(make, monkeypatch, step):
    buffer = make()
    buffer.extend(items(*range(4)))

    def fail(*arguments):
        raise MemoryError("no more")

    monkeypatch.setattr(buffer._store, step, fail)
    with pytest.raises(MemoryError):
        NATIVE_CALLS[step](buffer)
    with pytest.raises(ServerUnavailable, match=r"buffer 'demo' was lost before \(no more\); make a new one"):
        buffer.sample(1, 0)
