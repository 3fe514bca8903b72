"""Buffers, slots, order, time-outs and threads of cuda_memory.py over a stand-in for CUDA."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from cuda_stand_in import Machine
from stand_in_fixtures import Install, install  # noqa: F401

from dla_perception.engines.cuda_memory import (
    Buffer,
    CudaThread,
    Slot,
    SlotRunner,
    release,
    use_mapped_memory,
)
from dla_perception.engines.engine import EngineError, InferenceTimeoutError, TensorSpec
from dla_perception.engines.layouts import Layout
from dla_perception.errors import MissingPackageError

SPEC = TensorSpec("t", (1, 3, 4, 5), np.dtype(np.float32))


class Doubler:
    """An engine whose inference doubles its input; a stand-in kernel."""

    def __init__(self, machine: Machine, slots: int, mapped: bool) -> None:
        self.machine = machine
        self.thread = CudaThread("test")
        self.slots: list[Slot] = self.thread.run(
            lambda: [Slot([SPEC], [SPEC], mapped) for _ in range(slots)]
        )
        self.finished: list[int] = []
        self.runner = SlotRunner("net on dla0", self.thread, self.slots, self.enqueue, self.check)
        self.failures: dict[int, Exception] = {}

    def enqueue(self, index: int, stream: Any) -> None:
        if index in self.failures:
            raise self.failures.pop(index)
        source = self.machine.at(self.slots[index].inputs[0].address)
        target = self.machine.at(self.slots[index].outputs[0].address)
        machine = self.machine

        def double() -> None:
            machine.hang.wait()
            target.view(np.float32)[:] = 2 * source.view(np.float32)

        stream.put(double)

    def check(self, index: int) -> None:
        self.finished.append(index)

    def run(self, slot: int, value: float) -> np.ndarray:
        self.slots[slot].inputs[0].array[:] = value
        self.runner.submit(slot)
        self.runner.wait(slot, 10)
        return self.slots[slot].outputs[0].array

    def close(self) -> None:
        release(self.runner, self.thread, self.free, "net")

    def free(self) -> None:
        for slot in self.slots:
            slot.free()


@pytest.mark.parametrize("mapped", [False, True])
def test_slots_compute_in_turn(install: Install, mapped: bool) -> None:
    board = install(integrated=mapped)
    doubler = Doubler(board.machine, 2, mapped)
    for step in range(6):
        assert (doubler.run(step % 2, step) == 2 * step).all()
    assert board.machine.copied_bytes == (0 if mapped else 6 * 2 * 240)
    doubler.close()


def test_slots_finish_in_the_order_of_submission(install: Install) -> None:
    board = install()
    doubler = Doubler(board.machine, 3, mapped=True)
    board.machine.hang.clear()
    for slot in (2, 0, 1):
        doubler.slots[slot].inputs[0].array[:] = slot
        doubler.runner.submit(slot)
    board.machine.hang.set()
    for slot in (1, 0, 2):
        doubler.runner.wait(slot, 10)
        assert (doubler.slots[slot].outputs[0].array == 2 * slot).all()
    assert doubler.finished == [2, 0, 1]
    doubler.close()


def test_work_of_a_slot_waits_for_the_slot_before(install: Install) -> None:
    board = install()
    doubler = Doubler(board.machine, 2, mapped=True)
    ran: list[int] = []
    go_on = threading.Event()

    def enqueue(index: int, stream: Any) -> None:
        def kernel() -> None:
            if index == 1:
                go_on.wait(10)
            ran.append(index)

        stream.put(kernel)

    doubler.runner._enqueue = enqueue
    doubler.runner.submit(1)
    doubler.runner.submit(0)
    doubler.thread.run(lambda: None, 10)
    time.sleep(0.05)  # slot 0 has a stream of its own, and would be done by now
    assert ran == []
    go_on.set()
    doubler.runner.wait(0, 10)
    doubler.runner.wait(1, 10)
    assert ran == [1, 0]
    doubler.close()


def test_next_slot_is_queued_while_one_runs(install: Install) -> None:
    board = install()
    doubler = Doubler(board.machine, 2, mapped=True)
    board.machine.hang.clear()
    doubler.runner.submit(0)
    doubler.runner.submit(1)
    # the thread answers though both slots are unfinished: nothing in it waits for the device
    assert doubler.thread.run(lambda: "free", 10) == "free"
    assert not doubler.slots[1].stream.work.empty() or not board.machine.hang.is_set()
    board.machine.hang.set()
    doubler.runner.wait(1, 10)
    doubler.runner.wait(0, 10)
    doubler.close()


def test_time_out_and_waiting_again(install: Install) -> None:
    board = install()
    doubler = Doubler(board.machine, 1, mapped=True)
    board.machine.hang.clear()
    doubler.slots[0].inputs[0].array[:] = 4
    doubler.runner.submit(0)
    with pytest.raises(InferenceTimeoutError, match=r"net on dla0: no result after 0\.020 s"):
        doubler.runner.wait(0, 0.02)
    with pytest.raises(EngineError, match="slot 0 was submitted twice"):
        doubler.runner.submit(0)
    board.machine.hang.set()
    doubler.runner.wait(0, 10)
    assert (doubler.slots[0].outputs[0].array == 8).all()
    doubler.close()


def test_closing_a_hung_engine_frees_nothing_under_it(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    board = install()
    doubler = Doubler(board.machine, 1, mapped=True)
    board.machine.hang.clear()
    doubler.runner.submit(0)
    assert not doubler.runner.close(0.05)
    release(doubler.runner, doubler.thread, doubler.free, "net", 0.05)
    assert "net: the accelerator hangs; its memory stays in use" in caplog.text
    assert board.machine.alive["host allocation"] == 2
    board.machine.hang.set()
    assert doubler.runner._waiter.close(10)
    doubler.thread.run(doubler.free)
    assert doubler.thread.close(10)


def test_failure_frees_the_slot_and_is_told_once(install: Install) -> None:
    board = install()
    doubler = Doubler(board.machine, 2, mapped=True)
    doubler.failures[0] = RuntimeError("two\nlines")
    doubler.runner.submit(0)
    with pytest.raises(EngineError, match="net on dla0: inference failed: two lines"):
        doubler.runner.wait(0, 10)
    assert (doubler.run(0, 3) == 6).all()
    doubler.close()


def test_failure_on_the_device_is_told(install: Install) -> None:
    board = install()
    doubler = Doubler(board.machine, 1, mapped=True)

    def fail(index: int, stream: Any) -> None:
        stream.put(lambda: board.machine.at(1))

    doubler.runner._enqueue = fail
    doubler.runner.submit(0)
    with pytest.raises(EngineError, match="illegal memory access"):
        doubler.runner.wait(0, 10)
    doubler.close()


def test_use_after_close(install: Install) -> None:
    board = install()
    doubler = Doubler(board.machine, 1, mapped=True)
    doubler.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        doubler.runner.submit(0)
    with pytest.raises(EngineError, match="closed"):
        doubler.thread.run(lambda: None)
    assert doubler.thread.close(1)


@pytest.mark.parametrize("mapped", [False, True])
def test_buffers_have_the_shape_of_their_layout_and_are_zero(
    install: Install, mapped: bool
) -> None:
    board = install(integrated=mapped)
    spec = TensorSpec("t", (1, 255, 4, 5), np.dtype(np.int8), Layout.CHW32, 0.5)
    thread = CudaThread("test")
    buffer = thread.run(lambda: Buffer.allocate(spec, mapped))
    assert buffer.array.shape == (1, 8, 4, 5, 32)
    assert buffer.array.dtype == np.int8
    assert buffer.nbytes == 8 * 4 * 5 * 32 == board.machine.memory[buffer.address].nbytes
    assert not buffer.array.any()
    thread.run(buffer.free)
    thread.close()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("free_bytes", [100, 300, 600])
def test_out_of_memory_leaves_nothing(install: Install, mapped: bool, free_bytes: int) -> None:
    board = install(integrated=mapped)
    board.machine.free_bytes = free_bytes
    thread = CudaThread("test")
    if mapped and free_bytes == 600:
        free_bytes = board.machine.free_bytes = 400
    with pytest.raises(EngineError, match="cannot get 240 bytes of .* memory: .*out of memory"):
        thread.run(lambda: Slot([SPEC], [SPEC], mapped))
    thread.close()
    assert board.machine.free_bytes == free_bytes


def test_the_context_of_another_user_stays_current(install: Install) -> None:
    board = install()
    import pycuda.driver as cuda

    cuda.init()
    mine = cuda.Device(0).retain_primary_context()
    mine.push()
    doubler = Doubler(board.machine, 1, mapped=True)
    assert (doubler.run(0, 1) == 2).all()
    doubler.close()
    assert board.machine.stack == [mine]
    mine.pop()
    mine.detach()


def test_errors_of_functions_come_back(install: Install) -> None:
    install()
    thread = CudaThread("test")
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 // 0)
    assert thread.run(threading.get_ident) != threading.get_ident()
    blocked = threading.Event()
    thread.post(lambda: blocked.wait(10) and None)
    with pytest.raises(EngineError, match=r"no answer in 0\.01 s"):
        thread.run(lambda: None, 0.01)
    blocked.set()
    assert thread.close(10)


def test_no_gpu(install: Install) -> None:
    install(device_count=0)
    with pytest.raises(EngineError, match="CUDA finds 0 GPUs.*--runtime nvidia"):
        CudaThread("test")


def test_no_pycuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycuda", None)
    with pytest.raises(MissingPackageError, match="needs the package pycuda"):
        CudaThread("test")


def test_pycuda_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "pycuda":
                raise ImportError("libcuda.so.1: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "pycuda", raising=False)
    monkeypatch.delitem(sys.modules, "pycuda.driver", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(EngineError, match=r"CUDA cannot be used here: libcuda\.so\.1"):
        CudaThread("test")


@pytest.mark.parametrize(
    ("memory", "integrated", "mapped"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("mapped", False, True),
        ("pinned", True, False),
    ],
)
def test_choice_of_memory(install: Install, memory: str, integrated: bool, mapped: bool) -> None:
    install(integrated=integrated)
    thread = CudaThread("test")
    assert thread.device.integrated == integrated
    assert use_mapped_memory(memory, thread.device) == mapped
    thread.close()
