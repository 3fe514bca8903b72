"""Detections to ``vision_msgs`` and back."""

from __future__ import annotations

from typing import Mapping

import numpy as np
from std_msgs.msg import Header
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    LabelInfo,
    ObjectHypothesisWithPose,
    VisionClass,
    VisionInfo,
)

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections


def class_id_texts(description: ModelDescription, class_id_format: str) -> tuple[str, ...]:
    """What ``hypothesis.class_id`` says for each class: its ``name`` or its ``index``."""
    if class_id_format == "name":
        return tuple(description.label(index) for index in range(description.num_classes))
    return tuple(str(index) for index in range(description.num_classes))


def detections_to_message(
    detections: Detections, header: Header, class_ids: tuple[str, ...]
) -> Detection2DArray:
    """An array message in pixels of the image that ``header`` is of.

    Args:
        detections: boxes in pixels of the source image.
        header: the image's header; it becomes that of the array and of each detection.
        class_ids: the text for each class, from :func:`class_id_texts`.
    """
    message = Detection2DArray(header=header)
    boxes = detections.boxes.astype(np.float64)
    centres = ((boxes[:, :2] + boxes[:, 2:]) / 2).tolist()
    sizes = (boxes[:, 2:] - boxes[:, :2]).tolist()
    rows = zip(centres, sizes, detections.scores.tolist(), detections.class_ids.tolist())
    for (x, y), (width, height), score, class_id in rows:
        detection = Detection2D(header=header)
        detection.bbox.center.position.x = x
        detection.bbox.center.position.y = y
        detection.bbox.size_x = width
        detection.bbox.size_y = height
        result = ObjectHypothesisWithPose()
        result.hypothesis.class_id = class_ids[class_id]
        result.hypothesis.score = score
        detection.results.append(result)
        message.detections.append(detection)
    return message


def detections_from_message(message: Detection2DArray, class_ids: Mapping[str, int]) -> Detections:
    """The best hypothesis of each detection.

    Args:
        message: an array message; detections without a hypothesis are left out.
        class_ids: the number of each ``hypothesis.class_id`` text.
    """
    boxes, scores, numbers = [], [], []
    for detection in message.detections:
        if not detection.results:
            continue
        best = max(detection.results, key=lambda result: result.hypothesis.score)
        centre, box = detection.bbox.center.position, detection.bbox
        half_width, half_height = box.size_x / 2, box.size_y / 2
        boxes.append(
            (
                centre.x - half_width,
                centre.y - half_height,
                centre.x + half_width,
                centre.y + half_height,
            )
        )
        scores.append(best.hypothesis.score)
        numbers.append(class_ids[best.hypothesis.class_id])
    return Detections(np.array(boxes), np.array(scores), np.array(numbers))


def label_info(description: ModelDescription, header: Header, score_threshold: float) -> LabelInfo:
    """The classes of a network, for whoever reads its detections."""
    classes = [
        VisionClass(class_id=index, class_name=description.label(index))
        for index in range(description.num_classes)
    ]
    return LabelInfo(header=header, class_map=classes, threshold=score_threshold)


def vision_info(description: ModelDescription, header: Header, database: str) -> VisionInfo:
    """How the detections are made and where their class names are found.

    Args:
        description: of the network.
        header: of the message.
        database: the full name of the topic or parameter that holds the class names.
    """
    return VisionInfo(header=header, method=description.family, database_location=database)
