"""Measures updates/s of JAX-CORL for `bench_agents.py`, which runs this file with an interpreter that has its packages.

    python benchmarks/jax_corl_updates.py JAX_CORL '{"algo": "iql", "batch_size": 256, "hidden_sizes": [256, 256], ...}'

JAX_CORL is a checkout of github.com/nissymori/JAX-CORL; its packages are jax, flax, optax, distrax, omegaconf, pydantic
and gymnasium. Its functions that make and update the weights are used as they are, on random data in memory. It prints
the rate as JSON, or null if JAX-CORL does not have the agent.
"""

import json
import sys
import time
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

#: Files and classes by the names of rlds2reverb's algorithms.
CODE = {
    "awac": ("awac", "AWAC"),
    "cql": ("cql", "CQL"),
    "iql": ("iql", "IQL"),
    "td3_bc": ("td3bc", "TD3BC"),
    "xql": ("xql", "XQL"),
}
#: Packages that only data, logs and evaluation use.
UNUSED = ("d4rl", "gym", "wandb", "tqdm")
#: The option for GPUs, which XLA refuses on CPUs.
GPU_OPTION = 'os.environ["XLA_FLAGS"]'


def load_module(path: Path) -> types.ModuleType:
    """Returns the module of an agent, without the packages that updates do not use."""
    for name in UNUSED:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].Env = object
    module = types.ModuleType(path.stem)
    sys.modules[path.stem] = module
    arguments, sys.argv = sys.argv, sys.argv[:1]  # Its configuration reads the command line.
    exec(compile(path.read_text().replace(GPU_OPTION, 'os.environ["UNUSED"]'), path, "exec"), module.__dict__)
    sys.argv = arguments
    return module


def make_dataset(transition_type: type) -> tuple:
    """Returns 4,000 transitions with HalfCheetah's shapes."""
    random, rows = np.random.default_rng(0), 4000
    fields = {
        "observations": random.normal(size=(rows, 17)),
        "actions": random.uniform(-1, 1, (rows, 6)),
        "rewards": random.normal(size=rows),
        "next_observations": random.normal(size=(rows, 17)),
        "dones": np.zeros(rows),
        "dones_float": np.zeros(rows),
    }
    return transition_type(**{name: jnp.asarray(fields[name], jnp.float32) for name in transition_type._fields})


def main() -> None:
    checkout, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if options["algo"] not in CODE:
        print("null")
        return
    file, name = CODE[options["algo"]]
    module = load_module(checkout / "algos" / f"{file}.py")
    config = module.config  # Functions of CQL read the number of actions from this object.
    config.batch_size, config.hidden_dims = options["batch_size"], tuple(options["hidden_sizes"])
    dataset, key = make_dataset(module.Transition), jax.random.PRNGKey(0)
    if hasattr(config, "action_dim"):
        config.action_dim = 6
    state = getattr(module, f"create_{file}_train_state")(key, dataset.observations, dataset.actions, config)
    update = jax.jit(getattr(module, name)().update_n_times, static_argnums=(3,))

    def run(calls: int) -> float:
        nonlocal state, key
        began = time.perf_counter()
        for _ in range(calls):
            key, own = jax.random.split(key)
            state, _ = update(state, dataset, own, config)
        jax.block_until_ready(state)
        return calls * config.n_jitted_updates / (time.perf_counter() - began)

    run(2)
    print(json.dumps(run(max(options["updates"] // config.n_jitted_updates, 1))))


if __name__ == "__main__":
    main()
