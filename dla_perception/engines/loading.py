"""Open an engine file with the runtime it was made for."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from dla_perception.engines.engine import Engine, EngineError
from dla_perception.engines.files import FileContent, FileKind, recognise
from dla_perception.engines.onnxruntime_engine import OnnxRuntimeEngine

BACKENDS = ("auto", "onnxruntime", "tensorrt", "cudla")
"""Runtimes an engine can be opened with; ``auto`` takes the one for the file's kind."""

GPU_FALLBACKS = ("forbid", "warn", "allow")
"""What to do about layers that run elsewhere although a DLA core was asked for."""

_BACKEND_OF = {
    FileKind.ONNX: "onnxruntime",
    FileKind.PLAN: "tensorrt",
    FileKind.LOADABLE: "cudla",
}

_NO_NETWORK: Mapping[FileKind, str] = {
    FileKind.EMPTY: "it is empty; expected an ONNX network, a TensorRT plan or a DLA loadable",
    FileKind.LFS_POINTER: "it is a Git LFS pointer, not the network itself: "
    "run 'git lfs pull' where it comes from",
    FileKind.CALIBRATION_CACHE: "it is a TensorRT calibration cache: "
    "give it to 'dla-perception build' with --calibration-cache",
    FileKind.DARKNET_WEIGHTS: "it is Darknet weights: "
    "turn them into ONNX with 'dla-perception import-darknet CFG WEIGHTS -o OUT'",
    FileKind.DARKNET_CFG: "it is the description of a Darknet network: "
    "turn it into ONNX with 'dla-perception import-darknet CFG WEIGHTS -o OUT'",
    FileKind.ZIP: "it is a zip archive, as PyTorch writes its checkpoints: "
    "export the network to ONNX first",
    FileKind.UNKNOWN: "it is no network that is known here; "
    "expected an ONNX network, a TensorRT plan or a DLA loadable",
}


def open_engine(
    path: str | Path,
    backend: str = "auto",
    dla_core: int = -1,
    gpu_fallback: str = "forbid",
    slots: int = 2,
) -> Engine:
    """Load the network in ``path``.

    Args:
        path: an ONNX network, a TensorRT plan (also with an exporter's header in front of it) or
            a DLA loadable; recognised by its content.
        backend: one of :data:`BACKENDS`.
        dla_core: the core to run on, or -1 for a network that uses none.
        gpu_fallback: one of :data:`GPU_FALLBACKS`: with a core asked for, ``forbid`` refuses an
            engine any layer of which runs elsewhere. ``warn`` and ``allow`` take it; which of the
            two it is matters to whoever reports :attr:`EngineInfo.gpu_layers`.
        slots: how many inferences may be prepared at a time, 1 or more.

    Raises:
        EngineError: the file is missing, broken or no network; it is for another runtime,
            version, GPU or core; or a layer runs where it must not.
        MissingPackageError: the runtime is not installed.
    """
    _check_choice("backend", backend, BACKENDS)
    _check_choice("gpu_fallback", gpu_fallback, GPU_FALLBACKS)
    if dla_core < -1:
        raise EngineError(
            f"dla_core: {dla_core} cannot be; expected a core, 0 or 1, or -1 for none"
        )
    if slots < 1:
        raise EngineError(f"slots: {slots} cannot be; expected 1 or more")
    content = recognise(path)
    chosen = _choose_backend(path, content, backend)
    if chosen == "onnxruntime":
        _check_onnxruntime_request(path, dla_core, gpu_fallback)
        return OnnxRuntimeEngine(Path(path).expanduser(), slots)
    if chosen == "tensorrt":
        from dla_perception.engines.tensorrt_engine import TensorRTEngine

        return TensorRTEngine(path, content, dla_core, gpu_fallback, slots)
    from dla_perception.engines.cudla_engine import CudlaEngine

    return CudlaEngine(path, dla_core, slots)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise EngineError(f"{name}: '{value}' is unknown; expected {', '.join(choices)}")


def _choose_backend(path: str | Path, content: FileContent, backend: str) -> str:
    if content.kind in _NO_NETWORK:
        raise EngineError(f"{path}: {_NO_NETWORK[content.kind]}")
    if content.damage:
        raise EngineError(f"{path}: a broken {content.kind.value}: {content.damage}; copy it again")
    fitting = _BACKEND_OF[content.kind]
    if backend in ("auto", fitting):
        return fitting
    advice = f"open it with the backend '{fitting}' or 'auto'"
    if content.kind is FileKind.ONNX:
        advice = f"make an engine of it with 'dla-perception build', or {advice}"
    raise EngineError(
        f"{path}: it is a {content.kind.value}, which the backend '{backend}' cannot run; {advice}"
    )


def _check_onnxruntime_request(path: str | Path, dla_core: int, gpu_fallback: str) -> None:
    if dla_core >= 0 and gpu_fallback == "forbid":
        raise EngineError(
            f"{path}: DLA core {dla_core} was asked for, but an ONNX network runs on the CPU here; "
            "build an engine from it, or set dla_core to -1, or gpu_fallback to 'warn' or 'allow'"
        )
