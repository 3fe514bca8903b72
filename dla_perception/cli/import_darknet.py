r"""Turn a Darknet network into ONNX: YOLOv2 to v4, v7 and their relatives.

The network is cut before its [yolo] layers: each output is what such a layer reads.
Anchors, strides and the like go into the description beside the ONNX file.

  dla-perception import-darknet yolov4-tiny.cfg yolov4-tiny.weights -o yolov4_tiny.onnx \
      --labels coco.names
  dla-perception detect yolov4_tiny.onnx street.jpg
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

NAME = "import-darknet"
HELP = "Darknet cfg and weights to ONNX and its description"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("cfg", metavar="CFG", help="the network's .cfg file")
    parser.add_argument("weights", metavar="WEIGHTS", help="its .weights file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="ONNX file to write")
    parser.add_argument(
        "--labels", metavar="FILE", help="class names, one a line, or 'coco' for the built-in list"
    )
    parser.add_argument(
        "--input-size",
        metavar="WIDTHxHEIGHT",
        type=_size,
        help="of the network's input in pixels (default: as the cfg has it)",
    )
    parser.add_argument(
        "--batch-norm-epsilon",
        metavar="E",
        type=_positive,
        default=1e-6,
        help="added to variances: 1e-6 as OpenCV does, 1e-5 as Darknet's later versions do "
        "(default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Import, write both files and say what they are."""
    from dla_perception.compiler.darknet import import_darknet
    from dla_perception.compiler.darknet_files import DarknetError
    from dla_perception.detection.description import write_description

    output = Path(arguments.output)
    if output.suffix != ".onnx":
        raise DarknetError(f"{output}: expected a name that ends in .onnx")
    network = import_darknet(
        arguments.cfg, arguments.weights, arguments.input_size, arguments.batch_norm_epsilon
    )
    description = network.description
    if arguments.labels:
        if description is None:
            raise DarknetError(
                f"{arguments.cfg}: --labels goes with [yolo] layers, of which it has none"
            )
        names = _names(arguments, description.num_classes)
        description = replace(description, class_names=names)
    _write(output, network.model.SerializeToString())
    print(f"{output}: {network.layers} layers, {len(network.model.graph.output)} outputs:")
    for value in network.model.graph.output:
        shape = " x ".join(str(size.dim_value) for size in value.type.tensor_type.shape.dim)
        print(f"  {value.name}: {shape}")
    if description is None:
        print(
            "no description: only networks with [yolo] layers can be decoded here; "
            "the outputs are raw"
        )
        return 0
    beside = output.with_suffix(".yaml")
    write_description(beside, description)
    print(f"{beside}: its description")
    return 0


def _names(arguments: argparse.Namespace, num_classes: int) -> tuple[str, ...]:
    from dla_perception.compiler.darknet_files import DarknetError
    from dla_perception.detection.coco import COCO_CLASS_NAMES
    from dla_perception.detection.description import read_labels

    names = COCO_CLASS_NAMES if arguments.labels == "coco" else read_labels(arguments.labels)
    if len(names) != num_classes:
        raise DarknetError(
            f"{arguments.labels}: {len(names)} class names, but {arguments.cfg} tells "
            f"{num_classes} classes apart"
        )
    return names


def _write(path: Path, content: bytes) -> None:
    from dla_perception.compiler.darknet_files import DarknetError

    try:
        path.write_bytes(content)
    except OSError as error:
        raise DarknetError(f"{path}: cannot write it: {error.strerror}") from None


def _size(text: str) -> tuple[int, int]:
    width, times, height = text.partition("x")
    if not (times and width.isdigit() and height.isdigit() and int(width) and int(height)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected WIDTHxHEIGHT, as in 416x416")
    return int(width), int(height)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number such as 1e-5")
    return value
