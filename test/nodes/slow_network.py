"""A real network that takes its time."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_slow_network(path: Path, products: int = 4, size: int = 2000) -> Path:
    """A YOLOX-shaped network for 32 x 32 pixels and two classes that finds nothing, slowly.

    Before it answers it multiplies a ``size`` x ``size`` matrix ``products`` times by itself:
    about 2 * size**3 operations each, 16 billion for 2000.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    matrix = np.full((size, size), 1 / size, np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "matrix"], ["m0"]),
    ]
    for index in range(products):
        nodes.append(helper.make_node("MatMul", [f"m{index}", "matrix"], [f"m{index + 1}"]))
    nodes += [
        helper.make_node("ReduceMean", [f"m{products}"], ["last"], keepdims=0),
        helper.make_node("Mul", ["last", "zeros"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "slow",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 21, 7])],
        [
            numpy_helper.from_array(matrix, "matrix"),
            numpy_helper.from_array(np.zeros((1, 21, 7), np.float32), "zeros"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path
