"""The demo's network in every precision, side by side, as a DLA would compute it.

    python -m dla_perception.demo.precision_table qat_fp16_heads.onnx qat_int8_heads.onnx

measures average precision on held-out pictures of the network as it is (FP32), in FP16, in INT8
after each kind of calibration, and of networks from ``python -m dla_perception.demo.qat``, which
are translated as ``translate-qat`` does it. All but FP32 is emulated on this machine's CPU; what
is emulated and what not: ``dla_perception/compiler/quantization/emulation.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from dla_perception.compiler.graph import Graph, load_graph
from dla_perception.compiler.quantization.calibration import METHODS, Statistics, scales_of
from dla_perception.compiler.quantization.emulation import emulate
from dla_perception.compiler.quantization.propagation import Inference
from dla_perception.compiler.quantization.qat import translate
from dla_perception.compiler.quantization.unification import unify
from dla_perception.demo.dataset import TRAINING_SEED, held_out_stills
from dla_perception.demo.evaluate_model import LEAST_SCORE, MODEL, NMS_IOU
from dla_perception.demo.scene import CLASS_NAMES, random_scene
from dla_perception.demo.scoring import Truth, mean_average_precision
from dla_perception.detection.detections import Detections
from dla_perception.detection.detector import DetectionSettings, Detector
from dla_perception.detection.preprocess import Preprocessor
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.engine import Engine
from dla_perception.engines.loading import open_engine
from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from onnx import ModelProto

INFERENCE = Inference(concat=True, operators=frozenset(["Resize"]))
"""The inference that a network of ``python -m dla_perception.demo.qat`` needs."""


class Variant(NamedTuple):
    """One row: what it is, the network that rounds so, how many layers compute how."""

    name: str
    network: ModelProto
    int8_layers: int
    fp16_layers: int


class Row(NamedTuple):
    """What a variant reaches."""

    name: str
    int8_layers: int
    fp16_layers: int
    map50: float
    map50_95: float


def float_variants(model: Path) -> Iterator[Variant]:
    """The network as it is, whose layers are not counted, and in FP16."""
    graph = load_graph(model)
    yield Variant("FP32", graph.to_model(), 0, 0)
    yield emulated("FP16", graph, {})


def calibrated_variants(model: Path, pictures: int) -> Iterator[Variant]:
    """The network in INT8, with scales from ``pictures`` as ``calibrate`` takes them."""
    graph = load_graph(model)
    statistics = Statistics(graph, lambda: calibration_inputs(model, pictures))
    for method in METHODS:
        for int8_heads in (True, False):
            scales = unify(graph, scales_of(graph, statistics, method, int8_heads=int8_heads))[0]
            heads = "" if int8_heads else ", FP16 head"
            yield emulated(f"INT8{heads}, calibrated: {method}", graph, scales)


def trained_variant(path: Path) -> Variant:
    """A network with Q/DQ nodes in INT8, with the scales that ``translate-qat`` finds."""
    translation = translate(path, INFERENCE)
    for warning in translation.warnings:
        print(f"precision_table: {path}: {warning}", file=sys.stderr)
    heads = ", FP16 head" if translation.fp16_layers else ""
    return emulated(f"INT8{heads}, trained: {path.name}", translation.graph, translation.scales)


def emulated(name: str, graph: Graph, scales: Mapping[str, float]) -> Variant:
    """A network as a DLA would compute it with these scales."""
    emulation = emulate(graph, scales)
    return Variant(name, emulation.model, len(emulation.int8_layers), len(emulation.fp16_layers))


def calibration_inputs(model: Path, count: int) -> Iterator[np.ndarray]:
    """Inputs ``(1, 3, 256, 320) float32`` made of pictures from the training's seeds."""
    engine = open_engine(model)
    try:
        preprocess = Preprocessor(describe_model(engine), engine.inputs[0])
        shape, dtype = engine.inputs[0].shape, engine.inputs[0].dtype
    finally:
        engine.close()
    for index in range(count):
        buffer = np.empty(shape, dtype)
        preprocess(random_scene(TRAINING_SEED + index).pixels, "bgr", buffer)
        yield buffer


def measure(model: Path, rows: Sequence[Variant], images: int) -> List[Row]:
    """Average precision of each variant of ``model`` on the same held-out pictures."""
    engines: List[Engine] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for index, row in enumerate(rows):
                path = Path(folder) / f"{index}.onnx"
                path.write_bytes(row.network.SerializeToString())
                engines.append(open_engine(path))
        description_of = open_engine(model)
        engines.append(description_of)
        description = describe_model(description_of)
        settings = DetectionSettings(LEAST_SCORE, iou_threshold=NMS_IOU)
        detectors = [Detector(engine, description, settings) for engine in engines[: len(rows)]]
        found: List[List[Detections]] = [[] for _ in rows]
        truths: List[Truth] = []
        for frame in held_out_stills(images):
            truths.append(Truth(frame.truth, frame.ignore))
            for detections, detector in zip(found, detectors):
                detections.append(detector.detect(frame.pixels).detections)
    finally:
        for engine in engines:
            engine.close()
    return [
        Row(
            row.name,
            row.int8_layers,
            row.fp16_layers,
            *mean_average_precision(detections, truths, len(CLASS_NAMES)),
        )
        for row, detections in zip(rows, found)
    ]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Measure and print; 2 and one line where something is missing or wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("qat", type=Path, nargs="*", metavar="QAT.onnx", help="Q/DQ networks")
    parser.add_argument(
        "--model", type=Path, default=MODEL, help="float network (default: the package's own)"
    )
    parser.add_argument("--images", type=_positive, default=500, help="held out (%(default)s)")
    parser.add_argument(
        "--calibration-pictures", type=_positive, default=64, help="(default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        rows = [
            *float_variants(options.model),
            *calibrated_variants(options.model, options.calibration_pictures),
            *map(trained_variant, options.qat),
        ]
        table = measure(options.model, rows, options.images)
    except DlaPerceptionError as error:
        print(f"precision_table: {error}", file=sys.stderr)
        return 2
    if options.json:
        document = {"images": options.images, "rows": [row._asdict() for row in table]}
        print(json.dumps(document, indent=1))
        return 0
    print(f"{options.images} held-out pictures")
    print(f"{'mAP50':>7} {'mAP50-95':>9} {'INT8':>5} {'FP16':>5}  (layers)")
    for row in table:
        print(
            f"{row.map50:7.4f} {row.map50_95:9.4f} {row.int8_layers:5} {row.fp16_layers:5}  "
            f"{row.name}"
        )
    return 0


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


if __name__ == "__main__":
    raise SystemExit(main())
