"""What INT8 costs, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterator, Mapping, Sequence

import numpy as np

from dla_perception.compiler.graph import open_session
from dla_perception.compiler.quantization.emulation import emulate_one
from dla_perception.compiler.quantization.layers import MOVING, find_layers

if TYPE_CHECKING:
    from dla_perception.compiler.graph import Graph

Track = Callable[[Sequence[str]], Iterator[str]]


@dataclass(frozen=True)
class LayerLoss:
    """What the network's outputs lose when one layer alone runs in INT8.

    Attributes:
        layer, op: its name and ONNX operator.
        signal_to_noise_db: power of the outputs over the power of their error, in decibels, of
            the output that suffers most; ``inf`` where nothing changes.
    """

    layer: str
    op: str
    signal_to_noise_db: float


def losses(
    graph: Graph,
    scales: Mapping[str, float],
    images: Sequence[np.ndarray],
    track: Track = iter,
) -> list[LayerLoss]:
    """Run each INT8 layer alone in INT8 and compare the outputs with float32's, worst first.

    Args:
        graph: a network with one input.
        scales: by tensor.
        images: inputs of the network, ``(1, channels, height, width) float32`` each.
        track: goes through the layers' names, showing progress.
    """
    (name,) = graph.inputs
    inputs = [{name: image} for image in images]
    session = open_session(graph.to_model(), optimise=True)
    exact = [session.run(None, values) for values in inputs]
    operators = {
        layer.name: layer.op
        for layer in find_layers(graph)
        if layer.op not in MOVING and layer.in_int8(scales)
    }
    found = []
    for layer in track(list(operators)):
        session = open_session(emulate_one(graph, layer, scales), optimise=True)
        rounded = [session.run(None, values) for values in inputs]
        found.append(LayerLoss(layer, operators[layer], _signal_to_noise(exact, rounded)))
    return sorted(found, key=lambda loss: loss.signal_to_noise_db)


def _signal_to_noise(
    exact: Sequence[Sequence[np.ndarray]], rounded: Sequence[Sequence[np.ndarray]]
) -> float:
    worst = np.inf
    for output in range(len(exact[0])):
        pairs = [(a[output].astype(float), b[output]) for a, b in zip(exact, rounded)]
        signal = sum(float(np.square(a).sum()) for a, _ in pairs)
        noise = sum(float(np.square(a - b).sum()) for a, b in pairs)
        if noise > 0:
            worst = min(worst, 10 * float(np.log10(max(signal, 1e-30) / noise)))
    return float(worst)
