from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import ORIN, ORIN_85, XAVIER, on_dla, ops, rewritten, untouched

from dla_perception.compiler.node_reading import window
from dla_perception.compiler.rewrites import global_pools

SIZES = st.tuples(st.integers(1, 70), st.integers(1, 70))


@settings(max_examples=60, deadline=None)
@given(size=SIZES, seed=st.integers(0, 99))
def test_average_of_a_plane(size: tuple[int, int], seed: int) -> None:
    net = Network((1, 3, *size), seed=seed)
    net.add("GlobalAveragePool", "x")
    graph = rewritten(net, global_pools, target=XAVIER)
    assert on_dla(graph, XAVIER)
    assert set(ops(graph)) <= {"AveragePool", "Mul"}
    for node in graph.nodes:
        if node.op_type == "AveragePool":
            found = window(graph, node)
            assert found is not None
            assert max(found.kernel) <= 8


@settings(max_examples=40, deadline=None)
@given(size=SIZES, seed=st.integers(0, 99), reduce=st.booleans())
def test_maximum_of_a_plane(size: tuple[int, int], seed: int, reduce: bool) -> None:
    net = Network((1, 3, *size), seed=seed)
    net.add("ReduceMax", "x", axes=[2, 3]) if reduce else net.add("GlobalMaxPool", "x")
    graph = rewritten(net, global_pools, target=ORIN_85, exactly=True)
    assert on_dla(graph, ORIN_85)


@settings(max_examples=60, deadline=None)
@given(
    op=st.sampled_from(["ReduceMean", "ReduceSum"]),
    axes=st.sets(st.sampled_from([1, 2, 3]), min_size=1),
    negative=st.booleans(),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 20), st.integers(1, 20)),
)
def test_means_and_sums(op: str, axes: set[int], negative: bool, shape: tuple[int, ...]) -> None:
    net = Network(shape, opset=11)
    net.add(op, "x", axes=[axis - 4 if negative else axis for axis in axes])
    graph = rewritten(net, global_pools)
    assert on_dla(graph)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceMax"])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_every_opset_and_dropped_dimensions(op: str, opset: int) -> None:
    net = Network((1, 3, 13, 11), opset)
    as_input = (opset >= 13 and op == "ReduceSum") or opset >= 18
    if as_input:
        net.add(op, "x", net.constant([2, 3], np.int64), keepdims=0)
    else:
        net.add(op, "x", axes=[2, 3], keepdims=0)
    graph = rewritten(net, global_pools, target=ORIN_85)
    assert ops(graph)[-1] == "Reshape"
    assert graph.shape(graph.outputs[0]) == (1, 3)


def test_sizes_that_divide_need_no_padding() -> None:
    net = Network((1, 3, 20, 48))
    net.add("GlobalAveragePool", "x")
    graph = rewritten(net, global_pools)
    assert ops(graph) == ["AveragePool", "AveragePool"]
    assert all(not any(window(graph, node).pads) for node in graph.nodes)  # type: ignore[union-attr]


def test_left_alone() -> None:
    net = Network((1, 3, 8, 8))
    net.add("GlobalMaxPool", "x")
    untouched(net, global_pools, target=ORIN)
    for op, axes in (("ReduceMean", [0, 2]), ("ReduceMax", [1, 2]), ("ReduceMin", [2, 3])):
        net = Network((1, 3, 8, 8), opset=11)
        net.add(op, "x", axes=axes)
        untouched(net, global_pools, target=ORIN_85)
    net = Network((3, 8, 8))
    net.add("ReduceMean", "x", axes=[1, 2])
    untouched(net, global_pools)
