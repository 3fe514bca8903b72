"""Will a network run on a DLA? For each layer: where it runs and why.

The answer follows the rules that NVIDIA publishes for the DLA of a Jetson Xavier or Orin. They are
necessary, not sufficient: where TensorRT with a DLA is on this machine, it is asked too and has
the last word. Exit code 1 when the network does not run entirely on the DLA.

  dla-perception check yolox_nano.onnx
  dla-perception check yolov8n.onnx --target xavier --precision int8 --svg yolov8n.svg
  dla-perception check yolov8n.onnx --shape images:1x3x640x640 --json > verdict.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from dla_perception.compiler.device_opinion import Opinion
    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph
    from dla_perception.compiler.placement import Layer, Placement

NAME = "check"
HELP = "will it run on a DLA? per layer: where and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="ONNX network")
    add_target_arguments(parser)
    add_shape_argument(parser)
    parser.add_argument("--all", action="store_true", help="list every layer")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--svg", metavar="OUT", help="write a picture of the network coloured by device"
    )


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a network shall run on."""
    parser.add_argument(
        "--target", choices=("orin", "xavier"), default="orin", help="default: %(default)s"
    )
    parser.add_argument(
        "--tensorrt",
        choices=("8.5", "8.6", "10.3"),
        help="release on the device: JetPack 5.1 has 8.5, 6.0 has 8.6, 6.1 and 6.2 have 10.3 "
        "(default: the newest for the target)",
    )
    parser.add_argument(
        "--precision", choices=("fp16", "int8"), default="fp16", help="default: %(default)s"
    )


def add_shape_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how dynamic input sizes are fixed."""
    parser.add_argument(
        "--shape",
        metavar="[NAME:]1x3xHxW",
        action="append",
        default=[],
        help="fixed size of a dynamic input; once per input",
    )


def target_of(arguments: argparse.Namespace) -> Target:
    """What the arguments say a network shall run on."""
    from dla_perception.compiler.dla_support import TENSORRT_OF_TARGET, Target

    tensorrt = arguments.tensorrt or TENSORRT_OF_TARGET[arguments.target][-1]
    return Target(arguments.target, tensorrt, arguments.precision)


def shapes_of(arguments: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """The fixed input sizes that the arguments give, by input name."""
    from dla_perception.compiler.graph import GraphError

    shapes = {}
    for text in arguments.shape:
        name, _, sizes = text.rpartition(":")
        try:
            shape = tuple(int(size) for size in sizes.split("x"))
        except ValueError:
            shape = ()
        if not shape or min(shape) < 1:
            raise GraphError(
                f"--shape {text}: expected sizes such as 1x3x640x640 or images:1x3x640x640"
            )
        shapes[name] = shape
    return shapes


def run(arguments: argparse.Namespace) -> int:
    """Load, judge, print."""
    from dla_perception.compiler.graph import load_graph
    from dla_perception.compiler.placement import place

    target = target_of(arguments)
    graph = load_graph(arguments.model, shapes_of(arguments))
    graph.require_known_operators(target.opsets, f"TensorRT {target.tensorrt}")
    for notice in graph.notices:
        print(f"dla-perception check: {arguments.model}: {notice}", file=sys.stderr)
    opinion, why_not = _ask(graph, target)
    placement = place(graph, target, opinion.overrule() if opinion else None)
    if arguments.svg:
        _write_picture(arguments.svg, graph, placement)
    if arguments.json:
        print(json.dumps(placement.to_json(), indent=1))
    else:
        _print_report(arguments, graph, placement, opinion, why_not)
    return 0 if placement.runs_entirely_on_dla else 1


def _ask(graph: Graph, target: Target) -> tuple[Opinion | None, str]:
    from dla_perception.compiler.device_opinion import ask_tensorrt, tensorrt_with_dla

    module, why_not = tensorrt_with_dla(target)
    return (ask_tensorrt(module, graph, target.precision), "") if module else (None, why_not)


def _write_picture(path: str, graph: Graph, placement: Placement) -> None:
    from dla_perception.compiler.graph import GraphError
    from dla_perception.compiler.graph_picture import draw_placement

    try:
        Path(path).write_text(draw_placement(graph, placement), encoding="utf-8")
    except OSError as error:
        raise GraphError(f"{path}: cannot write the picture: {error.strerror}") from None


def _print_report(
    arguments: argparse.Namespace,
    graph: Graph,
    placement: Placement,
    opinion: Opinion | None,
    why_not: str,
) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    print_table(console, placement, arguments.all)
    if opinion is not None:
        _print_differences(console, graph, placement, opinion)
    for line in _summary(arguments, graph, placement):
        console.print(line, markup=False)
    if opinion is None:
        console.print(
            "These are NVIDIA's published rules; on the device TensorRT has the last word "
            f"(not asked: {why_not}).",
            markup=False,
        )


def print_table(console: Any, placement: Placement, every_layer: bool) -> None:
    """Print the layers, the worst first; alike ones in one row unless ``every_layer``."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=str(placement.target), title_justify="left")
    for heading in ("where", "operator", "layers", "why", "what to do", "source", "moved"):
        table.add_column(
            heading, overflow="fold", justify="right" if heading == "moved" else "left"
        )
    for layers in _rows(placement, every_layer):
        first = layers[0]
        sources = dict.fromkeys(
            f"{finding.source} ({finding.certainty.value})" for finding in first.findings
        )
        mends = dict.fromkeys(finding.mend for finding in first.findings if finding.mend)
        moved = sum(layer.crossing_bytes for layer in layers)
        colour = {"dla": "yellow" if first.findings else "green", "gpu": "red"}.get(first.device)
        cells = (
            f"{len(layers)} x {first.op}" if len(layers) > 1 else first.op,
            _names(layers),
            first.reason,
            "; ".join(mends),
            "; ".join(sources),
            _bytes(moved) if moved else "",
        )
        table.add_row(
            Text(first.device.upper(), style=colour or "dim"), *(Text(cell) for cell in cells)
        )
    console.print(table)


def _rows(placement: Placement, every_layer: bool) -> list[list[Layer]]:
    """Layers that share a row; worst first: GPU by bytes moved, then doubtful, then the rest."""
    rows: dict[Any, list[Layer]] = {}
    for layer in placement.layers:
        key = layer.name if every_layer else (layer.device, layer.op, layer.reason)
        rows.setdefault(key, []).append(layer)
    rank = {"gpu": 0, "dla": 1, "folded": 3}

    def badness(layers: list[Layer]) -> tuple[int, int, int]:
        first = layers[0]
        place = rank[first.device] + (first.device == "dla" and not first.findings)
        return place, -sum(layer.crossing_bytes for layer in layers), -len(layers)

    return sorted(rows.values(), key=badness)


def _names(layers: list[Layer]) -> str:
    names = [layer.name for layer in layers]
    return ", ".join(names[:3]) + (", ..." if names[3:] else "")


def _print_differences(console: Any, graph: Graph, placement: Placement, opinion: Opinion) -> None:
    from dla_perception.compiler.placement import place

    rules = {layer.name: layer for layer in place(graph, placement.target).layers}
    different = [
        (layer, rules[layer.name])
        for layer in placement.layers
        if layer.name in opinion.on_dla and layer.device != rules[layer.name].device
    ]
    console.print(
        f"TensorRT {opinion.version} on this machine was asked about {len(opinion.on_dla)} layers "
        f"and differs from the rules on {len(different) or 'none'}{':' if different else '.'}",
        markup=False,
    )
    for layer, ruled in different:
        why = f" ({ruled.reason})" if ruled.reason else ""
        console.print(
            f"  {layer.op} {layer.name}: TensorRT says {layer.device.upper()}, "
            f"the rules say {ruled.device.upper()}{why}",
            markup=False,
        )


def _summary(arguments: argparse.Namespace, graph: Graph, placement: Placement) -> list[str]:
    """What it comes to, for somebody who sees a DLA for the first time."""
    dla, gpu = placement.on("dla"), placement.on("gpu")
    lines = []
    if placement.runs_entirely_on_dla:
        pieces = placement.dla_subgraphs
        lines.append(
            f"YES: all {len(dla)} layers run on the DLA, as "
            f"{'one subgraph' if pieces == 1 else f'{pieces} subgraphs'}; the GPU stays free."
        )
    elif not dla:
        lines.append(f"NO: none of the {len(gpu)} layers runs on the DLA.")
    else:
        kinds = ", ".join(f"{count} x {op}" for op, count in _count_ops(gpu))
        lines.append(f"NO: {len(gpu)} of {len(gpu) + len(dla)} layers run on the GPU ({kinds}).")
        lines.append(
            f"They cut the network into {placement.dla_subgraphs} DLA "
            f"subgraph{'s' if placement.dla_subgraphs != 1 else ''}; "
            f"{_bytes(placement.traffic_bytes)} move between DLA and GPU for every image."
        )
    if gpu:
        lines.append(_outlook(arguments, graph, placement))
    for finding in placement.cautions:
        lines.append(f"Note: {finding.reason}; {finding.mend}.")
    return lines


def _outlook(arguments: argparse.Namespace, graph: Graph, placement: Placement) -> str:
    """What `prepare` would make of it."""
    from dla_perception.compiler.preparation import outlook

    model = Path(arguments.model)
    if any(layer.op == "QuantizeLinear" for layer in placement.on("gpu")):
        return (
            "Its Q/DQ nodes cut it to pieces: make it plain first, and check that: "
            f"dla-perception translate-qat {model} -o {model.stem}_plain"
        )
    try:
        after = outlook(graph, placement.target)
    except DlaPerceptionError as error:  # the verdict stands, whatever is wrong beside the network
        return f"What prepare would make of it cannot be told: {error}"
    left = after.on("gpu")
    options = "".join(f" --shape {text}" for text in arguments.shape)
    for name, default in (("target", "orin"), ("tensorrt", None), ("precision", "fp16")):
        if getattr(arguments, name) != default:
            options += f" --{name} {getattr(arguments, name)}"
    command = f"dla-perception prepare {model} -o {model.stem}_dla.onnx{options}"
    if after.runs_entirely_on_dla:
        return f"All of them can be mended, and the rest computes the same: {command}"
    kinds = ", ".join(f"{count} x {op}" for op, count in _count_ops(left))
    if len(left) >= len(placement.on("gpu")):
        return "None of them can be mended by rewriting: see 'what to do' above."
    return (
        f"Of {len(placement.on('gpu'))} only {len(left)} ({kinds}) would be left after: {command}"
    )


def _count_ops(layers: list[Layer]) -> list[tuple[str, int]]:
    return Counter(layer.op for layer in layers).most_common()


def _bytes(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.1f} kB"
