"""A picture of a network as SVG, each layer in the colour of the device it runs on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from dla_perception.compiler.placement import DLA, FOLDED, GPU, Layer, Placement

if TYPE_CHECKING:
    from dla_perception.compiler.graph import Graph

_COLOURS = {DLA: "#76b900", GPU: "#e5603b", FOLDED: "#c8c8c8", "io": "#5b8bd0"}
_NAMES = {DLA: "DLA", GPU: "GPU", FOLDED: "folded", "io": "input or output"}

_BOX_WIDTH, _BOX_HEIGHT = 150, 30
_COLUMN, _LINE_COLUMN, _ROW = 166, 18, 46
_MARGIN, _LEGEND = 20, 60
_SWEEPS = 6


@dataclass
class _Place:
    """A box, or a bend of a line that passes a row, while the picture is laid out."""

    key: str
    row: int
    bend: bool = False
    x: float = 0.0
    before: list[_Place] = field(default_factory=list)
    after: list[_Place] = field(default_factory=list)

    @property
    def width(self) -> int:
        return _LINE_COLUMN if self.bend else _COLUMN


def draw_placement(graph: Graph, placement: Placement) -> str:
    """The network from top to bottom, as an SVG document.

    Each box says operator and name; the reason is its tooltip. Rows follow the longest path from
    the inputs; within a row the boxes stand near those they are connected to.
    """
    layers = {layer.name: layer for layer in placement.layers}
    boxes, lines = _lay_out(graph)
    left = min(box.x - box.width / 2 for box in boxes.values()) - _MARGIN
    right = max(box.x + box.width / 2 for box in boxes.values()) + _MARGIN
    left, right = left, max(right, left + 560)
    height = _LEGEND + (max(box.row for box in boxes.values()) + 1) * _ROW + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:.0f} 0 {right - left:.0f} '
        f'{height:.0f}" width="{right - left:.0f}" height="{height:.0f}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect x="{left:.0f}" y="0" width="100%" height="100%" fill="#ffffff"/>',
        *_legend(left + _MARGIN, placement),
        '<g fill="none" stroke="#888888" stroke-width="1">',
        *(_line(chain, layers) for chain in lines),
        "</g>",
        *(_box(box, layers.get(box.key)) for box in boxes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lay_out(graph: Graph) -> tuple[dict[str, _Place], list[list[_Place]]]:
    """Boxes by key, and for each connection its box, bends and box."""
    rows: dict[str, int] = {f"input {name}": 0 for name in graph.inputs}
    made_by = {name: f"input {name}" for name in graph.inputs}
    ends: list[tuple[str, str]] = []
    for node in graph.nodes:
        sources = list(dict.fromkeys(made_by[name] for name in node.input if name in made_by))
        rows[node.name] = max((rows[source] + 1 for source in sources), default=0)
        ends += [(source, node.name) for source in sources]
        made_by.update((name, node.name) for name in node.output if name)
    for name in graph.outputs:
        if name in made_by:
            rows[f"output {name}"] = rows[made_by[name]] + 1
            ends.append((made_by[name], f"output {name}"))
    boxes = {key: _Place(key, row) for key, row in rows.items()}
    levels: list[list[_Place]] = [[] for _ in range(max(rows.values()) + 1)]
    for box in boxes.values():
        levels[box.row].append(box)
    lines = []
    for source, target in ends:
        chain = [boxes[source]]
        for row in range(boxes[source].row + 1, boxes[target].row):
            bend = _Place("", row, bend=True)
            levels[row].append(bend)
            chain.append(bend)
        chain.append(boxes[target])
        for one, other in zip(chain, chain[1:]):
            one.after.append(other)
            other.before.append(one)
        lines.append(chain)
    for level in levels:
        _spread(level)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for level in levels if down else reversed(levels):
            for place in level:
                near = place.before if down else place.after
                if near:
                    place.x = sum(other.x for other in near) / len(near)
            level.sort(key=lambda place: place.x)
            _spread(level)
    return boxes, lines


def _spread(level: list[_Place]) -> None:
    """Move the places of a row apart until none overlap, keeping order and middle."""
    middle = sum(place.x for place in level) / len(level)
    for before, place in zip(level, level[1:]):
        place.x = max(place.x, before.x + (before.width + place.width) / 2)
    shift = sum(place.x for place in level) / len(level) - middle
    for place in level:
        place.x -= shift


def _y(place: _Place) -> float:
    return _LEGEND + place.row * _ROW


def _line(chain: list[_Place], layers: dict[str, Layer]) -> str:
    start, end = chain[0], chain[-1]
    path = f"M{start.x:.1f} {_y(start) + _BOX_HEIGHT:.1f}"
    x, y = start.x, _y(start) + _BOX_HEIGHT
    for place in chain[1:]:
        to_y = _y(place)
        half = (y + to_y) / 2
        path += f" C{x:.1f} {half:.1f} {place.x:.1f} {half:.1f} {place.x:.1f} {to_y:.1f}"
        x, y = place.x, to_y
        if place.bend:
            y = to_y + _BOX_HEIGHT
            path += f" V{y:.1f}"
    one, other = layers.get(start.key), layers.get(end.key)
    crosses = one and other and {one.device, other.device} == {DLA, GPU}
    style = f' stroke="{_COLOURS[GPU]}" stroke-width="2"' if crosses else ""
    return f'<path d="{path}"{style}/>'


def _box(place: _Place, layer: Layer | None) -> str:
    if layer is None:  # an input or output of the network
        kind, name = place.key.split(" ", 1)
        device, head, tip = "io", kind, ""
    else:
        device, head, name = layer.device, layer.op, layer.name
        tip = f"{_NAMES[device]}: {layer.reason}" if layer.reason else _NAMES[device]
    x, y = place.x - _BOX_WIDTH / 2, _y(place)
    return (
        f"<g><title>{escape(f'{head} {name}')}{escape(chr(10) + tip) if tip else ''}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="4" '
        f'fill="{_COLOURS[device]}"/>'
        f'<text x="{place.x:.1f}" y="{y + 12:.1f}" text-anchor="middle" font-weight="bold">'
        f"{escape(_short(head))}</text>"
        f'<text x="{place.x:.1f}" y="{y + 25:.1f}" text-anchor="middle" font-size="9">'
        f"{escape(_short(name))}</text></g>"
    )


def _short(text: str, limit: int = 28) -> str:
    return text if len(text) <= limit else "..." + text[-limit + 3 :]


def _legend(x: float, placement: Placement) -> list[str]:
    parts = [
        f'<text x="{x:.0f}" y="18" font-size="13" font-weight="bold">'
        f"{escape(str(placement.target))}</text>"
    ]
    for index, (device, name) in enumerate(_NAMES.items()):
        left = x + index * 130
        count = "" if device == "io" else f" ({len(placement.on(device))})"
        parts.append(
            f'<rect x="{left:.0f}" y="28" width="14" height="14" rx="3" '
            f'fill="{_COLOURS[device]}"/>'
            f'<text x="{left + 20:.0f}" y="39">{escape(name + count)}</text>'
        )
    return parts
