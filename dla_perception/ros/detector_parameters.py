"""The parameters of ``detector_node``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from dla_perception.detection.detector import DetectionSettings
from dla_perception.engines.loading import BACKENDS, GPU_FALLBACKS
from dla_perception.ros.parameters import ParameterError, ParameterInfo, check_choices
from dla_perception.ros.qos import RELIABILITIES

PARAMETERS: Mapping[str, ParameterInfo] = {
    "model_path": ParameterInfo("The network: an ONNX file, a TensorRT plan or a DLA loadable"),
    "backend": ParameterInfo("What runs the network", choices=BACKENDS),
    "dla_core": ParameterInfo("The DLA core to run on; -1: none", minimum=-1, maximum=1),
    "gpu_fallback": ParameterInfo(
        "What to do, with a DLA core, about layers that run elsewhere", choices=GPU_FALLBACKS
    ),
    "self_test": ParameterInfo(
        "Refuse an engine that does not find in a recorded picture what its network finds"
    ),
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
    "cameras": ParameterInfo(
        "Names of the cameras: NAME/image_raw is answered on NAME/detections; empty: one, image_raw"
    ),
    "image_transport": ParameterInfo(
        "raw: sensor_msgs/Image; compressed: CompressedImage on .../compressed",
        choices=("raw", "compressed"),
    ),
    "image_reliability": ParameterInfo(
        "Reliability of the image subscription", choices=tuple(RELIABILITIES)
    ),
    "inference_timeout_ms": ParameterInfo(
        "An inference that takes longer (ms) is reported as hung", minimum=1, maximum=3_600_000
    ),
    "on_inference_timeout": ParameterInfo(
        "What to do when an inference hangs: report it, or end the process with code 70",
        choices=("error", "exit"),
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
    backend: str
    dla_core: int
    gpu_fallback: str
    self_test: bool
    model_description_path: str
    labels_path: str
    class_id_format: str
    settings: DetectionSettings
    cameras: tuple[str, ...]
    image_transport: str
    image_reliability: str
    inference_timeout_s: float
    exit_on_timeout: bool
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
            backend=values["backend"],
            dla_core=values["dla_core"],
            gpu_fallback=values["gpu_fallback"],
            self_test=values["self_test"],
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
            cameras=_camera_names(values["cameras"]),
            image_transport=values["image_transport"],
            image_reliability=values["image_reliability"],
            inference_timeout_s=values["inference_timeout_ms"] / 1e3,
            exit_on_timeout=values["on_inference_timeout"] == "exit",
            diagnostics_period_s=values["diagnostics.period_s"],
            max_latency_ms=values["diagnostics.max_latency_ms"],
            max_consecutive_delay_ms=values["diagnostics.max_consecutive_delay_ms"],
            input_timeout_s=values["diagnostics.input_timeout_ms"] / 1e3,
            autostart=values["autostart"],
        )


def _camera_names(entries: Sequence[str]) -> tuple[str, ...]:
    names = [name for name in entries if name]
    for name in names:
        # a relative ROS name: letters, digits and underscores, no token beginning with a digit
        if not re.fullmatch(r"[A-Za-z_]\w*(/[A-Za-z_]\w*)*", name, re.ASCII):
            raise ParameterError(
                f"cameras: '{name}' is no relative ROS name; expected letters, digits and "
                "underscores, as 'front_left'"
            )
        if names.count(name) > 1:
            raise ParameterError(f"cameras: '{name}' is listed twice")
    return tuple(names)


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
