"""Fixtures and small networks for tests over the stand-ins; import them where they are used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
from cuda_stand_in import Machine, make_pycuda
from tensorrt_stand_in import Board, loadable_bytes, make_tensorrt, plan_bytes

VERSIONS = ("8.5.2", "10.3.0", "11.4.1")

SHAPE_IN, SHAPE_OUT = (1, 3, 8, 10), (1, 20, 8, 10)


class Install:
    """Puts stand-ins into ``sys.modules``; the last board installed is the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.boards: list[Board] = []

    def __call__(self, version: str = "10.3.0", **options: Any) -> Board:
        machine_options = {
            key: options.pop(key)
            for key in ("name", "compute_capability", "integrated", "device_count")
            if key in options
        }
        board = Board(Machine(**machine_options), **options)
        for name, module in make_pycuda(board.machine).items():
            self._monkeypatch.setitem(sys.modules, name, module)
        self._monkeypatch.setitem(sys.modules, "tensorrt", make_tensorrt(version, board))
        self.boards.append(board)
        return board


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes machines of stand-ins; at the end nothing may be left of what was made on them."""
    installed = Install(monkeypatch)
    yield installed
    for board in installed.boards:
        board.machine.hang.set()
        board.machine.assert_clean()


def convolution_network(fp16: bool = False) -> bytes:
    """ONNX: a convolution and a rectifier, ``x`` of SHAPE_IN to ``y`` of SHAPE_OUT."""
    from onnx import TensorProto, helper, numpy_helper

    kind = TensorProto.FLOAT16 if fp16 else TensorProto.FLOAT
    dtype = np.float16 if fp16 else np.float32
    values = np.random.default_rng(1).uniform(-1, 1, (20, 3, 3, 3)).astype(dtype)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"], name="relu"),
        ],
        "convolution",
        [helper.make_tensor_value_info("x", kind, SHAPE_IN)],
        [helper.make_tensor_value_info("y", kind, SHAPE_OUT)],
        [numpy_helper.from_array(values, "w")],
    )
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def tensor(name: str, shape: Any, mode: str, dtype: str, layout: str, scale: Any = None) -> Any:
    """One tensor of a plan's document."""
    return {
        "name": name, "shape": list(shape), "mode": mode,
        "dtype": dtype, "format": layout, "scale": scale,
    }  # fmt: skip


def plan_document(
    dtype: str = "HALF",
    layout_in: str = "DLA_HWC4",
    layout_out: str = "CHW16",
    layers: Any = (("{ForeignNode[conv...relu]}", "dla"),),
    verbosity: str = "DETAILED",
    compute_capability: str = "8.7",
    scales: tuple[float | None, float | None] = (None, None),
) -> dict[str, Any]:
    """The document of a plan for :func:`convolution_network`."""
    return {
        "compute_capability": compute_capability,
        "layers": [{"name": name, "device": device} for name, device in layers],
        "verbosity": verbosity,
        "tensors": [
            tensor("x", SHAPE_IN, "INPUT", dtype, layout_in, scales[0]),
            tensor("y", SHAPE_OUT, "OUTPUT", dtype, layout_out, scales[1]),
        ],
    }


def write_plan(folder: Path, version: str = "10.3.0", **options: Any) -> Path:
    """A plan of :func:`convolution_network`."""
    path = folder / "net.engine"
    path.write_bytes(plan_bytes(version, plan_document(**options), convolution_network()))
    return path


def write_loadable(folder: Path, **options: Any) -> Path:
    """A DLA loadable of :func:`convolution_network`."""
    path = folder / "net.dla"
    path.write_bytes(loadable_bytes(plan_document(**options), convolution_network()))
    return path


def expected_output(values: np.ndarray) -> np.ndarray:
    """What :func:`convolution_network` gives for ``x``, by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        convolution_network(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(["y"], {"x": values.astype(np.float32)})[0])
