"""ONNX Runtime on the CPU: the engine of every machine without a DLA."""

from __future__ import annotations

import hashlib
import queue
import threading
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from dla_perception.engines.engine import (
    EngineError,
    EngineInfo,
    InferenceTimeoutError,
    TensorSpec,
)
from dla_perception.errors import MissingPackageError

_DTYPES: dict[str, np.dtype] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
}


class OnnxRuntimeEngine:
    """An ONNX network on the CPU; see :class:`~dla_perception.engines.engine.Engine`.

    Inferences run one after the other in a thread of the engine, which holds no Python lock
    while it computes.
    """

    def __init__(self, path: str | Path, slots: int = 2, threads: int = 0) -> None:
        """Load ``path``.

        Args:
            path: an ONNX file with static shapes.
            slots: how many inferences may be prepared at a time.
            threads: of ONNX Runtime for one inference; 0 lets it choose.

        Raises:
            EngineError: no ONNX network that runs here, or its shapes are dynamic.
            MissingPackageError: ONNX Runtime is not installed.
        """
        self._closed = False
        self._worker: threading.Thread | None = None
        try:
            import onnxruntime
        except ImportError:
            raise MissingPackageError(
                "onnxruntime", "running an ONNX model", "pip install onnxruntime"
            ) from None
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise EngineError(f"{path}: cannot read it: {error.strerror}") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # an idle thread that spins takes the cores from the nodes beside this one
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            # by path, not from memory: weights may lie in files beside the model
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime raises a class of its own per status code
            raise EngineError(f"{path}: not a usable ONNX network: {_one_line(error)}") from None
        self._inputs = [_spec(path, "input", node) for node in self._session.get_inputs()]
        self._outputs = [_spec(path, "output", node) for node in self._session.get_outputs()]
        metadata = self._session.get_modelmeta().custom_metadata_map
        self._info = EngineInfo(
            path=str(path),
            runtime="onnxruntime",
            runtime_version=onnxruntime.__version__,
            device="cpu",
            file_hash=hashlib.sha256(content).hexdigest(),
            metadata=dict(metadata),
        )
        self._buffers = [
            (
                [np.zeros(spec.shape, spec.dtype) for spec in self._inputs],
                [np.zeros(spec.shape, spec.dtype) for spec in self._outputs],
            )
            for _ in range(slots)
        ]
        self._run_options = onnxruntime.RunOptions()
        self._bindings = [self._bind(*buffers) for buffers in self._buffers]
        self._done = [threading.Event() for _ in range(slots)]
        self._errors: list[Exception | None] = [None] * slots
        self._work: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._run, name="onnxruntime", daemon=True)
        self._worker.start()

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
        return len(self._buffers)

    def input_buffers(self, slot: int) -> Sequence[np.ndarray]:
        return self._buffers[slot][0]

    def output_buffers(self, slot: int) -> Sequence[np.ndarray]:
        return self._buffers[slot][1]

    def submit(self, slot: int) -> None:
        if self._closed:
            raise EngineError(f"{self._info.path}: the engine is closed")
        self._done[slot].clear()
        self._work.put(slot)

    def wait(self, slot: int, timeout_s: float | None = None) -> None:
        if not self._done[slot].wait(timeout_s):
            raise InferenceTimeoutError(
                f"{self._info.path}: no result after {timeout_s:.3f} s on {self._info.device}"
            )
        error, self._errors[slot] = self._errors[slot], None
        if error is not None:
            raise EngineError(f"{self._info.path}: inference failed: {_one_line(error)}") from error

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._worker is not None:
            self._run_options.terminate = True  # also ends an inference under way
            self._work.put(None)
            self._worker.join()

    def _bind(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> Any:
        binding = self._session.io_binding()
        for spec, array in zip(self._inputs, inputs):
            binding.bind_input(spec.name, "cpu", 0, spec.dtype, spec.shape, array.ctypes.data)
        for spec, array in zip(self._outputs, outputs):
            binding.bind_output(spec.name, "cpu", 0, spec.dtype, spec.shape, array.ctypes.data)
        return binding

    def _run(self) -> None:
        while True:
            slot = self._work.get()
            if slot is None:
                return
            try:
                self._session.run_with_iobinding(self._bindings[slot], self._run_options)
            except Exception as error:  # handed to whoever waits for this slot
                self._errors[slot] = error
            self._done[slot].set()


def _spec(path: str | Path, kind: str, node: Any) -> TensorSpec:
    if not all(isinstance(size, int) for size in node.shape):
        raise EngineError(
            f"{path}: {kind} '{node.name}' has dynamic sizes {node.shape}; a DLA needs static "
            "ones: export the network again with a fixed batch of 1 and a fixed image size"
        )
    if node.type not in _DTYPES:
        raise EngineError(
            f"{path}: {kind} '{node.name}' is of type {node.type}; expected one of "
            f"{', '.join(_DTYPES)}"
        )
    return TensorSpec(node.name, tuple(node.shape), _DTYPES[node.type])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
