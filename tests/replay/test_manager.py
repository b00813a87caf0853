"""Tests of a manager of several buffers: mixed batches, refusals, updates, datasets and checkpoints."""

import threading
from collections import Counter
from concurrent import futures

import internals
import numpy as np
import pytest
import tensorflow as tf
import tree

from rlds2reverb.errors import CheckpointError, SpecMismatchError
from rlds2reverb.replay import BufferConfig, BufferManager, ReplayBuffer, SampleRefusal
from rlds2reverb.replay.monitors import table

NAMES = ("agent", "agent_1", "1")
UNIFORM = BufferConfig(kind="naive", max_size=1000)


def items(owner, numbers):
    """Returns items with their owner and number; `twice` is 2 * `number`."""
    return [{"owner": np.int32(owner), "number": np.int64(n), "twice": np.int64(2 * n)} for n in numbers]


def make_manager(configs, counts, **options):
    """Creates a manager whose buffers have `counts` items."""
    manager = BufferManager(configs, **options)
    for owner, (name, count) in enumerate(zip(configs, counts, strict=True)):
        if count:
            manager.push_data(items(owner, range(count)), name)
    return manager


@pytest.fixture(scope="module")
def three_buffers():
    """Provides a manager of three buffers with 40 items each, which tests only sample."""
    with make_manager(dict.fromkeys(NAMES, UNIFORM), (40, 40, 40), seed=3) as manager:
        yield manager


def get_owners(batch):
    return [int(item["owner"]) for item in batch]


def get_id_owner(item):
    return item["replay_unique_id"].rpartition("_")[0]


def test_buffers_are_selected_by_ratio():
    ratio = {"agent": 1.0, "agent_1": 5.0, "1": 4.0}
    with make_manager(dict.fromkeys(NAMES, UNIFORM), (40, 40, 40), seed=3) as manager:
        counts = Counter(
            owner for _ in range(50) for owner in get_owners(manager.sample(40, ratio, cur_learner_iter=0))
        )
    expected = np.array([200, 1000, 800])
    chi_square = sum((counts[owner] - expected[owner]) ** 2 / expected[owner] for owner in range(3))
    assert chi_square < 13.8  # 2 degrees of freedom: one in a thousand
    assert sum(counts.values()) == 2000


def test_items_are_in_the_sampled_order_and_name_their_buffer(three_buffers):
    batch = three_buffers.sample(40, dict.fromkeys(NAMES, 1), cur_learner_iter=0)
    assert len(batch) == 40 and get_owners(batch) != sorted(get_owners(batch))
    for item in batch:
        assert get_id_owner(item) == NAMES[int(item["owner"])]
        assert item["twice"] == 2 * item["number"]
        assert item["replay_unique_id"].rpartition("_")[2] == str(item["number"])


def test_equal_seeds_select_equal_buffers():
    configs = dict.fromkeys(("a", "b"), UNIFORM)
    results = []
    for seed in (5, 5, 6):
        with make_manager(configs, (20, 20), seed=seed, sample_ratio={"a": 1, "b": 1}) as manager:
            results.append([get_owners(manager.sample(20, cur_learner_iter=0)) for _ in range(3)])
    assert results[0] == results[1] != results[2]


def test_restored_manager_samples_identically(tmp_path):
    configs = dict.fromkeys(("a", "b"), UNIFORM)
    ratio = {"a": 1, "b": 1}
    with make_manager(configs, (20, 20), seed=5, sample_ratio=ratio, checkpoint_root=tmp_path) as manager:
        manager.sample(20)
        manager.checkpoint()
        expected = [[item["replay_unique_id"] for item in manager.sample(20)] for _ in range(3)]
    with BufferManager(configs, seed=9, sample_ratio=ratio, checkpoint_root=tmp_path) as manager:
        assert [[item["replay_unique_id"] for item in manager.sample(20)] for _ in range(3)] == expected


def test_buffer_without_a_share_is_not_sampled(three_buffers):
    assert get_owners(three_buffers.sample(40, {"agent": 0.0, "1": 0.3}, cur_learner_iter=0)) == [2] * 40
    assert three_buffers.sample(0, {"agent": 1.0}, cur_learner_iter=0) == []


def test_each_buffer_is_sampled_once_per_batch(three_buffers, monkeypatch):
    batches = []
    sample = getattr(ReplayBuffer, internals.SAMPLE)

    def sample_and_record(buffer, size, *arguments):
        batches.append(size)
        return sample(buffer, size, *arguments)

    monkeypatch.setattr(ReplayBuffer, internals.SAMPLE, sample_and_record)
    three_buffers.sample(40, dict.fromkeys(NAMES, 1), cur_learner_iter=0)
    assert len(batches) == 3 and sum(batches) == 40


def test_sizes_by_name_return_lists_by_name(three_buffers):
    batch = three_buffers.sample({"1": 3, "agent": 2, "agent_1": 0}, cur_learner_iter=0)
    assert {name: get_owners(part) for name, part in batch.items()} == {"1": [2] * 3, "agent": [0] * 2, "agent_1": []}
    assert get_owners(three_buffers.sample({"agent_1": 4}, cur_learner_iter=0)) == [1] * 4


def test_single_buffer_requires_no_ratio():
    with make_manager({"only": UNIFORM}, (5,)) as manager:
        assert get_owners(manager.sample(4, cur_learner_iter=0)) == [0] * 4


def test_refused_batch_changes_nothing_and_names_the_buffers():
    once = BufferConfig(kind="naive", max_size=100, max_use=1)
    with make_manager({"rich": once, "poor": once, "empty": once}, (60, 2, 0), seed=1) as manager:
        for ratio, name in (({"rich": 1, "poor": 1}, "poor"), ({"empty": 1, "rich": 3}, "empty")):
            assert manager.sample(40, ratio, cur_learner_iter=0) is None
            refusal = manager.sample_batch(40, ratio, cur_learner_iter=0)
            assert not refusal and isinstance(refusal, SampleRefusal)
            assert f"buffer {name!r} has " in refusal.reason and "'rich'" not in refusal.reason
        assert manager.sample({"poor": 3, "empty": 1}, cur_learner_iter=0) is None
        allowed, reason = manager.sample_check({"poor": 3, "empty": 1}, cur_learner_iter=0)
        assert not allowed and "buffer 'poor' has " in reason and "; buffer 'empty' has " in reason
        assert [manager.count(name) for name in manager.names] == [60, 2, 0]
        assert not any(key.startswith("count/sampled") for key in manager.monitors["rich"].values())
        batch = manager.sample({"rich": 60, "poor": 2}, cur_learner_iter=0)
        assert manager.sample_check({"rich": 0}) == (True, "")
        assert all(item["use"] == 1 for part in batch.values() for item in part)
        assert [manager.count(name) for name in manager.names] == [0, 0, 0]


def test_locks_are_held_from_the_check_to_the_sample(three_buffers, monkeypatch):
    acquired = []

    def try_lock(name):
        is_free = three_buffers[name].lock.acquire(blocking=False)
        acquired.append(is_free)
        if is_free:
            three_buffers[name].lock.release()

    sample = getattr(type(three_buffers["agent"]), internals.SAMPLE)

    def try_and_sample(*arguments):
        for name in NAMES if not acquired else ():
            thread = threading.Thread(target=try_lock, args=(name,))
            thread.start()
            thread.join()
        return sample(*arguments)

    monkeypatch.setattr(type(three_buffers["agent"]), internals.SAMPLE, try_and_sample)
    three_buffers.sample({"agent_1": 1, "agent": 1, "1": 1}, cur_learner_iter=0)
    assert acquired == [False] * 3


def test_update_reaches_the_buffers_of_the_items():
    greedy = BufferConfig(max_size=100, alpha=1.0, priority_eps=0.0)
    with make_manager(dict.fromkeys(NAMES, greedy), (4, 4, 4)) as manager:
        ids = [f"{name}_{number}" for number in range(4) for name in NAMES]
        chosen = {"agent_2", "agent_1_1", "1_3"}
        priorities = [1.0 if unique_id in chosen else 0.0 for unique_id in ids]
        assert manager.update({"replay_unique_id": ids, "priority": tf.constant(priorities)}) == 12
        assert manager.update({"replay_unique_id": ["agent_99", "agent_1_1"], "priority": [9.0, 9.0]}) == 1
        parts = manager.sample(dict.fromkeys(NAMES, 4), cur_learner_iter=0)
        batch = [item for part in parts.values() for item in part]
        assert {item["replay_unique_id"] for item in batch} == chosen
        assert {item["priority"] for item in batch if get_id_owner(item) == "agent_1"} == {9.0}
        assert manager.update({"replay_unique_id": [], "priority": []}) == 0
        assert manager.update({"replay_unique_id": ids}) == 0


@pytest.mark.parametrize(
    ("ids", "priorities", "message"),
    [
        (["a_0", "other_0"], [5.0, 5.0], "'other_0' is not an id of an item in 'a', 'b_1'; ids are NAME_NUMBER"),
        (["a_0", "b_1"], [5.0, 5.0], "'b_1' is not an id of an item"),
        (["a_0", "a"], [5.0, 5.0], "'a' is not an id of an item"),
        (["a_0", "a_-1"], [5.0, 5.0], "'a_-1' is not an id of an item"),
        (["a_0", "a_²"], [5.0, 5.0], "'a_²' is not an id of an item"),
        (["a_0", 7], [5.0, 5.0], "the id 7 does not name a buffer; pass the info of a batch of this manager"),
        (["a_0", "b_1_0"], [5.0], r"must have one priority per id, got 2 ids and priorities of shape \[1\]"),
        (["a_0", "b_1_0"], [5.0, -1.0], r"the priority of b_1_0 must be a finite number in \[0, 1e\+12\], got -1.0"),
        (
            ["a_0", "b_1_0"],
            [5.0, 1e12],
            r"the priority of b_1_0 with priority_eps must be .*, got 1000000000000.01",
        ),
        (["a_0", "b_1_0"], ["x", "y"], "the priorities of an update must be one number per id: expected numbers"),
        (["a_0", "b_1_0"], ["3", "4"], "the priorities of an update must be one number per id: expected numbers"),
        (["a_0", "b_1_0"], [5.0, np.nan], "the priority of b_1_0 must be a finite number .*, got nan"),
        (["a_0", "b_1_0"], [5.0, np.inf], "the priority of b_1_0 must be a finite number .*, got inf"),
        (["a_0", "b_1_0"], [5.0, 1e308], r"the priority of b_1_0 must be a finite number .*, got 1e\+308"),
    ],
)
def test_invalid_update_changes_nothing(ids, priorities, message):
    with make_manager({"a": BufferConfig(max_size=10), "b_1": BufferConfig(max_size=10)}, (1, 1)) as manager:
        with pytest.raises(ValueError, match=message):
            manager.update({"replay_unique_id": ids, "priority": priorities})
        with pytest.raises(
            ValueError, match="an update of a manager requires 'replay_unique_id'; pass the ids that sampling returned"
        ):
            manager.update({"priority": [5.0]})
        (item,) = manager.sample({"a": 1}, cur_learner_iter=0)
        assert item["priority"] == 1.0 and manager["a"].highest_priority == 1.0


def test_push_data_accepts_one_item_or_a_list():
    with BufferManager({"a": UNIFORM, "b": UNIFORM}) as manager:
        assert manager.push_data(items(0, [0])[0], "a") == ["a_0"]
        assert manager.push_data(items(0, [1, 2]), "a") == ["a_1", "a_2"]
        assert manager.push_data([], "b") == []
        assert (manager.count("a"), manager.count("b")) == (3, 0)
        wrong = [*items(0, [3]), {"owner": np.int32(0), "number": np.float64(3), "twice": np.int64(6)}]
        with pytest.raises(SpecMismatchError, match="number"):
            manager.push_data(wrong, "a")
        with pytest.raises(TypeError, match="data must be an item .*, got str"):
            manager.push_data("item", "a")
        assert manager.count("a") == 3
        manager.clear()
        assert manager.count("a") == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.push_data({}, "other"), "there is no buffer 'other'; the buffers are 'agent', 'agent_1', '1'"),
        (lambda m: m.count("other"), "there is no buffer 'other'"),
        (lambda m: m["other"], "there is no buffer 'other'"),
        (lambda m: m.sample(2, {"other": 1}, cur_learner_iter=0), "there is no buffer 'other'"),
        (lambda m: m.sample({"other": 1}, cur_learner_iter=0), "there is no buffer 'other'"),
        (lambda m: m.dataset(2, {"other": 1}), "there is no buffer 'other'"),
        (lambda m: m.sample(2, cur_learner_iter=0), "sample_ratio must be set for the buffers 'agent', 'agent_1', '1'"),
        (lambda m: m.sample(2, {}, cur_learner_iter=0), "sample_ratio must have finite numbers >= 0, .*, got {}"),
        (
            lambda m: m.sample(2, {"1": 0.0}, cur_learner_iter=0),
            "sample_ratio must have .*, at least one above 0, got {'1': 0.0}",
        ),
        (
            lambda m: m.sample(2, {"1": -1, "agent": 2}, cur_learner_iter=0),
            "sample_ratio must have finite numbers >= 0",
        ),
        (lambda m: m.sample(2, {"1": np.nan}, cur_learner_iter=0), "sample_ratio must have finite numbers >= 0"),
        (lambda m: m.sample(2, {"1": np.inf}, cur_learner_iter=0), "sample_ratio must have finite numbers >= 0"),
        (
            lambda m: m.sample({"1": 1}, {"1": 1}, cur_learner_iter=0),
            "sample_ratio cannot be set if batch_size has numbers by buffer",
        ),
        (
            lambda m: m.sample(-2, {"1": 1}, cur_learner_iter=0),
            "size must be an integer >= 0, got -2",
        ),
        (
            lambda m: m.sample(1001, {"1": 1}, cur_learner_iter=0),
            "a sample of 1001 requires 1001 elements .*, but buffer '1' has max_size 1000",
        ),
        (lambda m: m.sample({"1": 1001}, cur_learner_iter=0), "a sample of 1001 requires 1001 elements"),
        (lambda m: m.dataset(0, {"1": 1}), "batch_size must be an integer >= 1, got 0"),
        (
            lambda m: m.dataset(9, {"1": 1, "agent": 20}),
            "the weight of buffer '1', 0.047619, leaves it no item in a batch of 9",
        ),
        (lambda m: m.sample_batch(-2, {"1": 1}), "size must be an integer >= 0, got -2"),
        (
            lambda m: m.load_state_dict({"1": {}}),
            "the state must have the buffers 'agent', 'agent_1', '1', got '1'",
        ),
        (lambda m: m.checkpoint(), "the manager has no checkpoint_root; create it with one"),
    ],
)
def test_invalid_arguments_raise(three_buffers, call, message):
    with pytest.raises(ValueError, match=message):
        call(three_buffers)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden"])
def test_name_that_cannot_be_a_directory_raises(name):
    with pytest.raises(ValueError, match=f"the name of a buffer must be a possible directory name .*, got {name!r}"):
        BufferManager({name: UNIFORM})


def test_manager_without_buffers_or_with_unknown_ratios_raises():
    with pytest.raises(ValueError, match="a manager requires at least one buffer"):
        BufferManager({})
    with pytest.raises(ValueError, match="there is no buffer 'b'; the buffers are 'a'"):
        BufferManager({"a": UNIFORM}, sample_ratio={"b": 1})


def test_huge_and_tiny_shares_are_valid(three_buffers):
    batch = three_buffers.sample(40, {"agent": 1e308, "agent_1": 1e308, "1": 1e-308}, cur_learner_iter=0)
    assert set(get_owners(batch)) == {0, 1}


def test_exact_counts_use_largest_remainders(three_buffers):
    for size, ratio, counts in (
        (10, {"agent": 0.29, "1": 0.71}, [3, 0, 7]),
        (7, dict.fromkeys(NAMES, 1), [3, 2, 2]),
        (5, {"agent": 1.0, "1": 0.0}, [5, 0, 0]),
    ):
        for batch in (
            three_buffers.sample(size, ratio, exact=True),
            three_buffers.sample_batch(size, ratio, exact=True),
        ):
            numbers = get_owners(batch) if isinstance(batch, list) else batch.data["owner"].tolist()
            assert numbers == sorted(numbers) and np.bincount(numbers, minlength=3).tolist() == counts


def test_columns_are_in_the_sampled_order_and_name_their_buffer(three_buffers):
    batch = three_buffers.sample_batch(60, dict.fromkeys(NAMES, 1))
    assert (
        batch.data["owner"].tolist() == batch.info.dataset_index.tolist() != sorted(batch.info.dataset_index.tolist())
    )
    assert batch.info.dataset_index.dtype == np.int32
    assert batch.data["number"].tolist() == batch.info.key.tolist()
    assert (batch.data["twice"] == 2 * batch.data["number"]).all() and (batch.info.weight == 1).all()
    assert three_buffers.sample_batch(0, {"agent": 1}).info.dataset_index.shape == (0,)


def test_columns_of_two_buffers_are_in_the_sampled_order_unless_the_counts_are_exact(three_buffers):
    for ratio, exact, is_mixed in (({"agent": 1, "1": 1}, False, True), ({"agent": 1, "1": 1}, True, False),
                                   ({"1": 1}, False, False)):  # fmt: skip
        batch = three_buffers.sample_batch(20, ratio, exact=exact)
        owners = batch.info.dataset_index.tolist()
        assert batch.data["owner"].tolist() == owners and (owners != sorted(owners)) == is_mixed


def test_update_accepts_the_info_of_a_batch():
    greedy = BufferConfig(max_size=100, alpha=1.0, priority_eps=0.0)
    with make_manager(dict.fromkeys(NAMES, greedy), (4, 4, 4), sample_ratio=dict.fromkeys(NAMES, 1), seed=0) as manager:
        batch = manager.sample_batch(4, exact=False)
        priorities = np.arange(2.0, 6.0)
        assert manager.update(batch.info, priority=priorities) == 4
        manager.push_data(items(0, range(4)), "agent")
        expected = {}
        for owner, number, priority in zip(batch.info.dataset_index, batch.info.key, priorities, strict=True):
            expected[NAMES[owner], number] = priority
        for name in NAMES:
            info = manager[name].sample_batch(4).info
            for number, priority in zip(info.key, info.priority, strict=True):
                assert priority == expected.get((name, number), manager[name].highest_priority if number > 3 else 1.0)
        assert manager.update(batch.info._replace(priority=priorities)) == 4
        with pytest.raises(ValueError, match="dataset_index must be one index in .* per item, got"):
            manager.update(batch.info._replace(dataset_index=np.array([0, 1, 2, 3])), priority=priorities)


def test_dataset_has_exact_shares_and_names_the_buffers(three_buffers):
    batches = list(three_buffers.dataset(16, {"1": 1, "agent": 3}).take(5).as_numpy_iterator())
    for batch in batches:
        assert sorted(batch.data["owner"].tolist()) == [0] * 12 + [2] * 4
        assert (
            batch.info.dataset_index.tolist() == batch.data["owner"].tolist()
            and batch.info.dataset_index.dtype == np.int32
        )
        assert np.array_equal(batch.data["twice"], 2 * batch.data["number"])
        assert batch.info.weight.tolist() == [1.0] * 16
    assert three_buffers.update(batches[0].info, priority=np.ones(16)) == 16
    spec = three_buffers.dataset(16, {"1": 1}).element_spec
    assert spec.data["owner"] == tf.TensorSpec((16,), tf.int32) and tf.TensorSpec((16,), tf.float32) == spec.info.weight


def test_episodes_of_different_lengths_are_padded():
    config = BufferConfig(kind="episode", max_size=10, sample_min_limit_ratio=0)
    with BufferManager({"short": config, "long": config}) as manager:
        for name, length in (("short", 2), ("long", 5)):
            manager.push_data({"reward": np.arange(10, 10 + length, dtype=np.float32)}, name)
        batch = next(iter(manager.dataset(3, {"short": 2, "long": 1}).as_numpy_iterator()))
        assert manager.dataset(3, {"short": 2, "long": 1}).element_spec.data["reward"].shape.as_list() == [3, None]
    assert batch.data["reward"].tolist() == [[10, 11, 0, 0, 0]] * 2 + [[10, 11, 12, 13, 14]]
    assert batch.info.mask.sum(1).tolist() == [2, 2, 5] and batch.info.mask.shape == (3, 5)


def test_mixing_buffers_with_different_items_raises():
    with BufferManager({"a": UNIFORM, "b": UNIFORM}) as manager:
        manager.push_data({"x": np.float32(1)}, "a")
        manager.push_data({"x": np.float64(1)}, "b")
        message = r"an item of buffer 'a'\['x'\] is float32 \[\], but buffer 'b' expects float64 \[\]; mix buffers whose items have the same spec"
        with pytest.raises(SpecMismatchError, match=message):
            manager.dataset(2, {"a": 1, "b": 1})
        with pytest.raises(SpecMismatchError, match=message):
            manager.sample_batch(2, {"a": 1, "b": 1}, exact=True)
        assert len(manager.sample(2, {"a": 1, "b": 1}, exact=True)) == 2  # Dicts can have different fields.


def test_threads_lose_no_items_and_see_no_partial_ones():
    """Three threads push while two sample and update."""
    configs = {"agent_1": BufferConfig(max_size=10_000), "agent_2": BufferConfig(max_size=10_000)}
    failures, ids, batches = [], [], []
    with make_manager(configs, (40, 40), sample_ratio=dict.fromkeys(configs, 1), seed=0) as manager:

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

        def collect_failures(work, *arguments):
            try:
                work(*arguments)
            except BaseException as error:
                failures.append(error)

        works = [(push, 1000), (push, 2000), (push, 3000), (learn,), (learn,)]
        threads = [threading.Thread(target=collect_failures, args=work) for work in works]
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
        assert get_id_owner(item) == list(configs)[int(item["owner"])]


def test_monitors_count_the_events_of_the_buffers():
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
        removed = {"removed_full": 2, "removed_stale": 4, "removed_cleared": 1}
        assert counts == {"pushed": 7, "sampled": 2, "updated": 1} | removed
        assert values["sampled/staleness_mean"] == 3 and values["priority/max"] == 3.0 + config.priority_eps
        rows = [line.split() for line in table(list(manager.monitors.values())).splitlines()]
        assert rows[0] == ["a", "b"] and ["count/removed_stale", "4", "-"] in rows


def test_manager_resumes_from_its_checkpoints(tmp_path):
    configs = dict.fromkeys(("a", "b_1", "empty"), BufferConfig(max_size=10))
    with make_manager(configs, (3, 4, 0), checkpoint_root=tmp_path) as manager:
        manager.update({"replay_unique_id": ["a_1", "b_1_2"], "priority": [5.0, 7.0]})
        paths = manager.checkpoint()  # This skips 'empty', to which nothing was pushed.
        assert sorted(paths) == ["a", "b_1"] and all(path.is_dir() for path in paths.values())
        manager.push_data(items(0, [3]), "a")
    with BufferManager(configs, checkpoint_root=tmp_path) as manager:
        assert [manager.count(name) for name in configs] == [3, 4, 0]
        assert manager["a"].highest_priority < manager["b_1"].highest_priority
        assert manager.push_data(items(0, [3]), "a") == ["a_3"]
    with pytest.raises(CheckpointError):
        BufferManager({"a": BufferConfig(max_size=11)}, checkpoint_root=tmp_path)


def test_state_dict_transfers_a_manager():
    configs = {"a": BufferConfig(max_size=10), "b": BufferConfig(max_size=10)}
    with make_manager(configs, (3, 4)) as first, BufferManager(configs) as second:
        first["b"].beta = 0.75
        second.load_state_dict(first.state_dict())
        assert second["b"].beta == 0.75 and [second.count(name) for name in configs] == [3, 4]


def test_state_refused_by_one_buffer_changes_nothing():
    configs = {"a": BufferConfig(max_size=10), "b": BufferConfig(max_size=10)}
    with make_manager(configs, (3, 4)) as first, make_manager(configs, (1, 0)) as second:
        state = first.state_dict()
        for damage in (lambda state: {**state, "header": {**state["header"], "name": "c"}}, lambda state: {}):
            with pytest.raises(CheckpointError, match="buffer 'b' cannot load its state: "):
                second.load_state_dict({**state, "b": damage(state["b"])})
            assert [second.count(name) for name in configs] == [1, 0]


def test_dataset_retries_refused_samples_and_raises_the_reason():
    config = BufferConfig(push_sample_rate_limit=(0.5, 1e6), sample_min_limit_ratio=0)
    with make_manager({"a": config}, (4,)) as manager:
        with pytest.raises(ValueError, match="buffer 'b' has no elements yet; push first, or pass its spec"):
            BufferManager({"b": config}).dataset(4)
        stream = iter(manager["a"].dataset(4, prefetch=1, timeout_secs=0.2))
        assert [len(next(stream).info.weight) for _ in range(2)] == [4, 4]
        with pytest.raises(TimeoutError, match="waited 0.2 s for a batch: buffer 'a' has 4 elements pushed"):
            next(stream)
        stream = iter(manager.dataset(4, timeout_secs=60))
        pusher = threading.Timer(0.05, lambda: manager.push_data(items(0, range(2)), "a"))
        pusher.start()
        assert len(next(stream).info.weight) == 4
        pusher.join()
        manager.push_data(items(0, range(20)), "a")


def test_dataset_calls_the_function_for_the_learner_iteration():
    config = BufferConfig(max_staleness=5, sample_min_limit_ratio=0)
    with BufferManager({"a": config}) as manager:
        manager.push_data([{"x": n, "collect_iter": n} for n in range(10)], "a")
        batch = next(iter(manager.dataset(32, cur_learner_iter=lambda: 9, prefetch=0)))
        assert (
            batch.data["x"].numpy().min() >= 5 and (batch.info.staleness.numpy() == 9 - batch.data["x"].numpy()).all()
        )


def test_close_is_idempotent():
    manager = BufferManager({"a": UNIFORM})
    manager.close()
    manager.close()


def test_refused_mix_of_different_items_samples_nothing():
    configs = {name: BufferConfig(max_use=1) for name in "ab"}
    with BufferManager(configs, sample_ratio={"a": 1, "b": 1}) as manager:
        manager["a"].extend_columns({"x": np.zeros(8)})
        manager["b"].extend_columns({"y": np.zeros(8)})
        with pytest.raises(SpecMismatchError):
            manager.sample_batch(8, exact=True)
        assert [(manager[name].count(), manager[name].sample_count) for name in "ab"] == [(8, 0), (8, 0)]


def test_buffer_update_raises_for_a_batch_of_a_manager():
    with BufferManager(dict.fromkeys("ab", BufferConfig()), sample_ratio={"a": 1, "b": 1}) as manager:
        for name in "ab":
            manager[name].extend_columns({"x": np.zeros(8)})
        info = manager.sample_batch(8, exact=True).info
        with pytest.raises(
            ValueError, match="a batch of a manager cannot update buffer 'a'; pass its info to manager.update"
        ):
            manager["a"].update(info, priority=np.ones(8))
        batch = next(iter(manager.dataset(8)))
        assert manager.update(batch.info, priority=np.ones(8)) == 8  # The info consists of tensors.
        assert manager["a"].update(manager["a"].sample_batch(4).info, priority=tf.ones(4)) == 4


def test_manager_update_raises_for_a_batch_of_one_buffer():
    configs = {name: BufferConfig() for name in ("offline", "online")}
    with make_manager(configs, (8, 8)) as manager:
        info = manager["online"].sample_batch(4).info
        assert info.dataset_index == ()
        with pytest.raises(ValueError, match=r"does not name a buffer; .* call manager\[name\].update"):
            manager.update(info, priority=np.full(4, 9.0))
        assert [manager[name].highest_priority for name in configs] == [1.0, 1.0]
        batch = manager["online"].sample(4)
        ids = [item["replay_unique_id"] for item in batch]
        assert manager.update({"replay_unique_id": ids, "priority": np.full(4, 9.0)}) == 4
        assert [manager[name].highest_priority for name in configs] == [1.0, 9.0]


def test_refusals_of_threads_do_not_overwrite_each_other():
    with make_manager({"a": UNIFORM, "b": UNIFORM}, (1, 2)) as manager:
        wrong = []

        def sample(name, reason):
            for _ in range(300):
                if reason not in manager.sample_batch(9, {name: 1}).reason:
                    wrong.append(name)

        cases = [("a", "buffer 'a' has 1 elements"), ("b", "buffer 'b' has 2 elements")]
        threads = [threading.Thread(target=sample, args=case) for case in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_save_data_transfers_all_buffers_of_a_manager(tmp_path):
    configs = {"a": BufferConfig(max_size=10), "b": BufferConfig(max_size=10), "empty": BufferConfig(max_size=10)}
    with make_manager(configs, (3, 4, 0)) as first, make_manager(configs, (1, 0, 5)) as second:
        path = first.save_data(tmp_path / "data")
        assert path.parent == tmp_path / "data" and path.is_dir()
        second.load_data(tmp_path / "data")
        assert [second.count(name) for name in configs] == [3, 4, 0] and len(second) == 7
        assert second["b"].sample_batch(4).data["number"].max() <= 3
        with pytest.raises(CheckpointError, match="holds the buffers of a manager; load it by BufferManager.load_data"):
            second["a"].load_data(tmp_path / "data")
        first["a"].save_data(tmp_path / "one")
        with pytest.raises(CheckpointError, match="holds a single buffer; load it by ReplayBuffer.load_data"):
            second.load_data(tmp_path / "one")
        with pytest.raises(CheckpointError, match="has no checkpoint; pass the directory that was passed to save_data"):
            second.load_data(tmp_path / "missing")
        assert [second.count(name) for name in configs] == [3, 4, 0]


def test_update_sends_td_errors_to_the_buffer_of_each_item():
    configs = {"a": BufferConfig(priority_eps=0.5), "b": BufferConfig(priority_eps=0.25)}
    with make_manager(configs, (1, 1), sample_ratio={"a": 1, "b": 1}) as manager:
        manager.push_data(items(0, range(1, 4)), "a")
        manager.push_data(items(1, range(1, 4)), "b")
        info = manager.sample_batch(8, exact=True).info
        assert manager.update(info, np.where(info.dataset_index == 0, 3.0, -4.0)) == 8
        for name, priority in (("a", 3.5), ("b", 4.25)):
            assert set(manager[name].sample_batch(4).info.priority.tolist()) <= {1.0, priority}
        with pytest.raises(ValueError, match="td_errors and priority cannot both be set"):
            manager.update(info, np.ones(8), priority=np.ones(8))


def test_updates_from_another_thread_while_a_dataset_samples():
    """A learner updates priorities in a thread while its dataset prefetches."""
    configs = {"a": BufferConfig(max_size=64), "b": BufferConfig(max_size=64)}
    with make_manager(configs, (40, 40), sample_ratio={"a": 1, "b": 1}) as manager:
        with futures.ThreadPoolExecutor(1) as pool:
            pending = [
                pool.submit(manager.update, tree.map_structure(np.asarray, batch.info), np.full(16, 2.0))
                for batch in manager.dataset(16).take(40)
            ]
        assert [update.result() for update in pending] == [16] * 40
        state = manager.state_dict()
        assert set(np.concatenate([state[name]["arrays"]["priorities"] for name in "ab"]).tolist()) <= {1.0, 2.01}
