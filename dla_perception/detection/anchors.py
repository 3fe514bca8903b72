"""Anchor boxes that were published with networks, by name."""

from __future__ import annotations

from typing import Mapping, Tuple

Anchors = Tuple[Tuple[Tuple[float, float], ...], ...]
"""``(width, height)`` in pixels of the network's input, for each level, finest level first."""

PUBLISHED_ANCHORS: Mapping[str, Anchors] = {
    # ultralytics/yolov5, models/yolov5s.yaml; also YOLOv3 and YOLOv7-tiny
    "yolov5": (
        ((10, 13), (16, 30), (33, 23)),
        ((30, 61), (62, 45), (59, 119)),
        ((116, 90), (156, 198), (373, 326)),
    ),
    # ultralytics/yolov5, models/hub/yolov5s6.yaml
    "yolov5-p6": (
        ((19, 27), (44, 40), (38, 94)),
        ((96, 68), (86, 152), (180, 137)),
        ((140, 301), (303, 264), (238, 542)),
        ((436, 615), (739, 380), (925, 792)),
    ),
    # WongKinYiu/yolov7, cfg/deploy/yolov7.yaml
    "yolov7": (
        ((12, 16), (19, 36), (40, 28)),
        ((36, 75), (76, 55), (72, 146)),
        ((142, 110), (192, 243), (459, 401)),
    ),
}
"""What a network was trained with unless its training computed anchors of its own."""
