"""NvSciBuf and NvSciSync through ctypes: memory and fences for a DLA without CUDA.

The attribute keys, values and signatures used here are the same in NvSciBuf 1.0 to 2.11 and
NvSciSync 2.0 to 2.8 (``nvscibuf.h``, ``nvscisync.h``, ``nvscierror.h``). NvSciSync 1 numbers its
permissions differently and is refused.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import partial
from typing import Any, Callable, Mapping

import numpy as np

from dla_perception.engines.engine import EngineError

BUF_LIBRARIES = ("libnvscibuf.so.1", "libnvscibuf.so")
SYNC_LIBRARIES = ("libnvscisync.so.1", "libnvscisync.so")

TIMEOUT = 0x200
"""NvSciError_Timeout"""

_BUF_TYPES, _BUF_CPU_ACCESS, _BUF_PERMISSION, _BUF_CPU_CACHE = 1, 2, 3, 4
_BUF_FLUSH_NEEDED = 6
_RAW_SIZE, _RAW_ALIGN = 0x10000, 0x10001
_RAW_BUFFER = 1
_READ_WRITE = 3
_SYNC_CPU_ACCESS, _SYNC_PERMISSION = 1, 2
_WAIT_ONLY = 1
_SYNC_MAJOR = 2

# the alignment of NVIDIA's sample cuDLAStandaloneMode; cuDLA itself asks for 32
_ALIGNMENT = 512


class NvSciError(EngineError):
    """A call of NvSciBuf or NvSciSync failed.

    Attributes:
        code: the number that it returned.
    """

    def __init__(self, function: str, code: int) -> None:
        super().__init__(
            f"{function} fails with {code:#x} (nvscierror.h): NvSci is missing its driver or "
            "memory; use cuDLA's hybrid mode instead"
        )
        self.code = code


class Pair(Structure):
    """``NvSciBufAttrKeyValuePair`` and ``NvSciSyncAttrKeyValuePair``"""

    _fields_ = [("key", c_int), ("value", c_void_p), ("len", c_size_t)]


class SyncFence(Structure):
    """``NvSciSyncFence``: all zero when it is cleared."""

    _fields_ = [("payload", c_uint64 * 6)]


_BUF_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "NvSciBufModuleOpen": (POINTER(c_void_p),),
    "NvSciBufAttrListCreate": (c_void_p, POINTER(c_void_p)),
    "NvSciBufAttrListSetAttrs": (c_void_p, POINTER(Pair), c_size_t),
    "NvSciBufAttrListGetAttrs": (c_void_p, POINTER(Pair), c_size_t),
    "NvSciBufAttrListReconcile": (
        POINTER(c_void_p), c_size_t, POINTER(c_void_p), POINTER(c_void_p),
    ),
    "NvSciBufObjAlloc": (c_void_p, POINTER(c_void_p)),
    "NvSciBufObjGetCpuPtr": (c_void_p, POINTER(c_void_p)),
    "NvSciBufObjFlushCpuCacheRange": (c_void_p, c_uint64, c_uint64),
}  # fmt: skip

_SYNC_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "NvSciSyncCheckVersionCompatibility": (c_uint32, c_uint32, POINTER(c_bool)),
    "NvSciSyncModuleOpen": (POINTER(c_void_p),),
    "NvSciSyncAttrListCreate": (c_void_p, POINTER(c_void_p)),
    "NvSciSyncAttrListSetAttrs": (c_void_p, POINTER(Pair), c_size_t),
    "NvSciSyncAttrListReconcile": (
        POINTER(c_void_p), c_size_t, POINTER(c_void_p), POINTER(c_void_p),
    ),
    "NvSciSyncObjAlloc": (c_void_p, POINTER(c_void_p)),
    "NvSciSyncCpuWaitContextAlloc": (c_void_p, POINTER(c_void_p)),
    "NvSciSyncFenceWait": (POINTER(SyncFence), c_void_p, c_int64),
}  # fmt: skip

_BUF_FREES = ("NvSciBufModuleClose", "NvSciBufAttrListFree", "NvSciBufObjFree")
_SYNC_FREES = (
    "NvSciSyncModuleClose", "NvSciSyncAttrListFree", "NvSciSyncObjFree",
    "NvSciSyncCpuWaitContextFree", "NvSciSyncFenceClear",
)  # fmt: skip


class _Library:
    """One of the libraries, and what is to be freed of it, last made first."""

    def __init__(
        self, names: tuple[str, ...], functions: Mapping[str, tuple[Any, ...]], frees: Any
    ) -> None:
        self._library = _load(names)
        try:
            for name, arguments in functions.items():
                function = getattr(self._library, name)
                function.argtypes = arguments
                function.restype = c_int
            for name in frees:
                function = getattr(self._library, name)
                function.argtypes = (c_void_p,)
                function.restype = None
        except AttributeError as error:
            raise EngineError(
                f"{names[0]}: too old for cuDLA's standalone mode ({error}); use the hybrid mode"
            ) from None
        self._undo: list[Callable[[], Any]] = []

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise NvSciError when it fails."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NvSciError(name, code)

    def make(self, name: str, free: str, *arguments: Any) -> int:
        """Call a function whose last argument receives an object; ``free`` frees it in the end."""
        made = c_void_p()
        self.call(name, *arguments, byref(made))
        self._undo.append(partial(getattr(self._library, free), made))
        return made.value or 0

    def reconcile(self, name: str, free: str, *lists: int) -> int:
        """Merge lists of attributes."""
        merged, conflicts = c_void_p(), c_void_p()
        array = (c_void_p * len(lists))(*lists)
        try:
            self.call(name, array, len(lists), byref(merged), byref(conflicts))
        finally:
            for item in (merged, conflicts):
                if item.value:
                    self._undo.append(partial(getattr(self._library, free), item))
        return merged.value or 0

    def close(self) -> None:
        """Free all that was made."""
        while self._undo:
            self._undo.pop()()


class SciBuffer:
    """Memory that CPU and DLA share.

    Attributes:
        handle: the ``NvSciBufObj``.
        bytes: the CPU's view, ``(size,) uint8``, all zero at first.
    """

    def __init__(self, library: _Library, handle: int, size: int, needs_flush: bool) -> None:
        self.handle = handle
        self._library = library
        self._needs_flush = needs_flush
        address = c_void_p()
        library.call("NvSciBufObjGetCpuPtr", handle, byref(address))
        memory = (ctypes.c_uint8 * size).from_address(address.value or 0)
        self.bytes = np.ctypeslib.as_array(memory)
        self.bytes[:] = 0
        self.flush()

    def flush(self) -> None:
        """Write the CPU's caches back and drop them, where CPU and DLA do not share them."""
        if self._needs_flush:
            self._library.call("NvSciBufObjFlushCpuCacheRange", self.handle, 0, self.bytes.nbytes)


class SciBuffers:
    """NvSciBuf: makes buffers; they live until it is closed."""

    def __init__(self) -> None:
        """Open the library.

        Raises:
            EngineError: it is not there, is too old, or has no driver.
        """
        self._library = _Library(BUF_LIBRARIES, _BUF_FUNCTIONS, _BUF_FREES)
        self._module = self._library.make("NvSciBufModuleOpen", "NvSciBufModuleClose")

    def allocate(self, size: int) -> SciBuffer:
        """A buffer of ``size`` bytes.

        Raises:
            NvSciError: there is not enough memory.
        """
        library = self._library
        wanted = library.make("NvSciBufAttrListCreate", "NvSciBufAttrListFree", self._module)
        values = {
            _BUF_TYPES: c_int(_RAW_BUFFER),
            _BUF_CPU_ACCESS: c_bool(True),
            _BUF_PERMISSION: c_int(_READ_WRITE),
            _BUF_CPU_CACHE: c_bool(True),
            _RAW_SIZE: c_uint64(size),
            _RAW_ALIGN: c_uint64(_ALIGNMENT),
        }
        library.call("NvSciBufAttrListSetAttrs", wanted, _pairs(values), len(values))
        merged = library.reconcile("NvSciBufAttrListReconcile", "NvSciBufAttrListFree", wanted)
        handle = library.make("NvSciBufObjAlloc", "NvSciBufObjFree", merged)
        question = (Pair * 1)(Pair(_BUF_FLUSH_NEEDED, None, 0))
        library.call("NvSciBufAttrListGetAttrs", merged, question, 1)
        answer = question[0]
        needs_flush = bool(answer.value and c_bool.from_address(answer.value).value)
        return SciBuffer(library, handle, size, needs_flush)

    def close(self) -> None:
        """Free all buffers; their views must not be used any more."""
        self._library.close()


class SciFence:
    """One thing to wait for: the end of the task that was given it.

    Attributes:
        sync_object: the ``NvSciSyncObj`` that the DLA signals.
        fence: filled by cuDLA when a task is started.
    """

    def __init__(self, library: _Library, sync_object: int, wait_context: int) -> None:
        self.sync_object = sync_object
        self.fence = SyncFence()
        self._library = library
        self._wait_context = wait_context

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the task has ended within ``timeout_s`` seconds; forever when ``None``."""
        timeout_us = -1 if timeout_s is None else max(int(timeout_s * 1e6), 0)
        try:
            self._library.call(
                "NvSciSyncFenceWait", byref(self.fence), self._wait_context, timeout_us
            )
        except NvSciError as error:
            if error.code == TIMEOUT:
                return False
            raise
        return True

    def clear(self) -> None:
        """Make it ready for another task."""
        self._library._library.NvSciSyncFenceClear(byref(self.fence))


class SciFences:
    """NvSciSync: makes fences that a DLA signals and the CPU waits for."""

    def __init__(self, fill_attributes: Callable[[int], None]) -> None:
        """Open the library.

        Args:
            fill_attributes: enters what the DLA needs into a list of attributes.

        Raises:
            EngineError: it is not there, is of another version, or has no driver.
        """
        self._library = _Library(SYNC_LIBRARIES, _SYNC_FUNCTIONS, _SYNC_FREES)
        self._fill_attributes = fill_attributes
        fits = c_bool()
        self._library.call("NvSciSyncCheckVersionCompatibility", _SYNC_MAJOR, 0, byref(fits))
        if not fits:
            raise EngineError(
                f"NvSciSync: version {_SYNC_MAJOR} is needed for cuDLA's standalone mode; "
                "use the hybrid mode"
            )
        self._module = self._library.make("NvSciSyncModuleOpen", "NvSciSyncModuleClose")

    def make(self) -> SciFence:
        """A fence, of a sync object of its own.

        Raises:
            EngineError: a library refuses.
        """
        library = self._library
        free = "NvSciSyncAttrListFree"
        signaller = library.make("NvSciSyncAttrListCreate", free, self._module)
        self._fill_attributes(signaller)
        waiter = library.make("NvSciSyncAttrListCreate", free, self._module)
        values = {_SYNC_CPU_ACCESS: c_bool(True), _SYNC_PERMISSION: c_uint64(_WAIT_ONLY)}
        library.call("NvSciSyncAttrListSetAttrs", waiter, _pairs(values), len(values))
        merged = library.reconcile("NvSciSyncAttrListReconcile", free, signaller, waiter)
        sync_object = library.make("NvSciSyncObjAlloc", "NvSciSyncObjFree", merged)
        context = library.make(
            "NvSciSyncCpuWaitContextAlloc", "NvSciSyncCpuWaitContextFree", self._module
        )
        return SciFence(library, sync_object, context)

    def close(self) -> None:
        """Free all fences, after :meth:`SciFence.clear`."""
        self._library.close()


def _pairs(values: Mapping[int, Any]) -> Any:
    """Keys and values for C; ``values`` must be kept while C reads them."""
    return (Pair * len(values))(
        *(Pair(key, ctypes.addressof(value), ctypes.sizeof(value)) for key, value in values.items())
    )


def _load(names: tuple[str, ...]) -> ctypes.CDLL:
    reason = ""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reason = reason or str(error)
    raise EngineError(
        f"cuDLA's standalone mode cannot be used here: {reason}; use the hybrid mode (pycuda)"
    )
