"""Darknet's [yolo] layers: v3, v3-tiny, v4, v4-tiny, and with ``new_coords`` v4-csp and v7.

With ``s`` the level's ``scale_x_y`` and sigmoids written as f:

- box centre = (s f(t) - (s - 1) / 2 + cell) * stride, size = exp(t) * anchor;
- with ``new_coords`` the last convolution has applied the sigmoid to everything, and the box is
  (s p - (s - 1) / 2 + cell) * stride, size = (2 p)^2 * anchor;
- score = objectness * class.

Source of the maths: AlexeyAB/darknet, ``src/yolo_layer.c``, ``get_yolo_box`` and
``forward_yolo_layer``. A level is one map with, for each of its anchors, the channels box,
objectness, classes. Boxes and scores that are computed in the network are read in the form that
Tianxiaomo/pytorch-YOLOv4 gives them (``tool/yolo_layer.py``): ``(1, boxes, 1, 4)`` corners as
fractions of the input and ``(1, boxes, classes)`` scores.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.heads.cells import (
    ANCHOR_WIDTH,
    LEVEL,
    STRIDE,
    BoxDecoder,
    CellHead,
    Y,
    centred,
)
from dla_perception.detection.heads.forms import Field, Form, Group, Network, anchored_maps
from dla_perception.detection.heads.head import sigmoid
from dla_perception.detection.letterbox import Placement
from dla_perception.engines.engine import TensorSpec

MODELS = "Darknet's YOLOv3, YOLOv4 and YOLOv7"
DEFAULTS = {
    "channel_order": "rgb",
    "scale": 1 / 255,
    "placement": Placement.STRETCH,
    "pad_value": 128,
}
"""What Darknet does without ``letter_box=1``; it pads with 0.5: ``src/image.c``."""

_STRIDES = ((8, 16, 32), (16, 32), (8, 16, 32, 64))


def forms(network: Network) -> Iterator[Form]:
    """The ways to read a network's outputs as this family."""
    new_coords = network.known.get("new_coords") is True
    for pyramid, num_classes, counts, groups in anchored_maps(network, _STRIDES):
        yield Form(
            "darknet",
            "one map a level",
            {
                "num_classes": num_classes,
                "strides": pyramid.strides,
                "boxes_decoded": False,
                # only where the last convolution has the sigmoid can a cut before it leave it out
                "scores_activated": new_coords
                and network.known.get("scores_activated") is not False,
                "channels_last": pyramid.channels_last,
            },
            groups,
            uses=frozenset({"anchors", "scale_x_y", "new_coords"}),
            needs=("anchors",),
            anchor_counts=counts,
            rank=1 if pyramid.channels_last else 0,
        )
    yield from _corners_and_scores(network)


def make(description: ModelDescription, outputs: Sequence[TensorSpec], form: Form) -> CellHead:
    """The decoder of a network whose outputs have this form."""
    if form.settles["boxes_decoded"]:
        return CellHead(description, outputs, form, _fractions(description))
    scales = np.array(description.scale_x_y or (1.0,), np.float32)
    if len(scales) == 1:
        scales = scales.repeat(len(form.settles["strides"]))
    if not description.new_coords:
        return CellHead(description, outputs, form, _exponential(scales))
    return CellHead(
        description, outputs, form, _squared(scales, bool(form.settles["scores_activated"]))
    )


def _exponential(scales: np.ndarray) -> BoxDecoder:
    def decode(values: np.ndarray, geometry: np.ndarray) -> np.ndarray:
        sizes = np.exp(values[2:4]) * geometry[ANCHOR_WIDTH:LEVEL]
        return centred(_centres(sigmoid(values[:2]), geometry, scales), sizes)

    return decode


def _squared(scales: np.ndarray, activated: bool) -> BoxDecoder:
    def decode(values: np.ndarray, geometry: np.ndarray) -> np.ndarray:
        parts = values if activated else sigmoid(values)
        sizes = (2 * parts[2:4]) ** 2 * geometry[ANCHOR_WIDTH:LEVEL]
        return centred(_centres(parts[:2], geometry, scales), sizes)

    return decode


def _centres(parts: np.ndarray, geometry: np.ndarray, scales: np.ndarray) -> np.ndarray:
    scale = scales[geometry[LEVEL].astype(np.intp)]
    return (scale * parts - (scale - 1) / 2 + geometry[: Y + 1]) * geometry[STRIDE]


def _fractions(description: ModelDescription) -> BoxDecoder:
    size = np.array([*description.input_size, *description.input_size], np.float32)[:, None]
    return lambda values, geometry: values * size


def _corners_and_scores(network: Network) -> Iterator[Form]:
    if sorted(len(spec.shape) for spec in network.outputs) != [3, 4]:
        return
    boxes = 0 if len(network.outputs[0].shape) == 4 else 1
    _, count, one, four = network.outputs[boxes].shape
    _, rows, num_classes = network.outputs[1 - boxes].shape
    for strides in network.stride_choices(_STRIDES):
        levels = [network.cells(stride) for stride in strides]
        if all(levels) and (count, one, four) == (rows, 1, 4) and rows == 3 * sum(levels):
            yield Form(
                "darknet",
                "corners and scores",
                {
                    "num_classes": num_classes,
                    "strides": strides,
                    "boxes_decoded": True,
                    "scores_activated": True,
                    "channels_last": True,
                },
                (
                    Group(
                        Field(boxes, 0, 4),
                        Field(1 - boxes, 0, num_classes),
                        levels=tuple(range(len(levels))),
                        anchors=(0, 1, 2),
                    ),
                ),
            )
