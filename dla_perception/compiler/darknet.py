"""A Darknet network (.cfg and .weights) as ONNX, with its description.

The network is cut where its ``[yolo]`` layers begin: each of them is one output, the tensor
that the layer reads. Batch normalisation is folded into the convolution before it.

Source of every layer's arithmetic: the forward functions of Darknet (J. Redmon,
A. Bochkovskiy), ``src/*_layer.c``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from dla_perception.compiler.darknet_files import (
    DarknetError,
    Section,
    WeightsFile,
    WeightSource,
    read_cfg,
)
from dla_perception.detection.description import ModelDescription
from dla_perception.detection.letterbox import Placement
from dla_perception.errors import MissingPackageError

if TYPE_CHECKING:
    import onnx

OPSET = 13
"""Read by TensorRT 8.5 to 10 and by every ONNX Runtime since 1.7."""

INPUT = "images"

BATCH_NORM_EPSILON = 1e-6
"""Added to the variance, as OpenCV's importer does.

Darknet's own versions differ: Redmon's adds 1e-6 to the standard deviation, Bochkovskiy's 1e-5
to the variance (``normalize_cpu`` in blas.c of each). The logits of Yolo-Fastest, whose
variances are small, change by up to 0.014 between the two.
"""

HEADS = ("yolo", "gaussian_yolo", "region", "detection")
"""Layers that decode or train: the network is cut before them."""

_UNSUPPORTED = {
    "convolutional": (
        "antialiasing", "binary", "xnor", "bin_output", "deform", "sway", "rotate", "stretch",
        "stretch_sway", "coordconv", "dontload", "dontloadscales",
    ),
    "connected": ("dontload", "dontloadscales"),
    "maxpool": ("maxpool_depth", "antialiasing", "maxpool_zero_nonmax"),
    "reorg": ("reverse", "flatten"),
    "reorg3d": ("reverse", "extra", "flatten"),
}  # fmt: skip
"""Options that change what a layer computes and have no counterpart here."""

_RECURRENT = ("rnn", "gru", "lstm", "crnn", "conv_lstm", "history")


@dataclass(frozen=True)
class DarknetNetwork:
    """An imported network.

    Attributes:
        model: the ONNX network.
        description: ``None`` for a network without ``[yolo]`` layers, which no head here decodes.
        layers: how many layers the cfg has.
    """

    model: onnx.ModelProto
    description: ModelDescription | None
    layers: int


def import_darknet(
    cfg: str | Path,
    weights: str | Path,
    input_size: tuple[int, int] | None = None,
    epsilon: float = BATCH_NORM_EPSILON,
) -> DarknetNetwork:
    """Read a cfg and its weights.

    Args:
        cfg: the file that lists the layers.
        weights: the file with their numbers.
        input_size: ``(width, height)`` in pixels instead of those in ``[net]``.
        epsilon: see :data:`BATCH_NORM_EPSILON`.

    Raises:
        DarknetError: a file is wrong, the two do not fit, or a layer has no counterpart in ONNX.
        MissingPackageError: the package onnx is not installed.
    """
    sections = read_cfg(cfg)
    source = WeightsFile(weights)
    network = convert(sections, source, input_size, epsilon)
    source.check_end(sections[-1])
    return network


def convert(
    sections: Sequence[Section],
    weights: WeightSource,
    input_size: tuple[int, int] | None = None,
    epsilon: float = BATCH_NORM_EPSILON,
) -> DarknetNetwork:
    """As :func:`import_darknet`, from sections that were read and any source of numbers."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise MissingPackageError("onnx", "importing a network", "pip install onnx") from None
    net, *layers = sections
    if input_size is not None:
        net = net.with_options(width=input_size[0], height=input_size[1])
    for key in ("width", "height"):
        if net.integer(key, 0) < 1:
            raise net.error(f"it has no '{key}=': only networks for images can be imported")
    graph = _Graph(weights, (net.integer("channels", 3, 1), *_size(net)[::-1]), epsilon)
    for section in layers:
        if section.kind in _RECURRENT:
            raise section.error(
                "a recurrent layer keeps a state from call to call, which a network for single "
                "images cannot express"
            )
        if section.kind not in _LAYERS:
            known = ", ".join(sorted([*_LAYERS, *HEADS]))
            if section.kind not in HEADS:
                raise section.error(f"this kind of section is unknown; known: {known}")
            graph.add_head(section)
            continue
        for option in _UNSUPPORTED.get(section.kind, ()):
            if section.text(option, "0") != "0":
                raise section.error(f"option '{option}' is not supported")
        graph.add_layer(section, _LAYERS[section.kind](graph, section))
    return DarknetNetwork(graph.model(), _description(net, graph.heads), len(layers))


def _size(net: Section) -> tuple[int, int]:
    return net.integer("width", 0, 1), net.integer("height", 0, 1)


@dataclass(frozen=True)
class _Tensor:
    """A tensor ``(1, channels, height, width)`` of the graph under construction."""

    name: str
    shape: tuple[int, int, int]


class _Graph:
    """The ONNX graph under construction, layer by layer."""

    def __init__(
        self, weights: WeightSource, input_shape: tuple[int, int, int], epsilon: float
    ) -> None:
        self.weights = weights
        self.epsilon = epsilon
        self.input = _Tensor(INPUT, input_shape)
        self.outputs: list[_Tensor] = []
        self.heads: list[tuple[Section, _Tensor]] = []
        self.shared: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, np.ndarray] = {}

    @property
    def last(self) -> _Tensor:
        """What the next layer reads."""
        return self.outputs[-1] if self.outputs else self.input

    def add_layer(self, section: Section, output: _Tensor) -> None:
        """Finish a layer with its output."""
        if min(output.shape) < 1:
            raise section.error(
                f"its output would be {_text(output.shape)}; the image of "
                f"{_text(self.last.shape)} before it is too small"
            )
        self.outputs.append(output)

    def add_head(self, section: Section) -> None:
        """Cut the network before a layer that decodes; later layers may still refer to it."""
        if any(self.last.name == tensor.name for _, tensor in self.heads):
            raise section.error(f"'{self.last.name}' already is the input of a head before it")
        self.heads.append((section, self.last))
        self.outputs.append(self.last)

    def reference(self, section: Section, index: int) -> _Tensor:
        """The output of another layer; a negative index counts back from this one."""
        resolved = index + section.index if index < 0 else index
        if not 0 <= resolved < section.index:
            raise section.error(
                f"it refers to layer {index}"
                + (f" (that is {resolved})" if resolved != index else "")
                + f"; only layers 0 to {section.index - 1} come before it"
            )
        return self.outputs[resolved]

    def constant(self, name: str, value: np.ndarray | Sequence[float]) -> str:
        """Add an initializer; integers become int64, everything else float32."""
        array = np.asarray(value)
        dtype = np.int64 if array.dtype.kind == "i" else np.float32
        self._initializers[name] = array.astype(dtype)
        return name

    def node(self, op: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one output, which has the node's name."""
        from onnx import helper

        self._nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def model(self) -> onnx.ModelProto:
        """The network with everything that reaches an output."""
        from onnx import TensorProto, helper, numpy_helper

        def value(tensor: _Tensor) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, [1, *tensor.shape])

        heads = sorted((tensor for _, tensor in self.heads), key=lambda tensor: -tensor.shape[1])
        outputs = heads or [self.outputs[-1]]
        needed = {tensor.name for tensor in outputs}
        nodes = []
        for node in reversed(self._nodes):
            if node.output[0] in needed:
                needed.update(node.input)
                nodes.append(node)
        graph = helper.make_graph(
            nodes[::-1],
            "darknet",
            [value(self.input)],
            [value(tensor) for tensor in outputs],
            [
                numpy_helper.from_array(array, name)
                for name, array in self._initializers.items()
                if name in needed
            ],
        )
        model = helper.make_model(
            graph, producer_name="dla_perception", opset_imports=[helper.make_opsetid("", OPSET)]
        )
        model.ir_version = 8  # the last one that ONNX Runtime for Python 3.8 reads
        return model


def _text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


# ---- layers: each function adds nodes and returns the layer's output


def _convolutional(graph: _Graph, section: Section) -> _Tensor:
    source = graph.last
    channels, height, width = source.shape
    filters = section.integer("filters", 1, 1)
    groups = section.integer("groups", 1, 1)
    size = section.integer("size", 1, 1)
    stride = section.integer("stride", 1, 1)
    strides = [section.integer("stride_y", stride, 1), section.integer("stride_x", stride, 1)]
    dilation = section.integer("dilation", 1, 1) if size > 1 else 1
    padding = size // 2 if section.integer("pad", 0) else section.integer("padding", 0, 0)
    if channels % groups or filters % groups:
        raise section.error(
            f"groups={groups} does not divide its {channels} input channels and {filters} filters"
        )
    shape = (filters, channels // groups, size, size)
    weights, biases = _convolution_weights(graph, section, shape)
    # Darknet forgets the dilation where it computes the size: it agrees with ONNX for odd sizes
    reach = dilation * (size - 1) + 1
    out = [
        (extent + 2 * padding * dilation - reach) // step + 1
        for extent, step in zip((height, width), strides)
    ]
    name = f"conv_{section.index}"
    graph.node(
        "Conv",
        name,
        [
            source.name,
            graph.constant(f"{name}_weight", weights),
            graph.constant(f"{name}_bias", biases),
        ],
        kernel_shape=[size, size],
        strides=strides,
        pads=[padding * dilation] * 4,
        dilations=[dilation] * 2,
        group=groups,
    )
    return _activate(graph, section, _Tensor(name, (filters, out[0], out[1])), "logistic")


def _convolution_weights(
    graph: _Graph, section: Section, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    if "share_index" in section.options:
        index = section.integer("share_index", 0)
        resolved = index + section.index if index < 0 else index
        if resolved not in graph.shared or graph.shared[resolved][0].shape != shape:
            raise section.error(
                f"share_index={index}: no convolution before it has weights of {_text(shape)}"
            )
        weights, biases = graph.shared[resolved]
    else:
        biases = graph.weights.take(shape[:1], "biases", section)
        normalisation = _take_normalisation(graph, section, shape[0])
        weights = graph.weights.take(shape, "weights", section)
        if section.integer("flipped", 0):
            weights = weights.reshape(-1, shape[0]).T.reshape(shape)
        weights, biases = _fold(weights, biases, normalisation)
    graph.shared[section.index] = (weights, biases)
    return weights, biases


def _take_normalisation(
    graph: _Graph, section: Section, count: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Factors and offsets of a batch normalisation, ``float64``, or ``None`` without one."""
    if not (section.integer("batch_normalize", 0) or section.integer("cbn", 0)):
        return None
    scales, means, variances = (
        graph.weights.take([count], what, section).astype(np.float64)
        for what in ("scales", "means", "variances")
    )
    factors = scales / np.sqrt(variances + graph.epsilon)
    return factors, means * factors


def _fold(
    weights: np.ndarray, biases: np.ndarray, normalisation: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Fold a batch normalisation: its shift is what Darknet stores as the layer's biases."""
    if normalisation is None:
        return weights, biases
    factors, offsets = normalisation
    folded = weights * factors.reshape(-1, *[1] * (weights.ndim - 1))
    return folded.astype(np.float32), (biases - offsets).astype(np.float32)


def _connected(graph: _Graph, section: Section) -> _Tensor:
    # a fully connected layer is a convolution with a window as large as its input
    source = graph.last
    outputs = section.integer("output", 1, 1)
    inputs = int(np.prod(source.shape))
    biases = graph.weights.take([outputs], "biases", section)
    if graph.weights.transposed:
        weights = graph.weights.take((inputs, outputs), "weights", section).T
    else:
        weights = graph.weights.take((outputs, inputs), "weights", section)
    # unlike a convolution's, its normalisation comes after the weights
    normalisation = _take_normalisation(graph, section, outputs)
    weights, biases = _fold(weights, biases, normalisation)
    name = f"connected_{section.index}"
    graph.node(
        "Conv",
        name,
        [
            source.name,
            graph.constant(f"{name}_weight", weights.reshape(outputs, *source.shape)),
            graph.constant(f"{name}_bias", biases),
        ],
        kernel_shape=list(source.shape[1:]),
    )
    return _activate(graph, section, _Tensor(name, (outputs, 1, 1)), "logistic")


def _local(graph: _Graph, section: Section) -> _Tensor:
    """A convolution whose weights differ from place to place: patches, then a product each."""
    source = graph.last
    channels, height, width = source.shape
    filters = section.integer("filters", 1, 1)
    size = section.integer("size", 1, 1)
    stride = section.integer("stride", 1, 1)
    padding = 1 if section.integer("pad", 0) else 0
    out_height, out_width = ((extent - (1 if padding else size)) // stride + 1
                             for extent in (height, width))  # fmt: skip
    if padding and size != 3:
        raise section.error(f"pad=1 with size={size}: Darknet itself only does size=3")
    places = out_height * out_width
    patch = channels * size * size
    biases = graph.weights.take((1, filters, out_height, out_width), "biases", section)
    weights = graph.weights.take((places, filters, patch), "weights", section)
    name = f"local_{section.index}"
    pick = np.tile(np.eye(size * size, dtype=np.float32), (channels, 1))
    graph.node(
        "Conv",
        f"{name}_patches",
        [
            source.name,
            graph.constant(f"{name}_pick", pick.reshape(patch, 1, size, size)),
        ],
        kernel_shape=[size, size],
        strides=[stride] * 2,
        pads=[padding] * 4,
        group=channels,
    )
    columns = graph.node(
        "Reshape",
        f"{name}_columns",
        [f"{name}_patches", graph.constant(f"{name}_columns_shape", np.array([1, patch, places]))],
    )
    columns = graph.node("Transpose", f"{name}_places", [columns], perm=[2, 1, 0])
    product = graph.node(
        "MatMul", f"{name}_product", [graph.constant(f"{name}_weight", weights), columns]
    )
    product = graph.node("Transpose", f"{name}_filters", [product], perm=[2, 1, 0])
    shape = graph.constant(f"{name}_shape", np.array([1, filters, out_height, out_width]))
    product = graph.node("Reshape", f"{name}_image", [product, shape])
    graph.node("Add", name, [product, graph.constant(f"{name}_bias", biases)])
    return _activate(graph, section, _Tensor(name, (filters, out_height, out_width)), "logistic")


def _pool(graph: _Graph, section: Section, op: str, **attributes: Any) -> _Tensor:
    source = graph.last
    channels, height, width = source.shape
    stride = section.integer("stride", 1, 1)
    strides = [section.integer("stride_y", stride, 1), section.integer("stride_x", stride, 1)]
    size = section.integer("size", stride, 1)
    padding = section.integer("padding", size - 1, 0)
    if padding // 2 >= size or padding - padding // 2 >= size:
        raise section.error(f"padding={padding} is too much for size={size}")
    before, after = padding // 2, padding - padding // 2
    out = [(extent + padding - size) // step + 1 for extent, step in zip((height, width), strides)]
    name = f"{section.kind}_{section.index}"
    graph.node(
        op,
        name,
        [source.name],
        kernel_shape=[size, size],
        strides=strides,
        pads=[before, before, after, after],
        **attributes,
    )
    return _Tensor(name, (channels, out[0], out[1]))


def _maxpool(graph: _Graph, section: Section) -> _Tensor:
    return _pool(graph, section, "MaxPool")


def _local_avgpool(graph: _Graph, section: Section) -> _Tensor:
    return _pool(graph, section, "AveragePool", count_include_pad=0)


def _avgpool(graph: _Graph, section: Section) -> _Tensor:
    name = graph.node("GlobalAveragePool", f"avgpool_{section.index}", [graph.last.name])
    return _Tensor(name, (graph.last.shape[0], 1, 1))


def _route(graph: _Graph, section: Section) -> _Tensor:
    sources = [graph.reference(section, index) for index in section.integers("layers")]
    groups = section.integer("groups", 1, 1)
    group = section.integer("group_id", 0, 0)
    name = f"route_{section.index}"
    first = sources[0]
    for source in sources:
        if source.shape[1:] != first.shape[1:]:
            raise section.error(
                f"it joins {_text(first.shape)} and {_text(source.shape)}: height and width differ"
            )
        if source.shape[0] % groups or group >= groups:
            raise section.error(
                f"group_id={group} of groups={groups} cannot be taken from "
                f"{source.shape[0]} channels"
            )
    if groups > 1:  # Darknet takes the same part of each
        parts = []
        for number, source in enumerate(sources):
            count = source.shape[0] // groups
            bounds = [
                graph.constant(f"{name}_{number}_{key}", np.array([value]))
                for key, value in (
                    ("start", group * count),
                    ("end", (group + 1) * count),
                    ("axis", 1),
                )
            ]
            part = name if len(sources) == 1 else f"{name}_{number}"
            graph.node("Slice", part, [source.name, *bounds])
            parts.append(_Tensor(part, (count, *source.shape[1:])))
        sources = parts
    if len(sources) == 1:
        return sources[0]
    graph.node("Concat", name, [source.name for source in sources], axis=1)
    return _Tensor(name, (sum(source.shape[0] for source in sources), *first.shape[1:]))


def _shortcut(graph: _Graph, section: Section) -> _Tensor:
    target = graph.last
    others = [graph.reference(section, index) for index in section.integers("from")]
    if section.number("alpha", 1) != 1 or section.number("beta", 1) != 1:
        raise section.error("alpha and beta other than 1 are not supported")
    name = f"shortcut_{section.index}"
    terms = [target.name]
    for number, other in enumerate(others):
        terms.append(_fit(graph, section, other, target, f"{name}_{number}"))
    factors = _shortcut_weights(graph, section, len(terms), target.shape[0])
    if factors is not None:
        terms = [
            graph.node(
                "Mul",
                f"{name}_weighted_{number}",
                [term, graph.constant(f"{name}_weight_{number}", factor)],
            )
            for number, (term, factor) in enumerate(zip(terms, factors))
        ]
    total = terms[0]
    for number, term in enumerate(terms[1:], 1):
        last = number == len(terms) - 1
        total = graph.node("Add", name if last else f"{name}_sum_{number}", [total, term])
    return _activate(graph, section, _Tensor(name, target.shape), "linear")


def _fit(graph: _Graph, section: Section, other: _Tensor, target: _Tensor, name: str) -> str:
    """Another layer's output in the target's shape, as ``shortcut_cpu`` in blas.c reads it.

    Darknet takes every n-th pixel of a larger image and the channels that both have.
    """
    tensor = other.name
    step = other.shape[1] // target.shape[1]
    steps = {other.shape[axis] / target.shape[axis] for axis in (1, 2)}
    if len(steps) > 1 or step < 1 or step not in steps:
        raise section.error(
            f"it adds {_text(other.shape)} to {_text(target.shape)}: "
            "the first must be the same size or a whole multiple"
        )
    common = min(other.shape[0], target.shape[0])
    if step > 1 or common < other.shape[0]:
        ends = [common, *other.shape[1:]]
        arguments = {"starts": [0, 0, 0], "ends": ends, "axes": [1, 2, 3], "steps": [1, step, step]}
        inputs = [graph.constant(f"{name}_{key}", np.array(v)) for key, v in arguments.items()]
        tensor = graph.node("Slice", f"{name}_slice", [tensor, *inputs])
    if common < target.shape[0]:
        pads = np.array([0, 0, 0, 0, 0, target.shape[0] - common, 0, 0])
        tensor = graph.node(
            "Pad", f"{name}_pad", [tensor, graph.constant(f"{name}_pads", pads)], mode="constant"
        )
    return tensor


def _shortcut_weights(
    graph: _Graph, section: Section, terms: int, channels: int
) -> np.ndarray | None:
    """Factors ``(terms, 1 or channels, 1, 1)`` of a weighted sum, normalised over the terms.

    Source: ``shortcut_multilayer_cpu`` in blas.c; 0.001 and 0.0001 are its constants.
    """
    kind = section.text("weights_type", "none")
    normalisation = section.text("weights_normalization", "none")
    if kind == "none":
        return None
    if kind not in ("per_feature", "per_layer", "per_channel"):
        raise section.error(f"weights_type={kind}: expected none, per_feature or per_channel")
    count = channels if kind == "per_channel" else 1
    weights = graph.weights.take((terms, count, 1, 1), "weights", section).astype(np.float64)
    if normalisation in ("relu", "avg_relu"):
        weights = np.maximum(weights, 0.001)
        weights = weights / (0.0001 + weights.sum(axis=0))
    elif normalisation == "softmax":
        weights = np.exp(weights - weights.max(axis=0))
        weights = weights / (0.0001 + weights.sum(axis=0))
    elif normalisation != "none":
        raise section.error(f"weights_normalization={normalisation}: expected relu or softmax")
    return weights


def _scale_channels(graph: _Graph, section: Section) -> _Tensor:
    other = graph.reference(section, section.integers("from")[0])
    factors = graph.last
    expected = (1, *other.shape[1:]) if section.integer("scale_wh", 0) else (other.shape[0], 1, 1)
    if factors.shape != expected:
        raise section.error(
            f"it scales {_text(other.shape)} by {_text(factors.shape)}; expected {_text(expected)}"
        )
    name = graph.node("Mul", f"scale_channels_{section.index}", [other.name, factors.name])
    return _activate(graph, section, _Tensor(name, other.shape), "linear")


def _sam(graph: _Graph, section: Section) -> _Tensor:
    other = graph.reference(section, section.integers("from")[0])
    if graph.last.shape != other.shape:
        raise section.error(
            f"it multiplies {_text(graph.last.shape)} with {_text(other.shape)}; "
            "both must be the same"
        )
    name = graph.node("Mul", f"sam_{section.index}", [graph.last.name, other.name])
    return _activate(graph, section, _Tensor(name, other.shape), "linear")


def _implicit(graph: _Graph, section: Section) -> _Tensor:
    shape = (section.integer("filters", 128, 1), section.integer("atoms", 1, 1), 1)
    weights = graph.weights.take(shape, "weights", section)
    return _Tensor(graph.constant(f"implicit_{section.index}", weights[None]), shape)


def _upsample(graph: _Graph, section: Section) -> _Tensor:
    channels, height, width = graph.last.shape
    stride = section.integer("stride", 2, 1)
    name = f"upsample_{section.index}"
    scales = graph.constant(f"{name}_scales", np.array([1, 1, stride, stride], np.float32))
    graph.node(
        "Resize",
        name,
        [graph.last.name, "", scales],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    if section.number("scale", 1) != 1:
        factor = graph.constant(f"{name}_factor", [section.number("scale", 1)])
        name = graph.node("Mul", f"{name}_scaled", [name, factor])
    return _Tensor(name, (channels, height * stride, width * stride))


def _reorg(graph: _Graph, section: Section) -> _Tensor:
    """Space to depth as YOLOv2 has it: the image is first read as if it had fewer channels."""
    channels, height, width = graph.last.shape
    extra = section.integer("extra", 0, 0)
    if extra:
        return _append_zeros(graph, section, extra)
    stride = section.integer("stride", 1, 1)
    if channels % stride**2:
        raise section.error(f"{channels} channels are no multiple of {stride} x {stride}")
    split = (channels // stride**2, height, stride, width, stride)
    return _space_to_depth(graph, section, split, stride)


def _append_zeros(graph: _Graph, section: Section, count: int) -> _Tensor:
    """What ``extra=`` makes of a ``[reorg]``: all inputs in a row and zeros behind them."""
    values = int(np.prod(graph.last.shape))
    name = f"reorg_{section.index}"
    shape = graph.constant(f"{name}_shape", np.array([1, values, 1, 1]))
    row = graph.node("Reshape", f"{name}_row", [graph.last.name, shape])
    pads = graph.constant(f"{name}_pads", np.array([0, 0, 0, 0, 0, count, 0, 0]))
    graph.node("Pad", name, [row, pads], mode="constant")
    return _Tensor(name, (values + count, 1, 1))


def _reorg3d(graph: _Graph, section: Section) -> _Tensor:
    channels, height, width = graph.last.shape
    stride = section.integer("stride", 1, 1)
    split = (channels, height // stride, stride, width // stride, stride)
    return _space_to_depth(graph, section, split, stride)


def _space_to_depth(
    graph: _Graph, section: Section, split: tuple[int, ...], stride: int
) -> _Tensor:
    channels, height, width = graph.last.shape
    if height % stride or width % stride:
        raise section.error(f"{height} x {width} is no multiple of its stride {stride}")
    name = f"reorg_{section.index}"
    shape = (channels * stride**2, height // stride, width // stride)
    blocks = graph.node(
        "Reshape",
        f"{name}_blocks",
        [graph.last.name, graph.constant(f"{name}_split", np.array([1, *split]))],
    )
    blocks = graph.node("Transpose", f"{name}_order", [blocks], perm=[0, 3, 5, 1, 2, 4])
    graph.node("Reshape", name, [blocks, graph.constant(f"{name}_shape", np.array([1, *shape]))])
    return _Tensor(name, shape)


def _softmax(graph: _Graph, section: Section) -> _Tensor:
    source = graph.last
    name = f"softmax_{section.index}"
    tensor = source.name
    if section.number("temperature", 1) != 1:
        factor = graph.constant(f"{name}_factor", [1 / section.number("temperature", 1)])
        tensor = graph.node("Mul", f"{name}_tempered", [tensor, factor])
    groups = section.integer("groups", 1, 1)
    values = int(np.prod(source.shape))
    if values % groups:
        raise section.error(f"groups={groups} does not divide its {values} inputs")
    if "tree" in section.options:
        return _softmax_over_tree(graph, section, tensor)
    if section.integer("spatial", 0) or (groups == 1 and source.shape[1:] == (1, 1)):
        return _Tensor(graph.node("Softmax", name, [tensor], axis=1), source.shape)
    shapes = {"grouped": [1, groups, values // groups], "shape": [1, *source.shape]}
    grouped, shape = (
        graph.constant(f"{name}_{key}_shape", np.array(value)) for key, value in shapes.items()
    )
    tensor = graph.node("Reshape", f"{name}_grouped", [tensor, grouped])
    tensor = graph.node("Softmax", f"{name}_values", [tensor], axis=2)
    return _Tensor(graph.node("Reshape", name, [tensor, shape]), source.shape)


def _softmax_over_tree(graph: _Graph, section: Section, tensor: str) -> _Tensor:
    """One softmax for the children of each node of a word tree.

    The groups are laid out as rows of a matrix, filled up with values that count for nothing.
    """
    source = graph.last
    groups = _read_tree(section, int(np.prod(source.shape)))
    values = int(np.prod(source.shape))
    table = np.full((len(groups), max(map(len, groups))), values, np.int64)
    place = np.empty(values, np.int64)
    for row, group in enumerate(groups):
        table[row, : len(group)] = group
        place[group] = row * table.shape[1] + np.arange(len(group))
    name = f"softmax_{section.index}"
    constants: dict[str, np.ndarray] = {
        "row": np.array([1, values]),
        "never": np.full((1, 1), -1e30, np.float32),
        "table": table,
        "all": np.array([1, table.size]),
        "place": place,
        "shape": np.array([1, *source.shape]),
    }
    inputs = {key: graph.constant(f"{name}_{key}", value) for key, value in constants.items()}
    tensor = graph.node("Reshape", f"{name}_in_a_row", [tensor, inputs["row"]])
    tensor = graph.node("Concat", f"{name}_and_never", [tensor, inputs["never"]], axis=1)
    tensor = graph.node("Gather", f"{name}_groups", [tensor, inputs["table"]], axis=1)
    tensor = graph.node("Softmax", f"{name}_values", [tensor], axis=2)
    tensor = graph.node("Reshape", f"{name}_flat", [tensor, inputs["all"]])
    tensor = graph.node("Gather", f"{name}_back", [tensor, inputs["place"]], axis=1)
    return _Tensor(graph.node("Reshape", name, [tensor, inputs["shape"]]), source.shape)


def _read_tree(section: Section, values: int) -> list[np.ndarray]:
    """Which values belong together: lines ``name parent``, children of a parent in a row."""
    path = Path(section.path).parent / section.text("tree")
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise section.error(f"tree={path}: cannot read it: {error.strerror}") from None
    parents = [line.split()[-1] for line in lines if line.split()]
    if len(parents) != values:
        raise section.error(f"tree={path}: it has {len(parents)} lines, the layer {values} inputs")
    starts = [i for i in range(values) if i == 0 or parents[i] != parents[i - 1]]
    return [np.arange(start, end) for start, end in zip(starts, [*starts[1:], values])]


def _crop(graph: _Graph, section: Section) -> _Tensor:
    """The middle of the image; values from 0..1 to -1..1 unless ``noadjust`` is set."""
    channels, height, width = graph.last.shape
    out = (section.integer("crop_height", 1, 1), section.integer("crop_width", 1, 1))
    if out[0] > height or out[1] > width:
        raise section.error(f"it cuts {_text(out)} out of {_text((height, width))}")
    starts = ((height - out[0]) // 2, (width - out[1]) // 2)
    ends = (starts[0] + out[0], starts[1] + out[1])
    name = f"crop_{section.index}"
    arguments = {"starts": starts, "ends": ends, "axes": (2, 3)}
    inputs = [graph.constant(f"{name}_{key}", np.array(v)) for key, v in arguments.items()]
    tensor = graph.node("Slice", name, [graph.last.name, *inputs])
    if not section.integer("noadjust", 0):
        tensor = graph.node("Mul", f"{name}_doubled", [tensor, graph.constant(f"{name}_2", [2.0])])
        tensor = graph.node("Sub", f"{name}_signed", [tensor, graph.constant(f"{name}_1", [1.0])])
    return _Tensor(tensor, (channels, *out))


def _batchnorm(graph: _Graph, section: Section) -> _Tensor:
    channels = graph.last.shape[0]
    biases = graph.weights.take([channels], "biases", section)
    normalised = section.with_options(batch_normalize=1)
    normalisation = _take_normalisation(graph, normalised, channels)
    factors, shifts = _fold(np.ones(channels), biases, normalisation)
    name = f"batchnorm_{section.index}"
    factor = graph.constant(f"{name}_factor", factors.reshape(1, -1, 1, 1))
    offset = graph.constant(f"{name}_shift", shifts.reshape(1, -1, 1, 1))
    graph.node("Mul", f"{name}_scaled", [graph.last.name, factor])
    graph.node("Add", name, [f"{name}_scaled", offset])
    return _Tensor(name, graph.last.shape)


def _activation(graph: _Graph, section: Section) -> _Tensor:
    return _activate(graph, section, graph.last, "linear")


def _nothing(graph: _Graph, _: Section) -> _Tensor:
    """A layer that only acts in training."""
    return graph.last


_LAYERS: Mapping[str, Callable[[_Graph, Section], _Tensor]] = {
    "activation": _activation,
    "avgpool": _avgpool,
    "batchnorm": _batchnorm,
    "connected": _connected,
    "convolutional": _convolutional,
    "cost": _nothing,
    "crop": _crop,
    "dropout": _nothing,
    "empty": _nothing,
    "implicit": _implicit,
    "local": _local,
    "local_avgpool": _local_avgpool,
    "maxpool": _maxpool,
    "reorg": _reorg,
    "reorg3d": _reorg3d,
    "route": _route,
    "sam": _sam,
    "scale_channels": _scale_channels,
    "shortcut": _shortcut,
    "softmax": _softmax,
    "upsample": _upsample,
}


# ---- activations: source of the formulas: Darknet's activations.h and activations.c


def _activate(graph: _Graph, section: Section, tensor: _Tensor, default: str) -> _Tensor:
    kind = section.text("activation", default)
    if kind == "linear":
        return tensor
    if kind not in _ACTIVATIONS:
        known = ", ".join(sorted([*_ACTIVATIONS, "linear"]))
        raise section.error(f"activation={kind} is not supported; supported: {known}")
    steps = _Steps(graph, f"{kind}_{section.index}")
    return replace(tensor, name=_ACTIVATIONS[kind](steps, tensor.name))


class _Steps:
    """Nodes of one activation; :meth:`last` makes the one that gives the result its name."""

    def __init__(self, graph: _Graph, name: str) -> None:
        self._graph = graph
        self._name = name
        self._count = 0

    def step(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        self._count += 1
        return self._node(f"{self._name}_{self._count}", op, inputs, attributes)

    def last(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        return self._node(self._name, op, inputs, attributes)

    def _node(
        self, name: str, op: str, inputs: Sequence[str | float], attributes: dict[str, Any]
    ) -> str:
        names = [
            value
            if isinstance(value, str)
            else self._graph.constant(f"{name}_value_{number}", np.array(value, np.float32))
            for number, value in enumerate(inputs)
        ]
        return self._graph.node(op, name, names, **attributes)


def _mish(do: _Steps, x: str) -> str:
    return do.last("Mul", x, do.step("Tanh", do.step("Softplus", x)))


def _hard_mish(do: _Steps, x: str) -> str:  # x, x * x / 2 + x and 0, joined at 0 and -2
    ramp = do.step("Clip", do.step("Add", x, 2.0), 0.0, 2.0)
    return do.last("Mul", do.step("Mul", x, 0.5), ramp)


def _gelu(do: _Steps, x: str) -> str:
    cube = do.step("Mul", do.step("Mul", x, x), x)
    inner = do.step("Add", do.step("Mul", x, 0.797885), do.step("Mul", cube, 0.035677))
    return do.last("Mul", do.step("Mul", x, 0.5), do.step("Add", do.step("Tanh", inner), 1.0))


def _ramp(do: _Steps, x: str) -> str:
    return do.last("Add", do.step("Relu", x), do.step("Mul", x, 0.1))


def _loggy(do: _Steps, x: str) -> str:
    return do.last("Sub", do.step("Mul", do.step("Sigmoid", x), 2.0), 1.0)


def _plse(do: _Steps, x: str) -> str:  # slope 0.125 between -4 and 4, 0.01 outside
    middle = do.step("Mul", do.step("Clip", x, -4.0, 4.0), 0.115)
    return do.last("Add", do.step("Add", middle, do.step("Mul", x, 0.01)), 0.5)


def _lhtan(do: _Steps, x: str) -> str:  # slope 1 between 0 and 1, 0.001 outside
    middle = do.step("Mul", do.step("Clip", x, 0.0, 1.0), 0.999)
    return do.last("Add", middle, do.step("Mul", x, 0.001))


_ACTIVATIONS: Mapping[str, Callable[[_Steps, str], str]] = {
    "elu": lambda do, x: do.last("Elu", x),
    "gelu": _gelu,
    "hard_mish": _hard_mish,
    "hardtan": lambda do, x: do.last("Clip", x, -1.0, 1.0),
    "leaky": lambda do, x: do.last("LeakyRelu", x, alpha=0.1),
    "lhtan": _lhtan,
    "loggy": _loggy,
    "logistic": lambda do, x: do.last("Sigmoid", x),
    "mish": _mish,
    "plse": _plse,
    "ramp": _ramp,
    "relie": lambda do, x: do.last("LeakyRelu", x, alpha=0.01),
    "relu": lambda do, x: do.last("Relu", x),
    "relu6": lambda do, x: do.last("Clip", x, 0.0, 6.0),
    "revleaky": lambda do, x: do.last("LeakyRelu", x, alpha=0.1),
    "selu": lambda do, x: do.last("Selu", x, alpha=1.6732, gamma=1.0507),
    "swish": lambda do, x: do.last("Mul", x, do.step("Sigmoid", x)),
    "tanh": lambda do, x: do.last("Tanh", x),
}


# ---- the description


def _description(net: Section, heads: Sequence[tuple[Section, _Tensor]]) -> ModelDescription | None:
    if not heads or any(section.kind != "yolo" for section, _ in heads):
        return None
    levels = sorted((_level(net, section, tensor) for section, tensor in heads), key=_stride)
    first = levels[0]
    for key in ("num_classes", "new_coords"):
        if any(level[key] != first[key] for level in levels):
            values = ", ".join(str(level[key]) for level in levels)
            raise net.error(f"its [yolo] layers differ in {key}: {values}")
    strides = tuple(level["stride"] for level in levels)
    if len(set(strides)) < len(strides):
        raise net.error(f"two of its [yolo] layers have the same stride: {strides}")
    return ModelDescription(
        family="darknet",
        num_classes=first["num_classes"],
        input_size=_size(net),
        channel_order="rgb",
        scale=1 / 255,
        placement=Placement.CENTRE if net.integer("letter_box", 0) else Placement.STRETCH,
        pad_value=128,  # Darknet fills the rest of a letterbox with 0.5: letterbox_image in image.c
        strides=strides,
        anchors=tuple(level["anchors"] for level in levels),
        scale_x_y=tuple(level["scale_x_y"] for level in levels),
        new_coords=first["new_coords"],
    )


def _stride(level: Mapping[str, Any]) -> int:
    return int(level["stride"])


def _level(net: Section, section: Section, tensor: _Tensor) -> dict[str, Any]:
    numbers = section.numbers("anchors")
    count = section.integer("num", 1, 1)
    if len(numbers) != 2 * count:
        raise section.error(f"num={count} needs {2 * count} anchors, it has {len(numbers)}")
    mask = section.integers("mask") if "mask" in section.options else list(range(count))
    for index in mask:
        if not 0 <= index < count:
            raise section.error(f"mask has anchor {index}; expected 0 to {count - 1}")
    classes = section.integer("classes", 20, 1)
    channels, height, width = tensor.shape
    if channels != len(mask) * (5 + classes):
        raise section.error(
            f"{len(mask)} anchors of {classes} classes need {len(mask) * (5 + classes)} channels, "
            f"the layer before it has {channels} filters"
        )
    input_width, input_height = _size(net)
    stride = input_width // width
    if (stride * width, stride * height) != (input_width, input_height):
        raise section.error(
            f"its grid of {width} x {height} cells does not divide the input of "
            f"{input_width} x {input_height}"
        )
    return {
        "stride": stride,
        "num_classes": classes,
        "anchors": tuple((numbers[2 * index], numbers[2 * index + 1]) for index in mask),
        "scale_x_y": section.number("scale_x_y", 1.0),
        "new_coords": bool(section.integer("new_coords", 0)),
    }


__all__ = ["DarknetError", "DarknetNetwork", "convert", "import_darknet"]
