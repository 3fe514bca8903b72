"""Activation functions recognised in the forms that exporters write."""

from __future__ import annotations

from typing import Callable

import numpy as np
import pytest
from onnx_networks import Network, run

from dla_perception.compiler.activations import find_activations


def silu(net: Network, x: str) -> str:
    return str(net.add("Mul", net.add("Sigmoid", x), x))


def mish(net: Network, x: str) -> str:
    return str(net.add("Mul", x, net.add("Tanh", net.add("Softplus", x))))


def mish_of_logs(net: Network, x: str) -> str:
    one = net.constant(1.0)
    log = net.add("Log", net.add("Add", one, net.add("Exp", x)))
    return str(net.add("Mul", net.add("Tanh", log), x))


def relu6(net: Network, x: str) -> str:
    raised = net.add("Add", x, net.constant(3.0))
    return str(net.add("Clip", raised, net.constant(0.0), net.constant(6.0)))


def hard_swish_product_first(net: Network, x: str) -> str:
    return str(net.add("Div", net.add("Mul", x, relu6(net, x)), net.constant(6.0)))


def hard_swish_gate_first(net: Network, x: str) -> str:
    return str(net.add("Mul", x, net.add("Div", relu6(net, x), net.constant(6.0))))


def hard_swish_by_factor(net: Network, x: str) -> str:
    return str(net.add("Mul", net.add("Mul", relu6(net, x), net.constant(1 / 6)), x))


def hard_swish_of_hard_sigmoid(net: Network, x: str) -> str:
    return str(net.add("Mul", x, net.add("HardSigmoid", x, alpha=1 / 6, beta=0.5)))


def gelu_half_last(net: Network, x: str) -> str:
    erf = net.add("Erf", net.add("Div", x, net.constant(2**0.5)))
    product = net.add("Mul", x, net.add("Add", erf, net.constant(1.0)))
    return str(net.add("Mul", product, net.constant(0.5)))


def gelu_half_first(net: Network, x: str) -> str:
    half = net.add("Mul", x, net.constant(0.5))
    erf = net.add("Erf", net.add("Div", x, net.constant(2**0.5)))
    return str(net.add("Mul", half, net.add("Add", erf, net.constant(1.0))))


def hard_swish(net: Network, x: str) -> str:
    return str(net.add("HardSwish", x))


FORMS: list[tuple[str, Callable[[Network, str], str], int]] = [
    ("SiLU", silu, 2),
    ("Mish", mish, 3),
    ("Mish", mish_of_logs, 5),
    ("HardSwish", hard_swish_product_first, 4),
    ("HardSwish", hard_swish_gate_first, 4),
    ("HardSwish", hard_swish_by_factor, 4),
    ("HardSwish", hard_swish_of_hard_sigmoid, 2),
    ("HardSwish", hard_swish, 1),
    ("GELU", gelu_half_last, 5),
    ("GELU", gelu_half_first, 5),
]
FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "HardSwish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}


@pytest.mark.parametrize(
    ("function", "form", "count"), FORMS, ids=[f"{f[0]}-{f[1].__name__}" for f in FORMS]
)
def test_forms_are_recognised(
    function: str, form: Callable[[Network, str], str], count: int
) -> None:
    net = Network((1, 2, 3, 3), opset=14)
    source = net.add("Relu", "x")
    result = form(net, source)
    net.add("Relu", result)
    graph = net.graph()
    (found,) = find_activations(graph)
    assert (found.function, found.source, found.result) == (function, source, result)
    assert len(found.nodes) == count
    assert found.nodes[-1].output[0] == result
    if function in FORMULAS:  # the test's own networks compute what they are named after
        x = np.random.default_rng(0).normal(0, 3, (1, 2, 3, 3)).astype(np.float32)
        direct = Network((1, 2, 3, 3), opset=14)
        form(direct, "x")
        np.testing.assert_allclose(run(direct.model(), x)[0], FORMULAS[function](x), atol=1e-5)


@pytest.mark.parametrize(
    "form",
    [
        lambda net, x: net.add("Mul", x, net.add("Sigmoid", net.add("Relu", x))),
        lambda net, x: net.add("Mul", x, net.add("Tanh", x)),
        lambda net, x: net.add("Mul", x, net.constant(0.5)),
        lambda net, x: net.add("Mul", net.add("Mul", x, relu6(net, x)), net.constant(0.5)),
        lambda net, x: net.add("Div", net.add("Relu", x), net.constant(6.0)),
    ],
)
def test_what_only_looks_alike_is_not_recognised(form: Callable[[Network, str], str]) -> None:
    net = Network((1, 2, 3, 3), opset=14)
    form(net, "x")
    assert find_activations(net.graph()) == []


def test_a_chain_keeps_its_order() -> None:
    net = Network((1, 2, 3, 3), opset=14)
    mish(net, silu(net, mish(net, "x")))
    assert [found.function for found in find_activations(net.graph())] == ["Mish", "SiLU", "Mish"]
