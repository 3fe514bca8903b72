"""What the demo knows of the running system: what the topics say, and nothing else."""

from __future__ import annotations

import functools
import time
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import String
from vision_msgs.msg import Detection2DArray

from dla_perception.demo.player import IGNORED
from dla_perception.demo.scene import CLASS_NAMES
from dla_perception.demo.scoring import Score
from dla_perception.detection.detections import Detections
from dla_perception.monitoring.latency import RateWindow, Summary, TimeWindow
from dla_perception.ros.detections import detections_from_message
from dla_perception.ros.images import stamp_to_ns
from dla_perception.ros.qos import LATCHED_QOS

_CLASS_IDS = {name: index for index, name in enumerate((*CLASS_NAMES, IGNORED))}


SIDES = ("primary", "secondary")

COUNTING_QOS = QoSProfile(depth=300, reliability=ReliabilityPolicy.RELIABLE)
"""Deep enough that this process, which also draws, misses nothing of what it counts."""


@dataclass(frozen=True)
class Switch:
    """A change of the side whose results go out."""

    time_s: float
    to: str
    reason: str


class Monitor(Node):
    """Listens to the detections of both sides and those that go out, the truth, and diagnostics.

    Attributes:
        truth, found: what there was to find in each image and what went out, by stamp.
        answered: the stamps that each side has answered.
        gaps_ms: the times between two outputs, in their order.
        per_class: objects that went out, by class.
        diagnostics: the values of each status, by its full name ``<node>: <thing>``.
        switches: changes of the active side, the first one it begins with left out.
    """

    def __init__(self, namespace: str) -> None:
        super().__init__("demo_monitor", namespace=namespace)
        self.truth: dict[int, Detections] = {}
        self.found: dict[int, Detections] = {}
        self.answered: dict[str, set[int]] = {side: set() for side in SIDES}
        self.gaps_ms: list[float] = []
        self.per_class: Counter[str] = Counter()
        self.diagnostics: dict[str, dict[str, str]] = {}
        self.messages: dict[str, str] = {}
        self.active = ""
        self.switches: list[Switch] = []
        self.truth_rate, self.found_rate = RateWindow(), RateWindow()
        self._latency_ms = TimeWindow()
        self._last_found_s: float | None = None
        subscribe = self.create_subscription
        subscribe(Detection2DArray, "ground_truth", self._on_truth, COUNTING_QOS)
        subscribe(Detection2DArray, "detections", self._on_found, COUNTING_QOS)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        subscribe(String, "redundancy_node/active", self._on_active, LATCHED_QOS)
        for side in SIDES:
            answered = functools.partial(self._on_answer, self.answered[side])
            subscribe(Detection2DArray, f"{side}/detections", answered, COUNTING_QOS)

    def _on_truth(self, message: Detection2DArray) -> None:
        self.truth_rate.add(time.monotonic())
        self.truth[stamp_to_ns(message.header)] = detections_from_message(message, _CLASS_IDS)

    def _on_answer(self, stamps: set[int], message: Detection2DArray) -> None:
        stamps.add(stamp_to_ns(message.header))

    def _on_found(self, message: Detection2DArray) -> None:
        now_s = time.monotonic()
        stamp_ns = stamp_to_ns(message.header)
        if self._last_found_s is not None:
            self.gaps_ms.append((now_s - self._last_found_s) * 1e3)
        self._last_found_s = now_s
        self.found_rate.add(now_s)
        # the stamp is when the camera took the picture, by this machine's clock
        self._latency_ms.add((self.get_clock().now().nanoseconds - stamp_ns) / 1e6, now_s)
        found = detections_from_message(message, _CLASS_IDS)
        self.found[stamp_ns] = found
        self.per_class.update(CLASS_NAMES[index] for index in found.class_ids)

    def _on_active(self, message: String) -> None:
        if self.active and message.data != self.active:
            self.switches.append(Switch(time.monotonic(), message.data, "n/a"))
        self.active = message.data

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.diagnostics[status.name] = {item.key: item.value for item in status.values}
            self.messages[status.name] = status.message
        told = self.figures("redundancy_node: active side")
        # what was said before the last switch is not about it
        if self.switches and told.get("switch_count") == str(len(self.switches)):
            reason = told["last_switch_reason"]
            self.switches[-1] = replace(self.switches[-1], reason=reason)

    def figures(self, status: str) -> dict[str, str]:
        """The values of a status, named from the demo's namespace on."""
        return self.diagnostics.get(f"{self.get_namespace()}/{status}", {})

    def runs(self, side: str) -> bool:
        """Whether a side's detector has loaded its network."""
        name = f"{self.get_namespace()}/{side}/detector_node: engine placement"
        return self.messages.get(name, "").startswith("runs")

    def is_connected(self) -> bool:
        """Whether all who publish detections have this node, and the redundancy node, as listeners.

        What they say themselves counts: this node may hear of them before they hear of it.
        """
        needed = {f"{side}/detector_node: output": 2 for side in SIDES}
        needed["redundancy_node: output"] = 1
        return all(
            int(self.figures(status).get("subscribers", 0)) >= count
            for status, count in needed.items()
        )

    def latency(self) -> Summary:
        """From the stamp of an image to the arrival of its detections here, in ms."""
        return Summary.of(self._latency_ms.since(time.monotonic() - 5))

    def input_figures(self, side: str) -> dict[str, str]:
        """A detector's figures of its camera."""
        return self.figures(f"{side}/detector_node: input image_raw")

    def dropped(self, side: str) -> dict[str, int]:
        """Images that a detector did not answer, by reason."""
        return {
            key[len("dropped_") :]: int(value)
            for key, value in self.input_figures(side).items()
            if key.startswith("dropped_")
        }

    def is_settled(self, side: str) -> bool:
        """Whether a side's diagnostics account for every image that reached it."""
        figures = self.input_figures(side)
        if "frames_received" not in figures:
            return False
        answered = int(figures["frames_published"])
        received = int(figures["frames_received"])
        return answered == len(self.answered[side]) and received == answered + sum(
            self.dropped(side).values()
        )

    def lost_by_rule(self) -> int:
        """Results that the redundancy node says it had to drop: a later one had gone out."""
        return int(self.figures("redundancy_node: output").get("lost", 0))

    def score(self) -> Score:
        """Precision and recall over all images that were answered."""
        score = Score()
        for stamp_ns, found in self.found.items():
            if stamp_ns in self.truth:
                truth = self.truth[stamp_ns]
                ignored = truth.class_ids == _CLASS_IDS[IGNORED]
                score.add(found, truth[~ignored], truth.boxes[ignored])
        return score

    def frame_index(self, stamp_ns: int, rate_hz: float) -> int:
        """The number of the frame that was stamped so."""
        return int(np.rint((stamp_ns - min(self.truth)) * rate_hz / 1e9))
