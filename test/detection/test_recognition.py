"""What a network is, from its outputs' shapes, its metadata and what its user states."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from head_networks import HeadNetwork, distance_maps, yolov8_decode

from dla_perception.detection.description import DescriptionError, ModelDescription
from dla_perception.detection.heads import FAMILIES, make_head
from dla_perception.detection.letterbox import Placement
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.engine import EngineInfo, TensorSpec
from dla_perception.engines.layouts import Layout
from dla_perception.engines.loading import open_engine

FLOAT = np.dtype(np.float32)
NAMES = {"description": "Ultralytics YOLOv8n model trained on coco.yaml", "task": "detect"}


@dataclass
class Shapes:
    """What recognition looks at of an engine."""

    path: str
    outputs: list
    input_size: tuple = (640, 640)
    metadata: dict = field(default_factory=dict)

    @property
    def info(self):
        return EngineInfo(self.path, "none", "", "cpu", "", metadata=self.metadata)

    @property
    def inputs(self):
        width, height = self.input_size
        return [TensorSpec("images", (1, 3, height, width), FLOAT)]


@pytest.fixture
def network(tmp_path):
    """Makes an engine of shapes, or of names with shapes, and what is beside its file."""

    def make(*outputs, input_size=(640, 640), metadata=None, labels=0, **stated):
        specs = []
        for index, output in enumerate(outputs):
            name, shape = output if isinstance(output[0], str) else (f"output{index}", output)
            specs.append(TensorSpec(name, tuple(shape), FLOAT))
        if stated:
            lines = [f"{key}: {value}\n" for key, value in stated.items()]
            (tmp_path / "net.yaml").write_text("".join(lines))
        if labels:
            text = "".join(f"class {index}\n" for index in range(labels))
            (tmp_path / "labels.txt").write_text(text)
        return Shapes(str(tmp_path / "net.onnx"), specs, input_size, metadata or {})

    return make


def describe(engine, tmp_path):
    labels = tmp_path / "labels.txt"
    return describe_model(engine, labels=str(labels) if labels.exists() else None)


def refusal(engine, tmp_path):
    with pytest.raises(DescriptionError) as error:
        describe(engine, tmp_path)
    message = str(error.value)
    assert "\n" not in message
    assert str(tmp_path) in message, "names the file"
    return message.replace(str(tmp_path) + "/", "")


def names(count):
    return str({index: f"class {index}" for index in range(count)})


def maps(*channels, sizes=((80, 80), (40, 40), (20, 20))):
    return [(1, count, *size) for size in sizes for count in channels]


# ---- recognised by shapes alone


@pytest.mark.parametrize(
    ("outputs", "input_size", "family", "num_classes", "settled"),
    [
        ([(1, 3549, 85)], (416, 416), "yolox", 80, {"boxes_decoded": False}),
        ([(1, 84, 8400)], (640, 640), "yolov8", 80, {"channels_last": False}),
        ([(1, 604, 2100)], (320, 320), "yolov8", 600, {"boxes_decoded": True}),
        ([(1, 5, 3024)], (576, 256), "yolov8", 1, {"strides": (8, 16, 32)}),
        ([(1, 84, 34000)], (640, 640), "yolov8", 80, {"strides": (4, 8, 16, 32)}),
        ([(1, 84, 34000)], (1280, 1280), "yolov8", 80, {"strides": (8, 16, 32, 64)}),
        ([(1, 25200, 85)], (640, 640), "yolov5", 80, {"boxes_decoded": True}),
        ([(1, 25200, 6)], (640, 640), "yolov5", 1, {"channels_last": True}),
        ([(1, 102000, 85)], (1280, 1280), "yolov5", 80, {"strides": (8, 16, 32, 64)}),
        (
            [(1, 22743, 1, 4), (1, 22743, 80)],
            (608, 608),
            "darknet",
            80,
            {"boxes_decoded": True},
        ),
        ([(1, 8400, 85)], (640, 640), "yolox", 80, {"strides": (8, 16, 32)}),
        (maps(4, 80, 1), (640, 640), "yolox", 80, {"scores_activated": False}),
    ],
)
def test_shapes_that_one_family_has(
    network, tmp_path, outputs, input_size, family, num_classes, settled
):
    engine = network(*outputs, input_size=input_size)
    description = describe(engine, tmp_path)
    assert (description.family, description.num_classes) == (family, num_classes)
    assert description.class_names is None
    assert {key: getattr(description, key) for key in settled} == settled
    make_head(description, engine.outputs)


@pytest.mark.parametrize(
    ("outputs", "labels", "family", "settled"),
    [
        ([(1, 300, 6)], 80, "yolov10", {"boxes_decoded": True}),
        ([(1, 6, 300)], 80, "yolov10", {"channels_last": False}),
        ([(1, 8400, 84)], 80, "yolov8", {"channels_last": True}),
        ([(1, 8400, 84)], 79, "yolox", {"channels_last": True}),
        ([(1, 84, 8400)], 20, "yolov8", {"boxes_decoded": False, "reg_max": 16}),
        ([(1, 144, 8400)], 80, "yolov8", {"boxes_decoded": False, "reg_max": 16}),
        ([(1, 144, 8400)], 140, "yolov8", {"boxes_decoded": True}),
        ([(1, 85, 25200)], 80, "yolov5", {"channels_last": False}),
        (maps(85), 80, "yolox", {}),
    ],
)
def test_the_number_of_class_names_decides(network, tmp_path, outputs, labels, family, settled):
    engine = network(*outputs, labels=labels, **({"family": family} if labels == 20 else {}))
    if outputs == [(1, 144, 8400)] and labels == 80:
        engine.metadata = {"description": "Ultralytics YOLO11n model"}
    description = describe(engine, tmp_path)
    assert (description.family, description.num_classes) == (family, labels)
    assert {key: getattr(description, key) for key in settled} == settled
    make_head(description, engine.outputs)


CONVOLUTIONS = [
    (f"/model.23/{{prefix}}{kind}.{level}/Conv_output_0", (1, channels, side, side))
    for level, side in enumerate((80, 40, 20))
    for kind, channels in (("cv2", 64), ("cv3", 80))
]


@pytest.mark.parametrize(("prefix", "family"), [("", "yolov8"), ("one2one_", "yolov10")])
def test_names_of_convolutions_tell_one_to_one_heads(network, tmp_path, prefix, family):
    outputs = [(name.format(prefix=prefix), shape) for name, shape in CONVOLUTIONS]
    assert describe(network(*outputs), tmp_path).family == family


@pytest.mark.parametrize(
    ("metadata", "family"),
    [
        ({"description": "Ultralytics YOLOv8n model trained on coco.yaml"}, "yolov8"),
        ({"description": "Ultralytics YOLO11s model "}, "yolov8"),
        ({"description": "Ultralytics YOLO12x model "}, "yolov8"),
        ({"description": "Ultralytics YOLOv9c model "}, "yolov8"),
        ({"description": "Ultralytics YOLOv10n model "}, "yolov10"),
        ({"description": "Ultralytics YOLO26n model "}, "yolov10"),
        ({"description": "Ultralytics YOLO26n model ", "end2end": "False"}, "yolov8"),
        ({"description": "Ultralytics my model ", "end2end": "True"}, "yolov10"),
    ],
)
def test_metadata_tells_one_to_one_heads(network, tmp_path, metadata, family):
    engine = network(*maps(144), metadata={**metadata, "names": names(80)})
    description = describe(engine, tmp_path)
    assert description.family == family
    assert description.class_names[79] == "class 79"
    make_head(description, engine.outputs)


def test_metadata_does_not_overrule_shapes(network, tmp_path):
    """A YOLO26 that was exported without its own choice of boxes needs suppression."""
    metadata = {"description": "Ultralytics YOLO26n model", "end2end": "True"}
    engine = network((1, 84, 8400), metadata=metadata)
    assert describe(engine, tmp_path).family == "yolov8"
    engine = network((1, 300, 6), labels=3, metadata={"end2end": "False", "args": "{'nms': True}"})
    assert describe(engine, tmp_path).family == "yolov10"


def test_stated_keys_tell_families_apart(network, tmp_path):
    """Only Darknet has scale_x_y."""
    anchors = "[[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 9], [9, 9]], [[9, 9], [9, 9], [9, 9]]]"
    engine = network(*maps(255), labels=80, anchors=anchors, scale_x_y=1.05)
    description = describe(engine, tmp_path)
    assert description.family == "darknet"
    assert description.anchors[0] == ((1, 2), (3, 4), (5, 6))
    assert description.scale_x_y == (1.05,)


@pytest.mark.parametrize(
    ("family", "convention"),
    [
        ("darknet", ("rgb", 1 / 255, Placement.STRETCH)),
        ("yolov5", ("rgb", 1 / 255, Placement.CENTRE)),
        ("yolox", ("bgr", 1.0, Placement.TOP_LEFT)),
        ("yolov8", ("rgb", 1 / 255, Placement.CENTRE)),
        ("yolov10", ("rgb", 1 / 255, Placement.CENTRE)),
    ],
)
def test_conventions_of_the_family_and_what_overrides_them(network, tmp_path, family, convention):
    anchors = {"anchors": "yolov5"} if family in ("darknet", "yolov5") else {}
    channels = {"yolox": 85, "yolov8": 144, "yolov10": 144}.get(family, 255)
    engine = network(*maps(channels), labels=80, family=family, **anchors)
    description = describe(engine, tmp_path)
    assert (description.channel_order, description.scale, description.placement) == (
        convention[0],
        pytest.approx(convention[1]),
        convention[2],
    )
    if family != "darknet":
        assert description.pad_value == 114
    stated = {"channel_order": "bgr", "scale": 2.0, "placement": "stretch", "pad_value": 7}
    engine = network(*maps(channels), labels=80, family=family, **anchors, **stated)
    description = describe(engine, tmp_path)
    assert (description.channel_order, description.scale) == ("bgr", 2.0)
    assert (description.placement, description.pad_value) == (Placement.STRETCH, 7)


# ---- ambiguous


def test_three_maps_of_255_channels_fit_two_families(network, tmp_path):
    message = refusal(network(*maps(255)), tmp_path)
    for part in ("yolov5 with 80 classes", "yolox with 250 classes", "yolov8 with 191 or 251"):
        assert part in message
    assert "state family and num_classes in net.yaml" in message
    message = refusal(network(*maps(255), labels=80), tmp_path)
    assert "can be darknet with 80 classes or yolov5 with 80 classes" in message
    assert "state family in net.yaml" in message


@pytest.mark.parametrize(
    ("outputs", "stated", "words"),
    [
        (maps(144), {}, "yolov8 with 80 classes or yolov10 with 80 classes; state family"),
        ([(1, 85, 8400)], {}, "yolox with 80 classes or a network for oriented boxes"),
    ],
)
def test_known_classes_do_not_always_decide(network, tmp_path, outputs, stated, words):
    message = refusal(network(*outputs, labels=80, **stated), tmp_path)
    assert words in message


def test_axes_of_equal_length_are_refused_and_mended(network, tmp_path):
    """At 64 x 64 there are as many cells as YOLOv8 has channels for 80 classes."""
    square = {"input_size": (64, 64), "labels": 80}
    message = refusal(network((1, 84, 84), **square), tmp_path)
    assert "yolov8 (levels joined) with 80 classes" in message
    assert "yolov8 (levels joined, transposed) with 80 classes" in message
    assert "state channels_last in net.yaml" in message
    for value in (True, False):
        stated = {"channels_last": str(value).lower()}
        engine = network((1, 84, 84), **square, **stated)
        description = describe(engine, tmp_path)
        assert (description.family, description.channels_last) == ("yolov8", value)
        make_head(description, engine.outputs)


def test_axes_of_equal_length_without_class_names(network, tmp_path):
    message = refusal(network((1, 84, 84), input_size=(64, 64)), tmp_path)
    assert "yolox with 79 classes" in message
    assert "yolov8 with 80 classes" in message


def test_boxes_and_classes_of_equal_channels_need_names(network, tmp_path):
    sides = (80, 40, 20)
    plain = [(f"{name}{side}", (1, 64, side, side)) for side in sides for name in ("a", "b")]
    message = refusal(network(*plain, labels=64, family="yolov8"), tmp_path)
    assert "which is which by names of the outputs that contain 'box' and 'cls'" in message
    named = [(f"{name}{side}", (1, 64, side, side)) for side in sides for name in ("cls", "box")]
    assert describe(network(*named, labels=64, family="yolov8"), tmp_path).num_classes == 64


def test_as_many_chosen_boxes_as_cells(network, tmp_path):
    """At 96 x 96 a network that chooses all its boxes looks like a YOLOX of one class."""
    engine = network((1, 189, 6), input_size=(96, 96), labels=1)
    assert "yolox with 1 class or yolov10" in refusal(engine, tmp_path)
    engine = network((1, 189, 6), input_size=(96, 96), labels=3)
    assert describe(engine, tmp_path).family == "yolov10"


# ---- refused


@pytest.mark.parametrize(
    ("outputs", "labels", "words"),
    [
        (
            [(1, 84, 8400)],
            77,
            "labels file labels.txt: 77 class names, but net.onnx tells 80 classes apart; "
            "give one name for each",
        ),
        (
            [(1, 84, 8400)],
            79,
            "or correct the class names: as exported, it is yolov8 (levels joined) with 80",
        ),
        (maps(255), 79, "79 class names, but net.onnx: outputs output0 [1, 255, 80, 80]"),
    ],
)
def test_wrong_number_of_class_names(network, tmp_path, outputs, labels, words):
    assert words in refusal(network(*outputs, labels=labels), tmp_path)


@pytest.mark.parametrize(
    ("outputs", "stated", "words"),
    [
        (
            [(1, 84, 8400)],
            {"num_classes": 3},
            "net.yaml: num_classes: 3, but net.onnx tells 80 classes apart; correct it",
        ),
        (
            [(1, 3549, 85)],
            {"family": "yolov8"},
            "do not fit the head family 'yolov8' that net.yaml states",
        ),
        (
            [(1, 84, 8400)],
            {"family": "yolo11"},
            "net.yaml: family: 'yolo11' is unknown; known families: darknet (Darknet's YOLOv3, "
            "YOLOv4 and YOLOv7), yolov5 (YOLOv5 and YOLOv7), yolox (YOLOX), yolov8 (YOLOv8, "
            "YOLOv9, YOLO11 and YOLO12), yolov10 (YOLOv10 and YOLO26)",
        ),
        (
            [(1, 84, 8400)],
            {"anchors": "yolov5"},
            "net.yaml: anchors: 3 levels of 3, 3, 3 pairs, but net.onnx: outputs output0 "
            "[1, 84, 8400] fit yolov8 (levels joined) with 80 classes, which has no anchors: "
            "remove the key",
        ),
        (
            [(1, 84, 8400)],
            {"strides": [8, 16, 64]},
            "net.yaml: strides: [8, 16, 64], but",
        ),
        (
            maps(144),
            {"family": "yolov8", "boxes_decoded": "true", "num_classes": 80},
            "net.yaml: boxes_decoded: true, but net.onnx: outputs output0 [1, 144, 80, 80], "
            "output1 [1, 144, 40, 40], output2 [1, 144, 20, 20] fit yolov8 (one map a level) with "
            "80 classes, for which boxes_decoded is false: correct it",
        ),
        (
            maps(255),
            {"family": "yolov5", "anchors": "yolov5-p6"},
            "net.yaml: anchors: 4 levels of 3, 3, 3, 3 pairs, but net.onnx: outputs output0 "
            "[1, 255, 80, 80], output1 [1, 255, 40, 40], output2 [1, 255, 20, 20] fit yolov5 (one "
            "map a level) with 80 classes, for which anchors is 3 levels of 3, 3, 3 pairs: correct "
            "it",
        ),
        (
            maps(255),
            {"family": "darknet", "num_classes": 80, "anchors": [[[1, 2], [3, 4]]] * 3},
            "3 levels of 2, 2, 2 pairs",
        ),
        (
            maps(255),
            {"family": "darknet", "anchors": "yolov5", "scale_x_y": [1.1, 1.2]},
            "net.yaml: scale_x_y: [1.1, 1.2], but",
        ),
        (
            maps(255),
            {"family": "yolov5", "anchors": "yolov5", "new_coords": "true"},
            "which has no new_coords: remove the key",
        ),
        (
            maps(255),
            {"family": "yolov5"},
            "are of yolov5 (one map a level) with 80 classes, whose boxes need anchors: add "
            "'anchors: yolov5' or 'anchors: yolov7' (the published ones) or",
        ),
        (
            maps(255),
            {"family": "darknet"},
            "whose boxes need anchors: add 'anchors: [[[width, height], ...], ...]', in pixels, "
            "for each level, finest first, to net.yaml",
        ),
        (
            [(1, 300, 6)],
            {},
            "are of yolov10 (chosen boxes), which does not say how many classes there are: give "
            "the class names in a labels file, or num_classes in net.yaml",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_remedy(network, tmp_path, outputs, stated, words):
    assert words in refusal(network(*outputs, **stated), tmp_path)


def test_another_input_size_is_refused(network, tmp_path):
    """Of a network of the same name and another size, say."""
    engine = network((1, 84, 8400), pad_value=1)
    (tmp_path / "net.yaml").write_text("input_size: [416, 416]\n")
    message = refusal(engine, tmp_path)
    assert "net.yaml: input_size: [416, 416], but the network's input is [640, 640]" in message


def test_names_and_stated_count_that_differ(network, tmp_path):
    engine = network((1, 84, 8400), labels=80, num_classes=3)
    message = refusal(engine, tmp_path)
    assert "labels file labels.txt: 80 class names, but net.yaml states num_classes: 3" in message


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([(1, 85, 22, 22)], "are of no head family that is known here (darknet, yolov5, yolox,"),
        ([(1, 100, 4), (1, 100), (1, 100)], "are of no head family"),
        ([(1, 8401, 85)], "are of no head family"),
        ([(1, 255, 80, 80)], "are of no head family"),
        ([(1, 1000)], "are of a network for classification"),
        ([(1, 116, 8400), (1, 32, 160, 160)], "are of a network for segmentation"),
        ([(1, 300, 38), (1, 32, 160, 160)], "are of a network for segmentation"),
        ([(1, 25200, 117), (1, 32, 160, 160)], "are of a network for segmentation"),
        ([(1, 300, 57)], "are of a network for pose estimation"),
        ([(1, 300, 7)], "are of a network for oriented boxes (OBB)"),
        (
            [(1, 25200, 85), (1, 3, 80, 80, 85), (1, 3, 40, 40, 85), (1, 3, 20, 20, 85)],
            "output1 [1, 3, 80, 80, 85], output2 [1, 3, 40, 40, 85], output3 [1, 3, 20, 20, 85] is "
            "more than yolov5 (levels joined) with 80 classes has; remove it",
        ),
        (
            [(1, 84, 8400), (1, 7)],
            "output1 [1, 7] is more than yolov8 (levels joined) with 80 classes has; remove it "
            "from the network's outputs",
        ),
        ([(4, 84, 8400)], "output output0 [4, 84, 8400]: a batch of 4; export"),
        ([], "outputs none are of no head family"),
    ],
)
def test_other_networks_are_refused_by_name(network, tmp_path, outputs, words):
    assert words in refusal(network(*outputs), tmp_path)


def test_a_pose_network_of_one_class(network, tmp_path):
    assert "pose estimation" in refusal(network((1, 56, 8400), labels=1), tmp_path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"task": "segment"}, "metadata 'task': segment: a network for segmentation"),
        ({"task": "pose"}, "metadata 'task': pose: a network for pose estimation"),
        ({"task": "obb"}, "metadata 'task': obb: a network for oriented boxes (OBB)"),
        ({"task": "classify"}, "metadata 'task': classify: a network for classification"),
        ({"task": "depth"}, "metadata 'task': depth: a network for depth"),
        (
            {"imgsz": "[384, 640]"},
            "metadata 'imgsz': [384, 640] (height, width), but the network's input is [640, 640]",
        ),
        ({"imgsz": "416"}, "metadata 'imgsz': [416, 416]"),
        (
            {"stride": "64"},
            "metadata 'stride': 64, but the coarsest level of outputs output0 [1, 84, 8400] has a "
            "stride of 32; export the network again",
        ),
        ({"names": names(77)}, "metadata 'names': 77 class names, but net.onnx tells"),
        ({"names": "person"}, "metadata 'names': not a list of class names"),
        ({"names": "{1: 'person'}"}, "metadata 'names': not a list of class names"),
        ({"names": "'person'"}, "metadata 'names': not a list of class names"),
        ({"names": "{}"}, "metadata 'names': not a list of class names"),
        ({"names": "['a', 'b', 'a']"}, "metadata 'names': 'a' is both name 1 and name 3"),
    ],
)
def test_metadata_that_contradicts_the_network(network, tmp_path, metadata, words):
    assert words in refusal(network((1, 84, 8400), metadata=metadata), tmp_path)


def test_metadata_that_agrees(network, tmp_path):
    metadata = {
        **NAMES,
        "imgsz": "[384, 640]",
        "stride": "32",
        "names": names(80),
        "batch": "1",
        "end2end": "False",
    }
    engine = network((1, 84, 5040), input_size=(640, 384), metadata=metadata)
    description = describe(engine, tmp_path)
    assert description.input_size == (640, 384)
    assert description.label(7) == "class 7"


def test_metadata_of_others_is_left_alone(network, tmp_path):
    metadata = {"imgsz": "large", "stride": "eight", "description": "a network"}
    assert describe(network((1, 84, 8400), metadata=metadata), tmp_path).num_classes == 80


def test_class_names_come_from_the_user_then_the_file_then_the_metadata(network, tmp_path):
    metadata = {"names": "['a', 'b', 'c']"}
    assert describe(network((1, 7, 8400), metadata=metadata), tmp_path).class_names == (
        "a",
        "b",
        "c",
    )
    engine = network((1, 7, 8400), metadata=metadata, class_names=["d", "e", "f"])
    assert describe(engine, tmp_path).class_names == ("d", "e", "f")
    engine = network((1, 7, 8400), metadata=metadata, class_names=["d", "e", "f"], labels=3)
    assert describe(engine, tmp_path).class_names == ("class 0", "class 1", "class 2")


def test_built_in_labels(network, tmp_path):
    description = describe_model(network((1, 84, 8400)), labels="coco")
    assert description.label(0) == "person"
    with pytest.raises(DescriptionError, match="labels 'coco': 80 class names, but"):
        describe_model(network((1, 9, 8400)), labels="coco")


def test_another_description_file_can_be_given(network, tmp_path):
    engine = network(*maps(144), labels=80)
    other = tmp_path / "other.yaml"
    other.write_text("family: yolov10\npad_value: 1\n")
    description = describe_model(engine, other, str(tmp_path / "labels.txt"))
    assert (description.family, description.pad_value) == ("yolov10", 1)
    with pytest.raises(DescriptionError, match=r"none\.yaml: cannot read it"):
        describe_model(engine, tmp_path / "none.yaml")


def test_outputs_of_integers_are_refused(network, tmp_path):
    engine = network((1, 84, 8400))
    engine.outputs = [TensorSpec("head", (1, 84, 8400), np.dtype(np.int8))]
    assert "net.onnx: output head: it is int8 and has no scale" in refusal(engine, tmp_path)
    engine.outputs = [TensorSpec("head", (1, 84, 8400), np.dtype(np.int64))]
    assert "net.onnx: output head: it is of type int64" in refusal(engine, tmp_path)


@pytest.mark.parametrize("shape", [(3, 640, 640), (1, 640, 640, 3), (2, 3, 640, 640)])
def test_other_inputs_are_refused(network, tmp_path, shape):
    engine = network((1, 84, 8400))
    inputs = [TensorSpec("images", shape, FLOAT)]
    engine = type("Engine", (), {"info": engine.info, "outputs": engine.outputs, "inputs": inputs})
    assert "expected [1, 3, height, width]" in refusal(engine, tmp_path)
    engine.inputs = inputs * 2
    assert "it has 2 inputs" in refusal(engine, tmp_path)


# ---- make_head on its own


def head_error(outputs, *arguments, **fields):
    specs = [TensorSpec(f"output{i}", shape, FLOAT) for i, shape in enumerate(outputs)]
    with pytest.raises(DescriptionError) as error:
        make_head(ModelDescription(*arguments, **fields), specs)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_head_is_made_only_of_outputs_that_fit():
    size = (640, 640)
    assert "'yolo9000' is unknown" in head_error([(1, 84, 8400)], "yolo9000", 80, size)
    message = head_error([(1, 84, 8400)], "yolov8", 79, size)
    assert "fit yolov8 with num_classes: 80, not 79" in message
    assert "do not fit the head family 'yolov5'" in head_error([(1, 84, 8400)], "yolov5", 80, size)
    assert "needs anchors" in head_error(maps(255), "yolov5", 80, size)
    message = head_error([(1, 84, 84)], "yolov8", 80, (64, 64))
    assert "state channels_last" in message


def test_every_family_says_what_it_decodes():
    for name, module in FAMILIES.items():
        assert module.MODELS
        assert set(module.DEFAULTS) == {"channel_order", "scale", "placement", "pad_value"}, name


# ---- real files


def test_metadata_of_a_real_file(tmp_path):
    """As Ultralytics writes it, through ONNX Runtime."""
    network = HeadNetwork((320, 192), 3)
    metadata = {
        "description": "Ultralytics YOLOv8n model trained on traffic.yaml",
        "author": "Ultralytics",
        "stride": "32",
        "task": "detect",
        "batch": "1",
        "imgsz": "[192, 320]",
        "names": "{0: 'car', 1: 'tram', 2: 'no'}",
    }
    outputs = yolov8_decode(network, distance_maps(network, 16))
    engine = open_engine(network.save(tmp_path / "net.onnx", outputs, metadata))
    description = describe_model(engine)
    engine.close()
    assert description.class_names == ("car", "tram", "no")
    assert (description.family, description.input_size) == ("yolov8", (320, 192))


def test_a_head_that_is_not_of_the_family_is_refused(assets):
    engine = open_engine(assets / "models/fastestdet_352.onnx")
    for labels in (None, "coco"):
        with pytest.raises(DescriptionError, match=r"outputs .* are of no head family") as error:
            describe_model(engine, labels=labels)
        assert "758 [1, 85, 22, 22]" in str(error.value)
    engine.close()


def test_layouts_do_not_matter_for_recognition(network, tmp_path):
    engine = network(*maps(144), labels=80, family="yolov8")
    engine.outputs = [
        TensorSpec(spec.name, spec.shape, np.dtype(np.int8), Layout.CHW32, 0.1)
        for spec in engine.outputs
    ]
    make_head(describe(engine, tmp_path), engine.outputs)
