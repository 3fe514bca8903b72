"""The record beside an engine file: what it was built from, for which machine, and how.

``net.engine`` has its record in ``net.engine.manifest.json``; ``compiler/manifest.py`` makes it.
A plan alone does not tell the scale of an INT8 tensor, which layers fell back to the GPU and why,
or what it was built from.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from dla_perception.engines.engine import EngineError, TensorSpec
from dla_perception.engines.inspector import LayerPlacement, on_device
from dla_perception.engines.layouts import Layout

FORMAT = 1
"""Version of the record's format; a reader refuses one it does not know."""


@dataclass(frozen=True)
class Machine:
    """Where an engine was built.

    Attributes:
        gpu: the GPU's name, ``Orin``.
        compute_capability: ``8.7``.
        dla_cores: how many the module has.
    """

    gpu: str
    compute_capability: str
    dla_cores: int


@dataclass(frozen=True)
class EngineManifest:
    """What an engine file was built from, for what.

    Attributes:
        engine_sha256: of the engine file: a record left behind by another engine is found out.
        kind: ``plan`` or ``loadable``.
        onnx_file, onnx_sha256: the network it was built from.
        tensorrt_version: of the builder.
        machine: where it was built.
        dla_core: the core it was built for, or -1.
        precision: ``fp32``, ``fp16`` or ``int8``.
        gpu_fallback: the policy of the build.
        inputs, outputs: the tensors, with the scales of INT8 ones.
        layers: where every layer runs, and why it is not on the DLA.
        settings: all other choices of the build, and the hashes of the files it read.
        build_seconds: how long it took.
        built_at: UTC, ``2026-11-30T21:00:00Z``.
        metadata: key-value pairs of the ONNX file, class names among them.
        self_test: a picture and what the ONNX network finds in it, or ``None``.
    """

    engine_sha256: str
    kind: str
    onnx_file: str
    onnx_sha256: str
    tensorrt_version: str
    machine: Machine
    dla_core: int
    precision: str
    gpu_fallback: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    layers: tuple[LayerPlacement, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    build_seconds: float = 0.0
    built_at: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    self_test: Mapping[str, Any] | None = None

    def spec(self, name: str) -> TensorSpec | None:
        """The tensor called ``name``, if there is one."""
        for spec in (*self.inputs, *self.outputs):
            if spec.name == name:
                return spec
        return None

    def layers_on(self, device: str) -> list[LayerPlacement]:
        """The layers that run on ``dla`` or ``gpu``."""
        return on_device(self.layers, device)

    def to_json(self) -> str:
        """The record's text."""
        document = {"format": FORMAT, **asdict(self)}
        for key in ("inputs", "outputs"):
            document[key] = [_spec_document(spec) for spec in getattr(self, key)]
        return json.dumps(document, indent=1) + "\n"


def manifest_path(engine_path: str | Path) -> Path:
    """Where the record of an engine lies: ``net.engine`` -> ``net.engine.manifest.json``."""
    path = Path(engine_path).expanduser()
    return path.with_name(path.name + ".manifest.json")


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with open(Path(path).expanduser(), "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def read_manifest(engine_path: str | Path, engine_sha256: str) -> EngineManifest | None:
    """The record beside an engine, or ``None`` where there is none.

    Args:
        engine_path: the engine file.
        engine_sha256: its hash, which the record must state.

    Raises:
        EngineError: the record cannot be read, is broken, or belongs to another engine.
    """
    path = manifest_path(engine_path)
    if not path.exists():
        return None
    manifest = parse_manifest(path)
    if manifest.engine_sha256 != engine_sha256:
        raise EngineError(
            f"{path}: it records another engine than {engine_path} "
            f"(hash {manifest.engine_sha256[:12]}, the file's is {engine_sha256[:12]}); "
            "build the engine again, or remove the record if it is a stray one"
        )
    return manifest


def parse_manifest(path: str | Path) -> EngineManifest:
    """Read a record.

    Raises:
        EngineError: it cannot be read or is broken.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineError(f"{path}: cannot read it: {error.strerror}") from None
    except ValueError:
        raise EngineError(f"{path}: a broken record of an engine; build the engine again") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise EngineError(
            f"{path}: no record of an engine in format {FORMAT}; build the engine again"
        )
    try:
        return _manifest(document)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"{path}: a broken record of an engine ({type(error).__name__}: {error}); "
            "build the engine again"
        ) from None


def _manifest(document: dict[str, Any]) -> EngineManifest:
    values = {key: value for key, value in document.items() if key != "format"}
    values["machine"] = Machine(**values["machine"])
    for key in ("inputs", "outputs"):
        values[key] = tuple(_spec(item) for item in values[key])
    values["layers"] = tuple(LayerPlacement(**item) for item in values["layers"])
    return EngineManifest(**values)


def _spec_document(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": np.dtype(spec.dtype).name,
        "layout": spec.layout.value,
        "scale": spec.scale,
        "row_alignment": spec.row_alignment,
    }


def _spec(document: dict[str, Any]) -> TensorSpec:
    return TensorSpec(
        document["name"],
        tuple(document["shape"]),
        np.dtype(document["dtype"]),
        Layout(document["layout"]),
        document["scale"],
        document["row_alignment"],
    )
