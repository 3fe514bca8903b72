"""Thresholds, classes that are not wanted, and values no network should give."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from test_head_outputs import float_specs, heads_in_float

from dla_perception.detection.anchors import PUBLISHED_ANCHORS
from dla_perception.detection.description import ModelDescription
from dla_perception.detection.heads import make_head
from dla_perception.detection.heads.cells import FARTHEST
from dla_perception.engines.engine import TensorSpec

VALUES = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 90, -90, 700, 0], np.float32)


def tiny_heads():
    """A head of every family and form, each for an input of 64 x 32: 8 + 2 cells or more."""
    anchors = PUBLISHED_ANCHORS["yolov5"]
    grids = [(4, 8), (2, 4), (1, 2)]
    cells = 42
    common = {"num_classes": 3, "input_size": (64, 32)}
    maps = {
        "darknet": ({"anchors": anchors, "scale_x_y": (1.1,)}, [24]),
        "darknet new_coords": (
            {"family": "darknet", "anchors": anchors, "scale_x_y": (2.0,), "new_coords": True},
            [24],
        ),
        "yolov5": ({"anchors": anchors}, [24]),
        "yolox": ({}, [4, 1, 3]),
        "yolov8": ({}, [67]),
        "yolov10": ({}, [64, 3]),
        "yolo26": ({"family": "yolov10", "reg_max": 1}, [7]),
    }
    heads = []
    for name, (stated, channels) in maps.items():
        shapes = [(1, count, *grid) for grid in grids for count in channels]
        heads.append((ModelDescription(**{"family": name, **common, **stated}), shapes))
    joined = [
        ("darknet", {}, [(1, 3 * cells, 1, 4), (1, 3 * cells, 3)]),
        ("yolov5", {}, [(1, 3 * cells, 8)]),
        ("yolox", {}, [(1, cells, 8)]),
        ("yolox", {"boxes_decoded": True}, [(1, 8, cells)]),
        ("yolov8", {}, [(1, 7, cells)]),
        ("yolov8", {}, [(1, cells, 67)]),
        ("yolov10", {}, [(1, 300, 6)]),
        ("yolov10", {}, [(1, 6, 50)]),
    ]
    for family, stated, shapes in joined:
        heads.append((ModelDescription(family, **common, **stated), shapes))
    return [
        (description, shapes, make_head(description, float_specs(shapes)))
        for description, shapes in heads
    ]


def test_10000_random_tensors_cause_no_exception_warning_or_invalid_box():
    random = np.random.default_rng(1)
    heads = tiny_heads()
    found = invalid = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in range(10_000):
            description, shapes, head = heads[index % len(heads)]
            outputs = [
                random.normal(-1, random.choice([0.1, 2, 40]), shape).astype(np.float32)
                for shape in shapes
            ]
            for output in outputs:
                wrong = random.random(output.shape) < random.choice([0, 0.001, 0.1, 1])
                output[wrong] = random.choice(VALUES, np.count_nonzero(wrong))
            thresholds = random.uniform(0, 1, 3).astype(np.float32)
            thresholds[random.random(3) < 0.2] = np.inf
            thresholds[random.random(3) < 0.05] = random.choice([0, 1])
            decoded = head.decode(outputs, thresholds)
            boxes, scores = decoded.detections.boxes, decoded.detections.scores
            class_ids = decoded.detections.class_ids
            assert np.isfinite(boxes).all(), description
            assert (np.abs(boxes) <= FARTHEST).all()
            assert (boxes[:, 2:] > boxes[:, :2]).all()
            assert ((class_ids >= 0) & (class_ids < 3)).all()
            assert (scores >= thresholds[class_ids]).all()
            assert (scores <= 1).all()
            found += len(boxes)
            invalid += decoded.invalid
    assert found > 10_000
    assert invalid > 10_000


def yolov8_cell(logits, distances=(1.0, 1.0, 1.0, 1.0), num_classes=3):
    """A head with raw distances and one cell, at stride 8 in the first row and column."""
    grids = [(4, 8), (2, 4), (1, 2)]
    description = ModelDescription("yolov8", num_classes, (64, 32), reg_max=1)
    arrays = [np.full((1, 4 + num_classes, *grid), -20, np.float32) for grid in grids]
    arrays[0][0, :, 0, 0] = [*distances, *logits]
    return make_head(description, float_specs([array.shape for array in arrays])), arrays


def decode_cell(logits, thresholds, **cell):
    head, arrays = yolov8_cell(logits, **cell)
    return head.decode(arrays, np.asarray(thresholds, np.float32))


def test_a_cell_reports_its_best_class():
    (detection,) = decode_cell([0.0, 2.0, 1.0], [0.3, 0.3, 0.3]).detections
    box, score, class_id = detection
    assert class_id == 1
    assert score == pytest.approx(1 / (1 + np.exp(-2.0)))
    np.testing.assert_allclose(box, [-4, -4, 12, 12])


def test_a_cell_reports_the_best_of_the_classes_that_are_wanted():
    (detection,) = decode_cell([0.0, 2.0, 1.0], [0.3, np.inf, 0.3]).detections
    assert detection[2] == 2
    assert detection[1] == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert len(decode_cell([-3.0, 2.0, -3.0], [0.3, np.inf, 0.3]).detections) == 0
    assert len(decode_cell([0.0, 2.0, 1.0], [np.inf] * 3).detections) == 0


def test_a_threshold_of_its_own_holds_for_the_best_class():
    """The second best does not take the place of a best class that fails its threshold."""
    assert len(decode_cell([0.0, 2.0, 1.0], [0.3, 0.95, 0.3]).detections) == 0
    assert len(decode_cell([0.0, 2.0, 1.0], [0.99, 0.5, 0.99]).detections) == 1


@pytest.mark.parametrize("name", heads_in_float(3))
def test_a_score_that_equals_the_threshold_passes(name):
    description, shapes = heads_in_float(3)[name]
    random = np.random.default_rng(11)
    arrays = [random.normal(-1, 2, shape).astype(np.float32) for shape in shapes]
    head = make_head(description, float_specs(shapes))
    everything = head.decode(arrays, np.full(3, 0.1, np.float32)).detections
    for score in np.sort(everything.scores)[[0, 10, -10, -1]]:
        found = head.decode(arrays, np.full(3, score, np.float32)).detections
        assert found.scores.min() == score
        above = np.nextafter(score, np.float32(2))
        found = head.decode(arrays, np.full(3, above, np.float32)).detections
        assert score not in found.scores


def test_threshold_one_and_zero():
    assert len(decode_cell([30.0, -9.0, -9.0], [1.0] * 3).detections) == 1
    assert len(decode_cell([10.0, -9.0, -9.0], [1.0] * 3).detections) == 0
    head, arrays = yolov8_cell([0.0, 0.0, 0.0])
    for array in arrays:
        array[0, :4] = 1
    assert len(head.decode(arrays, np.zeros(3, np.float32)).detections) == 32 + 8 + 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_no_number_is_dropped_and_counted(value):
    decoded = decode_cell([2.0, value, -5.0], [0.3, 0.3, 0.3])
    assert (len(decoded.detections), decoded.invalid) == (0, 1)
    decoded = decode_cell([2.0, value, -5.0], [0.3, np.inf, 0.3])
    assert (len(decoded.detections), decoded.invalid) == (0, 1), "also of a class not wanted"


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("channel", [0, 4, 5])
def test_objectness_and_boxes_with_objectness_are_checked_too(value, channel):
    shapes = [(1, 6, 4, 8), (1, 6, 2, 4), (1, 6, 1, 2)]
    arrays = [np.full(shape, -20, np.float32) for shape in shapes]
    arrays[0][0, :, 0, :2] = 1
    arrays[0][0, channel, 0, 1] = value
    head = make_head(ModelDescription("yolox", 1, (64, 32)), float_specs(shapes))
    decoded = head.decode(arrays, np.full(1, 0.3, np.float32))
    assert (len(decoded.detections), decoded.invalid) == (1, 1)


def test_minus_infinity_is_no_candidate():
    decoded = decode_cell([-np.inf] * 3, [0.3] * 3)
    assert (len(decoded.detections), decoded.invalid) == (0, 0)
    decoded = decode_cell([-np.inf, 2.0, -np.inf], [0.3] * 3)
    assert (len(decoded.detections), decoded.invalid) == (1, 0)


@pytest.mark.parametrize(
    "distances",
    [
        (np.nan, 1, 1, 1),
        (1, np.inf, 1, 1),
        (1, 1, 1e30, 1),
        (1, 1, 1, 2 * FARTHEST / 8),
        (-1, 1, 1, 1),
        (1, 1, 1, -2),
    ],
)
def test_a_box_that_is_none_is_dropped_and_counted(distances):
    decoded = decode_cell([2.0, 0.0, 0.0], [0.3] * 3, distances=distances)
    assert (len(decoded.detections), decoded.invalid) == (0, 1)


def test_an_exponential_that_overflows_is_dropped_and_counted():
    """A network that gives pixels, read as one that gives logarithms."""
    description = ModelDescription("yolox", 1, (64, 32))
    shapes = [(1, 6, 4, 8), (1, 6, 2, 4), (1, 6, 1, 2)]
    arrays = [np.full(shape, -20, np.float32) for shape in shapes]
    for column, size in enumerate([np.log(3), 50, 88, 89, 700, 1e30]):
        arrays[0][0, :, 0, column] = [0.5, 0.5, size, 0, 5, 5]
    head = make_head(description, float_specs(shapes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = head.decode(arrays, np.full(1, 0.3, np.float32))
    assert (len(decoded.detections), decoded.invalid) == (1, 5)
    np.testing.assert_allclose(decoded.detections.boxes, [[4 - 12, 0, 4 + 12, 8]], rtol=1e-6)


def test_logits_read_as_probabilities_are_dropped_and_counted():
    description = ModelDescription("yolov8", 3, (64, 32))
    output = np.zeros((1, 7, 42), np.float32)
    output[0, :4] = [[20], [10], [8], [6]]
    output[0, 4:, :4] = [[0.7, 1.005, 1.02, 7], [0] * 4, [0] * 4]
    head = make_head(description, float_specs([output.shape]))
    decoded = head.decode([output], np.full(3, 0.3, np.float32))
    np.testing.assert_allclose(decoded.detections.scores, [0.7, 1])
    assert decoded.invalid == 2


@pytest.mark.parametrize(
    ("row", "invalid"),
    [
        ([1, 2, 11, 22, 0.9, 2], 0),
        ([1, 2, 11, 22, 0.9, 3], 1),
        ([1, 2, 11, 22, 0.9, -1], 1),
        ([1, 2, 11, 22, 0.9, 0.5], 1),
        ([1, 2, 11, 22, 0.9, np.nan], 1),
        ([1, 2, 11, 22, np.nan, 1], 1),
        ([1, 2, 11, 22, 7.0, 1], 1),
        ([11, 2, 1, 22, 0.9, 1], 1),
        ([1, np.nan, 11, 22, 0.9, 1], 1),
        ([0, 0, 0, 0, 0, 0], 0),
    ],
)
def test_rows_of_chosen_boxes(row, invalid):
    output = np.zeros((1, 300, 6), np.float32)
    output[0, :2] = [[1, 2, 3, 4, 0.5, 1], row]
    description = ModelDescription("yolov10", 3, (64, 32))
    head = make_head(description, float_specs([output.shape]))
    decoded = head.decode([output], np.full(3, 0.3, np.float32))
    assert decoded.invalid == invalid
    expected = [2, 1] if row[4] == 0.9 and not invalid else [1]
    assert decoded.detections.class_ids.tolist() == expected, "best score first"


def test_chosen_boxes_obey_thresholds_of_single_classes():
    output = np.zeros((1, 50, 6), np.float32)
    output[0, :3] = [[0, 0, 9, 9, 0.5, 0], [0, 0, 9, 9, 0.8, 1], [0, 0, 9, 9, 0.4, 2]]
    description = ModelDescription("yolov10", 3, (64, 32))
    head = make_head(description, float_specs([output.shape]))
    decoded = head.decode([output], np.array([0.6, np.inf, 0.3], np.float32))
    assert decoded.detections.class_ids.tolist() == [2]
    assert len(head.decode([output], np.full(3, np.inf, np.float32)).detections) == 0


def test_one_to_one_heads_report_several_classes_of_a_cell():
    """As the network's own choice does: it ranks pairs of cell and class."""
    grids = [(4, 8), (2, 4), (1, 2)]
    arrays = [np.full((1, 7, *grid), -20, np.float32) for grid in grids]
    arrays[1][0, :, 1, 2] = [1, 1, 1, 1, 0.5, 2.0, 1.0]
    description = ModelDescription("yolov10", 3, (64, 32), reg_max=1)
    head = make_head(description, float_specs([array.shape for array in arrays]))
    assert not head.needs_suppression
    found = head.decode(arrays, np.full(3, 0.3, np.float32)).detections
    assert found.class_ids.tolist() == [1, 2, 0]
    np.testing.assert_allclose(found.boxes, [[24, 8, 56, 40]] * 3)
    found = head.decode(arrays, np.array([0.3, np.inf, 0.3], np.float32)).detections
    assert found.class_ids.tolist() == [2, 0]


def test_the_buffers_are_left_as_they_are():
    for description, shapes in heads_in_float(3).values():
        arrays = [np.random.default_rng(1).normal(-1, 2, s).astype(np.float32) for s in shapes]
        copies = [array.copy() for array in arrays]
        head = make_head(description, float_specs(shapes))
        head.decode(arrays, np.array([0.3, np.inf, 0.5], np.float32))
        for array, copy in zip(arrays, copies):
            np.testing.assert_array_equal(array, copy)


def test_float16_scores_keep_their_own_rounding():
    """One just above and one just below the threshold, a float16 step apart."""
    description = ModelDescription("yolov8", 3, (64, 32))
    spec = TensorSpec("output", (1, 7, 42), np.dtype(np.float16))
    output = np.zeros(spec.shape, np.float16)
    output[0, :4] = [[20], [10], [8], [6]]
    just = np.float16(0.3)
    output[0, 4, :3] = [just, np.nextafter(just, np.float16(0)), np.nextafter(just, np.float16(1))]
    decoded = make_head(description, [spec]).decode([output], np.full(3, just, np.float32))
    np.testing.assert_array_equal(decoded.detections.scores, output[0, 4, [0, 2]])
