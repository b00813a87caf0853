"""Tests of `StepWindows`: hand-computed windows for each `end`, a slow loop, masks, and `split_burn_in`."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from hypothesis import given, strategies as st
from properties import examples, mark_slow_except
from reference_impls import assert_equal_nests, episode, rlds_dataset

from rlds2reverb.adders import NStep, StepWindows, compose
from rlds2reverb.types.episodes import Episode

ENDS = ("write", "last", "zero_pad", "null_padding", "truncate", "drop", "continue")
WITHIN_EPISODE = ENDS[:-1]


def slow_windows(num_rows, length, period, end):
    """Returns the row numbers of each item, None for padding."""
    full = []
    for begin in range(num_rows):
        if begin % period == 0 and begin + length <= num_rows:
            full.append(list(range(begin, begin + length)))
    covered = full[-1][-1] + 1 if full else 0
    following = len(full) * period
    if covered == num_rows or end in ("drop", "continue"):
        return full
    if end in ("write", "last"):
        if num_rows >= length:
            return [*full, list(range(num_rows - length, num_rows))]
        return [[*range(num_rows), *[None] * (length - num_rows)]] if end == "last" else []
    if following >= num_rows:  # The next window would begin after the last row.
        return full
    rest = list(range(following, num_rows))
    return [*full, rest + ([] if end == "truncate" else [None] * (length - len(rest)))]


def make_steps(length, start=1, *, terminal=True):
    """Returns steps with observations start, start + 1, ... and rewards 100 higher."""
    steps = episode(length, terminal=terminal, start=start)
    return {**steps, "observation": steps["observation"][:, 0], "reward": steps["observation"][:, 0] + 100}


def make_items(adder, steps):
    items = adder(Episode(steps, 0))
    return [
        tree.map_structure(lambda column, a=begin, n=length: column[a : a + n], items.columns)
        for begin, length in zip(items.starts, items.lengths, strict=True)
    ]


def observations(items):
    """Returns the observations of each item; padding is 0."""
    return [item["observation"].astype(int).tolist() for item in items]


# --- hand-computed windows

SIX_ROWS = {
    "write": [[1, 2, 3], [3, 4, 5], [4, 5, 6]],
    "last": [[1, 2, 3], [3, 4, 5], [4, 5, 6]],
    "zero_pad": [[1, 2, 3], [3, 4, 5], [5, 6, 0]],
    "null_padding": [[1, 2, 3], [3, 4, 5], [5, 6, 0]],
    "truncate": [[1, 2, 3], [3, 4, 5], [5, 6]],
    "drop": [[1, 2, 3], [3, 4, 5]],
}
TWO_ROWS = {
    "write": [],
    "drop": [],
    "truncate": [[1, 2]],
    "last": [[1, 2, 0]],
    "zero_pad": [[1, 2, 0]],
    "null_padding": [[1, 2, 0]],
}


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("end", WITHIN_EPISODE)
def test_each_end_matches_hand_computed_windows(end, terminal):
    for num_rows, expected in (
        (6, SIX_ROWS[end]),
        (7, [[1, 2, 3], [3, 4, 5], [5, 6, 7]]),
        (3, [[1, 2, 3]]),
        (2, TWO_ROWS[end]),
    ):
        steps = make_steps(num_rows, terminal=terminal)
        items = make_items(StepWindows(3, 2, end), steps)
        assert observations(items) == expected
        for item in items:
            mask = item["mask"]
            assert mask.tolist() == [number != 0 for number in item["observation"]]
            rows = item["observation"][mask].astype(int) - 1
            assert_equal_nests({name: item[name][mask] for name in steps}, {name: steps[name][rows] for name in steps})


def test_action_taken_excludes_the_final_observation_and_padding():
    """Their actions are zeros that were never taken, so behavioural cloning must ignore them."""
    for end, expected in (("write", [[1, 1], [1, 0]]), ("zero_pad", [[1, 1], [1, 0]]), ("truncate", [[1, 1], [1, 0]])):
        for terminal in (True, False):
            items = make_items(StepWindows(2, end=end), make_steps(4, terminal=terminal))
            assert [item["action_taken"].tolist() for item in items] == [[bool(n) for n in row] for row in expected]
    for end in ("zero_pad", "null_padding", "last"):
        (item,) = make_items(StepWindows(4, end=end), make_steps(3))
        assert item["action_taken"].tolist() == [True, True, False, False]
        assert item["mask"].tolist() == [True, True, True, False]
        assert (item["is_last"] & item["mask"]).tolist() == [False, False, True, False]
    (rows,) = make_items(compose(NStep(2, 0.9), StepWindows(4, end="zero_pad")), make_steps(4))
    assert rows["action_taken"].tolist() == rows["mask"].tolist() == [True, True, True, False]


def test_period_above_the_length_raises():
    """Acme would create windows of only padding; here rows would be lost silently."""
    with pytest.raises(
        ValueError, match="period must be at most the length, 2, got 3: rows between two windows would be lost"
    ):
        StepWindows(2, 3)
    assert StepWindows(2, 2).period == 2


def test_windows_are_adjacent_without_a_period():
    assert observations(make_items(StepWindows(2), make_steps(4))) == [[1, 2], [3, 4]]
    assert observations(make_items(StepWindows(2, end="truncate"), make_steps(5))) == [[1, 2], [3, 4], [5]]


def test_padding_is_zero_except_flags_with_null_padding():
    for end, flag in (("zero_pad", False), ("null_padding", True), ("last", False)):
        (item,) = make_items(StepWindows(4, end=end), make_steps(2, terminal=False))
        assert item["is_last"].tolist() == [False, True, flag, flag]
        assert item["is_terminal"].tolist() == [False, False, flag, flag]
        rest = tree.map_structure(lambda column: column[2:], {**item, "is_last": (), "is_terminal": ()})
        assert not any(np.any(column) for column in tree.flatten(rest))


def test_nested_rows_keep_their_nests_and_dtypes():
    steps = episode(3, terminal=True, nested=True)
    items = make_items(StepWindows(2, end="zero_pad"), steps)
    assert items[1]["observation"]["image"].shape == (2, 3, 2) and items[1]["observation"]["image"].dtype == np.uint8
    assert items[1]["action"]["move"].tolist() == [12, 0]


# --- crossing episodes


def cut_windows(all_steps, length, period):
    """Returns the observations of all windows of the concatenated episodes."""
    rows = [number for steps in all_steps for number in steps["observation"].astype(int).tolist()]
    return [rows[at : at + length] for at in range(0, len(rows) - length + 1, period)]


@pytest.mark.parametrize(("length", "period"), mark_slow_except([(3, 2)], [(3, 2), (3, 3), (4, 1), (1, 1), (9, 2)]))
def test_windows_with_end_continue_cross_episodes(length, period):
    all_steps = [make_steps(6), make_steps(1, 20), make_steps(2, 30), make_steps(7, 40), make_steps(1, 50)]
    adder = StepWindows(length, period, "continue")
    got = list(rlds_dataset(all_steps).apply(adder).as_numpy_iterator())
    assert observations(got) == cut_windows(all_steps, length, period)
    assert all(item["mask"].all() for item in got)
    if (length, period) == (3, 2):
        assert observations(got)[:4] == [[1, 2, 3], [3, 4, 5], [5, 6, 20], [20, 30, 31]]
        assert got[2]["is_last"].tolist() == [False, True, True] and got[2]["is_first"].tolist() == [False, False, True]


def test_end_continue_raises_for_single_episodes():
    for adder in (StepWindows(3, 2, "continue"), compose(NStep(2, 0.9), StepWindows(3, 2, "continue"))):
        with pytest.raises(ValueError, match="cross episodes and require a dataset"):
            adder(Episode(make_steps(6), 0))


@pytest.mark.parametrize("end", mark_slow_except(["last"], ["write", "last", "truncate"]))
def test_windows_with_other_ends_do_not_cross_episodes(end):
    all_steps = [make_steps(6), make_steps(1, 20), make_steps(2, 30), make_steps(7, 40)]
    adder = StepWindows(3, 2, end)
    got = list(rlds_dataset(all_steps).apply(adder).as_numpy_iterator())
    expected = [item for steps in all_steps for item in make_items(adder, steps)]
    for item, expected_item in zip(got, expected, strict=True):
        assert_equal_nests(item, expected_item)


# --- the slow loop, and properties


@given(st.integers(1, 14), st.integers(1, 6), st.data(), st.sampled_from(WITHIN_EPISODE))
@examples(25)
def test_items_match_the_slow_loop(num_rows, length, data, end):
    period = data.draw(st.integers(1, length))
    got = make_items(StepWindows(length, period, end), make_steps(num_rows))
    expected = slow_windows(num_rows, length, period, end)
    assert observations(got) == [[0 if row is None else row + 1 for row in item] for item in expected]
    assert [item["mask"].tolist() for item in got] == [[row is not None for row in item] for item in expected]


@given(st.integers(1, 14), st.integers(1, 6), st.data())
@examples(25)
def test_padded_windows_contain_every_row_and_mask_the_padding(num_rows, length, data):
    period = data.draw(st.integers(1, length))
    items = make_items(StepWindows(length, period, "zero_pad"), make_steps(num_rows))
    real = np.concatenate([item["observation"][item["mask"]] for item in items])
    assert set(real.astype(int)) == set(range(1, num_rows + 1))
    assert sum(item["mask"].sum() for item in items) == sum((item["observation"] != 0).sum() for item in items)
    if period == length:
        assert sum(item["mask"].sum() for item in items) == num_rows


# --- split_burn_in


def make_batch(length):
    """Returns two windows with observations 0, 1, ... and 100, 101, ...; the other fields are 1000, 2000, ... higher."""
    numbers = np.arange(length) + np.array([[0], [100]])
    names = ("action", "reward", "is_last", "value_gamma", "mask")
    others = {name: tf.constant(numbers + 1000 * (at + 1)) for at, name in enumerate(names)}
    return {"observation": {"a": tf.constant(numbers), "b": tf.constant(np.stack([numbers, -numbers], 2))}, **others}


@pytest.mark.parametrize("time_axis", [0, 1])
@pytest.mark.parametrize(("length", "burn_in", "n"), [(10, 3, 2), (10, 0, 1), (5, 3, 1), (4, 1, 2)])
def test_split_burn_in_matches_r2d2(length, burn_in, n, time_axis):
    batch = make_batch(length)
    windows = batch if time_axis else tree.map_structure(lambda column: column[0], batch)
    parts = StepWindows(length, burn_in=burn_in).split_burn_in(windows, n=n, time_axis=time_axis)
    expected = {
        "burnin": {"observation": slice(None, burn_in + n)},
        "main": {
            **dict.fromkeys(("observation", "action", "reward"), slice(burn_in, -n)),
            **dict.fromkeys(("is_last", "value_gamma", "mask"), slice(burn_in, None)),
        },
        "target": {"observation": slice(burn_in + n, None)},
    }
    assert {name: set(part) for name, part in parts.items()} == {name: set(part) for name, part in expected.items()}
    for name, part in parts.items():
        for field, nest in part.items():
            for got, column in zip(tree.flatten(nest), tree.flatten(batch[field]), strict=True):
                rows = column.numpy()[:, expected[name][field]]
                np.testing.assert_array_equal(got, rows if time_axis else rows[0])
    num_rows = {name: tree.flatten(part["observation"])[0].shape[time_axis] for name, part in parts.items()}
    assert num_rows == {"burnin": burn_in + n, "main": length - burn_in - n, "target": length - burn_in - n}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"n": 0}, r"n must be an integer >= 1, got 0"),
        ({}, {"n": 7}, r"burn_in \+ n must be less than the length, 10, got 3 \+ 7"),
        ({}, {"time_axis": 2}, "time_axis must be 0 or 1, got 2"),
        ({}, {"time_axis": 0}, "windows must have 10 rows, got 2"),
        ({"reward": None}, {}, "StepWindows.split_burn_in requires the field 'reward' in the windows, got"),
        ({"observation": None}, {}, "StepWindows.split_burn_in requires the field 'observation'"),
    ],
)
def test_split_burn_in_raises_for_invalid_arguments(change, options, message):
    batch = {name: nest for name, nest in {**make_batch(10), **change}.items() if nest is not None}
    with pytest.raises(ValueError, match=message):
        StepWindows(10, burn_in=3).split_burn_in(batch, **options)


# --- spec and invalid arguments


@pytest.mark.parametrize("end", mark_slow_except(["truncate"], ["write", "truncate", "continue"]))
def test_item_spec_matches_the_dataset(end):
    adder = StepWindows(3, 2, end)
    nested = episode(4, terminal=True, nested=True)
    for steps, dataset in (
        (nested, rlds_dataset([nested])),
        (make_steps(4), tf.data.Dataset.from_tensors(make_steps(4))),
    ):
        spec = adder.item_spec(tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), steps))
        assert dataset.apply(adder).element_spec == spec
    assert spec["mask"] == tf.TensorSpec((None if end == "truncate" else 3,), tf.bool)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, r"length must be an integer >= 1, got 0"),
        ({"period": 0}, r"period must be an integer >= 1, got 0"),
        ({"period": 1.5}, r"period must be an integer >= 1, got 1.5"),
        (
            {"end": "pad"},
            "end must be one of 'write', 'last', 'zero_pad', 'null_padding', 'truncate', 'drop', .*, got 'pad'",
        ),
        ({"burn_in": -1}, r"burn_in must be an integer >= 0, got -1"),
        ({"burn_in": 3}, "burn_in must be less than the length, 3, got 3"),
    ],
)
def test_out_of_range_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        StepWindows(**{"length": 3, **options})


@pytest.mark.parametrize("name", ["mask", "action_taken"])
def test_steps_that_already_have_a_mask_raise(name):
    steps = {**make_steps(4), name: np.ones(4, bool)}
    for episodes in (Episode(steps, 0), tf.data.Dataset.from_tensors(steps)):
        with pytest.raises(ValueError, match=f"steps must not have the field '{name}', which StepWindows adds"):
            StepWindows(3)(episodes)
