"""`rlds2reverb demo`: converts a D4RL file, compares the sampled items with the file, and trains on them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import h5py
import numpy as np
from rich.console import Console

from rlds2reverb._server.process import start_launcher
from rlds2reverb._text import format_number
from rlds2reverb.errors import SourceError
from rlds2reverb.sources import Source, load
from rlds2reverb.sources.summary import summarize
from rlds2reverb.tables import TableConfig

from . import checks, output
from .quiet import import_quietly, quiet_imports

if TYPE_CHECKING:
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb.ingestion import IngestReport

_BATCH_SIZE = 256
_BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--num-batches",
    default=400,
    show_default=True,
    type=checks.integer(20),
    metavar="N",
    help="Number of batches of 256 transitions to read and train on.",
)
def demo(file: Path, num_batches: int) -> None:
    """Write a D4RL file to Reverb, compare the items with the file, and train on them.

    \b
    Example:
      rlds2reverb demo hopper_medium-v2.hdf5

    The demo writes FILE into a prioritized table of a Reverb server on a free port. It compares every batch sampled
    from the table with the file, then trains TF-Agents' BehavioralCloningAgent on it.
    """
    start = time.perf_counter()
    out = output.console()
    start_launcher()
    import_quietly("tensorflow", "tf_agents.trajectories")
    make_train_step = _import_agent()
    source = load(file)
    if source.kind != "d4rl":
        raise SourceError(
            f"the demo requires a D4RL file, but {file.name} is a {source.kind} file; "
            "use 'rlds2reverb train' for other formats"
        )
    _print_dataset(out, file, source)
    with _serve_dataset(source) as (server, report):
        out.print("\n[bold]2  Writing to Reverb[/]")
        out.print(f"   {report.items:,} transitions in the prioritized table 'replay' on {server.address}")
        out.print(f"   {format_number(round(report.steps_per_second))} steps/s, including checks")
        out.print("\n[bold]3  Reading back and training[/]")
        rows, losses = _FileRows(file), []
        train = make_train_step(source)
        for index, batch in enumerate(_sample_batches(server.address, num_batches)):
            rows.require_equal(batch)
            losses.append(train(batch))
            if (index + 1) % max(1, num_batches // 4) == 0:
                out.print(f"   batch {index + 1:>5,}   loss {losses[-1]:.4f}")
    out.print()
    _print_result(rows, losses, time.perf_counter() - start)
    out.print("\nNext steps:")
    out.print(f"  rlds2reverb inspect {output.escape_markup(str(file))}")
    out.print("  rlds2reverb train --help")
    out.print("  rlds2reverb convert --help")


def _print_dataset(out: Console, file: Path, source: Source) -> None:
    summary = summarize(source)
    ends = f"{summary.terminals:,} terminal, {summary.timeouts:,} truncated, {summary.unterminated:,} unterminated"
    mean, low, high = map(format_number, (summary.returns.mean, summary.returns.min, summary.returns.max))
    out.print(f"\n[bold]1  Dataset[/]   {output.escape_markup(file.name)}")
    out.print(f"   {summary.episodes:,} episodes ({ends}), {summary.transitions:,} transitions")
    out.print(f"   return {mean} on average, from {low} to {high}")


def _print_result(rows: _FileRows, losses: list[float], secs: float) -> None:
    first, last = float(np.mean(losses[:5])), float(np.mean(losses[-20:]))
    output.print_facts(
        "Result",
        [
            ("read back", f"{rows.num_compared:,} items, all equal to the file bit for bit"),
            ("coverage", f"{rows.num_seen:,} of the {rows.num_rows:,} rows of the file"),
            ("loss", f"{first:.4f} -> {last:.4f}   {_sparkline(losses)}"),
            ("baseline", f"{rows.mean_action_loss:.4f}, the loss of always choosing the mean action"),
            ("time", f"{secs:.0f} s"),
        ],
    )
    if not last < first:
        raise ValueError(
            f"the loss must decrease, got {first:.4f} at the start and {last:.4f} at the end; increase --num-batches"
        )


@contextmanager
def _serve_dataset(source: Source) -> Iterator[tuple[ReplayServer, IngestReport]]:
    """Starts a server and writes the dataset into a prioritized table."""
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb.ingestion import ingest
    from rlds2reverb.tables import item_signature
    from rlds2reverb.trajectories import trajectory_spec

    with ReplayServer([TableConfig()], item_signature(trajectory_spec(source.step_spec), 2)) as server:
        yield server, ingest(source, server.address)


def _sample_batches(address: str, num_batches: int) -> Iterator[Any]:
    from tf_agents.trajectories import Trajectory

    from rlds2reverb.sampling import sample

    with sample(address, "replay", _BATCH_SIZE, max_in_flight=512) as batches:
        for batch in itertools.islice(batches, num_batches):
            yield Trajectory(*batch.data)


class _FileRows:
    """The rows of a D4RL file, read with h5py alone, for comparison with items."""

    def __init__(self, path: Path):
        with h5py.File(path) as file:
            observations, actions = file["observations"][:], file["actions"][:]
            rewards, terminals = file["rewards"][:].reshape(-1), file["terminals"][:].astype(bool)
            has_next = "next_observations" in file
            self._next = file["next_observations"][:] if has_next else _shift(observations, terminals)
        self._index: dict[bytes, list[int]] = {}
        for row, key in enumerate(_make_keys(observations, actions, rewards)):
            self._index.setdefault(key, []).append(row)
        self._seen = np.zeros(len(rewards), bool)
        self.num_rows, self.num_compared = len(rewards), 0
        self.mean_action_loss = float(np.mean((actions - actions.mean(axis=0)) ** 2))

    @property
    def num_seen(self) -> int:
        """The number of rows that were sampled at least once."""
        return int(self._seen.sum())

    def require_equal(self, batch: Any) -> None:
        """Raises `ValueError` unless each item of a batch is a row of the file, with that row's next observation."""
        observation = batch.observation
        keys = _make_keys(observation[:, 0], batch.action[:, 0], batch.reward[:, 0])
        for key, next_observation in zip(keys, observation[:, 1], strict=True):
            rows = self._index.get(key, [])
            if not any(self._next[row].tobytes() == next_observation.tobytes() for row in rows):
                raise ValueError(
                    f"an item sampled from the table is not in the file; its next observation is {next_observation}"
                )
            self._seen[rows] = True
            self.num_compared += 1


def _shift(observations: np.ndarray, terminals: np.ndarray) -> np.ndarray:
    """Returns the next observation of each row, which is 0 after a terminal row."""
    shifted = np.concatenate([observations[1:], observations[:1] * 0])
    return np.where(terminals.reshape(-1, 1), np.zeros_like(shifted), shifted)


def _make_keys(observations: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> list[bytes]:
    return [b"".join(part.tobytes() for part in row) for row in zip(observations, actions, rewards, strict=True)]


def _import_agent() -> Callable[[Source], Callable[[Any], float]]:
    """Imports TF-Agents; returns a function that builds an agent for a source and returns the agent's training step."""
    with quiet_imports():
        import tensorflow as tf
        from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
        from tf_agents.agents.ddpg.actor_network import ActorNetwork
        from tf_agents.specs.tensor_spec import BoundedTensorSpec
        from tf_agents.trajectories.time_step import time_step_spec
        from tf_agents.utils import common

    from rlds2reverb.trajectories import trajectory_spec

    def make(source: Source) -> Callable[[Any], float]:
        tf.random.set_seed(0)
        spec = trajectory_spec(source.step_spec)
        action_spec = BoundedTensorSpec(spec.action.shape, spec.action.dtype, -1.0, 1.0)
        agent = BehavioralCloningAgent(
            time_step_spec(spec.observation),
            action_spec,
            cloning_network=ActorNetwork(spec.observation, action_spec, fc_layer_params=(256, 256)),
            optimizer=tf.keras.optimizers.Adam(1e-3),
        )
        agent.initialize()
        step = common.function(agent.train)

        def train(batch: Any) -> float:
            return float(step(tf.nest.map_structure(lambda column: column[:, 0], batch)).loss)

        return train

    return make


def _sparkline(values: list[float], width: int = 24) -> str:
    means = [float(np.mean(part)) for part in np.array_split(np.array(values), min(width, len(values)))]
    low, high = min(means), max(means)
    return "".join(_BARS[round((mean - low) / ((high - low) or 1) * (len(_BARS) - 1))] for mean in means)
