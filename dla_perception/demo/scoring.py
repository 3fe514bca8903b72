"""Detections against a scene's ground truth: hits, false alarms, misses, average precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from dla_perception.detection.detections import Detections
from dla_perception.detection.nms import box_areas, box_iou

HIT, FALSE_ALARM, IGNORED = 1, 0, -1
IOU_THRESHOLDS = tuple(0.5 + 0.05 * step for step in range(10))


class Truth(NamedTuple):
    """What is in one picture: the objects to find and boxes ``(K, 4)`` that do not count."""

    objects: Detections
    ignore: np.ndarray


def match(
    found: Detections, objects: Detections, ignore: np.ndarray, iou_threshold: float = 0.5
) -> np.ndarray:
    """Judge each detection of one picture.

    The best score chooses first: of the objects of its class not yet taken, the one that it
    overlaps most, if that is by ``iou_threshold`` at least. A detection without an object that
    lies by half or more of its area in one of the boxes ``ignore (K, 4)`` is ignored.

    Returns:
        ``(N,) int8`` in the order of ``found``: ``HIT``, ``FALSE_ALARM`` or ``IGNORED``.
    """
    verdicts = np.full(len(found), FALSE_ALARM, np.int8)
    overlaps = box_iou(found.boxes, objects.boxes)
    overlaps = np.where(found.class_ids[:, None] == objects.class_ids[None, :], overlaps, 0)
    beside = _covered(found.boxes, ignore) >= 0.5
    for index in np.argsort(-found.scores, kind="stable"):
        best = int(overlaps[index].argmax()) if len(objects) else -1
        if best >= 0 and overlaps[index, best] >= iou_threshold:
            verdicts[index] = HIT
            overlaps[:, best] = 0
        elif beside[index]:
            verdicts[index] = IGNORED
    return verdicts


@dataclass
class Score:
    """Running counts over pictures."""

    hits: int = 0
    false_alarms: int = 0
    misses: int = 0

    def add(
        self,
        found: Detections,
        objects: Detections,
        ignore: np.ndarray,
        iou_threshold: float = 0.5,
    ) -> None:
        """Count one picture, as :func:`match` judges it."""
        verdicts = match(found, objects, ignore, iou_threshold)
        hits = int(np.count_nonzero(verdicts == HIT))
        self.hits += hits
        self.false_alarms += int(np.count_nonzero(verdicts == FALSE_ALARM))
        self.misses += len(objects) - hits

    @property
    def precision(self) -> float:
        """Hits among what was found and counts; 0 when nothing was found."""
        return self.hits / max(self.hits + self.false_alarms, 1)

    @property
    def recall(self) -> float:
        """Hits among the objects; 0 when there were none."""
        return self.hits / max(self.hits + self.misses, 1)


def average_precision(
    found: Sequence[Detections], truths: Sequence[Truth], classes: int, iou_threshold: float
) -> np.ndarray:
    """Average precision ``(classes,)`` as COCO takes it: over recalls 0, 0.01 ... 1.

    NaN for a class that does not occur.
    """
    verdicts = [
        match(one, truth.objects, truth.ignore, iou_threshold) for one, truth in zip(found, truths)
    ]
    result = np.full(classes, np.nan)
    for class_id in range(classes):
        wanted = sum(int((truth.objects.class_ids == class_id).sum()) for truth in truths)
        if not wanted:
            continue
        hits = _ranked_hits(found, verdicts, class_id)
        recall = np.cumsum(hits) / wanted
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        # at each recall the best precision that is still to come
        envelope = np.maximum.accumulate(precision[::-1])[::-1]
        at = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
        result[class_id] = np.append(envelope, 0.0)[np.minimum(at, len(envelope))].mean()
    return result


def mean_average_precision(
    found: Sequence[Detections], truths: Sequence[Truth], classes: int
) -> Tuple[float, float]:
    """mAP50 and mAP50-95 over the classes that occur."""
    by_threshold = [average_precision(found, truths, classes, iou) for iou in IOU_THRESHOLDS]
    means = [float(np.nanmean(values)) for values in by_threshold]
    return means[0], float(np.mean(means))


def _ranked_hits(
    found: Sequence[Detections], verdicts: Sequence[np.ndarray], class_id: int
) -> np.ndarray:
    """Whether each detection of a class is a hit, best score first, the ignored left out."""
    scores: List[np.ndarray] = []
    hits: List[np.ndarray] = []
    for one, verdict in zip(found, verdicts):
        chosen = (one.class_ids == class_id) & (verdict != IGNORED)
        scores.append(one.scores[chosen])
        hits.append(verdict[chosen] == HIT)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return np.concatenate(hits)[order]


def _covered(boxes: np.ndarray, ignore: np.ndarray) -> np.ndarray:
    """The largest share ``(N,)`` of each box that lies in a single ignore box."""
    if not len(ignore) or not len(boxes):
        return np.zeros(len(boxes))
    top_left = np.maximum(boxes[:, None, :2], ignore[None, :, :2])
    bottom_right = np.minimum(boxes[:, None, 2:], ignore[None, :, 2:])
    sizes = np.maximum(bottom_right - top_left, 0)
    common = (sizes[..., 0] * sizes[..., 1]).max(axis=1)
    return common / np.maximum(box_areas(boxes), 1e-6)
