"""The ``trtexec`` line that builds what a build builds, for a given TensorRT version.

Source of the options: ``samples/common/sampleOptions.cpp`` of NVIDIA/TensorRT, releases 8.5, 8.6,
10.3 and 11.1.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from dla_perception.compiler.builder import BuildPlan

PROGRAM = "/usr/src/tensorrt/bin/trtexec"
"""Where JetPack installs it."""

_MIB = 1 << 20


def trtexec_command(plan: BuildPlan, version: str) -> str:
    """The line for TensorRT ``version``, to be pasted into a shell.

    From version 11 on it reads the FP16 network that the build writes beside the engine.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    settings = plan.settings
    typed = major >= 11
    words = [PROGRAM, f"--onnx={plan.typed_onnx if typed else plan.onnx}"]
    words.append(f"--saveEngine={plan.engine}")
    words.append("--buildOnly" if (major, minor) < (8, 6) else "--skipInference")
    words.append("--profilingVerbosity=detailed")
    if settings.dla_core >= 0:
        words.append(f"--useDLACore={settings.dla_core}")
        if settings.standalone:
            # 8.5 has no other way: a safe build for a DLA core is a standalone one there
            words.append("--safe" if (major, minor) < (8, 6) else "--buildDLAStandalone")
        elif settings.gpu_fallback != "forbid":
            words.append("--allowGPUFallback")
        if typed:
            words.append("--adjustForDLA")
    if not typed:
        words += _precision_words(plan)
    words.append(f"--inputIOFormats={_formats(plan.input_formats)}")
    words.append(f"--outputIOFormats={_formats(plan.output_formats)}")
    pools = [f"{name}:{size / _MIB:g}" for name, size in plan.pools.items()]
    if pools:
        words.append(f"--memPoolSize={','.join(pools)}")
    if settings.timing_cache is not None:
        words.append(f"--timingCacheFile={settings.timing_cache}")
    return " ".join(shlex.quote(word) for word in words)


def _precision_words(plan: BuildPlan) -> list[str]:
    settings = plan.settings
    words = []
    if settings.precision == "int8":
        words += ["--int8", "--fp16", f"--calib={settings.calibration_cache}"]
    elif settings.precision == "fp16":
        words.append("--fp16")
    if plan.fp16_layers:
        words.append("--precisionConstraints=obey")
        pairs = ",".join(f"{name}:fp16" for name in plan.fp16_layers)
        words.append(f"--layerPrecisions={pairs}")
    return words


def _formats(formats: Sequence[object]) -> str:
    return ",".join(str(item) for item in formats)
