"""``evaluate --precision``: what a network would reach in FP16 and INT8."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dla_perception.cli.main import main
from dla_perception.compiler.quantization.cache import CalibrationCache, read_cache, write_cache


def evaluate(assets: Path, *options: str) -> int:
    images = assets / "images"
    return main(
        [
            "evaluate",
            str(assets / "models" / "yolox_nano_416.onnx"),
            *("--images", str(images / "coco_val_ccby")),
            *("--annotations", str(images / "instances_val_ccby.json")),
            *("--labels", "coco", "--json"),
            *options,
        ]
    )


def test_fp16_is_almost_as_good_as_fp32(assets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(assets, "--precision", "fp16") == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert result["precision"] == "fp16"
    assert result["AP"] == pytest.approx(0.3266, abs=0.01)
    assert "0 layers in INT8, 149 in FP16, emulated" in output.err


def test_int8_with_the_scales_of_a_cache(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scales = read_cache(assets / "calibration_caches" / "yolox_nano_416_ptq.cache").scales
    cache = tmp_path / "some.cache"
    write_cache(cache, CalibrationCache({**scales, "elsewhere": 1.0}))
    assert evaluate(assets, "--precision", "int8", "--cache", str(cache)) == 0
    output = capsys.readouterr()
    assert 0.31 < json.loads(output.out)["AP"] < 0.36
    assert "1 of its 96 tensors, such as 'elsewhere', are not in" in output.err
    assert "76 layers in INT8, 73 in FP16, emulated" in output.err


def test_wrong_use(assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nvidia = str(assets / "calibration_caches" / "cudla_yolov5s_qat2ptq.cache")
    wrong = {
        ("--precision", "int8"): "--precision int8 needs --cache FILE",
        ("--cache", nvidia): "goes with --precision int8 only",
        # both networks have an input 'images', and nothing else in common
        ("--precision", "int8", "--cache", nvidia): "196 of its 197 tensors are not in the network",
        ("--precision", "int8", "--cache", str(tmp_path / "x")): "No such file",
    }
    for options, message in wrong.items():
        assert evaluate(assets, *options) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
