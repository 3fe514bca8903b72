"""The environment that tools/env makes: interfaces, image transport, pins, tools/run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
import rclpy
import rclpy.topic_endpoint_info
import vision_msgs.msg
from ament_index_python.packages import get_package_share_directory
from started_process import StartedProcess

ROOT = Path(__file__).resolve().parent.parent

# Of vision_msgs 4.1.1. Nodes talk to each other only when these are equal on both sides.
TYPE_HASHES = {
    "BoundingBox2D": "008eacbb0cf8f26e83795547bed013eec3675485ef386ec056d80eaaf1c1ce2f",
    "Detection2D": "0d12b69df5c593b3455b7346fac8205437a7d4bcb09b9e0e0b2dde787ded38ea",
    "Detection2DArray": "214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968",
    "LabelInfo": "3d37df4015cdf660cc851c51897f2acd957e1ca6205ba0a99aebffb9406b0783",
    "ObjectHypothesis": "51da43cec11c01957a64d1e05a24acd18aae7745ec30b74348ad5f6d634f7f90",
    "ObjectHypothesisWithPose": "41c12344c0396c48b81df12467c192d99b2a0eb1463c5c37194e4223251c80bc",
    "Point2D": "eab0e83f44ab4de92ceaf76dd7d0e7638f2bdd1d16ffbe16c7a136c48e407247",
    "Pose2D": "b0b5d1d7b4c20dd4fcde3ed1d4b289a919290572007d67a97043814db25d3648",
    "VisionClass": "1e4a11f0fed50b5623cb8ff26ca0e37952a48a9c074d16f804b44e9164c2037a",
    "VisionInfo": "95d3116a17484ad91c9a2686e1d54890bbfc3ff6c6a2de137738c4950d45d284",
}

has_type_hashes = pytest.mark.skipif(
    not hasattr(rclpy.topic_endpoint_info, "TypeHash"),
    reason="this ROS 2 is older than Iron and has no type hashes",
)


@pytest.fixture
def node(ros_domain_id: int) -> Iterator[Any]:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=ros_domain_id)
    made = rclpy.create_node("test_environment", context=context)
    yield made
    made.destroy_node()
    rclpy.shutdown(context=context)


@has_type_hashes
@pytest.mark.parametrize("name", TYPE_HASHES)
def test_type_hash_in_the_installed_description(name: str) -> None:
    path = Path(get_package_share_directory("vision_msgs"), "msg", f"{name}.json")
    hashes = {
        entry["type_name"]: entry["hash_string"]
        for entry in json.loads(path.read_text())["type_hashes"]
    }
    assert hashes[f"vision_msgs/msg/{name}"] == f"RIHS01_{TYPE_HASHES[name]}"


@has_type_hashes
@pytest.mark.parametrize("name", TYPE_HASHES)
def test_type_hash_that_a_publisher_announces(name: str, node: Any) -> None:
    topic = f"hash_of_{name}"
    publisher = node.create_publisher(getattr(vision_msgs.msg, name), topic, 1)
    (announced,) = node.get_publishers_info_by_topic(topic)
    node.destroy_publisher(publisher)
    assert announced.topic_type_hash.version == 1
    assert bytes(announced.topic_type_hash.value).hex() == TYPE_HASHES[name]


# The two ends of the transport test, each a program of its own. The publisher goes on until the
# subscriber has what it waits for, or a time is up that only a broken transport needs.
PUBLISHER = """
import array, sys, time
import rclpy
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image

width, height, images = map(int, sys.argv[1:])
rclpy.init()
node = rclpy.create_node("publisher")
publisher = node.create_publisher(Image, "image", qos_profile_sensor_data)
message = Image(width=width, height=height, step=3 * width, encoding="bgr8")
message.data = array.array("B", bytes(range(256)) * (3 * width * height // 256))
while publisher.get_subscription_count() == 0:
    time.sleep(0.05)
# The subscriber has to know of this publisher too: it says so on a topic of its own.
ready = []
node.create_subscription(Image, "ready", ready.append, 1)
while not ready:
    rclpy.spin_once(node, timeout_sec=0.1)
due = time.monotonic()
for number in range(images):
    message.header.frame_id = str(number)
    publisher.publish(message)
    due += 1 / 30
    time.sleep(max(0.0, due - time.monotonic()))
print("sent", images)
time.sleep(60)
"""

SUBSCRIBER = """
import sys, time
import rclpy
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

width, height, images = map(int, sys.argv[1:])
expected = bytes(range(256)) * (3 * width * height // 256)
received = []

def take(message):
    assert message.data.tobytes() == expected
    received.append(int(message.header.frame_id))

rclpy.init()
node = rclpy.create_node("subscriber")
# As deep as the test is long: what is not taken in time on a busy machine is not what is lost in
# transport.
node.create_subscription(
    Image, "image", take, QoSProfile(depth=images, reliability=ReliabilityPolicy.BEST_EFFORT))
while node.count_publishers("image") == 0:
    rclpy.spin_once(node, timeout_sec=0.05)
ready = node.create_publisher(Image, "ready", 1)
while ready.get_subscription_count() == 0:
    rclpy.spin_once(node, timeout_sec=0.05)
ready.publish(Image())
end = time.monotonic() + images / 30 + 5
while len(received) < images and time.monotonic() < end:
    rclpy.spin_once(node, timeout_sec=0.1)
print("received", len(received))
print("in order", received == sorted(received))
"""


@pytest.mark.parametrize("profile", ["fastdds.xml", "fastdds_small.xml", "fastdds_tcp.xml"])
@pytest.mark.parametrize(("width", "height"), [(640, 480), (1280, 720)])
def test_best_effort_images_all_arrive(
    profile: str,
    width: int,
    height: int,
    ros_domain_id: int,
    start_process: Callable[..., StartedProcess],
) -> None:
    # With Fast DDS's defaults none to two of them do.
    images = 30
    environment = {
        "ROS_DOMAIN_ID": str(ros_domain_id),
        "FASTDDS_DEFAULT_PROFILES_FILE": str(ROOT / "config" / profile),
    }
    numbers = [str(width), str(height), str(images)]
    subscriber = start_process(sys.executable, "-c", SUBSCRIBER, *numbers, env=environment)
    publisher = start_process(sys.executable, "-c", PUBLISHER, *numbers, env=environment)
    publisher.wait_for(f"sent {images}")
    assert subscriber.wait() == 0, subscriber.output
    assert f"received {images}\nin order True" in subscriber.output
    assert "Error" not in publisher.output + subscriber.output


@pytest.mark.parametrize("profile", ["fastdds.xml", "fastdds_small.xml"])
def test_the_profiles_fit_images_of_1280x720(profile: str) -> None:
    namespace = {"dds": "http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles"}
    root = ET.parse(ROOT / "config" / profile)
    (segment,) = root.iterfind(".//dds:segment_size", namespace)
    (message,) = root.iterfind(".//dds:maxMessageSize", namespace)
    assert 1280 * 720 * 3 < int(message.text or "") <= int(segment.text or "")


def run(*command: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(ROOT / "tools" / "run"), *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # there was nothing to make, so there is nothing to say
    return done.stdout


def test_tools_run_works_from_another_folder_and_stays_in_it(tmp_path: Path) -> None:
    program = "import os, dla_perception, rclpy, vision_msgs.msg; print(os.getcwd())"
    assert run("python", "-c", program, folder=tmp_path).strip() == str(tmp_path.resolve())


def test_tools_run_passes_on_arguments_and_exit_status(tmp_path: Path) -> None:
    assert run("printf", "%s|", "a b", "", "*", folder=tmp_path) == "a b||*|"
    assert subprocess.run([str(ROOT / "tools" / "run"), "sh", "-c", "exit 7"]).returncode == 7


def test_tools_run_without_a_command_says_how(tmp_path: Path) -> None:
    done = subprocess.run([str(ROOT / "tools" / "run")], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: tools/run CMD [ARGUMENT ...]\n")


def test_tools_run_sets_the_image_transport_unless_the_caller_did(tmp_path: Path) -> None:
    names = ("FASTDDS_DEFAULT_PROFILES_FILE", "ROS_AUTOMATIC_DISCOVERY_RANGE")
    asked = ["sh", "-c", "".join(f'echo "${name}";' for name in names)]
    unset = dict.fromkeys(names, "")
    profile, discovery = run(*asked, folder=tmp_path, **unset).split()
    assert Path(profile).parent == ROOT / "config"
    assert Path(profile).name in ("fastdds.xml", "fastdds_small.xml")
    assert discovery == "LOCALHOST"
    own = {"FASTDDS_DEFAULT_PROFILES_FILE": "/own.xml", "ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"}
    assert run(*asked, folder=tmp_path, **own).split() == ["/own.xml", "SUBNET"]


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-sourced.txt", "requirements-tensorrt.txt"]
)
def test_requirements_are_pinned_exactly(name: str) -> None:
    lines = (ROOT / "tools" / name).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) >= 3
    version = r"[0-9][0-9a-z.]*"
    condition = r'python_version == "3\.[0-9]+"'
    pattern = re.compile(rf"[a-z0-9-]+=={version}( ; {condition}( or {condition})*)?")
    assert [pin for pin in pins if not pattern.fullmatch(pin)] == []


@pytest.mark.parametrize("name", ["requirements", "requirements-sourced"])
def test_everything_asked_for_is_pinned(name: str) -> None:
    def names(suffix: str) -> set[str]:
        lines = (ROOT / "tools" / f"{name}.{suffix}").read_text().splitlines()
        return {
            re.split(r"[<>=! ]", line)[0].lower()
            for line in lines
            if line and not line.startswith("#")
        }

    assert names("in") <= names("txt")
