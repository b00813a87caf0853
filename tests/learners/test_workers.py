"""Several processes that train together with `MultiWorkerMirroredStrategy`: they are equal to one, and stop together."""

import json
import os
import signal
from contextlib import ExitStack

import numpy as np
import portpicker
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, make_columns, to_trajectory
from faults import process, receive

from rlds2reverb.learners import Learner
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.hooks import LearnerHook, SaveCkptHook

pytestmark = pytest.mark.slow

#: Agents whose losses are means over items.
AGENTS = ["bc", "iql"]
BATCH, NUM_BATCHES = 8, 6


def make(name):
    return make_agent(name, TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(8, 8), seed=1)


def make_batches():
    return [to_trajectory(make_columns(BATCH, seed)) for seed in range(NUM_BATCHES)]


def make_share(rank, num_workers):
    """Returns an endless dataset of a process's share of every batch."""
    rows = slice(rank * BATCH // num_workers, (rank + 1) * BATCH // num_workers)
    shares = [tf.nest.map_structure(lambda column: column[rows], batch) for batch in make_batches()]
    signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, shares[0])
    return tf.data.Dataset.from_generator(lambda: iter(shares), output_signature=signature).repeat()


class SendOnce(LearnerHook):
    """A hook that sends a message after the first iterations."""

    def __init__(self, channel):
        super().__init__("send_once", position="after_iter", every=2)
        self._channel = channel

    def __call__(self, learner):
        if learner.step == 2:
            self._channel.send("running")


def work(channel, rank, ports, root, names, num_iterations):
    """Trains each agent, sends its losses and weights, and says how the training ended."""
    workers = [f"localhost:{port}" for port in ports]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for name in names:
        with strategy.scope():
            agent = make(name)
        hooks = [SaveCkptHook(position="after_run"), SendOnce(channel)]
        run_dir = root / name / str(rank)
        with Learner(
            run_dir, agent, make_share(rank, len(ports)), strategy=strategy, rank=rank, hooks=hooks, steps_per_call=2
        ) as learner:
            checkpoints = sorted((root / name / "0/checkpoints").glob("[0-9]*"))
            if checkpoints:
                learner.load_checkpoint(checkpoints[-1])
            learner.start(num_iterations)
            weights = [variable.numpy() for variable in agent.variables]
            channel.send((learner.step, learner.stop_reason, learner.learn_info.get("loss"), weights))


def start_workers(stack, root, names, num_iterations, num_workers=2):
    ports = [portpicker.pick_unused_port() for _ in range(num_workers)]
    return [stack.enter_context(process(work, rank, ports, root, names, num_iterations)) for rank in range(num_workers)]


def train_alone(name, num_iterations):
    agent = make(name)
    batches = make_batches()
    for number in range(num_iterations):
        loss = agent.train(batches[number % NUM_BATCHES])
    return float(loss.loss), agent.variables


def test_two_processes_match_one_with_the_whole_batch(tmp_path):
    with ExitStack() as stack:
        workers = start_workers(stack, tmp_path, AGENTS, 4)
        for name in AGENTS:
            results = []
            for _, channel in workers:
                assert receive(channel) == "running"
                results.append(receive(channel))
            loss, variables = train_alone(name, 4)
            for step, _, own_loss, weights in results:
                assert step == 4 and own_loss == pytest.approx(loss, abs=1e-6)
                for one, two in zip(weights, variables, strict=True):
                    np.testing.assert_allclose(one, two.numpy(), atol=1e-6, err_msg=name)
    assert any((tmp_path / "bc/0/checkpoints").glob("[0-9]*"))
    assert not any((tmp_path / "bc/1/checkpoints").glob("[0-9]*"))  # Only rank 0 writes checkpoints.


@pytest.mark.drill("F5")
def test_preempted_process_stops_all_after_the_same_iteration_and_they_continue(tmp_path):
    with ExitStack() as stack:
        (_, first), (second, channel) = start_workers(stack, tmp_path, ["bc"], 10_000_000)
        assert receive(first) == receive(channel) == "running"
        os.kill(second.pid, signal.SIGTERM)
        (step, reason, _, weights), (other_step, other_reason, _, other_weights) = receive(first), receive(channel)
    assert step == other_step and reason == other_reason == "SIGTERM"
    for one, two in zip(weights, other_weights, strict=True):
        np.testing.assert_array_equal(one, two)
    assert [path.name for path in (tmp_path / "bc/0/checkpoints").glob("[0-9]*")] == [f"{step:010d}"]
    with ExitStack() as stack:
        workers = start_workers(stack, tmp_path, ["bc"], step + 2)
        assert [receive(channel)[0] for _, channel in workers] == [step + 2, step + 2]


@pytest.mark.drill("cluster")
def test_killed_process_is_reported_to_the_others(tmp_path):
    with ExitStack() as stack:
        (_, first), (second, channel) = start_workers(stack, tmp_path, ["bc"], 10_000_000)
        assert receive(first) == receive(channel) == "running"
        second.kill()
        with pytest.raises(
            (tf.errors.OpError, RuntimeError), match="Collective ops is aborted|UNAVAILABLE|Socket closed"
        ):
            receive(first)
