"""The description of a network that was cut at its head: what the lost part of it knew.

The head family follows from the outputs of the whole network. Anchors and Darknet's ``scale_x_y``
are constants of the part that was cut off; they are found by sending zeros, and large numbers,
through that part: for zeros a YOLOv5 head returns each anchor as the size of a box.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence, cast

import numpy as np

from dla_perception.compiler.graph import open_session
from dla_perception.compiler.rewrites.head_cut import run_tail, tail
from dla_perception.detection.description import (
    DescriptionError,
    ModelDescription,
    description_path,
    read_description,
)
from dla_perception.detection.heads import FAMILIES, make_head
from dla_perception.detection.heads.forms import HEAD_KEYS, Network, best
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.engine import Engine, EngineInfo, TensorSpec

if TYPE_CHECKING:
    from dla_perception.compiler.graph import Graph

_LOST_IN_THE_CUT = ("boxes_decoded", "scores_activated", "channels_last")
"""Keys that speak of the whole network's outputs."""

_FAR = 50.0
"""A logit whose sigmoid is 1 in single precision."""


@dataclass(frozen=True)
class _Shown:
    """As much of an engine as :func:`describe_model` looks at, without one."""

    info: EngineInfo
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def describe_graph(
    graph: Graph, stated: Mapping[str, Any], description: Path, labels: str | None
) -> ModelDescription:
    """The description of a network that is not written yet.

    Args:
        graph: refreshed.
        stated: what is known of it.
        description: the file that stated it, for messages.
        labels: a labels file or ``coco``.

    Raises:
        DescriptionError: see :func:`~dla_perception.detection.recognition.describe_model`.
    """
    import yaml

    shown = _Shown(
        EngineInfo(graph.where, "onnx", "", "cpu", "", metadata=graph.metadata),
        _specs(graph, list(graph.inputs)),
        _specs(graph, graph.outputs),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "description.yaml"
        file.write_text(yaml.safe_dump(_plain(stated)), encoding="utf-8")
        try:
            return describe_model(cast(Engine, shown), file, labels)
        except DescriptionError as error:
            raise DescriptionError(str(error).replace(str(file), str(description))) from None


def read_stated(graph: Graph, description_file: str | None) -> tuple[dict[str, Any], Path]:
    """What the description file of the original network states, and where it is or would be."""
    path = Path(description_file) if description_file else description_path(graph.where)
    if description_file or path.exists():
        return read_description(path), path
    return {}, path


def family_of(graph: Graph, stated: Mapping[str, Any]) -> str | None:
    """The head family that the whole network's outputs are of; ``None`` where that is open."""
    if "family" in stated:
        return str(stated["family"])
    for name in graph.outputs:
        if graph.shape(name) is None:
            return None
    network = Network(_specs(graph, graph.outputs), _input_size(graph), _head_keys(stated))
    forms = chain.from_iterable(module.forms(network) for module in FAMILIES.values())
    fitting = best([form for form in forms if not form.contradictions(network.known)])
    families = {form.family for form in fitting}
    return families.pop() if len(families) == 1 else None


def describe_cut(
    whole: Graph, cut: Graph, stated: Mapping[str, Any], path: Path, labels: str | None
) -> ModelDescription:
    """The description of the cut network.

    Args:
        whole: the network before the cut.
        cut: after it.
        stated: what the original's description states.
        path: the file of that description.
        labels: a labels file or ``coco``.

    Raises:
        DescriptionError: something is missing that neither file nor network tells.
    """
    known = {key: value for key, value in stated.items() if key not in _LOST_IN_THE_CUT}
    family = family_of(whole, stated)
    if family is not None:
        known["family"] = family
    if family in ("yolov5", "darknet"):
        for key, value in probe_anchors(whole, cut.outputs).items():
            known.setdefault(key, value)
    return describe_graph(cut, known, path, labels)


def probe_anchors(whole: Graph, tensors: Sequence[str]) -> dict[str, Any]:
    """Anchors, and Darknet's ``scale_x_y`` and ``new_coords``, as the head shows them.

    Args:
        whole: the network before the cut.
        tensors: the maps it was cut at, one a level, finest first.

    Returns:
        Keys of a description; empty where the head does not show them.
    """
    rest = tail(whole, tensors)
    shapes = [whole.shape(tensor) for tensor in tensors]
    if rest is None or any(shape is None or len(shape) != 4 for shape in shapes):
        return {}
    maps = [cast("tuple[int, ...]", shape) for shape in shapes]
    zeros = {name: np.zeros(shape, whole.dtype(name)) for name, shape in zip(tensors, maps)}
    size = np.array(_input_size(whole), np.float64)
    for count in (3, 2, 4, 5, 1):
        if any(shape[1] % count or shape[1] // count < 6 for shape in maps):
            continue
        rows = sum(count * shape[2] * shape[3] for shape in maps)
        boxes = _boxes(run_tail(rest, zeros), rows, size)
        if boxes is None:
            continue
        for order in (range(len(maps)), range(len(maps))[::-1]):
            levels = _level_anchors(boxes, [maps[index] for index in order], count, size)
            if levels is None:
                continue
            found: dict[str, Any] = {
                "anchors": [levels[list(order).index(index)] for index in range(len(maps))]
            }
            if boxes.corners:
                found.update(_scale_x_y(rest, zeros, maps, order, count, rows, size))
                if _squares(rest, zeros, count, rows, size, boxes):
                    found.update(new_coords=True, scores_activated=False)
            return found
    return {}


@dataclass(frozen=True)
class _Boxes:
    """Boxes of all cells: centres and sizes ``(rows, 2)`` in pixels."""

    centres: np.ndarray
    sizes: np.ndarray
    corners: bool


def _boxes(outputs: list[np.ndarray] | None, rows: int, size: np.ndarray) -> _Boxes | None:
    """The boxes among a network's outputs, as YOLOv5 or pytorch-YOLOv4 gives them."""
    for output in outputs or []:
        values = np.squeeze(output).astype(np.float64)
        if values.ndim != 2:
            continue
        if values.shape[1] == rows and values.shape[0] != rows:
            values = values.T
        if len(values) != rows:
            continue
        if values.shape[1] == 4 and output.ndim == 4:  # corners as fractions
            low, high = values[:, :2] * size, values[:, 2:] * size
            return _Boxes((low + high) / 2, high - low, True)
        if values.shape[1] > 5:
            return _Boxes(values[:, :2], values[:, 2:4], False)
    return None


def _level_anchors(
    boxes: _Boxes, maps: Sequence[tuple[int, ...]], count: int, size: np.ndarray
) -> list[list[list[float]]] | None:
    """The anchors of each level if the boxes lie level by level, anchor by anchor, row by row."""
    levels = []
    start = 0
    for _, _, height, width in maps:
        cells = height * width
        y, x = np.divmod(np.arange(cells), width)
        stride = size / (width, height)
        level = []
        for _ in range(count):
            part = slice(start, start + cells)
            middles = (np.stack([x, y], axis=1) + 0.5) * stride
            sizes = boxes.sizes[part]
            if not np.allclose(boxes.centres[part], middles, atol=0.01):
                return None
            if not np.allclose(sizes, sizes[0], rtol=1e-4) or sizes.min() <= 0:
                return None
            level.append([round(float(edge), 4) for edge in sizes[0]])
            start += cells
        levels.append(level)
    return levels


def _scale_x_y(
    rest: Graph,
    zeros: Mapping[str, np.ndarray],
    maps: Sequence[tuple[int, ...]],
    order: Sequence[int],
    count: int,
    rows: int,
    size: np.ndarray,
) -> dict[str, Any]:
    """Darknet's ``scale_x_y``: where the centre is when its sigmoid is 1."""
    far = {}
    for (name, array), shape in zip(zeros.items(), maps):
        channels = shape[1] // count
        far[name] = array.copy()
        for anchor in range(count):
            far[name][:, anchor * channels : anchor * channels + 2] = _FAR
    boxes = _boxes(run_tail(rest, far), rows, size)
    if boxes is None:
        return {}
    scales = [1.0] * len(maps)
    start = 0
    for index in order:
        _, _, height, width = maps[index]
        first = boxes.centres[start, 0] / (size[0] / width)  # of cell 0: s - (s - 1) / 2
        scales[index] = round(2 * float(first) - 1, 4)
        start += count * height * width
    return {} if set(scales) == {1.0} else {"scale_x_y": scales}


def _squares(
    rest: Graph,
    zeros: Mapping[str, np.ndarray],
    count: int,
    rows: int,
    size: np.ndarray,
    boxes: _Boxes,
) -> bool:
    """Darknet's ``new_coords``: the logit 1 makes a box (2 sigmoid(1))^2 times as large, not e."""
    ones = {}
    for name, array in zeros.items():
        channels = array.shape[1] // count
        ones[name] = array.copy()
        for anchor in range(count):
            ones[name][:, anchor * channels + 2 : anchor * channels + 4] = 1
    larger = _boxes(run_tail(rest, ones), rows, size)
    if larger is None:
        return False
    return bool(np.allclose(larger.sizes / boxes.sizes, (2 / (1 + np.exp(-1))) ** 2, rtol=1e-3))


def name_outputs_by_role(whole: Graph, cut: Graph) -> None:
    """Rename the maps of a level that look alike to ``boxes_8``, ``classes_8`` and so on.

    With as many classes as a box has channels, nothing but the name tells which map is which. The
    role is found by sending something that is no number through one map at a time: where it comes
    out, among the box or the scores, is what the map is for.
    """
    shapes = [cut.shape(name) for name in cut.outputs]
    if len(set(shapes)) == len(shapes) or any(shape is None for shape in shapes):
        return
    rest = tail(whole, cut.outputs)
    if rest is None:
        return
    width = _input_size(whole)[0]
    named: dict[str, str] = {}
    for name, shape in zip(cut.outputs, shapes):
        if shape is None or len(shape) != 4 or shapes.count(shape) == 1:
            continue
        role = _role(rest, name)
        if role is None:
            return
        named[name] = f"{role}_{width // shape[3]}"
    for name, wanted in named.items():
        new = cut.fresh(wanted)
        maker = cut.producers()[name]
        cut.rename_uses(name, new)
        cut.rename_output(maker, name, new)
        cut.outputs[cut.outputs.index(name)] = new
    cut.refresh()


def _role(rest: Graph, name: str) -> str | None:
    """Whether a map of the head holds boxes or classes, if that shows."""
    values = {
        other: np.full(rest.shape(other) or (), np.nan if other == name else 0, rest.dtype(other))
        for other in rest.inputs
    }
    results = run_tail(rest, values)
    if not results or results[0].ndim != 3:
        return None
    planes = results[0][0]
    if planes.shape[0] > planes.shape[1]:
        planes = planes.T
    lost = np.isnan(planes).any(axis=1)
    if lost[:4].any() == lost[4:].any():
        return None
    return "boxes" if lost[:4].any() else "classes"


def describe_whole(
    whole: Graph, cut: ModelDescription, description_file: str | None, labels: str | None
) -> ModelDescription:
    """The description of the network before the cut, with what the cut one made known.

    Raises:
        DescriptionError: see :func:`~dla_perception.detection.recognition.describe_model`.
    """
    stated, path = read_stated(whole, description_file)
    known: dict[str, Any] = {**stated, "family": cut.family}
    # boxes that the network has chosen itself do not tell how many classes there are
    known.setdefault("num_classes", cut.num_classes)
    return describe_graph(whole, known, path, labels)


def head_agreement(
    whole: Graph,
    cut: Graph,
    description: ModelDescription,
    description_file: str | None,
    labels: str | None,
) -> tuple[float, float, int] | str:
    """What :func:`head_difference` finds, or why it cannot be asked.

    An output of YOLOX does not show whether its boxes are decoded: both are tried.
    """
    try:
        before = describe_whole(whole, description, description_file, labels)
        found = head_difference(whole, cut, before, description)
        if description.family == "yolox" and found[0] > 1 and not before.boxes_decoded:
            found = head_difference(whole, cut, replace(before, boxes_decoded=True), description)
    except DescriptionError as error:
        return str(error)
    except Exception as error:  # ONNX Runtime raises a class of its own per status code
        return " ".join(str(error).split())
    return found


def head_difference(
    whole: Graph,
    cut: Graph,
    whole_description: ModelDescription,
    cut_description: ModelDescription,
) -> tuple[float, float, int]:
    """How far boxes and scores lie apart that are decoded from the two networks.

    Args:
        whole, cut: the network before and after the cut.
        whole_description, cut_description: of each.

    Returns:
        Largest difference of a box edge in pixels, largest difference of a score, and how many
        detections were compared.
    """
    random = np.random.default_rng(0)
    (name,) = cut.inputs
    shape = cut.shape(name) or ()
    runs = []
    for graph, description in ((whole, whole_description), (cut, cut_description)):
        head = make_head(description, _specs(graph, graph.outputs))
        runs.append((open_session(graph.to_model()), list(graph.outputs), head))
    thresholds = np.zeros(cut_description.num_classes, np.float32)
    box_difference, score_difference, compared = 0.0, 0.0, 0
    # as the network wants its pixels, and as fractions: whatever it is, one is not saturated
    for scale in (cut_description.scale, 1 / 255):
        # noise with structure, as an image has: blocks of one colour
        coarse = random.uniform(0, 255, (1, 3, 8, 8))
        pixels = np.kron(coarse, np.ones((1, 1, shape[2] // 8 + 1, shape[3] // 8 + 1)))
        pixels = pixels[:, :, : shape[2], : shape[3]] + random.normal(0, 10, shape)
        blob = (pixels * scale).astype(cut.dtype(name))
        found = [
            head.decode(session.run(outputs, {name: blob}), thresholds).detections
            for session, outputs, head in runs
        ]
        boxes, scores = _compare(found[0], found[1], max(shape[2:]))
        box_difference, score_difference = max(box_difference, boxes), max(score_difference, scores)
        compared += min(len(found[0]), _MOST_COMPARED)
    return box_difference, score_difference, compared


_MOST_COMPARED = 300


def _compare(one: Any, other: Any, size: int) -> tuple[float, float]:
    """Each of the best detections of one with the nearest of the other."""
    best_first = np.argsort(-one.scores, kind="stable")[:_MOST_COMPARED]
    if len(best_first) == 0:
        return (0.0, 0.0) if len(other) == 0 else (float("inf"), float("inf"))
    if len(other) == 0:
        return float("inf"), float("inf")
    worst_box = worst_score = 0.0
    for index in best_first:
        # a box many times larger than the image is told apart in parts of its size
        scale = max(1.0, float(np.abs(one.boxes[index]).max()) / (4 * size))
        apart = np.abs(other.boxes - one.boxes[index]).max(axis=1) / scale
        apart_scores = np.abs(other.scores - one.scores[index])
        # equal scores of two classes may be told either way
        nearest = int(np.argmin(apart + 100 * apart_scores))
        worst_box = max(worst_box, float(apart[nearest]))
        worst_score = max(worst_score, float(apart_scores[nearest]))
    return worst_box, worst_score


def _specs(graph: Graph, names: Sequence[str]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, graph.shape(name) or (), graph.dtype(name)) for name in names)


def _input_size(graph: Graph) -> tuple[int, int]:
    shape = graph.shape(next(iter(graph.inputs))) or ()
    return (shape[3], shape[2]) if len(shape) == 4 else (0, 0)


def _head_keys(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stated.items() if key in HEAD_KEYS}


def _plain(value: Any) -> Any:
    """Values of a description as YAML's own types."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "value", value)
