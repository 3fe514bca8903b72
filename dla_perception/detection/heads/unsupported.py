"""Networks that look like one of the families but do not find upright boxes.

Sources of the shapes: ultralytics/ultralytics, ``nn/modules/head.py`` (``OBB``, ``Pose``,
``Segment``, ``Classify``).
"""

from __future__ import annotations

from typing import Iterator

from dla_perception.detection.heads.forms import Form, Network, joined
from dla_perception.detection.heads.yolov8 import STRIDES

TASKS = {
    "segment": "segmentation",
    "pose": "pose estimation",
    "obb": "oriented boxes (OBB)",
    "classify": "classification",
}
"""Ultralytics' names of the tasks other than ``detect``."""

_POSE_CHANNELS = 3 * 17
"""x, y and visibility of COCO's 17 joints."""


def forms(network: Network) -> Iterator[Form]:
    """Oriented boxes, which cannot be told from a transposed YOLOX where the classes are known."""
    num_classes = network.known.get("num_classes")
    for found in joined(network, 1, STRIDES):
        if num_classes is None or found.channels_last or found.channels != 5 + num_classes:
            continue
        yield Form(
            f"a network for {TASKS['obb']}",
            "box, classes, angle",
            {"num_classes": num_classes, "strides": found.strides},
            rank=1,
        )


def other_task(network: Network) -> str | None:
    """What a network that is of no head family is for, as far as its outputs show."""
    shapes = [spec.shape for spec in network.outputs]
    width, height = network.input_size
    if len(shapes) == 1 and len(shapes[0]) == 2:
        return TASKS["classify"]
    # prototypes of masks at a quarter of the input's size
    if len(shapes) > 1 and any(
        len(shape) == 4 and shape[1] >= 16 and shape[2:] == (height // 4, width // 4)
        for shape in shapes
    ):
        return TASKS["segment"]
    num_classes = network.known.get("num_classes")
    for found in joined(network, 1, STRIDES):
        if num_classes is not None and found.channels == 4 + num_classes + _POSE_CHANNELS:
            return TASKS["pose"]
    # boxes that the network has chosen: x1 y1 x2 y2 score class and more
    if len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][1] == 300:
        return {7: TASKS["obb"], 6 + _POSE_CHANNELS: TASKS["pose"]}.get(shapes[0][2])
    return None
