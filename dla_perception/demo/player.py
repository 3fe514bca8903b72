"""Plays the synthetic drive as a camera would: images over DDS, and beside them the truth.

Run by the demo in a process of its own: ``python -m dla_perception.demo.player``.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Sequence

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from dla_perception.demo.scene import CLASS_NAMES, Scene, SceneFrame
from dla_perception.detection.detections import Detections
from dla_perception.ros.detections import detections_to_message
from dla_perception.ros.images import image_from_pixels
from dla_perception.ros.qos import DETECTIONS_QOS

IGNORED = "ignore"
"""The class of regions on ``ground_truth`` that are neither a hit nor a miss."""

LISTENERS_TIMEOUT_S = 10.0


class Player(Node):
    """Publishes ``image_raw`` and ``ground_truth``, one after the other, at a steady rate."""

    def __init__(self, seed: int, rate_hz: float) -> None:
        super().__init__("demo_player")
        self._scene = Scene(seed)
        self._period_ns = round(1e9 / rate_hz)
        self._images = self.create_publisher(Image, "image_raw", qos_profile_sensor_data)
        self._truth = self.create_publisher(Detection2DArray, "ground_truth", DETECTIONS_QOS)

    def wait_for_listeners(self) -> bool:
        """Whether somebody listens to both topics within :data:`LISTENERS_TIMEOUT_S`."""
        end = time.monotonic() + LISTENERS_TIMEOUT_S
        while time.monotonic() < end:
            if all(p.get_subscription_count() > 0 for p in (self._images, self._truth)):
                return True
            rclpy.spin_once(self, timeout_sec=0.02)
        return False

    def play(self, frames: int) -> int:
        """Publish ``frames`` pictures on time; one that is late is left out, as a camera would.

        Returns:
            How many were published.
        """
        sent = 0
        start_ns = self.get_clock().now().nanoseconds
        steady_start_ns = time.monotonic_ns()
        for index in range(frames):
            due_ns = steady_start_ns + index * self._period_ns
            if time.monotonic_ns() > due_ns + self._period_ns:
                continue
            frame = self._scene.frame(index)
            time.sleep(max(due_ns - time.monotonic_ns(), 0) / 1e9)
            self._publish(frame, start_ns + index * self._period_ns)
            sent += 1
            if not rclpy.ok():
                break
        return sent

    def _publish(self, frame: SceneFrame, stamp_ns: int) -> None:
        seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
        header = Header(stamp=Time(sec=seconds, nanosec=nanoseconds), frame_id="demo_camera")
        self._images.publish(image_from_pixels(frame.pixels, header))
        ignored = len(frame.ignore)
        everything = Detections.concatenate(
            [
                frame.truth,
                Detections(frame.ignore, np.ones(ignored), np.full(ignored, len(CLASS_NAMES))),
            ]
        )
        self._truth.publish(detections_to_message(everything, header, (*CLASS_NAMES, IGNORED)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, then print what was sent as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=30.0, help="images per second")
    parser.add_argument("--frames", type=int, required=True)
    parsed, ros_arguments = parser.parse_known_args(arguments)
    rclpy.init(args=ros_arguments)
    player = Player(parsed.seed, parsed.rate)
    sent = 0
    try:
        if player.wait_for_listeners():
            sent = player.play(parsed.frames)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        print(json.dumps({"sent": sent}), flush=True)
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
