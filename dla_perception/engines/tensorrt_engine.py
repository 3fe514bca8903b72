"""TensorRT plans on a DLA core or the GPU, for TensorRT 8.5 to 10.7 and from 11.4.1 on.

What differs between the versions is asked of the module, not of its version number; facts and
sources are in the TensorRT Python bindings (``python/src`` of NVIDIA/TensorRT).
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence, cast

import numpy as np

from dla_perception.engines.cuda_memory import (
    MEMORY_KINDS,
    CudaDevice,
    CudaThread,
    Slot,
    SlotRunner,
    one_line,
    release,
    use_mapped_memory,
)
from dla_perception.engines.engine import EngineError, EngineInfo, TensorSpec
from dla_perception.engines.files import FileContent, FileKind, read_network, recognise
from dla_perception.engines.inspector import (
    DLA,
    GPU,
    UNKNOWN,
    LayerPlacement,
    list_layers,
    on_device,
    parse_engine_information,
)
from dla_perception.engines.layouts import (
    DLA_LINEAR_ROW_BYTES,
    HWC4_ROW_BYTES,
    Layout,
    LayoutError,
    buffer_strides,
)
from dla_perception.engines.manifest import EngineManifest, file_sha256, read_manifest
from dla_perception.errors import MissingPackageError

if TYPE_CHECKING:
    import tensorrt as trt

NO_DLA_HINT = (
    "check that the module has a DLA (Orin Nano and Thor have none), that JetPack's TensorRT "
    "supports it (none from 10.8 to 11.4.0), and that a container gets the devices "
    "('--runtime nvidia' and the image of this JetPack)"
)
"""What to look at when TensorRT finds no DLA core."""

_XAVIER_COMPUTE_CAPABILITY = "7.2"

_DTYPES: Mapping[str, np.dtype] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "INT8": np.dtype(np.int8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
}
"""Names of ``tensorrt.DataType`` that an input or output may have."""

_LAYOUTS: Mapping[str, Layout] = {
    "LINEAR": Layout.LINEAR,
    "DLA_LINEAR": Layout.DLA_LINEAR,
    "DLA_HWC4": Layout.HWC4,
    "CHW16": Layout.CHW16,
    "CHW32": Layout.CHW32,
}
"""Names of ``tensorrt.TensorFormat`` that an input or output may have."""


def import_tensorrt() -> Any:
    """The module ``tensorrt``.

    Raises:
        MissingPackageError: it is not installed.
        EngineError: it cannot be loaded, or is too old.
    """
    try:
        import tensorrt
    except ImportError as error:
        if error.name not in (None, "tensorrt"):
            raise EngineError(f"TensorRT cannot be used here: {one_line(error)}") from None
        tensorrt = cast(Any, None)
    # type stubs alone make an empty package of that name
    if not hasattr(tensorrt, "ICudaEngine"):
        raise MissingPackageError(
            "tensorrt",
            "running or building a TensorRT engine",
            "sudo apt install python3-libnvinfer",
        )
    if not hasattr(tensorrt.ICudaEngine, "num_io_tensors"):
        raise EngineError(
            f"TensorRT {tensorrt.__version__} is too old; 8.5 or later is needed (JetPack 5.1)"
        )
    return tensorrt


def make_logger(trt_module: Any) -> Any:
    """A TensorRT logger that keeps its lines: ``lines``, a list of ``(severity name, text)``."""

    class _Logger(trt_module.ILogger):
        def __init__(self) -> None:
            trt_module.ILogger.__init__(self)
            self.lines: list[tuple[str, str]] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity.name != "VERBOSE":
                self.lines.append((severity.name, msg))

    return _Logger()


def logged_errors(logger: Any) -> str:
    """The errors in a logger's lines, in one line; the first tells the cause."""
    errors = [text for severity, text in logger.lines if severity in ("ERROR", "INTERNAL_ERROR")]
    return "; ".join(" ".join(text.split()) for text in errors[:3]) or "TensorRT gives no reason"


def row_alignment(layout: Layout, device: CudaDevice) -> int:
    """Bytes to which rows of ``DLA_LINEAR`` or ``HWC4`` are padded on a module's DLA."""
    if layout is Layout.HWC4:
        is_xavier = device.compute_capability == _XAVIER_COMPUTE_CAPABILITY
        return HWC4_ROW_BYTES["xavier" if is_xavier else "orin"]
    return DLA_LINEAR_ROW_BYTES


class _Resources:
    """What an engine holds of TensorRT and CUDA; made, used and freed in one thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.thread = CudaThread("tensorrt")
        self.logger: Any = None
        self.runtime: trt.Runtime | None = None
        self.engine: trt.ICudaEngine | None = None
        self.contexts: list[trt.IExecutionContext] = []
        self.slots: list[Slot] = []
        self.runner: SlotRunner | None = None
        self.closed = False

    @property
    def loaded(self) -> trt.ICudaEngine:
        """The engine, once it is there."""
        assert self.engine is not None
        return self.engine

    def close(self) -> None:
        """Free everything, once."""
        if self.closed:
            return
        self.closed = True
        release(self.runner, self.thread, self.free, self.name)

    def free(self) -> None:
        """Free everything but the thread, in it, users before what they use."""
        self.runner = None
        self.free_slots()
        self.engine = None
        self.runtime = None
        self.logger = None

    def free_slots(self) -> None:
        """Free the buffers and the contexts that know their addresses."""
        self.contexts.clear()
        for slot in self.slots:
            slot.free()
        self.slots.clear()


class TensorRTEngine:
    """A TensorRT plan; see :class:`~dla_perception.engines.engine.Engine`.

    The arrays of ``input_buffers`` and ``output_buffers`` are gone once it is closed.
    """

    def __init__(
        self,
        path: str | Path,
        content: FileContent | None = None,
        dla_core: int = -1,
        gpu_fallback: str = "forbid",
        slots: int = 2,
        memory: str = "auto",
    ) -> None:
        """Load ``path``.

        Args:
            path: a plan; a record beside it (``engines/manifest.py``) is compared with the
                machine and the request.
            content: what is known of the file, to spare recognising it again.
            dla_core: the core to run on, or -1 for a plan without DLA layers.
            gpu_fallback: ``forbid``, ``warn`` or ``allow`` layers on the GPU when a core is given.
            slots: how many inferences may be prepared at a time. Each has an execution context of
                its own, and with it the engine's loadables once more: a core takes 16 in all.
            memory: one of :data:`~dla_perception.engines.cuda_memory.MEMORY_KINDS`.

        Raises:
            EngineError: no plan, a plan for another machine or request, or one that cannot run.
            MissingPackageError: TensorRT or pycuda is not installed.
        """
        if memory not in MEMORY_KINDS:
            raise EngineError(f"memory: '{memory}' is unknown; expected {', '.join(MEMORY_KINDS)}")
        content = content or recognise(path)
        if content.kind is not FileKind.PLAN:
            raise EngineError(f"{path}: a {content.kind.value}, not a TensorRT plan")
        self._path = str(path)
        self._content = content
        self._dla_core = dla_core
        self._gpu_fallback = gpu_fallback
        self._trt = import_tensorrt()
        file_hash = file_sha256(path)
        self._manifest = read_manifest(path, file_hash)
        self._check_versions()
        self._resources = _Resources(self._path)
        # also when the interpreter ends, while CUDA is still there
        self._finalizer = weakref.finalize(self, _Resources.close, self._resources)
        try:
            self._resources.thread.run(self._load)
            self._resources.thread.run(self._check_machine)
            self._layers = self._resources.thread.run(self._find_layers)
            self._check_placement()
            self._inputs, self._outputs = self._resources.thread.run(self._read_specs)
            on_dla = dla_core >= 0 and len(on_device(self._layers, GPU)) < len(self._layers)
            self._device = f"dla{dla_core}" if on_dla else "gpu"
            self._memory = self._start(slots, memory)
        except BaseException:
            self._finalizer()
            raise
        self._info = self._make_info(file_hash)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        return self._inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        return self._outputs

    @property
    def slots(self) -> int:
        return len(self._input_buffers)

    @property
    def layers(self) -> Sequence[LayerPlacement]:
        """Where each layer runs, and why."""
        return self._layers

    @property
    def manifest(self) -> EngineManifest | None:
        """The record beside the plan, if there is one."""
        return self._manifest

    def input_buffers(self, slot: int) -> Sequence[np.ndarray]:
        self._check_open()
        return self._input_buffers[slot]

    def output_buffers(self, slot: int) -> Sequence[np.ndarray]:
        self._check_open()
        return self._output_buffers[slot]

    def submit(self, slot: int) -> None:
        self._runner().submit(slot)

    def wait(self, slot: int, timeout_s: float | None = None) -> None:
        self._runner().wait(slot, timeout_s)

    def close(self) -> None:
        self._finalizer()

    def _runner(self) -> SlotRunner:
        self._check_open()
        assert self._resources.runner is not None
        return self._resources.runner

    def _check_open(self) -> None:
        if self._resources.closed:
            raise EngineError(f"{self._path}: the engine is closed")

    def _check_versions(self) -> None:
        manifest = self._manifest
        if manifest is None:
            return
        here = str(self._trt.__version__)
        if manifest.tensorrt_version.split(".")[:3] != here.split(".")[:3]:
            raise EngineError(
                f"{self._path}: built with TensorRT {manifest.tensorrt_version}, but this machine "
                f"has {here}; build it here from {manifest.onnx_file}"
            )

    def _load(self) -> None:
        resources = self._resources
        resources.logger = make_logger(self._trt)
        runtime: trt.Runtime = self._trt.Runtime(resources.logger)
        # the runtime has to live as long as the engine
        resources.runtime = runtime
        if self._dla_core >= 0:
            choose_dla_core(self._path, runtime, self._dla_core)
        plan = read_network(self._path, self._content)
        engine: trt.ICudaEngine | None = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise EngineError(self._explain_refusal())
        resources.engine = engine

    def _explain_refusal(self) -> str:
        reason = logged_errors(self._resources.logger)
        here, built = str(self._trt.__version__), self._content.tensorrt_version
        if built and built.split(".")[:3] != here.split(".")[:3]:
            return (
                f"{self._path}: built with TensorRT {built}, but this machine has {here}: "
                f"build it here ({reason})"
            )
        if "DLA_STANDALONE" in reason:
            return f"{self._path}: a DLA loadable: open it with the backend 'cudla' ({reason})"
        return (
            f"{self._path}: TensorRT {here} refuses the plan: {reason}; it may be damaged, or be "
            "for another GPU: build it on this machine"
        )

    def _check_machine(self) -> None:
        manifest, device = self._manifest, self._resources.thread.device
        if manifest and manifest.machine.compute_capability != device.compute_capability:
            raise EngineError(
                f"{self._path}: built for the GPU {manifest.machine.gpu} (compute capability "
                f"{manifest.machine.compute_capability}), but this machine has {device.name} "
                f"({device.compute_capability}); build it here from {manifest.onnx_file}"
            )
        if manifest and self._dla_core >= max(manifest.machine.dla_cores, 1):
            raise EngineError(
                f"{self._path}: built on a module with {manifest.machine.dla_cores} DLA cores, "
                f"but core {self._dla_core} was asked for; build it on this module"
            )
        if manifest and self._dla_core >= 0 and manifest.dla_core < 0:
            raise EngineError(
                f"{self._path}: built for the GPU alone, but DLA core {self._dla_core} was asked "
                f"for; build it with --dla-core {self._dla_core}"
            )

    def _find_layers(self) -> tuple[LayerPlacement, ...]:
        """From the record, whose reasons come from the build log, or else from the inspector."""
        if self._manifest is not None:
            return self._manifest.layers
        return tuple(inspect_layers(self._trt, self._resources.loaded))

    def _check_placement(self) -> None:
        layers = self._layers
        if self._dla_core < 0:
            on_dla = on_device(layers, DLA)
            if on_dla:
                raise EngineError(
                    f"{self._path}: {len(on_dla)} of its {len(layers)} layers are for a DLA; "
                    "say which core: dla_core 0 or 1"
                )
            return
        if self._gpu_fallback != "forbid":
            return
        on_gpu, unclear = on_device(layers, GPU), on_device(layers, UNKNOWN)
        if on_gpu:
            raise EngineError(
                f"{self._path}: {len(on_gpu)} of its {len(layers)} layers run on the GPU, not on "
                f"DLA core {self._dla_core}: {list_layers(on_gpu)}; change the network "
                "('dla-perception prepare'), or set gpu_fallback to 'warn' or 'allow'"
            )
        if unclear:
            raise EngineError(
                f"{self._path}: it does not tell where {len(unclear)} of its {len(layers)} layers "
                f"run ({list_layers(unclear)}) and has no record beside it; build it with "
                "'dla-perception build', or set gpu_fallback to 'warn' or 'allow'"
            )

    def _read_specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        engine = self._resources.loaded
        inputs: list[TensorSpec] = []
        outputs: list[TensorSpec] = []
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            is_input = engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT
            (inputs if is_input else outputs).append(self._read_spec(name))
        return inputs, outputs

    def _read_spec(self, name: str) -> TensorSpec:
        engine = self._resources.loaded
        shape = _sizes(engine.get_tensor_shape(name))
        dtype_name = engine.get_tensor_dtype(name).name
        format_name = engine.get_tensor_format(name).name
        where = f"{self._path}: tensor '{name}' {list(shape)}"
        if min(shape, default=1) < 0:
            raise EngineError(f"{where}: dynamic sizes; a DLA needs static ones: build it again")
        if dtype_name not in _DTYPES:
            raise EngineError(f"{where}: type {dtype_name}; expected one of {', '.join(_DTYPES)}")
        if format_name not in _LAYOUTS:
            raise EngineError(
                f"{where}: layout {format_name}; expected one of {', '.join(_LAYOUTS)}: "
                "build it with another layout"
            )
        recorded = self._manifest.spec(name) if self._manifest else None
        layout = _LAYOUTS[format_name]
        spec = TensorSpec(
            name,
            shape,
            _DTYPES[dtype_name],
            layout,
            recorded.scale if recorded else None,
            row_alignment(layout, self._resources.thread.device),
        )
        if spec.dtype == np.int8 and spec.scale is None:
            raise EngineError(
                f"{where}: INT8, but a plan does not tell the scale and no record beside it does; "
                "build it with 'dla-perception build'"
            )
        return spec

    def _start(self, slots: int, memory: str) -> str:
        """Make slots and run one to see that the device takes its memory; returns its kind."""
        thread = self._resources.thread
        mapped = use_mapped_memory(memory, thread.device)
        try:
            self._make_slots(slots, mapped)
        except EngineError:
            # whether a DLA takes mapped memory is told by trying: the copies are the safe way
            if not (mapped and memory == "auto"):
                raise
            self._drop_slots()
            mapped = False
            self._make_slots(slots, mapped)
        return "mapped" if mapped else "pinned"

    def _make_slots(self, count: int, mapped: bool) -> None:
        resources = self._resources

        def make() -> None:
            for _ in range(count):
                slot = Slot(self._inputs, self._outputs, mapped)
                resources.slots.append(slot)
                resources.contexts.append(self._make_context(slot))

        resources.thread.run(make)
        name = f"{self._path} on {self._device}"
        contexts = resources.contexts
        logger = resources.logger

        def enqueue(index: int, stream: Any) -> None:
            if not contexts[index].execute_async_v3(stream.handle):
                raise EngineError(f"{name}: TensorRT refuses the work: {logged_errors(logger)}")

        resources.runner = SlotRunner(name, resources.thread, resources.slots, enqueue)
        self._input_buffers = [[item.array for item in slot.inputs] for slot in resources.slots]
        self._output_buffers = [[item.array for item in slot.outputs] for slot in resources.slots]
        resources.runner.submit(0)
        resources.runner.wait(0)

    def _drop_slots(self) -> None:
        resources = self._resources
        self._input_buffers = self._output_buffers = []
        if resources.runner is not None:
            resources.runner.close()
            resources.runner = None
        resources.thread.run(resources.free_slots)

    def _make_context(self, slot: Slot) -> trt.IExecutionContext:
        resources = self._resources
        context: trt.IExecutionContext | None = resources.loaded.create_execution_context()
        if context is None:
            raise EngineError(
                f"{self._path}: no memory to run it: {logged_errors(resources.logger)}; "
                "free memory or use fewer slots"
            )
        specs = (*self._inputs, *self._outputs)
        for spec, buffer in zip(specs, (*slot.inputs, *slot.outputs)):
            self._check_strides(context, spec)
            if not context.set_tensor_address(spec.name, buffer.address):
                raise EngineError(
                    f"{self._path}: tensor {spec}: TensorRT refuses its buffer: "
                    f"{logged_errors(resources.logger)}"
                )
        return context

    def _check_strides(self, context: trt.IExecutionContext, spec: TensorSpec) -> None:
        """Compare TensorRT's word on a layout with ours, where both count in elements."""
        if spec.layout not in (Layout.LINEAR, Layout.DLA_LINEAR):
            return
        try:
            expected = tuple(size // spec.dtype.itemsize for size in buffer_strides(spec))
        except LayoutError as error:
            raise EngineError(f"{self._path}: {error}") from None
        found = _sizes(context.get_tensor_strides(spec.name))
        if found != expected:
            raise EngineError(
                f"{self._path}: tensor {spec}: TensorRT's strides are {list(found)}, expected "
                f"{list(expected)}; this version's layout is not known here"
            )

    def _make_info(self, file_hash: str) -> EngineInfo:
        metadata = {**self._content.metadata, "memory": self._memory}
        if self._manifest is not None:
            metadata = {**self._manifest.metadata, **metadata}
        known = not on_device(self._layers, UNKNOWN)
        names = {
            device: tuple(layer.name for layer in on_device(self._layers, device))
            for device in (DLA, GPU)
        }
        return EngineInfo(
            path=self._path,
            runtime="tensorrt",
            runtime_version=str(self._trt.__version__),
            device=self._device,
            file_hash=file_hash,
            dla_layers=names[DLA] if known else None,
            gpu_layers=names[GPU] if known else None,
            metadata=metadata,
        )


def _sizes(dims: trt.Dims) -> tuple[int, ...]:
    return tuple(int(dims[axis]) for axis in range(len(dims)))


def choose_dla_core(path: str | Path, runtime: trt.Runtime, dla_core: int) -> None:
    """Have what ``runtime`` deserialises from now on run on a DLA core.

    Raises:
        EngineError: there is no such core, or the runtime does not take it.
    """
    cores = runtime.num_DLA_cores
    if cores == 0:
        raise EngineError(
            f"{path}: DLA core {dla_core} was asked for, but TensorRT finds none; {NO_DLA_HINT}"
        )
    if dla_core >= cores:
        raise EngineError(
            f"{path}: DLA core {dla_core} was asked for, but this module has {cores} "
            f"({'only core 0' if cores == 1 else f'cores 0 to {cores - 1}'})"
        )
    # before deserialising: afterwards it is taken without effect (onnxruntime issue 26680)
    runtime.DLA_core = dla_core
    if runtime.DLA_core != dla_core:
        raise EngineError(
            f"{path}: TensorRT did not take DLA core {dla_core}; it says {runtime.DLA_core}"
        )


def inspect_layers(trt_module: Any, engine: trt.ICudaEngine) -> list[LayerPlacement]:
    """Where each layer of a deserialised plan runs.

    Raises:
        EngineError: the inspector's answer cannot be read.
    """
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(trt_module.LayerInformationFormat.JSON)
    try:
        return parse_engine_information(text)
    except ValueError as error:
        raise EngineError(f"TensorRT's engine inspector: {one_line(error)}") from None
