"""INT8 scales measured on images, on a CPU.

Two passes over the images with memory for one of them: the first finds each tensor's largest
magnitude, the second a histogram of 2048 equal bins up to it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Callable, Iterable, Sequence

import numpy as np

from dla_perception.compiler.graph import open_session
from dla_perception.compiler.quantization.layers import (
    Layer,
    activations,
    find_layers,
    tail_of,
)
from dla_perception.compiler.quantization.propagation import SIGMOID_SCALE
from dla_perception.compiler.quantization.thresholds import (
    BINS,
    entropy_threshold,
    percentile_threshold,
)
from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from dla_perception.compiler.graph import Graph

METHODS = ("entropy", "minmax", "percentile")

Images = Callable[[], Iterable[np.ndarray]]
"""Makes the network's inputs anew, ``(1, channels, height, width) float32`` each."""


class CalibrationError(DlaPerceptionError):
    """Scales cannot be measured."""


class Statistics:
    """Magnitudes of every activation over a set of images.

    Attributes:
        largest: of each tensor.
        histograms: counts ``(2048,) int64`` of magnitudes from 0 to ``largest``; none where all
            values are 0.
    """

    def __init__(self, graph: Graph, images: Images) -> None:
        """Measure.

        Args:
            graph: a network with one input.
            images: called twice; must give the same images both times.

        Raises:
            CalibrationError: no image at all, or values that are not finite.
        """
        names = [name for name in activations(graph) if name not in graph.inputs]
        (self._input,) = graph.inputs
        session = open_session(graph.to_model(extra_outputs=names), optimise=True)
        self.largest: dict[str, float] = dict.fromkeys([self._input, *names], 0.0)
        count = 0
        for name, values in self._run(session, names, images):
            largest = float(np.abs(values).max(initial=0.0))
            if not np.isfinite(largest):
                raise CalibrationError(
                    f"{graph.where}: tensor '{name}' is not finite on image {count + 1}: "
                    "INT8 has no scale for it"
                )
            self.largest[name] = max(self.largest[name], largest)
            count += name == self._input
        if not count:
            raise CalibrationError(f"{graph.where}: there is no image to calibrate with")
        self.histograms = {
            name: np.zeros(BINS, np.int64) for name, value in self.largest.items() if value > 0
        }
        for name, values in self._run(session, names, images):
            if name in self.histograms:
                self.histograms[name] += _histogram(values, self.largest[name])

    def _run(
        self, session: Any, names: Sequence[str], images: Images
    ) -> Iterable[tuple[str, np.ndarray]]:
        for image in images():
            yield self._input, image
            yield from zip(names, session.run(names, {self._input: image}))

    def threshold(self, tensor: str, method: str, percentile: float) -> float:
        """The largest magnitude that INT8 should hold; 0 for a tensor of zeros."""
        largest = self.largest[tensor]
        if method == "minmax" or tensor not in self.histograms:
            return largest
        if method == "entropy":
            return entropy_threshold(self.histograms[tensor], largest)
        return percentile_threshold(self.histograms[tensor], largest, percentile)


def scales_of(
    graph: Graph,
    statistics: Statistics,
    method: str,
    percentile: float = 99.99,
    int8_heads: bool = False,
    fp16_layers: Sequence[str] = (),
) -> dict[str, float]:
    """The scales of a network's activations.

    Args:
        graph: the network that was measured.
        statistics: what was measured.
        method: one of :data:`METHODS`.
        percentile: for the method of that name.
        int8_heads: also give scales to what lies behind the last convolutions. By default these
            run in FP16, as in NVIDIA's own YOLOv5 on a DLA (cuDLA-samples): a head's output mixes
            boxes and scores, which one scale cannot hold well.
        fp16_layers: names of layers, or patterns such as ``/head/*``, that are to run in FP16:
            what they return gets no scale.

    Returns:
        Scales in running order. A sigmoid's is 1/127; a tensor of zeros has the same.

    Raises:
        CalibrationError: a name in ``fp16_layers`` fits no layer.
    """
    layers = find_layers(graph)
    left_out = set() if int8_heads else tail_of(graph, layers)
    left_out |= _outputs_of(graph, layers, fp16_layers)
    sigmoids = {node.output[0] for node in graph.nodes if node.op_type == "Sigmoid"}
    scales = {}
    for tensor in statistics.largest:
        if tensor in left_out:
            continue
        threshold = statistics.threshold(tensor, method, percentile)
        small = tensor in sigmoids or threshold <= 0
        scales[tensor] = SIGMOID_SCALE if small else float(np.float32(threshold / 127))
    return scales


def _outputs_of(graph: Graph, layers: Sequence[Layer], patterns: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        chosen = [
            layer
            for layer in layers
            if any(fnmatchcase(node.name, pattern) for node in layer.nodes)
        ]
        if not chosen:
            some = ", ".join(layer.name for layer in layers[:5])
            raise CalibrationError(
                f"{graph.where}: no layer is called '{pattern}'; its layers: {some}, ..."
            )
        for layer in chosen:
            found.update(name for node in layer.nodes for name in node.output)
    return found


def _histogram(values: np.ndarray, largest: float) -> np.ndarray:
    places = np.abs(values).ravel()
    places *= np.float32(BINS / largest)
    np.minimum(places, BINS - 1, out=places)
    # bincount copies anything but its own type of index
    return np.bincount(places.astype(np.intp), minlength=BINS)
