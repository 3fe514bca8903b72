from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import on_dla, ops, rewritten, untouched

from dla_perception.compiler.rewrites import padding


def padded(net: Network, x: str, pads: list[int], value: float | None = None) -> str:
    amounts = [0, 0, *pads[:2], 0, 0, *pads[2:]]
    inputs = [x, net.constant(amounts, np.int64)]
    if value is not None:
        inputs.append(net.constant(value))
    return str(net.add("Pad", *inputs))


PADS = st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any)


@settings(max_examples=40, deadline=None)
@given(pads=PADS, own=st.lists(st.integers(0, 1), min_size=4, max_size=4), stride=st.integers(1, 2))
def test_into_a_convolution(pads: list[int], own: list[int], stride: int) -> None:
    net = Network((1, 2, 8, 9))
    net.conv(padded(net, "x", pads), 2, 3, 3, pads=own, strides=[stride] * 2)
    assert ops(rewritten(net, padding)) == ["Conv"]


@settings(max_examples=30, deadline=None)
@given(pads=st.lists(st.integers(0, 2), min_size=4, max_size=4).filter(any))
def test_into_an_average(pads: list[int]) -> None:
    net = Network((1, 2, 8, 9))
    net.add("AveragePool", padded(net, "x", pads), kernel_shape=[3, 3])
    assert ops(rewritten(net, padding)) == ["AveragePool"]


@settings(max_examples=30, deadline=None)
@given(
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4).filter(any),
    before=st.sampled_from(["Relu", "Sigmoid", "Abs"]),
)
def test_into_a_maximum_of_what_is_never_negative(pads: list[int], before: str) -> None:
    net = Network((1, 2, 8, 9))
    net.add("MaxPool", padded(net, net.add(before, "x"), pads), kernel_shape=[3, 3])
    assert ops(rewritten(net, padding, exactly=True)) == [before, "MaxPool"]


def test_zeros_before_a_maximum_of_what_may_be_negative_stay_zeros() -> None:
    net = Network((1, 2, 8, 9))
    net.add("MaxPool", padded(net, net.add("Tanh", "x"), [1, 1, 1, 1]), kernel_shape=[3, 3])
    graph = rewritten(net, padding, exactly=True, inputs=[-np.ones((1, 2, 8, 9), np.float32)])
    assert ops(graph) == ["Tanh", "Conv", "MaxPool"]


@pytest.mark.parametrize("value", [-np.inf, float(np.finfo(np.float32).min)])
def test_the_lowest_number_before_a_maximum(value: float) -> None:
    net = Network((1, 2, 8, 9))
    net.add("MaxPool", padded(net, net.add("Tanh", "x"), [0, 1, 1, 0], value), kernel_shape=[2, 2])
    assert ops(rewritten(net, padding, exactly=True)) == ["Tanh", "MaxPool"]


@settings(max_examples=40, deadline=None)
@given(pads=PADS)
def test_anywhere_else_it_is_a_convolution(pads: list[int]) -> None:
    net = Network((1, 2, 5, 6))
    net.add("Relu", padded(net, "x", pads))
    graph = rewritten(net, padding, exactly=True)
    assert ops(graph) == ["Conv", "Relu"]
    assert on_dla(graph)


def test_padding_that_two_read_is_a_convolution() -> None:
    net = Network((1, 2, 8, 8))
    wide = padded(net, "x", [1, 1, 1, 1])
    outputs = [net.conv(wide, 2, 3), net.conv(wide, 2, 3)]
    assert ops(rewritten(net, padding, *outputs)) == ["Conv", "Conv", "Conv"]


def test_an_average_with_padding_of_its_own() -> None:
    net = Network((1, 2, 8, 8))
    wide = padded(net, "x", [1, 1, 1, 1])
    net.add("AveragePool", wide, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    assert ops(rewritten(net, padding)) == ["Conv", "AveragePool"]
    counting = Network((1, 2, 8, 8))
    wide = padded(counting, "x", [1, 1, 1, 1])
    counting.add("AveragePool", wide, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    assert ops(rewritten(counting, padding)) == ["AveragePool"]


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 18])
def test_every_opset(opset: int) -> None:
    net = Network((1, 2, 8, 8), opset)
    if opset < 11:
        wide = net.add("Pad", "x", pads=[0, 0, 1, 1, 0, 0, 1, 1])
    elif opset == 18:
        axes = net.constant([2, -1], np.int64)
        wide = net.add("Pad", "x", net.constant([1, 1, 1, 1], np.int64), "", axes)
    else:
        wide = padded(net, "x", [1, 1, 1, 1])
    net.conv(wide, 2, 3)
    assert ops(rewritten(net, padding)) == ["Conv"]


def test_left_alone() -> None:
    for build in (
        lambda net: padded(net, "x", [1, 1, 1, 1], 0.5),
        lambda net: padded(net, "x", [-1, 0, 0, 0]),
        lambda net: net.add("Pad", "x", net.constant([0, 1, 0, 0, 0, 1, 0, 0], np.int64)),
        lambda net: net.add(
            "Pad", "x", net.constant([0, 0, 1, 1, 0, 0, 1, 1], np.int64), mode="reflect"
        ),
        lambda net: net.add("Pad", "x", net.input("p", (8,), 7)),
    ):
        net = Network((1, 2, 8, 8))
        build(net)
        untouched(net, padding)
