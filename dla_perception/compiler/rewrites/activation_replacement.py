"""Activations that no DLA has become others: an approximation, made only on request.

NOT exact. Mish, HardSwish, GELU and the like are replaced by Relu, LeakyRelu (slope 0.1), SiLU or
ReLU6, as ``force_relu`` of NVIDIA's TAO toolkit replaces all activations by ReLU. SiLU and Mish
differ by at most 0.19, Relu and Mish by 0.31; the network must be judged again on images, and
usually trained for some more epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

import numpy as np

from dla_perception.compiler.activations import find_activations
from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.activations import Activation
    from dla_perception.compiler.graph import Graph

NAME = "activation replacement"
SUMMARY = "activations replaced by others (an approximation)"

FUNCTIONS = ("Relu", "LeakyRelu", "SiLU", "ReLU6")
"""What an activation can be replaced by: functions that every DLA has."""


class ReplacementError(DlaPerceptionError):
    """A replacement that was asked for cannot be made."""


def replace_activations(graph: Graph, wanted: Mapping[str, str]) -> list[str]:
    """Replace activation functions.

    Args:
        graph: refreshed; to be refreshed afterwards.
        wanted: for each function to be replaced, as
            :func:`~dla_perception.compiler.activations.find_activations` calls it, one of
            :data:`FUNCTIONS`.

    Returns:
        Names of the nodes that are gone.

    Raises:
        ReplacementError: the network has no such activation, or there is no such replacement.
    """
    found = find_activations(graph)
    present = list(dict.fromkeys(activation.function for activation in found))
    for old, new in wanted.items():
        if old not in present:
            raise ReplacementError(
                f"{graph.where}: it has no activation '{old}' to replace; it has "
                f"{', '.join(present) or 'none but those of a DLA'}"
            )
        if new not in FUNCTIONS:
            raise ReplacementError(
                f"'{new}' cannot replace '{old}'; expected one of {', '.join(FUNCTIONS)}"
            )
    changed = []
    for activation in found:
        if activation.function in wanted and wanted[activation.function] != activation.function:
            changed += [node.name for node in activation.nodes]
            _replace(graph, activation, wanted[activation.function])
    return changed


def _replace(graph: Graph, activation: Activation, function: str) -> None:
    last = activation.nodes[-1]
    new: list[NodeProto] = []
    source, result = activation.source, activation.result
    if function == "Relu":
        new.append(graph.new_node("Relu", [source], result, last.name))
    elif function == "LeakyRelu":
        new.append(graph.new_node("LeakyRelu", [source], result, last.name, alpha=0.1))
    elif function == "SiLU":
        gate = graph.fresh(f"{result}_gate")
        new.append(graph.new_node("Sigmoid", [source], gate, last.name))
        new.append(graph.new_node("Mul", [source, gate], result, last.name))
    elif graph.opset < 11:  # Clip had attributes instead of inputs
        new.append(graph.new_node("Clip", [source], result, last.name, min=0.0, max=6.0))
    else:
        dtype = graph.dtype(source)
        limits = [
            graph.add_constant(f"{result}_{name}", np.array(value, dtype))
            for name, value in (("min", 0), ("max", 6))
        ]
        new.append(graph.new_node("Clip", [source, *limits], result, last.name))
    # the other nodes of the function stay where something else reads them, and else go unread
    graph.replace([last], new)
