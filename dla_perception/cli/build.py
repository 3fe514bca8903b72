r"""Build an engine from an ONNX network: a TensorRT plan, or a DLA loadable with --standalone.

Beside ENGINE goes its record, ENGINE.manifest.json: what it was built from, for which machine and
core, where every layer runs and why, the scales of INT8 tensors, and a picture with what the
network finds in it, with which a node tests the engine before it trusts it. With a DLA core no
layer may run on the GPU unless --gpu-fallback says so.

  dla-perception build yolox_nano.onnx -o yolox_nano.dla0.engine --dla-core 0
  dla-perception build net.onnx -o net.engine --dla-core 1 --precision int8 \
      --calibration-cache net.cache --fp16-layer '/head/*' --gpu-fallback warn
  dla-perception build net.onnx -o net.dla --dla-core 0 --standalone \
      --input-format fp16:dla_hwc4 --output-format fp16:chw16
  dla-perception build net.onnx -o net.engine --dla-core 0 --print-trtexec --tensorrt 8.5.2
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:
    import numpy as np

    from dla_perception.compiler.builder import BuildPlan, BuildSettings
    from dla_perception.engines.manifest import EngineManifest

NAME = "build"
HELP = "TensorRT plan or DLA loadable from an ONNX network"

_SELF_TEST_SCENES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="ONNX network")
    parser.add_argument("-o", "--output", metavar="ENGINE", required=True)
    parser.add_argument(
        "--dla-core",
        type=int,
        default=-1,
        metavar="N",
        help="core to build for, -1 for the GPU alone (default: %(default)s)",
    )
    parser.add_argument("--standalone", action="store_true", help="a DLA loadable, for cuDLA")
    parser.add_argument(
        "--precision", choices=("fp16", "int8", "fp32"), default="fp16", help="default: %(default)s"
    )
    parser.add_argument("--calibration-cache", metavar="FILE", help="scales, for int8")
    parser.add_argument(
        "--gpu-fallback",
        choices=("forbid", "warn", "allow"),
        default="forbid",
        help="layers that the DLA does not take (default: %(default)s)",
    )
    for name in ("input", "output"):
        parser.add_argument(
            f"--{name}-format",
            metavar="TYPE:LAYOUT",
            action="append",
            default=[],
            help=f"as in fp16:chw16; once for all {name}s or once each (default: the DLA's own)",
        )
    parser.add_argument(
        "--fp16-layer",
        metavar="NAME",
        action="append",
        default=[],
        help="a layer that stays in FP16 in an INT8 network; * and ? stand for any characters",
    )
    parser.add_argument(
        "--pool",
        metavar="NAME:MIB",
        action="append",
        default=[],
        help="memory limit of workspace, dlaSRAM, dlaLocalDRAM or dlaGlobalDRAM",
    )
    parser.add_argument("--timing-cache", metavar="FILE", help="makes later builds faster")
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="keep ENGINE if it is what this build would make here; else say why it is not",
    )
    parser.add_argument(
        "--self-test-image",
        metavar="IMAGE",
        help="picture with objects for the engine's self-test (default: scenes of the demo)",
    )
    parser.add_argument("--labels", metavar="FILE", help="class names, one a line, or 'coco'")
    parser.add_argument(
        "--print-trtexec", action="store_true", help="print the trtexec line and build nothing"
    )
    parser.add_argument(
        "--tensorrt", metavar="VERSION", help="of --print-trtexec (default: the one installed)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Build, test and write."""
    from dla_perception.compiler.builder import build, plan_build
    from dla_perception.compiler.manifest import make_manifest, reason_to_build, write_engine

    plan = plan_build(arguments.model, arguments.output, _settings(arguments))
    if arguments.print_trtexec:
        return _print_trtexec(plan, arguments)
    _check_unused(arguments)
    if arguments.reuse:
        version, machine = _this_machine()
        reason = reason_to_build(plan, version, machine)
        if reason is None:
            print(f"{plan.engine}: up to date", file=sys.stderr)
            return _report(plan, None, arguments)
        print(f"{plan.engine}: building, because {reason}", file=sys.stderr)
    record = _record_self_test(plan, arguments)
    with _Progress(plan.engine.name) as progress:
        result = build(plan, progress=progress.update)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    manifest = make_manifest(plan, result, record)
    write_engine(plan, result, manifest)
    _copy_description(plan)
    return _report(plan, manifest, arguments)


def _settings(arguments: argparse.Namespace) -> BuildSettings:
    from dla_perception.compiler.builder import BuildSettings, IoFormat

    return BuildSettings(
        dla_core=arguments.dla_core,
        standalone=arguments.standalone,
        precision=arguments.precision,
        calibration_cache=arguments.calibration_cache,
        gpu_fallback=arguments.gpu_fallback,
        input_formats=tuple(IoFormat.parse(text) for text in arguments.input_format),
        output_formats=tuple(IoFormat.parse(text) for text in arguments.output_format),
        fp16_layers=tuple(arguments.fp16_layer),
        pools=dict(_pool(text) for text in arguments.pool),
        timing_cache=arguments.timing_cache,
    )


def _pool(text: str) -> tuple[str, int]:
    from dla_perception.compiler.builder import BuildError

    name, _, size = text.partition(":")
    try:
        return name, int(float(size) * (1 << 20))
    except (ValueError, OverflowError):
        raise BuildError(f"--pool {text}: expected NAME:MIB, as in dlaSRAM:1") from None


def _check_unused(arguments: argparse.Namespace) -> None:
    from dla_perception.compiler.builder import BuildError

    if arguments.tensorrt is not None:
        raise BuildError("--tensorrt matters to --print-trtexec only: a build uses the one here")


def _print_trtexec(plan: BuildPlan, arguments: argparse.Namespace) -> int:
    import re

    from dla_perception.compiler.builder import BuildError, write_atomically
    from dla_perception.compiler.half_precision import to_half_precision
    from dla_perception.compiler.trtexec import trtexec_command

    version = arguments.tensorrt
    if version is None:
        from dla_perception.engines.tensorrt_engine import import_tensorrt

        version = str(import_tensorrt().__version__)
    if not re.fullmatch(r"\d+\.\d+(\.\d+)*", version):
        raise BuildError(f"--tensorrt {version}: expected a version, as in 10.3")
    command = trtexec_command(plan, version)
    if int(version.partition(".")[0]) >= 11:
        model = to_half_precision(plan.model, str(plan.onnx))
        try:
            write_atomically(plan.typed_onnx, model.SerializeToString())
        except OSError as error:
            raise BuildError(f"{plan.typed_onnx}: cannot write it: {error.strerror}") from None
        print(f"{plan.typed_onnx}: the network in FP16", file=sys.stderr)
    for warning in plan.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(json.dumps({"trtexec": command}) if arguments.json else command)
    return 0


def _this_machine() -> Any:
    from dla_perception.engines.cuda_memory import CudaThread
    from dla_perception.engines.manifest import Machine
    from dla_perception.engines.tensorrt_engine import import_tensorrt, make_logger

    module = import_tensorrt()
    thread = CudaThread("this machine")
    device = thread.device
    thread.close()
    cores = module.Builder(make_logger(module)).num_DLA_cores
    return str(module.__version__), Machine(device.name, device.compute_capability, cores)


def _record_self_test(plan: BuildPlan, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What the ONNX network finds in a picture; ``None``, with a warning, if that says nothing."""
    from dla_perception.detection.description import DescriptionError
    from dla_perception.detection.detector import Detector
    from dla_perception.detection.recognition import describe_model
    from dla_perception.detection.self_test import record_self_test
    from dla_perception.engines.loading import open_engine

    engine = open_engine(plan.onnx, backend="onnxruntime")
    try:
        try:
            detector = Detector(engine, describe_model(engine, labels=arguments.labels))
        except DescriptionError as error:
            if arguments.self_test_image or arguments.labels:
                raise
            print(f"warning: no self-test: {error}", file=sys.stderr)
            return None
        record = record_self_test(detector, _pictures(arguments))
    finally:
        engine.close()
    if record is None:
        where = arguments.self_test_image or "the demo's scenes"
        print(
            f"warning: no self-test: the network finds nothing in {where}; give a picture that "
            "shows its objects with --self-test-image",
            file=sys.stderr,
        )
    return record


def _pictures(arguments: argparse.Namespace) -> Iterator[np.ndarray]:
    if arguments.self_test_image:
        from dla_perception.detection.images import read_image

        yield read_image(arguments.self_test_image)
        return
    from dla_perception.demo.scene import random_scene

    for seed in range(_SELF_TEST_SCENES):
        yield random_scene(seed).pixels


def _copy_description(plan: BuildPlan) -> None:
    """An engine is read with the description beside it, as its network is."""
    from dla_perception.detection.description import description_path

    source, target = description_path(plan.onnx), description_path(plan.engine)
    if source.exists() and not target.exists():
        shutil.copyfile(source, target)


def _report(plan: BuildPlan, manifest: EngineManifest | None, arguments: argparse.Namespace) -> int:
    from dla_perception.engines.manifest import manifest_path, parse_manifest

    found = manifest or parse_manifest(manifest_path(plan.engine))
    if arguments.json:
        document: dict[str, Any] = {"engine": str(plan.engine), "built": manifest is not None}
        document.update(json.loads(found.to_json()))
        if document["self_test"]:
            # the picture is for the engine, not for people
            document["self_test"] = {"detections": document["self_test"]["detections"]}
        print(json.dumps(document, indent=1))
        return 0
    on_dla, on_gpu = found.layers_on("dla"), found.layers_on("gpu")
    where = f"DLA core {found.dla_core}" if found.dla_core >= 0 else "the GPU"
    print(
        f"{plan.engine}: {found.kind} for {where}, {found.precision}, "
        f"TensorRT {found.tensorrt_version}, {found.build_seconds:.1f} s"
    )
    if found.dla_core >= 0:
        print(f"  {len(on_dla)} layers on the DLA, {len(on_gpu)} on the GPU")
    for layer in on_gpu if found.dla_core >= 0 else []:
        print(f"  gpu: {layer}")
    for kind, specs in (("input", found.inputs), ("output", found.outputs)):
        for spec in specs:
            print(f"  {kind}: {spec}")
    if found.self_test:
        print(f"  self-test: {len(found.self_test['detections'])} detections recorded")
    return 0


class _Progress:
    """A bar per phase on a terminal; a spinner where TensorRT tells nothing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )

            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
            self._progress.add_task(f"building {self._name}", total=None)
        return self

    def update(self, phase: str, done: int, steps: int) -> None:
        """Show that ``done`` of ``steps`` steps of a phase are done; called from any thread."""
        if self._progress is None:
            return
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(f"  {phase}", total=steps or None)
        self._progress.update(self._tasks[phase], completed=done, total=steps or None)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
