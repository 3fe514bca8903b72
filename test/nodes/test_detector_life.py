"""What a node has to live through: other people's QoS, odd stamps, clocks, and many restarts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.qos import QoSProfile, ReliabilityPolicy
from ros_client import Client, image_message, values
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

OK, WARN, STALE = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.STALE
MODEL = Path(__file__).resolve().parents[2] / "dla_perception/demo/model/demo_yolo.onnx"
INPUT = "/detector_node: input image_raw"
PIXELS = np.random.default_rng(5).integers(0, 256, (240, 320, 3), np.uint8)


@pytest.fixture
def start(start_node):
    def start_with(**parameters):
        defaults = {"model_path": MODEL, "diagnostics.period_s": 0.2}
        return start_node("detector_node", **{**defaults, **parameters})

    return start_with


def stamped(seconds: int, nanoseconds: int = 0) -> Image:
    message = image_message(PIXELS)
    message.header.stamp.sec, message.header.stamp.nanosec = seconds, nanoseconds
    return message


@pytest.mark.parametrize("node_side", ["best_effort", "reliable"])
@pytest.mark.parametrize("camera_side", ["best_effort", "reliable"])
def test_every_pairing_of_reliabilities_delivers_or_says_why_not(
    client: Client, start, node_side, camera_side
):
    start(image_reliability=node_side)
    arrays = client.collect(Detection2DArray, "detections")
    reliability = ReliabilityPolicy[camera_side.upper()]
    publisher = client.node.create_publisher(
        Image, "image_raw", QoSProfile(depth=1, reliability=reliability)
    )
    if (camera_side, node_side) == ("best_effort", "reliable"):
        status = client.status(INPUT, lambda item: "cannot be heard" in item.message)
        assert status.level == STALE
        assert "its reliability does not fit" in status.message
        assert "set image_reliability to best_effort" in status.message
        return
    client.until(lambda: publisher.get_subscription_count() == 1)
    client.status(INPUT, lambda item: values(item)["publishers_connected"] == "1")
    for number in (1, 2, 3):
        publisher.publish(stamped(number))
        client.until(lambda count=number: len(arrays) == count)
    assert [item.header.stamp.sec for item in arrays] == [1, 2, 3]


@pytest.mark.parametrize("stamp", [(0, 0), (1, 999_999_999), (2**31 - 1, 5)])
def test_stamps_pass_through_untouched(client: Client, start, stamp):
    start()
    arrays = client.collect(Detection2DArray, "detections")
    client.image_publisher().publish(stamped(*stamp))
    client.until(lambda: len(arrays) == 1)
    found = arrays[0].header.stamp
    assert (found.sec, found.nanosec) == stamp
    if stamp == (0, 0):
        status = client.status(INPUT, lambda item: item.level == WARN)
        assert "the stamp of the images is zero" in status.message
    else:  # of another clock than the node's: no age, and no complaint
        status = client.status(INPUT, lambda item: item.level == OK)
        assert values(status)["image_age_ms"] == "n/a"


def test_a_looping_bag_is_answered_again(client: Client, start):
    start()
    arrays = client.collect(Detection2DArray, "detections")
    publisher = client.image_publisher()
    stamps = [100, 101, 102] * 3
    for count, seconds in enumerate(stamps, 1):
        publisher.publish(stamped(seconds))
        client.until(lambda count=count: len(arrays) == count)
    assert [item.header.stamp.sec for item in arrays] == stamps
    status = client.status(INPUT, lambda item: values(item)["frames_published"] == "9")
    assert status.level == OK


def test_a_simulated_clock_that_stands_still_stops_nothing(client: Client, start):
    start(use_sim_time=True)
    arrays = client.collect(Detection2DArray, "detections")
    client.image_publisher().publish(stamped(7))
    client.until(lambda: len(arrays) == 1)
    status = client.status(INPUT, lambda item: values(item)["frames_published"] == "1")
    assert float(values(status)["image_age_ms"].replace("n/a", "0")) >= 0
    client.status(INPUT, lambda item: item.level == STALE)  # the steady clock goes on


def change_state(client: Client, transition: int) -> None:
    client.call(GetState, "/detector_node/get_state", GetState.Request())
    request = ChangeState.Request(transition=Transition(id=transition))
    assert client.call(ChangeState, "/detector_node/change_state", request).success


def resources(pid: int) -> tuple[int, int]:
    """Threads and open files of a process."""
    root = Path(f"/proc/{pid}")
    return len(list((root / "task").iterdir())), len(list((root / "fd").iterdir()))


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def test_twenty_rounds_through_the_lifecycle_leak_nothing(client: Client, start):
    node = start(autostart=False)
    arrays = client.collect(Detection2DArray, "detections")
    seen, memory = [], []
    for number in range(1, 21):
        change_state(client, Transition.TRANSITION_CONFIGURE)
        change_state(client, Transition.TRANSITION_ACTIVATE)
        publisher = client.image_publisher()
        publisher.publish(stamped(number))
        client.until(lambda count=number: len(arrays) == count)
        client.node.destroy_publisher(publisher)
        change_state(client, Transition.TRANSITION_DEACTIVATE)
        change_state(client, Transition.TRANSITION_CLEANUP)
        seen.append(resources(node.popen.pid))
        memory.append(resident_mb(node.popen.pid))
    assert len(set(seen[4:])) == 1, f"threads and files after each round: {seen}"
    assert memory[-1] - memory[4] < 8, f"MB after each round: {memory}"
