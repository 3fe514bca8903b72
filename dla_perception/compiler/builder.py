"""ONNX network -> TensorRT plan for a DLA core or the GPU, or DLA loadable.

Two ways, chosen by what the module offers: up to TensorRT 10 the builder is told precisions by
flags and a calibration cache; from 11 on every network is strongly typed, and an FP16 one is
written first (``compiler/half_precision.py``).
"""

from __future__ import annotations

import fnmatch
import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from dla_perception.compiler.build_log import BuildLog, parse_build_log
from dla_perception.compiler.half_precision import to_half_precision
from dla_perception.engines.cuda_memory import CudaDevice, CudaThread
from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.files import LOADABLE_MARK
from dla_perception.engines.inspector import GPU, LayerPlacement, list_layers, on_device
from dla_perception.engines.layouts import Layout, LayoutError, buffer_shape
from dla_perception.engines.manifest import Machine
from dla_perception.engines.tensorrt_engine import (
    NO_DLA_HINT,
    import_tensorrt,
    inspect_layers,
    logged_errors,
    make_logger,
    row_alignment,
)
from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    import tensorrt as trt
    from onnx import ModelProto

    from dla_perception.compiler.quantization.cache import CalibrationCache

PRECISIONS = ("fp16", "int8", "fp32")

POOLS: Mapping[str, str] = {
    "workspace": "WORKSPACE",
    "dlaSRAM": "DLA_MANAGED_SRAM",
    "dlaLocalDRAM": "DLA_LOCAL_DRAM",
    "dlaGlobalDRAM": "DLA_GLOBAL_DRAM",
}
"""Memory pools: trtexec's name, and ``tensorrt.MemoryPoolType``'s."""

LEAST_DLA_POOL = 4096
"""Bytes; and a DLA pool is a power of two (``IBuilderConfig.set_memory_pool_limit``)."""

MOST_DLA_BATCH = 4096
"""Images of a batch, on any DLA (developer guide, "DLA supported layers and restrictions")."""

_SHOWN_TENSORS = 10

Progress = Callable[[str, int, int], None]
"""Called with a phase's name, the steps done and all its steps, from any thread."""


class BuildError(DlaPerceptionError):
    """An engine cannot be built."""


class BuildRefusedError(BuildError):
    """TensorRT, or the fallback policy, refuses the network.

    Attributes:
        layers: those that the DLA does not take, with the reasons.
    """

    def __init__(self, message: str, layers: Sequence[LayerPlacement] = ()) -> None:
        super().__init__(message)
        self.layers = tuple(layers)


_DTYPES: Mapping[str, tuple[np.dtype, str]] = {
    "fp32": (np.dtype(np.float32), "FLOAT"),
    "fp16": (np.dtype(np.float16), "HALF"),
    "int8": (np.dtype(np.int8), "INT8"),
}

_LAYOUTS = {
    "chw": (Layout.LINEAR, "LINEAR"),
    "dla_linear": (Layout.DLA_LINEAR, "DLA_LINEAR"),
    "dla_hwc4": (Layout.HWC4, "DLA_HWC4"),
    "chw16": (Layout.CHW16, "CHW16"),
    "chw32": (Layout.CHW32, "CHW32"),
}

_DLA_LAYOUTS = ("dla_linear", "dla_hwc4")
_DLA_BORDER_LAYOUTS = (*_DLA_LAYOUTS, "chw16", "chw32")


@dataclass(frozen=True)
class IoFormat:
    """Type and layout of an input or output, written as trtexec does: ``fp16:chw16``.

    ``dtype`` is ``fp32``, ``fp16`` or ``int8``; ``layout`` is ``chw`` (linear), ``dla_linear``,
    ``dla_hwc4``, ``chw16`` or ``chw32``.
    """

    dtype: str
    layout: str

    def __str__(self) -> str:
        return f"{self.dtype}:{self.layout}"

    @classmethod
    def parse(cls, text: str) -> IoFormat:
        """Read ``fp16:chw16``.

        Raises:
            BuildError: no such type or layout.
        """
        dtype, _, layout = text.partition(":")
        if dtype not in _DTYPES or layout not in _LAYOUTS:
            raise BuildError(
                f"format '{text}': expected TYPE:LAYOUT with the type {', '.join(_DTYPES)} and "
                f"the layout {', '.join(_LAYOUTS)}, as in int8:dla_hwc4"
            )
        return cls(dtype, layout)


@dataclass(frozen=True)
class BuildSettings:
    """How to build.

    Attributes:
        dla_core: the core to build for, or -1 for the GPU.
        standalone: make a DLA loadable instead of a plan.
        precision: one of :data:`PRECISIONS`.
        calibration_cache: scales for ``int8``.
        gpu_fallback: ``forbid``, ``warn`` or ``allow`` layers on the GPU when a core is given.
        input_formats, output_formats: one for all tensors, or one each; empty: the DLA's own, so
            that no copy by the GPU is needed.
        fp16_layers: names of layers, with ``*`` and ``?``, that stay in FP16 in an INT8 network.
        pools: limits in bytes, by the names in :data:`POOLS`.
        timing_cache: a file that makes later builds faster; made if it is not there.
    """

    dla_core: int = -1
    standalone: bool = False
    precision: str = "fp16"
    calibration_cache: str | None = None
    gpu_fallback: str = "forbid"
    input_formats: tuple[IoFormat, ...] = ()
    output_formats: tuple[IoFormat, ...] = ()
    fp16_layers: tuple[str, ...] = ()
    pools: Mapping[str, int] = field(default_factory=dict)
    timing_cache: str | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise BuildError(
                f"precision: '{self.precision}' is unknown; expected {', '.join(PRECISIONS)}"
            )
        if self.gpu_fallback not in ("forbid", "warn", "allow"):
            raise BuildError(
                f"gpu_fallback: '{self.gpu_fallback}' is unknown; expected forbid, warn, allow"
            )
        on_dla = self.dla_core >= 0
        if on_dla and self.precision == "fp32":
            raise BuildError("precision: a DLA computes in fp16 or int8, not in fp32")
        if self.standalone and not on_dla:
            raise BuildError("a DLA loadable needs a DLA core: give --dla-core 0 or 1")
        if self.standalone and self.gpu_fallback != "forbid":
            raise BuildError(
                "a DLA loadable has no GPU to fall back to: leave gpu_fallback at 'forbid'"
            )
        if self.precision == "int8" and self.calibration_cache is None:
            raise BuildError(
                "precision: int8 needs the scales of the network's tensors: give a calibration "
                "cache (--calibration-cache), as 'dla-perception calibrate' makes it"
            )
        if self.precision != "int8" and self.calibration_cache is not None:
            raise BuildError(
                f"a calibration cache has no effect in precision {self.precision}; leave it out "
                "or choose int8"
            )
        if self.fp16_layers and self.precision != "int8":
            raise BuildError(
                f"fp16_layers: they matter in an int8 network only, this one is {self.precision}"
            )
        for item in (*self.input_formats, *self.output_formats):
            if item.dtype == "int8" and self.precision != "int8":
                raise BuildError(f"format '{item}': int8 needs the precision int8")
            if item.layout in _DLA_LAYOUTS and not on_dla:
                raise BuildError(f"format '{item}': a layout of a DLA; give --dla-core too")
        _check_pools(self.pools)


def _check_pools(pools: Mapping[str, int]) -> None:
    for name, size in pools.items():
        if name not in POOLS:
            raise BuildError(f"memory pool '{name}': unknown; expected {', '.join(POOLS)}")
        is_power = size > 0 and size & (size - 1) == 0
        if name.startswith("dla") and (size < LEAST_DLA_POOL or not is_power):
            raise BuildError(
                f"memory pool {name}: {size} bytes cannot be; expected a power of two of at least "
                f"{LEAST_DLA_POOL} (4 KiB)"
            )
        if size <= 0:
            raise BuildError(f"memory pool {name}: {size} bytes cannot be; expected more than 0")


@dataclass(frozen=True)
class BuildPlan:
    """Everything about a build that is known before TensorRT is asked.

    Attributes:
        onnx, engine: what is read and what is written.
        settings: as given.
        inputs, outputs: names and shapes, and the chosen formats.
        fp16_layers: names that the patterns of the settings stand for.
        cache: the calibration cache, for ``int8``.
        warnings: for the user, one line each.
    """

    onnx: Path
    engine: Path
    settings: BuildSettings
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    input_formats: tuple[IoFormat, ...]
    output_formats: tuple[IoFormat, ...]
    fp16_layers: tuple[str, ...]
    cache: CalibrationCache | None
    metadata: Mapping[str, str]
    warnings: tuple[str, ...]
    model: ModelProto

    @property
    def pools(self) -> Mapping[str, int]:
        """Limits in bytes."""
        return self.settings.pools

    @property
    def typed_onnx(self) -> Path:
        """Where the FP16 network for a strongly typed TensorRT is written."""
        return self.engine.with_name(self.engine.name + ".fp16.onnx")


@dataclass(frozen=True)
class BuildResult:
    """What a build gives.

    Attributes:
        content: the engine file's bytes.
        inputs, outputs: the engine's tensors.
        layers: where every layer runs, and why.
        tensorrt_version, machine: what built it.
        strongly_typed: whether the network itself holds the types.
        warnings: for the user, one line each.
        seconds: how long it took.
    """

    content: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    layers: tuple[LayerPlacement, ...]
    tensorrt_version: str
    machine: Machine
    strongly_typed: bool
    warnings: tuple[str, ...]
    seconds: float


def plan_build(onnx: str | Path, engine: str | Path, settings: BuildSettings) -> BuildPlan:
    """Read the network and the cache, and settle what the settings leave open.

    Raises:
        BuildError: the network cannot be built so.
        DlaPerceptionError: a file cannot be read.
    """
    from dla_perception.compiler.graph import read_model

    model = read_model(onnx)
    inputs, outputs = _tensors(model, onnx)
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    if settings.dla_core >= 0:
        _check_dla_network(onnx, model, inputs)
    input_formats = _choose_formats(settings, settings.input_formats, inputs, is_input=True)
    output_formats = _choose_formats(settings, settings.output_formats, outputs, is_input=False)
    names = _match_layers([node.name for node in nodes], settings.fp16_layers, onnx)
    cache: CalibrationCache | None = None
    warnings: list[str] = []
    if settings.calibration_cache is not None:
        cache, warnings = _read_cache(settings, nodes, names, onnx)
        int8_tensors = [
            name
            for (name, _), item in zip((*inputs, *outputs), (*input_formats, *output_formats))
            if item.dtype == "int8"
        ]
        _check_int8_tensors(settings, cache, int8_tensors)
    return BuildPlan(
        onnx=Path(onnx),
        engine=Path(engine),
        settings=settings,
        inputs=inputs,
        outputs=outputs,
        input_formats=input_formats,
        output_formats=output_formats,
        fp16_layers=names,
        cache=cache,
        metadata={item.key: item.value for item in model.metadata_props},
        warnings=tuple(warnings),
        model=model,
    )


def build(
    plan: BuildPlan,
    trt_module: Any = None,
    device: CudaDevice | None = None,
    progress: Progress | None = None,
    adjust: Callable[[Any], None] | None = None,
) -> BuildResult:
    """Build an engine; nothing is written but the timing cache.

    Args:
        plan: what to build.
        trt_module: ``tensorrt``, or a module like it; imported by default.
        device: the GPU to build for; the one that is here by default.
        progress: told how far the build is, where TensorRT tells.
        adjust: called with the builder's configuration before building, for a builder that needs
            more than TensorRT's, as TensorRT-RTX does on a machine without a GPU.

    Raises:
        BuildRefusedError: TensorRT refuses the network, or the fallback policy the result.
        BuildError: the machine lacks what the settings ask for.
        MissingPackageError: TensorRT or pycuda is not installed.
    """
    module = trt_module if trt_module is not None else import_tensorrt()
    thread = None
    if device is None:
        thread = CudaThread("tensorrt build")
        device = thread.device
    try:
        return _Build(plan, module, device, progress, adjust).run()
    finally:
        if thread is not None:
            thread.close()


class _Build:
    """One build with one builder."""

    def __init__(
        self,
        plan: BuildPlan,
        module: Any,
        device: CudaDevice,
        progress: Progress | None,
        adjust: Callable[[Any], None] | None,
    ) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.trt = module
        self.device = device
        self.progress = progress
        self.adjust = adjust
        self.version = str(module.__version__)
        self.typed = not hasattr(module.BuilderFlag, "FP16")
        self.logger = make_logger(module)
        self.warnings = list(plan.warnings)
        self.where = f"{plan.onnx}: TensorRT {self.version}"

    def run(self) -> BuildResult:
        start = time.monotonic()
        self._check_typed()
        builder = self.trt.Builder(self.logger)
        self._check_cores(builder)
        network = self._parse(builder)
        config = builder.create_builder_config()
        self._configure(config)
        calibrator = self._set_precision(network, config)
        self._set_formats(network)
        self._load_timing_cache(config)
        if self.adjust is not None:
            self.adjust(config)
        content = self._run_builder(builder, network, config)
        # TensorRT holds no reference of its own
        del calibrator
        log = parse_build_log(text for _, text in self.logger.lines)
        if content is None:
            raise self._refusal(log)
        self._save_timing_cache(config)
        layers = log.layers if log.layers is not None else self._inspect(content)
        self._check_layers(layers, log)
        self._check_kind(content)
        inputs, outputs = self._specs()
        return BuildResult(
            content=content,
            inputs=inputs,
            outputs=outputs,
            layers=layers,
            tensorrt_version=self.version,
            machine=Machine(
                self.device.name, self.device.compute_capability, builder.num_DLA_cores
            ),
            strongly_typed=self.typed,
            warnings=tuple(self.warnings),
            seconds=time.monotonic() - start,
        )

    def _check_typed(self) -> None:
        if self.typed and self.settings.precision == "int8":
            raise BuildError(
                f"{self.where} has no INT8 calibration any more (its networks are strongly "
                "typed); choose --precision fp16, or build with TensorRT 10 (JetPack 6)"
            )

    def _check_cores(self, builder: trt.Builder) -> None:
        core = self.settings.dla_core
        if core < 0:
            return
        cores = builder.num_DLA_cores
        if cores == 0:
            raise BuildError(f"{self.where} finds no DLA core; {NO_DLA_HINT}")
        if core >= cores:
            raise BuildError(
                f"{self.where}: DLA core {core} was asked for, but this module has {cores}"
            )

    def _parse(self, builder: trt.Builder) -> trt.INetworkDefinition:
        module = self.trt
        flags = 0
        for name in ("EXPLICIT_BATCH", *(("STRONGLY_TYPED",) if self.typed else ())):
            # EXPLICIT_BATCH: needed before 10, gone in 11; STRONGLY_TYPED: always so from 11 on
            flag = getattr(module.NetworkDefinitionCreationFlag, name, None)
            if flag is not None:
                flags |= 1 << int(flag)
        network = builder.create_network(flags)
        parser = module.OnnxParser(network, self.logger)
        parser_flags = getattr(module, "OnnxParserFlag", None)
        adjust = getattr(parser_flags, "ADJUST_FOR_DLA", None)
        if self.settings.dla_core >= 0 and adjust is not None:
            parser.set_flag(adjust)
        model = self.plan.model
        if self.typed and self.settings.precision == "fp16":
            model = to_half_precision(model, str(self.plan.onnx))
        if not parser.parse(model.SerializeToString()):
            errors = [str(parser.get_error(index).desc()) for index in range(parser.num_errors)]
            text = "; ".join(" ".join(error.split()) for error in errors[:3])
            raise BuildRefusedError(f"{self.where} cannot read it: {text or 'no reason given'}")
        # the parser owns the weights: it must live as long as the network
        self.parser = parser
        return network

    def _configure(self, config: trt.IBuilderConfig) -> None:
        module, settings = self.trt, self.settings
        config.profiling_verbosity = module.ProfilingVerbosity.DETAILED
        for name, size in settings.pools.items():
            config.set_memory_pool_limit(getattr(module.MemoryPoolType, POOLS[name]), size)
        if settings.dla_core < 0:
            return
        config.default_device_type = module.DeviceType.DLA
        config.DLA_core = settings.dla_core
        if config.DLA_core != settings.dla_core:
            raise BuildError(
                f"{self.where} did not take DLA core {settings.dla_core}; it says {config.DLA_core}"
            )
        if settings.standalone:
            config.engine_capability = module.EngineCapability.DLA_STANDALONE
        elif settings.gpu_fallback == "forbid":
            # without it a copy by the GPU would be put in silently at the DLA's borders
            config.set_flag(module.BuilderFlag.DIRECT_IO)
        else:
            config.set_flag(module.BuilderFlag.GPU_FALLBACK)

    def _set_precision(self, network: trt.INetworkDefinition, config: trt.IBuilderConfig) -> Any:
        module, settings = self.trt, self.settings
        if self.typed or settings.precision == "fp32":
            return None
        config.set_flag(module.BuilderFlag.FP16)
        if settings.precision != "int8":
            return None
        config.set_flag(module.BuilderFlag.INT8)
        assert self.plan.cache is not None
        calibrator = _make_calibrator(module, self.plan.cache, self.version)
        config.int8_calibrator = calibrator
        if self.plan.fp16_layers:
            config.set_flag(module.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
            wanted = set(self.plan.fp16_layers)
            for index in range(network.num_layers):
                layer = network.get_layer(index)
                if layer.name in wanted:
                    layer.precision = module.DataType.HALF
                    wanted.discard(layer.name)
            if wanted:
                raise BuildError(
                    f"{self.where} has no layers of the names {', '.join(sorted(wanted))} after "
                    "reading the network; they cannot be kept in FP16"
                )
        return calibrator

    def _set_formats(self, network: trt.INetworkDefinition) -> None:
        tensors = [
            *(network.get_input(index) for index in range(network.num_inputs)),
            *(network.get_output(index) for index in range(network.num_outputs)),
        ]
        chosen = (*self.plan.input_formats, *self.plan.output_formats)
        for tensor, item in zip(tensors, chosen):
            dtype = getattr(self.trt.DataType, _DTYPES[item.dtype][1])
            if not self.typed:
                tensor.dtype = dtype
            elif tensor.dtype != dtype:
                raise BuildError(
                    f"{self.where}: tensor '{tensor.name}' is {tensor.dtype.name} in a strongly "
                    f"typed network; give it the format {item.dtype} only with that precision"
                )
            layout = getattr(self.trt.TensorFormat, _LAYOUTS[item.layout][1])
            tensor.allowed_formats = 1 << int(layout)
            if item.dtype == "int8":
                assert self.plan.cache is not None
                limit = 127 * self.plan.cache.scales[tensor.name]
                tensor.set_dynamic_range(-limit, limit)

    def _run_builder(
        self, builder: trt.Builder, network: trt.INetworkDefinition, config: trt.IBuilderConfig
    ) -> bytes | None:
        """Build in a thread, so that Ctrl-C is heard; where TensorRT can stop, it does."""
        monitor = None
        if hasattr(self.trt, "IProgressMonitor"):
            monitor = _make_monitor(self.trt, self.progress)
            config.progress_monitor = monitor
        results: list[Any] = []

        def work() -> None:
            try:
                built = builder.build_serialized_network(network, config)
                results.append(None if built is None else bytes(built))
            except Exception as error:  # handed to the caller
                results.append(error)

        thread = threading.Thread(target=work, name="tensorrt build", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.1)
        except KeyboardInterrupt:
            if monitor is not None:
                monitor.cancelled = True
                thread.join()
            raise
        content = results[0]
        if isinstance(content, Exception):
            raise BuildRefusedError(f"{self.where} fails: {' '.join(str(content).split())}")
        assert content is None or isinstance(content, bytes)
        return content

    def _refusal(self, log: BuildLog) -> BuildRefusedError:
        layers = log.unsupported
        parts = [f"{self.where} cannot build it: {logged_errors(self.logger)}"]
        if layers:
            parts.append(f"layers that a DLA does not take: {list_layers(layers)}")
        if self.settings.dla_core >= 0:
            parts.append(
                "change them ('dla-perception check' and 'prepare'), or allow the GPU with "
                "--gpu-fallback warn"
            )
        return BuildRefusedError("; ".join(parts), layers)

    def _inspect(self, content: bytes) -> tuple[LayerPlacement, ...]:
        """From the plan itself, where the log has no list."""
        if self.settings.standalone:
            name = f"the DLA loadable of {self.plan.onnx.name}"
            return (LayerPlacement(name, "dla"),)
        runtime = self.trt.Runtime(self.logger)
        if self.settings.dla_core >= 0:
            runtime.DLA_core = self.settings.dla_core
        engine = runtime.deserialize_cuda_engine(content)
        if engine is None:
            if self.settings.dla_core < 0:
                # built for another machine, with nothing to run on a DLA
                return ()
            raise BuildRefusedError(
                f"{self.where} built it and cannot load it: {logged_errors(self.logger)}"
            )
        return tuple(inspect_layers(self.trt, engine))

    def _check_layers(self, layers: Sequence[LayerPlacement], log: BuildLog) -> None:
        if log.tensors_without_scale:
            self.warnings.append(
                f"{len(log.tensors_without_scale)} tensors have no INT8 scale, their layers run "
                f"in FP16: {_some(log.tensors_without_scale)}"
            )
        if self.settings.dla_core < 0:
            return
        on_gpu = on_device(layers, GPU)
        if not on_gpu:
            return
        text = (
            f"{len(on_gpu)} of {len(layers)} layers run on the GPU, not on DLA core "
            f"{self.settings.dla_core}: {list_layers(on_gpu)}"
        )
        if self.settings.gpu_fallback == "forbid":
            raise BuildRefusedError(
                f"{self.where}: {text}; change them ('dla-perception check' and 'prepare'), or "
                "allow the GPU with --gpu-fallback warn",
                on_gpu,
            )
        if len(on_gpu) == len(layers):
            text = f"no layer runs on a DLA: {text}"
        if self.settings.gpu_fallback == "warn":
            self.warnings.append(text)

    def _check_kind(self, content: bytes) -> None:
        is_loadable = content[4:8] == LOADABLE_MARK
        if is_loadable != self.settings.standalone:
            expected = "a DLA loadable" if self.settings.standalone else "a plan"
            raise BuildRefusedError(f"{self.where} built something else than {expected}")

    def _specs(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        plan = self.plan
        inputs, outputs = (
            tuple(
                _spec(name, shape, item, plan.cache, self.device)
                for (name, shape), item in zip(tensors, formats)
            )
            for tensors, formats in (
                (plan.inputs, plan.input_formats),
                (plan.outputs, plan.output_formats),
            )
        )
        return inputs, outputs

    def _load_timing_cache(self, config: trt.IBuilderConfig) -> None:
        path = self.settings.timing_cache
        if path is None:
            return
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            self.warnings.append(f"timing cache {path}: cannot read it: {error.strerror}")
            data = b""
        cache = config.create_timing_cache(data)
        if not config.set_timing_cache(cache, ignore_mismatch=False):
            self.warnings.append(
                f"timing cache {path}: of another TensorRT or GPU; it is made anew"
            )
            config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)

    def _save_timing_cache(self, config: trt.IBuilderConfig) -> None:
        path = self.settings.timing_cache
        cache = config.get_timing_cache() if path is not None else None
        if path is None or cache is None:
            return
        try:
            write_atomically(path, bytes(cache.serialize()))
        except OSError as error:
            # the engine is built all the same; only the next build takes as long again
            self.warnings.append(f"timing cache {path}: cannot write it: {error.strerror}")


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file whole or not at all: readers see the old content until the new is complete.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, target)
    finally:
        if unfinished.exists():
            unfinished.unlink()


def _tensors(model: ModelProto, where: str | Path) -> Any:
    weights = {item.name for item in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in weights]
    found = []
    for kind, infos in (("input", inputs), ("output", list(model.graph.output))):
        tensors = []
        for info in infos:
            sizes = info.type.tensor_type.shape.dim
            shape = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in sizes)
            if min(shape, default=1) < 1:
                raise BuildError(
                    f"{where}: {kind} '{info.name}' has dynamic sizes; a DLA needs static ones: "
                    "export it with a fixed batch of 1 and a fixed image size"
                )
            tensors.append((info.name, shape))
        found.append(tuple(tensors))
    return found


def _check_dla_network(where: str | Path, model: ModelProto, inputs: Any) -> None:
    quantised = [
        node.name or node.output[0]
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]
    if quantised:
        raise BuildError(
            f"{where}: {len(quantised)} Q/DQ nodes ('{quantised[0]}' first), which no DLA takes; "
            "translate it with 'dla-perception translate-qat'"
        )
    for name, shape in inputs:
        if shape and shape[0] > MOST_DLA_BATCH:
            raise BuildError(
                f"{where}: input '{name}' has a batch of {shape[0]}; a DLA takes {MOST_DLA_BATCH}"
            )


def _choose_formats(
    settings: BuildSettings,
    given: Sequence[IoFormat],
    tensors: Sequence[tuple[str, tuple[int, ...]]],
    is_input: bool,
) -> tuple[IoFormat, ...]:
    kind = "input" if is_input else "output"
    if len(given) not in (0, 1, len(tensors)):
        raise BuildError(
            f"{kind} formats: {len(given)} are given for {len(tensors)} {kind}s; "
            "expected one for all or one each"
        )
    chosen = []
    for index, (name, shape) in enumerate(tensors):
        if given:
            item = given[index if len(given) > 1 else 0]
        else:
            item = _default_format(settings, shape, is_input)
        if item.layout == "dla_hwc4" and not is_input:
            raise BuildError(f"output '{name}': dla_hwc4 is for inputs only; use chw16 or chw32")
        dtype, layout = _DTYPES[item.dtype][0], _LAYOUTS[item.layout][0]
        try:
            buffer_shape(TensorSpec(name, shape, dtype, layout))
        except LayoutError as error:
            raise BuildError(f"{kind} format '{item}': {error}") from None
        chosen.append(item)
    return tuple(chosen)


def _default_format(settings: BuildSettings, shape: tuple[int, ...], is_input: bool) -> IoFormat:
    """The DLA's own layouts; outputs of INT8 networks in FP16, as in NVIDIA's YOLOv5 recipe.

    Other ranks than four have no DLA layout. They are linear, which the GPU copies: the build
    then says so, or is refused.
    """
    if settings.dla_core < 0 or len(shape) != 4:
        return IoFormat("fp16" if settings.precision == "fp16" else "fp32", "chw")
    if not is_input:
        return IoFormat("fp16", "chw16")
    dtype = settings.precision
    if shape[1] in (1, 3, 4):
        return IoFormat(dtype, "dla_hwc4")
    return IoFormat(dtype, "chw32" if dtype == "int8" else "chw16")


def _match_layers(
    names: Sequence[str], patterns: Sequence[str], where: str | Path
) -> tuple[str, ...]:
    matched: dict[str, None] = {}
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise BuildError(
                f"{where}: fp16_layers: no layer is called '{pattern}'; 'dla-perception check "
                "--all' lists them"
            )
        matched.update(dict.fromkeys(found))
    return tuple(matched)


def _read_cache(
    settings: BuildSettings, nodes: Sequence[Any], fp16_layers: Sequence[str], where: str | Path
) -> tuple[CalibrationCache, list[str]]:
    from dla_perception.compiler.quantization.cache import read_cache

    path = str(settings.calibration_cache)
    cache = read_cache(path)
    kept = set(fp16_layers)
    produced = [name for node in nodes if node.name not in kept for name in node.output if name]
    missing = [name for name in produced if name not in cache.scales]
    if len(missing) == len(produced):
        raise BuildError(
            f"{path}: none of its {len(cache.scales)} tensors is one of {where}'s; it is the "
            f"cache of another network, or of one with other names (there: {_some(produced)})"
        )
    if not missing:
        return cache, []
    return cache, [
        f"{path}: no scale for {len(missing)} of {len(produced)} tensors, their layers run in "
        f"FP16: {_some(missing)}"
    ]


def _check_int8_tensors(
    settings: BuildSettings, cache: CalibrationCache, names: Sequence[str]
) -> None:
    missing = [name for name in names if name not in cache.scales]
    if missing:
        raise BuildError(
            f"{settings.calibration_cache}: it lacks the scale of {_some(missing)}, which is an "
            "INT8 input or output; calibrate again, or give it the type fp16 "
            "(--input-format, --output-format)"
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_TENSORS
    text = ", ".join(names[:_SHOWN_TENSORS])
    return f"{text} and {more} more" if more > 0 else text


def _spec(
    name: str,
    shape: tuple[int, ...],
    item: IoFormat,
    cache: CalibrationCache | None,
    device: CudaDevice,
) -> TensorSpec:
    layout = _LAYOUTS[item.layout][0]
    scale = cache.scales[name] if item.dtype == "int8" and cache is not None else None
    return TensorSpec(
        name, shape, _DTYPES[item.dtype][0], layout, scale, row_alignment(layout, device)
    )


def _make_calibrator(module: Any, cache: CalibrationCache, version: str) -> Any:
    """A calibrator that has nothing but a cache."""
    from dla_perception.compiler.quantization.cache import ENTROPY, encode_version

    # the header is TensorRT's own: a cache of another release or calibrator would be ignored
    short = ".".join(version.split(".")[:3])
    text = replace(cache, version=encode_version(short), algorithm=ENTROPY).text().encode()

    # the calibrator that a DLA requires (NvInfer.h, IInt8EntropyCalibrator2)
    class _CacheOnly(module.IInt8EntropyCalibrator2):
        def __init__(self) -> None:
            module.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: Sequence[str]) -> None:
            """No images: TensorRT then fails instead of calibrating with something else."""

        def read_calibration_cache(self) -> bytes:
            return text

        def write_calibration_cache(self, cache: Any) -> None:
            """The cache is the user's: it is not overwritten."""

    return _CacheOnly()


def _make_monitor(module: Any, progress: Progress | None) -> Any:
    """Tells the progress of the build, and stops it when ``cancelled`` is set."""

    class _Monitor(module.IProgressMonitor):
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self.cancelled = False
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: Any, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._tell(phase_name, step + 1)
            return not self.cancelled

        def phase_finish(self, phase_name: str) -> None:
            self._tell(phase_name, self._steps.get(phase_name, 0))

        def _tell(self, phase_name: str, done: int) -> None:
            if progress is not None:
                progress(phase_name, done, self._steps.get(phase_name, 0))

    return _Monitor()
