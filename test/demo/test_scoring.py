"""Hits, false alarms, misses and average precision; the latter against pycocotools."""

from __future__ import annotations

import numpy as np
import pytest

from dla_perception.demo.scoring import (
    FALSE_ALARM,
    HIT,
    IGNORED,
    Score,
    Truth,
    match,
    mean_average_precision,
)
from dla_perception.detection.detections import Detections

NOTHING = np.empty((0, 4), np.float32)


def some(*boxes: tuple[float, float, float, float, float, int]) -> Detections:
    """From ``x1, y1, x2, y2, score, class``."""
    rows = np.array(boxes, float).reshape(-1, 6)
    return Detections(rows[:, :4], rows[:, 4], rows[:, 5])


def test_the_better_score_takes_the_object_and_the_other_is_a_false_alarm() -> None:
    objects = some((0, 0, 10, 10, 1, 2))
    found = some((0, 0, 10, 9, 0.6, 2), (1, 0, 11, 10, 0.9, 2))
    assert match(found, objects, NOTHING).tolist() == [FALSE_ALARM, HIT]


def test_class_and_overlap_have_to_fit() -> None:
    objects = some((0, 0, 10, 10, 1, 0), (20, 0, 30, 10, 1, 1))
    found = some((0, 0, 10, 10, 0.9, 1), (20, 0, 30, 10, 0.9, 1), (0, 0, 10, 4.9, 0.9, 0))
    assert match(found, objects, NOTHING).tolist() == [FALSE_ALARM, HIT, FALSE_ALARM]
    # just half is enough
    assert match(some((0, 0, 10, 5, 0.9, 0)), objects, NOTHING).tolist() == [HIT]


def test_ignored_regions_are_neither_hit_nor_miss() -> None:
    ignore = np.array([[0, 0, 10, 10]], np.float32)
    found = some((0, 0, 10, 20, 0.9, 0), (0, 0, 10, 21, 0.9, 0), (2, 2, 4, 4, 0.9, 3))
    assert match(found, Detections.empty(), ignore).tolist() == [IGNORED, FALSE_ALARM, IGNORED]
    score = Score()
    score.add(found, some((0, 0, 10, 20, 1, 0)), ignore)
    assert (score.hits, score.false_alarms, score.misses) == (1, 1, 0)
    assert (score.precision, score.recall) == (0.5, 1.0)


def test_nothing_found_and_nothing_there() -> None:
    score = Score()
    score.add(Detections.empty(), Detections.empty(), NOTHING)
    assert (score.precision, score.recall) == (0.0, 0.0)
    score.add(Detections.empty(), some((0, 0, 1, 1, 1, 0)), NOTHING)
    assert score.misses == 1


def random_results(rng: np.random.Generator) -> tuple[list[Detections], list[Truth]]:
    found, truths = [], []
    for _ in range(20):
        count = int(rng.integers(0, 6))
        corner = rng.uniform(0, 80, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(8, 40, (count, 2))], 1)
        classes = rng.integers(0, 3, count)
        truths.append(Truth(Detections(boxes, np.ones(count), classes), NOTHING))
        moved = boxes + rng.normal(0, 3, boxes.shape)
        wild = rng.uniform(0, 60, (3, 2))
        moved = np.concatenate([moved, np.concatenate([wild, wild + 20], 1)])
        guessed = np.concatenate([classes, rng.integers(0, 3, 3)])
        # scores all different: for equal ones the order is a matter of taste
        scores = rng.permutation(len(moved)) / 50 + rng.uniform(0, 0.01, len(moved))
        found.append(Detections(moved, scores, guessed))
    return found, truths


def test_average_precision_is_cocos() -> None:
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    for seed in range(3):
        found, truths = random_results(np.random.default_rng(seed))
        annotations = coco.COCO()
        annotations.dataset = {
            "images": [{"id": index} for index in range(len(truths))],
            "categories": [{"id": index} for index in range(3)],
            "annotations": [
                {
                    "image_id": image,
                    "category_id": class_id,
                    "bbox": [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()],
                    "area": float((box[2:] - box[:2]).prod()),
                    "iscrowd": 0,
                }
                for image, truth in enumerate(truths)
                for box, _, class_id in truth.objects
            ],
        }
        for number, annotation in enumerate(annotations.dataset["annotations"], 1):
            annotation["id"] = number
        annotations.createIndex()
        results = annotations.loadRes(
            [
                {
                    "image_id": image,
                    "category_id": class_id,
                    "bbox": [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()],
                    "score": score,
                }
                for image, one in enumerate(found)
                for box, score, class_id in one
            ]
        )
        judge = cocoeval.COCOeval(annotations, results, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
        ours = mean_average_precision(found, truths, 3)
        assert ours == pytest.approx((judge.stats[1], judge.stats[0]), abs=1e-4)
