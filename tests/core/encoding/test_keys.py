"""Keys say what they hold: the same again has the same keys, anything else has others."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from reference_impls import episode

from rlds2reverb._encoding import keys
from rlds2reverb._encoding.encoder import Encoder
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb._writing.conversion import make_conversion
from rlds2reverb.episode_batches import in_batches
from rlds2reverb.errors import KeyCollisionError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.items import Items
from rlds2reverb.sources import load
from rlds2reverb.tables import TableConfig
from rlds2reverb.trajectory_items import TrajectoryEpisodes, TrajectoryWindows

MASK = (1 << 64) - 1


def encoded(many, adder=None, tables=("replay",), *, packed=False, **options):
    """Keys of the items of each table, and of the chunks."""
    source = load(many)
    conversion = make_conversion(
        source, adder or TrajectoryWindows(), 1.0, on_invalid="keep", layout="packed" if packed else "columns"
    )
    encoder = Encoder(conversion.specs, tables, squeeze=conversion.squeeze, **options)
    batches = list(encoder.encode([block for batch in in_batches(source) for block in conversion.blocks(batch)]))
    of_items = [np.concatenate(of) for of in zip(*(batch.item_keys for batch in batches), strict=True)]
    return of_items, np.concatenate([batch.chunk_keys for batch in batches])


def two_episodes():
    return [episode(30, terminal=True), episode(20, terminal=False, start=100)]


def items(columns, starts=(0, 1), lengths=(2, 2)):
    return Items(columns, np.array(starts, np.int64), np.array(lengths, np.int64))


# --- the same


def test_the_same_data_have_the_same_keys_each_time():
    (one,), chunks = encoded(two_episodes())
    (two,), more_chunks = encoded(two_episodes())
    assert one.tolist() == two.tolist() and chunks.tolist() == more_chunks.tolist()


@pytest.mark.parametrize("chunk_length", [1, 3, 100])
def test_keys_of_items_do_not_depend_on_how_they_share_chunks(chunk_length):
    (one,), chunks = encoded(two_episodes())
    (two,), other_chunks = encoded(two_episodes(), chunk_length=chunk_length)
    assert one.tolist() == two.tolist() and not np.isin(other_chunks, chunks).any()


def test_keys_do_not_depend_on_what_else_is_encoded():
    (alone,), _ = encoded(two_episodes()[:1])
    (first, second), _ = encoded(two_episodes(), tables=("replay", "more"))
    assert alone.tolist() == first[: len(alone)].tolist() and not np.isin(first, second).any()


def test_a_key_is_the_one_worked_out_by_the_definition():
    """splitmix64 by whole numbers, folded into the range."""
    for start in (0, 1, 1234567, MASK):
        for place in (0, 1, 999_999):
            z = (start + place * 0x9E3779B97F4A7C15) & MASK
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            wanted = (z ^ (z >> 31)) % ((1 << 63) - (1 << 56)) + (1 << 56)
            assert keys.keys_at(np.array([start], np.uint64), np.array([place])).tolist() == [wanted]


def test_the_first_keys_of_a_sequence_are_those_of_splitmix64():
    """Seed 1234567 gives 6457827717110365317, 3203168211198807973: the vectors of Vigna's splitmix64.c."""
    span = (1 << 63) - (1 << 56)
    wanted = [number % span + (1 << 56) for number in (6457827717110365317, 3203168211198807973)]
    assert keys.keys_at(np.full(2, 1234567, np.uint64), np.array([1, 2])).tolist() == wanted


def three_steps():
    """An episode whose every byte is written down here."""
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
    """The same with observations so large that an item takes its rows from several chunks."""
    return {**three_steps(), "observation": np.full((3, 9 << 20), 7, np.uint8)}


#: An episode, options, keys of the items, keys of the chunks.
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


@pytest.mark.parametrize(("steps", "options", "of_items", "of_chunks"), GOLDEN)
def test_keys_are_the_same_in_every_version(steps, options, of_items, of_chunks):
    """Pinned: with other keys, a run that is continued after an upgrade would store everything twice."""
    (item_keys,), chunk_keys = encoded([steps()], **options)
    assert (item_keys.tolist(), chunk_keys.tolist()) == (of_items, of_chunks)


def test_a_seed_is_the_one_worked_out_by_the_definition():
    """sha256 over the parts as Python writes them (bytes as they are), each after its length in 8 bytes."""
    parts = [b"'item replay'", b"\x00\x01", b"3", b"0", b"'x'"]
    text = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    wanted = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    assert keys.seed("item replay", b"\x00\x01", 3, 0, "x") == wanted == 17026198847840861634


def test_a_digest_is_the_one_worked_out_by_the_definition():
    """XXH3 over path, dtype, shape and bytes of each column, whether single rows, how many, begins and lengths."""
    text = b"('x',)<f4(4,)" + struct.pack("<4f", 0, 1, 2, 3) + b"False2" + struct.pack("<4q", 0, 1, 2, 2)
    got = keys.content_digest(items({"x": np.arange(4, dtype=np.float32)}))
    assert got == xxhash.xxh3_128(text).digest() == bytes.fromhex("53caa36a6750ed40d6033c9ac708464d")


# --- others


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
def test_another_content_dtype_shape_or_name_gives_other_keys(change):
    (one,), chunks = encoded([episode(30, terminal=True)])
    changed = episode(30, terminal=True)
    change(changed)
    (two,), other_chunks = encoded([changed])
    assert not np.isin(two, one).any() and not np.isin(other_chunks, chunks).any()


def test_the_same_episode_twice_in_a_data_set_has_other_keys():
    (of,), chunks = encoded([episode(9, terminal=True)] * 3)
    keys.require_different([of])
    keys.require_different([chunks])


@pytest.mark.parametrize(
    "adder", [TrajectoryWindows(3), TrajectoryWindows(2, 2), TrajectoryWindows(2, padding="tile"), TrajectoryEpisodes()]
)
def test_other_windows_have_other_keys(adder):
    (one,), _ = encoded(two_episodes())
    (two,), _ = encoded(two_episodes(), adder)
    assert not np.isin(two, one).any()


def test_another_table_seed_or_layout_gives_other_keys():
    every, every_chunk = encoded(two_episodes(), tables=("replay", "replay2", "Replay", "表"))
    for options in ({"key_seed": 1}, {"key_seed": -1}, {"packed": True}):
        more, chunks = encoded(two_episodes(), **options)
        every, every_chunk = every + more, np.append(every_chunk, chunks)
    keys.require_different(every)
    keys.require_different([every_chunk])


def test_an_items_digest_tells_columns_from_one_another():
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


def test_a_digest_is_that_of_the_content_however_it_lies_in_memory():
    wide = np.arange(24, dtype=np.float32).reshape(6, 4)
    assert keys.content_digest(items({"x": wide[:, ::2]})) == keys.content_digest(items({"x": wide[:, ::2].copy()}))


def test_seeds_keep_their_parts_apart():
    variants = [("ab", "c"), ("a", "bc"), ("abc",), (b"ab", "c"), ("ab", "c", ""), (1, 23), (12, 3), ("12", "3")]
    assert len({keys.seed(*parts) for parts in variants}) == len(variants)


# --- the range, and collisions


@given(st.lists(st.tuples(st.integers(0, MASK), st.integers(0, 10**9)), min_size=1))
def test_keys_are_in_their_range(drawn):
    seeds, places = zip(*drawn, strict=True)
    got = keys.keys_at(np.array(seeds, np.uint64), np.array(places))
    assert got.dtype == np.uint64 and (got >= keys.LOWEST).all() and (got < keys.HIGHEST).all()


def test_a_million_items_of_each_of_three_tables_have_keys_of_their_own():
    place = np.arange(1000, dtype=np.int32)
    digests = [keys.content_digest(items({"x": place + number})) for number in range(500)]
    seeds = [
        keys.seed("item " + table, digests[number // 2], number, 0)
        for table in ("one", "two", "three")
        for number in range(1000)
    ]
    many = keys.keys_at(np.repeat(np.array(seeds, np.uint64), 1000), np.tile(place, len(seeds)))
    assert len(many) == 3_000_000 and many.min() >= keys.LOWEST and many.max() < keys.HIGHEST
    keys.require_different([many])


def test_keys_that_coincide_are_found_across_arrays():
    keys.require_different([])
    keys.require_different([np.array([3, 1], np.uint64), np.array([2], np.uint64)])
    with pytest.raises(KeyCollisionError, match="1 keys coincide, 3 the first, .* with another key_seed"):
        keys.require_different([np.array([3, 1], np.uint64), np.array([2, 3], np.uint64)])


@pytest.fixture
def few_keys(monkeypatch):
    """As if there were only seven keys."""
    every = keys.keys_at
    monkeypatch.setattr(keys, "keys_at", lambda seeds, places: keys.LOWEST + every(seeds, places) % np.uint64(7))


def test_a_directory_whose_keys_coincide_is_not_there(few_keys, tmp_path):
    with pytest.raises(KeyCollisionError, match="convert again, into an empty table or a new directory, with another"):
        ingest([episode(20, terminal=True)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_server_whose_keys_coincide_is_an_error(few_keys):
    with ReplayServer([TableConfig("replay")]) as server:
        with pytest.raises(
            KeyCollisionError, match="convert again, into an empty table or a new directory, with another"
        ):
            ingest([episode(20, terminal=True)], server.address, timeout_secs=10)


def test_another_seed_helps_where_keys_coincide(monkeypatch, tmp_path):
    every = keys.seeds

    def seeds(kind, digests, episodes, layouts, rest):
        same = np.zeros(len(digests), np.uint64)
        return every(kind, digests, episodes, layouts, rest) if rest[-1] else same

    monkeypatch.setattr(keys, "seeds", seeds)
    with pytest.raises(KeyCollisionError):
        ingest(two_episodes(), tmp_path / "out")
    assert ingest(two_episodes(), tmp_path / "other", options=IngestOptions(key_seed=1)).items == 48
