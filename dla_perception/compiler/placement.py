"""A network split into pieces for the DLA and pieces for the GPU, as TensorRT would split it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

from dla_perception.compiler.activations import find_activations
from dla_perception.compiler.dla_support import (
    SUBGRAPH_LIMITS,
    Certainty,
    Finding,
    SubgraphLimit,
    Target,
    judge,
)
from dla_perception.compiler.node_reading import attribute, element_count

if TYPE_CHECKING:
    from onnx import NodeProto

    from dla_perception.compiler.graph import Graph

DLA, GPU, FOLDED = "dla", "gpu", "folded"


@dataclass(frozen=True)
class Layer:
    """Where one node of the network runs, and why.

    Attributes:
        name, op: of the ONNX node.
        device: ``dla``, ``gpu`` or ``folded`` (gone before the network runs).
        findings: why it is not on the DLA; for a layer on the DLA, what may go wrong.
        piece: number of the subgraph it belongs to; ``None`` for folded layers.
        crossing_bytes: what its tensors move between DLA and GPU for one batch.
        note: what a folded layer became part of.
    """

    name: str
    op: str
    device: str
    findings: tuple[Finding, ...] = ()
    piece: int | None = None
    crossing_bytes: int = 0
    note: str = ""

    @property
    def reason(self) -> str:
        """Why it is where it is, in one line; empty where nothing needs saying."""
        return self.note or "; ".join(finding.reason for finding in self.findings)


@dataclass(frozen=True)
class Piece:
    """Layers that run one after another on one device without data leaving it.

    Attributes:
        device: ``dla`` or ``gpu``.
        layers: names of its layers.
        weight_bytes: of its constants in the target's precision.
        tensor_bytes: most bytes of tensors that are alive at a time inside it.
    """

    device: str
    layers: tuple[str, ...]
    weight_bytes: int
    tensor_bytes: int


@dataclass(frozen=True)
class Placement:
    """Where every layer of a network runs.

    Attributes:
        target: what it was worked out for.
        layers: in the order of the file.
        pieces: in running order.
        crossings: bytes of each tensor that moves between DLA and GPU, by name.
        cautions: about the network as a whole.
    """

    target: Target
    layers: tuple[Layer, ...]
    pieces: tuple[Piece, ...]
    crossings: Mapping[str, int] = field(default_factory=dict)
    cautions: tuple[Finding, ...] = ()

    def on(self, device: str) -> list[Layer]:
        """The layers on one device."""
        return [layer for layer in self.layers if layer.device == device]

    @property
    def dla_subgraphs(self) -> int:
        """How many pieces run on the DLA."""
        return sum(piece.device == DLA for piece in self.pieces)

    @property
    def traffic_bytes(self) -> int:
        """What moves between DLA and GPU for one batch."""
        return sum(self.crossings.values())

    @property
    def runs_entirely_on_dla(self) -> bool:
        """Whether every layer that is left to run is on the DLA."""
        return bool(self.on(DLA)) and not self.on(GPU)

    def to_json(self) -> dict[str, Any]:
        """The document that ``check --json`` prints."""
        return {
            "target": self.target.module,
            "precision": self.target.precision,
            "layers": [
                {
                    "name": layer.name,
                    "op": layer.op,
                    "device": layer.device,
                    "reason": layer.reason,
                }
                for layer in self.layers
            ],
            "dla_layers": len(self.on(DLA)),
            "gpu_layers": len(self.on(GPU)),
            "dla_subgraphs": self.dla_subgraphs,
            "runs_entirely_on_dla": self.runs_entirely_on_dla,
        }


def place(
    graph: Graph, target: Target, overrule: Mapping[str, tuple[bool, Finding]] | None = None
) -> Placement:
    """Work out where each layer runs.

    Args:
        graph: refreshed.
        target: what it shall run on.
        overrule: by node name, a better answer than the rules': whether it runs on the DLA.
    """
    hosts = fused_nodes(graph)
    functions = {
        node.name: activation.function
        for activation in find_activations(graph)
        for node in activation.nodes
        if len(activation.nodes) > 1
    }
    layers: dict[str, Layer] = {}
    for node in graph.nodes:
        if node.name in hosts:
            continue
        verdict = judge(graph, node, target)
        findings = verdict.cautions if verdict.on_dla else verdict.refusals
        on_dla = verdict.on_dla
        if overrule and node.name in overrule:
            on_dla, finding = overrule[node.name]
            if on_dla != verdict.on_dla:
                findings = (finding,)
        if not on_dla and node.name in functions:
            findings = tuple(
                replace(f, reason=f"{f.reason} (part of {functions[node.name]})") for f in findings
            )
        layers[node.name] = Layer(node.name, node.op_type, DLA if on_dla else GPU, findings)
    return _cut(graph, target, layers, hosts)


def fused_nodes(graph: Graph) -> dict[str, tuple[str, str]]:
    """Nodes that a builder makes part of another or drops.

    Returns:
        By name: the node it becomes part of (empty: it is dropped), and how to say so. Sources:
        TensorRT developer guide, "Layer Fusion" and "Eliminating no-ops"; onnx-tensorrt imports
        Dropout as nothing.
    """
    fused: dict[str, tuple[str, str]] = {}
    producers, consumers = graph.producers(), graph.consumers()
    for node in graph.nodes:
        source = node.input[0] if node.input else ""
        maker = producers.get(source)
        if node.op_type == "Dropout":
            fused[node.name] = (maker.name if maker else "", "does nothing at run time")
        elif node.op_type == "Cast" and _same_type(graph, node):
            fused[node.name] = (maker.name if maker else "", "casts to the type it has")
        elif node.op_type == "BatchNormalization" and maker is not None:
            if (
                maker.op_type in ("Conv", "ConvTranspose")
                and len(consumers.get(source, ())) == 1
                and source not in graph.outputs
                and all(name in graph.constants for name in [*node.input[1:], *maker.input[1:]])
            ):
                fused[node.name] = (maker.name, f"becomes part of '{maker.name}'")
        elif node.op_type in ("Reshape", "Transpose") and _moves_nothing(graph, node):
            fused[node.name] = (maker.name if maker else "", "changes nothing")
    return fused


def _same_type(graph: Graph, node: NodeProto) -> bool:
    known = graph.types.get(node.input[0])
    return known is not None and known.elem_type == attribute(node, "to")


def _moves_nothing(graph: Graph, node: NodeProto) -> bool:
    before, after = graph.shape(node.input[0]), graph.shape(node.output[0])
    if before is None or before != after:
        return False
    if node.op_type == "Reshape":
        return True
    order = attribute(node, "perm") or list(range(len(before)))[::-1]
    return list(order) == list(range(len(before)))


def tensor_bytes(shape: Sequence[int], precision: str) -> int:
    """Bytes of a tensor in the format that DLA and GPU share.

    ``kCHW16`` for FP16 and ``kCHW32`` for INT8 (TensorRT documentation, "I/O Formats on DLA"): the
    channels are filled up to 16 or 32.
    """
    full = [1] * (4 - len(shape)) + list(shape) if len(shape) > 2 else [1, *shape[-1:], 1, 1]
    *outer, channels, height, width = full
    vector, size = (32, 1) if precision == "int8" else (16, 2)
    padded = -(-channels // vector) * vector
    if len(shape) == 2:
        outer = [shape[0]]
    return element_count(outer) * padded * height * width * size


# --- cutting -------------------------------------------------------------------------------------


def _cut(
    graph: Graph, target: Target, layers: dict[str, Layer], hosts: Mapping[str, tuple[str, str]]
) -> Placement:
    """Cut into pieces, moving layers to the GPU until every piece keeps the limits."""
    while True:
        devices = _devices(graph, layers, hosts)
        groups = _groups(graph, devices)
        beyond = _beyond_limits(graph, target, devices, groups)
        if not beyond:
            break
        for name, finding in beyond.items():
            if name in layers:
                layers[name] = replace(layers[name], device=GPU, findings=(finding,))
            elif name in hosts and hosts[name][0] in layers:
                host = hosts[name][0]
                layers[host] = replace(layers[host], device=GPU, findings=(finding,))
            else:
                hosts = {key: value for key, value in hosts.items() if key != name}
                node = graph.node(name)
                layers[name] = Layer(name, node.op_type, GPU, (finding,))
    place_of = {name: index for index, group in enumerate(groups) for name in group}
    crossings, by_layer = _crossings(graph, target, devices)
    placed = [
        replace(layer, piece=place_of[name], crossing_bytes=by_layer.get(name, 0))
        for name, layer in layers.items()
    ]
    placed += [
        Layer(name, graph.node(name).op_type, FOLDED, note=note)
        for name, (_, note) in hosts.items()
    ]
    placed += [Layer(gone.name, gone.op, FOLDED, note=gone.reason) for gone in graph.folded]
    end = len(graph.file_order)
    placed.sort(key=lambda layer: graph.file_order.get(layer.name, end))
    pieces = [
        Piece(
            devices[group[0]],
            tuple(group),
            _weight_bytes(graph, group, target.precision),
            _live_bytes(graph, group, target.precision)[0],
        )
        for group in groups
    ]
    return Placement(
        target, tuple(placed), tuple(pieces), crossings, tuple(_cautions(target, pieces))
    )


def _devices(
    graph: Graph, layers: Mapping[str, Layer], hosts: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """The device of every node; a fused one is where its host is."""
    devices: dict[str, str] = {}
    for node in graph.nodes:
        if node.name in layers:
            devices[node.name] = layers[node.name].device
        else:
            devices[node.name] = devices.get(hosts[node.name][0], "")
    for node in reversed(graph.nodes):  # dropped nodes at the start go with those that follow
        if not devices[node.name]:
            readers = graph.consumers().get(node.output[0], ())
            devices[node.name] = devices[readers[0].name] if readers else DLA
    return devices


def _groups(graph: Graph, devices: Mapping[str, str]) -> list[list[str]]:
    """Nodes that can run as one piece: same device, same batch, connected, free of cycles.

    First by depth: how often a path from the inputs changes device. Pieces of one depth cannot
    wait for each other. Then neighbours of one kind are joined while no path leads from one to the
    other through a third piece.
    """
    producers = graph.producers()
    kinds = {node.name: (devices[node.name], _batch(graph, node)) for node in graph.nodes}
    depth: dict[str, int] = {}
    members = _Sets(node.name for node in graph.nodes)
    for node in graph.nodes:
        before = {producers[name].name for name in node.input if name in producers}
        depth[node.name] = max(
            (depth[name] + (kinds[name] != kinds[node.name]) for name in before), default=0
        )
        for name in before:
            if kinds[name] == kinds[node.name] and depth[name] == depth[node.name]:
                members.join(name, node.name)
    edges = [
        (producers[name].name, node.name)
        for node in graph.nodes
        for name in node.input
        if name in producers
    ]
    while True:
        followers: dict[str, set[str]] = {}
        for first, second in edges:
            a, b = members.find(first), members.find(second)
            if a != b:
                followers.setdefault(a, set()).add(b)
        pair = next(
            (
                (a, b)
                for a in followers
                for b in sorted(followers[a])
                if kinds[a] == kinds[b] and not _leads_around(followers, a, b)
            ),
            None,
        )
        if pair is None:
            break
        members.join(*pair)
    groups: dict[str, list[str]] = {}
    for node in graph.nodes:
        groups.setdefault(members.find(node.name), []).append(node.name)
    return list(groups.values())


def _leads_around(followers: Mapping[str, set[str]], start: str, end: str) -> bool:
    """Whether a path leads from ``start`` to ``end`` through another piece."""
    seen: set[str] = set()
    waiting = [piece for piece in followers.get(start, ()) if piece != end]
    while waiting:
        piece = waiting.pop()
        if piece in seen:
            continue
        seen.add(piece)
        if end in followers.get(piece, ()):
            return True
        waiting.extend(followers.get(piece, ()))
    return False


class _Sets:
    """Disjoint sets of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def find(self, name: str) -> str:
        """The name that stands for the set."""
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def join(self, one: str, other: str) -> None:
        """Make one set of two."""
        self._parent[self.find(other)] = self.find(one)


def _batch(graph: Graph, node: NodeProto) -> int:
    """All layers of a DLA subgraph have one batch size (TensorRT 10 documentation)."""
    shape = graph.shape(node.output[0])
    return element_count(shape[:-3]) if shape is not None else 0


def _beyond_limits(
    graph: Graph, target: Target, devices: Mapping[str, str], groups: Sequence[Sequence[str]]
) -> dict[str, Finding]:
    """The layers of the first group that breaks a limit, with the limit."""
    dla_groups = [group for group in groups if devices[group[0]] == DLA]
    for limit in SUBGRAPH_LIMITS:
        if not limit.refuses or not limit.applies(target):
            continue
        finding = Finding(limit.reason, _MEND[limit.quantity], limit.source, limit.certainty)
        if limit.quantity == "subgraphs":
            if len(dla_groups) > limit.limit:
                return {name: finding for name in dla_groups[limit.limit]}
            continue
        for group in dla_groups:
            beyond = _first_beyond(graph, group, limit, target.precision)
            if beyond:
                return {beyond: finding}
    return {}


_MEND = {
    "subgraphs": "mend the layers that cut the network",
    "weight_bytes": "use a smaller network, or INT8",
    "tensor_bytes": "use a smaller input, or INT8",
}


def _first_beyond(
    graph: Graph, group: Sequence[str], limit: SubgraphLimit, precision: str
) -> str | None:
    """The layer of a group with which it goes over a limit in bytes."""
    if limit.quantity == "tensor_bytes":
        live, name = _live_bytes(graph, group, precision)
        return name if live >= limit.limit else None
    for count in range(1, len(group) + 1):
        if _weight_bytes(graph, group[:count], precision) >= limit.limit:
            return group[count - 1]
    return None


def _weight_bytes(graph: Graph, group: Sequence[str], precision: str) -> int:
    size = 1 if precision == "int8" else 2
    names = set(group)
    used = {
        name
        for node in graph.nodes
        if node.name in names
        for name in node.input
        # shapes, axes and the like are no weights
        if name in graph.constants and graph.constants[name].dtype.kind == "f"
    }
    return sum(graph.constants[name].size * size for name in used)


def _live_bytes(graph: Graph, group: Sequence[str], precision: str) -> tuple[int, str]:
    """Most bytes alive at a time, and the layer at which that is, without inputs and outputs."""
    names = set(group)
    nodes = [node for node in graph.nodes if node.name in names]
    last_use = {name: index for index, node in enumerate(nodes) for name in node.input}
    consumers = graph.consumers()
    alive: dict[str, int] = {}
    most, where = 0, group[0]
    for index, node in enumerate(nodes):
        for name in node.output:
            shape = graph.shape(name)
            inner = all(reader.name in names for reader in consumers.get(name, ()))
            if shape is not None and inner and name not in graph.outputs and name in last_use:
                alive[name] = tensor_bytes(shape, precision)
        total = sum(alive.values())
        if total > most:
            most, where = total, node.name
        for name in [name for name in alive if last_use[name] <= index]:
            del alive[name]
    return most, where


def _crossings(
    graph: Graph, target: Target, devices: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of each tensor that changes device, and the same for each GPU layer at its ends."""
    crossings: dict[str, int] = {}
    by_layer: dict[str, int] = {}
    consumers = graph.consumers()
    for node in graph.nodes:
        for name in node.output:
            others = [
                reader
                for reader in consumers.get(name, ())
                if devices[reader.name] != devices[node.name]
            ]
            shape = graph.shape(name)
            if not others or shape is None:
                continue
            size = tensor_bytes(shape, target.precision)
            crossings[name] = size
            for end in [node, *others]:
                by_layer[end.name] = by_layer.get(end.name, 0) + size
    return crossings, by_layer


def _cautions(target: Target, pieces: Sequence[Piece]) -> Iterable[Finding]:
    count = sum(piece.device == DLA for piece in pieces)
    for limit in SUBGRAPH_LIMITS:
        told = limit.quantity == "subgraphs" and not limit.refuses and limit.applies(target)
        if told and count > limit.limit:
            yield Finding(
                f"{count} DLA subgraphs: {limit.reason}",
                _MEND[limit.quantity],
                limit.source,
                limit.certainty,
            )
    if target.precision == "int8" and any(piece.device == DLA for piece in pieces):
        yield Finding(
            "a tensor without an INT8 scale is computed in FP16",
            "give scales for every tensor: calibrate does",
            "guide 8.4",
            Certainty.DOCUMENTED,
        )
