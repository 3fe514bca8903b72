"""A stand-in for a CUDA device and for ``pycuda.driver``, strict where the real one is fragile.

Host and device have separate memories, so a forgotten copy gives a wrong result. Streams run in
threads of their own, so work is really asynchronous. Memory that was freed reads as 0xDD. Whatever
the real library would crash or leak on is raised, or noted in ``Machine.faults``: objects used or
destroyed in another thread than the one that made them, work without a current context, double
frees. ``Machine.alive`` counts what exists.

Names are those of pycuda 2022 to 2026; a name that it does not have does not exist here either.
"""

from __future__ import annotations

import itertools
import queue
import threading
import types
import weakref
from collections import Counter
from typing import Any, Callable

import numpy as np


class Error(Exception):
    """pycuda.driver.Error"""


class LogicError(Error, RuntimeError):
    """pycuda.driver.LogicError"""


class LaunchError(Error, RuntimeError):
    """pycuda.driver.LaunchError"""


class OutOfMemoryError(Error, MemoryError):
    """pycuda.driver.MemoryError"""


class Machine:
    """One device, and everything that exists on it."""

    def __init__(
        self,
        name: str = "Orin",
        compute_capability: tuple[int, int] = (8, 7),
        integrated: bool = True,
        device_count: int = 1,
    ) -> None:
        self.name = name
        self.compute_capability = compute_capability
        self.integrated = integrated
        self.device_count = device_count
        self.alive: Counter[str] = Counter()
        self.faults: list[str] = []
        self.memory: dict[int, np.ndarray] = {}
        self.streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self.mapped: set[int] = set()
        self.free_bytes = 1 << 40
        self.copied_bytes = 0
        self.hang = threading.Event()
        self.hang.set()
        self._addresses = itertools.count(0x10_0000, 0x100_0000)
        self._stacks = threading.local()

    # contexts -----------------------------------------------------------------------------

    @property
    def stack(self) -> list[Context]:
        """The contexts of this thread, the current one last."""
        if not hasattr(self._stacks, "value"):
            self._stacks.value = []
        return self._stacks.value  # type: ignore[no-any-return]

    def require_context(self, what: str) -> Context:
        """The current context of this thread."""
        if not self.stack:
            raise LogicError(
                f"{what} failed: invalid device context - no currently active context?"
            )
        return self.stack[-1]

    # memory -------------------------------------------------------------------------------

    def new_address(self, array: np.ndarray) -> int:
        """Enter ``array`` into the device's memory."""
        address = next(self._addresses)
        self.memory[address] = array
        return address

    def take(self, nbytes: int) -> None:
        """Count memory as used."""
        if nbytes > self.free_bytes:
            raise OutOfMemoryError("cuMemAlloc failed: out of memory")
        self.free_bytes -= nbytes

    def at(self, address: int) -> np.ndarray:
        """The bytes at an address of the device."""
        if address not in self.memory:
            raise LaunchError(f"an illegal memory access was encountered at {address:#x}")
        return self.memory[address]

    def is_mapped(self, address: int) -> bool:
        """Whether an address is that of host memory."""
        return address in self.mapped

    def assert_clean(self) -> None:
        """Nothing exists any more and nothing went wrong."""
        left = {kind: count for kind, count in self.alive.items() if count}
        assert not left, f"still there: {left}"
        assert not self.faults, self.faults


class _Owned:
    """Something that belongs to a context and a thread."""

    kind = ""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.context = machine.require_context(f"creating a {self.kind}")
        self.thread = threading.get_ident()
        self.is_alive = True
        machine.alive[self.kind] += 1

    def check_use(self, what: str) -> None:
        if not self.is_alive:
            raise LogicError(f"{what}: the {self.kind} is freed")
        self.machine.require_context(what)

    def destroy(self) -> None:
        if not self.is_alive:
            raise LogicError(f"{self.kind} freed twice")
        self.is_alive = False
        self.machine.alive[self.kind] -= 1
        if threading.get_ident() != self.thread:
            self.machine.faults.append(f"{self.kind} destroyed in another thread")
        elif not self.context.is_valid:
            self.machine.faults.append(f"{self.kind} outlived its context")

    def __del__(self) -> None:
        if getattr(self, "is_alive", False):
            self.destroy()


class Context:
    """pycuda.driver.Context, of the kind ``Device.retain_primary_context`` returns."""

    machine: Machine

    def __init__(self, machine: Machine) -> None:
        self.machine_ = machine
        self.thread = threading.get_ident()
        self.is_valid = True
        machine.alive["context"] += 1

    def push(self) -> None:
        if not self.is_valid:
            raise LogicError("cannot activate dead context")
        self.machine_.stack.append(self)

    @classmethod
    def pop(cls) -> None:
        if not cls.machine.stack:
            raise LogicError("context::pop failed: cannot pop non-current context")
        cls.machine.stack.pop()

    def detach(self) -> None:
        if not self.is_valid:
            raise LogicError("cannot detach from invalid context")
        if threading.get_ident() != self.thread:
            self.machine_.faults.append("context detached in another thread")
        if self in self.machine_.stack:
            self.machine_.faults.append("context detached while it is on the stack")
        self.is_valid = False
        self.machine_.alive["context"] -= 1


class HostAllocation(_Owned):
    """pycuda.driver.PagelockedHostAllocation"""

    kind = "host allocation"

    def __init__(self, machine: Machine, nbytes: int, flags: int) -> None:
        machine.require_context("allocating")
        machine.take(nbytes)
        super().__init__(machine)
        self.bytes = np.full(nbytes, 0xAA, np.uint8)
        self.mapped = bool(flags & 2)
        self.__array_interface__: dict[str, Any] = {}

    def get_device_pointer(self) -> int:
        self.check_use("cuMemHostGetDevicePointer")
        if not self.mapped:
            raise LogicError("cuMemHostGetDevicePointer failed: invalid argument")
        for address, array in self.machine.memory.items():
            if array is self.bytes:
                return address
        address = self.machine.new_address(self.bytes)
        self.machine.mapped.add(address)
        return address

    def free(self) -> None:
        self.destroy()

    def destroy(self) -> None:
        super().destroy()
        self.machine.free_bytes += self.bytes.nbytes
        for address in [key for key, value in self.machine.memory.items() if value is self.bytes]:
            del self.machine.memory[address]
        self.bytes[:] = 0xDD


class DeviceAllocation(_Owned):
    """pycuda.driver.DeviceAllocation"""

    kind = "device allocation"

    def __init__(self, machine: Machine, nbytes: int) -> None:
        machine.require_context("allocating")
        machine.take(nbytes)
        super().__init__(machine)
        self.bytes = np.full(nbytes, 0xBB, np.uint8)
        self.address = machine.new_address(self.bytes)

    def __int__(self) -> int:
        return self.address

    __index__ = __int__

    def free(self) -> None:
        self.destroy()

    def destroy(self) -> None:
        super().destroy()
        self.machine.free_bytes += self.bytes.nbytes
        del self.machine.memory[self.address]
        self.bytes[:] = 0xDD


class Stream(_Owned):
    """pycuda.driver.Stream"""

    kind = "stream"

    def __init__(self, machine: Machine, flags: int = 0) -> None:
        if flags not in (0, 1):
            raise LogicError("cuStreamCreate failed: invalid argument")
        super().__init__(machine)
        self.handle = next(machine._addresses)
        machine.streams[self.handle] = self
        self.work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.error: list[Exception] = []
        threading.Thread(
            target=_run_stream, args=(self.work, self.error), daemon=True, name="stand-in stream"
        ).start()

    def put(self, function: Callable[[], None]) -> None:
        self.check_use("queueing work on a stream")
        self.work.put(function)

    def wait_for_event(self, event: Event) -> None:
        done = event.recorded
        if done is not None:
            self.put(lambda: _ignore(done.wait()))

    def synchronize(self) -> None:
        done = threading.Event()
        self.put(done.set)
        done.wait()
        if self.error:
            raise LaunchError(str(self.error[0]))

    def is_done(self) -> bool:
        return self.work.empty()

    def destroy(self) -> None:
        super().destroy()
        self.work.put(None)


def _ignore(_: Any) -> None:
    pass


def _run_stream(work: Any, errors: list[Exception]) -> None:
    while True:
        function = work.get()
        if function is None:
            return
        try:
            # after a failure a context is of no use any more, but waiting must end
            if not errors or getattr(function, "always", False):
                function()
        except Exception as error:
            errors.append(error)


class _Marker:
    always = True

    def __init__(self, done: threading.Event) -> None:
        self.done = done

    def __call__(self) -> None:
        self.done.set()


class Event(_Owned):
    """pycuda.driver.Event"""

    kind = "event"

    def __init__(self, machine: Machine, flags: int = 0) -> None:
        if flags & ~7:
            raise LogicError("cuEventCreate failed: invalid argument")
        super().__init__(machine)
        self.recorded: threading.Event | None = None
        self.stream_error: list[Exception] = []

    def record(self, stream: Stream) -> Event:
        self.check_use("cuEventRecord")
        self.recorded = threading.Event()
        self.stream_error = stream.error
        stream.put(_Marker(self.recorded))
        return self

    def synchronize(self) -> Event:
        self.check_use("cuEventSynchronize")
        if self.recorded is not None:
            self.recorded.wait()
        if self.stream_error:
            raise LaunchError(f"cuEventSynchronize failed: {self.stream_error[0]}")
        return self

    def query(self) -> bool:
        self.check_use("cuEventQuery")
        return self.recorded is None or self.recorded.is_set()


def make_pycuda(machine: Machine) -> dict[str, types.ModuleType]:
    """The modules ``pycuda`` and ``pycuda.driver`` for ``sys.modules``."""
    driver = types.ModuleType("pycuda.driver")
    package = types.ModuleType("pycuda")
    package.driver = driver  # type: ignore[attr-defined]
    initialised = False

    def init(flags: int = 0) -> None:
        nonlocal initialised
        initialised = True

    class Device:
        def __init__(self, index: int) -> None:
            if not initialised:
                raise LogicError("cuDeviceGet failed: initialization error")
            if index >= machine.device_count:
                raise LogicError("cuDeviceGet failed: invalid device ordinal")

        @staticmethod
        def count() -> int:
            if not initialised:
                raise LogicError("cuDeviceGetCount failed: initialization error")
            return machine.device_count

        def name(self) -> str:
            return machine.name

        def compute_capability(self) -> tuple[int, int]:
            return machine.compute_capability

        def get_attribute(self, attribute: str) -> int:
            return int({"INTEGRATED": machine.integrated}[attribute])

        def retain_primary_context(self) -> Context:
            return context_class(machine)

    context_class = type("Context", (Context,), {"machine": machine})

    def pagelocked_empty(
        shape: Any, dtype: Any, order: str = "C", mem_flags: int = 0
    ) -> np.ndarray:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        allocation = HostAllocation(machine, nbytes, mem_flags)
        allocation.__array_interface__ = {
            "shape": tuple(shape),
            "typestr": np.dtype(dtype).str,
            "data": (allocation.bytes.ctypes.data, False),
            "version": 3,
        }
        return np.asarray(allocation, order=order)

    def memcpy_htod_async(dest: Any, src: np.ndarray, stream: Stream) -> None:
        _copy(int(dest), src, stream, to_device=True)

    def memcpy_dtoh_async(dest: np.ndarray, src: Any, stream: Stream) -> None:
        _copy(int(src), dest, stream, to_device=False)

    def _copy(address: int, host: np.ndarray, stream: Stream, to_device: bool) -> None:
        machine.require_context("cuMemcpyAsync")
        if not host.flags.c_contiguous:
            raise ValueError("ndarray is not contiguous")
        flat = host.reshape(-1).view(np.uint8)
        device = machine.at(address)
        if flat.nbytes != device.nbytes:
            raise LogicError("cuMemcpyAsync failed: invalid argument (sizes differ)")

        def copy() -> None:
            machine.copied_bytes += flat.nbytes
            if to_device:
                device[:] = flat
            else:
                flat[:] = device

        stream.put(copy)

    for name, value in {
        "Error": Error,
        "LogicError": LogicError,
        "LaunchError": LaunchError,
        "MemoryError": OutOfMemoryError,
        "init": init,
        "Device": Device,
        "Context": context_class,
        "Stream": lambda flags=0: Stream(machine, flags),
        "Event": lambda flags=0: Event(machine, flags),
        "mem_alloc": lambda nbytes: DeviceAllocation(machine, nbytes),
        "pagelocked_empty": pagelocked_empty,
        "memcpy_htod_async": memcpy_htod_async,
        "memcpy_dtoh_async": memcpy_dtoh_async,
        "device_attribute": types.SimpleNamespace(INTEGRATED="INTEGRATED"),
        "event_flags": types.SimpleNamespace(DEFAULT=0, BLOCKING_SYNC=1, DISABLE_TIMING=2),
        "host_alloc_flags": types.SimpleNamespace(PORTABLE=1, DEVICEMAP=2, WRITECOMBINED=4),
    }.items():
        setattr(driver, name, value)
    return {"pycuda": package, "pycuda.driver": driver}
