"""The processes of a cluster, in this process: a list of orders takes the place of the coordinator."""

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import ReplayServer, TableConfig, TrainingConfig, ingest, load, load_run, packed_signature
from rlds2reverb.adders import NStep
from rlds2reverb.envs.evaluation import Evaluator
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.learners.tasks import read_policy
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.wire.packing import Packing
from rlds2reverb.training import Progress
from rlds2reverb.training.cluster.actors import CollectorActor, EvaluatorActor
from rlds2reverb.training.cluster.coordinator import CollectOrder, EvaluateOrder, SentPolicy
from rlds2reverb.training.cluster.reverb_comm_learner import ReplayTables, ReverbCommLearner
from rlds2reverb.training.cluster.run_preparation import prepare

CONFIG = TrainingConfig(
    "sac",
    env="Pendulum-v1",
    steps=0,
    online_steps=100,
    warmup_steps=10,
    eval_episodes=1,
    hyperparameters={"hidden_sizes": (8, 8)},
)


class Orders:
    """A coordinator that gives orders one after the other, and records the calls."""

    def __init__(self, orders):
        self._orders, self.calls = iter(orders), []

    def __call__(self, name, *arguments):
        self.calls.append((name, *arguments))
        return next(self._orders) if name.startswith("order") else None


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return prepare(None, CONFIG, tmp_path_factory.mktemp("prepared"), 1, Progress(quiet=True))


def make_policy(parts, step):
    """Returns a policy as a learner sends it, and the agent with its weights."""
    task = read_policy(parts.task["policy"])
    agent = make_agent(task.algo, task.time_step_spec, task.action_spec, **task.hyperparameters)
    variables = tf.nest.flatten(agent.collect_policy.variables())
    generator = np.random.default_rng(step)
    for variable in variables:
        variable.assign(generator.normal(size=variable.shape).astype(variable.dtype.as_numpy_dtype))
    return SentPolicy(step, [variable.numpy() for variable in variables]), agent


def test_evaluator_reports_the_return_of_each_policy_and_keeps_the_best_one(parts, tmp_path):
    RunDirectory(tmp_path / "run").write_config(parts.document)
    sent = [make_policy(parts, step) for step in (5, 10)]
    orders = [EvaluateOrder(sent[0][0], False), EvaluateOrder(sent[1][0], False), EvaluateOrder(None, True)]
    call = Orders(orders)
    EvaluatorActor(call, parts.task["policy"], parts.evaluator, tmp_path / "run").run()
    evaluator = Evaluator(**parts.evaluator)
    expected = [evaluator.evaluate(agent.policy).mean for _, agent in sent]
    reports = [arguments for name, *arguments in call.calls if name == "report_evaluation"]
    assert [step for step, *_ in reports] == [5, 10]
    np.testing.assert_allclose([mean for _, mean, _ in reports], expected, rtol=1e-5)
    assert expected[0] != pytest.approx(expected[1])
    run = load_run(tmp_path / "run")
    assert run.best_return == pytest.approx(max(expected), rel=1e-5)
    assert [arguments for name, *arguments in call.calls if name == "order_evaluation"] == [[-1], [5], [10]]


def test_learner_waits_for_servers_and_reads_from_its_tables():
    log = {"observations": np.zeros((9, 2), np.float32), "actions": np.zeros((8, 1), np.float32), "terminated": True}
    adder, names, found = NStep(1, 0.99), ("offline", "collected", "other"), []
    sources = [load([{**log, "rewards": np.full(8, number, np.float32)}]) for number in range(3)]
    signature = packed_signature(Packing(adder.item_spec(sources[0].step_spec), True))
    priority = lambda episode, items: 1.0 + np.arange(len(items))  # noqa: E731
    with ReplayServer([TableConfig(name) for name in names], signature, serve_batches=True) as server:
        for name, source in zip(names, sources, strict=True):
            ingest(source, server, name, adder=adder, layout="packed", priority=priority)
        answers = iter([{}, *[{0: server.address}] * 3, {}])  # The last learner needs none.
        for tables in (
            ReplayTables(False),
            ReplayTables(True, collected_ratio=0.25),
            ReplayTables(True, is_prioritized=True),
            ReplayTables(True, (server.address,), "other"),
        ):
            learner = ReverbCommLearner(lambda _: next(answers), tables)
            learner.start()
            feed = learner.get_data(8)
            data, info = feed.read(0, 1)
            batch = feed.to_experience(tf.nest.map_structure(lambda column: column[0], data))
            has_weights = bool(np.ptp(getattr(info, "weight", 1.0)))
            found.append((np.bincount(batch.next_time_step.reward.numpy().astype(int)).tolist(), has_weights))
            feed.close()
            learner.close()
    assert found == [([0, 8], False), ([6, 2], False), ([8], True), ([0, 0, 8], False)]


def test_collector_writes_the_items_of_the_ordered_steps_once(parts, tmp_path):
    policy, _ = make_policy(parts, 5)
    with ReplayServer(parts.tables, parts.signature, checkpoint_root=tmp_path) as server:
        shards = {0: server.address}
        orders = [
            CollectOrder(30, True, shards, None, False),
            CollectOrder(0, False, shards, None, False),
            CollectOrder(20, False, shards, policy, False),
            CollectOrder(0, False, {}, None, True),
        ]
        call = Orders(orders)
        arguments = (call, "collector_0", parts.task["policy"], parts.evaluator["make_env"], parts.convert)
        CollectorActor(*arguments, num_envs=2, seed=1).run()
        (table,) = table_infos(server.address).values()
    calls = [arguments for _, *arguments in call.calls]
    assert {arguments[0] for arguments in calls} == {"collector_0"} and len({arguments[1] for arguments in calls}) == 1
    assert [arguments[2] for arguments in calls] == [0, 30, 30, 50]
    assert [arguments[4] for arguments in calls] == [-1, -1, -1, 5]
    assert table.current_size == 50
