"""Whether two detectors can fail apart from each other, by what they say of their engines."""

from __future__ import annotations

from typing import Mapping

from dla_perception.monitoring.health import Finding, Level, worst
from dla_perception.redundancy.arbiter import Side

NAME = "independence"


def independence_finding(engines: Mapping[Side, Mapping[str, str]]) -> Finding:
    """Judge the engines of both sides.

    Two engines on one DLA core, or any layer of either on the GPU, which both then wait for, fail
    together: ERROR. Two on a CPU are a development machine, and what is not known cannot be
    relied on: WARN.

    Args:
        engines: for each side that has told it, the values of its ``engine_info``: ``device``
            (``dla0``, ``gpu``, ``cpu``) and ``layers_on_gpu`` (a count or ``n/a``).
    """
    problems = []
    devices = {side: values.get("device", "n/a") for side, values in engines.items()}
    for side in Side:
        if side not in engines:
            problems.append((Level.WARN, f"{side.value} has not told what its engine runs on"))
            continue
        on_gpu = engines[side].get("layers_on_gpu", "n/a")
        if devices[side] == "gpu":
            problems.append((Level.ERROR, f"{side.value} runs on the GPU: set its dla_core"))
        elif devices[side].startswith("dla") and on_gpu == "n/a":
            problems.append(
                (Level.WARN, f"{side.value} has not told whether layers of it run on the GPU")
            )
        elif devices[side].startswith("dla") and on_gpu != "0":
            problems.append(
                (
                    Level.ERROR,
                    f"{on_gpu} layers of {side.value} run on the GPU, which both sides share: "
                    "build its engine with gpu_fallback forbid",
                )
            )
    if len(devices) == 2 and len(set(devices.values())) == 1:
        (device,) = set(devices.values())
        if device.startswith("dla"):
            problems.append(
                (Level.ERROR, f"both sides run on {device}: give one of them the other dla_core")
            )
        elif device == "cpu":
            problems.append((Level.WARN, "both sides run on the CPU: a development machine"))
    values = {
        f"{side.value}_{key}": engines.get(side, {}).get(key, "n/a")
        for side in Side
        for key in ("device", "layers_on_gpu", "sha256")
    }
    level, message = worst(problems, "the sides share no accelerator")
    return Finding(NAME, level, message, values)
