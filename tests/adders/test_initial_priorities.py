"""Initial priorities: each kind by hand, those of items, and as `priority=` of `ingest`."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from reference_impls import assert_equal_nests
from rlds2reverb.adders import ColumnAdder, InitialPriorities, NStep, ReturnToGo, StepEpisodes, StepWindows, compose

from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.episodes import Episode, from_transitions
from rlds2reverb.ingestion import ingest
from rlds2reverb.sources import load
from rlds2reverb.tables import Selector, TableConfig

PADDINGS = ("none", "end", "start")
TD = partial(InitialPriorities, "td", gamma=0.5, eps=0.25)


def slow_priority(priorities, counted, eta):
    """eta times the largest and 1 - eta times the mean of those that count."""
    chosen = [float(priority) for priority, real in zip(priorities, counted, strict=True) if real]
    return eta * max(chosen) + (1 - eta) * sum(chosen) / len(chosen)


def three(terminated, value=(10, 20, 30, 40)):
    """Rewards 1, 2, 3; TD errors with gamma 0.5: 1, -3, and -27 or, with the bootstrap, -7."""
    steps = from_transitions(
        np.arange(10, 14, dtype=np.float32),
        np.arange(3),
        rewards=np.array([1, 2, 3], np.float32),
        terminated=terminated,
    )
    return steps if value is None else {**steps, "value": np.array(value, np.float32)}


def column_of(adder, steps):
    items = adder(Episode(steps, 0))
    assert items.starts.tolist() == [0] and items.lengths.tolist() == [len(steps["is_first"])] and not items.squeeze
    assert items.columns["priority"].dtype == np.float32
    assert_equal_nests({name: items.columns[name] for name in steps}, steps)
    return items.columns["priority"].tolist()


def compute_priorities(adder, priorities, steps):
    episode = Episode(steps, 0)
    return priorities(episode, adder(episode))


def eagerly(adder, priorities, one):
    """The priorities of an episode's items, without tracing a graph for them."""
    tf.config.run_functions_eagerly(True)
    try:
        return priorities(one, compose(priorities, adder)(one))
    finally:
        tf.config.run_functions_eagerly(False)


# --- of steps


def test_constant_is_the_same_for_all_and_needs_no_values():
    assert column_of(InitialPriorities(), three(True, None)) == [1] * 4
    assert column_of(InitialPriorities(constant=2.5), three(False, None)) == [2.5] * 4


@pytest.mark.parametrize(
    ("lowest", "highest", "wanted"),
    [(0, 12, 0.5), (2, 10, 0.5), (6, 7, 0.125), (9, 10, 0.125), (0, 6, 1), (-9, 3, 1)],
)
def test_the_return_is_a_share_of_the_range_within_eps_and_1(lowest, highest, wanted):
    adder = InitialPriorities("return", lowest=lowest, highest=highest, eps=0.125)
    steps = {**three(True, None), "reward": np.array([1, 2, 3, 1e6], np.float32)}  # that of the last step means nothing
    assert column_of(adder, steps) == [wanted] * 4


@pytest.mark.parametrize(("terminated", "last"), [(True, 27), (False, 7)])
@pytest.mark.parametrize("kind", ["td", "max"])
def test_td_errors_by_hand_at_both_ends(kind, terminated, last):
    adder = InitialPriorities(kind, gamma=0.5, eps=0.25)
    assert column_of(adder, three(terminated)) == [1.25, 3.25, last + 0.25, 0.25]
    by_function = InitialPriorities(kind, gamma=0.5, eps=0.25, value_fn=lambda observations: (observations - 9) * 10)
    assert column_of(by_function, three(terminated, None)) == [1.25, 3.25, last + 0.25, 0.25]


def test_a_single_step_has_eps():
    steps = {name: column[-1:] for name, column in three(False).items()} | {"is_first": np.array([True])}
    assert column_of(TD(), steps) == [0.25]


# --- of items


@pytest.mark.parametrize("eta", [0, 0.25, *(pytest.param(eta, marks=pytest.mark.slow) for eta in (0.9, 1))])
def test_an_item_has_a_mixture_of_the_largest_and_the_mean_of_its_real_steps(eta):
    """Rows 0 and 1; 2 and the last, which does not count; and with length 3 zeros behind it, which do not either."""
    own, one = [1.25, 3.25, 7.25, 0.25], Episode(three(False), 0)
    pairs, triples = StepWindows(2), StepWindows(3, 2, "zero_pad")
    wanted = {
        pairs: [slow_priority(own[:2], [1, 1], eta), 7.25],
        triples: [slow_priority(own[:3], [1, 1, 1], eta), 7.25],
    }
    for adder in (pairs, triples, *map(partial(StepEpisodes, 9), PADDINGS)):
        got = eagerly(adder, TD(eta=eta), one)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, wanted.get(adder, [slow_priority(own[:3], [1, 1, 1], eta)]), rtol=1e-6)


def test_max_is_the_largest_whatever_eta():
    priorities = InitialPriorities("max", gamma=0.5, eps=0.25, eta=0)
    assert compute_priorities(compose(priorities, StepWindows(2)), priorities, three(False)).tolist() == [3.25, 7.25]


def test_overlapping_items_have_each_their_own():
    priorities = TD(eta=1)
    adder = compose(priorities, StepWindows(2, 1))
    assert compute_priorities(adder, priorities, three(False)).tolist() == [3.25, 7.25, 7.25]


#: Of two steps with gamma 0.5: |1 + 2/2 + 30/4 - 10|, |2 + 3/2 (+ 40/4) - 20|, |3 (+ 40/2) - 30|, each with 0.25.
TWO_STEPS = {True: [0.75, 16.75, 27.25], False: [0.75, 6.75, 7.25]}


@pytest.mark.parametrize("terminated", [True, False])
def test_an_item_of_n_steps_has_the_error_of_its_own_target(terminated):
    for options in ({}, {"discount_power": "m"}):
        adder = NStep(2, 0.5, **options)
        priorities = TD(gamma=0.9)  # of steps; NStep has its own
        got = compute_priorities(compose(priorities, adder), priorities, three(terminated))
        assert got.tolist() == TWO_STEPS[terminated]


def test_a_sequence_of_n_step_rows_or_of_steps_with_n_mixes_their_errors():
    """R2D2 takes n-step errors: either the rows are of n steps, or the priorities are told the learner's n."""
    own = TWO_STEPS[False]
    for priorities, before in ((TD(eta=0.9), (NStep(2, 0.5),)), (TD(eta=0.9, n=2), ())):
        for length, wanted in ((3, [own]), (2, [own[:2], own[2:]])):
            made = eagerly(compose(*before, StepWindows(length, end="zero_pad")), priorities, Episode(three(False), 0))
            mixed = [slow_priority(part, [1] * len(part), 0.9) for part in wanted]
            np.testing.assert_allclose(made[: len(mixed)], mixed, rtol=1e-6)


def critic(observations):
    return observations**2 / 7


def test_with_a_function_of_values_items_are_those_without_priorities():
    """The priority is what the learner would compute from the item itself; the item holds nothing of it."""
    steps = {**three(False, None), "reward": np.array([5, -2, 4, 0], np.float32)}
    priorities, adder = InitialPriorities("td", value_fn=critic, eps=0.5), NStep(2, 0.9)
    chain = compose(priorities, adder)
    items, plain = chain(Episode(steps, 0)), adder(Episode(steps, 0))
    assert list(items.columns) == list(plain.columns) and not any("priority" in name for name in items.columns)
    assert_equal_nests(items.columns, plain.columns)
    item = items.columns
    targets = item["reward"] + 0.9 * item["discount"] * critic(item["next_observation"])
    wanted = abs(targets - critic(item["observation"])) + 0.5
    np.testing.assert_allclose(priorities(Episode(steps, 0), items), wanted, rtol=1e-5)
    spec = load([steps]).step_spec
    assert chain.item_spec(spec) == adder.item_spec(spec)
    assert repr(chain) == repr(compose(priorities, adder)) and "0x" not in repr(chain)


@pytest.mark.parametrize("kind", ["constant", "return"])
def test_other_kinds_are_not_stored_either(kind):
    priorities = InitialPriorities(kind, constant=3, highest=12)
    chain = compose(priorities, NStep(2, 0.5))
    items = chain(Episode(three(True), 0))
    assert_equal_nests(items.columns, NStep(2, 0.5)(Episode(three(True), 0)).columns)
    assert priorities(None, items).tolist() == [3.0 if kind == "constant" else 0.5] * 3


def test_the_place_in_the_chain_and_chains_in_chains_make_no_difference():
    one, priorities = Episode(three(False), 0), TD()
    chains = [
        compose(priorities, ReturnToGo(), StepWindows(2)),
        compose(ReturnToGo(), priorities, StepWindows(2)),
        compose(compose(priorities, ReturnToGo()), StepWindows(2)),
    ]
    for chain in chains:
        items = chain(one)
        assert "return_to_go" in items.columns and "priority" not in items.columns
        np.testing.assert_allclose(priorities(one, items), [0.9 * 3.25 + 0.1 * 2.25, 7.25])
    last = compose(ReturnToGo(), priorities)(one)
    assert "priority" not in last.columns
    np.testing.assert_allclose(priorities(one, last), [0.9 * 7.25 + 0.1 * 11.75 / 3])


def test_other_priorities_than_those_of_the_items_are_refused():
    items = compose(TD(), NStep(2, 0.5))(Episode(three(True), 0))
    with pytest.raises(ValueError, match="the items have the priorities of .*eps=0.25.*, expected those of .*eps=0.5"):
        TD(eps=0.5)(Episode(three(True), 0), items)
    with pytest.raises(ValueError, match="compose got 2 InitialPriorities, expected at most one"):
        compose(TD(), compose(TD(eps=0.5), NStep(2, 0.5)))


class Forgets(ColumnAdder):
    """Keeps the reward alone."""

    def row_spec(self, step_spec):
        return {"reward": step_spec["reward"]}

    def rows(self, columns):
        return {"reward": columns["reward"]}


def test_an_adder_that_drops_the_priorities_is_refused():
    with pytest.raises(ValueError, match="the rows of .*Forgets.* have no 'priority'; every adder after"):
        compose(TD(), Forgets())(Episode(three(True), 0))


def test_an_item_of_nothing_but_last_steps_has_theirs():
    priorities = TD()
    assert compute_priorities(compose(priorities, StepWindows(1)), priorities, three(True)).tolist() == [
        1.25,
        3.25,
        27.25,
        0.25,
    ]


def test_no_items_have_no_priorities():
    priorities = TD()
    assert compute_priorities(compose(priorities, StepWindows(9)), priorities, three(True)).shape == (0,)


def test_items_without_the_column_are_refused():
    message = "the items have no priorities: put the InitialPriorities into the adder too, with compose"
    for adder in (NStep(2, 0.5), StepWindows(2)):
        with pytest.raises(ValueError, match=message):
            compute_priorities(adder, TD(), three(True))


def test_a_table_gets_the_priorities_of_its_items():
    source = load([three(True), three(False)])
    priorities = TD()
    adder = compose(priorities, NStep(2, 0.5))
    fifo = Selector("fifo")
    config = TableConfig("items", fifo, fifo, max_times_sampled=1)
    with ReplayServer([config], adder.item_spec(source.step_spec)) as server:
        ingest(source, server.address, "items", adder=adder, priority=priorities)
        samples = list(server.client.sample("items", 6, emit_timesteps=False))
        with pytest.raises(ValueError, match="the items have no priorities: put"):
            ingest(source, server.address, "items", adder=NStep(2, 0.5), priority=priorities)
    assert [sample.info.priority for sample in samples] == [*TWO_STEPS[True], *TWO_STEPS[False]]
    assert not any("priority" in name for name in adder.item_spec(source.step_spec))


# --- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "rank"}, "kind is 'rank', expected one of 'constant', 'return', 'td', 'max'"),
        ({"constant": -1}, r"constant must be a number in \[0, 1e\+12\], got -1"),
        ({"constant": float("nan")}, r"constant must be a number in \[0, 1e\+12\], got nan"),
        ({"lowest": float("-inf")}, "lowest is -inf, expected a number in"),
        ({"highest": None}, "highest is None, expected a number in"),
        ({"lowest": 2, "highest": 2}, "returns go from 2 to 2, expected the second above the first"),
        ({"gamma": 1.1}, r"gamma must be a number in \[0, 1\], got 1.1"),
        ({"n": 0}, "n must be an integer >= 1, got 0"),
        ({"eta": -0.1}, r"eta must be a number in \[0, 1\], got -0.1"),
        ({"eps": 0}, r"eps must be a number in \[1e-12, 1\], got 0"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        InitialPriorities(**options)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("td", {"value": None}, r"InitialPriorities\('td'\) without a value_fn needs the field 'value' in every step"),
        ("max", {"value": None}, r"InitialPriorities\('max'\) without a value_fn needs the field 'value'"),
        ("td", {"value": np.ones(4, int)}, "wants one float a step as the value"),
        ("return", {"reward": {"a": np.ones(4)}}, "InitialPriorities wants one number as the reward of a step"),
        (
            "constant",
            {"priority": np.ones(4)},
            "InitialPriorities adds a field 'priority', which the steps have already",
        ),
    ],
)
def test_steps_that_do_not_fit_are_refused_before_anything_is_traced(kind, change, message, monkeypatch):
    monkeypatch.setattr(InitialPriorities, "rows", lambda *_: pytest.fail("traced"))
    steps = {name: column for name, column in {**three(True), **change}.items() if column is not None}
    for episodes in (Episode(steps, 0), tf.data.Dataset.from_tensors(steps)):
        with pytest.raises(ValueError, match=message):
            InitialPriorities(kind)(episodes)
