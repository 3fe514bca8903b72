"""Write an engine with its record, and tell whether one is still what a build would make.

The record itself is :class:`dla_perception.engines.manifest.EngineManifest`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Mapping

from dla_perception.compiler.builder import (
    BuildError,
    BuildPlan,
    BuildResult,
    write_atomically,
)
from dla_perception.engines.engine import EngineError
from dla_perception.engines.manifest import (
    EngineManifest,
    Machine,
    file_sha256,
    manifest_path,
    parse_manifest,
    read_manifest,
)


def make_manifest(
    plan: BuildPlan, result: BuildResult, self_test: Mapping[str, Any] | None = None
) -> EngineManifest:
    """The record of a build.

    Args:
        plan: what was to be built.
        result: what came out.
        self_test: a picture and what the ONNX network finds in it
            (:mod:`dla_perception.detection.self_test`).
    """
    import hashlib

    settings = plan.settings
    return EngineManifest(
        engine_sha256=hashlib.sha256(result.content).hexdigest(),
        kind="loadable" if settings.standalone else "plan",
        onnx_file=plan.onnx.name,
        onnx_sha256=file_sha256(plan.onnx),
        tensorrt_version=result.tensorrt_version,
        machine=result.machine,
        dla_core=settings.dla_core,
        precision=settings.precision,
        gpu_fallback=settings.gpu_fallback,
        inputs=result.inputs,
        outputs=result.outputs,
        layers=result.layers,
        settings={**settings_record(plan), "strongly_typed": result.strongly_typed},
        build_seconds=round(result.seconds, 3),
        built_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        metadata=plan.metadata,
        self_test=self_test,
    )


def settings_record(plan: BuildPlan) -> dict[str, Any]:
    """What makes one build different from another, besides the network and the machine."""
    settings = plan.settings
    cache = settings.calibration_cache
    return {
        "input_formats": [str(item) for item in plan.input_formats],
        "output_formats": [str(item) for item in plan.output_formats],
        "fp16_layers": list(plan.fp16_layers),
        "pools": dict(settings.pools),
        "calibration_cache": None if cache is None else Path(cache).name,
        "calibration_cache_sha256": None if cache is None else file_sha256(cache),
        "calibration_algorithm": None if plan.cache is None else plan.cache.algorithm,
    }


def write_engine(plan: BuildPlan, result: BuildResult, manifest: EngineManifest) -> None:
    """Write the engine and its record, each whole or not at all.

    A record beside an engine of another hash is refused at loading, so no moment in between is
    dangerous.

    Raises:
        BuildError: one cannot be written.
    """
    for path, content in (
        (plan.engine, result.content),
        (manifest_path(plan.engine), manifest.to_json().encode()),
    ):
        try:
            write_atomically(path, content)
        except OSError as error:
            raise BuildError(f"{path}: cannot write it: {error.strerror}") from None


def reason_to_build(plan: BuildPlan, tensorrt_version: str, machine: Machine) -> str | None:
    """Why the engine file is not what ``plan`` would give here; ``None`` when it is.

    Args:
        plan: what is wanted.
        tensorrt_version: of this machine.
        machine: this one; ``dla_cores`` below 0 stands for not known.
    """
    if not plan.engine.exists():
        return "there is no engine yet"
    if not manifest_path(plan.engine).exists():
        return "it has no record beside it"
    try:
        manifest = read_manifest(plan.engine, file_sha256(plan.engine))
    except EngineError as error:
        return str(error)
    assert manifest is not None
    settings = plan.settings
    wanted: dict[str, tuple[Any, Any]] = {
        "the network has changed": (manifest.onnx_sha256, file_sha256(plan.onnx)),
        "TensorRT": (manifest.tensorrt_version, tensorrt_version),
        "GPU": (
            (manifest.machine.gpu, manifest.machine.compute_capability),
            (machine.gpu, machine.compute_capability),
        ),
        "kind": (manifest.kind, "loadable" if settings.standalone else "plan"),
        "DLA core": (manifest.dla_core, settings.dla_core),
        "precision": (manifest.precision, settings.precision),
        "fallback policy": (manifest.gpu_fallback, settings.gpu_fallback),
    }
    if machine.dla_cores >= 0:
        wanted["DLA cores"] = (manifest.machine.dla_cores, machine.dla_cores)
    for key, value in settings_record(plan).items():
        wanted[key.replace("_", " ")] = (manifest.settings.get(key), value)
    for what, (recorded, here) in wanted.items():
        if recorded != here:
            if what == "the network has changed":
                return f"{what} since it was built"
            return f"its {what} is {_show(recorded)}, {_show(here)} is wanted"
    return None


def _show(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " ".join(str(item) for item in value) or "none"
    return "none" if value is None else str(value)


__all__ = [
    "make_manifest",
    "parse_manifest",
    "reason_to_build",
    "settings_record",
    "write_engine",
]
