"""Naive reference implementations of the agents in numpy, float64, written from the papers, with exact gradients.

Gradients use complex steps, f'(x) = Im f(x + ih) / h, which have no rounding error and need one evaluation per
parameter. All functions therefore accept complex numbers, and compare real parts wherever a sign matters.
"""

import itertools
import math

import numpy as np


def gradient(f, x):
    """Returns df/dx [P] of a real function of a vector [P]."""
    x = x.astype(complex)
    out = np.zeros(len(x))
    for i in range(len(x)):
        x[i] += 1e-30j
        out[i] = f(x).imag / 1e-30
        x[i] = x[i].real
    return out


def minimum(a, b):
    return np.where(a.real <= b.real, a, b)


def absolute(x):
    return np.where(x.real < 0, -x, x)


def clip(x, low, high):
    return np.where(x.real < low, low, np.where(x.real > high, high, x))


def stop_gradient(x):
    return x.real


def relu(x):
    return np.where(x.real > 0, x, 0)


def gelu(x):
    """Applies GELU (Hendrycks & Gimpel 2016, section 2, the approximation with tanh)."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def mlp(flat, sizes, x, layer_norm=False, activation=relu, norm_first=False):
    """Applies a network whose flat vector contains weights, bias, and with layer norm scale and offset, by layer."""
    at = 0

    def take(*shape):
        nonlocal at
        at += math.prod(shape)
        return flat[at - math.prod(shape) : at].reshape(shape)

    for rows, columns in itertools.pairwise(sizes[:-1]):
        x = x @ take(rows, columns) + take(columns)
        x = x if norm_first else activation(x)
        if layer_norm:
            mean = x.mean(axis=1, keepdims=True)
            variance = ((x - mean) ** 2).mean(axis=1, keepdims=True)
            x = (x - mean) / (variance + 1e-6) ** 0.5 * take(columns) + take(columns)
        x = activation(x) if norm_first else x
    out = x @ take(*sizes[-2:]) + take(sizes[-1])
    assert at == len(flat)
    return out


def twin_values(flat, sizes, observation, action, layer_norm=False, activation=relu, copies=2):
    """Returns the values of both critics, or of more, [B] each."""
    x = np.concatenate([observation, action], axis=1)
    return [mlp(part, sizes, x, layer_norm, activation)[:, 0] for part in np.split(flat, copies)]


def input_gradient(flat, sizes, x):
    """Returns the gradient [B, in] of a network's sum of outputs with respect to its input, by backpropagation."""
    at, layers = 0, []
    for rows, columns in itertools.pairwise(sizes):
        weights = flat[at : at + rows * columns].reshape(rows, columns)
        at += (rows + 1) * columns
        x = x @ weights + flat[at - columns : at]
        layers.append((weights, x.real > 0))
        x = np.where(x.real > 0, x, 0)
    grad = np.ones_like(x)
    for number, (weights, is_positive) in enumerate(reversed(layers)):
        grad = (grad if number == 0 else grad * is_positive) @ weights.T
    return grad


def gradient_similarity(gradients):
    """Returns EDAC's sum of the cosines of all pairs of different gradients [N, B, A], divided by N - 1; [B]."""
    total = 0
    for i, one in enumerate(gradients):
        for j, other in enumerate(gradients):
            if i != j:
                norms = [(vector**2).sum(axis=1) ** 0.5 + 1e-10 for vector in (one, other)]
                total = total + (one * other).sum(axis=1) / (norms[0] * norms[1])
    return total / (len(gradients) - 1)


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    def __init__(self, rate):
        self.rate, self.t, self.m, self.v = rate, 0, 0.0, 0.0

    def __call__(self, x, g, rate=None):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g**2
        mean, variance = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return x - (self.rate if rate is None else rate) * mean / (variance**0.5 + 1e-8)


def gaussian_log_prob(x, mean, log_std):
    """Returns the log density of a diagonal Gaussian, [B]."""
    return (-(((x - mean) / np.exp(log_std)) ** 2) / 2 - log_std - np.log(2 * np.pi) / 2).sum(axis=1)
