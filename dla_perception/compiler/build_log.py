"""What TensorRT's build log says: which layers run where, and why not on the DLA.

The lines are those of TensorRT 8.4 to 11.4 as ``trtexec`` prints them, or as a logger gets them,
without time and severity in front. Layers on the GPU are placed there without an error when GPU
fallback is allowed, and for the copies at a DLA's borders even when it is not: the log and the
engine's inspector are the only places that tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Iterable, Mapping

from dla_perception.engines.inspector import DLA, GPU, LayerPlacement

_PREFIX = re.compile(r"^(?:\[[^\]]*\d:\d\d[^\]]*\]\s*)?(?:\[(?:TRT|[VIWEF])\]:?\s*)*")
_DLA_LAYER = re.compile(r"^\[DlaLayer\]\s+(?P<layer>.+?),?\s*$")
_GPU_LAYER = re.compile(r"^\[GpuLayer\]\s+(?:[A-Z][A-Z_0-9]+: )?(?P<layer>.+?),?\s*$")
_BLOCK = re.compile(r"Layers running on (?:DLA|GPU)", re.IGNORECASE)

_REASONS = (
    r"Layer '(?P<layer>.+?)' \([^)]*\): (?P<reason>Unsupported on DLA)",
    r"(?P<reason>Validation failed for DLA layer): (?P<layer>.+?)\. Switching to GPU",
    r"Splitting DLA subgraph at: (?P<layer>.+?) because (?P<reason>DLA validation failed)",
    r"Default DLA is enabled but layer (?P<layer>.+?) is (?P<reason>not supported on DLA)",
    r"Default DLA is enabled but layer (?P<layer>.+?) is (?P<reason>not running on DLA)",
    r"DLA Layer (?P<layer>.+?) (?P<reason>does not support dynamic shapes in any dimension)",
    r"(?P<reason>DLA only supports FP16 and Int8 precision type)\. "
    r"Switching (?P<layer>.+?)(?:'s)? device type to GPU",
    r"(?P<reason>DLA supports only \d+ subgraphs per DLA core)\. "
    r"Switching to GPU for layer (?P<layer>.+?)\.?$",
    r"(?P<layer>[^:]+): (?P<reason>(?:Concatenation on DLA|DLA |This version of DLA)[^.]*)",
)
_LAYER_REASONS = tuple(re.compile(pattern) for pattern in _REASONS)

# told without a layer: of the layer that the next line names
_CAUSE = re.compile(
    r"^(?:Concatenation on DLA|DLA only supports|DLA cores? do|This version of DLA|DLA does)[^.]*"
)

_REFUSALS = (
    "Safety certified DLA should only have one graph",
    "kDIRECT_IO specified but no conformant implementation exists",
    "Could not find any implementation for node",
    "Cannot create DLA engine",
    "Safe DLA engine built with kDLA_STANDALONE",
    "Failure to submit program to DLA engine",
    "nvmediaTensorCache",
)

_NO_SCALE = re.compile(
    r"Missing (?:scale and zero-point|dynamic range) for tensor (?P<tensor>.+?), expect fall ?back"
)

_BORDER = "Reformatting CopyNode"
_BORDER_REASON = "the GPU converts the tensor's layout; give inputs and outputs a DLA layout"


@dataclass(frozen=True)
class BuildLog:
    """What a build log says.

    Attributes:
        layers: where every layer runs, with the reasons of those on the GPU; ``None`` when the
            log has no such list, as when the build failed before.
        reasons: why layers are not on the DLA, by layer name.
        refusals: lines that tell why a DLA took nothing at all.
        tensors_without_scale: their layers fall back from INT8 to FP16.
    """

    layers: tuple[LayerPlacement, ...] | None
    reasons: Mapping[str, str]
    refusals: tuple[str, ...]
    tensors_without_scale: tuple[str, ...]

    @property
    def unsupported(self) -> list[LayerPlacement]:
        """The layers that have a reason not to be on the DLA."""
        return [LayerPlacement(name, GPU, reason) for name, reason in self.reasons.items()]


def parse_build_log(lines: Iterable[str]) -> BuildLog:
    """Read the lines of a build, in their order."""
    layers: list[LayerPlacement] = []
    reasons: dict[str, str] = {}
    refusals: list[str] = []
    no_scale: dict[str, None] = {}
    has_list = False
    cause = ""
    for line in lines:
        text = _PREFIX.sub("", line.strip())
        has_list = has_list or bool(_BLOCK.search(text))
        for pattern, device in ((_DLA_LAYER, DLA), (_GPU_LAYER, GPU)):
            found = pattern.match(text)
            if found:
                layers.append(LayerPlacement(found["layer"], device))
        tensor = _NO_SCALE.search(text)
        if tensor:
            no_scale[tensor["tensor"]] = None
        refusals += [text for refusal in _REFUSALS if refusal in text]
        cause = _read_reason(text, cause, reasons)
    placed = tuple(_with_reason(layer, reasons) for layer in layers) if has_list else None
    return BuildLog(placed, reasons, tuple(refusals), tuple(no_scale))


def _read_reason(text: str, cause: str, reasons: dict[str, str]) -> str:
    """Enter a line's reason; returns the cause it tells for the layer of the next line."""
    for pattern in _LAYER_REASONS:
        found = pattern.search(text)
        if found:
            name, reason = found["layer"].strip(), found["reason"].strip()
            told = f"{reason}: {cause}" if cause and cause != reason else reason
            # the first line tells most; later ones repeat that the layer is moved
            reasons.setdefault(name, told)
            return ""
    found = _CAUSE.match(text)
    return found[0].strip() if found else ""


def _with_reason(layer: LayerPlacement, reasons: Mapping[str, str]) -> LayerPlacement:
    if layer.device != GPU:
        return layer
    for name in (layer.name, *layer.name.split(" + ")):
        if name.strip() in reasons:
            return replace(layer, reason=reasons[name.strip()])
    if layer.name.startswith(_BORDER):
        return replace(layer, reason=_BORDER_REASON)
    return layer
