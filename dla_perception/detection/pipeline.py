"""Keep one engine busy with the newest frame of each camera."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable

from dla_perception.detection.detector import DetectionResult, Detector, Frame
from dla_perception.engines.engine import InferenceTimeoutError

DRAIN_TIMEOUT_S = 2.0
"""How long :meth:`Pipeline.stop` waits for inferences under way."""


class Mailbox:
    """Holds the newest item of each source; whoever waits longest is served first."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, Any] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, source: str, item: Any) -> Any:
        """Leave an item; returns the one it replaces, or ``None``.

        A source whose item is replaced keeps its place, so that a fast one cannot starve others.
        """
        with self._changed:
            replaced = self._items.get(source)
            self._items[source] = item
            self._changed.notify()
            return replaced

    def take(self) -> tuple[str, Any] | None:
        """The item that waits longest; blocks until there is one, ``None`` once closed."""
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            return None if self._closed else self._items.popitem(last=False)

    def close(self) -> list[tuple[str, Any]]:
        """Wake :meth:`take` and return what was left."""
        with self._changed:
            self._closed = True
            left = list(self._items.items())
            self._items.clear()
            self._changed.notify_all()
            return left


@dataclass(frozen=True)
class Answer:
    """A frame and what was found in it.

    Attributes:
        source: the camera.
        item: what was handed in.
        frame: made from it.
        result: the detections and the time of each stage.
        arrived_ns, taken_ns: when the item was handed in and when its turn came, on the clock of
            ``time.perf_counter_ns``.
    """

    source: str
    item: Any
    frame: Frame
    result: DetectionResult
    arrived_ns: int
    taken_ns: int


@dataclass(frozen=True)
class _Task:
    slot: int
    source: str
    item: Any
    frame: Frame
    arrived_ns: int
    taken_ns: int


class Pipeline:
    """Two threads around a detector: one prepares frames, one finishes them.

    While the engine works on one slot the next is prepared. A frame is taken as late as possible,
    when a slot is free, so that it is the newest there is.
    """

    def __init__(
        self,
        detector: Detector,
        open_frame: Callable[[str, Any], Frame],
        on_result: Callable[[Answer], None],
        on_dropped: Callable[[str, str, Exception | None], None],
        timeout_s: float | None = None,
        on_timeout: Callable[[str, float], None] | None = None,
    ) -> None:
        """Start the threads.

        Args:
            detector: used by this pipeline alone until it is stopped.
            open_frame: turns a source and an item into a frame, in the preparing thread.
            on_result: called in the finishing thread for each frame answered.
            on_dropped: called with source, reason and error for each frame that is not:
                ``replaced`` by a newer one, ``stopped``, the ``reason`` attribute of what was
                raised (an engine's is ``inference``), or ``fault`` where it has none.
            timeout_s: after how long an inference counts as hung; ``None``: never.
            on_timeout: called in the finishing thread each time ``timeout_s`` has passed without
                a result, with the source and the seconds waited; the pipeline goes on waiting.
        """
        self._detector = detector
        self._open_frame = open_frame
        self._on_result = on_result
        self._on_dropped = on_dropped
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._mailbox = Mailbox()
        self._stopping = threading.Event()
        self._free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._submitted: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        for slot in range(detector.engine.slots):
            self._free.put(slot)
        self._threads = [
            threading.Thread(target=self._prepare_frames, name="prepare", daemon=True),
            threading.Thread(target=self._finish_frames, name="finish", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, source: str, item: Any) -> None:
        """Hand in the newest item of a source; never blocks."""
        replaced = self._mailbox.put(source, (item, time.perf_counter_ns()))
        if replaced is not None:
            self._on_dropped(source, "replaced", None)

    def stop(self) -> bool:
        """Finish what the engine has begun, drop what waits, end the threads.

        Returns:
            Whether the threads have ended: not if an inference hangs.
        """
        self._stopping.set()
        for source, _ in self._mailbox.close():
            self._on_dropped(source, "stopped", None)
        self._free.put(None)
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _prepare_frames(self) -> None:
        while not self._stopping.is_set():
            slot = self._free.get()
            taken = self._mailbox.take() if slot is not None else None
            if slot is None or taken is None:
                break
            source, (item, arrived) = taken
            taken_ns = time.perf_counter_ns()
            try:
                frame = self._open_frame(source, item)
                self._detector.submit(slot, frame)
            except Exception as error:  # the fault of one frame must not end the stream
                self._on_dropped(source, getattr(error, "reason", "fault"), error)
                self._free.put(slot)
            else:
                self._submitted.put(_Task(slot, source, item, frame, arrived, taken_ns))
        self._submitted.put(None)

    def _finish_frames(self) -> None:
        while True:
            task = self._submitted.get()
            if task is None:
                return
            try:
                result = self._finish(task)
                if result is None:
                    self._on_dropped(task.source, "stopped", None)
                    continue  # the engine still owns the slot
                self._on_result(
                    Answer(
                        task.source, task.item, task.frame, result, task.arrived_ns, task.taken_ns
                    )
                )
            except Exception as error:  # the fault of one frame must not end the stream
                self._on_dropped(task.source, getattr(error, "reason", "fault"), error)
            self._free.put(task.slot)

    def _finish(self, task: _Task) -> DetectionResult | None:
        """The result, however long it takes; ``None`` if it had not come when stopping."""
        started = time.monotonic()
        # without a limit of its own it still looks now and then whether to stop
        limit = self._timeout_s or DRAIN_TIMEOUT_S
        while True:
            try:
                return self._detector.finish(task.slot, limit)
            except InferenceTimeoutError:
                if self._stopping.is_set():
                    return None
                if self._timeout_s is not None and self._on_timeout is not None:
                    self._on_timeout(task.source, time.monotonic() - started)
