"""The parameters of ``detector_node``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from dla_perception.detection.detector import DetectionSettings
from dla_perception.ros.parameters import ParameterError, ParameterInfo, check_choices
from dla_perception.ros.qos import RELIABILITIES

PARAMETERS: Mapping[str, ParameterInfo] = {
    "model_path": ParameterInfo("The network: an ONNX file"),
    "model_description_path": ParameterInfo(
        "What the network expects and returns; empty: the YAML beside the model"
    ),
    "labels_path": ParameterInfo(
        "Class names, one a line, or 'coco'; empty: from the description or the metadata"
    ),
    "class_id_format": ParameterInfo("What hypothesis.class_id says", choices=("name", "index")),
    "score_threshold": ParameterInfo(
        "Least score of a detection", minimum=0, maximum=1, dynamic=True
    ),
    "class_score_thresholds": ParameterInfo(
        "Least score of single classes, as 'person:0.4'", dynamic=True
    ),
    "class_filter": ParameterInfo("The only classes wanted; empty: all", dynamic=True),
    "iou_threshold": ParameterInfo(
        "Of boxes of a class that overlap more, the best stays", minimum=0, maximum=1, dynamic=True
    ),
    "max_detections": ParameterInfo(
        "Detections per image at most", minimum=1, maximum=4096, dynamic=True
    ),
    "image_reliability": ParameterInfo(
        "Reliability of the image subscription", choices=tuple(RELIABILITIES)
    ),
    "inference_timeout_ms": ParameterInfo(
        "An inference that takes longer (ms) is reported as hung", minimum=1, maximum=3_600_000
    ),
    "diagnostics.period_s": ParameterInfo(
        "Seconds between two diagnostics messages", minimum=0.1, maximum=60
    ),
    "diagnostics.max_latency_ms": ParameterInfo(
        "WARN when a frame takes longer (ms) from arrival to detections; 0: no limit",
        minimum=0,
        maximum=3_600_000,
        dynamic=True,
    ),
    "diagnostics.max_consecutive_delay_ms": ParameterInfo(
        "ERROR when every frame has been late for so long (ms)",
        minimum=0,
        maximum=3_600_000,
        dynamic=True,
    ),
    "diagnostics.input_timeout_ms": ParameterInfo(
        "STALE when no image has come for so long (ms)",
        minimum=1,
        maximum=3_600_000,
        dynamic=True,
    ),
    "autostart": ParameterInfo("Configure and activate at start"),
}


@dataclass(frozen=True)
class DetectorParameters:
    """All parameters at one time, checked as a whole."""

    model_path: str
    model_description_path: str
    labels_path: str
    class_id_format: str
    settings: DetectionSettings
    image_reliability: str
    inference_timeout_s: float
    diagnostics_period_s: float
    max_latency_ms: float
    max_consecutive_delay_ms: float
    input_timeout_s: float
    autostart: bool

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> DetectorParameters:
        """Check the values of :data:`PARAMETERS`.

        Raises:
            DlaPerceptionError: names the parameter, what is wrong and what was expected.
        """
        check_choices(values, PARAMETERS)
        return cls(
            model_path=values["model_path"],
            model_description_path=values["model_description_path"],
            labels_path=values["labels_path"],
            class_id_format=values["class_id_format"],
            settings=DetectionSettings(
                score_threshold=values["score_threshold"],
                class_score_thresholds=_class_thresholds(values["class_score_thresholds"]),
                class_filter=tuple(name for name in values["class_filter"] if name),
                iou_threshold=values["iou_threshold"],
                max_detections=values["max_detections"],
            ),
            image_reliability=values["image_reliability"],
            inference_timeout_s=values["inference_timeout_ms"] / 1e3,
            diagnostics_period_s=values["diagnostics.period_s"],
            max_latency_ms=values["diagnostics.max_latency_ms"],
            max_consecutive_delay_ms=values["diagnostics.max_consecutive_delay_ms"],
            input_timeout_s=values["diagnostics.input_timeout_ms"] / 1e3,
            autostart=values["autostart"],
        )


def _class_thresholds(entries: list[str]) -> dict[str, float]:
    thresholds = {}
    for entry in entries:
        if not entry:  # ROS has no empty list of texts: [""] stands for it
            continue
        name, colon, text = entry.rpartition(":")
        try:
            thresholds[name.strip()] = float(text)
        except ValueError:
            colon = ""
        if not colon:
            raise ParameterError(
                f"class_score_thresholds: '{entry}' is not a class and a score, as 'person:0.4'"
            )
    return thresholds
