"""Plays the synthetic drive as a camera would: images over DDS, and beside them the truth.

Run by the demo in a process of its own: ``python -m dla_perception.demo.player``; a line on
standard input starts it. A camera costs no processor time, so another process renders ahead, at low
priority, in what time the rest leaves.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
import time
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Deque, Sequence

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

LISTENERS_TIMEOUT_S = 30.0

AHEAD = 120
"""Frames that are rendered before they are due, at most: 0.9 MB each."""

NICENESS = 10
"""Of the process that renders."""


class FramesAhead:
    """The frames of a scene in their order, rendered by another process; a context manager."""

    def __init__(self, seed: int, frames: int) -> None:
        self._seed = seed
        self._left = iter(range(frames))
        self._pending: Deque[Future[SceneFrame]] = deque()

    def __enter__(self) -> FramesAhead:
        # not a fork: ROS has threads
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=os.nice, initargs=(NICENESS,)
        )
        for _ in range(AHEAD):
            self._ask()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for future in self._pending:
            future.cancel()
        self._pool.shutdown()

    def next(self) -> Future[SceneFrame]:
        """The next frame, which may still be in the making."""
        self._ask()
        return self._pending.popleft()

    def _ask(self) -> None:
        index = next(self._left, None)
        if index is not None:
            self._pending.append(self._pool.submit(_render, self._seed, index))


@functools.lru_cache(maxsize=1)
def _scene(seed: int) -> Scene:
    return Scene(seed)


def _render(seed: int, index: int) -> SceneFrame:
    """In the other process."""
    return _scene(seed).frame(index)


class Player(Node):
    """Publishes ``image_raw`` and ``ground_truth``, one after the other, at a steady rate."""

    def __init__(self, rate_hz: float, listeners: int) -> None:
        super().__init__("demo_player")
        self._listeners = listeners
        self._period_ns = round(1e9 / rate_hz)
        self._images = self.create_publisher(Image, "image_raw", qos_profile_sensor_data)
        self._truth = self.create_publisher(Detection2DArray, "ground_truth", DETECTIONS_QOS)

    def wait_for_listeners(self) -> bool:
        """Whether all who should see the images do within :data:`LISTENERS_TIMEOUT_S`."""
        end = time.monotonic() + LISTENERS_TIMEOUT_S
        while time.monotonic() < end:
            if (
                self._images.get_subscription_count() >= self._listeners
                and self._truth.get_subscription_count() > 0
            ):
                return True
            rclpy.spin_once(self, timeout_sec=0.02)
        return False

    def play(self, source: FramesAhead, frames: int) -> int:
        """Publish ``frames`` pictures on time; one that is late is left out, as a camera would.

        Returns:
            How many were published.
        """
        sent = 0
        start_ns = self.get_clock().now().nanoseconds
        steady_start_ns = time.monotonic_ns()
        for index in range(frames):
            due_ns = steady_start_ns + index * self._period_ns
            future = source.next()
            if time.monotonic_ns() > due_ns + self._period_ns:
                future.cancel()
                continue
            frame = future.result()
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
    parser.add_argument("--listeners", type=int, default=1, help="to images, to wait for")
    parsed, ros_arguments = parser.parse_known_args(arguments)
    rclpy.init(args=ros_arguments)
    player = Player(parsed.rate, parsed.listeners)
    sent = 0
    try:
        with FramesAhead(parsed.seed, parsed.frames) as source:
            if sys.stdin.readline() and player.wait_for_listeners():
                sent = player.play(source, parsed.frames)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        print(json.dumps({"sent": sent}), flush=True)
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
