"""The loop in the graph: so many iterations in a call, traced once; where time or numbers fail, it says so."""

import pytest
import tensorflow as tf
from rlds2reverb.learners.feeds import StreamingDataset
from rlds2reverb.learners.monitor import Monitor
from rlds2reverb.learners.train_loop import TrainLoop, is_of_numbers, metrics_of, td_errors_of
from small_agents import MeanAgent, batches
from tf_agents.agents.tf_agent import LossInfo


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_call_does_so_many_iterations_and_gives_means_and_the_last(jit_compile):
    agent = MeanAgent(rate=1.0)
    loop = TrainLoop(agent, StreamingDataset(batches(size=2)), jit_compile=jit_compile)
    loop.prepare()
    assert int(agent.train_step_counter) == 0
    for first, num in ((0, 3), (3, 1), (4, 2)):
        result = loop(first, num)
        assert result.num_iterations == num and result.is_finite and result.info == () and len(result.last_keys) == 0
        estimates = [n + 0.5 for n in range(first, first + num)]
        assert result.last["estimate"] == estimates[-1] and result.metrics["estimate"] == sum(estimates) / num
        assert result.td_errors.shape == (2 * num,) and (result.td_errors >= 0).all()
        assert result.data_wait_secs >= 0
    assert loop.num_traces == 1


def test_losses_of_any_agent_give_scalars_and_errors_of_items():
    extra = {
        "td_error": tf.constant([[-1.0, 3.0], [2.0, -4.0]]),
        "q": tf.constant(2.0),
        "n": tf.constant(1),
        "none": (),
    }
    loss = LossInfo(tf.constant([1.0, 3.0]), {**extra, "loss": tf.constant(9.0)})
    assert {name: float(value) for name, value in metrics_of(loss).items()} == {"loss": 2.0, "q": 2.0}
    assert td_errors_of(loss).numpy().tolist() == [2.0, 3.0]
    assert td_errors_of(LossInfo(tf.constant(1.0), ())) is None
    assert td_errors_of(LossInfo(tf.constant(1.0), {"td_error": tf.constant(1.0)})) is None


def test_checks_of_numbers_are_known_from_other_errors():
    for bad in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            tf.debugging.check_numerics(tf.constant(bad), "Loss is inf or nan")
        assert is_of_numbers(caught.value)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.reshape(tf.zeros([3]), [tf.constant(2)])
    assert not is_of_numbers(caught.value)


def test_rates_leave_the_first_call_out_which_traces():
    monitor = Monitor()
    monitor.add(10, 100.0, 1.0)
    assert monitor.rates() == {} and monitor.steps_per_sec == 0
    monitor.add(10, 2.0, 0.5)
    monitor.add(30, 2.0, 0.5)
    rates = {"steps_per_sec": 10.0, "data_wait_share": 0.25, "data_wait_ms": 25.0, "train_ms": 75.0}
    assert monitor.rates() == rates and monitor.steps_per_sec == 10
    assert monitor.taken_secs() == {"train_secs": 102.0, "data_wait_secs": 2.0}
    assert monitor.taken_secs() == {"train_secs": 0.0, "data_wait_secs": 0.0}
