"""Tensors that must share one INT8 scale on a DLA.

Sources: TensorRT's NvInfer.h (IConcatenationLayer, IElementWiseLayer) and the developer guide,
"DLA supported layers": inputs and output of a concatenation, input and output of a pooling, and
the inputs of a sum share one dynamic range, the largest of theirs. What only moves values has one
by its nature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping

from dla_perception.compiler.node_reading import attribute
from dla_perception.compiler.quantization.layers import MOVING, is_activation

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.graph import Graph

_POOLS = frozenset(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
_SUMS = frozenset(["Add", "Sum", "Sub", "Max", "Min"])


@dataclass(frozen=True)
class Change:
    """A scale that unification made larger.

    Attributes:
        tensor: whose scale it is.
        before, after: the scales; ``before`` is ``None`` where there was none.
        group: all tensors that share the scale.
    """

    tensor: str
    before: float | None
    after: float
    group: tuple[str, ...]


def groups_of(graph: Graph) -> list[tuple[str, ...]]:
    """The sets of two and more tensors that share a scale, each in running order."""
    parent: dict[str, str] = {}

    def root(tensor: str) -> str:
        parent.setdefault(tensor, tensor)
        while parent[tensor] != tensor:
            parent[tensor] = parent[parent[tensor]]
            tensor = parent[tensor]
        return tensor

    for node in graph.nodes:
        tied = _tied(graph, node)
        for tensor in tied[1:]:
            parent[root(tensor)] = root(tied[0])
    groups: dict[str, list[str]] = {}
    for tensor in parent:
        groups.setdefault(root(tensor), []).append(tensor)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def unify(
    graph: Graph, scales: Mapping[str, float], complete: bool = False
) -> tuple[dict[str, float], list[Change]]:
    """Give the tensors of each group the largest scale among them.

    Args:
        graph: the network.
        scales: by tensor.
        complete: also give it to tensors of the group that have none.

    Returns:
        The new scales, and what has changed.
    """
    unified = dict(scales)
    changes = []
    for group in groups_of(graph):
        known = [scales[tensor] for tensor in group if tensor in scales]
        if not known:
            continue
        largest = max(known)
        for tensor in group:
            before = scales.get(tensor)
            if before == largest or (before is None and not complete):
                continue
            unified[tensor] = largest
            changes.append(Change(tensor, before, largest, group))
    return unified, changes


def _tied(graph: Graph, node: NodeProto) -> list[str]:
    """Tensors at one node that must share a scale."""
    inputs = [name for name in node.input if is_activation(graph, name)]
    outputs = [name for name in node.output if is_activation(graph, name)]
    if node.op_type == "Concat" or node.op_type in _POOLS:
        return [*inputs, *outputs]
    if node.op_type in _SUMS:
        return inputs
    nearest = node.op_type in ("Resize", "Upsample") and attribute(node, "mode", "nearest")
    if node.op_type in MOVING or nearest == "nearest":
        return [*inputs[:1], *outputs]
    return []
