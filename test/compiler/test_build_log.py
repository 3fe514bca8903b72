"""Lines of TensorRT's build log into layer, device and reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dla_perception.compiler.build_log import parse_build_log


@pytest.mark.parametrize(
    ("line", "layer", "reason"),
    [
        (
            "Layer '/model.10/attn/MatMul' (MATRIX_MULTIPLY): Unsupported on DLA. Switching this "
            "layer's device type to GPU.",
            "/model.10/attn/MatMul",
            "Unsupported on DLA",
        ),
        (
            "Validation failed for DLA layer: Concat_40. Switching to GPU fallback.",
            "Concat_40",
            "Validation failed for DLA layer",
        ),
        (
            "Splitting DLA subgraph at: /model.9/m/MaxPool because DLA validation failed for this "
            "layer.",
            "/model.9/m/MaxPool",
            "DLA validation failed",
        ),
        (
            "Default DLA is enabled but layer (Unnamed Layer* 2) [Shuffle] is not supported on "
            "DLA, falling back to GPU.",
            "(Unnamed Layer* 2) [Shuffle]",
            "not supported on DLA",
        ),
        (
            "Error Code 9: Internal Error (Default DLA is enabled but layer reshape_0 is not "
            "supported on DLA and falling back to GPU is not enabled.)",
            "reshape_0",
            "not supported on DLA",
        ),
        (
            "Default DLA is enabled but layer prob is not running on DLA, falling back to GPU.",
            "prob",
            "not running on DLA",
        ),
        (
            "DLA Layer Conv_0 does not support dynamic shapes in any dimension.",
            "Conv_0",
            "does not support dynamic shapes in any dimension",
        ),
        (
            "DLA only supports FP16 and Int8 precision type. Switching Conv_3 device type to GPU.",
            "Conv_3",
            "DLA only supports FP16 and Int8 precision type",
        ),
        (
            "DLA supports only 8 subgraphs per DLA core. Switching to GPU for layer leaky_28",
            "leaky_28",
            "DLA supports only 8 subgraphs per DLA core",
        ),
        (
            "Concat_12: DLA only supports concatenation on the C dimension.",
            "Concat_12",
            "DLA only supports concatenation on the C dimension",
        ),
        (
            "route_86: Concatenation on DLA requires at least two inputs.",
            "route_86",
            "Concatenation on DLA requires at least two inputs",
        ),
    ],
)
@pytest.mark.parametrize(
    "prefix",
    ["", "[07/14/2023-11:52:12] [W] [TRT] ", "[12/30/2022-14:03:15] [TRT] [E] ", "[TRT] [W] "],
)
def test_each_line(line: str, layer: str, reason: str, prefix: str) -> None:
    assert parse_build_log([prefix + line]).reasons == {layer: reason}


def test_cause_on_the_line_before() -> None:
    log = parse_build_log(
        [
            "DLA cores do not support DIV ElementWise operation.",
            "Layer 'Div_7' (ELEMENTWISE): Unsupported on DLA. Switching this layer's device type "
            "to GPU.",
            "This version of DLA does not support reshape layers directly connected to Slice or "
            "Concat",
            "Validation failed for DLA layer: Reshape_9. Switching to GPU fallback.",
            "Validation failed for DLA layer: Add_1. Switching to GPU fallback.",
        ]
    )
    assert log.reasons == {
        "Div_7": "Unsupported on DLA: DLA cores do not support DIV ElementWise operation",
        "Reshape_9": "Validation failed for DLA layer: This version of DLA does not support "
        "reshape layers directly connected to Slice or Concat",
        "Add_1": "Validation failed for DLA layer",
    }


SUMMARY_8 = """\
[03/31/2022-14:34:54] [I] [TRT] ---------- Layers Running on DLA ----------
[03/31/2022-14:34:54] [I] [TRT] [DlaLayer] {ForeignNode[Conv_0]}
[03/31/2022-14:34:54] [I] [TRT] [DlaLayer] {ForeignNode[Relu_10...Conv_11]}
[03/31/2022-14:34:54] [I] [TRT] ---------- Layers Running on GPU ----------
[03/31/2022-14:34:54] [I] [TRT] [GpuLayer] SHUFFLE: Reshape_2 + (Unnamed Layer* 7) [Shuffle]
[03/31/2022-14:34:54] [I] [TRT] [GpuLayer] PLUGIN_V2: InstanceNormalization_5
[03/31/2022-14:34:54] [I] [TRT] [GpuLayer] COPY: Reformatting CopyNode for Input Tensor 0 to x
"""

SUMMARY_OLD = """\
[09/22/2025-07:24:25] [TRT] [I] ---------- Layers Running on DLA ----------
[09/22/2025-07:24:25] [TRT] [I] ---------- Layers Running on GPU ----------
[09/22/2025-07:24:25] [TRT] [I] [GpuLayer] Conv_0
[09/22/2025-07:24:25] [TRT] [I] [GpuLayer] PWN(PWN(Sigmoid_1), Mul_2)
"""

SUMMARY_SAMPLE = """\
[I] [TRT] --------------- Layers running on DLA:
[I] [TRT] [DlaLayer] {ForeignNode[(Unnamed Layer* 0) [ElementWise]]},
[I] [TRT] --------------- Layers running on GPU:
"""


def test_summaries_as_they_are_published() -> None:
    reasons = ["Layer 'Reshape_2' (SHUFFLE): Unsupported on DLA. Switching this layer's device"]
    log = parse_build_log([*reasons, *SUMMARY_8.splitlines()])
    assert log.layers is not None
    assert [(layer.device, layer.name) for layer in log.layers] == [
        ("dla", "{ForeignNode[Conv_0]}"),
        ("dla", "{ForeignNode[Relu_10...Conv_11]}"),
        ("gpu", "Reshape_2 + (Unnamed Layer* 7) [Shuffle]"),
        ("gpu", "InstanceNormalization_5"),
        ("gpu", "Reformatting CopyNode for Input Tensor 0 to x"),
    ]
    assert [layer.reason for layer in log.layers] == [
        "",
        "",
        "Unsupported on DLA",
        "",
        "the GPU converts the tensor's layout; give inputs and outputs a DLA layout",
    ]
    log = parse_build_log(SUMMARY_OLD.splitlines())
    assert [str(layer) for layer in log.layers or ()] == ["Conv_0", "PWN(PWN(Sigmoid_1), Mul_2)"]
    log = parse_build_log(SUMMARY_SAMPLE.splitlines())
    assert [(layer.device, layer.name) for layer in log.layers or ()] == [
        ("dla", "{ForeignNode[(Unnamed Layer* 0) [ElementWise]]}")
    ]


def test_no_list_is_not_an_empty_list() -> None:
    assert parse_build_log(["building"]).layers is None
    assert parse_build_log(["--------------- Layers running on DLA:"]).layers == ()


def test_refusals_and_missing_scales() -> None:
    lines = [
        "Safety certified DLA should only have one graph for the whole network.",
        "BuilderFlag::kDIRECT_IO specified but no conformant implementation exists",
        "[E] Could not find any implementation for node {ForeignNode[/cnn/cnn.0/Conv]}.",
        "Missing scale and zero-point for tensor (Unnamed Layer* 2) [Softmax]_output, expect "
        "fall back to non-int8 implementation for any layer consuming or producing given tensor",
        "Missing dynamic range for tensor prob, expect fall back to non-int8 implementation",
    ]
    log = parse_build_log(lines)
    assert len(log.refusals) == 3
    assert log.tensors_without_scale == ("(Unnamed Layer* 2) [Softmax]_output", "prob")
    assert log.reasons == {}


@given(st.lists(st.text(max_size=80), max_size=20))
def test_any_text_can_be_read(lines: list[str]) -> None:
    parse_build_log(lines)
