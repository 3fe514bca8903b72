"""Grouped convolutions at the network's input become ungrouped ones.

Exact: groups are a kernel whose blocks outside the diagonal are zero. The format DLA_HWC4, in which
images enter a DLA, allows 4 groups at most (TensorRT 8.4 developer guide); elsewhere groups stay,
since they save work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.node_reading import attribute, set_attribute

if TYPE_CHECKING:
    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "grouped convolutions"
SUMMARY = "grouped convolutions at the input made ungrouped"

_MOST_GROUPS = 4


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it is needed; returns the names of the nodes that were changed."""
    changed = []
    for node in list(graph.nodes):
        groups = int(attribute(node, "group", 1)) if node.op_type == "Conv" else 1
        if (
            groups <= _MOST_GROUPS
            or node.input[0] not in graph.inputs
            or node.input[1] not in graph.constants
        ):
            continue
        weights = graph.constants[node.input[1]]
        outputs, inputs = weights.shape[0] // groups, weights.shape[1]
        dense = np.zeros((weights.shape[0], inputs * groups, *weights.shape[2:]), weights.dtype)
        for group in range(groups):
            rows = slice(group * outputs, (group + 1) * outputs)
            dense[rows, group * inputs : (group + 1) * inputs] = weights[rows]
        graph.set_input(node, 1, graph.add_constant(node.input[1], dense))
        set_attribute(node, "group", 1)
        changed.append(node.name)
    return changed
