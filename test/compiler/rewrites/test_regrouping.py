from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import ORIN, ORIN_85, XAVIER, on_dla, ops, rewritten, untouched

from dla_perception.compiler.node_reading import attribute
from dla_perception.compiler.rewrites import regrouping


def strided(net: Network, x: str, starts: list[int], step: int, at_once: bool) -> str:
    """x[..., starts[0]::step, starts[1]::step]."""

    def cut(tensor: str, axes: list[int], begins: list[int]) -> str:
        ends = net.constant([10**6] * len(axes), np.int64)
        bounds = [net.constant(begins, np.int64), ends, net.constant(axes, np.int64)]
        return str(net.add("Slice", tensor, *bounds, net.constant([step] * len(axes), np.int64)))

    if at_once:
        return cut(x, [2, 3], starts)
    return cut(cut(x, [2], starts[:1]), [3], starts[1:])


def focus(net: Network, x: str, step: int, order: list[int], at_once: bool = False) -> str:
    parts = [strided(net, x, [i % step, i // step], step, at_once) for i in order]
    return str(net.add("Concat", *parts, axis=1))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_focus_with_its_convolution_is_one_convolution(data: st.DataObject) -> None:
    step = data.draw(st.integers(2, 3))
    order = data.draw(st.permutations(range(step * step)))
    channels = data.draw(st.integers(1, 3))
    size = [step * data.draw(st.integers(3, 6)) for _ in range(2)]
    net = Network((1, channels, *size), seed=data.draw(st.integers(0, 99)))
    joined = focus(net, "x", step, order, data.draw(st.booleans()))
    kernel = data.draw(st.integers(1, 3))
    pads = [data.draw(st.integers(0, kernel - 1)) for _ in range(4)]
    net.conv(
        joined,
        channels * step * step,
        4,
        kernel,
        pads=pads,
        strides=[data.draw(st.integers(1, 2)) for _ in range(2)],
    )
    graph = rewritten(net, regrouping)
    assert ops(graph) == ["Conv"]
    assert on_dla(graph)


@pytest.mark.parametrize("dilation", [1, 2])
def test_focus_before_a_dilated_convolution(dilation: int) -> None:
    net = Network((1, 3, 16, 16))
    joined = focus(net, "x", 2, [0, 1, 2, 3])
    net.conv(joined, 12, 4, 3, pads=[dilation] * 4, dilations=[dilation] * 2)
    assert ops(rewritten(net, regrouping)) == ["Conv"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_selections_that_leave_a_border_out_meet_padding(data: st.DataObject) -> None:
    """Zero padding of what was cut out is not zero padding of the whole: both ways are the same."""
    step, count = data.draw(st.integers(2, 3)), data.draw(st.integers(2, 4))
    size = step * count + 6
    net = Network((1, 2, size, size), seed=data.draw(st.integers(0, 99)))
    parts = []
    for _ in range(2):
        starts = [data.draw(st.integers(0, 6)) for _ in range(2)]
        ends = [start + step * (count - 1) + 1 for start in starts]
        bounds = [net.constant(values, np.int64) for values in (starts, ends, [2, 3], [step] * 2)]
        parts.append(net.add("Slice", "x", *bounds))
    joined = net.add("Concat", *parts, axis=1)
    net.conv(joined, 4, 3, 2, pads=[data.draw(st.integers(0, 1)) for _ in range(4)])
    graph = net.graph()
    if regrouping.apply(graph, ORIN):
        rewritten(net, regrouping)


def test_the_kernel_of_a_focus_block_is_6x6_with_stride_2() -> None:
    net = Network((1, 3, 16, 16))
    net.conv(focus(net, "x", 2, [0, 1, 2, 3]), 12, 16, 3, pads=[1] * 4)
    (conv,) = rewritten(net, regrouping).nodes
    assert attribute(conv, "kernel_shape") == [6, 6]
    assert attribute(conv, "strides") == [2, 2]
    assert attribute(conv, "pads") == [2, 2, 2, 2]


def test_focus_that_others_read_too_is_a_convolution_of_its_own() -> None:
    net = Network((1, 3, 16, 16))
    joined = focus(net, "x", 2, [0, 1, 2, 3])
    net.conv(joined, 12, 4, 3)
    net.add("Relu", joined)
    graph = rewritten(net, regrouping, net.nodes[-2].output[0], net.nodes[-1].output[0])
    assert sorted(ops(graph)) == ["Conv", "Conv", "Relu"]
    assert on_dla(graph)


def test_focus_as_an_output_is_exact() -> None:
    net = Network((1, 3, 16, 16))
    focus(net, "x", 2, [3, 1, 0, 2])
    assert ops(rewritten(net, regrouping, exactly=True)) == ["Conv"]


def shuffle(net: Network, x: str, shape: tuple[int, ...], groups: int, five: bool) -> str:
    """ShuffleNet's channel shuffle with 5 dimensions, or 3 with the batch mixed in."""
    n, c, h, w = shape
    if five:
        wide = net.add("Reshape", x, net.constant([n, groups, c // groups, h, w], np.int64))
        turned = net.add("Transpose", wide, perm=[0, 2, 1, 3, 4])
    else:
        wide = net.add("Reshape", x, net.constant([groups, c // groups, n * h * w], np.int64))
        turned = net.add("Transpose", wide, perm=[1, 0, 2])
    return str(net.add("Reshape", turned, net.constant([n, c, h, w], np.int64)))


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(2, 4),
    each=st.integers(1, 4),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    five=st.booleans(),
    follower=st.sampled_from(["none", "conv", "depthwise"]),
)
def test_channel_shuffles(
    groups: int, each: int, size: tuple[int, int], five: bool, follower: str
) -> None:
    channels = groups * each
    net = Network((1, channels, *size))
    tensor = shuffle(net, net.add("Relu", "x"), (1, channels, *size), groups, five)
    if follower == "conv":
        net.conv(tensor, channels, 3, 1)
    elif follower == "depthwise":
        net.conv(tensor, channels, channels, 1, channels)
    else:
        net.add("Relu", tensor)
    graph = net.graph()
    if on_dla(graph):
        return
    graph = rewritten(net, regrouping)
    assert on_dla(graph)
    if follower == "conv":
        assert ops(graph) == ["Relu", "Conv"]


@settings(max_examples=40, deadline=None)
@given(
    block=st.integers(2, 3),
    channels=st.integers(1, 3),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    mode=st.sampled_from(["DCR", "CRD"]),
)
def test_depth_to_space_is_a_transposed_convolution(
    block: int, channels: int, size: tuple[int, int], mode: str
) -> None:
    net = Network((1, channels * block**2, *size))
    net.add("DepthToSpace", "x", blocksize=block, mode=mode)
    graph = rewritten(net, regrouping, exactly=True)
    assert on_dla(graph)
    assert ops(graph)[0] in ("ConvTranspose", "Conv", "Slice")


@settings(max_examples=30, deadline=None)
@given(
    block=st.integers(2, 4),
    channels=st.integers(1, 3),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_space_to_depth_is_a_convolution(block: int, channels: int, size: tuple[int, int]) -> None:
    net = Network((1, channels, size[0] * block, size[1] * block))
    net.add("SpaceToDepth", "x", blocksize=block)
    assert ops(rewritten(net, regrouping, exactly=True)) == ["Conv"]


def test_pixel_shuffle_as_exported_by_torch() -> None:
    net = Network((1, 8, 4, 5))
    wide = net.add("Reshape", "x", net.constant([1, 2, 2, 2, 4, 5], np.int64))
    turned = net.add("Transpose", wide, perm=[0, 1, 4, 2, 5, 3])
    net.add("Reshape", turned, net.constant([1, 2, 8, 10], np.int64))
    assert ops(rewritten(net, regrouping, exactly=True)) == ["ConvTranspose"]


@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(-5, 4), min_size=1, max_size=8))
def test_picked_channels(indices: list[int]) -> None:
    net = Network((1, 5, 4, 4))
    net.add("Gather", "x", net.constant(indices, np.int64), axis=1)
    graph = rewritten(net, regrouping, exactly=True)
    assert on_dla(graph)
    positive = [index % 5 for index in indices]
    run = positive == list(range(positive[0], positive[0] + len(positive)))
    assert ops(graph) == (["Slice"] if run else ["Conv"])


def test_a_shuffle_of_which_one_half_goes_elsewhere(assets: Path) -> None:
    """FastestDet: the halves of a shuffle go to a convolution and to the next Concat."""
    from dla_perception.compiler.graph import load_graph
    from dla_perception.compiler.placement import place

    graph = load_graph(assets / "models" / "fastestdet_352.onnx")
    from onnx_networks import run

    x = np.random.default_rng(0).uniform(0, 1, (1, 3, 352, 352)).astype(np.float32)
    before = run(graph, x)[0]
    assert len(regrouping.apply(graph, ORIN)) == 65
    graph.refresh()
    assert sorted({layer.op for layer in place(graph, ORIN).on("gpu")}) == ["Pad"]
    np.testing.assert_allclose(run(graph, x)[0], before, atol=1e-4)


def halves(opset: int = 13) -> Network:
    net = Network((1, 4, 6, 6), opset)
    left, right = net.add("Split", "x", axis=1, outputs=2)
    net.add("Concat", right, left, axis=1)
    return net


def test_what_a_dla_takes_is_left_alone() -> None:
    untouched(halves(), regrouping)
    net = Network((1, 4, 6, 6))
    net.add("Concat", net.add("Relu", "x"), net.add("Sigmoid", "x"), axis=1)
    untouched(net, regrouping)


@pytest.mark.parametrize("target", [ORIN, ORIN_85, XAVIER])
def test_moves_that_are_no_regrouping_are_left_alone(target: Any) -> None:
    net = Network((1, 4, 6, 8))
    net.add("Relu", net.add("Flatten", net.add("Relu", "x")))
    untouched(net, regrouping, target=target)
    turned = Network((1, 4, 6, 8))
    turned.add("Relu", turned.add("Transpose", turned.add("Relu", "x"), perm=[0, 2, 3, 1]))
    untouched(turned, regrouping, target=target)


def test_a_batch_is_kept_apart() -> None:
    net = Network((2, 3, 8, 8))
    focus(net, "x", 2, [0, 1, 2, 3])
    assert ops(rewritten(net, regrouping, exactly=True)) == ["Conv"]


def test_a_merged_kernel_above_32_is_not_made() -> None:
    net = Network((1, 1, 45, 45))
    net.conv(focus(net, "x", 3, list(range(9))), 9, 2, 12)
    graph = rewritten(net, regrouping)
    assert [graph.shape(node.input[1])[2:] for node in graph.nodes] == [(3, 3), (12, 12)]  # type: ignore[index]
    assert on_dla(graph)


def test_cells_that_are_regrouped_in_two_ways_are_left_alone() -> None:
    net = Network((1, 4, 2, 2))
    wide = net.add("DepthToSpace", "x", blocksize=2)
    bounds = [[net.constant([value], np.int64) for value in part] for part in ((0, 2), (2, 4))]
    axis = net.constant([2], np.int64)
    upper, lower = (net.add("Slice", wide, start, end, axis) for start, end in bounds)
    swapped = net.add("Gather", lower, net.constant([1, 0, 3, 2], np.int64), axis=3)
    net.add("Concat", upper, swapped, axis=2)
    graph = rewritten(net, regrouping, exactly=True)  # the DepthToSpace in it is mended
    assert "Gather" in ops(graph)
