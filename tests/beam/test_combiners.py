"""Tests of the combiners: any division of the episodes gives the result of a single pass."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from lazy_beam import make_combiner, make_options, summarize_with_beam

from rlds2reverb.datasets import load, summarize
from rlds2reverb.datasets.moments import ObservationMoments
from rlds2reverb.datasets.summary import SummaryParts
from rlds2reverb.types import fields


@pytest.fixture(scope="module")
def source(data):
    return load(data / "d4rl/hopper_medium-v2.hdf5")


@pytest.fixture(scope="module")
def episodes(source):
    return list(source)


def combine(combiner, parts):
    """Combines parts in the order given, as Beam does on different workers."""
    accumulators = []
    for part in parts:
        accumulator = combiner.create_accumulator()
        for episode in part:
            accumulator = combiner.add_input(accumulator, episode)
        accumulators.append(accumulator)
    return combiner.extract_output(combiner.merge_accumulators(accumulators))


@st.composite
def divisions(draw, count):
    """Draws a division of `count` elements into parts, in any order."""
    parts = [[] for _ in range(draw(st.integers(1, 5)))]
    for element in draw(st.permutations(range(count))):
        parts[draw(st.integers(0, len(parts) - 1))].append(element)
    return parts


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=10)
@given(division=divisions(32))
def test_combinations_are_exact(source, episodes, division):
    parts = [[episodes[index] for index in part] for part in division]
    spec = source.step_spec[fields.OBSERVATION]
    expected = ObservationMoments.from_episodes(source, spec, source.name)
    got = combine(make_combiner("MomentsFn", spec), parts)
    for one, other in zip(got.agent_statistics(), expected.agent_statistics(), strict=True):
        np.testing.assert_array_equal(one, other)
    returns = [episode.total_reward for episode in episodes]
    assert combine(make_combiner("ReturnRangeFn"), parts) == (min(returns), max(returns))
    summary = combine(make_combiner("SummaryFn"), parts).finish(source)
    assert summary == summarize(source)


def test_moments_and_summaries_survive_json(source, episodes):
    spec = source.step_spec[fields.OBSERVATION]
    moments = combine(make_combiner("MomentsFn", spec), [episodes])
    restored = ObservationMoments.from_dict(spec, json.loads(json.dumps(moments.as_dict())))
    np.testing.assert_array_equal(restored.leaves[0].std, moments.leaves[0].std)
    assert restored.num_transitions == moments.num_transitions
    parts = combine(make_combiner("SummaryFn"), [episodes])
    assert SummaryParts.from_dict(json.loads(json.dumps(parts.as_dict()))).finish(source) == summarize(source)


def test_episodes_without_steps_have_no_return(episodes):
    empty = type(episodes[0])({name: column[:0] for name, column in episodes[0].steps.items()}, 0)
    assert combine(make_combiner("ReturnRangeFn"), [[empty], [episodes[1]]]) == (episodes[1].total_reward,) * 2


@pytest.mark.slow
def test_combiners_run_in_a_pipeline(episodes):
    import apache_beam as beam
    from apache_beam.testing.util import assert_that, equal_to

    returns = [episode.total_reward for episode in episodes]
    with beam.Pipeline("FnApiRunner") as pipeline:
        result = pipeline | beam.Create(episodes) | beam.CombineGlobally(make_combiner("ReturnRangeFn"))
        assert_that(result, equal_to([(min(returns), max(returns))]))


@pytest.mark.slow
def test_summary_is_that_of_one_process(data):
    path = data / "d4rl/hopper_medium-v2.hdf5"
    got = summarize_with_beam(path, options=make_options(slice_bytes=150_000), reference_returns=(0.0, 3000.0))
    assert got == summarize(load(path), reference_returns=(0.0, 3000.0))
