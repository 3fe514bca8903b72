"""Resizes that a DLA refuses for how they are written become ones it takes.

Exact, by cases:

* sizes that are whole multiples of the input become whole scales;
* nearest-neighbour mappings are compared number by number for the sizes at hand: where each output
  row and column is copied from the same place as with ``asymmetric`` and ``floor``, those are
  written instead. For whole scales s that is so for ``half_pixel`` with any rounding to nearest:
  the place is (i + 0.5) / s - 0.5 = q + (r + 0.5) / s - 0.5 for i = q s + r, less than 0.5 away
  from q;
* ``pytorch_half_pixel`` differs from ``half_pixel`` only where the output has one row or column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.dla_support import judge
from dla_perception.compiler.node_reading import (
    Resizing,
    attribute,
    resizing,
    set_attribute,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph

NAME = "resize"
SUMMARY = "resizes given whole scales and a mapping that a DLA has"


def apply(graph: Graph, target: Target) -> list[str]:
    """Rewrite wherever it is needed; returns the names of the nodes that were changed."""
    changed = []
    for node in list(graph.nodes):
        if node.op_type != "Resize" or judge(graph, node, target).on_dla:
            continue
        if _rewrite(graph, node):
            changed.append(node.name)
    return changed


def _rewrite(graph: Graph, node: NodeProto) -> bool:
    before, after = graph.shape(node.input[0]), graph.shape(node.output[0])
    if before is None or after is None or len(before) != 4 or graph.opset < 11:
        return False
    if attribute(node, "antialias", 0) or attribute(node, "axes") is not None:
        return False
    found = resizing(graph, node)
    if found.scales is None:
        return False
    if before[:2] != after[:2] or any(new % old for new, old in zip(after[2:], before[2:])):
        return False
    coordinates, rounding = found.coordinates, found.rounding
    if found.mode == "nearest":
        for old, new, scale in zip(before[2:], after[2:], found.scales[2:]):
            if not np.array_equal(_source(found, old, new, scale), np.arange(new) // (new // old)):
                return False
        coordinates, rounding = "asymmetric", "floor"
    elif found.mode == "linear":
        if coordinates == "pytorch_half_pixel" and min(after[2:]) > 1:
            coordinates = "half_pixel"
        if coordinates != "half_pixel":
            return False
    else:
        return False
    scales = np.array([new / old for new, old in zip(after, before)], np.float32)
    if found.by == "scales" and (coordinates, rounding) == (found.coordinates, found.rounding):
        return False
    while len(node.input) < 3:
        graph.set_input(node, len(node.input), "")
    # the region of interest could be left out only from opset 13 on
    nothing = np.zeros(0, np.float32)
    region = "" if graph.opset >= 13 else graph.add_constant(f"{node.output[0]}_roi", nothing)
    graph.set_input(node, 1, region)
    graph.set_input(node, 2, graph.add_constant(f"{node.output[0]}_scales", scales))
    del node.input[3:]
    set_attribute(node, "coordinate_transformation_mode", coordinates)
    set_attribute(node, "keep_aspect_ratio_policy", None)
    if rounding:
        set_attribute(node, "nearest_mode", rounding)
    return True


def _source(found: Resizing, old: int, new: int, scale: float) -> np.ndarray:
    """Where each output element of a nearest-neighbour resize is copied from, along one axis.

    Source: ONNX operator specification, Resize.
    """
    place: np.ndarray = np.arange(new, dtype=np.float64)
    if found.coordinates in ("half_pixel", "pytorch_half_pixel"):
        place = (place + 0.5) / scale - 0.5
        if found.coordinates == "pytorch_half_pixel" and new == 1:
            place = np.zeros(1)
    elif found.coordinates == "align_corners":
        place = place * (old - 1) / max(new - 1, 1)
    elif found.coordinates == "tf_half_pixel_for_nn":
        place = (place + 0.5) / scale
    elif found.coordinates == "asymmetric":
        place = place / scale
    else:
        return np.full(new, -1)
    if found.rounding == "floor":
        rounded = np.floor(place)
    elif found.rounding == "ceil":
        rounded = np.ceil(place)
    elif found.rounding == "round_prefer_ceil":
        rounded = np.floor(place + 0.5)
    else:
        rounded = np.ceil(place - 0.5)
    return np.clip(rounded, 0, old - 1)
