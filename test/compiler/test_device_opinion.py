"""Asking TensorRT's can_run_on_DLA, with a stand-in that refuses what TensorRT does not have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import onnx
import pytest
from onnx_networks import Network

from dla_perception.compiler.device_opinion import (
    Opinion,
    OpinionError,
    ask_tensorrt,
    tensorrt_with_dla,
    usable_module,
)
from dla_perception.compiler.dla_support import Target
from dla_perception.compiler.placement import place

CAN_RUN = {"Relu", "Conv", "Elu"}


class Strict:
    """Like pybind classes: attributes that do not exist cannot be set."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in type(self).SETTABLE and not name.startswith("_"):  # type: ignore[attr-defined]
            raise AttributeError(name)
        object.__setattr__(self, name, value)


class StandIn:
    """As much of TensorRT as is asked, with the spelling of its Python bindings."""

    def __init__(
        self, version: str = "10.3.0", cores: int = 2, explicit_batch: bool = True
    ) -> None:
        self.__version__ = version
        outer = self
        self.config: Any = None
        self.network_flags: int | None = None
        self.ranges: dict[str, tuple[float, float]] = {}

        class Logger:
            ERROR = 1

            def __init__(self, severity: int) -> None:
                assert severity == Logger.ERROR

        class Tensor:
            def __init__(self, name: str) -> None:
                self.name = name

            def set_dynamic_range(self, low: float, high: float) -> None:
                outer.ranges[self.name] = (low, high)

        class Layer:
            def __init__(self, name: str, kind: str, outputs: list[str]) -> None:
                self.name, self.type = name, kind
                self._outputs = [Tensor(output) for output in outputs]
                self.num_outputs = len(outputs)

            def get_output(self, index: int) -> Tensor:
                return self._outputs[index]

        class TheNetwork:
            layers: list[Layer] = []
            inputs: list[Tensor] = []

            @property
            def num_layers(self) -> int:
                return len(self.layers)

            @property
            def num_inputs(self) -> int:
                return len(self.inputs)

            def get_layer(self, index: int) -> Layer:
                return self.layers[index]

            def get_input(self, index: int) -> Tensor:
                return self.inputs[index]

        class OnnxParser:
            num_errors = 1

            def __init__(self, network: TheNetwork, logger: Logger) -> None:
                self._network = network

            def parse(self, content: bytes) -> bool:
                model = onnx.load_model_from_string(content)
                self._network.inputs = [Tensor(value.name) for value in model.graph.input]
                layers = []
                for node in model.graph.node:
                    if node.op_type == "Selu":
                        return False
                    layers.append(Layer(node.name, node.op_type, list(node.output)))
                    if node.op_type == "Conv":
                        layers.append(Layer(f"{node.name}_7", "CONSTANT", []))
                    if node.op_type == "Tanh":  # as if the parser made two layers of it
                        layers.append(Layer(f"{node.name}_2", "Relu", []))
                        layers.append(Layer("(Unnamed Layer* 3)", "SHUFFLE", []))
                self._network.layers = layers
                return True

            def get_error(self, index: int) -> Any:
                return SimpleNamespace(desc=lambda: "no importer for\nSelu")

        class Config(Strict):
            SETTABLE = ("default_device_type", "DLA_core")

            def __init__(self) -> None:
                self._flags: set[str] = set()

            def set_flag(self, flag: str) -> None:
                self._flags.add(flag)

            def can_run_on_DLA(self, layer: Layer) -> bool:
                assert self.default_device_type == "DLA"
                assert self.DLA_core == 0
                return layer.type in CAN_RUN

        class Builder:
            def __init__(self, logger: Logger) -> None:
                self.num_DLA_cores = cores

            def create_network(self, flags: int) -> TheNetwork:
                outer.network_flags = flags
                return TheNetwork()

            def create_builder_config(self) -> Config:
                outer.config = Config()
                return outer.config

        self.Logger, self.Builder, self.OnnxParser = Logger, Builder, OnnxParser
        self.NetworkDefinitionCreationFlag = (
            SimpleNamespace(EXPLICIT_BATCH=0) if explicit_batch else SimpleNamespace()
        )
        self.BuilderFlag = SimpleNamespace(FP16="FP16", INT8="INT8", GPU_FALLBACK="GPU_FALLBACK")
        self.DeviceType = SimpleNamespace(DLA="DLA", GPU="GPU")
        self.LayerType = SimpleNamespace(CONSTANT="CONSTANT")


def network() -> Network:
    net = Network((1, 4, 8, 8))
    net.add("Sigmoid", net.add("Elu", net.add("Relu", net.conv("x", 4, 4))))
    return net


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_every_layer_is_asked(precision: str) -> None:
    trt = StandIn()
    opinion = ask_tensorrt(trt, network().graph(), precision)
    assert opinion == Opinion(
        "10.3.0", {"Conv_0": True, "Relu_1": True, "Elu_2": True, "Sigmoid_3": False}, ()
    )
    assert trt.config._flags == {"FP16", "GPU_FALLBACK"} | (
        {"INT8"} if precision == "int8" else set()
    )
    assert set(trt.ranges) == ({"x", "t0", "t1", "t2", "t3"} if precision == "int8" else set())
    assert all(low < 0 < high for low, high in trt.ranges.values())


@pytest.mark.parametrize(("explicit_batch", "flags"), [(True, 1), (False, 0)])
def test_explicit_batch_is_asked_for_where_it_exists(explicit_batch: bool, flags: int) -> None:
    trt = StandIn(explicit_batch=explicit_batch)
    ask_tensorrt(trt, network().graph(), "fp16")
    assert trt.network_flags == flags


def test_a_node_of_several_layers_needs_all_of_them() -> None:
    net = Network((1, 4, 8, 8))
    net.add("Tanh", "x")
    opinion = ask_tensorrt(StandIn(), net.graph(), "fp16")
    assert opinion.on_dla == {"Tanh_0": False}
    assert opinion.unmatched == ("(Unnamed Layer* 3)",)


def test_what_the_parser_refuses() -> None:
    net = Network((1, 4, 8, 8))
    net.add("Selu", "x")
    with pytest.raises(OpinionError, match="TensorRT 10.3.0 cannot read it: no importer for Selu$"):
        ask_tensorrt(StandIn(), net.graph(), "fp16")


def test_its_answer_goes_before_the_rules() -> None:
    graph = network().graph()
    target = Target("orin", "10.3")
    ruled = place(graph, target)
    asked = place(graph, target, ask_tensorrt(StandIn(), graph, "fp16").overrule())
    assert [layer.device for layer in ruled.layers] == ["dla", "dla", "gpu", "dla"]
    assert [layer.device for layer in asked.layers] == ["dla", "dla", "dla", "gpu"]
    assert asked.layers[2].reason == "TensorRT 10.3.0 on this machine takes it, against the rules"
    assert asked.layers[3].reason == "TensorRT 10.3.0 on this machine refuses it, against the rules"


def board(chip: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "compatible"
        path.write_bytes(f"nvidia,p3701-0005\0nvidia,{chip}\0".encode())
        return path

    return write


@pytest.mark.parametrize(
    ("trt", "chip", "why_not"),
    [
        (StandIn(), "tegra234", ""),
        (StandIn("8.5.2.2"), "tegra234", "this machine has TensorRT 8.5.2.2, not 10.3"),
        (StandIn(), "tegra194", "this board is a xavier"),
        (StandIn(), "tegra264", "this board is no Jetson with a DLA"),
        (StandIn(cores=0), "tegra234", "TensorRT sees no DLA core on this machine"),
    ],
)
def test_who_can_be_asked(tmp_path: Path, trt: Any, chip: str, why_not: str) -> None:
    found, reason = usable_module(trt, Target("orin", "10.3"), board(chip)(tmp_path))
    assert reason == why_not
    assert (found is trt) == (why_not == "")


def test_a_machine_that_is_no_jetson(tmp_path: Path) -> None:
    found, reason = usable_module(StandIn(), Target("orin", "10.3"), tmp_path / "none")
    assert (found, reason) == (None, "this machine is no Jetson")


def test_a_machine_without_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tensorrt", None)
    found, reason = tensorrt_with_dla(Target("orin", "10.3"))
    assert (found, reason) == (None, "there is no TensorRT on this machine")
