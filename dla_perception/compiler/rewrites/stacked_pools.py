"""Max pools with windows above 8 become stacks of smaller ones: 9 is two of 5, 13 is three.

Exact. Let m[j] be the maximum of the input over the window of the first pool at j, and pool m with
the second: the maximum over j in [i - p2, i - p2 + k2 - 1] of the maxima over
[j - p1, j - p1 + k1 - 1] is the maximum over the union of these windows,
[i - (p1 + p2), i - (p1 + p2) + (k1 + k2 - 1) - 1]: one pool with window k1 + k2 - 1 and padding
p1 + p2, padding counting as minus infinity. At the border m[j] for j < 0 is missing, but the part
of its window inside the input, [0, j - p1 + k1 - 1], lies inside that of m[0], which is there
whenever a j < 0 is, since p2 < k2; the same at the other end. Only the last pool of a stack takes
the stride. An equal pool of the same tensor is used again, as in an SPP block with 5, 9 and 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dla_perception.compiler.dla_support import judge
from dla_perception.compiler.node_reading import Window, attribute, set_window, window

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "stacked pools"
SUMMARY = "max pools with windows above 8 stacked from smaller ones"

LARGEST_WINDOW = 8
"""Of a pool on a DLA (TensorRT 8.4 developer guide)."""


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it is needed; returns the names of the pools that were replaced."""
    changed = []
    for node in list(graph.nodes):
        if node.op_type != "MaxPool" or len(node.output) > 1:
            continue
        found = window(graph, node)
        if (
            found is None
            or max(found.kernel) <= LARGEST_WINDOW
            or set(found.dilations) != {1}
            or (found.ceil_mode and attribute(node, "ceil_mode", 0))
            or judge(graph, node, target).on_dla
        ):
            continue
        _stack(graph, node, found)
        changed.append(node.name)
    return changed


def _stack(graph: Graph, node: NodeProto, found: Window) -> None:
    axes = [_stages(k, b, e) for k, b, e in zip(found.kernel, found.begin, found.end)]
    count = max(len(stages) for stages in axes)
    for stages in axes:
        stages += [(1, 0, 0)] * (count - len(stages))
    tensor = node.input[0]
    pools: list[NodeProto] = []
    for index in range(count):
        last = index == count - 1
        step = Window(
            kernel=tuple(stages[index][0] for stages in axes),
            strides=found.strides if last else (1,) * len(axes),
            dilations=found.dilations,
            begin=tuple(stages[index][1] for stages in axes),
            end=tuple(stages[index][2] for stages in axes),
        )
        existing = _existing(graph, tensor, step)
        if existing is not None and not last:
            tensor = existing
            continue
        output = node.output[0] if last else graph.fresh(f"{node.output[0]}_stage_{index + 1}")
        pool = graph.new_node("MaxPool", [tensor], output, node.name)
        set_window(pool, step)
        pools.append(pool)
        tensor = output
    graph.replace([node], pools)


def _existing(graph: Graph, tensor: str, wanted: Window) -> str | None:
    """The result of an equal pool of the same tensor."""
    for reader in graph.consumers().get(tensor, ()):
        if (
            reader.op_type == "MaxPool"
            and len(reader.output) == 1
            and window(graph, reader) == wanted
        ):
            return str(reader.output[0])
    return None


def _stages(kernel: int, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Windows with begin and end padding whose stack is one window, along one axis."""
    stages = []
    while kernel > 1:
        # 5 with 2 on each side is what SPPF blocks have: pools that can be shared
        size = 5 if kernel > 5 and min(begin, end) >= 2 else min(kernel, LARGEST_WINDOW)
        rest = kernel - size + 1
        # what remains must be less than the window that remains
        low_begin, low_end = max(0, begin - (rest - 1)), max(0, end - (rest - 1))
        first_begin = max(low_begin, min(begin, (size - 1) // 2))
        first_end = max(low_end, min(end, (size - 1) // 2))
        stages.append((size, first_begin, first_end))
        kernel, begin, end = rest, begin - first_begin, end - first_end
    return stages or [(1, 0, 0)]
