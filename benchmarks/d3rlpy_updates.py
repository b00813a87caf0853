"""Measures updates/s of d3rlpy for `bench_agents.py`, which runs this file with an interpreter that has d3rlpy.

    python benchmarks/d3rlpy_updates.py '{"algo": "iql", "batch_size": 256, "hidden_sizes": [256, 256], ...}'

It prints the rate as JSON, or null if d3rlpy does not have the agent.
"""

import json
import sys
import time

import d3rlpy
import numpy as np

#: d3rlpy's configurations by the names of rlds2reverb's algorithms.
CONFIGS = {
    "awac": "AWACConfig",
    "bc": "BCConfig",
    "cal_ql": "CalQLConfig",
    "cql": "CQLConfig",
    "decision_transformer": "DecisionTransformerConfig",
    "discrete_bc": "DiscreteBCConfig",
    "discrete_bcq": "DiscreteBCQConfig",
    "discrete_cql": "DiscreteCQLConfig",
    "double_dqn": "DoubleDQNConfig",
    "dqn": "DQNConfig",
    "iql": "IQLConfig",
    "rebrac": "ReBRACConfig",
    "sac": "SACConfig",
    "td3": "TD3Config",
    "td3_bc": "TD3PlusBCConfig",
}
#: Encoders of an algorithm's networks that have hidden sizes.
ENCODERS = ("encoder_factory", "actor_encoder_factory", "critic_encoder_factory", "value_encoder_factory")


def make_dataset(is_discrete: bool) -> d3rlpy.dataset.ReplayBuffer:
    """Returns 20 episodes of 200 steps with HalfCheetah's shapes."""
    random = np.random.default_rng(0)
    shape, ends = (4000, 6), np.arange(1, 4001) % 200 == 0
    return d3rlpy.dataset.MDPDataset(
        observations=random.normal(size=(4000, 17)).astype(np.float32),
        actions=random.integers(0, 6, 4000) if is_discrete else random.uniform(-1, 1, shape).astype(np.float32),
        rewards=random.normal(size=4000).astype(np.float32),
        terminals=np.zeros(4000, np.float32),
        timeouts=ends.astype(np.float32),
    )


def main() -> None:
    options = json.loads(sys.argv[1])
    if options["algo"] not in CONFIGS:
        print("null")
        return
    make_config = getattr(d3rlpy.algos, CONFIGS[options["algo"]])
    encoders = {
        name: d3rlpy.models.encoders.VectorEncoderFactory(options["hidden_sizes"])
        for name in ENCODERS
        if name in make_config.__dataclass_fields__ and options["hidden_sizes"]
    }
    algo = make_config(batch_size=options["batch_size"], **encoders).create(device=False)
    dataset = make_dataset(options["is_discrete"])

    def update(count: int) -> None:
        logger = d3rlpy.logging.NoopAdapterFactory()
        algo.fit(dataset, n_steps=count, n_steps_per_epoch=count, logger_adapter=logger, show_progress=False)

    update(20)
    began = time.perf_counter()
    update(options["updates"])
    print(json.dumps(options["updates"] / (time.perf_counter() - began)))


if __name__ == "__main__":
    main()
