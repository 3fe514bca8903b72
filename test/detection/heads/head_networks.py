"""Small networks with real head decoders, written as ONNX after the reference implementations.

Each network takes ``images`` and has convolutions of random weights where a trained network has
its last ones. It is built with the decoder that the family's exporter puts into the graph, or cut
at those convolutions. Nothing of the package under test is used for the maths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ANCHORS = {
    "yolov5": (
        ((10, 13), (16, 30), (33, 23)),
        ((30, 61), (62, 45), (59, 119)),
        ((116, 90), (156, 198), (373, 326)),
    ),
    "darknet": (
        ((12, 16), (19, 36), (40, 28)),
        ((36, 75), (76, 55), (72, 146)),
        ((142, 110), (192, 243), (459, 401)),
    ),
}
SCALE_X_Y = (1.2, 1.1, 1.05)
NEW_COORDS_SCALE_X_Y = 2.0


@dataclass
class HeadNetwork:
    """A graph under construction."""

    input_size: tuple[int, int]
    num_classes: int
    strides: tuple[int, ...] = (8, 16, 32)
    seed: int = 0
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self.grids = [
            (self.input_size[1] // stride, self.input_size[0] // stride) for stride in self.strides
        ]

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def do(self, op: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: Any) -> Any:
        first = name or f"value_{len(self.nodes)}"
        names = [first] if outputs == 1 else [f"{first}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return first if outputs == 1 else names

    def convolution(self, stride: int, means: Any, name: str = "", spread: Any = 3.0) -> str:
        """A map of each cell's corner pixel: logits around ``means``, one a channel."""
        means = np.asarray(means, np.float32)
        weights = self._random.normal(0, 1, (len(means), 3, 1, 1))
        weights *= np.broadcast_to(spread, len(means)).reshape(-1, 1, 1, 1)
        # pixels are 0.5 on average
        bias = means - 0.5 * weights.sum(axis=(1, 2, 3))
        return self.do(
            "Conv",
            "images",
            self.constant(weights),
            self.constant(bias),
            name=name,
            strides=[stride, stride],
        )

    def reshape(self, value: str, *shape: int) -> str:
        return self.do("Reshape", value, self.constant(shape, np.int64))

    def split(self, value: str, sizes: list[int], axis: int) -> list[str]:
        return self.do(
            "Split", value, self.constant(sizes, np.int64), outputs=len(sizes), axis=axis
        )

    def arithmetic(self, op: str, value: str, other: Any) -> str:
        return self.do(op, value, self.constant(other))

    def grid(self, shape: tuple[int, int], *, offset: float = 0.0) -> np.ndarray:
        """``(height, width, 2)``: x and y of each cell."""
        y, x = np.mgrid[: shape[0], : shape[1]]
        return np.stack([x, y], -1).astype(np.float32) + np.float32(offset)

    def save(self, path: Path, outputs: list[str], metadata: dict[str, str] | None = None) -> Path:
        width, height = self.input_size
        graph = helper.make_graph(
            self.nodes,
            "head",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, height, width])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        for key, value in (metadata or {}).items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.save(model, str(path))
        return path


# ---- the head convolutions

# How sure the networks are: with one class about one cell in ten reaches 0.25.
_SURE = -2.0


def _class_means(network: HeadNetwork, sure: float = _SURE) -> np.ndarray:
    return np.full(network.num_classes, sure - np.log(network.num_classes), np.float32)


def anchored_maps(network: HeadNetwork, anchors: int = 3) -> list[str]:
    """YOLOv5, YOLOv7, Darknet: one map a level, box, objectness, classes for each anchor."""
    means = np.concatenate([np.zeros(4), [0.0], _class_means(network, 0.5)])
    # boxes of believable sizes, so that float32 has digits left for a thousandth of a pixel
    spread = np.concatenate([np.ones(4), np.full(len(means) - 4, 3.0)])
    return [
        network.convolution(
            stride,
            np.tile(means, anchors),
            f"/model.24/m.{level}/Conv_output_0",
            np.tile(spread, anchors),
        )
        for level, stride in enumerate(network.strides)
    ]


def yolox_maps(network: HeadNetwork) -> list[tuple[str, str, str]]:
    """For each level the maps of classes, box and objectness."""
    return [
        (
            network.convolution(
                stride, _class_means(network, 0.5), f"/head/cls_preds.{level}/Conv_output_0"
            ),
            network.convolution(
                stride, [0.5, 0.5, 1, 1], f"/head/reg_preds.{level}/Conv_output_0", 1.0
            ),
            network.convolution(stride, [0.0], f"/head/obj_preds.{level}/Conv_output_0"),
        )
        for level, stride in enumerate(network.strides)
    ]


def distance_maps(network: HeadNetwork, reg_max: int, prefix: str = "") -> list[tuple[str, str]]:
    """YOLOv8 and its kin: for each level the maps of boxes and classes."""
    means = np.full(4, 4.0) if reg_max == 1 else np.zeros(4 * reg_max)
    return [
        (
            network.convolution(
                stride,
                means,
                f"/model.22/{prefix}cv2.{level}/{prefix}cv2.{level}.2/Conv_output_0",
                1.0 if reg_max == 1 else 3.0,
            ),
            network.convolution(
                stride,
                _class_means(network),
                f"/model.22/{prefix}cv3.{level}/{prefix}cv3.{level}.2/Conv_output_0",
            ),
        )
        for level, stride in enumerate(network.strides)
    ]


# ---- the decoders in the graph


def yolov5_decode(network: HeadNetwork, maps: list[str], transposed: bool = False) -> list[str]:
    """ultralytics/yolov5, models/yolo.py, Detect.forward in export."""
    size = 5 + network.num_classes
    parts = []
    for level, (head, stride, (height, width)) in enumerate(
        zip(maps, network.strides, network.grids)
    ):
        anchors = np.array(ANCHORS["yolov5"][level], np.float32)
        head = network.reshape(head, 1, 3, size, height, width)
        head = network.do("Sigmoid", network.do("Transpose", head, perm=[0, 1, 3, 4, 2]))
        xy, wh, scores = network.split(head, [2, 2, size - 4], 4)
        xy = network.arithmetic("Mul", xy, 2.0)
        xy = network.arithmetic("Add", xy, network.grid((height, width), offset=-0.5)[None, None])
        xy = network.arithmetic("Mul", xy, float(stride))
        wh = network.arithmetic("Pow", network.arithmetic("Mul", wh, 2.0), 2.0)
        wh = network.arithmetic("Mul", wh, anchors.reshape(1, 3, 1, 1, 2))
        joined = network.do("Concat", xy, wh, scores, axis=4)
        parts.append(network.reshape(joined, 1, 3 * height * width, size))
    output = network.do("Concat", *parts, axis=1)
    return [network.do("Transpose", output, perm=[0, 2, 1])] if transposed else [output]


def yolov5_five_axes(network: HeadNetwork, maps: list[str]) -> list[str]:
    """The same in training mode: the raw maps with five axes."""
    outputs = []
    for head, (height, width) in zip(maps, network.grids):
        head = network.reshape(head, 1, 3, 5 + network.num_classes, height, width)
        outputs.append(network.do("Transpose", head, perm=[0, 1, 3, 4, 2]))
    return outputs


def yolox_decode(
    network: HeadNetwork,
    maps: list[tuple[str, str, str]],
    decode_in_inference: bool,
    transposed: bool = False,
) -> list[str]:
    """Megvii YOLOX, yolox/models/yolo_head.py, forward and decode_outputs."""
    parts = []
    for (classes, boxes, objectness), (height, width) in zip(maps, network.grids):
        scores = [network.do("Sigmoid", objectness), network.do("Sigmoid", classes)]
        level = network.do("Concat", boxes, *scores, axis=1)
        parts.append(network.reshape(level, 1, 5 + network.num_classes, height * width))
    joined = network.do("Transpose", network.do("Concat", *parts, axis=2), perm=[0, 2, 1])
    if decode_in_inference:
        grids = np.concatenate(
            [network.grid(shape).reshape(1, -1, 2) for shape in network.grids], 1
        )
        strides = np.concatenate(
            [
                np.full((1, height * width, 1), stride, np.float32)
                for stride, (height, width) in zip(network.strides, network.grids)
            ],
            1,
        )
        xy, wh, scores = network.split(joined, [2, 2, 1 + network.num_classes], 2)
        xy = network.arithmetic("Mul", network.arithmetic("Add", xy, grids), strides)
        wh = network.arithmetic("Mul", network.do("Exp", wh), strides)
        joined = network.do("Concat", xy, wh, scores, axis=2)
    return [network.do("Transpose", joined, perm=[0, 2, 1])] if transposed else [joined]


def joined_distances(network: HeadNetwork, maps: list[tuple[str, str]], reg_max: int) -> str:
    """Detect: all levels in one ``(1, 4 * reg_max + classes, cells)``, before decoding."""
    parts = []
    for (boxes, classes), (height, width) in zip(maps, network.grids):
        level = network.do("Concat", boxes, classes, axis=1)
        parts.append(network.reshape(level, 1, 4 * reg_max + network.num_classes, height * width))
    return network.do("Concat", *parts, axis=2)


def _distance_boxes(
    network: HeadNetwork, maps: list[tuple[str, str]], reg_max: int, corners: bool
) -> tuple[str, str]:
    """Decoded boxes ``(1, 4, cells)`` in pixels and probabilities ``(1, classes, cells)``.

    ultralytics, nn/modules/head.py, Detect._inference; nn/modules/block.py, DFL; utils/tal.py,
    make_anchors and dist2bbox.
    """
    cells = sum(height * width for height, width in network.grids)
    joined = joined_distances(network, maps, reg_max)
    boxes, classes = network.split(joined, [4 * reg_max, network.num_classes], 1)
    if reg_max > 1:
        boxes = network.reshape(boxes, 1, 4, reg_max, cells)
        boxes = network.do("Transpose", boxes, perm=[0, 2, 1, 3])
        boxes = network.do("Softmax", boxes, axis=1)
        bins = np.arange(reg_max, dtype=np.float32).reshape(1, reg_max, 1, 1)
        boxes = network.reshape(network.do("Conv", boxes, network.constant(bins)), 1, 4, cells)
    anchors = np.concatenate(
        [network.grid(shape, offset=0.5).reshape(-1, 2) for shape in network.grids]
    ).T[None]
    strides = np.concatenate(
        [
            np.full((1, 1, height * width), stride, np.float32)
            for stride, (height, width) in zip(network.strides, network.grids)
        ],
        2,
    )
    left_top, right_bottom = network.split(boxes, [2, 2], 1)
    first = network.do("Sub", network.constant(anchors), left_top)
    second = network.arithmetic("Add", right_bottom, anchors)
    if not corners:
        centre = network.arithmetic("Div", network.do("Add", first, second), 2.0)
        first, second = centre, network.do("Sub", second, first)
    boxes = network.arithmetic("Mul", network.do("Concat", first, second, axis=1), strides)
    return boxes, network.do("Sigmoid", classes)


def yolov8_decode(
    network: HeadNetwork,
    maps: list[tuple[str, str]],
    reg_max: int = 16,
    transposed: bool = False,
) -> list[str]:
    """The usual export: ``(1, 4 + classes, cells)``."""
    boxes, scores = _distance_boxes(network, maps, reg_max, corners=False)
    output = network.do("Concat", boxes, scores, axis=1)
    return [network.do("Transpose", output, perm=[0, 2, 1])] if transposed else [output]


def end2end_decode(
    network: HeadNetwork, maps: list[tuple[str, str]], reg_max: int, most: int = 300
) -> list[str]:
    """Detect.postprocess and get_topk_index: ``(1, most, 6)``."""
    boxes, scores = _distance_boxes(network, maps, reg_max, corners=True)
    boxes = network.do("Transpose", boxes, perm=[0, 2, 1])
    scores = network.do("Transpose", scores, perm=[0, 2, 1])
    count = network.constant([most], np.int64)
    best = network.do("ReduceMax", scores, axes=[2], keepdims=0)
    _, cells = network.do("TopK", best, count, outputs=2, axis=1)
    cells = network.do("Unsqueeze", cells, network.constant([2], np.int64))
    wide = network.do("Expand", cells, network.constant([1, most, network.num_classes], np.int64))
    chosen = network.do("GatherElements", scores, wide, axis=1)
    flat = network.reshape(chosen, 1, most * network.num_classes)
    scores, pairs = network.do("TopK", flat, count, outputs=2, axis=1)
    classes = network.constant([network.num_classes], np.int64)
    rows = network.do("Unsqueeze", network.do("Div", pairs, classes), _axis(network, 2))
    rows = network.do("GatherElements", cells, rows, axis=1)
    four = network.do("Expand", rows, network.constant([1, most, 4], np.int64))
    boxes = network.do("GatherElements", boxes, four, axis=1)
    class_ids = network.do("Cast", network.do("Mod", pairs, classes), to=TensorProto.FLOAT)
    columns = [network.do("Unsqueeze", value, _axis(network, 2)) for value in (scores, class_ids)]
    return [network.do("Concat", boxes, *columns, axis=2)]


def _axis(network: HeadNetwork, axis: int) -> str:
    return network.constant([axis], np.int64)


def darknet_decode(network: HeadNetwork, maps: list[str], new_coords: bool) -> list[str]:
    """Corners as fractions ``(1, boxes, 1, 4)`` and scores ``(1, boxes, classes)``.

    Tianxiaomo/pytorch-YOLOv4, tool/yolo_layer.py, yolo_forward_dynamic; with ``new_coords`` the
    box of AlexeyAB/darknet, src/yolo_layer.c, get_yolo_box, of maps that are already logistic.
    """
    size = 5 + network.num_classes
    all_boxes, all_scores = [], []
    for level, (head, (height, width)) in enumerate(zip(maps, network.grids)):
        scale = NEW_COORDS_SCALE_X_Y if new_coords else SCALE_X_Y[level]
        anchors = np.array(ANCHORS["darknet"][level], np.float32).reshape(1, 3, 2, 1, 1)
        head = network.reshape(head, 1, 3, size, height, width)
        xy, wh, objectness, classes = network.split(head, [2, 2, 1, network.num_classes], 2)
        if new_coords:
            wh = network.arithmetic("Mul", network.do("Mul", wh, wh), 4.0)
        else:
            xy, objectness, classes = (
                network.do("Sigmoid", value) for value in (xy, objectness, classes)
            )
            wh = network.do("Exp", wh)
        xy = network.arithmetic("Mul", xy, scale)
        xy = network.arithmetic("Sub", xy, 0.5 * (scale - 1))
        cells = network.grid((height, width)).transpose(2, 0, 1)[None, None]
        xy = network.arithmetic("Add", xy, cells)
        grid_size = np.array([width, height], np.float32).reshape(1, 1, 2, 1, 1)
        xy = network.arithmetic("Div", xy, grid_size)
        input_size = np.array(network.input_size, np.float32).reshape(1, 1, 2, 1, 1)
        wh = network.arithmetic("Mul", wh, anchors / input_size)
        first = network.do("Sub", xy, network.arithmetic("Mul", wh, 0.5))
        boxes = network.do("Concat", first, network.do("Add", first, wh), axis=2)
        boxes = network.do("Transpose", boxes, perm=[0, 1, 3, 4, 2])
        all_boxes.append(network.reshape(boxes, 1, 3 * height * width, 1, 4))
        scores = network.do("Mul", classes, objectness)
        scores = network.do("Transpose", scores, perm=[0, 1, 3, 4, 2])
        all_scores.append(network.reshape(scores, 1, 3 * height * width, network.num_classes))
    return [
        network.do("Concat", *all_boxes, axis=1, name="boxes"),
        network.do("Concat", *all_scores, axis=1, name="confs"),
    ]


def logistic(network: HeadNetwork, maps: list[str]) -> list[str]:
    """What Darknet's ``activation=logistic`` makes of the last convolutions."""
    return [network.do("Sigmoid", head) for head in maps]


def channels_last(network: HeadNetwork, maps: list[str]) -> list[str]:
    """Maps as TensorFlow has them: ``(1, height, width, channels)``."""
    return [network.do("Transpose", head, perm=[0, 2, 3, 1]) for head in maps]
