r"""Train the demo's network on for INT8: quantisation-aware training from its float weights.

    pip install 'dla_perception[train,onnx]'
    python -m dla_perception.demo.qat -o demo_yolo_qat.onnx
    dla-perception translate-qat demo_yolo_qat.onnx -o out --infer-concat-scales \
        --addtl-ops-to-infer-adjacent-scales Resize

While it trains, the network rounds as a DLA will: what each convolution reads to a scale a tensor,
its weights to max|w|/127 a filter, all symmetric; gradients pass the rounding as if it were not
there. The scales of activations start from a calibration on training pictures and are trained too.
Tensors that must have one scale on a DLA share one from the start.

The result has QuantizeLinear and DequantizeLinear nodes at the convolutions' inputs and
DequantizeLinear nodes at their weights, as NVIDIA's recipe places them. The head's last
convolutions compute in FP16 unless ``--heads int8`` is given. What it reaches:
``python -m dla_perception.demo.precision_table``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from dla_perception.compiler.graph import Graph, load_graph
from dla_perception.compiler.quantization.calibration import METHODS, Statistics, scales_of
from dla_perception.compiler.quantization.layers import find_layers
from dla_perception.compiler.quantization.unification import groups_of, unify
from dla_perception.demo.dataset import Pictures, render_training
from dla_perception.demo.evaluate_model import MODEL, write_description
from dla_perception.errors import DlaPerceptionError, MissingPackageError

if TYPE_CHECKING:
    import onnx
    import torch
    from torch import Tensor

    from dla_perception.demo.loss import Targets
    from dla_perception.demo.network import DemoYolo

LOWEST, HIGHEST = -128, 127
"""Steps that INT8 activations have; weights have -127 to 127 (TensorRT developer guide)."""
_LEAST_WEIGHT = 1e-12
"""Stands for the largest magnitude of a filter of zeros, whose scale must still be positive."""


class QatTrainingError(DlaPerceptionError):
    """The network cannot be trained for INT8."""


class Convolution(NamedTuple):
    """One convolution and what of it is quantised.

    Attributes:
        node: its name in the graph.
        module: its name in the torch network.
        source: the tensor that it reads, which has a scale.
        result: the network's output that it makes, if that has a scale too, else ``None``.
        in_int8: whether its weights are quantised.
    """

    node: str
    module: str
    source: str
    result: Optional[str]
    in_int8: bool


def convolutions(graph: Graph, scales: Mapping[str, float]) -> List[Convolution]:
    """The network's convolutions in running order, as the scales of its tensors have them.

    A convolution's weights must be called ``<module>.weight``, as torch exports them.
    """
    found = []
    for layer in find_layers(graph):
        if layer.op != "Conv":
            continue
        node, result = layer.nodes[0], layer.outputs[0]
        found.append(
            Convolution(
                layer.name,
                str(node.input[1])[: -len(".weight")],
                layer.inputs[0],
                result if result in graph.outputs and result in scales else None,
                layer.in_int8(scales),
            )
        )
    return found


def load_network(graph: Graph) -> DemoYolo:
    """The demo's network in torch, normalisation folded, with the weights of its ONNX file.

    Raises:
        QatTrainingError: the file holds another network.
    """
    import torch

    from dla_perception.demo.network import DemoYolo, fold

    bias = graph.constants.get("heads.0.predict.bias", np.zeros(0))
    if len(bias) <= 5:
        raise QatTrainingError(
            f"{graph.where}: it has no weights called 'heads.0.predict.bias'; expected the demo's "
            "network as 'python -m dla_perception.demo.train' exports it"
        )
    network = DemoYolo(len(bias) - 5)
    fold(network)
    weights = {
        name: torch.from_numpy(graph.constants[name].copy())
        for name in network.state_dict()
        if name in graph.constants
    }
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise QatTrainingError(
            f"{graph.where}: its weights are not those of the demo's network: "
            f"{' '.join(str(error).split())}"
        ) from None
    return network


def fake_quantise(values: Tensor, scale: Tensor) -> Tensor:
    """Values rounded to INT8 steps of ``scale``, half to even, with gradients for both.

    Values within the range get the gradient of the result, those outside none; the scale's
    gradient is that of the learned step size. Source: Esser et al., "Learned Step Size
    Quantization", ICLR 2020.
    """
    steps = (values / scale).clamp(LOWEST, HIGHEST)
    return (steps + (steps.round() - steps).detach()) * scale


def weight_scales(weights: Tensor) -> Tensor:
    """max|w|/127 of each filter, ``(filters, 1, 1, 1)``: what TensorRT takes in any case."""
    return weights.detach().abs().amax((1, 2, 3), keepdim=True).clamp(min=_LEAST_WEIGHT) / 127


def quantised_weights(weights: Tensor) -> Tensor:
    """Weights rounded to 255 steps a filter; the gradient is that of the weights as they are."""
    scales = weight_scales(weights)
    return weights + ((weights.detach() / scales).round() * scales - weights.detach())


class QuantisedNetwork:
    """The demo's network with its rounding.

    Attributes:
        network: in torch, normalisation folded.
        parts: its convolutions.
        log_scales: natural logarithms of the activations' scales, by tensor; tensors that must
            share a scale share the parameter. In logarithms a step of training is a share of the
            scale, and the scale stays positive (Jain et al., "Trained Quantization Thresholds",
            MLSys 2020).
    """

    def __init__(self, network: DemoYolo, graph: Graph, scales: Mapping[str, float]) -> None:
        """Put the rounding into ``network``, where it was trained in ``graph``.

        Args:
            network: :func:`load_network`.
            graph: the same network in ONNX.
            scales: by tensor, equal within each group that must share one.
        """
        import torch

        self.network = network
        self.parts = convolutions(graph, scales)
        first_of = {tensor: group[0] for group in groups_of(graph) for tensor in group}
        device = next(network.parameters()).device
        shared: Dict[str, Tensor] = {}
        self.log_scales: Dict[str, Tensor] = {}
        for part in self.parts:
            for tensor in (part.source, part.result):
                if tensor is None:
                    continue
                group = first_of.get(tensor, tensor)
                if group not in shared:
                    shared[group] = torch.tensor(
                        float(np.log(scales[tensor])), device=device, requires_grad=True
                    )
                self.log_scales[tensor] = shared[group]
        for part in self.parts:
            self._hook(part)

    def _hook(self, part: Convolution) -> None:
        module = self.network.get_submodule(part.module)
        source = self.log_scales[part.source]

        def round_input(_: object, arguments: Sequence[Tensor]) -> Tensor:
            return fake_quantise(arguments[0], source.exp())

        module.register_forward_pre_hook(round_input)
        if part.result is not None:
            result = self.log_scales[part.result]

            def round_result(_: object, __: object, output: Tensor) -> Tensor:
                return fake_quantise(output, result.exp())

            module.register_forward_hook(round_result)

    def __call__(self, images: Tensor) -> Sequence[Tensor]:
        """The head's outputs for ``(N, 3, 256, 320)`` RGB in [0, 1]."""
        from torch.func import functional_call

        weights = {
            f"{part.module}.weight": quantised_weights(
                self.network.get_parameter(f"{part.module}.weight")
            )
            for part in self.parts
            if part.in_int8
        }
        levels: Sequence[Tensor] = functional_call(self.network, weights, (images,))
        return levels

    def scale_parameters(self) -> List[Tensor]:
        """Each shared logarithm once."""
        return list({id(value): value for value in self.log_scales.values()}.values())

    def scales(self) -> Dict[str, float]:
        """The activations' scales as they are now, exact in float32."""
        return {name: float(value.detach().exp()) for name, value in self.log_scales.items()}


def calibrated_scales(
    graph: Graph, pictures: Pictures, count: int, method: str, int8_heads: bool
) -> Dict[str, float]:
    """Scales to start from: a calibration on ``count`` of the training pictures."""
    rows = np.unique(np.linspace(0, len(pictures.pixels) - 1, count).astype(int))

    def inputs() -> Iterator[np.ndarray]:
        import torch

        from dla_perception.demo.train import network_input

        for row in rows:
            planes = pictures.pixels[row].transpose(2, 0, 1)[None].astype(np.float32)
            image: np.ndarray = network_input(torch.from_numpy(planes)).numpy()
            yield image

    measured = scales_of(graph, Statistics(graph, inputs), method, int8_heads=int8_heads)
    return unify(graph, measured)[0]


def train_step(
    quantised: QuantisedNetwork,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    targets: Targets,
) -> Tensor:
    """One step on one batch; the loss before it, a scalar."""
    import torch

    from dla_perception.demo.loss import detection_loss

    loss = detection_loss(quantised(images), targets).total
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(quantised.network.parameters(), 10.0)
    optimiser.step()
    return loss.detach()


def make_optimiser(
    quantised: QuantisedNetwork, learning_rate: float, scale_learning_rate: float
) -> torch.optim.Optimizer:
    """AdamW without decay: these weights are trained already, and the scales are no weights."""
    import torch

    return torch.optim.AdamW(
        [
            {"params": list(quantised.network.parameters()), "lr": learning_rate},
            {"params": quantised.scale_parameters(), "lr": scale_learning_rate},
        ],
        weight_decay=0.0,
    )


def export_qdq(model: Path, quantised: QuantisedNetwork, output: Path) -> None:
    """Write the float network ``model`` with the trained weights and Q/DQ nodes.

    Args:
        model: the ONNX file that the training started from.
        quantised: what it has become.
        output: the file to write; its description goes beside it.
    """
    import onnx
    from onnx import numpy_helper

    network = onnx.load(str(model))
    trained = {name: value.cpu().numpy() for name, value in quantised.network.state_dict().items()}
    for tensor in network.graph.initializer:
        if tensor.name in trained:
            tensor.CopyFrom(numpy_helper.from_array(trained[tensor.name], tensor.name))
    _QdqWriter(network, quantised).write()
    onnx.checker.check_model(network)
    output.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(network, str(output))
    write_description(output.with_suffix(".yaml"), {})


class _QdqWriter:
    """Puts Q/DQ nodes into a network."""

    def __init__(self, model: onnx.ModelProto, quantised: QuantisedNetwork) -> None:
        self._graph = model.graph
        self._scales = quantised.scales()
        self._parts = {part.node: part for part in quantised.parts}
        self._weights = {
            part.module: quantised.network.get_parameter(f"{part.module}.weight").detach().cpu()
            for part in quantised.parts
            if part.in_int8
        }
        self._layers: List[onnx.NodeProto] = []
        self._read: Dict[str, str] = {}

    def write(self) -> None:
        for node in list(self._graph.node):
            part = self._parts.get(node.name)
            if part is None:
                self._layers.append(node)
                continue
            if part.source not in self._read:
                # one pair a tensor, however many convolutions read it
                self._read[part.source] = f"{part.source}_dequantized"
                self._pair(part.source, part.source, self._read[part.source])
            node.input[0] = self._read[part.source]
            if part.in_int8:
                node.input[1] = self._weight(part.module)
            self._layers.append(node)
            if part.result is not None:
                node.output[0] = f"{part.result}_exact"
                self._pair(part.result, node.output[0], part.result)
        del self._graph.node[:]
        self._graph.node.extend(self._layers)

    def _constant(self, name: str, value: np.ndarray) -> str:
        from onnx import numpy_helper

        self._graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def _pair(self, tensor: str, source: str, result: str) -> None:
        """QuantizeLinear and DequantizeLinear from ``source`` to ``result``."""
        from onnx import helper

        constants = [
            self._constant(f"{tensor}_scale", np.array(self._scales[tensor], np.float32)),
            self._constant(f"{tensor}_zero_point", np.array(0, np.int8)),
        ]
        whole = f"{tensor}_quantized"
        for op, read, made in (
            ("QuantizeLinear", source, whole),
            ("DequantizeLinear", whole, result),
        ):
            name = f"{tensor}_{op}"
            self._layers.append(helper.make_node(op, [read, *constants], [made], name=name))

    def _weight(self, module: str) -> str:
        """The weights of a convolution as INT8 with a DequantizeLinear; returns what it makes."""
        from onnx import helper

        weights = self._weights[module]
        scales = weight_scales(weights)
        name = f"{module}.weight"
        for index, tensor in enumerate(self._graph.initializer):
            if tensor.name == name:
                del self._graph.initializer[index]
                break
        steps = (weights / scales).round().numpy().astype(np.int8)
        inputs = [
            self._constant(f"{name}_quantized", steps),
            self._constant(f"{name}_scale", scales.flatten().numpy()),
            self._constant(f"{name}_zero_point", np.zeros(len(steps), np.int8)),
        ]
        result = f"{name}_dequantized"
        op = "DequantizeLinear"
        self._layers.append(helper.make_node(op, inputs, [result], name=f"{name}_{op}", axis=0))
        return result


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Train and export; 2 and one line where something is missing or wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, default=MODEL, help="float network (default: the package's own)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT.onnx", help="file to write"
    )
    parser.add_argument(
        "--heads",
        choices=("fp16", "int8"),
        default="fp16",
        help="how the head's last convolutions compute (default: %(default)s)",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="entropy",
        help="of the calibration that gives the first scales (default: %(default)s)",
    )
    parser.add_argument(
        "--calibration-pictures", type=_positive, default=64, help="for it (%(default)s)"
    )
    parser.add_argument("--stills", type=_count, default=8000, help="pictures (%(default)s)")
    parser.add_argument("--drive-frames", type=_count, default=2000, help="pictures (%(default)s)")
    parser.add_argument(
        "--epochs", type=_count, default=12, help="0: calibrate only (default: %(default)s)"
    )
    parser.add_argument("--batch", type=_positive, default=128, help="pictures (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="%(default)s")
    parser.add_argument(
        "--scale-learning-rate", type=float, default=1e-3, help="0: as calibrated (%(default)s)"
    )
    parser.add_argument("--seed", type=_count, default=2, help="of the pictures (%(default)s)")
    parser.add_argument(
        "--processes", type=_positive, default=os.cpu_count() or 1, help="to render (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except DlaPerceptionError as error:
        print(f"qat: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    try:
        import torch
    except ImportError:
        raise MissingPackageError(
            "torch",
            "training the demo's network for INT8",
            "pip install 'dla_perception[train,onnx]'",
        ) from None
    if not options.stills + options.drive_frames:
        raise QatTrainingError(
            "--stills 0 with --drive-frames 0 leaves no picture; expected at least one to train on"
        )
    started = time.monotonic()
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    graph = load_graph(options.model)
    network = load_network(graph)
    pictures = render_training(
        options.stills, options.drive_frames, options.processes, options.seed
    )
    _say(started, f"rendered {len(pictures.pixels)} pictures")
    scales = calibrated_scales(
        graph, pictures, options.calibration_pictures, options.method, options.heads == "int8"
    )
    _say(started, f"calibrated {len(scales)} tensors, {options.method}")
    network = network.to(device).to(memory_format=torch.channels_last)
    quantised = QuantisedNetwork(network, graph, scales)
    _train(quantised, pictures, options, started, device)
    export_qdq(options.model, quantised, options.output)
    _say(started, f"wrote {options.output}")


def _train(
    quantised: QuantisedNetwork,
    pictures: Pictures,
    options: argparse.Namespace,
    started: float,
    device: torch.device,
) -> None:
    import torch

    from dla_perception.demo.train import Batches

    batches = Batches(pictures, options.batch, device, options.seed)
    optimiser = make_optimiser(quantised, options.learning_rate, options.scale_learning_rate)
    steps = max(options.epochs * batches.count, 1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    first = quantised.scales()
    for epoch in range(options.epochs):
        losses = []
        for images, targets in batches:
            losses.append(train_step(quantised, optimiser, images, targets))
            schedule.step()
        _say(started, f"epoch {epoch + 1}: loss {torch.stack(losses).mean().item():.3f}")
    ratios = [value / first[name] for name, value in quantised.scales().items()]
    _say(started, f"scales are {min(ratios):.3f} to {max(ratios):.3f} of the calibrated ones")


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


def _say(started: float, line: str) -> None:
    print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
