"""Tensors that are joined are filled up to whole vectors of channels.

A DLA keeps tensors as vectors of 16 channels (FP16, kCHW16) or 32 (INT8, kCHW32), and fills the
last one up (TensorRT documentation, "I/O Formats on DLA"). Where tensors are joined along the
channels and one of them does not end with a whole vector, everything behind it has to be moved.
With channel counts that are multiples of the vector a Concat joins whole vectors. Made on request:
a DLA computes whole vectors anyway, so this costs weights, not time, but only a device tells what
it gains.

Exact up to the order of the sums: the new channels of a convolution have weights and bias 0, what
elementwise functions and pools make of them is finite, and every convolution that reads them has
weights 0 for them. Only where nothing but convolutions, elementwise functions, pools, resizes and
Concats sees the tensor; outputs of the network keep their channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.node_reading import attribute, axis_of, resizing, set_attribute

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "channel padding"
SUMMARY = "channels that are joined filled up to whole vectors"

VECTOR = {"fp16": 16, "int8": 32}
"""Channels of a vector: kCHW16 and kCHW32."""

_UNARY = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "HardSigmoid", "HardSwish", "Elu", "Mish")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Sum")
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


def pad_channels(graph: Graph, target: Target) -> list[str]:
    """Fill up wherever it is possible and a Concat gains from it.

    Args:
        graph: refreshed; to be refreshed afterwards.
        target: its precision says how long a vector is.

    Returns:
        Names of the convolutions that got more output channels.
    """
    classes = _Classes(graph)
    layouts = classes.layouts(VECTOR[target.precision])
    changed = []
    for node in graph.nodes:
        if node.op_type == "Conv":
            if _fill_convolution(graph, node, layouts):
                changed.append(node.name)
        elif node.op_type in _BINARY:
            _fill_constants(graph, node, layouts)
    return changed


class _Classes:
    """Tensors that must have the same channels, and which of them may get more."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._parent: dict[str, str] = {}
        self._frozen: set[str] = set()
        self._joins: list[NodeProto] = []
        for node in graph.nodes:
            self._look_at(node)
        for name in [*graph.inputs, *graph.outputs]:
            self._frozen.add(self._find(name))
        self._freeze()

    def layouts(self, vector: int) -> dict[str, np.ndarray]:
        """For each tensor that changes: the old number of each new channel, -1 for a new one."""
        joined = {self._find(name) for node in self._joins for name in node.input}
        made_by = {self._find(node.output[0]): node for node in self._joins}
        found: dict[str, np.ndarray] = {}

        def layout(name: str) -> np.ndarray:
            root = self._find(name)
            if root not in found:
                shape = self._graph.shape(name) or (0, 0)
                plain = np.arange(shape[1])
                if root in self._frozen:
                    found[root] = plain
                elif root in made_by:
                    found[root] = self._join([layout(part) for part in made_by[root].input])
                else:
                    more = -shape[1] % vector if root in joined else 0
                    found[root] = np.concatenate([plain, np.full(more, -1)])
            return found[root]

        result = {}
        for node in self._graph.nodes:
            for name in node.output:
                shape = self._graph.shape(name)
                if shape is not None and len(shape) == 4 and len(layout(name)) != shape[1]:
                    result[name] = layout(name)
        return result

    @staticmethod
    def _join(parts: list[np.ndarray]) -> np.ndarray:
        joined, offset = [], 0
        for part in parts:
            joined.append(np.where(part < 0, -1, part + offset))
            offset += int((part >= 0).sum())
        return np.concatenate(joined)

    def _find(self, name: str) -> str:
        root = self._parent.setdefault(name, name)
        if root != name:
            root = self._parent[name] = self._find(root)
        return root

    def _unite(self, one: str, other: str) -> None:
        first, second = self._find(one), self._find(other)
        if first != second:
            self._parent[second] = first
            if second in self._frozen:
                self._frozen.add(first)

    def _look_at(self, node: NodeProto) -> None:
        graph = self._graph
        moving = [name for name in node.input if name and name not in graph.constants]
        result = node.output[0]
        if node.op_type == "Conv" and _constant_weights(graph, node):
            groups = attribute(node, "group", 1)
            weights = graph.constants[node.input[1]]
            if groups == 1:
                return
            if groups == len(weights) and weights.shape[1] == 1:
                self._unite(moving[0], result)
                return
        elif node.op_type in (*_UNARY, *_POOLS) and len(node.output) == 1:
            self._unite(moving[0], result)
            return
        elif node.op_type in _BINARY and all(
            graph.shape(name) == graph.shape(result) for name in moving
        ):
            for name in moving:
                self._unite(name, result)
            return
        elif node.op_type in ("Resize", "Upsample") and resizing(graph, node).by == "scales":
            scales = resizing(graph, node).scales
            if scales is not None and scales[:2] == (1, 1):
                self._unite(moving[0], result)
                return
        elif (
            node.op_type == "Concat"
            and axis_of(graph, node, 1) == 1
            and len(moving) == len(node.input) > 1
        ):
            self._joins.append(node)
            return
        for name in [*moving, *node.output]:
            self._frozen.add(self._find(name))

    def _freeze(self) -> None:
        """What is joined into something frozen, or made by two Concats, cannot change."""
        while True:
            before = len(self._frozen)
            makers: dict[str, int] = {}
            for node in self._joins:
                result = self._find(node.output[0])
                makers[result] = makers.get(result, 0) + 1
                parts = {self._find(name) for name in node.input}
                if result in parts or makers[result] > 1:
                    self._frozen.add(result)
                if result in self._frozen:
                    self._frozen |= parts
            if len(self._frozen) == before:
                return


def _constant_weights(graph: Graph, node: NodeProto) -> bool:
    return all(name in graph.constants for name in node.input[1:] if name)


def _fill_convolution(graph: Graph, node: NodeProto, layouts: dict[str, np.ndarray]) -> bool:
    before, after = layouts.get(node.input[0]), layouts.get(node.output[0])
    if before is None and after is None:
        return False
    weights = graph.constants[node.input[1]]
    depthwise = attribute(node, "group", 1) > 1
    if after is not None:
        weights = _pick(weights, after, 0)
        if len(node.input) > 2 and node.input[2]:
            bias = _pick(graph.constants[node.input[2]], after, 0)
            graph.set_input(node, 2, graph.add_constant(node.input[2], bias))
        if depthwise:
            set_attribute(node, "group", len(after))
    if before is not None and not depthwise:
        weights = _pick(weights, before, 1)
    graph.set_input(node, 1, graph.add_constant(node.input[1], weights))
    return after is not None


def _fill_constants(graph: Graph, node: NodeProto, layouts: dict[str, np.ndarray]) -> None:
    """Constants with one value per channel get zeros for the new ones."""
    layout = layouts.get(node.output[0])
    if layout is None:
        return
    for index, name in enumerate(node.input):
        constant = graph.constants.get(name)
        if constant is None or constant.ndim < 3 or constant.shape[-3] == 1:
            continue
        filled = _pick(constant, layout, constant.ndim - 3)
        graph.set_input(node, index, graph.add_constant(name, filled))


def _pick(array: np.ndarray, layout: np.ndarray, axis: int) -> np.ndarray:
    """The elements along an axis in a new order, zeros where the layout says -1."""
    picked = np.take(array, np.maximum(layout, 0), axis=axis)
    form = [1] * array.ndim
    form[axis] = len(layout)
    return np.where((layout >= 0).reshape(form), picked, np.zeros((), array.dtype))
