from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import on_dla, ops, rewritten, untouched

from dla_perception.compiler.dla_support import Target
from dla_perception.compiler.node_reading import attribute
from dla_perception.compiler.placement import place
from dla_perception.compiler.rewrites import symmetric_padding


def no_caution(graph: object) -> bool:
    layers = place(graph, Target()).layers  # type: ignore[arg-type]
    return all(layer.device == "dla" and not layer.reason for layer in layers)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_convolutions(data: st.DataObject) -> None:
    kernel = [data.draw(st.integers(1, 4)) for _ in range(2)]
    begin, end = ([data.draw(st.integers(0, k - 1)) for k in kernel] for _ in range(2))
    size = [data.draw(st.integers(k, 12)) for k in kernel]
    groups = data.draw(st.sampled_from([1, 2]))
    net = Network((1, 2, *size), seed=data.draw(st.integers(0, 99)))
    strides = [data.draw(st.integers(1, 3)) for _ in range(2)]
    net.conv("x", 2, 2, tuple(kernel), groups, pads=begin + end, strides=strides)  # type: ignore[arg-type]
    if begin == end:
        untouched(net, symmetric_padding)
    else:
        assert no_caution(rewritten(net, symmetric_padding))


@settings(max_examples=30, deadline=None)
@given(
    dilation=st.integers(2, 3),
    begin=st.integers(0, 4),
    end=st.integers(0, 4),
    stride=st.integers(1, 2),
)
def test_dilated_convolutions(dilation: int, begin: int, end: int, stride: int) -> None:
    net = Network((1, 2, 14, 14))
    net.conv(
        "x", 2, 2, 3, pads=[begin, begin, end, end], strides=[stride] * 2, dilations=[dilation] * 2
    )
    graph = net.graph()
    changed = symmetric_padding.apply(graph, Target())
    if begin != end and abs(begin - end) % dilation == 0:
        assert changed
    if changed:
        assert ops(rewritten(net, symmetric_padding)) == ["Conv"]


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
@pytest.mark.parametrize("size", [15, 16])
def test_padding_by_auto_pad(auto: str, op: str, size: int) -> None:
    net = Network((1, 3, size, size))
    if op == "Conv":
        net.conv("x", 3, 4, 3, strides=[2, 2], auto_pad=auto)
    else:
        net.add("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], auto_pad=auto)
    if size == 15:  # one row on each side
        untouched(net, symmetric_padding)
    else:
        assert no_caution(rewritten(net, symmetric_padding))


def test_padding_no_less_than_the_kernel() -> None:
    net = Network((1, 3, 9, 9))
    net.conv("x", 3, 4, 1, pads=[1] * 4)
    assert not on_dla(net.graph())
    graph = rewritten(net, symmetric_padding)
    assert on_dla(graph)
    assert attribute(graph.nodes[0], "kernel_shape") == [3, 3]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_pools(data: st.DataObject) -> None:
    average = data.draw(st.booleans())
    kernel = [data.draw(st.integers(1, 5)) for _ in range(2)]
    begin, end = ([data.draw(st.integers(0, k - 1)) for k in kernel] for _ in range(2))
    size = [data.draw(st.integers(k, 12)) for k in kernel]
    net = Network((1, 2, *size), seed=data.draw(st.integers(0, 99)))
    counted = {"count_include_pad": data.draw(st.integers(0, 1))} if average else {}
    net.add(
        "AveragePool" if average else "MaxPool",
        "x",
        kernel_shape=kernel,
        pads=begin + end,
        strides=[data.draw(st.integers(1, 3)) for _ in range(2)],
        **counted,
    )
    if begin == end:
        untouched(net, symmetric_padding)
    else:
        assert no_caution(rewritten(net, symmetric_padding, exactly=not average))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pools_that_round_up(data: st.DataObject) -> None:
    average = data.draw(st.booleans())
    kernel, stride = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    pads = [data.draw(st.integers(0, kernel - 1)) for _ in range(4)]
    net = Network((1, 2, data.draw(st.integers(4, 11)), data.draw(st.integers(4, 11))))
    net.add(
        "AveragePool" if average else "MaxPool",
        "x",
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=pads,
        ceil_mode=1,
    )
    graph = net.graph()
    if symmetric_padding.apply(graph, Target()):
        assert no_caution(rewritten(net, symmetric_padding, exactly=not average))


def test_darknet_pool_of_size_2_and_stride_1() -> None:
    net = Network((1, 4, 13, 13))
    net.add("MaxPool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    assert ops(rewritten(net, symmetric_padding, exactly=True)) == ["MaxPool", "Slice"]


@pytest.mark.parametrize("opset", [8, 9, 10, 11, 12, 18])
def test_every_opset(opset: int) -> None:
    net = Network((1, 4, 13, 13), opset)
    net.add("MaxPool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    rewritten(net, symmetric_padding, exactly=True)


def test_left_alone() -> None:
    net = Network((1, 2, 6, 6))
    net.add("MaxPool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1], outputs=2)
    untouched(net, symmetric_padding)
    net = Network((1, 4, 8, 8))
    net.add("Conv", "x", net.input("w", (4, 4, 2, 2)), pads=[0, 0, 1, 1])
    untouched(net, symmetric_padding)
    net = Network((1, 2, 8, 8))  # an average that counts padding cannot tell what it rounds up to
    net.add(
        "AveragePool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1
    )
    untouched(net, symmetric_padding)
