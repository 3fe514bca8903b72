"""Emulated INT8 and FP16, against numpy and against Q/DQ nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantization_networks import graph_of, model_of, node, run

from dla_perception.compiler.quantization.emulation import (
    emulate,
    emulate_one,
    quantise_weights,
)


def int8(values: np.ndarray, scale: float) -> np.ndarray:
    return np.clip(np.rint(values / np.float32(scale)), -128, 127) * np.float32(scale)


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


RNG = np.random.default_rng(0)
W1 = RNG.normal(size=(3, 2, 1, 1)).astype(np.float32)
B1 = RNG.normal(size=3).astype(np.float32)
X = RNG.normal(size=(1, 2, 5, 7)).astype(np.float32)


def convolve(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("oi,nihw->nohw", w[:, :, 0, 0], x) + b[None, :, None, None]


CHAIN = model_of(
    [node("Conv", "x w b", "conv"), node("Relu", "conv", "relu"), node("Neg", "relu", "y")],
    {"w": W1, "b": B1},
    X.shape,
    {"y": [1, 3, 5, 7]},
)


def test_an_int8_layer() -> None:
    emulation = emulate(graph_of(CHAIN), {"x": 0.02, "relu": 0.03})
    assert (emulation.int8_layers, emulation.fp16_layers) == (("conv",), ("y",))
    steps = np.abs(W1).max(axis=(1, 2, 3), keepdims=True) / 127
    weights = np.rint(W1 / steps) * steps
    # the bias stays as it is: it is added in the accumulator
    relu = int8(np.maximum(convolve(int8(X, 0.02), weights, B1), 0), 0.03)
    (y,) = run(emulation.model, X)
    # a sum that lies between two steps may be rounded either way
    assert np.abs(y + half(relu)).max() <= 0.031
    assert (np.abs(y + half(relu)) > 1e-6).mean() < 0.02


def test_an_fp16_network() -> None:
    emulation = emulate(graph_of(CHAIN), {})
    assert (emulation.int8_layers, emulation.fp16_layers) == ((), ("conv", "y"))
    expected = half(np.maximum(convolve(half(X), half(W1), half(B1)), 0))
    (y,) = run(emulation.model, X)
    np.testing.assert_allclose(y, -expected, rtol=1.1e-3)
    assert (y == half(y)).all()
    assert (y != -np.maximum(convolve(X, W1, B1), 0)).any()


@given(st.lists(st.floats(2**-14, 2**17, width=32), min_size=1, max_size=50))
@settings(max_examples=50, deadline=None)
def test_half_precision(values: list[float]) -> None:
    x = np.array([*values, *(-value for value in values)], np.float32).reshape(1, 1, 1, -1)
    model = model_of([node("Abs", "x", "y")], {}, x.shape, {"y": x.shape})
    (y,) = run(emulate(graph_of(model), {}).model, x)
    np.testing.assert_array_equal(y, half(np.clip(np.abs(x), 0, 65504)))


def test_without_a_scale_for_its_output_a_layer_runs_in_fp16() -> None:
    emulation = emulate(graph_of(CHAIN), {"x": 0.02, "elsewhere": 1.0})
    assert emulation.int8_layers == ()
    assert emulation.unknown == ("elsewhere",)
    (y,) = run(emulation.model, X)
    expected = half(np.maximum(convolve(half(X), half(W1), half(B1)), 0))
    np.testing.assert_allclose(y, -expected, rtol=1.1e-3)


def test_fp16_layers_read_what_int8_layers_do_not_store() -> None:
    # 'sum' runs in FP16 and has a scale: the pool reads it in INT8, 'neg' does not
    nodes = [
        node("Abs", "x", "sum"),
        node("MaxPool", "sum", "pool", kernel_shape=[1, 1]),
        node("Neg", "sum", "neg"),
    ]
    model = model_of(nodes, {}, X.shape, {"pool": X.shape, "neg": X.shape})
    emulation = emulate(graph_of(model), {"sum": 0.05, "pool": 0.05})
    assert emulation.int8_layers == ("pool",)
    pool, neg = run(emulation.model, X)
    np.testing.assert_allclose(pool, int8(half(np.abs(X)), 0.05), atol=1e-6)
    np.testing.assert_array_equal(neg, -half(np.abs(X)))


def test_values_saturate() -> None:
    nodes = [node("MaxPool", "x", "y", kernel_shape=[1, 1])]
    model = model_of(nodes, {}, [1, 1, 1, 4], {"y": [1, 1, 1, 4]})
    emulation = emulate(graph_of(model), {"x": 0.5, "y": 0.5})
    values = np.array([1000, -1000, 0.25, 0.75], np.float32).reshape(1, 1, 1, 4)
    # half way between two steps goes to the even one
    assert run(emulation.model, values)[0].ravel().tolist() == [63.5, -64.0, 0.0, 1.0]


def test_the_network_itself_is_not_changed() -> None:
    graph = graph_of(CHAIN)
    before = graph.to_model().SerializeToString()
    emulate(graph, {"x": 0.02, "relu": 0.03})
    assert graph.to_model().SerializeToString() == before


def test_one_layer_alone() -> None:
    nodes = [
        node("Conv", "x w b", "first"),
        node("Conv", "first w2", "second"),
    ]
    w2 = RNG.normal(size=(2, 3, 1, 1)).astype(np.float32)
    model = model_of(nodes, {"w": W1, "b": B1, "w2": w2}, X.shape, {"second": [1, 2, 5, 7]})
    scales = {"x": 0.02, "first": 0.04, "second": 0.05}
    (y,) = run(emulate_one(graph_of(model), "first", scales), X)
    first = int8(convolve(int8(X, 0.02), quantise_weights(W1, 0), B1), 0.04)
    expected = convolve(first, w2, np.zeros(2, np.float32))
    assert (np.abs(y - expected) > 1e-5).mean() < 0.05
    (z,) = run(emulate_one(graph_of(model), "second", scales), X)
    assert np.abs(z / np.float32(0.05) - np.rint(z / np.float32(0.05))).max() < 1e-4


@given(st.integers(0, 10**6), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_weights_are_rounded_filter_by_filter(seed: int, axis: int) -> None:
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(4, 3, 2, 5)).astype(np.float32)
    weights *= generator.uniform(1e-6, 1e6, (4, 3, 2, 5)).astype(np.float32) > 5e5
    rounded = quantise_weights(weights, axis)
    others = tuple(index for index in range(4) if index != axis)
    largest = np.abs(weights).max(axis=others, keepdims=True)
    np.testing.assert_allclose(np.abs(rounded).max(axis=others, keepdims=True), largest, rtol=1e-6)
    assert (np.abs(rounded - weights) <= largest / 254 * (1 + 1e-4)).all()


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "GemmT", "MatMul"])
def test_each_operator_s_filters_are_found(op: str) -> None:
    # the filters differ a thousandfold: with one step for all the small ones would vanish
    size = np.array([1, 1e-3, 1e3, 1e-2, 1e2], np.float32)
    base = RNG.uniform(0.5, 1, (5, 4)).astype(np.float32) * size[:, None]
    spatial = op.startswith("Conv")
    shape = [1, 4, 3, 3] if spatial else [1, 4]
    weights = {
        "Conv": base[:, :, None, None],
        "ConvTranspose": base.T[:, :, None, None],
        "Gemm": base.T,
        "GemmT": base,
        "MatMul": base.T,
    }[op]
    attributes = {"transB": 1} if op == "GemmT" else {}
    nodes = [node(op.rstrip("T") if op == "GemmT" else op, "x w", "y", **attributes)]
    out = [1, 5, 3, 3] if spatial else [1, 5]
    model = model_of(nodes, {"w": np.ascontiguousarray(weights)}, shape, {"y": out})
    x = np.ones(shape, np.float32)
    (exact,) = run(model, x)
    (y,) = run(emulate_one(graph_of(model), "y", {"x": 1.0, "y": 1e-6}), x)
    del y  # saturated: only the weights matter here
    graph = graph_of(model)
    emulated = emulate_one(graph, "y", {"x": 1.0, "y": float(exact.max()) / 127})
    constants = {item.name: item for item in emulated.graph.initializer}
    from onnx import numpy_helper

    (rounded,) = [numpy_helper.to_array(v) for k, v in constants.items() if "rounded" in k]
    np.testing.assert_allclose(rounded, weights, rtol=0.01)
