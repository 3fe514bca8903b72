"""Judge the demo's network on pictures that it was not trained on.

    python -m dla_perception.demo.evaluate_model

measures the exported ONNX file with the package's own detector: average precision on 500
independent pictures, and precision and recall at one score threshold on 500 frames of 50 drives.
With ``--write`` the average precision goes into the description beside the model.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from dla_perception.demo.dataset import held_out_drive_frames, held_out_stills
from dla_perception.demo.scene import CLASS_NAMES
from dla_perception.demo.scoring import Score, Truth, average_precision, mean_average_precision
from dla_perception.detection.detections import Detections

MODEL = Path(__file__).parent / "model" / "demo_yolo.onnx"
LEAST_SCORE = 0.01
"""Detections below this do not change an average precision that anyone could see."""
NMS_IOU = 0.6
"""For average precision; the demo's own threshold is the detector's."""


def write_description(path: Path, metrics: Dict[str, Any]) -> None:
    """Write the YAML beside the model."""
    # by hand: a person reads this file, so the order and the comment matter
    lines = [
        "# The demo's network; made by: python -m dla_perception.demo.train",
        "family: yolox",
        f"class_names: [{', '.join(CLASS_NAMES)}]",
        "input_size: [320, 256]  # width, height",
        "channel_order: rgb",
        "scale: 0.00392156862745098  # 1 / 255",
        "placement: centre",
        "pad_value: 114",
        "interpolation: linear",
        "strides: [8, 16, 32]",
        "# on held-out pictures: python -m dla_perception.demo.evaluate_model",
        "metrics: {" + ", ".join(f"{key}: {value}" for key, value in metrics.items()) + "}",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Measure and print; with ``--write`` also note it in the description."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL, help="default: the package's own")
    parser.add_argument("--images", type=int, default=500, help="of each kind (%(default)s)")
    parser.add_argument(
        "--score-threshold", type=float, default=0.45, help="for precision and recall (%(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="write the description's metrics")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    report = _measure(options)
    if options.write:
        metrics = {key: report["stills"][key] for key in ("mAP50", "mAP50_95", "images")}
        write_description(options.model.with_suffix(".yaml"), metrics)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        for kind in ("stills", "drives"):
            print(f"{kind}: " + ", ".join(f"{key} {value}" for key, value in report[kind].items()))
    return 0


def _measure(options: argparse.Namespace) -> Dict[str, Dict[str, Any]]:
    from dla_perception.detection.detector import DetectionSettings, Detector
    from dla_perception.detection.recognition import describe_model
    from dla_perception.engines.loading import open_engine

    engine = open_engine(options.model)
    try:
        detector = Detector(engine, describe_model(engine))
        report = {}
        kinds = {"stills": held_out_stills, "drives": held_out_drive_frames}
        for kind, frames in kinds.items():
            started = time.monotonic()
            found: List[Detections] = []
            used: List[Detections] = []
            truths: List[Truth] = []
            inference_ms: List[float] = []
            for frame in frames(options.images):
                # once for the whole curve, once as the demo runs it
                detector.settings = DetectionSettings(LEAST_SCORE, iou_threshold=NMS_IOU)
                result = detector.detect(frame.pixels)
                found.append(result.detections)
                inference_ms.append(result.inference_ms)
                detector.settings = DetectionSettings(options.score_threshold)
                used.append(detector.detect(frame.pixels).detections)
                truths.append(Truth(frame.truth, frame.ignore))
            report[kind] = _summary(found, used, truths, options.score_threshold)
            report[kind]["inference_ms"] = round(sorted(inference_ms)[len(inference_ms) // 2], 2)
            report[kind]["seconds"] = round(time.monotonic() - started)
    finally:
        engine.close()
    return report


def _summary(
    found: Sequence[Detections],
    used: Sequence[Detections],
    truths: Sequence[Truth],
    threshold: float,
) -> Dict[str, Any]:
    map50, map50_95 = mean_average_precision(found, truths, len(CLASS_NAMES))
    by_class = average_precision(found, truths, len(CLASS_NAMES), 0.5)
    score = Score()
    for one, truth in zip(used, truths):
        score.add(one, truth.objects, truth.ignore)
    return {
        "mAP50": round(map50, 4),
        "mAP50_95": round(map50_95, 4),
        "images": len(truths),
        "AP50": {name: round(float(value), 4) for name, value in zip(CLASS_NAMES, by_class)},
        "score_threshold": threshold,
        "precision": round(score.precision, 4),
        "recall": round(score.recall, 4),
    }


if __name__ == "__main__":
    raise SystemExit(main())
