"""The inner training loop: several iterations in one call of a graph that reads its own batches."""

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
    """The results of one call of the graph.

    Attributes:
      num_iterations: number of completed iterations; fewer than requested if the last one produced a value that is not
        finite.
      is_finite: whether losses and weights were finite after every iteration.
      metrics: mean of each scalar over the iterations, including `loss`.
      last: scalars of the last iteration.
      info: `SampleInfo` of arrays `[num_iterations * B]`; () if the batches have none.
      td_errors: float32 `[num_iterations * B]`; None if the agent computes none.
      last_keys: uint64 `[B]`, keys of the last iteration's items; empty if its batch has none.
      data_wait_secs: seconds spent waiting for batches; 0 if TensorFlow runs deterministically, which disables its
        clock.
    """

    num_iterations: int
    is_finite: bool
    metrics: dict[str, float]
    last: dict[str, float]
    info: Any
    td_errors: np.ndarray | None
    last_keys: np.ndarray
    data_wait_secs: float


def is_check_numerics_error(error: tf.errors.InvalidArgumentError) -> bool:
    """Returns whether an error was raised by `tf.debugging.check_numerics`, which some TF-Agents agents call."""
    return " values" in error.message and any(f"had {kind}" in error.message for kind in ("NaN", "Inf", "-Inf"))


def extract_metrics(loss: tf_agent.LossInfo) -> dict[str, tf.Tensor]:
    """Returns the scalars of an agent's loss info by name: `loss`, and those in its `extra`."""
    metrics = {
        name: tf.cast(value, tf.float32)
        for name, value in _convert_extra(loss).items()
        if isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating
    }
    return {**metrics, "loss": tf.cast(tf.reduce_mean(loss.loss), tf.float32)}


def extract_td_errors(loss: tf_agent.LossInfo) -> tf.Tensor | None:
    """Returns the absolute TD error of each item in a batch, float32 `[B]`; None if the loss info has none."""
    td_error = _convert_extra(loss).get("td_error", ())
    if not isinstance(td_error, tf.Tensor) or not td_error.shape.rank:
        return None
    errors = tf.abs(tf.cast(td_error, tf.float32))
    return tf.reduce_mean(tf.reshape(errors, [tf.shape(errors)[0], -1]), 1)


def _has_clock() -> bool:
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:  # tf.config.experimental.enable_op_determinism() forbids timestamps.
        return False
    return True


def _convert_extra(loss: tf_agent.LossInfo) -> dict[str, Any]:
    """Returns the `extra` of a loss info as a dict, whether it is a named tuple, a dict, or empty."""
    extra = loss.extra
    if hasattr(extra, "_asdict"):
        extra = extra._asdict()
    return dict(extra) if isinstance(extra, dict) else {}


class TrainLoop:
    """Iterations of an agent in a graph that is traced once for any number of iterations per call."""

    def __init__(
        self,
        agent: tf_agent.TFAgent,
        feed: Feed,
        *,
        jit_compile: bool = False,
        strategy: tf.distribute.Strategy | None = None,
    ):
        """Checks the batch size; nothing is traced yet.

        Args:
          agent: the agent to train.
          feed: source of batches.
          jit_compile: whether to compile an iteration with XLA.
          strategy: distribution strategy whose replicas share each batch; None for a single device.

        Raises:
          SpecMismatchError: If the batches cannot be split equally between the replicas.
        """
        self._agent, self._feed, self._strategy = agent, feed, strategy
        self._num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        rows = tf.nest.flatten(feed.experience_spec)[0].shape[0]
        if rows is not None and rows % self._num_replicas:
            raise SpecMismatchError(
                f"batch_size must be a multiple of the {self._num_replicas} replicas, which share each batch equally, "
                f"got {rows}"
            )
        self._has_clock = _has_clock()
        with tf.device("CPU"):  # These identify the batch if an iteration raises.
            self._iteration = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._keys = tf.Variable(tf.zeros([0], tf.uint64), shape=[None], trainable=False)
        self._train_agent = tf.function(agent.train, jit_compile=True) if jit_compile else agent.train
        self._run = tf.function(self._run_iterations, autograph=False)
        self._run_once = tf.function(self._train_batch, autograph=False)

    def __call__(self, first_iteration: int, num_iterations: int) -> CallResult:
        """Runs iterations, and stops early after the first with a non-finite loss or weight.

        Raises:
          ValueError: If the dataset ends.
        """
        self.prepare()
        try:
            done, is_finite, sums, last, infos, errors, waited = self._run(
                tf.constant(first_iteration, tf.int64), tf.constant(num_iterations, tf.int64)
            )
        except tf.errors.OutOfRangeError as error:
            raise ValueError(
                f"the dataset ended between iterations {first_iteration} and {first_iteration + num_iterations}; "
                "use an endless dataset, such as dataset.repeat()"
            ) from error
        except tf.errors.InvalidArgumentError as error:
            if not is_check_numerics_error(error):
                raise
            num, metrics = int(self._iteration) - first_iteration + 1, {"loss": float("nan")}
            return CallResult(num, False, metrics, metrics, (), None, self._keys.numpy(), 0.0)
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

    def run_on_batch(self, experience: Any, weights: Any, info: Any) -> CallResult:
        """Runs one iteration on the given batch, whose info is a `SampleInfo` of arrays or ()."""
        metrics, errors = self._run_once(experience, weights)
        scalars = {name: float(value) for name, value in metrics.items()}
        keys = np.ravel(getattr(info, "key", ()))
        is_finite = bool(self._is_finite(metrics["loss"]))
        td_errors = None if isinstance(errors, tuple) else errors.numpy()
        return CallResult(1, is_finite, scalars, scalars, info, td_errors, keys, 0.0)

    @property
    def num_traces(self) -> int:
        """The number of times the loop was traced."""
        return int(self._run.experimental_get_tracing_count())

    def prepare(self) -> None:
        """Traces an iteration, without training, to determine its outputs. Idempotent."""
        _ = self._outputs

    def _train_batch(self, experience: Any, weights: Any) -> tuple[dict[str, tf.Tensor], Any]:
        """Trains on a batch, which is split between the replicas; traced.

        Returns the metrics, averaged over the replicas, and the TD errors of all items in order, or () if none.
        """

        def train(experience: Any, weights: Any) -> Any:
            loss = self._train_agent(experience, weights=weights)
            errors = extract_td_errors(loss)
            return extract_metrics(loss), () if errors is None else errors

        if self._strategy is None or self._num_replicas == 1:
            return train(experience, weights)

        def train_replica() -> Any:
            context = tf.distribute.get_replica_context()

            def slice_rows(column: tf.Tensor) -> tf.Tensor:
                rows = tf.shape(column)[0] // self._num_replicas
                begin = context.replica_id_in_sync_group * rows
                return column[begin : begin + rows]

            own_weights = None if weights is None else slice_rows(weights)
            return train(tf.nest.map_structure(slice_rows, experience), own_weights)

        metrics, errors = self._strategy.run(train_replica)
        mean = {name: self._strategy.reduce("MEAN", value, axis=None) for name, value in metrics.items()}
        slices = () if isinstance(errors, tuple) else self._strategy.experimental_local_results(errors)
        return mean, tf.concat(slices, 0) if slices else ()

    def _run_iterations(self, first: tf.Tensor, num: tf.Tensor) -> Any:
        """Runs the loop; traced. It carries the scalars, and stacks the info and TD errors of all iterations."""
        metrics, info, errors = self._outputs
        stacks = [
            tf.TensorArray(leaf.dtype, size=0, dynamic_size=True, element_shape=leaf.shape)
            for leaf in tf.nest.flatten((info, errors))
        ]
        zeros = {name: tf.zeros([], tf.float32) for name in metrics}

        def should_continue(done: tf.Tensor, finite: tf.Tensor, *_: Any) -> tf.Tensor:
            return (done < num) & finite

        def iterate(
            done: tf.Tensor, _: tf.Tensor, sums: Any, last: Any, stacks: Any, waited: tf.Tensor
        ) -> tuple[Any, ...]:
            secs, (experience, info) = self._time_next_batch(first + done)
            assignments = [self._iteration.assign(first + done)]
            if self._feed.has_info:
                assignments.append(self._keys.assign(tf.reshape(tf.cast(info.key, tf.uint64), [-1])))
            with tf.control_dependencies(assignments):
                experience = tf.nest.map_structure(tf.identity, experience)
            scalars, errors = self._train_batch(experience, getattr(info, "weight", None))
            rows = tf.nest.flatten((info if self._feed.has_info else (), errors))
            index = tf.cast(done, tf.int32)
            stacks = [stack.write(index, row) for stack, row in zip(stacks, rows, strict=True)]
            sums = {name: sums[name] + value for name, value in scalars.items()}
            with tf.control_dependencies([scalars["loss"]]):
                finite = self._is_finite(scalars["loss"])
            return done + 1, finite, sums, scalars, stacks, waited + secs

        state = (tf.constant(0, tf.int64), tf.constant(True), zeros, zeros, stacks, tf.zeros([], tf.float64))
        done, finite, sums, last, stacks, waited = tf.while_loop(should_continue, iterate, state, parallel_iterations=1)
        flat = [stack.concat() for stack in stacks]
        infos, errors = tf.nest.pack_sequence_as((info, errors), flat)
        return done, finite, sums, last, infos, errors, waited

    @cached_property
    def _outputs(self) -> tuple[dict[str, tf.TensorSpec], Any, Any]:
        """The specs of an iteration's metrics, info and TD errors."""

        def iterate_once() -> Any:
            experience, info = self._feed.next(tf.constant(0, tf.int64))
            metrics, errors = self._train_batch(experience, getattr(info, "weight", None))
            return metrics, info if self._feed.has_info else (), errors

        return tf.function(iterate_once, autograph=False).get_concrete_function().structured_outputs

    def _time_next_batch(self, iteration: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the seconds that reading the next batch took, or 0 without a clock, and the batch."""
        if not self._has_clock:
            return tf.zeros([], tf.float64), self._feed.next(iteration)
        before = tf.timestamp()
        with tf.control_dependencies([before]):
            batch = self._feed.next(iteration)
        with tf.control_dependencies(tf.nest.flatten(batch)):
            after = tf.timestamp()
        return after - before, batch

    def _is_finite(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns whether the loss and all weights are finite; a non-finite gradient shows in the weights at once."""
        sums = [tf.reduce_sum(tf.cast(weight, tf.float32)) for weight in self._agent.trainable_variables]
        return tf.reduce_all(tf.math.is_finite(tf.stack([tf.cast(tf.reduce_mean(loss), tf.float32), *sums])))
