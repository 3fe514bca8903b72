"""Focus blocks, channel shuffles and other fixed regroupings become one convolution.

A chain of Slice, Concat, Reshape, Transpose, Split, Gather and the like that starts from one tensor
copies each output element from a fixed place of it. Which place is found by sending the numbers of
the places through the chain. Where output channel ``o`` at (i, j) is always input channel ``c(o)``
at (a i + y(o), b j + x(o)), the chain is a convolution with strides a, b whose kernel has a single
1 per output channel, at (c(o), y(o), x(o)). Where it is input channel ``c(o, i mod r, j mod s)`` at
(i / r, j / s), it is a transposed convolution with strides r, s and a kernel of ones and zeros.
That covers Focus (YOLOv5, YOLOX), SpaceToDepth, DepthToSpace, channel shuffles (ShuffleNet) and
picked channels. A run of neighbouring channels becomes a Slice.

Exact: products with 1 and sums with 0 change no number.

Where only ungrouped convolutions read the result, the regrouping becomes part of their kernels:
``sum over p, u, v of W[n, p, u, v] * in[c(p), a (s i + d u) + y(p), ...]`` is a convolution with
kernel ``K[n, c(p), a d u + y(p), b d v + x(p)] = W[n, p, u, v]`` and strides a s, b s. Zero padding
before and after the regrouped tensor is zero padding of the input as long as places outside the one
come from outside the other, which is checked. Exact up to the order of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.dla_support import judge
from dla_perception.compiler.node_reading import (
    Window,
    attribute,
    set_attribute,
    set_window,
    window,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "regrouping"
SUMMARY = "Focus blocks, shuffles and picked channels made convolutions"

_MOVES = {
    "Slice", "Concat", "Reshape", "Transpose", "Split", "Gather", "Squeeze", "Unsqueeze",
    "Flatten", "SpaceToDepth", "DepthToSpace", "Identity",
}  # fmt: skip

_LARGEST_KERNEL = 32
"""Of a convolution on a DLA (TensorRT 8.4 developer guide)."""


@dataclass(frozen=True)
class _Selection:
    """Output channel ``o`` at (i, j) is ``channels[o]`` at (strides * (i, j) + rows/columns[o])."""

    channels: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    strides: tuple[int, int]

    @property
    def kernel(self) -> tuple[int, int]:
        return int(self.rows.max()) + 1, int(self.columns.max()) + 1


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it is needed; returns the names of the nodes that were replaced."""
    changed: list[str] = []
    for node in reversed(graph.nodes):  # the last of a chain first: the whole chain at once
        alive = any(other is node for other in graph.nodes)
        if node.op_type not in _MOVES or not alive:
            continue
        for tensor in list(node.output):
            shape = graph.shape(tensor)
            if shape is None or len(shape) != 4 or tensor not in graph.producers():
                continue
            if tensor not in graph.outputs and tensor not in graph.consumers():
                continue
            found = _source(graph, tensor, target)
            if found is not None and _replace(graph, tensor, *found):
                graph.prune()
                left = {other.name for other in graph.nodes}
                changed += [part.name for part in found[1] if part.name not in left]
    return list(dict.fromkeys(changed))


def _source(graph: Graph, tensor: str, target: Target) -> tuple[str, list[NodeProto]] | None:
    """The one tensor that a moved tensor comes from, and the moves between.

    The shortest way back on which a DLA refuses a node.
    """
    producers = graph.producers()
    order = {id(node): index for index, node in enumerate(graph.nodes)}
    region: dict[int, NodeProto] = {}
    frontier = {tensor}
    refused = False
    while True:
        latest = max(frontier, key=lambda name: order.get(id(producers.get(name)), -1))
        node = producers.get(latest)
        if node is None or node.op_type not in _MOVES:
            return None
        region[id(node)] = node
        refused = refused or not judge(graph, node, target).on_dla
        frontier -= set(node.output)
        frontier |= {name for name in node.input if name and name not in graph.constants}
        if len(frontier) == 1 and refused:
            source = next(iter(frontier))
            shape, moved = graph.shape(source), graph.shape(tensor)
            if shape and moved and len(shape) == 4 and shape[0] == moved[0]:
                return source, sorted(region.values(), key=lambda part: order[id(part)])
        if not frontier:
            return None


def _replace(graph: Graph, tensor: str, source: str, moves: list[NodeProto]) -> bool:
    before, after = graph.shape(source), graph.shape(tensor)
    if before is None or after is None:
        return False
    places = _send_numbers(graph, tensor, source, moves)
    if places is None:
        return False
    selection = _selection(places, before)
    if selection is not None:
        readers = graph.consumers().get(tensor, ())
        if tensor not in graph.outputs and all(
            _merged(graph, reader, tensor, selection, before, after) is not None
            for reader in readers
        ):
            for reader in list(readers):
                _merge(graph, reader, tensor, source, selection, before, after)
            _drop(graph, tensor)
            return True
        replacement = _as_slice(graph, tensor, source, selection, before, after)
        if replacement is None:
            replacement = _as_convolution(graph, tensor, source, selection, before, after)
    else:
        replacement = _as_transposed(graph, tensor, source, places, before)
    if replacement is None:
        return False
    maker = graph.producers()[tensor]
    _drop(graph, tensor)
    graph.replace([maker], [maker, replacement])
    return True


def _drop(graph: Graph, tensor: str) -> None:
    """Let the node that makes ``tensor`` make something that nobody reads."""
    node = graph.producers()[tensor]
    graph.rename_output(node, tensor, graph.fresh(f"{tensor}_before"))


def _send_numbers(
    graph: Graph, tensor: str, source: str, moves: list[NodeProto]
) -> np.ndarray | None:
    """For each element of ``tensor`` the number of the element of ``source`` it is copied from."""
    from onnx import TensorProto, helper, numpy_helper

    from dla_perception.compiler.graph import open_session

    shape = graph.shape(source) or ()
    read = {name for node in moves for name in node.input if name in graph.constants}
    model = helper.make_model(
        helper.make_graph(
            moves,
            "moves",
            [helper.make_tensor_value_info(source, TensorProto.DOUBLE, shape)],
            [helper.make_tensor_value_info(tensor, TensorProto.DOUBLE, graph.shape(tensor))],
            initializer=[numpy_helper.from_array(graph.constants[name], name) for name in read],
        ),
        opset_imports=[helper.make_opsetid("", graph.opset)],
        ir_version=graph.ir_version,
    )
    numbers = np.arange(np.prod(shape, dtype=np.int64), dtype=np.float64).reshape(shape)
    try:
        moved = open_session(model).run([tensor], {source: numbers})[0]
    except Exception:  # ONNX Runtime raises a class of its own per status code
        return None
    return np.asarray(moved).astype(np.int64)


def _selection(places: np.ndarray, before: tuple[int, ...]) -> _Selection | None:
    """The numbers as a selection, if they are one."""
    batch, channel, row, column = np.unravel_index(places, before)
    rows, columns = places.shape[2:]
    strides = (
        int(row[0, 0, 1, 0] - row[0, 0, 0, 0]) if rows > 1 else 1,
        int(column[0, 0, 0, 1] - column[0, 0, 0, 0]) if columns > 1 else 1,
    )
    if min(strides) < 1:
        return None
    first = _Selection(channel[0, :, 0, 0], row[0, :, 0, 0], column[0, :, 0, 0], strides)
    i, j = np.arange(rows)[:, None], np.arange(columns)
    fits = (
        (batch == np.arange(len(places))[:, None, None, None]).all()
        and (channel == first.channels[:, None, None]).all()
        and (row == strides[0] * i + first.rows[:, None, None]).all()
        and (column == strides[1] * j + first.columns[:, None, None]).all()
    )
    return first if fits else None


def _as_slice(
    graph: Graph,
    tensor: str,
    source: str,
    selection: _Selection,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> NodeProto | None:
    """A run of neighbouring channels of the whole plane."""
    start = int(selection.channels[0])
    run = np.array_equal(selection.channels, np.arange(start, start + after[1]))
    if not run or before[2:] != after[2:] or selection.rows.any() or selection.columns.any():
        return None
    if graph.opset < 10:  # Slice had attributes instead of inputs
        return graph.new_node(
            "Slice", [source], tensor, tensor, axes=[1], starts=[start], ends=[start + after[1]]
        )
    bounds = [
        graph.add_constant(f"{tensor}_{name}", np.array([value], np.int64))
        for name, value in (("start", start), ("end", start + after[1]), ("axis", 1))
    ]
    return graph.new_node("Slice", [source, *bounds], tensor, tensor)


def _as_convolution(
    graph: Graph,
    tensor: str,
    source: str,
    selection: _Selection,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> NodeProto | None:
    kernel = selection.kernel
    sizes = [
        (size - k) // stride + 1 for size, k, stride in zip(before[2:], kernel, selection.strides)
    ]
    if max(kernel) > _LARGEST_KERNEL or sizes != list(after[2:]):
        return None
    weights = np.zeros((after[1], before[1], *kernel), graph.dtype(tensor))
    outputs = np.arange(after[1])
    weights[outputs, selection.channels, selection.rows, selection.columns] = 1
    node = graph.new_node(
        "Conv", [source, graph.add_constant(f"{tensor}_selection", weights)], tensor, tensor
    )
    set_window(node, Window(kernel, selection.strides, (1, 1), (0, 0), (0, 0)))
    return node


def _as_transposed(
    graph: Graph, tensor: str, source: str, places: np.ndarray, before: tuple[int, ...]
) -> NodeProto | None:
    """A transposed convolution whose windows do not overlap."""
    if places.shape[2] % before[2] or places.shape[3] % before[3]:
        return None
    factors = places.shape[2] // before[2], places.shape[3] // before[3]
    if max(factors) > _LARGEST_KERNEL:
        return None
    batch, channel, row, column = np.unravel_index(places, before)
    i, j = np.arange(places.shape[2])[:, None], np.arange(places.shape[3])
    of_first_cell = channel[0, :, : factors[0], : factors[1]]
    repeated = np.tile(of_first_cell, (1, before[2], before[3]))
    fits = (
        (batch == np.arange(len(places))[:, None, None, None]).all()
        and (row == i // factors[0]).all()
        and (column == j // factors[1]).all()
        and (channel == repeated).all()
    )
    if not fits:
        return None
    weights = np.zeros((before[1], places.shape[1], *factors), graph.dtype(tensor))
    output, y, x = np.indices(of_first_cell.shape)
    weights[of_first_cell, output, y, x] = 1
    node = graph.new_node(
        "ConvTranspose",
        [source, graph.add_constant(f"{tensor}_selection", weights)],
        tensor,
        tensor,
    )
    set_window(node, Window(factors, factors, (1, 1), (0, 0), (0, 0)))
    return node


def _merged(
    graph: Graph,
    conv: NodeProto,
    tensor: str,
    selection: _Selection,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> Window | None:
    """The window of ``conv`` with the selection in it; ``None`` where it cannot be."""
    if conv.op_type != "Conv" or list(conv.input).count(tensor) != 1 or conv.input[0] != tensor:
        return None
    if attribute(conv, "group", 1) != 1 or conv.input[1] not in graph.constants:
        return None
    found, result = window(graph, conv), graph.shape(conv.output[0])
    if found is None or result is None or len(found.kernel) != 2:
        return None
    axes = []
    offsets = (selection.rows, selection.columns)
    for axis in range(2):
        step, places = selection.strides[axis], offsets[axis]
        size, moved, out = before[2 + axis], after[2 + axis], result[2 + axis]
        if found.begin[axis] and places.max() >= step:
            return None
        if found.end[axis] and step * moved + places.min() < size:
            return None
        plain = step == 1 and not places.any()
        dilation = found.dilations[axis] if plain else 1
        spread = found.kernel[axis] if plain else 0
        kernel = spread or (
            (found.kernel[axis] - 1) * found.dilations[axis] * step + int(places.max()) + 1
        )
        stride, begin = found.strides[axis] * step, found.begin[axis] * step
        reach = dilation * (kernel - 1) + 1
        end = max((out - 1) * stride - begin + reach - size, 0)
        if (size + begin + end - reach) // stride + 1 != out or kernel > _LARGEST_KERNEL:
            return None
        axes.append((kernel, stride, dilation, begin, end))
    kernel_size, strides, dilations, begins, ends = zip(*axes)
    return Window(kernel_size, strides, dilations, begins, ends)


def _merge(
    graph: Graph,
    conv: NodeProto,
    tensor: str,
    source: str,
    selection: _Selection,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> None:
    merged = _merged(graph, conv, tensor, selection, before, after)
    found = window(graph, conv)
    if merged is None or found is None:
        raise AssertionError("asked before")
    weights = graph.constants[conv.input[1]]
    spread = np.zeros((len(weights), before[1], *merged.kernel), weights.dtype)
    for p in range(after[1]):
        for u in range(found.kernel[0]):
            for v in range(found.kernel[1]):
                # a plain axis keeps its dilation as an attribute
                y = u * (selection.strides[0] * found.dilations[0] // merged.dilations[0])
                x = v * (selection.strides[1] * found.dilations[1] // merged.dilations[1])
                y, x = y + int(selection.rows[p]), x + int(selection.columns[p])
                spread[:, selection.channels[p], y, x] += weights[:, p, u, v]
    graph.set_input(conv, 0, source)
    graph.set_input(conv, 1, graph.add_constant(conv.input[1], spread))
    set_attribute(conv, "group", 1)
    set_window(conv, merged)
