"""Training for INT8: the rounding, one real step, the Q/DQ network and what becomes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, NamedTuple, Tuple

import numpy as np
import pytest

from dla_perception.demo import precision_table, qat
from dla_perception.demo.dataset import Pictures, render_training
from dla_perception.demo.evaluate_model import MODEL

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from dla_perception.compiler.graph import Graph, load_graph, open_session  # noqa: E402
from dla_perception.compiler.quantization.emulation import emulate  # noqa: E402
from dla_perception.compiler.quantization.qat import translate  # noqa: E402
from dla_perception.compiler.quantization.unification import groups_of  # noqa: E402


def test_without_torch_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert qat.main(["-o", str(tmp_path / "out.onnx")]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "pip install 'dla_perception[train,onnx]'" in error


def test_no_pictures_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    nothing = ["--stills", "0", "--drive-frames", "0"]
    assert qat.main(["-o", str(tmp_path / "out.onnx"), *nothing]) == 2
    assert "leaves no picture" in capsys.readouterr().err


def test_another_network_is_refused() -> None:
    pytest.importorskip("torch")
    graph = load_graph(MODEL)
    graph.constants["stem.0.conv.weight"] = np.zeros((8, 3, 3, 3), np.float32)
    with pytest.raises(qat.QatTrainingError, match=r"not those of the demo's .*stem\.0\.conv"):
        qat.load_network(graph)
    del graph.constants["heads.0.predict.bias"]
    with pytest.raises(qat.QatTrainingError, match=r"no weights called 'heads\.0\.predict\.bias'"):
        qat.load_network(graph)


def test_activations_are_rounded_and_their_gradient_passes_within_the_range() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([0.24, 0.25, 0.75, -70.0, 63.6], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)
    rounded = qat.fake_quantise(values, scale)
    # half to even; -128 and 127 steps at the ends
    assert rounded.tolist() == [0.0, 0.0, 1.0, -64.0, 63.5]
    rounded.sum().backward()
    assert values.grad.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    # round(v/s) - v/s within, the end of the range outside
    assert scale.grad.item() == pytest.approx(-0.48 - 0.5 + (2 - 1.5) - 128 + 127)


def test_weights_are_rounded_by_their_filters_largest_and_keep_their_gradient() -> None:
    torch = pytest.importorskip("torch")
    weights = torch.zeros(3, 2, 1, 1)
    weights[0, :, 0, 0] = torch.tensor([-1.27, 0.0163])
    weights[1, :, 0, 0] = torch.tensor([254.0, 3.1])
    weights.requires_grad_()
    rounded = qat.quantised_weights(weights)
    expected = [[-1.27, 0.02], [254.0, 4.0], [0.0, 0.0]]
    np.testing.assert_allclose(rounded.detach().numpy()[:, :, 0, 0], expected, rtol=1e-6)
    (rounded * torch.arange(6.0).reshape(3, 2, 1, 1)).sum().backward()
    assert weights.grad.flatten().tolist() == [0, 1, 2, 3, 4, 5]


class Trained(NamedTuple):
    """A network after one step.

    Attributes:
        quantised: in torch.
        path: in ONNX, with Q/DQ nodes.
        before, after: weights and scales by name.
        images: one network input.
        exact: what the float network returns for it.
        levels: what ``quantised`` returns for it.
    """

    quantised: Any
    path: Path
    before: Dict[str, np.ndarray]
    after: Dict[str, np.ndarray]
    images: np.ndarray
    exact: Tuple[np.ndarray, ...]
    levels: Tuple[np.ndarray, ...]


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    pytest.importorskip("torch")
    return render_training(stills=1, drive_frames=0, processes=1, seed=3)


@pytest.fixture(scope="module", params=["fp16", "int8"])
def trained(
    request: pytest.FixtureRequest, pictures: Pictures, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    import torch

    from dla_perception.demo.train import Batches

    torch.manual_seed(0)
    graph = load_graph(MODEL)
    network = qat.load_network(graph)
    device = torch.device("cpu")
    ((images, targets),) = list(Batches(pictures, 1, device, seed=0))
    with torch.no_grad():
        exact = tuple(level.numpy() for level in network(images))
    scales = qat.calibrated_scales(graph, pictures, 1, "minmax", request.param == "int8")
    quantised = qat.QuantisedNetwork(network, graph, scales)
    before = _parameters(quantised)
    qat.train_step(quantised, qat.make_optimiser(quantised, 1e-4, 1e-3), images, targets)
    path = tmp_path_factory.mktemp("qat") / f"{request.param}.onnx"
    qat.export_qdq(MODEL, quantised, path)
    with torch.no_grad():
        levels = tuple(level.numpy() for level in quantised(images))
    after = _parameters(quantised)
    return Trained(quantised, path, before, after, images.numpy(), exact, levels)


def _parameters(quantised: Any) -> Dict[str, np.ndarray]:
    weights = {name: value.numpy().copy() for name, value in quantised.network.state_dict().items()}
    return {**weights, **{name: np.array(value) for name, value in quantised.scales().items()}}


def test_a_step_moves_every_weight_and_scale_a_little(trained: Trained) -> None:
    for name, before in trained.before.items():
        moved = np.abs(trained.after[name] - before)
        assert moved.max() > 0, name
        # AdamW's first step is at most the learning rate; a scale's is a share of the scale
        limit = 1.01e-4 if name.endswith((".weight", ".bias")) else 1.01e-3 * before
        assert moved.max() <= limit, name


def test_what_must_share_a_scale_on_a_dla_shares_it(trained: Trained) -> None:
    scales = trained.quantised.scales()
    groups = [
        [scales[name] for name in group if name in scales] for group in groups_of(load_graph(MODEL))
    ]
    assert max(len(group) for group in groups) >= 4
    assert all(len(set(group)) <= 1 for group in groups)


def test_the_exported_network_computes_what_was_trained(trained: Trained) -> None:
    model = onnx.load(str(trained.path))
    onnx.checker.check_model(model, full_check=True)
    levels = open_session(model).run(None, {"images": trained.images})
    for ours, theirs, exact in zip(trained.levels, levels, trained.exact):
        _assert_same_but_for_flips(ours, theirs, exact)


def test_translate_qat_takes_it_and_its_emulation_computes_the_same(trained: Trained) -> None:
    int8_heads = trained.path.stem == "int8"
    translation = translate(trained.path, precision_table.INFERENCE)
    assert not translation.warnings
    heads = tuple(f"/heads.{index}/predict/Conv" for index in range(3))
    assert translation.fp16_layers == (() if int8_heads else heads)
    stated = trained.quantised.scales()
    assert dict(translation.stated) == {
        name: float(np.float32(value)) for name, value in stated.items()
    }
    emulation = emulate(translation.graph, translation.scales)
    assert len(emulation.int8_layers) == (67 if int8_heads else 64)
    assert not emulation.unknown
    feed = {"images": trained.images}
    levels = open_session(onnx.load(str(trained.path))).run(None, feed)
    for ours, theirs, exact in zip(
        open_session(emulation.model).run(None, feed), levels, trained.exact
    ):
        _assert_same_but_for_flips(ours, theirs, exact)


def _assert_same_but_for_flips(ours: np.ndarray, theirs: np.ndarray, exact: np.ndarray) -> None:
    """Two runs of a rounding network differ by less than rounding changed.

    Not by nothing: a sum taken in another order lands on the other side of a step here and there,
    and 20 layers later there is much that it has touched.
    """
    rounding = np.sqrt(np.mean((theirs - exact) ** 2))
    assert rounding > 0.01
    assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.7 * rounding


def test_the_first_layers_emulate_step_for_step(trained: Trained, tmp_path: Path) -> None:
    # few layers deep, almost no sum has landed on the other side of a step
    tensor = "/stem/stem.2/mix/act/Relu_output_0"
    whole = onnx.shape_inference.infer_shapes(onnx.load(str(trained.path)))
    result = f"{tensor}_dequantized"
    stem = onnx.utils.Extractor(whole).extract_model(["images"], [result])
    onnx.save(stem, str(tmp_path / "stem.onnx"))
    translation = translate(tmp_path / "stem.onnx", precision_table.INFERENCE)
    assert translation.scales[result] == np.float32(trained.quantised.scales()[tensor])
    emulation = emulate(translation.graph, translation.scales)
    assert not emulation.fp16_layers
    feed = {"images": trained.images}
    (ours,) = open_session(emulation.model).run(None, feed)
    (theirs,) = open_session(stem).run(None, feed)
    steps = np.abs(ours - theirs) / translation.scales[result]
    assert len(np.unique(theirs)) > 20
    assert (steps > 0.5).mean() < 0.005
    assert steps.max() < 5


def test_a_trained_network_still_finds_the_objects(trained: Trained) -> None:
    (exact, half), row = (
        precision_table.float_variants(MODEL),
        precision_table.trained_variant(trained.path),
    )
    assert (row.int8_layers, row.fp16_layers) == ((67, 0), (64, 3))[trained.path.stem == "fp16"]
    assert ("FP16 head" in row.name) == (trained.path.stem == "fp16")
    table = precision_table.measure(MODEL, [exact, half, row], 3)
    assert [measured.name for measured in table] == ["FP32", "FP16", row.name]
    assert table[0].map50 > 0.9
    assert table[1].map50 == pytest.approx(table[0].map50, abs=0.02)
    assert table[2].map50 > 0.8
    assert all(0.5 < measured.map50_95 < measured.map50 for measured in table)


def test_the_table_has_a_row_for_every_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert precision_table.main(["--images", "2", "--calibration-pictures", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["images"] == 2
    rows = {row["name"]: row for row in document["rows"]}
    calibrated = [
        f"INT8{head}, calibrated: {method}"
        for method in ("entropy", "minmax", "percentile")
        for head in ("", ", FP16 head")
    ]
    assert list(rows) == ["FP32", "FP16", *calibrated]
    assert rows["FP16"]["fp16_layers"] == rows[calibrated[0]]["int8_layers"] == 67
    assert rows[calibrated[1]]["fp16_layers"] == 3
    assert rows["FP32"]["map50_95"] > rows[calibrated[1]]["map50_95"] > 0.3


def test_calibration_reads_pictures_of_the_training_as_the_detector_does() -> None:
    (first, _) = precision_table.calibration_inputs(MODEL, 2)
    assert first.shape == (1, 3, 256, 320)
    assert first.dtype == np.float32
    np.testing.assert_allclose(first[:, :, :8], 114 / 255, rtol=1e-6)
    assert 0 <= first.min() < 0.2
    assert 0.6 < first.max() <= 1


def test_convolutions_of_a_graph_without_scaled_heads_stay_in_fp16() -> None:
    graph: Graph = load_graph(MODEL)
    names = [*graph.inputs, *(name for node in graph.nodes for name in node.output)]
    scales = {name: 1.0 for name in names if name not in graph.outputs}
    parts = {part.module: part for part in qat.convolutions(graph, scales)}
    assert len(parts) == 47
    assert parts["stem.0.conv"].source == "images"
    assert [name for name, part in parts.items() if not part.in_int8] == [
        f"heads.{index}.predict" for index in range(3)
    ]
    assert all(part.result is None for part in parts.values())
