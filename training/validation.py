"""The losses of an agent on held-out episodes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.learners.feeds import Feed
from rlds2reverb.learners.hooks import LogReduceHook
from rlds2reverb.learners.train_loop import extract_metrics, extract_td_errors

#: Prefix of the numbers in `progress.csv`.
VALIDATION = "validation/"
#: Number of batches of held-out items whose mean losses are logged.
_NUM_BATCHES = 8


class ValidationHook(LogReduceHook):
    """A hook that logs the agent's losses on held-out items next to those on the batches it learns from.

    The numbers are those of a train step, such as `critic_loss`, `actor_loss`, `q_mean` and `td_error`, as means over
    the same items each time. The train step is run on these items, and all variables are then restored, so the run
    continues bit for bit as without the hook.
    """

    def __init__(self, agent: Any, feed: Feed, *, every: int):
        """Sets the items.

        Args:
          agent: the agent of the learner.
          feed: the feed of the held-out items.
          every: number of iterations between log entries.
        """
        super().__init__("validation", 50, every=every, reduce=lambda numbers: {**numbers, **self.measure()})
        self._agent, self._feed = agent, feed

    def measure(self) -> dict[str, float]:
        """Returns the mean losses by name."""
        # Optimisers outside the agent's module have variables that only the graph knows, and others only the agent.
        variables = {id(variable): variable for variable in (*self._agent.variables, *self._train.variables)}
        saved = [(variable, variable.numpy()) for variable in variables.values()]
        rows = []
        for number in range(_NUM_BATCHES):
            data = tf.nest.map_structure(lambda column: tf.convert_to_tensor(column[0]), self._feed.read(number, 1)[0])
            rows.append({name: float(value) for name, value in self._train(data).items()})
            for variable, value in saved:
                variable.assign(value)
        return {f"{VALIDATION}{name}": float(np.mean([row[name] for row in rows])) for name in rows[0]}

    @cached_property
    def _train(self) -> Any:
        """The graph of a train step, from a batch to the scalars of its loss."""

        def train(data: Any) -> dict[str, tf.Tensor]:
            loss = self._agent.train(self._feed.to_experience(data))
            errors = extract_td_errors(loss)
            return {**extract_metrics(loss), **({} if errors is None else {"td_error": tf.reduce_mean(errors)})}

        return tf.function(train, autograph=False).get_concrete_function(self._feed.data_spec)
