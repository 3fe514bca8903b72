"""Suppression against a plain greedy one in whole numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dla_perception.detection.detections import Detections
from dla_perception.detection.nms import MAX_CANDIDATES, box_areas, box_iou, suppress


def greedy(
    boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, sixty_fourths: int
) -> list[int]:
    """One box after the other, in exact arithmetic: ``boxes`` are whole numbers."""
    x1, y1, x2, y2 = boxes.astype(np.int64).T
    areas = np.maximum(x2 - x1, 0) * np.maximum(y2 - y1, 0)
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda index: (-scores[index], index)):
        widths = np.minimum(x2[kept], x2[index]) - np.maximum(x1[kept], x1[index])
        heights = np.minimum(y2[kept], y2[index]) - np.maximum(y1[kept], y1[index])
        common = np.maximum(widths, 0) * np.maximum(heights, 0)
        union = areas[kept] + areas[index] - common
        same = classes[kept] == classes[index]
        if not (same & (common * 64 > union * sixty_fourths)).any():
            kept.append(index)
    return kept


def whole_boxes(generator: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Boxes on a grid, in clusters; some of them empty or reversed."""
    clusters = generator.integers(0, size, (max(count // 6, 1), 4))
    boxes = clusters[generator.integers(0, len(clusters), count)]
    boxes = boxes + generator.integers(-2, 3, (count, 4))
    ordered = generator.random(count) < 0.9
    boxes[ordered] = np.concatenate(
        [np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1
    )[ordered]
    return boxes


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.integers(0, 60), st.integers(150, 700)),
    st.integers(1, 12),
    st.sampled_from([6, 40, 400]),
    st.integers(0, 64),
    st.booleans(),
    st.integers(1, 700),
    st.integers(0, 2**32 - 1),
)
def test_equals_plain_greedy_suppression(
    count, classes, size, sixty_fourths, class_agnostic, max_detections, seed
):
    """With ties in IoU, in scores, and more boxes than are compared at once."""
    generator = np.random.default_rng(seed)
    boxes = whole_boxes(generator, count, size)
    scores = (generator.integers(0, 50, count) / 50).astype(np.float32)
    class_ids = generator.integers(0, classes, count)
    kept = suppress(
        Detections(boxes, scores, class_ids), sixty_fourths / 64, max_detections, class_agnostic
    )
    groups = np.zeros_like(class_ids) if class_agnostic else class_ids
    expected = greedy(boxes, scores, groups, sixty_fourths)[:max_detections]
    np.testing.assert_array_equal(kept.boxes, boxes[expected])
    np.testing.assert_array_equal(kept.scores, scores[expected])
    np.testing.assert_array_equal(kept.class_ids, class_ids[expected])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 80), st.floats(0.1, 0.9), st.integers(0, 2**32 - 1))
def test_sub_pixel_boxes(count, iou_threshold, seed):
    generator = np.random.default_rng(seed)
    first = generator.uniform(0, 100, (count, 2))
    boxes = np.concatenate([first, first + generator.uniform(1, 60, (count, 2))], axis=1)
    detections = Detections(boxes, generator.random(count), generator.integers(0, 3, count))
    iou = box_iou(*[detections.boxes.astype(np.float64)] * 2)
    assume((np.abs(iou - iou_threshold) > 1e-5).all())
    kept: list[int] = []
    for index in np.argsort(-detections.scores, kind="stable"):
        same = detections.class_ids[kept] == detections.class_ids[index]
        if not (same & (iou[kept, index] > iou_threshold)).any():
            kept.append(index)
    found = suppress(detections, iou_threshold, 300)
    np.testing.assert_array_equal(found.boxes, detections.boxes[kept])


def test_known_case():
    boxes = [[0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30], [0, 0, 10, 10], [0, 0, 10, 5]]
    detections = Detections(boxes, [0.6, 0.9, 0.5, 0.7, 0.8], [0, 0, 0, 1, 0])
    # 0 and 1 share 90 of 110; 4 shares half of 0 and 45 of 105 of 1
    assert suppress(detections, 0.45, 300).scores.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.5])
    assert suppress(detections, 0.4, 300).scores.tolist() == pytest.approx([0.9, 0.7, 0.5])
    agnostic = suppress(detections, 0.45, 300, class_agnostic=True)
    assert agnostic.scores.tolist() == pytest.approx([0.9, 0.8, 0.5])
    assert suppress(detections, 0.45, 2).scores.tolist() == pytest.approx([0.9, 0.8])


def test_iou_equal_to_the_threshold_stays():
    detections = Detections([[0, 0, 2, 1], [0, 0, 1, 1]], [0.9, 0.8], [0, 0])
    assert len(suppress(detections, 0.5, 300)) == 2
    assert len(suppress(detections, 0.49, 300)) == 1
    same = Detections([[0, 0, 2, 1]] * 3, [0.9, 0.8, 0.7], [0] * 3)
    assert len(suppress(same, 1.0, 300)) == 3


def test_empty_boxes_suppress_nothing():
    boxes = [[5, 5, 5, 9], [5, 5, 5, 9], [9, 9, 5, 5], [0, 0, 10, 10]]
    detections = Detections(boxes, [0.9, 0.8, 0.7, 0.6], [0] * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(suppress(detections, 0.0, 300)) == 4
        np.testing.assert_array_equal(box_iou(detections.boxes[:3], detections.boxes), 0)
    assert box_areas(detections.boxes).tolist() == [0, 0, 0, 100]


def test_no_candidates():
    assert len(suppress(Detections.empty(), 0.45, 300)) == 0


def test_only_the_best_candidates_enter():
    """Far more boxes than are looked at: the worst are dropped, though none overlaps another."""
    count = MAX_CANDIDATES + 904
    generator = np.random.default_rng(3)
    scores = generator.permutation(count).astype(np.float32) / count
    corners = np.stack([np.arange(count) * 10, np.zeros(count)], axis=1)
    detections = Detections(np.concatenate([corners, corners + 5], 1), scores, np.zeros(count))
    kept = suppress(detections, 0.45, count)
    np.testing.assert_array_equal(kept.scores, np.sort(scores)[::-1][:MAX_CANDIDATES])
    # of equal ones the first enter
    equal = Detections(detections.boxes, np.full(count, 0.5), np.zeros(count))
    np.testing.assert_array_equal(
        suppress(equal, 0.45, count).boxes, detections.boxes[:MAX_CANDIDATES]
    )


def test_iou_values():
    first = np.array([[0, 0, 10, 10], [0, 0, 2, 2]], np.float32)
    second = np.array([[5, 5, 15, 15], [0, 0, 10, 10], [1, 1, 3, 3], [50, 50, 60, 60]], np.float32)
    expected = [[25 / 175, 1, 4 / 100, 0], [0, 4 / 100, 1 / 7, 0]]
    np.testing.assert_allclose(box_iou(first, second), expected, rtol=1e-6)
    assert box_iou(first, np.empty((0, 4), np.float32)).shape == (2, 0)
