"""Small ONNX networks for tests, written node by node."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from dla_perception.compiler.graph import Graph


class Network:
    """A network that grows node by node; every method returns the name of what it made."""

    def __init__(
        self,
        shape: Sequence[int | str] = (1, 3, 16, 16),
        opset: int = 13,
        elem_type: int = TensorProto.FLOAT,
        seed: int = 0,
    ) -> None:
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self.inputs = [helper.make_tensor_value_info("x", elem_type, shape)]
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def input(
        self, name: str, shape: Sequence[int | str], elem_type: int = TensorProto.FLOAT
    ) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def constant(self, value: Any, dtype: Any = np.float32, name: str = "") -> str:
        name = name or f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(
        self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> Any:
        index = len(self.nodes)
        names = [f"t{index}"] if outputs == 1 else [f"t{index}_{i}" for i in range(outputs)]
        node = helper.make_node(
            op, inputs, names, name=f"{op}_{index}", domain=domain, **attributes
        )
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def conv(
        self,
        x: str,
        channels: int,
        out: int,
        kernel: int | tuple[int, int] = 3,
        groups: int = 1,
        bias: bool = True,
        **attributes: Any,
    ) -> str:
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        weights = self.random.normal(0, 0.3, (out, channels // groups, *size))
        inputs = [x, self.constant(weights)]
        if bias:
            inputs.append(self.constant(self.random.normal(0, 0.3, out)))
        return str(self.add("Conv", *inputs, group=groups, **attributes))

    def model(self, *outputs: str, **arguments: Any) -> onnx.ModelProto:
        names = outputs or (self.nodes[-1].output[0],)
        graph = helper.make_graph(
            self.nodes,
            "test",
            self.inputs,
            [helper.make_empty_tensor_value_info(name) for name in names],
            initializer=self.initializers,
        )
        arguments.setdefault("opset_imports", [helper.make_opsetid("", self.opset)])
        return helper.make_model(graph, ir_version=8, **arguments)

    def graph(self, *outputs: str) -> Graph:
        """What it computes, as the compiler sees it."""
        graph = Graph(self.model(*outputs), "test.onnx")
        graph.refresh()
        return graph

    def save(self, path: Any, *outputs: str) -> str:
        onnx.save(self.model(*outputs), str(path))
        return str(path)


def run(model: onnx.ModelProto | Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    """What a network returns for these inputs, without ONNX Runtime's own rewrites."""
    if isinstance(model, Graph):
        model = model.to_model()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {spec.name: x for spec, x in zip(session.get_inputs(), inputs)})
