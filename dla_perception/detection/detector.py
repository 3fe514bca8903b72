"""Image in, detections out: preprocess, engine, head and suppression, with the time of each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Mapping, Sequence

import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections
from dla_perception.detection.heads import make_head
from dla_perception.detection.letterbox import Letterbox
from dla_perception.detection.nms import suppress
from dla_perception.detection.preprocess import Preprocessor
from dla_perception.engines.engine import Engine
from dla_perception.errors import DlaPerceptionError


class SettingsError(DlaPerceptionError):
    """A threshold or class name that cannot be used."""


@dataclass(frozen=True)
class Frame:
    """One image and where it comes from.

    Attributes:
        pixels: ``(H, W, 3) uint8``, may be a view on a message.
        channel_order: ``rgb`` or ``bgr``.
        stamp_ns: the image's stamp in nanoseconds, untouched.
        frame_id: the image's coordinate frame.
        source: the camera's name.
    """

    pixels: np.ndarray
    channel_order: str = "bgr"
    stamp_ns: int = 0
    frame_id: str = ""
    source: str = ""


@dataclass(frozen=True)
class DetectionSettings:
    """Which candidates become detections; may change from frame to frame.

    Attributes:
        score_threshold: least score, in [0, 1].
        class_score_thresholds: least score of single classes, by name; goes before the above.
        class_filter: names of the only classes wanted; empty: all.
        iou_threshold: in [0, 1]; of two boxes of a class that overlap more, the better stays.
        max_detections: per image.
    """

    score_threshold: float = 0.3
    class_score_thresholds: Mapping[str, float] = field(default_factory=dict)
    class_filter: Sequence[str] = ()
    iou_threshold: float = 0.45
    max_detections: int = 300

    def __post_init__(self) -> None:
        scores = {"score_threshold": self.score_threshold, "iou_threshold": self.iou_threshold}
        for name, threshold in self.class_score_thresholds.items():
            scores[f"class_score_thresholds: {name}"] = threshold
        for name, value in scores.items():
            if not 0 <= value <= 1:
                raise SettingsError(f"{name}: {value} is out of range; expected 0 to 1")
        if self.max_detections < 1:
            raise SettingsError(f"max_detections: {self.max_detections}; expected 1 or more")

    def thresholds(self, description: ModelDescription) -> np.ndarray:
        """Least score per class ``(classes,) float32``; ``inf`` where a class is not wanted.

        Raises:
            SettingsError: a class name that the network does not have.
        """
        indices = {description.label(index): index for index in range(description.num_classes)}
        for name in [*self.class_score_thresholds, *self.class_filter]:
            if name not in indices:
                some = ", ".join(list(indices)[:10])
                raise SettingsError(
                    f"class '{name}' is not one of the network's {len(indices)}: {some}"
                    + (", ..." if len(indices) > 10 else "")
                )
        thresholds = np.full(description.num_classes, self.score_threshold, np.float32)
        for name, threshold in self.class_score_thresholds.items():
            thresholds[indices[name]] = threshold
        if self.class_filter:
            wanted = [indices[name] for name in self.class_filter]
            unwanted = np.setdiff1d(np.arange(description.num_classes), wanted)
            thresholds[unwanted] = np.inf
        return thresholds


@dataclass(frozen=True)
class DetectionResult:
    """What was found in one image.

    Attributes:
        detections: boxes in pixels of the source image, clipped to it, best score first.
        invalid: values or boxes of the network that were dropped because they were not finite.
        preprocess_ms, queue_ms, inference_ms, postprocess_ms: time of each stage on a steady
            clock; ``queue_ms`` is the time in the engine behind earlier frames, so that
            ``inference_ms`` is the engine's own time for this one.
    """

    detections: Detections
    invalid: int
    preprocess_ms: float
    queue_ms: float
    inference_ms: float
    postprocess_ms: float


class Detector:
    """Finds objects in images with one engine.

    :meth:`detect` does all for one image. To keep an accelerator busy, one thread calls
    :meth:`submit` and another :meth:`finish`, slot after slot.
    """

    def __init__(
        self,
        engine: Engine,
        description: ModelDescription,
        settings: DetectionSettings | None = None,
    ) -> None:
        self.engine = engine
        self.description = description
        self._preprocessor = Preprocessor(description, engine.inputs[0], description.input_rounding)
        self._head = make_head(description, engine.outputs)
        self._submitted: list[tuple[Letterbox, int, int] | None] = [None] * engine.slots
        self._last_finished = 0
        self.settings = settings or DetectionSettings()

    @property
    def settings(self) -> DetectionSettings:
        """What to report; a new value is used from the next :meth:`finish` on."""
        return self._selection[0]

    @settings.setter
    def settings(self, settings: DetectionSettings) -> None:
        # one assignment: another thread sees either both old or both new
        self._selection = (settings, settings.thresholds(self.description))

    def detect(self, pixels: np.ndarray, channel_order: str = "bgr") -> DetectionResult:
        """Find objects in one image ``(H, W, 3) uint8``."""
        self.submit(0, Frame(pixels, channel_order))
        return self.finish(0)

    def submit(self, slot: int, frame: Frame) -> None:
        """Preprocess a frame into a free slot and start its inference."""
        start = time.perf_counter_ns()
        buffer = self.engine.input_buffers(slot)[0]
        letterbox = self._preprocessor(frame.pixels, frame.channel_order, buffer)
        self._submitted[slot] = (letterbox, start, time.perf_counter_ns())
        self.engine.submit(slot)

    def finish(self, slot: int, timeout_s: float | None = None) -> DetectionResult:
        """Wait for a slot and decode it; the slot is free afterwards.

        Raises:
            InferenceTimeoutError: not finished in time; the slot is still in use.
            EngineError: the inference failed.
        """
        submitted = self._submitted[slot]
        if submitted is None:
            raise RuntimeError(f"slot {slot} was not submitted")
        letterbox, start, prepared = submitted
        self.engine.wait(slot, timeout_s)
        finished = time.perf_counter_ns()
        # slots finish in order: this one began when it was ready and the one before was done
        begun = max(prepared, self._last_finished)
        self._last_finished = finished
        settings, thresholds = self._selection
        decoded = self._head.decode(self.engine.output_buffers(slot), thresholds)
        if self._head.needs_suppression:
            kept = suppress(decoded.detections, settings.iou_threshold, settings.max_detections)
        else:
            kept = decoded.detections[: settings.max_detections]
        detections = _into_image(kept, letterbox)
        return DetectionResult(
            detections,
            decoded.invalid,
            preprocess_ms=(prepared - start) / 1e6,
            queue_ms=(begun - prepared) / 1e6,
            inference_ms=(finished - begun) / 1e6,
            postprocess_ms=(time.perf_counter_ns() - finished) / 1e6,
        )


def _into_image(detections: Detections, letterbox: Letterbox) -> Detections:
    """Boxes in input pixels as boxes in image pixels: clipped, without those outside it."""
    width, height = letterbox.image_size
    boxes = letterbox.to_image(detections.boxes).astype(np.float32)
    np.clip(boxes, 0, np.array([width, height, width, height], np.float32), out=boxes)
    inside = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return Detections(boxes[inside], detections.scores[inside], detections.class_ids[inside])
