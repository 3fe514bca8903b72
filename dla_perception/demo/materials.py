"""What surfaces look like before light falls on them.

A material turns a solid's own coordinates ``(3, M) float32`` (see
:mod:`dla_perception.demo.solids`) into albedo ``(3, M) float32``, blue, green, red, 0..255.
"""

from __future__ import annotations

from typing import Callable, List, Sequence, Tuple

import cv2
import numpy as np

from dla_perception.demo import noise

Material = Callable[[np.ndarray], np.ndarray]
Colour = Tuple[float, float, float]
"""Blue, green, red, 0..255."""


def plain(colour: Colour, grime: float = 0.06, seed: int = 0) -> Material:
    """One colour with soft blotches; ``grime`` is their standard deviation, 1 being the colour."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        return _column(colour) * _blotches(coordinates, grime, seed)

    return albedo


def rings(
    base: Colour,
    bands: Sequence[Tuple[float, float, Colour]],
    grime: float = 0.06,
    seed: int = 0,
) -> Material:
    """A round thing of one colour with bands ``(from, to, colour)`` at heights in [0, 1]."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        height = coordinates[1]
        colours = np.repeat(_column(base), coordinates.shape[1], axis=1)
        for low, high, colour in bands:
            colours = np.where((height >= low) & (height < high), _column(colour), colours)
        return colours * _blotches(coordinates, grime, seed)

    return albedo


def ribbed(base: Colour, ribs: Sequence[float], lid: Colour, seed: int = 0) -> Material:
    """A steel drum: rolled ribs at heights in [0, 1], each a bright ridge over a dark groove."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        height = coordinates[1]
        relief = np.ones_like(height)
        for rib in ribs:
            relief += 0.28 * np.exp(-(((height - rib) / 0.012) ** 2))
            relief -= 0.30 * np.exp(-(((height - rib + 0.028) / 0.014) ** 2))
        colours = np.where(height > 1.5, _column(lid), _column(base) * relief)
        return colours * _blotches(coordinates, 0.09, seed)

    return albedo


def staves(wood: Colour, hoop: Colour, count: int, seed: int = 0) -> Material:
    """A wooden barrel's half: upright staves, one iron hoop near each end."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        around = np.arctan2(coordinates[0], coordinates[2]) * np.float32(count / (2 * np.pi))
        gap = np.abs(around - np.rint(around)) > 0.45
        tone = 1 + 0.12 * np.sin(np.floor(around + 0.5) * 2.4)
        height = coordinates[1]
        colours = _column(wood) * np.where(gap, 0.55, tone)
        on_hoop = ((height > 0.10) & (height < 0.22)) | ((height > 0.78) & (height < 0.90))
        colours = np.where(on_hoop & (height < 1.5), _column(hoop), colours)
        return colours * _blotches(coordinates, 0.08, seed)

    return albedo


def beach_ball(colours: Sequence[Colour], seed: int = 0) -> Material:
    """Coloured wedges between two poles."""
    palette = np.array(colours, np.float32).T

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        around = np.arctan2(coordinates[0], coordinates[2]) * np.float32(1 / (2 * np.pi)) + 0.5
        wedge = np.minimum((around * len(colours)).astype(np.int32), len(colours) - 1)
        picked = palette[:, wedge]
        poles = np.abs(coordinates[1]) > 0.96
        picked[:, poles] = 235
        return picked * _blotches(coordinates, 0.03, seed)

    return albedo


def football(base: Colour, patch: Colour, seed: int = 0) -> Material:
    """Dark patches at the twelve corners of an icosahedron."""
    golden = (1 + 5**0.5) / 2
    corners = np.array(
        [(0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
        + [(a, b * golden, 0) for a in (-1, 1) for b in (-1, 1)]
        + [(b * golden, 0, a) for a in (-1, 1) for b in (-1, 1)],
        np.float32,
    )
    corners /= np.linalg.norm(corners[0])

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        nearest = (corners @ coordinates).max(axis=0)
        colours = np.where(nearest > 0.90, _column(patch), _column(base))
        return colours * _blotches(coordinates, 0.05, seed)

    return albedo


def seamed(base: Colour, seam: Colour, width: float = 0.045, seed: int = 0) -> Material:
    """Three great circles as seams, as on a basketball."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        offset = np.abs(np.abs(coordinates[0]) - 0.62)
        line = np.minimum(np.abs(coordinates[1]), np.abs(coordinates[2]))
        line = np.minimum(line, offset)
        colours = np.where(line < width, _column(seam), _column(base))
        return colours * _blotches(coordinates, 0.06, seed)

    return albedo


def striped_ball(base: Colour, stripe: Colour, width: float = 0.28, seed: int = 0) -> Material:
    """One broad stripe round the middle."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        colours = np.where(np.abs(coordinates[1]) < width, _column(stripe), _column(base))
        return colours * _blotches(coordinates, 0.04, seed)

    return albedo


def cardboard(colour: Colour, tape: Colour, label: Tuple[float, float], seed: int = 0) -> Material:
    """A carton: tape over the lid and down two sides, a printed label on the other two.

    ``label`` is the middle of the label on its side, in [-1, 1].
    """

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        across, up, along = coordinates
        size = np.abs(coordinates)
        on_lid = size[1] >= np.maximum(size[0], size[2])
        on_side = ~on_lid & (size[0] >= size[2])
        on_front = ~on_lid & ~on_side
        colours = np.repeat(_column(colour), coordinates.shape[1], axis=1)
        taped = (np.abs(along) < 0.11) & (on_lid | (on_side & (up > 0.55)))
        colours = np.where(taped, _column(tape), colours)
        u, v = across - label[0], up - label[1]
        paper = on_front & (np.abs(u) < 0.34) & (np.abs(v) < 0.24)
        print_lines = paper & (np.abs(u) < 0.27) & (np.abs(np.abs(v) - 0.12) < 0.04)
        colours = np.where(paper, np.float32(222), colours)
        colours = np.where(print_lines, np.float32(60), colours)
        # the fold between the lid's flaps, and edges rubbed lighter
        fold = on_lid & (np.abs(along) < 0.012)
        colours = np.where(fold, colours * 0.7, colours)
        second = np.sort(size, axis=0)[1]
        worn = np.where(second > 0.965, np.float32(1.13), np.float32(1))
        return colours * worn * _blotches(coordinates, 0.05, seed)

    return albedo


def planks(wood: Colour, count: int, seed: int = 0) -> Material:
    """A crate: planks with gaps between them, held by a frame of battens."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        size = np.abs(coordinates)
        on_lid = size[1] >= np.maximum(size[0], size[2])
        across = np.where(on_lid, coordinates[2], coordinates[1])
        position = (across + 1) * np.float32(count / 2)
        gap = np.abs(position - np.rint(position)) < 0.07
        tone = 1 + 0.10 * np.sin(np.floor(position) * 2.7 + seed)
        ordered = np.sort(size, axis=0)
        frame = ordered[1] > 0.80
        shade = np.where(frame, np.float32(1.12), np.where(gap, np.float32(0.35), tone))
        rim = np.abs(ordered[1] - 0.80) < 0.02
        shade = np.where(rim, np.float32(0.6), shade)
        return _column(wood) * shade * _blotches(coordinates, 0.10, seed)

    return albedo


def tote(colour: Colour, lid: Colour, seed: int = 0) -> Material:
    """A plastic bin: a lid of another colour over ribbed walls."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        size = np.abs(coordinates)
        on_lid = size[1] >= np.maximum(size[0], size[2])
        along = np.where(size[0] >= size[2], coordinates[2], coordinates[0])
        rib = 1 - 0.16 * (np.abs(np.sin(along * 7)) > 0.93)
        colours = np.where(on_lid | (coordinates[1] > 0.72), _column(lid), _column(colour) * rib)
        seam = ~on_lid & (np.abs(coordinates[1] - 0.72) < 0.03)
        return np.where(seam, colours * 0.55, colours) * _blotches(coordinates, 0.04, seed)

    return albedo


def slats(colour: Colour, count: int, gap: float, seed: int = 0) -> Material:
    """Boards along the first axis with dark gaps, as on a pallet or a louvred cabinet."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        size = np.abs(coordinates)
        on_lid = size[1] >= np.maximum(size[0], size[2])
        across = np.where(on_lid, coordinates[2], coordinates[1])
        position = (across + 1) * np.float32(count / 2)
        dark = (position - np.floor(position)) < gap
        return _column(colour) * np.where(dark, 0.35, 1.0) * _blotches(coordinates, 0.10, seed)

    return albedo


def mottled(dark: Colour, light: Colour, scale: float, seed: int = 0) -> Material:
    """Two colours mixed by grain: leaves, bark, stone."""

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        grain = _sampled(noise.fine(seed), coordinates, 60 * scale)
        mix = np.clip(0.5 + 0.33 * grain, 0, 1)
        return _column(dark) * (1 - mix) + _column(light) * mix

    return albedo


def face(image: np.ndarray) -> Material:
    """A plate printed with ``image (n, n, 3) uint8`` in front and of bare metal behind."""
    levels: List[np.ndarray] = [image]
    while len(levels[-1]) > 8:
        size = len(levels[-1]) // 2
        levels.append(cv2.resize(levels[-1], (size, size), interpolation=cv2.INTER_AREA))

    def albedo(coordinates: np.ndarray) -> np.ndarray:
        # a copy about as fine as the plate's pixels: nearer none is needed, farther it would alias
        side = 1.2 * coordinates.shape[1] ** 0.5
        level = levels[0]
        for smaller in levels[1:]:
            if len(smaller) < side:
                break
            level = smaller
        last = len(level) - 1
        column = np.clip((coordinates[0] + 1) * (len(level) / 2), 0, last).astype(np.int32)
        row = np.clip((1 - coordinates[1]) * (len(level) / 2), 0, last).astype(np.int32)
        printed = level[row, column].astype(np.float32).T
        return np.where(coordinates[2] > 0, printed, np.float32(120))

    return albedo


def ragged(coordinates: np.ndarray, facing: np.ndarray, depth: float, seed: int) -> np.ndarray:
    """Which points ``(M,)`` of a leafy surface are leaves: gaps grow towards its silhouette.

    ``facing (M,)`` is 1 where the surface looks at the camera and 0 at its outline.
    """
    grain = _sampled(noise.fine(seed), coordinates, 42)
    return grain > (depth * 2.2) * (0.55 - facing)


def _column(colour: Colour) -> np.ndarray:
    return np.array(colour, np.float32)[:, None]


def _blotches(coordinates: np.ndarray, amount: float, seed: int) -> np.ndarray:
    # on a few pixels blotches are but noise
    if amount == 0 or coordinates.shape[1] < 48:
        return np.ones(coordinates.shape[1], np.float32)
    return np.float32(1) + np.float32(amount) * _sampled(noise.broad(seed), coordinates, 110)


def _sampled(texture: np.ndarray, coordinates: np.ndarray, scale: float) -> np.ndarray:
    """Noise at the solid's own coordinates; ``scale`` texels a unit."""
    wrap = noise.SIZE - 1
    skew = coordinates[2] * np.float32(0.7 * scale)
    column = (coordinates[0] * np.float32(scale) + skew).astype(np.int32) & wrap
    row = (coordinates[1] * np.float32(scale) + skew).astype(np.int32) & wrap
    return texture[row, column]
