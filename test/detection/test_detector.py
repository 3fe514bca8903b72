"""The detector on real photos, and its settings."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detector import DetectionSettings, Detector, SettingsError
from dla_perception.detection.images import read_image
from dla_perception.detection.nms import box_iou
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.engine import EngineInfo, TensorSpec
from dla_perception.engines.loading import open_engine

PHOTOS = ("dog.jpg", "person.jpg", "horses.jpg", "eagle.jpg", "giraffe.jpg")


@pytest.fixture(scope="module")
def detector(assets):
    engine = open_engine(assets / "models/yolox_nano_416.onnx")
    yield Detector(engine, describe_model(engine, labels="coco"))
    engine.close()


@pytest.fixture(scope="module")
def dog(assets):
    return read_image(assets / "images/classic/dog.jpg")


def test_what_is_inferred_without_a_description(detector):
    description = detector.description
    assert (description.family, description.num_classes) == ("yolox", 80)
    assert (description.channel_order, description.scale) == ("bgr", 1.0)
    assert (description.placement.value, description.pad_value) == ("top_left", 114)


@pytest.mark.parametrize("photo", PHOTOS)
def test_recorded_detections_of_an_independent_decoder(detector, assets, photo):
    recorded = json.loads((assets / "reference_detections/yolox_nano_416.json").read_text())
    expected = recorded["images"][photo]
    found = detector.detect(read_image(assets / "images/classic" / photo)).detections
    assert len(found) == len(expected)
    for box, score, class_id in found:
        match = min(
            (item for item in expected if item["class_id"] == class_id),
            key=lambda item: np.abs(np.array(item["box_xyxy"]) - box).max(),
        )
        assert detector.description.label(class_id) == match["class"]
        assert score == pytest.approx(match["score"], abs=0.02)
        np.testing.assert_allclose(box, match["box_xyxy"], atol=2)


def test_rgb_and_bgr_frames_give_the_same(detector, dog):
    bgr = detector.detect(dog).detections
    rgb = detector.detect(np.ascontiguousarray(dog[:, :, ::-1]), "rgb").detections
    np.testing.assert_array_equal(rgb.boxes, bgr.boxes)
    np.testing.assert_array_equal(rgb.scores, bgr.scores)


def test_a_view_with_padded_rows_gives_the_same(detector, dog):
    wide = np.full((dog.shape[0], dog.shape[1] + 5, 3), 77, np.uint8)
    wide[:, : dog.shape[1]] = dog
    padded = detector.detect(wide[:, : dog.shape[1]]).detections
    np.testing.assert_array_equal(padded.boxes, detector.detect(dog).detections.boxes)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (37, 41), (417, 415)])
def test_any_size_of_image_works_and_boxes_stay_inside(detector, size):
    height, width = size
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)
    boxes = detector.detect(pixels).detections.boxes
    assert (boxes >= 0).all()
    assert (boxes[:, [0, 2]] <= width).all()
    assert (boxes[:, [1, 3]] <= height).all()


def test_alternating_sizes_do_not_disturb_each_other(detector, dog):
    """The pad area and the geometry belong to one size of image: no trace of the one before."""
    tall = np.ascontiguousarray(np.rot90(dog))
    first, first_tall = detector.detect(dog).detections, detector.detect(tall).detections
    for _ in range(2):
        np.testing.assert_array_equal(detector.detect(tall).detections.boxes, first_tall.boxes)
        np.testing.assert_array_equal(detector.detect(dog).detections.boxes, first.boxes)


def labels(detector, result):
    return [detector.description.label(int(index)) for index in result.detections.class_ids]


def test_settings_apply_to_the_next_frame(detector, dog):
    before = detector.settings
    try:
        detector.settings = DetectionSettings(class_filter=["car", "dog"])
        assert labels(detector, detector.detect(dog)) == ["dog", "car"]
        detector.settings = DetectionSettings(class_score_thresholds={"dog": 0.9, "truck": 0.1})
        assert labels(detector, detector.detect(dog))[:3] == ["bicycle", "car", "truck"]
        detector.settings = DetectionSettings(score_threshold=0.8)
        assert labels(detector, detector.detect(dog)) == ["dog", "bicycle"]
        detector.settings = DetectionSettings(max_detections=1)
        assert labels(detector, detector.detect(dog)) == ["dog"]
        detector.settings = DetectionSettings(iou_threshold=1.0)
        loose = detector.detect(dog).detections
        assert len(loose) > 4
        detector.settings = DetectionSettings(iou_threshold=0.3)
        tight = detector.detect(dog).detections
        overlaps = box_iou(tight.boxes, tight.boxes)
        same_class = tight.class_ids[:, None] == tight.class_ids[None, :]
        np.fill_diagonal(same_class, False)
        assert overlaps[same_class].max(initial=0) <= 0.31
    finally:
        detector.settings = before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"score_threshold": 1.5}, "score_threshold: 1.5 is out of range"),
        ({"iou_threshold": -0.1}, "iou_threshold: -0.1"),
        ({"max_detections": 0}, "max_detections: 0"),
        ({"class_score_thresholds": {"cat": float("nan")}}, "class_score_thresholds: cat: nan"),
    ],
)
def test_settings_out_of_range(settings, words):
    with pytest.raises(SettingsError, match=words):
        DetectionSettings(**settings)


def test_an_unknown_class_name_is_refused_with_the_known_ones():
    description = ModelDescription("yolox", 2, (64, 64), class_names=("cone", "ball"))
    with pytest.raises(SettingsError, match="'cat' is not one of the network's 2: cone, ball"):
        DetectionSettings(class_filter=["cat"]).thresholds(description)


def test_two_slots_in_flight_answer_in_order(detector, dog, assets):
    from dla_perception.detection.detector import Frame

    other = read_image(assets / "images/classic/giraffe.jpg")
    alone = [detector.detect(dog).detections, detector.detect(other).detections]
    detector.submit(0, Frame(dog))
    detector.submit(1, Frame(other))
    together = [detector.finish(0).detections, detector.finish(1).detections]
    for expected, found in zip(alone, together):
        np.testing.assert_array_equal(found.boxes, expected.boxes)


class OneBoxEngine:
    """Returns what the test has put into its output."""

    inputs = (TensorSpec("images", (1, 3, 64, 64), np.dtype(np.float32)),)
    outputs = (TensorSpec("output0", (1, 300, 6), np.dtype(np.float32)),)
    info = EngineInfo("end2end", "test", "1", "cpu", "")
    slots = 1

    def __init__(self, rows) -> None:
        self._input = np.zeros((1, 3, 64, 64), np.float32)
        self._output = np.zeros((1, 300, 6), np.float32)
        self._output[0, : len(rows)] = rows

    def input_buffers(self, slot):
        return [self._input]

    def output_buffers(self, slot):
        return [self._output]

    def submit(self, slot):
        pass

    def wait(self, slot, timeout_s=None):
        pass

    def close(self):
        pass


def test_a_network_that_gives_one_box_an_object_is_not_suppressed():
    """YOLOv10's output: two boxes that overlap are two objects."""
    rows = [[8, 8, 40, 40, 0.9, 1], [10, 8, 42, 40, 0.8, 1], [0, 0, 8, 8, 0.1, 0]]
    description = ModelDescription("yolov10", 2, (64, 64), strides=())
    detector = Detector(OneBoxEngine(rows), description)
    found = detector.detect(np.zeros((128, 128, 3), np.uint8)).detections
    np.testing.assert_array_equal(found.boxes, [[16, 16, 80, 80], [20, 16, 84, 80]])
    np.testing.assert_allclose(found.scores, [0.9, 0.8])
    detector.settings = DetectionSettings(max_detections=1)
    assert len(detector.detect(np.zeros((64, 64, 3), np.uint8)).detections) == 1
