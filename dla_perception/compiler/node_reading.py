"""What the nodes of a graph say, the same for every opset: attributes or constant inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.graph import Graph


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute; texts as ``str``."""
    from onnx import helper

    for item in node.attribute:
        if item.name == name:
            value = helper.get_attribute_value(item)
            return value.decode() if isinstance(value, bytes) else value
    return default


def set_attribute(node: NodeProto, name: str, value: Any) -> None:
    """Set an attribute; ``None`` takes it away."""
    from onnx import helper

    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


def constant_input(graph: Graph, node: NodeProto, index: int) -> np.ndarray | None:
    """The value of an input if it is there and constant."""
    if index >= len(node.input) or not node.input[index]:
        return None
    return graph.constants.get(node.input[index])


def has_input(node: NodeProto, index: int) -> bool:
    """Whether the node uses an optional input."""
    return index < len(node.input) and bool(node.input[index])


def _numbers(graph: Graph, node: NodeProto, name: str, index: int) -> list[int] | None:
    """Whole numbers that are an attribute in old opsets and an input in newer ones."""
    value = attribute(node, name)
    if value is None:
        value = constant_input(graph, node, index)
    return None if value is None else [int(item) for item in np.atleast_1d(value)]


@dataclass(frozen=True)
class Window:
    """How a convolution or pool moves over its input; one value per spatial dimension.

    Attributes:
        kernel, strides, dilations: as ONNX names them.
        begin, end: padding before and after; negative never.
        ceil_mode: whether a last window may reach beyond the padding.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    ceil_mode: bool = False

    @property
    def pads(self) -> tuple[int, ...]:
        """All begins, then all ends, as ONNX writes them."""
        return self.begin + self.end


def window(graph: Graph, node: NodeProto) -> Window | None:
    """The window of a Conv, ConvTranspose, MaxPool or AveragePool with ``auto_pad`` resolved.

    Returns:
        ``None`` where the kernel or the shape of the input is not known.
    """
    weights = graph.shape(node.input[1]) if node.op_type in ("Conv", "ConvTranspose") else None
    kernel = attribute(node, "kernel_shape") or (weights[2:] if weights else None)
    if not kernel:
        return None
    axes = len(kernel)
    strides = attribute(node, "strides") or [1] * axes
    dilations = attribute(node, "dilations") or [1] * axes
    pads = attribute(node, "pads") or [0] * (2 * axes)
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        size = graph.shape(node.input[0])
        if size is None or node.op_type == "ConvTranspose":
            return None
        begin, end = [], []
        for length, k, s, d in zip(size[2:], kernel, strides, dilations):
            out = -(-length // s)
            total = max((out - 1) * s + (k - 1) * d + 1 - length, 0)
            small, large = total // 2, total - total // 2
            begin.append(small if auto == "SAME_UPPER" else large)
            end.append(large if auto == "SAME_UPPER" else small)
        pads = [*begin, *end]
    elif auto == "VALID":
        pads = [0] * (2 * axes)
    return Window(
        tuple(kernel),
        tuple(strides),
        tuple(dilations),
        tuple(pads[:axes]),
        tuple(pads[axes:]),
        bool(attribute(node, "ceil_mode", 0)),
    )


def set_window(node: NodeProto, new: Window) -> None:
    """Write a window back, with explicit padding."""
    set_attribute(node, "kernel_shape", list(new.kernel))
    set_attribute(node, "strides", list(new.strides))
    # pools have had the attribute only since opset 10 (MaxPool) and 19 (AveragePool)
    dilated = any(size != 1 for size in new.dilations)
    convolution = node.op_type in ("Conv", "ConvTranspose")
    set_attribute(node, "dilations", list(new.dilations) if dilated or convolution else None)
    set_attribute(node, "pads", list(new.pads))
    set_attribute(node, "auto_pad", None)


def slice_ranges(graph: Graph, node: NodeProto) -> list[tuple[int, int, int]] | None:
    """``(start, stop, step)`` of a Slice for every axis of its input, in Python's meaning.

    Returns:
        ``None`` where the shape or the ranges are not constant, or a step is negative.
    """
    shape = graph.shape(node.input[0])
    starts = _numbers(graph, node, "starts", 1)
    ends = _numbers(graph, node, "ends", 2)
    if shape is None or starts is None or ends is None:
        return None
    axes = _numbers(graph, node, "axes", 3)
    if axes is None:
        if has_input(node, 3):
            return None
        axes = list(range(len(starts)))
    steps = _numbers(graph, node, "steps", 4)
    if steps is None:
        if has_input(node, 4):
            return None
        steps = [1] * len(starts)
    ranges = [(0, size, 1) for size in shape]
    for axis, start, end, step in zip(axes, starts, ends, steps):
        if step <= 0:
            return None
        first, last, _ = slice(start, end, step).indices(shape[axis])
        ranges[axis % len(shape)] = (first, max(first, last), step)
    return ranges


def axes_of(graph: Graph, node: NodeProto) -> list[int] | None:
    """The axes of a Squeeze, Unsqueeze or Reduce, counted from the front.

    Returns:
        ``None`` where they are not constant. A Squeeze or Reduce without axes means all that fit.
    """
    shape = graph.shape(node.input[0])
    if shape is None:
        return None
    axes = _numbers(graph, node, "axes", 1)
    if axes is None:
        if has_input(node, 1):
            return None
        if node.op_type == "Squeeze":
            return [axis for axis, size in enumerate(shape) if size == 1]
        return list(range(len(shape)))
    rank = len(shape) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    return sorted(axis % rank for axis in axes)


def axis_of(graph: Graph, node: NodeProto, default: int) -> int | None:
    """The one axis of a Concat, Split, Softmax or Flatten, counted from the front."""
    shape = graph.shape(node.input[0])
    if shape is None:
        return None
    axis = int(attribute(node, "axis", default))
    return axis + len(shape) if axis < 0 else axis


def pad_amounts(graph: Graph, node: NodeProto) -> tuple[list[int], list[int], float] | None:
    """Begin, end and value of a constant Pad, one per axis of its input.

    Returns:
        ``None`` where it is not constant or pads by reflection or repetition.
    """
    shape = graph.shape(node.input[0])
    if shape is None or attribute(node, "mode", "constant") != "constant":
        return None
    amounts = _numbers(graph, node, "pads", 1)
    if amounts is None:
        return None
    value = attribute(node, "value", 0.0)
    if has_input(node, 2):
        stored = constant_input(graph, node, 2)
        if stored is None:
            return None
        value = float(stored.reshape(-1)[0]) if stored.size else 0.0
    axes = list(range(len(shape)))
    if has_input(node, 3):
        chosen = constant_input(graph, node, 3)
        if chosen is None:
            return None
        axes = [int(axis) % len(shape) for axis in chosen]
    begin, end = [0] * len(shape), [0] * len(shape)
    for place, axis in enumerate(axes):
        begin[axis] = amounts[place]
        end[axis] = amounts[len(axes) + place]
    return begin, end, float(value)


def split_sizes(graph: Graph, node: NodeProto) -> list[int] | None:
    """How many elements along its axis each output of a Split takes."""
    sizes = _numbers(graph, node, "split", 1)
    if sizes is not None:
        return sizes
    axis = axis_of(graph, node, 0)
    shape = graph.shape(node.input[0])
    if has_input(node, 1) or shape is None or axis is None:
        return None
    count = attribute(node, "num_outputs", len(node.output))
    each = -(-shape[axis] // count)
    return [min(each, shape[axis] - each * index) for index in range(count)]


@dataclass(frozen=True)
class Resizing:
    """How a Resize or Upsample maps its input.

    Attributes:
        scales: one per axis, ``None`` where they are not constant.
        by: ``scales`` or ``sizes``: how the node states them.
        mode, coordinates, rounding: ``mode``, ``coordinate_transformation_mode`` and
            ``nearest_mode`` of ONNX; ``rounding`` is empty for anything but ``nearest``.
    """

    scales: tuple[float, ...] | None
    by: str
    mode: str
    coordinates: str
    rounding: str


def resizing(graph: Graph, node: NodeProto) -> Resizing:
    """What a Resize or Upsample does; opset 9 and 10 had no choice of coordinates."""
    mode = str(attribute(node, "mode", "nearest"))
    old = node.op_type == "Upsample" or graph.opset < 11
    coordinates = attribute(
        node, "coordinate_transformation_mode", "asymmetric" if old else "half_pixel"
    )
    rounding = attribute(node, "nearest_mode", "floor" if old else "round_prefer_floor")
    if mode != "nearest":
        rounding = ""
    stored = attribute(node, "scales")
    if stored is None:
        stored = constant_input(graph, node, 1 if old else 2)
    if stored is not None and len(stored):
        return Resizing(tuple(float(s) for s in stored), "scales", mode, coordinates, rounding)
    by = "sizes" if has_input(node, 3) else "scales"
    scales = None
    before, after = graph.shape(node.input[0]), graph.shape(node.output[0])
    if by == "sizes" and before and after and len(before) == len(after):
        scales = tuple(new / old_size for new, old_size in zip(after, before))
    return Resizing(scales, by, mode, coordinates, rounding)


def clip_limits(graph: Graph, node: NodeProto) -> tuple[float, float] | None:
    """Lower and upper limit of a Clip; ``None`` where they are not constant."""
    limits = []
    for name, index, default in (("min", 1, -np.inf), ("max", 2, np.inf)):
        value = attribute(node, name)
        if value is None and has_input(node, index):
            value = constant_input(graph, node, index)
            if value is None:
                return None
        limits.append(float(np.asarray(default if value is None else value).reshape(-1)[0]))
    return limits[0], limits[1]


def single_consumer(graph: Graph, tensor: str) -> NodeProto | None:
    """The only node that reads ``tensor``; ``None`` if several do or it is an output."""
    if tensor in graph.outputs:
        return None
    readers = graph.consumers().get(tensor, [])
    return readers[0] if len(readers) == 1 else None


def element_count(shape: Sequence[int]) -> int:
    """How many elements a tensor of this shape has."""
    return int(np.prod(shape, dtype=np.int64))
