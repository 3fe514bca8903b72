"""The record beside an engine: what it says, and when an engine has to be built again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stand_in_fixtures import SHAPE_IN, convolution_network

from dla_perception.compiler.builder import (
    BuildPlan,
    BuildResult,
    BuildSettings,
    IoFormat,
    plan_build,
)
from dla_perception.compiler.manifest import make_manifest, reason_to_build, write_engine
from dla_perception.compiler.quantization.cache import CalibrationCache, write_cache
from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.inspector import LayerPlacement
from dla_perception.engines.manifest import (
    EngineManifest,
    Machine,
    file_sha256,
    manifest_path,
    read_manifest,
)

ORIN = Machine("Orin", "8.7", 2)


def cache_of(folder: Path, scale: float) -> str:
    path = folder / "net.cache"
    write_cache(path, CalibrationCache({"x": scale, "c": scale, "y": scale}))
    return str(path)


def make_plan(folder: Path, **changes: object) -> BuildPlan:
    network = folder / "net.onnx"
    if not network.exists():
        network.write_bytes(convolution_network())
    settings = BuildSettings(
        dla_core=0,
        precision="int8",
        calibration_cache=cache_of(folder, 0.1),
        pools={"dlaSRAM": 1 << 20},
    )
    return plan_build(network, folder / "net.engine", replace(settings, **changes))


def make_result() -> BuildResult:
    return BuildResult(
        content=b"ftrt a plan",
        inputs=(TensorSpec("x", SHAPE_IN, np.dtype(np.int8), scale=0.1),),
        outputs=(),
        layers=(LayerPlacement("a", "dla"), LayerPlacement("b", "gpu", "Unsupported on DLA")),
        tensorrt_version="10.3.0",
        machine=ORIN,
        strongly_typed=False,
        warnings=(),
        seconds=1.2345,
    )


def built(folder: Path) -> EngineManifest:
    plan, result = make_plan(folder), make_result()
    manifest = make_manifest(plan, result, {"picture_jpeg": "", "detections": []})
    write_engine(plan, result, manifest)
    return manifest


def test_record_holds_what_the_engine_was_built_from(tmp_path: Path) -> None:
    manifest = built(tmp_path)
    assert (tmp_path / "net.engine").read_bytes() == b"ftrt a plan"
    found = read_manifest(tmp_path / "net.engine", file_sha256(tmp_path / "net.engine"))
    assert found == manifest
    assert found is not None
    assert found.onnx_sha256 == file_sha256(tmp_path / "net.onnx")
    assert (found.kind, found.precision, found.dla_core) == ("plan", "int8", 0)
    assert (found.tensorrt_version, found.machine) == ("10.3.0", ORIN)
    assert found.spec("x") == make_result().inputs[0]
    assert found.spec("z") is None
    assert [layer.name for layer in found.layers_on("gpu")] == ["b"]
    assert found.settings["calibration_cache_sha256"] == file_sha256(tmp_path / "net.cache")
    assert found.settings["calibration_algorithm"] == "EntropyCalibration2"
    assert found.settings["input_formats"] == ["int8:dla_hwc4"]
    assert found.build_seconds == 1.234 or found.build_seconds == 1.235
    assert found.built_at.endswith("Z")


def test_an_engine_that_fits_is_kept(tmp_path: Path) -> None:
    built(tmp_path)
    assert reason_to_build(make_plan(tmp_path), "10.3.0", ORIN) is None
    unknown = replace(ORIN, dla_cores=-1)
    assert reason_to_build(make_plan(tmp_path), "10.3.0", unknown) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dla_core": 1}, "its DLA core is 0, 1 is wanted"),
        ({"gpu_fallback": "warn"}, "its fallback policy is forbid, warn is wanted"),
        ({"standalone": True}, "its kind is plan, loadable is wanted"),
        ({"precision": "fp16", "calibration_cache": None}, "its precision is int8, fp16 is wanted"),
        ({"fp16_layers": ("conv",)}, "its fp16 layers is none, conv is wanted"),
        ({"pools": {}}, "its pools is {'dlaSRAM': 1048576}, {} is wanted"),
        ({"output_formats": (IoFormat("int8", "chw32"),)},
         "its output formats is fp16:chw16, int8:chw32 is wanted"),
    ],
)  # fmt: skip
def test_other_settings(tmp_path: Path, changes: dict, reason: str) -> None:
    built(tmp_path)
    assert reason_to_build(make_plan(tmp_path, **changes), "10.3.0", ORIN) == reason


@pytest.mark.parametrize(
    ("version", "machine", "reason"),
    [
        ("10.7.0", ORIN, "its TensorRT is 10.3.0, 10.7.0 is wanted"),
        ("10.3.0", Machine("Xavier", "7.2", 2), "its GPU is Orin 8.7, Xavier 7.2 is wanted"),
        ("10.3.0", Machine("Orin", "8.7", 1), "its DLA cores is 2, 1 is wanted"),
    ],
)
def test_other_machine(tmp_path: Path, version: str, machine: Machine, reason: str) -> None:
    built(tmp_path)
    assert reason_to_build(make_plan(tmp_path), version, machine) == reason


def test_other_files(tmp_path: Path) -> None:
    assert reason_to_build(make_plan(tmp_path), "10.3.0", ORIN) == "there is no engine yet"
    built(tmp_path)
    plan = make_plan(tmp_path)
    (tmp_path / "net.onnx").write_bytes(convolution_network() + b"\x12\x00")
    assert reason_to_build(plan, "10.3.0", ORIN) == "the network has changed since it was built"
    (tmp_path / "net.onnx").write_bytes(convolution_network())
    cache_of(tmp_path, 0.2)
    assert "its calibration cache sha256 is" in str(reason_to_build(plan, "10.3.0", ORIN))
    (tmp_path / "net.engine").write_bytes(b"another")
    assert "it records another engine than" in str(reason_to_build(plan, "10.3.0", ORIN))
    manifest_path(plan.engine).unlink()
    assert reason_to_build(plan, "10.3.0", ORIN) == "it has no record beside it"
