"""Tests of table configs: their Reverb tables, their string forms and their validation."""

import sys

import numpy as np
import pytest
import reverb
import tensorflow as tf

from rlds2reverb.reverb.client import format_selector
from rlds2reverb.types.tables import RateLimiter, Selector, TableConfig, item_signature


@pytest.mark.parametrize(
    "text", ["uniform", "fifo", "lifo", "min_heap", "max_heap", "prioritized:0.7", "prioritized:0"]
)
def test_selectors_are_parsed_formatted_and_built(text):
    selector = Selector.parse(text)
    assert str(selector) == text and Selector.parse(str(selector)) == selector
    assert format_selector(TableConfig(sampler=selector).build().info.sampler_options) == text


def test_server_table_matches_the_config():
    config = TableConfig(
        "t",
        sampler=Selector("prioritized", 0.25),
        remover=Selector("min_heap"),
        max_size=7,
        max_times_sampled=3,
        rate_limiter=RateLimiter("sample_to_insert_ratio", 4, samples_per_insert=2.0, error_buffer=8.0),
    )
    spec = {"x": tf.TensorSpec((2, 3), tf.float32)}
    server = reverb.Server([config.build(spec)], port=None)
    info = server.localhost_client().server_info(timeout=10)["t"]
    assert info.sampler_options.prioritized.priority_exponent == 0.25
    assert info.remover_options.heap.min_heap
    assert (info.max_size, info.max_times_sampled) == (7, 3)
    limiter = info.rate_limiter_info
    assert (limiter.min_size_to_sample, limiter.samples_per_insert) == (4, 2.0)
    assert (limiter.min_diff, limiter.max_diff) == (0.0, 16.0)
    assert info.signature == spec
    server.stop()


@pytest.mark.parametrize("kind", ["queue", "stack"])
def test_queue_and_stack_yield_each_item_once_in_order(kind):
    order = Selector("fifo" if kind == "queue" else "lifo")
    config = TableConfig("q", order, order, 2, 1, RateLimiter(kind, 2))
    if kind == "queue":
        assert config == TableConfig.queue("q", 2)
    server = reverb.Server([config.build()], port=None)
    client = server.localhost_client()
    for value in (1.0, 2.0):
        client.insert([np.float32(value)], {"q": 1.0})
    samples = [next(iter(sample)).data[0] for sample in client.sample("q", num_samples=2)]
    assert samples == ([1.0, 2.0] if kind == "queue" else [2.0, 1.0])
    assert client.server_info(timeout=10)["q"].current_size == 0
    server.stop()


@pytest.mark.parametrize(
    ("text", "limiter"),
    [
        ("min_size:10", reverb.rate_limiters.MinSize(10)),
        ("queue:5", reverb.rate_limiters.Queue(5)),
        ("stack:5", reverb.rate_limiters.Stack(5)),
        ("sample_to_insert_ratio:2:10:20", reverb.rate_limiters.SampleToInsertRatio(2, 10, 20)),
        ("max_samples_per_insert:2:10", reverb.rate_limiters.RateLimiter(2, 10, -1e-6, sys.float_info.max)),
    ],
)
def test_rate_limiters_are_parsed_and_formatted_and_equal_those_of_reverb(text, limiter):
    assert str(RateLimiter.parse(text)) == text
    built = reverb.rate_limiters.RateLimiter(**RateLimiter.parse(text).as_reverb_values())
    assert repr(built.internal_limiter) == repr(limiter.internal_limiter)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Selector("best"), "selector must be one of 'uniform', 'fifo', .*, got 'best'"),
        (lambda: Selector.parse("uniform:1"), "a uniform selector takes no exponent"),
        (
            lambda: Selector("prioritized"),
            r"exponent of a prioritized selector must be a number in \[0, 100\], got None",
        ),
        (lambda: Selector("prioritized", -1), r"must be a number in \[0, 100\], got -1"),
        (lambda: Selector.parse("prioritized:nan"), r"must be a number in \[0, 100\], got nan"),
        (lambda: Selector.parse("prioritized:x"), "'x' in 'prioritized:x' is not a number"),
        (lambda: RateLimiter("often"), "rate limiter must be one of .*, got 'often'"),
        (lambda: RateLimiter("min_size", 0), "size must be an integer from 1 to 2,147,483,647, got 0"),
        (lambda: RateLimiter.parse("min_size:inf"), "inf in 'min_size:inf' must be an integer"),
        (lambda: RateLimiter.parse("min_size:1.5"), "1.5 in 'min_size:1.5' must be an integer"),
        (lambda: RateLimiter.parse("min_size"), "rate limiter must be min_size:N, .*, got 'min_size'"),
        (lambda: RateLimiter("min_size", 1, samples_per_insert=1.0), "takes neither"),
        (
            lambda: RateLimiter("sample_to_insert_ratio", 1),
            "samples_per_insert must be a finite number above 0, got None",
        ),
        (
            lambda: RateLimiter("sample_to_insert_ratio", 1, samples_per_insert=4.0, error_buffer=2.0),
            "error_buffer must be at least 4 .*, got 2.0",
        ),
        (lambda: TableConfig(""), "name of a table must be 1 to 100 printable characters, got ''"),
        (lambda: TableConfig("a\nb"), "must be 1 to 100 printable characters"),
        (
            lambda: TableConfig(max_size=0),
            "max_size of table 'replay' must be an integer from 1 to 2,147,483,647, got 0",
        ),
        (lambda: TableConfig(max_size=1.5), "max_size of table 'replay' must be an integer from 1 .*, got 1.5"),
        (lambda: TableConfig(max_size=10**20), "must be an integer from 1 to 2,147,483,647, got 100000000000000000000"),
        (
            lambda: TableConfig(max_times_sampled=2**31),
            "max_times_sampled of table 'replay' must be .*, got 2147483648",
        ),
        (lambda: RateLimiter.parse("sample_to_insert_ratio:1:1:nan"), "error_buffer must be at least 1 .*, got nan"),
        (
            lambda: RateLimiter.parse("sample_to_insert_ratio:inf:1:inf"),
            "samples_per_insert must be a finite number above 0, got inf",
        ),
        (lambda: TableConfig(max_times_sampled=-1), "max_times_sampled of table 'replay' must be .*, got -1"),
        (
            lambda: TableConfig(max_size=5, rate_limiter=RateLimiter(size=6)),
            "rate limiter's size of table 'replay' must be at most max_size 5, got 6",
        ),
        (lambda: TableConfig(rate_limiter=RateLimiter("queue", 5)), "a queue .* requires sampler and remover fifo"),
        (
            lambda: TableConfig("q", Selector("fifo"), Selector("fifo"), 6, 1, RateLimiter("queue", 5)),
            "a queue of 5 .* requires max_size 5, got 6",
        ),
    ],
)
@pytest.mark.drill("F17")
def test_invalid_configs_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_item_signature_prepends_the_length():
    spec = {"a": tf.TensorSpec((3,), tf.float32, "named"), "b": tf.TensorSpec((), tf.int32)}
    expected = {"a": tf.TensorSpec((4, 3), tf.float32), "b": tf.TensorSpec((4,), tf.int32)}
    assert item_signature(spec, 4) == expected
