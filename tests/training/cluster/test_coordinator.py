"""The coordinator's tasks, pace and state, without Ray."""

import time

import numpy as np
import pytest

from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.cluster import Coordinator
from rlds2reverb.training.cluster.replay_shards import ShardCheckpoint, ShardReport

CONFIG = TrainingConfig(
    "sac", env="Pendulum-v1", steps=100, online_steps=2_000, warmup_steps=500, updates_per_step=0.5, eval_every=100
)
TASK = {"name": "train", "learner": {"num_iterations": 850}, "policy": {}}


@pytest.fixture
def coordinator(tmp_path):
    return make_coordinator(tmp_path)


def make_coordinator(folder, config=CONFIG):
    return Coordinator(folder / "state.json", config, lead_steps=200, replay_root=folder, num_shards=2)


def order_steps(coordinator, num_collected, collector="a", life="1", policy_step=-1):
    return coordinator.order_steps(collector, life, num_collected, [], policy_step)


# --- Tasks


def test_task_is_handed_out_once(coordinator):
    coordinator.submit(TASK)
    assert coordinator.next_task("learner") == TASK
    assert coordinator.next_task("other") is None


def test_restarted_learner_gets_its_task_again(coordinator):
    coordinator.submit(TASK)
    coordinator.next_task("learner")
    assert coordinator.next_task("learner") == TASK


def test_tasks_are_handed_out_one_after_another(coordinator):
    coordinator.submit(TASK)
    coordinator.submit({**TASK, "name": "second"})
    assert coordinator.next_task("learner")["name"] == "train"
    coordinator.report_task("train", "complete", 850)
    assert coordinator.next_task("learner")["name"] == "second"


def test_state_of_a_task_follows_the_reports_and_is_saved(coordinator, tmp_path):
    def get_states():
        return [one.task_state("train")["state"] for one in (coordinator, make_coordinator(tmp_path))]

    coordinator.submit(TASK)
    assert get_states() == ["waiting"] * 2
    coordinator.next_task("learner")
    assert get_states() == ["running"] * 2
    coordinator.report_task("train", "failed", 3, "ValueError: no")
    assert get_states() == ["failed"] * 2
    assert coordinator.task_state("train") == {
        "state": "failed", "learner": "learner", "step": 3, "reason": "ValueError: no"
    }  # fmt: skip


def test_running_task_is_not_replaced_by_one_of_the_same_name(coordinator):
    coordinator.submit(TASK)
    coordinator.next_task("learner")
    coordinator.submit(TASK)
    assert coordinator.task_state("train")["state"] == "running"


def test_stopped_run_hands_out_no_task(coordinator):
    coordinator.submit(TASK)
    coordinator.stop("SIGTERM")
    assert coordinator.next_task("learner") is None


# --- The pace


def test_collectors_wait_for_the_updates_on_the_dataset(coordinator):
    assert order_steps(coordinator, 0).num_steps == 0
    coordinator.order_updates(100)
    assert order_steps(coordinator, 0).num_steps == CONFIG.update_every


def test_collectors_are_ahead_of_the_learner_by_at_most_the_lead(coordinator):
    coordinator.order_updates(100)
    assert order_steps(coordinator, 680).num_steps == 20
    assert order_steps(coordinator, 700).num_steps == 0
    coordinator.order_updates(110)  # 10 updates use 20 steps.
    assert order_steps(coordinator, 700).num_steps == 20


def test_collectors_end_with_the_last_step(coordinator):
    coordinator.order_updates(840)
    assert order_steps(coordinator, 1_990).num_steps == 10
    assert order_steps(coordinator, 2_000).num_steps == 0


def test_learner_may_make_the_updates_of_the_collected_steps(coordinator):
    assert coordinator.order_updates(0).until == 100
    order_steps(coordinator, 500)
    assert coordinator.order_updates(100).until == 100
    order_steps(coordinator, 600)
    assert coordinator.order_updates(100).until == 150


def test_steps_of_restarted_collectors_are_added(coordinator):
    order_steps(coordinator, 300)
    order_steps(coordinator, 400)
    order_steps(coordinator, 50, life="2")
    order_steps(coordinator, 7, collector="b")
    assert coordinator.status()["collected_steps"] == 457


def test_actions_are_random_during_the_warm_up_without_data(tmp_path):
    coordinator = make_coordinator(tmp_path, CONFIG.replace(steps=0))
    assert order_steps(coordinator, 0).is_random
    assert not order_steps(coordinator, 500).is_random


def test_rates_are_those_of_the_last_half_minute(coordinator, monkeypatch):
    coordinator.order_updates(100)
    order_steps(coordinator, 50)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 40)
    coordinator.order_updates(60)  # The learner was restarted from a checkpoint.
    coordinator.order_updates(360)
    order_steps(coordinator, 200)
    monkeypatch.setattr(time, "monotonic", lambda: now + 45)
    status = coordinator.status()
    assert status["updates_per_sec"] == pytest.approx(10, rel=0.1)
    assert status["collected_per_sec"] == pytest.approx(5, rel=0.1)


# --- Evaluations


def test_evaluation_is_due_at_the_start_and_after_each_multiple_of_the_interval(coordinator):
    coordinator.submit(TASK)
    assert coordinator.order_evaluation(-1).policy is None  # There is no policy yet.
    coordinator.report_policy(0, [])
    assert coordinator.order_evaluation(-1).policy.step == 0
    coordinator.report_policy(99, [])
    assert coordinator.order_evaluation(0).policy is None
    coordinator.report_policy(130, [])
    assert coordinator.order_evaluation(0).policy.step == 130
    assert coordinator.order_evaluation(130).policy is None
    coordinator.report_task("train", "complete", 130)
    assert coordinator.order_evaluation(130).policy is None
    assert coordinator.order_evaluation(110).policy.step == 130  # The last policy is always evaluated.


# --- The state


def test_restarted_coordinator_continues_with_tasks_and_counts(tmp_path):
    first = make_coordinator(tmp_path)
    first.submit(TASK)
    first.next_task("learner")
    order_steps(first, 300)
    first.report_evaluation(100, -3.0, None)
    order_steps(first, 350)  # May be lost, until the collector reports again.
    second = make_coordinator(tmp_path)
    assert second.next_task("learner") == TASK
    order_steps(second, 360)
    status = second.status()
    assert status["collected_steps"] == 360 and status["evaluation"] == {"step": 100, "mean_return": -3.0}


def test_stopped_run_can_be_started_again(tmp_path):
    first = make_coordinator(tmp_path)
    first.submit(TASK)
    first.next_task("learner")
    first.report_task("train", "stopped", 40)
    first.stop("SIGINT")
    second = make_coordinator(tmp_path)
    second.submit(TASK)
    assert second.next_task("learner") == TASK


def report_shard(coordinator, shard, address="a:1", **sizes):
    return coordinator.report_shard(shard, ShardReport(address, sizes, 0, ShardCheckpoint("", None, 0)))


def test_replay_servers_are_known_while_they_report(coordinator, monkeypatch):
    report_shard(coordinator, 1, "b:1", offline=3)
    report_shard(coordinator, 0, "a:1", offline=4, collected=2)
    assert coordinator.shards() == {0: "a:1", 1: "b:1"}
    assert coordinator.status()["replay_size"] == {"offline": 7, "collected": 2}
    report_shard(coordinator, 1, "c:1", offline=3)
    assert coordinator.shards() == {0: "a:1", 1: "c:1"}
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert coordinator.shards() == {}


def is_stopped(coordinator):
    return report_shard(coordinator, 0).is_stopped and report_shard(coordinator, 1).is_stopped


def test_replay_servers_end_after_the_learner_and_the_collectors(coordinator, monkeypatch):
    report_shard(coordinator, 1)
    coordinator.submit(TASK)
    coordinator.next_task("learner")
    order_steps(coordinator, 0)
    coordinator.stop("SIGTERM")
    assert not is_stopped(coordinator)
    coordinator.report_task("train", "stopped", 40)
    assert not is_stopped(coordinator)
    assert order_steps(coordinator, 10).is_stopped
    assert is_stopped(coordinator)


def test_replay_servers_do_not_wait_long_for_a_lost_learner(coordinator, monkeypatch):
    report_shard(coordinator, 1)
    coordinator.submit(TASK)
    coordinator.next_task("learner")
    coordinator.stop("SIGTERM")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert is_stopped(coordinator)


def test_learn_info_and_policy_reach_the_status(coordinator):
    coordinator.report_policy(7, [np.array([1.0, 2.0])])
    coordinator.report_learn_info({"step": 7, "loss": 0.25, "is_finished": False})
    status = coordinator.status()
    assert status["loss"] == 0.25 and status["policy_step"] == 7


def test_updates_of_a_restarted_learner_are_counted_once(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    coordinator = make_coordinator(tmp_path)
    for step in (10, 40, 20, 20, 30):
        now[0] += 1
        coordinator.order_updates(step)
    assert coordinator.status()["updates_per_sec"] == 10


def test_collectors_get_the_newest_policy_unless_they_have_it(coordinator, tmp_path):
    assert order_steps(coordinator, 0).policy is None
    coordinator.report_policy(100, [np.array([1.0, 2.0])])
    step, variables = order_steps(coordinator, 0).policy
    assert step == 100 and variables[0].tolist() == [1, 2]
    assert order_steps(coordinator, 0, policy_step=100).policy is None
    coordinator.report_policy(50, [np.array([3.0, 4.0])])  # The learner was restarted from a checkpoint.
    assert order_steps(coordinator, 0, policy_step=100).policy.step == 50
    coordinator.stop("complete")
    restarted = make_coordinator(tmp_path)  # It has no policy until the learner sends the next one.
    assert order_steps(restarted, 0, policy_step=50).policy is None
