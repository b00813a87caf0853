"""`rlds2reverb demo`: the whole way, from a D4RL file to a trained policy, with every number checked on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import h5py
import numpy as np

from rlds2reverb._text import number_text
from rlds2reverb.errors import SourceError
from rlds2reverb.sources import Source, load
from rlds2reverb.sources.summary import summarize
from rlds2reverb.tables import TableConfig

from . import output
from .quiet import import_quietly, quiet_imports

if TYPE_CHECKING:
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb.ingestion import IngestReport

_BATCH_SIZE = 256
_BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--num-batches", default=400, show_default=True, help="Training steps, of 256 transitions each.")
def demo(file: Path, num_batches: int) -> None:
    """Convert a D4RL file, read it back, compare it bit for bit, and clone its behaviour.

    A prioritized Reverb table is filled from FILE and served on a free port; each batch that comes back is compared
    with the file before TF-Agents' BehavioralCloningAgent is trained on it.
    """
    began = time.perf_counter()
    out = output.console()
    import_quietly("reverb", "tf_agents.trajectories")
    agent_class = _behavioral_cloning_agent()
    source = load(file)
    if source.kind != "d4rl":
        raise SourceError(f"{file.name} is a {source.kind} file; the demo compares with D4RL's columns")
    summary = summarize(source)
    ends = f"{summary.terminals:,} terminal, {summary.timeouts:,} truncated, {summary.unterminated:,} open"
    out.print(f"\n[bold]1  The data[/]   {output.plain(file.name)}")
    out.print(f"   {summary.episodes:,} episodes ({ends}), {summary.transitions:,} transitions")
    returns = summary.returns
    mean, low, high = (number_text(value) for value in (returns.mean, returns.min, returns.max))
    out.print(f"   return {mean} on average, from {low} to {high}")
    with _filled_server(source) as (server, report):
        out.print("\n[bold]2  Into Reverb[/]")
        out.print(f"   {report.items:,} items of two steps in the prioritized table 'replay' on {server.address}")
        out.print(f"   {number_text(round(report.steps_per_second))} steps/s, checks included")
        out.print("\n[bold]3  Back again, and into a policy[/]")
        rows = _FileRows(file)
        losses = []
        train = agent_class(source)
        for index, batch in enumerate(_batches(server.address, num_batches)):
            rows.require_equal(batch)
            losses.append(train(batch))
            if (index + 1) % max(1, num_batches // 4) == 0:
                out.print(f"   batch {index + 1:>5,}   loss {losses[-1]:.4f}")
    first, last = float(np.mean(losses[:5])), float(np.mean(losses[-20:]))
    out.print()
    output.print_facts(
        "What came of it",
        [
            ("read back", f"{rows.num_compared:,} items, every one equal to the file bit for bit"),
            ("seen", f"{rows.num_seen:,} of the file's {rows.num_rows:,} rows"),
            ("loss", f"{first:.4f} -> {last:.4f}   {_sparkline(losses)}"),
            ("compare", f"{rows.mean_action_loss:.4f} for always answering with the mean action"),
            ("time", f"{time.perf_counter() - began:.0f} s"),
        ],
    )
    if not last < first:
        raise ValueError(f"the loss did not go down: {first:.4f} at first, {last:.4f} at last")
    out.print(f"\nNext: rlds2reverb inspect {output.plain(str(file))}, rlds2reverb convert --help")


@contextmanager
def _filled_server(source: Source) -> Iterator[tuple[ReplayServer, IngestReport]]:
    """A server with the data set in a prioritized table."""
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb.ingestion import ingest
    from rlds2reverb.tables import item_signature
    from rlds2reverb.trajectories import trajectory_spec

    with ReplayServer([TableConfig()], item_signature(trajectory_spec(source.step_spec), 2)) as server:
        yield server, ingest(source, server.address)


def _batches(address: str, num_batches: int) -> Iterator[Any]:
    import reverb
    from tf_agents.trajectories.trajectory import Trajectory

    dataset = reverb.TrajectoryDataset.from_table_signature(address, "replay", max_in_flight_samples_per_worker=512)
    for sample in dataset.batch(_BATCH_SIZE).prefetch(4).take(num_batches):
        yield Trajectory(*sample.data)


class _FileRows:
    """The rows of the file, read with h5py and nothing of ours, to compare items with."""

    def __init__(self, path: Path):
        with h5py.File(path) as file:
            observations, actions = file["observations"][:], file["actions"][:]
            rewards, terminals = file["rewards"][:].reshape(-1), file["terminals"][:].astype(bool)
            following = (
                file["next_observations"][:] if "next_observations" in file else _shifted(observations, terminals)
            )
        self._index: dict[bytes, list[int]] = {}
        self._following = following
        for row, key in enumerate(_keys(observations, actions, rewards)):
            self._index.setdefault(key, []).append(row)
        self._seen = np.zeros(len(rewards), bool)
        self.num_rows, self.num_compared = len(rewards), 0
        self.mean_action_loss = float(np.mean((actions - actions.mean(axis=0)) ** 2))

    @property
    def num_seen(self) -> int:
        """Rows that came back at least once."""
        return int(self._seen.sum())

    def require_equal(self, batch: Any) -> None:
        """Raises `ValueError` unless each item of a batch is a row of the file, with that row's next observation."""
        observation = batch.observation.numpy()
        keys = _keys(observation[:, 0], batch.action.numpy()[:, 0], batch.reward.numpy()[:, 0])
        for key, following in zip(keys, observation[:, 1], strict=True):
            rows = self._index.get(key, [])
            if not any(self._following[row].tobytes() == following.tobytes() for row in rows):
                raise ValueError(f"an item of the table is not in the file: {following}")
            self._seen[rows] = True
            self.num_compared += 1


def _shifted(observations: np.ndarray, terminals: np.ndarray) -> np.ndarray:
    following = np.concatenate([observations[1:], observations[:1] * 0])
    return np.where(terminals.reshape(-1, 1), np.zeros_like(following), following)


def _keys(observations: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> list[bytes]:
    return [b"".join(part.tobytes() for part in row) for row in zip(observations, actions, rewards, strict=True)]


def _behavioral_cloning_agent() -> Callable[[Source], Callable[[Any], float]]:
    """Gives a function that makes the training step of an agent for a source."""
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
