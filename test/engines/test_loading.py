"""What a file is and which runtime opens it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_in_fixtures import convolution_network, install, plan_document  # noqa: F401
from tensorrt_stand_in import loadable_bytes, plan_bytes

from dla_perception.engines.engine import EngineError
from dla_perception.engines.files import FileKind, recognise
from dla_perception.engines.loading import open_engine

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:7567\nsize 28954452\n"
WEIGHTS = struct.pack("<iiiQ", 0, 2, 5, 32013312) + bytes(4 * 7)
PLAN = plan_bytes("10.3.0", plan_document(), b"onnx")
HEADER = json.dumps({"names": {"0": "cat", "1": "dog"}, "stride": 32, "task": "detect"}).encode()


def write(folder: Path, content: bytes, name: str = "model.bin") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", FileKind.EMPTY),
        (PLAN, FileKind.PLAN),
        (struct.pack("<i", len(HEADER)) + HEADER + PLAN, FileKind.PLAN),
        (loadable_bytes(plan_document(), b"onnx"), FileKind.LOADABLE),
        (LFS, FileKind.LFS_POINTER),
        (b"TRT-8600-EntropyCalibration2\nimages: 3c00f9f4\n", FileKind.CALIBRATION_CACHE),
        (b"TRT-100300-EntropyCalibration2\nimages: 3c00f9f4\n", FileKind.CALIBRATION_CACHE),
        (WEIGHTS, FileKind.DARKNET_WEIGHTS),
        (b"# tiny\n[net]\nwidth=416\n", FileKind.DARKNET_CFG),
        (b"PK\x03\x04" + bytes(40), FileKind.ZIP),
        (b"hello, this is no network at all", FileKind.UNKNOWN),
        (bytes(range(256)) * 8, FileKind.UNKNOWN),
    ],
)
def test_kind_by_content(tmp_path: Path, content: bytes, kind: FileKind) -> None:
    assert recognise(write(tmp_path, content)).kind is kind


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("models/*.onnx", FileKind.ONNX),
        ("darknet/*.weights", FileKind.DARKNET_WEIGHTS),
        ("darknet/*.cfg", FileKind.DARKNET_CFG),
        ("calibration_caches/*.cache", FileKind.CALIBRATION_CACHE),
        ("images/classic/*.jpg", FileKind.UNKNOWN),
    ],
)
def test_kind_of_real_files(assets: Path, pattern: str, kind: FileKind) -> None:
    files = sorted(assets.glob(pattern))
    assert files
    for file in files:
        found = recognise(file)
        assert (found.kind, found.damage) == (kind, None), file


def test_plan_version_and_header(tmp_path: Path) -> None:
    plain = recognise(write(tmp_path, PLAN))
    assert (plain.tensorrt_version, plain.offset, plain.metadata) == ("10.3.0.0", 0, {})
    content = struct.pack("<i", len(HEADER)) + HEADER + PLAN
    found = recognise(write(tmp_path, content))
    assert content[found.offset :] == PLAN
    assert found.tensorrt_version == "10.3.0.0"
    assert found.metadata["names"] == "{0: 'cat', 1: 'dog'}"
    assert found.metadata["stride"] == "32"
    assert found.metadata["task"] == "detect"


def test_header_without_plan(tmp_path: Path) -> None:
    path = write(tmp_path, struct.pack("<i", len(HEADER)) + HEADER)
    with pytest.raises(EngineError, match="broken TensorRT plan: it ends after its metadata"):
        open_engine(path)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=300))
def test_recognising_never_fails(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "random.bin"
    path.write_bytes(content)
    found = recognise(path)
    assert found.size == len(content)
    assert (found.kind is FileKind.EMPTY) == (not content)


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(min_value=20))
def test_cut_onnx_is_told(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = convolution_network()
    cut = 20 + cut % (len(whole) - 21)
    path = tmp_path_factory.getbasetemp() / "cut.onnx"
    path.write_bytes(whole[:cut])
    with pytest.raises(EngineError) as caught:
        open_engine(path)
    assert "cut" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty; expected an ONNX network, a TensorRT plan or a DLA loadable"),
        (LFS, "run 'git lfs pull'"),
        (b"TRT-8600-EntropyCalibration2\n", "give it to 'dla-perception build'"),
        (WEIGHTS, "import-darknet CFG WEIGHTS"),
        (b"[net]\n", "import-darknet CFG WEIGHTS"),
        (b"PK\x03\x04" + bytes(40), "export the network to ONNX first"),
        (b"\xff\xd8\xff\xe0 a picture", "no network that is known here"),
    ],
)
def test_what_is_no_network_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(EngineError) as caught:
        open_engine(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_missing_and_folder(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no such file"):
        open_engine(tmp_path / "absent.onnx")
    with pytest.raises(EngineError, match="it is a folder"):
        open_engine(tmp_path)


@pytest.mark.parametrize(
    ("content", "backend", "message"),
    [
        (PLAN, "cudla", "a TensorRT plan, which the backend 'cudla' cannot run; open it with the "
         "backend 'tensorrt'"),
        (PLAN, "onnxruntime", "with the backend 'tensorrt' or 'auto'"),
        (loadable_bytes(plan_document(), b"x"), "tensorrt", "a DLA loadable, which the backend "
         "'tensorrt' cannot run; open it with the backend 'cudla'"),
        (convolution_network(), "tensorrt", "make an engine of it with 'dla-perception build'"),
        (convolution_network(), "cudla", "make an engine of it with 'dla-perception build'"),
    ],
)  # fmt: skip
def test_backend_for_another_kind(
    tmp_path: Path, content: bytes, backend: str, message: str
) -> None:
    with pytest.raises(EngineError) as caught:
        open_engine(write(tmp_path, content), backend)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "tensorflow"}, "backend: 'tensorflow' is unknown; expected auto, onnxruntime"),
        ({"gpu_fallback": "maybe"}, "gpu_fallback: 'maybe' is unknown; expected forbid, warn"),
        ({"dla_core": -2}, "dla_core: -2 cannot be"),
        ({"slots": 0}, "slots: 0 cannot be"),
        ({"dla_core": 0}, "DLA core 0 was asked for, but an ONNX network runs on the CPU here"),
        ({"dla_core": 1, "gpu_fallback": "forbid"}, "DLA core 1 was asked for"),
    ],
)
def test_requests_that_cannot_be(tmp_path: Path, options: dict, message: str) -> None:
    path = write(tmp_path, convolution_network())
    with pytest.raises(EngineError) as caught:
        open_engine(path, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("fallback", ["warn", "allow"])
def test_onnx_beside_a_core_where_fallback_is_allowed(tmp_path: Path, fallback: str) -> None:
    path = write(tmp_path, convolution_network())
    engine = open_engine(path, dla_core=0, gpu_fallback=fallback, slots=3)
    try:
        assert engine.info.device == "cpu"
        assert engine.slots == 3
    finally:
        engine.close()
