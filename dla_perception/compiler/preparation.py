"""Rewrite a network until a DLA takes it, and prove after every step that it computes the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from dla_perception.compiler.graph import GraphError, open_session
from dla_perception.compiler.head_description import family_of, read_stated
from dla_perception.compiler.placement import place
from dla_perception.compiler.rewrites import REWRITES, channel_padding, head_cut
from dla_perception.compiler.rewrites.activation_replacement import replace_activations
from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from dla_perception.compiler.dla_support import Target
    from dla_perception.compiler.graph import Graph
    from dla_perception.compiler.placement import Placement

TOLERANCE: Mapping[str, float] = {"float32": 1e-4, "float16": 2e-2}
"""Difference, in parts of the largest output, that always counts as rounding."""

_NOISE_FACTOR, _MOST_TOLERANCE = 10.0, 1e-2

_MOST_ROUNDS = 20


class ProofError(DlaPerceptionError):
    """A rewritten network does not compute what the original does."""


@dataclass(frozen=True)
class Step:
    """One rewrite that was made.

    Attributes:
        name, summary: of the rewrite.
        nodes: names of the nodes it touched.
        exact: whether the result must be the same.
        difference: largest difference of an output from the original network's on random inputs,
            in parts of the largest output; ``None`` for an approximation.
    """

    name: str
    summary: str
    nodes: tuple[str, ...]
    exact: bool = True
    difference: float | None = None


@dataclass
class Preparation:
    """What was done to a network.

    Attributes:
        steps: in order.
        tolerance: what :attr:`Step.difference` may be.
    """

    steps: list[Step] = field(default_factory=list)
    tolerance: float = 0.0

    @property
    def difference(self) -> float:
        """The largest difference after any exact step."""
        return max((step.difference or 0.0 for step in self.steps), default=0.0)


def rewrite(
    graph: Graph,
    target: Target,
    replacements: Mapping[str, str] | None = None,
    fill_channels: bool = False,
    prove: bool = True,
    tell: Callable[[Step], None] | None = None,
) -> Preparation:
    """Rewrite ``graph`` in place until no rewrite finds anything.

    Args:
        graph: refreshed.
        target: what it shall run on.
        replacements: activation functions to be replaced, an approximation.
        fill_channels: fill channels that are joined up to whole vectors afterwards.
        prove: run the network before and after every step and compare.
        tell: called after each step.

    Raises:
        ProofError: a step changed the result by more than rounding; the graph must not be used.
        GraphError: the network cannot be run at all.
        ReplacementError: a replacement cannot be made.
    """
    done = Preparation()

    def record(step: Step) -> None:
        done.steps.append(step)
        if tell is not None:
            tell(step)

    if replacements:
        nodes = replace_activations(graph, replacements)
        graph.refresh()
        text = ", ".join(f"{old} -> {new}" for old, new in replacements.items())
        record(Step("approximation", text, tuple(nodes), exact=False))
    proof = Proof(graph) if prove else None
    done.tolerance = proof.tolerance if proof else 0.0

    def finish(name: str, summary: str, nodes: Sequence[str]) -> bool:
        if not nodes:
            return False
        graph.refresh()
        difference = proof.difference(graph) if proof else None
        record(Step(name, summary, tuple(nodes), True, difference))
        if proof and not (difference or 0.0) <= proof.tolerance:
            raise ProofError(
                f"{graph.where}: the rewrite '{name}' of node '{nodes[0]}' changes the result by "
                f"{difference:.1e} of its largest value, more than rounding "
                f"({proof.tolerance:.0e}): nothing was written; please report this network"
            )
        return True

    for _ in range(_MOST_ROUNDS):
        made = [
            finish(module.NAME, module.SUMMARY, module.apply(graph, target)) for module in REWRITES
        ]
        if not any(made):
            break
    if fill_channels:
        nodes = channel_padding.pad_channels(graph, target)
        finish(channel_padding.NAME, channel_padding.SUMMARY, nodes)
    return done


def outlook(graph: Graph, target: Target) -> Placement:
    """Where the layers would run after ``prepare``: cut and rewritten, without proof.

    Cut only where the outputs are those of a head family that this package decodes.

    Args:
        graph: refreshed; it is not changed.
        target: what it shall run on.

    Raises:
        DescriptionError: the description beside the network is wrong.
    """
    trial = graph.copy()
    trial.folded.clear()
    stated, _ = read_stated(graph, None)
    tensors = head_cut.head_tensors(trial) if family_of(graph, stated) else []
    if tensors and head_cut.needs_cut(trial, tensors, target):
        head_cut.cut(trial, tensors)
    rewrite(trial, target, prove=False)
    return place(trial, target)


class Proof:
    """What a network returns for random inputs, to compare rewritten ones with.

    Rewrites change the order of sums, and how much that changes a result depends on the network.
    So a network is compared with itself first, run with and without ONNX Runtime's own fusions:
    ten times that difference counts as rounding, but never more than 1e-2, and at least
    :data:`TOLERANCE`. A wrong rewrite changes results by the order of the results themselves.
    """

    def __init__(self, graph: Graph, seed: int = 0) -> None:
        """Run ``graph`` on pixels (0 to 255), fractions (0 to 1) and normal numbers.

        Raises:
            GraphError: it cannot be run.
        """
        random = np.random.default_rng(seed)
        shapes = {name: graph.shape(name) or () for name in graph.inputs}
        draws: list[Callable[[tuple[int, ...]], Any]] = [
            lambda shape: random.uniform(0, 255, shape),
            lambda shape: random.uniform(0, 1, shape),
            lambda shape: random.normal(0, 1, shape),
        ]
        self._inputs = [
            {
                name: np.asarray(draw(shape)).astype(graph.dtype(name))
                for name, shape in shapes.items()
            }
            for draw in draws
        ]
        self._outputs = list(graph.outputs)
        self._expected = self._run(graph)
        half = any(graph.dtype(name) == np.float16 for name in graph.types)
        least = TOLERANCE["float16" if half else "float32"]
        noise = self._apart(self._run(graph, optimise=True))
        self.tolerance = max(least, min(_NOISE_FACTOR * noise, _MOST_TOLERANCE))

    def difference(self, graph: Graph) -> float:
        """The largest difference from the first network, in parts of the largest output.

        Infinite where one network returns a finite number and the other does not.
        """
        return self._apart(self._run(graph))

    def _apart(self, results: Sequence[Sequence[np.ndarray]]) -> float:
        pairs = (
            pair
            for expected, found in zip(self._expected, results)
            for pair in zip(expected, found)
        )
        return max((_difference(one, other) for one, other in pairs), default=0.0)

    def _run(self, graph: Graph, optimise: bool = False) -> list[Sequence[np.ndarray]]:
        try:
            session = open_session(graph.to_model(), optimise)
            return [session.run(self._outputs, inputs) for inputs in self._inputs]
        except Exception as error:  # ONNX Runtime raises a class of its own per status code
            message = " ".join(str(error).split())
            raise GraphError(f"{graph.where}: it cannot be run: {message}") from None


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    if one.shape != other.shape:
        return float("inf")
    if one.dtype.kind != "f":
        return 0.0 if np.array_equal(one, other) else float("inf")
    left, right = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(left)
    if not np.array_equal(finite, np.isfinite(right)):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(1.0, float(np.abs(left[finite]).max()))
    return float(np.abs(left[finite] - right[finite]).max()) / scale
