"""Items that are collected during training, in a table of a Reverb server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb import ReplayServer, TableConfig, packed_signature
from rlds2reverb.encoding.packing import Packing
from rlds2reverb.items import Items
from rlds2reverb.learners.feeds import Feed, StreamingDataset
from rlds2reverb.sampling import SamplePlan
from rlds2reverb.specs import Nest

from .collected_pieces import ItemWriter

TABLE = "collected"
_PREFETCH = 4


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
            [TableConfig(TABLE, max_size=capacity)],
            packed_signature(Packing(item_spec, squeeze)),
            serve_batches=True,
        )
        self._writer = ItemWriter(self.server, TABLE)
        samples = SamplePlan(self.server, TABLE, batch_size, beta=0.0, prefetch=_PREFETCH)
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
