"""The inner training loop: a graph that runs several iterations on arrays of their batches in one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent

from rlds2reverb.errors import SpecMismatchError, TrainingDivergedError
from rlds2reverb.system.logs import hide_native_stderr

from .divergence import is_check_numerics_error, make_divergence_error
from .feeds import Feed
from .graph_errors import find_error
from .read_ahead import ReadAhead


@dataclass(frozen=True)
class CallResult:
    """The results of one call of the graph.

    Attributes:
      num_iterations: number of completed iterations.
      metrics: each scalar, including `loss`, in each iteration, float `[num_iterations]`.
      last: scalars of the last iteration.
      info: `SampleInfo` of arrays `[num_iterations * B]`, without masks; () if the batches have none.
      td_errors: float32 `[num_iterations * B]`; None if the agent computes none.
      data_wait_secs: seconds spent waiting for batches.
    """

    num_iterations: int
    metrics: dict[str, np.ndarray]
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


#: A function that changes a batch of experience in the graph; it also receives the number of completed iterations.
Augmentation = Callable[[Any, tf.Tensor], Any]


@cache
def _compile_first_function() -> None:
    """Compiles a trivial function, because XLA writes two lines to stderr when it first compiles one in a process."""
    with hide_native_stderr():
        tf.function(lambda number: number + 1, jit_compile=True)(tf.constant(0.0))


def _convert_extra(loss: tf_agent.LossInfo) -> dict[str, Any]:
    """Returns the `extra` of a loss info as a dict, whether it is a named tuple, a dict, or empty."""
    extra = loss.extra
    if hasattr(extra, "_asdict"):
        extra = extra._asdict()
    return dict(extra) if isinstance(extra, dict) else {}


_STRATEGIES = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)


def require_strategy(strategy: Any, agent: tf_agent.TFAgent, *, jit_compile: bool) -> None:
    """Checks that an agent can be trained with a distribution strategy, or with None.

    Raises:
      TypeError: If the strategy has an unsupported type.
      ValueError: If the agent was created outside its scope, or if `jit_compile` is combined with several replicas.
    """
    if strategy is None:
        return
    if not isinstance(strategy, _STRATEGIES):
        names = ", ".join(strategy_type.__name__ for strategy_type in _STRATEGIES)
        raise TypeError(f"strategy must be one of {names}, got a {type(strategy).__name__}")
    if not all(strategy.extended.variable_created_in_scope(variable) for variable in agent.variables):
        raise ValueError("the agent was created outside the strategy's scope; use `with strategy.scope():`")
    if jit_compile and strategy.num_replicas_in_sync > 1:
        raise ValueError(f"jit_compile requires a single replica, got {strategy.num_replicas_in_sync}")


class TrainLoop:
    """Iterations of an agent in a graph that is traced once for any number of iterations per call.

    A batch crosses two borders. A thread of `ReadAhead` reads it with `Feed.read`, as NumPy arrays; it is the only code
    that waits for data or fails because of them. The caller's thread passes the arrays of several iterations to the
    graph, which is a pure function of them, the weights and the agent's state.
    """

    def __init__(
        self,
        agent: tf_agent.TFAgent,
        feed: Feed,
        *,
        jit_compile: bool = False,
        strategy: tf.distribute.Strategy | None = None,
        augment: Augmentation | None = None,
    ):
        """Checks the batch size; nothing is traced yet.

        Args:
          agent: the agent to train.
          feed: source of batches.
          jit_compile: whether to compile an iteration with XLA.
          strategy: distribution strategy whose replicas share each batch; None for a single device.
          augment: function that changes each batch before the agent learns from it; None for none.

        Raises:
          SpecMismatchError: If the batches cannot be split equally between the replicas.
        """
        self._agent, self._feed, self._strategy, self._augment = agent, feed, strategy, augment
        self._num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        #: Whether the last call raised during an update, so that the weights may contain only a part of it.
        self.is_update_incomplete = False
        with tf.device("CPU"):
            self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._require_divisible(feed.experience_spec)
        self._set_feed(feed)
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

    @property
    def has_td_errors(self) -> bool:
        """True if the agent computes a TD error for each item. Traces an iteration if there was none."""
        return not isinstance(self._iteration.structured_outputs[1], tuple)

    def prepare(self) -> None:
        """Traces the graph, without training, so that all variables of the optimisers exist. Idempotent."""
        _ = self._run

    def close_feed(self) -> None:
        """Drops batches that were read ahead, and closes the feed; the next call opens it again."""
        self._batches.close()
        self._feed.close()

    def replace_feed(self, feed: Feed) -> None:
        """Reads the batches of a different feed from the next call on; the graph is traced again.

        Raises:
          SpecMismatchError: If the batches cannot be split equally between the replicas.
        """
        self._require_divisible(feed.experience_spec)
        self.close_feed()
        self._set_feed(feed)

    def _set_feed(self, feed: Feed) -> None:
        for name in ("_iteration", "_run"):
            self.__dict__.pop(name, None)
        self._feed, self._batches = feed, ReadAhead(feed)

    def __call__(self, until: int, last: int | None = None) -> CallResult:
        """Runs iterations until `until` are completed.

        Args:
          until: total number of iterations, more than those completed.
          last: total number of iterations that following calls will complete, whose batches may be read now; None for
            `until`.

        Raises:
          TrainingDivergedError: If a loss or a weight is not finite; the loop ends at that iteration.
          SpecMismatchError: If the agent cannot use the data.
          tf.errors.OpError: If the agent raises a different error.
          Exception: If the feed cannot read a batch; the iterations before it are completed. `step` is right in any
            case.
        """
        self.prepare()
        self.is_update_incomplete, parts, waited = False, [], 0.0
        while self.step < until:
            began = time.perf_counter()
            data, info = self._batches.take(self.step, until - self.step, until if last is None else last)
            waited += time.perf_counter() - began
            metrics, errors = self._run_on_batches(data, info)
            rows = tf.nest.map_structure(lambda column: column.reshape(-1, *column.shape[2:]), (info, errors))
            parts.append((metrics, *rows))
        metrics, infos, errors = tf.nest.map_structure(lambda *columns: np.concatenate(columns), *parts)
        return CallResult(
            len(metrics["loss"]),
            metrics,
            {name: float(values[-1]) for name, values in metrics.items()},
            infos,
            None if isinstance(errors, tuple) else errors,
            waited,
        )

    def _run_on_batches(self, data: Any, info: Any) -> tuple[dict[str, np.ndarray], Any]:
        """Runs iterations on arrays `[n, B, ...]`; returns the metrics `[n]` and the TD errors `[n, B]`, or ()."""
        self._require_divisible(tf.nest.map_structure(lambda column: column[0], data))
        first, keys = self.step, getattr(info, "key", None)
        arrays = (data, info.weight) if self._has_weights else (data,)
        self.is_update_incomplete = True
        try:
            results = self._run(*tf.nest.map_structure(tf.convert_to_tensor, arrays))
            metrics, errors, finite = tf.nest.map_structure(lambda tensor: tensor.numpy(), results)
        except tf.errors.OpError as error:
            if is_check_numerics_error(error):
                raise self._describe_divergence(self.step, float("nan"), keys, first) from None
            raise find_error(error) from None
        if not finite:
            raise self._describe_divergence(self.step - 1, float(metrics["loss"][-1]), keys, first)
        self.is_update_incomplete = False
        return metrics, errors

    def run_on_batch(self, experience: Any, weights: Any, info: Any) -> CallResult:
        """Runs one iteration on the given batch, whose info is a `SampleInfo` of arrays or (); raises as a call."""
        batch = (experience,) if weights is None else (experience, weights)
        batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
        self._require_divisible(batch[0])
        keys = np.ravel(getattr(info, "key", ()))
        self.is_update_incomplete = True
        try:
            metrics, errors = self._train_given_batch.get_concrete_function(*batch)(*batch)
        except tf.errors.OpError as error:
            if is_check_numerics_error(error):
                raise make_divergence_error(self.step, float("nan"), "keys", keys) from None
            raise find_error(error) from None
        self._step.assign_add(1)
        scalars = {name: float(value) for name, value in metrics.items()}
        if not self._is_finite(metrics["loss"]):
            raise make_divergence_error(self.step - 1, scalars["loss"], "keys", keys)
        self.is_update_incomplete = False
        columns = {name: np.array([value]) for name, value in scalars.items()}
        return CallResult(1, columns, scalars, info, None if isinstance(errors, tuple) else errors.numpy(), 0.0)

    def _require_divisible(self, experience: Any) -> None:
        """Raises `SpecMismatchError` if a batch, or the spec of one, cannot be split equally between the replicas."""
        rows = tf.nest.flatten(experience)[0].shape[0]
        if rows is not None and rows % self._num_replicas:
            raise SpecMismatchError(
                f"batch_size must be a multiple of the {self._num_replicas} replicas, which share each batch equally, "
                f"got {rows}"
            )

    def _describe_divergence(self, iteration: int, loss: float, keys: Any, first: int) -> TrainingDivergedError:
        """Returns an error that names the items in the batch of an iteration; `keys` are those from `first` on."""
        if (items := self._feed.sample_indices(iteration)) is not None:
            return make_divergence_error(iteration, loss, "items", items[0])
        return make_divergence_error(iteration, loss, "keys", np.ravel(() if keys is None else keys[iteration - first]))

    @property
    def _has_weights(self) -> bool:
        return not isinstance(getattr(self._feed.info_spec, "weight", ()), tuple)

    def _train_batch(self, experience: Any, weights: Any = None) -> tuple[dict[str, tf.Tensor], Any]:
        """Trains on a batch, which is split between the replicas; traced.

        Returns the metrics, averaged over the replicas, and the TD errors of all items in order, or () if none.
        """

        def train(experience: Any, weights: Any) -> Any:
            loss = self._train_agent(experience, weights=weights)
            errors = extract_td_errors(loss)
            return extract_metrics(loss), () if errors is None else errors

        if self._augment is not None:
            experience = self._augment(experience, self._step.read_value())
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

    @cached_property
    def _iteration(self) -> Any:
        """The graph of one iteration: from a batch and its weights to metrics, TD errors, and whether all is finite."""

        def iterate(data: Any, *weights: tf.Tensor) -> tuple[Any, ...]:
            metrics, errors = self._train_batch(self._feed.to_experience(data), *weights)
            with tf.control_dependencies([metrics["loss"]]):
                return metrics, errors, self._is_finite(metrics["loss"])

        return tf.function(iterate, autograph=False).get_concrete_function(*self._batch_specs)

    @property
    def _batch_specs(self) -> tuple[Any, ...]:
        """The specs of the arrays of a batch that the graph needs."""
        return (self._feed.data_spec, *([self._feed.info_spec.weight] if self._has_weights else []))

    @cached_property
    def _run(self) -> Any:
        """The graph of many iterations; called as a concrete function, since TensorFlow warns about many functions."""
        specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), self._batch_specs)
        return tf.function(self._run_iterations, autograph=False).get_concrete_function(*specs)

    def _run_iterations(self, *arrays: Any) -> Any:
        """Runs the loop over the first axis of the arrays; traced. It stacks the metrics and TD errors."""
        metrics, errors, _ = self._iteration.structured_outputs
        stacks = [
            tf.TensorArray(leaf.dtype, size=0, dynamic_size=True, element_shape=leaf.shape)
            for leaf in tf.nest.flatten((metrics, errors))
        ]
        count = tf.shape(tf.nest.flatten(arrays)[0])[0]

        def should_continue(index: tf.Tensor, finite: tf.Tensor, _: Any) -> tf.Tensor:
            return (index < count) & finite

        def iterate(index: tf.Tensor, _: tf.Tensor, stacks: Any) -> tuple[Any, ...]:
            *rows, finite = self._iteration(*tf.nest.map_structure(lambda column: column[index], arrays))
            # The call of the graph has completed only once all of its updates have.
            with tf.control_dependencies([finite.op]):
                self._step.assign_add(1)
            return (
                index + 1,
                finite,
                [stack.write(index, row) for stack, row in zip(stacks, tf.nest.flatten(rows), strict=True)],
            )

        state = (tf.constant(0), tf.constant(True), stacks)
        _, finite, stacks = tf.while_loop(should_continue, iterate, state, parallel_iterations=1)
        metrics, errors = tf.nest.pack_sequence_as((metrics, errors), [stack.stack() for stack in stacks])
        return metrics, errors, finite

    def _is_finite(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns whether the loss and all weights are finite; a non-finite gradient shows in the weights at once."""
        sums = [tf.reduce_sum(tf.cast(weight, tf.float32)) for weight in self._agent.trainable_variables]
        return tf.reduce_all(tf.math.is_finite(tf.stack([tf.cast(tf.reduce_mean(loss), tf.float32), *sums])))
