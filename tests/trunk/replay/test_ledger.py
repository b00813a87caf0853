"""The ledger against a slow one of dicts, and drawing until the right elements came."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import TooManyDraws
from rlds2reverb.replay.draws import Draws, draw_until, joined
from rlds2reverb.replay.ledger import Ledger
from rlds2reverb.replay.refusals import rate_refusal

MAX_SIZE = 5


class SlowLedger:
    """The same, one element at a time."""

    def __init__(self):
        self.next_number, self.there = 0, {}

    def add(self, priority, collect_iter):
        self.there.pop(self.next_number - MAX_SIZE, None)
        self.there[self.next_number] = [priority, collect_iter, 0]
        self.next_number += 1


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.lists(st.tuples(st.sampled_from([0.0, 0.5, 3.0]), st.integers(-1, 9)), max_size=12)
        ),
        st.tuples(st.just("remove"), st.sets(st.integers(0, MAX_SIZE - 1))),
        st.tuples(st.just("use"), st.lists(st.integers(0, MAX_SIZE - 1), max_size=8)),
        st.tuples(st.just("set"), st.lists(st.tuples(st.integers(0, MAX_SIZE - 1), st.sampled_from([0.0, 2.0])))),
        st.tuples(st.just("restore"), st.none()),
    ),
    max_size=12,
)


@given(actions=ACTIONS)
def test_the_ledger_agrees_with_a_slow_one(actions):
    ledger, slow = Ledger(MAX_SIZE), SlowLedger()
    for action, values in actions:
        there = sorted(slow.there)
        if action == "add":
            before, room = list(there), len(values)
            displaced = ledger.displaced_by(room).tolist()
            numbers = ledger.add(
                np.array([p for p, _ in values], np.float64), np.array([c for _, c in values], np.int64)
            )
            assert numbers.tolist() == list(range(slow.next_number, slow.next_number + len(values)))
            for value in values:
                slow.add(*value)
            assert displaced == [n for n in before if n not in slow.there]
        elif action == "remove":
            gone = [there[n] for n in values if n < len(there)]
            ledger.remove(np.array(gone, np.int64))
            for number in gone:
                del slow.there[number]
        elif action == "use":
            numbers = [there[n] for n in values if n < len(there)]
            uses = []
            for number in numbers:
                slow.there[number][2] += 1
                uses.append(slow.there[number][2])
            assert ledger.use(np.array(numbers, np.int64)).tolist() == uses
        elif action == "set":
            chosen = [(there[n], p) for n, p in values if n < len(there)]
            ledger.set_priorities(np.array([n for n, _ in chosen], np.int64), np.array([p for _, p in chosen]))
            for number, priority in chosen:
                slow.there[number][0] = priority
        else:
            ledger = Ledger.from_state(MAX_SIZE, ledger.state())
        assert_same(ledger, slow)


def assert_same(ledger, slow):
    there = sorted(slow.there)
    numbers = np.array(there, np.int64)
    values = [slow.there[n] for n in there]
    assert ledger.numbers().tolist() == there and ledger.count == len(there)
    assert ledger.next_number == slow.next_number
    assert ledger.priorities_of(numbers).tolist() == [v[0] for v in values]
    assert ledger.collect_iters_of(numbers).tolist() == [v[1] for v in values]
    assert ledger.num_positive == sum(v[0] > 0 for v in values)
    assert ledger.has(np.arange(-3, 40)).tolist() == [n in slow.there for n in range(-3, 40)]
    assert ledger.stale(8, 3).tolist() == [n for n in there if slow.there[n][1] >= 0 and 8 - slow.there[n][1] >= 3]
    wanted = [-1 if v[1] < 0 else max(0, 4 - v[1]) for v in values]
    assert ledger.staleness_of(numbers, 4).tolist() == wanted
    assert ledger.used(np.repeat(numbers, 2), 2).tolist() == [n for n in there if slow.there[n][2] >= 2]
    assert ledger.uses_left(9, positive_only=False) == sum(9 - v[2] for v in values)
    assert ledger.uses_left(9, positive_only=True) == sum(9 - v[2] for v in values if v[0] > 0)


@pytest.mark.parametrize(
    "change",
    [{"numbers": [3, 3]}, {"numbers": [2, 9]}, {"numbers": [0, 3]}, {"priorities": [1.0]}, {"uses": [1, 2, 3]}],
)
def test_a_state_that_does_not_fit_is_refused(change):
    ledger = Ledger(3)
    ledger.add(np.ones(5), np.zeros(5, np.int64))
    ledger.remove(np.array([4]))
    state = {**ledger.state(), **{key: np.array(value) for key, value in change.items()}}
    with pytest.raises(
        ValueError, match="the state of 2 elements does not fit: their numbers have to rise from 2 to be"
    ):
        Ledger.from_state(3, state)


# --- draws


def fake_draw(rng, chances, log):
    """Draws numbers 0, 1, ... by their chances, each with its number as its only column."""

    def draw(count):
        log.append(count)
        numbers = rng.choice(len(chances), count, p=chances)
        values = [[np.array(n)] for n in numbers]
        return Draws(numbers, np.asarray(chances)[numbers], np.full(count, len(chances)), values)

    return draw


def test_all_elements_with_replacement_are_drawn_at_once():
    log = []
    draws = draw_until(fake_draw(np.random.default_rng(0), [0.5, 0.5], log), 100, wanted=None, share=1.0, replace=True)
    assert log == [100] and len(draws.values) == 100


def test_what_is_kept_keeps_its_own_values():
    log = []
    draw = fake_draw(np.random.default_rng(0), [0.1, 0.2, 0.3, 0.4], log)
    draws = draw_until(draw, 300, wanted=np.array([1, 2]), share=0.5, replace=True)
    assert set(draws.numbers.tolist()) == {1, 2} and len(draws.numbers) == 300
    assert [int(value[0]) for value in draws.values] == draws.numbers.tolist()
    np.testing.assert_allclose(draws.probabilities, draws.numbers / 10 + 0.1)
    assert sum(log) < 1200


def test_without_replacement_the_order_is_that_of_the_draws():
    rng = np.random.default_rng(0)
    firsts = [
        draw_until(fake_draw(rng, [0.1, 0.2, 0.7], []), 3, wanted=None, share=1.0, replace=False).numbers.tolist()
        for _ in range(2000)
    ]
    assert all(sorted(numbers) == [0, 1, 2] for numbers in firsts)
    chances = {(2, 1, 0): 0.7 * 2 / 3, (2, 0, 1): 0.7 / 3, (0, 1, 2): 0.1 * 2 / 9}
    for order, chance in chances.items():
        assert abs(firsts.count(list(order)) / 2000 - chance) < 5 * (chance * (1 - chance) / 2000) ** 0.5


def test_too_many_draws_are_given_up():
    with pytest.raises(TooManyDraws, match="10 elements were asked for of a kind that 1e-05 of the draws give"):
        draw_until(lambda count: None, 10, wanted=np.array([0]), share=1e-5, replace=True)
    rare = [1 - 1e-9, 1e-9]
    with pytest.raises(TooManyDraws, match="2 elements were asked for of a kind that .* more than 200,000 draws"):
        draw_until(fake_draw(np.random.default_rng(0), rare, []), 2, wanted=None, share=1.0, replace=False)


def test_weights_are_those_of_the_paper_over_the_largest():
    draws = Draws(np.arange(3), np.array([0.5, 0.25, 0.25]), np.array([4, 4, 4]), [[]] * 3)
    np.testing.assert_allclose(draws.weights(1.0), [0.5, 1.0, 1.0])
    np.testing.assert_allclose(draws.weights(0.5), [0.5**0.5, 1.0, 1.0])
    np.testing.assert_allclose(draws.weights(0.0), 1.0)
    both = joined([draws, draws.chosen(np.array([2, 0]))])
    assert both.numbers.tolist() == [0, 1, 2, 2, 0] and both.probabilities.tolist() == [0.5, 0.25, 0.25, 0.25, 0.5]


def test_a_rate_is_refused_where_it_would_fall_below_the_least():
    assert rate_refusal(30, 57, 3, 0.5) == ""
    assert rate_refusal(30, 57, 4, 0.5).startswith(
        "30 were pushed and 57 sampled; sampling 4 more would leave less than"
    )
    assert rate_refusal(0, 10**9, 1, 0.0) == ""
