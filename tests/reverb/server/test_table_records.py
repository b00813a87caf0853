"""Tests that the records of empty tables are those that Reverb writes."""

from typing import get_args

import pytest
import tensorflow as tf
from tensorflow.core.protobuf.struct_pb2 import StructuredValue
from tf_agents.specs.tensor_spec import BoundedTensorSpec

from rlds2reverb.reverb.client.client_messages import PriorityTableCheckpoint
from rlds2reverb.reverb.server.checkpoint_contents import read_messages
from rlds2reverb.reverb.server.checkpoint_root import table_records
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.tables import RateLimiter, Selector, SelectorKind, TableConfig, item_signature

TABLES = [
    TableConfig(kind, Selector.parse(kind), Selector.parse(kind), max_size=7 + index, max_times_sampled=index)
    for index, kind in enumerate(get_args(SelectorKind))
] + [
    TableConfig("ratio", rate_limiter=RateLimiter.parse("sample_to_insert_ratio:2:10:20")),
    TableConfig("bound", rate_limiter=RateLimiter.parse("max_samples_per_insert:0.3:10")),
    TableConfig.queue("queue", 3),
]
SIGNATURE = {
    "a": (tf.TensorSpec([3, 2], tf.float32, "name"), tf.TensorSpec([], tf.uint8)),
    "b": tf.TensorSpec([None], tf.int64),
}
BOUNDED = item_signature({"action": BoundedTensorSpec([2], tf.float64, [-1, 0], 1)}, 4)


@pytest.mark.parametrize("signature", [SIGNATURE, BOUNDED])
def test_records_of_empty_tables_are_those_of_reverb(tmp_path, signature):
    with ReplayServer(TABLES, signature, checkpoint_root=tmp_path) as server:
        written = read_messages(server.checkpoint() / "tables.tfrecord", PriorityTableCheckpoint)
        expected = {record.table_name: record for record in written}
    records = table_records(TABLES, signature)
    assert [record.table_name for record in records] == [table.name for table in TABLES]
    for record in records:
        found = expected.pop(record.table_name)
        # The order of the fields of a dict is not determined.
        assert StructuredValue.FromString(record.signature) == StructuredValue.FromString(found.signature)
        record.ClearField("signature")
        found.ClearField("signature")
        assert record == found
    assert not expected
