r"""Rewrite a network until it runs entirely on a DLA, and prove that it still computes the same.

The network is cut at its head convolutions, since no DLA decodes boxes, and a description (YAML)
of what was cut off is written beside it. Then every layer that a DLA refuses and that can be
written in other layers is. After each rewrite the network is run on random inputs before and
after; nothing is written when they differ by more than rounding. Exit code 1 when some layers
still do not run on the DLA.

  dla-perception prepare yolox_nano.onnx -o yolox_nano_dla.onnx --labels coco
  dla-perception prepare yolov4.onnx -o yolov4_dla.onnx --replace Mish=Relu \
      --images val2017 --annotations instances_val2017.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dla_perception.cli.check import (
    add_shape_argument,
    add_target_arguments,
    print_table,
    shapes_of,
    target_of,
)

if TYPE_CHECKING:
    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph
    from dla_perception.compiler.placement import Placement
    from dla_perception.compiler.preparation import Preparation, Step
    from dla_perception.detection.description import ModelDescription

NAME = "prepare"
HELP = "rewrite a network until a DLA takes it, cut its head, write its description"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="ONNX network")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="ONNX file to write")
    add_target_arguments(parser)
    add_shape_argument(parser)
    parser.add_argument("--description", metavar="YAML", help="default: the YAML beside the model")
    parser.add_argument(
        "--labels", metavar="FILE", help="class names, one a line, or 'coco' for the built-in list"
    )
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument(
        "--cut",
        metavar="TENSOR,...",
        help="cut at these tensors instead of the head convolutions that are found",
    )
    cut.add_argument("--no-cut", action="store_true", help="leave the outputs as they are")
    parser.add_argument(
        "--replace",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="an approximation: replace the activation OLD (Mish, HardSwish, GELU, Elu, ...) by "
        "Relu, LeakyRelu, SiLU or ReLU6",
    )
    parser.add_argument(
        "--fill-channels",
        action="store_true",
        help="fill channels that are joined up to whole vectors of the DLA: 16 in FP16, 32 in INT8",
    )
    parser.add_argument(
        "--images", metavar="DIR", help="measure COCO mAP before and after on these"
    )
    parser.add_argument(
        "--annotations", metavar="JSON", help="of the images, in COCO's 'instances' format"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


@dataclass
class _Result:
    """What there is to report."""

    preparation: Preparation
    placement: Placement
    cut: bool
    description: str | None = None
    head: tuple[float, float, int] | None = None
    average_precision: tuple[float, float] | None = None


def run(arguments: argparse.Namespace) -> int:
    """Cut, rewrite, prove, write, report."""
    from dla_perception.compiler.graph import GraphError, load_graph
    from dla_perception.compiler.placement import place
    from dla_perception.compiler.preparation import rewrite

    _check_arguments(arguments)
    target = target_of(arguments)
    whole = load_graph(arguments.model, shapes_of(arguments))
    for notice in whole.notices:
        _tell(f"{arguments.model}: {notice}")
    _refuse_quantised(whole)
    graph, description, head = _cut(arguments, whole, target)
    if arguments.images and description is None:
        raise GraphError(
            f"{arguments.model}: without a description boxes cannot be decoded: leave out --images"
        )
    graph.require_known_operators(target.opsets, f"TensorRT {target.tensorrt}")
    preparation = rewrite(
        graph,
        target,
        _replacements(arguments),
        arguments.fill_channels,
        tell=None if arguments.json else _print_step,
    )
    _write(arguments.output, graph)
    placement = place(load_graph(arguments.output), target)
    result = _Result(preparation, placement, graph.outputs != whole.outputs, head=head)
    if description is not None:
        from dla_perception.detection.description import description_path, write_description

        result.description = str(description_path(arguments.output))
        write_description(result.description, description)
    if arguments.images and description is not None:
        result.average_precision = _average_precisions(arguments, whole, graph, description)
    if arguments.json:
        print(json.dumps(_document(arguments, result), indent=1))
    else:
        _print_report(arguments, result, target)
    return 0 if result.placement.runs_entirely_on_dla else 1


def _tell(line: str) -> None:
    print(f"dla-perception prepare: {line}", file=sys.stderr)


def _check_arguments(arguments: argparse.Namespace) -> None:
    from dla_perception.compiler.graph import GraphError

    output = Path(arguments.output)
    if output.suffix != ".onnx":
        raise GraphError(f"{output}: expected a name that ends with .onnx")
    if output.exists() and output.samefile(arguments.model):
        raise GraphError(f"{output}: it is the model itself; give another file to write")
    if not output.parent.is_dir():
        raise GraphError(f"{output}: there is no folder {output.parent}; make it first")
    if bool(arguments.images) != bool(arguments.annotations):
        raise GraphError("--images and --annotations go together: give both or none")
    if arguments.images:  # what is wrong with them is better told before the work than after
        from dla_perception.evaluation import coco_map

        coco_map.find_images(coco_map.read_annotations(arguments.annotations), arguments.images)


def _refuse_quantised(graph: Graph) -> None:
    from dla_perception.compiler.graph import GraphError

    for node in graph.nodes:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            raise GraphError(
                f"{graph.where}: node '{node.name}': {node.op_type}: a network with Q/DQ nodes is "
                f"to be made plain first: dla-perception translate-qat {graph.where} -o DIR"
            )


def _replacements(arguments: argparse.Namespace) -> dict[str, str]:
    from dla_perception.compiler.rewrites.activation_replacement import ReplacementError

    wanted = {}
    for text in arguments.replace:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise ReplacementError(f"--replace {text}: expected OLD=NEW, as in Mish=Relu")
        wanted[old] = new
    return wanted


def _cut(
    arguments: argparse.Namespace, whole: Graph, target: Target
) -> tuple[Graph, ModelDescription | None, tuple[float, float, int] | None]:
    """The network to be rewritten, its description, and how well its head is decoded."""
    from dla_perception.compiler.head_description import (
        describe_cut,
        describe_graph,
        name_outputs_by_role,
        read_stated,
    )
    from dla_perception.compiler.rewrites import head_cut
    from dla_perception.detection.description import DescriptionError

    stated, path = read_stated(whole, arguments.description)
    graph = whole.copy()
    if arguments.cut:
        head_cut.cut(graph, arguments.cut.split(","))
    elif not arguments.no_cut:
        tensors = head_cut.head_tensors(graph)
        if not tensors:
            raise DescriptionError(
                f"{arguments.model}: there is no convolution before its outputs to cut at; "
                "give --cut TENSOR,... or --no-cut"
            )
        if head_cut.needs_cut(graph, tensors, target):
            head_cut.cut(graph, tensors)
            name_outputs_by_role(whole, graph)
    was_cut = graph.outputs != whole.outputs
    try:
        if was_cut:
            description = describe_cut(whole, graph, stated, path, arguments.labels)
        else:
            description = describe_graph(graph, stated, path, arguments.labels)
    except DescriptionError as error:
        if arguments.no_cut or arguments.cut or not (was_cut or stated):
            _tell(f"no description is written: {error}")
            return graph, None, None
        raise DescriptionError(
            f"{error}; or give --cut TENSOR,... or --no-cut to prepare it without a description"
        ) from None
    return (
        graph,
        description,
        _head_check(arguments, whole, graph, description) if was_cut else None,
    )


def _head_check(
    arguments: argparse.Namespace, whole: Graph, graph: Graph, description: ModelDescription
) -> tuple[float, float, int] | None:
    """Compare what is decoded from the whole and from the cut network."""
    from dla_perception.compiler.head_description import head_agreement
    from dla_perception.compiler.preparation import ProofError

    found = head_agreement(whole, graph, description, arguments.description, arguments.labels)
    if isinstance(found, str):
        _tell(f"{arguments.model}: decoding of the cut head was not compared: {found}")
        return None
    boxes, scores, _ = found
    if boxes > 0.05 or scores > 1e-3:
        raise ProofError(
            f"{arguments.model}: boxes decoded from the cut network differ by {boxes:.2g} px and "
            f"{scores:.2g} in score from the whole network's: the description does not fit; state "
            f"the head's keys (family {description.family}) in a description, or give --no-cut"
        )
    return found


def _write(path: str, graph: Graph) -> None:
    from dla_perception.compiler.graph import GraphError

    graph.metadata["prepared_by"] = "dla_perception"
    try:
        Path(path).write_bytes(graph.to_model().SerializeToString())
    except OSError as error:
        raise GraphError(f"{path}: cannot write it: {error.strerror}") from None


def _average_precisions(
    arguments: argparse.Namespace,
    whole: Graph,
    graph: Graph,
    description: ModelDescription,
) -> tuple[float, float]:
    """AP before and after."""
    from dla_perception.compiler.graph import GraphError
    from dla_perception.compiler.head_description import describe_whole
    from dla_perception.detection.description import DescriptionError

    try:
        before = describe_whole(whole, description, arguments.description, arguments.labels)
    except DescriptionError as error:
        raise GraphError(f"{error}; leave out --images") from None
    return (
        _average_precision(arguments, whole, before, "before"),
        _average_precision(arguments, graph, description, "after"),
    )


def _average_precision(
    arguments: argparse.Namespace, graph: Graph, description: ModelDescription, when: str
) -> float:
    from dla_perception.cli.progress import track
    from dla_perception.detection.detector import DetectionSettings, Detector
    from dla_perception.engines.onnxruntime_engine import OnnxRuntimeEngine
    from dla_perception.evaluation import coco_map

    annotations = coco_map.read_annotations(arguments.annotations)
    images, _ = coco_map.find_images(annotations, arguments.images)
    mapping = coco_map.map_classes(annotations, description)
    settings = DetectionSettings(score_threshold=0.01, iou_threshold=0.45)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        path.write_bytes(graph.to_model().SerializeToString())
        engine = OnnxRuntimeEngine(path)
        try:
            detector = Detector(engine, description, settings)
            detections = {
                image.image_id: detector.detect(
                    coco_map.read_annotated_image(arguments.images, image)
                ).detections
                for image in track(images, f"mAP {when}")
            }
        finally:
            engine.close()
    return coco_map.average_precision(annotations, mapping, detections).ap


def _print_step(step: Step) -> None:
    proof = "an approximation" if not step.exact else f"largest difference {step.difference:.1e}"
    count = f"{len(step.nodes)} node{'s' if len(step.nodes) != 1 else ''}"
    print(f"{step.summary}: {count}, {proof}")


def _print_report(arguments: argparse.Namespace, result: _Result, target: Target) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    placement, preparation = result.placement, result.preparation
    lines = []
    if result.cut:
        lines.append(f"cut at its head convolutions: {arguments.output} returns raw maps.")
    if result.head is not None:
        boxes, scores, count = result.head
        lines.append(
            f"decoded by this package, the cut network's best {count} boxes on random images are "
            f"the whole network's: within {boxes:.1e} px and {scores:.1e} in score."
        )
    lines.append(
        f"largest difference after all exact rewrites: {preparation.difference:.1e} of the largest "
        f"output (rounding: up to {preparation.tolerance:.1e})."
    )
    for step in preparation.steps:
        if not step.exact:
            lines.append(
                f"APPROXIMATION {step.summary}: judge the network again on images before use."
            )
    if result.average_precision is not None:
        before, after = result.average_precision
        lines.append(f"AP before {before:.3f}, after {after:.3f} ({after - before:+.3f}).")
    if not placement.runs_entirely_on_dla:
        print_table(console, placement, False)
    for line in lines:
        console.print(line, markup=False)
    wrote = arguments.output + (f" and {result.description}" if result.description else "")
    gpu = len(placement.on("gpu"))
    console.print(
        f"{wrote}: {'runs entirely on the DLA' if placement.runs_entirely_on_dla else ''}"
        f"{f'{gpu} layers still run on the GPU' if not placement.runs_entirely_on_dla else ''} "
        f"({target}).",
        markup=False,
    )


def _document(arguments: argparse.Namespace, result: _Result) -> dict[str, Any]:
    head, precision = result.head, result.average_precision
    return {
        "model": arguments.model,
        "output": arguments.output,
        "description": result.description,
        "cut": result.cut,
        "steps": [
            {
                "name": step.name,
                "summary": step.summary,
                "nodes": list(step.nodes),
                "exact": step.exact,
                "difference": step.difference,
            }
            for step in result.preparation.steps
        ],
        "difference": result.preparation.difference,
        "tolerance": result.preparation.tolerance,
        "head": None
        if head is None
        else {"box_difference_px": head[0], "score_difference": head[1], "compared": head[2]},
        "AP": None if precision is None else {"before": precision[0], "after": precision[1]},
        "check": result.placement.to_json(),
    }
