"""A network with Q/DQ nodes as a plain one and the scales that its Q/DQ nodes stated.

A DLA knows implicit quantisation only (TensorRT developer guide, "Working with DLA"), while
quantisation-aware training is exported with QuantizeLinear and DequantizeLinear nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Mapping

import numpy as np

from dla_perception.compiler.graph import Graph, read_model
from dla_perception.compiler.node_reading import attribute
from dla_perception.compiler.quantization.emulation import filter_axis
from dla_perception.compiler.quantization.layers import MOVING, WEIGHTED, find_layers
from dla_perception.compiler.quantization.propagation import Inference, propagate
from dla_perception.compiler.quantization.unification import Change, groups_of, unify
from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from onnx import NodeProto

WEIGHT_TOLERANCE = 1e-3
"""How far a stated weight scale may be from max|w|/127: as in NVIDIA's qdq-translator."""


class QatError(DlaPerceptionError):
    """A Q/DQ network that has no equal with implicit quantisation."""


@dataclass(frozen=True)
class Translation:
    """A plain network and what its Q/DQ nodes said.

    Attributes:
        graph: the network without Q/DQ nodes.
        stated: scales of the Q/DQ nodes, by tensor of the plain network.
        scales: ``stated`` and what was inferred from them.
        fp16_layers: names of nodes that stay in FP16 for want of a scale.
        changes: scales that unification made larger.
        warnings: one line each.
    """

    graph: Graph
    stated: Mapping[str, float]
    scales: Mapping[str, float]
    fp16_layers: tuple[str, ...]
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]


def translate(
    path: str | Path,
    inference: Inference | None = None,
    weights_by_maximum: bool = True,
    unified: bool = False,
    rename_outputs: bool = False,
) -> Translation:
    """Take the Q/DQ nodes out of a network.

    Args:
        path: an ONNX file with Q/DQ nodes.
        inference: which missing scales are inferred; by default those of adjacent operators.
        weights_by_maximum: whether weight scales must be max|w|/127, which is what TensorRT will
            use whatever the Q/DQ nodes say.
        unified: whether tensors that must share a scale on a DLA get the largest of theirs.
        rename_outputs: whether each tensor is named after its node, ``<node>_output_<n>``.

    Raises:
        GraphError: the file is no usable network.
        QatError: it has no Q/DQ nodes or some that implicit quantisation cannot express.
    """
    graph = Graph(read_model(path), str(path))
    _take_constants(graph)
    warnings: list[str] = []
    stated = _remove_pairs(graph, _checked_pairs(graph), warnings)
    graph.require_static_inputs()
    weights = _dequantise_weights(graph)
    graph.refresh()
    if weights_by_maximum:
        _check_weights(graph, weights)
    if rename_outputs:
        stated = _rename_outputs(graph, stated)
    scales = propagate(graph, stated, inference or Inference())
    changes: list[Change] = []
    if unified:
        scales, changes = unify(graph, scales, complete=True)
    else:
        warnings += _differing_groups(graph, scales)
    fp16 = [
        node.name
        for layer in find_layers(graph)
        if layer.op not in MOVING and not layer.in_int8(scales)
        for node in layer.nodes
    ]
    return Translation(graph, stated, scales, tuple(fp16), tuple(changes), tuple(warnings))


def _take_constants(graph: Graph) -> None:
    """Constant nodes as constants: exporters write scales as such."""
    from onnx import numpy_helper

    kept = []
    for node in graph.nodes:
        value = attribute(node, "value")
        if node.op_type == "Constant" and value is not None:
            graph.constants[node.output[0]] = numpy_helper.to_array(value)
        else:
            kept.append(node)
    graph.nodes = kept


def _variable(graph: Graph) -> set[str]:
    """Tensors that depend on the network's input."""
    found = set(graph.inputs)
    for node in graph.nodes:
        if found.intersection(node.input):
            found.update(node.output)
    return found


@dataclass(frozen=True)
class _Pair:
    quantize: NodeProto
    dequantize: NodeProto
    scale: float


def _checked_pairs(graph: Graph) -> list[_Pair]:
    """Each DequantizeLinear of an activation with the QuantizeLinear before it."""
    for node in graph.nodes:
        if node.op_type.startswith("QLinear"):
            raise QatError(
                f"{graph.where}: node '{node.name}': {node.op_type} computes in INT8 itself; "
                "export the network in Q/DQ form (QuantizeLinear, DequantizeLinear)"
            )
    variable = _variable(graph)
    pairs, quantizers = [], []
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear" and node.input[0] in variable:
            quantizers.append(node)
            _check_followed(graph, node)
        if node.op_type != "DequantizeLinear" or node.input[0] not in variable:
            continue
        quantize = graph.producers().get(node.input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear":
            raise QatError(
                f"{graph.where}: node '{node.name}': its input '{node.input[0]}' does not come "
                "from a QuantizeLinear; expected the two in a row"
            )
        scales = [_activation_scale(graph, part) for part in (quantize, node)]
        if scales[0] != scales[1]:
            raise QatError(
                f"{graph.where}: node '{node.name}': it multiplies by {scales[1]:.9g}, but "
                f"'{quantize.name}' before it divides by {scales[0]:.9g}; expected the same scale"
            )
        pairs.append(_Pair(quantize, node, scales[0]))
    if not quantizers:
        raise QatError(
            f"{graph.where}: it has no QuantizeLinear node on an activation; "
            "for a plain network compute scales with 'dla-perception calibrate'"
        )
    return pairs


def _check_followed(graph: Graph, node: NodeProto) -> None:
    readers = graph.consumers().get(node.output[0], ())
    others = [reader for reader in readers if reader.op_type != "DequantizeLinear"]
    if others or not readers or node.output[0] in graph.outputs:
        reader = f"{others[0].op_type} '{others[0].name}'" if others else "the network's output"
        raise QatError(
            f"{graph.where}: node '{node.name}': {reader} reads its INT8 result; "
            "expected a DequantizeLinear alone"
        )


def _activation_scale(graph: Graph, node: NodeProto) -> float:
    scale, where = _scale(graph, node), f"{graph.where}: node '{node.name}'"
    if scale.size != 1:
        raise QatError(
            f"{where}: {scale.size} scales for activations, one a channel; implicit quantisation "
            "has one a tensor: train with per-tensor activation scales"
        )
    return float(scale.reshape(()))


def _scale(graph: Graph, node: NodeProto) -> np.ndarray:
    """The scale of a Q or DQ node, checked: constant, positive, symmetric, INT8."""
    where = f"{graph.where}: node '{node.name}'"
    scale = graph.constants.get(node.input[1])
    if scale is None:
        raise QatError(f"{where}: its scale '{node.input[1]}' is not constant; freeze the network")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise QatError(f"{where}: its scale is {scale.min():.6g}; expected positive numbers")
    if len(node.input) < 3 or not node.input[2]:
        # without a zero point the type is that of what is dequantised, or by default UINT8
        stored = graph.constants.get(node.input[0])
        if node.op_type == "DequantizeLinear" and (stored is None or stored.dtype == np.int8):
            return scale
        raise QatError(f"{where}: it has no zero point, which means UINT8; expected INT8")
    zero = graph.constants.get(node.input[2])
    if zero is None:
        raise QatError(f"{where}: its zero point '{node.input[2]}' is not constant")
    if zero.any():
        raise QatError(
            f"{where}: asymmetric quantisation (zero point {zero.ravel()[np.argmax(zero != 0)]}); "
            "a DLA's is symmetric: train with zero points of 0"
        )
    if zero.dtype not in (np.int8, np.int32):
        raise QatError(f"{where}: it quantises to {zero.dtype}; a DLA's type is INT8")
    return scale


def _remove_pairs(graph: Graph, pairs: list[_Pair], warnings: list[str]) -> dict[str, float]:
    sources = {pair.dequantize.output[0]: pair.quantize.input[0] for pair in pairs}

    def root(tensor: str) -> str:
        while tensor in sources:
            tensor = sources[tensor]
        return tensor

    named = [(root(pair.quantize.input[0]), pair) for pair in pairs]
    final: dict[str, str] = {}
    for tensor, pair in named:
        result = pair.dequantize.output[0]
        if result in graph.outputs:  # the output keeps its name: the tensor takes it
            final[tensor] = result
    removed: set[str] = set()
    for _, pair in named:
        for node in (pair.quantize, pair.dequantize):
            if node.name in removed:
                continue
            if node is pair.quantize and len(graph.consumers().get(node.output[0], ())) == 0:
                continue
            if not graph.bypass(node):
                raise QatError(
                    f"{graph.where}: node '{node.name}': it quantises an input that is an output "
                    "of the network as it is; remove the pair"
                )
            removed.add(node.name)
    stated: dict[str, float] = {}
    for tensor, pair in named:
        name = final.get(tensor, tensor)
        if stated.get(name, pair.scale) != pair.scale:
            larger = max(stated[name], pair.scale)
            warnings.append(
                f"tensor '{name}' is quantised with {stated[name]:.6g} and with {pair.scale:.6g} "
                f"(at '{pair.quantize.name}'), but can have one scale only: {larger:.6g} is taken"
            )
            stated[name] = larger
        stated.setdefault(name, pair.scale)
    return stated


@dataclass(frozen=True)
class _Weights:
    """A weight tensor with the scales of its DQ node."""

    tensor: str
    node: str
    scale: np.ndarray
    axis: int


def _dequantise_weights(graph: Graph) -> list[_Weights]:
    """Replace the Q/DQ nodes of constants by floating-point weights."""
    found = []
    for node in [item for item in graph.nodes if item.op_type == "DequantizeLinear"]:
        scale = _scale(graph, node)
        axis = int(attribute(node, "axis", 1))
        stored = graph.constants.get(node.input[0])
        if stored is not None:
            shape = [1] * stored.ndim
            if scale.size > 1:
                shape[axis] = scale.size
            weights = stored.astype(np.float32) * scale.reshape(shape if stored.ndim else ())
            graph.rename_uses(node.output[0], graph.add_constant(node.output[0] + "_w", weights))
            graph.remove(node)
            tensor = node.output[0] + "_w"
        else:
            quantize = graph.producers().get(node.input[0])
            if quantize is None or quantize.op_type != "QuantizeLinear":
                raise QatError(
                    f"{graph.where}: node '{node.name}': its input '{node.input[0]}' does not come "
                    "from a QuantizeLinear; expected the two in a row"
                )
            _scale(graph, quantize)
            tensor = quantize.input[0]
            graph.rename_uses(node.output[0], tensor)
            graph.remove(node)
            if not graph.consumers().get(quantize.output[0], ()):
                graph.remove(quantize)
        found.append(_Weights(tensor, node.name, scale, axis))
    return found


def _check_weights(graph: Graph, weights: list[_Weights]) -> None:
    """Refuse weight scales that TensorRT, which takes max|w|/127 a filter, would not use."""
    by_tensor = {item.tensor: item for item in weights}
    for node in graph.nodes:
        index = WEIGHTED.get(node.op_type)
        if index is None or index >= len(node.input) or node.input[index] not in by_tensor:
            continue
        stated = by_tensor[node.input[index]]
        value = graph.constants[stated.tensor]
        axis = filter_axis(node) % value.ndim
        if stated.scale.size > 1 and stated.axis % value.ndim != axis:
            raise QatError(
                f"{graph.where}: node '{stated.node}': the scales of the weights of {node.op_type} "
                f"'{node.name}' run along axis {stated.axis}; expected one a filter, axis {axis}"
            )
        others = tuple(i for i in range(value.ndim) if i != axis)
        used = np.abs(value).max(axis=others) / 127
        difference = np.abs(used - stated.scale.ravel())
        if (difference > WEIGHT_TOLERANCE).any():
            worst = int(difference.argmax())
            said = stated.scale.ravel()[worst if stated.scale.size > 1 else 0]
            raise QatError(
                f"{graph.where}: node '{stated.node}': filter {worst} of {node.op_type} "
                f"'{node.name}' has the weight scale {said:.6g}, but TensorRT will use "
                f"max|w|/127 = {used[worst]:.6g}; train with per-filter maxima, or accept the "
                "difference with --calibration-type histogram"
            )


def _rename_outputs(graph: Graph, stated: Mapping[str, float]) -> dict[str, float]:
    renamed: dict[str, str] = {}
    for node in graph.nodes:
        for index, old in enumerate(list(node.output)):
            if old and old not in graph.outputs:
                new = graph.fresh(f"{node.name}_output_{index}")
                graph.rename_output(node, old, new)
                graph.rename_uses(old, new)
                renamed[old] = new
    graph.refresh()
    return {renamed.get(name, name): scale for name, scale in stated.items()}


def _differing_groups(graph: Graph, scales: Mapping[str, float]) -> list[str]:
    differing = [
        group
        for group in groups_of(graph)
        if len({scales[tensor] for tensor in group if tensor in scales}) > 1
    ]
    if not differing:
        return []
    first = [tensor for tensor in differing[0] if tensor in scales][:3]
    values = ", ".join(f"'{tensor}' {scales[tensor]:.6g}" for tensor in first)
    return [
        f"{len(differing)} groups of tensors that share a scale on a DLA have different ones "
        f"(the first: {values}): --unify gives each group its largest"
    ]
