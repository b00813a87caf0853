"""Tests of `MixedPriorities` with sinks that record their updates."""

import numpy as np
import pytest

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.reverb.sampling import MixedPriorities, PriorityWriter
from rlds2reverb.types.sample_info import SampleInfo


class RecordingSink:
    def __init__(self):
        self.updates = []

    def update(self, info, td_errors):
        assert info.dataset_index == () and info.mask == ()
        self.updates.append((info.key.tolist(), info.server.tolist(), td_errors.tolist()))


class UnavailableSink:
    def update(self, info, td_errors):
        raise ServerUnavailableError("gone")


def make_info(keys, datasets):
    keys = np.array(keys, np.uint64)
    index = () if datasets is None else np.array(datasets, np.int32)
    return SampleInfo(keys, *[keys.astype(float)] * 5, (keys + 100).astype(np.int32), dataset_index=index)


def test_each_sink_receives_the_items_of_its_dataset():
    a, b = RecordingSink(), RecordingSink()
    priorities = MixedPriorities({"b": b, "a": a})
    priorities.update(make_info([10, 11, 12, 11], [1, 0, 1, 0]), [0.5, 1.5, -2.5, 3.5])
    priorities.update(make_info([13], [0]), [4.5])
    assert a.updates == [([11, 11], [111, 111], [1.5, 3.5]), ([13], [113], [4.5])]
    assert b.updates == [([10, 12], [110, 112], [0.5, -2.5])]


def test_unavailable_server_is_reported_after_the_other_sinks_are_updated():
    sink = RecordingSink()
    with pytest.raises(ServerUnavailableError, match="gone"):
        MixedPriorities({"a": UnavailableSink(), "b": sink}).update(make_info([10, 11], [0, 1]), [1.0, 2.0])
    assert sink.updates == [([11], [111], [2.0])]


def test_invalid_arguments_raise():
    priorities = MixedPriorities({"a": RecordingSink()})
    with pytest.raises(ValueError, match="the batch is not from mixed_dataset; pass it to the sink of its own dataset"):
        priorities.update(make_info([10], None), [1.0])
    with pytest.raises(ValueError, match="the batch has items of dataset 1, but there are 1 sinks; pass a sink for"):
        priorities.update(make_info([10], [1]), [1.0])
    with pytest.raises(ValueError, match=r"td_errors must have one number per item, got shape \[2\] for \[1\]"):
        priorities.update(make_info([10], [0]), [1.0, 2.0])
    with pytest.raises(TypeError, match="expected numbers, got"):
        priorities.update(make_info([10], [0]), ["3"])
    with pytest.raises(ValueError, match="sinks must have at least one dataset"):
        MixedPriorities({})
    with pytest.raises(TypeError, match="the sink of dataset 'a' must have a method update, got str"):
        MixedPriorities({"a": "localhost:1"})
    with pytest.raises(TypeError, match="servers must be one or more servers, got a dict; .* MixedPriorities"):
        PriorityWriter({"a": "localhost:1"}, "items")
    with pytest.raises(ValueError, match="the batch is from mixed_dataset; pass it to MixedPriorities"):
        PriorityWriter("localhost:1", "items").update(make_info([10], [0]), [1.0])
