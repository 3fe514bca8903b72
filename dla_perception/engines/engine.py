"""What the rest of the package knows of a compiled network, whichever runtime runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Protocol, Sequence

import numpy as np

from dla_perception.engines.layouts import Layout
from dla_perception.errors import DlaPerceptionError

MAX_LAYERS_SHOWN = 10


class EngineError(DlaPerceptionError):
    """An engine cannot be loaded or run."""

    reason = "inference"
    """Under which a frame is counted as dropped."""


class InferenceTimeoutError(EngineError):
    """A submitted inference did not finish within the time allowed."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output tensor of an engine.

    Attributes:
        name: the tensor's name in the network.
        shape: logical shape, batch first, as in the network: ``(1, 3, 416, 416)``.
        dtype: ``float32``, ``float16`` or ``int8`` for everything a detector uses.
        layout: how the elements lie in the buffer.
        scale: for ``int8``: real value = ``scale`` x stored value; ``None`` for floats.
        row_alignment: bytes to which a row of ``HWC4`` is padded: 32 on Xavier, 64 on Orin.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    layout: Layout = Layout.LINEAR
    scale: float | None = None
    row_alignment: int = 64

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {self.dtype.name} {self.layout.value}"


@dataclass(frozen=True)
class EngineInfo:
    """What runs a network and where.

    Attributes:
        path: the engine's file.
        runtime: ``onnxruntime``, ``tensorrt`` or ``cudla``.
        runtime_version: as the runtime reports it.
        device: ``dla0``, ``dla1``, ``gpu`` or ``cpu``.
        file_hash: SHA-256 of the file, in hexadecimal.
        dla_layers, gpu_layers: names of the layers that run on each; ``None`` where unknown.
        metadata: key-value pairs stored in the file by its exporter.
    """

    path: str
    runtime: str
    runtime_version: str
    device: str
    file_hash: str
    dla_layers: tuple[str, ...] | None = None
    gpu_layers: tuple[str, ...] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def layers_elsewhere(self) -> str:
        """What does not run on a DLA although it should, in words; empty where all does."""
        if not self.device.startswith("dla"):
            return f"a DLA core was asked for, but the network runs on {self.device}"
        if self.gpu_layers is None:
            return "it is not known which layers run on the GPU: build the engine with its record"
        if not self.gpu_layers:
            return ""
        shown = ", ".join(self.gpu_layers[:MAX_LAYERS_SHOWN])
        more = len(self.gpu_layers) - MAX_LAYERS_SHOWN
        return f"{len(self.gpu_layers)} layers run on the GPU: {shown}" + (
            f" and {more} more" if more > 0 else ""
        )


class Engine(Protocol):
    """A loaded network with buffers of its own.

    An engine has two or more slots, each with one buffer per tensor. The caller writes the input
    buffers of a slot, calls :meth:`submit`, then :meth:`wait`, and reads its output buffers; a
    slot's buffers belong to the engine from ``submit`` until ``wait`` has returned. Slots finish
    in the order in which they were submitted. ``submit`` and ``wait`` may be called from
    different threads, but each by one thread at a time.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...

    @property
    def slots(self) -> int: ...

    def input_buffers(self, slot: int) -> Sequence[np.ndarray]:
        """Writable arrays, one per input, in the tensor's own layout; always the same objects."""

    def output_buffers(self, slot: int) -> Sequence[np.ndarray]:
        """Arrays, one per output, in the tensor's own layout; always the same objects."""

    def submit(self, slot: int) -> None:
        """Start the inference of ``slot`` and return at once.

        Raises:
            EngineError: the engine is closed or the runtime refuses the work.
        """

    def wait(self, slot: int, timeout_s: float | None = None) -> None:
        """Return when the inference of ``slot`` has finished.

        Raises:
            InferenceTimeoutError: it has not after ``timeout_s`` seconds. The slot stays with the
                engine: ``wait`` may be called again.
            EngineError: the inference failed; the slot is free again.
        """

    def close(self) -> None:
        """Free everything; may be called more than once.

        The buffers are not to be used afterwards: pinned memory is gone.
        """
