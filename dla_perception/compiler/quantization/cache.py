"""TensorRT's calibration cache: the INT8 scale of each tensor, as text.

The first line is ``TRT-<version>-<algorithm>``, each other line ``<tensor>: <hhhhhhhh>``: the
bits of the IEEE-754 binary32 scale, most significant byte first. The scale is the tensor's
dynamic range divided by 127. Source: the file ``data/model/qat2ptq.cache`` of NVIDIA's
cuDLA-samples and the reader in TensorRT's ``samples/common/sampleEngines.cpp``.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

from dla_perception.errors import DlaPerceptionError

ENTROPY = "EntropyCalibration2"
"""TensorRT's name of the only calibrator that it accepts for a DLA (header NvInfer.h)."""

DEFAULT_VERSION = 8600
"""What NVIDIA's own Q/DQ translator writes: TensorRT 8.6.0."""

_HEADER = re.compile(r"TRT-(\d{4,6})-(\w+)")
_LINE = re.compile(r"(.+): ([0-9a-fA-F]{8})")


class CacheError(DlaPerceptionError):
    """A calibration cache cannot be used."""


@dataclass(frozen=True)
class CalibrationCache:
    """Scales of a network's tensors.

    Attributes:
        scales: positive and finite, by tensor name, in the file's order.
        version: TensorRT's version as its header writes it, see :func:`encode_version`.
        algorithm: the calibrator's name. TensorRT ignores a cache of another calibrator.
    """

    scales: Mapping[str, float]
    version: int = DEFAULT_VERSION
    algorithm: str = ENTROPY

    @classmethod
    def parse(cls, text: str, where: str) -> CalibrationCache:
        """Read the text of a cache; ``where`` names it in messages.

        Raises:
            CacheError: the text is no calibration cache; the message has the line's number.
        """
        header, *lines = text.split("\n")
        found = _HEADER.fullmatch(header.rstrip("\r"))
        if found is None:
            raise CacheError(
                f"{where}: line 1: {header[:60]!r} is no header of a calibration cache; "
                f"expected 'TRT-{DEFAULT_VERSION}-{ENTROPY}'"
            )
        if lines and lines[-1] == "":  # the end of the last line
            lines.pop()
        scales: dict[str, float] = {}
        numbers: dict[str, int] = {}
        for number, line in enumerate(lines, 2):
            name, scale = _parse_line(line.rstrip("\r"), f"{where}: line {number}")
            if name in scales:
                raise CacheError(
                    f"{where}: line {number}: tensor '{name}' was already on line "
                    f"{numbers[name]}; remove one of the two"
                )
            scales[name], numbers[name] = scale, number
        if not scales:
            raise CacheError(f"{where}: it holds no scale; expected 'tensor: 3c010a14' lines")
        return cls(scales, int(found[1]), found[2])

    def text(self) -> str:
        """The cache as TensorRT writes it: always 8 digits a scale.

        Raises:
            CacheError: a scale is not positive and finite as binary32, or a name has a line end.
        """
        lines = [f"TRT-{self.version}-{self.algorithm}"]
        for name, scale in self.scales.items():
            if "\n" in name or "\r" in name or not name:
                raise CacheError(f"tensor {name!r}: a calibration cache cannot hold this name")
            lines.append(f"{name}: {encode_scale(scale, name)}")
        return "\n".join(lines) + "\n"


def read_cache(path: str | Path) -> CalibrationCache:
    """Read a calibration cache file.

    Raises:
        CacheError: it cannot be read or is no calibration cache.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise CacheError(f"{path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CacheError(
            f"{path}: it is no text; expected a calibration cache that begins with 'TRT-'"
        ) from None
    return CalibrationCache.parse(text, str(path))


def write_cache(path: str | Path, cache: CalibrationCache) -> None:
    """Write a calibration cache file.

    Raises:
        CacheError: it cannot be written.
    """
    content = cache.text().encode("utf-8")
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise CacheError(f"{path}: cannot write it: {error.strerror}") from None


def encode_scale(scale: float, name: str = "") -> str:
    """The 8 hexadecimal digits of a scale.

    Raises:
        CacheError: the scale is not positive and finite as binary32; ``name`` is its tensor.
    """
    try:
        bits = struct.pack(">f", scale)
    except OverflowError:
        bits = struct.pack(">f", math.inf)
    value = struct.unpack(">f", bits)[0]
    if not 0 < value < math.inf:
        raise CacheError(f"tensor '{name}': its scale is {scale}; expected a positive number")
    return bits.hex()


def encode_version(version: str) -> int:
    """TensorRT's version as a cache's header has it: ``8.6.2`` -> 8602, ``10.3`` -> 100300.

    Source: ``NV_TENSORRT_VERSION`` in NvInferVersion.h: major * 1000 + minor * 100 + patch up
    to TensorRT 9, major * 10000 + minor * 100 + patch from TensorRT 10 on.

    Raises:
        CacheError: not a version.
    """
    if not re.fullmatch(r"\d{1,2}\.\d{1,2}(\.\d{1,2})?", version):
        raise CacheError(f"TensorRT version '{version}': expected one such as 8.6 or 10.3.0")
    major, minor, patch = [int(part) for part in [*version.split("."), "0"][:3]]
    return major * (10000 if major >= 10 else 1000) + minor * 100 + patch


def _parse_line(line: str, where: str) -> tuple[str, float]:
    found = _LINE.fullmatch(line)
    if found is None:
        name, colon, value = line.rpartition(":")
        if not colon or not name:
            raise CacheError(f"{where}: {line[:60]!r}: expected 'tensor: 3c010a14'")
        value = value.strip()
        raise CacheError(
            f"{where}: tensor '{name}': scale {value[:20]!r} has {len(value)} characters; "
            "expected one space and 8 hexadecimal digits"
            if len(value) != 8
            else f"{where}: tensor '{name}': scale {value!r}: expected one space and "
            "8 hexadecimal digits"
        )
    name, digits = found.groups()
    scale = struct.unpack(">f", bytes.fromhex(digits))[0]
    if not 0 < scale < math.inf:
        raise CacheError(
            f"{where}: tensor '{name}': {digits} is the scale {scale}; "
            "expected a positive, finite number"
        )
    return name, scale
