"""A manager of several buffers: whose items a batch has, and that a refused batch changes nothing."""

import threading
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.errors import CheckpointError, SpecMismatchError
from rlds2reverb.replay.configs import BufferConfig
from rlds2reverb.replay.listeners import Listener
from rlds2reverb.replay.manager import BufferManager
from rlds2reverb.replay.monitors import table

NAMES = ("agent", "agent_1", "1")
UNIFORM = BufferConfig(kind="naive", max_size=1000)


def items(owner, numbers):
    """Items that say whose they are, and which: `twice` is 2 * `number`."""
    return [{"owner": np.int32(owner), "number": np.int64(n), "twice": np.int64(2 * n)} for n in numbers]


def filled(configs, counts, **options):
    """A manager whose buffers hold so many items each."""
    manager = BufferManager(configs, **options)
    for owner, (name, count) in enumerate(zip(configs, counts, strict=True)):
        if count:
            manager.push_data(items(owner, range(count)), name)
    return manager


@pytest.fixture(scope="module")
def three():
    """Three buffers with 40 items each, which tests only sample."""
    with filled(dict.fromkeys(NAMES, UNIFORM), (40, 40, 40), seed=3) as manager:
        yield manager


def owners(batch):
    return [int(item["owner"]) for item in batch]


def owner_of_id(item):
    return item["replay_unique_id"].rpartition("_")[0]


def test_buffers_are_drawn_by_the_ratio(three):
    ratio = {"agent": 1.0, "agent_1": 5.0, "1": 4.0}
    counts = Counter(owner for _ in range(50) for owner in owners(three.sample(40, ratio, cur_learner_iter=0)))
    expected = np.array([200, 1000, 800])
    chi_square = sum((counts[owner] - expected[owner]) ** 2 / expected[owner] for owner in range(3))
    assert chi_square < 13.8  # 0.1 % of true draws are beyond, with 2 degrees of freedom
    assert sum(counts.values()) == 2000


def test_elements_come_in_the_order_of_the_draws_and_say_whose_they_are(three):
    batch = three.sample(40, dict.fromkeys(NAMES, 1), cur_learner_iter=0)
    assert len(batch) == 40 and owners(batch) != sorted(owners(batch))
    for item in batch:
        assert owner_of_id(item) == NAMES[int(item["owner"])]
        assert item["twice"] == 2 * item["number"]
        assert item["replay_unique_id"].rpartition("_")[2] == str(item["number"])


def test_the_same_seed_draws_the_same_buffers():
    configs = dict.fromkeys(("a", "b"), UNIFORM)
    seen = []
    for seed in (5, 5, 6):
        with filled(configs, (20, 20), seed=seed, sample_ratio={"a": 1, "b": 1}) as manager:
            seen.append([owners(manager.sample(20, cur_learner_iter=0)) for _ in range(3)])
    assert seen[0] == seen[1] != seen[2]


def test_a_restored_manager_draws_what_it_would_have_drawn(tmp_path):
    configs = dict.fromkeys(("a", "b"), UNIFORM)
    ratio = {"a": 1, "b": 1}
    with filled(configs, (20, 20), seed=5, sample_ratio=ratio, checkpoint_root=tmp_path) as manager:
        manager.sample(20)
        manager.checkpoint()
        wanted = [[item["replay_unique_id"] for item in manager.sample(20)] for _ in range(3)]
    with BufferManager(configs, seed=9, sample_ratio=ratio, checkpoint_root=tmp_path) as manager:
        assert [[item["replay_unique_id"] for item in manager.sample(20)] for _ in range(3)] == wanted


def test_a_buffer_without_a_share_gives_nothing(three):
    assert owners(three.sample(40, {"agent": 0.0, "1": 0.3}, cur_learner_iter=0)) == [2] * 40
    assert three.sample(0, {"agent": 1.0}, cur_learner_iter=0) == []


def test_each_buffer_is_sampled_once_a_batch(three):
    batches = []

    class Sizes(Listener):
        def on_sample(self, use, staleness, priorities):
            batches.append(len(use))

    for name in NAMES:
        three[name].add_listener(Sizes())
    three.sample(40, dict.fromkeys(NAMES, 1), cur_learner_iter=0)
    assert len(batches) == 3 and sum(batches) == 40


def test_sizes_by_name_give_lists_by_name(three):
    batch = three.sample({"1": 3, "agent": 2, "agent_1": 0}, cur_learner_iter=0)
    assert {name: owners(part) for name, part in batch.items()} == {"1": [2] * 3, "agent": [0] * 2, "agent_1": []}
    assert owners(three.sample({"agent_1": 4}, cur_learner_iter=0)) == [1] * 4


def test_one_buffer_needs_no_ratio():
    with filled({"only": UNIFORM}, (5,)) as manager:
        assert owners(manager.sample(4, cur_learner_iter=0)) == [0] * 4


def test_a_refused_batch_changes_nothing_and_says_who_refused():
    once = BufferConfig(kind="naive", max_size=100, max_use=1)
    with filled({"rich": once, "poor": once, "empty": once}, (60, 2, 0), seed=1) as manager:
        for ratio, size, who in (({"rich": 1, "poor": 1}, 40, "poor"), ({"empty": 1, "rich": 3}, 40, "empty")):
            assert manager.sample(size, ratio, cur_learner_iter=0) is None
            assert f"buffer {who!r} has " in manager.refusal and "'rich'" not in manager.refusal
        assert manager.sample({"poor": 3, "empty": 1}, cur_learner_iter=0) is None
        assert "buffer 'poor' has " in manager.refusal and "; buffer 'empty' has " in manager.refusal
        assert [manager.count(name) for name in manager.names] == [60, 2, 0]
        assert not any(key.startswith("count/sampled") for key in manager.monitors["rich"].values())
        batch = manager.sample({"rich": 60, "poor": 2}, cur_learner_iter=0)
        assert manager.refusal == ""
        assert all(item["use"] == 1 for part in batch.values() for item in part)
        assert [manager.count(name) for name in manager.names] == [0, 0, 0]


def test_no_thread_gets_between_the_check_and_the_samples(three, monkeypatch):
    free = []

    def try_lock(name):
        taken = three[name].lock.acquire(blocking=False)
        free.append(taken)
        if taken:
            three[name].lock.release()

    sample = type(three["agent"])._sampled

    def watched(*arguments):
        for name in NAMES if not free else ():
            thread = threading.Thread(target=try_lock, args=(name,))
            thread.start()
            thread.join()
        return sample(*arguments)

    monkeypatch.setattr(type(three["agent"]), "_sampled", watched)
    three.sample({"agent_1": 1, "agent": 1, "1": 1}, cur_learner_iter=0)
    assert free == [False] * 3


def test_priorities_go_to_the_buffers_that_own_the_items():
    greedy = BufferConfig(max_size=100, alpha=1.0, eps=0.0)
    with filled(dict.fromkeys(NAMES, greedy), (4, 4, 4)) as manager:
        ids = [f"{name}_{number}" for number in range(4) for name in NAMES]
        chosen = {"agent_2", "agent_1_1", "1_3"}
        priorities = [1.0 if unique_id in chosen else 0.0 for unique_id in ids]
        assert manager.update({"replay_unique_id": ids, "priority": tf.constant(priorities)}) == 12
        assert manager.update({"replay_unique_id": ["agent_99", "agent_1_1"], "priority": [9.0, 9.0]}) == 1
        parts = manager.sample(dict.fromkeys(NAMES, 4), cur_learner_iter=0)
        batch = [item for part in parts.values() for item in part]
        assert {item["replay_unique_id"] for item in batch} == chosen
        assert {item["priority"] for item in batch if owner_of_id(item) == "agent_1"} == {9.0}
        assert manager.update({"replay_unique_id": [], "priority": []}) == 0
        assert manager.update({"replay_unique_id": ids}) == 0


@pytest.mark.parametrize(
    ("ids", "priorities", "told"),
    [
        (["a_0", "other_0"], [5.0, 5.0], "'other_0' is not an id of an item in 'a', 'b_1', which is NAME_NUMBER"),
        (["a_0", "b_1"], [5.0, 5.0], "'b_1' is not an id of an item"),
        (["a_0", "a"], [5.0, 5.0], "'a' is not an id of an item"),
        (["a_0", "a_-1"], [5.0, 5.0], "'a_-1' is not an id of an item"),
        (["a_0", "a_²"], [5.0, 5.0], "'a_²' is not an id of an item"),
        (["a_0", 7], [5.0, 5.0], "7 is not an id of an item|'7' is not an id of an item"),
        (["a_0", "b_1_0"], [5.0], "info has 2 ids and 1 priorities, expected as many of both"),
        (["a_0", "b_1_0"], [5.0, -1.0], r"the priority of b_1_0 is -1.0, expected a finite number in \[0, 1e\+12\]"),
        (
            ["a_0", "b_1_0"],
            [5.0, 1e12],
            r"the priority of b_1_0 with eps is 1000000000000.01, expected",
        ),  # eps is added to it
        (["a_0", "b_1_0"], ["x", "y"], "the priorities of an update are not numbers"),
        (["a_0", "b_1_0"], [5.0, np.nan], "the priority of b_1_0 is nan, expected a finite number"),
        (["a_0", "b_1_0"], [5.0, np.inf], "the priority of b_1_0 is inf, expected a finite number"),
        (["a_0", "b_1_0"], [5.0, 1e308], r"the priority of b_1_0 is 1e\+308, expected a finite number"),
    ],
)
def test_a_wrong_update_changes_nothing(ids, priorities, told):
    with filled({"a": BufferConfig(max_size=10), "b_1": BufferConfig(max_size=10)}, (1, 1)) as manager:
        with pytest.raises(ValueError, match=told):
            manager.update({"replay_unique_id": ids, "priority": priorities})
        with pytest.raises(ValueError, match="an update lacks 'replay_unique_id'; give the ids that sample gave"):
            manager.update({"priority": [5.0]})
        (item,) = manager.sample({"a": 1}, cur_learner_iter=0)
        assert item["priority"] == 1.0 and manager["a"].highest_priority == 1.0


def test_one_item_or_a_list_is_pushed():
    with BufferManager({"a": UNIFORM, "b": UNIFORM}) as manager:
        assert manager.push_data(items(0, [0])[0], "a") == ["a_0"]
        assert manager.push_data(items(0, [1, 2]), "a") == ["a_1", "a_2"]
        assert manager.push_data([], "b") == []
        assert (manager.count("a"), manager.count("b")) == (3, 0)
        wrong = [*items(0, [3]), {"owner": np.int32(0), "number": np.float64(3), "twice": np.int64(6)}]
        with pytest.raises(SpecMismatchError, match="number"):
            manager.push_data(wrong, "a")
        with pytest.raises(TypeError, match="data is a str, expected an item"):
            manager.push_data("item", "a")
        assert manager.count("a") == 3
        manager.clear()
        assert manager.count("a") == 0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda m: m.push_data({}, "other"), "there is no buffer 'other'; there is 'agent', 'agent_1', '1'"),
        (lambda m: m.count("other"), "there is no buffer 'other'"),
        (lambda m: m["other"], "there is no buffer 'other'"),
        (lambda m: m.sample(2, {"other": 1}, cur_learner_iter=0), "there is no buffer 'other'"),
        (lambda m: m.sample({"other": 1}, cur_learner_iter=0), "there is no buffer 'other'"),
        (lambda m: m.dataset(2, {"other": 1}), "there is no buffer 'other'"),
        (lambda m: m.sample(2, cur_learner_iter=0), "there are buffers 'agent', 'agent_1', '1'; give sample_ratio"),
        (lambda m: m.sample(2, {}, cur_learner_iter=0), "sample_ratio is {}, expected finite shares"),
        (lambda m: m.sample(2, {"1": 0.0}, cur_learner_iter=0), "sample_ratio is {'1': 0.0}, expected finite shares"),
        (lambda m: m.sample(2, {"1": -1, "agent": 2}, cur_learner_iter=0), "expected finite shares of at least 0"),
        (lambda m: m.sample(2, {"1": np.nan}, cur_learner_iter=0), "expected finite shares of at least 0"),
        (lambda m: m.sample(2, {"1": np.inf}, cur_learner_iter=0), "expected finite shares of at least 0"),
        (lambda m: m.sample({"1": 1}, {"1": 1}, cur_learner_iter=0), "batch_size says how many of each buffer"),
        (
            lambda m: m.sample(-2, {"1": 1}, cur_learner_iter=0),
            "size is -2, expected an integer of at least 0",
        ),
        (
            lambda m: m.sample(1001, {"1": 1}, cur_learner_iter=0),
            "a sample of 1001 needs 1001 elements and buffer '1' holds 1000 at most",
        ),
        (lambda m: m.sample({"1": 1001}, cur_learner_iter=0), "a sample of 1001 needs 1001 elements"),
        (lambda m: m.dataset(0, {"1": 1}), "batch_size is 0, expected at least 1"),
        (lambda m: m.dataset(9, {"1": 1, "agent": 20}), "a share of 0.047619 gives buffer '1' none of 9 items"),
        (lambda m: m.sample_batch(-2, {"1": 1}), "size is -2, expected an integer of at least 0"),
        (
            lambda m: m.load_state_dict({"1": {}}),
            "the state is of buffers '1'; the manager has 'agent', 'agent_1', '1'",
        ),
        (lambda m: m.checkpoint(), "the manager has no checkpoint_root; make it with one"),
    ],
)
def test_what_cannot_be_is_refused(three, call, told):
    with pytest.raises(ValueError, match=told):
        call(three)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden"])
def test_a_name_that_cannot_be_a_directory_is_refused(name):
    with pytest.raises(ValueError, match=f"a buffer's name is {name!r}, expected one that can be a directory's"):
        BufferManager({name: UNIFORM})


def test_a_manager_of_nothing_is_refused():
    with pytest.raises(ValueError, match="a manager needs at least one buffer, got none"):
        BufferManager({})
    with pytest.raises(ValueError, match="there is no buffer 'b'; there is 'a'"):
        BufferManager({"a": UNIFORM}, sample_ratio={"b": 1})


def test_huge_and_tiny_shares_are_shares(three):
    batch = three.sample(20, {"agent": 1e308, "agent_1": 1e308, "1": 1e-308}, cur_learner_iter=0)
    assert set(owners(batch)) == {0, 1}


def test_exact_counts_are_shared_out_by_largest_remainders(three):
    for size, ratio, counts in (
        (10, {"agent": 0.29, "1": 0.71}, [3, 0, 7]),
        (7, dict.fromkeys(NAMES, 1), [3, 2, 2]),
        (5, {"agent": 1.0, "1": 0.0}, [5, 0, 0]),
    ):
        for batch in (three.sample(size, ratio, exact=True), three.sample_batch(size, ratio, exact=True)):
            found = owners(batch) if isinstance(batch, list) else batch.data["owner"].tolist()
            assert found == sorted(found) and np.bincount(found, minlength=3).tolist() == counts


def test_columns_come_in_the_order_of_the_draws_and_say_whose_they_are(three):
    batch = three.sample_batch(60, dict.fromkeys(NAMES, 1))
    assert batch.data["owner"].tolist() == batch.info.buffer.tolist() != sorted(batch.info.buffer.tolist())
    assert batch.info.buffer.dtype == np.int32
    assert batch.data["number"].tolist() == batch.info.replay_unique_id.tolist()
    assert (batch.data["twice"] == 2 * batch.data["number"]).all() and (batch.info.IS == 1).all()
    assert three.sample_batch(0, {"agent": 1}).info.buffer.shape == (0,)


def test_the_info_of_a_batch_is_taken_as_it_is():
    greedy = BufferConfig(max_size=100, alpha=1.0, eps=0.0)
    with filled(dict.fromkeys(NAMES, greedy), (4, 4, 4), sample_ratio=dict.fromkeys(NAMES, 1), seed=0) as manager:
        batch = manager.sample_batch(4, exact=False)
        priorities = np.arange(2.0, 6.0)
        assert manager.update(batch.info, priority=priorities) == 4
        manager.push_data(items(0, range(4)), "agent")
        wanted = {}
        for owner, number, priority in zip(batch.info.buffer, batch.info.replay_unique_id, priorities, strict=True):
            wanted[NAMES[owner], number] = priority
        for name in NAMES:
            known = manager[name].sample_batch(4).info
            for number, priority in zip(known.replay_unique_id, known.priority, strict=True):
                assert priority == wanted.get((name, number), manager[name].highest_priority if number > 3 else 1.0)
        assert manager.update({**batch.info._asdict(), "priority": priorities}) == 4
        with pytest.raises(ValueError, match="the buffers of an update are .*, expected for each id a place in"):
            manager.update(batch.info._replace(buffer=np.array([0, 1, 2, 3])), priority=priorities)


def test_a_stream_has_fixed_shares_and_says_whose_each_item_is(three):
    batches = list(three.dataset(16, {"1": 1, "agent": 3}).take(5).as_numpy_iterator())
    for batch in batches:
        assert sorted(batch.data["owner"].tolist()) == [0] * 12 + [2] * 4
        assert batch.info.buffer.tolist() == batch.data["owner"].tolist() and batch.info.buffer.dtype == np.int32
        assert np.array_equal(batch.data["twice"], 2 * batch.data["number"])
        assert batch.info.IS.tolist() == [1.0] * 16
    assert three.update(batches[0].info, priority=np.ones(16)) == 16
    spec = three.dataset(16, {"1": 1}).element_spec
    assert spec.data["owner"] == tf.TensorSpec((16,), tf.int32) and tf.TensorSpec((16,), tf.float64) == spec.info.IS


def test_episodes_of_different_lengths_are_padded_to_one_length():
    config = BufferConfig(kind="episode", max_size=10, sample_min_limit_ratio=0)
    with BufferManager({"short": config, "long": config}) as manager:
        for name, length in (("short", 2), ("long", 5)):
            manager.push_data({"reward": np.arange(10, 10 + length, dtype=np.float32)}, name)
        batch = next(iter(manager.dataset(3, {"short": 2, "long": 1}).as_numpy_iterator()))
        assert manager.dataset(3, {"short": 2, "long": 1}).element_spec.data["reward"].shape.as_list() == [3, None]
    assert batch.data["reward"].tolist() == [[10, 11, 0, 0, 0]] * 2 + [[10, 11, 12, 13, 14]]
    assert batch.data["mask"].sum(1).tolist() == [2, 2, 5] and batch.data["mask"].shape == (3, 5)


def test_buffers_of_different_items_are_not_mixed_in_a_stream():
    with BufferManager({"a": UNIFORM, "b": UNIFORM}) as manager:
        manager.push_data({"x": np.float32(1)}, "a")
        manager.push_data({"x": np.float64(1)}, "b")
        told = r"an item of buffer 'a'\['x'\] is float32 \[\], but buffer 'b' expects float64 \[\]; mix buffers of like items"
        with pytest.raises(SpecMismatchError, match=told):
            manager.dataset(2, {"a": 1, "b": 1})
        with pytest.raises(SpecMismatchError, match=told):
            manager.sample_batch(2, {"a": 1, "b": 1}, exact=True)
        assert len(manager.sample(2, {"a": 1, "b": 1}, exact=True)) == 2  # dicts may differ


def test_threads_lose_nothing_and_tear_nothing():
    """Three threads push, two sample and update: every item is there once, and each is whole."""
    configs = {"agent_1": BufferConfig(max_size=10_000), "agent_2": BufferConfig(max_size=10_000)}
    failures, ids, batches = [], [], []
    with filled(configs, (40, 40), sample_ratio=dict.fromkeys(configs, 1), seed=0) as manager:

        def push(first):
            for number in range(first, first + 50, 5):
                for owner, name in enumerate(configs):
                    ids.extend(manager.push_data(items(owner, range(number, number + 5)), name))

        def learn():
            for step in range(15):
                batch = manager.sample(16, cur_learner_iter=step)
                batches.append(batch)
                info = {"replay_unique_id": [item["replay_unique_id"] for item in batch], "priority": np.ones(16)}
                assert manager.update(info) == 16

        def guarded(work, *arguments):
            try:
                work(*arguments)
            except BaseException as error:
                failures.append(error)

        works = [(push, 1000), (push, 2000), (push, 3000), (learn,), (learn,)]
        threads = [threading.Thread(target=guarded, args=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(set(ids)) == len(ids) == 300
        assert [manager.count(name) for name in configs] == [190, 190]
        assert all(manager.monitors[name].values()["count/pushed"] == 190 for name in configs)
        sampled = sum(manager.monitors[name].values()["count/sampled"] for name in configs)
        assert sampled == sum(len(batch) for batch in batches) == 2 * 15 * 16
    for item in (item for batch in batches for item in batch):
        assert item["twice"] == 2 * item["number"]
        assert owner_of_id(item) == list(configs)[int(item["owner"])]


def test_monitors_count_what_the_buffers_do():
    config = BufferConfig(max_size=4, max_staleness=10)
    with BufferManager({"a": config, "b": config}, sample_ratio={"a": 1}) as manager:
        manager.push_data([{**item, "collect_iter": 0} for item in items(0, range(6))], "a")
        assert len(manager.sample(2, cur_learner_iter=3)) == 2
        assert manager.sample(2, cur_learner_iter=10) is None
        manager.push_data(items(0, [6]), "a")
        manager.update({"replay_unique_id": ["a_5", "a_6"], "priority": [9.0, 3.0]})
        manager.clear()
        values = manager.monitors["a"].values()
        counts = {key.removeprefix("count/"): value for key, value in values.items() if key.startswith("count/")}
        gone = {"removed_full": 2, "removed_stale": 4, "removed_cleared": 1}
        assert counts == {"pushed": 7, "sampled": 2, "updated": 1} | gone
        assert values["sampled/staleness_mean"] == 3 and values["priority/max"] == 3.0 + config.eps
        rows = [line.split() for line in table(list(manager.monitors.values())).splitlines()]
        assert rows[0] == ["a", "b"] and ["count/removed_stale", "4", "-"] in rows


def test_a_manager_begins_again_from_its_checkpoints(tmp_path):
    configs = dict.fromkeys(("a", "b_1", "empty"), BufferConfig(max_size=10))
    with filled(configs, (3, 4, 0), checkpoint_root=tmp_path) as manager:
        manager.update({"replay_unique_id": ["a_1", "b_1_2"], "priority": [5.0, 7.0]})
        paths = manager.checkpoint()  # nothing was pushed to 'empty'
        assert sorted(paths) == ["a", "b_1"] and all(path.is_dir() for path in paths.values())
        manager.push_data(items(0, [3]), "a")
    with BufferManager(configs, checkpoint_root=tmp_path) as manager:
        assert [manager.count(name) for name in configs] == [3, 4, 0]
        assert manager["a"].highest_priority < manager["b_1"].highest_priority
        assert manager.push_data(items(0, [3]), "a") == ["a_3"]
    with pytest.raises(CheckpointError):
        BufferManager({"a": BufferConfig(max_size=11)}, checkpoint_root=tmp_path)


def test_the_state_goes_from_one_manager_to_another():
    configs = {"a": BufferConfig(max_size=10), "b": BufferConfig(max_size=10)}
    with filled(configs, (3, 4)) as first, BufferManager(configs) as second:
        first["b"].beta = 0.75
        second.load_state_dict(first.state_dict())
        assert second["b"].beta == 0.75 and [second.count(name) for name in configs] == [3, 4]


def test_a_state_that_one_refuses_changes_nothing():
    configs = {"a": BufferConfig(max_size=10), "b": BufferConfig(max_size=10)}
    with filled(configs, (3, 4)) as first, filled(configs, (1, 0)) as second:
        state = first.state_dict()
        for harm in (lambda own: {**own, "header": {**own["header"], "name": "c"}}, lambda own: {}):
            with pytest.raises(CheckpointError, match="buffer 'b' cannot take over its state: "):
                second.load_state_dict({**state, "b": harm(state["b"])})
            assert [second.count(name) for name in configs] == [1, 0]


def test_a_stream_waits_where_samples_are_refused_and_says_why_it_ends():
    config = BufferConfig(push_sample_rate_limit=(0.5, 1e6), sample_min_limit_ratio=0)
    with filled({"a": config}, (4,)) as manager:
        with pytest.raises(ValueError, match="buffer 'b' has no elements yet; push first, or give its spec"):
            BufferManager({"b": config}).dataset(4)
        stream = iter(manager["a"].dataset(4, prefetch=1, timeout_secs=0.2))
        assert [len(next(stream).info.IS) for _ in range(2)] == [4, 4]
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="waited 0.2 s for a batch: of buffer 'a' 4 were pushed"
        ):
            next(stream)
        stream = iter(manager.dataset(4, timeout_secs=60))
        pusher = threading.Timer(0.05, lambda: manager.push_data(items(0, range(2)), "a"))
        pusher.start()
        assert len(next(stream).info.IS) == 4
        pusher.join()
        manager.push_data(items(0, range(20)), "a")


def test_a_stream_asks_for_the_learners_iteration():
    config = BufferConfig(max_staleness=5, sample_min_limit_ratio=0)
    with BufferManager({"a": config}) as manager:
        manager.push_data([{"x": n, "collect_iter": n} for n in range(10)], "a")
        batch = next(iter(manager.dataset(32, cur_learner_iter=lambda: 9, prefetch=0)))
        assert (
            batch.data["x"].numpy().min() >= 5 and (batch.info.staleness.numpy() == 9 - batch.data["x"].numpy()).all()
        )


def test_a_closed_manager_can_be_closed_again():
    manager = BufferManager({"a": UNIFORM})
    manager.close()
    manager.close()


@pytest.mark.timeout(60)
def test_a_listener_may_push_to_another_buffer_while_others_sample():
    """What leaves one buffer goes to an archive; a sampler holds the locks of both."""
    configs = {name: BufferConfig(max_size=50) for name in ("archive", "new")}
    with BufferManager(configs, sample_ratio={"archive": 1, "new": 1}) as manager:

        class Archive(Listener):
            wants_data = True

            def on_remove(self, numbers, reason, data):
                manager["archive"].extend_columns(data)

        manager["new"].add_listener(Archive())
        for name in configs:
            manager[name].extend_columns({"x": np.arange(50)})
        ended = threading.Event()

        def sample():
            while not ended.is_set():
                manager.sample_batch(8)

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        for number in range(500):
            manager["new"].append({"x": number})
        ended.set()
        thread.join(20)
        assert not thread.is_alive() and manager["archive"].push_count == 550


def test_nothing_is_sampled_from_buffers_that_cannot_be_mixed():
    configs = {name: BufferConfig(max_use=1) for name in "ab"}
    with BufferManager(configs, sample_ratio={"a": 1, "b": 1}) as manager:
        manager["a"].extend_columns({"x": np.zeros(8)})
        manager["b"].extend_columns({"y": np.zeros(8)})
        with pytest.raises(SpecMismatchError):
            manager.sample_batch(8, exact=True)
        assert [(manager[name].count(), manager[name].sample_count) for name in "ab"] == [(8, 0), (8, 0)]


def test_the_info_of_several_buffers_is_not_for_one_of_them():
    with BufferManager(dict.fromkeys("ab", BufferConfig()), sample_ratio={"a": 1, "b": 1}) as manager:
        for name in "ab":
            manager[name].extend_columns({"x": np.zeros(8)})
        info = manager.sample_batch(8, exact=True).info
        with pytest.raises(
            ValueError, match="the update of buffer 'a' has ids of several buffers; give it to their man"
        ):
            manager["a"].update(info, priority=np.ones(8))
        batch = next(iter(manager.dataset(8)))
        assert manager.update(batch.info, priority=np.ones(8)) == 8  # of tensors
        assert manager["a"].update(manager["a"].sample_batch(4).info, priority=tf.ones(4)) == 4
