"""The faces of the signs: printed plates and their outlines."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Callable, List, NamedTuple, Sequence, Tuple

import cv2
import numpy as np

SIZE = 256
"""Side of a face in pixels."""

_WHITE = (238, 238, 238)
_BLACK = (28, 28, 28)
_RED = (36, 30, 196)
_BLUE = (178, 92, 26)
_YELLOW = (32, 198, 246)
_GREEN = (84, 138, 22)
_ORANGE = (20, 120, 240)


class PlateFace(NamedTuple):
    """``image (SIZE, SIZE, 3) uint8`` BGR and ``outline (SIZE, SIZE) uint8``, 255 on the plate."""

    image: np.ndarray
    outline: np.ndarray


Design = Callable[[], Tuple[np.ndarray, np.ndarray]]
"""Draws the image and the outline of one face."""


def count() -> int:
    """How many faces there are."""
    return len(_DESIGNS)


@lru_cache(maxsize=None)
def plate_face(index: int) -> PlateFace:
    """The face of one design, drawn when it is first asked for."""
    image, outline = _DESIGNS[index]()
    image.setflags(write=False)
    outline.setflags(write=False)
    return PlateFace(image, outline)


def _polygon(sides: int, radius: float, turn: float, centre: float = 0.5) -> np.ndarray:
    """Corners ``(sides, 2) int32`` of a regular polygon; sizes relative to the face."""
    angles = turn + np.arange(sides) * (2 * math.pi / sides)
    x = 0.5 + radius * np.sin(angles)
    y = centre - radius * np.cos(angles)
    return np.rint(np.stack([x, y], axis=1) * SIZE).astype(np.int32)


def _scaled(points: Sequence[Tuple[float, float]]) -> np.ndarray:
    return np.rint(np.array(points) * SIZE).astype(np.int32)


def _blank(colour: Tuple[int, int, int]) -> np.ndarray:
    return np.full((SIZE, SIZE, 3), colour, np.uint8)


def _outline(points: np.ndarray) -> np.ndarray:
    return cv2.fillPoly(np.zeros((SIZE, SIZE), np.uint8), [points], 255)


def _fill(image: np.ndarray, points: np.ndarray, colour: Tuple[int, int, int]) -> None:
    cv2.fillPoly(image, [points], colour, cv2.LINE_AA)


def _disc(image: np.ndarray, radius: float, colour: Tuple[int, int, int]) -> None:
    middle = (SIZE // 2, SIZE // 2)
    cv2.circle(image, middle, int(radius * SIZE), colour, cv2.FILLED, cv2.LINE_AA)


def _text(image: np.ndarray, text: str, height: float, colour: Tuple[int, int, int]) -> None:
    scale, thickness = height * SIZE / 22, max(int(height * 38), 4)
    (width, tall), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, thickness)
    origin = ((image.shape[1] - width) // 2, (image.shape[0] + tall) // 2)
    cv2.putText(
        image, text, origin, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, thickness, cv2.LINE_AA
    )


_ROUND = _polygon(64, 0.495, 0.0)
_ARROW = _scaled(
    [(0.5, 0.2), (0.72, 0.45), (0.57, 0.45), (0.57, 0.8), (0.43, 0.8), (0.43, 0.45), (0.28, 0.45)]
)


def _stop() -> Tuple[np.ndarray, np.ndarray]:
    image = _blank(_WHITE)
    _fill(image, _polygon(8, 0.495, math.pi / 8), _RED)
    _text(image, "STOP", 0.30, _WHITE)
    return image, _outline(_polygon(8, 0.53, math.pi / 8))


def _limit(text: str) -> Design:
    def draw() -> Tuple[np.ndarray, np.ndarray]:
        image = _blank(_RED)
        _disc(image, 0.38, _WHITE)
        _text(image, text, 0.36, _BLACK)
        return image, _outline(_ROUND)

    return draw


def _no_entry() -> Tuple[np.ndarray, np.ndarray]:
    image = _blank(_RED)
    _fill(image, _scaled([(0.16, 0.42), (0.84, 0.42), (0.84, 0.58), (0.16, 0.58)]), _WHITE)
    return image, _outline(_ROUND)


def _keep(turn: float) -> Design:
    def draw() -> Tuple[np.ndarray, np.ndarray]:
        image = _blank(_WHITE)
        _disc(image, 0.46, _BLUE)
        offset = _ARROW - SIZE / 2
        cos, sin = math.cos(turn), math.sin(turn)
        turned = offset @ np.array([[cos, sin], [-sin, cos]]) + SIZE / 2
        _fill(image, np.rint(turned).astype(np.int32), _WHITE)
        return image, _outline(_ROUND)

    return draw


def _warning(inside: Tuple[int, int, int], text: str) -> Design:
    def draw() -> Tuple[np.ndarray, np.ndarray]:
        image = _blank(_RED)
        _fill(image, _polygon(3, 0.36, 0.0, 0.62), inside)
        # a triangle's middle is below the middle of the square round it
        lower = image[int(0.24 * SIZE) :]
        _text(lower, text, 0.30, _BLACK)
        return image, _outline(_polygon(3, 0.60, 0.0, 0.62))

    return draw


def _diamond(colour: Tuple[int, int, int]) -> Design:
    def draw() -> Tuple[np.ndarray, np.ndarray]:
        image = _blank(_BLACK)
        _fill(image, _polygon(4, 0.46, 0.0), colour)
        _fill(image, (_ARROW - SIZE // 2) * 7 // 10 + SIZE // 2, _BLACK)
        return image, _outline(_polygon(4, 0.5, 0.0))

    return draw


def _board(colour: Tuple[int, int, int], text: str, height: float) -> Design:
    def draw() -> Tuple[np.ndarray, np.ndarray]:
        image = _blank(_WHITE)
        _fill(image, _scaled([(0.05, 0.05), (0.95, 0.05), (0.95, 0.95), (0.05, 0.95)]), colour)
        _text(image, text, height, _WHITE)
        return image, np.full((SIZE, SIZE), 255, np.uint8)

    return draw


def _chevrons() -> Tuple[np.ndarray, np.ndarray]:
    image = _blank(_WHITE)
    for start in (-0.1, 0.3, 0.7):
        points = [(start, 0.05), (start + 0.2, 0.05), (start + 0.45, 0.5), (start + 0.2, 0.95)]
        _fill(image, _scaled(points + [(start, 0.95), (start + 0.25, 0.5)]), _RED)
    return image, np.full((SIZE, SIZE), 255, np.uint8)


_DESIGNS: List[Design] = [
    _stop,
    _limit("10"),
    _limit("30"),
    _limit("50"),
    _no_entry,
    _keep(0.0),
    _keep(math.pi / 4),
    _keep(-math.pi / 2),
    _warning(_WHITE, "!"),
    _warning(_YELLOW, "Y"),
    _diamond(_YELLOW),
    _diamond(_ORANGE),
    _board(_BLUE, "P", 0.55),
    _board(_GREEN, "EXIT", 0.28),
    _chevrons,
]
