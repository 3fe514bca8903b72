"""Non-maximum suppression."""

from __future__ import annotations

import numpy as np

from dla_perception.detection.detections import Detections

MAX_CANDIDATES = 4096
"""Boxes that enter suppression at most, the best by score: bounds the time of a bad frame."""

_BLOCK = 192
"""Candidates compared with each other at once: few enough that most pairs matter, and many enough
that numpy's cost per call does not."""


def box_areas(boxes: np.ndarray) -> np.ndarray:
    """Areas ``(N,)`` of boxes ``(N, 4)``; zero where an edge is reversed."""
    sizes = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    areas: np.ndarray = sizes[:, 0] * sizes[:, 1]
    return areas


def box_iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union ``(N, M)`` of boxes ``(N, 4)`` with boxes ``(M, 4)``.

    Zero where both boxes are empty.
    """
    intersection, union = _overlap(_columns(first)[:, :, None], _columns(second)[:, None, :])
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)


def suppress(
    detections: Detections,
    iou_threshold: float,
    max_detections: int,
    class_agnostic: bool = False,
) -> Detections:
    """Greedy suppression: a box goes when a better one of its class overlaps it.

    Args:
        detections: finite scores, and boxes whose areas float32 holds: heads drop others.
        iou_threshold: in [0, 1]; boxes whose IoU with a better one is **above** it go.
        max_detections: how many to keep at most.
        class_agnostic: let boxes of different classes suppress each other.

    Returns:
        The boxes kept, best score first; equal scores keep their order. Only the best
        :data:`MAX_CANDIDATES` are looked at.
    """
    order = _ranking(detections.scores)
    columns = _columns(detections.boxes[order])
    classes = np.zeros(len(order), np.int32) if class_agnostic else detections.class_ids[order]
    kept: np.ndarray = np.empty(0, np.intp)
    for start in range(0, len(order), _BLOCK):
        block: np.ndarray = np.arange(start, min(start + _BLOCK, len(order)))
        if len(kept):
            better, worse = columns.take(kept, axis=1), columns.take(block, axis=1)
            covered = _covers(better[:, :, None], worse[:, None, :], iou_threshold)
            covered &= classes[kept, None] == classes[block]
            block = block[~covered.any(axis=0)]
        kept = np.append(kept, _keep(columns, classes, block, iou_threshold))
        if len(kept) >= max_detections:
            break
    return detections[order[kept[:max_detections]]]


def _ranking(scores: np.ndarray) -> np.ndarray:
    """Indices of the best scores, best first; equal scores in their order."""
    if len(scores) <= MAX_CANDIDATES:
        return np.argsort(-scores, kind="stable")
    floor = np.partition(scores, -MAX_CANDIDATES)[-MAX_CANDIDATES]
    chosen = np.flatnonzero(scores >= floor)
    return chosen[np.argsort(-scores[chosen], kind="stable")[:MAX_CANDIDATES]]


def _keep(
    columns: np.ndarray, classes: np.ndarray, block: np.ndarray, iou_threshold: float
) -> np.ndarray:
    """Those of ``block``, best first, that no better one of their class in it covers."""
    # one class after the other, the best of each first: then only pairs of a class are looked at
    grouped = block[np.argsort(classes[block], kind="stable")]
    sorted_classes = classes[grouped]
    places = np.arange(len(grouped))
    followers = np.searchsorted(sorted_classes, sorted_classes, side="right") - places - 1
    better = np.repeat(places, followers)
    pairs_before = np.cumsum(followers) - followers
    worse = np.arange(len(better)) - np.repeat(pairs_before - places - 1, followers)
    block_columns = columns.take(grouped, axis=1)
    covers = _covers(
        block_columns.take(better, axis=1), block_columns.take(worse, axis=1), iou_threshold
    )
    alive = [True] * len(grouped)
    for place, covered in zip(better[covers].tolist(), worse[covers].tolist()):
        if alive[place]:
            alive[covered] = False
    return np.sort(grouped[alive])


def _columns(boxes: np.ndarray) -> np.ndarray:
    """Boxes ``(N, 4)`` as ``(5, N)``: x1 y1 x2 y2 and the area."""
    columns = np.empty((5, len(boxes)), boxes.dtype)
    columns[:4] = boxes.T
    columns[4] = box_areas(boxes)
    return columns


def _covers(first: np.ndarray, second: np.ndarray, iou_threshold: float) -> np.ndarray:
    """Whether the IoU is above the threshold; for arrays as :func:`_overlap` takes them."""
    intersection, union = _overlap(first, second)
    # not divided: so nothing covers an empty box
    return intersection > np.multiply(union, iou_threshold, out=union)


def _overlap(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Areas of the intersections and unions of boxes.

    Args:
        first, second: made by :func:`_columns`; axes after the first are broadcast.
    """
    sizes = np.minimum(first[2:4], second[2:4])
    sizes -= np.maximum(first[:2], second[:2])
    np.maximum(sizes, 0, out=sizes)
    intersection = sizes[0] * sizes[1]
    union = first[4] + second[4]
    union -= intersection
    return intersection, union
