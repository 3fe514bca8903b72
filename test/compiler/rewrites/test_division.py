from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx_networks import Network
from rewrite_checks import ORIN_85, on_dla, ops, rewritten, untouched

from dla_perception.compiler.rewrites import division


@settings(max_examples=50, deadline=None)
@given(
    form=st.sampled_from([(), (1,), (3, 1, 1), (1, 3, 4, 5)]),
    low=st.floats(1e-3, 10),
    negative=st.booleans(),
    seed=st.integers(0, 99),
)
def test_division_by_a_constant(
    form: tuple[int, ...], low: float, negative: bool, seed: int
) -> None:
    net = Network((1, 3, 4, 5), seed=seed)
    divisor = net.random.uniform(low, low * 10, form) * (-1 if negative else 1)
    net.add("Div", "x", net.constant(divisor))
    graph = rewritten(net, division, target=ORIN_85)
    assert ops(graph) == ["Mul"]
    assert on_dla(graph, ORIN_85)


def test_powers_of_two_are_exact() -> None:
    net = Network((1, 3, 4, 5))
    net.add("Div", "x", net.constant(4.0))
    rewritten(net, division, exactly=True)


@pytest.mark.parametrize(
    "divisor", [np.array([1.0, 0.0, 2.0]).reshape(3, 1, 1), np.array(1e-45)], ids=["zero", "tiny"]
)
def test_divisors_without_an_inverse_stay(divisor: np.ndarray) -> None:
    net = Network((1, 3, 4, 5))
    net.add("Div", "x", net.constant(divisor))
    untouched(net, division)


def test_whole_numbers_and_two_activations_stay() -> None:
    net = Network((1, 3), elem_type=TensorProto.INT64)
    net.add("Div", "x", net.constant(3, np.int64))
    untouched(net, division)
    net = Network((1, 3, 4, 5))
    net.add("Div", "x", net.input("y", (1, 3, 4, 5)))
    untouched(net, division)
    net = Network((1, 3, 4, 5))
    net.add("Div", net.constant(1.0), "x")
    untouched(net, division)
