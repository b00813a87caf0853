"""Adam over a few large variables."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from .replicas import assign_alike, mean_over_replicas


class Adam(tf.Module):
    """Adam (Kingma & Ba 2015, algorithm 1, in the order of its section 2), one fused operation a variable.

    With `decay_steps` the learning rate falls to 0 as half a cosine (Loshchilov & Hutter 2017, eq. 5):
    0.5 * (1 + cos(pi * t / decay_steps)), and stays at 0 after that.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        learning_rate: float,
        *,
        epsilon: float = 1e-8,
        decay_steps: int | None = None,
        name: str = "adam",
    ) -> None:
        """Makes the moments, all 0.

        Args:
          variables: what is trained.
          learning_rate: the step size at the start.
          epsilon: what is added to the root of the second moment.
          decay_steps: number of updates after which the learning rate is 0; None keeps it.
          name: name of the module.
        """
        super().__init__(name=name)
        self.trained = list(variables)
        self._learning_rate = learning_rate
        self._decay_steps = decay_steps
        self._betas = 0.9, 0.999
        self._epsilon = epsilon
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.moments = [
            [tf.Variable(tf.zeros_like(each), trainable=False, name=f"{kind}/{index}") for kind in ("m", "v")]
            for index, each in enumerate(self.trained)
        ]

    def learning_rate(self) -> tf.Tensor:
        """Returns the float32 [] learning rate of the next update."""
        if self._decay_steps is None:
            return tf.constant(self._learning_rate, tf.float32)
        done = tf.minimum(tf.cast(self.step, tf.float32) / self._decay_steps, 1.0)
        return self._learning_rate * 0.5 * (1.0 + tf.cos(np.float32(np.pi) * done))

    def minimize(self, loss: tf.Tensor, tape: tf.GradientTape) -> None:
        """Makes one update with the gradients of `loss`, which was computed under `tape`."""
        self.apply(tape.gradient(loss, self.trained))

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Makes one update with the mean of all replicas' gradients, in the order of the variables."""
        self.apply_mean(mean_over_replicas(gradients))

    def apply_mean(self, gradients: Sequence[tf.Tensor]) -> None:
        """Makes one update with gradients that are the same in all replicas."""
        rate = self.learning_rate()
        step = self.step + 1
        assign_alike(self.step, step)
        count = tf.cast(step, tf.float32)
        beta1, beta2 = self._betas
        for variable, (m, v), gradient in zip(self.trained, self.moments, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=tf.pow(beta1, count),
                beta2_power=tf.pow(beta2, count),
                lr=rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=self._epsilon,
                grad=gradient,
            )
