"""The conversion of collected pieces of episodes into items, and their writer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
import tree
import xxhash

from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.reverb.client import Server
from rlds2reverb.reverb.wire.encoder import Encoder
from rlds2reverb.reverb.wire.item_blocks import ItemBlock
from rlds2reverb.reverb.wire.packing import pack_columns
from rlds2reverb.reverb.writing.bulk_writer import BulkWriter
from rlds2reverb.types import fields
from rlds2reverb.types.items import Items
from rlds2reverb.types.specs import ArraySpec, Nest, make_step_spec

from .collector import Piece
from .config import TrainingConfig
from .data import TrainingData
from .step_info import get_return_options, make_step_info, step_info_spec


class PieceConverter:
    """Converts the pieces that a `Collector` returns into items.

    For an algorithm with `step_info`, a piece is a whole episode, because its returns are known only when it has ended.
    Otherwise, items that would reach beyond the end of a piece follow with the next one, which repeats the last
    `num_kept` steps.

    Attributes:
      num_kept: number of steps that consecutive pieces must share.
      squeeze: whether items are single rows without a time axis.
    """

    def __init__(
        self,
        adder: Any,
        reward_transform: Any = None,
        *,
        step_info: Sequence[str] = (),
        gamma: float = 1.0,
        failure_reward: float | None = None,
    ) -> None:
        """Sets the conversion.

        Args:
          adder: adder of the items, which has `n` or a `length`.
          reward_transform: transform of the rewards, as applied to the dataset; None to leave them unchanged.
          step_info: names of the numbers to add to each step; see `Algorithm.step_info`.
          gamma: discount factor of the returns among them.
          failure_reward: reward of failed episodes; see `make_step_info`.
        """
        self._adder, self._reward_transform = adder, reward_transform
        self._step_info = tuple(step_info)
        self._return_options: dict[str, Any] = {"gamma": gamma, "failure_reward": failure_reward}
        self.squeeze: bool = adder.squeeze
        #: Number of steps that are only read as the history of an item.
        self._num_earlier = adder.history.num_earlier
        self.num_kept: int = self._num_earlier + (adder.n if self.squeeze else adder.length) - 1
        if step_info:
            self.num_kept = sys.maxsize  # All steps, until the episode has ended.

    @classmethod
    def of_run(cls, config: TrainingConfig, data: TrainingData) -> PieceConverter:
        """Returns the converter of what a run collects."""
        names = get_algorithm(config.algo).step_info
        options = get_return_options(config) if names else {}
        return cls(data.collected_adder, data.reward_transform, step_info=names, **options)

    def item_spec(self, observation_spec: Nest, action_spec: Any) -> Nest:
        """Returns the spec of an item, a nest of `tf.TensorSpec`, for steps with these TF-Agents specs."""
        number = ArraySpec((), np.dtype(np.float32))
        info = {fields.POLICY_INFO: step_info_spec(self._step_info)} if self._step_info else {}
        return self._adder.item_spec(
            {
                fields.OBSERVATION: tf.nest.map_structure(_make_array_spec, observation_spec),
                fields.ACTION: _make_array_spec(action_spec),
                fields.REWARD: number,
                fields.DISCOUNT: number,
                **dict.fromkeys(fields.FLAG_FIELDS, ArraySpec((), np.dtype(bool))),
                **info,
            }
        )

    def __call__(self, piece: Piece) -> Items:
        """Returns the items of a piece."""
        steps, num_steps = dict(piece.episode.steps), len(piece.episode.steps[fields.REWARD])
        if self._reward_transform is not None:
            steps[fields.REWARD] = self._reward_transform.transform(steps)
        if self._step_info:
            info = make_step_info(steps, np.array([num_steps]), self._step_info, **self._return_options)
            steps[fields.POLICY_INFO] = info
        items: Items = self._adder(replace(piece.episode, steps=steps))
        begin = 0 if steps[fields.IS_FIRST][0] else self._num_earlier
        is_shared = num_steps - 1 > self.num_kept  # Otherwise the next piece begins at the same step.
        end = num_steps - 1 - self.num_kept + self._num_earlier if is_shared else begin
        chosen = slice(begin, None if piece.is_complete else end)
        return Items(items.columns, items.starts[chosen], items.lengths[chosen], items.squeeze)


class ItemWriter:
    """Writes items to a table, which stores them in packed form. Close it at the end."""

    def __init__(self, server: Server, table: str, *, name: str = "", timeout_secs: float = 30.0):
        """Connects nothing yet.

        Args:
          server: server to write to; see `client.find_address`.
          table: name of the table.
          name: name of the writer, different from those of all other writers of the table. The keys of items are
            derived from it and from their number, so that equal items are different ones.
          timeout_secs: maximum time to wait for the server.
        """
        self._server, self._table, self._timeout_secs = server, table, timeout_secs
        self._salt = xxhash.xxh3_64_digest(name.encode())
        self._writer: BulkWriter | None = None

    def write(self, items: Items, first: int) -> None:
        """Writes items, and waits until the server has all of them.

        Args:
          items: the items.
          first: number of items that this writer has written before. Items that are written again with the same number
            are stored once.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
          ServerRestartedError: If the server was restarted.
        """
        columns = [pack_columns(tree.flatten(items.columns))]
        if self._writer is None:
            encoder = Encoder(tree.flatten(make_step_spec(columns)), [self._table], squeeze=items.squeeze)
            self._writer = BulkWriter(self._server, encoder, timeout_secs=self._timeout_secs)
        digest = self._salt + first.to_bytes(8, "big")
        block = ItemBlock.from_episode(columns, items.starts, items.lengths, np.ones(len(items)), digest=digest)
        self._writer.write([block])
        self._writer.flush_and_forget()

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _make_array_spec(spec: Any) -> ArraySpec:
    return ArraySpec(tuple(spec.shape), np.dtype(spec.dtype.as_numpy_dtype))
