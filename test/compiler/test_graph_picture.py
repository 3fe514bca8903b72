"""The picture of a placed network."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from onnx_networks import Network

from dla_perception.compiler.dla_support import Target
from dla_perception.compiler.graph import load_graph
from dla_perception.compiler.graph_picture import draw_placement
from dla_perception.compiler.placement import place

SVG = "{http://www.w3.org/2000/svg}"
DLA, GPU, FOLDED, ENDS = "#76b900", "#e5603b", "#c8c8c8", "#5b8bd0"


def picture(network: Network) -> ElementTree.Element:
    graph = network.graph()
    return ElementTree.fromstring(draw_placement(graph, place(graph, Target())))


def boxes(root: ElementTree.Element) -> dict[str, tuple[str, float, float]]:
    """Colour, x and y of each box, by its tooltip's first line."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and rect is not None:
            first = (title.text or "").split("\n")[0]
            found[first] = (rect.get("fill"), float(rect.get("x")), float(rect.get("y")))
    return found


def test_every_node_has_the_colour_of_its_device() -> None:
    net = Network((1, 4, 8, 8), opset=11)
    net.add("Dropout", net.add("Elu", net.conv("x", 4, 4)))
    found = boxes(picture(net))
    assert {name: box[0] for name, box in found.items()} == {
        "input x": ENDS,
        "Conv Conv_0": DLA,
        "Elu Elu_1": GPU,
        "Dropout Dropout_2": FOLDED,
        "output t2": ENDS,
    }
    heights = [box[2] for box in found.values()]
    assert heights == sorted(heights)


def test_reasons_are_tooltips_and_names_are_escaped() -> None:
    net = Network((1, 4, 8, 8))
    net.add("Elu", "x")
    net.nodes[0].name = "/model/<&>"
    root = picture(net)
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert any("Elu /model/<&>\nGPU: Elu is not among the activations" in text for text in titles)


def test_boxes_do_not_overlap(assets: Path) -> None:
    graph = load_graph(assets / "models" / "yolox_nano_416.onnx")
    root = ElementTree.fromstring(draw_placement(graph, place(graph, Target())))
    found = boxes(root)
    assert len(found) == 369 + 2
    rows: dict[float, list[float]] = {}
    for _, x, y in found.values():
        rows.setdefault(y, []).append(x)
    for row in rows.values():
        row.sort()
        assert all(right - left >= 150 for left, right in zip(row, row[1:]))
    left, _, width, _ = (float(part) for part in root.get("viewBox", "").split())
    assert all(left <= x and x + 150 <= left + width for _, x, _ in found.values())


def test_connections_between_devices_stand_out() -> None:
    net = Network((1, 4, 8, 8))
    net.add("Relu", net.add("Elu", net.add("Relu", net.add("Relu", "x"))))
    paths = list(picture(net).iter(f"{SVG}path"))
    assert [path.get("stroke") for path in paths].count(GPU) == 2
    assert len(paths) == 5
