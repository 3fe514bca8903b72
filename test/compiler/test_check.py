"""The verb `check`: exit codes, JSON, table, picture, messages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from onnx_networks import Network
from test_device_opinion import StandIn

from dla_perception.cli.main import main

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": [
        "target",
        "precision",
        "layers",
        "dla_layers",
        "gpu_layers",
        "dla_subgraphs",
        "runs_entirely_on_dla",
    ],
    "properties": {
        "target": {"enum": ["orin", "xavier"]},
        "precision": {"enum": ["fp16", "int8"]},
        "layers": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "op", "device", "reason"],
                "properties": {
                    "name": {"type": "string"},
                    "op": {"type": "string"},
                    "device": {"enum": ["dla", "gpu", "folded"]},
                    "reason": {"type": "string"},
                },
            },
        },
        "dla_layers": {"type": "integer"},
        "gpu_layers": {"type": "integer"},
        "dla_subgraphs": {"type": "integer"},
        "runs_entirely_on_dla": {"type": "boolean"},
    },
}


def check(*arguments: Any) -> int:
    return main(["check", *map(str, arguments)])


@pytest.fixture
def good(tmp_path: Path) -> str:
    net = Network((1, 3, 16, 16))
    net.add("Relu", net.conv("x", 3, 8))
    return net.save(tmp_path / "good.onnx")


@pytest.fixture
def bad(tmp_path: Path) -> str:
    net = Network((1, 3, 16, 16))
    net.add("Relu", net.add("Elu", net.conv("x", 3, 8)))
    return net.save(tmp_path / "bad.onnx")


def test_a_network_that_fits(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(good) == 0
    out = capsys.readouterr().out
    assert "YES: all 2 layers run on the DLA, as one subgraph; the GPU stays free." in out
    assert "Jetson Orin, TensorRT 10.3, FP16" in out


def test_a_network_that_does_not_fit(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(bad, "--target", "xavier") == 1
    out = capsys.readouterr().out
    assert "NO: 1 of 3 layers run on the GPU (1 x Elu)." in out
    assert "They cut the network into 2 DLA subgraphs; 12.5 kB move between DLA and GPU" in out
    assert "Jetson Xavier, TensorRT 8.5, FP16" in out
    rows = [line for line in out.splitlines() if line.startswith(("│ GPU", "│ DLA"))]
    assert rows[0].startswith("│ GPU")
    assert rows[0].rstrip(" │").endswith("12.5 kB")


def test_what_prepare_would_make_of_it(
    assets: Path, bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(assets / "models" / "yolox_nano_416.onnx", "--precision", "int8")
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "All of them can be mended, and the rest computes the same: dla-perception prepare" in out
    )
    assert "-o yolox_nano_416_dla.onnx --precision int8" in out
    check(bad)
    assert "None of them can be mended by rewriting" in capsys.readouterr().out
    net = Network((1, 3, 16, 16))
    net.add("Relu", net.add("Div", net.add("Elu", "x"), net.constant(2.0)))
    check(net.save(tmp_path / "half.onnx"), "--tensorrt", "8.6")
    out = " ".join(capsys.readouterr().out.split())
    assert "Of 2 only 1 (1 x Elu) would be left after: dla-perception prepare" in out
    assert "--tensorrt 8.6" in out


def test_a_quantised_network_is_to_be_translated_first(
    assets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(assets / "models" / "yolox_nano_416_ptq_qdq.onnx") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "make it plain first, and check that: dla-perception translate-qat" in out


def test_a_wrong_description_beside_the_network_does_not_hide_the_verdict(
    bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(bad).with_suffix(".yaml").write_text("famly: yolox\n")
    assert check(bad) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "NO: 1 of 3 layers run on the GPU" in out
    assert "What prepare would make of it cannot be told" in out
    assert "unknown key 'famly'" in out


def test_json(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(bad, "--json", "--precision", "int8") == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["precision"] == "int8"
    assert [layer["device"] for layer in document["layers"]] == ["dla", "gpu", "dla"]


def test_json_of_yolox_nano(assets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(assets / "models" / "yolox_nano_416.onnx", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert (document["dla_layers"], document["gpu_layers"]) == (354, 15)


def test_a_row_per_layer_on_request(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> int:
        return sum(
            line.startswith(("│ GPU", "│ DLA")) for line in capsys.readouterr().out.split("\n")
        )

    network = Network((1, 3, 16, 16))
    network.add("Relu", network.add("Relu", "x"))
    path = network.save(Path(bad).with_name("two.onnx"))
    check(path)
    assert rows() == 1
    check(path, "--all")
    assert rows() == 2


def test_picture(bad: str, tmp_path: Path) -> None:
    assert check(bad, "--svg", tmp_path / "net.svg") == 1
    assert (tmp_path / "net.svg").read_text(encoding="utf-8").startswith("<svg xmlns=")


@pytest.mark.parametrize("shape", ["1x3x32x32", "x:1x3x32x32"])
def test_dynamic_sizes_can_be_fixed(tmp_path: Path, shape: str) -> None:
    net = Network(("batch", 3, "h", "w"))
    net.conv("x", 3, 8)
    path = net.save(tmp_path / "net.onnx")
    assert check(path, "--shape", shape) == 0


def test_notices_go_to_stderr(
    good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Network((1, 3, 16, 16))
    net.conv("x", 3, 8)
    net.constant(1.0, name="spare")
    path = net.save(tmp_path / "net.onnx")
    assert check(path, "--json") == 0
    captured = capsys.readouterr()
    assert captured.err == (
        f"dla-perception check: {path}: weights 'spare' are not used by any node\n"
    )
    json.loads(captured.out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "xavier", "--tensorrt", "10.3"], "does not drive the DLA of a Jetson Xavier"),
        (["--shape", "1x3xax16"], "--shape 1x3xax16: expected sizes such as 1x3x640x640"),
        (["--shape", "1x3x0x16"], "expected sizes"),
        (["--shape", "y:1x3x16x16"], "it has no input 'y'"),
        (["--svg", "/nonexistent/net.svg"], "cannot write the picture"),
    ],
)
def test_wrong_use(
    good: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(good, *arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_unusable_networks_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Network(("n", 3, 16, 16))
    net.conv("x", 3, 8)
    assert check(net.save(tmp_path / "dynamic.onnx")) == 2
    error = capsys.readouterr().err
    assert "dynamic.onnx: input 'x' is ?x3x16x16: dimension 0 dynamic" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("tensorrt", "code"), [("8.5", 2), ("8.6", 2), ("10.3", 0)])
def test_the_opset_must_suit_the_release(tmp_path: Path, tensorrt: str, code: int) -> None:
    net = Network((1, 3, 16, 16), opset=18)
    net.conv("x", 3, 8)
    assert check(net.save(tmp_path / "net.onnx"), "--tensorrt", tensorrt) == code


def test_tensorrt_of_this_machine_has_the_last_word(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dla_perception.compiler import device_opinion

    trt = StandIn()  # takes Elu, refuses Sigmoid
    monkeypatch.setattr(device_opinion, "tensorrt_with_dla", lambda target: (trt, ""))
    assert check(bad) == 0
    out = capsys.readouterr().out
    assert (
        "TensorRT 10.3.0 on this machine was asked about 3 layers and differs from the rules on 1:"
        in (" ".join(out.split()))
    )
    assert "Elu Elu_1: TensorRT says DLA, the rules say GPU (Elu is not among" in " ".join(
        out.split()
    )
    net = Network((1, 3, 16, 16))
    net.add("Sigmoid", "x")
    assert check(net.save(tmp_path / "sigmoid.onnx")) == 1
    assert "TensorRT says GPU, the rules say DLA" in capsys.readouterr().out


def test_without_tensorrt_the_report_says_so(
    good: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    check(good)
    assert "(not asked: there is no TensorRT on this machine)" in capsys.readouterr().out
