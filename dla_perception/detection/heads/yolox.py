"""YOLOX: box = ((t + cell) * stride, exp(t) * stride), score = objectness * class.

Source of the maths: Megvii YOLOX, ``yolox/models/yolo_head.py``. Cut at its head convolutions the
network has three maps a level, or one map with the channels box, objectness, classes: logits.
Megvii's own export joins all levels, with probabilities but, unless it was told
``--decode_in_inference``, without decoding the boxes: then ``boxes_decoded: true`` is to be
stated, since nothing in the file tells.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.heads.cells import STRIDE, CellHead, Y, centred, decoded_centred
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

MODELS = "YOLOX"
DEFAULTS = {
    "channel_order": "bgr",
    "scale": 1.0,
    "placement": Placement.TOP_LEFT,
    "pad_value": 114,
}
"""What Megvii's own export and demo use: ``yolox/data/data_augment.py``, ``preproc``."""

_STRIDES = ((8, 16, 32), (8, 16, 32, 64))


def forms(network: Network) -> Iterator[Form]:
    """The ways to read a network's outputs as this family."""
    for pyramid in pyramids(network, 1, _STRIDES):
        channels = {level[0] for level in pyramid.channels(network)}
        if len(channels) == 1 and max(channels) > 5:
            groups = [
                Group(
                    Field(output, 0, 4),
                    Field(output, 5, max(channels)),
                    Field(output, 4, 5),
                    (level,),
                )
                for level, (output,) in enumerate(pyramid.levels)
            ]
            yield _maps(network, pyramid, "one map a level", max(channels) - 5, groups)
    for pyramid in pyramids(network, 3, _STRIDES):
        yield from _three_maps(network, pyramid)
    for found in joined(network, 1, _STRIDES):
        if found.channels > 5:
            yield Form(
                "yolox",
                "levels joined" if found.channels_last else "levels joined, transposed",
                {
                    "num_classes": found.channels - 5,
                    "strides": found.strides,
                    "boxes_decoded": network.known.get("boxes_decoded") is True,
                    "scores_activated": network.known.get("scores_activated") is not False,
                    "channels_last": found.channels_last,
                },
                (
                    Group(
                        Field(0, 0, 4),
                        Field(0, 5, found.channels),
                        Field(0, 4, 5),
                        tuple(range(len(found.strides))),
                    ),
                ),
                rank=0 if found.channels_last else 1,
                mirror=found.mirror,
            )


def make(description: ModelDescription, outputs: Sequence[TensorSpec], form: Form) -> CellHead:
    """The decoder of a network whose outputs have this form."""
    if form.settles["boxes_decoded"]:
        return CellHead(description, outputs, form, decoded_centred)
    return CellHead(description, outputs, form, _boxes)


def _boxes(values: np.ndarray, geometry: np.ndarray) -> np.ndarray:
    stride = geometry[STRIDE]
    return centred((values[:2] + geometry[: Y + 1]) * stride, np.exp(values[2:4]) * stride)


def _three_maps(network: Network, pyramid: Pyramid) -> Iterator[Form]:
    """Box, objectness and classes each in a map of its own, in any order."""
    channels = pyramid.channels(network)
    sizes = sorted(channels[0])
    if any(sorted(level) != sizes for level in channels) or not {1, 4} <= set(sizes):
        return
    sizes.remove(1)
    sizes.remove(4)
    num_classes = sizes[0]
    pairs, objectness = [], []
    for level, counts in zip(pyramid.levels, channels):
        # with one class its map and that of the objectness look alike, and their product is the
        # same either way
        single = level[counts.index(1)]
        boxes, classes = sorted(
            (index for index in level if index != single),
            key=lambda index: counts[level.index(index)] != 4,
        )
        pairs.append((boxes, classes))
        objectness.append(single)
    orders = [pairs] if num_classes != 4 else boxes_and_classes(network, pairs)
    for order in orders:
        groups = [
            Group(Field(boxes, 0, 4), Field(classes, 0, num_classes), Field(single, 0, 1), (level,))
            for level, ((boxes, classes), single) in enumerate(zip(order, objectness))
        ]
        yield _maps(network, pyramid, "three maps a level", num_classes, groups)


def _maps(
    network: Network, pyramid: Pyramid, text: str, num_classes: int, groups: Sequence[Group]
) -> Form:
    return Form(
        "yolox",
        text,
        {
            "num_classes": num_classes,
            "strides": pyramid.strides,
            "boxes_decoded": False,
            "scores_activated": network.known.get("scores_activated") is True,
            "channels_last": pyramid.channels_last,
        },
        tuple(groups),
        rank=1 if pyramid.channels_last else 0,
    )
