"""detector_node in its own process, over real DDS, with a real network and real photos."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParametersAtomically
from ros_client import Client, image_message, values
from sensor_msgs.msg import Image
from std_srvs.srv import Trigger
from vision_msgs.msg import Detection2DArray, LabelInfo, VisionInfo

from dla_perception.detection.detector import Detector
from dla_perception.detection.images import read_image
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.loading import open_engine
from dla_perception.ros.detections import detections_from_message
from dla_perception.ros.qos import LATCHED_QOS

OK, WARN, ERROR, STALE = (
    DiagnosticStatus.OK,
    DiagnosticStatus.WARN,
    DiagnosticStatus.ERROR,
    DiagnosticStatus.STALE,
)


@pytest.fixture(scope="module")
def model(assets):
    return assets / "models/yolox_nano_416.onnx"


@pytest.fixture(scope="module")
def detector(model):
    engine = open_engine(model)
    yield Detector(engine, describe_model(engine, labels="coco"))
    engine.close()


@pytest.fixture(scope="module")
def dog(assets):
    return read_image(assets / "images/classic/dog.jpg")


@pytest.fixture
def node(start_node, model):
    parameters = {"model_path": model, "labels_path": "coco", "diagnostics.period_s": 0.2}
    return start_node("detector_node", **parameters)


def stamped(message: Image, number: int) -> Image:
    message.header.stamp.sec = 1_000_000 + number
    message.header.stamp.nanosec = 7 * number
    message.header.frame_id = f"cam_{number}_optical"
    return message


def variants(dog):
    """The same photo as each encoding, and other shapes of picture."""
    alpha = np.full((*dog.shape[:2], 1), 128, np.uint8)
    portrait = np.ascontiguousarray(np.rot90(dog))
    odd = np.ascontiguousarray(dog[:571, :763])
    return [
        (image_message(dog), dog),
        (image_message(dog[:, :, ::-1], "rgb8"), dog),
        (image_message(np.dstack([dog, alpha]), "bgra8"), dog),
        (image_message(dog, padding=52), dog),
        (image_message(dog[:, :, ::-1], "rgb8", padding=1), dog),
        (image_message(portrait), portrait),
        (image_message(odd), odd),
        (image_message(np.full_like(dog, 114)), np.full_like(dog, 114)),
    ]


def test_every_image_gets_one_array_with_its_header_and_the_boxes_of_detect(
    client: Client, node, detector, dog
):
    arrays = client.collect(Detection2DArray, "detections")
    publisher = client.image_publisher()
    class_ids = {detector.description.label(index): index for index in range(80)}
    for number, (message, pixels) in enumerate(variants(dog)):
        publisher.publish(stamped(message, number))
        client.until(lambda count=number + 1: len(arrays) >= count, f"no array for {number}")
        array = arrays[-1]
        assert array.header == message.header
        assert all(detection.header == message.header for detection in array.detections)
        expected = detector.detect(pixels).detections
        found = detections_from_message(array, class_ids)
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.1)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
        np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    assert len(arrays) == len(variants(dog))
    assert arrays[-1].detections == []  # nothing is to be seen on a grey picture
    assert len(arrays[0].detections) == 4


def test_malformed_images_are_dropped_counted_and_explained(client: Client, node, dog):
    arrays = client.collect(Detection2DArray, "detections")
    publisher = client.image_publisher()
    small = dog[:8, :8]
    bad = {
        "size": image_message(small),
        "step": image_message(small),
        "data_length": image_message(small),
        "encoding": image_message(small, "bayer_purple8"),
    }
    bad["size"].width = 0
    bad["step"].step = 3
    bad["data_length"].data = bad["data_length"].data[:-1]
    name = "/detector_node: input image_raw"
    for number, (reason, message) in enumerate(bad.items(), 1):
        publisher.publish(stamped(message, number))
        status = client.status(name, lambda item, n=number: _total_dropped(item) == n)
        assert values(status)[f"dropped_{reason}"] == "1"
        assert status.level == WARN
        assert "an image could not be used" in status.message
    publisher.publish(stamped(image_message(dog), 9))
    client.until(lambda: len(arrays) == 1)
    figures = values(client.status(name, lambda item: values(item)["frames_published"] == "1"))
    assert figures["frames_received"] == "5"
    assert node.popen.poll() is None
    text = node.output
    assert "Traceback" not in text
    assert "image encoding 'bayer_purple8'" in text or "dropped an image" in text


def _total_dropped(status) -> int:
    return int(values(status)["total_dropped_frames"])


def test_latched_topics_tell_late_subscribers_what_runs(client: Client, node, model):
    client.status("/detector_node: engine placement", lambda item: item.hardware_id == "cpu")
    labels = client.collect(LabelInfo, "label_info", LATCHED_QOS)
    vision = client.collect(VisionInfo, "vision_info", LATCHED_QOS)
    engine = client.collect(DiagnosticStatus, "engine_info", LATCHED_QOS)
    client.until(lambda: bool(labels and vision and engine))
    assert [(item.class_id, item.class_name) for item in labels[0].class_map][:2] == [
        (0, "person"),
        (1, "bicycle"),
    ]
    assert vision[0].method == "yolox"
    assert vision[0].database_location == "/label_info"
    figures = values(engine[0])
    assert figures["runtime"] == "onnxruntime"
    assert figures["device"] == "cpu"
    assert figures["model"] == str(model)
    assert len(figures["sha256"]) == 64


def test_diagnostics_from_silence_to_work(client: Client, node, dog):
    name = "/detector_node: input image_raw"
    status = client.status(name, lambda item: item.level == STALE)
    assert "nobody publishes /image_raw" in status.message
    latency = "/detector_node: inference latency"
    assert values(client.status(latency))["total_p50_ms"] == "n/a"
    publisher = client.image_publisher()
    for number in range(5):
        publisher.publish(stamped(image_message(dog), number))
        client.until(lambda n=number: values(client.status(name))["frames_published"] == str(n + 1))
    status = client.status(name, lambda item: item.level == OK)
    figures = values(status)
    assert (figures["encoding"], figures["image_size"]) == ("bgr8", "768x576")
    assert figures["last_frame_timestamp"] == "1000004.000000028"
    assert (figures["publishers"], figures["topic"]) == ("1", "/image_raw")
    times = values(client.status(latency))
    for stage in ("wait", "preprocess", "inference", "postprocess", "publish", "total"):
        assert 0 < float(times[f"{stage}_p50_ms"]) <= float(times[f"{stage}_max_ms"])
    client.call(Trigger, "/detector_node/reset_statistics", Trigger.Request())
    assert values(client.status(name))["frames_received"] == "0"
    assert client.status("/detector_node: engine placement").level == OK


def set_parameters(client: Client, **changes: float):
    request = SetParametersAtomically.Request()
    for name, value in changes.items():
        kind = ParameterType.PARAMETER_DOUBLE if isinstance(value, float) else None
        content = (
            ParameterValue(type=kind, double_value=value)
            if kind
            else ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=value)
        )
        request.parameters.append(Parameter(name=name, value=content))
    service = "/detector_node/set_parameters_atomically"
    return client.call(SetParametersAtomically, service, request).result


def test_thresholds_change_on_the_next_frame_and_bad_ones_change_nothing(client: Client, node, dog):
    arrays = client.collect(Detection2DArray, "detections")
    publisher = client.image_publisher()

    def count(number):
        publisher.publish(stamped(image_message(dog), number))
        client.until(lambda: len(arrays) == number)
        return len(arrays[-1].detections)

    assert count(1) == 4
    assert set_parameters(client, score_threshold=0.8).successful
    assert count(2) == 2
    refused = set_parameters(client, score_threshold=0.5, iou_threshold=3.0)
    assert not refused.successful
    assert count(3) == 2
    refused = set_parameters(client, model_path="other.onnx")
    assert not refused.successful
    assert "model_path: cannot change while the node is configured" in refused.reason


def change_state(client: Client, transition: int) -> bool:
    state(client)  # both sides know each other once this is answered
    request = ChangeState.Request(transition=Transition(id=transition))
    return client.call(ChangeState, "/detector_node/change_state", request).success


def state(client: Client) -> int:
    return client.call(GetState, "/detector_node/get_state", GetState.Request()).current_state.id


def test_lifecycle_by_hand_and_a_failure_that_can_be_mended(client: Client, start_node, model, dog):
    parameters = {"autostart": False, "labels_path": "coco", "diagnostics.period_s": 0.2}
    start_node("detector_node", **parameters)
    assert state(client) == State.PRIMARY_STATE_UNCONFIGURED
    assert not change_state(client, Transition.TRANSITION_CONFIGURE)
    assert state(client) == State.PRIMARY_STATE_UNCONFIGURED
    placement = client.status("/detector_node: engine placement")
    assert placement.level == ERROR
    assert placement.message.startswith("model_path: it is empty")
    assert set_parameters(client, model_path=str(model)).successful
    arrays = client.collect(Detection2DArray, "detections")
    for number in (1, 2):
        assert change_state(client, Transition.TRANSITION_CONFIGURE)
        assert change_state(client, Transition.TRANSITION_ACTIVATE)
        publisher = client.image_publisher()
        publisher.publish(stamped(image_message(dog), number))
        client.until(lambda n=number: len(arrays) == n)
        client.node.destroy_publisher(publisher)
        assert change_state(client, Transition.TRANSITION_DEACTIVATE)
        assert change_state(client, Transition.TRANSITION_CLEANUP)
    assert state(client) == State.PRIMARY_STATE_UNCONFIGURED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_while_images_come(client: Client, node, dog, number):
    arrays = client.collect(Detection2DArray, "detections")
    publisher = client.image_publisher()
    for index in range(3):
        publisher.publish(stamped(image_message(dog), index))
    client.until(lambda: len(arrays) > 0)
    publisher.publish(stamped(image_message(dog), 4))
    node.popen.send_signal(number)
    assert node.wait() == 0
    text = node.output
    assert "Traceback" not in text
    assert "rror" not in text


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("models/fastestdet_352.onnx", "are of no head family"),
        ("images/classic/dog.jpg", "dog.jpg: "),
        ("nothing.onnx", "nothing.onnx: there is no such file"),
    ],
)
def test_an_unusable_model_is_one_line_and_an_error_in_diagnostics(
    client: Client, start_node, assets, file, words
):
    node = start_node("detector_node", **{"model_path": assets / file, "diagnostics.period_s": 0.2})
    status = client.status("/detector_node: engine placement", lambda item: item.level == ERROR)
    assert words in status.message
    assert node.popen.poll() is None
    (line,) = [line for line in node.output.splitlines() if "ERROR" in line]
    assert words in line
