"""Training data, and the losses where torch is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dla_perception.demo import train
from dla_perception.demo.dataset import FRAMES_APART, TRAINING_SEED, render_training
from dla_perception.demo.scene import Scene, random_scene


def test_training_pictures_are_the_scenes_halved_in_red_green_blue() -> None:
    pictures = render_training(stills=2, drive_frames=2, processes=1, seed=0)
    drive = Scene(TRAINING_SEED)
    frames = [random_scene(TRAINING_SEED), random_scene(TRAINING_SEED + 1)]
    frames += [drive.frame(0), drive.frame(FRAMES_APART)]
    assert pictures.pixels.shape == (4, 240, 320, 3)
    for row, frame in enumerate(frames):
        halved = frame.pixels.reshape(240, 2, 320, 2, 3).mean(axis=(1, 3))[:, :, ::-1]
        assert np.abs(pictures.pixels[row] - halved).max() <= 1
        count = len(frame.truth)
        np.testing.assert_array_equal(pictures.boxes[row, :count] * 2, frame.truth.boxes)
        np.testing.assert_array_equal(pictures.class_ids[row, :count], frame.truth.class_ids)
        assert (pictures.class_ids[row, count:] == -1).all()
        np.testing.assert_array_equal(pictures.ignore[row, : len(frame.ignore)] * 2, frame.ignore)


def test_without_torch_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert train.main(["--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "pip install 'dla_perception[train]'" in error
    assert not (tmp_path / "out").exists()


def test_the_decoder_of_the_training_is_that_of_the_detector() -> None:
    torch = pytest.importorskip("torch")
    from dla_perception.demo.network import INPUT_SIZE, STRIDES, decode

    levels = [
        torch.randn(1, 10, INPUT_SIZE[1] // stride, INPUT_SIZE[0] // stride) for stride in STRIDES
    ]
    boxes, objectness, classes = decode(levels)
    level, row, column = 1, 3, 5
    index = levels[0][0, 0].numel() + row * 20 + column
    tx, ty, tw, th, objectness_here = levels[level][0, :5, row, column].tolist()
    centre = np.array([(tx + column) * 16, (ty + row) * 16])
    half = np.exp([tw, th]) * 8
    expected = np.concatenate([centre - half, centre + half])
    np.testing.assert_allclose(boxes[0, index].numpy(), expected, rtol=1e-4)
    assert objectness[0, index].item() == pytest.approx(objectness_here)
    assert classes[0, index].tolist() == levels[level][0, 5:, row, column].tolist()


def test_folding_and_export_change_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    onnxruntime = pytest.importorskip("onnxruntime")
    from dla_perception.demo.network import DemoYolo, export_onnx

    torch.manual_seed(0)
    network = DemoYolo(5)
    # statistics of its own, so that folding has something to do
    network(torch.rand(2, 3, 256, 320))
    network.eval()
    images = torch.rand(1, 3, 256, 320)
    with torch.no_grad():
        before = [level.numpy() for level in network(images)]
    export_onnx(network, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    for first, second in zip(before, session.run(None, {"images": images.numpy()})):
        np.testing.assert_allclose(first, second, atol=1e-4)


def test_the_loss_is_least_where_the_boxes_are_right() -> None:
    torch = pytest.importorskip("torch")
    from dla_perception.demo.loss import Targets, detection_loss
    from dla_perception.demo.network import STRIDES

    boxes = torch.zeros(1, 4, 4)
    boxes[0, 0] = torch.tensor([64.0, 64.0, 96.0, 96.0])
    targets = Targets(boxes, torch.tensor([[2, -1, -1, -1]]), torch.zeros(1, 4, 4))
    levels = [torch.zeros(1, 10, 256 // stride, 320 // stride) for stride in STRIDES]
    for level in levels:
        level[:, 4:] = -12.0
    wrong = detection_loss(levels, targets)
    # the cell of stride 16 at row 5, column 5, has its corner in the middle of the object
    levels[1][0, :, 5, 5] = torch.tensor([0, 0, np.log(2), np.log(2), 12, -12, -12, 12, -12, -12.0])
    right = detection_loss(levels, targets)
    assert right.total < 0.1 < wrong.total
    assert right.box < 0.01
    # an object in an ignored region costs nothing, found or not
    levels[0][0, 4, 20:22, 20:22] = 9.0
    alarmed = detection_loss(levels, targets)
    assert alarmed.objectness > 1
    ignore = torch.zeros(1, 4, 4)
    ignore[0, 0] = torch.tensor([150.0, 150.0, 190.0, 190.0])
    forgiven = detection_loss(levels, targets._replace(ignore=ignore))
    assert forgiven.objectness < 0.1
