"""Buffers, streams, events and threads of CUDA, through pycuda, for the engines that need them.

pycuda ties everything that it makes to the thread that made it: :class:`CudaThread` is that
thread. The context in it is the device's primary one, which PyTorch and CUDA's runtime library
use too, so that several users of CUDA live in one process.

:class:`SlotRunner` runs the slots of an engine one after the other while the next one is already
being queued, so that the accelerator does not wait for Python.
"""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Sequence, TypeVar

import numpy as np

from dla_perception.engines.engine import EngineError, InferenceTimeoutError, TensorSpec
from dla_perception.engines.layouts import buffer_bytes, buffer_shape
from dla_perception.errors import MissingPackageError

Result = TypeVar("Result")
Failure = TypeVar("Failure", bound=BaseException)

MEMORY_KINDS = ("auto", "mapped", "pinned")
"""``mapped``: one memory for host and device, no copies, where both share their memory (Jetson).
``pinned``: page-locked host memory, copied to and from the device. ``auto``: the fitting one."""

_CLOSE_TIMEOUT_S = 2.0

_FREE_TIMEOUT_S = 10.0
"""A large engine takes its time to be taken down; a thread that hangs does not answer at all."""

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING (cuda.h): the stream does not wait for other users' default stream."""


@dataclass(frozen=True)
class CudaDevice:
    """What a GPU is.

    Attributes:
        name: as the driver calls it.
        compute_capability: ``8.7``.
        integrated: whether it shares its memory with the CPU, as in a Jetson.
    """

    name: str
    compute_capability: str
    integrated: bool


class CudaThread:
    """A thread with a CUDA context; everything of CUDA is made, used and freed in it."""

    def __init__(self, name: str, device_index: int = 0) -> None:
        """Start the thread and make its context.

        Raises:
            MissingPackageError: pycuda is not installed.
            EngineError: there is no usable GPU.
        """
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        started: Future[CudaDevice] = Future()
        # a daemon: a hung accelerator must not keep the process from ending
        self._thread = threading.Thread(
            target=self._main, args=(device_index, started), name=name, daemon=True
        )
        self._thread.start()
        self.device = started.result()

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._thread.name

    def run(self, function: Callable[[], Result], timeout_s: float | None = None) -> Result:
        """Call ``function`` in the thread; return what it returns and raise what it raises.

        Raises:
            EngineError: the thread is closed, or has not come to an end in ``timeout_s`` seconds.
        """
        if self._closed:
            raise EngineError(f"CUDA thread {self._thread.name}: it is closed")
        future: Future[Result] = Future()
        self.post(partial(_fulfil, future, function))
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            if future.done():
                raise  # the function's own
            raise EngineError(
                f"CUDA thread {self._thread.name}: no answer in {timeout_s} s"
            ) from None

    def post(self, function: Callable[[], None]) -> None:
        """Have ``function``, which must not raise, called in the thread, and return at once."""
        self._work.put(function)

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Release the context and end the thread, once its work is done.

        Returns:
            Whether the thread has ended; a hung accelerator may hold it up.
        """
        if not self._closed:
            self._closed = True
            self._work.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self, device_index: int, started: Future[CudaDevice]) -> None:
        try:
            context, device = _open_context(device_index)
        except Exception as error:  # handed to whoever starts the thread
            started.set_exception(error)
            return
        started.set_result(device)
        try:
            while True:
                function = self._work.get()
                if function is None:
                    return
                function()
                # or the last function, and what it refers to, would live on while waiting
                del function
        finally:
            context.pop()
            context.detach()


@dataclass
class Buffer:
    """Memory of one tensor.

    Attributes:
        array: the host's view, in the physical shape of the tensor's layout.
        address: where the device finds it.
        nbytes: its size, padding included.
    """

    array: np.ndarray
    address: int
    nbytes: int
    _host: Any
    _device: Any

    @classmethod
    def allocate(cls, spec: TensorSpec, mapped: bool) -> Buffer:
        """Make the memory of a tensor, all zero, in a :class:`CudaThread`.

        Raises:
            EngineError: there is not enough memory.
        """
        import pycuda.driver as cuda

        nbytes = buffer_bytes(spec)
        host = device = None
        try:
            flags = cuda.host_alloc_flags.DEVICEMAP if mapped else 0
            pages = cuda.pagelocked_empty((nbytes,), np.uint8, mem_flags=flags)
            host = pages.base
            if mapped:
                address = int(host.get_device_pointer())
            else:
                device = cuda.mem_alloc(nbytes)
                address = int(device)
        except cuda.Error as error:
            if host is not None:
                host.free()
            raise EngineError(
                f"tensor {spec}: cannot get {nbytes} bytes of {'mapped' if mapped else 'pinned'} "
                f"memory: {one_line(error)}; free memory or use fewer slots"
            ) from None
        pages[:] = 0
        return cls(
            pages.view(spec.dtype).reshape(buffer_shape(spec)), address, nbytes, host, device
        )

    def to_device(self, stream: Any) -> None:
        """Queue the copy to the device, where the device has memory of its own."""
        if self._device is not None:
            import pycuda.driver as cuda

            cuda.memcpy_htod_async(self._device, self.array, stream)

    def to_host(self, stream: Any) -> None:
        """Queue the copy to the host, where the device has memory of its own."""
        if self._device is not None:
            import pycuda.driver as cuda

            cuda.memcpy_dtoh_async(self.array, self._device, stream)

    def free(self) -> None:
        """Give the memory back; ``array`` must not be used any more."""
        self._host.free()
        if self._device is not None:
            self._device.free()


class Slot:
    """Buffers, stream and event of one inference; made and freed in a :class:`CudaThread`."""

    def __init__(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], mapped: bool
    ) -> None:
        import pycuda.driver as cuda

        self.inputs: list[Buffer] = []
        self.outputs: list[Buffer] = []
        try:
            for spec in inputs:
                self.inputs.append(Buffer.allocate(spec, mapped))
            for spec in outputs:
                self.outputs.append(Buffer.allocate(spec, mapped))
            self.stream = cuda.Stream(_NON_BLOCKING)
            # whoever waits for the event sleeps: a spinning thread takes a core from the nodes
            flags = cuda.event_flags
            self.event = cuda.Event(flags.BLOCKING_SYNC | flags.DISABLE_TIMING)
        except Exception:
            self.free()
            raise

    def free(self) -> None:
        """Give everything back."""
        for buffer in (*self.inputs, *self.outputs):
            buffer.free()
        self.inputs, self.outputs = [], []
        # pycuda destroys them with their last reference, in this thread
        self.stream = self.event = None


class SlotRunner:
    """Runs slots in the order in which they are submitted.

    A slot's work is: copy the inputs to the device, wait for the slot before, ``enqueue``, copy
    the outputs to the host. It is queued from the engine's thread; a second thread waits for the
    slots' events, so that the first one can queue the next slot meanwhile.
    """

    def __init__(
        self,
        name: str,
        thread: CudaThread,
        slots: Sequence[Slot],
        enqueue: Callable[[int, Any], None],
        check: Callable[[int], None] | None = None,
    ) -> None:
        """Start waiting for work.

        Args:
            name: of the engine and its device, for messages: ``net.engine on dla0``.
            thread: in which ``slots`` were made.
            slots: one or more; they stay the caller's.
            enqueue: called as ``enqueue(index, stream)`` in ``thread``: starts the inference of a
                slot on a stream and returns at once.
            check: called with the index when a slot has finished; raises if it has failed.
        """
        self._name = name
        self._thread = thread
        self._slots = list(slots)
        self._enqueue = enqueue
        self._check = check
        self._idle = [threading.Event() for _ in self._slots]
        for idle in self._idle:
            idle.set()
        self._waited = [True] * len(self._slots)
        self._errors: list[Exception | None] = [None] * len(self._slots)
        self._last: Any = None
        self._closed = False
        self._waiter = CudaThread(f"{thread.name} wait")

    def submit(self, slot: int) -> None:
        """Start the work of a slot and return at once.

        Raises:
            EngineError: the runner is closed, or the slot is still at work.
        """
        if self._closed:
            raise EngineError(f"{self._name}: the engine is closed")
        if not self._waited[slot]:
            raise EngineError(
                f"{self._name}: slot {slot} was submitted twice without waiting for it"
            )
        self._waited[slot] = False
        self._idle[slot].clear()
        self._thread.post(partial(self._start, slot))

    def wait(self, slot: int, timeout_s: float | None = None) -> None:
        """Return when the work of a slot is done.

        Raises:
            InferenceTimeoutError: it is not done after ``timeout_s`` seconds.
            EngineError: it failed.
        """
        if not self._idle[slot].wait(timeout_s):
            raise InferenceTimeoutError(f"{self._name}: no result after {timeout_s:.3f} s")
        self._waited[slot] = True
        error, self._errors[slot] = self._errors[slot], None
        if error is not None:
            if isinstance(error, EngineError):
                raise error
            raise EngineError(f"{self._name}: inference failed: {one_line(error)}") from error

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Let work that has begun come to its end.

        Returns:
            Whether it has; if not, the accelerator hangs and no memory may be freed under it.
        """
        self._closed = True
        finished = all(idle.wait(timeout_s) for idle in self._idle)
        self._last = None
        return self._waiter.close(timeout_s if finished else 0.0) and finished

    def _start(self, index: int) -> None:
        slot = self._slots[index]
        try:
            for buffer in slot.inputs:
                buffer.to_device(slot.stream)
            if self._last is not None:
                slot.stream.wait_for_event(self._last)
            self._enqueue(index, slot.stream)
            for buffer in slot.outputs:
                buffer.to_host(slot.stream)
            slot.event.record(slot.stream)
        except Exception as error:  # handed to whoever waits for this slot
            self._errors[index] = _without_frames(error)
            self._idle[index].set()
            return
        self._last = slot.event
        self._waiter.post(partial(self._finish, index))

    def _finish(self, index: int) -> None:
        failure: Exception | None = None
        try:
            self._slots[index].event.synchronize()
        except Exception as error:  # handed to whoever waits for this slot
            failure = _without_frames(error)
        try:
            if self._check is not None:
                self._check(index)
        except Exception as error:  # the accelerator's word says more than CUDA's
            failure = _without_frames(error)
        self._errors[index] = failure
        self._idle[index].set()


def use_mapped_memory(memory: str, device: CudaDevice) -> bool:
    """Whether ``memory``, one of :data:`MEMORY_KINDS`, means mapped memory on ``device``."""
    return memory == "mapped" or (memory == "auto" and device.integrated)


def release(
    runner: SlotRunner | None,
    thread: CudaThread,
    free: Callable[[], None],
    name: str,
    timeout_s: float = _CLOSE_TIMEOUT_S,
) -> None:
    """End an engine: its work, then its memory by ``free`` in its thread, then the thread.

    With a hung accelerator nothing is freed: the memory may still be written to.
    """
    if runner is not None and not runner.close(timeout_s):
        logging.getLogger(__name__).error(
            "%s: the accelerator hangs; its memory stays in use until the process ends", name
        )
        return
    try:
        thread.run(free, max(timeout_s, _FREE_TIMEOUT_S))
    finally:
        thread.close()


def one_line(error: BaseException) -> str:
    """The text of an error without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def _fulfil(future: Future[Result], function: Callable[[], Result]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # handed to whoever waits for the future
        future.set_exception(_without_frames(error))


def _without_frames(error: Failure) -> Failure:
    """The error, no longer keeping alive what belongs to this thread and must be freed in it."""
    traceback.clear_frames(error.__traceback__)
    return error


def _open_context(device_index: int) -> tuple[Any, CudaDevice]:
    try:
        import pycuda.driver as cuda
    except ModuleNotFoundError:
        raise MissingPackageError(
            "pycuda", "running an engine on a GPU or a DLA", "pip install pycuda"
        ) from None
    except ImportError as error:
        # pycuda is there; the driver's library is not, or is another one than pycuda was built for
        raise EngineError(f"CUDA cannot be used here: {one_line(error)}") from None
    try:
        cuda.init()
        if cuda.Device.count() <= device_index:
            raise EngineError(
                f"CUDA finds {cuda.Device.count()} GPUs; is this a Jetson, "
                "and does the container get the devices ('--runtime nvidia')?"
            )
        device = cuda.Device(device_index)
        major, minor = device.compute_capability()
        integrated = device.get_attribute(cuda.device_attribute.INTEGRATED)
        found = CudaDevice(device.name(), f"{major}.{minor}", bool(integrated))
        context = device.retain_primary_context()
        context.push()
    except cuda.Error as error:
        raise EngineError(
            f"CUDA cannot be used here: {one_line(error)}; check the driver, and in a container "
            "that it gets the devices ('--runtime nvidia')"
        ) from None
    return context, found
