"""What a model file is, told by its content and never by its name."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Mapping

from dla_perception.engines.engine import EngineError


class FileKind(str, Enum):
    """The kinds of file that are told apart."""

    ONNX = "ONNX network"
    PLAN = "TensorRT plan"
    LOADABLE = "DLA loadable"
    LFS_POINTER = "Git LFS pointer"
    CALIBRATION_CACHE = "TensorRT calibration cache"
    DARKNET_WEIGHTS = "Darknet weights"
    DARKNET_CFG = "Darknet network description"
    ZIP = "zip archive"
    EMPTY = "empty file"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class FileContent:
    """What a file is.

    Attributes:
        kind: what it is.
        size: bytes.
        offset: where the network begins: a plan may have a header in front of it.
        metadata: key-value pairs of that header; ``names`` is the text of a ``dict`` from class
            index to name, as exporters write it into ONNX files.
        tensorrt_version: of a plan, ``10.3.0.30``; ``None`` where the plan does not tell.
        damage: what is wrong with a file of this kind, or ``None``.
    """

    kind: FileKind
    size: int
    offset: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    tensorrt_version: str | None = None
    damage: str | None = None


LOADABLE_MARK = b"NVDA"
"""Bytes 4 to 7 of a DLA loadable: its flatbuffer's identifier (TensorRT's sampleCudla)."""

_PLAN_MARKS = (b"ftrt", b"ptrt", b"vtrt")
"""First bytes of a plan: TensorRT ('ftrt' is kPLAN_FILE_TAG of trtexec), before 8, TensorRT-RTX."""

_LFS_MARK = b"version https://git-lfs.github.com/spec/"
_CACHE_MARK = re.compile(rb"TRT-\d+-\w+\r?\n")
_CFG_MARK = re.compile(rb"\s*(?:#[^\n]*\n\s*)*\[(?:net|network)\]")

_MODEL_PROTO_FIELDS = {
    1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2
}  # fmt: skip
"""Field numbers of ONNX's ``ModelProto`` and their wire types (onnx.proto)."""

_GRAPH_FIELD = 7
_MOST_HEADER_BYTES = 1 << 24


def recognise(path: str | Path) -> FileContent:
    """Tell what a file is.

    Raises:
        EngineError: there is no such file, it is a folder, or it cannot be read.
    """
    file = Path(path).expanduser()
    if not file.exists():
        raise EngineError(f"{path}: there is no such file; expected a network")
    if file.is_dir():
        raise EngineError(f"{path}: it is a folder; expected the file of a network")
    try:
        with open(file, "rb") as stream:
            return _recognise(stream, file.stat().st_size)
    except OSError as error:
        raise EngineError(f"{path}: cannot read it: {error.strerror}") from None


def read_network(path: str | Path, content: FileContent) -> bytes:
    """The bytes of the network in a file, without the header in front of it.

    Raises:
        EngineError: the file cannot be read.
    """
    try:
        with open(Path(path).expanduser(), "rb") as stream:
            stream.seek(content.offset)
            return stream.read()
    except OSError as error:
        raise EngineError(f"{path}: cannot read it: {error.strerror}") from None


def _recognise(stream: BinaryIO, size: int) -> FileContent:
    head = stream.read(4096)
    if not head:
        return FileContent(FileKind.EMPTY, size)
    if head[:4] in _PLAN_MARKS:
        return FileContent(FileKind.PLAN, size, tensorrt_version=_plan_version(head))
    if head[4:8] == LOADABLE_MARK:
        return FileContent(FileKind.LOADABLE, size)
    if head.startswith(_LFS_MARK):
        return FileContent(FileKind.LFS_POINTER, size)
    if _CACHE_MARK.match(head):
        return FileContent(FileKind.CALIBRATION_CACHE, size)
    if head.startswith(b"PK\x03\x04"):
        return FileContent(FileKind.ZIP, size)
    if _CFG_MARK.match(head):
        return FileContent(FileKind.DARKNET_CFG, size)
    if _is_darknet_weights(head, size):
        return FileContent(FileKind.DARKNET_WEIGHTS, size)
    return (
        _plan_behind_header(stream, size)
        or _onnx(stream, size)
        or FileContent(FileKind.UNKNOWN, size)
    )


def _plan_version(head: bytes) -> str | None:
    """Bytes 24 to 27, where the serialisation version is 0 (trtexec, ``printPlanVersion``)."""
    if len(head) < 28 or head[4:8] != bytes(4) or not 0 < head[24] < 100:
        return None
    return ".".join(str(part) for part in head[24:28])


def _is_darknet_weights(head: bytes, size: int) -> bool:
    """Versions 0.1 and 0.2 (darknet ``load_weights_upto``); the rest is float32."""
    if len(head) < 16:
        return False
    major, minor, revision = struct.unpack("<iii", head[:12])
    header = 20 if minor >= 2 else 16
    return (major, minor) in ((0, 1), (0, 2)) and 0 <= revision < 100 and (size - header) % 4 == 0


def _plan_behind_header(stream: BinaryIO, size: int) -> FileContent | None:
    """A plan as Ultralytics writes it: the length of a JSON text (int32), the text, the plan."""
    stream.seek(0)
    (length,) = struct.unpack("<i", stream.read(4).ljust(4, b"\xff"))
    if not 2 <= length <= min(size - 4, _MOST_HEADER_BYTES):
        return None
    try:
        header = json.loads(stream.read(length).decode("utf-8"))
    except (UnicodeDecodeError, ValueError):
        return None
    head = stream.read(28)
    if not isinstance(header, dict):
        return None
    metadata = {str(key): _metadata_text(value) for key, value in header.items()}
    if not head:
        damage = "it ends after its metadata header"
        return FileContent(FileKind.PLAN, size, 4 + length, metadata, damage=damage)
    if head[:4] not in _PLAN_MARKS:
        return None
    return FileContent(FileKind.PLAN, size, 4 + length, metadata, _plan_version(head))


def _metadata_text(value: Any) -> str:
    if isinstance(value, dict) and all(str(key).isdecimal() for key in value):
        # JSON has turned the class indices into text
        return repr({int(key): item for key, item in value.items()})
    return value if isinstance(value, str) else repr(value)


def _onnx(stream: BinaryIO, size: int) -> FileContent | None:
    """Walk over the fields of ``ModelProto`` without reading their contents."""
    position = 0
    found: list[int] = []
    while position < size:
        stream.seek(position)
        head = stream.read(20)
        tag, tag_length = _varint(head)
        number, wire_type = tag >> 3, tag & 7
        if tag_length == 0 or _MODEL_PROTO_FIELDS.get(number) != wire_type:
            break
        value, value_length = _varint(head[tag_length:])
        found.append(number)
        position += tag_length + value_length + (value if wire_type == 2 else 0)
    if len(found) < 2 or found[0] not in (1, _GRAPH_FIELD):
        return None  # the first bytes of anything may look like one field
    damage = None
    if position > size:
        damage = f"it is cut off: {size} bytes of {position} or more"
    elif _GRAPH_FIELD not in found:
        damage = "it is cut off: it has no graph"
    return FileContent(FileKind.ONNX, size, damage=damage)


def _varint(data: bytes) -> tuple[int, int]:
    """Value and length in bytes of a base-128 integer; length 0 when there is none."""
    value = 0
    for index, byte in enumerate(data[:10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, index + 1
    return 0, 0
