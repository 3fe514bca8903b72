"""Nodes that pass their input on unchanged are taken away.

Exact: each of them returns its input for every input: Identity, Dropout at run time, a Cast to the
type that is there, moves of data that move nothing, a Concat or Sum of one tensor, pools with a
window of 1, and arithmetic with its neutral element (``x + 0``, ``x * 1``, ``x / 1``, ``x ** 1``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.node_reading import (
    attribute,
    constant_input,
    pad_amounts,
    resizing,
    slice_ranges,
    window,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "no-ops"
SUMMARY = "nodes that change nothing removed"

_MOVES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile")
_ONE_INPUT = ("Concat", "Sum", "Max", "Min", "Mean")


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it fits; returns the names of the nodes that are gone."""
    changed = []
    for node in list(graph.nodes):
        if _changes_nothing(graph, node):
            if _operand(graph, node) == 1:  # a sum or product: either order
                first, second = node.input
                graph.set_input(node, 0, second)
                graph.set_input(node, 1, first)
            name = node.name
            if graph.bypass(node):
                changed.append(name)
    return changed


def _operand(graph: Graph, node: NodeProto) -> int:
    """Which input is passed on."""
    return 1 if node.op_type in ("Add", "Mul") and node.input[0] in graph.constants else 0


def _changes_nothing(graph: Graph, node: NodeProto) -> bool:
    before, after = graph.shape(node.input[0]) if node.input else None, graph.shape(node.output[0])
    op = node.op_type
    if op == "Identity":
        return True
    if op == "Dropout":
        training = constant_input(graph, node, 2)
        unused = len(node.output) == 1 or node.output[1] not in graph.consumers()
        return unused and (len(node.input) < 3 or (training is not None and not training.any()))
    if op == "Cast":
        known = graph.types.get(node.input[0])
        return known is not None and known.elem_type == attribute(node, "to")
    if op in _ONE_INPUT:
        return len(node.input) == 1
    if before is None or after is None:
        return False
    if op in ("Add", "Sub", "Mul", "Div", "Pow"):
        return _neutral(graph, node, after)
    if before != after:
        return False
    if op in _MOVES:
        return True
    if op == "Split":
        return len(node.output) == 1
    if op == "Transpose":
        order = attribute(node, "perm") or list(range(len(before)))[::-1]
        return list(order) == list(range(len(before)))
    if op == "Slice":
        ranges = slice_ranges(graph, node)
        return ranges is not None and all(step == 1 for _, _, step in ranges)
    if op == "Pad":
        amounts = pad_amounts(graph, node)
        return amounts is not None and not any(amounts[0]) and not any(amounts[1])
    if op in ("Resize", "Upsample"):
        scales = resizing(graph, node).scales
        return scales is not None and all(scale == 1 for scale in scales)
    if op in ("MaxPool", "AveragePool"):
        found = window(graph, node)
        return (
            found is not None
            and len(node.output) == 1
            and set(found.kernel) | set(found.strides) == {1}
            and not any(found.pads)
        )
    return False


def _neutral(graph: Graph, node: NodeProto, after: tuple[int, ...]) -> bool:
    """Arithmetic with its neutral element that does not change the shape either."""
    place = 1 - _operand(graph, node)
    constant = constant_input(graph, node, place)
    if constant is None or graph.shape(node.input[1 - place]) != after:
        return False
    return bool(np.all(constant == (0 if node.op_type in ("Add", "Sub") else 1)))
