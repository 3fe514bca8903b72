"""Zero padding becomes part of the convolution or pool that follows, or a convolution itself.

Exact:

* A convolution pads with zeros itself: amounts add up.
* An average that counts its padding sees zeros there: amounts add up. An average without padding of
  its own then counts it.
* A maximum pads with minus infinity. Zeros are the same where no element is negative, as behind a
  Relu, Sigmoid or Clip from 0, since every window reaches at least one element. Padding with the
  lowest number is the same anyway.
* Any other zero padding by b rows before and e after is a convolution of each channel for itself
  with b + e + 1 rows of which only number e is 1, and padding b + e: its result i is the input's
  i - (b + e) + e, and there are as many as the input has and b + e more.

A Pad with negative amounts is a Slice and stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.node_reading import (
    Window,
    attribute,
    clip_limits,
    pad_amounts,
    set_attribute,
    set_window,
    single_consumer,
    window,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "padding"
SUMMARY = "Pad nodes made part of convolutions and pools"

_LARGEST_KERNEL = 32
"""Of a convolution on a DLA (TensorRT 8.4 developer guide)."""


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it fits; returns the names of the Pad nodes that are gone."""
    changed = []
    for node in list(graph.nodes):
        if node.op_type != "Pad":
            continue
        shape, amounts = graph.shape(node.input[0]), pad_amounts(graph, node)
        if shape is None or len(shape) != 4 or amounts is None:
            continue
        begin, end, value = amounts
        if any(begin[:2]) or any(end[:2]) or min(begin + end) < 0:
            continue
        name = node.name
        done = _into_next(graph, node, begin[2:], end[2:], value)
        if done or (value == 0 and _as_convolution(graph, node, shape[1], begin[2:], end[2:])):
            changed.append(name)
    return changed


def _into_next(
    graph: Graph, node: NodeProto, begin: list[int], end: list[int], value: float
) -> bool:
    follower = single_consumer(graph, node.output[0])
    if follower is None or follower.input[0] != node.output[0]:
        return False
    lowest = value <= float(np.finfo(graph.dtype(node.input[0])).min)
    if follower.op_type not in (("MaxPool",) if lowest else ("Conv", "AveragePool", "MaxPool")):
        return False
    if value != 0 and not lowest:
        return False
    found = window(graph, follower)
    if found is None or len(found.kernel) != 2:
        return False
    wide = replace(
        found,
        begin=tuple(b + more for b, more in zip(found.begin, begin)),
        end=tuple(e + more for e, more in zip(found.end, end)),
    )
    if follower.op_type == "Conv":
        if attribute(follower, "auto_pad", "NOTSET") not in ("NOTSET", ""):
            return False  # resolved for the padded size: leave it to a convolution of its own
    else:
        wider = zip(wide.begin, wide.end, wide.kernel)
        if found.ceil_mode or any(max(b, e) >= k for b, e, k in wider):
            return False
        if follower.op_type == "AveragePool":
            if any(found.pads) and not attribute(follower, "count_include_pad", 0):
                return False
            set_attribute(follower, "count_include_pad", 1)
        elif not lowest and not _never_negative(graph, node.input[0]):
            return False
    if not graph.bypass(node):
        return False
    set_window(follower, wide)
    return True


def _never_negative(graph: Graph, tensor: str) -> bool:
    node = graph.producers().get(tensor)
    if node is None:
        return False
    if node.op_type == "Clip":
        limits = clip_limits(graph, node)
        return limits is not None and limits[0] >= 0
    if node.op_type in ("MaxPool", "AveragePool", "Concat", "Slice", "Resize"):
        moving = [name for name in node.input if name and name not in graph.constants]
        if node.op_type == "Resize" and attribute(node, "mode", "nearest") == "cubic":
            return False
        return all(_never_negative(graph, name) for name in moving)
    return node.op_type in ("Relu", "Sigmoid", "Softmax", "Abs", "HardSigmoid")


def _as_convolution(
    graph: Graph, node: NodeProto, channels: int, begin: list[int], end: list[int]
) -> bool:
    """A convolution of each channel for itself that moves it by ``begin``."""
    pads = tuple(b + e for b, e in zip(begin, end))
    kernel = tuple(pad + 1 for pad in pads)
    if max(kernel) > _LARGEST_KERNEL:
        return False
    weights = np.zeros((channels, 1, *kernel), graph.dtype(node.input[0]))
    weights[:, :, end[0], end[1]] = 1
    conv = graph.new_node(
        "Conv",
        [node.input[0], graph.add_constant(f"{node.output[0]}_kernel", weights)],
        node.output[0],
        node.name,
        group=channels,
    )
    set_window(conv, Window(kernel, (1, 1), (1, 1), pads, pads))
    graph.replace([node], [conv])
    return True
