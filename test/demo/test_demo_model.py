"""The network that the package ships: its layers, its size, its description, and what it finds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dla_perception.demo.dataset import (
    HELD_OUT_DRIVES,
    HELD_OUT_STILLS,
    TRAINING_SEED,
    held_out_drive_frames,
    held_out_stills,
)
from dla_perception.demo.evaluate_model import MODEL, main, write_description
from dla_perception.demo.scene import CLASS_NAMES
from dla_perception.demo.scoring import Score
from dla_perception.detection.description import read_description
from dla_perception.detection.detector import DetectionSettings, Detector
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.loading import open_engine

# the model is checked and run here, which an installation may do without
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ALLOWED = {"Conv", "Relu", "MaxPool", "Resize", "Concat"}


@pytest.fixture(scope="module")
def model() -> object:
    loaded = onnx.load(str(MODEL))
    onnx.checker.check_model(loaded, full_check=True)
    return loaded


def attributes(node: object) -> dict[str, object]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}  # type: ignore[attr-defined]


def test_it_is_small() -> None:
    assert MODEL.stat().st_size <= 1_500_000


def test_every_layer_is_one_that_a_dla_takes(model: onnx.ModelProto) -> None:
    assert {node.op_type for node in model.graph.node} == ALLOWED
    constants = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer
    }
    for node in model.graph.node:
        given = attributes(node)
        if node.op_type == "MaxPool":
            assert max(given["kernel_shape"]) <= 8
            assert given.get("ceil_mode", 0) == 0
        elif node.op_type == "Concat":
            assert given["axis"] == 1
        elif node.op_type == "Conv":
            assert node.input[1] in constants
            assert given.get("group", 1) == 1
        elif node.op_type == "Resize":
            # scales and no sizes
            assert len(node.input) == 3
            assert constants[node.input[2]].tolist() == [1, 1, 2, 2]
            assert given["mode"] == b"nearest"
            assert given["coordinate_transformation_mode"] == b"asymmetric"
            assert given["nearest_mode"] == b"floor"


def test_shapes_are_static_and_the_outputs_are_raw_convolutions(model: onnx.ModelProto) -> None:
    def shape(value: object) -> list[int]:
        return [d.dim_value for d in value.type.tensor_type.shape.dim]  # type: ignore[attr-defined]

    assert 13 <= model.opset_import[0].version <= 17
    assert [(v.name, shape(v)) for v in model.graph.input] == [("images", [1, 3, 256, 320])]
    channels = 5 + len(CLASS_NAMES)
    assert [(v.name, shape(v)) for v in model.graph.output] == [
        ("head_s8", [1, channels, 32, 40]),
        ("head_s16", [1, channels, 16, 20]),
        ("head_s32", [1, channels, 8, 10]),
    ]
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    assert {makers[v.name] for v in model.graph.output} == {"Conv"}


def test_the_weights_are_fit_for_int8(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        assert np.isfinite(values).all()
        assert np.abs(values).max() < 40


def test_the_description_fits_the_network() -> None:
    stated = read_description(MODEL.with_suffix(".yaml"))
    assert stated["metrics"]["images"] == 500
    assert stated["metrics"]["mAP50"] >= 0.90
    engine = open_engine(MODEL)
    try:
        description = describe_model(engine)
    finally:
        engine.close()
    assert description.family == "yolox"
    assert description.class_names == CLASS_NAMES
    assert description.input_size == (320, 256)
    assert description.channel_order == "rgb"
    assert description.scale == pytest.approx(1 / 255)
    assert (description.placement.value, description.pad_value) == ("centre", 114)
    assert description.strides == (8, 16, 32)


def test_it_finds_most_of_what_is_in_pictures_it_was_not_trained_on() -> None:
    # coarse on purpose: evaluate_model measures on many more
    engine = open_engine(MODEL)
    try:
        detector = Detector(engine, describe_model(engine), DetectionSettings(0.4))
        score = Score()
        for frames in (held_out_stills(20), held_out_drive_frames(20)):
            for frame in frames:
                found = detector.detect(frame.pixels).detections
                score.add(found, frame.truth, frame.ignore)
    finally:
        engine.close()
    assert score.hits + score.misses > 100
    assert score.recall >= 0.88
    assert score.precision >= 0.85


def test_held_out_seeds_are_none_of_the_training() -> None:
    assert HELD_OUT_STILLS + 500 <= HELD_OUT_DRIVES
    assert HELD_OUT_DRIVES + 500 <= TRAINING_SEED


def test_the_evaluation_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "demo_yolo.onnx"
    copy.write_bytes(MODEL.read_bytes())
    write_description(copy.with_suffix(".yaml"), {})
    assert read_description(copy.with_suffix(".yaml"))["metrics"] == {}
    assert main(["--model", str(copy), "--images", "3", "--json", "--write"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["stills"]["images"] == report["drives"]["images"] == 3
    metrics = read_description(copy.with_suffix(".yaml"))["metrics"]
    assert metrics["mAP50"] == report["stills"]["mAP50"]
