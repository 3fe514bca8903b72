"""TensorRT plans over strict stand-ins for three TensorRT versions and for CUDA."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stand_in_fixtures import (  # noqa: F401
    SHAPE_IN,
    VERSIONS,
    Install,
    convolution_network,
    expected_output,
    install,
    plan_document,
    tensor,
    write_loadable,
    write_plan,
)
from tensorrt_stand_in import plan_bytes

from dla_perception.engines.engine import EngineError, InferenceTimeoutError, TensorSpec
from dla_perception.engines.files import recognise
from dla_perception.engines.inspector import LayerPlacement, parse_engine_information
from dla_perception.engines.layouts import Layout, pack, unpack
from dla_perception.engines.loading import open_engine
from dla_perception.engines.manifest import (
    EngineManifest,
    Machine,
    file_sha256,
    manifest_path,
    read_manifest,
)
from dla_perception.engines.tensorrt_engine import TensorRTEngine
from dla_perception.errors import DlaPerceptionError, MissingPackageError

ON_DLA = LayerPlacement("{ForeignNode[conv...relu]}", "dla")


def infer(engine: Any, values: np.ndarray, slot: int = 0) -> np.ndarray:
    """Run ``values``, real numbers, through an engine."""
    spec = engine.inputs[0]
    stored = values / spec.scale if spec.scale else values
    if spec.dtype == np.int8:
        stored = np.clip(np.rint(stored), -128, 127)
    pack(stored.astype(spec.dtype), spec, engine.input_buffers(slot)[0])
    engine.submit(slot)
    engine.wait(slot, 10)
    spec = engine.outputs[0]
    return unpack(engine.output_buffers(slot)[0], spec).astype(np.float32) * (spec.scale or 1)


def random_input(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, SHAPE_IN).astype(np.float32)


def write_manifest(path: Path, **changes: Any) -> EngineManifest:
    """A record beside ``path`` as a build for core 0 of an AGX Orin writes it."""
    manifest = EngineManifest(
        engine_sha256=file_sha256(path),
        kind="plan",
        onnx_file="net.onnx",
        onnx_sha256="0" * 64,
        tensorrt_version="10.3.0",
        machine=Machine("Orin", "8.7", 2),
        dla_core=0,
        precision="fp16",
        gpu_fallback="forbid",
        inputs=(),
        outputs=(),
        layers=(ON_DLA,),
    )
    manifest = replace(manifest, **changes)
    manifest_path(path).write_text(manifest.to_json())
    return manifest


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("integrated", [True, False])
def test_result_core_and_info(
    install: Install, tmp_path: Path, version: str, integrated: bool
) -> None:
    board = install(version, integrated=integrated)
    path = write_plan(tmp_path, version)
    engine = open_engine(path, dla_core=1)
    try:
        assert board.core_taken == 1
        info = engine.info
        assert (info.runtime, info.runtime_version, info.device) == ("tensorrt", version, "dla1")
        assert info.dla_layers == ("{ForeignNode[conv...relu]}",)
        assert info.gpu_layers == ()
        assert info.file_hash == file_sha256(path)
        assert info.metadata == {"memory": "mapped" if integrated else "pinned"}
        for step in range(4):
            values = random_input(step)
            found = infer(engine, values, step % 2)
            np.testing.assert_allclose(found, expected_output(values), atol=0.02)
    finally:
        engine.close()
    assert (board.machine.copied_bytes == 0) == integrated


@pytest.mark.parametrize(
    ("dtype", "layout_in", "layout_out"),
    [
        ("HALF", "DLA_LINEAR", "DLA_LINEAR"),
        ("HALF", "CHW16", "CHW16"),
        ("HALF", "DLA_HWC4", "DLA_LINEAR"),
        ("INT8", "DLA_HWC4", "CHW32"),
        ("INT8", "DLA_LINEAR", "DLA_LINEAR"),
        ("FLOAT", "LINEAR", "LINEAR"),
    ],
)
@pytest.mark.parametrize("compute_capability", [(8, 7), (7, 2)])
def test_every_layout(
    install: Install,
    tmp_path: Path,
    dtype: str,
    layout_in: str,
    layout_out: str,
    compute_capability: tuple[int, int],
) -> None:
    install(compute_capability=compute_capability)
    scales = (1 / 127, 0.05) if dtype == "INT8" else (None, None)
    text = ".".join(str(part) for part in compute_capability)
    path = write_plan(
        tmp_path, dtype=dtype, layout_in=layout_in, layout_out=layout_out,
        compute_capability=text, scales=scales,
    )  # fmt: skip
    names = {"HALF": np.float16, "INT8": np.int8, "FLOAT": np.float32}
    specs = [
        TensorSpec(name, SHAPE_IN, np.dtype(names[dtype]), Layout.LINEAR, scale)
        for name, scale in zip(("x", "y"), scales)
    ]
    write_manifest(path, machine=Machine("board", text, 2), inputs=(specs[0],), outputs=(specs[1],))
    engine = open_engine(path, dla_core=0)
    try:
        values = random_input()
        tolerance = {"HALF": 0.02, "INT8": 0.2, "FLOAT": 1e-5}[dtype]
        np.testing.assert_allclose(
            infer(engine, values), expected_output(values).clip(-6.4, 6.35), atol=tolerance
        )
        row = engine.inputs[0].row_alignment
        assert row == (32 if layout_in == "DLA_HWC4" and text == "7.2" else 64)
        assert engine.outputs[0].scale == scales[1]
    finally:
        engine.close()


def test_header_in_front_of_the_plan_is_skipped_and_used(install: Install, tmp_path: Path) -> None:
    install()
    path = write_plan(tmp_path)
    header = b'{"names": {"0": "cat", "1": "dog"}}'
    path.write_bytes(len(header).to_bytes(4, "little") + header + path.read_bytes())
    engine = open_engine(path, dla_core=0)
    assert engine.info.metadata["names"] == "{0: 'cat', 1: 'dog'}"
    np.testing.assert_allclose(
        infer(engine, random_input()), expected_output(random_input()), atol=0.02
    )
    engine.close()


def test_slots_and_close_twice(install: Install, tmp_path: Path) -> None:
    board = install()
    engine = open_engine(write_plan(tmp_path), dla_core=0, slots=3)
    assert engine.slots == 3
    assert board.machine.alive["execution context"] == 3
    assert board.machine.alive["stream"] == board.machine.alive["event"] == 3
    assert engine.input_buffers(1)[0] is engine.input_buffers(1)[0]
    engine.close()
    engine.close()
    for call in (
        lambda: engine.submit(0),
        lambda: engine.wait(0, 1),
        lambda: engine.input_buffers(0),
        lambda: engine.output_buffers(0),
    ):
        with pytest.raises(EngineError, match="the engine is closed"):
            call()


def test_garbage_is_closed(install: Install, tmp_path: Path) -> None:
    board = install()
    engine = open_engine(write_plan(tmp_path), dla_core=0)
    del engine
    gc.collect()
    board.machine.assert_clean()


def test_hung_task(install: Install, tmp_path: Path) -> None:
    board = install()
    engine = open_engine(write_plan(tmp_path), dla_core=1)
    board.machine.hang.clear()
    engine.submit(0)
    with pytest.raises(InferenceTimeoutError, match=r"net\.engine on dla1: no result after 0\.0"):
        engine.wait(0, 0.02)
    board.machine.hang.set()
    engine.wait(0, 10)
    engine.close()


def test_mapped_memory_refused_by_the_device_is_replaced(install: Install, tmp_path: Path) -> None:
    board = install(refuse_mapped=True)
    path = write_plan(tmp_path)
    engine = open_engine(path, dla_core=0)
    assert engine.info.metadata["memory"] == "pinned"
    np.testing.assert_allclose(
        infer(engine, random_input()), expected_output(random_input()), atol=0.02
    )
    engine.close()
    assert board.machine.copied_bytes > 0
    with pytest.raises(EngineError, match="host memory cannot be used by DLA"):
        TensorRTEngine(path, dla_core=0, memory="mapped")
    with pytest.raises(EngineError, match="memory: 'managed' is unknown"):
        TensorRTEngine(path, dla_core=0, memory="managed")


GPU_LAYERS = [(f"gpu_{index}", "gpu") for index in range(12)]


@pytest.mark.parametrize("fallback", ["forbid", "warn", "allow"])
def test_layers_on_the_gpu(install: Install, tmp_path: Path, fallback: str) -> None:
    install()
    path = write_plan(tmp_path, layers=[("{ForeignNode[conv]}", "dla"), *GPU_LAYERS])
    if fallback == "forbid":
        with pytest.raises(EngineError) as caught:
            open_engine(path, dla_core=0, gpu_fallback=fallback)
        message = str(caught.value)
        assert "12 of its 13 layers run on the GPU, not on DLA core 0: gpu_0; gpu_1" in message
        assert "gpu_9; and 2 more" in message
        assert "gpu_10" not in message
        return
    engine = open_engine(path, dla_core=0, gpu_fallback=fallback)
    assert engine.info.device == "dla0"
    assert len(engine.info.gpu_layers or ()) == 12
    engine.close()


def test_reasons_come_from_the_record(install: Install, tmp_path: Path) -> None:
    install()
    path = write_plan(tmp_path)
    layers = (LayerPlacement("mish", "gpu", "Unsupported on DLA"), ON_DLA)
    write_manifest(path, layers=layers)
    with pytest.raises(EngineError, match=r"1 of its 2 layers .*: mish \(Unsupported on DLA\)"):
        open_engine(path, dla_core=0)


def test_engine_wholly_on_the_gpu_is_no_dla_engine(install: Install, tmp_path: Path) -> None:
    install()
    path = write_plan(tmp_path, layers=GPU_LAYERS)
    engine = open_engine(path, dla_core=0, gpu_fallback="allow")
    assert engine.info.device == "gpu"
    engine.close()
    engine = open_engine(path)
    assert engine.info.device == "gpu"
    engine.close()


def test_names_alone_do_not_tell_the_device(install: Install, tmp_path: Path) -> None:
    install()
    path = write_plan(tmp_path, verbosity="LAYER_NAMES_ONLY")
    with pytest.raises(EngineError, match="does not tell where 1 of its 1 layers run"):
        open_engine(path, dla_core=0)
    engine = open_engine(path, dla_core=0, gpu_fallback="warn")
    assert engine.info.dla_layers is None
    assert engine.info.gpu_layers is None
    engine.close()
    write_manifest(path)
    engine = open_engine(path, dla_core=0)
    assert engine.info.dla_layers == ("{ForeignNode[conv...relu]}",)
    engine.close()


def changed_tensor(**changes: Any) -> dict:
    document = plan_document()
    document["tensors"][0].update(changes)
    return document


@pytest.mark.parametrize(
    ("machine", "plan", "record", "core", "message"),
    [
        ({"dla_cores": 0}, {}, None, 0, "TensorRT finds none; check that the module has a DLA"),
        ({"dla_cores": 1}, {}, None, 1, "this module has 1 (only core 0)"),
        ({}, {}, None, 2, "this module has 2 (cores 0 to 1)"),
        ({"ignored_core": True}, {}, None, 1, "TensorRT did not take DLA core 1; it says -1"),
        ({}, {"version": "8.6.2"}, None, 0,
         "built with TensorRT 8.6.2.0, but this machine has 10.3.0: build it here"),
        ({}, {"compute_capability": "7.2"}, None, 0, "incompatible device, expecting compute 8.7"),
        ({}, {}, None, -1, "1 of its 1 layers are for a DLA; say which core"),
        ({}, {}, {"tensorrt_version": "8.5.2"}, 0,
         "built with TensorRT 8.5.2, but this machine has 10.3.0; build it here from net.onnx"),
        ({}, {}, {"machine": Machine("Xavier", "7.2", 2)}, 0,
         "built for the GPU Xavier (compute capability 7.2), but this machine has Orin (8.7)"),
        ({}, {}, {"machine": Machine("Orin", "8.7", 1)}, 1,
         "built on a module with 1 DLA cores, but core 1 was asked for"),
        ({}, {}, {"dla_core": -1}, 0, "built for the GPU alone, but DLA core 0 was asked for"),
        ({}, {}, {"engine_sha256": "f" * 64}, 0, "it records another engine than"),
        ({}, {"dtype": "INT8", "layout_out": "CHW32", "scales": (0.1, 0.1)}, None, 0,
         "INT8, but a plan does not tell the scale"),
        ({}, {"layout_in": "CHW4"}, None, 0, "layout CHW4; expected one of LINEAR, DLA_LINEAR"),
        ({"refuse_contexts": True}, {}, None, 0, "no memory to run it: Requested amount of GPU"),
        ({"refuse_execution": True}, {}, None, 0, "Failure to submit program to DLA engine"),
        ({"device_count": 0}, {}, None, 0, "CUDA finds 0 GPUs"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_in_one_line(
    install: Install, tmp_path: Path, machine: dict, plan: dict, record: Any, core: int,
    message: str,
) -> None:  # fmt: skip
    install(**machine)
    path = write_plan(tmp_path, **plan)
    if record is not None:
        write_manifest(path, **record)
    with pytest.raises(DlaPerceptionError) as caught:
        open_engine(path, dla_core=core)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    # the fixture checks that nothing is left of the attempt


@pytest.mark.parametrize("size", [4, 27, 36, 200, 1000])
def test_truncated_plan(install: Install, tmp_path: Path, size: int) -> None:
    install()
    path = write_plan(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(EngineError, match="refuses the plan|but this machine has") as caught:
        open_engine(path, dla_core=0)
    assert "\n" not in str(caught.value)


def test_out_of_memory(install: Install, tmp_path: Path) -> None:
    board = install()
    board.machine.free_bytes = 3000
    with pytest.raises(EngineError, match="cannot get 5120 bytes of pinned memory"):
        open_engine(write_plan(tmp_path, layout_out="CHW16"), dla_core=0)


def test_loadable_given_to_tensorrt(install: Install, tmp_path: Path) -> None:
    install()
    path = write_loadable(tmp_path)
    with pytest.raises(EngineError, match="a DLA loadable, which the backend 'tensorrt' cannot"):
        open_engine(path, "tensorrt", dla_core=0)
    with pytest.raises(EngineError, match="a DLA loadable, not a TensorRT plan"):
        TensorRTEngine(path, dla_core=0)
    # a plan by its first bytes, a loadable by TensorRT's word
    content = replace(recognise(write_plan(tmp_path)), tensorrt_version=None)
    with pytest.raises(EngineError, match="open it with the backend 'cudla'"):
        TensorRTEngine(path, content, dla_core=0)


def test_core_of_a_two_core_module_may_be_chosen_at_loading(
    install: Install, tmp_path: Path
) -> None:
    board = install()
    path = write_plan(tmp_path)
    write_manifest(path, dla_core=0)
    engine = open_engine(path, dla_core=1)
    assert (board.core_taken, engine.info.device) == (1, "dla1")
    engine.close()


def test_no_tensorrt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingPackageError, match="needs the package tensorrt.*python3-libnvinfer"):
        open_engine(write_plan(tmp_path), dla_core=0)


def test_tensorrt_before_8_5(install: Install, tmp_path: Path) -> None:
    install("8.4.1")
    import tensorrt

    del tensorrt.ICudaEngine.num_io_tensors
    with pytest.raises(EngineError, match=r"TensorRT 8\.4\.1 is too old; 8\.5 or later"):
        open_engine(write_plan(tmp_path, "8.4.1"), dla_core=0)


def test_strides_that_differ_are_refused(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    import tensorrt

    monkeypatch.setattr(
        tensorrt.IExecutionContext, "get_tensor_strides", lambda self, name: (1, 1, 1, 1)
    )
    with pytest.raises(EngineError, match=r"TensorRT's strides are \[1, 1, 1, 1\], expected"):
        open_engine(write_plan(tmp_path, layout_in="DLA_LINEAR"), dla_core=0)


def test_dynamic_sizes(install: Install, tmp_path: Path) -> None:
    install()
    document = plan_document()
    document["tensors"][0]["shape"][0] = -1
    path = tmp_path / "net.engine"
    path.write_bytes(plan_bytes("10.3.0", document, convolution_network()))
    with pytest.raises(EngineError, match="dynamic sizes; a DLA needs static ones"):
        open_engine(path, dla_core=0)


def test_broken_record(install: Install, tmp_path: Path) -> None:
    install()
    path = write_plan(tmp_path)
    for text, message in (
        ("{", "a broken record of an engine"),
        ("[]", "no record of an engine in format 1"),
        ('{"format": 2}', "no record of an engine in format 1"),
        ('{"format": 1}', "a broken record of an engine (KeyError: 'machine')"),
    ):
        manifest_path(path).write_text(text)
        with pytest.raises(EngineError) as caught:
            open_engine(path, dla_core=0)
        assert message in str(caught.value)


def test_record_survives_the_file(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    spec = TensorSpec("x", SHAPE_IN, np.dtype(np.int8), Layout.HWC4, 0.25, 32)
    written = write_manifest(
        path, inputs=(spec,), settings={"pools": {"dla_sram": 4096}}, metadata={"names": "{}"},
        self_test={"detections": []},
    )  # fmt: skip
    assert read_manifest(path, file_sha256(path)) == written
    manifest_path(path).unlink()
    assert read_manifest(path, file_sha256(path)) is None


def test_inspector_text() -> None:
    text = (
        '{"Layers": ["Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...b]}", '
        '"{ForeignNode[a...b]}", "images to nvm", "images copy finish", "head_1 from nvm"]}'
    )
    assert [(item.name[:12], item.device) for item in parse_engine_information(text)] == [
        ("Reformatting", "gpu"),
        ("{ForeignNode", "unknown"),
    ]
    text = (
        '{"Layers": [{"Name": "{ForeignNode[a]}", "LayerType": "Myelin"}, '
        '{"Name": "{ForeignNode[b]}", "LayerType": "DLA"}, {"Name": "c", "LayerType": "Scale"}]}'
    )
    assert [item.device for item in parse_engine_information(text)] == ["gpu", "dla", "gpu"]
    for broken in ("", "[]", '{"Layers": 3}', '{"Layers": [4]}'):
        with pytest.raises(ValueError, match=r"expected|Expecting"):
            parse_engine_information(broken)


EXIT_SCRIPT = """
import atexit, sys
sys.path.insert(0, {stand_ins!r})
from cuda_stand_in import Machine, make_pycuda
from tensorrt_stand_in import Board, make_tensorrt
machine = Machine()
atexit.register(lambda: (machine.assert_clean(), print("clean")))
sys.modules.update(make_pycuda(machine), tensorrt=make_tensorrt("10.3.0", Board(machine)))
from dla_perception.engines.loading import open_engine
engine = open_engine({path!r}, dla_core=0)
engine.submit(0)
"""


def test_interpreter_ends_with_an_open_engine(tmp_path: Path) -> None:
    script = EXIT_SCRIPT.format(
        stand_ins=str(Path(__file__).parent / "stand_ins"), path=str(write_plan(tmp_path))
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("clean\n", "", 0)


def test_stand_in_has_no_name_that_tensorrt_lacks(install: Install) -> None:
    names = stub_names()
    if not names:
        pytest.skip("tensorrt-stubs is not installed")
    install("10.3.0")
    import tensorrt

    for kind, value in vars(tensorrt).items():
        if kind.startswith("_") or not isinstance(value, type):
            continue
        assert kind in names, kind
        for member in vars(value):
            if not member.startswith("_") and member not in ("name", "value"):
                assert member in names[kind], f"{kind}.{member}"


def stub_names() -> dict[str, set[str]]:
    """Classes of tensorrt-stubs 10 and the names in them."""
    # by lines: the file is not quite Python (an argument without default after one with)
    found: dict[str, set[str]] = {}
    for folder in sys.path:
        for stub in Path(folder).glob("tensorrt_bindings/tensorrt.pyi"):
            names: set[str] = set()
            for line in stub.read_text().splitlines():
                if match := re.match(r"class (\w+)", line):
                    names = found.setdefault(match[1], set())
                elif match := re.match(r"    (?:def |class )?(\w+)", line):
                    names.add(match[1])
    return found


def test_unknown_names_are_refused_by_the_stand_in(install: Install) -> None:
    install("11.4.1")
    import tensorrt as trt

    assert not hasattr(trt.BuilderFlag, "FP16")
    assert not hasattr(trt, "IInt8EntropyCalibrator2")
    config = trt.IBuilderConfig(None)
    with pytest.raises(AttributeError):
        config.dla_core = 0
    config.DLA_core = 0
    install("8.5.2")
    import tensorrt as trt_8

    assert not hasattr(trt_8, "IProgressMonitor")
    assert tensor("x", (1,), "INPUT", "HALF", "LINEAR")["scale"] is None
