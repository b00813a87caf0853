"""The RLDS view of a source: the same columns, and iterators that checkpoints hold."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from reference_impls import assert_equal_nests, episode
from rlds2reverb.adders import NStep

from rlds2reverb.errors import SourceError
from rlds2reverb.sources import load
from rlds2reverb.sources.numbered_episodes import NumberedEpisodes
from rlds2reverb.specs import to_tensor_spec

EPISODES = [episode(length, terminal=at % 2 == 0, start=100.0 * at) for at, length in enumerate((4, 9, 2, 7, 5))]


def columns(source):
    """The columns of each episode."""
    return load(source).to_rlds().flat_map(lambda one: one["steps"].batch(1000))


def shuffled(source):
    """Transitions over three steps, shuffled."""
    return load(source).to_rlds().apply(NStep(3, 0.9)).shuffle(16, seed=3)


def save(path, dataset, count):
    """Reads so many elements and saves the iterator; returns the elements and the checkpoint's path."""
    iterator = iter(dataset)
    read = [next(iterator) for _ in range(count)]
    return read, tf.train.Checkpoint(iterator=iterator).save(str(path))


def restored(path, dataset):
    iterator = iter(dataset)
    tf.train.Checkpoint(iterator=iterator).restore(path).assert_consumed()
    return iterator


@pytest.mark.parametrize(
    ("source", "view"),
    [
        (EPISODES, columns),
        (EPISODES, shuffled),
        (lambda: iter(EPISODES), columns),
        ("d4rl/hopper_medium-v2.hdf5", shuffled),
    ],
)
def test_a_restored_iterator_gives_exactly_what_was_left(source, view, tmp_path, data):
    source = data / source if isinstance(source, str) else source
    whole = list(view(source).take(40))
    count = len(whole) // 2
    read, saved = save(tmp_path / "iterator", view(source).take(40), count)
    left = list(restored(saved, view(source).take(40)))
    assert count and len(read) + len(left) == len(whole)
    for got, wanted in zip(read + left, whole, strict=True):
        assert_equal_nests(got, wanted)


@pytest.mark.slow
def test_an_iterator_is_restored_in_another_process(tmp_path, data):
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
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    left, wanted_left = restored(said.strip(), shuffled(path).take(800)), shuffled(path).take(800).skip(700)
    for got, wanted in zip(left, wanted_left, strict=True):
        assert_equal_nests(got, wanted)


def test_a_checkpoint_does_not_hold_the_data_set(tmp_path):
    many = [{**EPISODES[0], "observation": np.ones((4, 10_000), np.float32)} for _ in range(200)]  # 32 MB
    save(tmp_path / "iterator", columns(many), 100)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3_000_000


def test_columns_are_those_of_the_source_strings_and_nests_too():
    strings = {"text": np.array(["a", "b\u00e9", ""]), "raw": np.array([b"x\0y", b"\xff", b""], object)}
    many = [
        {**episode(3, terminal=True, nested=True), **strings},
        {**episode(3, terminal=False, nested=True), **strings},
    ]
    source = load(many)
    dataset = source.to_rlds()
    assert dataset.element_spec["steps"].element_spec == to_tensor_spec(source.step_spec)
    found = list(columns(many).as_numpy_iterator())
    assert len(found) == 2
    for got, wanted in zip(found, source, strict=True):
        assert got.pop("text").tolist() == [b"a", "b\u00e9".encode(), b""] and got.pop("raw").tolist()[0] == b"x\0y"
        assert_equal_nests(got, {name: nest for name, nest in wanted.steps.items() if name not in strings})


def test_an_episode_of_another_spec_is_an_error_after_a_restart_too(tmp_path):
    other = {**EPISODES[1], "reward": EPISODES[1]["reward"].astype(np.float64)}
    many = [EPISODES[0], other, EPISODES[2]]
    _, saved = save(tmp_path / "iterator", columns(many), 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"step\['reward'\] is float64 \[\], .* is episode 1"):
        next(restored(saved, columns(many)))
    assert [len(each["reward"]) for each in columns(many).ignore_errors()] == [4, 2]


def test_a_source_that_fails_ends_for_who_ignores_errors():
    def broken():
        yield from EPISODES[:2]
        raise SourceError("damaged")

    assert len(list(columns(broken).ignore_errors())) == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="damaged"):
        list(columns(broken))


def test_no_episode_with_steps_is_refused():
    with pytest.raises(SourceError, match="has no episode with steps"):
        load([]).to_rlds()


class Counted:
    """The numbers 0 to 4 as episodes, and how many readings were begun and ended."""

    def __init__(self):
        self.begun = self.ended = 0

    def __call__(self):
        self.begun += 1
        try:
            yield from range(5)
        finally:
            self.ended += 1


def test_episodes_in_order_take_one_reading_of_each_iterator():
    source = Counted()
    numbered = NumberedEpisodes(source)
    assert [numbered(number) for number in range(6)] == [0, 1, 2, 3, 4, None]
    assert (source.begun, source.ended) == (1, 1)
    assert [numbered(number) for number in (0, 0, 1, 1, 2, 2)] == [0, 0, 1, 1, 2, 2] and source.begun == 3
    assert numbered(4) == 4 and source.begun == 4
    assert numbered(9) is None
    numbered.close()
    assert source.begun == source.ended == 5


def test_only_so_many_readings_are_kept():
    source = Counted()
    numbered = NumberedEpisodes(source)
    for _ in range(20):
        numbered(0)
    assert source.begun - source.ended == 8


def test_what_is_left_before_its_end_is_closed_with_the_data_set():
    ended = []

    def made():
        try:
            yield from EPISODES
        finally:
            ended.append(True)

    dataset = columns(made)
    ended.clear()  # of the look at the first episode
    next(iter(dataset))
    del dataset
    assert ended


def test_an_error_before_the_number_is_raised_once():
    def broken():
        yield from range(3)
        raise SourceError("damaged")

    numbered = NumberedEpisodes(broken)
    for asked in (4, 3):
        with pytest.raises(SourceError, match="damaged"):
            numbered(asked)
    assert numbered(4) is None and numbered(2) == 2
