"""Convolutions and pools with unequal padding on their sides get equal padding.

Exact. With padding b before and e after:

* End padding that no window reaches is dropped or added freely.
* A convolution with b < e gets e - b rows of zeros in front of its kernel and padding e before: the
  windows start e - b earlier and the first e - b weights are zero. With b > e likewise at the end.
* A convolution whose padding p is no less than its kernel k, which a DLA refuses, gets p - k + 1
  rows of zeros on both sides of its kernel and as much more padding.
* A pool gets padding max(b, e) on both sides. Its windows then start at -max(b, e) instead of -b,
  so the wanted results begin (max(b, e) - b) / stride later; a Slice takes them. Where that is no
  whole number, the pool runs with stride 1 and a pool with window 1 takes every stride-th result.
  A window of the wanted results sees the same elements and the same padding as before.
* A pool that rounds its size up gets the end padding that this amounts to. For averages only where
  padding is not counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Sequence

import numpy as np

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

NAME = "symmetric padding"
SUMMARY = "unequal padding of convolutions and pools made equal"


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it fits; returns the names of the nodes that were changed."""
    changed = []
    for node in list(graph.nodes):
        before, after = graph.shape(node.input[0]) if node.input else None, None
        if node.op_type in ("Conv", "MaxPool", "AveragePool"):
            after = graph.shape(node.output[0])
        if before is None or after is None or len(node.output) > 1:
            continue
        found = window(graph, node)
        if found is None:
            continue
        if node.op_type == "Conv" and found.begin == found.end:
            done = _widen(graph, node, found)
        elif node.op_type == "Conv":
            done = _convolution(graph, node, found, before, after)
        elif found.begin == found.end and not found.ceil_mode:
            continue
        else:
            done = _pool(graph, node, found, before, after)
        if done:
            changed.append(node.name)
    return changed


def _reached(found: Window, before: Sequence[int], after: Sequence[int]) -> Window:
    """The same window without rounding, with the end padding that its windows reach."""
    end = tuple(
        max((out - 1) * s - b + d * (k - 1) + 1 - size, 0)
        for size, out, k, s, d, b in zip(
            before[2:], after[2:], found.kernel, found.strides, found.dilations, found.begin
        )
    )
    return replace(found, end=end, ceil_mode=False)


def _sizes(found: Window, before: Sequence[int]) -> list[int]:
    return [
        (size + b + e - d * (k - 1) - 1) // s + 1
        for size, k, s, d, b, e in zip(
            before[2:], found.kernel, found.strides, found.dilations, found.begin, found.end
        )
    ]


def _convolution(
    graph: Graph, node: NodeProto, found: Window, before: Sequence[int], after: Sequence[int]
) -> bool:
    if node.input[1] not in graph.constants:
        return False
    free = replace(found, end=found.begin)
    if _sizes(free, before) == list(after[2:]):
        set_window(node, free)
        return True
    weights = graph.constants[node.input[1]]
    widths = [(0, 0), (0, 0)]
    pads, kernel = [], []
    for axis, (k, d, b, e) in enumerate(zip(found.kernel, found.dilations, found.begin, found.end)):
        size = before[2 + axis] + 2 * b - d * (k - 1) - 1
        if size >= 0 and size // found.strides[axis] + 1 == after[2 + axis]:
            more, pad = (0, 0), b
        elif abs(e - b) % d:
            return False
        else:
            rows = abs(e - b) // d
            more, pad = ((rows, 0) if b < e else (0, rows)), max(b, e)
        widths.append(more)
        pads.append(pad)
        kernel.append(k + sum(more))
    new = replace(found, kernel=tuple(kernel), begin=tuple(pads), end=tuple(pads))
    graph.set_input(node, 1, graph.add_constant(node.input[1], np.pad(weights, widths)))
    set_window(node, new)
    return True


def _widen(graph: Graph, node: NodeProto, found: Window) -> bool:
    """Make the kernel larger than the padding."""
    more = [max(0, p - k + 1) for p, k in zip(found.begin, found.kernel)]
    if node.input[1] not in graph.constants or not any(more):
        return False
    if any(rows and d > 1 for rows, d in zip(more, found.dilations)):
        return False
    weights = graph.constants[node.input[1]]
    widths = [(0, 0), (0, 0), *((rows, rows) for rows in more)]
    pads = tuple(p + rows for p, rows in zip(found.begin, more))
    kernel = tuple(k + 2 * rows for k, rows in zip(found.kernel, more))
    graph.set_input(node, 1, graph.add_constant(node.input[1], np.pad(weights, widths)))
    set_window(node, replace(found, kernel=kernel, begin=pads, end=pads))
    return True


def _pool(
    graph: Graph, node: NodeProto, found: Window, before: Sequence[int], after: Sequence[int]
) -> bool:
    counts_padding = node.op_type == "AveragePool" and attribute(node, "count_include_pad", 0)
    if found.ceil_mode:
        plain = replace(found, ceil_mode=False)
        if _sizes(plain, before) != list(after[2:]):
            if counts_padding:
                return False
            plain = _reached(found, before, after)
        if _sizes(plain, before) != list(after[2:]) or _too_wide(plain):
            return False
        found = plain
        if found.begin == found.end:
            _write(node, found)
            return True
    free = replace(found, end=found.begin)
    if _sizes(free, before) == list(after[2:]):
        _write(node, free)
        return True
    pads = tuple(max(b, e) for b, e in zip(found.begin, found.end))
    late = [pad - b for pad, b in zip(pads, found.begin)]
    if _too_wide(replace(found, begin=pads, end=pads)):
        return False
    whole = all(start % stride == 0 for start, stride in zip(late, found.strides))
    strides = found.strides if whole else (1,) * len(late)
    wide = replace(found, begin=pads, end=pads, strides=strides)
    starts = [start // stride for start, stride in zip(late, strides)]
    counts = [
        out if whole else (out - 1) * stride + 1 for out, stride in zip(after[2:], found.strides)
    ]
    result = node.output[0]
    pooled = graph.fresh(f"{result}_padded")
    cut = result if whole else graph.fresh(f"{result}_cut")
    graph.rename_output(node, result, pooled)
    _write(node, wide)
    new = [_slice(graph, node, pooled, cut, starts, counts)]
    if not whole:
        thin = graph.new_node("MaxPool", [cut], result, node.name)
        ones, zeros = (1,) * len(late), (0,) * len(late)
        set_window(thin, Window(ones, found.strides, ones, zeros, zeros))
        new.append(thin)
    graph.replace([node], [node, *new])
    return True


def _too_wide(found: Window) -> bool:
    """Padding must be less than the window, or a window could see padding alone."""
    pads = zip(found.begin, found.end, found.kernel, found.dilations)
    return any(max(b, e) >= d * (k - 1) + 1 for b, e, k, d in pads)


def _write(node: NodeProto, found: Window) -> None:
    set_window(node, found)
    set_attribute(node, "ceil_mode", None)


def _slice(
    graph: Graph,
    node: NodeProto,
    source: str,
    result: str,
    starts: Sequence[int],
    counts: Sequence[int],
) -> NodeProto:
    axes = list(range(2, 2 + len(starts)))
    ends = [start + count for start, count in zip(starts, counts)]
    if graph.opset < 10:  # Slice had attributes instead of inputs
        return graph.new_node(
            "Slice", [source], result, node.name, axes=axes, starts=list(starts), ends=ends
        )
    bounds = [
        graph.add_constant(f"{result}_{name}", np.array(values, np.int64))
        for name, values in (("starts", starts), ("ends", ends), ("axes", axes))
    ]
    return graph.new_node("Slice", [source, *bounds], result, node.name)
