"""redundancy_node in its own process, over real DDS, with two sides that the test plays."""

from __future__ import annotations

import signal
import time

import pytest
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from ros_client import Client, values
from started_process import StartedProcess
from std_msgs.msg import Header, String
from std_srvs.srv import Trigger
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

from dla_perception.ros.qos import DETECTIONS_QOS, LATCHED_QOS

NODE = "/redundancy_node"
OK, WARN, ERROR, STALE = (
    DiagnosticStatus.OK,
    DiagnosticStatus.WARN,
    DiagnosticStatus.ERROR,
    DiagnosticStatus.STALE,
)


def array_of(number: int, side: str, class_id: str = "cone", x: float = 50.0) -> Detection2DArray:
    """An array of one object whose id tells which side it is from."""
    header = Header(frame_id="cam")
    header.stamp.sec, header.stamp.nanosec = divmod(number * 33_000_000, 1_000_000_000)
    detection = Detection2D(header=header, id=side)
    detection.bbox.center.position.x = x
    detection.bbox.center.position.y = 40.0
    detection.bbox.size_x = detection.bbox.size_y = 30.0
    result = ObjectHypothesisWithPose()
    result.hypothesis.class_id, result.hypothesis.score = class_id, 0.9
    detection.results.append(result)
    return Detection2DArray(header=header, detections=[detection])


class Bench:
    """The node under test between two sides and a listener."""

    def __init__(self, client: Client, node: StartedProcess) -> None:
        self.client = client
        self.node = node
        self.outputs = client.collect(Detection2DArray, "detections")
        self.active = client.collect(String, f"{NODE}/active", LATCHED_QOS)
        self.sides = {
            side: client.node.create_publisher(
                Detection2DArray, f"{side}/detections", DETECTIONS_QOS
            )
            for side in ("primary", "secondary")
        }
        for side in self.sides:
            client.status(
                f"{NODE}: {side}", lambda item: values(item)["publishers_connected"] == "1"
            )
        # what is published before both ends know each other is lost
        client.until(
            lambda: all(item.get_subscription_count() == 1 for item in self.sides.values())
        )
        client.status(f"{NODE}: output", lambda item: values(item).get("subscribers") == "1")
        client.until(lambda: bool(self.active))

    def send(self, side: str, number: int, **changes) -> None:
        self.sides[side].publish(array_of(number, side, **changes))

    def published(self, count: int) -> list[tuple[int, str]]:
        """Wait for so many outputs; number and side of each."""
        self.client.until(lambda: len(self.outputs) >= count, f"{len(self.outputs)} outputs")
        return [
            (
                round((item.header.stamp.sec * 1_000_000_000 + item.header.stamp.nanosec) / 33e6),
                item.detections[0].id,
            )
            for item in self.outputs
        ]


@pytest.fixture
def bench(client, start_node):
    def start(**parameters):
        defaults = {"diagnostics.period_s": 0.1, "result_deadline_ms": 200.0}
        node = start_node("redundancy_node", **{**defaults, **parameters})
        return Bench(client, node)

    return start


def test_the_active_side_passes_unchanged_and_the_other_is_not_repeated(bench):
    pipe = bench()
    for number in range(1, 6):
        pipe.send("primary", number)
        assert pipe.published(number)[-1] == (number, "primary")
        pipe.send("secondary", number)
    assert pipe.outputs[2] == array_of(3, "primary")
    status = pipe.client.status(f"{NODE}: secondary", lambda item: values(item)["results"] == "5")
    assert values(status)["published"] == "0"
    assert len(pipe.outputs) == 5
    assert [item.data for item in pipe.active] == ["primary"]


def test_a_dead_side_is_stood_in_for_and_taken_back_after_enough_good_results(bench):
    pipe = bench(switch_after_misses=2, switch_back_after=3)
    pipe.send("primary", 1)
    pipe.send("secondary", 1)
    pipe.published(1)
    for number in (2, 3):  # each waits for its deadline
        pipe.send("secondary", number)
        assert pipe.published(number)[-1] == (number, "secondary")
    pipe.client.until(lambda: [item.data for item in pipe.active] == ["primary", "secondary"])
    status = pipe.client.status(f"{NODE}: active side", lambda item: item.level == WARN)
    assert "secondary stands in for primary (primary missed 2 in a row)" in status.message
    for number in range(4, 8):
        pipe.send("secondary", number)
        assert pipe.published(number)[-1] == (number, "secondary")
        pipe.send("primary", number)
    pipe.client.until(lambda: pipe.active[-1].data == "primary")
    pipe.send("primary", 8)
    assert pipe.published(8) == [
        (1, "primary"),
        *((number, "secondary") for number in range(2, 8)),
        (8, "primary"),
    ]


def test_switching_by_hand_and_its_refusal(bench):
    pipe = bench(switch_back="manual")
    refused = pipe.client.call(Trigger, f"{NODE}/switch_over", Trigger.Request())
    # nobody has answered yet: either side is as good as the other, so it is not refused
    assert refused.success
    pipe.client.until(lambda: pipe.active[-1].data == "secondary")
    pipe.send("secondary", 1)
    assert pipe.published(1) == [(1, "secondary")]
    refused = pipe.client.call(Trigger, f"{NODE}/switch_over", Trigger.Request())
    assert not refused.success
    assert "primary has never answered; secondary stays active" in refused.message


def test_both_silent_is_stale_and_whoever_was_active_stays(bench):
    pipe = bench(silent_after_ms=300.0)
    pipe.send("primary", 1)
    pipe.published(1)
    status = pipe.client.status(
        f"{NODE}: active side",
        lambda item: item.level == STALE and values(item)["switch_count"] == "0",
    )
    assert "both sides are silent: primary stays active" in status.message
    assert len(pipe.outputs) == 1


def test_a_looping_bag_starts_a_new_epoch(bench):
    pipe = bench()
    for first in (1, 1):
        for number in range(first, first + 40):
            count = len(pipe.outputs) + 1
            pipe.send("primary", number)
            pipe.send("secondary", number)
            pipe.published(count)
    numbers = [number for number, _ in pipe.published(80)]
    assert numbers == [*range(1, 41), *range(1, 41)]
    status = pipe.client.status(f"{NODE}: output", lambda item: values(item)["epoch"] == "1")
    assert values(status)["published"] == "80"


def test_simulated_time_that_stands_still_holds_nothing_back(bench):
    pipe = bench(use_sim_time=True, switch_after_misses=1)
    pipe.send("secondary", 1)
    assert pipe.published(1) == [(1, "secondary")]
    pipe.client.until(lambda: pipe.active[-1].data == "secondary")


def engine_info(device: str, on_gpu: str) -> DiagnosticStatus:
    pairs = {"device": device, "layers_on_gpu": on_gpu}
    return DiagnosticStatus(values=[KeyValue(key=key, value=value) for key, value in pairs.items()])


def test_engines_that_are_not_independent_are_an_error(bench):
    pipe = bench()
    publishers = {
        side: pipe.client.node.create_publisher(
            DiagnosticStatus, f"{side}/engine_info", LATCHED_QOS
        )
        for side in pipe.sides
    }
    name = f"{NODE}: independence"
    publishers["primary"].publish(engine_info("dla0", "0"))
    publishers["secondary"].publish(engine_info("dla1", "0"))
    status = pipe.client.status(name, lambda item: item.level == OK)
    assert status.hardware_id == "dla0+dla1"
    publishers["secondary"].publish(engine_info("dla0", "0"))
    status = pipe.client.status(name, lambda item: item.level == ERROR)
    assert "both sides run on dla0" in status.message


def test_disagreement_is_told_in_the_frame_it_happens(bench):
    pipe = bench(mode="compare", **{"compare.max_consecutive_disagreements": 2})
    name = f"{NODE}: agreement"

    def exchange(number, **changes):
        pipe.send("primary", number)
        pipe.send("secondary", number, **changes)
        return pipe.client.status(name, lambda item: values(item)["compared"] == str(number))

    assert exchange(1).level == OK
    assert exchange(2, x=51.0).level == OK  # a pixel of noise
    status = exchange(3, class_id="ball")
    assert status.level == WARN
    assert "cone 0.90" in status.message
    assert "ball" in status.message
    status = exchange(4, x=90.0)
    assert status.level == ERROR
    assert "2 images in a row differ" in status.message
    assert exchange(5).level == WARN  # over, but not long ago


def test_a_stall_of_the_node_itself_is_no_miss_of_a_side(bench):
    """The active side's result has waited since before its deadline: it goes out."""
    pipe = bench(result_deadline_ms=1000.0, silent_after_ms=60_000.0, epoch_jump_ms=60_000.0)
    pipe.send("primary", 1)
    pipe.published(1)
    pipe.send("secondary", 2)
    pipe.client.status(f"{NODE}: output", lambda item: values(item)["waiting"] == "1")
    pipe.node.popen.send_signal(signal.SIGSTOP)
    pipe.send("primary", 2)
    end = time.monotonic() + 1.2
    pipe.client.until(lambda: time.monotonic() > end)  # the deadline passes meanwhile
    pipe.node.popen.send_signal(signal.SIGCONT)
    assert pipe.published(2) == [(1, "primary"), (2, "primary")]
    status = pipe.client.status(f"{NODE}: primary", lambda item: values(item)["results"] == "2")
    assert values(status)["missed"] == "0"


@pytest.mark.parametrize("namespace", ["", "/robot/vision"])
def test_names_follow_namespace_and_remaps(client, start_node, namespace):
    arguments = ("-r", f"__ns:={namespace}") if namespace else ()
    start_node("redundancy_node", "-r", "detections:=fused", *arguments)
    client.until(lambda: client.node.count_publishers(f"{namespace}/fused") == 1)
    client.until(lambda: client.node.count_subscribers(f"{namespace}/primary/detections") == 1)


def test_settings_that_contradict_each_other_are_one_line(start_node):
    node = start_node("redundancy_node", silent_after_ms=20.0)
    assert node.wait() == 2
    (line,) = node.output.splitlines()
    assert line.startswith("silent_after_ms: 20 is not above result_deadline_ms (50)")


def test_results_go_out_at_once(bench):
    """With a deadline of a quarter of an hour only what does not wait gets out."""
    pipe = bench(result_deadline_ms=1_000_000.0, silent_after_ms=2_000_000.0, epoch_jump_ms=2e6)
    for number in range(1, 4):
        pipe.send("primary", number)
        assert pipe.published(number)[-1] == (number, "primary")


def test_a_stall_loses_nothing_that_was_answered_meanwhile(bench):
    """Results of both sides wait: they are looked at in the order of the images."""
    pipe = bench(result_deadline_ms=1_000_000.0, silent_after_ms=2_000_000.0, epoch_jump_ms=2e6)
    pipe.send("primary", 1)
    pipe.published(1)
    pipe.node.popen.send_signal(signal.SIGSTOP)
    for side, number in [("secondary", 2), ("secondary", 3), ("primary", 3), ("secondary", 4)]:
        pipe.send(side, number)
    pipe.send("primary", 5)  # so the primary has skipped 2 and 4
    pipe.node.popen.send_signal(signal.SIGCONT)
    sides = ["primary", "secondary", "primary", "secondary", "primary"]
    assert pipe.published(5) == list(enumerate(sides, 1))
