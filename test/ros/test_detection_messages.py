"""Detections to vision_msgs and back, field by field."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from std_msgs.msg import Header

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections
from dla_perception.ros.detections import (
    class_id_texts,
    detections_from_message,
    detections_to_message,
    label_info,
    vision_info,
)

DESCRIPTION = ModelDescription("yolox", 3, (64, 64), class_names=("cone", "ball", "box"))
HEADER = Header(frame_id="cam")
HEADER.stamp.sec = 5


def test_message_fields():
    detections = Detections([[10, 20, 40, 100.5]], [0.75], [2])
    message = detections_to_message(detections, HEADER, class_id_texts(DESCRIPTION, "name"))
    assert message.header == HEADER
    (detection,) = message.detections
    assert detection.header == HEADER
    centre = detection.bbox.center
    assert (centre.position.x, centre.position.y, centre.theta) == (25, 60.25, 0)
    assert (detection.bbox.size_x, detection.bbox.size_y) == (30, 80.5)
    (result,) = detection.results
    assert (result.hypothesis.class_id, result.hypothesis.score) == ("box", 0.75)
    assert detection.id == ""


def test_class_ids_as_names_or_indices():
    assert class_id_texts(DESCRIPTION, "name") == ("cone", "ball", "box")
    assert class_id_texts(DESCRIPTION, "index") == ("0", "1", "2")
    nameless = ModelDescription("yolox", 2, (64, 64))
    assert class_id_texts(nameless, "name") == ("0", "1")


def test_nothing_found_is_an_empty_array_with_the_header():
    message = detections_to_message(Detections.empty(), HEADER, ())
    assert message.header == HEADER
    assert message.detections == []


edge = st.floats(0, 4096, width=32)


@given(st.lists(st.tuples(edge, edge, edge, edge, st.floats(0, 1, width=32), st.integers(0, 2))))
def test_there_and_back(rows):
    boxes = [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d, _, _ in rows]
    detections = Detections(np.array(boxes), [row[4] for row in rows], [row[5] for row in rows])
    texts = class_id_texts(DESCRIPTION, "name")
    message = detections_to_message(detections, HEADER, texts)
    back = detections_from_message(message, {text: index for index, text in enumerate(texts)})
    # a float64 message holds float32 boxes exactly but for the last bit of a half
    np.testing.assert_allclose(back.boxes, detections.boxes, rtol=1e-6, atol=1e-3)
    np.testing.assert_array_equal(back.scores, detections.scores)
    np.testing.assert_array_equal(back.class_ids, detections.class_ids)


def test_label_and_vision_info():
    info = label_info(DESCRIPTION, HEADER, 0.3)
    assert [(entry.class_id, entry.class_name) for entry in info.class_map] == [
        (0, "cone"),
        (1, "ball"),
        (2, "box"),
    ]
    assert info.threshold == np.float32(0.3) or info.threshold == 0.3
    vision = vision_info(DESCRIPTION, HEADER, "/ns/label_info")
    assert (vision.method, vision.database_location) == ("yolox", "/ns/label_info")
