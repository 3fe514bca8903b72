"""Times and rates over the last seconds."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Deque, Mapping, Sequence

import numpy as np


class TimeWindow:
    """The last values of one measurement, as a ring of fixed size.

    Safe between one writing thread and any number of readers.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._values = np.zeros(capacity)
        self._times = np.full(capacity, -np.inf)
        self._next = 0
        self._lock = threading.Lock()

    def add(self, value: float, now_s: float) -> None:
        """Record ``value`` at ``now_s`` seconds of a steady clock."""
        with self._lock:
            self._values[self._next] = value
            self._times[self._next] = now_s
            self._next = (self._next + 1) % len(self._values)

    def since(self, start_s: float) -> np.ndarray:
        """The values recorded at or after ``start_s``, in no particular order."""
        with self._lock:
            return self._values[self._times >= start_s]

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._times[:] = -np.inf


@dataclass(frozen=True)
class Summary:
    """Percentiles of one measurement; ``None`` where nothing was measured."""

    count: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    maximum: float | None = None

    @classmethod
    def of(cls, values: np.ndarray) -> Summary:
        """Summarise values; linear interpolation between ranks, as numpy does by default."""
        if not len(values):
            return cls(0)
        p50, p95, p99 = np.percentile(values, [50, 95, 99])
        return cls(len(values), float(p50), float(p95), float(p99), float(values.max()))


class StageTimes:
    """Milliseconds of each stage of a pipeline over the last ``window_s`` seconds."""

    def __init__(self, stages: Sequence[str], window_s: float = 5.0) -> None:
        self.window_s = window_s
        self._windows = {stage: TimeWindow() for stage in stages}

    def add(self, times_ms: Mapping[str, float], now_s: float) -> None:
        """Record one frame's stages at ``now_s`` seconds of a steady clock."""
        for stage, value in times_ms.items():
            self._windows[stage].add(value, now_s)

    def summaries(self, now_s: float) -> dict[str, Summary]:
        """One summary per stage."""
        return {
            stage: Summary.of(window.since(now_s - self.window_s))
            for stage, window in self._windows.items()
        }

    def clear(self) -> None:
        """Forget all times."""
        for window in self._windows.values():
            window.clear()


class RateWindow:
    """How often something happened per second over the last ``window_s`` seconds."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._times: Deque[float] = deque(maxlen=8192)
        self._started_s: float | None = None
        self._lock = threading.Lock()

    def add(self, now_s: float) -> None:
        """Count one event at ``now_s`` seconds of a steady clock."""
        with self._lock:
            if self._started_s is None:
                self._started_s = now_s
            self._times.append(now_s)

    def rate(self, now_s: float) -> float | None:
        """Events per second; ``None`` before the first event and until some time has passed.

        In the first ``window_s`` seconds the time since the first event counts, so that the
        figure is right from the start.
        """
        with self._lock:
            if self._started_s is None:
                return None
            while self._times and self._times[0] < now_s - self._window_s:
                self._times.popleft()
            span = min(self._window_s, now_s - self._started_s)
            if span < 0.1:
                return None
            # the event at the window's start opens it: intervals count, not posts
            count = len(self._times) - (1 if span < self._window_s else 0)
            return count / span

    def clear(self) -> None:
        """Forget all events."""
        with self._lock:
            self._times.clear()
            self._started_s = None


class DeadlineMonitor:
    """How many frames were later than allowed, and for how long without a break."""

    def __init__(self) -> None:
        self.misses = 0
        self._late_since_s: float | None = None
        self._last_late = False

    def add(self, latency_ms: float, limit_ms: float, now_s: float) -> None:
        """Judge one frame; a ``limit_ms`` of 0 means that there is no limit."""
        self._last_late = limit_ms > 0 and latency_ms > limit_ms
        if not self._last_late:
            self._late_since_s = None
            return
        self.misses += 1
        if self._late_since_s is None:
            self._late_since_s = now_s

    def is_late(self) -> bool:
        """Whether the last frame was late."""
        return self._last_late

    def late_for_ms(self, now_s: float) -> float:
        """For how long every frame has been late; 0 when the last one was not."""
        return 0.0 if self._late_since_s is None else (now_s - self._late_since_s) * 1e3

    def clear(self) -> None:
        """Forget everything."""
        self.misses = 0
        self._late_since_s = None
        self._last_late = False


class FrameCounts:
    """What became of each frame: received = published + dropped by reason + under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def receive(self) -> None:
        """Count a frame that came in."""
        with self._lock:
            self._received += 1

    def publish(self) -> None:
        """Count a frame whose detections went out."""
        with self._lock:
            self._published += 1

    def drop(self, reason: str) -> None:
        """Count a frame that will not be answered."""
        with self._lock:
            self._dropped[reason] += 1

    @property
    def received(self) -> int:
        """Frames that came in."""
        return self._received

    @property
    def published(self) -> int:
        """Frames that were answered."""
        return self._published

    def dropped(self) -> dict[str, int]:
        """Frames not answered, by reason."""
        with self._lock:
            return dict(self._dropped)

    def clear(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._received = 0
            self._published = 0
            self._dropped: Counter[str] = Counter()
