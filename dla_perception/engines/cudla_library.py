"""NVIDIA's ``libcudla`` through ctypes: its structures, functions and status codes.

Source: ``cudla.h`` 1.5.0 (package ``nvidia-cudla``). The tests have a compiler compare every size
and offset below with that header.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    Union,
    byref,
    c_char,
    c_int,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_ulonglong,
    c_void_p,
)
from typing import Any, Mapping, Sequence

from dla_perception.engines.engine import EngineError

LIBRARIES = ("libcudla.so.1", "libcudla.so")
"""Names of the library, the first that can be loaded is taken."""

HYBRID, STANDALONE = 0, 1
"""Modes of a device: together with CUDA, or without."""

FENCE_EOF = 1
"""CUDLA_NVSCISYNC_FENCE: signalled when a task has ended."""

SYNC_SIGNAL = 2
"""CUDLA_NVSCISYNC_ATTR_SIGNAL: the DLA will signal the object."""

LONGEST_TASK_TIMEOUT_MS = 1_000_000

FORMATS: Mapping[int, str] = {1: "NCHW", 2: "NHWC", 3: "NCxHWx"}
DATA_TYPES: Mapping[int, str] = {2: "float16", 4: "int8", 5: "uint8", 1: "float32", 3: "int16"}
CATEGORY_IMAGE = 0

STATUSES: Mapping[int, tuple[str, str]] = {
    1: ("InvalidParam", "an argument out of range, such as a DLA core that does not exist"),
    2: ("OutOfResources", "out of memory, or more than 16 loadables on this core: close others"),
    3: ("CreationFailed", "the DLA driver is missing, or a container without the DLA's devices"),
    4: ("InvalidAddress", "memory that is not registered with the DLA, or is of the wrong kind"),
    5: ("Os", "the operating system refused: permissions on the DLA's devices, or no memory"),
    6: ("Cuda", "an earlier CUDA error, or no CUDA context in this thread"),
    7: ("Umd", "the DLA's driver refused: the file is no DLA loadable, is damaged, or was built "
        "for another DLA or DLA software version"),
    8: ("InvalidDevice", "the DLA handle is closed"),
    9: ("InvalidAttribute", "libcudla does not know what was asked of it: it is too old"),
    10: ("IncompatibleDlaSWVersion", "libcudla and the DLA's driver are of different JetPacks: "
         "use the container image of this JetPack"),
    11: ("MemoryRegistered", "the memory is registered already"),
    12: ("InvalidModule", "the loadable is unloaded"),
    13: ("UnsupportedOperation", "the GPU in use is no Jetson's, the stream is being captured, or "
         "the NvSci libraries are missing"),
    14: ("NvSci", "NvSciBuf or NvSciSync failed"),
    15: ("DriverNotFound", "the DLA's driver library is missing: a container without "
         "'--runtime nvidia', or no Jetson"),
    0x40000001: ("DlaErrInvalidInput", "the DLA was given input it cannot read"),
    0x40000002: ("DlaErrInvalidPreAction", "the DLA could not wait for what comes before the task"),
    0x40000003: ("DlaErrNoMem", "the DLA ran out of memory"),
    0x40000004: ("DlaErrProcessorBusy", "the DLA is busy with another process's task"),
    0x40000005: ("DlaErrTaskStatusMismatch", "the DLA ended the task in an unexpected state"),
    0x40000006: ("DlaErrEngineTimeout", "the task did not end in time: the DLA hangs"),
    0x40000007: ("DlaErrDataMismatch", "the DLA's self-check failed"),
    0x7FFFFFFF: ("Unknown", "libcudla gives no reason"),
}  # fmt: skip
"""Status codes: name, and what usually causes it."""


class TensorDescriptor(Structure):
    """``cudlaModuleTensorDescriptor``"""

    _fields_ = [
        ("name", c_char * 81),
        ("size", c_uint64),
        ("n", c_uint64),
        ("c", c_uint64),
        ("h", c_uint64),
        ("w", c_uint64),
        ("dataFormat", c_uint8),
        ("dataType", c_uint8),
        ("dataCategory", c_uint8),
        ("pixelFormat", c_uint8),
        ("pixelMapping", c_uint8),
        ("stride", c_uint32 * 8),
    ]


class ModuleAttribute(Union):
    """``cudlaModuleAttribute``"""

    _fields_ = [
        ("numInputTensors", c_uint32),
        ("numOutputTensors", c_uint32),
        ("inputTensorDesc", POINTER(TensorDescriptor)),
        ("outputTensorDesc", POINTER(TensorDescriptor)),
    ]


class ExternalMemory(Structure):
    """``cudlaExternalMemoryHandleDesc``"""

    _fields_ = [("extBufObject", c_void_p), ("size", c_ulonglong)]


class ExternalSemaphore(Structure):
    """``cudlaExternalSemaphoreHandleDesc``"""

    _fields_ = [("extSyncObject", c_void_p)]


class Fence(Structure):
    """``CudlaFence``"""

    _fields_ = [("fence", c_void_p), ("type", c_int)]


class WaitEvents(Structure):
    """``cudlaWaitEvents``"""

    _fields_ = [("preFences", POINTER(Fence)), ("numEvents", c_uint32)]


class SignalEvents(Structure):
    """``cudlaSignalEvents``"""

    _fields_ = [
        ("devPtrs", POINTER(c_void_p)),
        ("eofFences", POINTER(Fence)),
        ("numEvents", c_uint32),
    ]


class Task(Structure):
    """``cudlaTask``"""

    _fields_ = [
        ("moduleHandle", c_void_p),
        ("outputTensor", POINTER(c_void_p)),
        ("numOutputTensors", c_uint32),
        ("numInputTensors", c_uint32),
        ("inputTensor", POINTER(c_void_p)),
        ("waitEvents", POINTER(WaitEvents)),
        ("signalEvents", POINTER(SignalEvents)),
    ]


_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "cudlaGetVersion": (POINTER(c_uint64),),
    "cudlaDeviceGetCount": (POINTER(c_uint64),),
    "cudlaCreateDevice": (c_uint64, POINTER(c_void_p), c_uint32),
    "cudlaMemRegister": (c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_uint32),
    "cudlaMemUnregister": (c_void_p, c_void_p),
    "cudlaModuleLoadFromMemory": (c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_uint32),
    "cudlaModuleGetAttributes": (c_void_p, c_int, POINTER(ModuleAttribute)),
    "cudlaModuleUnload": (c_void_p, c_uint32),
    "cudlaSubmitTask": (c_void_p, POINTER(Task), c_uint32, c_void_p, c_uint32),
    "cudlaGetLastError": (c_void_p,),
    "cudlaDestroyDevice": (c_void_p,),
    "cudlaImportExternalMemory": (c_void_p, POINTER(ExternalMemory), POINTER(c_void_p), c_uint32),
    "cudlaImportExternalSemaphore": (
        c_void_p, POINTER(ExternalSemaphore), POINTER(c_void_p), c_uint32,
    ),
    "cudlaGetNvSciSyncAttributes": (c_void_p, c_uint32),
}  # fmt: skip

_SET_TASK_TIMEOUT = "cudlaSetTaskTimeoutInMs"
"""Not in the first releases of libcudla (JetPack 5)."""


class CudlaError(EngineError):
    """A call of libcudla failed.

    Attributes:
        what: was being done.
        status: the number that it returned.
    """

    def __init__(self, what: str, status: int) -> None:
        name, cause = STATUSES.get(status, (f"status {status:#x}", "a status that is not known"))
        super().__init__(f"{what}: cuDLA says {name} ({status:#x}): {cause}")
        self.what = what
        self.status = status


class CudlaLibrary:
    """``libcudla``, each function raising :class:`CudlaError` when it fails."""

    def __init__(self) -> None:
        """Load the library.

        Raises:
            EngineError: it is not there, or lacks a function.
        """
        self._library = _load(LIBRARIES)
        for name, arguments in _FUNCTIONS.items():
            try:
                function = getattr(self._library, name)
            except AttributeError:
                raise EngineError(
                    f"{self._library._name}: it has no {name}: it is too old; "
                    "use JetPack 5.1 or later"
                ) from None
            function.argtypes = arguments
            function.restype = c_int
        self.has_task_timeout = hasattr(self._library, _SET_TASK_TIMEOUT)
        if self.has_task_timeout:
            function = getattr(self._library, _SET_TASK_TIMEOUT)
            function.argtypes = (c_void_p, c_uint32)
            function.restype = c_int

    def version(self) -> str:
        """Of the library: ``1.5.0``."""
        value = c_uint64()
        self._call("reading the version of libcudla", "cudlaGetVersion", byref(value))
        number = value.value
        return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"

    def device_count(self) -> int:
        """How many DLA cores there are."""
        value = c_uint64()
        self._call("counting the DLA cores", "cudlaDeviceGetCount", byref(value))
        return value.value

    def create_device(self, core: int, mode: int) -> int:
        """A handle of a core; one handle takes one loadable."""
        handle = c_void_p()
        self._call(f"opening DLA core {core}", "cudlaCreateDevice", core, byref(handle), mode)
        return _pointer(handle)

    def destroy_device(self, device: int) -> None:
        """Close a handle."""
        self._call("closing the DLA core", "cudlaDestroyDevice", device)

    def set_task_timeout(self, device: int, timeout_ms: int) -> None:
        """Have tasks that take longer end with DlaErrEngineTimeout; 30 s unless it is set."""
        self._call("setting the task time-out", _SET_TASK_TIMEOUT, device, timeout_ms)

    def load_module(self, device: int, loadable: bytes) -> int:
        """Load a loadable; the bytes need not be kept."""
        module = c_void_p()
        self._call(
            "loading the loadable", "cudlaModuleLoadFromMemory",
            device, loadable, len(loadable), byref(module), 0,
        )  # fmt: skip
        return _pointer(module)

    def unload_module(self, module: int) -> None:
        """Undo :meth:`load_module`."""
        self._call("unloading the loadable", "cudlaModuleUnload", module, 0)

    def tensors(self, module: int) -> tuple[list[TensorDescriptor], list[TensorDescriptor]]:
        """Descriptors of the input and of the output tensors."""
        inputs = self._tensors(module, 0, 2, "numInputTensors", "inputTensorDesc")
        return inputs, self._tensors(module, 1, 3, "numOutputTensors", "outputTensorDesc")

    def register_memory(self, device: int, address: int, size: int) -> int:
        """Let the DLA use memory of CUDA; returns its name in tasks."""
        pointer = c_void_p()
        self._call(
            "registering memory with the DLA", "cudlaMemRegister",
            device, address, size, byref(pointer), 0,
        )  # fmt: skip
        return _pointer(pointer)

    def import_memory(self, device: int, buffer: int, size: int) -> int:
        """Let the DLA use a buffer of NvSciBuf; returns its name in tasks."""
        pointer = c_void_p()
        self._call(
            "importing memory into the DLA", "cudlaImportExternalMemory",
            device, byref(ExternalMemory(buffer, size)), byref(pointer), 0,
        )  # fmt: skip
        return _pointer(pointer)

    def import_semaphore(self, device: int, sync_object: int) -> int:
        """Let the DLA signal an object of NvSciSync; returns its name in tasks."""
        pointer = c_void_p()
        self._call(
            "importing a sync object into the DLA", "cudlaImportExternalSemaphore",
            device, byref(ExternalSemaphore(sync_object)), byref(pointer), 0,
        )  # fmt: skip
        return _pointer(pointer)

    def unregister(self, device: int, pointer: int) -> None:
        """Undo ``register_memory``, ``import_memory`` or ``import_semaphore``."""
        self._call("unregistering memory", "cudlaMemUnregister", device, pointer)

    def fill_sync_attributes(self, attributes: int) -> None:
        """Enter what the DLA needs to signal an object into a list of attributes of NvSciSync."""
        self._call(
            "reading the DLA's sync attributes", "cudlaGetNvSciSyncAttributes",
            attributes, SYNC_SIGNAL,
        )  # fmt: skip

    def submit(self, device: int, task: Task, stream: int | None) -> None:
        """Start a task: on a CUDA stream in hybrid mode, without one in standalone mode."""
        self._call("starting the task", "cudlaSubmitTask", device, byref(task), 1, stream, 0)

    def check_last_task(self, device: int) -> None:
        """Raise what the last task ended with, if it failed."""
        self._call("running the task", "cudlaGetLastError", device)

    def _tensors(
        self, module: int, count_attribute: int, attribute: int, count_name: str, name: str
    ) -> list[TensorDescriptor]:
        what = "reading the loadable's tensors"
        answer = ModuleAttribute()
        self._call(what, "cudlaModuleGetAttributes", module, count_attribute, byref(answer))
        count = getattr(answer, count_name)
        descriptors = (TensorDescriptor * count)()
        setattr(answer, name, ctypes.cast(descriptors, POINTER(TensorDescriptor)))
        self._call(what, "cudlaModuleGetAttributes", module, attribute, byref(answer))
        return list(descriptors)

    def _call(self, what: str, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudlaError(what, status)


def pointers(values: Sequence[int]) -> Any:
    """A C array of pointers; it must be kept while C uses it."""
    return (c_void_p * len(values))(*values)


def _pointer(value: c_void_p) -> int:
    return value.value or 0


def _load(names: Sequence[str]) -> ctypes.CDLL:
    reason = ""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reason = reason or str(error)
    raise EngineError(
        f"cuDLA cannot be used here: {reason}; it comes with JetPack 5 and later "
        "(package cuda-cudla), and a container needs '--runtime nvidia'"
    )
