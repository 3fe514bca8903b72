"""Transposed convolutions are brought within the limits of a DLA: no padding, groups or dilation.

Exact:

* Padding p of a transposed convolution leaves out p rows of its result: a Slice does the same.
* Groups are a kernel whose blocks outside the diagonal are zero.
* A dilated kernel is the kernel with zeros between its rows.
* Output padding by q rows at the end is q rows of zeros at the end of the kernel: the rows of the
  result that no input reaches are the bias alone either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.dla_support import judge
from dla_perception.compiler.node_reading import Window, attribute, set_attribute, set_window

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "transposed convolutions"
SUMMARY = "transposed convolutions without padding, groups and dilation"


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it is needed; returns the names of the nodes that were changed."""
    changed = []
    for node in list(graph.nodes):
        if (
            node.op_type != "ConvTranspose"
            or node.input[1] not in graph.constants
            or graph.constants[node.input[1]].ndim != 4
            or judge(graph, node, target).on_dla
        ):
            continue
        if _rewrite(graph, node):
            changed.append(node.name)
    return changed


def _rewrite(graph: Graph, node: NodeProto) -> bool:
    before, after = graph.shape(node.input[0]), graph.shape(node.output[0])
    if before is None or after is None:
        return False
    weights = graph.constants[node.input[1]]
    groups = int(attribute(node, "group", 1))
    strides = tuple(attribute(node, "strides") or (1, 1))
    dilations = tuple(attribute(node, "dilations") or (1, 1))
    kernel = _spread(_dense(weights, groups), dilations)
    begin = _begin(node, before, after, kernel.shape[2:], strides)
    whole = [(size - 1) * s + k for size, s, k in zip(before[2:], strides, kernel.shape[2:])]
    # rows that are wanted and that no input reaches: zeros at the end of the kernel
    more = [max(0, b + out - all_) for b, out, all_ in zip(begin, after[2:], whole)]
    if any(b < 0 for b in begin):
        return False
    kernel = np.pad(kernel, [(0, 0), (0, 0), (0, more[0]), (0, more[1])])
    whole = [size + extra for size, extra in zip(whole, more)]
    plain = groups == 1 and set(dilations) == {1} and kernel.shape == weights.shape
    auto = attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "", "VALID")
    if plain and not auto and list(after[2:]) == whole:
        return False
    graph.set_input(node, 1, graph.add_constant(node.input[1], kernel))
    set_attribute(node, "group", None)
    for name in ("output_padding", "output_shape"):
        set_attribute(node, name, None)
    set_window(node, Window(kernel.shape[2:], strides, (1, 1), (0, 0), (0, 0)))
    if list(after[2:]) != whole:
        _cut(graph, node, begin, after[2:])
    return True


def _dense(weights: np.ndarray, groups: int) -> np.ndarray:
    """``(inputs, outputs / groups, kernel)`` as ``(inputs, outputs, kernel)``."""
    if groups == 1:
        return weights
    inputs, outputs = weights.shape[0] // groups, weights.shape[1]
    dense = np.zeros((weights.shape[0], outputs * groups, *weights.shape[2:]), weights.dtype)
    for group in range(groups):
        rows = slice(group * inputs, (group + 1) * inputs)
        dense[rows, group * outputs : (group + 1) * outputs] = weights[rows]
    return dense


def _spread(weights: np.ndarray, dilations: tuple[int, ...]) -> np.ndarray:
    if set(dilations) == {1}:
        return weights
    sizes = [d * (k - 1) + 1 for k, d in zip(weights.shape[2:], dilations)]
    spread = np.zeros((*weights.shape[:2], *sizes), weights.dtype)
    spread[:, :, :: dilations[0], :: dilations[1]] = weights
    return spread


def _begin(
    node: NodeProto,
    before: tuple[int, ...],
    after: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
) -> list[int]:
    """Rows left out at the beginning (ONNX operator specification, ConvTranspose)."""
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto in ("NOTSET", "") and attribute(node, "output_shape") is None:
        return list((attribute(node, "pads") or [0, 0, 0, 0])[:2])
    if auto == "VALID":
        return [0, 0]
    extra = attribute(node, "output_padding") or [0, 0]
    begins = []
    for size, out, k, s, q in zip(before[2:], after[2:], kernel, strides, extra):
        total = max((size - 1) * s + q + k - out, 0)
        begins.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return begins


def _cut(graph: Graph, node: NodeProto, begin: list[int], sizes: tuple[int, ...]) -> None:
    result = node.output[0]
    whole = graph.fresh(f"{result}_whole")
    graph.rename_output(node, result, whole)
    ends = [start + size for start, size in zip(begin, sizes)]
    if graph.opset < 10:  # Slice had attributes instead of inputs
        cut = graph.new_node(
            "Slice", [whole], result, node.name, axes=[2, 3], starts=list(begin), ends=ends
        )
    else:
        bounds = [
            graph.add_constant(f"{result}_{name}", np.array(values, np.int64))
            for name, values in (("starts", begin), ("ends", ends), ("axes", [2, 3]))
        ]
        cut = graph.new_node("Slice", [whole, *bounds], result, node.name)
    graph.replace([node], [node, cut])
