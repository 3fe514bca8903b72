from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import ORIN, XAVIER, on_dla, ops, rewritten, untouched

from dla_perception.compiler.rewrites import exclusive_averages


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_counted_padding_with_a_factor(data: st.DataObject) -> None:
    kernel = [data.draw(st.integers(2, 5)) for _ in range(2)]
    pads = [data.draw(st.integers(0, k - 1)) for k in kernel * 2]
    size = [data.draw(st.integers(k, 12)) for k in kernel]
    net = Network((1, 2, *size), seed=data.draw(st.integers(0, 99)))
    strides = [data.draw(st.integers(1, 3)) for _ in range(2)]
    net.add("AveragePool", "x", kernel_shape=kernel, pads=pads, strides=strides)
    if not any(pads):
        untouched(net, exclusive_averages, target=XAVIER)
        return
    graph = rewritten(net, exclusive_averages, target=XAVIER)
    assert ops(graph) == ["AveragePool", "Mul"]
    assert on_dla(graph, XAVIER)


def test_an_orin_needs_no_factor() -> None:
    net = Network((1, 2, 8, 8))
    net.add("AveragePool", "x", kernel_shape=[3, 3], pads=[1] * 4)
    untouched(net, exclusive_averages, target=ORIN)


def test_counted_padding_is_left_alone() -> None:
    net = Network((1, 2, 8, 8))
    net.add("AveragePool", "x", kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
    untouched(net, exclusive_averages, target=XAVIER)
