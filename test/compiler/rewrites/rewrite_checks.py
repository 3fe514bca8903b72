"""What every test of a rewrite asks: is the result the same, and does a DLA take it now?"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from onnx_networks import Network, run

from dla_perception.compiler.dla_support import Target
from dla_perception.compiler.graph import Graph
from dla_perception.compiler.placement import place

ORIN = Target("orin", "10.3")
ORIN_85 = Target("orin", "8.5")
XAVIER = Target("xavier", "8.5")


def rewritten(
    network: Network,
    module: ModuleType,
    *outputs: str,
    target: Target = ORIN,
    exactly: bool = False,
    rounds: int = 1,
    inputs: list[np.ndarray] | None = None,
) -> Graph:
    """The network after a rewrite that must change it and must not change what it computes."""
    graph = network.graph(*outputs)
    if inputs is None:
        inputs = [
            network.random.normal(0, 2, graph.shape(name)).astype(graph.dtype(name))
            for name in graph.inputs
        ]
    before = run(graph, *inputs)
    for _ in range(rounds):
        changed = module.apply(graph, target)
        graph.refresh()
    assert changed or rounds > 1, "nothing was rewritten"
    after = run(graph, *inputs)
    assert len(before) == len(after)
    for one, other in zip(before, after):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        if exactly:
            np.testing.assert_array_equal(one, other)
        else:
            scale = max(1.0, float(np.abs(one).max()))
            np.testing.assert_allclose(other, one, atol=2e-5 * scale, rtol=0)
    return graph


def untouched(network: Network, module: ModuleType, *outputs: str, target: Target = ORIN) -> None:
    """A rewrite must leave this network alone."""
    graph = network.graph(*outputs)
    before = [node.SerializeToString() for node in graph.nodes]
    assert module.apply(graph, target) == []
    assert [node.SerializeToString() for node in graph.nodes] == before


def on_dla(graph: Graph, target: Target = ORIN) -> bool:
    """Whether all of it runs on the DLA."""
    return place(graph, target).runs_entirely_on_dla


def ops(graph: Graph) -> list[str]:
    return [node.op_type for node in graph.nodes]
