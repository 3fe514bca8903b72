"""The detect verb as a user runs it: output, exit codes, and one line for everything unusable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from dla_perception.cli.main import VERBS, main


@pytest.fixture(scope="module")
def model(assets):
    return str(assets / "models/yolox_nano_416.onnx")


@pytest.fixture(scope="module")
def dog(assets):
    return str(assets / "images/classic/dog.jpg")


def test_json(model, dog, capsys):
    assert main(["detect", model, dog, "--labels", "coco", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model"] == model
    (image,) = document["images"]
    assert (image["path"], image["width"], image["height"]) == (dog, 768, 576)
    assert [(item["label"], item["class_id"]) for item in image["detections"]] == [
        ("dog", 16),
        ("bicycle", 1),
        ("car", 2),
        ("truck", 7),
    ]
    scores = [item["score"] for item in image["detections"]]
    np.testing.assert_allclose(scores, [0.8551, 0.8026, 0.7982, 0.3055], atol=0.02)
    boxes = [item["box"] for item in image["detections"]]
    expected = [
        [132.8, 206.6, 325.7, 543.1],
        [51.7, 137.2, 572.3, 423.6],
        [466.3, 78.4, 692.5, 171.3],
        [464.2, 77.6, 682.8, 172.7],
    ]
    np.testing.assert_allclose(boxes, expected, atol=2)


def test_text_and_thresholds(model, dog, capsys):
    assert main(["detect", model, dog, "--labels", "coco", "--score-threshold", "0.8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{dog}: 768 x 576, 2 detections"
    assert lines[1].split()[:2] == ["dog", "0.855"]
    assert lines[2].split()[:2] == ["bicycle", "0.803"]


def test_without_names_the_label_is_the_index(model, dog, capsys):
    assert main(["detect", model, dog, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["images"][0]["detections"]
    assert [item["label"] for item in found] == ["16", "1", "2", "7"]


def test_annotated_picture_shows_the_boxes(model, dog, tmp_path, capsys):
    out = tmp_path / "out.png"
    assert main(["detect", model, dog, "--labels", "coco", "--annotate", str(out)]) == 0
    picture, original = cv2.imread(str(out)), cv2.imread(dog)
    assert picture.shape == original.shape
    changed = (picture != original).any(axis=2)
    assert changed[300, 130:136].any(), "the left edge of the dog's box is not drawn"
    assert not changed[450:500, 700:].any(), "something is drawn where nothing was found"


def test_several_pictures_go_into_a_folder(model, assets, tmp_path, capsys):
    pictures = [str(assets / f"images/classic/{name}.jpg") for name in ("dog", "eagle")]
    out = tmp_path / "annotated"
    assert main(["detect", model, *pictures, "--annotate", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["dog.png", "eagle.png"]


def write(path, content):
    path.write_bytes(content)
    return str(path)


def refused(arguments, capsys):
    assert main(["detect", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("dla-perception detect: ")
    return line


def test_unusable_models(model, assets, dog, tmp_path, capsys):
    content = Path(model).read_bytes()
    cases = {
        str(tmp_path / "missing.onnx"): "there is no such file",
        write(tmp_path / "empty.onnx", b""): "empty",
        write(tmp_path / "cut.onnx", content[:50_000]): "cut.onnx",
        write(tmp_path / "noise.onnx", bytes(range(256)) * 40): "noise.onnx",
        str(tmp_path): "folder",
        dog: "dog.jpg",
        str(assets / "models/fastestdet_352.onnx"): "are of no head family",
    }
    for path, words in cases.items():
        line = refused([path, dog], capsys)
        assert path in line
        assert words in line


def onnx_model(path, inputs, output_shape):
    """A network whose output is constant, for what is looked at before it runs."""
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["shape"], ["output"], name="make")],
        "graph",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, output_shape)],
        [helper.make_tensor("shape", TensorProto.INT64, [len(output_shape)], output_shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"a": [1, 3, 416, 416], "b": [1, 3, 416, 416]}, "2 inputs (a [1, 3, 416, 416], b"),
        ({"images": ["N", 3, 416, 416]}, "dynamic"),
        ({"images": [1, 3, "height", "width"]}, "dynamic"),
        ({"images": [4, 3, 416, 416]}, "[4, 3, 416, 416]"),
        ({"images": [1, 416, 416, 3]}, "[1, 416, 416, 3]"),
        ({"images": [1, 4, 416, 416]}, "[1, 4, 416, 416]"),
    ],
)
def test_models_with_unusable_inputs(inputs, words, dog, tmp_path, capsys):
    path = onnx_model(tmp_path / "made.onnx", inputs, [1, 3549, 85])
    line = refused([path, dog], capsys)
    assert path in line
    assert words in line


def test_unusable_labels(model, dog, tmp_path, capsys):
    cases = {
        str(tmp_path / "missing.txt"): "cannot read it",
        write(tmp_path / "empty.txt", b" \r\n\n"): "it is empty",
        write(tmp_path / "short.txt", b"person\ncar\n"): "2 class names",
        write(tmp_path / "binary.txt", b"\xff\xfe\x00\x80"): "not UTF-8",
        write(tmp_path / "twice.txt", b"person\ncar\nperson\n"): "'person'",
    }
    for path, words in cases.items():
        line = refused([model, dog, "--labels", path], capsys)
        assert path in line
        assert words in line


def test_unusable_pictures(model, tmp_path, capsys):
    cases = {
        str(tmp_path / "missing.jpg"): "cannot read it",
        write(tmp_path / "empty.jpg", b""): "not a picture",
        write(tmp_path / "text.png", b"hello"): "not a picture",
    }
    for path, words in cases.items():
        line = refused([model, path], capsys)
        assert path in line
        assert words in line


def test_a_dla_core_that_is_not_there_is_never_a_quiet_run_elsewhere(model, dog, capsys):
    assert "DLA core 0 was asked for" in refused([model, dog, "--dla-core", "0"], capsys)
    arguments = ["detect", model, dog, "--dla-core", "0", "--gpu-fallback"]
    assert main([*arguments, "warn"]) == 0
    assert "asked for, but the network runs on cpu" in capsys.readouterr().err
    assert main([*arguments, "allow"]) == 0
    assert capsys.readouterr().err == ""


def test_unusable_settings(model, dog, tmp_path, capsys):
    assert "score_threshold: 2.0" in refused([model, dog, "--score-threshold", "2"], capsys)
    out = str(tmp_path / "picture.nonsense")
    assert main(["detect", model, dog, "--annotate", out]) == 2
    assert "'.nonsense' is no picture format" in capsys.readouterr().err


def test_every_verb_explains_itself():
    run = subprocess.run(
        [sys.executable, "-m", "dla_perception", "--help"], capture_output=True, text=True
    )
    assert run.returncode == 0
    for module in VERBS:
        assert module.NAME in run.stdout
        assert module.HELP in " ".join(run.stdout.split())
        verb = subprocess.run(
            [sys.executable, "-m", "dla_perception", module.NAME, "--help"],
            capture_output=True,
            text=True,
        )
        assert verb.returncode == 0
        assert module.__doc__.strip().splitlines()[0] in verb.stdout


def test_wrong_use_is_told_in_words():
    run = subprocess.run(
        [sys.executable, "-m", "dla_perception", "detect"], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "MODEL" in run.stderr
