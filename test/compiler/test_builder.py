"""Building over strict stand-ins for TensorRT 8.5, 10.3 and 11.4."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_networks import run as run_onnx
from stand_in_fixtures import (  # noqa: F401
    SHAPE_IN,
    SHAPE_OUT,
    VERSIONS,
    Install,
    convolution_network,
    expected_output,
    install,
)

from dla_perception.compiler.builder import (
    BuildError,
    BuildPlan,
    BuildRefusedError,
    BuildResult,
    BuildSettings,
    IoFormat,
    build,
    plan_build,
    write_atomically,
)
from dla_perception.compiler.half_precision import HalfPrecisionError, to_half_precision
from dla_perception.compiler.manifest import make_manifest, write_engine
from dla_perception.compiler.quantization.cache import CalibrationCache, write_cache
from dla_perception.compiler.trtexec import trtexec_command
from dla_perception.engines.engine import EngineError
from dla_perception.engines.layouts import Layout, pack, unpack
from dla_perception.engines.loading import open_engine
from dla_perception.engines.manifest import manifest_path
from dla_perception.errors import DlaPerceptionError, MissingPackageError

DLA = BuildSettings(dla_core=0)


def write_network(folder: Path, content: bytes | None = None) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(content or convolution_network())
    return path


def network(*nodes: Any, output_shape: Any = SHAPE_OUT, weights: Any = ()) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE_IN)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output_shape)],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def mish_network(tail: bool = False) -> bytes:
    """A convolution, an operator no DLA takes, and perhaps a convolution again."""
    first = np.random.default_rng(1).uniform(-1, 1, (20, 3, 3, 3)).astype(np.float32)
    second = np.random.default_rng(2).uniform(-1, 1, (20, 20, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Softplus", ["c"], ["s" if tail else "y"], name="softplus"),
    ]
    if tail:
        nodes.append(helper.make_node("Conv", ["s", "v"], ["y"], name="tail"))
    weights = [numpy_helper.from_array(first, "w"), numpy_helper.from_array(second, "v")]
    return network(*nodes, weights=weights)


def make(
    folder: Path, settings: BuildSettings = DLA, content: bytes | None = None
) -> tuple[BuildPlan, BuildResult]:
    plan = plan_build(write_network(folder, content), folder / "net.engine", settings)
    return plan, build(plan)


def write(plan: BuildPlan, result: BuildResult) -> Path:
    write_engine(plan, result, make_manifest(plan, result))
    return plan.engine


def cache_file(folder: Path, scales: dict[str, float] | None = None) -> str:
    path = folder / "net.cache"
    write_cache(path, CalibrationCache(scales or {"x": 1 / 127, "c": 0.06, "y": 0.05}))
    return str(path)


def infer(engine: Any, values: np.ndarray) -> np.ndarray:
    spec = engine.inputs[0]
    stored = values / spec.scale if spec.scale else values
    if spec.dtype == np.int8:
        stored = np.clip(np.rint(stored), -128, 127)
    pack(stored.astype(spec.dtype), spec, engine.input_buffers(0)[0])
    engine.submit(0)
    engine.wait(0, 10)
    spec = engine.outputs[0]
    return unpack(engine.output_buffers(0)[0], spec).astype(np.float32) * (spec.scale or 1)


def random_input() -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, SHAPE_IN).astype(np.float32)


# building and running ---------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("core", [0, 1])
def test_fp16_for_a_core_builds_loads_and_computes(
    install: Install, tmp_path: Path, version: str, core: int
) -> None:
    board = install(version)
    plan, result = make(tmp_path, BuildSettings(dla_core=core))
    assert result.tensorrt_version == version
    assert result.strongly_typed == (version == "11.4.1")
    assert [str(layer) for layer in result.layers] == ["{ForeignNode[conv...relu]}"]
    assert [(spec.layout, spec.dtype.name) for spec in (*result.inputs, *result.outputs)] == [
        (Layout.HWC4, "float16"),
        (Layout.CHW16, "float16"),
    ]
    engine = open_engine(write(plan, result), dla_core=core)
    try:
        assert board.core_taken == core
        assert engine.info.device == f"dla{core}"
        assert engine.info.gpu_layers == ()
        values = random_input()
        np.testing.assert_allclose(infer(engine, values), expected_output(values), atol=0.02)
    finally:
        engine.close()


@pytest.mark.parametrize("version", ["8.5.2", "10.3.0"])
@pytest.mark.parametrize("output", ["fp16:chw16", "int8:chw32", "int8:dla_linear"])
def test_int8_with_a_cache(install: Install, tmp_path: Path, version: str, output: str) -> None:
    install(version)
    settings = BuildSettings(
        dla_core=0,
        precision="int8",
        calibration_cache=cache_file(tmp_path),
        output_formats=(IoFormat.parse(output),),
    )
    plan, result = make(tmp_path, settings)
    assert result.warnings == ()
    assert result.inputs[0].dtype == np.int8
    assert result.inputs[0].scale == pytest.approx(1 / 127)
    engine = open_engine(write(plan, result), dla_core=0)
    try:
        values = random_input()
        expected = expected_output(values)
        if output.startswith("int8"):
            expected = expected.clip(-6.4, 6.35)
        np.testing.assert_allclose(infer(engine, values), expected, atol=0.2)
    finally:
        engine.close()


def test_standalone_gives_a_loadable(install: Install, tmp_path: Path) -> None:
    install()
    plan, result = make(tmp_path, BuildSettings(dla_core=0, standalone=True))
    assert result.content[4:8] == b"NVDA"
    manifest = make_manifest(plan, result)
    assert manifest.kind == "loadable"
    assert [layer.device for layer in manifest.layers] == ["dla"]


def test_gpu_alone(install: Install, tmp_path: Path) -> None:
    install(dla_cores=0)
    plan, result = make(tmp_path, BuildSettings())
    assert [str(item) for item in (*plan.input_formats, *plan.output_formats)] == [
        "fp16:chw",
        "fp16:chw",
    ]
    engine = open_engine(write(plan, result))
    assert engine.info.device == "gpu"
    np.testing.assert_allclose(
        infer(engine, random_input()), expected_output(random_input()), atol=0.02
    )
    engine.close()


def test_fp16_layers_of_an_int8_network(install: Install, tmp_path: Path) -> None:
    install()
    cache = cache_file(tmp_path, {"x": 1 / 127, "y": 0.05})
    settings = BuildSettings(dla_core=0, precision="int8", calibration_cache=cache)
    plan, result = make(tmp_path, settings)
    assert "no scale for 1 of 2 tensors, their layers run in FP16: c" in result.warnings[0]
    assert "1 tensors have no INT8 scale" in result.warnings[1]
    plan, result = make(tmp_path, replace(settings, fp16_layers=("con*",)))
    assert plan.fp16_layers == ("conv",)
    # the tensor of that layer needs no scale; TensorRT says that it has none all the same
    assert len(result.warnings) == 1


# placement --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_fallback_forbidden_fails_the_build_and_names_the_layers(
    install: Install, tmp_path: Path, version: str
) -> None:
    install(version)
    with pytest.raises(BuildRefusedError) as caught:
        make(tmp_path, DLA, mish_network())
    text = str(caught.value)
    assert "layers that a DLA does not take: softplus (not supported on DLA)" in text
    assert "\n" not in text
    assert [layer.name for layer in caught.value.layers] == ["softplus"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fallback", ["warn", "allow"])
def test_fallback_allowed_records_the_layers(
    install: Install, tmp_path: Path, version: str, fallback: str
) -> None:
    install(version)
    settings = BuildSettings(dla_core=0, gpu_fallback=fallback)
    plan, result = make(tmp_path, settings, mish_network(tail=True))
    assert [(layer.device, layer.name) for layer in result.layers] == [
        ("dla", "{ForeignNode[conv]}"),
        ("dla", "{ForeignNode[tail]}"),
        ("gpu", "softplus"),
    ]
    assert result.layers[2].reason == "Unsupported on DLA"
    warned = any("1 of 3 layers run on the GPU" in warning for warning in result.warnings)
    assert warned == (fallback == "warn")
    path = write(plan, result)
    with pytest.raises(EngineError, match=r"1 of its 3 layers .*softplus \(Unsupported on DLA\)"):
        open_engine(path, dla_core=0)
    engine = open_engine(path, dla_core=0, gpu_fallback=fallback)
    assert engine.info.gpu_layers == ("softplus",)
    engine.close()


def test_linear_border_is_a_copy_by_the_gpu(install: Install, tmp_path: Path) -> None:
    install()
    settings = replace(DLA, output_formats=(IoFormat("fp16", "chw"),))
    with pytest.raises(BuildRefusedError, match="kDIRECT_IO specified but no conformant"):
        make(tmp_path, settings)
    _, result = make(tmp_path, replace(settings, gpu_fallback="allow"))
    assert result.layers[1].name.startswith("Reformatting CopyNode for Output Tensor 0")
    assert "the GPU converts the tensor's layout" in result.layers[1].reason


def test_a_list_with_gpu_layers_fails_though_tensorrt_built(
    install: Install, tmp_path: Path
) -> None:
    """Without GPU fallback TensorRT still puts copies on the GPU: the log is the judge."""
    install()
    import tensorrt

    name = "Reformatting CopyNode for Input Tensor 0 to {ForeignNode[conv...relu]}"

    class Talkative(tensorrt.Builder):
        def build_serialized_network(self, network: Any, config: Any) -> Any:
            content = super().build_serialized_network(network, config)
            self._log("INFO", f"[GpuLayer] COPY: {name}")
            return content

    tensorrt.Builder = Talkative
    with pytest.raises(BuildRefusedError, match="1 of 2 layers run on the GPU, not on DLA core 0"):
        make(tmp_path, DLA)


def test_standalone_takes_one_subgraph(install: Install, tmp_path: Path) -> None:
    install()
    with pytest.raises(BuildRefusedError, match="softplus"):
        make(tmp_path, BuildSettings(dla_core=0, standalone=True), mish_network(tail=True))


def test_without_a_list_in_the_log_the_inspector_is_asked(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dla_perception.compiler.builder as builder

    install()
    parse = builder.parse_build_log
    monkeypatch.setattr(
        builder, "parse_build_log", lambda lines: replace(parse(lines), layers=None)
    )
    from dla_perception.engines.cuda_memory import CudaThread

    thread = CudaThread("current context")
    plan = plan_build(write_network(tmp_path), tmp_path / "net.engine", DLA)
    result = thread.run(lambda: build(plan, device=thread.device))
    assert [(layer.device, layer.name) for layer in result.layers] == [
        ("dla", "{ForeignNode[conv...relu]}")
    ]
    thread.close()


# refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "message"),
    [
        ({"dla_cores": 0}, "finds no DLA core; check that the module has a DLA"),
        ({"dla_cores": 1}, "DLA core 1 was asked for, but this module has 1"),
        ({"refuse_builds": "Could not find any implementation for node {ForeignNode[conv]}."},
         "cannot build it: Could not find any implementation"),
        ({"device_count": 0}, "CUDA finds 0 GPUs"),
    ],
)  # fmt: skip
def test_machines_that_cannot(install: Install, tmp_path: Path, board: dict, message: str) -> None:
    install(**board)
    with pytest.raises(DlaPerceptionError) as caught:
        make(tmp_path, BuildSettings(dla_core=1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_core_that_is_not_taken(install: Install, tmp_path: Path) -> None:
    install()
    import tensorrt

    tensorrt.IBuilderConfig.DLA_core = property(lambda self: -1, lambda self, core: None)
    with pytest.raises(BuildError, match="did not take DLA core 0; it says -1"):
        make(tmp_path, DLA)


def test_int8_on_tensorrt_11(install: Install, tmp_path: Path) -> None:
    install("11.4.1")
    settings = BuildSettings(dla_core=0, precision="int8", calibration_cache=cache_file(tmp_path))
    with pytest.raises(BuildError, match="has no INT8 calibration any more"):
        make(tmp_path, settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bf16"}, "precision: 'bf16' is unknown; expected fp16, int8, fp32"),
        ({"gpu_fallback": "never"}, "gpu_fallback: 'never' is unknown"),
        ({"dla_core": 0, "precision": "fp32"}, "a DLA computes in fp16 or int8"),
        ({"standalone": True}, "a DLA loadable needs a DLA core"),
        ({"dla_core": 0, "standalone": True, "gpu_fallback": "warn"}, "no GPU to fall back to"),
        ({"dla_core": 0, "precision": "int8"}, "int8 needs the scales of the network's tensors"),
        ({"calibration_cache": "x"}, "a calibration cache has no effect in precision fp16"),
        ({"fp16_layers": ("a",)}, "they matter in an int8 network only"),
        (
            {"dla_core": 0, "input_formats": (IoFormat("int8", "chw32"),)},
            "int8 needs the precision",
        ),
        ({"input_formats": (IoFormat("fp16", "dla_hwc4"),)}, "a layout of a DLA; give --dla-core"),
        ({"pools": {"dlaSRAM": 5000}}, "dlaSRAM: 5000 bytes cannot be; expected a power of two"),
        ({"pools": {"dlaLocalDRAM": 2048}}, "expected a power of two of at least 4096 (4 KiB)"),
        ({"pools": {"dlaGlobalDRAM": 0}}, "dlaGlobalDRAM: 0 bytes cannot be"),
        ({"pools": {"workspace": 0}}, "workspace: 0 bytes cannot be; expected more than 0"),
        ({"pools": {"sram": 4096}}, "memory pool 'sram': unknown; expected workspace, dlaSRAM"),
    ],
)
def test_settings_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(BuildError) as caught:
        BuildSettings(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["fp16", "fp16:nchw", "bf16:chw", "", "int8:chw16:x"])
def test_formats_that_cannot_be(text: str) -> None:
    with pytest.raises(BuildError, match="expected TYPE:LAYOUT"):
        IoFormat.parse(text)


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ({"output_formats": ("fp16:dla_hwc4",)}, "dla_hwc4 is for inputs only"),
        ({"output_formats": ("fp16:chw32",)}, "chw32 holds int8 only"),
        ({"input_formats": ("fp16:chw16", "fp16:chw16")}, "2 are given for 1 inputs"),
    ],
)
def test_formats_that_do_not_fit(tmp_path: Path, formats: dict, message: str) -> None:
    parsed = {key: tuple(IoFormat.parse(text) for text in texts) for key, texts in formats.items()}
    with pytest.raises(BuildError) as caught:
        plan_build(write_network(tmp_path), tmp_path / "e", replace(DLA, **parsed))
    assert message in str(caught.value)


def test_caches_that_do_not_fit(tmp_path: Path) -> None:
    path = write_network(tmp_path)

    def plan(scales: dict[str, float], **options: Any) -> BuildPlan:
        settings = BuildSettings(
            dla_core=0,
            precision="int8",
            calibration_cache=cache_file(tmp_path, scales),
            **options,
        )
        return plan_build(path, tmp_path / "e", settings)

    with pytest.raises(BuildError, match="none of its 1 tensors is one of .*the cache of another"):
        plan({"images": 0.1})
    with pytest.raises(BuildError, match="it lacks the scale of x, which is an INT8 input"):
        plan({"c": 0.1, "y": 0.1})
    int8_output = {"output_formats": (IoFormat("int8", "chw32"),)}
    with pytest.raises(BuildError, match="it lacks the scale of y, which is an INT8 input or out"):
        plan({"x": 0.1, "c": 0.1}, **int8_output)
    assert plan({"x": 0.1, "c": 0.1, "y": 0.1}, **int8_output).warnings == ()
    with pytest.raises(BuildError, match="fp16_layers: no layer is called '/head/[*]'"):
        plan({"x": 0.1, "c": 0.1}, fp16_layers=("/head/*",))


def test_networks_that_cannot(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(convolution_network())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path = write_network(tmp_path, model.SerializeToString())
    with pytest.raises(BuildError, match="input 'x' has dynamic sizes"):
        plan_build(path, tmp_path / "e", DLA)
    scale = numpy_helper.from_array(np.float32(0.1), "scale")
    zero = numpy_helper.from_array(np.int8(0), "zero")
    content = network(
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], name="dequantise"),
        output_shape=SHAPE_IN,
        weights=[scale, zero],
    )
    with pytest.raises(BuildError, match="2 Q/DQ nodes .*which no DLA takes; translate it"):
        plan_build(write_network(tmp_path, content), tmp_path / "e", DLA)


def test_what_the_parser_refuses(install: Install, tmp_path: Path) -> None:
    install()
    content = network(
        helper.make_node("Hyper", ["x"], ["y"], name="own", domain="mine"), output_shape=SHAPE_IN
    )
    model = onnx.load_model_from_string(content)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(DlaPerceptionError, match="Hyper"):
        make(tmp_path, DLA, model.SerializeToString())


def test_no_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingPackageError, match="needs the package tensorrt"):
        make(tmp_path)


# pools, caches, progress ------------------------------------------------------------------


def test_pools_reach_the_builder(install: Install, tmp_path: Path) -> None:
    install()
    seen: dict[str, int] = {}
    pools = {"dlaSRAM": 1 << 20, "dlaLocalDRAM": 1 << 30, "workspace": 3 << 20}
    plan = plan_build(write_network(tmp_path), tmp_path / "e", replace(DLA, pools=pools))
    build(plan, adjust=lambda config: seen.update(
        {pool.name: size for pool, size in config._pools.items()}
    ))  # fmt: skip
    assert seen == {"DLA_MANAGED_SRAM": 1 << 20, "DLA_LOCAL_DRAM": 1 << 30, "WORKSPACE": 3 << 20}


def test_timing_cache(install: Install, tmp_path: Path) -> None:
    install()
    path = tmp_path / "timing.cache"
    settings = replace(DLA, timing_cache=str(path))
    _, result = make(tmp_path, settings)
    assert result.warnings == ()
    assert path.read_bytes() == b"new cache, used"
    _, result = make(tmp_path, settings)
    assert result.warnings == ()
    path.write_bytes(b"of another GPU")
    _, result = make(tmp_path, settings)
    assert result.warnings == (f"timing cache {path}: of another TensorRT or GPU; it is made anew",)
    assert path.read_bytes() == b"new cache, used"


def test_timing_cache_that_cannot_be_written_is_a_warning(install: Install, tmp_path: Path) -> None:
    install()
    path = tmp_path / "absent" / "timing.cache"
    _, result = make(tmp_path, replace(DLA, timing_cache=str(path)))
    assert result.warnings == (f"timing cache {path}: cannot write it: No such file or directory",)
    assert result.content


@pytest.mark.parametrize("version", VERSIONS)
def test_progress_where_tensorrt_tells_it(install: Install, tmp_path: Path, version: str) -> None:
    install(version)
    told: list[tuple[str, int, int]] = []
    plan = plan_build(write_network(tmp_path), tmp_path / "e", DLA)
    build(plan, progress=lambda *step: told.append(step))
    expected = [("Building Engine", done, 2) for done in (0, 1, 2, 2)]
    assert told == ([] if version == "8.5.2" else expected)


def test_ctrl_c_stops_the_build(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    import tensorrt

    go_on = threading.Event()
    stopped: list[bool] = []

    class Slow(tensorrt.Builder):
        def build_serialized_network(self, network: Any, config: Any) -> Any:
            go_on.wait(10)
            monitor = config.progress_monitor
            monitor.phase_start("Building Engine", None, 1)
            stopped.append(not monitor.step_complete("Building Engine", 0))

    tensorrt.Builder = Slow
    join = threading.Thread.join

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        if self.name == "tensorrt build" and timeout == 0.1:
            go_on.set()
            raise KeyboardInterrupt
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path)
    assert stopped == [True]


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_readers_see_the_old_content_until_the_new_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    replace_file = os.replace
    seen: list[tuple[bytes, bytes]] = []

    def look(source: Path, target: Path) -> None:
        seen.append((Path(source).read_bytes(), Path(target).read_bytes()))
        replace_file(source, target)

    monkeypatch.setattr("os.replace", look)
    write_atomically(path, b"new")
    assert seen == [(b"new", b"old")]
    assert path.read_bytes() == b"new"


def test_folder_that_cannot_be_written(install: Install, tmp_path: Path) -> None:
    install()
    plan, result = make(tmp_path)
    plan = replace(plan, engine=tmp_path / "absent" / "net.engine")
    with pytest.raises(BuildError, match="cannot write it: No such file or directory"):
        write_engine(plan, result, make_manifest(plan, result))


# half precision ---------------------------------------------------------------------------


def test_half_precision_of_a_real_network(assets: Path) -> None:
    path = assets / "models" / "yolox_nano_416.onnx"
    model = onnx.load(path)
    half = to_half_precision(model, str(path))
    onnx.checker.check_model(half)
    assert {
        item.type.tensor_type.elem_type for item in (*half.graph.input, *half.graph.output)
    } == {TensorProto.FLOAT16}
    values = np.random.default_rng(0).uniform(0, 255, (1, 3, 416, 416)).astype(np.float32)
    (expected,) = run_onnx(model, values)
    (found,) = run_onnx(half, values.astype(np.float16))
    # 11 bits of mantissa through some 100 layers; the values reach 8
    assert np.abs(found.astype(np.float32) - expected).max() < 0.1
    # the network given is as it was
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_half_precision_keeps_what_must_stay_float(tmp_path: Path) -> None:
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    factor = helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2)))
    content = network(
        factor,
        helper.make_node("Mul", ["x", "two"], ["m"], name="mul"),
        helper.make_node("Resize", ["m", "", "scales"], ["r"], name="resize", mode="nearest"),
        helper.make_node("Cast", ["r"], ["y"], name="cast", to=TensorProto.FLOAT),
        output_shape=(1, 3, 16, 20),
        weights=[scales],
    )
    model = onnx.load_model_from_string(content)
    half = to_half_precision(model, "net")
    onnx.checker.check_model(half, full_check=True)
    assert half.graph.initializer[0].data_type == TensorProto.FLOAT
    values = random_input()
    (expected,) = run_onnx(model, values)
    (found,) = run_onnx(half, values.astype(np.float16))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, atol=0.002)


def test_weights_that_fp16_cannot_hold(tmp_path: Path) -> None:
    large = numpy_helper.from_array(np.array([70000], np.float32), "large")
    content = network(
        helper.make_node("Mul", ["x", "large"], ["y"], name="mul"),
        output_shape=SHAPE_IN,
        weights=[large],
    )
    with pytest.raises(HalfPrecisionError, match="weight 'large' reaches 70000, but FP16 ends at"):
        to_half_precision(onnx.load_model_from_string(content), "net")


# trtexec ----------------------------------------------------------------------------------


def command(folder: Path, version: str, settings: BuildSettings) -> list[str]:
    plan = plan_build(write_network(folder), folder / "a b.engine", settings)
    return shlex.split(trtexec_command(plan, version))[1:]


def test_trtexec_line_of_the_reference_recipe(tmp_path: Path) -> None:
    """NVIDIA's YOLOv5 loadable: build_dla_standalone_loadable.sh of cuDLA-samples."""
    cache = cache_file(tmp_path)
    settings = BuildSettings(
        dla_core=0,
        standalone=True,
        precision="int8",
        calibration_cache=cache,
        fp16_layers=("conv",),
        input_formats=(IoFormat("int8", "dla_hwc4"),),
        output_formats=(IoFormat("fp16", "chw16"),),
        pools={"dlaSRAM": 1 << 20, "dlaLocalDRAM": 1 << 29},
    )
    expected = {
        f"--onnx={tmp_path / 'net.onnx'}",
        f"--saveEngine={tmp_path / 'a b.engine'}",
        "--profilingVerbosity=detailed",
        "--useDLACore=0",
        "--int8",
        "--fp16",
        f"--calib={cache}",
        "--precisionConstraints=obey",
        "--layerPrecisions=conv:fp16",
        "--inputIOFormats=int8:dla_hwc4",
        "--outputIOFormats=fp16:chw16",
        "--memPoolSize=dlaSRAM:1,dlaLocalDRAM:512",
    }
    assert set(command(tmp_path, "8.6.2", settings)) == expected | {
        "--buildDLAStandalone",
        "--skipInference",
    }
    assert set(command(tmp_path, "8.5.2", settings)) == expected | {"--safe", "--buildOnly"}


def test_trtexec_lines_of_other_versions(tmp_path: Path) -> None:
    settings = BuildSettings(dla_core=1, gpu_fallback="warn", timing_cache="t.cache")
    words = command(tmp_path, "10.3", settings)
    assert {"--fp16", "--useDLACore=1", "--allowGPUFallback", "--timingCacheFile=t.cache"} <= set(
        words
    )
    words = command(tmp_path, "11.4.1", settings)
    assert "--fp16" not in words
    assert "--adjustForDLA" in words
    assert f"--onnx={tmp_path / 'a b.engine.fp16.onnx'}" in words
    words = command(tmp_path, "10.3.0", BuildSettings(precision="fp32"))
    assert not {"--fp16", "--int8", "--useDLACore=-1"} & set(words)
    assert manifest_path("a/b.engine") == Path("a/b.engine.manifest.json")
