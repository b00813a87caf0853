"""Tests of keys: equal content has equal keys, different content has different keys."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given, strategies as st
from reference_impls import episode

from rlds2reverb.adders.trajectory_windows import TrajectoryEpisodes, TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import KeyCollisionError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire import keys
from rlds2reverb.reverb.wire.encoder import Encoder
from rlds2reverb.reverb.writing.item_conversion import make_conversion
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.items import Items
from rlds2reverb.types.tables import TableConfig

MASK = (1 << 64) - 1


def encode_keys(all_steps, adder=None, tables=("replay",), *, packed=False, **options):
    """Returns the item keys of each table, and the chunk keys."""
    source = load(all_steps)
    conversion = make_conversion(
        source, adder or TrajectoryWindows(), 1.0, on_invalid="keep", layout="packed" if packed else "columns"
    )
    encoder = Encoder(conversion.specs, tables, squeeze=conversion.squeeze, **options)
    batches = list(encoder.encode([block for batch in batch_episodes(source) for block in conversion.convert(batch)]))
    item_keys = [np.concatenate(parts) for parts in zip(*(batch.item_keys for batch in batches), strict=True)]
    return item_keys, np.concatenate([batch.chunk_keys for batch in batches])


def two_episodes():
    return [episode(30, terminal=True), episode(20, terminal=False, start=100)]


def items(columns, starts=(0, 1), lengths=(2, 2)):
    return Items(columns, np.array(starts, np.int64), np.array(lengths, np.int64))


# --- equal keys


def test_keys_are_reproducible():
    (one,), chunks = encode_keys(two_episodes())
    (two,), more_chunks = encode_keys(two_episodes())
    assert one.tolist() == two.tolist() and chunks.tolist() == more_chunks.tolist()


@pytest.mark.parametrize("chunk_length", [1, 3, 100])
def test_item_keys_do_not_depend_on_chunk_length(chunk_length):
    (one,), chunks = encode_keys(two_episodes())
    (two,), other_chunks = encode_keys(two_episodes(), chunk_length=chunk_length)
    assert one.tolist() == two.tolist() and not np.isin(other_chunks, chunks).any()


def test_keys_do_not_depend_on_other_episodes_or_tables():
    (alone,), _ = encode_keys(two_episodes()[:1])
    (first, second), _ = encode_keys(two_episodes(), tables=("replay", "more"))
    assert alone.tolist() == first[: len(alone)].tolist() and not np.isin(first, second).any()


def test_keys_match_splitmix64_computed_with_python_integers():
    """The expected keys are splitmix64 outputs, reduced to the range of keys."""
    for start in (0, 1, 1234567, MASK):
        for position in (0, 1, 999_999):
            z = (start + position * 0x9E3779B97F4A7C15) & MASK
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            expected = (z ^ (z >> 31)) % ((1 << 63) - (1 << 56)) + (1 << 56)
            assert keys.make_keys(np.array([start], np.uint64), np.array([position])).tolist() == [expected]


def test_keys_match_the_published_splitmix64_vectors():
    """Vigna's splitmix64.c returns 6457827717110365317 and 3203168211198807973 for seed 1234567."""
    span = (1 << 63) - (1 << 56)
    expected = [number % span + (1 << 56) for number in (6457827717110365317, 3203168211198807973)]
    assert keys.make_keys(np.full(2, 1234567, np.uint64), np.array([1, 2])).tolist() == expected


def three_steps():
    """Returns an episode of three steps with fixed contents."""
    return {
        "observation": {"joint_pos": np.array([[10, -1], [11, -2], [12, -3]], np.float32)},
        "action": np.array([1, 2, 3], np.int32),
        "reward": np.array([100, 101, 102], np.float32),
        "discount": np.array([1, 1, 0], np.float32),
        "is_first": np.array([True, False, False]),
        "is_last": np.array([False, False, True]),
        "is_terminal": np.array([False, False, True]),
    }


def large_steps():
    """Returns the same episode with observations so large that an item needs several chunks."""
    return {**three_steps(), "observation": np.full((3, 9 << 20), 7, np.uint8)}


#: The function that returns the episode, options, the expected item keys and the expected chunk keys.
GOLDEN = [
    (three_steps, {}, [5027764441974466825, 8097049550776498942], [2098658449792055686]),
    (three_steps, {"tables": ("other",)}, [3469729921094502516, 1149453641052304342], [2098658449792055686]),
    (three_steps, {"key_seed": 1}, [9168187827288198742, 4236729030005299129], [2707868706801294962]),
    (three_steps, {"packed": True}, [4673849081440999674, 5638563552865017626], [945753139825480919]),
    (three_steps, {"adder": TrajectoryEpisodes()}, [831986722706648344], [6816716358096998705]),
    (
        large_steps,
        {},
        [1806121587084495514, 2080223400320429690],
        [5459132619635439188, 3001490203266660626, 6233904593939630650],
    ),
]


@pytest.mark.parametrize(("steps", "options", "expected_items", "expected_chunks"), GOLDEN)
def test_keys_match_those_of_earlier_versions(steps, options, expected_items, expected_chunks):
    """If keys changed, a run resumed after an upgrade would store all data twice."""
    (item_keys,), chunk_keys = encode_keys([steps()], **options)
    assert (item_keys.tolist(), chunk_keys.tolist()) == (expected_items, expected_chunks)


def test_seed_matches_its_definition():
    """A seed is the SHA-256 of all parts (bytes, or else their repr), each preceded by its length in 8 bytes."""
    parts = [b"'item replay'", b"\x00\x01", b"3", b"0", b"'x'"]
    content = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    expected = int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
    assert keys.make_seed("item replay", b"\x00\x01", 3, 0, "x") == expected == 17026198847840861634


def test_digest_matches_its_definition():
    """A digest is the XXH3 of each column's path, dtype, shape and bytes, then squeeze, count, starts and lengths."""
    content = b"('x',)<f4(4,)" + struct.pack("<4f", 0, 1, 2, 3) + b"False2" + struct.pack("<4q", 0, 1, 2, 2)
    got = keys.content_digest(items({"x": np.arange(4, dtype=np.float32)}))
    assert got == xxhash.xxh3_128(content).digest() == bytes.fromhex("53caa36a6750ed40d6033c9ac708464d")


# --- different keys


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: steps["observation"].__setitem__((7, 1), 0.5),
        lambda steps: steps["reward"].__setitem__(29, -1),
        lambda steps: steps["is_terminal"].__setitem__(29, False),
        lambda steps: steps.update(action=steps["action"].astype(np.float64)),
        lambda steps: steps.update(action=steps["action"].view(np.int32)),
        lambda steps: steps.update(action=steps["action"].reshape(30, 1, 1)),
        lambda steps: steps.update(observation={"state": steps["observation"]}),
        lambda steps: steps.update(observation=np.negative(steps["observation"] * 0)),
    ],
)
def test_keys_differ_when_content_dtype_shape_or_name_differs(change):
    (one,), chunks = encode_keys([episode(30, terminal=True)])
    changed = episode(30, terminal=True)
    change(changed)
    (two,), other_chunks = encode_keys([changed])
    assert not np.isin(two, one).any() and not np.isin(other_chunks, chunks).any()


def test_keys_differ_between_repetitions_of_an_episode():
    (item_keys,), chunks = encode_keys([episode(9, terminal=True)] * 3)
    keys.require_unique([item_keys])
    keys.require_unique([chunks])


@pytest.mark.parametrize(
    "adder", [TrajectoryWindows(3), TrajectoryWindows(2, 2), TrajectoryWindows(2, padding="tile"), TrajectoryEpisodes()]
)
def test_keys_differ_between_adders(adder):
    (one,), _ = encode_keys(two_episodes())
    (two,), _ = encode_keys(two_episodes(), adder)
    assert not np.isin(two, one).any()


def test_keys_differ_between_tables_seeds_and_layouts():
    item_keys, chunk_keys = encode_keys(two_episodes(), tables=("replay", "replay2", "Replay", "表"))
    for options in ({"key_seed": 1}, {"key_seed": -1}, {"packed": True}):
        more, chunks = encode_keys(two_episodes(), **options)
        item_keys, chunk_keys = item_keys + more, np.append(chunk_keys, chunks)
    keys.require_unique(item_keys)
    keys.require_unique([chunk_keys])


def test_digests_differ_between_columns_and_item_ranges():
    a, b = np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)
    variants = [
        items({"x": a, "y": b}),
        items({"x": b, "y": a}),
        items({"x": a, "z": b}),
        items({"x": a}),
        items([a]),
        items({"x": a.astype(">f4")}),
        items({"x": a}, starts=(0, 2)),
        items({"x": a}, lengths=(2, 3)),
        items({"x": a}, lengths=(1, 1)),
        replace(items({"x": a}, lengths=(1, 1)), squeeze=True),
        items({"x": a}, (0,), (2,)),
        items({"x": a}, (), ()),
    ]
    assert len({keys.content_digest(variant) for variant in variants}) == len(variants)


def test_digest_does_not_depend_on_memory_layout():
    wide = np.arange(24, dtype=np.float32).reshape(6, 4)
    assert keys.content_digest(items({"x": wide[:, ::2]})) == keys.content_digest(items({"x": wide[:, ::2].copy()}))


def test_seeds_differ_when_parts_are_split_differently():
    variants = [("ab", "c"), ("a", "bc"), ("abc",), (b"ab", "c"), ("ab", "c", ""), (1, 23), (12, 3), ("12", "3")]
    assert len({keys.make_seed(*parts) for parts in variants}) == len(variants)


# --- range and collisions


@given(st.lists(st.tuples(st.integers(0, MASK), st.integers(0, 10**9)), min_size=1))
def test_keys_are_in_range(pairs):
    seeds, positions = zip(*pairs, strict=True)
    got = keys.make_keys(np.array(seeds, np.uint64), np.array(positions))
    assert got.dtype == np.uint64 and (got >= keys.MIN_KEY).all() and (got < keys.KEY_LIMIT).all()


def test_three_million_keys_are_unique():
    position = np.arange(1000, dtype=np.int32)
    digests = [keys.content_digest(items({"x": position + number})) for number in range(500)]
    seeds = [
        keys.make_seed("item " + table, digests[number // 2], number, 0)
        for table in ("one", "two", "three")
        for number in range(1000)
    ]
    item_keys = keys.make_keys(np.repeat(np.array(seeds, np.uint64), 1000), np.tile(position, len(seeds)))
    assert len(item_keys) == 3_000_000 and item_keys.min() >= keys.MIN_KEY and item_keys.max() < keys.KEY_LIMIT
    keys.require_unique([item_keys])


def test_require_unique_raises_on_repetitions_across_arrays():
    keys.require_unique([])
    keys.require_unique([np.array([3, 1], np.uint64), np.array([2], np.uint64)])
    with pytest.raises(
        KeyCollisionError, match=r"1 keys collide, the first is 3, .* with a different key seed, .* \(key_seed\)"
    ):
        keys.require_unique([np.array([3, 1], np.uint64), np.array([2, 3], np.uint64)])


@pytest.fixture
def few_keys(monkeypatch):
    """Restricts the keys to seven values."""
    original = keys.make_keys
    monkeypatch.setattr(
        keys, "make_keys", lambda seeds, positions: keys.MIN_KEY + original(seeds, positions) % np.uint64(7)
    )


def test_ingest_removes_the_directory_when_keys_collide(few_keys, tmp_path):
    with pytest.raises(KeyCollisionError, match=r"convert again with a different key seed, .* \(key_seed\)"):
        ingest([episode(20, terminal=True)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ingest_to_a_server_raises_when_keys_collide(few_keys):
    with ReplayServer([TableConfig("replay")]) as server:
        with pytest.raises(KeyCollisionError, match=r"convert again with a different key seed, .* \(key_seed\)"):
            ingest([episode(20, terminal=True)], server.address, timeout_secs=10)


def test_key_seed_resolves_a_collision(monkeypatch, tmp_path):
    original = keys.make_seeds

    def make_seeds(kind, digests, episodes, layouts, rest):
        equal = np.zeros(len(digests), np.uint64)
        return original(kind, digests, episodes, layouts, rest) if rest[-1] else equal

    monkeypatch.setattr(keys, "make_seeds", make_seeds)
    with pytest.raises(KeyCollisionError):
        ingest(two_episodes(), tmp_path / "out")
    assert ingest(two_episodes(), tmp_path / "other", options=IngestOptions(key_seed=1)).items == 48
