"""Scales from images: what is measured, the files that come out, and what they are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterable

import cv2
import numpy as np
import pytest
from quantization_networks import graph_of, model_of, node, write_detector

from dla_perception.cli.main import main
from dla_perception.compiler.graph import Graph, load_graph
from dla_perception.compiler.quantization.cache import CalibrationCache, read_cache, write_cache
from dla_perception.compiler.quantization.calibration import (
    CalibrationError,
    Statistics,
    scales_of,
)
from dla_perception.compiler.quantization.sensitivity import losses
from dla_perception.compiler.quantization.unification import unify
from dla_perception.detection.images import read_image
from dla_perception.detection.preprocess import Preprocessor
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.loading import open_engine

RNG = np.random.default_rng(0)
IMAGES = [RNG.normal(size=(1, 2, 16, 16)).astype(np.float32) * (i + 1) for i in range(3)]
NETWORK = [
    node("Conv", "x w", "conv"),
    node("Sigmoid", "conv", "gate"),
    node("Mul", "conv gate", "silu"),
    node("Conv", "silu w", "head"),
    node("Relu", "zero_of", "nothing"),
]


def small() -> Graph:
    nodes = [*NETWORK[:4], node("Mul", "silu none", "zero_of"), NETWORK[4]]
    nodes.append(node("Conv", "nothing w", "end"))
    constants = {"w": np.eye(2, dtype=np.float32)[:, :, None, None], "none": np.float32(0)}
    shape = [1, 2, 16, 16]
    return graph_of(model_of(nodes, constants, shape, {"head": shape, "end": shape}))


def test_largest_values_and_histograms() -> None:
    statistics = Statistics(small(), lambda: IMAGES)
    values = np.abs(np.concatenate(IMAGES))
    assert statistics.largest["x"] == values.max()
    assert statistics.largest["nothing"] == 0
    assert "nothing" not in statistics.histograms
    counts = np.histogram(values, 2048, (0, float(values.max())))[0]
    assert statistics.histograms["x"].sum() == values.size
    assert np.abs(statistics.histograms["x"] - counts).sum() <= 4  # values on an edge


def test_scales_of_each_method() -> None:
    graph = small()
    statistics = Statistics(graph, lambda: IMAGES)
    values = np.abs(np.concatenate(IMAGES))
    scales = scales_of(graph, statistics, "minmax")
    assert scales["x"] == pytest.approx(values.max() / 127)
    assert scales["gate"] == scales["nothing"] == 1 / 127
    # what lies behind the last convolutions runs in FP16
    assert list(scales) == ["x", "conv", "gate", "silu", "zero_of", "nothing"]
    assert list(scales_of(graph, statistics, "minmax", int8_heads=True))[-1] == "end"
    percentile = scales_of(graph, statistics, "percentile", 90)
    assert percentile["x"] == pytest.approx(np.percentile(values, 90) / 127, rel=0.01)
    entropy = scales_of(graph, statistics, "entropy")
    assert percentile["x"] < entropy["x"] <= scales["x"]
    without = scales_of(graph, statistics, "minmax", fp16_layers=["co*"])
    assert list(without) == ["x", "zero_of", "nothing"]
    with pytest.raises(CalibrationError, match="no layer is called 'backbone'; its layers: conv"):
        scales_of(graph, statistics, "minmax", fp16_layers=["backbone"])


def test_images_that_cannot_be_calibrated_with() -> None:
    with pytest.raises(CalibrationError, match="there is no image"):
        Statistics(small(), list)
    with pytest.raises(CalibrationError, match="tensor 'x' is not finite on image 1"):
        Statistics(small(), lambda: [np.full((1, 2, 16, 16), np.inf, np.float32)])


def test_the_layer_that_loses_most_comes_first() -> None:
    nodes = [node("Conv", "x w", "good"), node("Conv", "good w", "bad"), node("Conv", "bad w", "y")]
    shape = [1, 2, 16, 16]
    constants = {"w": np.eye(2, dtype=np.float32)[:, :, None, None]}
    graph = graph_of(model_of(nodes, constants, shape, {"y": shape}))
    fine = float(np.abs(np.concatenate(IMAGES)).max() / 127)
    scales = {"x": fine, "good": fine, "bad": 20 * fine, "y": fine}
    found = losses(graph, scales, IMAGES[:1])
    # 'y' reads what 'bad' returns: both suffer from its scale
    assert [loss.layer for loss in found][-1] == "good"
    assert found[0].signal_to_noise_db < found[-1].signal_to_noise_db - 15
    noise = IMAGES[0] - np.rint(IMAGES[0] / fine) * fine
    expected = 10 * np.log10(np.square(IMAGES[0]).sum() / np.square(noise).sum())
    assert found[-1].signal_to_noise_db == pytest.approx(expected, abs=0.1)


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    write_detector(tmp_path / "net.onnx")
    folder = tmp_path / "images"
    folder.mkdir()
    for index in range(4):
        picture = RNG.integers(0, 256, (40 + index, 70, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{index}.png"), picture)
    return tmp_path


def test_the_verb(detector: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["calibrate", str(detector / "net.onnx"), "--images", str(detector / "images")]
    out = detector / "net.cache"
    options = ["--method", "minmax", "--tensorrt", "10.3", "--sensitivity", "--fp16-worst", "1"]
    assert main([*command, "-o", str(out), *options]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[0].startswith("signal to noise")
    levels = [float(line.split()[0]) for line in text[1:4]]
    assert levels == sorted(levels)
    worst = text[1].split()[-1]
    assert text[4] == f"left in FP16: {worst}"
    cache = read_cache(out)
    assert (cache.version, cache.algorithm) == (100300, "EntropyCalibration2")
    level = worst[-1]
    assert f"silu{level}" not in cache.scales
    assert len(cache.scales) == 10 - 3
    assert text[5].endswith(
        f"{len(cache.scales)} tensors from 4 images, minmax: "
        f"{1 if level == '1' else 2 if level == '2' else 1} layers in INT8, "
        f"{5 if level == '1' else 4 if level == '2' else 5} in FP16"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "nowhere"], "nowhere: there is no such folder"),
        (["--images", "."], "it holds no image; expected files that end in .jpg"),
        (["--images", "images", "--tensorrt", "x"], "expected one such as 8.6"),
        (["--images", "images", "--fp16", "nope"], "no layer is called 'nope'"),
    ],
)
def test_wrong_use(
    detector: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(detector)
    assert main(["calibrate", "net.onnx", "-o", "net.cache", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


# ---- YOLOX-Nano, calibrated on 26 photos of COCO's training set

WORST = ["Conv_41", "Conv_44"]
"""A pointwise and a depthwise convolution at the very beginning: --sensitivity lists them first.

The channels of what they return differ so much in range that no scale fits all.
"""


@pytest.fixture(scope="module")
def measured(assets: Path) -> tuple[Graph, Statistics]:
    path = assets / "models" / "yolox_nano_416.onnx"
    engine = open_engine(path)
    preprocess = Preprocessor(describe_model(engine), engine.inputs[0])
    engine.close()

    def images() -> Iterable[np.ndarray]:
        buffer = np.empty((1, 3, 416, 416), np.float32)
        for photo in sorted((assets / "images" / "coco_train_ccby_calib").glob("*.jpg")):
            preprocess(read_image(photo), "bgr", buffer)
            yield buffer

    graph = load_graph(path)
    return graph, Statistics(graph, images)


@pytest.mark.parametrize(
    ("method", "fp16_layers", "least", "most"),
    [
        ("entropy", [], 0.2, 0.3),
        ("minmax", [], 0.0, 0.05),
        ("entropy", WORST, 0.27, 0.36),
        ("minmax", WORST, 0.2966, 0.3566),  # within 0.03 of float32's 0.3266
    ],
)
def test_precision_of_yolox_nano(
    assets: Path,
    tmp_path: Path,
    measured: tuple[Graph, Statistics],
    capsys: pytest.CaptureFixture[str],
    method: str,
    fp16_layers: list[str],
    least: float,
    most: float,
) -> None:
    graph, statistics = measured
    scales = unify(graph, scales_of(graph, statistics, method, fp16_layers=fp16_layers))[0]
    cache = tmp_path / "nano.cache"
    write_cache(cache, CalibrationCache(scales))
    model = assets / "models" / "yolox_nano_416.onnx"
    photos = ["--images", str(assets / "images" / "coco_val_ccby"), "--labels", "coco"]
    truth = ["--annotations", str(assets / "images" / "instances_val_ccby.json")]
    precision = ["--precision", "int8", "--cache", str(cache)]
    assert main(["evaluate", str(model), *photos, *truth, *precision, "--json"]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert result["precision"] == "int8"
    assert least <= result["AP"] <= most
    count = 130 if not fp16_layers else 127
    assert f"{count} layers in INT8, {149 - count} in FP16, emulated" in output.err
