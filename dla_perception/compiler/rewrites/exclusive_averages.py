"""Averages that leave their padding out, which a Xavier cannot, count it and are corrected.

Exact up to rounding: the average over the n elements of a window that lie inside the input is the
average over all k of the window, with zeros outside, times k / n. The factors k / n depend on the
position alone and are one constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.dla_support import judge
from dla_perception.compiler.node_reading import attribute, set_attribute, window

if TYPE_CHECKING:
    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "exclusive averages"
SUMMARY = "averages without their padding made averages with a factor"


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it is needed; returns the names of the pools that were changed."""
    changed = []
    for node in list(graph.nodes):
        if node.op_type != "AveragePool" or attribute(node, "count_include_pad", 0):
            continue
        found, before, after = (
            window(graph, node),
            graph.shape(node.input[0]),
            graph.shape(node.output[0]),
        )
        if found is None or before is None or after is None or len(before) != 4:
            continue
        if not any(found.pads) or found.ceil_mode or judge(graph, node, target).on_dla:
            continue
        factors = []
        for axis in range(2):
            k, size = found.kernel[axis], before[2 + axis]
            starts = np.arange(after[2 + axis]) * found.strides[axis] - found.begin[axis]
            inside = np.minimum(starts + k, size) - np.maximum(starts, 0)
            factors.append(k / inside)
        plane = np.outer(*factors)
        full = np.broadcast_to(plane, (1, after[1], *plane.shape)).astype(
            graph.dtype(node.input[0])
        )
        result = node.output[0]
        average = graph.fresh(f"{result}_inclusive")
        graph.rename_output(node, result, average)
        set_attribute(node, "count_include_pad", 1)
        factor = graph.add_constant(f"{result}_factor", full)
        graph.replace([node], [node, graph.new_node("Mul", [average, factor], result, node.name)])
        changed.append(node.name)
    return changed
