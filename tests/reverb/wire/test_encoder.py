"""Tests of the encoder: items decoded from their chunks equal the adder's items bit for bit."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import tree
from decoding import assert_same_columns, chunk_column, item_columns, parse_messages
from hypothesis import given, strategies as st
from properties import examples, mark_slow_except
from reference_impls import episode, episodes
from reverb.cc import schema_pb2

from rlds2reverb.adders.trajectory_windows import PADDINGS, TrajectoryEpisodes, TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.reverb.wire import encoder, keys
from rlds2reverb.reverb.wire.encoder import Encoder
from rlds2reverb.reverb.writing.item_conversion import make_conversion
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.items import Items
from rlds2reverb.types.tables import item_signature
from rlds2reverb.types.trajectories import trajectory_columns, trajectory_spec

ADDERS = st.one_of(
    st.builds(TrajectoryWindows, st.integers(1, 7), st.integers(1, 5), st.sampled_from(PADDINGS)),
    st.just(TrajectoryEpisodes()),
    st.builds(lambda stride: Steps(stride), st.integers(1, 3)),
    st.builds(lambda seed: RandomRanges(seed), st.integers(0, 99)),
)
OPTIONS = st.fixed_dictionaries(
    {"chunk_length": st.one_of(st.none(), st.integers(1, 9)), "key_seed": st.integers(0, 3)},
)
TABLES = st.lists(st.sampled_from(["one", "two", "three ü"]), min_size=1, unique=True)


@dataclass(frozen=True)
class Steps:
    """An adder for every `stride`-th step, as squeezed items without a time axis."""

    stride: int = 1

    def __call__(self, episode):
        rows = trajectory_columns(episode.steps)
        starts = np.arange(0, len(rows.step_type), self.stride)
        return Items(rows, starts, np.ones(len(starts), np.int64), squeeze=True)

    def item_spec(self, step_spec):
        return trajectory_spec(step_spec)


@dataclass(frozen=True)
class RandomRanges:
    """An adder for random row ranges, which may share their first row or leave rows out."""

    seed: int

    def __call__(self, episode):
        rows = trajectory_columns(episode.steps)
        num_rows = len(rows.step_type)
        generator = np.random.default_rng([self.seed, episode.index])
        starts = np.sort(generator.integers(0, num_rows, generator.integers(0, 9)))
        return Items(rows, starts, generator.integers(1, num_rows - starts + 1) if len(starts) else starts)

    def item_spec(self, step_spec):
        return item_signature(trajectory_spec(step_spec), None)


def convert(all_steps, adder, *, packed=False, priority=1.0):
    """Returns the conversion of episodes to items, and the blocks of items."""
    source = load(all_steps)
    conversion = make_conversion(source, adder, priority, on_invalid="keep", layout="packed" if packed else "columns")
    return conversion, [block for batch in batch_episodes(source) for block in conversion.convert(batch)]


def encode_all(conversion, blocks, tables=("one",), **options):
    """Returns the encoded batches of all blocks."""
    return list(Encoder(conversion.specs, tables, squeeze=conversion.squeeze, **options).encode(blocks))


def naive_items(blocks, squeeze):
    """Yields the columns of all items, with a loop over items."""
    for block in blocks:
        for start, length in zip(block.starts, block.lengths, strict=True):
            yield [column[start] if squeeze else column[start : start + length] for column in block.columns]


def decode_chunks(batch):
    """Returns the chunks of a batch by key."""
    chunks = parse_messages(schema_pb2.ChunkData, batch.chunks)
    assert [chunk.chunk_key for chunk in chunks] == batch.chunk_keys.tolist()
    return {chunk.chunk_key: chunk for chunk in chunks}


def assert_items_are(batches, expected, tables, *, squeeze=False, one_slice=True):
    """Asserts that each table has the expected items in order, each batch has their chunks, and keys are unique."""
    decoded = {table: [] for table in tables}
    for batch in batches:
        chunks = decode_chunks(batch)
        for table, records, item_keys in zip(tables, batch.items, batch.item_keys, strict=True):
            items = parse_messages(schema_pb2.PrioritizedItem, [records])
            assert [item.key for item in items] == item_keys.tolist() and len(items) == batch.num_items
            for item in items:
                columns = item.flat_trajectory.columns
                assert item.table == table and all(column.squeeze == squeeze for column in columns)
                assert not one_slice or all(len(column.chunk_slices) == 1 for column in columns)
                decoded[table].append(item_columns(item, chunks))
    for got in decoded.values():
        assert len(got) == len(expected)
        for item, expected_item in zip(got, expected, strict=True):
            assert_same_columns(item, expected_item)
    keys.require_unique([item_keys for batch in batches for item_keys in batch.item_keys])
    keys.require_unique([batch.chunk_keys for batch in batches])


# --- bit-for-bit equality


@given(episodes(max_length=12), ADDERS, OPTIONS, TABLES, st.booleans())
@examples(80)
def test_encoded_items_match_the_adders_items_bit_for_bit(all_steps, adder, options, tables, packed):
    conversion, blocks = convert(all_steps, adder, packed=packed)
    expected = list(naive_items(blocks, conversion.squeeze))
    assert_items_are(encode_all(conversion, blocks, tables, **options), expected, tables, squeeze=conversion.squeeze)


@given(episodes(max_length=12), ADDERS, OPTIONS, st.integers(1, 400), st.integers(1, 400), st.booleans())
@examples(60)
def test_items_are_the_same_in_small_batches_and_chunks(
    all_steps, adder, options, batch_bytes, chunk_bytes, compressed
):
    conversion, blocks = convert(all_steps, adder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "MAX_BATCH_BYTES", batch_bytes)
        patch.setattr(encoder, "MAX_SHARED_CHUNK_BYTES", chunk_bytes)
        patch.setattr(encoder, "MIN_COMPRESSED_ROW_BYTES", 1 if compressed else 10**9)
        got = encode_all(conversion, blocks, **options)
    # Chunks this small are not shared, so an item can have slices of several chunks.
    expected = list(naive_items(blocks, conversion.squeeze))
    assert_items_are(got, expected, ["one"], squeeze=conversion.squeeze, one_slice=False)


@given(episodes(max_length=12), ADDERS, OPTIONS, TABLES, st.integers(1, 300))
@examples(60)
def test_items_too_large_for_a_chunk_are_spread_over_several(all_steps, adder, options, tables, max_chunk_bytes):
    conversion, blocks = convert(all_steps, adder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "MAX_CHUNK_BYTES", max_chunk_bytes)
        got = encode_all(conversion, blocks, tables, **options)
    expected = list(naive_items(blocks, conversion.squeeze))
    assert_items_are(got, expected, tables, squeeze=conversion.squeeze, one_slice=False)


@given(episodes(max_length=6), ADDERS)
@examples(30)
def test_packed_row_is_the_concatenated_bytes_of_its_columns(all_steps, adder):
    conversion, blocks = convert(all_steps, adder, packed=True)
    _, unpacked = convert(all_steps, adder)
    for block, plain in zip(blocks, unpacked, strict=True):
        for row in range(len(block.columns[0])):
            assert block.columns[0][row].tobytes() == b"".join(column[row].tobytes() for column in plain.columns)
        assert (
            block.columns[0].shape[1:] == conversion.specs[0].shape
            and block.columns[0].dtype == conversion.specs[0].dtype
        )


def test_images_are_compressed_losslessly():
    all_steps = [episode(9, terminal=True), episode(4, terminal=False, start=30)]
    for steps in all_steps:
        position = np.arange(len(steps["reward"]), dtype=np.uint8)
        steps["observation"] = np.tile(position[:, None, None, None], (1, 32, 32, 3))
    conversion, blocks = convert(all_steps, TrajectoryWindows(2))
    got = encode_all(conversion, blocks)
    assert_items_are(got, list(naive_items(blocks, False)), ["one"])
    for chunk in decode_chunks(got[0]).values():
        assert len(chunk.SerializeToString()) < chunk.data_uncompressed_size / 4


def test_rows_without_items_are_not_stored_in_chunks():
    conversion, blocks = convert([episode(20, terminal=True)], TrajectoryWindows(length=2, stride=5))
    got = encode_all(conversion, blocks)
    assert_items_are(got, list(naive_items(blocks, False)), ["one"])
    rewards = np.concatenate([chunk_column(chunk, 4) for chunk in decode_chunks(got[0]).values()])
    assert sorted(rewards) == [100, 101, 105, 106, 110, 111, 115, 116]


def test_columns_without_elements_are_encoded():
    all_steps = [episode(3, terminal=True)]
    all_steps[0]["observation"] = np.zeros((3, 0, 2), np.float64)
    for packed in (False, True):
        conversion, blocks = convert(all_steps, TrajectoryWindows(2), packed=packed)
        assert_items_are(encode_all(conversion, blocks), list(naive_items(blocks, False)), ["one"])


def test_encoder_yields_no_batch_when_there_are_no_items():
    conversion, blocks = convert([episode(2, terminal=True)], TrajectoryWindows(5))
    assert not len(blocks[0].starts) and encode_all(conversion, blocks) == encode_all(conversion, []) == []


# --- assignment of rows to chunks


def test_large_item_has_a_slice_of_each_chunk_with_its_rows(monkeypatch):
    conversion, blocks = convert([episode(10, terminal=True)], TrajectoryWindows(6, 2))
    monkeypatch.setattr(encoder, "MAX_CHUNK_BYTES", 4 * sum(spec.num_bytes for spec in conversion.specs))
    (batch,) = encode_all(conversion, blocks)
    assert [chunk.sequence_range.start for chunk in decode_chunks(batch).values()] == [0, 4, 8]
    columns = [item.flat_trajectory.columns[0] for item in parse_messages(schema_pb2.PrioritizedItem, batch.items)]
    slices = [[(part.offset, part.length) for part in column.chunk_slices] for column in columns]
    assert slices == [[(0, 4), (0, 2)], [(2, 2), (0, 4)], [(0, 4), (0, 2)]]


def make_float_episodes(*lengths):
    return [episode(length, terminal=True, start=1000.0 * at) for at, length in enumerate(lengths)]


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (2, 1), (5, 1), (5, 3), (40, 1), (40, 7), (200, 1), (3, 9)])
def test_at_most_half_of_the_stored_rows_are_repetitions(length, stride):
    conversion, blocks = convert(make_float_episodes(1500, 2000), TrajectoryWindows(length, stride))
    stored = sum(
        len(chunk_column(c, 0)) for batch in encode_all(conversion, blocks) for c in decode_chunks(batch).values()
    )
    required = sum(len({start + row for start in block.starts for row in range(length)}) for block in blocks)
    assert required <= stored <= 2 * required


@pytest.mark.parametrize("chunk_length", [1, 4, 9])
def test_chunk_length_is_the_number_of_items_per_chunk(chunk_length):
    conversion, blocks = convert([episode(21, terminal=True)], TrajectoryWindows(3))
    (batch,) = encode_all(conversion, blocks, chunk_length=chunk_length)
    items = parse_messages(schema_pb2.PrioritizedItem, batch.items)
    used = [item.flat_trajectory.columns[0].chunk_slices[0].chunk_key for item in items]
    groups = [len(list(group)) for _, group in itertools.groupby(used)]
    assert len(groups) == len(decode_chunks(batch))
    assert groups == [chunk_length] * (19 // chunk_length) + [19 % chunk_length] * (19 % chunk_length > 0)


def test_shared_chunk_stays_below_the_size_limit():
    all_steps = make_float_episodes(60)
    all_steps[0]["observation"] = np.random.default_rng(0).normal(size=(60, 1000))
    conversion, blocks = convert(all_steps, TrajectoryWindows(8))
    chunks = [chunk for batch in encode_all(conversion, blocks) for chunk in decode_chunks(batch).values()]
    assert max(chunk.data_uncompressed_size for chunk in chunks) <= encoder.MAX_SHARED_CHUNK_BYTES


def test_several_tables_share_chunks():
    conversion, blocks = convert([episode(9, terminal=True)], TrajectoryWindows(2))
    (one,), (two,) = encode_all(conversion, blocks, ["a"]), encode_all(conversion, blocks, ["a", "b"])
    assert one.chunk_keys.tolist() == two.chunk_keys.tolist() and len(two.items) == 2
    assert decode_chunks(one) == decode_chunks(two)


def test_batches_stay_near_the_size_limit(monkeypatch):
    monkeypatch.setattr(encoder, "MAX_BATCH_BYTES", 1 << 20)
    conversion, blocks = convert(make_float_episodes(*[700] * 100), TrajectoryWindows(2))
    sizes = [
        sum(chunk.data_uncompressed_size for chunk in decode_chunks(b).values()) for b in encode_all(conversion, blocks)
    ]
    assert len(sizes) > 1 and max(sizes) < 2 * encoder.MAX_BATCH_BYTES


# --- metadata of items and chunks


def test_items_keep_priorities_and_are_numbered_across_batches():
    def priority(episode, items):
        return episode.index * 100 + items.starts

    all_steps = [episode(5, terminal=True), episode(30, terminal=True), episode(3, terminal=False)]
    conversion, blocks = convert(all_steps, TrajectoryWindows(2), priority=priority)
    encoder = Encoder(conversion.specs, ["a", "b"], number_items=True)
    got = [batch for block in blocks for batch in encoder.encode([block])]
    expected = [100 * at + row for at, count in enumerate([4, 29, 2]) for row in range(count)]
    for table in range(2):
        items = parse_messages(schema_pb2.PrioritizedItem, [batch.items[table] for batch in got])
        assert [item.priority for item in items] == expected
        assert [item.inserted_at.ToMicroseconds() for item in items] == list(range(len(expected)))
    assert encoder.num_items == len(expected)


def test_chunk_stores_the_row_range_in_its_episode():
    conversion, blocks = convert([episode(20, terminal=True), episode(20, terminal=True)], TrajectoryWindows(2, 2))
    (batch,) = encode_all(conversion, blocks, chunk_length=4)
    spans = [chunk.sequence_range for chunk in decode_chunks(batch).values()]
    for _, group in itertools.groupby(sorted(spans, key=lambda s: (s.episode_id, s.start)), lambda s: s.episode_id):
        assert [(span.start, span.end) for span in group] == [(0, 7), (8, 15), (16, 19)]
    assert len({span.episode_id for span in spans}) == 2


def test_flat_columns_keep_the_order_of_the_nest():
    conversion, blocks = convert([episode(3, terminal=True, nested=True)], TrajectoryWindows(2))
    (batch,) = encode_all(conversion, blocks)
    first = parse_messages(schema_pb2.PrioritizedItem, batch.items)[0]
    item = tree.unflatten_as(conversion.row_spec, item_columns(first, decode_chunks(batch)))
    assert item.action["move"].tolist() == [10, 11] and item.observation["state"].tolist() == [[10, -10], [11, -11]]


@dataclass(frozen=True)
class GrowingWindows:
    """An adder for the rows up to each step, at most `length`: items grow at the start of an episode."""

    length: int

    def __call__(self, episode):
        rows = trajectory_columns(episode.steps)
        ends = np.arange(1, len(rows.step_type) + 1)
        lengths = np.minimum(ends, self.length)
        return Items(rows, ends - lengths, lengths)

    def item_spec(self, step_spec):
        return item_signature(trajectory_spec(step_spec), None)


def test_chunk_keys_are_unique_when_item_lengths_vary():
    conversion, blocks = convert([episode(50_000, terminal=True)], GrowingWindows(20))
    keys.require_unique([batch.chunk_keys for batch in encode_all(conversion, blocks)])


@pytest.mark.parametrize(
    ("length", "shape"),
    mark_slow_except(
        [(5, (84, 84, 4)), (200, (1000,))], [(2, (84, 84, 4)), (5, (84, 84, 4)), (64, (64, 64, 3)), (200, (1000,))]
    ),
)
def test_chunks_repeat_few_rows_for_items_of_any_size(length, shape):
    steps = episode(300, terminal=False)
    steps["observation"] = np.random.default_rng(0).integers(0, 255, (300, *shape), np.uint8)
    conversion, blocks = convert([steps], TrajectoryWindows(length))
    batches = list(encode_all(conversion, blocks))
    assert sum(batch.chunk_bytes for batch in batches) < 2 * sum(column.nbytes for column in blocks[0].columns)
    assert_items_are(batches, list(naive_items(blocks, False)), ["one"], one_slice=False)


@examples(30)
@given(episodes(max_episodes=6), ADDERS, OPTIONS, st.booleans())
def test_batch_of_episodes_is_encoded_like_each_episode(all_steps, adder, options, packed):
    conversion, together = convert(all_steps, adder, packed=packed)
    alone = [block for e in load(all_steps) for block in conversion.convert(EpisodeBatch([e]))]
    got, expected = (encode_all(conversion, blocks, ("one", "two"), **options) for blocks in (together, alone))
    assert sorted_messages(got, "chunks") == sorted_messages(expected, "chunks")
    assert sorted_messages(got, "items") == sorted_messages(expected, "items")
    for block in together:
        assert [part.digests for part in block.split_by_episode()] == [[digest] for digest in block.digests]


def sorted_messages(batches, kind):
    """Returns all encoded messages of a kind, sorted because their grouping into batches may differ."""
    return sorted(bytes(record) for batch in batches for records in getattr(batch, kind) for record in records)
