"""Description files and labels files: what is read, and what is refused in one line."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla_perception.detection.anchors import PUBLISHED_ANCHORS
from dla_perception.detection.description import (
    DescriptionError,
    ModelDescription,
    description_path,
    read_description,
    read_labels,
    write_description,
)
from dla_perception.detection.letterbox import Placement


def refusal(action, *arguments):
    with pytest.raises(DescriptionError) as error:
        action(*arguments)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_file_lies_beside_the_model():
    assert description_path("models/net.v2.onnx").as_posix() == "models/net.v2.yaml"


def test_every_key(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text(
        """
family: darknet
num_classes: 3
class_names: [person, 7, "no"]
input_size: [416, 256]
channel_order: bgr
scale: 0.5
mean: [1, 2.5, -3]
std: [1, 2, 3]
placement: top_left
pad_value: 0
interpolation: area
strides: [16, 32]
anchors: [[[10, 14], [23, 27]], [[81, 82.5], [135, 169]]]
scale_x_y: [1.05, 2]
new_coords: true
reg_max: 16
boxes_decoded: false
scores_activated: true
channels_last: false
metrics: {AP: 0.3, note: measured}
"""
    )
    assert read_description(path) == {
        "family": "darknet",
        "num_classes": 3,
        "class_names": ("person", "7", "no"),
        "input_size": (416, 256),
        "channel_order": "bgr",
        "scale": 0.5,
        "mean": (1.0, 2.5, -3.0),
        "std": (1.0, 2.0, 3.0),
        "placement": Placement.TOP_LEFT,
        "pad_value": 0,
        "interpolation": "area",
        "strides": (16, 32),
        "anchors": (((10.0, 14.0), (23.0, 27.0)), ((81.0, 82.5), (135.0, 169.0))),
        "scale_x_y": (1.05, 2.0),
        "new_coords": True,
        "reg_max": 16,
        "boxes_decoded": False,
        "scores_activated": True,
        "channels_last": False,
        "metrics": {"AP": 0.3, "note": "measured"},
    }


def test_shorthands(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text("anchors: yolov7\nscale_x_y: 1.2\n")
    stated = read_description(path)
    assert stated == {"anchors": PUBLISHED_ANCHORS["yolov7"], "scale_x_y": (1.2,)}
    assert stated["anchors"][2][0] == (142, 110)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("famly: yolox", "unknown key 'famly'"),
        ("7: yolox", "unknown key '7'"),
        ("family: 7", "family: 7 cannot be"),
        ("family:", "family: None cannot be"),
        ("num_classes: 0", "1 to 65535"),
        ("num_classes: true", "num_classes: True cannot be"),
        ("num_classes: 80.0", "num_classes: 80.0 cannot be"),
        ("class_names: person", "class_names: 'person' cannot be; expected a list"),
        ("class_names: []", "class_names: [] cannot be"),
        ("class_names: [person, no]", "quote names such as 'no'"),
        ("class_names: [person, dog, person]", "'person' is both name 1 and name 3"),
        ("class_names: [person, '']", "name 2 is blank"),
        ("class_names: [person, ' person']", "'person' is both name 1 and name 2"),
        ("input_size: 416", "[width, height]"),
        ("input_size: [416, 0]", "1 to 8192"),
        ("input_size: [416, 416, 3]", "[width, height]"),
        ("channel_order: RGB", "rgb or bgr"),
        ("scale: 0", "a positive number"),
        ("scale: .inf", "a positive number"),
        ("scale: 1/255", "scale: '1/255' cannot be"),
        ("scale: 1" + "0" * 400, "a positive number"),
        ("mean: [1, 2]", "three numbers"),
        ("mean: [1, 2, .nan]", "three numbers"),
        ("std: [1, 0, 1]", "three positive numbers"),
        ("placement: center", "centre, top_left or stretch"),
        ("placement: [centre]", "centre, top_left or stretch"),
        ("pad_value: 256", "0 to 255"),
        ("interpolation: bilinear", "linear, nearest, area or cubic"),
        ("strides: [8, 16, 2048]", "finest first"),
        ("strides: [32, 16, 8]", "finest first"),
        ("strides: [8, 8]", "finest first"),
        ("strides: []", "finest first"),
        ("anchors: [10, 13]", "[width, height] pairs"),
        ("anchors: [[10, 13, 16, 30]]", "[width, height] pairs"),
        ("anchors: [[[10, 13, 16]]]", "[width, height] pairs"),
        ("anchors: [[]]", "[width, height] pairs"),
        ("anchors: [[[10, 0]]]", "[width, height] pairs"),
        ("anchors: yolov4", "or one of yolov5, yolov5-p6, yolov7"),
        ("scale_x_y: 0.5", "1 to 4"),
        ("scale_x_y: []", "1 to 4"),
        ("scale_x_y: [1.2, big]", "1 to 4"),
        ("new_coords: 1", "true or false"),
        ("reg_max: 0", "1 to 64"),
        ("boxes_decoded: maybe", "true or false"),
        ("metrics: 0.3", "a mapping"),
        ("family: yolox\nfamily: yolov8", "family: the key is there twice"),
    ],
)
def test_wrong_keys_are_refused_by_name(tmp_path, line, expected):
    path = tmp_path / "net.yaml"
    path.write_text(line)
    message = refusal(read_description, path)
    assert message.startswith(f"{path}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected 'key: value' lines"),
        (b"- family", "expected 'key: value' lines"),
        (b"family: [", "not a YAML text"),
        (b"\xff\xfe\x00", "not a YAML text"),
        (b"family: !!python/object:os.system x", "not a YAML text"),
        (b"num_classes: 2026-13-45", "not a YAML text"),
        (b"[" * 20000, "not a YAML text"),
        (b"{a: 1}: 2", "not a YAML text"),
        (b"family: yolox\n---\nfamily: yolov8", "not a YAML text"),
    ],
)
def test_what_is_no_description_is_refused(tmp_path, content, expected):
    path = tmp_path / "net.yaml"
    path.write_bytes(content)
    message = refusal(read_description, path)
    assert message.startswith(f"{path}: ")
    assert expected in message


def test_missing_files_are_refused(tmp_path):
    message = refusal(read_description, tmp_path / "none.yaml")
    assert message == f"{tmp_path / 'none.yaml'}: cannot read it: No such file or directory"
    assert "cannot read it: Is a directory" in refusal(read_labels, tmp_path)
    nowhere = tmp_path / "no" / "net.yaml"
    description = ModelDescription("yolox", 80, (416, 416))
    message = refusal(write_description, nowhere, description)
    assert message == f"{nowhere}: cannot write it: No such file or directory"


def test_a_byte_order_mark_and_crlf_do_not_matter(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_bytes(b"\xef\xbb\xbffamily: yolox\r\npad_value: 0\r\n")
    assert read_description(path) == {"family": "yolox", "pad_value": 0}


names = st.text(string.ascii_letters + "äß中 '\":#-0123456789", min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    class_names=st.lists(names.map(str.strip).filter(bool), min_size=1, max_size=5, unique=True),
    placement=st.sampled_from(Placement),
    numbers=st.tuples(*[st.floats(0.001, 1000)] * 3),
    anchors=st.none() | st.just(PUBLISHED_ANCHORS["yolov5"]),
    flags=st.tuples(*[st.none() | st.booleans()] * 3),
)
def test_what_is_written_is_read_back(
    tmp_path_factory, class_names, placement, numbers, anchors, flags
):
    description = ModelDescription(
        "yolov5",
        len(class_names),
        (640, 384),
        tuple(class_names),
        placement=placement,
        mean=numbers,
        scale=numbers[0],
        anchors=anchors,
        boxes_decoded=flags[0],
        scores_activated=flags[1],
        new_coords=flags[2],
        metrics={"AP": numbers[1]},
    )
    path = tmp_path_factory.mktemp("written") / "net.yaml"
    write_description(path, description)
    assert ModelDescription(**read_description(path)) == description


def test_defaults_are_written_too(tmp_path):
    """What is left out would be read as the default of the family."""
    path = tmp_path / "net.yaml"
    write_description(path, ModelDescription("yolox", 1, (416, 416)))
    stated = read_description(path)
    assert stated["channel_order"] == "rgb"
    assert stated["placement"] is Placement.CENTRE
    assert "anchors" not in stated
    assert "class_names" not in stated


@pytest.mark.parametrize(
    "content",
    [
        "person\ntraffic light\nbär\n",
        "person\r\ntraffic light\r\nbär",
        "person\rtraffic light\rbär\r",
        "\ufeffperson\r\ntraffic light \r\n\tbär\r\n\r\n  \r\n",
    ],
)
def test_labels_of_every_kind_of_line_end(tmp_path, content):
    path = tmp_path / "labels.txt"
    path.write_bytes(content.encode())
    assert read_labels(path) == ("person", "traffic light", "bär")


def test_only_line_ends_separate_labels(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_bytes("a\u2028b\x0bc\x85d\ne".encode())
    assert read_labels(path) == ("a\u2028b\x0bc\x85d", "e")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it is empty"),
        (b"\r\n \r\n", "it is empty"),
        (b"person\n\ndog\n", "name 2 is blank; remove the blank line"),
        (b"\nperson", "name 1 is blank"),
        (b"person\ndog\ncat\ndog\n", "'dog' is both name 2 and name 4"),
        ("bär".encode("latin-1"), "not UTF-8 text"),
        ("person".encode("utf-16"), "not UTF-8 text"),
    ],
)
def test_wrong_labels_are_refused(tmp_path, content, expected):
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    message = refusal(read_labels, path)
    assert message.startswith(f"labels file {path}: ")
    assert expected in message


def test_a_class_without_a_name_is_called_by_its_index():
    assert ModelDescription("yolox", 2, (416, 416)).label(1) == "1"
    assert ModelDescription("yolox", 2, (416, 416), ("cat", "dog")).label(1) == "dog"
