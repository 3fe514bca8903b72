"""The network as a DLA would compute it, to be run by ONNX Runtime on any machine.

A layer runs in INT8 when everything it reads and returns has a scale, else in FP16. What INT8
layers read and return is rounded to the tensor's scale times a whole number in -128..127, half to
even (TensorRT developer guide, "Quantization Schemes"); their weights to 255 steps a filter, from
the filter's largest magnitude. What FP16 layers return and their constants are rounded to half
precision, without infinities; a tensor that one of them returns is rounded to INT8 only where an
INT8 layer reads it.

Sums are exact as in the hardware's wide accumulators, up to float32; so is everything within a
fused layer. The hardware's own tables for sigmoid and the like are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping, Sequence

import numpy as np

from dla_perception.compiler.graph import GraphError
from dla_perception.compiler.node_reading import attribute
from dla_perception.compiler.quantization.layers import (
    MOVING,
    WEIGHTED,
    Layer,
    find_layers,
    is_activation,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from dla_perception.compiler.graph import Graph


LARGEST_HALF = 65504.0
"""The largest finite number of half precision (IEEE 754 binary16)."""


@dataclass(frozen=True)
class Emulation:
    """A network that rounds as a DLA does.

    Attributes:
        model: for ONNX Runtime.
        int8_layers, fp16_layers: names of the layers in each precision; those that only move
            values are in neither.
        unknown: tensors that have a scale and are not in the network.
    """

    model: ModelProto
    int8_layers: tuple[str, ...]
    fp16_layers: tuple[str, ...]
    unknown: tuple[str, ...]


def emulate(graph: Graph, scales: Mapping[str, float]) -> Emulation:
    """Round in INT8 where ``scales`` allow it and in FP16 elsewhere; no scale at all: all FP16.

    Args:
        graph: the network; it is not changed.
        scales: by tensor.

    Raises:
        GraphError: its operators are those of an opset before 11.
    """
    twin = _copy(graph)
    int8: list[Layer] = []
    fp16: list[Layer] = []
    for layer in find_layers(twin):
        if layer.op not in MOVING:
            (int8 if layer.in_int8(scales) else fp16).append(layer)
    known = {*graph.inputs, *(name for node in graph.nodes for name in node.output)}
    _round_inputs(twin, int8)
    _round_layers(twin, int8, fp16, scales)
    return Emulation(
        twin.to_model(),
        tuple(layer.name for layer in int8),
        tuple(layer.name for layer in fp16),
        tuple(name for name in scales if name not in known),
    )


def emulate_one(graph: Graph, name: str, scales: Mapping[str, float]) -> ModelProto:
    """The network with one layer in INT8 and all others in float32.

    Args:
        graph: the network; it is not changed.
        name: of the layer; all that it reads and returns has a scale.
        scales: by tensor.
    """
    twin = _copy(graph)
    layers = [layer for layer in find_layers(twin) if layer.name == name]
    _round_layers(twin, layers, [], scales)
    return twin.to_model()


def _copy(graph: Graph) -> Graph:
    if graph.opset < 11:
        raise GraphError(
            f"{graph.where}: opset {graph.opset} is too old to emulate DLA arithmetic; "
            "export again with opset_version=11 or newer"
        )
    return graph.copy()


def quantise_weights(weights: np.ndarray, axis: int) -> np.ndarray:
    """Weights rounded to -127..127 steps a filter; ``axis`` counts the filters.

    A filter of zeros stays as it is.
    """
    others = tuple(index for index in range(weights.ndim) if index != axis)
    steps = np.abs(weights).max(axis=others, keepdims=True).astype(np.float64) / 127
    steps[steps == 0] = 1
    return (np.rint(weights / steps) * steps).astype(np.float32)


def filter_axis(node: NodeProto) -> int:
    """Which axis of a node's weights counts the filters, the channels of the output."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    return -1


def _round_inputs(graph: Graph, int8: Sequence[Layer]) -> None:
    """An input that no INT8 layer reads is given in FP16."""
    read = {name for layer in int8 for name in layer.inputs}
    for name in graph.inputs:
        if name not in read and is_activation(graph, name):
            _insert(graph, name, _fp16_nodes(graph, name))


def _round_layers(
    graph: Graph, int8: Sequence[Layer], fp16: Sequence[Layer], scales: Mapping[str, float]
) -> None:
    _round_constants(graph, int8, fp16)
    made = {name for layer in int8 for name in layer.outputs}
    for layer in int8:
        for name in layer.inputs:
            if name not in made:
                _round_where_read(graph, name, scales[name], int8)
                made.add(name)
        for name in layer.outputs:
            _insert(graph, name, _int8_nodes(graph, name, scales[name]))
    for layer in fp16:
        for name in layer.outputs:
            if is_activation(graph, name):
                _insert(graph, name, _fp16_nodes(graph, name))


def _round_constants(graph: Graph, int8: Sequence[Layer], fp16: Sequence[Layer]) -> None:
    for layers, in_int8 in ((int8, True), (fp16, False)):
        for layer in layers:
            for node in layer.nodes:
                for index, name in enumerate(node.input):
                    value = graph.constants.get(name)
                    if value is None or value.dtype != np.float32:
                        continue
                    weights = WEIGHTED.get(node.op_type) == index
                    if in_int8 and not weights:
                        continue
                    rounded = (
                        quantise_weights(value, filter_axis(node) % value.ndim)
                        if in_int8
                        else _half(value)
                    )
                    node.input[index] = graph.add_constant(f"{name}_rounded", rounded)


def _half(value: np.ndarray) -> np.ndarray:
    limited = np.clip(value, -LARGEST_HALF, LARGEST_HALF)
    return limited.astype(np.float16).astype(np.float32)


def _round_where_read(graph: Graph, tensor: str, scale: float, layers: Sequence[Layer]) -> None:
    """Let INT8 layers read a tensor in INT8 that others read as it is."""
    nodes = _int8_nodes(graph, tensor, scale)
    for layer in layers:
        if tensor in layer.inputs:
            for node in layer.nodes:
                for index, name in enumerate(node.input):
                    if name == tensor:
                        graph.set_input(node, index, nodes[-1].output[0])
    _put_behind(graph, tensor, nodes)


def _insert(graph: Graph, tensor: str, nodes: Sequence[NodeProto]) -> None:
    """Let everyone who reads ``tensor`` read what ``nodes`` make of it, outputs included."""
    rounded = nodes[-1].output[0]
    if tensor in graph.outputs:  # the output keeps its name: what it was made from gets a new one
        exact = graph.fresh(f"{tensor}_exact")
        producer = graph.producers()[tensor]
        graph.rename_output(producer, tensor, exact)
        nodes[0].input[0] = exact
        nodes[-1].output[0] = tensor
        graph.replace([producer], [producer, *nodes])
        return
    graph.rename_uses(tensor, rounded)
    _put_behind(graph, tensor, nodes)


def _put_behind(graph: Graph, tensor: str, nodes: Sequence[NodeProto]) -> None:
    producer = graph.producers().get(tensor)
    if producer is None:
        graph.nodes = [*nodes, *graph.nodes]
    else:
        graph.replace([producer], [producer, *nodes])


def _int8_nodes(graph: Graph, tensor: str, scale: float) -> list[NodeProto]:
    """Rounding to INT8 steps.

    Written out, since ONNX Runtime quantises weights and biases of its own accord where it sees
    QuantizeLinear behind a convolution.
    """
    from onnx import helper

    parts = {"step": scale, "lowest_step": -128, "highest_step": 127}
    step, low, high = (
        graph.add_constant(f"{tensor}_{key}", np.array(value, np.float32))
        for key, value in parts.items()
    )
    steps, whole, clipped, rounded = (
        graph.fresh(f"{tensor}_{name}") for name in ("steps", "whole", "int8", "dequantised")
    )
    return [
        helper.make_node("Div", [tensor, step], [steps], name=steps),
        helper.make_node("Round", [steps], [whole], name=whole),
        helper.make_node("Clip", [whole, low, high], [clipped], name=clipped),
        helper.make_node("Mul", [clipped, step], [rounded], name=rounded),
    ]


def _fp16_nodes(graph: Graph, tensor: str) -> list[NodeProto]:
    """Rounding to the 11 significant bits of half precision, within its range.

    With ``c = (2^13 + 1) x``, ``c - (c - x)`` is ``x`` rounded to 24 - 13 bits (T. J. Dekker, "A
    floating-point technique for extending the available precision", 1971). Casts would say it
    more simply, but ONNX Runtime moves them to other places, where they round something else.
    Numbers below 2^-14 are rounded as finely as those above it.
    """
    from onnx import helper

    low = graph.add_constant(f"{tensor}_lowest", np.array(-LARGEST_HALF, np.float32))
    high = graph.add_constant(f"{tensor}_highest", np.array(LARGEST_HALF, np.float32))
    factor = graph.add_constant(f"{tensor}_factor", np.array(2**13 + 1, np.float32))
    clipped, scaled, rest, rounded = (
        graph.fresh(f"{tensor}_{name}") for name in ("in_range", "scaled", "rest", "half")
    )
    return [
        helper.make_node("Clip", [tensor, low, high], [clipped], name=clipped),
        helper.make_node("Mul", [clipped, factor], [scaled], name=scaled),
        helper.make_node("Sub", [scaled, clipped], [rest], name=rest),
        helper.make_node("Sub", [scaled, rest], [rounded], name=rounded),
    ]
