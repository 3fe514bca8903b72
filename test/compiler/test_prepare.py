"""The verb `prepare`: head cut and description for every family, rewrites, proof, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import cv2
import head_networks as heads
import numpy as np
import onnx
import pytest
import yaml
from head_networks import HeadNetwork
from onnx_networks import Network, run

from dla_perception.cli.main import main
from dla_perception.compiler import preparation
from dla_perception.compiler.dla_support import Target
from dla_perception.compiler.graph import load_graph
from dla_perception.compiler.placement import place
from dla_perception.compiler.rewrites import division
from dla_perception.detection.detector import DetectionSettings, Detector
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.loading import open_engine


def prepare(*arguments: Any) -> int:
    return main(["prepare", *map(str, arguments)])


def detector(path: Path, labels: str | None = None, threshold: float = 0.3) -> Detector:
    engine = open_engine(path)
    settings = DetectionSettings(score_threshold=threshold)
    return Detector(engine, describe_model(engine, None, labels), settings)


def same_detections(one: Detector, other: Detector, images: list[np.ndarray], least: int) -> None:
    found = 0
    for pixels in images:
        left, right = one.detect(pixels).detections, other.detect(pixels).detections
        found += len(left)
        assert len(left) == len(right)
        order = [np.lexsort((d.boxes[:, 0], -d.scores.round(4))) for d in (left, right)]
        np.testing.assert_array_equal(left.class_ids[order[0]], right.class_ids[order[1]])
        np.testing.assert_allclose(left.boxes[order[0]], right.boxes[order[1]], atol=0.05)
        np.testing.assert_allclose(left.scores[order[0]], right.scores[order[1]], atol=1e-3)
    one.engine.close()
    other.engine.close()
    assert found >= least


# --- YOLOX-Nano ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def yolox_nano(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "yolox_nano.onnx"
    model = assets / "models" / "yolox_nano_416.onnx"
    assert prepare(model, "-o", out, "--labels", "coco", "--target", "xavier") == 0
    return out


@pytest.mark.parametrize(
    ("module", "tensorrt"), [("xavier", "8.5"), ("orin", "8.5"), ("orin", "8.6"), ("orin", "10.3")]
)
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_yolox_nano_runs_entirely_on_every_dla(
    yolox_nano: Path, module: str, tensorrt: str, precision: str
) -> None:
    placement = place(load_graph(yolox_nano), Target(module, tensorrt, precision))
    assert placement.runs_entirely_on_dla
    assert placement.dla_subgraphs == 1
    assert placement.traffic_bytes == 0


def test_yolox_nano_has_the_same_detections_on_the_photos(assets: Path, yolox_nano: Path) -> None:
    photos = sorted((assets / "images" / "coco_val_ccby").glob("*.jpg"))
    assert len(photos) == 25
    images = [cv2.imread(str(path)) for path in photos]
    before = detector(assets / "models" / "yolox_nano_416.onnx", "coco", 0.1)
    same_detections(before, detector(yolox_nano, threshold=0.1), images, 150)


def test_yolox_nano_returns_three_maps_a_level_under_their_names(yolox_nano: Path) -> None:
    graph = load_graph(yolox_nano)
    assert [(name, graph.shape(name)) for name in graph.outputs][:3] == [
        ("1062", (1, 4, 52, 52)),
        ("1063", (1, 1, 52, 52)),
        ("1045", (1, 80, 52, 52)),
    ]
    assert len(graph.outputs) == 9
    assert graph.metadata["prepared_by"] == "dla_perception"
    stated = yaml.safe_load(yolox_nano.with_suffix(".yaml").read_text())
    assert stated["family"] == "yolox"
    assert stated["class_names"][0] == "person"
    assert stated["channel_order"] == "bgr"


def test_preparing_again_changes_nothing(yolox_nano: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.onnx"
    assert prepare(yolox_nano, "-o", out) == 0
    first, second = load_graph(yolox_nano), load_graph(out)
    assert [node.SerializeToString() for node in first.nodes] == [
        node.SerializeToString() for node in second.nodes
    ]
    assert out.with_suffix(".yaml").read_text() == yolox_nano.with_suffix(".yaml").read_text()


def test_ap_is_measured_when_images_are_given(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pycocotools")
    images = assets / "images"
    code = prepare(
        assets / "models" / "yolox_nano_416.onnx", "-o", tmp_path / "out.onnx", "--json",
        "--labels", "coco", "--images", images / "coco_val_ccby",
        "--annotations", images / "instances_val_ccby.json",
    )  # fmt: skip
    assert code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["AP"]["before"] == pytest.approx(0.327, abs=0.002)
    assert document["AP"]["after"] == pytest.approx(document["AP"]["before"], abs=0.001)


# --- every head family ---------------------------------------------------------------------------


def only_the_long_strides_are_left(path: Path) -> bool:
    """The head networks take pixels at strides of 8, 16 and 32; a DLA's convolutions end at 8."""
    placement = place(load_graph(path), Target())
    return all(layer.reason.endswith("strides are 1 to 8") for layer in placement.on("gpu"))


def anchors(name: str) -> list[list[list[float]]]:
    return [[list(map(float, pair)) for pair in level] for level in heads.ANCHORS[name]]


def yolov5(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    return heads.yolov5_decode(net, heads.anchored_maps(net)), {}, {"anchors": anchors("yolov5")}


def yolov5_transposed(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    outputs = heads.yolov5_decode(net, heads.anchored_maps(net), transposed=True)
    return outputs, {}, {"anchors": anchors("yolov5")}


def yolox_decoded(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    outputs = heads.yolox_decode(net, heads.yolox_maps(net), decode_in_inference=True)
    return outputs, {"scale": 1 / 255}, {}


def yolox(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    outputs = heads.yolox_decode(net, heads.yolox_maps(net), decode_in_inference=False)
    return outputs, {"scale": 1 / 255}, {}


def yolov8(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    return heads.yolov8_decode(net, heads.distance_maps(net, 16)), {}, {"reg_max": 16}


def yolov10(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    maps = heads.distance_maps(net, 16, "one2one_")
    return heads.end2end_decode(net, maps, 16, 30), {}, {"reg_max": 16}


def yolo26(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    maps = heads.distance_maps(net, 1, "one2one_")
    return heads.end2end_decode(net, maps, 1, 30), {}, {"reg_max": 1}


def darknet(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    expected = {"anchors": anchors("darknet"), "scale_x_y": list(heads.SCALE_X_Y)}
    return heads.darknet_decode(net, heads.anchored_maps(net), False), {}, expected


def darknet_new_coords(net: HeadNetwork) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    maps = heads.logistic(net, heads.anchored_maps(net))
    expected = {
        "anchors": anchors("darknet"),
        "scale_x_y": [heads.NEW_COORDS_SCALE_X_Y] * 3,
        "new_coords": True,
        "scores_activated": False,
    }
    return heads.darknet_decode(net, maps, True), {}, expected


FAMILIES: dict[str, tuple[Callable[[HeadNetwork], Any], str]] = {
    "yolov5": (yolov5, "yolov5"),
    "yolov5 transposed": (yolov5_transposed, "yolov5"),
    "yolox": (yolox, "yolox"),
    "yolox decoded": (yolox_decoded, "yolox"),
    "yolov8": (yolov8, "yolov8"),
    "yolov10": (yolov10, "yolov10"),
    "yolo26": (yolo26, "yolov10"),
    "darknet": (darknet, "darknet"),
    "darknet new_coords": (darknet_new_coords, "darknet"),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("size", "num_classes"), [((160, 96), 3), ((128, 128), 80)])
def test_every_head_is_cut_and_described(
    name: str,
    size: tuple[int, int],
    num_classes: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build, family = FAMILIES[name]
    net = HeadNetwork(size, num_classes)
    outputs, stated, expected = build(net)
    model = net.save(tmp_path / "whole.onnx", outputs)
    if stated:
        model.with_suffix(".yaml").write_text(yaml.safe_dump(stated))
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"class {index}\n" for index in range(num_classes)))
    out = tmp_path / "cut.onnx"
    assert prepare(model, "-o", out, "--labels", labels, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["cut"]
    assert only_the_long_strides_are_left(out)
    assert document["head"]["compared"] >= 30
    assert document["head"]["box_difference_px"] <= 0.01
    assert document["head"]["score_difference"] <= 1e-4
    written = yaml.safe_load(out.with_suffix(".yaml").read_text())
    assert written["family"] == family
    assert written["num_classes"] == num_classes
    assert written["strides"] == [8, 16, 32]
    for key, value in expected.items():
        np.testing.assert_allclose(written[key], value, atol=1e-3)
    graph = load_graph(out)
    assert all(graph.producers()[tensor].op_type == "Conv" for tensor in graph.outputs)
    # what is written can be used as it is
    image = np.random.default_rng(1).integers(0, 255, (240, 320, 3)).astype(np.uint8)
    assert len(detector(out, threshold=0.05).detect(image).detections) > 0


@pytest.mark.parametrize("reg_max", [16, 1])
def test_maps_that_look_alike_are_named_by_role(
    reg_max: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many classes as a box has channels, and names that do not tell."""
    net = HeadNetwork((160, 160), 4 * reg_max)
    outputs = heads.yolov8_decode(net, heads.distance_maps(net, reg_max), reg_max)
    for node in net.nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = name.replace("cv2", "a").replace("cv3", "b")
    model = net.save(tmp_path / "whole.onnx", outputs)
    out = tmp_path / "cut.onnx"
    assert prepare(model, "-o", out, "--json") == 1
    graph = load_graph(out)
    assert graph.outputs == [f"{role}_{s}" for s in (8, 16, 32) for role in ("boxes", "classes")]
    assert json.loads(capsys.readouterr().out)["head"]["box_difference_px"] < 0.01


def test_implicit_factors_of_yolov7_become_part_of_the_head_convolution(tmp_path: Path) -> None:
    net = HeadNetwork((320, 192), 3)
    maps = [
        net.arithmetic("Mul", name, np.linspace(0.5, 1.5, 24).reshape(1, 24, 1, 1))
        for name in heads.anchored_maps(net)
    ]
    model = net.save(tmp_path / "whole.onnx", heads.yolov5_decode(net, maps))
    out = tmp_path / "cut.onnx"
    assert prepare(model, "-o", out) == 1
    graph = load_graph(out)
    assert graph.outputs == maps
    assert [node.op_type for node in graph.nodes] == ["Conv"] * 3


def test_what_the_original_description_states_is_kept(tmp_path: Path) -> None:
    net = HeadNetwork((320, 192), 2)
    model = net.save(tmp_path / "whole.onnx", yolov5(net)[0])
    model.with_suffix(".yaml").write_text(
        "class_names: [cat, dog]\nscale: 1.0\npad_value: 7\nmean: [1, 2, 3]\nboxes_decoded: true\n"
    )
    out = tmp_path / "cut.onnx"
    assert prepare(model, "-o", out) == 1
    written = yaml.safe_load(out.with_suffix(".yaml").read_text())
    assert (written["class_names"], written["scale"]) == (["cat", "dog"], 1.0)
    assert (written["pad_value"], written["mean"]) == (7, [1.0, 2.0, 3.0])
    assert written["boxes_decoded"] is False


def test_a_head_that_is_decoded_otherwise_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = HeadNetwork((320, 192), 3)
    model = net.save(tmp_path / "whole.onnx", yolov5(net)[0])
    wrong = yaml.safe_dump({"anchors": "yolov7"})
    model.with_suffix(".yaml").write_text(wrong)
    assert prepare(model, "-o", tmp_path / "cut.onnx") == 2
    error = capsys.readouterr().err
    assert "boxes decoded from the cut network differ by" in error
    assert "the description does not fit" in error
    assert not (tmp_path / "cut.onnx").exists()


def test_maps_as_outputs_need_no_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = HeadNetwork((320, 192), 3)
    maps = heads.logistic(net, heads.anchored_maps(net))
    model = net.save(tmp_path / "maps.onnx", maps)
    stated = {
        "family": "darknet", "anchors": anchors("darknet"), "new_coords": True, "scale_x_y": 2.0,
    }  # fmt: skip
    model.with_suffix(".yaml").write_text(yaml.safe_dump(stated))
    out = tmp_path / "out.onnx"
    assert prepare(model, "-o", out, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["cut"]
    assert load_graph(out).outputs == maps
    written = yaml.safe_load(out.with_suffix(".yaml").read_text())
    assert (written["new_coords"], written["scores_activated"]) == (True, True)


def test_a_custom_operator_behind_the_head_is_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = HeadNetwork((320, 192), 3)
    net.do("EfficientNMS_TRT", *yolov5(net)[0], name="chosen", domain="trt.plugins")
    graph = onnx.helper.make_graph(
        net.nodes,
        "end",
        [onnx.helper.make_tensor_value_info("images", 1, [1, 3, 192, 320])],
        [onnx.helper.make_tensor_value_info("chosen", 1, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in net.constants.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 13), onnx.helper.make_opsetid("trt.plugins", 1)]
    model = tmp_path / "whole.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), str(model))
    model.with_suffix(".yaml").write_text("family: yolov5\nanchors: yolov5\n")
    assert prepare(model, "-o", tmp_path / "cut.onnx") == 1
    assert only_the_long_strides_are_left(tmp_path / "cut.onnx")
    assert "decoding of the cut head was not compared" in capsys.readouterr().err


# --- Darknet networks ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["yolo-fastest-1.1", "yolo-fastest-1.1-xl"])
def test_yolo_fastest_runs_entirely_on_an_orin_with_the_same_detections(
    assets: Path, tmp_path: Path, name: str
) -> None:
    darknet = assets / "darknet"
    model, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    arguments = [str(darknet / f"{name}.cfg"), str(darknet / f"{name}.weights")]
    labels = ["--labels", str(darknet / "coco.names")]
    assert main(["import-darknet", *arguments, "-o", str(model), *labels]) == 0
    verdict = place(load_graph(model), Target())
    assert [layer.reason for layer in verdict.on("gpu")] == [
        "window 9x9: pooling windows are 1 to 8"
    ]
    assert prepare(model, "-o", out) == 0
    for tensorrt in ("8.5", "8.6", "10.3"):
        assert place(load_graph(out), Target("orin", tensorrt)).runs_entirely_on_dla
    photos = sorted((assets / "images" / "coco_val_ccby").glob("*.jpg"))
    images = [cv2.imread(str(path)) for path in photos]
    same_detections(detector(model, threshold=0.1), detector(out, threshold=0.1), images, 10)


# --- other networks ------------------------------------------------------------------------------


def test_fastestdet_runs_on_an_orin_without_a_cut_and_without_a_description(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = assets / "models" / "fastestdet_352.onnx"
    out = tmp_path / "out.onnx"
    assert prepare(model, "-o", out) == 0
    assert "no description is written" in capsys.readouterr().err
    assert not out.with_suffix(".yaml").exists()
    x = np.random.default_rng(0).uniform(0, 1, (1, 3, 352, 352)).astype(np.float32)
    before, after = (run(load_graph(path), x)[0] for path in (model, out))
    np.testing.assert_allclose(after, before, atol=1e-4)


def test_a_head_of_no_family_is_refused_by_name(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = assets / "models" / "fastestdet_352.onnx"
    assert prepare(model, "-o", tmp_path / "out.onnx", "--target", "xavier") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "fastestdet_352.onnx" in error
    assert "or give --cut TENSOR,... or --no-cut" in error


def backbone(tmp_path: Path, *activation: str) -> Path:
    net = Network((1, 3, 32, 32), opset=18)
    tensor = net.conv("x", 3, 8, pads=[1] * 4)
    for op in activation:
        tensor = net.add(op, tensor)
    net.add("Div", net.conv(tensor, 8, 8), net.constant(2.0))
    return Path(net.save(tmp_path / "net.onnx"))


def test_a_network_that_cannot_be_mended_is_written_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    assert prepare(backbone(tmp_path, "Mish"), "-o", out, "--no-cut") == 1
    text = capsys.readouterr().out
    assert out.exists()
    assert "1 layers still run on the GPU" in text
    assert "Mish" in text


def test_activations_are_replaced_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    model = backbone(tmp_path, "Mish", "HardSwish")
    assert (
        prepare(
            model, "-o", out, "--no-cut", "--replace", "Mish=SiLU", "--replace", "HardSwish=Relu"
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "APPROXIMATION Mish -> SiLU, HardSwish -> Relu" in text
    assert [node.op_type for node in load_graph(out).nodes] == [
        "Conv",
        "Sigmoid",
        "Mul",
        "Relu",
        "Conv",
    ]


def test_a_cut_at_named_tensors(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert prepare(backbone(tmp_path, "Relu"), "-o", out, "--cut", "t1,t0") == 0
    assert load_graph(out).outputs == ["t1", "t0"]


def test_dynamic_sizes_are_fixed(tmp_path: Path) -> None:
    net = Network(("n", 3, "h", "w"))
    shape = net.add("Shape", net.conv("x", 3, 8, strides=[2, 2], pads=[1] * 4))
    half = net.add("Slice", shape, *(net.constant([v], np.int64) for v in (2, 4, 0)))
    double = net.add("Mul", half, net.constant([2, 2], np.int64))
    sizes = net.add("Concat", net.constant([1, 8], np.int64), double, axis=0)
    net.add(
        "Resize",
        "t0",
        "",
        "",
        sizes,
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    model = net.save(tmp_path / "net.onnx")
    out = tmp_path / "out.onnx"
    assert prepare(model, "-o", out, "--no-cut", "--shape", "1x3x64x32") == 0
    graph = load_graph(out)
    assert graph.inputs["x"].shape == (1, 3, 64, 32)
    assert [node.op_type for node in graph.nodes] == ["Conv", "Resize"]


def test_prepared_networks_are_read_by_a_real_builder(assets: Path, yolox_nano: Path) -> None:
    """TensorRT-RTX has no DLA, but TensorRT's parser: one layer a node, under its name."""
    trt: Any = pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX is not installed")
    logger = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(logger).create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(yolox_nano.read_bytes())
    layers = [network.get_layer(index).name for index in range(network.num_layers)]
    assert layers == [node.name for node in load_graph(yolox_nano).nodes]


# --- proof ---------------------------------------------------------------------------------------


def test_a_wrong_rewrite_is_caught_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = division.apply

    def wrong(graph: Any, target: Any) -> list[str]:
        for node in graph.nodes:
            if node.op_type == "Div":
                graph.constants[node.input[1]] = graph.constants[node.input[1]] * np.float32(1.01)
        return real(graph, target)

    monkeypatch.setattr(division, "apply", wrong)
    net = Network((1, 3, 16, 16))
    net.add("Div", net.add("Relu", net.conv("x", 3, 4)), net.constant(2.0))
    out = tmp_path / "out.onnx"
    assert prepare(net.save(tmp_path / "net.onnx"), "-o", out, "--no-cut") == 2
    error = capsys.readouterr().err
    assert "the rewrite 'division' of node 'Div_2' changes the result by" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 100.0], [1.0, 101.0], 0.01),
        ([0.0, 0.5], [0.0, 0.6], 0.1),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([1.0, np.inf], [2.0, np.inf], 1.0),
    ],
)
def test_differences(one: list[float], other: list[float], difference: float) -> None:
    arrays = np.array(one, np.float32), np.array(other, np.float32)
    assert preparation._difference(*arrays) == pytest.approx(difference, abs=1e-6)


def test_other_shapes_and_other_numbers_are_no_rounding() -> None:
    assert preparation._difference(np.zeros((1, 2)), np.zeros((2, 1))) == np.inf
    assert preparation._difference(np.array([1]), np.array([2])) == np.inf


def test_every_step_is_told_with_its_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Network((1, 3, 16, 16))
    stats = [net.constant(np.full(4, value)) for value in (1.5, 0.1, 0.2, 0.9)]
    normed = net.add("BatchNormalization", net.conv("x", 3, 4), *stats)
    net.add("MaxPool", net.add("Identity", normed), kernel_shape=[9, 9], pads=[4] * 4)
    assert (
        prepare(net.save(tmp_path / "net.onnx"), "-o", tmp_path / "o.onnx", "--no-cut", "--json")
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in document["steps"]] == [
        "no-ops",
        "batch normalisation",
        "stacked pools",
    ]
    assert all(0 <= step["difference"] <= document["tolerance"] for step in document["steps"])
    assert document["steps"][1]["nodes"] == ["BatchNormalization_1"]


def test_a_network_that_cannot_be_run_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Network((1, 3, 16, 16))
    net.conv("x", 5, 4)
    assert prepare(net.save(tmp_path / "net.onnx"), "-o", tmp_path / "o.onnx", "--no-cut") == 2
    error = capsys.readouterr().err
    assert "net.onnx: it cannot be run" in error
    assert error.splitlines()[-1].startswith("dla-perception prepare:")


# --- wrong use -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "{folder}/out.engine"], "expected a name that ends with .onnx"),
        (["-o", "{folder}/net.onnx"], "it is the model itself"),
        (["-o", "{folder}/no/out.onnx"], "there is no folder"),
        (["-o", "{folder}/o.onnx", "--images", "x"], "--images and --annotations go together"),
        (["-o", "{folder}/o.onnx", "--replace", "Mish"], "expected OLD=NEW"),
        (["-o", "{folder}/o.onnx", "--no-cut", "--replace", "Mish=Relu"], "has no activation"),
        (["-o", "{folder}/o.onnx", "--cut", "nowhere"], "it has no tensor 'nowhere' to cut at"),
    ],
)
def test_wrong_use(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = backbone(tmp_path, "Relu")
    assert prepare(model, *[text.format(folder=tmp_path) for text in arguments]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_quantised_network_is_to_be_translated_first(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.onnx"
    assert prepare(assets / "models" / "yolox_nano_416_ptq_qdq.onnx", "-o", out) == 2
    assert "QuantizeLinear: a network with Q/DQ nodes is to be made plain first" in (
        capsys.readouterr().err
    )
    assert not out.exists()


def test_images_without_a_description_are_told_before_the_work(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.onnx"
    options = [
        "--images", assets / "images" / "coco_val_ccby",
        "--annotations", assets / "images" / "instances_val_ccby.json",
    ]  # fmt: skip
    assert prepare(backbone(tmp_path, "Relu"), "-o", out, "--no-cut", *options) == 2
    assert "without a description boxes cannot be decoded" in capsys.readouterr().err
    options[3] = tmp_path / "none.json"
    assert prepare(backbone(tmp_path, "Relu"), "-o", out, "--no-cut", *options) == 2
    assert "none.json: cannot read it" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("tensorrt", "code"), [("8.6", 2), ("10.3", 0)])
def test_the_opset_must_suit_the_release(tmp_path: Path, tensorrt: str, code: int) -> None:
    model = backbone(tmp_path, "Relu")
    out = tmp_path / "o.onnx"
    assert prepare(model, "-o", out, "--no-cut", "--tensorrt", tensorrt) == code
