"""The network is cut at its head convolutions; decoding boxes is left to the CPU.

What a YOLO network does behind its last convolutions (reshapes to 5 dimensions, transposes, grids,
softmax over bins, top-k) no DLA takes. NVIDIA's own DLA sample cuts there too
(NVIDIA-AI-IOT/cuDLA-samples, ``export/yolov5-qat.py``, option ``--noanchor``).

Exact: the outputs of the cut network are tensors of the whole one, under their own names; that this
package decodes them to the same boxes is compared on random images when a network is prepared.

The cut goes through the convolutions that are nearest to the outputs. The convolution of a
distribution focal loss, whose weights are 0, 1, 2, ..., is part of the decoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

import numpy as np

from dla_perception.compiler.dla_support import judge
from dla_perception.compiler.graph import GraphError, TensorType, open_session
from dla_perception.compiler.rewrites.batch_norm import affine_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "head cut"
SUMMARY = "cut at the head convolutions"


def head_tensors(graph: Graph) -> list[str]:
    """Results of the convolutions nearest to the outputs: finest level first.

    Within a level in the order in which the network joins them.
    """
    producers = graph.producers()
    found: list[str] = []
    seen: set[str] = set()

    def visit(start: str) -> None:
        waiting = [start]
        while waiting:
            tensor = waiting.pop()
            node = producers.get(tensor)
            if tensor in seen or node is None:
                continue
            seen.add(tensor)
            if _ends_backbone(graph, node):
                found.append(tensor)
            else:
                waiting += reversed([name for name in node.input if name])

    for output in graph.outputs:
        visit(output)
    return sorted(found, key=lambda tensor: -_area(graph, tensor))


def _ends_backbone(graph: Graph, node: NodeProto) -> bool:
    """A convolution, with the factors and offsets per channel that will become part of it."""
    while node.op_type != "Conv":
        affine = affine_of(graph, node)
        maker = graph.producers().get(affine[0]) if affine is not None else None
        if affine is None or maker is None or len(graph.consumers()[affine[0]]) > 1:
            return False
        node = maker
    return not _weighs_bins(graph, node)


def _area(graph: Graph, tensor: str) -> int:
    shape = graph.shape(tensor)
    return int(np.prod(shape[2:], dtype=np.int64)) if shape else 0


def _weighs_bins(graph: Graph, node: NodeProto) -> bool:
    """The convolution of a distribution focal loss (ultralytics, ``nn/modules/block.py``)."""
    weights = graph.constants.get(node.input[1])
    if (
        weights is None
        or weights.shape[0] != 1
        or weights.shape[1] < 2
        or weights.size != len(weights[0])
    ):
        return False
    return bool(np.array_equal(weights.reshape(-1), np.arange(weights.size)))


def needs_cut(graph: Graph, tensors: Sequence[str], target: Target) -> bool:
    """Whether a DLA refuses something of what comes behind these tensors."""
    producers = graph.producers()
    waiting, seen = list(graph.outputs), set(tensors)
    while waiting:
        tensor = waiting.pop()
        node = producers.get(tensor)
        if tensor in seen or node is None:
            continue
        seen.add(tensor)
        if not judge(graph, node, target).on_dla:
            return True
        waiting += [name for name in node.input if name]
    return False


def cut(graph: Graph, tensors: Sequence[str]) -> None:
    """Let ``tensors`` be the network's outputs; refreshes the graph.

    Raises:
        GraphError: there is no such tensor.
    """
    known = set(graph.producers()) | set(graph.inputs)
    for tensor in tensors:
        if tensor not in known:
            raise GraphError(
                f"{graph.where}: it has no tensor '{tensor}' to cut at; 'check --all' lists the "
                "nodes, and a tensor is called as its node's output"
            )
        if graph.shape(tensor) is None:
            raise GraphError(f"{graph.where}: the shape of tensor '{tensor}' is not fixed")
    graph.outputs = list(tensors)
    graph.prune()
    graph.refresh()


def tail(graph: Graph, tensors: Sequence[str]) -> Graph | None:
    """What the network does behind ``tensors``, as a network of its own.

    Returns:
        ``None`` where it depends on something else too, or on shapes that are not fixed.
    """
    shapes = {tensor: graph.shape(tensor) for tensor in tensors}
    if any(shape is None for shape in shapes.values()):
        return None
    rest = graph.copy()
    producers = rest.producers()
    needed: set[int] = set()
    waiting = list(rest.outputs)
    while waiting:
        tensor = waiting.pop()
        if tensor in shapes or tensor in rest.constants:
            continue
        node = producers.get(tensor)
        if node is None:
            return None
        if id(node) not in needed:
            needed.add(id(node))
            waiting += [name for name in node.input if name]
    rest.nodes = [node for node in rest.nodes if id(node) in needed]
    rest.inputs = {
        tensor: TensorType(graph.types[tensor].elem_type, shapes[tensor]) for tensor in tensors
    }
    return rest


def run_tail(rest: Graph, values: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """What :func:`tail` returns for these head tensors; ``None`` where it cannot be run."""
    try:
        session = open_session(rest.to_model())
        return [np.asarray(result) for result in session.run(list(rest.outputs), values)]
    except Exception:  # ONNX Runtime raises a class of its own per status code
        return None
