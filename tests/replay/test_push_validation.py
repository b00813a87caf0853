"""Tests of refused samples and pushes, and of invalid arguments, which change nothing."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numbered_items import item, items

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.replay import BufferConfig, NaiveReplayBuffer, RateLimitedError, SampleRefusal
from rlds2reverb.replay.sampler import exceeds_rate

# --- refused samples and pushes


def test_sample_of_an_empty_buffer_is_refused_with_a_reason(make):
    buffer = make()
    assert buffer.sample(1, 0) is None
    reason = "buffer 'demo' has 0 elements, but a sample of 1 requires 1; push more"
    assert buffer.sample_batch(1, 0) == SampleRefusal(reason) and not buffer.sample_batch(1, 0)
    assert buffer.sample_check(1, 0) == (False, reason) and not buffer.sample_check(1, 0)
    buffer.append(item(0))
    assert buffer.sample_check(1, 0)
    assert buffer.sample(1, 0) and buffer.sample_batch(1, 0) and buffer.sample_check(1, 0) == (True, "")


def test_sample_requires_its_size_times_the_min_limit_ratio(make):
    buffer = make(sample_min_limit_ratio=1.5)
    buffer.extend(items(*range(5)))
    reason = (
        "buffer 'demo' has 5 elements, but a sample of 4 requires 6 (sample_min_limit_ratio=1.5); push more, or lower "
        "sample_min_limit_ratio"
    )
    assert buffer.sample_check(4, 0) == (False, reason)
    buffer.append(item(5))
    assert buffer.sample_check(4, 0).allowed


@pytest.mark.drill("F13")
def test_sample_is_refused_if_all_priorities_are_0(make):
    buffer = make()
    buffer.extend([item(0, priority=0.0), item(1, priority=0.0)])
    assert buffer.sample(1, 0) is None
    assert "has 0 elements with a priority above 0, too few for a sample of 1" in buffer.sample_batch(1).reason
    distinct = make(with_replacement=False)
    distinct.extend([item(0, priority=0.0), item(1)])
    assert distinct.sample(2, 0) is None and len(distinct.sample(1, 0)) == 1


def test_pushes_and_samples_obey_the_rate_limits(make):
    buffer = make(push_sample_rate_limit=(0.5, 2.0), sample_min_limit_ratio=1.5)
    buffer.extend(items(*range(30)))
    for _ in range(3):
        assert len(buffer.sample(19, 0)) == 19
    assert buffer.sample(19, 0) is None
    reason = buffer.sample_batch(19).reason
    assert "has 30 elements pushed and 57 sampled; sampling 19 more would leave fewer than 0.5 pushed" in reason
    buffer.extend(items(*range(30, 114)))
    with pytest.raises(
        RateLimitedError, match=r"'demo' has 114 elements pushed and 57 sampled; pushing 1 more would exceed 2"
    ):
        buffer.append(item(0))
    assert buffer.push_count == 114 and buffer.sample(1, 0)


# --- invalid arguments


@pytest.mark.parametrize("priority", [-1, math.nan, math.inf, -math.inf, 1e308, 1.1e12, "high", "3", [1.0, 2.0]])
@pytest.mark.drill("F13")
def test_invalid_priority_raises_and_changes_nothing(make, priority):
    buffer = make()
    (unique_id,) = buffer.extend([item(0)])
    with pytest.raises(ValueError, match=r"the priority of item 1 must be a finite number in \[0, 1e\+12\]"):
        buffer.extend([item(1), item(2, priority=priority)])
    with pytest.raises(
        ValueError, match=r"must be a finite number in \[0, 1e\+12\]|expected numbers, got|of shape \[1, 2\]"
    ):
        buffer.update({"replay_unique_id": [unique_id], "priority": [priority]})
    assert len(buffer) == buffer.push_count == 1
    assert buffer.sample(1, 0)[0]["priority"] == 1.0


def without(name):
    return {key: value for key, value in item(1).items() if key != name}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (without("obs"), r"do not match buffer 'demo': missing item 1\['obs'\]; cast or reshape it"),
        (item(1, extra=1.0), r"do not match buffer 'demo': unexpected item 1\['extra'\]"),
        (item(1) | {"obs": np.zeros(2)}, r"item 1\['obs'\] is float64 \[2\], but buffer 'demo' expects float32 \[2\]"),
        (item(1) | {"obs": np.zeros(3, np.float32)}, r"item 1\['obs'\] is float32 \[3\], but .* expects float32 \[2\]"),
        (item(1) | {"inner": {"action": np.int32(0)}}, r"missing item 1\['inner'\]\['done'\]"),
        (item(1) | {"inner": np.int32(0)}, r"missing item 1\['inner'\]\['action'\]"),
        (item(1) | {"obs": "text"}, r"item 1\['obs'\] is a string, but buffer 'demo' expects float32 \[2\]"),
    ],
)
@pytest.mark.drill("F11")
def test_item_with_a_different_structure_raises_and_stores_nothing(make, wrong, message):
    buffer = make()
    buffer.append(item(0))
    with pytest.raises(SpecMismatchError, match=message):
        buffer.extend([item(0), wrong, item(2)])
    assert len(buffer) == buffer.push_count == 1 and buffer.append(item(1)) == "demo_1"


def test_item_must_be_a_dict_of_numbers(make):
    buffer = make()
    with pytest.raises(TypeError, match="an item must be a dict of fields, such as .*, got list"):
        buffer.append([1, 2])
    with pytest.raises(TypeError, match="the keys of an item must be strings, got 1"):
        buffer.append({1: 2})
    for nest in ({0: 1.0, 1: 2.0}, [{"a": 1.0, 2: 2.0}]):
        with pytest.raises(TypeError, match="the keys of a dict in an item must be strings, got .*; rename them"):
            buffer.append({"obs": nest})
    with pytest.raises(TypeError, match="extend expects several items, got one dict; use append"):
        buffer.extend(item(0))
    with pytest.raises(ValueError, match="an item of buffer 'demo' must have at least one field besides IS, collect"):
        buffer.append({"priority": 1.0})
    for value, description in (
        ("text", "a string"),
        (None, "None"),
        (2**70, "an integer that does not fit in 64 bits"),
        ([2**70, 1], "an integer that does not fit in 64 bits"),
        ([[1.0], [2.0, 3.0]], "a list whose rows have different lengths"),
        (Fraction(1, 3), "a Fraction"),
    ):
        message = rf"item\['name'\] must be bools or numbers, got {description}; encode it before the push"
        with pytest.raises(ValueError, match=message):
            buffer.append({"name": value})
        with pytest.raises(ValueError, match=message):
            buffer.extend_columns({"name": value})
    with pytest.raises(ValueError, match="collect_iter of item 0 must be an integer >= 0, or -1 if unknown, got 1.5"):
        buffer.append(item(0, collect_iter=1.5))
    with pytest.raises(ValueError, match="collect_iter of item 0 must be an integer .*, got -2"):
        buffer.append(item(0, collect_iter=np.int64(-2)))
    assert buffer.push_count == 0 and buffer.spec is None


def test_invalid_sample_arguments_raise(make):
    buffer = make(max_size=8)
    buffer.extend(items(*range(8)))
    with pytest.raises(
        ValueError, match="a sample of 9 requires 9 elements .*, but buffer 'demo' has max_size 8; reduce"
    ):
        buffer.sample(9, 0)
    for size in (-1, 1.5, True):
        with pytest.raises(ValueError, match=f"size must be an integer >= 0, got {size}"):
            buffer.sample(size, 0)
    with pytest.raises(ValueError, match="cur_learner_iter must be an integer >= 0, or -1 if unknown, got -2"):
        buffer.sample(1, -2)
    with pytest.raises(TypeError, match=r"sample_range must be a slice, such as slice\(-20, None\), got int"):
        buffer.sample(1, 0, 3)


@pytest.mark.parametrize("wrong", ["other_0", "demo", "demo_", "demo_x", "demo_-1", "demo_²", "demo_" + "9" * 19, 0.5])
def test_update_with_an_invalid_id_changes_nothing(make, wrong):
    buffer = make()
    (unique_id,) = buffer.extend([item(0)])
    with pytest.raises(ValueError, match="is not an id of buffer 'demo'; its ids look like 'demo_12'"):
        buffer.update({"replay_unique_id": [unique_id, wrong], "priority": [5.0, 5.0]})
    assert buffer.sample(1, 0)[0]["priority"] == 1.0


def test_update_requires_one_priority_per_id(make):
    buffer = make()
    (unique_id,) = buffer.extend([item(0)])
    with pytest.raises(
        ValueError, match=r"an update of buffer 'demo' must have one priority per id, got 1 ids and .* shape \[2\]"
    ):
        buffer.update({"replay_unique_id": [unique_id], "priority": [1.0, 2.0]})
    with pytest.raises(ValueError, match="an update of buffer 'demo' requires 'replay_unique_id'; pass the ids that"):
        buffer.update({"priority": [1.0]})


def test_buffer_requires_a_config_of_its_kind_and_a_name():
    with pytest.raises(ValueError, match="NaiveReplayBuffer requires a config of kind 'naive', got 'advanced'"):
        NaiveReplayBuffer("demo", BufferConfig())
    with pytest.raises(ValueError, match="the name of a buffer must be a non-empty string, got ''"):
        NaiveReplayBuffer("")
    assert NaiveReplayBuffer("demo").config == BufferConfig(kind="naive")


def test_update_requires_a_dict_or_the_info_of_a_batch(make):
    buffer = make()
    buffer.extend(items(0, 1))
    batch = buffer.sample_batch(2)
    message = "info must be the info of a batch, or a dict with 'replay_unique_id' and 'priority', got"
    for info, got in ((["demo_0"], "list"), (batch, "a Batch; pass its info"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"{message} {got}"):
            buffer.update(info, priority=[1.0, 1.0])
    for ids in ("demo_0", 5):
        with pytest.raises(ValueError, match=f"'replay_unique_id' must be a list of ids, got {ids!r}"):
            buffer.update({"replay_unique_id": ids, "priority": [1.0]})
    for priorities in (["3"], [[1], [2, 3]]):
        with pytest.raises(ValueError, match="the priorities of an update must be one number per id: expected numbers"):
            buffer.update({"replay_unique_id": ["demo_0"], "priority": priorities})


def test_update_sets_absolute_td_errors_plus_epsilon(make):
    """Schaul et al. 2016, section 3.3: p = |delta| + eps."""
    buffer = make(priority_eps=0.25)
    buffer.extend(items(0, 1))
    info = buffer.sample_batch(2, sample_range=slice(0, 1)).info
    assert buffer.update(info, np.array([9.0, -3.0], np.float32)) == 2  # The last one wins.
    assert buffer.sample_batch(1, sample_range=slice(0, 1)).info.priority.tolist() == [3.25]
    with pytest.raises(ValueError, match="td_errors and priority cannot both be set"):
        buffer.update(info, [1.0, 2.0], priority=[1.0, 2.0])


def test_sample_with_replacement_can_exceed_the_number_of_elements(make):
    buffer = make(max_size=50, sample_min_limit_ratio=0)
    buffer.extend(items(*range(50)))
    assert len(buffer.sample(200)) == 200
    limited = make(max_size=50, sample_min_limit_ratio=0, max_use=3)
    with pytest.raises(ValueError, match="can never return a sample of 200 with max_use 3 and max_size 50"):
        limited.sample(200)
    default = make(max_size=300)
    default.extend(items(*range(50)))
    reason = (
        "buffer 'demo' has 50 elements, but a sample of 200 requires 200 (sample_min_limit_ratio=1); push more, or "
        "lower sample_min_limit_ratio"
    )
    assert default.sample_check(200) == (False, reason)


# --- rates


@given(st.integers(1, 1000), st.integers(0, 10**6), st.integers(1, 1000))
def test_rounding_does_not_affect_which_samples_exceed_the_rate(rate, sampled, size):
    pushed = rate * (sampled + size)
    assert not exceeds_rate(pushed, sampled + size, float(rate))
    assert exceeds_rate(pushed - 1, sampled + size, float(rate))
    assert not exceeds_rate(sampled + size, rate * (sampled + size), 1 / rate)
    assert exceeds_rate(sampled + size, rate * (sampled + size) + 1, 1 / rate)


@pytest.mark.parametrize("min_rate", ["0.01", "0.1", "0.3", "0.5", "0.7", "1", "1.5", "3", "7", "49"])
def test_samples_are_allowed_up_to_the_minimum_rate(make, min_rate):
    buffer = make(
        push_sample_rate_limit=(float(Fraction(min_rate)), math.inf), sample_min_limit_ratio=0, with_replacement=True
    )
    sampled = 0
    for count in (1, 2, 46, 49):
        buffer.extend(items(*range(count)))
        allowed = int(buffer.push_count / Fraction(min_rate)) - sampled
        assert not buffer.sample_batch(allowed + 1)
        assert len(buffer.sample(allowed)) == allowed
        sampled += allowed
    assert buffer.sample_count == sampled


def test_removed_elements_still_count_for_the_rate(make):
    buffer = make(push_sample_rate_limit=(1.0, 100.0), max_size=3, sample_min_limit_ratio=0)
    buffer.extend(items(*range(10)))
    assert len(buffer.sample(3, 0)) == 3
    buffer.clear()
    buffer.append(item(10))
    assert [len(buffer.sample(1, 0)) for _ in range(8)] == [1] * 8
    assert buffer.sample(1, 0) is None and "11 elements pushed and 11 sampled" in buffer.sample_batch(1).reason


def test_min_limit_ratio_is_not_rounded_up(make):
    buffer = make(sample_min_limit_ratio=1.1)  # 1.1 * 50 is 55.00000000000001.
    buffer.extend(items(*range(54)))
    assert buffer.sample(50) is None
    buffer.append(item(54))
    assert len(buffer.sample(50)) == 50


@pytest.mark.parametrize("wrong", [2**70, -1, True, "demo_x"])
def test_update_with_only_an_invalid_id_raises(make, wrong):
    buffer = make()
    buffer.append(item(0))
    with pytest.raises(ValueError, match=f"'{wrong}' is not an id of buffer 'demo'; its ids look like 'demo_12'"):
        buffer.update({"replay_unique_id": [wrong], "priority": [1.0]})


def test_array_as_priority_of_an_item_raises(make):
    with pytest.raises(ValueError, match=r"the priority of item 1 must be a finite number .*, got array\(\[1., 2.\]\)"):
        make().extend([item(0), item(1, priority=np.array([1.0, 2.0]))])
