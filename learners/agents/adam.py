"""The Adam optimiser, for a few large variables."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from .replicas import assign_on_replica, mean_over_replicas


class Adam(tf.Module):
    """Adam (Kingma & Ba 2015, algorithm 1, as in PyTorch and Optax), with one fused operation per variable.

    With `decay_steps` the learning rate falls to 0 along half a cosine (Loshchilov & Hutter 2017, eq. 5),
    0.5 * (1 + cos(pi * t / decay_steps)), and stays at 0 after that. With `warmup_steps` it is multiplied by
    min((t + 1) / warmup_steps, 1). Weight decay is that of AdamW (Loshchilov & Hutter 2019, algorithm 2): weights are
    multiplied by 1 - learning rate * weight_decay before each update.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        learning_rate: float,
        *,
        epsilon: float = 1e-8,
        epsilon_hat: bool = False,
        decay_steps: int | None = None,
        warmup_steps: int = 0,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        name: str = "adam",
    ) -> None:
        """Creates the moments, all 0.

        Args:
          variables: variables to train.
          learning_rate: initial learning rate.
          epsilon: constant added to the root of the second moment after the correction of its bias.
          epsilon_hat: whether it is added before the correction, as in TensorFlow: the paper's epsilon hat (section 2).
          decay_steps: number of updates after which the learning rate is 0; None for a constant rate.
          warmup_steps: number of updates over which the learning rate increases linearly; 0 for none.
          weight_decay: factor of the weight decay.
          clip_norm: maximum norm of all gradients together, to which larger ones are scaled; None for no maximum.
          name: name of the module.
        """
        super().__init__(name=name)
        self.trained_variables = list(variables)
        self._learning_rate, self._decay_steps, self._warmup_steps = learning_rate, decay_steps, warmup_steps
        self._weight_decay, self._clip_norm = weight_decay, clip_norm
        self._betas, self._epsilon, self._epsilon_hat = (0.9, 0.999), epsilon, epsilon_hat
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.moments = [
            [tf.Variable(tf.zeros_like(variable), trainable=False, name=f"{kind}/{index}") for kind in ("m", "v")]
            for index, variable in enumerate(self.trained_variables)
        ]

    def learning_rate(self) -> tf.Tensor:
        """Returns the float32 [] learning rate of the next update."""
        rate, step = tf.constant(self._learning_rate, tf.float32), tf.cast(self.step, tf.float32)
        if self._decay_steps is not None:
            done = tf.minimum(step / self._decay_steps, 1.0)
            rate = self._learning_rate * 0.5 * (1.0 + tf.cos(np.float32(np.pi) * done))
        return rate * tf.minimum((step + 1.0) / self._warmup_steps, 1.0) if self._warmup_steps else rate

    def minimize(self, loss: tf.Tensor | Callable[[], tf.Tensor], tape: tf.GradientTape | None = None) -> tf.Tensor:
        """Makes one update with the gradients of a loss, and returns the loss.

        Args:
          loss: tensor that was computed under `tape`, or function that computes it.
          tape: the tape; None with a function.
        """
        if tape is None:
            with tf.GradientTape() as tape:
                loss = loss()
        self.apply(self.gradients(loss, tape))
        return loss

    def gradients(self, loss: tf.Tensor, tape: tf.GradientTape) -> list[tf.Tensor]:
        """Returns the gradients of a loss that was computed under `tape`."""
        zero = tf.UnconnectedGradients.ZERO  # A custom network may have unused variables.
        return tape.gradient(loss, self.trained_variables, unconnected_gradients=zero)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Makes one update with the replicas' mean gradients, given in the order of the variables."""
        self.apply_mean(mean_over_replicas(gradients))

    def apply_mean(self, gradients: Sequence[tf.Tensor]) -> None:
        """Makes one update with gradients that are already equal on all replicas."""
        if self._clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm)
        rate = self.learning_rate()
        step = self.step + 1
        assign_on_replica(self.step, step)
        count = tf.cast(step, tf.float32)
        beta1, beta2 = self._betas
        powers = tf.pow(beta1, count), tf.pow(beta2, count)
        epsilon = self._epsilon * (1.0 if self._epsilon_hat else tf.sqrt(1.0 - powers[1]))
        for variable, (m, v), gradient in zip(self.trained_variables, self.moments, gradients, strict=True):
            if self._weight_decay:
                assign_on_replica(variable, variable * (1.0 - rate * self._weight_decay))
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=epsilon,
                grad=tf.convert_to_tensor(gradient),  # Embeddings have sparse ones.
            )
