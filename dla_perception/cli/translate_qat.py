r"""Turn a network from quantisation-aware training into one that a DLA builder takes.

The QuantizeLinear and DequantizeLinear nodes are taken out and their scales put into a
calibration cache. DIR then holds, after the network's name:
  <name>_noqdq.onnx             the plain network, and its description if MODEL has one
  <name>_calib.cache            the scales for trtexec --calib
  <name>_precision_config.json  the scales, and the nodes that stay in FP16
  <name>_layer_arg.txt          the same nodes for trtexec --layerPrecisions
Scales that the nodes state are kept. Those that are missing are inferred where values only
pass through; the --infer options infer more. The more scales, the faster, and the options are
those of NVIDIA's qdq-translator.

  dla-perception translate-qat yolov5s_qat.onnx -o out --infer-concat-scales --infer-mul-scales
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

NAME = "translate-qat"
HELP = "a network with Q/DQ nodes to a plain one and a calibration cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="ONNX network with Q/DQ nodes")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to write into")
    parser.add_argument("--infer-concat-scales", action="store_true", help="across concatenations")
    parser.add_argument(
        "--infer-mul-scales", action="store_true", help="across products, SiLU above all"
    )
    parser.add_argument(
        "--infer-average-pool-scales", action="store_true", help="across average pooling"
    )
    parser.add_argument(
        "--addtl-ops-to-infer-adjacent-scales",
        metavar="OPS",
        default="",
        help="more operators whose input and output share a scale, such as Resize,Add",
    )
    parser.add_argument(
        "--add-unary-ew-scales-for-dla",
        action="store_true",
        help="scale 1.0, which DLA software from 3.13 on reads as none, for a convolution without "
        "one that enters a sum, so that both run as one",
    )
    parser.add_argument(
        "--unify",
        action="store_true",
        help="give tensors that must share a scale on a DLA the largest of theirs, and list them",
    )
    parser.add_argument(
        "--calibration-type",
        choices=("max", "histogram"),
        default="max",
        help="how the weights' scales were chosen; TensorRT takes max|w|/127, and 'max' checks "
        "that they are that (default: %(default)s)",
    )
    parser.add_argument(
        "--rename-node-outputs", action="store_true", help="name each tensor after its node"
    )
    parser.add_argument(
        "--tensorrt",
        metavar="VERSION",
        default="8.6",
        help="which TensorRT the cache is for, such as 8.5.2 or 10.3 (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Translate and write the files."""
    from dla_perception.compiler.quantization.cache import encode_version
    from dla_perception.compiler.quantization.propagation import Inference
    from dla_perception.compiler.quantization.qat import translate

    version = encode_version(arguments.tensorrt)
    operators = arguments.addtl_ops_to_infer_adjacent_scales.split(",")
    translation = translate(
        arguments.model,
        Inference(
            concat=arguments.infer_concat_scales,
            mul=arguments.infer_mul_scales,
            average_pool=arguments.infer_average_pool_scales,
            operators=frozenset(name.strip() for name in operators if name.strip()),
            unary_for_dla=arguments.add_unary_ew_scales_for_dla,
        ),
        weights_by_maximum=arguments.calibration_type == "max",
        unified=arguments.unify,
        rename_outputs=arguments.rename_node_outputs,
    )
    for warning in translation.warnings:
        print(f"dla-perception translate-qat: {arguments.model}: {warning}", file=sys.stderr)
    for change in translation.changes:
        before = "none" if change.before is None else f"{change.before:.6g}"
        print(f"unified: {change.tensor}: {before} -> {change.after:.6g}")
    paths = _write(arguments, translation, version)
    inferred = len(translation.scales) - len(translation.stated)
    print(
        f"{paths[0]}: {len(translation.stated)} scales from its Q/DQ nodes, {inferred} inferred, "
        f"{len(translation.fp16_layers)} nodes stay in FP16"
    )
    for path in paths[1:]:
        print(path)
    return 0


def _write(arguments: argparse.Namespace, translation: Any, version: int) -> list[Path]:
    from dla_perception.compiler.quantization.cache import CalibrationCache, write_cache
    from dla_perception.compiler.quantization.qat import QatError
    from dla_perception.detection.description import description_path

    folder, stem = Path(arguments.output), Path(arguments.model).stem
    network = folder / f"{stem}_noqdq.onnx"
    cache = folder / f"{stem}_calib.cache"
    config = folder / f"{stem}_precision_config.json"
    layers = folder / f"{stem}_layer_arg.txt"
    written = [network, cache, config, layers]
    document = {
        "int8_tensor_scales": dict(translation.scales),
        "fp16_nodes": list(translation.fp16_layers),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        network.write_bytes(translation.graph.to_model().SerializeToString())
        write_cache(cache, CalibrationCache(translation.scales, version))
        config.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        layers.write_text(
            "".join(f"{name}:fp16," for name in translation.fp16_layers), encoding="utf-8"
        )
        description = description_path(arguments.model)
        if description.exists():
            shutil.copyfile(description, description_path(network))
            written.append(description_path(network))
    except OSError as error:
        raise QatError(f"{folder}: cannot write into it: {error.strerror}") from None
    return written
