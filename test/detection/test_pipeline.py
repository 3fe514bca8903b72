"""The pipeline with an engine whose speed the test decides."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detector import Detector, Frame
from dla_perception.detection.pipeline import Mailbox, Pipeline
from dla_perception.engines.engine import EngineError, EngineInfo, InferenceTimeoutError, TensorSpec


class GatedEngine:
    """An engine that answers one inference each time the test opens the gate."""

    inputs = [TensorSpec("images", (1, 3, 32, 32), np.dtype(np.float32))]
    outputs = [TensorSpec("output", (1, 21, 7), np.dtype(np.float32))]
    info = EngineInfo("gated", "test", "1", "cpu", "")

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.submitted: list[float] = []
        self.gate = threading.Semaphore(0)
        self.fail = False
        self._inputs = [[np.zeros((1, 3, 32, 32), np.float32)] for _ in range(slots)]
        self._outputs = [[np.zeros((1, 21, 7), np.float32)] for _ in range(slots)]

    def input_buffers(self, slot):
        return self._inputs[slot]

    def output_buffers(self, slot):
        return self._outputs[slot]

    def submit(self, slot):
        self.submitted.append(float(self._inputs[slot][0][0, 0, 0, 0]))

    def wait(self, slot, timeout_s=None):
        if not self.gate.acquire(timeout=timeout_s):
            raise InferenceTimeoutError("late")
        if self.fail:
            raise EngineError("broken")

    def close(self):
        pass


DESCRIPTION = ModelDescription("yolox", 2, (32, 32), scale=1.0)


class Bench:
    """A pipeline around a gated engine, with all that it reports."""

    def __init__(self, **options) -> None:
        self.engine = GatedEngine()
        self.answers, self.dropped, self.hangs = [], [], []
        self.changed = threading.Condition()
        self.pipeline = Pipeline(
            Detector(self.engine, DESCRIPTION),
            self.open_frame,
            lambda answer: self._note(self.answers, answer),
            lambda source, reason, error: self._note(self.dropped, (source, reason)),
            on_timeout=lambda source, waited_s: self._note(self.hangs, (source, waited_s)),
            **options,
        )

    def open_frame(self, source, value):
        if isinstance(value, Exception):
            raise value
        return Frame(np.full((32, 32, 3), value, np.uint8), source=source)

    def _note(self, notes, note):
        with self.changed:
            notes.append(note)
            self.changed.notify_all()

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, 5), (self.answers, self.dropped, self.hangs)

    def submitted(self, count):
        deadline = time.monotonic() + 5
        while len(self.engine.submitted) < count:
            assert time.monotonic() < deadline, self.engine.submitted
            time.sleep(0.001)


@pytest.fixture
def bench():
    made = []

    def make(**options):
        made.append(Bench(**options))
        return made[-1]

    yield make
    for item in made:
        item.engine.gate.release(1000)
        item.pipeline.stop()


def test_the_newest_frame_wins_and_the_replaced_are_counted(bench):
    pipe = bench()
    pipe.pipeline.offer("cam", 1)
    pipe.submitted(1)
    pipe.pipeline.offer("cam", 2)
    pipe.submitted(2)  # both slots are taken now
    for value in (3, 4, 5):
        pipe.pipeline.offer("cam", value)
    pipe.engine.gate.release(3)
    pipe.until(lambda: len(pipe.answers) == 3)
    assert [answer.item for answer in pipe.answers] == [1, 2, 5]
    assert pipe.engine.submitted == [1, 2, 5]
    assert pipe.dropped == [("cam", "replaced")] * 2


def test_a_flooding_camera_does_not_starve_the_others(bench):
    pipe = bench()
    for value in (1, 2):
        pipe.pipeline.offer("fast", value)
        pipe.submitted(value)
    for value in range(3, 10):
        pipe.pipeline.offer("fast", value)
        if value == 4:
            pipe.pipeline.offer("slow", 100)
    pipe.engine.gate.release(4)
    pipe.until(lambda: len(pipe.answers) == 4)
    assert [answer.item for answer in pipe.answers] == [1, 2, 9, 100]


class UnreadableError(ValueError):
    reason = "encoding"


def test_a_bad_frame_is_dropped_under_its_reason_and_the_stream_goes_on(bench):
    pipe = bench()
    pipe.pipeline.offer("cam", UnreadableError("no such encoding"))
    pipe.until(lambda: pipe.dropped == [("cam", "encoding")])
    pipe.pipeline.offer("cam", ZeroDivisionError())
    pipe.until(lambda: pipe.dropped[-1] == ("cam", "fault"))
    pipe.pipeline.offer("cam", 7)
    pipe.engine.gate.release()
    pipe.until(lambda: [answer.item for answer in pipe.answers] == [7])


def test_a_failed_inference_frees_its_slot(bench):
    pipe = bench()
    pipe.engine.fail = True
    for value in range(1, 6):  # more than there are slots
        pipe.pipeline.offer("cam", value)
        pipe.engine.gate.release()
        pipe.until(lambda count=value: pipe.dropped == [("cam", "inference")] * count)
    pipe.engine.fail = False
    pipe.pipeline.offer("cam", 9)
    pipe.engine.gate.release()
    pipe.until(lambda: [answer.item for answer in pipe.answers] == [9])


def test_a_hanging_inference_is_reported_and_its_late_result_still_comes(bench):
    pipe = bench(timeout_s=0.05)
    pipe.pipeline.offer("cam", 1)
    pipe.until(lambda: len(pipe.hangs) >= 2)
    assert pipe.hangs[0][1] >= 0.05
    pipe.engine.gate.release()
    pipe.until(lambda: len(pipe.answers) == 1)


def test_stopping_finishes_what_was_begun_and_accounts_for_the_rest(bench):
    pipe = bench()
    for value in (1, 2):
        pipe.pipeline.offer("cam", value)
        pipe.submitted(value)
    pipe.pipeline.offer("cam", 3)
    pipe.engine.gate.release(2)
    assert pipe.pipeline.stop()
    # the third waits for a slot: when stopping frees one, it may be taken or dropped, not lost
    assert [answer.item for answer in pipe.answers][:2] == [1, 2]
    assert len(pipe.answers) + len(pipe.dropped) == 3


def test_stopping_does_not_wait_for_ever_for_a_hanging_inference(bench):
    pipe = bench(timeout_s=0.05)
    pipe.pipeline.offer("cam", 1)
    pipe.submitted(1)
    assert pipe.pipeline.stop()
    assert pipe.dropped == [("cam", "stopped")]


def test_mailbox_keeps_the_place_of_a_replaced_item():
    box = Mailbox()
    assert box.put("a", 1) is None
    assert box.put("b", 2) is None
    assert box.put("a", 3) == 1
    assert box.take() == ("a", 3)
    assert box.close() == [("b", 2)]
    assert box.take() is None
