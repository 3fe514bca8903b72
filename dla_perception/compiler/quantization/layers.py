"""A network as an INT8 builder sees it: layers with the activations fused into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Collection, Mapping, Sequence

import numpy as np

from dla_perception.compiler.activations import is_silu

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.graph import Graph

WEIGHTED = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
"""Operators whose constant input of this index is quantised as weights."""

MOVING = frozenset(
    ("DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice",
     "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)  # fmt: skip
"""Operators that only move or repeat values: what they return needs no rounding of its own."""

_STARTS = frozenset([*WEIGHTED, "Add", "Sum", "BatchNormalization"])
_FOLLOWERS = frozenset(["BatchNormalization", "Relu", "LeakyRelu", "PRelu", "Clip"])


@dataclass(frozen=True)
class Layer:
    """Nodes that a DLA runs as one: a convolution with its normalisation and activation, say.

    Attributes:
        nodes: in running order; the first gives the layer its name.
        inputs: the activation tensors that it reads from outside.
        outputs: what it returns; values inside are never stored.
    """

    nodes: tuple[NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the first node."""
        return str(self.nodes[0].name)

    @property
    def op(self) -> str:
        """ONNX operator of the first node."""
        return str(self.nodes[0].op_type)

    def in_int8(self, scales: Collection[str]) -> bool:
        """Whether it runs in INT8: all it reads and returns has a scale.

        Source: TensorRT developer guide, "Working with DLA": a layer with a tensor that lacks a
        dynamic range runs in FP16.
        """
        return all(tensor in scales for tensor in (*self.inputs, *self.outputs))


def find_layers(graph: Graph) -> list[Layer]:
    """The layers of a network in running order.

    Fused are normalisation by constants, ReLU, leaky and parametric ReLU, clipping and SiLU: what
    a DLA's post-processor does on the way out of a convolution or sum. SiLU needs DLA software
    3.14 (JetPack 6) for that; before, it is two layers more, whose rounding is not seen here.
    """
    layers: list[Layer] = []
    taken: set[str] = set()
    for node in graph.nodes:
        if node.name in taken:
            continue
        nodes = [node]
        while nodes[0].op_type in _STARTS:
            following = _following(graph, nodes[-1])
            if not following:
                break
            nodes += following
        taken.update(part.name for part in nodes)
        inner = {name for part in nodes for name in part.output}
        read = dict.fromkeys(name for part in nodes for name in part.input)
        inputs = [name for name in read if name not in inner and is_activation(graph, name)]
        layers.append(Layer(tuple(nodes), tuple(inputs), tuple(nodes[-1].output)))
    return layers


def is_activation(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is computed from the input and holds floating-point numbers."""
    if not tensor or tensor in graph.constants:
        return False
    return bool(graph.dtype(tensor) == np.float32)


def activations(graph: Graph) -> list[str]:
    """All of them: the network's inputs and every node's results."""
    names = [*graph.inputs, *(name for node in graph.nodes for name in node.output)]
    return [name for name in names if is_activation(graph, name)]


def tail_of(graph: Graph, layers: Sequence[Layer]) -> set[str]:
    """Tensors behind the last convolutions: what the heads return and what is made of it.

    None of them is read, directly or not, by a layer with weights.
    """
    feeding: set[str] = set()
    for layer in reversed(layers):
        if layer.op in WEIGHTED or feeding.intersection(layer.outputs):
            feeding.update(layer.inputs)
    return set(activations(graph)) - feeding - _inside(layers, feeding) - set(graph.inputs)


def _inside(layers: Sequence[Layer], feeding: set[str]) -> set[str]:
    """Tensors within layers whose result feeds another layer."""
    return {
        name
        for layer in layers
        if feeding.intersection(layer.outputs)
        for node in layer.nodes
        for name in node.output
    }


def producers(layers: Sequence[Layer]) -> Mapping[str, Layer]:
    """Which layer returns each tensor."""
    return {name: layer for layer in layers for name in layer.outputs}


def _following(graph: Graph, node: NodeProto) -> list[NodeProto]:
    """The nodes of the activation that alone reads what ``node`` returns."""
    tensor = node.output[0]
    readers = graph.consumers().get(tensor, ())
    if tensor in graph.outputs or not readers:
        return []
    if len(readers) == 1 and readers[0].op_type in _FOLLOWERS and readers[0].input[0] == tensor:
        return [readers[0]]
    if len(readers) == 2:
        gates = [reader for reader in readers if reader.op_type == "Sigmoid"]
        products = [reader for reader in readers if reader.op_type == "Mul"]
        if gates and products and is_silu(graph, products[0]):
            gate = gates[0].output[0]
            alone = len(graph.consumers().get(gate, ())) == 1 and gate not in graph.outputs
            if alone and set(products[0].input) == {tensor, gate}:
                return [gates[0], products[0]]
    return []
