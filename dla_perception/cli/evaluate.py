r"""Judge a network on annotated images: average precision as COCO defines it.

AP is the mean over the IoU thresholds 0.50 to 0.95, AP50 and AP75 those at one threshold.
The network's classes and the annotations' categories are matched by name.

--precision predicts what a DLA would reach: the network is rounded as it would be there, in
INT8 with the scales of a calibration cache and in FP16 where a tensor has no scale.

  dla-perception evaluate yolox_nano.onnx --images val2017 \
      --annotations instances_val2017.json --labels coco --precision int8 --cache nano.cache
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME = "evaluate"
HELP = "COCO mAP of a network on annotated images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="ONNX network or engine")
    parser.add_argument("--images", metavar="DIR", required=True, help="folder of the images")
    parser.add_argument(
        "--annotations", metavar="JSON", required=True, help="in COCO's 'instances' format"
    )
    parser.add_argument("--description", metavar="YAML", help="default: the YAML beside the model")
    parser.add_argument(
        "--labels", metavar="FILE", help="class names, one a line, or 'coco' for the built-in list"
    )
    parser.add_argument(
        "--score-threshold",
        type=float,
        default=0.01,
        metavar="S",
        help="low, so that the whole precision-recall curve is seen (default: %(default)s)",
    )
    parser.add_argument(
        "--iou-threshold",
        type=float,
        default=0.45,
        metavar="I",
        help="of boxes of a class that overlap more, the best stays (default: %(default)s)",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "fp16", "int8"),
        default="fp32",
        help="fp32: the file as it is; fp16, int8: an ONNX network as a DLA would compute it "
        "(default: %(default)s)",
    )
    parser.add_argument("--cache", metavar="FILE", help="calibration cache, for int8")
    parser.add_argument(
        "--dla-core",
        type=int,
        default=-1,
        metavar="N",
        help="core to run an engine on that was built for a DLA (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    from dla_perception.detection.detector import DetectionSettings, Detector
    from dla_perception.detection.recognition import describe_model
    from dla_perception.engines.loading import open_engine
    from dla_perception.evaluation import coco_map

    settings = DetectionSettings(
        score_threshold=arguments.score_threshold, iou_threshold=arguments.iou_threshold
    )
    annotations = coco_map.read_annotations(arguments.annotations)
    images, missing = coco_map.find_images(annotations, arguments.images)
    _check_cache_option(arguments)
    engine = open_engine(arguments.model, dla_core=arguments.dla_core)
    try:
        description = describe_model(engine, arguments.description, arguments.labels)
        mapping = coco_map.map_classes(annotations, description)
        _tell_left_out(arguments, mapping, len(missing), len(annotations.images))
        precision = arguments.precision
        if engine.info.runtime != "onnxruntime":
            precision = "as built"
        if arguments.precision != "fp32":
            engine.close()
            engine = _emulated(arguments)
        detections = _detect(Detector(engine, description, settings), images, arguments.images)
    finally:
        engine.close()
    result = coco_map.average_precision(annotations, mapping, detections)
    document = {
        "AP": result.ap,
        "AP50": result.ap50,
        "AP75": result.ap75,
        "images": result.images,
        "precision": precision,
    }
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        print(
            f"AP {result.ap:.3f}  AP50 {result.ap50:.3f}  AP75 {result.ap75:.3f}  "
            f"on {result.images} images, {document['precision']}"
        )
    return 0


def _detect(detector: Any, images: Any, folder: str) -> dict[int, Any]:
    from dla_perception.cli.progress import track
    from dla_perception.evaluation.coco_map import read_annotated_image

    return {
        image.image_id: detector.detect(read_annotated_image(folder, image)).detections
        for image in track(images, "evaluate")
    }


def _check_cache_option(arguments: argparse.Namespace) -> None:
    from dla_perception.compiler.quantization.cache import CacheError

    if arguments.precision == "int8" and not arguments.cache:
        raise CacheError("--precision int8 needs --cache FILE: make one with 'calibrate'")
    if arguments.cache and arguments.precision != "int8":
        raise CacheError(f"--cache {arguments.cache} goes with --precision int8 only")


def _emulated(arguments: argparse.Namespace) -> Any:
    """An engine that rounds as a DLA does."""
    from dla_perception.compiler.graph import load_graph
    from dla_perception.compiler.quantization.cache import CacheError, read_cache
    from dla_perception.compiler.quantization.emulation import emulate
    from dla_perception.engines.loading import open_engine

    scales = read_cache(arguments.cache).scales if arguments.cache else {}
    emulation = emulate(load_graph(arguments.model), scales)
    if scales and not emulation.int8_layers:
        raise CacheError(
            f"{arguments.cache}: no layer of {arguments.model} can run in INT8 with it: "
            f"{len(emulation.unknown)} of its {len(scales)} tensors are not in the network; "
            "expected a cache that was made for it"
        )
    if emulation.unknown:
        _tell(
            f"{arguments.cache}: {len(emulation.unknown)} of its {len(scales)} tensors, such as "
            f"'{emulation.unknown[0]}', are not in {arguments.model}"
        )
    _tell(
        f"{len(emulation.int8_layers)} layers in INT8, {len(emulation.fp16_layers)} in FP16, "
        "emulated"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulated.onnx"
        path.write_bytes(emulation.model.SerializeToString())
        return open_engine(path)


def _tell(line: str) -> None:
    print(f"dla-perception evaluate: {line}", file=sys.stderr)


def _tell_left_out(arguments: argparse.Namespace, mapping: Any, missing: int, total: int) -> None:
    if mapping.unknown_classes:
        _tell(
            f"{arguments.annotations}: it has no category for the network's "
            f"{_list(mapping.unknown_classes)}: their detections are not judged"
        )
    if mapping.undetectable_categories:
        _tell(
            f"{arguments.model}: it has no class for the annotated "
            f"{_list(mapping.undetectable_categories)}: left out of the mean"
        )
    if missing:
        _tell(f"{arguments.images}: {missing} of the {total} annotated images are not in it")


def _list(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)
