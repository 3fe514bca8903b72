"""The calibration cache: NVIDIA's own file, published values, and every way to be wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dla_perception.compiler.quantization.cache import (
    CacheError,
    CalibrationCache,
    encode_scale,
    encode_version,
    read_cache,
    write_cache,
)

HEADER = "TRT-8600-EntropyCalibration2\n"


@pytest.mark.parametrize("name", ["cudla_yolov5s_qat2ptq.cache", "yolox_nano_416_ptq.cache"])
def test_real_files_come_back_byte_for_byte(assets: Path, tmp_path: Path, name: str) -> None:
    path = assets / "calibration_caches" / name
    cache = read_cache(path)
    write_cache(tmp_path / "copy", cache)
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    assert (cache.version, cache.algorithm) == (8600, "EntropyCalibration2")


def test_nvidia_s_file(assets: Path) -> None:
    scales = read_cache(assets / "calibration_caches" / "cudla_yolov5s_qat2ptq.cache").scales
    assert len(scales) == 197
    assert scales["images"] == pytest.approx(0.0078720935, rel=1e-7)
    assert scales["images"] * 127 == pytest.approx(0.99975587, rel=1e-7)
    assert list(scales)[-1] == "/model.0/act/Sigmoid_output_0"


@pytest.mark.parametrize(
    ("digits", "scale"),
    [
        ("3c010204", 1 / 127),
        ("3c00f9f4", 0.0078720935),
        ("3c010a14", 0.0078759380),
        ("3e6c9314", 0.2310298085),
        ("3e0230f1", 0.1271398216),
        ("3b66eddc", 0.0035236990),
        ("3f800000", 1.0),
        ("40000000", 2.0),
        ("3d418306", 6 / 127),
        ("0c010204", struct.unpack(">f", b"\x0c\x01\x02\x04")[0]),
    ],
)
def test_published_values(digits: str, scale: float) -> None:
    assert CalibrationCache.parse(f"{HEADER}x: {digits}\n", "c").scales["x"] == pytest.approx(
        scale, rel=1e-7
    )
    assert encode_scale(struct.unpack(">f", bytes.fromhex(digits))[0]) == digits


NAMES = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), min_size=1)
SCALES = st.floats(2**-149, 2**127, width=32)


@given(st.dictionaries(NAMES, SCALES, min_size=1), st.sampled_from([8502, 8600, 100300]))
def test_any_names_and_scales_survive(scales: dict[str, float], version: int) -> None:
    cache = CalibrationCache(scales, version, "MinMaxCalibration")
    again = CalibrationCache.parse(cache.text(), "c")
    assert again == cache
    assert list(again.scales) == list(scales)


def test_a_name_may_hold_colons_and_a_line_may_end_as_on_windows() -> None:
    text = "TRT-100300-EntropyCalibration2\r\na:b: 3f800000: 40000000\r\n"
    cache = CalibrationCache.parse(text, "c")
    assert cache.scales == {"a:b: 3f800000": 2.0}
    assert cache.version == 100300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: '' is no header"),
        ("images: 3c00f9f4\n", "line 1: 'images: 3c00f9f4' is no header"),
        ("TRT-8XXX-EntropyCalibration2\nx: 3c00f9f4\n", "expected 'TRT-8600-Entropy"),
        (HEADER, "holds no scale"),
        (HEADER + "x: 3c00f9f4\n\ny: 3c00f9f4\n", "line 3: '': expected 'tensor: 3c010a14'"),
        (HEADER + "x 3c00f9f4\n", "line 2: 'x 3c00f9f4': expected 'tensor"),
        (HEADER + "x: c010204\n", "line 2: tensor 'x': scale 'c010204' has 7 characters"),
        (HEADER + "x: 3c0102040\n", "has 9 characters"),
        (HEADER + "x: 3c01020g\n", "line 2: tensor 'x': scale '3c01020g': expected one space"),
        (HEADER + "x:3c010204\n", "expected one space"),
        (HEADER + ": 3c010204\n", "expected 'tensor: 3c010a14'"),
        (HEADER + "y: 3f800000\nx: bc010204\n", "line 3: tensor 'x': bc010204 is the scale -0.00"),
        (HEADER + "x: 7f800000\n", "7f800000 is the scale inf"),
        (HEADER + "x: 7fc00000\n", "7fc00000 is the scale nan"),
        (HEADER + "x: 00000000\n", "is the scale 0.0; expected a positive"),
        (HEADER + "x: 3f800000\nx: 3f800000\n", "line 3: tensor 'x' was already on line 2"),
    ],
)
def test_what_is_no_cache_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(CacheError) as caught:
        CalibrationCache.parse(text, "c")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_cache(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(CacheError, match="it is no text"):
        read_cache(tmp_path / "binary")
    with pytest.raises(CacheError, match="No such file"):
        read_cache(tmp_path / "missing")
    with pytest.raises(CacheError, match="cannot write"):
        write_cache(tmp_path / "no" / "folder", CalibrationCache({"x": 1.0}))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), 1e39, 1e-60])
def test_scales_that_cannot_be_written(scale: float) -> None:
    with pytest.raises(CacheError, match="tensor 'x': its scale is"):
        CalibrationCache({"x": scale}).text()


def test_names_that_cannot_be_written() -> None:
    with pytest.raises(CacheError, match="cannot hold this name"):
        CalibrationCache({"x\ny": 1.0}).text()


def test_versions() -> None:
    versions = {"8.5.2": 8502, "8.6": 8600, "8.6.2": 8602, "10.3": 100300, "10.3.0": 100300}
    assert {version: encode_version(version) for version in versions} == versions
    for wrong in ("8", "8600", "ten", "8.6.2.1", ""):
        with pytest.raises(CacheError, match="expected one such as 8.6"):
            encode_version(wrong)
