"""Activation functions that exporters write as several nodes, seen as the one function they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dla_perception.compiler.node_reading import attribute, clip_limits

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.graph import Graph


@dataclass(frozen=True)
class Activation:
    """One activation function of a network.

    Attributes:
        function: ``SiLU``, ``Mish``, ``HardSwish``, ``GELU``, or an ONNX operator such as ``Elu``.
        nodes: the nodes that compute it, the last one last.
        source, result: tensors before and after it.
    """

    function: str
    nodes: tuple[NodeProto, ...]
    source: str
    result: str


_SINGLE = {
    "Mish": "Mish",
    "HardSwish": "HardSwish",
    "Gelu": "GELU",
    **{
        op: op
        for op in ("HardSigmoid", "Softplus", "Elu", "Celu", "Selu", "ThresholdedRelu", "Softsign")
    },
}
"""Functions that newer opsets have as one operator, and simple ones that no DLA takes."""


def find_activations(graph: Graph) -> list[Activation]:
    """All of them, in running order; a node belongs to one function at most."""
    found: list[Activation] = []
    taken: set[str] = set()
    for node in reversed(graph.nodes):  # the last node of a function tells which one it is
        if node.name in taken:
            continue
        activation = _match(graph, node)
        if activation is not None:
            found.append(activation)
            taken.update(part.name for part in activation.nodes)
    return found[::-1]


def is_silu(graph: Graph, node: NodeProto) -> bool:
    """Whether a Mul computes ``x * sigmoid(x)``."""
    return _gated(graph, node, "Sigmoid") is not None


def _match(graph: Graph, node: NodeProto) -> Activation | None:
    if node.op_type in _SINGLE:
        return Activation(_SINGLE[node.op_type], (node,), node.input[0], node.output[0])
    if node.op_type not in ("Mul", "Div"):
        return None
    for match in (_silu, _mish, _hard_swish, _gelu):
        found = match(graph, node)
        if found is not None:
            return found
    return None


def _producer(graph: Graph, tensor: str, *ops: str) -> NodeProto | None:
    """The node that makes ``tensor``, if it is one of ``ops``."""
    node = graph.producers().get(tensor)
    return node if node is not None and node.op_type in ops else None


def _gated(graph: Graph, node: NodeProto, op: str) -> tuple[str, NodeProto] | None:
    """``x`` and the gate of ``Mul(x, op(...))``, in either order."""
    if node.op_type != "Mul":
        return None
    for source, gate in (node.input, reversed(node.input)):
        maker = _producer(graph, gate, op)
        if maker is not None and (op != "Sigmoid" or maker.input[0] == source):
            return source, maker
    return None


def _silu(graph: Graph, node: NodeProto) -> Activation | None:
    gated = _gated(graph, node, "Sigmoid")
    if gated is None:
        return None
    return Activation("SiLU", (gated[1], node), gated[0], node.output[0])


def _mish(graph: Graph, node: NodeProto) -> Activation | None:
    """``x * tanh(softplus(x))``, softplus as one node or as ``log(1 + exp(x))``."""
    gated = _gated(graph, node, "Tanh")
    if gated is None:
        return None
    source, tanh = gated
    softplus = _producer(graph, tanh.input[0], "Softplus")
    if softplus is not None and softplus.input[0] == source:
        return Activation("Mish", (softplus, tanh, node), source, node.output[0])
    log = _producer(graph, tanh.input[0], "Log")
    add = _producer(graph, log.input[0], "Add") if log is not None else None
    variable = _other_than(graph, add, 1.0) if add is not None else None
    exp = _producer(graph, variable, "Exp") if variable is not None else None
    if log is None or add is None or exp is None or exp.input[0] != source:
        return None
    return Activation("Mish", (exp, add, log, tanh, node), source, node.output[0])


def _hard_swish(graph: Graph, node: NodeProto) -> Activation | None:
    """``x * hardsigmoid(x)`` or ``x * clip(x + 3, 0, 6) / 6`` in the orders exporters write."""
    gated = _gated(graph, node, "HardSigmoid")
    if gated is not None:
        source, gate = gated
        usual = (
            abs(attribute(gate, "alpha", 0.2) - 1 / 6) < 1e-4
            and attribute(gate, "beta", 0.5) == 0.5
        )
        if usual and gate.input[0] == source:
            return Activation("HardSwish", (gate, node), source, node.output[0])
    # (x * clip) / 6
    variable = _sixth_of(graph, node)
    if variable is not None:
        product = _producer(graph, variable, "Mul")
        inner = _clipped(graph, product) if product is not None else None
        if inner is not None and product is not None:
            return Activation("HardSwish", (*inner[1], product, node), inner[0], node.output[0])
    # x * (clip / 6)
    if node.op_type == "Mul":
        for source, gate_tensor in (node.input, reversed(node.input)):
            scaled = _producer(graph, gate_tensor, "Mul", "Div")
            variable = _sixth_of(graph, scaled) if scaled is not None else None
            clip = _relu6_of_x_plus_3(graph, variable, source) if variable is not None else None
            if clip is not None and scaled is not None:
                return Activation("HardSwish", (*clip, scaled, node), source, node.output[0])
    return None


def _clipped(graph: Graph, product: NodeProto) -> tuple[str, tuple[NodeProto, ...]] | None:
    for source, gate in (product.input, reversed(product.input)):
        clip = _relu6_of_x_plus_3(graph, gate, source)
        if clip is not None:
            return source, clip
    return None


def _relu6_of_x_plus_3(graph: Graph, tensor: str, source: str) -> tuple[NodeProto, ...] | None:
    clip = _producer(graph, tensor, "Clip")
    if clip is None or clip_limits(graph, clip) != (0.0, 6.0):
        return None
    add = _producer(graph, clip.input[0], "Add")
    if add is None or _other_than(graph, add, 3.0) != source:
        return None
    return add, clip


def _sixth_of(graph: Graph, node: NodeProto) -> str | None:
    """The tensor that ``node`` divides by six."""
    if node.op_type == "Div":
        divisor = graph.constants.get(node.input[1])
        return node.input[0] if _is(divisor, 6.0) else None
    return _other_than(graph, node, 1 / 6) if node.op_type == "Mul" else None


def _gelu(graph: Graph, node: NodeProto) -> Activation | None:
    """``0.5 * x * (1 + erf(x / sqrt(2)))`` with the factor 0.5 at either place."""
    if node.op_type != "Mul":
        return None
    nodes: list[NodeProto] = [node]
    half = _other_than(graph, node, 0.5)
    product = _producer(graph, half, "Mul") if half is not None else node
    if product is None:
        return None
    if product is not node:
        nodes.insert(0, product)
    for left, right in (product.input, reversed(product.input)):
        add = _producer(graph, right, "Add")
        erf_tensor = _other_than(graph, add, 1.0) if add is not None else None
        erf = _producer(graph, erf_tensor, "Erf") if erf_tensor is not None else None
        root = _producer(graph, erf.input[0], "Div", "Mul") if erf is not None else None
        if add is None or erf is None or root is None:
            continue
        before: list[NodeProto] = [root, erf, add]
        if product is node:  # the factor 0.5 is at x
            halved = _producer(graph, left, "Mul")
            source = _other_than(graph, halved, 0.5) if halved is not None else None
            if halved is None or source is None:
                continue
            before.insert(0, halved)
        else:
            source = left
        if root.input[0] == source:
            return Activation("GELU", (*before, *nodes), source, node.output[0])
    return None


def _other_than(graph: Graph, node: NodeProto, value: float) -> str | None:
    """The operand of a two-operand node beside the constant ``value``."""
    for variable, constant in (node.input, reversed(node.input)):
        if _is(graph.constants.get(constant), value):
            return str(variable)
    return None


def _is(constant: np.ndarray | None, value: float) -> bool:
    return (
        constant is not None
        and constant.size == 1
        and bool(np.isclose(constant.reshape(-1)[0], value, rtol=1e-3))
    )
