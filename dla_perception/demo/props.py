"""The things that stand in the scene: the five classes to detect, and clutter that is none.

A prop is made of solids in its own frame: the origin on the ground below its middle, metres.
Makers draw everything that varies from the generator that they are given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Callable, Dict, List, Sequence, Tuple

import cv2
import numpy as np

from dla_perception.demo import plates
from dla_perception.demo.materials import (
    Colour,
    Material,
    beach_ball,
    cardboard,
    face,
    football,
    mottled,
    plain,
    planks,
    ribbed,
    rings,
    seamed,
    slats,
    staves,
    striped_ball,
    tote,
)
from dla_perception.demo.solids import Block, Ellipsoid, Frustum, Plate, Solid

CLASS_NAMES = ("cone", "ball", "box", "barrel", "sign")
CLUTTER = -1
"""The class id of what is none of the classes."""


@dataclass(frozen=True)
class Part:
    """One solid of a prop and its surface.

    ``gloss`` in [0, 1] is the strength of the highlight; ``ragged`` above 0 makes a leafy outline.
    """

    solid: Solid
    material: Material
    gloss: float = 0.0
    ragged: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Prop:
    """A thing: its class, the upright cylinder round it (metres) and its parts."""

    class_id: int
    radius: float
    height: float
    parts: Tuple[Part, ...]

    @cached_property
    def hulls(self) -> Tuple[np.ndarray, ...]:
        """Of each part, points ``(N, 3)`` round it: what its shadow is made of."""
        return tuple(part.solid.hull() for part in self.parts)

    @cached_property
    def footprint(self) -> np.ndarray:
        """The outline ``(N, 2)``, x and z, of what touches the ground, with a narrow margin."""
        points = np.concatenate(self.hulls)
        low = points[points[:, 1] < points[:, 1].min() + 0.12][:, 0::2].astype(np.float32)
        rim = cv2.convexHull(low)[:, 0].astype(float)
        return rim * (1 + 0.03 / max(float(np.abs(rim).max()), 0.01))


Maker = Callable[[np.random.Generator], Prop]


def make_prop(class_id: int, rng: np.random.Generator) -> Prop:
    """A random thing of one class."""
    return _MAKERS[class_id](rng)


def make_clutter(kinds: Sequence[str], rng: np.random.Generator) -> Prop:
    """A random thing that is none of the classes; ``kinds`` are keys of :data:`CLUTTER_MAKERS`."""
    return CLUTTER_MAKERS[kinds[int(rng.integers(len(kinds)))]](rng)


_ORANGE: Colour = (18, 92, 238)
_RED: Colour = (38, 34, 196)
_YELLOW: Colour = (34, 190, 240)
_GREEN: Colour = (70, 140, 44)
_BLUE: Colour = (170, 88, 28)
_WHITE: Colour = (226, 230, 232)
_BLACK: Colour = (34, 32, 32)
_STEEL: Colour = (140, 138, 134)
_CARD: Colour = (104, 150, 188)
_WOOD: Colour = (82, 124, 168)


def _pick(rng: np.random.Generator, colours: Sequence[Colour], spread: float = 0.12) -> Colour:
    """One of the colours, a little lighter or darker and off in each channel."""
    colour = np.array(colours[int(rng.integers(len(colours)))], float)
    colour = colour * rng.uniform(1 - spread, 1 + spread) + rng.uniform(-10, 10, 3)
    return tuple(float(v) for v in np.clip(colour, 12, 250))  # type: ignore[return-value]


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 16))


def _rotation(rng: np.random.Generator) -> np.ndarray:
    """A random rotation ``(3, 3)``."""
    matrix, upper = np.linalg.qr(rng.standard_normal((3, 3)))
    return matrix * np.sign(np.diag(upper))


def _frustum(bottom: float, top: float, bottom_radius: float, top_radius: float) -> Frustum:
    return Frustum(0.0, 0.0, bottom, top, bottom_radius, top_radius)


def _cone(rng: np.random.Generator) -> Prop:
    height = rng.uniform(0.42, 0.92)
    foot, slab = height * rng.uniform(0.25, 0.32), height * rng.uniform(0.035, 0.055)
    body = _pick(rng, (_ORANGE, _ORANGE, _ORANGE, _RED, _YELLOW, (60, 210, 150), _BLUE))
    band = _pick(rng, (_WHITE, _WHITE, _WHITE, (60, 230, 235)), 0.06)
    bands: List[Tuple[float, float, Colour]] = []
    style = rng.integers(4)
    if style == 0:
        bands = [(0.42, 0.68, band)]
    elif style == 1:
        bands = [(0.28, 0.46, band), (0.60, 0.76, band)]
    elif style == 2:
        bands = [(0.55, 0.80, band)]
    base = body if rng.random() < 0.5 else _pick(rng, (_BLACK,))
    seed = _seed(rng)
    tip = height * rng.uniform(0.035, 0.06)
    if rng.random() < 0.75:
        plate: Solid = Block((0.0, slab / 2, 0.0), (foot, slab / 2, foot), 0.0)
        radius = foot * 1.42
    else:
        plate, radius = _frustum(0.0, slab, foot, foot * 0.96), foot
    cone = _frustum(slab, height, foot * 0.78, tip)
    return Prop(
        0,
        radius,
        height,
        (
            Part(plate, plain(base, 0.06, seed)),
            Part(cone, rings(body, bands, 0.06, seed), gloss=0.12),
        ),
    )


def _ball(rng: np.random.Generator) -> Prop:
    radius = rng.uniform(0.16, 0.34)
    seed = _seed(rng)
    vivid = (_RED, _BLUE, _YELLOW, _GREEN, _ORANGE, (150, 60, 170), (200, 180, 60), _WHITE)
    style = int(rng.integers(6))
    if style == 0:
        colours = [_pick(rng, vivid) for _ in range(3)]
        material = beach_ball((colours[0], _WHITE, colours[1], _WHITE, colours[2], _WHITE), seed)
    elif style == 1:
        material = football(_pick(rng, (_WHITE,), 0.05), _pick(rng, (_BLACK, _BLUE, _RED)), seed)
    elif style == 2:
        material = seamed(_pick(rng, ((40, 96, 204), (60, 120, 180))), (26, 28, 34), 0.03, seed)
    elif style == 3:
        material = striped_ball(_pick(rng, vivid), _pick(rng, vivid), rng.uniform(0.15, 0.4), seed)
    elif style == 4:
        material = seamed(_pick(rng, ((60, 226, 206), (80, 236, 224))), _WHITE, 0.05, seed)
    else:
        material = plain(_pick(rng, vivid), 0.05, seed)
    solid = Ellipsoid((0.0, radius, 0.0), radius, radius, _rotation(rng))
    return Prop(1, radius, 2 * radius, (Part(solid, material, gloss=rng.uniform(0.1, 0.6)),))


def _box(rng: np.random.Generator) -> Prop:
    width = rng.uniform(0.36, 0.80)
    depth = width * rng.uniform(0.70, 1.0)
    height = width * rng.uniform(0.55, 1.10)
    seed = _seed(rng)
    style = rng.random()
    if style < 0.45:
        label = (rng.uniform(-0.5, 0.5), rng.uniform(-0.45, 0.3))
        carton = _pick(rng, (_CARD, _CARD, (126, 168, 200), (206, 214, 216)))
        material = cardboard(carton, _pick(rng, ((120, 170, 196), (88, 112, 140))), label, seed)
        gloss = 0.0
    elif style < 0.75:
        wood = _pick(rng, (_WOOD, (96, 146, 190), (58, 88, 122)))
        material, gloss = planks(wood, int(rng.integers(4, 8)), seed), 0.0
    else:
        vivid = (_BLUE, _RED, _GREEN, _YELLOW, _STEEL, (60, 60, 64))
        material, gloss = tote(_pick(rng, vivid), _pick(rng, vivid), seed), 0.25
    half = (width / 2, height / 2, depth / 2)
    solid = Block((0.0, height / 2, 0.0), half, 0.0)
    return Prop(2, math.hypot(width, depth) / 2, height, (Part(solid, material, gloss=gloss),))


def _barrel(rng: np.random.Generator) -> Prop:
    radius = rng.uniform(0.23, 0.33)
    height = radius * rng.uniform(2.6, 3.3)
    seed = _seed(rng)
    style = rng.random()
    if style < 0.5:
        paint = _pick(rng, (_BLUE, _RED, _GREEN, _YELLOW, (52, 56, 60), (60, 84, 130), _ORANGE))
        lid = _pick(rng, (paint, (70, 72, 76), (150, 150, 150)), 0.08)
        body = Part(
            _frustum(0.0, height, radius, radius),
            ribbed(paint, (0.03, 0.35, 0.66, 0.97), lid, seed),
            gloss=rng.uniform(0.15, 0.5),
        )
        parts: Tuple[Part, ...] = (body,)
    elif style < 0.75:
        paint = _pick(rng, (_ORANGE, _ORANGE, _RED))
        band = _pick(rng, (_WHITE,), 0.05)
        bands = [(0.22, 0.38, band), (0.56, 0.72, band)]
        foot = _frustum(0.0, 0.06, radius * 1.12, radius * 1.08)
        parts = (
            Part(foot, plain(_BLACK, 0.05, seed)),
            Part(
                _frustum(0.06, height, radius, radius * 0.84),
                rings(paint, bands, 0.06, seed),
                gloss=0.15,
            ),
        )
        radius *= 1.12
    else:
        wood, hoop = _pick(rng, (_WOOD, (56, 92, 136), (48, 70, 96))), _pick(rng, ((62, 62, 64),))
        material = staves(wood, hoop, int(rng.integers(14, 22)), seed)
        belly, end = radius * 1.08, radius * 0.88
        parts = (
            Part(_frustum(0.0, height / 2, end, belly), material),
            Part(_frustum(height / 2, height, belly, end), material),
        )
        radius = belly
    return Prop(3, radius, height, parts)


def _sign(rng: np.random.Generator) -> Prop:
    index = int(rng.integers(plates.count()))
    printed = plates.plate_face(index)
    half_width = rng.uniform(0.22, 0.34)
    half_height = half_width * (rng.uniform(0.8, 1.1) if index >= plates.count() - 3 else 1.0)
    middle = rng.uniform(0.85, 1.55)
    pole, seed = rng.uniform(0.022, 0.036), _seed(rng)
    metal = _pick(rng, (_STEEL, (170, 170, 168), (92, 92, 92)))
    top = middle + half_height * 0.5
    parts = [
        Part(_frustum(0.0, top, pole, pole), plain(metal, 0.08, seed), gloss=0.3),
        Part(
            Plate((0.0, middle, -pole - 0.005), half_width, half_height, 0.0, printed.outline),
            face(printed.image),
            gloss=0.1,
        ),
    ]
    foot = rng.uniform(0.14, 0.24)
    if rng.random() < 0.5:
        slab = Block((0.0, 0.03, 0.0), (foot, 0.03, foot), 0.0)
        parts.insert(0, Part(slab, plain(_pick(rng, (_BLACK, (120, 124, 126))), 0.08, seed)))
    return Prop(4, max(half_width, foot * 1.42), middle + half_height, tuple(parts))


_MAKERS: Tuple[Maker, ...] = (_cone, _ball, _box, _barrel, _sign)


def _leaves(
    rng: np.random.Generator,
    count: int,
    middle: Tuple[float, float, float],
    spread: float,
    size: float,
) -> List[Part]:
    """Leafy blobs round ``middle``."""
    dark = _pick(rng, ((22, 52, 26), (28, 58, 40), (20, 46, 44)))
    light = _pick(rng, ((62, 132, 84), (56, 148, 112), (70, 120, 120), (60, 140, 160)))
    parts = []
    for _ in range(count):
        offset = rng.uniform(-spread, spread, 3) * (1.0, 0.7, 1.0)
        radius = size * rng.uniform(0.7, 1.1)
        east, up, north = (float(v) for v in np.array(middle) + offset)
        centre = (east, up, north)
        solid = Ellipsoid(centre, radius, radius * rng.uniform(0.75, 1.0), _rotation(rng))
        seed = _seed(rng)
        material = mottled(dark, light, rng.uniform(0.8, 1.6), seed)
        parts.append(Part(solid, material, ragged=1.0, seed=seed))
    return parts


def _tree(rng: np.random.Generator) -> Prop:
    trunk, stem = rng.uniform(1.3, 2.2), rng.uniform(0.07, 0.16)
    bark = mottled(_pick(rng, ((34, 48, 62),)), _pick(rng, ((86, 108, 126),)), 1.2, _seed(rng))
    crown = rng.uniform(0.55, 0.95)
    leaves = _leaves(rng, int(rng.integers(3, 6)), (0.0, trunk + crown * 0.6, 0.0), 0.5, crown)
    parts = [Part(_frustum(0.0, trunk + 0.3, stem * 1.25, stem), bark)]
    return Prop(CLUTTER, 0.5 + crown, trunk + 2.2 * crown, tuple(parts + leaves))


def _fir(rng: np.random.Generator) -> Prop:
    seed, height = _seed(rng), rng.uniform(1.6, 3.2)
    needles = mottled((24, 44, 24), _pick(rng, ((60, 110, 66), (74, 120, 92))), 2.2, seed)
    parts = [Part(_frustum(0.0, 0.4, 0.09, 0.08), plain((40, 58, 74), 0.1, seed))]
    for tier in range(4):
        low, wide = 0.25 + tier * height * 0.2, height * 0.24 * (1 - tier * 0.19)
        high = low + height * 0.36
        parts.append(Part(_frustum(low, high, wide, 0.02), needles, ragged=0.8, seed=seed))
    return Prop(CLUTTER, height * 0.26, height * 1.25, tuple(parts))


def _bush(rng: np.random.Generator) -> Prop:
    size = rng.uniform(0.28, 0.55)
    leaves = _leaves(rng, int(rng.integers(2, 5)), (0.0, size * 0.7, 0.0), size * 0.7, size)
    return Prop(CLUTTER, size * 1.8, size * 2.3, tuple(leaves))


def _rock(rng: np.random.Generator) -> Prop:
    size = rng.uniform(0.16, 0.5)
    dark, light = _pick(rng, ((74, 76, 80), (66, 78, 92))), _pick(rng, ((140, 144, 150),))
    parts = []
    for _ in range(int(rng.integers(2, 4))):
        east, north = rng.uniform(-0.5, 0.5, 2) * size
        radius = size * rng.uniform(0.6, 1.0)
        tall = radius * rng.uniform(0.45, 0.7)
        solid = Ellipsoid((east, tall * 0.5, north), radius, tall, _rotation(rng))
        parts.append(Part(solid, mottled(dark, light, 1.5, _seed(rng))))
    return Prop(CLUTTER, size * 1.5, size * 1.2, tuple(parts))


def _bollard(rng: np.random.Generator) -> Prop:
    radius, height, seed = rng.uniform(0.05, 0.09), rng.uniform(0.7, 1.0), _seed(rng)
    paint = _pick(rng, (_STEEL, (60, 58, 56), (60, 170, 200), (70, 90, 40)))
    bands = [(0.78, 0.88, _pick(rng, (_WHITE, _RED)))] if rng.random() < 0.6 else []
    dome = Ellipsoid((0.0, height, 0.0), radius, radius * 0.6, np.eye(3))
    parts = (
        Part(_frustum(0.0, height, radius, radius), rings(paint, bands, 0.06, seed), gloss=0.2),
        Part(dome, plain(paint, 0.05, seed), gloss=0.2),
    )
    return Prop(CLUTTER, radius, height + radius * 0.6, parts)


def _lamp(rng: np.random.Generator) -> Prop:
    height, seed = rng.uniform(2.4, 3.6), _seed(rng)
    metal = plain(_pick(rng, ((70, 72, 74), (54, 66, 50), (130, 130, 128))), 0.08, seed)
    head = Ellipsoid((0.0, height, 0.0), 0.17, 0.14, np.eye(3))
    parts = (
        Part(_frustum(0.0, 0.25, 0.09, 0.06), metal, gloss=0.2),
        Part(_frustum(0.2, height, 0.045, 0.035), metal, gloss=0.3),
        Part(head, plain((214, 232, 238), 0.02, seed), gloss=0.5),
    )
    return Prop(CLUTTER, 0.18, height + 0.16, parts)


def _kerb(rng: np.random.Generator) -> Prop:
    half = (rng.uniform(0.7, 1.1), rng.uniform(0.10, 0.22), rng.uniform(0.10, 0.16))
    stone = mottled((98, 102, 106), (164, 168, 172), 1.5, _seed(rng))
    solid = Block((0.0, half[1], 0.0), half, 0.0)
    return Prop(CLUTTER, math.hypot(half[0], half[2]), 2 * half[1], (Part(solid, stone),))


def _planter(rng: np.random.Generator) -> Prop:
    half = (rng.uniform(0.55, 0.8), 0.18, 0.2)
    stone = mottled((88, 100, 116), (140, 152, 164), 1.4, _seed(rng))
    parts = [Part(Block((0.0, half[1], 0.0), half, 0.0), stone)]
    for east in (-0.5, 0.5):
        parts += _leaves(rng, 1, (east * half[0], 0.5, 0.0), 0.08, rng.uniform(0.24, 0.32))
    return Prop(CLUTTER, math.hypot(half[0], half[2]) + 0.15, 0.85, tuple(parts))


def _pallet(rng: np.random.Generator) -> Prop:
    wood, seed = _pick(rng, (_WOOD, (104, 140, 172))), _seed(rng)
    solid = Block((0.0, 0.07, 0.0), (0.6, 0.07, 0.4), 0.0)
    return Prop(CLUTTER, 0.73, 0.14, (Part(solid, slats(wood, 7, 0.22, seed)),))


def _tyres(rng: np.random.Generator) -> Prop:
    radius, width = rng.uniform(0.28, 0.36), rng.uniform(0.16, 0.22)
    count, parts = int(rng.integers(1, 3)), []
    for layer in range(count):
        low = layer * width
        seed = _seed(rng)
        groove, wall = (0.42, 0.58, (24.0, 24.0, 24.0)), (1.5, 3.0, (46.0, 45.0, 44.0))
        rubber = rings((38, 37, 36), [groove, wall], 0.1, seed)
        parts.append(Part(_frustum(low, low + width, radius, radius), rubber))
    hub = _frustum(0.0, count * width + 0.003, radius * 0.52, radius * 0.52)
    parts.append(Part(hub, plain((16, 16, 17), 0.05)))
    return Prop(CLUTTER, radius, count * width, tuple(parts))


def _bucket(rng: np.random.Generator) -> Prop:
    radius, height, seed = rng.uniform(0.13, 0.17), rng.uniform(0.26, 0.34), _seed(rng)
    paint = _pick(rng, ((190, 190, 188), (70, 70, 74), (150, 120, 70)))
    rim = [(0.92, 1.01, _pick(rng, ((120, 120, 120),))), (1.5, 3.0, (44, 44, 46))]
    body = Part(_frustum(0.0, height, radius * 0.72, radius), rings(paint, rim, 0.05, seed), 0.2)
    return Prop(CLUTTER, radius, height, (body,))


def _cabinet(rng: np.random.Generator) -> Prop:
    half = (rng.uniform(0.28, 0.42), rng.uniform(0.7, 0.95), rng.uniform(0.2, 0.3))
    paint = _pick(rng, ((128, 132, 128), (96, 108, 92), (150, 146, 138)))
    solid = Block((0.0, half[1], 0.0), half, 0.0)
    louvres = slats(paint, int(rng.integers(14, 22)), 0.16, _seed(rng))
    return Prop(CLUTTER, math.hypot(half[0], half[2]), 2 * half[1], (Part(solid, louvres),))


def _fence(rng: np.random.Generator) -> Prop:
    half, height, seed = rng.uniform(0.7, 1.0), rng.uniform(0.7, 1.0), _seed(rng)
    paint = _pick(rng, ((90, 116, 140), _WHITE, (80, 82, 86), (60, 80, 100)))
    boards = slats(paint, 2, 0.0, seed)
    parts = []
    for level in (0.45, 0.85):
        rail = Block((0.0, height * level, 0.0), (half, 0.05, 0.02), 0.0)
        parts.append(Part(rail, boards))
    for east in (-half * 0.9, 0.0, half * 0.9):
        post = Block((east, height / 2, 0.0), (0.04, height / 2, 0.03), 0.0)
        parts.append(Part(post, boards))
    return Prop(CLUTTER, half, height, tuple(parts))


CLUTTER_MAKERS: Dict[str, Maker] = {
    "tree": _tree,
    "fir": _fir,
    "bush": _bush,
    "rock": _rock,
    "bollard": _bollard,
    "lamp": _lamp,
    "kerb": _kerb,
    "planter": _planter,
    "pallet": _pallet,
    "tyres": _tyres,
    "bucket": _bucket,
    "cabinet": _cabinet,
    "fence": _fence,
}
"""Makers of clutter by kind."""
