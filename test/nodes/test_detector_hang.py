"""An inference that does not come back in time: told at once, and the node lives on."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rcl_interfaces.srv import GetParameters
from ros_client import Client, image_message
from slow_network import write_slow_network
from vision_msgs.msg import Detection2DArray

LATENCY = "/detector_node: inference latency"
PIXELS = np.full((32, 32, 3), 200, np.uint8)


@pytest.fixture
def start(start_node, tmp_path):
    model = write_slow_network(tmp_path / "slow.onnx")

    def start_with(**parameters):
        return start_node(
            "detector_node",
            model_path=model,
            inference_timeout_ms=100.0,
            **{"diagnostics.period_s": 0.1},
            **parameters,
        )

    return start_with


def test_it_is_reported_while_the_node_answers_and_the_late_result_still_comes(
    client: Client, start
):
    start()
    arrays = client.collect(Detection2DArray, "detections")
    publisher = client.image_publisher()
    publisher.publish(image_message(PIXELS))
    status = client.status(LATENCY, lambda item: item.level == DiagnosticStatus.ERROR)
    assert "an inference has not come back for" in status.message
    assert arrays == []
    request = GetParameters.Request(names=["inference_timeout_ms"])
    response = client.call(GetParameters, "/detector_node/get_parameters", request)
    assert response.values[0].double_value == 100.0
    client.until(lambda: len(arrays) == 1)
    client.status(LATENCY, lambda item: item.level == DiagnosticStatus.OK)


def test_exit_ends_the_process_with_a_code_of_its_own(client: Client, start):
    node = start(on_inference_timeout="exit")
    client.image_publisher().publish(image_message(PIXELS))
    assert node.wait() == 70
    assert "has not come back for 0.1 s: ending with code 70" in node.output
    # it took leave of DDS, as nobody does who is killed: that one is known for 20 s more
    client.until(lambda: client.node.count_publishers("detections") == 0, timeout_s=10.0)


@pytest.mark.parametrize("repetitions", [1, 2])
def test_ctrl_c_ends_it_cleanly_while_an_inference_runs(client: Client, start, repetitions):
    node = start()
    client.image_publisher().publish(image_message(PIXELS))
    client.status(LATENCY, lambda item: item.level == DiagnosticStatus.ERROR)
    for _ in range(repetitions):
        node.popen.send_signal(signal.SIGINT)
    assert node.wait() == 0
    assert "Traceback" not in node.output
