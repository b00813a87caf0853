"""What the docstring of `Source.to_rlds` says of checkpoints of iterators."""

import pytest
import tensorflow as tf
from oracles import episode

from rlds2reverb.sources import load


def columns():
    """The observations of each episode."""
    source = load([episode(length, terminal=True) for length in (2, 3, 4)])
    return source.to_rlds().flat_map(lambda one: one["steps"].batch(9)).map(lambda steps: steps["observation"])


def test_an_iterator_over_a_source_cannot_be_saved(tmp_path):
    iterator = iter(columns())
    next(iterator)
    with pytest.raises(tf.errors.FailedPreconditionError):
        tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "iterator"))


def test_an_iterator_over_the_saved_data_set_can(tmp_path):
    columns().save(str(tmp_path / "data"))
    iterator = iter(tf.data.Dataset.load(str(tmp_path / "data")))
    assert len(next(iterator)) == 2
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    saved = checkpoint.save(str(tmp_path / "iterator"))
    assert len(next(iterator)) == 3
    checkpoint.restore(saved)
    assert [len(column) for column in iterator] == [3, 4]
    assert [len(column) for column in columns().skip(1)] == [3, 4]
