"""YOLOv5 and YOLOv7: anchors, and sigmoids that reach over the edges of the cell.

Box centre = (2 f(t) - 0.5 + cell) * stride, size = (2 f(t))^2 * anchor, with f the sigmoid;
score = objectness * class.

Source of the maths: ultralytics/yolov5, ``models/yolo.py``, ``Detect.forward``; WongKinYiu/yolov7
does the same. Cut at its head convolutions the network has one map a level with, for each anchor,
the channels box, objectness, classes; an export in training mode has the same as
``(1, anchors, height, width, 5 + classes)``. The usual export joins all levels, with boxes in
pixels and probabilities. Where the network does not decode its boxes the anchors are to be stated,
also the published ones by name: YOLOv5 and YOLOv7 differ in them, training may have computed
others, and nothing in the outputs tells. ``scores_activated: true`` with maps says that the network
has applied the sigmoid to everything.
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
    decoded_centred,
)
from dla_perception.detection.heads.forms import (
    Field,
    Form,
    Group,
    Network,
    anchored_maps,
    joined,
)
from dla_perception.detection.heads.head import sigmoid
from dla_perception.detection.letterbox import Placement
from dla_perception.engines.engine import TensorSpec

MODELS = "YOLOv5 and YOLOv7"
DEFAULTS = {
    "channel_order": "rgb",
    "scale": 1 / 255,
    "placement": Placement.CENTRE,
    "pad_value": 114,
}
"""What ultralytics/yolov5 does: ``utils/augmentations.py``, ``letterbox``."""

_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32))


def forms(network: Network) -> Iterator[Form]:
    """The ways to read a network's outputs as this family."""
    activated = network.known.get("scores_activated")
    for pyramid, num_classes, counts, groups in anchored_maps(network, _STRIDES):
        yield Form(
            "yolov5",
            "one map a level",
            {
                "num_classes": num_classes,
                "strides": pyramid.strides,
                "boxes_decoded": False,
                "scores_activated": activated is True,
                "channels_last": pyramid.channels_last,
            },
            groups,
            uses=frozenset({"anchors"}),
            needs=("anchors",),
            anchor_counts=counts,
            rank=1 if pyramid.channels_last else 0,
        )
    yield from _five_axes(network)
    decoded = network.known.get("boxes_decoded") is not False
    stated = network.known.get("anchors")
    anchors = len(stated[0]) if stated else 3
    for found in joined(network, anchors, _STRIDES):
        if found.channels > 5:
            levels = tuple(range(len(found.strides)))
            yield Form(
                "yolov5",
                "levels joined" if found.channels_last else "levels joined, transposed",
                {
                    "num_classes": found.channels - 5,
                    "strides": found.strides,
                    "boxes_decoded": decoded,
                    "scores_activated": decoded if activated is None else activated,
                    "channels_last": found.channels_last,
                },
                (
                    Group(
                        Field(0, 0, 4),
                        Field(0, 5, found.channels),
                        Field(0, 4, 5),
                        levels,
                        tuple(range(anchors)),
                    ),
                ),
                uses=frozenset({"anchors"}),
                needs=() if decoded else ("anchors",),
                anchor_counts=(anchors,) * len(levels),
                rank=0 if found.channels_last else 1,
                mirror=found.mirror,
            )


def make(description: ModelDescription, outputs: Sequence[TensorSpec], form: Form) -> CellHead:
    """The decoder of a network whose outputs have this form."""
    if form.settles["boxes_decoded"]:
        return CellHead(description, outputs, form, decoded_centred)
    return CellHead(description, outputs, form, _boxes(bool(form.settles["scores_activated"])))


def _boxes(activated: bool) -> BoxDecoder:
    def decode(values: np.ndarray, geometry: np.ndarray) -> np.ndarray:
        doubled = 2 * (values if activated else sigmoid(values))
        centres = (doubled[:2] - 0.5 + geometry[: Y + 1]) * geometry[STRIDE]
        return centred(centres, doubled[2:4] ** 2 * geometry[ANCHOR_WIDTH:LEVEL])

    return decode


def _five_axes(network: Network) -> Iterator[Form]:
    """One output ``(1, anchors, height, width, 5 + classes)`` a level."""
    shapes = [spec.shape for spec in network.outputs]
    if any(len(shape) != 5 for shape in shapes) or len({shape[4] for shape in shapes}) != 1:
        return
    width, height = network.input_size
    channels = shapes[0][4]
    for strides in network.stride_choices(_STRIDES):
        by_grid = {shape[2:4]: index for index, shape in enumerate(shapes)}
        grids = [(height // stride, width // stride) for stride in strides]
        exact = all(network.cells(stride) for stride in strides)
        if not exact or channels <= 5 or len(shapes) != len(grids) or set(grids) != set(by_grid):
            continue
        outputs = [by_grid[grid] for grid in grids]
        counts = tuple(shapes[output][1] for output in outputs)
        yield Form(
            "yolov5",
            "five axes a level",
            {
                "num_classes": channels - 5,
                "strides": strides,
                "boxes_decoded": False,
                "scores_activated": network.known.get("scores_activated") is True,
                "channels_last": True,
            },
            tuple(
                Group(
                    Field(output, 0, 4),
                    Field(output, 5, channels),
                    Field(output, 4, 5),
                    (level,),
                    tuple(range(counts[level])),
                )
                for level, output in enumerate(outputs)
            ),
            uses=frozenset({"anchors"}),
            needs=("anchors",),
            anchor_counts=counts,
        )
