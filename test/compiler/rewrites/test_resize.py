from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import Network
from rewrite_checks import on_dla, rewritten, untouched

from dla_perception.compiler.rewrites import resize

COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]
ROUNDING = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def resized(
    size: tuple[int, int], factors: tuple[float, float], by_sizes: bool, opset: int = 13, **how: str
) -> Network:
    net = Network((1, 2, *size), opset)
    # before opset 13 neither the region nor the scales could be left out
    none = "" if opset >= 13 else net.constant([])
    if by_sizes:
        sizes = [1, 2, *(int(n * f) for n, f in zip(size, factors))]
        net.add("Resize", "x", none, none, net.constant(sizes, np.int64), **how)
    else:
        net.add("Resize", "x", none, net.constant([1, 1, *factors]), **how)
    return net


@settings(max_examples=80, deadline=None)
@given(
    size=st.tuples(st.integers(2, 6), st.integers(2, 6)),
    factors=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    by_sizes=st.booleans(),
    coordinates=st.sampled_from(COORDINATES),
    rounding=st.sampled_from(ROUNDING),
)
def test_nearest(
    size: tuple[int, int], factors: tuple[int, int], by_sizes: bool, coordinates: str, rounding: str
) -> None:
    net = resized(
        size,
        factors,
        by_sizes,
        mode="nearest",
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
    )
    graph = net.graph()
    if on_dla(graph):
        untouched(net, resize)
        return
    x = np.arange(np.prod(size) * 2, dtype=np.float32).reshape(1, 2, *size)
    changed = resize.apply(net.graph(), _target())
    repeated = x.repeat(factors[0], axis=2).repeat(factors[1], axis=3)
    from onnx_networks import run

    copies = np.array_equal(run(graph, x)[0], repeated)
    # it is rewritten exactly where every pixel is repeated, and then nothing else changes
    assert bool(changed) == copies
    if copies:
        assert on_dla(rewritten(net, resize, exactly=True, inputs=[x]))


def _target() -> object:
    from rewrite_checks import ORIN

    return ORIN


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    factors=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    by_sizes=st.booleans(),
    pytorch=st.booleans(),
)
def test_linear(
    size: tuple[int, int], factors: tuple[int, int], by_sizes: bool, pytorch: bool
) -> None:
    coordinates = "pytorch_half_pixel" if pytorch else "half_pixel"
    net = resized(
        size, factors, by_sizes, mode="linear", coordinate_transformation_mode=coordinates
    )
    if on_dla(net.graph()) or (pytorch and min(n * f for n, f in zip(size, factors)) == 1):
        untouched(net, resize)
    else:
        assert on_dla(rewritten(net, resize))


@pytest.mark.parametrize(
    "net",
    [
        resized((4, 4), (1.5, 2), False, mode="nearest"),
        resized((4, 4), (0.5, 0.5), True, mode="nearest"),
        resized((4, 4), (2, 2), True, mode="cubic"),
        resized(
            (4, 4), (2, 2), True, mode="linear", coordinate_transformation_mode="align_corners"
        ),
        resized(
            (4, 4),
            (2, 2),
            False,
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        ),
    ],
    ids=["fraction", "smaller", "cubic", "corners", "fits already"],
)
def test_left_alone(net: Network) -> None:
    untouched(net, resize)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_every_opset(opset: int) -> None:
    net = resized(
        (4, 4),
        (2, 2),
        True,
        opset,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    assert on_dla(rewritten(net, resize, exactly=True))
