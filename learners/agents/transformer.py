"""A transformer decoder: the blocks of GPT-2, without embeddings."""

import numpy as np
import tensorflow as tf

from .networks import Dropout

_LAYER_NORM_EPSILON = 1e-5
#: Standard deviation of the initial weights of GPT-2 (Radford et al. 2019, in the authors' code).
_STD = 0.02
#: A logit of attention whose softmax is 0.
_MASKED = np.float32(-1e9)


class Linear(tf.Module):
    """A linear layer."""

    def __init__(self, rng: np.random.Generator, num_inputs: int, num_outputs: int, *, std: float | None = None):
        """Initialises the weights.

        Args:
          rng: random generator of the weights.
          num_inputs: size of the last axis of the input.
          num_outputs: size of the last axis of the output.
          std: standard deviation of the weights, with biases of 0; None for weights and biases uniform within
            1/sqrt(inputs), PyTorch's default.
        """
        super().__init__(name="linear")
        shapes, bound = [(num_inputs, num_outputs), (num_outputs,)], 1 / np.sqrt(num_inputs)
        weights, bias = (rng.uniform(-bound, bound, shape) for shape in shapes)
        if std is not None:
            weights, bias = rng.normal(0, std, shapes[0]), np.zeros(num_outputs)
        self.weights = tf.Variable(np.float32(weights), name="weights")
        self.bias = tf.Variable(np.float32(bias), name="bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns x * weights + bias, float32 [..., out]."""
        return tf.tensordot(x, self.weights, 1) + self.bias


class LayerNorm(tf.Module):
    """Layer normalisation of the last axis, with scale and offset (Ba, Kiros & Hinton 2016, eq. 4)."""

    def __init__(self, width: int):
        super().__init__(name="layer_norm")
        self.scale = tf.Variable(tf.ones([width]), name="scale")
        self.offset = tf.Variable(tf.zeros([width]), name="offset")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the normalised tensor, of the same shape."""
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + _LAYER_NORM_EPSILON) * self.scale + self.offset


class TransformerBlock(tf.Module):
    """A block of GPT-2 with ReLU: x + attention(norm(x)), then x + mlp(norm(x)).

    Radford et al. (2019), "Language Models are Unsupervised Multitask Learners", section 2.3; attention is that of
    Vaswani et al. (2017), eq. 1.
    """

    def __init__(self, rng: np.random.Generator, width: int, num_heads: int):
        """Initialises the weights.

        Args:
          rng: random generator of the weights.
          width: size W of a token.
          num_heads: number of heads of the attention, a divisor of the width.
        """
        super().__init__(name="block")
        self._num_heads = num_heads
        self.norms = [LayerNorm(width) for _ in range(2)]
        sizes = {"attention": (width, 3 * width), "mixing": (width, width)}
        sizes |= {"hidden": (width, 4 * width), "output": (4 * width, width)}
        self.layers = {name: Linear(rng, *size, std=_STD) for name, size in sizes.items()}

    def __call__(self, x: tf.Tensor, mask: tf.Tensor, dropout: Dropout) -> tf.Tensor:
        """Returns tokens, float32 [B, T, W].

        Args:
          x: float32 [B, T, W].
          mask: bool [B, T, T], whether the first token may attend to the second one.
          dropout: function that is applied to the weights of the attention and to what is added to `x`.
        """
        x += dropout(self.layers["mixing"](self._attend(self.norms[0](x), mask, dropout)))
        return x + dropout(self.layers["output"](tf.nn.relu(self.layers["hidden"](self.norms[1](x)))))

    def _attend(self, x: tf.Tensor, mask: tf.Tensor, dropout: Dropout) -> tf.Tensor:
        """Returns the weighted means of the values, of all heads."""
        shape = tf.shape(x)
        heads = tf.reshape(self.layers["attention"](x), [*tf.unstack(shape[:2]), 3, self._num_heads, -1])
        query, key, value = tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))
        logits = tf.matmul(query, key, transpose_b=True) * tf.math.rsqrt(tf.cast(tf.shape(key)[-1], tf.float32))
        weights = dropout(tf.nn.softmax(tf.where(mask[:, tf.newaxis], logits, _MASKED)))
        return tf.reshape(tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3]), shape)
