"""The rules of a DLA: published verdicts, golden values, and both sides of every limit."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from onnx import TensorProto
from onnx_networks import Network

from dla_perception.compiler.dla_support import (
    RULES,
    TENSORRT_OF_TARGET,
    Certainty,
    Condition,
    Relation,
    Target,
    TargetError,
    Verdict,
    judge,
)
from dla_perception.compiler.layer_facts import convolution_buffer_banks

XAVIER, ORIN_85 = Target("xavier", "8.5"), Target("orin", "8.5")
ORIN_86, ORIN_10 = Target("orin", "8.6"), Target("orin", "10.3")
TARGETS = (XAVIER, ORIN_85, ORIN_86, ORIN_10)
INT8 = {target: Target(target.module, target.tensorrt, "int8") for target in TARGETS}


def verdict(network: Network, target: Target = ORIN_10, op: str = "") -> Verdict:
    """The verdict on a network's last node, or on its only node of one operator."""
    graph = network.graph()
    nodes = [node for node in graph.nodes if not op or node.op_type == op]
    return judge(graph, nodes[-1], target)


def reasons(found: Verdict) -> str:
    return "; ".join(finding.reason for finding in (*found.refusals, *found.cautions))


def single(op: str, shape: tuple[int, ...] = (1, 8, 16, 16), opset: int = 17, **kw: Any) -> Network:
    network = Network(shape, opset)
    network.add(op, "x", **kw)
    return network


def conv(
    size: tuple[int, int] = (40, 40), channels: int = 8, out: int = 8, kernel: Any = 3, **kw: Any
) -> Network:
    network = Network((1, channels, *size))
    network.conv("x", channels, out, kernel, bias=False, **kw)
    return network


def deconv(
    channels: int = 4,
    out: int = 4,
    kernel: tuple[int, int] = (2, 2),
    size: tuple[int, int] = (8, 8),
    groups: int = 1,
    **kw: Any,
) -> Network:
    network = Network((1, channels, *size))
    weights = network.constant(np.ones((channels, out // groups, *kernel)))
    network.add("ConvTranspose", "x", weights, group=groups, **kw)
    return network


def with_constant(
    op: str, constant: tuple[int, ...], shape: tuple[int, ...] = (1, 8, 4, 4)
) -> Network:
    network = Network(shape)
    network.add(op, "x", network.constant(np.ones(constant)))
    return network


def two_inputs(op: str, shape: tuple[int, ...], other: tuple[int, ...], **kw: Any) -> Network:
    network = Network(shape)
    network.add(op, "x", network.input("y", other), **kw)
    return network


def compare(op: str, to: int = TensorProto.FLOAT16) -> Network:
    network = two_inputs(op, (1, 8, 4, 4), (1, 8, 4, 4))
    network.add("Cast", "t0", to=to)
    return network


def resize(scales: list[float] | None = None, **kw: Any) -> Network:
    network = Network((1, 8, 4, 4))
    kw.setdefault("coordinate_transformation_mode", "asymmetric")
    kw.setdefault("nearest_mode", "floor")
    if scales is None:
        network.add("Resize", "x", "", "", network.constant([1, 8, 8, 8], np.int64), **kw)
    else:
        network.add("Resize", "x", "", network.constant(scales), **kw)
    return network


def linear(scale: float, coordinates: str = "half_pixel") -> Network:
    return resize([1, 1, scale, scale], mode="linear", coordinate_transformation_mode=coordinates)


def slice_of(
    starts: list[int], ends: list[int], steps: list[int], shape: tuple[int, ...] = (2, 8, 8, 8)
) -> Network:
    network = Network(shape)
    bounds = [network.constant(item, np.int64) for item in (starts, ends)]
    axes = network.constant(list(range(len(starts))), np.int64)
    network.add("Slice", "x", *bounds, axes, network.constant(steps, np.int64))
    return network


def reshape(shape: tuple[int, ...], new: list[int], before: str = "") -> Network:
    network = Network(shape)
    source = "x"
    if before == "Concat":
        source = network.add("Concat", "x", "x", axis=1)
    network.add("Reshape", source, network.constant(new, np.int64))
    return network


def clip(low: float, high: float) -> Network:
    network = Network((1, 8, 4, 4))
    network.add("Clip", "x", network.constant(low), network.constant(high))
    return network


def gemm(out: int = 4, **kw: Any) -> Network:
    network = Network((2, 6))
    weights = network.constant(np.ones((out, 6) if kw.get("transB") else (6, out)))
    network.add("Gemm", "x", weights, **kw)
    return network


def matmul(constant: bool, out: int = 4) -> Network:
    network = Network((1, 2, 5, 6))
    other = network.constant(np.ones((6, out))) if constant else network.input("y", (1, 2, 6, out))
    network.add("MatMul", "x", other)
    return network


def moving_weights(op: str) -> Network:
    network = Network((1, 4, 8, 8))
    network.add(op, "x", network.input("w", (4, 4, 1, 1)))
    return network


def prelu(constant: bool) -> Network:
    network = Network((1, 4, 8, 8))
    slope = network.constant(np.ones((4, 1, 1))) if constant else network.input("s", (4, 1, 1))
    network.add("PRelu", "x", slope)
    return network


def reduce_max(axes: list[int], **kw: Any) -> Network:
    return single("ReduceMax", axes=axes, **kw)


def gather() -> Network:
    network = Network((1, 8, 4, 4))
    network.add("Gather", "x", network.constant([0, 2], np.int64), axis=1)
    return network


def pad() -> Network:
    network = Network((1, 3, 8, 8))
    network.add("Pad", "x", network.constant([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    return network


# --- published verdicts --------------------------------------------------------------------------

ALWAYS, NEVER = "yyyy", "nnnn"
PUBLISHED: list[tuple[str, Callable[[], Network], str, str]] = [
    # operator, a network with it, FP16 and INT8 verdict for Xavier/8.5, Orin/8.5, 8.6 and 10.3
    ("Conv", conv, ALWAYS, ALWAYS),
    ("ConvTranspose", deconv, ALWAYS, ALWAYS),
    ("Gemm", gemm, ALWAYS, ALWAYS),
    ("MatMul", lambda: matmul(True), "nyyy", "nyyy"),
    ("MaxPool", lambda: single("MaxPool", kernel_shape=[2, 2]), ALWAYS, ALWAYS),
    ("AveragePool", lambda: single("AveragePool", kernel_shape=[2, 2]), ALWAYS, ALWAYS),
    ("GlobalAveragePool", lambda: single("GlobalAveragePool"), NEVER, NEVER),
    ("GlobalMaxPool", lambda: single("GlobalMaxPool"), "nnny", "nnny"),
    ("ReduceMax", lambda: reduce_max([2, 3]), "nnny", "nnny"),
    ("ReduceMean", lambda: single("ReduceMean", axes=[2, 3]), NEVER, NEVER),
    ("ReduceMin", lambda: single("ReduceMin", axes=[2, 3]), NEVER, NEVER),
    ("ReduceL2", lambda: single("ReduceL2", axes=[2, 3]), NEVER, NEVER),
    ("Relu", lambda: single("Relu"), ALWAYS, ALWAYS),
    ("LeakyRelu", lambda: single("LeakyRelu", alpha=0.1), ALWAYS, ALWAYS),
    ("PRelu", lambda: prelu(True), ALWAYS, ALWAYS),
    ("Clip", lambda: clip(0, 6), ALWAYS, ALWAYS),
    ("Sigmoid", lambda: single("Sigmoid"), ALWAYS, ALWAYS),
    ("Tanh", lambda: single("Tanh"), ALWAYS, ALWAYS),
    ("HardSigmoid", lambda: single("HardSigmoid"), NEVER, NEVER),
    ("HardSwish", lambda: single("HardSwish"), NEVER, NEVER),
    ("Mish", lambda: single("Mish", opset=18), NEVER, NEVER),
    ("Softplus", lambda: single("Softplus"), NEVER, NEVER),
    ("Elu", lambda: single("Elu"), NEVER, NEVER),
    ("Erf", lambda: single("Erf"), NEVER, NEVER),
    ("Exp", lambda: single("Exp"), NEVER, NEVER),
    ("Add", lambda: two_inputs("Add", (1, 8, 4, 4), (1, 8, 4, 4)), ALWAYS, ALWAYS),
    ("Sum", lambda: two_inputs("Sum", (1, 8, 4, 4), (1, 8, 4, 4)), ALWAYS, ALWAYS),
    ("Sub", lambda: two_inputs("Sub", (1, 8, 4, 4), (1, 8, 4, 4)), ALWAYS, ALWAYS),
    ("Mul", lambda: two_inputs("Mul", (1, 8, 4, 4), (1, 8, 4, 4)), ALWAYS, ALWAYS),
    ("Max", lambda: two_inputs("Max", (1, 8, 4, 4), (1, 8, 4, 4)), ALWAYS, ALWAYS),
    ("Min", lambda: two_inputs("Min", (1, 8, 4, 4), (1, 8, 4, 4)), "ynny", "ynny"),
    ("Div", lambda: two_inputs("Div", (1, 8, 4, 4), (1, 8, 4, 4)), "nnny", "nnny"),
    ("Div by a constant", lambda: with_constant("Div", ()), "nnny", "nnny"),
    ("Pow", lambda: with_constant("Pow", ()), "nnny", "nnny"),
    ("Equal", lambda: compare("Equal"), NEVER, "nyyy"),
    ("Greater", lambda: compare("Greater"), NEVER, "nnny"),
    ("Less", lambda: compare("Less"), NEVER, "nnny"),
    ("Concat", lambda: two_inputs("Concat", (1, 8, 4, 4), (1, 2, 4, 4), axis=1), ALWAYS, ALWAYS),
    ("Slice", lambda: slice_of([0, 0], [2, 4], [1, 1]), ALWAYS, ALWAYS),
    ("Split", lambda: single("Split", axis=1, outputs=2, opset=13), ALWAYS, ALWAYS),
    ("Reshape", lambda: reshape((1, 8, 4, 4), [1, 8, 2, 8]), "nyyy", "nyyy"),
    ("Transpose", lambda: single("Transpose", perm=[0, 1, 3, 2]), "nyyy", "nyyy"),
    ("Flatten", lambda: single("Flatten"), NEVER, NEVER),
    ("Resize", lambda: resize([1, 1, 2, 2]), ALWAYS, ALWAYS),
    ("Softmax", lambda: single("Softmax", (1, 16, 1, 1), axis=1), "nyyy", "nyyy"),
    ("LRN", lambda: single("LRN", size=5), ALWAYS, ALWAYS),
    ("Abs", lambda: single("Abs"), ALWAYS, ALWAYS),
    ("Sin", lambda: single("Sin"), NEVER, "nnny"),
    ("Cos", lambda: single("Cos"), NEVER, "nnny"),
    ("Atanh", lambda: single("Atanh"), NEVER, NEVER),
    ("Neg", lambda: single("Neg"), NEVER, NEVER),
    ("Gather", gather, NEVER, NEVER),
    ("DepthToSpace", lambda: single("DepthToSpace", blocksize=2), NEVER, NEVER),
    ("SpaceToDepth", lambda: single("SpaceToDepth", blocksize=2), NEVER, NEVER),
    ("Identity", lambda: single("Identity"), NEVER, NEVER),
    ("Pad", pad, NEVER, NEVER),
    ("Sqrt", lambda: single("Sqrt"), NEVER, NEVER),
    ("LogSoftmax", lambda: single("LogSoftmax"), NEVER, NEVER),
    ("ArgMax", lambda: single("ArgMax", axis=1), NEVER, NEVER),
    ("Cast", lambda: single("Cast", to=TensorProto.INT64), NEVER, NEVER),
]


@pytest.mark.parametrize(
    ("op", "build", "fp16", "int8"), PUBLISHED, ids=[case[0] for case in PUBLISHED]
)
def test_published_verdicts(op: str, build: Callable[[], Network], fp16: str, int8: str) -> None:
    graph = build().graph()
    node = next(node for node in graph.nodes if node.op_type == op.split()[0])
    for index, target in enumerate(TARGETS):
        for expected, judged in ((fp16[index], target), (int8[index], INT8[target])):
            found = judge(graph, node, judged)
            assert found.on_dla == (expected == "y"), f"{judged}: {reasons(found)}"


def test_operator_in_no_list_is_refused() -> None:
    found = verdict(single("EyeLike", (4, 4)))
    assert not found.on_dla
    assert found.refusals[0].reason == "EyeLike is in no DLA list"
    assert found.refusals[0].certainty is Certainty.INFERRED


# --- the convolution buffer ----------------------------------------------------------------------

BANKS = [
    # channels, kernel, width, dilation, precision, banks for weights and data, fits
    (512, 3, 160, 1, "int8", 1, 8, True),
    (512, 3, 160, 1, "fp16", 1, 15, True),
    (512, 3, 168, 1, "fp16", 1, 16, False),
    (1024, 3, 160, 1, "int8", 1, 15, True),
    (256, 3, 84, 1, "fp16", 1, 4, True),
    (64, 3, 320, 1, "fp16", 1, 4, True),
    (512, 3, 80, 2, "fp16", 1, 13, True),
    (3, 6, 672, 1, "int8", 1, 4, True),
]


@pytest.mark.parametrize("case", BANKS, ids=str)
def test_convolution_buffer_golden_values(case: tuple[Any, ...]) -> None:
    channels, kernel, width, dilation, precision, weights, data, fits = case
    size = 1 if precision == "int8" else 2
    banks = convolution_buffer_banks(channels, (kernel, kernel), width, dilation, size)
    assert banks == (weights, data)
    network = conv((8, width), channels, 1, kernel, pads=[2] * 4, dilations=[dilation] * 2)
    found = verdict(network, Target("orin", "8.6", precision))
    assert found.on_dla == fits
    if not fits:
        assert found.refusals[0].reason == (
            f"the convolution buffer has 16 banks, this needs {weights} for weights and {data} "
            "for data"
        )


# --- both sides of every limit -------------------------------------------------------------------

Build = Callable[[], Network]
LIMITS: list[tuple[str, Build, Build, str, Target]] = [
    # what, inside, outside, what is said of the one outside, target
    (
        "batch",
        lambda: single("Relu", (4096, 1, 1, 1)),
        lambda: single("Relu", (4097, 1, 1, 1)),
        "the batch is at most 4096",
        ORIN_10,
    ),
    (
        "size",
        lambda: single("Relu", (1, 1, 1, 8192)),
        lambda: single("Relu", (1, 1, 1, 8193)),
        "dimensions are at most 8192",
        ORIN_10,
    ),
    (
        "tensor size",
        lambda: single("Relu", (1, 8, 8191, 8191)),
        lambda: single("Relu", (1, 8, 8192, 8192)),
        "under 1 GB",
        ORIN_10,
    ),
    (
        "type",
        lambda: single("Relu"),
        lambda: _typed("Add", TensorProto.INT32),
        "FP16 and INT8 only: 'x' is INT32",
        ORIN_10,
    ),
    (
        "fixed shape",
        lambda: single("Relu"),
        lambda: single("Relu", (1, 8, "h", 16)),  # type: ignore[arg-type]
        "dynamic shapes in any dimension: x, t0",
        ORIN_10,
    ),
    (
        "4 dimensions to move",
        lambda: single("Transpose", (1, 2, 3, 4), perm=[0, 1, 3, 2]),
        lambda: single("Transpose", (1, 3, 4), perm=[0, 2, 1]),
        "it works on 4 dimensions, its tensors have 3",
        ORIN_10,
    ),
    (
        "4 dimensions to compute",
        lambda: single("Sigmoid", (1, 2, 3, 4)),
        lambda: single("Sigmoid", (1, 85, 100)),
        "it works on planes",
        ORIN_10,
    ),
    (
        "2-D convolution",
        conv,
        lambda: _conv_1d("Conv"),
        "convolutions are two-dimensional",
        ORIN_10,
    ),
    (
        "constant weights",
        conv,
        lambda: moving_weights("Conv"),
        "its weights are computed",
        ORIN_10,
    ),
    ("MatMul operand", lambda: matmul(True), lambda: matmul(False), "attention", ORIN_10),
    (
        "kernel",
        lambda: conv(kernel=(32, 1)),
        lambda: conv(kernel=(33, 1)),
        "kernel 33x1: kernels are 1 to 32",
        ORIN_10,
    ),
    (
        "stride",
        lambda: conv(strides=[8, 1]),
        lambda: conv(strides=[9, 1]),
        "stride 9x1: strides are 1 to 8",
        ORIN_10,
    ),
    (
        "padding",
        lambda: conv(kernel=32, pads=[31] * 4),
        lambda: conv(kernel=32, pads=[32] * 4),
        "padding is 0 to 31",
        ORIN_10,
    ),
    (
        "padding and kernel",
        lambda: conv(pads=[2] * 4),
        lambda: conv(pads=[3, 2, 3, 2]),
        "padding 3x2x3x2 must be less than the kernel 3x3",
        ORIN_10,
    ),
    (
        "dilation",
        lambda: conv((100, 100), dilations=[32, 1]),
        lambda: conv((100, 100), dilations=[33, 1]),
        "dilation 33x1",
        ORIN_10,
    ),
    (
        "output channels",
        lambda: conv(channels=1, out=8192, kernel=1),
        lambda: conv(channels=1, out=8193, kernel=1),
        "8193 output channels",
        ORIN_10,
    ),
    (
        "groups",
        lambda: conv((1, 1), 8192, 8192, 1, groups=8192),
        lambda: conv((1, 1), 8193, 8193, 1, groups=8193),
        "8193 groups",
        ORIN_10,
    ),
    (
        "groups at the input",
        lambda: conv(channels=4, out=4, groups=4),
        lambda: conv(channels=5, out=5, groups=5),
        "with the format DLA_HWC4 at most 4",
        ORIN_10,
    ),
    (
        "convolution buffer",
        lambda: conv((8, 160), 512, 1),
        lambda: conv((8, 168), 512, 1),
        "the convolution buffer has 16 banks, this needs 1 for weights and 16 for data",
        ORIN_10,
    ),
    (
        "convolution buffer as reported",
        lambda: conv((8, 72), 512, 1),
        lambda: conv((8, 160), 512, 1),
        "was refused by 8.5.2",
        ORIN_85,
    ),
    (
        "Gemm operand",
        lambda: gemm(transB=1),
        lambda: _gemm_transposed(),
        "its first operand is transposed",
        ORIN_10,
    ),
    ("2-D deconvolution", deconv, lambda: _conv_1d("ConvTranspose"), "two-dimensional", ORIN_10),
    (
        "deconvolution kernel",
        lambda: deconv(kernel=(32, 32)),
        lambda: deconv(kernel=(33, 32)),
        "kernel 33x32: 1 to 32, or 1 by 64, 96 or 128",
        ORIN_10,
    ),
    (
        "long deconvolution kernel",
        lambda: deconv(kernel=(1, 96)),
        lambda: deconv(kernel=(2, 96)),
        "kernel 2x96",
        ORIN_10,
    ),
    (
        "deconvolution stride",
        lambda: deconv(kernel=(2, 2), strides=[32, 2]),
        lambda: deconv(kernel=(2, 2), strides=[33, 2]),
        "stride 33x2",
        ORIN_10,
    ),
    (
        "square deconvolution",
        lambda: deconv(kernel=(22, 22), strides=[22, 22], size=(2, 2)),
        lambda: deconv(kernel=(23, 23), strides=[23, 23], size=(2, 2)),
        "they compile too slowly",
        ORIN_10,
    ),
    (
        "deconvolution padding",
        deconv,
        lambda: deconv(pads=[1, 0, 0, 0]),
        "must have none",
        ORIN_10,
    ),
    (
        "deconvolution output padding",
        lambda: deconv(strides=[2, 2]),
        lambda: deconv(strides=[2, 2], output_padding=[1, 0]),
        "output padding 1x0",
        ORIN_10,
    ),
    ("deconvolution groups", deconv, lambda: deconv(groups=2), "2 groups", ORIN_10),
    (
        "deconvolution dilation",
        deconv,
        lambda: deconv(dilations=[1, 2]),
        "dilation 1x2",
        ORIN_10,
    ),
    (
        "deconvolution input channels",
        lambda: deconv(8192, 1, (1, 1), (1, 1)),
        lambda: deconv(8193, 1, (1, 1), (1, 1)),
        "8193 input channels",
        ORIN_10,
    ),
    (
        "deconvolution output channels",
        lambda: deconv(1, 8192, (1, 1), (1, 1)),
        lambda: deconv(1, 8193, (1, 1), (1, 1)),
        "8193 output channels",
        ORIN_10,
    ),
    (
        "2-D pool",
        lambda: single("MaxPool", kernel_shape=[2, 2]),
        lambda: single("MaxPool", (1, 8, 16), kernel_shape=[2]),
        "pools are two-dimensional",
        ORIN_10,
    ),
    (
        "pool window",
        lambda: single("MaxPool", kernel_shape=[8, 8]),
        lambda: single("MaxPool", kernel_shape=[9, 8]),
        "window 9x8: pooling windows are 1 to 8",
        ORIN_10,
    ),
    (
        "pool padding",
        lambda: single("MaxPool", kernel_shape=[8, 8], pads=[7] * 4),
        lambda: single("MaxPool", kernel_shape=[9, 9], pads=[8] * 4),
        "of pools it is 0 to 7",
        ORIN_10,
    ),
    (
        "pool stride",
        lambda: single("AveragePool", (1, 2, 40, 40), kernel_shape=[2, 2], strides=[16, 16]),
        lambda: single("AveragePool", (1, 2, 40, 40), kernel_shape=[2, 2], strides=[17, 16]),
        "stride 17x16: of pools it is 1 to 16",
        ORIN_10,
    ),
    (
        "pool dilation",
        lambda: single("MaxPool", kernel_shape=[2, 2], dilations=[1, 1]),
        lambda: single("MaxPool", kernel_shape=[2, 2], dilations=[2, 1]),
        "pools have no dilation",
        ORIN_10,
    ),
    (
        "pool indices",
        lambda: single("MaxPool", kernel_shape=[2, 2]),
        lambda: single("MaxPool", kernel_shape=[2, 2], outputs=2),
        "it returns indices too",
        ORIN_10,
    ),
    (
        "average with padding",
        lambda: single("AveragePool", kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
        lambda: single("AveragePool", kernel_shape=[3, 3], pads=[1] * 4),
        "count_include_pad must be 1",
        XAVIER,
    ),
    (
        "symmetric padding",
        lambda: conv(pads=[1, 1, 1, 1]),
        lambda: conv(pads=[0, 0, 1, 1]),
        "differs between the sides",
        ORIN_10,
    ),
    (
        "rounding",
        lambda: single("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        lambda: single("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        "it rounds its size up",
        ORIN_10,
    ),
    (
        "INT8 pool",
        lambda: single("AveragePool", kernel_shape=[2, 2]),
        lambda: single("MaxPool", kernel_shape=[2, 2]),
        "the same INT8 scale",
        INT8[ORIN_10],
    ),
    (
        "equal shapes",
        lambda: two_inputs("Mul", (1, 8, 4, 4), (1, 8, 4, 4)),
        lambda: two_inputs("Mul", (1, 8, 4, 4), (1, 8, 1, 1)),
        "its operands have different shapes",
        ORIN_10,
    ),
    (
        "constant per channel",
        lambda: with_constant("Mul", (8, 1, 1)),
        lambda: with_constant("Mul", (1, 4)),
        "its constant is neither",
        ORIN_10,
    ),
    (
        "constant per element",
        lambda: with_constant("Add", (8, 4, 4)),
        lambda: with_constant("Add", (4, 4)),
        "its constant is neither",
        ORIN_10,
    ),
    (
        "Max with a constant",
        lambda: two_inputs("Max", (1, 8, 4, 4), (1, 8, 4, 4)),
        lambda: with_constant("Max", ()),
        "it is no Scale layer",
        ORIN_10,
    ),
    (
        "Min on a Xavier",
        lambda: two_inputs("Max", (1, 8, 4, 4), (1, 8, 4, 4)),
        lambda: two_inputs("Min", (1, 8, 4, 4), (1, 8, 4, 4)),
        "sources disagree on Min",
        XAVIER,
    ),
    (
        "Pow in INT8",
        lambda: with_constant("Mul", ()),
        lambda: with_constant("Pow", ()),
        "whether Pow runs in INT8 is not published",
        INT8[ORIN_10],
    ),
    (
        "INT8 operands",
        lambda: with_constant("Add", ()),
        lambda: two_inputs("Add", (1, 8, 4, 4), (1, 8, 4, 4)),
        "both operands should have the same INT8 scale",
        INT8[ORIN_10],
    ),
    (
        "cast after a comparison",
        lambda: compare("Greater"),
        lambda: compare("Greater", TensorProto.INT64),
        "must be cast to INT8 or FP16 at once",
        INT8[ORIN_10],
    ),
    ("Clip from 0", lambda: clip(0, 6), lambda: clip(-1, 6), "lower limit -1.0", ORIN_10),
    ("Clip to 1", lambda: clip(0, 1), lambda: clip(0, 0.5), "upper limit 0.5", ORIN_10),
    ("Clip to 127", lambda: clip(0, 127), lambda: clip(0, 128), "upper limit 128.0", ORIN_10),
    ("slopes", lambda: prelu(True), lambda: prelu(False), "slopes must be constants", ORIN_10),
    (
        "INT8 Sigmoid",
        lambda: single("Relu"),
        lambda: single("Sigmoid"),
        "INT8 is computed as FP16 inside (before",
        INT8[ORIN_85],
    ),
    (
        "INT8 Tanh",
        lambda: single("Sigmoid"),
        lambda: single("Tanh"),
        "INT8 is computed as FP16 inside",
        INT8[ORIN_86],
    ),
    (
        "INT8 Softmax",
        lambda: single("Sigmoid"),
        lambda: single("Softmax", (1, 4, 1, 1), axis=1),
        "INT8 is computed as FP16 inside",
        INT8[ORIN_10],
    ),
    (
        "Softmax axis",
        lambda: single("Softmax", (1, 16, 1, 1), axis=1),
        lambda: single("Softmax", (2, 16, 1, 1), axis=0),
        "it runs over the batch",
        ORIN_10,
    ),
    (
        "Softmax size",
        lambda: single("Softmax", (1, 8192, 1, 1), axis=1),
        lambda: single("Softmax", (1, 8193, 1, 1), axis=1),
        "8193 values",
        ORIN_10,
    ),
    (
        "Softmax size in planes",
        lambda: single("Softmax", (1, 1024, 2, 1), axis=1),
        lambda: single("Softmax", (1, 1025, 2, 1), axis=1),
        "1025 values",
        ORIN_10,
    ),
    (
        "Softmax batch",
        lambda: single("Softmax", (1, 16, 1, 1), axis=1),
        lambda: single("Softmax", (2, 16, 1, 1), axis=1),
        "SoftMax for batch 1 only",
        ORIN_85,
    ),
    (
        "LRN window",
        lambda: single("LRN", size=9),
        lambda: single("LRN", size=11),
        "window 11",
        ORIN_10,
    ),
    (
        "Concat axis",
        lambda: two_inputs("Concat", (1, 2, 4, 4), (1, 2, 4, 4), axis=-3),
        lambda: two_inputs("Concat", (1, 2, 4, 4), (1, 2, 4, 4), axis=2),
        "along the channels only",
        ORIN_10,
    ),
    (
        "Concat inputs",
        lambda: two_inputs("Concat", (1, 2, 4, 4), (1, 2, 4, 4), axis=1),
        lambda: single("Concat", axis=1),
        "requires at least two inputs",
        ORIN_10,
    ),
    (
        "INT8 Concat",
        lambda: single("Relu"),
        lambda: two_inputs("Concat", (1, 2, 4, 4), (1, 2, 4, 4), axis=1),
        "all inputs and the output must have the same INT8 scale",
        INT8[ORIN_10],
    ),
    (
        "Slice bounds",
        lambda: slice_of([0, 0], [2, 4], [1, 1]),
        lambda: _slice_moving(),
        "start, size and step must be constants",
        ORIN_10,
    ),
    (
        "Slice step",
        lambda: slice_of([0, 0, 1], [2, 8, 8], [1, 1, 1]),
        lambda: slice_of([0, 0, 1], [2, 8, 8], [1, 1, 2]),
        "step 1x1x2x1",
        ORIN_10,
    ),
    (
        "Slice axis",
        lambda: slice_of([0, 1], [2, 8], [1, 1]),
        lambda: slice_of([1, 0], [2, 8], [1, 1]),
        "it cuts the batch",
        ORIN_10,
    ),
    (
        "Split axis",
        lambda: single("Split", (2, 8, 4, 4), axis=1, outputs=2, opset=13),
        lambda: single("Split", (2, 8, 4, 4), axis=0, outputs=2, opset=13),
        "it cuts the batch",
        ORIN_10,
    ),
    (
        "Transpose of the batch",
        lambda: single("Transpose", (2, 2, 3, 4), perm=[0, 3, 2, 1]),
        lambda: single("Transpose", (2, 2, 3, 4), perm=[1, 0, 2, 3]),
        "it mixes the batch",
        ORIN_10,
    ),
    (
        "Reshape of the batch",
        lambda: reshape((2, 8, 4, 4), [2, 16, 2, 4]),
        lambda: reshape((2, 8, 4, 4), [4, 4, 4, 4]),
        "it mixes the batch",
        ORIN_10,
    ),
    (
        "Reshape at a Concat",
        lambda: reshape((1, 8, 4, 4), [1, 8, 2, 8]),
        lambda: reshape((1, 8, 4, 4), [1, 8, 2, 16], "Concat"),
        "does not support a Reshape directly at a Slice or Concat: 'Concat_0'",
        ORIN_85,
    ),
    (
        "Resize by scales",
        lambda: resize([1, 1, 2, 2]),
        lambda: resize(None),
        "it is given sizes instead of scales",
        ORIN_10,
    ),
    (
        "number of scales",
        lambda: resize([1, 1, 2, 2]),
        lambda: _resize_moving(),
        "four constants",
        ORIN_10,
    ),
    (
        "scaled channels",
        lambda: resize([1, 1, 2, 2]),
        lambda: resize([1, 2, 2, 2]),
        "it scales batch or channels",
        ORIN_10,
    ),
    (
        "whole scales",
        lambda: resize([1, 1, 3, 2]),
        lambda: resize([1, 1, 2.5, 2]),
        "scale 2.5x2: scales must be whole numbers",
        ORIN_10,
    ),
    (
        "nearest scale",
        lambda: resize([1, 1, 32, 1]),
        lambda: resize([1, 1, 33, 1]),
        "scale 33x1: nearest takes 1 to 32",
        ORIN_10,
    ),
    ("linear scale", lambda: linear(4), lambda: linear(5), "linear takes 1 to 4", ORIN_10),
    (
        "mapping",
        lambda: resize(
            [1, 1, 2, 2],
            coordinate_transformation_mode="half_pixel",
            nearest_mode="round_prefer_ceil",
        ),
        lambda: resize([1, 1, 2, 2], nearest_mode="round_prefer_ceil"),
        "the mapping nearest+asymmetric+round_prefer_ceil",
        ORIN_10,
    ),
    (
        "linear mapping",
        lambda: linear(2),
        lambda: linear(2, "align_corners"),
        "the mapping linear+align_corners",
        ORIN_10,
    ),
    (
        "reduced axes",
        lambda: reduce_max([1]),
        lambda: reduce_max([0]),
        "channels, rows and columns only",
        ORIN_10,
    ),
    (
        "kept dimensions",
        lambda: reduce_max([2], keepdims=1),
        lambda: reduce_max([2], keepdims=0),
        "it must keep the reduced dimensions",
        ORIN_10,
    ),
]


def _typed(op: str, elem_type: int) -> Network:
    network = Network((1, 8, 4, 4), elem_type=elem_type)
    network.add(op, "x", "x")
    return network


def _conv_1d(op: str) -> Network:
    network = Network((1, 4, 16))
    network.add(op, "x", network.constant(np.ones((4, 4, 3))))
    return network


def _gemm_transposed() -> Network:
    network = Network((6, 2))
    network.add("Gemm", "x", network.constant(np.ones((6, 4))), transA=1)
    return network


def _slice_moving() -> Network:
    network = Network((2, 8, 8, 8))
    ends = network.input("e", (1,), TensorProto.INT64)
    start, axes = network.constant([0], np.int64), network.constant([1], np.int64)
    network.add("Slice", "x", start, ends, axes)
    return network


def _resize_moving() -> Network:
    network = Network((1, 8, 4, 4))
    network.add(
        "Resize",
        "x",
        "",
        network.input("s", (4,)),
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    return network


@pytest.mark.parametrize(
    ("what", "inside", "outside", "said", "target"), LIMITS, ids=[case[0] for case in LIMITS]
)
def test_both_sides_of_a_limit(
    what: str, inside: Build, outside: Build, said: str, target: Target
) -> None:
    allowed, beyond = verdict_of_case(inside, target), verdict_of_case(outside, target)
    assert allowed.on_dla
    assert said not in reasons(allowed)
    assert said in reasons(beyond)
    rule = _rule_that_says(beyond, said)
    assert beyond.on_dla == (not rule.refuses)


def verdict_of_case(build: Build, target: Target) -> Verdict:
    graph = build().graph()
    nodes = [node for node in graph.nodes if node.op_type != "Cast"]
    return judge(graph, nodes[-1], target)


def _rule_that_says(found: Verdict, said: str) -> Any:
    reason = next(f for f in (*found.refusals, *found.cautions) if said in f.reason)
    return next(
        rule
        for rule in RULES
        if rule.source == reason.source and _matches(rule.reason, reason.reason)
    )


def _matches(template: str, text: str) -> bool:
    import re

    pattern = "".join(
        ".*" if part.startswith("{") else re.escape(part)
        for part in re.split(r"(\{\w+\})", template)
    )
    return re.fullmatch(pattern, text) is not None


def test_every_rule_with_a_limit_is_tested_on_both_sides() -> None:
    told = {
        finding.reason
        for _, _, outside, _, target in LIMITS
        for found in [verdict_of_case(outside, target)]
        for finding in (*found.refusals, *found.cautions)
    }
    untested = [
        rule.reason
        for rule in RULES
        if (rule.needs is not None or not rule.refuses)
        and not any(_matches(rule.reason, reason) for reason in told)
    ]
    assert untested == []


def test_every_operator_that_is_never_taken_is_refused_where_the_rule_applies() -> None:
    published = {case[0].split()[0]: case for case in PUBLISHED}
    for rule in RULES:
        if rule.needs is not None or not rule.refuses:
            continue
        for op in set(rule.ops) & set(published):
            _, _, fp16, int8 = published[op]
            for index, target in enumerate(TARGETS):
                for letter, judged in ((fp16[index], target), (int8[index], INT8[target])):
                    assert not (rule.applies(op, judged) and letter == "y"), (op, str(judged))


# --- what a builder fuses ------------------------------------------------------------------------


def test_silu_needs_no_common_scale_but_a_gate_of_another_tensor_does() -> None:
    network = Network((1, 4, 8, 8))
    sigmoid = network.add("Sigmoid", "x")
    network.add("Mul", sigmoid, "x")
    assert reasons(verdict(network, INT8[ORIN_86])) == ""
    other = Network((1, 4, 8, 8))
    other.input("y", (1, 4, 8, 8))
    other.add("Mul", other.add("Sigmoid", "x"), "y")
    assert "same INT8 scale" in reasons(verdict(other, INT8[ORIN_86]))


# --- the table itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.reason[:40])
def test_rules_are_complete_data(rule: Any) -> None:
    assert rule.source
    assert rule.reason
    assert set(rule.targets) <= set(TENSORRT_OF_TARGET)
    assert rule.since in TENSORRT_OF_TARGET["orin"]
    assert rule.until in TENSORRT_OF_TARGET["orin"]
    assert isinstance(rule.certainty, Certainty)


def test_a_condition_on_an_unknown_fact_fails() -> None:
    assert not Condition("kernel", Relation.WITHIN, (1, 8)).holds({})
    assert not Condition("kernel", Relation.WITHIN, (1, 8)).holds({"kernel": None})
    assert Condition("kernel", Relation.WITHIN, (1, 8)).holds({"kernel": (1, 8)})


@pytest.mark.parametrize(
    ("module", "tensorrt", "precision", "said"),
    [
        ("xavier", "8.6", "fp16", "TensorRT 8.6 does not drive the DLA of a Jetson Xavier"),
        ("thor", "10.3", "fp16", "target 'thor' is unknown"),
        ("orin", "10.8", "fp16", "expected 8.5, 8.6, 10.3"),
        ("orin", "10.3", "fp32", "precision 'fp32'"),
    ],
)
def test_impossible_targets(module: str, tensorrt: str, precision: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        Target(module, tensorrt, precision)
