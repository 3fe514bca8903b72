from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import on_dla, ops, rewritten, untouched

from dla_perception.compiler.node_reading import attribute
from dla_perception.compiler.rewrites import stacked_pools


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_window_above_8_is_the_same_stack(data: st.DataObject) -> None:
    kernel = [data.draw(st.integers(1, 24)) for _ in range(2)]
    kernel[data.draw(st.integers(0, 1))] = data.draw(st.integers(9, 24))
    begin = [data.draw(st.integers(0, k - 1)) for k in kernel]
    end = [data.draw(st.integers(0, k - 1)) for k in kernel]
    strides = [data.draw(st.integers(1, 3)) for _ in range(2)]
    size = [data.draw(st.integers(max(1, k - b - e), 26)) for k, b, e in zip(kernel, begin, end)]
    net = Network((1, 2, *size), seed=data.draw(st.integers(0, 99)))
    net.add("MaxPool", "x", kernel_shape=kernel, pads=begin + end, strides=strides)
    graph = rewritten(net, stacked_pools, exactly=True)
    assert on_dla(graph)


@pytest.mark.parametrize(("kernel", "count"), [(9, 2), (11, 3), (13, 3), (17, 4), (21, 5)])
def test_odd_windows_with_full_padding_are_stacks_of_5(kernel: int, count: int) -> None:
    net = Network((1, 2, 20, 20))
    net.add("MaxPool", "x", kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)
    graph = rewritten(net, stacked_pools, exactly=True)
    sizes = [attribute(node, "kernel_shape")[0] for node in graph.nodes]
    assert len(sizes) == count
    assert set(sizes) <= {5, 3}
    assert sum(size - 1 for size in sizes) == kernel - 1


def test_spp_shares_its_pools() -> None:
    net = Network((1, 4, 13, 13))
    pools = [net.add("MaxPool", "x", kernel_shape=[k] * 2, pads=[k // 2] * 4) for k in (13, 9, 5)]
    net.add("Concat", "x", *pools, axis=1)
    graph = rewritten(net, stacked_pools, exactly=True, rounds=1)
    # 13 comes first here and can only use the pool of 5; with 5, 9, 13 three pools are enough
    assert ops(graph).count("MaxPool") <= 4
    ordered = Network((1, 4, 13, 13))
    pools = [
        ordered.add("MaxPool", "x", kernel_shape=[k] * 2, pads=[k // 2] * 4) for k in (5, 9, 13)
    ]
    ordered.add("Concat", "x", *pools, axis=1)
    assert ops(rewritten(ordered, stacked_pools, exactly=True)).count("MaxPool") == 3


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [8, 8]},
        {"kernel_shape": [9, 9], "dilations": [2, 2]},
        {"kernel_shape": [9, 9], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [9, 9], "outputs": 2},
    ],
)
def test_left_alone(attributes: dict[str, object]) -> None:
    net = Network((1, 2, 24, 24))
    net.add("MaxPool", "x", **attributes)  # type: ignore[arg-type]
    untouched(net, stacked_pools)


def test_yolox_nano(assets: Path) -> None:
    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import load_graph

    graph = load_graph(assets / "models" / "yolox_nano_416.onnx")
    assert stacked_pools.apply(graph, Target()) == ["MaxPool_172", "MaxPool_173"]
    assert ops(graph).count("MaxPool") == 3
