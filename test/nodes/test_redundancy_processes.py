"""Two detectors and the redundancy node, each a real process with a real network, over real DDS.

Lost is an image that a side answered and whose result did not go out. What was answered is heard
on the sides' own topics, so the node under test is not asked about itself. Two things are allowed
for: results that it says the rule made it drop (a later one had gone out), and those of a detector
that has just started and that the middleware has not yet connected with it, which can take it a
second longer than to connect it with this test.
"""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from ros_client import Client, image_message, values
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import Image
from started_process import StartedProcess
from std_msgs.msg import Header, String
from vision_msgs.msg import Detection2DArray

from dla_perception.demo.scene import Scene
from dla_perception.ros.images import stamp_to_ns
from dla_perception.ros.qos import LATCHED_QOS

MODEL = Path(__file__).parents[2] / "dla_perception" / "demo" / "model" / "demo_yolo.onnx"
NAMESPACE = "/x"
NODE = f"{NAMESPACE}/redundancy_node"
SIDES = ("primary", "secondary")
SWITCH_BACK_AFTER = 20
FIRST_STAMP_NS = 1_000_000_000_000

# the test must not miss what it counts, however long it is kept from running
HEARD_QOS = QoSProfile(depth=5000, reliability=ReliabilityPolicy.RELIABLE)

# Tolerant of a loaded machine: a side that is merely slow for a moment keeps its place. Times are
# the benchmark's business.
RULE = {
    "result_deadline_ms": 100.0,
    "switch_after_misses": 5,
    "switch_back_after": SWITCH_BACK_AFTER,
    "diagnostics.period_s": 0.2,
}


class Camera:
    """Publishes a picture again and again from the client's own executor.

    Attributes:
        sent: how many were published.
        stamp_step_ns: between two stamps; that of the pictures unless changed.
        with_clock: publish each stamp as the simulated time.
    """

    def __init__(self, client: Client, pixels: np.ndarray, rate_hz: float) -> None:
        self.show(pixels)
        self.sent = 0
        self.period_ns = round(1e9 / rate_hz)
        self.stamp_step_ns = self.period_ns
        self._loop: tuple[int, int] | None = None
        self.with_clock = False
        node = client.node
        self._images = node.create_publisher(
            Image, f"{NAMESPACE}/image_raw", qos_profile_sensor_data
        )
        self._clock = node.create_publisher(ClockMessage, "/clock", 10)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(1 / rate_hz, self._publish, clock=steady)

    def show(self, pixels: np.ndarray) -> None:
        """What is on the pictures from now on."""
        self._message = image_message(pixels)

    def loop(self, length: int) -> None:
        """From now on stamps jump back after every ``length`` pictures."""
        self._loop = (self.sent, length)

    def stop(self) -> None:
        self._timer.cancel()

    def _publish(self) -> None:
        number = self.sent
        if self._loop is not None:
            first, length = self._loop
            number = first + (number - first) % length
        stamp_ns = FIRST_STAMP_NS + number * self.stamp_step_ns
        header = Header(frame_id="cam")
        header.stamp.sec, header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
        if self.with_clock:
            self._clock.publish(ClockMessage(clock=header.stamp))
        self._message.header = header
        self._images.publish(self._message)
        self.sent += 1


class System:
    """The processes under test, the camera, and everything that was heard.

    The primary tells names of classes and the secondary indices: a result tells whose it is.
    """

    def __init__(
        self, client: Client, start_node: Callable[..., StartedProcess], rate_hz: float = 30.0
    ) -> None:
        self.client = client
        self._start_node = start_node
        self.common: dict[str, Any] = {}
        self.processes: dict[str, StartedProcess] = {}
        self.outputs = client.collect(Detection2DArray, f"{NAMESPACE}/detections", HEARD_QOS)
        self.answers = {
            side: client.collect(Detection2DArray, f"{NAMESPACE}/{side}/detections", HEARD_QOS)
            for side in SIDES
        }
        self._active = client.collect(String, f"{NODE}/active", LATCHED_QOS)
        self.pixels = np.ascontiguousarray(Scene(0).frame(0).pixels[::2, ::2])
        # answers that the redundancy node may not have heard, and its count of results before them
        self._unheard: dict[str, list[slice]] = {side: [] for side in SIDES}
        self._results_before = dict.fromkeys(SIDES, 0)
        self.camera = Camera(client, self.pixels, rate_hz)

    def start(self, name: str, **parameters: Any) -> None:
        """Start one of the three nodes; a side's answers count from :meth:`until_heard` on."""
        if name == "redundancy":
            settings = {**RULE, **self.common, **parameters}
            node = self._start_node("redundancy_node", "-r", f"__ns:={NAMESPACE}", **settings)
        else:
            if "redundancy" in self.processes and name in self.processes:
                self._results_before[name] = self._results(name)
            self._unheard[name].append(slice(len(self.answers[name]), None))
            settings = {
                "model_path": MODEL,
                "class_id_format": "name" if name == "primary" else "index",
                **self.common,
                **parameters,
            }
            node = self._start_node(
                "detector_node",
                *("-r", f"__ns:={NAMESPACE}/{name}"),
                *("-r", f"image_raw:={NAMESPACE}/image_raw"),
                **settings,
            )
        self.processes[name] = node

    def start_all(self, **parameters: Any) -> None:
        """All three, until the primary's results go out and the secondary stands by."""
        for name in ("redundancy", *SIDES):
            self.start(name, **parameters)
        self.until_heard(*SIDES)
        self.until_active("primary")
        self.until_more_from("primary", 5)

    def start_again(self, side: str, **parameters: Any) -> None:
        """A side that died, until it is active again."""
        self.start(side, **parameters)
        self.until_heard(side)
        self.until_back(side)

    def until_heard(self, *sides: str) -> None:
        """The redundancy node has results of these sides: from now on it has all of them."""
        for side in sides:
            before = self._results_before[side]
            self.client.status(
                f"{NODE}: {side}",
                lambda item, before=before: int(values(item)["results"]) > before,
            )
            begin = self._unheard[side][-1].start
            self._results(side)  # whatever was sent before that has come in by now
            self._unheard[side][-1] = slice(begin, len(self.answers[side]))

    def until_back(self, side: str) -> None:
        """A side is active again, and by the rule."""
        self.until_active(side)
        status = self.client.status(f"{NODE}: active side")
        reason = values(status)["last_switch_reason"]
        if "missed" not in reason:  # the other one did, on a machine with too much to do
            assert reason == f"{side} is back: {SWITCH_BACK_AFTER} in time in a row"
        self.until_more_from(side, 5)

    def _results(self, side: str) -> int:
        return int(values(self.client.status(f"{NODE}: {side}"))["results"])

    def counted(self, side: str) -> list[Detection2DArray]:
        """The answers of a side that the redundancy node must have heard."""
        heard = list(self.answers[side])
        for unheard in reversed(self._unheard[side]):
            del heard[unheard]
        return heard

    def _was_not_heard_here(self, side: str, stamp: int) -> bool:
        """Whether it is from the time when a side had been started and this process was deaf to it.

        The redundancy node may have heard it earlier.
        """
        answers = stamps_of(self.answers[side])
        return any(
            (unheard.start == 0 or answers[unheard.start - 1] < stamp)
            and (unheard.start == len(answers) or stamp < answers[unheard.start])
            for unheard in self._unheard[side]
        )

    def signal(self, name: str, number: int) -> None:
        self.processes[name].signal(number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        assert self.processes[name].wait() == -signal.SIGKILL

    # what is heard

    @property
    def active(self) -> str:
        return self._active[-1].data if self._active else ""

    def until_active(self, side: str) -> None:
        self.until(lambda: self.active == side, f"{side} is not active")

    def until_more_from(self, side: str, count: int) -> None:
        """So many more results of a side have gone out."""
        begin = len(self.outputs)
        self.until(
            lambda: [side_of(item) for item in self.outputs[begin:]].count(side) >= count,
            f"no {count} results of {side} went out",
        )

    def until(self, condition: Callable[[], bool], problem: str) -> None:
        try:
            self.client.until(condition, problem)
        except AssertionError:
            pytest.fail(f"{problem}: {self.figures()}")

    def figures(self) -> dict[str, dict[str, str]]:
        """What the redundancy node said of itself last."""
        return {
            name: values(status)
            for name, status in self.client.statuses.items()
            if name.startswith(NODE)
        }

    def lost_by_rule(self) -> int:
        return int(self.figures().get(f"{NODE}: output", {}).get("lost", 0))

    # what must hold

    def finish(self) -> None:
        """No more images; wait until the last results are through."""
        self.camera.stop()
        heard = -1

        def quiet() -> bool:
            nonlocal heard
            count = len(self.outputs) + sum(map(len, self.answers.values()))
            heard, before = count, heard
            self.client.status(f"{NODE}: output")
            self.client.status(f"{NODE}: output")
            return heard == before

        self.until(quiet, "results still come")

    def check(self, loops: int = 1) -> None:
        """Every image that a side answered went out once, in order and unchanged.

        Args:
            loops: how often the stamps began anew, and once.
        """
        published = in_loops(self.outputs)
        assert len(published) == loops
        answered = {side: in_loops(self.answers[side]) for side in SIDES if self.answers[side]}
        counted = {side: in_loops(self.counted(side)) for side in answered}
        lost: set[tuple[int, int]] = set()
        for loop, outputs in enumerate(published):
            stamps = stamps_of(outputs)
            assert stamps == sorted(set(stamps))
            results = [
                {stamp_to_ns(item.header): item for item in parts[loop]}
                for parts in answered.values()
            ]
            for stamp, output in zip(stamps, outputs):
                assert any(
                    output == by_stamp.get(stamp) for by_stamp in results
                ) or self._was_not_heard_here(side_of(output), stamp), (loop, stamp)
            for parts in counted.values():
                lost |= {(loop, stamp) for stamp in set(stamps_of(parts[loop])) - set(stamps)}
        assert len(lost) <= self.lost_by_rule(), sorted(lost)


def stamps_of(messages: Sequence[Detection2DArray]) -> list[int]:
    return [stamp_to_ns(item.header) for item in messages]


def side_of(message: Detection2DArray) -> str:
    """Whose result it is; an empty one counts as the primary's."""
    ids = [item.results[0].hypothesis.class_id for item in message.detections]
    return "secondary" if ids and ids[0].isdigit() else "primary"


def in_loops(messages: Sequence[Detection2DArray]) -> list[list[Detection2DArray]]:
    """Parted where stamps went back by more than half a second."""
    loops: list[list[Detection2DArray]] = [[]]
    for message in messages:
        if loops[-1] and stamp_to_ns(message.header) < stamp_to_ns(loops[-1][-1].header) - 5e8:
            loops.append([])
        loops[-1].append(message)
    return loops


@pytest.fixture
def system(client: Client, start_node) -> Iterator[Callable[..., System]]:
    return functools.partial(System, client, start_node)


@pytest.mark.parametrize("rate_hz", [30.0, 60.0])
def test_killed_and_started_again(system, rate_hz):
    run = system(rate_hz)
    run.start_all()
    run.kill("primary")
    run.until_active("secondary")
    run.until_more_from("secondary", 10)
    run.start_again("primary")
    run.finish()
    run.check()


def test_stopped_and_continued(system):
    run = system()
    run.start_all()
    run.signal("primary", signal.SIGSTOP)
    run.until_active("secondary")
    run.until_more_from("secondary", 40)  # more than any queue of the stopped one holds
    run.signal("primary", signal.SIGCONT)
    run.until_back("primary")
    run.finish()
    run.check()


@pytest.mark.parametrize(
    "order",
    [("redundancy", "secondary", "primary"), ("primary", "secondary", "redundancy")],
    ids=["redundancy node first", "redundancy node last"],
)
def test_any_order_of_starting(system, order):
    run = system()
    for name in order:
        run.start(name)
        if name == "redundancy":
            run.client.until(lambda: bool(run.active))
        else:
            run.client.until(functools.partial(bool, run.answers[name]), f"{name} never answers")
    run.until_heard(*SIDES)
    run.until_active("primary")
    run.until_more_from("primary", 5)
    run.finish()
    run.check()


@pytest.mark.parametrize("absent", SIDES)
def test_one_side_is_absent_from_the_start(system, absent):
    run = system()
    (there,) = set(SIDES) - {absent}
    run.start("redundancy")
    run.start(there)
    run.until_heard(there)
    run.until_active(there)
    run.until_more_from(there, 10)
    status = run.client.status(f"{NODE}: {absent}", lambda item: item.level != DiagnosticStatus.OK)
    assert status.level == DiagnosticStatus.ERROR
    assert "no result yet" in status.message
    run.finish()
    run.check()
    assert {side_of(item) for item in run.outputs} == {there}


def test_both_dead_publishes_nothing_and_either_brings_the_output_back(system):
    run = system()
    run.start_all()
    for side in SIDES:
        run.signal(side, signal.SIGKILL)
    name = f"{NODE}: active side"
    status = run.client.status(name, lambda item: item.level == DiagnosticStatus.STALE)
    assert "both sides are silent: primary stays active" in status.message
    published = len(run.outputs)
    sent = run.camera.sent
    run.client.until(lambda: run.camera.sent >= sent + 30)
    assert len(run.outputs) == published
    assert run.active == "primary"
    run.start("secondary")
    run.until_heard("secondary")
    run.until_active("secondary")
    run.until_more_from("secondary", 5)
    run.finish()
    run.check()


def test_looping_bag(system):
    run = system()
    run.start_all()
    run.camera.loop(30)
    last = run.camera.sent + 2 * 30 + 20  # of the third loop
    run.client.until(lambda: run.camera.sent >= last)
    run.finish()
    run.check(loops=3)
    status = run.client.status(f"{NODE}: output")
    assert values(status)["epoch"] == "2"


@pytest.mark.parametrize("with_clock", [False, True], ids=["without /clock", "with /clock"])
def test_simulated_time(system, with_clock):
    """Deadlines are of a steady clock: a clock that stands still, or is slow, holds nothing up."""
    run = system()
    run.common["use_sim_time"] = True
    run.camera.with_clock = with_clock
    run.camera.stamp_step_ns = run.camera.period_ns // 10
    run.start_all()
    run.kill("primary")
    run.until_active("secondary")
    run.until_more_from("secondary", 10)
    run.finish()
    run.check()


def test_inference_hangs_and_the_detector_exits(system, tmp_path):
    """The secondary takes over, and the primary comes back when it is started again."""
    run = system()
    settings = {
        "model_path": write_network_that_hangs_on_white(tmp_path / "hangs.onnx"),
        "inference_timeout_ms": 1000.0,
        "on_inference_timeout": "exit",
    }
    run.start("redundancy")
    run.start("primary", **settings)
    run.start("secondary")
    run.until_heard(*SIDES)
    run.until_active("primary")
    run.until_more_from("primary", 5)
    run.camera.show(np.full_like(run.pixels, 255))
    run.until_active("secondary")
    run.camera.show(run.pixels)
    assert run.processes["primary"].wait() == 70
    run.until_more_from("secondary", 10)
    run.start_again("primary", **settings)
    run.finish()
    run.check()


def write_network_that_hangs_on_white(path: Path) -> Path:
    """A YOLOX-shaped network that finds nothing, and on a white picture takes minutes to.

    It multiplies a matrix with itself as often as the picture says: 0 or ten million times.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    size = 64
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["go_on_out"]),
            helper.make_node("MatMul", ["product", "matrix"], ["product_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("product", TensorProto.FLOAT, [size, size]),
        ],
        [
            helper.make_tensor_value_info("go_on_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("product_out", TensorProto.FLOAT, [size, size]),
        ],
    )
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "bright"], ["is_white"]),
        helper.make_node("Cast", ["is_white"], ["one"], to=TensorProto.INT64),
        helper.make_node("Mul", ["one", "many"], ["turns"]),
        helper.make_node("Loop", ["turns", "", "matrix"], ["last"], body=body),
        helper.make_node("ReduceMean", ["last"], ["last_mean"], keepdims=0),
        helper.make_node("Mul", ["last_mean", "zeros"], ["output"]),
    ]
    constants = {
        "matrix": np.full((size, size), 1 / size, np.float32),
        "bright": np.float32(190),  # of 255; the input is filled up with grey
        "many": np.int64(10_000_000),
        "zeros": np.zeros((1, 21, 7), np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "hangs",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 21, 7])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path
