from __future__ import annotations

from typing import Callable

import numpy as np
import pytest
from onnx import TensorProto
from onnx_networks import Network
from rewrite_checks import ops, rewritten, untouched

from dla_perception.compiler.rewrites import no_ops

SHAPE = (1, 4, 6, 6)
Build = Callable[[Network, str], str]


def ints(net: Network, *values: int) -> str:
    return net.constant(list(values), np.int64)


CASES: list[tuple[str, Build, int]] = [
    ("Identity", lambda net, x: net.add("Identity", x), 13),
    ("Dropout", lambda net, x: net.add("Dropout", x), 13),
    ("Dropout of old", lambda net, x: net.add("Dropout", x, ratio=0.5), 11),
    ("Cast", lambda net, x: net.add("Cast", x, to=TensorProto.FLOAT), 13),
    ("Concat", lambda net, x: net.add("Concat", x, axis=1), 13),
    ("Sum", lambda net, x: net.add("Sum", x), 13),
    ("Reshape", lambda net, x: net.add("Reshape", x, ints(net, 0, 4, -1, 6)), 13),
    ("Expand", lambda net, x: net.add("Expand", x, ints(net, 1, 1, 1, 1)), 13),
    ("Tile", lambda net, x: net.add("Tile", x, ints(net, 1, 1, 1, 1)), 13),
    ("Transpose", lambda net, x: net.add("Transpose", x, perm=[0, 1, 2, 3]), 13),
    ("Slice", lambda net, x: net.add("Slice", x, ints(net, 0), ints(net, 99), ints(net, 1)), 13),
    ("Split", lambda net, x: net.add("Split", x, ints(net, 4), axis=1), 13),
    ("Pad", lambda net, x: net.add("Pad", x, ints(net, 0, 0, 0, 0, 0, 0, 0, 0)), 13),
    ("Resize", lambda net, x: net.add("Resize", x, "", net.constant([1, 1, 1, 1])), 13),
    ("MaxPool", lambda net, x: net.add("MaxPool", x, kernel_shape=[1, 1]), 13),
    ("AveragePool", lambda net, x: net.add("AveragePool", x, kernel_shape=[1, 1]), 13),
    ("x + 0", lambda net, x: net.add("Add", x, net.constant(np.zeros((4, 1, 1)))), 13),
    ("0 + x", lambda net, x: net.add("Add", net.constant(0.0), x), 13),
    ("x - 0", lambda net, x: net.add("Sub", x, net.constant(0.0)), 13),
    ("1 * x", lambda net, x: net.add("Mul", net.constant(np.ones((1, 4, 1, 1))), x), 13),
    ("x / 1", lambda net, x: net.add("Div", x, net.constant(1.0)), 13),
    ("x ** 1", lambda net, x: net.add("Pow", x, net.constant(1.0)), 13),
]


@pytest.mark.parametrize(("name", "build", "opset"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("last", [True, False])
def test_removed(name: str, build: Build, opset: int, last: bool) -> None:
    net = Network(SHAPE, opset)
    tensor = build(net, net.add("Relu", "x"))
    if not last:
        tensor = net.add("Sigmoid", tensor)
    graph = rewritten(net, no_ops, tensor, exactly=True)
    assert ops(graph) == ["Relu"] + [] * last + ["Sigmoid"] * (not last)
    assert graph.outputs == [tensor]


KEPT: list[tuple[str, Build, int]] = [
    ("Concat of two", lambda net, x: net.add("Concat", x, x, axis=1), 13),
    ("Transpose", lambda net, x: net.add("Transpose", x, perm=[0, 1, 3, 2]), 13),
    ("Slice", lambda net, x: net.add("Slice", x, ints(net, 1), ints(net, 9), ints(net, 1)), 13),
    ("Cast", lambda net, x: net.add("Cast", x, to=TensorProto.FLOAT16), 13),
    ("Reshape", lambda net, x: net.add("Reshape", x, ints(net, 1, 4, 36)), 13),
    (
        "pool with stride",
        lambda net, x: net.add("MaxPool", x, kernel_shape=[1, 1], strides=[2, 2]),
        13,
    ),
    ("0 - x", lambda net, x: net.add("Sub", net.constant(0.0), x), 13),
    ("1 / x", lambda net, x: net.add("Div", net.constant(1.0), x), 13),
    ("1 ** x", lambda net, x: net.add("Pow", net.constant(1.0), x), 13),
    ("x + 1", lambda net, x: net.add("Add", x, net.constant(1.0)), 13),
    ("larger", lambda net, x: net.add("Add", x, net.constant(np.zeros((2, 4, 6, 6)))), 13),
]


@pytest.mark.parametrize(("name", "build", "opset"), KEPT, ids=[case[0] for case in KEPT])
def test_kept(name: str, build: Build, opset: int) -> None:
    net = Network(SHAPE, opset)
    build(net, net.add("Relu", "x"))
    untouched(net, no_ops)


def test_between_input_and_output_it_stays_as_it_was() -> None:
    net = Network(SHAPE)
    net.add("Mul", net.constant(1.0), "x")
    graph = net.graph()
    assert no_ops.apply(graph, None) == []  # type: ignore[arg-type]
    from onnx_networks import run

    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_array_equal(run(graph, x)[0], x)
