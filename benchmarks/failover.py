"""How long it is felt when one of two detectors fails: outputs lost, gaps, time to switch.

  tools/run python benchmarks/failover.py
  tools/run python benchmarks/failover.py --quick --json > failover.json

A camera at 30 and at 60 images a second, two detectors and the redundancy node, each a process of
its own, as they are in a robot. In each run the primary fails in one of these ways, is mended a
second after the switch, and comes back by the rule before the next run begins:

  kill9       its process is killed with SIGKILL
  stop        its process is stopped with SIGSTOP: everything in it hangs; later SIGCONT
  exit        an inference hangs: detector_node's watchdog ends the process with code 70
  slow        its engine takes five times as long
  corrupted   its engine returns other boxes; the redundancy node compares (mode: compare)
  image_loss  it loses every second image, picked at random

What is real: the processes, DDS with the package's settings, 640x480 images, redundancy_node with
its default settings and detector_node with all it does, preprocessing, pipeline, decoding and
watchdog included. What stands in: the engine, which takes a fixed time and leaves the processor
alone, as an accelerator does, and returns three objects; and for image_loss the dropping of the
images, which is done where detector_node takes them in.

Of each run, from the last output before the failure until the primary is back:

  lost        images that a detector answered and whose result did not go out, without those in
              the next column. A detector that was started again counts from its first result on
              that redundancy_node has heard: before, the middleware has not connected the two.
  by rule     results that redundancy_node says it had to drop: they came when the active side's
              result for a later image had gone out, so they were not in time
  unanswered  images that neither detector answered: not the business of redundancy, but a sign
              that the machine was too busy to measure
  gap         the longest time between two outputs
  switch      from the failure until the secondary is told to be active; none for a failure that
              the rule does not switch for, as when results are wrong but in time
  told        from the failure until diagnostics tell that the two sides disagree (corrupted);
              they come ten times a second
  duplicates  stamps that went out twice
  order       outputs whose stamp is below the one before
  back        runs after which the primary was active again within 30 s; the others count as well
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import functools
import json
import os
import platform
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import numpy as np

from dla_perception.detection.description import ModelDescription, write_description
from dla_perception.engines.engine import EngineInfo, InferenceTimeoutError, TensorSpec
from dla_perception.errors import DlaPerceptionError
from dla_perception.package_share import share_path
from dla_perception.ros.fastdds import settings_without_images

FAULTS = ("kill9", "stop", "exit", "slow", "corrupted", "image_loss")
QUICK_FAULTS = ("kill9", "stop", "slow")
RATES_HZ = (30.0, 60.0)
RUNS = 10
SIDES = ("primary", "secondary")

INFERENCE_MS = 12.0
"""Of the engine that stands in: with two in flight it could do 83 images a second."""
SLOW_FACTOR = 5
HANG_TIMEOUT_MS = 250.0
HANG_EXIT_CODE = 70

SETTLED_S = 1.0
"""How long the failure lasts on after the switch."""
NO_SWITCH_S = 2.0
"""How long one lasts that nothing switches for."""
BACK_S = 30.0
"""A primary that was mended and is not back by then counts as such, and all is started anew."""
TIMEOUT_S = 60.0
END_TIMEOUT_S = 3.0

IMAGE_SIZE = (640, 480)
INPUT_SIZE = (320, 256)
STRIDES = (8, 16, 32)
CLASS_NAMES = ("cone", "ball", "box")


class BenchmarkError(DlaPerceptionError):
    """A process ended on its own, or something never happened."""


class InterruptError(Exception):
    """Ctrl-C or SIGTERM; all processes are to be ended in order first."""


_signals: List[int] = []
"""That came in. An exception raised by the signal itself can get lost, for example in a fork."""


# The detectors


@dataclass
class Faults:
    """What is wrong with a detector; commands for it come on standard input, one a line."""

    slow: bool = False
    hangs: bool = False
    corrupted: bool = False
    loses_images: bool = False

    def obey(self, commands: IO[str]) -> None:
        """Change as told until the benchmark is gone, and then end this process."""
        for line in commands:
            for name in ("slow", "hangs", "corrupted", "loses_images"):
                setattr(self, name, name == line.strip())
        os.kill(os.getpid(), signal.SIGTERM)


class TimedEngine:
    """Stands in for an accelerator: each inference takes a fixed time, one after the other."""

    slots = 2

    def __init__(self, faults: Faults, inference_s: float) -> None:
        self._faults = faults
        self._inference_s = inference_s
        width, height = INPUT_SIZE
        self.inputs = [TensorSpec("images", (1, 3, height, width), np.dtype("float32"))]
        self._right, self._wrong = yolox_outputs(0), yolox_outputs(2)
        self.outputs = [
            TensorSpec(f"head_s{stride}", array.shape, array.dtype)
            for stride, array in zip(STRIDES, self._right)
        ]
        self.info = EngineInfo("stand-in", "stand-in", "0", "cpu", "0" * 64)
        self._input = [np.zeros(self.inputs[0].shape, np.float32) for _ in range(self.slots)]
        self._output = [[array.copy() for array in self._right] for _ in range(self.slots)]
        self._done = [threading.Event() for _ in range(self.slots)]
        self._submitted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def input_buffers(self, slot: int) -> Sequence[np.ndarray]:
        return [self._input[slot]]

    def output_buffers(self, slot: int) -> Sequence[np.ndarray]:
        return self._output[slot]

    def submit(self, slot: int) -> None:
        self._done[slot].clear()
        self._submitted.put(slot)

    def wait(self, slot: int, timeout_s: float | None = None) -> None:
        if not self._done[slot].wait(timeout_s):
            raise InferenceTimeoutError("the inference has not finished")

    def close(self) -> None:
        self._submitted.put(None)

    def _run(self) -> None:
        for slot in iter(self._submitted.get, None):
            time.sleep(self._inference_s * (SLOW_FACTOR if self._faults.slow else 1))
            while self._faults.hangs:
                time.sleep(0.01)
            found = self._wrong if self._faults.corrupted else self._right
            for buffer, array in zip(self._output[slot], found):
                np.copyto(buffer, array)
            self._done[slot].set()


def yolox_outputs(shift: int) -> List[np.ndarray]:
    """Head convolutions of YOLOX, three objects of 64 pixels, ``shift`` * 16 to the right."""
    outputs = []
    for stride in STRIDES:
        shape = (1, 5 + len(CLASS_NAMES), INPUT_SIZE[1] // stride, INPUT_SIZE[0] // stride)
        output = np.full(shape, -9, np.float32)
        output[:, :4] = 0
        if stride == 16:
            for class_id in range(len(CLASS_NAMES)):
                cell = output[0, :, 8, 4 + 5 * class_id + shift]
                cell[2:4] = np.log(4)
                cell[4] = cell[5 + class_id] = 4
        outputs.append(output)
    return outputs


def run_side(inference_ms: float, ros_arguments: Sequence[str]) -> int:
    """A process: detector_node with the engine that stands in."""
    from dla_perception.nodes import detector_node
    from dla_perception.nodes.spinning import spin_node

    faults = Faults()
    picks = random.Random(0)

    class Side(detector_node.DetectorNode):
        """Loses images when told to."""

        def _on_image(self, *arguments: Any) -> None:
            if not faults.loses_images or picks.random() < 0.5:
                super()._on_image(*arguments)

    detector_node.open_engine = lambda *arguments: TimedEngine(faults, inference_ms / 1e3)
    threading.Thread(target=faults.obey, args=(sys.stdin,), daemon=True).start()
    return spin_node(Side, ros_arguments)


# The camera


def run_camera(rate_hz: float, ros_arguments: Sequence[str]) -> int:
    """A process: images at a steady rate, and beside them the header of each that was sent."""
    import rclpy
    from rclpy.qos import qos_profile_sensor_data
    from sensor_msgs.msg import Image
    from std_msgs.msg import Header

    from dla_perception.ros.images import image_from_pixels

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    rclpy.init(args=ros_arguments)
    node = rclpy.create_node("camera")
    images = node.create_publisher(Image, "image_raw", qos_profile_sensor_data)
    headers = node.create_publisher(Header, "sent", heard_qos())
    width, height = IMAGE_SIZE
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    message = image_from_pixels(pixels, Header(frame_id="camera"))
    period_ns = round(1e9 / rate_hz)
    first_ns, start_ns = time.time_ns(), time.monotonic_ns()
    number = 0
    while not ended.wait(max(start_ns + number * period_ns - time.monotonic_ns(), 0) / 1e9):
        stamp = message.header.stamp
        stamp.sec, stamp.nanosec = divmod(first_ns + number * period_ns, 1_000_000_000)
        images.publish(message)
        headers.publish(message.header)
        # a camera does not make up for images that it could not send
        number = max(number + 1, (time.monotonic_ns() - start_ns) // period_ns)
    rclpy.try_shutdown()
    return 0


def heard_qos() -> Any:
    """For listeners that count: they must not miss what they count."""
    from rclpy.qos import QoSProfile, ReliabilityPolicy

    return QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)


# What is heard, and what it comes to


@dataclass
class Record:
    """What was heard on the topics, in the order of arrival; times in seconds, stamps in ns.

    Attributes:
        sent: stamps of the images.
        answered: of each side, stamps that redundancy_node must have heard.
        outputs: when a result went out, and its stamp.
        active: when which side was told to be active.
        lost_by_rule: the redundancy node's own count.
        disagreements: when its count of them rose.
    """

    sent: List[int] = field(default_factory=list)
    answered: Dict[str, List[int]] = field(default_factory=lambda: {side: [] for side in SIDES})
    outputs: List[Tuple[float, int]] = field(default_factory=list)
    active: List[Tuple[float, str]] = field(default_factory=list)
    lost_by_rule: int = 0
    disagreements: List[float] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """What one failure came to; times in ms, ``None`` for what did not happen."""

    lost: int
    lost_by_rule: int
    unanswered: int
    gap_ms: float
    switch_ms: float | None
    told_ms: float | None
    duplicates: int
    order_violations: int
    back: bool = True


def judge(record: Record, fault_s: float, lost_by_rule_before: int = 0) -> Run:
    """What a failure at ``fault_s`` came to, with all that has been heard since."""
    times = [time_s for time_s, _ in record.outputs]
    begin = max((i for i, time_s in enumerate(times) if time_s < fault_s), default=0)
    outputs = [stamp for _, stamp in record.outputs[begin:]]
    published = {stamp for _, stamp in record.outputs}
    # what is above the last output may still go out
    window = range(outputs[0], max(outputs) + 1)
    answered = {stamp for stamps in record.answered.values() for stamp in stamps}
    missing = sum(stamp in window for stamp in answered - published)
    by_rule = record.lost_by_rule - lost_by_rule_before
    switches = [time_s for time_s, side in record.active if time_s > fault_s and side != SIDES[0]]
    told = [time_s for time_s in record.disagreements if time_s > fault_s]
    return Run(
        lost=max(missing - by_rule, 0),
        lost_by_rule=by_rule,
        unanswered=sum(stamp in window for stamp in set(record.sent) - answered - published),
        gap_ms=max((b - a for a, b in zip(times[begin:], times[begin + 1 :])), default=0.0) * 1e3,
        switch_ms=(switches[0] - fault_s) * 1e3 if switches else None,
        told_ms=(told[0] - fault_s) * 1e3 if told else None,
        duplicates=sum(count - 1 for count in Counter(outputs).values()),
        order_violations=sum(b < a for a, b in zip(outputs, outputs[1:])),
    )


class Listener:
    """A node with a thread of its own that keeps a :class:`Record`."""

    def __init__(self, namespace: str) -> None:
        import rclpy
        from diagnostic_msgs.msg import DiagnosticArray
        from rclpy.executors import SingleThreadedExecutor
        from std_msgs.msg import Header, String
        from vision_msgs.msg import Detection2DArray

        from dla_perception.ros.images import stamp_to_ns
        from dla_perception.ros.qos import LATCHED_QOS

        self.record = Record()
        self._namespace = namespace
        self._stamp_of: Callable[[Any], int] = stamp_to_ns
        self._heard_here = dict.fromkeys(SIDES, 0)
        self._disagreements = 0
        self._results = dict.fromkeys(SIDES, 0)  # as the redundancy node counts them
        self._heard_after: Dict[str, int | None] = dict.fromkeys(SIDES, 0)
        self._node = rclpy.create_node("failover_listener", namespace=namespace)
        subscribe, qos = self._node.create_subscription, heard_qos()
        subscribe(Detection2DArray, "detections", self._on_output, qos)
        subscribe(String, "redundancy_node/active", self._on_active, LATCHED_QOS)
        for side in SIDES:
            on_answer = functools.partial(self._on_answer, side)
            subscribe(Detection2DArray, f"{side}/detections", on_answer, qos)
        subscribe(Header, "sent", self._on_sent, qos)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, 100)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        # what is heard gets its time at once, whatever the rest of the program is waiting for
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._executor.shutdown()
        self._thread.join()
        self._node.destroy_node()

    def _spin(self) -> None:
        from rclpy.executors import ExternalShutdownException

        with suppress(ExternalShutdownException):
            self._executor.spin()

    def starts_again(self, side: str) -> None:
        """Its results do not count until the redundancy node has one of them."""
        self._heard_after[side] = self._results[side]

    @property
    def active(self) -> str:
        return self.record.active[-1][1] if self.record.active else ""

    def what_is_heard(self, side: str) -> str:
        """For whoever looks for the reason why a side is not used."""
        return (
            f"of {side} {self._heard_here[side]} results were heard here and "
            f"{self._results[side]} by redundancy_node; {self.active} is active"
        )

    def is_steady(self) -> bool:
        """Both sides answer most images, and the primary's results go out."""
        recent = [stamp for _, stamp in self.record.outputs[-20:-5]]
        return (
            self.active == SIDES[0]
            and not any(after is not None for after in self._heard_after.values())
            and all(
                sum(stamp in self.record.answered[side][-30:] for stamp in recent) >= 12
                for side in SIDES
            )
        )

    def _on_output(self, message: Any) -> None:
        self.record.outputs.append((time.monotonic(), self._stamp_of(message.header)))

    def _on_active(self, message: Any) -> None:
        self.record.active.append((time.monotonic(), message.data))

    def _on_answer(self, side: str, message: Any) -> None:
        self._heard_here[side] += 1
        if self._heard_after[side] is None:
            self.record.answered[side].append(self._stamp_of(message.header))

    def _on_sent(self, message: Any) -> None:
        self.record.sent.append(self._stamp_of(message))

    def _on_diagnostics(self, message: Any) -> None:
        for status in message.status:
            if not status.name.startswith(f"{self._namespace}/redundancy_node: "):
                continue
            name = status.name.rpartition(": ")[2]
            values = {item.key: item.value for item in status.values}
            if name in SIDES:
                self._results[name] = int(values["results"])
                after = self._heard_after[name]
                if after is not None and self._results[name] > after:
                    self._heard_after[name] = None
            elif name == "output":
                self.record.lost_by_rule = int(values["lost"])
            elif name == "agreement":
                if int(values["disagreements"]) > self._disagreements:
                    self.record.disagreements.append(time.monotonic())
                self._disagreements = int(values["disagreements"])


# The processes


def die_with_parent() -> None:
    """In a child, before its program starts: be killed when this program is gone (Linux)."""
    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Child:
    """A process in a session of its own: Ctrl-C is for this program to pass on."""

    def __init__(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by end()
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=die_with_parent,
            env={**os.environ, **(env or {})},
        )

    def check(self) -> None:
        """Raise :class:`BenchmarkError` with the end of its log if the process has ended."""
        code = self._process.poll()
        if code is not None:
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").strip().splitlines() or ["no output"]
            raise BenchmarkError(f"{self._name} ended with {code}: {lines[-1]}")

    def tell(self, command: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def exit_code(self) -> int | None:
        """``None`` while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Also one that is stopped hears this."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGINT)

    def end(self) -> None:
        """Wait until it has ended; after :data:`END_TIMEOUT_S` it is killed."""
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):  # what was written to it and not read
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._log.close()


def free_shared_memory() -> None:
    """Remove what Fast DDS leaves of processes that were killed, 34 MB for each.

    It locks a file for each of its segments for as long as the process lives.
    """
    for lock in Path("/dev/shm").glob(f"fastdds_{'[0-9a-f]' * 16}_el"):
        with suppress(OSError), open(lock, "rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > 10:  # or it may not be locked yet
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock.with_name(lock.name[: -len("_el")]).unlink()
                lock.unlink()


@dataclass(frozen=True)
class Setting:
    """What the nodes are told, and the faults that are looked at so."""

    faults: Tuple[str, ...]
    mode: str = "failover"
    on_inference_timeout: str = "error"


SETTINGS = (
    Setting(("kill9", "stop", "slow", "image_loss")),
    # not for stop: a process that was stopped in an inference wakes up to find it overdue
    Setting(("exit",), on_inference_timeout="exit"),
    Setting(("corrupted",), mode="compare"),
)


class System:
    """Camera, two detectors and redundancy node; a context manager that leaves none behind."""

    def __init__(self, rate_hz: float, setting: Setting, inference_ms: float) -> None:
        self._rate_hz = rate_hz
        self._setting = setting
        self._inference_ms = inference_ms
        self._namespace = f"/failover_{os.getpid()}"
        self._children: Dict[str, Child] = {}

    def __enter__(self) -> System:
        self._folder = tempfile.TemporaryDirectory()
        self._listener = Listener(self._namespace)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children.values():
            child.ask_to_end()
        for child in self._children.values():
            child.end()
        self._listener.close()
        self._folder.cleanup()
        free_shared_memory()

    def run(self, fault: str, phase: float) -> Run:
        """Let the primary fail once, in the middle of a period if ``phase`` is 0.5."""
        listener = self._listener
        self._until(listener.is_steady, f"{fault}: the detectors do not answer steadily")
        outputs = len(listener.record.outputs)
        self._until(lambda: len(listener.record.outputs) > outputs, "nothing goes out")
        self._wait(phase / self._rate_hz)
        lost_by_rule = listener.record.lost_by_rule
        fault_s = time.monotonic()
        self._break(fault)
        end_s = fault_s + NO_SWITCH_S
        while listener.active == SIDES[0] and time.monotonic() < end_s:
            self._pause()
        if listener.active != SIDES[0]:
            self._wait(SETTLED_S)
        self._mend(fault)
        end_s = time.monotonic() + BACK_S
        while not listener.is_steady() and time.monotonic() < end_s:
            self._pause()
        back = listener.is_steady()
        self._wait(0.5)  # for the last answers and figures
        if not back:
            print(
                f"{fault} at {self._rate_hz:g}/s: the primary was not back after {BACK_S:.0f} s; "
                f"{listener.what_is_heard(SIDES[0])}",
                file=sys.stderr,
                flush=True,
            )
        return replace(judge(listener.record, fault_s, lost_by_rule), back=back)

    def _break(self, fault: str) -> None:
        primary = self._children[SIDES[0]]
        if fault == "kill9":
            del self._children[SIDES[0]]  # its end is no failure of the benchmark
            primary.signal(signal.SIGKILL)
            primary.end()
        elif fault == "stop":
            primary.signal(signal.SIGSTOP)
        else:
            commands = {"exit": "hangs", "image_loss": "loses_images"}
            primary.tell(commands.get(fault, fault))
        if fault == "exit":
            # the watchdog ends it while the listener goes on
            self._leaving = self._children.pop(SIDES[0])

    def _mend(self, fault: str) -> None:
        if fault == "exit":
            try:
                self._until(
                    lambda: self._leaving.exit_code() is not None, "exit: the detector goes on"
                )
            finally:
                self._leaving.ask_to_end()
                self._leaving.end()
            if self._leaving.exit_code() != HANG_EXIT_CODE:
                raise BenchmarkError(
                    f"exit: the detector ended with {self._leaving.exit_code()}; "
                    f"expected {HANG_EXIT_CODE}"
                )
        if fault in ("kill9", "exit"):
            free_shared_memory()
            self._listener.starts_again(SIDES[0])
            self._start_side(SIDES[0])
        elif fault == "stop":
            self._children[SIDES[0]].signal(signal.SIGCONT)
        else:
            self._children[SIDES[0]].tell("well")

    def _start(self) -> None:
        description = Path(self._folder.name) / "stand_in.yaml"
        write_description(
            description,
            ModelDescription("yolox", len(CLASS_NAMES), INPUT_SIZE, CLASS_NAMES, strides=STRIDES),
        )
        for side in SIDES:
            self._start_side(side)
        self._children["redundancy_node"] = Child(
            "redundancy_node",
            *("-m", "dla_perception.nodes.redundancy_node", "--ros-args"),
            *("-r", f"__ns:={self._namespace}"),
            *("-p", f"mode:={self._setting.mode}"),
            *("-p", "diagnostics.period_s:=0.1"),
            env=settings_without_images(os.environ),
        )
        self._children["camera"] = Child(
            "camera",
            *(__file__, "--process", "camera", "--rate", str(self._rate_hz), "--ros-args"),
            *("-r", f"__ns:={self._namespace}"),
        )

    def _start_side(self, side: str) -> None:
        self._children[side] = Child(
            side,
            *(__file__, "--process", "side", "--inference-ms", str(self._inference_ms)),
            *("--ros-args", "-r", f"__ns:={self._namespace}/{side}"),
            *("-r", f"image_raw:={self._namespace}/image_raw"),
            *("-p", "model_path:=stand-in"),
            *("-p", f"model_description_path:={self._folder.name}/stand_in.yaml"),
            *("-p", f"inference_timeout_ms:={HANG_TIMEOUT_MS}"),
            *("-p", f"on_inference_timeout:={self._setting.on_inference_timeout}"),
        )

    def _pause(self) -> None:
        time.sleep(0.005)
        if _signals:
            raise InterruptError
        for child in self._children.values():
            child.check()

    def _wait(self, seconds: float) -> None:
        """Go on for so long while all goes well."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._pause()

    def _until(self, condition: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > end:
                raise BenchmarkError(f"{problem} for {TIMEOUT_S:.0f} s: is the machine busy?")
            self._pause()


# The figures


@dataclass(frozen=True)
class Case:
    """All runs of one fault at one rate."""

    fault: str
    rate_hz: float
    runs: Tuple[Run, ...]

    def summary(self) -> Dict[str, Any]:
        """As ``--json`` gives it."""
        switches = [run.switch_ms for run in self.runs if run.switch_ms is not None]
        return {
            "fault": self.fault,
            "rate_hz": self.rate_hz,
            "runs": len(self.runs),
            "frames_lost_worst": max(run.lost for run in self.runs),
            "longest_gap_ms_worst": round(max(run.gap_ms for run in self.runs), 1),
            "switch_ms_median": round(statistics.median(switches), 1) if switches else None,
            "duplicates": sum(run.duplicates for run in self.runs),
            "order_violations": sum(run.order_violations for run in self.runs),
        }

    def row(self) -> List[str]:
        """As the table shows it."""
        lost, by_rule = (
            [getattr(run, name) for run in self.runs] for name in ("lost", "lost_by_rule")
        )
        switched = sum(run.switch_ms is not None for run in self.runs)
        summary = self.summary()
        return [
            self.fault,
            f"{self.rate_hz:g}",
            str(len(self.runs)),
            f"{statistics.median(lost):g} / {max(lost)}",
            str(max(by_rule)),
            str(max(run.unanswered for run in self.runs)),
            median_and_worst([run.gap_ms for run in self.runs]),
            median_and_worst([run.switch_ms for run in self.runs]),
            f"{switched} of {len(self.runs)}",
            median_and_worst([run.told_ms for run in self.runs]),
            str(summary["duplicates"]),
            str(summary["order_violations"]),
            f"{sum(run.back for run in self.runs)} of {len(self.runs)}",
        ]


COLUMNS = (
    "fault",
    "images/s",
    "runs",
    "lost",
    "by rule",
    "unanswered",
    "gap, ms",
    "switch, ms",
    "switched",
    "told, ms",
    "duplicates",
    "order",
    "back",
)


def median_and_worst(times_ms: Sequence[float | None]) -> str:
    known = [time_ms for time_ms in times_ms if time_ms is not None]
    return f"{statistics.median(known):.0f} / {max(known):.0f}" if known else "none"


def measure(
    faults: Sequence[str], rates_hz: Sequence[float], runs: int, inference_ms: float
) -> Iterator[Case]:
    """Each case when it is done; the phase within a period differs from run to run."""
    for rate_hz in rates_hz:
        for setting in SETTINGS:
            chosen = [fault for fault in setting.faults if fault in faults]
            if not chosen:
                continue
            with ExitStack() as stack:
                system = stack.enter_context(System(rate_hz, setting, inference_ms))
                for fault in chosen:
                    results = []
                    for index in range(runs):
                        results.append(system.run(fault, (index + 0.5) / runs))
                        if not results[-1].back:
                            stack.close()
                            system = stack.enter_context(System(rate_hz, setting, inference_ms))
                    yield Case(fault, rate_hz, tuple(results))


def print_table(cases: Sequence[Case]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Median / worst of all runs", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "fault" else "right")
    for case in cases:
        table.add_row(*case.row())
    console = Console()
    console.print(table) if console.is_terminal else Console(width=160).print(table)


def read_arguments(arguments: Sequence[str] | None) -> Tuple[argparse.Namespace, List[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--quick", action="store_true", help="three faults, one run each, in less than 60 s"
    )
    parser.add_argument(
        "--runs", type=int, metavar="N", help=f"of each fault at each rate (default: {RUNS})"
    )
    parser.add_argument(
        "--fault", action="append", choices=FAULTS, help="only this one; may be repeated"
    )
    parser.add_argument(
        "--rate",
        action="append",
        type=float,
        metavar="HZ",
        help="images a second; may be repeated (default: 30 and 60)",
    )
    parser.add_argument(
        "--inference-ms",
        type=float,
        default=INFERENCE_MS,
        metavar="MS",
        help="time of the engine that stands in (default: %(default)s)",
    )
    parser.add_argument("--process", choices=("side", "camera"), help=argparse.SUPPRESS)
    chosen, ros_arguments = parser.parse_known_args(arguments)
    if ros_arguments and chosen.process is None:
        parser.error(f"unknown: {' '.join(ros_arguments)}")
    chosen.fault = chosen.fault or list(QUICK_FAULTS if chosen.quick else FAULTS)
    chosen.rate = chosen.rate or list(RATES_HZ)
    chosen.runs = (1 if chosen.quick else RUNS) if chosen.runs is None else chosen.runs
    if chosen.runs < 1:
        parser.error(f"--runs: {chosen.runs}; expected 1 or more")
    for rate_hz in chosen.rate:
        if not 5 <= rate_hz <= 200:
            parser.error(f"--rate: {rate_hz:g}; expected 5 to 200")
    if not 0 < chosen.inference_ms * SLOW_FACTOR < HANG_TIMEOUT_MS / 2:
        limit = HANG_TIMEOUT_MS / 2 / SLOW_FACTOR
        parser.error(f"--inference-ms: {chosen.inference_ms:g}; expected 0 to {limit:g}")
    return chosen, ros_arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; or be one of the processes."""
    chosen, ros_arguments = read_arguments(arguments)
    if chosen.process == "side":
        return run_side(chosen.inference_ms, ros_arguments)
    if chosen.process == "camera":
        return run_camera(chosen.rate[0], ros_arguments)
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    # for this process and its children: images are larger than Fast DDS passes on by default
    os.environ.setdefault("FASTDDS_DEFAULT_PROFILES_FILE", str(share_path("config/fastdds.xml")))
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, frame: _signals.append(received))
    if not chosen.json:
        load = os.getloadavg()[0]
        print(
            f"{os.cpu_count()} cores ({platform.machine()}), load {load:.1f} at the start, "
            f"an inference takes {chosen.inference_ms:g} ms"
        )
    cases = []
    try:
        for case in measure(chosen.fault, chosen.rate, chosen.runs, chosen.inference_ms):
            cases.append(case)
            gaps = median_and_worst([run.gap_ms for run in case.runs])
            print(f"{case.fault} at {case.rate_hz:g}/s: gap {gaps} ms", file=sys.stderr, flush=True)
    except DlaPerceptionError as error:
        print(error, file=sys.stderr)
        return 1
    except InterruptError:
        return 128 + _signals[0]
    finally:
        rclpy.try_shutdown()
    if chosen.json:
        print(json.dumps({"faults": [case.summary() for case in cases]}, indent=1))
    else:
        print_table(cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
