from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx_networks import Network
from rewrite_checks import ops, rewritten, untouched

from dla_perception.compiler.rewrites import batch_norm


def norm(
    net: Network, tensor: str, channels: int, epsilon: float = 1e-5, dtype: type = np.float32
) -> str:
    stats = [
        net.constant(net.random.normal(1, 0.5, channels), dtype),
        net.constant(net.random.normal(0, 1, channels), dtype),
        net.constant(net.random.normal(0, 1, channels), dtype),
        net.constant(net.random.uniform(0.3, 2, channels), dtype),
    ]
    return str(net.add("BatchNormalization", tensor, *stats, epsilon=epsilon))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_batch_norm_becomes_part_of_a_convolution(data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    channels, out = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3))
    net = Network((1, channels, 7, 7), seed=data.draw(st.integers(0, 99)))
    conv = net.conv(
        "x", channels, out, data.draw(st.integers(1, 3)), groups, data.draw(st.booleans())
    )
    norm(net, conv, out, data.draw(st.sampled_from([1e-5, 1e-3, 0.1])))
    assert ops(rewritten(net, batch_norm)) == ["Conv"]


@settings(max_examples=30, deadline=None)
@given(groups=st.sampled_from([1, 2, 3]), biased=st.booleans(), seed=st.integers(0, 99))
def test_batch_norm_becomes_part_of_a_transposed_convolution(
    groups: int, biased: bool, seed: int
) -> None:
    channels, out = groups * 2, groups * 3
    net = Network((1, channels, 5, 5), seed=seed)
    weights = net.constant(net.random.normal(0, 0.5, (channels, 3, 2, 2)))
    inputs = ["x", weights] + ([net.constant(net.random.normal(0, 1, out))] if biased else [])
    norm(net, net.add("ConvTranspose", *inputs, group=groups, strides=[2, 2]), out)
    assert ops(rewritten(net, batch_norm)) == ["ConvTranspose"]


@settings(max_examples=60, deadline=None)
@given(
    op=st.sampled_from(["Mul", "Div", "Add", "Sub"]),
    first=st.booleans(),
    form=st.sampled_from([(), (1,), (4, 1, 1), (1, 4, 1, 1), (1, 1, 1)]),
    seed=st.integers(0, 99),
)
def test_factors_and_offsets_become_part_of_a_convolution(
    op: str, first: bool, form: tuple[int, ...], seed: int
) -> None:
    net = Network((1, 3, 6, 6), seed=seed)
    conv = net.conv("x", 3, 4)
    constant = net.constant(net.random.uniform(0.5, 2, form))
    net.add(op, *((constant, conv) if first else (conv, constant)))
    if op == "Div" and first:
        untouched(net, batch_norm)
    else:
        assert ops(rewritten(net, batch_norm)) == ["Conv"]


def test_several_in_a_row() -> None:
    net = Network((1, 3, 6, 6))
    scaled = net.add(
        "Mul", norm(net, net.conv("x", 3, 4), 4), net.constant(np.full((4, 1, 1), 3.0))
    )
    net.add("Relu", net.add("Add", scaled, net.constant(2.0)))
    assert ops(rewritten(net, batch_norm)) == ["Conv", "Relu"]


def test_half_precision_stays_half_precision() -> None:
    net = Network((1, 3, 6, 6), elem_type=TensorProto.FLOAT16)
    weights = net.constant(net.random.normal(0, 0.3, (4, 3, 3, 3)), np.float16)
    norm(net, net.add("Conv", "x", weights), 4, dtype=np.float16)
    graph = net.graph()
    assert batch_norm.apply(graph, None)  # type: ignore[arg-type]
    graph.refresh()
    assert {graph.dtype(name) for name in graph.nodes[0].input} == {np.dtype(np.float16)}


def shared() -> Network:
    net = Network((1, 3, 6, 6))
    conv = net.conv("x", 3, 4)
    norm(net, conv, 4)
    net.add("Relu", conv)
    return net


def test_a_convolution_that_others_read_stays() -> None:
    untouched(shared(), batch_norm, "t1", "t2")


def test_a_convolution_that_is_an_output_stays() -> None:
    net = Network((1, 3, 6, 6))
    norm(net, net.conv("x", 3, 4), 4)
    untouched(net, batch_norm, "t0", "t1")


@pytest.mark.parametrize("constant", [np.ones((1, 1, 4, 4)), np.ones((4, 4)), np.zeros(())])
def test_other_constants_stay(constant: np.ndarray) -> None:
    net = Network((1, 3, 6, 6))
    net.add("Div", net.conv("x", 3, 4), net.constant(constant))
    untouched(net, batch_norm)


def test_shared_weights_are_not_changed_for_others() -> None:
    net = Network((1, 3, 6, 6))
    weights = net.constant(net.random.normal(0, 1, (4, 3, 3, 3)))
    first, second = net.add("Conv", "x", weights), net.add("Conv", "x", weights)
    normed = norm(net, first, 4)
    rewritten(net, batch_norm, normed, second)
