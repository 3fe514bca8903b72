"""An FP32 network as an FP16 one, for TensorRT versions that take types from the network itself.

From TensorRT 11 on every network is strongly typed: there is no builder flag for FP16. A DLA
computes in FP16 (or INT8), so the network's own tensors have to be FP16. The rewrite is exact up
to rounding to FP16: weights and all floating-point tensors change their type, nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

import numpy as np

from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

LARGEST = float(np.finfo(np.float16).max)
"""65504, the largest FP16 number."""

_FLOAT_INPUTS = {"Resize": (1, 2), "Upsample": (1,)}
"""Inputs that ONNX wants in FP32 whatever the type of the others (onnx/defs, ``Resize``)."""


class HalfPrecisionError(DlaPerceptionError):
    """A network that cannot be turned into FP16."""


def to_half_precision(model: ModelProto, where: str) -> ModelProto:
    """A copy of an FP32 network with all of its floating-point tensors in FP16.

    Args:
        model: weights inside, no Q/DQ nodes.
        where: names the network in messages.

    Raises:
        HalfPrecisionError: a weight does not fit into FP16, or the network is quantised.
    """
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = _kept_tensors(changed.graph)
    for tensor in changed.graph.initializer:
        if tensor.name not in kept:
            _convert(tensor, where)
    for node in changed.graph.node:
        _convert_node(node, kept, where)
    infos = (*changed.graph.input, *changed.graph.output, *changed.graph.value_info)
    for info in infos:
        if info.name not in kept:
            _convert_info(info)
    return changed


def _kept_tensors(graph: GraphProto) -> set[str]:
    """Tensors that stay FP32, and that nothing else may read."""
    kept: set[str] = set()
    others: set[str] = set()
    for node in graph.node:
        for index, name in enumerate(node.input):
            is_kept = index in _FLOAT_INPUTS.get(node.op_type, ())
            (kept if is_kept else others).add(name)
    return kept - others


def _convert_node(node: NodeProto, kept: set[str], where: str) -> None:
    import onnx

    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        raise HalfPrecisionError(
            f"{where}: node '{node.name}' quantises; give the network before quantisation, or "
            "translate it with 'dla-perception translate-qat'"
        )
    if any(name in kept for name in node.output):
        return
    for attribute in node.attribute:
        is_target = node.op_type == "Cast" and attribute.name == "to"
        if is_target and attribute.i == onnx.TensorProto.FLOAT:
            attribute.i = onnx.TensorProto.FLOAT16
        for tensor in _tensors(attribute):
            _convert(tensor, where)


def _tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    import onnx

    if attribute.type == onnx.AttributeProto.TENSOR:
        yield attribute.t
    yield from attribute.tensors


def _convert(tensor: TensorProto, where: str) -> None:
    import onnx
    from onnx import numpy_helper

    if tensor.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        return
    values: Any = numpy_helper.to_array(tensor)
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= LARGEST:
        raise HalfPrecisionError(
            f"{where}: weight '{tensor.name}' reaches {largest:g}, but FP16 ends at {LARGEST:g}; "
            "rescale it or keep its layer off the DLA"
        )
    tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), tensor.name))


def _convert_info(info: ValueInfoProto) -> None:
    import onnx

    kind = info.type.tensor_type
    if kind.elem_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        kind.elem_type = onnx.TensorProto.FLOAT16
