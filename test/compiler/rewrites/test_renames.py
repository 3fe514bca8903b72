from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import ORIN, ops, rewritten, untouched

from dla_perception.compiler.rewrites import renames


def to(net: Network, x: str, *shape: int) -> str:
    return str(net.add("Reshape", x, net.constant(list(shape), np.int64)))


@settings(max_examples=40, deadline=None)
@given(
    functions=st.lists(st.sampled_from(["Relu", "Sigmoid", "Tanh", "Abs"]), max_size=3),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.integers(2, 4)),
    way=st.sampled_from(["Flatten", "Reshape", "Squeeze"]),
)
def test_functions_between_two_opposite_renames(
    functions: list[str], shape: tuple[int, ...], way: str
) -> None:
    net = Network(shape, opset=11)
    tensor = net.add("Relu", "x")
    if way == "Flatten":
        tensor = net.add("Flatten", tensor)
    elif way == "Reshape":
        tensor = to(net, tensor, -1)
    else:
        axes = [axis for axis, size in enumerate(shape) if size == 1]
        tensor = net.add("Squeeze", tensor, axes=axes) if axes else to(net, tensor, -1)
    for function in functions:
        tensor = net.add(function, tensor)
    net.add("Relu", to(net, tensor, *shape))
    graph = rewritten(net, renames, exactly=True, rounds=8)
    assert ops(graph) == ["Relu", *functions, "Relu"]


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    out=st.integers(1, 5),
    turned=st.booleans(),
    biased=st.sampled_from(["none", "vector", "row", "one"]),
    alpha=st.sampled_from([1.0, 0.5]),
    beta=st.sampled_from([1.0, 2.0]),
)
def test_a_classifier_becomes_a_convolution(
    shape: tuple[int, ...], out: int, turned: bool, biased: str, alpha: float, beta: float
) -> None:
    net = Network(shape)
    flat = int(np.prod(shape[1:]))
    weights = net.random.normal(0, 0.5, (out, flat) if turned else (flat, out))
    inputs = [net.add("Flatten", net.add("Relu", "x")), net.constant(weights)]
    form = {"vector": (out,), "row": (1, out), "one": (1,)}.get(biased)
    if form:
        inputs.append(net.constant(net.random.normal(0, 1, form)))
    net.add("Gemm", *inputs, transB=int(turned), alpha=alpha, beta=beta)
    graph = rewritten(net, renames, rounds=4)
    assert ops(graph) == ["Relu", "Conv", "Reshape"]


def test_a_classifier_with_two_layers_keeps_one_rename_at_its_end() -> None:
    net = Network((1, 4, 5, 5))
    hidden = net.add(
        "Gemm", net.add("Flatten", "x"), net.constant(net.random.normal(0, 0.3, (100, 8)))
    )
    net.add("MatMul", net.add("Relu", hidden), net.constant(net.random.normal(0, 0.3, (8, 3))))
    graph = rewritten(net, renames, rounds=8)
    assert ops(graph) == ["Conv", "Relu", "Conv", "Reshape"]


def test_two_renames_in_a_row_are_one() -> None:
    net = Network((1, 4, 5, 5))
    net.add("Flatten", to(net, net.add("Relu", "x"), 1, 4, 25))
    assert ops(rewritten(net, renames, exactly=True, rounds=3)) == ["Relu", "Reshape"]


def test_a_transpose_of_single_rows_is_a_rename() -> None:
    net = Network((1, 4, 1, 1))
    turned = net.add("Transpose", net.add("Relu", "x"), perm=[0, 2, 3, 1])
    net.add("Relu", net.add("Transpose", net.add("Flatten", turned), perm=[0, 1]))
    graph = rewritten(net, renames, exactly=True, rounds=6)
    assert ops(graph)[:2] == ["Relu", "Relu"]


@pytest.mark.parametrize(
    "build",
    [
        lambda net: to(net, "x", 1, 4, 30, 1),
        lambda net: net.add("Transpose", "x", perm=[0, 2, 3, 1]),
        lambda net: net.add("Softmax", net.add("Flatten", "x"), axis=1),
        lambda net: net.add("Gemm", net.add("Flatten", "x"), net.input("w", (120, 3))),
    ],
    ids=["a DLA takes it", "moves elements", "not element by element", "moving weights"],
)
def test_left_alone(build: object) -> None:
    net = Network((1, 4, 5, 6))
    build(net)  # type: ignore[operator]
    untouched(net, renames, target=ORIN)


def test_a_result_that_others_read_keeps_its_shape() -> None:
    net = Network((1, 4, 5, 6))
    flat = net.add("Flatten", net.add("Relu", "x"))
    result = net.add("Sigmoid", flat)
    rewritten(net, renames, flat, result, exactly=True, rounds=3)
