"""Tests of `Source.to_rlds`: equal columns, and iterators that can be checkpointed."""

import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from reference_impls import assert_equal_nests, episode

from rlds2reverb.adders import NStep
from rlds2reverb.datasets import load
from rlds2reverb.datasets.source import IndexedEpisodes
from rlds2reverb.errors import SourceError
from rlds2reverb.types.specs import to_tensor_spec

EPISODES = [episode(length, terminal=at % 2 == 0, start=100.0 * at) for at, length in enumerate((4, 9, 2, 7, 5))]


def read_columns(source):
    """Returns a dataset of the columns of each episode."""
    return load(source).to_rlds().flat_map(lambda episode: episode["steps"].batch(1000))


def shuffle_transitions(source):
    """Returns a dataset of shuffled 3-step transitions."""
    return load(source).to_rlds().apply(NStep(3, 0.9)).shuffle(16, seed=3)


def save(path, dataset, count):
    """Reads `count` elements and saves the iterator; returns the elements and the path of the checkpoint."""
    iterator = iter(dataset)
    read = [next(iterator) for _ in range(count)]
    return read, tf.train.Checkpoint(iterator=iterator).save(str(path))


def restore(path, dataset):
    iterator = iter(dataset)
    tf.train.Checkpoint(iterator=iterator).restore(path).assert_consumed()
    return iterator


@pytest.mark.parametrize(
    ("source", "make_dataset"),
    [
        pytest.param(EPISODES, read_columns, marks=pytest.mark.slow),
        pytest.param(EPISODES, shuffle_transitions, marks=pytest.mark.slow),
        (lambda: iter(EPISODES), read_columns),
        pytest.param("d4rl/hopper_medium-v2.hdf5", shuffle_transitions, marks=pytest.mark.slow),
    ],
)
def test_restored_iterator_yields_the_remaining_elements(source, make_dataset, tmp_path, data):
    source = data / source if isinstance(source, str) else source
    whole = list(make_dataset(source).take(40))
    count = len(whole) // 2
    read, saved = save(tmp_path / "iterator", make_dataset(source).take(40), count)
    rest = list(restore(saved, make_dataset(source).take(40)))
    assert count and len(read) + len(rest) == len(whole)
    for got, expected in zip(read + rest, whole, strict=True):
        assert_equal_nests(got, expected)


@pytest.mark.slow
def test_iterator_is_restored_from_another_process(tmp_path, data):
    path, saved = data / "d4rl/hopper_medium-v2.hdf5", str(tmp_path / "iterator")
    program = f"""if True:
        import tensorflow as tf
        from rlds2reverb import load
        from rlds2reverb.adders import NStep
        iterator = iter(load({str(path)!r}).to_rlds().apply(NStep(3, 0.9)).shuffle(16, seed=3).take(800))
        for _ in range(700):
            next(iterator)
        print(tf.train.Checkpoint(iterator=iterator).save({saved!r}))
    """
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    rest = restore(output.strip(), shuffle_transitions(path).take(800))
    for got, expected in zip(rest, shuffle_transitions(path).take(800).skip(700), strict=True):
        assert_equal_nests(got, expected)


@pytest.mark.slow
def test_checkpoint_does_not_contain_the_dataset(tmp_path):
    all_steps = [{**EPISODES[0], "observation": np.ones((4, 10_000), np.float32)} for _ in range(200)]  # 32 MB
    save(tmp_path / "iterator", read_columns(all_steps), 100)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3_000_000


@pytest.mark.slow
def test_columns_match_the_source_including_strings_and_nests():
    strings = {"text": np.array(["a", "b\u00e9", ""]), "raw": np.array([b"x\0y", b"\xff", b""], object)}
    all_steps = [
        {**episode(3, terminal=True, nested=True), **strings},
        {**episode(3, terminal=False, nested=True), **strings},
    ]
    source = load(all_steps)
    dataset = source.to_rlds()
    assert dataset.element_spec["steps"].element_spec == to_tensor_spec(source.step_spec)
    rows = list(read_columns(all_steps).as_numpy_iterator())
    assert len(rows) == 2
    for got, expected in zip(rows, source, strict=True):
        assert got.pop("text").tolist() == [b"a", "b\u00e9".encode(), b""] and got.pop("raw").tolist()[0] == b"x\0y"
        assert_equal_nests(got, {name: nest for name, nest in expected.steps.items() if name not in strings})


@pytest.mark.slow
def test_episode_with_a_different_spec_raises_also_after_a_restore(tmp_path):
    other = {**EPISODES[1], "reward": EPISODES[1]["reward"].astype(np.float64)}
    all_steps = [EPISODES[0], other, EPISODES[2]]
    _, saved = save(tmp_path / "iterator", read_columns(all_steps), 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"step\['reward'\] is float64 \[\], .* is episode 1"):
        next(restore(saved, read_columns(all_steps)))
    assert [len(episode["reward"]) for episode in read_columns(all_steps).ignore_errors()] == [4, 2]


def test_failing_source_raises_or_ends_if_errors_are_ignored():
    def broken():
        yield from EPISODES[:2]
        raise SourceError("damaged")

    assert len(list(read_columns(broken).ignore_errors())) == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="damaged"):
        list(read_columns(broken))


def test_source_without_steps_raises():
    with pytest.raises(SourceError, match="has no episode with steps"):
        load([]).to_rlds()


class CountingSource:
    """Yields the numbers 0 to 4 as episodes, and counts the iterators that were started and closed."""

    def __init__(self):
        self.started = self.closed = 0

    def __call__(self):
        self.started += 1
        try:
            yield from range(5)
        finally:
            self.closed += 1


def test_consecutive_indices_share_an_iterator():
    source = CountingSource()
    episodes = IndexedEpisodes(source)
    assert [episodes.get(index) for index in range(6)] == [0, 1, 2, 3, 4, None]
    assert (source.started, source.closed) == (1, 1)
    assert [episodes.get(index) for index in (0, 0, 1, 1, 2, 2)] == [0, 0, 1, 1, 2, 2] and source.started == 3
    assert episodes.get(4) == 4 and source.started == 4
    assert episodes.get(9) is None
    episodes.close()
    assert source.started == source.closed == 5


def test_number_of_open_iterators_is_limited():
    source = CountingSource()
    episodes = IndexedEpisodes(source)
    for _ in range(20):
        episodes.get(0)
    assert source.started - source.closed == 8


def test_unfinished_iterator_is_closed_with_the_dataset():
    closed = threading.Event()

    def make_episodes():
        try:
            yield from itertools.cycle(EPISODES)
        finally:
            closed.set()

    dataset = read_columns(make_episodes)
    closed.clear()  # The first episode was read for the spec.
    next(iter(dataset))
    del dataset
    assert closed.wait(30)  # Another thread deletes the iterator.


def test_error_of_the_source_is_raised_for_the_indices_it_affects():
    def broken():
        yield from range(3)
        raise SourceError("damaged")

    episodes = IndexedEpisodes(broken)
    for index in (4, 3):
        with pytest.raises(SourceError, match="damaged"):
            episodes.get(index)
    assert episodes.get(4) is None and episodes.get(2) == 2
