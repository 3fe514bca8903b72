"""The decoder that the families share: scores of all cells, boxes of those that pass."""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections
from dla_perception.detection.heads.forms import Field, Form, Group
from dla_perception.detection.heads.head import Decoded, logit, sigmoid
from dla_perception.detection.heads.outputs import CellReader
from dla_perception.engines.engine import TensorSpec

FARTHEST = 2.0**20
"""Pixels: a box that reaches farther is not one. A DLA's inputs are at most 8192 pixels wide, but
``exp`` of what was not meant for it, such as a width in pixels, quickly goes beyond."""

MOST_PROBABLE = 1.01
"""Above this a probability is not one; up to it, rounding to float16 or int8 explains it."""

X, Y, STRIDE, ANCHOR_WIDTH, ANCHOR_HEIGHT, LEVEL = range(6)
"""Rows of a geometry ``(6, K) float32``: a cell's column, row and size in pixels, and the anchor
and level it belongs to; anchors are 0 where there are none."""

BoxDecoder = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Raw values ``(channels, K)`` and geometry ``(6, K)`` to boxes ``(4, K)``: x1 y1 x2 y2."""


class Candidates(NamedTuple):
    """Raw values of the cells that may pass, as stored: logits or probabilities."""

    boxes: np.ndarray
    classes: np.ndarray
    objectness: Optional[np.ndarray]
    geometry: np.ndarray


class CellHead:
    """Decoder of heads with a box and scores in each cell.

    See :class:`~dla_perception.detection.heads.head.Head`.
    """

    needs_suppression = True

    def __init__(
        self,
        description: ModelDescription,
        outputs: Sequence[TensorSpec],
        form: Form,
        box_decoder: BoxDecoder,
    ) -> None:
        """Prepare for the outputs of one network.

        Args:
            description: complete, as ``form_of`` or ``describe_model`` leave it.
            outputs: the engine's outputs.
            form: how to read them.
            box_decoder: the family's maths.
        """
        channels_last = form.settles["channels_last"]
        self._activated = bool(form.settles["scores_activated"])
        readers = [CellReader(spec, channels_last) for spec in outputs]
        self._groups = [
            _GroupReader(group, readers, group_geometry(group, description, form))
            for group in form.groups
        ]
        self._box_decoder = box_decoder

    def decode(self, outputs: Sequence[np.ndarray], thresholds: np.ndarray) -> Decoded:
        """See :class:`~dla_perception.detection.heads.head.Head`."""
        least = float(thresholds.min())
        if least == np.inf:
            return Decoded(Detections.empty(), 0)
        with np.errstate(over="ignore", invalid="ignore"):
            candidates = self._candidates(outputs, least)
            if candidates is None:
                return Decoded(Detections.empty(), 0)
            return self._select(candidates, thresholds)

    def _candidates(self, outputs: Sequence[np.ndarray], least: float) -> Candidates | None:
        # rounding in the sigmoid must not lose a score that equals the threshold
        floor = least if self._activated else logit(least * (1 - 1e-6))
        parts = [part for part in (group.read(outputs, floor) for group in self._groups) if part]
        if not parts:
            return None
        if len(parts) == 1:
            return parts[0]
        return Candidates(
            np.concatenate([part.boxes for part in parts], axis=1),
            np.concatenate([part.classes for part in parts], axis=1),
            # all groups of a form have objectness or none has
            np.concatenate([part.objectness for part in parts], axis=1)
            if parts[0].objectness is not None
            else None,
            np.concatenate([part.geometry for part in parts], axis=1),
        )

    def _select(self, candidates: Candidates, thresholds: np.ndarray) -> Decoded:
        """The best class of each cell, and its box where it reaches the threshold."""
        classes, everything = candidates.classes, np.arange(candidates.classes.shape[1])
        class_ids = classes.argmax(axis=0)
        best = classes[class_ids, everything]
        valid = best < np.inf
        if thresholds.max() == np.inf:
            wanted = np.where(np.isinf(thresholds)[:, None], -np.inf, classes)
            class_ids = wanted.argmax(axis=0)
            best = wanted[class_ids, everything]
        scores = self._probabilities(best)
        if candidates.objectness is not None:
            objectness = candidates.objectness[0]
            valid &= objectness < np.inf
            scores = scores * self._probabilities(objectness)
        if self._activated:
            valid &= scores <= MOST_PROBABLE
        invalid = int(valid.size - np.count_nonzero(valid))
        valid &= scores >= thresholds[class_ids]
        return self._decoded(candidates, np.flatnonzero(valid), class_ids, scores, invalid)

    def _decoded(
        self,
        candidates: Candidates,
        cells: np.ndarray,
        class_ids: np.ndarray,
        scores: np.ndarray,
        invalid: int,
    ) -> Decoded:
        """Boxes of the candidates ``cells``, whose classes and scores are given for each cell."""
        boxes, geometry = candidates.boxes, candidates.geometry
        if len(cells) < boxes.shape[1]:
            boxes, geometry = boxes.take(cells, axis=1), geometry.take(cells, axis=1)
            class_ids, scores = class_ids[cells], scores[cells]
        return finish(self._box_decoder(boxes, geometry), scores, class_ids, invalid)

    def _probabilities(self, values: np.ndarray) -> np.ndarray:
        return values if self._activated else sigmoid(values)


def finish(boxes: np.ndarray, scores: np.ndarray, class_ids: np.ndarray, invalid: int) -> Decoded:
    """Drop the boxes ``(4, K)`` that are none, and count them with ``invalid``."""
    # comparisons with what is not a number are false
    valid = (np.abs(boxes) <= FARTHEST).all(axis=0)
    valid &= (boxes[2:] > boxes[:2]).all(axis=0)
    dropped = valid.size - int(np.count_nonzero(valid))
    boxes = boxes.T
    if dropped:
        boxes, scores, class_ids = boxes[valid], scores[valid], class_ids[valid]
    return Decoded(
        Detections(np.ascontiguousarray(boxes), np.minimum(scores, 1), class_ids), invalid + dropped
    )


def group_geometry(group: Group, description: ModelDescription, form: Form) -> np.ndarray:
    """The geometry ``(6, cells) float32`` of a group's cells, in their order."""
    input_width, input_height = description.input_size
    parts: List[np.ndarray] = []
    for level in group.levels:
        stride = form.settles["strides"][level]
        width, height = input_width // stride, input_height // stride
        y, x = np.divmod(np.arange(height * width), width)
        for anchor in (None,) if group.anchors is None else group.anchors:
            part = np.zeros((6, height * width), np.float32)
            part[X], part[Y], part[STRIDE], part[LEVEL] = x, y, stride, level
            if anchor is not None and description.anchors is not None:
                part[ANCHOR_WIDTH], part[ANCHOR_HEIGHT] = description.anchors[level][anchor]
            parts.append(part)
    return np.concatenate(parts, axis=1)


class _FieldReader:
    """One field of a form, ready to be read."""

    def __init__(self, field: Field, readers: Sequence[CellReader]) -> None:
        self._output = field.output
        self._channels = (field.start, field.stop)
        self._reader = readers[field.output]

    def find(self, outputs: Sequence[np.ndarray], floor: float) -> np.ndarray:
        return self._reader.find(outputs[self._output], *self._channels, floor)

    def read(self, outputs: Sequence[np.ndarray], cells: np.ndarray) -> np.ndarray:
        return self._reader.read(outputs[self._output], *self._channels, cells)


class _GroupReader:
    """One group of a form, ready to be read."""

    def __init__(self, group: Group, readers: Sequence[CellReader], geometry: np.ndarray) -> None:
        self._boxes = _FieldReader(group.boxes, readers)
        self._classes = _FieldReader(group.classes, readers)
        self._objectness = None
        if group.objectness is not None:
            self._objectness = _FieldReader(group.objectness, readers)
        self._geometry = geometry

    def read(self, outputs: Sequence[np.ndarray], floor: float) -> Candidates | None:
        """The cells that may reach ``floor``: a score is at most its class and its objectness."""
        cells = (self._objectness or self._classes).find(outputs, floor)
        if not len(cells):
            return None
        return Candidates(
            self._boxes.read(outputs, cells),
            self._classes.read(outputs, cells),
            None if self._objectness is None else self._objectness.read(outputs, cells),
            self._geometry.take(cells, axis=1),
        )


def centred(centres: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Centres and sizes ``(2, K)`` as boxes ``(4, K)``: x1 y1 x2 y2."""
    halves = sizes / 2
    return np.concatenate([centres - halves, centres + halves])


def decoded_centred(values: np.ndarray, geometry: np.ndarray) -> np.ndarray:
    """Boxes that the network has decoded to centre x, centre y, width, height in pixels."""
    return centred(values[:2], values[2:4])
