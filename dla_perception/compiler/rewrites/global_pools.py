"""Means, sums and maxima over rows, columns or channels become pools and 1x1 convolutions.

Exact up to rounding. A plane of n rows is averaged in stages: windows of k rows side by side, k at
most 8, give n / k means, and the mean of means of equally many elements is the mean of all. Where k
does not divide n, the rows are filled up with zeros that are counted: the sum stays, and the mean
is multiplied by (filled rows) / n at the end. Maxima are filled up with minus infinity. A mean over
channels is a 1x1 convolution with weights 1 / C. A sum is a mean times the number of elements.

GlobalAveragePool, GlobalMaxPool, ReduceMean, ReduceSum and ReduceMax over any of channels, rows and
columns; maxima not over channels. Where the reduced dimensions are not kept, a Reshape follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.dla_support import judge
from dla_perception.compiler.node_reading import Window, attribute, axes_of, set_window

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "global pools"
SUMMARY = "means, sums and maxima over planes made chains of pools"

_LARGEST_WINDOW = 8
"""Of a pool on a DLA (TensorRT 8.4 developer guide)."""

_MEANS = ("GlobalAveragePool", "ReduceMean", "ReduceSum")
_MAXIMA = ("GlobalMaxPool", "ReduceMax")


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it is needed; returns the names of the nodes that were replaced."""
    changed = []
    for node in list(graph.nodes):
        if node.op_type not in (*_MEANS, *_MAXIMA):
            continue
        shape, axes = graph.shape(node.input[0]), _axes(graph, node)
        if (
            shape is None
            or len(shape) != 4
            or axes is None
            or graph.dtype(node.input[0]).kind != "f"
        ):
            continue
        usable = bool(axes) and set(axes) <= ({1, 2, 3} if node.op_type in _MEANS else {2, 3})
        if usable and not judge(graph, node, target).on_dla:
            _replace(graph, node, shape, axes)
            changed.append(node.name)
    return changed


def _axes(graph: Graph, node: NodeProto) -> list[int] | None:
    if node.op_type.startswith("Global"):
        return [2, 3]
    return axes_of(graph, node)


def _replace(graph: Graph, node: NodeProto, shape: tuple[int, ...], axes: list[int]) -> None:
    sizes = [shape[axis] if axis in axes else 1 for axis in (2, 3)]
    stages = [_stages(size) for size in sizes]
    count = max(len(steps) for steps in stages)
    for steps in stages:
        steps += [(1, 0, 0)] * (count - len(steps))
    new: list[NodeProto] = []
    tensor = node.input[0]

    def add(op: str, *inputs: str, **attributes: object) -> NodeProto:
        nonlocal tensor
        result = graph.fresh(f"{node.output[0]}_step_{len(new) + 1}")
        made = graph.new_node(op, [tensor, *inputs], result, node.name, **attributes)
        new.append(made)
        tensor = result
        return made

    mean = node.op_type in _MEANS
    for index in range(count):
        kernel = tuple(steps[index][0] for steps in stages)
        pool = add(
            "AveragePool" if mean else "MaxPool",
            # said outright: an average on a Xavier has to count its padding
            **({"count_include_pad": 1} if mean else {}),
        )
        begin, end = (tuple(steps[index][side] for steps in stages) for side in (1, 2))
        set_window(pool, Window(kernel, kernel, (1, 1), begin, end))
    factor = np.prod([np.float64(_filled(size)) / size for size in sizes]) if mean else 1.0
    if node.op_type == "ReduceSum":
        factor *= np.prod([shape[axis] for axis in axes], dtype=np.float64)
    dtype = graph.dtype(node.input[0])
    if mean and 1 in axes:
        weights = np.full((1, shape[1], 1, 1), factor / shape[1], dtype)
        conv = add("Conv", graph.add_constant(f"{node.output[0]}_mean", weights))
        set_window(conv, Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0)))
    elif factor != 1:
        add("Mul", graph.add_constant(f"{node.output[0]}_factor", np.array(factor, dtype)))
    if not node.op_type.startswith("Global") and not attribute(node, "keepdims", 1):
        kept = [size for axis, size in enumerate(shape) if axis not in axes]
        add("Reshape", graph.add_constant(f"{node.output[0]}_shape", np.array(kept, np.int64)))
    new[-1].output[0] = node.output[0]
    graph.replace([node], new)


def _stages(size: int) -> list[tuple[int, int, int]]:
    """Windows, with padding before and after, that reduce ``size`` rows to one."""
    stages = []
    while size > 1:
        window = _window(size)
        filled = -(-size // window) * window
        more = filled - size
        stages.append((window, more // 2, more - more // 2))
        size = filled // window
    return stages or [(1, 0, 0)]


def _window(size: int) -> int:
    """The largest window that divides ``size``, else one that needs little and even padding."""
    if size <= _LARGEST_WINDOW:
        return size
    choices = range(_LARGEST_WINDOW, 2, -1)
    return min(choices, key=lambda k: (-size % k != 0, -size % k % 2, -k))


def _filled(size: int) -> int:
    """Rows after all filling up: what the mean of the chain divides by."""
    product = 1
    for window, _, _ in _stages(size):
        product *= window
    return product
