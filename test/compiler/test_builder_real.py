"""The product's build code over a real builder: TensorRT-RTX, on a machine without a GPU.

TensorRT-RTX shares TensorRT 11's interface (strongly typed, no FP16 or INT8 flags) and has no DLA.
What it refuses of what a DLA needs is listed in docs/hardware_status.md and asserted here. It is a
development extra: ``pip install tensorrt-rtx-cu12-libs tensorrt-rtx-cu12-bindings``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dla_perception.cli.main import main
from dla_perception.compiler.builder import (
    BuildError,
    BuildPlan,
    BuildRefusedError,
    BuildResult,
    BuildSettings,
    IoFormat,
    build,
    plan_build,
)
from dla_perception.compiler.half_precision import to_half_precision
from dla_perception.engines.cuda_memory import CudaDevice
from dla_perception.engines.files import FileKind, recognise
from dla_perception.engines.tensorrt_engine import make_logger

rtx: Any = pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX is not installed")

DEVICE = CudaDevice("RTX of compute capability 8.6", "8.6", False)


def for_sm86(config: Any) -> None:
    """Without a GPU the builder has to be told what to build for."""
    config.num_compute_capabilities = 1
    config.set_compute_capability(rtx.ComputeCapability.SM86, 0)


def make(plan: BuildPlan) -> BuildResult:
    return build(plan, rtx, DEVICE, adjust=for_sm86)


def convolutions(folder: Path) -> Path:
    """Four-dimensional input and output, as the head of a network cut for a DLA."""
    rng = np.random.default_rng(1)
    first = rng.uniform(-1, 1, (32, 3, 3, 3)).astype(np.float32)
    second = rng.uniform(-1, 1, (32, 32, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["a"], ["b"], name="relu"),
            helper.make_node("Conv", ["b", "v"], ["y"], name="second"),
        ],
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 32, 32))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 32, 32, 32))],
        [numpy_helper.from_array(first, "w"), numpy_helper.from_array(second, "v")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = folder / "net.onnx"
    onnx.save(model, str(path))
    return path


def networks(assets: Path) -> list[Path]:
    demo = Path(__file__).parents[2] / "dla_perception" / "demo" / "model"
    return sorted([*assets.glob("models/*.onnx"), *demo.glob("*.onnx")])


def layers_read(path: Path) -> int:
    logger = make_logger(rtx)
    network = rtx.Builder(logger).create_network(0)
    parser = rtx.OnnxParser(network, logger)
    assert parser.parse(path.read_bytes()), (path, parser.get_error(0).desc())
    return int(network.num_layers)


def test_every_network_is_read(assets: Path) -> None:
    found = networks(assets)
    assert len(found) >= 3
    for path in found:
        assert layers_read(path) > 10


@pytest.mark.parametrize("name", ["yolo-fastest-1.1", "yolo-fastest-1.1-xl"])
def test_imported_and_prepared_networks_are_read(assets: Path, tmp_path: Path, name: str) -> None:
    imported, prepared = tmp_path / "imported.onnx", tmp_path / "prepared.onnx"
    files = [str(assets / "darknet" / f"{name}.{kind}") for kind in ("cfg", "weights")]
    assert main(["import-darknet", *files, "-o", str(imported)]) == 0
    assert main(["prepare", str(imported), "-o", str(prepared), "--target", "orin"]) == 0
    for path in (imported, prepared):
        assert layers_read(path) >= len(onnx.load(str(path)).graph.node)


def test_a_translated_network_is_read(assets: Path, tmp_path: Path) -> None:
    model = assets / "models" / "yolox_nano_416_ptq_qdq.onnx"
    assert main(["translate-qat", str(model), "-o", str(tmp_path)]) == 0
    (translated,) = tmp_path.glob("*.onnx")
    assert layers_read(translated) >= len(onnx.load(str(translated)).graph.node)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_detector_builds(assets: Path, tmp_path: Path, precision: str) -> None:
    path = assets / "models" / "yolox_nano_416.onnx"
    plan = plan_build(path, tmp_path / "e", BuildSettings(precision=precision))
    result = make(plan)
    assert result.strongly_typed
    engine = tmp_path / "e"
    engine.write_bytes(result.content)
    content = recognise(engine)
    assert content.kind is FileKind.PLAN
    assert content.tensorrt_version == rtx.__version__
    dtype = np.float16 if precision == "fp16" else np.float32
    assert result.inputs[0].dtype == dtype
    # half the bytes a weight
    assert 0.9e6 < len(result.content) < 12e6


def test_the_half_precision_network_is_strongly_typed_throughout(assets: Path) -> None:
    path = assets / "models" / "yolox_nano_416.onnx"
    logger = make_logger(rtx)
    network = rtx.Builder(logger).create_network(0)
    parser = rtx.OnnxParser(network, logger)
    half = to_half_precision(onnx.load(path), str(path))
    assert parser.parse(half.SerializeToString())
    kinds = {
        network.get_layer(index).get_output_type(0).name
        for index in range(network.num_layers)
        if network.get_layer(index).num_outputs
    }
    assert "FLOAT" not in kinds
    assert "HALF" in kinds


def test_linear_format_builds(tmp_path: Path) -> None:
    assert make(plan_build(convolutions(tmp_path), tmp_path / "e", BuildSettings())).content


@pytest.mark.parametrize("layout", ["chw16", "dla_linear", "dla_hwc4"])
def test_layouts_of_a_dla_are_refused_by_this_builder(tmp_path: Path, layout: str) -> None:
    """As docs/hardware_status.md says: they are set without complaint and refused in the build."""
    plan = plan_build(convolutions(tmp_path), tmp_path / "e", BuildSettings())
    plan = replace(plan, input_formats=(IoFormat("fp16", layout),))
    with pytest.raises(BuildRefusedError, match="cannot build it: .*Format") as caught:
        make(plan)
    assert "\n" not in str(caught.value)


def test_pools_of_a_dla_are_taken(tmp_path: Path) -> None:
    pools = {
        "workspace": 256 << 20,
        "dlaSRAM": 1 << 20,
        "dlaLocalDRAM": 1 << 30,
        "dlaGlobalDRAM": 512 << 20,
    }
    plan = plan_build(convolutions(tmp_path), tmp_path / "e", BuildSettings(pools=pools))
    taken = {}

    def look(config: Any) -> None:
        for_sm86(config)
        for name in ("DLA_MANAGED_SRAM", "DLA_LOCAL_DRAM", "DLA_GLOBAL_DRAM"):
            taken[name] = config.get_memory_pool_limit(getattr(rtx.MemoryPoolType, name))

    result = build(plan, rtx, DEVICE, adjust=look)
    assert result.content
    assert taken == {
        # this builder forgets it: it knows no such memory
        "DLA_MANAGED_SRAM": 0,
        "DLA_LOCAL_DRAM": 1 << 30,
        "DLA_GLOBAL_DRAM": 512 << 20,
    }


def test_no_dla_core_is_an_error(tmp_path: Path) -> None:
    plan = plan_build(convolutions(tmp_path), tmp_path / "e", BuildSettings(dla_core=0))
    with pytest.raises(BuildError, match="finds no DLA core; check that the module has a DLA"):
        make(plan)


def test_names_of_the_dla_configuration_exist() -> None:
    """What is set for a DLA core, on a real configuration object."""
    config = rtx.Builder(make_logger(rtx)).create_builder_config()
    config.default_device_type = rtx.DeviceType.DLA
    config.engine_capability = rtx.EngineCapability.DLA_STANDALONE
    config.set_flag(rtx.BuilderFlag.DIRECT_IO)
    config.set_flag(rtx.BuilderFlag.GPU_FALLBACK)
    config.DLA_core = 0
    assert config.default_device_type == rtx.DeviceType.DLA
    assert config.DLA_core in (-1, 0)
    with pytest.raises(AttributeError):
        config.dla_core = 0
    for name in ("DLA_LINEAR", "DLA_HWC4", "CHW16", "CHW32", "LINEAR"):
        assert hasattr(rtx.TensorFormat, name)


def test_progress_is_told(tmp_path: Path) -> None:
    plan = plan_build(convolutions(tmp_path), tmp_path / "e", BuildSettings())
    told: list[tuple[str, int, int]] = []
    build(plan, rtx, DEVICE, progress=lambda *step: told.append(step), adjust=for_sm86)
    assert told
    assert all(0 <= done <= max(steps, done) for _, done, steps in told)


@pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX")
def test_timing_cache(tmp_path: Path) -> None:
    path = tmp_path / "timing"
    settings = BuildSettings(timing_cache=str(path))
    result = make(plan_build(convolutions(tmp_path), tmp_path / "e", settings))
    again = make(plan_build(convolutions(tmp_path), tmp_path / "e", settings))
    assert result.content
    assert again.content
