"""What the rules of a DLA ask of a layer: its window, its sizes, its constants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from dla_perception.compiler.activations import is_silu
from dla_perception.compiler.node_reading import (
    attribute,
    axes_of,
    axis_of,
    clip_limits,
    constant_input,
    element_count,
    resizing,
    slice_ranges,
    split_sizes,
    window,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.graph import Graph

CONVOLUTION_BUFFER_BANKS = 16
"""Banks of the convolution buffer (TensorRT 8.4 developer guide, DLA supported layers)."""

COMPARISONS = ("Equal", "Greater", "Less")


def convolution_buffer_banks(
    channels: int,
    kernel: tuple[int, int],
    width: int,
    vertical_dilation: int,
    element_size: int,
) -> tuple[int, int]:
    """Banks of the convolution buffer that one kernel and the least of data take.

    Source: TensorRT 8.4 developer guide, "DLA Supported Layers", ``wtBanksForOneKernel`` and
    ``minDataBanks``; their sum may be at most :data:`CONVOLUTION_BUFFER_BANKS`.

    Args:
        channels: of the input.
        kernel: height and width.
        width: of the input in elements.
        vertical_dilation: 1 for none.
        element_size: bytes: 2 for FP16, 1 for INT8.

    Returns:
        Banks for the weights and banks for the data.
    """
    kernel_bytes = channels * kernel[0] * kernel[1] * element_size
    weight_banks = -(-(-(-kernel_bytes // 128) * 128) // 32768)
    entries = math.ceil(math.ceil(channels * element_size / 32) * width / 4)
    data_banks = math.ceil(entries * ((kernel[0] - 1) * vertical_dilation + 1) / 256)
    return weight_banks, data_banks


def layer_facts(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    """Everything the rules may ask of ``node``.

    A fact that cannot be known is ``None``.

    Args:
        graph: refreshed.
        node: one of its nodes.
        precision: ``fp16`` or ``int8``.
    """
    facts = _common(graph, node)
    reader = _READERS.get(node.op_type)
    if reader is not None:
        facts.update(reader(graph, node, precision))
    return facts


def activations(graph: Graph, node: NodeProto) -> list[str]:
    """The tensors of a node that are not constant: inputs, then outputs."""
    inputs = [name for name in node.input if name and name not in graph.constants]
    outputs = [name for name in node.output if name]
    return [*dict.fromkeys(inputs), *outputs]


def _common(graph: Graph, node: NodeProto) -> dict[str, Any]:
    tensors = activations(graph, node)
    shapes = {name: graph.shape(name) for name in tensors}
    dynamic = [name for name, shape in shapes.items() if shape is None]
    known = [shape for shape in shapes.values() if shape is not None]
    typed = [name for name in tensors if name not in node.output] or tensors
    if node.op_type not in COMPARISONS:
        typed = tensors
    types = {name: graph.types[name] for name in typed if name in graph.types}
    odd = [
        f"'{name}' is {kind.type_name}"
        for name, kind in types.items()
        if kind.elem_type and kind.type_name not in ("FLOAT", "FLOAT16", "INT8")
    ]
    return {
        "op": node.op_type,
        "dynamic": ", ".join(dynamic),
        "odd_types": ", ".join(odd),
        "ranks": tuple(sorted({len(shape) for shape in known})),
        # batch: the product of all dimensions but the last three (TensorRT 8.4 guide)
        "batches": tuple(element_count(shape[:-3]) for shape in known),
        "sizes": tuple(size for shape in known for size in shape[max(0, len(shape) - 3) :]),
        "tensor_bytes": tuple(2 * element_count(shape) for shape in known),
        "outputs": len([name for name in node.output if name]),
    }


def _window_facts(graph: Graph, node: NodeProto) -> dict[str, Any]:
    found = window(graph, node)
    if found is None:
        return {"spatial": None}
    return {
        "spatial": len(found.kernel),
        "kernel": found.kernel,
        "strides": found.strides,
        "dilations": found.dilations,
        "pads": found.pads,
        "kernel_twice": found.kernel * 2,
        "asymmetric": found.begin != found.end,
        "ceil_mode": found.ceil_mode and _rounds_up(graph, node),
    }


def _rounds_up(graph: Graph, node: NodeProto) -> bool:
    """Whether ``ceil_mode`` makes the output larger than it would be without."""
    found, before, after = (
        window(graph, node),
        graph.shape(node.input[0]),
        graph.shape(node.output[0]),
    )
    if found is None or before is None or after is None:
        return True
    sizes = zip(before[2:], after[2:], found.kernel, found.strides, found.dilations)
    return any(
        out > (size + b + e - d * (k - 1) - 1) // s + 1
        for (size, out, k, s, d), b, e in zip(sizes, found.begin, found.end)
    )


def _convolution(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    facts = _window_facts(graph, node)
    weights = graph.shape(node.input[1])
    groups = int(attribute(node, "group", 1))
    facts.update(
        groups=groups,
        input_groups=groups if node.input[0] in graph.inputs else 1,
        weights_constant=all(name in graph.constants for name in node.input[1:] if name),
        out_maps=weights[0] if weights else None,
    )
    shape = graph.shape(node.input[0])
    if facts["spatial"] == 2 and shape is not None and len(shape) == 4:
        weight_banks, data_banks = convolution_buffer_banks(
            shape[1],
            facts["kernel"],
            shape[3],
            facts["dilations"][0],
            1 if precision == "int8" else 2,
        )
        facts.update(weight_banks=weight_banks, data_banks=data_banks)
        facts["banks"] = weight_banks + data_banks
    return facts


def _deconvolution(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    facts = _window_facts(graph, node)
    weights = graph.shape(node.input[1])
    groups = int(attribute(node, "group", 1))
    kernel, strides = facts.get("kernel", ()), facts.get("strides", ())
    square = len(set(kernel)) == 1 and len(set(strides)) == 1
    facts.update(
        groups=groups,
        weights_constant=all(name in graph.constants for name in node.input[1:] if name),
        in_maps=weights[0] if weights else None,
        out_maps=weights[1] * groups if weights else None,
        output_padding=tuple(attribute(node, "output_padding") or (0,)),
        slow_square=square and 23 <= kernel[0] <= 32 and 23 <= strides[0] <= 32,
    )
    return facts


def _pool(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    facts = _window_facts(graph, node)
    padded = any(facts.get("pads", ()))
    facts["exclusive"] = padded and not attribute(node, "count_include_pad", 0)
    return facts


def _gemm(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    weights = graph.shape(node.input[1])
    turned = bool(attribute(node, "transB", 0))
    return {
        "weights_constant": all(name in graph.constants for name in node.input[1:] if name),
        "transposed_input": bool(attribute(node, "transA", 0)),
        "out_maps": weights[0 if turned else 1] if weights and len(weights) == 2 else None,
    }


def _matmul(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    weights = graph.shape(node.input[1])
    return {
        "weights_constant": node.input[1] in graph.constants,
        "out_maps": weights[-1] if weights else None,
    }


def _elementwise(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    result = graph.shape(node.output[0])
    fixed = [graph.constants[name].shape for name in node.input if name in graph.constants]
    moving = [graph.shape(name) for name in node.input if name not in graph.constants]
    if result is None or any(shape is None for shape in moving):
        return {"operands": None}
    if any(shape != result for shape in moving):
        return {"operands": "broadcast"}
    if any(not _scale_form(shape, result) for shape in fixed):
        return {"operands": "broadcast constant"}
    if fixed:
        return {"operands": "constant"}
    return {"operands": "gate" if is_silu(graph, node) else "same"}


def _scale_form(constant: Sequence[int], result: Sequence[int]) -> bool:
    """Uniform, per channel or one value per element: what a Scale layer takes."""
    full = [1] * (len(result) - len(constant)) + list(constant)
    if element_count(constant) == 1 or full == [1, *result[1:]] or full == list(result):
        return True
    return len(full) == 4 and full == [1, result[1], 1, 1]


def _comparison(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    facts = _elementwise(graph, node, precision)
    readers = graph.consumers().get(node.output[0], ())
    facts["cast_next"] = bool(readers) and all(
        reader.op_type == "Cast" and attribute(reader, "to") in (1, 3, 10) for reader in readers
    )
    return facts


def _concat(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    axis = axis_of(graph, node, 1)
    shape = graph.shape(node.output[0])
    return {
        "inputs": len(node.input),
        "axis_from_end": len(shape) - axis if shape is not None and axis is not None else None,
    }


def _slice(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    ranges = slice_ranges(graph, node)
    shape = graph.shape(node.input[0])
    if ranges is None or shape is None:
        return {"constant_ranges": False}
    return {
        "constant_ranges": True,
        "steps": tuple(step for _, _, step in ranges),
        "cuts_batch": ranges[0][:2] != (0, shape[0]),
    }


def _split(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    axis = axis_of(graph, node, 0)
    return {
        "constant_ranges": axis is not None and split_sizes(graph, node) is not None,
        "steps": (1,),
        "cuts_batch": axis == 0,
    }


def _shuffle(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    before, after = graph.shape(node.input[0]), graph.shape(node.output[0])
    facts: dict[str, Any] = {"keeps_batch": bool(before and after and before[0] == after[0])}
    if node.op_type == "Transpose" and before:
        order = attribute(node, "perm") or list(range(len(before)))[::-1]
        facts["keeps_batch"] = order[0] == 0
    maker = graph.producers().get(node.input[0])
    around = [*([maker] if maker else []), *graph.consumers().get(node.output[0], ())]
    facts["next_to"] = ", ".join(
        f"'{other.name}'" for other in around if other.op_type in ("Slice", "Split", "Concat")
    )
    return facts


def _resize(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    found = resizing(graph, node)
    facts: dict[str, Any] = {
        "by": found.by,
        "mode": found.mode,
        "mapping": "+".join(filter(None, (found.mode, found.coordinates, found.rounding))),
    }
    if found.scales is not None:
        facts["scales_given"] = len(found.scales)
        facts["outer_scales"] = found.scales[:2]
        facts["inner_scales"] = tuple(int(s) if s == int(s) else s for s in found.scales[2:])
        facts["whole_scales"] = all(s == int(s) for s in found.scales)
    return facts


def _softmax(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    shape = graph.shape(node.input[0])
    axis = axis_of(graph, node, 1 if graph.opset < 13 else -1)
    if shape is None or axis is None:
        return {"axis_size": None}
    rest = [size for index, size in enumerate(shape) if index not in (0, axis)]
    return {
        "axis_size": shape[axis],
        "limit_kept": shape[axis] <= (8192 if all(size == 1 for size in rest) else 1024),
        "over_batch": axis == 0,
    }


def _reduce(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    axes = axes_of(graph, node)
    return {
        "axes_in_chw": axes is not None and bool(axes) and 0 not in axes,
        "keeps_dimensions": bool(attribute(node, "keepdims", 1)),
    }


def _clip(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    limits = clip_limits(graph, node)
    return {
        "lower_limit": limits[0] if limits else None,
        "upper_limit": limits[1] if limits else None,
    }


def _prelu(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    return {"weights_constant": constant_input(graph, node, 1) is not None}


def _lrn(graph: Graph, node: NodeProto, precision: str) -> dict[str, Any]:
    return {"window_size": attribute(node, "size")}


_READERS: Mapping[str, Callable[[Graph, NodeProto, str], dict[str, Any]]] = {
    "Conv": _convolution,
    "ConvTranspose": _deconvolution,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "Gemm": _gemm,
    "MatMul": _matmul,
    **{op: _elementwise for op in ("Add", "Sum", "Sub", "Mul", "Div", "Max", "Min", "Pow")},
    **{op: _comparison for op in COMPARISONS},
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Reshape": _shuffle,
    "Transpose": _shuffle,
    "Resize": _resize,
    "Upsample": _resize,
    "Softmax": _softmax,
    "ReduceMax": _reduce,
    "Clip": _clip,
    "PRelu": _prelu,
    "LRN": _lrn,
}
