"""INT8 scales for tensors that have none, inferred from their neighbours.

Source of the rules: the qdq-translator of NVIDIA's Deep-Learning-Accelerator-SW, version 0.2.0.
Unlike there, a scale that is known stays as it is, and the passes are repeated until nothing
changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dla_perception.compiler.quantization.layers import is_activation

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.graph import Graph

ADJACENT = frozenset(
    ["MaxPool", "Flatten", "Relu", "Pad", "Transpose", "Reshape", "Squeeze", "Sigmoid"]
)
"""Operators whose input and output share a scale if only one of them has any."""

AVERAGES = frozenset(["AveragePool", "GlobalAveragePool", "ReduceMean"])

SIGMOID_SCALE = 1 / 127
"""A sigmoid lies between 0 and 1."""

MISSING_FOR_DLA = 1.0
"""What DLA software from 3.13 on reads as 'no scale' between a convolution and a sum."""


@dataclass(frozen=True)
class Inference:
    """Which rules are used beyond those of :data:`ADJACENT`.

    Attributes:
        concat: a concatenation's output from its inputs, the largest, and missing inputs from it.
        mul: the missing input of a product from its output and other input; a sigmoid that
            enters a product has the scale 1/127.
        average_pool: across averaging.
        operators: more operators whose input and output share a scale.
        unary_for_dla: the scale 1.0 for a convolution that enters a sum and has none.
    """

    concat: bool = False
    mul: bool = False
    average_pool: bool = False
    operators: frozenset[str] = frozenset()
    unary_for_dla: bool = False


def propagate(graph: Graph, scales: dict[str, float], inference: Inference) -> dict[str, float]:
    """All scales: those given, which stay as they are, and those inferred from them."""
    known = dict(scales)
    while True:
        count = len(known)
        for node in graph.nodes:
            _downstream(graph, node, known, inference)
        for node in reversed(graph.nodes):
            _upstream(graph, node, known, inference)
        if len(known) == count:
            break
    if inference.unary_for_dla:
        for node in graph.nodes:
            if node.op_type == "Conv" and node.output[0] not in known:
                readers = graph.consumers().get(node.output[0], ())
                if any(reader.op_type == "Add" for reader in readers):
                    known[node.output[0]] = MISSING_FOR_DLA
    return known


def _downstream(
    graph: Graph, node: NodeProto, known: dict[str, float], inference: Inference
) -> None:
    missing = [name for name in node.output if name not in known and is_activation(graph, name)]
    inputs = [known[name] for name in node.input if name in known]
    if not missing:
        return
    if node.op_type == "Sigmoid" and inference.mul and _enters_product(graph, node):
        known[missing[0]] = SIGMOID_SCALE
    elif inputs and _copies(node, inference):
        known.update(dict.fromkeys(missing, max(inputs)))


def _upstream(graph: Graph, node: NodeProto, known: dict[str, float], inference: Inference) -> None:
    outputs = [known[name] for name in node.output if name in known]
    missing = [name for name in node.input if name not in known and is_activation(graph, name)]
    if not outputs or not missing:
        return
    if node.op_type == "Sigmoid":
        if not (inference.mul and _enters_product(graph, node)):
            probability = 127 * outputs[0]
            if 0.5 < probability < 1:  # the input of a smaller one would be negative
                known[missing[0]] = math.log(probability / (1 - probability)) / 127
    elif node.op_type == "Mul" and inference.mul:
        others = [known[name] for name in node.input if name in known]
        if len(missing) == 1 and len(others) == 1:
            known[missing[0]] = outputs[0] / others[0] / 127
    elif _copies(node, inference):
        known.update(dict.fromkeys(missing, max(outputs)))


def _copies(node: NodeProto, inference: Inference) -> bool:
    op = node.op_type
    return bool(
        op in ADJACENT
        or op in inference.operators
        or (inference.concat and op == "Concat")
        or (inference.average_pool and op in AVERAGES)
    )


def _enters_product(graph: Graph, node: NodeProto) -> bool:
    readers = graph.consumers().get(node.output[0], ())
    return any(reader.op_type == "Mul" for reader in readers)
