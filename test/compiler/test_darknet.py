"""The Darknet importer against the original program, OpenCV's importer and recorded logits."""

from __future__ import annotations

import glob
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence

import cv2
import numpy as np
import pytest

from dla_perception.cli.main import main
from dla_perception.compiler.darknet import DarknetNetwork, convert, import_darknet
from dla_perception.compiler.darknet_files import (
    DarknetError,
    Section,
    WeightsFile,
    read_cfg,
)
from dla_perception.detection.description import ModelDescription, read_description
from dla_perception.detection.letterbox import Placement

LIBRARY = Path("/usr/lib/darknet/libdarknet.so")
CFGS = sorted(glob.glob("/usr/share/darknet/cfg/*.cfg"))
RECURRENT = ("gru.cfg", "rnn.cfg", "rnn.train.cfg")
HEADS = ("yolo", "region", "detection")

needs_darknet = pytest.mark.skipif(
    not (CFGS and LIBRARY.exists()), reason="Debian's package darknet is not installed"
)


class RandomWeights:
    """Numbers for any network, kept in the order of a weights file."""

    transposed = False

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._parts: list[np.ndarray] = []

    def take(self, shape: Sequence[int], what: str, section: Section) -> np.ndarray:
        if what == "weights":
            fan_in = int(np.prod(shape[1:]))
            values = self._generator.standard_normal(shape) * np.sqrt(2 / fan_in)
        elif what in ("variances", "scales"):
            values = self._generator.uniform(0.5, 1.5, shape)
        else:
            values = self._generator.uniform(-0.2, 0.2, shape)
        self._parts.append(values.astype("<f4"))
        return self._parts[-1]

    def file(self, header: bytes | None = None) -> bytes:
        header = np.array([0, 2, 5, 7, 0], "<i4").tobytes() if header is None else header
        return header + b"".join(part.tobytes() for part in self._parts)


def outputs_of(network: DarknetNetwork, pixels: np.ndarray) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(network.model.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": pixels})))


def importable(
    tmp_path: Path, text: str, header: bytes | None = None, tail: bytes = b""
) -> tuple[Path, Path]:
    """The two files of a network with random weights."""
    cfg, weights = tmp_path / "net.cfg", tmp_path / "net.weights"
    cfg.write_text(text)
    source = RandomWeights()
    convert(read_cfg(cfg), source)
    weights.write_bytes(source.file(header) + tail)
    return cfg, weights


# ---- real networks


@pytest.mark.parametrize("name", ["yolo-fastest-1.1", "yolo-fastest-1.1-xl"])
def test_real_networks_give_the_logits_that_were_recorded(assets: Path, name: str) -> None:
    folder = assets / "darknet"
    network = import_darknet(folder / f"{name}.cfg", folder / f"{name}.weights")
    picture = cv2.imread(str(assets / "images" / "classic" / "dog.jpg"))
    outputs = outputs_of(network, cv2.dnn.blobFromImage(picture, 1 / 255, (320, 320), swapRB=True))
    recorded = np.load(folder / f"{name}.dog.opencv.npz")
    assert list(outputs) == ["conv_129", "conv_120"]  # the finest level first
    for output, values in outputs.items():
        np.testing.assert_allclose(values, recorded[f"logits_{output}"], rtol=0, atol=1e-4)
    assert network.layers == 131
    assert network.description == ModelDescription(
        family="darknet",
        num_classes=80,
        input_size=(320, 320),
        channel_order="rgb",
        scale=1 / 255,
        placement=Placement.STRETCH,
        pad_value=128,
        strides=(16, 32),
        anchors=(((12, 18), (37, 49), (52, 132)), ((115, 73), (119, 199), (242, 238))),
        scale_x_y=(1.0, 1.0),
        new_coords=False,
    )


def test_the_verb_writes_network_and_description(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = assets / "darknet"
    files = [str(folder / f"yolo-fastest-1.1.{kind}") for kind in ("cfg", "weights")]
    out = tmp_path / "fastest.onnx"
    options = ["--labels", str(folder / "coco.names"), "--input-size", "416x352"]
    assert main(["import-darknet", *files, "-o", str(out), *options]) == 0
    assert "conv_129: 1 x 255 x 22 x 26" in capsys.readouterr().out
    description = read_description(tmp_path / "fastest.yaml")
    assert description["input_size"] == (416, 352)
    assert description["class_names"][:2] == ("person", "bicycle")
    assert main(["import-darknet", *files, "-o", str(tmp_path / "fastest.pb")]) == 2
    assert "expected a name that ends in .onnx" in capsys.readouterr().err


def test_an_imported_network_detects_what_was_recorded(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(assets / "darknet" / f"yolo-fastest-1.1-xl.{kind}") for kind in ("cfg", "weights")]
    out = tmp_path / "xl.onnx"
    assert main(["import-darknet", *files, "-o", str(out), "--labels", "coco"]) == 0
    capsys.readouterr()
    picture = assets / "images" / "classic" / "dog.jpg"
    assert main(["detect", str(out), str(picture), "--json"]) == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    path = assets / "reference_detections" / "yolo-fastest-1.1-xl.json"
    recorded = json.loads(path.read_text())
    for wanted in recorded["images"]["dog.jpg"][:3]:
        same = [item for item in image["detections"] if item["class_id"] == wanted["class_id"]]
        found = same[0]
        assert found["score"] == pytest.approx(wanted["score"], abs=0.02)
        assert found["box"] == pytest.approx(wanted["box_xyxy"], abs=2)


def test_another_epsilon_changes_the_logits(assets: Path) -> None:
    folder = assets / "darknet"
    files = (folder / "yolo-fastest-1.1.cfg", folder / "yolo-fastest-1.1.weights")
    pixels = np.full((1, 3, 320, 320), 0.5, np.float32)
    first, second = (
        outputs_of(import_darknet(*files, epsilon=epsilon), pixels)["conv_120"]
        for epsilon in (1e-6, 1e-5)
    )
    assert 1e-4 < np.abs(first - second).max() < 0.1


# ---- every cfg of Debian's package

PREDICT = """
import ctypes, json, sys
import numpy as np
library = ctypes.CDLL(sys.argv[1])
library.load_network.restype = ctypes.c_void_p
library.network_predict.restype = ctypes.POINTER(ctypes.c_float)
for name in ("set_batch_network", "network_outputs", "network_predict", "free_network"):
    getattr(library, name).argtypes = [ctypes.c_void_p]
library.network_predict.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
library.set_batch_network.argtypes = [ctypes.c_void_p, ctypes.c_int]
for cfg, weights, pixels, result in json.load(sys.stdin):
    network = library.load_network(cfg.encode(), weights.encode(), 0)
    library.set_batch_network(network, 1)
    values = np.load(pixels)
    output = library.network_predict(network, values.ctypes.data)
    np.save(result, np.ctypeslib.as_array(output, (library.network_outputs(network),)))
    library.free_network(network)
"""


def shrunk(path: str, size: int, divisor: int) -> list[str]:
    """The sections of a cfg file, for smaller pictures and with fewer filters.

    What is shrunk is the time a test takes: the kinds of layers and their order stay.
    """
    text = "\n".join(
        re.split("[#;]", line)[0].strip() for line in Path(path).read_text().splitlines()
    )
    text = re.sub(r"(?m)^(width|height) *=.*$", rf"\1={size}", text)
    text = re.sub(r"(?m)^(crop_width|crop_height) *=.*$", rf"\1={size - 16}", text)
    sections = re.split(r"(?m)^(?=\[)", text)[1:]
    for index, section in enumerate(sections):
        following = sections[index + 1] if index + 1 < len(sections) else ""
        if re.match(r"\[(yolo|region)\]|\[reorg\]", following):
            continue
        if "filters=9418" in section:  # the leaves and nodes of a word tree
            continue
        sections[index] = re.sub(
            r"(?m)^(filters|output|groups) *= *(\d+)$",
            lambda found: f"{found[1]}={max(int(found[2]) // divisor, 1)}",
            section,
        )
    return sections


def cut(sections: Sequence[str], wanted: int) -> str:
    """The text of a network that ends before its ``wanted``-th head."""
    heads = [i for i, text in enumerate(sections) if re.match(rf"\[({'|'.join(HEADS)})\]", text)]
    return "".join(sections[: heads[wanted]] if heads else sections)


# pictures as small as the networks allow
SIZES = {"alexnet.cfg": 96, "strided.cfg": 112, "extraction.cfg": 64, "yolov1.cfg": 128}
OPENCV_DIFFERS = {
    "cifar.test.cfg": "OpenCV ignores the temperature of a softmax",
    "darknet9000.cfg": "OpenCV ignores the word tree of a softmax",
    "go.cfg": "OpenCV ignores extra= of a reorg",
    "go.test.cfg": "OpenCV ignores extra= of a reorg",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[str, Any]]:
    """Every cfg with random weights: our outputs and those of the original program."""
    folder = tmp_path_factory.mktemp("darknet")
    found: dict[str, dict[str, Any]] = {}
    jobs = []
    for path in CFGS:
        name = Path(path).name
        if name in RECURRENT:
            continue
        sections = shrunk(path, SIZES.get(name, 64), 8)
        whole = folder / name
        whole.write_text("".join(sections))
        source = RandomWeights()
        network = convert(read_cfg(whole), source)
        weights, pixels = folder / f"{name}.weights", folder / f"{name}.npy"
        weights.write_bytes(source.file())
        shape = [size.dim_value for size in network.model.graph.input[0].type.tensor_type.shape.dim]
        np.save(pixels, np.random.default_rng(1).random(shape, dtype=np.float32))
        outputs = outputs_of(network, np.load(pixels))
        parts = []
        # our outputs begin with the finest level, the cfg's heads with the coarsest
        for index in range(len(outputs)):
            part, result = folder / f"{index}_{name}", folder / f"{index}_{name}.result.npy"
            part.write_text(cut(sections, index))
            parts.append((part, result))
            jobs.append([str(part), str(weights), str(pixels), str(result)])
        values = list(outputs.values())[::-1]
        found[name] = {"parts": parts, "ours": values, "weights": weights, "pixels": pixels}
    subprocess.run(
        [sys.executable, "-c", PREDICT, str(LIBRARY)],
        input=json.dumps(jobs),
        text=True,
        check=True,
        capture_output=True,
        timeout=300,
    )
    return found


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    assert ours.size == theirs.size
    return float(np.abs(ours.ravel() - theirs.ravel()).max() / np.abs(theirs).max())


@needs_darknet
@pytest.mark.parametrize(
    "name", [Path(path).name for path in CFGS if Path(path).name not in RECURRENT]
)
def test_every_cfg_computes_what_the_original_computes(
    original: Mapping[str, dict[str, Any]], name: str
) -> None:
    case = original[name]
    for (part, result), ours in zip(case["parts"], case["ours"]):
        assert relative_difference(ours, np.load(result)) < 1e-4, part
        try:
            opencv = cv2.dnn.readNetFromDarknet(str(part), str(case["weights"]))
            opencv.setInput(np.load(case["pixels"]))
            theirs = opencv.forward()
        except cv2.error:
            continue  # layers that OpenCV does not have
        if name not in OPENCV_DIFFERS:
            assert relative_difference(ours, theirs) < 1e-4, part


@needs_darknet
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_networks_are_refused(name: str) -> None:
    path = f"/usr/share/darknet/cfg/{name}"
    with pytest.raises(DarknetError, match=r"no 'height='|no 'width='|recurrent") as caught:
        convert(read_cfg(path), RandomWeights())
    assert path in str(caught.value)
    sections = read_cfg(path)
    with pytest.raises(DarknetError, match=r"line \d+: layer 0 \[\w+\]: a recurrent layer keeps"):
        convert([sections[0].with_options(width=1, height=1), *sections[1:]], RandomWeights())


# ---- what v4, v7 and their relatives have beyond that

NET = "[net]\nwidth=32\nheight=32\nchannels=3\n"
CONV = "[convolutional]\nfilters={}\nsize=3\npad=1\nstride={}\nbatch_normalize=1\nactivation={}\n"
HEAD = "[convolutional]\nfilters={}\nsize=1\nactivation={}\n"
YOLO = "[yolo]\nmask={}\nanchors=10,14, 23,27, 37,58, 81,82.5\nclasses=2\nnum=4\n{}\n"


def against_opencv(tmp_path: Path, text: str, accuracy: float = 1e-5) -> DarknetNetwork:
    """Import a network without heads and compare its only output with OpenCV's."""
    cfg, weights = importable(tmp_path, text)
    network = import_darknet(cfg, weights)
    shape = [size.dim_value for size in network.model.graph.input[0].type.tensor_type.shape.dim]
    pixels = np.random.default_rng(1).random(shape, dtype=np.float32)
    opencv = cv2.dnn.readNetFromDarknet(str(cfg), str(weights))
    opencv.setInput(pixels)
    (ours,) = outputs_of(network, pixels).values()
    assert relative_difference(ours, opencv.forward()) < accuracy
    return network


@pytest.mark.parametrize(
    "layers",
    [
        CONV.format(8, 2, "mish"),
        CONV.format(8, 2, "swish"),
        CONV.format(8, 1, "logistic") + "[maxpool]\nsize=9\nstride=1\n",
        CONV.format(8, 1, "relu") + "[maxpool]\nsize=2\nstride=1\n",
        CONV.format(8, 1, "leaky") + "[route]\nlayers=-1\ngroups=2\ngroup_id=1\n",
        CONV.format(6, 1, "leaky") + CONV.format(6, 1, "tanh") + "[sam]\nfrom=-2\n",
        CONV.format(6, 1, "leaky")
        + "[avgpool]\n"
        + HEAD.format(6, "logistic")
        + "[scale_channels]\nfrom=-3\n",
        CONV.format(4, 4, "leaky") + "[upsample]\nstride=2\n",
        CONV.format(4, 4, "leaky") + "[connected]\noutput=7\nactivation=relu\n",
    ],
)
def test_layers_of_later_versions_agree_with_opencv(tmp_path: Path, layers: str) -> None:
    against_opencv(tmp_path, NET + layers)


def block(filters: int, size: int, activation: str, stride: int = 1) -> str:
    return (
        f"[convolutional]\nbatch_normalize=1\nfilters={filters}\nsize={size}\nstride={stride}\n"
        f"pad=1\nactivation={activation}\n"
    )


# one stage of each backbone as its authors wrote it, with few filters, and the neck behind it
STAGES = {
    "v4-tiny": block(8, 3, "leaky", 2)
    + block(8, 3, "leaky")
    + "[route]\nlayers=-1\ngroups=2\ngroup_id=1\n"
    + block(4, 3, "leaky")
    + block(4, 3, "leaky")
    + "[route]\nlayers=-1,-2\n"
    + block(8, 1, "leaky")
    + "[route]\nlayers=-6,-1\n"
    + "[maxpool]\nsize=2\nstride=2\n",
    "v4": block(16, 3, "mish", 2)
    + block(8, 1, "mish")
    + "[route]\nlayers=-2\n"
    + block(8, 1, "mish")
    + block(8, 1, "mish")
    + block(8, 3, "mish")
    + "[shortcut]\nfrom=-3\nactivation=linear\n"
    + block(8, 1, "mish")
    + "[route]\nlayers=-1,-7\n"
    + block(16, 1, "mish")
    + "[maxpool]\nstride=1\nsize=5\n[route]\nlayers=-2\n[maxpool]\nstride=1\nsize=9\n"
    + "[route]\nlayers=-4\n[maxpool]\nstride=1\nsize=13\n[route]\nlayers=-1,-3,-5,-6\n",
    "v7-tiny": block(8, 3, "leaky", 2)
    + block(4, 1, "leaky")
    + "[route]\nlayers=-2\n"
    + block(4, 1, "leaky")
    + block(4, 3, "leaky")
    + block(4, 3, "leaky")
    + "[route]\nlayers=-1,-2,-3,-5\n"
    + block(8, 1, "leaky")
    + "[maxpool]\nsize=2\nstride=2\n",
    "v7": block(8, 3, "swish", 2)
    + "[maxpool]\nsize=2\nstride=2\n"
    + block(4, 1, "swish")
    + "[route]\nlayers=-3\n"
    + block(4, 1, "swish")
    + block(4, 3, "swish", 2)
    + "[route]\nlayers=-1,-4\n",
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_of_yolov4_and_yolov7(tmp_path: Path, name: str) -> None:
    neck = block(4, 1, "leaky") + "[upsample]\nstride=2\n" + HEAD.format(14, "logistic")
    network = against_opencv(tmp_path, NET + STAGES[name] + neck)
    assert network.layers == (STAGES[name] + neck).count("[")


def run_tail(tmp_path: Path, layers: str, shape: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    """Input, output and weights of layers that OpenCV does not know."""
    net = f"[net]\nchannels={shape[0]}\nheight={shape[1]}\nwidth={shape[2]}\n"
    cfg = tmp_path / "tail.cfg"
    cfg.write_text(net + layers)
    source = RandomWeights()
    network = convert(read_cfg(cfg), source)
    pixels = np.random.default_rng(2).uniform(-5, 5, (1, *shape)).astype(np.float32)
    (output,) = outputs_of(network, pixels).values()
    return pixels[0], output[0], list(source._parts)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "elu": lambda x: np.where(x >= 0, x, np.exp(x) - 1),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(0.797885 * x + 0.035677 * x**3)),
    "hard_mish": lambda x: np.where(x > 0, x, np.where(x > -2, x * x / 2 + x, 0)),
    "hardtan": lambda x: np.clip(x, -1, 1),
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "lhtan": lambda x: np.where(x < 0, 0.001 * x, np.where(x > 1, 0.001 * (x - 1) + 1, x)),
    "linear": lambda x: x,
    "loggy": lambda x: 2 * sigmoid(x) - 1,
    "logistic": sigmoid,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "plse": lambda x: np.where(
        x < -4, 0.01 * (x + 4), np.where(x > 4, 0.01 * (x - 4) + 1, 0.125 * x + 0.5)
    ),
    "ramp": lambda x: x * (x > 0) + 0.1 * x,
    "relie": lambda x: np.where(x > 0, x, 0.01 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "revleaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "selu": lambda x: np.where(x >= 0, 1.0507 * x, 1.0507 * 1.6732 * (np.exp(x) - 1)),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(tmp_path: Path, kind: str) -> None:
    # the maxpool of size 1 changes nothing: a network needs a layer with a node
    layers = f"[maxpool]\nsize=1\n[activation]\nactivation={kind}\n"
    pixels, output, _ = run_tail(tmp_path, layers, (2, 5, 40))
    np.testing.assert_allclose(output, ACTIVATIONS[kind](pixels.astype(float)), atol=3e-6)


@pytest.mark.parametrize("kind", ["per_feature", "per_channel"])
@pytest.mark.parametrize("normalisation", ["none", "relu", "softmax"])
def test_weighted_shortcuts(tmp_path: Path, kind: str, normalisation: str) -> None:
    layers = (
        "[maxpool]\nsize=1\n[maxpool]\nsize=3\nstride=1\n[maxpool]\nsize=5\nstride=1\n"
        f"[shortcut]\nfrom=-3,-2\nweights_type={kind}\nweights_normalization={normalisation}\n"
    )
    pixels, output, (weights,) = run_tail(tmp_path, layers, (4, 6, 6))
    w = weights.reshape(3, -1, 1, 1).astype(float)
    if normalisation == "relu":
        w = np.maximum(w, 0.001)
        w = w / (w.sum(axis=0) + 0.0001)
    elif normalisation == "softmax":
        w = np.exp(w - w.max(axis=0))
        w = w / (w.sum(axis=0) + 0.0001)

    def pooled(size: int) -> np.ndarray:
        kernel = np.ones((size, size))
        return np.stack([cv2.dilate(channel, kernel, borderType=0) for channel in pixels])

    # the second pooling works on the first: together they reach as far as one of size 7
    expected = pooled(7) * w[0] + pixels * w[1] + pooled(3) * w[2]
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_dilation_spreads_the_weights(tmp_path: Path) -> None:
    layers = "[convolutional]\nsize=3\npad=1\ndilation=2\nactivation=linear\n"
    pixels, output, (bias, weights) = run_tail(tmp_path, layers, (1, 8, 9))
    spread = np.zeros((5, 5), np.float32)
    spread[::2, ::2] = weights[0, 0]
    expected = cv2.filter2D(pixels[0], -1, spread, borderType=cv2.BORDER_CONSTANT) + bias[0]
    np.testing.assert_allclose(output[0], expected, atol=1e-5)


def test_reorg3d_and_implicit(tmp_path: Path) -> None:
    pixels, output, _ = run_tail(tmp_path, "[reorg3d]\nstride=2\n", (3, 4, 6))
    expected = np.concatenate([pixels[:, y::2, x::2] for y in (0, 1) for x in (0, 1)])
    np.testing.assert_array_equal(output, expected)
    layers = "[maxpool]\nsize=1\n[implicit]\nfilters=3\n[scale_channels]\nfrom=-2\n"
    pixels, output, (weights,) = run_tail(tmp_path, layers, (3, 4, 6))
    np.testing.assert_allclose(output, pixels * weights.reshape(3, 1, 1), rtol=1e-6)


def test_shared_weights_are_read_once(tmp_path: Path) -> None:
    text = NET + CONV.format(3, 1, "leaky") * 2
    text += CONV.format(3, 1, "leaky") + "share_index=0\n"
    cfg, weights = importable(tmp_path, text)
    assert weights.stat().st_size == 20 + 2 * 4 * (4 * 3 + 3 * 3 * 9)
    constants = {
        value.name: value for value in import_darknet(cfg, weights).model.graph.initializer
    }
    assert constants["conv_2_weight"].raw_data == constants["conv_0_weight"].raw_data


def test_the_description_of_two_levels(tmp_path: Path) -> None:
    text = NET.replace("channels", "letter_box=1\nchannels")
    text += CONV.format(8, 2, "mish") + CONV.format(8, 2, "mish")
    text += HEAD.format(14, "logistic") + YOLO.format("2,3", "scale_x_y=1.05\nnew_coords=1")
    text += "[route]\nlayers=0\n" + HEAD.format(14, "logistic")
    text += YOLO.format("0,1", "scale_x_y=2\nnew_coords=1")
    cfg, weights = importable(tmp_path, text)
    network = import_darknet(cfg, weights)
    assert network.description is not None
    wanted = {
        "num_classes": 2,
        "placement": Placement.CENTRE,
        "strides": (2, 4),
        "anchors": (((10, 14), (23, 27)), ((37, 58), (81, 82.5))),
        "scale_x_y": (2.0, 1.05),
        "new_coords": True,
    }
    assert {key: getattr(network.description, key) for key in wanted} == wanted
    shapes = {k: v.shape for k, v in outputs_of(network, np.zeros((1, 3, 32, 32), "f4")).items()}
    assert shapes == {"logistic_5": (1, 14, 16, 16), "logistic_2": (1, 14, 8, 8)}


# ---- weights files


@pytest.mark.parametrize(
    ("version", "seen_bytes"), [((0, 1, 0), 4), ((0, 2, 0), 8), ((0, 2, 5), 8), ((1, 0, 0), 8)]
)
def test_both_sizes_of_header(tmp_path: Path, version: tuple[int, ...], seen_bytes: int) -> None:
    header = np.array(version, "<i4").tobytes() + bytes(seen_bytes)
    cfg, weights = importable(tmp_path, NET + CONV.format(3, 1, "leaky"), header)
    assert WeightsFile(weights).header_bytes == 12 + seen_bytes
    assert import_darknet(cfg, weights).layers == 1


def test_transposed_fully_connected_weights(tmp_path: Path) -> None:
    text = "[net]\nwidth=2\nheight=2\nchannels=1\n[connected]\noutput=2\nactivation=linear\n"
    cfg = tmp_path / "net.cfg"
    cfg.write_text(text)
    body = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8], "<f4").tobytes()
    pixels = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    results = []
    for major in (0, 1001):
        path = tmp_path / f"{major}.weights"
        path.write_bytes(np.array([major, 2, 0], "<i4").tobytes() + bytes(8) + body)
        (output,) = outputs_of(import_darknet(cfg, path), pixels).values()
        results.append(output.ravel().tolist())
    # rows 1 2 3 4 and 5 6 7 8, or, transposed, columns 1 3 5 7 and 2 4 6 8
    assert results == [[30, 70], [50, 60]]


def test_a_mismatch_says_at_which_layer_and_by_how_much(tmp_path: Path) -> None:
    text = NET + CONV.format(4, 1, "leaky") + CONV.format(5, 1, "leaky")
    cfg, weights = importable(tmp_path, text)
    content = weights.read_bytes()
    weights.write_bytes(content[:-40])
    with pytest.raises(
        DarknetError, match=r"ends in layer 1 \[convolutional\] \(cfg line 12\)"
    ) as e:
        import_darknet(cfg, weights)
    assert "asks for 180 weights: 170 are left, 10 are missing" in str(e.value)
    weights.write_bytes(content + bytes(12))
    with pytest.raises(DarknetError, match=r"3 numbers are left over after layer 1 .* the last"):
        import_darknet(cfg, weights)
    weights.write_bytes(content + bytes(1))
    with pytest.raises(DarknetError, match="1 bytes are left over"):
        import_darknet(cfg, weights)
    weights.write_bytes(content)
    cfg.write_text(text.replace("filters=4", "filters=3"))
    with pytest.raises(DarknetError, match=r"some variances of layer 0 .* are negative: from this"):
        import_darknet(cfg, weights)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are too few"),
        (bytes(15), "15 bytes are too few"),
        (b"GIF89a" + bytes(20), "version .* cannot be"),
    ],
)
def test_files_that_are_no_weights(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.weights").write_bytes(content)
    with pytest.raises(DarknetError, match=message):
        WeightsFile(tmp_path / "x.weights")
    with pytest.raises(DarknetError, match="No such file"):
        WeightsFile(tmp_path / "missing")


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    cfg, weights = importable(tmp_path, NET + CONV.format(4, 1, "leaky"))
    content = bytearray(weights.read_bytes())
    content[20:24] = np.array([np.nan], "<f4").tobytes()
    weights.write_bytes(content)
    with pytest.raises(DarknetError, match="some biases of layer 0 .* are not finite"):
        import_darknet(cfg, weights)


# ---- cfg files that are wrong

CONV3 = CONV.format(3, 1, "leaky")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no section"),
        ("width=3\n", r"line 1: 'width=3': expected .* begins with \[net\]"),
        (CONV3, r"it begins with \[convolutional\]"),
        (NET, r"no layer after \[net\]"),
        (NET + "[conv\n", r"line 5: '\[conv': expected '\[name\]'"),
        (NET + "[conv]\nfilters\n", "line 6: 'filters': expected"),
        (NET.replace("width=32\n", "") + CONV3, r"\[net\]: it has no 'width='"),
        (NET.replace("32", "x", 1) + CONV3, "line 2: width=x: expected whole numbers"),
        (NET + CONV3 + "[warp]\n", r"line 12: layer 1 \[warp\]: this kind of section is unknown"),
        (NET + CONV3 + "[route]\nlayers=-2\n", r"layer 1 \[route\]: it refers to layer -2 \(that"),
        (NET + CONV3 + "[route]\nlayers=1\n", "refers to layer 1; only layers 0 to 0 come before"),
        (NET + CONV3 + "[route]\n", r"\[route\]: it has no 'layers='"),
        (NET + CONV3 + "[route]\nlayers=a\n", "line 13: layers=a: expected whole numbers"),
        (NET + CONV3 + "[route]\nlayers=0\ngroups=2\n", "group_id=0 of groups=2 cannot be taken"),
        (NET + CONV3 + "[maxpool]\nstride=2\n[route]\nlayers=0,1\n", "height and width differ"),
        (NET + CONV3 + "[maxpool]\nstride=2\n[shortcut]\nfrom=5\n", "refers to layer 5"),
        (NET + "[maxpool]\nstride=2\n[shortcut]\nfrom=-1,-9\n", "refers to layer -9"),
        (NET + "[maxpool]\nstride=2\n[upsample]\n[shortcut]\nfrom=0\n", "must be the same size"),
        (NET + CONV.format(3, 1, "softsign"), "activation=softsign is not supported; supported"),
        (NET + CONV.format(0, 1, "leaky"), "filters=0: expected 1 or more"),
        (NET + CONV3 + "groups=2\n", "groups=2 does not divide its 3 input channels"),
        (NET + CONV3 + "xnor=1\n", "option 'xnor' is not supported"),
        (NET + "[convolutional]\nsize=99\n", "its output would be 1 x -66 x -66"),
        (NET + "[softmax]\ntree=none.tree\n", "tree=.*none.tree: cannot read it"),
        (NET + HEAD.format(13, "linear") + YOLO.format("0,1", ""), "need 14 channels, .* has 13"),
        (NET + HEAD.format(14, "linear") + YOLO.format("0,4", ""), "mask has anchor 4; expected 0"),
        (NET + HEAD.format(14, "linear") + YOLO.format("0,1", "").replace("82.5", "82,1"),
         "num=4 needs 8 anchors, it has 9"),
        (NET + HEAD.format(14, "linear") + YOLO.format("0,1", "") * 2, "already is the input"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    cfg = tmp_path / "net.cfg"
    cfg.write_text(text)
    with pytest.raises(DarknetError, match=message) as caught:
        convert(read_cfg(cfg), RandomWeights())
    assert str(caught.value).startswith(str(cfg))
    assert "\n" not in str(caught.value)


def test_comments_space_aliases_and_repeated_keys(tmp_path: Path) -> None:
    text = (
        "# a comment\n[network]\n width = 32 ; wide\nheight=32\n\n[conv]\nfilters= 4 # four\n"
        "size=1\nsize=7\nactivation=linear\n[max]\nsize=2\nstride=2\n[silence]\n[cost]\n"
    )
    cfg, weights = importable(tmp_path, text)
    network = import_darknet(cfg, weights)
    assert network.layers == 4
    assert outputs_of(network, np.zeros((1, 3, 32, 32), "f4"))["maxpool_1"].shape == (1, 4, 16, 16)
    assert network.description is None
