"""``redundancy_node``: two detectors' results in, one stream out."""

from __future__ import annotations

import functools
import time
from collections import defaultdict, deque
from dataclasses import replace
from typing import Any, Iterator, Mapping, Sequence

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String
from std_srvs.srv import Trigger
from vision_msgs.msg import Detection2DArray

from dla_perception.monitoring.health import Finding
from dla_perception.nodes.managed_node import ManagedNode
from dla_perception.nodes.spinning import spin_node
from dla_perception.redundancy.agreement import AgreementMonitor, compare
from dla_perception.redundancy.arbiter import MAX_OPEN, Arbiter, Pair, Side, Step
from dla_perception.redundancy.findings import arbiter_findings
from dla_perception.redundancy.independence import independence_finding
from dla_perception.ros.detections import detections_from_message
from dla_perception.ros.events import subscription_events
from dla_perception.ros.images import stamp_to_ns
from dla_perception.ros.qos import LATCHED_QOS
from dla_perception.ros.redundancy_parameters import PARAMETERS, RedundancyParameters
from dla_perception.ros.waiting_messages import take_waiting

RESULTS_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=MAX_OPEN, reliability=ReliabilityPolicy.RELIABLE
)
"""Of both inputs and the output: deep enough that a stall of a process loses nothing.

Fast DDS can hold a publisher up while a process that was killed starts again (eProsima/Fast-DDS
issue 6535), by default for a third of a second: 20 results at 60 images a second.
"""


class RedundancyNode(ManagedNode[RedundancyParameters]):
    """A lifecycle node around one :class:`~dla_perception.redundancy.arbiter.Arbiter`.

    All work is done in the executor's thread: what arrives is published, if it is to be, before
    anything else is looked at. Times are of the steady clock, so that neither a simulated clock
    nor a changed one can hold results back.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            "redundancy_node",
            PARAMETERS,
            "config/redundancy.yaml",
            RedundancyParameters.from_values,
            **options,
        )
        self._engines: dict[Side, dict[str, str]] = {}
        self._connected: dict[Side, int] = {}
        self._engine_infos: list[Any] = []
        self._results: dict[Side, Any] = {}
        self._detections: Any = None
        self._active: Any = None
        self._start_over()
        # armed for the next deadline, otherwise cancelled
        self._deadline_timer = self.create_timer(3600.0, self._on_deadline, clock=self.steady_clock)
        self._deadline_timer.cancel()
        self.create_service(Trigger, "~/switch_over", self._on_switch_over)

    def _start_over(self) -> None:
        self._arbiter = Arbiter(self.current.arbiter)
        self._agreement = AgreementMonitor()
        # texts of classes to numbers, in the order in which they are met
        self._class_ids: defaultdict[str, int] = defaultdict(lambda: len(self._class_ids))

    # Lifecycle -----------------------------------------------------------------------------------

    def configure(self) -> None:
        """Offer the output and ask what the engines run on."""
        self._start_over()
        self._detections = self.create_lifecycle_publisher(
            Detection2DArray, "detections", RESULTS_QOS
        )
        self._active = self.publish_once("~/active", String(data=self._arbiter.active.value))
        self._engine_infos = [
            self.create_subscription(
                DiagnosticStatus,
                f"{side.value}/engine_info",
                functools.partial(self._on_engine_info, side),
                LATCHED_QOS,
            )
            for side in Side
        ]

    def activate(self) -> None:
        """Take results in."""
        self._results = {
            side: self.create_subscription(
                Detection2DArray,
                f"{side.value}/detections",
                functools.partial(self._on_detections, side),
                RESULTS_QOS,
                event_callbacks=subscription_events(
                    functools.partial(self._connected.__setitem__, side),
                    functools.partial(self._on_incompatible, side),
                ),
            )
            for side in Side
        }

    def deactivate(self) -> None:
        """Take no more results in; what waited is not published."""
        self._deadline_timer.cancel()
        for subscription in self._results.values():
            self.destroy_subscription(subscription)
        self._results = {}
        self._start_over()

    def release(self) -> None:
        """Stop and free everything."""
        self.deactivate()
        for subscription in self._engine_infos:
            self.destroy_subscription(subscription)
        self._engine_infos = []
        if self._detections is not None:
            self.destroy_lifecycle_publisher(self._detections)
            self.destroy_publisher(self._active)
            self._detections = None

    # Results -------------------------------------------------------------------------------------

    def _on_detections(self, side: Side, message: Detection2DArray) -> None:
        self._take_results({side: [message]})

    def _on_deadline(self) -> None:
        self._take_results({})

    def _take_results(self, taken: Mapping[Side, list[Detection2DArray]]) -> None:
        """Look at all that has arrived, in the order of the images, then at the time.

        After a stall of this process results of both sides wait. If the active side's were taken
        first, a result of the standby to an earlier image would be late, though it came in time;
        and if the time were looked at first, what waits would be a miss.
        """
        waiting = {
            side: [*taken.get(side, []), *take_waiting(self._results[side])] for side in Side
        }
        for side, result in in_stamp_order(waiting, self._arbiter.active):
            now_ns, deadline_ns = time.monotonic_ns(), self._arbiter.next_deadline_ns()
            arrival_ns = now_ns if deadline_ns is None else min(now_ns, deadline_ns - 1)
            stamp_ns = stamp_to_ns(result.header)
            self._follow(self._arbiter.on_result(side, stamp_ns, result, arrival_ns))
        self._follow(self._arbiter.on_time(time.monotonic_ns()))

    def _follow(self, step: Step) -> None:
        """Do what the arbiter says, and wake for its next deadline."""
        for output in step.outputs:
            self._detections.publish(output.result)
        for switch in step.switches:
            self._active.publish(String(data=switch.to.value))
            self.get_logger().warning(f"{switch.to.value} is active now: {switch.reason}")
        self._arm()
        if self.current.compares:
            for pair in step.pairs:
                self._compare(pair)

    def _arm(self) -> None:
        deadline_ns = self._arbiter.next_deadline_ns()
        if deadline_ns is None:
            self._deadline_timer.cancel()
            return
        self._deadline_timer.timer_period_ns = max(deadline_ns - time.monotonic_ns(), 1)
        self._deadline_timer.reset()

    def _compare(self, pair: Pair) -> None:
        primary = detections_from_message(pair.primary, self._class_ids)
        secondary = detections_from_message(pair.secondary, self._class_ids)
        labels = {number: text for text, number in self._class_ids.items()}
        agreement = compare(primary, secondary, self.current.agreement, labels)
        self._agreement.add(agreement, time.monotonic_ns())

    def _on_engine_info(self, side: Side, message: DiagnosticStatus) -> None:
        self._engines[side] = {item.key: item.value for item in message.values}

    def _on_incompatible(self, side: Side, count: int, policy: str) -> None:
        self.get_logger().error(
            f"{side.value}/detections: a publisher cannot be heard, its {policy} does not fit: "
            "detections are to be published reliably"
        )

    # Parameters, services, diagnostics -----------------------------------------------------------

    def is_fixed(self) -> bool:
        """Whether the output is offered."""
        return self._detections is not None

    def use_parameters(self, parameters: RedundancyParameters) -> None:
        """Judge by new times and counts from the next result on."""
        self._arbiter.settings = parameters.arbiter

    def hardware_id(self) -> str:
        """The devices of both sides."""
        devices = [self._engines.get(side, {}).get("device", "none") for side in Side]
        return "+".join(devices)

    def _on_switch_over(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        if self._detections is None:
            response.success, response.message = False, "the node is not configured"
            return response
        step = self._arbiter.switch_over(time.monotonic_ns())
        self._follow(step)
        response.success = not step.refusal
        response.message = step.refusal or f"{self._arbiter.active.value} is active"
        return response

    def findings(self) -> Sequence[Finding]:
        """The arbiter's, with what the middleware knows of each side; independence; agreement."""
        now_ns = time.monotonic_ns()
        known = {
            side.value: {"publishers_connected": str(self._connected.get(side, "n/a"))}
            for side in Side
        }
        if self._detections is not None:
            known["output"] = {"subscribers": str(self._detections.get_subscription_count())}
        findings = [
            replace(finding, values={**finding.values, **known.get(finding.name, {})})
            for finding in arbiter_findings(self._arbiter.status(now_ns), self.current.arbiter)
        ]
        findings.append(independence_finding(self._engines))
        if self.current.compares:
            silent_after_ms = self.current.arbiter.silent_after_ms
            findings.append(
                self._agreement.finding(self.current.agreement, silent_after_ms, now_ns)
            )
        return findings


def in_stamp_order(
    waiting: Mapping[Side, Sequence[Any]], active: Side
) -> Iterator[tuple[Side, Any]]:
    """Merge both sides' results by their images' stamps.

    Each side's own order is kept, also where its stamps go back. Of two results to one image the
    active side's comes first.
    """
    queues = {side: deque(waiting[side]) for side in (active, active.other)}
    while any(queues.values()):
        side = min(
            (side for side, queue in queues.items() if queue),
            key=lambda side: stamp_to_ns(queues[side][0].header),
        )
        yield side, queues[side].popleft()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the executable ``redundancy_node``."""
    return spin_node(RedundancyNode, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
