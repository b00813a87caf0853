"""The limit of updates/s on this machine: as many floating-point operations as an update's matrix products have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_SIZE = 1024


def count_flops(train: Callable[..., Any], experience_spec: Any) -> float:
    """Returns the number of floating-point operations in the matrix products of one train step.

    They are those of the graph. Convolutions are not counted. Where a step has a condition,
    as in delayed updates of actors, its two branches count half each.
    """
    graph = tf.function(train, autograph=False).get_concrete_function(experience_spec).graph
    return _count(graph, graph)


def _count(graph: Any, outer: Any) -> float:
    return sum(_count_operation(operation, outer) for operation in graph.get_operations())


def _count_operation(operation: Any, outer: Any) -> float:
    kind = operation.type
    if kind in ("If", "StatelessIf"):
        branches = [operation.get_attr(name).name for name in ("then_branch", "else_branch")]
        return sum(_count(outer._get_function(name).graph, outer) for name in branches) / 2
    if kind in ("PartitionedCall", "StatefulPartitionedCall"):
        return _count(outer._get_function(operation.get_attr("f").name).graph, outer)
    if kind in ("While", "StatelessWhile"):
        raise NotImplementedError(f"{operation.name} repeats operations an unknown number of times")
    shapes = [tensor.shape for tensor in operation.inputs]
    if kind in ("MatMul", "BatchMatMulV2", "BatchMatMulV3"):
        transposed = operation.get_attr("transpose_a" if kind == "MatMul" else "adj_x")
        inner = shapes[0][-2] if transposed else shapes[0][-1]
        return 2.0 * math.prod(operation.outputs[0].shape) * inner
    if kind == "Einsum":
        inputs = operation.get_attr("equation").decode().partition("->")[0].split(",")
        sizes: dict[str, int] = {}
        for names, shape in zip(inputs, shapes, strict=True):
            sizes |= dict(zip(names, shape, strict=True))
        return 2.0 * math.prod(sizes.values()) if len(inputs) > 1 else 0.0
    return 0.0


def time_products(flops: float, num_updates: int) -> Callable[[], float]:
    """Returns a function that measures updates/s if an update were nothing but products of large matrices.

    Large matrices are multiplied at the highest rate that the machine reaches, so this is an upper limit.
    """
    num_products = max(1, round(num_updates * flops / (2 * _SIZE**3)))
    left, right = tf.random.normal([_SIZE, _SIZE]), tf.random.normal([_SIZE, _SIZE])
    multiply = tf.function(lambda product: tf.matmul(product, right) / _SIZE**0.5)
    multiply(left)

    def measure() -> float:
        began, product = time.perf_counter(), left
        for _ in range(num_products):
            product = multiply(product)
        product.numpy()
        return num_products * 2 * _SIZE**3 / flops / (time.perf_counter() - began)

    return measure
