"""The struct of arrays that all results are."""

from __future__ import annotations

import numpy as np
import pytest

from dla_perception.detection.detections import Detections


def three() -> Detections:
    return Detections([[0, 0, 1, 1], [2, 2, 4, 4], [5, 5, 9, 9]], [0.9, 0.5, 0.7], [3, 1, 2])


def test_types():
    detections = three()
    assert detections.boxes.dtype == np.float32
    assert detections.boxes.shape == (3, 4)
    assert detections.scores.dtype == np.float32
    assert detections.class_ids.dtype == np.int32
    assert len(detections) == 3


def test_empty():
    assert len(Detections.empty()) == 0
    assert Detections.empty().boxes.shape == (0, 4)
    assert Detections([], [], []).boxes.shape == (0, 4)
    assert len(Detections.concatenate([])) == 0


@pytest.mark.parametrize(
    "index", [slice(1, 3), np.array([1, 2]), [1, 2], np.array([False, True, True])]
)
def test_choice_keeps_rows_together(index):
    chosen = three()[index]
    assert chosen.boxes.tolist() == [[2, 2, 4, 4], [5, 5, 9, 9]]
    assert chosen.scores.tolist() == pytest.approx([0.5, 0.7])
    assert chosen.class_ids.tolist() == [1, 2]


def test_choice_of_none():
    assert three()[np.zeros(3, bool)].boxes.shape == (0, 4)


def test_concatenation_keeps_the_order():
    joined = Detections.concatenate([three()[:1], Detections.empty(), three()[1:]])
    assert joined.scores.tolist() == pytest.approx([0.9, 0.5, 0.7])
    assert joined.class_ids.tolist() == [3, 1, 2]
    assert joined.boxes.tolist() == three().boxes.tolist()


def test_iteration_gives_plain_numbers():
    box, score, class_id = list(three())[1]
    assert box.tolist() == [2, 2, 4, 4]
    assert (type(score), type(class_id)) == (float, int)
    assert (score, class_id) == (pytest.approx(0.5), 1)


@pytest.mark.parametrize(
    ("boxes", "scores", "class_ids"),
    [
        ([[0, 0, 1, 1]], [0.5, 0.4], [1]),
        ([[0, 0, 1, 1]], [0.5], [1, 2]),
        ([[0, 0, 1]], [0.5], [1]),
        ([0, 0, 1, 1], [0.5], [1]),
        ([[0, 0, 1, 1]], [[0.5]], [1]),
    ],
)
def test_refuses_arrays_that_do_not_fit(boxes, scores, class_ids):
    with pytest.raises(ValueError, match=r"expected shapes \(N, 4\), \(N,\) and \(N,\)"):
        Detections(boxes, scores, class_ids)
