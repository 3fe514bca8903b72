"""Copies and queueing on a GPU: what pinned memory and a second slot are worth.

Prints, for buffers as a 672x672 INT8 HWC4 input needs them:
- a copy to the device from pinned and from pageable memory, median of 200;
- the time from submit to the end of wait of an engine that does nothing, median of 500;
- how busy an engine of 2.44 ms and of 1.22 ms is kept with one slot and with two.

A kernel that waits stands for the engine; 2.44 ms is what one Orin DLA needs for YOLOv5s. Needs a
GPU, pycuda and nvcc:  python benchmarks/cuda_memory.py
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "test" / "engines")]

from test_cuda_memory_on_gpu import KERNELS, Doubler  # noqa: E402

from dla_perception.engines.cuda_memory import CudaThread, Slot  # noqa: E402
from dla_perception.engines.engine import TensorSpec  # noqa: E402

IMAGE = TensorSpec("images", (1, 1, 672, 672 * 4), np.dtype(np.int8))


def copies() -> dict[str, float]:
    """Median times in microseconds of copies of an image to the device."""
    import pycuda.driver as cuda

    thread = CudaThread("copies")

    def measure() -> dict[str, float]:
        slot = Slot([IMAGE], [], False)
        buffer = slot.inputs[0]
        pageable = np.zeros_like(buffer.array)
        found = {}
        for name, source in (("pinned", buffer.array), ("pageable", pageable)):
            times = []
            for _ in range(220):
                start = time.perf_counter_ns()
                cuda.memcpy_htod_async(buffer._device, source, slot.stream)
                slot.stream.synchronize()
                times.append((time.perf_counter_ns() - start) / 1e3)
            found[f"{name}_us"] = round(statistics.median(times[20:]), 1)
        slot.free()
        return found

    found = thread.run(measure)
    thread.close()
    return {"bytes": int(np.prod(IMAGE.shape)), **found}


def overhead(kernels: bytes, mapped: bool) -> float:
    """Median time in microseconds from submit to the end of wait with nothing to do."""
    doubler = Doubler(kernels, 2, mapped)
    times = []
    for _ in range(520):
        start = time.perf_counter_ns()
        doubler.runner.submit(0)
        doubler.runner.wait(0, 20)
        times.append((time.perf_counter_ns() - start) / 1e3)
    doubler.close()
    return round(statistics.median(times[20:]), 1)


def busy(kernels: bytes, slots: int, inference_ms: float) -> float:
    """Share of the time in which the engine works, when it always has a next image."""
    doubler = Doubler(kernels, slots, False, int(inference_ms * 1e6))
    for slot in range(slots):
        doubler.runner.submit(slot)
    frames = 400
    start = time.perf_counter()
    for frame in range(frames):
        doubler.runner.wait(frame % slots, 20)
        doubler.runner.submit(frame % slots)
    elapsed = time.perf_counter() - start
    for slot in range(slots):
        doubler.runner.wait(slot, 20)
    doubler.close()
    return round(frames * inference_ms / 1e3 / elapsed, 4)


def main() -> None:
    """Measure and print one JSON document."""
    import shutil
    import subprocess

    try:
        import pycuda.driver as cuda

        cuda.init()
    except Exception as error:  # no pycuda, no driver, no GPU: pycuda has an error for each
        print(f"not measured: it needs an NVIDIA GPU with pycuda ({' '.join(str(error).split())})")
        return
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    with tempfile.TemporaryDirectory() as folder:
        source, ptx = Path(folder) / "k.cu", Path(folder) / "k.ptx"
        source.write_text(KERNELS)
        subprocess.run([nvcc, "--ptx", "-o", str(ptx), str(source)], check=True)
        kernels = ptx.read_bytes()
    result: dict[str, Any] = {
        "gpu": cuda.Device(0).name(),
        "copy": copies(),
        "submit_to_result_us": {
            "pinned": overhead(kernels, False),
            "mapped": overhead(kernels, True),
        },
        "busy": {
            f"{inference_ms} ms": {f"{slots} slots": busy(kernels, slots, inference_ms)
                                   for slots in (1, 2)}
            for inference_ms in (2.44, 1.22)
        },
    }  # fmt: skip
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
