"""YOLOv8, YOLOv9, YOLO11 and YOLO12: distances from the middle of a cell to the sides of its box.

Each side's distance is ``reg_max`` logits whose softmax weighs 0, 1, 2, ... (distribution focal
loss), or with ``reg_max`` 1 a number as it is. Box = (cell + 0.5 -/+ distance) * stride, sides in
the order left, top, right, bottom; score = class, there is no objectness.

Source of the maths: ultralytics/ultralytics, ``nn/modules/head.py`` (``Detect``),
``nn/modules/block.py`` (``DFL``) and ``utils/tal.py`` (``make_anchors``, ``dist2bbox``). Cut at its
head convolutions (``cv2`` and ``cv3``) the network has two maps a level, or one map with the
channels box, classes. The usual export joins all levels as ``(1, 4 + classes, cells)``, with boxes
as centre and size in pixels and probabilities; joined before that it is
``(1, 4 * reg_max + classes, cells)``.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.heads.cells import (
    STRIDE,
    BoxDecoder,
    CellHead,
    Y,
    decoded_centred,
)
from dla_perception.detection.heads.forms import (
    Field,
    Form,
    Group,
    Network,
    Pyramid,
    boxes_and_classes,
    joined,
    pyramids,
)
from dla_perception.detection.letterbox import Placement
from dla_perception.engines.engine import TensorSpec

MODELS = "YOLOv8, YOLOv9, YOLO11 and YOLO12"
DEFAULTS = {
    "channel_order": "rgb",
    "scale": 1 / 255,
    "placement": Placement.CENTRE,
    "pad_value": 114,
}
"""What ultralytics/ultralytics does: ``data/augment.py``, ``LetterBox``."""

STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
"""Of the published networks: P5, P6, P2."""

_REG_MAX = (16, 1)
"""Of the published networks; YOLO26 has 1."""


def forms(network: Network) -> Iterator[Form]:
    """The ways to read a network's outputs as this family."""
    for found in joined(network, 1, STRIDES):
        if found.channels > 4:
            yield Form(
                "yolov8",
                "levels joined, transposed" if found.channels_last else "levels joined",
                {
                    "num_classes": found.channels - 4,
                    "strides": found.strides,
                    "boxes_decoded": True,
                    "scores_activated": network.known.get("scores_activated") is not False,
                    "channels_last": found.channels_last,
                },
                (
                    Group(
                        Field(0, 0, 4),
                        Field(0, 4, found.channels),
                        levels=tuple(range(len(found.strides))),
                    ),
                ),
                rank=1 if found.channels_last else 0,
                mirror=found.mirror,
            )
    yield from distance_forms(network, "yolov8")


def make(description: ModelDescription, outputs: Sequence[TensorSpec], form: Form) -> CellHead:
    """The decoder of a network whose outputs have this form."""
    if form.settles["boxes_decoded"]:
        return CellHead(description, outputs, form, decoded_centred)
    return CellHead(description, outputs, form, distances(form.settles["reg_max"]))


def distances(reg_max: int) -> BoxDecoder:
    """The maths from raw distances to boxes."""
    # one product gives the weighted sum of the bins and the sum that divides it
    sums = np.stack([np.arange(reg_max, dtype=np.float32), np.ones(reg_max, np.float32)])

    def decode(values: np.ndarray, geometry: np.ndarray) -> np.ndarray:
        if reg_max > 1:
            logits = values.reshape(4, reg_max, -1)
            weights = logits - logits.max(axis=1, keepdims=True)
            np.exp(weights, out=weights)
            weighted = sums @ weights
            values = weighted[:, 0] / weighted[:, 1]
        middles = geometry[: Y + 1] + 0.5
        corners = np.concatenate([middles - values[:2], middles + values[2:4]])
        return corners * geometry[STRIDE]

    return decode


def distance_forms(network: Network, family: str) -> Iterator[Form]:
    """The forms with raw distances, which one-to-many and one-to-one heads have alike."""
    stated = network.known.get("reg_max")
    for reg_max in dict.fromkeys((*_REG_MAX, stated or 16)):
        boxes = 4 * reg_max
        for pyramid in pyramids(network, 1, STRIDES):
            channels = {level[0] for level in pyramid.channels(network)}
            if len(channels) == 1 and max(channels) > boxes:
                groups = [
                    Group(
                        Field(output, 0, boxes),
                        Field(output, boxes, max(channels)),
                        levels=(level,),
                    )
                    for level, (output,) in enumerate(pyramid.levels)
                ]
                yield _maps(
                    network, family, "one map a level", pyramid, reg_max, max(channels), groups
                )
        for pyramid in pyramids(network, 2, STRIDES):
            yield from _two_maps(network, family, pyramid, reg_max)
        for found in joined(network, 1, STRIDES):
            if found.channels > boxes:
                yield Form(
                    family,
                    "levels joined before decoding"
                    + (", transposed" if found.channels_last else ""),
                    {
                        "num_classes": found.channels - boxes,
                        "strides": found.strides,
                        "boxes_decoded": False,
                        "scores_activated": network.known.get("scores_activated") is True,
                        "channels_last": found.channels_last,
                        "reg_max": reg_max,
                    },
                    (
                        Group(
                            Field(0, 0, boxes),
                            Field(0, boxes, found.channels),
                            levels=tuple(range(len(found.strides))),
                        ),
                    ),
                    rank=3 if found.channels_last else 2,
                    mirror=found.mirror,
                )


def _two_maps(network: Network, family: str, pyramid: Pyramid, reg_max: int) -> Iterator[Form]:
    """Boxes and classes each in a map of its own, in any order."""
    channels = pyramid.channels(network)
    boxes = 4 * reg_max
    sizes = sorted(channels[0])
    if boxes not in sizes or any(sorted(level) != sizes for level in channels):
        return
    sizes.remove(boxes)
    pairs = [
        (first, second) if counts[0] == boxes else (second, first)
        for (first, second), counts in zip(pyramid.levels, channels)
    ]
    for order in [pairs] if sizes[0] != boxes else boxes_and_classes(network, pairs):
        groups = [
            Group(Field(first, 0, boxes), Field(second, 0, sizes[0]), levels=(level,))
            for level, (first, second) in enumerate(order)
        ]
        yield _maps(network, family, "two maps a level", pyramid, reg_max, boxes + sizes[0], groups)


def _maps(
    network: Network,
    family: str,
    text: str,
    pyramid: Pyramid,
    reg_max: int,
    channels: int,
    groups: Sequence[Group],
) -> Form:
    return Form(
        family,
        text,
        {
            "num_classes": channels - 4 * reg_max,
            "strides": pyramid.strides,
            "boxes_decoded": False,
            "scores_activated": network.known.get("scores_activated") is True,
            "channels_last": pyramid.channels_last,
            "reg_max": reg_max,
        },
        tuple(groups),
        rank=1 if pyramid.channels_last else 0,
    )
