"""Small networks for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dla_perception.compiler.graph import Graph, open_session


def model_of(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    shape: Sequence[int],
    outputs: dict[str, Sequence[int] | None],
    opset: int = 13,
) -> onnx.ModelProto:
    """A network with the input ``x`` and float outputs."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def graph_of(model: onnx.ModelProto) -> Graph:
    graph = Graph(model, "test.onnx")
    graph.refresh()
    return graph


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """A node that is named after its output; inputs separated by spaces."""
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


def run(model: onnx.ModelProto, x: np.ndarray, name: str = "x") -> list[np.ndarray]:
    return list(open_session(model, optimise=True).run(None, {name: x}))


def write_detector(path: Path, seed: int = 0) -> None:
    """A YOLOX-like network of 64 x 64 pixels and two classes, untrained, with its description."""
    generator = np.random.default_rng(seed)
    constants, nodes = {}, []

    def convolution(source: str, name: str, channels: tuple[int, int], size: int) -> str:
        weights = generator.normal(
            0, 1 / np.sqrt(channels[0] * size * size), (*channels[::-1], size, size)
        )
        constants[f"{name}_w"] = weights.astype(np.float32)
        constants[f"{name}_b"] = generator.normal(0, 0.1, channels[1]).astype(np.float32)
        nodes.append(
            node("Conv", f"{source} {name}_w {name}_b", name, kernel_shape=[size] * 2,
                 strides=[size] * 2)
        )  # fmt: skip
        return name

    outputs: dict[str, Sequence[int] | None] = {}
    source, channels = "x", 3
    for level, (size, cells) in enumerate([(8, 8), (2, 4), (2, 2)]):
        stem = convolution(source, f"stem{level}", (channels, 8), size)
        nodes.append(node("Sigmoid", stem, f"gate{level}"))
        nodes.append(node("Mul", f"{stem} gate{level}", f"silu{level}"))
        source, channels = f"silu{level}", 8
        outputs[convolution(source, f"head{level}", (8, 7), 1)] = [1, 7, cells, cells]
    path.write_bytes(model_of(nodes, constants, [1, 3, 64, 64], outputs).SerializeToString())
    path.with_suffix(".yaml").write_text("family: yolox\nclass_names: [cat, dog]\nscale: 0.004\n")
