"""Every family: a network with its real decoder and the same network cut at its convolutions."""

from __future__ import annotations

import warnings

import head_networks as networks
import numpy as np
import pytest
from head_networks import HeadNetwork

from dla_perception.detection.description import ModelDescription, write_description
from dla_perception.detection.detections import Detections
from dla_perception.detection.heads import make_head
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.onnxruntime_engine import OnnxRuntimeEngine

SIZES = [(320, 320), (416, 416), (640, 640), (672, 672), (512, 288)]
CLASSES = [1, 3, 80, 600]
THRESHOLD = 0.25


def run(path, pixels, num_classes, thresholds=None, **stated):
    """Detections of a network through the whole of recognition and decoding, and its head."""
    labels = path.with_suffix(".txt")
    labels.write_text("".join(f"class {index}\n" for index in range(num_classes)))
    if stated:
        lines = [f"{key}: {_yaml(value)}\n" for key, value in stated.items()]
        path.with_suffix(".yaml").write_text("".join(lines))
    engine = OnnxRuntimeEngine(path, slots=1, threads=1)
    try:
        description = describe_model(engine, labels=str(labels))
        head = make_head(description, engine.outputs)
        engine.input_buffers(0)[0][:] = pixels
        engine.submit(0)
        engine.wait(0)
        if thresholds is None:
            thresholds = np.full(num_classes, THRESHOLD, np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            decoded = head.decode(engine.output_buffers(0), thresholds)
    finally:
        engine.close()
    assert decoded.invalid == 0
    return decoded.detections, description, head


def _yaml(value):
    return str([list(map(list, level)) for level in value]) if isinstance(value, tuple) else value


def ordered(detections: Detections) -> Detections:
    """In an order that does not depend on how a network listed them."""
    keys = np.round(detections.boxes / 0.01), detections.class_ids
    return detections[np.lexsort([*keys[0].T, keys[1]])]


def assert_same(found: Detections, expected: Detections, at_least: int = 1) -> None:
    assert len(expected) >= at_least
    assert len(found) == len(expected)
    np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    np.testing.assert_allclose(found.boxes, expected.boxes, rtol=0, atol=1e-3)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-4)


def random_image(size, seed=0):
    return np.random.default_rng(seed).random((1, 3, size[1], size[0]), np.float32)


def build_darknet(network, new_coords):
    maps = networks.anchored_maps(network)
    if new_coords:
        maps = networks.logistic(network, maps)
        stated = {"scale_x_y": networks.NEW_COORDS_SCALE_X_Y, "new_coords": "true"}
    else:
        stated = {"scale_x_y": list(networks.SCALE_X_Y)}
    stated |= {"family": "darknet", "anchors": networks.ANCHORS["darknet"]}
    return networks.darknet_decode(network, maps, new_coords), maps, {}, stated


def build_yolov5(network):
    maps = networks.anchored_maps(network)
    stated = {"family": "yolov5", "anchors": "yolov5"}
    return networks.yolov5_decode(network, maps), maps, {}, stated


def build_yolox(network):
    maps = networks.yolox_maps(network)
    full = networks.yolox_decode(network, maps, decode_in_inference=True)
    return full, [name for level in maps for name in level], {"boxes_decoded": "true"}, {}


def build_yolov8(network):
    maps = networks.distance_maps(network, 16)
    cut = [name for level in maps for name in level]
    return networks.yolov8_decode(network, maps), cut, {}, {}


def build_end2end(network, reg_max):
    maps = networks.distance_maps(network, reg_max, "one2one_")
    cut = [name for level in maps for name in level]
    return networks.end2end_decode(network, maps, reg_max), cut, {}, {}


BUILDERS = {
    "darknet v4": (lambda network: build_darknet(network, new_coords=False), "darknet"),
    "darknet new_coords": (lambda network: build_darknet(network, new_coords=True), "darknet"),
    "yolov5": (build_yolov5, "yolov5"),
    "yolox": (build_yolox, "yolox"),
    "yolov8": (build_yolov8, "yolov8"),
    "yolov10": (lambda network: build_end2end(network, 16), "yolov10"),
    "yolo26": (lambda network: build_end2end(network, 1), "yolov10"),
}


@pytest.mark.parametrize("num_classes", CLASSES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", BUILDERS)
def test_full_output_and_head_convolutions_agree(tmp_path, name, size, num_classes):
    builder, family = BUILDERS[name]
    network = HeadNetwork(size, num_classes)
    full, cut, state_full, state_cut = builder(network)
    pixels = random_image(size)
    expected, described_full, head = run(
        network.save(tmp_path / "full.onnx", full), pixels, num_classes, **state_full
    )
    found, described_cut, cut_head = run(
        network.save(tmp_path / "cut.onnx", cut), pixels, num_classes, **state_cut
    )
    assert (described_full.family, described_cut.family) == (family, family)
    assert described_full.num_classes == described_cut.num_classes == num_classes
    assert head.needs_suppression is cut_head.needs_suppression is (family != "yolov10")
    if family == "yolov10":
        assert (np.diff(found.scores) <= 0).all()
        assert (np.diff(expected.scores) <= 0).all()
        found, expected = ordered(found), ordered(expected)
    assert_same(found, expected, at_least=10)


def test_recognised_description_is_written_and_read_back(tmp_path):
    network = HeadNetwork((320, 320), 3)
    _, cut, _, stated = build_darknet(network, new_coords=False)
    path = network.save(tmp_path / "net.onnx", cut)
    _, described, _ = run(path, random_image((320, 320)), 3, **stated)
    write_description(path.with_suffix(".yaml"), described)
    engine = OnnxRuntimeEngine(path, slots=1)
    assert describe_model(engine) == described
    engine.close()


# ---- the other forms of each family, at one size


def forms_of_yolov5(network):
    maps = networks.anchored_maps(network)
    anchors = {"anchors": networks.ANCHORS["yolov5"]}
    return {
        "expected": (networks.yolov5_decode(network, maps), {}),
        "transposed": (networks.yolov5_decode(network, maps, transposed=True), {}),
        "maps": (maps, {"family": "yolov5", **anchors}),
        "maps in another order": (maps[1:] + maps[:1], {"family": "yolov5", **anchors}),
        "maps, channels last": (
            networks.channels_last(network, maps),
            {"family": "yolov5", **anchors},
        ),
        "activated maps": (
            networks.logistic(network, maps),
            {"family": "yolov5", "scores_activated": "true", **anchors},
        ),
        "five axes": (networks.yolov5_five_axes(network, maps)[::-1], anchors),
    }


def forms_of_yolox(network):
    maps = networks.yolox_maps(network)
    joined = [network.do("Concat", boxes, obj, cls, axis=1) for cls, boxes, obj in maps]
    return {
        "expected": (networks.yolox_decode(network, maps, True), {"boxes_decoded": "true"}),
        "joined, not decoded": (networks.yolox_decode(network, maps, False), {}),
        "transposed": (
            networks.yolox_decode(network, maps, False, transposed=True),
            {"family": "yolox"},
        ),
        "three maps": ([name for level in maps for name in level], {}),
        "three maps, mixed": (list(maps[2][::-1]) + list(maps[0]) + list(maps[1][::-1]), {}),
        "one map": (joined, {"family": "yolox"}),
        "one map, channels last": (
            networks.channels_last(network, joined),
            {"family": "yolox"},
        ),
    }


def forms_of_yolov8(network):
    maps = networks.distance_maps(network, 16)
    joined = [network.do("Concat", boxes, classes, axis=1) for boxes, classes in maps]
    raw = networks.joined_distances(network, maps, 16)
    turned = network.do("Transpose", raw, perm=[0, 2, 1])
    return {
        "expected": (networks.yolov8_decode(network, maps), {}),
        "transposed": (
            networks.yolov8_decode(network, maps, transposed=True),
            {"family": "yolov8"},
        ),
        "two maps": ([name for level in maps for name in level], {}),
        "boxes, then classes": ([*[m[0] for m in maps], *[m[1] for m in maps][::-1]], {}),
        "one map": (joined[::-1], {"family": "yolov8"}),
        "one map, channels last": (
            networks.channels_last(network, joined),
            {"family": "yolov8"},
        ),
        "joined before decoding": ([raw], {"family": "yolov8"}),
        "joined before decoding, transposed": ([turned], {"family": "yolov8"}),
    }


def forms_of_yolov10(network):
    maps = networks.distance_maps(network, 1, "one2one_")
    joined = [network.do("Concat", boxes, classes, axis=1) for boxes, classes in maps]
    full = networks.end2end_decode(network, maps, 1)
    raw = networks.joined_distances(network, maps, 1)
    return {
        "expected": (full, {}),
        "transposed": ([network.do("Transpose", full[0], perm=[0, 2, 1])], {}),
        "one map": (joined, {"family": "yolov10"}),
        "joined before decoding": ([raw], {"family": "yolov10"}),
    }


FORMS = {
    "yolov5": forms_of_yolov5,
    "yolox": forms_of_yolox,
    "yolov8": forms_of_yolov8,
    "yolov10": forms_of_yolov10,
}


@pytest.mark.parametrize("num_classes", [1, 4, 64])
@pytest.mark.parametrize("family", FORMS)
def test_every_form_gives_the_same(tmp_path, family, num_classes):
    """1, 4 and 64 classes: as many as objectness, box and distances have channels."""
    network = HeadNetwork((192, 96), num_classes, seed=num_classes)
    forms = FORMS[family](network)
    pixels = random_image((192, 96))
    results = {}
    for index, (name, (outputs, stated)) in enumerate(forms.items()):
        path = network.save(tmp_path / f"{index}.onnx", outputs)
        found, description, _ = run(path, pixels, num_classes, **stated)
        assert description.family == family, name
        results[name] = found
    expected = results.pop("expected")
    for found in results.values():
        if family == "yolov10":
            found, expected = ordered(found), ordered(expected)
        assert_same(found, expected, at_least=5)


@pytest.mark.parametrize("strides", [(8, 16, 32, 64), (4, 8, 16, 32)])
def test_four_levels(tmp_path, strides):
    network = HeadNetwork((256, 192), 3, strides)
    maps = networks.distance_maps(network, 16)
    pixels = random_image((256, 192))
    full = network.save(tmp_path / "full.onnx", networks.yolov8_decode(network, maps))
    cut = network.save(tmp_path / "cut.onnx", [name for level in maps for name in level])
    expected, described, _ = run(full, pixels, 3)
    found, described_cut, _ = run(cut, pixels, 3)
    assert described.strides == described_cut.strides == strides
    assert_same(found, expected, at_least=20)


def test_stated_strides_allow_other_levels(tmp_path):
    network = HeadNetwork((256, 192), 3, (16,))
    maps = networks.yolox_maps(network)
    outputs = networks.yolox_decode(network, maps, decode_in_inference=True)
    path = network.save(tmp_path / "full.onnx", outputs)
    pixels = random_image((256, 192))
    stated = {"family": "yolox", "strides": [16]}
    expected, _, _ = run(path, pixels, 3, boxes_decoded="true", **stated)
    cut = network.save(tmp_path / "cut.onnx", list(maps[0]))
    found, description, _ = run(cut, pixels, 3, **stated)
    assert description.strides == (16,)
    assert_same(found, expected, at_least=5)


def test_a_new_coords_network_cut_before_its_sigmoids(tmp_path):
    network = HeadNetwork((160, 96), 3)
    maps = networks.anchored_maps(network)
    activated = networks.logistic(network, maps)
    stated = {
        "family": "darknet",
        "anchors": networks.ANCHORS["darknet"],
        "scale_x_y": 2.0,
        "new_coords": "true",
    }
    pixels = random_image((160, 96))
    expected, _, _ = run(network.save(tmp_path / "a.onnx", activated), pixels, 3, **stated)
    path = network.save(tmp_path / "b.onnx", maps)
    found, _, _ = run(path, pixels, 3, scores_activated="false", **stated)
    assert_same(found, expected, at_least=20)


def test_the_best_boxes_are_chosen_among_more_than_300(tmp_path):
    """A network may choose 300 boxes at most: with a low threshold the choice shows."""
    network = HeadNetwork((320, 320), 5)
    maps = networks.distance_maps(network, 1, "one2one_")
    pixels = random_image((320, 320))
    thresholds = np.full(5, 0.01, np.float32)
    full = network.save(tmp_path / "full.onnx", networks.end2end_decode(network, maps, 1))
    expected, _, _ = run(full, pixels, 5, thresholds)
    cut = network.save(tmp_path / "cut.onnx", [name for level in maps for name in level])
    found, _, _ = run(cut, pixels, 5, thresholds)
    assert len(expected) == 300
    assert len(np.unique(np.round(expected.boxes, 3), axis=0)) < 300, "several classes of one cell"
    assert_same(ordered(found), ordered(expected))


# ---- real networks


@pytest.mark.parametrize("name", ["yolo-fastest-1.1", "yolo-fastest-1.1-xl"])
def test_yolo_fastest_as_opencv_decodes_it(assets, name):
    """Anchors and masks as in the .cfg beside; OpenCV gives centre and size as fractions."""
    recorded = np.load(assets / "darknet" / f"{name}.dog.opencv.npz")
    text = (assets / "darknet" / f"{name}.cfg").read_text()
    assert text.count("anchors = 12, 18,  37, 49,  52,132, 115, 73, 119,199, 242,238") == 2
    anchors = (
        ((12, 18), (37, 49), (52, 132)),
        ((115, 73), (119, 199), (242, 238)),
    )
    description = ModelDescription(
        "darknet", 80, (320, 320), strides=(16, 32), anchors=anchors, scale_x_y=(1.0,)
    )
    arrays = [recorded["logits_conv_120"], recorded["logits_conv_129"]]
    specs = [TensorSpec(str(index), array.shape, array.dtype) for index, array in enumerate(arrays)]
    # OpenCV zeroes class scores below 0.2
    decoded = make_head(description, specs).decode(arrays, np.full(80, 0.2001, np.float32))
    expected = []
    for rows, side in ((recorded["cvdecoded_yolo_130"], 20), (recorded["cvdecoded_yolo_121"], 10)):
        # its rows go cell by cell, ours anchor by anchor
        rows = rows.reshape(side * side, 3, 85).transpose(1, 0, 2).reshape(-1, 85)
        expected.append(rows[rows[:, 5:].max(axis=1) > 0.2001])
    rows = np.concatenate(expected)
    assert len(rows) >= 10
    centres, sizes = rows[:, :2] * 320, rows[:, 2:4] * 320
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
    expected = Detections(boxes, rows[:, 5:].max(axis=1), rows[:, 5:].argmax(axis=1))
    assert_same(decoded.detections, expected)
