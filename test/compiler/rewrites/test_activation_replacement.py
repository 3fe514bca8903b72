from __future__ import annotations

import numpy as np
import pytest
from onnx_networks import Network, run
from rewrite_checks import ORIN, XAVIER, on_dla, ops

from dla_perception.compiler.activations import find_activations
from dla_perception.compiler.rewrites.activation_replacement import (
    ReplacementError,
    replace_activations,
)

FORMULAS = {
    "Relu": lambda x: np.maximum(x, 0),
    "LeakyRelu": lambda x: np.where(x > 0, x, 0.1 * x),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "ReLU6": lambda x: np.clip(x, 0, 6),
}


def mish(opset: int = 13) -> Network:
    net = Network((1, 2, 5, 5), opset)
    net.add("Mul", "x", net.add("Tanh", net.add("Softplus", "x")))
    return net


@pytest.mark.parametrize("function", FORMULAS)
@pytest.mark.parametrize("opset", [9, 13])
def test_mish_becomes(function: str, opset: int) -> None:
    net = mish(opset)
    graph = net.graph()
    gone = replace_activations(graph, {"Mish": function})
    graph.refresh()
    assert gone == ["Softplus_0", "Tanh_1", "Mul_2"]
    x = np.random.default_rng(0).normal(0, 5, (1, 2, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(run(graph, x)[0], FORMULAS[function](x), atol=1e-5)
    assert on_dla(graph, ORIN)
    assert on_dla(graph, XAVIER)


def test_only_what_was_named_is_replaced() -> None:
    net = Network((1, 2, 5, 5), opset=14)
    net.add("HardSwish", net.add("Elu", net.add("HardSwish", "x")))
    graph = net.graph()
    replace_activations(graph, {"HardSwish": "Relu"})
    graph.refresh()
    assert ops(graph) == ["Relu", "Elu", "Relu"]


def test_two_at_once() -> None:
    net = Network((1, 2, 5, 5), opset=14)
    net.add("HardSwish", net.add("Elu", "x"))
    graph = net.graph()
    replace_activations(graph, {"HardSwish": "ReLU6", "Elu": "LeakyRelu"})
    graph.refresh()
    assert ops(graph) == ["LeakyRelu", "Clip"]


def test_a_part_that_others_read_stays() -> None:
    net = mish()
    net.add("Relu", "t0")
    graph = net.graph("t2", "t3")
    replace_activations(graph, {"Mish": "Relu"})
    graph.refresh()
    assert sorted(ops(graph)) == ["Relu", "Relu", "Softplus"]


@pytest.mark.parametrize(("function", "distance"), [("SiLU", 0.184), ("Relu", 0.309)])
def test_the_distance_from_mish_is_what_is_said(function: str, distance: float) -> None:
    x = np.linspace(-20, 20, 200001)
    apart = np.abs(x * np.tanh(np.log1p(np.exp(x))) - FORMULAS[function](x))
    assert apart.max() == pytest.approx(distance, abs=0.001)


def test_an_activation_that_is_not_there() -> None:
    with pytest.raises(
        ReplacementError, match="it has no activation 'Elu' to replace; it has Mish"
    ):
        replace_activations(mish().graph(), {"Elu": "Relu"})


def test_a_replacement_that_is_not_there() -> None:
    with pytest.raises(
        ReplacementError, match="'Swish' cannot replace 'Mish'; expected one of Relu"
    ):
        replace_activations(mish().graph(), {"Mish": "Swish"})


def test_a_gated_sigmoid_is_found_after_replacing() -> None:
    graph = mish().graph()
    replace_activations(graph, {"Mish": "SiLU"})
    graph.refresh()
    assert [found.function for found in find_activations(graph)] == ["SiLU"]
