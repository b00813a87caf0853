"""Tests of episode and sequence buffers, and of the configurations of all kinds."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.replay import BufferConfig, EpisodeReplayBuffer, SequenceReplayBuffer
from rlds2reverb.types.specs import ArraySpec


def episode(number, length, **extra):
    """Returns an episode whose step t has the value 100 n + t in all fields."""
    rows = np.arange(length) + 100 * number
    return {"obs": np.stack([rows, rows], 1).astype(np.float32), "inner": {"step": rows.astype(np.int64)}, **extra}


def get_rows(sampled):
    """Returns the values of a sampled item, after checking that all fields agree."""
    rows = sampled["inner"]["step"]
    assert sampled["obs"].dtype == np.float32 and rows.dtype == np.int64
    np.testing.assert_array_equal(sampled["obs"], np.stack([rows, rows], 1))
    return rows.tolist()


# --- episodes


def test_whole_episodes_of_any_length_are_sampled(make):
    buffer = make(EpisodeReplayBuffer, sample_min_limit_ratio=0)
    assert buffer.extend([episode(n, length) for n, length in enumerate((1, 3, 40))]) == ["demo_0", "demo_1", "demo_2"]
    assert str(buffer.spec["obs"]) == "float32 [?, 2]"
    values = {tuple(get_rows(s)) for s in buffer.sample(60, 0)}
    assert values == {(0,), (100, 101, 102), tuple(range(200, 240))}


def test_windows_begin_uniformly_in_an_episode(make):
    buffer = make(EpisodeReplayBuffer, window=3, sample_min_limit_ratio=0, seed=1)
    assert buffer.append(episode(0, 6)) == "demo_0"
    starts = [get_rows(s)[0] for s in buffer.sample(2000, 0)]
    assert {tuple(get_rows(s)) for s in buffer.sample(50, 0)} == {(a, a + 1, a + 2) for a in range(4)}
    counts = np.bincount(starts, minlength=4)
    assert ((counts - 500) ** 2 / 500).sum() < 30  # 3 degrees of freedom: one in a million
    other = make(EpisodeReplayBuffer, window=3, sample_min_limit_ratio=0, seed=1)
    other.append(episode(0, 6))
    assert [get_rows(s)[0] for s in other.sample(2000, 0)] == starts


def test_window_sampling_is_uniform_over_steps_or_over_episodes(make):
    lengths = (3, 12, 102)  # 1, 10 and 100 windows of 3
    for window_sampling, probabilities in (("steps", np.array([1, 10, 100]) / 111), ("episodes", np.full(3, 1 / 3))):
        buffer = make(EpisodeReplayBuffer, window=3, window_sampling=window_sampling, sample_min_limit_ratio=0, seed=2)
        buffer.extend([episode(n, length) for n, length in enumerate(lengths)])
        batch = buffer.sample_batch(4000)
        counts = np.bincount(batch.info.key.astype(int), minlength=3)
        chi_square = ((counts - 4000 * probabilities) ** 2 / (4000 * probabilities)).sum()
        assert chi_square < 28  # 2 degrees of freedom: one in a million
        assert (batch.info.weight == 1).all()  # All windows have the same priority.


def test_priorities_and_weights_apply_per_window(make):
    buffer = make(EpisodeReplayBuffer, window=2, alpha=1.0, beta=1.0, sample_min_limit_ratio=0, seed=3)
    # These have 1 window with priority 4, and 8 windows with priority 1.
    buffer.extend([episode(0, 2, priority=4.0), episode(1, 9, priority=1.0)])
    batch = buffer.sample_batch(3000)
    counts, probabilities = np.bincount(batch.info.key.astype(int)), np.array([4, 8]) / 12
    assert ((counts - 3000 * probabilities) ** 2 / (3000 * probabilities)).sum() < 24
    assert {(n, w) for n, w in zip(batch.info.key.tolist(), batch.info.weight, strict=True)} == {
        (0, 0.25),
        (1, 1.0),
    }


def test_episodes_are_kept_when_the_storage_grows(make):
    buffer = make(EpisodeReplayBuffer, max_size=7, sample_min_limit_ratio=0)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 1500, 60)
    for n, length in enumerate(lengths.tolist()):
        buffer.append(episode(n, length))
        for s in buffer.sample(3):
            number = get_rows(s)[0] // 100
            assert s["replay_unique_id"] == f"demo_{number}" and get_rows(s) == list(
                range(100 * number, 100 * number + lengths[number])
            )
    assert buffer.contents.ring.capacity < 3 * 7 * 1500


def test_episodes_shorter_than_the_window_are_not_stored(make):
    buffer = make(EpisodeReplayBuffer, window=3)
    assert buffer.append(episode(0, 2)) == ""
    assert buffer.extend([episode(1, 3), episode(2, 1), episode(3, 4)]) == ["demo_0", "", "demo_1"]
    assert len(buffer) == buffer.push_count == 2
    assert {get_rows(s)[0] // 100 for _ in range(20) for s in buffer.sample(2, 0)} == {1, 3}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"zzz": np.zeros(2)}, SpecMismatchError),
        (episode(0, 2) | {"priority": -1.0}, ValueError),
        (episode(0, 0), SpecMismatchError),
    ],
)
def test_short_episodes_are_validated_before_they_are_dropped(make, wrong, error):
    buffer = make(EpisodeReplayBuffer, window=3)
    buffer.append(episode(1, 3))
    with pytest.raises(error):
        buffer.extend([episode(2, 3), wrong])
    assert len(buffer) == 1


def test_short_episodes_are_padded_and_masked_with_pad(make):
    buffer = make(EpisodeReplayBuffer, window=4, short_episodes="pad", sample_min_limit_ratio=0)
    buffer.extend([episode(1, 2), episode(2, 4)])
    values = {tuple(s["inner"]["step"].tolist()): s["mask"].tolist() for s in buffer.sample(50, 0)}
    assert values == {(100, 101, 0, 0): [True, True, False, False], (200, 201, 202, 203): [True] * 4}
    batch = buffer.sample_batch(50)
    assert (batch.info.mask.sum(1) == np.where(batch.info.key == 0, 2, 4)).all()
    for config in ({"window": 4, "short_episodes": "pad"}, {}):
        with pytest.raises(
            ValueError, match="an episode cannot have a field 'mask' because padding adds one; rename the field"
        ):
            make(EpisodeReplayBuffer, **config).append(episode(0, 5, mask=np.ones(5)))


def test_invalid_episodes_raise(make):
    buffer = make(EpisodeReplayBuffer)
    with pytest.raises(
        SpecMismatchError, match=r"item\['reward'\] is float64 \[\], but buffer 'demo' expects a time axis; pass each"
    ):
        buffer.append({"reward": 1.0})
    buffer.append(episode(0, 3))
    uneven = episode(0, 3) | {"obs": np.zeros((2, 2), np.float32)}
    with pytest.raises(
        SpecMismatchError,
        match="the fields of item 1 must have the same number of steps, at least 1, for buffer 'demo', got 2, 3",
    ):
        buffer.extend([episode(0, 3), uneven])
    with pytest.raises(
        SpecMismatchError, match="the fields of item 0 must have the same number of steps, at least 1, .*, got 0"
    ):
        buffer.append(episode(0, 0))
    with pytest.raises(
        SpecMismatchError, match=r"item 0\['obs'\] is float32 \[2\], but buffer 'demo' expects float32 \[\?, 2\]"
    ):
        buffer.append(episode(0, 2) | {"obs": np.zeros(2, np.float32)})
    with pytest.raises(TypeError, match="extend expects several items, got one dict"):
        buffer.extend(episode(0, 3))
    assert len(buffer) == 1


def test_large_episode_is_sampled(make):
    buffer = make(EpisodeReplayBuffer, window=3)
    rows = np.arange(5, dtype=np.uint8)[:, None] + np.zeros(1 << 22, np.uint8)
    buffer.append({"image": rows})
    (sampled,) = buffer.sample(1, 0)
    start = int(sampled["image"][0, 0])
    np.testing.assert_array_equal(sampled["image"], rows[start : start + 3])


# --- sequences


def test_sequences_must_have_the_configured_length(make):
    buffer = make(SequenceReplayBuffer, length=3, sample_min_limit_ratio=0)
    buffer.extend([episode(n, 3) for n in range(40)])
    assert str(buffer.spec["obs"]) == "float32 [3, 2]"
    assert all(get_rows(s) == [100 * (get_rows(s)[0] // 100) + t for t in range(3)] for s in buffer.sample(100, 0))
    with pytest.raises(
        SpecMismatchError, match="the fields of item 0 must have 3 steps for buffer 'demo', got 4; cut or pad"
    ):
        buffer.append(episode(0, 4))


def test_spec_with_a_different_sequence_length_raises(tmp_path):
    config = BufferConfig(kind="sequence", length=3)
    message = (
        r"item\['inner'\]\['step'\] is int64 \[4\], but buffer 'demo' expects 3 steps; cut or pad the item, or set"
    )
    with pytest.raises(SpecMismatchError, match=message):
        SequenceReplayBuffer("demo", config, spec=episode(0, 4), checkpoint_root=tmp_path)
    with SequenceReplayBuffer("demo", config, spec=episode(0, 3), checkpoint_root=tmp_path) as buffer:
        with pytest.raises(
            SpecMismatchError, match=r"item\['step'\] is int64 \[\?\], but buffer 'demo' expects 3 steps"
        ):
            SequenceReplayBuffer("demo", config, spec={"step": ArraySpec((None,), np.dtype(np.int64))})
        assert buffer.append(episode(1, 3)) == "demo_0"
        buffer.checkpoint()
    with pytest.raises(SpecMismatchError, match=message):  # A restored buffer raises, too.
        SequenceReplayBuffer("demo", config, spec=episode(0, 4), checkpoint_root=tmp_path)
    with SequenceReplayBuffer("demo", config, spec=episode(0, 3), checkpoint_root=tmp_path) as again:
        assert str(again.spec["obs"]) == "float32 [3, 2]"


def test_episode_is_cut_into_sequences_by_period(make):
    buffer = make(SequenceReplayBuffer, length=3, sample_min_limit_ratio=0)
    assert buffer.append_episode(episode(1, 8, priority=2.0, collect_iter=4), period=2) == [
        "demo_0",
        "demo_1",
        "demo_2",
    ]
    sampled = buffer.sample(60, 5)
    assert {tuple(get_rows(s)) for s in sampled} == {(100, 101, 102), (102, 103, 104), (104, 105, 106)}
    assert {(s["priority"], s["staleness"]) for s in sampled} == {(2.0, 1)}
    assert buffer.append_episode(episode(1, 2)) == []
    assert len(buffer.append_episode(episode(2, 5))) == 3
    with pytest.raises(ValueError, match="period must be an integer >= 1, got 0"):
        buffer.append_episode(episode(1, 8), period=0)
    with pytest.raises(ValueError, match="requires a buffer of kind 'sequence', got 'episode'"):
        EpisodeReplayBuffer("demo").append_episode(episode(1, 8))
    with pytest.raises(
        SpecMismatchError,
        match=r"steps must have the leading axes \[N\] in all fields for buffer 'demo', got \[5\], \[6\]",
    ):
        buffer.append_episode(episode(1, 5) | {"inner": {"step": np.arange(6)}})


def test_steps_shared_by_sequences_are_stored_once(make):
    shared, apart = (make(SequenceReplayBuffer, length=20, sample_min_limit_ratio=0) for _ in range(2))
    whole = episode(1, 400)
    shared.append_episode(whole)
    cuts = [slice(t, t + 20) for t in range(381)]
    apart.extend([{"obs": whole["obs"][cut], "inner": {"step": whole["inner"]["step"][cut]}} for cut in cuts])
    assert shared.push_count == apart.push_count == 381
    assert all(len(get_rows(s)) == 20 and get_rows(s)[0] + 19 == get_rows(s)[-1] for s in shared.sample(200, 0))
    assert shared.contents.ring.num_written == 400 and apart.contents.ring.num_written == 381 * 20


# --- configurations


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "priority"}, "kind must be one of 'naive', 'advanced', 'episode', 'sequence', got 'priority'"),
        ({"short_episodes": "cut"}, "short_episodes must be one of 'drop', 'pad', got 'cut'"),
        ({"max_size": 0}, "max_size must be an integer from 1 to 100,000,000, got 0"),
        ({"max_size": 1.5}, "max_size must be an integer .*, got 1.5"),
        ({"max_size": True}, "max_size must be an integer .*, got True"),
        ({"anneal_step": -1}, "anneal_step must be an integer from 0 to .*, got -1"),
        ({"max_use": 0}, "max_use must be an integer from 1 to .*, got 0"),
        ({"max_staleness": 0}, "max_staleness must be an integer from 1 to .*, got 0"),
        ({"alpha": -0.1}, "alpha must be a number in \\[0, 20\\], got -0.1"),
        ({"alpha": math.nan}, "alpha must be a number in \\[0, 20\\], got nan"),
        ({"alpha": 21}, "alpha must be a number in \\[0, 20\\], got 21"),
        ({"beta": 1.1}, "beta must be a number in \\[0, 1\\], got 1.1"),
        ({"priority_eps": -1e-9}, "priority_eps must be a number in \\[0, 1e.*, got -1e-09"),
        ({"sample_min_limit_ratio": -1}, "sample_min_limit_ratio must be a number in \\[0, 10000\\], got -1"),
        ({"priority_decay": 1.0}, "priority_decay must be a number between 0 and 1, or None, got 1.0"),
        (
            {"push_sample_rate_limit": (2.0, 1.0)},
            r"push_sample_rate_limit must be \(minimum, maximum\) .*, got \(2.0, 1.0\)",
        ),
        ({"push_sample_rate_limit": (math.inf, math.inf)}, "0 <= minimum < maximum"),
        ({"push_sample_rate_limit": (0.0, 0.0)}, "0 <= minimum < maximum"),
        ({"push_sample_rate_limit": (1.0, 1.0)}, "equal limits would allow neither a push nor a sample"),
        (
            {"push_sample_rate_limit": (1e-7, 1.0)},
            "the minimum of push_sample_rate_limit must be a number in .1e.*, got 1e-07",
        ),
        ({"push_sample_rate_limit": (2e6, 3e6)}, "the minimum of push_sample_rate_limit must be .*, got 2000000.0"),
        ({"kind": "sequence"}, "kind 'sequence' requires length"),
        ({"length": 3}, "length cannot be set for kind 'advanced'; use it with kind 'sequence'"),
        ({"window": 3}, "window cannot be set for kind 'advanced'; use it with kind 'episode'"),
        ({"window_sampling": "rows"}, "window_sampling must be one of 'steps', 'episodes', got 'rows'"),
        ({"weight_normalization": "none"}, "weight_normalization must be one of 'buffer', 'batch', got 'none'"),
    ],
)
def test_invalid_configurations_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        BufferConfig(**wrong)


def test_configuration_survives_a_round_trip_through_json():
    config = BufferConfig(kind="episode", window=3, max_use=2, push_sample_rate_limit=(0.5, 2.0))
    assert BufferConfig(**asdict(config)) == config == BufferConfig(**json.loads(json.dumps(asdict(config))))
    assert hash(config) != hash(BufferConfig()) and BufferConfig(kind="naive").exponent is None


def test_episode_fields_can_be_lists(make):
    buffer = make(SequenceReplayBuffer, length=2)
    assert buffer.append_episode({"x": [1, 2, 3], "y": [[1.0], [2.0], [3.0]]}) == ["demo_0", "demo_1"]
    assert buffer.append_episode({"x": [1], "y": [[1.0]]}) == []
