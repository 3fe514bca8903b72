"""YOLOv10, YOLO26 and networks with suppression in the graph: the network gives one box an object.

The usual export is ``(1, boxes, 6)``: x1 y1 x2 y2 in pixels of the input, score, class; the boxes
are the best of all pairs of cell and class. Cut at its one-to-one head convolutions the network has
the outputs of a YOLOv8 cut there, with ``reg_max`` 16 for YOLOv10 and 1 for YOLO26, and what
remains is that choice: the best cells by their best class, then the best pairs among them.

Source: ultralytics/ultralytics, ``nn/modules/head.py``, ``Detect.postprocess`` and
``get_topk_index``.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections
from dla_perception.detection.heads.cells import MOST_PROBABLE, Candidates, CellHead, finish
from dla_perception.detection.heads.forms import Form, Network
from dla_perception.detection.heads.head import Decoded, Head
from dla_perception.detection.heads.outputs import CellReader
from dla_perception.detection.heads.yolov8 import DEFAULTS, STRIDES, distance_forms, distances
from dla_perception.engines.engine import TensorSpec

MODELS = "YOLOv10 and YOLO26"

MOST_BOXES = 300
"""Ultralytics' ``max_det``."""

__all__ = ["DEFAULTS", "MODELS", "forms", "make"]


def forms(network: Network) -> Iterator[Form]:
    """The ways to read a network's outputs as this family."""
    if len(network.outputs) == 1 and len(network.outputs[0].shape) == 3:
        _, first, second = network.outputs[0].shape
        if second == 6:
            yield _chosen(network, first, channels_last=True)
        if first == 6:
            yield _chosen(network, second, channels_last=False)
    yield from distance_forms(network, "yolov10")


def make(description: ModelDescription, outputs: Sequence[TensorSpec], form: Form) -> Head:
    """The decoder of a network whose outputs have this form."""
    if form.settles["boxes_decoded"]:
        return ChosenBoxesHead(outputs[0], description.num_classes, form.settles["channels_last"])
    return OneToOneHead(description, outputs, form, distances(form.settles["reg_max"]))


class OneToOneHead(CellHead):
    """Decoder of the one-to-one head convolutions."""

    needs_suppression = False

    def _select(self, candidates: Candidates, thresholds: np.ndarray) -> Decoded:
        classes = candidates.classes
        best = classes.max(axis=0)
        valid = best < np.inf
        if self._activated:
            valid &= best <= MOST_PROBABLE
        invalid = int(valid.size - np.count_nonzero(valid))
        cells = np.flatnonzero(valid)
        # none of the best pairs lies in another cell, and there may be many cells
        if len(cells) > MOST_BOXES:
            cells = np.sort(cells[np.argsort(-best[cells], kind="stable")[:MOST_BOXES]])
        scores = self._probabilities(classes[:, cells])
        class_ids, columns = np.nonzero(scores >= thresholds[:, None])
        scores = scores[class_ids, columns]
        order = np.argsort(-scores, kind="stable")[:MOST_BOXES]
        cells, class_ids, scores = cells[columns[order]], class_ids[order], scores[order]
        geometry = candidates.geometry.take(cells, axis=1)
        boxes = self._box_decoder(candidates.boxes.take(cells, axis=1), geometry)
        return finish(boxes, scores, class_ids, invalid)


class ChosenBoxesHead:
    """Decoder of boxes that the network has chosen itself."""

    needs_suppression = False

    def __init__(self, output: TensorSpec, num_classes: int, channels_last: bool) -> None:
        """Prepare for an output ``(1, boxes, 6)`` or, channels first, ``(1, 6, boxes)``."""
        self._reader = CellReader(output, channels_last)
        self._num_classes = num_classes

    def decode(self, outputs: Sequence[np.ndarray], thresholds: np.ndarray) -> Decoded:
        """See :class:`~dla_perception.detection.heads.head.Head`."""
        least = float(thresholds.min())
        if least == np.inf:
            return Decoded(Detections.empty(), 0)
        with np.errstate(over="ignore", invalid="ignore"):
            rows = self._reader.find(outputs[0], 4, 5, least)
            values = self._reader.read(outputs[0], 0, 6, rows)
            scores, classes = values[4], values[5]
            valid = scores <= MOST_PROBABLE
            valid &= (classes >= 0) & (classes < self._num_classes) & (classes % 1 == 0)
            invalid = int(valid.size - np.count_nonzero(valid))
            kept = np.flatnonzero(valid)
            class_ids = classes[kept].astype(np.intp)
            passed = scores[kept] >= thresholds[class_ids]
            kept, class_ids = kept[passed], class_ids[passed]
            order = np.argsort(-scores[kept], kind="stable")
            kept, class_ids = kept[order], class_ids[order]
            return finish(values[:4, kept], scores[kept], class_ids, invalid)


def _chosen(network: Network, boxes: int, channels_last: bool) -> Form:
    """The form of the boxes that a network has chosen, and nothing else is known of it."""
    # heads that give one box or three a cell have as many rows; it takes a small input for a
    # network to choose them all
    cells = [sum(network.cells(stride) for stride in strides) for strides in STRIDES]
    all_cells = boxes in cells or boxes in [3 * count for count in cells]
    rank = 2 if all_cells and boxes > MOST_BOXES else 0
    return Form(
        "yolov10",
        "chosen boxes" if channels_last else "chosen boxes, transposed",
        {
            "num_classes": None,
            "strides": None,
            "boxes_decoded": True,
            "scores_activated": True,
            "channels_last": channels_last,
        },
        rank=rank + (0 if channels_last else 1),
        mirror=boxes == 6,
    )
