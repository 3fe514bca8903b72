"""Batch normalisation, and constant factors and offsets per channel, become part of a convolution.

Exact up to rounding: with s = scale / sqrt(variance + epsilon), batch normalisation is
``s * y + (bias - s * mean)`` per channel, and a convolution is linear in its weights and bias:
``s * (W x + b) + t = (s W) x + (s b + t)``. The same holds for a Mul, Div, Add or Sub with one
constant per channel or one for all, such as the ImplicitM of YOLOv7. Only where nobody else reads
the convolution's own result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.node_reading import attribute, element_count

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "batch normalisation"
SUMMARY = "batch normalisation and factors per channel folded into convolutions"


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it fits; returns the names of the nodes that are gone."""
    changed = []
    for node in list(graph.nodes):
        affine = affine_of(graph, node)
        if affine is None:
            continue
        source, scale, shift = affine
        conv = graph.producers().get(source)
        if (
            conv is None
            or conv.op_type not in ("Conv", "ConvTranspose")
            or source in graph.outputs
            or len(graph.consumers()[source]) > 1
            or not all(name in graph.constants for name in conv.input[1:] if name)
        ):
            continue
        _fold(graph, conv, scale, shift)
        graph.remove(node)
        graph.rename_output(conv, source, node.output[0])
        changed.append(node.name)
    return changed


def affine_of(graph: Graph, node: NodeProto) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Source, factor and offset per channel of a node that is ``factor * source + offset``."""
    shape = graph.shape(node.output[0])
    if shape is None or len(shape) < 3:
        return None
    channels = shape[1]
    if node.op_type == "BatchNormalization":
        if not all(name in graph.constants for name in node.input[1:]) or len(node.output) > 1:
            return None
        scale, bias, mean, variance = (
            graph.constants[name].astype(np.float64) for name in node.input[1:5]
        )
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        return node.input[0], factor, bias - factor * mean
    if node.op_type not in ("Mul", "Div", "Add", "Sub"):
        return None
    place = next((i for i, name in enumerate(node.input) if name in graph.constants), None)
    if place is None or (place == 0 and node.op_type == "Div"):
        return None
    source = node.input[1 - place]
    constant = graph.constants[node.input[place]].astype(np.float64)
    values = _per_channel(constant, shape)
    if values is None or graph.shape(source) != shape:
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    if node.op_type == "Mul":
        return source, values, zero
    if node.op_type == "Div":
        return (source, 1 / values, zero) if values.all() else None
    if node.op_type == "Add":
        return source, one, values
    return (source, one, -values) if place == 1 else (source, -one, values)


def _per_channel(constant: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """A constant as one value per channel, if that is what it is."""
    full = [1] * (len(shape) - constant.ndim) + list(constant.shape)
    if element_count(full) == 1:
        return np.full(shape[1], constant.reshape(-1)[0])
    if len(full) == len(shape) and full == [1, shape[1]] + [1] * (len(shape) - 2):
        return constant.reshape(-1)
    return None


def _fold(graph: Graph, conv: NodeProto, factor: np.ndarray, offset: np.ndarray) -> None:
    weights = graph.constants[conv.input[1]]
    biased = len(conv.input) > 2 and bool(conv.input[2])
    bias = graph.constants[conv.input[2]].astype(np.float64) if biased else 0.0
    wide = weights.astype(np.float64)
    if conv.op_type == "Conv":
        scaled = wide * factor.reshape(-1, *[1] * (weights.ndim - 1))
    else:  # weights are (input channels, output channels of a group, kernel)
        groups = int(attribute(conv, "group", 1))
        per_group = factor.reshape(groups, 1, -1, *[1] * (weights.ndim - 2))
        split = wide.reshape(groups, -1, *weights.shape[1:])
        scaled = (split * per_group).reshape(weights.shape)
    new_weights = graph.add_constant(conv.input[1], scaled.astype(weights.dtype))
    new_bias = graph.add_constant(
        conv.input[2] if biased else f"{conv.input[1]}_bias",
        (bias * factor + offset).astype(weights.dtype),
    )
    graph.set_input(conv, 1, new_weights)
    graph.set_input(conv, 2, new_bias)
