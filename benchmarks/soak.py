"""Does detector_node run for long without growing or losing count?

A player in a process of its own publishes a looping drive at 30 Hz over DDS: real images of
640x480 pixels whose stamps jump back at each loop, as those of a bag do. detector_node runs the
demo's network on ONNX Runtime in another. Every ten seconds its memory, threads and open files
are read from /proc; at the end its diagnostics must account for every image that it received.

    tools/run python benchmarks/soak.py --minutes 30
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
from std_msgs.msg import Header

RATE_HZ = 30.0
LOOP_FRAMES = 150
SAMPLE_S = 10.0
SETTLE_S = 10.0
INPUT = "/soak/detector_node: input image_raw"


def play() -> None:
    """Publish the loop until the process is ended."""
    from dla_perception.demo.scene import Scene
    from dla_perception.ros.images import image_from_pixels

    scene = Scene(0)
    messages = []
    for index in range(LOOP_FRAMES):
        header = Header(frame_id="soak")
        header.stamp.sec, header.stamp.nanosec = divmod(round(index * 1e9 / RATE_HZ), 10**9)
        header.stamp.sec += 1000
        messages.append(image_from_pixels(scene.frame(index).pixels, header))
    rclpy.init(args=["--ros-args", "-r", "__ns:=/soak"])
    node = rclpy.create_node("player")
    publisher = node.create_publisher(Image, "image_raw", qos_profile_sensor_data)
    start_s, sent = time.monotonic(), 0
    while True:
        time.sleep(max(start_s + sent / RATE_HZ - time.monotonic(), 0))
        publisher.publish(messages[sent % LOOP_FRAMES])
        sent += 1


class Watch:
    """The node's figures from /proc and from its own diagnostics."""

    def __init__(self, pid: int) -> None:
        self._root = Path(f"/proc/{pid}")
        self.rss_mb: list[float] = []
        self.threads: list[int] = []
        self.fds: list[int] = []
        self.figures: dict[str, str] = {}

    def sample(self) -> None:
        """Read /proc once."""
        status = dict(
            line.split(":", 1) for line in (self._root / "status").read_text().splitlines()
        )
        self.rss_mb.append(round(int(status["VmRSS"].split()[0]) / 1024, 1))
        self.threads.append(int(status["Threads"]))
        self.fds.append(len(os.listdir(self._root / "fd")))

    def on_diagnostics(self, message: DiagnosticArray) -> None:
        """Keep the figures of the input."""
        for status in message.status:
            if status.name == INPUT:
                self.figures = {item.key: item.value for item in status.values}

    def counts(self) -> dict[str, Any]:
        """Images received, published and dropped by reason."""
        prefix = "dropped_"
        return {
            "received": int(self.figures.get("frames_received", 0)),
            "published": int(self.figures.get("frames_published", 0)),
            "dropped": {
                key[len(prefix) :]: int(value)
                for key, value in self.figures.items()
                if key.startswith(prefix)
            },
        }

    def adds_up(self) -> bool:
        """Whether every image received was published or dropped for a reason."""
        counts = self.counts()
        return counts["received"] == counts["published"] + sum(counts["dropped"].values())


def soak(minutes: float) -> dict[str, Any]:
    """Run for so long; returns the figures."""
    import dla_perception.demo

    model = Path(dla_perception.demo.__file__).parent / "model" / "demo_yolo.onnx"
    detector = subprocess.Popen(
        [
            *(sys.executable, "-m", "dla_perception.nodes.detector_node", "--ros-args"),
            *("-r", "__ns:=/soak", "-p", f"model_path:={model}"),
        ]
    )
    player = subprocess.Popen([sys.executable, __file__, "--play"])
    rclpy.init(args=[])
    node = rclpy.create_node("soak_watch")
    watch = Watch(detector.pid)
    node.create_subscription(DiagnosticArray, "/diagnostics", watch.on_diagnostics, 10)
    try:
        end_s = time.monotonic() + 60
        while watch.counts()["published"] == 0:
            if time.monotonic() > end_s or detector.poll() is not None:
                sys.exit("soak: the detector has answered no image within a minute")
            rclpy.spin_once(node, timeout_sec=0.1)
        start_s = time.monotonic()
        while time.monotonic() - start_s < minutes * 60:
            rclpy.spin_once(node, timeout_sec=0.1)
            if time.monotonic() - start_s >= len(watch.threads) * SAMPLE_S:
                watch.sample()
        player.kill()
        player.wait()
        end_s = time.monotonic() + SETTLE_S
        settled_s = time.monotonic() + 2.5  # two diagnostics later at the earliest
        while time.monotonic() < end_s and (time.monotonic() < settled_s or not watch.adds_up()):
            rclpy.spin_once(node, timeout_sec=0.1)
    finally:
        for process in (player, detector):
            process.kill()
            process.wait()
        rclpy.try_shutdown()
    return {
        **watch.counts(),
        "rss_mb": watch.rss_mb,
        "threads": watch.threads,
        "fds": watch.fds,
        "adds_up": watch.adds_up(),
    }


def main() -> int:
    """Run, print, and return 1 when images are not accounted for or something has grown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="default: %(default)g")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        play()
    figures = soak(arguments.minutes)
    adds_up = figures.pop("adds_up")
    samples = len(figures["rss_mb"])
    # the first third is warm-up; afterwards nothing may grow
    early = figures["rss_mb"][samples // 3 : samples // 3 + max(samples // 6, 1)]
    late = figures["rss_mb"][-max(samples // 6, 1) :]
    growth = sum(late) / len(late) / (sum(early) / len(early)) - 1
    if arguments.json:
        print(json.dumps(figures))
    else:
        dropped = ", ".join(f"{count} {reason}" for reason, count in figures["dropped"].items())
        print(
            f"{figures['received']} images received, {figures['published']} published, dropped: "
            f"{dropped or 'none'}; {'accounted for' if adds_up else 'NOT ACCOUNTED FOR'}\n"
            f"memory {early[0]:.1f} MB after the warm-up, {late[-1]:.1f} MB at the end "
            f"({growth:+.1%}); threads {sorted(set(figures['threads'][1:]))}, "
            f"open files {sorted(set(figures['fds'][1:]))}"
        )
    steady = len(set(figures["threads"][samples // 3 :])) == 1
    steady = steady and len(set(figures["fds"][samples // 3 :])) == 1
    return 0 if adds_up and steady and growth < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
