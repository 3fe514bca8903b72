"""The self-test finds an engine that answers wrongly, and only that."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest

from dla_perception.detection.detector import DetectionSettings, Detector
from dla_perception.detection.images import read_image
from dla_perception.detection.recognition import describe_model
from dla_perception.detection.self_test import (
    SelfTestError,
    check_self_test,
    record_self_test,
    run_self_test,
)
from dla_perception.engines.loading import open_engine


class Spoilt:
    """An engine whose outputs are changed after each inference."""

    def __init__(self, engine: Any, spoil: Any) -> None:
        self._engine = engine
        self._spoil = spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def wait(self, slot: int, timeout_s: float | None = None) -> None:
        self._engine.wait(slot, timeout_s)
        for buffer in self._engine.output_buffers(slot):
            self._spoil(buffer)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    path = Path(__file__).parents[2] / ".." / "shared" / "assets"
    model = path.resolve() / "models" / "yolox_nano_416.onnx"
    if not model.exists():
        pytest.skip(f"no {model}")
    engine = open_engine(model)
    yield engine
    engine.close()


@pytest.fixture
def detector(engine: Any) -> Detector:
    return Detector(engine, describe_model(engine, labels="coco"))


@pytest.fixture
def record(detector: Detector, assets: Path) -> dict[str, Any]:
    blank = np.full((300, 400, 3), 114, np.uint8)
    dog = read_image(assets / "images" / "classic" / "dog.jpg")
    found = record_self_test(detector, [blank, dog])
    assert found is not None
    return found


def spoilt(detector: Detector, spoil: Any) -> Detector:
    return Detector(Spoilt(detector.engine, spoil), detector.description)


def test_record_is_of_the_first_picture_with_objects(record: dict[str, Any]) -> None:
    sure = [item for item in record["detections"] if item["score"] >= 0.5]
    # dog, bicycle and car, as the reference detections of this network say
    assert sorted(item["class_id"] for item in sure) == [1, 2, 16]
    assert len(record["picture_jpeg"]) < 120_000


def test_the_network_itself_passes(detector: Detector, record: dict[str, Any]) -> None:
    settings = DetectionSettings(score_threshold=0.9, class_filter=["cat"])
    detector.settings = settings
    result = check_self_test(detector, record)
    assert (result.expected, result.found, result.extra, result.passed) == (3, 3, 0, True)
    # the user's own thresholds neither matter nor are lost
    assert detector.settings is settings


def test_slightly_wrong_outputs_pass(detector: Detector, record: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)

    def noise(buffer: np.ndarray) -> None:
        buffer[..., :4] += rng.normal(0, 0.05, buffer[..., :4].shape)
        buffer[..., 4:] *= 0.85

    assert check_self_test(spoilt(detector, noise), record).passed


def silence(buffer: np.ndarray) -> None:
    buffer[:] = 0


def nonsense(buffer: np.ndarray) -> None:
    buffer[..., 4:] = 0
    buffer[..., ::40, 4] = 1
    buffer[..., ::40, 7] = 0.9


def shifted(buffer: np.ndarray) -> None:
    buffer[..., :2] += 8


def other_classes(buffer: np.ndarray) -> None:
    buffer[..., 5:] = np.roll(buffer[..., 5:], 1, axis=-1)


@pytest.mark.parametrize("spoil", [silence, nonsense, shifted, other_classes])
def test_wrong_outputs_fail(detector: Detector, record: dict[str, Any], spoil: Any) -> None:
    wrong = spoilt(detector, spoil)
    assert not run_self_test(wrong, record).passed
    with pytest.raises(SelfTestError, match="of 3 expected objects found, .* cannot be trusted"):
        check_self_test(wrong, record)


def test_right_boxes_among_noise_fail(detector: Detector, record: dict[str, Any]) -> None:
    def noise_too(buffer: np.ndarray) -> None:
        buffer[..., ::50, 4] = 1
        buffer[..., ::50, 9] = 0.9

    result = run_self_test(spoilt(detector, noise_too), record)
    assert result.extra > 1
    assert not result.passed


def test_nothing_to_record(detector: Detector) -> None:
    assert record_self_test(detector, [np.full((50, 50, 3), 114, np.uint8)]) is None
    assert record_self_test(detector, []) is None


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"picture_jpeg": "", "detections": []},
        {"picture_jpeg": "not base64!", "detections": []},
        {"picture_jpeg": "AAAA", "detections": []},
        {"detections": [{"box": [1, 2]}]},
    ],
)
def test_broken_record(detector: Detector, record: dict[str, Any], broken: dict) -> None:
    document = broken if "picture_jpeg" in broken or not broken else {**record, **broken}
    with pytest.raises(SelfTestError, match="record is broken"):
        run_self_test(detector, document)


def test_a_record_without_sure_objects_never_passes(
    detector: Detector, record: dict[str, Any]
) -> None:
    assert not run_self_test(detector, {**record, "detections": []}).passed
