"""A division by a constant becomes a multiplication by its inverse.

Exact up to rounding: ``x / c = x * (1 / c)``; where ``c`` is no power of two the inverse is rounded
once. Not where the constant holds a zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "division"
SUMMARY = "divisions by constants made multiplications"


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it fits; returns the names of the divisions that were replaced."""
    changed = []
    for node in list(graph.nodes):
        if node.op_type != "Div" or node.input[1] not in graph.constants:
            continue
        divisor = graph.constants[node.input[1]]
        if divisor.dtype.kind != "f" or not divisor.all():
            continue
        with np.errstate(over="ignore"):
            inverse = (1 / divisor.astype(np.float64)).astype(divisor.dtype)
        if not np.isfinite(inverse).all():
            continue
        factor = graph.add_constant(f"{node.input[1]}_inverse", inverse)
        product = graph.new_node("Mul", [node.input[0], factor], node.output[0], node.name)
        graph.replace([node], [product])
        changed.append(node.name)
    return changed
