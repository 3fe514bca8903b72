"""DLA loadables over a stand-in for libcudla and NvSci, built against NVIDIA's cudla.h.

The header comes from the package nvidia-cudla, which is downloaded when the tests run; without
network or a C compiler they are skipped.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
from stand_in_fixtures import (  # noqa: F401
    SHAPE_IN,
    SHAPE_OUT,
    Install,
    convolution_network,
    expected_output,
    install,
    plan_document,
    write_loadable,
    write_plan,
)
from tensorrt_stand_in import Board, Program

from dla_perception.engines import cudla_library, nvsci
from dla_perception.engines.cudla_engine import CudlaEngine
from dla_perception.engines.cudla_library import STATUSES, TensorDescriptor
from dla_perception.engines.engine import EngineError, InferenceTimeoutError, TensorSpec
from dla_perception.engines.layouts import Layout, buffer_bytes, pack, unpack
from dla_perception.engines.loading import open_engine
from dla_perception.engines.manifest import (
    EngineManifest,
    LayerPlacement,
    Machine,
    file_sha256,
    manifest_path,
)
from dla_perception.errors import MissingPackageError

COMPUTE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.c_void_p,
)
MODES = ("hybrid", "standalone")


@pytest.fixture(scope="session")
def cudla_header(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with NVIDIA's ``cudla.h``."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("cudla")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--platform", "manylinux2014_aarch64", "--dest", str(folder), "nvidia-cudla",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"cannot download nvidia-cudla: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder)
    return next(folder.rglob("cudla.h")).parent


@pytest.fixture(scope="session")
def built(cudla_header: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The stand-in, with and without task time-outs."""
    folder = tmp_path_factory.mktemp("stand_in")
    source = Path(__file__).parent / "stand_ins" / "cudla_stand_in.c"
    libraries = {}
    for name, options in (("new", []), ("old", ["-DWITHOUT_TASK_TIMEOUT"])):
        libraries[name] = folder / f"libcudla_{name}.so"
        subprocess.run(
            ["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(cudla_header),
             *options, "-o", str(libraries[name]), str(source), "-lpthread"],
            check=True, timeout=120,
        )  # fmt: skip
    return libraries


class StandIn:
    """The stand-in library and what it computes."""

    def __init__(self, path: Path, board: Board, cores: int = 2) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.stand_in_fault.restype = ctypes.c_char_p
        self.board = board
        self.failing = False
        self.callback = COMPUTE(self.compute)
        self.library.stand_in_reset(self.callback, ctypes.c_uint64(cores))
        self.library.stand_in_caches(False)
        self.library.stand_in_sync_version(2)

    def load(self, path: Path, **options: Any) -> Path:
        """Write a loadable and describe its tensors to the library."""
        self.document = plan_document(**options)
        self.program = Program(self.document, convolution_network())
        for tensor in self.document["tensors"]:
            self.describe(tensor)
        return write_loadable(path, **options)

    def describe(self, tensor: dict[str, Any], **changes: Any) -> None:
        descriptor = TensorDescriptor()
        descriptor.name = tensor["name"].encode()
        descriptor.n, descriptor.c, descriptor.h, descriptor.w = tensor["shape"]
        descriptor.size = self.program.nbytes(tensor)
        descriptor.dataType = {"HALF": 2, "INT8": 4, "FLOAT": 1}[tensor["dtype"]]
        layout = tensor["format"]
        descriptor.dataFormat = {"DLA_LINEAR": 1, "LINEAR": 1, "DLA_HWC4": 2}.get(layout, 3)
        descriptor.dataCategory = 0 if layout == "DLA_HWC4" else 2
        for name, value in changes.items():
            setattr(descriptor, name, value)
        is_output = int(tensor["mode"] == "OUTPUT")
        self.library.stand_in_describe(is_output, ctypes.byref(descriptor))

    def fail(self, function: str, status: int) -> None:
        """Have the next call of ``function`` return ``status``."""
        self.library.stand_in_fail(function.encode(), status)

    def compute(self, number: int, inputs: Any, outputs: Any, stream: int | None) -> int:
        tensors = self.document["tensors"]
        addresses = {tensors[0]["name"]: inputs[0], tensors[1]["name"]: outputs[0]}
        machine = self.board.machine

        def run() -> None:
            machine.hang.wait()
            if stream:
                buffers = {name: machine.at(address) for name, address in addresses.items()}
            else:
                buffers = {
                    tensor["name"]: np.ctypeslib.as_array(
                        (ctypes.c_uint8 * self.program.nbytes(tensor)).from_address(
                            addresses[tensor["name"]]
                        )
                    )
                    for tensor in tensors
                }
            self.program.run(buffers)

        if stream:
            machine.streams[stream].put(run)
        else:
            run()
        return 0

    def assert_clean(self) -> None:
        """Nothing exists any more and nothing was done in the wrong order."""
        assert self.library.stand_in_fault() == b""
        alive = [self.library.stand_in_alive(what) for what in range(4)]
        assert alive == [0, 0, 0, 0], "devices, modules, memories, NvSci objects"


@pytest.fixture
def cudla(
    built: dict[str, Path], install: Install, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    """The stand-in in the place of libcudla, on a machine of stand-ins."""
    stand_in = StandIn(built["new"], install())
    use_library(monkeypatch, built["new"])
    yield stand_in
    stand_in.assert_clean()


def use_library(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(cudla_library, "LIBRARIES", (str(path),))
    monkeypatch.setattr(nvsci, "BUF_LIBRARIES", (str(path),))
    monkeypatch.setattr(nvsci, "SYNC_LIBRARIES", (str(path),))


def infer(engine: Any, values: np.ndarray, slot: int = 0) -> np.ndarray:
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


def write_manifest(path: Path, **changes: Any) -> None:
    manifest = EngineManifest(
        engine_sha256=file_sha256(path),
        kind="loadable",
        onnx_file="net.onnx",
        onnx_sha256="0" * 64,
        tensorrt_version="10.3.0",
        machine=Machine("Orin", "8.7", 2),
        dla_core=0,
        precision="int8",
        gpu_fallback="forbid",
        inputs=(),
        outputs=(),
        layers=(LayerPlacement("{ForeignNode[conv...relu]}", "dla"),),
        metadata={"names": "{0: 'cat'}"},
    )
    manifest_path(path).write_text(replace(manifest, **changes).to_json())


INT8_SPECS = {
    "inputs": (TensorSpec("x", SHAPE_IN, np.dtype(np.int8), Layout.HWC4, 1 / 127),),
    "outputs": (TensorSpec("y", SHAPE_OUT, np.dtype(np.int8), Layout.CHW32, 0.05),),
}
INT8_PLAN = {"dtype": "INT8", "layout_out": "CHW32", "scales": (1 / 127, 0.05)}


# the header -------------------------------------------------------------------------------


def test_structures_and_constants_are_those_of_the_header(
    cudla_header: Path, tmp_path: Path
) -> None:
    names = {
        "cudlaModuleTensorDescriptor": cudla_library.TensorDescriptor,
        "cudlaModuleAttribute": cudla_library.ModuleAttribute,
        "cudlaExternalMemoryHandleDesc": cudla_library.ExternalMemory,
        "cudlaExternalSemaphoreHandleDesc": cudla_library.ExternalSemaphore,
        "CudlaFence": cudla_library.Fence,
        "cudlaWaitEvents": cudla_library.WaitEvents,
        "cudlaSignalEvents": cudla_library.SignalEvents,
        "cudlaTask": cudla_library.Task,
    }
    lines = ["#include <stddef.h>", '#include "cudla.h"']
    for name, structure in names.items():
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");')
        for field, _ in structure._fields_:
            place = getattr(structure, field).offset
            lines.append(f'_Static_assert(offsetof({name}, {field}) == {place}, "{field}");')
    values = {
        "CUDLA_CUDA_DLA": cudla_library.HYBRID,
        "CUDLA_STANDALONE": cudla_library.STANDALONE,
        "CUDLA_NVSCISYNC_FENCE": cudla_library.FENCE_EOF,
        "CUDLA_NVSCISYNC_ATTR_SIGNAL": cudla_library.SYNC_SIGNAL,
        "CUDLA_DATA_CATEGORY_IMAGE": cudla_library.CATEGORY_IMAGE,
        "CUDLA_NUM_INPUT_TENSORS": 0,
        "CUDLA_NUM_OUTPUT_TENSORS": 1,
        "CUDLA_INPUT_TENSOR_DESCRIPTORS": 2,
        "CUDLA_OUTPUT_TENSOR_DESCRIPTORS": 3,
        **{f"CUDLA_DATA_FORMAT_{name}": value for value, name in cudla_library.FORMATS.items()},
        **{
            f"CUDLA_DATA_TYPE_{({'float16': 'HALF', 'float32': 'FLOAT'}).get(name, name.upper())}":
            value for value, name in cudla_library.DATA_TYPES.items()
        },
        **{f"cudlaError{name}": status for status, (name, _) in STATUSES.items()},
    }  # fmt: skip
    for name, value in values.items():
        lines.append(f'_Static_assert({name} == {value}, "{name}");')
    source = tmp_path / "check.c"
    source.write_text("\n".join(lines) + "\n")
    command = ["cc", "-std=c11", "-I", str(cudla_header), "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # and the check can fail
    source.write_text(source.read_text().replace("== 168", "== 164"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "cudlaModuleTensorDescriptor" in done.stderr


def test_every_status_of_the_header_is_explained(cudla_header: Path) -> None:
    import re

    text = (cudla_header / "cudla.h").read_text()
    body = text[text.index("enum cudlaStatus") : text.index("typedef enum cudlaStatus")]
    found = {
        int(value, 0): name
        for name, value in re.findall(r"cudla(?:Error)?(\w+)\s*=\s*(0x[0-9a-f]+|\d+)", body)
    }
    assert found.pop(0) == "Success"
    assert found == {status: name for status, (name, _) in STATUSES.items()}


# running ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("layout_in", "layout_out"),
    [("DLA_HWC4", "CHW16"), ("DLA_LINEAR", "DLA_LINEAR"), ("CHW16", "DLA_LINEAR")],
)
def test_fp16(cudla: StandIn, tmp_path: Path, mode: str, layout_in: str, layout_out: str) -> None:
    path = cudla.load(tmp_path, layout_in=layout_in, layout_out=layout_out)
    engine = CudlaEngine(path, 1, slots=2, mode=mode)
    try:
        assert [spec.layout.name for spec in (*engine.inputs, *engine.outputs)] == [
            {"DLA_HWC4": "HWC4"}.get(name, name) for name in (layout_in, layout_out)
        ]
        for step in range(4):
            values = random_input(step)
            np.testing.assert_allclose(
                infer(engine, values, step % 2), expected_output(values), atol=0.02
            )
        assert cudla.library.stand_in_timeout() == 1000
    finally:
        engine.close()


@pytest.mark.parametrize("mode", MODES)
def test_int8_takes_scales_from_the_record(cudla: StandIn, tmp_path: Path, mode: str) -> None:
    path = cudla.load(tmp_path, **INT8_PLAN)
    with pytest.raises(EngineError, match="does not tell the scale of an INT8 tensor"):
        CudlaEngine(path, 0, mode=mode)
    write_manifest(path, **INT8_SPECS)
    engine = CudlaEngine(path, 0, mode=mode)
    values = random_input()
    np.testing.assert_allclose(
        infer(engine, values), expected_output(values).clip(-6.4, 6.35), atol=0.2
    )
    assert engine.info.dla_layers == ("{ForeignNode[conv...relu]}",)
    assert engine.info.metadata["names"] == "{0: 'cat'}"
    engine.close()


def test_info_and_close_twice(cudla: StandIn, tmp_path: Path) -> None:
    path = cudla.load(tmp_path)
    engine = open_engine(path, dla_core=1, slots=3)
    info = engine.info
    assert (info.runtime, info.runtime_version, info.device) == ("cudla", "1.5.0", "dla1")
    assert (info.dla_layers, info.gpu_layers) == (None, ())
    assert info.metadata == {"mode": "hybrid", "memory": "mapped"}
    assert engine.slots == 3
    assert cudla.library.stand_in_alive(2) == 6
    engine.close()
    engine.close()
    for call in (lambda: engine.submit(0), lambda: engine.wait(0), lambda: engine.input_buffers(0)):
        with pytest.raises(EngineError, match="the engine is closed"):
            call()


@pytest.mark.parametrize("memory", ["mapped", "pinned", "auto"])
def test_memory_of_hybrid_mode(cudla: StandIn, tmp_path: Path, memory: str) -> None:
    path = cudla.load(tmp_path)
    cudla.fail("cudlaMemRegister", 4)
    if memory != "auto":
        with pytest.raises(
            EngineError, match="registering memory with the DLA: cuDLA says Invalid"
        ):
            CudlaEngine(path, 0, memory=memory)
    engine = CudlaEngine(path, 0, memory=memory)
    # 'auto' falls back to copies when the DLA does not take the memory of an integrated GPU
    assert engine.info.metadata["memory"] == ("mapped" if memory == "mapped" else "pinned")
    np.testing.assert_allclose(
        infer(engine, random_input()), expected_output(random_input()), atol=0.02
    )
    engine.close()


@pytest.mark.parametrize("needed", [False, True])
def test_caches_are_flushed_where_needed(cudla: StandIn, tmp_path: Path, needed: bool) -> None:
    cudla.library.stand_in_caches(needed)
    before = cudla.library.stand_in_flushes()
    engine = CudlaEngine(cudla.load(tmp_path), 0, slots=1, mode="standalone")
    infer(engine, random_input())
    engine.close()
    # one per buffer when it is made, then one per buffer and inference, the first at loading
    assert cudla.library.stand_in_flushes() - before == (6 if needed else 0)


def test_hung_task_standalone(cudla: StandIn, tmp_path: Path) -> None:
    engine = CudlaEngine(cudla.load(tmp_path), 0, mode="standalone", task_timeout_ms=150)
    cudla.library.stand_in_hang(60_000)
    engine.submit(0)
    with pytest.raises(EngineError, match="submitted twice"):
        engine.submit(0)
    with pytest.raises(InferenceTimeoutError, match=r"net\.dla on dla0: no result after 0\.020 s"):
        engine.wait(0, 0.02)
    # the DLA ends the task by itself, as libcudla was told to
    with pytest.raises(EngineError, match=r"DlaErrEngineTimeout .*: the DLA hangs"):
        engine.wait(0, 10)
    cudla.library.stand_in_hang(0)
    np.testing.assert_allclose(
        infer(engine, random_input()), expected_output(random_input()), atol=0.02
    )
    engine.close()


def test_hung_task_hybrid(cudla: StandIn, tmp_path: Path) -> None:
    engine = CudlaEngine(cudla.load(tmp_path), 0)
    cudla.board.machine.hang.clear()
    engine.submit(0)
    with pytest.raises(InferenceTimeoutError, match="no result after"):
        engine.wait(0, 0.02)
    cudla.board.machine.hang.set()
    engine.wait(0, 10)
    engine.close()


def test_libcudla_without_task_timeouts(
    built: dict[str, Path], install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in = StandIn(built["old"], install())
    use_library(monkeypatch, built["old"])
    engine = CudlaEngine(stand_in.load(tmp_path), 0, mode="standalone")
    assert stand_in.library.stand_in_timeout() == 30000
    engine.close()
    stand_in.assert_clean()


def test_without_pycuda_it_runs_standalone(
    cudla: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pycuda", None)
    path = cudla.load(tmp_path)
    engine = open_engine(path, dla_core=0)
    assert engine.info.metadata["mode"] == "standalone"
    engine.close()
    with pytest.raises(MissingPackageError, match="pycuda"):
        CudlaEngine(path, 0, mode="hybrid")


# failures ---------------------------------------------------------------------------------

HARDWARE = 0x40000000


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("status", sorted(STATUSES))
def test_each_status_is_named_with_its_cause(
    cudla: StandIn, tmp_path: Path, status: int, mode: str
) -> None:
    name, cause = STATUSES[status]
    path = cudla.load(tmp_path)
    if status >= HARDWARE:
        engine = CudlaEngine(path, 0, mode=mode)
        cudla.fail("cudlaGetLastError", status)
        with pytest.raises(EngineError) as caught:
            infer(engine, random_input())
        # the slot is free again
        infer(engine, random_input())
        engine.close()
        what = "running the task"
    else:
        cudla.fail("cudlaCreateDevice", status)
        with pytest.raises(EngineError) as caught:
            CudlaEngine(path, 0, mode=mode)
        what = "opening DLA core 0"
    text = str(caught.value)
    assert text == f"{path} on dla0: {what}: cuDLA says {name} ({status:#x}): {cause}"
    assert "\n" not in text


@pytest.mark.parametrize(
    ("mode", "function"),
    [
        ("hybrid", "cudlaGetVersion"),
        ("hybrid", "cudlaDeviceGetCount"),
        ("hybrid", "cudlaModuleLoadFromMemory"),
        ("hybrid", "cudlaModuleGetAttributes"),
        ("hybrid", "cudlaSetTaskTimeoutInMs"),
        ("hybrid", "cudlaSubmitTask"),
        ("standalone", "cudlaImportExternalMemory"),
        ("standalone", "cudlaImportExternalSemaphore"),
        ("standalone", "cudlaGetNvSciSyncAttributes"),
        ("standalone", "cudlaSubmitTask"),
        ("standalone", "NvSciBufModuleOpen"),
        ("standalone", "NvSciBufAttrListCreate"),
        ("standalone", "NvSciBufAttrListSetAttrs"),
        ("standalone", "NvSciBufAttrListReconcile"),
        ("standalone", "NvSciBufAttrListGetAttrs"),
        ("standalone", "NvSciBufObjAlloc"),
        ("standalone", "NvSciBufObjGetCpuPtr"),
        ("standalone", "NvSciSyncCheckVersionCompatibility"),
        ("standalone", "NvSciSyncModuleOpen"),
        ("standalone", "NvSciSyncAttrListCreate"),
        ("standalone", "NvSciSyncAttrListSetAttrs"),
        ("standalone", "NvSciSyncAttrListReconcile"),
        ("standalone", "NvSciSyncObjAlloc"),
        ("standalone", "NvSciSyncCpuWaitContextAlloc"),
        ("standalone", "NvSciSyncFenceWait"),
    ],
)
def test_a_failure_of_any_call_leaves_nothing(
    cudla: StandIn, tmp_path: Path, mode: str, function: str
) -> None:
    path = cudla.load(tmp_path)
    cudla.fail(function, 2)
    with pytest.raises(EngineError) as caught:
        CudlaEngine(path, 0, mode=mode)
    text = str(caught.value)
    assert "\n" not in text
    expected = f"{function} fails with 0x2" if function.startswith("NvSci") else "OutOfResources"
    assert expected in text


@pytest.mark.parametrize("function", ["cudlaMemUnregister", "cudlaModuleUnload"])
def test_closing_goes_on_after_a_task_error(cudla: StandIn, tmp_path: Path, function: str) -> None:
    engine = CudlaEngine(cudla.load(tmp_path), 0, mode="standalone")
    # any call may return the error of an earlier task; the real thing is then done all the same,
    # which the stand-in does not imitate: so only the closing of the rest is looked at
    cudla.fail(function, 0x40000006)
    engine.close()
    assert cudla.library.stand_in_alive(0) == 0
    cudla.library.stand_in_reset(cudla.callback, ctypes.c_uint64(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dla_core": -1}, "a DLA loadable runs on a DLA only; say which core"),
        ({"dla_core": 2}, "DLA core 2 was asked for, but this module has 2"),
        ({"mode": "fast"}, "mode: 'fast' is unknown; expected auto, hybrid, standalone"),
        ({"memory": "managed"}, "memory: 'managed' is unknown; expected auto, mapped, pinned"),
        ({"task_timeout_ms": 0}, "task_timeout_ms: 0 cannot be; expected 1 to 1000000"),
        ({"task_timeout_ms": 1_000_001}, "task_timeout_ms: 1000001 cannot be"),
    ],
)
def test_requests_that_cannot_be(
    cudla: StandIn, tmp_path: Path, options: dict, message: str
) -> None:
    path = cudla.load(tmp_path)
    with pytest.raises(EngineError) as caught:
        CudlaEngine(path, **{"dla_core": 0, **options})
    assert message in str(caught.value)


@pytest.mark.parametrize("cut", [17, 100, 1])
def test_damaged_loadable(cudla: StandIn, tmp_path: Path, cut: int) -> None:
    path = cudla.load(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(EngineError, match="loading the loadable: cuDLA says Umd .*is damaged"):
        CudlaEngine(path, 0)


def test_plan_given_to_cudla(cudla: StandIn, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="a TensorRT plan, not a DLA loadable"):
        CudlaEngine(write_plan(tmp_path), 0)


def test_record_that_does_not_fit(cudla: StandIn, tmp_path: Path) -> None:
    path = cudla.load(tmp_path, **INT8_PLAN)
    wrong = replace(INT8_SPECS["inputs"][0], shape=(1, 3, 8, 100))
    write_manifest(path, inputs=(wrong,), outputs=INT8_SPECS["outputs"])
    with pytest.raises(EngineError, match="the record beside it says x .*; build it again"):
        CudlaEngine(path, 0)
    write_manifest(path, **INT8_SPECS, machine=Machine("Orin NX 8GB", "8.7", 1))
    with pytest.raises(EngineError, match="a module with 1 DLA cores, but core 1 was asked for"):
        CudlaEngine(path, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataType": 1}, "float32 NHWC, .*: expected float16 or int8"),
        ({"dataType": 9}, "type 9 NHWC, .*: expected float16 or int8"),
        ({"dataFormat": 7}, "format 7, .*: a layout that is not known here"),
        ({"size": 12345}, "12345 bytes: a layout that is not known here"),
    ],
)
def test_tensors_that_are_not_known(
    cudla: StandIn, tmp_path: Path, changes: dict, message: str
) -> None:
    path = write_loadable(tmp_path)
    cudla.document = plan_document()
    cudla.program = Program(cudla.document, convolution_network())
    cudla.describe(cudla.document["tensors"][0], **changes)
    cudla.describe(cudla.document["tensors"][1])
    with pytest.raises(EngineError, match=message):
        CudlaEngine(path, 0)


def test_other_version_of_nvscisync(cudla: StandIn, tmp_path: Path) -> None:
    cudla.library.stand_in_sync_version(1)
    with pytest.raises(EngineError, match="NvSciSync: version 2 is needed"):
        CudlaEngine(cudla.load(tmp_path), 0, mode="standalone")


@pytest.mark.parametrize("mode", MODES)
def test_out_of_memory(cudla: StandIn, tmp_path: Path, mode: str) -> None:
    path = cudla.load(tmp_path)
    if mode == "hybrid":
        cudla.board.machine.free_bytes = 3000
        with pytest.raises(EngineError, match="cannot get .* bytes of pinned memory"):
            CudlaEngine(path, 0)
    else:
        cudla.fail("NvSciBufObjAlloc", 0x11)
        with pytest.raises(EngineError, match="NvSciBufObjAlloc fails with 0x11"):
            CudlaEngine(path, 0, mode=mode)


def test_library_is_missing_or_too_old(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install()
    path = write_loadable(tmp_path)
    monkeypatch.setattr(cudla_library, "LIBRARIES", ("libabsent.so.1", "libabsent.so"))
    with pytest.raises(EngineError, match=r"used here: libabsent\.so\.1.*JetPack 5"):
        open_engine(path, dla_core=0)
    monkeypatch.setattr(cudla_library, "LIBRARIES", ("libm.so.6",))
    with pytest.raises(EngineError, match="has no cudlaGetVersion: it is too old"):
        open_engine(path, dla_core=0)


def test_nvsci_is_missing(cudla: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = cudla.load(tmp_path)
    monkeypatch.setattr(nvsci, "SYNC_LIBRARIES", ("libabsent.so",))
    with pytest.raises(EngineError, match="standalone mode cannot be used here: libabsent"):
        CudlaEngine(path, 0, mode="standalone")
    monkeypatch.setattr(nvsci, "SYNC_LIBRARIES", ("libm.so.6",))
    with pytest.raises(EngineError, match="too old for cuDLA's standalone mode"):
        CudlaEngine(path, 0, mode="standalone")


def test_sizes_of_the_reference() -> None:
    """Sizes published for NVIDIA's YOLOv5 loadable at 672x672 (cuDLA-samples)."""
    image = TensorSpec("images", (1, 3, 672, 672), np.dtype(np.int8), Layout.HWC4, 1.0)
    head = TensorSpec("s8", (1, 255, 84, 84), np.dtype(np.float16), Layout.CHW16)
    assert buffer_bytes(image) == 1_806_336
    assert buffer_bytes(head) == 3_612_672
