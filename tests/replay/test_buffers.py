"""Tests of replay buffers: pushing and sampling, removals and threads."""

import threading
from typing import NamedTuple

import numpy as np
import pytest
from numbered_items import get_number, item, items

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.replay import (
    AdvancedReplayBuffer,
    BufferConfig,
    BufferMonitor,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
    ReplayBuffer,
    SequenceReplayBuffer,
)

# --- push and sample


def test_sampled_item_equals_pushed_item_bit_for_bit(make):
    buffer = make()
    pushed = item(3, collect_iter=5, priority=2.0)
    assert buffer.append(pushed) == "demo_0"
    (sampled,) = buffer.sample(1, 12)
    extra = {"replay_unique_id": "demo_0", "replay_buffer_idx": 0, "priority": 2.0, "use": 1}
    extra |= {"staleness": 7, "IS": 1.0, "collect_iter": 5}
    assert {key: sampled[key] for key in extra} == extra
    assert sampled.keys() == pushed.keys() | extra.keys()
    for got, expected in [
        (sampled["obs"], pushed["obs"]),
        (sampled["image"], pushed["image"]),
        (sampled["inner"]["action"], pushed["inner"]["action"]),
        (sampled["inner"]["done"], pushed["inner"]["done"]),
    ]:
        assert got.dtype == expected.dtype and got.shape == expected.shape and np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("kind", "buffer_class"),
    [
        ("naive", NaiveReplayBuffer),
        ("advanced", AdvancedReplayBuffer),
        ("episode", EpisodeReplayBuffer),
        ("sequence", SequenceReplayBuffer),
    ],
)
def test_buffer_of_each_kind_has_a_class_and_is_a_replay_buffer(kind, buffer_class):
    config = BufferConfig(kind=kind, length=2 if kind == "sequence" else None)
    for create in (buffer_class, ReplayBuffer):
        with create("demo", config) as buffer:
            buffer.append({"x": np.zeros(2)})
            assert len(buffer) == buffer.count() == 1


def test_sampled_items_can_be_pushed_again(make):
    buffer = make()
    buffer.append(item(1, collect_iter=4, priority=0.5))
    (sampled,) = buffer.sample(1, 6)
    assert buffer.append(sampled) == "demo_1"
    assert {(s["collect_iter"], s["priority"]) for s in buffer.sample(2, 6)} == {(4, 0.5)}


class Pair(NamedTuple):
    second: object
    first: object


def test_nested_items_keep_their_structure(make):
    buffer = make()
    nest = {"b": Pair(np.float64(1), [np.int8(2), (np.zeros((0, 3), np.float32),)]), "a": {"z": 3.5, "y": True}}
    buffer.append(nest)
    (sampled,) = buffer.sample(1, 0)
    assert isinstance(sampled["b"], Pair) and isinstance(sampled["b"].first, list)
    assert (sampled["b"].second, sampled["b"].first[0], sampled["a"]) == (1.0, 2, {"z": 3.5, "y": True})
    assert sampled["b"].first[1][0].shape == (0, 3)
    with pytest.raises(SpecMismatchError, match=r"missing item 0\['b'\]\['second'\], .*; unexpected item 0\['b'\]"):
        buffer.append(nest | {"b": 1.0})


def test_non_native_byte_order_is_converted(make):
    buffer = make(sample_min_limit_ratio=0)
    buffer.append({"x": np.arange(3, dtype=">f4")})
    buffer.append({"x": np.arange(3, dtype="<f4")})
    assert {tuple(s["x"].tolist()) for s in buffer.sample(20, 0)} == {(0.0, 1.0, 2.0)}


def test_ids_are_the_buffer_name_and_the_push_number(make):
    buffer = make(name="a_b_7", max_size=4)
    assert buffer.extend(items(0, 1, 2)) == ["a_b_7_0", "a_b_7_1", "a_b_7_2"]
    assert buffer.append(item(3)) == "a_b_7_3"
    assert all(s["replay_unique_id"] == f"a_b_7_{get_number(s)}" for s in buffer.sample(4, 0))
    assert buffer.update({"replay_unique_id": ["a_b_7_2"], "priority": [3.0]}) == 1


@pytest.mark.parametrize("shape", [(64, 64, 3), (3, 1024, 1024), pytest.param((5, 1 << 22), marks=pytest.mark.slow)])
def test_large_items_are_restored_bit_for_bit(make, shape):
    buffer = make(sample_min_limit_ratio=0)
    rng = np.random.default_rng(0)
    images = [rng.integers(256, size=shape, dtype=np.uint8), np.zeros(shape, np.uint8)]
    buffer.extend([{"image": image, "number": np.int64(n)} for n, image in enumerate(images)])
    for sampled in buffer.sample(4, 0):
        np.testing.assert_array_equal(sampled["image"], images[sampled["number"]])
        sampled["image"][0] = 1  # The arrays belong to the caller.


def test_empty_pushes_and_samples_do_nothing(make):
    buffer = make()
    assert buffer.extend([]) == [] and buffer.sample(0, 0) == [] and buffer.push_count == 0
    assert buffer.spec is None and buffer.extend_columns({"x": np.zeros((0, 3))}).tolist() == []


def test_explicit_spec_is_used_and_enforced(make):
    buffer = make(spec=item(0))
    assert len(buffer) == 0
    assert str(buffer.spec["inner"]["action"]) == "int32 []"
    assert buffer.sample(1, 0) is None
    with pytest.raises(
        SpecMismatchError, match=r"item 0\['obs'\] is float64 \[2\], but buffer 'demo' expects float32 \[2\]; cast"
    ):
        buffer.append(item(0) | {"obs": np.zeros(2)})
    other = make(spec=buffer.spec)
    assert other.spec == buffer.spec


def test_new_element_replaces_the_oldest_when_full(make):
    buffer = make(max_size=5)
    buffer.extend(items(*range(12)))
    assert len(buffer) == 5 and buffer.push_count == 12
    assert {get_number(s) for _ in range(10) for s in buffer.sample(5, 0)} == {7, 8, 9, 10, 11}
    buffer.append(item(12))
    assert {get_number(s) for _ in range(10) for s in buffer.sample(5, 0)} == {8, 9, 10, 11, 12}


def test_new_element_replaces_the_oldest_despite_free_slots(make):
    buffer = make(max_size=4, max_staleness=10)
    buffer.extend([item(n, collect_iter=0 if n in (1, 3) else 50) for n in range(4)])
    assert buffer.sample_check(1, 20) == (True, "") and len(buffer) == 2
    buffer.append(item(4, collect_iter=50))  # This replaces element 0 although there are free slots.
    assert len(buffer) == 2
    assert {get_number(s) for _ in range(10) for s in buffer.sample(2, 20)} == {2, 4}
    buffer.append(item(5, collect_iter=50))
    assert {get_number(s) for _ in range(10) for s in buffer.sample(3, 20)} == {2, 4, 5}


def test_use_counts_every_occurrence_of_an_element(make):
    buffer = make()
    buffer.append(item(0))
    assert [s["use"] for s in buffer.sample(1, 0)] == [1]
    unlimited = make(sample_min_limit_ratio=0)
    unlimited.append(item(0))
    assert [s["use"] for s in unlimited.sample(3, 0)] == [1, 2, 3]
    assert [s["use"] for s in unlimited.sample(2, 0)] == [4, 5]
    assert unlimited.sample_count == 5


def test_element_is_removed_after_its_last_use(make):
    buffer = make(max_use=2)
    buffer.extend(items(*range(10)))
    sampled = [get_number(s) for _ in range(4) for s in buffer.sample(5, 0) or []]
    assert max(np.bincount(sampled)) <= 2
    uses_left = sum(2 - sampled.count(n) for n in range(10))
    assert len(buffer) == sum(sampled.count(n) < 2 for n in range(10))
    assert uses_left == 20 - len(sampled)


def test_elements_are_sampled_exactly_max_use_times(make):
    buffer = make(max_use=2, sample_min_limit_ratio=0)
    buffer.extend(items(*range(4)))
    assert sorted(get_number(s) for s in buffer.sample(4, 0) + buffer.sample(4, 0)) == sorted([0, 1, 2, 3] * 2)
    assert len(buffer) == 0 and buffer.sample(1, 0) is None
    assert buffer.sample_batch(1).reason == "buffer 'demo' has 0 elements, but a sample of 1 requires 1; push more"


def test_stale_elements_are_removed_but_not_those_of_unknown_age(make):
    buffer = make(max_staleness=10)
    buffer.extend([item(0, collect_iter=0), item(1, collect_iter=1), item(2)])
    assert buffer.sample_check(3, 9).allowed
    assert not buffer.sample_check(3, 10).allowed and len(buffer) == 2
    assert {get_number(s): s["staleness"] for _ in range(9) for s in buffer.sample(2, 10)} == {1: 9, 2: -1}
    assert {get_number(s) for _ in range(9) for s in buffer.sample(1, 11)} == {2}


def test_staleness_is_unknown_without_a_learner_iteration(make):
    buffer = make(max_staleness=10)
    buffer.append(item(0, collect_iter=3))
    assert buffer.sample(1, -1)[0]["staleness"] == -1
    assert buffer.sample(1, 2)[0]["staleness"] == 0


# --- clear, close and threads


def test_clear_removes_all_elements_and_ids_continue(make):
    buffer = make()
    buffer.extend(items(0, 1, 2, priority=4.0))
    buffer.clear()
    assert len(buffer) == 0 and buffer.push_count == 3 and buffer.highest_priority == 1.0
    assert buffer.append(item(3)) == "demo_3"
    assert {get_number(s) for _ in range(5) for s in buffer.sample(1, 0)} == {3}


def test_closed_buffer_raises(make):
    with make() as buffer:
        buffer.append(item(0))
    buffer.close()
    for call in (lambda: buffer.append(item(0)), lambda: buffer.sample(1, 0), buffer.clear):
        with pytest.raises(ValueError, match="buffer 'demo' is closed; create a new one"):
            call()


def test_events_are_reported_to_the_monitor(make):
    buffer = make(max_size=2, max_use=2, max_staleness=5, priority_eps=0.5)
    buffer.monitor = BufferMonitor("demo")
    ids = buffer.extend([item(n, collect_iter=n) for n in range(3)])
    buffer.update({"replay_unique_id": ids, "priority": [1.0, 2.0, 3.0]})
    buffer.sample_check(1, 6)
    buffer.sample(1, 6)
    buffer.sample(1, 6)
    buffer.append(item(3, priority=9.0))
    buffer.clear()
    values = buffer.monitor.values()
    counts = {key.removeprefix("count/"): value for key, value in values.items() if key.startswith("count/")}
    assert counts == {
        "pushed": 4,
        "updated": 2,
        "sampled": 2,
        "removed_full": 1,
        "removed_stale": 1,
        "removed_used": 1,
        "removed_cleared": 1,
    }
    assert (values["sampled/use_max"], values["sampled/staleness_max"], values["sampled/priority_min"]) == (2, 4, 3.5)
    assert (values["priority/max"], values["priority/min"]) == (9.0, 1.0)


@pytest.mark.parametrize("turns", [40, pytest.param(5500, marks=[pytest.mark.slow, pytest.mark.timeout(280)])])
def test_threads_lose_no_elements_and_see_no_partial_ones(make, turns):
    buffer = make(max_size=200, max_staleness=2 * turns)
    buffer.extend(items(*range(10), collect_iter=0))
    errors, pushed, updated = [], [], []

    def make_thread(work):
        def run():
            try:
                for turn in range(turns):
                    work(turn)
            except Exception as error:
                errors.append(error)

        return threading.Thread(target=run)

    def push(turn):
        pushed.extend(buffer.extend(items(turn, turn + 1, turn + 2, collect_iter=turn)))

    def sample_and_update(turn):
        sampled = buffer.sample(8, turn)
        numbers = [get_number(s) for s in sampled]
        assert all(s["staleness"] >= 0 and 0 < s["IS"] <= 1 for s in sampled)
        ids = [s["replay_unique_id"] for s in sampled]
        updated.append(buffer.update({"replay_unique_id": ids, "priority": [float(n + 1) for n in numbers]}))

    threads = [make_thread(push) for _ in range(3)] + [make_thread(sample_and_update) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(int(i.removeprefix("demo_")) for i in pushed) == list(range(10, 10 + 9 * turns))
    assert buffer.push_count == 10 + 9 * turns and buffer.sample_count == 24 * turns and len(updated) == 3 * turns
    assert len(buffer) == 200
    newest = {f"demo_{n}" for n in range(buffer.push_count - 200, buffer.push_count)}
    assert {s["replay_unique_id"] for _ in range(5) for s in buffer.sample(200, turns)} <= newest
