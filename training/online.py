"""The online phase of a run: the agent collects steps in environments, and learns from them and from the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb import ReplayServer, TableConfig, packed_signature
from rlds2reverb.errors import ArgumentError
from rlds2reverb.learners import Learner
from rlds2reverb.learners.collected_items import CollectedItems
from rlds2reverb.learners.feeds import Feed, JoinedFeed, StreamingDataset
from rlds2reverb.learners.hooks.hook import LearnerHook, Phase
from rlds2reverb.reverb.sampling import SamplePlan
from rlds2reverb.reverb.wire.packing import Packing
from rlds2reverb.types.items import Items
from rlds2reverb.types.specs import Nest

from .collected_pieces import ItemWriter, PieceConverter
from .collector import Collector
from .config import TrainingConfig
from .data import PREFETCH, RunFeed, TrainingData

TABLE = "collected"


class OnlinePhase:
    """The environments, the collected items, and their batches. The learner saves them in its checkpoints.

    Batches consist of items of the dataset and collected ones, sampled uniformly from each (Ball et al. 2023,
    "Efficient Online Reinforcement Learning with Offline Data", arXiv:2302.02948, section 4.1: half and half). Without
    a dataset, all items are collected ones. Rewards are transformed as those of the dataset, and a timeout keeps the
    value of the last observation. An algorithm with `step_info` learns from an episode once it has ended.

    Attributes:
      feed: the feed of the learner during the phase.
    """

    #: Checkpoints of the updates on the dataset contain nothing collected; see `checkpoints.Replay`.
    may_be_missing = True

    def __init__(self, config: TrainingConfig, data: TrainingData, batches: RunFeed | None, make_env: Any, policy: Any):
        """Allocates memory for the items; `start` creates the environments.

        Args:
          config: the options of the run.
          data: the data of the run, or the specs of an environment.
          batches: the batches of the dataset, or None.
          make_env: see `Collector`.
          policy: the policy that collects.
        """
        self._config = config
        self._convert = PieceConverter.of_run(config, data)
        self._collector = Collector(
            make_env, policy, num_envs=config.num_envs, seed=config.seed, num_kept=self._convert.num_kept
        )
        size = config.batch_size or 1  # A configuration always has one.
        num_online = size if batches is None else max(round(size * config.online_ratio), 1)
        item_spec = self._convert.item_spec(data.time_step_spec.observation, data.action_spec)
        self._items: CollectedItems | CollectedTable
        if config.online_replay == "memory":
            # Memory for more items than can be collected is not allocated; a continued run may collect more.
            capacity = min(config.replay_size, config.online_steps + config.num_envs)
            self._items = CollectedItems(item_spec, capacity, num_online, seed=config.seed)
        else:
            self._items = CollectedTable(item_spec, config.replay_size, num_online, squeeze=self._convert.squeeze)
        self.feed: Feed = self._items
        if batches is not None and num_online < size:
            try:
                self.feed = JoinedFeed([batches.resize(size - num_online), self._items])
            except BaseException:
                self.close()
                raise

    @property
    def address(self) -> str | None:
        """The address of the server with the collected items; None if they are in memory."""
        return self._items.server.address if isinstance(self._items, CollectedTable) else None

    def close(self) -> None:
        """Closes the environments, and stops the server if there is one. Idempotent."""
        self._collector.close()
        if isinstance(self._items, CollectedTable):
            self._items.stop()

    def start(self) -> None:
        """Creates the environments, unless all steps are collected, so that broken ones fail before the first update.

        Raises:
          Exception: See `Collector.start`.
        """
        if self._collector.num_collected < self._config.online_steps:
            self._collector.start()

    def make_hook(self) -> LearnerHook:
        """Returns the hook that logs the number of collected steps, and the returns of the last episodes."""
        return _LogCollectedHook(self._collector, every=self._config.log_every)

    def require_reachable(self, step: int) -> None:
        """Raises `ValueError` if a run without collected steps has made more updates than precede the phase."""
        if step > self._config.num_offline_updates and not self._collector.num_collected:
            about, verb = self._config.length_option
            raise ArgumentError(
                f"{verb} at least {step:,}, the number of updates that the run has already made, got "
                f"{self._config.num_offline_updates:,}",
                about=about,
            )

    def run(self, learner: Learner) -> None:
        """Collects and trains until all steps are collected, or the learner is stopped.

        Args:
          learner: the learner, which is running; its updates on the dataset are done.

        Raises:
          ValueError: If the algorithm learns from whole episodes, and none has ended.
          Exception: See `Learner.advance` and `Collector.collect`.
        """
        config, collector = self._config, self._collector
        learner.replace_dataset(self.feed)
        if learner.step:
            learner.save_checkpoint()
        while not learner.stop_reason:
            if self._items.num_added:
                learner.advance(config.count_updates(collector.num_collected))
            missing = config.online_steps - collector.num_collected
            if learner.stop_reason or missing <= 0:
                break
            is_random = not config.num_offline_updates and collector.num_collected < config.warmup_steps
            stop = {"should_stop": lambda: learner.is_stopped_by_signal}
            for piece in collector.collect(min(config.update_every, missing), is_random=is_random, **stop):
                self._items.append(self._convert(piece))
            if not learner.is_stopped_by_signal:
                learner.record_data()
        if not learner.stop_reason and not self._items.num_added:
            raise ArgumentError(
                f"must be larger, got {config.online_steps:,}: no episode has ended, and {config.algo} learns from the "
                "returns of whole episodes",
                about="online_steps",
            )

    def save_data(self, folder: Path) -> None:
        """Writes the collected items, and the states of the environments; see `checkpoints.Replay`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._items.save_data(folder)
        self._collector.save_data(folder)

    def load_data(self, folder: Path) -> None:
        """Restores what `save_data` wrote."""
        self._items.load_data(folder)
        self._collector.load_data(folder)


class CollectedTable(Feed):
    """A table to which items are added, on its own server, which other processes can sample as well.

    When the table is full, each new item replaces the oldest one. Samples are not repeatable.

    Attributes:
      server: the server.
    """

    def __init__(self, item_spec: Nest, capacity: int, batch_size: int, *, squeeze: bool):
        """Starts the server.

        Args:
          item_spec: nest of `tf.TensorSpec` of one item, such as `adder.item_spec(...)`.
          capacity: maximum number of items to hold.
          batch_size: number of items in a batch.
          squeeze: whether items are single rows without a time axis.
        """
        self.num_added = 0
        self.server = ReplayServer(
            [TableConfig(TABLE, max_size=capacity)], packed_signature(Packing(item_spec, squeeze)), serve_batches=True
        )
        self._writer = ItemWriter(self.server, TABLE)
        samples = SamplePlan(self.server, TABLE, batch_size, beta=0.0, prefetch=PREFETCH)
        self._feed = StreamingDataset(samples)
        self.data_spec = self._feed.data_spec

    def append(self, items: Items) -> None:
        """Adds items of the spec, and waits until the server has them.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        if len(items):
            self._writer.write(items, self.num_added)
            self.num_added += len(items)

    def read(self, first_step: int, count: int) -> tuple[Nest, Any]:
        """Implements `Feed.read`."""
        return self._feed.read(first_step, count)[0], ()

    def close(self) -> None:
        """Releases the iterator over the samples."""
        self._feed.close()

    def stop(self) -> None:
        """Stops the server."""
        self._writer.close()
        self.server.stop()

    def save_data(self, folder: Path) -> None:
        """Writes all items into a folder."""
        self.server.save_data(folder / TABLE)
        (folder / f"{TABLE}.txt").write_text(str(self.num_added))

    def load_data(self, folder: Path) -> None:
        """Replaces all items by those that `save_data` wrote into a folder.

        Raises:
          CheckpointError: If the folder contains no such items.
        """
        self.server.load_data(folder / TABLE)
        self.num_added = int((folder / f"{TABLE}.txt").read_text())


class _LogCollectedHook(LearnerHook):
    """A hook that logs the number of collected steps, and the mean return of the last episodes."""

    phase = Phase.REDUCE_LOG

    def __init__(self, collector: Collector, *, every: int):
        super().__init__("log_collected", position="after_iter", every=every)
        self._collector = collector

    def __call__(self, learner: Learner) -> None:
        """Adds the numbers to the log buffer."""
        numbers = {"collected_steps": float(self._collector.num_collected)}
        if self._collector.returns:
            numbers["collected_return"] = float(np.mean(self._collector.returns))
        learner.log_buffer = {**learner.log_buffer, **numbers}
