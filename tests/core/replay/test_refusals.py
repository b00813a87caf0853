"""What buffers refuse: samples and pushes, with a reason; and bad input, before anything is changed."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replayed import buffers, item, items

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.replay import BufferConfig, NaiveReplayBuffer, RateLimitedError
from rlds2reverb.replay.refusals import rate_refusal


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
    with pytest.raises(
        RateLimitedError, match=r"'demo' had 114 pushed and 57 sampled; pushing 1 more .* than 2 for each"
    ):
        buffer.append(item(0))
    assert buffer.push_count == 114 and buffer.sample(1, 0)


# --- bad input


@pytest.mark.parametrize("priority", [-1, math.nan, math.inf, -math.inf, 1e308, 1.1e12, "high", [1.0, 2.0]])
def test_a_wrong_priority_is_refused_before_anything_is_changed(make, priority):
    buffer = make()
    (unique_id,) = buffer.extend([item(0)])
    with pytest.raises(ValueError, match=r"the priority of item 1 is .*, expected a finite number in \[0, 1e\+12\]"):
        buffer.extend([item(1), item(2, priority=priority)])
    with pytest.raises(
        ValueError, match=r"expected a finite number in \[0, 1e\+12\]|are not numbers|of shape \[1, 2\]"
    ):
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
        (item(1) | {"obs": np.zeros(2)}, r"item 1\['obs'\] is float64 \[2\], but buffer 'demo' expects float32 \[2\]"),
        (item(1) | {"obs": np.zeros(3, np.float32)}, r"item 1\['obs'\] is float32 \[3\], but .* expects float32 \[2\]"),
        (item(1) | {"inner": {"action": np.int32(0)}}, r"lacks item 1\['inner'\]\['done'\]"),
        (item(1) | {"inner": np.int32(0)}, r"lacks item 1\['inner'\]\['action'\]"),
        (item(1) | {"obs": "text"}, r"item 1\['obs'\] is .*, but buffer 'demo' expects float32 \[2\]"),
    ],
)
def test_an_item_of_another_structure_is_an_error_and_none_is_written(make, wrong, message):
    buffer = make()
    buffer.append(item(0))
    with pytest.raises(SpecMismatchError, match=message):
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
    with pytest.raises(ValueError, match=r"item\['name'\] is .*, expected bools or numbers; encode it before"):
        buffer.append({"name": "text"})
    with pytest.raises(ValueError, match="collect_iter of item 0 is 1.5, expected an integer, or -1"):
        buffer.append(item(0, collect_iter=1.5))
    with pytest.raises(ValueError, match="collect_iter of item 0 is -2, expected an integer"):
        buffer.append(item(0, collect_iter=np.int64(-2)))
    assert buffer.push_count == 0 and buffer.spec is None


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


@pytest.mark.parametrize("wrong", ["other_0", "demo", "demo_", "demo_x", "demo_-1", "demo_²", "demo_" + "9" * 19, 0.5])
def test_an_update_of_what_is_no_id_of_the_buffer_changes_nothing(make, wrong):
    buffer = make()
    (unique_id,) = buffer.extend([item(0)])
    with pytest.raises(ValueError, match="is not an id of buffer 'demo', expected one such as 'demo_12'"):
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
    with pytest.raises(ValueError, match="a buffer's name is '', expected a text, which its ids begin with"):
        NaiveReplayBuffer("")
    assert NaiveReplayBuffer("demo").config == BufferConfig(kind="naive")


# --- rates


@given(st.integers(1, 1000), st.integers(0, 10**6), st.integers(1, 1000))
def test_rounding_refuses_no_sample_that_is_due_and_gives_none_that_is_not(least, sampled, size):
    pushed = least * (sampled + size)
    assert rate_refusal(pushed, sampled, size, float(least)) == ""
    assert rate_refusal(pushed - 1, sampled, size, float(least))
    assert rate_refusal(sampled + size, least * sampled, least * size, 1 / least) == ""
    assert rate_refusal(sampled + size, least * sampled, least * size + 1, 1 / least)


@pytest.mark.parametrize("least", ["0.01", "0.1", "0.3", "0.5", "0.7", "1", "1.5", "3", "7", "49"])
def test_samples_are_given_up_to_the_least(make, least):
    buffer = make(push_sample_rate_limit=(float(Fraction(least)), math.inf), sample_min_limit_ratio=0, replace=True)
    sampled = 0
    for count in (1, 2, 46, 49):
        buffer.extend(items(*range(count)))
        allowed = int(buffer.push_count / Fraction(least)) - sampled
        assert buffer.sample_batch(allowed + 1) is None
        assert len(buffer.sample(allowed)) == allowed
        sampled += allowed
    assert buffer.sample_count == sampled


def test_elements_that_left_stay_counted(make):
    buffer = make(push_sample_rate_limit=(1.0, 100.0), max_size=3, sample_min_limit_ratio=0)
    buffer.extend(items(*range(10)))
    assert len(buffer.sample(3, 0)) == 3
    buffer.clear()
    buffer.append(item(10))
    assert [len(buffer.sample(1, 0)) for _ in range(8)] == [1] * 8
    assert buffer.sample(1, 0) is None and "11 were pushed and 11 sampled" in buffer.refusal


def test_a_ratio_asks_for_no_more_than_it_says(make):
    buffer = make(sample_min_limit_ratio=1.1)  # 1.1 * 50 is 55.00000000000001
    buffer.extend(items(*range(54)))
    assert buffer.sample(50) is None
    buffer.append(item(54))
    assert len(buffer.sample(50)) == 50


@pytest.mark.parametrize("wrong", [2**70, -1, True, "demo_x"])
def test_a_number_that_is_no_id_is_refused(make, wrong):
    buffer = make()
    buffer.append(item(0))
    with pytest.raises(ValueError, match=f"'{wrong}' is not an id of buffer 'demo', expected one such as 'demo_12'"):
        buffer.update({"replay_unique_id": [wrong], "priority": [1.0]})


def test_an_array_as_priority_of_an_item_is_refused_in_a_sentence(make):
    with pytest.raises(ValueError, match=r"the priority of item 1 is \[1. 2.\], expected a finite number in \[0, 1e"):
        make().extend([item(0), item(1, priority=np.array([1.0, 2.0]))])
