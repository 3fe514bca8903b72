"""What the node tests share: a node that talks to the one under test over DDS."""

from __future__ import annotations

import time
from array import array
from typing import Any, Callable

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image

WAIT_S = 20.0
"""Long enough for a loaded machine; a test that passes waits for conditions only."""


class Client:
    """A node in a context of its own that publishes images and collects messages."""

    def __init__(self, domain_id: int) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain_id)
        self.node = rclpy.create_node("test_client", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.received: dict[str, list[Any]] = {}
        self.statuses: dict[str, Any] = {}
        self.clients: dict[str, Any] = {}
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.statuses[status.name] = status

    def collect(self, kind: Any, topic: str, qos: Any = 10) -> list[Any]:
        """The list that messages of a topic are appended to from now on."""
        messages: list[Any] = self.received.setdefault(topic, [])
        self.node.create_subscription(kind, topic, messages.append, qos)
        return messages

    def image_publisher(
        self, topic: str = "image_raw", qos: Any = qos_profile_sensor_data, kind: Any = Image
    ) -> Any:
        """A publisher that detector_node is connected to.

        Both sides must know of each other: a best-effort image is lost while only one does.
        """
        publisher = self.node.create_publisher(kind, topic, qos)
        self.until(lambda: publisher.get_subscription_count() > 0, f"nobody subscribes {topic}")
        self.status(
            "/detector_node: input image_raw",
            lambda status: values(status)["publishers_connected"] == "1",
        )
        return publisher

    def until(
        self, condition: Callable[[], bool], problem: str = "", timeout_s: float = WAIT_S
    ) -> None:
        """Spin until a condition holds; fail after ``timeout_s``."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, problem or "waited too long"
            self.executor.spin_once(timeout_sec=0.02)

    def call(self, kind: Any, service: str, request: Any) -> Any:
        """The response of a service.

        Asked again when none comes: a server that does not know the client yet cannot answer it.
        """
        if service not in self.clients:
            self.clients[service] = self.node.create_client(kind, service)
        client = self.clients[service]
        self.until(client.service_is_ready, f"no service {service}")
        for _ in range(3):
            future = client.call_async(request)
            end = time.monotonic() + WAIT_S / 3
            while not future.done() and time.monotonic() < end:
                self.executor.spin_once(timeout_sec=0.02)
            if future.done():
                return future.result()
        raise AssertionError(f"no answer from {service}")

    def status(self, name: str, condition: Callable[[Any], bool] = lambda status: True) -> Any:
        """The next diagnostic status of that name that meets a condition."""
        self.statuses.pop(name, None)
        self.until(
            lambda: name in self.statuses and condition(self.statuses[name]),
            f"no such status of '{name}'; seen: {self.statuses.get(name)}",
        )
        return self.statuses[name]

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


def values(status: Any) -> dict[str, str]:
    """The key-value pairs of a diagnostic status."""
    return {item.key: item.value for item in status.values}


def image_message(pixels: np.ndarray, encoding: str = "bgr8", padding: int = 0) -> Image:
    """A message of ``(H, W, C)`` pixels, with ``padding`` bytes after each row."""
    height, width, channels = pixels.shape
    step = width * channels + padding
    rows = np.full((height, step), 0xEE, np.uint8)
    rows[:, : width * channels] = pixels.reshape(height, -1)
    message = Image(height=height, width=width, encoding=encoding, step=step)
    message.data = array("B", rows.tobytes())
    return message
