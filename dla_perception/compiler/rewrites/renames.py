"""Reshape, Flatten, Squeeze and Unsqueeze that only rename dimensions are moved out of the way.

Exact: such a node returns the same elements in the same order, so

* two in a row are one, and one that leads back to the first shape is none;
* a function of single elements (Relu, Sigmoid, ...) may come before it instead of after it;
* a matrix product with constant weights behind one that flattens (N, C, H, W) to (N, C H W) is a
  convolution with an H x W kernel, since element (c, h, w) of the kernel meets element
  (c H + h) W + w of the row. What remains of the flattening comes after it.

Repeated, that takes them to the end of the network, where the last one stays or meets its opposite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.dla_support import judge
from dla_perception.compiler.node_reading import Window, attribute, element_count, set_window

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "renames"
SUMMARY = "nodes that only rename dimensions moved out of the way"

_ALWAYS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_ELEMENTWISE = (
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "Elu", "HardSigmoid", "HardSwish", "Abs", "Exp",
    "Softplus", "Neg", "Sqrt",
)  # fmt: skip

_LARGEST_KERNEL = 32
"""Of a convolution on a DLA (TensorRT 8.4 developer guide)."""


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it is needed; returns the names of the nodes that were moved or removed."""
    changed = []
    for node in list(graph.nodes):
        if not _only_renames(graph, node) or not any(other is node for other in graph.nodes):
            continue
        if judge(graph, node, target).on_dla:
            continue
        name = node.name
        if _join(graph, node) or _pass(graph, node):
            changed.append(name)
    return changed


def _only_renames(graph: Graph, node: NodeProto) -> bool:
    before = graph.shape(node.input[0]) if node.input else None
    after = graph.shape(node.output[0])
    if before is None or after is None:
        return False
    if node.op_type in _ALWAYS:
        return True
    if node.op_type != "Transpose":
        return False
    order = attribute(node, "perm") or list(range(len(before)))[::-1]
    kept = [axis for axis in order if before[axis] > 1]
    return kept == sorted(kept)


def _join(graph: Graph, node: NodeProto) -> bool:
    """Read what the rename before this one reads; vanish if that has the wanted shape."""
    before = graph.producers().get(node.input[0])
    source = before.input[0] if before is not None and _only_renames(graph, before) else ""
    start = source or node.input[0]
    if graph.shape(start) == graph.shape(node.output[0]):
        graph.set_input(node, 0, start)
        return graph.bypass(node)
    if not source:
        return False
    graph.replace([node], [_reshape(graph, source, node.output[0], node.name)])
    return True


def _reshape(
    graph: Graph, source: str, result: str, like: str, shape: tuple[int, ...] | None = None
) -> NodeProto:
    wanted = np.array(shape if shape is not None else graph.shape(result), np.int64)
    return graph.new_node(
        "Reshape", [source, graph.add_constant(f"{result}_shape", wanted)], result, like
    )


def _pass(graph: Graph, node: NodeProto) -> bool:
    """Let the readers of a rename's result come before it."""
    source, result = node.input[0], node.output[0]
    shape = graph.shape(source)
    if shape is None or len(shape) != 4:
        return False
    passed = False
    for reader in list(graph.consumers().get(result, ())):
        if reader.op_type in _ELEMENTWISE and reader.input[0] == result:
            after = reader.output[0]
            inner = graph.fresh(f"{after}_before")
            graph.rename_output(reader, after, inner)
            graph.set_input(reader, 0, source)
            back = _reshape(graph, inner, after, node.name)
            graph.replace([reader], [reader, back])
            graph.types[inner] = graph.types[source]
            passed = True
        elif reader.op_type in ("Gemm", "MatMul") and reader.input[0] == result:
            passed = _product(graph, node, reader, shape) or passed
    return passed


def _product(graph: Graph, node: NodeProto, product: NodeProto, shape: tuple[int, ...]) -> bool:
    """A matrix product of flattened planes as a convolution."""
    batch, channels, height, width = shape
    flat = graph.shape(node.output[0])
    if flat != (batch, channels * height * width) or product.input[1] not in graph.constants:
        return False
    weights = graph.constants[product.input[1]]
    if weights.ndim != 2 or max(height, width) > _LARGEST_KERNEL:
        return False
    if attribute(product, "transA", 0):
        return False
    if attribute(product, "transB", 0):
        weights = weights.T
    outputs = weights.shape[1]
    kernel = weights.T.reshape(outputs, channels, height, width) * weights.dtype.type(
        attribute(product, "alpha", 1.0)
    )
    inputs = [node.input[0], graph.add_constant(f"{product.input[1]}_kernel", kernel)]
    if len(product.input) > 2 and product.input[2]:
        bias = graph.constants.get(product.input[2])
        if (
            bias is None
            or element_count(bias.shape) not in (1, outputs)
            or (bias.ndim > 1 and bias.shape[0] != 1)
        ):
            return False
        full = np.broadcast_to(bias.reshape(-1), (outputs,))
        scaled = full * bias.dtype.type(attribute(product, "beta", 1.0))
        inputs.append(graph.add_constant(f"{product.input[2]}_full", scaled))
    result = product.output[0]
    inner = graph.fresh(f"{result}_planes")
    conv = graph.new_node("Conv", inputs, inner, product.name)
    set_window(conv, Window((height, width), (1, 1), (1, 1), (0, 0), (0, 0)))
    back = _reshape(graph, inner, result, node.name, (batch, outputs))
    graph.replace([product], [conv, back])
    return True
