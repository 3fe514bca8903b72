"""Several cameras, compressed images and pictures with boxes, over real DDS."""

from __future__ import annotations

from array import array

import cv2
import numpy as np
import pytest
from ros_client import Client, image_message, values
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import Detection2DArray

from dla_perception.detection.images import read_image


@pytest.fixture(scope="module")
def dog(assets):
    return read_image(assets / "images/classic/dog.jpg")


@pytest.fixture
def start(start_node, assets):
    def start_with(**parameters):
        return start_node(
            "detector_node",
            model_path=assets / "models/yolox_nano_416.onnx",
            labels_path="coco",
            **{"diagnostics.period_s": 0.2},
            **parameters,
        )

    return start_with


def stamped(message, number):
    message.header.stamp.sec = number
    message.header.frame_id = f"frame_{number}"
    return message


def labels(array_message):
    return [item.results[0].hypothesis.class_id for item in array_message.detections]


def test_each_camera_is_answered_on_its_own_topic(client: Client, start, dog):
    start(cameras="[front, rear/left]")
    names = ("front", "rear/left")
    arrays = {name: client.collect(Detection2DArray, f"{name}/detections") for name in names}
    publishers = {}
    for name in names:
        publishers[name] = client.node.create_publisher(Image, f"{name}/image_raw", 1)
        client.status(
            f"/detector_node: input {name}",
            lambda status: values(status)["publishers_connected"] == "1",
        )
    blank = np.full_like(dog, 114)
    publishers["front"].publish(stamped(image_message(dog), 1))
    publishers["rear/left"].publish(stamped(image_message(blank), 2))
    client.until(lambda: all(arrays.values()))
    assert labels(arrays["front"][0]) == ["dog", "bicycle", "car", "truck"]
    assert arrays["front"][0].header.frame_id == "frame_1"
    assert labels(arrays["rear/left"][0]) == []
    assert arrays["rear/left"][0].header.frame_id == "frame_2"
    for name in names:
        status = client.status(
            f"/detector_node: input {name}",
            lambda item: values(item)["frames_published"] == "1",
        )
        assert values(status)["topic"] == f"/{name}/image_raw"


def test_no_camera_starves_while_another_floods(client: Client, start, dog):
    """Six cameras: two flood the engine, three send now and then, one is silent."""
    names = [f"cam{index}" for index in range(6)]
    start(cameras=f"[{', '.join(names)}]")
    small = np.ascontiguousarray(dog[::4, ::4])
    arrays = {name: client.collect(Detection2DArray, f"{name}/detections") for name in names}
    publishers = {
        name: client.node.create_publisher(Image, f"{name}/image_raw", 1) for name in names[:5]
    }
    for name in names[:5]:
        client.status(
            f"/detector_node: input {name}",
            lambda status: values(status)["publishers_connected"] == "1",
        )
    rounds = 12
    for number in range(1, rounds + 1):
        for repetition in range(10):  # many more than the engine can answer
            for name in names[:2]:
                publishers[name].publish(stamped(image_message(small), 100 * number + repetition))
        for name in names[2:5]:
            publishers[name].publish(stamped(image_message(small), number))
            wanted = number
            client.until(
                lambda name=name, wanted=wanted: (
                    bool(arrays[name]) and arrays[name][-1].header.stamp.sec == wanted
                ),
                f"{name} starves",
            )
    for name in names[2:5]:
        assert [item.header.stamp.sec for item in arrays[name]] == list(range(1, rounds + 1))
    # a flooding camera is answered too, with ever newer frames
    for name in names[:2]:
        stamps = [item.header.stamp.sec for item in arrays[name]]
        assert len(stamps) >= rounds // 2
        assert stamps == sorted(set(stamps))
    assert arrays["cam5"] == []
    silent = client.status("/detector_node: input cam5")
    assert "nobody publishes /cam5/image_raw" in silent.message


def test_compressed_images(client: Client, start, dog):
    start(image_transport="compressed")
    arrays = client.collect(Detection2DArray, "detections")
    publisher = client.image_publisher("image_raw/compressed", kind=CompressedImage)
    for number, suffix in enumerate((".jpg", ".png", ".webp"), 1):
        data = cv2.imencode(suffix, dog)[1].tobytes()
        message = CompressedImage(format=f"bgr8; {suffix[1:]} compressed bgr8")
        message.data = array("B", data)
        publisher.publish(stamped(message, number))
        client.until(lambda count=number: len(arrays) == count)
        assert arrays[-1].header == message.header
        assert set(labels(arrays[-1])) >= {"dog", "bicycle", "car"}
    message.data = message.data[:1000]
    publisher.publish(stamped(message, 4))
    status = client.status(
        "/detector_node: input image_raw",
        lambda item: values(item).get("dropped_compressed_data") == "1",
    )
    assert "not a whole JPEG, PNG or WebP" in status.message


def test_the_annotated_image_is_drawn_for_whoever_asks(client: Client, start, dog):
    start()
    arrays = client.collect(Detection2DArray, "detections")
    publisher = client.image_publisher()
    publisher.publish(stamped(image_message(dog), 1))
    client.until(lambda: len(arrays) == 1)
    pictures = client.collect(Image, "annotated_image")
    client.until(lambda: client.node.count_publishers("annotated_image") == 1)
    number = 1
    while not pictures:
        number += 1
        publisher.publish(stamped(image_message(dog[:, :, ::-1], "rgb8"), number))
        client.until(lambda count=number: len(arrays) == count)
        client.executor.spin_once(timeout_sec=0.2)
    picture = pictures[0]
    assert picture.header.frame_id == f"frame_{picture.header.stamp.sec}"
    assert picture.header.stamp.sec >= 2, "drawn before anybody listened"
    assert (picture.encoding, picture.width, picture.height) == ("bgr8", 768, 576)
    pixels = np.frombuffer(picture.data, np.uint8).reshape(576, 768, 3)
    changed = (pixels != dog).any(axis=2)
    assert changed[300, 130:136].any(), "the left edge of the dog's box is not drawn"
    assert not changed[450:500, 700:].any(), "colours are swapped or something else is drawn"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"cameras": "['front camera']"}, "cameras: 'front camera' is no relative ROS name"),
        ({"cameras": "[a, a]"}, "cameras: 'a' is listed twice"),
        ({"image_transport": "theora"}, "image_transport: 'theora' is not one of raw, compressed"),
        ({"score_threshold": 1.5}, "score_threshold"),
        ({"max_detections": "many"}, "max_detections"),
        ({"class_score_thresholds": "['person=0.4']"}, "'person=0.4' is not a class and a score"),
    ],
)
def test_parameters_that_cannot_be_end_it_with_one_line(start, parameters, words):
    node = start(**parameters)
    assert node.wait() == 2
    (line,) = node.output.splitlines()
    assert words in line
