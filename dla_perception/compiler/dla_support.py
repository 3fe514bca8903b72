"""Which layers which DLA takes, and why not: published rules as a table, and how to apply it.

The rules are necessary, not sufficient: on a device TensorRT's ``can_run_on_DLA`` and the build
have the last word. Sources, as named in the table:

* ``guide 8.4``: TensorRT 8.4 developer guide, chapter "Working with DLA".
* ``guide 10``: TensorRT 10 documentation, "DLA Supported Layers and Restrictions".
* ``header 8.4``, ``header 8.5``: ``NvInfer.h`` and ``NvInferRuntime.h`` of that release.
* ``DLA-SW``: NVIDIA/Deep-Learning-Accelerator-SW, ``operators/README.md`` and ``FAQ/README.md``.
* ``TensorRT#N``, ``ultralytics#N``: an issue of that repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Mapping

from dla_perception.compiler.layer_facts import CONVOLUTION_BUFFER_BANKS, layer_facts
from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.graph import Graph

MEBIBYTE = 1 << 20


class TargetError(DlaPerceptionError):
    """A combination of module, TensorRT and precision that does not exist."""


TENSORRT_OF_TARGET: Mapping[str, tuple[str, ...]] = {
    "xavier": ("8.5",),
    "orin": ("8.5", "8.6", "10.3"),
}
"""TensorRT releases that drive each module's DLA, oldest first (JetPack 5.1, 6.0 and 6.1+)."""

OPSETS: Mapping[str, tuple[int, int]] = {"8.5": (7, 17), "8.6": (7, 17), "10.3": (9, 20)}
"""Opsets that each release's ONNX parser reads (onnx-tensorrt, ``docs/operators.md``)."""

PRECISIONS = ("fp16", "int8")


@dataclass(frozen=True)
class Target:
    """A kind of DLA, the TensorRT that drives it, and the precision asked for."""

    module: str = "orin"
    tensorrt: str = "10.3"
    precision: str = "fp16"

    def __post_init__(self) -> None:
        releases = TENSORRT_OF_TARGET.get(self.module)
        if releases is None:
            raise TargetError(
                f"target '{self.module}' is unknown; expected {' or '.join(TENSORRT_OF_TARGET)}"
            )
        if self.tensorrt not in releases:
            raise TargetError(
                f"TensorRT {self.tensorrt} does not drive the DLA of a Jetson "
                f"{self.module.capitalize()}; expected {', '.join(releases)}"
            )
        if self.precision not in PRECISIONS:
            raise TargetError(f"precision '{self.precision}': a DLA computes in fp16 or int8")

    @property
    def opsets(self) -> tuple[int, int]:
        """Oldest and newest opset that its ONNX parser reads."""
        return OPSETS[self.tensorrt]

    def __str__(self) -> str:
        return (
            f"Jetson {self.module.capitalize()}, TensorRT {self.tensorrt}, {self.precision.upper()}"
        )


class Certainty(str, Enum):
    """How well a rule is founded."""

    DOCUMENTED = "documented"  # NVIDIA's documentation or headers say so
    REPORTED = "reported"  # seen on devices, in logs or issues
    CONFLICTING = "conflicting"  # sources disagree: the careful reading is used
    INFERRED = "inferred"  # follows from the documentation, stated nowhere


class Relation(str, Enum):
    """How a fact of a layer is compared."""

    WITHIN = "within"  # (low, high), every value of the fact
    ONE_OF = "one of"  # the allowed values
    ALL_ONE_OF = "all one of"  # the allowed values, for every value of the fact
    LESS_THAN = "less than"  # another fact, value by value
    ANY = "any"  # one of several conditions


@dataclass(frozen=True)
class Condition:
    """What must hold of a layer: ``fact relation value``. A fact that is unknown fails."""

    fact: str
    relation: Relation
    value: Any

    def holds(self, facts: Mapping[str, Any]) -> bool:
        """Whether it holds of a layer with these facts."""
        if self.relation is Relation.ANY:
            return any(choice.holds(facts) for choice in self.value)
        found = facts.get(self.fact)
        if found is None:
            return False
        values = found if isinstance(found, tuple) else (found,)
        if self.relation is Relation.WITHIN:
            low, high = self.value
            return all(low <= value <= high for value in values)
        if self.relation is Relation.ONE_OF:
            return found in self.value
        if self.relation is Relation.ALL_ONE_OF:
            return all(value in self.value for value in values)
        return all(value < other for value, other in zip(values, facts[self.value]))


def _within(fact: str, low: float, high: float) -> Condition:
    return Condition(fact, Relation.WITHIN, (low, high))


def _one_of(fact: str, *values: Any) -> Condition:
    return Condition(fact, Relation.ONE_OF, values)


def _all(fact: str, *values: Any) -> Condition:
    return Condition(fact, Relation.ALL_ONE_OF, values)


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    Attributes:
        ops: ONNX operators; empty for all.
        needs: what must hold for the layer to run on the DLA; ``None``: it never does.
        reason: why not, with facts of the layer in braces.
        source: where it is written.
        certainty: how well it is founded.
        targets: modules it applies to.
        since, until: TensorRT releases it applies to, both included.
        precisions: precisions it applies to.
        refuses: whether the layer goes to the GPU; else it is told as a caution.
        mend: what to do about it, in a few words.
    """

    ops: tuple[str, ...]
    needs: Condition | None
    reason: str
    source: str
    certainty: Certainty = Certainty.DOCUMENTED
    targets: tuple[str, ...] = ("xavier", "orin")
    since: str = "8.5"
    until: str = "10.3"
    precisions: tuple[str, ...] = PRECISIONS
    refuses: bool = True
    mend: str = ""

    def applies(self, op: str, target: Target) -> bool:
        """Whether the rule is about this operator and target."""
        return (
            (not self.ops or op in self.ops)
            and target.module in self.targets
            and _version(self.since) <= _version(target.tensorrt) <= _version(self.until)
            and target.precision in self.precisions
        )


@dataclass(frozen=True)
class Finding:
    """A rule that a layer breaks, in words."""

    reason: str
    mend: str
    source: str
    certainty: Certainty


@dataclass(frozen=True)
class Verdict:
    """Whether a layer runs on the DLA.

    Attributes:
        on_dla: the answer of the rules.
        refusals: why not.
        cautions: what may go wrong although the rules allow it, or is worth knowing.
    """

    on_dla: bool
    refusals: tuple[Finding, ...]
    cautions: tuple[Finding, ...]


TENSORRT_LAYERS: Mapping[str, str] = {
    "Abs": "Unary",
    "Add": "ElementWise or Scale",
    "Atan": "Unary",
    "AveragePool": "Pooling",
    "BatchNormalization": "Scale",
    "Clip": "Activation",
    "Concat": "Concatenation",
    "Conv": "Convolution",
    "ConvTranspose": "Deconvolution",
    "Cos": "Unary",
    "Div": "ElementWise",
    "Equal": "ElementWise",
    "Gemm": "FullyConnected",
    "GlobalMaxPool": "Reduce",
    "Greater": "ElementWise",
    "LRN": "LRN",
    "LeakyRelu": "Activation",
    "Less": "ElementWise",
    "MatMul": "MatrixMultiply",
    "Max": "ElementWise",
    "MaxPool": "Pooling",
    "Min": "ElementWise",
    "Mul": "ElementWise or Scale",
    "PRelu": "ParametricReLU",
    "Pow": "ElementWise",
    "ReduceMax": "Reduce",
    "Relu": "Activation",
    "Reshape": "Shuffle",
    "Resize": "Resize",
    "Sigmoid": "Activation",
    "Sin": "Unary",
    "Slice": "Slice",
    "Softmax": "SoftMax",
    "Split": "Slice",
    "Sub": "ElementWise",
    "Sum": "ElementWise",
    "Tanh": "Activation",
    "Transpose": "Shuffle",
    "Upsample": "Resize",
}
"""Operators that some DLA takes under some conditions, with the TensorRT layer they become."""

_XAVIER = ("xavier",)
_ORIN = ("orin",)
_POOLS = ("MaxPool", "AveragePool")
_ELEMENTWISE = ("Add", "Sum", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Equal", "Greater", "Less")
_RETRAIN = "choose another function with 'prepare --replace' and train or calibrate again"
_CUT = "cut the network before it: prepare does, for the heads it knows"

RULES: tuple[Rule, ...] = (
    # --- operators that are not taken at all -----------------------------------------------------
    Rule(
        ("HardSigmoid", "HardSwish", "Mish"),
        None,
        "{op} is not offered by TensorRT for the DLA, although DLA software 3.14 has it",
        "DLA-SW",
        mend=_RETRAIN,
    ),
    Rule(
        ("Softplus", "Elu", "Celu", "Selu", "Gelu", "Erf", "ThresholdedRelu", "Softsign"),
        None,
        "{op} is not among the activations of a DLA (ReLU, leaky and clipped ReLU, sigmoid, tanh)",
        "DLA-SW; guide 10",
        mend=_RETRAIN,
    ),
    Rule(
        ("Exp", "Log", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil", "Sign", "Tan", "Sinh")
        + ("Cosh", "Acos", "Acosh", "Asin", "Asinh", "Mod", "Mean", "Expand", "Tile", "Shrink"),
        None,
        "{op} is not offered by TensorRT for the DLA, although DLA software 3.14 has it",
        "DLA-SW",
        mend=_CUT,
    ),
    Rule(
        ("Pad",),
        None,
        "Pad is not offered by TensorRT for the DLA",
        "DLA-SW",
        mend="prepare moves zeros into the convolution that follows",
    ),
    Rule(
        ("GlobalAveragePool", "ReduceMean"),
        None,
        "a DLA has no averages over whole planes; its pooling windows end at 8",
        "DLA-SW",
        mend="prepare makes a chain of average pools",
    ),
    Rule(
        ("ReduceSum",),
        None,
        "a DLA reduces by maximum only",
        "DLA-SW; guide 10",
        mend="prepare makes average pools and a factor",
    ),
    Rule(
        ("ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
        + ("ReduceSumSquare",),
        None,
        "a DLA reduces by maximum only",
        "DLA-SW; guide 10",
        mend=_CUT,
    ),
    Rule(
        ("GlobalMaxPool", "ReduceMax"),
        None,
        "maxima over whole planes are taken from TensorRT 8.6.12 (DRIVE) and 10 on",
        "DLA-SW; guide 10",
        until="8.6",
        mend="prepare makes a chain of max pools",
    ),
    Rule(
        ("Div",),
        None,
        "DLA cores do not support DIV before TensorRT 8.6.12 (DRIVE) and 10",
        "DLA-SW; guide 10; ultralytics#16449",
        until="8.6",
        mend="prepare multiplies by the inverse where the divisor is constant",
    ),
    Rule(
        ("Pow",),
        None,
        "powers are taken from TensorRT 10 on",
        "guide 10",
        until="8.6",
        mend=_CUT,
    ),
    Rule(
        ("Min",),
        None,
        "sources disagree on Min on an Orin before TensorRT 10: counted as refused",
        "DLA-SW against guide 8.4 and header 8.4",
        Certainty.CONFLICTING,
        targets=_ORIN,
        until="8.6",
        mend="try it on the device",
    ),
    Rule(
        ("Greater", "Less"),
        None,
        "{op} is taken from TensorRT 8.6.12 (DRIVE) and 10 on",
        "DLA-SW; guide 10",
        until="8.6",
        mend=_CUT,
    ),
    Rule(("Equal",), None, "only an Orin compares", "DLA-SW", targets=_XAVIER, mend=_CUT),
    Rule(
        ("Equal", "Greater", "Less"),
        None,
        "a DLA compares in INT8 only",
        "DLA-SW; guide 10",
        precisions=("fp16",),
        mend="build with --precision int8",
    ),
    Rule(
        ("Sin", "Cos", "Atan", "Atanh"),
        None,
        "{op} is taken from TensorRT 8.6.12 (DRIVE) and 10 on",
        "DLA-SW; guide 10",
        until="8.6",
        mend=_CUT,
    ),
    Rule(
        ("Sin", "Cos", "Atan"),
        None,
        "a DLA computes {op} in INT8 only",
        "DLA-SW; guide 10",
        since="10.3",
        precisions=("fp16",),
        mend="build with --precision int8",
    ),
    Rule(
        ("Atanh",),
        None,
        "sources disagree: one lists Atanh, the other ATAN: counted as refused",
        "DLA-SW against guide 10",
        Certainty.CONFLICTING,
        since="10.3",
        mend="try it on the device",
    ),
    Rule(
        ("Reshape", "Transpose"),
        None,
        "{op} is in no list for a Xavier: counted as refused",
        "guide 8.4",
        Certainty.CONFLICTING,
        targets=_XAVIER,
        mend=_CUT,
    ),
    Rule(
        ("Flatten", "Squeeze", "Unsqueeze"),
        None,
        "{op} changes the number of dimensions, which a DLA does not",
        "DLA-SW",
        mend="prepare removes it where it only renames; else cut the network before it",
    ),
    Rule(("Softmax",), None, "only an Orin has SoftMax", "guide 8.4", targets=_XAVIER, mend=_CUT),
    Rule(
        ("MatMul",),
        None,
        "MatMul is in no list for a Xavier: counted as refused",
        "guide 8.4",
        Certainty.CONFLICTING,
        targets=_XAVIER,
        mend="write it as a 1x1 convolution",
    ),
    Rule(
        ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"),
        None,
        "a DLA cannot pick elements by index",
        "DLA-SW; header 8.4",
        mend="write constant indices as Slice and Concat, or as a 1x1 convolution",
    ),
    Rule(
        ("SpaceToDepth",),
        None,
        "a DLA does not regroup pixels",
        "DLA-SW",
        mend="prepare makes one convolution of it",
    ),
    Rule(
        ("DepthToSpace",),
        None,
        "a DLA does not regroup pixels",
        "DLA-SW",
        mend="prepare makes one transposed convolution of it",
    ),
    Rule(
        ("Neg", "Not", "And", "Or", "Xor", "Where", "CumSum", "GRU", "LSTM", "RNN"),
        None,
        "{op} is not a DLA operator; it can be built of others",
        "DLA-SW",
        mend="see op_reconstruction in NVIDIA's Deep-Learning-Accelerator-SW",
    ),
    Rule(
        ("Identity",),
        None,
        "a DLA has no copy layer",
        "DLA-SW",
        mend="prepare removes it",
    ),
    Rule(
        ("QuantizeLinear", "DequantizeLinear"),
        None,
        "a DLA takes no Q/DQ nodes: its scales come from a calibration cache",
        "guide 8.4; DLA-SW",
        mend="translate-qat gives the plain network and the cache",
    ),
    Rule(
        ("InstanceNormalization", "GroupNormalization", "LayerNormalization")
        + ("MeanVarianceNormalization", "LogSoftmax", "LpNormalization", "LpPool", "GlobalLpPool"),
        None,
        "{op} is not offered by TensorRT for the DLA",
        "DLA-SW",
        mend="use batch normalisation, which becomes part of the convolution",
    ),
    Rule(
        ("TopK", "NonMaxSuppression", "NonZero", "ArgMax", "ArgMin", "Cast", "Loop", "If"),
        None,
        "{op} is in no DLA list",
        "DLA-SW",
        mend=_CUT,
    ),
    # --- all layers ------------------------------------------------------------------------------
    Rule(
        (),
        _one_of("dynamic", ""),
        "it does not support dynamic shapes in any dimension: {dynamic}",
        "guide 8.4; header 8.4; guide 10",
        mend="export with fixed shapes, or give --shape",
    ),
    Rule(
        (),
        _one_of("odd_types", ""),
        "a DLA computes in FP16 and INT8 only: {odd_types}",
        "guide 8.4; guide 10",
        mend=_CUT,
    ),
    Rule(
        (),
        _within("batches", 0, 4096),
        "the batch is at most 4096, here {batches} (all dimensions but the last three)",
        "guide 8.4; guide 10",
    ),
    Rule(
        (),
        _within("sizes", 0, 8192),
        "dimensions are at most 8192, here {sizes}",
        "guide 10; header 8.4",
        mend=_CUT,
    ),
    Rule(
        (),
        _within("tensor_bytes", 0, 1024 * MEBIBYTE - 1),
        "tensors inside a DLA stay under 1 GB",
        "header 8.4",
        mend="use a smaller input",
    ),
    Rule(
        ("Slice", "Split", "Reshape", "Transpose", "ReduceMax", "GlobalMaxPool", "Resize")
        + ("Upsample",),
        _all("ranks", 4),
        "it works on 4 dimensions, its tensors have {ranks}",
        "header 8.5; guide 10",
        mend=_CUT,
    ),
    Rule(
        ("Add", "Sum", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Relu", "LeakyRelu", "PRelu")
        + ("Clip", "Sigmoid", "Tanh", "BatchNormalization", "Abs", "Sin", "Cos", "Atan", "LRN")
        + ("Softmax", "Concat", "Equal", "Greater", "Less"),
        _all("ranks", 4),
        "it works on planes (4 dimensions: N, C, H, W), its tensors have {ranks}",
        "guide 8.4 ('only two spatial dimensions')",
        Certainty.INFERRED,
        mend=_CUT,
    ),
    # --- convolutions ----------------------------------------------------------------------------
    Rule(
        ("Conv",),
        _one_of("spatial", 2),
        "convolutions are two-dimensional",
        "guide 8.4; guide 10",
    ),
    Rule(
        ("Conv", "ConvTranspose", "Gemm"),
        _one_of("weights_constant", True),
        "its weights are computed while it runs; they must be constants",
        "guide 8.4; DLA-SW",
    ),
    Rule(
        ("MatMul",),
        _one_of("weights_constant", True),
        "its second operand must be constant; two activations cannot be multiplied (attention)",
        "DLA-SW",
        mend="leave the attention block on the GPU or cut it out",
    ),
    Rule(
        ("Conv",),
        _within("kernel", 1, 32),
        "kernel {kernel}: kernels are 1 to 32",
        "guide 8.4; guide 10",
    ),
    Rule(
        ("Conv",),
        _within("strides", 1, 8),
        "stride {strides}: strides are 1 to 8",
        "guide 8.4; guide 10",
    ),
    Rule(
        ("Conv",),
        _within("pads", 0, 31),
        "padding {pads}: padding is 0 to 31",
        "guide 8.4",
    ),
    Rule(
        ("Conv",),
        Condition("pads", Relation.LESS_THAN, "kernel_twice"),
        "padding {pads} must be less than the kernel {kernel}",
        "guide 8.4",
        mend="prepare widens the kernel with zeros",
    ),
    Rule(
        ("Conv",),
        _within("dilations", 1, 32),
        "dilation {dilations}: dilations are 1 to 32",
        "guide 8.4",
    ),
    Rule(
        ("Conv", "Gemm", "MatMul"),
        _within("out_maps", 1, 8192),
        "{out_maps} output channels: 1 to 8192 are possible",
        "guide 8.4; guide 10",
    ),
    Rule(
        ("Conv",),
        _within("groups", 1, 8192),
        "{groups} groups: 1 to 8192 are possible",
        "guide 8.4",
    ),
    Rule(
        ("Conv",),
        _within("input_groups", 1, 4),
        "{groups} groups on the network's input: with the format DLA_HWC4 at most 4 are possible",
        "guide 8.4",
        refuses=False,
        mend="use another input format",
    ),
    Rule(
        ("Conv",),
        _within("banks", 0, CONVOLUTION_BUFFER_BANKS),
        "the convolution buffer has 16 banks, this needs {weight_banks} for weights and "
        "{data_banks} for data",
        "guide 8.4; DLA-SW",
        mend="use fewer channels, a narrower input, a smaller kernel or dilation, or INT8",
    ),
    Rule(
        ("Conv",),
        _within("banks", 0, 8),
        "it needs {banks} of 16 banks; one with 9 in INT8 and 16 in FP16 was refused by 8.5.2",
        "TensorRT#3499",
        Certainty.REPORTED,
        until="8.5",
        refuses=False,
        mend="try it on the device",
    ),
    Rule(
        ("Gemm",),
        _one_of("transposed_input", False),
        "its first operand is transposed",
        "DLA-SW (it becomes a 1x1 convolution)",
        Certainty.INFERRED,
    ),
    # --- transposed convolutions -----------------------------------------------------------------
    Rule(("ConvTranspose",), _one_of("spatial", 2), "they are two-dimensional", "guide 8.4"),
    Rule(
        ("ConvTranspose",),
        Condition(
            "kernel",
            Relation.ANY,
            (
                _within("kernel", 1, 32),
                _one_of("kernel", (1, 64), (1, 96), (1, 128), (64, 1), (96, 1), (128, 1)),
            ),
        ),
        "kernel {kernel}: 1 to 32, or 1 by 64, 96 or 128",
        "guide 8.4; header 8.4",
    ),
    Rule(
        ("ConvTranspose",),
        Condition(
            "strides",
            Relation.ANY,
            (
                _within("strides", 1, 32),
                _one_of("strides", (1, 64), (1, 96), (1, 128), (64, 1), (96, 1), (128, 1)),
            ),
        ),
        "stride {strides}: 1 to 32, or 1 by 64, 96 or 128",
        "guide 8.4; header 8.4",
    ),
    Rule(
        ("ConvTranspose",),
        _one_of("slow_square", False),
        "TensorRT switches off square kernels with strides of 23 to 32: they compile too slowly",
        "guide 8.4",
    ),
    Rule(
        ("ConvTranspose",),
        _all("pads", 0),
        "padding {pads}: a transposed convolution must have none",
        "guide 8.4; guide 10",
        mend="prepare cuts the border off afterwards or shortens the kernel",
    ),
    Rule(
        ("ConvTranspose",),
        _all("output_padding", 0),
        "output padding {output_padding}: a transposed convolution must have none",
        "guide 8.4",
        Certainty.INFERRED,
        mend="prepare widens the kernel with zeros",
    ),
    Rule(
        ("ConvTranspose",),
        _one_of("groups", 1),
        "{groups} groups: a transposed convolution must have 1",
        "guide 8.4; guide 10",
        mend="prepare fills the other groups' weights with zeros",
    ),
    Rule(
        ("ConvTranspose",),
        _all("dilations", 1),
        "dilation {dilations}: a transposed convolution must have none",
        "guide 8.4; guide 10",
        mend="prepare writes the gaps as zeros into the kernel",
    ),
    Rule(
        ("ConvTranspose",),
        _within("in_maps", 1, 8192),
        "{in_maps} input channels: 1 to 8192 are possible",
        "guide 8.4",
    ),
    Rule(
        ("ConvTranspose",),
        _within("out_maps", 1, 8192),
        "{out_maps} output channels: 1 to 8192 are possible",
        "guide 8.4",
    ),
    # --- pools -----------------------------------------------------------------------------------
    Rule(_POOLS, _one_of("spatial", 2), "pools are two-dimensional", "guide 8.4; header 8.4"),
    Rule(
        _POOLS,
        _within("kernel", 1, 8),
        "window {kernel}: pooling windows are 1 to 8",
        "guide 8.4; header 8.4",
        mend="prepare stacks smaller pools that give the same",
    ),
    Rule(
        _POOLS,
        _within("pads", 0, 7),
        "padding {pads}: of pools it is 0 to 7",
        "guide 8.4; header 8.4",
        mend="prepare stacks smaller pools that give the same",
    ),
    Rule(
        _POOLS,
        _within("strides", 1, 16),
        "stride {strides}: of pools it is 1 to 16",
        "guide 8.4; header 8.4",
    ),
    Rule(
        _POOLS,
        _all("dilations", 1),
        "pools have no dilation",
        "header 8.4",
        Certainty.INFERRED,
    ),
    Rule(
        ("MaxPool",),
        _one_of("outputs", 1),
        "it returns indices too",
        "header 8.4",
        Certainty.INFERRED,
        mend=_CUT,
    ),
    Rule(
        ("AveragePool",),
        _one_of("exclusive", False),
        "a Xavier counts the padding in an average; count_include_pad must be 1",
        "header 8.4",
        targets=_XAVIER,
        mend="pad by 0 or set count_include_pad and train again",
    ),
    Rule(
        ("Conv", *_POOLS),
        _one_of("asymmetric", False),
        "padding {pads} differs between the sides: allowed by the numbers, unproven",
        "guide 8.4",
        Certainty.INFERRED,
        refuses=False,
        mend="prepare makes it symmetric",
    ),
    Rule(
        _POOLS,
        _one_of("ceil_mode", False),
        "it rounds its size up: allowed by the numbers, unproven",
        "guide 8.4",
        Certainty.INFERRED,
        refuses=False,
        mend="prepare makes it symmetric",
    ),
    Rule(
        ("MaxPool",),
        None,
        "its input and output must have the same INT8 scale",
        "guide 8.4",
        precisions=("int8",),
        refuses=False,
        mend="calibrate gives them one scale",
    ),
    # --- element by element ----------------------------------------------------------------------
    Rule(
        _ELEMENTWISE,
        _one_of("operands", "same", "gate", "constant", "broadcast constant"),
        "its operands have different shapes, and a DLA does not repeat one of them",
        "guide 8.4; header 8.4",
        mend="give both operands the same shape",
    ),
    Rule(
        _ELEMENTWISE,
        _one_of("operands", "same", "gate", "constant", "broadcast"),
        "its constant is neither one value, one per channel nor one per element",
        "guide 8.4 (Scale layer)",
        mend="write the constant out to the full shape",
    ),
    Rule(
        ("Max", "Min", "Div", "Pow"),
        _one_of("operands", "same", "gate"),
        "with a constant operand it is no Scale layer: allowed by the list, unproven",
        "guide 8.4; guide 10",
        Certainty.INFERRED,
        refuses=False,
        mend="try it on the device",
    ),
    Rule(
        ("Min",),
        None,
        "sources disagree on Min: the guide lists it",
        "DLA-SW against guide 8.4",
        Certainty.CONFLICTING,
        targets=_XAVIER,
        refuses=False,
        mend="try it on the device",
    ),
    Rule(
        ("Pow",),
        None,
        "whether Pow runs in INT8 is not published; it may run in FP16",
        "guide 10",
        Certainty.CONFLICTING,
        precisions=("int8",),
        refuses=False,
        mend="try it on the device",
    ),
    Rule(
        ("Add", "Sum", "Sub", "Mul"),
        _one_of("operands", "constant", "gate"),
        "both operands should have the same INT8 scale, the larger one",
        "header 8.4",
        precisions=("int8",),
        refuses=False,
        mend="calibrate gives them one scale",
    ),
    Rule(
        ("Equal", "Greater", "Less"),
        _one_of("cast_next", True),
        "its result must be cast to INT8 or FP16 at once",
        "DLA-SW; guide 10",
    ),
    # --- activations -----------------------------------------------------------------------------
    Rule(
        ("Clip",),
        _one_of("lower_limit", 0.0),
        "lower limit {lower_limit}: a clipped ReLU starts at 0",
        "guide 8.4",
    ),
    Rule(
        ("Clip",),
        _within("upper_limit", 1, 127),
        "upper limit {upper_limit}: of a clipped ReLU it is 1 to 127",
        "guide 8.4",
        mend="use Relu, or a limit in that range",
    ),
    Rule(
        ("PRelu",),
        _one_of("weights_constant", True),
        "its slopes must be constants",
        "guide 8.4; header 8.4",
    ),
    Rule(
        ("Sigmoid", "Tanh"),
        None,
        "INT8 is computed as FP16 inside (before DLA software 3.14)",
        "guide 8.4",
        until="8.5",
        precisions=("int8",),
        refuses=False,
    ),
    Rule(
        ("Tanh",),
        None,
        "INT8 is computed as FP16 inside",
        "guide 8.4",
        since="8.6",
        precisions=("int8",),
        refuses=False,
    ),
    Rule(
        ("Softmax", "LRN"),
        None,
        "INT8 is computed as FP16 inside",
        "guide 8.4; guide 10",
        precisions=("int8",),
        refuses=False,
    ),
    Rule(
        ("Softmax",),
        _one_of("over_batch", False),
        "it runs over the batch",
        "header 8.4",
        mend=_CUT,
    ),
    Rule(
        ("Softmax",),
        _one_of("limit_kept", True),
        "{axis_size} values: at most 8192, and 1024 when other dimensions are larger than 1",
        "header 8.4; guide 10",
        mend=_CUT,
    ),
    Rule(
        ("Softmax",),
        _all("batches", 1),
        "the 8.4 guide allows SoftMax for batch 1 only",
        "guide 8.4",
        until="8.6",
        mend=_CUT,
    ),
    Rule(
        ("LRN",),
        _one_of("window_size", 3, 5, 7, 9),
        "window {window_size}: 3, 5, 7 and 9 are possible",
        "guide 8.4",
    ),
    # --- moving data -----------------------------------------------------------------------------
    Rule(
        ("Concat",),
        _one_of("axis_from_end", 3),
        "a DLA concatenates along the channels only",
        "guide 8.4; header 8.5",
        mend=_CUT,
    ),
    Rule(
        ("Concat",),
        _within("inputs", 2, 65536),
        "concatenation on a DLA requires at least two inputs",
        "guide 8.4",
        mend="prepare removes it",
    ),
    Rule(
        ("Concat",),
        None,
        "all inputs and the output must have the same INT8 scale",
        "guide 8.4; header 8.5",
        precisions=("int8",),
        refuses=False,
        mend="calibrate gives them one scale",
    ),
    Rule(
        ("Slice", "Split"),
        _one_of("constant_ranges", True),
        "start, size and step must be constants",
        "header 8.4",
    ),
    Rule(
        ("Slice",),
        _all("steps", 1),
        "step {steps}: a DLA does not skip elements",
        "header 8.4; header 8.5",
        mend="prepare makes one convolution of a Focus block",
    ),
    Rule(
        ("Slice", "Split"),
        _one_of("cuts_batch", False),
        "it cuts the batch",
        "header 8.4; header 8.5",
        mend=_CUT,
    ),
    Rule(
        ("Reshape", "Transpose"),
        _one_of("keeps_batch", True),
        "it mixes the batch with other dimensions",
        "guide 10",
        mend=_CUT,
    ),
    Rule(
        ("Reshape",),
        _one_of("next_to", ""),
        "this DLA does not support a Reshape directly at a Slice or Concat: {next_to}",
        "ultralytics#18012",
        Certainty.REPORTED,
        until="8.5",
        mend=_CUT,
    ),
    Rule(
        ("Resize", "Upsample"),
        _one_of("by", "scales"),
        "it is given sizes instead of scales",
        "header 8.4",
        mend="prepare gives it whole scales",
    ),
    Rule(
        ("Resize", "Upsample"),
        _one_of("scales_given", 4),
        "its scales must be four constants",
        "guide 8.4",
    ),
    Rule(
        ("Resize", "Upsample"),
        _all("outer_scales", 1.0),
        "it scales batch or channels",
        "guide 8.4",
    ),
    Rule(
        ("Resize", "Upsample"),
        _one_of("whole_scales", True),
        "scale {inner_scales}: scales must be whole numbers",
        "guide 8.4; header 8.4",
    ),
    Rule(
        ("Resize", "Upsample"),
        Condition(
            "mode", Relation.ANY, (_one_of("mode", "linear"), _within("inner_scales", 1, 32))
        ),
        "scale {inner_scales}: nearest takes 1 to 32",
        "guide 8.4; header 8.4",
    ),
    Rule(
        ("Resize", "Upsample"),
        Condition(
            "mode", Relation.ANY, (_one_of("mode", "nearest"), _within("inner_scales", 1, 4))
        ),
        "scale {inner_scales}: linear takes 1 to 4",
        "guide 8.4; header 8.4",
    ),
    Rule(
        ("Resize", "Upsample"),
        _one_of(
            "mapping",
            "nearest+asymmetric+floor",
            "nearest+half_pixel+round_prefer_floor",
            "nearest+half_pixel+round_prefer_ceil",
            "linear+half_pixel",
        ),
        "the mapping {mapping} is not one of its own",
        "header 8.4",
        mend="prepare changes it where another gives the same",
    ),
    # --- reductions ------------------------------------------------------------------------------
    Rule(
        ("ReduceMax",),
        _one_of("axes_in_chw", True),
        "it reduces channels, rows and columns only",
        "guide 10",
    ),
    Rule(
        ("ReduceMax",),
        _one_of("keeps_dimensions", True),
        "it must keep the reduced dimensions (keepdims=1)",
        "guide 10 (4 dimensions)",
        Certainty.INFERRED,
    ),
)


@dataclass(frozen=True)
class SubgraphLimit:
    """A limit on what one DLA subgraph, or all of them, may hold.

    Attributes:
        quantity: ``subgraphs`` (per core), ``weight_bytes`` or ``tensor_bytes`` (per subgraph).
        limit: the largest allowed value.
        reason: why a layer beyond it is not on the DLA.
        refuses: whether layers beyond it go to the GPU; else it is told as a caution.
    """

    quantity: str
    limit: int
    reason: str
    source: str
    certainty: Certainty = Certainty.DOCUMENTED
    since: str = "8.5"
    until: str = "10.3"
    refuses: bool = True

    def applies(self, target: Target) -> bool:
        """Whether it holds for this target."""
        return _version(self.since) <= _version(target.tensorrt) <= _version(self.until)


SUBGRAPH_LIMITS: tuple[SubgraphLimit, ...] = (
    SubgraphLimit(
        "subgraphs",
        16,
        "a DLA core holds 16 subgraphs at a time, and the network is cut into more",
        "guide 10",
    ),
    SubgraphLimit(
        "subgraphs",
        4,
        "the 8.4 guide allows 4 subgraphs at a time, the 10 guide 16",
        "guide 8.4 against guide 10",
        Certainty.CONFLICTING,
        until="8.6",
        refuses=False,
    ),
    SubgraphLimit(
        "weight_bytes",
        512 * MEBIBYTE,
        "the weights of one DLA subgraph stay under 512 MiB",
        "header 8.4",
    ),
    SubgraphLimit(
        "tensor_bytes",
        1024 * MEBIBYTE,
        "the tensors that are alive inside one DLA subgraph stay under 1 GiB",
        "header 8.4",
    ),
)


def judge(graph: Graph, node: NodeProto, target: Target) -> Verdict:
    """Apply the rules to one layer.

    Args:
        graph: refreshed.
        node: one of its nodes.
        target: what it shall run on.
    """
    facts = layer_facts(graph, node, target.precision)
    shown = {name: _show(value) for name, value in facts.items()}
    shown["ranks"] = " and ".join(map(str, facts["ranks"]))
    refusals: list[Finding] = []
    cautions: list[Finding] = []
    for rule in RULES:
        if not rule.applies(node.op_type, target):
            continue
        if rule.needs is not None and rule.needs.holds(facts):
            continue
        finding = Finding(
            rule.reason.format_map(_Facts(shown)), rule.mend, rule.source, rule.certainty
        )
        if rule.refuses and rule.needs is None:
            return Verdict(False, (finding,), ())
        (refusals if rule.refuses else cautions).append(finding)
    if node.op_type not in TENSORRT_LAYERS:
        unknown = Finding(
            f"{node.op_type} is in no DLA list", _CUT, "DLA-SW; guide 10", Certainty.INFERRED
        )
        return Verdict(False, (unknown,), ())
    return Verdict(not refusals, tuple(refusals), tuple(cautions))


class _Facts(dict):
    """Facts for a reason's text; one that is not known reads as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(str(item) for item in value)
    return "?" if value is None else str(value)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
