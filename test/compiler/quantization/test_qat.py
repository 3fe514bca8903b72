"""Q/DQ networks: the plain network, its scales, the rules that infer more, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from quantization_networks import graph_of, model_of, node, run

from dla_perception.cli.main import main
from dla_perception.compiler.quantization.cache import read_cache
from dla_perception.compiler.quantization.propagation import Inference, propagate
from dla_perception.compiler.quantization.qat import QatError, translate

RNG = np.random.default_rng(0)
W = RNG.normal(size=(3, 2, 3, 3)).astype(np.float32)
W_SCALE = (np.abs(W).max(axis=(1, 2, 3)) / 127).astype(np.float32)
X = RNG.normal(size=(1, 2, 8, 8)).astype(np.float32)


def quantised(
    tensor: str, scale: str = "sx", zero: str = "zero", name: str = "", **attributes: int
) -> list[onnx.NodeProto]:
    """A Q/DQ pair on a tensor: ``<name>_q`` and ``<name>_dq``."""
    name = name or tensor
    return [
        node("QuantizeLinear", f"{tensor} {scale} {zero}".strip(), f"{name}_q", **attributes),
        node("DequantizeLinear", f"{name}_q {scale} {zero}".strip(), f"{name}_dq", **attributes),
    ]


def qat_network() -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """Two convolutions as pytorch-quantization exports them: Q/DQ on inputs and weights."""
    nodes = [
        *quantised("x"),
        *quantised("w", "sw", "zw", axis=0),
        node("Conv", "x_dq w_dq b", "conv", pads=[1, 1, 1, 1]),
        node("Relu", "conv", "relu"),
        *quantised("relu", "sr"),
        node("MaxPool", "relu_dq", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("DequantizeLinear", "w2 sw2 zw", "w2_dq", axis=0),
        node("Conv", "pool w2_dq", "y"),
    ]
    w2 = RNG.integers(-127, 128, (3, 3, 1, 1)).astype(np.int8)
    w2[:, 0] = 127
    constants = {
        "sx": np.float32(0.03),
        "sr": np.float32(0.05),
        "zero": np.int8(0),
        "w": W,
        "sw": W_SCALE,
        "zw": np.zeros(3, np.int8),
        "b": np.array([0.5, -0.5, 0], np.float32),
        "w2": w2,
        "sw2": np.array([0.01, 0.02, 0.03], np.float32),
    }
    return nodes, constants


def write(
    tmp_path: Path, nodes: list[onnx.NodeProto], constants: dict[str, Any], outputs: Any = None
) -> Path:
    path = tmp_path / "net.onnx"
    model = model_of(nodes, constants, X.shape, outputs or {"y": None})
    path.write_bytes(model.SerializeToString())
    return path


def test_the_plain_network_and_its_scales(tmp_path: Path) -> None:
    nodes, constants = qat_network()
    translation = translate(write(tmp_path, nodes, constants))
    plain = translation.graph
    assert [item.op_type for item in plain.nodes] == ["Conv", "Relu", "MaxPool", "Conv"]
    assert dict(translation.stated) == {
        "x": pytest.approx(0.03),
        "relu": pytest.approx(0.05),
    }
    # the pool passes its scale on; Relu's neighbour is the convolution's output
    assert set(translation.scales) == {"x", "relu", "pool", "conv"}
    assert translation.fp16_layers == ("y",)
    assert translation.warnings == ()
    expected = model_of(
        [
            node("Conv", "x w b", "conv", pads=[1, 1, 1, 1]),
            node("Relu", "conv", "relu"),
            node("MaxPool", "relu", "pool", kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", "pool w2", "y"),
        ],
        {
            "w": W,
            "b": constants["b"],
            "w2": constants["w2"].astype(np.float32) * constants["sw2"][:, None, None, None],
        },
        X.shape,
        {"y": None},
    )
    np.testing.assert_allclose(
        run(plain.to_model(), X)[0], run(expected, X)[0], rtol=1e-5, atol=1e-6
    )


def test_scales_in_constant_nodes_and_a_quantised_output(tmp_path: Path) -> None:
    nodes, constants = qat_network()
    for name in ("sx", "zero", "sr", "w"):
        value = numpy_helper.from_array(np.asarray(constants.pop(name)), name)
        nodes.insert(0, node("Constant", "", name, value=value))
    nodes += quantised("y", "sr", name="final")
    path = write(tmp_path, nodes, constants, {"final_dq": None})
    translation = translate(path)
    assert translation.graph.outputs == ["final_dq"]
    # the output keeps its name, and so its tensor has it
    assert translation.stated["final_dq"] == pytest.approx(0.05)
    assert [item.op_type for item in translation.graph.nodes] == ["Conv", "Relu", "MaxPool", "Conv"]
    assert translation.fp16_layers == ()


def test_two_scales_of_one_tensor_become_the_larger_one(tmp_path: Path) -> None:
    nodes, constants = qat_network()
    nodes += [*quantised("relu", "sx", name="branch"), node("Neg", "branch_dq", "z")]
    translation = translate(write(tmp_path, nodes, constants, {"y": None, "z": None}))
    assert translation.stated["relu"] == pytest.approx(0.05)
    (warning,) = translation.warnings
    assert "tensor 'relu' is quantised with 0.05 and with 0.03 (at 'branch_q')" in warning


def test_renamed_outputs(tmp_path: Path) -> None:
    nodes, constants = qat_network()
    for item in nodes:
        item.name = f"layer/{item.name}"
    translation = translate(write(tmp_path, nodes, constants), rename_outputs=True)
    assert set(translation.scales) == {
        "x", "layer/relu_output_0", "layer/pool_output_0", "layer/conv_output_0"
    }  # fmt: skip
    assert translation.graph.outputs == ["y"]


# ---- the rules of NVIDIA's translator


def inferred(
    nodes: list[onnx.NodeProto], scales: dict[str, float], inference: Inference | None = None
) -> dict[str, float]:
    graph = graph_of(model_of(nodes, {"w": np.ones((2, 2, 1, 1), "f4")}, X.shape, {"y": None}))
    known = propagate(graph, scales, inference or Inference())
    return {name: scale for name, scale in known.items() if name not in scales}


SILU = [
    node("Conv", "x w", "conv"),
    node("Sigmoid", "conv", "gate"),
    node("Mul", "conv gate", "silu"),
    node("Conv", "silu w", "y"),
]


def test_silu() -> None:
    assert inferred(SILU, {"silu": 0.4}) == {}
    found = inferred(SILU, {"silu": 0.4}, Inference(mul=True))
    # x sigmoid(x) is at most x: with the sigmoid's 1/127 the convolution's scale is the product's
    assert found == {"gate": 1 / 127, "conv": pytest.approx(0.4)}


def test_a_sigmoid_alone() -> None:
    nodes = [node("Conv", "x w", "conv"), node("Sigmoid", "conv", "y")]
    assert inferred(nodes, {"conv": 0.02}) == {"y": 0.02}
    p = 127 * 0.007
    found = inferred(nodes, {"y": 0.007})
    assert found["conv"] == pytest.approx(math.log(p / (1 - p)) / 127)
    assert inferred(nodes, {"y": 0.01}) == {}  # a probability above 1
    assert inferred(nodes, {"y": 0.003}) == {}  # the scale would be negative


def test_concat() -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("Conv", "x w", "b"),
        node("Conv", "x w", "c"),
        node("Concat", "a b c", "y", axis=1),
    ]
    assert inferred(nodes, {"a": 0.1, "b": 0.3}) == {}
    assert inferred(nodes, {"a": 0.1, "b": 0.3}, Inference(concat=True)) == {"y": 0.3, "c": 0.3}
    # a scale that is known stays
    assert inferred(nodes, {"a": 0.1, "y": 0.2}, Inference(concat=True)) == {"b": 0.2, "c": 0.2}


@pytest.mark.parametrize(
    ("op", "attributes", "inference", "copied"),
    [
        ("MaxPool", {"kernel_shape": [1, 1]}, Inference(), True),
        ("Relu", {}, Inference(), True),
        ("Transpose", {"perm": [0, 1, 3, 2]}, Inference(), True),
        ("AveragePool", {"kernel_shape": [1, 1]}, Inference(), False),
        ("AveragePool", {"kernel_shape": [1, 1]}, Inference(average_pool=True), True),
        ("GlobalAveragePool", {}, Inference(average_pool=True), True),
        ("Abs", {}, Inference(), False),
        ("Abs", {}, Inference(operators=frozenset(["Abs"])), True),
    ],
)
def test_neighbours(
    op: str, attributes: dict[str, Any], inference: Inference, copied: bool
) -> None:
    nodes = [node("Conv", "x w", "conv"), node(op, "conv", "y", **attributes)]
    assert inferred(nodes, {"conv": 0.5}, inference) == ({"y": 0.5} if copied else {})
    assert inferred(nodes, {"y": 0.5}, inference) == ({"conv": 0.5} if copied else {})


def test_a_convolution_that_enters_a_sum() -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("Conv", "x w", "b"),
        node("Add", "a b", "y"),
    ]
    assert inferred(nodes, {"a": 0.1}, Inference(unary_for_dla=True)) == {"b": 1.0}
    both = Inference(operators=frozenset(["Add"]))
    assert inferred(nodes, {"a": 0.1}, both) == {"y": 0.1, "b": 0.1}


# ---- what implicit quantisation cannot express

Change = Callable[[list[onnx.NodeProto], dict[str, Any]], Any]


def without_dq(nodes: list[onnx.NodeProto], constants: dict[str, Any]) -> None:
    nodes[0].op_type = "Identity"
    del nodes[0].input[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n, c: c.update(zero=np.int8(3)),
         r"node 'x_q': asymmetric quantisation \(zero point 3\)"),
        (lambda n, c: c.update(zero=np.uint8(0)), "node 'x_q': it quantises to uint8"),
        (lambda n, c: c.update(sx=np.array([0.1, 0.2], "f4"), zero=np.zeros(2, "i1")),
         "node 'x_q': 2 scales for activations, one a channel"),
        (lambda n, c: c.update(sx=np.float32(0)), "node 'x_q': its scale is 0; expected positive"),
        (lambda n, c: c.update(sx=np.float32("nan")), "node 'x_q': its scale is nan"),
        (lambda n, c: n[0].input.pop(), "node 'x_q': it has no zero point, which means UINT8"),
        (lambda n, c: n[1].input.__setitem__(1, "sr"),
         "node 'x_dq': it multiplies by 0.05.*, but 'x_q' before it divides by 0.02999"),
        (lambda n, c: n.append(node("Abs", "x_q", "z")),
         "node 'x_q': Abs 'z' reads its INT8 result"),
        (without_dq, "node 'x_dq': its input 'x_q' does not come from a QuantizeLinear"),
        (lambda n, c: n[0].input.__setitem__(1, "x"), "node 'x_q': its scale 'x' is not constant"),
        (lambda n, c: c.update(sw=W_SCALE * 1.5),
         r"node 'w_dq': filter \d of Conv 'conv' has the weight scale .* max\|w\|/127"),
        (lambda n, c: c.update(sw=np.array([0.01, 0.01], "f4"), zw=np.zeros(2, "i1"))
         or [item.attribute.__getitem__(0).__setattr__("i", 1) for item in n[2:4]],
         "the scales of the weights of Conv 'conv' run along axis 1; expected one a filter"),
        (lambda n, c: setattr(n[4], "op_type", "QLinearConv"),
         "node 'conv': QLinearConv computes in INT8 itself"),
        (lambda n, c: [setattr(i, "op_type", "Identity") or i.ClearField("attribute")
                       or i.input.__delitem__(slice(1, None)) for i in n
                       if i.op_type.endswith("Linear") and i.name[0] in "xr"],
         "it has no QuantizeLinear node on an activation"),
    ],
)  # fmt: skip
def test_what_a_dla_cannot_express_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    nodes, constants = qat_network()
    change(nodes, constants)
    outputs = {"y": None, "z": None} if nodes[-1].output[0] == "z" else None
    with pytest.raises(QatError, match=message) as caught:
        translate(write(tmp_path, nodes, constants, outputs))
    assert "net.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weight_scales_of_a_histogram_are_accepted_on_request(tmp_path: Path) -> None:
    nodes, constants = qat_network()
    constants["sw"] = W_SCALE * 1.5
    translation = translate(write(tmp_path, nodes, constants), weights_by_maximum=False)
    assert set(translation.stated) == {"x", "relu"}


# ---- a real network


def test_yolox_nano(assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = assets / "models" / "yolox_nano_416_ptq_qdq.onnx"
    assert main(["translate-qat", str(model), "-o", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert "95 scales from its Q/DQ nodes, 0 inferred, 129 nodes stay in FP16" in output.out
    assert "2 groups of tensors that share a scale on a DLA have different ones" in output.err
    cache = tmp_path / "yolox_nano_416_ptq_qdq_calib.cache"
    original = assets / "calibration_caches" / "yolox_nano_416_ptq.cache"
    assert cache.read_bytes() == original.read_bytes()
    config = json.loads((tmp_path / "yolox_nano_416_ptq_qdq_precision_config.json").read_text())
    assert config["int8_tensor_scales"] == dict(read_cache(original).scales)
    layers = (tmp_path / "yolox_nano_416_ptq_qdq_layer_arg.txt").read_text()
    assert layers == "".join(f"{name}:fp16," for name in config["fp16_nodes"])
    network = tmp_path / "yolox_nano_416_ptq_qdq_noqdq.onnx"
    assert not {"QuantizeLinear", "DequantizeLinear"} & {
        item.op_type for item in onnx.load(network).graph.node
    }
    photos = ["--images", str(assets / "images" / "coco_val_ccby"), "--labels", "coco"]
    truth = ["--annotations", str(assets / "images" / "instances_val_ccby.json"), "--json"]
    assert main(["evaluate", str(model), *photos, *truth]) == 0
    wanted = json.loads(capsys.readouterr().out)["AP"]
    int8 = ["--precision", "int8", "--cache", str(cache)]
    assert main(["evaluate", str(network), *photos, *truth, *int8]) == 0
    assert json.loads(capsys.readouterr().out)["AP"] == pytest.approx(wanted, abs=0.01)


def test_unification_is_reported(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = assets / "models" / "yolox_nano_416_ptq_qdq.onnx"
    options = ["--infer-concat-scales", "--infer-mul-scales", "--unify", "--tensorrt", "8.5.2"]
    options += ["--addtl-ops-to-infer-adjacent-scales", "Resize,Add"]
    assert main(["translate-qat", str(model), "-o", str(tmp_path / "out"), *options]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    changes = [line for line in output.out.splitlines() if line.startswith("unified: ")]
    cache = read_cache(tmp_path / "out" / "yolox_nano_416_ptq_qdq_calib.cache")
    stated = read_cache(assets / "calibration_caches" / "yolox_nano_416_ptq.cache").scales
    assert cache.version == 8502
    larger = [name for name, scale in stated.items() if cache.scales[name] != scale]
    assert larger
    assert all(cache.scales[name] > stated[name] for name in larger)
    assert {line.split()[1].rstrip(":") for line in changes} >= set(larger)
    assert len(cache.scales) > 300
