"""Reading networks: what is folded, what is put right, what is refused and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_networks import Network, run

from dla_perception.compiler import graph as graph_module
from dla_perception.compiler.graph import Graph, GraphError, load_graph


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, str(path))
    return path


def small() -> Network:
    network = Network((1, 3, 8, 8))
    network.conv("x", 3, 4, pads=[1] * 4)
    network.add("Relu", "t0")
    return network


# --- folding and shapes --------------------------------------------------------------------------


def upsampling_by_shape() -> Network:
    """An Upsample as PyTorch exports it: the size is computed from the input's shape."""
    network = Network((1, 3, 8, 8))
    shape = network.add("Shape", "x")
    height = network.add("Gather", shape, network.constant(2, np.int64), axis=0)
    double = network.add("Mul", height, network.constant(2, np.int64))
    one = network.add("Unsqueeze", double, network.constant([0], np.int64))
    outer = network.add(
        "Slice",
        shape,
        network.constant([0], np.int64),
        network.constant([2], np.int64),
        network.constant([0], np.int64),
    )
    sizes = network.add("Concat", outer, one, one, axis=0)
    network.add(
        "Resize",
        "x",
        "",
        "",
        sizes,
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    return network


def test_shapes_that_a_network_computes_are_folded() -> None:
    graph = upsampling_by_shape().graph()
    assert [node.op_type for node in graph.nodes] == ["Resize"]
    assert graph.constants[graph.nodes[0].input[3]].tolist() == [1, 3, 16, 16]
    assert graph.shape(graph.outputs[0]) == (1, 3, 16, 16)
    assert {gone.op for gone in graph.folded} == {
        "Shape",
        "Gather",
        "Mul",
        "Unsqueeze",
        "Slice",
        "Concat",
    }


def test_folding_keeps_what_the_network_computes() -> None:
    network = Network((1, 3, 4, 4))
    table = network.add("Exp", network.constant(np.linspace(0, 1, 3).reshape(3, 1, 1)))
    network.add("Add", "x", network.add("Reshape", table, network.constant([1, 3, 1, 1], np.int64)))
    x = np.random.default_rng(1).normal(size=(1, 3, 4, 4)).astype(np.float32)
    graph = network.graph()
    assert [node.op_type for node in graph.nodes] == ["Add"]
    np.testing.assert_array_equal(run(graph, x)[0], run(network.model(), x)[0])


def test_one_node_that_cannot_be_evaluated_does_not_stop_the_others() -> None:
    network = Network((1, 3, 4, 4))
    bad = network.add("Reshape", network.constant(np.ones(6)), network.constant([5, 5], np.int64))
    good = network.add("Exp", network.constant(np.zeros((1, 1, 1, 1))))
    network.add("Add", "x", good)
    graph = Graph(network.model("t2", bad), "test.onnx")
    graph.outputs = ["t2"]
    graph.nodes = [*graph.nodes]
    values = graph._evaluate([node for node in graph.nodes if node.op_type != "Add"])
    assert list(values) == [good]
    assert values[good].item() == 1.0


def test_random_numbers_are_no_constants() -> None:
    network = Network((1, 3, 4, 4))
    noise = network.add("RandomNormal", shape=[1, 3, 4, 4])
    network.add("Add", "x", noise)
    assert [node.op_type for node in network.graph().nodes] == ["RandomNormal", "Add"]


def test_large_weights_do_not_hinder_shape_inference() -> None:
    network = Network((1, 64, 8, 8))
    network.conv("x", 64, 64, 3, pads=[1] * 4, strides=[2, 2])
    graph = network.graph()
    assert graph.shape(graph.outputs[0]) == (1, 64, 4, 4)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
)
def test_writing_and_reading_keeps_the_network(sizes: list[int], seed: int) -> None:
    network = Network((1, 3, 6, 6), seed=seed)
    tensor, channels = "x", 3
    for size in sizes:
        tensor = network.add("Relu", network.conv(tensor, channels, size, 3, pads=[1] * 4))
        channels = size
    graph = network.graph()
    again = Graph(graph.to_model(), "again.onnx")
    again.refresh()
    x = network.random.normal(size=(1, 3, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(again, x)[0], run(network.model(), x)[0])
    assert [node.name for node in again.nodes] == [node.name for node in network.nodes]


def test_a_copy_is_independent() -> None:
    graph = small().graph()
    twin = graph.copy()
    twin.rename_output(twin.nodes[1], twin.nodes[1].output[0], "renamed")
    twin.constants.clear()
    twin.outputs[0] = "renamed"
    assert graph.nodes[1].output[0] == "t1"
    assert graph.outputs == ["t1"]
    assert len(graph.constants) == 2


# --- editing -------------------------------------------------------------------------------------


def test_bypass_keeps_the_names_of_outputs() -> None:
    network = small()
    network.add("Identity", "t1")
    graph = network.graph()
    assert graph.bypass(graph.nodes[2])
    assert graph.outputs == ["t2"]
    assert graph.nodes[1].output[0] == "t2"


def test_bypass_leaves_a_node_between_input_and_output() -> None:
    network = Network()
    network.add("Identity", "x")
    graph = network.graph()
    assert not graph.bypass(graph.nodes[0])
    assert len(graph.nodes) == 1


def test_fresh_names_avoid_what_is_there() -> None:
    graph = small().graph()
    assert graph.fresh("new") == "new"
    assert graph.fresh("t0") == "t0_2"
    assert graph.fresh_node_name("Relu_1") == "Relu_1_2"


def test_who_reads_and_makes_follows_every_edit() -> None:
    graph = small().graph()
    conv, relu = graph.nodes
    assert graph.consumers()["t0"] == [relu]
    graph.set_input(relu, 0, "x")
    assert "t0" not in graph.consumers()
    graph.rename_output(conv, "t0", "other")
    assert graph.producers()["other"] is conv


# --- what is put right with a notice -------------------------------------------------------------


def test_node_names_become_unique_with_a_notice() -> None:
    model = small().model()
    for node in model.graph.node:
        node.name = "layer"
    graph = Graph(model, "net.onnx")
    assert [node.name for node in graph.nodes] == ["layer", "layer_2"]
    assert graph.notices == [
        "node name 'layer' is used by 2 nodes: one Relu is called 'layer_2' here"
    ]


def test_nodes_without_names_get_some() -> None:
    model = small().model()
    for node in model.graph.node:
        node.name = ""
    assert [node.name for node in Graph(model, "net.onnx").nodes] == ["Conv_0", "Relu_1"]


def test_weights_listed_as_inputs_are_constants() -> None:
    model = small().model()
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    graph = Graph(model, "net.onnx")
    assert list(graph.inputs) == ["x"]
    assert graph.notices == [
        "2 weights are listed as inputs too ('c0', 'c1', read by node 'Conv_0'): "
        "they are taken as constants"
    ]


def test_unused_things_are_told() -> None:
    network = small()
    network.constant(1.0, name="spare")
    network.input("unread", (1,))
    network.add("Sigmoid", "t0")
    graph = Graph(network.model("t1"), "net.onnx")
    assert graph.notices == [
        "weights 'spare' are not used by any node",
        "input 'unread' is not used by any node",
    ]
    assert [(gone.name, gone.reason) for gone in graph.folded] == [
        ("Sigmoid_2", "its result is not used")
    ]


def test_nodes_out_of_order_are_sorted() -> None:
    model = small().model()
    swapped = [model.graph.node[1], model.graph.node[0]]
    del model.graph.node[:]
    model.graph.node.extend(swapped)
    graph = Graph(model, "net.onnx")
    assert [node.op_type for node in graph.nodes] == ["Conv", "Relu"]
    assert graph.notices == ["the nodes are not in running order (first: 'Conv_0'): sorted"]


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    double = helper.make_function(
        "local",
        "Double",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"], name="sum")],
        [helper.make_opsetid("", 13)],
    )
    network = Network()
    network.add("Double", "x", domain="local")
    model = network.model(
        functions=[double],
        opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("local", 1)],
    )
    graph = load_graph(save(model, tmp_path / "net.onnx"))
    assert [node.op_type for node in graph.nodes] == ["Add"]


# --- what is refused -----------------------------------------------------------------------------


def refuse(make: Callable[[], Any], *said: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message


def test_missing_file(tmp_path: Path) -> None:
    refuse(lambda: load_graph(tmp_path / "no.onnx"), "no.onnx: cannot read it: No such file")


@pytest.mark.parametrize("content", [b"", b"hello, world", b"\x00" * 64, b"\x08\x07\x12\xff"])
def test_files_that_are_no_networks(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    refuse(lambda: load_graph(path), "net.onnx: not an ONNX file")


def test_file_cut_short(tmp_path: Path) -> None:
    path = save(small().model(), tmp_path / "net.onnx")
    path.write_bytes(path.read_bytes()[:-100])
    refuse(lambda: load_graph(path), "not an ONNX file or cut short")


def test_too_large_file(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # takes no room on the disk
    refuse(lambda: load_graph(path), "3.0 GiB: ONNX files end at 2 GiB", "512 MiB")


def external(tmp_path: Path) -> Path:
    model = small().model()
    path = tmp_path / "net.onnx"
    onnx.save_model(
        model, str(path), save_as_external_data=True, location="net.data", size_threshold=0
    )
    return path


def test_external_weights_are_read(tmp_path: Path) -> None:
    graph = load_graph(external(tmp_path))
    np.testing.assert_array_equal(
        graph.constants["c0"], numpy_helper.to_array(small().model().graph.initializer[0])
    )


def test_missing_external_weights(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "net.data").unlink()
    refuse(
        lambda: load_graph(path), "weights 'c0' of node 'Conv_0' are kept in 'net.data'", "copy it"
    )


def test_external_weights_cut_short(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "net.data").write_bytes(b"\x00" * 8)
    refuse(lambda: load_graph(path), "net.onnx")


def test_too_large_external_weights(tmp_path: Path) -> None:
    path = external(tmp_path)
    with (tmp_path / "net.data").open("r+b") as file:
        file.truncate(5 << 30)
    refuse(lambda: load_graph(path), "5.0 GiB: ONNX files end at 2 GiB")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (("batch", 3, 32, 32), "is ?x3x32x32: dimension 0 dynamic"),
        ((1, 3, "h", "w"), "dimensions 2 and 3 dynamic"),
        ((-1, 3, 32, 32), "dimension 0 dynamic"),
        ((0, 3, 32, 32), "dimension 0 dynamic"),
    ],
)
def test_dynamic_inputs(tmp_path: Path, shape: tuple[Any, ...], said: str) -> None:
    network = Network(shape)
    network.conv("x", 3, 4)
    path = network.save(tmp_path / "net.onnx")
    refuse(
        lambda: load_graph(path), "input 'x'", said, "--shape x:", "or export with dynamic=False"
    )


def test_dynamic_inputs_can_be_fixed(tmp_path: Path) -> None:
    network = Network(("batch", 3, "h", "w"))
    network.conv("x", 3, 4, strides=[2, 2])
    path = network.save(tmp_path / "net.onnx")
    graph = load_graph(path, {"": (1, 3, 65, 33)})
    assert graph.shape(graph.outputs[0]) == (1, 4, 32, 16)
    assert load_graph(path, {"x": (1, 3, 65, 33)}).inputs == graph.inputs


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"y": (1, 3, 8, 8)}, "it has no input 'y'; its inputs: x"),
        ({"x": (1, 4, 8, 8)}, "input 'x' is ?x3x?x?, which 1x4x8x8 does not fit"),
        ({"x": (1, 3, 8)}, "only dynamic sizes can be set"),
    ],
)
def test_shapes_that_do_not_fit(tmp_path: Path, shapes: Any, said: str) -> None:
    network = Network(("n", 3, "h", "w"))
    network.conv("x", 3, 4)
    path = network.save(tmp_path / "net.onnx")
    refuse(lambda: load_graph(path, shapes), said)


def test_a_shape_without_a_name_needs_a_single_input(tmp_path: Path) -> None:
    network = Network(("n", 3, 8, 8))
    network.add("Add", "x", network.input("y", ("n", 3, 8, 8)))
    path = network.save(tmp_path / "net.onnx")
    refuse(lambda: load_graph(path, {"": (1, 3, 8, 8)}), "it has 2 inputs (x, y): say which one")


def test_duplicate_tensors() -> None:
    model = small().model()
    model.graph.node[1].output[0] = "t0"
    refuse(
        lambda: Graph(model, "net.onnx"),
        "tensor 't0' is made by node 'Relu_1' and by node 'Conv_0'",
    )


def test_duplicate_weights() -> None:
    model = small().model()
    model.graph.initializer.append(model.graph.initializer[0])
    refuse(lambda: Graph(model, "net.onnx"), "two weights are called 'c0' (read by node 'Conv_0')")


def test_missing_tensor() -> None:
    model = small().model()
    model.graph.node[1].input[0] = "nowhere"
    refuse(lambda: Graph(model, "net.onnx"), "node 'Relu_1' reads 'nowhere', which no node makes")


def test_missing_output() -> None:
    model = small().model("gone")
    refuse(lambda: Graph(model, "net.onnx"), "output 'gone' is made by no node")


def test_no_nodes_and_no_outputs() -> None:
    refuse(lambda: Graph(Network().model("x"), "net.onnx"), "the network has no nodes")
    model = small().model()
    del model.graph.output[:]
    refuse(lambda: Graph(model, "net.onnx"), "the network has no outputs")


def test_cycle() -> None:
    network = Network((1, 3, 4, 4))
    network.add("Relu", "x")
    network.add("Add", "t0", "t3")
    network.add("Sigmoid", "t1")
    network.add("Tanh", "t2")
    network.add("Exp", "t3")  # after the cycle, not in it
    refuse(
        lambda: Graph(network.model(), "net.onnx"),
        "3 nodes wait for each other in a cycle",
        "'Add_1' -> 'Sigmoid_2' -> 'Tanh_3' -> 'Add_1'",
    )


def require(network: Network, opsets: tuple[int, int] = (7, 17)) -> None:
    graph = network.graph()
    graph.require_known_operators(opsets, "TensorRT 8.5")


@pytest.mark.parametrize(
    ("opset", "said"),
    [
        (
            18,
            "opset 18 is too new (first node: 'Relu_0'): TensorRT 8.5 reads 7 to 17; "
            "export with opset_version=17",
        ),
        (
            6,
            "opset 6 is too old (first node: 'Relu_0'): TensorRT 8.5 reads 7 to 17; "
            "export again with opset_version=11",
        ),
    ],
)
def test_opsets_out_of_range(opset: int, said: str) -> None:
    network = Network(opset=opset)
    network.add("Relu", "x")
    refuse(lambda: require(network), said)


@pytest.mark.parametrize("opset", [7, 17])
def test_opsets_in_range(opset: int) -> None:
    network = Network(opset=opset)
    network.add("Relu", "x")
    require(network)


def test_no_opset() -> None:
    model = small().model()
    del model.opset_import[:]
    refuse(lambda: Graph(model, "net.onnx"), "it names no ONNX opset")


def test_custom_operators() -> None:
    network = Network()
    network.add("EfficientNMS_TRT", "x", domain="trt.plugins")
    refuse(
        lambda: require(network),
        "node 'EfficientNMS_TRT_0': EfficientNMS_TRT of domain 'trt.plugins' is no ONNX operator",
    )
    unknown = Network()
    unknown.add("Swish2", "x")
    refuse(lambda: require(unknown), "node 'Swish2_0': Swish2 is no ONNX operator of opset 13")


def test_subgraphs() -> None:
    then = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"], name="inner")],
        "then",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    network = Network()
    condition = network.input("yes", (), TensorProto.BOOL)
    network.add("If", condition, then_branch=then, else_branch=then)
    refuse(lambda: require(network), "node 'If_0': If holds a subgraph, which a DLA cannot run")


def test_a_subgraph_keeps_what_it_reads() -> None:
    then = helper.make_graph(
        [helper.make_node("Relu", ["t0"], ["r"], name="inner")],
        "then",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    network = Network()
    network.add("Sigmoid", "x")
    condition = network.input("yes", (), TensorProto.BOOL)
    network.add("If", condition, then_branch=then, else_branch=then)
    assert [node.op_type for node in network.graph().nodes] == ["Sigmoid", "If"]


def test_malformed_nodes() -> None:
    network = Network()
    network.add("Concat", "x", "x")  # the axis is missing
    refuse(lambda: require(network), "node 'Concat_0' is not valid ONNX", "axis")


def test_shapes_that_contradict_each_other() -> None:
    network = Network((1, 3, 8, 8))
    network.add("Add", "x", network.constant(np.ones((1, 4, 8, 8))))
    refuse(lambda: require(network), "the shapes contradict each other", "Add_0")


def test_sparse_weights() -> None:
    model = small().model()
    values = numpy_helper.from_array(np.ones(1, np.float32), "thin")
    indices = numpy_helper.from_array(np.zeros((1, 1), np.int64), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    refuse(lambda: Graph(model, "net.onnx"), "weights 'thin' are stored sparse")


def test_missing_onnx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import builtins

    real = builtins.__import__

    def without(name: str, *args: Any, **kw: Any) -> Any:
        if name.split(".")[0] == "onnx":
            raise ImportError(name)
        return real(name, *args, **kw)

    path = save(small().model(), tmp_path / "net.onnx")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(graph_module.MissingPackageError, match="pip install onnx"):
        load_graph(path)
