"""What counts as one layer, and which tensors share a scale on a DLA."""

from __future__ import annotations

import numpy as np
import onnx
from quantization_networks import graph_of, model_of, node

from dla_perception.compiler.graph import Graph
from dla_perception.compiler.quantization.layers import activations, find_layers, tail_of
from dla_perception.compiler.quantization.unification import groups_of, unify

W = np.ones((4, 4, 1, 1), np.float32)
SHAPE = [1, 4, 8, 8]


def names(graph: Graph) -> list[list[str]]:
    return [[part.name for part in layer.nodes] for layer in find_layers(graph)]


def test_activations_are_fused_into_convolutions_and_sums() -> None:
    nodes = [
        node("Conv", "x w", "conv1"),
        node("Sigmoid", "conv1", "gate"),
        node("Mul", "conv1 gate", "silu"),
        node("Conv", "silu w", "conv2"),
        node("BatchNormalization", "conv2 v v v v", "norm"),
        node("Relu", "norm", "relu"),
        node("Add", "relu silu", "sum"),
        node("Clip", "sum zero six", "relu6"),
        node("MaxPool", "relu6", "pool", kernel_shape=[2, 2]),
        node("Relu", "pool", "y"),
    ]
    constants = {"w": W, "v": np.ones(4, np.float32), "zero": np.float32(0), "six": np.float32(6)}
    graph = graph_of(model_of(nodes, constants, SHAPE, {"y": None}))
    assert names(graph) == [
        ["conv1", "gate", "silu"],
        ["conv2", "norm", "relu"],
        ["sum", "relu6"],
        ["pool"],
        ["y"],
    ]
    layers = find_layers(graph)
    assert (layers[2].inputs, layers[2].outputs) == (("relu", "silu"), ("relu6",))
    assert layers[0].in_int8({"x": 1.0, "silu": 1.0})
    assert not layers[0].in_int8({"x": 1.0, "conv1": 1.0})


def test_values_that_others_read_are_not_fused_away() -> None:
    nodes = [
        node("Conv", "x w", "conv1"),
        node("Relu", "conv1", "relu"),
        node("Add", "conv1 relu", "y"),
        node("Conv", "y w", "conv2"),
        node("Relu", "conv2", "relu2"),
    ]
    graph = graph_of(model_of(nodes, {"w": W}, SHAPE, {"conv2": None, "relu2": None}))
    assert names(graph) == [["conv1"], ["relu"], ["y"], ["conv2"], ["relu2"]]


def pyramid() -> onnx.ModelProto:
    """A pyramid with every operator that ties scales."""
    nodes = [
        node("Conv", "x w", "a"),
        node("MaxPool", "a", "b", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Conv", "b w", "c"),
        node("Concat", "b c", "d", axis=1),
        node("Conv", "d w2", "e"),
        node("Add", "e c", "f"),
        node("Resize", "f  scales".replace("  ", " roi "), "g", mode="nearest"),
        node("Conv", "g w", "h"),
        node("Sigmoid", "h", "i"),
        node("Concat", "h i", "y", axis=1),
    ]
    constants = {
        "w": W,
        "w2": np.ones((4, 8, 1, 1), np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "roi": np.zeros(0, np.float32),
    }
    return model_of(nodes, constants, SHAPE, {"y": None})


def test_groups() -> None:
    groups = groups_of(graph_of(pyramid()))
    assert sorted(sorted(group) for group in groups) == [
        ["a", "b", "c", "d", "e"],  # the pool, the concatenation and the sum, by way of c
        ["f", "g"],
        ["h", "i", "y"],
    ]


def test_unify_takes_the_largest_and_tells_what_changed() -> None:
    graph = graph_of(pyramid())
    scales = {"a": 0.5, "c": 2.0, "f": 1.0, "x": 9.0}
    unified, changes = unify(graph, scales)
    assert unified == {"a": 2.0, "c": 2.0, "f": 1.0, "x": 9.0}
    assert [(c.tensor, c.before, c.after) for c in changes] == [("a", 0.5, 2.0)]
    unified, changes = unify(graph, scales, complete=True)
    assert unified == {**scales, "a": 2.0, "b": 2.0, "d": 2.0, "e": 2.0, "g": 1.0}
    assert {(c.tensor, c.before) for c in changes} == {
        ("a", 0.5), ("b", None), ("d", None), ("e", None), ("g", None)
    }  # fmt: skip
    again, nothing = unify(graph, unified, complete=True)
    assert (again, nothing) == (unified, [])


def test_the_tail_is_what_no_weights_read() -> None:
    graph = graph_of(pyramid())
    assert tail_of(graph, find_layers(graph)) == {"h", "i", "y"}
    assert activations(graph) == ["x", *"abcdefghi", "y"]
