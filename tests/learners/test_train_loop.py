"""The training loop in the graph, its metrics, and the monitor."""

import pytest
import tensorflow as tf
from small_agents import MeanAgent, batches, transitions
from tf_agents.agents.tf_agent import LossInfo

from rlds2reverb.learners.divergence import is_check_numerics_error
from rlds2reverb.learners.feeds import StreamingDataset
from rlds2reverb.learners.monitor import Monitor
from rlds2reverb.learners.train_loop import TrainLoop, extract_metrics, extract_td_errors


@pytest.mark.parametrize("jit_compile", [False, True])
def test_call_runs_iterations_and_returns_all_and_last_metrics(jit_compile):
    agent = MeanAgent(rate=1.0)
    loop = TrainLoop(agent, StreamingDataset(batches(size=2)), jit_compile=jit_compile)
    loop.prepare()
    assert int(agent.train_step_counter) == 0
    for first, num in ((0, 3), (3, 1), (4, 2)):
        assert loop.step == first
        result = loop(first + num)
        assert result.num_iterations == num and result.info == ()
        estimates = [n + 0.5 for n in range(first, first + num)]
        assert result.last["estimate"] == estimates[-1] and result.metrics["estimate"].tolist() == estimates
        assert result.td_errors.shape == (2 * num,) and (result.td_errors >= 0).all()
        assert result.data_wait_secs >= 0
    assert agent.num_traces == 1


def test_augmentation_receives_the_number_of_completed_iterations():
    def replace_rewards(experience, step):
        reward = tf.fill(tf.shape(experience.next_time_step.reward), tf.cast(step, tf.float32))
        return experience._replace(next_time_step=experience.next_time_step._replace(reward=reward))

    loop = TrainLoop(MeanAgent(rate=1.0), StreamingDataset(batches(size=2)), augment=replace_rewards)
    loop.step = 10
    assert loop(13).metrics["estimate"].tolist() == [10, 11, 12] and loop(14).last["estimate"] == 13
    assert loop.run_on_batch(transitions([0.0, 0.0]), None, ()).last["estimate"] == 14


def test_metrics_and_td_errors_are_extracted_from_any_loss_info():
    extra = {
        "td_error": tf.constant([[-1.0, 3.0], [2.0, -4.0]]),
        "q": tf.constant(2.0),
        "n": tf.constant(1),
        "none": (),
    }
    loss = LossInfo(tf.constant([1.0, 3.0]), {**extra, "loss": tf.constant(9.0)})
    assert {name: float(value) for name, value in extract_metrics(loss).items()} == {"loss": 2.0, "q": 2.0}
    assert extract_td_errors(loss).numpy().tolist() == [2.0, 3.0]
    assert extract_td_errors(LossInfo(tf.constant(1.0), ())) is None
    assert extract_td_errors(LossInfo(tf.constant(1.0), {"td_error": tf.constant(1.0)})) is None


def test_check_numerics_errors_are_distinguished_from_other_errors():
    for bad in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            tf.debugging.check_numerics(tf.constant(bad), "Loss is inf or nan")
        assert is_check_numerics_error(caught.value)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.reshape(tf.zeros([3]), [tf.constant(2)])
    assert not is_check_numerics_error(caught.value)


def test_monitor_excludes_the_first_call_from_rates():
    monitor = Monitor()
    monitor.add(10, 100.0, 1.0)
    assert monitor.rates() == {}
    monitor.add(10, 2.0, 0.5)
    monitor.add(30, 2.0, 0.5)
    rates = {"updates_per_sec": 10.0, "data_wait_share": 0.25, "data_wait_ms": 25.0, "train_ms": 75.0}
    assert monitor.rates() == rates
    assert monitor.take_secs() == {"train_secs": 102.0, "data_wait_secs": 2.0}
    assert monitor.take_secs() == {"train_secs": 0.0, "data_wait_secs": 0.0}
