"""The inner training loop: several iterations in one call of a graph that reads its own batches."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent

from rlds2reverb._internals.dataset_errors import describe_error, require_no_reason
from rlds2reverb._logs import hide_native_stderr
from rlds2reverb.errors import SpecMismatchError, TrainingDivergedError
from rlds2reverb.sampling.errors import translate_error

from .divergence import describe_divergence, is_check_numerics_error
from .feeds import Feed, InMemoryDataset


@dataclass(frozen=True)
class CallResult:
    """The results of one call of the graph.

    Attributes:
      num_iterations: number of completed iterations.
      metrics: mean of each scalar over the iterations, including `loss`.
      last: scalars of the last iteration.
      info: `SampleInfo` of arrays `[num_iterations * B]`, without masks; () if the batches have none.
      td_errors: float32 `[num_iterations * B]`; None if the agent computes none.
      data_wait_secs: seconds spent waiting for batches; 0 if TensorFlow runs deterministically, which disables its
        clock.
    """

    num_iterations: int
    metrics: dict[str, float]
    last: dict[str, float]
    info: Any
    td_errors: np.ndarray | None
    data_wait_secs: float


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


def _translate(error: tf.errors.OpError) -> Exception:
    """Returns the exception for an error of a graph: the one that made its dataset or its agent fail, if known."""
    translated = translate_error(error)
    if translated is None and isinstance(error, tf.errors.OutOfRangeError):
        return ValueError("the dataset ended; use an endless dataset, such as dataset.repeat()")
    return error if translated is None else translated


@cache
def _compile_first_function() -> None:
    """Compiles a trivial function, because XLA writes two lines to stderr when it first compiles one in a process."""
    with hide_native_stderr():
        tf.function(lambda number: number + 1, jit_compile=True)(tf.constant(0.0))


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


_STRATEGIES = (
    tf.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
)


def count_workers(strategy: tf.distribute.Strategy | None) -> int:
    """Returns the number of processes that train together."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    workers = strategy.cluster_resolver.cluster_spec().as_dict().get("worker", ())
    return max(len(workers), 1)


def require_strategy(strategy: Any, agent: tf_agent.TFAgent, *, jit_compile: bool) -> None:
    """Checks that an agent can be trained with a distribution strategy, or with None.

    Raises:
      TypeError: If the strategy has an unsupported type.
      ValueError: If the agent was created outside its scope, or if `jit_compile` is combined with several replicas.
    """
    if strategy is None:
        return
    if not isinstance(strategy, _STRATEGIES):
        names = ", ".join(each.__name__ for each in _STRATEGIES)
        raise TypeError(f"strategy must be one of {names}, got a {type(strategy).__name__}")
    if not all(strategy.extended.variable_created_in_scope(variable) for variable in agent.variables):
        raise ValueError("the agent was created outside the strategy's scope; use `with strategy.scope():`")
    if jit_compile and strategy.num_replicas_in_sync > 1:
        raise ValueError(f"jit_compile requires a single replica, got {strategy.num_replicas_in_sync}")


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
        #: Number of processes that train together. Each reads its own share of a batch, which its own replicas share.
        self.num_workers = count_workers(strategy)
        self._num_local = self._num_replicas // self.num_workers
        self._require_divisible(feed.experience_spec)
        self._has_clock = _has_clock()
        with tf.device("CPU"):
            self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._num_started = tf.Variable(0, dtype=tf.int64, trainable=False)
            # The keys identify the batch if an iteration raises.
            self._keys = tf.Variable(tf.zeros([0], tf.uint64), shape=[None], trainable=False)
        if jit_compile:
            _compile_first_function()
        self._train_agent = tf.function(agent.train, autograph=False, jit_compile=True) if jit_compile else agent.train
        self._train_given_batch = tf.function(lambda *batch: self._train_batch(*batch), autograph=False)

    @property
    def step(self) -> int:
        """The number of completed iterations, also after a call that raised."""
        return int(self._step)

    @step.setter
    def step(self, step: int) -> None:
        self._step.assign(step)
        self._num_started.assign(step)

    @property
    def is_update_incomplete(self) -> bool:
        """Whether the last call raised during an update, so that the weights may contain only a part of it."""
        return int(self._num_started) > self.step

    @property
    def has_td_errors(self) -> bool:
        """Whether the agent computes a TD error for each item. Traces an iteration if there was none."""
        return not isinstance(self._iteration.structured_outputs[-1], tuple)

    def sum_over_workers(self, values: Sequence[int]) -> list[int]:
        """Returns the sums of some numbers over all processes that train together; each must call this method."""
        if self.num_workers == 1:
            return list(values)
        return [int(total) for total in self._sum(tf.constant(values, tf.int64)).numpy()]

    @cached_property
    def _sum(self) -> Any:
        def add(numbers: tf.Tensor) -> tf.Tensor:
            # Each replica of a process contributes the same numbers. Only a copy is on the replica's device.
            copies = tf.identity(numbers)
            total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, copies)
            return total // self._num_local

        def run(numbers: tf.Tensor) -> tf.Tensor:
            strategy: Any = self._strategy
            return strategy.experimental_local_results(strategy.run(add, args=(numbers,)))[0]

        return tf.function(run, autograph=False)

    def prepare(self) -> None:
        """Traces the graph, without training, so that all variables of the optimisers exist. Idempotent."""
        _ = self._run

    def release_feed(self) -> None:
        """Releases the feed's iterators; the next call opens new ones, and traces the graph again."""
        self._feed.close()
        for name in ("_iteration", "_run"):
            self.__dict__.pop(name, None)
        if not isinstance(self._feed, InMemoryDataset):
            gc.collect()  # Graphs are in cycles; the iterators in them must end while their servers still run.

    def replace_feed(self, feed: Feed) -> None:
        """Reads the batches of a different feed from the next call on; the graph is traced again.

        Raises:
          SpecMismatchError: If the batches cannot be split equally between the replicas.
        """
        self._require_divisible(feed.experience_spec)
        self.release_feed()
        self._feed = feed

    def __call__(self, until: int) -> CallResult:
        """Runs iterations until `until` are completed.

        Raises:
          TrainingDivergedError: If a loss or a weight is not finite; the loop ends at that iteration.
          ValueError: If the dataset ends.
          ServerUnavailableError: If the servers of the dataset do not answer.
          tf.errors.OpError: If the dataset or the agent raises a different error. `step` is right in any case.
        """
        self.prepare()
        first = self.step
        try:
            sums, last, infos, errors, finite, waited = self._run(tf.constant(until, tf.int64))
        except tf.errors.OpError as error:
            if is_check_numerics_error(error):
                raise self._describe_divergence(self.step, float("nan")) from None
            raise _translate(error) from None
        num, scalars = self.step - first, {name: float(value) for name, value in last.items()}
        if not finite:
            raise self._describe_divergence(self.step - 1, scalars["loss"])
        return CallResult(
            num,
            {name: float(value) / max(num, 1) for name, value in sums.items()},
            scalars,
            tf.nest.map_structure(lambda column: column.numpy(), infos),
            None if isinstance(errors, tuple) else errors.numpy(),
            float(waited),
        )

    def run_on_batch(self, experience: Any, weights: Any, info: Any) -> CallResult:
        """Runs one iteration on the given batch, whose info is a `SampleInfo` of arrays or (); raises as a call."""
        batch = (experience,) if weights is None else (experience, weights)
        batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
        self._require_divisible(batch[0])
        keys = np.ravel(getattr(info, "key", ()))
        try:
            metrics, errors = self._train_given_batch.get_concrete_function(*batch)(*batch)
        except tf.errors.OpError as error:
            if is_check_numerics_error(error):
                raise TrainingDivergedError(describe_divergence(self.step, float("nan"), "keys", keys)) from None
            raise _translate(error) from None
        self._step.assign_add(1)
        scalars = {name: float(value) for name, value in metrics.items()}
        if not self._is_finite(metrics["loss"]):
            raise TrainingDivergedError(describe_divergence(self.step - 1, scalars["loss"], "keys", keys))
        return CallResult(1, scalars, scalars, info, None if isinstance(errors, tuple) else errors.numpy(), 0.0)

    def _require_divisible(self, experience: Any) -> None:
        """Raises `SpecMismatchError` if a batch, or the spec of one, cannot be split equally between the replicas."""
        rows = tf.nest.flatten(experience)[0].shape[0]
        if rows is not None and rows % self._num_local:
            raise SpecMismatchError(f"{self._describe_indivisible()}, got {rows}")

    def _describe_indivisible(self) -> str:
        return f"batch_size must be a multiple of the {self._num_local} replicas, which share each batch equally"

    def _describe_divergence(self, iteration: int, loss: float) -> TrainingDivergedError:
        """Returns an error that names the items in the batch of an iteration of the loop."""
        if isinstance(self._feed, InMemoryDataset):
            items = self._feed.sample_indices(tf.constant(iteration, tf.int64)).numpy()
            return TrainingDivergedError(describe_divergence(iteration, loss, "items", items))
        return TrainingDivergedError(describe_divergence(iteration, loss, "keys", self._keys.numpy()))

    def _train_batch(self, experience: Any, weights: Any = None) -> tuple[dict[str, tf.Tensor], Any]:
        """Trains on a batch, which is split between the replicas; traced.

        Returns the metrics, averaged over the replicas, and the TD errors of all items in order, or () if none.
        """

        def train(experience: Any, weights: Any) -> Any:
            loss = self._train_agent(experience, weights=weights)
            errors = extract_td_errors(loss)
            return extract_metrics(loss), () if errors is None else errors

        if self._strategy is None or self._num_replicas == 1:
            return train(experience, weights)

        # The size of a batch may be known only now.
        is_divisible = tf.shape(tf.nest.flatten(experience)[0])[0] % self._num_local == 0
        reason = describe_error(SpecMismatchError(self._describe_indivisible()))
        require_no_reason(tf.where(is_divisible, "", reason))

        def train_replica() -> Any:
            context = tf.distribute.get_replica_context()

            def slice_rows(column: tf.Tensor) -> tf.Tensor:
                rows = tf.shape(column)[0] // self._num_local
                begin = context.replica_id_in_sync_group % self._num_local * rows
                return column[begin : begin + rows]

            own_weights = None if weights is None else slice_rows(weights)
            return train(tf.nest.map_structure(slice_rows, experience), own_weights)

        metrics, errors = self._strategy.run(train_replica)
        mean = {name: self._strategy.reduce("MEAN", value, axis=None) for name, value in metrics.items()}
        slices = () if isinstance(errors, tuple) else self._strategy.experimental_local_results(errors)
        return mean, tf.concat(slices, 0) if slices else ()

    @cached_property
    def _iteration(self) -> Any:
        """The graph of one iteration: from its index to metrics, whether all is finite, seconds, info and TD errors."""

        def iterate(step: tf.Tensor) -> tuple[Any, ...]:
            secs, (experience, info) = self._time_next_batch(step)
            # With a single thread, TensorFlow could otherwise read the clock after the update.
            arrived = [secs, *tf.nest.flatten((experience, info))]
            if self._feed.has_info:
                arrived.append(self._keys.assign(tf.reshape(tf.cast(info.key, tf.uint64), [-1])))
            # Otherwise, if reading the batch fails, counters would already have been incremented.
            with tf.control_dependencies(arrived):
                started = self._num_started.assign(step + 1)
            with tf.control_dependencies([started]):
                metrics, errors = self._train_batch(experience, getattr(info, "weight", None))
            with tf.control_dependencies([metrics["loss"]]):
                finite = self._is_finite(metrics["loss"])
            # Masks differ in length from batch to batch, and no receiver of priorities needs them.
            info = info._replace(mask=()) if "mask" in getattr(info, "_fields", ()) else info
            return metrics, finite, secs, info if self._feed.has_info else (), errors

        return tf.function(iterate, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))

    @cached_property
    def _run(self) -> Any:
        """The graph of many iterations; called as a concrete function, since TensorFlow warns about many functions."""
        function = tf.function(self._run_iterations, autograph=False)
        return function.get_concrete_function(tf.TensorSpec([], tf.int64))

    def _run_iterations(self, until: tf.Tensor) -> Any:
        """Runs the loop; traced. It carries the scalars, and stacks the info and TD errors of all iterations."""
        metrics, _, _, info, errors = self._iteration.structured_outputs
        stacks = [
            tf.TensorArray(leaf.dtype, size=0, dynamic_size=True, element_shape=leaf.shape)
            for leaf in tf.nest.flatten((info, errors))
        ]
        zeros = {name: tf.zeros([], tf.float32) for name in metrics}
        first = self._step.read_value()

        def should_continue(step: tf.Tensor, finite: tf.Tensor, *_: Any) -> tf.Tensor:
            return (step < until) & finite

        def iterate(
            step: tf.Tensor, _: tf.Tensor, sums: Any, last: Any, stacks: Any, waited: tf.Tensor
        ) -> tuple[Any, ...]:
            scalars, finite, secs, *rows = self._iteration(step)
            # The call of the graph has completed only once all of its updates have.
            with tf.control_dependencies([finite.op]):
                self._step.assign(step + 1)
            index = tf.cast(step - first, tf.int32)
            stacks = [stack.write(index, row) for stack, row in zip(stacks, tf.nest.flatten(rows), strict=True)]
            sums = {name: sums[name] + value for name, value in scalars.items()}
            return step + 1, finite, sums, scalars, stacks, waited + secs

        state = (first, tf.constant(True), zeros, zeros, stacks, tf.zeros([], tf.float64))
        _, finite, sums, last, stacks, waited = tf.while_loop(should_continue, iterate, state, parallel_iterations=1)
        infos, errors = tf.nest.pack_sequence_as((info, errors), [stack.concat() for stack in stacks])
        return sums, last, infos, errors, finite, waited

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
