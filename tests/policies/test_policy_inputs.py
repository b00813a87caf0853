"""Tests of the states of policies and of nests of arrays, apart from `predict`."""

import numpy as np
import pytest

from rlds2reverb.errors import ArgumentError
from rlds2reverb.policies.policy_inputs import replace_target_return, take_rows


def test_target_return_replaces_that_of_the_state():
    state = {"target_return": np.array([20.0, 30.0], np.float32), "left": np.array([4.0, 5.0], np.float32)}
    replaced = replace_target_return(state, -5)
    assert replaced["target_return"].tolist() == [-5, -5] and replaced["target_return"].dtype == np.float32
    assert replaced["left"].tolist() == [4, 5] and state["target_return"].tolist() == [20, 30]
    assert replace_target_return(state, None) is state
    for other in ((), {"left": 1.0}):
        assert replace_target_return(other, None) == other
        with pytest.raises(ArgumentError, match="requires a policy whose state contains it, such as that of decision"):
            replace_target_return(other, 1)


def test_single_rows_lose_the_batch_axis():
    rows = np.array([[1.0, 2.0]])
    assert take_rows(rows, None).tolist() == [1, 2] and take_rows(rows, 1).tolist() == [[1, 2]]
