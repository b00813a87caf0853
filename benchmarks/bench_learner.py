"""Measures training updates, compared with TF-Agents' own learner on the same data in the same run.

    python benchmarks/bench_learner.py [--rounds 5] [--updates 200] [--algos td3 cql]

The data have HalfCheetah's shape, 17 + 6 floats; batches of 256, networks of 256 x 256. The baseline is TF-Agents'
agent in TF-Agents' `Learner.run`, on the dataset of its `ReverbReplayBuffer`. It is compared with the same algorithm in
rlds2reverb's `Learner`: from a Reverb table, with priorities written back, from items in memory, and from a single
batch in memory, which never makes the learner wait. The last line is the limit of this machine: as many floating-point
operations as the matrix products of an update, in products of large matrices.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rlds2reverb.cli.quiet import import_quietly, silence_logs

silence_logs()
import_quietly("tf_agents.agents.cql.cql_sac_agent", "tf_agents.train.learner")

import numpy as np
import tensorflow as tf
from bench_data import make_float_episodes, print_machine
from matrix_products import count_flops, time_products
from records import parse_arguments, record
from tf_agents.agents.cql import cql_sac_agent
from tf_agents.agents.ddpg import actor_network, critic_network
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.agents.td3 import td3_agent
from tf_agents.networks import actor_distribution_network
from tf_agents.replay_buffers import reverb_replay_buffer
from tf_agents.specs import tensor_spec
from tf_agents.train import learner as baseline_learner
from tf_agents.trajectories import time_step

from rlds2reverb import (
    Packing,
    PriorityWriter,
    ReplayServer,
    Selector,
    TableConfig,
    TrajectoryWindows,
    ingest,
    load,
    packed_signature,
)
from rlds2reverb.adders import NStep
from rlds2reverb.learners import InMemoryDataset, Learner, StreamingDataset, collect_items
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.reverb.sampling import SamplePlan

BATCH_SIZE, SIZES = 256, (256, 256)
OBSERVATION = tf.TensorSpec([17], tf.float32)
ACTION = tensor_spec.BoundedTensorSpec([6], tf.float32, -1, 1)
SPECS = time_step.time_step_spec(OBSERVATION), ACTION


def make_baseline_td3() -> Any:
    adam = tf.keras.optimizers.Adam
    return td3_agent.Td3Agent(
        *SPECS,
        actor_network.ActorNetwork(OBSERVATION, ACTION, fc_layer_params=SIZES),
        critic_network.CriticNetwork((OBSERVATION, ACTION), joint_fc_layer_params=SIZES),
        actor_optimizer=adam(3e-4),
        critic_optimizer=adam(3e-4),
        target_update_tau=0.005,
        actor_update_period=2,
        target_update_period=2,
        gamma=0.99,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )


def make_baseline_cql() -> Any:
    adam = tf.keras.optimizers.Adam
    critic = critic_network.CriticNetwork((OBSERVATION, ACTION), joint_fc_layer_params=SIZES)
    actor = actor_distribution_network.ActorDistributionNetwork(
        OBSERVATION,
        ACTION,
        fc_layer_params=SIZES,
        continuous_projection_net=tanh_normal_projection_network.TanhNormalProjectionNetwork,
    )
    return cql_sac_agent.CqlSacAgent(
        *SPECS,
        critic_network=critic,
        actor_network=actor,
        actor_optimizer=adam(3e-5),
        critic_optimizer=adam(3e-4),
        alpha_optimizer=adam(3e-4),
        cql_alpha=5.0,
        num_cql_samples=10,
        include_critic_entropy_term=False,
        use_lagrange_cql_alpha=False,
        target_update_tau=0.005,
        gamma=0.99,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )


#: CQL spends most of its time in matrix products, because its critics evaluate 31 actions per state, so its target is a
#: share of their speed. (The baseline evaluates 21: it does not sample from the policy at the next state.)
TARGETS = {
    "td3": {"from a table": "(target: 3x)", "from memory": "(target: 4x)"},
    "cql": {"from memory": "(target: 85 % of limit)"},
}
BASELINES: dict[str, Callable[[], Any]] = {"td3": make_baseline_td3, "cql": make_baseline_cql}


def make_baseline(algo: str) -> Any:
    agent = BASELINES[algo]()
    agent.initialize()
    return agent


class Bench:
    """The servers, datasets and learners that are compared."""

    def __init__(self, updates: int, resources: contextlib.ExitStack):
        self.updates, self.resources = updates, resources
        self.adder = NStep(1, 0.99)
        self.source = load(make_float_episodes(50))
        self.items = collect_items(map(self.adder, self.source))
        self.uniform = self._start_server(Selector("uniform"), self.adder, "packed")
        self.prioritized = self._start_server(Selector("prioritized", 0.6), self.adder, "packed")
        self.windows = self._start_server(Selector("uniform"), TrajectoryWindows(2), "columns")

    def _start_server(self, sampler: Selector, adder: Any, layout: str) -> ReplayServer:
        spec = adder.item_spec(self.source.step_spec)
        signature = packed_signature(Packing(spec, squeeze=True)) if layout == "packed" else spec
        server = self.resources.enter_context(
            ReplayServer([TableConfig(sampler=sampler)], signature, serve_batches=True)
        )
        ingest(self.source, server, adder=adder, layout=layout)
        return server

    def make_folder(self) -> str:
        return self.resources.enter_context(tempfile.TemporaryDirectory())

    def time_baseline(self, algo: str) -> Callable[[], float]:
        agent = make_baseline(algo)
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            agent.collect_data_spec, table_name="replay", sequence_length=2, server_address=self.windows.address
        )
        dataset = buffer.as_dataset(sample_batch_size=BATCH_SIZE, num_steps=2).prefetch(50)
        learner = baseline_learner.Learner(
            self.make_folder(),
            agent.train_step_counter,
            agent,
            experience_dataset_fn=lambda: dataset,
            triggers=[],
            checkpoint_interval=10**9,
            summary_interval=10**9,
        )
        return self._time(lambda count: learner.run(iterations=count))

    def time_learner(
        self, algo: str, dataset: Any, *, agent: Any = None, priorities: Any = None, jit: bool = False
    ) -> Any:
        agent = agent or make_agent(algo, *SPECS, hidden_sizes=SIZES)
        learner = self.resources.enter_context(
            Learner(self.make_folder(), agent, dataset, priorities=priorities, jit_compile=jit)
        )
        return self._time(lambda count: learner.start(learner.last_iter + count))

    def make_samples(self, server: ReplayServer) -> StreamingDataset:
        return StreamingDataset(SamplePlan(server, "replay", BATCH_SIZE, prefetch=4))

    def make_in_memory(self) -> InMemoryDataset:
        return InMemoryDataset(self.items, BATCH_SIZE, to_experience=self.adder.as_transition)

    def make_one_batch(self) -> tf.data.Dataset:
        feed = self.make_in_memory()
        experience = feed.to_experience(tf.constant(feed.read(0, 1)[0][0]))
        return tf.data.Dataset.from_tensors(experience).repeat()

    def time_products(self, algo: str) -> Callable[[], float]:
        flops = count_flops(make_agent(algo, *SPECS, hidden_sizes=SIZES).train, self.make_in_memory().experience_spec)
        return time_products(flops, self.updates)

    def _time(self, run: Callable[[int], Any]) -> Callable[[], float]:
        run(20)  # Traces the graph and warms up.

        def measure() -> float:
            began = time.perf_counter()
            run(self.updates)
            return self.updates / (time.perf_counter() - began)

        return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--algos", nargs="+", default=["td3", "cql"], choices=sorted(BASELINES))
    arguments = parse_arguments(parser)
    print_machine()
    print(f"updates/s: medians of {arguments.rounds} rounds of {arguments.updates} updates; ratios within a round\n")
    with contextlib.ExitStack() as resources:
        bench = Bench(arguments.updates, resources)
        writer = resources.enter_context(PriorityWriter(bench.prioritized, "replay"))
        for algo in arguments.algos:
            compare(
                algo,
                arguments.rounds,
                {
                    "with TF-Agents' `Learner.run`": bench.time_baseline(algo),
                    "with TF-Agents' agent in `Learner`": bench.time_learner(
                        algo, bench.make_samples(bench.windows), agent=make_baseline(algo)
                    ),
                    "from a table": bench.time_learner(algo, bench.make_samples(bench.uniform)),
                    "from a prioritized table, priorities not written": bench.time_learner(
                        algo, bench.make_samples(bench.prioritized)
                    ),
                    "from a prioritized table, priorities written back": bench.time_learner(
                        algo, bench.make_samples(bench.prioritized), priorities=writer
                    ),
                    "from one batch in memory": bench.time_learner(algo, bench.make_one_batch()),
                    "from memory": bench.time_learner(algo, bench.make_in_memory()),
                    "from memory, compiled by XLA": bench.time_learner(algo, bench.make_in_memory(), jit=True),
                    "only matrix products": bench.time_products(algo),
                },
            )


def compare(algo: str, rounds: int, workloads: dict[str, Callable[[], float]]) -> None:
    """Runs workloads in turn in each round and prints their rates; the first is the baseline, the last the limit."""
    rates = np.array([[run() for run in workloads.values()] for _ in range(rounds)])
    baseline = f"{algo.upper()} {next(iter(workloads))}"
    for name, rate, ratios in zip(workloads, rates.T, (rates / rates[:, :1]).T, strict=True):
        spread = f"({ratios.min():.2f} to {ratios.max():.2f}) {TARGETS[algo].get(name, '')}".rstrip()
        task = f"{algo.upper()} {name}"
        print(f"{task:<58} {np.median(rate):>7,.1f}  {np.median(ratios):>5.2f}x {spread}")
        if task == baseline:
            record("training", task, np.median(rate), "updates/s")
        else:
            record("training", task, np.median(rate), "updates/s", ratios, baseline=baseline)
    share = np.median(rates[:, list(workloads).index("from memory")] / rates[:, -1])
    print(f"{algo.upper()} from memory: {share:.0%} of the limit\n")


if __name__ == "__main__":
    main()
