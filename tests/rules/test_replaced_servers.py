"""Rule: a client continues with a restarted server only if its table is sampled and laid out as before.

Tables of equal size look the same on the wire: without a comparison, int32 bits would arrive as float32.
"""

import collections
from concurrent import futures

import grpc
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import ReplayServer, ServerUnavailableError, SpecMismatchError, TableConfig, ingest, load
from rlds2reverb.adders import NStep
from rlds2reverb.libraries.tensorflow_internals import encode_spec
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.client.client_messages import ServerInfoResponse
from rlds2reverb.reverb.client.table_info import TableInfo
from rlds2reverb.reverb.sampling import sample
from rlds2reverb.reverb.sampling.server_tables import ServerTables
from rlds2reverb.reverb.server.ports import pick_port
from rlds2reverb.reverb.wire.packing import Packing, packed_signature

FLOATS = {"a": tf.TensorSpec([2], tf.float32), "b": tf.TensorSpec([2], tf.float32)}


def make_info(signature, *, exponent=0.6, fifo=False, max_times_sampled=0, min_diff=-1e301):
    message = ServerInfoResponse().table_info.add(name="replay", max_times_sampled=max_times_sampled)
    message.signature = encode_spec(signature)
    message.rate_limiter_info.min_diff, message.rate_limiter_info.max_diff = min_diff, 1e301
    if fifo:
        message.sampler_options.fifo = message.sampler_options.is_deterministic = True
    else:
        message.sampler_options.prioritized.priority_exponent = exponent
    return TableInfo.from_message(message)


def check(before, after):
    """Compares the table of the second of two servers, which was unreachable at first, with that of the first."""
    exponent = before.sampler_options.prioritized.priority_exponent
    options = ((exponent,) * 2, before.sampler_options.is_deterministic, before.max_times_sampled > 0, (1,))
    tables = ServerTables("replay", ("one:1", "two:2"), before.array_signature, None, *options, (before, before))
    tables.require_unchanged(1, after)


def rename(fields):
    return collections.namedtuple("Item", fields)(*FLOATS.values())


def pack(spec, squeeze=True):
    return packed_signature(Packing(spec, squeeze))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FLOATS, {**FLOATS, "b": tf.TensorSpec([2], tf.int32)}),
        (FLOATS, {**FLOATS, "b": tf.TensorSpec([2, 1], tf.float32)}),
        (FLOATS, {"a": tf.TensorSpec([1], tf.float32), "b": tf.TensorSpec([3], tf.float32)}),
        (FLOATS, {"a": FLOATS["a"], "c": FLOATS["b"]}),
        ({"a": tf.TensorSpec([None, 2], tf.float32)}, {"a": tf.TensorSpec([3, 2], tf.float32)}),
        (rename("a b"), rename("b c")),
        (pack(FLOATS), pack({**FLOATS, "b": tf.TensorSpec([2], tf.int32)})),
        (pack(FLOATS), pack({"a": tf.TensorSpec([1], tf.float32), "b": tf.TensorSpec([3], tf.float32)})),
        (pack(rename("a b")), pack(rename("b a"))),
        (pack(FLOATS), tf.TensorSpec([4], tf.int32)),
    ],
)
def test_table_with_other_items_raises(before, after):
    check(make_info(before), make_info(before))
    with pytest.raises(SpecMismatchError, match="the server at two:2 was replaced; sample from it with a new iterator"):
        check(make_info(before), make_info(after))


@pytest.mark.parametrize(
    ("change", "now"),
    [({"exponent": 0.7}, "prioritized:0.7"), ({"fifo": True}, "fifo"), ({"max_times_sampled": 1}, "limited samples")],
)
def test_table_that_is_sampled_differently_raises(change, now):
    with pytest.raises(SpecMismatchError, match=f"is sampled by .*{now}.* at two:2 now"):
        check(make_info(FLOATS), make_info(FLOATS, **change))


def serve(episodes, port, *, isolate):
    source, adder = load(episodes), NStep(1, 0.99)
    server = ReplayServer([TableConfig("replay")], adder.item_spec(source.step_spec), port=port, isolate=isolate)
    ingest(source, server, adder=adder, layout="columns")
    return server


def make_episodes(dtype):
    observations = (np.arange(40) + 1065353216).astype(np.int32).reshape(10, 4).view(dtype)
    log = {"observations": observations, "actions": np.zeros((9, 1), np.float32), "rewards": np.zeros(9, np.float32)}
    return [{**log, "terminated": True}]


@pytest.mark.parametrize("isolate", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_bits_of_a_replaced_server_are_not_reinterpreted(isolate):
    port = pick_port()
    with serve(make_episodes(np.float32), port, isolate=isolate):
        stream = sample(f"localhost:{port}", "replay", 8)
        assert next(stream).data["observation"].dtype == np.float32
    with stream, serve(make_episodes(np.int32), port, isolate=isolate):
        with pytest.raises(SpecMismatchError, match="is int32 .* was replaced"):
            for batch in stream:
                assert (batch.data["observation"] < 2).all()


@pytest.mark.parametrize("answer", [b"garbage", b"\x12\x03\x42\x01\xff"])
def test_malformed_server_info_names_the_address(answer):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    methods = {"ServerInfo": grpc.unary_unary_rpc_method_handler(lambda request, context: answer)}
    service = grpc.method_handlers_generic_handler("deepmind.reverb.ReverbService", methods)
    server.add_generic_rpc_handlers([service])
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        with pytest.raises(
            ServerUnavailableError, match=f"answers at localhost:{port} is not a Reverb server .* check"
        ):
            table_infos(f"localhost:{port}")
    finally:
        server.stop(None)


def test_malformed_signature_names_the_table():
    message = ServerInfoResponse().table_info.add(name="replay", signature=b"garbage")
    with pytest.raises(SpecMismatchError, match="the signature of table 'replay' is not an encoded nest of specs"):
        _ = TableInfo.from_message(message).array_signature
