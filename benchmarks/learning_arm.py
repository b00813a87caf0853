"""Clones demonstrations with two cameras, and measures how often the policy picks up the block through onnxruntime.

    python benchmarks/learning_arm.py [--steps 1000] [--seeds 3] [--out runs/arm] [--record docs/results]

60 demonstrations of the expert of `arm.py` are written as a LeRobot dataset. Each run clones chunks of 8 actions from
it without an environment, and is exported to ONNX. The policy executes 4 actions of each chunk, in 50 episodes whose
blocks are at other places than those of the demonstrations. 'state alone' sees no images: what can be done blindly.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from arm import Arm
from records import record_results

from rlds2reverb import load, load_policy, train, write_dataset
from rlds2reverb.envs import evaluate

NAME, NUM_DEMONSTRATIONS, NUM_EPISODES, FPS = "arm_60_demonstrations", 60, 50, 10
#: Options of each agent.
AGENTS: dict[str, dict[str, Any]] = {
    "two cameras": {},
    "two cameras, two steps": {"observation_offsets": (-1, 0)},
    "state alone": {"drop_fields": ["observation/images"]},
}


def write_demonstrations(path: Path) -> Path:
    """Writes the demonstrations, unless they exist."""
    if not path.exists():
        env = Arm()
        episodes = [env.demonstrate(10_000 + number) for number in range(NUM_DEMONSTRATIONS)]
        write_dataset(episodes, path, format="lerobot", fps=FPS)
    return path


def clone(path: Path, agent: str, seed: int, steps: int, out: Path) -> Any:
    """Returns the evaluation of the exported policy of a run."""
    hyperparameters = {"hidden_sizes": (256, 256), "learning_rate": 1e-3}
    options = {"chunk_length": 8, "execution_horizon": 4, "batch_size": 64, "seed": seed, "track": (), **AGENTS[agent]}
    folder = out / f"{agent.replace(', ', '-').replace(' ', '_')}-{seed}"
    options |= {"steps": steps, "log_every": max(steps // 10, 1), "env": None, "hyperparameters": hyperparameters}
    run, exported = train(load(path), "bc", folder, **options), folder / "policy.onnx"
    if not exported.exists():
        run.export_policy(exported, format="onnx")
    return evaluate(Arm, load_policy(exported), seeds=range(NUM_EPISODES))


def main() -> None:
    """Prints the success rate of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--out", type=Path, default=Path("runs/arm"))
    parser.add_argument("--record", type=Path, metavar="DIR", help="directory with result tables, as docs/results")
    arguments = parser.parse_args()
    path = write_demonstrations(arguments.out / "demonstrations")
    for agent in arguments.agents:
        rows = []
        for seed in range(arguments.seeds):
            began = time.perf_counter()
            result = clone(path, agent, seed, arguments.steps, arguments.out)
            minutes = (time.perf_counter() - began) / 60
            print(
                f"{agent}, seed {seed}: {result.returns.mean():.0%} of {NUM_EPISODES} in {minutes:.1f} min", flush=True
            )
            numbers = {"updates": arguments.steps, "mean_return": f"{100 * result.returns.mean():.3g}"}
            numbers |= {"std_over_episodes": f"{100 * np.std(result.returns):.3g}"}
            rows.append({"dataset": NAME, "agent": agent, "seed": seed, **numbers})
        if arguments.record is not None:
            record_results(arguments.record / f"{NAME}.csv", rows)


if __name__ == "__main__":
    main()
