"""Tests of `InitialPriorities`: hand-computed values of each kind, priorities of items, and `priority=` of `ingest`."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from reference_impls import assert_equal_nests

from rlds2reverb.adders import ColumnAdder, InitialPriorities, NStep, ReturnToGo, StepEpisodes, StepWindows, compose
from rlds2reverb.datasets import load
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.episodes import Episode, from_transitions
from rlds2reverb.types.tables import Selector, TableConfig

PADDINGS = ("none", "end", "start")
TD = partial(InitialPriorities, "td", gamma=0.5, eps=0.25)


def slow_priority(priorities, counted, eta):
    """Returns eta times the maximum plus 1 - eta times the mean of the counted priorities."""
    selected = [float(priority) for priority, counts in zip(priorities, counted, strict=True) if counts]
    return eta * max(selected) + (1 - eta) * sum(selected) / len(selected)


def make_steps(terminated, value=(10, 20, 30, 40)):
    """Returns steps with rewards 1, 2, 3; with gamma 0.5 the TD errors are 1, -3, and -27 or, bootstrapped, -7."""
    steps = from_transitions(
        np.arange(10, 14, dtype=np.float32),
        np.arange(3),
        rewards=np.array([1, 2, 3], np.float32),
        terminated=terminated,
    )
    return steps if value is None else {**steps, "value": np.array(value, np.float32)}


def compute_column(adder, steps):
    items = adder(Episode(steps, 0))
    assert items.starts.tolist() == [0] and items.lengths.tolist() == [len(steps["is_first"])] and not items.squeeze
    assert items.columns["priority"].dtype == np.float32
    assert_equal_nests({name: items.columns[name] for name in steps}, steps)
    return items.columns["priority"].tolist()


def compute_priorities(adder, priorities, steps):
    episode = Episode(steps, 0)
    return priorities(episode, adder(episode))


# --- priorities of steps


def test_constant_priorities_require_no_values():
    assert compute_column(InitialPriorities(), make_steps(True, None)) == [1] * 4
    assert compute_column(InitialPriorities(constant=2.5), make_steps(False, None)) == [2.5] * 4


@pytest.mark.parametrize(
    ("lowest", "highest", "expected"),
    [(0, 12, 0.5), (2, 10, 0.5), (6, 7, 0.125), (9, 10, 0.125), (0, 6, 1), (-9, 3, 1)],
)
def test_return_is_scaled_to_the_range_and_clipped(lowest, highest, expected):
    adder = InitialPriorities("return", lowest=lowest, highest=highest, eps=0.125)
    steps = {**make_steps(True, None), "reward": np.array([1, 2, 3, 1e6], np.float32)}  # The last reward is ignored.
    assert compute_column(adder, steps) == [expected] * 4


@pytest.mark.parametrize(("terminated", "last"), [(True, 27), (False, 7)])
@pytest.mark.parametrize("kind", ["td", "max"])
def test_td_errors_match_hand_computed_values_at_both_ends(kind, terminated, last):
    adder = InitialPriorities(kind, gamma=0.5, eps=0.25)
    assert compute_column(adder, make_steps(terminated)) == [1.25, 3.25, last + 0.25, 0.25]
    by_function = InitialPriorities(kind, gamma=0.5, eps=0.25, value_fn=lambda observations: (observations - 9) * 10)
    assert compute_column(by_function, make_steps(terminated, None)) == [1.25, 3.25, last + 0.25, 0.25]


def test_single_step_has_priority_eps():
    steps = {name: column[-1:] for name, column in make_steps(False).items()} | {"is_first": np.array([True])}
    assert compute_column(TD(), steps) == [0.25]


# --- priorities of items


@pytest.mark.parametrize("eta", [0.25, *(pytest.param(eta, marks=pytest.mark.slow) for eta in (0, 0.9, 1))])
def test_item_priority_mixes_maximum_and_mean_of_real_steps(eta):
    """The last row and padding do not count."""
    of_steps, episode = [1.25, 3.25, 7.25, 0.25], Episode(make_steps(False), 0)
    pairs, triples = StepWindows(2), StepWindows(3, 2, "zero_pad")
    expected = {
        pairs: [slow_priority(of_steps[:2], [1, 1], eta), 7.25],
        triples: [slow_priority(of_steps[:3], [1, 1, 1], eta), 7.25],
    }
    for adder in (pairs, triples, *map(partial(StepEpisodes, 9), PADDINGS)):
        priorities = TD(eta=eta)
        got = priorities(episode, compose(priorities, adder)(episode))
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, expected.get(adder, [slow_priority(of_steps[:3], [1, 1, 1], eta)]), rtol=1e-6)


def test_max_is_the_highest_error_of_an_item():
    priorities = InitialPriorities("max", gamma=0.5, eps=0.25)
    got = compute_priorities(compose(priorities, StepWindows(2)), priorities, make_steps(False))
    assert got.tolist() == [3.25, 7.25]


def test_overlapping_items_have_separate_priorities():
    priorities = TD(eta=1)
    adder = compose(priorities, StepWindows(2, 1))
    assert compute_priorities(adder, priorities, make_steps(False)).tolist() == [3.25, 7.25, 7.25]


#: Priorities over two steps with gamma 0.5: |1 + 2/2 + 30/4 - 10|, |2 + 3/2 (+ 40/4) - 20|, |3 (+ 40/2) - 30|, + 0.25.
TWO_STEPS = {True: [0.75, 16.75, 27.25], False: [0.75, 6.75, 7.25]}


@pytest.mark.parametrize("terminated", [True, False])
def test_n_step_item_has_the_error_of_its_n_step_target(terminated):
    for options in ({}, {"discount_power": "m"}):
        adder = NStep(2, 0.5, **options)
        priorities = TD(gamma=0.9)  # This gamma is for steps; NStep has a different one.
        got = compute_priorities(compose(priorities, adder), priorities, make_steps(terminated))
        assert got.tolist() == TWO_STEPS[terminated]


def test_windows_mix_n_step_errors_of_rows_or_of_steps():
    """R2D2 uses n-step errors: either the rows span n steps, or the priorities have the learner's n."""
    of_rows = TWO_STEPS[False]
    for priorities, first_adders in ((TD(eta=0.9), (NStep(2, 0.5),)), (TD(eta=0.9, n=2), ())):
        for length, expected in ((3, [of_rows]), (2, [of_rows[:2], of_rows[2:]])):
            adder = compose(priorities, *first_adders, StepWindows(length, end="zero_pad"))
            got = compute_priorities(adder, priorities, make_steps(False))
            mixed = [slow_priority(part, [1] * len(part), 0.9) for part in expected]
            np.testing.assert_allclose(got[: len(mixed)], mixed, rtol=1e-6)


def critic(observations):
    return observations**2 / 7


def test_priorities_with_a_value_fn_do_not_change_the_items():
    """A priority equals what a learner would compute from the item, and is not a field of the item."""
    steps = {**make_steps(False, None), "reward": np.array([5, -2, 4, 0], np.float32)}
    priorities, adder = InitialPriorities("td", value_fn=critic, eps=0.5), NStep(2, 0.9)
    chain = compose(priorities, adder)
    items, plain = chain(Episode(steps, 0)), adder(Episode(steps, 0))
    assert list(items.columns) == list(plain.columns) and not any("priority" in name for name in items.columns)
    assert_equal_nests(items.columns, plain.columns)
    item = items.columns
    targets = item["reward"] + 0.9 * item["discount"] * critic(item["next_observation"])
    expected = abs(targets - critic(item["observation"])) + 0.5
    np.testing.assert_allclose(priorities(Episode(steps, 0), items), expected, rtol=1e-5)
    spec = load([steps]).step_spec
    assert chain.item_spec(spec) == adder.item_spec(spec)
    assert repr(chain) == repr(compose(priorities, adder)) and "0x" not in repr(chain)


@pytest.mark.parametrize("kind", ["constant", "return"])
def test_constant_and_return_priorities_do_not_change_the_items(kind):
    priorities = InitialPriorities(kind, **({"constant": 3} if kind == "constant" else {"highest": 12}))
    chain = compose(priorities, NStep(2, 0.5))
    items = chain(Episode(make_steps(True), 0))
    assert_equal_nests(items.columns, NStep(2, 0.5)(Episode(make_steps(True), 0)).columns)
    assert priorities(None, items).tolist() == [3.0 if kind == "constant" else 0.5] * 3


def test_priorities_do_not_depend_on_their_position_in_a_chain():
    episode, priorities = Episode(make_steps(False), 0), TD()
    chains = [
        compose(priorities, ReturnToGo(), StepWindows(2)),
        compose(ReturnToGo(), priorities, StepWindows(2)),
        compose(compose(priorities, ReturnToGo()), StepWindows(2)),
    ]
    for chain in chains:
        items = chain(episode)
        assert "return_to_go" in items.columns and "priority" not in items.columns
        np.testing.assert_allclose(priorities(episode, items), [0.9 * 3.25 + 0.1 * 2.25, 7.25])
    last = compose(ReturnToGo(), priorities)(episode)
    assert "priority" not in last.columns
    np.testing.assert_allclose(priorities(episode, last), [0.9 * 7.25 + 0.1 * 11.75 / 3])


def test_priorities_of_different_initial_priorities_raise():
    items = compose(TD(), NStep(2, 0.5))(Episode(make_steps(True), 0))
    with pytest.raises(ValueError, match="the items have priorities from .*eps=0.25.*, not from .*eps=0.5"):
        TD(eps=0.5)(Episode(make_steps(True), 0), items)
    with pytest.raises(ValueError, match="compose accepts at most one InitialPriorities, got 2"):
        compose(TD(), compose(TD(eps=0.5), NStep(2, 0.5)))


class KeepsReward(ColumnAdder):
    """An adder that keeps only the reward."""

    def row_spec(self, step_spec):
        return {"reward": step_spec["reward"]}

    def make_rows(self, columns):
        return {"reward": columns["reward"]}


def test_adder_that_drops_the_priorities_raises():
    with pytest.raises(ValueError, match="the rows of .*KeepsReward.* have no field 'priority'; adders after"):
        compose(TD(), KeepsReward())(Episode(make_steps(True), 0))


def test_item_of_only_a_last_step_has_the_priority_of_that_step():
    priorities = TD()
    got = compute_priorities(compose(priorities, StepWindows(1)), priorities, make_steps(True))
    assert got.tolist() == [1.25, 3.25, 27.25, 0.25]


def test_episode_without_items_has_no_priorities():
    priorities = TD()
    assert compute_priorities(compose(priorities, StepWindows(9)), priorities, make_steps(True)).shape == (0,)


def test_items_without_priorities_raise():
    message = "the items have no priorities; add the InitialPriorities to the adder with compose"
    for adder in (NStep(2, 0.5), StepWindows(2)):
        with pytest.raises(ValueError, match=message):
            compute_priorities(adder, TD(), make_steps(True))


@pytest.mark.slow
def test_ingest_stores_items_with_their_priorities():
    source = load([make_steps(True), make_steps(False)])
    priorities = TD()
    adder = compose(priorities, NStep(2, 0.5))
    fifo = Selector("fifo")
    config = TableConfig("items", fifo, fifo, max_times_sampled=1)
    with ReplayServer([config], adder.item_spec(source.step_spec)) as server:
        ingest(source, server.address, "items", adder=adder, priority=priorities)
        samples = list(server.client.sample("items", 6, emit_timesteps=False))
        with pytest.raises(ValueError, match="the items have no priorities; add"):
            ingest(source, server.address, "items", adder=NStep(2, 0.5), priority=priorities)
    assert [sample.info.priority for sample in samples] == [*TWO_STEPS[True], *TWO_STEPS[False]]
    assert not any("priority" in name for name in adder.item_spec(source.step_spec))


# --- invalid arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "rank"}, "kind must be one of 'constant', 'return', 'td', 'max', got 'rank'"),
        ({"constant": -1}, r"constant must be a number in \[0, 1e\+12\], got -1"),
        ({"constant": float("nan")}, r"constant must be a number in \[0, 1e\+12\], got nan"),
        ({"lowest": float("-inf")}, "lowest must be a number in .*, got -inf"),
        ({"highest": None}, "highest must be a number in .*, got None"),
        ({"lowest": 2, "highest": 2}, "highest must be above lowest, got highest=2 and lowest=2"),
        ({"gamma": 1.1}, r"gamma must be a number in \[0, 1\], got 1.1"),
        ({"n": 0}, "n must be an integer >= 1, got 0"),
        ({"eta": -0.1}, r"eta must be a number in \[0, 1\], got -0.1"),
        ({"eps": 0}, r"eps must be a number in \[1e-12, 1\], got 0"),
    ],
)
def test_out_of_range_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        InitialPriorities(**options)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (
            "td",
            {"value": None},
            r"InitialPriorities\('td'\) without a value_fn requires the field 'value' in every step",
        ),
        ("max", {"value": None}, r"InitialPriorities\('max'\) without a value_fn requires the field 'value'"),
        ("td", {"value": np.ones(4, int)}, r"requires one float per step, but step\['value'\] is"),
        (
            "return",
            {"reward": {"a": np.ones(4)}},
            r"InitialPriorities requires one number per step, but step\['reward'\] is",
        ),
        (
            "constant",
            {"priority": np.ones(4)},
            "steps must not have the field 'priority', which InitialPriorities adds",
        ),
    ],
)
def test_unsuitable_steps_raise_before_tracing(kind, change, message, monkeypatch):
    monkeypatch.setattr(InitialPriorities, "make_batch_rows", lambda *_: pytest.fail("traced"))
    steps = {name: column for name, column in {**make_steps(True), **change}.items() if column is not None}
    for episodes in (Episode(steps, 0), tf.data.Dataset.from_tensors(steps)):
        with pytest.raises(ValueError, match=message):
            InitialPriorities(kind)(episodes)
