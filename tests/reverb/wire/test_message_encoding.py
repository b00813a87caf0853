"""Tests of encoded messages against bytes computed by hand, and by decoding them with protocol buffers and snappy."""

import cramjam
import numpy as np
import pytest
from decoding import assert_same_columns, chunk_column
from hypothesis import example, given, strategies as st
from properties import examples
from reverb.cc import schema_pb2

from rlds2reverb.reverb.client.client_messages import MutatePrioritiesRequest
from rlds2reverb.reverb.wire import keys, message_encoding as messages, protobuf
from rlds2reverb.types.specs import ArraySpec

KEYS = st.one_of(st.sampled_from([keys.MIN_KEY, keys.KEY_LIMIT - 1]), st.integers(keys.MIN_KEY, keys.KEY_LIMIT - 1))
OFFSETS = st.one_of(st.sampled_from([0, 127, 128, 16383, 16384, 2**31 - 1]), st.integers(0, 2**31 - 1))
#: 2^56 in base 128: eight zero digits, then a one.
LOWEST_KEY = "80" * 8 + "01"


def uint64(*values):
    return np.array(values, np.uint64)


# --- numbers


@pytest.mark.parametrize(
    ("value", "expected"),
    [  # 150 and 300 are the examples of "Protocol Buffers: Encoding".
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "80 01"),
        (150, "96 01"),
        (300, "ac 02"),
        (16383, "ff 7f"),
        (16384, "80 80 01"),
        (1 << 56, LOWEST_KEY),
        ((1 << 63) - 1, "ff" * 8 + "7f"),
    ],
)
def test_varint_is_base_128_with_the_lowest_digits_first(value, expected):
    assert protobuf.varint(value) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("value", "width", "expected"),
    [
        (0, 1, "00"),
        (127, 1, "7f"),
        (1, 5, "81 80 80 80 00"),
        (300, 5, "ac 82 80 80 00"),
        ((1 << 31) - 1, 5, "ff ff ff ff 07"),
        (1 << 56, 9, LOWEST_KEY),
        ((1 << 63) - 1, 9, "ff" * 8 + "7f"),
        (1 << 63, 10, "80" * 9 + "01"),
        ((1 << 64) - 1, 10, "ff" * 9 + "01"),
    ],
)
def test_varints_of_fixed_width_are_padded_with_continuation_bytes(value, width, expected):
    assert protobuf.varints(uint64(value), width).tobytes() == bytes.fromhex(expected)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_varints_of_keys_need_no_padding(values):
    rows = protobuf.varints(uint64(*values), 9)
    for value, row in zip(values, rows, strict=True):
        assert sum((int(digit) & 127) << (7 * position) for position, digit in enumerate(row)) == value
        assert value < keys.MIN_KEY or row.tobytes() == protobuf.varint(value)


@given(
    st.integers(1, 9).flatmap(lambda width: st.tuples(st.just(width), st.lists(st.integers(0, 2 ** (7 * width) - 1))))
)
def test_padded_varints_are_decoded_as_the_same_numbers(case):
    width, values = case
    fields = protobuf.fill([protobuf.tag(6, 0), protobuf.varints(uint64(*values), width)], len(values))
    assert fields.shape == (len(values), 1 + width)
    for value, field in zip(values, fields, strict=True):
        parsed = schema_pb2.ChunkData.FromString(field.tobytes())
        assert parsed.data_tensors_len == value % 2**32 - (value % 2**32 >> 31 << 32)  # an int32 drops the upper bits


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.floats(0, 1e12))))
def test_priority_updates_are_decoded_unchanged(updates):
    item_keys, priorities = uint64(*(key for key, _ in updates)), np.array([value for _, value in updates], float)
    request = MutatePrioritiesRequest.FromString(messages.encode_priority_updates("a table", item_keys, priorities))
    assert request.table == "a table" and not request.delete_keys
    assert [(update.key, update.priority) for update in request.updates] == updates


def test_fill_joins_constant_empty_and_noncontiguous_parts():
    columns = np.arange(12, dtype=np.uint8).reshape(3, 4)
    parts = [b"ab", columns[:, ::2], b"", np.zeros((3, 0), np.uint8), columns[:, 3:], b"c"]
    assert protobuf.total_width(parts) == 6
    records = protobuf.fill(parts, 3)
    assert [record.tobytes() for record in records] == [b"ab\0\2\3c", b"ab\4\6\7c", b"ab\x08\x0a\x0bc"]
    assert protobuf.fill([b"ab", np.zeros((0, 3), np.uint8)], 0).shape == (0, 5)


# --- snappy without compression


@pytest.mark.parametrize(
    ("size", "expected"),
    [  # The size as a varint, the tag of a literal, and its length minus 1 unless it fits in the tag.
        (0, "00"),
        (1, "01 00"),
        (60, "3c ec"),
        (61, "3d f0 3c"),
        (255, "ff01 f0 fe"),
        (256, "8002 f0 ff"),
        (257, "8102 f4 0001"),
        (65536, "808004 f4 ffff"),
        (65537, "818004 f8 000001"),
        (1 << 24, "80808008 f8 ffffff"),
        ((1 << 24) + 1, "81808008 fc 00000001"),
    ],
)
def test_literal_stream_is_decompressed_by_snappy(size, expected):
    content = np.random.default_rng(size).bytes(size)
    header = messages.literal_header(size)
    assert header == bytes.fromhex(expected)
    assert bytes(cramjam.snappy.decompress_raw(header + content)) == content


# --- chunks


@st.composite
def columns(draw, num_chunks=None):
    """Generates columns `[n, rows, ...]` of any dtype, with arbitrary or compressible contents, and their specs."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, rows = num_chunks or draw(st.integers(1, 3)), draw(st.integers(1, 70))
    contents = []
    for _ in range(draw(st.integers(1, 3))):
        dtype = np.dtype(draw(st.sampled_from(sorted(messages.DATA_TYPES))))
        shape = (n, rows, *draw(st.lists(st.integers(0, 4), max_size=3)))
        limit = draw(st.sampled_from([1, 256])) if dtype.kind != "b" else 2
        raw = generator.integers(0, limit, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
        contents.append(raw.view(dtype).reshape(shape))
    return contents, [ArraySpec(content.shape[2:], content.dtype) for content in contents]


def assert_chunk(record, key, episode_id, first_row, expected):
    chunk = schema_pb2.ChunkData.FromString(bytes(record))
    assert (chunk.chunk_key, chunk.delta_encoded, chunk.data_tensors_len) == (key, False, len(expected))
    span = chunk.sequence_range
    assert (span.episode_id, span.start, span.end) == (episode_id, first_row, first_row + len(expected[0]) - 1)
    assert chunk.data_uncompressed_size == sum(column.nbytes for column in expected)
    assert_same_columns([chunk_column(chunk, index) for index in range(len(chunk.data.tensors))], expected)


def test_chunk_matches_bytes_computed_by_hand():
    content = np.array([[7, 8]], np.uint8)
    spec = ArraySpec((), content.dtype)
    head = "08" + LOWEST_KEY  # chunk_key
    padded = "12 16 08" + LOWEST_KEY + "10 8380808000 18 8480808000"  # sequence_range: episode_id, rows 3 to 4
    tail = (
        "2a 10 0a 0e 08 04 12 04 12 02 08 02 22 04 02 04 07 08"  # one tensor: DT_UINT8, dim 2, stored 7 and 8
        "30 01 38 02"  # data_tensors_len, data_uncompressed_size
    )
    key = keys.MIN_KEY
    records = messages.encode_chunks(uint64(key), uint64(key), np.array([3]), [content], [spec])
    assert records.tobytes() == bytes.fromhex(head + padded + tail)


def test_compressed_chunk_matches_bytes_computed_by_hand():
    content, spec = np.zeros((1, 1, 2000), np.uint8), ArraySpec((2000,), np.dtype(np.uint8))
    packed = bytes(cramjam.snappy.compress_raw(content.tobytes()))
    assert len(packed) == 100  # "64" below
    key = keys.MIN_KEY
    (record,) = messages.encode_chunks(uint64(key), uint64(key), np.array([3]), [content], [spec], compress=True)
    expected = [
        "08" + LOWEST_KEY,  # chunk_key
        "12 16 08" + LOWEST_KEY + "10 8380808000 18 8380808000",  # sequence_range: episode_id, rows 3 to 3
        "2a fd80808000",  # the tensors, 125 bytes; numbers that differ between chunks take five bytes
        "0a f780808000",  # the only tensor, 119 bytes
        "08 04 12 09 12 02 08 01 12 03 08 d00f",  # DT_UINT8, dims 1 and 2000
        "22 e480808000",  # its content, 100 bytes
    ]
    assert record == bytes.fromhex("".join(expected)) + packed + bytes.fromhex("30 01 38 d00f")


@pytest.mark.parametrize("compress", [False, True])
@given(columns(), st.data())
@examples(60)
def test_chunks_are_decoded_unchanged(compress, case, data):
    contents, specs = case
    n = len(contents[0])
    values = [data.draw(st.lists(kind, min_size=n, max_size=n)) for kind in (KEYS, KEYS, st.integers(0, 2**31 - 100))]
    heads = uint64(*values[0]), uint64(*values[1]), np.array(values[2])
    records = messages.encode_chunks(*heads, contents, specs, compress=compress)
    assert len(records) == n
    for at, header in enumerate(zip(*values, strict=True)):
        assert_chunk(records[at], *header, [content[at] for content in contents])


@pytest.mark.parametrize("dtype", sorted(messages.DATA_TYPES))
def test_every_supported_dtype_is_decoded_unchanged(dtype):
    spec = ArraySpec((), np.dtype(dtype))
    messages.require_dtype(spec, "item['a']")
    content, both = np.arange(6).astype(dtype).reshape(2, 3), (keys.MIN_KEY, keys.KEY_LIMIT - 1)
    records = messages.encode_chunks(uint64(*both), uint64(*both), np.arange(2), [content], [spec])
    for at, key in enumerate(both):
        assert_chunk(records[at], key, key, at, [content[at]])


def test_column_is_compressed_only_if_that_saves_a_tenth():
    noise, zeros = np.random.default_rng(0).integers(0, 256, (2, 4096), np.uint8), np.zeros((2, 4096), np.uint8)
    specs = [ArraySpec((4096,), noise.dtype)] * 2
    key = uint64(1 << 60)
    contents = [noise[None], zeros[None]]
    (record,) = messages.encode_chunks(key, key, np.zeros(1, int), contents, specs, compress=True)
    chunk = schema_pb2.ChunkData.FromString(record)
    sizes = [len(tensor.tensor_content) for tensor in chunk.data.tensors]
    assert sizes[0] == noise.nbytes + len(messages.literal_header(noise.nbytes)) and sizes[1] < zeros.nbytes / 10
    assert chunk.data_uncompressed_size == noise.nbytes + zeros.nbytes


@pytest.mark.parametrize("dtype", ["S3", "U3", "O", "datetime64[s]"])
def test_unsupported_dtypes_raise(dtype):
    with pytest.raises(ValueError, match=r"item\['text'\] must be one of float32, float64, .*; cast it, or leave"):
        messages.require_dtype(ArraySpec((), np.dtype(dtype)), "item['text']")


# --- items


def test_item_matches_bytes_computed_by_hand():
    key = uint64(keys.MIN_KEY)
    expected = (
        "08" + LOWEST_KEY + "12 01 74",  # key, table "t"
        "29 000000000000f03f",  # priority 1.0
        "3a 0c 08 8180808000 10 d0ccbf8000",  # inserted_at: 1 s and 1,042,000 ns
        "42 16 0a 14 0a 10 08" + LOWEST_KEY + "10 00 18 01 20 00 10 01",  # one column of one slice, squeezed
    )
    slices = [(key, np.array([0]), np.array([1]))]
    got = messages.encode_items(
        "t", key, np.ones(1), slices, num_columns=1, squeeze=True, numbers=np.array([1_001_042])
    )
    assert got.tobytes() == bytes.fromhex("".join(expected))


@pytest.mark.slow
@given(
    st.text(min_size=1, max_size=100).filter(str.isprintable),
    st.lists(st.tuples(KEYS, st.floats(0, 1e12), st.integers(0, 2**50)), min_size=1, max_size=4),
    st.integers(1, 200),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.data(),
)
@example("Ünïcödé 表 🎲", [(1 << 60, 0.1, 0)], 1, 1, False, True, None)
@examples(80)
def test_items_are_decoded_unchanged(table, values, num_columns, num_slices, squeeze, numbered, data):
    n = len(values)
    draw = (lambda kind: data.draw(st.lists(kind, min_size=n, max_size=n))) if data else (lambda kind: [1 << 60] * n)
    item_keys, priorities, numbers = zip(*values, strict=True)
    slices = [[draw(KEYS), draw(OFFSETS) if data else [0], draw(OFFSETS) if data else [1]] for _ in range(num_slices)]
    records = messages.encode_items(
        table,
        uint64(*item_keys),
        np.array(priorities),
        [(uint64(*chunk), np.array(first), np.array(count)) for chunk, first, count in slices],
        num_columns=num_columns,
        squeeze=squeeze,
        numbers=np.array(numbers) if numbered else None,
    )
    for at, record in enumerate(records):
        item = schema_pb2.PrioritizedItem.FromString(record.tobytes())
        assert (item.key, item.table, item.priority) == (item_keys[at], table, priorities[at])
        assert item.times_sampled == 0 and item.HasField("inserted_at") == numbered
        if numbered:
            assert item.inserted_at.ToMicroseconds() == numbers[at]
        assert len(item.flat_trajectory.columns) == num_columns
        for index, column in enumerate(item.flat_trajectory.columns):
            got = [(part.chunk_key, part.offset, part.length, part.index) for part in column.chunk_slices]
            assert got == [(chunk[at], first[at], count[at], index) for chunk, first, count in slices]
            assert column.squeeze == squeeze
