"""cuda_memory.py on a real NVIDIA GPU: buffers, slots, streams, events and time-outs.

A CUDA kernel stands in the place of the engine. Skipped where there is no GPU, pycuda or nvcc;
docs/hardware_status.md records where it ran.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest

from dla_perception.engines.cuda_memory import CudaThread, Slot, SlotRunner, release
from dla_perception.engines.engine import EngineError, InferenceTimeoutError, TensorSpec
from dla_perception.engines.layouts import Layout, buffer_bytes, pack, unpack

KERNELS = """
extern "C" __global__ void doubled(const float *in, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = 2 * in[i];
}
extern "C" __global__ void busy(long long nanoseconds)
{
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < nanoseconds);
}
extern "C" __global__ void broken(float *out) { out[1ll << 40] = 1; }
"""

SPEC = TensorSpec("t", (1, 3, 64, 80), np.dtype(np.float32))
SIZE = 3 * 64 * 80


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The kernels as PTX, for any GPU."""
    try:
        import pycuda.driver as cuda

        cuda.init()
        if cuda.Device.count() == 0:
            pytest.skip("no GPU")
    except Exception as error:
        pytest.skip(f"no GPU with pycuda: {error}")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("kernels")
    source = folder / "kernels.cu"
    source.write_text(KERNELS)
    subprocess.run([nvcc, "--ptx", "-o", str(folder / "k.ptx"), str(source)], check=True)
    return (folder / "k.ptx").read_bytes()


class Doubler:
    """An engine of kernels: takes ``busy_ns``, then doubles its input."""

    def __init__(self, kernels: bytes, slots: int, mapped: bool, busy_ns: int = 0) -> None:
        self.busy_ns = busy_ns
        self.broken = False
        self.thread = CudaThread("gpu test")
        self.slots: list[Slot] = []
        self.thread.run(lambda: self._load(kernels, slots, mapped))
        self.runner = SlotRunner("kernel on gpu", self.thread, self.slots, self._enqueue)

    def _load(self, kernels: bytes, slots: int, mapped: bool) -> None:
        import pycuda.driver as cuda

        self.module = cuda.module_from_buffer(kernels)
        self.functions = {
            name: self.module.get_function(name) for name in ("doubled", "busy", "broken")
        }
        self.slots += [Slot([SPEC], [SPEC], mapped) for _ in range(slots)]

    def _enqueue(self, index: int, stream: Any) -> None:
        slot = self.slots[index]
        if self.busy_ns:
            self.functions["busy"](
                np.int64(self.busy_ns), block=(1, 1, 1), grid=(1, 1), stream=stream
            )
        if self.broken:
            self.functions["broken"](
                np.uintp(slot.outputs[0].address), block=(1, 1, 1), grid=(1, 1), stream=stream
            )
        self.functions["doubled"](
            np.uintp(slot.inputs[0].address), np.uintp(slot.outputs[0].address), np.int32(SIZE),
            block=(256, 1, 1), grid=((SIZE + 255) // 256, 1), stream=stream,
        )  # fmt: skip

    def run(self, slot: int, value: float) -> np.ndarray:
        self.slots[slot].inputs[0].array[:] = value
        self.runner.submit(slot)
        self.runner.wait(slot, 20)
        return self.slots[slot].outputs[0].array

    def close(self) -> None:
        release(self.runner, self.thread, self._free, "kernel")

    def _free(self) -> None:
        for slot in self.slots:
            slot.free()
        self.functions = {}
        self.module = None


@pytest.fixture(params=[False, True], ids=["pinned", "mapped"])
def mapped(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def doubler(kernels: bytes, mapped: bool) -> Iterator[Doubler]:
    made = Doubler(kernels, 2, mapped)
    yield made
    made.close()


def test_slots_compute_in_turn(doubler: Doubler) -> None:
    for step in range(50):
        assert (doubler.run(step % 2, step) == 2 * step).all()


def test_slots_finish_in_the_order_of_submission(doubler: Doubler) -> None:
    doubler.busy_ns = 20_000_000
    finished: list[int] = []

    def wait(slot: int) -> None:
        doubler.runner.wait(slot, 20)
        finished.append(slot)

    for value, slot in ((3.0, 1), (4.0, 0)):
        doubler.slots[slot].inputs[0].array[:] = value
        doubler.runner.submit(slot)
    threads = [threading.Thread(target=wait, args=(slot,)) for slot in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert finished == [1, 0]
    assert (doubler.slots[1].outputs[0].array == 6).all()
    assert (doubler.slots[0].outputs[0].array == 8).all()


def test_time_out_and_waiting_again(doubler: Doubler) -> None:
    doubler.busy_ns = 300_000_000
    doubler.slots[0].inputs[0].array[:] = 5
    doubler.runner.submit(0)
    with pytest.raises(InferenceTimeoutError, match=r"kernel on gpu: no result after 0\.020 s"):
        doubler.runner.wait(0, 0.02)
    doubler.runner.wait(0, 20)
    assert (doubler.slots[0].outputs[0].array == 10).all()


def test_buffers_are_zero_and_of_the_layout(kernels: bytes, mapped: bool) -> None:
    thread = CudaThread("layout")
    spec = TensorSpec("t", (1, 255, 5, 7), np.dtype(np.float16), Layout.CHW16)
    slot = thread.run(lambda: Slot([spec], [spec], mapped))
    buffer = slot.inputs[0]
    assert buffer.nbytes == buffer_bytes(spec)
    assert not buffer.array.any()
    values = np.arange(255 * 35, dtype=np.float16).reshape(spec.shape)
    pack(values, spec, buffer.array)
    assert np.array_equal(unpack(buffer.array, spec), values)
    assert buffer.address % 32 == 0
    thread.run(slot.free)
    assert thread.close(10)


def test_nothing_is_left_after_many_engines(kernels: bytes, mapped: bool) -> None:
    import pycuda.driver as cuda

    def free_bytes() -> int:
        thread = CudaThread("look")
        found = thread.run(lambda: cuda.mem_get_info()[0])
        thread.close()
        return int(found)

    keeper = CudaThread("keeper")  # the primary context stays, as with another user of CUDA
    for _ in range(3):
        Doubler(kernels, 2, mapped).close()
    before = free_bytes()
    threads = threading.active_count()
    for _ in range(20):
        made = Doubler(kernels, 2, mapped)
        made.run(0, 1)
        made.close()
    assert free_bytes() == before
    assert threading.active_count() == threads
    keeper.close()


def test_beside_pytorch(kernels: bytes, mapped: bool) -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(1000, device="cuda")
    made = Doubler(kernels, 2, mapped)
    assert (made.run(0, 7) == 14).all()
    assert float((ones * 3).sum()) == 3000
    made.close()
    assert float((ones * 4).sum()) == 4000


FAILURE = """
import sys
sys.path[:0] = {path!r}
from test_cuda_memory_on_gpu import Doubler, EngineError
doubler = Doubler(open({ptx!r}, "rb").read(), 1, {mapped})
doubler.broken = True
doubler.runner.submit(0)
try:
    doubler.runner.wait(0, 20)
except EngineError as error:
    print(error)
sys.stdout.flush()
"""


def test_a_failing_kernel_is_told(kernels: bytes, mapped: bool, tmp_path: Path) -> None:
    # in a process of its own: CUDA's context is of no use afterwards
    (tmp_path / "k.ptx").write_bytes(kernels)
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    script = FAILURE.format(path=path, ptx=str(tmp_path / "k.ptx"), mapped=mapped)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert "kernel on gpu: inference failed" in done.stdout, done.stderr
    assert "\n" not in done.stdout.strip()


def test_out_of_memory_is_told(kernels: bytes) -> None:
    thread = CudaThread("memory")
    huge = TensorSpec("huge", (1, 1 << 40), np.dtype(np.float32))
    with pytest.raises(EngineError, match="cannot get 4398046511104 bytes of pinned memory"):
        thread.run(lambda: Slot([huge], [], False))
    thread.close()
