"""Cutting a network into pieces for DLA and GPU, and what moves between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx_networks import Network

from dla_perception.compiler import placement as placement_module
from dla_perception.compiler.dla_support import Certainty, Finding, SubgraphLimit, Target
from dla_perception.compiler.graph import Graph, load_graph
from dla_perception.compiler.placement import Placement, place, tensor_bytes

ORIN = Target("orin", "10.3")
PLANE = (1, 16, 8, 8)
PLANE_BYTES = 16 * 8 * 8 * 2


def placed(network: Network, *outputs: str, target: Target = ORIN) -> Placement:
    return place(network.graph(*outputs), target)


def devices(placement: Placement) -> dict[str, str]:
    return {layer.name: layer.device for layer in placement.layers}


def pieces(placement: Placement) -> list[tuple[str, tuple[str, ...]]]:
    return [(piece.device, piece.layers) for piece in placement.pieces]


# --- the real networks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "tensorrt"), [("xavier", "8.5"), ("orin", "8.5"), ("orin", "8.6"), ("orin", "10.3")]
)
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_yolox_nano_has_the_published_verdicts(
    assets: Path, module: str, tensorrt: str, precision: str
) -> None:
    graph = load_graph(assets / "models" / "yolox_nano_416.onnx")
    placement = place(graph, Target(module, tensorrt, precision))
    where = devices(placement)
    on_gpu = {name for name, device in where.items() if device == "gpu"}
    focus = {f"Slice_{n}" for n in (4, 9, 14, 19, 24, 29, 34, 39)}
    head = {"Reshape_405", "Reshape_413", "Reshape_421", "Concat_422", "Transpose_423"}
    assert on_gpu == focus | head | {"MaxPool_172", "MaxPool_173"}
    assert where["MaxPool_171"] == where["Resize_201"] == where["Concat_40"] == "dla"
    assert len(placement.on("dla")) == 354
    assert placement.dla_subgraphs == 2
    assert not placement.runs_entirely_on_dla


def test_quantised_yolox_nano_is_cut_to_pieces_by_its_q_dq_nodes(assets: Path) -> None:
    graph = load_graph(assets / "models" / "yolox_nano_416_ptq_qdq.onnx")
    placement = place(graph, ORIN)
    for layer in placement.layers:
        if layer.op == "QuantizeLinear":
            assert layer.device == "gpu"
    assert placement.dla_subgraphs == 16  # as many as a core holds; the rest went to the GPU
    assert sum("holds 16 subgraphs" in layer.reason for layer in placement.layers) > 100


def test_fastestdet_shuffles_channels_on_the_gpu(assets: Path) -> None:
    placement = place(load_graph(assets / "models" / "fastestdet_352.onnx"), ORIN)
    gpu = sorted({layer.op for layer in placement.on("gpu")})
    assert gpu == ["Gather", "Pad", "Reshape", "Transpose"]
    assert placement.dla_subgraphs == 14


# --- the structures of YOLO networks -------------------------------------------------------------


def conv_bn_silu() -> Network:
    network = Network((1, 3, 16, 16))
    conv = network.conv("x", 3, 8, pads=[1] * 4, bias=False)
    stats = [network.constant(np.full(8, value)) for value in (1.5, 0.1, 0.2, 0.9)]
    norm = network.add("BatchNormalization", conv, *stats)
    network.add("Mul", norm, network.add("Sigmoid", norm))
    return network


def test_convolution_batch_norm_and_silu() -> None:
    placement = placed(conv_bn_silu())
    assert devices(placement) == {
        "Conv_0": "dla",
        "BatchNormalization_1": "folded",
        "Sigmoid_2": "dla",
        "Mul_3": "dla",
    }
    assert placement.layers[1].reason == "becomes part of 'Conv_0'"
    assert placement.runs_entirely_on_dla
    assert placement.dla_subgraphs == 1


def test_batch_norm_of_a_shared_convolution_is_a_layer_of_its_own() -> None:
    network = conv_bn_silu()
    network.add("Relu", "t0")
    placement = placed(network, "t3", "t4")
    assert devices(placement)["BatchNormalization_1"] == "dla"


def spp() -> Network:
    network = Network(PLANE)
    pools = [
        network.add("MaxPool", "x", kernel_shape=[k, k], pads=[k // 2] * 4) for k in (5, 9, 13)
    ]
    network.add("Concat", "x", *pools, axis=1)
    return network


def test_spp() -> None:
    placement = placed(spp())
    assert devices(placement) == {
        "MaxPool_0": "dla",
        "MaxPool_1": "gpu",
        "MaxPool_2": "gpu",
        "Concat_3": "dla",
    }
    assert placement.layers[2].reason == ("window 13x13: pooling windows are 1 to 8")
    assert placement.traffic_bytes == 2 * PLANE_BYTES


def test_sppf_is_all_on_the_dla() -> None:
    network = Network(PLANE)
    pool, pools = "x", []
    for _ in range(3):
        pool = network.add("MaxPool", pool, kernel_shape=[5, 5], pads=[2] * 4)
        pools.append(pool)
    network.add("Concat", "x", *pools, axis=1)
    assert placed(network).runs_entirely_on_dla


def test_c2f_split_is_all_on_the_dla() -> None:
    network = Network(PLANE)
    left, right = network.add("Split", "x", axis=1, outputs=2)
    network.add("Concat", left, right, network.conv(right, 8, 8, pads=[1] * 4), axis=1)
    assert placed(network).runs_entirely_on_dla


@pytest.mark.parametrize(("scales", "on_dla"), [(True, True), (False, False)])
def test_upsample_by_scales_or_sizes(scales: bool, on_dla: bool) -> None:
    network = Network(PLANE)
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if scales:
        network.add("Resize", "x", "", network.constant([1, 1, 2, 2]), **how)
    else:
        sizes = network.constant([1, 16, 16, 16], np.int64)
        network.add("Resize", "x", "", "", sizes, **how)
    assert placed(network).runs_entirely_on_dla == on_dla


def test_darknet_pool_with_padding_on_one_side_is_a_caution() -> None:
    network = Network(PLANE)
    network.add("MaxPool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    placement = placed(network)
    assert placement.runs_entirely_on_dla
    assert placement.layers[0].reason == (
        "padding 0x0x1x1 differs between the sides: allowed by the numbers, unproven"
    )


@pytest.mark.parametrize("parts", [False, True])
def test_mish_is_named(parts: bool) -> None:
    network = Network(PLANE)
    softplus = network.add("Softplus", "x")
    if parts:
        exp = network.add("Exp", "x")
        softplus = network.add("Log", network.add("Add", exp, network.constant(1.0)))
    network.add("Mul", "x", network.add("Tanh", softplus))
    placement = placed(network)
    reasons = [layer.reason for layer in placement.on("gpu")]
    assert all(reason.endswith("(part of Mish)") for reason in reasons)
    assert len(reasons) == (2 if parts else 1)


def test_head_with_grid_arithmetic_is_on_the_gpu() -> None:
    network = Network((1, 255, 8, 8))
    shape = network.constant([1, 3, 85, 8, 8], np.int64)
    network.add("Transpose", network.add("Reshape", "x", shape), perm=[0, 1, 3, 4, 2])
    network.add("Add", network.add("Sigmoid", "t1"), network.constant(np.ones((1, 1, 8, 8, 1))))
    assert {layer.device for layer in placed(network).layers} == {"gpu"}


def test_dfl_softmax_is_on_the_gpu() -> None:
    network = Network((1, 64, 8400))
    shape = network.constant([1, 4, 16, 8400], np.int64)
    network.add("Transpose", network.add("Reshape", "x", shape), perm=[0, 2, 1, 3])
    network.add(
        "Conv",
        network.add("Softmax", "t1", axis=1),
        network.constant(np.arange(16).reshape(1, 16, 1, 1)),
    )
    assert set(devices(placed(network)).values()) == {"gpu"}


def test_attention_is_on_the_gpu() -> None:
    network = Network((1, 2, 32, 50))
    turned = network.add("Transpose", "x", perm=[0, 1, 3, 2])
    network.add("Softmax", network.add("MatMul", turned, "x"), axis=3)
    where = devices(placed(network))
    assert where["MatMul_1"] == "gpu"


# --- cutting -------------------------------------------------------------------------------------


def chain(*ops: str) -> Network:
    """Relu runs on the DLA, Elu does not."""
    network = Network(PLANE)
    tensor = "x"
    for op in ops:
        tensor = network.add(op, tensor)
    return network


def test_a_gpu_layer_in_the_middle_makes_two_dla_pieces() -> None:
    placement = placed(chain("Relu", "Elu", "Relu"))
    assert pieces(placement) == [
        ("dla", ("Relu_0",)),
        ("gpu", ("Elu_1",)),
        ("dla", ("Relu_2",)),
    ]
    assert placement.crossings == {"t0": PLANE_BYTES, "t1": PLANE_BYTES}
    assert [layer.crossing_bytes for layer in placement.layers] == [
        PLANE_BYTES,
        2 * PLANE_BYTES,
        PLANE_BYTES,
    ]


def test_what_does_not_wait_for_the_gpu_stays_in_one_piece() -> None:
    network = Network(PLANE)
    left = network.add("Relu", "x")
    network.add("Elu", "x")
    network.add("Add", left, "t1")
    assert pieces(placed(network)) == [("gpu", ("Elu_1",)), ("dla", ("Relu_0", "Add_2"))] or pieces(
        placed(network)
    ) == [("dla", ("Relu_0", "Add_2")), ("gpu", ("Elu_1",))]


def test_a_detour_over_the_gpu_keeps_the_pieces_apart() -> None:
    network = Network(PLANE)
    left = network.add("Relu", "x")
    network.add("Elu", left)
    network.add("Add", left, "t1")
    assert placed(network).dla_subgraphs == 2


def test_a_tensor_read_twice_on_the_other_side_is_counted_once() -> None:
    network = chain("Relu", "Elu")
    network.add("Selu", "t0")
    placement = placed(network, "t1", "t2")
    assert placement.crossings == {"t0": PLANE_BYTES}


def test_unconnected_networks_are_pieces_of_their_own() -> None:
    network = Network(PLANE)
    network.add("Relu", "x")
    network.add("Relu", network.input("y", PLANE))
    placement = placed(network, "t0", "t1")
    assert placement.dla_subgraphs == 2
    assert placement.runs_entirely_on_dla


def test_another_batch_is_another_piece() -> None:
    network = Network((2, 16, 8, 8))
    network.add("Relu", "x")
    network.add("Relu", network.input("y", PLANE))
    network.add("Concat", "t0", "t1", axis=0)
    placement = placed(network)
    assert pieces(placement)[:2] == [("dla", ("Relu_0",)), ("dla", ("Relu_1",))]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pieces_hold_every_layer_once_and_never_wait_in_a_circle(data: Any) -> None:
    network = Network(PLANE)
    tensors = ["x"]
    for _ in range(data.draw(st.integers(1, 14))):
        op = data.draw(st.sampled_from(["Relu", "Elu", "Add"]))
        inputs = [data.draw(st.sampled_from(tensors)) for _ in range(2 if op == "Add" else 1)]
        tensors.append(network.add(op, *inputs))
    graph = network.graph()
    placement = place(graph, ORIN)
    where = devices(placement)
    held = [name for piece in placement.pieces for name in piece.layers]
    assert sorted(held) == sorted(node.name for node in graph.nodes)
    piece_of = {name: i for i, piece in enumerate(placement.pieces) for name in piece.layers}
    made_by = {name: node.name for node in graph.nodes for name in node.output}
    waits: dict[int, set[int]] = {}
    for node in graph.nodes:
        assert where[node.name] == placement.pieces[piece_of[node.name]].device
        for name in node.input:
            if name in made_by and piece_of[made_by[name]] != piece_of[node.name]:
                waits.setdefault(piece_of[node.name], set()).add(piece_of[made_by[name]])
    done: set[int] = set()
    while len(done) < len(placement.pieces):
        ready = [
            i for i in range(len(placement.pieces)) if i not in done and waits.get(i, set()) <= done
        ]
        assert ready, "two pieces wait for each other"
        done.update(ready)


# --- limits --------------------------------------------------------------------------------------


def limited(monkeypatch: pytest.MonkeyPatch, quantity: str, limit: int) -> None:
    rule = SubgraphLimit(quantity, limit, f"at most {limit} of {quantity}", "test")
    monkeypatch.setattr(placement_module, "SUBGRAPH_LIMITS", (rule,))


def alternating(count: int) -> Network:
    return chain(*(["Relu", "Elu"] * count)[:-1])


def test_sixteen_subgraphs_fit_and_the_seventeenth_goes_to_the_gpu() -> None:
    assert placed(alternating(16)).dla_subgraphs == 16
    beyond = placed(alternating(17))
    assert beyond.dla_subgraphs == 16
    assert beyond.layers[-1].device == "gpu"
    assert beyond.layers[-1].reason == (
        "a DLA core holds 16 subgraphs at a time, and the network is cut into more"
    )


@pytest.mark.parametrize(("count", "told"), [(4, False), (5, True)])
def test_more_than_four_subgraphs_are_a_caution_before_tensorrt_10(count: int, told: bool) -> None:
    placement = placed(alternating(count), target=Target("orin", "8.6"))
    assert any("4 subgraphs at a time" in finding.reason for finding in placement.cautions) == told
    assert not placed(alternating(count)).cautions


@pytest.mark.parametrize(("limit", "where"), [(401, "dla"), (400, "gpu")])
def test_weights_of_a_subgraph(monkeypatch: pytest.MonkeyPatch, limit: int, where: str) -> None:
    limited(monkeypatch, "weight_bytes", limit)
    network = Network((1, 10, 4, 4))
    network.conv(network.conv("x", 10, 10, 1, bias=False), 10, 10, 1, bias=False)
    placement = placed(network)  # 100 weights each, 2 bytes
    assert [layer.device for layer in placement.layers] == ["dla", where]


def test_weights_in_int8_take_half_the_room() -> None:
    network = Network((1, 10, 4, 4))
    network.conv("x", 10, 10, 1, bias=False)
    assert placed(network).pieces[0].weight_bytes == 200
    assert placed(network, target=Target("orin", "10.3", "int8")).pieces[0].weight_bytes == 100


def test_a_network_too_large_for_one_subgraph_is_refused() -> None:
    network = Network((1, 16, 4, 4))
    network.conv("x", 16, 8, 1, bias=False)
    graph = network.graph()
    graph.constants["c0"] = np.broadcast_to(np.float32(1), (8, 16 << 21, 1, 1))  # 512 MiB in FP16
    layer = place(graph, ORIN).layers[0]
    assert layer.device == "gpu"
    assert layer.reason == "the weights of one DLA subgraph stay under 512 MiB"


@pytest.mark.parametrize(
    ("limit", "where"), [(2 * PLANE_BYTES + 1, "dla"), (2 * PLANE_BYTES, "gpu")]
)
def test_tensors_alive_in_a_subgraph(
    monkeypatch: pytest.MonkeyPatch, limit: int, where: str
) -> None:
    limited(monkeypatch, "tensor_bytes", limit)
    placement = placed(chain("Relu", "Sigmoid", "Tanh"))
    # while Sigmoid runs, the results of Relu and Sigmoid are alive; input and output lie outside
    assert [layer.device for layer in placement.layers] == ["dla", where, "dla"]


@pytest.mark.parametrize(
    ("shape", "precision", "size"),
    [
        ((1, 255, 84, 84), "fp16", 16 * 84 * 84 * 16 * 2),
        ((1, 255, 84, 84), "int8", 8 * 84 * 84 * 32),
        ((2, 16, 4, 4), "fp16", 2 * 16 * 16 * 2),
        ((1, 3, 85, 8, 8), "fp16", 3 * 96 * 64 * 2),
        ((85, 100), "fp16", 85 * 112 * 2),
        ((1, 4, 8), "int8", 32 * 4 * 8),
    ],
)
def test_bytes_in_the_shared_format(shape: tuple[int, ...], precision: str, size: int) -> None:
    assert tensor_bytes(shape, precision) == size


# --- what a builder drops, folds and overrules ---------------------------------------------------


def test_dropped_and_folded_nodes_are_listed_in_the_order_of_the_file() -> None:
    network = Network(PLANE, opset=11)
    network.add("Relu", "x")
    network.add("Dropout", "t0")
    network.add("Cast", "t1", to=TensorProto.FLOAT)
    table = network.add("Exp", network.constant(np.ones((16, 1, 1))))
    network.add("Add", "t2", table)
    network.add("Reshape", "t4", network.constant(PLANE, np.int64))
    placement = placed(network)
    assert [(layer.op, layer.device, layer.reason) for layer in placement.layers] == [
        ("Relu", "dla", ""),
        ("Dropout", "folded", "does nothing at run time"),
        ("Cast", "folded", "casts to the type it has"),
        ("Exp", "folded", "a constant, computed at build time"),
        ("Add", "dla", ""),
        ("Reshape", "folded", "changes nothing"),
    ]
    assert placement.runs_entirely_on_dla
    assert placement.dla_subgraphs == 1


def test_a_dropped_node_at_the_input_goes_with_what_follows() -> None:
    network = Network(PLANE, opset=11)
    network.add("Elu", network.add("Dropout", "x"))
    assert pieces(placed(network)) == [("gpu", ("Dropout_0", "Elu_1"))]


def test_nothing_on_the_dla_is_not_entirely_on_the_dla() -> None:
    network = Network(PLANE, opset=11)
    network.add("Dropout", "x")
    placement = placed(network)
    assert placement.on("gpu") == []
    assert not placement.runs_entirely_on_dla


def test_the_builder_overrules_the_rules() -> None:
    said = Finding("the builder says so", "", "test", Certainty.REPORTED)
    graph = chain("Relu", "Elu", "Sigmoid").graph()
    answers = {"Relu_0": (False, said), "Elu_1": (True, said), "Sigmoid_2": (True, said)}
    placement = place(graph, ORIN, answers)
    assert [(layer.device, layer.reason) for layer in placement.layers] == [
        ("gpu", "the builder says so"),
        ("dla", "the builder says so"),
        ("dla", ""),
    ]


def test_json_has_the_agreed_form() -> None:
    document = placed(chain("Relu", "Elu")).to_json()
    assert document == {
        "target": "orin",
        "precision": "fp16",
        "layers": [
            {"name": "Relu_0", "op": "Relu", "device": "dla", "reason": ""},
            {
                "name": "Elu_1",
                "op": "Elu",
                "device": "gpu",
                "reason": "Elu is not among the activations of a DLA "
                "(ReLU, leaky and clipped ReLU, sigmoid, tanh)",
            },
        ],
        "dla_layers": 1,
        "gpu_layers": 1,
        "dla_subgraphs": 1,
        "runs_entirely_on_dla": False,
    }


def test_an_unreadable_shape_is_no_traffic() -> None:
    graph = Graph(chain("Relu", "Elu").model(), "test.onnx")
    assert place(graph, ORIN).crossings == {}
