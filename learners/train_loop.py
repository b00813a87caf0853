"""The inside of the loop: several iterations in one call of a graph, which reads its batches itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent

from rlds2reverb.errors import SpecMismatchError

from .feeds import Feed


@dataclass(frozen=True)
class CallResult:
    """What some iterations gave.

    Attributes:
      num_iterations: how many were done; fewer than asked for if one was not finite, which is the last one then.
      is_finite: whether losses and weights are finite after all of them.
      metrics: the mean of each scalar over the iterations, `loss` among them.
      last: the same of the last iteration alone.
      info: `SampleInfo` of arrays `[num_iterations * B]`; () if the batches have none.
      td_errors: float32 `[num_iterations * B]`; None if the agent has none.
      last_keys: uint64 `[B]`, of the last iteration's items; empty if its batch had none.
      data_wait_secs: seconds in which the iterations waited for batches; 0 where TensorFlow is deterministic, which has
        no clock.
    """

    num_iterations: int
    is_finite: bool
    metrics: dict[str, float]
    last: dict[str, float]
    info: Any
    td_errors: np.ndarray | None
    last_keys: np.ndarray
    data_wait_secs: float


def is_of_numbers(error: tf.errors.InvalidArgumentError) -> bool:
    """Returns whether an error is that of TensorFlow's check for NaN and Inf, which some agents of TF-Agents have."""
    return " values" in error.message and any(f"had {kind}" in error.message for kind in ("NaN", "Inf", "-Inf"))


def metrics_of(loss: tf_agent.LossInfo) -> dict[str, tf.Tensor]:
    """Returns the scalars of an agent's loss info by name: `loss`, and those in its `extra`."""
    metrics = {
        name: tf.cast(value, tf.float32)
        for name, value in _extra(loss).items()
        if isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating
    }
    return {**metrics, "loss": tf.cast(tf.reduce_mean(loss.loss), tf.float32)}


def td_errors_of(loss: tf_agent.LossInfo) -> tf.Tensor | None:
    """Returns the TD errors of a batch's items, float32 `[B]`, if the agent's loss info has them."""
    found = _extra(loss).get("td_error", ())
    if not isinstance(found, tf.Tensor) or not found.shape.rank:
        return None
    errors = tf.abs(tf.cast(found, tf.float32))
    return tf.reduce_mean(tf.reshape(errors, [tf.shape(errors)[0], -1]), 1)


def _has_clock() -> bool:
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:  # tf.config.experimental.enable_op_determinism forbids it
        return False
    return True


def _extra(loss: tf_agent.LossInfo) -> dict[str, Any]:
    extra = loss.extra
    if hasattr(extra, "_asdict"):
        extra = extra._asdict()
    return dict(extra) if isinstance(extra, dict) else {}


class TrainLoop:
    """Runs iterations of an agent in a graph, as many in a call as it is asked for, without tracing again."""

    def __init__(
        self,
        agent: tf_agent.TFAgent,
        feed: Feed,
        *,
        jit_compile: bool = False,
        strategy: tf.distribute.Strategy | None = None,
    ):
        """Nothing is traced yet.

        Args:
          agent: to be trained.
          feed: of its batches.
          jit_compile: whether XLA compiles an iteration.
          strategy: whose replicas share each batch; None for one device.

        Raises:
          SpecMismatchError: if the batches cannot be shared equally.
        """
        self._agent, self._feed, self._strategy = agent, feed, strategy
        self._num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        rows = tf.nest.flatten(feed.experience_spec)[0].shape[0]
        if rows is not None and rows % self._num_replicas:
            raise SpecMismatchError(
                f"a batch has {rows} items for {self._num_replicas} replicas, which share it equally; expected a "
                f"batch_size that {self._num_replicas} divides"
            )
        self._is_timed = _has_clock()
        with tf.device("CPU"):  # where an iteration is that raises
            self._at = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._keys = tf.Variable(tf.zeros([0], tf.uint64), shape=[None], trainable=False)
        self._train_part = tf.function(agent.train, jit_compile=True) if jit_compile else agent.train
        self._run = tf.function(self._iterations, autograph=False)
        self._run_once = tf.function(self._train, autograph=False)

    def __call__(self, first_iteration: int, num_iterations: int) -> CallResult:
        """Does iterations, up to the first that leaves a loss or a weight that is not finite.

        Raises:
          ValueError: if the data set ends.
        """
        self.prepare()
        try:
            done, is_finite, sums, last, infos, errors, waited = self._run(
                tf.constant(first_iteration, tf.int64), tf.constant(num_iterations, tf.int64)
            )
        except tf.errors.OutOfRangeError as error:
            raise ValueError(
                f"the data set ended after iteration {first_iteration}, before iteration "
                f"{first_iteration + num_iterations}; give an endless one, such as dataset.repeat()"
            ) from error
        except tf.errors.InvalidArgumentError as error:
            if not is_of_numbers(error):
                raise
            num, nan = int(self._at) - first_iteration + 1, {"loss": float("nan")}
            return CallResult(num, False, nan, nan, (), None, self._keys.numpy(), 0.0)
        num = int(done)
        return CallResult(
            num,
            bool(is_finite),
            {name: float(value) / max(num, 1) for name, value in sums.items()},
            {name: float(value) for name, value in last.items()},
            tf.nest.map_structure(lambda column: column.numpy(), infos),
            None if isinstance(errors, tuple) else errors.numpy(),
            self._keys.numpy(),
            float(waited),
        )

    def on_batch(self, experience: Any, weights: Any, info: Any) -> CallResult:
        """Does one iteration on a batch that is given, whose info are arrays or ()."""
        metrics, errors = self._run_once(experience, weights)
        found = {name: float(value) for name, value in metrics.items()}
        keys = np.ravel(getattr(info, "key", ()))
        is_finite = bool(self.is_finite(metrics["loss"]))
        return CallResult(
            1, is_finite, found, found, info, None if isinstance(errors, tuple) else errors.numpy(), keys, 0.0
        )

    @property
    def num_traces(self) -> int:
        """How often the loop was traced."""
        return int(self._run.experimental_get_tracing_count())

    def prepare(self) -> None:
        """Traces an iteration, if that was not done yet: the loop has to know what it gives. Nothing is trained."""
        _ = self._outputs

    def _train(self, experience: Any, weights: Any) -> tuple[dict[str, tf.Tensor], Any]:
        """Traced: trains on a batch, of which each replica gets its part.

        Returns the metrics, means over the replicas, and the TD errors of all items in their order; () for none.
        """

        def train(experience: Any, weights: Any) -> Any:
            loss = self._train_part(experience, weights=weights)
            errors = td_errors_of(loss)
            return metrics_of(loss), () if errors is None else errors

        if self._strategy is None or self._num_replicas == 1:
            return train(experience, weights)

        def train_own_part() -> Any:
            context = tf.distribute.get_replica_context()

            def part(column: tf.Tensor) -> tf.Tensor:
                rows = tf.shape(column)[0] // self._num_replicas
                begin = context.replica_id_in_sync_group * rows
                return column[begin : begin + rows]

            return train(tf.nest.map_structure(part, experience), None if weights is None else part(weights))

        metrics, errors = self._strategy.run(train_own_part)
        mean = {name: self._strategy.reduce("MEAN", value, axis=None) for name, value in metrics.items()}
        parts = () if isinstance(errors, tuple) else self._strategy.experimental_local_results(errors)
        return mean, tf.concat(parts, 0) if parts else ()

    def _iterations(self, first: tf.Tensor, num: tf.Tensor) -> Any:
        """Traced: the loop. Its state are the scalars; keys and TD errors of all iterations are stacked."""
        metrics, info, errors = self._outputs
        stacks = [
            tf.TensorArray(leaf.dtype, size=0, dynamic_size=True, element_shape=leaf.shape)
            for leaf in tf.nest.flatten((info, errors))
        ]
        zeros = {name: tf.zeros([], tf.float32) for name in metrics}

        def is_to_go_on(done: tf.Tensor, finite: tf.Tensor, *_: Any) -> tf.Tensor:
            return (done < num) & finite

        def iterate(
            done: tf.Tensor, _: tf.Tensor, sums: Any, last: Any, stacks: Any, waited: tf.Tensor
        ) -> tuple[Any, ...]:
            secs, (experience, info) = self._timed_next(first + done)
            noted = [self._at.assign(first + done)]
            if self._feed.has_info:
                noted.append(self._keys.assign(tf.reshape(tf.cast(info.key, tf.uint64), [-1])))
            with tf.control_dependencies(noted):
                experience = tf.nest.map_structure(tf.identity, experience)
            found, errors = self._train(experience, getattr(info, "weight", None))
            rows = tf.nest.flatten((info if self._feed.has_info else (), errors))
            place = tf.cast(done, tf.int32)
            stacks = [stack.write(place, row) for stack, row in zip(stacks, rows, strict=True)]
            sums = {name: sums[name] + value for name, value in found.items()}
            with tf.control_dependencies([found["loss"]]):
                finite = self.is_finite(found["loss"])
            return done + 1, finite, sums, found, stacks, waited + secs

        state = (tf.constant(0, tf.int64), tf.constant(True), zeros, zeros, stacks, tf.zeros([], tf.float64))
        done, finite, sums, last, stacks, waited = tf.while_loop(is_to_go_on, iterate, state, parallel_iterations=1)
        flat = [stack.concat() for stack in stacks]
        infos, errors = tf.nest.pack_sequence_as((info, errors), flat)
        return done, finite, sums, last, infos, errors, waited

    @cached_property
    def _outputs(self) -> tuple[dict[str, tf.TensorSpec], Any, Any]:
        """The specs of an iteration's metrics, info and TD errors, without doing one."""

        def once() -> Any:
            experience, info = self._feed.next(tf.constant(0, tf.int64))
            metrics, errors = self._train(experience, getattr(info, "weight", None))
            return metrics, info if self._feed.has_info else (), errors

        return tf.function(once, autograph=False).get_concrete_function().structured_outputs

    def _timed_next(self, iteration: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the seconds that the next batch took, 0 where time cannot be taken, and the batch."""
        if not self._is_timed:
            return tf.zeros([], tf.float64), self._feed.next(iteration)
        before = tf.timestamp()
        with tf.control_dependencies([before]):
            batch = self._feed.next(iteration)
        with tf.control_dependencies(tf.nest.flatten(batch)):
            after = tf.timestamp()
        return after - before, batch

    def is_finite(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns whether the loss and all weights are finite; a gradient that is not spoils a weight at once."""
        sums = [tf.reduce_sum(tf.cast(weight, tf.float32)) for weight in self._agent.trainable_variables]
        return tf.reduce_all(tf.math.is_finite(tf.stack([tf.cast(tf.reduce_mean(loss), tf.float32), *sums])))
