"""What every head family offers, and the maths they share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Sequence

import numpy as np

from dla_perception.detection.detections import Detections


@dataclass(frozen=True)
class Decoded:
    """Candidates of one image before suppression.

    Attributes:
        detections: boxes in pixels of the network's input, not clipped, of positive width and
            height; scores in [0, 1].
        invalid: how many candidates were dropped for a value that is no number or infinite, for a
            box without an area or beyond :data:`~dla_perception.detection.heads.cells.FARTHEST`,
            or for a class that the network does not have. A score of minus infinity only says
            that there is nothing: its cell is no candidate.
    """

    detections: Detections
    invalid: int


class Head(Protocol):
    """Turns the raw outputs of one network into candidates."""

    @property
    def needs_suppression(self) -> bool:
        """Whether several candidates may be of one object: then they need suppression.

        Where it is false the network was trained to give one box an object, and the candidates
        come best score first.
        """

    def decode(self, outputs: Sequence[np.ndarray], thresholds: np.ndarray) -> Decoded:
        """Decode one image; by one thread at a time.

        Args:
            outputs: the engine's output buffers, in the engine's order and physical shapes.
            thresholds: ``(classes,) float32``, least score per class; ``inf`` leaves a class out.

        Returns:
            One box for each cell in which the best of the classes that are wanted reaches its
            threshold. Networks trained to give one box an object may give several classes a cell.
        """


def logit(probability: float) -> float:
    """The inverse of the sigmoid; -inf at 0 and +inf at 1."""
    if probability <= 0:
        return -np.inf
    if probability >= 1:
        return np.inf
    return math.log(probability / (1 - probability))


def sigmoid(values: np.ndarray) -> np.ndarray:
    """``1 / (1 + exp(-x))`` without overflow for extreme values."""
    return 1 / (1 + np.exp(-np.maximum(values, -88)))
