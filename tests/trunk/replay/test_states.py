"""The state of a manager: taken over by all of its buffers, or by none."""

import errno

import pytest
from saved_buffers import CONFIG, content, filled, item

from rlds2reverb.errors import CheckpointError, StorageFull
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig, BufferManager

CONFIGS = {"a": CONFIG, "b": CONFIG, "c": BufferConfig(kind="naive", max_size=3)}


@pytest.fixture(scope="module")
def states():
    """Of a manager whose buffers hold something each."""
    with BufferManager(CONFIGS) as manager:
        for name in ("a", "b"):
            filled(manager[name])
        manager["c"].append(item(7))
        return manager.state_dict()


@pytest.fixture
def manager(tmp_path):
    """One that holds something else, with checkpoints, and nothing in 'c'."""
    with BufferManager(CONFIGS, checkpoint_root=tmp_path) as manager:
        manager["a"].extend([item(1), item(2)])
        manager["b"].append(item(3, priority=4.0))
        manager.checkpoint()
        yield manager


def contents(manager):
    return {name: content(manager[name]) for name in manager.names if manager.count(name)}


def test_a_state_is_taken_over_by_all(manager, states, tmp_path):
    manager.load_state_dict(states)
    assert [manager.count(name) for name in manager.names] == [6, 6, 1] and manager["b"].push_count == 8
    taken = contents(manager)
    manager.close()
    with BufferManager(CONFIGS, checkpoint_root=tmp_path) as again:
        assert contents(again) == taken


def without_a_number(state):
    return {**state, "ledger": {**state["ledger"], "numbers": state["ledger"]["numbers"][:-1]}}


def with_cut_items(state):
    items = state["files"]["items.tfrecord"][:-20]
    return {**state, "files": {**state["files"], "items.tfrecord": items}}


@pytest.mark.parametrize(
    ("name", "harm", "told"),
    [
        ("b", without_a_number, "buffer 'b' cannot take over its state: table 'b' of .* holds 6 elements, its state"),
        ("b", with_cut_items, "buffer 'b' cannot take over its state: "),
        ("c", lambda state: {**state, "name": "d"}, "buffer 'c' cannot take over its state: .* with name 'd', this"),
        ("c", lambda state: {}, "buffer 'c' cannot take over its state: the state lacks 'name'"),
    ],
)
def test_a_state_that_one_refuses_changes_nothing(manager, states, tmp_path, name, harm, told):
    before, addresses = contents(manager), [manager[name].address for name in manager.names]
    with pytest.raises(CheckpointError, match=told):
        manager.load_state_dict({**states, name: harm(states[name])})
    assert contents(manager) == before and [manager[name].address for name in manager.names] == addresses
    manager.close()
    with BufferManager(CONFIGS, checkpoint_root=tmp_path) as again:
        assert contents(again) == before


def test_a_state_of_another_configuration_changes_nothing(states):
    others = {**CONFIGS, "b": BufferConfig(max_size=7)}
    with BufferManager(others) as manager:
        manager["a"].append(item(1))
        with pytest.raises(CheckpointError, match="buffer 'b' cannot take over its state: .* max_size 6, this one has"):
            manager.load_state_dict(states)
        assert [manager.count(name) for name in others] == [1, 0, 0]


def test_where_one_fails_at_last_those_before_are_put_back(manager, states, tmp_path, monkeypatch):
    def full(state):
        raise StorageFull(errno.ENOSPC, "no space left")

    before = contents(manager)
    monkeypatch.setattr(manager["b"], "load_state_dict", full)
    with pytest.raises(StorageFull, match="no space left"):
        manager.load_state_dict(states)
    assert contents(manager) == before and manager["a"].append(item(9)) == "a_2"
    assert manager.count("c") == 0
    monkeypatch.undo()
    manager.load_state_dict(states)
    assert [manager.count(name) for name in manager.names] == [6, 6, 1]
    manager["c"].close()
    with pytest.raises(ValueError, match="buffer 'c' is closed; make a new one"):
        manager.load_state_dict(states)
    assert manager.count("a") == 6


def test_an_empty_buffer_is_put_back_to_nothing(states, monkeypatch):
    def full(state):
        raise StorageFull(errno.ENOSPC, "no space left")

    with BufferManager(CONFIGS) as manager:
        monkeypatch.setattr(manager["c"], "load_state_dict", full)
        with pytest.raises(StorageFull):
            manager.load_state_dict(states)
        assert [manager.count(name) for name in manager.names] == [0, 0, 0]
        assert manager["a"].append(item(5)) == "a_0"
        with AdvancedReplayBuffer("a", CONFIG) as other:
            other.load_state_dict(manager["a"].state_dict())
            assert other.count() == 1
