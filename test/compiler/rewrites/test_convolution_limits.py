"""Transposed and grouped convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import on_dla, ops, rewritten, untouched

from dla_perception.compiler.rewrites import grouped_convolutions, transposed_convolutions


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_transposed_convolution(data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    kernel = [data.draw(st.integers(1, 4)) for _ in range(2)]
    strides = [data.draw(st.integers(1, 3)) for _ in range(2)]
    dilations = [data.draw(st.integers(1, 2)) for _ in range(2)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel)]
    size = [data.draw(st.integers(2, 5)) for _ in range(2)]
    whole = [(n - 1) * s + r for n, s, r in zip(size, strides, reach)]
    pads = [
        data.draw(st.integers(0, max(0, min(r - 1, (w - 1) // 2))))
        for r, w in zip(reach * 2, whole * 2)
    ]
    extra = [data.draw(st.integers(0, s - 1)) for s in strides]
    net = Network((1, groups * 2, *size), seed=data.draw(st.integers(0, 99)))
    weights = net.constant(net.random.normal(0, 0.5, (groups * 2, 3, *kernel)))
    inputs = ["x", weights]
    if data.draw(st.booleans()):
        inputs.append(net.constant(net.random.normal(0, 1, groups * 3)))
    net.add(
        "ConvTranspose",
        *inputs,
        group=groups,
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=extra,
    )
    if on_dla(net.graph()):
        untouched(net, transposed_convolutions)
    else:
        assert on_dla(rewritten(net, transposed_convolutions))


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_sizes_by_auto_pad(auto: str, kernel: int) -> None:
    net = Network((1, 2, 5, 5))
    weights = net.constant(net.random.normal(0, 1, (2, 3, kernel, kernel)))
    net.add("ConvTranspose", "x", weights, strides=[2, 2], auto_pad=auto)
    if on_dla(net.graph()):
        untouched(net, transposed_convolutions)
    else:
        assert on_dla(rewritten(net, transposed_convolutions))


@pytest.mark.parametrize("opset", [9, 11])
def test_every_opset(opset: int) -> None:
    net = Network((1, 2, 5, 5), opset)
    net.add(
        "ConvTranspose",
        "x",
        net.constant(net.random.normal(0, 1, (2, 3, 4, 4))),
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    )
    assert ops(rewritten(net, transposed_convolutions)) == ["ConvTranspose", "Slice"]


def test_what_cannot_be_mended_is_left_alone() -> None:
    net = Network((1, 1, 3, 3))
    net.add("ConvTranspose", "x", net.constant(np.ones((1, 1, 40, 40))))
    untouched(net, transposed_convolutions)
    net = Network((1, 2, 5, 5))
    net.add("ConvTranspose", "x", net.input("w", (2, 2, 2, 2)), pads=[1, 1, 1, 1])
    untouched(net, transposed_convolutions)


@settings(max_examples=30, deadline=None)
@given(groups=st.integers(5, 8), inputs=st.integers(1, 2), outputs=st.integers(1, 2))
def test_groups_at_the_input(groups: int, inputs: int, outputs: int) -> None:
    net = Network((1, groups * inputs, 6, 6))
    net.conv("x", groups * inputs, groups * outputs, 3, groups)
    graph = rewritten(net, grouped_convolutions)
    assert on_dla(graph)


def test_few_groups_and_inner_groups_stay() -> None:
    net = Network((1, 4, 6, 6))
    net.conv("x", 4, 4, 3, 4)
    untouched(net, grouped_convolutions)
    net = Network((1, 8, 6, 6))
    net.conv(net.add("Relu", "x"), 8, 8, 3, 8)
    untouched(net, grouped_convolutions)
