from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network, run
from rewrite_checks import on_dla

from dla_perception.compiler.dla_support import Target
from dla_perception.compiler.graph import Graph, load_graph
from dla_perception.compiler.rewrites.channel_padding import pad_channels

FP16, INT8 = Target(), Target(precision="int8")


def filled(network: Network, target: Target, *outputs: str) -> tuple[Graph, list[str]]:
    """The network with filled channels; what it computes must not change."""
    graph = network.graph(*outputs)
    x = network.random.normal(0, 1, graph.shape("x")).astype(np.float32)
    before = run(graph, x)
    changed = pad_channels(graph, target)
    graph.refresh()
    for one, other in zip(before, run(graph, x)):
        assert one.shape == other.shape
        np.testing.assert_allclose(other, one, atol=2e-5 * max(1.0, np.abs(one).max()))
    return graph, changed


def concat_inputs(graph: Graph) -> list[int]:
    return [
        graph.shape(name)[1]  # type: ignore[index]
        for node in graph.nodes
        if node.op_type == "Concat"
        for name in node.input
    ]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_joined_tensors_get_whole_vectors(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from([FP16, INT8]))
    vector = 16 if target is FP16 else 32
    net = Network((1, 3, 8, 8), seed=data.draw(st.integers(0, 99)))
    parts = []
    for _ in range(data.draw(st.integers(2, 3))):
        channels = data.draw(st.integers(1, 40))
        part = net.conv("x", 3, channels, 3, pads=[1] * 4, bias=data.draw(st.booleans()))
        for step in data.draw(st.lists(st.sampled_from("asdpru"), max_size=4)):
            if step == "a":
                part = net.add("Sigmoid", part)
            elif step == "s":
                part = net.add("Mul", part, net.add("Sigmoid", part))
            elif step == "d":
                part = net.conv(part, channels, channels, 3, channels, pads=[1] * 4)
            elif step == "p":
                part = net.add("MaxPool", part, kernel_shape=[3, 3], pads=[1] * 4)
            elif step == "r":
                part = net.add("Add", part, net.constant(net.random.normal(size=(channels, 1, 1))))
            else:
                part = net.add("Add", part, net.conv("x", 3, channels, 1))
        parts.append((part, channels))
    joined = net.add("Concat", *(part for part, _ in parts), axis=1)
    total = sum(channels for _, channels in parts)
    net.conv(net.add("Relu", joined), total, 5, 1)
    graph, _ = filled(net, target)
    assert all(count % vector == 0 for count in concat_inputs(graph))
    assert on_dla(graph)


def test_a_concat_of_a_concat() -> None:
    net = Network((1, 3, 8, 8))
    first = net.add("Concat", net.conv("x", 3, 5, 1), net.conv("x", 3, 7, 1), axis=1)
    second = net.add("Concat", net.add("Relu", first), net.conv(first, 12, 3, 1), axis=1)
    net.conv(second, 15, 4, 1)
    graph, changed = filled(net, FP16)
    assert sorted(concat_inputs(graph)) == [16, 16, 16, 32]
    assert len(changed) == 3


def test_a_resized_tensor_that_is_joined() -> None:
    net = Network((1, 3, 8, 8))
    small = net.conv("x", 3, 5, 2, strides=[2, 2])
    large = net.add("Resize", small, "", net.constant([1, 1, 2, 2]), mode="nearest")
    net.conv(net.add("Concat", large, net.conv("x", 3, 5, 1), axis=1), 10, 4, 1)
    graph, _ = filled(net, FP16)
    assert concat_inputs(graph) == [16, 16]


def joined(net: Network) -> str:
    return str(net.add("Concat", net.conv("x", 3, 5, 1), net.conv("x", 3, 7, 1), axis=1))


@pytest.mark.parametrize(
    "ending",
    [
        lambda net, t: t,
        lambda net, t: net.conv(net.add("Split", t, axis=1, outputs=2)[0], 6, 4, 1),
        lambda net, t: net.conv(net.add("Transpose", t, perm=[0, 1, 3, 2]), 12, 4, 1),
        lambda net, t: net.conv(t, 12, 4, 1, 2),
        lambda net, t: net.add("Softmax", t, axis=1),
    ],
    ids=["output", "split", "transpose", "groups", "softmax"],
)
def test_what_others_see_is_left_alone(ending: object) -> None:
    net = Network((1, 3, 8, 8))
    last = ending(net, joined(net))  # type: ignore[operator]
    graph, changed = filled(net, FP16, last)
    assert changed == []
    assert concat_inputs(graph) == [5, 7]


def test_one_part_that_is_an_output_keeps_its_channels() -> None:
    net = Network((1, 3, 8, 8))
    net.conv(joined(net), 12, 4, 1)
    graph, changed = filled(net, FP16, "t0", "t3")
    assert concat_inputs(graph) == [5, 16]
    assert changed == ["Conv_1"]


def test_nothing_to_join_is_nothing_to_fill() -> None:
    net = Network((1, 3, 8, 8))
    net.conv(net.conv("x", 3, 5, 1), 5, 7, 1)
    assert filled(net, FP16)[1] == []


def test_yolox_nano_in_int8(assets: Path, tmp_path: Path) -> None:
    from dla_perception.cli.main import main

    out = tmp_path / "out.onnx"
    model = assets / "models" / "yolox_nano_416.onnx"
    options = ["--labels", "coco", "--precision", "int8", "--fill-channels"]
    assert main(["prepare", str(model), "-o", str(out), *options]) == 0
    graph = load_graph(out)
    assert all(count % 32 == 0 for count in concat_inputs(graph))
    assert graph.shape("1062") == (1, 4, 52, 52)
