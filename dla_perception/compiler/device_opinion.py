"""What the TensorRT of this machine says about a network's layers: the last word on placement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Mapping

from dla_perception.compiler.dla_support import Certainty, Finding, Target
from dla_perception.engines.engine import EngineError
from dla_perception.engines.tensorrt_engine import import_tensorrt
from dla_perception.errors import DlaPerceptionError, MissingPackageError

if TYPE_CHECKING:
    from dla_perception.compiler.graph import Graph

_COMPATIBLE = Path("/proc/device-tree/compatible")
_MODULES = {"tegra194": "xavier", "tegra234": "orin"}
"""Names of the systems on chip in the device tree (NVIDIA Jetson Linux, kernel device trees)."""


class OpinionError(DlaPerceptionError):
    """TensorRT is here and cannot read the network."""


@dataclass(frozen=True)
class Opinion:
    """What ``can_run_on_DLA`` answered.

    Attributes:
        version: of TensorRT.
        on_dla: by node name; a node that became several layers is on the DLA if all of them are.
        unmatched: TensorRT layers that belong to no node of the file.
    """

    version: str
    on_dla: Mapping[str, bool]
    unmatched: tuple[str, ...]

    def overrule(self) -> dict[str, tuple[bool, Finding]]:
        """The answers in the form that :func:`~dla_perception.compiler.placement.place` takes."""
        source = f"can_run_on_DLA of TensorRT {self.version} on this machine"
        return {
            name: (
                answer,
                Finding(
                    f"TensorRT {self.version} on this machine "
                    + (
                        "takes it, against the rules" if answer else "refuses it, against the rules"
                    ),
                    "" if answer else "the device has the last word: change or cut this layer",
                    source,
                    Certainty.REPORTED,
                ),
            )
            for name, answer in self.on_dla.items()
        }


def tensorrt_with_dla(target: Target, compatible: Path = _COMPATIBLE) -> tuple[Any, str]:
    """The ``tensorrt`` module if it can be asked about ``target`` here.

    Args:
        target: what the network shall run on.
        compatible: the device tree's list of what the board is compatible with.

    Returns:
        The module, or ``None`` and why not.
    """
    try:
        module = import_tensorrt()
    except MissingPackageError:
        return None, "there is no TensorRT on this machine"
    except EngineError as error:
        return None, str(error)
    return usable_module(module, target, compatible)


def usable_module(
    module: ModuleType, target: Target, compatible: Path = _COMPATIBLE
) -> tuple[Any, str]:
    """As :func:`tensorrt_with_dla`, for a module that is already imported."""
    version = str(module.__version__)
    if ".".join(version.split(".")[:2]) != target.tensorrt:
        return None, f"this machine has TensorRT {version}, not {target.tensorrt}"
    try:
        board = compatible.read_bytes().decode("ascii", "replace")
    except OSError:
        return None, "this machine is no Jetson"
    here = next((name for chip, name in _MODULES.items() if chip in board), None)
    if here != target.module:
        return None, f"this board is {'no Jetson with a DLA' if here is None else 'a ' + here}"
    if module.Builder(module.Logger(module.Logger.ERROR)).num_DLA_cores == 0:
        return None, "TensorRT sees no DLA core on this machine"
    return module, ""


def ask_tensorrt(module: Any, graph: Graph, precision: str) -> Opinion:
    """Ask ``can_run_on_DLA`` for every layer.

    Args:
        module: ``tensorrt``, of a machine with a DLA.
        graph: the network, refreshed.
        precision: ``fp16`` or ``int8``.

    Raises:
        OpinionError: the parser refuses the network; the message is its first complaint.
    """
    logger = module.Logger(module.Logger.ERROR)
    builder = module.Builder(logger)
    flags = 0
    # needed before TensorRT 10, without effect in it, gone in 11
    explicit = getattr(module.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    if explicit is not None:
        flags |= 1 << int(explicit)
    network = builder.create_network(flags)
    parser = module.OnnxParser(network, logger)
    if not parser.parse(graph.to_model().SerializeToString()):
        complaint = parser.get_error(0).desc() if parser.num_errors else "no reason given"
        raise OpinionError(
            f"{graph.where}: TensorRT {module.__version__} cannot read it: "
            f"{' '.join(str(complaint).split())}"
        )
    config = builder.create_builder_config()
    config.set_flag(module.BuilderFlag.FP16)
    config.set_flag(module.BuilderFlag.GPU_FALLBACK)
    config.default_device_type = module.DeviceType.DLA
    config.DLA_core = 0
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    if precision == "int8":
        config.set_flag(module.BuilderFlag.INT8)
        tensors = [network.get_input(index) for index in range(network.num_inputs)]
        for layer in layers:
            tensors += [layer.get_output(index) for index in range(layer.num_outputs)]
        for tensor in tensors:
            # a tensor without a range would be judged as FP16; which range does not matter
            tensor.set_dynamic_range(-127.0, 127.0)
    answers: dict[str, bool] = {}
    unmatched = []
    nodes = {node.name for node in graph.nodes}
    for layer in layers:
        if layer.type == module.LayerType.CONSTANT:
            continue
        name = _node_of(layer.name, nodes)
        if name is None:
            unmatched.append(layer.name)
            continue
        answers[name] = bool(config.can_run_on_DLA(layer)) and answers.get(name, True)
    return Opinion(str(module.__version__), answers, tuple(unmatched))


def _node_of(layer: str, nodes: set[str]) -> str | None:
    """The node a layer comes from: the parser numbers further layers of a node ``name_2``."""
    if layer in nodes:
        return layer
    stem = re.sub(r"_\d+$", "", layer)
    return stem if stem in nodes else None
