"""The demo's network: a small YOLO whose every layer a DLA takes.

Convolution, ReLU, max pooling, nearest upsampling by 2 and concatenation of channels, and nothing
else. While it trains, each convolution is followed by batch normalisation, which
:func:`fold` multiplies into the weights. The outputs are the raw head convolutions: grid
arithmetic, sigmoids and suppression stay outside the network.

This module imports torch, which is an optional extra: import it only where torch is wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import onnx

INPUT_SIZE = (320, 256)
"""Width and height of the input in pixels."""
STRIDES = (8, 16, 32)
OUTPUT_NAMES = ("head_s8", "head_s16", "head_s32")
OPSET = 13


class ConvBlock(nn.Module):
    """Convolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(features)))

    def fold(self) -> None:
        """Multiply the normalisation into the convolution; for inference only."""
        norm = self.norm
        if not isinstance(norm, nn.BatchNorm2d):
            return
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        old = self.conv
        conv = nn.Conv2d(
            old.in_channels, old.out_channels, old.kernel_size, old.stride, old.padding
        ).to(old.weight.device)
        conv.weight.data = (old.weight * factor[:, None, None, None]).detach()
        assert conv.bias is not None
        conv.bias.data = (norm.bias - norm.running_mean * factor).detach()
        self.conv = conv
        self.norm = nn.Identity()


class Stage(nn.Module):
    """Three depths of features of half the width, concatenated and mixed.

    It is built round concatenation where others add: gradients reach every depth directly, and
    INT8 needs no common scale for the two sides of an addition.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = ConvBlock(inputs, half, 1)
        self.first = ConvBlock(half, half, 3)
        self.second = ConvBlock(half, half, 3)
        self.mix = ConvBlock(3 * half, outputs, 1)

    def forward(self, features: Tensor) -> Tensor:
        shallow = self.enter(features)
        middle = self.first(shallow)
        return self.mix(torch.cat([shallow, middle, self.second(middle)], 1))


class PoolPyramid(nn.Module):
    """Features seen through ever larger windows: three 5x5 poolings in a row."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.enter = ConvBlock(channels, half, 1)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.mix = ConvBlock(4 * half, channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        levels = [self.enter(features)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        return self.mix(torch.cat(levels, 1))


class Head(nn.Module):
    """One convolution of context, then per cell: tx, ty, tw, th, objectness and class logits."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.context = ConvBlock(channels, channels, 3)
        self.predict = nn.Conv2d(channels, 5 + classes, 1)
        with torch.no_grad():
            assert self.predict.bias is not None
            self.predict.bias.zero_()
            # a cell is empty until it has learned better: about one in a hundred is not
            self.predict.bias[4] = -4.6
            self.predict.weight.mul_(0.1)

    def forward(self, features: Tensor) -> Tensor:
        return self.predict(self.context(features))


class DemoYolo(nn.Module):
    """The network: ``(N, 3, 256, 320)`` RGB in [0, 1] to one ``(N, 5 + classes, h, w)`` a stride.

    A cell's box in input pixels has its centre at ``((tx + column) * stride, (ty + row) * stride)``
    and measures ``exp(tw) * stride`` by ``exp(th) * stride``.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvBlock(3, 16, 3, 2), ConvBlock(16, 32, 3, 2), Stage(32, 32))
        self.down8 = nn.Sequential(ConvBlock(32, 64, 3, 2), Stage(64, 64))
        self.down16 = nn.Sequential(ConvBlock(64, 80, 3, 2), Stage(80, 80))
        self.down32 = nn.Sequential(nn.MaxPool2d(2, 2), Stage(80, 80), PoolPyramid(80))
        self.lateral32 = ConvBlock(80, 48, 1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.merge16 = Stage(80 + 48, 48)
        self.lateral16 = ConvBlock(48, 32, 1)
        self.merge8 = Stage(64 + 32, 48)
        self.back16 = ConvBlock(48, 48, 3, 2)
        self.out16 = Stage(48 + 48, 48)
        self.back32 = nn.MaxPool2d(2, 2)
        self.out32 = Stage(48 + 48, 48)
        self.heads = nn.ModuleList([Head(48, classes) for _ in STRIDES])

    def forward(self, images: Tensor) -> Tuple[Tensor, ...]:
        fine = self.down8(self.stem(images))
        middle = self.down16(fine)
        coarse = self.lateral32(self.down32(middle))
        merged = self.merge16(torch.cat([self.up(coarse), middle], 1))
        finest = self.merge8(torch.cat([self.up(self.lateral16(merged)), fine], 1))
        second = self.out16(torch.cat([self.back16(finest), merged], 1))
        third = self.out32(torch.cat([self.back32(second), coarse], 1))
        levels = (finest, second, third)
        return tuple(head(level) for head, level in zip(self.heads, levels))


def fold(network: DemoYolo) -> None:
    """Multiply every batch normalisation of a trained network into its convolution, in place."""
    network.eval()
    for module in network.modules():
        if isinstance(module, ConvBlock):
            module.fold()


def decode(levels: Sequence[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
    """Head outputs of all levels as one list of ``A`` cells, finest level first.

    Returns boxes ``(N, A, 4)`` x1 y1 x2 y2 in input pixels, objectness logits ``(N, A)`` and class
    logits ``(N, A, classes)``.
    """
    boxes: List[Tensor] = []
    rest: List[Tensor] = []
    for level, stride in zip(levels, STRIDES):
        height, width = level.shape[2:]
        row, column = torch.meshgrid(
            torch.arange(height, device=level.device),
            torch.arange(width, device=level.device),
            indexing="ij",
        )
        flat = level.float().flatten(2).transpose(1, 2)
        centre = (flat[..., 0:2] + torch.stack([column, row], -1).reshape(-1, 2)) * stride
        # exp overflows only for a network that has gone wrong; a gradient of inf would spread it
        half = flat[..., 2:4].clamp(max=6).exp() * (stride / 2)
        boxes.append(torch.cat([centre - half, centre + half], -1))
        rest.append(flat[..., 4:])
    others = torch.cat(rest, 1)
    return torch.cat(boxes, 1), others[..., 0], others[..., 1:]


def export_onnx(network: DemoYolo, path: Path) -> None:
    """Write a trained network as ONNX with static shapes, normalisation folded."""
    import onnx

    fold(network)
    width, height = INPUT_SIZE
    network = network.to("cpu")
    torch.onnx.export(
        network,
        (torch.zeros(1, 3, height, width),),
        str(path),
        input_names=["images"],
        output_names=list(OUTPUT_NAMES),
        opset_version=OPSET,
        do_constant_folding=True,
        dynamo=False,
    )
    onnx.save(_tidied(onnx.load(str(path))), str(path))


def _tidied(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with layers alone as nodes: constants among the weights, and no aliases of them."""
    import onnx

    graph = model.graph
    alias: Dict[str, str] = {}
    layers = []
    for node in graph.node:
        if node.op_type == "Identity":
            alias[node.output[0]] = alias.get(node.input[0], node.input[0])
        elif node.op_type == "Constant":
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            # tracing leaves notes on where a layer came from, longer than the small layers
            del node.metadata_props[:]
            node.doc_string = ""
            layers.append(node)
    for node in layers:
        for index, name in enumerate(node.input):
            node.input[index] = alias.get(name, name)
    del graph.node[:]
    graph.node.extend(layers)
    onnx.checker.check_model(model)
    return model
