"""Find objects in pictures.

Prints the boxes in pixels of the picture: x1 y1 x2 y2, from the top left corner.
The family, the colour order and the letterbox of the network are read from the YAML
beside the model, or inferred from its shapes.

  dla-perception detect yolox_nano.onnx street.jpg --labels coco
  dla-perception detect yolox_nano.onnx *.jpg --labels names.txt --json > boxes.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

NAME = "detect"
HELP = "boxes for pictures, as text, JSON or an annotated picture"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help="ONNX network, TensorRT plan or DLA loadable"
    )
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="picture file")
    parser.add_argument("--description", metavar="YAML", help="default: the YAML beside the model")
    parser.add_argument(
        "--labels", metavar="FILE", help="class names, one a line, or 'coco' for the built-in list"
    )
    parser.add_argument(
        "--score-threshold", type=float, default=0.3, metavar="S", help="default: %(default)s"
    )
    parser.add_argument(
        "--iou-threshold",
        type=float,
        default=0.45,
        metavar="I",
        help="of boxes of a class that overlap more, the best stays (default: %(default)s)",
    )
    parser.add_argument(
        "--backend",
        default="auto",
        choices=("auto", "onnxruntime", "tensorrt", "cudla"),
        help="what runs it (default: the runtime for the file's kind)",
    )
    parser.add_argument(
        "--dla-core", type=int, default=-1, metavar="N", help="0 or 1; -1: none (default)"
    )
    parser.add_argument(
        "--gpu-fallback",
        default="forbid",
        choices=("forbid", "warn", "allow"),
        help="what to do, with a DLA core, about layers that run elsewhere (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--annotate",
        metavar="OUT",
        help="write the picture with its boxes; a folder when there are several pictures",
    )


def run(arguments: argparse.Namespace) -> int:
    """Detect, print and draw."""
    from dla_perception.detection.detector import DetectionSettings, Detector
    from dla_perception.detection.recognition import describe_model
    from dla_perception.engines.loading import open_engine

    settings = DetectionSettings(
        score_threshold=arguments.score_threshold, iou_threshold=arguments.iou_threshold
    )
    engine = open_engine(
        arguments.model, arguments.backend, arguments.dla_core, arguments.gpu_fallback
    )
    if arguments.gpu_fallback == "warn" and arguments.dla_core >= 0:
        elsewhere = engine.info.layers_elsewhere()
        if elsewhere:
            print(f"warning: {elsewhere}", file=sys.stderr)
    try:
        description = describe_model(engine, arguments.description, arguments.labels)
        detector = Detector(engine, description, settings)
        images = [_detect_file(detector, path, arguments) for path in arguments.images]
    finally:
        engine.close()
    if arguments.json:
        print(json.dumps({"model": arguments.model, "images": images}, indent=1))
    return 0


def _detect_file(detector: Any, path: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from dla_perception.detection.images import read_image, write_image

    pixels = read_image(path)
    detections = detector.detect(pixels).detections
    description = detector.description
    image: dict[str, Any] = {
        "path": path,
        "width": pixels.shape[1],
        "height": pixels.shape[0],
        "detections": [
            {
                "label": description.label(class_id),
                "class_id": class_id,
                "score": round(score, 6),
                "box": [round(float(edge), 3) for edge in box],
            }
            for box, score, class_id in detections
        ],
    }
    if not arguments.json:
        print(f"{path}: {pixels.shape[1]} x {pixels.shape[0]}, {len(detections)} detections")
        for found in image["detections"]:
            box = " ".join(f"{edge:8.1f}" for edge in found["box"])
            print(f"  {found['label']:<16} {found['score']:.3f} {box}")
    if arguments.annotate:
        from dla_perception.detection.drawing import draw_detections

        out = Path(arguments.annotate)
        if len(arguments.images) > 1:
            out.mkdir(parents=True, exist_ok=True)
            out = out / f"{Path(path).stem}.png"
        write_image(out, draw_detections(pixels, detections, description))
    return image
