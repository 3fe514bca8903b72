"""Time of preprocessing, decoding and suppression, ours beside the usual way.

  tools/run python benchmarks/pipeline.py
  tools/run python benchmarks/pipeline.py --quick --json > pipeline.json

Ours are the stages of the detector: pixels into the engine's buffer in the engine's layout, the
raw head convolutions decoded where a score passes, class-wise suppression. The usual way is that
of the examples that come with such networks: letterbox, ``blobFromImage`` into float CHW, a Python
loop over the boxes, OpenCV's suppression. It is given an easier job: its network has decoded all
boxes already, and its input is not quantised. With --prefilter its loop is only over boxes that
numpy found to pass, as better examples do.

Both get the same images and the same made-up objects, and find the same boxes, which is checked.
Each object is a cluster of 5 to 9 overlapping candidates. Times are medians in milliseconds of one
thread's processor time: nothing here waits, so on a machine with nothing else to do it is the time
that passes. The engine's own time is not in them. The total of ours is the detector's, from image
to boxes in pixels of the image, so it is a little more than the sum of its stages. An engine whose
input is INT8 or FP16 returns FP16 in blocks of 16 channels, as a DLA does; one whose input is FP32
returns FP32.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

# Before numpy starts its threads.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import cv2  # noqa: E402
import numpy as np  # noqa: E402

from dla_perception.detection.description import ModelDescription  # noqa: E402
from dla_perception.detection.detections import Detections  # noqa: E402
from dla_perception.detection.detector import DetectionSettings, Detector  # noqa: E402
from dla_perception.detection.heads import make_head  # noqa: E402
from dla_perception.detection.letterbox import Letterbox, Placement  # noqa: E402
from dla_perception.detection.nms import suppress  # noqa: E402
from dla_perception.detection.preprocess import Preprocessor  # noqa: E402
from dla_perception.engines.engine import EngineInfo, TensorSpec  # noqa: E402
from dla_perception.engines.layouts import Layout, empty_buffer, pack, unpack  # noqa: E402

STRIDES = (8, 16, 32)
NUM_CLASSES = 80
REG_MAX = 16
clock = time.thread_time

TURN = 10
"""Images that one way gets before the other has its turn."""

SETTINGS = DetectionSettings(score_threshold=0.3, iou_threshold=0.45)

Size = Tuple[int, int]
Times = Dict[str, float]


@dataclass(frozen=True)
class Case:
    """What is timed: sizes are ``(width, height)``, ``layout`` is ``<dtype>:<layout>``."""

    image: Size = (1280, 720)
    network: Size = (640, 640)
    layout: str = "int8:dla_hwc4"
    head: str = "yolov8"
    objects: int = 20


QUICK_CASES = (
    Case(),
    Case(layout="float32:linear"),
    Case(image=(640, 480), network=(416, 416)),
    Case(head="yolox", objects=100),
)
CASES = (
    *QUICK_CASES,
    Case(image=(640, 480)),
    Case(image=(1920, 1080)),
    Case(network=(416, 416)),
    Case(network=(672, 672)),
    Case(network=(640, 384)),
    Case(layout="float16:dla_hwc4"),
    Case(layout="float16:chw16"),
    Case(layout="int8:chw32"),
    Case(layout="int8:dla_linear"),
    Case(layout="float16:linear"),
    Case(head="yolox"),
    Case(objects=0),
    Case(objects=1),
    Case(objects=100),
    Case(image=(640, 480), network=(416, 416), layout="float32:linear", objects=5),
)


# What the network sees and returns


@dataclass(frozen=True)
class Candidates:
    """Cells in which a network finds something, and what."""

    levels: np.ndarray
    columns: np.ndarray
    rows: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    class_ids: np.ndarray


def make_candidates(case: Case, generator: np.random.Generator) -> Candidates:
    """Clusters of candidates around objects of 24 to 240 pixels, where the image lies."""
    width, height = case.network
    letterbox = Letterbox.fit(case.image, case.network)
    found: Dict[Tuple[int, int, int], Tuple[Any, ...]] = {}
    for _ in range(case.objects):
        size = np.exp(generator.uniform(np.log(24), np.log(240), 2))
        middle = generator.uniform(0.05, 0.95, 2) * letterbox.content_size + letterbox.offset
        level = min(int(size.max() // 81), 2)
        class_id, best = int(generator.integers(NUM_CLASSES)), generator.uniform(0.5, 0.95)
        cell = (middle // STRIDES[level]).astype(int)
        around = [(x, y) for y in (-1, 0, 1) for x in (-1, 0, 1)]
        around.sort(key=lambda offset: (abs(offset[0]) + abs(offset[1]), generator.random()))
        for x, y in around[: generator.integers(5, 10)]:
            column, row = int(cell[0]) + x, int(cell[1]) + y
            if 0 <= column < width // STRIDES[level] and 0 <= row < height // STRIDES[level]:
                jitter = generator.normal(0, 0.02, 4) * np.tile(size, 2)
                box = np.concatenate([middle - size / 2, middle + size / 2]) + jitter
                score = max(best - 0.08 * (abs(x) + abs(y)), 0.35)
                found.setdefault((level, column, row), (box, score, class_id))
    cells = np.array(list(found), int).reshape(-1, 3)
    values = list(found.values())
    return Candidates(
        levels=cells[:, 0],
        columns=cells[:, 1],
        rows=cells[:, 2],
        boxes=np.array([box for box, _, _ in values]).reshape(-1, 4),
        scores=np.array([score for _, score, _ in values]),
        class_ids=np.array([class_id for _, _, class_id in values], int),
    )


def logit(probabilities: np.ndarray) -> np.ndarray:
    return np.log(probabilities / (1 - probabilities))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def yolov8_outputs(
    case: Case, found: Candidates, generator: np.random.Generator
) -> List[np.ndarray]:
    """Per level the boxes' and the classes' convolution, ``(1, channels, height, width)``."""
    outputs = []
    for level, stride in enumerate(STRIDES):
        grid = (case.network[1] // stride, case.network[0] // stride)
        boxes = generator.normal(0, 1, (4, REG_MAX, *grid))
        classes = generator.normal(-9, 1, (NUM_CLASSES, *grid))
        here = found.levels == level
        x, y = found.columns[here], found.rows[here]
        middles = np.stack([x, y], axis=1) + 0.5
        corners = found.boxes[here] / stride
        distances = np.concatenate([middles - corners[:, :2], corners[:, 2:] - middles], axis=1)
        distances = np.clip(distances, 0.01, REG_MAX - 1.01)
        # two bins whose weighted mean is the distance
        shares = np.clip(1 - np.abs(distances[..., None] - np.arange(REG_MAX)), 1e-4, None)
        boxes[:, :, y, x] = np.log(shares).transpose(1, 2, 0)
        classes[found.class_ids[here], y, x] = logit(found.scores[here])
        outputs += [boxes.reshape(1, -1, *grid), classes[None]]
    return outputs


def yolov8_decoded(case: Case, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """What the usual export returns: ``(1, 4 + classes, cells)``."""
    levels = []
    for stride, boxes, classes in zip(STRIDES, outputs[::2], outputs[1::2]):
        weights = np.exp(boxes.reshape(4, REG_MAX, -1))
        left, top, right, bottom = np.arange(REG_MAX) @ weights / weights.sum(axis=1)
        rows, columns = np.divmod(np.arange(boxes[0, 0].size), boxes.shape[3])
        x1, x2 = columns + 0.5 - left, columns + 0.5 + right
        y1, y2 = rows + 0.5 - top, rows + 0.5 + bottom
        centred = np.stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]) * stride
        levels.append(np.concatenate([centred, sigmoid(classes.reshape(NUM_CLASSES, -1))]))
    return np.concatenate(levels, axis=1)[None].astype(np.float32)


def yolox_outputs(
    case: Case, found: Candidates, generator: np.random.Generator
) -> List[np.ndarray]:
    """Per level one convolution, ``(1, 5 + classes, height, width)``."""
    outputs = []
    for level, stride in enumerate(STRIDES):
        grid = (case.network[1] // stride, case.network[0] // stride)
        values = generator.normal(0, 1, (5 + NUM_CLASSES, *grid))
        values[4:] -= np.array([8] + [4] * NUM_CLASSES)[:, None, None]
        here = found.levels == level
        x, y = found.columns[here], found.rows[here]
        boxes = found.boxes[here] / stride
        values[0:2, y, x] = ((boxes[:, :2] + boxes[:, 2:]) / 2 - np.stack([x, y], axis=1)).T
        values[2:4, y, x] = np.log(boxes[:, 2:] - boxes[:, :2]).T
        values[4, y, x] = values[5 + found.class_ids[here], y, x] = logit(
            np.sqrt(found.scores[here])
        )
        outputs.append(values[None])
    return outputs


def yolox_decoded(case: Case, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Decoded as the usual export is by its users: ``(1, 4 + classes, cells)``."""
    levels = []
    for stride, values in zip(STRIDES, outputs):
        planes = values.reshape(5 + NUM_CLASSES, -1)
        rows, columns = np.divmod(np.arange(planes.shape[1]), values.shape[3])
        centres = (planes[:2] + np.stack([columns, rows])) * stride
        scores = sigmoid(planes[4]) * sigmoid(planes[5:])
        levels.append(np.concatenate([centres, np.exp(planes[2:4]) * stride, scores]))
    return np.concatenate(levels, axis=1)[None].astype(np.float32)


HEADS: Dict[str, Tuple[Callable[..., List[np.ndarray]], Callable[..., np.ndarray]]] = {
    "yolov8": (yolov8_outputs, yolov8_decoded),
    "yolox": (yolox_outputs, yolox_decoded),
}


class InstantEngine:
    """An engine whose results are there from the start."""

    def __init__(self, case: Case, outputs: Sequence[np.ndarray]) -> None:
        name, layout = case.layout.split(":")
        width, height = case.network
        shape = (1, 3, height, width)
        scale = 1 / 127 if name == "int8" else None
        self.inputs = [TensorSpec("images", shape, np.dtype(name), Layout(layout), scale)]
        floats = name == "float32"
        dtype = np.dtype("float32" if floats else "float16")
        form = Layout.LINEAR if floats else Layout.CHW16
        self.outputs = [
            TensorSpec(f"output{index}", array.shape, dtype, form)
            for index, array in enumerate(outputs)
        ]
        self.info = EngineInfo("made up", "none", "0", "cpu", "0" * 64)
        self.slots = 1
        self._input = [empty_buffer(self.inputs[0])]
        self._output = [
            pack(array.astype(dtype), spec) for array, spec in zip(outputs, self.outputs)
        ]

    def input_buffers(self, slot: int) -> Sequence[np.ndarray]:
        return self._input

    def output_buffers(self, slot: int) -> Sequence[np.ndarray]:
        return self._output

    def submit(self, slot: int) -> None:
        pass

    def wait(self, slot: int, timeout_s: float | None = None) -> None:
        pass

    def close(self) -> None:
        pass


# The two ways


class Ours:
    """The detector, and its stages one by one."""

    def __init__(self, case: Case, outputs: Sequence[np.ndarray]) -> None:
        self.engine = InstantEngine(case, outputs)
        description = ModelDescription(
            case.head, NUM_CLASSES, case.network, placement=Placement.CENTRE, strides=STRIDES
        )
        self.detector = Detector(self.engine, description, SETTINGS)
        self._preprocess = Preprocessor(description, self.engine.inputs[0])
        self._head = make_head(description, self.engine.outputs)
        self._thresholds = SETTINGS.thresholds(description)

    def run(self, pixels: np.ndarray) -> Times:
        """Times of one image: of the detector as it is used, and of each stage alone."""
        begin = clock()
        self.detector.detect(pixels)
        start = clock()
        self._preprocess(pixels, "bgr", self.engine.input_buffers(0)[0])
        preprocessed = clock()
        candidates = self._head.decode(self.engine.output_buffers(0), self._thresholds)
        decoded = clock()
        suppress(candidates.detections, SETTINGS.iou_threshold, SETTINGS.max_detections)
        end = clock()
        return {
            "preprocess": (preprocessed - start) * 1e3,
            "decode": (decoded - preprocessed) * 1e3,
            "nms": (end - decoded) * 1e3,
            "total": (start - begin) * 1e3,
        }

    def find(self, pixels: np.ndarray) -> Detections:
        return self.detector.detect(pixels).detections


class Usual:
    """As in the examples that come with such networks."""

    def __init__(self, case: Case, decoded_output: np.ndarray, prefilter: bool) -> None:
        self._network = case.network
        self._output = decoded_output
        self._prefilter = prefilter

    def preprocess(self, pixels: np.ndarray) -> Tuple[np.ndarray, Tuple[float, int, int]]:
        height, width = pixels.shape[:2]
        network_width, network_height = self._network
        factor = min(network_width / width, network_height / height)
        size = (round(width * factor), round(height * factor))
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR)
        left, top = (network_width - size[0]) // 2, (network_height - size[1]) // 2
        right, bottom = network_width - size[0] - left, network_height - size[1] - top
        image = cv2.copyMakeBorder(
            resized, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114)
        )
        return cv2.dnn.blobFromImage(image, 1 / 255, swapRB=True), (factor, left, top)

    def decode(self, place: Tuple[float, int, int]) -> Tuple[List[Any], List[float], List[int]]:
        factor, left, top = place
        boxes, scores, class_ids = [], [], []
        rows = self._output[0].T
        if self._prefilter:
            rows = rows[rows[:, 4:].max(axis=1) >= SETTINGS.score_threshold]
        for row in rows:
            if row[4:].max() < SETTINGS.score_threshold:
                continue
            class_id = int(np.argmax(row[4:]))
            x, y, width, height = row[:4]
            boxes.append(
                [
                    float((x - width / 2 - left) / factor),
                    float((y - height / 2 - top) / factor),
                    float(width / factor),
                    float(height / factor),
                ]
            )
            scores.append(float(row[4 + class_id]))
            class_ids.append(class_id)
        return boxes, scores, class_ids

    def suppress(self, boxes: List[Any], scores: List[float], class_ids: List[int]) -> List[Any]:
        if not boxes:
            return []
        kept = cv2.dnn.NMSBoxesBatched(
            boxes, scores, class_ids, SETTINGS.score_threshold, SETTINGS.iou_threshold
        )
        return [(boxes[index], scores[index], class_ids[index]) for index in kept]

    def run(self, pixels: np.ndarray) -> Times:
        """Times of one image."""
        start = clock()
        _, place = self.preprocess(pixels)
        preprocessed = clock()
        candidates = self.decode(place)
        decoded = clock()
        self.suppress(*candidates)
        end = clock()
        return {
            "preprocess": (preprocessed - start) * 1e3,
            "decode": (decoded - preprocessed) * 1e3,
            "nms": (end - decoded) * 1e3,
            "total": (end - start) * 1e3,
        }

    def find(self, pixels: np.ndarray) -> Detections:
        """What it finds, clipped to the image as our detector does."""
        height, width = pixels.shape[:2]
        found = self.suppress(*self.decode(self.preprocess(pixels)[1]))
        boxes: np.ndarray = np.array([box for box, _, _ in found]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        boxes = np.clip(boxes, 0, [width, height, width, height])
        scores, class_ids = (np.array([item[column] for item in found]) for column in (1, 2))
        return Detections(boxes, scores, class_ids)


# Timing


def prepare(
    case: Case, prefilter: bool = False, seed: int = 0
) -> Tuple[Ours, Usual, List[np.ndarray]]:
    """Both ways for the same objects, and two images: a camera's messages take turns in memory."""
    generator = np.random.default_rng(seed)
    make_outputs, decode_all = HEADS[case.head]
    outputs = make_outputs(case, make_candidates(case, generator), generator)
    ours = Ours(case, outputs)
    stored = [
        unpack(buffer, spec).astype(np.float64)
        for buffer, spec in zip(ours.engine.output_buffers(0), ours.engine.outputs)
    ]
    shape = (case.image[1], case.image[0], 3)
    images = [generator.integers(0, 256, shape, np.uint8) for _ in range(2)]
    return ours, Usual(case, decode_all(case, stored), prefilter), images


def check_agreement(case: Case, ours: Detections, usual: Detections) -> None:
    """Refuse to compare the times of two ways that find different things."""
    same = len(ours) == len(usual)
    if same:
        first, second = (
            found[np.lexsort((found.boxes[:, 0], found.class_ids))] for found in (ours, usual)
        )
        same = np.array_equal(first.class_ids, second.class_ids) and np.allclose(
            first.boxes, second.boxes, atol=1.0
        )
    if not same:
        raise RuntimeError(
            f"{case}: ours finds {len(ours)} boxes, the usual way {len(usual)} others"
        )


def measure(case: Case, repetitions: int, prefilter: bool = False) -> Dict[str, Any]:
    """Medians of both ways, measured in turns so that a busy machine treats both alike."""
    ours, usual, images = prepare(case, prefilter)
    check_agreement(case, ours.find(images[0]), usual.find(images[0]))
    times: Dict[str, List[Times]] = {"ours": [], "usual": []}
    for start in range(0, repetitions, TURN):
        for name, way in (("ours", ours), ("usual", usual)):
            for index in range(start, min(start + TURN, repetitions)):
                times[name].append(way.run(images[index % len(images)]))
    ours_ms, usual_ms = (medians(times[name]) for name in ("ours", "usual"))
    return {
        "image": list(case.image),
        "network": list(case.network),
        "layout": case.layout,
        "head": case.head,
        "objects": case.objects,
        "ours_ms": ours_ms,
        "usual_ms": usual_ms,
        "ratio": round(usual_ms["total"] / ours_ms["total"], 2),
    }


def medians(times: Sequence[Times]) -> Times:
    return {stage: round(float(np.median([one[stage] for one in times])), 4) for stage in times[0]}


def resize_ms() -> float:
    """A yardstick for the machine: the one step that both ways share."""
    image, out = np.zeros((720, 1280, 3), np.uint8), np.zeros((360, 640, 3), np.uint8)
    times = []
    for _ in range(100):
        start = clock()
        cv2.resize(image, (640, 360), dst=out)
        times.append(clock() - start)
    return float(np.median(times)) * 1e3


def table_row(result: Dict[str, Any]) -> str:
    columns = ["{}x{}".format(*result[key]) for key in ("image", "network")]
    columns += [result["layout"], result["head"], str(result["objects"])]
    text = "{:>9} {:>8} {:<16} {:<7} {:>4}".format(*columns)
    for way in ("ours_ms", "usual_ms"):
        text += "  " + " ".join(f"{result[way][stage]:6.3f}" for stage in STAGES)
    return text + f"  {result['ratio']:5.1f}"


STAGES = ("preprocess", "decode", "nms", "total")
HEADING = (
    f"{'':<48}  {'ours, ms':<27}  {'the usual way, ms':<27}\n"
    f"{'image':>9} {'network':>8} {'layout':<16} {'head':<7} {'obj.':>4}"
    + f"  {'prepr.':>6} {'decode':>6} {'nms':>6} {'total':>6}" * 2
    + f"  {'ratio':>5}"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="four cases, in less than 30 s")
    parser.add_argument(
        "--prefilter",
        action="store_true",
        help="the usual way loops only over boxes that numpy found to pass",
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        default=60,
        metavar="N",
        help="images a case and way (default: %(default)s)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.repetitions < 1:
        parser.error(f"--repetitions: {chosen.repetitions}; expected 1 or more")
    cv2.setNumThreads(1)
    if not chosen.json:
        print(
            f"numpy {np.__version__}, OpenCV {cv2.__version__}, one thread, medians; here "
            f"cv2.resize alone takes {resize_ms():.3f} ms from 1280x720 to 640x360\n\n{HEADING}"
        )
    results = []
    for case in QUICK_CASES if chosen.quick else CASES:
        results.append(measure(case, chosen.repetitions, chosen.prefilter))
        if not chosen.json:
            print(table_row(results[-1]), flush=True)
    if chosen.json:
        print(json.dumps({"cases": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
