r"""Compute INT8 scales on this machine's CPU, as a TensorRT calibration cache.

The network runs on each image of a folder, some dozens of typical ones, and the values of
each tensor tell its scale:
  entropy     least information lost, as TensorRT's EntropyCalibration2 does it
  minmax      nothing is clipped
  percentile  all but the largest values fit, see --percentile
Whatever the method, the cache is marked EntropyCalibration2: TensorRT accepts no other for
a DLA. Tensors that must share a scale on a DLA get the largest of theirs.

What lies behind the last convolutions, and the layers of --fp16, get no scale: they run in
FP16. --sensitivity shows what each layer loses in INT8, --fp16-worst leaves the worst out.

  dla-perception calibrate yolox_nano.onnx --images photos -o yolox_nano.cache
  dla-perception evaluate yolox_nano.onnx --precision int8 --cache yolox_nano.cache ...
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Iterable, Sequence

NAME = "calibrate"
HELP = "INT8 scales from images, as a TensorRT calibration cache"

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
SENSITIVITY_IMAGES = 3
"""Images on which a layer's loss is measured: as many networks are made as there are layers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="ONNX network without Q/DQ nodes")
    parser.add_argument("--images", metavar="DIR", required=True, help="folder of typical images")
    parser.add_argument("-o", "--output", metavar="CACHE", required=True, help="file to write")
    parser.add_argument(
        "--method",
        choices=("entropy", "minmax", "percentile"),
        default="entropy",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--percentile",
        type=_percentile,
        default=99.99,
        metavar="P",
        help="share of the values that fit, for that method (default: %(default)s)",
    )
    parser.add_argument("--description", metavar="YAML", help="default: the YAML beside the model")
    parser.add_argument(
        "--fp16",
        metavar="LAYER",
        nargs="+",
        default=[],
        help="layers to leave in FP16, by name or pattern, such as '/head/*'",
    )
    parser.add_argument(
        "--fp16-worst",
        metavar="N",
        type=_count,
        default=0,
        help="leave the N layers in FP16 that lose most in INT8",
    )
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help="run each layer alone in INT8 and list what the outputs lose, worst first",
    )
    parser.add_argument(
        "--int8-heads", action="store_true", help="also scale what lies behind the last layers"
    )
    parser.add_argument(
        "--no-unify", action="store_true", help="keep the scales as they were measured"
    )
    parser.add_argument(
        "--tensorrt",
        metavar="VERSION",
        default="8.6",
        help="which TensorRT the cache is for, such as 8.5.2 or 10.3 (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, choose the scales and write them."""
    from dla_perception.cli.progress import track
    from dla_perception.compiler.graph import load_graph
    from dla_perception.compiler.quantization.cache import (
        CalibrationCache,
        encode_version,
        write_cache,
    )
    from dla_perception.compiler.quantization.calibration import Statistics, scales_of
    from dla_perception.compiler.quantization.emulation import emulate
    from dla_perception.compiler.quantization.sensitivity import losses
    from dla_perception.compiler.quantization.unification import unify

    version = encode_version(arguments.tensorrt)
    graph = load_graph(arguments.model)
    inputs = _Inputs(arguments)
    statistics = Statistics(graph, inputs)

    def choose(fp16_layers: Sequence[str]) -> dict[str, float]:
        scales = scales_of(
            graph,
            statistics,
            arguments.method,
            arguments.percentile,
            arguments.int8_heads,
            fp16_layers,
        )
        return scales if arguments.no_unify else unify(graph, scales)[0]

    scales = choose(arguments.fp16)
    if arguments.sensitivity or arguments.fp16_worst:
        few = [image.copy() for image in inputs.first(SENSITIVITY_IMAGES)]
        found = losses(graph, scales, few, lambda names: track(names, "layers"))
        if arguments.sensitivity:
            print("signal to noise of the outputs with one layer in INT8, in dB:")
            for loss in found:
                print(f"  {loss.signal_to_noise_db:6.1f}  {loss.op:<14} {loss.layer}")
        worst = [loss.layer for loss in found[: arguments.fp16_worst]]
        if worst:
            print(f"left in FP16: {', '.join(worst)}")
            scales = choose([*arguments.fp16, *worst])
    write_cache(arguments.output, CalibrationCache(scales, version))
    layers = emulate(graph, scales)
    print(
        f"{arguments.output}: {len(scales)} tensors from {len(inputs.paths)} images, "
        f"{arguments.method}: {len(layers.int8_layers)} layers in INT8, "
        f"{len(layers.fp16_layers)} in FP16"
    )
    return 0


class _Inputs:
    """The images of a folder as inputs of a network, read anew for each pass."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from dla_perception.compiler.quantization.calibration import CalibrationError
        from dla_perception.detection.recognition import describe_model
        from dla_perception.engines.loading import open_engine

        folder = Path(arguments.images)
        if not folder.is_dir():
            raise CalibrationError(f"{folder}: there is no such folder; expected one of images")
        self.paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        if not self.paths:
            raise CalibrationError(
                f"{folder}: it holds no image; expected files that end in {', '.join(SUFFIXES)}"
            )
        engine = open_engine(arguments.model)
        try:
            self._description = describe_model(engine, arguments.description)
            self._spec = engine.inputs[0]
        finally:
            engine.close()
        self._passes = 0

    def __call__(self) -> Iterable[Any]:
        """All inputs ``(1, 3, height, width) float32``; each is overwritten by the next."""
        from dla_perception.cli.progress import track_iterable

        self._passes += 1
        return track_iterable(self._read(self.paths), f"pass {self._passes}", len(self.paths))

    def first(self, count: int) -> Iterable[Any]:
        """The inputs of the first images."""
        return self._read(self.paths[:count])

    def _read(self, paths: Sequence[Path]) -> Iterable[Any]:
        import numpy as np

        from dla_perception.detection.images import read_image
        from dla_perception.detection.preprocess import Preprocessor

        preprocess = Preprocessor(self._description, self._spec)
        buffer = np.empty(self._spec.shape, self._spec.dtype)
        for path in paths:
            preprocess(read_image(path), "bgr", buffer)
            yield buffer


def _percentile(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0, at most 100")
    return value


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number")
    return int(text)
