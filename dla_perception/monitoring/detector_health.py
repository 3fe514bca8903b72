"""The health of a running detector: what happened to its frames, and how to mend what is wrong."""

from __future__ import annotations

import threading
from typing import Mapping, Sequence

from dla_perception.engines.engine import EngineInfo
from dla_perception.monitoring.board import board_name
from dla_perception.monitoring.health import Finding, Level, worst
from dla_perception.monitoring.latency import (
    DeadlineMonitor,
    FrameCounts,
    RateWindow,
    StageTimes,
)

STAGES = ("wait", "preprocess", "inference", "postprocess", "publish", "total")
"""``wait``: behind other frames, in the mailbox and in the engine; ``total``: from the arrival of
the image to the publication of its detections."""

RECENT_S = 5.0
"""How long a dropped frame stays a problem; also the window of rates and percentiles."""

MAX_INVALID_FRAMES = 5
"""So many frames in a row with values that are not finite are an error, not a warning."""

MAX_AGE_S = 60.0
MAX_AHEAD_S = 0.1
"""An image older than the one, or further in the future than the other, was not stamped by the
clock that the node reads: a bag without use_sim_time, a camera with a clock of its own."""

NOT_A_PROBLEM = ("replaced", "stopped")
"""Reasons to drop a frame that are no fault: a newer frame came, the node was told to stop."""


class InputHealth:
    """The images of one camera.

    Attributes:
        counts: what became of the images.
        encoding: of the last image, as its message says.
        size: width and height of the last usable image in pixels.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = FrameCounts()
        self._rate = RateWindow(RECENT_S)
        self._stamp_rate = RateWindow(RECENT_S)
        self._last_s: float | None = None
        self.encoding = ""
        self.size: tuple[int, int] | None = None
        self._stamp_ns: int | None = None
        self._age_s: float | None = None
        self._last_error = ""
        self._last_error_s: float | None = None
        self._matched: int | None = None
        self._incompatible = ""

    def matched(self, publishers: int) -> None:
        """So many publishers are connected now."""
        self._matched = publishers
        if publishers:
            self._incompatible = ""

    def incompatible(self, policy: str) -> None:
        """A publisher was met that cannot be heard because of this policy."""
        self._incompatible = policy

    def received(self, stamp_ns: int, clock_ns: int, now_s: float) -> None:
        """Count an image.

        Args:
            stamp_ns: its stamp.
            clock_ns: the node's clock, which may be simulated.
            now_s: seconds of a steady clock.
        """
        age_s = (clock_ns - stamp_ns) / 1e9
        self._age_s = age_s if -MAX_AHEAD_S <= age_s <= MAX_AGE_S else None
        self.counts.receive()
        self._rate.add(now_s)
        if self._stamp_ns is not None and stamp_ns < self._stamp_ns:
            self._stamp_rate.clear()  # a bag began again: rates across the jump mean nothing
        self._stamp_rate.add(stamp_ns / 1e9)
        self._last_s = now_s
        self._stamp_ns = stamp_ns

    def dropped(self, reason: str, error: str, now_s: float) -> None:
        """Count an image that was not answered."""
        self.counts.drop(reason)
        if reason not in NOT_A_PROBLEM:
            self._last_error = f"{reason}: {error}"
            self._last_error_s = now_s

    def reset(self) -> None:
        """Forget everything but what the camera is like."""
        self.counts.clear()
        self._rate.clear()
        self._stamp_rate.clear()
        self._last_error_s = None

    def finding(
        self, now_s: float, started_s: float, timeout_s: float, publishers: int, topic: str
    ) -> Finding:
        """Judge the camera; ``started_s`` is when images began to be expected."""
        problems = []
        silent_s = now_s - max(self._last_s or started_s, started_s)
        if silent_s > timeout_s:
            problems.append((Level.STALE, self._silence(silent_s, publishers, topic)))
        if self._last_error_s is not None and now_s - self._last_error_s <= RECENT_S:
            problems.append((Level.WARN, f"an image could not be used: {self._last_error}"))
        if self._stamp_ns == 0:
            problems.append(
                (Level.WARN, "the stamp of the images is zero: have the camera driver set it")
            )
        level, message = worst(problems, "images come")
        dropped = self.counts.dropped()
        values = {
            "topic": topic,
            "publishers": str(publishers),
            "publishers_connected": "n/a" if self._matched is None else str(self._matched),
            "frame_rate_node": _figure(self._rate.rate(now_s)),
            "frame_rate_msg": _figure(
                self._stamp_rate.rate((self._stamp_ns or 0) / 1e9) if self._stamp_ns else None
            ),
            "frames_received": str(self.counts.received),
            "frames_published": str(self.counts.published),
            "total_dropped_frames": str(sum(dropped.values())),
            **{f"dropped_{reason.replace(' ', '_')}": str(n) for reason, n in dropped.items()},
            "encoding": self.encoding or "n/a",
            "image_size": "{}x{}".format(*self.size) if self.size else "n/a",
            "image_age_ms": "n/a" if self._age_s is None else f"{max(self._age_s, 0) * 1e3:.1f}",
            "last_frame_timestamp": "n/a" if self._stamp_ns is None else _stamp(self._stamp_ns),
        }
        return Finding(f"input {self.name}", level, message, values)

    def _silence(self, silent_s: float, publishers: int, topic: str) -> str:
        if publishers == 0:
            return f"nobody publishes {topic}: start the camera, or remap the topic"
        if self._incompatible and not self._matched:
            return (
                f"the publisher of {topic} cannot be heard: its {self._incompatible} does not fit "
                "what this node asks for; set image_reliability to best_effort, which hears all"
            )
        if self._last_s is not None:
            return f"no image for {silent_s:.1f} s on {topic}: look at the camera"
        return (
            f"{topic} has a publisher, but no image has come. Images over 512 KB are lost by "
            "Fast DDS's default settings: start the camera and this node with "
            "FASTDDS_DEFAULT_PROFILES_FILE (before ROS 2 Kilted: FASTRTPS_DEFAULT_PROFILES_FILE) "
            "set to this package's config/fastdds.xml"
        )


class DetectorHealth:
    """Collects what happens in a detector node; safe for use from its threads."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self.set_inputs(inputs)
        self._stages = StageTimes(STAGES, RECENT_S)
        self._output_rate = RateWindow(RECENT_S)
        self._deadline = DeadlineMonitor()
        self._board = board_name()
        self._engine: EngineInfo | None = None
        self._engine_error = ""
        self._elsewhere = ""
        self._self_test = ""
        self._started_s: float | None = None
        self._detections = 0
        self._invalid = 0
        self._invalid_frames = 0
        self._busy_ms = 0.0
        self._hanging_s: float | None = None

    def set_inputs(self, names: Sequence[str]) -> None:
        """The cameras from now on."""
        self.inputs = {name: InputHealth(name) for name in names}

    # What happens --------------------------------------------------------------------------------

    def engine_loaded(
        self,
        info: EngineInfo,
        dla_core: int = -1,
        gpu_fallback: str = "forbid",
        self_test: str = "nothing recorded",
    ) -> None:
        """The engine is ready.

        Args:
            info: what it is.
            dla_core: the core that was asked for, -1 for none.
            gpu_fallback: ``warn`` to be told of layers that run elsewhere.
            self_test: what the self-test gave, in words.
        """
        self._engine = info
        self._engine_error = ""
        self._self_test = self_test
        self._elsewhere = ""
        if dla_core >= 0 and gpu_fallback == "warn":
            self._elsewhere = info.layers_elsewhere()

    def engine_failed(self, error: str) -> None:
        """The engine could not be made ready."""
        self._engine = None
        self._engine_error = error

    def engine_released(self) -> None:
        """The engine is gone, as it should be."""
        self._engine = None

    def activated(self, now_s: float) -> None:
        """Images are expected from now on."""
        self._started_s = now_s

    def deactivated(self) -> None:
        """Images are no longer expected."""
        self._started_s = None
        self._hanging_s = None

    def inference_hangs(self, waited_s: float) -> None:
        """An inference has not come back for ``waited_s`` seconds."""
        self._hanging_s = waited_s

    def published(
        self,
        source: str,
        detections: int,
        invalid: int,
        times_ms: Mapping[str, float],
        max_latency_ms: float,
        now_s: float,
    ) -> None:
        """A frame was answered.

        Args:
            source: the camera.
            detections: how many objects were found.
            invalid: how many values of the network were dropped as not finite.
            times_ms: one entry per stage of :data:`STAGES`.
            max_latency_ms: the limit for ``total``; 0: none.
            now_s: seconds of a steady clock.
        """
        with self._lock:
            self._hanging_s = None
            self.inputs[source].counts.publish()
            self._stages.add(times_ms, now_s)
            self._busy_ms += times_ms["inference"]
            self._output_rate.add(now_s)
            self._deadline.add(times_ms["total"], max_latency_ms, now_s)
            self._detections += detections
            self._invalid += invalid
            self._invalid_frames = self._invalid_frames + 1 if invalid else 0

    def reset(self, now_s: float) -> None:
        """Start all statistics again."""
        with self._lock:
            for camera in self.inputs.values():
                camera.reset()
            self._stages.clear()
            self._output_rate.clear()
            self._deadline.clear()
            self._detections = 0
            self._invalid = 0
            self._invalid_frames = 0

    # What it means -------------------------------------------------------------------------------

    @property
    def busy_s(self) -> float:
        """Seconds that the engine has computed since the node began; no reset clears it."""
        return self._busy_ms / 1e3

    def hardware_id(self) -> str:
        """The board, where it tells its name, and the engine's device; ``none`` without one."""
        device = self._engine.device if self._engine else "none"
        return f"{self._board}:{device}" if self._board else device

    def engine_placement(self) -> Finding:
        """What runs the network, and where."""
        name = "engine placement"
        if self._engine is None:
            if self._engine_error:
                return Finding(name, Level.ERROR, self._engine_error)
            return Finding(name, Level.OK, "no engine is loaded: the node is not configured")
        info = self._engine
        values = {
            "model": info.path,
            "sha256": info.file_hash,
            "runtime": info.runtime,
            "runtime_version": info.runtime_version,
            "device": info.device,
            "layers_on_dla": _count(info.dla_layers),
            "layers_on_gpu": _count(info.gpu_layers),
            "self_test": self._self_test,
        }
        problems = [(Level.WARN, self._elsewhere)] if self._elsewhere else []
        level, message = worst(problems, f"runs on {info.device} by {info.runtime}")
        return Finding(name, level, message, values)

    def latency(
        self, now_s: float, max_latency_ms: float, max_consecutive_delay_ms: float
    ) -> Finding:
        """Times of each stage, deadline misses, and an inference that hangs."""
        problems = []
        with self._lock:
            late_for_ms = self._deadline.late_for_ms(now_s)
            if self._hanging_s is not None:
                problems.append(
                    (
                        Level.ERROR,
                        f"an inference has not come back for {self._hanging_s:.1f} s on "
                        f"{self.hardware_id()}: restart the node; look at the kernel log",
                    )
                )
            if late_for_ms >= max_consecutive_delay_ms and self._deadline.is_late():
                problems.append(
                    (
                        Level.ERROR,
                        f"every frame has been later than {max_latency_ms:g} ms for "
                        f"{late_for_ms:.0f} ms: use a smaller network or fewer images",
                    )
                )
            elif self._deadline.is_late():
                problems.append((Level.WARN, f"the last frame took over {max_latency_ms:g} ms"))
            misses = self._deadline.misses
            summaries = self._stages.summaries(now_s)
        values = {}
        for stage, summary in summaries.items():
            for figure in ("p50", "p95", "p99", "maximum"):
                key = f"{stage}_{'max' if figure == 'maximum' else figure}_ms"
                values[key] = _figure(getattr(summary, figure), 3)
        received = sum(camera.counts.received for camera in self.inputs.values())
        dropped = [camera.counts.dropped() for camera in self.inputs.values()]
        values["frames_received"] = str(received)
        values["total_dropped_frames"] = str(sum(sum(counts.values()) for counts in dropped))
        values["deadline_misses"] = str(misses)
        values["consecutive_processing_delay_ms"] = f"{late_for_ms:.0f}"
        level, message = worst(problems, "in time" if max_latency_ms else "no limit is set")
        return Finding("inference latency", level, message, values)

    def output(self, now_s: float, subscribers: int) -> Finding:
        """What goes out."""
        with self._lock:
            rate = self._output_rate.rate(now_s)
            detections, invalid = self._detections, self._invalid
            invalid_frames = self._invalid_frames
        frames = sum(camera.counts.published for camera in self.inputs.values())
        problems = []
        if invalid:
            problems.append(
                (
                    Level.ERROR if invalid_frames >= MAX_INVALID_FRAMES else Level.WARN,
                    f"the network returned {invalid} values that are not finite; they were "
                    "dropped: check its precision and calibration",
                )
            )
        level, message = worst(problems, "detections go out" if rate else "nothing to publish yet")
        values = {
            "frame_rate_node": _figure(rate),
            "frames_published": str(frames),
            "detections_published": str(detections),
            "invalid_values_dropped": str(invalid),
            "subscribers": str(subscribers),
        }
        return Finding("output", level, message, values)

    def input(
        self, name: str, now_s: float, timeout_s: float, publishers: int, topic: str
    ) -> Finding:
        """The images of one camera."""
        if self._started_s is None:
            return Finding(f"input {name}", Level.OK, "the node is not active", {"topic": topic})
        return self.inputs[name].finding(now_s, self._started_s, timeout_s, publishers, topic)


def _figure(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _count(layers: Sequence[str] | None) -> str:
    return "n/a" if layers is None else str(len(layers))


def _stamp(stamp_ns: int) -> str:
    return f"{stamp_ns // 1_000_000_000}.{stamp_ns % 1_000_000_000:09d}"
