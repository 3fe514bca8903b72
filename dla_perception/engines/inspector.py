"""Where each layer of an engine runs, as TensorRT's engine inspector tells it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Sequence

DLA, GPU, UNKNOWN = "dla", "gpu", "unknown"


@dataclass(frozen=True)
class LayerPlacement:
    """One layer of an engine: a DLA subgraph, ``{ForeignNode[first...last]}``, counts as one.

    Attributes:
        name: as TensorRT writes it; fused layers are joined with ``+``.
        device: ``dla``, ``gpu`` or ``unknown``.
        reason: why it is not on the DLA, in TensorRT's words; empty where TensorRT says nothing.
    """

    name: str
    device: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


_SHOWN_LAYERS = 10

# Moving tensors into and out of the memory of a DLA and waiting for it; no computation. TensorRT
# names them so in profiles of DLA engines ("images to nvm", "images copy finish").
_TRANSFER = re.compile(r"( to nvm| from nvm| copy finish)$")


def parse_engine_information(text: str) -> list[LayerPlacement]:
    """Read ``EngineInspector.get_engine_information(JSON)``.

    With names only (a plan built without ``ProfilingVerbosity.DETAILED``) a ``{ForeignNode[...]}``
    may be a DLA subgraph or fused layers of the GPU: its device is ``unknown``.

    Raises:
        ValueError: the text is no such JSON.
    """
    document = json.loads(text)
    layers = document.get("Layers") if isinstance(document, dict) else None
    if not isinstance(layers, list):
        raise ValueError("expected a JSON object with a list 'Layers'")
    placements = [_placement(layer) for layer in layers]
    return [item for item in placements if not _TRANSFER.search(item.name)]


def on_device(placements: Sequence[LayerPlacement], device: str) -> list[LayerPlacement]:
    """The layers that run on ``device``."""
    return [item for item in placements if item.device == device]


def list_layers(placements: Sequence[LayerPlacement]) -> str:
    """The first ten layers with their reasons, for a message of one line."""
    shown = "; ".join(str(item) for item in placements[:_SHOWN_LAYERS])
    more = len(placements) - _SHOWN_LAYERS
    return f"{shown}; and {more} more" if more > 0 else shown


def _placement(layer: Any) -> LayerPlacement:
    if isinstance(layer, str):
        device = UNKNOWN if layer.startswith("{ForeignNode") else GPU
        return LayerPlacement(layer, device)
    if not isinstance(layer, dict) or not isinstance(layer.get("Name"), str):
        raise ValueError(f"expected a layer with a 'Name', got {layer!r}")
    name, kind = layer["Name"], str(layer.get("LayerType", ""))
    if "dla" in kind.lower():
        return LayerPlacement(name, DLA)
    # Myelin is TensorRT's compiler of fused layers for the GPU
    if name.startswith("{ForeignNode") and "myelin" not in kind.lower():
        return LayerPlacement(name, UNKNOWN)
    return LayerPlacement(name, GPU)
