"""The verbs build and inspect over stand-ins for TensorRT and CUDA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stand_in_fixtures import Install, convolution_network, install  # noqa: F401

from dla_perception.cli.main import main
from dla_perception.compiler.quantization.cache import CalibrationCache, write_cache
from dla_perception.detection.detector import Detector
from dla_perception.detection.images import read_image
from dla_perception.detection.recognition import describe_model
from dla_perception.detection.self_test import SelfTestError, check_self_test, recorded_self_test
from dla_perception.engines.loading import open_engine
from dla_perception.engines.manifest import manifest_path, parse_manifest


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(item) for item in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(convolution_network())
    return path


def yolox(assets: Path, folder: Path) -> Path:
    """YOLOX-Nano with a description beside it."""
    path = folder / "yolox.onnx"
    path.write_bytes((assets / "models" / "yolox_nano_416.onnx").read_bytes())
    path.with_suffix(".yaml").write_text("family: yolox\nchannel_order: bgr\n")
    return path


@pytest.mark.parametrize("version", ["8.5.2", "10.3.0", "11.4.1"])
def test_a_detector_is_built_tested_and_finds_the_same(
    install: Install,
    assets: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    version: str,
) -> None:
    install(version)
    model, engine_path = yolox(assets, tmp_path), tmp_path / "out" / "yolox.engine"
    engine_path.parent.mkdir()
    dog = assets / "images" / "classic" / "dog.jpg"
    code, out, err = run(
        capsys, "build", model, "-o", engine_path, "--dla-core", 1, "--gpu-fallback", "warn",
        "--self-test-image", dog, "--labels", "coco",
    )  # fmt: skip
    assert code == 0
    assert f"{engine_path}: plan for DLA core 1, fp16, TensorRT {version}" in out
    assert "  gpu: " in out
    assert "warning: " in err
    assert "layers run on the GPU, not on DLA core 1" in err
    assert "detections recorded" in out
    manifest = parse_manifest(manifest_path(engine_path))
    assert manifest.self_test is not None
    # the description went along, so that the engine is read as the network is
    assert engine_path.with_suffix(".yaml").read_text() == model.with_suffix(".yaml").read_text()

    found = []
    for path, options in ((model, {}), (engine_path, {"dla_core": 1, "gpu_fallback": "warn"})):
        engine = open_engine(path, **options)
        try:
            detector = Detector(engine, describe_model(engine, labels="coco"))
            found.append(detector.detect(read_image(dog)).detections)
            recorded = recorded_self_test(engine)
            assert recorded == (None if path == model else manifest.self_test)
            result = check_self_test(detector, manifest.self_test)
            assert result.passed
            assert result.found == result.expected >= 3
        finally:
            engine.close()
    assert found[0].class_ids.tolist() == found[1].class_ids.tolist()
    np.testing.assert_allclose(found[0].boxes, found[1].boxes, atol=1.5)
    np.testing.assert_allclose(found[0].scores, found[1].scores, atol=0.02)


DEMO = Path(__file__).parents[2] / "dla_perception" / "demo" / "model" / "demo_yolo.onnx"


@pytest.mark.skipif(not DEMO.exists(), reason="the demo's network is not there yet")
@pytest.mark.parametrize("version", ["8.5.2", "10.3.0", "11.4.1"])
def test_the_demos_network_runs_on_the_dla_alone(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str
) -> None:
    board = install(version)
    path = tmp_path / "demo.engine"
    code, out, err = run(capsys, "build", DEMO, "-o", path, "--dla-core", 1)
    assert (code, err) == (0, "")
    assert "1 layers on the DLA, 0 on the GPU" in out
    assert "dla_hwc4" in out
    assert out.count("float16 chw16") == 3
    # the self-test's picture is a scene of the demo
    assert "detections recorded" in out
    engine = open_engine(path, dla_core=1)
    try:
        assert board.core_taken == 1
        record = recorded_self_test(engine)
        assert record is not None
        result = check_self_test(Detector(engine, describe_model(engine)), record)
        assert result.found == result.expected >= 1
    finally:
        engine.close()


def test_an_engine_that_answers_wrongly_is_found_out(
    install: Install, assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = install()
    model, path = yolox(assets, tmp_path), tmp_path / "yolox.engine"
    dog = assets / "images" / "classic" / "dog.jpg"
    run(capsys, "build", model, "-o", path, "--self-test-image", dog)
    board.wrong_result = True
    engine = open_engine(path)
    try:
        detector = Detector(engine, describe_model(engine))
        record = recorded_self_test(engine)
        assert record is not None
        with pytest.raises(SelfTestError, match="on gpu: self-test: 0 of 3 expected objects found"):
            check_self_test(detector, record)
    finally:
        engine.close()


def test_json_and_reuse(
    install: Install, network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    engine = tmp_path / "net.engine"
    arguments = ("build", network, "-o", engine, "--dla-core", 0, "--reuse", "--json")
    code, out, err = run(capsys, *arguments)
    document = json.loads(out)
    assert (code, document["built"], document["kind"]) == (0, True, "plan")
    assert document["layers"] == [
        {"name": "{ForeignNode[conv...relu]}", "device": "dla", "reason": ""}
    ]
    assert f"{engine}: building, because there is no engine yet" in err
    assert "warning: no self-test: " in err
    code, out, err = run(capsys, *arguments)
    assert (code, json.loads(out)["built"]) == (0, False)
    assert err == f"{engine}: up to date\n"
    code, _, err = run(capsys, *arguments, "--gpu-fallback", "allow")
    assert "because its fallback policy is forbid, allow is wanted" in err


def test_standalone_int8_and_inspect(
    install: Install, network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    cache = tmp_path / "net.cache"
    write_cache(cache, CalibrationCache({"x": 1 / 127, "c": 0.06, "y": 0.05}))
    loadable = tmp_path / "net.dla"
    code, out, _ = run(
        capsys, "build", network, "-o", loadable, "--dla-core", 0, "--standalone",
        "--precision", "int8", "--calibration-cache", cache, "--output-format", "int8:chw32",
        "--pool", "dlaSRAM:1", "--timing-cache", tmp_path / "timing",
    )  # fmt: skip
    assert code == 0
    assert "loadable for DLA core 0, int8" in out
    code, out, _ = run(capsys, "inspect", loadable)
    assert code == 0
    assert f"{loadable}: DLA loadable" in out
    assert "for DLA core 0 of Orin (8.7, 2 DLA cores), int8, TensorRT 10.3.0" in out
    assert "input: x [1, 3, 8, 10] int8 dla_hwc4, scale 0.00787402" in out
    assert "output: y [1, 20, 8, 10] int8 chw32, scale 0.05" in out
    code, out, _ = run(capsys, "inspect", loadable, "--json")
    document = json.loads(out)
    assert document["record"]["settings"]["pools"] == {"dlaSRAM": 1 << 20}
    assert document["record"]["settings"]["calibration_cache"] == "net.cache"


def test_refusal_is_one_line_and_writes_nothing(
    install: Install, network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(dla_cores=0)
    code, out, err = run(capsys, "build", network, "-o", tmp_path / "e", "--dla-core", 0)
    assert (code, out) == (2, "")
    assert "finds no DLA core; check that the module has a DLA" in err.splitlines()[-1]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["net.onnx"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--precision", "int8"), "int8 needs the scales"),
        (("--dla-core", "0", "--pool", "dlaSRAM:x"), "--pool dlaSRAM:x: expected NAME:MIB"),
        (("--dla-core", "0", "--pool", "dlaSRAM:3"), "3145728 bytes cannot be; expected a power"),
        (("--input-format", "fp16"), "format 'fp16': expected TYPE:LAYOUT"),
        (("--tensorrt", "10.3"), "--tensorrt matters to --print-trtexec only"),
        (("--print-trtexec", "--tensorrt", "new"), "--tensorrt new: expected a version"),
        (("--calibration-cache", "absent"), "a calibration cache has no effect in precision fp16"),
    ],
)
def test_wrong_use(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Any, message: str
) -> None:
    code, _, err = run(capsys, "build", network, "-o", tmp_path / "e", *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_print_trtexec(
    install: Install, network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = tmp_path / "e"
    arguments = ("build", network, "-o", engine, "--dla-core", 0, "--print-trtexec")
    code, out, err = run(capsys, *arguments, "--tensorrt", "8.5.2")
    assert (code, err) == (0, "")
    assert out.startswith("/usr/src/tensorrt/bin/trtexec --onnx=")
    assert "--useDLACore=0" in out
    assert not engine.exists()
    code, out, err = run(capsys, *arguments, "--tensorrt", "11.4.1", "--json")
    assert f"--onnx={engine}.fp16.onnx" in json.loads(out)["trtexec"]
    assert Path(f"{engine}.fp16.onnx").exists()
    # by default for the TensorRT that is here
    install("8.6.2")
    code, out, _ = run(capsys, *arguments)
    assert "--skipInference" in out


def test_self_test_picture_without_objects(
    install: Install, assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    from dla_perception.detection.images import write_image

    blank = tmp_path / "blank.png"
    write_image(blank, np.full((40, 40, 3), 114, np.uint8))
    engine = tmp_path / "e"
    code, _, err = run(
        capsys, "build", yolox(assets, tmp_path), "-o", engine, "--self-test-image", blank
    )
    assert code == 0
    assert f"no self-test: the network finds nothing in {blank}; give a picture" in err
    assert parse_manifest(manifest_path(engine)).self_test is None


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("models/yolox_nano_416.onnx", ["ONNX network", "input: images [1, 3, 416, 416] float"]),
        ("calibration_caches/yolox_nano_416_ptq.cache", ["algorithm: EntropyCalibration2"]),
        ("darknet/yolo-fastest-1.1.weights", ["Darknet weights"]),
    ],
)
def test_inspect_real_files(
    assets: Path, capsys: pytest.CaptureFixture[str], pattern: str, expected: list
) -> None:
    code, out, _ = run(capsys, "inspect", assets / pattern)
    assert code == 0
    for text in expected:
        assert text in out


def test_inspect_what_is_of_no_use(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "inspect", assets / "images" / "classic" / "dog.jpg")
    assert (code, "unknown" in out) == (1, True)
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(convolution_network()[:-100])
    code, out, _ = run(capsys, "inspect", cut)
    assert code == 1
    assert "damage: it is cut off" in out
    code, _, err = run(capsys, "inspect", tmp_path / "absent")
    assert (code, "there is no such file" in err) == (2, True)


def test_inspect_an_engine_without_record_or_with_anothers(
    install: Install, network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    engine = tmp_path / "e"
    run(capsys, "build", network, "-o", engine)
    engine.write_bytes(engine.read_bytes() + b"x")
    code, out, _ = run(capsys, "inspect", engine)
    assert "it records another engine than" in out
    manifest_path(engine).unlink()
    code, out, _ = run(capsys, "inspect", engine, "--json")
    document = json.loads(out)
    assert (code, document["kind"], document["tensorrt"]) == (0, "TensorRT plan", "10.3.0.0")
    assert document["record"].startswith("none beside it")
