"""The progress of a run on a cluster as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import TrainingConfig


def format_status(status: Mapping[str, Any], config: TrainingConfig) -> str:
    """Returns one line about the state of a run; see `Coordinator.status`."""
    parts = [f"{status['step']:>9,} of {config.num_updates:,}", f"{status['updates_per_sec']:,.0f} updates/s"]
    if status["loss"] is not None:
        parts.append(f"loss {status['loss']:.4g}")
    if config.online_steps:
        parts.append(
            f"{status['num_collectors']} collectors: {status['collected_steps']:,} steps, "
            f"{status['collected_per_sec']:,.0f}/s"
        )
        parts.append(f"policy {status['policy_age_updates']:,} updates, {status['policy_age_secs']:.1f} s old")
        parts.append(f"{status['updates_per_step']:.2f} updates/step")
    sizes = ", ".join(f"{size:,} {name}" for name, size in status["replay_size"].items())
    parts.append(f"{status['num_shards']} replay servers: {sizes or 'empty'}")
    evaluation = status["evaluation"]
    if evaluation:
        score = f" score {evaluation['score']:.1f}" if "score" in evaluation else ""
        parts.append(f"return {evaluation['mean_return']:,.1f}{score} at {evaluation['step']:,}")
    return "   ".join(parts)
