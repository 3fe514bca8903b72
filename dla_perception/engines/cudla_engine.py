"""DLA loadables through ``libcudla``: no TensorRT at run time, and no layer on the GPU.

In *hybrid* mode tasks run on CUDA streams, in memory of CUDA. In *standalone* mode there is no
CUDA at all: memory and fences are NvSci's, and the GPU is not touched.
"""

from __future__ import annotations

import weakref
from ctypes import POINTER, addressof, c_void_p, cast, pointer
from functools import partial
from pathlib import Path
from typing import Any, Mapping, Protocol, Sequence

import numpy as np

from dla_perception.engines.cuda_memory import (
    MEMORY_KINDS,
    CudaThread,
    Slot,
    SlotRunner,
    release,
    use_mapped_memory,
)
from dla_perception.engines.cudla_library import (
    CATEGORY_IMAGE,
    DATA_TYPES,
    FENCE_EOF,
    FORMATS,
    HYBRID,
    LONGEST_TASK_TIMEOUT_MS,
    STANDALONE,
    CudlaError,
    CudlaLibrary,
    Fence,
    SignalEvents,
    Task,
    TensorDescriptor,
    pointers,
)
from dla_perception.engines.engine import (
    EngineError,
    EngineInfo,
    InferenceTimeoutError,
    TensorSpec,
)
from dla_perception.engines.files import FileKind, read_network, recognise
from dla_perception.engines.layouts import (
    HWC4_ROW_BYTES,
    Layout,
    LayoutError,
    buffer_bytes,
    buffer_shape,
)
from dla_perception.engines.manifest import EngineManifest, file_sha256, read_manifest
from dla_perception.engines.nvsci import SciBuffer, SciBuffers, SciFence, SciFences
from dla_perception.errors import MissingPackageError

MODES = ("auto", "hybrid", "standalone")
"""How to run: ``auto`` is hybrid where pycuda is installed, else standalone."""

_LANE_LAYOUTS: Mapping[str, Layout] = {"float16": Layout.CHW16, "int8": Layout.CHW32}

_FREE_TIMEOUT_S = 2.0


class CudlaEngine:
    """A DLA loadable; see :class:`~dla_perception.engines.engine.Engine`.

    The arrays of ``input_buffers`` and ``output_buffers`` are gone once it is closed.
    """

    def __init__(
        self,
        path: str | Path,
        dla_core: int,
        slots: int = 2,
        mode: str = "auto",
        memory: str = "auto",
        task_timeout_ms: int = 1000,
    ) -> None:
        """Load ``path``.

        Args:
            path: a DLA loadable; a record beside it (``engines/manifest.py``) tells the scales
                of INT8 tensors.
            dla_core: the core to run on.
            slots: how many inferences may be prepared at a time.
            mode: one of :data:`MODES`.
            memory: of hybrid mode, one of
                :data:`~dla_perception.engines.cuda_memory.MEMORY_KINDS`.
            task_timeout_ms: the DLA ends a task that takes longer, where libcudla can do so; 1 to
                1,000,000.

        Raises:
            EngineError: no loadable, one for another DLA, no such core, or one that cannot run.
            MissingPackageError: pycuda is not installed (hybrid mode).
        """
        _check_choice("mode", mode, MODES)
        _check_choice("memory", memory, MEMORY_KINDS)
        if not 1 <= task_timeout_ms <= LONGEST_TASK_TIMEOUT_MS:
            raise EngineError(
                f"task_timeout_ms: {task_timeout_ms} cannot be; expected 1 to "
                f"{LONGEST_TASK_TIMEOUT_MS}"
            )
        content = recognise(path)
        if content.kind is not FileKind.LOADABLE:
            raise EngineError(f"{path}: a {content.kind.value}, not a DLA loadable")
        if dla_core < 0:
            raise EngineError(
                f"{path}: a DLA loadable runs on a DLA only; say which core: dla_core 0 or 1"
            )
        self._path = str(path)
        file_hash = file_sha256(path)
        self._manifest = read_manifest(path, file_hash)
        library = CudlaLibrary()
        self._check_core(library, dla_core)
        version = library.version()
        core = _Core(library, self._path, dla_core, read_network(path, content), task_timeout_ms)
        self._runtime = _open_runtime(core, mode, memory, slots, self._manifest)
        # also when the interpreter ends
        self._finalizer = weakref.finalize(self, self._runtime.close)
        self._info = EngineInfo(
            path=self._path,
            runtime="cudla",
            runtime_version=version,
            device=f"dla{dla_core}",
            file_hash=file_hash,
            # a loadable holds nothing but DLA layers
            dla_layers=self._layer_names(),
            gpu_layers=(),
            metadata={
                **(self._manifest.metadata if self._manifest else {}),
                **self._runtime.metadata,
            },
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        return self._runtime.inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        return self._runtime.outputs

    @property
    def slots(self) -> int:
        return len(self._runtime.input_buffers)

    @property
    def manifest(self) -> EngineManifest | None:
        """The record beside the loadable, if there is one."""
        return self._manifest

    def input_buffers(self, slot: int) -> Sequence[np.ndarray]:
        self._check_open()
        return self._runtime.input_buffers[slot]

    def output_buffers(self, slot: int) -> Sequence[np.ndarray]:
        self._check_open()
        return self._runtime.output_buffers[slot]

    def submit(self, slot: int) -> None:
        self._check_open()
        self._runtime.submit(slot)

    def wait(self, slot: int, timeout_s: float | None = None) -> None:
        self._check_open()
        self._runtime.wait(slot, timeout_s)

    def close(self) -> None:
        self._finalizer()

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise EngineError(f"{self._path}: the engine is closed")

    def _check_core(self, library: CudlaLibrary, dla_core: int) -> None:
        cores = library.device_count()
        if dla_core >= cores:
            raise EngineError(
                f"{self._path}: DLA core {dla_core} was asked for, but this module has {cores}; "
                "check the module, and in a container '--runtime nvidia'"
            )
        manifest = self._manifest
        if manifest and dla_core >= max(manifest.machine.dla_cores, 1):
            raise EngineError(
                f"{self._path}: built on a module with {manifest.machine.dla_cores} DLA cores, "
                f"but core {dla_core} was asked for; build it on this module"
            )

    def _layer_names(self) -> tuple[str, ...] | None:
        if self._manifest is None:
            return None
        return tuple(layer.name for layer in self._manifest.layers)


class _Core:
    """A DLA core with one loadable: device and module handles."""

    def __init__(
        self, library: CudlaLibrary, path: str, number: int, loadable: bytes, timeout_ms: int
    ) -> None:
        self.library = library
        self.path = path
        self.number = number
        self._loadable = loadable
        self._timeout_ms = timeout_ms
        self._undo: list[Any] = []
        self.device = 0
        self.module = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.path} on dla{self.number}"

    def open(self, mode: int) -> None:
        """Open the device and load the loadable; ``close`` undoes also a part of it."""
        library = self.library
        try:
            self.device = library.create_device(self.number, mode)
            self._undo.append(partial(library.destroy_device, self.device))
            if library.has_task_timeout:
                library.set_task_timeout(self.device, self._timeout_ms)
            self.module = library.load_module(self.device, self._loadable)
            self._undo.append(partial(library.unload_module, self.module))
        except CudlaError as error:
            self.close()
            raise self.explain(error) from None
        except BaseException:
            self.close()
            raise

    def specs(self, manifest: EngineManifest | None) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The tensors, from the module's descriptors and the record."""
        recorded = (manifest.inputs, manifest.outputs) if manifest else ((), ())
        inputs, outputs = (
            [
                _spec(self.path, descriptor, known[index] if index < len(known) else None)
                for index, descriptor in enumerate(descriptors)
            ]
            for descriptors, known in zip(self.library.tensors(self.module), recorded)
        )
        return inputs, outputs

    def register(self, address: int, size: int) -> int:
        """Register memory of CUDA until ``close``."""
        registered = self.library.register_memory(self.device, address, size)
        self.undo_later(partial(self.library.unregister, self.device, registered))
        return registered

    def undo_later(self, function: Any) -> None:
        """Have ``function`` called by ``close``, before what was made earlier is undone."""
        self._undo.append(function)

    def close(self) -> None:
        """Undo everything, last made first; go on when a step fails and raise the first failure."""
        self.undo_down_to(0)

    def undo_down_to(self, count: int) -> None:
        """Undo all but the first ``count`` things."""
        failure: CudlaError | None = None
        while len(self._undo) > count:
            try:
                self._undo.pop()()
            except CudlaError as error:
                # a task's failure may be told by any later call: it does not keep things open
                failure = failure or error
        if failure is not None and failure.status < 0x40000000:
            raise self.explain(failure)

    @property
    def made(self) -> int:
        """How many things ``close`` would undo."""
        return len(self._undo)

    def explain(self, error: CudlaError) -> EngineError:
        """The error with the engine's name in front."""
        return CudlaError(f"{self.name}: {error.what}", error.status)


class _Runtime(Protocol):
    """What hybrid and standalone mode have in common."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    input_buffers: list[list[np.ndarray]]
    output_buffers: list[list[np.ndarray]]
    metadata: dict[str, str]

    def submit(self, slot: int) -> None: ...

    def wait(self, slot: int, timeout_s: float | None) -> None: ...

    def close(self) -> None: ...


def _open_runtime(
    core: _Core, mode: str, memory: str, slots: int, manifest: EngineManifest | None
) -> _Runtime:
    if mode == "standalone":
        return _Standalone(core, slots, manifest)
    try:
        thread = CudaThread("cudla")
    except MissingPackageError:
        if mode == "hybrid":
            raise
        return _Standalone(core, slots, manifest)
    return _Hybrid(core, thread, memory, slots, manifest)


class _Hybrid:
    """Tasks on CUDA streams."""

    def __init__(
        self,
        core: _Core,
        thread: CudaThread,
        memory: str,
        slots: int,
        manifest: EngineManifest | None,
    ) -> None:
        self._core = core
        self._thread = thread
        self._slots: list[Slot] = []
        self._tasks: list[_TaskMemory] = []
        self._runner: SlotRunner | None = None
        self.inputs: list[TensorSpec] = []
        self.outputs: list[TensorSpec] = []
        try:
            thread.run(partial(self._open, manifest))
            mapped = use_mapped_memory(memory, thread.device)
            try:
                thread.run(partial(self._make_slots, slots, mapped))
            except EngineError:
                # whether a DLA takes mapped memory is told by trying: copies are the safe way
                if not (mapped and memory == "auto"):
                    raise
                mapped = False
                thread.run(partial(self._make_slots, slots, mapped))
            self.input_buffers = [[item.array for item in slot.inputs] for slot in self._slots]
            self.output_buffers = [[item.array for item in slot.outputs] for slot in self._slots]
            self._runner = SlotRunner(
                core.name, thread, self._slots, self._enqueue, self._check_task
            )
            # the first task tells whether the DLA runs this loadable at all
            self._runner.submit(0)
            self._runner.wait(0)
        except BaseException:
            self.close()
            raise
        self.metadata = {"mode": "hybrid", "memory": "mapped" if mapped else "pinned"}

    def submit(self, slot: int) -> None:
        assert self._runner is not None
        self._runner.submit(slot)

    def wait(self, slot: int, timeout_s: float | None) -> None:
        assert self._runner is not None
        self._runner.wait(slot, timeout_s)

    def close(self) -> None:
        release(self._runner, self._thread, self._free, self._core.path)

    def _open(self, manifest: EngineManifest | None) -> None:
        self._core.open(HYBRID)
        self.inputs, self.outputs = self._core.specs(manifest)

    def _make_slots(self, count: int, mapped: bool) -> None:
        before = self._core.made
        try:
            for _ in range(count):
                slot = Slot(self.inputs, self.outputs, mapped)
                self._slots.append(slot)
                inputs, outputs = (
                    [self._core.register(item.address, item.nbytes) for item in buffers]
                    for buffers in (slot.inputs, slot.outputs)
                )
                self._tasks.append(_TaskMemory(self._core.module, inputs, outputs))
        except BaseException as error:
            self._core.undo_down_to(before)
            self._free_slots()
            if isinstance(error, CudlaError):
                raise self._core.explain(error) from None
            raise

    def _enqueue(self, index: int, stream: Any) -> None:
        try:
            self._core.library.submit(self._core.device, self._tasks[index].task, stream.handle)
        except CudlaError as error:
            raise self._core.explain(error) from None

    def _check_task(self, index: int) -> None:
        try:
            self._core.library.check_last_task(self._core.device)
        except CudlaError as error:
            raise self._core.explain(error) from None

    def _free(self) -> None:
        try:
            self._core.close()
        finally:
            self._free_slots()

    def _free_slots(self) -> None:
        self._tasks.clear()
        for slot in self._slots:
            slot.free()
        self._slots.clear()


class _Standalone:
    """Tasks with NvSci's memory and fences; no CUDA."""

    def __init__(self, core: _Core, slots: int, manifest: EngineManifest | None) -> None:
        self._core = core
        self._buffers: SciBuffers | None = None
        self._fences: SciFences | None = None
        self._slots: list[_SciSlot] = []
        self._busy: list[bool] = []
        self._closed = False
        try:
            core.open(STANDALONE)
            self.inputs, self.outputs = core.specs(manifest)
            self._buffers = SciBuffers()
            self._fences = SciFences(core.library.fill_sync_attributes)
            for _ in range(slots):
                self._slots.append(self._make_slot())
                self._busy.append(False)
            self.input_buffers = [
                [_view(item, spec) for item, spec in zip(slot.inputs, self.inputs)]
                for slot in self._slots
            ]
            self.output_buffers = [
                [_view(item, spec) for item, spec in zip(slot.outputs, self.outputs)]
                for slot in self._slots
            ]
            self.submit(0)
            self.wait(0, None)
        except BaseException as error:
            self.close()
            if isinstance(error, CudlaError) and not error.what.startswith(core.name):
                raise core.explain(error) from None
            raise
        self.metadata = {"mode": "standalone", "memory": "nvsci"}

    def submit(self, slot: int) -> None:
        if self._busy[slot]:
            raise EngineError(
                f"{self._core.name}: slot {slot} was submitted twice without waiting for it"
            )
        chosen = self._slots[slot]
        for item in chosen.inputs:
            item.flush()
        try:
            self._core.library.submit(self._core.device, chosen.memory.task, None)
        except CudlaError as error:
            raise self._core.explain(error) from None
        self._busy[slot] = True

    def wait(self, slot: int, timeout_s: float | None) -> None:
        chosen = self._slots[slot]
        if not self._busy[slot]:
            return
        if not chosen.fence.wait(timeout_s):
            raise InferenceTimeoutError(f"{self._core.name}: no result after {timeout_s:.3f} s")
        self._busy[slot] = False
        chosen.fence.clear()
        for item in chosen.outputs:
            item.flush()
        try:
            self._core.library.check_last_task(self._core.device)
        except CudlaError as error:
            raise self._core.explain(error) from None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for index, slot in enumerate(self._slots):
            # a task that hangs is ended by its own time-out; memory must not go before it
            if self._busy[index] and not slot.fence.wait(_FREE_TIMEOUT_S):
                return
            slot.fence.clear()
        try:
            self._core.close()
        finally:
            for part in (self._fences, self._buffers):
                if part is not None:
                    part.close()

    def _make_slot(self) -> _SciSlot:
        assert self._buffers is not None
        assert self._fences is not None
        core = self._core
        inputs, outputs = (
            [self._buffers.allocate(buffer_bytes(spec)) for spec in specs]
            for specs in (self.inputs, self.outputs)
        )
        fence = self._fences.make()
        registered = []
        for buffers in (inputs, outputs):
            names = []
            for item in buffers:
                name = core.library.import_memory(core.device, item.handle, item.bytes.nbytes)
                core.undo_later(partial(core.library.unregister, core.device, name))
                names.append(name)
            registered.append(names)
        semaphore = core.library.import_semaphore(core.device, fence.sync_object)
        core.undo_later(partial(core.library.unregister, core.device, semaphore))
        memory = _TaskMemory(core.module, registered[0], registered[1])
        memory.signal(semaphore, addressof(fence.fence))
        return _SciSlot(inputs, outputs, fence, memory)


class _SciSlot:
    """Buffers, fence and task of one inference."""

    def __init__(
        self,
        inputs: list[SciBuffer],
        outputs: list[SciBuffer],
        fence: SciFence,
        memory: _TaskMemory,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.fence = fence
        self.memory = memory


class _TaskMemory:
    """A task and the C arrays that it points to, kept together."""

    def __init__(self, module: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._inputs = pointers(inputs)
        self._outputs = pointers(outputs)
        self.task = Task(
            moduleHandle=module,
            outputTensor=cast(self._outputs, POINTER(c_void_p)),
            numOutputTensors=len(outputs),
            numInputTensors=len(inputs),
            inputTensor=cast(self._inputs, POINTER(c_void_p)),
        )

    def signal(self, semaphore: int, fence: int) -> None:
        """Have the end of the task signal a semaphore and fill in a fence."""
        self._semaphores = pointers([semaphore])
        self._fence = Fence(fence, FENCE_EOF)
        self._events = SignalEvents(
            cast(self._semaphores, POINTER(c_void_p)), pointer(self._fence), 1
        )
        self.task.signalEvents = pointer(self._events)


def _view(buffer: SciBuffer, spec: TensorSpec) -> np.ndarray:
    return buffer.bytes.view(spec.dtype).reshape(buffer_shape(spec))


def _spec(path: str, descriptor: TensorDescriptor, recorded: TensorSpec | None) -> TensorSpec:
    """A tensor from its descriptor; the record is trusted where its size is the DLA's."""
    name = descriptor.name.decode(errors="replace")
    if recorded is not None and _size(recorded) == descriptor.size:
        return recorded
    shape = tuple(int(size) for size in (descriptor.n, descriptor.c, descriptor.h, descriptor.w))
    dtype = DATA_TYPES.get(descriptor.dataType, f"type {descriptor.dataType}")
    data_format = FORMATS.get(descriptor.dataFormat, f"format {descriptor.dataFormat}")
    where = f"{path}: tensor '{name}' {list(shape)} {dtype} {data_format}, {descriptor.size} bytes"
    if recorded is not None:
        raise EngineError(
            f"{where}: the record beside it says {recorded}, {_size(recorded)} bytes; "
            "build it again"
        )
    if dtype not in _LANE_LAYOUTS:
        raise EngineError(f"{where}: expected float16 or int8; build it with other formats")
    if dtype == "int8":
        raise EngineError(
            f"{where}: a loadable does not tell the scale of an INT8 tensor, and there is no "
            "record beside it; build it with 'dla-perception build'"
        )
    is_image = descriptor.dataCategory == CATEGORY_IMAGE or data_format == "NHWC"
    candidates = {
        "NCxHWx": [_LANE_LAYOUTS[dtype]],
        "NHWC": [Layout.HWC4],
        "NCHW": [Layout.HWC4] if is_image else [Layout.DLA_LINEAR, Layout.LINEAR],
    }.get(data_format, [])
    for layout in candidates:
        for alignment in sorted(HWC4_ROW_BYTES.values(), reverse=True):
            spec = TensorSpec(name, shape, np.dtype(dtype), layout, None, alignment)
            if _size(spec) == descriptor.size:
                return spec
    raise EngineError(
        f"{where}: a layout that is not known here; build it with 'dla-perception build'"
    )


def _size(spec: TensorSpec) -> int:
    try:
        return buffer_bytes(spec)
    except LayoutError:
        return -1


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise EngineError(f"{name}: '{value}' is unknown; expected {', '.join(choices)}")
