"""Does an engine still find what its ONNX network found in a known picture?

INT8 on a DLA has given wrong boxes, and FP16 none at all, while every part reported success
(NVIDIA/TensorRT issues 3799, triple-mu/YOLOv8-TensorRT issue 194). So a build records a picture
and what the ONNX network finds in it, and a node looks at that picture before it looks at others.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Any, Iterable, Mapping

import cv2
import numpy as np

from dla_perception.detection.detections import Detections
from dla_perception.detection.detector import DetectionSettings, Detector
from dla_perception.engines.engine import Engine
from dla_perception.errors import DlaPerceptionError

SURE_SCORE = 0.5
"""What the ONNX network finds with this score, an engine has to find with half of it."""

LEAST_IOU = 0.5
"""Of an expected and a found box: COCO's and PASCAL's customary mark for the same object."""

LEAST_SHARE = 0.75
"""Of the expected objects that have to be found: quantisation may lose a weak one."""

MOST_EXTRA_SHARE = 0.5
"""Of sure boxes that were not expected, against the expected ones: noise gives many."""

_JPEG_QUALITY = 95


class SelfTestError(DlaPerceptionError):
    """The self-test failed, or its record is broken."""


@dataclass(frozen=True)
class SelfTestResult:
    """What a self-test gave.

    Attributes:
        expected: objects in the picture.
        found: of these.
        extra: sure boxes that belong to no object.
        passed: whether the engine can be trusted.
    """

    expected: int
    found: int
    extra: int
    passed: bool

    def __str__(self) -> str:
        return (
            f"self-test: {self.found} of {self.expected} expected objects found, "
            f"{self.extra} boxes too many"
        )


def record_self_test(detector: Detector, pictures: Iterable[np.ndarray]) -> dict[str, Any] | None:
    """Look for a picture in which the network finds something, and record what.

    Args:
        detector: with the ONNX network.
        pictures: ``(H, W, 3) uint8``, BGR; the first with an object is taken.

    Returns:
        A record for :class:`~dla_perception.engines.manifest.EngineManifest`, or ``None`` when
        nothing is found in any picture.
    """
    for pixels in pictures:
        encoded = _encode(_fit(pixels, detector.description.input_size))
        # of the picture as it will be seen again: JPEG is not exact
        found = _detect(detector, _decode(encoded), SURE_SCORE / 2)
        if (found.scores >= SURE_SCORE).any():
            return {
                "picture_jpeg": encoded,
                "detections": [
                    {
                        "class_id": class_id,
                        "score": round(score, 4),
                        "box": [round(float(edge), 2) for edge in box],
                    }
                    for box, score, class_id in found
                ],
            }
    return None


def recorded_self_test(engine: Engine) -> Mapping[str, Any] | None:
    """The record that a build left beside an engine; ``None`` where there is none.

    An ONNX network has none: it is what the others are compared with.
    """
    manifest = getattr(engine, "manifest", None)
    return manifest.self_test if manifest is not None else None


def run_self_test(detector: Detector, record: Mapping[str, Any]) -> SelfTestResult:
    """Look at the recorded picture with an engine's detector.

    Raises:
        SelfTestError: the record is broken.
        EngineError: the inference fails.
    """
    try:
        pixels = _decode(record["picture_jpeg"])
        items = record["detections"]
        expected = Detections(
            np.array([item["box"] for item in items], np.float32).reshape(-1, 4),
            np.array([item["score"] for item in items], np.float32),
            np.array([item["class_id"] for item in items], np.int32),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SelfTestError(
            f"the self-test's record is broken ({type(error).__name__}: {error}); "
            "build the engine again"
        ) from None
    sure = expected[expected.scores >= SURE_SCORE]
    found = _detect(detector, pixels, SURE_SCORE / 2)
    hits = sum(_has_match(sure, index, found) for index in range(len(sure)))
    sure_found = found[found.scores >= SURE_SCORE]
    extra = sum(not _has_match(sure_found, index, expected) for index in range(len(sure_found)))
    passed = (
        len(sure) > 0 and hits >= LEAST_SHARE * len(sure) and extra <= MOST_EXTRA_SHARE * len(sure)
    )
    return SelfTestResult(len(sure), hits, extra, passed)


def check_self_test(detector: Detector, record: Mapping[str, Any]) -> SelfTestResult:
    """As :func:`run_self_test`, but a failure raises.

    Raises:
        SelfTestError: the engine does not find what the network finds, or the record is broken.
        EngineError: the inference fails.
    """
    result = run_self_test(detector, record)
    if not result.passed:
        info = detector.engine.info
        raise SelfTestError(
            f"{info.path} on {info.device}: {result}: its results cannot be trusted; build it in "
            "FP16 or calibrate again, and compare with 'dla-perception detect' on the ONNX network"
        )
    return result


def _detect(detector: Detector, pixels: np.ndarray, score_threshold: float) -> Detections:
    """With settings of the test's own, whatever the user's are."""
    before = detector.settings
    detector.settings = replace(DetectionSettings(), score_threshold=score_threshold)
    try:
        return detector.detect(pixels).detections
    finally:
        detector.settings = before


def _fit(pixels: np.ndarray, input_size: tuple[int, int]) -> np.ndarray:
    """No larger than the network's input: more would not be seen."""
    height, width = pixels.shape[:2]
    factor = min(input_size[0] / width, input_size[1] / height)
    if factor >= 1:
        return pixels
    size = (max(round(width * factor), 1), max(round(height * factor), 1))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def _encode(pixels: np.ndarray) -> str:
    done, content = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    if not done:
        raise SelfTestError(f"a picture of {pixels.shape} cannot be written as JPEG")
    return base64.b64encode(content.tobytes()).decode("ascii")


def _decode(text: str) -> np.ndarray:
    content = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    pixels = cv2.imdecode(content, cv2.IMREAD_COLOR) if content.size else None
    if pixels is None:
        raise ValueError("the picture is no JPEG")
    return pixels


def _has_match(items: Detections, index: int, others: Detections) -> bool:
    """Whether one of ``others`` is the same object as ``items[index]``."""
    same = others.boxes[others.class_ids == items.class_ids[index]]
    if not len(same):
        return False
    box = items.boxes[index]
    low = np.maximum(box[:2], same[:, :2])
    high = np.minimum(box[2:], same[:, 2:])
    overlap = np.prod(np.clip(high - low, 0, None), axis=1)
    union = np.prod(box[2:] - box[:2]) + np.prod(same[:, 2:] - same[:, :2], axis=1) - overlap
    return bool((overlap / np.maximum(union, 1e-9) >= LEAST_IOU).any())
