"""Starts the demo's processes, watches them, and judges the outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Mapping

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from dla_perception.demo.display import live_table, progress_line, write_pictures
from dla_perception.demo.monitor import SIDES, Monitor, Switch
from dla_perception.demo.scene import Scene
from dla_perception.errors import DlaPerceptionError
from dla_perception.package_share import share_path
from dla_perception.ros.fastdds import settings_without_images

NAMESPACE = "/dla_demo"
RATE_HZ = 30.0
SCORE_THRESHOLD = 0.45
RESULT_DEADLINE_MS = 100.0
SWITCH_BACK_AFTER = 15
"""Of the redundancy node: for a machine whose two detectors, player and table share its cores."""
MODEL = Path(__file__).parent / "model" / "demo_yolo.onnx"

LEAST_PRECISION = 0.9
LEAST_RECALL = 0.9

START_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 5.0
END_TIMEOUT_S = 1.0


class DemoError(DlaPerceptionError):
    """A process of the demo ended on its own, or never said anything."""


class Child:
    """A process of the demo, in a session of its own: Ctrl-C is for the demo to pass on."""

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.module = module
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by end()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise :class:`DemoError` with the end of its log if the process has failed."""
        code = self._process.poll()
        if code:
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").strip().splitlines() or ["no output"]
            raise DemoError(f"{self.module} ended with {code}: {lines[-1]}")

    def output(self) -> str:
        """What it printed until it ended."""
        assert self._process.stdout is not None
        return self._process.stdout.read().decode()

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which check() will tell
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def ask_to_end(self) -> None:
        """Send SIGINT if it still runs; one that waits to be told something is told the end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if not self.has_ended():
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Wait until it has ended; after :data:`END_TIMEOUT_S` it is killed."""
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._log.close()


@dataclass(frozen=True)
class Outcome:
    """What a run of the demo came to.

    Attributes:
        sent: images that the player published.
        received, processed, dropped: of the secondary, which runs all the time.
        published: images whose detections went out.
        lost: images that a side answered but whose detections did not go out.
        lost_by_rule: of these, so many could not: a later one had gone out.
        unanswered: images that no side answered that was heard.
        longest_gap_ms: between two outputs.
        switches: changes of the active side, times in seconds from the start of the images.
        killed_at_s: when the primary was killed, in the same seconds.
        precision, recall: at IoU 0.5, over what was published.
        pictures: files written, the contact sheet last.
    """

    sent: int
    received: int
    processed: int
    dropped: dict[str, int]
    published: int
    lost: int
    lost_by_rule: int
    unanswered: int
    longest_gap_ms: float
    switches: tuple[Switch, ...]
    killed_at_s: float
    precision: float
    recall: float
    pictures: tuple[Path, ...]

    def problems(self) -> list[str]:
        """Why the run was not good enough; empty if it was."""
        if not self.published:
            return ["no detection arrived"]
        problems = []
        if self.precision < LEAST_PRECISION:
            problems.append(f"precision is below {LEAST_PRECISION}")
        if self.recall < LEAST_RECALL:
            problems.append(f"recall is below {LEAST_RECALL}")
        if self.lost > self.lost_by_rule:
            problems.append(
                f"{self.lost - self.lost_by_rule} images were lost that a side had answered in time"
            )
        sides = [switch.to for switch in self.switches if switch.time_s >= self.killed_at_s]
        if sides[:1] != ["secondary"]:
            problems.append("the secondary did not stand in for the primary")
        return problems


class DemoSession:
    """One run of the demo; a context manager that leaves no process behind."""

    def __init__(self, duration_s: float, seed: int, folder: Path) -> None:
        self._duration_s = duration_s
        self._seed = seed
        self._folder = folder
        self._children: list[Child] = []
        self._detectors: dict[str, Child] = {}
        self._promised: set[int] = set()
        self._signal: int | None = None

    def __enter__(self) -> DemoSession:
        if not MODEL.exists():
            raise DemoError(f"{MODEL}: the demo's network is missing; install the package anew")
        # for this process and its children: images are larger than Fast DDS passes on by default
        os.environ.setdefault(
            "FASTDDS_DEFAULT_PROFILES_FILE", str(share_path("config/fastdds.xml"))
        )
        # Ctrl-C is for this program to handle, also where a shell's background job would ignore it,
        # and a SIGTERM must not leave children behind
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        self._monitor = Monitor(NAMESPACE)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._monitor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.ask_to_end()
        for child in self._children:
            child.end()
        self._executor.shutdown()
        self._monitor.destroy_node()
        rclpy.try_shutdown()

    def run(self) -> Outcome:
        """Play the drive, show what the topics say, and return the outcome."""
        for side in SIDES:
            self._start_detector(side)
        self._start(
            "dla_perception.nodes.redundancy_node",
            "--ros-args",
            *("-r", f"__ns:={NAMESPACE}"),
            *("-p", f"switch_back_after:={SWITCH_BACK_AFTER}"),
            *("-p", f"result_deadline_ms:={RESULT_DEADLINE_MS}"),
            *("-p", "diagnostics.period_s:=0.5"),
            env=settings_without_images(os.environ),
        )
        player = self._start(
            "dla_perception.demo.player",
            *("--seed", str(self._seed)),
            *("--rate", str(RATE_HZ)),
            *("--frames", str(round(self._duration_s * RATE_HZ))),
            *("--listeners", str(len(SIDES))),
            "--ros-args",
            *("-r", f"__ns:={NAMESPACE}"),
        )
        self._spin_until(
            lambda: (
                all(self._monitor.runs(side) for side in SIDES)
                and bool(self._monitor.active)
                and self._monitor.is_connected()
            ),
            START_TIMEOUT_S,
            "the nodes are not ready",
        )
        player.tell("go")
        self._spin_until(
            lambda: bool(self._monitor.found) or player.has_ended(),
            START_TIMEOUT_S,
            "no detection has arrived",
        )
        start_s = time.monotonic()
        self._watch(player, start_s)
        sent = json.loads(player.output())["sent"]
        if self._monitor.found:
            self._spin_until(
                lambda: self._monitor.is_settled("secondary"),
                SETTLE_TIMEOUT_S,
                "the frames do not add up",
            )
        return self._judge(sent, start_s)

    def _start_detector(self, side: str) -> None:
        self._detectors[side] = self._start(
            "dla_perception.nodes.detector_node",
            "--ros-args",
            *("-r", f"__ns:={NAMESPACE}/{side}"),
            *("-r", f"image_raw:={NAMESPACE}/image_raw"),
            *("-p", f"model_path:={MODEL}"),
            *("-p", f"score_threshold:={SCORE_THRESHOLD}"),
            *("-p", "diagnostics.period_s:=0.5"),
        )

    def _fail_and_mend(self, elapsed_s: float) -> None:
        """Kill the primary after one third of the time, start it again after two thirds."""
        primary = self._detectors.get("primary")
        if primary is not None and self._duration_s / 3 <= elapsed_s < self._duration_s * 2 / 3:
            primary.kill()
            self._promised = set(self._monitor.answered["primary"])
            self._children.remove(primary)
            del self._detectors["primary"]
        elif primary is None and elapsed_s >= self._duration_s * 2 / 3:
            self._start_detector("primary")

    def _start(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        child = Child(module, *arguments, env=env)
        self._children.append(child)
        return child

    def _on_signal(self, number: int, frame: object) -> None:
        """Only noted: an exception in the middle of rclpy's C++ code comes out as another one."""
        self._signal = number

    def _spin(self) -> None:
        self._executor.spin_once(timeout_sec=0.05)
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self._signal is not None:
            sys.exit(128 + self._signal)
        for child in self._children:
            child.check()

    def _spin_until(self, condition: object, timeout_s: float, problem: str) -> None:
        assert callable(condition)
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                raise DemoError(f"{problem} after {timeout_s:.0f} s")
            self._spin()

    def _watch(self, player: Child, start_s: float) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console()
        with Live(console=console, auto_refresh=False) as live:
            shown_s = start_s
            while not player.has_ended():
                self._spin()
                now_s = time.monotonic()
                elapsed_s = now_s - start_s
                self._fail_and_mend(elapsed_s)
                if now_s - shown_s < (0.25 if console.is_terminal else 5):
                    continue
                shown_s = now_s
                if console.is_terminal:
                    table = live_table(self._monitor, now_s, elapsed_s, self._duration_s)
                    live.update(table, refresh=True)
                else:
                    print(progress_line(self._monitor, now_s, elapsed_s), flush=True)

    def _judge(self, sent: int, start_s: float) -> Outcome:
        monitor = self._monitor
        score = monitor.score()
        pictures: tuple[Path, ...] = ()
        if monitor.found:
            pictures = tuple(write_pictures(self._folder, monitor, Scene(self._seed), RATE_HZ))
        # a detector that has just been started is heard here before the redundancy node hears it:
        # what the primary answered counts up to the kill
        promised = self._promised | monitor.answered["secondary"]
        return Outcome(
            sent=sent,
            received=int(monitor.input_figures("secondary").get("frames_received", 0)),
            processed=len(monitor.answered["secondary"]),
            dropped=monitor.dropped("secondary"),
            published=len(monitor.found),
            lost=len(promised - set(monitor.found)),
            lost_by_rule=monitor.lost_by_rule(),
            unanswered=sent - len(promised | set(monitor.found)),
            longest_gap_ms=max(monitor.gaps_ms, default=0.0),
            switches=tuple(
                replace(switch, time_s=switch.time_s - start_s) for switch in monitor.switches
            ),
            killed_at_s=self._duration_s / 3,
            precision=score.precision,
            recall=score.recall,
            pictures=pictures,
        )
